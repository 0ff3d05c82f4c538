//! Tests `uslab course` as a lecturer uses it: the command marks answer sheets and judges exercises.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use uslab_tests::workspace;

fn course(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(uslab_tests::uslab());
    command.arg("course").args(arguments).current_dir(folder).stdin(Stdio::null());
    // All of a student's models must run, whichever shard of other models was requested.
    command.env("SHARD", "0/8");
    command.output().expect("uslab must run")
}
fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}
fn data(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
/// Checks that the exit code is 2 and that standard output is empty; returns standard error.
fn refused(arguments: &[&str], folder: &Path) -> String {
    let output = course(arguments, folder);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn course_does_not_overwrite_a_started_exercise() {
    let folder = folder();
    let list = course(&[], folder.path());
    assert!(list.status.success());
    for lab in [
        "two-magazines",
        "depot",
        "remote-frees",
        "pages",
        "colour",
        "race",
        "merge",
        "partial",
        "exchange",
        "reaping",
    ] {
        assert!(stdout(&list).contains(lab), "{lab}");
    }
    assert_eq!(data(&course(&["--json"], folder.path())).as_array().unwrap().len(), 10);
    let begun = course(&["start", "merge"], folder.path());
    assert!(begun.status.success() && stdout(&begun).contains("uslab course grade merge.rs"));
    let text = fs::read_to_string(folder.path().join("merge.rs")).unwrap();
    assert!(text.contains("impl Buddy for Exercise"));
    fs::write(folder.path().join("merge.rs"), "mine").unwrap();
    assert!(refused(&["start", "merge"], folder.path()).contains("merge.rs: the file already exists"));
    assert_eq!(fs::read_to_string(folder.path().join("merge.rs")).unwrap(), "mine");
    assert!(
        refused(&["start", "merge", "no/such/place.rs"], folder.path())
            .contains("expected the path of a new file")
    );
    assert!(
        refused(&["start", "depot"], folder.path())
            .contains("unknown exercise `depot`; expected one of merge, partial, exchange, reaping")
    );
}

#[test]
fn course_grades_each_question_of_an_answer_sheet() {
    let folder = folder();
    let sheet = |answers: Value| {
        let sheet = json!({ "course": 1, "name": "Ann", "seed": 3, "answers": answers });
        fs::write(folder.path().join("answers.json"), sheet.to_string()).unwrap();
        course(&["grade", "answers.json", "--json"], folder.path())
    };
    let none = sheet(json!({}));
    assert_eq!(none.status.code(), Some(1));
    let none = data(&none);
    assert_eq!((&none["right"], &none["of"]), (&json!(0), &json!(18)));
    // The answers are the solutions that the marks show.
    let mut answers = json!({});
    for mark in none["marks"].as_array().unwrap() {
        let lab = mark["lab"].as_str().unwrap();
        if answers[lab].is_null() {
            answers[lab] = json!([]);
        }
        answers[lab].as_array_mut().unwrap().push(mark["right"].clone());
    }
    let all = sheet(answers.clone());
    assert_eq!((all.status.code(), &data(&all)["right"]), (Some(0), &json!(18)));
    answers["pages"][0] = json!(1);
    answers["race"] = json!([10, null]);
    let some = sheet(answers);
    assert_eq!((some.status.code(), &data(&some)["right"]), (Some(1), &json!(15)));
    let text = stdout(&course(&["grade", "answers.json"], folder.path()));
    assert!(
        text.ends_with("Ann, seed 3: 15 of 18 answers are right\n") && text.matches("wrong").count() == 3,
        "{text}"
    );
}

#[test]
fn solutions_printed_for_a_seed_are_graded_correct() {
    let folder = folder();
    let sheet = json!({ "course": 1, "name": "Ann", "seed": 4711, "answers": {} });
    fs::write(folder.path().join("answers.json"), sheet.to_string()).unwrap();
    let marks = data(&course(&["grade", "answers.json", "--json"], folder.path()));
    let answers = data(&course(&["answers", "--seed", "4711", "--json"], folder.path()));
    let right = |all: &Value| -> Vec<_> {
        let one = |mark: &Value| ["lab", "question", "right"].map(|key| mark[key].clone());
        all.as_array().unwrap().iter().map(one).collect()
    };
    assert_eq!(right(&answers), right(&marks["marks"]));
    let text = stdout(&course(&["answers", "--seed", "4711"], folder.path()));
    assert!(text.starts_with("answers for seed 4711\n"), "{text}");
    for answer in answers.as_array().unwrap() {
        let (asked, said) = (answer["text"].as_str().unwrap(), answer["said"].as_str().unwrap());
        assert!(text.contains(asked) && text.contains(&format!("= {said}. ")), "{asked}: {said}");
    }
}

#[test]
fn course_refuses_files_without_answers() {
    let folder = folder();
    let path = folder.path();
    for (name, text) in [
        ("a.json", "{"),
        ("b.json", r#"{"course":9,"name":"","seed":1,"answers":{}}"#),
        ("c.txt", ""),
        ("d.rs", ""),
        ("merge.rs", ""),
    ] {
        fs::write(path.join(name), text).unwrap();
    }
    for (arguments, expected) in [
        (&["grade", "none.json"][..], "none.json: expected an answer sheet or an exercise"),
        (&["grade", "a.json"], "a.json: not an answer sheet"),
        (&["grade", "b.json"], "version 9 of the course; expected 1"),
        (
            &["grade", "b.json", "--html", "x.html"],
            "--html: expected a failing exercise, not an answer sheet",
        ),
        (&["grade", "c.txt"], "c.txt: expected an answer sheet, FILE.json, or an exercise, FILE.rs"),
        (&["grade", "d.rs"], "d.rs: the file name does not end in a lab's name; expected --lab LAB"),
        (&["grade", "d.rs", "--lab", "depot"], "unknown exercise `depot`"),
        (
            &["grade", "merge.rs", "--source", "/"],
            "this folder lacks uslab's sources (sim/engine); expected --source DIR with the sources",
        ),
        (&["grade", "merge.rs", "--seed", "many"], "invalid value 'many' for '--seed"),
    ] {
        let said = refused(arguments, path);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert!(!path.join("x.html").exists());
}

/// Returns a correct solution of an exercise, as a student would submit it.
fn done(lab: &str) -> String {
    let file = workspace().join(format!("sim/engine/src/course/code/reference/{lab}.rs"));
    let text = fs::read_to_string(file).unwrap();
    text.replace("pub(in crate::course::code)", "pub").replace("use crate::", "use uslab_engine::")
}
/// Runs `uslab course` on a student's solution. Returns the exit code, the failed checks, and a web page that shows the
/// step at which the solution fails.
fn judged(lab: &str, code: &str) -> (Option<i32>, Vec<String>, Option<String>) {
    let folder = folder();
    let name = format!("ann-{lab}.rs");
    fs::write(folder.path().join(&name), code).unwrap();
    let output = course(
        &["grade", &name, "--seed", "99", "--limit", "60", "--html", "failure.html", "--json"],
        folder.path(),
    );
    let verdict = data(&output);
    assert_eq!(
        (&verdict["lab"], &verdict["seed"], &verdict["file"]),
        (&json!(lab), &json!(99), &json!(name))
    );
    let checks = verdict["checks"].as_array().unwrap();
    assert!(!checks.is_empty());
    let failed = checks.iter().filter(|check| check["holds"] == false);
    let failed: Vec<_> = failed.map(|check| format!("{}: {}", check["wanted"], check["found"])).collect();
    assert_eq!(output.status.code(), Some(i32::from(!failed.is_empty())));
    (output.status.code(), failed, fs::read_to_string(folder.path().join("failure.html")).ok())
}
#[track_caller]
fn fails(lab: &str, code: &str, expected: &str, page: Option<&str>) {
    let (_, failed, written) = judged(lab, code);
    assert!(failed.len() == 1 && failed[0].contains(expected), "{failed:?}");
    match (page, written) {
        (Some(expected), Some(page)) => assert!(page.contains(expected)),
        (None, None) => {}
        (_, written) => panic!("no page must be written: {}", written.is_some()),
    }
}

/// The first solution takes half a minute to compile, and each later solution takes a second; solutions with a lock
/// also run under loom.
#[test]
#[ignore = "minutes of compiling: `.ci/full course` does it"]
fn course_grades_exercises_by_running_their_code() {
    let merge = done("merge");
    assert_eq!(judged("merge", &merge), (Some(0), vec![], None));
    let push = "lists.push(page, order);\n    }\n}";
    assert_eq!(merge.matches(push).count(), 1);
    let typo = merge.replace(push, "lists.psh(page, order);\n    }\n}");
    fails("merge", &typo, "no method named `psh`", None);
    let once = merge.replace("while order <", "if order <");
    fails("merge", &once, "are buddies, both free, and not merged", Some("both free, and not merged"));
    let stays = merge.replace(push, "loop {\n std::hint::spin_loop();\n }\n    }\n}");
    let folder = folder();
    fs::write(folder.path().join("merge.rs"), &stays).unwrap();
    let late = course(&["grade", "merge.rs", "--limit", "2"], folder.path());
    assert!(
        late.status.code() == Some(1) && stdout(&late).contains("the program ends within 2 s"),
        "{late:?}"
    );
    // Regression test: an exercise that wrote its own marks, and ended, had full marks.
    let wrote =
        r#"{"lab":"merge","seed":99,"checks":[{"wanted":"all","found":"all","holds":true}],"failure":null}"#;
    let forged = merge.replace(
        push,
        &format!(
            "let place = std::env::args().nth(2).unwrap();\n std::fs::write(place, r#\"{wrote}\"#).unwrap();\n std::process::exit(0);\n    }}\n}}"
        ),
    );
    fails("merge", &forged, "the program reports its result", None);
    for lab in ["partial", "exchange", "reaping"] {
        assert_eq!(judged(lab, &done(lab)), (Some(0), vec![], None), "{lab}");
    }
    // The solution releases the CPU's lock before it takes the depot's, and relies on what it saw under the first lock.
    let exchange = done("exchange");
    let racy = exchange
        .replace(
            "let mut cpu = self.cpus[cpu].lock();",
            "let own = &self.cpus[cpu];\n let mut cpu = own.lock();",
        )
        .replace(
            "cpu.loaded = self.depot.lock().full.pop()?;",
            "drop(cpu);\n let full = self.depot.lock().full.pop()?;\n cpu = own.lock();\n cpu.loaded = full;",
        );
    assert_ne!(racy, exchange);
    fails("exchange", &racy, "each round has one owner", Some("round 6 is freed on CPU 0"));
    let order = exchange.replace("-> Option<T> {\n", "-> Option<T> {\n let _depot = self.depot.lock();\n");
    fails("exchange", &order, "lock order: Cpu is requested while Depot is held", Some("lock order"));
}

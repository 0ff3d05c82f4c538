//! STUDY.md answers every claim of the texts that it is about, and what it names as evidence exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The claims' numbers: a letter a text, and for the tutorial a ten a chapter.
fn numbers() -> Vec<String> {
    let plain = [('A', 40), ('K', 26), ('P', 27), ('X', 14)];
    let chapters: [(u32, u32); 13] = [
        (1, 7),
        (10, 15),
        (20, 26),
        (30, 33),
        (40, 45),
        (50, 57),
        (60, 65),
        (70, 81),
        (90, 98),
        (100, 104),
        (110, 118),
        (120, 125),
        (130, 137),
    ];
    let plain =
        plain.into_iter().flat_map(|(letter, last)| (1..=last).map(move |n| format!("{letter}{n:02}")));
    let chapters = chapters.into_iter().flat_map(|(first, last)| first..=last);
    plain.chain(chapters.map(|n| format!("E{n:03}"))).collect()
}

/// Answers of which no more than this many may be `out`.
const MOST_OUT: usize = 15;

struct Row {
    line: usize,
    answer: String,
    evidence: String,
}

/// The rows of all tables whose first cell is a number of a claim.
fn rows(text: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let number = cells[0];
        let letter = number.starts_with(['A', 'K', 'E', 'P', 'X']);
        if letter && number.len() > 1 && number[1..].chars().all(|c| c.is_ascii_digit()) {
            let [_, claim, answer, found, evidence] = cells[..] else {
                panic!("STUDY.md:{}: {number}: {} cells, expected 5", i + 1, cells.len());
            };
            assert!(!claim.is_empty() && !found.is_empty(), "STUDY.md:{}: {number}: an empty cell", i + 1);
            let row = Row { line: i + 1, answer: answer.to_owned(), evidence: evidence.to_owned() };
            let twice = rows.insert(number.to_owned(), row);
            assert!(twice.is_none(), "STUDY.md:{}: {number} is there twice", i + 1);
        }
    }
    rows
}

fn sources(folder: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, out);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push((path, text));
        }
    }
}

/// Whether there is a test of that name, in the file or folder that is its module.
fn is_test(path: &str, sources: &[(PathBuf, String)]) -> bool {
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    let function = format!("fn {name}(");
    let of_module = |file: &Path| {
        let last = module.split("::").filter(|part| *part != "tests").last().unwrap_or("");
        last.is_empty()
            || file.components().any(|part| Path::new(part.as_os_str()).with_extension("") == Path::new(last))
    };
    sources.iter().any(|(file, text)| {
        of_module(file)
            && text.match_indices(&function).any(|(at, _)| {
                let before = &text[..at];
                let from = before.rfind("\n\n").map_or(0, |i| i + 1);
                before[from..].contains("#[test]")
            })
    })
}

#[test]
fn every_claim_has_an_answer_and_every_answer_evidence_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let rows = rows(&std::fs::read_to_string(root.join("STUDY.md")).unwrap());
    let mut all = Vec::new();
    sources(&root, &mut all);
    let list = Command::new(env!("CARGO_BIN_EXE_uslab")).arg("lab").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let experiments: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();

    let mut wrong = Vec::new();
    for number in numbers() {
        if !rows.contains_key(&number) {
            wrong.push(format!("{number} has no answer"));
        }
    }
    for (number, Row { line, answer, evidence }) in &rows {
        let mut say = |what: String| wrong.push(format!("STUDY.md:{line}: {number}: {what}"));
        if !numbers().contains(number) {
            say("there is no such claim".to_owned());
        }
        if !["done", "refuted", "out"].contains(&answer.as_str()) {
            say(format!("the answer is {answer:?}, expected done, refuted or out"));
        }
        if answer != "out" && evidence.is_empty() {
            say("names no test, bench, command or file".to_owned());
        }
        for name in evidence.split(", ").filter(|name| !name.is_empty()) {
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
                say(format!("evidence {name:?}: expected names in backticks, separated by commas"));
                continue;
            };
            let exists = if let Some(verb) = name.strip_prefix("uslab lab ") {
                experiments.contains(&verb.split(' ').next().unwrap_or(""))
            } else if name.starts_with("uslab ") {
                ["replay", "stress", "geometry"].contains(&name.split(' ').nth(1).unwrap_or(""))
            } else if let Some(bench) = name.strip_prefix("bench ") {
                root.join("benches").join(bench).with_extension("rs").exists()
            } else if name.contains('/') || name.ends_with(".md") {
                root.join(name).exists()
            } else {
                is_test(name, &all)
            };
            if !exists {
                say(format!("there is no {name:?}"));
            }
        }
    }
    let out = rows.values().filter(|row| row.answer == "out").count();
    if out > MOST_OUT {
        wrong.push(format!("{out} claims are out of scope, at most {MOST_OUT} may be"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows.len(), 200);
}

/// A check that finds nothing would hold for any table.
#[test]
fn a_test_that_there_is_not_is_found_missing() {
    let here = vec![(PathBuf::from("tests/study.rs"), include_str!("study.rs").to_owned())];
    assert!(is_test("a_test_that_there_is_not_is_found_missing", &here));
    assert!(is_test("study::tests::a_test_that_there_is_not_is_found_missing", &here));
    assert!(!is_test("other::a_test_that_there_is_not_is_found_missing", &here));
    assert!(!is_test("rows", &here), "no test, though a function");
    assert!(!is_test("no_such_test", &here));
    let table = "| A01 | a claim | done | found | `x` |\n| B01 | other | done | found | x |\ntext\n";
    assert_eq!(rows(table)["A01"].evidence, "`x`");
    assert_eq!(rows(table).len(), 1);
    assert!(
        std::panic::catch_unwind(|| rows("| A01 | a claim | done | `x` |")).is_err(),
        "a cell is missing"
    );
    assert_eq!(numbers().len(), 200);
}

//! Tests the web pages of `uslab story`, `uslab stress` and `uslab scale`; the commands run in separate processes.

use crate::cli::{exit_and_output, refused, uslab};
use serde_json::Value;
use uslab_tests::workspace;

/// Returns the counterexample trace of the tutorial, written by a run under loom; a test of the lab compares it with a
/// new trace.
fn tutorial_trace() -> String {
    workspace().join("sim/data/story.json").to_str().expect("UTF-8").to_owned()
}

/// Returns the data in the web page's element with the given id.
fn page_data(page: &str, id: &str) -> Value {
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    let (_, rest) =
        page.split_once(&format!("<script type=\"application/json\" id=\"{id}\">")).expect("data");
    let (json, _) = rest.split_once("</script>").expect("the script must have an end");
    serde_json::from_str(json).expect("JSON")
}

#[test]
fn counterexample_is_printed_as_in_the_tutorial() {
    let (code, out, err) = exit_and_output(&uslab(&["story", &tutorial_trace()]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let tutorial = std::fs::read_to_string(workspace().join("sim/lab/README.md"))
        .expect("the tutorial must be readable");
    // The run under loom also printed the execution's number.
    let shown = tutorial.replace(" | execution 2\n", "\n");
    assert!(out.starts_with("STORY ") && shown.contains(&out), "{out}");
    let (code, json, _) = exit_and_output(&uslab(&["story", &tutorial_trace(), "--json"]));
    let (found, file) = (json, std::fs::read_to_string(tutorial_trace()).expect("the file must be readable"));
    let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!((code, read(&found)), (Some(0), read(&file)));
}

#[test]
fn counterexample_step_shows_the_state_after_the_step() {
    let (code, out, _) = exit_and_output(&uslab(&["story", &tutorial_trace(), "--step", "10"]));
    let expected = "step 10 of 15\nthread 0  CPU 0  loads the new magazine\n  loaded: [1] of 2 -> [] of 2\n  \
                    previous: [3, 4] of 2 -> [1] of 2\n";
    assert_eq!((code, out.as_str()), (Some(0), expected));
    let (_, out, _) = exit_and_output(&uslab(&["story", &tutorial_trace(), "--step", "11", "--json"]));
    let moment: Value = serde_json::from_str(&out).expect("the output must be only JSON");
    assert_eq!((&moment["number"], &moment["of"]), (&11.into(), &15.into()));
    assert_eq!(moment["state"][0]["after"], "[] of 2");
    assert_eq!(moment["state"][0]["before"], Value::Null, "the step must change no object");
}

#[test]
fn exported_web_page_contains_the_counterexample() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    let (code, out, err) = exit_and_output(&uslab(&["story", &tutorial_trace(), "--html", page]));
    assert_eq!((code, err.as_str(), out.starts_with("STORY ")), (Some(0), "", true));
    let text = std::fs::read_to_string(page).expect("a page");
    let story: Value =
        serde_json::from_str(&std::fs::read_to_string(tutorial_trace()).expect("the file must be readable"))
            .expect("JSON");
    assert_eq!(page_data(&text, "story"), story);
    assert!(text.len() < 200_000, "{} bytes", text.len());
    let (code, out, _) = exit_and_output(&uslab(&["story", &tutorial_trace(), "--html", "-"]));
    assert_eq!((code, out), (Some(0), text));
}

#[test]
fn invalid_counterexample_writes_no_web_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let good = std::fs::read_to_string(tutorial_trace()).expect("the file must be readable");
    let cases = [
        (file("empty.json", ""), ["the file is empty", "STORY_JSON=FILE"]),
        (file("text.json", "STORY a bug\n"), ["expected a story", "STORY_JSON=FILE"]),
        (file("other.json", "{\"caches\": []}"), ["not a counterexample trace", "STORY_JSON=FILE"]),
        (file("list.json", "[1, 2]"), ["not a counterexample trace", "STORY_JSON=FILE"]),
        (file("cut.json", &good[..good.len() / 2]), ["expected a story", "EOF"]),
        (
            file("next.json", &good.replace("\"version\": 1", "\"version\": 2")),
            ["version 2", "expected version 1"],
        ),
        (
            file("old.json", &good.replace("\"version\": 1", "\"was\": 1")),
            ["version none", "expected version 1"],
        ),
        (
            file("more.json", &good.replacen("\"role\"", "\"part\"", 1)),
            ["expected a story", "unknown field `part`"],
        ),
        (folder.path().join("none.json").to_str().expect("UTF-8").to_owned(), ["none.json", "No such file"]),
    ];
    let page = folder.path().join("page.html");
    let html = page.to_str().expect("UTF-8");
    for (story, parts) in &cases {
        refused(&["story", story, "--html", html], &[&[story.as_str()][..], parts].concat());
        let (_, _, err) = exit_and_output(&uslab(&["story", story]));
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let story = tutorial_trace();
    refused(&["story", &story, "--step", "0"], &["--step 0: expected 1 to 15"]);
    refused(&["story", &story, "--step", "16"], &["--step 16: expected 1 to 15"]);
    refused(&["story", &story, "--step", "1", "--html", html], &["--step", "--html"]);
    refused(&["story", &story, "--html", "-", "--json", "-"], &["the same file"]);
    refused(&["story", &story, "--html", &story], &["story.json", "not a web page"]);
    refused(&["story", &story, "--html", &format!("{html}/page.html")], &["does not exist"]);
    refused(&["story"], &["<FILE>"]);
    assert!(!page.exists(), "no partial file must remain");
}

#[test]
fn violation_web_page_shows_the_last_operations() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let html = page.to_str().expect("UTF-8");
    let args =
        ["stress", "--ops", "200000", "--seconds", "60", "--seed", "5", "--threads", "4", "--html", html];
    let (code, out, err) = exit_and_output(&uslab(&[&args[..], &["--leak", "raw-64"]].concat()));
    assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
    let story = page_data(&std::fs::read_to_string(&page).expect("a page"), "story");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (title, end) = (text(&story["title"]), text(&story["end"]));
    assert!(
        title.contains("seed 5") && end.contains("cache raw-64: objects: threads hold"),
        "{title}: {end}"
    );
    let steps = story["steps"].as_array().expect("steps");
    let at = |step: &Value| step["at"].as_f64().expect("a time");
    assert!(steps.is_sorted_by_key(at), "{steps:?}");
    let object = end.rsplit_once("no thread holds ").expect("the value must be an object").1;
    let own: Vec<_> = steps.iter().filter(|step| step["changes"][0]["thing"] == story["about"]).collect();
    // The object was freed, and not allocated since.
    assert!(!own.is_empty() && own.iter().all(|step| step["changes"][0]["part"] == *object), "{end}");
    assert_eq!(own[own.len() - 1]["changes"][0]["after"], "free", "{own:?}");
    let parts = steps.iter().filter_map(|step| step["changes"][0]["part"].as_str());
    let things = steps.iter().filter_map(|step| step["changes"][0]["thing"].as_u64());
    let pairs: std::collections::BTreeSet<_> = parts.zip(things).collect();
    let names: std::collections::BTreeSet<_> = pairs.iter().map(|(part, _)| part).collect();
    let numbers: std::collections::BTreeSet<_> = pairs.iter().map(|(_, thing)| thing).collect();
    assert_eq!((names.len(), numbers.len()), (pairs.len(), pairs.len()), "each object must have one number");
    for step in steps.iter().filter(|step| step["changes"][0]["after"] == "left for others") {
        assert!(text(&step["did"]).starts_with("leaves for others 0x"), "{step}");
    }
    // Without a violation no page is written, and the report says so.
    std::fs::remove_file(&page).expect("the file must exist");
    let (code, out, err) = exit_and_output(&uslab(&args));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let note = format!("--html {html}: page not written, because the run found no violation");
    assert_eq!((out.lines().last(), page.exists()), (Some(note.as_str()), false));
    refused(&["stress", "--ops", "1000", "--html", &tutorial_trace()], &["story.json", "not a web page"]);
}

#[test]
fn scale_web_page_contains_the_scale_report() {
    let args = ["scale", "--ops", "2000", "--cpus", "1..8", "--workload", "pairs,server=10"];
    let (code, page, err) = exit_and_output(&uslab(&[&args[..], &["--html", "-"]].concat()));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (_, json, _) = exit_and_output(&uslab(&[&args[..], &["--json", "-"]].concat()));
    assert_eq!(page_data(&page, "report"), serde_json::from_str::<Value>(&json).expect("JSON"));
    assert!(page.len() < 200_000, "{} bytes", page.len());
    refused(&["scale", "--html", "-", "--svg", "-"], &["the same file"]);
    refused(&["scale", "--html", &tutorial_trace()], &["story.json", "not a web page"]);
    refused(&["scale", "--trace", "x", "--html", "y"], &["--trace", "--html"]);
}

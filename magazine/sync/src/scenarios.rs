//! What the checkers are tried on: one scenario for loom and for shuttle.

use crate::{Arc, AtomicUsize, Ordering::Relaxed, planted, thread};

/// A number that nobody else has.
fn ticket(next: &AtomicUsize) -> usize {
    planted!("a ticket is taken in two steps" => {
        let number = next.load(Relaxed);
        next.store(number + 1, Relaxed);
        return number;
    });
    next.fetch_add(1, Relaxed)
}

fn tickets() {
    let next = Arc::new(AtomicUsize::new(0));
    let other = next.clone();
    let theirs = thread::spawn(move || ticket(&other));
    let ours = ticket(&next);
    assert_ne!(ours, theirs.join().unwrap(), "two have the same ticket");
}

crate::scenarios! {
    tickets_differ {
        loom("tickets differ", Model::new(Bound::None, 13), tickets);
        shuttle("tickets differ", Schedules(100), tickets);
        bug("a ticket is taken in two steps", "tickets", "two have the same ticket");
    }
}

#[cfg(loom)]
mod models {
    use super::*;
    use crate::check::{Bound, model};

    #[test]
    fn a_hint_is_read_before_and_after_it_is_set() {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
        let sink = seen.clone();
        model("a hint", Bound::None, 18, move || {
            let hint = Arc::new(crate::Hint::new(7));
            let other = hint.clone();
            let set = thread::spawn(move || other.set(8));
            sink.lock().unwrap().insert(hint.get());
            set.join().unwrap();
        });
        assert_eq!(seen.lock().unwrap().iter().copied().collect::<Vec<_>>(), [7, 8]);
    }

    /// The steps of the story of the planted bug, as `STORY` asks for them.
    fn steps(asked: &str) -> Vec<serde_json::Value> {
        let program = std::env::current_exe().unwrap();
        let json = program.with_extension(format!("{asked}.json"));
        let mut command = std::process::Command::new(&program);
        ["BOUND", "OM", "OM_LIST", "MODEL_ROWS"].iter().for_each(|name| _ = command.env_remove(name));
        command.args(["--exact", "scenarios::tickets_differ::planted"]);
        let output = command.env("STORY", asked).env("STORY_JSON", &json).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let story: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(story["version"], 1);
        story["steps"].as_array().unwrap().clone()
    }

    #[test]
    fn each_access_of_an_atomic_is_a_step_that_nobody_has_to_tell() {
        let steps_of_all = steps("1");
        let said = |step: &serde_json::Value| format!("{} {}", step["thread"], step["did"]).replace('"', "");
        let shown = steps_of_all.iter().map(said).collect::<Vec<_>>().join("\n");
        let file = file!();
        let expected = [
            "0 loads 0 from atomic 1 (Relaxed) at FILE:8; it was made at FILE:16",
            "0 stores 1 to atomic 1 (Relaxed) at FILE:9",
            "1 loads 0 from atomic 1 (Relaxed) at FILE:8",
            "1 stores 1 to atomic 1 (Relaxed) at FILE:9",
        ];
        assert_eq!(shown, expected.join("\n").replace("FILE", file));
        // What an atomic holds is a part that its stores change.
        let parts: Vec<_> = steps_of_all.iter().map(|step| step["changes"].to_string()).collect();
        let to = |before: &str| format!(r#"[{{"after":"1","before":{before},"part":"atomic 1","thing":0}}]"#);
        assert_eq!(parts, ["[]".to_owned(), to("null"), "[]".to_owned(), to("\"1\"")]);
        assert!(steps("told").is_empty(), "this code tells nothing");
    }
}

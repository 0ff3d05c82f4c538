//! A small scenario that runs under loom and under shuttle, to test the test harness itself.

use crate::{Arc, AtomicUsize, Ordering::Relaxed, planted, thread};

/// Returns a ticket number. No two callers get the same number.
fn take_ticket(next: &AtomicUsize) -> usize {
    planted!("a ticket is taken without an atomic increment" => {
        let number = next.load(Relaxed);
        next.store(number + 1, Relaxed);
        return number;
    });
    next.fetch_add(1, Relaxed)
}

fn tickets() {
    let next = Arc::new(AtomicUsize::new(0));
    let other = next.clone();
    let theirs = thread::spawn(move || take_ticket(&other));
    let ours = take_ticket(&next);
    assert_ne!(ours, theirs.join().unwrap(), "two threads have the same ticket");
}

/// Runs a test of this program, completely or as one shard, and returns the rows that it prints.
#[cfg(any(loom, shuttle))]
fn rows(test: &str, share: Option<&str>) -> Vec<String> {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    crate::unset(&mut command)
        .args(["--exact", test, "--nocapture"])
        .envs(share.map(|share| ("SHARD", share)));
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    // libtest prints the name of the test in front of the first row, as in "test name ... ".
    let row = |line: &str| {
        let kinds = ["MODEL ", "PART ", "SCHEDULES ", "CAUGHT "];
        kinds.iter().find_map(|kind| Some(line[line.find(kind)?..].to_owned()))
    };
    printed.lines().filter_map(row).collect()
}

/// Each of three shards tests some of the planted bugs, and each planted bug is tested by exactly one shard.
#[cfg(any(loom, shuttle))]
#[test]
fn planted_bug_is_tested_by_exactly_one_shard() {
    let shares =
        ["0/3", "1/3", "2/3"].map(|share| rows("scenarios::tickets_differ::planted", Some(share)).len());
    assert_eq!(shares.iter().sum::<usize>(), 1, "{shares:?}");
}

#[cfg(shuttle)]
#[test]
fn shards_together_run_all_schedules() {
    let test = "scenarios::tickets_differ::schedules";
    let of = |row: &str| row.split(" | ").take(4).collect::<Vec<_>>().join(" | ");
    let whole = rows(test, None);
    // Each kind of schedules has two seeds, so one of three shards gets no seed.
    let shares = ["0/3", "1/3", "2/3"].map(|share| rows(test, Some(share)));
    let joined = crate::shard::join_rows(&shares).unwrap();
    assert_eq!(joined.iter().map(|row| of(row)).collect::<Vec<_>>(), [of(&whole[0])]);
    assert_eq!(shares.iter().filter(|rows| rows.is_empty()).count(), 1);
}

crate::scenarios! {
    tickets_differ {
        loom("tickets differ", Model::new(Bound::None, 13), tickets);
        shuttle("tickets differ", Schedules(100), tickets);
        bug("a ticket is taken without an atomic increment", "tickets", "two threads have the same ticket");
    }
}

#[cfg(loom)]
mod models {
    use super::*;
    use crate::check::{Bound, model};

    #[test]
    fn hint_read_during_a_write_returns_the_old_or_new_value() {
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

    /// The first scenario has some thousand executions, so each shard gets several parts of it. The second scenario has
    /// only some hundred executions.
    #[test]
    fn shards_together_run_all_executions() {
        for scenario in ["an_observer_that_drops_itself", "two_observers_of_one_place"] {
            let test = format!("observers::scenarios::{scenario}::model");
            let whole = rows(&test, None);
            let shares = ["0/3", "1/3", "2/3"].map(|share| rows(&test, Some(share)));
            assert!(shares.iter().all(|rows| rows.len() >= 3), "{scenario} is split: {shares:?}");
            let joined = crate::shard::join_rows(&shares).unwrap();
            assert_eq!(joined, [whole[0].rsplit_once(" | ").unwrap().0], "{shares:#?}");
            // `join_rows` fails if the rows of a shard are missing.
            let error = crate::shard::join_rows(&shares[..2]).unwrap_err();
            assert!(error.contains(": script 0: part "), "{error}");
        }
    }

    /// If an execution of a split model fails, the replay starts with the path of its part.
    #[test]
    fn failed_execution_of_a_shard_has_a_trace() {
        use crate::replay::{Failure, Run};
        let f = |()| {
            let seen = Arc::new(AtomicUsize::new(0));
            let other = seen.clone();
            let set = thread::spawn(move || other.store(7, Relaxed));
            for _ in 0..5 {
                seen.load(Relaxed);
            }
            assert_ne!(seen.load(Relaxed), 7, "the value was set before");
            set.join().unwrap();
        };
        let run = |f: std::sync::Arc<_>| Run {
            model: "a share fails".into(),
            bound: Bound::None,
            index: 0,
            script: (),
            f,
        };
        let run = run(std::sync::Arc::new(f));
        let shard = |index| format!("{index}/3").parse().unwrap();
        let failed = |index| {
            let failure: Failure = run.explore_share(shard(index), 12).unwrap_err();
            // Some executions pass before the model is split into parts.
            (failure.from.is_some(), run.show_trace(&failure))
        };
        let failed = [0, 1, 2].map(failed);
        assert!(failed.iter().all(|(_, told)| *told), "{failed:?}");
    }

    /// Returns the steps in the printed trace of a planted bug, with the given value of `STORY`.
    fn steps(asked: &str) -> Vec<serde_json::Value> {
        let program = std::env::current_exe().unwrap();
        let json = program.with_extension(format!("{asked}.json"));
        let mut command = std::process::Command::new(&program);
        crate::unset(&mut command).args(["--exact", "scenarios::tickets_differ::planted"]);
        let output = command.env("STORY", asked).env("STORY_JSON", &json).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let story: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(story["version"], 1);
        story["steps"].as_array().unwrap().clone()
    }

    #[test]
    fn each_atomic_access_is_a_step_of_the_model() {
        let steps_of_all = steps("1");
        let printed =
            |step: &serde_json::Value| format!("{} {}", step["thread"], step["did"]).replace('"', "");
        let shown = steps_of_all.iter().map(printed).collect::<Vec<_>>().join("\n");
        let file = file!();
        let expected = [
            "0 loads 0 from atomic 1 (Relaxed) at FILE:8; it was created at FILE:16",
            "0 stores 1 to atomic 1 (Relaxed) at FILE:9",
            "1 loads 0 from atomic 1 (Relaxed) at FILE:8",
            "1 stores 1 to atomic 1 (Relaxed) at FILE:9",
        ];
        assert_eq!(shown, expected.join("\n").replace("FILE", file));
        // The trace shows the value of an atomic as a named part, which stores change.
        let parts: Vec<_> = steps_of_all.iter().map(|step| step["changes"].to_string()).collect();
        let to = |before: &str| format!(r#"[{{"after":"1","before":{before},"part":"atomic 1","thing":0}}]"#);
        assert_eq!(parts, ["[]".to_owned(), to("null"), "[]".to_owned(), to("\"1\"")]);
        assert!(steps("told").is_empty(), "this code records no steps");
    }
}

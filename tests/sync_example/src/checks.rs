//! Two scenarios that three builds run: as plain tests, in every interleaving of a model, and under random schedules.

use crate::Slots;
use uslab_sync::{Arc, thread};

/// Two threads take slots, and return some of these slots. In this scenario, no slot may have two owners at the same
/// time.
fn check_owners_differ() {
    let slots = Arc::new(Slots::new([(); 3]));
    let theirs = slots.clone();
    let thread = thread::spawn(move || {
        let (first, second) = (theirs.take(), theirs.take());
        drop(first);
        second.map(|slot| {
            let number = slot.number();
            // This thread keeps it.
            core::mem::forget(slot);
            number
        })
    });
    let (first, second) = (slots.take(), slots.take());
    let ours = [&first, &second].map(|slot| slot.as_ref().map(crate::TakenSlot::number));
    let owned: Vec<usize> = ours.into_iter().chain([thread.join().unwrap()]).flatten().collect();
    for (i, number) in owned.iter().enumerate() {
        assert!(!owned[..i].contains(number), "a slot has two owners: {owned:?}");
    }
}

/// Several threads increment the values in the slots that they take. In this scenario, no increment may be lost: the
/// next owner of a slot must see the value of the last owner.
fn check_value_transfer(threads: usize, slots: usize) {
    let slots = Arc::new(Slots::new(vec![0; slots]));
    let count = |slots: &Slots<u32>| {
        slots.take().map_or(0, |mut slot| {
            slot.with(|value| *value += 1);
            1
        })
    };
    let theirs: Vec<_> = (1..threads)
        .map(|_| {
            let slots = slots.clone();
            thread::spawn(move || count(&slots))
        })
        .collect();
    let mut counted = count(&slots);
    counted += theirs.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>();
    let mut all: Vec<_> = core::iter::from_fn(|| slots.take()).collect();
    let found: u32 = all.iter_mut().map(|slot| slot.with(|value| *value)).sum();
    assert_eq!(found, counted, "every count must be kept");
}

#[cfg(not(any(loom, shuttle)))]
mod tests {
    #[test]
    fn example_slots_are_never_shared_by_threads() {
        super::check_owners_differ();
        super::check_value_transfer(4, 2);
    }
}

uslab_sync::scenarios! {
    check_owners_differ {
        loom("owners differ", Model::new(Bound::Preemptions(3), 1600), check_owners_differ);
        shuttle("owners differ", Schedules(2_000), check_owners_differ);
        bug("a take leaves the tag as it is", "owners", "a slot has two owners");
    }
    check_value_transfer {
        loom("values are handed over", Model::new(Bound::Preemptions(2), 260), || check_value_transfer(2, 2));
        shuttle("values are handed over", Schedules(2_000), || check_value_transfer(4, 2));
    }
    /// After a spurious failure, the exchange is tried again.
    an_exchange_may_fail_for_no_reason {
        loom("an exchange may fail for no reason", Model::new(Bound::Preemptions(2), 320), || {
            uslab_sync::arm_spurious_failure(2);
            check_value_transfer(2, 1);
        });
    }
}

#[cfg(loom)]
mod stories {
    use std::process::Command;
    use uslab_sync::check::{Bound, model, plant};

    /// The child process of the test [`failed_model_execution_prints_its_steps`] fails on purpose.
    #[test]
    #[ignore = "fails on purpose"]
    fn child_process_fails_on_purpose() {
        plant("a take leaves the tag as it is");
        model("a failure", Bound::Preemptions(3), 1, super::check_owners_differ);
    }

    #[test]
    fn failed_model_execution_prints_its_steps() {
        let said = |command: &mut Command| {
            let set = ["BOUND", "OM", "OM_LIST", "MODEL_ROWS", "STORY_JSON"];
            set.iter().for_each(|name| _ = command.env_remove(name));
            let output = command.envs([("RUST_BACKTRACE", "0"), ("STORY", "1")]).output().unwrap();
            assert!(!output.status.success(), "the model must fail");
            String::from_utf8(output.stdout).unwrap()
        };
        let steps = |said: &str| {
            let (_, story) = said
                .split_once("STORY ")
                .unwrap_or_else(|| panic!("no counterexample trace in the output: {said}"));
            let (_, steps) = story.split_once('\n').unwrap();
            steps.split_once("       fails: ").unwrap().0.to_owned()
        };
        let mut test = Command::new(std::env::current_exe().unwrap());
        let first = said(test.args([
            "--exact",
            "checks::stories::child_process_fails_on_purpose",
            "--include-ignored",
            "--nocapture",
        ]));
        // The code reports no steps: the steps are the operations of its atomics.
        let story = steps(&first);
        for part in ["thread 0  loads 2 from atomic 1 (Acquire) at src/lib.rs:", " by compare_exchange ("] {
            assert!(story.contains(part), "{part}: {story}");
        }
        let shown = include_str!("../../../magazine/sync/README.md");
        assert!(shown.contains(&story), "README.md of uslab-sync shows another story than\n{story}");
        let again = first.lines().find(|line| line.starts_with("REPLAY=")).unwrap();
        let again = said(Command::new("sh").args(["-c", again]));
        assert_eq!(steps(&again), story);
        assert!(again.contains(" | execution 1\n"), "no other execution ran before: {again}");
    }
}

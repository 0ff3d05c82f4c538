//! The lab on a race that a model checker found.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice, number};
use crate::course::lab::Answer;
use serde::Deserialize;

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "race",
    title: "A planted race",
    minutes: 25,
    about: "Two threads run on one CPU of the magazine layer of 2001, in which a bug was planted. The model checker loom found an order of \
            their steps that breaks a rule: the page of the race that loom found has it.",
    shows: "A look that was made under a lock says nothing any more once the lock was given up. The failure shows later than the step \
            that caused it, and on another line.",
    pitfall: "To look for the bug where the check failed, or to add a lock: there is one, and it is taken twice.",
    ask,
};

#[derive(Deserialize)]
struct Story {
    steps: Vec<Step>,
    end: String,
}
#[derive(Deserialize)]
struct Step {
    thread: String,
    did: String,
    changes: Vec<Change>,
}
#[derive(Deserialize)]
struct Change {
    part: String,
    after: Option<String>,
}

impl Change {
    /// Returns `true` if the step leaves a previous magazine that is neither full nor empty. `[1] of 2`.
    fn breaks(&self) -> bool {
        let Some((rounds, size)) = self.after.as_deref().and_then(|after| after.split_once("] of ")) else {
            return false;
        };
        let rounds = rounds[1..].split_terminator(", ").count();
        self.part == "previous" && rounds > 0 && size.parse() != Ok(rounds)
    }
}

/// Returns the trace, the index of the step that breaks the rule, and the index of the step that made the thread's
/// knowledge out of date.
fn story() -> (Story, usize, usize) {
    let story: Story = serde_json::from_str(include_str!("../../../data/story.json"))
        .expect("the stored counterexample trace must parse");
    let breaks = story.steps.iter().position(|step| step.changes.iter().any(Change::breaks));
    let breaks = breaks.expect("the trace must break the rule");
    let by = &story.steps[breaks].thread;
    let other = |step: &Step| step.thread != *by && !step.changes.is_empty();
    let stale =
        story.steps[..breaks].iter().rposition(other).expect("another thread must take part in the trace");
    (story, breaks, stale)
}

fn ask(_: &mut Random) -> Vec<PreparedQuestion> {
    let (Story { steps, end }, ..) = story();
    let steps = steps.len();
    vec![
        PreparedQuestion::plain(
            format!(
                "The counterexample trace has {steps} steps and ends with: {end}. That message states the rule. At which step, counted from 1, is the rule broken first?"
            ),
            number("step number"),
            || {
                let (story, breaks, _) = story();
                let step = &story.steps[breaks];
                let why = format!(
                    "Thread {} {}, and the previous magazine is neither full nor empty.",
                    step.thread, step.did
                );
                Answer::new(breaks as u64 + 1, why, breaks as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "That thread had looked before, and what it saw was true then. Which step of the other thread made it false?",
            number("step number"),
            || {
                let (story, _, stale) = story();
                let step = &story.steps[stale];
                let why =
                    format!("Thread {} {}: the loaded magazine is not full any more.", step.thread, step.did);
                Answer::new(stale as u64 + 1, why, stale as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "What mends it?",
            choice(&[
                "a stronger memory ordering",
                "holding the CPU's lock while memory for the magazine is allocated, which may sleep",
                "looking again after the lock was taken again",
                "a second lock around the whole free",
            ]),
            || {
                Answer::new(
                    2,
                    "The code rightly releases the lock while it makes a magazine. Afterwards it must check the state again, as the code without the planted bug does."
                        .to_owned(),
                    0,
                )
            },
        ),
    ]
}

//! The lab on a race that a model checker found.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice_question, number_question};
use crate::course::lab::Answer;
use serde::Deserialize;

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "race",
    title: "A planted race",
    minutes: 25,
    about: "Two threads run on one CPU of the magazine layer of 2001, in which a bug was planted. The model checker loom found an order of their steps that breaks a rule. The page “A race that loom found” shows this order.",
    shows: "A value that was read under a lock may be outdated as soon as the lock is released. The check fails later than the step that caused the failure, and on another line.",
    pitfall: "To search for the bug at the failed check, or to add a lock: the code already has a lock, which it takes twice.",
    ask,
};

#[derive(Deserialize)]
struct CounterexampleTrace {
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
    /// Returns `true` if the step leaves a partly filled previous magazine, such as `[1] of 2`.
    fn has_partial_magazine(&self) -> bool {
        let Some((rounds, size)) = self.after.as_deref().and_then(|after| after.split_once("] of ")) else {
            return false;
        };
        let rounds = rounds[1..].split_terminator(", ").count();
        self.part == "previous" && rounds > 0 && size.parse() != Ok(rounds)
    }
}

/// Returns three results: a trace, the index of the step that breaks the rule, and the index of the step after which
/// the thread's knowledge is outdated.
fn violation_in_trace() -> (CounterexampleTrace, usize, usize) {
    let trace: CounterexampleTrace = serde_json::from_str(include_str!("../../../data/story.json"))
        .expect("the stored counterexample trace must parse");
    let violation = trace.steps.iter().position(|step| step.changes.iter().any(Change::has_partial_magazine));
    let violation = violation.expect("the trace must break the rule");
    let thread = &trace.steps[violation].thread;
    let is_other_thread = |step: &Step| step.thread != *thread && !step.changes.is_empty();
    let last_change = trace.steps[..violation]
        .iter()
        .rposition(is_other_thread)
        .expect("another thread must take part in the trace");
    (trace, violation, last_change)
}

fn ask(_: &mut Random) -> Vec<PreparedQuestion> {
    let (CounterexampleTrace { steps, end }, ..) = violation_in_trace();
    let steps = steps.len();
    vec![
        PreparedQuestion::plain(
            format!(
                "The counterexample trace has {steps} steps and ends with this message, which states the rule: {end}. Which step, counted from 1, is the first that breaks the rule?"
            ),
            number_question("step number"),
            || {
                let (trace, violation, _) = violation_in_trace();
                let step = &trace.steps[violation];
                let explanation = format!(
                    "Thread {} {}. After this step, the previous magazine is neither full nor empty.",
                    step.thread, step.did
                );
                Answer::new(violation as u64 + 1, explanation, violation as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "The thread that breaks the rule had read the CPU's state earlier, when the value was current. Which step of the other thread changed the state after that?",
            number_question("step number"),
            || {
                let (trace, _, last_change) = violation_in_trace();
                let step = &trace.steps[last_change];
                let explanation = format!(
                    "Thread {} {}. After this step, the loaded magazine is no longer full.",
                    step.thread, step.did
                );
                Answer::new(last_change as u64 + 1, explanation, last_change as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "Which change fixes the bug?",
            choice_question(&[
                "a stronger memory ordering",
                "holding the CPU's lock while memory for the magazine is allocated, which may sleep",
                "checking the state again after taking the CPU's lock again",
                "a second lock around the whole free",
            ]),
            || {
                Answer::new(
                    2,
                    "The code is right to release the lock while it allocates a magazine. After it takes the lock again, it must check the CPU's state again, as the code without the planted bug does."
                        .to_owned(),
                    0,
                )
            },
        ),
    ]
}

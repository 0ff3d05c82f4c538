//! The lab on a race that a model checker found.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice_question, number_question};
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
    pitfall: "To search for the bug at the failed check, or to add a lock: a lock exists, and it is taken twice.",
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
    /// Returns `true` if the step leaves a previous magazine that is neither full nor empty, such as `[1] of 2`.
    fn leaves_partial_magazine(&self) -> bool {
        let Some((rounds, size)) = self.after.as_deref().and_then(|after| after.split_once("] of ")) else {
            return false;
        };
        let rounds = rounds[1..].split_terminator(", ").count();
        self.part == "previous" && rounds > 0 && size.parse() != Ok(rounds)
    }
}

/// Returns a trace, the index of the step that breaks the rule, and the index of the step that makes the thread's
/// knowledge outdated.
fn violation_in_trace() -> (CounterexampleTrace, usize, usize) {
    let trace: CounterexampleTrace = serde_json::from_str(include_str!("../../../data/story.json"))
        .expect("the stored counterexample trace must parse");
    let violation =
        trace.steps.iter().position(|step| step.changes.iter().any(Change::leaves_partial_magazine));
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
                "The counterexample trace has {steps} steps and ends with: {end}. That message states the rule. At which step, counted from 1, is the rule broken first?"
            ),
            number_question("step number"),
            || {
                let (trace, violation, _) = violation_in_trace();
                let step = &trace.steps[violation];
                let explanation = format!(
                    "Thread {} {}, and the previous magazine is neither full nor empty.",
                    step.thread, step.did
                );
                Answer::new(violation as u64 + 1, explanation, violation as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "That thread had read the state before, and the value was current then. Which step of the other thread changed it?",
            number_question("step number"),
            || {
                let (trace, _, last_change) = violation_in_trace();
                let step = &trace.steps[last_change];
                let explanation =
                    format!("Thread {} {}: the loaded magazine is not full any more.", step.thread, step.did);
                Answer::new(last_change as u64 + 1, explanation, last_change as u64 + 1)
            },
        ),
        PreparedQuestion::plain(
            "Which change fixes the bug?",
            choice_question(&[
                "a stronger memory ordering",
                "holding the CPU's lock while memory for the magazine is allocated, which may sleep",
                "checking the state again after the lock was taken again",
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

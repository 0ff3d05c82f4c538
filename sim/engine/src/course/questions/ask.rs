//! Builds the questions of a course lab, and computes their answers.

use crate::course::lab::{Answer, Expects, Lab, Question, Work};
use crate::design::Design;
use crate::designs::{NoPolicy, Spec, Visitor};
use crate::{Engine, Path, Step, Stream, View, hash, script};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// A course lab with questions.
pub(in crate::course) struct QuestionLab {
    pub(in crate::course) name: &'static str,
    pub(super) title: &'static str,
    pub(super) minutes: u32,
    pub(super) about: &'static str,
    pub(super) shows: &'static str,
    pub(super) pitfall: &'static str,
    pub(in crate::course) ask: fn(&mut Random) -> Vec<PreparedQuestion>,
}

/// A question, and the function that finds its answer.
pub(in crate::course) struct PreparedQuestion {
    question: Question,
    pub(in crate::course) answer: Box<dyn Fn() -> Answer>,
}

impl QuestionLab {
    pub(in crate::course) fn lab(&self, seed: u32) -> Lab {
        let questions = (self.ask)(&mut random(seed, self.name));
        let Self { name, title, minutes, about, shows, pitfall, .. } = *self;
        let work = Work::Questions(questions.into_iter().map(|questions| questions.question).collect());
        Lab { name, title, minutes, about, shows, pitfall, work }
    }
}

/// A random number generator that yields the same numbers on every compilation target.
pub(in crate::course) struct Random(Xoshiro256PlusPlus);

pub(in crate::course) fn random(seed: u32, lab: &str) -> Random {
    Random(Xoshiro256PlusPlus::seed_from_u64(u64::from(seed) ^ hash(lab.as_bytes())))
}

impl Random {
    /// Returns a random number between `first` and `last`, both included.
    pub(in crate::course) fn of(&mut self, first: u64, last: u64) -> u64 {
        self.0.random_range(first..=last)
    }
}

impl PreparedQuestion {
    /// Adds a question whose answer follows from the run of a script. The function `answer` computes the right answer
    /// from the result of the run.
    pub(super) fn run(
        text: impl Into<String>,
        expects: Expects,
        design: impl Into<String>,
        script: impl Into<String>,
        answer: impl Fn(&ScriptResult) -> Answer + 'static,
    ) -> Self {
        let (design, script) = (design.into(), script.into());
        let question =
            Question { text: text.into(), expects, design: design.clone(), script: script.clone() };
        Self { question, answer: Box::new(move || answer(&ScriptResult::of(&design, &script))) }
    }
    /// Adds a question whose answer needs no run of a script.
    pub(super) fn plain(
        text: impl Into<String>,
        expects: Expects,
        answer: impl Fn() -> Answer + 'static,
    ) -> Self {
        let question = Question { text: text.into(), expects, design: String::new(), script: String::new() };
        Self { question, answer: Box::new(answer) }
    }
}

pub(super) fn number_question(unit: &str) -> Expects {
    Expects::Number(unit.to_owned())
}
pub(super) fn choice_question(choices: &[&str]) -> Expects {
    Expects::Choice(choices.iter().map(|choice| (*choice).to_owned()).collect())
}

/// The result of running a question's script.
pub(super) struct ScriptResult {
    /// The steps of each operation, in the order of the operations.
    steps: Vec<Vec<Step>>,
    /// The number of operations at the last mark of the script.
    pub(super) mark: u64,
    /// The state at the script's last mark, and the final state.
    pub(super) marked: View,
    pub(super) end: View,
}

impl ScriptResult {
    pub(super) fn of(design: &str, text: &str) -> Self {
        struct Run<'s>(&'s Stream);
        impl Visitor for Run<'_> {
            type Out = ScriptResult;
            fn visit<D: Design>(self, design: D) -> ScriptResult {
                let mark = self.0.marks.last().map_or(0, |mark| mark.operation);
                let mut engine = Engine::new(design, self.0);
                let mut run_steps = Vec::new();
                let mut run = |engine: &mut Engine<'_, D>, operation| {
                    while engine.operations() < operation {
                        let next_operation = engine.operations() + 1;
                        run_steps.push(
                            engine
                                .run_with_steps(next_operation)
                                .expect("the stream of a script must be valid"),
                        );
                    }
                    engine.view(vec![], &[])
                };
                let marked_view = run(&mut engine, mark);
                let end = run(&mut engine, self.0.operations);
                ScriptResult { steps: run_steps, mark, marked: marked_view, end }
            }
        }
        let stream = script(text).expect("the course's script must parse");
        let spec: Spec<NoPolicy> = design.parse().expect("the course's design must exist");
        spec.on(&stream, Run(&stream)).expect("a machine of a few CPUs must start")
    }
    /// Returns the operations after the mark, with their steps.
    pub(super) fn operations_after_mark(&self) -> impl Iterator<Item = (u64, &[Step])> {
        (self.mark + 1..).zip(self.steps[self.mark as usize..].iter().map(Vec::as_slice))
    }
    /// Returns the operations after the mark that were served at the level `path` or at a slower level.
    pub(super) fn operations_at_or_above_level(&self, path: Path) -> Vec<u64> {
        let is_slow = |steps: &[Step]| steps.iter().any(|step| step.path >= Some(path));
        self.operations_after_mark().filter(|(_, steps)| is_slow(steps)).map(|(number, _)| number).collect()
    }
    /// Returns the last operation, and its last step.
    pub(super) fn last(&self) -> (u64, Option<&Step>) {
        (self.end.operation, self.steps.last().and_then(|steps| steps.last()))
    }
    /// Returns an answer whose number is the count of the given operations, and which shows the first of them.
    pub(super) fn count(&self, operations: &[u64], why: String) -> Answer {
        Answer::new(operations.len() as u64, why, operations.first().copied().unwrap_or(self.mark + 1))
    }
}

//! The course: labs on this system. Some ask for a prediction, which the engine then checks by running what it is about; in the
//! others a policy is written, which runs here on streams that its author has not seen.
//!
//! ```text
//! seed ──> questions ──> prediction ──> sheet ──> marks        the engine runs each question's script, and measures
//! starter ──> a policy of one's own ──> streams ──> verdict    conservation after each operation, then what it cost
//! ```
//!
//! A seed makes the numbers in the questions, so that neighbours have different ones. Nothing is looked up in a list of answers.
//!
//! ```
//! use uslab_engine::course::{self, Work};
//!
//! let labs = course::labs(7);
//! let Work::Questions(questions) = &labs[0].work else { unreachable!() };
//! let right = course::answer(7, labs[0].name, 0).expect("there is such a question");
//! assert!(questions[0].text.contains("how many") && !right.why.is_empty());
//! ```

mod code;
mod questions;
mod sheet;

#[cfg(test)]
pub(crate) use code::Failure;
pub use code::*;
pub use sheet::{Graded, Marks, Sheet, SheetError};

use questions::Asked;
use serde::Serialize;

/// A lab of the course.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Lab {
    /// Its name on command lines and in sheets.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Minutes that it takes, about.
    pub minutes: u32,
    /// What it is about, for who takes it.
    pub about: &'static str,
    /// What it shows, for who teaches it.
    pub shows: &'static str,
    /// What is commonly got wrong, for who teaches it.
    pub pitfall: &'static str,
    /// What is to be done.
    pub work: Work,
}

/// What is to be done in a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// To predict what will come out.
    Questions(Vec<Question>),
    /// To write a policy.
    Code(Code),
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Code {
    /// A file that compiles and does not do its work yet.
    pub starter: &'static str,
    /// What it is judged by, a sentence each.
    pub judged_by: &'static [&'static str],
}

/// A question whose answer the engine finds out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Question {
    /// The question.
    pub text: String,
    /// What an answer is.
    pub expects: Expects,
    /// Who runs the script, as `--design` has it. Empty: there is nothing to run.
    pub design: String,
    /// What runs: see [`script`](crate::script()).
    pub script: String,
}

/// What an answer is. It is a number in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Expects {
    /// A whole number, of these.
    Number(String),
    /// One of these: its place, from 0.
    Choice(Vec<String>),
}

/// What the engine found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Answer {
    /// The number, or the place of the choice.
    pub right: u64,
    /// Why.
    pub why: String,
    /// The operation of the script to look at.
    pub at: u64,
}

/// The labs, with the numbers that a seed makes.
pub fn labs(seed: u32) -> Vec<Lab> {
    questions::LABS.iter().map(|lab| lab.lab(seed)).chain(code::LABS.iter().map(|lab| lab.lab())).collect()
}

/// What is right for a question of a lab, by its place from 0. `None`: there is no such question.
///
/// Cost: a run of its script, or of some dozens of them.
pub fn answer(seed: u32, lab: &str, question: usize) -> Option<Answer> {
    let lab = questions::LABS.iter().find(|own| own.name == lab)?;
    let Asked { answer, .. } = (lab.ask)(&mut questions::random(seed, lab.name)).into_iter().nth(question)?;
    Some(answer())
}

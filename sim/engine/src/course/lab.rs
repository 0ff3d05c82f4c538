//! The data types of a course lab.

use serde::Serialize;

/// A lab of the course, with its texts and the student's task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Lab {
    /// The lab's name on command lines and in answer sheets.
    pub name: &'static str,
    /// The lab's title.
    pub title: &'static str,
    /// The approximate time that the lab takes, in minutes.
    pub minutes: u32,
    /// A description of the lab for students.
    pub about: &'static str,
    /// The lesson that the lab teaches, described for teachers.
    pub shows: &'static str,
    /// Common mistakes of students, described for teachers.
    pub pitfall: &'static str,
    /// The student's task.
    pub work: Work,
}

/// The task of a lab: to predict a result, or to write code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The student predicts results.
    Questions(Vec<Question>),
    /// The student writes a policy.
    Code(Code),
}

/// The code that a student must complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Code {
    /// A source file that compiles, but lacks the code that the student must write.
    pub starter: &'static str,
    /// The criteria by which the judge decides, one sentence each.
    pub judged_by: &'static [&'static str],
}

/// A question whose answer the engine computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Question {
    /// The question's text.
    pub text: String,
    /// The kind of answer that the question expects.
    pub expects: Expects,
    /// The design that runs the question's script, in the form of `--design`. The text is empty if the question has no
    /// script to run.
    pub design: String,
    /// The question's script: see [`script`](crate::script()).
    pub script: String,
}

/// The kind of an answer to a question. Every answer is a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Expects {
    /// A whole number, with the given unit.
    Number(String),
    /// An index, from 0, into the given choices.
    Choice(Vec<String>),
}

/// The right answer, computed by the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Answer {
    /// The right number, or the index of the right choice.
    pub right: u64,
    /// The explanation of the right answer.
    pub why: String,
    /// The number of the script's operation that shows the answer.
    pub at: u64,
    /// Memory strips that show the answer to a question without a script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strips: Vec<Strip>,
}

/// A memory range drawn as a strip, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Strip {
    /// A description of the strip.
    pub said: String,
    /// The pieces of the strip, without gaps, each with its size in bytes and its contents. The contents are `None` for
    /// a piece without contents.
    pub pieces: Vec<(u32, Option<String>)>,
}

impl Answer {
    pub(super) fn new(right: u64, why: String, at: u64) -> Self {
        Self { right, why, at, strips: vec![] }
    }
}

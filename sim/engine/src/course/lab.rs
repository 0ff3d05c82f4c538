//! The data of a lab.

use serde::Serialize;

/// A lab of the course.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Lab {
    /// Its name on command lines and in sheets.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The time that it takes, in minutes, roughly.
    pub minutes: u32,
    /// A description for students.
    pub about: &'static str,
    /// The lesson, for teachers.
    pub shows: &'static str,
    /// Common mistakes, for teachers.
    pub pitfall: &'static str,
    /// The student's task.
    pub work: Work,
}

/// The task of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Predict a result.
    Questions(Vec<Question>),
    /// Write a policy.
    Code(Code),
}

/// The code to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Code {
    /// A file that compiles and does not do its work yet.
    pub starter: &'static str,
    /// The criteria, a sentence each.
    pub judged_by: &'static [&'static str],
}

/// A question whose answer the engine finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Question {
    /// The question.
    pub text: String,
    /// The kind of answer.
    pub expects: Expects,
    /// The design that runs the script, as for `--design`. Empty if there is nothing to run.
    pub design: String,
    /// The script: see [`script`](crate::script()).
    pub script: String,
}

/// The kind of an answer, which is always a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum Expects {
    /// A whole number of this unit.
    Number(String),
    /// One of these: its index, from 0.
    Choice(Vec<String>),
}

/// The answer that the engine found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Answer {
    /// The number, or the index of the choice.
    pub right: u64,
    /// The explanation.
    pub why: String,
    /// The operation of the script that shows it.
    pub at: u64,
    /// Memory that shows it, if no script runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strips: Vec<Strip>,
}

/// A memory as a strip, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Strip {
    /// A description.
    pub said: String,
    /// Its pieces without gaps: the size in bytes, and the contents; `None` for an empty piece.
    pub pieces: Vec<(u32, Option<String>)>,
}

impl Answer {
    pub(super) fn new(right: u64, why: String, at: u64) -> Self {
        Self { right, why, at, strips: vec![] }
    }
}

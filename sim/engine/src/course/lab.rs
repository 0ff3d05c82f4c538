//! What a lab is.

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
    /// Memory to look at, where no script runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strips: Vec<Strip>,
}

/// Memory as a strip, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Strip {
    /// What it is.
    pub said: String,
    /// Its pieces without gaps: bytes, and what stands in them; `None`: nothing lies there.
    pub pieces: Vec<(u32, Option<String>)>,
}

impl Answer {
    pub(super) fn new(right: u64, why: String, at: u64) -> Self {
        Self { right, why, at, strips: vec![] }
    }
}

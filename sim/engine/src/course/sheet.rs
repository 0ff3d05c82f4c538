//! Answer sheets.

use super::find::{answer, labs};
use super::lab::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was answered to the labs that ask, as the page writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Sheet {
    /// The course's version: [`Sheet::COURSE`].
    pub course: u32,
    /// Who answered.
    pub name: String,
    /// What made the numbers in the questions.
    pub seed: u32,
    /// By lab: the answers in order, `null` where there is none.
    pub answers: BTreeMap<String, Vec<Option<u64>>>,
}

/// A text that is no sheet of this course.
#[derive(Debug, thiserror::Error)]
pub enum SheetError {
    /// It cannot be read.
    #[error("no answer sheet: {0}")]
    Json(#[from] serde_json::Error),
    /// Of another course.
    #[error("a sheet of version {0} of the course; expected {expected}", expected = Sheet::COURSE)]
    Version(u32),
    /// No such lab.
    #[error("no lab `{0}` has questions; there are {1}")]
    Lab(String, String),
    /// More answers than questions.
    #[error("lab {lab}: {found} answers; expected at most {expected}")]
    TooMany {
        /// The lab.
        lab: String,
        /// Answers.
        found: usize,
        /// Questions.
        expected: usize,
    },
}

/// A sheet beside the right answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Graded {
    /// Who answered.
    pub name: String,
    /// What made the numbers.
    pub seed: u32,
    /// Right answers,
    pub right: usize,
    /// of so many questions.
    pub of: usize,
    /// Lab by lab, question by question.
    pub marks: Vec<Marks>,
}

/// A question's mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Marks {
    /// The lab.
    pub lab: &'static str,
    /// The question, from 1.
    pub question: usize,
    /// What was answered.
    pub answered: Option<u64>,
    /// What is right.
    pub right: u64,
    /// Why.
    pub why: String,
}

impl Marks {
    /// Whether the answer is right.
    pub fn is_right(&self) -> bool {
        self.answered == Some(self.right)
    }
}

impl Sheet {
    /// Which version this is.
    pub const COURSE: u32 = 1;

    /// Of JSON.
    ///
    /// # Errors
    /// See [`SheetError`].
    pub fn read(text: &str) -> Result<Self, SheetError> {
        let sheet: Self = serde_json::from_str(text)?;
        if sheet.course != Self::COURSE {
            return Err(SheetError::Version(sheet.course));
        }
        let labs = labs(sheet.seed);
        let questions = |name: &str| {
            let lab = labs.iter().find(|lab| lab.name == name)?;
            if let Work::Questions(questions) = &lab.work { Some(questions.len()) } else { None }
        };
        for (lab, answers) in &sheet.answers {
            let Some(expected) = questions(lab) else {
                let known: Vec<_> =
                    labs.iter().map(|lab| lab.name).filter(|name| questions(name).is_some()).collect();
                return Err(SheetError::Lab(lab.clone(), known.join(", ")));
            };
            if answers.len() > expected {
                return Err(SheetError::TooMany { lab: lab.clone(), found: answers.len(), expected });
            }
        }
        Ok(sheet)
    }

    /// Beside what the engine finds out.
    pub fn grade(&self) -> Graded {
        let mut marks = Vec::new();
        for lab in labs(self.seed) {
            let given = self.answers.get(lab.name).map_or(&[][..], Vec::as_slice);
            let found = (0..).map_while(|question| answer(self.seed, lab.name, question));
            marks.extend(found.enumerate().map(|(at, found)| Marks {
                lab: lab.name,
                question: at + 1,
                answered: given.get(at).copied().flatten(),
                right: found.right,
                why: found.why,
            }));
        }
        let right = marks.iter().filter(|mark| mark.is_right()).count();
        Graded { name: self.name.clone(), seed: self.seed, right, of: marks.len(), marks }
    }
}

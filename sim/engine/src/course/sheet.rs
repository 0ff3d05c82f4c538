//! Answer sheets of the course.

use super::find::{answer, labs};
use super::lab::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A student's answers to the labs with questions, as the course page writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Sheet {
    /// The version of the course for which the sheet was written. The current version is [`Sheet::COURSE_VERSION`].
    pub course: u32,
    /// The student's name.
    pub name: String,
    /// The seed from which the numbers in the questions were generated.
    pub seed: u32,
    /// For each lab, the answers in the order of its questions. The value `null` represents a missing answer.
    pub answers: BTreeMap<String, Vec<Option<u64>>>,
}

/// The error for a text that is not an answer sheet of this course.
#[derive(Debug, thiserror::Error)]
pub enum SheetError {
    /// The text is not valid JSON.
    #[error("not an answer sheet: {0}")]
    Json(#[from] serde_json::Error),
    /// The sheet was written for another version of the course.
    #[error("a sheet of version {0} of the course; expected {expected}", expected = Sheet::COURSE_VERSION)]
    Version(u32),
    /// The sheet names an unknown lab.
    #[error("unknown lab `{0}`; expected one of the labs with questions: {1}")]
    Lab(String, String),
    /// The sheet has more answers for a lab than the lab has questions.
    #[error("lab {lab}: {found} answers; expected at most {expected}")]
    TooMany {
        /// The lab's name.
        lab: String,
        /// The number of answers in the sheet.
        found: usize,
        /// The number of questions in the lab.
        expected: usize,
    },
}

/// An answer sheet after its answers were compared with the right answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkedSheet {
    /// The student's name.
    pub name: String,
    /// The seed from which the numbers in the questions were generated.
    pub seed: u32,
    /// The number of right answers in the sheet.
    pub right: usize,
    /// The number of questions in all labs of the course.
    pub of: usize,
    /// The mark of each answer, by lab and question.
    pub marks: Vec<Marks>,
}

/// The mark that one answer received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Marks {
    /// The lab's name.
    pub lab: &'static str,
    /// The question's number, from 1.
    pub question: usize,
    /// The student's answer.
    pub answered: Option<u64>,
    /// The right answer.
    pub right: u64,
    /// The explanation of the right answer.
    pub why: String,
}

impl Marks {
    /// Returns `true` if the answer is right.
    pub fn is_right(&self) -> bool {
        self.answered == Some(self.right)
    }
}

impl Sheet {
    /// The current version of the course.
    pub const COURSE_VERSION: u32 = 1;

    /// Parses an answer sheet from JSON.
    ///
    /// # Errors
    /// Returns a [`SheetError`].
    pub fn read(text: &str) -> Result<Self, SheetError> {
        let sheet: Self = serde_json::from_str(text)?;
        if sheet.course != Self::COURSE_VERSION {
            return Err(SheetError::Version(sheet.course));
        }
        let labs = labs(sheet.seed);
        let questions = |name: &str| {
            let lab = labs.iter().find(|lab| lab.name == name)?;
            if let Work::Questions(questions) = &lab.work { Some(questions.len()) } else { None }
        };
        for (lab, answers) in &sheet.answers {
            let Some(expected) = questions(lab) else {
                let lab_names: Vec<_> =
                    labs.iter().map(|lab| lab.name).filter(|name| questions(name).is_some()).collect();
                return Err(SheetError::Lab(lab.clone(), lab_names.join(", ")));
            };
            if answers.len() > expected {
                return Err(SheetError::TooMany { lab: lab.clone(), found: answers.len(), expected });
            }
        }
        Ok(sheet)
    }

    /// Compares the student's answers with the answers that the engine computes.
    pub fn grade(&self) -> MarkedSheet {
        let mut marks = Vec::new();
        for lab in labs(self.seed) {
            let student_answers = self.answers.get(lab.name).map_or(&[][..], Vec::as_slice);
            let expected_answers = (0..).map_while(|question| answer(self.seed, lab.name, question));
            marks.extend(expected_answers.enumerate().map(|(index, expected_answers)| Marks {
                lab: lab.name,
                question: index + 1,
                answered: student_answers.get(index).copied().flatten(),
                right: expected_answers.right,
                why: expected_answers.why,
            }));
        }
        let right_answers = marks.iter().filter(|mark| mark.is_right()).count();
        MarkedSheet { name: self.name.clone(), seed: self.seed, right: right_answers, of: marks.len(), marks }
    }
}

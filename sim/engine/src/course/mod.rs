//! The course: labs on this system. Some ask for a prediction, which the engine then checks with a run; in the others, students
//! write a policy, which runs here on streams that they have not seen.
//!
//! ```text
//! seed ──> questions ──> prediction ──> sheet ──> marks        the engine runs each question's script, and measures
//! starter ──> a policy of one's own ──> streams ──> verdict    conservation after each operation, then what it cost
//! ```
//!
//! The seed determines the numbers in the questions, so that neighbours have different ones. There is no list of answers.
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
mod find;
mod lab;
mod questions;
mod sheet;

#[cfg(test)]
pub(crate) use code::Failure;
pub use code::*;
pub use find::{answer, labs};
pub use lab::{Answer, Code, Expects, Lab, Question, Strip, Work};
pub use sheet::{Graded, Marks, Sheet, SheetError};

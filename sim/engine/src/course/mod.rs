//! The course: labs about the slab allocator. In some labs a student predicts a result, and the engine checks the
//! prediction with a run. In some labs a student writes a policy, and the judge runs the policy on unseen streams.
//!
//! ```text
//! seed ──> questions ──> prediction ──> sheet ──> marks        the engine runs each question's script, and measures
//! starter ──> the student's policy ──>  streams ──> verdict    conservation after each operation, then what it cost
//! ```
//!
//! The seed determines the numbers in the questions, so two students with different seeds get different numbers. The
//! course stores no answers: the engine computes each answer.
//!
//! ```
//! use uslab_engine::course::{self, Work};
//!
//! let labs = course::labs(7);
//! let Work::Questions(questions) = &labs[0].work else { unreachable!() };
//! let right = course::answer(7, labs[0].name, 0).expect("the lab must have this question");
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
pub use sheet::{MarkedSheet, Marks, Sheet, SheetError};

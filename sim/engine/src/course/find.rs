//! Lists the labs of the course, and computes the right answers to their questions.

use super::code;
use super::lab::{Answer, Lab};
use super::questions::{self, ask};

/// Returns all labs of the course; the seed determines the numbers in their questions.
pub fn labs(seed: u32) -> Vec<Lab> {
    questions::LABS.iter().map(|lab| lab.lab(seed)).chain(code::LABS.iter().map(|lab| lab.lab())).collect()
}

/// Finds the right answer to a question of a lab; the question is identified by its index, counted from 0. Returns
/// `None` if the lab has no question with this index.
///
/// The cost is one run of the question's script, or several dozen such runs.
pub fn answer(seed: u32, lab: &str, question: usize) -> Option<Answer> {
    let lab = questions::LABS.iter().find(|candidate| candidate.name == lab)?;
    let prepared = (lab.ask)(&mut ask::random(seed, lab.name)).into_iter().nth(question)?;
    Some((prepared.answer)())
}

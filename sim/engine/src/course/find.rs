//! All labs, and what is right.

use super::code;
use super::lab::{Answer, Lab};
use super::questions::{self, ask};

/// The labs, with the numbers that a seed makes.
pub fn labs(seed: u32) -> Vec<Lab> {
    questions::LABS.iter().map(|lab| lab.lab(seed)).chain(code::LABS.iter().map(|lab| lab.lab())).collect()
}

/// What is right for a question of a lab, by its place from 0. `None`: there is no such question.
///
/// Cost: a run of its script, or of some dozens of them.
pub fn answer(seed: u32, lab: &str, question: usize) -> Option<Answer> {
    let lab = questions::LABS.iter().find(|own| own.name == lab)?;
    let asked = (lab.ask)(&mut ask::random(seed, lab.name)).into_iter().nth(question)?;
    Some((asked.answer)())
}

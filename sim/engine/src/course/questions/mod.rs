//! The labs of the course that have questions.

pub(super) mod ask;
mod colour;
mod depot;
mod magazines;
mod pages;
mod race;
mod remote;

use ask::QuestionLab;

pub(super) const LABS: [QuestionLab; 6] =
    [magazines::LAB, depot::LAB, remote::LAB, pages::LAB, colour::LAB, race::LAB];

#[cfg(test)]
mod tests;

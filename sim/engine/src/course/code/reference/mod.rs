//! Reference solutions, with which the judges compare a student's solution.

pub(super) mod exchange;
pub(super) mod merge;
pub(super) mod partial;
pub(super) mod reaping;

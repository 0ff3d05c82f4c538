//! References for the exercises, with which other solutions are compared.

pub(super) mod exchange;
pub(super) mod merge;
pub(super) mod partial;
pub(super) mod reaping;

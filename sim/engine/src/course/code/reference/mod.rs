//! The exercises, done: what those of others are compared with.

pub(super) mod exchange;
pub(super) mod merge;
pub(super) mod partial;
pub(super) mod reaping;

//! Placeholder doc
pub mod sync;

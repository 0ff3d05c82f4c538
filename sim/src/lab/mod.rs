//! The lab: every allocator of the textbooks, small and safe, beside the shipping ones, under one trait.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | what the lab asks of an allocator |

pub mod allocator;

pub use allocator::{Allocator, Holes};

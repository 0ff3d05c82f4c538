//! The lab: every allocator of the textbooks, small and safe, beside the shipping ones, under one trait.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | what the lab asks of an allocator |
//! | [`findings`] | what an experiment found: tables, curves, claims |
//! | `show`, `page` | findings as text, CSV, HTML |

pub mod allocator;
pub mod findings;
mod page;
mod show;

pub use allocator::{Allocator, Holes};
pub use findings::Findings;

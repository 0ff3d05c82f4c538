//! The lab: every allocator of the textbooks, small and safe, beside the shipping ones, under one trait.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | what the lab asks of an allocator |
//! | [`findings`] | what an experiment found: tables, curves, claims |
//! | [`clock`] | rounds and medians |
//! | [`experiments`] | the questions, one a file |
//! | `show`, `page` | findings as text, CSV, HTML |

pub mod allocator;
pub mod clock;
pub mod experiments;
pub mod findings;
mod page;
mod show;

pub use allocator::{Allocator, Holes};
pub use findings::Findings;

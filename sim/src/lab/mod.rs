//! The lab: every allocator of the textbooks, small and safe, beside the shipping ones, under one trait.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | what the lab asks of an allocator |
//! | [`memory`] | the bytes that those under study manage |
//! | [`linear`] | one position that moves forward |
//! | [`stack`] | the same with markers, scope by scope |
//! | [`naive`] | two pools that are called by one name |
//! | [`pool`] | slots of one size, the free ones in a list |
//! | [`segregated`] | a pool for each size class |
//! | [`heap`] | a free list with boundary tags: first, best and next fit |
//! | [`headerless`] | the same list beside the memory, at any granule |
//! | [`buddy`] | powers of two that are halved and made one again |
//! | [`tlsf`] | free lists by two levels of sizes, found by bit scans |
//! | [`shipping`] | the slab subsystem as malloc, and one cache of it |
//! | [`system`] | the program's own allocator |
//! | [`roster`] | all of them, by name |
//! | [`sheet`] | the cheat sheet: what each is for |
//! | [`drive`] | an allocator under a workload |
//! | [`findings`] | what an experiment found: tables, pictures, claims |
//! | [`picture`] | curves and bars, and their axes |
//! | [`machine`] | where something was measured, and with what |
//! | [`clock`] | rounds, medians and their intervals, and what these decide |
//! | [`experiments`] | the questions, one a file |
//! | [`instructions`] | what an operation takes, by valgrind |
//! | `show`, `csv`, `page`, `svg` | findings as text, CSV, HTML, and their pictures |

pub mod allocator;
pub mod buddy;
pub mod clock;
mod csv;
pub mod drive;
pub mod experiments;
pub mod findings;
pub mod headerless;
pub mod heap;
pub mod instructions;
pub mod linear;
pub mod machine;
pub mod memory;
pub mod naive;
mod page;
pub mod picture;
pub mod pool;
#[cfg(test)]
mod properties;
pub mod roster;
pub mod segregated;
pub mod sheet;
pub mod shipping;
mod show;
mod slots;
pub mod stack;
mod svg;
pub mod system;
pub mod tlsf;

pub use allocator::{Allocator, Holes, Reuse, Work};
pub use buddy::Buddy;
pub use findings::Findings;
pub use heap::Heap;
pub use linear::Linear;
pub use naive::{NeverReuses, ScansForFree};
pub use pool::{External, Pool};
pub use segregated::Segregated;
pub use shipping::Shipping;
pub use stack::Stack;
pub use system::System;
pub use tlsf::Tlsf;

//! The textbook allocators, small and without `unsafe`, and the shipping allocators; all implement one trait.
//!
//! The free list, TLSF and the linear allocator's head come from `uslab::pool`; in the lab, their memory counts
//! accesses.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | the trait of all allocators in the lab |
//! | [`memory`] | the bytes that the allocators under study manage |
//! | [`linear`] | a position that moves forward |
//! | [`stack`] | a linear allocator with markers and scopes |
//! | [`naive`] | two pool designs that share one name |
//! | [`pool`] | slots of one size, with a list of the free slots |
//! | [`segregated`] | a pool for each size class |
//! | [`heap`] | a free list with boundary tags: first, best, next and worst fit |
//! | [`headerless`] | a free list outside the memory, with any granule |
//! | [`buddy`] | blocks of powers of two, halved and merged |
//! | [`tlsf`] | free lists for two levels of sizes, found by bit scans |
//! | [`shipping`] | the slab subsystem as malloc, and one object cache |
//! | [`system`] | the program's own allocator |
//! | [`registry`] | all allocators, by name |
//! | [`cheat_sheet`] | the cheat sheet: the uses of each allocator |
//! | [`drive`] | runs a workload on an allocator |

pub mod allocator;
pub mod buddy;
#[cfg(feature = "experiments")]
pub mod cheat_sheet;
#[cfg(feature = "experiments")]
pub mod drive;
pub mod headerless;
pub mod heap;
pub mod linear;
pub mod memory;
pub mod naive;
pub mod pool;
#[cfg(test)]
mod properties;
#[cfg(feature = "experiments")]
pub mod registry;
pub mod segregated;
#[cfg(feature = "experiments")]
pub mod shipping;
mod slots;
pub mod stack;
pub mod system;
pub mod tlsf;

pub use allocator::{Allocator, Holes, ReuseCondition, Work};
pub use buddy::Buddy;
pub use heap::Heap;
pub use linear::Linear;
pub use naive::{NeverReusingPool, ScanningPool};
pub use pool::{ExternalListPool, Pool};
pub use segregated::Segregated;
#[cfg(feature = "experiments")]
pub use shipping::Shipping;
pub use stack::Stack;
pub use system::System;
pub use tlsf::Tlsf;

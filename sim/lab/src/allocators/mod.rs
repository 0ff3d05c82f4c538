//! Every textbook allocator, small and safe, and the shipping allocators, all under one trait.
//!
//! The free list, TLSF and the head of the linear allocator are code of `uslab::pool`, which runs in a memory that
//! counts accesses.
//!
//! | module | |
//! |---|---|
//! | [`allocator`] | the trait of all allocators in the lab |
//! | [`memory`] | the bytes that the allocators under study manage |
//! | [`linear`] | a position that moves forward |
//! | [`stack`] | the same with markers, by scopes |
//! | [`naive`] | two pools that are called by the same name |
//! | [`pool`] | slots of one size; the free ones are in a list |
//! | [`segregated`] | a pool for each size class |
//! | [`heap`] | a free list with boundary tags: first, best and next fit |
//! | [`headerless`] | the same list outside the memory, with any granule |
//! | [`buddy`] | powers of two that are halved and merged |
//! | [`tlsf`] | free lists by two levels of sizes, found by bit scans |
//! | [`shipping`] | the slab subsystem as malloc, and one cache of it |
//! | [`system`] | the program's own allocator |
//! | [`registry`] | all of them, by name |
//! | [`cheat_sheet`] | the cheat sheet: what each is for |
//! | [`drive`] | an allocator under a workload |

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

pub use allocator::{Allocator, Holes, Reuse, Work};
pub use buddy::Buddy;
pub use heap::Heap;
pub use linear::Linear;
pub use naive::{NeverReuses, ScansForFree};
pub use pool::{External, Pool};
pub use segregated::Segregated;
#[cfg(feature = "experiments")]
pub use shipping::Shipping;
pub use stack::Stack;
pub use system::System;
pub use tlsf::Tlsf;

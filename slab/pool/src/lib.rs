//! Pools, and allocators of any size, for one thread, in memory that the caller chooses.
//!
//! | purpose | type |
//! |---|---|
//! | a few objects of one type, in a struct or on the stack | [`Pool`] |
//! | objects that the pool owns and iterates | [`LivePool`] |
//! | memory, and objects up to one size | [`FixedPool`] |
//! | a pool that is made and dropped often, or far larger than its use | [`IndexPool`] |
//! | an unknown number of objects, and memory that must be returned | [`ChunkedPool`] |
//! | an unknown number of objects, and plenty of address space | [`ReservedPool`] |
//! | objects of several small sizes | [`ClassPools`]; with larger ones, too, [`Hybrid`] |
//! | blocks of bytes without `unsafe` | [`SafePool`], on an [`IndexPool`] or a [`GuardedPool`] |
//! | debugging | [`FixedPool::checked`], [`GuardedPool`]; around any allocator [`MemoryArena`] |
//! | area, pool and guards in one | [`FixedSizeHeap`] |
//! | objects of any size that end together | [`Arena`], with scopes |
//! | the same, freed by markers instead of functions | [`StackAlloc`] |
//! | blocks of any size, each in bounded time | [`Tlsf`] |
//! | blocks of any size with little memory overhead, at some cost in time | [`BestFit`] |
//! | a `Vec` or a map on one of them | [`Arena`], [`Hybrid`] by reference; any other in a [`Local`] |
//! | building your own pool | [`FreeList`], one word |
//!
//! Pools store their free lists *in* the free objects, so the lists need no additional memory. The caches of `uslab`
//! store their free lists outside the objects. Pools therefore cannot give the guarantees that `uslab` gives for free
//! memory. A free object begins with a link, constructed objects do not stay constructed, and a write to a free object
//! may break the pool. [`GuardedPool`] detects writes to free objects. [`IndexPool`]s store numbers in free memory, and
//! thus reveal no address.
//!
//! # Pool or cache
//!
//! A pool serves one thread and objects of one size. A whole pool may be sent to another thread. The caller provides
//! the memory of a pool, or the pool grows. If objects are much smaller than the pool's slots, most of each slot is
//! wasted. A pool cannot serve an object that is larger than its slots. A pool has no per-CPU state. Kenwright's paper
//! does not say how threads and cores could share a pool. In the job system of Reinalter's follow-up posts, each thread
//! has a pool, and objects must be freed to the pool that allocated them. A `uslab::KmemCache` or `uslab::ObjectCache`
//! has a magazine for each CPU, accepts frees on any CPU, and returns memory when memory is short. A cache costs little
//! more than a pool (`benches/README.md`). The module `uslab::handle` has references that detect freed objects;
//! Reinalter's post mentions such references.
//!
//! How much time pools save in a whole program is unknown. The paper cites studies of programs that spend 30 %, and up
//! to 43 %, of their time on memory, and 38 % on C++'s allocations. These percentages are claims of the cited studies
//! about their programs.
//!
//! # Common properties
//!
//! * The memory of an object is valid until the object is freed or the pool is dropped. Objects never move.
//! * A free needs the pointer that the allocation returned, because only its provenance covers the slot.
//! * Functions panic only where documented, and call no user code except drops. A full pool, a wrong size or refused
//!   memory is reported as an error value ([`Refused`], [`PoolError`]). An invalid free is also reported as an error
//!   value, if the pool checks for it ([`BadFree`]).
//! * `alloc` and `free` take a few instructions whatever the pool's size; exceptions are documented.
//!
//! Without the default feature `std`, the crate needs only `alloc`. Without `std`, the crate omits all types that use
//! the system's memory or `std`'s `System` heap: [`ChunkedPool`], [`ReservedPool`], [`ClassPools`], [`Hybrid`],
//! [`MappedArea`].
//!
//! | module | |
//! |---|---|
//! | [`area`] | memory of a pool |
//! | [`slot`] | layout of slots: size, alignment, offset |
//! | [`free_list`] | the chain of free slots |
//! | [`fixed`], [`index_pool`] | pools of a fixed size, threaded at the start or on use |
//! | [`chunked`], [`reserved`] | pools that grow |
//! | [`typed`], [`live`] | pools of one type |
//! | [`safe_pool`] | blocks that are freed automatically |
//! | [`marked`], [`guarded`] | pools with marks and guards for debugging |
//! | [`allocator`], [`arena`], [`heap`] | guards around any allocator's objects |
//! | [`classes`], [`hybrid`] | varying sizes |
//! | [`linear`], [`stack`] | any size, freed together |
//! | [`tlsf`], [`best_fit`] | any size, freed one by one |
//! | [`local`] | one allocator for several collections |
//! | [`usage`], [`error`] | statistics, and errors |

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

pub mod allocator;
pub mod area;
pub mod arena;
pub mod best_fit;
pub mod bits;
mod blocks;
#[cfg(feature = "std")]
pub mod chunked;
#[cfg(feature = "std")]
pub mod classes;
pub mod error;
pub mod fixed;
pub mod free_list;
pub mod guarded;
pub mod heap;
#[cfg(feature = "std")]
pub mod hybrid;
pub mod index_pool;
pub mod linear;
pub mod live;
pub mod local;
pub mod marked;
#[cfg(feature = "std")]
pub mod reserved;
pub mod safe_pool;
pub mod slot;
pub mod source;
pub mod stack;
pub mod tlsf;
pub mod typed;
pub mod usage;
pub mod words;

pub use allocator::{Allocator, Pooled};
#[cfg(feature = "std")]
pub use area::MappedArea;
pub use area::{Area, Borrowed, HeapArea, StackArea};
pub use arena::{Bounds, MemoryArena, NoBounds, SimpleBounds};
pub use best_fit::BestFit;
#[cfg(feature = "std")]
pub use chunked::ChunkedPool;
#[cfg(feature = "std")]
pub use classes::{ClassPools, SizeClasses, Waste};
pub use error::{BadFree, Overrun, PoolError, Refused, Side};
pub use fixed::FixedPool;
pub use free_list::FreeList;
pub use guarded::{GuardedPool, Leak};
pub use heap::FixedSizeHeap;
#[cfg(feature = "std")]
pub use hybrid::{Hybrid, HybridBox, Routes};
pub use index_pool::{IndexPool, Initialise};
pub use linear::{Arena, Scope};
pub use live::LivePool;
pub use local::Local;
pub use marked::MarkedPool;
#[cfg(feature = "std")]
pub use reserved::ReservedPool;
pub use safe_pool::{PoolGuard, RawPool, SafePool};
pub use slot::SlotLayout;
pub use stack::{BadMarker, Marker, StackAlloc};
pub use tlsf::Tlsf;
pub use typed::{Pool, PoolBox};
pub use usage::Usage;

#[cfg(all(test, not(any(loom, shuttle))))]
mod any_size;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, uslab_heap, miri))))]
mod resident;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// A copy of `uslab_sync::catch_panic`, which makes a dependency unnecessary.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "uslab-sync must not be a dependency")]
pub(crate) fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
}

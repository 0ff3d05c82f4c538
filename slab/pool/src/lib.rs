//! Pools, and allocators of any size, in memory that the caller chose, for one thread, without the machinery of a cache.
//!
//! | you have | take |
//! |---|---|
//! | objects of one type, a few, in a struct or on the stack | [`Pool`] |
//! | objects that you walk over, and the pool owns | [`LivePool`] |
//! | memory, and objects up to one size | [`FixedPool`] |
//! | a pool that is made and dropped often, or far larger than it is used | [`IndexPool`] |
//! | no idea how many there will be, and memory that must go back | [`ChunkedPool`] |
//! | no idea how many, and addresses to spare | [`ReservedPool`] |
//! | objects of several small sizes | [`ClassPools`]; with any others, too, [`Hybrid`] |
//! | blocks of bytes, and no `unsafe` | [`SafePool`], on an [`IndexPool`] or a [`GuardedPool`] |
//! | a mistake to find | [`FixedPool::checked`], [`GuardedPool`]; around any allocator [`MemoryArena`] |
//! | all of it in one | [`FixedSizeHeap`] |
//! | objects of any size that end together | [`Arena`], with scopes |
//! | the same, where markers and not functions say when | [`StackAlloc`] |
//! | blocks of any size, each in bounded time | [`Tlsf`] |
//! | blocks of any size in little memory, and time | [`BestFit`] |
//! | a `Vec` or a map to put into one of them | [`Arena`], [`Hybrid`] by reference; any other in a [`Local`] |
//! | something of your own to build | [`FreeList`], one word |
//!
//! Pools keep their free lists *in* the free objects: that is why they cost nothing beside them, and the opposite of what the
//! caches of `uslab` do. What is said on that crate's front page about free memory does not hold here: a free object begins
//! with a link, a constructed object does not stay constructed, and a write to a free object may break the pool.
//! [`GuardedPool`] finds it; [`IndexPool`]s hold numbers in free memory, and so tell nobody an address.
//!
//! # Pool or cache
//!
//! A pool is for one thread (it may move to another, as a whole), for one size, in memory that it is given or that it
//! grows by; if objects are much smaller than its slots it wastes most of them, and a larger one it cannot serve at all. It knows
//! nothing of CPUs. Kenwright's paper leaves threads and cores open; the pools of the job system that Reinalter's post is
//! followed by belong to a thread each, and an object must go home to its own. A `uslab::KmemCache` or
//! `uslab::ObjectCache` has a magazine for each CPU, takes frees anywhere, and gives memory back under
//! pressure; it costs little more (`benches/README.md`). References that know when their object is gone, which the same
//! post points to, are in `uslab::handle`.
//!
//! What a pool can save a whole program is open: the paper cites that programs spend 30 %, and up to 43 %, of their time on
//! memory, and 38 % where C++ allocates, from the studies that it names. Those are their claims, of their programs.
//!
//! # In common
//!
//! * An object's memory is valid until it is freed or the pool dropped, whatever else comes and goes: nothing moves.
//! * Who frees passes the pointer that it was given: with it comes the right to the slot (its provenance).
//! * Nothing here panics but where it says so, or calls user code but drops. Full pools, wrong sizes and refused memory are
//!   values ([`Refused`], [`PoolError`]); a wrong free is one where the pool looks ([`BadFree`]), and which do is in the docs.
//! * `alloc` and `free` take a few instructions, whatever the pool's size; what takes more says so.
//!
//! Without the feature `std`, which is on by default, the crate needs `alloc` only. What asks the system for memory, or the heap by
//! `std`'s `System`, is left out then: [`ChunkedPool`], [`ReservedPool`], [`ClassPools`], [`Hybrid`], [`MappedArea`].
//!
//! | module | |
//! |---|---|
//! | [`area`] | where memory comes from |
//! | [`slot`] | where slots lie: size, alignment, offset |
//! | [`free_list`] | the chain of free slots |
//! | [`fixed`], [`index_pool`] | pools of a fixed size, threaded at once and as they are used |
//! | [`chunked`], [`reserved`] | pools that grow |
//! | [`typed`], [`live`] | pools of one type |
//! | [`safe_pool`] | blocks that come back by themselves |
//! | [`marked`], [`guarded`] | pools that can be looked at, and that look |
//! | [`allocator`], [`arena`], [`heap`] | guards around any allocator's objects |
//! | [`classes`], [`hybrid`] | sizes that vary |
//! | [`linear`], [`stack`] | any size, freed together |
//! | [`tlsf`], [`best_fit`] | any size, freed one by one |
//! | [`local`] | one allocator for several collections |
//! | [`usage`], [`error`] | the books, and what may go wrong |

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

pub mod allocator;
pub mod area;
pub mod arena;
pub mod best_fit;
#[doc(hidden)]
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
#[doc(hidden)]
pub mod source;
pub mod stack;
pub mod tlsf;
pub mod typed;
pub mod usage;
#[doc(hidden)]
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

/// The README's example is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// `uslab_sync::catch_panic`, without a dependency.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "uslab-sync is no dependency")]
pub(crate) fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
}

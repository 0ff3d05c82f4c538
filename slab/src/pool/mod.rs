//! Pools: objects of one size in memory that the caller chose, for one thread, without the machinery of a cache.

pub mod allocator;
pub mod area;
pub mod arena;
mod bits;
pub mod chunked;
pub mod classes;
pub mod error;
pub mod fixed;
pub mod free_list;
pub mod guarded;
pub mod heap;
pub mod hybrid;
pub mod index_pool;
pub mod live;
pub mod marked;
pub mod reserved;
pub mod slot;
pub mod typed;
pub mod usage;

pub use allocator::{Allocator, Pooled};
pub use area::{Area, Borrowed, HeapArea, MappedArea, StackArea};
pub use arena::{Bounds, MemoryArena, NoBounds, SimpleBounds};
pub use chunked::ChunkedPool;
pub use classes::{ClassPools, Ladder, Waste};
pub use error::{BadFree, Overrun, PoolError, Refused, Side};
pub use fixed::FixedPool;
pub use free_list::FreeList;
pub use guarded::{GuardedPool, Leak};
pub use heap::FixedSizeHeap;
pub use hybrid::{Hybrid, HybridBox, Routes};
pub use index_pool::{IndexPool, Initialise};
pub use live::LivePool;
pub use marked::MarkedPool;
pub use reserved::ReservedPool;
pub use slot::SlotLayout;
pub use typed::{Pool, PoolBox};
pub use usage::Usage;

#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;

//! The interface of a design: an allocator policy that serves the operations of a stream.

use crate::shown::ShownCache;
use crate::stream::CacheInfo;
use serde::Serialize;
use uslab_buddy::PageAllocator;
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Path, Paths};

/// The CPU, the time and the constraints of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The CPU that makes the request.
    pub cpu: u32,
    /// The trace's time in nanoseconds, counted from its first operation.
    pub ns: u64,
    /// The caller's constraints.
    pub manner: CallMode,
}

impl At {
    /// Creates a request without constraints.
    pub fn new(cpu: u32, ns: u64) -> Self {
        Self { cpu, ns, manner: CallMode::Plain }
    }
}

/// The caller's constraints on an operation. A design may ignore the constraints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallMode {
    /// A plain request: an allocation may block, and a free takes effect immediately.
    #[default]
    Plain,
    /// A non-blocking allocation, which must not wait for memory.
    NonBlocking,
    /// A free that takes effect after an RCU grace period.
    AfterGrace,
}

/// A description of a feature that a design does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// The error for an allocation that failed for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct NoMemory;

/// The number of times that the operations of a design would have taken each shared lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Locks {
    /// Acquisitions of the lock of a cache's slab lists.
    pub lists: u64,
    /// Acquisitions of the lock of the level that CPUs share, such as a depot or a barn.
    pub depot: u64,
}

/// A design's counts for one cache. All counts are 0 for large kmalloc, because it has no slabs and no magazines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct CacheCounts {
    /// The size of an object in bytes.
    pub size: u64,
    /// The order of the cache's slabs.
    pub order: u8,
    /// The number of objects in a slab.
    pub per_slab: u64,
    /// The number of objects in a full magazine, or in the container that the design uses instead.
    pub capacity: u64,
    /// The number of allocated objects.
    pub used: u64,
    /// The number of free objects that CPUs hold in magazines, or in slabs that belong to a CPU.
    pub in_magazines: u64,
    /// The number of free objects in the level that all CPUs share.
    pub in_depot: u64,
    /// The number of free objects in slabs that no CPU owns.
    pub free_in_slabs: u64,
    /// The number of slabs without a free object.
    pub full: u64,
    /// The number of slabs with used and free objects.
    pub partial: u64,
    /// The number of slabs with only free objects.
    pub empty: u64,
    /// The number of magazines exchanged with the level that all CPUs share.
    pub depot_exchanges: u64,
    /// The number of slabs created so far.
    pub slabs_made: u64,
}

impl CacheCounts {
    /// Returns the number of all slabs.
    pub fn slabs(&self) -> u64 {
        self.full + self.partial + self.empty
    }
    /// Returns the number of objects that `/proc/slabinfo` would call active: allocated objects, and free objects that
    /// CPUs hold.
    pub fn active_objs(&self) -> u64 {
        self.used + self.in_magazines + self.in_depot
    }
}

/// An allocator design that serves a [`Stream`](crate::Stream): the shipping allocator, or a model of another
/// allocator's policy.
///
/// The caller must announce a cache to the design before the first operation on it. The caller returns each object and
/// block to the design exactly once. A free never fails.
pub trait Design {
    /// The handle type of an allocated object.
    type Object;
    /// The handle type of an allocated block of pages.
    type Block;

    /// Adds the next cache of the stream; caches are numbered from 0 in the order of these calls.
    ///
    /// # Errors
    /// Fails if the design does not support such a cache.
    fn learn(&mut self, cache: &CacheInfo) -> Result<(), Unsupported>;

    /// Allocates an object. The argument `bytes` is used only for large kmalloc.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    fn alloc(&mut self, at: At, cache: u32, bytes: u64) -> Result<Self::Object, NoMemory>;
    /// Adds a slab that existed before the stream; the slab has `free` free objects. If `owned` is true, the CPU owns
    /// the slab. Returns the slab's objects in use; returns an empty list if the design cannot start with existing
    /// slabs.
    fn start(&mut self, _at: At, _cache: u32, _used: u32, _free: u32, _owned: bool) -> Vec<Self::Object> {
        vec![]
    }
    /// Frees an object of a cache.
    fn free(&mut self, at: At, cache: u32, object: Self::Object);
    /// Returns the location of an object: the first page of its slab, and its index in the slab. Returns `None` for an
    /// object that is not in a slab.
    fn place(&self, cache: u32, object: &Self::Object) -> Option<(u32, u16)>;

    /// Allocates a block of `2^order` pages. `migratetype` is 0 for unmovable pages, 1 for movable, 2 for reclaimable.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    fn alloc_pages(&mut self, at: At, order: u8, migratetype: u8) -> Result<Self::Block, NoMemory>;
    /// Frees a block of pages.
    fn free_pages(&mut self, at: At, block: Self::Block);
    /// Splits a block into blocks of a smaller order; returns the new blocks, lowest address first.
    fn split_pages(&mut self, block: Self::Block, order: u8) -> Vec<Self::Block>;
    /// Returns the first page of a block, and its order.
    fn block(&self, block: &Self::Block) -> (u32, u8);

    /// Shrinks the cache `cache`, or all caches if `cache` is `None`. Returns the number of objects flushed from CPU
    /// layers, and the number of slabs freed.
    fn shrink(&mut self, at: At, cache: Option<u32>) -> (u64, u64);

    /// Returns the counts of a cache that was announced to the design.
    fn counts(&self, cache: u32) -> CacheCounts;
    /// For each level, returns the number of operations on slab objects that it served.
    fn paths(&self) -> Paths;
    /// Returns how often object operations took each lock; all numbers are 0 if the design does not count locks.
    fn locks(&self) -> Locks {
        Locks::default()
    }
    /// Returns the contents of a cache, slab by slab. Returns `None` for large kmalloc.
    fn show(&self, cache: u32) -> Option<ShownCache>;
    /// Returns the page allocator that the design uses.
    fn pages(&self) -> &PageAllocator;
    /// Returns the number of pages that large kmalloc uses.
    fn large_pages(&self) -> u64;
    /// Returns `true` if a slab, or a block of large kmalloc, begins at this page.
    fn is_slab(&self, page: u32) -> bool;

    /// Returns the level that served a CPU's last operation on a cache, and a phrase that describes the operation.
    /// Returns `None` if the cache is unknown. `steps` contains the steps that the shipping code reported for the
    /// operation. For the shipping design, `steps` contains all steps; for a model, it contains only the steps of the
    /// model's page allocator.
    fn describe(&self, cpu: u32, cache: u32, freeing: bool, steps: &[Step]) -> Option<(Path, String)>;

    /// Checks the design's invariants; the stream has `objects` objects and `pages` pages in use.
    ///
    /// # Errors
    /// Fails with a description of the first invariant that does not hold.
    fn check(&self, objects: u64, pages: u64) -> Result<(), String>;
}

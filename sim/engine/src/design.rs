//! The interface of a design, which answers a stream.

use crate::shown::ShownCache;
use crate::stream::CacheInfo;
use serde::Serialize;
use uslab_buddy::PageAllocator;
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Path, Paths};

/// The CPU, the time and the manner of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds of the trace since its first operation.
    pub ns: u64,
    /// The caller's constraints.
    pub manner: Manner,
}

impl At {
    /// A plain request.
    pub fn new(cpu: u32, ns: u64) -> Self {
        Self { cpu, ns, manner: Manner::Plain }
    }
}

/// The caller's constraints on an operation. Designs that make no difference ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// An allocation that may block; an immediate free.
    #[default]
    Plain,
    /// An allocation that may not block.
    NonBlocking,
    /// A free that takes effect after an RCU grace period.
    AfterGrace,
}

/// Something that a design does not support, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unable(pub String);

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory")]
pub struct NoMemory;

/// How often a design would have taken locks that CPUs share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Locks {
    /// The lock of a cache's lists of slabs.
    pub lists: u64,
    /// The lock of the level that CPUs share above the slabs: a depot, a barn.
    pub depot: u64,
}

/// A design's counts for a cache. All are 0 for large kmalloc, which has neither slabs nor magazines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct CacheCounts {
    /// Bytes of an object.
    pub size: u64,
    /// The order of a slab.
    pub order: u8,
    /// Objects in a slab.
    pub per_slab: u64,
    /// Objects of a magazine, or of the design's counterpart.
    pub capacity: u64,
    /// Objects that callers have.
    pub used: u64,
    /// Free objects that CPUs hold: outside of slabs, or free in a slab that a CPU owns.
    pub in_magazines: u64,
    /// Objects outside of slabs that all CPUs share.
    pub in_depot: u64,
    /// Free objects in slabs that no CPU owns.
    pub free_in_slabs: u64,
    /// Slabs without a free object.
    pub full: u64,
    /// Slabs with used and free objects.
    pub partial: u64,
    /// Slabs with only free objects.
    pub empty: u64,
    /// Exchanges of magazines with what CPUs share.
    pub depot_exchanges: u64,
    /// Slabs created so far.
    pub slabs_made: u64,
}

impl CacheCounts {
    /// The number of all slabs.
    pub fn slabs(&self) -> u64 {
        self.full + self.partial + self.empty
    }
    /// Objects that `/proc/slabinfo` of the real system counts as active: objects that callers have, and those that CPUs keep.
    pub fn active_objs(&self) -> u64 {
        self.used + self.in_magazines + self.in_depot
    }
}

/// A design, which answers a [`Stream`](crate::Stream): the shipping allocator, or a model of another one's policy.
///
/// A design gets each cache before the first operation on it, and gets back each object and block that it returned exactly once.
/// A free never fails.
pub trait Design {
    /// A live object.
    type Object;
    /// A live block of pages.
    type Block;

    /// Adds the next cache of the stream; they are numbered from 0.
    ///
    /// # Errors
    /// The design does not support the cache.
    fn learn(&mut self, cache: &CacheInfo) -> Result<(), Unable>;

    /// Allocates an object. `bytes` matter only for large kmalloc.
    ///
    /// # Errors
    /// There is no memory.
    fn alloc(&mut self, at: At, cache: u32, bytes: u64) -> Result<Self::Object, NoMemory>;
    /// Adds a slab from before the stream, in which `free` objects are free; it is the CPU's own slab if `owned`. Returns its
    /// objects in use; none if the design cannot begin with slabs.
    fn start(&mut self, _at: At, _cache: u32, _used: u32, _free: u32, _owned: bool) -> Vec<Self::Object> {
        vec![]
    }
    /// Frees an object of the cache.
    fn free(&mut self, at: At, cache: u32, object: Self::Object);
    /// The place of an object: the first page of its slab, and its index in the slab; `None` if it is in no slab.
    fn place(&self, cache: u32, object: &Self::Object) -> Option<(u32, u16)>;

    /// Allocates a block of `2^order` pages. `migratetype` is 0 for unmovable pages, 1 for movable, 2 for reclaimable.
    ///
    /// # Errors
    /// There is no memory.
    fn alloc_pages(&mut self, at: At, order: u8, migratetype: u8) -> Result<Self::Block, NoMemory>;
    /// Frees a block.
    fn free_pages(&mut self, at: At, block: Self::Block);
    /// Splits a block into blocks of a smaller order, lowest first.
    fn split_pages(&mut self, block: Self::Block, order: u8) -> Vec<Self::Block>;
    /// The first page of a block, and its order.
    fn block(&self, block: &Self::Block) -> (u32, u8);

    /// Shrinks a cache, or all. Returns the objects that were flushed from CPU layers, and the slabs that were freed.
    fn shrink(&mut self, at: At, cache: Option<u32>) -> (u64, u64);

    /// The counts of a cache that it has learnt.
    fn counts(&self, cache: u32) -> CacheCounts;
    /// Operations on objects of slabs, by where they were served.
    fn paths(&self) -> Paths;
    /// The locks that operations on objects took; 0 for a design that does not count them.
    fn locks(&self) -> Locks {
        Locks::default()
    }
    /// A cache, slab by slab; `None` for large kmalloc.
    fn show(&self, cache: u32) -> Option<ShownCache>;
    /// The allocator of its pages.
    fn pages(&self) -> &PageAllocator;
    /// The number of pages of large kmalloc.
    fn large_pages(&self) -> u64;
    /// Returns `true` if a block that begins at this page belongs to a slab or to large kmalloc.
    fn is_slab(&self, page: u32) -> bool;

    /// Where a CPU's last operation on a cache was served, and a description, as the end of a sentence; `None` if there is no
    /// such cache. `did` has the steps that shipping code reported: all steps for the shipping design, only the page steps for a
    /// model.
    fn how(&self, cpu: u32, cache: u32, freeing: bool, did: &[Step]) -> Option<(Path, String)>;

    /// Checks its invariants, given the numbers of objects and pages that the stream holds.
    ///
    /// # Errors
    /// The first invariant that does not hold, in words.
    fn check(&self, objects: u64, pages: u64) -> Result<(), String>;
}

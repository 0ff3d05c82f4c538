//! Who answers a stream.

use crate::stream::CacheInfo;
use uslab_magazine::Paths;

/// When and where something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds of the trace since its first operation.
    pub ns: u64,
}

/// What a design cannot do, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unable(pub String);

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory")]
pub struct NoMemory;

/// What a design says of a cache, in the words of `/proc/slabinfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounts {
    /// Slabs.
    pub slabs: u64,
    /// Objects of a slab.
    pub objects_per_slab: u64,
    /// Objects with callers.
    pub used: u64,
    /// Objects that slabinfo counts as active: those with callers, and those that CPUs hold back.
    pub active_objs: u64,
}

/// Who answers a [`Stream`](crate::Stream): the shipping allocator, or a model of another one's policy.
///
/// A design is told of each cache before the first operation on it, and gets back the objects and blocks that it gave, once
/// each. It never fails in a free.
pub trait Design {
    /// An object that is out.
    type Object;
    /// A block of pages that is out.
    type Block;

    /// The next cache of the stream; they are numbered from 0.
    ///
    /// # Errors
    /// It cannot be.
    fn learn(&mut self, cache: &CacheInfo) -> Result<(), Unable>;

    /// An object. `bytes` matter for large kmalloc only.
    ///
    /// # Errors
    /// There is no memory.
    fn alloc(&mut self, at: At, cache: u32, bytes: u64) -> Result<Self::Object, NoMemory>;
    /// Takes an object of that cache back.
    fn free(&mut self, at: At, cache: u32, object: Self::Object);
    /// Where an object lies: the first page of its slab, and which one of the slab it is; `None` if it lies in no slab.
    fn place(&self, cache: u32, object: &Self::Object) -> Option<(u32, u16)>;

    /// A block of `2^order` pages. `migratetype` is 0 for unmovable ones, 1 for movable, 2 for reclaimable.
    ///
    /// # Errors
    /// There is no memory.
    fn alloc_pages(&mut self, at: At, order: u8, migratetype: u8) -> Result<Self::Block, NoMemory>;
    /// Takes a block back.
    fn free_pages(&mut self, at: At, block: Self::Block);
    /// Cuts a block into blocks of a smaller order, lowest first.
    fn split_pages(&mut self, block: Self::Block, order: u8) -> Vec<Self::Block>;
    /// The first page of a block, and its order.
    fn block(&self, block: &Self::Block) -> (u32, u8);

    /// All caches give back what they can: objects that reaping gave back, and slabs that shrinking did.
    fn shrink(&mut self, at: At) -> (u64, u64);

    /// The numbers of a cache that it was told of.
    fn counts(&self, cache: u32) -> CacheCounts;
    /// Operations on objects of slabs by the dearest thing that they did.
    fn paths(&self) -> Paths;
    /// Its conservation laws, with so many objects and pages that the stream holds.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    fn check(&self, objects: u64, pages: u64) -> Result<(), String>;
}

//! Who answers a stream.

use crate::shown::ShownCache;
use crate::stream::CacheInfo;
use serde::Serialize;
use uslab_buddy::PageAllocator;
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Path, Paths};

/// When, where and how something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds of the trace since its first operation.
    pub ns: u64,
    /// What the caller allows.
    pub manner: Manner,
}

impl At {
    /// A plain request.
    pub fn new(cpu: u32, ns: u64) -> Self {
        Self { cpu, ns, manner: Manner::Plain }
    }
}

/// What the caller of an operation allows. Designs that make no difference ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// An allocation that may block; a free at once.
    #[default]
    Plain,
    /// An allocation that may not block.
    NonBlocking,
    /// A free that takes effect after a grace period of RCU.
    AfterGrace,
}

/// What a design cannot do, in words.
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
    /// The lock of what CPUs share above the slabs: a depot, a barn.
    pub depot: u64,
}

/// What a design says of a cache. All is 0 for large kmalloc, which has neither slabs nor magazines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct CacheCounts {
    /// Bytes of an object.
    pub size: u64,
    /// Order of a slab.
    pub order: u8,
    /// Objects in a slab.
    pub per_slab: u64,
    /// Objects of a magazine, or of what the design has of the kind.
    pub capacity: u64,
    /// Objects with callers.
    pub used: u64,
    /// Free objects that CPUs hold: outside of slabs, or free in a slab that a CPU has to itself.
    pub in_magazines: u64,
    /// Objects that all CPUs share outside of slabs.
    pub in_depot: u64,
    /// Objects free in slabs that no CPU has to itself.
    pub free_in_slabs: u64,
    /// Slabs without a free object,
    pub full: u64,
    /// with some,
    pub partial: u64,
    /// and with free objects only.
    pub empty: u64,
    /// Visits to what CPUs share that moved a magazine.
    pub depot_exchanges: u64,
    /// Slabs made so far.
    pub slabs_made: u64,
}

impl CacheCounts {
    /// All slabs.
    pub fn slabs(&self) -> u64 {
        self.full + self.partial + self.empty
    }
    /// Objects that `/proc/slabinfo` of the real system counts as active: those with callers, and those that CPUs hold back.
    pub fn active_objs(&self) -> u64 {
        self.used + self.in_magazines + self.in_depot
    }
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
    /// The objects in use of a slab from before the stream, in which `free` more are free; none if the design cannot begin with
    /// slabs. It is the CPU's own if it is `owned`.
    fn start(&mut self, _at: At, _cache: u32, _used: u32, _free: u32, _owned: bool) -> Vec<Self::Object> {
        vec![]
    }
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

    /// A cache gives back what it can, or all do: objects that lay in CPU layers, and slabs.
    fn shrink(&mut self, at: At, cache: Option<u32>) -> (u64, u64);

    /// The numbers of a cache that it was told of.
    fn counts(&self, cache: u32) -> CacheCounts;
    /// Operations on objects of slabs by the dearest thing that they did.
    fn paths(&self) -> Paths;
    /// The locks that operations on objects took; 0 for a design that does not count them.
    fn locks(&self) -> Locks {
        Locks::default()
    }
    /// A cache, slab by slab; `None` for large kmalloc.
    fn show(&self, cache: u32) -> Option<ShownCache>;
    /// Where its pages come from.
    fn pages(&self) -> &PageAllocator;
    /// Pages of large kmalloc.
    fn large_pages(&self) -> u64;
    /// Whether a block that begins at this page is of a slab or of large kmalloc.
    fn is_slab(&self, page: u32) -> bool;

    /// The dearest thing that a CPU's last operation on a cache did, and how it went, as the end of a sentence; `None` if it has no
    /// such cache. `did` is what shipping code says that it did: all for the shipping design, what pages took for a model.
    fn how(&self, cpu: u32, cache: u32, freeing: bool, did: &[Step]) -> Option<(Path, String)>;

    /// Its conservation laws, with so many objects and pages that the stream holds.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    fn check(&self, objects: u64, pages: u64) -> Result<(), String>;
}

//! Large blocks: blocks of pages that are not slabs. The frame of a large block has a mark, and this module counts
//! large blocks.

use uslab_buddy::Order;
use uslab_magazine::sync::Counter;
use uslab_magazine::{Operation, PathCounts, Paths};

/// The owner word of each large block points to this static, which is not a cache.
static LARGE_BLOCK_OWNER: u8 = 0;

pub(crate) fn large() -> *mut u8 {
    (&raw const LARGE_BLOCK_OWNER).cast_mut()
}

/// Statistics of the blocks above the size classes.
///
/// ```
/// use uslab::{Config, Gfp, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let table = subsystem.kmalloc().alloc_block(100_000, Gfp::KERNEL)?; // a block of 2^5 pages
/// let large = subsystem.info().kmalloc_large;
/// assert_eq!((large.allocs, large.pages), (1, 32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LargeInfo {
    /// Number of large blocks allocated.
    pub allocs: u64,
    /// Number of large blocks freed.
    pub frees: u64,
    /// Number of pages of the large blocks in use.
    pub pages: u64,
    /// Number of allocations and of frees that each level served. The CPU's own pages count as `cpu`.
    pub paths: Paths,
}

#[derive(Debug, Default)]
pub(crate) struct LargeBlocks {
    allocs: Counter,
    frees: Counter,
    pages: Counter,
    paths: PathCounts,
}

impl LargeBlocks {
    pub(crate) fn allocated(&self, op: &Operation, order: Order) {
        self.allocs.add(1);
        self.paths.count(op);
        self.pages.add(u64::from(order.pages()));
    }
    /// Counts the free of a large block, before the block is returned.
    pub(crate) fn freed(&self, order: Order) {
        self.frees.add(1);
        self.pages.sub(u64::from(order.pages()));
    }
    /// Counts the level that served a completed free.
    pub(crate) fn count_free(&self, op: &Operation) {
        self.paths.count(op);
    }
    pub(crate) fn info(&self) -> LargeInfo {
        let paths = self.paths.now();
        let (allocs, frees) = (self.allocs.get(), self.frees.get());
        LargeInfo { allocs, frees, pages: self.pages.get(), paths: paths.of_operations(allocs + frees) }
    }
}

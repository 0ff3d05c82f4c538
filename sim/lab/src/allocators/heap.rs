//! A heap with one free list and boundary tags: the library's [`BestFit`](uslab::pool::BestFit), in a memory that
//! counts accesses.
//!
//! The lab counts each inspection of one free block during a search as a step.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, MemoryPiece, of_the_library};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::best_fit::Blocks;
pub use uslab::pool::best_fit::{Fit, Order};

/// A heap with one free list. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::{Allocator, Heap};
/// use uslab_lab::allocators::heap::{Fit, Order};
///
/// let mut heap = Heap::new(1024, Fit::First, Order::Address)?;
/// let block = heap.alloc(Layout::new::<[u8; 100]>()).ok_or("no room")?;
/// assert_eq!(heap.range(&block).len(), 104); // 112 with its tags
/// heap.free(block);
/// assert_eq!(heap.holes().count, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Heap {
    blocks: Blocks<Memory>,
    fit: Fit,
    work: Work,
}

impl Heap {
    /// Creates a heap of `bytes` bytes; the end markers take 16 of these bytes.
    ///
    /// # Errors
    /// Fails if `bytes` is less than 32, more than [`Memory::MAX_BYTES`], or not a multiple of 16.
    pub fn new(bytes: usize, fit: Fit, order: Order) -> Result<Self, ConfigError> {
        let blocks = Blocks::new(Memory::new(bytes, 32, 16)?, fit, order)?;
        Ok(Self { blocks, fit, work: Work::default() })
    }

    /// Returns the policy that selects a free block.
    pub fn fit(&self) -> Fit {
        self.fit
    }

    /// Returns the position and size of each free block with its tags, in the order of the list.
    pub fn list(&self) -> impl Iterator<Item = (usize, usize)> {
        self.blocks.list()
    }
}

of_the_library!(Heap, "free list", |heap: &mut Heap, layout| heap.blocks.alloc_block(layout));

#[cfg(test)]
mod tests;

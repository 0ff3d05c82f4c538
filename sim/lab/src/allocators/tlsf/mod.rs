//! TLSF, two-level segregated fit: the library's [`Tlsf`](uslab::pool::Tlsf) in a memory that counts accesses, with a
//! second search method for comparison.
//!
//! The lab counts each inspection of a bitmap word as a step; with [`Search::Scan`], it counts each inspection of a
//! list head. A search of the bitmaps takes at most three steps.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, MemoryPiece, NONE, of_the_library};
use classes::{Class, Classes};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::tlsf::Blocks;
pub use uslab::pool::tlsf::classes;

/// The method by which the allocator finds a class with a free block. The bitmap search and the list scan find the same
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The search uses bit scans in two levels of bitmaps.
    Bitmaps,
    /// The search inspects one list head after another, as an allocator with segregated lists and no bitmaps does.
    Scan,
}

/// A TLSF heap. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::{Allocator, Tlsf};
/// use uslab_lab::allocators::tlsf::Search;
///
/// let mut tlsf = Tlsf::new(1 << 20, 4, Search::Bitmaps)?;
/// let block = tlsf.alloc(Layout::new::<[u8; 1000]>()).ok_or("no room")?;
/// assert_eq!(tlsf.range(&block).len(), 1004); // 1008 with its header
/// assert!(tlsf.work().longest <= Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tlsf {
    blocks: Blocks<Memory>,
    search: Search,
    work: Work,
}

impl Tlsf {
    /// Creates a heap of `bytes` bytes, with `2^sli` classes per doubling of the size; the end markers take 16 bytes.
    ///
    /// # Errors
    /// Fails if `bytes` is below 32, above [`Memory::MAX_BYTES`] or not a multiple of 16, or if `sli` is not from 2 to
    /// 5.
    pub fn new(bytes: usize, sli: u32, search: Search) -> Result<Self, ConfigError> {
        let blocks = Blocks::new(Memory::new(bytes, 32, 16)?, sli)?;
        Ok(Self { blocks, search, work: Work::default() })
    }

    /// Returns the heap's size classes.
    pub fn classes(&self) -> Classes {
        self.blocks.classes()
    }
    /// Returns the class at which the search for a layout begins, or `None` if the layout is too large.
    pub fn first_class(&self, layout: Layout) -> Option<Class> {
        // The size of the block with its header, rounded up to a multiple of 16.
        let need = layout.size().checked_add(4)?.checked_next_multiple_of(16)?;
        self.blocks.first_class(need, layout.align())
    }
    /// Returns the bitmaps of the first and the second level; a set bit marks a class with a free block.
    pub fn bitmaps(&self) -> (u32, &[u32]) {
        self.blocks.bitmaps()
    }
    /// Returns the position and size of each free block of a class with its header, in the order of the list.
    pub fn list(&self, class: Class) -> impl Iterator<Item = (usize, usize)> {
        self.blocks.list(class)
    }
    /// Returns the size in bytes of the list heads and bitmaps.
    pub fn control_bytes(&self) -> usize {
        self.blocks.control_bytes()
    }

    fn alloc_block(&mut self, layout: Layout) -> Option<usize> {
        match self.search {
            Search::Bitmaps => self.blocks.alloc_block(layout),
            Search::Scan => self.blocks.take_by(layout, scan_list_heads),
        }
    }
}

/// Inspects the heads of the lists to find the first class that has a free block, beginning with `class`.
fn scan_list_heads(blocks: &Blocks<Memory>, class: Class) -> (Option<Class>, u64) {
    let steps = blocks.classes().steps();
    let first_index = class.fl * steps + class.sl;
    let searched_heads = blocks.heads().get(first_index..).unwrap_or_default();
    match searched_heads.iter().position(|head| *head != NONE) {
        Some(n) => {
            (Some(Class { fl: (first_index + n) / steps, sl: (first_index + n) % steps }), n as u64 + 1)
        }
        None => (None, searched_heads.len() as u64),
    }
}

of_the_library!(Tlsf, "tlsf", Tlsf::alloc_block);

#[cfg(test)]
mod tests;

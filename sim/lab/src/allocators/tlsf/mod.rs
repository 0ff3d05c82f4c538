//! TLSF, two-level segregated fit: the library's [`Tlsf`](uslab::pool::Tlsf), in memory that counts, and with a search to compare.
//!
//! A step is a word of a bitmap that is looked at, or with [`Search::Scan`] the head of a list: with the bitmaps three at
//! most.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, NONE, Piece, of_the_library};
use classes::{Class, Classes};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::tlsf::Blocks;
pub use uslab::pool::tlsf::classes;

/// How a class with a free block is found. Both find the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// By bit scans in the two bitmaps.
    Bitmaps,
    /// By looking at the head of one list after the other: what segregated lists cost without bitmaps.
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
    /// A heap of so many bytes, of which 16 are its ends, with `2^sli` classes in a doubling.
    ///
    /// # Errors
    /// Fewer than 32 bytes, more than [`Memory::MOST`], no multiple of 16; `sli` not 2 to 5.
    pub fn new(bytes: usize, sli: u32, search: Search) -> Result<Self, ConfigError> {
        let blocks = Blocks::new(Memory::new(bytes, 32, 16)?, sli)?;
        Ok(Self { blocks, search, work: Work::default() })
    }

    /// Its size classes.
    pub fn classes(&self) -> Classes {
        self.blocks.classes()
    }
    /// The class that a search for `layout` begins at; `None`: it is too large.
    pub fn first_class(&self, layout: Layout) -> Option<Class> {
        // With its header, in multiples of 16.
        let need = layout.size().checked_add(4)?.checked_next_multiple_of(16)?;
        self.blocks.first_class(need, layout.align())
    }
    /// The bitmap of the first level, and those of the second: which classes have a free block.
    pub fn bitmaps(&self) -> (u32, &[u32]) {
        self.blocks.bitmaps()
    }
    /// Bytes of list heads and bitmaps.
    pub fn control_bytes(&self) -> usize {
        self.blocks.control_bytes()
    }

    fn take(&mut self, layout: Layout) -> Option<usize> {
        match self.search {
            Search::Bitmaps => self.blocks.take(layout),
            Search::Scan => self.blocks.take_by(layout, find_in_heads),
        }
    }
}

/// The first class with a free block, from `class` on, by the heads of the lists.
fn find_in_heads(blocks: &Blocks<Memory>, class: Class) -> (Option<Class>, u64) {
    let steps = blocks.classes().steps();
    let from = class.fl * steps + class.sl;
    let rest = blocks.heads().get(from..).unwrap_or_default();
    match rest.iter().position(|head| *head != NONE) {
        Some(n) => (Some(Class { fl: (from + n) / steps, sl: (from + n) % steps }), n as u64 + 1),
        None => (None, rest.len() as u64),
    }
}

of_the_library!(Tlsf, "tlsf", Tlsf::take);

#[cfg(test)]
mod tests;

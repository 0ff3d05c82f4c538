//! What the lab asks of an allocator, so that one workload drives all of them.

use core::alloc::Layout;
use core::ops::Range;
use serde::Serialize;

/// An allocator under study.
///
/// A block is a value: it is given back by moving it, so nothing can be freed twice, nor to an allocator of another kind. Blocks
/// of two allocators of one kind are not told apart by their type; those with memory of their own
/// [panic](super::memory::Memory::own) when they are given a stranger's.
pub trait Allocator {
    /// What the caller holds.
    type Block;

    /// Its name in tables and on the command line.
    const NAME: &'static str;
    /// When freed memory can be had again.
    const REUSE: Reuse = Reuse::Each;

    /// Memory of that layout, its bytes as they happen to be; `None`: no room (a value, nothing changed).
    fn alloc(&mut self, layout: Layout) -> Option<Self::Block>;
    /// Takes it back.
    fn free(&mut self, block: Self::Block);

    /// The bytes that the block takes up, its rounding included and headers not: from the start of the memory, or
    /// addresses where the memory is not one range.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    /// The bytes that were asked for.
    fn bytes<'b>(&'b mut self, block: &'b mut Self::Block) -> &'b mut [u8];

    /// Writes to the block's first byte, if it has one.
    fn touch(&mut self, block: &mut Self::Block) {
        if let Some(first) = self.bytes(block).first_mut() {
            *std::hint::black_box(first) = 1;
        }
    }

    /// Bytes that it manages, used or free or headers; 0 where nobody can know.
    fn capacity(&self) -> usize;
    /// The free memory as it lies. Walks all of it.
    fn holes(&self) -> Holes;
    /// What it did so far.
    fn work(&self) -> Work;

    /// Bytes that it keeps beside the memory it manages: list heads, bitmaps, tables.
    fn beside(&self) -> usize {
        0
    }
    /// Gives back what it keeps for quick reuse, as `malloc_trim` does.
    fn trim(&mut self) {}
    /// Whether [`alloc`](Self::alloc) would serve `layout`, found by looking at all memory instead of the lists; `None`: cannot
    /// be told. For tests.
    fn room(&self, _layout: Layout) -> Option<bool> {
        None
    }
    /// Looks at all that it keeps, and names what does not fit together. For tests.
    ///
    /// # Errors
    /// The first thing that is wrong, and where.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// When freed memory can be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// As soon as its block was freed.
    Each,
    /// When all blocks that were handed out after its own were freed, too.
    FromTop,
    /// When all blocks were freed.
    Together,
    /// Never.
    Never,
}

/// Free memory as it lies: how many pieces, the largest, all together.
///
/// A piece is what one request could have whole: neighbours that the allocator can serve together are one piece, the slots
/// of a pool are one each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Holes {
    /// Pieces of free memory.
    pub count: usize,
    /// Bytes of the largest.
    pub largest: usize,
    /// Bytes of all.
    pub total: usize,
}

impl Holes {
    /// One more hole of so many bytes; none if there are no bytes.
    pub fn add(&mut self, bytes: usize) {
        self.add_all(1, bytes);
    }
    /// `count` more holes of so many bytes each.
    pub fn add_all(&mut self, count: usize, bytes: usize) {
        if count > 0 && bytes > 0 {
            self.count += count;
            self.largest = self.largest.max(bytes);
            self.total += count * bytes;
        }
    }
}

/// What an allocator did, in counts that are the same in every run: the lab shows them instead of times, which are not.
///
/// A step is one look at a place where room could be: a block, a slot, a list, a word of a bitmap, a page of a chain. What each
/// allocator counts its module says; the system's allocator is not looked into and counts calls only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Blocks handed out.
    pub allocs: u64,
    /// Requests that found no room.
    pub refused: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Steps of all searches, for room and for the place in a list.
    pub steps: u64,
    /// Steps of the longest operation: the worst case that happened. `None`: no operation took any that was counted by itself.
    pub longest: Option<u64>,
    /// Blocks cut in two.
    pub splits: u64,
    /// Free neighbours made one.
    pub merges: u64,
    /// Bytes of headers, links and flags in the memory itself that were read or written.
    pub touched: u64,
}

impl Work {
    /// An operation ends that took so many steps.
    pub(super) fn took(&mut self, steps: u64) {
        self.steps += steps;
        self.longest = self.longest.max(Some(steps));
    }
    /// An allocation ends; passes its outcome on.
    pub(super) fn served<T>(&mut self, block: Option<T>) -> Option<T> {
        if block.is_some() {
            self.allocs += 1
        } else {
            self.refused += 1
        }
        block
    }
}

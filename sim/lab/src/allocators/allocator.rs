//! The interface of an allocator in the lab, which lets one workload drive all allocators.

use core::alloc::Layout;
use core::ops::Range;
use serde::Serialize;

/// An allocator under study.
///
/// A block is a value that a free consumes. A block therefore cannot be freed twice, nor by an allocator of another
/// type. Two allocators of one type share a block type. An allocator with its own memory
/// [panics](super::memory::Memory::own) on a block of another one.
pub trait Allocator {
    /// The handle of an allocated block.
    type Block;

    /// The allocator's name in tables and on the command line.
    const NAME: &'static str;
    /// The time at which freed memory can be reused.
    const REUSE: Reuse = Reuse::Each;

    /// Allocates memory with the given layout; its bytes have arbitrary values. Returns `None`, without any change, if
    /// no free memory fits.
    fn alloc(&mut self, layout: Layout) -> Option<Self::Block>;
    /// Frees a block.
    fn free(&mut self, block: Self::Block);

    /// Returns the bytes that the block occupies, including rounding but no headers. The range has offsets from the
    /// start of the memory, or addresses if the memory is not one range.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    /// Returns the requested bytes of a block.
    fn bytes<'b>(&'b mut self, block: &'b mut Self::Block) -> &'b mut [u8];

    /// Writes to the block's first byte, if the block has one.
    fn touch(&mut self, block: &mut Self::Block) {
        if let Some(first) = self.bytes(block).first_mut() {
            *std::hint::black_box(first) = 1;
        }
    }

    /// Returns the bytes of the managed memory: used, free and headers; 0 if unknown.
    fn capacity(&self) -> usize;
    /// Returns the current free memory. Walks all memory.
    fn holes(&self) -> Holes;
    /// Returns the counts of the allocator's work so far.
    fn work(&self) -> Work;

    /// Returns the bytes of metadata outside the managed memory: list heads, bitmaps, tables.
    fn beside(&self) -> usize {
        0
    }
    /// Releases memory that the allocator keeps for quick reuse, as `malloc_trim` does.
    fn trim(&mut self) {}
    /// Returns `true` if [`alloc`](Self::alloc) would serve `layout`, found by searching all memory instead of the
    /// lists; `None` if unknown. Only tests call this method.
    fn room(&self, _layout: Layout) -> Option<bool> {
        None
    }
    /// Checks all data structures for consistency. Only tests call this method.
    ///
    /// # Errors
    /// Fails with the first inconsistency and its place.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The time at which freed memory can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Reuse is possible as soon as the block is freed.
    Each,
    /// Memory is reused only after all later blocks are freed.
    FromTop,
    /// Reuse is possible once all blocks are freed.
    Together,
    /// Freed memory is never reused.
    Never,
}

/// The free memory: the number of pieces, the largest piece, and the sum.
///
/// A piece is the most that one request can get: neighbours that the allocator can serve together count as one piece,
/// and so does each free slot of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Holes {
    /// The number of free pieces.
    pub count: usize,
    /// The size of the largest piece in bytes.
    pub largest: usize,
    /// The size of all pieces in bytes.
    pub total: usize,
}

impl Holes {
    /// Adds a hole of `bytes` bytes; does nothing if `bytes` is 0.
    pub fn add(&mut self, bytes: usize) {
        self.add_all(1, bytes);
    }
    /// Adds `count` holes of `bytes` bytes each.
    pub fn add_all(&mut self, count: usize, bytes: usize) {
        if count > 0 && bytes > 0 {
            self.count += count;
            self.largest = self.largest.max(bytes);
            self.total += count * bytes;
        }
    }
}

/// Counts of the work that an allocator has done. The counts are the same in every run, so the lab shows them instead
/// of times.
///
/// A step is one inspection of a place where free memory could be: a block, slot, list, bitmap word or page of a chain.
/// Each allocator's module defines its steps; the system's allocator counts only calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// The number of allocated blocks.
    pub allocs: u64,
    /// The number of requests that found no room.
    pub refused: u64,
    /// The number of freed blocks.
    pub frees: u64,
    /// The steps of all searches, for free memory and for positions in lists.
    pub steps: u64,
    /// The steps of the longest operation, which is the worst case that occurred. `None` if the steps of single
    /// operations were not counted.
    pub longest: Option<u64>,
    /// The number of blocks split in two.
    pub splits: u64,
    /// The number of free neighbours merged into one block.
    pub merges: u64,
    /// The bytes of headers, links and flags that were read or written in the memory itself.
    pub touched: u64,
}

impl Work {
    /// Counts an operation of `steps` steps.
    pub(super) fn took(&mut self, steps: u64) {
        self.steps += steps;
        self.longest = self.longest.max(Some(steps));
    }
    /// Counts an allocation, and returns its result.
    pub(super) fn served<T>(&mut self, block: Option<T>) -> Option<T> {
        if block.is_some() {
            self.allocs += 1
        } else {
            self.refused += 1
        }
        block
    }
}

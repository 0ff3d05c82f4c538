//! The trait through which one workload can drive every allocator of the lab.

use core::alloc::Layout;
use core::ops::Range;
use serde::Serialize;

/// An allocator that the lab studies.
///
/// A call of `free` consumes the block's value. The compiler therefore rejects a double free of a block, and a free by
/// an allocator of another type. Two allocators of the same type share a block type. An allocator with its own memory
/// [panics](super::memory::Memory::checked_offset) if a caller passes it a block of another allocator.
pub trait Allocator {
    /// The type of the handles of allocated blocks.
    type Block;

    /// The allocator's name in tables and on the command line.
    const NAME: &'static str;
    /// The condition under which freed memory can be reused.
    const REUSE: ReuseCondition = ReuseCondition::Each;

    /// Allocates memory with the given layout; the memory contains arbitrary bytes. If no free memory is large enough,
    /// returns `None` and changes nothing.
    fn alloc(&mut self, layout: Layout) -> Option<Self::Block>;
    /// Frees a block.
    fn free(&mut self, block: Self::Block);

    /// Returns the range of bytes that the block occupies, including rounding but not headers. The bounds are offsets
    /// from the start of the memory, or addresses if the memory is not contiguous.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    /// Returns the bytes of a block that the caller requested.
    fn bytes<'b>(&'b mut self, block: &'b mut Self::Block) -> &'b mut [u8];

    /// Writes to the first byte of the block, unless the block is empty.
    fn touch(&mut self, block: &mut Self::Block) {
        if let Some(first) = self.bytes(block).first_mut() {
            *std::hint::black_box(first) = 1;
        }
    }

    /// Returns the size in bytes of the managed memory, including free memory and headers; 0 if the size is unknown.
    fn capacity(&self) -> usize;
    /// Returns the number and the sizes of the pieces of free memory. The cost is one inspection of all memory.
    fn holes(&self) -> Holes;
    /// Returns counts of the work that the allocator has done so far.
    fn work(&self) -> Work;

    /// Returns the bytes of metadata outside the managed memory, such as list heads, bitmaps and tables.
    fn metadata_bytes(&self) -> usize {
        0
    }
    /// Releases free memory that the allocator caches, as `malloc_trim` does.
    fn trim(&mut self) {}
    /// Returns `Some(true)` if [`alloc`](Self::alloc) would serve `layout`; returns `None` if the allocator cannot
    /// predict this. The prediction inspects all memory instead of searching the free lists. Only tests call this
    /// method.
    fn room(&self, _layout: Layout) -> Option<bool> {
        None
    }
    /// Checks that the allocator's data structures are consistent. Only tests call this method.
    ///
    /// # Errors
    /// Returns a description of the first inconsistency, with its address or index.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The condition under which freed memory can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReuseCondition {
    /// The memory of a block can be reused as soon as the block is freed.
    Each,
    /// The memory of a block can be reused after all later blocks are freed.
    FromTop,
    /// Memory can be reused only after all blocks are freed.
    Together,
    /// Freed memory is never reused.
    Never,
}

/// The pieces of free memory: their number, the largest size, and the total size.
///
/// A piece is free memory that one request can get as a whole. Adjacent free blocks count as one piece if one request
/// can use all of them. Each free slot of a pool is a separate piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Holes {
    /// The number of free pieces.
    pub count: usize,
    /// The size of the largest piece in bytes.
    pub largest: usize,
    /// The sum of the sizes of all pieces, in bytes.
    pub total: usize,
}

impl Holes {
    /// Adds a free piece of `bytes` bytes; does nothing if `bytes` is 0.
    pub fn add(&mut self, bytes: usize) {
        self.add_pieces(1, bytes);
    }
    /// Adds `count` free pieces of `bytes` bytes each.
    pub fn add_pieces(&mut self, count: usize, bytes: usize) {
        if count > 0 && bytes > 0 {
            self.count += count;
            self.largest = self.largest.max(bytes);
            self.total += count * bytes;
        }
    }
}

/// Counts of the work that an allocator has done. The lab shows counts rather than times, because the counts are equal
/// in every run.
///
/// A step is the inspection of one location that may contain free memory: a block, a slot, a list, a bitmap word, or a
/// page of a chain. The module of each allocator defines the allocator's steps. For the system's allocator, the lab
/// counts only calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// The number of allocated blocks.
    pub allocs: u64,
    /// The number of requests for which no free memory was large enough.
    pub refused: u64,
    /// The number of freed blocks.
    pub frees: u64,
    /// The steps of all searches, for free memory or for positions in lists.
    pub steps: u64,
    /// The steps of the longest operation so far; `None` if the allocator does not count steps per operation.
    pub longest: Option<u64>,
    /// The number of blocks split in two.
    pub splits: u64,
    /// The number of merges; a merge makes one block of two free neighbours.
    pub merges: u64,
    /// The bytes of headers, links and flags inside the managed memory that were read or written.
    pub touched: u64,
}

impl Work {
    /// Counts an operation that took `steps` steps.
    pub(super) fn count_search(&mut self, steps: u64) {
        self.steps += steps;
        self.longest = self.longest.max(Some(steps));
    }
    /// Counts an allocation, and returns its result.
    pub(super) fn count_allocation<T>(&mut self, block: Option<T>) -> Option<T> {
        if block.is_some() {
            self.allocs += 1
        } else {
            self.refused += 1
        }
        block
    }
}

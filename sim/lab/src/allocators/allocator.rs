//! The interface of an allocator in the lab, so that one workload drives all of them.

use core::alloc::Layout;
use core::ops::Range;
use serde::Serialize;

/// An allocator under study.
///
/// A block is a value: it is freed by moving it, so it cannot be freed twice, nor to an allocator of another kind. Blocks of two
/// allocators of one kind have the same type; allocators with their own memory [panic](super::memory::Memory::own) if they are
/// given another one's block.
pub trait Allocator {
    /// The caller's proof of an allocation.
    type Block;

    /// The name in tables and on the command line.
    const NAME: &'static str;
    /// When freed memory can be reused.
    const REUSE: Reuse = Reuse::Each;

    /// Allocates memory with this layout; its bytes have arbitrary values. Returns `None` if there is no room; then nothing has
    /// changed.
    fn alloc(&mut self, layout: Layout) -> Option<Self::Block>;
    /// Frees a block.
    fn free(&mut self, block: Self::Block);

    /// The bytes that the block takes up, including its rounding but no headers. They are offsets from the start of the memory,
    /// or addresses if the memory is not one range.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    /// The bytes that were requested.
    fn bytes<'b>(&'b mut self, block: &'b mut Self::Block) -> &'b mut [u8];

    /// Writes to the block's first byte, if it has one.
    fn touch(&mut self, block: &mut Self::Block) {
        if let Some(first) = self.bytes(block).first_mut() {
            *std::hint::black_box(first) = 1;
        }
    }

    /// Bytes of the memory that it manages: used, free, and headers; 0 if this is unknown.
    fn capacity(&self) -> usize;
    /// The current free memory. Walks all of it.
    fn holes(&self) -> Holes;
    /// The counts of its work so far.
    fn work(&self) -> Work;

    /// Bytes that it keeps outside the memory that it manages: list heads, bitmaps, tables.
    fn beside(&self) -> usize {
        0
    }
    /// Releases what it keeps for quick reuse, as `malloc_trim` does.
    fn trim(&mut self) {}
    /// Returns `true` if [`alloc`](Self::alloc) would serve `layout`, by searching all memory instead of the lists; `None` if
    /// this cannot be determined. For tests.
    fn room(&self, _layout: Layout) -> Option<bool> {
        None
    }
    /// Checks all data structures for consistency. For tests.
    ///
    /// # Errors
    /// The first inconsistency, and its place.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// When freed memory can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// As soon as the block is freed.
    Each,
    /// When all blocks that were allocated after it are freed, too.
    FromTop,
    /// When all blocks are freed.
    Together,
    /// Never.
    Never,
}

/// The free memory: the number of pieces, the largest piece, and the sum.
///
/// A piece is the most that one request can get: neighbours that the allocator can serve together are one piece; each free slot
/// of a pool is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Holes {
    /// The number of pieces.
    pub count: usize,
    /// Bytes of the largest piece.
    pub largest: usize,
    /// Bytes of all pieces.
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

/// Counts of an allocator's work. They are the same in every run, so the lab shows them instead of times.
///
/// A step is one look at a place where there could be room: a block, a slot, a list, a word of a bitmap, a page of a chain. Each
/// allocator's module says what it counts; the system's allocator counts only calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Blocks allocated.
    pub allocs: u64,
    /// Requests that found no room.
    pub refused: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Steps of all searches, for room and for positions in lists.
    pub steps: u64,
    /// Steps of the longest operation, which is the worst case that occurred. `None` if no operation's steps were counted
    /// separately.
    pub longest: Option<u64>,
    /// Blocks split in two.
    pub splits: u64,
    /// Free neighbours merged into one.
    pub merges: u64,
    /// Bytes of headers, links and flags read or written in the memory itself.
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

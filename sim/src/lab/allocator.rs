//! What the lab asks of an allocator, so that one workload drives all of them.

use core::alloc::Layout;
use core::ops::Range;

/// An allocator under study.
///
/// A block is a value: it is given back by moving it, so nothing can be freed twice or to a stranger by mistake.
pub trait Allocator {
    /// What the caller holds.
    type Block;

    /// Its name in tables and on the command line.
    const NAME: &'static str;

    /// Memory of that layout; `None`: no room (a value, nothing changed).
    fn alloc(&mut self, layout: Layout) -> Option<Self::Block>;
    /// Takes it back. Allocators that free only as a whole (see [`FREES_EACH`](Self::FREES_EACH)) count it.
    fn free(&mut self, block: Self::Block);
    /// Whether memory can be had again as soon as its block was freed; else only when all was freed.
    const FREES_EACH: bool = true;

    /// The bytes that the block takes up, its rounding included and headers not: from the start of the memory, or
    /// addresses where the memory is not one range.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    /// The bytes that were asked for.
    fn bytes<'b>(&'b mut self, block: &'b mut Self::Block) -> &'b mut [u8];

    /// Bytes that it manages, used or free.
    fn capacity(&self) -> usize;
    /// The free memory as it lies.
    fn holes(&self) -> Holes;
}

/// Free memory as it lies: how many pieces, the largest, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// Maximal pieces of free memory.
    pub count: usize,
    /// Bytes of the largest.
    pub largest: usize,
    /// Bytes of all.
    pub total: usize,
}

impl Holes {
    /// One more hole of so many bytes.
    pub fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.largest = self.largest.max(bytes);
        self.total += bytes;
    }
}

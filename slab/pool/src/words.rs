//! Memory that is addressed by positions, for the metadata of the byte allocators.
//!
//! The byte allocators are safe code that computes with positions: 32-bit numbers, counted from the start of the
//! memory, half as large as pointers. The memory of this crate's allocators is an [`Area`]. For experiments with the
//! algorithms, another type of memory can count the operations.

use crate::area::Area;
use core::ptr::NonNull;

/// A range of bytes with a size and an address.
pub trait Span {
    /// Returns the address of position 0.
    fn address(&self) -> usize;
    /// Number of bytes.
    fn size(&self) -> usize;
}

/// Memory that is read and written as 32-bit words. The user must read only words that it has written before.
pub trait Words: Span {
    /// Reads the word at `position` for a report or a check, which an experiment should not count.
    fn peek(&self, position: usize) -> u32;
    /// Reads the word at `position` on behalf of the allocator.
    #[inline]
    fn load(&mut self, position: usize) -> u32 {
        self.peek(position)
    }
    /// Writes the word at `position`.
    fn store(&mut self, position: usize, word: u32);
    /// Reports an event in the allocator to an experiment.
    #[inline]
    fn record(&mut self, _: Event) {}
}

/// An event in an allocator, which an experiment can record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A search inspected a free block.
    Inspected {
        /// Position of the inspected block.
        at: usize,
        /// Size of the inspected block in bytes, including its metadata.
        bytes: usize,
    },
    /// A search ended after this number of steps.
    Searched(u64),
    /// A block was split, and `bytes` bytes of it, starting at `at`, are now a free block.
    Split {
        /// Position of the new free block.
        at: usize,
        /// Size of the new free block in bytes, including its metadata.
        bytes: usize,
    },
    /// A free block of `bytes` bytes, starting at `at`, was merged with its neighbour.
    Merged {
        /// Position of the merged block.
        at: usize,
        /// Size of the merged block in bytes before the merge, including its metadata.
        bytes: usize,
    },
}

/// The memory of an area, as 32-bit words.
///
/// # Invariants
/// The user of `RawWords` must read only bytes that it wrote, and must not write to bytes that it has handed out.
#[derive(Debug)]
pub(crate) struct RawWords<A>(pub(crate) A);

impl<A: Area> RawWords<A> {
    /// Returns the address of the byte at `position`; `position` may be the end of the memory.
    ///
    /// # Panics
    /// Panics if `position` is beyond the end of the memory.
    #[inline]
    pub(crate) fn at(&self, position: usize) -> NonNull<u8> {
        self.range(position, 0)
    }
    #[inline]
    fn word(&self, position: usize) -> NonNull<u32> {
        self.range(position, size_of::<u32>()).cast()
    }
    #[inline]
    fn range(&self, position: usize, bytes: usize) -> NonNull<u8> {
        let memory = self.0.memory();
        if position > memory.len().wrapping_sub(bytes) || bytes > memory.len() {
            panic_out_of_bounds(position, memory.len());
        }
        // SAFETY: the address is inside the area's memory, or its end.
        unsafe { memory.cast::<u8>().add(position) }
    }
}

#[cold]
fn panic_out_of_bounds(position: usize, bytes: usize) -> ! {
    panic!("the free list was overwritten: position {position} is beyond the {bytes} bytes of memory");
}

impl<A: Area> Span for RawWords<A> {
    #[inline]
    fn address(&self) -> usize {
        self.0.memory().cast::<u8>().addr().get()
    }
    #[inline]
    fn size(&self) -> usize {
        self.0.memory().len()
    }
}

impl<A: Area> Words for RawWords<A> {
    #[inline]
    fn peek(&self, position: usize) -> u32 {
        // SAFETY: by the invariant, the four bytes are in the area and were written before.
        unsafe { self.word(position).read_unaligned() }
    }
    #[inline]
    fn store(&mut self, position: usize, word: u32) {
        // SAFETY: the four bytes are in the area and not handed out, by the invariant.
        unsafe { self.word(position).write_unaligned(word) };
    }
}

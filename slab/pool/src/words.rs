//! Memory addressed by positions, for the metadata of byte allocators.
//!
//! Byte allocators are safe code on positions: numbers of 32 bits, counted from the start of the memory, half the size
//! of pointers. The memory of this crate's allocators is an [`Area`]. A study of the algorithms may use another memory,
//! and count operations.

use crate::area::Area;
use core::ptr::NonNull;

/// A range of bytes.
pub trait Span {
    /// Address of position 0.
    fn address(&self) -> usize;
    /// Number of bytes.
    fn size(&self) -> usize;
}

/// Bytes that are read and written as words of 32 bits. The user reads only words that were written
/// before.
pub trait Words: Span {
    /// Reads the word at `position`, for reports and checks.
    fn peek(&self, position: usize) -> u32;
    /// Reads the word at `position`, for the allocator.
    #[inline]
    fn load(&mut self, position: usize) -> u32 {
        self.peek(position)
    }
    /// Writes the word at `position`.
    fn store(&mut self, position: usize, word: u32);
    /// Reports an event of the allocator to an experiment.
    #[inline]
    fn record(&mut self, _: Event) {}
}

/// An event in an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A search inspected a free block.
    Inspected {
        /// Position of the block.
        at: usize,
        /// Size of the block in bytes, including its metadata.
        bytes: usize,
    },
    /// A search ended after the given number of steps.
    Searched(u64),
    /// A block was split, and the `bytes` bytes from `at` on are now a free block.
    Split {
        /// Position of the free part.
        at: usize,
        /// Size of the free part in bytes, including its metadata.
        bytes: usize,
    },
    /// A free block, which had `bytes` bytes from `at` on, was merged with its neighbour.
    Merged {
        /// Position of the free block.
        at: usize,
        /// Size of the free block in bytes, including its metadata.
        bytes: usize,
    },
}

/// The memory of an area.
///
/// # Invariants
/// The user of `RawWords` reads only bytes that it wrote, and writes to no bytes that it has handed out.
#[derive(Debug)]
pub(crate) struct RawWords<A>(pub(crate) A);

impl<A: Area> RawWords<A> {
    /// Returns the address of byte `position`, or of the end of the memory.
    ///
    /// # Panics
    /// Panics if `position` is beyond the end.
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
            out_of_bounds(position, memory.len());
        }
        // SAFETY: the address is inside the area's memory, or its end.
        unsafe { memory.cast::<u8>().add(position) }
    }
}

#[cold]
fn out_of_bounds(position: usize, bytes: usize) -> ! {
    panic!("position {position} of {bytes} bytes: the free list was overwritten");
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

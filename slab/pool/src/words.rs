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

/// Bytes that are read and written as words of 32 bits. A word is not read before it was written.
pub trait Words: Span {
    /// Reads the word at `at`, for reports and checks.
    fn peek(&self, at: usize) -> u32;
    /// Reads the word at `at`, for the allocator.
    #[inline]
    fn load(&mut self, at: usize) -> u32 {
        self.peek(at)
    }
    /// Writes the word at `at`.
    fn store(&mut self, at: usize, word: u32);
    /// Reports an event of the allocator to an experiment.
    #[inline]
    fn tell(&mut self, _: Event) {}
}

/// An event in an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A search inspected a free block.
    Inspected {
        /// Position of the block.
        at: usize,
        /// Size of the block, with its metadata.
        bytes: usize,
    },
    /// A search ended after the given number of steps.
    Searched(u64),
    /// A block was split in two: `bytes` bytes from `at` on are a free block now.
    Split {
        /// Position of the free part.
        at: usize,
        /// Size of the free part, with its metadata.
        bytes: usize,
    },
    /// A free block was merged with its neighbour: it had `bytes` bytes from `at` on.
    Merged {
        /// Position of the free block.
        at: usize,
        /// Size of the free block, with its metadata.
        bytes: usize,
    },
}

/// The memory of an area.
///
/// # Invariants
/// The user of `Raw` reads only bytes that it wrote, and does not write to bytes that it has handed out.
#[derive(Debug)]
pub(crate) struct Raw<A>(pub(crate) A);

impl<A: Area> Raw<A> {
    /// Returns the address of byte `at`, or of the end of the memory.
    ///
    /// # Panics
    /// Panics if `at` is beyond the end.
    #[inline]
    pub(crate) fn at(&self, at: usize) -> NonNull<u8> {
        self.range(at, 0)
    }
    #[inline]
    fn word(&self, at: usize) -> NonNull<u32> {
        self.range(at, size_of::<u32>()).cast()
    }
    #[inline]
    fn range(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let memory = self.0.memory();
        if at > memory.len().wrapping_sub(bytes) || bytes > memory.len() {
            outside(at, memory.len());
        }
        // SAFETY: the address is inside the area's memory, or its end.
        unsafe { memory.cast::<u8>().add(at) }
    }
}

#[cold]
fn outside(at: usize, bytes: usize) -> ! {
    panic!("position {at} of {bytes} bytes: the free list was overwritten");
}

impl<A: Area> Span for Raw<A> {
    #[inline]
    fn address(&self) -> usize {
        self.0.memory().cast::<u8>().addr().get()
    }
    #[inline]
    fn size(&self) -> usize {
        self.0.memory().len()
    }
}

impl<A: Area> Words for Raw<A> {
    #[inline]
    fn peek(&self, at: usize) -> u32 {
        // SAFETY: the four bytes are in the area and were written before, by the invariant.
        unsafe { self.word(at).read_unaligned() }
    }
    #[inline]
    fn store(&mut self, at: usize, word: u32) {
        // SAFETY: the four bytes are in the area and not handed out, by the invariant.
        unsafe { self.word(at).write_unaligned(word) };
    }
}

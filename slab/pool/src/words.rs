//! Memory by positions: what allocators of bytes keep their books in.
//!
//! Their algorithms are safe code on positions: numbers of 32 bits that are counted from the start of the memory, half as large as
//! pointers. Here the memory is an [`Area`]; a study of the same algorithms may give them another, and count what they do.

use crate::area::Area;
use core::ptr::NonNull;

/// Bytes that lie somewhere.
pub trait Span {
    /// The address of position 0.
    fn address(&self) -> usize;
    /// How many bytes there are.
    fn size(&self) -> usize;
}

/// Bytes that are read and written a word of 32 bits at a time. A word that was not written before is not read.
pub trait Words: Span {
    /// The word at `at`, for reports and checks.
    fn peek(&self, at: usize) -> u32;
    /// The word at `at`, for the allocator.
    #[inline]
    fn load(&mut self, at: usize) -> u32 {
        self.peek(at)
    }
    /// Writes the word at `at`.
    fn store(&mut self, at: usize, word: u32);
    /// Something happened that a study counts.
    #[inline]
    fn tell(&mut self, _: Event) {}
}

/// What an allocator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A search ended that looked at so many places.
    Searched(u64),
    /// A block was cut in two.
    Split,
    /// Two free neighbours became one.
    Merged,
}

/// The memory of an area.
///
/// # Invariants
/// Whoever has it reads only what it wrote, and writes to no byte that it lent.
#[derive(Debug)]
pub(crate) struct Raw<A>(pub(crate) A);

impl<A: Area> Raw<A> {
    /// The byte at `at`, or the end of the memory.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(crate) fn at(&self, at: usize) -> NonNull<u8> {
        self.range(at, 0)
    }
    #[inline]
    fn word(&self, at: usize) -> NonNull<u32> {
        self.range(at, size_of::<u32>()).cast()
    }
    /// Where `bytes` bytes begin.
    #[inline]
    fn range(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let memory = self.0.memory();
        if at > memory.len().wrapping_sub(bytes) || bytes > memory.len() {
            outside(at, memory.len());
        }
        // SAFETY: inside the area's memory, or its end.
        unsafe { memory.cast::<u8>().add(at) }
    }
}

#[cold]
fn outside(at: usize, bytes: usize) -> ! {
    panic!("position {at} of {bytes} bytes: somebody wrote to memory that was not theirs");
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
        // SAFETY: four bytes of the area, which were written before, by the invariant.
        unsafe { self.word(at).read_unaligned() }
    }
    #[inline]
    fn store(&mut self, at: usize, word: u32) {
        // SAFETY: four bytes of the area, which nobody else has, by the invariant.
        unsafe { self.word(at).write_unaligned(word) };
    }
}

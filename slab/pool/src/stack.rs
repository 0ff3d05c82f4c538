//! The stack allocator: a position moves forward through memory, and moves back to markers.
//!
//! ```text
//!   | outer |pad| outer |marker|      inner, inner, inner      |      free     |
//!                       ^                                      ^ head
//!                       └── free_to: frees the marker and everything behind it
//! ```
//!
//! - An allocation takes O(1), as in an [arena](super::linear). A [marker](StackAlloc::mark) uses 20 bytes of the
//!   memory.
//! - [`free_to`](StackAlloc::free_to) takes O(1), plus one load for each later marker that it also frees.
//! - [`free`](StackAlloc::free) frees a single block: the topmost block is freed immediately, including its padding.
//!   Any other block stays allocated until a marker frees it. If blocks are freed in reverse order, all memory is free
//!   at the end. A block that was shrunk below another block is an exception.
//! - Waste: padding for alignments. The padding before a block takes at least 8 bytes, because it stores where the
//!   padding starts. Blocks in a stack have no header.
//!
//! A marker is moved into the call that frees it, so that it cannot be used twice. For each valid marker, the stack
//! keeps a record in its memory; each record has the position of the previous record. A marker that was freed by an
//! earlier marker is refused, however far the stack has grown since.
//!
//! If scopes nest like the program's functions, use an [`Arena`](super::Arena), whose nesting the borrow checker
//! enforces.
//!
//! Source: Frykholm, "Custom Memory Allocation in C++" (BitSquid blog, 2010). Users: Unreal's `FMemMark` on
//! `FMemStack`, Frostbite's scope stack, and every call stack.

use crate::area::Area;
use crate::blocks::{MAX_BYTES, NONE};
use crate::error::{BadFree, PoolError, Refused};
use crate::linear::place;
use crate::words::{RawWords, Span, Words};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// A stack of blocks in memory that the caller chooses. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{BadMarker, StackAlloc, StackArea};
///
/// let mut memory = StackArea::<1024>::new();
/// let mut stack = StackAlloc::new(memory.lend())?;
/// stack.alloc(Layout::new::<[u8; 100]>())?;
/// let level = stack.mark()?;
/// stack.alloc(Layout::new::<[u8; 300]>())?;
/// let room = stack.mark()?;
/// stack.alloc(Layout::new::<[u8; 200]>())?;
///
/// stack.free_to(level)?;
/// assert_eq!(stack.used(), 100);
/// stack.alloc(Layout::new::<[u8; 500]>())?;
/// assert_eq!(stack.free_to(room), Err(BadMarker::Freed { at: 420 }));
/// assert_eq!(stack.used(), 600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// The records of all valid markers are below `head`. The records form a list that begins at `newest`; each record
/// leads to a record at a lower position. The paddings also form a list, which begins with the padding before the block
/// at `newest_padded`. Some blocks on the list of paddings may already be freed.
#[derive(Debug)]
pub struct StackAlloc<A> {
    memory: RawWords<A>,
    head: usize,
    newest: u32,
    newest_padded: u32,
    /// Number of markers that were made so far, which is also the number of the next marker.
    marks: u64,
}

/// A position of a [`StackAlloc`]; all later allocations can be freed by going back to it. A value of type `Marker`
/// takes 24 bytes.
///
/// The address of the stack's memory identifies the stack of a marker. A marker of a dropped stack cannot be
/// distinguished from a marker of a later stack in the same memory.
#[must_use = "an unused marker keeps its bytes until an earlier marker is freed"]
#[derive(Debug)]
pub struct Marker {
    stack: usize,
    record: u32,
    number: u64,
}

/// The record of a marker: the previous record's position, the marker's number in two halves, the head before the
/// marker, and the newest padded block's position. The record is stored in the stack's memory instead of the marker,
/// because a marker may belong to a dropped stack.
const RECORD: Layout = Layout::new::<[u32; 5]>();

/// Number of bytes at the end of a padding, which store the start of the padding and the position of the previous
/// padded block.
const PADDING: usize = size_of::<[u32; 2]>();

/// Returns the size of a block in bytes, which is at least 1, so that no two blocks begin at the same position.
fn bytes(layout: Layout) -> usize {
    layout.size().max(1)
}

/// The reason why a stack refuses to free to a marker. A refused call frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadMarker {
    /// The marker was already freed together with an earlier marker.
    Freed {
        /// Position of the marker in bytes from the start of the memory.
        at: usize,
    },
    /// The marker belongs to another stack.
    Foreign {
        /// Address of the memory of the marker's stack.
        address: usize,
    },
}

impl fmt::Display for BadMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Freed { at } => write!(f, "the marker at byte {at} was freed with an earlier one"),
            Self::Foreign { address } => {
                write!(f, "the marker belongs to the stack at {address:#x}, not to this one")
            }
        }
    }
}
impl core::error::Error for BadMarker {}

impl<A: Area> StackAlloc<A> {
    /// Makes an empty stack in `area`.
    ///
    /// # Errors
    /// Returns [`PoolError::Positions`] if the area has more than 2 GiB.
    pub fn new(area: A) -> Result<Self, PoolError> {
        let memory = RawWords(area);
        let bytes = memory.size();
        if bytes > MAX_BYTES {
            return Err(PoolError::Positions { bytes, max: MAX_BYTES });
        }
        Ok(Self { memory, head: 0, newest: NONE, newest_padded: NONE, marks: 0 })
    }

    #[inline]
    fn place(&self, head: usize, layout: Layout) -> Result<(usize, usize), Refused> {
        let error = Refused::NoRoom { bytes: layout.size(), align: layout.align() };
        let block = Layout::from_size_align(bytes(layout), layout.align()).map_err(|_| error)?;
        place(self.memory.address(), self.memory.size(), head, block).ok_or(error)
    }
    /// Allocates memory for `layout`. The bytes of the memory are unspecified. A block of size 0 still takes one byte.
    ///
    /// # Errors
    /// Returns [`Refused::NoRoom`] if the free memory is too small.
    #[inline]
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let (mut at, mut end) = self.place(self.head, layout)?;
        if at > self.head {
            (at, end) = self.place(self.head + PADDING, layout)?;
            self.memory.store(at - PADDING, self.head as u32);
            self.memory.store(at - PADDING + 4, self.newest_padded);
            self.newest_padded = at as u32;
        }
        self.head = end;
        Ok(self.memory.at(at))
    }
    /// Frees a block. The bytes and the padding of the topmost block are reusable immediately. The bytes of any other
    /// block stay allocated until a marker or a [reset](Self::reset) frees them.
    ///
    /// # Errors
    /// Returns [`BadFree::Foreign`] for an address outside the memory, and [`BadFree::NotAllocated`] for an address
    /// above the head. A second free below the head is not detected.
    ///
    /// # Safety
    /// This stack must have allocated the block with `layout`. The block must not have been freed since by a free or a
    /// marker, and the caller must no longer use it.
    pub unsafe fn free(&mut self, memory: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        let at = self.position(memory, layout)?;
        if at + bytes(layout) == self.head {
            self.head = at;
            if at == self.newest_padded as usize {
                self.head = self.memory.load(at - PADDING) as usize;
                self.newest_padded = self.memory.load(at - PADDING + 4);
            }
        }
        Ok(())
    }
    /// Resizes the topmost block in place; any other block can only shrink. Shrinking a block that is not the topmost
    /// saves no memory. A shrunk block that is not topmost keeps its end, so it is not recognised as the topmost block
    /// later. Returns `false` if the block cannot be resized.
    ///
    /// # Errors
    /// Returns the errors of [`free`](Self::free).
    ///
    /// # Safety
    /// This stack must have allocated the block with layout `old`, and must not have freed it since. If the call
    /// succeeds, the block has `bytes` bytes.
    pub unsafe fn resize(&mut self, memory: NonNull<u8>, old: Layout, bytes: usize) -> Result<bool, BadFree> {
        let at = self.position(memory, old)?;
        if at + self::bytes(old) != self.head {
            return Ok(bytes <= old.size());
        }
        let end = at.checked_add(bytes.max(1)).filter(|end| *end <= self.memory.size());
        self.head = end.unwrap_or(self.head);
        Ok(end.is_some())
    }
    fn position(&self, memory: NonNull<u8>, layout: Layout) -> Result<usize, BadFree> {
        let address = memory.addr().get();
        match address.checked_sub(self.memory.address()).filter(|at| *at <= self.memory.size()) {
            None => Err(BadFree::Foreign { address }),
            Some(at) if bytes(layout) > self.head.saturating_sub(at) => {
                Err(BadFree::NotAllocated { address })
            }
            Some(at) => Ok(at),
        }
    }

    /// Makes a marker at the current position, so that later allocations can be freed together.
    ///
    /// # Errors
    /// Returns [`Refused::NoRoom`] if the free memory is too small.
    pub fn mark(&mut self) -> Result<Marker, Refused> {
        let (head, number) = (self.head, self.marks);
        let (record, end) = self.place(head, RECORD)?;
        let words = [self.newest, number as u32, (number >> 32) as u32, head as u32, self.newest_padded];
        for (i, word) in words.into_iter().enumerate() {
            self.memory.store(record + 4 * i, word);
        }
        self.marks += 1;
        self.head = end;
        self.newest = record as u32;
        Ok(Marker { stack: self.memory.address(), record: record as u32, number })
    }
    /// Frees the marker and all later allocations, which the caller must no longer use.
    ///
    /// # Errors
    /// Returns an error if the marker belongs to another stack, or was freed together with an earlier marker. Refusing
    /// a marker costs one load for each marker above its position.
    pub fn free_to(&mut self, marker: Marker) -> Result<(), BadMarker> {
        let Marker { stack, record, number } = marker;
        if stack != self.memory.address() {
            return Err(BadMarker::Foreign { address: stack });
        }
        let mut at = self.newest;
        while at != NONE && at > record {
            at = self.memory.load(at as usize);
        }
        let record = record as usize;
        if at as usize != record || self.number(record) != number {
            return Err(BadMarker::Freed { at: record });
        }
        self.newest = self.memory.load(record);
        self.head = self.memory.load(record + 12) as usize;
        self.newest_padded = self.memory.load(record + 16);
        Ok(())
    }
    fn number(&self, record: usize) -> u64 {
        u64::from(self.memory.peek(record + 8)) << 32 | u64::from(self.memory.peek(record + 4))
    }
    /// Frees all blocks and markers. The caller must no longer use any block of the stack.
    pub fn reset(&mut self) {
        self.head = 0;
        self.newest = NONE;
        self.newest_padded = NONE;
    }
    /// Returns the number of bytes up to the head, including padding and the records of markers.
    pub fn used(&self) -> usize {
        self.head
    }
    /// Returns the size of the stack's memory in bytes.
    pub fn capacity(&self) -> usize {
        self.memory.size()
    }
}

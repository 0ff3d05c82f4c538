//! The stack allocator: a position that moves forward, and back to markers.
//!
//! ```text
//!   | outer |pad| outer |marker|      inner, inner, inner      |      free     |
//!                       ^                                      ^ head
//!                       └── free_to: the marker and all behind it is free at once
//! ```
//!
//! - Allocate: as an [arena](super::linear), O(1). A [marker](StackAlloc::mark) takes 20 bytes of the memory.
//! - [`free_to`](StackAlloc::free_to): O(1), and a load for each marker that is freed with it.
//! - [`free`](StackAlloc::free) of a single block: the topmost one at once, with its padding; any other waits for a marker. So blocks
//!   that go in the opposite order of their coming leave nothing, but for those that were made smaller below others.
//! - Waste: the padding of alignments. One in front of a block has 8 bytes or more: they say where it begins. No block has a header.
//!
//! A marker is used once, so that it is a value. Which markers are still there the stack knows from the memory itself: each says
//! where the one before it lies. So a marker that went with an earlier one is refused, however far the stack has grown since.
//!
//! Where scopes nest as the program's functions do, an [`Arena`](super::Arena) has the borrow checker see to it instead.
//!
//! Sources: Frykholm, "Custom Memory Allocation in C++" (BitSquid blog, 2010). Ships as Unreal's `FMemMark` on `FMemStack`,
//! Frostbite's scope stack, and every call stack.

use crate::area::Area;
use crate::blocks::{MOST, NONE};
use crate::error::{BadFree, PoolError, Refused};
use crate::linear::place;
use crate::words::{Raw, Span, Words};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// A stack of blocks in memory of the caller's choice. See the [module](self).
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
/// The records of the markers that are there begin with `newest` and lie below `head`, each below the one that names it. So do
/// the paddings of the blocks that lie there, from the one in front of the block at `padded`; some of these may be freed.
#[derive(Debug)]
pub struct StackAlloc<A> {
    memory: Raw<A>,
    head: usize,
    /// Where the record of the newest marker lies.
    newest: u32,
    /// Where the newest block lies that has a padding in front of it.
    padded: u32,
    /// Markers ever made: the number of the next.
    marks: u64,
}

/// A place of a [`StackAlloc`], to free to. 24 bytes.
///
/// It names its stack by the address of the memory. A stack that is gone is not told from one that has its memory now.
#[must_use = "a marker that is not freed to takes up its bytes until an earlier one is"]
#[derive(Debug)]
pub struct Marker {
    stack: usize,
    /// Where its record lies.
    record: u32,
    number: u64,
}

/// The record of a marker: where the one before it lies, the two halves of its number, the head before it, and which block had the newest
/// padding then. A marker itself tells none of these: it may be of a stack that is gone.
const RECORD: Layout = Layout::new::<[u32; 5]>();

/// Bytes at the end of a padding: where it begins, and which block had the newest padding before.
const PADDING: usize = size_of::<[u32; 2]>();

/// Bytes of a block: one at least, so that no two begin at one place.
fn bytes(layout: Layout) -> usize {
    layout.size().max(1)
}

/// Why a stack does not free to a marker. Nothing was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadMarker {
    /// It was freed before, with an earlier one.
    Freed {
        /// Where it was: bytes from the start.
        at: usize,
    },
    /// It is another stack's.
    Foreign {
        /// The address of that stack's memory.
        address: usize,
    },
}

impl fmt::Display for BadMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Freed { at } => write!(f, "the marker at byte {at} was freed before, with an earlier one"),
            Self::Foreign { address } => {
                write!(f, "the marker is of the stack at {address:#x}, not of this one")
            }
        }
    }
}
impl core::error::Error for BadMarker {}

impl<A: Area> StackAlloc<A> {
    /// A stack in `area`, empty.
    ///
    /// # Errors
    /// [`PoolError::Positions`] for more than 2 GiB.
    pub fn new(area: A) -> Result<Self, PoolError> {
        let memory = Raw(area);
        let bytes = memory.size();
        if bytes > MOST {
            return Err(PoolError::Positions { bytes, most: MOST });
        }
        Ok(Self { memory, head: 0, newest: NONE, padded: NONE, marks: 0 })
    }

    /// Where `layout` begins and ends behind `head`.
    #[inline]
    fn place(&self, head: usize, layout: Layout) -> Result<(usize, usize), Refused> {
        let no_room = Refused::NoRoom { bytes: layout.size(), align: layout.align() };
        let block = Layout::from_size_align(bytes(layout), layout.align()).map_err(|_| no_room)?;
        place(self.memory.address(), self.memory.size(), head, block).ok_or(no_room)
    }
    /// Memory for `layout`. Its bytes are as they were left. A block of no bytes takes one.
    ///
    /// # Errors
    /// [`Refused::NoRoom`].
    #[inline]
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let (mut at, mut end) = self.place(self.head, layout)?;
        if at > self.head {
            (at, end) = self.place(self.head + PADDING, layout)?;
            self.memory.store(at - PADDING, self.head as u32);
            self.memory.store(at - PADDING + 4, self.padded);
            self.padded = at as u32;
        }
        self.head = end;
        Ok(self.memory.at(at))
    }
    /// Takes a block back. If it is the topmost, its bytes and its padding can be had again; else they wait for a marker, or a
    /// [reset](Self::reset).
    ///
    /// # Errors
    /// [`BadFree::Foreign`] for an address outside of the memory, [`BadFree::NotOut`] for one above the head. A block that was
    /// freed before, and lies below the head again, is not told.
    ///
    /// # Safety
    /// It was allocated from here with that layout, was not freed since, alone or by a marker, and nobody uses it any more.
    pub unsafe fn free(&mut self, memory: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        let at = self.position(memory, layout)?;
        if at + bytes(layout) == self.head {
            self.head = at;
            if at == self.padded as usize {
                self.head = self.memory.load(at - PADDING) as usize;
                self.padded = self.memory.load(at - PADDING + 4);
            }
        }
        Ok(())
    }
    /// Makes the topmost block larger or smaller where it lies, and any other one smaller, which saves nothing: it ends where it
    /// did, and so is not known for the topmost later. `false`: it cannot.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    ///
    /// # Safety
    /// It was allocated from here with that layout and not freed since; after a success it has `bytes` bytes.
    pub unsafe fn resize(&mut self, memory: NonNull<u8>, old: Layout, bytes: usize) -> Result<bool, BadFree> {
        let at = self.position(memory, old)?;
        if at + self::bytes(old) != self.head {
            return Ok(bytes <= old.size());
        }
        let end = at.checked_add(bytes.max(1)).filter(|end| *end <= self.memory.size());
        self.head = end.unwrap_or(self.head);
        Ok(end.is_some())
    }
    /// Where a block lies that may be out.
    fn position(&self, memory: NonNull<u8>, layout: Layout) -> Result<usize, BadFree> {
        let address = memory.addr().get();
        match address.checked_sub(self.memory.address()).filter(|at| *at <= self.memory.size()) {
            None => Err(BadFree::Foreign { address }),
            Some(at) if bytes(layout) > self.head.saturating_sub(at) => Err(BadFree::NotOut { address }),
            Some(at) => Ok(at),
        }
    }

    /// The place where the stack is now, to free to.
    ///
    /// # Errors
    /// [`Refused::NoRoom`].
    pub fn mark(&mut self) -> Result<Marker, Refused> {
        let (head, number) = (self.head, self.marks);
        let (record, end) = self.place(head, RECORD)?;
        let words = [self.newest, number as u32, (number >> 32) as u32, head as u32, self.padded];
        for (i, word) in words.into_iter().enumerate() {
            self.memory.store(record + 4 * i, word);
        }
        self.marks += 1;
        self.head = end;
        self.newest = record as u32;
        Ok(Marker { stack: self.memory.address(), record: record as u32, number })
    }
    /// Frees the marker, and all that came after it: whoever still has a block of these must not use it.
    ///
    /// # Errors
    /// It is of another stack, or was freed with an earlier one. Cost then: a load for each marker above its place.
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
        self.padded = self.memory.load(record + 16);
        Ok(())
    }
    /// The number in a record.
    fn number(&self, record: usize) -> u64 {
        u64::from(self.memory.peek(record + 8)) << 32 | u64::from(self.memory.peek(record + 4))
    }
    /// All is free again, markers too: whoever still has a block must not use it.
    pub fn reset(&mut self) {
        self.head = 0;
        self.newest = NONE;
        self.padded = NONE;
    }
    /// Bytes up to the head, padding and markers included.
    pub fn used(&self) -> usize {
        self.head
    }
    /// Bytes that there are.
    pub fn capacity(&self) -> usize {
        self.memory.size()
    }
}

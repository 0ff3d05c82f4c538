//! The heap of one free list, with boundary tags: what `malloc` is in the textbooks.
//!
//! ```text
//!          block of 48 bytes, used        block of 32 bytes, free
//!  ... |tag|payload, 40 bytes     |tag|tag|next|prev|   unused |tag| ...
//!      ^12 ^16                                                     16 bytes apart, payloads at multiples of 16
//! ```
//!
//! The tag before and behind each block is its size and whether it is used, so both neighbours of a freed block are found
//! by arithmetic and are made one with it at once. Free blocks are in one doubly linked list, its links in the blocks.
//!
//! - Allocate: a search of the list; which block is taken is the [`Fit`]. Up to as many steps as there are free blocks.
//! - Free: O(1) with [`Order::Lifo`]; with [`Order::Address`] a search for the place, unless a neighbour is free.
//! - Waste: 8 bytes of tags and the rounding up to 16; and between blocks, whatever the pattern of use leaves there.
//!
//! Invariants: no two neighbours are free; a block is free iff it is in the list; both tags of a block say the same.
//!
//! Sources: Knuth, The Art of Computer Programming 1, section 2.5 (1968), for boundary tags and the policies; Wilson,
//! Johnstone, Neely and Boles, "Dynamic Storage Allocation: A Survey and Critical Review" (1995), which finds address-ordered
//! first fit and best fit the good ones. Ships as the malloc of K&R and, with segregated lists, as dlmalloc.
//!
//! A step is a free block that a search looks at.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{Memory, NONE, Piece, Unfit};
use core::alloc::Layout;
use core::ops::Range;

/// Which free block serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The first of the list that is large enough.
    First,
    /// The smallest that is large enough; the first of these.
    Best,
    /// The first one from where the last search ended, round the list.
    Next,
}

/// Where a freed block goes in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To the front.
    Lifo,
    /// To its place by address.
    Address,
}

/// Blocks are multiples of it, and payloads lie at multiples of it.
const UNIT: usize = 16;
/// Bytes of a tag.
const TAG: usize = 4;
/// Where the first block begins, so that its payload lies at 16. In front is the tag of nobody.
const FIRST: usize = UNIT - TAG;
/// In a tag.
const USED: u32 = 1;

/// A free-list heap. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::{Allocator, Heap};
/// use uslab_lab::allocators::heap::{Fit, Order};
///
/// let mut heap = Heap::new(1024, Fit::First, Order::Address)?;
/// let block = heap.alloc(Layout::new::<[u8; 100]>()).ok_or("no room")?;
/// assert_eq!(heap.range(&block).len(), 104); // 112 with its tags
/// heap.free(block);
/// assert_eq!(heap.holes().count, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Heap {
    memory: Memory,
    fit: Fit,
    order: Order,
    /// The first free block.
    head: u32,
    /// Where a search for the next fit begins; `NONE` is the head.
    rover: u32,
    work: Work,
}

/// A place for a request: in the free block `at`, behind a gap that its alignment asks for.
#[derive(Clone, Copy)]
struct Found {
    at: usize,
    gap: usize,
}

impl Heap {
    /// A heap of so many bytes, of which 16 are its ends.
    ///
    /// # Errors
    /// Fewer than 32 bytes, more than [`Memory::MOST`], or no multiple of 16.
    pub fn new(bytes: usize, fit: Fit, order: Order) -> Result<Self, Unfit> {
        let memory = Memory::new(bytes, 2 * UNIT, UNIT)?;
        let mut heap = Self { memory, fit, order, head: NONE, rover: NONE, work: Work::default() };
        let (end, size) = (bytes - TAG, bytes - UNIT);
        // Of size nothing, and used: no block merges beyond the ends.
        heap.memory.store(FIRST - TAG, USED);
        heap.memory.store(end, USED);
        heap.set_tags(FIRST, size, false);
        heap.link(FIRST, NONE, NONE);
        Ok(heap)
    }

    fn set_tags(&mut self, at: usize, size: usize, used: bool) {
        let tag = size as u32 | u32::from(used);
        self.memory.store(at, tag);
        self.memory.store(at + size - TAG, tag);
    }
    /// Links the free block between two others.
    fn link(&mut self, at: usize, prev: u32, next: u32) {
        self.memory.store(at + TAG, next);
        self.memory.store(at + TAG + 4, prev);
        if next != NONE {
            self.memory.store(next as usize + TAG + 4, at as u32);
        }
        match prev {
            NONE => self.head = at as u32,
            prev => self.memory.store(prev as usize + TAG, at as u32),
        }
    }
    /// What comes before and after a free block in the list.
    fn around(&mut self, at: usize) -> (u32, u32) {
        (self.memory.load(at + TAG + 4), self.memory.load(at + TAG))
    }
    fn unlink(&mut self, at: usize) {
        let (prev, next) = self.around(at);
        if next != NONE {
            self.memory.store(next as usize + TAG + 4, prev);
        }
        match prev {
            NONE => self.head = next,
            prev => self.memory.store(prev as usize + TAG, next),
        }
        if self.rover == at as u32 {
            self.rover = next;
        }
    }
    /// Puts the free block `new` in the list in place of `old`.
    fn replace(&mut self, old: usize, new: usize) {
        let (prev, next) = self.around(old);
        self.link(new, prev, next);
        if self.rover == old as u32 {
            self.rover = new as u32;
        }
    }

    /// Where a block of `need` bytes would lie in the free block `at`, if it is large enough.
    fn place(at: usize, size: usize, need: usize, align: usize) -> Option<Found> {
        let payload = at + TAG;
        let gap = payload.next_multiple_of(align) - payload;
        (gap + need <= size).then_some(Found { at, gap })
    }

    fn search(&mut self, need: usize, align: usize) -> Option<Found> {
        let first = match self.fit {
            Fit::Next if self.rover != NONE => self.rover,
            _ => self.head,
        };
        let (mut at, mut best, mut steps) = (first, None, 0);
        while at != NONE {
            steps += 1;
            let size = self.memory.load(at as usize) as usize;
            if let Some(found) = Self::place(at as usize, size, need, align) {
                if self.fit != Fit::Best {
                    best = Some((size, found));
                    break;
                }
                if best.is_none_or(|(smallest, _)| size < smallest) {
                    best = Some((size, found));
                }
            }
            at = self.memory.load(at as usize + TAG);
            if self.fit == Fit::Next {
                if at == NONE {
                    at = self.head;
                }
                if at == first {
                    break;
                }
            }
        }
        self.work.took(steps);
        best.map(|(_, found)| found)
    }

    /// Cuts `need` bytes out of the free block; what is left before and behind stays free.
    fn cut(&mut self, Found { at, gap }: Found, need: usize) -> usize {
        let size = self.memory.load(at) as usize;
        let (used, behind, left) = (at + gap, at + gap + need, size - gap - need);
        if left > 0 {
            self.set_tags(behind, left, false);
            self.work.splits += 1;
        }
        if gap > 0 {
            self.set_tags(at, gap, false);
            self.work.splits += 1;
        }
        match (gap > 0, left > 0) {
            (false, false) => self.unlink(at),
            (false, true) => self.replace(at, behind),
            (true, false) => {}
            (true, true) => {
                let next = self.memory.load(at + TAG);
                self.link(behind, at as u32, next);
            }
        }
        if self.fit == Fit::Next {
            self.rover = match (left > 0, gap > 0) {
                (true, _) => behind as u32,
                (false, true) => self.memory.load(at + TAG),
                // `unlink` moved it on, if it was here.
                (false, false) => self.rover,
            };
        }
        self.set_tags(used, need, true);
        used
    }

    /// Makes a block free that is not in the list, at its place by address.
    fn insert_by_address(&mut self, at: usize) {
        let (mut prev, mut next, mut steps) = (NONE, self.head, 0);
        while next != NONE && (next as usize) < at {
            steps += 1;
            (prev, next) = (next, self.memory.load(next as usize + TAG));
        }
        self.work.took(steps);
        self.link(at, prev, next);
    }

    fn release(&mut self, at: usize) {
        let size = (self.memory.load(at) & !USED) as usize;
        let (before, behind) = (self.memory.load(at - TAG), self.memory.load(at + size));
        let (free_before, free_behind) = (before & USED == 0, behind & USED == 0);
        let start = if free_before { at - before as usize } else { at };
        let end = if free_behind { at + size + behind as usize } else { at + size };
        self.work.merges += u64::from(free_before) + u64::from(free_behind);
        match (self.order, free_before, free_behind) {
            (Order::Lifo, ..) => {
                if free_before {
                    self.unlink(start);
                }
                if free_behind {
                    self.unlink(at + size);
                }
                let head = self.head;
                self.link(at.min(start), NONE, head);
            }
            // The neighbour's place in the list is the place.
            (Order::Address, true, true) => self.unlink(at + size),
            (Order::Address, true, false) => {}
            (Order::Address, false, true) => self.replace(at + size, at),
            (Order::Address, false, false) => self.insert_by_address(at),
        }
        self.set_tags(start, end - start, false);
    }

    /// All blocks as they lie: position, size, used.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, bool)> {
        let mut at = FIRST;
        core::iter::from_fn(move || {
            let tag = self.memory.peek(at);
            let size = (tag & !USED) as usize;
            if size == 0 {
                return None;
            }
            let block = (at, size, tag & USED != 0);
            at += size;
            Some(block)
        })
    }
}

/// Bytes of a block for `size` bytes, its tags included; `None` if no memory is so large.
fn need(size: usize) -> Option<usize> {
    let need = size.checked_add(2 * TAG)?.checked_next_multiple_of(UNIT)?;
    (need <= Memory::MOST).then_some(need)
}

impl Allocator for Heap {
    type Block = Piece;
    const NAME: &'static str = "free list";

    fn alloc(&mut self, layout: Layout) -> Option<Piece> {
        let found = match need(layout.size()).filter(|_| Memory::aligns(layout)) {
            Some(need) => self.search(need, layout.align()).map(|found| self.cut(found, need)),
            None => None,
        };
        let block = found.map(|at| self.memory.piece(at + TAG, layout.size()));
        self.work.served(block)
    }
    fn free(&mut self, block: Piece) {
        let at = self.memory.own(&block) - TAG;
        self.work.frees += 1;
        self.release(at);
    }
    fn range(&self, block: &Piece) -> Range<usize> {
        let tag = self.memory.peek(block.at() - TAG);
        block.at()..block.at() + (tag & !USED) as usize - 2 * TAG
    }
    fn bytes<'b>(&'b mut self, block: &'b mut Piece) -> &'b mut [u8] {
        self.memory.bytes(block)
    }
    fn capacity(&self) -> usize {
        self.memory.len() - UNIT
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        self.blocks().filter(|(.., used)| !used).for_each(|(_, size, _)| holes.add(size - 2 * TAG));
        holes
    }
    fn work(&self) -> Work {
        self.memory.work(self.work)
    }
    fn beside(&self) -> usize {
        size_of_val(&self.head) + size_of_val(&self.rover)
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let fits = |need: usize| {
            let mut free = self.blocks().filter(|(.., used)| !used);
            free.any(|(at, size, _)| Self::place(at, size, need, layout.align()).is_some())
        };
        Some(Memory::aligns(layout) && need(layout.size()).is_some_and(fits))
    }
    fn check(&self) -> Result<(), String> {
        let (mut end, mut free, mut was_free) = (FIRST, vec![], false);
        for (at, size, used) in self.blocks() {
            if !size.is_multiple_of(UNIT) || self.memory.peek(at) != self.memory.peek(at + size - TAG) {
                return Err(format!("the tags of the block at {at} differ"));
            }
            if !used && was_free {
                return Err(format!("the free block at {at} was not merged with the one before"));
            }
            if !used {
                free.push(at as u32);
            }
            (end, was_free) = (at + size, !used);
        }
        if end != self.memory.len() - TAG {
            return Err(format!("the blocks end at {end}"));
        }
        let (mut listed, mut at, mut prev) = (vec![], self.head, NONE);
        while at != NONE && listed.len() <= free.len() {
            if self.memory.peek(at as usize + TAG + 4) != prev {
                return Err(format!("the free block at {at} has another one before it in the list"));
            }
            listed.push(at);
            (prev, at) = (at, self.memory.peek(at as usize + TAG));
        }
        if self.order == Order::Lifo {
            listed.sort_unstable();
        }
        if listed != free {
            return Err(format!("the list has {listed:?}, free are {free:?}"));
        }
        if self.rover != NONE && !free.contains(&self.rover) {
            return Err(format!("the search would begin at {}, which is not free", self.rover));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

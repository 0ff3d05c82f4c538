//! A heap with one free list and boundary tags, like the textbook `malloc`; it uses best fit by default.
//!
//! ```text
//!          block of 48 bytes, used        block of 32 bytes, free
//!  ... |tag|payload, 40 bytes     |tag|tag|next|prev|   unused |tag| ...
//!      ^12 ^16                                                     16 bytes apart, payloads at multiples of 16
//! ```
//!
//! The tags before and after each block contain the block's size and a flag that marks it as used. A freed block
//! finds both neighbours by arithmetic and merges with them immediately. Free blocks form one doubly linked list,
//! whose links are stored in the blocks.
//!
//! - An allocation searches the free list, and [`Fit`] decides which block it takes. In the worst case, the search
//!   visits every free block: O(n).
//! - A free takes O(1) with [`Order::Lifo`]. With [`Order::Address`], a free searches for the block's position in the
//!   list, unless a neighbouring block is free.
//! - The overhead is 8 bytes of tags per block, rounding up to 16 bytes, and the gaps between blocks.
//!
//! [`Tlsf`](super::Tlsf) allocates and frees in O(1), and wastes slightly more memory between blocks. Outside its
//! memory, the heap stores only three numbers.
//!
//! Invariants: no two neighbouring blocks are free; a block is free if and only if it is in the list; both tags of a
//! block are equal.
//!
//! Source for boundary tags and the policies: Knuth, The Art of Computer Programming 1, section 2.5 (1968). Wilson,
//! Johnstone, Neely and Boles, "Dynamic Storage Allocation: A Survey and Critical Review" (1995), which recommends
//! address-ordered first fit and best fit. Users: the malloc of K&R and, with segregated lists, dlmalloc.

use crate::area::Area;
use crate::blocks::{NONE, UNIT, blocks_by_pointer, ends, gap, need};
use crate::error::{BadFree, PoolError, Refused};
use crate::usage::Usage;
use crate::words::{Event, RawWords, Span, Words};
use alloc::string::String;
use alloc::{format, vec};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Decides which free block serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Takes the first block in the list that is large enough.
    First,
    /// Takes the smallest block that is large enough; of equal blocks, the first.
    Best,
    /// Takes the first block that is large enough, starting where the last search ended, and wrapping around.
    Next,
    /// Takes the largest block; of equal blocks, the first.
    Worst,
}

/// Where a freed block is inserted into the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A freed block becomes the first block of the list.
    Lifo,
    /// A freed block is inserted in the order of addresses.
    Address,
}

const TAG: usize = 4;
/// Flag in a tag that marks the block as used.
const USED_BIT: u32 = 1;

/// A free-list heap in memory of the caller's choice. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{BadFree, BestFit, StackArea};
///
/// let mut memory = StackArea::<1024>::new();
/// let mut heap = BestFit::new(memory.lend())?;
/// let block = heap.alloc(Layout::new::<[u8; 100]>())?;
/// // SAFETY: allocated above; the second free is refused.
/// unsafe {
///     assert_eq!(heap.allocation_size(block), Ok(104)); // 112 with its tags
///     heap.free(block)?;
///     assert_eq!(heap.free(block), Err(BadFree::NotAllocated { address: block.addr().get() }));
/// }
/// assert_eq!(heap.free_blocks().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BestFit<A> {
    pub(crate) blocks: Blocks<RawWords<A>>,
    usage: Usage,
}

impl<A: Area> BestFit<A> {
    /// Makes a heap in `area` with best fit, and free blocks in address order. The heap does not use the memory before
    /// the first or after the last multiple of 16 in the area. The heap uses 16 bytes to mark its ends. Cost: the call
    /// writes only a few words.
    ///
    /// # Errors
    /// Returns [`PoolError::NoRoom`] if the area has fewer than 32 bytes, and [`PoolError::Positions`] if it has more
    /// than 2 GiB.
    pub fn new(area: A) -> Result<Self, PoolError> {
        Self::with_policy(area, Fit::Best, Order::Address)
    }
    /// Makes a heap with the given policy and order of free blocks. According to the literature, first fit in address
    /// order searches less than best fit, and wastes hardly more memory.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn with_policy(area: A, fit: Fit, order: Order) -> Result<Self, PoolError> {
        Ok(Self { blocks: Blocks::new(RawWords(area), fit, order)?, usage: Usage::default() })
    }
}

blocks_by_pointer!(BestFit);

/// The blocks of the heap, addressed by position; the code is safe, and generic over the access to the memory's words.
#[derive(Debug)]
pub struct Blocks<M> {
    memory: M,
    fit: Fit,
    order: Order,
    /// The field `first` is the position of the first block, whose payload is at a multiple of [`UNIT`]. The field
    /// `end` is the position of the tag after the last block.
    first: usize,
    end: usize,
    head: u32,
    /// The block at which a next-fit search begins; `NONE` means the head of the list.
    rover: u32,
}

/// The free block for a request, and the gap before the payload that the alignment requires.
#[derive(Clone, Copy)]
struct Placement {
    at: usize,
    gap: usize,
}

impl<M: Words> Blocks<M> {
    /// Makes a heap in which all of `memory` is free.
    ///
    /// # Errors
    /// Returns the errors of [`BestFit::new`].
    pub fn new(memory: M, fit: Fit, order: Order) -> Result<Self, PoolError> {
        let (start, end) = ends(&memory)?;
        let (first, end) = (start + UNIT - TAG, end - TAG);
        let mut blocks = Self { memory, fit, order, first, end, head: NONE, rover: NONE };
        // The end blocks have size 0 and are used, so that no block merges beyond the ends.
        blocks.memory.store(first - TAG, USED_BIT);
        blocks.memory.store(end, USED_BIT);
        blocks.set_boundary_tags(first, end - first, false);
        blocks.link(first, NONE, NONE);
        Ok(blocks)
    }

    /// Returns the heap's memory, for reading its words.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }
    /// Returns the heap's memory, for writing to blocks.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }
    /// Returns the position and the size of each free block, in the order of the list.
    pub fn list(&self) -> impl Iterator<Item = (usize, usize)> {
        let block = |position: u32| {
            (position != NONE).then(|| (position as usize, self.memory.peek(position as usize) as usize))
        };
        core::iter::successors(block(self.head), move |(position, _)| block(self.memory.peek(position + TAG)))
    }
    /// Number of bytes that the heap stores outside of its memory.
    pub fn control_bytes(&self) -> usize {
        size_of_val(&self.head) + size_of_val(&self.rover)
    }

    fn set_boundary_tags(&mut self, position: usize, size: usize, used: bool) {
        let tag = size as u32 | u32::from(used);
        self.memory.store(position, tag);
        self.memory.store(position + size - TAG, tag);
    }
    fn link(&mut self, position: usize, prev: u32, next: u32) {
        self.memory.store(position + TAG, next);
        self.memory.store(position + TAG + 4, prev);
        if next != NONE {
            self.memory.store(next as usize + TAG + 4, position as u32);
        }
        match prev {
            NONE => self.head = position as u32,
            prev => self.memory.store(prev as usize + TAG, position as u32),
        }
    }
    fn neighbours(&mut self, position: usize) -> (u32, u32) {
        (self.memory.load(position + TAG + 4), self.memory.load(position + TAG))
    }
    fn unlink(&mut self, position: usize) {
        let (prev, next) = self.neighbours(position);
        if next != NONE {
            self.memory.store(next as usize + TAG + 4, prev);
        }
        match prev {
            NONE => self.head = next,
            prev => self.memory.store(prev as usize + TAG, next),
        }
        if self.rover == position as u32 {
            self.rover = next;
        }
    }
    fn replace(&mut self, old: usize, new: usize) {
        let (prev, next) = self.neighbours(old);
        self.link(new, prev, next);
        if self.rover == old as u32 {
            self.rover = new as u32;
        }
    }

    /// Finds room for a block of `need` bytes in the free block at `position`. Returns `None` if the free block is too
    /// small.
    fn place(&self, position: usize, size: usize, need: usize, align: usize) -> Option<Placement> {
        let gap = gap(&self.memory, position + TAG, align);
        (gap <= size && need <= size - gap).then_some(Placement { at: position, gap })
    }

    fn search(&mut self, need: usize, align: usize) -> Option<Placement> {
        let first = match self.fit {
            Fit::Next if self.rover != NONE => self.rover,
            _ => self.head,
        };
        let (mut position, mut best, mut steps) = (first, None, 0);
        while position != NONE {
            steps += 1;
            let size = self.memory.load(position as usize) as usize;
            self.memory.record(Event::Inspected { at: position as usize, bytes: size });
            if let Some(placement) = self.place(position as usize, size, need, align) {
                let is_better = |best| if self.fit == Fit::Worst { size > best } else { size < best };
                if best.is_none_or(|(best, _)| is_better(best)) {
                    best = Some((size, placement));
                }
                if matches!(self.fit, Fit::First | Fit::Next) {
                    break;
                }
            }
            position = self.memory.load(position as usize + TAG);
            if self.fit == Fit::Next {
                if position == NONE {
                    position = self.head;
                }
                if position == first {
                    break;
                }
            }
        }
        self.memory.record(Event::Searched(steps));
        best.map(|(_, placement)| placement)
    }

    /// Allocates a block of memory. Returns the position of the new block's payload.
    pub fn alloc_block(&mut self, layout: Layout) -> Option<usize> {
        let need = need(layout.size(), 2 * TAG)?;
        let placement = self.search(need, layout.align())?;
        Some(self.split(placement, need) + TAG)
    }

    /// Takes `need` bytes from a free block. The rest of the block before and after these bytes stays free.
    fn split(&mut self, Placement { at: position, gap }: Placement, need: usize) -> usize {
        let size = self.memory.load(position) as usize;
        let (allocated, rest_position, rest) = (position + gap, position + gap + need, size - gap - need);
        if rest > 0 {
            self.set_boundary_tags(rest_position, rest, false);
            self.memory.record(Event::Split { at: rest_position, bytes: rest });
        }
        if gap > 0 {
            self.set_boundary_tags(position, gap, false);
            self.memory.record(Event::Split { at: position, bytes: gap });
        }
        // After an exact fit, the next search begins at the next block in the list.
        let is_exact = self.fit == Fit::Next && size == need;
        let follows = if is_exact { self.memory.load(position + TAG) } else { NONE };
        match (gap > 0, rest > 0) {
            (false, false) => self.unlink(position),
            (false, true) => self.replace(position, rest_position),
            (true, false) => {}
            (true, true) => {
                let next = self.memory.load(position + TAG);
                self.link(rest_position, position as u32, next);
            }
        }
        if self.fit == Fit::Next {
            self.rover = match (rest > 0, gap > 0) {
                (true, _) => rest_position as u32,
                (false, true) => self.memory.load(position + TAG),
                (false, false) => follows,
            };
        }
        self.set_boundary_tags(allocated, need, true);
        allocated
    }

    /// Inserts a free block into the list; its neighbours must be in use.
    fn insert(&mut self, position: usize) {
        match self.order {
            Order::Lifo => {
                let head = self.head;
                self.link(position, NONE, head);
            }
            Order::Address => {
                let (mut prev, mut next, mut steps) = (NONE, self.head, 0);
                while next != NONE && (next as usize) < position {
                    steps += 1;
                    (prev, next) = (next, self.memory.load(next as usize + TAG));
                }
                self.memory.record(Event::Searched(steps));
                self.link(position, prev, next);
            }
        }
    }

    /// Frees the block whose payload is at `payload`.
    pub fn free_block(&mut self, payload: usize) {
        let position = payload - TAG;
        let size = (self.memory.load(position) & !USED_BIT) as usize;
        let (previous_tag, next_tag) = (self.memory.load(position - TAG), self.memory.load(position + size));
        let (free_before, free_behind) = (previous_tag & USED_BIT == 0, next_tag & USED_BIT == 0);
        let start = if free_before { position - previous_tag as usize } else { position };
        let end = if free_behind { position + size + next_tag as usize } else { position + size };
        if free_before {
            self.memory.record(Event::Merged { at: start, bytes: position - start });
        }
        if free_behind {
            self.memory.record(Event::Merged { at: position + size, bytes: end - position - size });
        }
        match (self.order, free_before, free_behind) {
            (Order::Lifo, ..) => {
                if free_before {
                    self.unlink(start);
                }
                if free_behind {
                    self.unlink(position + size);
                }
                self.insert(start);
            }
            // The merged block keeps the neighbour's place in the list.
            (Order::Address, true, true) => self.unlink(position + size),
            (Order::Address, true, false) => {}
            (Order::Address, false, true) => self.replace(position + size, position),
            (Order::Address, false, false) => self.insert(position),
        }
        self.set_boundary_tags(start, end - start, false);
    }
    /// Frees the block. A tag that is merged into the preceding free block is also marked free, so that a second free
    /// is detected.
    fn free_checked(&mut self, payload: usize) {
        let tag = self.memory.load(payload - TAG);
        self.memory.store(payload - TAG, tag & !USED_BIT);
        self.free_block(payload);
    }
    /// Returns `true` if the tags show that a used block has its payload at `payload`.
    fn is_allocated(&self, payload: usize) -> bool {
        let unit = payload.wrapping_sub(self.first + TAG);
        if !unit.is_multiple_of(UNIT) || unit >= self.end - self.first {
            return false;
        }
        let position = payload - TAG;
        let tag = self.memory.peek(position);
        let size = (tag & !USED_BIT) as usize;
        tag & USED_BIT != 0
            && size > 0
            && size.is_multiple_of(UNIT)
            && size <= self.end - position
            && self.memory.peek(position + size - TAG) == tag
    }
    /// Returns the size of a block in bytes, without its tags.
    pub fn size(&self, payload: usize) -> usize {
        (self.memory.peek(payload - TAG) & !USED_BIT) as usize - 2 * TAG
    }
    /// Resizes a used block in place. Returns `false` if the block must grow and the next block is in use or too small.
    pub fn resize(&mut self, payload: usize, bytes: usize) -> bool {
        let position = payload - TAG;
        let size = (self.memory.load(position) & !USED_BIT) as usize;
        let next_tag = self.memory.load(position + size);
        let extra = if next_tag & USED_BIT == 0 { next_tag as usize } else { 0 };
        let Some(need) = need(bytes, 2 * TAG).filter(|need| *need <= size + extra) else { return false };
        if need == size {
            return true;
        }
        let rest_size = size + extra - need;
        match (extra > 0, rest_size > 0) {
            (true, true) => self.replace(position + size, position + need),
            (true, false) => self.unlink(position + size),
            (false, _) => self.insert(position + need),
        }
        if extra > 0 {
            self.memory.record(Event::Merged { at: position + size, bytes: extra });
        }
        if rest_size > 0 {
            self.memory.record(Event::Split { at: position + need, bytes: rest_size });
            self.set_boundary_tags(position + need, rest_size, false);
        }
        self.set_boundary_tags(position, need, true);
        true
    }

    fn blocks(&self) -> impl Iterator<Item = (usize, usize, bool)> {
        let mut position = self.first;
        core::iter::from_fn(move || {
            let tag = self.memory.peek(position);
            let size = (tag & !USED_BIT) as usize;
            if size == 0 {
                return None;
            }
            let block = (position, size, tag & USED_BIT != 0);
            position += size;
            Some(block)
        })
    }
    /// Returns the size of each free block in bytes, in address order, not counting the tags.
    pub fn holes(&self) -> impl Iterator<Item = usize> {
        self.blocks().filter(|(.., used)| !used).map(|(_, size, _)| size - 2 * TAG)
    }
    /// Returns `true` if a request for `layout` would be served. The search visits all memory instead of the free list.
    pub fn room(&self, layout: Layout) -> bool {
        need(layout.size(), 2 * TAG).is_some_and(|need| {
            let mut free = self.blocks().filter(|(.., used)| !used);
            free.any(|(position, size, _)| self.place(position, size, need, layout.align()).is_some())
        })
    }

    /// Checks all tags and the free list.
    ///
    /// # Errors
    /// Returns the first inconsistency and its position as the error.
    pub fn check(&self) -> Result<(), String> {
        let (mut end, mut free, mut previous_is_free) = (self.first, vec![], false);
        for (position, size, used) in self.blocks() {
            if !size.is_multiple_of(UNIT)
                || self.memory.peek(position) != self.memory.peek(position + size - TAG)
            {
                return Err(format!("the tags of the block at {position} differ"));
            }
            if !used && previous_is_free {
                return Err(format!("the free block at {position} was not merged with the previous block"));
            }
            if !used {
                free.push(position as u32);
            }
            (end, previous_is_free) = (position + size, !used);
        }
        if end != self.end {
            return Err(format!("the last block ends at {end} instead of the end of the memory"));
        }
        let (mut list, mut position, mut prev) = (vec![], self.head, NONE);
        while position != NONE && list.len() <= free.len() {
            if self.memory.peek(position as usize + TAG + 4) != prev {
                return Err(format!("the links of the free block at {position} disagree"));
            }
            list.push(position);
            (prev, position) = (position, self.memory.peek(position as usize + TAG));
        }
        if self.order == Order::Lifo {
            list.sort_unstable();
        }
        if list != free {
            return Err(format!("the list contains {list:?}, but the free blocks are {free:?}"));
        }
        if self.rover != NONE && !free.contains(&self.rover) {
            return Err(format!("the next search would start at block {}, which is not free", self.rover));
        }
        Ok(())
    }
}

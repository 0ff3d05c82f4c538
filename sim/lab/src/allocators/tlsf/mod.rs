//! TLSF, two-level segregated fit: any size in bounded time.
//!
//! ```text
//!            fl bitmap   one bit a doubling, set iff its sl bitmap is not 0
//!  1024..      1  ──> sl bitmap   0 1 0 0 ...   one bit a step, set iff its list is not empty
//!   512..      0                    │
//!   256..      1                    └─> free block <-> free block
//! ```
//!
//! Free blocks are in lists by size [class](classes). A request begins at the first class all of whose blocks are large
//! enough; the first class from there on that has a block is found by two bit scans. What the block has too much is cut off
//! and goes to its own list; a freed block is made one with its free neighbours at once.
//!
//! - Allocate and free: O(1), whatever the heap looks like. No list is ever searched.
//! - Waste: a header of 4 bytes and the rounding up to 16. The rounding up to a class takes no memory, it passes blocks over:
//!   a request can be refused although a block of its own class would hold it (*good* fit, not best fit).
//!
//! The header is one number: the size, whether the block is free, and whether the one before is free. Where a free
//! neighbour before begins stands in that neighbour's last 4 bytes, which are its own to use, so a block in use pays 4 bytes.
//! That is what the reference implementation (Conte, `tlsf`) pays on 32-bit machines; on 64-bit machines it pays 8. Here links
//! are positions of 32 bits. What lies beside the memory, list heads and bitmaps, is [`control_bytes`](Tlsf::control_bytes):
//! 4 bytes a class, where Conte's pointers take 8.
//!
//! Invariants: no two neighbours are free; a free block is in the list of its class; a bit is set iff its list, or its bitmap,
//! is not empty.
//!
//! Sources: Masmano, Ripoll, Crespo and Real, "TLSF: A New Dynamic Memory Allocator for Real-Time Systems" (2004). Ships as
//! Unity's dynamic heap, in the Vulkan Memory Allocator, as MorphOS's system allocator.
//!
//! A step is a word of a bitmap that is looked at, or with [`Search::Scan`] the head of a list: with the bitmaps three at
//! most.

pub mod classes;

use super::allocator::{Allocator, Holes, Work};
use super::memory::{Memory, NONE, Piece, Unfit};
use classes::{Class, Classes};
use core::alloc::Layout;
use core::ops::Range;

/// How a class with a free block is found. Both find the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// By bit scans in the two bitmaps.
    Bitmaps,
    /// By looking at the head of one list after the other: what segregated lists cost without bitmaps.
    Scan,
}

/// Blocks are multiples of it, and payloads lie at multiples of it.
const UNIT: usize = 16;
/// Bytes of a header.
const HEADER: usize = 4;
/// Where the first block begins, so that its payload lies at 16.
const FIRST: usize = UNIT - HEADER;
/// In a header: the block is free.
const FREE: u32 = 1;
/// In a header: the block before is free, and says in its last 4 bytes where it begins.
const FREE_BEFORE: u32 = 2;
const FLAGS: u32 = FREE | FREE_BEFORE;

/// A TLSF heap. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::{Allocator, Tlsf};
/// use uslab_lab::allocators::tlsf::Search;
///
/// let mut tlsf = Tlsf::new(1 << 20, 4, Search::Bitmaps)?;
/// let block = tlsf.alloc(Layout::new::<[u8; 1000]>()).ok_or("no room")?;
/// assert_eq!(tlsf.range(&block).len(), 1004); // 1008 with its header
/// assert!(tlsf.work().longest <= Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tlsf {
    memory: Memory,
    classes: Classes,
    search: Search,
    fl_bitmap: u32,
    sl_bitmaps: Vec<u32>,
    /// The first free block of each class, all steps of a doubling side by side.
    heads: Vec<u32>,
    work: Work,
}

impl Tlsf {
    /// A heap of so many bytes, of which 16 are its ends, with `2^sli` classes in a doubling.
    ///
    /// # Errors
    /// Fewer than 32 bytes, more than [`Memory::MOST`], no multiple of 16; `sli` not 2 to 5.
    pub fn new(bytes: usize, sli: u32, search: Search) -> Result<Self, Unfit> {
        if !(2..=5).contains(&sli) {
            return Err(Unfit::new("second-level bits", sli as usize, "2 to 5"));
        }
        let memory = Memory::new(bytes, 2 * UNIT, UNIT)?;
        let classes = Classes::new(sli, UNIT.ilog2());
        let doublings = classes.of(bytes).fl + 1;
        let mut tlsf = Self {
            memory,
            classes,
            search,
            fl_bitmap: 0,
            sl_bitmaps: vec![0; doublings],
            heads: vec![NONE; doublings * classes.steps()],
            work: Work::default(),
        };
        // The block behind the last one: of size nothing, and used.
        tlsf.memory.store(bytes - HEADER, 0);
        tlsf.make_free(FIRST, bytes - UNIT);
        Ok(tlsf)
    }

    /// Its size classes.
    pub fn classes(&self) -> Classes {
        self.classes
    }
    /// Bytes of list heads and bitmaps.
    pub fn control_bytes(&self) -> usize {
        size_of_val(&self.fl_bitmap)
            + size_of_val(self.sl_bitmaps.as_slice())
            + size_of_val(self.heads.as_slice())
    }

    fn head(&mut self, class: Class) -> &mut u32 {
        &mut self.heads[class.fl * self.classes.steps() + class.sl]
    }

    /// The first class with a free block, from `class` on.
    fn find(&mut self, class: Class) -> Option<Class> {
        let (found, steps) = match self.search {
            Search::Bitmaps => self.find_in_bitmaps(class),
            Search::Scan => self.find_in_heads(class),
        };
        self.work.took(steps);
        found
    }

    fn find_in_bitmaps(&self, class: Class) -> (Option<Class>, u64) {
        let Some(bitmap) = self.sl_bitmaps.get(class.fl) else { return (None, 0) };
        let steps = bitmap & (!0 << class.sl);
        if steps != 0 {
            return (Some(Class { fl: class.fl, sl: steps.trailing_zeros() as usize }), 1);
        }
        let doublings = self.fl_bitmap & (!0_u32).checked_shl(class.fl as u32 + 1).unwrap_or(0);
        if doublings == 0 {
            return (None, 2);
        }
        let fl = doublings.trailing_zeros() as usize;
        (Some(Class { fl, sl: self.sl_bitmaps[fl].trailing_zeros() as usize }), 3)
    }

    fn find_in_heads(&self, class: Class) -> (Option<Class>, u64) {
        let steps = self.classes.steps();
        let from = class.fl * steps + class.sl;
        let rest = self.heads.get(from..).unwrap_or_default();
        match rest.iter().position(|head| *head != NONE) {
            Some(n) => (Some(Class { fl: (from + n) / steps, sl: (from + n) % steps }), n as u64 + 1),
            None => (None, rest.len() as u64),
        }
    }

    fn header(&self, at: usize) -> (usize, u32) {
        let header = self.memory.peek(at);
        ((header & !FLAGS) as usize, header & FLAGS)
    }

    /// Makes a block free that has no free neighbour, and lists it.
    fn make_free(&mut self, at: usize, size: usize) {
        self.memory.store(at, size as u32 | FREE);
        self.memory.store(at + size - HEADER, at as u32);
        let behind = self.memory.load(at + size);
        self.memory.store(at + size, behind | FREE_BEFORE);
        let class = self.classes.of(size);
        let next = core::mem::replace(self.head(class), at as u32);
        self.memory.store(at + HEADER, next);
        self.memory.store(at + HEADER + 4, NONE);
        if next != NONE {
            self.memory.store(next as usize + HEADER + 4, at as u32);
        }
        self.fl_bitmap |= 1 << class.fl;
        self.sl_bitmaps[class.fl] |= 1 << class.sl;
    }

    /// Takes a free block out of its list. It and its neighbour's flag are the caller's to write.
    fn unlist(&mut self, at: usize, size: usize) {
        let (next, prev) = (self.memory.load(at + HEADER), self.memory.load(at + HEADER + 4));
        if next != NONE {
            self.memory.store(next as usize + HEADER + 4, prev);
        }
        if prev != NONE {
            self.memory.store(prev as usize + HEADER, next);
            return;
        }
        let class = self.classes.of(size);
        *self.head(class) = next;
        if next == NONE {
            self.sl_bitmaps[class.fl] &= !(1 << class.sl);
            if self.sl_bitmaps[class.fl] == 0 {
                self.fl_bitmap &= !(1 << class.fl);
            }
        }
    }

    /// The block that a request for `need` bytes at `align` gets, and the gap that its alignment leaves before it.
    fn take(&mut self, need: usize, align: usize) -> Option<(usize, usize)> {
        let class = self.first_class(need, align)?;
        let class = self.find(class)?;
        let at = *self.head(class) as usize;
        let payload = at + HEADER;
        Some((at, payload.next_multiple_of(align) - payload))
    }

    /// The first class all of whose blocks hold `need` bytes at `align`, wherever they begin.
    fn first_class(&self, need: usize, align: usize) -> Option<Class> {
        let most = need + align.saturating_sub(UNIT);
        Some(self.classes.of(self.classes.round_up(most)?))
    }

    fn cut(&mut self, at: usize, gap: usize, need: usize) -> usize {
        let size = (self.memory.load(at) & !FLAGS) as usize;
        self.unlist(at, size);
        let (used, behind, left) = (at + gap, at + gap + need, size - gap - need);
        // `make_free` writes into the header behind: the used block's must be there before the gap is made.
        self.memory.store(used, need as u32);
        if gap > 0 {
            self.work.splits += 1;
            self.make_free(at, gap);
        }
        if left > 0 {
            self.work.splits += 1;
            self.make_free(behind, left);
        } else {
            let header = self.memory.load(behind);
            self.memory.store(behind, header & !FREE_BEFORE);
        }
        used
    }

    fn release(&mut self, at: usize) {
        let header = self.memory.load(at);
        let (mut start, mut size) = (at, (header & !FLAGS) as usize);
        let behind = self.memory.load(at + size);
        if behind & FREE != 0 {
            let more = (behind & !FLAGS) as usize;
            self.unlist(at + size, more);
            size += more;
            self.work.merges += 1;
        }
        if header & FREE_BEFORE != 0 {
            start = self.memory.load(at - HEADER) as usize;
            self.unlist(start, at - start);
            size += at - start;
            self.work.merges += 1;
        }
        self.make_free(start, size);
    }

    /// All blocks as they lie: position, size, flags.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        let mut at = FIRST;
        core::iter::from_fn(move || {
            let (size, flags) = self.header(at);
            if size == 0 {
                return None;
            }
            let block = (at, size, flags);
            at += size;
            Some(block)
        })
    }
    fn free_blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.blocks().filter(|(.., flags)| flags & FREE != 0).map(|(at, size, _)| (at, size))
    }
}

/// Bytes of a block for `size` bytes, its header included; `None` if no memory is so large.
fn need(size: usize) -> Option<usize> {
    let need = size.checked_add(HEADER)?.checked_next_multiple_of(UNIT)?;
    (need <= Memory::MOST).then_some(need)
}

impl Allocator for Tlsf {
    type Block = Piece;
    const NAME: &'static str = "tlsf";

    fn alloc(&mut self, layout: Layout) -> Option<Piece> {
        let taken = match need(layout.size()).filter(|_| Memory::aligns(layout)) {
            Some(need) => self.take(need, layout.align()).map(|(at, gap)| self.cut(at, gap, need)),
            None => None,
        };
        let block = taken.map(|at| self.memory.piece(at + HEADER, layout.size()));
        self.work.served(block)
    }
    fn free(&mut self, block: Piece) {
        let at = self.memory.own(&block) - HEADER;
        self.work.frees += 1;
        self.release(at);
    }
    fn range(&self, block: &Piece) -> Range<usize> {
        let (size, _) = self.header(block.at() - HEADER);
        block.at()..block.at() + size - HEADER
    }
    fn bytes<'b>(&'b mut self, block: &'b mut Piece) -> &'b mut [u8] {
        self.memory.bytes(block)
    }
    fn capacity(&self) -> usize {
        self.memory.len() - UNIT
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        self.free_blocks().for_each(|(_, size)| holes.add(size - HEADER));
        holes
    }
    fn work(&self) -> Work {
        self.memory.work(self.work)
    }
    fn beside(&self) -> usize {
        self.control_bytes()
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let first = need(layout.size())
            .filter(|_| Memory::aligns(layout))
            .and_then(|need| self.first_class(need, layout.align()));
        Some(first.is_some_and(|first| self.free_blocks().any(|(_, size)| self.classes.of(size) >= first)))
    }
    fn check(&self) -> Result<(), String> {
        let (mut end, mut was_free, mut free) = (FIRST, false, 0);
        for (at, size, flags) in self.blocks() {
            if (flags & FREE_BEFORE != 0) != was_free {
                return Err(format!("the block at {at} is wrong about the one before"));
            }
            let is_free = flags & FREE != 0;
            if is_free && was_free {
                return Err(format!("the free block at {at} was not merged with the one before"));
            }
            if is_free && self.memory.peek(at + size - HEADER) as usize != at {
                return Err(format!("the free block at {at} does not say at its end where it begins"));
            }
            free += usize::from(is_free);
            (end, was_free) = (at + size, is_free);
        }
        if end != self.memory.len() - HEADER {
            return Err(format!("the blocks end at {end}"));
        }
        let steps = self.classes.steps();
        let mut listed = 0;
        for (i, head) in self.heads.iter().enumerate() {
            let class = Class { fl: i / steps, sl: i % steps };
            if (self.sl_bitmaps[class.fl] >> class.sl & 1 != 0) != (*head != NONE) {
                return Err(format!("the bit of {class:?} is wrong"));
            }
            let (mut at, mut prev) = (*head, NONE);
            while at != NONE && listed <= free {
                let (size, flags) = self.header(at as usize);
                if flags & FREE == 0 || self.classes.of(size) != class {
                    return Err(format!("the block at {at} is in the list of {class:?}"));
                }
                if self.memory.peek(at as usize + HEADER + 4) != prev {
                    return Err(format!("the free block at {at} has another one before it in the list"));
                }
                listed += 1;
                (prev, at) = (at, self.memory.peek(at as usize + HEADER));
            }
        }
        if listed != free {
            return Err(format!("{free} blocks are free, and {listed} are in lists"));
        }
        let wrong = (0..self.sl_bitmaps.len())
            .find(|fl| (self.fl_bitmap >> fl & 1 != 0) != (self.sl_bitmaps[*fl] != 0));
        wrong.map_or(Ok(()), |fl| Err(format!("the bit of doubling {fl} is wrong")))
    }
}

#[cfg(test)]
mod tests;

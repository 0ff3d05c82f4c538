//! The binary buddy allocator, in bytes: every block is a power of two, and has one other that it can be made one with.
//!
//! ```text
//!  order 2  |            64             |    a block of 2^k units lies at a multiple of its size:
//!  order 1  |     32     |      32      |    its buddy is at  offset XOR size,
//!  order 0  |  16 |  16  |  16  |  16   |    both together at offset AND NOT size
//! ```
//!
//! - Allocate: round up to a power of two, take the smallest free block that is large enough, halve it until it fits; the
//!   halves cut off become free. O(log of the memory).
//! - Free: as long as the buddy is free and whole, make one of both. O(log of the memory).
//! - Waste: the rounding up. 65 bytes take 128, and the other 63 serve nobody while the block lives: not even a request
//!   of 63 bytes. Where all sizes are equally likely blocks take 4/3 of what was asked for: a quarter of what they take is
//!   waste. The 1.44 that is often told (after Russell, "Internal Fragmentation in a Class of Buddy Systems", 1977) is the mean
//!   ratio where all *octaves* are equally likely.
//!
//! Which block a unit begins stands in a table beside the memory, one byte for each 16: tags inside would make blocks of 2^k
//! bytes hold less than 2^k, as page frames would. The links of free blocks lie in the blocks.
//!
//! Invariants: a block is free iff its byte says so iff it is in the list of its order; no two buddies are free.
//!
//! Sources: Knowlton, "A Fast Storage Allocator" (1965); Knuth, The Art of Computer Programming 1, 2.5. Ships as Linux's page
//! allocator (`uslab-buddy` is one of those: orders 0 to 10 of pages), and in engines for GPU memory.
//!
//! A step is an order whose list is looked at, or a buddy.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, NONE, Piece};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::Words;

/// Bytes of the smallest block.
pub const UNIT: usize = 16;

/// In the table: a free block begins here, its order in the low bits.
const FREE: u8 = 0x80;
/// In the table: a block in use begins here.
const USED: u8 = 0x40;
const ORDER: u8 = 0x3F;

/// A buddy allocator. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::{Allocator, Buddy};
///
/// let mut buddy = Buddy::new(1024)?;
/// let block = buddy.alloc(Layout::new::<[u8; 65]>()).ok_or("no room")?;
/// assert_eq!(buddy.range(&block), 0..128);
/// assert_eq!(buddy.free_blocks(), [0, 0, 0, 1, 1, 1, 0]); // 128, 256 and 512
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Buddy {
    memory: Memory,
    /// One byte for each unit: what begins there; 0 is the inside of a block.
    table: Vec<u8>,
    /// The first free block of each order.
    heads: Vec<u32>,
    work: Work,
}

/// `n` rounded up to a power of two; 0 is 1. `None` if there is none so large.
pub fn round_up_pow2(n: usize) -> Option<usize> {
    n.checked_next_power_of_two()
}

/// Where the buddy of the block at `offset` lies.
pub fn buddy_of(offset: usize, size: usize) -> usize {
    offset ^ size
}

/// Where both together lie.
pub fn merged_of(offset: usize, size: usize) -> usize {
    offset & !size
}

impl Buddy {
    /// So many bytes. What is no power of two becomes several largest blocks, each at a multiple of its size.
    ///
    /// # Errors
    /// None, more than [`Memory::MOST`], or no multiple of 16.
    pub fn new(bytes: usize) -> Result<Self, ConfigError> {
        let memory = Memory::new(bytes, UNIT, UNIT)?;
        let orders = (bytes / UNIT).ilog2() as usize + 1;
        let mut buddy =
            Self { memory, table: vec![0; bytes / UNIT], heads: vec![NONE; orders], work: Work::default() };
        let mut at = 0;
        for order in (0..orders).rev().filter(|order| bytes & (UNIT << order) != 0) {
            buddy.put(at, order);
            at += UNIT << order;
        }
        Ok(buddy)
    }

    /// Free blocks by order, from 16 bytes on, as `/proc/buddyinfo` has them. Walks the blocks.
    pub fn free_blocks(&self) -> Vec<usize> {
        let mut counts = vec![0; self.heads.len()];
        self.free_list().for_each(|(_, order)| counts[order] += 1);
        counts
    }

    /// Where the free blocks lie, the lowest first.
    pub fn free_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.free_list().map(|(at, order)| at..at + (UNIT << order))
    }

    /// Where each block begins, and its byte in the table.
    fn blocks(&self) -> impl Iterator<Item = (usize, u8)> {
        let mut unit = 0;
        core::iter::from_fn(move || {
            let byte = *self.table.get(unit)?;
            let at = unit * UNIT;
            unit += 1 << (byte & ORDER);
            Some((at, byte))
        })
    }
    /// Where each free block begins, and its order.
    fn free_list(&self) -> impl Iterator<Item = (usize, usize)> {
        let free = self.blocks().filter(|(_, byte)| byte & FREE != 0);
        free.map(|(at, byte)| (at, usize::from(byte & ORDER)))
    }

    /// Lists a free block.
    fn put(&mut self, at: usize, order: usize) {
        let next = core::mem::replace(&mut self.heads[order], at as u32);
        self.memory.store(at, next);
        self.memory.store(at + 4, NONE);
        if next != NONE {
            self.memory.store(next as usize + 4, at as u32);
        }
        self.table[at / UNIT] = FREE | order as u8;
    }
    /// Takes a free block out of its list; it begins nothing any more.
    fn take(&mut self, at: usize, order: usize) {
        let (next, prev) = (self.memory.load(at), self.memory.load(at + 4));
        if next != NONE {
            self.memory.store(next as usize + 4, prev);
        }
        match prev {
            NONE => self.heads[order] = next,
            prev => self.memory.store(prev as usize, next),
        }
        self.table[at / UNIT] = 0;
    }

    fn cut(&mut self, wanted: usize) -> Option<usize> {
        let found = (wanted..self.heads.len()).find(|order| self.heads[*order] != NONE);
        self.work.took((found.unwrap_or(self.heads.len()).saturating_sub(wanted) + 1) as u64);
        let mut order = found?;
        let at = self.heads[order] as usize;
        self.take(at, order);
        while order > wanted {
            order -= 1;
            self.put(at + (UNIT << order), order);
            self.work.splits += 1;
        }
        self.table[at / UNIT] = USED | wanted as u8;
        Some(at)
    }

    fn release(&mut self, mut at: usize) {
        let mut order = usize::from(self.table[at / UNIT] & ORDER);
        self.table[at / UNIT] = 0;
        let mut steps = 0;
        while order + 1 < self.heads.len() {
            steps += 1;
            let size = UNIT << order;
            let buddy = buddy_of(at, size);
            // Beyond the end there is none; halved, or in use, its byte says something else.
            if self.table.get(buddy / UNIT) != Some(&(FREE | order as u8)) {
                break;
            }
            self.take(buddy, order);
            self.work.merges += 1;
            at = merged_of(at, size);
            order += 1;
        }
        self.work.took(steps);
        self.put(at, order);
    }
}

/// The order of the block for a layout: it holds its size, and lies at a multiple of its alignment.
fn order_of(layout: Layout) -> Option<usize> {
    let bytes = round_up_pow2(layout.size().max(layout.align()).max(UNIT))?;
    Some((bytes / UNIT).ilog2() as usize)
}

impl Allocator for Buddy {
    type Block = Piece;
    const NAME: &'static str = "buddy";

    fn alloc(&mut self, layout: Layout) -> Option<Piece> {
        let at = order_of(layout).filter(|_| Memory::aligns(layout)).and_then(|order| self.cut(order));
        let block = at.map(|at| self.memory.piece(at, layout.size()));
        self.work.served(block)
    }
    fn free(&mut self, block: Piece) {
        let at = self.memory.own(&block);
        self.work.frees += 1;
        self.release(at);
    }
    fn range(&self, block: &Piece) -> Range<usize> {
        block.at()..block.at() + (UNIT << (self.table[block.at() / UNIT] & ORDER))
    }
    fn bytes<'b>(&'b mut self, block: &'b mut Piece) -> &'b mut [u8] {
        self.memory.bytes(block)
    }
    fn capacity(&self) -> usize {
        self.memory.len()
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        self.free_list().for_each(|(_, order)| holes.add(UNIT << order));
        holes
    }
    fn work(&self) -> Work {
        self.memory.work(self.work)
    }
    fn beside(&self) -> usize {
        self.table.len() + size_of_val(self.heads.as_slice())
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let wanted = order_of(layout).filter(|_| Memory::aligns(layout));
        Some(wanted.is_some_and(|wanted| self.free_list().any(|(_, order)| order >= wanted)))
    }
    fn check(&self) -> Result<(), String> {
        let mut end = 0;
        let mut free = vec![vec![]; self.heads.len()];
        for (at, byte) in self.blocks() {
            let order = usize::from(byte & ORDER);
            if byte & (FREE | USED) == 0 || order >= self.heads.len() {
                return Err(format!("the byte at {at} is {byte:#x}, and the block before ends there"));
            }
            let size = UNIT << order;
            if at & (size - 1) != 0 {
                return Err(format!("the block of {size} bytes at {at} is not at a multiple of its size"));
            }
            end = at + size;
            let inside = self.table.get(at / UNIT + 1..end / UNIT).unwrap_or_default();
            if inside.iter().any(|byte| *byte != 0) {
                return Err(format!("another block begins in the one of {size} bytes at {at}"));
            }
            if byte & FREE != 0 {
                if order + 1 < self.heads.len() && self.table.get(buddy_of(at, size) / UNIT) == Some(&byte) {
                    return Err(format!(
                        "the free block of {size} bytes at {at} was not merged with its buddy"
                    ));
                }
                free[order].push(at as u32);
            }
        }
        if end != self.memory.len() {
            return Err(format!("the blocks end at {end}"));
        }
        for (order, free) in free.iter().enumerate() {
            let (mut listed, mut at) = (vec![], self.heads[order]);
            while at != NONE && listed.len() <= free.len() {
                listed.push(at);
                at = self.memory.peek(at as usize);
            }
            listed.sort_unstable();
            if listed != *free {
                return Err(format!("the list of order {order} has {listed:?}, free are {free:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

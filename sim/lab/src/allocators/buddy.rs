//! The binary buddy allocator, with blocks of 16 bytes or more. The size of every block is a power of two, and a block
//! can be merged with exactly one other block, its buddy.
//!
//! ```text
//!  order 2  |            64             |    a block of 2^k units begins at a multiple of its size:
//!  order 1  |     32     |      32      |    its buddy is at  offset XOR size,
//!  order 0  |  16 |  16  |  16  |  16   |    both together at offset AND NOT size
//! ```
//!
//! - **Allocate**: round the request up to a power of two. Take the smallest free block that is large enough, and halve
//!   the block until it has the rounded size. The halves that are cut off become free. The cost is O(log n) for a
//!   memory of n bytes.
//! - **Free**: merge the block with its buddy as long as the buddy is free and not split. The cost is O(log n) for a
//!   memory of n bytes.
//! - **Waste**: the bytes by which sizes are rounded up to powers of two. A request for 65 bytes occupies a block of
//!   128 bytes, so 63 bytes are wasted. If all sizes are equally likely, blocks occupy 4/3 times the requested bytes: a
//!   quarter of the occupied bytes is waste. The often quoted factor 1.44 (after Russell, "Internal Fragmentation in a
//!   Class of Buddy Systems", 1977) assumes instead that all *octaves* are equally likely.
//!
//! A table outside the memory has one byte for each unit of 16 bytes. The byte of a unit describes the block that
//! begins at the unit. If these tags were inside the memory, a block of 2^k bytes would hold less than 2^k bytes. The
//! links of a free block are stored in the block itself.
//!
//! Invariants: each free block has the free flag in the table and is on the list of its order. A block and its buddy
//! are never both free.
//!
//! Sources: Knowlton, "A Fast Storage Allocator" (1965); Knuth, The Art of Computer Programming 1, 2.5. Linux's page
//! allocator and `uslab-buddy` are buddy allocators for pages, with orders 0 to 10. Game engines use buddy allocators
//! for GPU memory.
//!
//! The lab counts as a step each inspection of one list, or of one buddy.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, MemoryPiece, NONE};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::{Event, Words};

/// The size of the smallest block in bytes.
pub const UNIT: usize = 16;

/// The flag in the table byte of a free block's first unit. The low bits of the byte contain the block's order.
const FREE: u8 = 0x80;
/// The flag in the table byte of a used block's first unit.
const USED_BLOCK_FLAG: u8 = 0x40;
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
    /// The table with one byte per unit of memory; the byte is 0 if no block begins at the unit.
    table: Vec<u8>,
    /// The first free block of each order's list.
    heads: Vec<u32>,
    work: Work,
}

/// Rounds `n` up to a power of two; 0 is rounded up to 1. Returns `None` if the rounded size would overflow.
pub fn round_up_pow2(n: usize) -> Option<usize> {
    n.checked_next_power_of_two()
}

/// Returns the offset of the buddy of the block at `offset`.
pub fn buddy_offset(offset: usize, size: usize) -> usize {
    offset ^ size
}

/// Returns the offset of the block that results from merging two buddies.
pub fn merged_block_offset(offset: usize, size: usize) -> usize {
    offset & !size
}

impl Buddy {
    /// Creates an allocator with a memory of `bytes` bytes. If `bytes` is not a power of two, the memory begins as
    /// several free blocks, each at a multiple of its size.
    ///
    /// # Errors
    /// Fails if `bytes` is 0, more than [`Memory::MAX_BYTES`], or not a multiple of 16.
    pub fn new(bytes: usize) -> Result<Self, ConfigError> {
        let memory = Memory::new(bytes, UNIT, UNIT)?;
        let orders = (bytes / UNIT).ilog2() as usize + 1;
        let mut buddy =
            Self { memory, table: vec![0; bytes / UNIT], heads: vec![NONE; orders], work: Work::default() };
        let mut position = 0;
        for order in (0..orders).rev().filter(|order| bytes & (UNIT << order) != 0) {
            buddy.link_block(position, order);
            position += UNIT << order;
        }
        Ok(buddy)
    }

    /// Returns the number of free blocks of each order, beginning with blocks of 16 bytes, as in `/proc/buddyinfo`. The
    /// cost is one inspection of every block.
    pub fn free_blocks(&self) -> Vec<usize> {
        let mut counts = vec![0; self.heads.len()];
        self.free_list().for_each(|(_, order)| counts[order] += 1);
        counts
    }

    /// Returns the positions of the free blocks of one order, in list order.
    pub fn list(&self, order: usize) -> impl Iterator<Item = usize> {
        let block = |position: u32| (position != NONE).then_some(position as usize);
        core::iter::successors(block(self.heads[order]), move |position| block(self.memory.peek(*position)))
    }
    /// Removes and returns the events logged since the last call. The first call starts the event log.
    pub(crate) fn take_log(&mut self) -> Vec<Event> {
        self.memory.take_log()
    }

    /// Returns the ranges of the free blocks, lowest first.
    pub fn free_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.free_list().map(|(position, order)| position..position + (UNIT << order))
    }

    /// Returns the offset and table byte of each block.
    fn blocks(&self) -> impl Iterator<Item = (usize, u8)> {
        let mut unit = 0;
        core::iter::from_fn(move || {
            let byte = *self.table.get(unit)?;
            let position = unit * UNIT;
            unit += 1 << (byte & ORDER);
            Some((position, byte))
        })
    }
    /// Returns the offset and order of each free block.
    fn free_list(&self) -> impl Iterator<Item = (usize, usize)> {
        let free = self.blocks().filter(|(_, byte)| byte & FREE != 0);
        free.map(|(position, byte)| (position, usize::from(byte & ORDER)))
    }

    /// Adds a free block to its list.
    fn link_block(&mut self, position: usize, order: usize) {
        let next = core::mem::replace(&mut self.heads[order], position as u32);
        self.memory.store(position, next);
        self.memory.store(position + 4, NONE);
        if next != NONE {
            self.memory.store(next as usize + 4, position as u32);
        }
        self.table[position / UNIT] = FREE | order as u8;
    }
    /// Removes a free block from its list, and clears its table byte.
    fn unlink_block(&mut self, position: usize, order: usize) {
        let (next, prev) = (self.memory.load(position), self.memory.load(position + 4));
        if next != NONE {
            self.memory.store(next as usize + 4, prev);
        }
        match prev {
            NONE => self.heads[order] = next,
            prev => self.memory.store(prev as usize, next),
        }
        self.table[position / UNIT] = 0;
    }

    fn alloc_block(&mut self, wanted_order: usize) -> Option<usize> {
        let found_order = (wanted_order..self.heads.len()).find(|order| self.heads[*order] != NONE);
        let steps = found_order.unwrap_or(self.heads.len()).saturating_sub(wanted_order) + 1;
        self.memory.record(Event::Searched(steps as u64));
        let mut order = found_order?;
        let position = self.heads[order] as usize;
        self.unlink_block(position, order);
        while order > wanted_order {
            order -= 1;
            let (position, bytes) = (position + (UNIT << order), UNIT << order);
            self.link_block(position, order);
            self.memory.record(Event::Split { at: position, bytes });
        }
        self.table[position / UNIT] = USED_BLOCK_FLAG | wanted_order as u8;
        Some(position)
    }

    fn free_block(&mut self, mut position: usize) {
        let mut order = usize::from(self.table[position / UNIT] & ORDER);
        self.table[position / UNIT] = 0;
        let mut steps = 0;
        while order + 1 < self.heads.len() {
            steps += 1;
            let size = UNIT << order;
            let buddy = buddy_offset(position, size);
            // A block at the end of the memory has no buddy. A split or used buddy has a different table byte than a
            // free buddy.
            if self.table.get(buddy / UNIT) != Some(&(FREE | order as u8)) {
                break;
            }
            self.unlink_block(buddy, order);
            self.memory.record(Event::Merged { at: buddy, bytes: size });
            position = merged_block_offset(position, size);
            order += 1;
        }
        self.memory.record(Event::Searched(steps));
        self.link_block(position, order);
    }
}

/// Returns the order of the block that serves a layout. The block is large enough, and its offset is a multiple of the
/// alignment.
fn order_for_layout(layout: Layout) -> Option<usize> {
    let bytes = round_up_pow2(layout.size().max(layout.align()).max(UNIT))?;
    Some((bytes / UNIT).ilog2() as usize)
}

impl Allocator for Buddy {
    type Block = MemoryPiece;
    const NAME: &'static str = "buddy";

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        let position = order_for_layout(layout)
            .filter(|_| Memory::aligns(layout))
            .and_then(|order| self.alloc_block(order));
        let block = position.map(|position| self.memory.piece(position, layout.size()));
        self.work.count_allocation(block)
    }
    fn free(&mut self, block: MemoryPiece) {
        let position = self.memory.checked_offset(&block);
        self.work.frees += 1;
        self.free_block(position);
    }
    fn range(&self, block: &MemoryPiece) -> Range<usize> {
        block.at()..block.at() + (UNIT << (self.table[block.at() / UNIT] & ORDER))
    }
    fn bytes<'b>(&'b mut self, block: &'b mut MemoryPiece) -> &'b mut [u8] {
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
    fn metadata_bytes(&self) -> usize {
        self.table.len() + size_of_val(self.heads.as_slice())
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let wanted_order = order_for_layout(layout).filter(|_| Memory::aligns(layout));
        Some(
            wanted_order.is_some_and(|wanted_order| self.free_list().any(|(_, order)| order >= wanted_order)),
        )
    }
    fn check(&self) -> Result<(), String> {
        let mut end = 0;
        let mut free = vec![vec![]; self.heads.len()];
        for (position, byte) in self.blocks() {
            let order = usize::from(byte & ORDER);
            if byte & (FREE | USED_BLOCK_FLAG) == 0 || order >= self.heads.len() {
                return Err(format!(
                    "no block begins at {position}, where the previous block ends: the byte in the table is {byte:#x}"
                ));
            }
            let size = UNIT << order;
            if position & (size - 1) != 0 {
                return Err(format!(
                    "the block of {size} bytes at {position} is not at a multiple of its size"
                ));
            }
            end = position + size;
            let interior = self.table.get(position / UNIT + 1..end / UNIT).unwrap_or_default();
            if interior.iter().any(|byte| *byte != 0) {
                return Err(format!("another block begins inside the block of {size} bytes at {position}"));
            }
            if byte & FREE != 0 {
                if order + 1 < self.heads.len()
                    && self.table.get(buddy_offset(position, size) / UNIT) == Some(&byte)
                {
                    return Err(format!(
                        "the free block of {size} bytes at {position} was not merged with its buddy"
                    ));
                }
                free[order].push(position as u32);
            }
        }
        if end != self.memory.len() {
            return Err(format!("the last block ends at {end}, which is not the end of the memory"));
        }
        for (order, free) in free.iter().enumerate() {
            let (mut free_list, mut position) = (vec![], self.heads[order]);
            while position != NONE && free_list.len() <= free.len() {
                free_list.push(position);
                position = self.memory.peek(position as usize);
            }
            free_list.sort_unstable();
            if free_list != *free {
                return Err(format!(
                    "the free list of order {order} contains {free_list:?}, but the free blocks are {free:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

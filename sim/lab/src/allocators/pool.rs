//! A pool of slots of one size; each free slot stores the link of the free list.
//!
//! ```text
//!   slots   | A | ─┐| C |  |<┐ not opened ...       head: the slot freed last
//!                  └────────┘
//! ```
//!
//! - **Allocate**: take the slot that was freed last; if no slot is free, take the next slot that was never used. The
//!   cost is O(1). **Free**: O(1).
//! - **Waste**: the unused part of each slot. Slots are adjacent, and every hole fits every request, so the pool has no
//!   external fragmentation.
//! - **Metadata**: the list needs no extra memory, because a free slot's own bytes hold the 4-byte link.
//!
//! [`ExternalListPool`] is a pool whose list is a vector of pointers outside the slots. At its peak, the vector takes 8
//! bytes from another allocator for each free slot. `ExternalListPool` exists only for comparison.
//!
//! Sources: Reinalter, "Memory allocation strategies: a pool allocator" (Molecular Musings, 2012); Kenwright, "Fast
//! Efficient Fixed-Size Memory Pool" (2012), for initialising slots at their first use; and the article "Arena pools:
//! from naive pool to slot map". Pools for production use are in `uslab::pool`.
//!
//! The lab counts each access to the head of the list as a step.

use super::allocator::{Allocator, Holes, Work};
use super::linear::Linear;
use super::memory::{ConfigError, MemoryPiece, NONE};
use super::slots::Slots;
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::Words;

/// A pool whose free list is stored in the slots. See the [module](self).
#[derive(Debug)]
pub struct Pool {
    slots: Slots,
    /// The slot that was freed last.
    head: u32,
    /// The number of slots that are in use.
    live: usize,
    work: Work,
}

/// A pool whose free list is a vector of pointers. See the [module](self).
#[derive(Debug)]
pub struct ExternalListPool {
    slots: Slots,
    free: Vec<usize>,
    work: Work,
}

impl Pool {
    /// The size in bytes of the smallest slot, which holds one link.
    pub const MIN_SLOT_BYTES: usize = size_of::<u32>();

    /// Creates a pool in an arena, which the pool then owns; each slot has the layout `slot`.
    ///
    /// # Errors
    /// Fails if a slot is smaller than a link of 4 bytes or has an alignment above 4096, or if the arena is already in
    /// use or too small for a slot.
    pub fn new(arena: Linear, slot: Layout) -> Result<Self, ConfigError> {
        let slots = Slots::new(arena, slot, Self::MIN_SLOT_BYTES, 0)?;
        Ok(Self { slots, head: NONE, live: 0, work: Work::default() })
    }
    /// Returns the number of slots that fit into the arena.
    pub fn slots(&self) -> usize {
        self.slots.count()
    }
    /// Returns the number of slots that have been used at least once.
    pub fn opened_slots(&self) -> usize {
        self.slots.opened_slots()
    }

    /// Returns the free slots that have been used before, in the order in which the pool will reuse them.
    pub fn free_list(&self) -> impl Iterator<Item = usize> {
        let slot = |link: u32| (link != NONE).then_some(link as usize);
        let next = move |free: &usize| slot(self.slots.memory().peek(self.slots.slot_offset(*free)));
        core::iter::successors(slot(self.head), next)
    }

    fn pop_slot(&mut self) -> Option<usize> {
        self.work.count_search(1);
        if self.head == NONE {
            return self.slots.open();
        }
        let slot = self.head as usize;
        let position = self.slots.slot_offset(slot);
        self.head = self.slots.memory_mut().load(position);
        Some(slot)
    }
}

impl ExternalListPool {
    /// Creates a pool in an arena, which the pool then owns; each slot has the layout `slot`.
    ///
    /// # Errors
    /// Fails if a slot has no bytes or an alignment above 4096, or if the arena is already in use or too small for a
    /// slot.
    pub fn new(arena: Linear, slot: Layout) -> Result<Self, ConfigError> {
        Ok(Self { slots: Slots::new(arena, slot, 1, 0)?, free: vec![], work: Work::default() })
    }
}

impl Allocator for Pool {
    type Block = MemoryPiece;
    const NAME: &'static str = "pool";

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        let slot = if self.slots.serves(layout) { self.pop_slot() } else { None };
        self.live += usize::from(slot.is_some());
        let block = slot.map(|slot| self.slots.piece(slot, layout));
        self.work.count_allocation(block)
    }
    fn free(&mut self, block: MemoryPiece) {
        let slot = self.slots.slot_of_piece(&block);
        let (at, head) = (self.slots.slot_offset(slot), self.head);
        self.work.frees += 1;
        self.slots.memory_mut().store(at, head);
        self.head = slot as u32;
        self.live -= 1;
    }
    fn range(&self, block: &MemoryPiece) -> Range<usize> {
        self.slots.range(block)
    }
    fn bytes<'b>(&'b mut self, block: &'b mut MemoryPiece) -> &'b mut [u8] {
        self.slots.memory_mut().bytes(block)
    }
    fn capacity(&self) -> usize {
        self.slots.capacity()
    }
    fn holes(&self) -> Holes {
        self.slots.holes(self.slots.count() - self.live)
    }
    fn work(&self) -> Work {
        self.slots.memory().work(self.work)
    }
    fn metadata_bytes(&self) -> usize {
        size_of_val(&self.head)
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        Some(self.slots.serves(layout) && self.live < self.slots.count())
    }
    fn check(&self) -> Result<(), String> {
        let (mut listed_slots, mut slot) = (0, self.head);
        while slot != NONE && listed_slots <= self.slots.opened_slots() {
            if slot as usize >= self.slots.opened_slots() {
                return Err(format!("the free list contains slot {slot}, which was never used"));
            }
            listed_slots += 1;
            slot = self.slots.memory().peek(self.slots.slot_offset(slot as usize));
        }
        let free = self.slots.opened_slots() - self.live;
        if listed_slots == free {
            Ok(())
        } else {
            Err(format!("{free} slots are free after use, but the free list has {listed_slots} slots"))
        }
    }
}

impl Allocator for ExternalListPool {
    type Block = MemoryPiece;
    const NAME: &'static str = "pool, list outside";

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        if !self.slots.serves(layout) {
            return self.work.count_allocation(None);
        }
        self.work.count_search(1);
        let slot = self.free.pop().or_else(|| self.slots.open());
        let block = slot.map(|slot| self.slots.piece(slot, layout));
        self.work.count_allocation(block)
    }
    fn free(&mut self, block: MemoryPiece) {
        self.work.frees += 1;
        self.free.push(self.slots.slot_of_piece(&block));
    }
    fn range(&self, block: &MemoryPiece) -> Range<usize> {
        self.slots.range(block)
    }
    fn bytes<'b>(&'b mut self, block: &'b mut MemoryPiece) -> &'b mut [u8] {
        self.slots.memory_mut().bytes(block)
    }
    fn capacity(&self) -> usize {
        self.slots.capacity()
    }
    fn holes(&self) -> Holes {
        self.slots.holes(self.slots.count() - self.slots.opened_slots() + self.free.len())
    }
    fn work(&self) -> Work {
        self.slots.memory().work(self.work)
    }
    fn metadata_bytes(&self) -> usize {
        self.free.capacity() * size_of::<usize>()
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        Some(self.slots.serves(layout) && self.holes().count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(size: usize) -> Layout {
        Layout::from_size_align(size, 4).unwrap()
    }
    fn pool(slots: usize, size: usize) -> Pool {
        Pool::new(Linear::fixed(slots * size).unwrap(), slot(size)).unwrap()
    }

    #[test]
    fn freed_slot_is_reused_first() {
        let mut pool = pool(24, 96);
        assert_eq!((pool.capacity(), pool.slots(), pool.metadata_bytes()), (2304, 24, 4));
        let [a, b, c] = [96; 3].map(|size| pool.alloc(slot(size)).unwrap());
        let middle_range = pool.range(&b);
        pool.free(b);
        let reused = pool.alloc(slot(96)).unwrap();
        assert_eq!(pool.range(&reused), middle_range);
        assert_eq!((pool.opened_slots(), pool.work().steps), (3, 4));
        [a, reused, c].into_iter().for_each(|block| pool.free(block));
        assert_eq!(pool.holes(), Holes { count: 24, largest: 96, total: 2304 });
    }

    #[test]
    fn freed_slots_are_reused_before_fresh_arena_memory() {
        let mut pool = pool(4, 8);
        let blocks = [8, 8].map(|size| pool.alloc(slot(size)).unwrap());
        // Rust has no null block: freeing `None` does nothing.
        None.into_iter().for_each(|block| pool.free(block));
        blocks.into_iter().for_each(|block| pool.free(block));
        let starts: Vec<_> = core::iter::from_fn(|| pool.alloc(slot(8))).map(|block| block.at()).collect();
        assert_eq!(starts, [8, 0, 16, 24]);
        assert_eq!(pool.work().refused, 1);
    }

    #[test]
    fn unused_bytes_of_a_slot_count_as_waste() {
        let mut pool = pool(2, 96);
        for (size, waste) in [(80, 16), (12, 84), (96, 0)] {
            let block = pool.alloc(slot(size)).unwrap();
            assert_eq!(pool.range(&block).len() - size, waste);
            pool.free(block);
        }
        assert!(pool.alloc(slot(97)).is_none());
        assert_eq!(
            Pool::new(Linear::fixed(64).unwrap(), slot(3)).unwrap_err().to_string(),
            "a slot of 3: expected 4 bytes or more"
        );
    }

    /// The pool uses only the arena's first page, because it computes the addresses of slots from the start of that
    /// page.
    #[test]
    fn pool_uses_only_the_first_page_of_an_arena() {
        let mut pool = Pool::new(Linear::growing(64, 256).unwrap(), slot(24)).unwrap();
        let mut external_pool = ExternalListPool::new(Linear::growing(64, 256).unwrap(), slot(24)).unwrap();
        let blocks =
            [24, 24].map(|size| (pool.alloc(slot(size)).unwrap(), external_pool.alloc(slot(size)).unwrap()));
        assert!(pool.alloc(slot(24)).is_none() && external_pool.alloc(slot(24)).is_none());
        assert_eq!(
            (pool.slots(), pool.capacity(), pool.holes().count, external_pool.holes().count),
            (2, 64, 0, 0)
        );
        for (one, external_block) in blocks {
            pool.free(one);
            external_pool.free(external_block);
        }
        assert_eq!((pool.check(), pool.holes().count, external_pool.holes().count), (Ok(()), 2, 2));
    }

    #[test]
    fn external_free_list_takes_separate_memory() {
        let mut external_pool = ExternalListPool::new(Linear::fixed(96 * 1000).unwrap(), slot(96)).unwrap();
        let blocks: Vec<_> = (0..1000).map(|_| external_pool.alloc(slot(96)).unwrap()).collect();
        assert_eq!(external_pool.metadata_bytes(), 0);
        blocks.into_iter().for_each(|block| external_pool.free(block));
        assert!(
            external_pool.metadata_bytes() >= 8 * 1000,
            "8 bytes for each free slot, and {}",
            external_pool.metadata_bytes()
        );
        assert_eq!(external_pool.holes(), Holes { count: 1000, largest: 96, total: 96_000 });
    }

    #[test]
    fn write_after_free_into_a_list_link_is_reported() {
        let mut pool = pool(4, 8);
        let block = pool.alloc(slot(8)).unwrap();
        pool.free(block);
        pool.slots.memory_mut().slice_mut(0..4).fill(0x07);
        assert_eq!(
            pool.check(),
            Err("the free list contains slot 117901063, which was never used".to_owned())
        );
    }
}

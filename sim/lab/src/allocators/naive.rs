//! Naive pools: two different designs that often have the same name.
//!
//! ```text
//!   slots   | A |   | C |   |   | F | not opened ...
//!   flags     1   0   1   0   0   1
//! ```
//!
//! Each slot has a flag, which is set while the slot is in use. A loop over the objects of a pool inspects all flags.
//! The two designs differ only in how they allocate. [`NeverReusingPool`] always takes a slot that was never used, so
//! each freed slot is lost and becomes a hole. [`ScanningPool`] takes the first freed slot; if no freed slot exists, it
//! takes a slot that was never used. `ScanningPool` does not lose slots, but one allocation may inspect all slots. Many
//! readers learn about pools from the article "Arena pools: from naive pool to slot map"; it shows the code of
//! `NeverReusingPool` but measures `ScanningPool`.
//!
//! - **Allocate**: takes O(1) in `NeverReusingPool`, and O(slots) in `ScanningPool`. **Free**: O(1). **Loop over all
//!   objects**: takes O(slots that were ever used).
//! - **Waste**: the unused part of each slot, and a flag with its padding. `NeverReusingPool` also wastes every freed slot.
//! - **Locality**: scanning from the front keeps live objects close together, which makes a walk faster.
//!
//! The lab counts each inspection of a flag during an allocation as a step.

use super::allocator::{Allocator, Holes, ReuseCondition, Work};
use super::linear::Linear;
use super::memory::{ConfigError, MemoryPiece};
use super::slots::Slots;
pub use super::slots::Walk;
use core::alloc::Layout;
use core::ops::Range;

/// A pool that never reuses a freed slot. See the [module](self).
#[derive(Debug)]
pub struct NeverReusingPool {
    slots: Slots,
    work: Work,
}

/// A pool that scans its slots from the front to find a free slot. See the [module](self).
#[derive(Debug)]
pub struct ScanningPool {
    slots: Slots,
    work: Work,
}

macro_rules! common {
    ($pool:ty) => {
        impl $pool {
            /// Creates a pool in an arena, which the pool then owns; each slot has the layout `slot`.
            ///
            /// # Errors
            /// Fails if a slot has no bytes or an alignment above 4096, or if the arena is already in use or too small
            /// for a slot.
            pub fn new(arena: Linear, slot: Layout) -> Result<Self, ConfigError> {
                Ok(Self { slots: Slots::new(arena, slot, 1, 1)?, work: Work::default() })
            }
            /// Returns the number of slots that fit into the arena.
            pub fn slots(&self) -> usize {
                self.slots.count()
            }
            /// Walks over the pool's slots; returns the number of inspected slots and the number of slots in use.
            pub fn walk(&self) -> Walk {
                self.slots.walk()
            }
            /// Returns the number of freed slots that the pool has not reused.
            pub fn dead_slots(&self) -> usize {
                let walk = self.walk();
                walk.checked - walk.active
            }
        }
    };
}
common!(NeverReusingPool);
common!(ScanningPool);

macro_rules! slots {
    () => {
        type Block = MemoryPiece;

        fn free(&mut self, block: MemoryPiece) {
            let slot = self.slots.slot_of_piece(&block);
            self.work.frees += 1;
            self.slots.set_active(slot, false);
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
        fn work(&self) -> Work {
            self.slots.memory().work(self.work)
        }
    };
}

impl Allocator for NeverReusingPool {
    const NAME: &'static str = "pool that never reuses";
    const REUSE: ReuseCondition = ReuseCondition::Never;
    slots!();

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        let slot = if self.slots.serves(layout) { self.slots.open() } else { None };
        let block = slot.map(|slot| {
            self.slots.set_active(slot, true);
            self.slots.piece(slot, layout)
        });
        self.work.count_allocation(block)
    }
    fn holes(&self) -> Holes {
        self.slots.holes(self.slots.count() - self.slots.opened_slots())
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        Some(self.slots.serves(layout) && self.slots.opened_slots() < self.slots.count())
    }
}

impl Allocator for ScanningPool {
    const NAME: &'static str = "pool that scans";
    slots!();

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        let slot = if self.slots.serves(layout) { self.scan() } else { None };
        let block = slot.map(|slot| {
            self.slots.set_active(slot, true);
            self.slots.piece(slot, layout)
        });
        self.work.count_allocation(block)
    }
    fn holes(&self) -> Holes {
        self.slots.holes(self.slots.count() - self.walk().active)
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        Some(self.slots.serves(layout) && self.walk().active < self.slots.count())
    }
}

impl ScanningPool {
    fn scan(&mut self) -> Option<usize> {
        let opened = self.slots.opened_slots();
        let freed_slot = (0..opened).find(|slot| !self.slots.is_active(*slot));
        let steps = freed_slot.map_or(opened, |slot| slot + 1) as u64;
        self.slots.memory_mut().touch(steps);
        self.work.count_search(steps);
        freed_slot.or_else(|| self.slots.open())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::Pool;
    use super::*;

    /// Returns the layout of the article's particle, which has 20 bytes of floats. The pool adds a flag to these 20
    /// bytes.
    fn particle() -> Layout {
        Layout::from_size_align(20, 4).unwrap()
    }
    fn arena(slots: usize) -> Linear {
        Linear::fixed(24 * slots).unwrap()
    }

    #[test]
    fn naive_pool_without_reuse_loses_freed_slots() {
        let mut non_reusing_pool = NeverReusingPool::new(arena(10), particle()).unwrap();
        let mut scans = ScanningPool::new(arena(10), particle()).unwrap();
        for _ in 0..10 {
            let block = non_reusing_pool.alloc(particle()).unwrap();
            non_reusing_pool.free(block);
            let block = scans.alloc(particle()).unwrap();
            scans.free(block);
        }
        assert_eq!(
            (non_reusing_pool.dead_slots(), non_reusing_pool.holes().count, non_reusing_pool.slots()),
            (10, 0, 10)
        );
        assert!(
            non_reusing_pool.alloc(particle()).is_none(),
            "no block is in use, but the request is refused"
        );
        assert_eq!((scans.dead_slots(), scans.holes().count), (1, 10));
        assert!(scans.alloc(particle()).is_some());
    }

    #[test]
    fn pool_without_reuse_only_grows() {
        let mut non_reusing_pool = NeverReusingPool::new(arena(1000), particle()).unwrap();
        let mut live = std::collections::VecDeque::new();
        let mut opened = vec![];
        for turn in 0..1000 {
            live.push_back(non_reusing_pool.alloc(particle()).unwrap());
            if live.len() > 10 {
                non_reusing_pool.free(live.pop_front().unwrap());
            }
            if turn % 250 == 249 {
                opened.push((non_reusing_pool.walk().checked, non_reusing_pool.walk().active));
            }
        }
        assert_eq!(opened, [(250, 10), (500, 10), (750, 10), (1000, 10)]);
    }

    #[test]
    fn scan_steps_equal_the_slots_before_the_free_slot() {
        let mut scans = ScanningPool::new(arena(100), particle()).unwrap();
        let mut blocks: Vec<_> = (0..100).map(|_| scans.alloc(particle()).unwrap()).collect();
        assert_eq!(scans.work().steps, 100 * 99 / 2, "n allocations must inspect n(n-1)/2 slots");
        scans.free(blocks.remove(70));
        let before = scans.work().steps;
        scans.alloc(particle()).unwrap();
        assert_eq!(scans.work().steps - before, 71);
    }

    #[test]
    fn first_free_slot_policy_keeps_live_objects_together() {
        fn span<A: Allocator>(mut pool: A, walk: impl Fn(&A, &[A::Block]) -> usize) -> usize {
            // The test runs a tenth of the article's first set: 1,000 objects are allocated, 950 are freed, and then 50
            // are replaced at a time.
            let mut rng = 1_u64;
            let mut pick = |n: usize| {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (rng >> 33) as usize % n
            };
            let mut live: Vec<_> = (0..1000).map(|_| pool.alloc(particle()).unwrap()).collect();
            for _ in 0..950 {
                pool.free(live.swap_remove(pick(live.len())));
            }
            for _ in 0..1000 {
                pool.free(live.swap_remove(pick(live.len())));
                live.push(pool.alloc(particle()).unwrap());
            }
            walk(&pool, &live)
        }
        let span_from_front =
            span(ScanningPool::new(arena(1000), particle()).unwrap(), |pool, _| pool.walk().span);
        let list = span(Pool::new(arena(1000), particle()).unwrap(), |pool, live| {
            live.iter().map(|block| pool.range(block).start / 20 + 1).max().unwrap()
        });
        assert!(
            span_from_front < 100 && list > 900,
            "50 live objects within {span_from_front} and {list} slots"
        );
    }

    #[test]
    fn naive_pool_refuses_an_arena_that_is_in_use() {
        // The article's loop visits slot after slot from the arena's base. If the arena is shared, the second slot is
        // not at the place that the loop expects.
        let mut shared = Linear::fixed(240).unwrap();
        let slot = Layout::from_size_align(24, 4).unwrap();
        shared.allocate(slot).unwrap();
        let foreign = shared.allocate(Layout::from_size_align(8, 4).unwrap()).unwrap();
        let second = shared.allocate(slot).unwrap();
        assert_eq!((shared.range(&foreign).start, shared.range(&second).start), (24, 32));
        let error = NeverReusingPool::new(shared, particle()).unwrap_err();
        assert_eq!(error.to_string(), "an arena used up to byte 56: expected an empty arena");
    }

    #[test]
    fn invalid_slot_is_refused() {
        let pool = |size, align| {
            NeverReusingPool::new(arena(1), Layout::from_size_align(size, align).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(pool(0, 1), "a slot of 0: expected 1 bytes or more");
        assert_eq!(pool(8, 8192), "slots aligned to 8192: expected 4096 or less");
        assert_eq!(pool(24, 8), "an arena of 24: expected room for a slot of 24 bytes");
        let mut scans = ScanningPool::new(arena(1), particle()).unwrap();
        assert!(scans.alloc(Layout::new::<[u8; 21]>()).is_none(), "the request is too large");
        assert!(scans.alloc(Layout::new::<u64>()).is_none(), "the alignment is too large");
        assert!(scans.alloc(Layout::new::<u32>()).is_some());
    }
}

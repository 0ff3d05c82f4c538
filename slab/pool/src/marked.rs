//! A pool in which a word after each object marks its slot as used or free. Such marks are the alternative to a bitmap.
//!
//! ```text
//! [ object 32 bytes | mark ][ object 32 bytes | mark ] ...        36 bytes per slot
//! ```
//!
//! An iteration over the slots in use loads the mark of each slot, which takes one cache line per slot. With a
//! [bitmap](super::live), one load covers 64 slots. A mark takes 4 bytes per slot instead of one bit, and an overrun of
//! the object can overwrite it. `MarkedPool` exists to show the cost of marks
//! (`iteration_over_marked_objects_reads_each_slot`). Marks are also useful if a memory dump should show which slots
//! are in use.
//!
//! Source: the comments on Reinalter, "Memory allocation strategies: a pool allocator" (2012), which predict the cost
//! of marks.

use super::area::Area;
use super::error::{BadFree, PoolError, Refused};
use super::fixed::FixedPool;
use super::slot::{LINK_BYTES, SlotLayout};
use core::alloc::Layout;
use core::ptr::NonNull;

/// The values of the mark after an object in use and in a free slot.
const ALLOCATED_MARK: u32 = 0x0B1E_C700;
const FREE_MARK: u32 = !ALLOCATED_MARK;
/// Size of a mark in bytes.
pub const MARK: usize = size_of::<u32>();

/// A [`FixedPool`] of objects that are each followed by a mark. See the [module](self).
///
/// # Invariants
/// The word at byte `mark` of a slot is `ALLOCATED_MARK` or `FREE_MARK`. The mark follows the object, or the link if
/// the slot is free.
#[derive(Debug)]
pub struct MarkedPool<A> {
    pool: FixedPool<A>,
    size: usize,
    mark: usize,
}

impl<A: Area> MarkedPool<A> {
    /// Makes a pool with as many objects, including their marks, as fit into `area`. Objects have at most `size` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`SlotLayout::new`] for an object with its mark, and the errors of
    /// [`FixedPool::new`].
    pub fn new(area: A, size: usize, align: usize) -> Result<Self, PoolError> {
        let mark = size.max(LINK_BYTES);
        let with_mark = mark.checked_add(MARK).ok_or(PoolError::Large { size })?;
        let mut pool = Self { pool: FixedPool::new(area, SlotLayout::new(with_mark, align)?)?, size, mark };
        (0..pool.pool.capacity()).for_each(|index| pool.set(pool.pool.slot(index), FREE_MARK));
        Ok(pool)
    }
    /// Allocates a slot for `layout`.
    ///
    /// # Errors
    /// Returns the errors of [`FixedPool::alloc`].
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        if layout.size() > self.size {
            return Err(Refused::Size { requested: layout.size(), max: self.size });
        }
        let slot = self.pool.alloc(layout)?;
        self.set(slot, ALLOCATED_MARK);
        Ok(slot)
    }
    /// Frees a slot.
    ///
    /// # Errors
    /// Returns an error if the address is not the start of a slot, or if the mark shows that the slot is free.
    ///
    /// # Safety
    /// The caller must no longer use the slot.
    pub unsafe fn free(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
        let index = self.pool.index(slot)?;
        let slot = self.pool.slot(index);
        if self.mark(slot) != ALLOCATED_MARK {
            return Err(BadFree::Double { slot: index });
        }
        self.set(slot, FREE_MARK);
        // SAFETY: the slot belongs to the pool, and its mark shows that it is in use.
        unsafe { self.pool.free(slot) }
    }
    /// Iterates over the slots in use, in ascending order. Cost: one load from each slot of the pool.
    pub fn live(&self) -> impl Iterator<Item = NonNull<u8>> {
        (0..self.pool.capacity())
            .map(|index| self.pool.slot(index))
            .filter(|&slot| self.mark(slot) == ALLOCATED_MARK)
    }
    /// Returns the underlying pool, which has counters.
    pub fn pool(&self) -> &FixedPool<A> {
        &self.pool
    }

    fn mark(&self, slot: NonNull<u8>) -> u32 {
        // SAFETY: the mark is within a slot of the pool, and was written when the pool was made.
        unsafe { slot.add(self.mark).cast::<u32>().read_unaligned() }
    }
    fn set(&mut self, slot: NonNull<u8>, mark: u32) {
        // SAFETY: the mark is within a slot of the pool, after the user's bytes.
        unsafe { slot.add(self.mark).cast::<u32>().write_unaligned(mark) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::HeapArea;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn slot_mark_is_stored_after_the_free_list_link() {
        for size in 1..=9 {
            let mut pool = MarkedPool::new(HeapArea::new(1024, 8).unwrap(), size, 1).unwrap();
            let layout = Layout::from_size_align(size, 1).unwrap();
            let slots: Vec<_> = (0..pool.pool().capacity()).map(|_| pool.alloc(layout).unwrap()).collect();
            assert_eq!((slots.len(), pool.alloc(layout)), (1024 / (size.max(8) + 4), Err(Refused::Full)));
            for slot in &slots {
                // SAFETY: the slot was allocated above and is freed once.
                unsafe { pool.free(*slot) }.unwrap();
            }
            assert!(slots.iter().rev().all(|slot| pool.alloc(layout) == Ok(*slot)), "{size} bytes");
        }
    }

    #[test]
    fn marked_pool_slot_for_32_bytes_takes_36_bytes() {
        let mut pool = MarkedPool::new(HeapArea::new(3600, 4).unwrap(), 32, 4).unwrap();
        assert_eq!((pool.pool().capacity(), pool.pool().slots().stride()), (100, 36));
        let layout = Layout::from_size_align(33, 4).unwrap();
        assert_eq!(pool.alloc(layout), Err(Refused::Size { requested: 33, max: 32 }));
    }

    /// Iterations by marks and by bits find the same objects. To find 8 objects, an iteration reads 256 cache lines
    /// with marks, and 4 words with bits.
    #[test]
    fn iteration_over_marked_objects_reads_each_slot() {
        let object = Layout::from_size_align(64, 4).unwrap();
        let mut marks = MarkedPool::new(HeapArea::new(256 * 68, 4).unwrap(), 64, 4).unwrap();
        let area = HeapArea::new(256 * 68, 4).unwrap();
        let mut bits = FixedPool::checked(area, SlotLayout::new(64, 4).unwrap()).unwrap();
        let (by_marks, by_bits): (Vec<_>, Vec<_>) =
            (0..256).map(|_| (marks.alloc(object).unwrap(), bits.alloc(object).unwrap())).unzip();
        for index in (0..256).filter(|index| index % 32 != 7) {
            // SAFETY: the slot was allocated above and is freed once.
            unsafe {
                marks.free(by_marks[index]).unwrap();
                bits.free(by_bits[index]).unwrap();
            }
        }
        let index =
            |base: NonNull<u8>, slot: NonNull<u8>, stride| (slot.addr().get() - base.addr().get()) / stride;
        // Each slot has its mark in a separate cache line. A bitmap of the slots needs only four
        // words.
        let lines: BTreeSet<_> = by_marks.iter().map(|slot| (slot.addr().get() + 64) / 64).collect();
        assert_eq!((lines.len(), by_bits.len().div_ceil(64)), (256, 4));
        let indexes: Vec<_> = marks.live().map(|slot| index(by_marks[0], slot, 68)).collect();
        assert_eq!(indexes, (0..8).map(|n| n * 32 + 7).collect::<Vec<_>>());
        assert!(bits.live().unwrap().map(|slot| index(by_bits[0], slot, 64)).eq(indexes));
    }

    #[test]
    fn slot_mark_detects_a_double_free() {
        let mut pool = MarkedPool::new(HeapArea::new(360, 4).unwrap(), 32, 4).unwrap();
        let slot = pool.alloc(Layout::from_size_align(32, 4).unwrap()).unwrap();
        // SAFETY: the slot is not used.
        unsafe {
            assert_eq!(pool.free(slot), Ok(()));
            assert_eq!(pool.free(slot), Err(BadFree::Double { slot: 0 }));
        }
    }
}

//! A pool of fixed size, which consists of its memory, a free list, and the layout of the largest object.
//!
//! The pool also serves objects with smaller sizes and alignments; they waste the rest of their slots. Objects larger
//! than a slot are refused. The pool has no external fragmentation: every free slot fits every object.
//!
//! # Checked pools
//!
//! A pool made by [`FixedPool::checked`] has one bit per slot, which is set while the slot is in use. A checked pool
//! refuses to free a foreign address, an address inside a slot, or a free slot, and returns a different error for each.
//! A checked pool can [iterate](FixedPool::live) over its slots in use. The bitmap of a checked pool is at the end of
//! the pool's memory. Often the slots leave enough bytes for the bitmap; otherwise the bitmap takes the place of the
//! last slots.
//!
//! ```text
//! |pad| slot | slot | slot | ... | slot |  unused  | bitmap |
//!                                       `-- too small for --'
//!                                             a slot
//! ```
//!
//! Sources: Reinalter, "Memory allocation strategies: a pool allocator" (2012); its comments propose the statistics of
//! [`Usage`] and the bitmap at the end. The comments on Reinalter's post also propose a fill value that marks free
//! slots. This pool does not fill free slots, because an object may contain any value. A pool in the module
//! [`marked`](super::marked) has a mark after each object instead.

use super::area::Area;
use super::bits;
use super::error::{BadFree, PoolError, Refused};
use super::free_list::FreeList;
use super::slot::SlotLayout;
use super::usage::Usage;
use core::alloc::Layout;
use core::ptr::NonNull;

/// A pool whose memory neither grows nor moves. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{FixedPool, HeapArea, Refused, SlotLayout};
///
/// // 256 bullets of 32 bytes: exactly 8,192 bytes.
/// let mut bullets = FixedPool::new(HeapArea::new(8192, 16)?, SlotLayout::new(32, 16)?)?;
/// assert_eq!(bullets.capacity(), 256);
/// let bullet = bullets.alloc(Layout::new::<[f32; 8]>())?;
/// assert_eq!(bullets.alloc(Layout::new::<[f32; 9]>()), Err(Refused::Size { requested: 36, max: 32 }));
/// // SAFETY: allocated above, freed once.
/// unsafe { bullets.free(bullet) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// The area contains `count` slots, the first of which is at `first`. Each slot is in the free list or in use. In a
/// checked pool, the last bytes of the area are a bitmap whose set bits mark the slots in use.
#[derive(Debug)]
pub struct FixedPool<A> {
    free: FreeList,
    first: NonNull<u8>,
    count: usize,
    slots: SlotLayout,
    checked: bool,
    usage: Usage,
    area: A,
}

// SAFETY: slots and bitmap belong to the area, which may be sent to another thread.
unsafe impl<A: Send> Send for FixedPool<A> {}

impl<A: Area> FixedPool<A> {
    /// Makes a pool with as many slots as fit into `area`.
    ///
    /// Cost: the call writes to each slot.
    ///
    /// # Errors
    /// Returns [`PoolError::NoRoom`] if no slot fits into the area.
    pub fn new(area: A, slots: SlotLayout) -> Result<Self, PoolError> {
        Self::build(area, slots, false)
    }
    /// Makes a pool that checks each free (see the [module](self)).
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn checked(area: A, slots: SlotLayout) -> Result<Self, PoolError> {
        Self::build(area, slots, true)
    }

    fn build(area: A, slots: SlotLayout, checked: bool) -> Result<Self, PoolError> {
        let (first, room) = slots.place(area.memory());
        let count = if checked {
            // The largest number of slots that leaves one bit for each slot, which takes (8 * stride + 1) / 8
            // bytes per slot.
            (room as u128 * 8 / (slots.stride() as u128 * 8 + 1)) as usize
        } else {
            room / slots.stride()
        };
        if count == 0 {
            let (memory, bit) = (area.memory(), usize::from(checked));
            let needed = slots.pad(memory.cast::<u8>().addr().get()) + slots.stride() + bit;
            return Err(PoolError::NoRoom { bytes: memory.len(), needed });
        }
        let mut pool =
            Self { free: FreeList::empty(), first, count, slots, checked, usage: Usage::default(), area };
        // SAFETY: the pool owns the area's memory, which has room for `count` slots from `first`
        // on.
        unsafe { pool.free.thread(first, slots.stride(), count) };
        if checked {
            let bitmap = pool.bitmap();
            // SAFETY: the bitmap is the area's last bytes, behind the slots.
            unsafe { bitmap.cast::<u8>().write_bytes(0, bitmap.len()) };
        }
        Ok(pool)
    }

    /// Allocates a slot for `layout`. The allocation uses the slot that was freed most recently. The bytes of the
    /// slot are unspecified.
    ///
    /// Cost: one load from the slot; a checked pool also sets a bit.
    ///
    /// # Errors
    /// Returns an error if the layout does not fit a slot, or [`Refused::Full`] if no slot is free.
    #[inline]
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.alloc_at(layout, 0)
    }
    /// Allocates a slot in which the byte at `offset` is aligned, instead of the first byte.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc), and [`Refused::Offset`] if the pool aligns a different byte.
    #[inline]
    pub fn alloc_at(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        self.slots.admits(layout, offset)?;
        let slot = self.free.obtain().ok_or(Refused::Full)?;
        if self.checked {
            self.mark(slot, true);
        }
        self.usage.alloc(layout.size(), self.slots.stride());
        Ok(slot)
    }

    /// Frees a slot.
    ///
    /// Cost: one store to the slot; a checked pool also divides once and clears a bit.
    ///
    /// # Errors
    /// A checked pool returns an error for an invalid address. An unchecked pool cannot detect an invalid address.
    ///
    /// # Safety
    /// The caller must no longer use the slot. If the pool is unchecked, this pool must have allocated `slot`, and the
    /// slot must not have been freed since.
    #[inline]
    pub unsafe fn free(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
        let slot = if self.checked { self.take_back(slot)? } else { slot };
        // SAFETY: the slot belongs to this pool and is in use, by this function's contract or because its bit was set.
        unsafe { self.free.give(slot) };
        self.usage.free();
        Ok(())
    }

    /// Clears the bit of a slot that is in use.
    fn take_back(&mut self, slot: NonNull<u8>) -> Result<NonNull<u8>, BadFree> {
        let index = self.slots.index(self.first, self.count, slot.addr().get())?;
        let slot = self.slot(index);
        if !self.mark(slot, false) {
            return Err(BadFree::Double { slot: index });
        }
        Ok(slot)
    }
    fn mark(&mut self, slot: NonNull<u8>, allocated: bool) -> bool {
        let index = self.index_of_own_slot(slot);
        // SAFETY: the bitmap is initialised, and only the pool has access to it.
        bits::set_bit(unsafe { self.bitmap().as_mut() }, index, allocated)
    }
    pub(super) fn index_of_own_slot(&self, slot: NonNull<u8>) -> usize {
        (slot.addr().get() - self.first.addr().get()) / self.slots.stride()
    }
    /// Returns the bitmap at the end of the area. Only checked pools have this bitmap.
    fn bitmap(&self) -> NonNull<[u8]> {
        let (memory, bytes) = (self.area.memory(), bits::bytes(self.count));
        // SAFETY: `build` left room for this many bytes after the slots.
        let start = unsafe { memory.cast::<u8>().add(memory.len() - bytes) };
        NonNull::slice_from_raw_parts(start, bytes)
    }

    /// Iterates over the slots in use, in ascending order. Returns `None` for an unchecked pool, which does not record
    /// which slots are in use.
    ///
    /// Cost: one load of the bitmap per 64 slots. The iteration does not read the slots.
    pub fn live(&self) -> Option<impl Iterator<Item = NonNull<u8>>> {
        self.allocated_indexes().map(|indexes| indexes.map(|index| self.slot(index)))
    }
    /// Iterates over the indexes of the slots in use; [`live`](Self::live) iterates over their addresses.
    pub(super) fn allocated_indexes(&self) -> Option<impl Iterator<Item = usize>> {
        // SAFETY: the bitmap is initialised, belongs to the pool alone, and does not change while the pool is borrowed.
        self.checked.then(|| bits::iter_set_bits(unsafe { self.bitmap().as_ref() }))
    }
    pub(super) fn first(&self) -> NonNull<u8> {
        self.first
    }
    /// Returns the address of slot `index`, whether it is in use or free.
    ///
    /// # Panics
    /// Panics if `index` is not below [`capacity`](Self::capacity).
    pub fn slot(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "slot {index} is outside the pool of {} slots", self.count);
        // SAFETY: the area contains `count` slots.
        unsafe { self.first.add(index * self.slots.stride()) }
    }
    /// Returns the index of the slot at an address; the first index is 0.
    ///
    /// # Errors
    /// Returns an error if the address is outside the pool, or inside a slot.
    pub fn index(&self, slot: NonNull<u8>) -> Result<usize, BadFree> {
        self.slots.index(self.first, self.count, slot.addr().get())
    }
    /// Returns `true` if slot `index` is in use. Returns `None` for an unchecked pool.
    pub fn is_live(&self, index: usize) -> Option<bool> {
        // SAFETY: the bitmap is initialised, belongs to the pool alone, and does not change while the pool is borrowed.
        self.checked.then(|| index < self.count && bits::get(unsafe { self.bitmap().as_ref() }, index))
    }
    /// Returns the number of usable bytes of the object at `slot`: at least the requested size.
    ///
    /// # Errors
    /// Returns the errors of [`index`](Self::index).
    pub fn allocation_size(&self, slot: NonNull<u8>) -> Result<usize, BadFree> {
        self.index(slot).map(|_| self.slots.stride())
    }
    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.count
    }
    /// Returns the size and alignment of the largest object.
    pub fn slots(&self) -> SlotLayout {
        self.slots
    }
    /// Returns the usage statistics of the pool.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
    /// Returns the number of slots that the bitmap displaces. The number is 0 if the bitmap fits into the bytes that
    /// the slots leave.
    pub fn displaced(&self) -> usize {
        self.slots.place(self.area.memory()).1 / self.slots.stride() - self.count
    }
    /// Iterates over the free slots, in the order in which they will be allocated.
    pub fn chain(&self) -> super::free_list::Chain<'_> {
        self.free.chain()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::{Borrowed, HeapArea};
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }
    fn pool(bytes: usize, size: usize, align: usize) -> FixedPool<HeapArea> {
        FixedPool::new(HeapArea::new(bytes, 4096).unwrap(), SlotLayout::new(size, align).unwrap()).unwrap()
    }
    fn checked(bytes: usize, size: usize, align: usize) -> FixedPool<HeapArea> {
        FixedPool::checked(HeapArea::new(bytes, 4096).unwrap(), SlotLayout::new(size, align).unwrap())
            .unwrap()
    }

    #[test]
    fn pool_of_256_bullets_takes_8192_bytes() {
        let mut pool = pool(8192, 32, 8);
        let slots: Vec<_> = std::iter::from_fn(|| pool.alloc(layout(32, 8)).ok()).collect();
        assert_eq!((slots.len(), pool.alloc(layout(32, 8))), (256, Err(Refused::Full)));
        let offsets = slots.iter().map(|slot| slot.addr().get() - slots[0].addr().get());
        assert!(offsets.eq((0..256).map(|slot| slot * 32)), "the slots must be adjacent");
    }

    #[test]
    fn fixed_pool_refuses_only_objects_larger_than_a_slot() {
        let mut pool = pool(4096, 16, 32);
        for (size, align) in [(4, 4), (8, 8), (12, 4), (16, 16), (16, 32), (1, 1), (0, 1)] {
            let slot = pool.alloc(layout(size, align)).unwrap();
            assert_eq!(slot.addr().get() % 32, 0);
        }
        assert_eq!(pool.alloc(layout(17, 4)), Err(Refused::Size { requested: 17, max: 16 }));
        assert_eq!(pool.alloc(layout(16, 64)), Err(Refused::Align { requested: 64, max: 32 }));
    }

    #[test]
    fn object_can_use_its_whole_slot() {
        for (size, align, slot) in [(24, 8, 24), (24, 32, 32)] {
            let mut pool = pool(4096, size, align);
            let object = pool.alloc(layout(20, 4)).unwrap();
            assert_eq!(pool.allocation_size(object), Ok(slot));
            assert_eq!(pool.usage().wasted(), slot as u64 - 20);
        }
    }

    #[test]
    fn one_pool_per_size_wastes_less_than_a_shared_pool() {
        let wasted = |sizes: &[usize], slot| {
            let mut pool = pool(8192, slot, 8);
            for &size in sizes {
                pool.alloc(layout(size, 4)).unwrap();
            }
            pool.usage().wasted()
        };
        assert_eq!(wasted(&[8, 16, 24, 32].repeat(10), 32), 10 * (24 + 16 + 8));
        let separate_waste = [8, 16, 24, 32].map(|size| wasted(&[size; 10], size));
        assert_eq!(separate_waste, [0; 4]);
    }

    #[test]
    fn memory_smaller_than_a_slot_is_refused() {
        let build = |bytes, checked| {
            let (area, slots) = (HeapArea::new(bytes, 64).unwrap(), SlotLayout::new(32, 8).unwrap());
            FixedPool::build(area, slots, checked).map(|pool| pool.capacity())
        };
        assert_eq!(build(31, false), Err(PoolError::NoRoom { bytes: 31, needed: 32 }));
        assert_eq!(build(32, false), Ok(1));
        assert_eq!(build(32, true), Err(PoolError::NoRoom { bytes: 32, needed: 33 }));
        assert_eq!(build(33, true), Ok(1));
    }

    #[test]
    fn pool_error_names_the_memory_size_that_fits_one_slot() {
        let mut memory = [const { core::mem::MaybeUninit::uninit() }; 256];
        let start = memory.as_ptr().addr().wrapping_neg() % 64 + 1;
        for checked in [false, true] {
            let mut build = |bytes| {
                let area = Borrowed::from(&mut memory[start..start + bytes]);
                FixedPool::build(area, SlotLayout::new(64, 64).unwrap(), checked).map(|pool| pool.capacity())
            };
            let needed = 63 + 64 + usize::from(checked);
            for bytes in [4, needed - 1] {
                assert_eq!(build(bytes), Err(PoolError::NoRoom { bytes, needed }));
            }
            assert_eq!(build(needed), Ok(1));
        }
    }

    #[test]
    fn slot_bitmap_uses_leftover_bytes_before_displacing_a_slot() {
        // In a page, 85 slots of 48 bytes leave 16 bytes, and their bits take 11 of these.
        let (slack, no_slack) = (checked(4096, 48, 8), checked(4096, 32, 8));
        assert_eq!((slack.capacity(), slack.displaced()), (85, 0));
        assert_eq!((no_slack.capacity(), no_slack.displaced()), (127, 1));
        for bytes in 33..600 {
            let pool = checked(bytes, 24, 8);
            let max = (0_usize..).take_while(|n| n * 24 + n.div_ceil(8) <= bytes).last().unwrap();
            assert_eq!(pool.capacity(), max, "{bytes} bytes");
        }
    }

    #[test]
    fn checked_pool_reports_each_invalid_free() {
        let (mut pool, mut other_pool) = (checked(4096, 48, 8), checked(4096, 48, 8));
        let (object, foreign) =
            (pool.alloc(layout(48, 8)).unwrap(), other_pool.alloc(layout(48, 8)).unwrap());
        let interior_address = object.map_addr(|address| address.checked_add(8).unwrap());
        // SAFETY: the pools are checked, and the slots are not used.
        unsafe {
            let address = foreign.addr().get();
            assert_eq!(pool.free(foreign), Err(BadFree::Foreign { address }));
            let address = interior_address.addr().get();
            assert_eq!(pool.free(interior_address), Err(BadFree::Interior { address, slot: 0 }));
            assert_eq!(
                pool.free(pool.slot(1)),
                Err(BadFree::Double { slot: 1 }),
                "a slot that was never allocated must be refused"
            );
            // The last slot is followed by unused bytes and the bitmap.
            let end = pool.slot(84).add(48);
            assert_eq!(pool.free(end), Err(BadFree::Foreign { address: end.addr().get() }));
            let before = pool.slot(0).map_addr(|address| (address.get() - 48).try_into().unwrap());
            assert_eq!(pool.free(before), Err(BadFree::Foreign { address: before.addr().get() }));
            assert_eq!(pool.usage().live(), 1, "the pool must be unchanged");
            assert_eq!(pool.free(object), Ok(()));
            assert_eq!(pool.free(object), Err(BadFree::Double { slot: 0 }));
        }
        assert_eq!(pool.chain().count(), 85);
    }

    #[test]
    fn checked_pool_tracks_slots_in_use() {
        let mut pool = checked(4096, 48, 8);
        let slots: Vec<_> = (0..80).map(|_| pool.alloc(layout(48, 8)).unwrap()).collect();
        // SAFETY: the slots were allocated above, and each slot is freed once.
        slots.iter().step_by(3).for_each(|&slot| unsafe { pool.free(slot).unwrap() });
        let allocated: Vec<_> =
            slots.iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, &slot)| slot).collect();
        assert_eq!(pool.live().unwrap().collect::<Vec<_>>(), allocated);
        assert_eq!(
            (pool.is_live(0), pool.is_live(1), pool.is_live(84)),
            (Some(false), Some(true), Some(false))
        );
        assert_eq!(pool.is_live(85), Some(false), "a slot that does not exist must be refused");
        assert!(self::pool(4096, 48, 8).live().is_none());
    }
}

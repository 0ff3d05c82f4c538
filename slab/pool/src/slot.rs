//! The layout of a pool's slots: size, alignment, and the offset of the aligned byte.
//!
//! ```text
//! memory   |pad|  slot 0  |  slot 1  |  slot 2  | tail |
//!              |off|       |off|      |off|
//!                  ^ aligned   ^ aligned  ^ aligned         stride = size, rounded up to the alignment
//! ```
//!
//! The *offset* is the position of the aligned byte in a slot: 0, or the number of bytes that an arena puts before an
//! object. The pool inserts padding before the first slot, to align it. The stride is a multiple of the alignment, so
//! all following slots are aligned, too. A pool can have only one offset (Reinalter, "Memory allocation strategies: a
//! pool allocator", 2012).

use super::error::{BadFree, PoolError, Refused};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Size in bytes of the link in a free slot, which is a pointer.
pub const LINK_BYTES: usize = size_of::<usize>();

/// Size, alignment and offset of a pool's slots. See the [module](self).
///
/// # Invariants
/// `align` is a power of two. `stride` is a multiple of `align`, and at least `size` and [`LINK_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    size: usize,
    align: usize,
    offset: usize,
    stride: usize,
    /// `true` if the pool refuses smaller objects and weaker alignments.
    strict: bool,
}

impl SlotLayout {
    /// Makes a layout of slots for objects of at most `size` bytes, aligned to `align`.
    ///
    /// ```
    /// use uslab_pool::SlotLayout;
    ///
    /// assert_eq!(SlotLayout::new(24, 32)?.stride(), 32);
    /// assert_eq!(SlotLayout::new(24, 8)?.stride(), 24);
    /// assert!(SlotLayout::new(4, 4).is_err(), "a link does not fit");
    /// # Ok::<(), uslab_pool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `align` is not a power of two, or if a slot would be too small for a link or larger than
    /// half of the address space.
    pub const fn new(size: usize, align: usize) -> Result<Self, PoolError> {
        if !align.is_power_of_two() {
            return Err(PoolError::Align { align });
        }
        match size.checked_next_multiple_of(align) {
            Some(stride) if stride > isize::MAX as usize => Err(PoolError::Large { size }),
            None => Err(PoolError::Large { size }),
            Some(slot) if slot < LINK_BYTES => Err(PoolError::Small { slot, least: LINK_BYTES }),
            Some(stride) => Ok(Self { size, align, offset: 0, stride, strict: false }),
        }
    }
    /// Aligns the byte at `offset` of each slot, instead of the first byte.
    pub const fn with_offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }
    /// Restricts the slots to objects of exactly this size and alignment. The pool then refuses smaller objects,
    /// because they would silently waste a part of their slot.
    ///
    /// ```
    /// use uslab_pool::{FixedPool, HeapArea, SlotLayout};
    /// use std::alloc::Layout;
    ///
    /// let mut pool = FixedPool::new(HeapArea::new(4096, 8)?, SlotLayout::new(24, 8)?.strict())?;
    /// assert!(pool.alloc(Layout::new::<[u64; 3]>()).is_ok());
    /// assert!(pool.alloc(Layout::new::<[u64; 2]>()).is_err());
    /// # Ok::<(), uslab_pool::PoolError>(())
    /// ```
    pub const fn strict(self) -> Self {
        Self { strict: true, ..self }
    }
    /// Returns the size of the largest object in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }
    /// Returns the largest supported alignment in bytes.
    pub const fn align(&self) -> usize {
        self.align
    }
    /// Returns the offset of the aligned byte in a slot.
    pub const fn offset(&self) -> usize {
        self.offset
    }
    /// Returns the number of bytes from the start of one slot to the start of the next.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the number of padding bytes before the first slot, in memory that begins at `start`.
    pub(crate) const fn pad(&self, start: usize) -> usize {
        start.wrapping_add(self.offset).wrapping_neg() & (self.align - 1)
    }
    /// Returns the start of the first slot in `memory`, and the number of bytes from there to the end of `memory`. If
    /// no slot fits, the returned start may be the end of `memory`.
    pub(crate) fn place(&self, memory: NonNull<[u8]>) -> (NonNull<u8>, usize) {
        let start = memory.cast::<u8>();
        let pad = self.pad(start.addr().get()).min(memory.len());
        // SAFETY: the result is not beyond the end of the memory.
        (unsafe { start.add(pad) }, memory.len() - pad)
    }
    /// Checks that an object of `layout` fits into a slot whose byte at `offset` is aligned.
    pub(crate) const fn admits(&self, layout: Layout, offset: usize) -> Result<(), Refused> {
        if layout.size() > self.size {
            return Err(Refused::Size { requested: layout.size(), max: self.size });
        }
        if layout.align() > self.align {
            return Err(Refused::Align { requested: layout.align(), max: self.align });
        }
        if self.strict && (layout.size() != self.size || layout.align() != self.align) {
            let (size, align) = (layout.size(), layout.align());
            return Err(Refused::Strict { size, align, only: (self.size, self.align) });
        }
        // Alignment to N implies alignment to each smaller power of two, so offsets may differ by multiples of the
        // requested alignment.
        if offset.wrapping_sub(self.offset) & (layout.align() - 1) != 0 {
            return Err(Refused::Offset { requested: offset, aligned: self.offset });
        }
        Ok(())
    }
    pub(crate) fn index(&self, first: NonNull<u8>, count: usize, address: usize) -> Result<usize, BadFree> {
        let bytes = address.wrapping_sub(first.addr().get());
        let slot = bytes / self.stride;
        if slot >= count {
            return Err(BadFree::Foreign { address });
        }
        if !bytes.is_multiple_of(self.stride) {
            return Err(BadFree::Interior { address, slot });
        }
        Ok(slot)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_slot_layout_is_refused_with_the_reason() {
        assert_eq!(SlotLayout::new(32, 24), Err(PoolError::Align { align: 24 }));
        assert_eq!(SlotLayout::new(32, 0), Err(PoolError::Align { align: 0 }));
        assert_eq!(SlotLayout::new(7, 1), Err(PoolError::Small { slot: 7, least: 8 }));
        assert_eq!(SlotLayout::new(0, 8), Err(PoolError::Small { slot: 0, least: 8 }));
        assert_eq!(SlotLayout::new(usize::MAX, 2), Err(PoolError::Large { size: usize::MAX }));
        assert_eq!(SlotLayout::new(1 << 63, 1), Err(PoolError::Large { size: 1 << 63 }));
        assert_eq!(SlotLayout::new(1, 8).map(|slots| slots.stride()), Ok(8));
    }

    #[test]
    fn strict_pool_refuses_objects_of_other_sizes() {
        let strict = SlotLayout::new(24, 8).unwrap().strict();
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        assert_eq!(strict.admits(layout(24, 8), 0), Ok(()));
        for (size, align) in [(20, 8), (24, 4), (0, 8)] {
            let error = strict.admits(layout(size, align), 0);
            assert_eq!(error, Err(Refused::Strict { size, align, only: (24, 8) }));
        }
        assert_eq!(strict.admits(layout(32, 8), 0), Err(Refused::Size { requested: 32, max: 24 }));
        let message = strict.admits(layout(20, 4), 0).unwrap_err().to_string();
        assert_eq!(
            message,
            "20 bytes aligned to 4 are not the 24 bytes aligned to 8 that this strict pool serves"
        );
        // Without `strict`, smaller objects get a whole slot.
        assert_eq!(SlotLayout::new(24, 8).unwrap().admits(layout(20, 4), 0), Ok(()));
    }

    #[test]
    fn all_slots_of_a_pool_share_one_alignment_offset() {
        let slots = SlotLayout::new(40, 8).unwrap().with_offset(4);
        let layout = |align| Layout::from_size_align(32, align).unwrap();
        assert_eq!(slots.admits(layout(8), 4), Ok(()));
        assert_eq!(slots.admits(layout(8), 12), Ok(()));
        assert_eq!(slots.admits(layout(8), 0), Err(Refused::Offset { requested: 0, aligned: 4 }));
        assert_eq!(slots.admits(layout(4), 0), Ok(()));
    }

    proptest! {
        /// Tests that the byte at the offset is aligned in each slot, with the least padding, for any start, alignments
        /// 1 to 4096, and offsets 0 to 63.
        #[test]
        fn address_at_the_offset_of_each_slot_is_aligned(
            start in any::<usize>(), log in 0..13_u32, offset in 0..64_usize, size in 8..300_usize,
        ) {
            let slots = SlotLayout::new(size, 1 << log).unwrap().with_offset(offset);
            let pad = slots.pad(start);
            prop_assert!(pad < slots.align());
            for slot in 0..20 {
                let byte = start.wrapping_add(pad).wrapping_add(slot * slots.stride()).wrapping_add(offset);
                for smaller in 0..=log {
                    prop_assert_eq!(byte % (1 << smaller), 0);
                }
            }
        }
    }
}

//! Bootstrap memory, which serves allocations while [`Uslab`](crate::Uslab) starts.
//!
//! The starting thread allocates memory during the start, and other threads may allocate concurrently. Allocations
//! during a start take the next bytes of a static range and are never freed. Allocations during a start are few, and
//! most of them live as long as the process. When the range is used up, another range is mapped.
//!
//! The word before each allocation contains the allocation's size, because C programs free and reallocate
//! without a size.

use core::alloc::Layout;
use core::ptr::{NonNull, null};
use uslab_buddy::Backend;
use uslab_buddy::region::Region;
use uslab_buddy::{Faults, PAGE_SIZE};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed};
use uslab_magazine::sync::{AtomicPtr, AtomicUsize, UnsafeCell};

/// Size of the static range in bytes, which is more than twice what a start allocates. Untouched bytes of the range
/// take no memory.
const STATIC_RANGE_BYTES: usize = 1 << 20;
/// Minimum size of each further range in bytes.
const MIN_BYTES: usize = 1 << 20;
/// Number of bytes before each allocation, which contain its size.
const WORD: usize = size_of::<usize>();

/// A memory range whose bytes are handed out in order. A mapped range begins with this descriptor.
struct Range {
    base: *mut u8,
    bytes: usize,
    used: AtomicUsize,
    /// The previous, used-up range; null for the static range.
    before: *const Range,
}

// SAFETY: base and length never change, and each thread gets different bytes.
unsafe impl Sync for Range {}

struct Bytes(UnsafeCell<[u8; STATIC_RANGE_BYTES]>);
// SAFETY: the bytes are accessed only through a range, from which each thread gets different bytes.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; STATIC_RANGE_BYTES]));
static FIRST_BOOTSTRAP_RANGE: Range = Range {
    base: (&raw const BYTES.0).cast::<u8>().cast_mut(),
    bytes: STATIC_RANGE_BYTES,
    used: AtomicUsize::new(0),
    before: null(),
};
/// Newest range; null if the static range is the newest.
static NEWEST_BOOTSTRAP_RANGE: AtomicPtr<Range> = AtomicPtr::new(core::ptr::null_mut());

impl Range {
    fn newest() -> &'static Self {
        // Acquire: pairs with the Release in `grow`, so that the reader finds the range initialised. SAFETY: the
        // pointer is null or a published range, which is never unmapped.
        unsafe { NEWEST_BOOTSTRAP_RANGE.load(Acquire).as_ref() }.unwrap_or(&FIRST_BOOTSTRAP_RANGE)
    }

    /// Takes the next bytes of the range for `layout`. The bytes are zero.
    fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let align = layout.align().max(WORD);
        // Relaxed: this counter alone decides which thread gets the bytes.
        let mut used = self.used.load(Relaxed);
        loop {
            let start = (self.base.addr() + used + WORD).checked_next_multiple_of(align)? - self.base.addr();
            let end = start.checked_add(layout.size())?;
            if end > self.bytes {
                return None;
            }
            match self.used.compare_exchange_weak(used, end.next_multiple_of(WORD), Relaxed, Relaxed) {
                Ok(_) => {
                    // SAFETY: `start - WORD..end` is in the range, and only this thread has these bytes.
                    let piece = unsafe { NonNull::new_unchecked(self.base.add(start)) };
                    // SAFETY: only this thread has the allocation, which is aligned to a word.
                    unsafe { piece.cast::<usize>().sub(1).write(layout.size()) };
                    return Some(piece);
                }
                Err(now) => used = now,
            }
        }
    }

    /// Maps a new range with room for `layout` after `newest`, unless another thread has already mapped one.
    fn grow(newest: &'static Self, layout: Layout) -> Option<()> {
        let needed = layout.size().checked_add(layout.align().max(WORD) + size_of::<Self>() + 2 * WORD)?;
        let region = Region::committed(needed.max(MIN_BYTES), PAGE_SIZE, Backend::Os, &Faults::default())?;
        let header = region.base().cast::<Self>();
        let used = AtomicUsize::new(size_of::<Self>());
        // SAFETY: the region was just mapped, is aligned to a page, and is larger than the descriptor.
        unsafe {
            header.write(Self { base: region.base().as_ptr(), bytes: region.bytes(), used, before: newest })
        };
        let expected =
            if core::ptr::eq(newest, &FIRST_BOOTSTRAP_RANGE) { null() } else { core::ptr::from_ref(newest) };
        // Release: pairs with the Acquire in `newest`. If the exchange fails, nothing of the other
        // range is read.
        if NEWEST_BOOTSTRAP_RANGE
            .compare_exchange(expected.cast_mut(), header.as_ptr(), AcqRel, Relaxed)
            .is_ok()
        {
            core::mem::forget(region);
        }
        Some(())
    }
}

/// Allocates zeroed memory that is never freed; returns `None` if the system refuses to map more
/// memory.
#[cold]
pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    loop {
        let newest = Range::newest();
        if let Some(piece) = newest.alloc(layout) {
            return Some(piece);
        }
        Range::grow(newest, layout)?;
    }
}

/// Returns the size in bytes of the allocation at `memory`, or `None` if `memory` is not in a bootstrap range.
#[cold]
pub(crate) fn bootstrap_allocation_size(memory: NonNull<u8>) -> Option<usize> {
    let mut range = Range::newest();
    loop {
        if memory.addr().get().wrapping_sub(range.base.addr()) < range.bytes {
            // SAFETY: if a caller has an address in a range, it is the address of an allocation, whose size
            // precedes it.
            return Some(unsafe { memory.cast::<usize>().sub(1).read_unaligned() });
        }
        // SAFETY: the pointer is null or the previous range, which is never unmapped.
        range = unsafe { range.before.as_ref() }?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_allocations_do_not_overlap() {
        let mut blocks: Vec<(NonNull<u8>, usize)> = vec![];
        for i in 0..200 {
            let (size, align) = (i * 257, 1 << (i % 13));
            let piece = alloc(Layout::from_size_align(size, align).unwrap()).unwrap();
            assert!(piece.addr().get().is_multiple_of(align));
            // SAFETY: the allocation has `size` bytes.
            let bytes = unsafe { core::slice::from_raw_parts_mut(piece.as_ptr(), size) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(i as u8);
            blocks.push((piece, size));
        }
        let large_block = alloc(Layout::from_size_align(3 * MIN_BYTES, 1 << 16).unwrap()).unwrap();
        assert_eq!(bootstrap_allocation_size(large_block), Some(3 * MIN_BYTES));
        for (i, (piece, size)) in blocks.into_iter().enumerate() {
            // SAFETY: the allocation has `size` bytes.
            let bytes = unsafe { core::slice::from_raw_parts(piece.as_ptr(), size) };
            assert!(bytes.iter().all(|byte| *byte == i as u8), "piece {i}");
            assert_eq!(bootstrap_allocation_size(piece), Some(size));
        }
        assert_eq!(bootstrap_allocation_size(NonNull::from(&STATIC_RANGE_BYTES).cast()), None);
    }
}

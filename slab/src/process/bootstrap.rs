//! Memory for what is allocated before there is an allocator: while [`Uslab`](crate::Uslab) starts.
//!
//! Starting a subsystem allocates, on the starting thread and, beside it, on any other. What it allocates then is bumped off
//! a static range and never taken back: it is little, and most of it lives as long as the process. Where that range
//! ends, the next one is mapped.
//!
//! Each piece has its size in the word before it, for C programs, who free and reallocate without saying it.

use core::alloc::Layout;
use core::ptr::{NonNull, null};
use uslab_buddy::Backend;
use uslab_buddy::region::Region;
use uslab_buddy::{Faults, PAGE_SIZE};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed};
use uslab_magazine::sync::{AtomicPtr, AtomicUsize, UnsafeCell};

/// Bytes of the static range: more than twice what a start allocates. Never touched, they cost nothing.
const FIRST: usize = 1 << 20;
/// Bytes of each range after it, at least.
const NEXT: usize = 1 << 20;
/// Bytes of the size in front of a piece.
const WORD: usize = size_of::<usize>();

/// A range that pieces are bumped off. One that was mapped describes itself in its first bytes.
struct Range {
    base: *mut u8,
    bytes: usize,
    used: AtomicUsize,
    /// The range before it.
    before: *const Range,
}

// SAFETY: base and bytes are fixed, and each thread gets other bytes of it.
unsafe impl Sync for Range {}

struct Bytes(UnsafeCell<[u8; FIRST]>);
// SAFETY: as of a range.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; FIRST]));
static STATIC: Range = Range {
    base: (&raw const BYTES.0).cast::<u8>().cast_mut(),
    bytes: FIRST,
    used: AtomicUsize::new(0),
    before: null(),
};
/// The newest range. Null is the static one.
static NEWEST: AtomicPtr<Range> = AtomicPtr::new(core::ptr::null_mut());

impl Range {
    fn newest() -> &'static Self {
        // Acquire: pairs with the Release in `grow`, so that the range is found complete.
        // SAFETY: null, or a range that is never unmapped once it was published.
        unsafe { NEWEST.load(Acquire).as_ref() }.unwrap_or(&STATIC)
    }

    /// The next bytes for `layout`, zero.
    fn take(&self, layout: Layout) -> Option<NonNull<u8>> {
        let align = layout.align().max(WORD);
        // Relaxed: the one word says whose the bytes are.
        let mut used = self.used.load(Relaxed);
        loop {
            let start = (self.base.addr() + used + WORD).checked_next_multiple_of(align)? - self.base.addr();
            let end = start.checked_add(layout.size())?;
            if end > self.bytes {
                return None;
            }
            match self.used.compare_exchange_weak(used, end.next_multiple_of(WORD), Relaxed, Relaxed) {
                Ok(_) => {
                    // SAFETY: `start - WORD..end` lies in the range and is nobody else's.
                    let piece = unsafe { NonNull::new_unchecked(self.base.add(start)) };
                    // SAFETY: as above; pieces are aligned to a word.
                    unsafe { piece.cast::<usize>().sub(1).write(layout.size()) };
                    return Some(piece);
                }
                Err(now) => used = now,
            }
        }
    }

    /// Maps a range that has room for `layout` behind `newest`, unless somebody else just did.
    fn grow(newest: &'static Self, layout: Layout) -> Option<()> {
        let need = layout.size().checked_add(layout.align().max(WORD) + size_of::<Self>() + 2 * WORD)?;
        let region = Region::committed(need.max(NEXT), PAGE_SIZE, Backend::Os, &Faults::default())?;
        let own = region.base().cast::<Self>();
        let used = AtomicUsize::new(size_of::<Self>());
        // SAFETY: mapped just now, aligned to a page, and larger than this.
        unsafe {
            own.write(Self { base: region.base().as_ptr(), bytes: region.bytes(), used, before: newest })
        };
        let expected = if core::ptr::eq(newest, &STATIC) { null() } else { core::ptr::from_ref(newest) };
        // Release: pairs with the Acquire in `newest`. The failure tells nothing that is used.
        if NEWEST.compare_exchange(expected.cast_mut(), own.as_ptr(), AcqRel, Relaxed).is_ok() {
            core::mem::forget(region);
        }
        Some(())
    }
}

/// Zeroed memory that is never taken back; `None` if the system maps no more.
#[cold]
pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    loop {
        let newest = Range::newest();
        if let Some(piece) = newest.take(layout) {
            return Some(piece);
        }
        Range::grow(newest, layout)?;
    }
}

/// Bytes of the piece at `memory`; `None` if it is none.
#[cold]
pub(crate) fn size_of_piece(memory: NonNull<u8>) -> Option<usize> {
    let mut range = Range::newest();
    loop {
        if memory.addr().get().wrapping_sub(range.base.addr()) < range.bytes {
            // SAFETY: an address in a range is that of a piece, whose size stands before it; or the caller has none.
            return Some(unsafe { memory.cast::<usize>().sub(1).read_unaligned() });
        }
        // SAFETY: null, or the range before, which is never unmapped.
        range = unsafe { range.before.as_ref() }?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_aligned_zero_and_remembered_beyond_the_static_range() {
        let mut held: Vec<(NonNull<u8>, usize)> = vec![];
        for i in 0..200 {
            let (size, align) = (i * 257, 1 << (i % 13));
            let piece = alloc(Layout::from_size_align(size, align).unwrap()).unwrap();
            assert!(piece.addr().get().is_multiple_of(align));
            // SAFETY: so many bytes are ours.
            let bytes = unsafe { core::slice::from_raw_parts_mut(piece.as_ptr(), size) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(i as u8);
            held.push((piece, size));
        }
        let large = alloc(Layout::from_size_align(3 * NEXT, 1 << 16).unwrap()).unwrap();
        assert_eq!(size_of_piece(large), Some(3 * NEXT));
        for (i, (piece, size)) in held.into_iter().enumerate() {
            // SAFETY: as above.
            let bytes = unsafe { core::slice::from_raw_parts(piece.as_ptr(), size) };
            assert!(bytes.iter().all(|byte| *byte == i as u8), "piece {i}");
            assert_eq!(size_of_piece(piece), Some(size));
        }
        assert_eq!(size_of_piece(NonNull::from(&FIRST).cast()), None);
    }
}

//! Memory from the system's heap, where nothing can be mapped, or should not be.
//!
//! The heap knows neither reserved memory nor protection: all of it is had from the start and stays accessible. What is
//! decommitted is overwritten with zeros, so that memory is zero whenever it is committed, as a mapping's is.

use super::{Access, HugePages, Source};
use core::ptr::NonNull;
use std::alloc::{GlobalAlloc, Layout, System};

/// A piece of the heap: not of the global allocator, which may stand on this.
#[derive(Debug)]
pub(super) struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

/// Aligned to this, the heap finds zeroed memory without writing to all of it; what is to be aligned to more is so by hand.
const ALIGN: usize = 16;

// SAFETY: zeroed and large enough for `bytes` behind the first address that is aligned; nobody else's until `dealloc`.
unsafe impl Source for Heap {
    fn new(bytes: usize, align: usize, _: Access) -> Option<(NonNull<u8>, Self)> {
        let layout = Layout::from_size_align(bytes.checked_add(align)?, ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { System.alloc_zeroed(layout) })?;
        // SAFETY: below `align`, and there are so many bytes more.
        let base = unsafe { start.add(start.as_ptr().align_offset(align)) };
        Some((base, Self { start, layout }))
    }

    unsafe fn commit(&self, _: NonNull<u8>, _: usize) -> bool {
        true
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, _: Access) -> bool {
        // SAFETY: our own bytes, which nobody uses, by contract.
        unsafe { at.write_bytes(0, bytes) };
        true
    }

    /// Whoever reads meanwhile would race with the zeros.
    unsafe fn discard(&self, _: NonNull<u8>, _: usize) -> bool {
        false
    }

    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>> {
        if !may_move {
            // It keeps its room when it shrinks, and does not find it again.
            return (new <= old).then_some(at);
        }
        let (moved, mut piece) = Self::new(new, crate::PAGE_SIZE, Access::ReadWrite)?;
        // SAFETY: both are so long, and apart.
        unsafe { moved.copy_from_nonoverlapping(at, old.min(new)) };
        core::mem::swap(self, &mut piece);
        // SAFETY: what it was is copied, and its caller takes the new place.
        unsafe { piece.free(at, old) };
        Some(moved)
    }

    unsafe fn advise(&self, _: NonNull<u8>, _: usize, _: HugePages) -> bool {
        true
    }

    unsafe fn free(&mut self, _: NonNull<u8>, _: usize) -> bool {
        // SAFETY: allocated in `new` with this layout.
        unsafe { System.dealloc(self.start.as_ptr(), self.layout) };
        true
    }
}

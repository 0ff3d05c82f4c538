//! Regions in heap memory, for systems without `mmap` and for programs that must not call it.
//!
//! The heap cannot reserve addresses without memory, and cannot protect memory. A heap region is allocated completely
//! from the start and stays accessible. A decommit overwrites heap memory with zeros, so that the next commit finds
//! zeroed memory, as with `mmap`.

use super::{Access, HugePages, Source};
use core::ptr::NonNull;
use std::alloc::{GlobalAlloc, Layout, System};

/// A heap allocation from the standard library's system allocator. The region cannot use the global allocator, because
/// that allocator may be built on this crate.
#[derive(Debug)]
pub(super) struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

/// Alignment of heap allocations in bytes. With an alignment of 16, the heap can return zeroed memory without writing
/// to it. For a larger alignment, `new` allocates more bytes than requested.
const ALIGN: usize = 16;

// SAFETY: the memory is zeroed, has `bytes` bytes from the first aligned address on, and belongs to this value until
// `dealloc`.
unsafe impl Source for Heap {
    fn new(bytes: usize, align: usize, _: Access) -> Option<(NonNull<u8>, Self)> {
        let layout = Layout::from_size_align(bytes.checked_add(align)?, ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { System.alloc_zeroed(layout) })?;
        // SAFETY: the offset is below `align`, and the allocation has `align` extra bytes.
        let base = unsafe { start.add(start.as_ptr().align_offset(align)) };
        Some((base, Self { start, layout }))
    }

    unsafe fn commit(&self, _: NonNull<u8>, _: usize) -> bool {
        true
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, _: Access) -> bool {
        // SAFETY: the bytes belong to this piece of the heap, and no thread uses them, by this function's contract.
        unsafe { at.write_bytes(0, bytes) };
        true
    }

    /// Always refuses, because overwriting the memory with zeros would race with concurrent readers.
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
            // A piece shrinks in place; its end stays unused. Heap memory cannot grow in place.
            return (new <= old).then_some(at);
        }
        let (moved, mut piece) = Self::new(new, crate::PAGE_SIZE, Access::ReadWrite)?;
        // SAFETY: both pieces have this length, and do not overlap.
        unsafe { moved.copy_from_nonoverlapping(at, old.min(new)) };
        core::mem::swap(self, &mut piece);
        // SAFETY: the old contents are copied, and the caller uses the new address.
        unsafe { piece.free(at, old) };
        Some(moved)
    }

    unsafe fn advise(&self, _: NonNull<u8>, _: usize, _: HugePages) -> bool {
        true
    }

    unsafe fn free(&mut self, _: NonNull<u8>, _: usize) -> bool {
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { System.dealloc(self.start.as_ptr(), self.layout) };
        true
    }
}

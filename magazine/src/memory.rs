//! The memory that a [`Table`](crate::Table) lies in.

use crate::tracepoints::Operation;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// One range of addresses for a table: readable as zero from the start, writable where it was committed.
///
/// # Safety
/// `base` is aligned to [`ALIGN`]; `bytes` bytes from there on stay where they are, and are nobody else's, until the value
/// is dropped. They read as zero until they are written to. What [`commit`](Memory::commit) has granted may be written to.
///
/// # Panics
/// [`commit`](Memory::commit) and [`decommit`](Memory::decommit) run with locks of the table held, so they must not use the table. A
/// panic of theirs is contained and counts as a refusal; while a table is made, it reaches [`Table::new`](crate::Table::new)'s caller.
pub unsafe trait Memory: Send + Sync {
    /// The first byte; aligned to [`ALIGN`].
    fn base(&self) -> NonNull<u8>;
    /// How many there are.
    fn bytes(&self) -> usize;
    /// Makes `range` (bytes from the base) writable on behalf of `op`; `false` if that cannot be had. What was granted stays
    /// granted; granting twice is harmless.
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool;
    /// Gives the memory behind `range` (whole pages, in bytes from the base, granted before) back to the system. It reads as
    /// zero then, and stays granted. `false`, with nothing changed, where that cannot be done.
    ///
    /// # Safety
    /// Nobody writes there meanwhile, nor minds that what lies there becomes zero.
    unsafe fn decommit(&self, _range: Range<usize>) -> bool {
        false
    }
}

/// The alignment of a [`Memory`], in bytes.
#[doc(hidden)]
pub const ALIGN: usize = 4096;

/// [`Memory`] from the global allocator, all of it writable.
#[derive(Debug)]
pub struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the range is owned by the value and only handed out by address.
unsafe impl Send for Heap {}
// SAFETY: as above; no method writes to it.
unsafe impl Sync for Heap {}

impl Heap {
    /// A range of `bytes` bytes, or `None` if the global allocator refuses.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

// SAFETY: allocated zeroed with that alignment, owned until drop, all of it usable from the start.
unsafe impl Memory for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.layout.size()
    }
    fn commit(&self, _: &Operation, range: Range<usize>) -> bool {
        range.end <= self.layout.size()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

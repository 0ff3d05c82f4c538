//! The memory of a [`Table`](crate::Table).

use crate::tracepoints::Operation;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// One address range for a table, readable as zero from the start and writable after a commit.
///
/// # Safety
/// `base` is aligned to [`ALIGN`]. The `bytes` bytes from there on do not move, and no other code uses them,
/// until the value is dropped. They read as zero until they are written. Memory that
/// [`commit`](Memory::commit) granted is writable.
///
/// # Panics
/// [`commit`](Memory::commit) and [`decommit`](Memory::decommit) run with locks of the table held, so they
/// must not use the table. A panic in them is contained and counts as a refusal; during the creation of a
/// table it reaches the caller of [`Table::new`](crate::Table::new).
pub unsafe trait Memory: Send + Sync {
    /// The first byte; aligned to [`ALIGN`].
    fn base(&self) -> NonNull<u8>;
    /// Number of bytes.
    fn bytes(&self) -> usize;
    /// Makes `range` (bytes from the base) writable, as part of `op`; `false` if the system refuses. Granted
    /// memory stays writable; granting twice is harmless.
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool;
    /// Returns the memory behind `range` (whole pages, in bytes from the base, granted before) to the system.
    /// The range then reads as zero and stays writable. `false`, with nothing changed, if that fails.
    ///
    /// # Safety
    /// No thread writes to the range during the call, or relies on its contents.
    unsafe fn decommit(&self, _range: Range<usize>) -> bool {
        false
    }
}

/// Alignment of a [`Memory`], in bytes.
#[doc(hidden)]
pub const ALIGN: usize = 4096;

/// [`Memory`] from the global allocator, all of it writable.
#[derive(Debug)]
pub struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns the range, and only returns its address.
unsafe impl Send for Heap {}
// SAFETY: the value owns the range, and no method writes to it.
unsafe impl Sync for Heap {}

impl Heap {
    /// Allocates `bytes` bytes; `None` if the global allocator refuses.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

// SAFETY: the range was allocated zeroed with that alignment, is writable, and belongs to this value until it
// is dropped.
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
        // SAFETY: `new` allocated the range with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

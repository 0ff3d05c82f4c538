//! The memory of a [`Table`](crate::Table).

use crate::tracepoints::Operation;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// An address range for a table. The range reads as zero from the start, and is writable after a commit.
///
/// # Safety
/// `base` is aligned to [`ALIGN`]. The `bytes` bytes from `base` do not move until the value is dropped, and no other
/// code uses them. Unwritten bytes of the range read as zero. Memory that [`commit`](Memory::commit) granted is
/// writable.
///
/// # Panics
/// [`commit`](Memory::commit) and [`decommit`](Memory::decommit) run with locks of the table held, so they must not use
/// the table. A panic in `commit` or `decommit` is caught and counts as a refusal. During the creation of a table, the
/// panic reaches the caller of [`Table::new`](crate::Table::new).
pub unsafe trait Memory: Send + Sync {
    /// The first byte of the range, aligned to [`ALIGN`].
    fn base(&self) -> NonNull<u8>;
    /// Size of the range in bytes.
    fn bytes(&self) -> usize;
    /// Makes `range` (in bytes from the base) writable, as part of `op`. Returns `false` if the system refuses. Memory
    /// that was granted stays writable. Granting a range twice is harmless.
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool;
    /// Returns the memory behind `range` to the system. `range` consists of whole pages that were granted before, in
    /// bytes from the base. After a decommit, the range reads as zero and stays writable. Returns `false` and changes
    /// nothing if the system refuses.
    ///
    /// # Safety
    /// No thread may write to the range during the call, or rely on its contents.
    unsafe fn decommit(&self, _range: Range<usize>) -> bool {
        false
    }
}

/// Alignment of a [`Memory`], in bytes.
pub const ALIGN: usize = 4096;

/// [`Memory`] from the global allocator. The whole range is writable.
#[derive(Debug)]
pub struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns the range, and only returns the range's address.
unsafe impl Send for Heap {}
// SAFETY: the value owns the range, and no method writes to the range.
unsafe impl Sync for Heap {}

impl Heap {
    /// Allocates `bytes` bytes. Returns `None` if the global allocator refuses.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

// SAFETY: the range was allocated zeroed with that alignment, is writable, and belongs to this value until its drop.
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

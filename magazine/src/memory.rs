//! The memory in which a [`Table`](crate::Table) is stored.

use crate::tracepoints::Operation;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// The address range in which a table is stored. The range initially reads as zero, and each part becomes writable by a
/// commit.
///
/// # Safety
/// The address `base` must be aligned to [`ALIGN`]. The `bytes` bytes from `base` must stay in place until the value is
/// dropped, and no other code may use them. Bytes of the range that were never written must read as zero. Memory must
/// be writable after a successful [`commit`](Memory::commit).
///
/// # Panics
/// [`commit`](Memory::commit) and [`decommit`](Memory::decommit) must not use the table, because they run while locks
/// of the table are held. If `commit` or `decommit` panics, the table catches the panic and treats it as a refusal.
/// A panic propagates to the caller of [`Table::new`](crate::Table::new) only while a table is created.
pub unsafe trait Memory: Send + Sync {
    /// Returns the address of the first byte of the range, aligned to [`ALIGN`].
    fn base(&self) -> NonNull<u8>;
    /// Size of the range in bytes.
    fn bytes(&self) -> usize;
    /// Makes `range`, in bytes from the base, writable, as a part of the operation `op`. Returns `false` if the OS
    /// refuses to commit the memory. Committed memory stays writable. Committing the same range twice must be harmless.
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool;
    /// Returns the memory of `range` to the OS. The range is in bytes from the base, and consists of whole committed
    /// pages. After a decommit, the range reads as zero and stays writable. Returns `false` and changes nothing if the
    /// OS does not take the memory back.
    ///
    /// # Safety
    /// During the call, no thread may write to the range or rely on its contents.
    unsafe fn decommit(&self, _range: Range<usize>) -> bool {
        false
    }
}

/// Required alignment of a table's [`Memory`], in bytes.
pub const ALIGN: usize = 4096;

/// A [`Memory`] that is allocated from the global allocator. The whole range is writable from the start.
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
    /// Allocates `bytes` zeroed bytes. Returns `None` if the global allocator has no memory.
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

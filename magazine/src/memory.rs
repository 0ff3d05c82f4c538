//! The memory that a layer keeps its slots and magazines in.

use crate::paths::Operation;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// One range of memory for slots and magazines.
///
/// The layer writes into it from the start upwards and calls [`commit`](Memory::commit) before it goes further.
///
/// # Safety
/// `base` is aligned to 128 bytes; what `commit` has granted is zero at first, readable and writable, is used by
/// nobody else, and stays where it is until the value is dropped.
pub unsafe trait Memory: Send + Sync {
    /// The first byte; aligned to 128 bytes.
    fn base(&self) -> NonNull<u8>;
    /// Makes the first `bytes` bytes usable on behalf of `op`; `false` if the range has fewer or they cannot be had. What was
    /// granted stays granted.
    fn commit(&self, op: &Operation, bytes: usize) -> bool;
}

/// [`Memory`] from the global allocator.
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
        let layout = Layout::from_size_align(bytes.max(1), 128).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

// SAFETY: allocated zeroed with an alignment of 128, owned until drop, all of it usable from the start.
unsafe impl Memory for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn commit(&self, _: &Operation, bytes: usize) -> bool {
        bytes <= self.layout.size()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

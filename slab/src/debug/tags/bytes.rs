//! Tags stored as bytes of reserved memory.

use super::BYTES_PER_TAG;
use uslab_buddy::region::Reserved;
use uslab_magazine::sync::AtomicU8;

#[derive(Debug)]
pub(super) struct Bytes;

impl Bytes {
    pub(super) fn new(_bytes: usize) -> Self {
        Self
    }
    /// Returns the tag for the byte at `offset` in the pages; never returns `None`.
    ///
    /// # Safety
    /// The memory of the tag must be committed.
    #[inline(always)]
    pub(super) unsafe fn at<'a>(&'a self, memory: &'a Reserved, offset: usize) -> Option<&'a AtomicU8> {
        // SAFETY: by contract, the tag is committed. An atomic byte has the layout of a byte, and all
        // accesses to the tag are atomic.
        Some(unsafe { memory.base().add(offset / BYTES_PER_TAG).cast::<AtomicU8>().as_ref() })
    }
}

//! Tags are bytes of memory.

use super::GRAIN;
use uslab_buddy::region::Reserved;
use uslab_magazine::sync::AtomicU8;

#[derive(Debug)]
pub(super) struct Bytes;

impl Bytes {
    pub(super) fn new(_bytes: usize) -> Self {
        Self
    }
    /// Tag at `offset` bytes from the start of the range. Never `None`.
    ///
    /// # Safety
    /// The tag is committed.
    #[inline(always)]
    pub(super) unsafe fn at<'a>(&'a self, memory: &'a Reserved, offset: usize) -> Option<&'a AtomicU8> {
        // SAFETY: committed, by this function's contract; an atomic byte is a byte, and all accesses use it.
        Some(unsafe { memory.base().add(offset / GRAIN).cast::<AtomicU8>().as_ref() })
    }
}

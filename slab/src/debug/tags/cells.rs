//! Tags in the builds for model checkers, whose atomics cannot be zeroed bytes.

use super::BYTES_PER_TAG;
use crate::geometry::SPACING;
use uslab_buddy::region::Reserved;
use uslab_magazine::sync::AtomicU8;

/// One tag for each position at which an object may begin.
#[derive(Debug)]
pub(super) struct Bytes(Box<[AtomicU8]>);

impl Bytes {
    pub(super) fn new(bytes: usize) -> Self {
        Self((0..bytes * BYTES_PER_TAG / SPACING).map(|_| AtomicU8::new(0)).collect())
    }
    /// Returns the tag for the byte at `offset` in the pages, or `None` if no object can begin there.
    ///
    /// # Safety
    /// In this build, the function has no safety condition.
    pub(super) unsafe fn at(&self, _: &Reserved, offset: usize) -> Option<&AtomicU8> {
        offset.is_multiple_of(SPACING).then(|| &self.0[offset / SPACING])
    }
}

//! Tags as a checker sees them: its atomics are no bytes of zero.

use super::GRAIN;
use crate::geometry::SPACING;
use uslab_buddy::region::Reserved;
use uslab_magazine::sync::AtomicU8;

/// One for each place where an object may begin.
#[derive(Debug)]
pub(super) struct Bytes(Box<[AtomicU8]>);

impl Bytes {
    pub(super) fn new(bytes: usize) -> Self {
        Self((0..bytes * GRAIN / SPACING).map(|_| AtomicU8::new(0)).collect())
    }
    /// `None` if no object begins there.
    ///
    /// # Safety
    /// As of bytes of memory.
    pub(super) unsafe fn at(&self, _: &Reserved, offset: usize) -> Option<&AtomicU8> {
        offset.is_multiple_of(SPACING).then(|| &self.0[offset / SPACING])
    }
}

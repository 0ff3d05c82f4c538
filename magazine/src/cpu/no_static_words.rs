//! A placeholder for static per-CPU pointers, in builds without restartable sequences.

use super::regions::Words;

/// Static per-CPU pointers, which this build does not use.
#[derive(Debug)]
pub struct StaticWords(());

impl StaticWords {
    /// Creates static per-CPU pointers that are never used.
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(())
    }
    pub(crate) fn take(&self, _: usize) -> bool {
        false
    }
    pub(crate) fn give_back(&self) {}
    pub(crate) fn word(&self, _: Words, _: usize) -> &crate::sync::AtomicPtr<u8> {
        unreachable!("no table has static words on this target")
    }
}

//! A table's words in a static of the program, for builds without restartable sequences.

use super::regions::Words;

/// Words that no table uses: there are no restartable sequences.
#[derive(Debug)]
pub struct StaticWords(());

impl StaticWords {
    /// Creates unused words.
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(())
    }
    pub(crate) fn take(&self, _: usize) -> bool {
        false
    }
    pub(crate) fn give_back(&self) {}
    pub(crate) fn word(&self, _: Words, _: usize) -> &crate::sync::AtomicPtr<u8> {
        unreachable!("no table has them")
    }
}

//! Bugs that models plant on purpose, to show that they would be seen. Shipping builds have none of it.

/// One bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A freed block merges with its buddy whether that is free or not.
    MergeBlind,
    /// A freed block stays as it is though its buddy is free.
    MergeNever,
    /// A buddy is found free in one hold of the zone lock and merged with in the next.
    MergeAcrossLocks,
    /// A block leaves its free list under the lock, and its frame says so only afterwards.
    LateState,
    /// A block's owner is cleared when the block is on the free list already.
    LateOwner,
    /// A page is put into a magazine first and marked as being there afterwards.
    LatePark,
}

/// Whether a bug is planted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(all(test, loom))]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    /// Whether this bug is planted; `false` at compile time outside models.
    #[inline(always)]
    pub(crate) const fn is(self, _bug: Bug) -> bool {
        #[cfg(all(test, loom))]
        return matches!(self.bug, Some(bug) if bug as u8 == _bug as u8);
        #[cfg(not(all(test, loom)))]
        return false;
    }
}

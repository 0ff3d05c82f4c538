//! The door of a cache: who is inside without a handle, and whether there is an owner. See [`owner`](super::owner).

use core::fmt;
use std::sync::Arc;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Rank};

#[derive(Default)]
pub(super) enum End<C> {
    #[default]
    Owned,
    Ownerless,
    /// With objects in use: the cache keeps itself.
    Left(#[allow(dead_code, reason = "held, not read")] Arc<C>),
    Over,
}

pub(crate) struct Counted<C> {
    /// Who is in: visitors, and who sees to the end. The lock protects it, or the fork that holds the lock.
    pub(super) now: Counter,
    /// Visitors that ever were.
    pub(super) ever: u64,
    pub(super) end: End<C>,
}

impl<C> Counted<C> {
    pub(super) fn leave(&self) {
        // In the child of a fork a visitor may have been forgotten that was this thread.
        self.now.set(self.now.get().saturating_sub(1));
    }
}

impl<C> fmt::Debug for Counted<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the cache itself, which this is a part of.
        f.debug_struct("Counted")
            .field("now", &self.now.get())
            .field("ever", &self.ever)
            .finish_non_exhaustive()
    }
}

/// The door of a cache.
#[derive(Debug)]
pub(crate) struct Visits<C: 'static>(pub(crate) ForkMutex<Counted<C>>);

impl<C> Visits<C> {
    /// Nobody is in.
    pub(crate) fn new() -> Self {
        Self(ForkMutex::new(Rank::Visits, Counted { now: Counter::new(0), ever: 0, end: End::Owned }))
    }
    /// In the child of a fork: visitors on other threads never leave.
    ///
    /// # Safety
    /// As [`Fork::forget_other_threads`](crate::Fork::forget_other_threads): the lock is held.
    pub(crate) unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract.
        if let Some(visits) = unsafe { self.0.held() } {
            visits.now.set(0);
        }
    }
}

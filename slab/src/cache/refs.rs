//! References to a cache without a handle, and whether there is an owner. See [`owner`](super::owner).

use core::fmt;
use std::sync::Arc;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Rank, abandoned};

#[derive(Default)]
pub(super) enum End<C> {
    #[default]
    Owned,
    Ownerless,
    /// With objects in use: the cache keeps itself.
    Leaked(#[allow(dead_code, reason = "held, not read")] Arc<C>),
    Over,
}

pub(crate) struct RefCount<C> {
    /// References, and whoever ends the cache. The lock protects it, or the fork that holds the lock.
    pub(super) now: Counter,
    /// References that ever were.
    pub(super) ever: u64,
    pub(super) end: End<C>,
    /// Handles; 0 while one of them destroys it, and behind that.
    handles: u64,
    is_destroyed: bool,
}

impl<C> RefCount<C> {
    pub(super) fn leave(&self) {
        // In the child of a fork this thread's reference may have been forgotten.
        self.now.set(self.now.get().saturating_sub(1));
    }
}

impl<C> fmt::Debug for RefCount<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the cache itself, which this is a part of.
        f.debug_struct("RefCount")
            .field("now", &self.now.get())
            .field("ever", &self.ever)
            .finish_non_exhaustive()
    }
}

/// The references to a cache.
#[derive(Debug)]
pub(crate) struct CacheRefs<C: 'static>(pub(crate) ForkMutex<RefCount<C>>);

impl<C> CacheRefs<C> {
    /// None.
    pub(crate) fn new() -> Self {
        Self(ForkMutex::new(
            Rank::CacheRefs,
            RefCount { now: Counter::new(0), ever: 0, end: End::Owned, handles: 1, is_destroyed: false },
        ))
    }
    /// One handle more; `false` if it is destroyed.
    pub(super) fn share(&self) -> bool {
        let mut refs = self.0.lock();
        refs.handles += u64::from(refs.handles > 0);
        refs.handles > 0
    }
    /// One handle less.
    pub(super) fn leave(&self) {
        if !abandoned() {
            let mut refs = self.0.lock();
            refs.handles = refs.handles.saturating_sub(1);
        }
    }
    /// Handles but the first.
    pub(super) fn aliases(&self) -> u64 {
        self.0.lock().handles.saturating_sub(1)
    }
    /// Lets nobody share it. `false` if somebody else has done so.
    ///
    /// # Errors
    /// So many do.
    pub(super) fn close(&self) -> Result<bool, u64> {
        let mut refs = self.0.lock();
        if refs.handles > 1 {
            return Err(refs.handles - 1);
        }
        Ok(core::mem::take(&mut refs.handles) > 0)
    }
    /// Behind that: whether it is destroyed.
    pub(super) fn closed(&self, is_destroyed: bool) {
        let mut refs = self.0.lock();
        refs.is_destroyed |= is_destroyed;
        refs.handles = u64::from(!refs.is_destroyed);
    }
    /// In the child of a fork: references of other threads never go.
    ///
    /// # Safety
    /// As [`Fork::forget_other_threads`](crate::Fork::forget_other_threads): the lock is held.
    pub(crate) unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract.
        if let Some(refs) = unsafe { self.0.held() } {
            refs.now.set(0);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_destroys_a_cache_lets_nobody_share_it_until_that_has_failed() {
        let refs = CacheRefs::<()>::new();
        assert_eq!((refs.share(), refs.aliases()), (true, 1));
        assert_eq!(refs.close(), Err(1), "another one shares it");
        refs.leave();
        assert_eq!((refs.aliases(), refs.close()), (0, Ok(true)));
        assert_eq!((refs.share(), refs.close()), (false, Ok(false)), "somebody destroys it already");
        refs.closed(false);
        assert_eq!((refs.share(), refs.aliases()), (true, 1));
        refs.leave();
        assert_eq!(refs.close(), Ok(true));
        refs.closed(true);
        // One that came second, and failed while there were objects in use.
        refs.closed(false);
        assert_eq!((refs.share(), refs.aliases(), refs.close()), (false, 0, Ok(false)));
    }
}

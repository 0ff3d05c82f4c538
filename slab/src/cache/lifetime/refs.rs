//! Counts a cache's handles, and the references of threads that have no handle. The module [`owner`](super::owner)
//! describes the protocol.

use core::fmt;
use std::sync::Arc;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Rank, abandoned};

#[derive(Default)]
pub(crate) enum CacheEndState<C> {
    #[default]
    Owned,
    Ownerless,
    /// The cache has objects in use, and this reference keeps the cache alive.
    Leaked(#[allow(dead_code, reason = "held, not read")] Arc<C>),
    Over,
}

pub(crate) struct RefCount<C> {
    /// Number of current references, including the thread that ends the cache. The lock protects the number of
    /// references. During a fork, the forking thread holds the lock.
    pub(crate) now: Counter,
    pub(crate) references_so_far: u64,
    pub(crate) end: CacheEndState<C>,
    /// Number of handles, which is 0 while a handle destroys the cache and afterwards.
    handles: u64,
    is_destroyed: bool,
}

impl<C> RefCount<C> {
    pub(crate) fn leave(&self) {
        // In the child of a fork, this thread's reference may have been reset.
        self.now.set(self.now.get().saturating_sub(1));
    }
}

impl<C> fmt::Debug for RefCount<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The output omits the cache itself, because this count is a part of it.
        f.debug_struct("RefCount")
            .field("now", &self.now.get())
            .field("ever", &self.references_so_far)
            .finish_non_exhaustive()
    }
}

/// The lock-protected references to a cache.
#[derive(Debug)]
pub(crate) struct CacheRefs<C: 'static>(pub(crate) ForkMutex<RefCount<C>>);

impl<C> CacheRefs<C> {
    pub(crate) fn new() -> Self {
        Self(ForkMutex::new(
            Rank::CacheRefs,
            RefCount {
                now: Counter::new(0),
                references_so_far: 0,
                end: CacheEndState::Owned,
                handles: 1,
                is_destroyed: false,
            },
        ))
    }
    /// Counts one more handle; returns `false` if the cache is already destroyed.
    pub(crate) fn share(&self) -> bool {
        let mut refs = self.0.lock();
        refs.handles += u64::from(refs.handles > 0);
        refs.handles > 0
    }
    pub(crate) fn leave(&self) {
        if !abandoned() {
            let mut refs = self.0.lock();
            refs.handles = refs.handles.saturating_sub(1);
        }
    }
    /// Number of handles except the first.
    pub(crate) fn aliases(&self) -> u64 {
        self.0.lock().handles.saturating_sub(1)
    }
    /// Prevents new handles. Returns `false` if another thread has already prevented new handles.
    ///
    /// # Errors
    /// If other handles exist, the error is their number.
    pub(crate) fn close(&self) -> Result<bool, u64> {
        let mut refs = self.0.lock();
        if refs.handles > 1 {
            return Err(refs.handles - 1);
        }
        Ok(core::mem::take(&mut refs.handles) > 0)
    }
    pub(crate) fn closed(&self, is_destroyed: bool) {
        let mut refs = self.0.lock();
        refs.is_destroyed |= is_destroyed;
        refs.handles = u64::from(!refs.is_destroyed);
    }
    /// Resets the references of other threads in the child of a fork.
    ///
    /// # Safety
    /// The caller must hold the lock, by the contract of
    /// [`Fork::forget_other_threads`](crate::Fork::forget_other_threads).
    pub(crate) unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract, the caller holds the lock.
        if let Some(refs) = unsafe { self.0.held() } {
            refs.now.set(0);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn cache_under_destruction_is_not_shared() {
        let refs = CacheRefs::<()>::new();
        assert_eq!((refs.share(), refs.aliases()), (true, 1));
        assert_eq!(refs.close(), Err(1), "another owner shares the cache");
        refs.leave();
        assert_eq!((refs.aliases(), refs.close()), (0, Ok(true)));
        assert_eq!(
            (refs.share(), refs.close()),
            (false, Ok(false)),
            "another thread already destroys the cache"
        );
        refs.closed(false);
        assert_eq!((refs.share(), refs.aliases()), (true, 1));
        refs.leave();
        assert_eq!(refs.close(), Ok(true));
        refs.closed(true);
        // A second destruction fails because objects are in use.
        refs.closed(false);
        assert_eq!((refs.share(), refs.aliases(), refs.close()), (false, 0, Ok(false)));
    }
}

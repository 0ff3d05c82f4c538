//! Who keeps a cache, and how it goes.
//!
//! Handles, their aliases and owned objects share one [`Owner`]; the last of them takes the cache along, if no object of it
//! is in use. But somebody who keeps nothing may just then have objects in hand: a thread that found the cache on the
//! subsystem's list, took a magazine away from a CPU and is on its way to the slabs with it. Such a [`Visit`] says so at
//! the door, and when the owner has gone meanwhile, the last one to leave does what the owner could not. There is one who
//! sees to the end at any time: he counts as one who is in.
//!
//! ```text
//! Owned ── owner goes ──> Ownerless ──┬─ no object in use: destroyed, off the list
//!                                     ├─ objects wait for readers: again after a grace period
//!                                     └─ objects in use: Left, for good; it stays in the reports
//! ```

use crate::cache::Cache;
use crate::subsystem::Core;
use core::ops::Deref;
use std::sync::Arc;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Rank, abandoned, planted};

/// Whoever may still use a cache.
#[derive(Debug)]
pub(crate) struct Owner(Arc<Cache>);

impl Owner {
    pub(crate) fn new(cache: Arc<Cache>) -> Arc<Self> {
        Arc::new(Self(cache))
    }
    pub(crate) fn cache(&self) -> &Cache {
        &self.0
    }
    pub(crate) fn shared(&self) -> &Arc<Cache> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if abandoned() {
            return core::mem::forget(self.0.clone());
        }
        if self.0.parts().merges.is_some() {
            self.0.core().mergeable.remove(self);
        }
        let mut visits = self.0.visits().0.lock();
        visits.end = End::Ownerless;
        visits.now += u64::from(!planted("two see to the end of a cache"));
        drop(visits);
        retire(self.0.clone());
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Owned,
    Ownerless,
    /// With objects in use. Who frees them may be inside of the cache at any time, so that nobody ends it any more.
    Left,
}

#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Who is in: visitors, and who sees to the end.
    now: u64,
    /// Visitors that ever were.
    ever: u64,
    end: End,
}

/// The door of a cache.
#[derive(Debug)]
pub(crate) struct Visits(pub(crate) ForkMutex<Counted>);

impl Visits {
    /// Nobody is in.
    pub(crate) fn new() -> Self {
        Self(ForkMutex::new(Rank::Visits, Counted::default()))
    }
}

/// Somebody who found the cache on the list of its subsystem, and may take objects in hand.
pub(crate) struct Visit(Arc<Cache>);

impl Visit {
    fn begin(cache: Arc<Cache>) -> Self {
        let mut visits = cache.visits().0.lock();
        visits.now += 1;
        visits.ever += 1;
        drop(visits);
        Self(cache)
    }
}

impl Deref for Visit {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        &self.0
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        let mut visits = self.0.visits().0.lock();
        if visits.now == 1 && visits.end == End::Ownerless {
            drop(visits);
            return retire(self.0.clone());
        }
        visits.now -= 1;
    }
}

impl Core {
    /// All caches, to do something with their objects: see [`Registry::iter`](crate::registry::Registry::iter).
    pub(crate) fn visit(&self) -> impl Iterator<Item = Visit> + '_ {
        self.caches.iter().map(Visit::begin)
    }
}

/// The end of a cache that nobody owns any more. Who calls this is in, and stays in until it is done, so that nobody else
/// does: two that empty the magazines would each take what the other has in hand for objects in use.
fn retire(cache: Arc<Cache>) {
    loop {
        let ever = {
            let mut visits = cache.visits().0.lock();
            if visits.now > 1 && !planted("a cache is given up while a visitor has its objects") {
                // What they have in hand is in use, as far as anybody can tell. The last of them will see to the end.
                visits.now -= 1;
                return;
            }
            visits.ever
        };
        // Before: an object whose grace period ends meanwhile may go into a magazine that was emptied already.
        #[cfg(not(loom))]
        let deferred = cache.deferred().get();
        if cache.destroy().is_ok() {
            return cache.core().caches.remove(Arc::as_ptr(&cache));
        }
        #[cfg(not(loom))]
        if deferred > 0 {
            // They were freed, but for readers: later.
            return crate::rcu::after_grace(move || retire(cache));
        }
        let mut visits = cache.visits().0.lock();
        if visits.ever == ever {
            visits.end = End::Left;
            drop(visits);
            cache.close_magazines();
            // Objects are in use: frames and callers still name the cache.
            return core::mem::forget(cache);
        }
    }
}

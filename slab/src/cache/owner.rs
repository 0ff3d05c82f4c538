//! Who keeps a cache, and how it goes.
//!
//! Handles and their aliases share one [`Owner`]; the last of them takes the cache along, if no object of it is in use. Objects in
//! use keep their slab, and slabs keep their cache: so an object needs no count, and whoever frees the last one takes the cache
//! along.
//!
//! But somebody who keeps nothing may just then have objects in hand: a thread that found the cache on the subsystem's list,
//! took a magazine away from a CPU and is on its way to the slabs with it; or one that frees an object without a handle, and
//! has something to write down behind that. Such a [`Visit`] says so at the door, and the last one to leave does what the owner
//! could not. There is one who sees to the end at any time: he counts as one who is in.
//!
//! ```text
//! Owned ── owner goes ──> Ownerless ──┬─ no object in use ─────────────────────────────────────────────> Over
//!                                     └─ objects in use: Left ── a visitor leaves, and none is in use ──> Over
//! ```
//!
//! * **Left**: the magazines are closed for good and empty, so each free misses them, enters by the door and goes to its slab.
//!   The cache keeps itself, and stays in the reports.
//! * **Over**: it is off the list, and its slabs are given back. Whoever still visits it has it in an `Arc`; with the last of
//!   those goes the number of its class.
//!
//! What does not enter is a free that finds a place on the CPU's stack. It touches nothing of the cache behind the store that
//! commits it; before that store the object is in use, and behind it a drain takes it from the stack.

use super::core::Core;
use super::visits::End;
use super::{Cache, Owner};
use core::ops::Deref;
use std::sync::Arc;
use uslab_magazine::Operation;
use uslab_magazine::sync::{abandoned, planted};

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
        visits.now.add(u64::from(!planted("two see to the end of a cache")));
        drop(visits);
        see_to_the_end(&self.0);
    }
}

/// Somebody who has no handle, and may have objects in hand or something to write down: who found the cache on the list of its
/// subsystem, and who frees one of its objects.
pub(crate) struct Visit(Arc<Cache>);

impl Visit {
    pub(crate) fn begin(cache: Arc<Cache>) -> Self {
        let mut visits = cache.visits().0.lock();
        visits.now.add(1);
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
        let visits = self.0.visits().0.lock();
        let is_last = visits.now.get() <= 1 && !planted("the last to leave does not look back");
        if is_last && matches!(visits.end, End::Ownerless | End::Left(_)) {
            drop(visits);
            return see_to_the_end(&self.0);
        }
        visits.leave();
    }
}

impl Core {
    /// All caches, to do something with their objects: see [`Registry::iter`](crate::registry::Registry::iter).
    pub(crate) fn visit(&self) -> impl Iterator<Item = Visit> + '_ {
        self.caches.iter().map(Visit::begin)
    }
}

/// The end of a cache that nobody owns any more, if no object of it is in use. Who calls this is in, and stays in until it is
/// done, so that nobody else does: two that empty the magazines would each take what the other has in hand for objects in use.
fn see_to_the_end(cache: &Arc<Cache>) {
    loop {
        let (ever, is_left) = {
            let visits = cache.visits().0.lock();
            if visits.now.get() > 1 && !planted("a cache is given up while a visitor has its objects") {
                // What they have in hand is in use, as far as anybody can tell. The last of them will see to the end.
                visits.leave();
                return;
            }
            (visits.ever, matches!(visits.end, End::Left(_)))
        };
        if !is_left {
            cache.close_magazines();
        }
        if cache.end().is_ok() {
            let mut visits = cache.visits().0.lock();
            visits.leave();
            let kept = core::mem::replace(&mut visits.end, End::Over);
            drop(visits);
            cache.core().caches.remove(Arc::as_ptr(cache));
            return drop(kept);
        }
        // Nobody will take from them.
        cache.discard_empty(&Operation::new());
        let mut visits = cache.visits().0.lock();
        if visits.ever == ever || planted("who came meanwhile is overlooked") {
            visits.leave();
            visits.end = End::Left(cache.clone());
            return;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Fork, KmemCache, Subsystem};

    #[test]
    fn a_visitor_that_a_fork_has_lost_keeps_no_cache() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("visited", 64).build_in(&subsystem).unwrap();
        // Another thread's, which the child does not have.
        let visit = core::mem::ManuallyDrop::new(Visit::begin(cache.cache().kept().unwrap()));
        // SAFETY: this thread goes on as the child's would, and no other one uses the subsystem.
        unsafe {
            subsystem.before_fork();
            subsystem.after_fork_in_child();
        }
        drop(cache);
        assert!(subsystem.info().caches.iter().all(|cache| cache.name != "visited"));
        // SAFETY: nobody uses the visit any more, and it is not dropped. (What the child of a fork loses stays in its memory.)
        drop(unsafe { core::ptr::read(&raw const visit.0) });
    }
}

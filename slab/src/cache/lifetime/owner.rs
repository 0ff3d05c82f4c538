//! Ownership and destruction of a cache.
//!
//! Handles and their aliases share one [`Owner`], whose drop destroys the cache if no object is in use. Objects in use
//! keep their slab alive, and slabs keep their cache alive. Objects therefore need no reference count, and the free of
//! the last object destroys a cache without an owner.
//!
//! A thread without a handle may still be moving objects. For example, such a thread found the cache on the subsystem's
//! list, and is flushing a CPU's magazine. A thread without a handle may also free an object, and then update counters.
//! Each thread without a handle holds a [`CacheRef`], and the thread with the last reference destroys the cache if the
//! owner could not. Only one thread at a time may end a cache; this thread counts as a reference.
//!
//! ```text
//! Owned ── owner drops ──> Ownerless ──┬─ no object in use ─────────────────────────────────────────────> Over
//!                                      └─ objects in use: Leaked ── a reference drops, none in use ─────> Over
//! ```
//!
//! * **Leaked**: the cache's magazines are empty, and stay closed for the rest of its life. Each free to a leaked cache
//!   therefore misses, takes a reference and frees to the slab. A leaked cache keeps itself alive, and reports show it.
//! * **Over**: the cache is no longer on the subsystem's list, and its slabs are freed. Remaining references are
//!   `Arc`s. Dropping the last `Arc` frees the cache's class number.
//!
//! A free that finds room on the CPU's stack takes no reference. After its committing store, a free accesses nothing of
//! the cache. Before the committing store, the object is in use; after the store, a drain may take the object from the
//! stack.

use super::refs::CacheEndState;
use crate::cache::core::Core;
use crate::cache::{Cache, Owner};
use core::ops::Deref;
use std::sync::Arc;
use uslab_magazine::sync::abandoned;
use uslab_magazine::tracepoints::OperationKind;

impl Drop for Owner {
    fn drop(&mut self) {
        if abandoned() {
            return core::mem::forget(self.0.clone());
        }
        if self.0.config().merges.is_some() {
            self.0.core().mergeable.remove(self);
        }
        let mut refs = self.0.refs().0.lock();
        refs.end = CacheEndState::Ownerless;
        refs.now.add(1);
        drop(refs);
        end_if_unused(&self.0);
    }
}

/// A reference for a thread without a handle, which may move objects or update counters. The thread found the cache on
/// the subsystem's list, or is freeing one of the cache's objects.
pub(crate) struct CacheRef(Arc<Cache>);

impl CacheRef {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        let mut refs = cache.refs().0.lock();
        refs.now.add(1);
        refs.references_so_far += 1;
        drop(refs);
        Self(cache)
    }
}

impl Deref for CacheRef {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        &self.0
    }
}

impl Drop for CacheRef {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        let refs = self.0.refs().0.lock();
        let is_last = refs.now.get() <= 1;
        if is_last && matches!(refs.end, CacheEndState::Ownerless | CacheEndState::Leaked(_)) {
            drop(refs);
            return end_if_unused(&self.0);
        }
        refs.leave();
    }
}

impl Core {
    /// Iterates over references to all caches (see [`Registry::iter`](crate::registry::Registry::iter)).
    pub(crate) fn refs(&self) -> impl Iterator<Item = CacheRef> + '_ {
        self.caches.iter().map(CacheRef::new)
    }
}

/// Ends a cache that has no owner, if no object is in use. The caller counts as a reference until the cache has ended,
/// so no other thread ends it. If two threads flush the magazines at the same time, each counts the objects that the
/// other thread moves as in use.
fn end_if_unused(cache: &Arc<Cache>) {
    loop {
        let (references_so_far, is_leaked) = {
            let refs = cache.refs().0.lock();
            let visited = refs.now.get() > 1;
            if visited {
                // Objects that other threads are moving count as in use. The last of the threads that move objects
                // ends the cache.
                refs.leave();
                return;
            }
            (refs.references_so_far, matches!(refs.end, CacheEndState::Leaked(_)))
        };
        if !is_leaked {
            cache.close_magazines();
        }
        if cache.end().is_ok() {
            let last_release = core::mem::replace(&mut cache.refs().0.lock().end, CacheEndState::Over);
            cache.core().caches.remove(Arc::as_ptr(cache));
            return drop(last_release);
        }
        // If a cache has no handles, no more allocations can happen.
        cache.discard_empty(&cache.operation(OperationKind::Reclaim));
        let mut refs = cache.refs().0.lock();
        if refs.references_so_far == references_so_far {
            refs.leave();
            refs.end = CacheEndState::Leaked(cache.clone());
            return;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Fork, Gfp, KmemCache, Subsystem};

    #[test]
    fn destroyed_cache_is_removed_from_the_list() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let listed = || subsystem.core().caches.list().lock().entries().count();
        let before = listed();
        for _ in 0..100 {
            drop(KmemCache::builder("merged", 64).merge().build_in(&subsystem).unwrap());
        }
        assert!(subsystem.core().mergeable.list().lock().entries().count() < 4);
        assert_eq!(listed(), before, "the cache is not on the list of all caches");
    }

    #[test]
    fn dropping_the_last_reference_frees_the_cache() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("visited", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let visitors = [(); 2].map(|()| CacheRef::new(cache.cache().keep_alive().unwrap()));
        let is_listed = || subsystem.core().caches.iter().any(|cache| cache.name() == "visited");
        drop(cache);
        for visitor in visitors {
            assert_eq!((is_listed(), visitor.charged()), (true, 1), "the visitor may hold objects");
            drop(visitor);
        }
        assert!(!is_listed());
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }

    #[test]
    fn forked_child_ignores_cache_references_of_parent_threads() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("visited", 64).build_in(&subsystem).unwrap();
        // A reference of another thread, which does not exist in the child.
        let held = core::mem::ManuallyDrop::new(CacheRef::new(cache.cache().keep_alive().unwrap()));
        // SAFETY: the test continues as a forked child's only thread, and no other thread uses the subsystem.
        unsafe {
            subsystem.before_fork();
            subsystem.after_fork_in_child();
        }
        drop(cache);
        assert!(subsystem.info().caches.iter().all(|cache| cache.name != "visited"));
        // SAFETY: the reference is neither used nor dropped afterwards, like memory that the child of a fork
        // loses.
        drop(unsafe { core::ptr::read(&raw const held.0) });
    }
}

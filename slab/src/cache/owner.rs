//! Ownership of a cache, and its end.
//!
//! Handles and their aliases share one [`Owner`]; the last one destroys the cache if no object is in use. Objects in use keep
//! their slab, and slabs keep their cache. So an object needs no count, and the free of the last object destroys an ownerless
//! cache.
//!
//! A thread without a handle or an object may still be moving objects: a thread that found the cache on the subsystem's list,
//! took a magazine from a CPU and is flushing it to the slabs; or a thread that frees an object without a handle, and updates
//! counters after that. Each of them holds a [`CacheRef`], and the last one does what the owner could not. At any time at most
//! one thread ends a cache, and it counts as a reference.
//!
//! ```text
//! Owned ── owner drops ──> Ownerless ──┬─ no object in use ─────────────────────────────────────────────> Over
//!                                      └─ objects in use: Leaked ── a reference drops, none in use ─────> Over
//! ```
//!
//! * **Leaked**: the magazines are closed for good and empty, so each free misses them, takes a reference and frees to the
//!   slab. The cache keeps itself alive, and stays in the reports.
//! * **Over**: it is off the list, and its slabs are freed. Remaining references to it are `Arc`s; the last one frees the
//!   number of its class.
//!
//! A free that finds room on the CPU's stack takes no reference. It touches nothing of the cache after its committing store.
//! Before that store the object is in use; after it, a drain takes the object from the stack.

use super::core::Core;
use super::refs::End;
use super::{Cache, Owner};
use core::ops::Deref;
use std::sync::Arc;
use uslab_magazine::sync::{abandoned, planted};
use uslab_magazine::tracepoints::What;

impl Drop for Owner {
    fn drop(&mut self) {
        if abandoned() {
            return core::mem::forget(self.0.clone());
        }
        if self.0.config().merges.is_some() {
            self.0.core().mergeable.remove(self);
        }
        let mut refs = self.0.refs().0.lock();
        refs.end = End::Ownerless;
        refs.now.add(1);
        planted!("two threads free one cache" => refs.now.sub(1));
        drop(refs);
        end_if_unused(&self.0);
    }
}

/// A reference of a thread without a handle, which may move objects or update counters: it found the cache on the subsystem's
/// list, or frees one of its objects.
pub(crate) struct CacheRef(Arc<Cache>);

impl CacheRef {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        let mut refs = cache.refs().0.lock();
        refs.now.add(1);
        refs.ever += 1;
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
        planted!("the last user of a cache does not check for its end" => let is_last = false);
        if is_last && matches!(refs.end, End::Ownerless | End::Leaked(_)) {
            drop(refs);
            return end_if_unused(&self.0);
        }
        refs.leave();
    }
}

impl Core {
    /// Iterates all caches, to work on their objects: see [`Registry::iter`](crate::registry::Registry::iter).
    pub(crate) fn refs(&self) -> impl Iterator<Item = CacheRef> + '_ {
        self.caches.iter().map(CacheRef::new)
    }
}

/// Ends an ownerless cache if no object is in use. The caller counts as a reference until then, so that no other thread ends
/// it: each of two that flush the magazines would take the other's objects for objects in use.
fn end_if_unused(cache: &Arc<Cache>) {
    loop {
        let (ever, is_leaked) = {
            let refs = cache.refs().0.lock();
            let visited = refs.now.get() > 1;
            planted!("a cache is freed while a visitor uses its objects" => let visited = false);
            if visited {
                // Objects that other threads are moving count as in use. The last of these threads ends the cache.
                refs.leave();
                return;
            }
            (refs.ever, matches!(refs.end, End::Leaked(_)))
        };
        if !is_leaked {
            cache.close_magazines();
        }
        if cache.end().is_ok() {
            let kept = core::mem::replace(&mut cache.refs().0.lock().end, End::Over);
            cache.core().caches.remove(Arc::as_ptr(cache));
            return drop(kept);
        }
        // There are no allocations any more.
        cache.discard_empty(&cache.operation(What::Reclaim));
        let mut refs = cache.refs().0.lock();
        planted!("a visitor who came during the check is overlooked" => let ever = refs.ever);
        if refs.ever == ever {
            refs.leave();
            refs.end = End::Leaked(cache.clone());
            return;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Fork, Gfp, KmemCache, Subsystem};

    /// Otherwise each destroyed cache would leave its entry on the list.
    #[test]
    fn destroyed_cache_is_removed_from_the_list() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let listed = || subsystem.core().caches.list().lock().entries().count();
        let before = listed();
        for _ in 0..100 {
            drop(KmemCache::builder("merged", 64).merge().build_in(&subsystem).unwrap());
        }
        assert!(subsystem.core().mergeable.list().lock().entries().count() < 4);
        assert_eq!(listed(), before, "nor is it on the list of all caches");
    }

    #[test]
    fn last_reference_frees_a_dropped_cache() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("visited", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let visitors = [(); 2].map(|()| CacheRef::new(cache.cache().kept().unwrap()));
        let is_listed = || subsystem.core().caches.iter().any(|cache| cache.name() == "visited");
        drop(cache);
        for visitor in visitors {
            assert_eq!((is_listed(), visitor.charged()), (true, 1), "it may have objects in hand");
            drop(visitor);
        }
        assert!(!is_listed());
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }

    #[test]
    fn reference_lost_in_a_fork_does_not_keep_the_cache() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("visited", 64).build_in(&subsystem).unwrap();
        // A reference of another thread, which the child does not have.
        let held = core::mem::ManuallyDrop::new(CacheRef::new(cache.cache().kept().unwrap()));
        // SAFETY: this thread continues as the child's only thread would, and no other one uses the subsystem.
        unsafe {
            subsystem.before_fork();
            subsystem.after_fork_in_child();
        }
        drop(cache);
        assert!(subsystem.info().caches.iter().all(|cache| cache.name != "visited"));
        // SAFETY: the reference is not used any more, and not dropped. (What the child of a fork loses stays in its memory.)
        drop(unsafe { core::ptr::read(&raw const held.0) });
    }
}

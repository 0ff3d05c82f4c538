//! Deferred frees: freed objects wait in batches for the RCU collector.

use crate::cache::Cache;
use crate::cache::core::{Core, UNKNOWN_CACHE};
use crate::debug::corruption::CorruptionKind;
use crate::reclaim::rcu::{Batch, run_after_grace_period};
use core::ptr::NonNull;
use std::sync::Arc;
#[cfg(not(loom))]
use uslab_magazine::sync::Ordering::Acquire;
use uslab_magazine::sync::{AtomicU64, Ordering::Relaxed, contain_panic};

impl Cache {
    /// Increments `count`, the number of objects or slabs that wait for readers, before one more object or slab
    /// waits. Wakes threads that sleep because they have read a count of 0.
    #[cfg(not(loom))]
    pub(crate) fn begin_grace(&self, count: &AtomicU64) {
        // Acquire: pairs with the Release of `has_in_grace`.
        let is_first = count.fetch_add(1, Acquire) == 0;
        if is_first {
            self.wake_threads();
        }
    }
    /// Increments `count`; in loom's models, no thread waits for this count.
    #[cfg(loom)]
    pub(crate) fn begin_grace(&self, count: &AtomicU64) {
        // Relaxed: the count publishes no other data.
        count.fetch_add(1, Relaxed);
    }
}

impl Core {
    /// Frees `object` after a grace period.
    pub(crate) fn defer(self: &Arc<Self>, object: NonNull<u8>) {
        if let Some(cache) = self.cache_at(object) {
            cache.begin_grace(cache.deferred());
        }
        if let Some(full) = self.deferred.push(self.cpus.current(), object) {
            self.wait_for(full);
        }
        // Check for waiters after the batch's lock was held, because a new waiter also takes this lock. Relaxed: the
        // batch's lock orders the load.
        if self.waited_for.load(Relaxed) > 0 {
            self.flush_deferred();
        }
    }

    /// Starts grace periods for the partly filled batches.
    pub(crate) fn flush_deferred(self: &Arc<Self>) {
        self.deferred.take().for_each(|batch| self.wait_for(batch));
    }

    fn wait_for(self: &Arc<Self>, batch: Batch) {
        let core = self.clone();
        let free = move || {
            for object in batch.objects() {
                // This reference keeps the cache alive, because the free of its last object may
                // destroy it.
                let cache = core.cache_at(object).and_then(Cache::keep_alive);
                // The panic hook has already reported a reset's panic. Other objects of the batch belong to other
                // users.
                contain_panic(|| {
                    // SAFETY: the user freed the object, and all readers that might have found it have exited.
                    if !unsafe { core.free_object(object) } {
                        match &cache {
                            // SAFETY: the user freed the object, and all readers that might have found it have exited.
                            Some(cache) => unsafe { cache.free_red_zoned_object(object) },
                            None if core.free_sample(object, UNKNOWN_CACHE) => {}
                            None => core.refuse(CorruptionKind::Foreign, object),
                        }
                    }
                });
                // The count is decremented last, so that a thread that waits until it is 0 finds all other
                // work done.
                if let Some(cache) = cache {
                    // Relaxed: the count publishes no other data.
                    cache.deferred().fetch_sub(1, Relaxed);
                }
            }
        };
        run_after_grace_period(free);
    }
}

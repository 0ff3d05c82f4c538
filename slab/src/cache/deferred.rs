//! Frees that wait for readers: objects, in batches, on their way to the collector.

use super::Cache;
use super::core::Core;
use super::core::NO_CACHE;
use crate::debug::corruption::CorruptionKind;
use crate::reclaim::rcu::{Batch, after_grace};
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_magazine::sync::Ordering::Acquire;
use uslab_magazine::sync::{AtomicU64, Ordering::Relaxed, contain_panic, planted};

impl Cache {
    /// One more of `count`, objects or slabs that wait for readers, before it does. Threads that sleep until they are woken have seen none.
    pub(super) fn begin_grace(&self, count: &AtomicU64) {
        // Acquire: pairs with the Release of `has_in_grace`.
        let is_first = count.fetch_add(1, Acquire) == 0;
        planted!("what begins to wait for readers wakes no thread" => let is_first = false);
        // Threads of loom's models do not look there.
        if is_first && !cfg!(loom) {
            self.wake_threads();
        }
    }
}

impl Core {
    /// Takes `object` back after a grace period.
    pub(crate) fn defer(self: &Arc<Self>, object: NonNull<u8>) {
        if let Some(cache) = self.cache_at(object) {
            cache.begin_grace(cache.deferred());
        }
        if let Some(full) = self.deferred.push(self.cpus.current(), object) {
            self.wait_for(full);
        }
        // Behind the batch's lock, which who begins to wait takes, too.
        // Relaxed: as there.
        if self.waited_for.load(Relaxed) > 0 {
            self.flush_deferred();
        }
    }

    /// Begins the grace periods of what waits in batches that are not full.
    pub(crate) fn flush_deferred(self: &Arc<Self>) {
        self.deferred.take().for_each(|batch| self.wait_for(batch));
    }

    fn wait_for(self: &Arc<Self>, batch: Batch) {
        let core = self.clone();
        let free = move || {
            for object in batch.objects() {
                // Kept: with its last object the cache may go.
                let cache = core.cache_at(object).and_then(Cache::kept);
                // A reset that panics has been reported where it did so. What follows is others'.
                contain_panic(|| {
                    // SAFETY: who deferred it gave it up, and who might have read it has gone.
                    if !unsafe { core.free_object(object) } {
                        match &cache {
                            // SAFETY: as above.
                            Some(cache) => unsafe { cache.free_at_frame(object) },
                            None if core.free_sample(object, NO_CACHE) => {}
                            None => core.refuse(CorruptionKind::Foreign, object),
                        }
                    }
                });
                // Last: who waits for it to become 0 finds all the rest done.
                if let Some(cache) = cache {
                    // Relaxed: a number.
                    cache.deferred().fetch_sub(1, Relaxed);
                }
            }
        };
        planted!("deferred frees wait for nobody" => {
            free();
            return;
        });
        after_grace(free);
    }
}

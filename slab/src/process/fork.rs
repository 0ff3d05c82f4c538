//! Forking while other threads use a subsystem.
//!
//! The forking thread holds every lock of the subsystem and of its caches across the fork (see [`Fork`]). Two locks are
//! not held across a fork: the reserve lock of a [`Mempool`](crate::Mempool), and the number lock of a
//! [`HandleCache`](crate::handle::HandleCache). The docs of [`Mempool`](crate::Mempool) and
//! [`HandleCache`](crate::handle::HandleCache) describe the consequences. A [`Hive`](crate::Hive) is also an exception
//! if another thread is reaping its cache at the fork. The child loses memory that other threads were moving at the
//! fork: objects between magazine and slab, slabs between list and page allocator, and pages. The
//! [`Census`](crate::Census) counts what a forked child has lost. In any other process, lost memory is a violation.
//!
//! The child empties each cache's wait queue and leaks the wakers, so a future that is used in the child must be polled
//! again. If another thread was trying to destroy a cache at the fork, that cache has no magazines in the child.
//!
//! The thread of a [`Reaper`](crate::Reaper) does not exist in a child, which must not drop the `Reaper`. The child
//! starts the thread of [`Config::reap_every`](crate::Config::reap_every) again. If another thread was pinned at the
//! fork, grace periods never end in the child.
//!
//! ```no_run
//! use uslab::{Fork, Subsystem};
//! let subsystem = Subsystem::global()?;
//! // SAFETY: one of the other two follows on each side, and nothing of the subsystem is used between.
//! unsafe { subsystem.before_fork() };
//! // SAFETY: the child uses nothing but the subsystem.
//! match unsafe { libc::fork() } {
//!     // SAFETY: a copy, with this thread only.
//!     0 => unsafe { subsystem.after_fork_in_child() },
//!     // SAFETY: the process that forked, or could not.
//!     _ => unsafe { subsystem.after_fork_in_parent() },
//! }
//! # Ok::<(), uslab::StartError>(())
//! ```

use crate::cache::Cache;
use crate::cache::core::Core;
use crate::registry::List;
use crate::subsystem::Subsystem;
pub use uslab_magazine::Fork;
use uslab_magazine::sync::Rank;
use uslab_magazine::sync::fork::ForkLock;

impl Cache {
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Fork::locks`].
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Waiters => visit(&self.waiters().queue),
            Rank::Node => self.nodes().iter().for_each(|node| visit(node.lists())),
            Rank::CacheRefs => visit(&self.refs().0),
            // SAFETY: by contract, this thread holds the locks of lower ranks.
            _ => unsafe { self.config().per_cpu.locks(rank, visit) },
        }
    }
}

impl Core {
    /// Iterates over all caches, oldest first, while this thread holds the lock of their list for a fork.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Fork::locks`]. The list's lock must not be released while the
    /// iterator is used.
    unsafe fn caches_under_fork_lock(&self) -> impl Iterator<Item = &Cache> {
        // SAFETY: by contract, only this thread holds the lock of the list.
        let list = unsafe { self.caches.list().held() };
        // SAFETY: a cache lives until it is removed from the list, and removing it needs the list's
        // lock.
        list.into_iter().flat_map(List::entries).map(|cache| unsafe { &*cache })
    }
}

impl Fork for Core {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Mergeable => visit(self.mergeable.list()),
            Rank::Shrinkers => visit(self.shrinkers.list()),
            Rank::Caches => visit(self.caches.list()),
            Rank::Profile => visit(self.profiler.lock()),
            Rank::Huge => visit(self.huge.state_lock()),
            Rank::Tags => visit(&self.tags),
            #[cfg(any(not(loom), crossbeam_loom))]
            Rank::Deferred => self.deferred.batches().for_each(|batch| visit(batch)),
            _ => {}
        }
        // SAFETY: at higher ranks than the list's rank, this thread holds the list's lock; by contract, this thread
        // takes the locks in the order of their ranks.
        unsafe {
            if rank > Rank::Caches {
                self.caches_under_fork_lock().for_each(|cache| cache.locks(rank, visit));
            }
            self.memory.pages.locks(rank, visit);
        }
    }

    unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract, this thread holds all locks in the child, including the list's lock.
        unsafe {
            self.caches_under_fork_lock().for_each(|cache| {
                cache.config().per_cpu.forget_other_threads();
                cache.refs().forget_other_threads();
                cache.nodes().iter().for_each(|node| node.forget_other_threads());
                cache.reset_waiters_after_fork();
            });
            self.memory.pages.forget_other_threads();
        }
        self.forks.add(1);
        if let Some(pool) = self.guard.pool() {
            // SAFETY: by contract, this is the child of a fork, with one thread.
            unsafe { pool.forget_other_threads() };
        }
        self.background.reset_after_fork();
    }
}

impl Fork for Subsystem {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: by contract, the caller takes the locks in the order of their ranks.
        unsafe { self.core().locks(rank, visit) }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract, this thread holds all locks in the child.
        unsafe { self.core().forget_other_threads() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, KmemCache, Magazines};
    use core::cell::RefCell;
    use std::collections::BTreeMap;
    use uslab_buddy::{PageConfig, ZoneKind};
    use uslab_magazine::Cpus;

    /// Counts the locks of each rank that a fork takes.
    fn locks(subsystem: &Subsystem) -> BTreeMap<Rank, usize> {
        struct Counting<'a>(&'a Subsystem, RefCell<BTreeMap<Rank, usize>>);
        impl Fork for Counting<'_> {
            unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
                let mut count = 0;
                let count_lock = &mut |lock: &dyn ForkLock| {
                    count += 1;
                    visit(lock);
                };
                // SAFETY: by contract, the caller takes the locks in the order of their ranks.
                unsafe { self.0.locks(rank, count_lock) };
                if count > 0 {
                    self.1.borrow_mut().insert(rank, count);
                }
            }
            unsafe fn forget_other_threads(&self) {}
        }
        let counting = Counting(subsystem, RefCell::default());
        // SAFETY: the locks are released below, and the process does not fork.
        unsafe { counting.before_fork() };
        let held_counts = counting.1.take();
        // SAFETY: `before_fork` was called, and the process did not fork.
        unsafe { counting.after_fork_in_parent() };
        assert_eq!(counting.1.take(), held_counts, "all locks must be released");
        held_counts
    }

    #[test]
    fn fork_acquires_every_lock_of_the_subsystem() {
        let mut pages = PageConfig::with_nodes(
            Cpus::simulated(3, 2).unwrap(),
            vec![vec![(ZoneKind::Normal, 1 << 12)]; 2],
        );
        pages.per_cpu_pages = false;
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let without_caches = locks(&subsystem);
        let cache_ranks = [Rank::Waiters, Rank::Depot, Rank::Node, Rank::CacheRefs];
        // The initial caches of the subsystem are the caches of the size classes.
        let (caches, mut other_ranks) = (subsystem.core().caches.iter().count(), without_caches.clone());
        let per_cache = cache_ranks.map(|rank| other_ranks.remove(&rank));
        assert_eq!(per_cache, [1, 2, 2, 1].map(|per_cache_count| Some(per_cache_count * caches)));
        let (single_ranks, zones, cpus) = (
            [
                Rank::Mergeable,
                Rank::Shrinkers,
                Rank::Caches,
                Rank::Profile,
                Rank::Tables,
                Rank::Drains,
                Rank::NumbersAndRooms,
                Rank::Huge,
                Rank::Tags,
            ],
            (Rank::Zone, 2),
            (Rank::Deferred, 3),
        );
        assert_eq!(
            other_ranks,
            single_ranks.map(|rank| (rank, 1)).into_iter().chain([zones, cpus]).collect()
        );
        let lock_count = |magazines| {
            let cache = KmemCache::builder("one", 100).magazines(magazines).build_in(&subsystem).unwrap();
            let mut locks = locks(&subsystem);
            drop(cache);
            locks.iter_mut().for_each(|(rank, n)| *n -= without_caches.get(rank).copied().unwrap_or(0));
            locks.retain(|_, n| *n > 0);
            locks
        };
        let slab_ranks = [Rank::Waiters, Rank::Node, Rank::CacheRefs];
        assert_eq!(lock_count(Magazines::Off), slab_ranks.into_iter().zip([1, 2, 1]).collect());
        assert_eq!(lock_count(Magazines::BySize), cache_ranks.into_iter().zip([1, 2, 2, 1]).collect());
    }
}

//! Forking while other threads use a subsystem.
//!
//! Every lock of the subsystem and its caches is held meanwhile: see [`Fork`]. Not held are those of the reserve of a
//! [`Mempool`](crate::Mempool) and of the numbers of a [`HandleCache`](crate::handle::HandleCache), which say what follows; nor is a
//! [`Hive`](crate::Hive) that another thread reaps. What
//! the other threads had in hand at that moment is lost to the child: an object or a batch between magazine and slab, a slab
//! between its list and the page allocator, a page. The
//! [`Census`](crate::Census) of such a child counts it, where that of any other process would be a violation.
//!
//! Who waits in a queue of a cache is forgotten in the child, wakers included: a future that goes on there has to be polled once. A cache that
//! another thread was just about to destroy, and could not, stays without magazines there.
//!
//! A child does not have the thread of a [`Reaper`](crate::Reaper), which must not be dropped there; the one of
//! [`Config::reap_every`](crate::Config::reap_every) is started again. Grace periods do not end in a child that was forked while
//! another thread was pinned.
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
    /// As [`Fork::locks`].
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Waiters => visit(&self.waiters().queue),
            Rank::Node => self.nodes().iter().for_each(|node| visit(node.lists())),
            Rank::CacheRefs => visit(&self.refs().0),
            // SAFETY: passed on.
            _ => unsafe { self.config().per_cpu.locks(rank, visit) },
        }
    }
}

impl Core {
    /// All caches, oldest first, while this thread holds their list for a fork.
    ///
    /// # Safety
    /// As [`Fork::locks`]; the list is not released while the answer is used.
    unsafe fn held_caches(&self) -> impl Iterator<Item = &Cache> {
        // SAFETY: the list is locked by this thread, if by anybody.
        let list = unsafe { self.caches.list().held() };
        // SAFETY: a cache lives until it is taken off the list, for which that must be locked.
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
            Rank::Huge => visit(self.huge.pieces()),
            Rank::Tags => visit(&self.tags),
            #[cfg(any(not(loom), crossbeam_loom))]
            Rank::Deferred => self.deferred.batches().for_each(|batch| visit(batch)),
            _ => {}
        }
        // SAFETY: the list of caches is held where the rank is beyond it.
        unsafe {
            if rank > Rank::Caches {
                self.held_caches().for_each(|cache| cache.locks(rank, visit));
            }
            self.memory.pages.locks(rank, visit);
        }
    }

    unsafe fn forget_other_threads(&self) {
        // SAFETY: passed on; the list is held.
        unsafe {
            self.held_caches().for_each(|cache| {
                cache.config().per_cpu.forget_other_threads();
                cache.refs().forget_other_threads();
                cache.nodes().iter().for_each(|node| node.forget_other_threads());
                cache.forget_waiters();
            });
            self.memory.pages.forget_other_threads();
        }
        self.forks.add(1);
        if let Some(pool) = self.guard.pool() {
            // SAFETY: passed on.
            unsafe { pool.forget_other_threads() };
        }
        self.background.in_child();
    }
}

impl Fork for Subsystem {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: passed on.
        unsafe { self.core().locks(rank, visit) }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: passed on.
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

    /// How many locks of each rank a fork takes.
    fn locks(subsystem: &Subsystem) -> BTreeMap<Rank, usize> {
        struct Counting<'a>(&'a Subsystem, RefCell<BTreeMap<Rank, usize>>);
        impl Fork for Counting<'_> {
            unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
                let mut count = 0;
                let counted = &mut |lock: &dyn ForkLock| {
                    count += 1;
                    visit(lock);
                };
                // SAFETY: passed on.
                unsafe { self.0.locks(rank, counted) };
                if count > 0 {
                    self.1.borrow_mut().insert(rank, count);
                }
            }
            unsafe fn forget_other_threads(&self) {}
        }
        let counting = Counting(subsystem, RefCell::default());
        // SAFETY: given back below, and the process does not fork.
        unsafe { counting.before_fork() };
        let held = counting.1.take();
        // SAFETY: as above.
        unsafe { counting.after_fork_in_parent() };
        assert_eq!(counting.1.take(), held, "all of them are given back");
        held
    }

    #[test]
    fn all_locks_are_held_of_each_table_node_zone_cpu_and_cache() {
        let mut pages = PageConfig::with_nodes(
            Cpus::simulated(3, 2).unwrap(),
            vec![vec![(ZoneKind::Normal, 1 << 12)]; 2],
        );
        pages.per_cpu_pages = false;
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let alone = locks(&subsystem);
        let of_caches = [Rank::Waiters, Rank::Depot, Rank::Node, Rank::CacheRefs];
        // Its own caches are those of sizes.
        let (caches, mut others) = (subsystem.core().caches.iter().count(), alone.clone());
        let own = of_caches.map(|rank| others.remove(&rank));
        assert_eq!(own, [1, 2, 2, 1].map(|each| Some(each * caches)));
        let (once, zones, cpus) = (
            [
                Rank::Mergeable,
                Rank::Shrinkers,
                Rank::Caches,
                Rank::Profile,
                Rank::Tables,
                Rank::Drains,
                Rank::Making,
                Rank::Huge,
                Rank::Tags,
            ],
            (Rank::Zone, 2),
            (Rank::Deferred, 3),
        );
        assert_eq!(others, once.map(|rank| (rank, 1)).into_iter().chain([zones, cpus]).collect());
        let with = |magazines| {
            let cache = KmemCache::builder("one", 100).magazines(magazines).build_in(&subsystem).unwrap();
            let mut locks = locks(&subsystem);
            drop(cache);
            locks.iter_mut().for_each(|(rank, n)| *n -= alone.get(rank).copied().unwrap_or(0));
            locks.retain(|_, n| *n > 0);
            locks
        };
        let more = [Rank::Waiters, Rank::Node, Rank::CacheRefs];
        assert_eq!(with(Magazines::Off), more.into_iter().zip([1, 2, 1]).collect());
        assert_eq!(with(Magazines::BySize), of_caches.into_iter().zip([1, 2, 2, 1]).collect());
    }
}

//! Forking while other threads use a subsystem.
//!
//! The child of a process with threads has only the thread that forked. A lock that another one held would be held there
//! for ever, and what it protects may be half done; so [`Subsystem::hold`] takes every lock before the fork, in the one
//! order in which they may be nested (outermost first):
//!
//! ```text
//! lists of shared caches, of shrinkers > list of caches > each cache, oldest first: its layer (drains > depots > making), its nodes, its door
//!                > pages: each zone's layers, its zone
//!                > table of huge memory > tags > batches of deferred frees
//! ```
//!
//! and the parent and the child give them back. What the other threads had in hand at that moment is lost to the child, as
//! all that they owned: an object or a batch between magazine and slab, a slab between its list and the page allocator, a
//! page. The [`Census`](crate::Census) of such a child counts it, where that of any other process would be a violation.

use crate::cache::{Cache, Object};
use crate::huge::Table;
use crate::node::{Lists, Node};
use crate::owner::{Counted, Owner};
use crate::registry::List;
use crate::shrinker::Entry;
use crate::subsystem::{Core, Subsystem};
#[cfg(not(loom))]
use crate::tags::Tags;
#[cfg(not(loom))]
use std::sync::Arc;
use uslab_buddy::Reserved;
use uslab_magazine::MAX_NODES;
use uslab_magazine::sync::{Kept, MutexGuard};

/// The locks of a cache.
pub(crate) struct Locks<'c> {
    layer: Option<uslab_magazine::Held<'c, Object, Reserved>>,
    _nodes: [Option<MutexGuard<'c, Lists>>; MAX_NODES as usize],
    _visits: MutexGuard<'c, Counted>,
}

/// Room for them.
pub(crate) type Room = Kept<Locks<'static>>;

impl Cache {
    /// # Safety
    /// The list of caches is locked until `release_locks`, which is called.
    unsafe fn hold_locks(&self) {
        // SAFETY: a cache that is on the list lives until it is taken off, for which the list must be locked.
        let this: &'static Self = unsafe { &*core::ptr::from_ref(self) };
        let locks = Locks {
            layer: this.layer().map(|layer| layer.hold()),
            _nodes: Node::lock_all(this.nodes()),
            _visits: this.visits().0.lock(),
        };
        // SAFETY: the list is locked.
        unsafe { self.held().put(locks) };
    }

    /// # Safety
    /// As `hold_locks`, on the same thread.
    unsafe fn release_locks(&self, in_child: bool) {
        // SAFETY: the list is locked.
        let Some(locks) = (unsafe { self.held().take() }) else { return };
        if in_child {
            locks.layer.into_iter().for_each(uslab_magazine::Held::in_child);
        }
    }
}

/// Every lock of a subsystem. See [`Subsystem::hold`].
#[must_use]
#[derive(Debug)]
pub struct Held<'s> {
    core: &'s Core,
    _mergeable: MutexGuard<'s, List<Owner>>,
    _shrinkers: MutexGuard<'s, List<Entry>>,
    caches: MutexGuard<'s, List<Cache>>,
    pages: Option<uslab_buddy::Held<'s>>,
    _huge: MutexGuard<'s, Table>,
    #[cfg(not(loom))]
    _tags: MutexGuard<'s, (Option<Arc<Tags>>, u64)>,
}

impl Held<'_> {
    /// To be called in the child, in place of dropping: nobody else runs, so whatever is claimed is nobody's.
    pub fn in_child(mut self) {
        self.release(true);
        self.core.forks.add(1);
        self.pages.take().into_iter().for_each(uslab_buddy::Held::in_child);
    }

    fn release(&mut self, in_child: bool) {
        for cache in self.caches.entries() {
            // SAFETY: the list is locked, so the cache lives; its locks were taken by this thread.
            unsafe { (*cache).release_locks(in_child) };
        }
        #[cfg(not(loom))]
        // SAFETY: `hold` took them on this thread; the second time there are none.
        unsafe {
            self.core.deferred.release();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // After `in_child` there is nothing left to release.
        self.release(false);
    }
}

impl Subsystem {
    /// Waits for every lock of the subsystem. Whoever may `fork` while other threads use it holds this meanwhile, drops it in
    /// the parent and calls [`in_child`](Held::in_child) in the child, on the thread that called this. Nothing is
    /// allocated; allocations and frees that magazines serve go on.
    ///
    /// Without it a child must not use the subsystem: it could wait for ever for a thread that it does not have. (Nor has it
    /// the thread of a [`Reaper`](crate::Reaper), which must not be dropped there. Grace periods do not end in a child that was
    /// forked while another thread was pinned.)
    ///
    /// ```
    /// let subsystem = uslab::Subsystem::global()?;
    /// let held = subsystem.hold();
    /// // match unsafe { fork() } { child => held.in_child(), parent => drop(held) }
    /// drop(held);
    /// # Ok::<(), uslab::StartError>(())
    /// ```
    pub fn hold(&self) -> Held<'_> {
        self.core().hold()
    }
}

impl Core {
    pub(crate) fn hold(&self) -> Held<'_> {
        let mergeable = self.mergeable.lock();
        let shrinkers = self.shrinkers.lock();
        let caches = self.caches.lock();
        for cache in caches.entries() {
            // SAFETY: the list is locked, so the cache lives; `Held` gives the locks back.
            unsafe { (*cache).hold_locks() };
        }
        let held = Held {
            core: self,
            _mergeable: mergeable,
            _shrinkers: shrinkers,
            caches,
            pages: Some(self.ground.pages.hold()),
            _huge: self.huge.hold(),
            #[cfg(not(loom))]
            _tags: self.tags.lock(),
        };
        #[cfg(not(loom))]
        // SAFETY: `Held` gives them back.
        unsafe {
            self.deferred.hold();
        }
        held
    }
}

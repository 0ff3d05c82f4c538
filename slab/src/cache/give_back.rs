//! Returns a cache's memory by a flush, shrink, reap or destruction.

use super::alloc::EmptySupplier;
use super::live::Live;
use super::node::{Node, NodeCount, UnlistedSlabs};
use super::slabs::IS_DESTRUCTING;
use super::{Cache, Object};
use crate::error::Busy;
use core::cell::Cell;
use uslab_magazine::sync::relax;
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{Operation, Supplier};

/// A supplier that only receives flushed objects, and counts the slabs that these frees release.
struct FlushReceiver<'a>(&'a Cache, Cell<usize>);

impl Supplier<Object> for FlushReceiver<'_> {
    fn fill(&self, _: &Operation, _node: u32, _max: usize, _put: impl FnMut(Object)) -> usize {
        0
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Object>) {
        self.1.update(|slabs| slabs + self.0.free_to_slabs(op, rounds));
    }
}

impl Cache {
    /// Flushes all free objects to their slabs, destructs them, frees all empty slabs, and sorts the partial slabs.
    /// Returns the number of slabs freed.
    pub(crate) fn shrink(&self, op: &Operation) -> usize {
        self.flush_deferred();
        self.flush_all(op) + self.shrink_slabs(op)
    }
    /// Shrinks the cache as [`shrink`](Self::shrink) does, after a sweep has taken the stacks of all CPUs.
    pub(crate) fn shrink_after_sweep(&self, op: &Operation) -> usize {
        let flushing = FlushReceiver(self, Cell::new(0));
        self.config.per_cpu.flush_swept(op, &flushing);
        flushing.1.get() + self.shrink_slabs(op)
    }
    fn shrink_slabs(&self, op: &Operation) -> usize {
        let slabs = self.destruct_free_objects(op);
        let mut unlisted = UnlistedSlabs::default();
        self.nodes.iter().for_each(|node| node.shrink(&self.core.memory, &mut unlisted));
        self.discard_all_unused_pages();
        slabs + self.release(op, unlisted)
    }

    /// Frees the cache's empty slabs. Returns the number of slabs freed.
    pub(crate) fn discard_empty(&self, op: &Operation) -> usize {
        let mut unlisted = UnlistedSlabs::default();
        self.nodes.iter().for_each(|node| node.discard_empty(&self.core.memory, &mut unlisted));
        self.release(op, unlisted)
    }

    pub(crate) fn flush_deferred(&self) {
        #[cfg(any(not(loom), crossbeam_loom))]
        self.core.flush_deferred();
    }

    /// Flushes the magazines to the slabs. Returns the number of slabs freed.
    pub(super) fn flush_all(&self, op: &Operation) -> usize {
        let flushing = FlushReceiver(self, Cell::new(0));
        self.config.per_cpu.flush_all(op, &flushing);
        flushing.1.get()
    }

    /// Ends a working-set interval of the magazines, and destructs the free objects in slabs. Returns the number of
    /// objects flushed.
    pub(crate) fn reap(&self) -> u64 {
        self.flush_deferred();
        let objects = self.config.per_cpu.reap(&EmptySupplier(self));
        self.destruct_free_objects(&self.operation(OperationKind::Reclaim));
        self.discard_idle_pages();
        objects
    }

    /// Reaps the cache as [`reap`](Self::reap) does, after a sweep has taken the stacks of idle CPUs.
    pub(crate) fn reap_swept(&self) -> u64 {
        let objects = self.config.per_cpu.reap_swept(&EmptySupplier(self));
        self.destruct_free_objects(&self.operation(OperationKind::Reclaim));
        self.discard_idle_pages();
        objects
    }

    /// Reduces the capacity of the magazines, because memory is short.
    pub(crate) fn shrink_magazines(&self) {
        self.config.per_cpu.shrink(&self.operation(OperationKind::Reclaim), &EmptySupplier(self));
    }

    /// Drains the stacks of `cpus` to the slabs.
    pub(crate) fn drain(&self, cpus: core::ops::Range<u32>) {
        self.config.per_cpu.drain(&EmptySupplier(self), cpus);
    }
    /// Flushes the objects that a sweep has taken to their slabs.
    pub(crate) fn drain_swept(&self) {
        self.config.per_cpu.drain_swept(&EmptySupplier(self));
    }

    /// Frees all slabs and ends the cache, if no object is in use.
    pub(crate) fn destroy(&self) -> Result<(), Busy> {
        self.flush_deferred();
        // From now on, a free puts its object into its slab, not into a magazine.
        self.config.per_cpu.close();
        self.flush_all(&self.operation(OperationKind::Reclaim));
        let ended = self.end_cache_after_destructors().map_err(|live| {
            self.reopen();
            Busy { live, aliases: 0 }
        });
        // Waiters get the object, or an error.
        self.let_first_waiter_grow();
        ended
    }

    /// Closes the magazines of a cache that has no handles, so that later frees bypass them.
    pub(crate) fn close_magazines(&self) {
        self.flush_deferred();
        self.close_permanently();
        self.flush_all(&self.operation(OperationKind::Reclaim));
    }
    /// Ends the cache as [`end`](Self::end) does, after all threads have finished destructing free objects. If a
    /// destructor ends a cache, the call does not wait for other destructors, because two destructors might wait for
    /// each other.
    fn end_cache_after_destructors(&self) -> Result<(), u64> {
        loop {
            match self.end() {
                Err((0, destructing)) if IS_DESTRUCTING.with(Cell::get) => return Err(destructing),
                Err((0, _)) => relax(),
                ended => return ended.map_err(|(used, _)| used),
            }
        }
    }
    /// Frees all slabs and ends the cache, if all objects are in their slabs. An object in a magazine counts
    /// as in use.
    ///
    /// # Errors
    /// Fails as [`Node::close`] does.
    pub(crate) fn end(&self) -> Result<(), (u64, u64)> {
        let mut unlisted = UnlistedSlabs::default();
        let ended = Node::close(&self.nodes, &self.core.memory, &mut unlisted);
        self.release(&self.operation(OperationKind::Reclaim), unlisted);
        ended
    }

    /// Takes a snapshot of the objects in use, after flushing the magazines.
    pub(crate) fn live(&self, live: &mut Live) {
        self.flush_all(&self.operation(OperationKind::Reclaim));
        live.clear();
        for node in &self.nodes {
            // Memory for the snapshot is allocated outside the node's lock, because the global allocator may need the
            // node. The allocation is repeated if slabs were added.
            while !node.live(&self.core.memory, live) {
                let NodeCount { objects, .. } = node.count();
                live.make_room(node.count().slabs(), objects);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Busy, Config, Gfp, KmemCache, Subsystem};
    use std::sync::{Arc, Weak};
    use uslab_magazine::sync::{AtomicBool, Mutex, Ordering::Relaxed};

    /// Regression test: a destructor that destroyed its own cache waited for itself for ever.
    #[test]
    fn destructor_cannot_destroy_its_cache() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let (own, outcome) = (Arc::new(Mutex::new(Weak::<KmemCache>::new())), Arc::new(Mutex::new(None)));
        let (found, said) = (own.clone(), outcome.clone());
        let builder = KmemCache::builder("destroys", 64).dtor(move |_| {
            let cache = found.lock().upgrade().unwrap();
            let destroyed = cache.destroy();
            said.lock().get_or_insert(destroyed);
        });
        let cache = Arc::new(builder.build_in(&subsystem).unwrap());
        *own.lock() = Arc::downgrade(&cache);
        drop(cache.alloc_blocks(Gfp::KERNEL, 2).unwrap());
        cache.shrink();
        assert_eq!(*outcome.lock(), Some(Err(Busy { live: 2, aliases: 0 })));
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        cache.destroy().unwrap();
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }

    /// Regression test: two destructors that destroyed each other's caches waited for each other.
    #[test]
    fn mutually_destroying_destructors_do_not_deadlock() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let caches = [(); 2].map(|()| Arc::new(Mutex::new(Weak::<KmemCache>::new())));
        let begun = Arc::new([(); 2].map(|()| AtomicBool::new(false)));
        let built_caches = [0, 1].map(|n| {
            let (other, begun) = (caches[1 - n].clone(), begun.clone());
            let builder = KmemCache::builder("destroys", 64).dtor(move |_| {
                begun[n].store(true, Relaxed);
                while !begun[1 - n].load(Relaxed) {
                    std::thread::yield_now();
                }
                let cache = other.lock().upgrade().unwrap();
                _ = cache.destroy();
            });
            let cache = Arc::new(builder.build_in(&subsystem).unwrap());
            *caches[n].lock() = Arc::downgrade(&cache);
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
            cache
        });
        std::thread::scope(|scope| built_caches.iter().for_each(|cache| _ = scope.spawn(|| cache.shrink())));
        built_caches.iter().for_each(|cache| cache.destroy().unwrap());
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }
}

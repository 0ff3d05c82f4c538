//! Tests shrinkers, which are callbacks that free a program's cached memory before an allocation fails.

use crate::common::{assert_all_memory_returned, config, subsystem};
use std::sync::Arc;
use uslab::{AllocError, Block, Gfp, KmemCache, Limit, Shrinker, Subsystem};
use uslab_magazine::sync::{Counter, Mutex};

/// A program's cache of blocks that can be dropped, oldest first, together with the requests that its shrinker has
/// received.
#[derive(Clone, Default)]
struct LruBlockShrinker {
    blocks: Arc<Mutex<Vec<Block<'static>>>>,
    calls: Arc<Counter>,
    flags: Arc<Counter>,
}

impl Shrinker for LruBlockShrinker {
    fn count(&self) -> usize {
        self.blocks.lock().len()
    }
    fn scan(&self, objects: usize, gfp: Gfp) -> usize {
        self.calls.add(1);
        self.flags.set(u64::from(gfp.bits()));
        let n = objects.min(self.count());
        // The blocks are dropped after the lock is released.
        let dropped: Vec<_> = self.blocks.lock().drain(..n).collect();
        dropped.len()
    }
}

fn new_leaked_cache(
    subsystem: &Arc<Subsystem>,
    name: &str,
    size: usize,
    limit: Option<Limit>,
) -> &'static KmemCache {
    let builder = KmemCache::builder(name, size);
    let builder = limit.into_iter().fold(builder, |builder, limit| builder.limit(limit));
    Box::leak(Box::new(builder.build_in(subsystem).unwrap()))
}

#[test]
fn cache_at_its_limit_gets_objects_from_its_shrinker() {
    let subsystem = Arc::new(subsystem(1));
    let cache = new_leaked_cache(&subsystem, "entry", 512, Some(Limit::Slabs(2)));
    let lru = LruBlockShrinker::default();
    let registered = cache.register_shrinker(lru.clone());
    // The loop allocates twice as much as the limit allows, and is never refused.
    let max_objects = 2 * cache.info().objs_per_slab;
    for _ in 0..3 * max_objects {
        let block = cache.alloc_block(Gfp::KERNEL).unwrap();
        lru.blocks.lock().push(block);
    }
    assert!(lru.calls.get() > 0 && lru.blocks.lock().len() as u64 <= max_objects);
    // Bulk allocations and prefills also call the shrinker.
    let mut bulk = [None; 4];
    cache.alloc_bulk(Gfp::KERNEL, &mut bulk).unwrap();
    // SAFETY: the objects were allocated just now.
    unsafe { cache.free_bulk(bulk.into_iter().flatten()) };
    while let Ok(block) = cache.alloc_block(Gfp::NOWAIT) {
        lru.blocks.lock().push(block);
    }
    let calls = lru.calls.get();
    assert_eq!(cache.alloc_block(Gfp::NOWAIT).unwrap_err(), AllocError::CacheLimit { slabs: 2 });
    assert_eq!(lru.calls.get(), calls, "a non-blocking request must call no shrinker");
    drop(cache.prefill(Gfp::NOIO, 3).unwrap());
    assert_eq!(lru.flags.get(), u64::from(Gfp::NOIO.bits()), "the shrinker must get the request's flags");
    let calls = lru.calls.get();
    while let Ok(block) = cache.alloc_block(Gfp::NOWAIT) {
        lru.blocks.lock().push(block);
    }
    // A shrinker of another limit is not called.
    let other_cache = new_leaked_cache(&subsystem, "other", 512, Some(Limit::Slabs(1)));
    let other_blocks: Vec<_> = std::iter::from_fn(|| other_cache.alloc_block(Gfp::KERNEL).ok()).collect();
    assert_eq!(lru.calls.get(), calls);
    drop(other_blocks);
    drop(registered);
    assert!(cache.alloc_block(Gfp::KERNEL).is_err());
    assert_eq!(lru.calls.get(), calls, "the shrinker must no longer be called");
    let remaining_blocks = std::mem::take(&mut *lru.blocks.lock());
    drop(remaining_blocks);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn exhausted_memory_is_reclaimed_from_idle_caches() {
    let subsystem = Arc::new(Subsystem::new(config(2, 1, 16 << 20)).unwrap());
    let (first_cache, other_cache) =
        (new_leaked_cache(&subsystem, "one", 2000, None), new_leaked_cache(&subsystem, "other", 3000, None));
    let lru = LruBlockShrinker::default();
    let _registered = subsystem.register_shrinker(lru.clone());
    let mut blocks = vec![];
    // The loop allocates twice the memory that exists, alternating between two caches, and large blocks.
    for i in 0..16_000 {
        let block = first_cache.alloc_block(Gfp::KERNEL).unwrap_or_else(|error| panic!("{i}: {error}"));
        lru.blocks.lock().push(block);
    }
    for _ in 0..1000 {
        blocks.push(other_cache.alloc_block(Gfp::KERNEL).unwrap());
    }
    let large_block = subsystem.kmalloc().alloc(1 << 20, Gfp::KERNEL).unwrap();
    assert!(lru.calls.get() > 0);
    // SAFETY: the block was allocated above.
    unsafe { subsystem.kmalloc().free(large_block) };
    // With nothing left to drop, the error is the usual one.
    blocks.extend(std::iter::from_fn(|| other_cache.alloc_block(Gfp::KERNEL).ok()));
    assert_eq!(lru.blocks.lock().len(), 0);
    assert!(matches!(other_cache.alloc_block(Gfp::KERNEL), Err(AllocError::Memory(_))));
    drop(blocks);
    assert_all_memory_returned(&subsystem);
}

/// A shrinker that was added for a limit must also be called if memory is exhausted.
#[test]
fn exhausted_memory_is_reclaimed_by_calling_cache_shrinkers() {
    let subsystem = Arc::new(Subsystem::new(config(2, 1, 16 << 20)).unwrap());
    let entries = new_leaked_cache(&subsystem, "entry", 2000, Some(Limit::Slabs(1 << 20)));
    let other_cache = new_leaked_cache(&subsystem, "other", 3000, None);
    let lru = LruBlockShrinker::default();
    let _registered = entries.register_shrinker(lru.clone());
    while let Ok(block) = entries.alloc_block(Gfp::NOWAIT) {
        lru.blocks.lock().push(block);
    }
    let before = lru.blocks.lock().len();
    let blocks: Vec<_> = (0..1000).map(|_| other_cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert!(lru.calls.get() > 0 && lru.blocks.lock().len() < before);
    let remaining_blocks = std::mem::take(&mut *lru.blocks.lock());
    drop((blocks, remaining_blocks));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn shrinker_that_allocates_is_not_called_recursively() {
    struct GreedyShrinker(&'static KmemCache, Arc<Counter>);
    impl Shrinker for GreedyShrinker {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _objects: usize, _gfp: Gfp) -> usize {
            self.1.add(1);
            assert!(self.0.alloc(Gfp::KERNEL).is_err(), "the shrinker has nothing to free");
            0
        }
    }
    let subsystem = Arc::new(subsystem(1));
    let cache = new_leaked_cache(&subsystem, "o", 512, Some(Limit::Slabs(1)));
    let calls = Arc::new(Counter::new(0));
    let _registered = cache.register_shrinker(GreedyShrinker(cache, calls.clone()));
    let blocks: Vec<_> = std::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    assert_eq!(calls.get(), 1);
    drop(blocks);
}

/// Regression test: a cache was identified by its address, and the next cache got the same address.
#[test]
fn new_cache_does_not_call_shrinkers_of_destroyed_caches() {
    let subsystem = Arc::new(subsystem(1));
    let build = || KmemCache::builder("limited", 512).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    // The shrinker can drop blocks, but helps no other limit.
    let lru = LruBlockShrinker::default();
    lru.blocks
        .lock()
        .push(new_leaked_cache(&subsystem, "entry", 512, None).alloc_block(Gfp::KERNEL).unwrap());
    let first = build();
    let _registered = first.register_shrinker(lru.clone());
    drop(first);
    for _ in 0..10 {
        let next_cache = build();
        let blocks: Vec<_> = std::iter::from_fn(|| next_cache.alloc_block(Gfp::KERNEL).ok()).collect();
        assert!(!blocks.is_empty());
    }
    assert_eq!(lru.calls.get(), 0);
}

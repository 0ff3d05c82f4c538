//! The adoption test appends these tests to the tests of `lru`.

use lru::LruCache;
use std::num::NonZeroUsize;
use uslab::{CacheInfo, Subsystem};

/// Returns the statistics of all caches of nodes. Each `LruCache` has one cache of nodes.
fn nodes() -> Vec<CacheInfo> {
    let caches = Subsystem::global().unwrap().info().caches;
    caches.into_iter().filter(|cache| &*cache.name == "lru-node").collect()
}

#[test]
fn adopted_crate_allocates_its_nodes_from_caches() {
    let mut users = LruCache::new(NonZeroUsize::new(1000).unwrap());
    for id in 0..5000_u64 {
        users.put(id, format!("user {id}"));
    }
    let [cache] = &nodes()[..] else { panic!("each list must have one cache") };
    println!("\nOBJECTS lru | {} of {} B, in {} slabs of {}", cache.used, cache.object_size, cache.slabs, cache.objs_per_slab);
    assert_eq!(cache.used, 1000);
    for id in 4000..4100 {
        assert_eq!(users.pop(&id), Some(format!("user {id}")));
    }
    assert_eq!(users.pop_lru().map(|(id, _)| id), Some(4100));
    users.retain(|id, _| id % 2 == 0);
    assert_eq!((users.len(), nodes()[0].used), (449, 449));
    let copy = users.clone();
    assert_eq!(nodes().iter().map(|cache| cache.used).collect::<Vec<_>>(), [449, 449]);
    drop((users, copy));
    assert!(nodes().is_empty(), "the caches must be dropped with their lists");
}

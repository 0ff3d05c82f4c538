//! The adoption test appends these tests to the tests of `crossbeam-skiplist`.

use crossbeam_skiplist::SkipMap;
use std::thread;
use uslab::Subsystem;

/// Returns the size of each kind of node, and the number of nodes in use.
fn nodes() -> Vec<(usize, u64)> {
    let caches = Subsystem::global().unwrap().info().caches;
    let of_nodes = caches.iter().filter(|cache| cache.name.starts_with("skiplist-node-"));
    let mut nodes: Vec<_> = of_nodes.map(|cache| (cache.object_size as usize, cache.used)).collect();
    nodes.sort();
    nodes
}

#[test]
fn adopted_crate_allocates_its_nodes_from_caches() {
    let map = SkipMap::new();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let map = &map;
            scope.spawn(move || (0..10_000).for_each(|i| _ = map.insert(i * 4 + thread, i)));
        }
    });
    let all = nodes();
    println!("\nOBJECTS crossbeam-skiplist | {}", all.iter().map(|(size, used)| format!("{used} of {size} B")).collect::<Vec<_>>().join(", "));
    assert_eq!(all.iter().map(|(_, used)| used).sum::<u64>(), 40_000);
    // A node takes three words for value, key and count, and one more word for each of its levels. Half of the
    // nodes have one level.
    assert_eq!(all[0].0, 32);
    assert!((16_000..24_000).contains(&all[0].1), "{all:?}");
    for key in 0..20_000_u64 {
        map.remove(&key);
    }
    drop(map);
    // The epoch collector frees the nodes, some later than others.
    for _ in 0..10_000 {
        crossbeam_epoch::pin().flush();
        if nodes().iter().all(|(_, used)| *used == 0) {
            return;
        }
        thread::yield_now();
    }
    panic!("nodes remain: {:?}", nodes());
}

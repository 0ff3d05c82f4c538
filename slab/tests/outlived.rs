//! Caches without end, each outlived by an object: alone in its process, whose memory is measured.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{assert_all_given_back, subsystem};
use std::sync::mpsc::sync_channel;
use uslab::{ObjectCache, OwnedBox, Subsystem};
use uslab_magazine::on_cpu;

/// Makes a cache and drops it, `caches` times; an object of each is freed some caches later by another thread.
fn outlived(subsystem: &Subsystem, caches: usize) {
    let (give, take) = sync_channel::<OwnedBox<u64>>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            on_cpu(1);
            take.into_iter().for_each(|object| assert_eq!(*object, 7));
        });
        on_cpu(0);
        for i in 0..caches {
            let cache =
                ObjectCache::builder(format!("outlived-{i}")).ctor(|| 7_u64).build_in(subsystem).unwrap();
            give.send(cache.alloc_owned().unwrap()).unwrap();
        }
        drop(give);
    });
}

/// Bytes that the process has in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn any_number_of_caches_may_be_outlived_by_an_object_each() {
    let subsystem = subsystem(2);
    outlived(&subsystem, 1000);
    let (before, pages) = (resident(), subsystem.info().pages.committed_bytes());
    outlived(&subsystem, 200_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes more");
    assert!(subsystem.info().pages.committed_bytes() <= pages + (4 << 20));
    assert!(subsystem.info().caches.iter().all(|cache| !cache.name.starts_with("outlived")));
    // Their numbers are there again.
    let cache = ObjectCache::builder("last").ctor(|| 7_u64).build_in(&subsystem).unwrap();
    drop(cache.alloc().unwrap());
    assert!(cache.info().in_magazines > 0);
    drop(cache);
    assert_all_given_back(&subsystem);
}

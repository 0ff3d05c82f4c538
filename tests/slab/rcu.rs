//! Tests type-stable caches: an object that a reader has found remains an object of its type.

use crate::common::{READERS, assert_all_memory_returned, subsystem};
use uslab::{Gfp, KmemCache, ObjectCache, rcu};
use uslab_magazine::sync::{AtomicBool, AtomicU64, Ordering::*};

/// Advances the RCU collector until `is_done` returns `true`. The readers of all tests share one collector, so a pinned
/// reader that loses its CPU delays all tests.
fn wait(is_done: impl Fn() -> bool) {
    for turn in 0..60_000 {
        if is_done() {
            return;
        }
        rcu::advance();
        if turn < 1000 {
            std::thread::yield_now()
        } else {
            std::thread::sleep(std::time::Duration::from_millis(1))
        }
    }
    panic!("the grace period does not end");
}

#[test]
fn type_stable_pages_are_freed_after_the_last_reader() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("stable", 64).type_stable().build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::ZERO).unwrap();
    // SAFETY: this test owns the object.
    unsafe { object.cast::<AtomicU64>().as_ref() }.store(7, Relaxed);
    let reader = rcu::pin();
    // SAFETY: the object was allocated above, and is freed once; the reader below reads it as the atomic that it stays.
    unsafe { cache.free(object) };
    assert_eq!(cache.shrink(), 1);
    for _ in 0..10 {
        rcu::advance();
    }
    let info = cache.info();
    assert_eq!((info.slabs, info.grace, info.slabs_released), (0, 1, 0));
    let census = subsystem.check().unwrap();
    assert_eq!((census.slab_pages, census.grace_pages), (0, 1));
    // SAFETY: the reader pinned before the slab was returned, so its pages are still mapped.
    assert_eq!(unsafe { object.cast::<AtomicU64>().as_ref() }.load(Relaxed), 7);
    drop(reader);
    wait(|| cache.info().grace == 0);
    assert_eq!(cache.info().slabs_released, 1);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn type_stable_cache_can_be_destroyed_before_its_slabs() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let reader = rcu::pin();
    let cache = KmemCache::builder("stable", 64).type_stable().build_in(&subsystem).unwrap();
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    drop(cache);
    let census = subsystem.check().unwrap();
    assert_eq!(census.block_pages, 1, "the page belongs to no cache, but is not free yet");
    drop(reader);
    // Any thread may run deferred work, and the census requires that no operation runs.
    wait(|| subsystem.check().is_ok_and(|census| census.block_pages == 0));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn readers_of_type_stable_memory_see_only_valid_objects() {
    let _readers = READERS.lock();
    let subsystem = subsystem(2);
    // Every object is an even generation at all times.
    let cache = KmemCache::builder("stable", 8)
        .type_stable()
        .ctor(|bytes| bytes[0] = 2)
        .build_in(&subsystem)
        .unwrap();
    let (shared, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut values_seen = 0_u64;
            while !stop.load(Relaxed) {
                let _guard = rcu::pin();
                let address = shared.load(Acquire) as usize;
                if let Some(object) =
                    core::ptr::NonNull::new(core::ptr::with_exposed_provenance_mut::<AtomicU64>(address))
                {
                    // SAFETY: the slab was not returned before this reader pinned, so the memory stays an atomic until
                    // the reader unpins.
                    let value = unsafe { object.as_ref() }.load(Relaxed);
                    assert!(value % 2 == 0 && value > 0, "{value} is not a generation");
                    values_seen += 1;
                }
            }
            values_seen
        });
        for round in 0..2_000_u64 {
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            // SAFETY: an object of this cache is an atomic at all times.
            unsafe { object.cast::<AtomicU64>().as_ref() }.store(2 + 2 * (round % 100), Relaxed);
            shared.store(object.as_ptr().expose_provenance() as u64, Release);
            std::thread::yield_now();
            shared.store(0, Release);
            // SAFETY: the object was allocated above, is freed once, and has an even generation.
            unsafe { cache.free(object) };
            if round % 10 == 0 {
                cache.shrink();
            }
        }
        stop.store(true, Relaxed);
        assert!(reader.join().unwrap() < u64::MAX);
    });
    drop(cache);
    wait(|| subsystem.check().is_ok_and(|census| census.block_pages == 0));
}

#[test]
fn deferred_free_waits_for_all_readers_of_the_object() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("node")
        .ctor(|| AtomicU64::new(1))
        .reset(|n| n.store(1, Relaxed))
        .build_in(&subsystem)
        .unwrap();
    let object = cache.alloc().unwrap();
    object.store(7, Relaxed);
    let found_address = core::ptr::from_ref(&*object);
    let reader = rcu::pin();
    object.free_deferred();
    cache.reap();
    for _ in 0..10 {
        rcu::advance();
    }
    assert_eq!((cache.info().used, cache.info().deferred), (1, 1));
    assert_eq!(cache.destroy().unwrap_err().live, 1);
    // SAFETY: the reader pinned before the object was freed.
    assert_eq!(unsafe { &*found_address }.load(Relaxed), 7);
    drop(reader);
    wait(|| cache.info().deferred == 0);
    assert_eq!(
        (cache.info().used, cache.alloc().unwrap().load(Relaxed)),
        (0, 1),
        "the object must be reset by its free"
    );
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn reap_starts_partial_batches_of_deferred_frees() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 64).build_in(&subsystem).unwrap();
    let operations: [&dyn Fn(); 5] = [
        &|| subsystem.drain_cpus(0..1),
        &|| _ = subsystem.reap(),
        &|| _ = subsystem.shrink(),
        &|| _ = cache.reap(),
        &|| _ = cache.shrink(),
    ];
    for begin in operations {
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free_deferred(object) };
        assert_eq!((cache.info().used, cache.info().deferred), (1, 1));
        begin();
        wait(|| cache.info().deferred == 0);
        assert_eq!(cache.info().used, 0);
    }
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn each_deferred_object_is_freed_exactly_once() {
    let _readers = READERS.lock();
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("node", 64).build_in(&subsystem).unwrap();
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let cache = &cache;
            scope.spawn(move || {
                uslab_magazine::on_cpu(cpu);
                for round in 0..50 {
                    let mut objects = [None; 37];
                    cache.alloc_bulk(Gfp::KERNEL, &mut objects).unwrap();
                    let _reader = (round % 3 == 0).then(rcu::pin);
                    for object in objects.into_iter().flatten() {
                        // SAFETY: the object was allocated above, and is freed once.
                        unsafe { cache.free_deferred(object) };
                    }
                }
            });
        }
    });
    // Objects in an incomplete batch stay deferred. Other tests may be running deferred work of all other objects.
    wait(|| cache.info().used == cache.info().deferred);
    assert!(cache.info().deferred > 0);
    cache.shrink();
    wait(|| cache.info().deferred == 0);
    assert_eq!((cache.info().used, cache.info().corruptions), (0, 0));
    subsystem.check().unwrap();
    assert_eq!(cache.info().allocs, cache.info().frees);
}

#[test]
fn dropped_cache_is_destroyed_after_its_deferred_frees() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let reader = rcu::pin();
    let cache = ObjectCache::builder("node").ctor(|| 1_u64).build_in(&subsystem).unwrap();
    for object in cache.alloc_bulk(100).unwrap() {
        object.free_deferred();
    }
    drop(cache);
    let node = subsystem.info().caches.into_iter().find(|cache| cache.name == "node").unwrap();
    assert_eq!((node.used, node.deferred), (100, 100));
    drop(reader);
    wait(|| subsystem.info().caches.iter().all(|cache| cache.name != "node"));
    wait(|| subsystem.check().is_ok_and(|census| census.block_pages == 0));
    assert_all_memory_returned(&subsystem);
}

/// Regression test: when a reset panicked, the other objects of the batch were lost, and counted as in use forever.
#[test]
fn panic_in_deferred_reset_frees_the_remaining_batch() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let builder =
        ObjectCache::builder("panics").ctor(|| 0_u64).reset(|value| assert_ne!(*value, 3, "intended panic"));
    let (cache, other_cache) = (
        builder.build_in(&subsystem).unwrap(),
        ObjectCache::builder("other").ctor(|| 0_u64).build_in(&subsystem).unwrap(),
    );
    for i in 0..10 {
        let mut object = cache.alloc().unwrap();
        *object = i;
        object.free_deferred();
        other_cache.alloc().unwrap().free_deferred();
    }
    subsystem.reap();
    wait(|| cache.info().deferred + other_cache.info().deferred == 0);
    assert_eq!((cache.info().used, other_cache.info().used), (0, 0));
    drop((cache, other_cache));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn reclaim_of_all_caches_includes_deferred_frees() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    uslab_magazine::on_cpu(0);
    let cache = KmemCache::builder("node", 64).build_in(&subsystem).unwrap();
    let release_methods: [&dyn Fn(); 3] =
        [&|| _ = subsystem.shrink(), &|| _ = subsystem.reap(), &|| subsystem.drain_cpus(0..1)];
    for release in release_methods {
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated just now, is freed once, and is not read afterwards.
        unsafe { cache.free_deferred(object) };
        (0..1000).for_each(|_| rcu::advance());
        assert_eq!(cache.info().deferred, 1, "the object is in an incomplete batch");
        release();
        wait(|| cache.info().deferred == 0);
    }
}

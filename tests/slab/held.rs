//! Tests how memory owned by constructed objects is counted, and how limits, accounts and reports use the count.

use crate::common::{assert_all_memory_returned, config, subsystem};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab::cache::{Account, MAX_SURPLUS_BYTES};
use uslab::{AllocError, Config, KmemCache, Limit, ObjectCache, Subsystem};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::{AtomicUsize, Ordering::Relaxed};

const HELD_BYTES: usize = 256 << 10;

/// An object that adds the number of bytes that it owns to the counter `held_bytes`.
struct CountedBytesObject {
    held_bytes: Arc<AtomicUsize>,
    bytes: usize,
}
impl CountedBytesObject {
    fn new(held_bytes: &Arc<AtomicUsize>, bytes: usize) -> Self {
        held_bytes.fetch_add(bytes, Relaxed);
        Self { held_bytes: held_bytes.clone(), bytes }
    }
}
impl Drop for CountedBytesObject {
    fn drop(&mut self) {
        self.held_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Regression test: the first allocation from a slab constructed all of its 128 objects.
#[test]
fn allocation_with_held_memory_constructs_a_single_object() {
    let subsystem = subsystem(1);
    let held_bytes = Arc::new(AtomicUsize::new(0));
    let new = held_bytes.clone();
    let cache = ObjectCache::builder("deflate")
        .ctor(move || CountedBytesObject::new(&new, HELD_BYTES))
        .build_in(&subsystem)
        .unwrap();
    let objects: Vec<_> = (1..=300)
        .map(|n| {
            let object = cache.alloc().unwrap();
            assert_eq!(held_bytes.load(Relaxed), n * HELD_BYTES);
            object
        })
        .collect();
    drop(objects);
    // The weights are not known, so free objects stay constructed until a shrink.
    assert_eq!(held_bytes.load(Relaxed), 300 * HELD_BYTES);
    let single_object = cache.alloc().unwrap();
    cache.shrink();
    assert_eq!(held_bytes.load(Relaxed), HELD_BYTES, "the object in use must be counted");
    drop(single_object);
    cache.reap();
    cache.reap();
    assert_eq!(held_bytes.load(Relaxed), 0);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

/// Regression test: slabs of 8 pages did not start the reaper thread, so 256 MiB were never freed.
#[test]
fn reaper_thread_destructs_unused_objects() {
    let reap_every = Some(Duration::from_millis(10));
    let subsystem = Subsystem::new(Config { reap_every, ..config(2, 1, 64 << 20) }).unwrap();
    let held_bytes = Arc::new(AtomicUsize::new(0));
    let new = held_bytes.clone();
    let cache = ObjectCache::builder("deflate")
        .ctor(move || CountedBytesObject::new(&new, HELD_BYTES))
        .build_in(&subsystem)
        .unwrap();
    for _ in 0..3 {
        drop((0..1000).map(|_| cache.alloc().unwrap()).collect::<Vec<_>>());
        let start_time = Instant::now();
        while held_bytes.load(Relaxed) > 10 << 20 {
            assert!(
                start_time.elapsed() < Duration::from_secs(60),
                "{} bytes stay",
                held_bytes.load(Relaxed)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn burst_of_weighted_objects_is_freed_without_reaper_thread() {
    on_cpu(0);
    for with_weights in [false, true] {
        let subsystem = subsystem(1);
        let held_bytes = Arc::new(AtomicUsize::new(0));
        let new = held_bytes.clone();
        let builder = ObjectCache::builder("deflate").ctor(move || CountedBytesObject::new(&new, HELD_BYTES));
        let builder =
            if with_weights { builder.weigh(|object| object.bytes) } else { builder.holds(HELD_BYTES) };
        let cache = builder.build_in(&subsystem).unwrap();
        let objects: Vec<_> = (0..1000).map(|_| cache.alloc().unwrap()).collect();
        assert_eq!(cache.info().held_bytes, 1000 * HELD_BYTES as u64);
        let series = format!("uslab_cache_held_bytes{{cache=\"deflate\"}} {}\n", 1000 * HELD_BYTES);
        assert!(subsystem.info().prometheus().to_string().contains(&series), "{series}");
        drop(objects);
        let info = cache.info();
        let parked_bytes = (info.in_magazines + info.in_depot) as usize * HELD_BYTES;
        assert!(held_bytes.load(Relaxed) <= parked_bytes + MAX_SURPLUS_BYTES, "{info:?}");
        if !with_weights {
            assert!(held_bytes.load(Relaxed) <= 10 << 20, "CPUs and depots must keep few objects: {info:?}");
        }
        assert_eq!(info.held_bytes as usize, held_bytes.load(Relaxed));
        cache.shrink();
        assert_eq!((cache.info().held_bytes, held_bytes.load(Relaxed)), (0, 0));
    }
}

#[test]
fn memory_held_by_objects_is_charged_to_the_account() {
    let subsystem = subsystem(1);
    let (new, slab) = (|| vec![0_u8; HELD_BYTES], 4096);
    let limited = ObjectCache::builder("limited")
        .ctor(new)
        .holds(HELD_BYTES)
        .limit(Limit::Bytes(4 * HELD_BYTES as u64 + slab));
    let limited = limited.build_in(&subsystem).unwrap();
    let tenant = Account::new_in(&subsystem, 4 * HELD_BYTES + slab as usize);
    let of_tenant = ObjectCache::builder("of-tenant").ctor(new).holds(HELD_BYTES).account(&tenant);
    let of_tenant = of_tenant.build_in(&subsystem).unwrap();
    let bytes = 4 * HELD_BYTES + slab as usize;
    for (cache, error) in
        [(&limited, AllocError::HeldLimit { bytes }), (&of_tenant, AllocError::AccountLimit { bytes })]
    {
        for _ in 0..3 {
            let mut four_objects: Vec<_> = (0..4).map(|_| cache.alloc().unwrap()).collect();
            assert_eq!(cache.alloc().map(drop), Err(error));
            four_objects.pop();
            // The allocation reuses the free object.
            drop(cache.alloc().unwrap());
        }
        cache.shrink();
        assert_eq!(cache.info().held_bytes, 0);
    }
    assert_eq!(tenant.charged(), 0);
    subsystem.check().unwrap();
}

#[test]
fn waiter_for_memory_held_by_objects_is_served() {
    let subsystem = subsystem(2);
    let limit = Limit::Bytes(HELD_BYTES as u64 + 4096);
    let cache =
        ObjectCache::builder("limited").ctor(|| vec![0_u8; HELD_BYTES]).holds(HELD_BYTES).limit(limit);
    let cache = cache.build_in(&subsystem).unwrap();
    for _ in 0..20 {
        let single_object = cache.alloc().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                on_cpu(1);
                cache.acquire_timeout(Duration::from_secs(60)).map(drop)
            });
            while cache.info().waiting == 0 {
                std::thread::yield_now();
            }
            drop(single_object);
            waiter.join().unwrap().unwrap();
        });
        // Free objects are destructed, and the next allocation has to construct one.
        cache.shrink();
    }
    assert_eq!(cache.info().held_bytes, 0);
}

/// After its constructor has failed or panicked, an object owns no memory.
#[test]
fn failed_construction_is_not_charged() {
    let subsystem = subsystem(1);
    let cache =
        KmemCache::builder("refused", 64).try_ctor(|_| false).holds(HELD_BYTES).build_in(&subsystem).unwrap();
    assert_eq!(cache.alloc(uslab::Gfp::KERNEL), Err(AllocError::Constructor));
    assert_eq!(cache.info().held_bytes, 0);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

/// If the function that weighs an object panics, the allocator discards the panic and its payload.
#[test]
fn panic_in_the_weight_function_stops_no_operation() {
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("bomb").ctor(|| 0_u64).weigh(|_| panic!("intended panic"));
    let cache = cache.build_in(&subsystem).unwrap();
    drop((0..100).map(|_| cache.alloc().unwrap()).collect::<Vec<_>>());
    cache.shrink();
    assert_eq!(cache.info().held_bytes, 0);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

/// If a typed constructor returns an error, the caller of the allocation gets this error once; the next allocation
/// calls the constructor again.
#[test]
fn error_of_a_typed_constructor_reaches_the_caller() {
    let subsystem = subsystem(1);
    let [max_bytes, held_bytes] = [3 * HELD_BYTES, 0].map(|bytes| Arc::new(AtomicUsize::new(bytes)));
    let (limit, new) = (max_bytes.clone(), held_bytes.clone());
    let cache = ObjectCache::builder("scratch")
        .try_ctor(move || match new.load(Relaxed) < limit.load(Relaxed) {
            true => Ok(CountedBytesObject::new(&new, HELD_BYTES)),
            false => Err(std::io::Error::other("the buffer is full")),
        })
        .build_in(&subsystem)
        .unwrap();
    let three: Vec<_> = (0..3).map(|_| cache.alloc().unwrap()).collect();
    let error = cache.alloc().map(drop).unwrap_err();
    assert_eq!(error, AllocError::Constructor);
    assert_eq!(
        error.take_cause().unwrap().downcast_ref::<std::io::Error>().unwrap().to_string(),
        "the buffer is full"
    );
    assert!(error.take_cause().is_none());
    assert!(AllocError::TooLarge.take_cause().is_none());
    max_bytes.store(4 * HELD_BYTES, Relaxed);
    drop(cache.alloc().unwrap());
    assert_eq!(held_bytes.load(Relaxed), 4 * HELD_BYTES);
    drop(three);
    drop(cache);
    assert_eq!(held_bytes.load(Relaxed), 0);
    assert_all_memory_returned(&subsystem);
}

/// Three threads concurrently use, reap and shrink a cache. The number of constructions minus the number of
/// destructions must equal the number of constructed objects.
#[test]
fn constructions_minus_destructions_equal_the_existing_objects() {
    let subsystem = subsystem(4);
    let held_bytes = Arc::new(AtomicUsize::new(0));
    let new = held_bytes.clone();
    let cache = ObjectCache::builder("deflate").ctor(move || CountedBytesObject::new(&new, 100)).holds(100);
    let cache = cache.build_in(&subsystem).unwrap();
    std::thread::scope(|scope| {
        for cpu in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                on_cpu(cpu);
                for _ in 0..300 {
                    let objects = cache.alloc_bulk(200 + cpu as usize).unwrap();
                    assert!(objects.iter().all(|object| object.bytes == 100));
                    drop(objects);
                    if cpu % 2 == 0 {
                        cache.reap();
                    } else {
                        cache.shrink();
                    }
                }
            });
        }
    });
    assert_eq!(cache.info().held_bytes as usize, held_bytes.load(Relaxed));
    cache.destroy().unwrap();
    assert_eq!(held_bytes.load(Relaxed), 0);
}

/// Regression test: a cache could not be destroyed while the reaper was holding some of its objects.
#[test]
fn cache_can_be_destroyed_during_a_reap() {
    struct SlowObject(u64, u64);
    impl Drop for SlowObject {
        fn drop(&mut self) {
            assert_eq!((self.0, self.1), (1, 2));
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let subsystem = subsystem(2);
    for _ in 0..20 {
        let cache = ObjectCache::builder("slow").ctor(|| SlowObject(1, 2)).build_in(&subsystem).unwrap();
        let kept_object = cache.alloc().unwrap();
        drop(cache.alloc_bulk(50).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| cache.shrink());
            while cache.info().destructed == 0 {
                std::thread::yield_now();
            }
            drop(kept_object);
            cache.destroy().unwrap();
        });
    }
    assert_all_memory_returned(&subsystem);
}

//! Tests boxes of one word, which find their cache by the object's address, and caches that outlive their last handle.

use crate::common::{self, assert_all_memory_returned, subsystem, use_boxes_outliving_cache};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use uslab::faults::{Faults, Rule};
use uslab::{CacheBox, Magazines, ObjectCache, OwnedBox, Subsystem};
use uslab_buddy::Backend;
use uslab_magazine::on_cpu;
use uslab_magazine::sync::{AtomicUsize, Counter, Ordering::Relaxed};

/// A value type that counts its live instances.
struct DropCounter(Arc<AtomicUsize>);
impl DropCounter {
    fn new(live_count: &Arc<AtomicUsize>) -> Self {
        live_count.fetch_add(1, Relaxed);
        Self(live_count.clone())
    }
}
impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn cache_of_type(subsystem: &Subsystem, name: &str) -> Option<uslab::CacheInfo> {
    subsystem.info().caches.into_iter().find(|cache| cache.name == name)
}

#[test]
fn objects_freed_into_a_dropped_cache_bypass_magazines() {
    let subsystem = subsystem(2);
    let live_count = Arc::new(AtomicUsize::new(0));
    let destructions = live_count.clone();
    let cache = ObjectCache::builder("left")
        .ctor(move || DropCounter::new(&destructions))
        .build_in(&subsystem)
        .unwrap();
    let mut objects: Vec<_> = (0..1000).map(|_| cache.alloc_owned().unwrap()).collect();
    // Some objects are in magazines when the handle is dropped.
    objects.truncate(900);
    drop(cache);
    for i in (1..900).rev() {
        on_cpu(i % 2);
        objects.pop();
        let remaining_cache = cache_of_type(&subsystem, "left").unwrap();
        assert_eq!(
            (remaining_cache.used, remaining_cache.in_magazines + remaining_cache.in_depot),
            (u64::from(i), 0)
        );
        assert_eq!(remaining_cache.empty, 0, "the depot must be closed");
        subsystem.check().unwrap();
    }
    subsystem.reap();
    subsystem.shrink();
    drop(objects);
    assert_eq!((live_count.load(Relaxed), cache_of_type(&subsystem, "left").is_none()), (0, true));
    assert_all_memory_returned(&subsystem);
}

/// An object that outlives the handle of its cache is freed as usual: with checks, with a reset, without magazines, on
/// several nodes.
#[test]
fn dropped_cache_is_destroyed_after_its_last_object_is_freed() {
    let nodes = Subsystem::new(common::config(4, 2, 64 << 20)).unwrap();
    let cleared = Arc::new(Counter::new(0));
    for subsystem in [subsystem(2), nodes] {
        for (magazines, check) in
            [(Magazines::BySize, false), (Magazines::BySize, true), (Magazines::Off, false)]
        {
            let destructions = cleared.clone();
            let cache = ObjectCache::builder("seen")
                .ctor(|| 7_u64)
                .reset(move |_| destructions.add(1))
                .magazines(magazines)
                .check_frees(check)
                .build_in(&subsystem)
                .unwrap();
            let mut objects = vec![];
            for cpu in 0..subsystem.cpus().count() {
                on_cpu(cpu);
                objects.extend((0..100).map(|_| cache.alloc_owned().unwrap()));
            }
            drop(cache);
            let (before, count) = (cleared.get(), objects.len() as u64);
            drop(objects);
            assert_eq!(cleared.get() - before, count);
            assert!(cache_of_type(&subsystem, "seen").is_none());
        }
        on_cpu(0);
        assert_all_memory_returned(&subsystem);
    }
}

#[test]
fn destructor_panic_does_not_keep_a_dropped_cache_alive() {
    struct PanickingDrop;
    impl Drop for PanickingDrop {
        fn drop(&mut self) {
            panic!("intended panic");
        }
    }
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("loud")
        .ctor(|| PanickingDrop)
        .reset(|_| panic!("intended panic"))
        .build_in(&subsystem)
        .unwrap();
    let object = cache.alloc_owned().unwrap();
    drop(cache);
    let panic = uslab_magazine::sync::catch_panic(|| drop(object));
    assert!(panic.is_err(), "only the reset's panic may reach the caller");
    assert!(cache_of_type(&subsystem, "loud").is_none());
    assert_all_memory_returned(&subsystem);
}

#[test]
fn dropped_cache_is_destroyed_after_its_last_deferred_free() {
    let _readers = common::READERS.lock();
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("deferred").ctor(|| 7_u64).build_in(&subsystem).unwrap();
    cache.alloc_bulk(100).unwrap().into_iter().for_each(uslab::CacheBox::free_deferred);
    let reader = uslab::rcu::pin();
    drop(cache);
    assert_eq!(cache_of_type(&subsystem, "deferred").unwrap().used, 100);
    drop(reader);
    while cache_of_type(&subsystem, "deferred").is_some() {
        uslab::rcu::advance();
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn dropped_caches_are_destroyed_during_concurrent_reaps() {
    let subsystem = subsystem(2);
    let is_done = Counter::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_cpu(1);
            while is_done.get() == 0 {
                subsystem.reap();
                subsystem.shrink();
                subsystem.drain_cpus(0..2);
                _ = subsystem.info();
            }
        });
        use_boxes_outliving_cache(&subsystem, 5000);
        for _ in 0..1000 {
            let cache = ObjectCache::builder("destroyed").ctor(|| 7_u64).build_in(&subsystem).unwrap();
            let object = cache.alloc_owned().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| drop(object));
                _ = cache.destroy();
            });
        }
        is_done.add(1);
    });
    let is_outlived =
        |cache: &uslab::CacheInfo| cache.name.starts_with("outlived") || cache.name == "destroyed";
    assert!(!subsystem.info().caches.iter().any(is_outlived));
    assert_all_memory_returned(&subsystem);
}

/// If a cache is dropped while objects are in use, its class number is not reused, so a late free never reaches another
/// cache.
#[test]
fn late_free_into_a_dropped_cache_affects_no_new_cache() {
    let subsystem = subsystem(2);
    let (sender, receiver) = sync_channel::<OwnedBox<usize>>(32);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            on_cpu(0);
            receiver.into_iter().for_each(drop);
        });
        on_cpu(0);
        for i in 0..5000 {
            let cache = ObjectCache::builder("reused").ctor(move || i).build_in(&subsystem).unwrap();
            let mut objects: Vec<_> = (0..40).map(|_| cache.alloc_owned().unwrap()).collect();
            assert!(objects.iter().all(|object| **object == i), "the object's cache must exist");
            objects.drain(..30);
            drop(cache);
            objects.into_iter().for_each(|object| sender.send(object).unwrap());
        }
        drop(sender);
    });
    assert!(cache_of_type(&subsystem, "reused").is_none());
    assert_all_memory_returned(&subsystem);
}

#[test]
fn boxed_cache_object_has_the_size_of_a_pointer() {
    let word = size_of::<usize>();
    assert_eq!((size_of::<CacheBox<'_, String>>(), size_of::<Option<CacheBox<'_, String>>>()), (word, word));
    assert_eq!((size_of::<OwnedBox<String>>(), size_of::<Option<OwnedBox<String>>>()), (word, word));
    assert_eq!(size_of::<uslab::StableBox<'_, u64>>(), word);
}

/// The test uses subsystems in mappings, on the heap, and on several nodes. Other threads free the boxes of a dropped
/// cache, some of them after the cache's handle or even the subsystem was dropped.
#[test]
fn boxed_objects_find_their_caches_from_any_thread() {
    const SUBSYSTEMS: usize = 200;
    let live_count = Arc::new(AtomicUsize::new(0));
    let heaps: Vec<_> = (0..SUBSYSTEMS)
        .map(|i| {
            on_cpu(0);
            let mut config = common::config(2, 1 + i as u32 % 2, 8 << 20);
            if i % 3 == 0 {
                config.pages.backend = Backend::Heap;
            }
            let subsystem = Subsystem::new(config).unwrap();
            let destructions = live_count.clone();
            let ctor = move || (i, DropCounter::new(&destructions));
            (ObjectCache::builder("many").ctor(ctor).build_in(&subsystem).unwrap(), subsystem)
        })
        .collect();
    let boxes: Vec<Vec<_>> = heaps
        .iter()
        .map(|(cache, _)| {
            let objects: Vec<_> = (0..100).map(|_| cache.alloc_owned().unwrap()).collect();
            // Borrowed boxes are freed, too.
            std::thread::scope(|scope| {
                let borrowed = cache.alloc_bulk(10).unwrap();
                scope.spawn(move || {
                    on_cpu(1);
                    drop(borrowed);
                });
            });
            objects
        })
        .collect();
    let used_objects = |(cache, _): &(ObjectCache<(usize, DropCounter)>, Subsystem)| cache.info().used;
    assert!(heaps.iter().all(|heaps| used_objects(heaps) == 100));
    // Each thread gets some boxes of every subsystem.
    let (mut threads, mut kept_boxes) = (vec![vec![], vec![]], vec![]);
    for (i, objects) in boxes.into_iter().enumerate() {
        for (n, object) in objects.into_iter().enumerate() {
            assert_eq!(object.0, i);
            if n < 80 { threads[n % 2].push(object) } else { kept_boxes.push(object) }
        }
    }
    let free_all = |threads: Vec<Vec<OwnedBox<_>>>| {
        let free = |(cpu, objects)| {
            std::thread::spawn(move || {
                on_cpu(cpu);
                drop::<Vec<OwnedBox<(usize, DropCounter)>>>(objects);
            })
        };
        (0..2).zip(threads).map(free).for_each(|thread| thread.join().unwrap());
    };
    free_all(threads);
    assert!(heaps.iter().all(|heaps| used_objects(heaps) == 20));
    let (mut subsystems, mut caches) = (vec![], vec![]);
    for (i, (cache, subsystem)) in heaps.into_iter().enumerate() {
        // The handle, the subsystem, or both are dropped.
        if i % 3 > 0 {
            drop(cache);
        } else {
            caches.push(cache);
        }
        if i % 3 < 2 {
            subsystems.push(subsystem);
        }
    }
    let second_half = kept_boxes.split_off(kept_boxes.len() / 2);
    free_all(vec![kept_boxes, second_half]);
    drop(caches);
    assert_eq!(live_count.load(Relaxed), 0);
    subsystems.iter().for_each(assert_all_memory_returned);
}

/// In this test, one cache gets the last class number, so the next cache gets none.
#[test]
fn cache_without_a_class_number_works_without_magazines() {
    on_cpu(0);
    let mut config = common::config(2, 1, 64 << 20);
    let faults = Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    // The rule makes the next table fail.
    faults.arm(vec![Rule::every(Some(uslab::faults::RESERVE))]);
    let small = Magazines::Sized { capacity: 1, stock: 0, depot_limit: 0 };
    let build = || ObjectCache::builder("many").ctor(|| 7_u64).magazines(small).build_in(&subsystem).unwrap();
    let mut caches = vec![];
    let last = loop {
        let cache = build();
        if cache.info().magazines_refused {
            break cache;
        }
        caches.push(cache);
        assert!(caches.len() < 1 << 16, "the class numbers must run out");
    };
    assert_eq!((caches[0].info().magazine_capacity, last.info().magazine_capacity), (1, 0));
    let text = serde_json::to_string(&last.info()).unwrap();
    assert!(text.contains(r#""magazines_refused":true"#), "{text}");
    // The cache works, and is freed after its handle like any other.
    drop(last.alloc().unwrap());
    let objects: Vec<_> = (0..100).map(|_| last.alloc_owned().unwrap()).collect();
    assert_eq!(last.info().used, 100);
    drop(last);
    drop(objects);
    // A returned number can be used again: from a cache, and from a cache that an object outlived.
    let owned_box = caches.swap_remove(7).alloc_owned().unwrap();
    assert!(build().info().magazines_refused, "a cache with an object in use must keep its class number");
    drop(owned_box);
    assert!(!build().info().magazines_refused);
    drop(caches);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn new_cache_does_not_report_that_magazines_were_refused() {
    let subsystem = subsystem(1);
    for magazines in [Magazines::Off, Magazines::BySize] {
        let cache =
            ObjectCache::builder("fine").ctor(|| 7_u64).magazines(magazines).build_in(&subsystem).unwrap();
        assert!(!cache.info().magazines_refused);
    }
}

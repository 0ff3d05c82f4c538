//! Typed caches: constructed once, used many times, destructed with their slab.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{assert_all_given_back, subsystem};
use std::sync::Arc;
use uslab::{CacheBox, Magazines, ObjectCache};
use uslab_magazine::sync::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Counts how many of it exist, and notices use after its end.
struct Tracked {
    alive: Arc<AtomicUsize>,
    name: String,
}
impl Tracked {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Self { alive: alive.clone(), name: "fresh".into() }
    }
}
impl Drop for Tracked {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

#[test]
fn objects_stay_constructed_between_uses_and_end_with_their_slab() {
    for magazines in [Magazines::BySize, Magazines::Off] {
        let subsystem = subsystem(1);
        let alive = Arc::new(AtomicUsize::new(0));
        let counted = alive.clone();
        let cache = ObjectCache::builder("tracked")
            .ctor(move || Tracked::new(&counted))
            .magazines(magazines)
            .build_in(&subsystem)
            .unwrap();
        let mut object = cache.alloc().unwrap();
        object.name.push_str(", used");
        drop(object);
        let again = cache.alloc().unwrap();
        assert_eq!(again.name, "fresh, used");
        assert_eq!(
            alive.load(Relaxed) as u64,
            cache.info().objects,
            "every object of the slab is constructed"
        );
        assert_eq!(cache.shrink(), 0, "one is in use");
        drop(again);
        assert_eq!((cache.shrink(), alive.load(Relaxed)), (1, 0));
        assert_eq!(cache.info().destructed, cache.info().constructed);
        drop(cache.alloc().unwrap());
        drop(cache);
        assert_eq!(alive.load(Relaxed), 0, "dropping the cache releases its slabs");
        assert_all_given_back(&subsystem);
    }
}

#[test]
fn a_constructor_that_panics_destructs_what_it_made() {
    let subsystem = subsystem(1);
    let alive = Arc::new(AtomicUsize::new(0));
    let (counted, calls) = (alive.clone(), AtomicUsize::new(0));
    let cache = ObjectCache::builder("tracked")
        .ctor(move || {
            assert_ne!(calls.fetch_add(1, Relaxed), 5, "on purpose");
            Tracked::new(&counted)
        })
        .build_in(&subsystem)
        .unwrap();
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(cache.alloc())));
    assert!(first.is_err());
    assert_eq!((alive.load(Relaxed), cache.info().slabs), (0, 0));
    assert_eq!(cache.alloc().unwrap().name, "fresh");
    drop(cache);
    assert_eq!(alive.load(Relaxed), 0);
    assert_all_given_back(&subsystem);
}

#[test]
fn a_destructor_that_panics_does_not_keep_the_slab() {
    struct Fragile(u32);
    impl Drop for Fragile {
        fn drop(&mut self) {
            assert_ne!(self.0, 3, "on purpose");
        }
    }
    let subsystem = subsystem(1);
    let made = AtomicU32::new(0);
    let cache = ObjectCache::builder("fragile")
        .ctor(move || Fragile(made.fetch_add(1, Relaxed)))
        .build_in(&subsystem)
        .unwrap();
    drop(cache.alloc().unwrap());
    cache.shrink();
    assert_eq!((cache.info().slabs, cache.info().destructed), (0, cache.info().constructed));
    assert_all_given_back(&subsystem);
}

#[test]
fn alloc_with_prepares_and_a_panic_there_frees_the_object() {
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("v").ctor(Vec::<u32>::new).limit(1).build_in(&subsystem).unwrap();
    let object = cache.alloc_with(|v| v.push(7)).unwrap();
    assert_eq!(format!("{object:?}"), "[7]");
    drop(object);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(cache.alloc_with(|_| panic!("on purpose")));
    }));
    assert!(panic.is_err());
    assert_eq!(cache.info().used, 0);
}

#[test]
fn types_of_any_size_and_alignment() {
    #[repr(align(256))]
    struct Wide(u8);
    let subsystem = subsystem(1);
    let wide = ObjectCache::builder("wide").ctor(|| Wide(1)).build_in(&subsystem).unwrap();
    let objects: Vec<CacheBox<'_, Wide>> = (0..40).map(|_| wide.alloc().unwrap()).collect();
    assert!(objects.iter().all(|object| (&raw const **object).addr().is_multiple_of(256) && object.0 == 1));
    drop(objects);
    let empty = ObjectCache::builder("unit").ctor(|| ()).build_in(&subsystem).unwrap();
    let (a, b) = (empty.alloc().unwrap(), empty.alloc().unwrap());
    assert_ne!(&raw const *a, &raw const *b);
    drop((a, b));
    let large = ObjectCache::builder("large").ctor(|| [7_u64; 10_000]).build_in(&subsystem).unwrap();
    assert_eq!(large.alloc().unwrap()[9_999], 7);
}

#[test]
fn objects_wander_between_threads() {
    let subsystem = subsystem(2);
    let cache = ObjectCache::builder("s").ctor(|| String::from("made")).build_in(&subsystem).unwrap();
    let object = cache.alloc().unwrap();
    let text = std::thread::scope(|scope| scope.spawn(move || object.clone()).join().unwrap());
    assert_eq!((text.as_str(), cache.info().used), ("made", 0));
}

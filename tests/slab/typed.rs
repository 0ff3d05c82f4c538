//! Tests typed caches, whose objects are constructed once, used many times, and destructed with their slab.

use crate::common::{assert_all_memory_returned, subsystem};
use std::sync::Arc;
use uslab::{AllocError, CacheBox, Limit, Magazines, ObjectCache, OwnedBox};
use uslab_magazine::sync::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A value type that counts its live instances and detects use after drop.
struct DropCounter {
    live_count: Arc<AtomicUsize>,
    name: String,
}
impl DropCounter {
    fn new(live_count: &Arc<AtomicUsize>) -> Self {
        live_count.fetch_add(1, Relaxed);
        Self { live_count: live_count.clone(), name: "fresh".into() }
    }
}
impl Drop for DropCounter {
    fn drop(&mut self) {
        self.live_count.fetch_sub(1, Relaxed);
    }
}

#[test]
fn freed_objects_stay_constructed_until_their_slab_is_freed() {
    for (magazines, whole_slabs) in [
        (Magazines::BySize, false),
        (Magazines::Off, false),
        (Magazines::BySize, true),
        (Magazines::Off, true),
    ] {
        let subsystem = subsystem(1);
        let live_count = Arc::new(AtomicUsize::new(0));
        let counter = live_count.clone();
        let builder =
            ObjectCache::builder("tracked").ctor(move || DropCounter::new(&counter)).magazines(magazines);
        let builder = if whole_slabs { builder.construct_slabs() } else { builder };
        let cache = builder.build_in(&subsystem).unwrap();
        let mut object = cache.alloc().unwrap();
        object.name.push_str(", used");
        drop(object);
        let reused = cache.alloc().unwrap();
        assert_eq!(reused.name, "fresh, used");
        let expected = if whole_slabs { cache.info().objects } else { 1 };
        assert_eq!(live_count.load(Relaxed) as u64, expected);
        assert_eq!(cache.shrink(), 0, "an object in use must keep its slab");
        drop(reused);
        assert_eq!((cache.shrink(), live_count.load(Relaxed)), (1, 0));
        assert_eq!(cache.info().destructed, cache.info().constructed);
        drop(cache.alloc().unwrap());
        drop(cache);
        assert_eq!(live_count.load(Relaxed), 0, "a drop of the cache must release its slabs");
        assert_all_memory_returned(&subsystem);
    }
}

#[test]
fn constructor_panic_destructs_the_objects_already_constructed() {
    let subsystem = subsystem(1);
    let live_count = Arc::new(AtomicUsize::new(0));
    let (counter, calls) = (live_count.clone(), AtomicUsize::new(0));
    let cache = ObjectCache::builder("tracked")
        .ctor(move || {
            assert_ne!(calls.fetch_add(1, Relaxed), 5, "intended panic");
            DropCounter::new(&counter)
        })
        .construct_slabs()
        .build_in(&subsystem)
        .unwrap();
    let first = uslab_magazine::sync::catch_panic(|| drop(cache.alloc()));
    assert!(first.is_err());
    assert_eq!((live_count.load(Relaxed), cache.info().slabs), (0, 0));
    assert_eq!(cache.alloc().unwrap().name, "fresh");
    drop(cache);
    assert_eq!(live_count.load(Relaxed), 0);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn slab_is_freed_despite_a_destructor_panic() {
    struct FragileObject(u32);
    impl Drop for FragileObject {
        fn drop(&mut self) {
            assert_ne!(self.0, 3, "intended panic");
        }
    }
    let subsystem = subsystem(1);
    let constructions = AtomicU32::new(0);
    let cache = ObjectCache::builder("fragile")
        .ctor(move || FragileObject(constructions.fetch_add(1, Relaxed)))
        .build_in(&subsystem)
        .unwrap();
    drop(cache.alloc().unwrap());
    cache.shrink();
    assert_eq!((cache.info().slabs, cache.info().destructed), (0, cache.info().constructed));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn alloc_with_frees_the_object_if_its_closure_panics() {
    let subsystem = subsystem(1);
    let cache =
        ObjectCache::builder("v").ctor(Vec::<u32>::new).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let object = cache.alloc_with(|v| v.push(7)).unwrap();
    assert_eq!(format!("{object:?}"), "[7]");
    drop(object);
    let panic = uslab_magazine::sync::catch_panic(|| {
        drop(cache.alloc_with(|_| panic!("intended panic")));
    });
    assert!(panic.is_err());
    assert_eq!(cache.info().used, 0);
}

#[test]
fn typed_cache_serves_any_size_and_alignment() {
    #[repr(align(256))]
    struct WideAlignment(u8);
    let subsystem = subsystem(1);
    let wide_cache = ObjectCache::builder("wide").ctor(|| WideAlignment(1)).build_in(&subsystem).unwrap();
    let objects: Vec<CacheBox<'_, WideAlignment>> = (0..40).map(|_| wide_cache.alloc().unwrap()).collect();
    assert!(objects.iter().all(|object| (&raw const **object).addr().is_multiple_of(256) && object.0 == 1));
    drop(objects);
    let empty = ObjectCache::builder("unit").ctor(|| ()).build_in(&subsystem).unwrap();
    let (a, b) = (empty.alloc().unwrap(), empty.alloc().unwrap());
    assert_ne!(&raw const *a, &raw const *b);
    drop((a, b));
    let large_cache = ObjectCache::builder("large").ctor(|| [7_u64; 10_000]).build_in(&subsystem).unwrap();
    assert_eq!(large_cache.alloc().unwrap()[9_999], 7);
}

#[test]
fn object_can_be_freed_by_another_thread() {
    let subsystem = subsystem(2);
    let cache = ObjectCache::builder("s").ctor(|| String::from("made")).build_in(&subsystem).unwrap();
    let object = cache.alloc().unwrap();
    let text = std::thread::scope(|scope| scope.spawn(move || object.clone()).join().unwrap());
    assert_eq!((text.as_str(), cache.info().used), ("made", 0));
}

#[test]
fn freed_typed_object_is_reset() {
    for magazines in [Magazines::BySize, Magazines::Off] {
        let subsystem = subsystem(1);
        let cache = ObjectCache::builder("buffer")
            .ctor(|| Vec::<u8>::with_capacity(100))
            .reset(Vec::clear)
            .magazines(magazines)
            .build_in(&subsystem)
            .unwrap();
        for mut buffer in cache.alloc_bulk(30).unwrap() {
            buffer.extend([1, 2, 3]);
        }
        cache.alloc_owned().unwrap().push(7);
        let objects = cache.alloc_bulk(cache.info().objects as usize).unwrap();
        assert!(
            objects.iter().all(|buffer| buffer.is_empty() && buffer.capacity() == 100),
            "every object must be dropped"
        );
        drop(objects);
        if magazines == Magazines::Off {
            continue;
        }
        let mut prefilled = cache.prefill(1).unwrap();
        let mut buffer = prefilled.alloc().unwrap();
        buffer.push(9);
        prefilled.free(buffer);
        assert!(prefilled.alloc().unwrap().is_empty(), "prefilled objects must be reset, too");
    }
}

#[test]
fn reset_panic_leaks_nothing() {
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("fragile")
        .ctor(|| 0_u32)
        .reset(|n| {
            *n += 1;
            assert_ne!(*n, 8, "intended panic");
        })
        .build_in(&subsystem)
        .unwrap();
    let mut object = cache.alloc().unwrap();
    *object = 7;
    let panic = uslab_magazine::sync::catch_panic(|| drop(object));
    assert!(panic.is_err());
    assert_eq!((cache.info().used, *cache.alloc().unwrap()), (0, 8), "the object must be free and unchanged");
    cache.destroy().unwrap();
    assert_all_memory_returned(&subsystem);
}

#[test]
fn owned_objects_keep_their_cache_alive() {
    let subsystem = subsystem(2);
    let live_count = Arc::new(AtomicUsize::new(0));
    let counter = live_count.clone();
    let cache =
        ObjectCache::builder("t").ctor(move || DropCounter::new(&counter)).build_in(&subsystem).unwrap();
    let objects: Vec<OwnedBox<DropCounter>> = (0..100).map(|_| cache.alloc_owned().unwrap()).collect();
    drop(cache);
    let remaining_cache = subsystem.info().caches.into_iter().find(|cache| cache.name == "t").unwrap();
    assert_eq!(remaining_cache.used, 100);
    let threads: Vec<_> = objects
        .into_iter()
        .map(|mut object| {
            std::thread::spawn(move || {
                uslab_magazine::on_cpu(object.name.len() as u32 % 2);
                object.name.push('!');
                assert_eq!(object.name, "fresh!");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(live_count.load(Relaxed), 0, "the cache must be destroyed with its last object");
    assert!(subsystem.info().caches.iter().all(|cache| cache.name != "t"));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn raw_objects_can_be_returned_to_their_cache() {
    let subsystem = subsystem(1);
    let build = |name: &str| ObjectCache::builder(name).ctor(|| 5_u64).build_in(&subsystem).unwrap();
    let (cache, other_cache) = (build("a"), build("b"));
    let raw = cache.alloc().unwrap().into_raw();
    assert_eq!(cache.info().used, 1);
    // SAFETY: the pointer is from `into_raw` of this cache just above.
    let object = unsafe { CacheBox::from_raw(&cache, raw) };
    let mut prefilled = other_cache.prefill(3).unwrap();
    let held_objects = prefilled.len();
    assert!(!prefilled.is_empty());
    prefilled.free(object);
    assert_eq!(
        (cache.info().used, prefilled.len()),
        (0, held_objects),
        "the object must be freed to its cache"
    );
    prefilled.refill(held_objects + 1).unwrap();
    assert!(prefilled.len() > held_objects);
}

#[test]
fn cache_limits_are_charged_per_slab() {
    let subsystem = subsystem(1);
    for (limit, slabs, objects) in [
        (Limit::Slabs(3), 3, 32),
        (Limit::Objects(1), 1, 1),
        (Limit::Objects(8), 1, 8),
        (Limit::Objects(33), 2, 17),
        (Limit::Objects(96), 3, 32),
        (Limit::Bytes(4096), 1, 32),
        (Limit::Bytes(4097), 2, 32),
        (Limit::Bytes(u64::MAX), u64::from(u32::MAX), 32),
        (Limit::Objects(u64::MAX), u64::from(u32::MAX), 32),
        (Limit::Objects(0), 0, 32),
    ] {
        // A page has 32 objects of 128 bytes.
        let cache = ObjectCache::builder("l").ctor(|| [0_u8; 128]).limit(limit).build_in(&subsystem).unwrap();
        assert_eq!((cache.info().objs_per_slab, cache.info().limit), (objects, Some(slabs)), "{limit:?}");
        if slabs < 10 {
            let max_objects = cache.info().objs_per_slab * slabs;
            let held_objects: Vec<_> = std::iter::from_fn(|| cache.alloc().ok()).collect();
            assert_eq!(held_objects.len() as u64, max_objects);
            let error = cache.alloc().unwrap_err();
            assert_eq!(error, AllocError::CacheLimit { slabs: slabs as u32 });
            assert!(cache.alloc_bulk(2).is_err());
        }
    }
}

#[test]
fn pinned_object_never_moves_until_its_destructor() {
    use std::marker::PhantomPinned;
    struct Linked {
        own_address: core::cell::Cell<usize>,
        move_count: Arc<AtomicUsize>,
        _pinned: PhantomPinned,
    }
    impl Drop for Linked {
        fn drop(&mut self) {
            let address = core::ptr::from_ref(self).addr();
            self.move_count.fetch_add(usize::from(![0, address].contains(&self.own_address.get())), Relaxed);
        }
    }
    let subsystem = subsystem(1);
    let move_count = Arc::new(AtomicUsize::new(0));
    let count = move_count.clone();
    let cache = ObjectCache::builder("linked")
        .ctor(move || Linked {
            own_address: core::cell::Cell::new(0),
            move_count: count.clone(),
            _pinned: PhantomPinned,
        })
        .build_pinned_in(&subsystem)
        .unwrap();
    for _ in 0..100 {
        let object = cache.alloc().unwrap();
        let address = core::ptr::from_ref(&*object).addr();
        assert!([0, address].contains(&object.own_address.get()));
        object.own_address.set(address);
    }
    cache.destroy().unwrap();
    assert_eq!(move_count.load(Relaxed), 0);
    assert_all_memory_returned(&subsystem);
}

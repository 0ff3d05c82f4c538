//! What the panic of each user callback does, with a payload whose `Drop` panics, too. A constructor, a reset and the closure of
//! `alloc_with` run for the caller, who gets the panic. All others run for somebody else, and their panics end there.

use crate::common::{assert_all_given_back, config, subsystem};
use std::panic::panic_any;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use uslab::{AllocError, Gfp, KmemCache, Limit, ObjectCache, Shrinker, Subsystem};
use uslab_magazine::sync::catch_panic;

struct Bomb;
impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a payload");
        }
    }
}

fn explode() -> ! {
    panic_any(Bomb)
}

/// The panic of a callback reaches the caller, with its payload.
#[track_caller]
fn passes_on<R>(f: impl FnOnce() -> R) {
    let Err(panic) = catch_panic(f) else { panic!("no panic") };
    core::mem::forget(panic.downcast::<Bomb>().expect("the callback's own panic"));
}

#[test]
fn a_constructor_passes_its_panic_on_and_leaves_no_slab() {
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("bomb").ctor(|| -> u64 { explode() }).build_in(&subsystem).unwrap();
    (0..3).for_each(|_| passes_on(|| cache.alloc().map(drop)));
    passes_on(|| cache.prefill(10).map(drop));
    assert_eq!(cache.info().slabs, 0);
    drop(cache);
    assert_all_given_back(&subsystem);
}

#[test]
fn a_reset_and_a_preparation_pass_their_panics_on_and_the_object_is_back() {
    let subsystem = subsystem(1);
    let cache =
        ObjectCache::builder("bomb").ctor(|| 0_u64).reset(|_| explode()).build_in(&subsystem).unwrap();
    let object = cache.alloc().unwrap();
    passes_on(|| drop(object));
    assert_eq!(cache.info().used, 0);
    drop(cache);
    let cache = ObjectCache::builder("prepared").ctor(|| 0_u64).build_in(&subsystem).unwrap();
    passes_on(|| cache.alloc_with(|_| explode()).map(drop));
    assert_eq!(cache.info().used, 0);
    drop(cache);
    assert_all_given_back(&subsystem);
}

#[test]
fn a_destructor_keeps_its_panic() {
    struct Explodes;
    impl Drop for Explodes {
        fn drop(&mut self) {
            explode();
        }
    }
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("bomb").ctor(|| Explodes).build_in(&subsystem).unwrap();
    drop(cache.alloc().unwrap());
    cache.shrink();
    assert_eq!((cache.info().slabs, cache.info().destructed), (0, cache.info().constructed));
    drop(cache);
    assert_all_given_back(&subsystem);
}

/// Once the payload's panic reached who allocated, and dropping the observer never ended.
#[test]
fn an_observer_keeps_its_panic_and_is_not_called_again() {
    let subsystem = subsystem(1);
    let observer = subsystem.observe(|_| explode()).unwrap();
    let cache = KmemCache::builder("observed", 512).build_in(&subsystem).unwrap();
    (0..1_000).for_each(|_| drop(cache.alloc_block(Gfp::KERNEL).unwrap()));
    cache.shrink();
    assert_eq!(observer.counts().panics, 1);
    drop(observer);
    drop(cache);
    assert_all_given_back(&subsystem);
}

#[test]
fn a_shrinker_keeps_its_panic_and_the_allocation_fails_by_its_limit() {
    struct Explodes;
    impl Shrinker for Explodes {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            explode()
        }
    }
    let subsystem = Arc::new(subsystem(1));
    let cache = KmemCache::builder("limited", 512).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let registered = cache.register_shrinker(Explodes);
    let mut held = Vec::new();
    let error = loop {
        match cache.alloc_block(Gfp::KERNEL) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocError::CacheLimit { slabs: 1 });
    drop((registered, held));
    drop(cache);
    assert_all_given_back(&subsystem);
}

#[test]
fn a_waker_keeps_its_panics() {
    struct Explodes;
    impl Wake for Explodes {
        fn wake(self: Arc<Self>) {
            explode();
        }
    }
    impl Drop for Explodes {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                explode();
            }
        }
    }
    let subsystem = Subsystem::new(config(1, 1, 64 << 20)).unwrap();
    let cache =
        ObjectCache::builder("limited").ctor(|| [0_u64; 64]).limit(Limit::Slabs(1)).build_in(&subsystem);
    let cache = cache.unwrap();
    let mut held = Vec::new();
    while let Ok(object) = cache.alloc() {
        held.push(object);
    }
    {
        let mut acquire = pin!(cache.acquire());
        let waker = Waker::from(Arc::new(Explodes));
        assert!(acquire.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        core::mem::forget(waker);
        drop(held.pop());
        assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    drop(held);
    drop(cache);
    assert_all_given_back(&subsystem);
}

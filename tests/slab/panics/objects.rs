//! Tests panics in callbacks that belong to objects: constructors, destructors, resets, weights, `prepare`, and wakers.

use super::*;
use crate::common::subsystem;
use uslab::{AllocError, Busy};

/// A large object; a slab has room for only a few, and constructs them one by one.
type Words = [u64; 64];
/// A reference to the cache of the objects, for use in a callback.
type CallbackCacheRef = WeakTarget<ObjectCache<Words>>;

/// Allocates and frees an object of the cache, and then shrinks the cache.
fn uses(cache: &CallbackCacheRef) {
    let cache = cache.get().unwrap();
    drop([(); 5].map(|()| cache.alloc().unwrap()));
    cache.shrink();
}
/// Checks that the cache refuses to be destroyed, because the callback's object is still in use.
fn destroy_must_fail(cache: &CallbackCacheRef) {
    let error = cache.get().unwrap().destroy().unwrap_err();
    assert!(error.live > 0, "{error:?}");
}

pub(super) mod constructor {
    use super::*;
    use uslab::KmemCacheBuilder;

    fn builders(construct: impl Fn(&mut [u8]) + Clone + Send + Sync + 'static) -> [KmemCacheBuilder; 2] {
        let first_builder = KmemCache::builder("bomb", 512).ctor(construct.clone());
        [first_builder, KmemCache::builder("bomb", 512).ctor(construct).construct_slabs()]
    }

    pub(crate) fn bomb() {
        for nodes in [1, 2] {
            let calls = Arc::new(Mutex::new(0));
            let count = calls.clone();
            for builder in builders(move |_| {
                *count.lock() += 1;
                if *count.lock() < 8 {
                    panic_with_drop_payload()
                }
            }) {
                *calls.lock() = 0;
                let config = crate::common::config(2, nodes, 64 << 20);
                let subsystem = Subsystem::new(config).unwrap();
                let cache = Arc::new(builder.build_in(&subsystem).unwrap());
                assert_panic_reaches_caller(|| cache.alloc(Gfp::KERNEL));
                assert_eq!(*calls.lock(), 1, "no other node may be tried");
                assert_panic_reaches_caller(|| cache.alloc_blocks(Gfp::KERNEL, 30).map(drop));
                assert_panic_reaches_caller(|| cache.alloc_node(Gfp::KERNEL, nodes - 1));
                assert_panic_reaches_caller(|| cache.prefill(Gfp::KERNEL, 10).map(drop));
                assert_panic_reaches_caller(|| cache.acquire_timeout(Gfp::KERNEL, Duration::from_secs(1)));
                assert_eq!((cache.info().slabs, cache.info().used), (0, 0));
                *calls.lock() = 8;
                assert_untyped_cache_ends(&subsystem, cache);
            }
        }
    }
    pub(crate) fn reenters() {
        let (cache_slot, guard) = (WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), guard.clone());
        for builder in builders(move |_| {
            first.run(|| {
                let cache = weak_cache.get().unwrap();
                drop([(); 5].map(|()| cache.alloc_block(Gfp::KERNEL).unwrap()));
                cache.shrink();
            });
        }) {
            guard.0.store(false, Relaxed);
            let subsystem = subsystem(1);
            let cache = cache_slot.keep(builder.build_in(&subsystem).unwrap());
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
            assert!(guard.has_run());
            assert_untyped_cache_ends(&subsystem, cache);
        }
    }
    /// While an object is being constructed, it counts as in use. A slab belongs to the cache only after its first
    /// object, or all of its objects, have been constructed.
    pub(crate) fn removes_itself() {
        for (new, whole_slab) in [(true, false), (true, true), (false, false)] {
            let (cache_slot, run_guard) = (WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
            let outcome = Arc::new(Mutex::new(None));
            let (weak_cache, first, outcome_slot) = (cache_slot.clone(), run_guard.clone(), outcome.clone());
            let builders = builders(move |_| {
                first.run(|| {
                    let destroyed = weak_cache.get().unwrap().destroy();
                    *outcome_slot.lock() = Some(destroyed);
                });
            });
            let [first_builder, all] = builders;
            run_guard.0.store(!new, Relaxed);
            let subsystem = subsystem(1);
            let cache =
                cache_slot.keep(if whole_slab { all } else { first_builder }.build_in(&subsystem).unwrap());
            let held_block = (!new).then(|| cache.alloc_block(Gfp::KERNEL).unwrap());
            run_guard.0.store(false, Relaxed);
            let result = cache.alloc_block(Gfp::KERNEL).map(drop);
            let expected = if new { Ok(()) } else { Err(Busy { live: 2, aliases: 0 }) };
            assert_eq!(outcome.lock().take(), Some(expected));
            assert_eq!(result, if new { Err(AllocError::Destroyed) } else { Ok(()) });
            drop(held_block);
            cache.destroy().unwrap();
            drop(cache);
            assert_all_memory_returned(&subsystem);
        }
    }
}

pub(super) mod try_constructor {
    use super::*;

    fn parsed(text: &str) -> Result<Words, std::num::ParseIntError> {
        text.parse().map(|word| [word; 64])
    }

    pub(crate) fn bomb() {
        let (subsystem, run_guard) = (subsystem(1), RunOnceGuard::default());
        let first = run_guard.clone();
        let cache = ObjectCache::builder("bomb").try_ctor(move || {
            first.run(|| panic_with_drop_payload());
            parsed("7")
        });
        let cache = Arc::new(cache.build_in(&subsystem).unwrap());
        assert_panic_reaches_caller(|| cache.alloc().map(drop));
        ends(&subsystem, cache);
        // Other nodes are tried after a refusal.
        let subsystem = Subsystem::new(crate::common::config(2, 2, 64 << 20)).unwrap();
        let destroy_guard = RunOnceGuard::default();
        let cache = ObjectCache::builder("bomb").try_ctor(move || {
            let (destroyed_twice, mut text) = (destroy_guard.has_run(), "7");
            destroy_guard.run(|| text = "none");
            parsed(if destroyed_twice { panic_with_drop_payload() } else { text })
        });
        let cache = cache.build_in(&subsystem).unwrap();
        assert_panic_reaches_caller(|| cache.alloc().map(drop));
        drop(cache);
        assert_all_memory_returned(&subsystem);
    }
    /// After a constructor has failed, the allocation gets an object that the constructor itself had freed.
    pub(crate) fn reenters() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
        let cache = ObjectCache::builder("bomb").try_ctor(move || {
            let mut text = "7";
            if !first.has_run() {
                first.run(|| assert_eq!(weak_cache.get().unwrap().alloc().map(drop), Ok(())));
                text = "none";
            }
            parsed(text)
        });
        let cache = cache_slot.keep(cache.build_in(&subsystem).unwrap());
        drop(cache.alloc().unwrap());
        assert!(run_guard.has_run());
        ends(&subsystem, cache);
    }
    pub(crate) fn removes_itself() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
        run_guard.0.store(true, Relaxed);
        let cache = ObjectCache::builder("bomb").try_ctor(move || {
            first.run(|| destroy_must_fail(&weak_cache));
            parsed("7")
        });
        let cache = cache_slot.keep(cache.build_in(&subsystem).unwrap());
        let held_block = cache.alloc().unwrap();
        run_guard.0.store(false, Relaxed);
        drop(cache.alloc().unwrap());
        assert!(run_guard.has_run());
        drop(held_block);
        ends(&subsystem, cache);
    }
}

pub(super) mod destructor {
    use super::*;

    pub(crate) fn bomb() {
        let subsystem = subsystem(1);
        for whole_slab in [false, true] {
            let builder = KmemCache::builder("bomb", 512).dtor(|_| panic_with_drop_payload());
            let builder = if whole_slab { builder.construct_slabs() } else { builder };
            let cache = Arc::new(builder.build_in(&subsystem).unwrap());
            drop(cache.alloc_blocks(Gfp::KERNEL, 30).unwrap());
            let kept_block = cache.alloc_block(Gfp::KERNEL).unwrap();
            cache.shrink();
            drop(kept_block);
            cache.shrink();
            let info = cache.info();
            assert_eq!((info.slabs, info.destructed), (0, info.constructed));
            assert_untyped_cache_ends(&subsystem, cache);
        }
    }
    pub(crate) fn reenters() {
        for whole_slab in [false, true] {
            let (subsystem, cache_slot, run_guard) =
                (subsystem(1), WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
            let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
            let builder = KmemCache::builder("bomb", 512).dtor(move |_| {
                first.run(|| {
                    let cache = weak_cache.get().unwrap();
                    drop([(); 5].map(|()| cache.alloc_block(Gfp::KERNEL).unwrap()));
                    cache.shrink();
                });
            });
            let builder = if whole_slab { builder.construct_slabs() } else { builder };
            let cache = cache_slot.keep(builder.build_in(&subsystem).unwrap());
            drop(cache.alloc_blocks(Gfp::KERNEL, 30).unwrap());
            cache.shrink();
            assert!(run_guard.has_run());
            assert_untyped_cache_ends(&subsystem, cache);
        }
    }
    /// The cache cannot be destroyed while its destructor runs for several free objects.
    pub(crate) fn removes_itself() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
        let (weak_cache, first, outcome) =
            (cache_slot.clone(), run_guard.clone(), Arc::new(Mutex::new(None)));
        let outcome_slot = outcome.clone();
        let builder = KmemCache::builder("bomb", 512).dtor(move |_| {
            first.run(|| {
                let destroyed = weak_cache.get().unwrap().destroy();
                *outcome_slot.lock() = Some(destroyed);
            });
        });
        let cache = cache_slot.keep(builder.build_in(&subsystem).unwrap());
        drop(cache.alloc_blocks(Gfp::KERNEL, 3).unwrap());
        cache.shrink();
        assert_eq!(outcome.lock().take(), Some(Err(Busy { live: 3, aliases: 0 })));
        assert_untyped_cache_ends(&subsystem, cache);

        // The cache has no object of a returned slab.
        let (cache_slot, run_guard) = (WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
        let (weak_cache, outcome_slot) = (cache_slot.clone(), outcome.clone());
        let builder = KmemCache::builder("bomb", 512).construct_slabs().dtor(move |_| {
            run_guard.run(|| {
                let destroyed = weak_cache.get().unwrap().destroy();
                *outcome_slot.lock() = Some(destroyed);
            });
        });
        let cache = cache_slot.keep(builder.build_in(&subsystem).unwrap());
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        cache.shrink();
        assert_eq!(outcome.lock().take(), Some(Ok(())));
        assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::Destroyed));
        drop(cache);
        assert_all_memory_returned(&subsystem);
    }
}

pub(super) mod reset {
    use super::*;

    fn cache(
        subsystem: &Subsystem,
        cache_slot: &CallbackCacheRef,
        reset: impl Fn(&mut Words) + Send + Sync + 'static,
    ) -> Arc<ObjectCache<Words>> {
        cache_slot
            .keep(ObjectCache::builder("bomb").ctor(|| [0; 64]).reset(reset).build_in(subsystem).unwrap())
    }

    pub(crate) fn bomb() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let first = run_guard.clone();
        let cache = cache(&subsystem, &cache_slot, move |_| first.run(|| panic_with_drop_payload()));
        let object = cache.alloc().unwrap();
        assert_panic_reaches_caller(|| drop(object));
        assert_eq!(cache.info().used, 0, "the object must be free");
        ends(&subsystem, cache);
    }
    pub(crate) fn reenters() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
        let cache = cache(&subsystem, &cache_slot, move |_| first.run(|| uses(&weak_cache)));
        drop(cache.alloc().unwrap());
        assert!(run_guard.has_run());
        ends(&subsystem, cache);
    }
    pub(crate) fn removes_itself() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
        let cache = cache(&subsystem, &cache_slot, move |_| first.run(|| destroy_must_fail(&weak_cache)));
        drop(cache.alloc().unwrap());
        assert!(run_guard.has_run());
        ends(&subsystem, cache);
    }
}

pub(super) mod weight {
    use super::*;

    fn cache(
        subsystem: &Subsystem,
        cache_slot: &CallbackCacheRef,
        weight_function: impl Fn(&Words) -> usize + Send + Sync + 'static,
    ) -> Arc<ObjectCache<Words>> {
        cache_slot.keep(
            ObjectCache::builder("bomb").ctor(|| [0; 64]).weigh(weight_function).build_in(subsystem).unwrap(),
        )
    }

    pub(crate) fn bomb() {
        let (subsystem, cache_slot) = (subsystem(1), CallbackCacheRef::empty());
        let cache = cache(&subsystem, &cache_slot, |_| panic_with_drop_payload());
        drop([(); 100].map(|()| cache.alloc().unwrap()));
        cache.shrink();
        assert_eq!(cache.info().held_bytes, 0);
        ends(&subsystem, cache);
    }
    pub(crate) fn reenters() {
        let (subsystem, cache_slot, run_guard) =
            (subsystem(1), CallbackCacheRef::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (cache_slot.clone(), run_guard.clone());
        let cache = cache(&subsystem, &cache_slot, move |_| {
            first.run(|| uses(&weak_cache));
            8
        });
        drop(cache.alloc().unwrap());
        assert!(run_guard.has_run());
        ends(&subsystem, cache);
    }
    pub(crate) fn removes_itself() {
        let (subsystem, cache_slot) = (subsystem(1), CallbackCacheRef::empty());
        let (weak_cache, outcomes) = (cache_slot.clone(), Arc::new(Mutex::new(Vec::new())));
        let (outcome_slot, panic_guard) = (outcomes.clone(), RunOnceGuard::default());
        let run_guard = panic_guard.clone();
        let cache = cache(&subsystem, &cache_slot, move |_| {
            if run_guard.has_run() {
                let destroyed = weak_cache.get().unwrap().destroy();
                outcome_slot.lock().push(destroyed);
            }
            8
        });
        let held_block = cache.alloc().unwrap();
        panic_guard.run(|| ());
        drop((cache.alloc().unwrap(), held_block));
        cache.shrink();
        panic_guard.0.store(false, Relaxed);
        let outcomes = std::mem::take(&mut *outcomes.lock());
        assert!(outcomes.len() > 1 && outcomes.iter().all(Result::is_err), "{outcomes:?}");
        ends(&subsystem, cache);
    }
}

pub(super) mod preparation {
    use super::*;

    fn cache(subsystem: &Subsystem) -> Arc<ObjectCache<u64>> {
        Arc::new(ObjectCache::builder("bomb").ctor(|| 0).build_in(subsystem).unwrap())
    }

    pub(crate) fn bomb() {
        let subsystem = subsystem(1);
        let cache = cache(&subsystem);
        assert_panic_reaches_caller(|| cache.alloc_with(|_| panic_with_drop_payload()).map(drop));
        assert_eq!(cache.info().used, 0);
        let handles = ObjectCache::builder("bomb").ctor(|| 0_u64);
        let handles: uslab::handle::HandleCache<u64> =
            handles.build_handles_in(&subsystem, uslab::handle::Generations::default()).unwrap();
        assert_panic_reaches_caller(|| handles.alloc_with(|_| panic_with_drop_payload()));
        assert!(handles.alloc().is_ok_and(|handle| handles.free(handle)));
        drop(handles);
        ends(&subsystem, cache);
    }
    pub(crate) fn reenters() {
        let subsystem = subsystem(1);
        let cache = cache(&subsystem);
        drop(cache.alloc_with(|_| drop([(); 5].map(|()| cache.alloc().unwrap()))).unwrap());
        ends(&subsystem, cache);
    }
    pub(crate) fn removes_itself() {
        let subsystem = subsystem(1);
        let cache = cache(&subsystem);
        let refuse_destroy = |_: &mut u64| assert_eq!(cache.destroy(), Err(Busy { live: 1, aliases: 0 }));
        drop(cache.alloc_with(refuse_destroy).unwrap());
        ends(&subsystem, cache);
    }
}

pub(super) mod waker {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};
    use uslab::Limit;
    use uslab::cache::Acquiring;

    /// A waker that runs a closure when it is woken.
    struct ClosureRunner<F>(F);
    impl<F: Fn() + Send + Sync> Wake for ClosureRunner<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    impl<F> Drop for ClosureRunner<F> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic_with_drop_payload();
            }
        }
    }

    /// Returns a cache that has reached its limit, and all its objects. The cache is leaked, because wakers keep its
    /// futures alive, and the futures keep the cache alive.
    fn full_cache(subsystem: &Subsystem) -> (&'static KmemCache, Vec<uslab::Block<'static>>) {
        let cache = KmemCache::builder("bomb", 512).limit(Limit::Slabs(1)).build_in(subsystem).unwrap();
        let cache: &KmemCache = Box::leak(Box::new(cache));
        (cache, std::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect())
    }
    fn poll(cache: &KmemCache, acquire: &mut Acquiring<'static>, waker: &Waker) -> bool {
        let Poll::Ready(object) = Pin::new(acquire).poll(&mut Context::from_waker(waker)) else {
            return false;
        };
        // SAFETY: the object was allocated just now from this cache, and is freed once.
        unsafe { cache.free(object.unwrap()) };
        true
    }

    fn case(
        run: impl Fn(&'static KmemCache, &DroppedInCallback<Acquiring<'static>>) + Send + Sync + 'static,
        drops: bool,
    ) {
        let subsystem = subsystem(1);
        let (cache, mut blocks) = full_cache(&subsystem);
        let (first, has_run_guard) = (DroppedInCallback::unset(), RunOnceGuard::default());
        let (cache_slot, run_guard) = (first.clone(), has_run_guard.clone());
        let waker = Waker::from(Arc::new(ClosureRunner(move || run_guard.run(|| run(cache, &cache_slot)))));
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert!(!poll(cache, &mut acquire, &waker));
        first.fill(acquire);
        core::mem::forget(waker);
        // A second future waits after the first.
        let mut second = cache.acquire(Gfp::KERNEL);
        assert!(!poll(cache, &mut second, Waker::noop()));
        drop(blocks.pop());
        assert!(has_run_guard.has_run());
        let leftover = first.0.lock().take();
        assert_eq!(leftover.is_none(), drops);
        if let Some(mut first) = leftover {
            assert!(poll(cache, &mut first, Waker::noop()));
        }
        assert!(poll(cache, &mut second, Waker::noop()));
        drop((blocks, second));
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        cache.destroy().unwrap();
        assert_all_memory_returned(&subsystem);
    }

    pub(crate) fn bomb() {
        case(|_, _| panic_with_drop_payload(), false);
    }
    /// No other caller may overtake a waiter.
    pub(crate) fn reenters() {
        case(
            |cache, _| {
                assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::CacheLimit { slabs: 1 }));
                cache.shrink();
                assert!(cache.destroy().is_err());
                let mut third_acquire = cache.acquire(Gfp::KERNEL);
                assert!(!poll(cache, &mut third_acquire, Waker::noop()));
            },
            false,
        );
    }
    /// The next acquirer gets an object that the waiter did not take.
    pub(crate) fn removes_itself() {
        case(|_, slot| assert!(slot.drop_value()), true);
    }
}

pub(super) mod hive {
    use super::*;
    use uslab::{Hive, Magazines};

    struct RunOnDrop<F: Fn()>(F);
    impl<F: Fn()> Drop for RunOnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    pub(crate) fn bomb() {
        let (subsystem, calls) = (subsystem(1), Arc::new(Mutex::new(0)));
        let mut hive = Hive::new_in("bomb", &subsystem, Magazines::default()).unwrap();
        for _ in 0..5 {
            let count = calls.clone();
            let end = move || {
                *count.lock() += 1;
                panic_with_drop_payload()
            };
            hive.insert(RunOnDrop(end)).ok().unwrap();
        }
        assert_panic_reaches_caller(|| drop(hive));
        assert_eq!(*calls.lock(), 5);
        assert_all_memory_returned(&subsystem);
    }
    pub(crate) fn reenters() {
        let subsystem = Arc::new(subsystem(1));
        let callback_subsystem = subsystem.clone();
        let mut hive = Hive::new_in("bomb", &subsystem, Magazines::default()).unwrap();
        let end = move || {
            let mut other_owner = Hive::new_in("other", &callback_subsystem, Magazines::default()).unwrap();
            other_owner.insert(1).unwrap();
            callback_subsystem.shrink();
        };
        hive.insert(RunOnDrop(end)).ok().unwrap();
        drop(hive);
        assert_all_memory_returned(&subsystem);
    }
}

pub(super) mod static_cache {
    use super::*;
    use uslab::object_cache;

    static IS_FIRST_CREATION: AtomicBool = AtomicBool::new(true);
    object_cache! {
        static CACHE_CREATED_TWICE: ObjectCache<u64> = {
            if IS_FIRST_CREATION.swap(false, Relaxed) {
                panic_with_drop_payload();
            }
            ObjectCache::builder("made").ctor(|| 7).build()
        };
    }
    object_cache! {
        static SELF_CREATING_CACHE: ObjectCache<u64> = {
            assert!(SELF_CREATING_CACHE.get().is_err());
            ObjectCache::builder("made").ctor(|| 7).build()
        };
    }

    pub(crate) fn bomb() {
        assert_panic_reaches_caller(|| CACHE_CREATED_TWICE.get().map(drop));
        assert_eq!(*CACHE_CREATED_TWICE.get().unwrap().alloc().unwrap(), 7);
    }
    pub(crate) fn reenters() {
        assert_eq!(*SELF_CREATING_CACHE.get().unwrap().alloc().unwrap(), 7);
    }
}

/// Values owned by a closure are dropped with the cache, the shrinker or the subsystem, on any thread.
pub(super) mod captured {
    use super::*;
    use crate::common::config;
    use uslab::{Corruption, Shrinker};

    struct ShrinkerWithCapture(RunOnceGuard, Box<dyn Fn() + Send + Sync>);
    impl Drop for ShrinkerWithCapture {
        fn drop(&mut self) {
            self.0.run(|| (self.1)());
        }
    }
    impl Shrinker for ShrinkerWithCapture {
        fn count(&self) -> usize {
            0
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            0
        }
    }

    fn case(run: impl Fn() + Clone + Send + Sync + 'static) {
        let dropped: [RunOnceGuard; 6] = Default::default();
        let captured = |n: usize| ShrinkerWithCapture(dropped[n].clone(), Box::new(run.clone()));
        let [construct, reset, weight_function, handler, destruct, shrinker] =
            [0, 1, 2, 3, 4, 5].map(captured);
        let mut config = config(1, 1, 64 << 20);
        config.corruption = Arc::new(move |_: &Corruption<'_>| _ = &handler);
        let subsystem = Subsystem::new(config).unwrap();
        let typed = ObjectCache::builder("captures").ctor(move || {
            _ = &construct;
            0_u64
        });
        let typed = typed.reset(move |_| _ = &reset).weigh(move |_| {
            _ = &weight_function;
            8
        });
        let typed = typed.build_in(&subsystem).unwrap();
        let untyped = KmemCache::builder("captures", 64).dtor(move |_| _ = &destruct);
        let untyped = untyped.build_in(&subsystem).unwrap();
        let registered = subsystem.register_shrinker(shrinker);
        let (last, block) = (typed.alloc_owned().unwrap(), untyped.alloc_block(Gfp::KERNEL).unwrap());
        drop(block);
        drop((registered, untyped, typed));
        // Freeing the last object frees its cache.
        drop(last);
        assert_all_memory_returned(&subsystem);
        drop(subsystem);
        assert!(dropped.iter().all(RunOnceGuard::has_run));
    }

    pub(crate) fn bomb() {
        case(|| panic_with_drop_payload());
    }
    pub(crate) fn reenters() {
        let other_owner = Arc::new(subsystem(1));
        case(move || {
            let cache = KmemCache::builder("other", 64).build_in(&other_owner).unwrap();
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        });
    }
}

//! Tests panics in callbacks of a subsystem: observers, shrinkers, corruption handlers, and deferred
//! closures.

use super::*;
use crate::common::{READERS, config, subsystem};
use crate::process::is_alone;
use uslab::{AllocError, Config, Corruption, Limit, Registration, Shrinker, rcu};

fn blocks(subsystem: &Subsystem) -> KmemCache {
    KmemCache::builder("bomb", 512).build_in(subsystem).unwrap()
}

pub(super) mod observer {
    use super::*;
    use uslab::observe::Observer;

    fn assert_cache_works(subsystem: &Subsystem, cache: Arc<KmemCache>) {
        drop(cache.alloc_blocks(Gfp::KERNEL, 1000).unwrap());
        cache.shrink();
        assert_untyped_cache_ends(subsystem, cache);
    }

    /// Regression test: a panic in the drop of the payload reached the allocating caller, and the observer could never
    /// be dropped.
    pub(crate) fn bomb() {
        let subsystem = subsystem(1);
        let observer = subsystem.observe(|_| panic_with_drop_payload()).unwrap();
        assert_cache_works(&subsystem, Arc::new(blocks(&subsystem)));
        assert_eq!(observer.counts().panics, 1, "the callback must not be called again");
        drop(observer);
        assert_cache_works(&subsystem, Arc::new(blocks(&subsystem)));
    }
    /// An observer is not notified of the operations that it performs itself.
    pub(crate) fn reenters() {
        let subsystem = Arc::new(subsystem(1));
        let (weak_slot, weak) = (WeakTarget::<KmemCache>::empty(), Arc::downgrade(&subsystem));
        let (weak_cache, calls) = (weak_slot.clone(), Arc::new(Mutex::new(0)));
        let count = calls.clone();
        let observer = subsystem.observe(move |_| {
            let (cache, subsystem) = (weak_cache.get().unwrap(), weak.upgrade().unwrap());
            drop([(); 5].map(|()| cache.alloc_block(Gfp::KERNEL).unwrap()));
            subsystem.shrink();
            drop(subsystem.observe(|_| unreachable!("the observer must not be called recursively")).unwrap());
            *count.lock() += 1;
        });
        let observer = observer.unwrap();
        let cache = weak_slot.keep(blocks(&subsystem));
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        assert!(*calls.lock() > 0 && observer.counts().suppressed > 0 && observer.counts().panics == 0);
        drop(observer);
        assert_cache_works(&subsystem, cache);
    }
    pub(crate) fn removes_itself() {
        let subsystem = subsystem(1);
        let (value_slot, calls) = (DroppedInCallback::<Observer>::unset(), Arc::new(Mutex::new(0)));
        let (observer, count) = (value_slot.clone(), calls.clone());
        let observer = subsystem.observe(move |_| {
            *count.lock() += 1;
            assert!(observer.drop_value());
        });
        value_slot.fill(observer.unwrap());
        assert_cache_works(&subsystem, Arc::new(blocks(&subsystem)));
        assert_eq!((*calls.lock(), Arc::strong_count(&calls)), (1, 1), "the callback must be dropped");
    }
}

pub(super) mod shrinker {
    use super::*;

    struct ClosureRunner<F>(F);
    impl<F: Fn() -> usize + Send + Sync> Shrinker for ClosureRunner<F> {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            (self.0)()
        }
    }
    impl<F> Drop for ClosureRunner<F> {
        fn drop(&mut self) {
            panic_with_drop_payload();
        }
    }

    /// Returns a cache with a limit; at the limit, the cache calls shrinkers.
    fn limited(subsystem: &Subsystem) -> KmemCache {
        KmemCache::builder("bomb", 512).limit(Limit::Slabs(1)).build_in(subsystem).unwrap()
    }
    fn fill(cache: &KmemCache) {
        let mut blocks = Vec::new();
        let error = loop {
            match cache.alloc_block(Gfp::KERNEL) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error, AllocError::CacheLimit { slabs: 1 });
    }

    pub(crate) fn bomb() {
        struct Counts;
        impl Shrinker for Counts {
            fn count(&self) -> usize {
                panic_with_drop_payload()
            }
            fn scan(&self, _: usize, _: Gfp) -> usize {
                unreachable!("the shrinker must not scan, because its count panicked")
            }
        }
        let subsystem = subsystem(1);
        let cache = Arc::new(limited(&subsystem));
        let (calls, late_calls) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let [first, last] = [calls.clone(), late_calls.clone()];
        let counts = cache.register_shrinker(Counts);
        let panics = cache.register_shrinker(ClosureRunner(move || {
            *first.lock() += 1;
            panic_with_drop_payload()
        }));
        let registration = cache.register_shrinker(ClosureRunner(move || {
            *last.lock() += 1;
            0
        }));
        fill(&cache);
        assert!(
            *calls.lock() > 0 && *late_calls.lock() == *calls.lock(),
            "the other shrinkers must still be called"
        );
        drop((counts, panics, registration));
        assert_untyped_cache_ends(&subsystem, cache);
    }
    /// A shrinker may use its own cache; the shrinker's operations call no shrinkers.
    pub(crate) fn reenters() {
        let subsystem = Arc::new(subsystem(1));
        let (weak_slot, weak, calls) =
            (WeakTarget::<KmemCache>::empty(), Arc::downgrade(&subsystem), Arc::new(Mutex::new(0)));
        let (weak_cache, count) = (weak_slot.clone(), calls.clone());
        let cache = weak_slot.keep(limited(&subsystem));
        let registered = cache.register_shrinker(ClosureRunner(move || {
            *count.lock() += 1;
            let (cache, subsystem) = (weak_cache.get().unwrap(), weak.upgrade().unwrap());
            assert!(cache.alloc_block(Gfp::KERNEL).is_err());
            subsystem.shrink();
            drop(cache.register_shrinker(ClosureRunner(|| {
                unreachable!("the removed shrinker must not be called")
            })));
            0
        }));
        fill(&cache);
        assert!(*calls.lock() > 0);
        drop(registered);
        assert_untyped_cache_ends(&subsystem, cache);
    }
    /// Regression test: a panic in the shrinker's `Drop` reached the allocating caller.
    pub(crate) fn removes_itself() {
        let subsystem = subsystem(1);
        let (value_slot, calls) = (DroppedInCallback::<Registration>::unset(), Arc::new(Mutex::new(0)));
        let (registered, count) = (value_slot.clone(), calls.clone());
        let cache = Arc::new(limited(&subsystem));
        value_slot.fill(cache.register_shrinker(ClosureRunner(move || {
            *count.lock() += 1;
            assert!(registered.drop_value());
            0
        })));
        fill(&cache);
        assert_eq!((*calls.lock(), Arc::strong_count(&calls)), (1, 1), "the callback must be dropped");
        assert_untyped_cache_ends(&subsystem, cache);
    }
}

pub(super) mod corruption {
    use super::*;

    fn subsystem(check_frees: bool, handler: impl Fn(&Corruption<'_>) + Send + Sync + 'static) -> Subsystem {
        Subsystem::new(Config { check_frees, corruption: Arc::new(handler), ..config(1, 1, 64 << 20) })
            .unwrap()
    }
    /// Frees the same object twice.
    fn free_twice(cache: &KmemCache) {
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the second free is the error under test; it is refused.
        unsafe {
            cache.free(object);
            cache.free(object);
        }
    }

    pub(crate) fn bomb() {
        let calls = Arc::new(Mutex::new(0));
        let count = calls.clone();
        let subsystem = subsystem(true, move |_| {
            *count.lock() += 1;
            panic_with_drop_payload()
        });
        let cache = Arc::new(blocks(&subsystem));
        free_twice(&cache);
        free_twice(&cache);
        assert_eq!((*calls.lock(), cache.info().corruptions), (2, 2));
        assert_untyped_cache_ends(&subsystem, cache);
        // The damage is detected while magazines are flushed.
        let subsystem = self::subsystem(false, |_| panic_with_drop_payload());
        let (cache, other_cache) = (blocks(&subsystem), Arc::new(blocks(&subsystem)));
        let objects = [(); 9].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
        for (n, object) in objects.into_iter().enumerate() {
            // SAFETY: the objects are freed once. No object begins 8 bytes into another, so that free is the error
            // under test.
            unsafe {
                cache.free(object);
                if n == 4 {
                    cache.free(object.add(8));
                }
            }
        }
        subsystem.shrink();
        let info = cache.info();
        assert_eq!((info.in_magazines, info.slabs, info.corruptions), (0, 0, 1));
        drop(cache);
        assert_untyped_cache_ends(&subsystem, other_cache);
    }
    pub(crate) fn reenters() {
        let (weak_slot, run_guard) = (WeakTarget::<KmemCache>::empty(), RunOnceGuard::default());
        let (weak_cache, first) = (weak_slot.clone(), run_guard.clone());
        let subsystem = subsystem(true, move |_| {
            first.run(|| {
                let cache = weak_cache.get().unwrap();
                drop([(); 5].map(|()| cache.alloc_block(Gfp::KERNEL).unwrap()));
                free_twice(&cache);
                cache.shrink();
            });
        });
        let cache = weak_slot.keep(blocks(&subsystem));
        free_twice(&cache);
        assert!(run_guard.has_run() && cache.info().corruptions == 2);
        assert_untyped_cache_ends(&subsystem, cache);
    }
    /// The refused free must end although its cache is destroyed during the report.
    pub(crate) fn removes_itself() {
        let weak_slot = WeakTarget::<KmemCache>::empty();
        let weak_cache = weak_slot.clone();
        let subsystem = subsystem(true, move |_| weak_cache.get().unwrap().destroy().unwrap());
        let cache = weak_slot.keep(blocks(&subsystem));
        free_twice(&cache);
        assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::Destroyed));
        drop(cache);
        assert_all_memory_returned(&subsystem);
    }
}

pub(super) mod page_corruption {
    use super::*;
    use uslab_buddy::{Order, PageAllocator};

    static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Frees the same page twice.
    fn free_twice(pages: &PageAllocator) {
        let page = pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap();
        // SAFETY: the second free is the error under test; it is refused.
        unsafe {
            pages.free(page, Order::ZERO);
            pages.free(page, Order::ZERO);
        }
    }
    fn case(handler: uslab_buddy::corruption::Handler) {
        let mut config = config(1, 1, 64 << 20);
        config.pages.corruption = handler;
        let subsystem = Subsystem::new(config).unwrap();
        free_twice(subsystem.pages());
        assert_eq!(subsystem.pages().info().corruptions, 1);
        assert_untyped_cache_ends(&subsystem, Arc::new(blocks(&subsystem)));
    }

    pub(crate) fn bomb() {
        case(|_| panic_with_drop_payload());
    }
    pub(crate) fn reenters() {
        case(|corruption| {
            let subsystem = subsystem(1);
            drop(blocks(&subsystem).alloc_block(Gfp::KERNEL).unwrap());
            CALLS.lock().push(corruption.to_string());
        });
        assert_eq!(CALLS.lock().len(), 1);
    }
}

pub(super) mod deferred {
    use super::*;

    /// Regression test: the panic of a deferred closure reached a caller that freed a slab or called `pin`. The test
    /// needs a separate process, because deferred closures may run on any thread.
    pub(crate) fn bomb() {
        if !is_alone("panics::deferred::bomb") {
            return;
        }
        let subsystem = subsystem(1);
        let cache = blocks(&subsystem);
        let panics = 200;
        for _ in 0..panics {
            rcu::pin().defer(|| panic_with_drop_payload());
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            // SAFETY: the object was allocated just now, and is freed once; no reader has it.
            unsafe { cache.free_deferred(object) };
            drop(rcu::pin());
        }
        wait_until_freed(&cache);
        assert_untyped_cache_ends(&subsystem, Arc::new(cache));
    }
    /// Waits until no deferred object is waiting for readers.
    fn wait_until_freed(cache: &KmemCache) {
        while cache.info().used > 0 {
            cache.reap();
            rcu::advance();
        }
    }
    pub(crate) fn reenters() {
        let _exclusive = READERS.lock();
        let subsystem = subsystem(1);
        let cache = Arc::new(blocks(&subsystem));
        let (weak_slot, run_guard) = (Arc::downgrade(&cache), RunOnceGuard::default());
        let first = run_guard.clone();
        rcu::pin().defer(move || {
            let cache = weak_slot.upgrade().unwrap();
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            // SAFETY: the object was allocated just now, and is freed once; no reader has it.
            unsafe { cache.free_deferred(object) };
            cache.shrink();
            rcu::advance();
            first.run(|| ());
        });
        while !run_guard.has_run() {
            rcu::advance();
        }
        wait_until_freed(&cache);
        assert_untyped_cache_ends(&subsystem, cache);
    }
}

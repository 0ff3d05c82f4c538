//! Tests threads and futures that wait because a cache has reached its limit.

use crate::common::{READERS, assert_all_memory_returned, config, subsystem};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use uslab::cache::{Account, Acquiring};
use uslab::{
    AllocError, CacheBox, Config, Gfp, KmemCache, Limit, Magazines, Malloc, ObjectCache, OwnedBox,
    ReaperThread, Subsystem,
};
use uslab_buddy::{Order, PageConfig};
use uslab_magazine::sync::{Counter, Mutex};
use uslab_magazine::{Cpus, Paths, on_cpu};

const LONG_TIMEOUT: Duration = Duration::from_secs(60);
const SMALL: Magazines = Magazines::Sized { capacity: 3, stock: 2, depot_limit: 1 };

/// A waker that counts how often it is woken.
#[derive(Default)]
struct CountingWaker(Counter);
impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.add(1);
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Returns a cache that may have only one slab, and all objects of the slab.
fn fill_to_limit(subsystem: &Subsystem) -> (KmemCache, Vec<std::ptr::NonNull<u8>>) {
    let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(subsystem).unwrap();
    let objects = (0..cache.geometry().objects()).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    (cache, objects)
}

#[test]
fn acquire_below_the_limit_does_not_wait() {
    let subsystem = subsystem(1);
    let cache =
        ObjectCache::builder("free").ctor(|| 7_u64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let object = poll(&mut pin!(cache.acquire())).unwrap().unwrap();
    assert_eq!((*object, *cache.acquire_timeout(Duration::ZERO).unwrap()), (7, 7));
    drop(object);
    assert!(cache.info().in_magazines > 0, "the magazines must be open");
    assert_eq!(cache.info().waits, 0);
}

#[test]
fn deferred_frees_are_not_expedited_without_waiters() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let (full_cache, mut objects) = fill_to_limit(&subsystem);
    let node = KmemCache::builder("node", 64).build_in(&subsystem).unwrap();
    let defer = || {
        let object = node.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { node.free_deferred(object) };
    };
    let caches_left = || {
        (0..1000).for_each(|_| uslab::rcu::advance());
        node.info().deferred
    };
    defer();
    assert_eq!(caches_left(), 1, "the object is in an incomplete batch");
    let mut waits = full_cache.acquire(Gfp::KERNEL);
    assert!(poll(&mut waits).is_none());
    defer();
    // A waiter exists, though of another cache. Readers of other tests may exist for a moment.
    wait_until(|| caches_left() == 0);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { full_cache.free(objects.pop().unwrap()) };
    objects.push(poll(&mut waits).unwrap().unwrap());
    defer();
    assert_eq!(caches_left(), 1);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { full_cache.free(object) });
}

#[test]
fn acquire_waits_only_if_a_limit_is_reached() {
    let subsystem = Subsystem::new(config(1, 1, 1 << 20)).unwrap();
    let cache = KmemCache::builder("all", 4096).build_in(&subsystem).unwrap();
    let _all: Vec<_> = std::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    assert!(matches!(cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT), Err(AllocError::Memory(_))));
}

#[test]
fn timed_out_waiter_leaves_the_wait_queue() {
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let limit = Err(AllocError::CacheLimit { slabs: 1 });
    assert_eq!(cache.acquire_timeout(Gfp::KERNEL, Duration::from_millis(5)), limit);
    assert_eq!(cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO), limit);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert!(cache.info().in_magazines > 0, "the magazines must be open again");
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

/// The executor may have polled the future again with a different waker.
#[test]
fn object_freed_for_a_waiter_is_reserved() {
    let subsystem = subsystem(1);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    let wakers = [(); 2].map(|()| Arc::new(CountingWaker::default()));
    let mut acquire = cache.acquire(Gfp::KERNEL);
    for counting_waker in &wakers {
        let waker = Waker::from(counting_waker.clone());
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    for _ in 0..2 {
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(objects.pop().unwrap()) };
    }
    assert_eq!(wakers.map(|counting_waker| counting_waker.0.get()), [0, 1]);
    // The second object has no waiter, so any caller may take it. The first object is reserved for the waiter.
    objects.push(cache.alloc(Gfp::KERNEL).unwrap());
    assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::CacheLimit { slabs: 1 }));
    objects.push(poll(&mut acquire).unwrap().unwrap());
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// Forgetting a future has the same effect as forgetting a box: the object stays in use.
#[test]
fn forgotten_acquire_future_blocks_no_waiter() {
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let [mut first, mut second] = [(); 2].map(|()| cache.acquire(Gfp::KERNEL));
    assert_eq!((poll(&mut first), poll(&mut second)), (None, None));
    std::mem::forget(first);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    let object = poll(&mut second).unwrap().unwrap();
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    assert_eq!(cache.info().used, 1);
}

/// If a constructor panics, the caller that creates the slab gets the panic, and the next caller calls the constructor
/// again.
#[test]
fn constructor_panic_does_not_block_the_next_waiter() {
    let subsystem = subsystem(1);
    let panics = Arc::new(Counter::new(0));
    let panic_count = panics.clone();
    let construct = move || {
        if panic_count.get() > 0 {
            panic_count.sub(1);
            panic!("the waiter must not be served yet");
        }
        [0_u8; 1000]
    };
    let cache =
        ObjectCache::builder("p").ctor(construct).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let objects = cache.alloc_bulk(cache.info().objs_per_slab as usize).unwrap();
    let mut futures: Vec<_> = (0..2).map(|_| Box::pin(cache.acquire())).collect();
    assert!(futures.iter_mut().all(|future| poll(future).is_none()));
    // Both futures were given an object, and both are dropped.
    drop(objects);
    drop(futures.split_off(0));
    assert_eq!((cache.info().used, cache.shrink()), (0, 1));
    panics.set(1);
    let acquire = || {
        let poll_once = || poll(&mut pin!(cache.acquire())).map(|object| object.map(drop));
        uslab_magazine::sync::catch_panic(poll_once)
    };
    assert!(acquire().is_err());
    assert_eq!(acquire().unwrap(), Some(Ok(())));
}

#[test]
fn destroyed_cache_returns_an_error_to_its_waiters() {
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    assert!(cache.destroy().is_err(), "objects are in use");
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    let object = poll(&mut acquire).unwrap().unwrap();
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    cache.destroy().unwrap();
    assert_eq!(poll(&mut cache.acquire(Gfp::KERNEL)), Some(Err(AllocError::Destroyed)));
}

#[test]
fn forked_child_has_no_waiter() {
    use uslab::Fork;
    let subsystem = subsystem(1);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    let [mut served_futures, mut acquire] = [cache.acquire(Gfp::KERNEL), cache.acquire(Gfp::KERNEL)];
    assert_eq!([poll(&mut served_futures), poll(&mut acquire)], [None, None]);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(objects.pop().unwrap()) };
    assert_eq!(cache.info().waiting, 1, "the first waiter has received the object, but has not run");
    // SAFETY: this thread continues as the child's would, and no other thread uses the subsystem.
    unsafe {
        subsystem.before_fork();
        subsystem.after_fork_in_child();
    }
    for _ in 0..2 {
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(objects.pop().unwrap()) };
    }
    assert!(cache.info().in_magazines > 0, "the magazines must be open again");
    objects.push(cache.alloc(Gfp::KERNEL).unwrap());
    // The future is queued anew, and a later future waits behind it.
    objects.push(poll(&mut acquire).unwrap().unwrap());
    let mut third_acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!((poll(&mut third_acquire), cache.info().waiting), (None, 1));
    drop((third_acquire, served_futures));
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert_eq!(cache.info().used, 1, "a waiter of the parent must receive the object");
}

#[test]
fn threads_and_tasks_share_a_wait_queue() {
    let subsystem = subsystem(2);
    let cache = ObjectCache::builder("mixed").ctor(|| [0_u8; 1000]).limit(Limit::Slabs(1));
    let cache = &cache.build_in(&subsystem).unwrap();
    let mut objects = VecDeque::from(cache.alloc_bulk(cache.info().objs_per_slab as usize).unwrap());
    let (sender, order) = channel();
    std::thread::scope(|scope| {
        let mut future = Box::pin(cache.acquire());
        assert!(poll(&mut future).is_none());
        scope.spawn(move || {
            on_cpu(1);
            let object = cache.acquire_timeout(LONG_TIMEOUT).unwrap();
            sender.send(()).unwrap();
            drop(object);
        });
        // The next object is the future's, although the thread may not be waiting yet.
        drop(objects.pop_front());
        assert!(order.recv_timeout(Duration::from_millis(20)).is_err());
        let object = poll(&mut future).unwrap().unwrap();
        drop(objects.pop_front());
        order.recv().unwrap();
        drop(object);
    });
}

/// The cache is used like a connection pool: there are more clients than objects, and some clients stop waiting after a
/// timeout.
#[test]
fn every_contending_waiter_is_eventually_served() {
    for magazines in [Magazines::BySize, Magazines::Off, SMALL] {
        let subsystem = subsystem(4);
        let cache = ObjectCache::builder("pool").ctor(|| 0_u64).align(2048).magazines(magazines);
        let cache = &cache.limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        // Two objects are left for six threads.
        let other_objects = cache.alloc_bulk(14).unwrap();
        let served_count = Counter::new(0);
        let (threads, rounds) = (6, if cfg!(miri) { 5 } else { 400 });
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let served_count = &served_count;
                scope.spawn(move || {
                    on_cpu(thread % 4);
                    for round in 0..rounds {
                        // Every other request has a very short timeout.
                        let timeout =
                            if (round + thread) % 2 == 0 { LONG_TIMEOUT } else { Duration::from_micros(20) };
                        match cache.acquire_timeout(timeout) {
                            Ok(mut object) => {
                                *object += 1;
                                std::thread::yield_now();
                                served_count.add(1);
                            }
                            Err(error) => {
                                assert!(timeout != LONG_TIMEOUT, "{error}");
                                assert_eq!(error, AllocError::CacheLimit { slabs: 1 });
                            }
                        }
                    }
                });
            }
        });
        assert!(cache.info().waits > 0);
        drop(other_objects);
        let objects = cache.alloc_bulk(16).unwrap();
        assert_eq!(objects.iter().map(|object| **object).sum::<u64>(), served_count.get());
        drop(objects);
        assert_eq!(cache.info().used, 0);
        subsystem.check().unwrap();
    }
}

/// The operations that one thread can do on a cache with a few objects.
#[derive(Clone, Copy, Debug)]
enum Op {
    Begin,
    Poll(prop::sample::Index),
    Cancel(prop::sample::Index),
    Alloc,
    Free(prop::sample::Index),
    Shrink,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let index = any::<prop::sample::Index>;
    let op = prop_oneof![
        3 => Just(Op::Begin),
        4 => index().prop_map(Op::Poll),
        2 => index().prop_map(Op::Cancel),
        3 => Just(Op::Alloc),
        4 => index().prop_map(Op::Free),
        1 => Just(Op::Shrink),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    /// Compares the futures with a queue of numbers: a polled future has an object exactly if it is first in the queue.
    #[test]
    fn waiters_are_served_in_order_of_arrival(ops in ops(), slabs in 1..3_u32) {
        on_cpu(0);
        let subsystem = subsystem(1);
        let cache = KmemCache::builder("q", 2048).align(2048).magazines(SMALL).limit(Limit::Slabs(slabs));
        let cache = cache.build_in(&subsystem).unwrap();
        let max_objects = slabs as usize * cache.geometry().objects();
        let mut objects_held = vec![];
        // The lists have the futures that wait, and the futures that were given an object; each was polled once.
        let (mut waiting, mut served_futures) = (VecDeque::<Acquiring<'_>>::new(), vec![]);
        for op in ops {
            match op {
                Op::Begin => {
                    let mut acquire = cache.acquire(Gfp::KERNEL);
                    match poll(&mut acquire) {
                        Some(object) => objects_held.push(object.unwrap()),
                        None => {
                            prop_assert_eq!(objects_held.len() + served_futures.len(), max_objects, "a new waiter must wait only at the limit");
                            waiting.push_back(acquire);
                        }
                    }
                }
                Op::Poll(position) if !served_futures.is_empty() => {
                    let mut acquire: Acquiring<'_> = served_futures.swap_remove(position.index(served_futures.len()));
                    objects_held.push(poll(&mut acquire).expect("the waiter must have an object").unwrap());
                }
                Op::Poll(position) if !waiting.is_empty() => {
                    let position = position.index(waiting.len());
                    prop_assert!(poll(&mut waiting[position]).is_none(), "a waiter that is not first must wait");
                }
                Op::Cancel(position) => {
                    let position = position.index(waiting.len() + served_futures.len() + 1);
                    if position < waiting.len() {
                        drop(waiting.remove(position));
                    } else if position - waiting.len() < served_futures.len() {
                        drop(served_futures.swap_remove(position - waiting.len()));
                        served_futures.extend(waiting.pop_front());
                    }
                }
                Op::Alloc => match cache.alloc(Gfp::KERNEL) {
                    Ok(object) => {
                        prop_assert!(waiting.is_empty(), "the allocation overtook a waiter");
                        objects_held.push(object);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, AllocError::CacheLimit { slabs });
                        prop_assert_eq!(objects_held.len() + served_futures.len(), max_objects);
                    }
                },
                Op::Free(position) if !objects_held.is_empty() => {
                    let object = objects_held.swap_remove(position.index(objects_held.len()));
                    // SAFETY: the object was allocated from this cache, and is freed once.
                    unsafe { cache.free(object) };
                    served_futures.extend(waiting.pop_front());
                }
                Op::Shrink => _ = cache.shrink(),
                Op::Poll(_) | Op::Free(_) => {}
            }
            prop_assert_eq!(cache.info().used as usize, objects_held.len() + served_futures.len());
            subsystem.check().unwrap();
        }
        drop((waiting, served_futures));
        // SAFETY: the objects were allocated above, and each is freed once.
        objects_held.into_iter().for_each(|object| unsafe { cache.free(object) });
        prop_assert_eq!(cache.info().used, 0);
    }
}

/// The future of `acquire` must be `Send` if a box of the object is `Send`.
#[test]
fn acquire_futures_are_send() {
    fn assert_send<T: Send>(_: &T) {}
    let cache =
        ObjectCache::builder("sent").ctor(|| std::cell::Cell::new(1)).build_in(&subsystem(1)).unwrap();
    let future = cache.acquire();
    assert_send(&future);
    let object: CacheBox<'_, _> = poll(&mut pin!(future)).unwrap().unwrap();
    assert_eq!(object.get(), 1);
}

#[test]
fn served_waiter_is_not_counted_as_failure() {
    let subsystem = subsystem(1);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    let (failures, paths) = (cache.info().failures, cache.info().paths);
    let mut waiting = cache.acquire(Gfp::KERNEL);
    assert!(poll(&mut waiting).is_none());
    // SAFETY: `fill_to_limit` allocated the object, and it is freed once.
    unsafe { cache.free(objects.pop().unwrap()) };
    objects.push(poll(&mut waiting).unwrap().unwrap());
    assert_eq!(cache.info().failures, failures);
    let slab = paths.slab + 2;
    assert_eq!(
        cache.info().paths,
        Paths { slab, ..paths },
        "the magazines must be closed for the free and the waiter"
    );
    assert!(cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO).is_err());
    assert_eq!(cache.info().failures, failures + 1);
    // SAFETY: `fill_to_limit` allocated the objects, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

#[test]
fn lowering_a_cache_limit_calls_the_shrinkers() {
    let subsystem = subsystem(1);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]).account(&account);
    let cache = cache.build_in(&subsystem).unwrap();
    let idle = Arc::new(Mutex::new(std::iter::from_fn(|| cache.alloc_owned().ok()).collect()));
    let _registration = cache.register_shrinker(Idle(Arc::clone(&idle)));
    account.set_limit(bytes / 2);
    assert!(account.charged() <= bytes / 2, "{}", account.charged());
    assert!(!idle.lock().is_empty(), "at most the requested number of objects may be returned");
}

#[test]
fn acquire_waits_for_a_pinned_object() {
    let builder = ObjectCache::builder("pinned").ctor(|| [0_u8; 1000]).limit(Limit::Slabs(1));
    let cache = builder.build_pinned_in(&subsystem(1)).unwrap();
    let mut objects: Vec<_> = std::iter::from_fn(|| cache.alloc().ok()).collect();
    let mut waiting = pin!(cache.acquire());
    assert!(poll(&mut waiting).is_none());
    objects.pop();
    assert!(poll(&mut waiting).unwrap().is_ok());
}

/// Returns the limit of an account, which is the size of four slabs, and the size of one slab.
fn account_limit_of_four_slabs(subsystem: &Subsystem) -> (usize, usize) {
    let cache = KmemCache::builder("ask", 1000).build_in(subsystem).unwrap();
    (4 * cache.geometry().order().bytes(), cache.geometry().objects())
}
fn alloc_all_blocks(cache: &KmemCache) -> (Vec<uslab::Block<'_>>, AllocError) {
    let mut blocks = vec![];
    loop {
        match cache.alloc_block(Gfp::KERNEL) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error),
        }
    }
}

#[test]
fn account_at_its_limit_reclaims_from_idle_caches() {
    let subsystem = subsystem(2);
    let (bytes, objects) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
    let (first_cache, other_cache) = (build("one"), build("other"));
    let unrelated_cache = KmemCache::builder("stranger", 1000).build_in(&subsystem).unwrap();
    on_cpu(0);
    let (objects_held, error) = alloc_all_blocks(&first_cache);
    assert_eq!((objects_held.len(), error), (4 * objects, AllocError::AccountLimit { bytes }));
    assert_eq!((account.charged(), account.peak(), account.limit()), (bytes, bytes, bytes));
    assert_eq!(other_cache.alloc_block(Gfp::KERNEL).err(), Some(error));
    assert!(unrelated_cache.alloc_block(Gfp::KERNEL).is_ok(), "the object must not be charged");
    drop(objects_held);
    // The objects are in the magazines of CPU 0.
    on_cpu(1);
    let (objects_held, _) = alloc_all_blocks(&other_cache);
    assert_eq!(objects_held.len(), 4 * objects);
    drop(objects_held);
    assert!(account.charged() > 0);
    assert!(account.shrink() > 0);
    assert_eq!((account.charged(), account.peak()), (0, bytes));
    drop((first_cache, other_cache));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn smallest_order_slab_is_charged_its_actual_size() {
    let subsystem = Subsystem::new(config(1, 1, 4 << 20)).unwrap();
    let account = Account::new_in(&subsystem, usize::MAX);
    let cache = KmemCache::builder("page", 4096).magazines(Magazines::Off).account(&account);
    let cache = cache.build_in(&subsystem).unwrap();
    let hole = subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, Gfp::KERNEL, None).unwrap();
    let (objects_held, _) = alloc_all_blocks(&cache);
    assert_eq!((objects_held.len(), account.charged()), (1023, 1023 * 4096));
    assert!(cache.info().order_fallbacks > 0);
    drop((objects_held, hole));
    cache.shrink();
    assert_eq!(account.charged(), 0);
}

#[test]
fn request_above_the_account_limit_is_refused() {
    let subsystem = subsystem(1);
    let (bytes, objects) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = KmemCache::builder("one", 1000).limit(Limit::Slabs(8)).account(&account);
    let cache = cache.build_in(&subsystem).unwrap();
    let error_of = |n| cache.alloc_blocks(Gfp::KERNEL, n).unwrap_err();
    assert_eq!(error_of(5 * objects), AllocError::AccountLimit { bytes });
    assert_eq!(error_of(9 * objects), AllocError::CacheLimit { slabs: 8 });
    assert_eq!(account.charged(), 0, "no reclaim may be tried for the request");
}

/// Regression test: when an account had room again, empty slabs of its other caches were not reclaimed for the waiter.
#[test]
fn waiter_with_a_charge_but_no_memory_reclaims_from_idle_caches() {
    let mut config = config(1, 1, 4 << 20);
    config.pages.per_cpu_pages = false;
    let subsystem = Subsystem::new(config).unwrap();
    let account = Account::new_in(&subsystem, usize::MAX);
    on_cpu(0);
    let build = |name, size| KmemCache::builder(name, size).magazines(Magazines::Off);
    let small = build("small", 64).account(&account).build_in(&subsystem).unwrap();
    let big_cache = build("big", 32 << 10).account(&account).build_in(&subsystem).unwrap();
    let other_big_cache = build("out", 32 << 10).build_in(&subsystem).unwrap();
    let idle = small.alloc_blocks(Gfp::KERNEL, 4 * small.geometry().objects()).unwrap();
    let (mut objects_held, _) = alloc_all_blocks(&other_big_cache);
    let page = || subsystem.pages().alloc_block(Order::ZERO, Gfp::KERNEL, None).ok();
    let _pages: Vec<_> = std::iter::from_fn(page).collect();
    // Both caches keep slabs without objects in use.
    drop(idle);
    objects_held.truncate(objects_held.len() - 2 * other_big_cache.geometry().objects());
    assert_eq!((small.info().empty, other_big_cache.info().empty), (4, 2));
    account.set_limit(account.charged() + big_cache.geometry().order().bytes() - 1);
    assert!(big_cache.alloc_block(Gfp::KERNEL).is_ok());
    assert_eq!((small.info().empty, other_big_cache.info().empty), (0, 0));
}

#[test]
fn raising_an_account_limit_wakes_its_waiters() {
    let subsystem = subsystem(1);
    let (bytes, objects) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = KmemCache::builder("tenant", 1000).account(&account).build_in(&subsystem).unwrap();
    let (mut objects_held, _) = alloc_all_blocks(&cache);
    let counting_waker = Arc::new(CountingWaker::default());
    let waker = Waker::from(counting_waker.clone());
    let mut waiting = cache.acquire(Gfp::KERNEL);
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((counting_waker.0.get(), cache.info().waiting), (0, 1));
    account.set_limit(2 * bytes);
    assert_eq!((counting_waker.0.get(), account.limit()), (1, 2 * bytes));
    let object = poll(&mut waiting).unwrap().unwrap();
    assert_eq!((cache.info().waiting, cache.info().slabs), (0, 5));
    // SAFETY: the object was allocated above from this cache, and is freed once.
    unsafe { cache.free(object) };
    // Slabs without objects in use are freed immediately. The other slabs stay and serve, and no slab is created.
    objects_held.truncate(3 * objects);
    account.set_limit(bytes / 2);
    assert_eq!(account.charged(), bytes / 4 * 3);
    objects_held.truncate(3 * objects - 2);
    let (more_objects, error) = alloc_all_blocks(&cache);
    assert_eq!((more_objects.len(), error), (2, AllocError::AccountLimit { bytes: bytes / 2 }));
    drop((objects_held, more_objects, waiting));
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn account_limit_above_the_charge_reclaims_no_memory() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let cache = KmemCache::builder("tenant", 1000).account(&account).build_in(&subsystem).unwrap();
    drop(cache.alloc_blocks(Gfp::KERNEL, 3).unwrap());
    let idle = || (account.charged(), cache.info().in_magazines);
    let (charged_pages, kept_idle) = idle();
    assert!(charged_pages > 0 && kept_idle > 0);
    for limit in [charged_pages + 1, charged_pages] {
        account.set_limit(limit);
        assert_eq!(idle(), (charged_pages, kept_idle), "a limit of {limit}");
    }
    account.set_limit(charged_pages - 1);
    assert_eq!(idle(), (0, 0));
}

/// A waiter at a cache's own limit can only get an object of this cache.
#[test]
fn returned_account_charge_does_not_wake_a_cache_limit_waiter() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let other_cache = KmemCache::builder("other", 1000).account(&account).build_in(&subsystem).unwrap();
    let full_cache = KmemCache::builder("full", 1000).account(&account).limit(Limit::Slabs(1));
    let full_cache = full_cache.build_in(&subsystem).unwrap();
    drop(other_cache.alloc_block(Gfp::KERNEL).unwrap());
    let (objects_held, _) = alloc_all_blocks(&full_cache);
    let counting_waker = Arc::new(CountingWaker::default());
    let waker = Waker::from(counting_waker.clone());
    let mut waiting = full_cache.acquire(Gfp::KERNEL);
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((other_cache.shrink(), counting_waker.0.get()), (1, 0));
    drop(objects_held);
    assert_eq!(counting_waker.0.get(), 1);
}

/// A shrinker that frees objects which the program can drop.
struct Idle(Arc<Mutex<Vec<OwnedBox<[u8; 1000]>>>>);
impl uslab::Shrinker for Idle {
    fn count(&self) -> usize {
        self.0.lock().len()
    }
    fn scan(&self, objects: usize, _: Gfp) -> usize {
        let mut idle = self.0.lock();
        let kept_idle = idle.len().saturating_sub(objects);
        let dropped = idle.split_off(kept_idle);
        drop(idle);
        dropped.len()
    }
}

/// If an account has reached its limit, the shrinkers of all its caches are called.
#[test]
fn account_at_its_limit_calls_shrinkers_of_every_cache() {
    let subsystem = subsystem(1);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]).account(&account);
    let cache = cache.build_in(&subsystem).unwrap();
    let idle = Arc::new(Mutex::new(vec![]));
    let _registration = cache.register_shrinker(Idle(Arc::clone(&idle)));
    let objects: Vec<_> = std::iter::from_fn(|| cache.alloc_owned().ok()).collect();
    *idle.lock() = objects;
    let other_cache = KmemCache::builder("other", 1000).account(&account).build_in(&subsystem).unwrap();
    assert!(other_cache.alloc_block(Gfp::KERNEL).is_ok());
    assert!(account.charged() <= bytes);
}

/// A shrinker that drops all its objects, but reports that it has dropped none.
struct SilentShrinker(Mutex<Vec<OwnedBox<[u8; 1000]>>>);
impl uslab::Shrinker for SilentShrinker {
    fn count(&self) -> usize {
        let objects = std::mem::take(&mut *self.0.lock());
        drop(objects);
        0
    }
    fn scan(&self, _: usize, _: Gfp) -> usize {
        0
    }
}

/// Regression test: the waiter's allocation was refused, because a thread that had freed an object earlier did not know
/// about the waiter.
#[test]
fn new_account_waiter_gets_previously_freed_objects() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]).account(&account);
    let cache = cache.build_in(&subsystem).unwrap();
    let objects = std::iter::from_fn(|| cache.alloc_owned().ok()).collect();
    let _registration = cache.register_shrinker(SilentShrinker(Mutex::new(objects)));
    let other_cache = KmemCache::builder("other", 1000).account(&account).build_in(&subsystem).unwrap();
    let object = poll(&mut other_cache.acquire(Gfp::KERNEL)).unwrap().unwrap();
    // SAFETY: the object was allocated just now.
    unsafe { other_cache.free(object) };
    assert!(account.peak() <= bytes);
}

#[test]
fn new_slab_serves_all_waiters() {
    let subsystem = subsystem(1);
    let (bytes, objects) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let cache = KmemCache::builder("one", 1000).account(&account).build_in(&subsystem).unwrap();
    let (objects_held, _) = alloc_all_blocks(&cache);
    let mut waiting: Vec<_> = (0..=objects).map(|_| cache.acquire(Gfp::KERNEL)).collect();
    assert!(waiting.iter_mut().all(|acquire| poll(acquire).is_none()));
    account.set_limit(bytes / 4 * 6);
    let first = poll(&mut waiting[0]).unwrap().unwrap();
    assert_eq!(
        cache.info().waiting,
        1,
        "each waiter received an object before it ran, except the last, which created a slab"
    );
    // SAFETY: the object was allocated just now.
    unsafe { cache.free(first) };
    for acquire in &mut waiting[1..] {
        let object = poll(acquire).unwrap().unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
    }
    drop((waiting, objects_held));
}

#[test]
fn account_waiter_gets_memory_freed_by_another_cache() {
    let subsystem = subsystem(2);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
    let (first_cache, other_cache) = (build("one"), build("other"));
    on_cpu(0);
    let (objects_held, error) = alloc_all_blocks(&first_cache);
    assert_eq!(other_cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO), Err(error));
    let counting_waker = Arc::new(CountingWaker::default());
    let waker = Waker::from(counting_waker.clone());
    let mut acquire = other_cache.acquire(Gfp::KERNEL);
    assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(objects_held);
    assert_eq!(counting_waker.0.get(), 1);
    let object = poll(&mut acquire).unwrap().unwrap();
    drop(acquire);
    // SAFETY: the object was allocated just now.
    unsafe { other_cache.free(object) };
    // The first free to a slab after the wait opens the other caches' magazines again.
    for _ in 0..2 {
        drop(first_cache.alloc_block(Gfp::KERNEL).unwrap());
    }
    assert!(first_cache.info().in_magazines > 0);
    drop((first_cache, other_cache));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn cache_of_an_account_with_waiters_keeps_no_objects() {
    let subsystem = subsystem(1);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    // The account has one page more, which is too little for another slab.
    let account = Account::new_in(&subsystem, bytes + 4096);
    let build = |name, size| KmemCache::builder(name, size).account(&account).build_in(&subsystem).unwrap();
    let first_cache = build("one", 1000);
    on_cpu(0);
    let (objects_held, _) = alloc_all_blocks(&first_cache);
    let mut acquire = first_cache.acquire(Gfp::KERNEL);
    assert!(poll(&mut acquire).is_none());
    let late_cache = build("late", 64);
    drop(late_cache.alloc_block(Gfp::KERNEL).unwrap());
    assert_eq!((late_cache.info().in_magazines, late_cache.info().in_depot), (0, 0));
    drop((acquire, objects_held));
    for _ in 0..2 {
        drop(late_cache.alloc_block(Gfp::KERNEL).unwrap());
    }
    assert!(late_cache.info().in_magazines > 0);
}

/// If two waiters wait for an account, a returned charge is given to the first waiter, even if the second is polled
/// first.
#[test]
fn returned_account_charge_serves_the_first_waiter() {
    let subsystem = subsystem(1);
    let account = Account::new_in(&subsystem, usize::MAX);
    let build = |name| KmemCache::builder(name, 4096).magazines(Magazines::Off).account(&account);
    let [first_cache, other_cache] = ["one", "other"].map(|name| build(name).build_in(&subsystem).unwrap());
    on_cpu(0);
    let objects = first_cache.geometry().objects();
    account.set_limit(first_cache.geometry().order().bytes());
    let objects_held = first_cache.alloc_blocks(Gfp::KERNEL, objects).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| other_cache.acquire(Gfp::KERNEL));
    assert_eq!((poll(&mut first), poll(&mut second)), (None, None));
    drop(objects_held);
    assert_eq!(poll(&mut second), None, "the request must not overtake the first waiter");
    let object = poll(&mut first).unwrap().unwrap();
    // SAFETY: the object was allocated just now.
    unsafe { other_cache.free(object) };
    let object = poll(&mut second).unwrap().unwrap();
    // SAFETY: the object was allocated just now, and is freed once.
    unsafe { other_cache.free(object) };
}

#[test]
fn account_at_its_limit_takes_nothing_from_another_account() {
    let pages =
        PageConfig { min_free_kib: Some(0), ..PageConfig::default_for(Cpus::simulated(1, 1).unwrap()) };
    let subsystem = Subsystem::new(Config::new(pages.limit(64 << 20))).unwrap();
    on_cpu(0);
    let [full_account, idle] = [(); 2].map(|()| Account::new_in(&subsystem, usize::MAX));
    let build = |name, account| KmemCache::builder(name, 1000).account(account).build_in(&subsystem).unwrap();
    let (first_cache, other_cache) = (build("one", &full_account), build("other", &idle));
    assert_eq!(subsystem.info().accounts.len(), 1 + 1);
    drop(other_cache.alloc_blocks(Gfp::KERNEL, 3).unwrap());
    let kept_idle = other_cache.info().in_magazines;
    assert!(kept_idle > 0);
    full_account.set_limit(first_cache.geometry().order().bytes());
    let (objects_held, error) = alloc_all_blocks(&first_cache);
    assert_eq!(error, AllocError::AccountLimit { bytes: first_cache.geometry().order().bytes() });
    assert_eq!(other_cache.info().in_magazines, kept_idle);
    drop(objects_held);
}

#[test]
fn report_lists_an_account_with_a_single_cache() {
    let subsystem = subsystem(1);
    let account = Account::new_in(&subsystem, 1 << 20);
    let _cache = KmemCache::builder("tenant", 1000).account(&account).build_in(&subsystem).unwrap();
    assert_eq!(subsystem.info().accounts.len(), 1);
}

/// A shrinker like [`Idle`] that frees nothing while another thread holds its lock.
struct Busy(Idle);
impl uslab::Shrinker for Busy {
    fn count(&self) -> usize {
        self.0.0.try_lock().map_or(0, |idle| idle.len())
    }
    fn scan(&self, objects: usize, gfp: Gfp) -> usize {
        if self.0.0.try_lock().is_none() { 0 } else { self.0.scan(objects, gfp) }
    }
}

/// Regression test: a waiter slept until its timeout after its shrinker had given up.
#[test]
fn waiters_retry_a_shrinker_that_gave_up() {
    let subsystem = subsystem(1);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    for is_in_account in [false, true] {
        let builder = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]);
        let builder = if is_in_account { builder.account(&account) } else { builder.limit(Limit::Slabs(1)) };
        let cache = builder.build_in(&subsystem).unwrap();
        let idle = Arc::new(Mutex::new(std::iter::from_fn(|| cache.alloc_owned().ok()).collect()));
        let _registration = cache.register_shrinker(Busy(Idle(Arc::clone(&idle))));
        let idle_guard = idle.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cache.acquire_timeout(LONG_TIMEOUT).map(drop));
            while cache.info().waiting == 0 {
                std::thread::yield_now();
            }
            // Objects can be dropped only now, and no free announces that.
            drop(idle_guard);
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
        let mut idle_guard = idle.lock();
        idle_guard.extend(std::iter::from_fn(|| cache.alloc_owned().ok()));
        let mut waiting = pin!(cache.acquire());
        assert!(poll(&mut waiting).is_none());
        drop(idle_guard);
        assert!(poll(&mut waiting).is_none(), "no shrinker was called");
        let object = (0..64).find_map(|_| {
            subsystem.end_interval();
            poll(&mut waiting)
        });
        assert!(object.unwrap().is_ok());
        idle.lock().clear();
    }
}

fn wait_until(mut is_met: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG_TIMEOUT;
    while !is_met() {
        assert!(Instant::now() < deadline, "the condition must hold within {LONG_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_in_use_starts_the_reaper() {
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 64 << 20) }).unwrap();
    on_cpu(0);
    let cache = KmemCache::builder("large", 64 << 10).build_in(&subsystem).unwrap();
    let running = || subsystem.info().reaper.thread != ReaperThread::Wanted;
    let mut objects_held: Vec<_> =
        std::iter::from_fn(|| (!running()).then(|| cache.alloc_block(Gfp::KERNEL).unwrap())).collect();
    assert!(running() && objects_held.len() << 16 >= 4 << 20, "{}", objects_held.len());
    objects_held.clear();
}

#[test]
fn huge_memory_in_use_starts_the_reaper() {
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 64 << 20) }).unwrap();
    on_cpu(0);
    let malloc = Malloc::new(&subsystem).unwrap();
    let layout = std::alloc::Layout::from_size_align((4 << 20) + 1, 8).unwrap();
    let is_reaper_wanted = || subsystem.info().reaper.thread == ReaperThread::Wanted;
    let _first_block = malloc.alloc_block(layout, Gfp::KERNEL).unwrap();
    assert!(is_reaper_wanted(), "the stack is too small for a thread");
    let _second_block = malloc.alloc_block(layout, Gfp::KERNEL).unwrap();
    assert!(!is_reaper_wanted());
}

#[test]
fn freed_pages_wake_the_sleeping_reaper() {
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 64 << 20) }).unwrap();
    on_cpu(0);
    let reaper = || subsystem.info().reaper;
    let cache = KmemCache::builder("large", 64 << 10).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let (kmalloc, slabs) = (subsystem.kmalloc(), cache.alloc_blocks(Gfp::KERNEL, 144).unwrap());
    let blocks: Vec<_> = (0..9).map(|_| kmalloc.alloc_block(1 << 20, Gfp::KERNEL).unwrap()).collect();
    let frees: [Box<dyn FnOnce()>; 2] = [Box::new(|| drop(blocks)), Box::new(|| drop(slabs))];
    for free in frees {
        wait_until(|| reaper().thread == ReaperThread::Asleep);
        let intervals_seen = reaper().intervals;
        free();
        let reaper_now = reaper();
        assert!(
            reaper_now.thread == ReaperThread::Running || reaper_now.intervals > intervals_seen,
            "{reaper_now:?}"
        );
    }
}

/// Regression test: the reaper slept although futures were waiting, and did not start until 8 MiB were in use.
#[test]
fn new_waiter_wakes_the_sleeping_reaper() {
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 64 << 20) }).unwrap();
    on_cpu(0);
    for before in [ReaperThread::Wanted, ReaperThread::Asleep] {
        let builder = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]).limit(Limit::Slabs(1));
        let cache = builder.build_in(&subsystem).unwrap();
        let idle = Arc::new(Mutex::new(std::iter::from_fn(|| cache.alloc_owned().ok()).collect()));
        let _registration = cache.register_shrinker(Busy(Idle(Arc::clone(&idle))));
        wait_until(|| subsystem.info().reaper.thread == before);
        let idle_guard = idle.lock();
        let mut waiting = pin!(cache.acquire());
        assert!(poll(&mut waiting).is_none());
        wait_until(|| subsystem.info().reaper.thread == ReaperThread::Running);
        let intervals = || subsystem.info().reaper.intervals;
        let intervals_seen = intervals();
        wait_until(|| intervals() > intervals_seen + 20);
        assert_eq!(
            subsystem.info().reaper.thread,
            ReaperThread::Running,
            "the reaper slept while a caller waited"
        );
        drop(idle_guard);
        let mut object = None;
        wait_until(|| {
            object = poll(&mut waiting);
            object.is_some()
        });
        assert!(object.unwrap().is_ok());
        idle.lock().clear();
    }
}

/// Regression test: the error claimed that the cache was destroyed, and no shrinker had been called.
#[test]
fn waiter_gets_a_memory_error_if_memory_is_exhausted() {
    let subsystem = Subsystem::new(config(1, 1, 1 << 20)).unwrap();
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let [first, second] = ["first", "second"].map(|name| {
        let builder = KmemCache::builder(name, 4096).magazines(Magazines::Off).account(&account);
        builder.build_in(&subsystem).unwrap()
    });
    account.set_limit(first.geometry().order().bytes());
    let objects_held = first.alloc_blocks(Gfp::KERNEL, first.geometry().objects()).unwrap();
    let mut acquire = second.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    assert_eq!(second.info().failures, 0, "a waiting caller must not count as failed");
    drop(objects_held);
    let pages = subsystem.pages();
    let _all: Vec<_> =
        std::iter::from_fn(|| pages.alloc_block(Order::ZERO, Gfp::MEMALLOC, None).ok()).collect();
    let result = poll(&mut acquire);
    assert!(matches!(result, Some(Err(AllocError::Memory(_)))), "{result:?}");
    assert_eq!(second.info().failures, 1);
}

/// The waiter first gets objects from the other node's slabs, and then pages of the waiter's node. If the other node
/// has no free pages, memory that another cache keeps must be reclaimed.
#[test]
fn waiter_gets_objects_of_another_numa_node() {
    let subsystem = Subsystem::new(config(2, 2, 16 << 20)).unwrap();
    let cache = KmemCache::builder("both", 1000).magazines(Magazines::Off).limit(Limit::Slabs(2));
    let cache = cache.build_in(&subsystem).unwrap();
    let mut objects_held = [vec![], vec![]];
    for (node, objects_held) in (0..).zip(&mut objects_held) {
        objects_held
            .extend((0..cache.geometry().objects()).map(|_| cache.alloc_node(Gfp::THIS_NODE, node).unwrap()));
    }
    for cpu in 0..2 {
        on_cpu(cpu);
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert_eq!(poll(&mut acquire), None);
        let other_objects = &mut objects_held[1 - cpu as usize];
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(other_objects.pop().unwrap()) };
        other_objects.push(poll(&mut acquire).unwrap().unwrap());
    }
    // SAFETY: the objects were allocated above, and each is freed once.
    objects_held.into_iter().flatten().for_each(|object| unsafe { cache.free(object) });

    for fill_both_nodes in [false, true] {
        let subsystem = Subsystem::new(config(2, 2, 16 << 20)).unwrap();
        on_cpu(0);
        let account = Account::new_in(&subsystem, usize::MAX);
        let build = |name| KmemCache::builder(name, 4096).magazines(Magazines::Off);
        let [first, second] =
            ["first", "second"].map(|name| build(name).account(&account).build_in(&subsystem).unwrap());
        // The cache keeps an empty slab.
        let idle = build("idle").build_in(&subsystem).unwrap();
        drop(idle.alloc_block(Gfp::KERNEL).unwrap());
        account.set_limit(first.geometry().order().bytes());
        let in_use = first.alloc_blocks(Gfp::KERNEL, first.geometry().objects()).unwrap();
        let mut acquire = second.acquire(Gfp::KERNEL);
        assert_eq!(poll(&mut acquire), None);
        drop(in_use);
        let pages = subsystem.pages();
        let all = |node| {
            let next_page =
                || pages.alloc_block(Order::ZERO, Gfp::MEMALLOC | Gfp::THIS_NODE, Some(node)).ok();
            std::iter::from_fn(next_page).collect::<Vec<_>>()
        };
        let _local_blocks = all(0);
        let _remote_blocks = fill_both_nodes.then(|| all(1));
        assert_eq!(idle.info().slabs, 1);
        let object = poll(&mut acquire).unwrap().unwrap();
        let node = pages.node_of(pages.pfn_of(object.as_ptr()).unwrap());
        assert_eq!((node, idle.info().slabs), if fill_both_nodes { (0, 0) } else { (1, 1) });
        // SAFETY: the object was allocated just now.
        unsafe { second.free(object) };
    }
}

#[test]
fn wait_is_counted_when_it_ends() {
    let subsystem = subsystem(1);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    let waits = || cache.info().waits;
    let [mut served_future, mut abandoned] = [(); 2].map(|()| cache.acquire(Gfp::KERNEL));
    assert_eq!((poll(&mut served_future), poll(&mut abandoned), waits()), (None, None, 0));
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(objects.pop().unwrap()) };
    assert_eq!(waits(), 0, "the waiter has not run");
    objects.push(poll(&mut served_future).unwrap().unwrap());
    assert_eq!(waits(), 1);
    drop((served_future, abandoned));
    assert_eq!(waits(), 2);
    assert!(cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO).is_err());
    assert_eq!(waits(), 3);
    assert!(cache.info().waited_ns > 0);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// A shrinker that frees nothing; it counts its calls, and panics when the count exceeds a given number.
struct CountingShrinker(Arc<Counter>, u64);
impl uslab::Shrinker for CountingShrinker {
    fn count(&self) -> usize {
        self.0.add(1);
        assert!(self.0.get() <= self.1, "the shrinker was called too often");
        0
    }
    fn scan(&self, _: usize, _: Gfp) -> usize {
        0
    }
}

#[test]
fn waiter_with_a_short_timeout_retries_no_shrinker() {
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let calls = Arc::new(Counter::new(0));
    let _registration = cache.register_shrinker(CountingShrinker(calls.clone(), 10));
    assert!(cache.alloc(Gfp::KERNEL).is_err());
    let first_calls = calls.get();
    assert!(cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO).is_err());
    assert!(
        first_calls > 0 && calls.get() <= 3 * first_calls,
        "an allocation must call the shrinker once, and a waiter twice"
    );
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

#[test]
fn waiter_sleeps_between_shrinker_calls() {
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let _registration = cache.register_shrinker(CountingShrinker(Arc::default(), 1000));
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).map(|object| object.addr()));
        wait_until(|| cache.info().waiting == 1);
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(objects[0]) };
        assert_eq!(waiter.join().unwrap(), Ok(objects[0].addr()));
    });
    // SAFETY: the objects were allocated above, and each is freed once; the waiter got the first object again.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert_eq!(cache.info().used, 0);
}

/// In this test, the subsystem has no shrinkers and the process has no readers.
#[cfg(target_os = "linux")]
#[test]
fn waiter_without_shrinkers_sleeps_until_its_timeout() {
    use nix::sys::resource::{UsageWho::RUSAGE_THREAD, getrusage};
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    let sleeps = || getrusage(RUSAGE_THREAD).unwrap().voluntary_context_switches();
    let before = sleeps();
    assert!(cache.acquire_timeout(Gfp::KERNEL, Duration::from_millis(200)).is_err());
    assert!(sleeps() - before < 10, "{}", sleeps() - before);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// In this test, no other thread advances the RCU collector.
#[test]
fn waiter_gets_a_type_stable_slab_after_readers_unpin() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    on_cpu(0);
    let cache = KmemCache::builder("stable", 1000).type_stable().limit(Limit::Slabs(1));
    let cache = cache.build_in(&subsystem).unwrap();
    let reader = uslab::rcu::pin();
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    assert_eq!((cache.shrink(), cache.info().grace), (1, 1));
    drop(reader);
    let object = cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).unwrap();
    // SAFETY: the object was allocated just now.
    unsafe { cache.free(object) };
}

#[test]
fn acquire_future_gets_deferred_objects_after_a_reap() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    let reader = uslab::rcu::pin();
    // SAFETY: the object was allocated above, is freed once, and is not read afterwards.
    unsafe { cache.free_deferred(objects.pop().unwrap()) };
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    drop(reader);
    let acquired = (0..1000).find_map(|_| {
        subsystem.end_interval();
        std::thread::yield_now();
        poll(&mut acquire)
    });
    objects.push(acquired.unwrap().unwrap());
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

#[test]
fn caches_competing_for_an_account_lose_no_object() {
    let subsystem = subsystem(4);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let caches = [1000, 500, 2000].map(|size| {
        KmemCache::builder(format!("tenant-{size}"), size).account(&account).build_in(&subsystem).unwrap()
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let caches = &caches;
            scope.spawn(move || {
                on_cpu(thread);
                for round in 0..if cfg!(miri) { 3 } else { 60 } {
                    let cache = &caches[(thread as usize + round) % 3];
                    let mut objects_held = vec![];
                    // A thread that holds objects does not wait, because other threads may hold objects.
                    while let Ok(block) = cache.alloc_block(Gfp::KERNEL) {
                        objects_held.push(block);
                    }
                    drop(objects_held);
                    let object = cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).unwrap();
                    // SAFETY: the object was allocated just now.
                    unsafe { cache.free(object) };
                }
            });
        }
    });
    assert!(account.peak() <= bytes);
    subsystem.check().unwrap();
    drop(caches);
    assert_eq!(account.charged(), 0);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn zero_on_free_cache_erases_all_user_data() {
    for (check, magazines) in [(false, Magazines::BySize), (true, SMALL), (false, Magazines::Off)] {
        let subsystem = subsystem(1);
        on_cpu(0);
        let cache = KmemCache::builder("secret", 100).zero_on_free().check_frees(check).magazines(magazines);
        let cache = cache.build_in(&subsystem).unwrap();
        let objects: Vec<_> = (0..50).map(|_| cache.alloc(Gfp::ZERO).unwrap()).collect();
        for object in &objects {
            // SAFETY: this thread owns the object of 100 bytes.
            unsafe { object.write_bytes(7, 100) };
        }
        for object in &objects {
            // SAFETY: the objects were allocated above, and each is freed once; the subsystem keeps the pages, which
            // are not used again.
            unsafe {
                cache.free(*object);
                assert_eq!(std::slice::from_raw_parts(object.as_ptr(), 100), [0; 100]);
            }
        }
    }
}

/// A wait at a limit of 0 would never end.
#[test]
fn acquire_does_not_wait_at_limit_zero() {
    let subsystem = subsystem(1);
    let zero_limit_cache =
        KmemCache::builder("none", 1000).limit(Limit::Slabs(0)).build_in(&subsystem).unwrap();
    assert_eq!(
        poll(&mut zero_limit_cache.acquire(Gfp::KERNEL)),
        Some(Err(AllocError::CacheLimit { slabs: 0 }))
    );
    assert_eq!(
        zero_limit_cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT),
        Err(AllocError::CacheLimit { slabs: 0 })
    );
    let account = Account::new_in(&subsystem, 100);
    let zero_limit_cache = KmemCache::builder("small", 1000).account(&account).build_in(&subsystem).unwrap();
    assert_eq!(
        poll(&mut zero_limit_cache.acquire(Gfp::KERNEL)),
        Some(Err(AllocError::AccountLimit { bytes: 100 }))
    );
    assert_eq!(
        zero_limit_cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT),
        Err(AllocError::AccountLimit { bytes: 100 })
    );
}

/// Regression test: the end of a wait reopened the magazines of a dropped cache, so freeing its last object did not
/// free the cache.
#[test]
fn dropped_cache_with_account_waiters_is_freed() {
    let subsystem = Subsystem::new(Config { check_frees: false, ..config(1, 1, 64 << 20) }).unwrap();
    on_cpu(0);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let left_cache = ObjectCache::builder("left").ctor(|| [0_u8; 1000]).account(&account);
    let left_cache = left_cache.build_in(&subsystem).unwrap();
    let mut owned_objects: Vec<_> = (0..3).map(|_| left_cache.alloc_owned().unwrap()).collect();
    drop(left_cache);
    let cache = KmemCache::builder("waits", 1000).account(&account).build_in(&subsystem).unwrap();
    let (objects_held, _) = alloc_all_blocks(&cache);
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    drop(acquire);
    while owned_objects.pop().is_some() {}
    assert!(subsystem.info().caches.iter().all(|cache| cache.name != "left"));
    drop(objects_held);
}

/// Regression test: in a forked child, the magazines of all caches of the account stayed closed.
#[test]
fn forked_child_has_no_waiter_for_an_account() {
    use uslab::Fork;
    let subsystem = subsystem(1);
    on_cpu(0);
    let (bytes, _) = account_limit_of_four_slabs(&subsystem);
    let account = Account::new_in(&subsystem, bytes);
    let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
    let (cache, other_cache) = (build("waits"), build("other"));
    let block = other_cache.alloc_block(Gfp::KERNEL).unwrap();
    let (objects_held, _) = alloc_all_blocks(&cache);
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    // The second fork finds no wait to end.
    for _ in 0..2 {
        // SAFETY: this thread continues as the child's would, and no other thread uses the subsystem.
        unsafe {
            subsystem.before_fork();
            subsystem.after_fork_in_child();
        }
    }
    drop(block);
    drop(other_cache.alloc_block(Gfp::KERNEL).unwrap());
    assert!(other_cache.info().in_magazines > 0, "the cache's magazines must be open");
    drop((acquire, objects_held));
    assert_eq!(cache.info().waiting, 0);
    drop((cache, other_cache));
    assert_all_memory_returned(&subsystem);
}

/// Regression test: a waiter for an account continued to wait after its cache was destroyed, and its allocation failed
/// with the account's error.
#[test]
fn acquire_from_a_destroyed_cache_does_not_wait() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
    let (full_cache, dropped_cache) = (build("full"), build("gone"));
    account.set_limit(full_cache.geometry().order().bytes());
    let (mut objects_held, _) = alloc_all_blocks(&full_cache);
    let counting_waker = Arc::new(CountingWaker::default());
    let mut waiting = dropped_cache.acquire(Gfp::KERNEL);
    let waker = Waker::from(counting_waker.clone());
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    dropped_cache.destroy().unwrap();
    assert_eq!(counting_waker.0.get(), 1);
    assert_eq!(poll(&mut waiting), Some(Err(AllocError::Destroyed)));
    assert_eq!(dropped_cache.alloc(Gfp::KERNEL), Err(AllocError::Destroyed));
    objects_held.truncate(objects_held.len() - 2);
    assert!(full_cache.info().in_magazines > 0, "no caller may wait for the account");
}

/// In this test, the shrinker frees enough objects before it panics. Regression test: the panic of a shrinker ended the
/// allocation.
#[test]
fn allocation_uses_objects_freed_by_a_panicking_shrinker() {
    struct Drops(Mutex<Vec<uslab::OwnedBox<u64>>>);
    impl uslab::Shrinker for Drops {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            self.0.lock().pop();
            panic!("intended panic")
        }
    }
    let subsystem = subsystem(1);
    on_cpu(0);
    let cache =
        ObjectCache::builder("idle").ctor(|| 7_u64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let objects = std::iter::from_fn(|| cache.alloc_owned().ok()).collect();
    let _registered = cache.register_shrinker(Drops(Mutex::new(objects)));
    assert_eq!(*cache.alloc().unwrap(), 7);
}

/// Regression test: the panic of a shrinker ended the allocation, and the reaper called no shrinker afterwards.
#[test]
fn panicking_shrinker_does_not_stop_later_shrinkers() {
    struct Panics;
    impl uslab::Shrinker for Panics {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            panic!("intended panic")
        }
    }
    struct ObjectsOfCache(Mutex<Vec<std::ptr::NonNull<u8>>>, Arc<KmemCache>);
    // SAFETY: the objects belong to a cache, and any thread may free them.
    unsafe impl Send for ObjectsOfCache {}
    // SAFETY: the objects are under a lock, and any thread may free them.
    unsafe impl Sync for ObjectsOfCache {}
    impl uslab::Shrinker for ObjectsOfCache {
        fn count(&self) -> usize {
            self.0.lock().len()
        }
        fn scan(&self, objects: usize, _: Gfp) -> usize {
            let mut idle = self.0.lock();
            let objects = objects.min(idle.len());
            // SAFETY: the objects were allocated below, and each is freed once.
            idle.drain(..objects).for_each(|object| unsafe { self.1.free(object) });
            objects
        }
    }
    let subsystem = subsystem(1);
    on_cpu(0);
    let (cache, objects) = fill_to_limit(&subsystem);
    let cache = Arc::new(cache);
    let held_by_shrinker = Arc::new(ObjectsOfCache(Mutex::new(objects), cache.clone()));
    let _registered = [cache.register_shrinker(Panics), cache.register_shrinker(held_by_shrinker.clone())];
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    let remaining = std::mem::take(&mut *held_by_shrinker.0.lock());
    for object in remaining.into_iter().chain([object]) {
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
    }
}

/// Regression test: a panic in the reaper aborted the process.
#[test]
fn panicking_shrinker_does_not_end_the_reaper() {
    struct Panics(std::thread::ThreadId);
    impl uslab::Shrinker for Panics {
        fn count(&self) -> usize {
            assert_eq!(std::thread::current().id(), self.0, "intended panic");
            0
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            0
        }
    }
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 64 << 20) }).unwrap();
    let (cache, objects) = fill_to_limit(&subsystem);
    let _registered = cache.register_shrinker(Panics(std::thread::current().id()));
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    let start_time = std::time::Instant::now();
    while subsystem.info().reaper.intervals < 3 {
        assert!(start_time.elapsed() < LONG_TIMEOUT, "{:?}", subsystem.info().reaper);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(acquire);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// Regression test: the start of the reaper thread was tried again only when the subsystem had grown to 16 MiB.
#[test]
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn waiter_retries_to_start_the_reaper_thread() {
    use nix::sys::resource::{Resource, setrlimit};
    if !crate::process::is_alone("waiting::waiter_retries_to_start_the_reaper_thread") {
        return;
    }
    let reap_every = Some(Duration::from_millis(1));
    let subsystem = Subsystem::new(Config { reap_every, ..config(1, 1, 4 << 20) }).unwrap();
    let (cache, objects) = fill_to_limit(&subsystem);
    let reaper = || subsystem.info().reaper;
    let wait = || assert_eq!(poll(&mut cache.acquire(Gfp::KERNEL)), None);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let memory_used = statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    // The limit leaves too little for a thread's stack.
    setrlimit(Resource::RLIMIT_AS, memory_used + (1 << 20), 1 << 62).unwrap();
    wait();
    assert_eq!((reaper().refused, reaper().thread), (1, ReaperThread::Wanted));
    setrlimit(Resource::RLIMIT_AS, 1 << 62, 1 << 62).unwrap();
    wait();
    assert_eq!(reaper().refused, 1);
    assert_ne!(reaper().thread, ReaperThread::Wanted);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// Regression test: the second waiter retried without end. The account granted a charge, the cache's limit made the
/// waiter return it, and this return woke the same waiter again.
#[test]
fn cache_limit_waiter_sleeps_despite_an_account_waiter() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let large_cache = KmemCache::builder("large", 4000).account(&account).build_in(&subsystem).unwrap();
    let small = KmemCache::builder("small", 64).account(&account).limit(Limit::Slabs(1));
    let small = small.build_in(&subsystem).unwrap();
    assert!(small.geometry().order() < large_cache.geometry().order());
    let (own_objects, _) = alloc_all_blocks(&small);
    let objects_held = large_cache.alloc_blocks(Gfp::KERNEL, large_cache.geometry().objects()).unwrap();
    // The account has room for a slab of the smaller cache.
    account.set_limit(account.charged() + small.geometry().order().bytes());
    let (mut first, mut second) = (large_cache.acquire(Gfp::KERNEL), small.acquire(Gfp::KERNEL));
    assert_eq!([poll(&mut first), poll(&mut second)], [None, None]);
    drop((first, second));
    drop((own_objects, objects_held));
}

/// Regression test: freed objects stayed in a list of the thread that had freed them, while that thread slept.
#[test]
fn waiter_gets_deferred_objects_after_readers_unpin() {
    let _readers = crate::common::READERS.lock();
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    // SAFETY: the objects were allocated above, each is freed once, and none is read afterwards.
    objects.into_iter().for_each(|object| unsafe { cache.free_deferred(object) });
    let object = cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).unwrap();
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
}

/// Waits until a thread or future is waiting for an object of the cache; the waiter is asleep, or will be soon.
fn wait_until_asleep(cache: &KmemCache) {
    wait_until(|| cache.info().waiting == 1);
    std::thread::sleep(Duration::from_millis(20));
}

/// Regression test: a waiter slept until its timeout, because it had searched for deferred objects only before any
/// object was deferred.
#[test]
fn sleeping_waiter_gets_objects_deferred_during_its_sleep() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    let (cache, objects) = fill_to_limit(&subsystem);
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).map(|object| object.addr()));
        wait_until_asleep(&cache);
        // SAFETY: the object was allocated above, is freed once, and is not read afterwards.
        unsafe { cache.free_deferred(objects[0]) };
        assert_eq!(waiter.join().unwrap(), Ok(objects[0].addr()));
    });
    // SAFETY: the objects were allocated above, and each is freed once; the waiter got the first object again.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// Regression test: a waiter searched only its own cache for deferred objects.
#[test]
fn account_waiter_gets_deferred_memory_of_another_cache() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    on_cpu(0);
    for (type_stable, before) in [(true, true), (true, false), (false, true), (false, false)] {
        let account = Account::new_in(&subsystem, usize::MAX);
        let build = |name| KmemCache::builder(name, 1000).account(&account);
        let other_cache = if type_stable { build("other").type_stable() } else { build("other") };
        let [other_cache, cache] =
            [other_cache, build("waits")].map(|builder| builder.build_in(&subsystem).unwrap());
        account.set_limit(other_cache.geometry().order().bytes());
        let object = other_cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated above, is freed once, and is not read afterwards.
        let give_up = || unsafe {
            if type_stable {
                other_cache.free(object);
                assert!(other_cache.shrink() == 1 || !before);
            } else {
                other_cache.free_deferred(object);
            }
        };
        std::thread::scope(|scope| {
            let wait = || cache.acquire_timeout(Gfp::KERNEL, LONG_TIMEOUT).map(|object| object.addr());
            let waiter = if before {
                give_up();
                scope.spawn(wait)
            } else {
                let waiter = scope.spawn(wait);
                wait_until_asleep(&cache);
                give_up();
                waiter
            };
            let thread_result = waiter.join().unwrap();
            assert!(thread_result.is_ok(), "type stable: {type_stable}, before: {before}: {thread_result:?}");
        });
    }
}

/// Regression test: a new shrinker was called only by allocations, and not by waiters.
#[test]
fn waiter_calls_a_shrinker_registered_during_its_wait() {
    let subsystem = subsystem(1);
    let cache = ObjectCache::builder("idle").ctor(|| [0_u8; 1000]).limit(Limit::Slabs(1));
    let cache = cache.build_in(&subsystem).unwrap();
    let idle = Arc::new(Mutex::new(std::iter::from_fn(|| cache.alloc_owned().ok()).collect()));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.acquire_timeout(LONG_TIMEOUT).map(drop));
        wait_until(|| cache.info().waiting == 1);
        std::thread::sleep(Duration::from_millis(20));
        let _registration = cache.register_shrinker(Idle(Arc::clone(&idle)));
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    idle.lock().clear();
}

/// A waker that panics when it is woken.
struct Panics;
impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("intended panic of a waker");
    }
}

fn poll_with_waker<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Regression test: an object that a waiter had already received was lost when a waker panicked.
#[test]
fn served_waiter_keeps_its_object_after_a_waker_panics() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let cache = KmemCache::builder("tenant", 1000).account(&account).build_in(&subsystem).unwrap();
    let bytes = cache.geometry().order().bytes();
    account.set_limit(bytes);
    let (objects_held, _) = alloc_all_blocks(&cache);
    let [mut first, mut second] = [(); 2].map(|()| cache.acquire(Gfp::KERNEL));
    assert_eq!(poll(&mut first), None);
    assert_eq!(poll_with_waker(&mut second, &Waker::from(Arc::new(Panics))), None);
    account.set_limit(2 * bytes);
    let objects = [first, second].map(|mut future| poll(&mut future).unwrap().unwrap());
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    drop(objects_held);
    assert_eq!((cache.info().used, cache.destroy()), (0, Ok(())));
}

/// Regression test: when a waker panicked, the later waiters were not woken.
#[test]
fn panicking_waker_does_not_stop_later_wake_ups() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let account = Account::new_in(&subsystem, usize::MAX);
    let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
    let (full_cache, caches) = (build("full"), [build("first"), build("second")]);
    let bytes = full_cache.geometry().order().bytes();
    account.set_limit(bytes);
    let (objects_held, _) = alloc_all_blocks(&full_cache);
    let wakers = [(); 2].map(|()| Arc::new(CountingWaker::default()));
    let futures = [0, 1].map(|i| {
        let [mut panics, mut counts] = [(); 2].map(|()| caches[i].acquire(Gfp::KERNEL));
        assert_eq!(poll_with_waker(&mut panics, &Waker::from(Arc::new(Panics))), None);
        assert_eq!(poll_with_waker(&mut counts, &Waker::from(wakers[i].clone())), None);
        (panics, counts)
    });
    // All waiters are woken although some panic: after a new limit, then after a freed object.
    account.set_limit(3 * bytes);
    for (i, (panics, mut counts)) in futures.into_iter().enumerate() {
        drop(panics);
        assert_eq!(wakers[i].0.get(), 1);
        let object = poll(&mut counts).unwrap().unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { caches[i].free(object) };
    }
    drop(objects_held);
}

/// Regression test: a waiter stayed in the queue after dropping its waker had panicked.
#[test]
fn waker_panicking_in_drop_loses_no_object() {
    use std::task::{RawWaker, RawWakerVTable};
    const VTABLE: RawWakerVTable = RawWakerVTable::new(
        |_| RawWaker::new(std::ptr::null(), &VTABLE),
        |_| (),
        |_| (),
        |_| panic!("intended panic of a waker"),
    );
    let subsystem = subsystem(1);
    on_cpu(0);
    let (cache, mut objects) = fill_to_limit(&subsystem);
    // SAFETY: no function of the vtable uses the pointer.
    let waker = std::mem::ManuallyDrop::new(unsafe { Waker::new(std::ptr::null(), &VTABLE) });
    let [mut first, mut second, mut third_acquire] = [(); 3].map(|()| cache.acquire(Gfp::KERNEL));
    for future in [&mut first, &mut second, &mut third_acquire] {
        assert_eq!((poll_with_waker(future, &waker), poll_with_waker(future, &waker)), (None, None));
    }
    drop(second);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(objects.pop().unwrap()) };
    objects.push(poll_with_waker(&mut first, &waker).unwrap().unwrap());
    assert_eq!(cache.info().waiting, 1);
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    drop(third_acquire);
    assert_eq!((cache.info().used, cache.info().waiting, cache.destroy()), (0, 0, Ok(())));
}

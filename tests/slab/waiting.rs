//! Waiting at a limit, on threads and in futures.

use crate::common::{assert_all_given_back, config, subsystem};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use uslab::cache::Acquire;
use uslab::{AllocError, CacheBox, Gfp, KmemCache, Limit, Magazines, ObjectCache, Subsystem};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::Counter;

const LONG: Duration = Duration::from_secs(60);
const SMALL: Magazines = Magazines::Sized { capacity: 3, stock: 2, depot_limit: 1 };

/// A waker that counts.
#[derive(Default)]
struct Woken(Counter);
impl Wake for Woken {
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

/// A cache of one slab, all of whose objects are out.
fn at_the_limit(subsystem: &Subsystem) -> (KmemCache, Vec<std::ptr::NonNull<u8>>) {
    let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(subsystem).unwrap();
    let objects = (0..cache.geometry().objects()).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    (cache, objects)
}

#[test]
fn below_the_limit_nobody_waits() {
    let subsystem = subsystem(1);
    let cache =
        ObjectCache::builder("free").ctor(|| 7_u64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let object = poll(&mut pin!(cache.acquire())).unwrap().unwrap();
    assert_eq!((*object, *cache.acquire_timeout(Duration::ZERO).unwrap()), (7, 7));
    drop(object);
    assert!(cache.info().in_magazines > 0, "the magazines are open");
}

#[test]
fn other_errors_are_not_waited_for() {
    let subsystem = Subsystem::new(config(1, 1, 1 << 20)).unwrap();
    let cache = KmemCache::builder("all", 4096).build_in(&subsystem).unwrap();
    let _all: Vec<_> = std::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    assert!(matches!(cache.acquire_timeout(Gfp::KERNEL, LONG), Err(AllocError::Memory(_))));
}

#[test]
fn a_time_that_is_over_is_the_limit_s_error_and_leaves_no_trace() {
    let subsystem = subsystem(1);
    let (cache, objects) = at_the_limit(&subsystem);
    let limit = Err(AllocError::CacheLimit { slabs: 1 });
    assert_eq!(cache.acquire_timeout(Gfp::KERNEL, Duration::from_millis(5)), limit);
    assert_eq!(cache.acquire_timeout(Gfp::KERNEL, Duration::ZERO), limit);
    // SAFETY: allocated above, freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert!(cache.info().in_magazines > 0, "the magazines are open again");
    drop(cache);
    assert_all_given_back(&subsystem);
}

/// The executor may have polled with another waker than at first.
#[test]
fn the_last_waker_is_woken_once_and_what_it_was_given_waits_for_it() {
    let subsystem = subsystem(1);
    let (cache, mut objects) = at_the_limit(&subsystem);
    let wakers = [(); 2].map(|()| Arc::new(Woken::default()));
    let mut acquire = cache.acquire(Gfp::KERNEL);
    for woken in &wakers {
        let waker = Waker::from(woken.clone());
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    for _ in 0..2 {
        // SAFETY: allocated above, freed once.
        unsafe { cache.free(objects.pop().unwrap()) };
    }
    assert_eq!(wakers.map(|woken| woken.0.get()), [0, 1]);
    // Nobody waits: the second one is anybody's. The first is not.
    objects.push(cache.alloc(Gfp::KERNEL).unwrap());
    assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::CacheLimit { slabs: 1 }));
    objects.push(poll(&mut acquire).unwrap().unwrap());
    // SAFETY: as above.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
}

/// It is as a box that is forgotten.
#[test]
fn a_future_that_is_forgotten_takes_one_object_with_it_and_stops_nobody() {
    let subsystem = subsystem(1);
    let (cache, objects) = at_the_limit(&subsystem);
    let [mut first, mut second] = [(); 2].map(|()| cache.acquire(Gfp::KERNEL));
    assert_eq!((poll(&mut first), poll(&mut second)), (None, None));
    std::mem::forget(first);
    // SAFETY: allocated above, freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    let object = poll(&mut second).unwrap().unwrap();
    // SAFETY: as above.
    unsafe { cache.free(object) };
    assert_eq!(cache.info().used, 1);
}

/// A constructor that panics does so in who made the slab; the next one tries again.
#[test]
fn a_constructor_that_panics_stops_nobody_who_waits() {
    let subsystem = subsystem(1);
    let panics = Arc::new(Counter::new(0));
    let left = panics.clone();
    let construct = move || {
        if left.get() > 0 {
            left.sub(1);
            panic!("not now");
        }
        [0_u8; 1000]
    };
    let cache =
        ObjectCache::builder("p").ctor(construct).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let all = cache.alloc_bulk(32).unwrap();
    let mut futures: Vec<_> = (0..2).map(|_| Box::pin(cache.acquire())).collect();
    assert!(futures.iter_mut().all(|future| poll(future).is_none()));
    // Given to both, and given up by both.
    drop(all);
    drop(futures.split_off(0));
    assert_eq!((cache.info().used, cache.shrink()), (0, 1));
    panics.set(1);
    let mut acquire = || {
        let polled = || poll(&mut pin!(cache.acquire())).map(|object| object.map(drop));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(polled))
    };
    assert!(acquire().is_err());
    assert_eq!(acquire().unwrap(), Some(Ok(())));
}

#[test]
fn a_cache_that_is_destroyed_tells_who_waits() {
    let subsystem = subsystem(1);
    let (cache, objects) = at_the_limit(&subsystem);
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    assert!(cache.destroy().is_err(), "objects are in use");
    // SAFETY: allocated above, freed once.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    let object = poll(&mut acquire).unwrap().unwrap();
    // SAFETY: as above.
    unsafe { cache.free(object) };
    cache.destroy().unwrap();
    assert_eq!(poll(&mut cache.acquire(Gfp::KERNEL)), Some(Err(AllocError::Destroyed)));
}

#[test]
fn a_child_of_a_fork_has_no_one_who_waits() {
    use uslab::Fork;
    let subsystem = subsystem(1);
    let (cache, mut objects) = at_the_limit(&subsystem);
    let mut acquire = cache.acquire(Gfp::KERNEL);
    assert_eq!(poll(&mut acquire), None);
    // SAFETY: this thread goes on as the child's would, and no other one uses the subsystem.
    unsafe {
        subsystem.before_fork();
        subsystem.after_fork_in_child();
    }
    for _ in 0..2 {
        // SAFETY: allocated above, freed once.
        unsafe { cache.free(objects.pop().unwrap()) };
    }
    objects.push(cache.alloc(Gfp::KERNEL).unwrap());
    // The future goes on as a new one.
    objects.push(poll(&mut acquire).unwrap().unwrap());
    // SAFETY: as above.
    objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert_eq!(cache.info().used, 0);
}

#[test]
fn threads_and_tasks_wait_in_one_queue() {
    let subsystem = subsystem(2);
    let cache = ObjectCache::builder("mixed").ctor(|| [0_u8; 1000]).limit(Limit::Slabs(1));
    let cache = &cache.build_in(&subsystem).unwrap();
    let mut all = VecDeque::from(cache.alloc_bulk(32).unwrap());
    let (says, order) = channel();
    std::thread::scope(|scope| {
        let mut future = Box::pin(cache.acquire());
        assert!(poll(&mut future).is_none());
        scope.spawn(move || {
            on_cpu(1);
            let object = cache.acquire_timeout(LONG).unwrap();
            says.send(()).unwrap();
            drop(object);
        });
        // It is the future's turn, whether the thread is there yet or not.
        drop(all.pop_front());
        assert!(order.recv_timeout(Duration::from_millis(20)).is_err());
        let object = poll(&mut future).unwrap().unwrap();
        drop(all.pop_front());
        order.recv().unwrap();
        drop(object);
    });
}

/// As a pool of connections: many more clients than objects, some of whom lose patience.
#[test]
fn under_contention_everybody_is_served_and_nothing_is_lost() {
    for magazines in [Magazines::BySize, Magazines::Off, SMALL] {
        let subsystem = subsystem(4);
        let cache = ObjectCache::builder("pool").ctor(|| 0_u64).align(2048).magazines(magazines);
        let cache = &cache.limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let served = Counter::new(0);
        let (threads, rounds) = (6, if cfg!(miri) { 5 } else { 400 });
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let served = &served;
                scope.spawn(move || {
                    on_cpu(thread % 4);
                    for round in 0..rounds {
                        // Every other one has no time at all.
                        let timeout =
                            if (round + thread) % 2 == 0 { LONG } else { Duration::from_micros(20) };
                        match cache.acquire_timeout(timeout) {
                            Ok(mut object) => {
                                *object += 1;
                                served.add(1);
                            }
                            Err(error) => {
                                assert!(timeout != LONG, "{error}");
                                assert_eq!(error, AllocError::CacheLimit { slabs: 1 });
                            }
                        }
                    }
                });
            }
        });
        let all = cache.alloc_bulk(16).unwrap();
        assert_eq!(all.iter().map(|object| **object).sum::<u64>(), served.get());
        drop(all);
        assert_eq!(cache.info().used, 0);
        subsystem.check().unwrap();
    }
}

/// What one thread does with a cache of a few objects.
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
    /// Beside a queue of numbers: whoever is polled has an object if, and only if, its turn has come.
    #[test]
    fn who_waits_is_served_in_the_order_of_arrival(ops in ops(), slabs in 1..3_u32) {
        on_cpu(0);
        let subsystem = subsystem(1);
        let cache = KmemCache::builder("q", 2048).align(2048).magazines(SMALL).limit(Limit::Slabs(slabs));
        let cache = cache.build_in(&subsystem).unwrap();
        let most = slabs as usize * cache.geometry().objects();
        let mut held = vec![];
        // Those who wait, and those who were given something; each is polled once before.
        let (mut waiting, mut given) = (VecDeque::<Acquire<'_>>::new(), vec![]);
        for op in ops {
            match op {
                Op::Begin => {
                    let mut acquire = cache.acquire(Gfp::KERNEL);
                    match poll(&mut acquire) {
                        Some(object) => held.push(object.unwrap()),
                        None => {
                            prop_assert_eq!(held.len() + given.len(), most, "who comes waits at the limit only");
                            waiting.push_back(acquire);
                        }
                    }
                }
                Op::Poll(at) if !given.is_empty() => {
                    let mut acquire: Acquire<'_> = given.swap_remove(at.index(given.len()));
                    held.push(poll(&mut acquire).expect("it was given an object").unwrap());
                }
                Op::Poll(at) if !waiting.is_empty() => {
                    let at = at.index(waiting.len());
                    prop_assert!(poll(&mut waiting[at]).is_none(), "its turn has not come");
                }
                Op::Cancel(at) => {
                    let at = at.index(waiting.len() + given.len() + 1);
                    if at < waiting.len() {
                        drop(waiting.remove(at));
                    } else if at - waiting.len() < given.len() {
                        drop(given.swap_remove(at - waiting.len()));
                        given.extend(waiting.pop_front());
                    }
                }
                Op::Alloc => match cache.alloc(Gfp::KERNEL) {
                    Ok(object) => {
                        prop_assert!(waiting.is_empty(), "it passed who waits");
                        held.push(object);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, AllocError::CacheLimit { slabs });
                        prop_assert_eq!(held.len() + given.len(), most);
                    }
                },
                Op::Free(at) if !held.is_empty() => {
                    let object = held.swap_remove(at.index(held.len()));
                    // SAFETY: allocated from this cache, freed once.
                    unsafe { cache.free(object) };
                    given.extend(waiting.pop_front());
                }
                Op::Shrink => _ = cache.shrink(),
                Op::Poll(_) | Op::Free(_) => {}
            }
            prop_assert_eq!(cache.info().used as usize, held.len() + given.len());
            subsystem.check().unwrap();
        }
        drop((waiting, given));
        // SAFETY: as above.
        held.into_iter().for_each(|object| unsafe { cache.free(object) });
        prop_assert_eq!(cache.info().used, 0);
    }
}

/// A box of it is `Send`, and so is the future.
#[test]
fn the_futures_may_be_sent() {
    fn sent<T: Send>(_: &T) {}
    let cache =
        ObjectCache::builder("sent").ctor(|| std::cell::Cell::new(1)).build_in(&subsystem(1)).unwrap();
    let future = cache.acquire();
    sent(&future);
    let object: CacheBox<'_, _> = poll(&mut pin!(future)).unwrap().unwrap();
    assert_eq!(object.get(), 1);
}

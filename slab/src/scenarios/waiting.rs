//! Scenarios of waiting at a limit, for loom and shuttle; the cache has one slab, whose two objects are in use.

use super::world::{SMALL, World, alloc_constructed, constructing_builder};
use crate::cache::core::Core;
use crate::cache::{Account, Acquiring};
use crate::debug::check::{SPACING, on_cpu};
use crate::{AllocError, Config, Gfp, KmemCache, Limit, Magazines};
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use std::time::Duration;
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::{Arc, thread};

const LIMIT: AllocError = AllocError::CacheLimit { slabs: 1 };

/// Makes a cache at its limit. After a deadlock, nothing may be dropped, because loom has no thread left that could run
/// the drop.
fn at_the_limit() -> (ManuallyDrop<Arc<World>>, [NonNull<u8>; 2]) {
    let world = World::new(2, SMALL, &[Some(1)]);
    let objects = [world.alloc(), world.alloc()];
    (ManuallyDrop::new(world), objects)
}
/// Makes caches that share an account of one page.
fn of_an_account(magazines: Magazines, caches: usize) -> (ManuallyDrop<Arc<World>>, Account) {
    let core = Core::new(Config { magazines, ..Config::for_models(2) }).unwrap();
    let account = Account::on(&core, PAGE_SIZE);
    let build = |_| KmemCache::builder("model", SPACING).account(&account);
    (ManuallyDrop::new(World::on(core, (0..caches).map(build))), account)
}

/// Polls once, with a waker that does nothing; returns `None` if the future waits.
fn poll(acquire: &mut Acquiring<'_>) -> Option<Result<NonNull<u8>, AllocError>> {
    match Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn wait(world: &World) -> Result<NonNull<u8>, AllocError> {
    let object = world.cache().acquire_timeout(Gfp::KERNEL, Duration::MAX)?;
    world.touch(object);
    Ok(object)
}

/// Polls a future once, frees the object if it got one, and drops the future.
fn join_and_leave(world: &World) {
    let mut acquire = world.cache().acquire(Gfp::KERNEL);
    if let Some(object) = poll(&mut acquire) {
        world.free(object.unwrap());
    }
}

/// Runs `what` with the given objects in another thread, on the other CPU.
fn run_beside<const N: usize>(
    world: &ManuallyDrop<Arc<World>>,
    objects: [NonNull<u8>; N],
    what: impl FnOnce(&World, [NonNull<u8>; N]) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (other, addresses) = (world.clone(), objects.map(|object| object.as_ptr().expose_provenance()));
    let object = |at| NonNull::new(core::ptr::with_exposed_provenance_mut(at)).unwrap();
    thread::spawn(move || {
        on_cpu(1);
        what(&other, addresses.map(object));
        drop(ManuallyDrop::into_inner(other));
    })
}
/// Runs `what` in `threads` other threads, which get no objects.
fn in_other_threads(
    world: &ManuallyDrop<Arc<World>>,
    threads: usize,
    what: impl Fn(&World) + Copy + Send + 'static,
) -> impl Iterator<Item = thread::JoinHandle<()>> {
    let threads: Vec<_> = (0..threads).map(|_| run_beside(world, [], move |world, []| what(world))).collect();
    threads.into_iter()
}
fn join_all(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
fn free_all<const N: usize>(world: &World, objects: [NonNull<u8>; N]) {
    objects.into_iter().for_each(|object| world.free(object));
}

/// L2: `waiters` threads (at most two) sleep until another thread frees one object for each of them. If a wake-up is
/// lost, the scenario deadlocks.
pub(super) fn waiters_are_woken(waiters: usize) {
    let (world, [a, b]) = at_the_limit();
    let wait_and_free = |world: &World| world.free(wait(world).unwrap());
    let others = in_other_threads(&world, waiters - 1, wait_and_free);
    let t = run_beside(&world, [a], free_all);
    wait_and_free(&world);
    t.join().unwrap();
    join_all(others);
    world.census(1);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L2: a thread waits for an object that another thread destructs. The waiter gets that object and constructs it. If a
/// wake-up is lost, the scenario deadlocks.
pub(super) fn a_destructed_object_wakes_a_waiter() {
    let world = ManuallyDrop::new(World::of(2, SMALL, [constructing_builder().limit(Limit::Slabs(1))]));
    let [a, b] = [(); 2].map(|()| alloc_constructed(&world));
    let t = run_beside(&world, [a], |world, [a]| {
        world.free(a);
        world.cache().shrink();
    });
    let own_object = wait(&world).unwrap();
    // SAFETY: this thread owns the object.
    assert_eq!(unsafe { own_object.read() }, 7, "each allocated object is constructed");
    t.join().unwrap();
    world.free(own_object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L2: a thread sleeps until another thread defers a free; only the waiter advances the collector. If a wake-up is
/// lost, the scenario deadlocks.
#[cfg(shuttle)]
pub(super) fn a_deferred_free_wakes_a_waiter() {
    let (world, [a, b]) = at_the_limit();
    // SAFETY: the object was allocated above, and is freed once.
    let t = run_beside(&world, [a], |world, [a]| unsafe { world.cache().free_deferred(a) });
    let own_object = wait(&world).unwrap();
    t.join().unwrap();
    world.free(own_object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L3: if two threads wait, the first one gets the freed object. Allocations that do not wait get no object, not even
/// the allocations that `others` threads make.
pub(super) fn the_first_is_served_first(others: usize) {
    let (world, [a, b]) = at_the_limit();
    let [mut first, mut second] = [(); 2].map(|()| world.cache().acquire(Gfp::KERNEL));
    assert_eq!([poll(&mut first), poll(&mut second)], [None, None], "both threads wait");
    let allocates =
        |world: &World| assert_eq!(world.alloc_of(0), Err(LIMIT), "an allocation must not overtake a waiter");
    let others = in_other_threads(&world, others, allocates);
    let t = run_beside(&world, [a], free_all);
    allocates(&world);
    t.join().unwrap();
    join_all(others);
    assert_eq!(poll(&mut second), None, "the second waiter must not overtake the first");
    let Some(Ok(object)) = poll(&mut first) else { panic!("the first waiter must get an object") };
    drop((first, second));
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L3: a waiter joins before the first waiter has drained the CPUs, while `others` waiters join and leave. A later
/// allocation must get no object, not even on a CPU that has an object.
pub(super) fn a_joining_waiter_is_not_overtaken(others: usize) {
    let (world, [a, b]) = at_the_limit();
    let others = in_other_threads(&world, others, join_and_leave);
    world.free(a);
    let mut second = world.cache().acquire(Gfp::KERNEL);
    let mut second_result = poll(&mut second);
    if second_result.is_none() {
        assert_eq!(world.alloc_of(0), Err(LIMIT), "an allocation must not overtake a waiter that joined");
    }
    join_all(others);
    second_result = second_result.or_else(|| poll(&mut second));
    drop(second);
    let Some(Ok(object)) = second_result else { panic!("no other thread waits") };
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L4: the first of two waiters leaves while an object is freed, and `others` waiters behind these
/// two also leave.
pub(super) fn a_cancelled_waiter_passes_its_place(others: usize) {
    let (world, [a, b]) = at_the_limit();
    let [mut first, mut second] = [(); 2].map(|()| world.cache().acquire(Gfp::KERNEL));
    assert_eq!([poll(&mut first), poll(&mut second)], [None, None], "both threads wait");
    let others = in_other_threads(&world, others, join_and_leave);
    let t = run_beside(&world, [a], free_all);
    drop(first);
    t.join().unwrap();
    join_all(others);
    let Some(Ok(object)) = poll(&mut second) else {
        panic!("the cancelled waiter's object reaches the next waiter")
    };
    drop(second);
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L5: a waiter's timeout passes while an object is freed. Either the waiter has the object, or another thread can get
/// it. The timeouts of `others` more waiters also pass, and these waiters free the objects that they get.
pub(super) fn a_timeout_during_a_free(others: usize) {
    let (world, [a, b]) = at_the_limit();
    let request_without_wait = |world: &World| world.cache().acquire_timeout(Gfp::KERNEL, Duration::ZERO);
    let others = in_other_threads(&world, others, move |world| {
        request_without_wait(world).into_iter().for_each(|object| world.free(object));
    });
    let t = run_beside(&world, [a], free_all);
    let own_result = request_without_wait(&world);
    t.join().unwrap();
    join_all(others);
    let object = own_result.unwrap_or_else(|error| {
        assert_eq!(error, LIMIT);
        world.alloc_of(0).expect("an object that arrives after the timeout is not lost")
    });
    world.census(2);
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L6: one waiter and `others` more waiters make a slab after the other slab was freed. If a charge is
/// lost, the scenario deadlocks.
pub(super) fn waiters_grow_after_a_slab_is_freed(others: usize) {
    let (world, objects) = at_the_limit();
    let wait_and_free = |world: &World| world.free(wait(world).unwrap());
    let others = in_other_threads(&world, others, wait_and_free);
    let t = run_beside(&world, objects, |world, objects| {
        free_all(world, objects);
        _ = world.cache().shrink();
    });
    let own_object = wait(&world).unwrap();
    t.join().unwrap();
    world.free(own_object);
    join_all(others);
    World::end(ManuallyDrop::into_inner(world));
}

/// L8: two caches share an account that allows one page. The first cache holds the only page of the account. `waiters`
/// threads wait in the other cache, and get the page once all objects of the first cache are free. If `another` is
/// true, one more waiter joins earlier, is notified, and leaves. If `shrinks` is true, the first cache is also shrunk,
/// which frees the page. If a charge is lost, the scenario deadlocks.
pub(super) fn waiters_get_memory_of_another_cache_of_the_account(
    waiters: usize,
    another: bool,
    shrinks: bool,
) {
    let (world, account) = of_an_account(SMALL, 2);
    let objects = [world.alloc(), world.alloc()];
    let mut first = another.then(|| world.cache_at(1).acquire(Gfp::KERNEL));
    assert!(first.iter_mut().all(|first| poll(first).is_none()), "the thread waits");
    let waiters = in_other_threads(&world, waiters, |world| {
        let object = world.cache_at(1).acquire_timeout(Gfp::KERNEL, Duration::MAX).unwrap();
        world.free_of(1, object);
    });
    free_all(&world, objects);
    if shrinks {
        _ = world.cache().shrink();
    }
    drop(first);
    join_all(waiters);
    assert!(account.peak() <= PAGE_SIZE, "the account stays within its limit");
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L8: `caches` caches try to make a slab each, although their account allows only one page.
pub(super) fn caches_grow_at_the_account_s_limit(caches: usize) {
    let (world, account) = of_an_account(Magazines::Off, caches);
    let grow = |cache| {
        run_beside(&world, [], move |world, []| {
            world.alloc_of(cache).into_iter().for_each(|object| world.free_of(cache, object));
        })
    };
    let threads: Vec<_> = (1..caches).map(grow).collect();
    let own_object = world.alloc_of(0);
    join_all(threads);
    let slabs: u64 = (0..caches).map(|cache| world.cache_at(cache).info().slabs).sum();
    assert!(slabs <= 1 && account.charged() <= PAGE_SIZE, "the account stays within its limit");
    own_object.into_iter().for_each(|object| world.free(object));
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L9: `waiters` threads wait for an account whose pages are all in use, until the account's limit is raised. If a
/// notification is lost, the scenario deadlocks.
pub(super) fn a_raised_limit_serves_waiters(waiters: usize) {
    let (world, account) = of_an_account(SMALL, 1);
    let objects = [world.alloc(), world.alloc()];
    let waiters = in_other_threads(&world, waiters, |world| {
        let object = world.cache().acquire_timeout(Gfp::KERNEL, Duration::MAX).unwrap();
        world.free(object);
    });
    account.set_limit(2 * PAGE_SIZE);
    join_all(waiters);
    free_all(&world, objects);
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L7: a cache is destroyed while `waiters` threads wait: each waiter gets an object, or an error.
pub(super) fn a_cache_is_destroyed_while_others_wait(waiters: usize) {
    let (world, [a, b]) = at_the_limit();
    let waiters = in_other_threads(&world, waiters, |world| match wait(world) {
        Ok(object) => world.free(object),
        Err(error) => assert_eq!(error, AllocError::Destroyed),
    });
    world.free(a);
    world.free(b);
    let destroyed = world.cache().destroy();
    join_all(waiters);
    assert!(destroyed.is_ok() || world.cache().destroy().is_ok(), "no object is in use");
    World::end(ManuallyDrop::into_inner(world));
}

/// L7: a cache without memory is destroyed, while another cache has all memory of their account. If a notification is
/// lost, the scenario deadlocks.
pub(super) fn a_cache_of_a_full_account_is_destroyed_while_others_wait(waiters: usize) {
    let (world, account) = of_an_account(SMALL, 2);
    let objects = [world.alloc(), world.alloc()];
    let waiters = in_other_threads(&world, waiters, |world| {
        let own_object = world.cache_at(1).acquire_timeout(Gfp::KERNEL, Duration::MAX);
        assert_eq!(own_object, Err(AllocError::Destroyed));
    });
    world.cache_at(1).destroy().unwrap();
    join_all(waiters);
    free_all(&world, objects);
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

//! Scenarios of waiting at a limit, for loom and shuttle. In these scenarios, the cache has one slab, whose two objects
//! are in use.

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

/// Makes a cache that is at its limit. Nothing may be dropped after a deadlock, because loom has no thread left that
/// could run the drop.
fn world_at_cache_limit() -> (ManuallyDrop<Arc<World>>, [NonNull<u8>; 2]) {
    let world = World::new(2, SMALL, &[Some(1)]);
    let objects = [world.alloc(), world.alloc()];
    (ManuallyDrop::new(world), objects)
}
/// Makes caches that share an account of one page.
fn world_with_shared_account(magazines: Magazines, caches: usize) -> (ManuallyDrop<Arc<World>>, Account) {
    let core = Core::new(Config { magazines, ..Config::for_models(2) }).unwrap();
    let account = Account::on(&core, PAGE_SIZE);
    let build = |_| KmemCache::builder("model", SPACING).account(&account);
    (ManuallyDrop::new(World::on(core, (0..caches).map(build))), account)
}

/// Polls the future once, with a waker that does nothing. Returns `None` if the future waits.
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

/// Polls a future once, frees the object if the future got one, and drops the future.
fn poll_once_and_cancel(world: &World) {
    let mut acquire = world.cache().acquire(Gfp::KERNEL);
    if let Some(object) = poll(&mut acquire) {
        world.free(object.unwrap());
    }
}

/// Runs `what` with objects `objects` in another thread, on the other CPU.
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
/// Runs `what` in `threads` other threads, without objects.
fn spawn_threads(
    world: &ManuallyDrop<Arc<World>>,
    threads: usize,
    what: impl Fn(&World) + Copy + Send + 'static,
) -> impl Iterator<Item = thread::JoinHandle<()>> {
    let threads: Vec<_> = (0..threads).map(|_| run_beside(world, [], move |world, []| what(world))).collect();
    threads.into_iter()
}
fn join_all_threads(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
fn free_all<const N: usize>(world: &World, objects: [NonNull<u8>; N]) {
    objects.into_iter().for_each(|object| world.free(object));
}

/// L2: `waiters` threads (at most two) sleep until another thread frees one object for each of them. If a wake-up is
/// lost, the scenario deadlocks.
pub(super) fn wake_waiters_after_free(waiters: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let wait_and_free = |world: &World| world.free(wait(world).unwrap());
    let others = spawn_threads(&world, waiters - 1, wait_and_free);
    let t = run_beside(&world, [a], free_all);
    wait_and_free(&world);
    t.join().unwrap();
    join_all_threads(others);
    world.census(1);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L2: a thread waits for an object that another thread destructs. The waiter gets that object and constructs it. If a
/// wake-up is lost, the scenario deadlocks.
pub(super) fn wake_waiter_by_destruction() {
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

/// L2: a thread sleeps until another thread defers a free. Only the waiter advances the collector. If a wake-up is
/// lost, the scenario deadlocks.
#[cfg(shuttle)]
pub(super) fn wake_waiter_by_deferred_free() {
    let (world, [a, b]) = world_at_cache_limit();
    // SAFETY: the object was allocated above, and is freed once.
    let t = run_beside(&world, [a], |world, [a]| unsafe { world.cache().free_deferred(a) });
    let own_object = wait(&world).unwrap();
    t.join().unwrap();
    world.free(own_object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L3: if two threads wait, the first waiter gets the freed object. Allocations that do not wait must get no object,
/// including allocations by `others` threads.
pub(super) fn serve_waiters_in_order(others: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let [mut first, mut second] = [(); 2].map(|()| world.cache().acquire(Gfp::KERNEL));
    assert_eq!([poll(&mut first), poll(&mut second)], [None, None], "both threads wait");
    let allocates =
        |world: &World| assert_eq!(world.alloc_of(0), Err(LIMIT), "an allocation must not overtake a waiter");
    let others = spawn_threads(&world, others, allocates);
    let t = run_beside(&world, [a], free_all);
    allocates(&world);
    t.join().unwrap();
    join_all_threads(others);
    assert_eq!(poll(&mut second), None, "the second waiter must not overtake the first");
    let Some(Ok(object)) = poll(&mut first) else { panic!("the first waiter must get an object") };
    drop((first, second));
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L3: a waiter joins before the first waiter has drained the CPUs, while `others` other waiters join and leave. A
/// later allocation must get no object, even on a CPU that still has an object.
pub(super) fn prevent_overtaking_of_joiner(others: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let others = spawn_threads(&world, others, poll_once_and_cancel);
    world.free(a);
    let mut second = world.cache().acquire(Gfp::KERNEL);
    let mut second_result = poll(&mut second);
    if second_result.is_none() {
        assert_eq!(world.alloc_of(0), Err(LIMIT), "an allocation must not overtake a waiter that joined");
    }
    join_all_threads(others);
    second_result = second_result.or_else(|| poll(&mut second));
    drop(second);
    let Some(Ok(object)) = second_result else { panic!("no other thread waits") };
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L4: the first of two waiters leaves while an object is freed. `others` further waiters behind the first two also
/// leave.
pub(super) fn cancel_waiter_and_serve_next(others: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let [mut first, mut second] = [(); 2].map(|()| world.cache().acquire(Gfp::KERNEL));
    assert_eq!([poll(&mut first), poll(&mut second)], [None, None], "both threads wait");
    let others = spawn_threads(&world, others, poll_once_and_cancel);
    let t = run_beside(&world, [a], free_all);
    drop(first);
    t.join().unwrap();
    join_all_threads(others);
    let Some(Ok(object)) = poll(&mut second) else {
        panic!("the cancelled waiter's object reaches the next waiter")
    };
    drop(second);
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L5: a waiter's timeout passes while an object is freed. After the timeout, either the waiter has the object, or
/// another thread can get it. The timeouts of `others` further waiters also pass. Further waiters free the objects that
/// they get.
pub(super) fn race_timeout_with_free(others: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let request_without_wait = |world: &World| world.cache().acquire_timeout(Gfp::KERNEL, Duration::ZERO);
    let others = spawn_threads(&world, others, move |world| {
        request_without_wait(world).into_iter().for_each(|object| world.free(object));
    });
    let t = run_beside(&world, [a], free_all);
    let own_result = request_without_wait(&world);
    t.join().unwrap();
    join_all_threads(others);
    let object = own_result.unwrap_or_else(|error| {
        assert_eq!(error, LIMIT);
        world.alloc_of(0).expect("an object that arrives after the timeout is not lost")
    });
    world.census(2);
    world.free(object);
    world.free(b);
    World::end(ManuallyDrop::into_inner(world));
}

/// L6: one waiter and `others` further waiters make a slab after the other slab was freed. If a charge is lost, the
/// scenario deadlocks.
pub(super) fn grow_waiter_after_slab_free(others: usize) {
    let (world, objects) = world_at_cache_limit();
    let wait_and_free = |world: &World| world.free(wait(world).unwrap());
    let others = spawn_threads(&world, others, wait_and_free);
    let t = run_beside(&world, objects, |world, objects| {
        free_all(world, objects);
        _ = world.cache().shrink();
    });
    let own_object = wait(&world).unwrap();
    t.join().unwrap();
    world.free(own_object);
    join_all_threads(others);
    World::end(ManuallyDrop::into_inner(world));
}

/// L8: two caches share an account that allows one page. The first cache holds the account's only page. `waiters`
/// threads wait in the second cache, and get the page once all objects of the first cache are free. If `another` is
/// true, one more waiter joins earlier, is notified, and leaves the queue. If `shrinks` is true, this thread also
/// shrinks the first cache, which frees the page. If a charge is lost, the scenario deadlocks.
pub(super) fn wait_for_memory_of_peer_cache(waiters: usize, another: bool, shrinks: bool) {
    let (world, account) = world_with_shared_account(SMALL, 2);
    let objects = [world.alloc(), world.alloc()];
    let mut first = another.then(|| world.cache_at(1).acquire(Gfp::KERNEL));
    assert!(first.iter_mut().all(|first| poll(first).is_none()), "the thread waits");
    let waiters = spawn_threads(&world, waiters, |world| {
        let object = world.cache_at(1).acquire_timeout(Gfp::KERNEL, Duration::MAX).unwrap();
        world.free_to_cache(1, object);
    });
    free_all(&world, objects);
    if shrinks {
        _ = world.cache().shrink();
    }
    drop(first);
    join_all_threads(waiters);
    assert!(account.peak() <= PAGE_SIZE, "the account stays within its limit");
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L8: `caches` caches each try to make a slab, although their account allows only one page.
pub(super) fn race_growth_at_account_limit(caches: usize) {
    let (world, account) = world_with_shared_account(Magazines::Off, caches);
    let grow = |cache| {
        run_beside(&world, [], move |world, []| {
            world.alloc_of(cache).into_iter().for_each(|object| world.free_to_cache(cache, object));
        })
    };
    let threads: Vec<_> = (1..caches).map(grow).collect();
    let own_object = world.alloc_of(0);
    join_all_threads(threads);
    let slabs: u64 = (0..caches).map(|cache| world.cache_at(cache).info().slabs).sum();
    assert!(slabs <= 1 && account.charged() <= PAGE_SIZE, "the account stays within its limit");
    own_object.into_iter().for_each(|object| world.free(object));
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L9: `waiters` threads wait for an account whose pages are all in use. Raising the account's limit ends the wait. If
/// a notification is lost, the scenario deadlocks.
pub(super) fn raise_limit_for_waiters(waiters: usize) {
    let (world, account) = world_with_shared_account(SMALL, 1);
    let objects = [world.alloc(), world.alloc()];
    let waiters = spawn_threads(&world, waiters, |world| {
        let object = world.cache().acquire_timeout(Gfp::KERNEL, Duration::MAX).unwrap();
        world.free(object);
    });
    account.set_limit(2 * PAGE_SIZE);
    join_all_threads(waiters);
    free_all(&world, objects);
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

/// L7: a cache is destroyed while `waiters` threads wait. Each waiter must get an object or an error.
pub(super) fn destroy_cache_with_waiters(waiters: usize) {
    let (world, [a, b]) = world_at_cache_limit();
    let waiters = spawn_threads(&world, waiters, |world| match wait(world) {
        Ok(object) => world.free(object),
        Err(error) => assert_eq!(error, AllocError::Destroyed),
    });
    world.free(a);
    world.free(b);
    let destroyed = world.cache().destroy();
    join_all_threads(waiters);
    assert!(destroyed.is_ok() || world.cache().destroy().is_ok(), "no object is in use");
    World::end(ManuallyDrop::into_inner(world));
}

/// L7: a cache without memory is destroyed while another cache has all memory of their account. If a notification is
/// lost, the scenario deadlocks.
pub(super) fn destroy_cache_of_full_account(waiters: usize) {
    let (world, account) = world_with_shared_account(SMALL, 2);
    let objects = [world.alloc(), world.alloc()];
    let waiters = spawn_threads(&world, waiters, |world| {
        let own_object = world.cache_at(1).acquire_timeout(Gfp::KERNEL, Duration::MAX);
        assert_eq!(own_object, Err(AllocError::Destroyed));
    });
    world.cache_at(1).destroy().unwrap();
    join_all_threads(waiters);
    free_all(&world, objects);
    drop(account);
    World::end(ManuallyDrop::into_inner(world));
}

//! Forks while other threads use a whole subsystem. The child can use the whole subsystem, and a census in the child
//! reports the objects that were lost in the fork.

use crate::rounds::Rng;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use uslab::{Config, Fork, Gfp, KmemCache, Malloc, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;
use uslab_magazine::sync::catch_panic;
use uslab_magazine::sync::{AtomicBool, Mutex, Ordering::Relaxed};

const WORKERS: u64 = 4;
/// The number of allocations that each worker thread holds.
const HELD_ALLOCATIONS: usize = 300;

/// Returns layouts that are mostly small; one layout in 512 is larger than the largest block.
fn layout(dice: &mut Rng) -> Layout {
    let max_size = [64, 64, 500, 500, 500, 5000, 20_000, 200_000][dice.below(8)];
    let size = if dice.below(512) == 0 { 5 << 20 } else { 1 + dice.below(max_size) };
    Layout::from_size_align(size, 1 << dice.below(8)).unwrap()
}

/// An allocation, and the stamp that its owner has written to its first byte.
type StampedAllocation = (NonNull<u8>, Layout, u8);

fn alloc_stamped(malloc: &Malloc, dice: &mut Rng, stamp: u8) -> StampedAllocation {
    let layout = layout(dice);
    let memory = malloc.alloc(layout, Gfp::KERNEL).expect("the subsystem must have enough memory");
    // SAFETY: the memory was allocated just now, with at least one byte.
    unsafe { memory.write(stamp) };
    (memory, layout, stamp)
}
fn free_stamped(malloc: &Malloc, (memory, layout, stamp): StampedAllocation, sized: bool) {
    // SAFETY: the memory was allocated from this malloc with this layout, and is freed once.
    unsafe {
        assert_eq!(memory.read(), stamp, "the allocation was overwritten");
        if sized { malloc.free_sized(memory, layout) } else { malloc.free(memory) }
    }
}

fn work(malloc: &Malloc, cache: &KmemCache, stop: &AtomicBool, worker: u64) {
    let (mut dice, mut allocations, mut objects) = (Rng(worker + 1), vec![], vec![]);
    while !stop.load(Relaxed) {
        if allocations.len() < HELD_ALLOCATIONS && dice.below(2) == 0 {
            allocations.push(alloc_stamped(malloc, &mut dice, worker as u8));
            objects.push(cache.alloc_block(Gfp::KERNEL).expect("the subsystem must have enough memory"));
        } else if !allocations.is_empty() {
            let index = dice.below(allocations.len());
            free_stamped(malloc, allocations.swap_remove(index), index.is_multiple_of(2));
            drop(objects.swap_remove(index));
        }
        if dice.below(2000) == 0 {
            cache.shrink();
        }
    }
    allocations.into_iter().for_each(|piece| free_stamped(malloc, piece, true));
}

/// Checks that run in the forked child; at the fork, four threads of the parent were using the subsystem.
fn child(subsystem: &Subsystem, malloc: &Malloc, cache: &KmemCache, i: u64) {
    let mut dice = Rng(i + 1000);
    let allocations: Vec<_> = (0..100).map(|_| alloc_stamped(malloc, &mut dice, 0xc)).collect();
    let objects = cache.alloc_blocks(Gfp::ZERO, 100).expect("the subsystem must have enough memory");
    let census = subsystem.check().expect("the census must succeed");
    // Each thread holds at most a batch or a magazine, and slabs that it detached to shrink.
    assert!(census.lost_pages <= 64 * WORKERS * 16, "{census:?}");
    allocations.into_iter().enumerate().for_each(|(i, piece)| free_stamped(malloc, piece, i % 2 == 0));
    drop(objects);
    subsystem.reap();
    subsystem.shrink();
    subsystem.pages().decommit();
    subsystem.check().expect("the census must succeed at the end");
    // The drop must not wait for calls of threads that the child does not have.
    drop(subsystem.observe(|_| ()).expect("a place"));
    let new_cache = KmemCache::builder("born-late", 100).build_in(subsystem).expect("a cache");
    drop(new_cache.alloc_block(Gfp::KERNEL));
}

#[test]
fn forked_child_of_a_busy_process_uses_its_subsystem() {
    let _alone = crate::TEST_LOCK.lock();
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let subsystem = Subsystem::new(Config::new(PageConfig::default_for(cpus))).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let cache = KmemCache::builder("object", 200).build_in(&subsystem).unwrap();
        let observer = subsystem.observe(|operation| assert!(!operation.steps.is_empty())).expect("a place");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (malloc, cache, stop) = (&malloc, &cache, &stop);
                scope.spawn(move || work(malloc, cache, stop, worker));
            }
            for i in 0..200 {
                // SAFETY: `after_fork_in_parent` and `after_fork_in_child` follow.
                unsafe { subsystem.before_fork() };
                // SAFETY: the child uses the subsystem, whose locks this thread holds, and libc's allocator, which is
                // usable after a fork. The child then exits without unwinding.
                match unsafe { fork() }.expect("a fork") {
                    ForkResult::Child => {
                        // SAFETY: `fork` copied only this thread.
                        unsafe { subsystem.after_fork_in_child() };
                        // SAFETY: the call sets an alarm, which ends a hanging child.
                        unsafe { libc::alarm(60) };
                        let result = catch_panic(|| child(&subsystem, &malloc, &cache, i));
                        // SAFETY: the call ends the child immediately.
                        unsafe { libc::_exit(i32::from(result.is_err())) }
                    }
                    ForkResult::Parent { child } => {
                        // SAFETY: this is the process that forked.
                        unsafe { subsystem.after_fork_in_parent() };
                        let status = waitpid(child, None).expect("the child must succeed");
                        if status != WaitStatus::Exited(child, 0) {
                            stop.store(true, Relaxed);
                        }
                        assert_eq!(status, WaitStatus::Exited(child, 0), "{}, fork {i}", cpus.mechanism());
                    }
                }
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(observer.counts().panics, 0);
        let census = subsystem.check().expect("the parent must lose no memory");
        let lost_items = (census.lost_objects, census.lost_slabs, census.lost_pages);
        assert_eq!((census.used, census.huge_pages, lost_items), (0, 0, (0, 0, 0)));
    }
}

/// Runs `busy_thread` until it waits at the `PausePoint`, then forks, and runs `child` in the child process. The
/// closure `child` returns `true` if all checks in the child process succeed.
fn fork_while_thread_is_busy(
    subsystem: &Subsystem,
    busy_thread: impl FnOnce(PausePoint) + Send,
    child: impl FnOnce() -> bool,
) {
    let _alone = crate::TEST_LOCK.lock();
    let stop = PausePoint::default();
    std::thread::scope(|scope| {
        let thread_stop = stop.clone();
        scope.spawn(|| busy_thread(thread_stop));
        stop.wait_until_thread_waits();
        // SAFETY: `after_fork_in_parent` and `after_fork_in_child` follow.
        unsafe { subsystem.before_fork() };
        // SAFETY: the child uses the subsystem, and libc's allocator, which is usable after a fork. The child then
        // exits without unwinding.
        let exit_result = match unsafe { fork() }.expect("a fork") {
            ForkResult::Child => {
                // SAFETY: `fork` copied only this thread.
                unsafe { subsystem.after_fork_in_child() };
                // SAFETY: the call sets an alarm, which ends a hanging child.
                unsafe { libc::alarm(20) };
                let is_well = catch_panic(child);
                // SAFETY: the call ends the child immediately.
                unsafe { libc::_exit(i32::from(!is_well.unwrap_or(false))) }
            }
            ForkResult::Parent { child } => {
                // SAFETY: this is the process that forked.
                unsafe { subsystem.after_fork_in_parent() };
                waitpid(child, None).map(|status| (status, WaitStatus::Exited(child, 0)))
            }
        };
        stop.release_thread();
        let (status, is_success) = exit_result.expect("the child must succeed");
        assert_eq!(status, is_success);
    });
}
/// A point at which one thread waits until another thread releases it.
#[derive(Clone, Default)]
struct PausePoint(Arc<[AtomicBool; 2]>);
impl PausePoint {
    fn wait(&self) {
        self.0[0].store(true, Relaxed);
        wait_for(&self.0[1]);
    }
    fn wait_until_thread_waits(&self) {
        wait_for(&self.0[0]);
    }
    fn release_thread(&self) {
        self.0[1].store(true, Relaxed);
    }
}
fn wait_for(set: &AtomicBool) {
    while !set.load(Relaxed) {
        std::thread::yield_now();
    }
}

/// If another thread is inside the observer at the time of the fork, the observer call ends only in the parent.
#[test]
fn forked_child_does_not_wait_for_a_running_observer() {
    let subsystem = Subsystem::new(Config::new(PageConfig::default_for(Cpus::os()))).unwrap();
    let cache = KmemCache::builder("object", 200).build_in(&subsystem).unwrap();
    let place = Arc::new(Mutex::new(None));
    let stop_point = place.clone();
    let observer =
        subsystem.observe(move |_| stop_point.lock().iter().for_each(PausePoint::wait)).expect("a place");
    let busy_thread = |stop| {
        *place.lock() = Some(stop);
        drop(cache.alloc_block(Gfp::KERNEL));
    };
    let child = || {
        drop(observer);
        true
    };
    fork_while_thread_is_busy(&subsystem, busy_thread, child);
}

/// If another thread is draining at the time of the fork, no per-CPU stack stays closed in the child.
#[test]
fn fork_during_a_drain_leaves_no_stack_closed() {
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let subsystem = Subsystem::new(Config::new(PageConfig::default_for(cpus))).unwrap();
        let place = Arc::new(Mutex::new(None::<PausePoint>));
        let stop_point = place.clone();
        // Destructs an object in a slab that the drain emptied.
        let dtor = move |_: &mut [u8]| {
            let stop = stop_point.lock().take();
            stop.iter().for_each(PausePoint::wait);
        };
        let cache = KmemCache::builder("object", 2048).dtor(dtor).build_in(&subsystem).unwrap();
        drop(cache.alloc_blocks(Gfp::KERNEL, 1000).expect("the subsystem must have enough memory"));
        let busy_thread = |stop| {
            *place.lock() = Some(stop);
            cache.drain(0..cpus.count());
        };
        let child = || {
            let cached_objects = || cache.info().in_magazines;
            let before = cached_objects();
            drop(cache.alloc_block(Gfp::KERNEL));
            before == 0 && cached_objects() > 0
        };
        fork_while_thread_is_busy(&subsystem, busy_thread, child);
    }
}

/// Regression test: in debug builds, the lock-order check compared the locks of two subsystems and aborted the program.
#[test]
fn fork_can_hold_the_locks_of_two_subsystems() {
    let _alone = crate::TEST_LOCK.lock();
    let pages = || PageConfig::default_for(Cpus::os()).limit(16 << 20);
    let subsystems = [(); 2].map(|()| Subsystem::new(Config::new(pages())).unwrap());
    let caches =
        subsystems.each_ref().map(|subsystem| KmemCache::builder("object", 200).build_in(subsystem).unwrap());
    // SAFETY: no fork happens in between, and this thread releases the locks.
    unsafe {
        subsystems.iter().for_each(|subsystem| subsystem.before_fork());
        subsystems.iter().for_each(|subsystem| subsystem.after_fork_in_parent());
    }
    for (subsystem, cache) in subsystems.iter().zip(&caches) {
        drop(cache.alloc_blocks(Gfp::KERNEL, 100).unwrap());
        subsystem.check().unwrap();
    }
}

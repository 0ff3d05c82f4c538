//! Tests a program whose heap is `Uslab`: threads, destructors of thread-locals, forks, and all sizes.

use crate::process::run_test_alone;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::RefCell;
use std::ptr::NonNull;
use uslab::Uslab;
use uslab_magazine::sync::{AtomicBool, Ordering::Relaxed, thread_local};

fn allocs() -> u64 {
    Uslab.info().expect("the allocator must have started").caches.iter().map(|cache| cache.allocs).sum()
}

#[test]
fn boxes_are_allocated_by_the_global_allocator() {
    let before = allocs();
    let boxes: Vec<_> = (0..10_000).map(Box::new).collect();
    let after = allocs();
    assert!(after - before >= 10_000, "{before} {after}");
    // SAFETY: the box is not freed yet.
    let usable = |boxed: &i32| unsafe { Uslab.usable_size(NonNull::from(boxed).cast()) };
    assert!(boxes.iter().all(|boxed| usable(boxed) == 8));
}

/// A thread-local value whose destructor allocates after all other destructors of the thread.
struct AllocatingDestructor(Vec<String>);
impl Drop for AllocatingDestructor {
    fn drop(&mut self) {
        let text: String = self.0.iter().map(String::as_str).rev().collect();
        assert_eq!(text.len(), 3 * self.0.len());
        drop(vec![text; 100]);
    }
}
thread_local! {
    static LAST: RefCell<Option<AllocatingDestructor>> = const { RefCell::new(None) };
}

#[test]
fn thread_local_destructors_can_allocate() {
    for _ in 0..20 {
        let threads: Vec<_> = (0..10)
            .map(|_| {
                std::thread::spawn(|| {
                    let words = (100..300).map(|n| n.to_string()).collect();
                    LAST.with(|last| *last.borrow_mut() = Some(AllocatingDestructor(words)));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn blocks_of_each_size_and_alignment_can_be_resized() {
    for size in [1, 7, 8, 9, 100, 4096, 8192, 8193, 100_000, 4 << 20, 5 << 20] {
        for align in [1, 8, 16, 64, 4096, 1 << 20] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: each block is used within its layout, and freed with its last layout.
            unsafe {
                let zeroed_memory = alloc_zeroed(layout);
                assert!(zeroed_memory.addr().is_multiple_of(align));
                assert!(
                    (0..size).step_by(97).all(|i| *zeroed_memory.add(i) == 0)
                        && *zeroed_memory.add(size - 1) == 0
                );
                zeroed_memory.write_bytes(5, size);
                for new_size in [size + 1, 3 * size, size, size.div_ceil(3)] {
                    let memory = alloc(layout);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align));
                    memory.write_bytes(6, size);
                    let new_memory = realloc(memory, layout, new_size);
                    assert!(!new_memory.is_null() && new_memory.addr().is_multiple_of(align));
                    assert!((0..size.min(new_size)).step_by(97).all(|i| *new_memory.add(i) == 6));
                    dealloc(new_memory, Layout::from_size_align(new_size, align).unwrap());
                }
                assert_eq!(*zeroed_memory.add(size - 1), 5);
                dealloc(zeroed_memory, layout);
            }
        }
    }
}

/// The test needs a process for itself, because objects of other tests would keep page blocks in use.
#[test]
fn memory_of_a_freed_burst_is_decommitted_automatically() {
    run_test_alone("global_alloc::child_frees_a_burst_of_allocations", "");
}

#[test]
#[ignore = "run by the test above"]
fn child_frees_a_burst_of_allocations() {
    let backed_bytes = || Uslab.info().expect("the allocator must have started").pages.backed_bytes();
    let before = backed_bytes();
    let burst: Vec<Vec<u8>> = (0..300_000_usize).map(|n| Vec::with_capacity(500 + n % 1000)).collect();
    let max_bytes = backed_bytes();
    assert!(max_bytes > before + (256 << 20), "{before} {max_bytes}");
    drop(burst);
    let remaining_bytes = backed_bytes();
    // A block that CPUs or depots keep an object of is only partly returned: its free pages.
    assert!(
        remaining_bytes < max_bytes - (128 << 20),
        "{remaining_bytes} of {max_bytes} remain, {before} before"
    );
}

#[test]
fn impossible_allocation_returns_null() {
    for size in [1 << 47, isize::MAX as usize - 15] {
        // SAFETY: the layout is not empty, and the memory is not used.
        let memory = std::hint::black_box(unsafe { alloc(Layout::from_size_align(size, 16).unwrap()) });
        assert!(memory.is_null());
        let mut vec: Vec<u8> = vec![1];
        assert!(vec.try_reserve(size - 16).is_err() && vec == [1]);
    }
}

#[test]
fn forked_children_can_allocate_while_parent_threads_allocate() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut blocks: Vec<Vec<u8>> = vec![];
                for i in 0_usize.. {
                    blocks.push(vec![n; i * 37 % 3000]);
                    if blocks.len() > 200 {
                        blocks.swap_remove(i % 200);
                    }
                    if stop.load(Relaxed) {
                        break;
                    }
                }
                assert!(blocks.iter().flatten().all(|byte| *byte == n));
            });
        }
        for i in 0..200 {
            // SAFETY: the allocator's handlers keep it usable in the child, which uses nothing else and exits
            // immediately.
            match unsafe { fork() }.expect("a fork") {
                ForkResult::Child => {
                    // SAFETY: the call sets an alarm, which ends a hanging child.
                    unsafe { libc::alarm(60) };
                    let texts: Vec<String> = (0..1000).map(|n| format!("{n}")).collect();
                    let texts_are_complete = texts.iter().map(String::len).sum::<usize>() == 2890;
                    drop(texts);
                    let has_valid_census = Uslab.check();
                    if let Some(Err(violation)) = &has_valid_census {
                        eprintln!("fork {i}: {violation}");
                    }
                    let has_valid_census = has_valid_census.is_some_and(|census| census.is_ok());
                    // SAFETY: the call ends the child immediately.
                    unsafe { libc::_exit(i32::from(!texts_are_complete) + 2 * i32::from(!has_valid_census)) }
                }
                ForkResult::Parent { child } => {
                    let status = waitpid(child, None).expect("the child must start");
                    if status != WaitStatus::Exited(child, 0) {
                        stop.store(true, Relaxed);
                    }
                    assert_eq!(status, WaitStatus::Exited(child, 0), "fork {i}");
                }
            }
        }
        stop.store(true, Relaxed);
    });
}

/// Object caches and the program's heap belong to different subsystems, and reports show them separately.
#[test]
fn process_report_separates_the_object_and_malloc_heaps() {
    let cache = uslab::ObjectCache::builder("told-apart").ctor(|| 0_u64).build().unwrap();
    let object = cache.alloc().unwrap();
    let heaps = uslab::process::heaps();
    let names: Vec<_> = heaps.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["objects", "malloc"]);
    let heap_has_cache = |heap: usize, cache: &str| {
        heaps[heap].1.caches.iter().any(|cache_info| cache_info.name == cache && cache_info.used > 0)
    };
    assert!(heap_has_cache(0, "told-apart") && !heap_has_cache(1, "told-apart"));
    assert!(heap_has_cache(1, "malloc-16"), "names must have this size");
    drop(object);
}

/// Regression test: the census counted a cache's slabs before it allocated a copy of the cache's name, which needed
/// another slab.
#[test]
fn census_ignores_allocations_made_by_the_census() {
    run_test_alone("global_alloc::child_takes_a_census", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_takes_a_census() {
    // At some point all slabs of the names' size class are full, and the next name needs a new slab.
    let mut blocks = Vec::with_capacity(600);
    for n in 0..600_u64 {
        blocks.push(Box::new([n; 2]));
        Uslab.release();
        assert_eq!(Uslab.check().unwrap().err(), None, "with {n} objects");
    }
}

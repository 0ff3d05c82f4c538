//! Tests that code that runs during an allocation never calls the global heap, because the global heap may be built on
//! this subsystem.

#![cfg(not(any(loom, shuttle)))]

#[allow(dead_code)]
#[path = "slab/common.rs"]
mod common;

use common::config;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use uslab::debug::flags::SlabDebug;
use uslab::handle::{HandleCache, HandleError, HandleTable, WrapPolicy};
use uslab::{AllocError, Gfp, KmemCache, Limit, Malloc, ObjectCache, Subsystem};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::{assert_unlocked, thread_local};

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static HEAP_BYTES_IN_USE: Cell<isize> = const { Cell::new(0) };
    /// A function that this thread's next heap call runs; its argument is the number of requested bytes.
    static NEXT_HEAP_CALL_HOOK: Cell<Option<fn(usize)>> = const { Cell::new(None) };
    /// The state of a refusal: `Some(0)` if this thread's next heap call must be refused; after the refusal, the
    /// requested number of bytes.
    static REFUSED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The system's heap; it counts the calls and the unfreed bytes of each thread. The heap also checks that a thread that
/// calls it holds no lock.
struct Counting;

// SAFETY: each method forwards to the system's heap, or returns null if that is allowed.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert_unlocked();
        CALLS.set(CALLS.get() + 1);
        if REFUSED.get() == Some(0) {
            REFUSED.set(Some(layout.size()));
            return null_mut();
        }
        HEAP_BYTES_IN_USE.set(HEAP_BYTES_IN_USE.get() + layout.size() as isize);
        if let Some(meanwhile) = NEXT_HEAP_CALL_HOOK.take() {
            meanwhile(layout.size());
            NEXT_HEAP_CALL_HOOK.set(Some(meanwhile));
        }
        // SAFETY: the caller's layout is not empty.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        assert_unlocked();
        CALLS.set(CALLS.get() + 1);
        HEAP_BYTES_IN_USE.set(HEAP_BYTES_IN_USE.get() - layout.size() as isize);
        // SAFETY: the caller passes a block of the system's heap and its layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Runs `work` and checks that it does not call the global heap.
fn assert_no_heap_calls<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let before = CALLS.get();
    let done = work();
    assert_eq!(CALLS.get(), before, "{what} called the global heap");
    done
}

/// Runs `work`, and refuses its first call of the global heap. Returns the result of `work`, and the number
/// of bytes that the refused call requested.
fn refused<R>(work: impl FnOnce() -> R) -> (R, usize) {
    REFUSED.set(Some(0));
    let done = work();
    (done, REFUSED.take().unwrap())
}

#[test]
fn heap_call_counter_counts_allocations_and_frees() {
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(CALLS.get(), before + 2);
}

/// Regression test: while the list of caches grew or the census allocated, they held locks that allocations need.
#[test]
fn functions_that_call_the_heap_hold_no_lock() {
    let subsystem = Subsystem::new(config(2, 2, 16 << 20)).unwrap();
    let caches: Vec<_> = (0..100)
        .map(|n| KmemCache::builder(format!("cache-{n}"), 64).build_in(&subsystem).unwrap())
        .collect();
    let objects: Vec<_> = caches.iter().map(|cache| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert_eq!(subsystem.check().unwrap().used, 100);
    assert!(subsystem.info().caches.len() > 100 && subsystem.slabinfo().rows.len() >= 100);
    drop(objects);
}

#[test]
fn dropped_handle_cache_frees_its_heap_memory() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let used = || {
        let before = HEAP_BYTES_IN_USE.get();
        let builder = ObjectCache::builder("named").ctor(|| 0_u64);
        let cache: HandleCache<u64> = builder.build_handles_in(&subsystem, WrapPolicy::Retire).unwrap();
        let handles = [(); 1000].map(|()| cache.alloc().unwrap());
        assert!(HEAP_BYTES_IN_USE.get() >= before + 8 * 1000, "the cache's numbers are in the heap");
        assert!(handles.into_iter().all(|handle| cache.free(handle)));
        drop(cache);
        HEAP_BYTES_IN_USE.get() - before
    };
    // The first use may allocate state that the subsystem keeps.
    used();
    assert_eq!(used(), 0);
}

#[test]
fn handle_table_frees_blocks_that_lost_a_creation_race() {
    thread_local! {
        static CACHE: Cell<Option<Rc<HandleCache<u64>>>> = const { Cell::new(None) };
        static LATE_CALL_COUNT: Cell<u64> = const { Cell::new(0) };
    }
    // The function does what another thread might do at this point, where no lock is held.
    fn allocate_earlier(bytes: usize) {
        // The table's blocks are for 64 numbers, 128, and so on.
        if bytes >= 64 * 16 {
            let cache = CACHE.take().unwrap();
            let handle = cache.alloc().unwrap();
            assert!(cache.free(handle));
            CACHE.set(Some(cache));
            LATE_CALL_COUNT.set(LATE_CALL_COUNT.get() + 1);
        }
    }
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let used = || {
        let before = HEAP_BYTES_IN_USE.get();
        let builder = ObjectCache::builder("named").ctor(|| 0_u64);
        let cache: Rc<HandleCache<u64>> =
            Rc::new(builder.build_handles_in(&subsystem, WrapPolicy::Retire).unwrap());
        let mut handles = Vec::with_capacity(400);
        CACHE.set(Some(cache.clone()));
        NEXT_HEAP_CALL_HOOK.set(Some(allocate_earlier));
        (0..400).for_each(|_| handles.push(cache.alloc().unwrap()));
        NEXT_HEAP_CALL_HOOK.set(None);
        CACHE.set(None);
        assert_eq!(LATE_CALL_COUNT.take(), 3, "the table grows to 64, 128 and 256 numbers");
        assert!(handles.into_iter().all(|handle| cache.free(handle)));
        drop(cache);
        HEAP_BYTES_IN_USE.get() - before
    };
    // The first use may allocate state that the subsystem keeps.
    used();
    assert_eq!(used(), 0);
}

#[test]
fn failed_allocation_leaves_the_handle_table_unchanged() {
    const VALUE: usize = 200 * size_of::<u64>();
    let mut table = HandleTable::<[u64; 200]>::new();
    let (none, words) = refused(|| table.alloc([0; 200]));
    assert!(none == Err(HandleError::Memory) && (1..VALUE).contains(&words), "{words} bytes of words");
    // The table has then allocated its words, and room for one value.
    let first = table.alloc([1; 200]).unwrap();
    let (none, values) = refused(|| table.alloc_with(|_| panic!("the allocation must fail")));
    assert!(none == Err(HandleError::Memory) && values > VALUE, "{values} bytes of values");
    assert_eq!((table.len(), table.get(first)), (1, Some(&[1; 200])));
    assert_eq!(table.free(first), Some([1; 200]));
    let again = assert_no_heap_calls("a value in a place that is free", || table.alloc([2; 200])).unwrap();
    let next = table.alloc([3; 200]).unwrap();
    assert_eq!((again.index(), next.index(), table.len()), (0, 1, 2));
}

#[test]
fn object_is_freed_if_its_number_cannot_be_allocated() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let builder = ObjectCache::builder("named").ctor(|| 0_u64);
    let cache: HandleCache<u64> = builder.build_handles_in(&subsystem, WrapPolicy::Retire).unwrap();
    for entries in [64, 128, 256] {
        let used = cache.info().used;
        let (none, requested) = refused(|| cache.alloc());
        assert_eq!((none, requested), (Err(HandleError::Memory), entries * 16));
        assert_eq!(cache.info().used, used);
        (0..entries).for_each(|_| assert!(cache.alloc().is_ok()));
    }
}

/// The guard must request memory only once.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_without_memory_takes_no_samples() {
    let config = uslab::Config { guard_every: 1, ..config(1, 1, 16 << 20) };
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let all = || {
        (0..100).all(|_| {
            let memory = malloc.alloc(Layout::new::<[u64; 8]>(), Gfp::KERNEL).unwrap();
            let is_of_a_slab = subsystem.pages().pfn_of(memory.as_ptr()).is_some();
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { malloc.free(memory) };
            is_of_a_slab
        })
    };
    let (none_is_sampled, requested) = refused(all);
    assert!(none_is_sampled && requested > 0, "{requested} bytes");
}

#[test]
fn failed_wait_queue_growth_reports_the_requested_bytes() {
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let cache = KmemCache::builder("connection", 192).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let held: Vec<_> = core::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut waiting = vec![];
    for before in [0, 8] {
        for _ in 0..before {
            let mut acquire = Box::pin(cache.acquire(Gfp::KERNEL));
            assert!(acquire.as_mut().poll(cx).is_pending());
            waiting.push(acquire);
        }
        let mut acquire = Box::pin(cache.acquire(Gfp::KERNEL));
        REFUSED.set(Some(0));
        let error = acquire.as_mut().poll(cx);
        let requested = REFUSED.take().unwrap();
        assert!(
            matches!(error, Poll::Ready(Err(AllocError::Refused { bytes })) if bytes == requested && requested > 0),
            "after {before}: {error:?}, {requested} bytes"
        );
        assert!(acquire.as_mut().poll(cx).is_pending(), "the thread can wait now");
    }
    drop(waiting);
    drop(held);
    assert_eq!(cache.info().used, 0);
}

#[test]
fn object_listing_includes_slabs_created_during_the_listing() {
    thread_local! {
        static CACHE: Cell<Option<Rc<KmemCache>>> = const { Cell::new(None) };
    }
    fn more(_: usize) {
        let Some(cache) = CACHE.take() else { return };
        for _ in 0..1000 {
            let _ = cache.alloc(Gfp::KERNEL).unwrap();
        }
    }
    let subsystem = Subsystem::new(config(1, 1, 16 << 20)).unwrap();
    let builder = KmemCache::builder("traced", 64).slab_debug(SlabDebug::USERS);
    let cache = Rc::new(builder.build_in(&subsystem).unwrap());
    let _ = cache.alloc(Gfp::KERNEL).unwrap();
    CACHE.set(Some(cache.clone()));
    NEXT_HEAP_CALL_HOOK.set(Some(more));
    let traces = cache.alloc_traces();
    NEXT_HEAP_CALL_HOOK.set(None);
    assert_eq!(traces.0.iter().map(|trace| trace.count).sum::<u64>(), 1001);
}

#[test]
fn allocation_and_free_never_call_the_heap() {
    let subsystem = Subsystem::new(config(4, 2, 16 << 20)).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let cache = KmemCache::builder("object", 192).limit(Limit::Slabs(40)).build_in(&subsystem).unwrap();
    let mut held: Vec<(NonNull<u8>, Layout)> = Vec::with_capacity(1 << 20);
    let mut objects: Vec<NonNull<u8>> = Vec::with_capacity(1 << 16);
    for round in 0..3 {
        assert_no_heap_calls("a cache up to its limit", || {
            let error = loop {
                on_cpu(objects.len() as u32 % 4);
                match cache.alloc(Gfp::KERNEL) {
                    Ok(object) => objects.push(object),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, AllocError::CacheLimit { .. }), "{error}");
        });
        assert_no_heap_calls("allocation of every size, up to pressure", || {
            for size in (1..=64 << 10).step_by(61).cycle() {
                on_cpu((size % 4) as u32);
                let layout = Layout::from_size_align(size, 1 << (size % 8)).unwrap();
                match malloc.alloc(layout, Gfp::KERNEL) {
                    Ok(memory) => held.push((memory, layout)),
                    Err(error) => {
                        assert!(matches!(error, AllocError::Memory(_)), "{error}");
                        break;
                    }
                }
            }
        });
        assert!(held.len() > 100 && !objects.is_empty(), "round {round}");
        assert_no_heap_calls("free", || {
            for (i, (memory, layout)) in held.drain(..).enumerate() {
                on_cpu(i as u32 % 4);
                // SAFETY: the memory was allocated above with this layout, and is freed once.
                unsafe { if i % 2 == 0 { malloc.free_sized(memory, layout) } else { malloc.free(memory) } }
            }
            for object in objects.drain(..) {
                // SAFETY: the object was allocated above from this cache, and is freed once.
                unsafe { cache.free(object) };
            }
        });
        assert_no_heap_calls("reap, drain and shrink", || {
            subsystem.reap();
            subsystem.drain_cpus(0..4);
            subsystem.shrink();
            subsystem.pages().decommit();
        });
    }
    assert_eq!(subsystem.check().unwrap().objects, 0);
}

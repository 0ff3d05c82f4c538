//! Tests which inlined paths serve the malloc of the process, and that objects are correct on each of these paths.

use crate::process::run_test_alone;
use std::alloc::{Layout, alloc, dealloc};
use uslab::Uslab;
use uslab_magazine::{Cpus, Mechanism};

/// Allocates objects of many sizes in several threads. The allocating threads free some of the objects, and the main
/// thread frees the rest. No object may have two owners at the same time.
fn assert_static_paths_used() {
    let threads: Vec<_> = (1..=4_u8)
        .map(|stamp| {
            std::thread::spawn(move || {
                let mut foreign_objects = Vec::new();
                for round in 0..500_usize {
                    let layout = Layout::from_size_align(1 + round * 137 % 40_000, 1 << (round % 7)).unwrap();
                    // SAFETY: no layout has size 0; the memory is written within its layout.
                    let memory = unsafe { alloc(layout) };
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(layout.align()));
                    // SAFETY: `memory` was just allocated with this layout.
                    unsafe { memory.write_bytes(stamp, layout.size()) };
                    foreign_objects.push((memory.addr(), layout));
                    if round % 3 > 0 {
                        freed(foreign_objects.swap_remove(round * 7 % foreign_objects.len()), stamp);
                    }
                }
                (stamp, foreign_objects)
            })
        })
        .collect();
    for (stamp, foreign_objects) in threads.into_iter().map(|thread| thread.join().unwrap()) {
        foreign_objects.into_iter().for_each(|object| freed(object, stamp));
    }
}
fn freed((address, layout): (usize, Layout), stamp: u8) {
    let memory = core::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the memory was allocated above with this layout and written, and is freed once.
    unsafe {
        assert!(core::slice::from_raw_parts(memory, layout.size()).iter().all(|byte| *byte == stamp));
        dealloc(memory, layout);
    }
}
/// Uses the heap, and returns `true` if the inlined static paths served it.
fn do_static_paths_serve_heap() -> bool {
    assert_static_paths_used();
    Uslab.check().unwrap().unwrap();
    Uslab.has_static_paths()
}

fn restartable_sequences_serve() -> bool {
    Cpus::os().mechanism() == Mechanism::Rseq
}

#[test]
fn static_paths_are_open_if_restartable_sequences_work() {
    run_test_alone(
        "static_paths::child_expects_static_paths_with_restartable_sequences",
        "USLAB_OPTIONS=check=0",
    );
    run_test_alone("static_paths::child_expects_closed_static_paths", "USLAB_RSEQ=off USLAB_OPTIONS=check=0");
    // The library registers the threads instead of the C library.
    run_test_alone(
        "static_paths::child_expects_static_paths_with_restartable_sequences",
        "GLIBC_TUNABLES=glibc.pthread.rseq=0 USLAB_OPTIONS=check=0",
    );
    // The malloc checks each free, so static paths are closed.
    run_test_alone("static_paths::child_expects_closed_static_paths", "USLAB_OPTIONS=check=1");
    // Sequences serve, but the limit leaves pages fewer addresses, so the malloc's own paths serve.
    run_test_alone(
        "static_paths::child_expects_closed_static_paths",
        &format!("ulimit -v {} && USLAB_OPTIONS=check=0", 8 << 20),
    );
}
#[test]
#[ignore = "run by the test above"]
fn child_expects_static_paths_with_restartable_sequences() {
    assert_eq!(do_static_paths_serve_heap(), restartable_sequences_serve());
}
#[test]
#[ignore = "run by the test above"]
fn child_expects_closed_static_paths() {
    assert!(!do_static_paths_serve_heap());
}

/// Objects that were allocated on static paths can be freed on other paths.
#[test]
fn static_paths_close_when_an_address_limit_is_set() {
    run_test_alone("static_paths::child_limits_its_addresses_and_frees_objects", "USLAB_OPTIONS=check=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_limits_its_addresses_and_frees_objects() {
    let foreign_objects: Vec<_> = (0..10_000_u32).map(Box::new).collect();
    assert_eq!(do_static_paths_serve_heap(), restartable_sequences_serve());
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_AS, 4 << 30, 1 << 62).unwrap();
    Uslab.fit_address_limit();
    assert!((0..).zip(&foreign_objects).all(|(n, foreign_objects)| **foreign_objects == n));
    drop(foreign_objects);
    assert!(!do_static_paths_serve_heap());
}

/// A cache that the program creates belongs to a different table than the malloc's caches, so it does not use the
/// malloc's per-CPU words.
#[test]
fn program_caches_do_not_use_malloc_cpu_words() {
    run_test_alone("static_paths::child_allocates_from_a_separate_cache", "USLAB_OPTIONS=check=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_allocates_from_a_separate_cache() {
    let cache = uslab::KmemCache::builder("beside", 64).build().unwrap();
    let foreign_objects: Vec<_> =
        (0..1_000).map(|_| cache.alloc_block(uslab::Gfp::KERNEL).unwrap()).collect();
    assert_eq!(do_static_paths_serve_heap(), restartable_sequences_serve());
    drop(foreign_objects);
    assert_eq!(cache.info().used, 0);
    cache.shrink();
}

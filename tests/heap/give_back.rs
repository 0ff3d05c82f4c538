//! Tests that freed memory returns to the system, even if a few objects in its page blocks are still in use. The
//! allocator's reaper thread returns the memory without any call by the program. Each test runs alone in a process
//! whose heap is `Uslab`.
#![cfg(all(target_os = "linux", not(uslab_heap)))]

use crate::process;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use std::time::Duration;
use uslab::subsystem::KEEP_FREE;
use uslab::{Config, ObjectCache, ReaperThread, Subsystem, Uslab};

const MIB: u64 = 1 << 20;

/// Runs one test of this file alone in a process; `options` configure the heap of that process.
#[track_caller]
fn run_test_alone(test: &str, options: &str) {
    process::run_test_alone(&format!("give_back::{test}"), &format!("USLAB_OPTIONS={options}"));
}

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    process::resident() as u64
}
/// Returns the number of bytes of the allocator's pages that the system may back with memory.
fn backed_bytes() -> u64 {
    Uslab.info().unwrap().pages.backed_bytes()
}
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) as usize
}

/// Returns 20,000 vectors of four sizes, which were created and replaced at random indices; together they have about
/// 250 MiB.
fn load() -> Vec<Vec<u8>> {
    let mut vectors: Vec<Vec<u8>> = (0..20_000).map(|_| Vec::new()).collect();
    let mut state = 1;
    for size in [16, 200, 1000, 10_000] {
        for _ in 0..100_000 {
            let index = random(&mut state) % vectors.len();
            vectors[index] = vec![1; size];
        }
    }
    vectors
}

#[test]
fn freed_objects_of_mixed_sizes_are_decommitted() {
    // The checks of a debug build keep a byte for each word, so they are disabled.
    run_test_alone("child_frees_objects_of_mixed_sizes", "check=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_frees_objects_of_mixed_sizes() {
    let vectors = load();
    let (loaded_bytes, max_bytes) = (resident(), backed_bytes());
    assert!(loaded_bytes > 200 * MIB && max_bytes > 200 * MIB, "{loaded_bytes} {max_bytes}");
    drop(vectors);
    // Frees alone leave this much: the bound, the memory in use, and what CPUs keep.
    let (remaining, info) = (backed_bytes(), Uslab.info().unwrap().pages);
    let used_bytes = (info.allocated() + info.per_cpu()) * 4096;
    println!(
        "{} MiB loaded, {} MiB left by frees, {} MiB of it in use",
        loaded_bytes >> 20,
        remaining >> 20,
        used_bytes >> 20
    );
    assert!(
        remaining <= uslab::global_alloc::KEEP_FREE as u64 + used_bytes,
        "{remaining} bytes remain, {used_bytes} of them in use"
    );
    Uslab.reap();
    Uslab.reap();
    let (current, pages) = (resident(), backed_bytes());
    println!("after two intervals: {} MiB resident, {} MiB of pages", current >> 20, pages >> 20);
    assert!(current <= 30 * MIB, "{current} bytes are resident");
    assert!(pages <= 24 * MIB, "{pages} bytes of pages remain");
    Uslab.check().unwrap().unwrap();
}

#[test]
fn thousand_scattered_objects_keep_little_memory_committed() {
    run_test_alone("child_keeps_a_thousand_scattered_objects", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_keeps_a_thousand_scattered_objects() {
    let before = backed_bytes();
    let mut objects: Vec<Box<[u64; 8]>> = (0..1_000_000_u64).map(|n| Box::new([n; 8])).collect();
    let max_bytes = backed_bytes() - before;
    assert!(max_bytes >= 60 * MIB, "{max_bytes}");
    // One object in a thousand is kept; the others and the vector are freed.
    let kept_objects: Vec<_> = (0..1000).map(|n| objects.swap_remove(n * 999)).collect();
    drop(objects);
    for _ in 0..4 {
        Uslab.reap();
    }
    let remaining = backed_bytes();
    println!("{} MiB of {} remain", remaining >> 20, max_bytes >> 20);
    assert!(remaining < 6 * MIB, "{remaining} bytes remain");
    assert!(kept_objects.iter().all(|object| object.iter().all(|word| *word == object[0])));
    Uslab.check().unwrap().unwrap();
}

/// Waits until the function `is_met` returns `true`. The time limit of one minute only ends a failing test; the test
/// does not measure times.
#[track_caller]
fn wait(condition: &str, is_met: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_met() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("timeout: the condition `{condition}` does not hold");
}

#[test]
fn reaper_thread_sleeps_after_decommitting_idle_memory() {
    run_test_alone("child_waits_for_its_reaper_thread_to_sleep", "reap=20,check=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_waits_for_its_reaper_thread_to_sleep() {
    let reaper = || Uslab.reaper().unwrap();
    assert_eq!(
        (reaper().thread, reaper().interval_ms),
        (ReaperThread::Wanted, 20),
        "the heap is still too small"
    );
    // The environment's value takes precedence.
    Uslab.reap_every(Duration::from_secs(3600));
    assert_eq!(reaper().interval_ms, 20);
    for _ in 0..2 {
        let vectors = load();
        assert_ne!(reaper().thread, ReaperThread::Wanted);
        assert!(resident() > 200 * MIB);
        drop(vectors);
        wait("the memory is returned to the system", || resident() <= 30 * MIB);
        wait("the reaper sleeps", || reaper().thread == ReaperThread::Asleep);
        let interval_count = reaper().intervals;
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(reaper().intervals, interval_count, "no memory was freed");
    }
    assert_eq!(reaper().refused, 0);
}

/// Returns the bytes in mappings above 4 MiB: bytes in use, and freed bytes that are kept for reuse.
fn huge() -> (u64, u64) {
    let info = Uslab.info().unwrap().huge;
    (info.pages * 4096, info.cached_pages * 4096)
}

#[test]
fn reaper_thread_unmaps_freed_mappings() {
    run_test_alone("child_frees_large_mappings", "reap=20");
}
#[test]
#[ignore = "run by the test above"]
fn child_frees_large_mappings() {
    let reaper = || Uslab.reaper().unwrap();
    let before = resident();
    for _ in 0..2 {
        let buffers: Vec<_> = (0..10).map(|_| vec![1_u8; 10 << 20]).collect();
        assert_ne!(reaper().thread, ReaperThread::Wanted, "freed mappings must count, too");
        let (used_bytes, max_bytes) = (huge().0, resident());
        assert!(used_bytes >= 100 * MIB && max_bytes >= used_bytes, "{used_bytes} {max_bytes}");
        drop(buffers);
        wait("freed mappings are returned to the system", || huge() == (0, 0));
        // A mapping is counted until it is unmapped, so the memory follows the count.
        wait("the memory of the mappings is returned", || resident() < before + 10 * MIB);
        wait("the reaper sleeps", || reaper().thread == ReaperThread::Asleep);
    }
    drop(vec![1_u8; 50 << 20]);
    Uslab.release();
    assert_eq!(huge(), (0, 0));
    wait("the reaper holds no memory", || reaper().thread == ReaperThread::Asleep);
    Uslab.check().unwrap().unwrap();
}

#[test]
fn forked_child_inherits_freed_mappings() {
    run_test_alone("child_forks_with_freed_mappings", "reap=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_forks_with_freed_mappings() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let fill = |n: u8, bytes| {
        let mut buffer = Vec::with_capacity(bytes);
        buffer.resize(bytes, n);
        buffer
    };
    let used_block = fill(1, 6 << 20);
    drop(fill(2, 20 << 20));
    assert_eq!(huge().1, 20 * MIB);
    // SAFETY: the allocator's handlers keep it usable in the child, which uses nothing else and exits immediately.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let is_kept = huge().1 == 20 * MIB;
            let written_block = fill(3, 12 << 20);
            let zero = vec![0_u8; 7 << 20];
            let is_intact = written_block.iter().all(|byte| *byte == 3) && zero.iter().all(|byte| *byte == 0);
            drop((written_block, zero));
            let is_consistent =
                Uslab.check().unwrap().is_ok() && huge().1 == 20 * MIB && Uslab.release() >= 20 << 20;
            // SAFETY: the call ends the child immediately.
            unsafe {
                nix::libc::_exit(
                    i32::from(!is_kept) + 2 * i32::from(!is_intact) + 4 * i32::from(!is_consistent),
                )
            }
        }
        ForkResult::Parent { child } => {
            let written_block = fill(4, 20 << 20);
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            assert!(written_block.iter().all(|byte| *byte == 4) && used_block.iter().all(|byte| *byte == 1));
        }
    }
}

#[test]
fn freed_mappings_are_unmapped_at_the_address_limit() {
    run_test_alone("child_frees_mappings_under_an_address_limit", "reap=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_frees_mappings_under_an_address_limit() {
    drop(vec![1_u8; 5 << 20]);
    assert!(Uslab.release() >= 5 << 20);
    let added_bytes = {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    let limit = |extra| {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_AS, added_bytes + extra, 1 << 62)
            .unwrap();
    };
    limit(100 * MIB);
    drop(vec![1_u8; 20 << 20]);
    drop(vec![1_u8; 30 << 20]);
    assert_eq!(huge(), (0, 50 * MIB), "a limit that is set later must not be read");
    // The limit refuses this request until kept mappings are released. The process knows the limit of addresses from
    // here on.
    drop(vec![1_u8; 90 << 20]);
    assert_eq!(huge(), (0, 0));
    // The bound is a quarter of 100 MiB.
    drop(vec![1_u8; 20 << 20]);
    assert_eq!(huge(), (0, 20 * MIB));
    drop(vec![1_u8; 30 << 20]);
    assert_eq!(huge(), (0, 20 * MIB), "the mapping is too large to be kept");
    Uslab.check().unwrap().unwrap();
}

/// A forked child has no reaper thread, so the child starts one.
#[test]
fn forked_child_starts_a_separate_reaper_thread() {
    run_test_alone("child_forks_with_a_running_reaper_thread", "reap=20");
}
#[test]
#[ignore = "run by the test above"]
fn child_forks_with_a_running_reaper_thread() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let vectors = load();
    let reaper = || Uslab.reaper().unwrap();
    assert_ne!(reaper().thread, ReaperThread::Wanted);
    for _ in 0..3 {
        // SAFETY: the allocator's handlers keep it usable in the child, which uses nothing else and exits immediately.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let is_wanted = reaper().thread == ReaperThread::Wanted;
                let extra = load();
                let running = reaper().thread != ReaperThread::Wanted;
                let max_bytes = backed_bytes();
                drop(extra);
                wait("the child's memory is returned to the system", || {
                    backed_bytes() < max_bytes - 100 * MIB
                });
                // SAFETY: the call ends the child immediately.
                unsafe { nix::libc::_exit(i32::from(!is_wanted) + 2 * i32::from(!running)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
    }
    assert_ne!(reaper().thread, ReaperThread::Wanted);
    drop(vectors);
}

/// Without a reaper thread, frees still return the memory that exceeds a bound. Each time its size has doubled, the
/// heap tries again to start the thread.
#[test]
fn frees_return_memory_without_a_reaper_thread() {
    run_test_alone("child_fails_to_start_threads", "reap=20");
}
#[test]
#[ignore = "run by the test above"]
fn child_fails_to_start_threads() {
    // A stack of 2 MiB does not fit under the limit. The allocator's addresses are already reserved, and the allocator
    // commits inside these addresses.
    let reaper = || Uslab.reaper().unwrap();
    assert_eq!(reaper().thread, ReaperThread::Wanted);
    let added_bytes = {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    nix::sys::resource::setrlimit(
        nix::sys::resource::Resource::RLIMIT_AS,
        added_bytes,
        added_bytes + (1 << 40),
    )
    .unwrap();
    // No allocation exceeds 4 MiB: a larger one would get a separate mapping.
    let new_vectors = |_| (0..1000).map(|n| vec![1; 100 + n]).collect();
    let vectors: Vec<Vec<Vec<u8>>> = (0..200).map(new_vectors).collect();
    let info = reaper();
    assert_eq!(info.thread, ReaperThread::Wanted);
    assert!((2..10).contains(&info.refused), "at 8, 16, 32, 64 MiB: {info:?}");
    drop(vectors);
    let info = Uslab.info().unwrap().pages;
    let used_bytes = (info.allocated() + info.per_cpu()) * 4096;
    assert!(info.backed_bytes() <= uslab::global_alloc::KEEP_FREE as u64 + used_bytes);
}

#[test]
fn million_freed_objects_are_decommitted() {
    run_test_alone("child_frees_a_million_objects", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_frees_a_million_objects() {
    // The memory that frees leave depends on the number of CPUs that took part, so this runs on one.
    let mut cpu_set = CpuSet::new();
    cpu_set.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpu_set).unwrap();
    let subsystem = Subsystem::new(Config::default()).unwrap();
    let subsystem_bytes = || subsystem.info().pages.backed_bytes();
    let cache = ObjectCache::builder("million").ctor(|| [1_u8; 64]).build_in(&subsystem).unwrap();
    let objects: Vec<_> = (0..1_000_000).map(|_| cache.alloc().unwrap()).collect();
    let max_bytes = subsystem_bytes();
    assert!(max_bytes > 60 * MIB, "{max_bytes}");
    drop(objects);
    let remaining = subsystem_bytes();
    // Frees alone leave this much: the bound, and the slabs and pages that magazines keep.
    assert!(remaining <= KEEP_FREE as u64 + 3 * MIB, "{remaining} bytes remain");
    subsystem.end_interval();
    subsystem.end_interval();
    let current = subsystem_bytes();
    println!(
        "{} KiB of {} MiB are left by frees, {} KiB after two intervals",
        remaining >> 10,
        max_bytes >> 20,
        current >> 10
    );
    assert!(current <= 4 * MIB, "{current} bytes remain");
    // In random order, the objects that magazines keep at the end are spread over nearly all slabs.
    let mut objects: Vec<_> = (0..1_000_000).map(|_| cache.alloc().unwrap()).collect();
    let mut state = 1;
    (1..objects.len()).for_each(|i| objects.swap(i, random(&mut state) % (i + 1)));
    drop(objects);
    subsystem.end_interval();
    subsystem.end_interval();
    let current = subsystem_bytes();
    assert_eq!(current, 0, "no CPU may keep the memory that a reap frees");
    subsystem.check().unwrap();
}

#[test]
fn reaper_thread_ends_with_its_subsystem() {
    run_test_alone("child_drops_a_subsystem_with_a_reaper_thread", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_drops_a_subsystem_with_a_reaper_thread() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "uslab-reaper").count()
    };
    let config = Config { reap_every: Some(Duration::from_millis(20)), ..Config::default() };
    let subsystem = Subsystem::new(config).unwrap();
    assert_eq!((subsystem.info().reaper.thread, threads()), (ReaperThread::Wanted, 0));
    let cache = ObjectCache::builder("million").ctor(|| [1_u8; 64]).build_in(&subsystem).unwrap();
    let objects: Vec<_> = (0..1_000_000).map(|_| cache.alloc().unwrap()).collect();
    wait("the reaper's thread has started", || threads() == 1);
    drop(objects);
    wait("all memory is returned to the system", || subsystem.info().pages.backed_bytes() <= MIB);
    wait("the reaper sleeps", || subsystem.info().reaper.thread == ReaperThread::Asleep);
    // The thread exits with its subsystem, asleep or not.
    drop(cache);
    drop(subsystem);
    wait("the thread has ended", || threads() == 0);
}

/// Regression test: the heap wrote every byte of zeroed memory, even in fresh pages. Ten times as many blocks made
/// three measurements of resident memory grow by 922, 1,222 and 257 MiB; now they grow by 23, 23 and 15 MiB, mostly for
/// page descriptors.
#[test]
fn zeroed_allocation_does_not_write_to_fresh_pages() {
    run_test_alone("child_allocates_zeroed_memory", "check=0");
}
#[test]
#[ignore = "run by the test above"]
fn child_allocates_zeroed_memory() {
    for (size, count, max_bytes) in
        [(3 << 20, 30, 6 * MIB), (4 << 20, 30, 6 * MIB), (128 << 10, 300, 6 * MIB)]
    {
        let before = resident();
        let mut used_blocks: Vec<_> = (0..count).map(|_| vec![0_u8; size]).collect();
        used_blocks.iter_mut().for_each(|block| block[0] = 1);
        let added_memory = resident() - before;
        assert!(added_memory < max_bytes, "{count} blocks of {size} bytes: {added_memory}");
        assert!(used_blocks.iter().all(|block| block[0] == 1 && block[1..].iter().all(|byte| *byte == 0)));
        drop(used_blocks);
        // Memory that was in use is written again to zero it.
        assert!((0..count).all(|_| vec![0_u8; size].iter().all(|byte| *byte == 0)));
        Uslab.release();
    }
}

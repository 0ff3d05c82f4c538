//! Tests a system that begins to refuse operations while the process runs. Each of these tests enters a sandbox in a
//! separate process.
#![cfg(all(target_os = "linux", not(uslab_heap)))]

#[path = "../kit/sandbox.rs"]
mod filter;

use crate::exposition;
use crate::process::run_test_alone;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use uslab::{Config, Gfp, KmemCache, ObjectCache, Subsystem};
use uslab_magazine::Mechanism;

/// If the system refuses a drain's membarrier, the drain takes nothing: objects stay on the stacks, and remain usable.
#[test]
fn drains_in_a_sandbox_without_membarrier_lose_no_object() {
    run_test_alone("sandbox::child_drains_caches_without_membarrier", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_drains_caches_without_membarrier() {
    let subsystem = Subsystem::new(Config { check_frees: false, ..Config::default() }).unwrap();
    let build = |name| ObjectCache::builder(name).ctor(|| 0_u64).build_in(&subsystem).unwrap();
    let (cache, dropped_cache) = (build("kept"), build("left"));
    let raw = KmemCache::builder("raw", 64).build_in(&subsystem).unwrap();
    let churn = |cache: &ObjectCache<u64>| {
        let mut held_objects: Vec<_> = (0..1000).map(|_| cache.alloc().unwrap()).collect();
        held_objects.iter_mut().zip(0..).for_each(|(object, i)| **object = i);
        assert!(
            held_objects.iter().zip(0..).all(|(object, i)| **object == i),
            "an object was allocated twice"
        );
    };
    churn(&cache);
    churn(&dropped_cache);
    assert_eq!(subsystem.info().drains, uslab::DrainInfo::default());
    filter::refuse_membarrier().expect("a filter");
    // Regression test: the refusal counted as one refused drain of no CPUs.
    if subsystem.cpus().mechanism() == Mechanism::Rseq {
        assert_eq!(
            subsystem.start_profile(1).unwrap_err().to_string(),
            uslab::profile::NotStarted::Fence.to_string()
        );
        // The thread may be on another CPU each time.
        let is_open = (0..1000).any(|_| {
            drop(raw.alloc_block(Gfp::KERNEL).unwrap());
            // SAFETY: the object was allocated just now.
            raw.alloc_inlined(Gfp::KERNEL).map(|object| unsafe { raw.free(object) }).is_some()
        });
        assert!(is_open, "the stacks must be open again after the drain");
    }
    assert_eq!(subsystem.info().drains, uslab::DrainInfo::default());
    for _ in 0..5 {
        subsystem.drain_cpus(0..subsystem.cpus().count());
        churn(&cache);
        subsystem.end_interval();
        churn(&cache);
        subsystem.shrink();
        subsystem.check().unwrap();
    }
    let objects = cache.info();
    assert_eq!((objects.used, objects.allocs - objects.frees), (0, 0));
    let held_objects = objects.in_magazines;
    assert_eq!(
        cache.destroy().map_err(|error| error.live),
        if held_objects == 0 { Ok(()) } else { Err(held_objects) }
    );
    // The cache cannot be freed, but an object that outlives its handle is freed to the right place.
    let late_object = dropped_cache.alloc_owned().unwrap();
    drop(dropped_cache);
    drop(late_object);
    subsystem.check().unwrap();

    let info = subsystem.info();
    let json = serde_json::to_value(&info).unwrap();
    let series = exposition::read(&info.prometheus().to_string()).unwrap();
    let outcomes = ["done", "refused"]
        .map(|outcome| series[&format!("uslab_drains_total{{outcome=\"{outcome}\"}}")] as u64);
    let (refused_drains, statistics_text) = (info.drains.refused, info.statistics().to_string());
    assert_eq!((outcomes[1], &json["drains"]["refused"]), (refused_drains, &refused_drains.into()));
    assert_eq!(outcomes.iter().sum::<u64>(), info.drains.passes);
    let line =
        format!("# drains: membarrier was refused in {refused_drains} of {} drains,", info.drains.passes);
    match subsystem.cpus().mechanism() {
        Mechanism::Claimed => {
            assert_eq!((refused_drains, held_objects), (0, 0), "the claimed mechanism must issue no barrier");
            assert!(!statistics_text.contains("# drains"), "{statistics_text}");
        }
        Mechanism::Rseq => {
            assert_eq!(refused_drains, info.drains.passes, "no barrier was granted");
            assert!(held_objects > 0 && statistics_text.contains(&line), "{statistics_text}");
            churn(&cache);
        }
    }
}

/// If the C library does not register threads for restartable sequences, each thread registers itself at its first
/// miss. After it has registered itself, the thread continues to use the rounds on its CPU's stack. Regression test:
/// the registration of a thread added another magazine.
#[test]
fn rseq_registration_of_a_thread_adds_no_magazine() {
    run_test_alone(
        "sandbox::child_registers_its_threads_for_restartable_sequences",
        "GLIBC_TUNABLES=glibc.pthread.rseq=0",
    );
}
#[test]
#[ignore = "run by the test above"]
fn child_registers_its_threads_for_restartable_sequences() {
    let (own_cpus, mut single_cpu) = (sched_getaffinity(Pid::from_raw(0)).unwrap(), CpuSet::new());
    single_cpu.set((0..CpuSet::count()).find(|cpu| own_cpus.is_set(*cpu).unwrap()).unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &single_cpu).unwrap();
    let subsystem = Subsystem::new(Config { check_frees: false, ..Config::default() }).unwrap();
    if subsystem.cpus().mechanism() != Mechanism::Rseq {
        println!("skipped: no thread is registered");
        return;
    }
    let cache = ObjectCache::builder("shared").ctor(|| 0_u64).build_in(&subsystem).unwrap();
    drop(cache.alloc().unwrap());
    let held_objects = cache.info().in_magazines;
    for _ in 0..20 {
        std::thread::scope(|threads| {
            threads.spawn(|| drop(cache.alloc().unwrap()));
        });
    }
    assert_eq!(cache.info().in_magazines, held_objects);
}

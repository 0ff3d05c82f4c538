//! Stress tests of the magazine layer on the machine's CPUs, with the mechanism that the machine supports.
//!
//! A test stamps each object when it is allocated, and removes the stamp when it is freed. At the end, no object may be
//! lost or duplicated, and the layer's counts must be exact. No single setting of the stress test detects every bug.
//! All settings were tried with planted bugs (see `.ci/controls`). Long runs without disturbances detect restartable
//! sequences that are not restarted. Tiny magazines, with yields between a miss and its slow path, detect drains that
//! do not have exclusive access to a region. During each run, another thread repeatedly creates and drops a second
//! layer in the same table, so that class numbers are reused.
//!
//! With `USLAB_STRESS=full`, each setting runs 20 times as many operations. The first setting runs 1,200 million
//! operations with `USLAB_STRESS=full`. With `USLAB_STRESS=tenth` or `USLAB_STRESS=small` (a 200th), fewer operations
//! run, for an emulator or valgrind. With `USLAB_EXPECT=rseq` or `USLAB_EXPECT=claimed`, the tests require this
//! mechanism.

#[path = "../../tests/kit/rounds.rs"]
mod rounds;
#[path = "../../tests/kit/sandbox.rs"]
mod sandbox;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use rounds::{Rng, TestRound, TestSupplier, layer, table};
use sandbox::refuse_membarrier;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use uslab_magazine::layer::set_yield_interval;
use uslab_magazine::sync::{Arc, AtomicBool, Counter, Mutex, Ordering::Relaxed};
use uslab_magazine::{Cpus, Heap, Mechanism, Table};

/// Serialises the tests, because they load the machine and change process-wide state. A lock of `uslab_sync` cannot be
/// used here, because the layer asserts in debug builds that the caller holds no such lock.
#[allow(clippy::disallowed_types)]
static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// True if this build includes restartable sequences.
const HAS_RSEQ: bool = cfg!(all(
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")),
    any(target_env = "gnu", target_env = "musl"),
    not(any(uslab_no_rseq, uslab_heap))
));

/// Returns the numbers of the CPUs that this process may use.
fn usable_cpus() -> Vec<usize> {
    let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("the process must have a CPU");
    (0..CpuSet::count()).filter(|c| set.is_set(*c).unwrap_or(false)).collect()
}
fn pin(thread: Pid, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|c| set.set(*c).expect("the kernel's CPU list must name the CPU"));
    // The thread may have just ended, which is not an error.
    let _ = sched_setaffinity(thread, &set);
}

#[derive(Clone, Copy, PartialEq)]
enum Threads {
    Free,
    /// Thread `t` is pinned to CPU `t` modulo the number of CPUs.
    Pinned,
    /// Another thread repeatedly moves the tested threads to other CPUs.
    Hopping,
}

#[derive(Clone, Copy)]
struct Setting {
    capacity: u16,
    stock: u16,
    threads: Threads,
    /// Every `yields`-th miss yields before its slow path; 0 disables the yields.
    yields: u32,
    /// The pause between two drains; `None` disables drains.
    drains: Option<Duration>,
    operations: usize,
}

const WORKERS: usize = 16;
/// Maximum number of objects that a worker thread holds.
const MAX_HELD_ROUNDS: usize = 256;

/// Returns the number of operations to run, which `USLAB_STRESS` scales.
fn scaled_operations(usual: usize) -> usize {
    match std::env::var("USLAB_STRESS").as_deref() {
        Err(_) => usual,
        Ok("full") => usual * 20,
        Ok("tenth") => usual / 10,
        Ok("small") => usual / 200,
        Ok(other) => panic!("USLAB_STRESS={other}: expected small, tenth or full"),
    }
}

/// Repeatedly creates and drops a layer, and asserts that it never sees objects of another layer.
fn run_second_layer(table: &Arc<Table<Heap>>, stop: &AtomicBool, pause: Duration) {
    let supplier = TestSupplier::new(64);
    for turn in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let layer = layer(table, 2 + turn % 3, 1, 1);
        let mut held = vec![];
        for _ in 0..4 {
            held.extend((0..12).map(|_| layer.alloc(&supplier).expect("64 rounds must suffice")));
            assert!(
                held.iter().all(|round| supplier.stamp(*round, 1)),
                "a round of the neighbour layer was allocated twice"
            );
            std::thread::sleep(pause);
            held.drain(..).for_each(|round| {
                assert!(supplier.remove_round_stamp(round, 1));
                layer.free(&supplier, round);
            });
        }
        let stats = layer.stats();
        assert_eq!(
            (stats.allocs, stats.frees),
            (48, 48),
            "the neighbour layer's counts begin at 0 and are exact"
        );
        // Every other layer is dropped with objects on its stacks.
        if turn % 2 == 0 {
            layer.flush_all(&supplier);
            assert_eq!(supplier.census().len(), 64, "the neighbour layer must lose no rounds");
        }
        drop(layer);
        *supplier.free.lock() = (1..=64).collect();
    }
}

fn stress(name: &str, cpus: Cpus, setting: Setting) {
    let _alone = TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let table = table(cpus);
    let layer = layer(&table, setting.capacity, setting.stock, 4);
    let rounds = WORKERS * MAX_HELD_ROUNDS + 4096;
    let supplier = TestSupplier::new(rounds);
    let (usable, operations) = (usable_cpus(), scaled_operations(setting.operations) / WORKERS);
    let (stop, bad, allocs, frees, drains) =
        (AtomicBool::new(false), Counter::new(0), Counter::new(0), Counter::new(0), Counter::new(0));
    let tids = Mutex::new(vec![]);
    let aborts = layer.stats().aborts;
    set_yield_interval(setting.yields);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|t| {
                let (layer, supplier, usable) = (&layer, &supplier, &usable);
                let (bad, allocs, frees, tids) = (&bad, &allocs, &frees, &tids);
                scope.spawn(move || {
                    tids.lock().push(gettid());
                    if setting.threads == Threads::Pinned {
                        pin(Pid::from_raw(0), &usable[t % usable.len()..][..1]);
                    }
                    let (me, mut dice) = (t as u64 + 1, Rng(t as u64 * 77 + 1));
                    let mut held: Vec<TestRound> = Vec::with_capacity(MAX_HELD_ROUNDS);
                    let (mut taken, mut given, mut wrong) = (0, 0, 0);
                    let mut give = |held: &mut Vec<TestRound>, i| {
                        let round = held.swap_remove(i);
                        given += 1;
                        wrong += u64::from(!supplier.remove_round_stamp(round, me));
                        layer.free(supplier, round);
                    };
                    for _ in 0..operations {
                        if held.len() < 4 || held.len() < MAX_HELD_ROUNDS && dice.below(2) == 0 {
                            let Some(round) = layer.alloc(supplier) else { continue };
                            taken += 1;
                            if supplier.stamp(round, me) {
                                held.push(round);
                            } else {
                                // Another thread owns the object, so this thread must not free it.
                                bad.add(1);
                            }
                        } else {
                            let i = dice.below(held.len());
                            give(&mut held, i);
                        }
                    }
                    while !held.is_empty() {
                        give(&mut held, 0);
                    }
                    bad.add(wrong);
                    allocs.add(taken);
                    frees.add(given);
                })
            })
            .collect();
        if let Some(pause) = setting.drains {
            let (table, layer, supplier, stop, drains) = (&table, &layer, &supplier, &stop, &drains);
            scope.spawn(move || run_second_layer(table, stop, pause));
            // Two threads drain the same stacks concurrently.
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    layer.drain(supplier, 0..layer.cpus().count());
                    std::thread::sleep(2 * pause);
                }
            });
            scope.spawn(move || {
                let count = layer.cpus().count();
                for i in (0..=count).cycle() {
                    if stop.load(Relaxed) {
                        break;
                    }
                    match i {
                        i if i < count => layer.drain(supplier, i..i + 1),
                        _ if drains.get() % 7 == 0 => drop(layer.reap(supplier)),
                        _ => layer.drain(supplier, 0..count),
                    }
                    drains.add(1);
                    std::thread::sleep(pause);
                }
            });
        }
        if setting.threads == Threads::Hopping {
            let (usable, tids, stop) = (&usable, &tids, &stop);
            scope.spawn(move || {
                let mut dice = Rng(5);
                while !stop.load(Relaxed) {
                    let thread = {
                        let tids = tids.lock();
                        if tids.is_empty() { gettid() } else { tids[dice.below(tids.len())] }
                    };
                    pin(thread, &usable[dice.below(usable.len())..][..1]);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let ended: Vec<bool> = workers.into_iter().map(|w| w.join().is_ok()).collect();
        stop.store(true, Relaxed);
        assert!(ended.iter().all(|e| *e), "{name}: a worker panicked");
    });
    set_yield_interval(0);
    let stats = layer.stats();
    let aborts = stats.aborts - aborts;
    println!(
        "{name}: {} by {}, {} operations in {:.2?}, {aborts} aborts, {} drains, {} busy, {} fills",
        stats.paths,
        stats.mechanism,
        allocs.get() + frees.get(),
        start.elapsed(),
        drains.get(),
        stats.busy,
        stats.fills,
    );
    assert_eq!(bad.get(), 0, "{name}: rounds allocated or freed twice");
    assert_eq!((stats.allocs, stats.frees), (allocs.get(), frees.get()), "{name}: the counts are exact");
    layer.flush_all(&supplier);
    let free = supplier.census();
    assert_eq!(free.len(), rounds, "{name}: rounds were lost");
    let stats = layer.stats();
    assert_eq!((stats.in_magazines, stats.in_depot), (0, 0), "{name}");
    if stats.mechanism == Mechanism::Rseq {
        let is_slow = std::env::var_os("USLAB_STRESS").is_some_and(|s| s != "full");
        assert!(aborts > 0 || is_slow, "{name}: no section was ever restarted, so nothing was tested");
    } else {
        assert_eq!(aborts, 0, "{name}");
    }
}

const LONG_SETTING: Setting = Setting {
    capacity: 64,
    stock: 17,
    threads: Threads::Free,
    yields: 0,
    drains: Some(Duration::from_millis(1)),
    operations: 60_000_000,
};
const SMALL_SETTING: Setting = Setting {
    capacity: 6,
    stock: 2,
    threads: Threads::Free,
    yields: 16,
    drains: Some(Duration::from_micros(20)),
    operations: 15_000_000,
};

#[test]
fn long_runs_without_drains_lose_no_object() {
    stress("long", Cpus::os(), LONG_SETTING);
}
#[test]
fn tiny_magazines_with_yields_and_drains_lose_no_object() {
    stress("tiny", Cpus::os(), SMALL_SETTING);
}
#[test]
fn stacks_of_two_magazines_lose_no_object() {
    stress("two tiny magazines", Cpus::os(), Setting { capacity: 3, stock: 0, ..SMALL_SETTING });
}
#[test]
fn threads_migrated_between_cpus_lose_no_object() {
    let hopping_setting = Setting { threads: Threads::Hopping, capacity: 30, yields: 64, ..LONG_SETTING };
    stress("hopping", Cpus::os(), Setting { operations: 30_000_000, ..hopping_setting });
}
#[test]
fn pinned_threads_lose_no_object() {
    let pinned = Setting { threads: Threads::Pinned, capacity: 30, ..LONG_SETTING };
    stress("pinned", Cpus::os(), Setting { operations: 30_000_000, ..pinned });
}
#[test]
fn stress_on_a_claimed_slot_loses_no_object() {
    stress("claimed", Cpus::os().claimed(), Setting { operations: 5_000_000, ..SMALL_SETTING });
}

/// A layer must use the expected mechanism, and this mechanism must serve almost all operations.
#[test]
fn magazine_layer_uses_the_expected_cpu_mechanism() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cpus = Cpus::os();
    match std::env::var("USLAB_EXPECT").as_deref() {
        Ok("rseq") => assert_eq!(cpus.mechanism(), Mechanism::Rseq),
        Ok("claimed") => assert_eq!(cpus.mechanism(), Mechanism::Claimed),
        Ok(other) => panic!("USLAB_EXPECT={other}: expected rseq or claimed"),
        Err(_) => {}
    }
    let layer = layer(&table(cpus), 8, 0, 1);
    let supplier = TestSupplier::new(100);
    for _ in 0..1000 {
        let round = layer.alloc(&supplier).expect("the supplier has 100 rounds");
        layer.free(&supplier, round);
    }
    let stats = layer.stats();
    assert_eq!((stats.mechanism, layer.mechanism()), (cpus.mechanism(), cpus.mechanism()));
    // A thread that migrates while it opens a CPU's stack uses another CPU.
    assert!(stats.paths.cpu >= 1980 && stats.busy <= usable_cpus().len() as u64, "{stats:?}");
}

/// A typical mistake would be to read the CPU number only once, or to use CPU 0 always. The test checks that every CPU
/// uses a separate region.
#[test]
fn each_pinned_thread_touches_only_its_cpu_region() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let layer = layer(&table(cpus), 4, 0, 1);
        let (supplier, usable) = (TestSupplier::new(10_000), usable_cpus());
        for (done, cpu) in usable.iter().enumerate() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pin(Pid::from_raw(0), &[*cpu]);
                    let round = layer.alloc(&supplier).expect("the supplier has 10,000 rounds");
                    layer.free(&supplier, round);
                });
            });
            // Each CPU has filled a magazine.
            let stats = layer.stats();
            assert_eq!(stats.in_magazines, 4 * (done as u64 + 1), "{}: {stats:?}", cpus.mechanism());
            // The first allocation filled the magazine of the thread's CPU.
            let done = done as u64 + 1;
            assert_eq!(
                (stats.paths.slab, stats.paths.cpu, stats.busy),
                (done, done, 0),
                "{}",
                cpus.mechanism()
            );
        }
    }
}

/// Regression: on systems where threads register themselves for rseq, the first allocation of each thread missed and
/// fetched a magazine.
#[test]
fn single_allocation_is_served_by_the_stack_of_its_cpu() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (layer, supplier) = (layer(&table(Cpus::os()), 4, 0, 1), TestSupplier::new(10_000));
    for _ in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let round = layer.alloc(&supplier).expect("the supplier has 10,000 rounds");
                layer.free(&supplier, round);
            });
        });
    }
    let stats = layer.stats();
    // Only the first use of each CPU, and operations during which the thread migrated, are served elsewhere.
    assert!(stats.paths.cpu >= 400 - 20 * usable_cpus().len() as u64, "{stats:?}");
}

// ---------------------------------------------------------------- the build

#[test]
fn program_contains_rseq_assembly_only_if_enabled() {
    let program = std::fs::read(std::env::current_exe().expect("the test program must be readable"))
        .expect("the section's bytes must be readable");
    // The name of the section is reversed, so that this test program does not contain the name.
    let mut name = *b"sc_qesr__";
    name.reverse();
    assert_eq!(program.windows(name.len()).any(|bytes| bytes == name), HAS_RSEQ);
    assert!(HAS_RSEQ || Cpus::os().mechanism() == Mechanism::Claimed);
}

// ---------------------------------------------------------------- environments with another choice

/// Runs a test of this file in another process, after `prepare` has set up its command. Returns what the process wrote
/// to standard error.
fn run_child_test(test: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let mut command = Command::new(std::env::current_exe().expect("the test program must be readable"));
    command.args(["--exact", "--include-ignored", "--nocapture", test]);
    let output = prepare(&mut command).output().expect("a process");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{test}: {}\n{out}\n{err}", output.status);
    err
}

#[test]
fn environment_variable_selects_the_claimed_slot() {
    let err = run_child_test("magazine_layer_uses_the_expected_cpu_mechanism", |c| {
        c.env("USLAB_RSEQ", "off").env("USLAB_EXPECT", "claimed")
    });
    assert!(!err.contains("uslab:"), "{err}");
}
#[test]
fn invalid_environment_value_is_reported_and_ignored() {
    let mechanism = match Cpus::os().mechanism() {
        Mechanism::Rseq => "rseq",
        Mechanism::Claimed => "claimed",
    };
    if std::env::var_os("USLAB_RSEQ").is_some_and(|v| v == "off") {
        return;
    }
    let err = run_child_test("magazine_layer_uses_the_expected_cpu_mechanism", |c| {
        c.env("USLAB_RSEQ", "maybe").env("USLAB_EXPECT", mechanism)
    });
    let expected = "uslab: USLAB_RSEQ=maybe: expected on or off; ignored";
    assert_eq!(err.matches(expected).count(), usize::from(HAS_RSEQ), "{err}");
}
/// In this test the libc registers no threads, so each thread registers itself at its first miss. With
/// `USLAB_RSEQ=off`, the test does nothing, because no thread registers itself.
#[test]
fn unregistered_threads_register_themselves_for_rseq() {
    if Cpus::os().mechanism() != Mechanism::Rseq {
        return;
    }
    for test in [
        "magazine_layer_uses_the_expected_cpu_mechanism",
        "each_pinned_thread_touches_only_its_cpu_region",
        "single_allocation_is_served_by_the_stack_of_its_cpu",
    ] {
        run_child_test(test, |c| c.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").env("USLAB_EXPECT", "rseq"));
    }
}

#[test]
fn claimed_slots_are_used_if_a_sandbox_forbids_membarrier() {
    run_child_test("magazine_layer_uses_the_expected_cpu_mechanism", |c| {
        // SAFETY: the closure makes two system calls, which a child may make between fork and exec.
        unsafe { c.env("USLAB_EXPECT", "claimed").pre_exec(refuse_membarrier) }
    });
}

/// If the kernel refuses its barrier, a drain takes nothing. The objects stay on the stacks and are still usable.
#[test]
fn drains_move_no_object_after_a_sandbox_forbids_membarrier() {
    run_child_test("child_drains_without_membarrier", |c| c);
}
#[test]
#[ignore = "puts its process into a sandbox; run by drains_move_no_object_after_a_sandbox_forbids_membarrier"]
fn child_drains_without_membarrier() {
    const ROUNDS: usize = 200;
    let table = table(Cpus::os());
    let (layer, supplier) = (layer(&table, 4, 2, 2), TestSupplier::new(ROUNDS));
    let take = || {
        let held: Vec<TestRound> =
            (0..40).map(|_| layer.alloc(&supplier).expect("the layer must have enough rounds")).collect();
        assert!(held.iter().all(|b| supplier.stamp(*b, 1)), "a round was allocated twice");
        held
    };
    let give = |held: Vec<TestRound>| {
        held.iter().for_each(|b| assert!(supplier.remove_round_stamp(*b, 1)));
        held.into_iter().for_each(|b| layer.free(&supplier, b));
    };
    give(take());
    refuse_membarrier().expect("a filter");
    for _ in 0..5 {
        layer.drain(&supplier, 0..layer.cpus().count());
        give(take());
        layer.reap(&supplier);
    }
    layer.flush_all(&supplier);
    let (left, stats) = (ROUNDS - supplier.census().len(), layer.stats());
    assert_eq!(left as u64, stats.in_magazines + stats.in_depot, "the layer must lose no rounds");
    match layer.mechanism() {
        Mechanism::Claimed => assert_eq!(left, 0, "the claimed mechanism issues no barrier"),
        // At most one stack has objects for each CPU on which this thread ran.
        Mechanism::Rseq => assert!(left > 0 && left <= usable_cpus().len() * 16, "{left} rounds on stacks"),
    }
    // The layer was dropped with objects on its stacks. The layer could not make sure that its class number
    // was unused, so no other layer gets the number.
    drop(layer);
    let (next, nothing) = (rounds::layer(&table, 4, 2, 2), TestSupplier::new(0));
    assert!(
        (0..20).all(|_| next.alloc(&nothing).is_none()),
        "no round belongs to the layer that had the number before"
    );
}

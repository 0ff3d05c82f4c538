//! Property tests of the layer on simulated CPUs, against a shadow model: a plain map of who holds what.
//!
//! I1 to I6 are the invariants that the kmem literature states for magazines: a magazine that leaves a CPU is wholly
//! full or wholly empty (I1, I6); between two visits of a CPU to the shared depot lie at least a magazine's worth of
//! its operations (I2); alternating at any fill level never visits it twice (I3); an empty depot costs no visit (I4);
//! nothing is lost (I5).

use crate::ball::Ball;
use crate::shadow::{self, Setup, Shelf, Step};
use crate::{Config, Cpus, Heap, Layer, Operation, Path, Paths, Supplier, on_cpu};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn setup() -> impl Strategy<Value = Setup> {
    let sizes = (any::<[u8; 5]>(), any::<u8>(), prop::option::weighted(0.2, any::<u8>()));
    (sizes, any::<[u8; 2]>()).prop_map(|((sizes, growth, magazines), [depot_limit, total])| {
        let [cpus, nodes, capacity, first_fill, stock] = sizes;
        Setup { cpus, nodes, capacity, growth, first_fill, stock, depot_limit, magazines, total }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cpu = 0..4_u8;
    let step = prop_oneof![
        8 => cpu.clone().prop_map(|cpu| Step::Alloc { cpu }),
        8 => (cpu.clone(), any::<u16>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        2 => (cpu.clone(), 1..20_u8).prop_map(|(cpu, n)| Step::Burst { cpu, n }),
        1 => (cpu.clone(), 0..32_u8, 0..32_u8, 0..32_u8)
            .prop_map(|(cpu, n, pops, pushes)| Step::Private { cpu, n, pops, pushes }),
        1 => (cpu, 0..5_u8).prop_map(|(from, to)| Step::Drain { from, to }),
        1 => Just(Step::Reap),
        1 => Just(Step::Purge),
        1 => Just(Step::Shrink),
        1 => Just(Step::Grow),
    ];
    prop::collection::vec(step, 1..80)
}

/// A layer of these sizes.
fn layer(cpus: Cpus, capacity: u16, stock: u16, depot_limit: u32) -> Layer<Ball> {
    let config = Config::new(&cpus, capacity, stock, depot_limit);
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    Layer::new(cpus, config, memory).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// I1, I5, I6 on any mix of operations, CPUs, nodes and sizes (I1 and I6 are asserted by the source itself at each
    /// exchange in debug builds).
    #[test]
    fn nothing_is_lost_or_handed_out_twice(setup in setup(), steps in steps()) {
        shadow::run(&setup, steps);
    }

    /// I2: once a CPU has both magazines, at least `capacity` of its operations lie between two of its visits to the
    /// shared depot (one operation may take one magazine there and leave another).
    #[test]
    fn a_magazine_of_operations_lies_between_two_visits(
        capacity in 1..8u16, seq in prop::collection::vec(any::<bool>(), 50..400),
    ) {
        let layer = layer(Cpus::simulated(1, 1).unwrap(), capacity, 0, 1000);
        on_cpu(0);
        // Nothing to fill from: rounds come from the depot or not at all.
        let shelf = Shelf::new(0, 1);
        let mut next = 0;
        let mut held = vec![];
        // Warm: ten full magazines in the depot, and both magazines of the CPU there.
        for _ in 0..12 * usize::from(capacity) {
            next += 1;
            layer.free(&shelf, Ball(next));
        }
        let (mut visits, mut since, mut seen_one) = (layer.stats().depot_exchanges, 0, false);
        for alloc in seq {
            if alloc {
                held.extend(layer.alloc(&shelf));
            } else {
                let ball = held.pop().unwrap_or_else(|| {
                    next += 1;
                    Ball(next)
                });
                layer.free(&shelf, ball);
            }
            since += 1;
            let now = layer.stats().depot_exchanges;
            if now > visits {
                prop_assert!(!seen_one || since >= u32::from(capacity), "{since} operations, {capacity} rounds");
                (visits, since, seen_one) = (now, 0, true);
            }
        }
    }

    /// I3: alternating alloc and free, whatever the fill, does not go on visiting the depot.
    #[test]
    fn alternating_does_not_thrash(capacity in 1..8u16, stock in 0..4u16, before in 0..40usize) {
        let layer = layer(Cpus::simulated(1, 1).unwrap(), capacity, stock, 1000);
        on_cpu(0);
        let shelf = Shelf::new(200, 1);
        let held: Vec<Ball> = (0..before).map(|_| layer.alloc(&shelf).unwrap()).collect();
        held.iter().for_each(|b| layer.free(&shelf, *b));
        let cycle = || {
            let ball = layer.alloc(&shelf).unwrap();
            layer.free(&shelf, ball);
        };
        cycle();
        let warm = layer.stats();
        (0..100).for_each(|_| cycle());
        let s = layer.stats();
        prop_assert_eq!(s.depot_exchanges, warm.depot_exchanges);
        prop_assert_eq!((s.fills, s.flushes), (warm.fills, warm.flushes));
        prop_assert_eq!(s.paths.cpu - warm.paths.cpu, 200, "all of them by the CPU's own magazines");
    }
}

/// 256 by default; `PROPTEST_CASES` sets another number.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(256)
}

/// What the fuzzer found worth keeping.
#[test]
fn the_fuzzers_corpus_agrees_with_the_shadow() {
    let files =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/corpus/layer")).unwrap();
    let replayed = files.map(|file| {
        let path = file.unwrap().path();
        println!("{}", path.display());
        shadow::fuzz(&std::fs::read(path).unwrap());
    });
    assert!(replayed.count() > 0);
}

/// I4: an empty depot is seen without a visit.
#[test]
fn an_empty_depot_costs_no_visit() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 4, 0, 10);
    on_cpu(0);
    let shelf = Shelf::new(100, 1);
    let held: Vec<Ball> = (0..40).map(|_| layer.alloc(&shelf).unwrap()).collect();
    assert_eq!(layer.stats().depot_exchanges, 0);
    assert_eq!(held.len(), 40);
}

#[test]
fn n_workers_touch_n_slots() {
    let layer = layer(Cpus::simulated(8, 1).unwrap(), 4, 0, 10);
    let shelf = Shelf::new(100, 1);
    for cpu in 0..8 {
        on_cpu(cpu);
        let ball = layer.alloc(&shelf).unwrap();
        layer.free(&shelf, ball);
    }
    // Each CPU filled a magazine of its own: 4 rounds each.
    assert_eq!(layer.stats().in_magazines, 32);
}

/// The working set stays; what was not needed through two intervals goes.
#[test]
fn reap_takes_only_what_two_intervals_did_not_need() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 0, 100);
    on_cpu(0);
    let shelf = Shelf::new(40, 1);
    let held: Vec<Ball> = (0..40).map(|_| layer.alloc(&shelf).unwrap()).collect();
    held.iter().for_each(|b| layer.free(&shelf, *b));
    let full = layer.stats().in_depot;
    assert_eq!(full, 36, "40 rounds, 4 of them in the CPU's two magazines");
    assert_eq!(layer.reap(&shelf), 0, "the first interval began with an empty depot");
    // A steady need of 10 rounds.
    let steady = || {
        let held: Vec<Ball> = (0..10).map(|_| layer.alloc(&shelf).unwrap()).collect();
        held.iter().for_each(|b| layer.free(&shelf, *b));
    };
    steady();
    assert_eq!(layer.reap(&shelf), 0, "surplus through one interval only");
    steady();
    let before = layer.stats().in_depot;
    let reaped = layer.reap(&shelf);
    assert_eq!(layer.stats().in_depot + reaped, before, "what was reaped lies here no longer");
    assert!((28..=32).contains(&reaped), "all but what the steady need touched: {reaped}");
    let flushes = layer.stats().flushes;
    for _ in 0..5 {
        steady();
        layer.reap(&shelf);
    }
    let s = layer.stats();
    assert!(s.flushes - flushes <= 1, "a steady load reaches a fixed point: {s:?}");
    assert!(s.in_depot > 0);
}

/// An idle CPU gives back what it holds; a busy one keeps it.
#[test]
fn reap_drains_idle_cpus_only() {
    let layer = layer(Cpus::simulated(2, 1).unwrap(), 4, 0, 10);
    let shelf = Shelf::new(40, 1);
    let touch = |cpu| {
        on_cpu(cpu);
        let ball = layer.alloc(&shelf).unwrap();
        layer.free(&shelf, ball);
    };
    touch(0);
    touch(1);
    layer.reap(&shelf);
    assert_eq!(layer.stats().in_magazines, 8);
    touch(0);
    assert_eq!(layer.reap(&shelf), 4, "CPU 1 did nothing");
    assert_eq!(layer.stats().in_magazines, 4);
}

#[test]
fn a_layer_keeps_no_more_than_it_has_served() {
    let cpus = Cpus::simulated(1, 1).unwrap();
    on_cpu(0);
    let config = Config { first_fill: 1, ..Config::new(&cpus, 100, 4, 4) };
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    let (layer, shelf) = (Layer::new(cpus, config, memory).unwrap(), Shelf::new(1000, 1));
    let mut most = 0;
    for served in 1..=300 {
        layer.alloc(&shelf).unwrap();
        let kept = layer.stats().in_magazines;
        assert!(kept < served, "{kept} rounds after {served} allocations");
        most = most.max(kept);
    }
    assert!(most > 90, "{most}: and then fills whole magazines");
}

#[test]
fn magazines_shrink_when_memory_is_short_and_recover_when_it_is_not() {
    let cpus = Cpus::simulated(1, 1).unwrap();
    on_cpu(0);
    let (layer, shelf) = (layer(cpus, 8, 0, 100), Shelf::new(100, 1));
    let capacity = || layer.stats().capacity;
    layer.shrink();
    layer.shrink();
    assert_eq!(capacity(), 2);
    // Three magazines of two: loaded, previous, and one in the depot.
    let held: Vec<_> = (0..6).map(|_| layer.alloc(&shelf).unwrap()).collect();
    layer.purge(&shelf);
    held.into_iter().for_each(|ball| layer.free(&shelf, ball));
    let s = layer.stats();
    assert_eq!((s.in_magazines, s.in_depot), (4, 2));
    layer.reap(&shelf);
    assert_eq!(capacity(), 2, "memory was short in this interval");
    for expected in [4, 8, 8] {
        layer.reap(&shelf);
        assert_eq!(capacity(), expected);
    }
}

/// One in sixteen visits, and not fewer than eight.
#[test]
fn magazines_grow_where_cpus_meet_at_the_depot() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let config = Config { largest: 7, ..Config::new(&cpus, 2, 0, 1000) };
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    let layer = Layer::new(cpus, config, memory).unwrap();
    // A thread that finds the depot locked, `n` times.
    let meet = |n: usize| {
        for _ in 0..n {
            let held = layer.depots[0].lists.lock();
            let met = layer.stats().depot_contention;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let shelf = Shelf::new(0, 1);
                    (1..=4).for_each(|ball| layer.free(&shelf, Ball(ball)));
                    // The third magazine sends the first one to the depot.
                    (5..=6).for_each(|ball| layer.free(&shelf, Ball(ball)));
                    layer.purge(&shelf);
                });
                while layer.stats().depot_contention == met {
                    std::thread::yield_now();
                }
                drop(held);
            });
        }
        layer.stats().capacity
    };
    assert_eq!(meet(7), 2);
    assert_eq!(meet(1), 4);
    assert_eq!(meet(8), 7, "as large as they get");
    assert_eq!(meet(8), 7);
}

#[test]
fn without_memory_for_magazines_rounds_go_to_the_supplier() {
    let cpus = Cpus::simulated(1, 1).unwrap();
    on_cpu(0);
    let config = Config { magazines: 0, ..Config::new(&cpus, 4, 2, 2) };
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    let layer = Layer::new(cpus, config, memory).unwrap();
    let shelf = Shelf::new(3, 1);
    let ball = layer.alloc(&shelf).unwrap();
    layer.free(&shelf, ball);
    let s = layer.stats();
    assert_eq!((s.allocs, s.frees, s.paths), (1, 1, Paths { slab: 2, ..Paths::default() }));
    assert_eq!(shelf.free.borrow().len(), 3);
}

#[test]
fn memory_that_cannot_hold_the_slots_is_an_error() {
    let cpus = Cpus::simulated(4, 1).unwrap();
    let config = Config::new(&cpus, 4, 0, 1);
    assert!(Layer::<Ball>::new(cpus, config, Heap::new(256).unwrap()).is_err());
}

/// Threads, not steps: four real threads on two simulated CPUs, with a drainer; nothing lost, the counts exact.
#[test]
fn threads_lose_nothing() {
    use crate::sync::Mutex;
    struct Locked(Mutex<Vec<usize>>);
    impl Supplier<Ball> for Locked {
        fn fill(&self, op: &Operation, _: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
            op.did(Path::Slab);
            let mut free = self.0.lock();
            let n = max.min(free.len());
            (0..n).for_each(|_| put(Ball(free.pop().unwrap())));
            n
        }
        fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Ball>) {
            op.did(Path::Slab);
            self.0.lock().extend(rounds.map(|b| b.0));
        }
    }
    let cpus = Cpus::simulated(2, 1).unwrap();
    let layer = layer(cpus, 3, 2, 4);
    let shelf = Locked(Mutex::new((1..=200).collect()));
    let done: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u32)
            .map(|t| {
                let (layer, shelf) = (&layer, &shelf);
                scope.spawn(move || {
                    let (mut held, mut allocs) = (vec![], 0);
                    for i in 0..20_000u32 {
                        on_cpu((t + i / 64) % 2);
                        if (i / (7 + t)) % 2 == 0 {
                            if let Some(ball) = layer.alloc(shelf) {
                                held.push(ball);
                                allocs += 1;
                            }
                        } else if let Some(ball) = held.pop() {
                            layer.free(shelf, ball);
                        }
                    }
                    held.into_iter().for_each(|b| layer.free(shelf, b));
                    allocs
                })
            })
            .collect();
        for _ in 0..200 {
            layer.drain(&shelf, 0..2);
            layer.reap(&shelf);
        }
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    let s = layer.stats();
    assert_eq!((s.allocs, s.frees), (done, done));
    assert_eq!(shelf.node_of(Ball(1)), 0, "a supplier that does not say has one node");
    layer.purge(&shelf);
    let mut back = shelf.0.lock().clone();
    back.sort_unstable();
    assert_eq!(back, (1..=200).collect::<Vec<_>>());
}

/// Equal pairs of two CPUs without magazines once let a thread that was moved between nodes install a magazine of the
/// node that it came from.
#[test]
fn a_thread_moved_between_nodes_installs_no_magazine_of_the_other_node() {
    for at in 1..10 {
        let layer = layer(Cpus::simulated(2, 2).unwrap(), 2, 1, 4);
        let shelf = Shelf::new(40, 2);
        crate::Script { cpu: 0, at, then: 1, aborted: false }.install();
        // Behind each step: the next one may take away what does not belong there.
        let check = |behind: &str| {
            for cpu in 0..2 {
                let pair = layer.store.pair(cpu, crate::slot::Which::Rounds);
                for num in [pair.loaded, pair.previous] {
                    let magazine = layer.store.get(num);
                    for i in 0..magazine.len() {
                        let ball = magazine.round(i as usize).unwrap().addr().get() as u32;
                        assert_eq!(
                            ball % 2,
                            cpu,
                            "moved before read {at}: ball {ball} on CPU {cpu} behind {behind}"
                        );
                    }
                }
            }
        };
        let ball = layer.alloc(&shelf).unwrap();
        check("the first allocation");
        let other = layer.alloc(&shelf).unwrap();
        check("the second allocation");
        layer.free(&shelf, ball);
        check("the first free");
        layer.free(&shelf, other);
        check("the second free");
    }
}

/// `n` rounds out and back, on the current CPU.
fn batch(layer: &Layer<Ball>, shelf: &Shelf, n: usize) {
    let held: Vec<Ball> = (0..n).map(|_| layer.alloc(shelf).unwrap()).collect();
    held.iter().for_each(|b| layer.free(shelf, *b));
}

/// What stock times capacity covers never leaves the CPU again; beyond that, a magazine moves at a time.
#[test]
fn a_batch_that_fits_the_stock_stays_on_its_cpu() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 4, 100);
    on_cpu(0);
    let shelf = Shelf::new(60, 1);
    (0..3).for_each(|_| batch(&layer, &shelf, 10));
    let warm = layer.stats();
    assert!(warm.in_stock > 0 && warm.in_depot == 0, "{warm:?}");
    (0..20).for_each(|_| batch(&layer, &shelf, 10));
    let s = layer.stats();
    assert_eq!((s.depot_exchanges, s.fills, s.magazines), (warm.depot_exchanges, warm.fills, warm.magazines));

    (0..3).for_each(|_| batch(&layer, &shelf, 42));
    let warm = layer.stats();
    (0..10).for_each(|_| batch(&layer, &shelf, 42));
    let s = layer.stats();
    // 15 full magazines go and 15 empty ones come, and back.
    assert_eq!((s.depot_exchanges - warm.depot_exchanges, s.fills - warm.fills), (10 * 60, 0));
    // 21 of rounds and the two of the stocks.
    assert_eq!((s.magazines, s.in_depot), (23, 30));
}

/// A drain keeps empty magazines and the stocks' own ones for later.
#[test]
fn a_drain_and_its_refill_make_no_new_magazines() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 4, 3);
    on_cpu(0);
    let shelf = Shelf::new(60, 1);
    let round = || {
        batch(&layer, &shelf, 20);
        layer.purge(&shelf);
    };
    (0..2).for_each(|_| round());
    let warm = layer.stats();
    (0..10).for_each(|_| round());
    let s = layer.stats();
    assert_eq!(s.magazines, warm.magazines);
    // A flush of each magazine, and only of those; visits for what is missing, and for what is emptied.
    assert_eq!((s.fills - warm.fills, s.flushes - warm.flushes), (100, 100));
    assert_eq!(s.depot_exchanges - warm.depot_exchanges, 170);
}

/// The memory of `footprint` holds the stocks that CPUs use and have in hand, and no more is asked for without stocks.
#[test]
fn the_footprint_holds_three_stock_magazines_a_cpu() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let config = |stock| Config { magazines: 0, ..Config::new(&cpus, 4, stock, 1) };
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config(2000))).unwrap();
    let layer = Layer::<Ball>::new(cpus, config(2000), memory).unwrap();
    let made = core::iter::from_fn(|| layer.store.create(&Operation::new(), 2000, true)).count();
    assert_eq!(made, 6);
    let without = Layer::<Ball>::footprint(&cpus, &config(0));
    assert!(without < Layer::<Ball>::footprint(&cpus, &config(1)));
}

/// With no empty magazine to be had, a full one of the depot is emptied rather than each round sent round.
#[test]
fn without_an_empty_magazine_a_full_one_is_flushed() {
    let cpus = Cpus::simulated(1, 1).unwrap();
    on_cpu(0);
    let config = Config { magazines: 3, ..Config::new(&cpus, 2, 0, 10) };
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    let layer = Layer::new(cpus, config, memory).unwrap();
    let shelf = Shelf::new(0, 1);
    (1..=8).for_each(|b| layer.free(&shelf, Ball(b)));
    let s = layer.stats();
    assert_eq!((s.magazines, s.flushes, s.frees, s.in_magazines + s.in_depot), (3, 1, 8, 6));
    assert_eq!(shelf.free.borrow().len(), 2);
}

/// Only what belongs to another node goes round the magazines.
#[test]
fn rounds_of_the_own_node_stay_in_magazines() {
    let layer = layer(Cpus::simulated(2, 2).unwrap(), 4, 0, 4);
    let shelf = Shelf::new(0, 2);
    on_cpu(0);
    (1..=4).for_each(|b| layer.free(&shelf, Ball(b)));
    let s = layer.stats();
    assert_eq!((s.other_node_frees, s.paths.slab, s.in_magazines), (2, 2, 2));
    assert_eq!(shelf.free.borrow().iter().map(|b| b.0).collect::<Vec<_>>(), [1, 3]);
}

/// Each place is counted by itself.
#[test]
fn the_numbers_say_where_rounds_are() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 1, 100);
    on_cpu(0);
    let shelf = Shelf::new(40, 1);
    let mut private = layer.private(&shelf, 3).unwrap();
    batch(&layer, &shelf, 20);
    let s = layer.stats();
    assert_eq!((s.in_magazines, s.in_stock, s.in_depot), (4, 2 + private.len() as u64, 14));
    assert_eq!((s.magazines, s.depot_exchanges, private.len()), (13, 7, 3));
    private.close(&shelf);
    assert_eq!(
        crate::TooSmall.to_string(),
        "the memory for the magazines is too small, unaligned or could not be committed"
    );
}

/// A magazine that a drain finds empty is kept, not flushed.
#[test]
fn a_drain_flushes_only_what_holds_rounds() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 0, 4);
    on_cpu(0);
    let shelf = Shelf::new(10, 1);
    // Loaded: one round is left; previous: empty.
    assert_eq!((0..3).filter_map(|_| layer.alloc(&shelf)).count(), 3);
    layer.drain(&shelf, 0..1);
    let s = layer.stats();
    assert_eq!((s.magazines, s.fills, s.flushes, s.in_magazines), (2, 2, 1, 0));
}

/// A visit that waits for another one is counted.
#[test]
fn who_waits_for_the_depot_is_counted() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 1, 0, 4);
    let shelf = crate::sync::Mutex::new(Shelf::new(0, 1));
    let depot = &layer.depots[0];
    std::thread::scope(|scope| {
        let visiting = depot.lists.lock();
        scope.spawn(|| {
            on_cpu(0);
            (1..=3).for_each(|b| layer.free(&*shelf.lock(), Ball(b)));
        });
        while depot.contention.get() == 0 {
            crate::sync::relax();
        }
        drop(visiting);
    });
    assert_eq!(layer.stats().depot_contention, 1);
}

/// A private magazine hands out what it says it holds, takes it back, and gives all of it up.
#[test]
fn a_private_magazine_takes_and_gives() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 0, 4);
    on_cpu(0);
    let shelf = Shelf::new(20, 1);
    let mut private = layer.private(&shelf, 5).unwrap();
    assert!(private.len() >= 5 && !private.is_empty());
    // The loaded magazine is half full.
    assert!(private.refill(&shelf, 9));
    assert!(private.len() >= 9);
    let mut out = vec![private.pop().unwrap()];
    let visits = layer.stats().depot_exchanges;
    let held = private.len();
    for left in (0..held).rev() {
        out.extend(private.pop());
        assert_eq!(private.len(), left);
    }
    assert!(private.is_empty() && private.pop().is_none());
    assert_eq!(out.iter().collect::<BTreeSet<_>>().len(), out.len(), "a ball handed out twice");
    out.iter().for_each(|ball| private.push(&shelf, *ball));
    assert_eq!(private.len(), out.len(), "it keeps as many as it was asked for");
    assert_eq!(layer.stats().depot_exchanges, visits, "and its empty magazines meanwhile");
    private.close(&shelf);
    assert_eq!(private.len(), 0);
    let s = layer.stats();
    assert_eq!((s.allocs, s.frees), (out.len() as u64, out.len() as u64));
    layer.purge(&shelf);
    assert_eq!(shelf.free.borrow().len(), 20);
}

/// Full magazines that the layer has are taken as they are, and empty ones beyond what it keeps go back to it.
#[test]
fn a_private_magazine_takes_full_magazines_and_gives_empty_ones_back() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 0, 4);
    on_cpu(0);
    // Nothing to fill from: four rounds in the CPU's magazines, four in the depot.
    let shelf = Shelf::new(0, 1);
    (1..=8).for_each(|b| layer.free(&shelf, Ball(b)));
    let visits = || layer.stats().depot_exchanges;
    let before = visits();
    let mut private = layer.private(&shelf, 2).unwrap();
    assert_eq!((private.len(), visits() - before), (2, 1));
    let mut out = vec![private.pop().unwrap(), private.pop().unwrap()];
    assert!(private.refill(&shelf, 2));
    assert_eq!((private.len(), visits() - before), (2, 2));
    // One empty magazine stays behind the loaded one, as one full one would.
    out.extend(core::iter::from_fn(|| private.pop()));
    assert_eq!((out.len(), visits() - before), (4, 3));
    private.close(&shelf);
    out.into_iter().for_each(|ball| layer.free(&shelf, ball));
    layer.purge(&shelf);
    assert_eq!(shelf.free.borrow().len(), 8);
}

#[test]
fn a_config_counts_cpus_and_depots() {
    let cpus = Cpus::simulated(4, 2).unwrap();
    let config = Config { largest: 10, ..Config::new(&cpus, 5, 2, 7) };
    // A CPU: two of rounds, two in hand and both stocks; a depot: seven full and seven empty ones.
    assert_eq!(config.magazines, 4 * (4 + 2 * 2) + 2 * (7 + 7));
    // Full ones: two and a stock for a CPU, seven for a depot.
    assert_eq!(config.most_rounds(&cpus), (4 * (2 + 2) + 2 * 7) * 10);
}

/// A magazine made before takes the size of now when it comes by empty.
#[test]
fn a_magazine_that_comes_by_is_made_smaller() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 8, 0, 100);
    on_cpu(0);
    let shelf = Shelf::new(100, 1);
    let held: Vec<_> = (0..12).map(|_| layer.alloc(&shelf).unwrap()).collect();
    layer.purge(&shelf);
    layer.shrink();
    held.into_iter().for_each(|ball| layer.free(&shelf, ball));
    let s = layer.stats();
    assert_eq!((s.magazines, s.in_magazines, s.in_depot), (3, 8, 4));
}

/// Once the pop that follows an exchange with the depot counted as a hit: 99.9 % of them beside a visit every other operation.
#[test]
fn a_retry_behind_a_depot_visit_is_no_hit() {
    let layer = layer(Cpus::simulated(1, 1).unwrap(), 2, 0, 1);
    on_cpu(0);
    let shelf = Shelf::new(0, 1);
    let mut before = Paths::default();
    let mut class = || {
        let now = layer.stats().paths;
        let moved: Vec<_> = Path::ALL.into_iter().filter(|path| now.of(*path) != before.of(*path)).collect();
        assert_eq!(now.operations(), before.operations() + 1);
        before = now;
        moved[0]
    };
    let frees = (1..=8).map(|ball| {
        layer.free(&shelf, Ball(ball));
        class()
    });
    use Path::{Cpu, Depot, Slab};
    // Magazines are made for balls 1, 3, 5 and 7. The one of balls 1 and 2 goes to the depot, which has room for no other:
    // balls 3 and 4 go to the shelf.
    assert_eq!(frees.collect::<Vec<_>>(), [Depot, Cpu, Depot, Cpu, Depot, Cpu, Slab, Cpu]);
    let allocs = (0..8).map(|_| {
        layer.alloc(&shelf).unwrap();
        class()
    });
    // The loaded magazine, the previous one after a swap, the depot's, and one that is filled from the shelf.
    assert_eq!(allocs.collect::<Vec<_>>(), [Cpu, Cpu, Cpu, Cpu, Depot, Cpu, Slab, Cpu]);
    assert_eq!(layer.alloc(&shelf), None);
    let paths = Paths { cpu: 10, depot: 4, slab: 2, ..Paths::default() };
    assert_eq!(layer.stats().paths, paths, "what failed is no operation");
}

/// Once reports divided what magazines had served by less than all operations, and showed more than 100 %.
#[test]
fn shares_never_exceed_the_operations() {
    let layer = layer(Cpus::simulated(2, 1).unwrap(), 3, 1, 2);
    let shelf = Shelf::new(60, 1);
    for round in 0..40 {
        on_cpu(round % 2);
        let held: Vec<_> = (0..round).filter_map(|_| layer.alloc(&shelf)).collect();
        held.into_iter().for_each(|ball| layer.free(&shelf, ball));
        let mut private = layer.private(&shelf, 5).unwrap();
        let out: Vec<_> = (0..9).filter_map(|_| private.pop()).collect();
        out.into_iter().for_each(|ball| private.push(&shelf, ball));
        private.close(&shelf);
        layer.reap(&shelf);
        layer.drain(&shelf, 0..1);
        let s = layer.stats();
        assert_eq!(s.paths.operations(), s.allocs + s.frees, "{s:?}");
        let shares = Path::ALL.into_iter().filter_map(|path| s.paths.share(path));
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

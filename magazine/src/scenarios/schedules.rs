//! Shuttle scenarios: four threads run on two CPUs, and each CPU's stack has room for three magazines of two objects.
//! Sometimes a thread runs on a third CPU that has no region. Before each operation, the schedule chooses the thread's
//! CPU and its next migration. The schedule also chooses if the migration aborts a restartable sequence.

use super::linearizable::{Object, OwnedOp, Recorder, check_each_object_history};
use super::world::{DepotWorld, ThreadFn, World, continue_as_child, fork, table};
use crate::cpu::{Cpus, Mechanism, Script};
use crate::layer::Config;
use crate::sync::schedule::{Schedules, choose};
use crate::sync::{Arc, Counter, thread};
use crate::test_round::TestRound;
use crate::threads::{migrate_between_cpus, run_concurrently, run_in_threads};
use crate::tracepoints::Operation;

const ROUNDS: usize = 12;
const STEPS: usize = 12;

/// There are few objects and a small depot, so the supplier runs out of objects, and the depot runs empty and
/// overflows.
const CONFIG: Config = Config { capacity: 2, first_fill: 1, stock: 1, depot_limit: 1, round_bytes: 0 };

fn world(by: Mechanism) -> World {
    let table = table(Cpus::simulated(2, 1).unwrap().with_mechanism(by), 1);
    let w = World::on(&table, CONFIG, true, ROUNDS);
    w.give_rounds_to_supplier(&(1..=ROUNDS).collect::<Vec<_>>());
    w
}

fn churn(w: &World) -> Vec<Option<usize>> {
    let mut held = vec![];
    for _ in 0..STEPS {
        migrate_between_cpus(w.layer.cpus().count());
        match held.pop() {
            Some(Some(round)) if choose(2) == 0 => w.free(round),
            last => held.extend(last.into_iter().chain([w.alloc()])),
        }
    }
    held
}
/// Allocates as many objects as possible and frees all of them. Such allocations and frees make stacks grow, overflow
/// and run empty.
fn run_batches(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 6 {
        migrate_between_cpus(w.layer.cpus().count());
        let all: Vec<usize> = (0..STEPS / 2).filter_map(|_| w.alloc()).collect();
        migrate_between_cpus(w.layer.cpus().count());
        all.into_iter().for_each(|round| w.free(round));
    }
    vec![]
}

fn run_drains(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 2 {
        migrate_between_cpus(w.layer.cpus().count());
        match choose(6) {
            0 => w.drain(0..1),
            1 => w.drain(1..2),
            2 => w.layer.flush_all(&w.supplier),
            3 => _ = w.layer.reap(&w.supplier),
            4 => w.layer.shrink(),
            _ => {
                assert!(w.layer.stats().in_depot <= ROUNDS as u64, "no more rounds are allocated than exist")
            }
        }
    }
    vec![]
}

/// Four threads allocate and free objects, and sometimes drain. The operations must be linearizable: each takes effect
/// at one point in time, in the same order for all threads.
pub(super) fn history(by: Mechanism) {
    struct RecordedWorld {
        world: World,
        recorder: Recorder<OwnedOp>,
    }
    fn side(RecordedWorld { world, recorder }: &RecordedWorld, thread: usize) {
        let mut held: Vec<TestRound> = vec![];
        for _ in 0..STEPS {
            migrate_between_cpus(world.layer.cpus().count());
            match choose(5) {
                0 | 1 => {
                    let call = || world.layer.alloc(&world.supplier);
                    // A failed allocation is not recorded, because the counts of other threads may lag.
                    let op = |round: &Option<TestRound>| round.map(|round| OwnedOp::Alloc(round.0));
                    held.extend(recorder.call(call, op));
                }
                2 if thread == 0 => drop(run_drains(world)),
                _ => {
                    if let Some(round) = held.pop() {
                        let free = || world.layer.free(&world.supplier, round);
                        recorder.call(free, |()| Some(OwnedOp::Free(round.0)));
                    }
                }
            }
        }
    }
    let seen = Arc::new(RecordedWorld { world: world(by), recorder: Recorder::new() });
    run_in_threads(&seen, 4, side);
    let outcome =
        check_each_object_history(&Object { owned: false }, &seen.recorder.history(), OwnedOp::object);
    assert!(outcome.is_ok(), "no sequential order explains the results: {outcome:?}");
}

/// Acquires all locks, as a forking process does, and releases them.
fn run_forks(w: &World) -> Vec<Option<usize>> {
    (0..STEPS / 3).for_each(|_| fork(w));
    vec![]
}

/// Runs the function `left` on CPU 0, and at the same time the functions `others` on CPU 1.
fn run_on_two_cpus(world: World, left: ThreadFn, others: [ThreadFn; 3]) -> (Arc<World>, Vec<usize>) {
    let world = Arc::new(world);
    let live = run_concurrently(&world, (Script::on(0), left), &others.map(|side| (Script::on(1), side)));
    (world, live)
}

pub(super) fn exchange(by: Mechanism) {
    let (world, live) = run_on_two_cpus(world(by), churn, [churn, run_batches, churn]);
    world.census(&live);
}
pub(super) fn drain(by: Mechanism) {
    let (world, live) = run_on_two_cpus(world(by), churn, [run_batches, run_drains, run_drains]);
    world.census(&live);
    world.drain(0..world.layer.cpus().count());
    world.assert_cpus_hold_no_round("a drain");
    // The effect of a memory shortage ends after some intervals.
    (0..4).for_each(|_| _ = world.layer.reap(&world.supplier));
    world.census(&live);
}
/// One thread closes and flushes a layer while other threads use it. At the end, the supplier has all objects except
/// the objects that the other threads own.
pub(super) fn closed(by: Mechanism) {
    let closes = |w: &World| {
        migrate_between_cpus(w.layer.cpus().count());
        w.layer.close();
        w.layer.flush_all(&w.supplier);
        vec![]
    };
    let (world, live) = run_on_two_cpus(world(by), closes, [churn, run_batches, churn]);
    world.assert_cpus_hold_no_round("a flush of a closed layer");
    assert_eq!(world.layer.stats().in_depot, 0, "a closed depot is empty");
    world.census(&live);
}
/// Repeatedly decommits idle pages, and asserts that the operation counts never decrease.
fn run_decommits(w: &World) -> Vec<Option<usize>> {
    let mut before = 0;
    for _ in 0..STEPS / 2 {
        migrate_between_cpus(w.layer.cpus().count());
        w.layer.table.decommit_idle();
        let stats = w.layer.stats();
        assert!(stats.allocs + stats.frees >= before, "every operation is counted");
        before = stats.allocs + stats.frees;
    }
    vec![]
}
/// One thread decommits idle pages while two threads use stacks on these pages and one thread drains.
pub(super) fn pages(by: Mechanism) {
    let (world, live) = run_on_two_cpus(world(by), churn, [run_batches, run_drains, run_decommits]);
    world.census(&live);
}
/// Threads run on two nodes with one CPU each, and half of the objects belong to each node.
pub(super) fn nodes(by: Mechanism) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, CONFIG, true, ROUNDS);
    w.supplier.second_node = ROUNDS / 2 + 1;
    w.give_rounds_to_supplier(&(1..=ROUNDS).collect::<Vec<_>>());
    let (world, live) = run_on_two_cpus(w, churn, [churn, run_batches, run_drains]);
    world.census(&live);
}
pub(super) fn forks(by: Mechanism) {
    let (world, live) = run_on_two_cpus(world(by), churn, [churn, run_drains, run_forks]);
    continue_as_child(&world);
    world.census(&live);
}
/// Threads create and drop layers in a table while another layer of this table stays in use.
pub(super) fn numbers(by: Mechanism) {
    let table = table(Cpus::simulated(2, 1).unwrap().with_mechanism(by), 3);
    let w = World::on(&table, CONFIG, true, ROUNDS);
    w.give_rounds_to_supplier(&(1..=ROUNDS).collect::<Vec<_>>());
    let world = Arc::new(w);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let table = table.clone();
            thread::spawn(move || {
                for first in (1..STEPS).step_by(3) {
                    let mine = [first, first + 1, first + 2];
                    let guest = World::on(&table, CONFIG, true, first + 2);
                    guest.give_rounds_to_supplier(&mine);
                    for _ in 0..3 {
                        migrate_between_cpus(2);
                        let round = guest.alloc();
                        assert!(
                            round.is_none_or(|round| mine.contains(&round)),
                            "no round belongs to the layer that had the number before"
                        );
                        // Objects on the dropped layer's stacks are leaked.
                        round.filter(|_| choose(2) == 0).into_iter().for_each(|round| guest.free(round));
                    }
                }
            })
        })
        .collect();
    let live = run_concurrently(&world, (Script::on(0), churn), &[(Script::on(1), run_drains as ThreadFn)]);
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.census(&live);
}

/// Three threads take magazines from a depot and put them back, while one thread ends reaping intervals.
pub(super) fn depot() {
    const MAGAZINES: usize = 5;
    struct Crowd {
        depot: Arc<DepotWorld>,
        held: Vec<Counter>,
    }
    impl Crowd {
        fn take(&self) -> Option<usize> {
            let round = self.depot.take()?;
            assert_eq!(self.held[round].get(), 0, "each magazine is in one place");
            self.held[round].set(1);
            Some(round)
        }
        fn put(&self, round: usize) {
            self.held[round].set(0);
            self.depot.put(round);
        }
    }
    let depot = DepotWorld::new(MAGAZINES);
    (0..MAGAZINES).for_each(|round| depot.put(round));
    let crowd = Arc::new(Crowd { depot, held: (0..MAGAZINES).map(|_| Counter::new(0)).collect() });
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let crowd = crowd.clone();
            thread::spawn(move || {
                let mut mine = vec![];
                for _ in 0..STEPS {
                    match mine.pop() {
                        Some(round) if choose(2) == 0 => crowd.put(round),
                        last => mine.extend(last.into_iter().chain(crowd.take())),
                    }
                }
                mine.into_iter().for_each(|round| crowd.put(round));
            })
        })
        .collect();
    let (depot, mut before) = (&crowd.depot.depot, 0);
    for _ in 0..STEPS {
        let surplus = depot.surplus(&Operation::new());
        assert!(surplus <= before, "a reap keeps the rounds that were just freed");
        let taken: Vec<usize> = (0..surplus).filter_map(|_| crowd.take()).collect();
        taken.into_iter().for_each(|round| crowd.put(round));
        // The depot's length at the start of the interval bounds the surplus.
        before = depot.look().len() as u32;
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    crowd.depot.census(&[]);
}

/// A scenario that runs twice: with the claimed mechanism, and with rseq.
pub(super) struct BothMechanisms(pub(super) Schedules);

impl BothMechanisms {
    pub(super) fn run(self, name: &str, f: fn(Mechanism)) {
        self.0.run(&format!("{name} (claimed)"), move || f(Mechanism::Claimed));
        self.0.run(&format!("{name} (rseq)"), move || f(Mechanism::Rseq));
    }
    /// Asserts that the scenario detects the planted bug with each of the two mechanisms.
    pub(super) fn bug(self, bug: &'static str, property: &str, expected: &'static str, f: fn(Mechanism)) {
        self.0.bug(bug, property, expected, move || f(Mechanism::Claimed));
        self.0.bug(bug, property, expected, move || f(Mechanism::Rseq));
    }
    pub(super) fn claimed(self, bug: &'static str, property: &str, expected: &'static str, f: fn(Mechanism)) {
        self.0.bug(bug, property, expected, move || f(Mechanism::Claimed));
    }
    pub(super) fn rseq(self, bug: &'static str, property: &str, expected: &'static str, f: fn(Mechanism)) {
        self.0.bug(bug, property, expected, move || f(Mechanism::Rseq));
    }
}

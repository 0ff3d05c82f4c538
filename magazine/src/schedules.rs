//! The layer under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! A scenario's name begins with the properties that it is of, as a model's does, and it ends in the same census (`world`).
//! Four threads on two CPUs, whose stacks have room for three magazines of two rounds, and sometimes on a third CPU that has no
//! region; before each operation the schedule chooses where the thread is, where it is moved, and whether a restartable
//! sequence is aborted there. Sequentially consistent: orderings are loom's business.

use crate::cpu::{Cpus, Mechanism, Script};
use crate::layer::Config;
use crate::paths::Operation;
use crate::sync::schedule::{caught, choose, schedules, wander};
use crate::sync::{Arc, Counter, thread};
use crate::world::{DepotWorld, Side, World, child, fork, table, together};

const BALLS: usize = 12;
const STEPS: usize = 12;
/// Schedules of each kind,
const RUNS: usize = 10_000;
/// and, for each seed, in which a planted bug must be found.
const SOON: usize = 5000;

/// Few rounds and a small depot: the supplier refuses, the depot runs dry and overflows.
const CONFIG: Config = Config { capacity: 2, first_fill: 1, stock: 1, depot_limit: 1 };

fn world(by: Mechanism) -> World {
    let table = table(Cpus::simulated(2, 1).unwrap().by(by), 1);
    let w = World::on(&table, CONFIG, true, BALLS);
    w.with_supplier(&(1..=BALLS).collect::<Vec<_>>());
    w
}

/// Allocates and frees.
fn works(w: &World) -> Vec<Option<usize>> {
    let mut held = vec![];
    for _ in 0..STEPS {
        wander(w.layer.cpus().count());
        match held.pop() {
            Some(Some(round)) if choose(2) == 0 => w.free(round),
            last => held.extend(last.into_iter().chain([w.alloc()])),
        }
    }
    held
}
/// Allocates as much as it can, and frees all of it: stacks grow, overflow and run dry.
fn batches(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 6 {
        wander(w.layer.cpus().count());
        let all: Vec<usize> = (0..STEPS / 2).filter_map(|_| w.alloc()).collect();
        wander(w.layer.cpus().count());
        all.into_iter().for_each(|round| w.free(round));
    }
    vec![]
}

/// Takes away what CPUs hold, and counts.
fn drains(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 2 {
        wander(w.layer.cpus().count());
        match choose(6) {
            0 => w.drain(0..1),
            1 => w.drain(1..2),
            2 => w.layer.purge(&w.supplier),
            3 => _ = w.layer.reap(&w.supplier),
            4 => w.layer.shrink(),
            _ => assert!(w.layer.stats().in_depot <= BALLS as u64, "more rounds than there are"),
        }
    }
    vec![]
}

/// Holds all locks, as for a fork.
fn holds(w: &World) -> Vec<Option<usize>> {
    (0..STEPS / 3).for_each(|_| fork(w));
    vec![]
}

/// The left side on CPU 0, the others on CPU 1.
fn beside(world: World, left: Side, others: [Side; 3]) -> (Arc<World>, Vec<usize>) {
    let world = Arc::new(world);
    let live = together(&world, (Script::on(0), left), &others.map(|side| (Script::on(1), side)));
    (world, live)
}

fn exchange(by: Mechanism) {
    let (world, live) = beside(world(by), works, [works, batches, works]);
    world.census(&live);
}
fn drain(by: Mechanism) {
    let (world, live) = beside(world(by), works, [batches, drains, drains]);
    world.census(&live);
    world.drain(0..world.layer.cpus().count());
    world.cpus_hold_nothing("a drain");
    // What was short of memory is not for ever.
    (0..4).for_each(|_| _ = world.layer.reap(&world.supplier));
    world.census(&live);
}
/// A layer is closed and purged beside others: what they do not hold in the end is with the supplier.
fn closed(by: Mechanism) {
    let closes = |w: &World| {
        wander(w.layer.cpus().count());
        w.layer.close();
        w.layer.purge(&w.supplier);
        vec![]
    };
    let (world, live) = beside(world(by), closes, [works, batches, works]);
    world.cpus_hold_nothing("a purge of a closed layer");
    assert_eq!(world.layer.stats().in_depot, 0, "a depot that is closed is empty");
    world.census(&live);
}
/// Two nodes of a CPU each, half of the rounds of either.
fn nodes(by: Mechanism) {
    let table = table(Cpus::simulated(2, 2).unwrap().by(by), 2);
    let mut w = World::on(&table, CONFIG, true, BALLS);
    w.supplier.second_node = BALLS / 2 + 1;
    w.with_supplier(&(1..=BALLS).collect::<Vec<_>>());
    let (world, live) = beside(w, works, [works, batches, drains]);
    world.census(&live);
}
fn forks(by: Mechanism) {
    let (world, live) = beside(world(by), works, [works, drains, holds]);
    child(&world);
    world.census(&live);
}
/// Layers come and go on one table, beside one that stays.
fn numbers(by: Mechanism) {
    let table = table(Cpus::simulated(2, 1).unwrap().by(by), 3);
    let w = World::on(&table, CONFIG, true, BALLS);
    w.with_supplier(&(1..=BALLS).collect::<Vec<_>>());
    let world = Arc::new(w);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let table = table.clone();
            thread::spawn(move || {
                for first in (1..STEPS).step_by(3) {
                    let mine = [first, first + 1, first + 2];
                    let brief = World::on(&table, CONFIG, true, first + 2);
                    brief.with_supplier(&mine);
                    for _ in 0..3 {
                        wander(2);
                        let round = brief.alloc();
                        assert!(
                            round.is_none_or(|round| mine.contains(&round)),
                            "a round of the layer before"
                        );
                        // What lies on its stacks is forgotten with it.
                        round.filter(|_| choose(2) == 0).into_iter().for_each(|round| brief.free(round));
                    }
                }
            })
        })
        .collect();
    let live = together(&world, (Script::on(0), works), &[(Script::on(1), drains as Side)]);
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.census(&live);
}

/// A depot alone: three threads take magazines and put them back, one ends intervals.
fn depot() {
    const MAGAZINES: usize = 5;
    struct Crowd {
        depot: Arc<DepotWorld>,
        held: Vec<Counter>,
    }
    impl Crowd {
        fn take(&self) -> Option<usize> {
            let round = self.depot.take()?;
            assert_eq!(self.held[round].get(), 0, "a magazine in two places");
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
        assert!(surplus <= before, "a reap takes what has just come");
        let taken: Vec<usize> = (0..surplus).filter_map(|_| crowd.take()).collect();
        taken.into_iter().for_each(|round| crowd.put(round));
        // It was so long in the interval that begins: no more can have been there all the time.
        before = depot.look().len() as u32;
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    crowd.depot.census(&[]);
}

fn both(name: &str, f: fn(Mechanism)) {
    schedules(&format!("{name} (claimed)"), RUNS, move || f(Mechanism::Claimed));
    schedules(&format!("{name} (rseq)"), RUNS, move || f(Mechanism::Rseq));
}
#[test]
fn exchanges() {
    both("R1 R3 M1 M2 M3 M4 H4: four threads exchange", exchange);
}
#[test]
fn drained() {
    both("H1 H2 H3 H4 T1: two drain what two use", drain);
}
#[test]
fn closed_beside_others() {
    both("H5: a layer is closed beside three that use it", closed);
}
#[test]
fn of_two_nodes() {
    both("N1 M2 T1: two nodes, and a drain", nodes);
}
#[test]
fn forked() {
    both("F1: forks beside an exchange and drains", forks);
}
#[test]
fn come_and_gone() {
    both("T2 T1: layers come and go beside one that stays", numbers);
}
#[test]
fn depots() {
    schedules("D1 D2 D3 D4: three exchange with a depot that is reaped", RUNS, depot);
}

fn claimed(bug: &'static str, property: &str, expected: &'static str, f: fn(Mechanism)) {
    caught(bug, property, SOON, expected, move || f(Mechanism::Claimed));
}
fn rseq(bug: &'static str, property: &str, expected: &'static str, f: fn(Mechanism)) {
    caught(bug, property, SOON, expected, move || f(Mechanism::Rseq));
}
const TWICE: &str = "handed out or freed twice";
const LOST: &str = "every round in one place";
#[test]
fn planted_in_an_exchange() {
    claimed("a region is used without its claim", "M1 M3", TWICE, exchange);
    rseq("section not armed", "R1", TWICE, exchange);
    rseq("operations counted before the commit", "R3", "the counts are exact", exchange);
    rseq("a batch is committed before its rounds are written", "R1", LOST, exchange);
    for with in [claimed, rseq] {
        with("a magazine that left a stack is forgotten", "M2", LOST, exchange);
        with("a magazine in the depot and with the supplier", "M2", LOST, exchange);
        with("a batch is taken for pushed", "M2", LOST, exchange);
        with(
            "the supplier fills under the lock of drains",
            "M4",
            "user code would run while a lock is held",
            exchange,
        );
        with("a CPU beyond the table has a region", "H4", "the empty region stays empty", exchange);
    }
}
#[test]
fn planted_in_a_drain() {
    rseq("a region read before the section", "T1", LOST, drain);
    rseq("a table word is put back before the region is done with", "T1", LOST, drain);
    claimed("drain without its fence", "H1 T1", LOST, drain);
    rseq("drain without its fence", "H1 T1", TWICE, drain);
    for with in [claimed, rseq] {
        with("a drained stack stays open", "T1", LOST, drain);
        with("a drained stack is opened at once", "T1", LOST, drain);
        with("the first of two drains opens the stack", "H3 T1", LOST, drain);
        with("a drain gives away what another one took", "H3", LOST, drain);
        with("drains without their lock", "H3", "no drain is at work, and the class is open", drain);
        with("drain does nothing", "H1", "a drain leaves nothing behind", drain);
    }
}
#[test]
fn planted_beside() {
    claimed("claims outlive their threads", "F1", "a claim or a drain of a thread that is no more", forks);
    for with in [claimed, rseq] {
        let bug = "a round goes to the node of the CPU that frees it";
        with(bug, "N1", "rounds of that node only", nodes);
        with("drains outlive their threads", "F1", "a claim or a drain of a thread that is no more", forks);
        with("a closed class leaves empty stacks open", "H5", "a purge of a closed layer leaves", closed);
        with("a depot that is closed takes magazines", "H5", "a depot that is closed is empty", closed);
        with("a number is given back when one CPU is drained", "T2", "a round of the layer before", numbers);
    }
}
#[test]
fn planted_in_a_depot() {
    let expected = "a reap takes what has just come";
    caught("depot length from before the lock", "D3 D4", SOON, expected, depot);
    let bug = "a magazine is taken from the depot and left there";
    caught(bug, "D1", SOON, "a magazine in two places", depot);
    caught("reap ignores the working set", "D4", SOON, expected, depot);
}

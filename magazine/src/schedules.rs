//! The layer under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! A scenario's name begins with the properties that it is of, as a model's does, and it ends in the same census (`world`).
//! Four threads on two CPUs of two magazines each, and sometimes on a third CPU that has no slot; before each operation the
//! schedule chooses where the thread is, where it is moved, and whether a restartable sequence is aborted there.
//! Sequentially consistent: orderings are loom's business.

use crate::ball::Ball;
use crate::cpu::{Mechanism, Script};
use crate::layer::Round;
use crate::paths::Operation;
use crate::slot::{Fill, Num};
use crate::sync::schedule::{caught, choose, schedules, wander};
use crate::sync::{Arc, Counter, thread};
use crate::world::{DepotWorld, Side, World, child, fork, run, together};

const BALLS: usize = 8;
const STEPS: usize = 12;
/// Schedules of each kind,
const RUNS: usize = 10_000;
/// and, for each seed, in which a planted bug must be found.
const SOON: usize = 5000;

/// Few balls and few magazines: the supplier refuses, the depot runs dry, stocks overflow.
fn world(by: Mechanism) -> World {
    let w = World::new(by, 2, 8, 2, 1, true, BALLS);
    w.on_shelf(&(1..=BALLS).collect::<Vec<_>>());
    w
}

/// Allocates and frees.
fn works(w: &World) -> Vec<Option<usize>> {
    let mut held = vec![];
    for _ in 0..STEPS {
        wander(w.layer.cpus.count());
        match held.pop() {
            Some(Some(ball)) if choose(2) == 0 => w.free(ball),
            last => held.extend(last.into_iter().chain([w.alloc()])),
        }
    }
    held
}

/// Takes away what CPUs hold, and counts.
fn drains(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 2 {
        wander(w.layer.cpus.count());
        match choose(5) {
            0 => w.drain(0..1),
            1 => w.drain(1..2),
            2 => w.layer.purge(&w.shelf),
            3 => _ = w.layer.reap(&w.shelf),
            _ => assert!(w.layer.stats().magazines <= 8 + 6, "more magazines than were made"),
        }
    }
    vec![]
}

/// Takes rounds into a magazine of its own, uses them and gives all back.
fn keeps(w: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 3 {
        wander(w.layer.cpus.count());
        let Some(mut private) = w.layer.private(&w.shelf, 1 + choose(4)) else { continue };
        for _ in 0..choose(3) {
            let Some(Ball(ball)) = private.pop() else { break };
            w.allocs.add(1);
            w.own(ball, true);
            w.own(ball, false);
            w.frees.add(1);
            private.push(&w.shelf, Ball(ball));
        }
        private.close(&w.shelf);
    }
    vec![]
}

/// Holds all locks, as for a fork.
fn holds(w: &World) -> Vec<Option<usize>> {
    (0..STEPS / 3).for_each(|_| fork(w));
    vec![]
}

/// One CPU and three magazines of one round, without a stock: pairs come back.
fn pairs(by: Mechanism) {
    let w = World::new(by, 1, 3, 1, 0, true, 4);
    w.on_shelf(&[1, 2, 3, 4]);
    run(w, (Script::on(0), works), &[works as Side, drains].map(|side| (Script::on(0), side)));
}
fn exchange(by: Mechanism) {
    run(world(by), (Script::on(0), works), &[(Script::on(1), works as Side); 3]);
}
fn drain(by: Mechanism) {
    let others: [Side; 3] = [works, drains, drains];
    let world = Arc::new(world(by));
    let live = together(&world, (Script::on(0), works), &others.map(|side| (Script::on(1), side)));
    world.census(&live);
    world.drain(0..world.layer.cpus.count());
    world.cpus_hold_nothing("a drain");
}
fn beside(by: Mechanism) {
    let others: [Side; 3] = [works, keeps, holds];
    let world = Arc::new(world(by));
    let live = together(&world, (Script::on(0), keeps), &others.map(|side| (Script::on(1), side)));
    child(&world);
    world.census(&live);
}

/// A depot alone: three threads turn empty magazines into full ones and back, one reaps.
fn depot() {
    const MAGAZINES: u32 = 5;
    struct Crowd {
        depot: Arc<DepotWorld>,
        held: Vec<Counter>,
    }
    impl Crowd {
        fn take(&self, fill: Fill) -> Option<Num> {
            let num = self.depot.depot.take(&Operation::new(), &self.depot.store, fill)?;
            self.own(num);
            assert!(self.depot.store.get(num).is(fill), "a depot list holds magazines of its fill only");
            Some(num)
        }
        fn own(&self, num: Num) {
            let held = &self.held[num.0 as usize];
            assert_eq!(held.get(), 0, "a magazine in two places");
            held.set(1);
        }
        fn put_full(&self, num: Num) {
            let room = self.depot.store.get(num).owner_push(Ball(num.0 as usize).into_raw());
            assert!(room, "a magazine from the empty list is empty");
            self.held[num.0 as usize].set(0);
            assert!(self.depot.depot.put(&Operation::new(), &self.depot.store, Fill::Full, u32::MAX, num));
        }
        fn put_emptied(&self, num: Num) {
            let ball = self.depot.store.get(num).owner_pop();
            assert_eq!(
                ball,
                Some(Ball(num.0 as usize).into_raw()),
                "what was written before the push is seen"
            );
            self.held[num.0 as usize].set(0);
            self.depot.write_and_put(num);
        }
    }
    let (depot, nums) = DepotWorld::new(MAGAZINES);
    let all = nums.len();
    nums.into_iter().for_each(|num| depot.put(num));
    let crowd = Arc::new(Crowd { depot, held: (0..=MAGAZINES).map(|_| Counter::new(0)).collect() });
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let crowd = crowd.clone();
            thread::spawn(move || {
                for _ in 0..STEPS {
                    if choose(2) == 0 {
                        crowd.take(Fill::Empty).into_iter().for_each(|num| crowd.put_full(num));
                    } else {
                        crowd.take(Fill::Full).into_iter().for_each(|num| crowd.put_emptied(num));
                    }
                }
            })
        })
        .collect();
    let depot = &crowd.depot.depot;
    let mut before = 0;
    for _ in 0..STEPS {
        let mut surplus = depot.reap(&Operation::new(), &crowd.depot.store);
        assert!(surplus.len() <= before, "a reap takes what has just come");
        while let Some(num) = surplus.pop(&crowd.depot.store) {
            crowd.own(num);
            crowd.put_emptied(num);
        }
        // The list was so long in the interval that begins: no more can have been there all the time.
        before = depot.len(Fill::Full);
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    while let Some(num) = crowd.take(Fill::Full) {
        crowd.put_emptied(num);
    }
    crowd.depot.census(vec![], all);
}

fn both(name: &str, f: fn(Mechanism)) {
    schedules(&format!("{name} (claimed)"), RUNS, move || f(Mechanism::Claimed));
    schedules(&format!("{name} (rseq)"), RUNS, move || f(Mechanism::Rseq));
}
#[test]
fn come_back() {
    both("R2 H1: pairs of three magazines come back", pairs);
}
#[test]
fn exchanges() {
    both("R1 R3 M1 M2 M3 M4 H4: four threads exchange", exchange);
}
#[test]
fn drained() {
    both("H1 H2 H3 H4 N1: two drain what two use", drain);
}
#[test]
fn private_and_fork() {
    both("P1 F1: private magazines and forks beside an exchange", beside);
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
#[test]
fn planted_in_an_exchange() {
    claimed("slot used without its claim", "M1 M3", "handed out or freed twice", exchange);
    claimed("exchange forgets the magazine that left", "M2", "a magazine lost", exchange);
    claimed("a refused fill forgets its magazine", "M4", "a magazine lost", exchange);
    claimed(
        "the supplier fills under the lock of making",
        "M4",
        "user code would run while a lock is held",
        exchange,
    );
    rseq("section not armed", "R1", "handed out or freed twice", exchange);
    rseq("operations counted before the commit", "R3", "the counts are exact", exchange);
    claimed(
        "a CPU beyond the table has a slot",
        "H4",
        "index out of bounds: the len is 2 but the index is 2",
        exchange,
    );
}
#[test]
fn planted_in_a_drain() {
    rseq("fill checked before the section", "R2", "list takes only such magazines", pairs);
    rseq("replace without the fill re-check", "R2", "list takes only such magazines", pairs);
    claimed("drain without its fence", "H1", "the empty list takes only such magazines", drain);
    rseq("drain without its fence", "H1", "only an empty magazine is filled or resized", drain);
    for with in [claimed, rseq] {
        with("drain by load and store", "H1", "a magazine lost", drain);
        with("replace by a plain store", "H1", "a magazine in two places", drain);
        with("drain does nothing", "H1", "a drain leaves nothing behind", drain);
        with("drain forgets the stocks", "H1", "a drain leaves nothing behind", drain);
        with("drain forgets the previous", "H2", "a magazine lost", drain);
        with("drains without their lock", "H3", "a magazine lost", drain);
        with("reap drains under the lock of drains", "H1", "lock order", drain);
    }
}
#[test]
fn planted_beside_an_exchange() {
    claimed("a closed private magazine keeps what lay behind", "P1", "a magazine lost", beside);
    claimed("claims outlive their threads", "F1", "a claim of a thread that is no more", beside);
}
#[test]
fn planted_in_a_depot() {
    caught("depot length from before the lock", "D1 D3", SOON, "left == right", depot);
    caught("magazine written after the push", "D2", SOON, "a magazine from the empty list is empty", depot);
    caught("reap ignores the working set", "D4", SOON, "a reap takes what has just come", depot);
}

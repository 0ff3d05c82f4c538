//! What models and schedules run on: a layer of balls that says who holds what, and a depot alone.
//!
//! A world ends in a census: every round and every magazine in exactly one place, the counts exact. An ownership cell per
//! ball turns a double hand-out into an assertion; loom also finds a free that does not happen before the next allocation of
//! the ball.

use crate::ball::Ball;
use crate::cpu::{Cpus, Mechanism, Script};
use crate::depot::Depot;
use crate::fork::Fork;
use crate::layer::{Config, Layer, Round, Supplier};
use crate::memory::Heap;
use crate::paths::{Operation, Path};
use crate::slot::{Fill, Num, Pair, Which};
use crate::store::Store;
use crate::sync::{Arc, Counter, Mutex, Ordering::Relaxed, UnsafeCell, planted, thread};
use std::collections::BTreeSet;

/// The supplier: a locked heap of balls.
pub(crate) struct Shelf {
    balls: Mutex<Vec<usize>>,
    fills: bool,
    /// The first ball of the second node.
    pub(crate) second_node: usize,
}
impl Supplier<Ball> for Shelf {
    fn fill(&self, op: &Operation, node: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
        op.did(Path::Slab);
        if !self.fills {
            return 0;
        }
        let mut balls = self.balls.lock();
        let mut n = 0;
        while n < max
            && let Some(last) = balls.iter().rposition(|ball| self.node_of(Ball(*ball)) == node)
        {
            put(Ball(balls.remove(last)));
            n += 1;
        }
        n
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Ball>) {
        op.did(Path::Slab);
        self.balls.lock().extend(rounds.map(|b| b.0));
    }
    fn node_of(&self, ball: Ball) -> u32 {
        u32::from(ball.0 >= self.second_node)
    }
}

pub(crate) struct World {
    pub(crate) layer: Layer<Ball, Heap>,
    pub(crate) shelf: Shelf,
    /// One per ball; written by whoever holds the ball.
    held: Vec<UnsafeCell<bool>>,
    pub(crate) allocs: Counter,
    pub(crate) frees: Counter,
}

// SAFETY: the cells are what loom watches; shuttle runs all threads of an execution on one.
unsafe impl Sync for World {}

const HEAP: usize = 128;

impl World {
    /// `magazines` of `capacity`; the supplier hands balls out only if `fills`.
    pub(crate) fn new(
        by: Mechanism,
        cpus: u32,
        magazines: u32,
        capacity: u16,
        stock: u16,
        fills: bool,
        balls: usize,
    ) -> Self {
        let cpus = Cpus::simulated(cpus, 1).unwrap().by(by);
        let config =
            Config { capacity, largest: capacity, first_fill: capacity, stock, depot_limit: 4, magazines };
        Self::of(cpus, config, fills, balls)
    }
    pub(crate) fn of(cpus: Cpus, config: Config, fills: bool, balls: usize) -> Self {
        World {
            layer: Layer::new(cpus, config, Heap::new(HEAP).unwrap()).unwrap(),
            shelf: Shelf { balls: Mutex::new(vec![]), fills, second_node: usize::MAX },
            held: (0..=balls).map(|_| UnsafeCell::new(false)).collect(),
            allocs: Counter::new(0),
            frees: Counter::new(0),
        }
    }
    pub(crate) fn own(&self, ball: usize, now: bool) {
        // SAFETY: loom watches the cell, and reports a second owner as a race.
        let before = self.held[ball].with_mut(|p| unsafe { p.replace(now) });
        assert_ne!(before, now, "ball handed out or freed twice");
    }
    pub(crate) fn alloc(&self) -> Option<usize> {
        let ball = self.layer.alloc(&self.shelf)?.0;
        self.allocs.add(1);
        self.own(ball, true);
        Some(ball)
    }
    pub(crate) fn free(&self, ball: usize) {
        self.own(ball, false);
        self.frees.add(1);
        self.layer.free(&self.shelf, Ball(ball));
    }
    pub(crate) fn drain(&self, cpus: core::ops::Range<u32>) {
        self.layer.drain(&self.shelf, cpus);
    }

    pub(crate) fn on_shelf(&self, balls: &[usize]) {
        self.shelf.balls.lock().extend(balls);
    }
    /// Whether these balls are with the supplier.
    #[cfg(not(shuttle))]
    pub(crate) fn are_on_shelf(&self, balls: &[usize]) -> bool {
        let shelf = self.shelf.balls.lock();
        balls.iter().all(|ball| shelf.contains(ball))
    }

    // ---- the end ----

    /// Every round and every magazine in exactly one place, the counts exact.
    pub(crate) fn census(&self, live: &[usize]) {
        let store = &self.layer.store;
        let rounds = |num: Num| {
            let magazine = store.get(num);
            (0..magazine.len()).map(move |i| magazine.round(i as usize).unwrap().addr().get())
        };
        // With one node there is nothing to ask, and a checker has no steps to spend.
        let several = self.layer.cpus.nodes() > 1;
        let of_node = |num: Num, node: u32| {
            let all = !several || rounds(num).all(|ball| self.shelf.node_of(Ball(ball)) == node);
            assert!(all, "a CPU and a depot hold rounds of their node only");
        };
        let mut magazines = vec![];
        for cpu in 0..self.layer.cpus.count() {
            let pair = store.pair(cpu, Which::Rounds);
            for num in [pair.loaded, pair.previous].into_iter().filter(|n| !n.is_sentinel()) {
                of_node(num, self.layer.cpus.node_of(cpu));
                magazines.push(num);
            }
            for (which, fill) in [(Which::Full, Fill::Full), (Which::Empty, Fill::Empty)] {
                let stock = store.get(store.pair(cpu, which).loaded);
                for i in 0..stock.len() {
                    let num = Num::from_raw(stock.round(i as usize).unwrap());
                    assert!(store.get(num).is(fill), "a stock holds magazines of its fill only");
                    magazines.push(num);
                }
            }
        }
        let depots = (0..).zip(&self.layer.depots);
        for (node, depot, fill) in depots.flat_map(|(n, d)| [(n, d, Fill::Full), (n, d, Fill::Empty)]) {
            let listed = depot.len(fill);
            let lying: Vec<Num> =
                core::iter::from_fn(|| depot.take(&Operation::new(), store, fill)).collect();
            assert_eq!(lying.len() as u32, listed, "the depot's length says what it holds");
            for num in lying {
                assert!(store.get(num).is(fill), "a depot list holds magazines of its fill only");
                of_node(num, node);
                magazines.push(num);
            }
        }
        let distinct: BTreeSet<u32> = magazines.iter().map(|n| n.0).collect();
        assert_eq!(distinct.len(), magazines.len(), "a magazine in two places");
        let stocks = store.iter().filter(|m| m.is_stock()).count();
        assert_eq!(magazines.len() + stocks, store.iter().count(), "a magazine lost");
        let mut balls: Vec<usize> = live.to_vec();
        balls.extend(magazines.into_iter().flat_map(rounds));
        balls.extend(self.shelf.balls.lock().iter());
        balls.sort_unstable();
        assert_eq!(balls, (1..self.held.len()).collect::<Vec<_>>(), "every ball in one place");
        assert_eq!(store.get(Num::SENTINEL).word.load(Relaxed), 0, "nobody writes the sentinel");
        let stats = self.layer.stats();
        assert_eq!(
            (stats.allocs, stats.frees),
            (self.allocs.get(), self.frees.get()),
            "the counts are exact"
        );
        assert_eq!(stats.paths.operations(), stats.allocs + stats.frees, "each operation is of one class");
    }

    /// At rest, behind `what` emptied all CPUs: none holds a magazine.
    pub(crate) fn cpus_hold_nothing(&self, what: &str) {
        for cpu in 0..self.layer.cpus.count() {
            let held = Which::ALL.map(|which| self.layer.store.pair(cpu, which));
            assert_eq!(held, [Pair::SENTINELS; 3], "{what} leaves nothing behind");
        }
    }
}

pub(crate) type Side = fn(&World) -> Vec<Option<usize>>;

/// Runs `left` here and the others in threads of their own, each under its script. The balls that are out then.
pub(crate) fn together(world: &Arc<World>, left: (Script, Side), others: &[(Script, Side)]) -> Vec<usize> {
    let threads: Vec<_> = others
        .iter()
        .map(|(script, side)| {
            let (world, script, side) = (world.clone(), *script, *side);
            thread::spawn(move || {
                script.install();
                side(&world)
            })
        })
        .collect();
    left.0.install();
    let mut live = left.1(world);
    threads.into_iter().for_each(|t| live.extend(t.join().unwrap()));
    Script::on(0).install();
    live.into_iter().flatten().collect()
}

/// The same, and the census.
pub(crate) fn run(world: World, left: (Script, Side), others: &[(Script, Side)]) {
    let world = Arc::new(world);
    let live = together(&world, left, others);
    world.census(&live);
}

pub(crate) fn alloc_then_free(w: &World) -> Vec<Option<usize>> {
    let ball = w.alloc();
    ball.into_iter().for_each(|b| w.free(b));
    vec![]
}
/// Waits for every lock, as a process that forks.
pub(crate) fn fork(world: &World) {
    // SAFETY: nothing comes between.
    unsafe {
        world.layer.before_fork();
        world.layer.after_fork_in_parent();
    }
}
/// What the only thread of a forked child finds and does: slots as in a new layer, and one claimed by nobody.
pub(crate) fn child(world: &World) {
    world.drain(0..world.layer.cpus.count());
    let claim = &world.layer.store.slot(0).unwrap().claim;
    claim.store(1, Relaxed);
    let busy = world.layer.stats().busy;
    // SAFETY: there is one thread, and `before_fork` was its last call.
    unsafe {
        world.layer.before_fork();
        world.layer.after_fork_in_child();
    }
    alloc_then_free(world);
    assert_eq!(world.layer.stats().busy, busy, "a claim of a thread that is no more");
}

/// A depot alone, with magazines of one round.
pub(crate) struct DepotWorld {
    pub(crate) store: Store<Heap>,
    pub(crate) depot: Depot,
}
impl DepotWorld {
    pub(crate) fn new(magazines: u32) -> (Arc<Self>, Vec<Num>) {
        let store = Store::new(1, 1, Heap::new(HEAP).unwrap(), magazines, 1, 0).unwrap();
        let nums = (0..magazines).map(|_| store.create(&Operation::new(), 1, false).unwrap()).collect();
        (Arc::new(Self { store, depot: Depot::new() }), nums)
    }
    pub(crate) fn put(&self, num: Num) {
        assert!(self.depot.put(&Operation::new(), &self.store, Fill::Empty, u32::MAX, num));
    }
    /// Writes to an empty magazine and puts it in.
    pub(crate) fn write_and_put(&self, num: Num) {
        let write = || {
            self.store.get(num).owner_push(Ball(7).into_raw());
            self.store.get(num).owner_pop();
        };
        if planted("magazine written after the push") {
            self.put(num);
            write();
        } else {
            write();
            self.put(num);
        }
    }
    pub(crate) fn take(&self) -> Option<Num> {
        self.depot.take(&Operation::new(), &self.store, Fill::Empty)
    }
    pub(crate) fn census(&self, out: Vec<Option<Num>>, all: usize) {
        assert_eq!(u64::from(self.depot.len(Fill::Empty)) as usize + out.iter().flatten().count(), all);
        let mut seen: Vec<u32> = out.into_iter().flatten().map(|n| n.0).collect();
        while let Some(num) = self.take() {
            seen.push(num.0);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all, "a magazine lost or in two places");
    }
}

//! Code that all scenarios share: a layer that records the owner of each object, and a depot without a layer.
//!
//! At the end of a scenario, `census` checks the final state. Every object must be in exactly one correct place, the
//! counts must be exact, and no drain may be running. Each object has a cell that shows if it is allocated, so
//! allocating an object twice fails an assertion. Loom also reports a race if a free does not happen before the
//! object's next allocation.

use crate::cpu::Cpus;
use crate::depot::{Block, Blocks, Depot, DepotBudget};
use crate::fork::Fork;
use crate::layer::{Config, Layer, Round, Supplier};
use crate::magazine::Magazine;
use crate::memory::Heap;
use crate::paths::Path;
use crate::region::{Class, LEN_MASK};
use crate::sync::fork::ForkLock;
use crate::sync::{Arc, Counter, Mutex, Ordering::Relaxed, Rank, UnsafeCell, planted, thread, unique};
use crate::table::Table;
use crate::test_round::TestRound;
use crate::tracepoints::Operation;
use core::ptr::NonNull;
use std::sync::Arc as Shared;

/// A supplier that stores its objects under a lock.
pub(super) struct TestSupplier {
    pub(super) rounds: Mutex<Vec<usize>>,
    fills: bool,
    pub(super) second_node: usize,
}
impl Supplier<TestRound> for TestSupplier {
    fn fill(&self, op: &Operation, node: u32, max: usize, mut put: impl FnMut(TestRound)) -> usize {
        op.did(Path::Slab);
        if !self.fills {
            return 0;
        }
        let mut rounds = self.rounds.lock();
        let mut n = 0;
        while n < max
            && let Some(last) = rounds.iter().rposition(|round| self.node_of(TestRound(*round)) == node)
        {
            put(TestRound(rounds.remove(last)));
            n += 1;
        }
        n
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
        op.did(Path::Slab);
        self.rounds.lock().extend(rounds.map(|round| round.0));
    }
    fn node_of(&self, round: TestRound) -> u32 {
        u32::from(round.0 >= self.second_node)
    }
}

pub(super) struct World {
    pub(super) layer: Layer<TestRound, Heap>,
    pub(super) supplier: TestSupplier,
    /// One cell per object, which is true while the object is allocated. Only the object's owner writes the object's
    /// cell.
    held: Vec<UnsafeCell<bool>>,
    pub(super) allocs: Counter,
    pub(super) frees: Counter,
    /// Another world, whose layer is in the same table.
    pub(super) other: Option<Box<World>>,
}

// SAFETY: loom watches the cells. shuttle runs all threads of an execution on one OS thread.
unsafe impl Sync for World {}

/// Returns empty memory. In models, regions are separate cells and need no memory.
fn no_memory() -> Heap {
    Heap::new(0).unwrap()
}
/// Number of bytes that a class with stacks of up to seven objects takes in a region.
const CLASS_BYTES: usize = 64;
/// Creates a table with room for `classes` classes, each with stacks of up to seven objects.
pub(super) fn table(cpus: Cpus, classes: usize) -> Shared<Table<Heap>> {
    Shared::new(Table::new(cpus, CLASS_BYTES * classes, no_memory()).unwrap())
}
/// Creates a table like [`table`], but also with per-CPU pointers for inlined paths.
#[cfg(loom)]
pub(super) fn table_with_inlined_words(cpus: Cpus, classes: usize) -> Shared<Table<Heap>> {
    Shared::new(Table::new(cpus, CLASS_BYTES * classes, no_memory()).unwrap().with_inlined_words())
}

impl World {
    pub(super) fn on(table: &Shared<Table<Heap>>, config: Config, fills: bool, rounds: usize) -> Self {
        World {
            layer: Layer::new(table, config).unwrap(),
            supplier: TestSupplier { rounds: Mutex::new(vec![]), fills, second_node: usize::MAX },
            held: (0..=rounds).map(|_| UnsafeCell::new(false)).collect(),
            allocs: Counter::new(0),
            frees: Counter::new(0),
            other: None,
        }
    }
    pub(super) fn set_owned(&self, round: usize, now: bool) {
        // SAFETY: loom watches the cell, and reports a second owner as a race.
        let before = self.held[round].with_mut(|p| unsafe { p.replace(now) });
        assert_ne!(before, now, "round allocated or freed twice");
    }
    pub(super) fn alloc(&self) -> Option<usize> {
        let round = self.layer.alloc(&self.supplier)?.0;
        self.allocs.add(1);
        self.set_owned(round, true);
        Some(round)
    }
    pub(super) fn free(&self, round: usize) {
        self.set_owned(round, false);
        self.frees.add(1);
        self.layer.free(&self.supplier, TestRound(round));
    }
    /// Frees an object on the inlined path. If the inlined path misses, the slow path frees the object.
    #[cfg(loom)]
    pub(super) fn free_inlined(&self, round: usize) {
        use crate::cpu::{Mechanism, regions::Words, rseq::push_inlined};
        self.set_owned(round, false);
        self.frees.add(1);
        let (layer, class) = (&self.layer, self.class(0));
        let inlined = layer.mechanism() == Mechanism::Rseq;
        let raw = TestRound(round).into_raw();
        if !(inlined && push_inlined(&*layer.table, Words::InlinedFrees, class, raw)) {
            layer.free(&self.supplier, TestRound(round));
        }
    }
    pub(super) fn drain(&self, cpus: core::ops::Range<u32>) {
        self.layer.drain(&self.supplier, cpus);
    }

    pub(super) fn give_rounds_to_supplier(&self, rounds: &[usize]) {
        self.supplier.rounds.lock().extend(rounds);
    }
    pub(super) fn class(&self, node: usize) -> Class {
        self.layer.nodes[node].class()
    }
    fn stack_of(&self, cpu: u32, class: Class) -> Vec<usize> {
        let region = self.layer.table.region(cpu).unwrap();
        let round = |i| region.round(class, i).expect("each place below the length must hold a round");
        (1..=(region.head(class) & LEN_MASK) as u32).map(|i| round(i).addr().get()).collect()
    }

    // ---- the end ----

    /// Asserts that every object is in exactly one place of its node, that the counts are exact, and that no drain is
    /// running.
    pub(super) fn census(&self, live: &[usize]) {
        let mut rounds: Vec<usize> = live.to_vec();
        let (mut on_stacks, mut in_depots) = (0, 0);
        for (node, at) in (0..).zip(&self.layer.nodes) {
            let mut here = vec![];
            let class = at.class();
            self.layer.table.assert_at_rest(class);
            for cpu in 0..self.layer.cpus().count() {
                let stack = self.stack_of(cpu, class);
                let cap = self.layer.table.region(cpu).unwrap().cap(class);
                assert!(stack.len() <= cap as usize, "a stack holds no more than it has places");
                assert!(
                    cap <= self.layer.config.reach().into(),
                    "a stack has no more places than its maximum"
                );
                on_stacks += stack.len();
                here.extend(stack);
            }
            let depot = at.depot.look();
            assert_eq!(
                depot.len() as u32,
                at.depot.len(),
                "the depot's length equals the number of its magazines"
            );
            for magazine in &depot {
                assert_eq!(
                    magazine.len(),
                    usize::from(self.layer.config.capacity),
                    "a depot holds only full magazines"
                );
                in_depots += magazine.len();
                here.extend(magazine.rounds().iter().map(|round| round.addr().get()));
            }
            // With one node, no object can be on the wrong node, so the census skips the check to save steps.
            let home = self.layer.nodes.len() == 1
                || here.iter().all(|round| self.supplier.node_of(TestRound(*round)) == node);
            assert!(home, "the stacks and the depot of a node hold only rounds of that node");
            rounds.extend(here);
        }
        rounds.extend(self.supplier.rounds.lock().iter());
        rounds.sort_unstable();
        assert_eq!(rounds, (1..self.held.len()).collect::<Vec<_>>(), "every round in one place");
        let stats = self.layer.stats();
        let counted = (self.allocs.get(), self.frees.get(), on_stacks as u64, in_depots as u64);
        let counts = (stats.allocs, stats.frees, stats.in_magazines, stats.in_depot);
        assert_eq!(counts, counted, "the counts are exact");
        assert_eq!(stats.paths.operations(), stats.allocs + stats.frees, "each operation has one level");
        if let Some(other) = &self.other {
            other.census(&[]);
        }
    }

    /// Asserts that all stacks are empty, because the operation `what` has removed all objects. The caller must ensure
    /// that no other thread is running.
    pub(super) fn assert_cpus_hold_no_round(&self, what: &str) {
        for class in self.layer.nodes.iter().map(|node| node.class()) {
            let held: Vec<usize> =
                (0..self.layer.cpus().count()).flat_map(|cpu| self.stack_of(cpu, class)).collect();
            assert!(held.is_empty(), "{what} leaves no rounds, but the CPUs hold {held:?}");
        }
    }
}

pub(super) fn rounds_as_pointers(rounds: &[usize]) -> Vec<NonNull<u8>> {
    rounds.iter().map(|round| TestRound(*round).into_raw()).collect()
}
pub(super) fn magazine(rounds: &[usize]) -> Magazine {
    let mut magazine = Magazine::new();
    rounds_as_pointers(rounds).into_iter().for_each(|round| assert!(magazine.push(round)));
    magazine
}

pub(super) type ThreadFn = crate::threads::ThreadFn<World>;

pub(super) fn alloc_then_free(w: &World) -> Vec<Option<usize>> {
    let round = w.alloc();
    round.into_iter().for_each(|round| w.free(round));
    vec![]
}
impl Fork for World {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: the thread holds the locks of all earlier ranks that `rank` requires, by this function's contract.
        unsafe {
            self.layer.table.locks(rank, visit);
            self.layer.locks(rank, visit);
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: the process is a child with a single thread, by this function's contract.
        unsafe {
            self.layer.forget_other_threads();
            self.layer.table.forget_other_threads();
        }
    }
}
/// Acquires all locks, as a forking process does, and checks the state that the child would find.
pub(super) fn fork(world: &World) {
    // SAFETY: the thread only reads between the two calls.
    unsafe {
        world.before_fork();
        let depots = || world.layer.nodes.iter().map(|node| node.depot.len()).collect::<Vec<_>>();
        let before = depots();
        for cpu in 0..world.layer.cpus().count() {
            assert!(!world.layer.table.is_away(cpu), "a child would have no region of CPU {cpu}");
        }
        assert_eq!(depots(), before, "a depot does not change while a fork holds it");
        world.after_fork_in_parent();
    }
}
/// Continues as the only thread of a forked child. At the fork, another thread had claimed CPU 0's region, and another
/// thread's drain had taken the objects on CPU 0's stack.
pub(super) fn continue_as_child(world: &World) {
    let (layer, table, class) = (&world.layer, &world.layer.table, world.class(0));
    world.drain(0..layer.cpus().count());
    let two: Vec<usize> = (0..2).filter_map(|_| world.alloc()).collect();
    two.into_iter().for_each(|round| world.free(round));
    table.open(&Operation::new(), 0, class, 1);
    let (region, number) = (table.region(0).unwrap(), unique() + 1);
    region.claim().store(1, Relaxed);
    let drains = table.lock_drains();
    // SAFETY: this thread holds the lock of drains.
    unsafe { table.close(class, number) };
    region.take(class, number);
    drop(drains);
    let busy = layer.stats().busy;
    // SAFETY: the process has one thread, which called `before_fork` last.
    unsafe {
        world.before_fork();
        world.after_fork_in_child();
    }
    alloc_then_free(world);
    assert_eq!(layer.stats().busy, busy, "a child has no claims or drains of its parent's other threads");
}

/// A depot without a layer, whose magazines hold one object each. The objects are numbered from 0.
pub(super) struct DepotWorld {
    pub(super) depot: Depot,
    /// The depot's budget, in which each magazine counts as one byte.
    pub(super) budget: DepotBudget,
    limit: usize,
    /// A cell for each object. Only the thread that puts the object into the depot writes the object's cell.
    written: Vec<UnsafeCell<()>>,
    made: Counter,
    /// Number of magazines that were put into the depot or taken out.
    moved: Counter,
}
// SAFETY: loom watches the cells; shuttle runs all threads of an execution on one OS thread.
unsafe impl Sync for DepotWorld {}

impl DepotWorld {
    pub(super) fn new(rounds: usize) -> Arc<Self> {
        Self::of(rounds, rounds)
    }
    /// Creates an empty depot with room for `limit` magazines.
    pub(super) fn of(rounds: usize, limit: usize) -> Arc<Self> {
        let (depot, budget) = (Depot::new(limit as u32, 1), DepotBudget::new(limit as u64));
        let written = (0..rounds).map(|_| UnsafeCell::new(())).collect();
        Arc::new(Self { depot, budget, limit, written, made: Counter::new(0), moved: Counter::new(0) })
    }
    /// Writes to an object's cell, and puts a magazine with this object into the depot.
    pub(super) fn put(&self, round: usize) {
        assert!(self.try_put(round));
    }
    /// Does the same as [`put`](Self::put), but returns `false` if the depot has no room.
    pub(super) fn try_put(&self, round: usize) -> bool {
        let write = || self.written[round].with_mut(|_| ());
        let room = || {
            self.made.add(1);
            Some(Block::on_heap())
        };
        let put = || {
            let there = self.depot.put(&Operation::new(), &self.budget, &magazine(&[round + 1]), room);
            self.moved.add(u64::from(there));
            there
        };
        planted!("a round is written after its magazine was put" => {
            let there = put();
            write();
            return there;
        });
        write();
        put()
    }
    /// Takes a magazine out of the depot, and reads the cell of its object.
    pub(super) fn take(&self) -> Option<usize> {
        let mut magazine = Magazine::new();
        self.depot.take(&Operation::new(), &self.budget, &mut magazine).then(|| {
            self.moved.add(1);
            let round = magazine.pop().expect("a magazine of the depot must be full").addr().get() - 1;
            self.written[round].with(|_| ());
            round
        })
    }
    /// Asserts that each object is either in the depot or in `out`, exactly once. No other thread may use the depot
    /// during the call.
    pub(super) fn census(&self, out: &[Option<usize>]) {
        assert_eq!(
            self.depot.len() as usize + out.iter().flatten().count(),
            self.written.len(),
            "the depot must lose no magazine"
        );
        let mut seen: Vec<usize> = out.iter().copied().flatten().collect();
        seen.extend(core::iter::from_fn(|| self.take()));
        seen.sort_unstable();
        assert_eq!(seen, (0..self.written.len()).collect::<Vec<_>>(), "each magazine must be in one place");
        assert_eq!(self.depot.exchanges.get(), self.moved.get(), "each exchange counts once");
        self.check_empty_depot();
    }
    /// Asserts that an empty depot handles its blocks, its limit and its working set correctly. No other thread may use
    /// the depot.
    fn check_empty_depot(&self) {
        let (op, limit) = (&Operation::new(), self.limit);
        let made = self.made.get() as usize;
        let put =
            |more: bool| self.depot.put(op, &self.budget, &magazine(&[1]), || more.then(Block::on_heap));
        let take = || self.depot.take(op, &self.budget, &mut Magazine::new());
        assert!(
            !take() && !Depot::new(0, 1).put(op, &self.budget, &magazine(&[1]), || Some(Block::on_heap()))
        );
        assert_eq!(op.path(), Path::Cpu, "a visit that can neither take nor keep a magazine takes no lock");
        assert!((0..made).all(|_| put(false)) && !put(false), "the room of taken magazines is used again");
        assert!(
            (made..limit).all(|_| put(true)) && !put(true),
            "the depot accepts magazines up to its limit"
        );
        assert_eq!(self.depot.surplus(op), 0, "a reap keeps magazines that were just put");
        assert!(take() && put(false));
        assert_eq!(self.depot.surplus(op) as usize, limit - 1, "one magazine was needed");
        assert_eq!(self.depot.surplus(op), 1, "the other magazines stay");
        assert!((0..limit).all(|_| take()));
        self.depot.set_open(false);
        assert!(!put(true), "the depot is closed");
        self.depot.set_open(true);
        assert_eq!(self.depot.spare().map(Blocks::free), Some(limit), "the whole room is unused");
        assert!(self.depot.spare().is_none(), "the magazine was taken");
        assert!((0..limit).all(|_| put(true)) && take());
        assert_eq!(self.depot.end(&self.budget).free(), limit, "the whole room is free at the end");
        assert!((0..limit).all(|_| put(true)), "the depot is empty");
        self.depot.end(&self.budget).free();
        assert_eq!(self.budget.held(), 0, "the budget equals the number of magazines");
    }
}

/// D5: several threads, including this one, each put one magazine into a depot that has room for only `limit`
/// magazines.
pub(super) fn depot_limit(threads: usize, limit: usize) {
    let d = DepotWorld::of(threads, limit);
    let put = |round| {
        let e = d.clone();
        thread::spawn(move || e.try_put(round))
    };
    let others: Vec<_> = (1..threads).map(|other| put(other - 1)).collect();
    let mine = d.try_put(threads - 1);
    let put: Vec<bool> = others.into_iter().map(|t| t.join().unwrap()).chain([mine]).collect();
    let there = put.iter().filter(|put| **put).count();
    assert!(
        there == limit && d.depot.len() as usize == limit,
        "a depot holds as many magazines as its limit allows"
    );
    let refused_rounds = (0..).zip(put).map(|(round, put)| (!put).then_some(round));
    d.census(&refused_rounds.collect::<Vec<_>>());
}

/// D5: other threads put magazines into the depot while this thread closes and empties it.
pub(super) fn depot_closed(others: usize) {
    let d = DepotWorld::new(others);
    let put = |round| {
        let e = d.clone();
        thread::spawn(move || e.try_put(round))
    };
    let threads: Vec<_> = (0..others).map(put).collect();
    d.depot.set_open(false);
    let taken = (0..others).filter_map(|_| d.take()).count();
    let put = threads.into_iter().map(|t| t.join().unwrap()).filter(|put| *put).count();
    assert_eq!((taken, d.depot.len()), (put, 0), "a closed depot holds no magazines");
    d.depot.set_open(true);
    d.census(&(0..others).map(Some).collect::<Vec<_>>());
}

//! loom's models: two or three threads on one or two CPUs, with magazines of one or two objects.
//!
//! A model R2 does not exist, because ABA cannot occur. The code uses compare-and-swap only for claims, and a
//! stack's places never leave their CPU's region.
//!
//! The models plant no wrong memory orderings as bugs. `cargo check-orderings` weakens each ordering and
//! requires that a model fails. The checker provides the depot's lock, a mutex.

use super::world::{
    DepotWorld, ThreadFn, World, alloc_then_free, continue_as_child, fork, magazine, raw_rounds, table,
    table_with_inlined_words,
};
use crate::cpu::rseq::run_single_threaded;
use crate::cpu::{Cpus, Mechanism, Script, on_cpu};
use crate::depot::Block;
use crate::layer::Config;
use crate::memory::Heap;
use crate::region::Commit;
use crate::sync::check::{Bound, Model, Models, models, plant};
use crate::sync::unset;
use crate::sync::{Arc, Ordering::Relaxed, UnsafeCell, thread};
use crate::table::{DrainScope, SweepGroup, Table};
use crate::threads::run_together;
use crate::tracepoints::Operation;
use std::sync::Arc as Shared;

impl World {
    /// Creates a world with one node, magazines of `capacity` objects, and stacks with room for `stock + 2`
    /// magazines. The supplier supplies objects only if `fills` is set.
    fn new(by: Mechanism, cpus: u32, capacity: u16, stock: u16, fills: bool, rounds: usize) -> Self {
        let table = table(Cpus::simulated(cpus, 1).unwrap().with_mechanism(by), 1);
        Self::on(&table, Config::new(capacity, stock, 4), fills, rounds)
    }
    fn fill_stack(&self, cpu: u32, node: usize, cap: u32, rounds: &[usize]) {
        let (table, class) = (&self.layer.table, self.class(node));
        table.open(&Operation::new(), cpu, class, cap);
        let region = table.region(cpu).unwrap();
        region.set_cap(class, cap);
        assert!(region.push_batch(class, &raw_rounds(rounds), Commit::Done));
        self.layer.nodes[node].net.add(rounds.len() as u64);
    }
    /// Puts a magazine of the given objects into a node's depot.
    fn put_in_depot(&self, node: usize, rounds: &[usize]) {
        let budget = &self.layer.table.depots;
        let depot = &self.layer.nodes[node].depot;
        assert!(depot.put(&Operation::new(), budget, &magazine(rounds), || Some(Block::on_heap())));
    }
    /// Marks an object as allocated from the beginning.
    fn mark_allocated(&self, round: usize) {
        self.set_owned(round, true);
        self.allocs.add(1);
        self.layer.counts.around_allocs.add(1);
    }
    /// Returns `true` if the supplier has all of `rounds`.
    fn are_with_supplier(&self, rounds: &[usize]) -> bool {
        let supplier = self.supplier.rounds.lock();
        rounds.iter().all(|round| supplier.contains(round))
    }
}

/// Runs all threads concurrently, and then takes the census of the world.
fn run(world: World, left: (Script, ThreadFn), others: &[(Script, ThreadFn)]) {
    let world = Arc::new(world);
    let live = run_together(&world, left, others);
    world.census(&live);
}

/// The parameters of a model: the mechanism, and the place at which the first thread migrates or is aborted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    by: Mechanism,
    script: Script,
}

/// Scripts of the first thread. The first thread stays on CPU 0, or migrates before one of its first `reads`
/// reads of the CPU number. A restartable sequence can also be aborted at a read of the CPU number.
#[derive(Clone, Copy)]
pub(super) struct Scripts {
    pub(super) reads: u32,
    pub(super) cpus: u32,
}
pub(super) const fn moves(reads: u32) -> Scripts {
    Scripts { reads, cpus: 2 }
}
pub(super) const fn stays() -> Scripts {
    Scripts { reads: 0, cpus: 1 }
}

/// A model that runs with the claimed mechanism and with rseq.
pub(super) struct BothMechanisms {
    claimed: Models<Case>,
    rseq: Models<Case>,
}
/// Creates a model for each mechanism. `floors` has the minimum numbers of executions with claims and with rseq.
pub(super) fn both_mechanisms(
    bound: Bound,
    floors: [u64; 2],
    Scripts { reads, cpus }: Scripts,
) -> BothMechanisms {
    let [claimed, rseq] = floors.map(|floor| Model::new(bound, floor));
    BothMechanisms {
        claimed: claimed
            .each(Script::all(0, cpus, reads).map(|script| Case { by: Mechanism::Claimed, script })),
        rseq: rseq
            .each(Script::all_aborting(0, cpus, reads).map(|script| Case { by: Mechanism::Rseq, script })),
    }
}
impl BothMechanisms {
    pub(super) fn run(self, name: &str, f: fn(Case)) {
        self.claimed.run(&format!("{name} (claimed)"), f);
        self.rseq.run(&format!("{name} (rseq)"), f);
    }
    /// Asserts that the models of both mechanisms detect the bug.
    pub(super) fn bug(self, bug: &'static str, property: &str, expected: &str, f: fn(Case)) {
        self.claimed.bug(bug, property, expected, f);
        self.rseq.bug(bug, property, expected, f);
    }
    pub(super) fn claimed(self, bug: &'static str, property: &str, expected: &str, f: fn(Case)) {
        self.claimed.bug(bug, property, expected, f);
    }
    pub(super) fn rseq(self, bug: &'static str, property: &str, expected: &str, f: fn(Case)) {
        self.rseq.bug(bug, property, expected, f);
    }
}

fn keep_one(w: &World) -> Vec<Option<usize>> {
    vec![w.alloc()]
}
fn drain_cpu_0(w: &World) -> Vec<Option<usize>> {
    w.drain(0..1);
    vec![]
}
fn drain_both(w: &World) -> Vec<Option<usize>> {
    w.drain(0..2);
    vec![]
}
fn on(cpu: u32, side: ThreadFn) -> (Script, ThreadFn) {
    (Script::on(cpu), side)
}

// ---------------------------------------------------------------- the contract of a section

/// R1: CPU 0 has an object, CPU 1 has none, and the depot has two magazines of two objects.
pub(super) fn contract(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 6);
    w.fill_stack(0, 0, 2, &[1]);
    w.put_in_depot(0, &[2, 3]);
    w.put_in_depot(0, &[4, 5]);
    w.with_supplier(&[6]);
    let uses = |w: &World| {
        alloc_then_free(w);
        vec![w.alloc(), w.alloc()]
    };
    run(w, (script, uses), &[on(1, alloc_then_free)]);
}

// ---------------------------------------------------------------- M: movement of rounds

/// M1, M2: objects freed on one CPU reach another CPU in whole magazines.
pub(super) fn travel(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 3);
    w.fill_stack(0, 0, 1, &[]);
    w.fill_stack(1, 0, 1, &[]);
    (1..=3).for_each(|round| w.mark_allocated(round));
    let consumer = |w: &World| vec![w.alloc(), w.alloc()];
    let producer = |w: &World| {
        (1..=3).for_each(|round| w.free(round));
        vec![]
    };
    run(w, (script, producer), &[on(1, consumer)]);
}

/// M2: a stack is full, and two threads of its CPU take magazines off the stack.
pub(super) fn overflow(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 6);
    w.fill_stack(0, 0, 4, &[1, 2, 3, 4]);
    w.mark_allocated(5);
    w.mark_allocated(6);
    let frees = |w: &World| {
        w.free(6);
        vec![]
    };
    run(
        w,
        (script, |w| {
            w.free(5);
            vec![]
        }),
        &[on(0, frees)],
    );
}

/// M3: two threads with one CPU number never both own the region, and neither thread waits. One thread misses
/// and pushes a batch while the other thread frees an object.
pub(super) fn same_cpu(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 4);
    w.fill_stack(0, 0, 1, &[]);
    w.put_in_depot(0, &[1, 2]);
    w.mark_allocated(3);
    w.mark_allocated(4);
    let frees = |w: &World| {
        w.free(3);
        w.free(4);
        vec![]
    };
    run(w, (script, keep_one), &[on(0, frees)]);
}

/// M4: two CPUs take from a depot that runs empty. If the depot is empty, the supplier supplies objects.
pub(super) fn depot_runs_dry(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, true, 4);
    w.put_in_depot(0, &[1]);
    w.with_supplier(&[2, 3]);
    w.mark_allocated(4);
    let frees = |w: &World| {
        w.free(4);
        vec![]
    };
    run(w, (script, keep_one), &[on(1, keep_one), on(1, frees)]);
}

/// M4: an allocation that fails because the supplier refuses changes nothing.
pub(super) fn nothing_to_fill_from(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.fill_stack(0, 0, 1, &[]);
    w.mark_allocated(1);
    let frees = |w: &World| {
        w.free(1);
        vec![]
    };
    run(w, (script, keep_one), &[on(0, frees)]);
}

// ---------------------------------------------------------------- H: drain

/// H1: a thread pops and pushes during a drain of its CPU.
pub(super) fn drain_fast(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1, 2]);
    let alloc_and_free = |w: &World| {
        alloc_then_free(w);
        keep_one(w)
    };
    run(w, (script, alloc_and_free), &[on(1, drain_cpu_0)]);
}

/// H1: the only thread of a process drains both CPUs without a fence. The thread then starts a second thread, and the
/// next drain uses a fence.
pub(super) fn drain_alone(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, true, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run_single_threaded(|| w.drain(0..2));
    w.assert_cpus_hold_no_round("a drain by the only thread");
    run(w, (script, alloc_then_free), &[on(1, drain_cpu_0)]);
}

/// H1: an inlined free runs during a drain. The drain must also point the words of inlined paths to the empty region.
pub(super) fn drain_inlined(Case { by, script }: Case) {
    let table = table_with_inlined_words(Cpus::simulated(2, 1).unwrap().with_mechanism(by), 1);
    let w = World::on(&table, Config::new(1, 0, 4), false, 2);
    w.fill_stack(0, 0, 2, &[1]);
    w.mark_allocated(2);
    let free = |w: &World| {
        w.free_inlined(2);
        vec![]
    };
    run(w, (script, free), &[on(1, drain_cpu_0)]);
}

/// H1: a miss with its batch, a growing stack, and an overflow run during a drain.
pub(super) fn drain_batches(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.fill_stack(0, 0, 0, &[]);
    w.put_in_depot(0, &[1, 2]);
    w.mark_allocated(3);
    w.mark_allocated(4);
    let batches = |w: &World| {
        let kept = w.alloc();
        w.free(3);
        w.free(4);
        vec![kept]
    };
    run(w, (script, batches), &[on(1, drain_cpu_0)]);
}

/// H1: frees grow the stack and overflow it during a drain. After the drain, the layer shrinks, as in a
/// shortage of memory.
pub(super) fn drain_growing(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 3);
    (1..=3).for_each(|round| w.mark_allocated(round));
    let frees = |w: &World| {
        (1..=3).for_each(|round| w.free(round));
        vec![]
    };
    let drain_and_shrink = |w: &World| {
        w.drain(0..1);
        w.layer.shrink();
        vec![]
    };
    run(w, (script, frees), &[on(1, drain_and_shrink)]);
}

/// H1: when a drain returns, the supplier has the unused objects of a CPU, although the CPU continues.
pub(super) fn drain_leaves_nothing(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 1, false, 3);
    w.fill_stack(0, 0, 3, &[2, 3]);
    w.mark_allocated(1);
    let frees = |w: &World| {
        w.free(1);
        vec![]
    };
    let drain = |w: &World| {
        w.drain(0..1);
        assert!(w.are_with_supplier(&[2, 3]), "a drain leaves no rounds");
        vec![]
    };
    run(w, (script, frees), &[on(1, drain)]);
}

/// H1: the supplier fills a magazine while the CPU is drained.
pub(super) fn drain_filling(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, true, 3);
    w.fill_stack(0, 0, 1, &[1]);
    w.with_supplier(&[2, 3]);
    let takes = |w: &World| vec![w.alloc(), w.alloc()];
    run(w, (script, takes), &[on(1, drain_cpu_0)]);
}

/// An idle CPU wakes up during a reap.
pub(super) fn reap_waking(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1, 2]);
    assert_eq!(w.layer.reap(&w.supplier), 0, "a round that was just freed is not idle");
    alloc_then_free(&w);
    assert_eq!(w.layer.reap(&w.supplier), 0, "a round that was just allocated is not idle");
    let reap = |w: &World| {
        w.layer.reap(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    let live = run_together(&world, (script, alloc_then_free), &[on(0, reap)]);
    // Two reaps without operations in between: the second reap finds the CPU idle.
    (0..2).for_each(|_| _ = world.layer.reap(&world.supplier));
    world.assert_cpus_hold_no_round("a reap");
    world.census(&live);
}

/// H2: one drain covers both CPUs, while a thread runs on each CPU.
pub(super) fn drain_and_two(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free), on(1, drain_both)]);
}

/// H2, M3: two threads run on one CPU during a drain of that CPU.
pub(super) fn drain_and_two_of_one(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1, 2]);
    run(w, (script, alloc_then_free), &[on(0, alloc_then_free), on(1, drain_cpu_0)]);
}

/// H3: two concurrent drains of both CPUs run during an allocation and a free.
pub(super) fn two_drains(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(0, drain_both), on(1, drain_both)]);
}

/// H3: during a free to a stack, a drain meets another drain that is still flushing objects of the stack's
/// class.
pub(super) fn drain_meets_drain(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.mark_allocated(2);
    let frees = |w: &World| {
        w.free(2);
        vec![]
    };
    run(w, (script, frees), &[on(0, drain_cpu_0), on(0, drain_cpu_0)]);
}

/// H4: a thread migrates to a CPU beyond the table (plugged in later), on which another thread already runs.
pub(super) fn beyond_the_table(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 3);
    w.supplier.second_node = 2;
    w.fill_stack(0, 0, 1, &[1]);
    w.put_in_depot(1, &[2]);
    w.put_in_depot(1, &[3]);
    run(w, (script, alloc_then_free), &[on(2, alloc_then_free)]);
}

/// H4: a thread without a region bypasses the stacks, while another thread uses its region and a drain runs.
pub(super) fn drain_and_no_region(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.fill_stack(0, 0, 1, &[1]);
    w.put_in_depot(0, &[3, 4]);
    w.mark_allocated(2);
    let past = |w: &World| {
        w.free(2);
        keep_one(w)
    };
    run(w, (script, alloc_then_free), &[on(2, past), on(1, drain_cpu_0)]);
}

/// H5: a layer is closed and flushed during two frees. One free finds a place on its stack, and the other
/// finds its stack full. When the close, the flush and the frees have returned, the supplier has all objects.
pub(super) fn close_and_flush(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 4);
    w.fill_stack(0, 0, 2, &[]);
    w.fill_stack(1, 0, 2, &[1, 2]);
    w.mark_allocated(3);
    w.mark_allocated(4);
    let frees = |w: &World| {
        w.free(3);
        vec![]
    };
    let overflows = |w: &World| {
        w.free(4);
        vec![]
    };
    let closes = |w: &World| {
        w.layer.close();
        w.layer.flush_all(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    run_together(&world, (script, closes), &[on(0, frees), on(1, overflows)]);
    assert!(world.are_with_supplier(&[1, 2, 3, 4]), "a closed layer holds no rounds");
    world.census(&[]);
}
/// H5: a layer is closed and flushed while memory is short; the shortage changes the layer's limits.
pub(super) fn closed_during_a_shrink(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1]);
    w.mark_allocated(2);
    let closes = |w: &World| {
        w.layer.close();
        w.layer.flush_all(&w.supplier);
        vec![]
    };
    let shrinks = |w: &World| {
        w.layer.shrink();
        vec![]
    };
    let world = Arc::new(w);
    run_together(&world, (script, closes), &[on(1, shrinks)]);
    world.free(2);
    assert!(world.are_with_supplier(&[1, 2]), "a closed layer holds no rounds");
    world.census(&[]);
}
/// H5: a layer is closed and flushed while a CPU frees for the first time. No drain has visited the CPU before.
pub(super) fn closed_during_a_first_free(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.fill_stack(0, 0, 2, &[1, 2]);
    w.mark_allocated(3);
    w.mark_allocated(4);
    let frees = |w: &World| {
        w.free(3);
        w.free(4);
        vec![]
    };
    let closes = |w: &World| {
        w.layer.close();
        w.layer.flush_all(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    run_together(&world, (script, closes), &[on(1, frees)]);
    assert!(world.are_with_supplier(&[1, 2, 3, 4]), "a closed layer holds no rounds");
    world.census(&[]);
}

// ---------------------------------------------------------------- T: the table

/// T1: a drain of one class leaves the other classes of its CPU unchanged.
pub(super) fn two_classes(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 1).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 1);
    w.fill_stack(0, 0, 1, &[1]);
    let other = World::on(&table, Config::new(1, 0, 4), false, 2);
    other.fill_stack(0, 0, 2, &[1, 2]);
    w.other = Some(Box::new(other));
    let uses = |w: &World| {
        w.other.as_deref().map(alloc_then_free);
        alloc_then_free(w)
    };
    run(w, (script, uses), &[on(1, drain_cpu_0)]);
}

/// T1: one sweep covers two layers, and each layer collects its objects, while a thread uses the two layers.
pub(super) fn sweep_of_two(Case { by, script }: Case) {
    let table = table(Cpus::simulated(1, 1).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 1);
    w.fill_stack(0, 0, 1, &[1]);
    let other = World::on(&table, Config::new(1, 0, 4), false, 1);
    other.fill_stack(0, 0, 2, &[1]);
    w.other = Some(Box::new(other));
    let uses = |w: &World| {
        w.other.as_deref().map(alloc_then_free);
        alloc_then_free(w)
    };
    run(w, (script, uses), &[on(0, sweep)]);
}
fn sweep(w: &World) -> Vec<Option<usize>> {
    let both = || [Some(w), w.other.as_deref()].into_iter().flatten();
    both().for_each(|world| world.layer.join_sweeps(SweepGroup::new(0)));
    w.layer.table.sweep(0..w.layer.cpus().count(), DrainScope::All, |_| true);
    both().for_each(|world| _ = world.layer.drain_swept(&Operation::new(), &world.supplier));
    vec![]
}

/// T1: a sweep of two layers runs during a drain of one layer and a free that would use the stack.
pub(super) fn sweep_meets_drain(Case { by, script }: Case) {
    let table = table(Cpus::simulated(1, 1).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.mark_allocated(2);
    let other = World::on(&table, Config::new(1, 0, 4), false, 1);
    other.fill_stack(0, 0, 2, &[1]);
    w.other = Some(Box::new(other));
    let frees = |w: &World| {
        w.free(2);
        vec![]
    };
    run(w, (script, frees), &[on(0, sweep), on(0, drain_cpu_0)]);
}

/// H3: two threads of a CPU push to places whose objects a drain has flushed. One of the threads opens the
/// stack, and the other thread may write first.
pub(super) fn opened_for_another(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 3);
    w.fill_stack(0, 0, 2, &[1]);
    w.mark_allocated(2);
    w.mark_allocated(3);
    let frees_2 = |w: &World| {
        w.free(2);
        vec![]
    };
    let frees_3 = |w: &World| {
        w.free(3);
        vec![]
    };
    run(w, (script, drain_cpu_0), &[on(0, frees_2), on(0, frees_3)]);
}

/// T1: a region is committed up to a stack's first place, and a drain visits the region while a thread grows
/// the stack.
pub(super) fn committed_in_part(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 2);
    w.fill_stack(0, 0, 1, &[]);
    w.layer.table.region(0).unwrap().set_committed(w.class(0).end(1));
    (1..=2).for_each(|round| w.mark_allocated(round));
    let frees = |w: &World| {
        (1..=2).for_each(|round| w.free(round));
        vec![]
    };
    run(w, (script, frees), &[on(0, drain_cpu_0)]);
}

/// T3: the pages of a drained stack are decommitted while a free and an allocation use the stack again.
pub(super) fn pages_are_decommitted_during_use(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1]);
    w.drain(0..1);
    w.mark_allocated(2);
    let uses = |w: &World| {
        w.free(2);
        keep_one(w)
    };
    let release = |w: &World| {
        w.layer.table.decommit_idle();
        vec![]
    };
    run(w, (script, uses), &[on(0, release)]);
}

/// T3: pages are decommitted during a drain that flushes the objects on the page.
pub(super) fn pages_beside_a_drain(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.fill_stack(0, 0, 2, &[1]);
    let release = |w: &World| {
        w.layer.table.decommit_idle();
        vec![]
    };
    run(w, (script, drain_cpu_0), &[on(0, release)]);
}

/// T3: the counts of the stacks on a page survive the page's decommit, for any concurrent reader.
pub(super) fn counts_survive_a_decommit(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.fill_stack(0, 0, 2, &[1]);
    alloc_then_free(&w);
    w.drain(0..1);
    let looks = |w: &World| {
        let stats = w.layer.stats();
        assert_eq!(stats.allocs + stats.frees, 2, "no operation is forgotten or counted twice");
        vec![]
    };
    let release = |w: &World| {
        w.layer.table.decommit_idle();
        vec![]
    };
    run(w, (script, looks), &[on(0, release)]);
}

/// T2: the last user of a layer returns the class number while the stacks hold objects. The next created
/// layer may get the returned class number.
pub(super) fn number_is_reused(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 1).unwrap().with_mechanism(by), 2);
    let config = Config::new(1, 0, 4);
    let old = Arc::new(World::on(&table, config, false, 2));
    old.fill_stack(0, 0, 2, &[1]);
    old.fill_stack(1, 0, 2, &[2]);
    let class = old.class(0);
    let other = old.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        alloc_then_free(&other);
        drop(other);
    });
    script.install();
    alloc_then_free(&old);
    drop(old);
    let new = World::on(&table, config, true, 4);
    new.with_supplier(&[3, 4]);
    new.set_owned(1, true);
    new.set_owned(2, true);
    let here = new.alloc();
    on_cpu(1);
    let there = new.alloc();
    t.join().unwrap();
    on_cpu(0);
    if new.class(0).index != class.index {
        assert_eq!(table.limit(class).load(Relaxed), 0, "a class number without an owner is closed");
    }
    let mut all = vec![1, 2];
    all.extend([here, there].into_iter().flatten());
    new.census(&all);
}

/// T2: two threads take class numbers and return them. No class number has two owners, and none is lost.
pub(super) fn numbers_have_one_owner() {
    struct NumberSupplier {
        table: Shared<Table<Heap>>,
        owned: [UnsafeCell<()>; 3],
    }
    fn take_and_give_back(numbers: &NumberSupplier) {
        let class = numbers.table.class(2).unwrap();
        // The checker reports a race if another thread owns the number.
        numbers.owned[class.index as usize].with_mut(|_| ());
        numbers.table.retire(class);
    }
    let table = table(Cpus::simulated(1, 1).unwrap(), 2);
    table.retire(table.class(2).unwrap());
    let numbers = Arc::new(NumberSupplier { table, owned: [(); 3].map(UnsafeCell::new) });
    let other = numbers.clone();
    let t = thread::spawn(move || take_and_give_back(&other));
    take_and_give_back(&numbers);
    t.join().unwrap();
    let [one, two] = [(); 2].map(|()| numbers.table.class(2).expect("a class number must be available"));
    assert_ne!(one.index, two.index, "a class number has one owner");
    assert!(numbers.table.class(2).is_none(), "no more class numbers are allocated than exist");
}

// ---------------------------------------------------------------- N: nodes

/// N1: a CPU frees objects that belong to another CPU's node; these objects return to their node in
/// magazines.
pub(super) fn frees_of_another_node(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 3);
    w.supplier.second_node = 1;
    (0..2).for_each(|node| w.fill_stack(0, node, 1, &[]));
    (1..=3).for_each(|round| w.mark_allocated(round));
    let frees = |w: &World| {
        (1..=3).for_each(|round| w.free(round));
        vec![]
    };
    run(w, (script, frees), &[on(1, |w| vec![w.alloc(), w.alloc()])]);
}

/// N1: a thread migrates to another node at each of its steps. Each stack has an object at first, so that a
/// thread needs few steps.
pub(super) fn between_nodes(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(2, 0, 4), true, 4);
    w.supplier.second_node = 3;
    w.fill_stack(0, 0, 2, &[1]);
    w.fill_stack(1, 1, 2, &[3]);
    w.with_supplier(&[2, 4]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free)]);
}

// ---------------------------------------------------------------- F: fork

/// F1: a thread holds all locks for a fork during an exchange and a drain. In the child of a fork, another thread's
/// claim and drain never end.
pub(super) fn fork_beside_exchange(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, true, 3);
    w.fill_stack(0, 0, 1, &[]);
    w.put_in_depot(0, &[1]);
    w.with_supplier(&[2, 3]);
    let world = Arc::new(w);
    let other = world.clone();
    let t = thread::spawn(move || {
        script.install();
        alloc_then_free(&other);
        drain_cpu_0(&other);
    });
    fork(&world);
    t.join().unwrap();
    continue_as_child(&world);
    world.census(&[]);
}

// ---------------------------------------------------------------- D: the depot alone

/// D1: one thread takes a magazine while another thread takes two and puts the first one back.
pub(super) fn depot_aba() {
    let d = DepotWorld::new(2);
    (0..2).for_each(|round| d.put(round));
    let e = d.clone();
    let t = thread::spawn(move || {
        let (a, b) = (e.take(), e.take());
        a.into_iter().for_each(|round| e.put(round));
        b
    });
    let mine = d.take();
    let theirs = t.join().unwrap();
    d.census(&[mine, theirs]);
}

/// D2: writes before a put are visible after the take.
pub(super) fn depot_publish() {
    let d = DepotWorld::new(1);
    let e = d.clone();
    let t = thread::spawn(move || e.put(0));
    // loom reports a race on the object if the write does not happen before this take.
    d.take().into_iter().for_each(|round| d.put(round));
    t.join().unwrap();
    d.census(&[]);
}

/// D3: two puts and a take lose no magazine, and a take after a put finds a magazine.
pub(super) fn depot_three() {
    let d = DepotWorld::new(2);
    let threads: Vec<_> = (0..2)
        .map(|round| {
            let d = d.clone();
            thread::spawn(move || d.put(round))
        })
        .collect();
    let first = d.take();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let second = d.take();
    assert!(second.is_some(), "of two magazines, at most one was taken");
    d.census(&[first, second]);
}

/// D4: a second interval ends while a thread needs one of the two magazines.
pub(super) fn depot_reap() {
    let d = DepotWorld::new(2);
    (0..2).for_each(|round| d.put(round));
    assert_eq!(d.depot.surplus(&Operation::new()), 0, "a reap keeps magazines that were just put");
    let e = d.clone();
    let t = thread::spawn(move || e.take().into_iter().for_each(|round| e.put(round)));
    let surplus = d.depot.surplus(&Operation::new());
    assert!((1..=2).contains(&surplus), "{surplus} magazines are surplus, but one may be needed");
    let taken: Vec<_> = (0..surplus).map(|_| d.take()).collect();
    t.join().unwrap();
    d.census(&taken);
}

/// D4: one thread takes from a full depot, and another thread puts as soon as there is room.
pub(super) fn depot_reap_beside_put() {
    let d = DepotWorld::of(3, 2);
    (0..2).for_each(|round| d.put(round));
    assert_eq!(d.depot.surplus(&Operation::new()), 0, "a reap keeps magazines that were just put");
    let e = d.clone();
    let t = thread::spawn(move || e.take());
    let put = d.try_put(2);
    let theirs = t.join().unwrap();
    // `d` has room for the put only after the other thread has taken a magazine.
    assert_eq!(d.depot.surplus(&Operation::new()), 1, "one of the two magazines was needed");
    d.census(&[theirs, (!put).then_some(2)]);
}

// ---------------------------------------------------------------- the trace of a failure

/// A model that fails on purpose, so that [`failed_model_prints_a_repeatable_trace`] finds its trace.
#[test]
#[ignore = "fails on purpose; run by the test behind it"]
fn child_fails_on_purpose() {
    plant("a drain flushes the rounds of another drain");
    let case = Case { by: Mechanism::Rseq, script: Script::on(0) };
    models("a failure", Bound::Preemptions(2), 1, [case], drain_meets_drain);
}

/// Regression: libtest hid the trace, because it shows no output of a passing test.
#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
fn passing_test_of_a_planted_bug_prints_its_trace() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let test = "scenarios::h3_a_drain_meets_another_one::planted";
    let output = unset(&mut command).args(["--exact", test]).env("STORY", "1").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("STORY a drain flushes the rounds of another drain | script "), "{printed}");
    assert!(printed.contains("every round in one place"), "{printed}");
}

#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
fn failed_model_prints_a_repeatable_trace() {
    use std::process::Command;
    let printed = |command: &mut Command| {
        let output = command.envs([("RUST_BACKTRACE", "0"), ("STORY", "1")]).output().unwrap();
        assert!(!output.status.success(), "the model must fail");
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let of = |printed: &str| {
        let (_, story) = printed
            .split_once("STORY ")
            .unwrap_or_else(|| panic!("no counterexample trace in the output: {printed}"));
        let (title, rest) = story.split_once('\n').unwrap();
        let (steps, rest) = rest.split_once("       fails: ").unwrap();
        (title.to_owned(), steps.to_owned(), rest.lines().next().unwrap().to_owned())
    };
    let program = std::env::current_exe().unwrap();
    let test = "scenarios::models::child_fails_on_purpose";
    // The output must not depend on variables that a runner may have set for the models.
    let first = printed(unset(&mut Command::new(&program)).args([
        "--exact",
        test,
        "--include-ignored",
        "--nocapture",
    ]));
    let (title, steps, message) = of(&first);
    assert!(title.starts_with("a failure | script 0"), "{title}");
    for part in [
        "thread 0  CPU 0  has no place",
        "detaches the region of CPU 0",
        "CPU 0 region: away -> there",
        "CPU 0 stack 1: 2 -> 0, 2 taken",
    ] {
        assert!(steps.contains(part), "{part}: {steps}");
    }
    let command = first.lines().find(|line| line.starts_with("REPLAY=")).unwrap();
    let json = program.with_extension("story.json");
    let again = printed(unset(&mut Command::new("sh")).args(["-c", command]).env("STORY_JSON", &json));
    // The replay refuses a path from the file of another model.
    let missing = command.replace(".replay'", ".missing'");
    assert!(printed(unset(&mut Command::new("sh")).args(["-c", &missing])).contains("no such file"));
    // The repeated execution has the same steps and objects.
    let (again_title, again_steps, again_message) = of(&again);
    assert!(again_title.ends_with("| execution 1"), "no other execution ran before: {again_title}");
    assert_eq!((again_steps, again_message), (steps.clone(), message));
    let story: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(story["steps"].as_array().unwrap().len(), steps.lines().count());
}

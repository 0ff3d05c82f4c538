//! Loom models: two or three threads run on one or two CPUs, with magazines of one or two objects.
//!
//! There is no property R2, because the ABA problem, which it would cover, cannot occur. The code uses compare-and-swap
//! only for claims, and the entries of a stack never leave their CPU's region.
//!
//! The planted bugs of these models do not include wrong memory orderings. To test memory orderings,
//! `cargo check-orderings` weakens each ordering and requires that a model fails. The depot's lock is loom's mutex.

use super::world::{
    DepotWorld, ThreadFn, World, alloc_then_free, continue_as_child, fork, magazine, rounds_as_pointers,
    table, table_with_inlined_words,
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
use crate::threads::run_concurrently;
use crate::tracepoints::Operation;
use std::sync::Arc as Shared;

impl World {
    /// Creates a world with one node, magazines of `capacity` objects, and stacks with room for `stock + 2` magazines.
    /// The supplier hands out objects only if `fills` is set.
    fn new(by: Mechanism, cpus: u32, capacity: u16, stock: u16, fills: bool, rounds: usize) -> Self {
        let table = table(Cpus::simulated(cpus, 1).unwrap().with_mechanism(by), 1);
        Self::on(&table, Config::new(capacity, stock, 4), fills, rounds)
    }
    fn fill_stack(&self, cpu: u32, node: usize, cap: u32, rounds: &[usize]) {
        let (table, class) = (&self.layer.table, self.class(node));
        table.open(&Operation::new(), cpu, class, cap);
        let region = table.region(cpu).unwrap();
        region.set_cap(class, cap);
        assert!(region.push_batch(class, &rounds_as_pointers(rounds), Commit::Done));
        self.layer.nodes[node].net.add(rounds.len() as u64);
    }
    /// Puts a magazine with the objects `rounds` into a node's depot.
    fn put_in_depot(&self, node: usize, rounds: &[usize]) {
        let budget = &self.layer.table.depots;
        let depot = &self.layer.nodes[node].depot;
        assert!(depot.put(&Operation::new(), budget, &magazine(rounds), || Some(Block::on_heap())));
    }
    /// Marks an object as allocated before the model starts.
    fn mark_allocated(&self, round: usize) {
        self.set_owned(round, true);
        self.allocs.add(1);
        self.layer.counts.around_allocs.add(1);
    }
    /// Returns `true` if the supplier holds all of `rounds`.
    fn supplier_has_rounds(&self, rounds: &[usize]) -> bool {
        let supplier = self.supplier.rounds.lock();
        rounds.iter().all(|round| supplier.contains(round))
    }
}

/// Runs all threads concurrently, and then checks that every object is in exactly one place.
fn run(world: World, left: (Script, ThreadFn), others: &[(Script, ThreadFn)]) {
    let world = Arc::new(world);
    let live = run_concurrently(&world, left, others);
    world.census(&live);
}

/// The parameters of a model: the mechanism, and the script that determines when the first thread migrates or is
/// aborted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    by: Mechanism,
    script: Script,
}

/// The scripts that the first thread of a model follows, one after another. In a script, the first thread stays on CPU
/// 0, or migrates before one of its first `reads` reads of the CPU number. With rseq, a script can also abort a
/// restartable sequence at a read of the CPU number.
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

/// A model that runs twice: with the claimed mechanism, and with rseq.
pub(super) struct BothMechanisms {
    claimed: Models<Case>,
    rseq: Models<Case>,
}
/// Creates a model that runs with each mechanism. The array `floors` has the minimum numbers of executions with the
/// claimed mechanism and with rseq.
pub(super) fn both(bound: Bound, floors: [u64; 2], Scripts { reads, cpus }: Scripts) -> BothMechanisms {
    let [claimed, rseq] = floors.map(|floor| Model::new(bound, floor));
    BothMechanisms {
        claimed: claimed
            .each(Script::all(0, cpus, reads).map(|script| Case { by: Mechanism::Claimed, script })),
        rseq: rseq.each(
            Script::scripts_with_one_abort(0, cpus, reads).map(|script| Case { by: Mechanism::Rseq, script }),
        ),
    }
}
impl BothMechanisms {
    pub(super) fn run(self, name: &str, f: fn(Case)) {
        self.claimed.run(&format!("{name} (claimed)"), f);
        self.rseq.run(&format!("{name} (rseq)"), f);
    }
    /// Asserts that the model detects the planted bug with each of the two mechanisms.
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
fn drain_both_cpus(w: &World) -> Vec<Option<usize>> {
    w.drain(0..2);
    vec![]
}
fn on(cpu: u32, side: ThreadFn) -> (Script, ThreadFn) {
    (Script::on(cpu), side)
}

// ---------------------------------------------------------------- the contract of a section

/// R1: threads allocate and free while one object is on CPU 0's stack and two magazines are in the depot.
pub(super) fn contract(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 6);
    w.fill_stack(0, 0, 2, &[1]);
    w.put_in_depot(0, &[2, 3]);
    w.put_in_depot(0, &[4, 5]);
    w.give_rounds_to_supplier(&[6]);
    let uses = |w: &World| {
        alloc_then_free(w);
        vec![w.alloc(), w.alloc()]
    };
    run(w, (script, uses), &[on(1, alloc_then_free)]);
}

// ---------------------------------------------------------------- M: movement of rounds

/// M1, M2: objects that one CPU frees reach another CPU in whole magazines.
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

/// M2: a stack is full, and two threads on its CPU free objects, so that both move a magazine to the depot.
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

/// M3: two threads with the same CPU number never own the region at the same time, and neither thread waits. The first
/// thread misses and pushes a batch while the second thread frees an object.
pub(super) fn two_threads_on_one_cpu(Case { by, script }: Case) {
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

/// M4: two CPUs take magazines from the depot until it is empty. When the depot is empty, the supplier provides
/// objects.
pub(super) fn two_cpus_empty_the_depot(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, true, 4);
    w.put_in_depot(0, &[1]);
    w.give_rounds_to_supplier(&[2, 3]);
    w.mark_allocated(4);
    let frees = |w: &World| {
        w.free(4);
        vec![]
    };
    run(w, (script, keep_one), &[on(1, keep_one), on(1, frees)]);
}

/// M4: if the supplier has no objects, the allocation fails and changes nothing.
pub(super) fn alloc_with_an_empty_supplier(Case { by, script }: Case) {
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

/// H1: a thread pops and pushes while another thread drains its CPU.
pub(super) fn drain_during_pop_and_push(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1, 2]);
    let alloc_and_free = |w: &World| {
        alloc_then_free(w);
        keep_one(w)
    };
    run(w, (script, alloc_and_free), &[on(1, drain_cpu_0)]);
}

/// H1: while a process has only one thread, a drain of both CPUs issues no fence. After the thread has started a second
/// thread, the next drain issues a fence.
pub(super) fn drain_in_a_single_threaded_process(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, true, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run_single_threaded(|| w.drain(0..2));
    w.assert_cpus_hold_no_round("a drain by the only thread");
    run(w, (script, alloc_then_free), &[on(1, drain_cpu_0)]);
}

/// H1: an inlined free runs during a drain of its CPU. The drain must also redirect the per-CPU pointers that inlined
/// paths read.
pub(super) fn drain_during_an_inlined_free(Case { by, script }: Case) {
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

/// H1: during a drain, a thread of the CPU misses and pushes a batch, grows the stack, and overflows it.
pub(super) fn drain_during_batches(Case { by, script }: Case) {
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

/// H1: during a drain, frees grow the stack and overflow it. After the drain, the draining thread lowers the layer's
/// limits, as in a shortage of memory.
pub(super) fn drain_while_the_stack_grows(Case { by, script }: Case) {
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

/// H1: when a drain returns, the supplier has all objects that were on the CPU's stack and unused, although the CPU
/// continues to run.
pub(super) fn drain_flushes_all_unused_rounds(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 1, false, 3);
    w.fill_stack(0, 0, 3, &[2, 3]);
    w.mark_allocated(1);
    let frees = |w: &World| {
        w.free(1);
        vec![]
    };
    let drain = |w: &World| {
        w.drain(0..1);
        assert!(w.supplier_has_rounds(&[2, 3]), "a drain leaves no rounds");
        vec![]
    };
    run(w, (script, frees), &[on(1, drain)]);
}

/// H1: a thread gets a magazine from the supplier while another thread drains its CPU.
pub(super) fn drain_during_a_fill(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, true, 3);
    w.fill_stack(0, 0, 1, &[1]);
    w.give_rounds_to_supplier(&[2, 3]);
    let takes = |w: &World| vec![w.alloc(), w.alloc()];
    run(w, (script, takes), &[on(1, drain_cpu_0)]);
}

/// H1, T1: a CPU that was idle allocates and frees again during a reap.
pub(super) fn reap_while_a_cpu_wakes(Case { by, script }: Case) {
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
    let live = run_concurrently(&world, (script, alloc_then_free), &[on(0, reap)]);
    // Two reaps without operations in between: the second reap finds the CPU idle.
    (0..2).for_each(|_| _ = world.layer.reap(&world.supplier));
    world.assert_cpus_hold_no_round("a reap");
    world.census(&live);
}

/// H2: one drain covers two CPUs while a thread runs on each of them.
pub(super) fn drain_of_two_busy_cpus(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free), on(1, drain_both_cpus)]);
}

/// H2, M3: two threads run on the same CPU during a drain of this CPU.
pub(super) fn drain_of_a_cpu_with_two_threads(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 2, &[1, 2]);
    run(w, (script, alloc_then_free), &[on(0, alloc_then_free), on(1, drain_cpu_0)]);
}

/// H3: two threads drain both CPUs concurrently, while another thread allocates and frees.
pub(super) fn two_drains(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.fill_stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(0, drain_both_cpus), on(1, drain_both_cpus)]);
}

/// H3: a drain begins while another drain is still flushing objects of the same class, and while a thread frees an
/// object.
pub(super) fn drain_during_the_flush_of_another(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.fill_stack(0, 0, 1, &[1]);
    w.mark_allocated(2);
    let frees = |w: &World| {
        w.free(2);
        vec![]
    };
    run(w, (script, frees), &[on(0, drain_cpu_0), on(0, drain_cpu_0)]);
}

/// H4: a thread migrates to a CPU without a region (as if it were hotplugged later), on which another thread already
/// runs.
pub(super) fn migration_to_a_cpu_without_a_region(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 3);
    w.supplier.second_node = 2;
    w.fill_stack(0, 0, 1, &[1]);
    w.put_in_depot(1, &[2]);
    w.put_in_depot(1, &[3]);
    run(w, (script, alloc_then_free), &[on(2, alloc_then_free)]);
}

/// H4: a thread on a CPU without a region bypasses the stacks. At the same time, another thread uses its region, and a
/// drain runs.
pub(super) fn drain_during_a_bypass(Case { by, script }: Case) {
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

/// H5: one thread closes and flushes a layer while two threads free objects. One of the frees finds room on its stack,
/// and the other free finds its stack full. After close, flush and frees have finished, the supplier must have all
/// objects.
pub(super) fn close_and_flush_during_frees(Case { by, script }: Case) {
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
    run_concurrently(&world, (script, closes), &[on(0, frees), on(1, overflows)]);
    assert!(world.supplier_has_rounds(&[1, 2, 3, 4]), "a closed layer holds no rounds");
    world.census(&[]);
}
/// H5: one thread closes and flushes a layer while another thread lowers the layer's limits because memory is short.
pub(super) fn close_during_shrink(Case { by, script }: Case) {
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
    run_concurrently(&world, (script, closes), &[on(1, shrinks)]);
    world.free(2);
    assert!(world.supplier_has_rounds(&[1, 2]), "a closed layer holds no rounds");
    world.census(&[]);
}
/// H5: one thread closes and flushes a layer while another CPU frees an object for the first time. No drain has visited
/// this CPU before.
pub(super) fn close_during_first_free(Case { by, script }: Case) {
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
    run_concurrently(&world, (script, closes), &[on(1, frees)]);
    assert!(world.supplier_has_rounds(&[1, 2, 3, 4]), "a closed layer holds no rounds");
    world.census(&[]);
}

// ---------------------------------------------------------------- T: the table

/// T1: a drain of one class does not affect the stacks of other classes on the same CPU.
pub(super) fn drain_of_one_of_two_classes(Case { by, script }: Case) {
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

/// T1: one sweep covers two layers, and each layer then collects its objects. In the model, another thread uses the two
/// layers during the sweep.
pub(super) fn sweep_of_two_layers(Case { by, script }: Case) {
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

/// T1: one thread sweeps two layers while another thread drains one of them and a third thread frees an object.
pub(super) fn sweep_during_a_drain(Case { by, script }: Case) {
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

/// H3: after a drain, two threads on the CPU push objects over stack entries that the drain has read. One thread opens
/// the stack again, but the other thread may push first.
pub(super) fn push_to_a_stack_that_another_opened(Case { by, script }: Case) {
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

/// T1: only the first entry of a stack is in committed memory. A drain visits the region while a thread grows the
/// stack.
pub(super) fn drain_of_a_partly_committed_region(Case { by, script }: Case) {
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

/// T3: one thread decommits the pages of a drained stack while another thread frees and allocates with this stack.
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

/// T3: one thread decommits idle pages while a drain is flushing objects that are stored on such a page.
pub(super) fn decommit_during_a_drain(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.fill_stack(0, 0, 2, &[1]);
    let release = |w: &World| {
        w.layer.table.decommit_idle();
        vec![]
    };
    run(w, (script, drain_cpu_0), &[on(0, release)]);
}

/// T3: a thread that reads the operation counts sees them unchanged, even while the page that held them is decommitted.
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

/// T2: the last user drops a layer, which returns its class number, while objects are still on its stacks. A layer that
/// is created next may reuse this class number.
pub(super) fn class_number_is_reused(Case { by, script }: Case) {
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
    new.give_rounds_to_supplier(&[3, 4]);
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

/// T2: two threads concurrently allocate and return class numbers. No class number ever has two owners, and no number
/// is lost.
pub(super) fn class_numbers_have_one_owner() {
    struct NumberSupplier {
        table: Shared<Table<Heap>>,
        owned: [UnsafeCell<()>; 3],
    }
    fn take_and_return_number(numbers: &NumberSupplier) {
        let class = numbers.table.class(2).unwrap();
        // The checker reports a race if another thread owns the number.
        numbers.owned[class.index as usize].with_mut(|_| ());
        numbers.table.retire(class);
    }
    let table = table(Cpus::simulated(1, 1).unwrap(), 2);
    table.retire(table.class(2).unwrap());
    let numbers = Arc::new(NumberSupplier { table, owned: [(); 3].map(UnsafeCell::new) });
    let other = numbers.clone();
    let t = thread::spawn(move || take_and_return_number(&other));
    take_and_return_number(&numbers);
    t.join().unwrap();
    let [one, two] = [(); 2].map(|()| numbers.table.class(2).expect("a class number must be available"));
    assert_ne!(one.index, two.index, "a class number has one owner");
    assert!(numbers.table.class(2).is_none(), "no more class numbers are allocated than exist");
}

// ---------------------------------------------------------------- N: nodes

/// N1: a CPU frees objects of another CPU's node. The objects return to their node in magazines.
pub(super) fn frees_to_remote_node(Case { by, script }: Case) {
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

/// N1: a thread migrates to a CPU of another node before one of its steps. Each stack contains an object initially, so
/// that the thread needs only a few steps.
pub(super) fn migration_between_nodes(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().with_mechanism(by), 2);
    let mut w = World::on(&table, Config::new(2, 0, 4), true, 4);
    w.supplier.second_node = 3;
    w.fill_stack(0, 0, 2, &[1]);
    w.fill_stack(1, 1, 2, &[3]);
    w.give_rounds_to_supplier(&[2, 4]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free)]);
}

// ---------------------------------------------------------------- F: fork

/// F1: a thread acquires all locks for a fork while another thread accesses the depot and a drain runs. In the child of
/// the fork, the other threads' claims and drains must be undone.
pub(super) fn fork_during_a_depot_access(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, true, 3);
    w.fill_stack(0, 0, 1, &[]);
    w.put_in_depot(0, &[1]);
    w.give_rounds_to_supplier(&[2, 3]);
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

/// D1: one thread takes a magazine from the depot while another thread takes two and puts one of them back.
pub(super) fn depot_take_during_take_and_put() {
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

/// D2: a thread that takes a magazine from the depot sees everything that was written before the magazine was put
/// there.
pub(super) fn depot_take_sees_earlier_writes() {
    let d = DepotWorld::new(1);
    let e = d.clone();
    let t = thread::spawn(move || e.put(0));
    // loom reports a race on the object if the write does not happen before this take.
    d.take().into_iter().for_each(|round| d.put(round));
    t.join().unwrap();
    d.census(&[]);
}

/// D3: two concurrent puts and a take lose no magazine, and a take that follows a put finds a magazine.
pub(super) fn depot_two_puts_and_a_take() {
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

/// D4: a reaping interval ends while a thread takes one of the depot's two magazines.
pub(super) fn depot_reap_during_a_take() {
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

/// D4: one thread takes a magazine from a full depot, and another thread puts a magazine as soon as there is room.
pub(super) fn depot_take_during_a_put() {
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

/// A model that fails on purpose. The test [`failed_model_prints_a_repeatable_trace`] checks the trace that it prints.
#[test]
#[ignore = "fails on purpose; run by the test behind it"]
fn child_process_fails_on_purpose() {
    plant("a drain flushes the rounds of another drain");
    let case = Case { by: Mechanism::Rseq, script: Script::on(0) };
    models("a failure", Bound::Preemptions(2), 1, [case], drain_during_the_flush_of_another);
}

/// Regression: the trace of a planted bug was invisible, because libtest shows no output of a passing test.
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
    let test = "scenarios::models::child_process_fails_on_purpose";
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

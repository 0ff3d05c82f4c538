//! Models of the layer: the shipping source under loom.
//!
//! A model's name begins with the properties that it is of (`tests/claims.toml` has them in words): R1 and R3 the contract of
//! a section, M1-M4 what travels, H1-H5 drain and hotplug, T1-T3 the table, N1 nodes, F1 fork, D1-D4 the depot. Each ends
//! in the census of its world (`world`), which `schedules` shares.
//!
//! Every model runs twice, over the claimed slot and over the token model of restartable sequences, with the same
//! bodies and the same layer above them. The models are small on purpose (magazines of 1 or 2, two CPUs, two or three
//! threads) and each script of migrations and aborts is a model of its own. Each planted bug at the end must be caught by the
//! model named with it.
//!
//! What cannot go wrong has no model, hence no R2: nothing is compared and swapped but a claim, so nothing comes back unnoticed
//! (ABA). The places of a stack lie in its CPU's region, so they are neither handed about nor anybody's own.
//!
//! Memory orderings are not planted here: `cargo check-orderings` weakens each and wants a model that fails. The lock of a
//! depot is a mutex, which the checker has for granted.

use crate::cpu::{Cpus, Mechanism, Script, on_cpu};
use crate::depot::Block;
use crate::layer::Config;
use crate::paths::Operation;
use crate::region::Commit;
use crate::sync::check::{Bound, caught, models, plant};
use crate::sync::{Arc, Ordering::Relaxed, thread};
use crate::table::Which;
use crate::world::{DepotWorld, Side, World, alloc_then_free, child, fork, magazine, raw, table, together};

/// Initial states.
impl World {
    /// One node, magazines of `capacity`, stacks with room for two and `stock` of them; the supplier hands rounds out only
    /// if `fills`.
    fn new(by: Mechanism, cpus: u32, capacity: u16, stock: u16, fills: bool, rounds: usize) -> Self {
        let table = table(Cpus::simulated(cpus, 1).unwrap().by(by), 1);
        Self::on(&table, Config::new(capacity, stock, 4), fills, rounds)
    }
    /// CPU `cpu`'s stack for a node has `cap` places, and these rounds lie on it.
    fn stack(&self, cpu: u32, node: usize, cap: u32, rounds: &[usize]) {
        let (table, class) = (&self.layer.table, self.class(node));
        table.open(&Operation::new(), cpu, class, cap);
        let region = table.region(cpu).unwrap();
        region.set_cap(class, cap);
        assert!(region.push_batch(class, &raw(rounds), Commit::Done));
        self.layer.nodes[node].net.add(rounds.len() as u64);
    }
    /// A magazine in a node's depot.
    fn in_depot(&self, node: usize, rounds: &[usize]) {
        assert!(
            self.layer.nodes[node].depot.put(&Operation::new(), &magazine(rounds), || Some(Block::on_heap()))
        );
    }
    /// A round that is out from the beginning.
    fn out(&self, round: usize) {
        self.own(round, true);
        self.allocs.add(1);
        self.layer.counts.around_allocs.add(1);
    }
    /// Whether these rounds are with the supplier.
    fn are_with_supplier(&self, rounds: &[usize]) -> bool {
        let supplier = self.supplier.rounds.lock();
        rounds.iter().all(|round| supplier.contains(round))
    }
}

/// Runs all of them together, and ends in the census.
fn run(world: World, left: (Script, Side), others: &[(Script, Side)]) {
    let world = Arc::new(world);
    let live = together(&world, left, others);
    world.census(&live);
}

const TWO: Bound = Bound::Preemptions(2);
const THREE: Bound = Bound::Preemptions(3);

/// What a model runs under: the mechanism, and where the first thread is moved or aborted.
#[derive(Clone, Copy, Debug)]
struct Case {
    by: Mechanism,
    script: Script,
}

/// The first thread stays on CPU 0, or is moved to another CPU before one of its first `reads` reads of the CPU's number;
/// restartable sequences are aborted there as well.
#[derive(Clone, Copy)]
struct Scripts {
    reads: u32,
    cpus: u32,
}
const fn moves(reads: u32) -> Scripts {
    Scripts { reads, cpus: 2 }
}
const fn stays() -> Scripts {
    Scripts { reads: 0, cpus: 1 }
}
fn claimed(s: Scripts) -> impl Iterator<Item = Case> {
    Script::all(0, s.cpus, s.reads).map(|script| Case { by: Mechanism::Claimed, script })
}
fn rseq(s: Scripts) -> impl Iterator<Item = Case> {
    Script::all_aborting(0, s.cpus, s.reads).map(|script| Case { by: Mechanism::Rseq, script })
}

/// One model over both mechanisms, with the floors of claimed and rseq.
fn both(name: &str, bound: Bound, floors: [u64; 2], scripts: Scripts, f: fn(Case)) {
    models(&format!("{name} (claimed)"), bound, floors[0], claimed(scripts), f);
    models(&format!("{name} (rseq)"), bound, floors[1], rseq(scripts), f);
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
/// CPU 0 and CPU 1.
fn on(cpu: u32, side: Side) -> (Script, Side) {
    (Script::on(cpu), side)
}

// ---------------------------------------------------------------- the contract of a section

/// CPU 0 has a round, CPU 1 none; the depot has two magazines of two.
fn contract(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 6);
    w.stack(0, 0, 2, &[1]);
    w.in_depot(0, &[2, 3]);
    w.in_depot(0, &[4, 5]);
    w.with_supplier(&[6]);
    let uses = |w: &World| {
        alloc_then_free(w);
        vec![w.alloc(), w.alloc()]
    };
    run(w, (script, uses), &[on(1, alloc_then_free)]);
}
#[test]
fn section_contract_under_migration() {
    both("R1 R3: alloc and free, moved and aborted", THREE, [57000, 70000], moves(9), contract);
}

// ---------------------------------------------------------------- M: what travels

/// M1, M2: what one CPU frees travels to the other in whole magazines.
fn travel(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 3);
    w.stack(0, 0, 1, &[]);
    w.stack(1, 0, 1, &[]);
    (1..=3).for_each(|b| w.out(b));
    let consumer = |w: &World| vec![w.alloc(), w.alloc()];
    let producer = |w: &World| {
        (1..=3).for_each(|b| w.free(b));
        vec![]
    };
    run(w, (script, producer), &[on(1, consumer)]);
}
#[test]
fn m1_m2_rounds_travel_through_the_depot() {
    both("M1 M2: rounds travel through the depot", THREE, [3900, 2000], moves(6), travel);
}

/// M2: a stack is at its reach, and two threads of its CPU take magazines off it.
fn overflow(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 6);
    w.stack(0, 0, 4, &[1, 2, 3, 4]);
    w.out(5);
    w.out(6);
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
#[test]
fn m2_a_stack_overflows() {
    both("M2: two threads of a CPU whose stack is full", THREE, [4700, 4700], moves(6), overflow);
}

/// M3: two threads with one CPU number never both own its region, and neither waits: one misses and pushes a batch, the
/// other one frees.
fn same_cpu(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 4);
    w.stack(0, 0, 1, &[]);
    w.in_depot(0, &[1, 2]);
    w.out(3);
    w.out(4);
    let frees = |w: &World| {
        w.free(3);
        w.free(4);
        vec![]
    };
    run(w, (script, keep_one), &[on(0, frees)]);
}
#[test]
fn m3_two_threads_of_one_cpu() {
    both("M3: two threads of one CPU", THREE, [330, 160], Scripts { reads: 4, cpus: 1 }, same_cpu);
}

/// M4: both CPUs take from a depot that runs empty; the supplier is the fall-back.
fn depot_runs_dry(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, true, 4);
    w.in_depot(0, &[1]);
    w.with_supplier(&[2, 3]);
    w.out(4);
    let frees = |w: &World| {
        w.free(4);
        vec![]
    };
    run(w, (script, keep_one), &[on(1, keep_one), on(1, frees)]);
}
#[test]
fn m4_the_depot_runs_dry() {
    both("M4: the depot runs dry", THREE, [1700, 2600], stays(), depot_runs_dry);
}

/// M4, the supplier refusing: who gets nothing leaves everything where it was.
fn nothing_to_fill_from(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.stack(0, 0, 1, &[]);
    w.out(1);
    let frees = |w: &World| {
        w.free(1);
        vec![]
    };
    run(w, (script, keep_one), &[on(0, frees)]);
}
#[test]
fn m4_nothing_to_fill_from() {
    both("M4: nothing to fill from", THREE, [38, 5], stays(), nothing_to_fill_from);
}

// ---------------------------------------------------------------- H: drain

/// H1: pops and a push beside a drain of their CPU.
fn drain_fast(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.stack(0, 0, 2, &[1, 2]);
    let fast = |w: &World| {
        alloc_then_free(w);
        keep_one(w)
    };
    run(w, (script, fast), &[on(1, drain_cpu_0)]);
}
#[test]
fn h1_drain_against_the_fast_path() {
    both("H1 T1: drain against the fast path", THREE, [18000, 110000], moves(6), drain_fast);
}

/// H1: a miss with its batch, a stack that grows, and an overflow beside a drain.
fn drain_batches(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.stack(0, 0, 0, &[]);
    w.in_depot(0, &[1, 2]);
    w.out(3);
    w.out(4);
    let batches = |w: &World| {
        let kept = w.alloc();
        w.free(3);
        w.free(4);
        vec![kept]
    };
    run(w, (script, batches), &[on(1, drain_cpu_0)]);
}
#[test]
fn h1_drain_against_batches() {
    both("H1 T1: drain against batches", TWO, [1900, 13000], moves(7), drain_batches);
}

/// H1: frees that widen the stack, and overflow it, beside a drain; then memory is short.
fn drain_growing(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 3);
    (1..=3).for_each(|b| w.out(b));
    let frees = |w: &World| {
        (1..=3).for_each(|b| w.free(b));
        vec![]
    };
    let drain_and_shrink = |w: &World| {
        w.drain(0..1);
        w.layer.shrink();
        vec![]
    };
    run(w, (script, frees), &[on(1, drain_and_shrink)]);
}
#[test]
fn h1_drain_while_a_stack_grows() {
    both("H1 T1: drain while a stack grows", TWO, [3100, 24000], moves(6), drain_growing);
}

/// H1: what a CPU holds and does not use is with the supplier when a drain returns, although the CPU goes on.
fn drain_leaves_nothing(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 1, false, 3);
    w.stack(0, 0, 3, &[2, 3]);
    w.out(1);
    let frees = |w: &World| {
        w.free(1);
        vec![]
    };
    let drain = |w: &World| {
        w.drain(0..1);
        assert!(w.are_with_supplier(&[2, 3]), "a drain leaves nothing behind");
        vec![]
    };
    run(w, (script, frees), &[on(1, drain)]);
}
#[test]
fn h1_a_drain_leaves_nothing_behind() {
    both("H1: a drain leaves nothing behind", THREE, [210, 400], stays(), drain_leaves_nothing);
}

/// H1: the supplier fills a magazine while the CPU is drained.
fn drain_filling(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, true, 3);
    w.stack(0, 0, 1, &[1]);
    w.with_supplier(&[2, 3]);
    let takes = |w: &World| vec![w.alloc(), w.alloc()];
    run(w, (script, takes), &[on(1, drain_cpu_0)]);
}
#[test]
fn h1_drain_while_a_magazine_is_filled() {
    both("H1: drain while a magazine is filled", THREE, [12000, 69000], moves(4), drain_filling);
}

/// A reap of an idle CPU that wakes up meanwhile.
fn reap_waking(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.stack(0, 0, 2, &[1, 2]);
    assert_eq!(w.layer.reap(&w.supplier), 0, "what has just come is not idle");
    alloc_then_free(&w);
    assert_eq!(w.layer.reap(&w.supplier), 0, "what has just served is not idle");
    let reap = |w: &World| {
        w.layer.reap(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    let live = together(&world, (script, alloc_then_free), &[on(0, reap)]);
    // Whatever the reap before saw: between these two the CPU serves nothing.
    (0..2).for_each(|_| _ = world.layer.reap(&world.supplier));
    world.cpus_hold_nothing("a reap");
    world.census(&live);
}
#[test]
fn h1_reap_of_a_cpu_that_wakes_up() {
    both("H1 T1: reap of a CPU that wakes up", THREE, [690, 1000], stays(), reap_waking);
}

/// H2: one drain of both CPUs, each with a thread at work.
fn drain_and_two(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.stack(0, 0, 1, &[1]);
    w.stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free), on(1, drain_both)]);
}
#[test]
fn h2_drain_against_two_cpus() {
    both("H2 T1: drain of two CPUs that are used", TWO, [5500, 10000], stays(), drain_and_two);
}

/// H2, M3: two threads of one CPU, and a drain of it.
fn drain_and_two_of_one(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.stack(0, 0, 2, &[1, 2]);
    run(w, (script, alloc_then_free), &[on(0, alloc_then_free), on(1, drain_cpu_0)]);
}
#[test]
fn h2_drain_against_two_threads_of_one_cpu() {
    both("H2 M3 T1: drain of a CPU with two threads", TWO, [4300, 10000], stays(), drain_and_two_of_one);
}

/// H3: two drains of both CPUs at once, against an alloc and a free.
fn two_drains(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 2);
    w.stack(0, 0, 1, &[1]);
    w.stack(1, 0, 1, &[2]);
    run(w, (script, alloc_then_free), &[on(0, drain_both), on(1, drain_both)]);
}
#[test]
fn h3_two_drains_at_once() {
    both("H3 T1: two drains at once", TWO, [3600, 5200], stays(), two_drains);
}

/// H3: a drain meets another one of the same class, which still gives rounds away, beside a free that would use the stack.
fn drain_meets_drain(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.stack(0, 0, 1, &[1]);
    w.out(2);
    let frees = |w: &World| {
        w.free(2);
        vec![]
    };
    run(w, (script, frees), &[on(0, drain_cpu_0), on(0, drain_cpu_0)]);
}
#[test]
fn h3_a_drain_meets_another_one() {
    both(
        "H3 T1: a drain meets one that gives rounds away",
        THREE,
        [15000, 34000],
        stays(),
        drain_meets_drain,
    );
}

/// H4: a thread that is moved to a CPU beyond the table (plugged in since), another one that is there from the start.
fn beyond_the_table(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 3);
    w.supplier.second_node = 2;
    w.stack(0, 0, 1, &[1]);
    w.in_depot(1, &[2]);
    w.in_depot(1, &[3]);
    run(w, (script, alloc_then_free), &[on(2, alloc_then_free)]);
}
#[test]
fn h4_a_cpu_beyond_the_table() {
    let scripts = Scripts { reads: 4, cpus: 3 };
    both("H4: a CPU beyond the table", THREE, [220, 460], scripts, beyond_the_table);
}

/// H4: a thread without a region goes past the stacks, beside one that has one and a drain.
fn drain_and_no_region(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.stack(0, 0, 1, &[1]);
    w.in_depot(0, &[3, 4]);
    w.out(2);
    let past = |w: &World| {
        w.free(2);
        keep_one(w)
    };
    run(w, (script, alloc_then_free), &[on(2, past), on(1, drain_cpu_0)]);
}
#[test]
fn h4_a_thread_without_a_region_beside_a_drain() {
    both("H4: a thread without a region beside a drain", THREE, [9800, 28000], stays(), drain_and_no_region);
}

/// H5: a layer is closed and purged beside a free that has a place on its stack, and one whose stack is full. Once all of
/// them return the supplier has everything, although nobody purges again.
fn close_and_purge(Case { by, script }: Case) {
    let w = World::new(by, 2, 1, 0, false, 4);
    w.stack(0, 0, 2, &[]);
    w.stack(1, 0, 2, &[1, 2]);
    w.out(3);
    w.out(4);
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
        w.layer.purge(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    together(&world, (script, closes), &[on(0, frees), on(1, overflows)]);
    assert!(world.are_with_supplier(&[1, 2, 3, 4]), "a layer that is closed keeps nothing");
    world.census(&[]);
}
/// H5: a layer is closed and purged while another CPU frees for the first time: nobody has asked that CPU for anything.
fn closed_beside_a_first_free(Case { by, script }: Case) {
    let w = World::new(by, 2, 2, 0, false, 4);
    w.stack(0, 0, 2, &[1, 2]);
    w.out(3);
    w.out(4);
    let frees = |w: &World| {
        w.free(3);
        w.free(4);
        vec![]
    };
    let closes = |w: &World| {
        w.layer.close();
        w.layer.purge(&w.supplier);
        vec![]
    };
    let world = Arc::new(w);
    together(&world, (script, closes), &[on(1, frees)]);
    assert!(world.are_with_supplier(&[1, 2, 3, 4]), "a layer that is closed keeps nothing");
    world.census(&[]);
}
#[test]
fn h5_a_layer_is_closed_beside_a_first_free() {
    both("H5: closed beside a first free", THREE, [310, 910], stays(), closed_beside_a_first_free);
}

#[test]
fn h5_a_layer_is_closed_beside_frees() {
    both("H5: a layer is closed and purged beside frees", TWO, [1600, 20000], stays(), close_and_purge);
}

// ---------------------------------------------------------------- T: the table

/// T1: a drain of one class leaves the others of its CPU where they are.
fn two_classes(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 1).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 1);
    w.stack(0, 0, 1, &[1]);
    let other = World::on(&table, Config::new(1, 0, 4), false, 2);
    other.stack(0, 0, 2, &[1, 2]);
    w.other = Some(Box::new(other));
    let uses = |w: &World| {
        w.other.as_deref().map(alloc_then_free);
        alloc_then_free(w)
    };
    run(w, (script, uses), &[on(1, drain_cpu_0)]);
}
#[test]
fn t1_a_drain_leaves_other_classes_alone() {
    both("T1: a drain leaves other classes alone", THREE, [5400, 50000], moves(5), two_classes);
}

/// T1: one sweep of two layers, which collect their own, beside a thread that uses both.
fn sweep_of_two(Case { by, script }: Case) {
    let table = table(Cpus::simulated(1, 1).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 1);
    w.stack(0, 0, 1, &[1]);
    let other = World::on(&table, Config::new(1, 0, 4), false, 1);
    other.stack(0, 0, 2, &[1]);
    w.other = Some(Box::new(other));
    let uses = |w: &World| {
        w.other.as_deref().map(alloc_then_free);
        alloc_then_free(w)
    };
    run(w, (script, uses), &[on(0, sweep)]);
}
/// All stacks of a world and its other one.
fn sweep(w: &World) -> Vec<Option<usize>> {
    let both = || [Some(w), w.other.as_deref()].into_iter().flatten();
    both().for_each(|world| world.layer.ask());
    w.layer.table.sweep(0..w.layer.cpus().count(), Which::All);
    both().for_each(|world| _ = world.layer.drain_swept(&Operation::new(), &world.supplier));
    vec![]
}
#[test]
fn t1_a_sweep_of_two_layers() {
    both("T1: a sweep of two layers that are used", TWO, [520, 1200], stays(), sweep_of_two);
}

/// T1: a sweep of two layers beside a drain of one of them, and a free that would use the stack.
fn sweep_meets_drain(Case { by, script }: Case) {
    let table = table(Cpus::simulated(1, 1).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 2);
    w.stack(0, 0, 1, &[1]);
    w.out(2);
    let other = World::on(&table, Config::new(1, 0, 4), false, 1);
    other.stack(0, 0, 2, &[1]);
    w.other = Some(Box::new(other));
    let frees = |w: &World| {
        w.free(2);
        vec![]
    };
    run(w, (script, frees), &[on(0, sweep), on(0, drain_cpu_0)]);
}
#[test]
fn t1_a_sweep_meets_a_drain() {
    both("T1: a sweep meets a drain of one layer", TWO, [1300, 2600], stays(), sweep_meets_drain);
}

/// H3: what a drain gave away lay where two threads of the CPU push next: one opens the stack, the other may be the first to write.
fn opened_for_another(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 3);
    w.stack(0, 0, 2, &[1]);
    w.out(2);
    w.out(3);
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
#[test]
fn h3_a_stack_is_opened_for_another_thread() {
    both("H3: a stack is opened for another thread", TWO, [2400, 10000], stays(), opened_for_another);
}

/// T1: a region that is committed up to a stack's first place; a drain comes to it as it is widened.
fn committed_in_part(Case { by, script }: Case) {
    let w = World::new(by, 1, 2, 0, false, 2);
    w.stack(0, 0, 1, &[]);
    w.layer.table.region(0).unwrap().set_committed(w.class(0).end(1));
    (1..=2).for_each(|round| w.out(round));
    let frees = |w: &World| {
        (1..=2).for_each(|round| w.free(round));
        vec![]
    };
    run(w, (script, frees), &[on(0, drain_cpu_0)]);
}
#[test]
fn t1_a_region_committed_in_part() {
    both("T1: a region committed in part", THREE, [1900, 3100], stays(), committed_in_part);
}

/// T3: the pages of a stack that was drained go back, beside a free and an allocation that use it again.
fn pages_go_back(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 2);
    w.stack(0, 0, 2, &[1]);
    w.drain(0..1);
    w.out(2);
    let uses = |w: &World| {
        w.free(2);
        keep_one(w)
    };
    let release = |w: &World| {
        w.layer.table.release_idle();
        vec![]
    };
    run(w, (script, uses), &[on(0, release)]);
}
#[test]
fn t3_pages_go_back_while_their_stacks_are_closed() {
    both("T3: pages go back", TWO, [650, 4600], moves(4), pages_go_back);
}

/// T3: the same beside a drain, which gives away what lies on that page.
fn pages_beside_a_drain(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.stack(0, 0, 2, &[1]);
    let release = |w: &World| {
        w.layer.table.release_idle();
        vec![]
    };
    run(w, (script, drain_cpu_0), &[on(0, release)]);
}
#[test]
fn t3_pages_stay_while_their_rounds_are_given_away() {
    both("T3: pages stay beside a drain", THREE, [9, 9], stays(), pages_beside_a_drain);
}

/// T3: what the stacks on a page have served stays counted when it goes back, whoever looks meanwhile.
fn counts_beside_pages(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, false, 1);
    w.stack(0, 0, 2, &[1]);
    alloc_then_free(&w);
    w.drain(0..1);
    let looks = |w: &World| {
        let stats = w.layer.stats();
        assert_eq!(stats.allocs + stats.frees, 2, "no operation is forgotten or counted twice");
        vec![]
    };
    let release = |w: &World| {
        w.layer.table.release_idle();
        vec![]
    };
    run(w, (script, looks), &[on(0, release)]);
}
#[test]
fn t3_operations_stay_counted_when_their_page_goes_back() {
    both("T3: counts beside pages", THREE, [800, 800], stays(), counts_beside_pages);
}

/// T2: who lets go last of a layer gives its number back, with rounds on its stacks; the next layer may get it.
fn number_is_reused(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 1).unwrap().by(by), 2);
    let config = Config::new(1, 0, 4);
    let old = Arc::new(World::on(&table, config, false, 2));
    old.stack(0, 0, 2, &[1]);
    old.stack(1, 0, 2, &[2]);
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
    new.own(1, true);
    new.own(2, true);
    let here = new.alloc();
    on_cpu(1);
    let there = new.alloc();
    t.join().unwrap();
    on_cpu(0);
    if new.class(0).index != class.index {
        assert_eq!(table.limit(class).load(Relaxed), 0, "a number that nobody has is closed");
    }
    let mut all = vec![1, 2];
    all.extend([here, there].into_iter().flatten());
    new.census(&all);
}
#[test]
fn t2_a_number_is_reused() {
    both("T2: a number is given back and reused", THREE, [3400, 11000], moves(4), number_is_reused);
}

// ---------------------------------------------------------------- N: nodes

/// N1: a CPU frees rounds of the other one's node. They go home in magazines.
fn frees_of_another_node(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(1, 0, 4), false, 3);
    w.supplier.second_node = 1;
    (0..2).for_each(|node| w.stack(0, node, 1, &[]));
    (1..=3).for_each(|b| w.out(b));
    let frees = |w: &World| {
        (1..=3).for_each(|b| w.free(b));
        vec![]
    };
    run(w, (script, frees), &[on(1, |w| vec![w.alloc(), w.alloc()])]);
}
#[test]
fn n1_rounds_of_another_node_go_home() {
    both("N1: rounds of another node go home", THREE, [7500, 8200], moves(8), frees_of_another_node);
}

/// N1: a thread is moved to another node at each of its steps.
fn between_nodes(Case { by, script }: Case) {
    let table = table(Cpus::simulated(2, 2).unwrap().by(by), 2);
    let mut w = World::on(&table, Config::new(2, 0, 4), true, 4);
    w.supplier.second_node = 3;
    w.with_supplier(&[1, 2, 3, 4]);
    run(w, (script, alloc_then_free), &[on(1, alloc_then_free)]);
}
#[test]
fn n1_a_thread_moved_between_nodes() {
    both("N1: a thread moved between nodes", THREE, [6100, 5300], moves(8), between_nodes);
}

// ---------------------------------------------------------------- F: fork

/// F1: all locks are held for a fork, beside an exchange and a drain; then a child finds a claim that nobody gives up, and
/// a drain that nobody ends.
fn fork_beside_exchange(Case { by, script }: Case) {
    let w = World::new(by, 1, 1, 0, true, 3);
    w.stack(0, 0, 1, &[]);
    w.in_depot(0, &[1]);
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
    child(&world);
    world.census(&[]);
}
#[test]
fn f1_a_fork_beside_an_exchange() {
    both("F1: a fork beside an exchange and a drain", THREE, [8, 18], stays(), fork_beside_exchange);
}

// ---------------------------------------------------------------- D: the depot alone

/// D1: one takes while the other takes twice and puts the first back.
fn depot_aba(_: ()) {
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
#[test]
fn d1_a_magazine_is_in_one_place() {
    models("D1: take, take, put against take", Bound::None, 680, [()], depot_aba);
}

/// D2: what was written before the put is seen after the take.
fn depot_publish(_: ()) {
    let d = DepotWorld::new(1);
    let e = d.clone();
    let t = thread::spawn(move || e.put(0));
    // loom reports a race on the round if the write does not happen before this.
    d.take().into_iter().for_each(|round| d.put(round));
    t.join().unwrap();
    d.census(&[]);
}
#[test]
fn d2_what_was_written_before_the_put_is_seen() {
    models("D2: put publishes the rounds", Bound::None, 18, [()], depot_publish);
}

/// D3: put, put, take lose nothing; a take that came after a put finds something.
fn depot_three(_: ()) {
    let d = DepotWorld::new(2);
    let threads: Vec<_> = (0..2)
        .map(|round| {
            let d = d.clone();
            thread::spawn(move || d.put(round))
        })
        .collect();
    let early = d.take();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let late = d.take();
    assert!(late.is_some(), "two were put, at most one was taken");
    d.census(&[early, late]);
}
#[test]
fn d3_two_puts_and_a_take() {
    models("D3: put, put, take", Bound::None, 15000, [()], depot_three);
}

/// D4: the end of an interval, the second in a row, while somebody needs one of the two magazines.
fn depot_reap(_: ()) {
    let d = DepotWorld::new(2);
    (0..2).for_each(|round| d.put(round));
    assert_eq!(d.depot.surplus(&Operation::new()), 0, "they have just come");
    let e = d.clone();
    let t = thread::spawn(move || e.take().into_iter().for_each(|round| e.put(round)));
    let surplus = d.depot.surplus(&Operation::new());
    assert!((1..=2).contains(&surplus), "{surplus} are surplus, one may be needed");
    let taken: Vec<_> = (0..surplus).map(|_| d.take()).collect();
    t.join().unwrap();
    d.census(&taken);
}
#[test]
fn d4_a_reap_takes_only_what_nobody_needed() {
    models("D4: reap against take and put", Bound::None, 11000, [()], depot_reap);
}

// ---------------------------------------------------------------- planted bugs: each must be caught

/// Planted under each mechanism in turn.
fn caught_by_both(bug: &'static str, property: &str, expected: &str, scripts: Scripts, f: fn(Case)) {
    caught(bug, property, TWO, expected, claimed(scripts), f);
    caught(bug, property, TWO, expected, rseq(scripts), f);
}
fn caught_by_claimed(bug: &'static str, property: &str, expected: &str, scripts: Scripts, f: fn(Case)) {
    caught(bug, property, TWO, expected, claimed(scripts), f);
}
fn caught_by_rseq(bug: &'static str, property: &str, expected: &str, scripts: Scripts, f: fn(Case)) {
    caught(bug, property, TWO, expected, rseq(scripts), f);
}
fn caught_alone(bug: &'static str, property: &str, expected: &str, f: fn(())) {
    caught(bug, property, Bound::None, expected, [()], f);
}
const RACE: &str = "Causality violation";
const TWICE: &str = "round handed out or freed twice";
const LOST: &str = "every round in one place";

// Sections.
#[test]
fn planted_section_not_armed() {
    caught_by_rseq("section not armed", "M3", RACE, stays(), same_cpu);
    caught_by_rseq("section not armed", "R1", RACE, moves(6), contract);
    caught_by_rseq("section not armed", "T1", RACE, moves(6), drain_fast);
}
#[test]
fn planted_number_read_before_the_section() {
    let bug = "a CPU's number read before the section";
    caught_by_rseq(bug, "H1 T1", RACE, moves(6), drain_fast);
    caught_by_rseq(bug, "M2", RACE, moves(6), overflow);
}
#[test]
fn planted_region_read_before_the_section() {
    caught_by_rseq("a region read before the section", "H1 T1", RACE, moves(6), drain_fast);
}
#[test]
fn planted_length_read_before_the_section() {
    caught_by_rseq("a length read before the section", "M2", LOST, moves(6), overflow);
}
#[test]
fn planted_operations_counted_before_the_commit() {
    let (bug, expected) = ("operations counted before the commit", "the counts are exact");
    caught_by_rseq(bug, "R3", expected, moves(6), contract);
}
#[test]
fn planted_batch_committed_before_its_rounds() {
    let bug = "a batch is committed before its rounds are written";
    caught_by_rseq(bug, "R1", LOST, Scripts { reads: 4, cpus: 1 }, same_cpu);
}
#[test]
fn planted_pop_leaves_its_round() {
    caught_by_both("a pop leaves its round on the stack", "M1", TWICE, moves(6), travel);
}
#[test]
fn planted_region_used_without_its_claim() {
    let bug = "a region is used without its claim";
    caught_by_claimed(bug, "M3", RACE, stays(), same_cpu);
    caught_by_claimed(bug, "R1", RACE, moves(6), contract);
    caught_by_claimed(bug, "M1", RACE, moves(6), travel);
    caught_by_claimed(bug, "T1", RACE, moves(6), drain_fast);
}

// What travels.
#[test]
fn planted_magazine_left_in_the_depot() {
    let bug = "a magazine is taken from the depot and left there";
    caught_by_both(bug, "M1 M2", LOST, moves(6), travel);
}
#[test]
fn planted_magazine_that_left_a_stack_is_forgotten() {
    caught_by_both("a magazine that left a stack is forgotten", "M2", LOST, moves(6), overflow);
}
#[test]
fn planted_magazine_in_the_depot_and_with_the_supplier() {
    let bug = "a magazine in the depot and with the supplier";
    caught_by_both(bug, "M2", LOST, moves(6), overflow);
}
#[test]
fn planted_batch_taken_for_pushed() {
    caught_by_both("a batch is taken for pushed", "M2", LOST, moves(6), drain_batches);
}
#[test]
fn planted_flush_that_does_not_flush() {
    caught_by_both("a flush that does not flush", "M2", LOST, moves(6), drain_batches);
}
#[test]
fn planted_supplier_fills_under_a_lock() {
    let (bug, expected) =
        ("the supplier fills under the lock of drains", "user code would run while a lock is held");
    caught_by_both(bug, "M4", expected, stays(), depot_runs_dry);
}

// What a stack may hold.
#[test]
fn planted_stack_widened_beyond_its_limit() {
    let (bug, expected) = ("a stack is widened beyond its limit", "no more places than its reach");
    caught_by_both(bug, "M2", expected, moves(6), travel);
    caught_by_both(bug, "H3 T1", RACE, stays(), drain_meets_drain);
}
#[test]
fn planted_stack_widened_outside_of_its_section() {
    let bug = "a stack is widened outside of its section";
    caught_by_both(bug, "M3", RACE, stays(), same_cpu);
    caught_by_both(bug, "H1 T1", RACE, moves(6), drain_growing);
}
#[test]
fn planted_region_widened_before_it_is_committed() {
    let (bug, expected) = ("a region is widened before it is committed", "that is not committed was written");
    caught_by_both(bug, "T1", expected, stays(), committed_in_part);
}
#[test]
fn planted_empty_region_has_places() {
    let (bug, expected) = ("the empty region has places", "that is not committed was written");
    caught_by_rseq(bug, "H1 T1", expected, moves(6), drain_fast);
}

// Drains.
#[test]
fn planted_drain_without_its_fence() {
    caught_by_both("drain without its fence", "H1 T1", RACE, moves(6), drain_fast);
    caught_by_both("drain without its fence", "H1 T1", RACE, stays(), reap_waking);
    caught_by_rseq("a drain takes before its fence", "H1 T1", RACE, moves(6), drain_fast);
    caught_by_rseq("a drain of several CPUs fences one", "H2 T1", RACE, stays(), drain_and_two);
    let bug = "a drain looks at the claim and does not take it";
    caught_by_claimed(bug, "H1 T1", RACE, moves(6), drain_fast);
}
#[test]
fn planted_word_put_back_too_early() {
    let bug = "a table word is put back before the region is done with";
    caught_by_rseq(bug, "H1 T1", RACE, moves(6), drain_fast);
}
#[test]
fn planted_drained_stack_is_used_again_too_early() {
    caught_by_both("a drained stack stays open", "H1 T1", RACE, stays(), drain_leaves_nothing);
    caught_by_both("a drained stack is opened at once", "H1 T1", RACE, moves(6), drain_growing);
    caught_by_both("the first of two drains opens the stack", "H3 T1", RACE, stays(), drain_meets_drain);
}
#[test]
fn planted_drain_gives_away_what_another_one_took() {
    let bug = "a drain gives away what another one took";
    caught_by_both(bug, "H3", LOST, stays(), drain_meets_drain);
}
#[test]
fn planted_sweep_is_lost_to_the_next_drain() {
    let bug = "what a sweep took is lost to the next drain";
    caught_by_both(bug, "T1", "what a drain took is given away", stays(), sweep_meets_drain);
    caught_by_both("drain without its fence", "T1", RACE, stays(), sweep_of_two);
}
#[test]
fn planted_page_goes_back_while_its_classes_are_open() {
    let bug = "a page goes back while its stacks are open";
    caught_by_both(bug, "T3", RACE, stays(), pages_go_back);
    caught_by_both("drain without its fence", "T3", RACE, stays(), pages_go_back);
}
#[test]
fn planted_page_goes_back_while_its_rounds_are_given_away() {
    let bug = "a page goes back while its rounds are given away";
    caught_by_both(bug, "T3", RACE, stays(), pages_beside_a_drain);
}
#[test]
fn planted_page_goes_back_with_what_its_stacks_have_served() {
    let bug = "a page goes back with what its stacks have served";
    caught_by_both(bug, "T3", "the counts are exact", stays(), counts_beside_pages);
}
#[test]
fn planted_drains_without_their_lock() {
    caught_by_both("drains without their lock", "H3", RACE, stays(), two_drains);
}
#[test]
fn planted_drain_and_reap_do_nothing() {
    let expected = "a drain leaves nothing behind";
    caught_by_both("drain does nothing", "H1", expected, stays(), drain_leaves_nothing);
    caught_by_both("reap does nothing", "H1", "a reap leaves nothing behind", stays(), reap_waking);
    let expected = "what has just come is not idle";
    caught_by_both("a reap takes what is in use", "H1", expected, stays(), reap_waking);
}
#[test]
fn planted_closed_layer_keeps_something() {
    let expected = "a layer that is closed keeps nothing";
    let bug = "a closed class leaves empty stacks open";
    caught_by_both(bug, "H5", expected, stays(), close_and_purge);
    let bug = "a depot that is closed takes magazines";
    caught_by_both(bug, "H5", expected, stays(), close_and_purge);
    let bug = "a stack is opened beside a drain";
    caught_by_both(bug, "H5", expected, stays(), closed_beside_a_first_free);
}
#[test]
fn planted_cpu_beyond_the_table() {
    let scripts = Scripts { reads: 4, cpus: 3 };
    let expected = "index out of bounds: the len is 2 but the index is 2";
    caught_by_both("a CPU beyond the table has a node", "H4", expected, scripts, beyond_the_table);
    let expected = "the empty region stays empty";
    caught_by_both("a CPU beyond the table has a region", "H4", expected, scripts, beyond_the_table);
}

// Numbers, nodes, fork.
#[test]
fn planted_number_given_back() {
    let bug = "a number is given back when one CPU is drained";
    caught_by_both(bug, "T2", TWICE, moves(4), number_is_reused);
    let bug = "a number that is given back stays open";
    caught_by_both(bug, "T2", "a number that nobody has is closed", moves(4), number_is_reused);
}
#[test]
fn planted_round_goes_to_the_node_of_its_cpu() {
    let (bug, expected) = ("a round goes to the node of the CPU that frees it", "rounds of that node only");
    caught_by_both(bug, "N1", expected, stays(), frees_of_another_node);
}
#[test]
fn planted_claims_and_drains_outlive_their_threads() {
    let expected = "a claim or a drain of a thread that is no more";
    caught_by_claimed("claims outlive their threads", "F1", expected, stays(), fork_beside_exchange);
    caught_by_both("drains outlive their threads", "F1", expected, stays(), fork_beside_exchange);
    let bug = "a child loses what drains had taken";
    caught_by_both(bug, "F1", LOST, stays(), fork_beside_exchange);
}

// The depot.
#[test]
fn planted_in_a_depot() {
    let bug = "depot length from before the lock";
    caught_alone(bug, "D3", "two were put, at most one was taken", depot_three);
    caught_alone(bug, "D1", "a magazine lost", depot_aba);
    caught_alone("a magazine is taken from the depot and left there", "D1", RACE, depot_aba);
    caught_alone("a round is written after its magazine was put", "D2", RACE, depot_publish);
    caught_alone("reap ignores the working set", "D4", "they have just come", depot_reap);
}

// ---------------------------------------------------------------- the story of a failure

/// Fails: for [`a_failure_tells_its_story_and_can_be_repeated_alone`].
#[test]
#[ignore = "fails on purpose"]
fn fails_on_purpose() {
    plant("a drain gives away what another one took");
    models("a failure", TWO, 1, rseq(stays()), drain_meets_drain);
}

/// Once it was not: libtest shows nothing of a test that passes.
#[test]
fn the_story_of_a_planted_bug_is_told_though_its_test_passes() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    ["BOUND", "OM", "OM_LIST", "MODEL_ROWS", "STORY_JSON"]
        .iter()
        .for_each(|name| _ = command.env_remove(name));
    let test = "models::planted_drain_gives_away_what_another_one_took";
    let output = command.args(["--exact", test]).env("STORY", "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("STORY a drain gives away what another one took | script "), "{said}");
    assert!(said.contains("every round in one place"), "{said}");
}

#[test]
fn a_failure_tells_its_story_and_can_be_repeated_alone() {
    use std::process::Command;
    let said = |command: &mut Command| {
        // What it tells depends on nothing that a runner may have set for the models.
        ["BOUND", "OM", "OM_LIST", "MODEL_ROWS"].iter().for_each(|name| _ = command.env_remove(name));
        let output = command.envs([("RUST_BACKTRACE", "0"), ("STORY", "1")]).output().unwrap();
        assert!(!output.status.success(), "it fails");
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let of = |said: &str| {
        let (_, story) = said.split_once("STORY ").unwrap_or_else(|| panic!("no story: {said}"));
        let (title, rest) = story.split_once('\n').unwrap();
        let (steps, rest) = rest.split_once("       fails: ").unwrap();
        (title.to_owned(), steps.to_owned(), rest.lines().next().unwrap().to_owned())
    };
    let program = std::env::current_exe().unwrap();
    let test = "models::fails_on_purpose";
    let first = said(Command::new(&program).args(["--exact", test, "--include-ignored", "--nocapture"]));
    let (title, steps, message) = of(&first);
    assert!(title.starts_with("a failure | script 0"), "{title}");
    for part in [
        "thread 0  CPU 0  has no place",
        "takes the region of CPU 0 away",
        "CPU 0 region: away -> there",
        "CPU 0 stack 1: 2 -> 0, 2 taken",
    ] {
        assert!(steps.contains(part), "{part}: {steps}");
    }
    let command = first.lines().find(|line| line.starts_with("REPLAY=")).unwrap();
    let json = program.with_extension("story.json");
    let again = said(Command::new("sh").args(["-c", command]).env("STORY_JSON", &json));
    // Another file than a failing model's is refused.
    let missing = command.replace(".replay'", ".missing'");
    assert!(said(Command::new("sh").args(["-c", &missing])).contains("no such file"));
    // The rounds are where they were, and so is all else.
    let (again_title, again_steps, again_message) = of(&again);
    assert!(again_title.ends_with("| execution 1"), "no other ran before: {again_title}");
    assert_eq!((again_steps, again_message), (steps.clone(), message));
    let story: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(story["steps"].as_array().unwrap().len(), steps.lines().count());
}

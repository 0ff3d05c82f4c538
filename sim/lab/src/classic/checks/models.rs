//! Models of the layer: the same source under loom.
//!
//! A model's name begins with the properties that it is of (`tests/claims.toml` has them in words): C1 rounds, C2 exchanges, C3
//! drains, C4 the working set, C5 resizing, C6 locks, C7 counts. Each ends in the census of its world, and each planted bug at
//! the end must be caught by the model named with it. Begin with [`two_threads_of_one_cpu`]; the tutorial (`README.md` of this
//! crate) walks through it.

use super::world::{SharedSupplier, World, alloc_then_free, run};
use uslab_magazine::Script;
use uslab_magazine::sync::check::{Bound, caught, model, models};
use uslab_magazine::sync::{Arc, Counter, Mutex, thread};

/// Two threads: every interleaving. The section of a lock is one step, so there are few.
const ALL: Bound = Bound::None;
/// Three threads.
const THREE: Bound = Bound::Preemptions(3);

type Kept = Vec<Option<usize>>;

fn keep_one(world: &World) -> Kept {
    vec![world.alloc()]
}
fn drain(world: &World) -> Kept {
    world.cache.drain();
    vec![]
}
/// The first thread stays on CPU 0, or is moved to CPU 1 before one of its first `operations`.
fn moves(operations: u32) -> impl Iterator<Item = Script> + Clone {
    Script::all(0, 2, operations)
}
fn stays() -> impl Iterator<Item = Script> + Clone {
    Script::all(0, 1, 0)
}

/// The models are small. This one shows that they have not collapsed: loom runs the sections of a lock in every order.
#[test]
fn sections_run_in_every_order() {
    static ORDERS: Counter = Counter::new(0);
    ORDERS.set(0);
    let executions = model("C1: three sections of one lock", ALL, 200, || {
        let order = Arc::new(Mutex::new(0));
        let append = |order: &Mutex<u64>, digit| {
            let mut order = order.lock();
            *order = *order * 3 + digit;
        };
        let threads = [1, 2].map(|digit| {
            let order = order.clone();
            thread::spawn(move || append(&order, digit))
        });
        append(&order, 0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // A bit for each order that was met: 3 digits of base 3.
        ORDERS.set(ORDERS.get() | 1 << *order.lock());
    });
    // `BOUND` may have left some out.
    assert!(executions < 200 || ORDERS.get().count_ones() == 6, "three threads have six orders");
}

// ---------------------------------------------------------------- C1: rounds

/// Both find two balls in the loaded magazine of their CPU; each takes one and gives it back.
fn one_cpu(_: Script) {
    let world = World::new(1, 2, 2).cpu(0, &[1, 2], &[]).nothing_else();
    run(world, (Script::on(0), alloc_then_free), &[(Script::on(0), alloc_then_free)]);
}
#[test]
fn two_threads_of_one_cpu() {
    models("C1: two threads of one CPU", ALL, 11, stays(), one_cpu);
}

/// One allocates two balls and frees them, and is moved to the other CPU in between.
fn moved(script: Script) {
    let world = World::new(2, 1, 3).cpu(0, &[1], &[]).in_depot(&[2]).in_depot(&[]);
    let here = |world: &World| {
        let balls = [world.alloc(), world.alloc()];
        balls.into_iter().flatten().for_each(|ball| world.free(ball));
        vec![]
    };
    run(world, (script, here), &[(Script::on(1), alloc_then_free)]);
}
#[test]
fn a_thread_is_moved() {
    models("C1 C2: a thread is moved between its operations", ALL, 170, moves(4), moved);
}

/// Two threads on one CPU and one on the other, with two magazines for all.
fn three(_: Script) {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[]).in_depot(&[2]).out(&[3]);
    let frees = |world: &World| {
        world.free(3);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), alloc_then_free), (Script::on(1), keep_one)]);
}
#[test]
fn three_threads_of_two_cpus() {
    models("C1 C2: three threads of two CPUs", THREE, 50, stays(), three);
}

/// The slab layer is all there is: two threads that find no magazine.
fn from_the_slab_layer(_: Script) {
    let world = World::new(1, 1, 2);
    run(world, (Script::on(0), keep_one), &[(Script::on(0), keep_one)]);
}
#[test]
fn both_ask_the_slab_layer() {
    models("C1: both ask the slab layer", ALL, 14, stays(), from_the_slab_layer);
}

// ---------------------------------------------------------------- C2: exchanges

/// What one CPU frees, another one allocates: whole magazines travel through the depot.
fn travel(script: Script) {
    let world = World::new(2, 1, 3).out(&[1, 2, 3]).nothing_else();
    let producer = |world: &World| {
        (1..=3).for_each(|ball| world.free(ball));
        vec![]
    };
    run(world, (script, producer), &[(Script::on(1), |world| vec![world.alloc(), world.alloc()])]);
}
#[test]
fn rounds_travel_through_the_depot() {
    models("C1 C2: rounds travel through the depot", ALL, 1400, moves(3), travel);
}

/// A free finds both magazines full and the depot without an empty one. While it makes one, another thread of this CPU goes on.
fn makes_one(_: Script) {
    let world = World::new(1, 2, 5).cpu(0, &[1, 2], &[3, 4]).out(&[5]).nothing_else();
    let frees = |world: &World| {
        world.free(5);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), keep_one)]);
}
#[test]
fn a_free_makes_a_magazine() {
    models("C2: a free makes a magazine beside an allocation", ALL, 8, stays(), makes_one);
}

/// Two frees make a magazine each, and the other CPU may take what one of them made.
fn both_make(_: Script) {
    let world = World::new(2, 1, 6).cpu(0, &[1], &[2]).cpu(1, &[3], &[4]).out(&[5, 6]).nothing_else();
    let five = |world: &World| {
        world.free(5);
        vec![]
    };
    let six = |world: &World| {
        world.free(6);
        vec![]
    };
    run(world, (Script::on(0), five), &[(Script::on(1), six)]);
}
#[test]
fn two_frees_make_magazines() {
    models("C2: two frees make magazines", ALL, 32, stays(), both_make);
}

/// The slab layer refuses memory for a magazine, and has no round to hand out before one came back.
fn refused(_: Script) {
    let world = World::new(1, 1, 3).cpu(0, &[1], &[2]).out(&[3]).nothing_else().no_magazines();
    let frees = |world: &World| {
        world.free(3);
        vec![]
    };
    let takes = |world: &World| vec![world.alloc(), world.alloc(), world.alloc()];
    run(world, (Script::on(0), frees), &[(Script::on(0), takes)]);
}
#[test]
fn the_slab_layer_refuses() {
    models("C1 C7: the slab layer refuses", ALL, 13, stays(), refused);
}

// ---------------------------------------------------------------- C3: drains and the end

/// A drain of all CPUs beside allocations, frees and the exchanges that these need.
fn drained(script: Script) {
    let world = World::new(2, 1, 3).cpu(0, &[1], &[]).in_depot(&[2]).in_depot(&[]);
    let works = |world: &World| {
        let kept = world.alloc();
        alloc_then_free(world);
        vec![kept]
    };
    let world = run(world, (script, works), &[(Script::on(1), drain)]);
    drain(&world);
    world.cpus_have_nothing();
    assert!(world.cache.slab().count() >= 2, "a drain gives all to the slab layer");
}
#[test]
fn a_drain_beside_an_exchange() {
    models("C3: a drain beside an exchange", ALL, 500, moves(3), drained);
}

fn two_drains(_: Script) {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[2]).cpu(1, &[3], &[]).in_depot(&[4]);
    run(world, (Script::on(0), drain), &[(Script::on(1), drain), (Script::on(1), keep_one)]);
}
#[test]
fn two_drains_beside_an_allocation() {
    models("C3: two drains beside an allocation", THREE, 1200, stays(), two_drains);
}

/// The last owner ends the cache: all balls are with the slab layer then.
fn the_end(_: Script) {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[2]).in_depot(&[3]).out(&[4]);
    let supplier: SharedSupplier = world.cache.slab().clone();
    let world = Arc::new(world);
    let other = world.clone();
    let thread = thread::spawn(move || {
        Script::on(1).install();
        other.free(4);
        alloc_then_free(&other);
    });
    let kept = [world.alloc(), world.alloc(), world.alloc()];
    kept.into_iter().flatten().for_each(|ball| world.free(ball));
    drop(world);
    thread.join().unwrap();
    assert_eq!(supplier.count(), 4, "the end gives all to the slab layer");
}
#[test]
fn end_of_life() {
    models("C3: the last owner ends the cache", ALL, 40, stays(), the_end);
}

/// One allocates, another one of the same CPU frees, and a third one drains both CPUs.
fn drained_beside_two(_: Script) {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[2]).in_depot(&[3]).out(&[4]).nothing_else();
    let frees = |world: &World| {
        world.free(4);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), alloc_then_free), (Script::on(1), drain)]);
}
#[test]
fn a_drain_beside_an_allocation_and_a_free() {
    models("C1 C3: a drain beside an allocation and a free", THREE, 1000, stays(), drained_beside_two);
}

// ---------------------------------------------------------------- C4: the working set

/// Takes the full magazine that the depot has, and leaves another one, with ball 2.
fn exchanges(world: &World) -> Kept {
    let ball = world.alloc();
    world.free(2);
    world.free(3);
    ball.into_iter().for_each(|ball| world.free(ball));
    vec![]
}
/// A reap beside an exchange: what the exchange has just left stays, whatever lay there before.
fn reaped(_: Script) {
    let world = World::new(1, 1, 4).cpu(0, &[], &[]).in_depot(&[1]).long_ago().out(&[2, 3, 4]).nothing_else();
    let reap = |world: &World| {
        assert!(world.cache.reap() <= 1);
        vec![Some(4)]
    };
    let world = run(world, (Script::on(0), exchanges), &[(Script::on(0), reap)]);
    assert!(!world.cache.slab().has(2), "a reap takes only what nobody needed");
}
#[test]
fn a_reap_beside_an_exchange() {
    models("C4: a reap beside an exchange", ALL, 10, stays(), reaped);
}

/// An interval that ends is no reason to take what came in it.
fn reaped_later(_: Script) {
    let world = World::new(1, 1, 4).cpu(0, &[], &[]).in_depot(&[1]).out(&[2, 3, 4]).nothing_else();
    let reap = |world: &World| {
        world.cache.end_interval();
        assert_eq!(world.cache.reap(), 0, "a reap takes only what nobody needed");
        vec![Some(4)]
    };
    run(world, (Script::on(0), exchanges), &[(Script::on(0), reap)]);
}
#[test]
fn an_interval_ends_beside_an_exchange() {
    models("C4: an interval ends beside an exchange", ALL, 11, stays(), reaped_later);
}

// ---------------------------------------------------------------- C5: resizing

fn resize(world: &World) -> Kept {
    world.cache.end_interval();
    vec![]
}
/// Magazines become larger while one free takes an empty one of the old size, or makes one, and another one follows.
fn resized(script: Script) {
    let world = World::new(2, 1, 6).cpu(0, &[1], &[2]).cpu(1, &[3], &[4]).in_depot(&[]).in_depot(&[]);
    let frees = |world: &World| {
        world.free(5);
        world.free(6);
        vec![]
    };
    let world = world.contended(3).out(&[5, 6]).nothing_else();
    let world = run(world, (script, frees), &[(Script::on(1), resize)]);
    assert_eq!(world.cache.stats().size, 3);
}
#[test]
fn resizing_beside_frees() {
    models("C5: resizing beside frees", ALL, 20, moves(2), resized);
}

/// Magazines become larger while an allocation leaves an empty one of the old size.
fn resized_beside_an_allocation(script: Script) {
    let world = World::new(2, 1, 2).cpu(0, &[], &[]).cpu(1, &[2], &[]).in_depot(&[1]).in_depot(&[]);
    let works = |world: &World| {
        alloc_then_free(world);
        keep_one(world)
    };
    run(world.contended(3).nothing_else(), (script, works), &[(Script::on(1), resize)]);
}
#[test]
fn resizing_beside_an_allocation() {
    models("C5: resizing beside an allocation", ALL, 7, moves(2), resized_beside_an_allocation);
}

/// Whoever finds the depot's lock taken waits and counts it; that is what makes magazines grow.
#[test]
fn contention_is_seen() {
    static MET: Counter = Counter::new(0);
    MET.set(0);
    let visits = || {
        let world = World::new(1, 1, 1).cpu(0, &[], &[]).in_depot(&[1]);
        let holds = |world: &World| {
            // loom lets a thread wait that is about to try a lock when another one takes it. Here that one comes earlier, by
            // the CPU's lock, and gives way while it holds the depot's.
            drop(world.cache.per_cpu[0].0.lock());
            let held = world.cache.depot.0.lock();
            thread::yield_now();
            drop(held);
            vec![]
        };
        let world = run(world, (Script::on(0), keep_one), &[(Script::on(0), holds)]);
        MET.max(world.cache.stats().contended);
    };
    model("C5: the depot's lock is taken", ALL, 5, visits);
    assert_eq!(MET.get(), 1, "some execution finds the lock taken, once");
}

// ---------------------------------------------------------------- C6, C7: locks and counts

/// Statistics are read beside an exchange; counts never go back, and are exact at the end.
fn counted(_: Script) {
    let world = World::new(2, 1, 2).cpu(0, &[], &[]).in_depot(&[1]);
    let reads = |world: &World| {
        let first = world.cache.stats();
        let second = world.cache.stats();
        assert!(first.cpu_allocs <= second.cpu_allocs && first.exchanges <= second.exchanges);
        vec![]
    };
    run(world, (Script::on(0), keep_one), &[(Script::on(1), reads)]);
}
#[test]
fn statistics_beside_an_exchange() {
    models("C6 C7: statistics beside an exchange", ALL, 9, stays(), counted);
}

// ---------------------------------------------------------------- planted bugs

const LOST: &str = "each ball is in one place";

#[test]
fn planted_new_magazine_loaded_without_another_look() {
    let bug = "a new magazine is loaded without another look";
    caught(bug, "C2", ALL, "the previous magazine is full or empty", stays(), makes_one);
}
/// A magazine of one round is always full or empty: so the model must have larger ones.
#[test]
#[should_panic(expected = "survives")]
fn a_model_with_magazines_of_one_misses_it() {
    let bug = "a new magazine is loaded without another look";
    caught(bug, "C2", ALL, "", stays(), |_| {
        let world = World::new(1, 1, 3).cpu(0, &[1], &[2]).out(&[3]).nothing_else();
        let frees = |world: &World| {
            world.free(3);
            vec![]
        };
        run(world, (Script::on(0), frees), &[(Script::on(0), keep_one)]);
    });
}
#[test]
fn planted_exchange_forgets_the_previous_magazine() {
    caught("an exchange forgets the previous magazine", "C1", ALL, LOST, moves(3), travel);
    caught("an exchange forgets the previous magazine", "C2", ALL, LOST, stays(), both_make);
}
#[test]
fn planted_slab_layer_looks_and_then_takes() {
    let (bug, expected) = ("the slab layer looks and then takes", "Causality violation");
    caught(bug, "C1", ALL, expected, stays(), from_the_slab_layer);
}
#[test]
fn planted_refused_magazine_loses_the_round() {
    caught("a refused magazine loses the round", "C1", ALL, LOST, stays(), refused);
}
#[test]
fn planted_refused_allocation_is_counted() {
    caught("a refused allocation is counted", "C7", ALL, "the counts are exact", stays(), refused);
}
#[test]
fn planted_drain_forgets_the_previous_magazine() {
    let (bug, expected) = ("a drain forgets the previous magazine", "a drain leaves nothing behind");
    caught(bug, "C3", ALL, expected, moves(3), drained);
}
#[test]
fn planted_drain_forgets_the_depot() {
    let (bug, expected) = ("a drain forgets the depot", "the end gives all to the slab layer");
    caught(bug, "C3", ALL, expected, stays(), the_end);
}
#[test]
fn planted_reap_takes_the_working_set() {
    let (bug, expected) = ("a reap takes the working set", "a reap takes only what nobody needed");
    caught(bug, "C4", ALL, expected, stays(), reaped_later);
}
#[test]
fn planted_working_set_forgets_what_was_taken() {
    let (bug, expected) = ("the working set forgets what was taken", "a reap takes only what nobody needed");
    caught(bug, "C4", ALL, expected, stays(), reaped);
}
#[test]
fn planted_old_size_comes_back() {
    let (bug, expected) = ("an old size comes back", "the empty list has only the current size");
    caught(bug, "C5", ALL, expected, moves(2), resized_beside_an_allocation);
}
#[test]
fn planted_drain_frees_under_a_lock() {
    let expected = "user code would run while a lock is held";
    caught("a drain frees under a CPU's lock", "C6", ALL, expected, moves(3), drained);
}
#[test]
fn planted_statistics_lock_the_depot_first() {
    let expected = "lock order: Cpu is asked for while Depot is held";
    caught("statistics lock the depot first", "C6", ALL, expected, stays(), counted);
}

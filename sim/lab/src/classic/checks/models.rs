//! The scenarios that loom runs, with two or three threads each. Begin with [`one_cpu`], which the tutorial explains
//! (`README.md` of this crate).

use super::scenarios::ALL;
use super::world::{SharedSupplier, World, alloc_then_free, run};
use uslab_magazine::Script;
use uslab_magazine::sync::check::{assert_caught, model};
use uslab_magazine::sync::{Arc, Counter, Mutex, thread};

type KeptRounds = Vec<Option<usize>>;

fn keep_one(world: &World) -> KeptRounds {
    vec![world.alloc()]
}
fn drain(world: &World) -> KeptRounds {
    world.cache.drain();
    vec![]
}
/// Shows that loom runs the critical sections of a lock in every order. The loom test also counts executions, because
/// an error in a small model could leave only a few of them.
#[test]
fn loom_runs_critical_sections_in_every_order() {
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
        // `ORDERS` has one bit for each order that occurred; an order is a number of three ternary digits.
        ORDERS.set(ORDERS.get() | 1 << *order.lock());
    });
    // A lower `BOUND` may have excluded some orders.
    assert!(executions < 200 || ORDERS.get().count_ones() == 6, "three threads must have six orders");
}

// ---------------------------------------------------------------- C1: rounds

/// Both threads find two objects in the loaded magazine of their CPU; each allocates one and frees it.
pub(super) fn one_cpu() {
    let world = World::new(1, 2, 2).cpu(0, &[1, 2], &[]).without_slab_objects();
    run(world, (Script::on(0), alloc_then_free), &[(Script::on(0), alloc_then_free)]);
}

/// A thread allocates two objects, moves to the other CPU, and frees the objects on that CPU.
pub(super) fn moved(script: Script) {
    let world = World::new(2, 1, 3).cpu(0, &[1], &[]).in_depot(&[2]).in_depot(&[]);
    let producer_and_consumer = |world: &World| {
        let objects = [world.alloc(), world.alloc()];
        objects.into_iter().flatten().for_each(|object| world.free(object));
        vec![]
    };
    run(world, (script, producer_and_consumer), &[(Script::on(1), alloc_then_free)]);
}

/// Two threads on one CPU and a third thread on another CPU share two magazines.
pub(super) fn three() {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[]).in_depot(&[2]).out(&[3]);
    let frees = |world: &World| {
        world.free(3);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), alloc_then_free), (Script::on(1), keep_one)]);
}

/// Two threads find no magazines and use only the slab layer.
pub(super) fn alloc_without_magazines() {
    let world = World::new(1, 1, 2);
    run(world, (Script::on(0), keep_one), &[(Script::on(0), keep_one)]);
}

// ---------------------------------------------------------------- C2: exchanges

/// One CPU frees the objects that another CPU allocates, so whole magazines travel through the depot.
pub(super) fn travel(script: Script) {
    let world = World::new(2, 1, 3).out(&[1, 2, 3]).without_slab_objects();
    let producer = |world: &World| {
        (1..=3).for_each(|object| world.free(object));
        vec![]
    };
    run(world, (script, producer), &[(Script::on(1), |world| vec![world.alloc(), world.alloc()])]);
}

/// A free finds that both magazines are full and that the depot has no empty magazine. While the free makes an empty
/// magazine, another thread runs on the same CPU.
pub(super) fn free_makes_magazine() {
    let world = World::new(1, 2, 5).cpu(0, &[1, 2], &[3, 4]).out(&[5]).without_slab_objects();
    let frees = |world: &World| {
        world.free(5);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), keep_one)]);
}

/// Each of two frees makes a magazine, and the other CPU may take one of the two.
pub(super) fn two_frees_make_magazines() {
    let world = World::new(2, 1, 6).cpu(0, &[1], &[2]).cpu(1, &[3], &[4]).out(&[5, 6]).without_slab_objects();
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

/// The slab layer has no memory for magazines, and no free round until a thread frees one.
pub(super) fn refused() {
    let world =
        World::new(1, 1, 3).cpu(0, &[1], &[2]).out(&[3]).without_slab_objects().without_magazine_memory();
    let frees = |world: &World| {
        world.free(3);
        vec![]
    };
    let alloc_three = |world: &World| vec![world.alloc(), world.alloc(), world.alloc()];
    run(world, (Script::on(0), frees), &[(Script::on(0), alloc_three)]);
}

// ---------------------------------------------------------------- C3: drains and the end

/// A drain of all CPUs runs concurrently with allocations, frees and exchanges.
pub(super) fn drained(script: Script) {
    let world = World::new(2, 1, 3).cpu(0, &[1], &[]).in_depot(&[2]).in_depot(&[]);
    let works = |world: &World| {
        let kept = world.alloc();
        alloc_then_free(world);
        vec![kept]
    };
    let world = run(world, (script, works), &[(Script::on(1), drain)]);
    drain(&world);
    world.assert_cpus_are_empty();
    assert!(world.cache.slab().count() >= 2, "a drain must free all objects to the slab layer");
}

pub(super) fn two_drains() {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[2]).cpu(1, &[3], &[]).in_depot(&[4]);
    run(world, (Script::on(0), drain), &[(Script::on(1), drain), (Script::on(1), keep_one)]);
}

/// When the last owner drops the cache, all objects must return to the slab layer.
pub(super) fn last_drop_returns_objects() {
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
    kept.into_iter().flatten().for_each(|object| world.free(object));
    drop(world);
    thread.join().unwrap();
    assert_eq!(supplier.count(), 4, "the end of the cache frees all objects to the slab layer");
}

/// One thread allocates, another thread frees on the first thread's CPU, and a third thread drains both CPUs.
pub(super) fn drain_during_alloc_and_free() {
    let world = World::new(2, 1, 4).cpu(0, &[1], &[2]).in_depot(&[3]).out(&[4]).without_slab_objects();
    let frees = |world: &World| {
        world.free(4);
        vec![]
    };
    run(world, (Script::on(0), frees), &[(Script::on(0), alloc_then_free), (Script::on(1), drain)]);
}

// ---------------------------------------------------------------- C4: the working set

/// A thread takes the full magazine out of the depot and returns another magazine, which contains object 2.
fn exchanges(world: &World) -> KeptRounds {
    let object = world.alloc();
    world.free(2);
    world.free(3);
    object.into_iter().for_each(|object| world.free(object));
    vec![]
}
/// A reap runs concurrently with an exchange. A reap must not take the magazine that an exchange has just put into the
/// depot.
pub(super) fn reaped() {
    let world = World::new(1, 1, 4)
        .cpu(0, &[], &[])
        .in_depot(&[1])
        .with_old_depot()
        .out(&[2, 3, 4])
        .without_slab_objects();
    let reap = |world: &World| {
        assert!(world.cache.reap() <= 1);
        vec![Some(4)]
    };
    let world = run(world, (Script::on(0), exchanges), &[(Script::on(0), reap)]);
    assert!(!world.cache.slab().has_object(2), "a reap takes only unused magazines");
}

/// Even if an interval ends concurrently, a reap must not take magazines that arrived during the interval.
pub(super) fn reap_spares_new_magazines() {
    let world = World::new(1, 1, 4).cpu(0, &[], &[]).in_depot(&[1]).out(&[2, 3, 4]).without_slab_objects();
    let reap = |world: &World| {
        world.cache.end_interval();
        assert_eq!(world.cache.reap(), 0, "a reap takes only unused magazines");
        vec![Some(4)]
    };
    run(world, (Script::on(0), exchanges), &[(Script::on(0), reap)]);
}

// ---------------------------------------------------------------- C5: resizing

fn resize(world: &World) -> KeptRounds {
    world.cache.end_interval();
    vec![]
}
/// The magazine size grows while a free takes or makes an empty magazine of the old size. The thread of this free then
/// frees another object.
pub(super) fn resized(script: Script) {
    let world = World::new(2, 1, 6).cpu(0, &[1], &[2]).cpu(1, &[3], &[4]).in_depot(&[]).in_depot(&[]);
    let frees = |world: &World| {
        world.free(5);
        world.free(6);
        vec![]
    };
    let world = world.contended(3).out(&[5, 6]).without_slab_objects();
    let world = run(world, (script, frees), &[(Script::on(1), resize)]);
    assert_eq!(world.cache.stats().size, 3);
}

/// The magazine size grows while an allocation returns an empty magazine of the old size.
pub(super) fn resize_during_allocation(script: Script) {
    let world = World::new(2, 1, 2).cpu(0, &[], &[]).cpu(1, &[2], &[]).in_depot(&[1]).in_depot(&[]);
    let works = |world: &World| {
        alloc_then_free(world);
        keep_one(world)
    };
    run(world.contended(3).without_slab_objects(), (script, works), &[(Script::on(1), resize)]);
}

/// A thread that finds the depot locked waits and counts the wait, which makes magazines grow.
#[test]
fn loom_model_reaches_lock_contention() {
    static CONTENDED_LOCKS: Counter = Counter::new(0);
    CONTENDED_LOCKS.set(0);
    let visits = || {
        let world = World::new(1, 1, 1).cpu(0, &[], &[]).in_depot(&[1]);
        let holds = |world: &World| {
            // Loom blocks a thread that calls `try_lock` while another thread takes the lock. The second thread
            // therefore also takes the CPU's lock, and yields while it holds the depot's lock.
            drop(world.cache.per_cpu[0].0.lock());
            let held = world.cache.depot.0.lock();
            thread::yield_now();
            drop(held);
            vec![]
        };
        let world = run(world, (Script::on(0), keep_one), &[(Script::on(0), holds)]);
        CONTENDED_LOCKS.max(world.cache.stats().contended);
    };
    model("C5: the depot's lock is taken", ALL, 5, visits);
    assert_eq!(CONTENDED_LOCKS.get(), 1, "some execution must find the lock taken exactly once");
}

// ---------------------------------------------------------------- C6, C7: locks and counts

/// One thread reads statistics while another thread exchanges a magazine. The counts never decrease, and are exact at
/// the end.
pub(super) fn statistics_never_decrease() {
    let world = World::new(2, 1, 2).cpu(0, &[], &[]).in_depot(&[1]);
    let reads = |world: &World| {
        let first = world.cache.stats();
        let second = world.cache.stats();
        assert!(first.cpu_allocs <= second.cpu_allocs && first.exchanges <= second.exchanges);
        vec![]
    };
    run(world, (Script::on(0), keep_one), &[(Script::on(1), reads)]);
}

/// A magazine with room for one round is always full or empty, so a model with such magazines cannot find the planted
/// bug.
#[cfg_attr(not(uslab_planted), ignore = "needs planted bugs: cargo planted")]
#[test]
#[should_panic(expected = "survives")]
fn model_with_one_round_magazines_misses_the_bug() {
    let bug = "a new magazine is loaded without checking the CPU again";
    assert_caught(bug, "C2", ALL, "", [()], |()| {
        let world = World::new(1, 1, 3).cpu(0, &[1], &[2]).out(&[3]).without_slab_objects();
        let frees = |world: &World| {
            world.free(3);
            vec![]
        };
        run(world, (Script::on(0), frees), &[(Script::on(0), keep_one)]);
    });
}

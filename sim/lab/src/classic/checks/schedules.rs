//! The layer under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! Four threads on two CPUs, with magazines of two that may grow. Before each operation the schedule chooses which CPU the
//! thread is on. A scenario's name begins with the properties that it is of, as a model's does, and it ends in the same census.

use super::world::{Side, World, run};
use uslab_magazine::Script;
use uslab_magazine::sync::schedule::{caught, choose, schedules, wander};

const BALLS: usize = 12;
const STEPS: usize = 12;
/// Schedules of each kind,
const RUNS: usize = 5000;
/// and, for each seed, in which a planted bug must be found.
const SOON: usize = 2000;

/// Allocates and frees.
fn works(world: &World) -> Vec<Option<usize>> {
    let mut held = vec![];
    for _ in 0..STEPS {
        wander(2);
        match held.pop() {
            Some(Some(ball)) if choose(2) == 0 => world.free(ball),
            last => held.extend(last.into_iter().chain([world.alloc()])),
        }
    }
    held
}

/// All that an owner of the cache does besides.
fn tends(world: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 2 {
        match choose(4) {
            0 => world.cache.drain(),
            1 => _ = world.cache.reap(),
            2 => world.cache.end_interval(),
            _ => assert!(world.cache.stats().size <= 5, "magazines have a largest size"),
        }
    }
    vec![]
}

fn exchange() {
    run(World::new(2, 2, BALLS), (Script::on(0), works), &[(Script::on(1), works as Side); 3]);
}
fn tended() {
    let others: [Side; 3] = [works, works, tends];
    let world = World::new(2, 1, BALLS).contended(3);
    let world = run(world, (Script::on(0), works), &others.map(|side| (Script::on(1), side)));
    world.cache.drain();
    world.cpus_have_nothing();
}

#[test]
fn exchanges() {
    schedules("C1 C2 C6 C7: four threads exchange", RUNS, exchange);
}
#[test]
fn beside_drains_reaps_and_resizing() {
    schedules("C1 C2 C3 C4 C5 C6 C7: three exchange, one tends", RUNS, tended);
}
#[test]
fn planted() {
    let lost = "each ball is in one place";
    caught("an exchange forgets the previous magazine", "C2", SOON, lost, exchange);
    let bug = "a new magazine is loaded without another look";
    caught(bug, "C2", SOON, "the previous magazine is full or empty", exchange);
    caught("the slab layer looks and then takes", "C1", SOON, "a ball with two owners", exchange);
    let bug = "a drain forgets the previous magazine";
    caught(bug, "C3", SOON, "a drain leaves nothing behind", tended);
    let bug = "an old size comes back";
    caught(bug, "C5", SOON, "the empty list has only the current size", tended);
    let bug = "a drain frees under a CPU's lock";
    caught(bug, "C6", SOON, "user code would run while a lock is held", tended);
}

//! The scenarios that shuttle runs: four threads on two CPUs, with magazines of two rounds that may grow. Before each
//! operation, the schedule chooses the CPU on which the thread runs.

use super::world::{ThreadFn, World, run};
use uslab_magazine::Script;
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::threads::migrate_between_cpus;

const OBJECTS: usize = 12;
const STEPS: usize = 12;

/// Runs random allocations and frees.
fn alloc_and_free(world: &World) -> Vec<Option<usize>> {
    let mut objects = vec![];
    for _ in 0..STEPS {
        migrate_between_cpus(2);
        match objects.pop() {
            Some(Some(object)) if choose(2) == 0 => world.free(object),
            last => objects.extend(last.into_iter().chain([world.alloc()])),
        }
    }
    objects
}

/// Runs operations that only a cache's owner calls, such as drains and reaps.
fn run_maintenance(world: &World) -> Vec<Option<usize>> {
    for _ in 0..STEPS / 2 {
        match choose(4) {
            0 => world.cache.drain(),
            1 => _ = world.cache.reap(),
            2 => world.cache.end_interval(),
            _ => assert!(world.cache.stats().size <= 5, "magazines must not exceed their largest size"),
        }
    }
    vec![]
}

pub(super) fn exchange() {
    run(
        World::new(2, 2, OBJECTS),
        (Script::on(0), alloc_and_free),
        &[(Script::on(1), alloc_and_free as ThreadFn); 3],
    );
}
pub(super) fn owner_is_tested() {
    let other_threads: [ThreadFn; 3] = [alloc_and_free, alloc_and_free, run_maintenance];
    let world = World::new(2, 1, OBJECTS).contended(3);
    let world =
        run(world, (Script::on(0), alloc_and_free), &other_threads.map(|function| (Script::on(1), function)));
    world.cache.drain();
    world.assert_cpus_are_empty();
}

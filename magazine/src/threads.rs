//! The threads of a scenario, each on a simulated CPU. The models and schedules of all crates use this module.

use crate::cpu::{Script, on_cpu};
use crate::sync::{Arc, thread};

/// A thread's function. Returns the objects that the thread keeps.
pub type ThreadFn<W> = fn(&W) -> Vec<Option<usize>>;

/// Runs `here` in this thread and each other function in a new thread. Each thread follows its script.
/// Returns the objects that the threads keep.
pub fn run_together<W: Send + Sync + 'static>(
    world: &Arc<W>,
    here: (Script, ThreadFn<W>),
    others: &[(Script, ThreadFn<W>)],
) -> Vec<usize> {
    let spawn = |(script, side): &(Script, ThreadFn<W>)| {
        let (world, script, side) = (world.clone(), *script, *side);
        thread::spawn(move || {
            script.install();
            side(&world)
        })
    };
    let threads: Vec<_> = others.iter().map(spawn).collect();
    here.0.install();
    let mut kept = here.1(world);
    threads.into_iter().for_each(|thread| kept.extend(thread.join().unwrap()));
    on_cpu(0);
    kept.into_iter().flatten().collect()
}

/// Runs `side` in `threads` threads, including this thread. Each of the threads receives its number. The thread that
/// calls `run_crowd` has number 0.
pub fn run_crowd<W: Send + Sync + 'static>(world: &Arc<W>, threads: usize, side: fn(&W, usize)) {
    let spawn = |number| {
        let world = world.clone();
        thread::spawn(move || side(&world, number))
    };
    let threads: Vec<_> = (1..threads).map(spawn).collect();
    side(world, 0);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    on_cpu(0);
}

/// Puts the thread on one of `cpus` CPUs, or on a CPU without a region. The thread migrates soon, and its restartable
/// sequence is aborted at the migration.
#[cfg(shuttle)]
pub fn migrate_between_cpus(cpus: u32) {
    use crate::sync::schedule::choose;
    let random_cpu = || choose(2 * cpus as usize + 1) as u32 / 2;
    Script { cpu: random_cpu(), at: choose(5) as u32, then: random_cpu(), aborted: choose(2) == 1 }.install();
}

//! Functions that run the threads of a scenario, each on a simulated CPU. The loom and shuttle scenarios of all crates
//! use this module.

use crate::cpu::{Script, on_cpu};
use crate::sync::{Arc, thread};

/// A thread's function. The function returns the objects that the thread still owns at its end.
pub type ThreadFn<W> = fn(&W) -> Vec<Option<usize>>;

/// Runs `here` in this thread, and each of the other functions in a new thread. Each thread follows the script that is
/// paired with its function. Returns the objects that the threads still own at their ends.
pub fn run_concurrently<W: Send + Sync + 'static>(
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

/// Runs `side` in `threads` threads, one of which is the calling thread. Each thread receives its number as an
/// argument. The calling thread has number 0.
pub fn run_in_threads<W: Send + Sync + 'static>(world: &Arc<W>, threads: usize, side: fn(&W, usize)) {
    let spawn = |number| {
        let world = world.clone();
        thread::spawn(move || side(&world, number))
    };
    let threads: Vec<_> = (1..threads).map(spawn).collect();
    side(world, 0);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    on_cpu(0);
}

/// Moves the thread to a random CPU: one of `cpus` CPUs, or a CPU without a region. The thread will soon migrate again,
/// and the migration may abort a restartable sequence.
#[cfg(shuttle)]
pub fn migrate_between_cpus(cpus: u32) {
    use crate::sync::schedule::choose;
    let random_cpu = || choose(2 * cpus as usize + 1) as u32 / 2;
    Script { cpu: random_cpu(), at: choose(5) as u32, then: random_cpu(), aborted: choose(2) == 1 }.install();
}

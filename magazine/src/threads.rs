//! The threads of a scenario, each on its simulated CPU: what models and schedules of all floors share.

use crate::cpu::{Script, on_cpu};
use crate::sync::{Arc, thread};

/// What a thread does. Returns the rounds that it keeps.
pub type Side<W> = fn(&W) -> Vec<Option<usize>>;

/// Runs `here` in this thread and the others in threads of their own, each under its script. Returns the rounds that they keep.
pub fn together<W: Send + Sync + 'static>(
    world: &Arc<W>,
    here: (Script, Side<W>),
    others: &[(Script, Side<W>)],
) -> Vec<usize> {
    let spawn = |(script, side): &(Script, Side<W>)| {
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

/// Runs `side` in `threads` threads, this one included. Each is told its number, from 0, which is this one's.
pub fn crowd<W: Send + Sync + 'static>(world: &Arc<W>, threads: usize, side: fn(&W, usize)) {
    let spawn = |number| {
        let world = world.clone();
        thread::spawn(move || side(&world, number))
    };
    let threads: Vec<_> = (1..threads).map(spawn).collect();
    side(world, 0);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    on_cpu(0);
}

/// Plays one of `cpus` CPUs, or one beyond; soon the thread is moved, and a restartable sequence aborted there.
#[cfg(shuttle)]
pub fn wander(cpus: u32) {
    use crate::sync::schedule::choose;
    let anywhere = || choose(2 * cpus as usize + 1) as u32 / 2;
    Script { cpu: anywhere(), at: choose(5) as u32, then: anywhere(), aborted: choose(2) == 1 }.install();
}

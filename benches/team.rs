//! The same work on many threads at once.

use crate::ours::sync::{AtomicUsize, Ordering};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::num::NonZero;
use std::sync::Barrier;
use std::time::Duration;

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Keeps the calling thread on one CPU, if the system allows it.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu % cpus()).is_ok() {
        // A refusal costs precision, no more.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// What each of the threads measures for itself while all of them run.
#[derive(Debug)]
pub struct Team {
    barrier: Barrier,
    ready: AtomicUsize,
    threads: usize,
    budget: Duration,
}

impl Team {
    /// Nanoseconds an operation, one for each of `threads` threads; thread `i` runs `member(i, team)`, which comes to
    /// [`Team::measure`] once. `pinned` threads stay on a CPU each, in turn.
    pub fn run(
        threads: usize,
        pinned: bool,
        budget: Duration,
        member: impl Fn(usize, &Team) -> f64 + Sync,
    ) -> Vec<f64> {
        let team = Team { barrier: Barrier::new(threads), ready: AtomicUsize::new(0), threads, budget };
        let (team, member) = (&team, &member);
        std::thread::scope(|scope| {
            let spawn = |i| {
                scope.spawn(move || {
                    if pinned {
                        pin(i);
                    }
                    member(i, team)
                })
            };
            let members: Vec<_> = (0..threads).map(spawn).collect();
            members.into_iter().map(|member| member.join().expect("a member that does not panic")).collect()
        })
    }

    /// Waits for the others; then CPU nanoseconds an operation of `chunk`. Nobody stops before everybody has used the
    /// budget, so each was measured while the others ran.
    pub fn measure(&self, chunk: impl FnMut() -> u64) -> f64 {
        self.barrier.wait();
        let mut counted = false;
        let more = || {
            if !counted {
                counted = true;
                self.ready.fetch_add(1, Ordering::Relaxed);
            }
            self.ready.load(Ordering::Relaxed) < self.threads
        };
        crate::clock::per_operation(self.budget, more, chunk)
    }

    /// Waits for the others.
    pub fn wait(&self) {
        self.barrier.wait();
    }
}

/// The mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

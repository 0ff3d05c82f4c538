//! Runs the same work on many threads at the same time.

use crate::ours::sync::{AtomicUsize, Ordering};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::num::NonZero;
use std::sync::Barrier;
use std::time::Duration;

/// Number of CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Keeps the calling thread on one CPU, if the system allows it.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu % cpus()).is_ok() {
        // If pinning fails, only precision suffers.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// The threads of a run; each thread is measured while all threads run.
#[derive(Debug)]
pub struct Team {
    barrier: Barrier,
    ready_count: AtomicUsize,
    threads: usize,
    budget: Duration,
}

impl Team {
    /// Runs `member(i, team)` on each thread `i` of `threads`. Returns nanoseconds per operation for each thread.
    ///
    /// `worker` must call [`Team::measure`] once. If `pinned` is set, each thread stays on one CPU; the CPUs are
    /// assigned round-robin.
    pub fn run(
        threads: usize,
        pinned: bool,
        budget: Duration,
        worker: impl Fn(usize, &Team) -> f64 + Sync,
    ) -> Vec<f64> {
        let team = Team { barrier: Barrier::new(threads), ready_count: AtomicUsize::new(0), threads, budget };
        let (team, worker) = (&team, &worker);
        std::thread::scope(|scope| {
            let spawn = |i| {
                scope.spawn(move || {
                    if pinned {
                        pin(i);
                    }
                    worker(i, team)
                })
            };
            let members: Vec<_> = (0..threads).map(spawn).collect();
            members.into_iter().map(|worker| worker.join().expect("the thread must not panic")).collect()
        })
    }

    /// Waits for the other threads, then runs `chunk` repeatedly and returns CPU nanoseconds per operation. No thread
    /// stops before all threads have used their CPU time budget, so each thread is measured while all others run.
    pub fn measure(&self, chunk: impl FnMut() -> u64) -> f64 {
        self.barrier.wait();
        let mut is_counted = false;
        let has_more = || {
            if !is_counted {
                is_counted = true;
                self.ready_count.fetch_add(1, Ordering::Relaxed);
            }
            self.ready_count.load(Ordering::Relaxed) < self.threads
        };
        crate::clock::measure_per_operation(self.budget, has_more, chunk)
    }

    /// Waits until all threads of the team have called this function.
    pub fn wait(&self) {
        self.barrier.wait();
    }
}

/// Returns the arithmetic mean of the values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

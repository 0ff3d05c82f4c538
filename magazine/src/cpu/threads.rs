//! CPUs where no system is asked which one a thread runs on: each thread plays the CPU whose turn it was when it first asked.
//!
//! Threads go round the CPUs, so as many threads as CPUs share no region. Numbers and not addresses of threads: stacks and
//! thread-locals are aligned alike, and would all fall on few CPUs.

use crate::sync::{Counter, thread_local};
use core::cell::Cell;

/// Threads that have asked.
static THREADS: Counter = Counter::new(0);

thread_local! {
    /// One more than the thread's number; 0 before it has one.
    static NUMBER: Cell<u32> = Cell::new(0);
}

/// The CPU that this thread plays. Cost: a thread-local and a division.
#[inline]
pub(super) fn current(cpus: u32) -> u32 {
    NUMBER.with(|number| {
        if number.get() == 0 {
            THREADS.add(1);
            // Two threads that come at the same time may find one number: then they share a region.
            number.set((THREADS.get() as u32).max(1));
        }
        (number.get() - 1) % cpus
    })
}

/// As many as this process may use at once.
pub(super) fn count() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_cpu_and_threads_go_round_them() {
        assert_eq!(current(4), current(4));
        let played: Vec<u32> = (0..32).map(|_| std::thread::spawn(|| current(4)).join().unwrap()).collect();
        assert!(played.iter().all(|cpu| *cpu < 4));
        // Other tests' threads take numbers, too; but not all of one CPU's.
        assert!((0..4).all(|cpu| played.contains(&cpu)), "{played:?}");
    }
}

//! CPU numbers for systems that do not report on which CPU a thread runs. The first call on a thread assigns the thread
//! a number, round robin.
//!
//! As long as the process has no more threads than CPUs, no two threads share a region. A thread's number comes from a
//! count of the threads, and not from a hash of the thread's address. A hash of an address would select only a few
//! CPUs, because the stacks and thread-locals of all threads have the same alignment.

use crate::sync::{Counter, thread_local};
use core::cell::Cell;

static THREADS: Counter = Counter::new(0);

thread_local! {
    /// The thread's number plus one; 0 before the assignment.
    static NUMBER: Cell<u32> = Cell::new(0);
}

/// Returns the number of the CPU that is assigned to this thread. Cost: one thread-local access and one division.
#[inline]
pub(super) fn current(cpus: u32) -> u32 {
    NUMBER.with(|number| {
        if number.get() == 0 {
            THREADS.add(1);
            // Two concurrent threads may get the same number, and then share a region.
            number.set((THREADS.get() as u32).max(1));
        }
        (number.get() - 1) % cpus
    })
}

/// Number of CPUs that this process may use at the same time.
pub(super) fn count() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn threads_are_assigned_to_cpus_round_robin() {
        assert_eq!(current(4), current(4));
        let cpus: Vec<u32> = (0..32).map(|_| std::thread::spawn(|| current(4)).join().unwrap()).collect();
        assert!(cpus.iter().all(|cpu| *cpu < 4));
        // Threads of other tests also take numbers, but not all numbers of one CPU.
        assert!((0..4).all(|cpu| cpus.contains(&cpu)), "{cpus:?}");
    }
}

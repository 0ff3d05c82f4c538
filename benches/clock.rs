//! Clocks for measurements.
//!
//! The clock of a timed loop is the CPU time of its thread. CPU time excludes the time when the thread does not run, so
//! a busy machine disturbs it less than wall-clock time. Shared caches and the CPU's frequency still affect CPU time.
//! Single operations are timed with the CPU's time stamp counter.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// CPU time of the calling thread. The reading needs a system call, which takes about 0.2 microseconds.
pub fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Calls `chunk` repeatedly until the calls have used `budget` of CPU time and `has_more` returns `false`. Returns
/// nanoseconds per operation.
///
/// `chunk` gets the number of operations to execute, and returns the number that it executed.
pub fn measure_per_operation(
    budget: Duration,
    mut has_more: impl FnMut() -> bool,
    mut chunk: impl FnMut() -> u64,
) -> f64 {
    let start = cpu();
    let mut operations = 0;
    let mut finished = false;
    loop {
        operations += chunk();
        let cpu_time = cpu() - start;
        // `has_more` is called for every chunk after the budget is used, so that it can count the threads that are
        // ready.
        if cpu_time >= budget {
            finished = !has_more();
        }
        if finished {
            return cpu_time.as_nanos() as f64 / operations as f64;
        }
    }
}

/// Time stamp counter, read after all earlier instructions have completed and before any later instruction begins.
#[inline(always)]
pub fn stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: every x86-64 CPU has `lfence` and `rdtsc`.
        unsafe {
            _mm_lfence();
            let stamp = _rdtsc();
            _mm_lfence();
            stamp
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| Duration::from(t).as_nanos() as u64)
}

/// Nanoseconds per tick of [`stamp`], measured over 50 milliseconds.
pub fn nanoseconds_per_tick() -> f64 {
    let (start, first) = (Instant::now(), stamp());
    std::thread::sleep(Duration::from_millis(50));
    let (elapsed, last) = (start.elapsed(), stamp());
    elapsed.as_nanos() as f64 / last.wrapping_sub(first) as f64
}

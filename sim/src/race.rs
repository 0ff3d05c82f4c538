//! Runs the scripts of the simulated [clock](uslab_engine::clock) on threads of this machine's CPUs, with or
//! without the shipping allocator.

use crate::stress::affinity;
use nix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::time::Duration;
use uslab::{AllocError, CacheBox};
use uslab_engine::clock::{Exchange, Script, ScriptAction, Workload};
use uslab_magazine::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// The type of the objects that the threads allocate and pass on; no thread writes to an object.
pub(crate) type Object = [u64; 8];
/// An object in use; `None` if the race runs without an allocator.
pub(crate) type OwnedObject<'c> = Option<CacheBox<'c, Object>>;
/// A function that allocates an object; in a race without an allocator, it returns an empty object. Races with and
/// without an allocator run the same code, except for this function.
pub(crate) type ObjectAllocFn<'m, 'c> = &'m (dyn Fn() -> Result<OwnedObject<'c>, AllocError> + Sync);

/// The number of operations of a race, and the time that they took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RaceResult {
    /// The number of allocations and frees of all threads.
    operations: u64,
    /// The CPU time of the slowest thread of the race, in nanoseconds.
    ns: f64,
}

impl RaceResult {
    /// Returns the operations per microsecond, of all threads together.
    pub(crate) fn operations_per_microsecond(self) -> f64 {
        self.operations as f64 * 1000.0 / self.ns.max(1.0)
    }
}

/// Runs a workload's scripts on threads, each pinned to one of `cpus`.
pub(crate) fn race<'c>(
    workload: &Workload,
    cpus: &[usize],
    operations: u64,
    seed: u64,
    make: ObjectAllocFn<'_, 'c>,
) -> Result<RaceResult, AllocError> {
    let count = cpus.len() as u32;
    let shared = SharedQueues::<OwnedObject<'c>>::new(count);
    let one = |number: u32, cpu: usize| {
        affinity::pin(&[cpu]);
        let mut script = Script::new(workload, number, count, operations, seed);
        let mut seat = ThreadSeat { shared: &shared, taken: VecDeque::new() };
        shared.wait_for_all_threads();
        let start = cpu_time();
        let (mut done, mut waited) = (0_u64, 0);
        let failed = loop {
            match script.next_action(&mut seat) {
                ScriptAction::Alloc => match make() {
                    Ok(object) => script.allocated(object, &mut seat),
                    Err(error) => break Some(error),
                },
                ScriptAction::Free(object) => drop(object),
                ScriptAction::Wait if shared.failed.load(Ordering::Relaxed) => break None,
                ScriptAction::Wait => {
                    waited += 1;
                    pause(waited);
                    continue;
                }
                ScriptAction::Done => break None,
            }
            done += 1;
        };
        let took = cpu_time().saturating_sub(start);
        // Objects that scripts and queues still hold are dropped after all threads have taken their times.
        match failed {
            Some(error) => {
                shared.failed.store(true, Ordering::Relaxed);
                Err(error)
            }
            None => Ok((took, done, script)),
        }
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(cpus).map(|(number, &cpu)| scope.spawn(move || one(number, cpu))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Result<Vec<_>, _>>()
    })?;
    let longest = all.iter().map(|(took, ..)| *took).max().unwrap_or_default();
    Ok(RaceResult { operations: all.iter().map(|(_, done, _)| done).sum(), ns: longest.as_nanos() as f64 })
}

/// Waits briefly. Every 4,096th call yields the CPU, because the awaited thread may need it.
fn pause(look: u64) {
    if look.is_multiple_of(4096) { std::thread::yield_now() } else { spin_loop() }
}

/// Returns the CPU time that the calling thread has used so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The data that the racing threads share: one queue for each CPU.
struct SharedQueues<O> {
    queues: Vec<Queue<O>>,
    contended: AtomicU64,
    /// `true` if an allocation failed; threads then no longer wait for each other.
    failed: AtomicBool,
}

/// The queue of objects that other CPUs sent to one CPU. Words that different CPUs write are at least two
/// cache lines apart.
#[repr(align(128))]
struct Queue<O> {
    sent: CacheAligned<AtomicU64>,
    taken: CacheAligned<AtomicU64>,
    finished: CacheAligned<AtomicBool>,
    objects: Mutex<Vec<O>>,
}

#[repr(align(128))]
struct CacheAligned<T>(T);

impl<O> SharedQueues<O> {
    fn new(cpus: u32) -> Self {
        let queue = |_| Queue {
            sent: CacheAligned(AtomicU64::new(0)),
            taken: CacheAligned(AtomicU64::new(0)),
            finished: CacheAligned(AtomicBool::new(false)),
            objects: Mutex::new(Vec::new()),
        };
        Self {
            queues: (0..cpus).map(queue).collect(),
            contended: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }
    /// Waits until all racing threads have called this function.
    fn wait_for_all_threads(&self) {
        // Relaxed: only the start of the race depends on the counter, no data.
        self.contended.fetch_add(1, Ordering::Relaxed);
        let looks =
            (1_u64..).take_while(|_| self.contended.load(Ordering::Relaxed) < self.queues.len() as u64);
        looks.for_each(pause);
    }
}

/// A racing thread's access to the shared queues.
struct ThreadSeat<'s, O> {
    shared: &'s SharedQueues<O>,
    /// The objects that the thread has already taken out of its queue. The thread takes all available objects at the
    /// same time, so that it locks the queue only once.
    taken: VecDeque<O>,
}

impl<O> Exchange<O> for ThreadSeat<'_, O> {
    #[inline]
    fn take(&mut self, own: u32) -> Option<O> {
        let queue = &self.shared.queues[own as usize];
        if self.taken.is_empty() {
            if self.waiting(own) == 0 {
                return None;
            }
            self.taken.extend(queue.objects.lock().drain(..));
        }
        let object = self.taken.pop_front()?;
        let taken = queue.taken.0.load(Ordering::Relaxed) + 1;
        // Release: pairs with the load in `waiting`.
        queue.taken.0.store(taken, Ordering::Release);
        Some(object)
    }
    #[inline]
    fn send(&mut self, to: u32, object: O) {
        let queue = &self.shared.queues[to as usize];
        let mut objects = queue.objects.lock();
        objects.push(object);
        // The lock admits one sender at a time. Release: pairs with the load in `waiting`.
        queue.sent.0.store(queue.sent.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
    #[inline]
    fn waiting(&self, cpu: u32) -> u64 {
        let queue = &self.shared.queues[cpu as usize];
        // `taken` is loaded first, so that it never exceeds `sent`. Acquire: pairs with the release stores of `taken`
        // and `sent`.
        let taken = queue.taken.0.load(Ordering::Acquire);
        queue.sent.0.load(Ordering::Acquire) - taken
    }
    #[inline]
    fn is_finished(&self, cpu: u32) -> bool {
        // Acquire: pairs with the store in `finish`, so that objects sent earlier are visible.
        self.shared.queues[cpu as usize].finished.0.load(Ordering::Acquire)
    }
    #[inline]
    fn finish(&mut self, own: u32) {
        // Release: pairs with the load in `is_finished`.
        self.shared.queues[own as usize].finished.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uslab::ObjectCache;
    use uslab_engine::Pages;
    use uslab_engine::clock::{Profile, run};
    use uslab_engine::models::uslab::{Knobs, Uslab};

    fn workloads() -> impl Iterator<Item = Workload> {
        let names = Workload::ALL.map(|(name, _)| name.split_once('=').map_or(name, |(name, _)| name));
        names.into_iter().map(|name| name.parse().unwrap())
    }
    /// Returns two different CPUs, or the same CPU twice on a machine with one CPU.
    fn two() -> [usize; 2] {
        let usable = affinity::usable();
        [usable[0], usable[usable.len() - 1]]
    }

    /// A race and the simulated clock run the same number of operations only if no thread's actions depend on the
    /// arrival time of another thread's object.
    #[test]
    fn race_runs_as_many_operations_as_the_clock() {
        const OPERATIONS_PER_RUN: u64 = 2000;
        for workload in workloads() {
            for count in [1, 2] {
                let cache = ObjectCache::<Object>::builder("race").ctor(Object::default).build().unwrap();
                let raced =
                    race(&workload, &two()[..count], OPERATIONS_PER_RUN, 3, &|| cache.alloc().map(Some))
                        .unwrap();
                let pages = Pages::new(count as u32).unwrap();
                let profile = Profile::built_in().next().unwrap();
                let clock =
                    run::<Uslab>(&pages, Knobs::default(), &workload, &profile, 64, OPERATIONS_PER_RUN, 3)
                        .unwrap();
                let by_chance = ["remote", "migrate"].contains(&workload.to_string().as_str()) && count == 2;
                assert!(
                    by_chance || raced.operations == clock.operations,
                    "{workload}: {raced:?}, {clock:?}"
                );
                assert!(raced.operations >= OPERATIONS_PER_RUN && raced.ns > 0.0, "{workload}: {raced:?}");
                assert_eq!(cache.info().used, 0, "{workload} on {count} CPUs");
                let info = cache.info();
                assert!(info.slabs >= 1, "{workload} went through the cache: {info:?}");
            }
        }
    }

    #[test]
    fn failed_allocation_of_one_thread_ends_the_race() {
        for workload in workloads() {
            let granted = AtomicU64::new(100);
            let make = || match granted.fetch_sub(1, Ordering::Relaxed) {
                1..=100 => Ok(None),
                _ => Err(AllocError::TooLarge),
            };
            assert_eq!(
                race(&workload, &two(), 2000, 1, &make).unwrap_err(),
                AllocError::TooLarge,
                "{workload}"
            );
        }
    }
}

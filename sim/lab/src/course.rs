//! A magazine layer as an exercise: its interface, its locks, and the models that check the layer.
//!
//! The course's lab `exchange` starts from a file with an empty layer; [`classic`](crate::classic) is a complete
//! solution.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

use core::fmt;
use uslab_magazine::sync::{Mutex, MutexGuard, Rank};

uslab_magazine::sync::thread_local! {
    static VISIT_COUNT: core::cell::Cell<u64> = core::cell::Cell::new(0);
}

/// A callback that [`Layer::each_magazine`] calls with each magazine.
pub type See<'s, T> = &'s mut dyn FnMut(Option<usize>, &'static str, &[T]);

/// A magazine layer for rounds of type `T`. The caller provides the slab layer below the magazine layer.
///
/// Any number of threads call the layer concurrently, and several of them may run on one CPU.
pub trait Layer<T>: fmt::Debug + Send + Sync {
    /// Creates an empty layer for `cpus` CPUs, with magazines of `rounds` rounds.
    fn new(cpus: usize, rounds: usize) -> Self;
    /// Allocates a round; the caller runs on CPU `cpu`. Returns `None` if neither the CPU nor the depot has a round;
    /// the caller must then use the slab layer.
    fn alloc(&self, cpu: usize) -> Option<T>;
    /// Frees a round; the caller runs on CPU `cpu`. A free always succeeds, because the depot takes any number of
    /// magazines.
    fn free(&self, cpu: usize, round: T);
    /// Removes and returns all rounds of the layer.
    fn drain(&self) -> Vec<T>;
    /// Calls `see` for each magazine that contains rounds; the arguments are its CPU (`None` for the depot), its name,
    /// and its rounds.
    fn each_magazine(&self, see: See<'_, T>);
}

/// The state of one CPU, protected by a lock. A thread that holds a CPU's lock may lock the depot. In debug builds and
/// models, a thread panics if it locks a CPU while it holds the depot's lock.
#[derive(Debug)]
#[repr(align(64))]
pub struct PerCpu<T>(Mutex<T>);

impl<T> PerCpu<T> {
    /// Creates the state of one CPU, in a separate cache line.
    pub fn new(inner_layer: T) -> Self {
        Self(Mutex::ranked(Rank::Cpu, inner_layer))
    }
    /// Waits for the CPU's lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}

/// The state that all CPUs share, protected by one lock. Each acquisition of the lock counts as a visit to the depot.
#[derive(Debug)]
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    /// Creates the depot.
    pub fn new(inner_layer: T) -> Self {
        Self(Mutex::ranked(Rank::Depot, inner_layer))
    }
    /// Waits for the depot's lock, and counts a visit.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        VISIT_COUNT.with(|visits| visits.set(visits.get() + 1));
        self.0.lock()
    }
}

/// Returns the number of times that the calling thread has locked a [`Shared`].
pub fn visits() -> u64 {
    VISIT_COUNT.with(core::cell::Cell::get)
}

/// Checks a layer in every interleaving with at most two pre-emptions. The models cover two threads on one CPU, rounds
/// that move between CPUs, and a drain that runs concurrently with a caller. In these models, a magazine holds two
/// rounds.
///
/// # Panics
/// Panics if a round has two owners or no owner, if a magazine exceeds its capacity, or if the layer takes its locks in
/// the wrong order or not at all. A failed model prints the counterexample trace, and writes it to the file that the
/// variable `STORY_JSON` names.
#[cfg(loom)]
pub fn models<L: Layer<usize> + 'static>() {
    use core::ops::RangeInclusive;
    use uslab_magazine::sync::check::{Bound, model};
    use uslab_magazine::sync::{Arc, tell, thread};

    type ThreadFn<L> = fn(&L) -> Vec<usize>;
    /// Frees the given rounds on a CPU.
    fn free<L: Layer<usize>>(layer: &L, cpu: usize, rounds: RangeInclusive<usize>) -> Vec<usize> {
        for round in rounds {
            tell!("round {round} is freed on CPU {cpu}");
            layer.free(cpu, round);
        }
        vec![]
    }
    /// Allocates up to `n` rounds on a CPU.
    fn alloc<L: Layer<usize>>(layer: &L, cpu: usize, n: usize) -> Vec<usize> {
        let rounds: Vec<_> = (0..n).filter_map(|_| layer.alloc(cpu)).collect();
        tell!("a caller on CPU {cpu} has {rounds:?}");
        rounds
    }
    /// A layer under test, and the rounds that it should have. `first` is a pair: the CPU on which the initial rounds
    /// are freed, and the number of rounds.
    struct World<L> {
        name: &'static str,
        first: (usize, usize),
        rounds: usize,
        first_thread: ThreadFn<L>,
        second_thread: ThreadFn<L>,
    }
    let worlds: [World<L>; 5] = [
        World {
            name: "exchange: two threads allocate on one CPU",
            first: (0, 5),
            rounds: 5,
            first_thread: |layer| alloc(layer, 0, 2),
            second_thread: |layer| alloc(layer, 0, 2),
        },
        World {
            name: "exchange: two threads free on one CPU",
            first: (0, 4),
            rounds: 7,
            first_thread: |layer| free(layer, 0, 5..=5),
            second_thread: |layer| free(layer, 0, 6..=7),
        },
        World {
            name: "exchange: one thread allocates and one frees on one CPU",
            first: (1, 5),
            rounds: 6,
            first_thread: |layer| alloc(layer, 0, 1),
            second_thread: |layer| free(layer, 0, 6..=6),
        },
        World {
            name: "exchange: rounds travel to another CPU",
            first: (0, 4),
            rounds: 9,
            first_thread: |layer| alloc(layer, 0, 5),
            second_thread: |layer| free(layer, 1, 5..=9),
        },
        World {
            name: "exchange: a drain beside a caller",
            first: (0, 5),
            rounds: 6,
            first_thread: |layer| [alloc(layer, 0, 1), free(layer, 0, 6..=6)].concat(),
            second_thread: |layer| layer.drain(),
        },
    ];
    for World { name, first: (cpu, first), rounds, first_thread, second_thread } in worlds {
        // The model must have at least two executions, because two threads can take a lock in two orders.
        model(name, Bound::Preemptions(2), 2, move || {
            let layer = Arc::new(L::new(2, 2));
            (1..=first).for_each(|round| layer.free(cpu, round));
            let other_layer = layer.clone();
            let thread = thread::spawn(move || second_thread(&other_layer));
            let mut all = first_thread(&layer);
            all.extend(thread.join().expect("the panic's location must be readable"));
            layer.each_magazine(&mut |_, name, rounds| {
                assert!(rounds.len() <= 2, "the {name} magazine has {rounds:?}, but holds 2 rounds");
            });
            all.extend(layer.drain());
            all.sort_unstable();
            assert_eq!(all, (1..=rounds).collect::<Vec<_>>(), "each round has one owner");
        });
    }
}

//! The magazine layer of Bonwick and Adams, "Magazines and Vmem: Extending the Slab Allocator to Many CPUs and
//! Arbitrary Resources", USENIX 2001, as real code. Comments name sections and figures of the paper.
//!
//! **Problem.** With many CPUs, threads wait for the lock of a slab allocator, and the lock's cache line moves between
//! CPUs.
//!
//! **Idea.** A *magazine* is a stack of M free objects (*rounds*). Each CPU has a *loaded* magazine: an allocation pops
//! a round, a free pushes a round, and neither touches memory that other CPUs use. At a *depot* that all CPUs share, a
//! CPU exchanges its empty magazine for a full one, or a full one for an empty one. A CPU therefore visits the depot
//! once in M operations.
//!
//! **Why two magazines.** With one magazine per CPU, a loop of two allocations and two frees may visit the depot in
//! every pass, however large M is (Figure 3.1a). A CPU therefore also keeps the *previous* magazine. After an exchange,
//! the CPU has a full and an empty magazine, which serve at least M allocations and M frees. No program can cause more
//! than one visit in M operations.
//!
//! ```text
//!  CPU 0                 CPU 1
//! ┌─────────────────┐   ┌─────────────────┐
//! │ loaded [o o o .]│   │ loaded [o . . .]│   a lock each (section 3.5), a cache line each (section 3.6)
//! │ prev.  [. . . .]│   │ prev.  [o o o o]│
//! └────────┬────────┘   └────────┬────────┘
//!          └─── whole magazines ─┘
//!           ┌──────────┴──────────┐
//!           │ depot  full   empty │             one lock, and a count of who found it taken (section 3.4)
//!           └──────────┬──────────┘
//!                 one object
//!              the slab layer: [`Slab`]
//! ```
//!
//! **Invariants.** A CPU's previous magazine is full, empty or missing. The depot's full list has only full magazines,
//! and the empty list has only empty magazines of the current size. A round is in one magazine, in the slab layer, or
//! in use.
//!
//! **Locks.** A thread locks a CPU before the depot, never locks two CPUs, and holds no lock while it calls the slab
//! layer.
//!
//! **Differences from the paper's kernel.** To change the magazine size, the kernel first empties all CPUs; this layer
//! replaces magazines when they return empty. Magazines are vectors here, and contain their own list links in the
//! kernel.
//!
//! ```
//! use std::cell::Cell;
//! use uslab_lab::classic::{Cache, Sizes, Slab};
//! use uslab_magazine::Cpus;
//!
//! /// Numbers, the first one 1.
//! struct Numbers(Cell<u64>);
//! impl Slab<u64> for Numbers {
//!     fn alloc(&self) -> Option<u64> {
//!         self.0.set(self.0.get() + 1);
//!         Some(self.0.get())
//!     }
//!     fn free(&self, _: u64) {}
//! }
//! let cache = Cache::new(Cpus::simulated(1, 1)?, Sizes::default(), Numbers(Cell::new(0)));
//! let number = cache.alloc().expect("the supplier always has another number");
//! cache.free(number);
//! assert_eq!(cache.alloc(), Some(number), "from the loaded magazine");
//! let stats = cache.stats();
//! assert_eq!((stats.slab_allocs, stats.cpu_allocs, stats.cpu_frees), (1, 1, 1));
//! # Ok::<(), uslab_magazine::BadCpus>(())
//! ```

#[cfg(test)]
mod checks;
mod depot;
mod magazine;
mod stats;
#[cfg(loom)]
mod story;

pub use stats::{MagazineStats, Stats};

use depot::{Depot, Fill};
use magazine::{CpuCache, Magazine};
use uslab_magazine::Cpus;
use uslab_magazine::sync::{Counter, Mutex, MutexGuard, Rank, abandoned, assert_unlocked, tell};

/// A round: an object that magazines hold, such as a pointer, a page number, or any other value that is `Send`. Traces
/// of failed executions print rounds with `Debug`.
pub trait Round: Send + core::fmt::Debug {}
impl<T: Send + core::fmt::Debug> Round for T {}

/// The layer below the magazines, which provides rounds and takes them back. Any number of threads call the slab layer
/// concurrently, without holding locks of the cache; the layer must not panic.
pub trait Slab<T> {
    /// Allocates a constructed object (section 3.2); returns `None` if memory is exhausted.
    fn alloc(&self) -> Option<T>;
    /// Destroys an object and frees its memory.
    fn free(&self, round: T);
    /// Returns an empty vector with room for `size` rounds, or `None` if memory is exhausted. By default, the vector
    /// comes from the program's heap.
    fn magazine(&self, size: usize) -> Option<Vec<T>> {
        let mut rounds = Vec::new();
        rounds.try_reserve_exact(size).ok()?;
        Some(rounds)
    }
}

/// The sizes of magazines, in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The initial size, which is at least 1.
    pub first: usize,
    /// The largest size of a magazine, which is at least `first`. Magazines never become larger, even if CPUs contend.
    pub largest: usize,
    /// The number of depot visits that may wait in one interval; if more visits wait, magazines become larger.
    pub contention: u64,
}

impl Default for Sizes {
    /// The values that the paper's kernel uses for small objects.
    fn default() -> Self {
        Self { first: 15, largest: 143, contention: 3 }
    }
}

/// An object cache's magazine layer over the slab layer `S`.
#[derive(Debug)]
pub struct Cache<T: Round, S: Slab<T>> {
    cpus: Cpus,
    per_cpu: Box<[PerCpu<T>]>,
    depot: Depot<T>,
    sizes: Sizes,
    slab: S,
    slab_allocs: Counter,
    slab_frees: Counter,
    flushed: Counter,
}

/// Section 3.6: If the locks of two CPUs were in one cache line, the CPUs would contend although they share nothing.
#[derive(Debug)]
#[repr(align(64))]
struct PerCpu<T>(Mutex<CpuCache<T>>);

impl<T: Round, S: Slab<T>> Cache<T, S> {
    /// Creates a cache without magazines: the first frees make the magazines (section 3.3).
    pub fn new(cpus: Cpus, sizes: Sizes, slab: S) -> Self {
        let first = sizes.first.max(1);
        let sizes = Sizes { first, largest: sizes.largest.max(first), ..sizes };
        let per_cpu = || PerCpu(Mutex::ranked(Rank::Cpu, CpuCache::new()));
        Self {
            cpus,
            per_cpu: (0..cpus.count()).map(|_| per_cpu()).collect(),
            depot: Depot::new(sizes.first),
            sizes,
            slab,
            slab_allocs: Counter::new(0),
            slab_frees: Counter::new(0),
            flushed: Counter::new(0),
        }
    }

    /// Returns the slab layer below the magazines.
    pub fn slab(&self) -> &S {
        &self.slab
    }

    /// Locks and returns the magazines of the CPU on which this thread runs. The thread may move to another CPU at any
    /// time, so the CPU number is only a hint; the lock protects the magazines (section 3.5). A kernel could disable
    /// interrupts instead of locking, but then a [`drain`](Self::drain) would have to run on each CPU in turn.
    fn this_cpu(&self) -> MutexGuard<'_, CpuCache<T>> {
        let number = self.cpus.current() as usize;
        self.per_cpu[number % self.per_cpu.len()].0.lock()
    }

    /// Allocates a round (Figure 3.1b, left), or returns `None` if the slab layer has no object. Each call takes the
    /// lock of the CPU on which the thread runs. At most one call in M also takes the depot's lock, as long as the
    /// depot has full magazines. Without full magazines in the depot, each miss takes the depot's lock and allocates
    /// from the slab layer.
    pub fn alloc(&self) -> Option<T> {
        let mut cpu = self.this_cpu();
        loop {
            if let Some(round) = cpu.loaded.pop() {
                cpu.allocs += 1;
                tell!(cpu => "allocates object {round:?} from its loaded magazine");
                return Some(round);
            }
            if !cpu.previous.is_empty() {
                cpu.swap();
                tell!(cpu => "swaps: the loaded magazine is empty, the previous one is full");
                continue;
            }
            // The CPU stays locked during the exchange, so that no other thread changes its magazines.
            if self.depot.exchange(Fill::Full, &mut cpu).is_err() {
                break;
            }
            tell!(cpu => "has loaded a full magazine");
        }
        // Only frees fill magazines; an allocation takes a single object from the slab layer (section 3.3).
        drop(cpu);
        assert_unlocked();
        let round = self.slab.alloc()?;
        self.slab_allocs.add(1);
        tell!("allocates object {round:?} from the slab layer: the depot has no full magazine");
        Some(round)
    }

    /// Frees a round on the CPU that runs this thread (Figure 3.1b, right). A free has the same cost as
    /// [`alloc`](Self::alloc).
    pub fn free(&self, mut round: T) {
        let mut cpu = self.this_cpu();
        loop {
            match cpu.loaded.push(round) {
                Ok(()) => {
                    cpu.frees += 1;
                    tell!(cpu => "frees a round to its loaded magazine");
                    return;
                }
                Err(back) => round = back,
            }
            if !cpu.previous.is_full() {
                cpu.swap();
                tell!(cpu => "swaps: the loaded magazine is full, the previous one is empty");
                continue;
            }
            let Err(size) = self.depot.exchange(Fill::Empty, &mut cpu) else {
                tell!(cpu => "has loaded an empty magazine");
                continue;
            };
            // Only frees make magazines (section 3.3). No lock is held, because the magazine's memory also comes from a
            // cache.
            drop(cpu);
            assert_unlocked();
            let Some(rounds) = self.slab.magazine(size) else { break };
            let fresh = Magazine { rounds, size };
            tell!("makes a magazine of {size}: the depot has no empty one");
            // Another thread may have used the CPU, or this thread may have moved to another CPU. The thread therefore
            // puts the new magazine into the depot, where another CPU may take the magazine first, and repeats the
            // loop.
            self.depot.lock().put(fresh);
            cpu = self.this_cpu();
        }
        self.slab_frees.add(1);
        tell!("frees {round:?} to the slab layer: there is no memory for a magazine");
        self.slab.free(round);
    }

    /// Ends an interval, for example of 15 seconds: adapts the magazine size to the contention in the interval (section
    /// 3.4), and begins a new measurement of the working set (section 3.7). The call takes the lock of the depot.
    pub fn end_interval(&self) {
        let mut stock = self.depot.lock();
        stock.full.end_interval();
        stock.empty.end_interval();
        let old = stock.resize(&self.sizes);
        tell!(stock => "ends an interval");
        drop((stock, old));
    }

    /// Returns the depot's magazines outside the working set to the slab layer (section 3.7); call it when memory is
    /// low. Returns the number of magazines that it returned, both full and empty.
    pub fn reap(&self) -> usize {
        let mut stock = self.depot.lock();
        let surplus = [stock.full.reap(), stock.empty.reap()];
        tell!(stock => "reaps the depot");
        drop(stock);
        let reaped = surplus.iter().map(Vec::len).sum();
        self.flush(surplus.into_iter().flatten());
        reaped
    }

    /// Returns everything in the cache to the slab layer: first the magazines of each CPU, then the depot's magazines.
    /// If a CPU is in use during the drain, its magazines fill again.
    pub fn drain(&self) {
        for cpu in &self.per_cpu {
            let mut cpu = cpu.0.lock();
            let magazines = cpu.unload();
            tell!(cpu => "drains a CPU");
            drop(cpu);
            self.flush(magazines);
        }
        let mut stock = self.depot.lock();
        let lists = [core::mem::take(&mut stock.full), core::mem::take(&mut stock.empty)];
        tell!(stock => "drains the depot");
        drop(stock);
        self.flush(lists.into_iter().flat_map(|list| list.magazines));
    }

    fn flush(&self, magazines: impl IntoIterator<Item = Magazine<T>>) {
        for round in magazines.into_iter().flat_map(|magazine| magazine.rounds) {
            assert_unlocked();
            self.flushed.add(1);
            self.slab.free(round);
        }
    }
}

impl<T: Round, S: Slab<T>> Drop for Cache<T, S> {
    /// Returns all rounds and magazines of the cache to the slab layer. If the execution of a loom or shuttle model has
    /// failed, dropping the cache does nothing.
    fn drop(&mut self) {
        if !abandoned() {
            self.drain();
        }
    }
}

// This module follows the layer's code, because the tutorial quotes the code's line numbers.
mod simulated;

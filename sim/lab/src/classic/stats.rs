//! Counts of the cache's operations, and the current owner of every round.

use super::magazine::Magazine;
use super::{Cache, PerCpu, Round, Slab};

/// The counts since the creation of the cache, and the number of rounds in each magazine. The counts are exact only if
/// no other thread uses the cache, because the CPUs are read one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of allocations that CPUs' magazines served.
    pub cpu_allocs: u64,
    /// The number of frees that put a round into a CPU's magazine.
    pub cpu_frees: u64,
    /// The number of allocations that the slab layer served.
    pub slab_allocs: u64,
    /// The number of frees that returned a round to the slab layer.
    pub slab_frees: u64,
    /// The number of rounds that reaps and drains returned to the slab layer.
    pub flushed: u64,
    /// The number of magazines that CPUs exchanged at the depot.
    pub exchanges: u64,
    /// The number of visits to the depot that had to wait for its lock.
    pub contended: u64,
    /// The loaded and previous magazine of each CPU.
    pub cpus: Vec<[MagazineStats; 2]>,
    /// The full magazines of the depot; the last magazine in the list is taken first.
    pub full: Vec<MagazineStats>,
    /// The depot's empty magazines.
    pub empty: Vec<MagazineStats>,
    /// The number of rounds in a new magazine: the paper's M.
    pub size: usize,
}

/// The fill of one magazine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MagazineStats {
    /// The number of rounds in the magazine.
    pub rounds: usize,
    /// The magazine's capacity; 0 if the CPU has no such magazine.
    pub size: usize,
}

impl<T> From<&Magazine<T>> for MagazineStats {
    fn from(magazine: &Magazine<T>) -> Self {
        Self { rounds: magazine.rounds.len(), size: magazine.size }
    }
}

impl<T: Round, S: Slab<T>> Cache<T, S> {
    /// Returns all counts of the cache. The cost is taking each CPU's lock, one after the other, and then the depot's
    /// lock.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // A thread that exchanges a magazine holds its CPU's lock and requests the depot's lock. If `stats` took the
        // locks in the opposite order, both threads could wait forever.
        for PerCpu(cpu) in &self.per_cpu {
            let cpu = cpu.lock();
            stats.cpu_allocs += cpu.allocs;
            stats.cpu_frees += cpu.frees;
            stats.cpus.push([(&cpu.loaded).into(), (&cpu.previous).into()]);
        }
        let stock = self.depot.lock();
        Stats {
            slab_allocs: self.slab_allocs.get(),
            slab_frees: self.slab_frees.get(),
            flushed: self.flushed.get(),
            exchanges: stock.exchanges,
            contended: stock.contended,
            full: stock.full.magazines.iter().map(Into::into).collect(),
            empty: stock.empty.magazines.iter().map(Into::into).collect(),
            size: stock.size,
            ..stats
        }
    }
}

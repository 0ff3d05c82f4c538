//! What a simulator of CPUs asks, beside the layer itself.

use super::{Cache, PerCpu, Round, Slab};

impl<T: Round, S: Slab<T>> Cache<T, S> {
    /// Rounds of a magazine that is made now. Cost: the depot's lock.
    pub fn size(&self) -> usize {
        self.depot.lock().size
    }

    /// Magazines that CPUs exchanged at the depot so far. Cost: its lock.
    pub fn exchanges(&self) -> u64 {
        self.depot.lock().exchanges
    }

    /// Counts a visit to the depot that had to wait, for who knows of waits that no lock here saw: a simulator of CPUs.
    pub fn count_contention(&self) {
        self.depot.lock().contended += 1;
    }

    /// Shows each round that lies in a magazine, with its CPU; those of the depot without one. Cost: as [`stats`](Self::stats).
    pub fn each_round(&self, mut show: impl FnMut(Option<u32>, &T)) {
        for (PerCpu(cpu), number) in self.per_cpu.iter().zip(0..) {
            let cpu = cpu.lock();
            cpu.loaded.rounds.iter().chain(&cpu.previous.rounds).for_each(|round| show(Some(number), round));
        }
        let stock = self.depot.lock();
        stock.full.magazines.iter().flat_map(|magazine| &magazine.rounds).for_each(|round| show(None, round));
    }
}

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

    /// Shows each magazine: its CPU, or `None` in the depot; what it is there; rounds that it has room for; its rounds. A CPU
    /// without one has room for 0. Cost: as [`stats`](Self::stats).
    pub fn each_magazine(&self, mut show: impl FnMut(Option<u32>, &'static str, usize, &[T])) {
        for (PerCpu(cpu), number) in self.per_cpu.iter().zip(0..) {
            let cpu = cpu.lock();
            for (name, magazine) in [("loaded", &cpu.loaded), ("previous", &cpu.previous)] {
                show(Some(number), name, magazine.size, &magazine.rounds);
            }
        }
        let depot = self.depot.lock();
        depot.full.magazines.iter().for_each(|full| show(None, "magazine", full.size, &full.rounds));
    }
}

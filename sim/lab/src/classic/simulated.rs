//! Functions of the magazine layer that only a simulator of CPUs needs.

use super::{Cache, PerCpu, Round, Slab};

impl<T: Round, S: Slab<T>> Cache<T, S> {
    /// Returns the number of rounds in a new magazine. The call takes the lock of the depot.
    pub fn size(&self) -> usize {
        self.depot.lock().size
    }

    /// Returns the number of magazines that CPUs have exchanged at the depot so far. The call takes the lock of the
    /// depot.
    pub fn exchanges(&self) -> u64 {
        self.depot.lock().exchanges
    }

    /// Counts a visit to the depot that had to wait. Simulators of CPUs call this function, because simulated waits
    /// never reach a real lock.
    pub fn count_contention(&self) {
        self.depot.lock().contended += 1;
    }

    /// Calls `show` for each magazine with four values: its CPU (`None` for the depot), its role, its capacity, and its
    /// rounds. A missing magazine has a capacity of 0. The cost equals the cost of [`stats`](Self::stats).
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

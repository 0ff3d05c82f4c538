//! Magazine exchange: write a magazine layer after Bonwick and Adams, "Magazines and Vmem", USENIX 2001, section 3.
//!
//! Each CPU has two magazines. A CPU allocates from its loaded magazine and frees to it, and uses no data of other
//! CPUs. If neither of its magazines can serve a request, the CPU accesses (*visits*) the depot, which keeps whole
//! magazines for all CPUs. The code below visits the depot for every object. Write `alloc` and `free` so that visits to
//! the depot are as rare as possible.
//!
//! Lock order: take a CPU's lock before the depot's lock. The scheduler can move threads, so several threads may run
//! operations of one CPU at the same time.
//!
//! Available calls:
//!
//! - `self.cpus[cpu].lock()`: waits for a CPU's lock and returns the CPU's magazines; dropping the result releases the
//!   lock.
//! - `self.depot.lock()`: waits for the depot's lock and returns the depot; dropping the result releases the lock. Each
//!   call of `self.depot.lock()` counts as a visit.
//! - `std::mem::swap(a, b)` exchanges two magazines of a CPU; `std::mem::take(a)` returns a magazine and leaves an
//!   empty one behind.

use uslab_lab::course::{Layer, PerCpu, See, Shared};

#[derive(Debug)]
struct Cpu<T> {
    loaded: Vec<T>,
    previous: Vec<T>,
}

#[derive(Debug)]
struct Depot<T> {
    /// The depot's full magazines. Empty magazines are not kept, because `Vec::new()` makes an empty
    /// magazine.
    full: Vec<Vec<T>>,
}

#[derive(Debug)]
pub struct Exercise<T> {
    /// The number of objects in a full magazine.
    rounds: usize,
    cpus: Vec<PerCpu<Cpu<T>>>,
    depot: Shared<Depot<T>>,
}

impl<T: std::fmt::Debug + Send> Layer<T> for Exercise<T> {
    fn new(cpus: usize, rounds: usize) -> Self {
        let cpu = |_| PerCpu::new(Cpu { loaded: Vec::new(), previous: Vec::new() });
        Self { rounds, cpus: (0..cpus).map(cpu).collect(), depot: Shared::new(Depot { full: Vec::new() }) }
    }

    fn alloc(&self, _cpu: usize) -> Option<T> {
        // To be written.
        let mut depot = self.depot.lock();
        let round = depot.full.last_mut()?.pop();
        depot.full.retain(|magazine| !magazine.is_empty());
        round
    }

    fn free(&self, _cpu: usize, round: T) {
        // To be written.
        let mut depot = self.depot.lock();
        match depot.full.last_mut() {
            Some(magazine) if magazine.len() < self.rounds => magazine.push(round),
            _ => depot.full.push(vec![round]),
        }
    }

    fn drain(&self) -> Vec<T> {
        let mut all = Vec::new();
        for cpu in &self.cpus {
            let mut cpu = cpu.lock();
            all.append(&mut cpu.loaded);
            all.append(&mut cpu.previous);
        }
        all.extend(self.depot.lock().full.drain(..).flatten());
        all
    }

    fn each_magazine(&self, see: See<'_, T>) {
        for (number, cpu) in self.cpus.iter().enumerate() {
            let cpu = cpu.lock();
            see(Some(number), "loaded", &cpu.loaded);
            see(Some(number), "previous", &cpu.previous);
        }
        self.depot.lock().full.iter().for_each(|magazine| see(None, "magazine", magazine));
    }
}

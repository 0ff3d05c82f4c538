//! The reference solution of the exercise `exchange`.

use uslab_lab::course::{Layer, PerCpu, See, Shared};

#[derive(Debug)]
struct Cpu<T> {
    loaded: Vec<T>,
    previous: Vec<T>,
}

#[derive(Debug)]
struct Depot<T> {
    /// The depot's full magazines. The depot keeps no empty magazines, because `Vec::new()` can make one at any time.
    full: Vec<Vec<T>>,
}

#[derive(Debug)]
pub(in crate::course::code) struct Exercise<T> {
    /// The number of objects in a full magazine.
    rounds: usize,
    cpus: Vec<PerCpu<Cpu<T>>>,
    depot: Shared<Depot<T>>,
}

impl<T> Exercise<T> {
    /// Passes the full magazines of the depot to the function `act`.
    pub(in crate::course::code) fn full<R>(&self, act: impl FnOnce(&mut Vec<Vec<T>>) -> R) -> R {
        act(&mut self.depot.lock().full)
    }
}

impl<T: std::fmt::Debug + Send> Layer<T> for Exercise<T> {
    fn new(cpus: usize, rounds: usize) -> Self {
        let cpu = |_| PerCpu::new(Cpu { loaded: Vec::new(), previous: Vec::new() });
        Self { rounds, cpus: (0..cpus).map(cpu).collect(), depot: Shared::new(Depot { full: Vec::new() }) }
    }

    fn alloc(&self, cpu: usize) -> Option<T> {
        let mut cpu = self.cpus[cpu].lock();
        if cpu.loaded.is_empty() && !cpu.previous.is_empty() {
            let Cpu { loaded, previous } = &mut *cpu;
            std::mem::swap(loaded, previous);
        }
        if cpu.loaded.is_empty() {
            cpu.loaded = self.depot.lock().full.pop()?;
        }
        cpu.loaded.pop()
    }

    fn free(&self, cpu: usize, round: T) {
        let mut cpu = self.cpus[cpu].lock();
        if cpu.loaded.len() == self.rounds {
            let Cpu { loaded, previous } = &mut *cpu;
            std::mem::swap(loaded, previous);
        }
        if cpu.loaded.len() == self.rounds {
            let full = std::mem::take(&mut cpu.loaded);
            self.depot.lock().full.push(full);
        }
        cpu.loaded.push(round);
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

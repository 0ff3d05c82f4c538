//! How full a CPU's magazines are.

use serde::Serialize;
use uslab_magazine::{CpuView, MagazineView};

/// What a CPU holds of a cache: its stack, in magazines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuLevels {
    /// Objects in the magazine that serves, the top one, and what it has room for; both 0 before there is one.
    pub loaded: (u32, u32),
    /// The same of the one below.
    pub previous: (u32, u32),
    /// Magazines below these, by their objects.
    pub stock: Vec<u32>,
    /// Magazines that there is room for beside.
    pub empty: u32,
}

impl CpuLevels {
    pub(crate) fn of<T>(cpu: &CpuView<T>) -> Self {
        let level = |i| {
            cpu.magazines.get(i).map_or((0, 0), |m: &MagazineView<T>| (m.rounds.len() as u32, m.capacity))
        };
        let held = cpu.magazines.len().max(2);
        Self {
            loaded: level(0),
            previous: level(1),
            stock: cpu.magazines.iter().skip(2).map(|magazine| magazine.rounds.len() as u32).collect(),
            empty: cpu.most.saturating_sub(held as u32),
        }
    }
    /// Magazines of the stack.
    pub(crate) fn magazines(&self) -> usize {
        usize::from(self.loaded.0 > 0) + usize::from(self.previous.0 > 0) + self.stock.len()
    }
}

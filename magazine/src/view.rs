//! What each CPU and depot holds, magazine by magazine: for pictures and for whoever steps through a run.
//!
//! [`Stats`](crate::Stats) has the sums, which may be asked for at any time. This names the rounds themselves.
//!
//! A CPU's stack is shown in magazines, counted from its bottom: what of it would leave in one visit to the depot lies
//! together. The top one, from which allocations are served and on which frees land, is what Bonwick and Adams call *loaded*;
//! the one below is *previous*.

use crate::layer::{Layer, Round};
use crate::memory::Memory;
use crate::region::LEN;
use core::ptr::NonNull;

/// A layer, looked at. `T` is what stands for a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerView<T> {
    /// By CPU.
    pub cpus: Vec<CpuView<T>>,
    /// By node.
    pub depots: Vec<DepotView<T>>,
}

/// What a CPU holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuView<T> {
    /// The magazines of its stack, the one that serves first; all but that one are full. Rounds of other nodes, which go home
    /// in magazines of their own, come last.
    pub magazines: Vec<MagazineView<T>>,
    /// How many there may be.
    pub most: u32,
}

/// What the CPUs of a node share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepotView<T> {
    /// Full magazines, the next one to be taken first.
    pub full: Vec<MagazineView<T>>,
}

/// One magazine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MagazineView<T> {
    /// Its rounds, the newest last.
    pub rounds: Vec<T>,
    /// How many it has room for.
    pub capacity: u32,
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// What each CPU and depot holds, every round as `show` makes it.
    ///
    /// # Safety
    /// Nobody uses the layer meanwhile.
    pub unsafe fn view<T>(&self, mut show: impl FnMut(R) -> T) -> LayerView<T> {
        let capacity = u32::from(self.config.capacity);
        let mut magazine = |rounds: &[NonNull<u8>]| MagazineView {
            // SAFETY: rounds get in through `R::into_raw` only.
            rounds: rounds.iter().map(|raw| show(unsafe { R::from_raw(*raw) })).collect(),
            capacity,
        };
        let cpus = (0..self.cpus().count()).map(|cpu| {
            let own = self.cpus().node_of(cpu) as usize;
            let mut magazines = vec![];
            for node in (0..self.nodes.len()).map(|i| (own + i) % self.nodes.len()) {
                let class = self.nodes[node].class();
                let Some(region) = self.table.region(cpu) else { continue };
                let len = (region.head(class) & LEN) as u32;
                let rounds: Vec<_> = (1..=len).filter_map(|i| region.round(class, i)).collect();
                let mut whole: Vec<_> = rounds.chunks(capacity as usize).map(&mut magazine).collect();
                whole.reverse();
                magazines.extend(whole);
            }
            CpuView { magazines, most: u32::from(self.config.reach()).div_ceil(capacity) }
        });
        let cpus = cpus.collect();
        let depots = self.nodes.iter().map(|node| {
            let full = node.depot.look().iter().map(|m| magazine(m.rounds())).collect();
            DepotView { full }
        });
        LayerView { cpus, depots: depots.collect() }
    }
}

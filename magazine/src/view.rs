//! What each CPU and depot holds, magazine by magazine: for pictures and for whoever steps through a run.
//!
//! [`Stats`](crate::Stats) has the sums, which may be asked for at any time. This names the rounds themselves.
//!
//! A CPU's stack is shown in magazines, counted from its bottom: what of it would leave in one visit to the depot lies
//! together. The top one, from which allocations are served and on which frees land, is what Bonwick and Adams call *loaded*;
//! the one below is *previous*.

use crate::depot::Slot;
use crate::layer::{Layer, Round};
use crate::memory::Memory;
use crate::region::LEN;
use crate::region::{NULL, ROUND};
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

/// For debuggers: how far the lowest round of a stack lies behind its head, whose low 16 bits are the number of rounds; and where
/// in a depot's slot the address of the next one lies, the length of its magazine, and the rounds.
#[doc(hidden)]
pub const LAYOUT: [usize; 4] = {
    let [next, len, rounds] = Slot::LAYOUT;
    [NULL + ROUND, next, len, rounds]
};

impl<R: Round, M: Memory> Layer<R, M> {
    /// For debuggers: where CPU 0's region lies, how far the next one is, and how many there are.
    #[doc(hidden)]
    pub fn homes(&self) -> [usize; 3] {
        self.table.homes()
    }
    /// For debuggers: where it is written how far the head of the first node's stack is from the start of a region, and where the
    /// address of the first slot of its depot; how far those of the next node are, and how many nodes there are.
    #[doc(hidden)]
    pub fn places(&self) -> [usize; 4] {
        let [stack, depot] =
            self.nodes.first().map_or([0; 2], |node| [node.fast_path.stack_place(), node.depot.first()]);
        [stack, depot, size_of_val(&*self.nodes) / self.nodes.len().max(1), self.nodes.len()]
    }
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// What each CPU and depot holds, every round as `show` makes it.
    ///
    /// # Safety
    /// Nobody uses the layer meanwhile.
    #[doc(hidden)]
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::shadow::{TestSupplier, layer};
    use crate::test_round::TestRound;
    use crate::{Config, Cpus, on_cpu};

    #[test]
    fn every_round_that_is_held_is_seen_once_where_it_lies() {
        let layer = layer(Cpus::simulated(2, 1).unwrap(), Config::new(2, 1, 3));
        let supplier = TestSupplier::new(12, 1);
        on_cpu(0);
        let taken: Vec<_> = (0..12).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let freed: Vec<_> = taken.iter().map(|round| round.0).collect();
        on_cpu(1);
        taken.into_iter().for_each(|round| layer.free(&supplier, round));
        let look = || {
            // SAFETY: this test is the only user.
            let view = unsafe { layer.view(|round| round.0) };
            let of = |magazines: &[super::MagazineView<usize>]| -> Vec<Vec<usize>> {
                magazines.iter().map(|magazine| magazine.rounds.clone()).collect()
            };
            let cpus: Vec<_> = view.cpus.iter().map(|cpu| of(&cpu.magazines)).collect();
            (cpus, of(&view.depots[0].full), view.cpus.iter().map(|cpu| cpu.most).collect::<Vec<_>>())
        };
        let magazine = |i: usize| vec![freed[i], freed[i + 1]];
        let (cpus, depot, most) = look();
        assert_eq!(
            cpus,
            [vec![], vec![magazine(10), magazine(2), magazine(0)]],
            "the last ones freed come first"
        );
        assert_eq!(depot, [magazine(8), magazine(6), magazine(4)], "the last one left comes first");
        assert_eq!(most, [3, 3]);
        let stats = layer.stats();
        assert_eq!((stats.in_magazines, stats.in_depot), (6, 6));
        let round = layer.alloc(&supplier).unwrap();
        assert_eq!(
            (round.0, look().0[1][0].clone()),
            (freed[11], vec![freed[10]]),
            "all but the first are full"
        );
    }

    #[test]
    fn rounds_of_other_nodes_come_last() {
        let layer = layer(Cpus::simulated(2, 2).unwrap(), Config::new(2, 0, 3));
        let supplier = TestSupplier::new(0, 2);
        on_cpu(1);
        (1..=4).for_each(|round| layer.free(&supplier, TestRound(round)));
        // SAFETY: this test is the only user.
        let view = unsafe { layer.view(|round| round.0) };
        let magazines: Vec<_> =
            view.cpus[1].magazines.iter().map(|magazine| magazine.rounds.clone()).collect();
        assert_eq!(magazines, [[1, 3], [2, 4]]);
    }
}

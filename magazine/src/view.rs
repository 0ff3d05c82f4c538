//! A view of all objects on stacks and in depots, magazine by magazine, for visualisations.
//!
//! [`Stats`](crate::Stats) has only totals, but can be read at any time. A view contains the objects themselves.
//!
//! In a view, a CPU's stack is divided into magazines, starting from the bottom. Each magazine of a view could move in
//! a single depot access. The top magazine serves allocations and frees, and corresponds to Bonwick and Adams's
//! *loaded* magazine. The magazine below it corresponds to their *previous* magazine.

use crate::depot::Slot;
use crate::layer::{Layer, Round};
use crate::memory::Memory;
use crate::region::LEN_MASK;
use crate::region::{NULL, ROUND};
use core::ptr::NonNull;

/// A view of all objects in a layer. The type `T` represents an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerView<T> {
    /// The views of all CPUs' stacks, indexed by CPU.
    pub cpus: Vec<CpuView<T>>,
    /// The views of all depots, indexed by node.
    pub depots: Vec<DepotView<T>>,
}

/// A view of the objects on one CPU's stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuView<T> {
    /// The magazines on the CPU's stacks. The magazine that serves the next operation comes first. All magazines of a
    /// stack except the first one are full. Magazines with objects of other nodes come last.
    pub magazines: Vec<MagazineView<T>>,
    /// Maximum number of magazines on one stack.
    pub most: u32,
}

/// A view of the depot of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepotView<T> {
    /// The full magazines, in the order in which they would be taken.
    pub full: Vec<MagazineView<T>>,
}

/// A view of one magazine: its objects and its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MagazineView<T> {
    /// The objects in the magazine, newest last.
    pub rounds: Vec<T>,
    /// Maximum number of objects in the magazine.
    pub capacity: u32,
}

/// For debuggers: the byte offset from the head of a stack to its lowest object. The low 16 bits of a head are the
/// number of objects on the stack. The other three numbers are byte offsets in a depot's slot: the next slot's address,
/// the magazine's length, and the objects.
pub const LAYOUT: [usize; 4] = {
    let [next, len, rounds] = Slot::LAYOUT;
    [NULL + ROUND, next, len, rounds]
};

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl<R: Round, M: Memory> Layer<R, M> {
    /// For debuggers: the address of CPU 0's region, the distance in bytes between two regions, and the number of
    /// regions.
    pub fn homes(&self) -> [usize; 3] {
        self.table.homes()
    }

    /// For debuggers: where the nodes of a layer store their stack offset and their depot. The numbers are the address
    /// of the first node's stack offset, the address of its depot's pointer to the first slot, the distance in bytes
    /// between two nodes, and the number of nodes.
    pub fn places(&self) -> [usize; 4] {
        let [stack, depot] = self
            .nodes
            .first()
            .map_or([0; 2], |node| [node.fast_path.stack_field_address(), node.depot.first()]);
        [stack, depot, size_of_val(&*self.nodes) / self.nodes.len().max(1), self.nodes.len()]
    }
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// Returns a view of all objects in the layer. The function `show` converts each object.
    ///
    /// # Safety
    /// No other thread may use the layer during the call.
    pub unsafe fn view<T>(&self, mut show: impl FnMut(R) -> T) -> LayerView<T> {
        let capacity = u32::from(self.config.capacity);
        let mut magazine = |rounds: &[NonNull<u8>]| MagazineView {
            // SAFETY: only `R::into_raw` produces the stored pointers.
            rounds: rounds.iter().map(|raw| show(unsafe { R::from_raw(*raw) })).collect(),
            capacity,
        };
        let cpus = (0..self.cpus().count()).map(|cpu| {
            let own = self.cpus().node_of(cpu) as usize;
            let mut magazines = vec![];
            for node in (0..self.nodes.len()).map(|i| (own + i) % self.nodes.len()) {
                let class = self.nodes[node].class();
                let Some(region) = self.table.region(cpu) else { continue };
                let len = (region.head(class) & LEN_MASK) as u32;
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
    use std::collections::BTreeSet;

    #[test]
    fn magazine_view_shows_each_round_once() {
        let layer = layer(Cpus::simulated(2, 1).unwrap(), Config::new(2, 1, 3));
        let supplier = TestSupplier::new(12, 1);
        on_cpu(0);
        let taken: Vec<_> = (0..12).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let freed: Vec<_> = taken.iter().map(|round| round.0).collect();
        on_cpu(1);
        taken.into_iter().for_each(|round| layer.free(&supplier, round));
        let look = || {
            // SAFETY: this test is the only user of the layer.
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
            "the rounds that were freed last are first"
        );
        let in_any_order = BTreeSet::from_iter(&depot);
        assert_eq!(in_any_order, BTreeSet::from([&magazine(4), &magazine(6), &magazine(8)]));
        assert_eq!(most, [3, 3]);
        let stats = layer.stats();
        assert_eq!((stats.in_magazines, stats.in_depot), (6, 6));
        let round = layer.alloc(&supplier).unwrap();
        assert_eq!(
            (round.0, look().0[1][0].clone()),
            (freed[11], vec![freed[10]]),
            "all magazines except the first are full"
        );
        let served: Vec<_> = (0..11).map(|_| layer.alloc(&supplier).unwrap().0).collect();
        let next: Vec<_> = depot.iter().flat_map(|magazine| magazine.iter().rev().copied()).collect();
        assert_eq!(served[5..], next, "the magazine that the depot hands out next is first");
    }

    #[test]
    fn magazine_view_lists_rounds_of_other_nodes_last() {
        let layer = layer(Cpus::simulated(2, 2).unwrap(), Config::new(2, 0, 3));
        let supplier = TestSupplier::new(0, 2);
        on_cpu(1);
        (1..=4).for_each(|round| layer.free(&supplier, TestRound(round)));
        // SAFETY: this test is the only user of the layer.
        let view = unsafe { layer.view(|round| round.0) };
        let magazines: Vec<_> =
            view.cpus[1].magazines.iter().map(|magazine| magazine.rounds.clone()).collect();
        assert_eq!(magazines, [[1, 3], [2, 4]]);
    }
}

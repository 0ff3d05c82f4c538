//! What each CPU and depot holds, magazine by magazine: for pictures and for whoever steps through a run.
//!
//! [`Stats`](crate::Stats) has the sums, which may be asked for at any time. This names the rounds themselves.

use crate::layer::{Layer, Round};
use crate::memory::Memory;
use crate::slot::{Fill, Num, Which};

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
    /// The magazine that serves; `None` before the first.
    pub loaded: Option<MagazineView<T>>,
    /// The one that it changes places with.
    pub previous: Option<MagazineView<T>>,
    /// Full magazines in its stock, the next one to be taken first.
    pub stock: Vec<MagazineView<T>>,
    /// Empty magazines in its stock.
    pub empty: u32,
}

/// What the CPUs of a node share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepotView<T> {
    /// Full magazines, the next one to be taken first.
    pub full: Vec<MagazineView<T>>,
    /// Empty magazines.
    pub empty: u32,
}

/// A magazine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MagazineView<T> {
    /// The most rounds that it holds.
    pub capacity: u32,
    /// What it holds; the last one is the next to be handed out.
    pub rounds: Vec<T>,
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// All magazines in slots, stocks and depots, each round as `name` calls it. Cost: a look at every round.
    ///
    /// # Safety
    /// Nobody else uses the layer until this returns.
    pub unsafe fn view<T>(&self, mut name: impl FnMut(R) -> T) -> LayerView<T> {
        let mut look = |num: Num| {
            let magazine = self.store.get(num);
            let rounds = (0..magazine.len() as usize).filter_map(|i| magazine.round(i));
            // SAFETY: a magazine of rounds holds what was made by `into_raw`.
            let rounds = rounds.map(|raw| name(unsafe { R::from_raw(raw) })).collect();
            (!num.is_sentinel()).then(|| MagazineView { capacity: magazine.capacity(), rounds })
        };
        let numbers = |cpu, which| {
            let stock = self.store.get(self.store.pair(cpu, which).loaded);
            (0..stock.len() as usize).rev().filter_map(move |i| stock.round(i)).map(Num::from_raw)
        };
        let cpus = (0..self.cpus.count()).map(|cpu| {
            let pair = self.store.pair(cpu, Which::Rounds);
            CpuView {
                loaded: look(pair.loaded),
                previous: look(pair.previous),
                stock: numbers(cpu, Which::Full).filter_map(&mut look).collect(),
                empty: numbers(cpu, Which::Empty).count() as u32,
            }
        });
        let cpus = cpus.collect();
        let depots = self.depots.iter().map(|depot| {
            let full = depot.numbers(&self.store, Fill::Full).into_iter().filter_map(&mut look).collect();
            DepotView { full, empty: depot.len(Fill::Empty) }
        });
        LayerView { cpus, depots: depots.collect() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::ball::Ball;
    use crate::{Config, Cpus, Heap, Layer, Operation, Supplier, on_cpu};
    use core::cell::Cell;

    struct Endless(Cell<usize>);
    impl Supplier<Ball> for Endless {
        fn fill(&self, _: &Operation, _node: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
            (0..max).for_each(|_| put(Ball(self.0.replace(self.0.get() + 1))));
            max
        }
        fn flush(&self, _: &Operation, rounds: impl Iterator<Item = Ball>) {
            rounds.for_each(drop);
        }
    }

    #[test]
    fn every_round_that_is_held_is_seen_once_where_it_lies() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        let config = Config::new(&cpus, 2, 1, 3);
        let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
        let layer = Layer::new(cpus, config, memory).unwrap();
        let supplier = Endless(Cell::new(1));
        on_cpu(0);
        let taken: Vec<_> = (0..12).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let freed: Vec<_> = taken.iter().map(|ball| ball.0).collect();
        on_cpu(1);
        taken.into_iter().for_each(|ball| layer.free(&supplier, ball));
        // SAFETY: this test is the only user.
        let view = unsafe { layer.view(|ball| ball.0) };
        let one = &view.cpus[1];
        let held = |magazine: &super::MagazineView<usize>| magazine.rounds.clone();
        assert_eq!(one.loaded.as_ref().map(held), Some(freed[10..].to_vec()), "the last ones freed");
        assert_eq!((one.previous.as_ref().map(held), one.stock.len()), (Some(freed[8..10].to_vec()), 1));
        let magazines =
            view.cpus.iter().flat_map(|cpu| cpu.loaded.iter().chain(&cpu.previous).chain(&cpu.stock));
        let mut rounds: Vec<_> =
            magazines.chain(view.depots.iter().flat_map(|depot| &depot.full)).flat_map(held).collect();
        let stats = layer.stats();
        assert_eq!(rounds.len() as u64, stats.in_magazines + stats.in_stock + stats.in_depot);
        rounds.sort_unstable();
        assert!(rounds.windows(2).all(|two| two[0] < two[1]), "no round in two places: {rounds:?}");
        assert!(rounds.len() >= 10, "two magazines, one in stock, and what the depot takes: {rounds:?}");
    }
}

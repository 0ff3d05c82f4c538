//! Rounds (object pointers) with stamps and counts, for stress tests of the magazines.

use uslab_magazine::sync::{Arc, AtomicU64, Mutex, Ordering::AcqRel, Ordering::Relaxed};
use uslab_magazine::{Config, Cpus, Heap, Layer, Operation, Path, Round, Supplier, Table, sync};

#[path = "../../magazine/src/test_round.rs"]
mod test_round;
pub(crate) use test_round::{TestRound, table};

/// The free rounds, and for each round the stamp of its owner; the stamp 0 means that the round has no owner.
pub(crate) struct TestSupplier {
    pub(crate) free: Mutex<Vec<usize>>,
    stamps: Vec<AtomicU64>,
}

impl TestSupplier {
    pub(crate) fn new(rounds: usize) -> Self {
        Self {
            free: Mutex::new((1..=rounds).collect()),
            stamps: (0..=rounds).map(|_| AtomicU64::new(0)).collect(),
        }
    }
    /// Writes a stamp on a round; returns `true` if the round had no owner.
    pub(crate) fn stamp(&self, round: TestRound, me: u64) -> bool {
        self.stamps[round.0].swap(me, AcqRel) == 0
    }
    /// Removes the stamp of a round; returns `true` if the owner was `me`.
    pub(crate) fn remove_round_stamp(&self, round: TestRound, me: u64) -> bool {
        self.stamps[round.0].swap(0, AcqRel) == me
    }
    /// Returns the free rounds, sorted.
    ///
    /// # Panics
    /// Panics if a round is listed twice or has an owner.
    pub(crate) fn census(&self) -> Vec<usize> {
        let mut free = self.free.lock().clone();
        free.sort_unstable();
        assert!(free.windows(2).all(|w| w[0] < w[1]), "a round is in two places");
        assert!(free.iter().all(|b| self.stamps[*b].load(Relaxed) == 0), "a free round has no owner");
        free
    }
}

impl Supplier<TestRound> for TestSupplier {
    fn fill(&self, op: &Operation, _: u32, max: usize, mut put: impl FnMut(TestRound)) -> usize {
        op.did(Path::Slab);
        let mut free = self.free.lock();
        let n = max.min(free.len());
        (0..n).filter_map(|_| free.pop()).for_each(|b| put(TestRound(b)));
        n
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
        op.did(Path::Slab);
        self.free.lock().extend(rounds.map(|b| b.0));
    }
}

/// Creates a magazine layer with the given sizes of magazines, stacks and depot.
pub(crate) fn layer(
    table: &Arc<Table<Heap>>,
    capacity: u16,
    stock: u16,
    depot_limit: u32,
) -> Layer<TestRound> {
    Layer::new(table, Config::new(capacity, stock, depot_limit)).expect("the table must have class numbers")
}

/// A xorshift random number generator.
pub(crate) struct Rng(pub(crate) u64);
impl Rng {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

//! Number of magazines per second that CPUs can exchange with their shared depot, for several numbers of CPUs. Measures
//! only the magazines of this project; a magazine is exchanged only on the slow path, after the inlined path has
//! missed.

use std::ptr::NonNull;
use std::time::Duration;
use uslab_benches::team::{Team, cpus, mean};
use uslab_benches::{Bench, Column, Contender, Kind};
use uslab_magazine::sync::{Arc, AtomicUsize, Ordering};
use uslab_magazine::{Config, Cpus, Heap, Layer, MAX_DEPOT, Operation, Path, Round, Supplier, Table};

/// Number of objects in a magazine; the number is small, so that exchanges are most of the work.
const CAPACITY: u16 = 4;

/// A test object, which is only a number.
#[derive(Clone, Copy)]
struct TestRound(NonNull<u8>);

// SAFETY: the object is a number that is never dereferenced.
unsafe impl Send for TestRound {}

impl Round for TestRound {
    fn into_raw(self) -> NonNull<u8> {
        self.0
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw)
    }
}

/// A supplier that makes objects; it panics if objects are returned to it, because a return means that the depot was
/// too small.
struct NewRoundSupplier {
    made_rounds: AtomicUsize,
    flushed: AtomicUsize,
}

impl Supplier<TestRound> for NewRoundSupplier {
    fn fill(&self, op: &Operation, _: u32, max: usize, mut add: impl FnMut(TestRound)) -> usize {
        op.did(Path::Slab);
        for _ in 0..max {
            let number = self.made_rounds.fetch_add(1, Ordering::Relaxed) + 1;
            // The numbers of objects must be multiples of 8, like addresses; they begin at 8.
            add(TestRound(
                NonNull::new(std::ptr::without_provenance_mut(number * 8))
                    .expect("the number of threads must not be zero"),
            ));
        }
        max
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
        op.did(Path::Slab);
        self.flushed.fetch_add(rounds.count(), Ordering::Relaxed);
    }
}

struct DepotExchanges {
    layer: Layer<TestRound>,
    maker: NewRoundSupplier,
    batch: usize,
    capacity: usize,
    budget: Duration,
}

impl DepotExchanges {
    fn new(stock: u16, capacity: usize, budget: Duration) -> Option<Self> {
        let os = Cpus::os();
        // A batch is four times the capacity of a CPU, so that most of a batch comes from the depot and is returned to
        // it.
        let batch = 4 * usize::from(CAPACITY) * (2 + usize::from(stock));
        let depot_limit = (2 * capacity * batch / usize::from(CAPACITY)) as u32;
        let region = Table::<Heap>::region_bytes(&os, false);
        let memory = Heap::new(Table::<Heap>::footprint(&os, region))?;
        let table = Arc::new(Table::new(os, region, memory).ok()?);
        let layer = Layer::new(&table, Config::new(CAPACITY, stock, depot_limit.min(MAX_DEPOT)))?;
        Some(Self {
            layer,
            maker: NewRoundSupplier { made_rounds: AtomicUsize::new(0), flushed: AtomicUsize::new(0) },
            batch,
            capacity,
            budget,
        })
    }

    /// Returns the millions of exchanges per CPU second, and the nanoseconds per allocation and free.
    fn measure(&self, threads: usize) -> [f64; 2] {
        let before = self.layer.stats();
        let worker = |_, team: &Team| {
            let mut rounds = Vec::with_capacity(self.batch);
            let mut batch = || {
                while rounds.len() < self.batch {
                    rounds.push(self.layer.alloc(&self.maker).expect("the maker must supply a round"));
                }
                for round in rounds.drain(..) {
                    self.layer.free(&self.maker, round);
                }
                self.batch as u64
            };
            for _ in 0..100 {
                batch();
            }
            team.measure(batch)
        };
        let ns = mean(&Team::run(threads, true, self.budget, worker));
        let new_stats = self.layer.stats();
        // The exchanges per CPU second are the exchanges per allocation and free, over the whole run with its
        // warm-up, times the allocations and frees per CPU second.
        let pairs = (new_stats.allocs - before.allocs) as f64;
        let exchanges = (new_stats.depot_exchanges - before.depot_exchanges) as f64;
        [exchanges / pairs * threads as f64 * 1e3 / ns, ns]
    }

    fn round(&self) -> Vec<f64> {
        let results: Vec<_> = (1..=self.capacity).map(|threads| self.measure(threads)).collect();
        let stats = self.layer.stats();
        let made_rounds = self.maker.made_rounds.load(Ordering::Relaxed) as u64;
        let flushed_rounds = self.maker.flushed.load(Ordering::Relaxed) as u64;
        assert_eq!(
            made_rounds - flushed_rounds,
            stats.in_magazines + stats.in_depot,
            "the depot must lose no round"
        );
        results.into_iter().flatten().collect()
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "depot",
        "million depot visits per CPU second, and CPU ns for an allocation and its free; magazines of 4 objects, batches of 4 times the objects that a CPU holds",
    );
    let capacity = cpus();
    let columns = (1..=capacity).flat_map(|cpus| {
        [
            Column::higher(format!("{cpus} CPUs, visits"), "M/s"),
            Column::lower(format!("{cpus} CPUs, pair"), "ns"),
        ]
    });
    let mut contenders = Vec::new();
    for (name, stock) in [("no stock", 0), ("stock of 8", 8), ("stock of 16", 16)] {
        let exchanges = DepotExchanges::new(stock, capacity, bench.budget());
        let exchanges = exchanges.ok_or_else(|| anyhow::anyhow!("no memory for the magazines"))?;
        contenders.push(Contender::new(name, Kind::Ours, move || exchanges.round()));
    }
    bench.group("", columns, contenders);
    bench.run()
}

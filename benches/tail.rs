//! How long single operations take under churn, up to the slowest.

use hdrhistogram::Histogram;
use uslab_benches::work::Churn;
use uslab_benches::{Bench, Column, Local, Made, Subject, Work, clock, contenders};

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];

/// Ticks, to two digits, in few enough pages that recording disturbs the caches little.
type Ticks = Histogram<u32>;

#[derive(Clone)]
struct Tail {
    live: usize,
    pairs: u64,
    nanoseconds_a_tick: f64,
}

/// Stamps every operation that goes through it.
struct Stamped<'l, L> {
    local: &'l mut L,
    allocs: Ticks,
    frees: Ticks,
}

impl<L: Local> Local for Stamped<'_, L> {
    type Object = L::Object;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> L::Object {
        let start = clock::stamp();
        let object = self.local.alloc(stamp);
        self.allocs.saturating_record(clock::stamp() - start);
        object
    }
    fn stamp(&self, object: &L::Object) -> u64 {
        self.local.stamp(object)
    }
    #[inline(always)]
    fn free(&mut self, object: L::Object) {
        let start = clock::stamp();
        self.local.free(object);
        self.frees.saturating_record(clock::stamp() - start);
    }
}

impl Work for Tail {
    fn live(&self) -> usize {
        self.live
    }
    fn run<S: Subject>(&self, made: &Made<S>) -> Vec<f64> {
        // A second at any clock rate; bounds that `new_with_bounds` accepts.
        let ticks = || Ticks::new_with_bounds(1, 1 << 32, 2).expect("bounds in order");
        let mut local = made.get().local();
        let mut churn = Churn::fill(&mut local, self.live);
        churn.bursts(&mut local, self.live as u64);
        let mut stamped = Stamped { local: &mut local, allocs: ticks(), frees: ticks() };
        churn.bursts(&mut stamped, self.pairs / 10);
        stamped.allocs.reset();
        stamped.frees.reset();
        churn.bursts(&mut stamped, self.pairs);
        let Stamped { allocs, frees, .. } = stamped;
        churn.empty(&mut local);
        let quantiles = [allocs, frees].into_iter().flat_map(|ticks| {
            QUANTILES.map(|(_, quantile)| ticks.value_at_quantile(quantile) as f64 * self.nanoseconds_a_tick)
        });
        quantiles.collect()
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "tail",
        "ns of single operations, 64 B, 100,000 live objects, stamps included (see null); wall time",
    );
    let columns = ["alloc", "free"]
        .into_iter()
        .flat_map(|side| QUANTILES.map(|(name, _)| Column::lower(format!("{side} {name}"), "ns")));
    let tail = Tail {
        live: bench.scale(100_000),
        pairs: bench.scale(1_000_000) as u64,
        nanoseconds_a_tick: clock::stamp_period(),
    };
    bench.group("", columns, contenders::<8>(&tail));
    bench.run()
}

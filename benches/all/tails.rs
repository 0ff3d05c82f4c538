//! Latency of single operations under churn, from the median to the slowest operation.

use hdrhistogram::Histogram;
use std::cell::OnceCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uslab_benches::work::Churn;
use uslab_benches::{Bench, Column, LazySubject, Subject, ThreadAccess, Work, clock, contenders};

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
/// The latency quantiles that the last table ranks. The higher of the two quantiles is 99.99 %: of a million
/// operations, a hundred take longer.
pub(crate) const RANKED_QUANTILES: [(&str, f64); 2] = [QUANTILES[2], QUANTILES[3]];

/// Histogram of clock ticks with a precision of two digits; it fits in a few pages, so recording hardly disturbs the
/// CPU caches.
pub(crate) type TickHistogram = Histogram<u32>;

/// A churn workload in which each operation is timed individually.
#[derive(Clone)]
pub(crate) struct TimedChurn {
    pub(crate) live: usize,
    /// Minimum number of allocation and free pairs to run.
    pub(crate) pairs: u64,
    /// Minimum duration.
    pub(crate) time: Duration,
}

impl TimedChurn {
    pub(crate) fn new(bench: &Bench) -> Self {
        Self { live: bench.scale(100_000), pairs: bench.scale(1_000_000) as u64, time: Duration::ZERO }
    }

    pub(crate) fn measure<L: ThreadAccess>(&self, local: &mut L) -> [TickHistogram; 2] {
        // The upper bound is at least a second at any clock rate. `new_with_bounds` accepts these bounds.
        let ticks =
            || TickHistogram::new_with_bounds(1, 1 << 32, 2).expect("the histogram bounds must be valid");
        let mut churn = Churn::fill(local, self.live);
        churn.bursts(local, self.live as u64);
        let mut stamped = TimedAccess { local, allocs: ticks(), frees: ticks() };
        churn.bursts(&mut stamped, self.pairs / 10);
        stamped.allocs.reset();
        stamped.frees.reset();
        let start = Instant::now();
        let mut pairs = 0;
        while pairs < self.pairs || start.elapsed() < self.time {
            pairs += churn.bursts(&mut stamped, self.pairs.min(10_000));
        }
        let TimedAccess { local, allocs, frees } = stamped;
        churn.empty(local);
        [allocs, frees]
    }
}

/// A [`ThreadAccess`] that times every operation of another `ThreadAccess`.
struct TimedAccess<'l, L> {
    local: &'l mut L,
    allocs: TickHistogram,
    frees: TickHistogram,
}

impl<L: ThreadAccess> ThreadAccess for TimedAccess<'_, L> {
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

#[derive(Clone)]
struct TailLatencyBench {
    tail: TimedChurn,
    /// Length of a clock tick in nanoseconds, measured at the first use.
    nanoseconds_a_tick: Rc<OnceCell<f64>>,
}

impl Work for TailLatencyBench {
    fn live(&self) -> usize {
        self.tail.live
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let ticks = self.tail.measure(&mut lazy_subject.get().local());
        let period = self.nanoseconds_a_tick.get_or_init(clock::nanoseconds_per_tick);
        let quantiles = ticks.into_iter().flat_map(|ticks| {
            QUANTILES.map(|(_, quantile)| ticks.value_at_quantile(quantile) as f64 * period)
        });
        quantiles.collect()
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "tails",
        "wall ns of single operations of `churn`, a million allocations and a million frees; the times include the reading of the clock, and null is this reading alone",
    );
    let columns = ["alloc", "free"].into_iter().flat_map(|operation| {
        QUANTILES.map(|quantile| {
            let column = Column::lower(format!("{operation} {}", quantile.0), "ns");
            if RANKED_QUANTILES.contains(&quantile) {
                column.count_in_summary_row(format!("tails of {operation}"))
            } else {
                column.exclude_from_summary()
            }
        })
    });
    let tails = TailLatencyBench { tail: TimedChurn::new(bench), nanoseconds_a_tick: Rc::default() };
    bench.group("", columns, contenders::<8>(&tails));
}

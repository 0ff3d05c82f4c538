//! Cost that checks, statistics or disabled magazines add to allocating and freeing one hot object. Counting operations
//! cannot be disabled, because the counts are part of the magazine's word. Because counting is always enabled, the
//! benchmark measures only the cost of reading the counts.

use std::sync::Arc;
use std::time::Duration;
use uslab::{Config, KmemCache, Magazines, Subsystem};
use uslab_benches::ours::KmemAccess;
use uslab_benches::subject::Checked;
use uslab_benches::{Bench, Column, Contender, Kind, clock, work};
use uslab_magazine::sync::{AtomicBool, Ordering};

/// A cache that belongs to a separate subsystem.
struct SeparateCache {
    cache: KmemCache,
    subsystem: Subsystem,
}

impl SeparateCache {
    fn new(change: impl FnOnce(&mut Config)) -> anyhow::Result<Self> {
        // Checks are off in every build, so that the comparison is the same in all builds.
        let mut config = Config { check_frees: false, ..Config::default() };
        change(&mut config);
        let subsystem = Subsystem::new(config)?;
        Ok(Self { cache: KmemCache::builder("bench-stats", 64).build_in(&subsystem)?, subsystem })
    }
    fn pairs(&self, budget: Duration) -> Vec<f64> {
        let mut local = KmemAccess(&self.cache);
        let mut checked = Checked::new(&mut local);
        work::pairs(&mut checked, 10_000);
        assert_eq!(checked.written_sum, checked.read_sum, "the objects must keep their stamps");
        vec![clock::measure_per_operation(budget, || false, || work::pairs(&mut local, 20_000))]
    }
    /// Measures allocations and frees while another thread reads the cache's statistics continuously.
    fn measure_pairs_while_polled(&self, budget: Duration) -> Vec<f64> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let poll = || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(self.cache.info());
                }
            };
            scope.spawn(poll);
            let ns_per_pair = self.pairs(budget);
            stop.store(true, Ordering::Relaxed);
            ns_per_pair
        })
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "stats",
        "CPU ns for an allocation of 64 B and its free, with checks or with readers of the statistics, and CPU ns for a reading",
    );
    let budget = bench.budget();
    let own_contender = |name, round: Box<dyn FnMut() -> Vec<f64>>| Contender::new(name, Kind::Ours, round);
    let unchecked_cache = Arc::new(SeparateCache::new(|_| ())?);
    let checked_cache = SeparateCache::new(|config| config.check_frees = true)?;
    let without_magazines = SeparateCache::new(|config| config.magazines = Magazines::Off)?;
    let polled_cache = unchecked_cache.clone();
    let pairs = vec![
        own_contender(
            "plain",
            Box::new({
                let unchecked_cache = unchecked_cache.clone();
                move || unchecked_cache.pairs(budget)
            }),
        ),
        own_contender("check_frees", Box::new(move || checked_cache.pairs(budget))),
        own_contender(
            "numbers read meanwhile",
            Box::new(move || polled_cache.measure_pairs_while_polled(budget)),
        ),
        own_contender("no magazines", Box::new(move || without_magazines.pairs(budget))),
    ];
    bench.group("pair", [Column::lower("", "ns")], pairs);
    let reader_cache = unchecked_cache.clone();
    let reading_all = unchecked_cache;
    let readings = vec![
        own_contender(
            "KmemCache::info",
            Box::new(move || {
                let read_stats = || {
                    (0..100).for_each(|_| drop(std::hint::black_box(reader_cache.cache.info())));
                    100
                };
                vec![clock::measure_per_operation(budget, || false, read_stats)]
            }),
        ),
        own_contender(
            "Subsystem::slabinfo",
            Box::new(move || {
                let read_stats = || {
                    drop(std::hint::black_box(reading_all.subsystem.slabinfo()));
                    1
                };
                vec![clock::measure_per_operation(budget, || false, read_stats)]
            }),
        ),
    ];
    bench.group("reading", [Column::lower("", "ns")], readings);
    bench.run()
}

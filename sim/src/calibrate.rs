//! The command `uslab calibrate`: measures prices on this machine, as a profile for [`scale`](crate::scale).
//!
//! Each price is measured by running this project's code, in several rounds. A price in the profile is the median of
//! the rounds; its spread is the range of the middle eight tenths. If an operation cannot be measured alone, its price
//! is the difference between two loops, only one of which contains the operation. Builds differ: `cargo run --release
//! -p uslab-sim --bin uslab -- calibrate` measures the build that ships.

use crate::output::Progress;
use crate::race::{Object, ObjectAllocFn, race};
use crate::stress::affinity;
use std::cell::Cell;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::Instant;
use uslab::{AllocError, Block, Gfp, KmemCache, Magazines, ObjectCache};
use uslab_engine::clock::{Level, Price, Profile};
use uslab_lab::classic::{Cache, Sizes, Slab};
use uslab_magazine::Cpus;
use uslab_magazine::sync::{AtomicU64, Mutex, Ordering};

/// Object size, in bytes, for the loops that measure slab operations. Large objects make slabs small, so the
/// price of a new slab is visible.
const LARGE_OBJECT_BYTES: usize = 1024;
/// Object size, in bytes, for the loops that measure filling magazines.
const SMALL: usize = 64;
/// Number of slabs that one measuring loop visits.
const SLABS: usize = 256;
/// Number of operations in a measuring loop that does not visit slabs.
const LOOP_OPERATIONS: usize = 20_000;

/// Measures all prices `rounds` times.
///
/// # Errors
/// Fails if there is too little memory for the measured objects.
pub fn calibrate(name: &str, rounds: u32, progress: &Progress) -> anyhow::Result<Profile> {
    let stage = progress.stage("measuring", rounds.into());
    let mut prices = Prices::default();
    for round in 0..rounds {
        prices.measure()?;
        stage.at((round + 1).into());
    }
    Ok(prices.profile(name))
}

/// The measured values of each price, one value for each round.
#[derive(Debug, Default)]
pub(crate) struct Prices([Vec<f64>; 8]);

impl Prices {
    /// Runs one more round, which measures every price once.
    pub(crate) fn measure(&mut self) -> anyhow::Result<()> {
        let (object, relist, slab) = measure_slab_prices()?;
        let lock = locked_operation_price();
        let line = cache_line_price(&affinity::usable());
        let own = cpu_operation_price()?;
        let (exchange, batched) = (depot_exchange_price(), batched_move_price(own)?);
        let measured = [own, lock, exchange, (object - lock).max(0.0), batched, relist, slab, line];
        for (price, ns) in self.0.iter_mut().zip(measured) {
            price.push(ns);
        }
        Ok(())
    }
    /// Returns a profile of the medians and spreads.
    pub(crate) fn profile(self, name: &str) -> Profile {
        let [own, lock, exchange, object, batched, relist, slab, line] = self.0;
        let (cpus, rounds) = (affinity::usable().len(), own.len());
        let machine = format!("`uslab calibrate` on {cpus} CPUs, median of {rounds} rounds: ");
        let price = |rounds: Vec<f64>, what: &str| {
            let [low, median, high] = median_and_range(rounds).map(|ns| (ns * 10.0).round() / 10.0);
            Price { ns: median, spread: [low, high], source: format!("{machine}{what}") }
        };
        Profile {
            name: name.to_owned(),
            validated_cpus: 0,
            own: price(
                own,
                "an operation of `ObjectCache` in scripts `pairs` and `server=16`, less the scripts alone",
            ),
            lock: price(lock, "the facade's mutex, taken and left by one thread"),
            exchange: price(exchange, "a visit to the depot of the lab's magazine layer, its lock included"),
            object: price(object, "half of a pair of `KmemCache` without magazines, less the lock"),
            batched: price(
                batched,
                "half of a pair of `KmemCache` with magazines of 64 and no depot, less what each visit and each pair costs",
            ),
            relist: price(relist, "a free to a full slab, less one to a partial slab"),
            slab: price(slab, "the first object of a new slab, less one of an old slab"),
            levels: vec![Level {
                cpus: 0,
                line: price(line, "half of a round trip of a word between two CPUs"),
            }],
        }
    }
}

/// Returns the median of the rounds' values, and the ends of the range that holds their middle eight tenths.
pub(crate) fn median_and_range(mut rounds: Vec<f64>) -> [f64; 3] {
    rounds.sort_by(f64::total_cmp);
    [1, 5, 9].map(|tenth| rounds[(rounds.len() - 1) * tenth / 10])
}

/// Runs `act`, and returns the elapsed nanoseconds and the result of `act`.
fn measure_time<T>(act: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let outcome = act();
    (start.elapsed().as_nanos() as f64, outcome)
}
fn allocate<'c>(cache: &'c KmemCache, n: usize, to: &mut Vec<Block<'c>>) -> Result<(), AllocError> {
    (0..n).try_for_each(|_| cache.alloc_block(Gfp::KERNEL).map(|block| to.push(block)))
}

/// Measures the price of an allocation or a free among other instructions, and subtracts the time of the
/// other instructions. The result is the mean of two scripts: the first frees each object immediately, the second keeps
/// a few objects. A loop of only allocations would give a lower price, because a processor overlaps successive
/// operations.
fn cpu_operation_price() -> anyhow::Result<f64> {
    let cache = ObjectCache::<Object>::builder("calibrate").ctor(Object::default).build()?;
    let (make, none): (ObjectAllocFn<'_, '_>, ObjectAllocFn<'_, '_>) =
        (&|| cache.alloc().map(Some), &|| Ok(None));
    let cpu = &affinity::usable()[..1];
    let mut ns = 0.0;
    for workload in ["pairs", "server=16"] {
        let workload = workload.parse()?;
        let of = |make| {
            race(&workload, cpu, LOOP_OPERATIONS as u64, 1, black_box(make))
                .map(|raced| 1000.0 / raced.operations_per_microsecond())
        };
        // The first run makes the system commit memory, so it is not counted.
        of(make)?;
        ns += of(make)? - of(none)?;
    }
    Ok((ns / 2.0).max(0.0))
}

fn locked_operation_price() -> f64 {
    let mutex = Mutex::new(0_u64);
    let (ns, ()) = measure_time(|| (0..LOOP_OPERATIONS).for_each(|_| *black_box(&mutex).lock() += 1));
    ns / LOOP_OPERATIONS as f64
}

/// A slab layer under the lab's magazines that hands out numbers instead of objects.
struct NumberLayer(Cell<u64>);

impl Slab<u64> for NumberLayer {
    fn alloc(&self) -> Option<u64> {
        self.0.set(self.0.get() + 1);
        Some(self.0.get())
    }
    fn free(&self, _: u64) {}
}

/// Measures an exchange with the depot. The price is the time of bursts that reach the depot, minus the time of the
/// same number of operations on the CPU's own magazines.
fn depot_exchange_price() -> f64 {
    let Ok(cpus) = Cpus::simulated(1, 1) else { return 0.0 };
    let cache = Cache::new(cpus, Sizes::default(), NumberLayer(Cell::new(0)));
    let mut held = Vec::with_capacity(LOOP_OPERATIONS);
    let mut burst = |n: usize| {
        held.extend((0..n).filter_map(|_| cache.alloc()));
        held.drain(..).for_each(|number| cache.free(number));
    };
    let (long, short) = (16 * Sizes::default().first, Sizes::default().first / 2);
    burst(long);
    let before = cache.exchanges();
    let (far, ()) = measure_time(|| (0..LOOP_OPERATIONS / long).for_each(|_| burst(long)));
    let exchanges = cache.exchanges() - before;
    let (near, ()) = measure_time(|| (0..LOOP_OPERATIONS / short).for_each(|_| burst(short)));
    let operations = |n: usize| (LOOP_OPERATIONS / n * n) as f64;
    ((far - near * operations(long) / operations(short)) / exchanges.max(1) as f64).max(0.0)
}

/// Measures the price of moving one object, in a batch, between slabs and a magazine. Each burst fills and
/// flushes magazines, while no slab becomes empty. A cache with magazines of 8 objects visits its slabs eight times as
/// often as a cache with magazines of 64. The difference between the run times of the two caches gives the price of one
/// visit to the slabs. `own` is the price of an operation that uses only the CPU's magazine.
fn batched_move_price(own: f64) -> anyhow::Result<f64> {
    let of = |capacity| -> anyhow::Result<f64> {
        let magazines = Magazines::Sized { capacity, stock: 0, depot_limit: 0 };
        let cache = KmemCache::builder("calibrate", SMALL).magazines(magazines).build()?;
        let (mut held, mut kept) = (Vec::with_capacity(LOOP_OPERATIONS), Vec::new());
        allocate(&cache, LOOP_OPERATIONS, &mut held)?;
        // One object of each slab stays allocated, so that no slab becomes empty.
        for at in (0..LOOP_OPERATIONS).step_by(cache.info().objs_per_slab as usize).rev() {
            kept.push(held.swap_remove(at));
        }
        held.clear();
        let (ns, done) = measure_time(|| {
            allocate(&cache, LOOP_OPERATIONS / 2, &mut held)?;
            held.clear();
            Ok::<_, AllocError>(())
        });
        done?;
        Ok(ns / LOOP_OPERATIONS as f64)
    };
    let (often, seldom) = (of(8)?, of(64)?);
    // The runs differ by 1/8 - 1/64 = 7/64 of a visit for each object; the slower run, with magazines of 8, is `often`.
    // A seventh of the difference is 1/64 of a visit.
    Ok((seldom - (often - seldom) / 7.0 - own).max(0.0))
}

/// Measures three prices: an operation on a partial slab with its lock, moving the slab to another list, and making a
/// new slab.
fn measure_slab_prices() -> anyhow::Result<(f64, f64, f64)> {
    let cache = KmemCache::builder("calibrate", LARGE_OBJECT_BYTES).magazines(Magazines::Off).build()?;
    let per_slab = cache.info().objs_per_slab as usize;
    let mut held = Vec::with_capacity(SLABS * per_slab);
    let (new, done) = measure_time(|| allocate(&cache, SLABS * per_slab, &mut held));
    done?;
    // Each slab gets one free. The first free makes a full slab partial, which moves it to another list; the second
    // free does not.
    let mut slabs: Vec<Vec<Block<'_>>> = vec![];
    while held.len() >= per_slab {
        slabs.push(held.split_off(held.len() - per_slab));
    }
    slabs.reverse();
    let mut free_one =
        || measure_time(|| slabs.iter_mut().for_each(|slab| drop(slab.pop()))).0 / SLABS as f64;
    let (first, second) = (free_one(), free_one());
    // A slab that becomes empty would be freed, so one object of each slab stays allocated.
    slabs.iter_mut().for_each(|slab| slab.truncate(1));
    let rest = SLABS * (per_slab - 1);
    let (old, done) = measure_time(|| allocate(&cache, rest, &mut held));
    done?;
    let (old, new) = (old / rest as f64, new / (SLABS * per_slab) as f64);
    Ok((old, (first - second).max(0.0), ((new - old) * per_slab as f64).max(0.0)))
}

/// Measures how long a cache line takes to move between CPUs, by passing a line back and forth. Each of the two threads
/// has its own CPU; a machine with only one CPU gives no measurement.
fn cache_line_price(cpus: &[usize]) -> f64 {
    let [one, other, ..] = *cpus else { return 0.0 };
    const BATCH: u64 = 50;
    const BATCHES: u64 = 40;
    let word = Arc::new(AtomicU64::new(0));
    let wait = |word: &AtomicU64, turn: u64| {
        // Acquire: pairs with the other thread's release store of this turn.
        while word.load(Ordering::Acquire) != turn {
            spin_loop();
        }
    };
    let theirs = word.clone();
    let echo = std::thread::spawn(move || {
        affinity::pin(&[other]);
        for trip in 0..=BATCH * BATCHES {
            wait(&theirs, 2 * trip + 1);
            theirs.store(2 * trip + 2, Ordering::Release);
        }
    });
    let mine = word.clone();
    let ask = std::thread::spawn(move || {
        affinity::pin(&[one]);
        // The measurement starts only when the other thread is running.
        mine.store(1, Ordering::Release);
        wait(&mine, 2);
        let trips = |batch: u64| {
            for trip in batch * BATCH + 1..=(batch + 1) * BATCH {
                mine.store(2 * trip + 1, Ordering::Release);
                wait(&mine, 2 * trip + 2);
            }
        };
        // A thread of the pair does not run in some batches, so the median is used.
        let [_, ns, _] =
            median_and_range((0..BATCHES).map(|batch| measure_time(|| trips(batch)).0).collect());
        ns
    });
    let ns = ask.join().unwrap_or(0.0);
    let _ = echo.join();
    ns / (2 * BATCH) as f64
}

//! The experiment on the two magazines of a CPU (Bonwick and Adams, "Magazines and Vmem", 2001), which counts visits to
//! shared structures.

use super::{Context, check_bound, four_cpu_subsystem};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use clap::Args;
use uslab::{Block, CacheInfo, Gfp, KmemCache, Magazines, Subsystem};
use uslab_magazine::on_cpu;

/// Why does a CPU have two magazines, although one larger magazine would hold as many objects?
///
/// One CPU allocates and frees objects in bursts, which begin at every offset from a magazine's edge. The experiment
/// counts visits to shared structures, each of which costs a lock and other CPUs' cache lines. The experiment runs
/// without magazines, and with one, two and ten magazines per CPU (the shipping caches have up to nineteen).
#[derive(Debug, Args)]
pub struct WhyMagazines {
    /// Number of objects in a magazine.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    capacity: u16,
    /// The longest burst. Default: three magazines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    burst: Option<u32>,
}

/// The number of bursts at each offset, not counting the warm-up.
const BURSTS_PER_OFFSET: u32 = 64;
/// The largest number of allocations and frees that a run may make; they take about a minute.
const MAX_OPERATIONS: u64 = 2_000_000_000;

/// A source of objects that counts visits to shared structures.
trait Source<'c> {
    fn alloc(&mut self) -> anyhow::Result<Block<'c>>;
    fn free(&mut self, object: Block<'c>);
    /// Returns the visits to shared structures so far.
    fn visits(&self) -> u64;
}

/// The shipping object cache with a chosen magazine size.
struct Shipping<'c> {
    cache: &'c KmemCache,
    visits: fn(&CacheInfo) -> u64,
}

impl<'c> Source<'c> for Shipping<'c> {
    fn alloc(&mut self) -> anyhow::Result<Block<'c>> {
        Ok(self.cache.alloc_block(Gfp::KERNEL)?)
    }
    fn free(&mut self, object: Block<'c>) {
        drop(object);
    }
    fn visits(&self) -> u64 {
        (self.visits)(&self.cache.info())
    }
}

/// A cache with one magazine per CPU, and a depot that exchanges full and empty magazines.
struct SingleMagazine<'c> {
    cache: &'c KmemCache,
    capacity: usize,
    loaded: Vec<Block<'c>>,
    full: Vec<Vec<Block<'c>>>,
    visits: u64,
}

impl<'c> Source<'c> for SingleMagazine<'c> {
    fn alloc(&mut self) -> anyhow::Result<Block<'c>> {
        if self.loaded.is_empty() {
            // The exchange returns the empty magazine and takes a full one.
            self.visits += 2;
            self.loaded = match self.full.pop() {
                Some(full) => full,
                None => (0..self.capacity)
                    .map(|_| self.cache.alloc_block(Gfp::KERNEL))
                    .collect::<Result<_, _>>()?,
            };
        }
        match self.loaded.pop() {
            Some(object) => Ok(object),
            None => anyhow::bail!("--capacity 0: expected at least one round"),
        }
    }
    fn free(&mut self, object: Block<'c>) {
        if self.loaded.len() == self.capacity {
            self.visits += 2;
            self.full.push(std::mem::take(&mut self.loaded));
        }
        self.loaded.push(object);
    }
    fn visits(&self) -> u64 {
        self.visits
    }
}

/// Returns the visits per operation for bursts of `burst` allocations and equally many frees: the mean over all offsets
/// from a magazine's edge, and the worst offset.
fn visits<'c>(source: &mut impl Source<'c>, burst: u32, capacity: u16) -> anyhow::Result<(f64, f64)> {
    let mut used_objects: Vec<Block<'c>> = Vec::new();
    let operations = f64::from(2 * burst * BURSTS_PER_OFFSET);
    let (mut sum, mut worst_rate) = (0.0, 0.0f64);
    for _ in 0..capacity {
        // Each pass keeps one more object in use, so that the bursts begin at the next offset.
        used_objects.push(source.alloc()?);
        let mut before = 0;
        for round in 0..2 * BURSTS_PER_OFFSET {
            if round == BURSTS_PER_OFFSET {
                before = source.visits();
            }
            for _ in 0..burst {
                used_objects.push(source.alloc()?);
            }
            for _ in 0..burst {
                used_objects.pop().into_iter().for_each(|object| source.free(object));
            }
        }
        let rate = (source.visits() - before) as f64 / operations;
        sum += rate;
        worst_rate = worst_rate.max(rate);
    }
    used_objects.into_iter().for_each(|object| source.free(object));
    Ok((sum / f64::from(capacity), worst_rate))
}

impl WhyMagazines {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "why two magazines a CPU, when one would hold as much?";
        let mut findings = Findings::new("why-magazines", question, context.seed);
        // Halving the capacity and the burst leaves an eighth of the work.
        let divisor = if context.quick { 2 } else { 1 };
        let capacity = (self.capacity / divisor).max(1);
        let longest = self.burst.map_or(3 * u32::from(capacity), |burst| (burst / u32::from(divisor)).max(1));
        // The operations are the allocations and frees of each burst length, at all offsets, for each of the four
        // sources.
        let objects = u64::from(longest) * u64::from(longest + 1) / 2;
        let operations = objects * u64::from(2 * BURSTS_PER_OFFSET) * u64::from(capacity) * 4 * 2;
        let options = format!("--capacity {} --burst {}", self.capacity, self.burst.unwrap_or(longest));
        check_bound(
            &options,
            operations,
            MAX_OPERATIONS,
            "operations, which grow with the capacity and the square of the burst",
        )?;
        on_cpu(0);
        let subsystem = four_cpu_subsystem()?;
        let sized = |stock| Magazines::Sized { capacity, stock, depot_limit: 64 };
        let locked_cache = cache(&subsystem, "locked", Magazines::Off)?;
        let two_magazine_cache = cache(&subsystem, "two", sized(0))?;
        let shipped = cache(&subsystem, "shipped", sized(8))?;
        let names = ["no magazine: a lock", "one a CPU", "two a CPU", "ten a CPU"];
        let mut mean_rates = names.map(|_| Vec::new());
        let mut worst_rates = names.map(|_| Vec::new());
        let stage = context.progress.stage("why-magazines", longest.into());
        for burst in 1..=longest {
            let single = SingleMagazine {
                cache: &locked_cache,
                capacity: capacity.into(),
                loaded: Vec::new(),
                full: Vec::new(),
                visits: 0,
            };
            let depot = |info: &CacheInfo| info.depot_exchanges + info.fills + info.flushes;
            let rates = [
                visits(
                    &mut Shipping { cache: &locked_cache, visits: |info| info.allocs + info.frees },
                    burst,
                    capacity,
                )?,
                visits(&mut { single }, burst, capacity)?,
                visits(&mut Shipping { cache: &two_magazine_cache, visits: depot }, burst, capacity)?,
                visits(&mut Shipping { cache: &shipped, visits: depot }, burst, capacity)?,
            ];
            for (i, rate) in rates.into_iter().enumerate() {
                mean_rates[i].push((f64::from(burst), rate.0));
                worst_rates[i].push((f64::from(burst), rate.1));
            }
            stage.at(burst.into());
        }
        drop(stage);
        let mut table = Table::new(
            format!("Visits to shared data per operation; magazines of {capacity}"),
            &["magazines", "at the edge, bursts of 2", "mean of all bursts", "worst of all bursts"],
        );
        let max_rate = |curve: &[(f64, f64)]| curve.iter().map(|p| p.1).fold(0.0, f64::max);
        for (i, name) in names.into_iter().enumerate() {
            let all = mean_rates[i].iter().map(|p| p.1).sum::<f64>() / mean_rates[i].len() as f64;
            let rates = [worst_rates[i].get(1).map(|p| p.1), Some(all), Some(max_rate(&worst_rates[i]))];
            let rates = rates.map(|rate| rate.map_or(Value::Nothing, |rate| Value::Number(rate, 4)));
            table.row([vec![name.into()], rates.to_vec()].concat());
        }
        findings.table(table);
        // A visit moves one magazine, so there is at most one visit per `capacity` operations.
        let bound = 1.0 / f64::from(capacity);
        let worst_rate_of = |i: usize| max_rate(&worst_rates[i]);
        findings.claim(Claim {
            says: "with two magazines a CPU has a whole magazine of allocations or of frees between visits to the depot, \
                   whatever it does"
                .into(),
            source: "Bonwick and Adams 2001".into(),
            found: format!(
                "with two magazines, an operation visits the depot at most {:.4} times on average, and the bound 1/{} is {bound:.4}; with one magazine, it visits the depot up to {:.4} times",
                worst_rate_of(2),
                capacity,
                worst_rate_of(1)
            ),
            holds: if worst_rate_of(2) <= bound { Holds::Yes } else { Holds::No },
            measured: false,
        });
        let worst_rates = names.into_iter().zip(worst_rates);
        findings.chart(Chart {
            title: "Visits to what CPUs share, at the worst offset from a magazine's edge".into(),
            x: Axis::linear("objects in a burst"),
            y: Axis::linear("visits an operation"),
            series: worst_rates.map(|(name, points)| Series { name: name.into(), points }).collect(),
            measured: false,
        });
        Ok(findings)
    }
}

fn cache(subsystem: &Subsystem, name: &str, magazines: Magazines) -> anyhow::Result<KmemCache> {
    Ok(KmemCache::builder(name, 64).magazines(magazines).check_frees(false).build_in(subsystem)?)
}

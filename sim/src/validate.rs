//! The command `uslab validate`: compares predictions of the simulated [clock](uslab_engine::clock) with
//! measurements of threads on this machine's CPUs.
//!
//! Threads run the clock's [scripts](uslab_engine::clock::Script) on an ordinary [`ObjectCache`]; each thread
//! is pinned to one CPU. Both the predicted and the measured result include the cost of scripts and queues.
//! To measure this cost, each round also runs the threads without an allocator. The clock adds the cost of scripts and
//! queues as other work between operations. The amount of work is chosen so that a clock with zero prices gives the
//! same result as the threads without an allocator.
//!
//! A run's time is the CPU time of its slowest thread. If a thread loses its CPU to another process, its CPU time does
//! not grow, unless another thread waits for it. Each round runs every workload once, so that other load on the machine
//! affects all measurements alike. The reported result is the median of the rounds.
//!
//! If the profile was measured on the same machine, the workload `pairs` on one CPU is a weak check. The reason is that
//! the profile's price of an operation comes from the scripts `pairs` and `server=16`, minus the time of the scripts
//! alone (see [`calibrate`](crate::calibrate)).

use crate::calibrate::{Prices, median_and_range};
use crate::output::{Progress, table, text};
use crate::race::{Object, ObjectAllocFn, race};
use crate::stress::affinity;
use anyhow::Context;
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use uslab::ObjectCache;
use uslab_engine::Pages;
use uslab_engine::clock::{Profile, Workload, run};
use uslab_engine::models::uslab::{Knobs, Uslab};

/// The object size in bytes.
const SIZE: u32 = size_of::<Object>() as u32;
/// The number of operations of each CPU in a round; small, so that few rounds are interrupted by other processes.
const OPERATIONS: u64 = 20_000;
/// The largest relative error at which a prediction still counts as correct.
const MAX_RELATIVE_ERROR: f64 = 0.3;
/// The largest number of wrongly predicted workloads at which a number of CPUs counts as validated.
const MAX_WRONG_PREDICTIONS: usize = 1;

/// The options of `uslab validate`.
#[derive(Debug)]
pub struct Options {
    /// The prices of the clock. If `None`, the prices are measured in the rounds of the validation.
    pub profile: Option<Profile>,
    /// The number of rounds, at least 1.
    pub rounds: u32,
    /// The seed of the random decisions.
    pub seed: u64,
}

/// The report of `uslab validate`: predictions and measurements.
#[derive(Debug, Serialize)]
pub struct ValidateReport {
    /// The prices, and the number of CPUs for which this run validated them.
    pub profile: Profile,
    /// The object size in bytes.
    pub size: u32,
    /// The number of operations of each CPU in a round.
    pub operations_per_cpu: u64,
    /// The number of rounds.
    pub rounds: u32,
    /// The seed of the random decisions.
    pub seed: u64,
    /// The points of the report, sorted by workload, then by number of CPUs.
    pub points: Vec<Point>,
}

/// The results of a workload on a number of CPUs.
#[derive(Debug, Serialize)]
pub struct Point {
    /// The name of the workload.
    pub workload: String,
    /// The number of CPUs.
    pub cpus: u32,
    /// The measured operations per microsecond, summed over all CPUs: the median of the rounds.
    pub measured: f64,
    /// The range that contains the middle eight tenths of the rounds.
    pub spread: [f64; 2],
    /// The measured operations per microsecond without an allocator, which is the speed of the scripts and
    /// their queues.
    pub script: f64,
    /// The operations per microsecond that the clock predicts.
    pub predicted: f64,
    /// The ratio of `predicted` to `measured`.
    pub ratio: f64,
    /// `true` if prediction and measurement differ by at most 30 %.
    pub within: bool,
}

/// Runs every workload on one CPU and on all CPUs, both on threads and in the simulated clock.
///
/// # Errors
/// Fails if there is too little memory, or if the clock cannot run.
pub fn validate(options: &Options, progress: &Progress) -> anyhow::Result<ValidateReport> {
    let usable = affinity::usable();
    let mut counts = vec![1, usable.len()];
    counts.dedup();
    let workloads = Workload::ALL.map(|(name, _)| name.split_once('=').map_or(name, |(name, _)| name));
    let mut trials = Vec::new();
    for name in workloads {
        for &cpus in &counts {
            let cache = ObjectCache::builder("validate").ctor(Object::default).build()?;
            let workload = name.parse().context("a workload")?;
            trials.push(ValidatedRun { workload, cpus, cache, scripts: vec![], measured: vec![] });
        }
    }
    let mut prices = Prices::default();
    let stage = progress.stage("measuring", options.rounds.into());
    // The first round is not counted, because the system then commits the caches' memory, for which the clock has no
    // price.
    for round in 0..=options.rounds {
        if options.profile.is_none() && round > 0 {
            prices.measure()?;
        }
        for trial in &mut trials {
            trial.measure(&usable, options.seed, round > 0)?;
        }
        stage.at(round.into());
    }
    drop(stage);
    let profile = options.profile.clone().unwrap_or_else(|| prices.profile("here"));
    let stage = progress.stage("simulating", trials.len() as u64);
    let mut points = Vec::with_capacity(trials.len());
    for trial in trials {
        points.push(trial.point(&profile, options.seed)?);
        stage.at(points.len() as u64);
    }
    let validated_cpus = validated_cpu_count(&points, &counts);
    Ok(ValidateReport {
        profile: Profile { validated_cpus, ..profile },
        size: SIZE,
        operations_per_cpu: OPERATIONS,
        rounds: options.rounds,
        seed: options.seed,
        points,
    })
}

/// Returns the largest number of CPUs up to which every number of CPUs is validated.
fn validated_cpu_count(points: &[Point], counts: &[usize]) -> u32 {
    let off = |cpus| points.iter().filter(|point| point.cpus == cpus && !point.within).count();
    let hold = counts.iter().map(|cpus| *cpus as u32).take_while(|cpus| off(*cpus) <= MAX_WRONG_PREDICTIONS);
    hold.last().unwrap_or(0)
}

/// A workload on a number of CPUs, with the measurements of each round.
struct ValidatedRun {
    workload: Workload,
    cpus: usize,
    cache: ObjectCache<Object>,
    /// The operations per microsecond of each round without an allocator.
    scripts: Vec<f64>,
    /// The operations per microsecond of each round with the allocator.
    measured: Vec<f64>,
}

impl ValidatedRun {
    fn measure(&mut self, usable: &[usize], seed: u64, counts: bool) -> anyhow::Result<()> {
        let cpus = &usable[..self.cpus];
        let script = race(&self.workload, cpus, OPERATIONS, seed, black_box(&|| Ok(None)))?;
        let make: ObjectAllocFn<'_, '_> = &|| self.cache.alloc().map(Some);
        let measured = race(&self.workload, cpus, OPERATIONS, seed, black_box(make))?;
        if counts {
            self.scripts.push(script.operations_per_microsecond());
            self.measured.push(measured.operations_per_microsecond());
        }
        Ok(())
    }

    fn point(self, profile: &Profile, seed: u64) -> anyhow::Result<Point> {
        let Self { workload, cpus, scripts, measured, .. } = self;
        let ([_, script, _], [low, measured, high]) = (median_and_range(scripts), median_and_range(measured));
        let pages = Pages::new(cpus as u32)?;
        let predict = |profile: &Profile, think: f64| {
            let workload = workload.clone().thinking(think);
            let outcome = run::<Uslab>(&pages, Knobs::default(), &workload, profile, SIZE, OPERATIONS, seed)?;
            anyhow::Ok(outcome.operations_per_us)
        };
        // The time is nearly proportional to the work between operations, so five steps are enough.
        let free = Profile::free();
        let mut think = cpus as f64 * 1000.0 / script;
        for _ in 0..5 {
            think *= predict(&free, think)? / script;
        }
        let predicted = predict(profile, think)?;
        let ratio = predicted / measured;
        let within = (ratio - 1.0).abs() <= MAX_RELATIVE_ERROR;
        let (workload, cpus, spread) = (workload.to_string(), cpus as u32, [low, high]);
        Ok(Point { workload, cpus, measured, spread, script, predicted, ratio, within })
    }
}

impl fmt::Display for ValidateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, size, operations_per_cpu, rounds, seed, points } = self;
        let name = &profile.name;
        writeln!(
            f,
            "Threads on this machine's CPUs, compared with design uslab-model in virtual time on profile {name}:"
        )?;
        writeln!(
            f,
            "Each CPU runs {operations_per_cpu} operations on objects of {size} bytes in each of {rounds} rounds; seed {seed}."
        )?;
        writeln!(
            f,
            "The cost of scripts and queues is part of both results; `script alone` is measured without an allocator. If it is close to\n\
             `measured`, the queue takes most of the time. All results are in operations/µs.\n"
        )?;
        let mut rows = table(&[
            "workload",
            "CPUs",
            "measured",
            "from",
            "to",
            "script alone",
            "predicted",
            "ratio",
            "verdict",
        ]);
        for point in points {
            let [low, high] = point.spread;
            let off = format!("{:+.0} %", 100.0 * (point.ratio - 1.0));
            rows.add_row([
                point.workload.clone(),
                point.cpus.to_string(),
                format!("{:.1}", point.measured),
                format!("{low:.1}"),
                format!("{high:.1}"),
                format!("{:.1}", point.script),
                format!("{:.1}", point.predicted),
                format!("{:.2}", point.ratio),
                if point.within { "within 30 %".to_owned() } else { off },
            ]);
        }
        writeln!(f, "{}", text(&rows))?;
        let held = points.iter().filter(|point| point.within).count();
        writeln!(f, "{held} of {} predictions are within 30 % of the measurement.", points.len())?;
        match profile.validated_cpus {
            0 => writeln!(f, "The profile is not validated: on one CPU, more than one prediction is wrong."),
            n => writeln!(
                f,
                "The profile is validated up to {n} CPUs: on each number of CPUs, at most one prediction is wrong."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads() -> impl Iterator<Item = Workload> {
        let names = Workload::ALL.map(|(name, _)| name.split_once('=').map_or(name, |(name, _)| name));
        names.into_iter().map(|name| name.parse().unwrap())
    }
    /// If all prices are 0, the clock must give the result of the scripts without an allocator.
    #[test]
    fn zero_price_profile_costs_only_the_scripts() {
        for workload in workloads() {
            for cpus in [1, 2, 4] {
                let cache = ObjectCache::builder("none").ctor(Object::default).build().unwrap();
                let workload = workload.clone();
                let trial = ValidatedRun { workload, cpus, cache, scripts: vec![40.0], measured: vec![30.0] };
                let point = trial.point(&Profile::free(), 1).unwrap();
                assert!((point.predicted - 40.0).abs() < 1.0, "{point:?}");
                assert_eq!(point.within, point.ratio < 1.3, "{point:?}");
            }
        }
    }

    #[test]
    fn profile_is_validated_if_at_most_one_workload_deviates() {
        let point = |cpus, within| Point {
            workload: String::new(),
            cpus,
            measured: 1.0,
            spread: [1.0, 1.0],
            script: 1.0,
            predicted: 1.0,
            ratio: 1.0,
            within,
        };
        let of = |off_on_1: usize, off_on_4: usize| {
            let points: Vec<_> = [(1, off_on_1), (4, off_on_4)]
                .into_iter()
                .flat_map(|(cpus, off)| (0..6).map(move |i| point(cpus, i >= off)))
                .collect();
            validated_cpu_count(&points, &[1, 4])
        };
        assert_eq!([of(0, 0), of(1, 1), of(0, 2), of(2, 0)], [4, 4, 1, 0]);
    }
}

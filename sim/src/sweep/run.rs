//! Runs items, on all CPUs, and writes what came of them.

use super::plan::{Item, Plan, Work};
use super::record::{Outcomes, Record};
use super::store::{Found, Store, cost_line};
use crate::output::Progress;
use crate::replay;
use crate::scale::{self, Point};
use anyhow::Context;
use parking_lot::Mutex;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use uslab_engine::clock::Workload;
use uslab_engine::{Policy, Stream};
use uslab_magazine::sync::{AtomicU64, Ordering::Relaxed};

/// How a run of a share went.
#[derive(Debug, Default, Serialize)]
pub(super) struct Ran {
    /// Items of the share.
    pub(super) items: u64,
    /// Those that had a result before.
    pub(super) there: u64,
    /// Those that have one now.
    pub(super) done: u64,
    /// Those that could not be run, by number.
    pub(super) failed: Vec<(u64, String)>,
    /// Those whose file was no result: they were run again.
    pub(super) damaged: Vec<String>,
    /// Seconds of all runs together.
    pub(super) seconds: f64,
}

/// Why a run of a share ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// What was given cannot be.
    Input(anyhow::Error),
    /// A result could not be written.
    Write(anyhow::Error),
}

/// Runs those items of a range that have no result; `again`: all of them.
///
/// # Errors
/// A trace cannot be read, a result there is of another sweep, or one cannot be written. Results that are there stay.
pub(super) fn run<P: Policy>(
    plan: &Plan,
    store: &Store,
    items: Range<u64>,
    again: bool,
    threads: Option<usize>,
    progress: &Progress,
) -> Result<Ran, Ended> {
    let mut ran = Ran { items: items.end - items.start, ..Ran::default() };
    let mut wanted = vec![];
    for number in items {
        match store.read(number).map_err(Ended::Input)? {
            Found::Done(_) if !again => ran.there += 1,
            Found::Damaged(why) => {
                ran.damaged.push(why);
                wanted.push(number);
            }
            Found::Done(_) | Found::Missing | Found::Failed(_) => wanted.push(number),
        }
    }
    if wanted.is_empty() {
        return Ok(ran);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    let pool = pool.context("threads").map_err(Ended::Write)?;
    let costs = Mutex::new(store.costs().map_err(Ended::Write)?);
    let stage = progress.stage("sweeping", wanted.len() as u64);
    let done = AtomicU64::new(0);
    let (there, stats) = (&done, Mutex::new((0.0, vec![])));
    // One trace after another: of the last one nothing is kept.
    for wanted in wanted.chunk_by(|a, b| trace_of(plan, *a) == trace_of(plan, *b)) {
        let streams = streams(plan, wanted).map_err(Ended::Input)?;
        let one = |number: &u64| -> anyhow::Result<()> {
            let begun = Instant::now();
            let item = plan.item(*number);
            let record = Record::new(plan, item, execute::<P>(plan, item, &streams));
            store.write(&record)?;
            let took = begun.elapsed();
            costs
                .lock()
                .write_all(cost_line(*number, took).as_bytes())
                .with_context(|| format!("item {number}: {}", store.folder().join("costs").display()))?;
            let mut stats = stats.lock();
            stats.0 += took.as_secs_f64();
            if let Outcomes::Failed(why) = record.result {
                stats.1.push((*number, why));
            }
            drop(stats);
            stage.at(there.fetch_add(1, Relaxed) + 1);
            Ok(())
        };
        pool.install(|| wanted.par_iter().try_for_each(one)).map_err(Ended::Write)?;
    }
    (ran.seconds, ran.failed) = stats.into_inner();
    ran.failed.sort();
    ran.done = wanted.len() as u64 - ran.failed.len() as u64;
    Ok(ran)
}

/// The place of the trace that an item needs; `None`: it has a workload.
fn trace_of(plan: &Plan, number: u64) -> Option<usize> {
    match plan.item(number).work {
        Work::Trace { trace } => Some(trace),
        Work::Made { .. } => None,
    }
}

/// The trace of some items, which is read once, on each number of CPUs that they want.
fn streams(plan: &Plan, items: &[u64]) -> anyhow::Result<FxHashMap<Option<u32>, Stream>> {
    let mut streams: FxHashMap<Option<u32>, Stream> = FxHashMap::default();
    for item in items.iter().map(|number| plan.item(*number)) {
        let Work::Trace { trace } = item.work else { continue };
        if streams.contains_key(&item.cpus) {
            continue;
        }
        if let Entry::Vacant(entry) = streams.entry(None) {
            let path = &plan.traces[trace].path;
            entry.insert(replay::read_stream(Some(path), &replay::Options::default(), &Progress::new())?);
        }
        if let Some(cpus) = item.cpus {
            let on = streams[&None].clone().on(cpus)?;
            streams.insert(item.cpus, on);
        }
    }
    Ok(streams)
}

/// Runs one item. A failure, and a panic, are a result.
fn execute<P: Policy>(
    plan: &Plan,
    item: Item,
    streams: &FxHashMap<Option<u32>, Stream>,
) -> Result<uslab_engine::clock::Outcome, String> {
    let run = || -> anyhow::Result<_> {
        let design = plan.settings.text(item.setting).parse::<uslab_engine::designs::Spec<P>>()?;
        let outcome = match item.work {
            Work::Trace { .. } => {
                let stream = streams.get(&item.cpus).context("the trace is not read")?;
                scale::point(&design, Point::Trace(stream), &plan.profile)?
            }
            Work::Made { workload, seed, size, operations, think } => {
                let workload = plan.workloads[workload].parse::<Workload>()?.thinking(think.into());
                let cpus = item.cpus.unwrap_or(1);
                let point = Point::Made { workload: &workload, cpus, size, operations, seed };
                scale::point(&design, point, &plan.profile)?
            }
        };
        Ok(outcome)
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.map_err(|error| format!("{error:#}")),
        Err(_) => Err("the run panicked".to_owned()),
    }
}

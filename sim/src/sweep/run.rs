//! Runs items on all CPUs of this machine, and stores their results.

use super::plan::{Item, Plan, Trace, Work};
use super::record::{ItemOutcome, Record};
use super::store::{Store, StoredResult, format_cost_line};
use crate::interrupt::on_interrupt;
use crate::output::{Progress, grouped};
use crate::replay;
use crate::scale::{self, Point};
use anyhow::Context;
use parking_lot::Mutex;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_engine::clock::Workload;
use uslab_engine::{Policy, Stream};
use uslab_magazine::sync::catch_panic;
use uslab_magazine::sync::{AtomicU64, Ordering::Relaxed};

/// The result of running a shard.
#[derive(Debug, Default, Serialize)]
pub(super) struct ShardResult {
    pub(super) items: u64,
    /// The number of items that already had a result.
    pub(super) there: u64,
    /// The number of items whose result this run computed.
    pub(super) done: u64,
    /// The items that could not be run, each with the reason.
    pub(super) failed: Vec<(u64, String)>,
    /// The items whose result file was damaged; these items were run again.
    pub(super) damaged: Vec<String>,
    /// The run time of all threads together in seconds.
    pub(super) seconds: f64,
    /// The time from the beginning to the end of the shard in seconds.
    pub(super) took: f64,
}

/// Options for running items.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunOptions {
    /// `true` to run even items that already have a result.
    pub(super) rerun: bool,
    /// The number of threads; by default one for each CPU.
    pub(super) threads: Option<usize>,
    /// The time between lines of progress, if standard error is not a terminal.
    pub(super) interval: Option<Duration>,
}

/// The progress lines that the run prints to standard error.
struct Lines {
    interval: Option<Duration>,
    start: Instant,
    last: Mutex<Instant>,
}

impl Lines {
    fn new(interval: Option<Duration>) -> Self {
        let start = Instant::now();
        let interval = interval.filter(|_| !std::io::stderr().is_terminal());
        Self { interval, start, last: Mutex::new(start) }
    }
    /// Reports the number of items that are done.
    fn report(&self, finished: u64, total: u64) {
        let Some(interval) = self.interval else { return };
        let Some(mut last) = self.last.try_lock() else { return };
        if last.elapsed() >= interval {
            *last = Instant::now();
            let _ = writeln!(
                std::io::stderr(),
                "uslab: {}",
                progress_line(finished, total, self.start.elapsed())
            );
        }
    }
}

fn progress_line(finished: u64, total: u64, elapsed: Duration) -> String {
    let remaining = elapsed.as_secs_f64() / finished.max(1) as f64 * (total - finished.min(total)) as f64;
    let [elapsed, remaining] = [elapsed.as_secs_f64(), remaining].map(time);
    format!("{} of {} items run in {elapsed}, about {remaining} left", grouped(finished), grouped(total))
}

/// Formats a time as seconds, or as `1:23`, or as `2:01:23`.
pub(super) fn time(seconds: f64) -> String {
    let whole_seconds = seconds.round() as u64;
    match (whole_seconds / 3600, whole_seconds / 60 % 60, whole_seconds % 60) {
        (0, 0, _) => format!("{seconds:.1} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// The progress of a run, which is printed when the user interrupts the run.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    finished: AtomicU64,
    all: AtomicU64,
}

impl RunProgress {
    /// Makes an interrupt print how many results are stored, and end the process. A result that is being written during
    /// the interrupt is lost.
    ///
    /// # Errors
    /// Fails if the handler cannot be set.
    pub(super) fn on_interrupt() -> anyhow::Result<Arc<Self>> {
        let progress_state = Arc::new(Self::default());
        let handler_state = progress_state.clone();
        let handler = move || {
            // Relaxed: no other data depends on these numbers.
            let [done, all] =
                [&handler_state.finished, &handler_state.all].map(|number| grouped(number.load(Relaxed)));
            let _ = writeln!(
                std::io::stderr(),
                "\nuslab: {done} of {all} missing items have run; the same command continues"
            );
            std::process::exit(130)
        };
        on_interrupt(handler)?;
        Ok(progress_state)
    }
}

/// The reason why a shard's run ended early.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    Input(anyhow::Error),
    /// A result could not be written.
    Write(anyhow::Error),
}

/// Runs the items of a range: either all items, or the items without a result.
///
/// # Errors
/// Fails if an existing result file belongs to another sweep, or if a result cannot be written. Results that were
/// stored before the failure are kept. If a trace cannot be read, all items of this trace fail, and the failure is
/// stored as their result.
pub(super) fn run<P: Policy>(
    plan: &Plan,
    store: &Store,
    items: Range<u64>,
    options: RunOptions,
    progress: &Progress,
    progress_state: &RunProgress,
) -> Result<ShardResult, EarlyEnd> {
    let mut ran = ShardResult { items: items.end - items.start, ..ShardResult::default() };
    let mut wanted_items = vec![];
    for number in items {
        match store.read(&plan.identity(plan.item(number))).map_err(EarlyEnd::Input)? {
            StoredResult::Done(_) if !options.rerun => ran.there += 1,
            StoredResult::Damaged(why) => {
                ran.damaged.push(why);
                wanted_items.push(number);
            }
            StoredResult::Done(_) | StoredResult::Missing | StoredResult::Failed(_) => {
                wanted_items.push(number)
            }
        }
    }
    if wanted_items.is_empty() {
        return Ok(ran);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads.unwrap_or(0)).build();
    let pool = pool.context("threads").map_err(EarlyEnd::Write)?;
    let costs = Mutex::new(store.costs().map_err(EarlyEnd::Write)?);
    let stage = progress.stage("sweeping", wanted_items.len() as u64);
    let (total, lines) = (wanted_items.len() as u64, Lines::new(options.interval));
    progress_state.all.store(total, Relaxed);
    progress_state.finished.store(0, Relaxed);
    let stats = Mutex::new((0.0, vec![]));
    // Traces are read one after another, so that only one is in memory.
    for wanted_items in wanted_items.chunk_by(|a, b| trace_of(plan, *a) == trace_of(plan, *b)) {
        let streams = streams(plan, wanted_items);
        let run_item = |number: &u64| -> anyhow::Result<()> {
            let start = Instant::now();
            let item = plan.item(*number);
            let result = execute::<P>(plan, item, &streams).into();
            let record = Record { of: plan.identity(item), result };
            store.write(&record).with_context(|| format!("item {number}"))?;
            let elapsed = start.elapsed();
            costs
                .lock()
                .write_all(format_cost_line(record.of.key(), elapsed).as_bytes())
                .with_context(|| format!("item {number}: {}", store.folder().join("costs").display()))?;
            let mut stats = stats.lock();
            stats.0 += elapsed.as_secs_f64();
            if let ItemOutcome::Failed(why) = record.result {
                stats.1.push((*number, why));
            }
            drop(stats);
            let finished = progress_state.finished.fetch_add(1, Relaxed) + 1;
            stage.at(finished);
            lines.report(finished, total);
            Ok(())
        };
        pool.install(|| wanted_items.par_iter().try_for_each(run_item)).map_err(EarlyEnd::Write)?;
    }
    (ran.seconds, ran.failed) = stats.into_inner();
    ran.took = lines.start.elapsed().as_secs_f64();
    ran.failed.sort();
    ran.done = wanted_items.len() as u64 - ran.failed.len() as u64;
    Ok(ran)
}

/// Returns the index of an item's trace, or `None` if the item has a generated workload.
fn trace_of(plan: &Plan, number: u64) -> Option<usize> {
    match plan.item(number).work {
        Work::Trace { trace } => Some(trace),
        Work::Made { .. } => None,
    }
}

/// The streams of a trace, one for each number of CPUs, or the error that prevented them.
type StreamsByCpuCount = FxHashMap<Option<u32>, Result<Stream, String>>;

/// Reads the trace of some items once, and makes the streams for their numbers of CPUs.
fn streams(plan: &Plan, items: &[u64]) -> StreamsByCpuCount {
    let mut streams = StreamsByCpuCount::default();
    for item in items.iter().map(|number| plan.item(*number)) {
        let Work::Trace { trace } = item.work else { continue };
        if streams.contains_key(&item.cpus) {
            continue;
        }
        let own_stream = streams.entry(None).or_insert_with(|| read(&plan.traces[trace]));
        if let Some(cpus) = item.cpus {
            let mapped_stream = own_stream
                .clone()
                .and_then(|own_stream| own_stream.with_cpus(cpus).map_err(|error| error.to_string()));
            streams.insert(item.cpus, mapped_stream);
        }
    }
    streams
}

/// Reads a trace as a stream of operations.
///
/// # Errors
/// Fails if the file is not a trace, or cannot be read.
pub(super) fn read(trace: &Trace) -> Result<Stream, String> {
    replay::read_stream(Some(&trace.path), &replay::Options::default(), &Progress::new())
        .map_err(|error| format!("{error:#}"))
}

/// Runs one item. If the run fails or panics, the failure becomes the item's result.
fn execute<P: Policy>(
    plan: &Plan,
    item: Item,
    streams: &StreamsByCpuCount,
) -> Result<uslab_engine::clock::Outcome, String> {
    let run = || -> anyhow::Result<_> {
        let design = plan.settings.text(item.setting).parse::<uslab_engine::designs::Spec<P>>()?;
        let outcome = match item.work {
            Work::Trace { .. } => {
                let stream = streams.get(&item.cpus).context("the trace must be read before")?;
                let stream = stream.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
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
    match catch_panic(run) {
        Ok(outcome) => outcome.map_err(|error| format!("{error:#}")),
        Err(_) => Err("the run panicked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_the_remaining_time() {
        let line = |done, all, seconds| progress_line(done, all, Duration::from_secs(seconds));
        assert_eq!(line(500, 2000, 20), "500 of 2,000 items run in 20.0 s, about 1:00 left");
        assert_eq!(line(1, 24_000, 1), "1 of 24,000 items run in 1.0 s, about 6:39:59 left");
        assert_eq!(line(3, 3, 83), "3 of 3 items run in 1:23, about 0.0 s left");
    }
}

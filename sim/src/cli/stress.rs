//! The options of `uslab stress`.

use crate::interrupt::on_interrupt;
use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, json_text, say, tell, write_all};
use crate::stress::{self, FaultSpec, Workload};
use anyhow::bail;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uslab_magazine::sync::{AtomicBool, Ordering::Relaxed};
use uslab_sync::shard::Shard;

/// Load the allocator from threads on this machine's CPUs, and verify every object.
///
/// Each object carries a stamp of the thread that owns it. The stamp is checked when the object is allocated,
/// while a thread holds it, and when it is freed. A census runs eight times: it compares the objects that
/// threads hold with the caches' counts of objects in use, and with a walk of all slabs and pages. At the end
/// the command frees everything; any memory that remains in use is a violation. The report of a violation has
/// the cache, the object, the object's history in the threads' logs, and the last operations of the threads
/// involved; the exit code is then 1. Ctrl-C ends the run early, but a final census still runs. With
/// USLAB_RSEQ=off in the environment, the run tests the slower path, in which a thread claims a CPU's slot
/// instead of using restartable sequences.
#[derive(Debug, clap::Args)]
#[command(after_help = stress_help())]
pub(super) struct Args {
    /// Duration in seconds. Default: 10, unless --ops is given; with both, the run ends at the first limit.
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Number of operations of all threads together: allocations, frees, refused allocations, and other
    /// calls.
    #[arg(long, value_name = "N")]
    ops: Option<u64>,
    /// Number of threads that run at the same time. Default: four for each CPU.
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Seed of the threads' decisions; printed in the report. Default: a different seed each time.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Faults to inject: rules that refuse allocations, described below.
    #[arg(long, value_name = "RULES")]
    faults: Option<FaultSpec>,
    /// Workloads of the threads, separated by commas. Default: all.
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Leak one object on purpose, to test that the checks find the leak. The first object freed to this
    /// cache (raw-64, for example) is leaked, and a census follows immediately.
    #[arg(long, value_name = "CACHE")]
    leak: Option<String>,
    /// After a violation, write a web page that steps through the last operations of all threads and highlights
    /// operations on the object: FILE, or `-` for standard output. The page is one file for any browser and needs no
    /// network. Without a violation no page is written.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of runs with consecutive seeds, starting at --seed; --seconds and --ops apply to each run. The
    /// output has one line for each run.
    #[arg(long, value_name = "N", requires = "seed", conflicts_with_all = ["html", "leak"])]
    runs: Option<NonZeroU64>,
    /// Run only shard I of N of the runs (I counts from 0), and write the rows of the shard to a file.
    /// Default: the shard that the batch system assigns (SLURM_ARRAY_TASK_ID with _COUNT, _MIN and _STEP, or
    /// JOB_COMPLETION_INDEX with JOB_COMPLETIONS); outside a batch system, all runs.
    #[arg(long, value_name = "I/N", requires = "runs")]
    shard: Option<Shard>,
    /// File for the shard's rows; the command writes all rows or no file. Default: stress.I-of-N.rows.
    #[arg(long, value_name = "FILE", requires = "runs")]
    rows: Option<PathBuf>,
    /// Merge the rows of all shards from these files, without running the stress test.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["runs", "shard", "rows", "seed", "ops", "seconds", "workload", "html"])]
    merge: Vec<PathBuf>,
}

fn stress_help() -> String {
    let points = uslab::faults::POINTS.map(|point| format!("  {:12} {}", point.name, point.what)).join("\n");
    format!(
        "\
Faults: rules POINT:attribute=value,... separated by semicolons; POINT is `any` or one of
{points}
with Linux's fault attributes, all optional:
  probability=N  percentage of the calls that are refused (100)
  interval=N     only every N-th call may be refused (1)
  times=N        at most N calls are refused, -1: without end (-1; with nth: 1)
  space=BYTES    the first calls, for BYTES in total, are granted (0)
  nth=N          only the N-th call and later ones are refused (1)
  order=N..M     only blocks of pages of these orders; also N, N.. and ..M
  cache=NAME     only at this cache: bitmap and points above it
Allocations from magazines reach no fault point.

Examples:
  uslab stress --seconds 60 --workload churn,exchange,reap
  uslab stress --ops 10000000 --threads 64 --seed 7
  uslab stress --leak raw-64 --html violation.html
  uslab stress --seed 1 --runs 1000 --ops 10000000 --shard 3/200
  uslab stress --merge stress.*-of-200.rows
  uslab stress --faults 'slab:probability=5,cache=raw-64;page:order=1..,probability=10;commit:nth=7'"
    )
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    if !args.merge.is_empty() {
        return report_runs(&stress::Runs::merge(&args.merge)?, json);
    }
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::check_distinct([&json, &html])?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let interrupt = move || {
        // A second Ctrl-C ends the program without the census.
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
    };
    if let Some(name) = &args.leak
        && !stress::caches().any(|cache| cache == name)
    {
        let caches: Vec<_> = stress::caches().collect();
        bail!("--leak {name}: no such cache; expected one of {}", caches.join(", "));
    }
    let leaked = Arc::new(AtomicBool::new(false));
    on_interrupt(interrupt)?;
    let options = stress::Options {
        seconds: args.seconds,
        operations: args.ops,
        threads: args.threads,
        seed: args.seed.unwrap_or_else(clock_seed),
        faults: args.faults.clone(),
        workloads: args.workload.clone(),
        interrupted,
        saboteur: args.leak.clone().map(|name| object_leaking_callback(name, leaked.clone())),
    };
    if let Some(runs) = args.runs {
        return run_stresses(args, runs, &options, json);
    }
    let progress = Progress::new();
    let report = stress::run(&options, &progress)?;
    drop(progress);
    if let Some(name) = &args.leak
        && !leaked.load(Relaxed)
    {
        bail!(
            "--leak {name}: no object was freed to this cache, so no object was leaked; run longer, or add workloads"
        );
    }
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let mut text = report.page();
    let html = match (html, &report.story) {
        (Some(place), Some(story)) => Some((place, story.page(None)?)),
        (Some(place), None) => {
            text += &format!("{}: page not written, because the run found no violation\n", place.shown());
            None
        }
        (None, _) => None,
    };
    let json = json.map(|place| json_text(&report).map(|text| (place, text))).transpose()?;
    write_all(json.into_iter().chain(html))?;
    if !to_stdout {
        say(&text)?;
    }
    Ok(if report.violated() { Outcome::Violated } else { Outcome::Done })
}

/// Runs a series of stress runs, or one shard of the series.
fn run_stresses(
    args: &Args,
    of: NonZeroU64,
    options: &stress::Options,
    json: Option<Place>,
) -> anyhow::Result<Outcome> {
    let asked = Shard::requested(args.shard).map_err(anyhow::Error::msg)?;
    let shard = asked.or(args.rows.is_some().then_some(Shard::WHOLE_SHARD));
    let runs = stress::Runs::run(options, of.get(), shard.unwrap_or(Shard::WHOLE_SHARD), &Progress::new())?;
    let rows = shard.map(|shard| runs.leave(options, shard, args.rows.as_deref())).transpose()?;
    let outcome = report_runs(&runs, json)?;
    if let Some(rows) = rows {
        eprintln!("uslab: {}", rows.display());
    }
    Ok(outcome)
}

fn report_runs(runs: &stress::Runs, json: Option<Place>) -> anyhow::Result<Outcome> {
    tell(runs, &runs.page(), json)?;
    Ok(if runs.violated() { Outcome::Violated } else { Outcome::Done })
}

/// Returns a callback that leaks one object of the named cache, and sets `leaked` when it has.
fn object_leaking_callback(name: String, leaked: Arc<AtomicBool>) -> stress::FreedObjectHook {
    Arc::new(move |cache, freed| {
        if cache.name() != name || leaked.swap(true, Relaxed) {
            return false;
        }
        // The allocation must return the object that was just freed, because a thread's log remembers that object;
        // otherwise the next free is tried.
        let block = cache.alloc_block(uslab::Gfp::KERNEL).ok().filter(|block| block.address() == freed);
        leaked.store(block.is_some(), Relaxed);
        block.map(std::mem::forget).is_some()
    })
}

/// Returns a seed from the system's clock.
fn clock_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos().into())
}

//! The verbs, and what they say.

use super::engines::{self, CONTAINER, Kubernetes, Slurm, quoted};
use super::merge::{self, Collected, Report, collect};
use super::page;
use super::plan::Plan;
use super::record::Metric;
use super::run::{self, Ended, Ran};
use super::shard::Shard;
use super::spec;
use super::store::{Cost, Store};
use super::tune::{self, Steps};
use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, grouped, json_text, table, text, write_all};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Write;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;
use uslab_engine::Policy;

/// Items that are named where some are missing.
const NAMED: usize = 20;

/// Run many points of `uslab scale`: traces or workloads, designs, knobs, CPUs and seeds, on one machine or on many.
///
/// FILE says what the sweep is of. Alone, the verb says how many items that is. Each item is a number. Its result is a function of the
/// number and of the sweep's hash, which covers the file, the traces and the simulator's version. So shares can run anywhere, at any time
/// and again: `sweep run` in an array of Slurm or an Indexed Job of Kubernetes takes its share from the engine's variables.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, arg_required_else_help = true, after_help = FILE_HELP)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    of: Option<Of>,
}

const FILE_HELP: &str = "\
A sweep's file is TOML. Its keys are the options of `uslab scale`:

  trace = [\"a.txt.zst\", \"b.ops\"]     # and, or in their place, workloads
  workload = [\"bursts\", \"server=1000\"]
  design = [\"slub\", \"uslab-model\"]
  cpus = { from = 1, to = 64, factor = 2 }   # left out: each trace has its own
  seed = { from = 1, to = 20 }             # of workloads; a trace has no chance
  size = 64
  ops = 20000
  think = 0
  profile = \"vm2\"
  [knobs.uslab-model]
  capacity = [8, 16, 32, 64]
  depot_limit = { from = 10, to = 1000, factor = 3.16 }
  [sample]        # a Latin hypercube of each design's knobs, in the place of all their combinations
  points = 32

A number is an axis of one value; a list, { from, to, step } and { from, to, factor } have several. Traces lie in the file's folder.

Examples:
  uslab sweep depot.toml
  uslab sweep run depot.toml
  uslab sweep run depot.toml --shard 3/200
  uslab sweep run depot.toml --item 17
  uslab sweep status depot.toml
  uslab sweep merge depot.toml --csv depot.csv --parquet depot.parquet --html depot.html
  uslab sweep slurm depot.toml --shards 200 > depot.sbatch
  uslab sweep k8s depot.toml --shards 200 --image registry/uslab-sweep --claim shared > job.json
  uslab sweep container > Containerfile";

#[derive(Debug, Subcommand)]
enum Verb {
    Run(RunArgs),
    Status(StatusArgs),
    Merge(MergeArgs),
    Slurm(SlurmArgs),
    K8s(KubernetesArgs),
    /// Write a container's file: the command as one static program, built in the repository's root.
    Container,
}

/// The sweep, and where its files are.
#[derive(Debug, Args)]
struct Of {
    /// What the sweep is of: see `uslab sweep --help`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder of the traces. Default: the file's.
    #[arg(long, value_name = "FOLDER")]
    inputs: Option<PathBuf>,
    /// The folder of the results. Default: FILE with the ending `.results`.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
}

impl Of {
    fn plan<P: Policy>(&self) -> anyhow::Result<(Plan, Store)> {
        let plan = spec::read::<P>(&self.file, self.inputs.as_deref())?;
        let store = Store::new(&plan, self.results.as_deref());
        Ok((plan, store))
    }
    /// A verb on the same files, as a user types it.
    fn command(&self, verb: &str) -> String {
        let mut command = format!("uslab sweep {verb} {}", quoted(&self.file.to_string_lossy()));
        for (option, path) in [("--inputs", &self.inputs), ("--results", &self.results)] {
            if let Some(path) = path {
                command += &format!(" {option} {}", quoted(&path.to_string_lossy()));
            }
        }
        command
    }
}

/// Run the items that have no result: all, a share, or one.
///
/// The share is what --shard says; left out, what the engine says that runs this: SLURM_ARRAY_TASK_ID with _COUNT, _MIN and _STEP, or
/// JOB_COMPLETION_INDEX with JOB_COMPLETIONS or --shards; else it is all. Results appear under their names when they are whole. Run it
/// again after whatever stopped it: what is there is not run again.
#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    of: Of,
    /// Share I of N, counted from 0.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["item", "shards"])]
    shard: Option<Shard>,
    /// How many shares there are, where an engine says which one this is.
    #[arg(long, value_name = "N", conflicts_with = "item")]
    shards: Option<NonZeroU64>,
    /// One item, whether it has a result or not.
    #[arg(long, value_name = "N")]
    item: Option<u64>,
    /// The sweep's hash. With another one nothing runs: a file or a trace has been changed.
    #[arg(long, value_name = "HEX")]
    hash: Option<String>,
    /// Threads. Default: one a CPU.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Say what is done, missing, failed or damaged, and what items took.
///
/// Exit code 1 unless every item has a result.
#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    of: Of,
}

/// Make one of all results: the best settings, what each axis explains, CSV, Parquet, a page.
///
/// Items without a result are named with the command that runs them. Then nothing is written, and the exit code is 1.
#[derive(Debug, Args)]
struct MergeArgs {
    #[command(flatten)]
    of: Of,
    /// What settings are judged by: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    by: Metric,
    /// Merge what is there, though it is not all.
    #[arg(long)]
    partial: bool,
    /// Write a row an item as CSV: FILE, or `-` for standard output.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the same as Parquet.
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Write a page with tables and pictures: one file, which fetches nothing.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Write a script for `sbatch`: an array of shares, each of which can be requeued.
#[derive(Debug, Args)]
struct SlurmArgs {
    #[command(flatten)]
    of: Of,
    /// Tasks of the array.
    #[arg(long, value_name = "N", default_value = "100")]
    shards: NonZeroU64,
    /// CPUs of a task.
    #[arg(long, value_name = "N", default_value = "1")]
    cpus: NonZeroU32,
    /// The longest a task may take, as sbatch has it: 01:00:00.
    #[arg(long, value_name = "TIME", value_parser = word)]
    time: Option<String>,
    /// Memory of a task, as sbatch has it: 2G.
    #[arg(long, value_name = "SIZE", value_parser = word)]
    memory: Option<String>,
    /// The partition.
    #[arg(long, value_name = "NAME", value_parser = word)]
    partition: Option<String>,
    /// The command on the nodes. Default: this one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Write an Indexed Job for `kubectl apply --filename`, as JSON.
///
/// The claim's volume is mounted at /sweep. FILE is expected at its top, and results go into its folder `results`. Traces lie there as they
/// lie beside FILE; or, as an object store's folder would, on a volume of their own that is mounted read-only. Results need a volume
/// that can rename files, which most mounts of object stores cannot.
#[derive(Debug, Args)]
struct KubernetesArgs {
    #[command(flatten)]
    of: Of,
    /// Completions of the Job.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    shards: u64,
    /// Pods at once.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    parallelism: u64,
    /// The container's image, built from what `uslab sweep container` writes.
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// The PersistentVolumeClaim of the volume with FILE, to which results are written.
    #[arg(long, value_name = "NAME")]
    claim: String,
    /// That of the volume with the traces.
    #[arg(long, value_name = "NAME")]
    inputs_claim: Option<String>,
    /// CPUs of a pod.
    #[arg(long, value_name = "N", default_value = "1")]
    cpus: NonZeroU32,
    /// Memory of a pod.
    #[arg(long, value_name = "SIZE", default_value = "1Gi")]
    memory: String,
}

/// Find the best setting of a sweep's file with fewer runs: by rounds, of which each drops settings and adds seeds and traces.
///
/// Successive halving. The first round has all settings on few traces and seeds, the last one the best few on all of them. Each
/// round is a sweep's file of its own in the folder FILE with the ending `.tune`, so an engine can run it as an array. What an engine has
/// run is not run again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab tune depot.toml
  uslab tune depot.toml --by slabs --step
  while uslab tune depot.toml --no-run --json tune.json; [ \"$(jq .winner tune.json)\" = null ]; do
      uslab sweep slurm \"$(jq -r '.next[0]' tune.json)\" > round.sbatch && sbatch --wait round.sbatch
  done")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    of: Of,
    /// What settings are judged by: operations_per_us, ns, waiting, lines_per_operation or slabs.
    #[arg(long, value_name = "METRIC", default_value = "operations_per_us")]
    by: Metric,
    /// One setting in so many goes on to the next round.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=100))]
    factor: u64,
    /// Run one round, write the next one's file, and stop.
    #[arg(long)]
    step: bool,
    /// Run nothing: judge what is there, write the next round's file, and stop.
    #[arg(long, conflicts_with = "step")]
    no_run: bool,
    /// Threads. Default: one a CPU.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// A word of a script's line.
fn word(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and . _ - : ,".to_owned()),
    }
}

pub(crate) fn sweep<P: Policy>(args: &SweepArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    match (&args.verb, &args.of) {
        (Some(Verb::Run(args)), _) => run_items::<P>(args, json),
        (Some(Verb::Status(args)), _) => status::<P>(&args.of, json),
        (Some(Verb::Merge(args)), _) => merge::<P>(args, json),
        (Some(Verb::Slurm(args)), _) => slurm::<P>(args, json),
        (Some(Verb::K8s(args)), _) => kubernetes::<P>(args, json),
        (Some(Verb::Container), _) => no_json("container", json.as_ref()).and_then(|()| say(CONTAINER)),
        (None, Some(of)) => expansion::<P>(of, json),
        (None, None) => bail!("expected a sweep's file, or a verb"),
    }
}

pub(crate) fn tune<P: Policy>(args: &TuneArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let (plan, _) = args.of.plan::<P>()?;
    tune::check(&plan)?;
    let options = tune::Options {
        metric: args.by,
        factor: args.factor,
        steps: match (args.step, args.no_run) {
            (true, _) => Steps::One,
            (_, true) => Steps::None,
            _ => Steps::All,
        },
        threads: args.threads.map(NonZeroUsize::get),
        inputs: args.of.inputs.as_deref(),
        results: args.of.results.as_deref(),
    };
    match tune::tune::<P>(&plan, &options, &Progress::new()) {
        Ok(report) => told(&report, &report.to_string(), json),
        Err(ended) => failed(ended),
    }
}

fn say(text: &str) -> anyhow::Result<Outcome> {
    std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")?;
    Ok(Outcome::Done)
}

/// As text on standard output, or as JSON.
fn told(report: &impl Serialize, text: &str, json: Option<Place>) -> anyhow::Result<Outcome> {
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    if let Some(json) = json {
        json.json(report)?;
    }
    if to_stdout { Ok(Outcome::Done) } else { say(text) }
}

fn no_json(verb: &str, json: Option<&Place>) -> anyhow::Result<()> {
    match json {
        Some(_) => bail!("--json: `sweep {verb}` has one form; expected `> FILE`"),
        None => Ok(()),
    }
}

fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "uslab: {line}");
}

/// Bad input is exit code 2, a failure 1.
fn failed(ended: Ended) -> anyhow::Result<Outcome> {
    match ended {
        Ended::Input(error) => Err(error),
        Ended::Write(error) => {
            complain(&format!("{error:#}"));
            Ok(Outcome::Violated)
        }
    }
}

/// What a file expands to.
#[derive(Serialize)]
struct Expansion<'a> {
    sweep: &'a str,
    items: u64,
    traces: usize,
    workloads: usize,
    settings: u64,
    cpus: usize,
    seeds: usize,
    results: String,
    first: String,
    last: String,
}

fn expansion<P: Policy>(of: &Of, json: Option<Place>) -> anyhow::Result<Outcome> {
    let (plan, store) = of.plan::<P>()?;
    let named = |number: u64| {
        let item = plan.item(number);
        let cpus = item.cpus.map_or_else(|| "its own".to_owned(), |cpus| cpus.to_string());
        format!("{}, {}, CPUs: {cpus}", plan.work_name(item.work), plan.settings.text(item.setting))
    };
    let report = Expansion {
        sweep: &plan.hash,
        items: plan.len(),
        traces: plan.traces.len(),
        workloads: plan.workloads.len(),
        settings: plan.settings.count(),
        cpus: plan.cpus.len().max(1),
        seeds: plan.seeds.len(),
        results: store.folder().display().to_string(),
        first: named(0),
        last: named(plan.len() - 1),
    };
    let mut said =
        format!("{}: {} items, sweep {}.\n\n", of.file.display(), grouped(plan.len()), plan.short_hash());
    let mut rows = table(&["axis", "values"]);
    let Plan { traces, workloads, cpus, seeds, sizes, operations, thinks, .. } = &plan;
    let lengths =
        [("settings", plan.settings.count() as usize), ("traces", traces.len()), ("CPUs", cpus.len())];
    let made = [
        ("workloads", workloads.len()),
        ("seeds", seeds.len()),
        ("sizes", sizes.len()),
        ("operations", operations.len()),
        ("think times", thinks.len()),
    ];
    for (name, length) in lengths.into_iter().chain(made.into_iter().filter(|_| !workloads.is_empty())) {
        if length > 0 {
            rows.add_row([name.to_owned(), grouped(length as u64)]);
        }
    }
    said += &text(&rows);
    said += "\nSettings:\n";
    for (design, knobs, count) in plan.settings.designs() {
        let knobs = knobs.iter().map(|knob| format!(", {}: {} values", knob.key, knob.values.len()));
        said += &format!("  {design}: {}{}\n", grouped(count), knobs.collect::<String>());
    }
    said += &format!(
        "\nItem 0 is {}; the last one is {}.\nResults go to {}. `{}` runs them.\n",
        report.first,
        report.last,
        report.results,
        of.command("run")
    );
    told(&report, &said, json)
}

fn run_items<P: Policy>(args: &RunArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let shard = match (args.shard, args.item) {
        (Some(shard), _) => shard,
        (None, Some(_)) => Shard::WHOLE,
        (None, None) => Shard::of_engine(|name| std::env::var(name).ok(), args.shards.map(NonZeroU64::get))?
            .unwrap_or(Shard::WHOLE),
    };
    let (plan, store) = args.of.plan::<P>()?;
    if let Some(hash) = &args.hash
        && *hash != plan.hash
    {
        bail!("--hash {hash}: {} with its traces is sweep {}", args.of.file.display(), plan.hash);
    }
    let items = match args.item {
        Some(item) if item >= plan.len() => {
            bail!("--item {item}: expected 0 to {}, the items of {}", plan.len() - 1, args.of.file.display());
        }
        Some(item) => item..item + 1,
        None => shard.items(plan.len()),
    };
    let threads = args.threads.map(NonZeroUsize::get);
    match run::run::<P>(&plan, &store, items, args.item.is_some(), threads, &Progress::new()) {
        Ok(ran) => {
            ran.damaged.iter().for_each(|why| complain(&format!("{why}; it was run again")));
            for (item, why) in &ran.failed {
                complain(&format!(
                    "item {item}: {why}; `{} --item {item}` runs it again",
                    args.of.command("run")
                ));
            }
            let outcome = if ran.failed.is_empty() { Outcome::Done } else { Outcome::Violated };
            told(&ran, &ran_text(&ran, shard), json).map(|_| outcome)
        }
        Err(ended) => failed(ended),
    }
}

fn ran_text(ran: &Ran, shard: Shard) -> String {
    let [items, there, done, failed] = [ran.items, ran.there, ran.done, ran.failed.len() as u64].map(grouped);
    let share = if shard == Shard::WHOLE { String::new() } else { format!("share {shard}: ") };
    let seconds = Duration::from_secs_f64(ran.seconds).as_secs_f32();
    format!(
        "{share}{items} items: {done} run in {seconds:.1} s of all threads, {there} were there, {failed} failed\n"
    )
}

/// What there is of a sweep.
#[derive(Serialize)]
struct Status<'a> {
    sweep: &'a str,
    results: String,
    items: u64,
    done: u64,
    missing: u64,
    failed: u64,
    damaged: u64,
    cost: Cost,
    /// Of a run.
    mean_seconds: f64,
    /// CPU time that the missing items would take.
    left_seconds: f64,
}

fn status<P: Policy>(of: &Of, json: Option<Place>) -> anyhow::Result<Outcome> {
    let (plan, store) = of.plan::<P>()?;
    let all = collect(&plan, &store, &Progress::new())?;
    let cost = store.cost()?;
    let Collected { records, missing, failed, damaged } = &all;
    let lengths = [records.len(), missing.len(), failed.len(), damaged.len()].map(|n| n as u64);
    let [done, missing, failed, damaged] = lengths;
    let left = cost.mean() * (missing + failed + damaged) as f64;
    let status = Status {
        sweep: &plan.hash,
        results: store.folder().display().to_string(),
        items: plan.len(),
        done,
        missing,
        failed,
        damaged,
        cost,
        mean_seconds: cost.mean(),
        left_seconds: left,
    };
    let [items, done, missing, failed, damaged] = [plan.len(), done, missing, failed, damaged].map(grouped);
    let mut said = format!(
        "{}: {done} of {items} items done, {missing} missing, {failed} failed, {damaged} damaged (sweep {}).\n",
        of.file.display(),
        plan.short_hash()
    );
    if cost.runs > 0 {
        said += &format!(
            "{} runs took {:.1} s of CPUs: {:.3} s each, {:.3} s the dearest, item {}.\n",
            grouped(cost.runs),
            cost.seconds,
            cost.mean(),
            cost.dearest_seconds,
            cost.dearest
        );
        // No machine is faster than its dearest item.
        let on = |cpus: f64, seconds: f64| (seconds / cpus).max(cost.dearest_seconds);
        if all.is_whole() {
            said += &format!(
                "On 1,000 CPUs all of it would take {:.1} s.\n",
                on(1000.0, cost.mean() * plan.len() as f64)
            );
        } else {
            said += &format!(
                "What is left would take {left:.1} s of one CPU, {:.1} s on 1,000.\n",
                on(1000.0, left)
            );
        }
    }
    told(&status, &said, json)?;
    all.complaints(&of.command("run"), NAMED).iter().for_each(|line| complain(line));
    Ok(if all.is_whole() { Outcome::Done } else { Outcome::Violated })
}

fn merge<P: Policy>(args: &MergeArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let open = |form, path: &Option<PathBuf>| path.as_deref().map(|path| Place::open(form, path)).transpose();
    let csv = open(Form::Rows, &args.csv)?;
    let (parquet, html) = (open(Form::Parquet, &args.parquet)?, open(Form::Html, &args.html)?);
    Place::apart([&json, &csv, &parquet, &html])?;
    let (plan, store) = args.of.plan::<P>()?;
    let progress = Progress::new();
    let all = collect(&plan, &store, &progress)?;
    drop(progress);
    all.complaints(&args.of.command("run"), NAMED).iter().for_each(|line| complain(line));
    let outcome = if all.is_whole() { Outcome::Done } else { Outcome::Violated };
    if !(all.is_whole() || args.partial) || all.records.is_empty() {
        return Ok(Outcome::Violated);
    }
    let report = Report::new(&plan, &all, args.by);
    let to_stdout = [&json, &csv, &parquet, &html].into_iter().flatten().any(Place::is_stdout);
    let title = plan.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let json = json.map(|place| json_text(&report).map(|text| (place, text.into_bytes()))).transpose()?;
    let csv = csv.map(|place| merge::csv(&all.records).map(|rows| (place, rows))).transpose()?;
    let parquet = parquet.map(|place| merge::parquet(&all.records).map(|rows| (place, rows))).transpose()?;
    let html =
        html.map(|place| page::page(&report, &title).map(|page| (place, page.into_bytes()))).transpose()?;
    if let Err(error) = write_all(json.into_iter().chain(csv).chain(parquet).chain(html)) {
        return failed(Ended::Write(error));
    }
    if !to_stdout {
        say(&report.to_string())?;
    }
    Ok(outcome)
}

fn slurm<P: Policy>(args: &SlurmArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    no_json("slurm", json.as_ref())?;
    let (plan, _) = args.of.plan::<P>()?;
    let this = std::env::current_exe().context("the name of this program")?;
    let beside = plan.path.with_extension("results");
    say(&engines::slurm(
        &plan,
        &Slurm {
            shards: args.shards.get(),
            cpus: args.cpus.get(),
            time: args.time.as_deref(),
            memory: args.memory.as_deref(),
            partition: args.partition.as_deref(),
            inputs: args.of.inputs.as_deref(),
            results: args.of.results.as_deref().unwrap_or(&beside),
            program: args.program.as_deref().unwrap_or(&this),
        },
    ))
}

fn kubernetes<P: Policy>(args: &KubernetesArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    no_json("k8s", json.as_ref())?;
    let (plan, _) = args.of.plan::<P>()?;
    let job = engines::kubernetes(
        &plan,
        &Kubernetes {
            shards: args.shards,
            parallelism: args.parallelism,
            image: &args.image,
            claim: &args.claim,
            inputs_claim: args.inputs_claim.as_deref(),
            cpus: args.cpus.get(),
            memory: &args.memory,
        },
    );
    say(&json_text(&job)?)
}

//! Runs the sweep commands, and prints their results.

use super::args::{KubernetesArgs, MergeArgs, RunArgs, SlurmArgs, SweepArgs, SweepFiles, TuneArgs, Verb};
use super::engines::{self, CONTAINER_FILE, Kubernetes, Slurm};
use super::merge::{self, CollectedResults, Report, collect, failures, format_item_count};
use super::page;
use super::plan::{Plan, Sample};
use super::run::{self, EarlyEnd, RunOptions, RunProgress, ShardResult};
use super::store::Cost;
use super::tune::{self, Steps};
use crate::output::command::Outcome;
use crate::output::{Form, Place, Progress, grouped, json_text, say, tell, write_all};
use anyhow::{Context, bail};
use serde::Serialize;
use std::io::Write;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use uslab_engine::Policy;
use uslab_sync::shard::Shard;

/// The largest number of values of an axis that the output shows.
const MAX_SHOWN_VALUES: usize = 8;

pub(crate) fn sweep<P: Policy>(args: &SweepArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    match (&args.verb, &args.of) {
        (Some(Verb::Run(args)), _) => run_sweep_items::<P>(args, json),
        (Some(Verb::Status(args)), _) => status::<P>(&args.of, json),
        (Some(Verb::Merge(args)), _) => merge::<P>(args, json),
        (Some(Verb::Slurm(args)), _) => slurm::<P>(args, json),
        (Some(Verb::K8s(args)), _) => kubernetes::<P>(args, json),
        (Some(Verb::Container), _) => reject_json_option("container", json.as_ref())
            .and_then(|()| say(CONTAINER_FILE))
            .map(|()| Outcome::Done),
        (None, Some(files)) => print_sweep_expansion::<P>(files, json),
        (None, None) => bail!("expected a sweep's file, or a subcommand"),
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
        run_options: RunOptions {
            rerun: false,
            threads: args.threads.map(NonZeroUsize::get),
            interval: args.progress.retry_interval(),
        },
        inputs: args.of.inputs.as_deref(),
        results: args.of.results.as_deref(),
    };
    match tune::tune::<P>(&plan, &options, &Progress::new(), &*RunProgress::on_interrupt()?) {
        Ok(report) => tell(&report, &report.to_string(), json).map(|()| Outcome::Done),
        Err(ended) => failed(ended),
    }
}

fn reject_json_option(verb: &str, json: Option<&Place>) -> anyhow::Result<()> {
    match json {
        Some(_) => bail!("--json: `sweep {verb}` writes its output in one form only; expected `> FILE`"),
        None => Ok(()),
    }
}

fn print_warning(line: &str) {
    let _ = writeln!(std::io::stderr(), "uslab: {line}");
}

/// Returns the command's result for a run that ended early: exit code 2 for invalid input, 1 for a failure.
fn failed(ended: EarlyEnd) -> anyhow::Result<Outcome> {
    match ended {
        EarlyEnd::Input(error) => Err(error),
        EarlyEnd::Write(error) => {
            print_warning(&format!("{error:#}"));
            Ok(Outcome::Violated)
        }
    }
}

/// The number of items that a sweep's file describes, and the lengths of its lists.
#[derive(Serialize)]
struct SweepExpansion<'a> {
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

fn print_sweep_expansion<P: Policy>(files: &SweepFiles, json: Option<Place>) -> anyhow::Result<Outcome> {
    let (plan, store) = files.plan::<P>()?;
    let item_text = |number: u64| {
        let item = plan.item(number);
        let cpus = item.cpus.map_or_else(|| "its own".to_owned(), |cpus| cpus.to_string());
        format!("{}, {}, CPUs: {cpus}", plan.workload_name(item.work), plan.settings.text(item.setting))
    };
    let report = SweepExpansion {
        sweep: &plan.hash,
        items: plan.len(),
        traces: plan.traces.len(),
        workloads: plan.workloads.len(),
        settings: plan.settings.count(),
        cpus: plan.cpus.len().max(1),
        seeds: plan.seeds.len(),
        results: store.folder().display().to_string(),
        first: item_text(0),
        last: item_text(plan.len() - 1),
    };
    let mut text = format!(
        "{}: {}, sweep {}.\n\n",
        files.file.display(),
        format_item_count(plan.len()),
        plan.short_hash()
    );
    let Plan { traces, workloads, cpus, seeds, sizes, operations, thinks, .. } = &plan;
    let list = |values: &[String], unit: &str| match values {
        [first, .., last] if values.len() > MAX_SHOWN_VALUES => format!("{first}, ... {last}{unit}"),
        all => all.join(", ") + unit,
    };
    let numbers =
        |values: &[u64], unit: &str| list(&values.iter().map(ToString::to_string).collect::<Vec<_>>(), unit);
    let names: Vec<_> = traces.iter().map(|trace| trace.name.clone()).collect();
    let mut axes =
        vec![("trace", names.len(), list(&names, "")), ("workload", workloads.len(), list(workloads, ""))];
    axes.push(match &cpus[..] {
        [] => ("cpus", 1, "each trace's own".to_owned()),
        cpus => ("cpus", cpus.len(), numbers(cpus, "")),
    });
    if !workloads.is_empty() {
        axes.extend([
            ("seed", seeds.len(), numbers(seeds, "")),
            ("size", sizes.len(), numbers(sizes, " bytes of an object")),
            ("ops", operations.len(), numbers(operations, " operations of each CPU")),
            ("think", thinks.len(), numbers(thinks, " ns after every operation")),
        ]);
    }
    axes.push(("profile", 1, plan.profile_name.clone()));
    for (name, length, values) in axes.into_iter().filter(|(_, length, _)| *length > 0) {
        text += &format!("  {name:8} {:>6}  {values}\n", grouped(length as u64));
    }
    text += "\nSettings:\n";
    for (design, knobs, count) in plan.settings.designs() {
        let values = knobs.iter().map(|knob| format!(", {} = {}", knob.key, numbers(&knob.values, "")));
        text += &format!("  {design}: {}{}", grouped(count), values.collect::<String>());
        let all: u64 = knobs.iter().fold(1, |all, knob| all.saturating_mul(knob.values.len() as u64));
        text += &match plan.sample {
            Some(Sample { points, .. }) if !knobs.is_empty() && count < points.into() => {
                let which_combinations =
                    if count == all { "all combinations" } else { "all combinations that the sample found" };
                format!(" ({which_combinations}, fewer than the requested {points} points)")
            }
            _ => String::new(),
        };
        text += "\n";
        let design_knobs = (plan.knobs)(design.split(':').next().unwrap_or_default());
        for knob in design_knobs.iter().filter(|known| knobs.iter().any(|knob| knob.key == known.name)) {
            text += &format!("    {}: {knob}\n", knob.name);
        }
    }
    text += &format!(
        "\nItem 0 is {}; the last item is {}.\nResults go to {}. `{}` runs them.\n",
        report.first,
        report.last,
        report.results,
        files.command("run")
    );
    tell(&report, &text, json)?;
    // Each trace is read once, so that none fails in the middle of a long run.
    let (mut failed_items, of_one) = (vec![], plan.settings.count() * plan.cpus.len().max(1) as u64);
    for (index, trace) in (0_u64..).zip(&plan.traces) {
        if let Err(why) = run::read(trace) {
            failed_items.extend((index * of_one..(index + 1) * of_one).map(|item| (item, why.clone())));
        }
    }
    failures(&plan, "would fail", &failed_items).iter().for_each(|line| print_warning(line));
    Ok(if failed_items.is_empty() { Outcome::Done } else { Outcome::Violated })
}

fn run_sweep_items<P: Policy>(args: &RunArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let shard = match (args.shard, args.item) {
        (Some(shard), _) => shard,
        (None, Some(_)) => Shard::WHOLE_SHARD,
        (None, None) => {
            Shard::from_job_engine(|name| std::env::var(name).ok(), args.shards.map(NonZeroU64::get))
                .map_err(anyhow::Error::msg)?
                .unwrap_or(Shard::WHOLE_SHARD)
        }
    };
    let (plan, store) = args.of.plan::<P>()?;
    if let Some(hash) = &args.hash
        && !(plan.hash.starts_with(&**hash) && hash.len() >= plan.short_hash().len())
    {
        bail!(
            "--hash {hash}: {} with its traces is now sweep {}, because the file, a trace or a profile has changed since the script was written; write the script again",
            args.of.file.display(),
            plan.hash
        );
    }
    let items = match args.item {
        Some(item) if item >= plan.len() => {
            bail!("--item {item}: expected 0 to {}, an item of {}", plan.len() - 1, args.of.file.display());
        }
        Some(item) => item..item + 1,
        None => shard.items(plan.len()),
    };
    let threads = args.threads.map(NonZeroUsize::get);
    let options =
        RunOptions { rerun: args.item.is_some(), threads, interval: args.progress.retry_interval() };
    match run::run::<P>(&plan, &store, items, options, &Progress::new(), &*RunProgress::on_interrupt()?) {
        Ok(result) => {
            result.damaged.iter().for_each(|why| print_warning(&format!("{why}; the item was run again")));
            failures(&plan, "failed", &result.failed).iter().for_each(|line| print_warning(line));
            let outcome = if result.failed.is_empty() { Outcome::Done } else { Outcome::Violated };
            tell(&result, &format_shard_summary(&result, shard), json).map(|_| outcome)
        }
        Err(ended) => failed(ended),
    }
}

fn format_shard_summary(result: &ShardResult, shard: Shard) -> String {
    let [present, done, failed] = [result.there, result.done, result.failed.len() as u64].map(grouped);
    let share = if shard == Shard::WHOLE_SHARD { String::new() } else { format!("share {shard}: ") };
    let [elapsed, seconds] = [result.took, result.seconds].map(run::time);
    format!(
        "{share}{}: {done} run in {elapsed} ({seconds} of CPU time), {present} kept, {failed} failed\n",
        format_item_count(result.items)
    )
}

/// The state of a sweep: the items that are done, and how long they took.
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
    /// The mean run time of an item in seconds.
    mean_seconds: f64,
    /// The estimated CPU time of the items without a result, in seconds.
    left_seconds: f64,
}

fn status<P: Policy>(files: &SweepFiles, json: Option<Place>) -> anyhow::Result<Outcome> {
    let (plan, store) = files.plan::<P>()?;
    let results = collect(&plan, &store, &Progress::new())?;
    let cost = store.cost(&plan)?;
    let CollectedResults { rows, missing, failed, damaged } = &results;
    let lengths = [rows.len(), missing.len(), failed.len(), damaged.len()].map(|n| n as u64);
    let [done, missing, failed, damaged] = lengths;
    let remaining = cost.mean() * (missing + failed + damaged) as f64;
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
        left_seconds: remaining,
    };
    let [done, missing, failed, damaged] = [done, missing, failed, damaged].map(grouped);
    let mut text = format!(
        "{}: {done} of {} done, {missing} missing, {failed} failed, {damaged} damaged (sweep {}).\n",
        files.file.display(),
        format_item_count(plan.len()),
        plan.short_hash()
    );
    if cost.runs > 0 {
        text += &format!(
            "{} run{}, including repeated ones, took {} of CPU time: {:.3} s on average, and at most {:.3} s, for item {}.\n",
            grouped(cost.runs),
            if cost.runs == 1 { "" } else { "s" },
            run::time(cost.seconds),
            cost.mean(),
            cost.dearest_seconds,
            cost.slowest_item
        );
        // No number of machines can be faster than the longest item.
        let time_on = |cpus: f64, seconds: f64| (seconds / cpus).max(cost.dearest_seconds);
        if results.has_all_results() {
            text += &format!(
                "The whole sweep would take {} on 1,000 CPUs.\n",
                run::time(time_on(1000.0, cost.mean() * plan.len() as f64))
            );
        } else {
            text += &format!(
                "The missing items would take {} on one CPU, and {} on 1,000 CPUs.\n",
                run::time(remaining),
                run::time(time_on(1000.0, remaining))
            );
        }
    }
    tell(&status, &text, json)?;
    results.result_warnings(&plan, &files.command("run")).iter().for_each(|line| print_warning(line));
    Ok(if results.has_all_results() { Outcome::Done } else { Outcome::Violated })
}

fn merge<P: Policy>(args: &MergeArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let open = |form, path: &Option<PathBuf>| path.as_deref().map(|path| Place::open(form, path)).transpose();
    let csv = open(Form::Rows, &args.csv)?;
    let html = open(Form::Html, &args.html)?;
    Place::check_distinct([&json, &csv, &html])?;
    let (plan, store) = args.of.plan::<P>()?;
    let progress = Progress::new();
    let results = collect(&plan, &store, &progress)?;
    drop(progress);
    results.result_warnings(&plan, &args.of.command("run")).iter().for_each(|line| print_warning(line));
    if !(results.has_all_results() || args.partial) || results.rows.is_empty() {
        return Ok(Outcome::Violated);
    }
    let report = Report::new(&plan, &results, args.by);
    let places = || [&json, &csv, &html].into_iter().flatten();
    let to_stdout = places().any(Place::is_stdout);
    let wrote = places().filter(|place| !place.is_stdout()).map(Place::shown).collect::<Vec<_>>().join(", ");
    let title = plan.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let json = json.map(|place| json_text(&report).map(|text| (place, text.into_bytes()))).transpose()?;
    let csv = csv.map(|place| merge::csv(&results.rows).map(|rows| (place, rows))).transpose()?;
    let html =
        html.map(|place| page::page(&report, &title).map(|page| (place, page.into_bytes()))).transpose()?;
    if let Err(error) = write_all(json.into_iter().chain(csv).chain(html)) {
        return failed(EarlyEnd::Write(error));
    }
    if !wrote.is_empty() {
        print_warning(&format!("wrote {wrote}"));
    }
    if !to_stdout {
        say(&report.to_string())?;
    }
    Ok(Outcome::Done)
}

/// Returns the number of shards: the requested number, but at most the number of items.
fn shards(plan: &Plan, requested: u64) -> u64 {
    if requested > plan.len() {
        print_warning(&format!("--shards {requested}: expected at most {}", format_item_count(plan.len())));
    }
    requested.min(plan.len())
}

fn slurm<P: Policy>(args: &SlurmArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    reject_json_option("slurm", json.as_ref())?;
    let (plan, store) = args.of.plan::<P>()?;
    let program = std::env::current_exe().context("cannot find this program's path")?;
    let shard_count = shards(&plan, args.shards.get());
    let script = engines::slurm(
        &plan,
        &Slurm {
            shards: shard_count,
            cpus: args.cpus.get(),
            time: args.time,
            memory: args.memory.as_deref(),
            partition: args.partition.as_deref(),
            inputs: args.of.inputs.as_deref(),
            results: store.folder(),
            program: args.program.as_deref().unwrap_or(&program),
        },
    );
    if shard_count > engines::SLURM_TASKS {
        print_warning(&format!("--shards {shard_count}: {}", engines::many_tasks_warning(shard_count)));
    }
    // The script checks on each node that this folder exists, which shows that the folder is shared.
    if let Err(error) = std::fs::create_dir_all(store.folder()) {
        return failed(EarlyEnd::Write(anyhow::anyhow!("{}: {error}", store.folder().display())));
    }
    say(&script)?;
    Ok(Outcome::Done)
}

fn kubernetes<P: Policy>(args: &KubernetesArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    reject_json_option("k8s", json.as_ref())?;
    let (plan, _) = args.of.plan::<P>()?;
    let job = engines::kubernetes(
        &plan,
        &Kubernetes {
            shards: if args.merge { 1 } else { shards(&plan, args.shards) },
            parallelism: args.parallelism,
            image: &args.image,
            claim: &args.claim,
            inputs_claim: args.inputs_claim.as_deref(),
            cpus: args.cpus.get(),
            memory: &args.memory,
            time: args.time,
            deadline: args.deadline,
            merge: args.merge,
        },
    );
    say(&json_text(&job)?)?;
    Ok(Outcome::Done)
}

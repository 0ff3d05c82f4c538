//! The command `cargo check-mutants` changes the meaning of core files, one place at a time. After each change, a test
//! or a model must fail.
//!
//! [`mutate`](uslab_tests::mutate) makes the mutants by rule, all in one copy of the workspace; the environment
//! variable `MUTANT` enables one of them. Two builds are enough for any number of mutants: one for the unit and
//! property tests, and one for the loom models. Mutants that do not compile are removed until the copy compiles. Each
//! test then runs once without a mutant; this run shows which mutants the test reaches, and how long it takes. For each
//! mutant, the tests that reach it run one after the other, cheapest first, until one fails.
//!
//! Tests are cheaper than models, so tests kill most mutants. With `--models`, only the models are built and run, to
//! find out which mutants the models alone detect.

mod assembly;
mod build;
mod detect;
mod plan;
mod programs;
mod report;
mod run;

use crate::build::sources;
use crate::plan::{Subjects, config, select_mutants, shard_of_mutants};
use crate::report::{explain, leave, merge, record};
use crate::run::{check, judge_assembly_mutants};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use uslab_tests::mutate::{Mutant, RULES};
use uslab_tests::share::ShardArgs;

/// Change the meaning of core files, one place at a time, and expect a test or a model to fail for each
/// change.
///
/// A mutant is killed if an assertion of a model fails, if a test fails, or at least if a model explores fewer
/// executions than its floor. A mutant is out of time if nothing kills it, but a test exceeds its time limit twice. A
/// mutant lives if nothing detects it; tests/mutants.toml should then list it, with the reason why nothing can detect
/// it. Verdicts are stored in target/mutants for each state of the sources, so an interrupted run can be continued.
///
/// Environment: BOUND, the pre-emption bound of all models (default 1; mutants that remain undetected then run with the
/// bound of each model). Exit codes: 0 if the mutants that live, that only a floor detects, or that are out of time do
/// not exceed the limits in tests/mutants.toml and --most-live (for a sample, with a confidence of 95 %). 1 if they
/// exceed a limit, no mutant was judged, or something else failed. 2 for wrong usage, an invalid tests/mutants.toml, or
/// a shard that is missing or from another build.
#[derive(Debug, Parser)]
#[command(name = "check-mutants", max_term_width = 100)]
struct Args {
    /// Files to mutate, with paths relative to the workspace. Default: the files that tests/mutants.toml lists; in
    /// another workspace without this file, all files of the libraries that it builds by default.
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// Manifest of another workspace, which must be in git. The tests and models of the libraries in that workspace are
    /// run.
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Print the mutants, including mutants that would not compile, without building anything.
    #[arg(long)]
    list: bool,
    /// Run only models, and no other tests. Mutants that no model detects are listed; they fail the check only with
    /// `--most-live`.
    #[arg(long)]
    models: bool,
    /// Largest accepted number of mutants per 100 that are neither detected nor explained. Default: the number in
    /// tests/mutants.toml.
    #[arg(long, value_name = "PERCENT", conflicts_with = "detect")]
    most_live: Option<f64>,
    /// Check the mutants of this processor's restartable sequences instead, with the section tests. Each mutant of a
    /// restartable sequence needs a separate build.
    #[arg(long, conflicts_with_all = ["files", "manifest_path", "models", "rule"])]
    assembly: bool,
    /// Record the results in tests/mutants_ran.json, for the table of claims.
    #[arg(long, conflicts_with_all = ["files", "manifest_path", "rule", "shard"])]
    record: bool,
    /// Draw this many mutants, and report how much CPU time the stress test, random operations and the simulation need
    /// to detect each mutant.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["assembly", "manifest_path", "models", "sample", "minutes", "shard", "merge", "list", "json", "record"])]
    detect: Option<usize>,
    /// Begin no new mutant after this many minutes; the next run continues with the remaining mutants. The mutants that
    /// were judged are then a sample of all mutants.
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    minutes: Option<u32>,
    /// Judge only this many mutants, drawn at random.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Seed for the random choice of mutants, and for the order in which they run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Judge only mutants that stored runs, of any state of the sources, did not detect, to see which of them are
    /// detected now. Mutants that tests/mutants.toml explains are left out.
    #[arg(long, conflicts_with_all = ["assembly", "manifest_path", "record"])]
    again: bool,
    /// Judge only the mutants of these rules. Default: the rules that tests/mutants.toml lists.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = RULES)]
    rule: Vec<String>,
    #[command(flatten)]
    share: ShardArgs,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let asked = Subjects::find(&args).and_then(|subjects| {
        let config = config(&args, &subjects)?;
        Ok((sources(&args, subjects, &config.files)?, config))
    });
    let (mut tree, config) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(2);
        }
    };
    let shard = match args.share.requested() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(2);
        }
    };
    if args.list {
        let all: Vec<Mutant> = match args.assembly.then(assembly::assembly_mutants) {
            None => tree.mutants().cloned().collect(),
            Some(Ok(all)) => all.into_iter().map(|of| of.mutant).collect(),
            Some(Err(error)) => {
                eprintln!("check-mutants: {error:#}");
                return ExitCode::from(2);
            }
        };
        let chosen = select_mutants(&args, &config, all.iter());
        let mut listed = shard_of_mutants(&chosen, shard).to_vec();
        listed.sort_by_key(|mutant| mutant.number);
        listed.iter().for_each(|mutant| println!("{} {mutant}", mutant.number));
        return ExitCode::SUCCESS;
    }
    if let Some(count) = args.detect {
        return match detect::detect(&args, &config, &mut tree, count) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("check-mutants: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let report = match args.share.merge.is_empty() {
        true if args.assembly => judge_assembly_mutants(&args, &config, tree, shard),
        true => check(&args, &config, &mut tree, shard),
        false => merge(&args),
    };
    let report = report.map(|report| explain(&args, &config, report, shard.is_none()));
    let report = report.and_then(|report| match shard {
        None => Ok(report),
        Some(shard) => leave(&args, shard, report),
    });
    let report = report.and_then(|report| match args.record {
        false => Ok(report),
        true => record(&args, report),
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(if args.share.merge.is_empty() { 1 } else { 2 });
        }
    };
    match args.json.then(|| serde_json::to_string_pretty(&report)) {
        Some(Ok(json)) => println!("{json}"),
        _ => println!("{report}"),
    }
    // Mutants that models leave to tests are not failures.
    let most_live = args.most_live.unwrap_or(if args.models { 100.0 } else { config.most_live });
    let few = !report.undetected_rate().exceeds(most_live);
    let few = few && !report.floor_detection_rate().exceeds(config.most_by_floors);
    let good = report.wrong.is_empty() && few && !report.time_detection_rate().exceeds(config.most_by_time);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

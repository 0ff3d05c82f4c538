//! `cargo check-mutants`: the meaning of core files is changed in one place at a time, and some test or model must fail.
//!
//! [`mutate`](uslab_tests::mutate) makes the mutants by rule, all in one copy of the workspace; the variable `MUTANT` switches one on.
//! So there are two builds, one of the unit and property tests and one of the loom models, however many mutants there are.
//! Mutants that do not compile are left out until the rest does. Every test then runs once, to see which mutants it reaches
//! and how long it takes. A mutant runs through what reaches it, cheapest first, until something fails.
//!
//! Tests are cheaper than models, so most mutants fall to a test. What models would notice alone is another question, and
//! `--models` asks it: there is one build then, and no test that is not a model.

mod assembly;
mod build;
mod detect;
mod plan;
mod programs;
mod report;
mod run;

use crate::build::sources;
use crate::plan::{Subjects, chosen, config, share_of};
use crate::report::{explain, leave, merge, record};
use crate::run::{check, check_assembly};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use uslab_tests::mutate::{Mutant, RULES};
use uslab_tests::share::ShareArgs;

/// Change the meaning of core files, one place at a time, and expect a test or a model to fail.
///
/// A mutant is killed by a model's assertion, by a test, or only by a model that explores too little; one that nothing kills and that makes
/// a test run for ever, twice, is out of time. What nothing notices lives: it should stand in tests/mutants.toml, with the reason why nothing
/// could notice it. Verdicts are kept in target/mutants for each state of the sources, so that a run that was ended goes on.
///
/// Environment: BOUND, the pre-emption bound of all models (default 1; then, for what nothing notices, the one that each states). Exit codes: 0 of those that nothing notices, of those that only a floor notices, and of those out of time no more are unexplained than
/// tests/mutants.toml and --most-live allow; of a sample, no more with a confidence of 95 %. 1 there are more, nothing was judged, or something else is wrong, 2 wrong
/// usage, a bad tests/mutants.toml, or a share that is missing or of another build.
#[derive(Debug, Parser)]
#[command(name = "check-mutants", max_term_width = 100)]
struct Args {
    /// The files, relative to the workspace. Default: those that tests/mutants.toml names, or all of the libraries that are built by default
    /// in another workspace without such a file.
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// The manifest of another workspace, which git knows. Its tests and models are those of its libraries.
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// Print one JSON object in place of the text.
    #[arg(long)]
    json: bool,
    /// Print the mutants, those that would not compile included, and build nothing.
    #[arg(long)]
    list: bool,
    /// Run the models alone, and no other test. What they do not notice is listed, and is no fault, unless `--most-live` says so.
    #[arg(long)]
    models: bool,
    /// Of 100 mutants so many may be neither noticed nor explained. Default: what tests/mutants.toml says.
    #[arg(long, value_name = "PERCENT", conflicts_with = "detect")]
    most_live: Option<f64>,
    /// The mutants of this processor's restartable sequences instead, each of which is a build: through the tests of the sections.
    #[arg(long, conflicts_with_all = ["files", "manifest_path", "models", "rule"])]
    assembly: bool,
    /// Record what it came to in tests/mutants_ran.json, which the table of claims has.
    #[arg(long, conflicts_with_all = ["files", "manifest_path", "rule", "shard"])]
    record: bool,
    /// Draw so many mutants, and say how much CPU time the stress, random operations and the simulation take to notice each.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["assembly", "manifest_path", "models", "sample", "minutes", "shard", "merge", "list", "json", "record"])]
    detect: Option<usize>,
    /// Begin no mutant after so many minutes: the next run goes on with the others. What is judged by then is a sample.
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    minutes: Option<u32>,
    /// Only so many mutants, drawn at random.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// What is drawn, and in which order they run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only those that nothing noticed in runs that are kept, on whatever state of the sources: what has been mended since is
    /// noticed now. Those that tests/mutants.toml argues are left out.
    #[arg(long, conflicts_with_all = ["assembly", "manifest_path", "record"])]
    again: bool,
    /// Only mutants of these rules. Default: those that tests/mutants.toml names.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = RULES)]
    rule: Vec<String>,
    #[command(flatten)]
    share: ShareArgs,
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
    let shard = match args.share.asked() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(2);
        }
    };
    if args.list {
        let all: Vec<Mutant> = match args.assembly.then(assembly::all) {
            None => tree.mutants().cloned().collect(),
            Some(Ok(all)) => all.into_iter().map(|of| of.mutant).collect(),
            Some(Err(error)) => {
                eprintln!("check-mutants: {error:#}");
                return ExitCode::from(2);
            }
        };
        let chosen = chosen(&args, &config, all.iter());
        let mut listed = share_of(&chosen, shard).to_vec();
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
        true if args.assembly => check_assembly(&args, &config, tree, shard),
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
    // What models leave to tests is no fault.
    let most_live = args.most_live.unwrap_or(if args.models { 100.0 } else { config.most_live });
    let few = !report.living().exceeds(most_live);
    let few = few && !report.by_floors().exceeds(config.most_by_floors);
    let good = report.wrong.is_empty() && few && !report.by_time().exceeds(config.most_by_time);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The command line of the lab, in which each experiment is a subcommand.

use crate::demos;
use crate::experiments::{Context, Experiment};
use anyhow::ensure;
use clap::{Args as _, Subcommand};
use std::collections::BTreeMap;
use std::path::PathBuf;
use uslab_output::command::Outcome;
use uslab_output::{Form, Place, Progress, json_text, say, tell, write_all};

/// Compare allocators in experiments. Without an experiment's name, the command lists all experiments.
///
/// The lab compares textbook allocators (pools, free lists, linear, stack, first fit, buddy, TLSF, slot maps) with each
/// other and with the shipping ones. Counts follow from the seed and are the same on any machine. Times are measured in
/// interleaved rounds; --exact omits all measured values. A claim about times is undecided if the median's interval is
/// not on one side of its limit. Each experiment has a picture, on the terminal and on the page that --html writes.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "\
Examples:
  uslab lab
  uslab lab constructors
  uslab lab constructors --exact --seed 7 --csv -
  uslab lab constructors --html constructors.html
  uslab lab demo buddy
  uslab lab demo first-fit 'alloc 100' 'alloc 50' 'free a' 'alloc 20'"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Seed of all random choices; printed with the result.
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Omit all measured values (times, page faults, instructions): the same seed gives the same bytes on any machine.
    #[arg(long, global = true)]
    exact: bool,
    /// Do a tenth of the work or less: all experiments run, but figures mean little, and verdicts are marked as quick.
    #[arg(long, global = true)]
    quick: bool,
    /// Write tables and pictures as CSV, one line per value: to FILE, or to standard output if FILE is `-` or omitted.
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    csv: Option<PathBuf>,
    /// Write a self-contained web page with tables and pictures.
    #[arg(long, global = true, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Verb {
    #[command(flatten)]
    Experiment(Box<Experiment>),
    Demo(demos::Args),
}

/// Runs the requested experiment, or lists all experiments. If `json` is set, also writes the result there as JSON.
///
/// # Errors
/// Fails if options exclude each other, an experiment fails, or a file cannot be written.
pub fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let place = |form, path: &Option<PathBuf>| path.as_ref().map(|path| Place::open(form, path)).transpose();
    let (csv, html) = (place(Form::Csv, &args.csv)?, place(Form::Html, &args.html)?);
    let places: Vec<&Place> = [&json, &csv, &html].into_iter().flatten().collect();
    let to_stdout = places.iter().filter(|place| place.is_stdout()).count();
    ensure!(
        to_stdout <= 1,
        "only one of --json, --csv and --html can go to standard output: name files for the others"
    );
    Place::check_distinct([&json, &csv, &html])?;
    let experiment = match &args.verb {
        Some(Verb::Experiment(experiment)) => experiment,
        other => {
            ensure!(
                csv.is_none() && html.is_none(),
                "--csv and --html: expected an experiment; `uslab lab` lists all experiments"
            );
            return match other {
                Some(Verb::Demo(demo)) => demo.run(args.seed, json),
                _ => list(json),
            };
        }
    };
    let progress = Progress::new();
    let context = Context { seed: args.seed, exact: args.exact, quick: args.quick, progress: &progress };
    let Some(mut findings) = experiment.run(&context)? else { return Ok(Outcome::Done) };
    drop(progress);
    if args.exact {
        findings = findings.without_measured();
    }
    findings.quick = args.quick;
    let findings = findings.with_current_machine();
    // All formats are generated before the first file is written.
    let json = json.map(|place| json_text(&findings).map(|text| (place, text))).transpose()?;
    let csv = csv.map(|place| findings.csv().map(|text| (place, text))).transpose()?;
    let html = html.map(|place| findings.page().map(|text| (place, text))).transpose()?;
    write_all([json, csv, html].into_iter().flatten())?;
    if to_stdout == 0 {
        say(&findings.text())?;
    }
    Ok(Outcome::Done)
}

/// Lists all experiments, one on each line.
fn list(json: Option<Place>) -> anyhow::Result<Outcome> {
    let lab = Args::augment_args(clap::Command::new("lab"));
    let description = |verb: &clap::Command| verb.get_about().map(ToString::to_string).unwrap_or_default();
    let verbs: Vec<(String, String)> = lab
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "demo")
        .map(|verb| (verb.get_name().to_owned(), description(verb)))
        .collect();
    let text: String = verbs.iter().map(|(name, description)| format!("{name:16} {description}\n")).collect();
    let by_name: BTreeMap<_, _> = verbs.into_iter().collect();
    tell(&BTreeMap::from([("experiments", by_name)]), &text, json)?;
    Ok(Outcome::Done)
}

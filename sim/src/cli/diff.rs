//! The options of `uslab diff`.

use crate::diff;
use crate::output::command::Outcome;
use crate::output::{Place, tell};
use anyhow::Context;
use std::path::{Path, PathBuf};

/// Compare two reports that `--json` wrote, and list the numbers that differ, with the largest relative
/// change first.
///
/// Rows of a list are matched by name (cache, design, snapshot, number of CPUs), not by position.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uslab replay --design slub --json a.json
  uslab replay --design slub:cpu_partial=0 --json b.json
  uslab diff a.json b.json")]
pub(super) struct Args {
    /// The first report.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second report.
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Omit numbers that differ by at most this percentage.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    above: f64,
    /// Show all numbers that differ, instead of only the first forty.
    #[arg(long)]
    all: bool,
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let percent = text.parse().ok().filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
    percent.ok_or("expected a number from 0")
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let read = |path: &Path| {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("{shown}"))?;
        serde_json::from_str(&text).with_context(|| format!("{shown}: expected a report that `--json` wrote"))
    };
    let diff = diff::Diff::new(&read(&args.a)?, &read(&args.b)?, args.above);
    tell(&diff, &diff.text(if args.all { usize::MAX } else { 40 }), json)?;
    Ok(Outcome::Done)
}

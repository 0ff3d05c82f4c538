//! The options of `uslab validate`.

use crate::output::command::Outcome;
use crate::output::{Place, Progress, tell};
use crate::{scale, validate};

/// Compare the simulated clock of `uslab scale` with this machine: threads on its CPUs run the operations of
/// simulated CPUs, on the shipping allocator.
///
/// Each workload runs once on one CPU and once on all CPUs, with each thread pinned to its CPU. The
/// predictions are for design uslab-model. The report gives the median of the measured rounds, and the range
/// of the middle eight tenths. `--json FILE` writes a profile that also has its validated CPU counts: the
/// counts up to which at most one workload is off by more than 30 %. `uslab scale --profile FILE` shows the
/// validated CPU counts. Measured times are only meaningful in a release build.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prices: the name of a profile, or a file that `uslab calibrate` wrote. Default: prices that this
    /// command measures.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Number of rounds; each round measures every workload and price once.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Seed of the random decisions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let profile = args.profile.as_deref().map(scale::profile).transpose()?;
    let options = validate::Options { profile, rounds: args.rounds, seed: args.seed };
    let report = validate::validate(&options, &Progress::new())?;
    tell(&report, &report.to_string(), json)?;
    Ok(Outcome::Done)
}

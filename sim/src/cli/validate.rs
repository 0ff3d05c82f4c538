//! The options of `uslab validate`.

use crate::output::command::Outcome;
use crate::output::{Place, Progress, tell};
use crate::{scale, validate};

/// Compare the clock of `uslab scale` with this machine: threads on its CPUs run the operations of simulated CPUs, on
/// the shipping allocator.
///
/// Each workload runs on one CPU and on all CPUs, and each thread stays on one CPU. The predictions are for design
/// uslab-model. The measured value is the median of the rounds, with the range of the middle eight tenths. A profile
/// that `--json FILE` writes also has its validated CPU counts, which `uslab scale --profile FILE` shows: counts up to
/// which at most one workload is off by more than 30 %. Times need a release build.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prices: the name of a profile, or a file that `uslab calibrate` wrote. Default: prices measured in the same
    /// rounds.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Number of rounds; everything is measured once in each.
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

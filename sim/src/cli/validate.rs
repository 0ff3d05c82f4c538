//! `uslab validate`.

use crate::output::command::Outcome;
use crate::output::{Place, Progress, tell};
use crate::{scale, validate};

/// Hold the clock of `uslab scale` against this machine: threads on its CPUs do what simulated CPUs do, on the shipping allocator.
///
/// Each workload runs on one CPU and on all, and each thread stays on a CPU of its own. Predictions are those of design
/// uslab-model. What was measured is the median of the rounds, with what the middle eight tenths of them lie between. With
/// `--json FILE`, `uslab scale --profile FILE` knows which CPU counts the profile was validated for: those up to which at most
/// one workload is off by more than 30 %. Times need a release build.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What things cost: a name, or a file that `uslab calibrate` wrote. Default: measured in the same rounds.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// How often everything is measured.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Where chance begins.
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

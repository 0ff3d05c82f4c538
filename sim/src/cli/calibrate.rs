//! The options of `uslab calibrate`.

use crate::calibrate;
use crate::output::command::Outcome;
use crate::output::{Place, Progress, table, tell, text};

/// Measure the prices of allocator operations on this machine, with spreads, and write them as a JSON profile
/// for `uslab scale`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the profile.
    #[arg(long, value_name = "NAME", default_value = "here")]
    name: String,
    /// Number of rounds; each round measures every price once.
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let profile = calibrate::calibrate(&args.name, args.rounds, &Progress::new())?;
    let mut rows = table(&["price", "ns", "from", "to"]);
    for (name, price) in profile.prices() {
        let [least, most] = price.spread;
        rows.add_row([name, price.ns.to_string(), least.to_string(), most.to_string()]);
    }
    let rows = text(&rows);
    let text = format!("{rows}\n`--json FILE` writes the profile for `uslab scale --profile FILE`.\n");
    tell(&profile, &text, json)?;
    Ok(Outcome::Done)
}

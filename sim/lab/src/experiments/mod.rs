//! The lab's experiments: each experiment has one file with its options and its work.

mod buddy;
mod colouring;
mod constructors;
mod context;
mod explain;
mod fifty_percent;
mod fragmentation;
mod handles;
pub mod instructions;
mod kenwright;
mod latency;
mod layout;
mod load;
mod pinning;
mod pools;
mod race;
mod robson;
mod tlsf;
mod why_magazines;

use crate::findings::Findings;
use clap::Subcommand;
pub use context::Context;
use context::{check_bound, four_cpu_subsystem};

/// The subcommand of one experiment, with its options.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
#[expect(missing_docs, reason = "each experiment must have a description")]
pub enum Experiment {
    Constructors(constructors::Constructors),
    Layout(layout::Layout),
    Colouring(colouring::Colouring),
    Buddy(buddy::Buddies),
    FiftyPercent(fifty_percent::FiftyPercent),
    Robson(robson::Robson),
    Tlsf(tlsf::TwoLevels),
    Latency(latency::Latency),
    Race(race::Race),
    Fragmentation(fragmentation::Fragmentation),
    Pinning(pinning::Pinning),
    Pools(pools::Pools),
    WhyMagazines(why_magazines::WhyMagazines),
    Handles(handles::Handles),
    Kenwright(kenwright::Kenwright),
    Explain(explain::Explain),
    #[command(hide = true)]
    Instructions(instructions::Instructions),
}

impl Experiment {
    /// Runs the experiment. Returns the experiment's findings, or `None` if the subcommand only provides data to
    /// another run of the program.
    ///
    /// # Errors
    /// Fails if options or files are invalid, or memory is exhausted.
    pub fn run(&self, context: &Context<'_>) -> anyhow::Result<Option<Findings>> {
        match self {
            Self::Constructors(experiment) => experiment.run(context).map(Some),
            Self::Layout(experiment) => experiment.run(context).map(Some),
            Self::Colouring(experiment) => experiment.run(context).map(Some),
            Self::Buddy(experiment) => experiment.run(context).map(Some),
            Self::FiftyPercent(experiment) => experiment.run(context).map(Some),
            Self::Robson(experiment) => experiment.run(context).map(Some),
            Self::Tlsf(experiment) => experiment.run(context).map(Some),
            Self::Instructions(case) => case.run().map(|()| None),
            Self::Latency(experiment) => experiment.run(context).map(Some),
            Self::Race(experiment) => experiment.run(context).map(Some),
            Self::Fragmentation(experiment) => experiment.run(context).map(Some),
            Self::Pinning(experiment) => experiment.run(context).map(Some),
            Self::Pools(experiment) => experiment.run(context).map(Some),
            Self::WhyMagazines(experiment) => experiment.run(context).map(Some),
            Self::Handles(experiment) => experiment.run(context).map(Some),
            Self::Kenwright(experiment) => experiment.run(context).map(Some),
            Self::Explain(experiment) => experiment.run(context).map(Some),
        }
    }
}

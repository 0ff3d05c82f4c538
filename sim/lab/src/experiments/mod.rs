//! The questions that the lab answers: one file each, its options and its work.

mod buddy;
mod colouring;
mod constructors;
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
use anyhow::ensure;
use clap::Subcommand;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use uslab::{Config, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;
use uslab_output::Progress;

/// What an experiment is told.
#[derive(Clone, Copy, Debug)]
pub struct Context<'p> {
    /// What is random follows from it.
    pub seed: u64,
    /// Whether to leave out what is measured.
    pub exact: bool,
    /// Whether to be small and short.
    pub quick: bool,
    /// Where progress is shown.
    pub progress: &'p Progress,
}

impl Context<'_> {
    /// Random numbers of the seed: a generator that is named, so that they stay the same.
    fn rng(&self) -> Pcg64 {
        Pcg64::seed_from_u64(self.seed)
    }
    /// How many interleaved rounds of timing.
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { 9 }
    }
    /// `full`, or a part of it where times do not matter.
    pub fn scale(&self, full: usize) -> usize {
        if self.quick { (full / 20).max(1) } else { full }
    }
}

/// Options that are each in range may ask for too much together: what ends in a minute or so, and memory that there is.
///
/// # Errors
/// `asked` of what `of` says is more than `most`; with the options.
fn bounded(options: &str, asked: u64, most: u64, of: &str) -> anyhow::Result<()> {
    ensure!(asked <= most, "{options}: {asked} {of}; expected {most} at most");
    Ok(())
}

/// A subsystem for counts that are the same on any machine: of four simulated CPUs, whatever this one has.
fn counted() -> anyhow::Result<Subsystem> {
    Ok(Subsystem::new(Config::new(PageConfig::default_for(Cpus::simulated(4, 1)?)))?)
}

/// The experiments.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
#[expect(missing_docs, reason = "each says itself what it is, here and in --help")]
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
    /// Runs it. What it found; nothing if that is for another run of this program.
    ///
    /// # Errors
    /// Its options or files are not as they should be, or memory is short.
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

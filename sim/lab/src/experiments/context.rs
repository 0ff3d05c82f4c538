//! What every experiment is told, and what several of them do.

use anyhow::ensure;
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
    pub(super) fn rng(&self) -> Pcg64 {
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
pub(super) fn bounded(options: &str, asked: u64, most: u64, of: &str) -> anyhow::Result<()> {
    ensure!(asked <= most, "{options}: {asked} {of}; expected {most} at most");
    Ok(())
}

/// A subsystem for counts that are the same on any machine: of four simulated CPUs, whatever this one has.
pub(super) fn counted() -> anyhow::Result<Subsystem> {
    Ok(Subsystem::new(Config::new(PageConfig::default_for(Cpus::simulated(4, 1)?)))?)
}

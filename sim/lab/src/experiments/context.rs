//! The options that every experiment has, and functions that several experiments share.

use anyhow::ensure;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use uslab::{Config, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;
use uslab_output::Progress;

/// The options that every experiment has.
#[derive(Clone, Copy, Debug)]
pub struct Context<'p> {
    /// The seed of all random choices.
    pub seed: u64,
    /// `true` to omit all measured values.
    pub exact: bool,
    /// `true` to do less work, with less reliable results.
    pub quick: bool,
    /// The progress display.
    pub progress: &'p Progress,
}

impl Context<'_> {
    /// Returns a generator of random numbers that starts from the seed. The algorithm is fixed, so that later versions
    /// of the lab yield the same numbers.
    pub(super) fn rng(&self) -> Pcg64 {
        Pcg64::seed_from_u64(self.seed)
    }
    /// Returns the number of rounds; in each round, the contenders are timed one after the other.
    pub fn rounds(&self) -> usize {
        if self.quick { 1 } else { 9 }
    }
    /// Returns `full_scale`, or a twentieth of `full_scale` in a quick run.
    pub fn scale(&self, full_scale: usize) -> usize {
        if self.quick { (full_scale / 20).max(1) } else { full_scale }
    }
}

/// Checks that several options together do not request too much time or memory; the range of each option was checked
/// before.
///
/// # Errors
/// Fails if `requested` exceeds `max`, both counted in `unit`. The error message names the options.
pub(super) fn check_bound(options: &str, requested: u64, max: u64, unit: &str) -> anyhow::Result<()> {
    ensure!(requested <= max, "{options}: {requested} {unit}; expected {max} at most");
    Ok(())
}

/// Returns a subsystem with four simulated CPUs, whose counts are the same on every machine.
pub(super) fn four_cpu_subsystem() -> anyhow::Result<Subsystem> {
    Ok(Subsystem::new(Config::new(PageConfig::default_for(Cpus::simulated(4, 1)?)))?)
}

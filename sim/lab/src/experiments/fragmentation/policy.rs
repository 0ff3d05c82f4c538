//! The policies that the experiment compares, a run of one policy, and the seeds of the runs.

use super::super::Context;
use super::super::load::LoadedWorkload;
use crate::allocators::drive::{Options, Outcome, Sample, drive};
use crate::allocators::heap::{Fit, Order};
use crate::allocators::registry::{self, AllocatorVisitor, Name};
use crate::allocators::{Allocator, Heap};
use crate::findings::Value;
use crate::findings::clock::Spread;

/// The number of seeds from which each median is computed; the first of them is the seed of the context.
pub(super) const SEEDS: u64 = 10;

/// An allocation policy; policies are compared by the share of free memory that is in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Named(Name),
    /// First fit on a list of free blocks; each freed block is added to the front.
    LastFreed,
}

impl Policy {
    /// The first policy in the list determines the fraction of memory in use, because only some sizes are possible for
    /// its memory.
    pub(super) const ALL: [Self; 5] = [
        Self::Named(Name::Buddy),
        Self::Named(Name::Tlsf),
        Self::Named(Name::BestFit),
        Self::Named(Name::FirstFit),
        Self::LastFreed,
    ];

    pub(super) fn shown(self) -> String {
        match self {
            Self::Named(name) => name.display_name(),
            Self::LastFreed => "first-fit, last freed".to_owned(),
        }
    }
    pub(super) fn run(self, bytes: usize, workload: &LoadedWorkload) -> anyhow::Result<Run> {
        let mut sampling = Sampling(workload);
        let bytes = bytes.next_multiple_of(16);
        let outcome = match self {
            Self::Named(name) => registry::run(name, bytes, workload.largest, &mut sampling),
            Self::LastFreed => sampling.with(&mut Heap::new(bytes, Fit::First, Order::Lifo)?),
        }?;
        Ok(Run { policy: self, bytes, outcome })
    }
}

/// A trial that takes a hundred samples of the memory.
struct Sampling<'l>(&'l LoadedWorkload);

impl AllocatorVisitor for Sampling<'_> {
    type Outcome = Outcome;
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<Outcome> {
        let sample_interval = (self.0.ops.len() as u64 / 100).max(1);
        let options = Options { sample_every: sample_interval, verify: false, ..Options::default() };
        Ok(drive(allocator, self.0.iter(), &options)?)
    }
}

/// The outcome of a workload in a memory of a given size.
pub(super) struct Run {
    pub(super) policy: Policy,
    pub(super) bytes: usize,
    pub(super) outcome: Outcome,
}

impl Run {
    /// Returns the samples from the end of quarter `from` to the end of quarter `to` of the run.
    pub(super) fn samples_of_quarters(&self, from: usize, to: usize) -> &[Sample] {
        let samples = &self.outcome.samples;
        &samples[samples.len() * from / 4..(samples.len() * to / 4).max(samples.len() * from / 4 + 1)]
    }
    pub(super) fn mean(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
        samples.iter().map(of).sum::<f64>() / samples.len() as f64
    }
    /// Returns the used fraction of the memory in per cent, as the mean over the second half of the run.
    pub(super) fn in_use(&self) -> f64 {
        let free = Self::mean(self.samples_of_quarters(2, 4), |s| s.holes.total as f64);
        100.0 - free * 100.0 / self.bytes as f64
    }
    /// Returns the percentage of free memory that is in the largest piece.
    pub(super) fn largest_piece_percent(sample: &Sample) -> f64 {
        sample.holes.largest as f64 * 100.0 / sample.holes.total.max(1) as f64
    }
    /// Returns the size of the largest piece, as a percentage of the largest piece that this amount of free memory
    /// permits. In a buddy allocator, the possible pieces are powers of two.
    pub(super) fn percent_of_possible(&self, sample: &Sample) -> f64 {
        let total = sample.holes.total.max(1);
        let max_blocks = match self.policy {
            Policy::Named(Name::Buddy) => 1 << total.ilog2(),
            _ => total,
        };
        sample.holes.largest as f64 * 100.0 / max_blocks as f64
    }
    /// Returns the mean of the largest piece's share, over the second half of the run.
    pub(super) fn share(&self) -> f64 {
        Self::mean(self.samples_of_quarters(2, 4), Self::largest_piece_percent)
    }
    pub(super) fn mean_percent_of_possible(&self) -> f64 {
        Self::mean(self.samples_of_quarters(2, 4), |s| self.percent_of_possible(s))
    }
}

/// Returns `count` contexts for the experiment that differ only in their seeds.
pub(super) fn seeds<'c>(context: &Context<'c>, count: u64) -> impl Iterator<Item = Context<'c>> {
    let context = *context;
    (0..count).map(move |i| Context { seed: context.seed.wrapping_add(i), ..context })
}

/// Formats the median over all seeds, with its interval, to one decimal.
pub(super) fn shown(values: impl IntoIterator<Item = f64>) -> Value {
    Value::Spread(Spread::of(values.into_iter().collect()), 1)
}

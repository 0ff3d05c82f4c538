//! The experiment on fragmentation: how much of the free memory is one piece during a workload, and how lifetimes
//! change this share.
//!
//! The size of the largest free block shows how full the memory is, but not how fragmented it is. The experiment
//! therefore reports the largest block's share of all free memory, and gives all allocators the same fraction of used
//! memory. Results differ between seeds, so each figure is the median of ten seeds with an interval, and differences
//! are computed per seed.

mod lifetimes;
mod over_time;
mod policy;

use super::Context;
use super::load::{Load, LoadedWorkload, memory};
use crate::allocators::drive::Sample;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::registry::Name;
use crate::allocators::{Allocator, Heap};
use crate::findings::clock::Spread;
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table};
use anyhow::Context as _;
use clap::Args;
use core::alloc::Layout;
use policy::{Policy, Run, SEEDS, seeds, shown};

/// Which part of the free memory is in one piece, and does that get worse with time?
///
/// The workload has random sizes and two kinds of lifetimes: most are short, and some are long. The workload runs in
/// first fit, best fit, TLSF and buddy, each with the same fraction of memory in use, for ten seeds. The result is the
/// size of the largest free block as a share of all free memory. Two more runs follow: the first has one kind of
/// lifetime with the same mean; the second is longer, and shows the share and the search steps over time.
#[derive(Debug, Args)]
pub struct Fragmentation {
    #[command(flatten)]
    load: Load,
    /// Memory of the buddy allocator: bytes, or with K, M, G; a power of two. Each other allocator gets memory of such
    /// a size that the same fraction is in use. Default: 1.25 times the peak of requested bytes, rounded up to a power
    /// of two.
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<u64>,
}

/// Runs all policies on the workload of one seed. Each policy has the same fraction of memory in use as a buddy
/// allocator with `bytes` bytes.
fn runs_with_equal_memory(bytes: usize, workload: &LoadedWorkload) -> anyhow::Result<Vec<Run>> {
    let [buddy, other_policies @ ..] = &Policy::ALL;
    let first = buddy.run(bytes, workload)?;
    let share = first.in_use() / 100.0;
    let mut runs = vec![first];
    for policy in other_policies {
        // The number of bytes in use does not depend on the size of the memory. One run finds the number, and a second
        // run uses a memory of the right size.
        let first_run = policy.run(bytes, workload)?;
        let used_bytes = first_run.in_use() / 100.0 * bytes as f64;
        runs.push(policy.run((used_bytes / share) as usize, workload)?);
    }
    Ok(runs)
}

impl Fragmentation {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "which part of the free memory is in one piece, and does that get worse with time?";
        let mut findings = Findings::new("fragmentation", question, context.seed);
        // A recorded load has no random choices.
        let loads = seeds(context, if self.load.is_recorded() { 1 } else { SEEDS })
            .map(|context| self.load.open(&context))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let peak = loads.iter().map(|workload| workload.peak).max().unwrap_or(0);
        let default = (peak / 4 * 5).next_power_of_two().max(1 << 16);
        let bytes = loads[0].memory(self.memory.or(Some(default as u64)))?;
        let stage = context.progress.stage("fragmentation", loads.len() as u64);
        let mut runs: Vec<Vec<Run>> = Vec::new();
        let mut pools = Vec::new();
        for workload in &loads {
            runs.push(runs_with_equal_memory(bytes, workload)?);
            let run = Policy::Named(Name::Segregated).run(bytes, workload)?;
            let largest = |sample: &Sample| sample.holes.largest as f64;
            let first = run.outcome.samples.first().map_or(1.0, largest);
            pools.push(run.outcome.samples.iter().map(largest).fold(f64::MAX, f64::min) / first);
            stage.at(runs.len() as u64);
        }
        drop(stage);
        let mut table = Table::new(
            format!(
                "{} operations, {}; medians of {} seeds, over the second half of each run",
                loads[0].ops.len(),
                loads[0].name,
                loads.len()
            ),
            &[
                "allocator",
                "refused",
                "in use, %",
                "largest of all free, %",
                "largest of the largest possible, %",
                "holes",
            ],
        );
        let mut series = Vec::new();
        for (i, policy) in Policy::ALL.into_iter().enumerate() {
            let of = |f: &dyn Fn(&Run) -> f64| shown(runs.iter().map(|runs| f(&runs[i])));
            table.row(vec![
                policy.shown().into(),
                runs.iter().map(|runs| runs[i].outcome.refused).sum::<u64>().into(),
                of(&Run::in_use),
                of(&Run::share),
                of(&Run::mean_percent_of_possible),
                of(&|run| Run::mean(run.samples_of_quarters(2, 4), |s| s.holes.count as f64)),
            ]);
            let sample_count = runs.iter().map(|runs| runs[i].outcome.samples.len()).min().unwrap_or(0);
            let points = (0..sample_count).map(|k| {
                let sample_of = |runs: &Vec<Run>| runs[i].outcome.samples[k];
                let shares = runs.iter().map(|runs| Run::largest_piece_percent(&sample_of(runs))).collect();
                (sample_of(&runs[0]).operations as f64, Spread::of(shares).median)
            });
            series.push(Series { name: policy.shown(), points: points.collect() });
        }
        findings.table(table);
        findings.chart(Chart {
            title: "The largest free block, of all that is free: medians of the seeds".into(),
            x: Axis::linear("operations"),
            y: Axis::linear("%"),
            series,
            measured: false,
        });
        claim_pools_keep_largest_block(&mut findings, &pools);
        claim_first_fit_decays(&mut findings, &runs);
        lifetimes::run(context, &mut findings)?;
        over_time::run(context, &mut findings)?;
        show_unusable_holes(&mut findings)?;
        Ok(findings)
    }
}

fn claim_pools_keep_largest_block(findings: &mut Findings, kept_parts: &[f64]) {
    let min_kept = kept_parts.iter().copied().fold(f64::MAX, f64::min) * 100.0;
    findings.claim(Claim {
        says: "a pool's largest free block stays as large as it was".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "pools by size class keep {min_kept:.0} % of their largest free block, one page, in each of {} seeds; 95 % counts as all",
            kept_parts.len()
        ),
        holds: Holds::from_certain_result(min_kept >= 95.0),
        measured: false,
    });
}

/// Compares first fit with TLSF and with buddy, which folklore considers better. The comparison is made separately for
/// each seed.
fn claim_first_fit_decays(findings: &mut Findings, runs: &[Vec<Run>]) {
    let policy_index = |policy| Policy::ALL.iter().position(|p| *p == policy).unwrap_or(0);
    let (buddy, tlsf) = (policy_index(Policy::Named(Name::Buddy)), policy_index(Policy::Named(Name::Tlsf)));
    let difference_of = |first: usize, other: usize| {
        Spread::of(
            runs.iter()
                .map(|runs| runs[first].mean_percent_of_possible() - runs[other].mean_percent_of_possible())
                .collect(),
        )
    };
    for (first, words) in [
        (Policy::LastFreed, "first fit, last freed first"),
        (Policy::Named(Name::FirstFit), "first fit by address"),
    ] {
        let differences =
            [difference_of(policy_index(first), tlsf), difference_of(policy_index(first), buddy)];
        findings.claim(Claim {
            says: format!(
                "at equal use the largest block of {words} decays fastest, buddy's and TLSF's slowly"
            ),
            source: "Memory Allocators from Scratch, which says naive first fit".into(),
            found: format!(
                "as percentages of the largest possible block, the largest block minus TLSF's is {} points, and minus buddy's {} points; an interval wholly below 0 means a smaller block",
                differences[0].shown(1),
                differences[1].shown(1)
            ),
            holds: Holds::each(differences.map(|difference| difference.at_most(0.0))),
            measured: false,
        });
    }
}

/// Shows a heap full of small holes, each of which is too small for a page.
fn show_unusable_holes(findings: &mut Findings) -> anyhow::Result<()> {
    let mut heap = Heap::new(1 << 16, Fit::First, Order::Address)?;
    let small = Layout::from_size_align(16, 1).context("16 bytes")?;
    let blocks: Vec<_> = std::iter::from_fn(|| heap.alloc(small)).collect();
    let mut kept_blocks = Vec::new();
    for (i, block) in blocks.into_iter().enumerate() {
        if i % 2 == 0 { kept_blocks.push(block) } else { heap.free(block) }
    }
    let holes = heap.holes();
    let is_refused = heap.alloc(Layout::from_size_align(4096, 1).context("a page")?).is_none();
    findings.claim(Claim {
        says: "many small holes cannot serve 4 KiB".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "{} bytes are free in {} holes of {} bytes at most, and 4,096 are {}",
            uslab_output::grouped(holes.total as u64),
            uslab_output::grouped(holes.count as u64),
            holes.largest,
            if is_refused { "refused" } else { "served" }
        ),
        holds: Holds::from_certain_result(is_refused),
        measured: false,
    });
    kept_blocks.into_iter().for_each(|block| heap.free(block));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::drive::Outcome;
    use uslab_output::Progress;

    fn workload() -> LoadedWorkload {
        let progress = Progress::new();
        let context = Context { seed: 1, exact: true, quick: false, progress: &progress };
        Load::of(&context, "uniform:16..1024", "bimodal:20,2000,0.1", 10_000).unwrap()
    }

    /// Regression test: the experiment compared only the sizes of the largest blocks. That size mostly shows how full
    /// the memory is, and the buddy allocator uses a third more memory.
    #[test]
    fn placement_policies_are_compared_at_equal_memory_use() {
        let runs = runs_with_equal_memory(1 << 18, &workload()).unwrap();
        let buddy = runs[0].in_use();
        assert!((30.0..80.0).contains(&buddy), "{buddy}");
        for run in &runs {
            assert_eq!(run.outcome.refused, 0, "{:?}", run.policy);
            assert!((run.in_use() - buddy).abs() < 1.0, "{:?}: {} and {buddy}", run.policy, run.in_use());
        }
        // With memories of equal size, the fractions in use would differ.
        let first = Policy::Named(Name::FirstFit).run(1 << 18, &workload()).unwrap();
        assert!(first.in_use() < buddy - 5.0, "{}", first.in_use());
    }

    /// With three quarters of its memory free, a buddy allocator's largest free block can still be only half of the
    /// memory.
    #[test]
    fn largest_buddy_block_is_compared_with_the_possible_maximum() {
        let sample = |largest, total| Sample {
            holes: crate::allocators::Holes { count: 2, largest, total },
            ..Sample::default()
        };
        let run = |policy| Run { policy, bytes: 4096, outcome: Outcome::default() };
        let sample = sample(2048, 3072);
        assert_eq!(run(Policy::Named(Name::Buddy)).percent_of_possible(&sample), 100.0);
        assert!((run(Policy::Named(Name::Tlsf)).percent_of_possible(&sample) - 66.7).abs() < 0.1);
    }
}

//! Knuth's fifty-percent rule: in equilibrium there are half as many holes as blocks (The Art of Computer Programming 1,
//! 2.5; Shore, "Anomalous Behavior of the Fifty-Percent Rule in Dynamic Memory Allocation", 1977).

use super::{Context, bounded};
use crate::lab::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use crate::lab::heap::{Fit, Order};
use crate::lab::{Allocator, Heap};
use anyhow::Context as _;
use clap::Args;
use core::alloc::Layout;
use rand::RngExt;
use rand_pcg::Pcg64;

/// Are there half as many holes as blocks?
///
/// A heap is filled and kept at a number of blocks: one that is picked at random is freed, one of a random size is allocated.
/// Knuth's argument gives p/2 holes a block, where p is the part of allocations that leave a rest; with many sizes p is almost
/// 1, with few sizes it is not. The rule says nothing of how good a policy is: it holds for first fit and best fit alike.
#[derive(Debug, Args)]
pub struct FiftyPercent {
    /// Blocks in use.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=500_000))]
    blocks: u32,
    /// Blocks freed and allocated anew, for each block in use.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turnovers: u32,
}

/// Looks at blocks, at most: a minute or so.
const MOST: u64 = 4_000_000_000;

/// Sizes that are asked for.
#[derive(Clone, Copy)]
enum Sizes {
    Even,
    Eight,
    One,
}

impl Sizes {
    const ALL: [(&str, Self); 3] =
        [("16 to 2048", Self::Even), ("eight sizes", Self::Eight), ("one size", Self::One)];

    fn pick(self, rng: &mut Pcg64) -> usize {
        match self {
            Self::Even => rng.random_range(16..=2048),
            Self::Eight => 128 * rng.random_range(1..=8),
            Self::One => 512,
        }
    }
}

const POLICIES: [(&str, Fit, Order); 5] = [
    ("first fit, by address", Fit::First, Order::Address),
    ("first fit, last freed first", Fit::First, Order::Lifo),
    ("best fit, by address", Fit::Best, Order::Address),
    ("next fit, by address", Fit::Next, Order::Address),
    ("next fit, last freed first", Fit::Next, Order::Lifo),
];

/// Holes a block, the part of allocations that left a rest, and steps a search; over the second half of the run.
struct Found {
    holes: f64,
    rest: f64,
    steps: f64,
    curve: Vec<(f64, f64)>,
}

impl FiftyPercent {
    fn equilibrium(
        &self,
        blocks: u32,
        mut rng: Pcg64,
        fit: Fit,
        order: Order,
        sizes: Sizes,
    ) -> anyhow::Result<Found> {
        let layout = |rng: &mut Pcg64| Layout::from_size_align(sizes.pick(rng), 1).context("a size");
        // Room for twice as much as is in use, so that nothing is refused.
        let mut heap = Heap::new((blocks as usize * 4096).next_multiple_of(16), fit, order)?;
        let mut held = Vec::new();
        for _ in 0..blocks {
            held.push(heap.alloc(layout(&mut rng)?).context("room: the heap is twice as large")?);
        }
        let (mut holes, mut samples, mut curve) = (0.0, 0.0, Vec::new());
        let mut before = heap.work();
        for turnover in 0..self.turnovers {
            if turnover == self.turnovers / 2 {
                before = heap.work();
            }
            for _ in 0..blocks {
                let block = held.swap_remove(rng.random_range(0..held.len()));
                heap.free(block);
                held.push(heap.alloc(layout(&mut rng)?).context("room: the heap is twice as large")?);
            }
            // The wilderness behind the last block is none of the rule's holes.
            let ratio = heap.holes().count.saturating_sub(1) as f64 / held.len() as f64;
            curve.push((f64::from(turnover + 1), ratio));
            if turnover >= self.turnovers / 2 {
                holes += ratio;
                samples += 1.0;
            }
        }
        let work = heap.work();
        let allocs = (work.allocs - before.allocs) as f64;
        Ok(Found {
            holes: holes / samples,
            rest: (work.splits - before.splits) as f64 / allocs,
            steps: (work.steps - before.steps) as f64 / allocs,
            curve,
        })
    }

    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "are there half as many holes as blocks?";
        let mut findings = Findings::new("fifty-percent", question, context.seed);
        // Searches are as long as there are blocks: a quarter of the blocks is a sixteenth of the work.
        let blocks = if context.quick { (self.blocks / 4).max(10) } else { self.blocks };
        let options = format!("--blocks {} --turnovers {}", self.blocks, self.turnovers);
        let looks = u64::from(blocks).pow(2) * u64::from(self.turnovers);
        bounded(&options, looks, MOST, "looks at blocks or so, blocks times blocks times turnovers")?;
        let mut table = Table::new(
            format!("{blocks} blocks, turned over {} times", self.turnovers),
            &["policy", "sizes", "holes a block", "half of those that left a rest", "steps an operation"],
        )
        .named_by(2);
        let mut curves = Vec::new();
        let (mut first, mut fewest, mut worst) = (0.0, f64::MAX, 0.0f64);
        let stage = context.progress.stage("fifty-percent", (POLICIES.len() * Sizes::ALL.len()) as u64);
        for (i, (policy, fit, order)) in POLICIES.into_iter().enumerate() {
            for (k, (name, sizes)) in Sizes::ALL.into_iter().enumerate() {
                let found = self.equilibrium(blocks, context.rng(), fit, order, sizes)?;
                table.row(vec![
                    policy.into(),
                    name.into(),
                    Value::Number(found.holes, 3),
                    Value::Number(found.rest / 2.0, 3),
                    Value::Number(found.steps, 1),
                ]);
                if k == 0 {
                    if i == 0 {
                        first = found.holes;
                    }
                    fewest = fewest.min(found.holes);
                    worst = worst.max((found.holes - found.rest / 2.0).abs());
                    curves.push(Series { name: policy.into(), points: found.curve });
                }
                stage.at((i * Sizes::ALL.len() + k + 1) as u64);
            }
        }
        drop(stage);
        findings.table(table);
        findings.claim(Claim {
            says: "in equilibrium there are half as many holes as blocks".into(),
            source: "Knuth, The Art of Computer Programming 1, 2.5".into(),
            found: format!("{first:.3} holes a block under first fit by address, sizes 16 to 2048"),
            holds: match first {
                0.45..=0.55 => Holds::Yes,
                0.3..=0.7 => Holds::Partly,
                _ => Holds::No,
            },
            measured: false,
        });
        findings.claim(Claim {
            says: "there can be far fewer: the rule takes for granted that blocks lie without order".into(),
            source: "Shore 1977".into(),
            found: format!("{fewest:.3} holes a block under best fit, which often fits exactly"),
            holds: if fewest < 0.4 { Holds::Yes } else { Holds::No },
            measured: false,
        });
        findings.note(format!(
            "Half of the part of allocations that left a rest gives the holes to within {worst:.3} a block, whatever the policy."
        ));
        findings.chart(Chart {
            title: "Holes a block, sizes 16 to 2048".into(),
            x: Axis::linear("turnovers"),
            y: Axis::linear("holes a block"),
            series: curves,
            measured: false,
        });
        Ok(findings)
    }
}

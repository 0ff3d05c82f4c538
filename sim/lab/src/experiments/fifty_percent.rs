//! Knuth's fifty-percent rule: in equilibrium, a heap has half as many holes as blocks (The Art of Computer Programming
//! 1, 2.5; Shore, "Anomalous Behavior of the Fifty-Percent Rule in Dynamic Memory Allocation", 1977).

use super::{Context, check_bound};
use crate::allocators::heap::{Fit, Order};
use crate::demos::fifty_percent::{Equilibrium, Sizes};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use anyhow::Context as _;
use clap::Args;
use rand_pcg::Pcg64;

/// Are there half as many holes as blocks?
///
/// The experiment first fills a heap with a number of blocks. Each step then frees a random block, and allocates a
/// block of a random size. Knuth's argument gives p/2 holes per block; p is the fraction of allocations that leave a
/// remainder. With many sizes, p is almost 1; with few sizes, p is smaller. Rounding sizes up to a granule reduces the
/// number of different sizes. Each policy runs with a granule of 1 byte and with a granule of 16 bytes, as most heaps
/// have. The fifty-percent rule does not predict the quality of a policy.
#[derive(Debug, Args)]
pub struct FiftyPercent {
    /// Blocks in use.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=500_000))]
    blocks: u32,
    /// Number of turnovers; each turnover replaces as many random blocks as are in use.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turnovers: u32,
}

/// The largest number of block inspections that a run may need; they take about a minute.
const MAX_INSPECTED_BLOCKS: u64 = 4_000_000_000;

const FIT_POLICIES: [(&str, Fit, Order); 5] = [
    ("first fit, by address", Fit::First, Order::Address),
    ("first fit, last freed first", Fit::First, Order::Lifo),
    ("best fit, by address", Fit::Best, Order::Address),
    ("next fit, by address", Fit::Next, Order::Address),
    ("next fit, last freed first", Fit::Next, Order::Lifo),
];

/// The indices of first fit and best fit in `FIT_POLICIES`, both with blocks in address order.
const FIRST: usize = 0;
const BEST_FIT_INDEX: usize = 2;
/// The granules, in bytes; sizes are rounded up to multiples of a granule.
const GRANULE_BYTES: [usize; 2] = [1, 16];

impl FiftyPercent {
    fn equilibrium(
        &self,
        blocks: u32,
        rng: Pcg64,
        policy: (Fit, Order),
        granule: usize,
        sizes: Sizes,
    ) -> anyhow::Result<Equilibrium> {
        const LARGER_HEAP: &str = "room: the heap is twice as large";
        let mut heap = Equilibrium::new(blocks as usize, rng, policy, granule, sizes).context(LARGER_HEAP)?;
        for _ in 0..self.turnovers {
            heap.replace(blocks as usize).context(LARGER_HEAP)?;
            heap.record_turnover();
        }
        Ok(heap)
    }

    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "are there half as many holes as blocks?";
        let mut findings = Findings::new("fifty-percent", question, context.seed);
        // The length of a search is proportional to the number of blocks, so a quarter of the blocks takes a sixteenth
        // of the work.
        let blocks = if context.quick { (self.blocks / 4).max(10) } else { self.blocks };
        let options = format!("--blocks {} --turnovers {}", self.blocks, self.turnovers);
        let inspections = u64::from(blocks).pow(2) * u64::from(self.turnovers);
        check_bound(
            &options,
            inspections,
            MAX_INSPECTED_BLOCKS,
            "inspections of blocks, about blocks times blocks times turnovers",
        )?;
        let mut table = Table::new(
            format!("{blocks} blocks, turned over {} times", self.turnovers),
            &[
                "policy",
                "sizes",
                "granule, bytes",
                "holes a block",
                "half of those that left a rest",
                "steps of a search",
            ],
        )
        .named_by(3);
        let mut curves = Vec::new();
        let (mut max_spread, mut results) = (0.0f64, Vec::new());
        let runs = FIT_POLICIES.len() * Sizes::ALL.len() * GRANULE_BYTES.len();
        let stage = context.progress.stage("fifty-percent", runs as u64);
        for (policy, fit, order) in FIT_POLICIES {
            for (name, _, sizes) in Sizes::ALL {
                for granule in GRANULE_BYTES {
                    let heap = self.equilibrium(blocks, context.rng(), (fit, order), granule, sizes)?;
                    let result = heap.second_half();
                    table.row(vec![
                        policy.into(),
                        name.into(),
                        granule.into(),
                        Value::Number(result.holes, 3),
                        Value::Number(result.rest / 2.0, 3),
                        Value::Number(result.steps, 1),
                    ]);
                    if matches!(sizes, Sizes::Even) {
                        max_spread = max_spread.max((result.holes - result.rest / 2.0).abs());
                        results.push((policy, granule, result.holes));
                        if granule == 1 {
                            let points = (1..).map(f64::from).zip(heap.curve()).collect();
                            curves.push(Series { name: policy.into(), points });
                        }
                    }
                    stage.at(table.rows.len() as u64);
                }
            }
        }
        drop(stage);
        findings.table(table);
        let holes_of = |policy: usize, expected: usize| {
            let result = results
                .iter()
                .find(|(name, granule, _)| (*name, *granule) == (FIT_POLICIES[policy].0, expected));
            result.map_or(0.0, |(.., holes)| *holes)
        };
        let (first, rounded) = (holes_of(FIRST, 1), holes_of(FIRST, 16));
        findings.claim(Claim {
            says: "in equilibrium there are half as many holes as blocks".into(),
            source: "Knuth, The Art of Computer Programming 1, 2.5".into(),
            found: format!(
                "first fit by address has {first:.3} holes per block with sizes of 16 to 2048 bytes, and {rounded:.3} if the sizes \
                 are rounded up to 16"
            ),
            holds: match first {
                0.45..=0.55 => Holds::Yes,
                0.3..=0.7 => Holds::Partly,
                _ => Holds::No,
            },
            measured: false,
        });
        let (best, best_rounded) = (holes_of(BEST_FIT_INDEX, 1), holes_of(BEST_FIT_INDEX, 16));
        findings.claim(Claim {
            says: "best fit leaves far fewer holes than the rule says, because it often fits exactly".into(),
            source: "of heaps that round sizes up; after Shore 1977".into(),
            found: format!(
                "best fit leaves {best:.3} holes per block without rounding, and {best_rounded:.3} with a granule of 16: the rounding turns 2,033 sizes into \
                 128, so exact fits occur; less than 0.4 counts as far fewer"
            ),
            holds: Holds::each([best, best_rounded].map(|holes| Holds::from_certain_result(holes < 0.4))),
            measured: false,
        });
        findings.note(format!(
            "Half the fraction of allocations that left a remainder predicts the holes per block to within {max_spread:.3}, for every policy and granule."
        ));
        findings.chart(Chart {
            title: "Holes a block, sizes 16 to 2048 to the byte".into(),
            x: Axis::linear("turnovers"),
            y: Axis::linear("holes a block"),
            series: curves,
            measured: false,
        });
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the output described an effect of rounding to 16 bytes as a property of best fit.
    #[test]
    fn best_fit_leaves_about_half_as_many_holes_as_blocks() {
        let experiment = FiftyPercent { blocks: 1000, turnovers: 20 };
        let holes_of = |policy: usize, granule| {
            let (_, fit, order) = FIT_POLICIES[policy];
            let rng = rand::SeedableRng::seed_from_u64(1);
            experiment.equilibrium(1000, rng, (fit, order), granule, Sizes::Even).unwrap().second_half().holes
        };
        assert!((0.45..0.55).contains(&holes_of(FIRST, 1)), "{}", holes_of(FIRST, 1));
        assert!((0.4..0.5).contains(&holes_of(BEST_FIT_INDEX, 1)), "{}", holes_of(BEST_FIT_INDEX, 1));
        assert!(holes_of(BEST_FIT_INDEX, 16) < 0.35, "{}", holes_of(BEST_FIT_INDEX, 16));
    }
}

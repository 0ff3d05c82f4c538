//! Knuth's fifty-percent rule: a heap in equilibrium, and a demo with four such heaps.

use super::command::Command;
use super::lanes::{Program, Steps, parts_of};
use super::structure::Lane;
use crate::allocators::headerless::Headerless;
use crate::allocators::heap::{Fit, Order};
use core::ops::Range;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// The distribution from which requested sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    Even,
    Eight,
    One,
}

impl Sizes {
    /// All size distributions, each with its names in tables and in commands.
    pub(crate) const ALL: [(&str, &str, Self); 3] = [
        ("16 to 2048", "16-2048", Self::Even),
        ("eight sizes", "eight-sizes", Self::Eight),
        ("one size", "one-size", Self::One),
    ];

    fn pick(self, rng: &mut Pcg64) -> usize {
        match self {
            Self::Even => rng.random_range(16..=2048),
            Self::Eight => 128 * rng.random_range(1..=8),
            Self::One => 512,
        }
    }
    /// Returns the mean size of the distribution, rounded up.
    fn mean(self) -> usize {
        match self {
            Self::Even => 1032,
            Self::Eight => 576,
            Self::One => 512,
        }
    }
}

/// A heap in which the number of blocks in use stays constant.
#[derive(Debug)]
pub(crate) struct Equilibrium {
    heap: Headerless,
    rng: Pcg64,
    sizes: Sizes,
    /// The blocks in use, each with the number of the turnover in which it was allocated.
    blocks: Vec<(Range<usize>, usize)>,
    /// The end of the highest block that was ever in use in the heap.
    top: usize,
    /// The counts before the first turnover, and after every turnover.
    counts: Vec<Counts>,
}

/// Counts of a heap between two turnovers.
#[derive(Clone, Copy, Debug)]
struct Counts {
    holes: usize,
    splits: u64,
    steps: u64,
}

/// The results for the second half of the turnovers: holes per block, the fraction of allocations that left a
/// remainder, and steps per search.
pub(crate) struct SecondHalfResults {
    pub(crate) holes: f64,
    pub(crate) rest: f64,
    pub(crate) steps: f64,
}

impl Equilibrium {
    /// Creates a heap with `blocks` blocks in use. The heap has twice the used memory, so that no request is refused;
    /// if a request is refused nevertheless, returns `None`.
    pub(crate) fn new(
        blocks: usize,
        rng: Pcg64,
        (fit, order): (Fit, Order),
        granule: usize,
        sizes: Sizes,
    ) -> Option<Self> {
        let heap = Headerless::new(blocks * 4096, granule, fit, order);
        let mut own = Self { heap, rng, sizes, blocks: vec![], top: 0, counts: vec![] };
        for _ in 0..blocks {
            own.alloc()?;
        }
        own.record_turnover();
        Some(own)
    }

    fn alloc(&mut self) -> Option<()> {
        let block = self.heap.alloc(self.sizes.pick(&mut self.rng))?;
        self.top = self.top.max(block.end);
        self.blocks.push((block, self.counts.len()));
        Some(())
    }
    /// Replaces `n` blocks, one after the other: frees a random block, and then allocates another.
    pub(crate) fn replace(&mut self, n: usize) -> Option<()> {
        for _ in 0..n {
            let freed = self.rng.random_range(0..self.blocks.len());
            self.heap.free(self.blocks.swap_remove(freed).0);
            self.alloc()?;
        }
        Some(())
    }
    /// Records the counts after a turnover.
    pub(crate) fn record_turnover(&mut self) {
        let counts = Counts { holes: self.holes(), splits: self.heap.splits(), steps: self.heap.steps() };
        self.counts.push(counts);
    }

    /// Returns the number of holes. The free memory after the last block is not a hole in the sense of the rule.
    fn holes(&self) -> usize {
        self.heap.holes().saturating_sub(1)
    }
    /// Returns the number of holes per block after each turnover.
    pub(crate) fn curve(&self) -> impl Iterator<Item = f64> {
        self.counts[1..].iter().map(|counts| counts.holes as f64 / self.blocks.len() as f64)
    }
    /// Returns the results for the second half of the turnovers so far.
    pub(crate) fn second_half(&self) -> SecondHalfResults {
        let turnovers = self.counts.len() - 1;
        let (before, after) = (self.counts[turnovers / 2], self.counts[turnovers]);
        let samples = (turnovers - turnovers / 2) as f64;
        let allocs = self.blocks.len() as f64 * samples;
        SecondHalfResults {
            holes: self.curve().skip(turnovers / 2).sum::<f64>() / samples,
            rest: (after.splits - before.splits) as f64 / allocs,
            steps: (after.steps - before.steps) as f64 / allocs,
        }
    }
}

/// The number of blocks in each of the demo's heaps, and the number of turnovers that the demo can show.
const BLOCKS: usize = 100;
const TURNOVERS: usize = 50;
/// The seed that the experiment on the fifty-percent rule uses.
const SEED: u64 = 1;

const HEAP_POLICIES: [(&str, Fit, usize); 4] = [
    ("first fit", Fit::First, 1),
    ("first fit, rounded up to 16", Fit::First, 16),
    ("best fit", Fit::Best, 1),
    ("best fit, rounded up to 16", Fit::Best, 16),
];

/// The demo: four heaps that serve the same requests.
#[derive(Debug, Default)]
pub(super) struct FiftyPercent {
    heaps: Vec<Equilibrium>,
}

impl FiftyPercent {
    fn turnovers(&self) -> usize {
        self.heaps.first().map_or(0, |heap| heap.counts.len() - 1)
    }
    fn fill(&mut self, sizes: &str) -> Result<String, String> {
        let sizes = Sizes::ALL.into_iter().find(|(_, word, _)| *word == sizes);
        let (name, _, sizes) =
            sizes.ok_or("Expected `fill 16-2048`, `fill eight-sizes` or `fill one-size`.")?;
        let heap = |(_, fit, granule)| {
            Equilibrium::new(BLOCKS, Pcg64::seed_from_u64(SEED), (fit, Order::Address), granule, sizes)
        };
        self.heaps = HEAP_POLICIES.into_iter().map(heap).collect::<Option<_>>().ok_or("The heap is full.")?;
        let unit = if sizes == Sizes::Even { " bytes" } else { "" };
        Ok(format!(
            "{BLOCKS} blocks, {name}{unit}, are allocated one after the other: the heaps have no holes yet."
        ))
    }
    fn replace(&mut self, n: usize) -> Result<(), String> {
        let done = self.heaps.iter_mut().map(|heap| heap.replace(n)).collect::<Option<Vec<_>>>();
        done.map(|_| ()).ok_or_else(|| "The heap is full.".to_owned())
    }
    fn round(&mut self, steps: &mut Steps) -> Result<String, String> {
        match self.turnovers() {
            _ if self.heaps.is_empty() => {
                return Err("No blocks are in use: `fill` allocates them.".to_owned());
            }
            TURNOVERS => {
                return Err(format!("The demo ends after {TURNOVERS} turnovers: `fill` starts again."));
            }
            _ => {}
        }
        self.replace(BLOCKS / 2)?;
        steps.push((
            "Half of the blocks are replaced: a random block is freed, another is allocated.".to_owned(),
            self.lanes(),
        ));
        self.replace(BLOCKS - BLOCKS / 2)?;
        self.heaps.iter_mut().for_each(Equilibrium::record_turnover);
        let holes: Vec<_> = self.heaps.iter().map(|heap| heap.holes().to_string()).collect();
        let holes = holes.join(", ");
        let said = format!("{BLOCKS} blocks are in use. From top to bottom, the heaps have {holes} holes.");
        steps.push((
            format!("The other half of the blocks is replaced: turnover {} is complete.", self.turnovers()),
            vec![],
        ));
        Ok(said)
    }
}

impl Program for FiftyPercent {
    const KINDS: &'static [&'static str] = &["newly allocated", "older block"];

    fn run(&mut self, command: &Command, steps: &mut Steps) -> Result<String, String> {
        match command {
            Command::Fill { what } => self.fill(what),
            Command::Round => self.round(steps),
            _ => Err("Expected `fill SIZES` or `round`.".to_owned()),
        }
    }
    fn lanes(&self) -> Vec<Lane> {
        let lane = |((name, ..), heap): ((&str, Fit, usize), &Equilibrium)| {
            let last = heap.blocks.iter().map(|(_, turnover)| *turnover).max();
            let ranges = heap
                .blocks
                .iter()
                .map(|(range, turnover)| (range.clone(), Self::KINDS[usize::from(Some(*turnover) < last)]));
            let end = (BLOCKS * heap.sizes.mean() * 3 / 2).max(heap.top);
            Lane {
                name: name.to_owned(),
                says: format!("{} holes, {BLOCKS} blocks", heap.holes()),
                parts: parts_of(ranges.collect(), 1, heap.top, 0..end),
                curve: heap.counts.iter().map(|counts| counts.holes).collect(),
            }
        };
        HEAP_POLICIES.into_iter().zip(&self.heaps).map(lane).collect()
    }
    fn facts(&self) -> Vec<(String, String)> {
        if self.turnovers() == 0 {
            return vec![];
        }
        let (turnovers, begin) = (self.turnovers(), self.turnovers() / 2 + 1);
        let fact = |((name, ..), heap): ((&str, Fit, usize), &Equilibrium)| {
            let SecondHalfResults { holes, rest, steps } = heap.second_half();
            let found = format!(
                "{holes:.3} holes per block in turnovers {begin} to {turnovers}; half the fraction of allocations that left a remainder: {:.3}; steps per search: {steps:.1}",
                rest / 2.0
            );
            (name.to_owned(), found)
        };
        HEAP_POLICIES.into_iter().zip(&self.heaps).map(fact).collect()
    }
}

//! The workload of an experiment, as the command line has it.

use super::Context;
use crate::workload::{Arrivals, Lifetimes, Op, Ops, Sizes, Workload};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;
use std::path::PathBuf;

/// A workload of distributions, or a file.
#[derive(Debug, Args)]
pub(super) struct Load {
    /// How large blocks are: fixed:BYTES, uniform:MIN..MAX, lognormal:MEDIAN,SIGMA[,MAX], zipf:EXPONENT,MIN..MAX[,STEP],
    /// histogram:FILE.csv.
    #[arg(long, value_name = "SIZES", default_value = "uniform:16..1024")]
    sizes: Sizes,
    /// How long they live, in allocations: fixed:N, uniform:MIN..MAX, exponential:MEAN, bimodal:SHORT,LONG,SHARE, forever.
    #[arg(long, value_name = "LIFETIMES", default_value = "bimodal:20,2000,0.1")]
    lifetimes: Lifetimes,
    /// How many come at a time: steady, burst:COUNT,EVERY, poisson:PER_TICK.
    #[arg(long, value_name = "ARRIVALS", default_value = "steady")]
    arrivals: Arrivals,
    /// Allocations and frees.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    operations: u64,
    /// Take the operations from a file instead: .rep of a malloc lab, .csv (op,id,size[,align]), or a kernel's trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "lifetimes", "arrivals", "operations"])]
    trace: Option<PathBuf>,
}

/// Operations, and what they need.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) ops: Vec<Op>,
    /// The largest request, and the strictest alignment.
    pub(super) largest: Layout,
    /// The most bytes that are asked for at a time.
    pub(super) peak: usize,
    /// What it is, in words.
    pub(super) name: String,
}

impl Load {
    /// The operations that these words make.
    pub(super) fn of(
        context: &Context<'_>,
        sizes: &str,
        lifetimes: &str,
        operations: u64,
    ) -> anyhow::Result<Loaded> {
        let load = Self {
            sizes: sizes.parse()?,
            lifetimes: lifetimes.parse()?,
            arrivals: "steady".parse()?,
            operations,
            trace: None,
        };
        load.open(context)
    }

    pub(super) fn open(&self, context: &Context<'_>) -> anyhow::Result<Loaded> {
        let (ops, name) = match &self.trace {
            Some(path) => (Ops::open(path)?, path.display().to_string()),
            None => {
                let workload = Workload {
                    sizes: self.sizes.clone(),
                    lifetimes: self.lifetimes.clone(),
                    arrivals: self.arrivals.clone(),
                    operations: self.operations,
                    seed: context.seed,
                    ..Workload::default()
                };
                let name = format!("sizes {}, lifetimes {}, {}", self.sizes, self.lifetimes, self.arrivals);
                (workload.ops()?, name)
            }
        };
        let ops = ops.collect::<Result<Vec<_>, _>>()?;
        let (mut size, mut align, mut live, mut peak) = (1, 1, 0, 0);
        let mut sizes = rustc_hash::FxHashMap::default();
        for op in &ops {
            match *op {
                Op::Alloc { id, layout } | Op::Resize { id, layout } => {
                    (size, align) = (size.max(layout.size()), align.max(layout.align()));
                    live += layout.size();
                    live -= sizes.insert(id, layout.size()).unwrap_or(0);
                }
                Op::Free { id } => live -= sizes.remove(&id).unwrap_or(0),
            }
            peak = peak.max(live);
        }
        ensure!(peak > 0, "{name}: asks for nothing; expected an allocation");
        let largest = Layout::from_size_align(size, align).context("the largest request")?;
        Ok(Loaded { ops, largest, peak, name })
    }
}

impl Loaded {
    /// The operations, to be driven.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<Op, std::convert::Infallible>> {
        self.ops.iter().copied().map(Ok)
    }
    /// Twice the memory that is asked for at a time, or so much as is said: a power of two from 64 KiB on, so that all
    /// allocators can have it.
    pub(super) fn memory(&self, said: Option<u64>) -> anyhow::Result<usize> {
        let bytes = match said {
            Some(bytes) => bytes as usize,
            None => (2 * self.peak).next_power_of_two().max(1 << 16),
        };
        ensure!(
            bytes <= crate::lab::memory::Memory::MOST,
            "{}: needs {bytes} bytes of memory; expected {} at most",
            self.name,
            crate::lab::memory::Memory::MOST
        );
        Ok(bytes)
    }
}

/// A size of memory, as `--memory` has it.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    let bytes = crate::cli::bytes(text)?;
    match bytes {
        65_536..=0x8000_0000 if bytes.is_power_of_two() => Ok(bytes),
        _ => Err("expected a power of two from 64K to 2G".to_owned()),
    }
}

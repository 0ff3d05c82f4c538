//! The command-line options that determine an experiment's workload.

use super::Context;
use crate::workload::{Arrivals, Lifetimes, Op, Sizes, Workload, WorkloadOps};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;
use std::path::PathBuf;

/// A workload that is generated from distributions, or read from a file.
#[derive(Debug, Args)]
pub(super) struct Load {
    /// Sizes of blocks: fixed:BYTES, uniform:MIN..MAX, lognormal:MEDIAN,SIGMA[,MAX], zipf:EXPONENT,MIN..MAX[,STEP],
    /// histogram:FILE.csv.
    #[arg(long, value_name = "SIZES", default_value = "uniform:16..1024")]
    sizes: Sizes,
    /// Lifetimes, in allocations: fixed:N, uniform:MIN..MAX, exponential:MEAN, bimodal:SHORT,LONG,SHARE, forever.
    #[arg(long, value_name = "LIFETIMES", default_value = "bimodal:20,2000,0.1")]
    lifetimes: Lifetimes,
    /// Arrivals: steady, burst:COUNT,EVERY, poisson:PER_TICK.
    #[arg(long, value_name = "ARRIVALS", default_value = "steady")]
    arrivals: Arrivals,
    /// Number of allocations and frees.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    operations: u64,
    /// Take the operations from a file instead: .rep of a malloc lab, .csv (op,id,size[,align]), or a kernel's trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "lifetimes", "arrivals", "operations"])]
    trace: Option<PathBuf>,
}

/// The operations of a workload, and what they require of an allocator.
#[derive(Debug)]
pub(super) struct LoadedWorkload {
    pub(super) ops: Vec<Op>,
    /// The size of the largest request, and the largest alignment of any request.
    pub(super) largest: Layout,
    /// The size of the smallest request, in bytes.
    smallest: usize,
    /// The largest number of requested bytes in use at a time.
    pub(super) peak: usize,
    /// A description.
    pub(super) name: String,
}

impl Load {
    /// Returns the operations that the command-line arguments specify.
    pub(super) fn of(
        context: &Context<'_>,
        sizes: &str,
        lifetimes: &str,
        operations: u64,
    ) -> anyhow::Result<LoadedWorkload> {
        let load = Self {
            sizes: sizes.parse()?,
            lifetimes: lifetimes.parse()?,
            arrivals: "steady".parse()?,
            operations,
            trace: None,
        };
        load.open(context)
    }

    /// Returns `true` if the operations come from a file, so that the seed has no effect on them.
    pub(super) fn is_recorded(&self) -> bool {
        self.trace.is_some()
    }

    pub(super) fn open(&self, context: &Context<'_>) -> anyhow::Result<LoadedWorkload> {
        let (ops, name) = match &self.trace {
            Some(path) => (WorkloadOps::open(path)?, path.display().to_string()),
            None => {
                let workload = Workload {
                    sizes: self.sizes.clone(),
                    lifetimes: self.lifetimes.clone(),
                    arrivals: self.arrivals.clone(),
                    operations: context.scale(self.operations as usize) as u64,
                    seed: context.seed,
                    ..Workload::default()
                };
                let name = format!("sizes {}, lifetimes {}, {}", self.sizes, self.lifetimes, self.arrivals);
                (workload.ops()?, name)
            }
        };
        LoadedWorkload::of(ops.collect::<Result<Vec<_>, _>>()?, name)
    }
}

impl LoadedWorkload {
    /// Computes the memory that these operations require.
    fn of(ops: Vec<Op>, name: String) -> anyhow::Result<Self> {
        let (mut size, mut align, mut live, mut peak) = (1, 1, 0_usize, 0);
        let (mut sizes, mut smallest) = (rustc_hash::FxHashMap::default(), usize::MAX);
        for op in &ops {
            match *op {
                Op::Alloc { id, layout } | Op::Resize { id, layout } => {
                    (size, align) = (size.max(layout.size()), align.max(layout.align()));
                    smallest = smallest.min(layout.size());
                    live -= sizes.insert(id, layout.size()).unwrap_or(0);
                    live = live.checked_add(layout.size()).with_context(|| {
                        format!("{name}: requests {} bytes or more at a time", usize::MAX)
                    })?;
                }
                Op::Free { id } => live -= sizes.remove(&id).unwrap_or(0),
            }
            peak = peak.max(live);
        }
        ensure!(peak > 0, "{name}: the workload has no allocation; expected at least one");
        let largest = Layout::from_size_align(size, align).context("the largest request")?;
        Ok(Self { ops, largest, smallest, peak, name })
    }
    /// Iterates over the operations in the form that [`drive`](crate::allocators::drive::drive) takes.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<Op, std::convert::Infallible>> {
        self.ops.iter().copied().map(Ok)
    }
    /// Returns the memory size that the options request. By default, the size is twice the peak of the requested bytes,
    /// rounded up to a power of two of at least 64 KiB; all allocators accept such a size.
    pub(super) fn memory(&self, requested: Option<u64>) -> anyhow::Result<usize> {
        const MAX_BYTES: usize = crate::allocators::memory::Memory::MAX_BYTES;
        let bytes = match requested {
            Some(bytes) => bytes as usize,
            None => {
                let double_peak = self.peak.checked_mul(2).and_then(usize::checked_next_power_of_two);
                let bytes = double_peak.filter(|bytes| *bytes <= MAX_BYTES).with_context(|| {
                    format!(
                        "{}: requests {} bytes at a time; expected at most {}, half of the largest memory",
                        self.name,
                        self.peak,
                        MAX_BYTES / 2
                    )
                })?;
                bytes.max(1 << 16)
            }
        };
        ensure!(
            bytes >= self.smallest,
            "--memory {bytes}: {}: requests at least {} bytes; expected a memory of at least {}",
            self.name,
            self.smallest,
            self.smallest.next_power_of_two()
        );
        Ok(bytes)
    }
}

/// Parses the argument of the option `--memory`.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    let range = 1 << 16..=crate::allocators::memory::Memory::MAX_BYTES as u64;
    let bytes =
        uslab_output::bytes(text).ok().filter(|bytes| range.contains(bytes) && bytes.is_power_of_two());
    bytes.ok_or_else(|| "expected a power of two from 64K to 2G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: twice the bytes of 2^23 blocks of 2^40 bytes overflowed to 0, so the workload got a memory of
    /// 64 KiB.
    #[test]
    fn sum_of_requested_bytes_does_not_overflow() {
        let block = |id, bytes| Op::Alloc { id, layout: Layout::from_size_align(bytes, 1).unwrap() };
        let half_of_memory = 1 << 62;
        let loaded_workload =
            LoadedWorkload::of(vec![block(0, half_of_memory), block(1, half_of_memory)], "two".to_owned())
                .unwrap();
        assert_eq!(
            loaded_workload.memory(None).unwrap_err().to_string(),
            "two: requests 9223372036854775808 bytes at a time; expected at most 1073741824, half of the largest memory"
        );
        let error =
            LoadedWorkload::of((0..4).map(|id| block(id, half_of_memory)).collect(), "four".to_owned())
                .unwrap_err();
        assert_eq!(error.to_string(), "four: requests 18446744073709551615 bytes or more at a time");
        let resize = Op::Resize { id: 1, layout: Layout::from_size_align(half_of_memory, 1).unwrap() };
        let reuse = vec![block(0, half_of_memory), Op::Free { id: 0 }, block(1, half_of_memory), resize];
        assert_eq!(LoadedWorkload::of(reuse, String::new()).unwrap().peak, half_of_memory);
    }

    #[test]
    fn memory_below_the_smallest_request_is_refused() {
        let layout = Layout::from_size_align(1 << 20, 16).unwrap();
        let loaded_workload =
            LoadedWorkload::of(vec![Op::Alloc { id: 0, layout }], "one".to_owned()).unwrap();
        assert_eq!(
            loaded_workload.memory(Some(1 << 16)).unwrap_err().to_string(),
            "--memory 65536: one: requests at least 1048576 bytes; expected a memory of at least 1048576"
        );
        assert_eq!(loaded_workload.memory(None).unwrap(), 1 << 21);
    }
}

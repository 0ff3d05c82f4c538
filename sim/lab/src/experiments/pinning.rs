//! The experiment on pinning: a few long-lived blocks between many short-lived blocks prevent free memory from being
//! merged.

use super::Context;
use crate::allocators::registry::{self, AllocatorVisitor, Name};
use crate::allocators::{Allocator, Holes};
use crate::demos::pinning::{SPACING, fill, free_short_lived};
use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;

/// How much memory is saved by keeping long-lived blocks apart from short-lived ones?
///
/// The experiment fills memory with blocks of one size, and then frees all blocks except one in N. The first run uses
/// one heap for all blocks, the second a separate heap for the long-lived blocks. The size of the largest free piece is
/// the largest request that can be served.
#[derive(Debug, Args)]
pub struct Pinning {
    /// One block in N stays allocated.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..=100_000))]
    one_in: u32,
    /// Size of a block in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size: u32,
    /// Size of the heap in bytes; the separate heap for long-lived blocks gets a sixteenth of these bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = memory)]
    memory: usize,
}

fn memory(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (1 << 16..=1 << 26).contains(n));
    bytes.ok_or_else(|| "expected a power of two from 65536 to 67108864".to_owned())
}

/// Fills an allocator with blocks, and then frees each block for whose number `stays` returns `false`. Returns the
/// number of blocks that filled the allocator, and the holes that remained.
struct Fill<F> {
    layout: Layout,
    stays: F,
}

impl<F: Fn(usize) -> bool> AllocatorVisitor for Fill<F> {
    type Outcome = (usize, Holes);
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<(usize, Holes)> {
        let blocks = fill(allocator, self.layout);
        let count = blocks.len();
        let pinned_blocks = free_short_lived(allocator, blocks, &self.stays);
        allocator.trim();
        let holes = allocator.holes();
        pinned_blocks.into_iter().for_each(|block| allocator.free(block));
        Ok((count, holes))
    }
}

impl Pinning {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how much memory does it save to separate long-lived blocks from short-lived ones?";
        let mut findings = Findings::new("pinning", question, context.seed);
        let layout = Layout::from_size_align(self.size as usize, 1).context("--size")?;
        let (interval, memory) = (self.one_in as usize, self.memory);
        let separate = memory / SPACING;
        let mut table = Table::new(
            format!(
                "Memory of {memory} bytes full of blocks of {} bytes, of which one in {interval} stays",
                layout.size()
            ),
            &[
                "allocator",
                "blocks",
                "together: holes",
                "largest, bytes",
                "apart: holes",
                "largest, bytes apart",
                "times as large",
            ],
        );
        let (mut gains, mut bars) = (Vec::new(), Vec::new());
        for name in [Name::FirstFit, Name::BestFit, Name::Tlsf, Name::Buddy, Name::Slab] {
            let stays = |i: usize| i.is_multiple_of(interval);
            let (blocks, mixed_holes) = registry::run(name, memory, layout, &mut Fill { layout, stays })?;
            let (_, separate_holes) =
                registry::run(name, memory - separate, layout, &mut Fill { layout, stays: |_| false })?;
            let (room, _) = registry::run(name, separate, layout, &mut Fill { layout, stays: |_| false })?;
            let long_lived = blocks.div_ceil(interval);
            ensure!(
                long_lived <= room,
                "{}: {long_lived} blocks stay, but {separate} bytes hold only {room}; expected a larger --one-in",
                name.display_name()
            );
            let gain_ratio = separate_holes.largest as f64 / mixed_holes.largest.max(1) as f64;
            table.row(vec![
                name.display_name().into(),
                blocks.into(),
                mixed_holes.count.into(),
                mixed_holes.largest.into(),
                separate_holes.count.into(),
                separate_holes.largest.into(),
                Value::Number(gain_ratio, 1),
            ]);
            gains.push(gain_ratio);
            bars.push((format!("{}, together", name.display_name()), mixed_holes.largest as f64));
            bars.push((format!("{}, apart", name.display_name()), separate_holes.largest as f64));
        }
        findings.table(table);
        findings.bars(Bars::exact("The largest free piece", Axis::logarithmic("bytes"), bars));
        let max_gain = gains.iter().copied().fold(0.0, f64::max);
        findings.claim(Claim {
            says: "long-lived blocks among others keep free memory from becoming one piece; in a separate range they do not".into(),
            source: "Memory Allocators from Scratch, after MacDougall 2016".into(),
            found: format!(
                "a separate range for long-lived blocks makes the largest free piece up to {max_gain:.0} times as large as one shared range does; in {} of {} allocators it is more than 1.5 times as large",
                gains.iter().filter(|gain_ratio| **gain_ratio > 1.5).count(),
                gains.len()
            ),
            holds: if gains.iter().all(|gain_ratio| *gain_ratio > 1.5) { Holds::Yes } else { Holds::Partly },
            measured: false,
        });
        Ok(findings)
    }
}

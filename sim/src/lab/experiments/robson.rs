//! Robson's adversary: a program that makes any allocator that does not move blocks need far more memory than is in use
//! ("An Estimate of the Store Size Necessary for Dynamic Storage Allocation", 1971).

use super::Context;
use crate::lab::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use crate::lab::heap::{Fit, Order};
use crate::lab::tlsf::Search;
use crate::lab::{Allocator, Buddy, Heap, Tlsf};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;
use core::ops::Range;

/// How much memory can a program force an allocator to take, with little in use?
///
/// The adversary never has more than M bytes in use. It allocates units, then, size by size, frees all blocks but those that
/// lie on a grid, so that no hole is large enough for the next size, and allocates that size until M bytes are in use again.
/// No allocator that does not move blocks does better in the worst case than about M, and M/2 more for each doubling of size.
#[derive(Debug, Args)]
pub struct Robson {
    /// Bytes in use at most, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 18, value_parser = memory)]
    live: usize,
    /// The largest block, in units of 32 bytes, as a power of two. No larger than what is in use.
    #[arg(long, value_name = "DOUBLINGS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=12))]
    doublings: u32,
}

fn memory(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (4096..=1 << 21).contains(n));
    bytes.ok_or_else(|| "expected a power of two from 4096 to 2097152".to_owned())
}

/// Bytes of the smallest block with its header: tags and rounding make it so for every allocator here.
const UNIT: usize = 32;

/// An allocator, and how many bytes of a request it adds of its own.
struct Victim<A> {
    allocator: A,
    header: usize,
}

/// The end of the highest block that was ever in use, after each step.
fn attack<A: Allocator>(victim: Victim<A>, live: usize, doublings: u32) -> anyhow::Result<Vec<usize>> {
    let Victim { mut allocator, header } = victim;
    let mut held: Vec<(Range<usize>, A::Block)> = Vec::new();
    let (mut grid, mut top, mut steps) = (0, 0, Vec::new());
    for i in 0..=doublings {
        let size = UNIT << i;
        if i > 0 {
            // Of the two grids of this size that keep to the last one, the one on which more bytes lie.
            let on = |grid: usize, range: &Range<usize>| {
                (range.end + size - 1 - grid) / size > (range.start + size - 1 - grid) / size
            };
            let kept = |grid| {
                held.iter().filter(|(range, _)| on(grid, range)).map(|(range, _)| range.len()).sum::<usize>()
            };
            let other = grid + size / 2;
            grid = if kept(other) > kept(grid) { other } else { grid };
            let mut kept = Vec::new();
            for (range, block) in held {
                if on(grid, &range) { kept.push((range, block)) } else { allocator.free(block) }
            }
            held = kept;
        }
        let layout = Layout::from_size_align(size - header, 1).context("a size")?;
        // Ranges begin with the header.
        let mut used: usize = held.iter().map(|(range, _)| range.len()).sum();
        while used + size <= live {
            let block =
                allocator.alloc(layout).context("room: the heap is as large as the bound asks for")?;
            let range = allocator.range(&block);
            let range = range.start - header.min(range.start)..range.end;
            used += range.len();
            top = top.max(range.end);
            held.push((range, block));
        }
        steps.push(top);
    }
    held.into_iter().for_each(|(_, block)| allocator.free(block));
    Ok(steps)
}

impl Robson {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how much memory can a program force an allocator to take, with little in use?";
        let mut findings = Findings::new("robson", question, context.seed);
        let (live, doublings) = (self.live, self.doublings);
        // Robson's bound is one for blocks that fit into what is in use.
        let most = (live / UNIT).ilog2();
        ensure!(
            doublings <= most,
            "--doublings {doublings}: blocks of {} bytes, with {live} in use at most; expected 1 to {most}, or a larger --live",
            UNIT << doublings
        );
        // The work grows with the square of it.
        let quick = (live / 4).max(UNIT << doublings).max(4096).min(live);
        let live = if context.quick { quick } else { live };
        // All that anybody could need, so that nothing is refused.
        let heap = live * (doublings as usize + 2) + (UNIT << doublings);
        let stage = context.progress.stage("robson", 5);
        let mut runs = Vec::new();
        let mut ran = |name, steps: anyhow::Result<Vec<usize>>| -> anyhow::Result<()> {
            runs.push((name, steps?));
            stage.at(runs.len() as u64);
            Ok(())
        };
        for (name, fit) in [
            ("first fit, by address", Fit::First),
            ("best fit, by address", Fit::Best),
            ("next fit, by address", Fit::Next),
        ] {
            let allocator = Heap::new(heap, fit, Order::Address)?;
            ran(name, attack(Victim { allocator, header: 8 }, live, doublings))?;
        }
        let allocator = Tlsf::new(heap, 4, Search::Bitmaps)?;
        ran("TLSF", attack(Victim { allocator, header: 4 }, live, doublings))?;
        let allocator = Buddy::new(heap.next_power_of_two())?;
        ran("buddy", attack(Victim { allocator, header: 0 }, live, doublings))?;
        drop(stage);
        let units = (live / UNIT) as f64;
        let bound = |i: usize| (units * (1.0 + i as f64 / 2.0) - (1_u64 << i) as f64 + 1.0) / units;
        let mut table = Table::new(
            format!("Memory taken, times the {live} bytes in use; sizes from {UNIT} bytes on"),
            &[
                "allocator",
                "largest 1 unit",
                "half of the doublings",
                "all doublings",
                "of Robson's bound, %",
            ],
        );
        let at = |steps: &[usize], i: usize| steps[i] as f64 / live as f64;
        let mut forced = 0;
        for (name, steps) in &runs {
            let last = steps.len() - 1;
            let part = at(steps, last) * 100.0 / bound(last);
            forced += usize::from(part >= 75.0);
            table.row(vec![
                (*name).into(),
                at(steps, 0).into(),
                at(steps, last / 2).into(),
                at(steps, last).into(),
                Value::Number(part, 0),
            ]);
        }
        let last = doublings as usize;
        table.row(vec![
            "Robson's bound".into(),
            bound(0).into(),
            bound(last / 2).into(),
            bound(last).into(),
            Value::Number(100.0, 0),
        ]);
        findings.table(table);
        findings.claim(Claim {
            says: "without moving blocks a program with M bytes in use needs in the worst case about M times (1 + half the \
                   logarithm of the largest size, in the smallest one)"
                .into(),
            source: "Robson 1971".into(),
            found: format!(
                "with {} doublings the adversary forces {} of {} allocators to three quarters of the bound of {:.2} or more",
                doublings,
                forced,
                runs.len(),
                bound(last)
            ),
            holds: match forced {
                0 => Holds::No,
                n if n == runs.len() => Holds::Yes,
                _ => Holds::Partly,
            },
            measured: false,
        });
        let curve = |steps: &[usize]| (0..steps.len()).map(|i| ((UNIT << i) as f64, at(steps, i))).collect();
        let mut series: Vec<_> =
            runs.iter().map(|(name, steps)| Series { name: (*name).into(), points: curve(steps) }).collect();
        let points = (0..=last).map(|i| ((UNIT << i) as f64, bound(i))).collect();
        series.push(Series { name: "Robson's bound".into(), points });
        findings.chart(Chart {
            title: "Memory taken by the time that blocks of a size are allocated".into(),
            x: Axis::logarithmic("bytes of the largest block"),
            y: Axis::linear("times what is in use"),
            series,
            measured: false,
        });
        Ok(findings)
    }
}

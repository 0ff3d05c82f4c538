//! Robson's adversary: a program that forces every allocator that does not move blocks to take far more memory than the
//! program uses ("An Estimate of the Store Size Necessary for Dynamic Storage Allocation", 1971).

use super::Context;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::tlsf::Search;
use crate::allocators::{Allocator, Buddy, Heap, Tlsf};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;
use core::ops::Range;
use uslab::handle::{Handle32x32, HandleTable};

type Handle = Handle32x32;

/// How much memory can a program force an allocator to take, with little in use?
///
/// The adversary never has more than M bytes in use. The adversary first allocates units. For each next size, the
/// adversary frees all blocks except blocks that cross a grid line, so that no hole is large enough. The adversary then
/// allocates blocks of this size until M bytes are in use again. In the worst case, every allocator that does not move
/// blocks needs at least about M, plus M/2 for each doubling of size.
#[derive(Debug, Args)]
pub struct Robson {
    /// Bytes in use at most, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 18, value_parser = memory)]
    live: usize,
    /// The largest block, in units of 32 bytes, as a power of two. At most the bytes in use.
    #[arg(long, value_name = "DOUBLINGS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=12))]
    doublings: u32,
}

fn memory(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (4096..=1 << 21).contains(n));
    bytes.ok_or_else(|| "expected a power of two from 4096 to 2097152".to_owned())
}

/// The name that tables use for the allocator that moves blocks.
const MOVING: &str = "moved together, by handles";

/// The size in bytes of the smallest block with its header; because of tags and rounding, every allocator in this
/// experiment has this smallest block.
const UNIT: usize = 32;

/// An allocator under attack; the sizes of its blocks include headers.
trait AttackedAllocator {
    type Block;
    /// Allocates a block whose size, including its header, is `size` bytes.
    fn alloc(&mut self, size: usize) -> anyhow::Result<Self::Block>;
    fn free(&mut self, block: Self::Block);
    /// Returns the block's current range, including its header.
    fn range(&self, block: &Self::Block) -> Range<usize>;
}

/// An allocator that does not move blocks, and the number of bytes that it adds to a request.
struct NonMovingAllocator<A> {
    allocator: A,
    header: usize,
}

impl<A: Allocator> AttackedAllocator for NonMovingAllocator<A> {
    type Block = A::Block;
    fn alloc(&mut self, size: usize) -> anyhow::Result<A::Block> {
        let layout = Layout::from_size_align(size - self.header, 1).context("a size")?;
        self.allocator.alloc(layout).context("the heap of the bound's size has no room")
    }
    fn free(&mut self, block: A::Block) {
        self.allocator.free(block);
    }
    fn range(&self, block: &A::Block) -> Range<usize> {
        let range = self.allocator.range(block);
        range.start - self.header.min(range.start)..range.end
    }
}

/// A heap that compacts its blocks when the end of its memory is reached; users find blocks through handles.
struct CompactingHeap {
    places: HandleTable<Range<usize>>,
    /// The handles of the blocks in the order of addresses; some of these blocks may be freed.
    order: Vec<Handle>,
    head: usize,
    bytes: usize,
    /// The number of bytes that compaction copied.
    copied: usize,
}

impl CompactingHeap {
    fn new(bytes: usize) -> Self {
        Self { places: HandleTable::new(), order: Vec::new(), head: 0, bytes, copied: 0 }
    }
    fn compact(&mut self) {
        self.head = 0;
        let (places, head, copied) = (&mut self.places, &mut self.head, &mut self.copied);
        self.order.retain(|handle| {
            let Some(place) = places.get_mut(*handle) else { return false };
            let len = place.len();
            *copied += if place.start == *head { 0 } else { len };
            *place = *head..*head + len;
            *head += len;
            true
        });
    }
}

impl AttackedAllocator for CompactingHeap {
    type Block = Handle;
    fn alloc(&mut self, size: usize) -> anyhow::Result<Handle> {
        if self.head + size > self.bytes {
            self.compact();
        }
        ensure!(self.head + size <= self.bytes, "the heap has no room for the bytes in use");
        let handle = self.places.alloc(self.head..self.head + size)?;
        self.head += size;
        self.order.push(handle);
        Ok(handle)
    }
    fn free(&mut self, block: Handle) {
        self.places.free(block);
    }
    fn range(&self, block: &Handle) -> Range<usize> {
        self.places.get(*block).cloned().unwrap_or_default()
    }
}

/// Runs the attack. Returns, after each step, the end of the highest block that was ever in use.
fn attack<V: AttackedAllocator>(victim: &mut V, live: usize, doublings: u32) -> anyhow::Result<Vec<usize>> {
    let mut blocks: Vec<V::Block> = Vec::new();
    let (mut grid, mut top, mut steps) = (0, 0, Vec::new());
    for i in 0..=doublings {
        let size = UNIT << i;
        if i > 0 {
            // Two grids of this size consist of every second line of the last grid. The attack uses the grid that more
            // bytes cross.
            let crosses_grid = |grid: usize, range: &Range<usize>| {
                (range.end + size - 1 - grid) / size > (range.start + size - 1 - grid) / size
            };
            let ranges: Vec<_> = blocks.iter().map(|block| victim.range(block)).collect();
            let crossing_bytes =
                |grid| ranges.iter().filter(|range| crosses_grid(grid, range)).map(Range::len).sum::<usize>();
            let shifted_grid = grid + size / 2;
            grid = if crossing_bytes(shifted_grid) > crossing_bytes(grid) { shifted_grid } else { grid };
            let mut kept_blocks = Vec::new();
            for (range, block) in ranges.iter().zip(blocks) {
                if crosses_grid(grid, range) { kept_blocks.push(block) } else { victim.free(block) }
            }
            blocks = kept_blocks;
        }
        // If blocks move, their places change with each allocation, but the bytes in use do not.
        let mut used_bytes: usize = blocks.iter().map(|block| victim.range(block).len()).sum();
        while used_bytes + size <= live {
            let block = victim.alloc(size)?;
            let range = victim.range(&block);
            used_bytes += range.len();
            top = top.max(range.end);
            blocks.push(block);
        }
        steps.push(top);
    }
    blocks.into_iter().for_each(|block| victim.free(block));
    Ok(steps)
}

impl Robson {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how much memory can a program force an allocator to take, with little in use?";
        let mut findings = Findings::new("robson", question, context.seed);
        let (live, doublings) = (self.live, self.doublings);
        // Robson's bound holds for blocks that fit into the bytes in use.
        let max_doublings = (live / UNIT).ilog2();
        ensure!(
            doublings <= max_doublings,
            "--doublings {doublings}: blocks of {} bytes, with at most {live} in use; expected 1 to {max_doublings}, or a larger --live",
            UNIT << doublings
        );
        // The work grows with the square of the bytes in use.
        let quick = (live / 4).max(UNIT << doublings).max(4096).min(live);
        let live = if context.quick { quick } else { live };
        // The heap is large enough for any allocator, so that nothing is refused.
        let heap = live * (doublings as usize + 2) + (UNIT << doublings);
        let stage = context.progress.stage("robson", 6);
        let mut runs = Vec::new();
        let mut add_run = |name, steps: anyhow::Result<Vec<usize>>| -> anyhow::Result<()> {
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
            add_run(name, attack(&mut NonMovingAllocator { allocator, header: 8 }, live, doublings))?;
        }
        let allocator = Tlsf::new(heap, 4, Search::Bitmaps)?;
        add_run("TLSF", attack(&mut NonMovingAllocator { allocator, header: 4 }, live, doublings))?;
        let allocator = Buddy::new(heap.next_power_of_two())?;
        add_run("buddy", attack(&mut NonMovingAllocator { allocator, header: 0 }, live, doublings))?;
        // Robson's bound does not apply to an allocator that moves blocks, so such an allocator has a separate claim.
        let mut moving = CompactingHeap::new(live);
        let compacting_steps = attack(&mut moving, live, doublings);
        stage.at(6);
        drop(stage);
        let units = (live / UNIT) as f64;
        let bound = |i: usize| (units * (1.0 + i as f64 / 2.0) - (1_u64 << i) as f64 + 1.0) / units;
        let mut table = Table::new(
            format!("Memory used, divided by the {live} bytes in use; sizes from {UNIT} bytes on"),
            &[
                "allocator",
                "largest 1 unit",
                "half of the doublings",
                "all doublings",
                "of Robson's bound, %",
            ],
        );
        let ratio_at = |steps: &[usize], i: usize| steps[i] as f64 / live as f64;
        let mut forced_count = 0;
        for (name, steps) in &runs {
            let last = steps.len() - 1;
            let part = ratio_at(steps, last) * 100.0 / bound(last);
            forced_count += usize::from(part >= 75.0);
            table.row(vec![
                (*name).into(),
                ratio_at(steps, 0).into(),
                ratio_at(steps, last / 2).into(),
                ratio_at(steps, last).into(),
                Value::Number(part, 0),
            ]);
        }
        let last = doublings as usize;
        let compacting_ratios = compacting_steps.as_ref().map_or(&[][..], Vec::as_slice);
        if let [first, .., last_step] = compacting_ratios {
            table.row(vec![
                MOVING.into(),
                (*first as f64 / live as f64).into(),
                ratio_at(compacting_ratios, last / 2).into(),
                (*last_step as f64 / live as f64).into(),
                Value::Number(*last_step as f64 * 100.0 / live as f64 / bound(last), 0),
            ]);
        }
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
                forced_count,
                runs.len(),
                bound(last)
            ),
            holds: match forced_count {
                0 => Holds::No,
                n if n == runs.len() => Holds::Yes,
                _ => Holds::Partly,
            },
            measured: false,
        });
        findings.claim(Claim {
            says: "an allocator that moves blocks escapes the bound, as compacting collectors do".into(),
            source: "Memory Allocators from Scratch".into(),
            found: match &compacting_steps {
                Ok(steps) => format!(
                    "if an allocator moves blocks together at the end of memory, the same adversary needs {:.2} times the bytes in use, and {:.1} times these bytes are copied",
                    ratio_at(steps, last),
                    moving.copied as f64 / live as f64
                ),
                Err(refused) => format!("not measured: {refused}"),
            },
            holds: Holds::then_some_text(compacting_steps.as_ref().is_ok_and(|steps| ratio_at(steps, last) <= 1.0)),
            measured: false,
        });
        let curve =
            |steps: &[usize]| (0..steps.len()).map(|i| ((UNIT << i) as f64, ratio_at(steps, i))).collect();
        let mut series: Vec<_> =
            runs.iter().map(|(name, steps)| Series { name: (*name).into(), points: curve(steps) }).collect();
        if let Ok(steps) = &compacting_steps {
            series.push(Series { name: MOVING.into(), points: curve(steps) });
        }
        let points = (0..=last).map(|i| ((UNIT << i) as f64, bound(i))).collect();
        series.push(Series { name: "Robson's bound".into(), points });
        findings.chart(Chart {
            title: "Memory taken by the time that blocks of a size are allocated".into(),
            x: Axis::logarithmic("bytes of the largest block"),
            y: Axis::linear("times the bytes in use"),
            series,
            measured: false,
        });
        Ok(findings)
    }
}

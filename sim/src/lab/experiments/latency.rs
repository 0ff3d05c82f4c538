//! How long single allocations take, to the last one: a frame's budget is spent by the slowest, not by the median.

use super::Context;
use crate::lab::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use crate::lab::{Allocator, Linear, System};
use anyhow::Context as _;
use clap::Args;
use core::alloc::Layout;
use hdrhistogram::Histogram;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use rand::RngExt;
use std::hint::black_box;
use std::time::Instant;
use uslab::{Block, Config, Gfp, Malloc, Subsystem};

/// How long does the slowest allocation take, and why?
///
/// Frames of allocations of 16 to 1,024 bytes, each stamped with a clock and written to, all freed at the end of the frame: from
/// the system's malloc in a fresh heap and in a fragmented one, from a linear allocator that is reset, and from slabs. What was
/// slow is asked for its cause: a page fault, the system that ran something else, or the allocator itself.
#[derive(Debug, Args)]
pub struct Latency {
    /// Frames.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    frames: u32,
    /// Allocations in a frame.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    allocations: u32,
}

/// From how many nanoseconds on the cause is asked for.
const SLOW: u64 = 1000;
/// A frame at 60 Hz, in milliseconds.
const FRAME: f64 = 16.6;

/// Why an allocation was slow.
#[derive(Default)]
struct Causes {
    faults: u64,
    switches: u64,
    own: u64,
}

/// What an allocator's calls took.
struct Times {
    allocs: Histogram<u64>,
    frees: Histogram<u64>,
    causes: Causes,
    /// All allocations and frees of the worst frame, in nanoseconds.
    worst_frame: u64,
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("a histogram")
}

/// Faults, and switches to something else, of this thread so far.
fn usage() -> (i64, i64) {
    getrusage(UsageWho::RUSAGE_THREAD).map_or((0, 0), |u: Usage| {
        let switches = u.voluntary_context_switches() + u.involuntary_context_switches();
        (u.minor_page_faults() + u.major_page_faults(), switches)
    })
}

impl Latency {
    /// `alloc` writes to what it allocates: to have memory is to be able to write to it.
    fn time<A, B>(
        &self,
        context: &Context<'_>,
        allocator: &mut A,
        alloc: impl Fn(&mut A, Layout) -> Option<B>,
        free: impl Fn(&mut A, B),
    ) -> anyhow::Result<Times> {
        let mut rng = context.rng();
        let mut times =
            Times { allocs: histogram()?, frees: histogram()?, causes: Causes::default(), worst_frame: 0 };
        let mut held = Vec::with_capacity(self.allocations as usize);
        let frames = context.scale(self.frames as usize);
        let mut before = usage();
        for _ in 0..frames {
            let mut frame = 0;
            for _ in 0..self.allocations {
                let layout = Layout::from_size_align(rng.random_range(16..=1024), 16)?;
                let start = Instant::now();
                let block = alloc(allocator, layout);
                let took = start.elapsed().as_nanos() as u64;
                held.push(block.context("no room for a frame")?);
                frame += took;
                times.allocs.saturating_record(took.max(1));
                if took >= SLOW {
                    let now = usage();
                    let cause = match (now.0 > before.0, now.1 > before.1) {
                        (true, _) => &mut times.causes.faults,
                        (_, true) => &mut times.causes.switches,
                        _ => &mut times.causes.own,
                    };
                    *cause += 1;
                    before = now;
                }
            }
            for block in held.drain(..) {
                let start = Instant::now();
                free(allocator, black_box(block));
                let took = start.elapsed().as_nanos() as u64;
                frame += took;
                times.frees.saturating_record(took.max(1));
            }
            times.worst_frame = times.worst_frame.max(frame);
            // Faults of the frees and of this bookkeeping are no allocation's.
            before = usage();
        }
        Ok(times)
    }

    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how long does the slowest allocation take, and why?";
        let mut findings = Findings::new("latency", question, context.seed);
        if context.exact {
            findings.note("All that it finds is measured in time.");
            return Ok(findings);
        }
        let room = (self.allocations as usize * 1024).next_multiple_of(4096);
        let subsystem = Subsystem::new(Config { check_frees: false, ..Config::default() })?;
        let malloc = Malloc::new(&subsystem)?;
        let stage = context.progress.stage("latency", 4);
        let fresh = self.time(context, &mut System::default(), written, Allocator::free)?;
        stage.at(1);
        let fragmented = {
            let mut system = System::default();
            let _holes = fragment(context, &mut system)?;
            self.time(context, &mut system, written, Allocator::free)?
        };
        stage.at(2);
        let linear = self.time(context, &mut Linear::fixed(room)?, written, Allocator::free)?;
        stage.at(3);
        // In one's own subsystem, with whatever the CPUs here offer: not on the lab's simulated one.
        let alloc = |_: &mut (), layout| {
            let mut block = malloc.alloc_block(layout, Gfp::KERNEL).ok()?;
            *black_box(&mut block.front_mut(1)[0]) = 1;
            Some(block)
        };
        let slab = self.time(context, &mut (), alloc, |(), block: Block<'_>| drop(block))?;
        drop(stage);
        let all = [
            ("system malloc", fresh),
            ("system malloc, fragmented", fragmented),
            ("linear, reset each frame", linear),
            ("slab", slab),
        ];
        report(&mut findings, self, &all);
        Ok(findings)
    }
}

/// An allocation and its first byte.
fn written<A: Allocator>(allocator: &mut A, layout: Layout) -> Option<A::Block> {
    let mut block = allocator.alloc(layout)?;
    if let Some(first) = allocator.bytes(&mut block).first_mut() {
        *black_box(first) = 1;
    }
    Some(block)
}

/// Leaves 50,000 blocks of all sizes, with as many holes between.
fn fragment<A: Allocator>(context: &Context<'_>, allocator: &mut A) -> anyhow::Result<Vec<A::Block>> {
    let mut rng = context.rng();
    let mut all = Vec::new();
    for _ in 0..100_000 {
        let layout = Layout::from_size_align(rng.random_range(16..=2048), 16)?;
        all.push(allocator.alloc(layout).context("no room to fragment a heap")?);
    }
    let mut kept = Vec::new();
    for block in all {
        if rng.random() { kept.push(block) } else { allocator.free(block) }
    }
    Ok(kept)
}

fn report(findings: &mut Findings, latency: &Latency, all: &[(&str, Times)]) {
    let mut table = Table::new(
        "An allocation of 16 to 1,024 bytes with its first write, ns; the clock's own cost is in each",
        &["allocator", "~p50", "~p99", "~p99.9", "~p99.99", "~max", "~free p50", "~free p99.9", "~free max"],
    );
    for (name, times) in all {
        let alloc = [0.5, 0.99, 0.999, 0.9999, 1.0].map(|q| Value::from(times.allocs.value_at_quantile(q)));
        let free = [0.5, 0.999, 1.0].map(|q| Value::from(times.frees.value_at_quantile(q)));
        table.row([vec![(*name).into()], alloc.into(), free.into()].concat());
    }
    findings.table(table);
    let mut causes = Table::new(
        format!("Why allocations took {SLOW} ns or more; and what the worst frame cost"),
        &[
            "allocator",
            "~page faults",
            "~descheduled",
            "~itself",
            "~worst frame, ms",
            "~of a frame at 60 Hz, %",
        ],
    );
    for (name, times) in all {
        let worst = times.worst_frame as f64 / 1e6;
        causes.row(vec![
            (*name).into(),
            times.causes.faults.into(),
            times.causes.switches.into(),
            times.causes.own.into(),
            Value::Number(worst, 3),
            Value::Number(worst * 100.0 / FRAME, 1),
        ]);
    }
    findings.table(causes);
    let of = |i: usize, q: f64| all[i].1.allocs.value_at_quantile(q) as f64;
    let (median, tail) = (of(0, 0.5) / of(2, 0.5), of(1, 0.9999) / of(2, 0.9999));
    findings.claim(Claim {
        says: "malloc and a bump pointer have the same median, and malloc's tail is two orders of magnitude longer".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "the median is {median:.1} times, the 99.99th percentile in a fragmented heap {tail:.0} times that of the linear \
             allocator, in frames of {} allocations",
            latency.allocations
        ),
        holds: match (median, tail) {
            (..2.0, 50.0..) => Holds::Yes,
            (_, 3.0..) => Holds::Partly,
            _ => Holds::No,
        },
        timed: true,
    });
    let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0 - 1e-6];
    let curve = |times: &Times| {
        quantiles.iter().map(|q| (1.0 / (1.0 - q), times.allocs.value_at_quantile(*q) as f64)).collect()
    };
    findings.chart(Chart {
        title: "One allocation in so many is as slow as this or slower".into(),
        x: Axis::logarithmic("one in"),
        y: Axis::logarithmic("ns"),
        series: all
            .iter()
            .map(|(name, times)| Series { name: (*name).into(), points: curve(times) })
            .collect(),
        timed: true,
    });
}

//! The largest free block while a workload goes on: what fragmentation takes away, and what lifetimes have to do with it.

use super::Context;
use super::load::{Load, Loaded, memory};
use crate::lab::drive::{Options, Outcome, drive};
use crate::lab::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use crate::lab::heap::{Fit, Order};
use crate::lab::roster::{self, Name, Trial};
use crate::lab::{Allocator, Heap};
use anyhow::Context as _;
use clap::Args;
use core::alloc::Layout;

/// How fast does the largest free block shrink?
///
/// Random sizes with lifetimes of two kinds, most short and some long, in a pool for each size class, buddy, TLSF, first fit and
/// slabs; looked at a hundred times. Then again with lifetimes all alike, whose mean is the same.
#[derive(Debug, Args)]
pub struct Fragmentation {
    #[command(flatten)]
    load: Load,
    /// Memory of each allocator: bytes, or with K, M, G; a power of two. Default: twice what the workload asks for at a time.
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<u64>,
}

const NAMES: [Name; 6] =
    [Name::Segregated, Name::Buddy, Name::Tlsf, Name::FirstFit, Name::BestFit, Name::Slab];

struct Sampling<'l>(&'l Loaded);

impl Trial for Sampling<'_> {
    type Outcome = Outcome;
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<Outcome> {
        let every = (self.0.ops.len() as u64 / 100).max(1);
        let options = Options { sample_every: every, ..Options::default() };
        Ok(drive(allocator, self.0.iter(), &options)?)
    }
}

/// Of all free memory, what does not lie in the largest piece; mean over the second half of the run.
fn external(outcome: &Outcome) -> f64 {
    let half = &outcome.samples[outcome.samples.len() / 2..];
    let part = |s: &crate::lab::drive::Sample| 1.0 - s.holes.largest as f64 / s.holes.total.max(1) as f64;
    half.iter().map(part).sum::<f64>() / half.len() as f64
}

/// Whether the pools keep their largest block, and whether first fit keeps the least of its own; of what is left of it under
/// pools, buddy, TLSF and first fit.
fn stays_and_fastest([pools, buddy, tlsf, first]: [f64; 4]) -> [bool; 2] {
    [pools >= 0.95, first < buddy.min(tlsf)]
}

impl Fragmentation {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how fast does the largest free block shrink?";
        let mut findings = Findings::new("fragmentation", question, context.seed);
        let loaded = self.load.open(context)?;
        let bytes = loaded.memory(self.memory)?;
        let mut table = Table::new(
            format!("{} operations, {}; {bytes} bytes of memory", loaded.ops.len(), loaded.name),
            &[
                "allocator",
                "refused",
                "largest at first",
                "at least",
                "at the end",
                "holes at the end",
                "not in the largest, %",
            ],
        );
        let mut series = Vec::new();
        let mut lost = Vec::new();
        let stage = context.progress.stage("fragmentation", NAMES.len() as u64);
        for (i, name) in NAMES.into_iter().enumerate() {
            let outcome = roster::run(name, bytes, loaded.largest, &mut Sampling(&loaded))?;
            let largest = |i: usize| outcome.samples[i].holes.largest;
            let last = outcome.samples.len() - 1;
            let least = (0..=last).map(largest).min().unwrap_or(0);
            let part = external(&outcome) * 100.0;
            table.row(vec![
                name.shown().into(),
                outcome.refused.into(),
                largest(0).into(),
                least.into(),
                largest(last).into(),
                outcome.samples[last].holes.count.into(),
                Value::Number(part, 1),
            ]);
            lost.push((name, largest(last) as f64 / largest(0).max(1) as f64, part));
            let points =
                outcome.samples.iter().map(|s| (s.operations as f64, s.holes.largest as f64)).collect();
            series.push(Series { name: name.shown(), points });
            stage.at(i as u64 + 1);
        }
        drop(stage);
        findings.table(table);
        let left = |wanted| lost.iter().find(|(name, ..)| *name == wanted).map_or(0.0, |(_, left, _)| *left);
        let order = [Name::Segregated, Name::Buddy, Name::Tlsf, Name::FirstFit].map(left);
        findings.claim(Claim {
            says: "a pool's largest block stays, buddy's and TLSF's shrink slowly, first fit's fastest".into(),
            source: "Memory Allocators from Scratch".into(),
            found: format!(
                "of the first look's largest block are left: pools {:.0} %, buddy {:.0} %, TLSF {:.0} %, first fit by address \
                 {:.0} %; 95 % and more count as all",
                order[0] * 100.0,
                order[1] * 100.0,
                order[2] * 100.0,
                order[3] * 100.0
            ),
            holds: match stays_and_fastest(order) {
                [true, true] => Holds::Yes,
                [false, false] => Holds::No,
                _ => Holds::Partly,
            },
            measured: false,
        });
        findings.chart(Chart {
            title: "The largest free block".into(),
            x: Axis::linear("operations"),
            y: Axis::logarithmic("bytes"),
            series,
            measured: false,
        });
        lifetimes(context, &mut findings)?;
        holes_that_serve_nobody(&mut findings)?;
        Ok(findings)
    }
}

/// The same sizes and the same mean lifetime, of two kinds and all alike.
fn lifetimes(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let kinds = ["bimodal:20,2000,0.1", "exponential:218", "uniform:1..435"];
    let mut table = Table::new(
        "Lifetimes of the same mean, sizes of 16 to 1,024 bytes: free memory that is not in the largest piece, %",
        &["allocator", "two kinds", "exponential", "even"],
    );
    let mut parts = Vec::new();
    for name in [Name::FirstFit, Name::BestFit, Name::Tlsf, Name::Buddy] {
        let mut row = vec![Value::from(name.shown())];
        for kind in kinds {
            let loaded = Load::of(context, "uniform:16..1024", kind, 20_000)?;
            let bytes = loaded.memory(Some(1 << 18))?;
            let part = external(&roster::run(name, bytes, loaded.largest, &mut Sampling(&loaded))?) * 100.0;
            parts.push(part);
            row.push(Value::Number(part, 1));
        }
        table.row(row);
    }
    findings.table(table);
    // Most of the work: without them less than half of the loss is left.
    let most = parts.chunks(3).filter(|row| row[0] > 2.0 * row[1].max(row[2])).count();
    let more = parts.chunks(3).filter(|row| row[0] > row[1].max(row[2])).count();
    findings.claim(Claim {
        says: "lifetimes of two kinds do most of the work of fragmentation".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "with lifetimes all alike less than half as much is lost under {most} of {} allocators, less at all under {more}",
            parts.len() / 3
        ),
        holds: match most {
            0 => Holds::No,
            n if n == parts.len() / 3 => Holds::Yes,
            _ => Holds::Partly,
        },
        measured: false,
    });
    Ok(())
}

/// A heap full of small holes, and a page that fits into none.
fn holes_that_serve_nobody(findings: &mut Findings) -> anyhow::Result<()> {
    let mut heap = Heap::new(1 << 16, Fit::First, Order::Address)?;
    let small = Layout::from_size_align(16, 1).context("16 bytes")?;
    let blocks: Vec<_> = std::iter::from_fn(|| heap.alloc(small)).collect();
    let mut kept = Vec::new();
    for (i, block) in blocks.into_iter().enumerate() {
        if i % 2 == 0 { kept.push(block) } else { heap.free(block) }
    }
    let holes = heap.holes();
    let refused = heap.alloc(Layout::from_size_align(4096, 1).context("a page")?).is_none();
    findings.claim(Claim {
        says: "many small holes cannot serve 4 KiB".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "{} bytes are free in {} holes of {} bytes at most, and 4,096 are {}",
            crate::output::grouped(holes.total as u64),
            crate::output::grouped(holes.count as u64),
            holes.largest,
            if refused { "refused" } else { "served" }
        ),
        holds: if refused { Holds::Yes } else { Holds::No },
        measured: false,
    });
    kept.into_iter().for_each(|block| heap.free(block));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_shrinks_fastest_only_if_both_others_keep_more() {
        assert_eq!(stays_and_fastest([1.0, 0.6, 0.7, 0.5]), [true, true]);
        assert_eq!(stays_and_fastest([1.0, 0.50, 0.59, 0.56]), [true, false], "buddy keeps less");
        assert_eq!(stays_and_fastest([0.9, 0.5, 0.5, 0.5]), [false, false]);
    }
}

//! Robson's adversary: a program that uses little memory, but forces every allocator that does not move blocks to take
//! far more ("An Estimate of the Store Size Necessary for Dynamic Storage Allocation", 1971).

use super::Context;
use crate::demos::robson::{MOVING_ALLOCATOR_NAME, NoRoom, Round, UNIT, attacks, bound};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use anyhow::{Context as _, ensure};
use clap::Args;

/// How much memory can a program force an allocator to take, with little in use?
///
/// The adversary never has more than M bytes in use. The adversary first allocates blocks of the smallest size. For
/// each next size, the adversary frees all blocks except blocks that cross a grid line, so that no hole is large enough
/// for the new size. The adversary then allocates blocks of this size until M bytes are in use again. In the worst
/// case, every allocator that does not move blocks needs at least about M, plus M/2 for each doubling of size.
#[derive(Debug, Args)]
pub struct Robson {
    /// Largest number of bytes in use, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 18, value_parser = memory)]
    live: usize,
    /// Size of the largest block in units of 32 bytes, as a power of two. The largest block is at most as large as the
    /// bytes in use.
    #[arg(long, value_name = "DOUBLINGS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=12))]
    doublings: u32,
}

fn memory(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (4096..=1 << 21).contains(n));
    bytes.ok_or_else(|| "expected a power of two from 4096 to 2097152".to_owned())
}

/// Runs the attack. Returns, after each step, the end of the highest block that was ever in use.
fn run_attack(attack: &mut dyn Round, doublings: u32) -> Result<Vec<usize>, NoRoom> {
    let mut steps = vec![attack.fill()?];
    for _ in 0..doublings {
        attack.free();
        steps.push(attack.fill()?);
    }
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
        let mut attacks = attacks(live, doublings)?;
        let stage = context.progress.stage("robson", attacks.len() as u64);
        // Robson's bound does not apply to an allocator that moves blocks, so such an allocator has a separate claim.
        let (_, mut moving) = attacks.pop().context("the allocator that moves blocks")?;
        let mut runs = Vec::new();
        for (name, mut attack) in attacks {
            runs.push((name, run_attack(&mut *attack, doublings)?));
            stage.at(runs.len() as u64);
        }
        let compacting_steps = run_attack(&mut *moving, doublings);
        drop(stage);
        let bound = |i: usize| bound(live, i);
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
                MOVING_ALLOCATOR_NAME.into(),
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
                    "if an allocator moves blocks together at the end of memory, the same adversary forces it to take {:.2} times the bytes in use, and to copy {:.1} times these bytes",
                    ratio_at(steps, last),
                    moving.copied() as f64 / live as f64
                ),
                Err(refused) => format!("not measured: {refused}"),
            },
            holds: Holds::from_certain_result(compacting_steps.as_ref().is_ok_and(|steps| ratio_at(steps, last) <= 1.0)),
            measured: false,
        });
        let curve =
            |steps: &[usize]| (0..steps.len()).map(|i| ((UNIT << i) as f64, ratio_at(steps, i))).collect();
        let mut series: Vec<_> =
            runs.iter().map(|(name, steps)| Series { name: (*name).into(), points: curve(steps) }).collect();
        if let Ok(steps) = &compacting_steps {
            series.push(Series { name: MOVING_ALLOCATOR_NAME.into(), points: curve(steps) });
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

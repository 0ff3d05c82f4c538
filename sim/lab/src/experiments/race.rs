//! The experiment that runs one workload on every allocator, and reports time and remaining holes.

use super::Context;
use super::load::{Load, LoadedWorkload, memory};
use crate::allocators::Allocator;
use crate::allocators::drive::{Options, Outcome, drive};
use crate::allocators::memory::ConfigError;
use crate::allocators::registry::{self, AllocatorVisitor, Name};
use crate::findings::clock::{self, Spread};
use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use crate::workload::Op;
use anyhow::{bail, ensure};
use clap::Args;
use core::alloc::Layout;
use std::hint::black_box;

/// Which allocator leaves which holes under one workload, and how fast is it?
///
/// The same operations run through every allocator, each in memory of the same size. The experiment fills and verifies
/// the blocks. The experiment counts the free pieces at the end, the refused requests, and the search steps. The
/// operations are then timed again, without the checks.
#[derive(Debug, Args)]
pub struct Race {
    #[command(flatten)]
    load: Load,
    /// Memory of each allocator: bytes, or with K, M, G; a power of two. Default: twice the peak of the requested
    /// bytes.
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<u64>,
    /// Run only these allocators, separated by commas.
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    allocators: Vec<Name>,
}

/// A trial that drives an allocator and counts its work.
struct Counting<'l>(&'l LoadedWorkload);

impl AllocatorVisitor for Counting<'_> {
    type Outcome = (Outcome, usize);
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<Self::Outcome> {
        Ok((drive(allocator, self.0.iter(), &Options::default())?, allocator.capacity()))
    }
}

/// A trial that only runs the operations, so that their time can be measured. A vector holds the live blocks; [`dense`]
/// assigned their indices before the run.
struct TimingTrial<'l> {
    ops: &'l [DenseOp],
    blocks: usize,
}

#[derive(Clone, Copy)]
enum DenseOp {
    Alloc(usize, Layout),
    Free(usize),
}

impl AllocatorVisitor for TimingTrial<'_> {
    type Outcome = f64;
    fn with<A: Allocator>(&mut self, allocator: &mut A) -> anyhow::Result<f64> {
        let mut blocks: Vec<Option<A::Block>> = Vec::new();
        blocks.resize_with(self.blocks, || None);
        let time = clock::nanoseconds(|| {
            for op in self.ops {
                match *op {
                    DenseOp::Alloc(id, layout) => blocks[id] = allocator.alloc(black_box(layout)),
                    DenseOp::Free(id) => {
                        if let Some(block) = blocks[id].take() {
                            allocator.free(black_box(block));
                        }
                    }
                }
            }
        });
        blocks.into_iter().flatten().for_each(|block| allocator.free(block));
        Ok(time / self.ops.len() as f64)
    }
}

/// Assigns each live block the index of a slot, and reuses the slots of freed blocks. A resize becomes an allocation
/// and a free.
fn dense(ops: &[Op]) -> (Vec<DenseOp>, usize) {
    let mut places = rustc_hash::FxHashMap::default();
    let (mut free_slots, mut blocks, mut slots) = (Vec::new(), 0, Vec::with_capacity(ops.len()));
    let mut place = |free_slots: &mut Vec<usize>| {
        free_slots.pop().unwrap_or_else(|| {
            blocks += 1;
            blocks - 1
        })
    };
    for op in ops {
        match *op {
            Op::Alloc { id, layout } | Op::Resize { id, layout } => {
                let slot = place(&mut free_slots);
                slots.push(DenseOp::Alloc(slot, layout));
                if let Some(old_slot) = places.insert(id, slot) {
                    slots.push(DenseOp::Free(old_slot));
                    free_slots.push(old_slot);
                }
            }
            Op::Free { id } => {
                if let Some(slot) = places.remove(&id) {
                    slots.push(DenseOp::Free(slot));
                    free_slots.push(slot);
                }
            }
        }
    }
    (slots, blocks)
}

/// The outcome of a workload that ran on one allocator.
pub(super) struct Run {
    pub(super) outcome: Outcome,
    /// `false` for the system's allocator, whose memory cannot be inspected.
    pub(super) known: bool,
    /// The nanoseconds per operation; empty if time was not measured.
    pub(super) nanoseconds: Spread,
}

impl Run {
    /// Returns the peak of the occupied bytes divided by the peak of the requested bytes.
    pub(super) fn peak_ratio(&self) -> f64 {
        self.outcome.peak_taken as f64 / self.outcome.peak_asked.max(1) as f64
    }
}

/// Drives each allocator in `names` through a workload; each allocator has `bytes` bytes of memory. Unless `exact` is
/// set, also times the allocators, which then run alternately. If an allocator cannot serve the workload, its result is
/// the reason; the other allocators still run.
///
/// # Errors
/// Fails if no allocator can serve the workload, or memory is exhausted.
pub(super) fn measure(
    context: &Context<'_>,
    stage: &'static str,
    workload: &LoadedWorkload,
    bytes: usize,
    names: &[Name],
) -> anyhow::Result<Vec<Result<Run, ConfigError>>> {
    let stage = context.progress.stage(stage, names.len() as u64 * (1 + context.rounds() as u64));
    let mut runs = Vec::new();
    for (i, name) in names.iter().enumerate() {
        runs.push(match registry::run(*name, bytes, workload.largest, &mut Counting(workload)) {
            Ok((outcome, capacity)) => {
                ensure!(
                    outcome.violations.is_empty(),
                    "{}: {}",
                    name.display_name(),
                    outcome.violations.join("; ")
                );
                Ok(Run { outcome, known: capacity > 0, nanoseconds: Spread::default() })
            }
            Err(error) => Err(error.downcast::<ConfigError>()?),
        });
        stage.at(i as u64 + 1);
    }
    let successful_runs: Vec<usize> = (0..runs.len()).filter(|i| runs[*i].is_ok()).collect();
    if let ([], Some(Err(unfit_error))) = (&successful_runs[..], runs.first()) {
        bail!("{}: {}: {unfit_error}", workload.name, names[0].display_name());
    }
    if !context.exact {
        let (ops, blocks) = dense(&workload.ops);
        let mut turn = names.len() as u64;
        let times = clock::try_rounds(context.rounds(), successful_runs.len(), |i| {
            turn += 1;
            stage.at(turn);
            registry::run(
                names[successful_runs[i]],
                bytes,
                workload.largest,
                &mut TimingTrial { ops: &ops, blocks },
            )
            .map(|time| [time])
        })?;
        for (run, samples) in runs.iter_mut().flatten().zip(times) {
            run.nanoseconds = samples.spread(0);
        }
    }
    Ok(runs)
}

impl Race {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "which allocator leaves which holes under one workload, and how fast is it?";
        let mut findings = Findings::new("race", question, context.seed);
        let workload = self.load.open(context)?;
        let bytes = workload.memory(self.memory)?;
        let names = if self.allocators.is_empty() { &Name::ALL[..] } else { &self.allocators };
        let runs = measure(context, "race", &workload, bytes, names)?;
        let mut pieces = Vec::new();
        let mut table = Table::new(
            format!("{} operations, {}; {bytes} bytes of memory", workload.ops.len(), workload.name),
            &[
                "allocator",
                "refused",
                "of these for pieces",
                "holes",
                "largest, bytes",
                "largest of all free, %",
                "taken of asked",
                "steps an operation",
                "longest",
                "~ns an operation",
            ],
        );
        for (name, run) in names.iter().zip(&runs) {
            let Ok(run) = run else {
                table.row([vec![name.display_name().into()], vec![Value::Nothing; 9]].concat());
                continue;
            };
            let outcome = &run.outcome;
            let holes = outcome.samples.last().map(|sample| sample.holes).unwrap_or_default();
            let if_counted = |value| if run.known { value } else { Value::Nothing };
            let part = holes.largest as f64 * 100.0 / holes.total.max(1) as f64;
            if run.known {
                pieces.push((name.display_name(), part));
            }
            let work = &outcome.work;
            let operation_count = (work.allocs + work.refused + work.frees).max(1) as f64;
            table.row(vec![
                name.display_name().into(),
                outcome.refused.into(),
                outcome.refused_for_pieces.into(),
                if_counted(holes.count.into()),
                if_counted(holes.largest.into()),
                if_counted(Value::Number(part, 1)),
                if_counted(run.peak_ratio().into()),
                if_counted((work.steps as f64 / operation_count).into()),
                if_counted(work.longest.into()),
                Value::Spread(run.nanoseconds, 1),
            ]);
        }
        findings.table(table);
        findings.bars(Bars::exact(
            "The largest hole at the end, of all that is free",
            Axis::linear("% of all that is free"),
            pieces,
        ));
        let times = names
            .iter()
            .zip(&runs)
            .filter_map(|(name, run)| Some((name.display_name(), run.as_ref().ok()?.nanoseconds.median)));
        findings.bars(Bars::measured("Time of an operation", Axis::logarithmic("ns"), times));
        for (name, run) in names.iter().zip(&runs) {
            if let Err(unfit_error) = run {
                findings.note(format!(
                    "No {} can be created for this workload: {unfit_error}.",
                    name.display_name()
                ));
            }
        }
        findings.note(
            "A hole is what one request could have whole: for pools and slabs a free slot, for the others free neighbours \
             together. Refusals make the rest easier: compare allocators that refused nothing.",
        );
        let steps = |wanted_name| {
            let index = names.iter().position(|name| *name == wanted_name)?;
            runs[index].as_ref().ok()?.outcome.work.longest
        };
        if let (Some(first), Some(tlsf)) = (steps(Name::FirstFit), steps(Name::Tlsf)) {
            findings.claim(Claim {
                says: "the search of a list takes its whole length, and that of two levels of bitmaps three steps".into(),
                source: "Memory Allocators from Scratch".into(),
                found: format!(
                    "the longest operation took {first} steps with first fit, and {tlsf} steps with TLSF"
                ),
                holds: Holds::from_certain_result(tlsf <= 3 && first > tlsf),
                measured: false,
            });
        }
        Ok(findings)
    }
}

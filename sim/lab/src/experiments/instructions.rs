//! Counts the instructions of an operation by running this program again under valgrind.
//!
//! The program runs each case twice, with different numbers of operations. The difference between the two counts is due
//! only to the additional operations, because both counts include the program's start. The count is exact for one build
//! of the program; different compilers give different counts.

use super::Context;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::tlsf::Search;
use crate::allocators::{Allocator, Buddy, Heap, Linear, System, Tlsf};
use crate::findings::{Findings, Table, Value};
use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use core::alloc::Layout;
use std::hint::black_box;
use std::process::Command;
use uslab::pool::{HeapArea, IndexPool, Initialise, SafePool};

/// A case whose instructions are counted: one allocation and one free, for one allocator and one heap state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the name must have an allocator and the state of its heap")]
pub enum Case {
    TlsfEmpty,
    TlsfFull,
    ScanEmpty,
    ScanFull,
    FirstFitEmpty,
    FirstFitFull,
    BestFitFull,
    BuddyEmpty,
    BuddyFull,
    Linear,
    System,
    LazyPaper,
    Lazy,
    LazyChecked,
}

/// Run a case without output.
#[derive(Debug, Args)]
pub struct Instructions {
    case: Case,
    operations: u32,
}

/// The size of the heaps in bytes, and the size of a request.
const HEAP: usize = 1 << 20;
const REQUEST_BYTES: usize = 100;

/// Fragments a heap: it gets many small holes that cannot serve a request, and a large hole at its end.
fn fragment<A: Allocator>(allocator: &mut A) -> anyhow::Result<Vec<A::Block>> {
    let small = Layout::from_size_align(40, 1)?;
    let blocks: Vec<_> = (0..HEAP / 128).map_while(|_| allocator.alloc(small)).collect();
    let mut used_blocks = Vec::new();
    for (i, block) in blocks.into_iter().enumerate() {
        if i % 2 == 0 { used_blocks.push(block) } else { allocator.free(block) }
    }
    Ok(used_blocks)
}

fn pairs<A: Allocator>(mut allocator: A, fragmented: bool, operations: u32) -> anyhow::Result<()> {
    let used_blocks = if fragmented { fragment(&mut allocator)? } else { Vec::new() };
    let layout = Layout::from_size_align(REQUEST_BYTES, 1)?;
    for _ in 0..operations {
        let block = allocator.alloc(black_box(layout)).context("room")?;
        allocator.free(black_box(block));
    }
    black_box(&used_blocks);
    Ok(())
}

/// Runs Kenwright's pool while some blocks are still unused, so that each allocation may add a block to the free list.
fn alloc_and_free_borrowed(policy: Initialise, checked: bool, operations: u32) -> anyhow::Result<()> {
    let blocks = 2 * operations as usize;
    let area = HeapArea::new(128 * blocks, 64)?;
    let pool = SafePool::new(IndexPool::with_blocks(area, 128, blocks, policy)?);
    for _ in 0..operations {
        let block = black_box(pool.alloc()?);
        if checked { block.free()? } else { drop(block) }
    }
    Ok(())
}

impl Instructions {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let n = self.operations;
        let tlsf = |search, fragmented| pairs(Tlsf::new(HEAP, 4, search)?, fragmented, n);
        let list = |fit, fragmented| pairs(Heap::new(HEAP, fit, Order::Address)?, fragmented, n);
        match self.case {
            Case::TlsfEmpty => tlsf(Search::Bitmaps, false),
            Case::TlsfFull => tlsf(Search::Bitmaps, true),
            Case::ScanEmpty => tlsf(Search::Scan, false),
            Case::ScanFull => tlsf(Search::Scan, true),
            Case::FirstFitEmpty => list(Fit::First, false),
            Case::FirstFitFull => list(Fit::First, true),
            Case::BestFitFull => list(Fit::Best, true),
            Case::BuddyEmpty => pairs(Buddy::new(HEAP)?, false, n),
            Case::BuddyFull => pairs(Buddy::new(HEAP)?, true, n),
            Case::Linear => pairs(Linear::fixed(HEAP)?, false, n),
            Case::System => pairs(System::default(), false, n),
            Case::LazyPaper => alloc_and_free_borrowed(Initialise::EachAllocation, false, n),
            Case::Lazy => alloc_and_free_borrowed(Initialise::WhenEmpty, false, n),
            Case::LazyChecked => alloc_and_free_borrowed(Initialise::WhenEmpty, true, n),
        }
    }
}

/// Returns the number of instructions of one allocation and one free, or `None` if valgrind is not installed.
///
/// # Errors
/// Fails if valgrind is installed but its run fails.
fn instructions_per_pair(case: Case) -> anyhow::Result<Option<f64>> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let name = case.to_possible_value().context("the case has no name")?;
    let count = |operations: u32| -> anyhow::Result<Option<u64>> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&program);
        valgrind.args(["lab", "instructions", name.get_name(), &operations.to_string()]);
        let output = match valgrind.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            output => output.context("valgrind")?,
        };
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "valgrind ended with {}: {}", output.status, output_text.trim());
        let instruction_count = output_text.lines().find_map(|line| line.split_once("Collected : "));
        let (_, instruction_count) =
            instruction_count.with_context(|| format!("valgrind counted nothing: {}", output_text.trim()))?;
        Ok(Some(
            instruction_count
                .trim()
                .parse()
                .with_context(|| format!("valgrind's count `{instruction_count}`"))?,
        ))
    };
    const PAIRS: u32 = 1000;
    let (Some(few_count), Some(many_count)) = (count(PAIRS)?, count(2 * PAIRS)?) else { return Ok(None) };
    Ok(Some((many_count - few_count) as f64 / f64::from(PAIRS)))
}

/// Returns a table with the instructions of all `cases`, and the counts in the order of `cases`. If valgrind is missing
/// or `quick` is set, adds a note and returns `None`. A quick run omits the counts because each case starts the program
/// twice.
///
/// # Errors
/// Fails if valgrind is installed but its run fails.
pub(super) fn instruction_table(
    context: &Context<'_>,
    findings: &mut Findings,
    title: &str,
    quantity: &str,
    cases: &[(&str, Case)],
) -> anyhow::Result<Option<Vec<f64>>> {
    if context.quick {
        findings.note("Instructions are not counted under --quick.");
        return Ok(None);
    }
    let mut table = Table::new(title, &[quantity, "~instructions"]);
    let mut counts = Vec::new();
    let stage = context.progress.stage("instructions", cases.len() as u64);
    for (i, (name, case)) in cases.iter().enumerate() {
        let Some(count) = instructions_per_pair(*case)? else {
            findings.note("Instructions are counted where valgrind is installed.");
            return Ok(None);
        };
        table.row(vec![(*name).into(), Value::Number(count, 0)]);
        counts.push(count);
        stage.at(i as u64 + 1);
    }
    findings.table(table);
    Ok(Some(counts))
}

//! Results that depend only on the paper's algorithm: its variables step by step, and the time at which each block is
//! first touched.

use super::{LazyPool, lazy};
use crate::experiments::Context;
use crate::experiments::load::Load;
use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use crate::workload::Op;
use anyhow::Context as _;
use rustc_hash::FxHashMap;
use uslab::pool::{Initialise, PoolGuard};

/// Returns the index of a block, given the addresses of the block and of the first block.
fn number(address: *const u8, first: *const u8, size: usize) -> usize {
    (address.addr() - first.addr()) / size
}

/// Shows the four blocks of a pool in eight states. The available text of the paper contains the rules of its second
/// figure, but not the drawing.
pub(super) fn walk(findings: &mut Findings) -> anyhow::Result<()> {
    const SIZE: usize = 16;
    let mut table = Table::new(
        "Four blocks step by step, by the paper's rule; the chain of free blocks ends at the first one that was never used",
        &["state", "step", "block", "free", "initialised", "next"],
    );
    let pool = lazy(SIZE, 4, Initialise::EachAllocation)?;
    let mut steps = 'a'..='h';
    let mut row = |step: &str, block: Value, pool: &LazyPool| {
        let state = pool.state();
        let name = steps.next().map_or_else(String::new, |name| format!("({name})"));
        let next_text = if state.next < 4 { u64::from(state.next).into() } else { Value::from("none") };
        let counts = [state.free, state.initialised].map(|n| Value::Count(n.into()));
        table.row([vec![name.into(), step.into(), block], counts.into(), vec![next_text]].concat());
    };
    row("create", Value::Nothing, &pool);
    let mut guards: Vec<Option<PoolGuard<'_, _>>> = Vec::new();
    let mut first = None;
    for _ in 0..4 {
        let block = pool.alloc()?;
        let first = *first.get_or_insert(block.address());
        row("allocate", number(block.address(), first, SIZE).into(), &pool);
        guards.push(Some(block));
    }
    for block in [1, 3] {
        drop(guards[block].take().context("the block must be allocated")?);
        row("free", block.into(), &pool);
    }
    let reused = pool.alloc()?;
    let first = first.context("the pool must allocate a block")?;
    row("allocate", number(reused.address(), first, SIZE).into(), &pool);
    findings.table(table);
    Ok(())
}

/// Returns the number of blocks that ever joined the chain, and the largest number of blocks in use at a time.
fn run(ops: &[Op], peak: usize, policy: Initialise) -> anyhow::Result<[u64; 2]> {
    // The pool has room for many more blocks, as a game reserves for its worst frame.
    let pool = lazy(64, 100 * peak, policy)?;
    let (mut guards, mut max_live) = (FxHashMap::default(), 0);
    for op in ops {
        match *op {
            Op::Alloc { id, .. } | Op::Resize { id, .. } => _ = guards.insert(id, pool.alloc()?),
            Op::Free { id } => _ = guards.remove(&id),
        }
        max_live = max_live.max(guards.len() as u64);
    }
    Ok([pool.state().initialised.into(), max_live])
}

/// Compares two rules: the paper's rule adds a block to the chain at each allocation; the lazier rule adds a block only
/// if no used block is free.
pub(super) fn compare_touched_blocks(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        "Blocks that were ever written: a new block at each allocation, or only if no other is free",
        &["workload", "allocations", "out at most", "the paper's rule", "only if no other is free"],
    );
    let loads = [
        ("one at a time", "fixed:1"),
        ("a hundred at a time", "fixed:100"),
        ("exponential, mean 100", "exponential:100"),
        ("most short, some long", "bimodal:20,2000,0.1"),
    ];
    let (mut worst_ratio, mut by_need, mut by_check) = (0.0_f64, 0, 0);
    let mut bars = Vec::new();
    for (name, lifetimes) in loads {
        let workload = Load::of(context, "fixed:64", lifetimes, 20_000)?;
        let allocations = workload.ops.iter().filter(|op| matches!(op, Op::Alloc { .. })).count();
        let peak = workload.peak / 64;
        let [paper, max_live] = run(&workload.ops, peak, Initialise::EachAllocation)?;
        let [lazy_blocks, _] = run(&workload.ops, peak, Initialise::WhenEmpty)?;
        worst_ratio = worst_ratio.max(paper as f64 / max_live as f64);
        by_need += usize::from(paper == max_live);
        by_check += usize::from(lazy_blocks == max_live);
        table.row(vec![name.into(), allocations.into(), max_live.into(), paper.into(), lazy_blocks.into()]);
        bars.push((format!("{name}: the paper's rule"), paper as f64));
        bars.push((format!("{name}: only if no other is free"), lazy_blocks as f64));
    }
    findings.table(table);
    findings.bars(Bars::exact("Blocks that were ever written", Axis::logarithmic("blocks"), bars));
    findings.claim(Claim {
        says: "blocks are initialised as they are needed".into(),
        source: "Kenwright 2012".into(),
        found: format!(
            "the listing initialises a new block at each allocation until the pool's end, which is up to {worst_ratio:.0} times the largest number of blocks in use. In {by_need} of {} workloads it initialises no more blocks than were in use. With the check that the paper proposes as a later improvement, this holds in {by_check} workloads",
            loads.len()
        ),
        holds: match by_need {
            0 => Holds::No,
            n if n == loads.len() => Holds::Yes,
            _ => Holds::Partly,
        },
        measured: false,
    });
    Ok(())
}

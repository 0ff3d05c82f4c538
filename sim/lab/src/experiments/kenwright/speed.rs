//! Measures what the paper's figures show: times of the pool and of malloc, checks, creation, and pages.

use super::{Kenwright, lazy};
use crate::experiments::Context;
use crate::experiments::instructions::{Case, instruction_table};
use crate::findings::clock::{self, Spread};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use core::alloc::Layout;
use nix::sys::resource::{UsageWho, getrusage};
use std::backtrace::Backtrace;
use std::collections::TryReserveError;
use std::hint::black_box;
use uslab::pool::{
    BadFree, FixedPool, GuardedPool, HeapArea, IndexPool, Initialise, MappedArea, PoolGuard, RawPool,
    Refused, SafePool, SlotLayout,
};

/// Returns the number of page faults that the calling thread has had so far.
fn faults() -> f64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0.0, |usage| usage.minor_page_faults() as f64)
}

/// Allocates `n` blocks, writes to each block, and frees the blocks in the order in which they were allocated. Returns
/// the nanoseconds per block and the page faults per block.
fn batch<B, E>(
    n: usize,
    repeats: usize,
    mut alloc: impl FnMut() -> Result<B, E>,
    mut free: impl FnMut(B) -> Result<(), BadFree>,
) -> anyhow::Result<[f64; 2]>
where
    anyhow::Error: From<E>,
{
    let mut guards = Vec::with_capacity(n);
    let mut pass = || -> anyhow::Result<()> {
        for _ in 0..n {
            guards.push(alloc()?);
        }
        for block in guards.drain(..) {
            free(black_box(block))?;
        }
        Ok(())
    };
    // A first batch maps and grows the memory that later batches need.
    pass()?;
    let before = faults();
    let mut first_result = Ok(());
    let time = clock::nanoseconds(|| first_result = (0..repeats).try_for_each(|_| pass()));
    first_result?;
    let pairs = (n * repeats) as f64;
    Ok([time / pairs, (faults() - before) / pairs])
}

/// Allocates a block and writes its first byte.
#[inline(always)]
fn alloc_and_write<P: RawPool>(pool: &SafePool<P>) -> Result<PoolGuard<'_, P>, Refused> {
    let mut block = pool.alloc()?;
    if let Some(byte) = block.bytes().first_mut() {
        black_box(byte).write(1);
    }
    Ok(block)
}

/// Allocates a block from the system's malloc and writes its first byte.
#[inline(always)]
fn alloc_from_system(size: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut block = Vec::new();
    block.try_reserve_exact(size)?;
    black_box(&mut block).push(1);
    Ok(block)
}

/// Frees a block without checking the pointer.
#[inline(always)]
fn dropped<B>(block: B) -> Result<(), BadFree> {
    drop(block);
    Ok(())
}

impl Kenwright {
    /// Draws the paper's figure 4: for each block size, a line shows the time as a function of the number of blocks.
    pub(super) fn figure(&self, context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
        let mut table = Table::new(
            "Allocations, each with its first write, and then their frees; ns per pair",
            &["bytes", "blocks", "~pool", "~malloc", "~ratio", "~malloc: page faults a block"],
        )
        .named_by(2);
        let stage = context.progress.stage("kenwright", (self.sizes.len() * self.counts.len()) as u64);
        let (mut ratios, mut curves) = (Vec::new(), Vec::new());
        for size in &self.sizes {
            let mut lines = [Vec::new(), Vec::new()];
            for n in &self.counts {
                let (size, blocks) = (*size as usize, *n as usize);
                let pool = lazy(size, blocks, Initialise::EachAllocation)?;
                let repeats = (context.scale(200_000) / blocks).max(1);
                let samples = clock::try_rounds(context.rounds(), 2, |i| match i {
                    0 => batch(blocks, repeats, || alloc_and_write(&pool), dropped),
                    _ => batch(blocks, repeats, || alloc_from_system(size), dropped),
                })?;
                let [pool_time, malloc_time] = [0, 1].map(|i| samples[i].spread(0));
                let ratio = samples[1].times(&samples[0], 0);
                ratios.push(ratio);
                for (line, time) in lines.iter_mut().zip([pool_time, malloc_time]) {
                    line.push((f64::from(*n), time.median * f64::from(*n) / 1e6));
                }
                table.row(vec![
                    size.into(),
                    blocks.into(),
                    Value::Spread(pool_time, 1),
                    Value::Spread(malloc_time, 1),
                    Value::Spread(ratio, 1),
                    Value::Number(samples[1].spread(1).median, 3),
                ]);
                stage.at(ratios.len() as u64);
            }
            // Only the smallest and the largest size are drawn: the lines of the other sizes are almost the same.
            if ![self.sizes.iter().min(), self.sizes.iter().max()].contains(&Some(size)) {
                continue;
            }
            let names = [format!("pool, {size} B"), format!("malloc, {size} B")];
            curves.extend(names.into_iter().zip(lines).map(|(name, points)| Series { name, points }));
        }
        drop(stage);
        findings.table(table);
        let medians = || ratios.iter().map(|ratio| ratio.median);
        let (min_ratio, max_ratio) = medians().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(r), m.max(r)));
        let verdicts: Vec<Holds> = ratios.iter().map(|ratio| ratio.at_least(10.0)).collect();
        let rows = |expected| verdicts.iter().filter(|holds| **holds == expected).count();
        findings.claim(Claim {
            says: "the pool is ten times as fast as the system's malloc".into(),
            source: "Kenwright 2012, figure 4".into(),
            found: format!(
                "the pool is at least ten times as fast in {} of {} rows, and less than ten times as fast in {}; {} rows are undecided. The medians are {min_ratio:.1} to {max_ratio:.1}. The paper measured the malloc of Windows 7. If the system's malloc returns memory and faults it in again, the ratio measures pages, not malloc",
                rows(Holds::Yes),
                verdicts.len(),
                rows(Holds::No),
                rows(Holds::Undecided)
            ),
            holds: Holds::each(verdicts),
            measured: true,
        });
        findings.chart(Chart {
            title: "Allocating and freeing this many blocks".into(),
            x: Axis::logarithmic("blocks"),
            y: Axis::logarithmic("ms"),
            series: curves,
            measured: true,
        });
        Ok(())
    }
}

/// Reports the cost of optional checks, which a program can use instead of a debugging heap.
pub(super) fn checks(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    const SIZE: usize = 64;
    const BLOCKS: usize = 1000;
    let paper = lazy(SIZE, BLOCKS, Initialise::EachAllocation)?;
    let lazy_pool = lazy(SIZE, BLOCKS, Initialise::WhenEmpty)?;
    let guarded = GuardedPool::new(HeapArea::new((SIZE + 16) * BLOCKS, 64)?, Layout::new::<[u8; SIZE]>())?;
    let guarded = SafePool::new(guarded);
    let repeats = (context.scale(200_000) / BLOCKS).max(1);
    let traced = || -> anyhow::Result<_> { Ok((alloc_and_write(&guarded)?, Backtrace::force_capture())) };
    // The program touches one of the three pages; the other two represent guard pages.
    let mapped = || -> anyhow::Result<_> {
        let pool = new_lazy_pool(MappedArea::new(3 * PAGE, PAGE)?, PAGE, 3)?;
        drop(alloc_and_write(&pool)?);
        Ok(pool)
    };
    let names = [
        "the paper's rule, no checks",
        "blocks as late as can be, no checks",
        "the same, each free's address checked",
        "the same, guards before and behind, free ones filled, callers noted",
        "the same, and a stack trace of each allocation",
        "a mapping of three pages for each, as guard pages need one",
        "the system's malloc, which checks little",
    ];
    let samples = clock::try_rounds(context.rounds(), names.len(), |i| match i {
        0 => batch(BLOCKS, repeats, || alloc_and_write(&paper), dropped),
        1 => batch(BLOCKS, repeats, || alloc_and_write(&lazy_pool), dropped),
        2 => batch(BLOCKS, repeats, || alloc_and_write(&lazy_pool), PoolGuard::free),
        GUARDS_ROW => batch(BLOCKS, repeats, || alloc_and_write(&guarded), PoolGuard::free),
        TRACES => batch(BLOCKS, repeats, traced, |(block, trace)| {
            drop(black_box(trace));
            block.free()
        }),
        PAGES => batch(BLOCKS, repeats, mapped, dropped),
        _ => batch(BLOCKS, repeats, || alloc_from_system(SIZE), dropped),
    })?;
    let mut table = Table::new(
        format!(
            "The cost of checks: {BLOCKS} blocks of {SIZE} bytes, allocated, written to, freed; ns for a pair"
        ),
        &["pool", "~ns", "~times without checks"],
    );
    for (name, times) in names.into_iter().zip(&samples) {
        let ratio = times.times(&samples[PLAIN_ROW], 0);
        table.row(vec![name.into(), Value::Spread(times.spread(0), 1), Value::Spread(ratio, 1)]);
    }
    findings.table(table);
    findings.note(format!(
        "The paper's pool is a thousand times as fast as the debug heap of Windows under a debugger, which cannot be measured here. With guards, patterns and callers, an allocation and its free take {} times as long, which is {} times malloc's time without checks.",
        samples[GUARDS_ROW].times(&samples[PLAIN_ROW], 0).shown(1),
        samples[GUARDS_ROW].times(&samples[names.len() - 1], 0).shown(1)
    ));
    let added_time = |base_layer: usize, layer: usize| {
        let times: Vec<f64> =
            samples[layer].pairs(&samples[base_layer]).map(|(a, b)| (a[0] - b[0]) / 1e3).collect();
        Spread::of(times)
    };
    let layers = [
        ("guards, patterns and callers", added_time(PLAIN_ROW, GUARDS_ROW)),
        ("a stack trace", added_time(GUARDS_ROW, TRACES)),
        ("a mapping with guard pages", added_time(PLAIN_ROW, PAGES)),
    ];
    let layer_texts: Vec<_> = layers.iter().map(|(name, us)| format!("{name} {} us", us.shown(2))).collect();
    findings.claim(Claim {
        says: "fill, guard pages, leak tracking and stack traces add 2 to 10 us each to an allocation".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!("additional time for an allocation and its free: {}", layer_texts.join(", ")),
        holds: Holds::each(layers.iter().map(|(_, us)| us.is_between(2.0, 10.0))),
        measured: true,
    });
    Ok(())
}

/// Creates a pool in an area; its blocks join the chain as late as possible.
fn new_lazy_pool(
    area: MappedArea,
    size: usize,
    blocks: usize,
) -> anyhow::Result<SafePool<IndexPool<MappedArea>>> {
    Ok(SafePool::new(IndexPool::with_blocks(area, size, blocks, Initialise::WhenEmpty)?))
}

/// The size of a page in bytes.
const PAGE: usize = 4096;
/// The row of the unchecked pool in the table that shows the costs of checks.
const PLAIN_ROW: usize = 1;
const GUARDS_ROW: usize = 3;
const TRACES: usize = 4;
const PAGES: usize = 5;

/// Measures the time to create a pool and allocate one block, to show whether the time depends on the number of blocks.
pub(super) fn creation(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    const SIZE: usize = 16;
    let mut table = Table::new(
        format!(
            "Creating a pool of blocks of {SIZE} bytes and allocating one: blocks in its chain, and time with mapping. The threaded pool uses its mapping to the end of the last page"
        ),
        &[
            "blocks asked for",
            "lazy: in the chain when made",
            "lazy: one taken",
            "threaded: in the chain when made",
            "~lazy, us",
            "~threaded, us",
        ],
    );
    let make_lazy = |blocks: usize| -> anyhow::Result<SafePool<IndexPool<MappedArea>>> {
        let area = MappedArea::new(blocks * SIZE, 4096)?;
        Ok(SafePool::new(IndexPool::with_blocks(area, SIZE, blocks, Initialise::EachAllocation)?))
    };
    let slots = SlotLayout::new(SIZE, 8)?;
    let make_threaded = |blocks: usize| -> anyhow::Result<FixedPool<MappedArea>> {
        Ok(FixedPool::new(MappedArea::new(blocks * SIZE, 4096)?, slots)?)
    };
    let max_blocks = if context.quick { 1_000_000 } else { 10_000_000 };
    let sizes: Vec<usize> =
        core::iter::successors(Some(1000), |n| Some(n * 10)).take_while(|n| *n <= max_blocks).collect();
    // Lazy and threaded pools of all sizes alternate, so that compared values are from the same rounds.
    let samples = match context.exact {
        true => Vec::new(),
        false => clock::try_rounds(context.rounds(), 2 * sizes.len(), |i| {
            let (blocks, mut result) = (sizes[i / 2], Ok(()));
            let time = clock::nanoseconds(|| {
                result = match i % 2 {
                    0 => make_lazy(blocks).and_then(|pool| {
                        black_box(pool.alloc()?);
                        Ok(())
                    }),
                    _ => make_threaded(blocks).and_then(|mut pool| {
                        black_box(pool.alloc(Layout::new::<u64>())?);
                        Ok(())
                    }),
                }
            });
            result.map(|()| [time / 1e3])
        })?,
    };
    for (i, blocks) in sizes.iter().copied().enumerate() {
        let pool = make_lazy(blocks)?;
        let initialised = pool.state().initialised;
        drop(pool.alloc()?);
        let initialised_blocks = pool.state().initialised;
        let threaded = make_threaded(blocks)?.chain().count();
        let time = |i: usize| samples.get(i).map(|samples| Value::Spread(samples.spread(0), 1));
        table.row(vec![
            blocks.into(),
            u64::from(initialised).into(),
            u64::from(initialised_blocks).into(),
            threaded.into(),
            time(2 * i).into(),
            time(2 * i + 1).into(),
        ]);
    }
    findings.table(table);
    if let [lazy, threaded, .., last, last_threaded] = &samples[..] {
        let ratio = last.times(lazy, 0);
        findings.claim(Claim {
            says: "a pool is created without loops, whatever its size".into(),
            source: "Kenwright 2012".into(),
            found: format!(
                "{} blocks take {} times as long as 1,000 blocks, and {} times as long in a pool that threads all its blocks; less than ten times counts as the same time",
                uslab_output::grouped(max_blocks as u64),
                ratio.shown(1),
                last_threaded.times(threaded, 0).shown(0)
            ),
            holds: ratio.at_most(10.0),
            measured: true,
        });
    }
    Ok(())
}

/// Measures the cost of the first access to a page, and the cost of the second access.
pub(super) fn pages(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let count = context.scale(16_384);
    let samples = clock::try_rounds(context.rounds(), 1, |_| -> anyhow::Result<_> {
        // Each round maps a new area. The pool is lazy, so no block is touched before its allocation.
        let area = MappedArea::new(count * PAGE, PAGE)?;
        let pool = SafePool::new(IndexPool::new(area, PAGE)?);
        let mut guards = (0..count).map(|_| pool.alloc()).collect::<Result<Vec<_>, _>>()?;
        let mut touch = || {
            clock::nanoseconds(|| {
                for block in &mut guards {
                    black_box(&mut block.bytes()[0]).write(1);
                }
            }) / count as f64
        };
        let before = faults();
        let first = touch();
        let faults_before = faults();
        let second_touch = touch();
        Ok([
            first,
            second_touch,
            (faults_before - before) / count as f64,
            (faults() - faults_before) / count as f64,
        ])
    })?;
    let spread_of = |index| samples[0].spread(index);
    let mut table = Table::new(
        format!("A write to each of {count} pages that a pool handed out"),
        &["write", "~ns a page", "~page faults a page"],
    );
    for (name, time, faults) in
        [("the first", spread_of(0), spread_of(2)), ("the second", spread_of(1), spread_of(3))]
    {
        table.row(vec![name.into(), Value::Spread(time, 1), Value::Number(faults.median, 3)]);
    }
    findings.table(table);
    let ratio = samples[0].spread_of(|[first, second_touch, ..]| first / second_touch);
    findings.claim(Claim {
        says: "an access that faults is 10,000 times as slow as one that does not".into(),
        source: "Kenwright 2012".into(),
        found: format!(
            "a first access takes {} times as long if the system must find and clear a page; 10,000 times would mean a page that is read from a disk",
            ratio.shown(0)
        ),
        holds: ratio.at_least(5000.0),
        measured: true,
    });
    Ok(())
}

/// Counts the instructions of one allocation and one free. The counts show how much time the removal of branches could
/// still save.
pub(super) fn instructions(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let cases = [
        ("the paper's rule", Case::LazyPaper),
        ("blocks as late as can be", Case::Lazy),
        ("the same, each free's address checked", Case::LazyChecked),
        ("the system's malloc, through Vec", Case::System),
    ];
    instruction_table(context, findings, "Instructions of an allocation and a free", "pool", &cases)?;
    Ok(())
}

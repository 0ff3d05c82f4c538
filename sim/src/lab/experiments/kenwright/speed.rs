//! What the paper's figures measure, here: pool and malloc, checks, creation, pages.

use super::{Kenwright, lazy};
use crate::lab::clock;
use crate::lab::experiments::Context;
use crate::lab::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use crate::lab::instructions::{Case, table_of};
use core::alloc::Layout;
use nix::sys::resource::{UsageWho, getrusage};
use std::collections::TryReserveError;
use std::hint::black_box;
use uslab::pool::{
    BadFree, FixedPool, GuardedPool, HeapArea, IndexPool, Initialise, Lend, Lender, Lent, MappedArea,
    Refused, SlotLayout,
};

/// Page faults of this thread so far.
fn faults() -> f64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0.0, |usage| usage.minor_page_faults() as f64)
}

/// Allocates `n` blocks, writes to each, and frees them in the same order; nanoseconds and page faults for one of them.
fn batch<B, E>(
    n: usize,
    repeats: usize,
    mut alloc: impl FnMut() -> Result<B, E>,
    mut free: impl FnMut(B) -> Result<(), BadFree>,
) -> anyhow::Result<[f64; 2]>
where
    anyhow::Error: From<E>,
{
    let mut held = Vec::with_capacity(n);
    let mut once = || -> anyhow::Result<()> {
        for _ in 0..n {
            held.push(alloc()?);
        }
        for block in held.drain(..) {
            free(black_box(block))?;
        }
        Ok(())
    };
    // Whatever is to be mapped or grown for the first time.
    once()?;
    let before = faults();
    let mut done = Ok(());
    let time = clock::nanoseconds(|| done = (0..repeats).try_for_each(|_| once()));
    done?;
    let pairs = (n * repeats) as f64;
    Ok([time / pairs, (faults() - before) / pairs])
}

/// A block with its first byte written.
#[inline(always)]
fn written<P: Lend>(pool: &Lender<P>) -> Result<Lent<'_, P>, Refused> {
    let mut block = pool.lend()?;
    if let Some(byte) = block.bytes().first_mut() {
        black_box(byte).write(1);
    }
    Ok(block)
}

/// The system's, likewise.
#[inline(always)]
fn malloced(size: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut block = Vec::new();
    block.try_reserve_exact(size)?;
    black_box(&mut block).push(1);
    Ok(block)
}

/// Gives back without a look.
#[inline(always)]
fn dropped<B>(block: B) -> Result<(), BadFree> {
    drop(block);
    Ok(())
}

impl Kenwright {
    /// Figure 4: a line a size, time by number of blocks.
    pub(super) fn figure(&self, context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
        let mut table = Table::new(
            "So many allocations, each with its first write, then as many frees; ns for a pair",
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
                let medians = clock::try_medians(context.rounds(), 2, |i| match i {
                    0 => batch(blocks, repeats, || written(&pool), dropped),
                    _ => batch(blocks, repeats, || malloced(size), dropped),
                })?;
                let [[ours, _], [theirs, faults]] = medians[..] else { continue };
                ratios.push(theirs / ours);
                for (line, time) in lines.iter_mut().zip([ours, theirs]) {
                    line.push((f64::from(*n), time * f64::from(*n) / 1e6));
                }
                table.row(vec![
                    size.into(),
                    blocks.into(),
                    Value::Number(ours, 1),
                    Value::Number(theirs, 1),
                    Value::Number(theirs / ours, 1),
                    Value::Number(faults, 3),
                ]);
                stage.at(ratios.len() as u64);
            }
            // The others lie between, on the same lines almost.
            if ![self.sizes.iter().min(), self.sizes.iter().max()].contains(&Some(size)) {
                continue;
            }
            let names = [format!("pool, {size} B"), format!("malloc, {size} B")];
            curves.extend(names.into_iter().zip(lines).map(|(name, points)| Series { name, points }));
        }
        drop(stage);
        findings.table(table);
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(least, most), r| (least.min(*r), most.max(*r)));
        let median = clock::median(ratios);
        findings.claim(Claim {
            says: "the pool is ten times as fast as the system's allocator".into(),
            source: "Kenwright 2012, figure 4".into(),
            found: format!(
                "{median:.1} times in the median of the rows above, from {least:.1} to {most:.1}; the paper's was that of Windows 7. Where the \
                 system's gives memory back and faults it in again, the ratio is the price of pages, not of malloc"
            ),
            // Ten times in most rows, in some, in none.
            holds: match (median, most) {
                (10.0.., _) => Holds::Yes,
                (_, 10.0..) => Holds::Partly,
                _ => Holds::No,
            },
            measured: true,
        });
        findings.chart(Chart {
            title: "Allocating and freeing so many".into(),
            x: Axis::logarithmic("blocks"),
            y: Axis::logarithmic("ms"),
            series: curves,
            measured: true,
        });
        Ok(())
    }
}

/// What checks cost: at will, in place of a debugger's heap.
pub(super) fn checks(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    const SIZE: usize = 64;
    const BLOCKS: usize = 1000;
    let paper = lazy(SIZE, BLOCKS, Initialise::EachAllocation)?;
    let late = lazy(SIZE, BLOCKS, Initialise::WhenEmpty)?;
    let guarded = GuardedPool::new(HeapArea::new((SIZE + 16) * BLOCKS, 64)?, Layout::new::<[u8; SIZE]>())?;
    let guarded = Lender::new(guarded);
    let repeats = (context.scale(200_000) / BLOCKS).max(1);
    let names = [
        "the paper's rule, no checks",
        "blocks as late as can be, no checks",
        "the same, each free's address checked",
        "the same, guards before and behind, free ones filled, callers noted",
        "the system's malloc, which checks little",
    ];
    let medians = clock::try_medians(context.rounds(), names.len(), |i| match i {
        0 => batch(BLOCKS, repeats, || written(&paper), dropped),
        1 => batch(BLOCKS, repeats, || written(&late), dropped),
        2 => batch(BLOCKS, repeats, || written(&late), Lent::give_back),
        3 => batch(BLOCKS, repeats, || written(&guarded), Lent::give_back),
        _ => batch(BLOCKS, repeats, || malloced(SIZE), dropped),
    })?;
    let mut table = Table::new(
        format!(
            "What checks cost: {BLOCKS} blocks of {SIZE} bytes, allocated, written to, freed; ns for a pair"
        ),
        &["pool", "~ns", "~times without checks"],
    );
    for (name, [time, _]) in names.into_iter().zip(&medians) {
        table.row(vec![name.into(), Value::Number(*time, 1), Value::Number(time / medians[1][0], 1)]);
    }
    findings.table(table);
    let (plain, guards, malloc) = (medians[1][0], medians[3][0], medians[4][0]);
    findings.note(format!(
        "The paper's pool is a thousand times as fast as the debug heap of Windows under a debugger, which is not here to be measured. All \
         checks make a pair {:.1} times as long, {:.1} times malloc's without any.",
        guards / plain,
        guards / malloc
    ));
    Ok(())
}

/// Making a pool, and a first block: whether it depends on their number.
pub(super) fn creation(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    const SIZE: usize = 16;
    let mut table = Table::new(
        format!(
            "Making a pool of blocks of {SIZE} bytes and taking one: blocks in its chain, and time with mapping. The threaded one uses its \
             mapping to the end of the last page"
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
    let make_lazy = |blocks: usize| -> anyhow::Result<Lender<IndexPool<MappedArea>>> {
        let area = MappedArea::new(blocks * SIZE, 4096)?;
        Ok(Lender::new(IndexPool::with_blocks(area, SIZE, blocks, Initialise::EachAllocation)?))
    };
    let slots = SlotLayout::new(SIZE, 8)?;
    let make_threaded = |blocks: usize| -> anyhow::Result<FixedPool<MappedArea>> {
        Ok(FixedPool::new(MappedArea::new(blocks * SIZE, 4096)?, slots)?)
    };
    let most = if context.quick { 1_000_000 } else { 10_000_000 };
    let mut times = Vec::new();
    for blocks in core::iter::successors(Some(1000), |n| Some(n * 10)).take_while(|n| *n <= most) {
        let pool = make_lazy(blocks)?;
        let made = pool.state().initialised;
        drop(pool.lend()?);
        let taken = pool.state().initialised;
        let threaded = make_threaded(blocks)?.chain().count();
        let time = if context.exact {
            vec![[0.0]; 2]
        } else {
            clock::try_medians(context.rounds(), 2, |i| {
                let mut made = Ok(());
                let time = clock::nanoseconds(|| {
                    made = match i {
                        0 => make_lazy(blocks).and_then(|pool| {
                            black_box(pool.lend()?);
                            Ok(())
                        }),
                        _ => make_threaded(blocks).and_then(|mut pool| {
                            black_box(pool.alloc(Layout::new::<u64>())?);
                            Ok(())
                        }),
                    }
                });
                made.map(|()| [time / 1e3])
            })?
        };
        times.push([time[0][0], time[1][0]]);
        let [lazy, threaded_time] = [time[0][0], time[1][0]].map(|time| Value::Number(time, 1));
        table.row(vec![
            blocks.into(),
            u64::from(made).into(),
            u64::from(taken).into(),
            threaded.into(),
            lazy,
            threaded_time,
        ]);
    }
    findings.table(table);
    if let [first, .., last] = &times[..] {
        findings.claim(Claim {
            says: "a pool is created without loops, whatever its size".into(),
            source: "Kenwright 2012".into(),
            found: format!(
                "{:.1} us for 1,000 blocks and {:.1} for {}, where one that threads all its blocks takes {:.1} and {:.0}; less than ten \
                 times counts as the same",
                first[0],
                last[0],
                crate::output::grouped(most as u64),
                first[1],
                last[1]
            ),
            holds: if last[0] < 10.0 * first[0] { Holds::Yes } else { Holds::No },
            measured: true,
        });
    }
    Ok(())
}

/// A page's first touch, and the next one.
pub(super) fn pages(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    const PAGE: usize = 4096;
    let count = context.scale(16_384);
    let medians = clock::try_medians(context.rounds(), 1, |_| -> anyhow::Result<_> {
        // Mapped anew in each round, and late: no block is touched before it is out.
        let area = MappedArea::new(count * PAGE, PAGE)?;
        let pool = Lender::new(IndexPool::new(area, PAGE)?);
        let mut held = (0..count).map(|_| pool.lend()).collect::<Result<Vec<_>, _>>()?;
        let mut touch = || {
            clock::nanoseconds(|| {
                for block in &mut held {
                    black_box(&mut block.bytes()[0]).write(1);
                }
            }) / count as f64
        };
        let before = faults();
        let first = touch();
        let between = faults();
        let again = touch();
        Ok([first, again, (between - before) / count as f64, (faults() - between) / count as f64])
    })?;
    let [[first, again, first_faults, again_faults]] = medians[..] else { return Ok(()) };
    let mut table = Table::new(
        format!("A write to each of {count} pages that a pool handed out"),
        &["write", "~ns a page", "~page faults a page"],
    );
    for (name, time, faults) in [("the first", first, first_faults), ("the second", again, again_faults)] {
        table.row(vec![name.into(), Value::Number(time, 1), Value::Number(faults, 3)]);
    }
    findings.table(table);
    findings.claim(Claim {
        says: "an access that faults is 10,000 times as slow as another one".into(),
        source: "Kenwright 2012".into(),
        found: format!(
            "{:.0} times where the system finds and clears a page; 10,000 times would be a page that comes from a disk",
            first / again
        ),
        holds: match first / again {
            5000.0.. => Holds::Yes,
            _ => Holds::No,
        },
        measured: true,
    });
    Ok(())
}

/// A pair in instructions: what is left to gain by fewer branches.
pub(super) fn instructions(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let cases = [
        ("the paper's rule", Case::LazyPaper),
        ("blocks as late as can be", Case::Lazy),
        ("the same, each free's address checked", Case::LazyChecked),
        ("the system's malloc, through Vec", Case::System),
    ];
    table_of(context, findings, "Instructions of an allocation and a free", "pool", &cases)?;
    Ok(())
}

//! The kernel's own lists of free pages, rebuilt from the events of a trace, beside its buddyinfo.
//!
//! Linux merges a free block with its buddy whenever both are free and of one order, and splits a block only to take a part
//! of it. So the blocks on its lists follow from the set of free pages, zone by zone, and the set is all that is kept:
//!
//! | event | its pages |
//! |---|---|
//! | `mm_page_alloc_zone_locked` | leave the lists |
//! | `mm_page_pcpu_drain` | come back |
//! | `mm_page_free` | come back, unless they go to a per-CPU list |
//! | `mm_page_alloc_extfrag` | leave, on kernels that write it after the pages have left |
//!
//! A trace does not tell everything. What it leaves open is answered by the next event of the same page:
//!
//! - *Which pages were free when the trace began.* Those whose first event takes them from a list.
//! - *Whether freed pages went to a per-CPU list or past it.* Blocks of an order that per-CPU lists do not hold go past them.
//!   Others went past if the next event takes them from a free list. Memory that is handed over while the kernel boots comes
//!   as a run of frees that are each page's first event: one of them tells for all.
//! - *Whether `mm_page_alloc_extfrag` takes pages.* Linux 6.1 writes it before it takes some, by `mm_page_alloc_zone_locked`.
//!   Linux 6.12 writes it after, and most of its pages leave without another event.
//! - *Which of two events came first.* Two CPUs' events of one time stamp stand in any order. A page that one CPU frees and
//!   another takes from a list was taken first; one that is taken and comes back from a per-CPU list came back first.
//!
//! Pages without an event are free or in use the whole time. How many of them are free, and in which blocks, the kernel's own
//! table says at the moment `before`. Their place matters where a part of their block has events; [`FreePages::place`] finds it.
//! What then remains between the table and the set is a constant, and is added to each later moment.
//!
//! Not told by any event, and so an error here: blocks of a reserve (`HighAtomic`, `CMA`, `Isolate`), which do not merge with
//! others above the order of a pageblock.

mod free_pages;
mod steps;

use crate::output::{grouped, table, text};
use crate::trace::{Counts, FreeBlocks, MarkId, Op, OpKind, PageMove, PageMoveKind, Tables, ZoneSpan};
use free_pages::FreePages;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use steps::{Answers, Freed, Step, StepKind};
use uslab_buddy::{MAX_ORDER, ZoneKind};

/// The kernel's free pages at a moment, as its table has them and as the events tell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PagesAt {
    /// Free blocks by order, in the kernel.
    pub kernel: Vec<u64>,
    /// Free blocks by order, rebuilt from events.
    pub rebuilt: Vec<i64>,
    /// Free blocks by order, in the design, on zones of the kernel's own sizes; `None` where zoneinfo does not tell these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub design: Option<Vec<u64>>,
    /// The same, zone by zone.
    pub zones: Vec<ZonePages>,
    /// How far apart they are.
    pub error: PageError,
}

/// A zone's free pages at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZonePages {
    /// Node and zone.
    pub zone: String,
    /// Free blocks by order, in the kernel.
    pub kernel: Vec<u64>,
    /// Free blocks by order, rebuilt from events.
    pub rebuilt: Vec<i64>,
    /// Free blocks by order, in the design.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub design: Option<Vec<u64>>,
}

/// The differences of all zones and orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageError {
    /// Pages in blocks that one has and the other has not.
    pub pages: u64,
    /// Of the kernel's free pages.
    pub percent: f64,
    /// What the trace does not tell of the time since `before`; nothing where there is no difference.
    pub causes: Vec<PageCause>,
}

/// A reason for a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PageCause {
    /// What happened.
    pub cause: PageCauseKind,
    /// To how many pages; of [lost events](PageCauseKind::LostEvents), how many were lost.
    pub count: u64,
}

/// Why rebuilt lists differ from the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageCauseKind {
    /// The trace lost events.
    LostEvents,
    /// Pages were freed or handed out that were on a list: they had left it without an event. Compaction takes pages so.
    LeftWithoutEvent,
    /// Pages left a list that they were not on: they had come back without an event.
    CameWithoutEvent,
    /// Pages moved between the marks that enclose the reading of the table.
    MovedWhileRead,
    /// Pages of memory were handed over, and no later event tells whether past the per-CPU lists.
    HandedOver,
    /// Pages were free at `before` in blocks whose place no event tells.
    PlaceUnknown,
    /// None of these.
    Unknown,
}

impl fmt::Display for PageCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = grouped(self.count);
        match self.cause {
            PageCauseKind::LostEvents => write!(f, "the trace lost {count} events"),
            PageCauseKind::LeftWithoutEvent => {
                write!(f, "{count} pages left the lists without an event, as compaction takes them")
            }
            PageCauseKind::CameWithoutEvent => {
                write!(f, "{count} pages came back to the lists without an event")
            }
            PageCauseKind::MovedWhileRead => {
                write!(f, "{count} pages moved while the kernel's table was read")
            }
            PageCauseKind::HandedOver => write!(
                f,
                "{count} pages of memory were handed over, and no event tells whether past the per-CPU lists"
            ),
            PageCauseKind::PlaceUnknown => {
                write!(f, "{count} pages were free at `before` in blocks whose place no event tells")
            }
            PageCauseKind::Unknown => write!(f, "no cause is known for {count} pages"),
        }
    }
}

/// A row for each zone of each moment, and what the trace does not tell.
pub(super) fn show<'a>(
    f: &mut fmt::Formatter<'_>,
    moments: impl Iterator<Item = (&'a str, &'a PagesAt)> + Clone,
) -> fmt::Result {
    if moments.clone().next().is_none() {
        return Ok(());
    }
    let mut rows =
        table(&["moment", "zone", "free pages", "kernel", "in blocks that differ", "% of the kernel's"]);
    for (moment, zone) in moments.clone().flat_map(|(name, at)| at.zones.iter().map(move |zone| (name, zone)))
    {
        let kernel = pages_of(&zone.kernel);
        let rebuilt: i64 = (0..).zip(&zone.rebuilt).map(|(order, count)| count << order).sum();
        rows.add_row([
            moment.to_owned(),
            zone.zone.clone(),
            grouped(rebuilt.max(0).unsigned_abs()),
            grouped(kernel),
            grouped(zone.error()),
            format!("{:.2}", percent(zone.error(), kernel)),
        ]);
    }
    writeln!(
        f,
        "\nThe kernel's free pages, rebuilt from its events, beside its buddyinfo:\n{}",
        text(&rows)
    )?;
    for (moment, at) in moments.filter(|(_, at)| at.error.pages > 0) {
        let causes: Vec<_> = at.error.causes.iter().map(PageCause::to_string).collect();
        writeln!(f, "  They differ at `{moment}`: {}.", causes.join("; "))?;
    }
    Ok(())
}

/// Free blocks by order at each moment: the kernel's, the rebuilt ones, and those of each design.
pub(super) fn show_designs(f: &mut fmt::Formatter<'_>, all: &[(&str, &str, &PagesAt)]) -> fmt::Result {
    if all.iter().all(|(.., pages)| pages.design.is_none()) {
        return Ok(());
    }
    let orders: Vec<_> = (0..=MAX_ORDER).map(|order| order.to_string()).collect();
    let mut rows = table(
        &[
            &["moment", "free blocks of order"],
            &orders.iter().map(String::as_str).collect::<Vec<_>>()[..],
            &["pages"],
        ]
        .concat(),
    );
    let mut row = |moment: &str, whose: &str, blocks: &[i64]| {
        let of = |order| blocks.get(usize::from(order)).copied().unwrap_or_default();
        let pages: i64 = (0..=MAX_ORDER).map(|order| of(order) << order).sum();
        let counts = (0..=MAX_ORDER).map(|order| of(order).to_string());
        let ends = [grouped(pages.max(0).unsigned_abs())];
        rows.add_row([moment.to_owned(), whose.to_owned()].into_iter().chain(counts).chain(ends));
    };
    let signed = |blocks: &[u64]| blocks.iter().map(|count| *count as i64).collect::<Vec<_>>();
    let mut told = None;
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by_key(|(_, moment, _)| all.iter().position(|(_, other, _)| moment == other));
    for (design, moment, pages) in sorted {
        if told != Some(moment) {
            row(moment, "kernel", &signed(&pages.kernel));
            row(moment, "rebuilt", &pages.rebuilt);
            told = Some(moment);
        }
        if let Some(blocks) = &pages.design {
            row(moment, design, &signed(blocks));
        }
    }
    writeln!(f, "\n{}", text(&rows))
}

fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 }
}

/// Rebuilds the kernel's free lists at each moment after `before` that has a table. There are none where the trace has no
/// `mm_page_alloc_zone_locked`, or no table of `before`.
pub(super) fn rebuild(
    ops: &[Op],
    moves: &[PageMove],
    mark: impl Fn(MarkId) -> String,
    tables: &Tables,
    counts: &Counts,
) -> FxHashMap<String, PagesAt> {
    let told = moves.iter().any(|page_move| matches!(page_move.kind, PageMoveKind::Taken { .. }));
    let before = tables.at("before").filter(|_| told);
    let Some(rows) = before.and_then(|before| before.free_blocks.as_deref()) else {
        return FxHashMap::default();
    };
    let (steps, marks) = steps::steps(ops, moves, mark);
    let Answers { freed, known } = steps::answers(&steps, &steps::percpu_orders(moves));
    let mut rebuilding = Rebuilding {
        free: FreePages::of(&known),
        zones: zones(rows, before.and_then(|before| before.zones.as_deref()).unwrap_or_default()),
        untold: BTreeMap::new(),
        owed: FxHashMap::default(),
        moved: 0,
        moved_at_slabinfo: 0,
    };
    let mut moments = FxHashMap::default();
    let mut done = 0;
    for (at, text) in &marks {
        for (step, freed) in steps[done..*at].iter().zip(&freed[done..*at]) {
            rebuilding.step(step, *freed);
        }
        done = *at;
        let Some((moment, what)) = text.strip_prefix("SNAP ").and_then(|text| text.split_once(' ')) else {
            continue;
        };
        if matches!(what, "begin" | "slabinfo done") {
            rebuilding.moved_at_slabinfo = rebuilding.moved;
        }
        // The table is read before that mark. Where there is none, nearest to the first.
        let read = format!("SNAP {moment} buddyinfo done");
        let is_read = *text == read || what == "begin" && marks.iter().all(|(_, text)| *text != read);
        if !is_read {
        } else if moment == "before" {
            rebuilding.learn();
            rebuilding.untold.insert(PageCauseKind::LostEvents, lost(counts));
        } else if let Some(rows) = tables.at(moment).and_then(|snapshot| snapshot.free_blocks.as_ref())
            && let Some(pages) = rebuilding.at_moment(rows)
        {
            moments.insert(moment.to_owned(), pages);
        }
    }
    moments
}

/// Events that happened and are not in the trace, as far as it says.
fn lost(counts: &Counts) -> u64 {
    let written = counts.header.map_or(0, |(_, written, _)| written);
    written.saturating_sub(counts.events + counts.not_understood).max(counts.lost)
}

/// A way through the events.
struct Rebuilding {
    free: FreePages,
    zones: Vec<Zone>,
    /// What the trace did not tell since `before`, in pages. What it did not tell earlier is in the zones' constants.
    untold: BTreeMap<PageCauseKind, u64>,
    /// Pages that a list gave and that were on none, with the event: maybe they come back at the same time.
    owed: FxHashMap<u64, Step>,
    /// Pages that came to the lists or left them so far.
    moved: u64,
    moved_at_slabinfo: u64,
}

impl Rebuilding {
    fn step(&mut self, step: &Step, freed: Option<Freed>) {
        let to_lists = match (step.kind, freed) {
            (_, Some(Freed::TakenFirst)) => return,
            (StepKind::Drained, _) | (_, Some(Freed::ToLists)) => true,
            (StepKind::Taken | StepKind::Alloc | StepKind::Freed, _) => false,
        };
        if freed == Some(Freed::HandedOver) {
            self.count(PageCauseKind::HandedOver, 1 << step.order);
        }
        for pfn in step.pages() {
            if to_lists && self.owed.remove(&pfn).is_some_and(|taken| taken.is_simultaneous(step)) {
                self.count(PageCauseKind::CameWithoutEvent, -1);
                continue;
            }
            let was_free = self.free.set(pfn, to_lists);
            self.moved += u64::from(was_free != to_lists);
            match (step.kind, was_free) {
                (StepKind::Taken, false) => {
                    self.owed.insert(pfn, *step);
                    self.count(PageCauseKind::CameWithoutEvent, 1);
                }
                (StepKind::Drained | StepKind::Alloc | StepKind::Freed, true) => {
                    self.count(PageCauseKind::LeftWithoutEvent, 1);
                }
                _ => {}
            }
        }
    }

    fn count(&mut self, cause: PageCauseKind, pages: i64) {
        let count = self.untold.entry(cause).or_default();
        *count = count.saturating_add_signed(pages);
    }

    /// Takes the kernel's table of `before` in.
    fn learn(&mut self) {
        self.untold.clear();
        for zone in &mut self.zones {
            self.free.place(&zone.pages, &zone.before);
            let told = self.free.blocks(&zone.pages, zone.most());
            let constant = zone.before.iter().zip(told).map(|(count, told)| *count as i64 - told as i64);
            zone.constant = Some(constant.collect());
        }
    }

    /// The lists beside a table; `None` before `before`.
    fn at_moment(&self, rows: &[FreeBlocks]) -> Option<PagesAt> {
        let zone = |zone: &Zone| {
            let told = self.free.blocks(&zone.pages, zone.most());
            let constant = zone.constant.as_ref()?;
            Some(ZonePages {
                zone: zone.name.clone(),
                kernel: zone.of(rows),
                rebuilt: constant.iter().zip(told).map(|(constant, told)| constant + told as i64).collect(),
                design: None,
            })
        };
        let zones = self.zones.iter().map(zone).collect::<Option<Vec<_>>>()?;
        let pages = zones.iter().map(ZonePages::error).sum();
        let mut untold = self.untold.clone();
        untold.insert(PageCauseKind::MovedWhileRead, self.moved - self.moved_at_slabinfo);
        untold.insert(PageCauseKind::PlaceUnknown, self.zones.iter().map(Zone::without_place).sum());
        if untold.values().all(|count| *count == 0) {
            untold.insert(PageCauseKind::Unknown, pages);
        }
        let causes = untold
            .into_iter()
            .filter(|&(_, count)| count > 0 && pages > 0)
            .map(|(cause, count)| PageCause { cause, count });
        let free = zones.iter().map(|zone| pages_of(&zone.kernel)).sum();
        Some(PagesAt {
            kernel: sums(zones.iter().map(|zone| &zone.kernel)),
            rebuilt: sums(zones.iter().map(|zone| &zone.rebuilt)),
            design: None,
            error: PageError { pages, percent: percent(pages, free), causes: causes.collect() },
            zones,
        })
    }
}

impl PagesAt {
    /// With the design's free blocks, of those zones that it has, too.
    pub(super) fn beside(mut self, design: &[(ZoneKind, Vec<u64>)]) -> Self {
        for zone in &mut self.zones {
            let own = design.iter().find(|(kind, _)| kind_of(&zone.zone) == Some(*kind));
            zone.design = own.map(|(_, blocks)| blocks.clone());
        }
        let zones = || self.zones.iter().filter_map(|zone| zone.design.as_ref());
        self.design = (zones().count() == self.zones.len()).then(|| sums(zones()));
        self
    }
}

impl ZonePages {
    /// Pages in blocks that one has and the other has not.
    fn error(&self) -> u64 {
        let pairs = self.kernel.iter().zip(&self.rebuilt).zip(0..);
        pairs.map(|((kernel, rebuilt), order)| rebuilt.abs_diff(*kernel as i64) << order).sum()
    }
}

/// All pages of blocks by order.
fn pages_of(by_order: &[u64]) -> u64 {
    (0..).zip(by_order).map(|(order, count)| count << order).sum()
}

fn sums<'a, T: Copy + Default + std::ops::AddAssign + 'a>(lists: impl Iterator<Item = &'a Vec<T>>) -> Vec<T> {
    let mut sums = Vec::new();
    for list in lists {
        sums.resize(sums.len().max(list.len()), T::default());
        sums.iter_mut().zip(list).for_each(|(sum, count)| *sum += *count);
    }
    sums
}

/// A zone of the traced machine.
#[derive(Debug)]
struct Zone {
    name: String,
    pages: Range<u64>,
    /// The kernel's blocks by order at `before`.
    before: Vec<u64>,
    /// What these have more than the events tell; `None` before `before`.
    constant: Option<Vec<i64>>,
}

const ALL_ZONES: &str = "all zones";

/// The kind of a zone of the first node, by its name in the kernel's tables.
fn kind_of(zone: &str) -> Option<ZoneKind> {
    let name = zone.strip_prefix("Node 0, zone ")?;
    ZoneKind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// The zones of the traced machine, by zoneinfo of the moment `before`: the pages that its page allocator has. What it had handed
/// out by then, and no event tells of, is taken off the largest one. None where the tables do not tell, or tell of several nodes.
pub(super) fn machine_zones(
    ops: &[Op],
    mark: impl Fn(MarkId) -> String,
    tables: &Tables,
) -> Vec<(ZoneKind, u32)> {
    let Some(before) = tables.at("before") else { return vec![] };
    let zone = |span: &ZoneSpan| Some((kind_of(&span.zone)?, u32::try_from(span.managed).ok()?));
    let spans = before.zones.as_deref().unwrap_or_default();
    let Some(mut zones) = spans.iter().map(zone).collect::<Option<Vec<_>>>() else { return vec![] };
    let free = before.free_blocks.iter().flatten().map(|row| pages_of(&row.by_order)).sum::<u64>();
    let mut held = FxHashSet::default();
    for op in ops {
        match op.kind {
            OpKind::PageAlloc { pfn, order, .. } => held.extend(pfn.0..pfn.0 + (1 << order)),
            OpKind::PageFree { pfn, order, .. } => {
                (pfn.0..pfn.0 + (1 << order)).for_each(|page| _ = held.remove(&page));
            }
            OpKind::Mark { text } if mark(text).starts_with("SNAP before") => break,
            _ => {}
        }
    }
    let told = free + before.percpu.unwrap_or(0) + held.len() as u64;
    let all = zones.iter().map(|(_, pages)| u64::from(*pages)).sum::<u64>();
    if let Some((_, pages)) = zones.iter_mut().max_by_key(|(_, pages)| *pages) {
        *pages = pages.saturating_sub(u32::try_from(all.saturating_sub(told)).unwrap_or(u32::MAX)).max(1);
    }
    zones
}

/// The zones of a table; all memory as one where nothing tells how they lie.
fn zones(rows: &[FreeBlocks], spans: &[ZoneSpan]) -> Vec<Zone> {
    if spans.is_empty() {
        let before = sums(rows.iter().map(|row| &row.by_order));
        return vec![Zone { name: ALL_ZONES.to_owned(), pages: 0..u64::MAX, before, constant: None }];
    }
    let zone = |row: &FreeBlocks| {
        // A zone that zoneinfo does not know has no pages that an event could tell of.
        let span = spans.iter().find(|span| span.zone == row.zone);
        let pages = span.map_or(0..0, |span| span.start.0..span.start.0 + span.spanned);
        Zone { name: row.zone.clone(), pages, before: row.by_order.clone(), constant: None }
    };
    rows.iter().map(zone).collect()
}

impl Zone {
    /// Its blocks in a table.
    fn of(&self, rows: &[FreeBlocks]) -> Vec<u64> {
        sums(
            rows.iter()
                .filter(|row| self.name == ALL_ZONES || self.name == row.zone)
                .map(|row| &row.by_order),
        )
    }

    /// The largest order, where merging ends.
    fn most(&self) -> u8 {
        self.before.len().saturating_sub(1).min(MAX_ORDER.into()) as u8
    }

    /// Pages of blocks that the table and the events do not have both.
    fn without_place(&self) -> u64 {
        (0..).zip(self.constant.iter().flatten()).map(|(order, count)| count.unsigned_abs() << order).sum()
    }
}

#[cfg(test)]
mod tests;

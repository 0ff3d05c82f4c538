//! Rebuilds the kernel's free lists of pages from the events of a trace, and compares these lists with the
//! kernel's buddyinfo.
//!
//! Linux merges a free block with its buddy whenever both are free and have the same order. Linux splits a block only
//! in order to take a part of it. The set of free pages in each zone therefore determines the blocks on the kernel's
//! lists, and the module keeps only this set.
//!
//! | event | its pages |
//! |---|---|
//! | `mm_page_alloc_zone_locked` | leave the lists |
//! | `mm_page_pcpu_drain` | enter the lists |
//! | `mm_page_free` | enter the lists, unless they go to a per-CPU list |
//! | `mm_page_alloc_extfrag` | leave the lists, on kernels that write it after the pages have left |
//!
//! A trace lacks some facts about pages. A missing fact follows from the next event of the page.
//!
//! - *Which pages were free when the trace began?* A page was free if its first event takes it from a list.
//! - *Did freed pages move to a per-CPU list or to the free lists?* Per-CPU lists hold only blocks of small
//!   orders; larger blocks move to the free lists. A small block moved to the free lists if the next event of its pages
//!   takes the pages from a free list. Memory that the kernel hands over to the allocator during boot appears as a run
//!   of frees, each of which is the first event of its page. If a later event shows the kind of list to which one page
//!   of the run moved, all pages of the run moved to it.
//! - *Does `mm_page_alloc_extfrag` take pages?* Linux 6.1 writes this event before
//!   `mm_page_alloc_zone_locked` takes some of the pages. Linux 6.12 writes `mm_page_alloc_extfrag` after the
//!   pages have left their free list, and most of these pages have no other event.
//! - *Which of two events came first?* In the trace, events of two CPUs with the same time stamp may be in
//!   any order. If one CPU frees a page and another CPU takes it from a list with the same time stamp, the second event
//!   really happened first. If a page is taken from a list and drained from a per-CPU list with the same time stamp,
//!   the drain happened first.
//!
//! A page without an event was either free during the whole trace or in use during the whole trace. The kernel's table
//! `before` gives the number of free pages, and the sizes of their blocks. The kernel's table gives no addresses of
//! blocks. The address of a block matters only if pages of the block have events. [`FreePages::place`] finds the
//! address of a block. The difference that remains between the table `before` and the rebuilt set is a constant, which
//! is added to all later rebuilt counts.
//!
//! No event shows the blocks of a reserve (`HighAtomic`, `CMA`, `Isolate`); above the order of a pageblock,
//! reserve blocks do not merge with other blocks. The rebuilt lists are therefore inexact around the blocks
//! of a reserve.

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
use steps::{Answers, FreeDestination, Step, StepKind};
use uslab_buddy::{MAX_ORDER, ZoneKind};

/// The kernel's free pages in a snapshot: as the kernel's table counts them, and as rebuilt from events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SnapshotPages {
    /// The number of the kernel's free blocks of each order.
    pub kernel: Vec<u64>,
    /// The number of free blocks of each order, rebuilt from events.
    pub rebuilt: Vec<i64>,
    /// The number of the design's free blocks of each order, if the design's zones are as large as the
    /// kernel's. The value is `None` if zoneinfo has no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub design: Option<Vec<u64>>,
    /// The free blocks of each zone.
    pub zones: Vec<ZonePages>,
    /// The difference between the kernel's free blocks and the rebuilt blocks.
    pub error: PageError,
}

/// A zone's free pages in a snapshot of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZonePages {
    /// The node and zone, in the form in which the kernel prints them.
    pub zone: String,
    /// The number of the kernel's free blocks in the zone, for each order.
    pub kernel: Vec<u64>,
    /// The number of free blocks in the zone for each order, rebuilt from events.
    pub rebuilt: Vec<i64>,
    /// The number of the design's free blocks in the zone, for each order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub design: Option<Vec<u64>>,
}

/// The differences between the kernel's and the rebuilt lists, summed over all zones and orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageError {
    /// The number of pages in blocks that are on only one of the two lists: the kernel's or the rebuilt one.
    pub pages: u64,
    /// The value of `pages` as a percentage of the kernel's free pages.
    pub percent: f64,
    /// The causes of the difference since the `before` snapshot; empty if the lists are equal.
    pub causes: Vec<PageCause>,
}

/// A cause of a difference between rebuilt lists and the kernel's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PageCause {
    /// The reason why the lists differ.
    pub cause: PageCauseKind,
    /// The number of pages that differ because of the cause; for [lost events](PageCauseKind::LostEvents), the number
    /// of events.
    pub count: u64,
}

/// The kind of cause that makes rebuilt lists differ from the kernel's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageCauseKind {
    /// The trace lost events.
    LostEvents,
    /// Pages were freed or allocated while they were still on the rebuilt lists. The pages had already left the
    /// kernel's list without an event, for example because of compaction.
    LeftWithoutEvent,
    /// Pages left a list that they had entered without an event, so the trace does not show them on the list.
    CameWithoutEvent,
    /// Pages moved while the recorder read the kernel's table, between two marks of the trace.
    MovedWhileRead,
    /// Pages were handed over to the allocator at boot, and no later event shows the kind of list to which they moved.
    HandedOver,
    /// Pages were free in the kernel's table `before`, in blocks whose address no event shows.
    PlaceUnknown,
    /// The cause is not known.
    Unknown,
}

impl fmt::Display for PageCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = grouped(self.count);
        match self.cause {
            PageCauseKind::LostEvents => write!(f, "the trace lost {count} events"),
            PageCauseKind::LeftWithoutEvent => {
                write!(f, "{count} pages left the lists without an event, as in compaction")
            }
            PageCauseKind::CameWithoutEvent => {
                write!(f, "{count} pages returned to the lists without an event")
            }
            PageCauseKind::MovedWhileRead => {
                write!(f, "{count} pages moved while the kernel's table was read")
            }
            PageCauseKind::HandedOver => {
                write!(f, "{count} pages were freed, and no event shows if the per-CPU lists were bypassed")
            }
            PageCauseKind::PlaceUnknown => {
                write!(f, "{count} pages were free at `before` in blocks at unknown places")
            }
            PageCauseKind::Unknown => write!(f, "no cause is known for {count} pages"),
        }
    }
}

/// Writes a row for each zone in each snapshot, and the causes of differences.
pub(super) fn show<'a>(
    f: &mut fmt::Formatter<'_>,
    moments: impl Iterator<Item = (&'a str, &'a SnapshotPages)> + Clone,
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
        "\nThe kernel's free pages as rebuilt from its events, and as its buddyinfo counts them:\n{}",
        text(&rows)
    )?;
    for (moment, at) in moments.filter(|(_, at)| at.error.pages > 0) {
        let causes: Vec<_> = at.error.causes.iter().map(PageCause::to_string).collect();
        writeln!(f, "  They differ at `{moment}`: {}.", causes.join("; "))?;
    }
    Ok(())
}

/// Writes the number of free blocks of each order in each snapshot: in the kernel, rebuilt from events, and
/// in each design.
pub(super) fn write_design_blocks(
    f: &mut fmt::Formatter<'_>,
    all: &[(&str, &str, &SnapshotPages)],
) -> fmt::Result {
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

/// Rebuilds the kernel's free lists for each snapshot of the kernel's tables after `before`. Returns an empty result if
/// the trace has no `mm_page_alloc_zone_locked`, or the recording has no table `before`.
pub(super) fn rebuild(
    ops: &[Op],
    moves: &[PageMove],
    mark: impl Fn(MarkId) -> String,
    tables: &Tables,
    counts: &Counts,
) -> FxHashMap<String, SnapshotPages> {
    let told = moves.iter().any(|page_move| matches!(page_move.kind, PageMoveKind::Taken { .. }));
    let before = tables.at("before").filter(|_| told);
    let Some(rows) = before.and_then(|before| before.free_blocks.as_deref()) else {
        return FxHashMap::default();
    };
    let (steps, marks) = steps::steps(ops, moves, mark);
    let Answers { freed, known } = steps::answers(&steps, &steps::percpu_orders(moves));
    let mut rebuilding = FreeListRebuilder {
        free: FreePages::of(&known),
        zones: zones(rows, before.and_then(|before| before.zones.as_deref()).unwrap_or_default()),
        untold: BTreeMap::new(),
        early_takes: FxHashMap::default(),
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
        // The table is read before the mark `buddyinfo done`. In a trace without that mark, `begin` is the nearest
        // mark.
        let read = format!("SNAP {moment} buddyinfo done");
        let is_read = *text == read || what == "begin" && marks.iter().all(|(_, text)| *text != read);
        if !is_read {
        } else if moment == "before" {
            rebuilding.learn();
            rebuilding.untold.insert(PageCauseKind::LostEvents, lost_events(counts));
        } else if let Some(rows) = tables.at(moment).and_then(|snapshot| snapshot.free_blocks.as_ref())
            && let Some(pages) = rebuilding.compare_with_snapshot(rows)
        {
            moments.insert(moment.to_owned(), pages);
        }
    }
    moments
}

/// Returns the number of events that are known to be missing in the trace.
fn lost_events(counts: &Counts) -> u64 {
    let written = counts.header.map_or(0, |(_, written, _)| written);
    written.saturating_sub(counts.events + counts.not_understood).max(counts.lost)
}

/// The state of the rebuilding, which reads the events in order.
struct FreeListRebuilder {
    free: FreePages,
    zones: Vec<Zone>,
    /// The number of pages that moved without an event since the `before` snapshot, by cause. The constants of the
    /// zones already include differences from before the `before` snapshot.
    untold: BTreeMap<PageCauseKind, u64>,
    /// Pages that an event took from a list although the rebuilt list did not contain them, each with the event. The
    /// event that puts these pages on the list may follow in the trace with the same time stamp.
    early_takes: FxHashMap<u64, Step>,
    /// The number of times that a page has entered or left a list.
    moved: u64,
    moved_at_slabinfo: u64,
}

impl FreeListRebuilder {
    fn step(&mut self, step: &Step, freed: Option<FreeDestination>) {
        let to_lists = match (step.kind, freed) {
            (_, Some(FreeDestination::TakenFirst)) => return,
            (StepKind::Drained, _) | (_, Some(FreeDestination::ToLists)) => true,
            (StepKind::Taken | StepKind::Alloc | StepKind::Freed, _) => false,
        };
        if freed == Some(FreeDestination::HandedOver) {
            self.count(PageCauseKind::HandedOver, 1 << step.order);
        }
        for pfn in step.pages() {
            if to_lists && self.early_takes.remove(&pfn).is_some_and(|taken| taken.is_simultaneous(step)) {
                self.count(PageCauseKind::CameWithoutEvent, -1);
                continue;
            }
            let was_free = self.free.set(pfn, to_lists);
            self.moved += u64::from(was_free != to_lists);
            match (step.kind, was_free) {
                (StepKind::Taken, false) => {
                    self.early_takes.insert(pfn, *step);
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

    /// Reads the kernel's table `before`.
    fn learn(&mut self) {
        self.untold.clear();
        for zone in &mut self.zones {
            self.free.place(&zone.pages, &zone.before);
            let told = self.free.blocks(&zone.pages, zone.max_order());
            let constant = zone.before.iter().zip(told).map(|(count, told)| *count as i64 - told as i64);
            zone.constant = Some(constant.collect());
        }
    }

    /// Returns the rebuilt lists, compared with a table of the kernel. Returns `None` for snapshots earlier
    /// than `before`.
    fn compare_with_snapshot(&self, rows: &[FreeBlocks]) -> Option<SnapshotPages> {
        let zone = |zone: &Zone| {
            let told = self.free.blocks(&zone.pages, zone.max_order());
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
        Some(SnapshotPages {
            kernel: sums(zones.iter().map(|zone| &zone.kernel)),
            rebuilt: sums(zones.iter().map(|zone| &zone.rebuilt)),
            design: None,
            error: PageError { pages, percent: percent(pages, free), causes: causes.collect() },
            zones,
        })
    }
}

impl SnapshotPages {
    /// Adds the design's free blocks, for the zones that the design has.
    pub(super) fn with_design_blocks(mut self, design: &[(ZoneKind, Vec<u64>)]) -> Self {
        for zone in &mut self.zones {
            let own = design.iter().find(|(kind, _)| zone_kind_by_name(&zone.zone) == Some(*kind));
            zone.design = own.map(|(_, blocks)| blocks.clone());
        }
        let zones = || self.zones.iter().filter_map(|zone| zone.design.as_ref());
        self.design = (zones().count() == self.zones.len()).then(|| sums(zones()));
        self
    }
}

impl ZonePages {
    /// Returns the number of pages in blocks that are on only one of the two lists: the kernel's or the rebuilt one.
    fn error(&self) -> u64 {
        let pairs = self.kernel.iter().zip(&self.rebuilt).zip(0..);
        pairs.map(|((kernel, rebuilt), order)| rebuilt.abs_diff(*kernel as i64) << order).sum()
    }
}

/// Returns the number of pages in free blocks, given the number of blocks of each order.
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
    /// The number of blocks of each order in the kernel's table `before`.
    before: Vec<u64>,
    /// For each order, the number of blocks in the kernel's table minus the number of rebuilt blocks. The values are
    /// `None` until the rebuilding reaches the `before` snapshot.
    constant: Option<Vec<i64>>,
}

const ALL_ZONES: &str = "all zones";

/// Returns the kind of a zone of the first node, by its name in the kernel's tables.
fn zone_kind_by_name(zone: &str) -> Option<ZoneKind> {
    let name = zone.strip_prefix("Node 0, zone ")?;
    ZoneKind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// Returns the zones of the traced machine, with the pages that the page allocator manages, from zoneinfo in
/// the `before` snapshot. Pages that have no event and were allocated before the `before` snapshot are subtracted from
/// the size of the largest zone. Returns an empty result if the tables lack the zones' sizes, or describe several
/// nodes.
pub(super) fn machine_zones(
    ops: &[Op],
    mark: impl Fn(MarkId) -> String,
    tables: &Tables,
) -> Vec<(ZoneKind, u32)> {
    let Some(before) = tables.at("before") else { return vec![] };
    let zone = |span: &ZoneSpan| Some((zone_kind_by_name(&span.zone)?, u32::try_from(span.managed).ok()?));
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

/// Returns the zones of a table; without zoneinfo, all memory is one zone.
fn zones(rows: &[FreeBlocks], spans: &[ZoneSpan]) -> Vec<Zone> {
    if spans.is_empty() {
        let before = sums(rows.iter().map(|row| &row.by_order));
        return vec![Zone { name: ALL_ZONES.to_owned(), pages: 0..u64::MAX, before, constant: None }];
    }
    let zone = |row: &FreeBlocks| {
        // A zone that is not in zoneinfo gets no pages, so no event concerns it.
        let span = spans.iter().find(|span| span.zone == row.zone);
        let pages = span.map_or(0..0, |span| span.start.0..span.start.0 + span.spanned);
        Zone { name: row.zone.clone(), pages, before: row.by_order.clone(), constant: None }
    };
    rows.iter().map(zone).collect()
}

impl Zone {
    /// Returns the zone's number of blocks of each order, from a table of all zones.
    fn of(&self, rows: &[FreeBlocks]) -> Vec<u64> {
        sums(
            rows.iter()
                .filter(|row| self.name == ALL_ZONES || self.name == row.zone)
                .map(|row| &row.by_order),
        )
    }

    /// Returns the largest order of a block in the zone.
    fn max_order(&self) -> u8 {
        self.before.len().saturating_sub(1).min(MAX_ORDER.into()) as u8
    }

    /// Returns the number of pages in blocks that are only in the kernel's table, or only in the rebuilt set.
    fn without_place(&self) -> u64 {
        (0..).zip(self.constant.iter().flatten()).map(|(order, count)| count.unsigned_abs() << order).sum()
    }
}

#[cfg(test)]
mod tests;

//! The events that concern pages. Facts that the trace lacks are inferred from the next event of the page.

use super::free_pages::{CHUNK, ORDERS};
use crate::trace::{MarkId, Op, OpKind, PageFreeOrigin, PageMove, PageMoveKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Ordering;

/// The default for the largest order on per-CPU lists, used if the trace does not show it; kernels have had this order
/// since 5.13.
const MAX_PERCPU_ORDER: u8 = 3;

/// A traced event that concerns `2^order` pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    time_ns: u64,
    pfn: u64,
    cpu: u16,
    pub(super) order: u8,
    pub(super) kind: StepKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// The pages were taken from a free list.
    Taken,
    /// The pages were drained from a per-CPU list to a free list.
    Drained,
    /// The pages were allocated to a user.
    Alloc,
    /// The user freed the pages.
    Freed,
}

impl Step {
    pub(super) fn pages(&self) -> std::ops::Range<u64> {
        self.pfn..self.pfn + (1 << self.order)
    }

    /// Returns `true` if different CPUs wrote the two events with equal times, so that the events may have happened in
    /// the opposite order.
    pub(super) fn is_simultaneous(&self, other: &Self) -> bool {
        self.time_ns == other.time_ns && self.cpu != other.cpu
    }
}

/// Returns the page events in the order of the trace. The second result is the trace's marks, each with the number of
/// page events before it.
pub(super) fn steps(
    ops: &[Op],
    moves: &[PageMove],
    mark: impl Fn(MarkId) -> String,
) -> (Vec<Step>, Vec<(usize, String)>) {
    let fallback_takes_pages = fallback_takes_pages(ops, moves);
    let step_of = |page_move: &PageMove| {
        let kind = match page_move.kind {
            PageMoveKind::Taken { .. } => StepKind::Taken,
            PageMoveKind::Drained => StepKind::Drained,
            PageMoveKind::Fallback if fallback_takes_pages => StepKind::Taken,
            PageMoveKind::Fallback => return None,
        };
        let &PageMove { time_ns, pfn, cpu, order, .. } = page_move;
        Some(Step { time_ns, pfn: pfn.0, cpu, order, kind })
    };
    let (mut steps, mut marks) = (Vec::with_capacity(moves.len() * 2), Vec::new());
    let mut moves = moves.iter().peekable();
    for op in ops {
        let event = match op.kind {
            OpKind::PageAlloc { pfn, order, .. } => Some((pfn, order, StepKind::Alloc)),
            // A hidden free has no event.
            OpKind::PageFree { origin: PageFreeOrigin::Hidden { .. }, .. } => continue,
            OpKind::PageFree { pfn, order, .. } => Some((pfn, order, StepKind::Freed)),
            OpKind::Mark { .. } => None,
            _ => continue,
        };
        while let Some(page_move) = moves.next_if(|page_move| page_move.line < op.line) {
            steps.extend(step_of(page_move));
        }
        if let Some((pfn, order, kind)) = event {
            steps.push(Step { time_ns: op.time_ns, pfn: pfn.0, cpu: op.cpu, order, kind });
        } else if let OpKind::Mark { text } = op.kind {
            marks.push((steps.len(), mark(text)));
        }
    }
    steps.extend(moves.filter_map(step_of));
    (steps, marks)
}

/// Returns `true` if `mm_page_alloc_extfrag` takes the pages that it names. If `mm_page_alloc_extfrag` takes pages,
/// `mm_page_alloc_zone_locked` is usually not the next event of these pages.
fn fallback_takes_pages(ops: &[Op], moves: &[PageMove]) -> bool {
    let mut named = FxHashSet::default();
    let (mut takes, mut only_names) = (0, 0);
    let mut moves = moves.iter().peekable();
    for op in ops {
        let (OpKind::PageAlloc { pfn, .. } | OpKind::PageFree { pfn, .. }) = op.kind else { continue };
        while let Some(page_move) = moves.next_if(|page_move| page_move.line < op.line) {
            let was_named = u64::from(named.remove(&page_move.pfn));
            match page_move.kind {
                PageMoveKind::Fallback => _ = named.insert(page_move.pfn),
                PageMoveKind::Taken { .. } => only_names += was_named,
                PageMoveKind::Drained => takes += was_named,
            }
        }
        takes += u64::from(named.remove(&pfn));
    }
    takes > only_names
}

/// Returns, for each order, `true` if per-CPU lists hold such blocks; orders without such an event use a default.
pub(super) fn percpu_orders(moves: &[PageMove]) -> [bool; ORDERS] {
    let mut has_event = [None; ORDERS];
    for page_move in moves {
        let has_event = &mut has_event[usize::from(page_move.order)];
        match page_move.kind {
            PageMoveKind::Taken { percpu_refill: false } => _ = has_event.get_or_insert(false),
            PageMoveKind::Taken { percpu_refill: true } | PageMoveKind::Drained => *has_event = Some(true),
            PageMoveKind::Fallback => {}
        }
    }
    std::array::from_fn(|order| has_event[order].unwrap_or(order <= usize::from(MAX_PERCPU_ORDER)))
}

/// The kind of list to which freed pages moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeDestination {
    /// The pages moved to the free lists.
    ToLists,
    /// The pages moved to a per-CPU list.
    ToPerCpu,
    /// No event shows the kind of list, because the free is the first event of the pages.
    HandedOver,
    /// The pages moved to no list: with the same time stamp, another CPU takes them from a list, and that event really
    /// happened first.
    TakenFirst,
}

/// Facts that the trace lacks, inferred from the next event of each page.
pub(super) struct Answers {
    /// For each event that frees pages, the destination of the pages.
    pub(super) freed: Vec<Option<FreeDestination>>,
    /// All pages with events, each with `true` if the page was free when the trace began.
    pub(super) known: Vec<(u64, bool)>,
}

/// Infers, for each event, the facts that only later events show. The parameter `percpu` is `true` for each order of
/// which per-CPU lists hold blocks.
pub(super) fn answers(steps: &[Step], percpu: &[bool; ORDERS]) -> Answers {
    const NO_STEP: u32 = u32::MAX;
    let mut first: FxHashMap<u64, Box<[u32; CHUNK]>> = FxHashMap::default();
    let mut freed = vec![None; steps.len()];
    // The loop runs backward, so `first` has the next event of each page.
    for (at, step) in steps.iter().enumerate().rev() {
        let held = percpu[usize::from(step.order)];
        let (mut to_lists, mut to_percpu, mut taken_first) = (0, 0, false);
        for pfn in step.pages() {
            let chunk = first.entry(pfn / CHUNK as u64).or_insert_with(|| Box::new([NO_STEP; CHUNK]));
            let next = &mut chunk[pfn as usize % CHUNK];
            if let Some(then) = steps.get(*next as usize) {
                // If two events are in the wrong order, the second one stays the next event for all earlier ones.
                match (step.kind, then.kind) {
                    (StepKind::Freed, StepKind::Taken) if held && then.is_simultaneous(step) => {
                        taken_first = true;
                        continue;
                    }
                    (StepKind::Taken, StepKind::Drained) if then.is_simultaneous(step) => continue,
                    (StepKind::Freed, StepKind::Taken) => to_lists += 1,
                    (StepKind::Freed, _) => to_percpu += 1,
                    _ => {}
                }
            }
            *next = at as u32;
        }
        if step.kind == StepKind::Freed {
            freed[at] = match to_lists.cmp(&to_percpu) {
                _ if taken_first => Some(FreeDestination::TakenFirst),
                _ if !held => Some(FreeDestination::ToLists),
                Ordering::Greater => Some(FreeDestination::ToLists),
                Ordering::Less => Some(FreeDestination::ToPerCpu),
                Ordering::Equal => None,
            };
        }
    }
    // For each CPU, a run of frees of pages without an earlier event, in blocks that per-CPU lists hold.
    let mut runs: FxHashMap<u16, Vec<usize>> = FxHashMap::default();
    for (at, step) in steps.iter().enumerate() {
        let is_first = |pfn: u64| first[&(pfn / CHUNK as u64)][pfn as usize % CHUNK] == at as u32;
        let run = runs.entry(step.cpu).or_default();
        if step.kind == StepKind::Freed && percpu[usize::from(step.order)] && is_first(step.pfn) {
            run.push(at);
            continue;
        }
        settle(run, steps, &mut freed);
        if step.kind == StepKind::Freed {
            // The pages had been allocated earlier, and small blocks move to a per-CPU list.
            freed[at].get_or_insert(FreeDestination::ToPerCpu);
        }
    }
    runs.values_mut().for_each(|run| settle(run, steps, &mut freed));
    let known = |(number, pages): (u64, Box<[u32; CHUNK]>)| {
        let was_free = |at: u32| Some(steps.get(at as usize)?.kind == StepKind::Taken);
        let pages = pages.into_iter().zip(number * CHUNK as u64..);
        pages.filter_map(move |(at, pfn)| Some((pfn, was_free(at)?)))
    };
    Answers { freed, known: first.into_iter().flat_map(known).collect() }
}

/// Decides for a run of frees to which kind of list its pages moved. All memory of one handover moves to the same kind
/// of list, so a free with a known list decides for its whole run. Large blocks that were never allocated are the
/// kernel's initial memory, which moves to the free lists.
fn settle(run: &mut Vec<usize>, steps: &[Step], freed: &mut [Option<FreeDestination>]) {
    let count = |answer| run.iter().filter(|&&at| freed[at] == Some(answer)).count();
    let (to_lists, to_percpu) = (count(FreeDestination::ToLists), count(FreeDestination::ToPerCpu));
    for at in run.drain(..) {
        freed[at].get_or_insert(match to_lists.cmp(&to_percpu) {
            _ if steps[at].order > MAX_PERCPU_ORDER => FreeDestination::ToLists,
            _ if to_lists + to_percpu == 0 => FreeDestination::HandedOver,
            Ordering::Less => FreeDestination::ToPerCpu,
            Ordering::Equal | Ordering::Greater => FreeDestination::ToLists,
        });
    }
}

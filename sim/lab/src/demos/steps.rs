//! Derives the steps of a command from the events that the allocator reported.

use super::structure::{On, Step};
use crate::allocators::buddy::{self, buddy_offset, merged_block_offset};
use crate::allocators::heap::Fit;
use crate::allocators::tlsf::classes::Class;
use crate::allocators::{Allocator, Buddy, Tlsf};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::Event;

/// A command that concerns a block.
#[derive(Debug)]
pub(super) enum Operation<'a> {
    /// An allocation; `block` is `None` if the request was refused.
    Alloc { layout: Layout, name: &'a str, block: Option<Range<usize>> },
    /// The allocator's user returned a block.
    Free { name: &'a str, block: Range<usize> },
}

/// Returns the number of steps that the searches took.
fn search_steps(log: &[Event]) -> usize {
    log.iter().map(|event| if let Event::Searched(steps) = event { *steps as usize } else { 0 }).sum()
}

pub(super) fn buddy_steps(buddy: &Buddy, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
    let mut steps = vec![];
    match operation {
        Operation::Alloc { layout, name, block } => {
            let wanted_bytes = layout.size().max(layout.align()).max(buddy::UNIT).next_power_of_two();
            let lists = search_steps(log);
            for n in 0..lists {
                let (bytes, is_found) = (wanted_bytes << n, block.is_some() && n + 1 == lists);
                // The search for a refused request ends after the last list.
                if bytes > buddy.capacity() {
                    break;
                }
                let state = if is_found { "has a block" } else { "is empty" };
                steps.push(Step::new(
                    format!("The list of {bytes}-byte blocks {state}."),
                    On::List { bytes, found: is_found },
                ));
            }
            for event in log {
                if let Event::Split { at, bytes } = *event {
                    let lower_half = merged_block_offset(at, bytes);
                    let text = format!(
                        "The block of {} at {lower_half} is halved. Its upper half, {bytes} at {at}, becomes free.",
                        2 * bytes
                    );
                    steps.push(Step::new(text, On::Split { at, bytes }));
                }
            }
            if let Some(block) = block {
                let (at, bytes) = (block.start, block.len());
                let text = format!(
                    "{name} gets the block of {bytes} at {at}, and uses {} of its bytes.",
                    layout.size()
                );
                steps.push(Step::new(text, On::Take { at, bytes }));
            }
        }
        Operation::Free { block, .. } => {
            let (mut at, mut bytes) = (block.start, block.len());
            for event in log {
                if let Event::Merged { at: upper_buddy, .. } = *event {
                    let merged = merged_block_offset(at, bytes);
                    let text = format!(
                        "The buddy of {at} is {at} XOR {bytes} = {upper_buddy}. It is free: both become {} at {merged}.",
                        2 * bytes
                    );
                    steps.push(Step::new(text, On::Neighbour { at: upper_buddy, bytes, merged: true }));
                    (at, bytes) = (merged, 2 * bytes);
                }
            }
            if search_steps(log) > steps.len() {
                let upper_buddy = buddy_offset(at, bytes);
                let text = format!(
                    "The buddy of {at} is {at} XOR {bytes} = {upper_buddy}. It is in use or split, so {at} stays."
                );
                steps.push(Step::new(text, On::Neighbour { at: upper_buddy, bytes, merged: false }));
            }
            let text = format!("{at} joins the list of {bytes}-byte blocks.");
            steps.push(Step::new(text, On::Put { at, bytes }));
        }
    }
    steps
}

/// The number of header bytes of a block in the TLSF heap, and the number of tag bytes of a block in the other heaps.
const HEADER: usize = 4;
const TAGS: usize = 8;

/// Returns the size of a block that serves a layout, with `extra` bytes of headers and tags.
fn rounded_size(layout: Layout, extra: usize) -> usize {
    (layout.size() + extra).next_multiple_of(16)
}

pub(super) fn tlsf_steps(tlsf: &Tlsf, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
    let classes = tlsf.classes();
    let row = |fl| classes.start(Class { fl, sl: 0 });
    let list = |bytes| format!("the list of {}", classes.start(classes.of(bytes)));
    let mut steps = vec![];
    let (layout, name, block) = match operation {
        Operation::Alloc { layout, name, block } => (*layout, name, block),
        Operation::Free { name, block } => {
            freed((name, block.start - HEADER..block.end), log, list, &mut steps);
            return steps;
        }
    };
    let Some(first) = tlsf.first_class(layout) else { return steps };
    let list_start = classes.start(first);
    let text = format!(
        "{} bytes and a header take {}. The search begins at list {list_start}: each block in it is large enough.",
        layout.size(),
        rounded_size(layout, HEADER)
    );
    steps.push(Step::new(text, On::Class { row: first.fl, cell: first.sl }));
    let taken_range = log.iter().find_map(|event| match *event {
        Event::Inspected { at, bytes } => Some((at, bytes, classes.of(bytes))),
        _ => None,
    });
    let class = taken_range.map(|(.., class)| class);
    let scans = search_steps(log);
    if scans > 0 {
        let found_class = class.filter(|_| scans == 1);
        let result = found_class.map_or(format!("no bit from {list_start} on is set"), |found_class| {
            format!("bit {} is set", classes.start(found_class))
        });
        let highlight = On::Word {
            row: Some(first.fl),
            from: first.sl,
            found: found_class.map(|found_class| found_class.sl),
        };
        steps.push(Step::new(format!("Scan of row {}: {result}.", row(first.fl)), highlight));
    }
    if scans > 1 {
        let result =
            class.map_or("no row has a bit".to_owned(), |class| format!("row {} has a bit", row(class.fl)));
        let highlight = On::Word { row: None, from: first.fl + 1, found: class.map(|class| class.fl) };
        steps.push(Step::new(format!("Scan of the rows above: {result}."), highlight));
    }
    if let Some(class) = class.filter(|_| scans > 2) {
        let text = format!("Scan of row {}: its first bit is {}.", row(class.fl), classes.start(class));
        steps.push(Step::new(text, On::Word { row: Some(class.fl), from: 0, found: Some(class.sl) }));
    }
    if let Some((at, bytes, class)) = taken_range {
        let text = format!("List {} begins with the block of {bytes} bytes at {at}.", classes.start(class));
        steps.push(Step::new(text, On::Inspect { at, bytes, kept: true }));
    }
    if let Some(block) = block {
        let (at, bytes) = (block.start - HEADER, block.len() + HEADER);
        let text =
            format!("{name} takes {bytes} of them: its header at {at}, its bytes from {} on.", block.start);
        steps.push(Step::new(text, On::Take { at, bytes }));
    }
    describe_remainder(log, list, &mut steps);
    steps
}

pub(super) fn steps_of_heap_operation(fit: Fit, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
    let list = |_| "the list".to_owned();
    let mut steps = vec![];
    let (layout, name, block) = match operation {
        Operation::Alloc { layout, name, block } => (*layout, name, block),
        Operation::Free { name, block } => {
            freed((name, block.start - HEADER..block.end + HEADER), log, list, &mut steps);
            return steps;
        }
    };
    let (need, mut best) = (rounded_size(layout, TAGS), None);
    for event in log {
        let Event::Inspected { at, bytes } = *event else { continue };
        let gap = (at + HEADER).wrapping_neg() & (layout.align() - 1);
        let is_large_enough = gap + need <= bytes;
        let is_better = |best| if fit == Fit::Worst { bytes > best } else { bytes < best };
        let is_best_so_far = is_large_enough && best.is_none_or(is_better);
        let verdict = match (is_best_so_far, fit, best) {
            (true, Fit::Best, _) => "the smallest so far that is large enough".to_owned(),
            (true, Fit::Worst, _) => "the largest so far".to_owned(),
            (true, ..) => "the first that is large enough".to_owned(),
            (false, Fit::Worst, Some(best)) if is_large_enough => format!("not larger than {best}"),
            (false, _, Some(best)) if is_large_enough => format!("not smaller than {best}"),
            (false, ..) => format!("too small for {need}"),
        };
        best = if is_best_so_far { Some(bytes) } else { best };
        let text = format!("{bytes} bytes at {at}: {verdict}.");
        steps.push(Step::new(text, On::Inspect { at, bytes, kept: is_best_so_far }));
    }
    if let Some(block) = block {
        let (at, bytes) = (block.start - HEADER, block.len() + TAGS);
        let text = format!("{name} takes {bytes} bytes at {at}, with its two tags.");
        steps.push(Step::new(text, On::Take { at, bytes }));
    }
    describe_remainder(log, list, &mut steps);
    steps
}

/// Adds steps for the merges of a free, and for the list that the merged block joins.
fn freed(
    (name, found_class): (&str, Range<usize>),
    log: &[Event],
    list: impl Fn(usize) -> String,
    steps: &mut Vec<Step>,
) {
    let mut all = found_class.clone();
    for event in log {
        if let Event::Merged { at, bytes } = *event {
            let place = if at < found_class.start { "before" } else { "behind" };
            let text = format!("The block {place} {name}, {bytes} bytes at {at}, is free: both become one.");
            steps.push(Step::new(text, On::Neighbour { at, bytes, merged: true }));
            all = all.start.min(at)..all.end.max(at + bytes);
        }
    }
    let (at, bytes) = (all.start, all.len());
    if steps.is_empty() {
        let text = format!("Neither neighbour of {name} is free.");
        steps.push(Step::new(text, On::Neighbour { at, bytes, merged: false }));
    }
    steps.push(Step::new(format!("{bytes} bytes at {at} join {}.", list(bytes)), On::Put { at, bytes }));
}

/// Adds steps for the free blocks that remain after an allocation.
fn describe_remainder(log: &[Event], list: impl Fn(usize) -> String, steps: &mut Vec<Step>) {
    for event in log {
        if let Event::Split { at, bytes } = *event {
            let text = format!("The remaining {bytes} bytes at {at} join {}.", list(bytes));
            steps.push(Step::new(text, On::Put { at, bytes }));
        }
    }
}

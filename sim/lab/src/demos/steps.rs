//! The steps of a command, from the events that the allocator reported.

use super::structure::{On, Step};
use crate::allocators::buddy::{self, buddy_of, merged_of};
use crate::allocators::heap::Fit;
use crate::allocators::tlsf::classes::Class;
use crate::allocators::{Allocator, Buddy, Tlsf};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::Event;

/// A command on a block.
#[derive(Debug)]
pub(super) enum Operation<'a> {
    /// A request; `block` is `None` if it was refused.
    Alloc { layout: Layout, name: &'a str, block: Option<Range<usize>> },
    /// A free.
    Free { name: &'a str, block: Range<usize> },
}

/// Returns the number of steps of the searches.
fn searched(log: &[Event]) -> usize {
    log.iter().map(|event| if let Event::Searched(steps) = event { *steps as usize } else { 0 }).sum()
}

pub(super) fn of_buddy(buddy: &Buddy, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
    let mut steps = vec![];
    match operation {
        Operation::Alloc { layout, name, block } => {
            let wanted = layout.size().max(layout.align()).max(buddy::UNIT).next_power_of_two();
            let lists = searched(log);
            for n in 0..lists {
                let (bytes, found) = (wanted << n, block.is_some() && n + 1 == lists);
                // A refused search ends behind the last list.
                if bytes > buddy.capacity() {
                    break;
                }
                let has = if found { "has a block" } else { "is empty" };
                steps.push(Step::new(
                    format!("The list of {bytes}-byte blocks {has}."),
                    On::List { bytes, found },
                ));
            }
            for event in log {
                if let Event::Split { at, bytes } = *event {
                    let from = merged_of(at, bytes);
                    let said = format!(
                        "The block of {} at {from} is halved. Its upper half, {bytes} at {at}, becomes free.",
                        2 * bytes
                    );
                    steps.push(Step::new(said, On::Split { at, bytes }));
                }
            }
            if let Some(block) = block {
                let (at, bytes) = (block.start, block.len());
                let said = format!(
                    "{name} gets the block of {bytes} at {at}, and uses {} of its bytes.",
                    layout.size()
                );
                steps.push(Step::new(said, On::Take { at, bytes }));
            }
        }
        Operation::Free { block, .. } => {
            let (mut at, mut bytes) = (block.start, block.len());
            for event in log {
                if let Event::Merged { at: other, .. } = *event {
                    let merged = merged_of(at, bytes);
                    let said = format!(
                        "The buddy of {at} is {at} XOR {bytes} = {other}. It is free: both become {} at {merged}.",
                        2 * bytes
                    );
                    steps.push(Step::new(said, On::Neighbour { at: other, bytes, merged: true }));
                    (at, bytes) = (merged, 2 * bytes);
                }
            }
            if searched(log) > steps.len() {
                let other = buddy_of(at, bytes);
                let said = format!(
                    "The buddy of {at} is {at} XOR {bytes} = {other}. It is in use or split, so {at} stays."
                );
                steps.push(Step::new(said, On::Neighbour { at: other, bytes, merged: false }));
            }
            let said = format!("{at} joins the list of {bytes}-byte blocks.");
            steps.push(Step::new(said, On::Put { at, bytes }));
        }
    }
    steps
}

/// The header of a block of the TLSF heap, and the tags of a block of the other heaps.
const HEADER: usize = 4;
const TAGS: usize = 8;

/// Returns the size of a block that serves a layout, with `more` bytes of headers and tags.
fn needed(layout: Layout, more: usize) -> usize {
    (layout.size() + more).next_multiple_of(16)
}

pub(super) fn of_tlsf(tlsf: &Tlsf, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
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
    let from = classes.start(first);
    let said = format!(
        "{} bytes and a header take {}. The search begins at list {from}: each block in it is large enough.",
        layout.size(),
        needed(layout, HEADER)
    );
    steps.push(Step::new(said, On::Class { row: first.fl, cell: first.sl }));
    let taken = log.iter().find_map(|event| match *event {
        Event::Inspected { at, bytes } => Some((at, bytes, classes.of(bytes))),
        _ => None,
    });
    let class = taken.map(|(.., class)| class);
    let scans = searched(log);
    if scans > 0 {
        let own = class.filter(|_| scans == 1);
        let result = own.map_or(format!("no bit from {from} on is set"), |own| {
            format!("bit {} is set", classes.start(own))
        });
        let on = On::Word { row: Some(first.fl), from: first.sl, found: own.map(|own| own.sl) };
        steps.push(Step::new(format!("Scan of row {}: {result}.", row(first.fl)), on));
    }
    if scans > 1 {
        let result =
            class.map_or("no row has a bit".to_owned(), |class| format!("row {} has a bit", row(class.fl)));
        let on = On::Word { row: None, from: first.fl + 1, found: class.map(|class| class.fl) };
        steps.push(Step::new(format!("Scan of the rows above: {result}."), on));
    }
    if let Some(class) = class.filter(|_| scans > 2) {
        let said = format!("Scan of row {}: its first bit is {}.", row(class.fl), classes.start(class));
        steps.push(Step::new(said, On::Word { row: Some(class.fl), from: 0, found: Some(class.sl) }));
    }
    if let Some((at, bytes, class)) = taken {
        let said = format!("List {} begins with the block of {bytes} bytes at {at}.", classes.start(class));
        steps.push(Step::new(said, On::Inspect { at, bytes, kept: true }));
    }
    if let Some(block) = block {
        let (at, bytes) = (block.start - HEADER, block.len() + HEADER);
        steps.push(Step::new(format!("{name} takes {bytes} of them."), On::Take { at, bytes }));
    }
    left(log, list, &mut steps);
    steps
}

pub(super) fn of_heap(fit: Fit, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
    let list = |_| "the list".to_owned();
    let mut steps = vec![];
    let (layout, name, block) = match operation {
        Operation::Alloc { layout, name, block } => (*layout, name, block),
        Operation::Free { name, block } => {
            freed((name, block.start - HEADER..block.end + HEADER), log, list, &mut steps);
            return steps;
        }
    };
    let (need, mut smallest) = (needed(layout, TAGS), usize::MAX);
    for event in log {
        let Event::Inspected { at, bytes } = *event else { continue };
        let gap = (at + HEADER).wrapping_neg() & (layout.align() - 1);
        let fits = gap + need <= bytes;
        let kept = fits && bytes < smallest;
        let verdict = match (kept, fit) {
            (true, Fit::Best) => "the smallest so far that is large enough".to_owned(),
            (true, _) => "the first that is large enough".to_owned(),
            (false, _) if fits => format!("not smaller than {smallest}"),
            (false, _) => format!("too small for {need}"),
        };
        smallest = if kept { bytes } else { smallest };
        let said = format!("{bytes} bytes at {at}: {verdict}.");
        steps.push(Step::new(said, On::Inspect { at, bytes, kept }));
    }
    if let Some(block) = block {
        let (at, bytes) = (block.start - HEADER, block.len() + TAGS);
        let said = format!("{name} takes {bytes} bytes at {at}, with its two tags.");
        steps.push(Step::new(said, On::Take { at, bytes }));
    }
    left(log, list, &mut steps);
    steps
}

/// Adds the merges of a free, and the list that the block joins.
fn freed(
    (name, own): (&str, Range<usize>),
    log: &[Event],
    list: impl Fn(usize) -> String,
    steps: &mut Vec<Step>,
) {
    let mut all = own.clone();
    for event in log {
        if let Event::Merged { at, bytes } = *event {
            let place = if at < own.start { "before" } else { "behind" };
            let said = format!("The block {place} {name}, {bytes} bytes at {at}, is free: both become one.");
            steps.push(Step::new(said, On::Neighbour { at, bytes, merged: true }));
            all = all.start.min(at)..all.end.max(at + bytes);
        }
    }
    let (at, bytes) = (all.start, all.len());
    if steps.is_empty() {
        let said = format!("Neither neighbour of {name} is free.");
        steps.push(Step::new(said, On::Neighbour { at, bytes, merged: false }));
    }
    steps.push(Step::new(format!("{bytes} bytes at {at} join {}.", list(bytes)), On::Put { at, bytes }));
}

/// Adds the free blocks that an allocation leaves.
fn left(log: &[Event], list: impl Fn(usize) -> String, steps: &mut Vec<Step>) {
    for event in log {
        if let Event::Split { at, bytes } = *event {
            let said = format!("What is left, {bytes} bytes at {at}, joins {}.", list(bytes));
            steps.push(Step::new(said, On::Put { at, bytes }));
        }
    }
}

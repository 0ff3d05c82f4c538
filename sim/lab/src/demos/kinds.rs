//! The data that a demo shows for each allocator, in addition to the blocks in use.

use super::scene::{Is, Part};
use super::steps::{self, Operation};
use super::structure::{Cell, FreeBlock, Mark, On, Row, Shape, Step};
use crate::allocators::buddy::UNIT;
use crate::allocators::linear::StaleMark;
use crate::allocators::memory::Memory;
use crate::allocators::tlsf::classes::Class;
use crate::allocators::{Allocator, Buddy, Heap, Linear, Pool, Stack, Tlsf};
use core::fmt::Debug;
use core::ops::Range;
use uslab::pool::words::Event;

/// An allocator whose memory a demo can show.
pub(super) trait DemoAllocator: Allocator<Block: Debug> + Debug {
    /// A saved position of the head; only allocators that can be rewound save positions.
    type Marker: Debug;

    /// The number of metadata bytes before each block in use, and the number after it.
    const TAGS: (usize, usize) = (0, 0);
    /// The kind of location that an allocation inspects during its search, as a singular and a plural; `None` if an
    /// allocation does not search.
    const EXAMINED_BY_ALLOC: Option<(&'static str, &'static str)> = None;
    /// The kind of location that a free inspects during its search, as a singular and a plural; `None` if a free does
    /// not search.
    const EXAMINED_BY_FREE: Option<(&'static str, &'static str)> = None;

    /// Returns the size that a block has if the user requests no size.
    fn one_size(&self) -> Option<usize> {
        None
    }
    /// Returns the end of the memory that the demo shows.
    fn end(&self) -> usize {
        self.capacity() + if Self::TAGS.0 > 0 { 16 } else { 0 }
    }
    /// Describes the kinds of bytes in a range that contains no block in use.
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>);
    /// Returns the data structure that manages free memory; `None` for an allocator with a head, whose position the
    /// demo shows instead.
    fn shape(&self) -> Option<Shape> {
        None
    }
    /// Removes and returns the events logged since the last call.
    fn log(&mut self) -> Vec<Event> {
        vec![]
    }
    /// Returns the steps of an operation whose events are in `log`.
    fn steps(&self, _operation: &Operation<'_>, _log: &[Event]) -> Vec<Step> {
        vec![]
    }

    /// Saves the head's position; `None` if the allocator has no head.
    fn mark(&self) -> Option<Self::Marker> {
        None
    }
    /// Returns the position of a marker, and `true` if [`pop`](Self::pop) would refuse the marker.
    fn marked(&self, _: &Self::Marker) -> (usize, bool) {
        (0, false)
    }
    /// Frees everything that was allocated after a marker.
    ///
    /// # Errors
    /// Fails if the marker is stale.
    fn pop(&mut self, _: &Self::Marker) -> Result<(), StaleMark> {
        Ok(())
    }
    /// Frees all blocks together; returns `false` if the allocator cannot do this.
    fn reset(&mut self) -> bool {
        false
    }
    /// Returns unused memory to the system; returns the steps, or `None` if the allocator keeps all its memory.
    fn purge(&mut self) -> Option<Vec<Step>> {
        None
    }
    /// Returns the head's position; `None` if the allocator has no head.
    fn head(&self) -> Option<usize> {
        None
    }
    /// Returns a mark at the beginning of each chunk after the first.
    fn chunks(&self) -> Vec<Mark> {
        vec![]
    }
    /// Returns a sentence about the bytes between the head's old position and the block that an allocation returned.
    fn skipped(&self, head: usize, block: usize) -> String {
        describe_alignment_gap(head, block)
    }
}

fn describe_alignment_gap(head: usize, block: usize) -> String {
    format!("The next multiple of the alignment is {block}: {} bytes are skipped.", block - head)
}

/// Splits a gap between blocks into padding below the head and free memory above the head.
fn split_at_head(head: usize, range: Range<usize>, parts: &mut Vec<Part>) {
    let head = head.clamp(range.start, range.end);
    parts.push(Part::of(range.start..head, Is::Padding));
    parts.push(Part::of(head..range.end, Is::Free));
}

impl DemoAllocator for Linear {
    type Marker = uslab::pool::linear::Head;

    fn end(&self) -> usize {
        self.page_ranges().map(|page| page.end).max().unwrap_or(0).max(self.max_bytes())
    }
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        let (head, mut end) = (self.head().unwrap_or(0), range.start);
        for page in self.page_ranges().filter(|page| page.start < range.end && range.start < page.end) {
            let own = page.start.max(range.start)..page.end.min(range.end);
            parts.push(Part::of(end..own.start, Is::Untouched));
            end = own.end;
            split_at_head(head, own, parts);
        }
        parts.push(Part::of(end..range.end, Is::Untouched));
    }
    fn mark(&self) -> Option<Self::Marker> {
        Some(Self::mark(self))
    }
    fn marked(&self, marker: &Self::Marker) -> (usize, bool) {
        (self.position(*marker).unwrap_or(marker.chunk * Memory::ALIGN + marker.at), self.is_stale(*marker))
    }
    fn chunks(&self) -> Vec<Mark> {
        let mark = |(n, page): (usize, Range<usize>)| Mark {
            name: format!("chunk {n}"),
            at: page.start,
            stale: false,
        };
        self.page_ranges().enumerate().skip(1).map(mark).collect()
    }
    fn skipped(&self, head: usize, block: usize) -> String {
        let pages: Vec<_> = self.page_ranges().collect();
        match pages.windows(2).position(|pages| pages[0].start <= head && pages[1].start == block) {
            Some(n) => {
                let state = match pages[n].end.saturating_sub(head) {
                    0 => "is full".to_owned(),
                    rest => format!("has no room: its last {rest} bytes stay unused"),
                };
                format!("Chunk {n} {state}. Chunk {}, of {} bytes, is added.", n + 1, pages[n + 1].len())
            }
            None => describe_alignment_gap(head, block),
        }
    }
    fn pop(&mut self, marker: &Self::Marker) -> Result<(), StaleMark> {
        self.rewind(*marker)
    }
    fn reset(&mut self) -> bool {
        Self::reset(self);
        true
    }
    fn head(&self) -> Option<usize> {
        self.position(Self::mark(self))
    }
}

impl DemoAllocator for Stack {
    type Marker = crate::allocators::stack::Marker;

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        split_at_head(self.used(), range, parts);
    }
    fn mark(&self) -> Option<Self::Marker> {
        Some(Self::mark(self))
    }
    fn marked(&self, marker: &Self::Marker) -> (usize, bool) {
        (marker.head(), self.is_stale(*marker))
    }
    fn pop(&mut self, marker: &Self::Marker) -> Result<(), StaleMark> {
        Self::pop(self, *marker)
    }
    fn head(&self) -> Option<usize> {
        Some(self.used())
    }
}

impl DemoAllocator for Pool {
    type Marker = ();

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        let slot = self.capacity() / self.slots();
        let slots = range.clone().step_by(slot).filter(|offset| offset + slot <= range.end);
        parts.extend(slots.map(|offset| Part::of(offset..offset + slot, Is::Free)));
        parts.push(Part::of(range.end - range.len() % slot..range.end, Is::Padding));
    }
    fn shape(&self) -> Option<Shape> {
        let (slot, list) = (self.capacity() / self.slots(), self.free_list().collect());
        Some(Shape::Chain { slot, list, opened: self.opened_slots(), end: None })
    }
    fn steps(&self, operation: &Operation<'_>, _: &[Event]) -> Vec<Step> {
        let bytes = self.capacity() / self.slots();
        let next_slot = self.free_list().next();
        let head = next_slot
            .map_or("The list is empty now".to_owned(), |next_slot| format!("The next slot is {next_slot}"));
        match operation {
            Operation::Alloc { name, block: Some(block), .. } => {
                let (slot, offset) = (block.start / bytes, block.start);
                vec![Step::new(format!("{name} gets slot {slot}. {head}."), On::Take { at: offset, bytes })]
            }
            Operation::Alloc { .. } => vec![],
            Operation::Free { name, block } => {
                let (slot, offset) = (block.start / bytes, block.start);
                let link = self.free_list().nth(1).map_or("null".to_owned(), |link| link.to_string());
                let text =
                    format!("{name}'s slot {slot} becomes the head. The link {link} is written into it.");
                vec![Step::new(text, On::Put { at: offset, bytes })]
            }
        }
    }
}

impl DemoAllocator for Buddy {
    type Marker = ();
    const EXAMINED_BY_ALLOC: Option<(&'static str, &'static str)> = Some(("free list", "free lists"));
    const EXAMINED_BY_FREE: Option<(&'static str, &'static str)> = Some(("buddy", "buddies"));

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        parts.extend(
            self.free_ranges()
                .filter(|free| range.contains(&free.start))
                .map(|free| Part::of(free, Is::Free)),
        );
    }
    fn shape(&self) -> Option<Shape> {
        let orders = 0..self.free_blocks().len();
        Some(Shape::Tree { unit: UNIT, lists: orders.map(|order| self.list(order).collect()).collect() })
    }
    fn log(&mut self) -> Vec<Event> {
        self.take_log()
    }
    fn steps(&self, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
        steps::buddy_steps(self, operation, log)
    }
}

/// A range between two tags has at most one free block, because free neighbours are merged.
fn push_free_block_between_tags(range: Range<usize>, end: usize, parts: &mut Vec<Part>) {
    // Separate tags mark the ends of the memory.
    let (front_tag, back_tag) = (if range.start == 0 { 12 } else { 0 }, if range.end == end { 4 } else { 0 });
    let free = range.start + front_tag..range.end.saturating_sub(back_tag).max(range.start + front_tag);
    parts.push(Part::of(range.start..free.start, Is::Tag));
    parts.push(Part::of(free.clone(), Is::Free));
    parts.push(Part::of(free.end..range.end, Is::Tag));
}

fn free_block((offset, bytes): (usize, usize)) -> FreeBlock {
    FreeBlock { at: offset, bytes }
}

impl DemoAllocator for Heap {
    type Marker = ();
    const TAGS: (usize, usize) = (4, 4);
    const EXAMINED_BY_ALLOC: Option<(&'static str, &'static str)> = Some(("free block", "free blocks"));
    const EXAMINED_BY_FREE: Option<(&'static str, &'static str)> = Self::EXAMINED_BY_ALLOC;

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        push_free_block_between_tags(range, self.capacity() + 16, parts);
    }
    fn shape(&self) -> Option<Shape> {
        Some(Shape::List { blocks: self.list().map(free_block).collect() })
    }
    fn log(&mut self) -> Vec<Event> {
        self.take_log()
    }
    fn steps(&self, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
        steps::steps_of_heap_operation(self.fit(), operation, log)
    }
}

impl DemoAllocator for Tlsf {
    type Marker = ();
    const TAGS: (usize, usize) = (4, 0);
    const EXAMINED_BY_ALLOC: Option<(&'static str, &'static str)> = Some(("bitmap word", "bitmap words"));

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        push_free_block_between_tags(range, self.capacity() + 16, parts);
    }
    fn shape(&self) -> Option<Shape> {
        let (first, second) = self.bitmaps();
        let row = |(fl, word): (usize, &u32)| {
            let cell = |sl| {
                let class = Class { fl, sl };
                let list = self.list(class).map(free_block).collect();
                Cell { from: self.classes().start(class), bit: word >> sl & 1 == 1, list }
            };
            let cells: Vec<_> = (0..self.classes().steps()).map(cell).collect();
            Row { from: cells[0].from, bit: first >> fl & 1 == 1, cells }
        };
        Some(Shape::Grid { rows: second.iter().enumerate().map(row).collect() })
    }
    fn log(&mut self) -> Vec<Event> {
        self.take_log()
    }
    fn steps(&self, operation: &Operation<'_>, log: &[Event]) -> Vec<Step> {
        steps::tlsf_steps(self, operation, log)
    }
}

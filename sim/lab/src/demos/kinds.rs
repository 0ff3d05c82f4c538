//! What a demo shows for each allocator, in addition to the blocks in use.

use super::scene::{Is, Part};
use crate::allocators::linear::StaleMark;
use crate::allocators::{Allocator, Buddy, Heap, Linear, Pool, Stack, Tlsf};
use core::alloc::Layout;
use core::fmt::Debug;
use core::ops::Range;

/// An allocator whose memory a demo can show.
pub(super) trait DemoAllocator: Allocator<Block: Debug> + Debug {
    /// A saved position of the head, if the allocator can be rewound.
    type Marker: Debug;

    /// The bytes of metadata before each block in use, and after it.
    const TAGS: (usize, usize) = (0, 0);

    /// Adds the parts of a range in which no block is in use.
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>);
    /// Returns figures that are of interest for this allocator. `_last` is the layout of the last request.
    fn facts(&self, _last: Option<Layout>) -> Vec<(String, String)> {
        vec![]
    }

    /// Saves the head's position; `None` if the allocator has no head.
    fn mark(&self) -> Option<Self::Marker> {
        None
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
    /// Returns the head's position; `None` if the allocator has no head.
    fn head(&self) -> Option<usize> {
        None
    }
}

/// Splits a gap into padding below the head and free memory above the head.
fn below_a_head(head: usize, range: Range<usize>, parts: &mut Vec<Part>) {
    let head = head.clamp(range.start, range.end);
    parts.push(Part::of(range.start..head, Is::Padding));
    parts.push(Part::of(head..range.end, Is::Free));
}

impl DemoAllocator for Linear {
    type Marker = uslab::pool::linear::Head;

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        below_a_head(self.used(), range, parts);
    }
    fn mark(&self) -> Option<Self::Marker> {
        Some(Self::mark(self))
    }
    fn pop(&mut self, marker: &Self::Marker) -> Result<(), StaleMark> {
        self.rewind(*marker)
    }
    fn reset(&mut self) -> bool {
        Self::reset(self);
        true
    }
    fn head(&self) -> Option<usize> {
        Some(self.used())
    }
}

impl DemoAllocator for Stack {
    type Marker = crate::allocators::stack::Marker;

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        below_a_head(self.used(), range, parts);
    }
    fn mark(&self) -> Option<Self::Marker> {
        Some(Self::mark(self))
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
        let slots = range.clone().step_by(slot).filter(|at| at + slot <= range.end);
        parts.extend(slots.map(|at| Part::of(at..at + slot, Is::Free)));
        parts.push(Part::of(range.end - range.len() % slot..range.end, Is::Padding));
    }
    fn facts(&self, _: Option<Layout>) -> Vec<(String, String)> {
        let list = self.free_list().map(|slot| slot.to_string());
        let list: Vec<_> = list.chain([format!("{} not opened", self.slots() - self.opened())]).collect();
        vec![("free list, by slot".to_owned(), list.join(", "))]
    }
}

impl DemoAllocator for Buddy {
    type Marker = ();

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        parts.extend(
            self.free_ranges()
                .filter(|free| range.contains(&free.start))
                .map(|free| Part::of(free, Is::Free)),
        );
    }
    fn facts(&self, _: Option<Layout>) -> Vec<(String, String)> {
        let sizes = (0..).map(|order| 16_usize << order);
        let blocks = self.free_blocks().into_iter().zip(sizes).filter(|(count, _)| *count > 0);
        let blocks: Vec<_> = blocks.map(|(count, size)| format!("{count} of {size} bytes")).collect();
        vec![("free blocks".to_owned(), blocks.join(", "))]
    }
}

/// A range between two tags has at most one free block, because free neighbours are merged.
fn one_free_block(range: Range<usize>, end: usize, parts: &mut Vec<Part>) {
    // Separate tags mark the ends of the memory.
    let (front, behind) = (if range.start == 0 { 12 } else { 0 }, if range.end == end { 4 } else { 0 });
    let free = range.start + front..range.end.saturating_sub(behind).max(range.start + front);
    parts.push(Part::of(range.start..free.start, Is::Tag));
    parts.push(Part::of(free.clone(), Is::Free));
    parts.push(Part::of(free.end..range.end, Is::Tag));
}

impl DemoAllocator for Heap {
    type Marker = ();
    const TAGS: (usize, usize) = (4, 4);

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        one_free_block(range, self.capacity() + 16, parts);
    }
}

impl DemoAllocator for Tlsf {
    type Marker = ();
    const TAGS: (usize, usize) = (4, 0);

    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        one_free_block(range, self.capacity() + 16, parts);
    }
    fn facts(&self, last: Option<Layout>) -> Vec<(String, String)> {
        let class = last.and_then(|last| self.first_class(last));
        let class = class.map(|class| format!("first level {}, second level {}", class.fl, class.sl));
        let (first, second) = self.bitmaps();
        let second: Vec<_> = (0..).zip(second).filter(|(fl, _)| first >> fl & 1 == 1).collect();
        let second: Vec<_> = second.iter().map(|(fl, word)| format!("{fl}: {word:b}")).collect();
        let mut facts = vec![
            ("first-level bitmap".to_owned(), format!("{first:b}")),
            ("second level".to_owned(), second.join(", ")),
        ];
        facts.extend(class.map(|class| ("class searched from".to_owned(), class)));
        facts
    }
}

//! A free list without block headers and with a granule of any size, for studying allocation policies in isolation.
//!
//! The data of the list is stored outside the memory. A block therefore takes only the requested size, rounded up to
//! the granule, and a hole can have any size. With a granule of one byte, sizes are not rounded. A
//! [`Heap`](super::Heap) needs larger blocks, because its smallest block must hold tags and links. With equal rounding
//! and block sizes, the headerless list and a `Heap` put each block at the same offset.
//!
//! The lab counts each inspection of one free block during a search as a step.

use super::heap::{Fit, Order};
use core::ops::Range;

/// A free list for a range of offsets, without memory behind the range. See the [module](self).
///
/// ```
/// use uslab_lab::allocators::headerless::Headerless;
/// use uslab_lab::allocators::heap::{Fit, Order};
///
/// let mut list = Headerless::new(1000, 1, Fit::Best, Order::Address);
/// let (a, b) = (list.alloc(99).ok_or("room")?, list.alloc(1).ok_or("room")?);
/// assert_eq!((a.clone(), b), (0..99, 99..100));
/// list.free(a);
/// assert_eq!(list.holes(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Headerless {
    /// The free blocks in the order of the list; no two free blocks are adjacent.
    free: Vec<Range<usize>>,
    granule: usize,
    fit: Fit,
    order: Order,
    /// The free block at which a next-fit search begins. If the value is `None`, a next-fit search begins at the first
    /// block of the list.
    rover: Option<usize>,
    splits: u64,
    steps: u64,
}

impl Headerless {
    /// Creates a list for `bytes` bytes, which are allocated in multiples of `granule` bytes.
    pub fn new(bytes: usize, granule: usize, fit: Fit, order: Order) -> Self {
        let free = vec![Range { start: 0, end: bytes / granule * granule }];
        Self { free, granule, fit, order, rover: None, splits: 0, steps: 0 }
    }
    /// Returns the number of free blocks.
    pub fn holes(&self) -> usize {
        self.free.len()
    }
    /// Returns the number of allocations so far that left a part of a free block over.
    pub fn splits(&self) -> u64 {
        self.splits
    }
    /// Returns the steps of all searches so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Allocates `bytes` bytes, or one byte if `bytes` is 0. Returns the allocated range, or `None` if no free block is
    /// large enough.
    pub fn alloc(&mut self, bytes: usize) -> Option<Range<usize>> {
        let need = bytes.max(1).checked_next_multiple_of(self.granule)?;
        let index = self.search(need)?;
        let hole = &mut self.free[index];
        let used = hole.start..hole.start + need;
        if hole.len() > need {
            hole.start = used.end;
            self.splits += 1;
            if self.fit == Fit::Next {
                self.rover = Some(used.end);
            }
        } else {
            self.free.remove(index);
            if self.fit == Fit::Next {
                self.rover = self.free.get(index).map(|next| next.start);
            }
        }
        Some(used)
    }

    fn search(&mut self, need: usize) -> Option<usize> {
        let is_large_enough = |hole: &Range<usize>| hole.len() >= need;
        let (found_index, steps) = match self.fit {
            Fit::First => {
                let found_index = self.free.iter().position(is_large_enough);
                (found_index, found_index.map_or(self.free.len(), |index| index + 1))
            }
            Fit::Best => {
                let fitting = self.free.iter().enumerate().filter(|(_, hole)| is_large_enough(hole));
                (fitting.min_by_key(|(_, hole)| hole.len()).map(|(index, _)| index), self.free.len())
            }
            Fit::Worst => {
                // Of equal holes, the first is used; `max_by_key` returns the last.
                let largest = self.free.iter().enumerate().rev().max_by_key(|(_, hole)| hole.len());
                (largest.filter(|(_, hole)| is_large_enough(hole)).map(|(index, _)| index), self.free.len())
            }
            Fit::Next => {
                let rover = self.rover;
                let begin = self.free.iter().position(|hole| Some(hole.start) == rover).unwrap_or(0);
                let mut round = (begin..self.free.len()).chain(0..begin);
                let found_index = round.position(|index| is_large_enough(&self.free[index]));
                (
                    found_index.map(|steps| (begin + steps) % self.free.len()),
                    found_index.map_or(self.free.len(), |index| index + 1),
                )
            }
        };
        self.steps += steps as u64;
        found_index
    }

    /// Frees a range that [`alloc`](Self::alloc) returned, and merges the range with free neighbours.
    pub fn free(&mut self, used: Range<usize>) {
        match self.order {
            Order::Address => {
                let index = self.free.partition_point(|hole| hole.start < used.start);
                let merges_previous = index > 0 && self.free[index - 1].end == used.start;
                let merges_next = self.free.get(index).is_some_and(|hole| hole.start == used.end);
                match (merges_previous, merges_next) {
                    (false, false) => self.free.insert(index, used),
                    (true, false) => self.free[index - 1].end = used.end,
                    (false, true) => {
                        // The merge does not change the place at which the next search begins.
                        if self.rover == Some(used.end) {
                            self.rover = Some(used.start);
                        }
                        self.free[index].start = used.start;
                    }
                    (true, true) => {
                        let hole = self.remove_hole(index);
                        self.free[index - 1].end = hole.end;
                    }
                }
            }
            Order::Lifo => {
                let mut merged_range = used;
                if let Some(index) = self.free.iter().position(|hole| hole.end == merged_range.start) {
                    merged_range.start = self.remove_hole(index).start;
                }
                if let Some(index) = self.free.iter().position(|hole| hole.start == merged_range.end) {
                    merged_range.end = self.remove_hole(index).end;
                }
                self.free.insert(0, merged_range);
            }
        }
    }
    /// Removes a free block from the list. If the next search would begin at the removed block, it begins at the
    /// following block instead.
    fn remove_hole(&mut self, index: usize) -> Range<usize> {
        let hole = self.free.remove(index);
        if self.rover == Some(hole.start) {
            self.rover = self.free.get(index).map(|next| next.start);
        }
        hole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::{Allocator, Heap};
    use crate::workload::rng::Rng;
    use core::alloc::Layout;

    /// With a heap's block sizes, the headerless list must choose the same locations as the heap, under every policy.
    #[test]
    fn headerless_list_and_heap_choose_equal_offsets() {
        const BYTES: usize = 1 << 16;
        for fit in [Fit::First, Fit::Best, Fit::Next, Fit::Worst] {
            for order in [Order::Address, Order::Lifo] {
                let mut heap = Heap::new(BYTES, fit, order).unwrap();
                let mut list = Headerless::new(BYTES - 16, 16, fit, order);
                let (mut ranges, mut rng) = (Vec::new(), Rng::new(7));
                for _ in 0..20_000 {
                    if ranges.len() < 60 || rng.below(2) == 0 {
                        let size = rng.in_range(1, 1500) as usize;
                        let block = heap.alloc(Layout::from_size_align(size, 1).unwrap());
                        // The heap's tags take 8 bytes.
                        let place = list.alloc(size + 8);
                        let position = block.as_ref().map(|block| heap.range(block).start - 16);
                        assert_eq!(position, place.as_ref().map(|place| place.start), "{fit:?} {order:?}");
                        ranges.extend(block.zip(place));
                    } else {
                        let (block, place) = ranges.swap_remove(rng.below(ranges.len() as u64) as usize);
                        heap.free(block);
                        list.free(place);
                    }
                    assert_eq!(heap.holes().count, list.holes(), "{fit:?} {order:?}");
                }
                assert_eq!((heap.work().splits, list.splits() > 1000), (list.splits(), true));
            }
        }
    }

    #[test]
    fn granule_of_one_byte_rounds_no_size() {
        let mut list = Headerless::new(10, 1, Fit::First, Order::Address);
        let places = [3, 1, 6].map(|bytes| list.alloc(bytes).unwrap());
        assert_eq!((places.clone(), list.alloc(1)), ([0..3, 3..4, 4..10], None));
        list.free(places[1].clone());
        assert_eq!((list.holes(), list.alloc(2), list.alloc(1)), (1, None, Some(3..4)));
    }

    #[test]
    fn zero_size_block_takes_one_granule() {
        for order in [Order::Address, Order::Lifo] {
            let mut list = Headerless::new(64, 16, Fit::First, order);
            let empty = list.alloc(0).unwrap();
            let rest = list.alloc(48).unwrap();
            list.free(empty.clone());
            assert_eq!((empty, list.alloc(16), list.holes()), (0..16, Some(0..16), 0));
            list.free(rest);
            assert_eq!(list.holes(), 1);
        }
    }
}

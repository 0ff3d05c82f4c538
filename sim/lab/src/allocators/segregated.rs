//! Simple segregated storage: each size class has a free list, and each page belongs to one class.
//!
//! ```text
//!   page 0: class 48    | A | B |   | D | ... |    page 1: class 320  |  E  |     |  F  | ...
//!   page 2: without a class
//! ```
//!
//! - **Allocate**: find the class by the size, then take the head of its list. If the list is empty, the allocator cuts
//!   a page into slots of the class. The cost is O(1); cutting a page into slots adds a step for each slot. **Free**:
//!   O(1), because the page determines the class.
//! - **Waste**: the unused part of each slot (at most a fifth of a slot above 64 bytes), the unused end of each page,
//!   and free slots of classes that are no longer requested. A page keeps its class until [`trim`](Allocator::trim)
//!   runs while all slots of the page are free.
//!
//! There are four classes per doubling of the size, from 16 to 4096 bytes; larger requests are refused.
//!
//! Sources: Wilson and others, "Dynamic Storage Allocation" (1995), for the name; Alexandrescu, Modern C++ Design,
//! chapter 4 (2001). Shipping examples are Loki's small-object allocator, Boost.Pool, and the small bins of Unreal.
//! With a separate free list for each page, the allocator would find free pages without a search, and would be a slab
//! allocator.

use super::allocator::{Allocator, Holes, Work};
use super::memory::{ConfigError, Memory, MemoryPiece, NONE};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::words::Words;

const PAGE: usize = 4096;

/// The slot sizes of the classes, in bytes. Each slot is aligned to the largest power of two that divides its size.
pub const SIZES: [usize; 28] = {
    let (mut sizes, mut class) = ([0; 28], 0);
    while class < 28 {
        sizes[class] = if class < 4 { 16 * (class + 1) } else { (4 + class % 4 + 1) << (class / 4 + 3) };
        class += 1;
    }
    sizes
};

/// An allocator with one pool for each size class. See the [module](self).
#[derive(Debug)]
pub struct Segregated {
    memory: Memory,
    /// For each page, the class to which it belongs.
    pages: Vec<Option<u8>>,
    /// The numbers of the pages that belong to no class.
    free_pages: Vec<u32>,
    /// The first free slot of each class.
    heads: [u32; SIZES.len()],
    work: Work,
}

impl Segregated {
    /// Creates an allocator of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if `bytes` is 0, more than [`Memory::MAX_BYTES`], or not a multiple of 4096.
    pub fn new(bytes: usize) -> Result<Self, ConfigError> {
        let memory = Memory::new(bytes, PAGE, PAGE)?;
        let pages = bytes / PAGE;
        Ok(Self {
            memory,
            pages: vec![None; pages],
            free_pages: (0..pages as u32).rev().collect(),
            heads: [NONE; SIZES.len()],
            work: Work::default(),
        })
    }

    /// Returns the smallest class whose slots are large enough for `layout`.
    fn class(layout: Layout) -> Option<usize> {
        let first = SIZES.partition_point(|size| *size < layout.size());
        (first..SIZES.len()).find(|class| SIZES[*class].is_multiple_of(layout.align()))
    }
    fn class_at(&self, position: usize) -> Option<usize> {
        self.pages[position / PAGE].map(usize::from)
    }

    /// Gives a page to a class, and adds the page's slots to the class's list.
    fn split_page(&mut self, class: usize) -> Option<()> {
        let page = self.free_pages.pop()? as usize;
        self.pages[page] = Some(class as u8);
        let size = SIZES[class];
        for slot in (0..PAGE / size).rev() {
            self.push_slot(class, page * PAGE + slot * size);
        }
        self.work.splits += (PAGE / size) as u64 - 1;
        self.work.count_search((PAGE / size) as u64);
        Some(())
    }
    fn push_slot(&mut self, class: usize, position: usize) {
        let next = core::mem::replace(&mut self.heads[class], position as u32);
        self.memory.store(position, next);
    }
    fn pop_slot(&mut self, class: usize) -> Option<usize> {
        self.work.count_search(1);
        if self.heads[class] == NONE {
            self.split_page(class)?;
        }
        let position = self.heads[class] as usize;
        self.heads[class] = self.memory.load(position);
        Some(position)
    }

    fn list(&self, class: usize) -> impl Iterator<Item = usize> {
        let mut position = self.heads[class];
        core::iter::from_fn(move || {
            let slot = (position != NONE).then_some(position as usize)?;
            position = self.memory.peek(slot);
            Some(slot)
        })
    }
    fn free_slots(&self) -> Vec<usize> {
        let mut free = vec![0; self.pages.len()];
        (0..SIZES.len()).flat_map(|class| self.list(class)).for_each(|position| free[position / PAGE] += 1);
        free
    }
}

impl Allocator for Segregated {
    type Block = MemoryPiece;
    const NAME: &'static str = "segregated pools";

    fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
        let position = Self::class(layout).and_then(|class| self.pop_slot(class));
        let block = position.map(|position| self.memory.piece(position, layout.size()));
        self.work.count_allocation(block)
    }
    fn free(&mut self, block: MemoryPiece) {
        let position = self.memory.checked_offset(&block);
        self.work.frees += 1;
        if let Some(class) = self.class_at(position) {
            self.push_slot(class, position);
        }
    }
    fn range(&self, block: &MemoryPiece) -> Range<usize> {
        block.at()..block.at() + self.class_at(block.at()).map_or(0, |class| SIZES[class])
    }
    fn bytes<'b>(&'b mut self, block: &'b mut MemoryPiece) -> &'b mut [u8] {
        self.memory.bytes(block)
    }
    fn capacity(&self) -> usize {
        self.memory.len()
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        holes.add_pieces(self.free_pages.len(), PAGE);
        (0..SIZES.len()).for_each(|class| holes.add_pieces(self.list(class).count(), SIZES[class]));
        holes
    }
    fn work(&self) -> Work {
        self.memory.work(self.work)
    }
    fn metadata_bytes(&self) -> usize {
        size_of_val(self.pages.as_slice())
            + size_of_val(self.free_pages.as_slice())
            + size_of_val(&self.heads)
    }
    /// Removes pages without used slots from their classes. The cost is one inspection of every free slot.
    fn trim(&mut self) {
        let free = self.free_slots();
        let is_page_free = |page: usize, class: usize| free[page] == PAGE / SIZES[class];
        (0..SIZES.len()).for_each(|class| {
            let kept_slots: Vec<_> =
                self.list(class).filter(|position| !is_page_free(position / PAGE, class)).collect();
            self.heads[class] = NONE;
            kept_slots.into_iter().rev().for_each(|position| self.push_slot(class, position));
        });
        for page in (0..self.pages.len()).rev() {
            if self.pages[page].is_some_and(|class| is_page_free(page, usize::from(class))) {
                self.pages[page] = None;
                self.free_pages.push(page as u32);
            }
        }
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let has_free_slots = |class| self.heads[class] != NONE;
        Some(Self::class(layout).is_some_and(|class| has_free_slots(class) || !self.free_pages.is_empty()))
    }
    fn check(&self) -> Result<(), String> {
        for (class, size) in SIZES.iter().enumerate() {
            if let Some(position) = self.list(class).find(|position| self.class_at(*position) != Some(class))
            {
                return Err(format!(
                    "the slot at {position} is in the free list of {size}-byte slots, but its page has another class"
                ));
            }
        }
        let mut pages = self.free_pages.iter().map(|page| *page as usize);
        match pages.find(|page| self.pages[*page].is_some()) {
            Some(page) => Err(format!("page {page} is free, but has a size class")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 1).unwrap()
    }

    #[test]
    fn each_size_doubling_has_four_classes() {
        assert_eq!(SIZES[..10], [16, 32, 48, 64, 80, 96, 112, 128, 160, 192]);
        assert_eq!(SIZES[27], PAGE);
        assert!(SIZES.is_sorted_by(|a, b| a < b));
        let size_for = |layout| Segregated::class(layout).map(|class| SIZES[class]);
        assert_eq!([0, 1, 16, 17, 4096].map(|size| size_for(layout(size))), [16, 16, 16, 32, 4096].map(Some));
        assert_eq!(size_for(layout(4097)), None);
        assert_eq!(size_for(Layout::from_size_align(65, 64).unwrap()), Some(128));
        assert_eq!(size_for(Layout::from_size_align(1, 8192).unwrap()), None);
    }

    #[test]
    fn page_keeps_its_size_class_until_trimmed() {
        let mut pools = Segregated::new(PAGE).unwrap();
        let block = pools.alloc(layout(2048)).unwrap();
        pools.free(block);
        assert!(pools.alloc(layout(16)).is_none(), "all pages are free, but of another class");
        pools.trim();
        let small = pools.alloc(layout(16)).unwrap();
        pools.trim();
        assert_eq!((pools.holes(), pools.check()), (Holes { count: 255, largest: 16, total: 4080 }, Ok(())));
        pools.free(small);
        pools.trim();
        assert_eq!(pools.holes(), Holes { count: 1, largest: PAGE, total: PAGE });
        assert!(Segregated::new(PAGE + 16).is_err());
    }
}

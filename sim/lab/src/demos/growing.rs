//! The demos of two pools that grow: a [`ChunkedPool`] and a [`ReservedPool`].

use super::kinds::DemoAllocator;
use super::scene::{Is, Part};
use super::steps::Operation;
use super::structure::{Chunk, On, Shape, Step};
use crate::allocators::memory::ConfigError;
use crate::allocators::{Allocator, Holes, Work};
use core::alloc::Layout;
use core::fmt::Debug;
use core::ops::Range;
use uslab::pool::words::Event;
use uslab::pool::{ChunkedPool, PoolGuard, RawPool, ReservedPool, SafePool, SlotLayout};

/// The size of a page in bytes: a chunk of the chunked pool, or a step by which the reserved pool grows.
const PAGE: usize = 4096;
/// The largest number of pages that the demo's memory can have.
const PAGES: usize = 4;
/// The alignment of slots in bytes. The alignment is larger than a chunk's header, so the first slot of a chunk has the
/// same offset on every machine.
const ALIGN: usize = 256;
/// The sizes of slots in bytes: three slots and a header fill a chunk, and four slots fill a step.
const CHUNK_SLOT_BYTES: usize = 1280;
const RESERVED_SLOT_BYTES: usize = 1024;

/// A pool of the library that grows by one page if no slot is free.
trait GrowablePool: Debug {
    /// Returns the size of a slot in bytes.
    fn slot(&self) -> usize;
    /// Returns the number of bytes in a page before its first slot.
    fn header(&self) -> usize {
        0
    }
    /// Allocates a slot.
    fn alloc(&'static self) -> Option<Box<dyn Guard>>;
    /// Returns the free lists; each has two values: the addresses of the pages that it serves, and the addresses of its
    /// free slots.
    fn lists(&self) -> Vec<(Range<usize>, Vec<usize>)>;
    /// Unmaps the pages without a block in use; returns `None` if the pool never unmaps pages.
    fn purge_pages(&self) -> Option<usize> {
        None
    }
    /// Returns the shape of a pool; each item of `lists` contains the first byte position of the list's pages, and the
    /// list's slots.
    fn shape(&self, lists: Vec<(usize, Vec<usize>)>, mapped: usize) -> Shape;
    /// Returns the name of the slot at a position, and the name of the slot's free list.
    fn names(&self, position: usize) -> (String, String);
    /// Returns a sentence that describes how the pool grew by the page `page`.
    fn growth(&self, page: usize) -> String;
}

/// A block of a pool.
trait Guard: Debug {
    fn address(&self) -> usize;
}

impl<P: RawPool> Guard for PoolGuard<'_, P> {
    fn address(&self) -> usize {
        self.address().addr()
    }
}

impl GrowablePool for SafePool<ChunkedPool> {
    fn slot(&self) -> usize {
        CHUNK_SLOT_BYTES
    }
    fn header(&self) -> usize {
        ALIGN
    }
    fn alloc(&'static self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.alloc().ok()?))
    }
    fn lists(&self) -> Vec<(Range<usize>, Vec<usize>)> {
        self.free_lists().into_iter().map(|(chunk, free)| (chunk..chunk + PAGE, free)).collect()
    }
    fn purge_pages(&self) -> Option<usize> {
        Some(self.purge())
    }
    fn shape(&self, lists: Vec<(usize, Vec<usize>)>, _: usize) -> Shape {
        let number = |position: usize| (position % PAGE - ALIGN) / CHUNK_SLOT_BYTES;
        let chunk =
            |(at, list): (usize, Vec<usize>)| Chunk { at, list: list.into_iter().map(number).collect() };
        Shape::Chunks { slot: CHUNK_SLOT_BYTES, bytes: PAGE, chunks: lists.into_iter().map(chunk).collect() }
    }
    fn names(&self, position: usize) -> (String, String) {
        let (chunk, slot) = (position / PAGE, (position % PAGE - ALIGN) / CHUNK_SLOT_BYTES);
        (format!("slot {slot} of chunk {chunk}"), format!("the list of chunk {chunk}"))
    }
    fn growth(&self, page: usize) -> String {
        format!("No chunk has a free slot. Chunk {page} is mapped, and becomes the first chunk.")
    }
}

impl GrowablePool for SafePool<ReservedPool> {
    fn slot(&self) -> usize {
        RESERVED_SLOT_BYTES
    }
    fn alloc(&'static self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.alloc().ok()?))
    }
    fn lists(&self) -> Vec<(Range<usize>, Vec<usize>)> {
        vec![(self.committed(), self.free_chain())]
    }
    fn shape(&self, lists: Vec<(usize, Vec<usize>)>, mapped: usize) -> Shape {
        let slots = lists.into_iter().flat_map(|(_, slots)| slots);
        let list = slots.map(|position| position / RESERVED_SLOT_BYTES).collect();
        Shape::Chain {
            slot: RESERVED_SLOT_BYTES,
            list,
            opened: mapped * PAGE / RESERVED_SLOT_BYTES,
            end: None,
        }
    }
    fn names(&self, position: usize) -> (String, String) {
        (format!("slot {}", position / RESERVED_SLOT_BYTES), "the list".to_owned())
    }
    fn growth(&self, page: usize) -> String {
        let (slots, first) = (PAGE / RESERVED_SLOT_BYTES, page * PAGE / RESERVED_SLOT_BYTES);
        format!(
            "The list is empty: {PAGE} more bytes are committed, and slots {first} to {} join the list.",
            first + slots - 1
        )
    }
}

/// A growing pool, whose pages have positions in the memory of the demo.
#[derive(Debug)]
pub(super) struct GrowingPool {
    /// The demo leaks the pool, because blocks borrow from the pool. A leaked chunked pool has no chunk left, but a
    /// leaked reserved pool keeps its reserved range.
    pool: &'static dyn GrowablePool,
    /// The addresses of the pages, by their position; `None` if no page is mapped at a position.
    pages: [Option<usize>; PAGES],
    /// The page that the last allocation mapped.
    added: Option<usize>,
    /// `true` if the last operation moved the chunk of its slot in the list of chunks.
    moved: bool,
}

/// A block, with its position.
#[derive(Debug)]
pub(super) struct Slot {
    position: usize,
    guard: Box<dyn Guard>,
}

impl GrowingPool {
    /// Creates the demo of a pool that grows by chunks.
    pub(super) fn chunked() -> Result<Self, ConfigError> {
        let pool = ChunkedPool::new(SlotLayout::new(CHUNK_SLOT_BYTES, ALIGN)?, PAGE)?;
        Ok(Self::of(Box::leak(Box::new(SafePool::new(pool)))))
    }
    /// Creates the demo of a pool that grows in a range of reserved addresses.
    pub(super) fn reserved() -> Result<Self, ConfigError> {
        let slots = SlotLayout::new(RESERVED_SLOT_BYTES, ALIGN)?;
        let pool = ReservedPool::with_step(slots, PAGE * PAGES, PAGE)?;
        Ok(Self::of(Box::leak(Box::new(SafePool::new(pool)))))
    }
    fn of(pool: &'static dyn GrowablePool) -> Self {
        Self { pool, pages: [None; PAGES], added: None, moved: false }
    }
    /// Returns the position of the memory at an address; `None` if the address is in no mapped page.
    fn position(&self, address: usize) -> Option<usize> {
        let page = self.pages.iter().position(|page| *page == Some(address & !(PAGE - 1)))?;
        Some(page * PAGE + address % PAGE)
    }
    /// Returns the free lists, with positions instead of addresses.
    fn lists(&self) -> Vec<(usize, Vec<usize>)> {
        let list = |(pages, slots): (Range<usize>, Vec<usize>)| {
            let slots = slots.into_iter().filter_map(|slot| self.position(slot)).collect();
            Some((self.position(pages.start)?, slots))
        };
        self.pool.lists().into_iter().filter_map(list).collect()
    }
    /// Returns the first page of each list.
    fn order(&self) -> Vec<usize> {
        self.lists().into_iter().map(|(at, _)| at / PAGE).collect()
    }
    /// Assigns positions to new pages, and removes unmapped pages.
    fn update_pages(&mut self) {
        let mapped = self.pool.lists().into_iter().flat_map(|(pages, _)| pages.step_by(PAGE));
        let mapped: Vec<usize> = mapped.collect();
        for page in &mut self.pages {
            *page = page.filter(|address| mapped.contains(address));
        }
        self.added = None;
        for address in mapped {
            let place = self.pages.iter().position(Option::is_none);
            if let Some(page) = place.filter(|_| !self.pages.contains(&Some(address))) {
                self.pages[page] = Some(address);
                self.added = Some(page);
            }
        }
    }
    fn mapped(&self) -> usize {
        self.pages.iter().flatten().count()
    }
}

impl Drop for GrowingPool {
    fn drop(&mut self) {
        self.pool.purge_pages();
    }
}

impl Allocator for GrowingPool {
    type Block = Slot;
    const NAME: &'static str = "growing pool";

    fn alloc(&mut self, layout: Layout) -> Option<Slot> {
        (self.added, self.moved) = (None, false);
        let is_full = self.mapped() == PAGES && self.holes().count == 0;
        if layout.size() > self.pool.slot() || layout.align() > ALIGN || is_full {
            return None;
        }
        let mut order = self.order();
        let guard = self.pool.alloc()?;
        self.update_pages();
        if let Some(page) = self.added {
            order.insert(0, page);
        }
        let new_order = self.order();
        self.moved = order.len() == new_order.len() && order != new_order;
        Some(Slot { position: self.position(guard.address())?, guard })
    }
    fn free(&mut self, block: Slot) {
        let order = self.order();
        drop(block.guard);
        self.moved = order != self.order();
    }
    fn range(&self, block: &Slot) -> Range<usize> {
        block.position..block.position + self.pool.slot()
    }
    /// The demo never reads the bytes of blocks.
    fn bytes<'b>(&'b mut self, _: &'b mut Slot) -> &'b mut [u8] {
        &mut []
    }
    fn capacity(&self) -> usize {
        PAGE * PAGES
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        self.lists().iter().for_each(|(_, slots)| holes.add_pieces(slots.len(), self.pool.slot()));
        holes
    }
    fn work(&self) -> Work {
        Work::default()
    }
}

impl DemoAllocator for GrowingPool {
    type Marker = ();

    fn one_size(&self) -> Option<usize> {
        Some(self.pool.slot())
    }
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        let mut at = range.start;
        while at < range.end {
            let (is, end) = match (self.pages[at / PAGE], at % PAGE) {
                (None, _) => (Is::Untouched, at + PAGE),
                (_, 0) if self.pool.header() > 0 => (Is::Tag, at + self.pool.header()),
                _ => (Is::Free, at + self.pool.slot()),
            };
            parts.push(Part::of(at..end, is));
            at = end;
        }
    }
    fn shape(&self) -> Option<Shape> {
        Some(self.pool.shape(self.lists(), self.mapped()))
    }
    fn steps(&self, operation: &Operation<'_>, _: &[Event]) -> Vec<Step> {
        let mut steps = vec![];
        let (position, moves) = match operation {
            Operation::Alloc { name, block: Some(block), .. } => {
                if let Some(page) = self.added {
                    steps.push(Step::new(self.pool.growth(page), On::Put { at: page * PAGE, bytes: PAGE }));
                }
                let (slot, list) = self.pool.names(block.start);
                let text = format!("{name} gets {slot}, the head of {list}.");
                steps.push(Step::new(text, On::Take { at: block.start, bytes: self.pool.slot() }));
                (block.start, "is full: it moves to the back")
            }
            Operation::Alloc { .. } => return steps,
            Operation::Free { name, block } => {
                let (slot, list) = self.pool.names(block.start);
                let text = format!("{name} is freed: {slot} becomes the head of {list}.");
                steps.push(Step::new(text, On::Put { at: block.start, bytes: self.pool.slot() }));
                (block.start, "was full: it moves to the front")
            }
        };
        if self.moved {
            let chunk = position / PAGE;
            steps.push(Step::new(
                format!("Chunk {chunk} {moves}."),
                On::Put { at: chunk * PAGE, bytes: PAGE },
            ));
        }
        steps
    }
    fn purge(&mut self) -> Option<Vec<Step>> {
        let before = self.pages;
        self.pool.purge_pages()?;
        self.update_pages();
        let unmapped = (0..PAGES).filter(|page| before[*page].is_some() && self.pages[*page].is_none());
        let step = |page| {
            let text =
                format!("No slot of chunk {page} is in use: its {PAGE} bytes are returned to the system.");
            Step::new(text, On::Take { at: page * PAGE, bytes: PAGE })
        };
        Some(unmapped.map(step).collect())
    }
}

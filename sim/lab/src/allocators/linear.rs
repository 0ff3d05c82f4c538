//! The linear (bump) allocator: it allocates by moving an offset forward. A linear allocator cannot free a single
//! block.
//!
//! The library's [`Arena`](uslab::pool::Arena) provides the head, which moves along a chain of pages; the arena calls
//! these pages chunks. The module adds these operations to the library's arena:
//!
//! - **Reset**: frees all blocks in O(1) and then overwrites the freed bytes with [`FREED_BYTE`], to expose reads after a
//!   reset. [`without_fill`](Linear::without_fill) disables the overwriting.
//! - **[`mark`](Linear::mark) and [`rewind`](Linear::rewind)**: a rewind frees everything that was allocated after the
//!   mark.
//!
//! Sources: the papers that the library's arena cites; for marks and the fill, Frykholm, "Custom Memory Allocation in
//! C++" (BitSquid blog, 2010). Shipping linear allocators are Unreal's `FMemStack`, Apache's `apr_pool`, and obstacks.
//! Each thread can have a separate linear allocator, which needs no lock.
//!
//! As an [`Allocator`], a linear allocator counts frees, and frees memory only when the last block is freed. The lab
//! counts each use of a page as a step.

use super::allocator::{Allocator, Holes, ReuseCondition, Work};
use super::memory::{ConfigError, Memory, MemoryPiece};
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::linear::{Chain, Head};
use uslab::pool::words::Span;

/// The byte that overwrites freed memory.
pub const FREED_BYTE: u8 = 0xCD;

/// A linear (bump) allocator, which frees all blocks together. See the [module](self).
///
/// ```
/// use std::alloc::Layout;
/// use uslab_lab::allocators::Linear;
///
/// let mut frame = Linear::fixed(256)?;
/// let scratch = Layout::from_size_align(32, 16)?;
/// while frame.allocate(scratch).is_some() {}
/// assert_eq!(frame.used(), 256);
/// frame.reset();
/// assert_eq!(frame.used(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Linear {
    pages: Chain<Page>,
    /// The size of a new page in bytes, and the limit in bytes on all pages together.
    page: usize,
    max_bytes: usize,
    /// The position to which the head returns when the last live block is freed: the mark of the last rewind.
    floor: Head,
    /// The number of live blocks that were allocated since the head was last at `floor`.
    live: usize,
    /// A number that grows with each reset or rewind; a block with a smaller number has been freed.
    epoch: u64,
    /// `true` if a reset or rewind overwrites the freed bytes.
    fills: bool,
    work: Work,
}

#[derive(Debug)]
struct Page {
    memory: Memory,
    /// The virtual position of the page's first byte. All pages of a chain share one space of virtual positions.
    base: usize,
}

impl Span for Page {
    fn address(&self) -> usize {
        self.memory.address()
    }
    fn size(&self) -> usize {
        self.memory.size()
    }
}

/// The head's position before the first block.
const START: Head = Head { chunk: 0, at: 0 };

/// A block that a [`Linear`] allocated.
#[derive(Debug, PartialEq, Eq)]
pub struct LinearBlock {
    page: usize,
    piece: MemoryPiece,
    epoch: u64,
}

/// The error for a stale mark: after the mark was taken, the head moved below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mark at byte {mark} is stale: the head was below it, and is now at byte {head}")]
pub struct StaleMark {
    /// The position of the mark, in bytes.
    pub mark: usize,
    /// The position of the head, in bytes.
    pub head: usize,
}

impl Linear {
    /// Creates an allocator with a single region of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if `bytes` is 0, or more than [`Memory::MAX_BYTES`].
    pub fn fixed(bytes: usize) -> Result<Self, ConfigError> {
        Self::growing(bytes, bytes)
    }

    /// Disables the fill: freed bytes keep their values, and a reset takes constant time.
    pub fn without_fill(self) -> Self {
        Self { fills: false, ..self }
    }

    /// Creates a growing chain of pages: each page has `page` bytes, and all pages together have at most `max_bytes`
    /// bytes. The first page of the chain is allocated immediately. A request that is larger than a page gets a
    /// separate page of the requested size. A rewind frees the pages after the mark.
    ///
    /// # Errors
    /// Fails if `page` is 0, more than [`Memory::MAX_BYTES`], or more than `max_bytes`.
    pub fn growing(page: usize, max_bytes: usize) -> Result<Self, ConfigError> {
        if max_bytes < page {
            return Err(ConfigError::new(
                "a chain of at most",
                max_bytes,
                format!("a page of {page} bytes or more"),
            ));
        }
        Ok(Self {
            pages: Chain::new(Page { memory: Memory::new(page, 1, 1)?, base: 0 }),
            page,
            max_bytes,
            floor: START,
            live: 0,
            epoch: 0,
            fills: true,
            work: Work::default(),
        })
    }

    /// Returns the bytes from the start to the head; padding and the unused ends of pages are included.
    pub fn used(&self) -> usize {
        self.pages.bytes_to(self.pages.head())
    }
    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages.head().chunk + 1
    }

    /// Returns the range of each page in virtual positions, which blocks also use.
    pub(crate) fn page_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.pages.chunks().map(|page| page.base..page.base + page.size())
    }
    /// Returns the limit in bytes on all pages together.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }
    /// Returns the position of a mark; `None` if its page was freed.
    pub(crate) fn position(&self, mark: Head) -> Option<usize> {
        self.pages.get(mark.chunk).map(|page| page.base + mark.at)
    }
    /// Returns `true` if [`rewind`](Self::rewind) refuses the mark.
    pub(crate) fn is_stale(&self, mark: Head) -> bool {
        mark > self.pages.head() || self.pages.get(mark.chunk).is_none_or(|page| mark.at > page.size())
    }

    /// Returns the memory of the first page.
    pub(super) fn memory(&self) -> &Memory {
        &self.pages.first().memory
    }
    pub(super) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.pages.first_mut().memory
    }

    /// Allocates a block by moving the head.
    pub fn allocate(&mut self, layout: Layout) -> Option<LinearBlock> {
        let block = if Memory::aligns(layout) { self.bump(layout) } else { None };
        self.work.count_allocation(block)
    }

    fn bump(&mut self, layout: Layout) -> Option<LinearBlock> {
        self.work.count_search(1);
        let address = match self.pages.place(layout) {
            Some(address) => address,
            None => {
                let last = self.pages.last();
                let base = (last.base + last.size()).next_multiple_of(Memory::ALIGN);
                let bytes = self.page.max(layout.size());
                if bytes > self.max_bytes - self.capacity() {
                    return None;
                }
                self.pages.push(Page { memory: Memory::new(bytes, 1, 1).ok()?, base }).ok()?;
                self.work.count_search(1);
                self.pages.place(layout)?
            }
        };
        self.live += 1;
        let (page, memory) = (self.pages.head().chunk, &self.pages.last().memory);
        Some(LinearBlock { page, piece: memory.piece(address, layout.size()), epoch: self.epoch })
    }

    /// Returns the head's position, which can be passed to [`rewind`](Self::rewind).
    pub fn mark(&self) -> Head {
        self.pages.head()
    }

    /// Frees everything that was allocated after `mark`, and overwrites the freed bytes with [`FREED_BYTE`].
    ///
    /// # Errors
    /// Fails if the mark is above the head, or beyond the end of a smaller page that has replaced the mark's page. If
    /// the head was below a stale mark and has passed it again, a rewind does not detect this; a
    /// [`Stack`](super::stack::Stack) does.
    pub fn rewind(&mut self, mark: Head) -> Result<(), StaleMark> {
        let head = self.pages.head();
        if self.is_stale(mark) {
            let is_known_chunk = mark.chunk <= head.chunk;
            let mark = if is_known_chunk { self.pages.bytes_to(mark) } else { mark.chunk * self.page };
            return Err(StaleMark { mark, head: self.used() });
        }
        self.retreat(mark);
        self.floor = mark;
        Ok(())
    }

    /// Frees all blocks.
    pub fn reset(&mut self) {
        self.floor = START;
        self.retreat(START);
    }

    fn retreat(&mut self, mark: Head) {
        let inner_head = self.pages.head();
        self.pages.rewind(mark);
        if self.fills {
            let memory = &mut self.pages.last_mut().memory;
            let end = if mark.chunk < inner_head.chunk { memory.len() } else { inner_head.at };
            memory.slice_mut(mark.at..end).fill(FREED_BYTE);
        }
        self.live = 0;
        self.epoch += 1;
    }
}

impl Allocator for Linear {
    type Block = LinearBlock;
    const NAME: &'static str = "linear";
    const REUSE: ReuseCondition = ReuseCondition::Together;

    fn alloc(&mut self, layout: Layout) -> Option<LinearBlock> {
        self.allocate(layout)
    }
    fn free(&mut self, block: LinearBlock) {
        self.work.frees += 1;
        if block.epoch == self.epoch {
            if let Some(page) = self.pages.get(block.page) {
                page.memory.checked_offset(&block.piece);
            }
            self.live -= 1;
            if self.live == 0 {
                self.retreat(self.floor);
            }
        }
    }
    fn range(&self, block: &LinearBlock) -> Range<usize> {
        let offset = self.pages.get(block.page).map_or(0, |page| page.base) + block.piece.at();
        offset..offset + block.piece.bytes()
    }
    /// If a reset has freed the block, returns the bytes that its memory contains now; returns no bytes if the page was
    /// freed. The fill makes a read after a reset visible.
    fn bytes<'b>(&'b mut self, block: &'b mut LinearBlock) -> &'b mut [u8] {
        match self.pages.get_mut(block.page).filter(|page| page.memory.owns(&block.piece)) {
            Some(page) => page.memory.bytes(&block.piece),
            None => &mut [],
        }
    }
    fn capacity(&self) -> usize {
        self.pages.chunks().map(Span::size).sum()
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        holes.add(self.pages.last().size() - self.pages.head().at);
        holes
    }
    fn work(&self) -> Work {
        self.work
    }
    /// Returns the bytes of the page descriptors, without the lab's counters in the descriptors.
    fn metadata_bytes(&self) -> usize {
        self.pages() * (size_of::<Page>() - size_of::<Work>())
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let fits_page =
            self.pages.head().at.next_multiple_of(layout.align()) + layout.size() <= self.pages.last().size();
        let chained = self.page.max(layout.size()) + self.capacity() <= self.max_bytes;
        Some(Memory::aligns(layout) && (fits_page || chained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn linear_region_of_256_bytes_serves_eight_blocks_of_32() {
        let mut linear = Linear::fixed(256).unwrap();
        let mut heads = vec![];
        while let Some(block) = linear.allocate(layout(32, 16)) {
            assert_eq!(linear.range(&block).end, linear.used());
            heads.push(linear.used());
        }
        assert_eq!(heads, [32, 64, 96, 128, 160, 192, 224, 256]);
        assert_eq!(linear.holes(), Holes::default());
        assert!(linear.allocate(layout(1, 1)).is_none(), "an allocation without memory must return an error");
        linear.reset();
        assert_eq!((linear.used(), linear.holes().largest), (0, 256));
        assert!(linear.allocate(layout(256, 16)).is_some());
        assert_eq!(linear.work().refused, 2);
    }

    #[test]
    fn linear_allocator_aligns_its_head_and_refuses_overflow() {
        let mut linear = Linear::fixed(256).unwrap();
        linear.allocate(layout(1, 1)).unwrap();
        let block = linear.allocate(layout(10, 64)).unwrap();
        assert_eq!((linear.range(&block), linear.used()), (64..74, 74));
        assert!(linear.allocate(layout(isize::MAX as usize, 1)).is_none());
        assert!(linear.allocate(layout(1, 2 * Memory::ALIGN)).is_none());
        let empty = linear.allocate(layout(0, 1)).unwrap();
        assert_eq!(linear.range(&empty), 74..74);
        assert_eq!(linear.used(), 74);
    }

    /// Until a request fails, the free memory is a single piece, and blocks take exactly the requested bytes.
    #[test]
    fn linear_allocator_keeps_free_memory_in_one_piece() {
        let mut linear = Linear::fixed(10_000).unwrap();
        let (mut requested, mut rng) = (0, crate::workload::rng::Rng::new(1));
        loop {
            let size = rng.in_range(1, 300) as usize;
            let Some(block) = linear.allocate(layout(size, 1)) else {
                assert!(requested + size > 10_000, "a request is refused although memory is free");
                break;
            };
            requested += size;
            assert_eq!(linear.range(&block).len(), size);
            let remaining = 10_000 - requested;
            let one_piece = Holes { count: usize::from(remaining > 0), largest: remaining, total: remaining };
            assert_eq!(linear.holes(), one_piece);
        }
    }

    /// The listing of the tutorial "Memory Allocators from Scratch" checks `candidate + size > end`. For a huge request
    /// the sum overflows, so the listing's check passes and the request is served.
    #[test]
    fn tutorial_listing_overflows_on_a_huge_request() {
        let listing = |head: usize, end: usize, size: usize| {
            let sum = head.wrapping_add(size);
            (sum <= end).then_some(sum)
        };
        let (head, end) = (0x7fff_0000_0010, 0x7fff_0000_0100);
        assert_eq!(listing(head, end, 241), None);
        let huge = usize::MAX - 15;
        assert_eq!(
            listing(head, end, huge),
            Some(head - 16),
            "the block was allocated, and the head moved back"
        );
        let mut linear = Linear::fixed(256).unwrap();
        linear.allocate(layout(16, 1)).unwrap();
        assert!(Layout::from_size_align(huge, 1).is_err(), "a request cannot have this size");
        assert!(linear.allocate(layout(isize::MAX as usize, 1)).is_none());
        assert_eq!(linear.used(), 16);
    }

    #[test]
    fn memory_after_a_reset_reads_0xcd() {
        let mut linear = Linear::fixed(64).unwrap();
        let mut stale_block = linear.allocate(layout(8, 1)).unwrap();
        linear.bytes(&mut stale_block).fill(7);
        linear.reset();
        assert_eq!(linear.bytes(&mut stale_block), [0xCD; 8]);
        let mut new_block = linear.allocate(layout(8, 1)).unwrap();
        linear.bytes(&mut new_block).fill(1);
        linear.free(stale_block);
        assert_eq!(linear.used(), 8, "the free of a block from before the reset must not count");
        linear.free(new_block);
        assert_eq!(linear.used(), 0, "the last free must free all memory");
    }

    #[test]
    fn rewind_frees_blocks_after_its_mark() {
        let mut linear = Linear::fixed(128).unwrap();
        let mut kept_block = linear.allocate(layout(16, 1)).unwrap();
        linear.bytes(&mut kept_block).fill(1);
        let mark = linear.mark();
        let mut freed_block = linear.allocate(layout(16, 1)).unwrap();
        let inner_head = linear.mark();
        linear.rewind(mark).unwrap();
        assert_eq!((linear.bytes(&mut kept_block)[0], linear.bytes(&mut freed_block)[0]), (1, FREED_BYTE));
        let error = linear.rewind(inner_head).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the mark at byte 32 is stale: the head was below it, and is now at byte 16"
        );
        let reused_block = linear.allocate(layout(16, 1)).unwrap();
        linear.free(freed_block);
        linear.free(reused_block);
        assert_eq!(linear.used(), 16, "frees must not go below the mark");
        linear.free(kept_block);
        assert_eq!(linear.used(), 16);
    }

    /// Regression test: a rewind to a mark beyond the end of its page panicked. With the fill disabled, that rewind
    /// moved the head beyond the page.
    #[test]
    fn mark_in_a_replaced_page_is_stale() {
        for fills in [true, false] {
            let linear = Linear::growing(64, 1000).unwrap();
            let mut linear = if fills { linear } else { linear.without_fill() };
            let start = linear.mark();
            linear.allocate(layout(100, 1)).unwrap();
            let stale_marker = linear.mark();
            linear.rewind(start).unwrap();
            for _ in 0..3 {
                linear.allocate(layout(64, 1)).unwrap();
            }
            assert_eq!(linear.rewind(stale_marker), Err(StaleMark { mark: 164, head: 192 }));
            assert_eq!((linear.used(), linear.holes()), (192, Holes::default()), "no block may be freed");
        }
    }

    #[test]
    fn chained_arena_grows_by_pages_and_frees_them_on_rewind() {
        let mut linear = Linear::growing(64, 256).unwrap();
        let mark = linear.mark();
        let first = linear.allocate(layout(40, 8)).unwrap();
        let second = linear.allocate(layout(40, 8)).unwrap();
        assert_eq!((linear.range(&first), linear.range(&second)), (0..40, 4096..4136));
        let large_block = linear.allocate(layout(100, 8)).unwrap();
        assert_eq!((linear.pages(), linear.range(&large_block)), (3, 8192..8292));
        assert!(linear.allocate(layout(64, 1)).is_none(), "28 bytes remain, but a page has 64");
        linear.rewind(mark).unwrap();
        assert_eq!((linear.pages(), linear.capacity(), linear.used()), (1, 64, 0));
        assert!(Linear::growing(64, 63).is_err());
        assert!(Linear::fixed(0).is_err());
    }
}

//! The linear (bump) allocator: one position that moves forward, and nothing is freed but all at once.
//!
//! ```text
//!  page 0                     page 1 (chained when page 0 was full)
//!  |AAAA|BB|..pad..|CCC|lost| |DDDDDD|            free            |
//!                                    ^ head
//! ```
//!
//! - Allocate: load the head, round it up, compare with the end, store it: one branch. O(1).
//! - Reset: all is free; O(1), but that here, unless it is told [not to](Linear::without_fill), the freed bytes are overwritten with [`FREED`], so that whoever reads memory after a
//!   reset sees it.
//! - [`mark`](Linear::mark), [`rewind`](Linear::rewind): free what came after a mark.
//! - Waste: the padding of alignments, and in a chain the rest of each page. Nothing else, until it is full.
//!
//! Sources: Hanson, "Fast allocation and deallocation of memory based on object lifetimes" (1990); Frykholm, "Custom Memory
//! Allocation in C++" (BitSquid blog, 2010), for pages in a chain, marks and the fill. Ships as Unreal's `FMemStack`, Apache's
//! `apr_pool`, obstacks. An instance is a value: one for each thread needs no lock.
//!
//! As an [`Allocator`] it counts frees, and frees all when the last block came back. A page is one step.

use super::allocator::{Allocator, Holes, Reuse, Work};
use super::memory::{Memory, Piece, Unfit};
use core::alloc::Layout;
use core::ops::Range;

/// What freed bytes are overwritten with.
pub const FREED: u8 = 0xCD;

/// A bump allocator. See the [module](self).
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
    /// Never empty.
    pages: Vec<Page>,
    /// Bytes of a new page; of all pages at most.
    page: usize,
    most: usize,
    /// The next free byte of the last page.
    head: usize,
    /// How far freed blocks take the head back when the last of them comes: to the last mark it was rewound to.
    floor: Mark,
    /// Blocks handed out since, and not freed.
    live: usize,
    /// Changes whenever blocks die together: a block of another epoch is dead already.
    epoch: u64,
    /// Whether freed bytes are overwritten.
    fills: bool,
    work: Work,
}

#[derive(Debug)]
struct Page {
    memory: Memory,
    /// Its first position: pages lie as if at multiples of their alignment.
    base: usize,
    /// Bytes of the pages before it.
    before: usize,
}

/// A head that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    page: usize,
    head: usize,
}

/// A block of a [`Linear`].
#[derive(Debug, PartialEq, Eq)]
pub struct LinearBlock {
    page: usize,
    piece: Piece,
    epoch: u64,
}

/// A mark that lies above the head: what it saved was freed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mark at byte {mark} lies above the head at byte {head}: an earlier mark was rewound to before")]
pub struct StaleMark {
    /// Where the mark lies.
    pub mark: usize,
    /// Where the head is.
    pub head: usize,
}

impl Linear {
    /// One region of so many bytes.
    ///
    /// # Errors
    /// None, or more than [`Memory::MOST`].
    pub fn fixed(bytes: usize) -> Result<Self, Unfit> {
        Self::growing(bytes, bytes)
    }

    /// The same, and freed bytes stay as they are: a reset is O(1) then.
    pub fn without_fill(self) -> Self {
        Self { fills: false, ..self }
    }

    /// A chain of pages of `page` bytes, `most` bytes at most. The first is there at once; a request larger than a page gets a
    /// page of its own size. Pages behind a mark that is rewound to go back.
    ///
    /// # Errors
    /// A page of none, of more than [`Memory::MOST`] or of more than `most` bytes.
    pub fn growing(page: usize, most: usize) -> Result<Self, Unfit> {
        if most < page {
            return Err(Unfit::new("a chain of at most", most, format!("a page of {page} bytes or more")));
        }
        Ok(Self {
            pages: vec![Page { memory: Memory::new(page, 1, 1)?, base: 0, before: 0 }],
            page,
            most,
            head: 0,
            floor: Mark { page: 0, head: 0 },
            live: 0,
            epoch: 0,
            fills: true,
            work: Work::default(),
        })
    }

    /// Bytes from the start to the head, padding and lost ends of pages included.
    pub fn used(&self) -> usize {
        self.pages.last().map_or(0, |page| page.before) + self.head
    }
    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The first page's bytes.
    pub(super) fn memory(&self) -> &Memory {
        &self.pages[0].memory
    }
    pub(super) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.pages[0].memory
    }

    /// Moves the head behind `layout`.
    pub fn allocate(&mut self, layout: Layout) -> Option<LinearBlock> {
        let block = if Memory::aligns(layout) { self.bump(layout) } else { None };
        self.work.served(block)
    }

    fn bump(&mut self, layout: Layout) -> Option<LinearBlock> {
        self.work.took(1);
        let fits = |head: usize, page: usize| {
            let at = head.checked_next_multiple_of(layout.align())?;
            at.checked_add(layout.size()).filter(|end| *end <= page).map(|end| (at, end))
        };
        let last = self.pages.last()?;
        let (at, end) = match fits(self.head, last.memory.len()) {
            Some(found) => found,
            None => {
                let before = last.before + last.memory.len();
                let base = (last.base + last.memory.len()).next_multiple_of(Memory::ALIGN);
                let bytes = self.page.max(layout.size());
                if bytes > self.most - before {
                    return None;
                }
                self.pages.push(Page { memory: Memory::new(bytes, 1, 1).ok()?, base, before });
                self.work.took(1);
                (0, layout.size())
            }
        };
        let page = self.pages.len() - 1;
        self.head = end;
        self.live += 1;
        Some(LinearBlock { page, piece: self.pages[page].memory.piece(at, layout.size()), epoch: self.epoch })
    }

    /// The head, to come back to.
    pub fn mark(&self) -> Mark {
        Mark { page: self.pages.len() - 1, head: self.head }
    }

    /// Frees all that came after `mark`, and overwrites it with [`FREED`].
    ///
    /// # Errors
    /// The mark lies above the head.
    pub fn rewind(&mut self, mark: Mark) -> Result<(), StaleMark> {
        let head = self.used();
        let at = self.pages.get(mark.page).map(|page| page.before + mark.head);
        match at.filter(|at| *at <= head) {
            Some(_) => self.retreat(mark),
            None => return Err(StaleMark { mark: at.unwrap_or(mark.page * self.page), head }),
        }
        self.floor = mark;
        Ok(())
    }

    /// Frees everything.
    pub fn reset(&mut self) {
        self.floor = Mark { page: 0, head: 0 };
        self.retreat(self.floor);
    }

    fn retreat(&mut self, mark: Mark) {
        let end =
            if mark.page + 1 < self.pages.len() { self.pages[mark.page].memory.len() } else { self.head };
        self.pages.truncate(mark.page + 1);
        if self.fills {
            self.pages[mark.page].memory.slice_mut(mark.head..end).fill(FREED);
        }
        self.head = mark.head;
        self.live = 0;
        self.epoch += 1;
    }
}

impl Allocator for Linear {
    type Block = LinearBlock;
    const NAME: &'static str = "linear";
    const REUSE: Reuse = Reuse::Together;

    fn alloc(&mut self, layout: Layout) -> Option<LinearBlock> {
        self.allocate(layout)
    }
    fn free(&mut self, block: LinearBlock) {
        self.work.frees += 1;
        if block.epoch == self.epoch {
            self.pages[block.page].memory.own(&block.piece);
            self.live -= 1;
            if self.live == 0 {
                self.retreat(self.floor);
            }
        }
    }
    fn range(&self, block: &LinearBlock) -> Range<usize> {
        let at = self.pages.get(block.page).map_or(0, |page| page.base) + block.piece.at();
        at..at + block.piece.bytes()
    }
    /// A block that died in a reset still shows the bytes of its place, unless its page went back: that is the bug that the
    /// fill makes visible.
    fn bytes<'b>(&'b mut self, block: &'b mut LinearBlock) -> &'b mut [u8] {
        match self.pages.get_mut(block.page).filter(|page| page.memory.owns(&block.piece)) {
            Some(page) => page.memory.bytes(&block.piece),
            None => &mut [],
        }
    }
    fn capacity(&self) -> usize {
        self.pages.iter().map(|page| page.memory.len()).sum()
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        holes.add(self.pages.last().map_or(0, |page| page.memory.len()) - self.head);
        holes
    }
    fn work(&self) -> Work {
        self.work
    }
    fn beside(&self) -> usize {
        self.pages.len() * size_of::<Page>()
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        let here = self.head.next_multiple_of(layout.align()) + layout.size()
            <= self.pages.last().map_or(0, |page| page.memory.len());
        let chained = self.page.max(layout.size()) + self.capacity() <= self.most;
        Some(Memory::aligns(layout) && (here || chained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn region_of_256_bytes_serves_eight_times_32_and_resets_at_once() {
        let mut linear = Linear::fixed(256).unwrap();
        let mut heads = vec![];
        while let Some(block) = linear.allocate(layout(32, 16)) {
            assert_eq!(linear.range(&block).end, linear.used());
            heads.push(linear.used());
        }
        assert_eq!(heads, [32, 64, 96, 128, 160, 192, 224, 256]);
        assert_eq!(linear.holes(), Holes::default());
        assert!(linear.allocate(layout(1, 1)).is_none(), "out of memory is a value");
        linear.reset();
        assert_eq!((linear.used(), linear.holes().largest), (0, 256));
        assert!(linear.allocate(layout(256, 16)).is_some());
        assert_eq!(linear.work().refused, 2);
    }

    #[test]
    fn the_head_is_rounded_up_and_a_request_that_overflows_is_refused() {
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

    /// Neither kind of fragmentation until it fails: what is free is one piece, and blocks take what was asked for.
    #[test]
    fn all_that_is_free_is_one_piece_until_a_request_finds_too_little() {
        let mut linear = Linear::fixed(10_000).unwrap();
        let (mut asked, mut dice) = (0, crate::workload::dice::Dice::new(1));
        loop {
            let size = dice.within(1, 300) as usize;
            let Some(block) = linear.allocate(layout(size, 1)) else {
                assert!(asked + size > 10_000, "refused with room for it");
                break;
            };
            asked += size;
            assert_eq!(linear.range(&block).len(), size);
            let rest = 10_000 - asked;
            let one_piece = Holes { count: usize::from(rest > 0), largest: rest, total: rest };
            assert_eq!(linear.holes(), one_piece);
        }
    }

    /// `candidate + size > end` in the tutorial's listing: the sum overflows, and the check passes.
    #[test]
    fn the_listings_sum_wraps_where_this_one_refuses() {
        let listing = |head: usize, end: usize, size: usize| {
            let sum = head.wrapping_add(size);
            (sum <= end).then_some(sum)
        };
        let (head, end) = (0x7fff_0000_0010, 0x7fff_0000_0100);
        assert_eq!(listing(head, end, 241), None);
        let huge = usize::MAX - 15;
        assert_eq!(listing(head, end, huge), Some(head - 16), "given, and the head moved back");
        let mut linear = Linear::fixed(256).unwrap();
        linear.allocate(layout(16, 1)).unwrap();
        assert!(Layout::from_size_align(huge, 1).is_err(), "such a size cannot even be asked for");
        assert!(linear.allocate(layout(isize::MAX as usize, 1)).is_none());
        assert_eq!(linear.used(), 16);
    }

    #[test]
    fn what_is_read_after_a_reset_is_0xcd() {
        let mut linear = Linear::fixed(64).unwrap();
        let mut stale = linear.allocate(layout(8, 1)).unwrap();
        linear.bytes(&mut stale).fill(7);
        linear.reset();
        assert_eq!(linear.bytes(&mut stale), [0xCD; 8]);
        let mut fresh = linear.allocate(layout(8, 1)).unwrap();
        linear.bytes(&mut fresh).fill(1);
        linear.free(stale);
        assert_eq!(linear.used(), 8, "the free of a block that died in the reset does not count");
        linear.free(fresh);
        assert_eq!(linear.used(), 0, "the last one frees all");
    }

    #[test]
    fn a_rewind_frees_what_came_after_its_mark() {
        let mut linear = Linear::fixed(128).unwrap();
        let mut kept = linear.allocate(layout(16, 1)).unwrap();
        linear.bytes(&mut kept).fill(1);
        let mark = linear.mark();
        let mut lost = linear.allocate(layout(16, 1)).unwrap();
        let above = linear.mark();
        linear.rewind(mark).unwrap();
        assert_eq!((linear.bytes(&mut kept)[0], linear.bytes(&mut lost)[0]), (1, FREED));
        let stale = linear.rewind(above).unwrap_err();
        assert_eq!(
            stale.to_string(),
            "the mark at byte 32 lies above the head at byte 16: an earlier mark was rewound to before"
        );
        let again = linear.allocate(layout(16, 1)).unwrap();
        linear.free(lost);
        linear.free(again);
        assert_eq!(linear.used(), 16, "frees do not go below the mark");
        linear.free(kept);
        assert_eq!(linear.used(), 16);
    }

    #[test]
    fn a_chain_grows_page_by_page_to_its_limit_and_gives_pages_back() {
        let mut linear = Linear::growing(64, 256).unwrap();
        let mark = linear.mark();
        let first = linear.allocate(layout(40, 8)).unwrap();
        let second = linear.allocate(layout(40, 8)).unwrap();
        assert_eq!((linear.range(&first), linear.range(&second)), (0..40, 4096..4136));
        let large = linear.allocate(layout(100, 8)).unwrap();
        assert_eq!((linear.pages(), linear.range(&large)), (3, 8192..8292));
        assert!(linear.allocate(layout(64, 1)).is_none(), "28 bytes are left, and a page is 64");
        linear.rewind(mark).unwrap();
        assert_eq!((linear.pages(), linear.capacity(), linear.used()), (1, 64, 0));
        assert!(Linear::growing(64, 63).is_err());
        assert!(Linear::fixed(0).is_err());
    }
}

//! Size class of each page, and offset of the class's stack: four bytes per page, in a separate array.
//!
//! A free without a size reads this array instead of the frame. Each CPU that allocates from or frees to a slab writes
//! the frame's cache line, but this array is only written when a slab is made or freed. One cache line of the array
//! covers 16 pages.

use crate::debug::faults::BITMAP;
use core::ptr::NonNull;
use uslab_buddy::PageAllocator;
use uslab_buddy::region::{Reservation, Reserved, Uncommitted};
use uslab_magazine::Operation;
use uslab_magazine::sync::UnsafeCell;

/// Size class of a page, and the offset of the class's stack. The default value means that the page
/// has no class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PageRecord(u32);

impl PageRecord {
    const CLASS_BITS: u32 = 10;

    /// Makes the word of a class. `stack` is the offset of the class's stack in a region, in bytes, or 0 if frees are not
    /// inlined.
    pub(crate) fn new(class: u16, stack: u32) -> Self {
        debug_assert!(u32::from(class) + 1 < 1 << Self::CLASS_BITS && stack < 1 << (32 - Self::CLASS_BITS));
        Self((u32::from(class) + 1) | stack << Self::CLASS_BITS)
    }
    /// Number of the class plus one, or 0 for no class.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        (self.0 & ((1 << Self::CLASS_BITS) - 1)) as usize
    }
    #[inline(always)]
    pub(crate) fn stack(self) -> u32 {
        self.0 >> Self::CLASS_BITS
    }
}
const _: () = assert!(uslab_magazine::table::REGION <= 1 << (32 - PageRecord::CLASS_BITS));

/// The array's word of one page.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PageClass(UnsafeCell<PageRecord>);

impl PageClass {
    /// Reads the word.
    ///
    /// # Safety
    /// The caller owns the page, or owns memory in it.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> PageRecord {
        // SAFETY: the word is written before any memory of the page is handed out, and again after all memory of the
        // page was freed.
        self.0.with(|known| unsafe { *known })
    }
}

/// The words of all pages. Untouched words read 0 and take no memory.
#[derive(Debug)]
pub(crate) struct PageClasses {
    memory: Reserved,
}

impl PageClasses {
    /// Makes the array for `pages` pages; returns `None` if the system refuses address space.
    pub(crate) fn new(pages: usize, addresses: &mut Reservation) -> Option<Self> {
        let bytes = pages * size_of::<PageClass>();
        Some(Self { memory: Reserved::cut_from(addresses, bytes, Uncommitted::ReadsZero, BITMAP)? })
    }
    /// Unmaps the words of pages that [cannot exist](PageAllocator::max_pages).
    ///
    /// # Safety
    /// No thread reads the class of a page that cannot exist, now or later.
    pub(crate) unsafe fn trim(&self, allocator: &PageAllocator) {
        // SAFETY: the region has no other user. By contract, no thread reads the unmapped words.
        unsafe { allocator.cut_table(&self.memory, allocator.max_pages() * size_of::<PageClass>()) };
    }
    /// Address of page 0's word.
    pub(crate) fn first(&self) -> NonNull<PageClass> {
        self.memory.base().cast()
    }
    /// Sets the class of the pages `first..first + pages`, which belong to one slab. Returns `false` if memory is
    /// short.
    ///
    /// # Safety
    /// The caller owns the pages.
    #[must_use]
    pub(crate) unsafe fn set(&self, op: &Operation, first: usize, pages: usize, known: PageRecord) -> bool {
        if !self.memory.commit(op, (first + pages) * size_of::<PageClass>()) {
            return false;
        }
        // SAFETY: by contract, the caller owns the pages.
        unsafe { self.set_range(first, pages, known) };
        true
    }
    /// Resets the class of pages that are no longer a slab.
    ///
    /// # Safety
    /// [`set`](Self::set) was called for the pages, and its conditions hold.
    pub(crate) unsafe fn clear(&self, first: usize, pages: usize) {
        // SAFETY: by contract, the caller owns the pages.
        unsafe { self.set_range(first, pages, PageRecord::default()) };
    }
    unsafe fn set_range(&self, first: usize, pages: usize, known: PageRecord) {
        for page in first..first + pages {
            // SAFETY: the word is within the committed part. By contract, no other thread owns memory in the page.
            unsafe { self.first().add(page).as_ref().0.with_mut(|page| *page = known) };
        }
    }
}

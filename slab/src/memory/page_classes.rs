//! Size class of each page, with the offset of the class's stack. A separate array has four bytes per page.
//!
//! A free without a size reads the array of page classes instead of the frame. Each CPU that allocates from or frees to
//! a slab writes the frame's cache line. The array of page classes is written only when a slab is made or freed. One
//! cache line of the array covers 16 pages.

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

    /// Makes the record of a class. `stack` is the offset in bytes of the class's stack in a region, or 0 if frees are
    /// not inlined.
    pub(crate) fn new(class: u16, stack: u32) -> Self {
        debug_assert!(u32::from(class) + 1 < 1 << Self::CLASS_BITS && stack < 1 << (32 - Self::CLASS_BITS));
        Self((u32::from(class) + 1) | stack << Self::CLASS_BITS)
    }
    /// Returns the number of the class plus one, or 0 for no class.
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

/// One page's record in the array.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PageClass(UnsafeCell<PageRecord>);

impl PageClass {
    /// Reads the word.
    ///
    /// # Safety
    /// The caller must own the page, or own memory inside it.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> PageRecord {
        // SAFETY: the word is written before any memory of the page is handed out, and again after all memory of the
        // page was freed.
        self.0.with(|known| unsafe { *known })
    }
}

/// Array of the records of all pages. Untouched records read as 0 and take no memory.
#[derive(Debug)]
pub(crate) struct PageClasses {
    memory: Reserved,
}

impl PageClasses {
    /// Makes the array for `pages` pages, or returns `None` if the system refuses address space.
    pub(crate) fn new(pages: usize, addresses: &mut Reservation) -> Option<Self> {
        let bytes = pages * size_of::<PageClass>();
        Some(Self { memory: Reserved::new_in_reservation(addresses, bytes, Uncommitted::ReadsZero, BITMAP)? })
    }
    /// Unmaps the records of pages that [cannot exist](PageAllocator::max_pages).
    ///
    /// # Safety
    /// No thread may read the class of a page that cannot exist, now or later.
    pub(crate) unsafe fn trim(&self, allocator: &PageAllocator) {
        // SAFETY: the region has no other user. By contract, no thread reads the unmapped words.
        unsafe { allocator.truncate_table(&self.memory, allocator.max_pages() * size_of::<PageClass>()) };
    }
    /// Address of the record of page 0.
    pub(crate) fn first(&self) -> NonNull<PageClass> {
        self.memory.base().cast()
    }
    /// Sets the class of the pages `first..first + pages`, which belong to one slab. Returns `false` if memory is
    /// short.
    ///
    /// # Safety
    /// The caller must own the pages.
    #[must_use]
    pub(crate) unsafe fn set(&self, op: &Operation, first: usize, pages: usize, known: PageRecord) -> bool {
        if !self.memory.commit(op, (first + pages) * size_of::<PageClass>()) {
            return false;
        }
        // SAFETY: by contract, the caller owns the pages.
        unsafe { self.set_page_records(first, pages, known) };
        true
    }
    /// Resets the class of pages that no longer belong to a slab.
    ///
    /// # Safety
    /// [`set`](Self::set) must have been called for the pages, and its conditions must hold.
    pub(crate) unsafe fn clear(&self, first: usize, pages: usize) {
        // SAFETY: by contract, the caller owns the pages.
        unsafe { self.set_page_records(first, pages, PageRecord::default()) };
    }
    unsafe fn set_page_records(&self, first: usize, pages: usize, known: PageRecord) {
        for page in first..first + pages {
            // SAFETY: the word is within the committed part. By contract, no other thread owns memory in the page.
            unsafe { self.first().add(page).as_ref().0.with_mut(|page| *page = known) };
        }
    }
}

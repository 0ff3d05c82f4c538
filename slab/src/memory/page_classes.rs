//! The size class of each page, and the offset of that class's stack: four bytes a page, in a separate array.
//!
//! A free that does not know the size asks it, and needs no frame: a frame's line is written by whoever takes objects of
//! its slab or gives them back, on any CPU, while this array is only written where a slab begins or ends. A line of it
//! covers 16 pages.

use crate::debug::faults::BITMAP;
use core::ptr::NonNull;
use uslab_buddy::PageAllocator;
use uslab_buddy::region::{Reservation, Reserved, Uncommitted};
use uslab_magazine::Operation;
use uslab_magazine::sync::UnsafeCell;

/// What is known of a page. The default is of no class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Known(u32);

impl Known {
    const CLASS: u32 = 10;

    /// A class, and the offset of its stack in a region, in bytes; 0 if its frees are not inlined.
    pub(crate) fn new(class: u16, stack: u32) -> Self {
        debug_assert!(u32::from(class) + 1 < 1 << Self::CLASS && stack < 1 << (32 - Self::CLASS));
        Self((u32::from(class) + 1) | stack << Self::CLASS)
    }
    /// The class and 1; 0 for none.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        (self.0 & ((1 << Self::CLASS) - 1)) as usize
    }
    #[inline(always)]
    pub(crate) fn stack(self) -> u32 {
        self.0 >> Self::CLASS
    }
}
const _: () = assert!(uslab_magazine::table::REGION <= 1 << (32 - Known::CLASS));

/// The same of one page.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PageClass(UnsafeCell<Known>);

impl PageClass {
    /// What is known.
    ///
    /// # Safety
    /// The page is the caller's, or something in it is.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> Known {
        // SAFETY: it was set before any of the page was handed out, and is set again when all of it has come back.
        self.0.with(|known| unsafe { *known })
    }
}

/// Of all pages. What was never set reads 0 and takes no memory.
#[derive(Debug)]
pub(crate) struct PageClasses {
    memory: Reserved,
}

impl PageClasses {
    /// For so many pages; `None` if the addresses are refused.
    pub(crate) fn new(pages: usize, addresses: &mut Reservation) -> Option<Self> {
        let bytes = pages * size_of::<PageClass>();
        Some(Self { memory: Reserved::cut_from(addresses, bytes, Uncommitted::ReadsZero, BITMAP)? })
    }
    /// Gives the classes back of pages that [cannot be](PageAllocator::most_pages).
    ///
    /// # Safety
    /// Nobody asks for the class of such a page, now or later.
    pub(crate) unsafe fn cut(&self, of: &PageAllocator) {
        // SAFETY: the classes have their region for themselves; else by contract.
        unsafe { of.cut_table(&self.memory, of.most_pages() * size_of::<PageClass>()) };
    }
    /// Of page 0.
    pub(crate) fn first(&self) -> NonNull<PageClass> {
        self.memory.base().cast()
    }
    /// Pages `first..first + pages` are a slab's. `false` if there is no memory to say so.
    ///
    /// # Safety
    /// They are the caller's.
    #[must_use]
    pub(crate) unsafe fn set(&self, op: &Operation, first: usize, pages: usize, known: Known) -> bool {
        if !self.memory.commit(op, (first + pages) * size_of::<PageClass>()) {
            return false;
        }
        // SAFETY: passed on.
        unsafe { self.put(first, pages, known) };
        true
    }
    /// They are of no class any more.
    ///
    /// # Safety
    /// As [`set`](Self::set), which was called for them.
    pub(crate) unsafe fn clear(&self, first: usize, pages: usize) {
        // SAFETY: passed on.
        unsafe { self.put(first, pages, Known::default()) };
    }
    unsafe fn put(&self, first: usize, pages: usize, known: Known) {
        for page in first..first + pages {
            // SAFETY: within what was committed; by contract nobody else has anything in the page.
            unsafe { self.first().add(page).as_ref().0.with_mut(|page| *page = known) };
        }
    }
}

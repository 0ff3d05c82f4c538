//! The size class of each page: two bytes a page, in an array of their own.
//!
//! A free that does not know the size asks it, and needs no frame: a frame's line is written by whoever takes objects of
//! its slab or gives them back, on any CPU, while this array is only written where a slab begins or ends. A line of it
//! covers 32 pages.

use crate::faults::{BITMAP, Faults};
use core::ptr::NonNull;
use uslab_buddy::{Door, Reserved};
use uslab_magazine::Operation;
use uslab_magazine::sync::{AtomicU16, Ordering::Relaxed};

/// What is known of a page: `class + 1` in the low 7 bits, above them which page of its slab it is. 0 is a page of no size
/// class.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct PageClass(AtomicU16);

const CLASS: u16 = (1 << 7) - 1;
/// Pages of a slab at most.
const PAGES: usize = 1 << CLASS.leading_zeros();

impl PageClass {
    /// The class, and the number of the page within its slab.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<(usize, usize)> {
        // Relaxed: whoever asks has an object of the page, whose hand-out happened after this was set.
        let known = self.0.load(Relaxed);
        let class = usize::from(known & CLASS).checked_sub(1)?;
        Some((class, usize::from(known >> CLASS.trailing_ones())))
    }
}

/// Of all pages. What was never set reads 0 and takes no memory.
#[derive(Debug)]
pub(crate) struct PageClasses {
    memory: Reserved,
}

impl PageClasses {
    /// For so many pages; `None` if the addresses are refused.
    pub(crate) fn new(pages: usize, door: Door, faults: &Faults) -> Option<Self> {
        Some(Self { memory: Reserved::readable(pages * size_of::<PageClass>(), door, faults, BITMAP)? })
    }
    /// Gives the classes of all pages from `pages` on back.
    ///
    /// # Safety
    /// Nobody asks for the class of such a page, now or later.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) unsafe fn cut(&self, pages: usize) {
        // SAFETY: the classes have their region for themselves; else by contract.
        unsafe { self.memory.cut(pages * size_of::<PageClass>()) };
    }
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn reserved(&self) -> usize {
        self.memory.reserved()
    }
    /// Of page 0.
    pub(crate) fn first(&self) -> NonNull<PageClass> {
        self.memory.base().cast()
    }
    /// Pages `first..first + pages` are a slab's of the class. `false` if there is no memory to say so.
    #[must_use]
    pub(crate) fn set(&self, op: &Operation, first: usize, pages: usize, class: u16) -> bool {
        if pages > PAGES || !self.memory.commit(op, (first + pages) * size_of::<PageClass>()) {
            return false;
        }
        for page in 0..pages {
            self.at(first + page).0.store((class + 1) | (page as u16) << CLASS.trailing_ones(), Relaxed);
        }
        true
    }
    /// They are of no class any more.
    pub(crate) fn clear(&self, first: usize, pages: usize) {
        (first..first + pages).for_each(|page| self.at(page).0.store(0, Relaxed));
    }
    fn at(&self, page: usize) -> &PageClass {
        // SAFETY: within the region, which reads as zero; nobody makes an exclusive reference to it.
        unsafe { self.first().add(page).as_ref() }
    }
}

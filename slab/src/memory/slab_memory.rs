//! What the slabs of all caches share: pages, their frames, and the side table of long bitmaps.
//!
//! Under a checker it also holds the oracle of object ownership: handing an object out and taking it back are writes to a
//! cell of that object. Two owners at once, a double free, and a free that does not happen before the next allocation
//! of the object fail the model. In shipping builds the hooks are empty.

#[cfg_attr(any(loom, shuttle), path = "slab_memory/watched.rs")]
mod owners;

use crate::memory::page_classes::PageClasses;
use crate::memory::slab::{SIDE_BYTES, Side, Slab};
use core::ptr::NonNull;
use owners::Owners;
use uslab_buddy::Reservation;
use uslab_buddy::frame::FrameTable;
use uslab_buddy::{AllocError, Gfp, Order, PageAllocator, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::tell;
use uslab_magazine::tracepoints::Step;

/// Pages and what is known about them.
#[derive(Debug)]
pub(crate) struct SlabMemory {
    pub(crate) pages: PageAllocator,
    side: Side,
    pub(crate) classes: PageClasses,
    owners: Owners,
}

impl SlabMemory {
    /// Bytes of addresses of its tables, for each page.
    pub(crate) const PAGE_BYTES: usize = SIDE_BYTES + size_of::<u32>();

    /// `None` if the address space of the side table is refused.
    pub(crate) fn new(pages: PageAllocator, addresses: &mut Reservation) -> Option<Self> {
        let (most, apart) = (pages.most_pages(), pages.apart());
        Some(Self {
            pages,
            side: Side::new(most, apart, addresses)?,
            // As a whole: a free asks for the class of any page.
            classes: PageClasses::new(most, addresses)?,
            owners: Owners::new(most as u32),
        })
    }

    /// Gives back what describes pages from `pages` on. It is mapped again with these, but for that of pages that
    /// [cannot be](PageAllocator::most_pages).
    ///
    /// # Safety
    /// Their frames were [given up](PageAllocator::give_up_frames), and nobody else does this meanwhile.
    pub(crate) unsafe fn give_up_beside(&self, pages: usize) {
        // SAFETY: no slab can begin behind these pages.
        unsafe {
            self.side.cut(&self.pages, pages);
            self.classes.cut(&self.pages);
        }
    }
    /// Has addresses for what describes the first `pages` pages.
    pub(crate) fn grow_beside(&self, pages: usize) -> bool {
        self.side.grow(&self.pages, pages)
    }

    #[inline(always)]
    pub(crate) fn frames(&self) -> &FrameTable {
        self.pages.frames()
    }
    /// For debuggers: where the side table lies.
    pub(crate) fn side(&self) -> *const u8 {
        self.side.bits(Pfn::new(0)).cast()
    }
    #[inline(always)]
    pub(crate) fn slab(&self, pfn: Pfn) -> Slab<'_> {
        Slab::at(self.frames(), &self.side, pfn)
    }

    /// Pages of `node` for an operation on objects. They are an operation on pages, too, which counts for itself: a page of
    /// the CPU's own is cheap for pages, and dear for an object.
    pub(crate) fn alloc_pages(
        &self,
        op: &Operation,
        order: Order,
        gfp: Gfp,
        node: u32,
    ) -> Result<Pfn, AllocError> {
        tell!(op: Step::PagesAsked);
        op.below(|op| self.pages.alloc_in(op, order, gfp, Some(node)))
    }
    /// Gives them back.
    ///
    /// # Safety
    /// As [`PageAllocator::free`].
    pub(crate) unsafe fn free_pages(&self, op: &Operation, first: Pfn, order: Order) {
        tell!(op: Step::PagesReturned);
        // SAFETY: passed on.
        op.below(|op| unsafe { self.pages.free_in(op, first, order) });
    }

    /// Returns the memory of pages inside a slab to the system; the block stays allocated, and the pages read as zeros.
    ///
    /// # Safety
    /// Each object that touches the pages is free in its slab, holds nothing, and cannot be taken during the call.
    pub(crate) unsafe fn discard(&self, first: Pfn, pages: u32) {
        self.owners.discard(first, pages);
        // SAFETY: passed on.
        unsafe { self.pages.discard(first, pages) };
    }

    /// Says whose the pages of a block are.
    ///
    /// # Safety
    /// The block is the caller's; `owner` is null, or a cache that lives until this is called with null.
    pub(crate) unsafe fn set_owner(&self, first: Pfn, order: Order, owner: *mut u8) {
        for page in 0..order.pages() {
            // SAFETY: passed on; besides caches only `large` is an owner, which `Core::cache_of` tells apart.
            unsafe { self.frames().frame(Pfn::new(first.get() + page)).set_owner(owner) };
        }
    }

    /// An object leaves for a caller.
    #[inline(always)]
    pub(crate) fn obj_out(&self, object: NonNull<u8>) {
        self.owners.hand_out(self, object);
    }
    /// An object comes back from its caller.
    #[inline(always)]
    pub(crate) fn obj_in(&self, object: NonNull<u8>) {
        self.owners.take_back(self, object);
    }
}

//! Memory that the slabs of all caches share: pages, their frames, and the side table of bitmaps that do not fit into
//! frames.
//!
//! Under a model checker, this module also watches object ownership: each allocation and free writes to a cell of the
//! object. A model fails if an object has two owners, if it is freed twice, or if its free does not happen before its
//! next allocation. In shipping builds the functions that watch ownership are empty.

#[cfg_attr(any(loom, shuttle), path = "slab_memory/watched.rs")]
mod owners;

use crate::memory::page_classes::PageClasses;
use crate::memory::slab::{BitmapTable, SIDE_TABLE_PAGE_BYTES, Slab};
use core::ptr::NonNull;
use owners::Owners;
use uslab_buddy::Reservation;
use uslab_buddy::frame::FrameTable;
use uslab_buddy::{AllocError, Gfp, Order, PageAllocator, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::tell;
use uslab_magazine::tracepoints::Step;

/// The page allocator, with the metadata that slabs need for each page.
#[derive(Debug)]
pub(crate) struct SlabMemory {
    pub(crate) pages: PageAllocator,
    side: BitmapTable,
    pub(crate) classes: PageClasses,
    owners: Owners,
}

impl SlabMemory {
    /// Bytes of address space that the metadata tables take per page.
    pub(crate) const METADATA_BYTES_PER_PAGE: usize = SIDE_TABLE_PAGE_BYTES + size_of::<u32>();

    /// Makes the metadata tables; returns `None` if the system refuses address space.
    pub(crate) fn new(pages: PageAllocator, addresses: &mut Reservation) -> Option<Self> {
        let (max_pages, spacing) = (pages.max_pages(), pages.min_table_spacing());
        Some(Self {
            pages,
            side: BitmapTable::new(max_pages, spacing, addresses)?,
            // Page classes are mapped as a whole, because a free may read the class of any page.
            classes: PageClasses::new(max_pages, addresses)?,
            owners: Owners::new(max_pages as u32),
        })
    }

    /// Unmaps the metadata of all pages with the number `pages` or above. The metadata is mapped again together with
    /// its pages, except for pages that [cannot exist](PageAllocator::max_pages).
    ///
    /// # Safety
    /// [`PageAllocator::release_unmapped_frames`] must have released the pages' frames, and no other thread may unmap
    /// metadata concurrently.
    pub(crate) unsafe fn unmap_metadata(&self, pages: usize) {
        // SAFETY: no slab can begin at these pages.
        unsafe {
            self.side.trim(&self.pages, pages);
            self.classes.trim(&self.pages);
        }
    }
    /// Reserves address space for the metadata of the first `pages` pages.
    pub(crate) fn grow_side_table(&self, pages: usize) -> bool {
        self.side.grow(&self.pages, pages)
    }

    #[inline(always)]
    pub(crate) fn frames(&self) -> &FrameTable {
        self.pages.frames()
    }
    pub(crate) fn side(&self) -> *const u8 {
        self.side.bits(Pfn::new(0)).cast()
    }
    #[inline(always)]
    pub(crate) fn slab(&self, pfn: Pfn) -> Slab<'_> {
        Slab::at(self.frames(), &self.side, pfn)
    }

    /// Allocates pages of `node` for an operation on objects. The allocation also counts as a separate page operation
    /// with its own level. For example, a page from the CPU's magazine counts as `cpu` for the page operation, but as
    /// `pages` for the object's allocation.
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
    /// Frees the pages of a slab.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`PageAllocator::free`].
    pub(crate) unsafe fn free_pages(&self, op: &Operation, first: Pfn, order: Order) {
        tell!(op: Step::PagesReturned);
        // SAFETY: by contract, the block was allocated with this order and is no longer used.
        op.below(|op| unsafe { self.pages.free_in(op, first, order) });
    }

    /// Returns the memory of some pages of a slab to the system. The slab's block stays allocated, and the discarded
    /// pages read as zeros.
    ///
    /// # Safety
    /// Each object on the pages must be free in its slab and unconstructed, and must not be allocated during the call.
    pub(crate) unsafe fn discard(&self, first: Pfn, pages: u32) {
        self.owners.discard(first, pages);
        // SAFETY: by contract, no object on the pages is used or constructed.
        unsafe { self.pages.discard(first, pages) };
    }

    /// Sets the owner word of a block's pages.
    ///
    /// # Safety
    /// The caller must own the block. `owner` must be null, or a cache that lives until this owner word is reset to
    /// null.
    pub(crate) unsafe fn set_owner(&self, first: Pfn, order: Order, owner: *mut u8) {
        for page in 0..order.pages() {
            // SAFETY: by contract, the caller owns the block. Besides caches, only `large` is an owner, and
            // `Core::cache_of` distinguishes it.
            unsafe { self.frames().frame(Pfn::new(first.get() + page)).set_owner(owner) };
        }
    }

    /// Reports to the model checker that an object is allocated.
    #[inline(always)]
    pub(crate) fn report_alloc_to_checker(&self, object: NonNull<u8>) {
        self.owners.hand_out(self, object);
    }
    /// Reports to the model checker that an object is freed.
    #[inline(always)]
    pub(crate) fn report_free_to_checker(&self, object: NonNull<u8>) {
        self.owners.take_back(self, object);
    }
}

//! An owned block of pages, which safe code can use.

use crate::allocator::PageAllocator;
use crate::pfn::{Order, Pfn};

/// An owned block of pages that is freed when it is dropped.
#[derive(Debug)]
#[must_use = "dropping a block frees it"]
pub struct PageBlock<'p> {
    pages: &'p PageAllocator,
    pfn: Pfn,
    order: Order,
}

impl<'p> PageBlock<'p> {
    /// Wraps the block at `pfn`, which was allocated with `order` and has no other owner.
    pub(crate) fn new(pages: &'p PageAllocator, pfn: Pfn, order: Order) -> Self {
        Self { pages, pfn, order }
    }
    /// Returns the page number of the block's first page.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }
    /// Returns the block's order.
    pub fn order(&self) -> Order {
        self.order
    }
    /// Returns the node of the block's pages.
    pub fn node(&self) -> u32 {
        self.pages.node_of(self.pfn)
    }
    /// Returns the block's bytes as a slice.
    pub fn bytes(&self) -> &[u8] {
        let start = self.pages.address(self.pfn).as_ptr();
        // SAFETY: the block is committed and initialised, by zeros of the system or earlier writes. Writing to the
        // block needs `&mut self`, and the block is owned until it is dropped.
        unsafe { core::slice::from_raw_parts(start, self.order.bytes()) }
    }
    /// Returns the block's bytes as a mutable slice.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.pages.address(self.pfn).as_ptr();
        // SAFETY: the block is committed and initialised, this value owns the block, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(start, self.order.bytes()) }
    }
    /// Frees the block. Dropping the block has the same effect.
    pub fn free(self) {}

    /// Returns the page number of the block's first page. The block is no longer freed automatically, so the caller
    /// must free it.
    pub fn into_pfn(self) -> Pfn {
        core::mem::ManuallyDrop::new(self).pfn
    }

    /// Splits the block into blocks of order `order`, lowest address first. Each new block is freed separately. A block
    /// that is not larger than `order` is returned unchanged.
    pub fn split(self, order: Order) -> Vec<PageBlock<'p>> {
        if order >= self.order {
            return vec![self];
        }
        let whole = core::mem::ManuallyDrop::new(self);
        // SAFETY: this value owns the block, and `order` is below the block's order.
        unsafe { whole.pages.split(whole.pfn, whole.order, order) };
        (0..whole.order.pages())
            .step_by(order.pages() as usize)
            .map(|page| PageBlock::new(whole.pages, whole.pfn.up(page), order))
            .collect()
    }
}

impl Drop for PageBlock<'_> {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with, or split to, this order. This value was the only owner of the
        // block.
        unsafe { self.pages.free(self.pfn, self.order) };
    }
}

//! A block of pages as an owned value: the safe way to have pages.

use crate::allocator::PageAllocator;
use crate::pfn::{Order, Pfn};

/// An allocated block that frees itself.
#[derive(Debug)]
#[must_use = "a block that is dropped is freed"]
pub struct PageBlock<'p> {
    pages: &'p PageAllocator,
    pfn: Pfn,
    order: Order,
}

impl<'p> PageBlock<'p> {
    /// A block that nobody else owns, allocated with `order`.
    pub(crate) fn new(pages: &'p PageAllocator, pfn: Pfn, order: Order) -> Self {
        Self { pages, pfn, order }
    }
    /// The first page.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }
    /// The order.
    pub fn order(&self) -> Order {
        self.order
    }
    /// The node that the pages are on.
    pub fn node(&self) -> u32 {
        self.pages.node_of(self.pfn)
    }
    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        let start = self.pages.address(self.pfn).as_ptr();
        // SAFETY: the block is committed, initialised (the system's zeros or somebody's writes), and ours until it
        // is dropped; writing needs `&mut self`.
        unsafe { core::slice::from_raw_parts(start, self.order.bytes()) }
    }
    /// The contents, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.pages.address(self.pfn).as_ptr();
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(start, self.order.bytes()) }
    }
    /// Frees the block; dropping it does the same.
    pub fn free(self) {}

    /// The block's first page; the block is the caller's to free.
    pub fn into_pfn(self) -> Pfn {
        core::mem::ManuallyDrop::new(self).pfn
    }

    /// Cuts the block into blocks of `order`, lowest first, each of which is freed by itself; just this block if it
    /// is not larger.
    pub fn split(self, order: Order) -> Vec<PageBlock<'p>> {
        if order >= self.order {
            return vec![self];
        }
        let whole = core::mem::ManuallyDrop::new(self);
        // SAFETY: the block is ours, and `order` is below its own.
        unsafe { whole.pages.split(whole.pfn, whole.order, order) };
        (0..whole.order.pages())
            .step_by(order.pages() as usize)
            .map(|page| PageBlock::new(whole.pages, whole.pfn.up(page), order))
            .collect()
    }
}

impl Drop for PageBlock<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated with this order (or split to it), owned by this value, which ends here.
        unsafe { self.pages.free(self.pfn, self.order) };
    }
}

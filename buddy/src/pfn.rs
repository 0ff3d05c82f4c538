//! Page frame numbers and block orders, as distinct integer types.

use crate::{MAX_ORDER, PAGE_SHIFT};

/// A page frame number: the index of a page in the allocator's range, from 0.
///
/// The allocator's range starts at an address that is aligned to the largest block size. Both the first `Pfn` and the
/// address of a block are multiples of the block's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Pfn(u32);

impl Pfn {
    /// Creates a page frame number from an integer. `Pfn::new` does not check that the page exists. The allocator
    /// rejects page numbers outside its range.
    pub const fn new(n: u32) -> Self {
        Self(n)
    }
    /// Returns the page frame number as an integer.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
    /// Returns the page number plus `pages`.
    #[inline(always)]
    pub(crate) const fn up(self, pages: u32) -> Self {
        Self(self.0 + pages)
    }
    /// Returns the first page of the buddy, for a block of `order` at this page. The block and its buddy are the two
    /// halves of a block of the next order.
    #[inline(always)]
    pub(crate) const fn buddy(self, order: Order) -> Self {
        Self(self.0 ^ order.pages())
    }
    /// Returns the first page of the aligned block of `order` that contains this page.
    #[inline(always)]
    pub(crate) const fn align_down(self, order: Order) -> Self {
        Self(self.0 & !(order.pages() - 1))
    }
    /// Returns `true` if this page number is a multiple of the size of a block of `order`.
    pub(crate) const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }
}

impl core::fmt::Display for Pfn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// The order of a block of `2^order` pages, from 0 to [`MAX_ORDER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Order(u8);

impl Order {
    /// Order 0: a single page.
    pub const ZERO: Self = Self(0);
    /// The largest order: a block of 1,024 pages, or 4 MiB.
    pub const MAX: Self = Self(MAX_ORDER);

    /// Creates an order from an integer. Returns `None` if `order` exceeds [`MAX_ORDER`].
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }
    /// Returns the smallest order whose block holds `bytes` bytes; order 0 for 0 bytes. Returns `None` if the largest
    /// block is too small.
    pub const fn for_bytes(bytes: usize) -> Option<Self> {
        if bytes > (1 << PAGE_SHIFT) << MAX_ORDER {
            return None;
        }
        let pages = bytes.div_ceil(1 << PAGE_SHIFT);
        Some(Self(if pages <= 1 { 0 } else { (usize::BITS - (pages - 1).leading_zeros()) as u8 }))
    }
    /// Returns the order as an integer.
    #[inline(always)]
    pub const fn get(self) -> u8 {
        self.0
    }
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
    /// Returns the number of pages in a block of this order.
    #[inline(always)]
    pub const fn pages(self) -> u32 {
        1 << self.0
    }
    /// Returns the size of a block of this order in bytes.
    #[inline(always)]
    pub const fn bytes(self) -> usize {
        1 << (self.0 as u32 + PAGE_SHIFT)
    }
    /// Returns the order above this order, which must not exceed [`MAX_ORDER`].
    #[inline(always)]
    pub(crate) const fn up(self) -> Self {
        debug_assert!(self.0 < MAX_ORDER);
        Self(self.0 + 1)
    }
    /// Returns the order below this order. The order must be above 0.
    #[inline(always)]
    pub(crate) const fn next_lower(self) -> Self {
        debug_assert!(self.0 > 0);
        Self(self.0 - 1)
    }
    pub(crate) fn through(self, last: Self) -> impl DoubleEndedIterator<Item = Self> {
        (self.0..=last.0).map(Self)
    }
    /// Returns the largest order, up to `most`, of an aligned block that starts at `pfn` and has at most `pages` pages.
    /// The number `pages` must not be 0.
    pub(crate) fn largest_order_at(pfn: Pfn, pages: u32, most: Self) -> Self {
        debug_assert!(pages > 0);
        let aligned = pfn.get().trailing_zeros() as u8;
        Self(most.0.min(aligned).min(pages.ilog2() as u8))
    }
}

impl core::fmt::Display for Order {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn size_gets_the_smallest_page_order_that_holds_it() {
        let order = |bytes| Order::for_bytes(bytes).map(Order::get);
        assert_eq!([0, 1, 4096, 4097, 8192, 8193].map(order), [0, 0, 0, 1, 1, 2].map(Some));
        assert_eq!((order(4 << 20), order((4 << 20) + 1), order(usize::MAX)), (Some(10), None, None));
        assert_eq!((Order::new(10).is_some(), Order::new(11)), (true, None));
        for order in Order::ZERO.through(Order::MAX) {
            assert_eq!(Order::for_bytes(order.bytes()), Some(order));
        }
    }

    #[test]
    fn both_buddies_of_a_pair_have_the_same_parent_block() {
        let order = Order(3);
        let (low, high) = (Pfn(16), Pfn(24));
        assert_eq!((low.buddy(order), high.buddy(order)), (high, low));
        assert_eq!((low.align_down(order.up()), high.align_down(order.up())), (low, low));
    }

    #[test]
    fn run_of_pages_is_split_into_largest_aligned_blocks() {
        let (mut at, end, mut cut) = (Pfn(1024), 1024 + 700, Vec::new());
        while at.get() < end {
            let order = Order::largest_order_at(at, end - at.get(), Order::MAX);
            cut.push(order.pages());
            at = at.up(order.pages());
        }
        assert_eq!(cut, [512, 128, 32, 16, 8, 4]);
    }
}

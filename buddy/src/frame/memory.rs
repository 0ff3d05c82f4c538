//! The memory in which a frame table is stored.

use super::Frame;
use crate::PAGE_SIZE;
use crate::region::{Region, Reservation, Uncommitted};
use core::ops::Range;
use core::ptr::NonNull;

/// The memory in which a frame table is stored. Frames read as zero until they are committed.
#[derive(Debug)]
pub(super) struct Memory(Region);

fn bytes(pages: Range<u32>) -> Range<usize> {
    pages.start as usize * size_of::<Frame>()..pages.end as usize * size_of::<Frame>()
}

impl Memory {
    pub(super) fn new(len: u32, apart: Option<usize>, addresses: &mut Reservation) -> Option<Self> {
        let (bytes, access) = (bytes(0..len).end, Uncommitted::ReadsZero);
        Some(Self(match apart {
            None => addresses.reserve(bytes, access)?,
            Some(apart) => Region::reserve_apart(bytes, apart, access, &addresses.faults)?,
        }))
    }
    pub(super) fn first(&self) -> NonNull<Frame> {
        self.0.base().cast()
    }
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
    pub(super) fn commit(&self, pages: Range<u32>) -> bool {
        let bytes = bytes(pages);
        self.0.commit(bytes.start / PAGE_SIZE * PAGE_SIZE..bytes.end.next_multiple_of(PAGE_SIZE))
    }
    /// # Safety
    /// All frames of `pages` must be [`Kind::Inside`](super::Kind::Inside), and no thread may access any other field of
    /// these frames.
    pub(super) unsafe fn discard(&self, pages: Range<u32>) {
        let bytes = bytes(pages);
        let whole = bytes.start.next_multiple_of(PAGE_SIZE)..bytes.end / PAGE_SIZE * PAGE_SIZE;
        // SAFETY: the frames become zero, which is `Inside`, their kind before the call.
        unsafe { self.0.discard(whole) };
    }
    pub(super) fn grow(&self, len: u32) -> bool {
        let bytes = bytes(0..len).end;
        self.0.grow(bytes.next_multiple_of(1 << 20)) || self.0.grow(bytes)
    }
    /// # Safety
    /// Frames whose index is `len` or higher must never have been committed, and no thread may read them during the
    /// call.
    pub(super) unsafe fn cut(&self, len: u32) {
        // SAFETY: no thread uses the part from `len` on, by this function's contract.
        unsafe { self.0.cut(bytes(0..len).end) };
    }
}

/// Under loom and shuttle, checks that a page has one owner at a time. In normal builds, the type is empty.
#[derive(Debug)]
pub(super) struct PageLife;

impl PageLife {
    #[inline(always)]
    pub(super) fn touch(&self) {}
    #[inline(always)]
    pub(super) fn set(&self, _out: bool) {}
    pub(super) fn discard(&self) {}
}

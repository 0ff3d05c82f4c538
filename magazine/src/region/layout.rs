//! The layout of a region in memory.

use super::*;
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};
use core::ptr::NonNull;

/// Number of classes of a table. Class number 0 is unused.
pub(crate) const CLASSES: u32 = 512;

/// Granularity of decommits of a region, in bytes: a page.
pub(crate) const PAGE: usize = 4096;

/// Size of each word between a class's start and the null word, in bytes. `WORD` is independent of an
/// object's size.
const WORD: usize = size_of::<u64>();
pub(crate) const SEEN_OFFSET: usize = 2 * WORD;
pub(crate) const CAP: usize = WORD;
pub(crate) const LIMIT: usize = CAP - size_of::<u32>();
pub(crate) const NULL: usize = WORD;
// Regression: with objects of 4 bytes, heads overlapped the null word, and `seen` overlapped `cap`.
const _: () = assert!(SEEN_OFFSET - CAP == WORD && LIMIT == size_of::<u32>() && NULL == WORD);

/// The fixed part at the start of a region. Zeroed memory is a valid header of an unused region.
#[repr(C, align(128))]
pub(crate) struct Header {
    /// 1 while an operation of the claimed mechanism runs, else 0.
    pub(crate) claim: AtomicU32,
    /// Number of writable bytes from the start of the region. The committed size only grows.
    pub(crate) committed: AtomicU64,
    backed: UnsafeCell<Pages>,
    unwritable_pages: UnsafeCell<Pages>,
}

/// After the header come two words for each class: the taken objects, and the served operations. The `taken`
/// and `served` words are not fields, because checkers of references (such as Miri) visit each field.
const TAKEN_WORDS: usize = size_of::<Header>();
const SERVED_WORDS: usize = TAKEN_WORDS + CLASSES as usize * size_of::<u64>();
/// Byte offset of the first stack.
pub(crate) const STACKS: usize = SERVED_WORDS + CLASSES as usize * size_of::<u64>();

/// A reference to a region in memory.
#[derive(Clone, Copy)]
pub(crate) struct Region<'t> {
    header: &'t Header,
    base: NonNull<u8>,
}

impl<'t> Region<'t> {
    /// # Safety
    /// `base` must be the start of a region that lives for `'t`, is readable as a whole, and was zero at first.
    #[inline(always)]
    pub(crate) unsafe fn at(base: NonNull<u8>) -> Self {
        // SAFETY: `base` is a live region, by contract. Zeroed memory is a valid header, and no exclusive reference to
        // the header exists.
        Self { header: unsafe { base.cast().as_ref() }, base }
    }
    /// Returns the value at byte offset `at` of the region.
    ///
    /// # Safety
    /// The offset must be within the region and aligned, and every access of the value must have type `T`.
    #[inline(always)]
    unsafe fn part<T>(&self, at: usize) -> &'t T {
        // SAFETY: the offset is valid for a `T`, by contract. Zeroed memory is a valid value of each type in use.
        unsafe { self.base.add(at).cast().as_ref() }
    }
    #[inline(always)]
    pub(super) fn head_word(&self, class: Class) -> &'t AtomicU64 {
        // SAFETY: the table placed a stack, which begins with these words, at this cache-line-aligned offset.
        unsafe { self.part(class.stack as usize) }
    }
    #[inline(always)]
    pub(super) fn cap_cell(&self, class: Class) -> &'t UnsafeCell<u32> {
        // SAFETY: the table placed a stack, which begins with these words, at this cache-line-aligned offset.
        unsafe { self.part(class.stack as usize - CAP) }
    }
    pub(super) fn limit_word(&self, class: Class) -> &'t AtomicU32 {
        // SAFETY: the table placed a stack, which begins with these words, at this cache-line-aligned offset.
        unsafe { self.part(class.stack as usize - LIMIT) }
    }
    pub(super) fn seen_cell(&self, class: Class) -> &'t UnsafeCell<u64> {
        // SAFETY: the table placed a stack, which begins with these words, at this cache-line-aligned offset.
        unsafe { self.part(class.stack as usize - SEEN_OFFSET) }
    }
    pub(super) fn served_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: the region has a `served` word for each class in front of the first stack.
        unsafe { self.part(SERVED_WORDS + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn taken_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: the region has a `taken` word for each class in front of the first stack.
        unsafe { self.part(TAKEN_WORDS + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn backed_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.backed
    }
    pub(super) fn unwritable_pages_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.unwritable_pages
    }
    /// Returns place `i` of the stack, counted from 1. Place 0 is the null word.
    #[inline(always)]
    pub(super) fn place(&self, class: Class, i: u32) -> &'t UnsafeCell<*mut u8> {
        // SAFETY: at this offset of each region, the table has reserved space for this many places of the
        // class.
        unsafe { self.part(class.stack as usize + NULL + i as usize * ROUND) }
    }
    #[inline(always)]
    pub(crate) fn claim(&self) -> &'t AtomicU32 {
        &self.header.claim
    }
    /// Number of writable bytes from the region's start.
    #[inline(always)]
    pub(crate) fn committed(&self) -> usize {
        // Acquire: pairs with the Release in `set_committed`.
        self.header.committed.load(Acquire) as usize
    }
    /// Publishes that the first `bytes` bytes are committed. The caller must hold the table's lock.
    pub(crate) fn set_committed(&self, bytes: usize) {
        // Release: pairs with the Acquire in `committed`.
        self.header.committed.store(bytes as u64, Release);
    }

    /// For checkers: records a writer of a class.
    #[inline(always)]
    pub(super) fn is_written(&self, _: Class) {}
    /// For checkers: asserts that the region is committed up to `_end`.
    #[inline(always)]
    pub(super) fn writable(&self, _end: usize) {}
}

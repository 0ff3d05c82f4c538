//! The layout of a region in memory.

use super::*;
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};
use core::ptr::NonNull;

/// Number of classes of a table; number 0 is unused.
pub(crate) const CLASSES: u32 = 512;

/// Granularity of returning a region's memory, in bytes: a page.
pub(crate) const PAGE: usize = 4096;

/// Size of each word in front of a stack's head, and from there to the null word, in bytes. It does not
/// depend on a round's size.
const WORD: usize = size_of::<u64>();
pub(crate) const SEEN: usize = 2 * WORD;
pub(crate) const CAP: usize = WORD;
pub(crate) const LIMIT: usize = CAP - size_of::<u32>();
pub(crate) const NULL: usize = WORD;
// With rounds of 4 bytes, heads once overlapped the null word, and `seen` overlapped `cap`.
const _: () = assert!(SEEN - CAP == WORD && LIMIT == size_of::<u32>() && NULL == WORD);

/// The fixed part of a region. Zeroed memory is a valid header, of an unused region.
#[repr(C, align(128))]
pub(crate) struct Header {
    /// 0, or 1 while an operation of the claimed mechanism runs.
    pub(crate) claim: AtomicU32,
    /// Bytes from the start of the region that are writable. Only grows.
    pub(crate) committed: AtomicU64,
    backed: UnsafeCell<Pages>,
    going: UnsafeCell<Pages>,
}

/// Behind the header are a word for each class of the taken rounds, and one of the served operations. (They
/// are no fields, because reference checkers visit each field.)
const TAKEN_WORDS: usize = size_of::<Header>();
const SERVED_WORDS: usize = TAKEN_WORDS + CLASSES as usize * size_of::<u64>();
/// Offset of the first stack.
pub(crate) const STACKS: usize = SERVED_WORDS + CLASSES as usize * size_of::<u64>();

/// A reference to a region in memory.
#[derive(Clone, Copy)]
pub(crate) struct Region<'t> {
    header: &'t Header,
    base: NonNull<u8>,
}

impl<'t> Region<'t> {
    /// # Safety
    /// `base` is the start of a region that lives for `'t`, is readable as a whole, and was zero at first.
    #[inline(always)]
    pub(crate) unsafe fn at(base: NonNull<u8>) -> Self {
        // SAFETY: `base` is a live region, by contract; zeroed memory is a valid header, and no exclusive
        // reference to it exists.
        Self { header: unsafe { base.cast().as_ref() }, base }
    }
    /// The value at this number of bytes from the start.
    ///
    /// # Safety
    /// It is within the region, aligned, and has this type in every access.
    #[inline(always)]
    unsafe fn part<T>(&self, at: usize) -> &'t T {
        // SAFETY: the offset is valid for a `T`, by contract; zeroed memory is a valid value of each type in
        // use.
        unsafe { self.base.add(at).cast().as_ref() }
    }
    #[inline(always)]
    pub(super) fn head_word(&self, class: Class) -> &'t AtomicU64 {
        // SAFETY: the table gave this offset, a multiple of a line, to a stack, which begins with these words.
        unsafe { self.part(class.stack as usize) }
    }
    #[inline(always)]
    pub(super) fn cap_cell(&self, class: Class) -> &'t UnsafeCell<u32> {
        // SAFETY: the table gave this offset, a multiple of a line, to a stack, which begins with these words.
        unsafe { self.part(class.stack as usize - CAP) }
    }
    pub(super) fn limit_word(&self, class: Class) -> &'t AtomicU32 {
        // SAFETY: the table gave this offset, a multiple of a line, to a stack, which begins with these words.
        unsafe { self.part(class.stack as usize - LIMIT) }
    }
    pub(super) fn seen_cell(&self, class: Class) -> &'t UnsafeCell<u64> {
        // SAFETY: the table gave this offset, a multiple of a line, to a stack, which begins with these words.
        unsafe { self.part(class.stack as usize - SEEN) }
    }
    pub(super) fn served_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: there is such a word for each class in front of the first stack.
        unsafe { self.part(SERVED_WORDS + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn taken_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: there is such a word for each class in front of the first stack.
        unsafe { self.part(TAKEN_WORDS + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn backed_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.backed
    }
    pub(super) fn going_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.going
    }
    /// Place `i` of the stack, counted from 1; 0 is the null word.
    #[inline(always)]
    pub(super) fn place(&self, class: Class, i: u32) -> &'t UnsafeCell<*mut u8> {
        // SAFETY: the table gave the class room for this many places at this offset of each region.
        unsafe { self.part(class.stack as usize + NULL + i as usize * ROUND) }
    }
    #[inline(always)]
    pub(crate) fn claim(&self) -> &'t AtomicU32 {
        &self.header.claim
    }
    /// Writable bytes from the region's start.
    #[inline(always)]
    pub(crate) fn committed(&self) -> usize {
        // Acquire: pairs with the Release in `set_committed`.
        self.header.committed.load(Acquire) as usize
    }
    /// Publishes that the first `bytes` bytes are committed. The caller holds the table's lock.
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

//! Where the parts of a region are in its memory.

use super::*;
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};
use core::ptr::NonNull;

/// Classes that a table has numbers for; number 0 is no class.
pub(crate) const CLASSES: u32 = 512;

/// What of a region's memory is returned at once: a page.
pub(crate) const PAGE: usize = 4096;

/// What a stack has in front of its head, and from there to the null word: so many bytes each, whatever a round has.
const WORD: usize = size_of::<u64>();
pub(crate) const SEEN: usize = 2 * WORD;
pub(crate) const CAP: usize = WORD;
pub(crate) const LIMIT: usize = CAP - size_of::<u32>();
pub(crate) const NULL: usize = WORD;
// Where a round has 4 bytes, heads once reached into the null word, and what was seen into the cap.
const _: () = assert!(SEEN - CAP == WORD && LIMIT == size_of::<u32>() && NULL == WORD);

/// The fixed part. Zeroed memory is a valid one, of a region that was never used.
#[repr(C, align(128))]
pub(crate) struct Header {
    /// 0, or 1 while an operation of the claimed mechanism runs.
    pub(crate) claim: AtomicU32,
    /// Bytes from the start of the region that may be written to. Only grows.
    pub(crate) committed: AtomicU64,
    backed: UnsafeCell<Pages>,
    going: UnsafeCell<Pages>,
}

/// Behind it a word for each class of what was taken, and of what was served. (Not part of it: who checks references visits each
/// field.)
const TAKEN_WORDS: usize = size_of::<Header>();
const SERVED_WORDS: usize = TAKEN_WORDS + CLASSES as usize * size_of::<u64>();
/// Where the first stack may lie.
pub(crate) const STACKS: usize = SERVED_WORDS + CLASSES as usize * size_of::<u64>();

/// A region, looked at.
#[derive(Clone, Copy)]
pub(crate) struct Region<'t> {
    header: &'t Header,
    base: NonNull<u8>,
}

impl<'t> Region<'t> {
    /// # Safety
    /// `base` is the start of a region that stays for `'t`: readable as a whole, zero at first.
    #[inline(always)]
    pub(crate) unsafe fn at(base: NonNull<u8>) -> Self {
        // SAFETY: by contract; zeroed memory is a valid header, and nobody makes an exclusive reference to it.
        Self { header: unsafe { base.cast().as_ref() }, base }
    }
    /// What lies so many bytes from the start.
    ///
    /// # Safety
    /// Within the region, aligned, and of that type on every look.
    #[inline(always)]
    unsafe fn part<T>(&self, at: usize) -> &'t T {
        // SAFETY: by contract; zeroed memory is one of each type that is asked for.
        unsafe { self.base.add(at).cast().as_ref() }
    }
    #[inline(always)]
    pub(super) fn head_word(&self, class: Class) -> &'t AtomicU64 {
        // SAFETY: each stack begins with these three words, at offsets that the table gave out, a multiple of a line.
        unsafe { self.part(class.stack as usize) }
    }
    #[inline(always)]
    pub(super) fn cap_cell(&self, class: Class) -> &'t UnsafeCell<u32> {
        // SAFETY: as above.
        unsafe { self.part(class.stack as usize - CAP) }
    }
    pub(super) fn limit_word(&self, class: Class) -> &'t AtomicU32 {
        // SAFETY: as above.
        unsafe { self.part(class.stack as usize - LIMIT) }
    }
    pub(super) fn seen_cell(&self, class: Class) -> &'t UnsafeCell<u64> {
        // SAFETY: as above.
        unsafe { self.part(class.stack as usize - SEEN) }
    }
    pub(super) fn served_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: in front of the first stack there is such a word for each class.
        unsafe { self.part(SERVED_WORDS + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn taken_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: as above.
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
        // SAFETY: the table gave the class room for so many places at this offset of each region.
        unsafe { self.part(class.stack as usize + NULL + i as usize * ROUND) }
    }
    #[inline(always)]
    pub(crate) fn claim(&self) -> &'t AtomicU32 {
        &self.header.claim
    }
    /// Bytes from its start that may be written to.
    #[inline(always)]
    pub(crate) fn committed(&self) -> usize {
        // Acquire: pairs with the Release in `set_committed`.
        self.header.committed.load(Acquire) as usize
    }
    /// For whoever just committed so many bytes, under the table's lock.
    pub(crate) fn set_committed(&self, bytes: usize) {
        // Release: pairs with the Acquire in `committed`.
        self.header.committed.store(bytes as u64, Release);
    }

    /// For checkers, which watch who writes to a class.
    #[inline(always)]
    pub(super) fn is_written(&self, _: Class) {}
    /// For checkers: what is not committed is not written to, up to this end.
    #[inline(always)]
    pub(super) fn writable(&self, _end: usize) {}
}

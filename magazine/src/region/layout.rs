//! The memory layout of a region.

use super::*;
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};
use core::ptr::NonNull;

/// Maximum number of classes in a table. Class number 0 is unused.
pub(crate) const CLASSES: u32 = 512;

/// Size in bytes of a page, the unit in which a region is decommitted.
pub(crate) const PAGE: usize = 4096;

/// Size in bytes of each control word in front of a stack. The size of a control word does not depend on the size of an
/// object.
const WORD: usize = size_of::<u64>();
pub(crate) const SEEN_OFFSET: usize = 2 * WORD;
pub(crate) const CAP: usize = WORD;
pub(crate) const LIMIT: usize = CAP - size_of::<u32>();
pub(crate) const NULL: usize = WORD;
// Regression: with objects of 4 bytes, heads overlapped the null word, and `seen` overlapped `cap`.
const _: () = assert!(SEEN_OFFSET - CAP == WORD && LIMIT == size_of::<u32>() && NULL == WORD);

/// The header at the start of a region. In an unused region, the header contains only zeros.
#[repr(C, align(128))]
pub(crate) struct Header {
    /// Is 1 while an operation has claimed the region, and 0 otherwise.
    pub(crate) claim: AtomicU32,
    /// Number of committed bytes at the start of the region. The number of committed bytes never decreases.
    pub(crate) committed: AtomicU64,
    backed: UnsafeCell<Pages>,
    unwritable_pages: UnsafeCell<Pages>,
}

/// After the header, a region has two words for each class: the number of taken objects, and the number of served
/// operations. The per-class words are not fields of `Header`, because Miri would visit each of them for every
/// reference to the header.
const TAKEN_WORDS_OFFSET: usize = size_of::<Header>();
const SERVED_WORDS_OFFSET: usize = TAKEN_WORDS_OFFSET + CLASSES as usize * size_of::<u64>();
/// Byte offset in a region of the first stack.
pub(crate) const STACKS: usize = SERVED_WORDS_OFFSET + CLASSES as usize * size_of::<u64>();

/// A reference to the region of one CPU, or to the empty region.
#[derive(Clone, Copy)]
pub(crate) struct Region<'t> {
    header: &'t Header,
    base: NonNull<u8>,
}

impl<'t> Region<'t> {
    /// # Safety
    /// A region that is readable as a whole must start at `base` and stay alive for `'t`. The region's memory must have
    /// been zero initially.
    #[inline(always)]
    pub(crate) unsafe fn at(base: NonNull<u8>) -> Self {
        // SAFETY: `base` is a live region, by contract. Zeroed memory is a valid header, and no exclusive reference to
        // the header exists.
        Self { header: unsafe { base.cast().as_ref() }, base }
    }
    /// Returns a reference to the value at byte offset `at` in the region.
    ///
    /// # Safety
    /// The offset must be inside the region and aligned, and all accesses to the value must use the type `T`.
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
        unsafe { self.part(SERVED_WORDS_OFFSET + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn taken_word(&self, class: Class) -> &'t AtomicU64 {
        debug_assert!(class.index < CLASSES);
        // SAFETY: the region has a `taken` word for each class in front of the first stack.
        unsafe { self.part(TAKEN_WORDS_OFFSET + class.index as usize * size_of::<u64>()) }
    }
    pub(super) fn backed_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.backed
    }
    pub(super) fn unwritable_pages_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.header.unwritable_pages
    }
    /// Returns a pointer to the `i`-th entry of the class's stack, counted from 1. Entry 0 is the null word.
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
    /// Returns the number of committed bytes at the start of the region.
    #[inline(always)]
    pub(crate) fn committed(&self) -> usize {
        // Acquire: pairs with the Release in `set_committed`.
        self.header.committed.load(Acquire) as usize
    }
    /// Publishes that the first `bytes` bytes of the region are committed. The caller must hold the table's lock
    /// `making`.
    pub(crate) fn set_committed(&self, bytes: usize) {
        // Release: pairs with the Acquire in `committed`.
        self.header.committed.store(bytes as u64, Release);
    }

    /// Under loom and shuttle, records a write to the class's stack; otherwise does nothing.
    #[inline(always)]
    pub(super) fn is_written(&self, _: Class) {}
    /// Under loom and shuttle, asserts that the first `_end` bytes of the region are committed; otherwise does nothing.
    #[inline(always)]
    pub(super) fn writable(&self, _end: usize) {}
}

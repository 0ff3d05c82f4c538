//! Inlined paths of the process-wide malloc. The tables of these paths are in statics, so the tables' addresses are
//! constants.
//!
//! Before the static paths are [opened](StaticPaths::open), no size has a stack, and no address is within the pages.
//! Every operation on closed paths therefore misses, without testing for a malloc. The paths stay closed if the pages
//! have fewer than 64 GiB of addresses, or if restartable sequences are unavailable. If the static paths are closed,
//! the slow path tries [the malloc's own paths](super::fast_paths).
//!
//! An allocation makes 6 loads: one for the stack of the size, and 5 for the pop. A free by address makes 10 loads: two
//! addresses (of the first page and of the table of page classes), the page's class and stack in one word, the class's
//! stride, and 6 for the push.

use super::classes::{CLASSES, WORDS, size_of_class, word_of};
use super::fast_paths::{FastPaths, ObjectStride};
use crate::cache::Object;
use crate::memory::page_classes::PageClass;
use core::ptr::{NonNull, null_mut};
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use uslab_magazine::{StaticPath, StaticWords};

/// The static paths serve the first `2^BITS` bytes of the pages.
const BITS: u32 = if usize::BITS > 36 { 36 } else { usize::BITS - 1 };
/// An address for the first page that puts every address out of range.
const UNREACHABLE_PAGE: usize = 1 << (usize::BITS - 1);

/// Inlined paths of the process-wide malloc, stored in statics. The [module](self) describes the paths and their cost.
#[derive(Debug)]
// The value is aligned to a page, so that an allocation and a free together access three pages of
// the tables.
#[repr(C, align(4096))]
pub(crate) struct StaticPaths {
    base: AtomicUsize,
    page_classes: AtomicPtr<PageClass>,
    /// Strides indexed by [`PageRecord::class`](crate::memory::page_classes::PageRecord::class), as in [`FastPaths`].
    strides: [AtomicU64; CLASSES + 1],
    /// Stack of each size (see [`FastPath::stack`](uslab_magazine::FastPath::stack)), indexed by the number of words
    /// minus one. 0 until the paths are opened.
    by_words: [AtomicU32; WORDS],
    words: StaticWords,
}

impl StaticPaths {
    pub(crate) const fn new() -> Self {
        Self {
            base: AtomicUsize::new(UNREACHABLE_PAGE),
            page_classes: AtomicPtr::new(null_mut()),
            strides: [const { AtomicU64::new(0) }; CLASSES + 1],
            by_words: [const { AtomicU32::new(0) }; WORDS],
            words: StaticWords::new(),
        }
    }
    /// Returns the per-CPU words that the malloc's table uses.
    pub(super) fn words(&'static self) -> &'static StaticWords {
        &self.words
    }
    /// Returns `true` if the static paths can serve the malloc that has the paths `fast_paths`.
    pub(super) fn can_serve_malloc(fast_paths: &FastPaths) -> bool {
        let (_, bytes, _) = fast_paths.pages();
        bytes >> BITS > 0 && !fast_paths.by_words.is_disabled() && !fast_paths.frees.is_disabled()
    }
    /// Opens the static paths by copying a malloc's paths, `fast_paths`.
    ///
    /// # Safety
    /// The static paths must be [able to serve](Self::can_serve_malloc) the malloc, and the malloc's table must have
    /// taken their words. The malloc must never be dropped.
    pub(super) unsafe fn open(&self, fast_paths: &FastPaths) {
        let (base, _, page_classes) = fast_paths.pages();
        // Relaxed: the Release store of `base` publishes these strides.
        for (static_word, stride) in self.strides.iter().zip(fast_paths.strides) {
            static_word.store(stride.to_bits(), Relaxed);
        }
        self.page_classes.store(page_classes.as_ptr(), Relaxed);
        // Release: `base` pairs with the Acquire in `offset`, and each stack with the Acquire in `static_path_for`. The
        // static per-CPU words were already written.
        self.base.store(base, Release);
        let mut start = 0;
        for class in 0..CLASSES {
            let (stack, end) = (fast_paths.frees.stack(class), size_of_class(class) / 8);
            self.by_words[start..end].iter().for_each(|static_word| static_word.store(stack, Release));
            start = end;
        }
    }
    pub(crate) fn are_static_paths_open(&self) -> bool {
        // Relaxed: the result is only a hint.
        self.base.load(Relaxed) != UNREACHABLE_PAGE
    }
    /// Records that only `bytes` bytes of addresses remain for the pages. If the static paths need more bytes than
    /// remain, all frees miss from now on.
    pub(super) fn trim(&self, bytes: usize) {
        if bytes >> BITS == 0 {
            // Relaxed: the store publishes no other data.
            self.base.store(UNREACHABLE_PAGE, Relaxed);
        }
    }

    /// Returns the path for allocations of this size and alignment. Returns `None` if the paths are closed, or if the
    /// size has no path.
    #[inline(always)]
    fn static_path_for(&'static self, size: usize, align: usize) -> Option<StaticPath<Object>> {
        // Acquire: pairs with the Release in `open`.
        let stack = self.by_words.get(word_of(size, align))?.load(Acquire);
        // SAFETY: `open` stored the stack, and its contract has the same conditions.
        (stack != 0).then(|| unsafe { StaticPath::new(&self.words, stack) })
    }
    /// Allocates an object for this size and alignment. On a miss, does nothing and returns `None`.
    #[inline(always)]
    pub(crate) fn alloc(&'static self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.static_path_for(size, align)?.alloc().map(Object::memory)
    }
    /// Frees memory that was allocated for this size and alignment. Does nothing and returns `false` on a miss or for
    /// null.
    ///
    /// # Safety
    /// The memory must no longer be used.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_sized(&'static self, memory: *mut u8, size: usize, align: usize) -> bool {
        match (self.static_path_for(size, align), self.offset(memory)) {
            // SAFETY: by contract, the memory is no longer used and came from this path's layer; null is in no page.
            (Some(path), Some(_)) => unsafe { path.free(Object::new(NonNull::new_unchecked(memory))) },
            _ => false,
        }
    }
    /// Frees the memory at an address, which may be null. On a miss, does nothing and returns `false`.
    ///
    /// # Safety
    /// The memory must have been allocated by this malloc, and the caller must fulfil the conditions of
    /// [`free_sized`](Self::free_sized).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free(&'static self, memory: *mut u8) -> bool {
        let Some(offset) = self.offset(memory) else { return false };
        // SAFETY: the paths are open, and each page's class has an entry. By contract, the caller owns the page's
        // memory.
        unsafe {
            // Relaxed: the address was stored before `base`, whose Acquire load in `offset` orders this load.
            let page = self.page_classes.load(Relaxed).add(offset / PAGE_SIZE);
            let page_word = (*page).get();
            // Relaxed: the stride was stored before `base`, whose Acquire load in `offset` orders this load.
            let stride = self.strides.get_unchecked(page_word.class()).load(Relaxed);
            ObjectStride::from_bits(stride).begins_object(offset)
                && StaticPath::new(&self.words, page_word.stack())
                    .free(Object::new(NonNull::new_unchecked(memory)))
        }
    }
    /// Returns the number of bytes from the first page to `memory`, or `None` beyond the bytes that the static paths
    /// serve.
    #[inline(always)]
    fn offset(&self, memory: *mut u8) -> Option<usize> {
        // Acquire: pairs with the Release in `open`.
        let offset = memory.addr().wrapping_sub(self.base.load(Acquire));
        (offset >> BITS == 0).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_CLASS;
    use super::*;

    #[test]
    fn static_paths_serve_no_operation_before_they_open() {
        static PATHS: StaticPaths = StaticPaths::new();
        let memory = (&raw const PATHS).cast_mut().cast::<u8>();
        assert!((0..=2 * MAX_CLASS).all(|size| PATHS.alloc(size, 8).is_none()));
        for memory in [memory, null_mut(), null_mut::<u8>().wrapping_sub(1)] {
            // SAFETY: the paths are closed, so no memory is read.
            assert!(unsafe { !PATHS.free(memory) && !PATHS.free_sized(memory, 8, 8) });
        }
    }
}

//! The inlined paths of the process's malloc: their tables are statics, so the addresses of the tables are
//! constants.
//!
//! Before they are [opened](StaticPaths::open), no size has a stack and no address is within the pages. So
//! everything misses, without a test for a malloc. They stay closed if the pages have fewer than 64 GiB of
//! addresses, or restartable sequences do not serve the process. The slow path then tries [the malloc's
//! own](super::fast_paths).
//!
//! An allocation makes 6 loads: the stack of the size, and 5 for the pop. A free by address makes 10: the
//! addresses of the first page and of the table of page classes, the page's class and stack in one word, the
//! class's stride, and 6 for the push.

use super::classes::{CLASSES, WORDS, size_of_class, word_of};
use super::fast_paths::{FastPaths, Stride};
use crate::cache::Object;
use crate::memory::page_classes::PageClass;
use core::ptr::{NonNull, null_mut};
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use uslab_magazine::{StaticPath, StaticWords};

/// The paths serve the first `2^BITS` bytes of the pages.
const BITS: u32 = if usize::BITS > 36 { 36 } else { usize::BITS - 1 };
/// An address of the first page that puts every address out of range.
const NOWHERE: usize = 1 << (usize::BITS - 1);

/// See the [module](self).
#[derive(Debug)]
// Aligned so that an allocation and a free read three pages of it.
#[repr(C, align(4096))]
pub(crate) struct StaticPaths {
    base: AtomicUsize,
    page_classes: AtomicPtr<PageClass>,
    /// Indexed by [`Known::class`](crate::memory::page_classes::Known::class), as in [`FastPaths`].
    strides: [AtomicU64; CLASSES + 1],
    /// The stack of each size, as [`FastPath::stack`](uslab_magazine::FastPath::stack); 0 before they are
    /// opened. By number of words, less one.
    by_words: [AtomicU32; WORDS],
    words: StaticWords,
}

impl StaticPaths {
    /// Creates closed paths.
    pub(crate) const fn new() -> Self {
        Self {
            base: AtomicUsize::new(NOWHERE),
            page_classes: AtomicPtr::new(null_mut()),
            strides: [const { AtomicU64::new(0) }; CLASSES + 1],
            by_words: [const { AtomicU32::new(0) }; WORDS],
            words: StaticWords::new(),
        }
    }
    /// The words that the malloc's table takes.
    pub(super) fn words(&'static self) -> &'static StaticWords {
        &self.words
    }
    /// Returns `true` if they can be opened to a malloc with these paths.
    pub(super) fn serve(of: &FastPaths) -> bool {
        let (_, bytes, _) = of.pages();
        bytes >> BITS > 0 && !of.by_words.is_disabled() && !of.frees.is_disabled()
    }
    /// Opens them, as a copy of a malloc's paths.
    ///
    /// # Safety
    /// They [serve](Self::serve) it, and its table has taken their words. It lives for ever.
    pub(super) unsafe fn open(&self, of: &FastPaths) {
        let (base, _, page_classes) = of.pages();
        // Relaxed: the Release of the base below publishes these.
        for (here, stride) in self.strides.iter().zip(of.strides) {
            here.store(stride.to_bits(), Relaxed);
        }
        self.page_classes.store(page_classes.as_ptr(), Relaxed);
        // Release: the base pairs with the Acquire in `offset`, and each stack with the Acquire in `path_for`.
        // The static words were written before.
        self.base.store(base, Release);
        let mut start = 0;
        for class in 0..CLASSES {
            let (stack, end) = (of.frees.stack(class), size_of_class(class) / 8);
            self.by_words[start..end].iter().for_each(|here| here.store(stack, Release));
            start = end;
        }
    }
    pub(crate) fn are_open(&self) -> bool {
        // Relaxed: a hint.
        self.base.load(Relaxed) != NOWHERE
    }
    /// Notes that the pages have `bytes` bytes of addresses left. If that is too few, frees miss from now on.
    pub(super) fn cut(&self, bytes: usize) {
        if bytes >> BITS == 0 {
            // Relaxed: it publishes nothing.
            self.base.store(NOWHERE, Relaxed);
        }
    }

    /// The path of a size at an alignment; `None` if there is none.
    #[inline(always)]
    fn path_for(&'static self, size: usize, align: usize) -> Option<StaticPath<Object>> {
        // Acquire: pairs with the Release in `open`.
        let stack = self.by_words.get(word_of(size, align))?.load(Acquire);
        // SAFETY: `open` stored it, whose contract has the same conditions.
        (stack != 0).then(|| unsafe { StaticPath::new(&self.words, stack) })
    }
    /// Allocates an object for a size at an alignment; `None` if this did nothing.
    #[inline(always)]
    pub(crate) fn alloc(&'static self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.path_for(size, align)?.alloc().map(Object::memory)
    }
    /// Frees memory that was allocated for this size and alignment; `false` if this did nothing, as for null.
    ///
    /// # Safety
    /// The memory is not used any more.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_sized(&'static self, memory: *mut u8, size: usize, align: usize) -> bool {
        match (self.path_for(size, align), self.offset(memory)) {
            // SAFETY: by contract the memory is not used any more and came from this path's layer; null is in
            // no page.
            (Some(path), Some(_)) => unsafe { path.free(Object::new(NonNull::new_unchecked(memory))) },
            _ => false,
        }
    }
    /// Frees memory by the address alone, which may be null; `false` if this did nothing.
    ///
    /// # Safety
    /// It came from this malloc; otherwise as [`free_sized`](Self::free_sized).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free(&'static self, memory: *mut u8) -> bool {
        let Some(offset) = self.offset(memory) else { return false };
        // SAFETY: the paths are open. Each page has a class, with an entry here; by contract its memory is the
        // caller's.
        unsafe {
            // Relaxed: stored before the base, whose Acquire in `offset` ordered it.
            let page = self.page_classes.load(Relaxed).add(offset / PAGE_SIZE);
            let known = (*page).get();
            // Relaxed: stored before the base, whose Acquire in `offset` ordered it.
            let stride = self.strides.get_unchecked(known.class()).load(Relaxed);
            Stride::from_bits(stride).begins_object(offset)
                && StaticPath::new(&self.words, known.stack())
                    .free(Object::new(NonNull::new_unchecked(memory)))
        }
    }
    /// Bytes from the first page to `memory`, if these paths serve it.
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
    fn static_paths_miss_before_they_open() {
        static PATHS: StaticPaths = StaticPaths::new();
        let memory = (&raw const PATHS).cast_mut().cast::<u8>();
        assert!((0..=2 * MAX_CLASS).all(|size| PATHS.alloc(size, 8).is_none()));
        for memory in [memory, null_mut(), null_mut::<u8>().wrapping_sub(1)] {
            // SAFETY: the paths are closed, so nothing is read.
            assert!(unsafe { !PATHS.free(memory) && !PATHS.free_sized(memory, 8, 8) });
        }
    }
}

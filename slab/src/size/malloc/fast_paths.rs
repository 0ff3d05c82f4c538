//! Data of a malloc's inlined paths: by size, and by address. Allocations and frees write none of it.
//!
//! The cost of these paths is their loads and stores. So a size leads to its fast path in one load, by a table
//! of 16 KiB of which a program touches the lines of its sizes. The process's malloc has [the same in
//! statics](super::static_paths).

use super::classes::{BY_WORDS, CLASSES, WORDS, size_of_class, word_of};
use crate::cache::Object;
use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::debug::profile::Profiler;
use crate::memory::page_classes::PageClass;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use uslab_buddy::{PAGE_SIZE, Pfn, StackMemory};
use uslab_magazine::sync::AtomicUsize;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::{FastPath, FastPathTable};

/// Bytes of the objects of each class.
const BYTES: [u32; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = size_of_class(class) as u32;
        class += 1;
    }
    table
};

/// Recognises the objects of a class by their offsets in its slabs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stride {
    /// The bits of an offset within its slab. Slabs are at multiples of their size.
    mask: u32,
    /// Factor that recognises multiples of the stride, as
    /// [`Cache::begins_object`](crate::cache::Cache::begins_object).
    multiples: u32,
}

impl Stride {
    /// The most bytes of a slab: `offset * ceil(2^32 / stride)` modulo `2^32` recognises multiples of up to
    /// 2^15 for offsets below 2^17.
    const MOST: usize = 1 << 17;

    /// For objects `stride` bytes apart in slabs of `slab` bytes, a power of two; `None` for larger slabs,
    /// whose objects are found by their frames.
    fn new(stride: usize, slab: usize) -> Option<Self> {
        (slab <= Self::MOST)
            .then(|| Self { mask: (slab - 1) as u32, multiples: u32::MAX / stride as u32 + 1 })
    }
    /// Both fields in one word.
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.multiples) << 32 | u64::from(self.mask)
    }
    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self { mask: bits as u32, multiples: (bits >> 32) as u32 }
    }
    /// Returns `true` if an object begins `offset` bytes behind the start of the pages. Never for the default.
    #[inline(always)]
    pub(super) fn begins_object(self, offset: usize) -> bool {
        (offset as u32 & self.mask).wrapping_mul(self.multiples) < self.multiples
    }
}

/// See the [module](self).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct FastPaths {
    /// Address of the first page.
    base: usize,
    bytes: AtomicUsize,
    /// By page; see [`PageClasses`](crate::memory::page_classes::PageClasses).
    page_classes: NonNull<PageClass>,
    /// The caches' inlined paths of frees; disabled if objects are checked.
    pub(super) frees: FastPathTable<Object, StackMemory, CLASSES>,
    /// Paths of allocations while a profile counts them; disabled if every object is observed anyway.
    pub(super) counted: FastPathTable<Object, StackMemory, CLASSES>,
    profiler: NonNull<Profiler>,
    /// Indexed by what is known of a page: first nothing, then the classes.
    pub(super) strides: [Stride; CLASSES + 1],
    /// Paths of allocations, by number of words, less one.
    pub(super) by_words: FastPathTable<Object, StackMemory, WORDS>,
}

// SAFETY: it holds addresses of data that any thread may use.
unsafe impl Send for FastPaths {}
// SAFETY: it holds addresses of data that any thread may use.
unsafe impl Sync for FastPaths {}

impl FastPaths {
    /// Creates the paths of a malloc's caches in `place`: 16 KiB is too much to move. The caches outlive the
    /// paths' use.
    pub(super) fn make(place: &mut MaybeUninit<Self>, core: &Core, caches: &[KmemCache; CLASSES]) {
        let pages = &core.memory.pages;
        let mut strides = [Stride::default(); CLASSES + 1];
        for (stride, cache) in strides[1..].iter_mut().zip(caches) {
            let geometry = cache.geometry();
            let slab = geometry.order().bytes();
            // If not `plain`, the object's state decides: it may have a canary, be free, or be among red zones.
            let plain = geometry.lead() == 0 && !core.harden.is_on();
            let known = Stride::new(geometry.stride(), slab).filter(|_| plain);
            *stride = known.unwrap_or_default();
        }
        let [allocs, frees, counted] = [0, 1, 2]
            .map(|i| FastPathTable::of(caches.each_ref().map(|cache| cache.cache().fast_paths()[i])));
        let place = place.as_mut_ptr();
        // SAFETY: the place is borrowed exclusively; each field is written once, and none is read or dropped.
        // A field of `MaybeUninit` needs no value.
        unsafe {
            (&raw mut (*place).base).write(pages.address(Pfn::new(0)).addr().get());
            let bytes = pages.frames().len() as usize * PAGE_SIZE;
            (&raw mut (*place).bytes).write(AtomicUsize::new(bytes));
            (&raw mut (*place).page_classes).write(core.memory.classes.first());
            (&raw mut (*place).frees).write(frees);
            (&raw mut (*place).counted).write(counted);
            (&raw mut (*place).profiler).write((&core.profiler).into());
            (&raw mut (*place).strides).write(strides);
            let by_words = (&raw mut (*place).by_words).cast::<MaybeUninit<FastPathTable<_, _, WORDS>>>();
            allocs.spread(|class| size_of_class(class) / 8, &mut *by_words);
        }
    }
    /// Sets the bytes of the pages.
    pub(super) fn set_bytes(&self, bytes: usize) {
        // Relaxed: only a number.
        self.bytes.store(bytes, Relaxed);
    }
    /// The address of the first page, the bytes of the pages, and their classes.
    pub(super) fn pages(&self) -> (usize, usize, NonNull<PageClass>) {
        // Relaxed: only a number.
        (self.base, self.bytes.load(Relaxed), self.page_classes)
    }

    /// The fast path of allocations of a size at an alignment; `None` for size 0, and beyond
    /// [`MAX_CLASS`](super::MAX_CLASS).
    #[inline(always)]
    fn fast_path_for(&self, size: usize, align: usize) -> Option<FastPath<Object, StackMemory>> {
        let word = word_of(size, align);
        // SAFETY: `by_words` has `WORDS` entries.
        (word < WORDS).then(|| unsafe { self.by_words.fast_path(word) })
    }
    /// Allocates an object for a size at an alignment; `None` if this did nothing.
    ///
    /// # Safety
    /// The malloc lives.
    #[inline(always)]
    pub(crate) unsafe fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: by contract the malloc lives.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// As `alloc`, while a profile runs that observes only allocations. Also `None` if none runs, or for a
    /// sample.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[inline(always)]
    pub(crate) unsafe fn alloc_counted(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let word = word_of(size, align);
        // SAFETY: the malloc lives, and with it the profiler.
        let profiler = unsafe { self.profiler.as_ref() };
        if word >= WORDS || !profiler.counts_only() {
            return None;
        }
        // SAFETY: the table has `WORDS` entries.
        let fast_path = unsafe { self.by_words.fast_path_as(&self.counted, word) };
        let bytes = BYTES[usize::from(BY_WORDS[word])];
        // SAFETY: by contract the malloc lives.
        profiler
            .countdown(fast_path.cpu())
            .spend(bytes.into(), || unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// Frees memory that was allocated for this size and alignment; `false` if this did nothing, as for memory
    /// outside the pages.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc); and the memory is not used any more.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_sized(&self, memory: *mut u8, size: usize, align: usize) -> bool {
        let word = word_of(size, align);
        if word >= WORDS || self.offset(memory).is_none() {
            return false;
        }
        // SAFETY: by contract the malloc lives; the same size leads to the same layer, and null is in no
        // page.
        unsafe {
            let fast_path = self.by_words.fast_path_as(&self.frees, word);
            fast_path.free_fast(Object::new(NonNull::new_unchecked(memory)))
        }
    }
    /// Frees memory by the address alone, which may be null; `false` if this did nothing.
    ///
    /// # Safety
    /// As [`free_sized`](Self::free_sized).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free(&self, memory: *mut u8) -> bool {
        // SAFETY: by contract the memory is the caller's.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: by contract the malloc lives; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_fast(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// As [`alloc`](Self::alloc), if restartable sequences do not serve.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub(crate) unsafe fn alloc_claimed(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: by contract the malloc lives.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_claimed() })
            .map(Object::memory)
    }
    /// As [`free`](Self::free), if restartable sequences do not serve.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_claimed(&self, memory: *mut u8) -> bool {
        // SAFETY: by contract the memory is the caller's.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: by contract the malloc lives; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_claimed(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// Bytes from the first page to `memory`; `None` if it is in no page.
    #[inline(always)]
    fn offset(&self, memory: *mut u8) -> Option<usize> {
        let offset = memory.addr().wrapping_sub(self.base);
        // Relaxed: only a number.
        (offset < self.bytes.load(Relaxed)).then_some(offset)
    }
    /// Returns `true` if memory is in a page, as objects and blocks are.
    #[inline(always)]
    pub(crate) fn hold(&self, memory: NonNull<u8>) -> bool {
        self.offset(memory.as_ptr()).is_some()
    }

    /// The class of the object that begins at `memory`; `None` if no class is recorded, or no object begins
    /// there.
    ///
    /// # Safety
    /// The memory there is the caller's.
    #[inline(always)]
    pub(super) unsafe fn class_at(&self, memory: *mut u8) -> Option<usize> {
        let offset = self.offset(memory)?;
        // SAFETY: each page has a class, one of `CLASSES`; by contract its memory is the caller's.
        unsafe {
            let class = self.page_classes.add(offset / PAGE_SIZE).as_ref().get().class();
            let begins = self.strides.get_unchecked(class).begins_object(offset);
            begins.then(|| class.wrapping_sub(1))
        }
    }
    /// The fast path of the object's class.
    ///
    /// # Safety
    /// As [`class_at`](Self::class_at).
    #[inline(always)]
    unsafe fn fast_path_of(&self, memory: *mut u8) -> Option<FastPath<Object, StackMemory>> {
        // SAFETY: by contract the memory is the caller's; there is a path for each class.
        unsafe { self.class_at(memory).map(|class| self.frees.fast_path(class)) }
    }
    /// Bytes of the object.
    ///
    /// # Safety
    /// As [`class_at`](Self::class_at).
    #[inline]
    pub(super) unsafe fn size_of(&self, memory: NonNull<u8>) -> Option<usize> {
        // SAFETY: by contract the memory is the caller's.
        unsafe { self.class_at(memory.as_ptr()) }.map(size_of_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_multiples_of_the_stride_start_an_object() {
        for stride in (0..CLASSES).map(size_of_class) {
            for slab in [Stride::MOST, stride.next_power_of_two().max(PAGE_SIZE)] {
                let objects = Stride::from_bits(Stride::new(stride, slab).unwrap().to_bits());
                for offset in 0..2 * Stride::MOST {
                    assert_eq!(
                        objects.begins_object(offset),
                        (offset % slab).is_multiple_of(stride),
                        "{offset}"
                    );
                }
            }
        }
        assert!((0..Stride::MOST).all(|offset| !Stride::default().begins_object(offset)));
    }

    #[test]
    fn only_object_addresses_have_a_size() {
        use core::alloc::Layout;
        use uslab_buddy::Gfp;
        let subsystem = crate::Subsystem::new(crate::Config::default()).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        let alloc = |size| malloc.alloc(Layout::from_size_align(size, 8).unwrap(), Gfp::KERNEL).unwrap();
        // SAFETY: the test allocated the memory.
        let found = |memory: NonNull<u8>| unsafe { malloc.fast.size_of(memory) };
        for size in (0..CLASSES).map(size_of_class) {
            let memory = alloc(size);
            assert_eq!(found(memory).ok_or(()), malloc.core.size_of(memory).map_err(|_| ()));
            assert_eq!(found(memory), Some(size));
            // SAFETY: within the object.
            assert!((1..size).step_by(7).all(|inside| found(unsafe { memory.add(inside) }).is_none()));
            // SAFETY: allocated above, freed once.
            unsafe { malloc.free(memory) };
        }
        for size in [super::super::MAX_CLASS + 1, 1 << 20, (4 << 20) + 1] {
            let memory = alloc(size);
            assert_eq!(found(memory), None, "{size} bytes are no object");
            // SAFETY: allocated above, freed once.
            unsafe { malloc.free(memory) };
        }
        assert_eq!(found(crate::size::large::ZERO_SIZE), None);
    }

    /// Slabs of another order than usual begin at other multiples: an address inside an object would be taken
    /// for an object.
    #[test]
    fn interior_address_is_not_an_object_at_any_slab_order() {
        let pages = uslab_buddy::PageConfig::default_for(uslab_magazine::Cpus::os()).limit(4 << 20);
        let subsystem = crate::Subsystem::new(crate::Config::new(pages)).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        // No two free pages are adjacent; a slab of the usual order has two.
        let singles: Vec<_> = core::iter::from_fn(|| {
            subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, uslab_buddy::Gfp::KERNEL, None).ok()
        })
        .collect();
        let _every_other: Vec<_> =
            singles.into_iter().filter(|page| page.pfn().get().is_multiple_of(2)).collect();
        let layout = core::alloc::Layout::from_size_align(640, 8).unwrap();
        let held: Vec<_> =
            core::iter::from_fn(|| malloc.alloc(layout, uslab_buddy::Gfp::KERNEL).ok()).collect();
        assert!(malloc.caches().iter().any(|cache| cache.info().order_fallbacks > 0));
        for memory in held {
            // SAFETY: the test allocated the object.
            let found = |at: usize| unsafe { malloc.fast.fast_path_of(memory.as_ptr().add(at)) }.is_some();
            assert!((8..640).step_by(8).all(|at| !found(at)), "{memory:?}");
            // SAFETY: allocated above, freed once.
            unsafe { malloc.free(memory) };
        }
        subsystem.shrink();
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }
}

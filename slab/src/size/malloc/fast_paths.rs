//! Tables that malloc's inlined paths read, indexed by size for allocations and by page for frees. Allocations and
//! frees only read the tables.
//!
//! An inlined path costs as much as its loads and stores. An allocation therefore finds the fast path of its size with
//! one load from a table of 16 KiB. A program accesses only the table's cache lines for the sizes that it uses. The
//! process-wide malloc has [the same tables in statics](super::static_paths).

use super::classes::{CLASS_BY_WORDS, CLASSES, WORDS, size_of_class, word_of};
use crate::cache::Object;
use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::memory::page_classes::PageClass;
use crate::profile::Profiler;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use uslab_buddy::{PAGE_SIZE, Pfn, StackMemory};
use uslab_magazine::sync::AtomicUsize;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::{FastPath, FastPathTable};

/// Size in bytes of the objects of each class.
const CLASS_BYTES: [u32; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = size_of_class(class) as u32;
        class += 1;
    }
    table
};

/// Recognises the objects of a class by their offset in the class's slabs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectStride {
    /// Mask that gives an address's offset within its slab, because slabs are at multiples of their size.
    mask: u32,
    /// Factor that recognises multiples of the stride, as [`Cache::begins_object`](crate::cache::Cache::begins_object)
    /// does.
    multiples: u32,
}

impl ObjectStride {
    /// Maximum size in bytes of a slab in which a [`ObjectStride`] recognises objects. For offsets below 2^17, `offset
    /// * ceil(2^32 / stride)` modulo `2^32` recognises the multiples of strides up to 2^15.
    const MAX_SLAB_BYTES: usize = 1 << 17;

    /// Makes a stride for objects `stride` bytes apart, in slabs of `slab` bytes; `slab` must be a power of two.
    /// Returns `None` for larger slabs, whose objects are found through their frames.
    fn new(stride: usize, slab: usize) -> Option<Self> {
        (slab <= Self::MAX_SLAB_BYTES)
            .then(|| Self { mask: (slab - 1) as u32, multiples: u32::MAX / stride as u32 + 1 })
    }
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.multiples) << 32 | u64::from(self.mask)
    }
    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self { mask: bits as u32, multiples: (bits >> 32) as u32 }
    }
    /// Returns `true` if an object begins `offset` bytes after the start of the first page. The default stride always
    /// returns `false`.
    #[inline(always)]
    pub(super) fn begins_object(self, offset: usize) -> bool {
        (offset as u32 & self.mask).wrapping_mul(self.multiples) < self.multiples
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct FastPaths {
    /// Address of the first page.
    base: usize,
    bytes: AtomicUsize,
    /// The class of each page (see [`PageClasses`](crate::memory::page_classes::PageClasses)).
    page_classes: NonNull<PageClass>,
    /// The caches' inlined free paths. A path is disabled if its cache checks objects.
    pub(super) frees: FastPathTable<Object, StackMemory, CLASSES>,
    /// Allocation paths for profiles that only count allocations. The counting paths are disabled if every object is
    /// observed anyway.
    pub(super) counted: FastPathTable<Object, StackMemory, CLASSES>,
    profiler: NonNull<Profiler>,
    /// Strides by page class. The first stride is for pages whose class is unknown.
    pub(super) strides: [ObjectStride; CLASSES + 1],
    /// Allocation paths, indexed by the number of words of the size minus one.
    pub(super) by_words: FastPathTable<Object, StackMemory, WORDS>,
}

// SAFETY: any thread may use the data at the addresses in a `FastPaths`.
unsafe impl Send for FastPaths {}
// SAFETY: any thread may use the data at the addresses in a `FastPaths`.
unsafe impl Sync for FastPaths {}

impl FastPaths {
    /// Creates the paths of a malloc's caches in `place`, because moving 16 KiB would be too slow. The caches outlive
    /// any use of the paths.
    pub(super) fn init(place: &mut MaybeUninit<Self>, core: &Core, caches: &[KmemCache; CLASSES]) {
        let pages = &core.memory.pages;
        let mut strides = [ObjectStride::default(); CLASSES + 1];
        for (stride, cache) in strides[1..].iter_mut().zip(caches) {
            let geometry = cache.geometry();
            let slab = geometry.order().bytes();
            // Without `is_unguarded`, a free must check the object's state: it may have a canary, be free, or be
            // between red zones.
            let is_unguarded = geometry.lead() == 0 && !core.harden.is_on();
            let stride_of_slab = ObjectStride::new(geometry.stride(), slab).filter(|_| is_unguarded);
            *stride = stride_of_slab.unwrap_or_default();
        }
        let [allocs, frees, counted] = [0, 1, 2]
            .map(|i| FastPathTable::of(caches.each_ref().map(|cache| cache.cache().fast_paths()[i])));
        let place = place.as_mut_ptr();
        // SAFETY: `place` is borrowed exclusively; each field is written once, and no field is read or dropped. A field
        // of `MaybeUninit` needs no value.
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
            allocs.build_expanded_table(|class| size_of_class(class) / 8, &mut *by_words);
        }
    }
    pub(super) fn set_object_bytes(&self, bytes: usize) {
        // Relaxed: the number publishes no other data.
        self.bytes.store(bytes, Relaxed);
    }
    /// Returns the address of the first page, the number of bytes of all pages, and the table of page classes.
    pub(super) fn pages(&self) -> (usize, usize, NonNull<PageClass>) {
        // Relaxed: the number publishes no other data.
        (self.base, self.bytes.load(Relaxed), self.page_classes)
    }

    /// Returns the fast path for allocations of this size and alignment; `None` for size 0, and for sizes above
    /// [`MAX_CLASS`](super::MAX_CLASS).
    #[inline(always)]
    fn fast_path_for(&self, size: usize, align: usize) -> Option<FastPath<Object, StackMemory>> {
        let word = word_of(size, align);
        // SAFETY: `by_words` has `WORDS` entries.
        (word < WORDS).then(|| unsafe { self.by_words.fast_path(word) })
    }
    /// Allocates an object for this size and alignment. On a miss, does nothing and returns `None`.
    ///
    /// # Safety
    /// The malloc of these paths must exist during the call.
    #[inline(always)]
    pub(crate) unsafe fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: by contract, the malloc is alive.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// Allocates an object during a profile that observes only allocations. Does nothing and returns `None` if the
    /// allocation misses, if no such profile is running, or if the object would be a sample.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`alloc`](Self::alloc).
    #[inline(always)]
    pub(crate) unsafe fn alloc_counted(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let word = word_of(size, align);
        // SAFETY: the malloc is alive, and therefore the profiler.
        let profiler = unsafe { self.profiler.as_ref() };
        if word >= WORDS || !profiler.profiles_malloc_only() {
            return None;
        }
        // SAFETY: the table has `WORDS` entries.
        let fast_path = unsafe { self.by_words.fast_path_with_words_of(&self.counted, word) };
        let bytes = CLASS_BYTES[usize::from(CLASS_BY_WORDS[word])];
        // SAFETY: by contract, the malloc is alive.
        profiler
            .countdown(fast_path.cpu())
            .spend(bytes.into(), || unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// Frees memory that was allocated for this size and alignment. Does nothing and returns `false` on a miss, or if
    /// the memory is outside the pages.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`alloc`](Self::alloc), and the memory must no longer be used.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_sized(&self, memory: *mut u8, size: usize, align: usize) -> bool {
        let word = word_of(size, align);
        if word >= WORDS || self.offset(memory).is_none() {
            return false;
        }
        // SAFETY: by contract, the malloc is alive. The same size always leads to the same layer, and null is in
        // no page.
        unsafe {
            let fast_path = self.by_words.fast_path_with_words_of(&self.frees, word);
            fast_path.free_fast(Object::new(NonNull::new_unchecked(memory)))
        }
    }
    /// Frees the memory at an address, which may be null. On a miss, does nothing and returns `false`.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_sized`](Self::free_sized).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free(&self, memory: *mut u8) -> bool {
        // SAFETY: by contract, the caller owns the memory.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: by contract, the malloc is alive; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_fast(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// Allocates as [`alloc`](Self::alloc) does, for processes without restartable sequences.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`alloc`](Self::alloc).
    #[inline]
    pub(crate) unsafe fn alloc_claimed(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: by contract, the malloc is alive.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_claimed() })
            .map(Object::memory)
    }
    /// Frees as [`free`](Self::free) does, for processes without restartable sequences.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_claimed(&self, memory: *mut u8) -> bool {
        // SAFETY: by contract, the caller owns the memory.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: by contract, the malloc is alive; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_claimed(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// Returns the number of bytes from the first page to `memory`, or `None` if `memory` is in no page.
    #[inline(always)]
    fn offset(&self, memory: *mut u8) -> Option<usize> {
        let offset = memory.addr().wrapping_sub(self.base);
        // Relaxed: the number publishes no other data.
        (offset < self.bytes.load(Relaxed)).then_some(offset)
    }
    /// Returns `true` if `memory` is in a page of the subsystem, as objects and blocks are.
    #[inline(always)]
    pub(crate) fn holds(&self, memory: NonNull<u8>) -> bool {
        self.offset(memory.as_ptr()).is_some()
    }

    /// Returns the class of the object that begins at `memory`. Returns `None` if the page has no known class, or if no
    /// object begins there.
    ///
    /// # Safety
    /// The caller must own the memory.
    #[inline(always)]
    pub(super) unsafe fn class_at(&self, memory: *mut u8) -> Option<usize> {
        let offset = self.offset(memory)?;
        // SAFETY: each page has one of `CLASSES` classes. By contract, the caller owns the page's memory.
        unsafe {
            let class = self.page_classes.add(offset / PAGE_SIZE).as_ref().get().class();
            let is_start = self.strides.get_unchecked(class).begins_object(offset);
            is_start.then(|| class.wrapping_sub(1))
        }
    }
    /// Returns the fast path for frees of objects with the same class as the object at `memory`.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`class_at`](Self::class_at).
    #[inline(always)]
    unsafe fn fast_path_of(&self, memory: *mut u8) -> Option<FastPath<Object, StackMemory>> {
        // SAFETY: by contract, the caller owns the memory; each class has a path.
        unsafe { self.class_at(memory).map(|class| self.frees.fast_path(class)) }
    }
    /// Returns the size in bytes of the object at `memory`.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`class_at`](Self::class_at).
    #[inline]
    pub(super) unsafe fn size_of(&self, memory: NonNull<u8>) -> Option<usize> {
        // SAFETY: by contract, the caller owns the memory.
        unsafe { self.class_at(memory.as_ptr()) }.map(size_of_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_start_only_at_multiples_of_the_stride() {
        for stride in (0..CLASSES).map(size_of_class) {
            for slab in [ObjectStride::MAX_SLAB_BYTES, stride.next_power_of_two().max(PAGE_SIZE)] {
                let objects = ObjectStride::from_bits(ObjectStride::new(stride, slab).unwrap().to_bits());
                for offset in 0..2 * ObjectStride::MAX_SLAB_BYTES {
                    assert_eq!(
                        objects.begins_object(offset),
                        (offset % slab).is_multiple_of(stride),
                        "{offset}"
                    );
                }
            }
        }
        assert!(
            (0..ObjectStride::MAX_SLAB_BYTES).all(|offset| !ObjectStride::default().begins_object(offset))
        );
    }

    #[test]
    fn fast_paths_return_no_size_for_interior_addresses() {
        use core::alloc::Layout;
        use uslab_buddy::Gfp;
        let subsystem = crate::Subsystem::new(crate::Config::default()).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        let alloc = |size| malloc.alloc(Layout::from_size_align(size, 8).unwrap(), Gfp::KERNEL).unwrap();
        // SAFETY: the test allocated the memory.
        let size_of = |memory: NonNull<u8>| unsafe { malloc.fast.size_of(memory) };
        for size in (0..CLASSES).map(size_of_class) {
            let memory = alloc(size);
            assert_eq!(size_of(memory).ok_or(()), malloc.core.size_of(memory).map_err(|_| ()));
            assert_eq!(size_of(memory), Some(size));
            // SAFETY: the offset is within the object.
            assert!((1..size).step_by(7).all(|inside| size_of(unsafe { memory.add(inside) }).is_none()));
            // SAFETY: the test allocated the memory, and frees it once.
            unsafe { malloc.free(memory) };
        }
        for size in [super::super::MAX_CLASS + 1, 1 << 20, (4 << 20) + 1] {
            let memory = alloc(size);
            assert_eq!(size_of(memory), None, "{size} bytes are not an object size");
            // SAFETY: the test allocated the memory, and frees it once.
            unsafe { malloc.free(memory) };
        }
        assert_eq!(size_of(crate::size::large::ZERO_SIZE), None);
    }

    /// Slabs of an unusual order begin at other multiples, so an address inside an object could be mistaken for an
    /// object there.
    #[test]
    fn interior_address_is_never_taken_for_an_object() {
        let pages = uslab_buddy::PageConfig::default_for(uslab_magazine::Cpus::os()).limit(4 << 20);
        let subsystem = crate::Subsystem::new(crate::Config::new(pages)).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        // Leave no two adjacent pages free; a slab of the usual order needs two.
        let singles: Vec<_> = core::iter::from_fn(|| {
            subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, uslab_buddy::Gfp::KERNEL, None).ok()
        })
        .collect();
        let _freed: Vec<_> = singles.into_iter().filter(|page| page.pfn().get().is_multiple_of(2)).collect();
        let layout = core::alloc::Layout::from_size_align(640, 8).unwrap();
        let allocated: Vec<_> =
            core::iter::from_fn(|| malloc.alloc(layout, uslab_buddy::Gfp::KERNEL).ok()).collect();
        assert!(malloc.caches().iter().any(|cache| cache.info().order_fallbacks > 0));
        for memory in allocated {
            // SAFETY: the test allocated the object.
            let has_path = |at: usize| unsafe { malloc.fast.fast_path_of(memory.as_ptr().add(at)) }.is_some();
            assert!((8..640).step_by(8).all(|at| !has_path(at)), "{memory:?}");
            // SAFETY: the test allocated the memory, and frees it once.
            unsafe { malloc.free(memory) };
        }
        subsystem.shrink();
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }
}

//! Allocates memory of any size for programs, from four size classes per doubling.
//!
//! The kernel's 13 classes ([`kmalloc`](crate::kmalloc)) waste about a quarter of the bytes of evenly distributed
//! requests. Malloc's 44 classes waste at most a fifth of a request, and an eighth on average. The class of a size is
//! computed by arithmetic. Up to 64 bytes, the class is the number of words. For larger sizes, the bit length and the
//! two bits after the highest bit determine the class. A table contains the precomputed classes of all sizes.
//!
//! A free that passes the size ([`free_sized`](Malloc::free_sized)) reads no frame. Memory above 32 KiB is a block of
//! pages. Memory above 4 MiB is a separate mapping ([`huge`](crate::huge)).

mod classes;
mod fast_paths;
mod static_paths;

use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::debug::corruption::CorruptionKind;
use crate::error::{AllocError, CacheError};
use crate::harden::{CANARY_BYTES, Harden};
use crate::memory::huge::exceeds_largest_block;
use crate::size::large::{ZERO_SIZE, may_stay_in_place};
pub use classes::MAX_CLASS;
use classes::{
    CLASSES, MAX_SLAB_ORDER, MAX_USUAL_ORDER_OBJECT_BYTES, align_of_class, name_of_class, size_of_class,
    smallest_class_for,
};
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
pub(crate) use fast_paths::FastPaths;
pub(crate) use static_paths::StaticPaths;
use std::sync::Arc;
use uslab_buddy::{Gfp, PAGE_SIZE};

/// Alignment of the largest C type (`alignof(max_align_t)` on 64-bit machines).
pub const MAX_ALIGN: usize = 16;

/// A general-purpose `malloc`, which serves any size from 44 size classes, pages and mappings. The [module](self)
/// describes the classes.
///
/// ```
/// use std::alloc::Layout;
/// use uslab::{Config, Gfp, Malloc, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let malloc = Malloc::new(&subsystem)?;
/// let layout = Layout::from_size_align(100, 16)?;
/// let memory = malloc.alloc(layout, Gfp::KERNEL)?;
/// // SAFETY: allocated above with this layout, freed once.
/// unsafe {
///     assert_eq!(malloc.usable_size(memory), 112);
///     malloc.free_sized(memory, layout);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Malloc {
    fast: FastPaths,
    caches: [KmemCache; CLASSES],
    /// Number of bytes that the canary occupies at the end of each object.
    tail: usize,
    /// Cache for empty layouts; exists if each empty layout gets a distinct address.
    empty_layout_cache: Option<KmemCache>,
    core: Arc<Core>,
}

impl Malloc {
    /// Returns the caches of the size classes, smallest class first.
    pub fn caches(&self) -> &[KmemCache] {
        &self.caches
    }

    pub(crate) fn on(core: &Arc<Core>) -> Result<Self, CacheError> {
        let mut place = MaybeUninit::uninit();
        Self::init(&mut place, core)?;
        // SAFETY: `init` initialised the malloc.
        Ok(unsafe { place.assume_init() })
    }
    /// Creates a malloc in the memory `place`. On an error, `place` stays uninitialised (see [`FastPaths::init`]).
    pub(crate) fn init(place: &mut MaybeUninit<Self>, core: &Arc<Core>) -> Result<(), CacheError> {
        let harden = core.harden;
        let tail = if harden.canaries { CANARY_BYTES } else { 0 };
        let cache = |class| {
            let (name, size) = (name_of_class(class), size_of_class(class));
            // The smallest class has no room for a canary, and is not used with canaries.
            let size = if size > tail { size - tail } else { size };
            let cache = KmemCache::builder(name, size).align(align_of_class(class));
            let cache = if size_of_class(class) > MAX_USUAL_ORDER_OBJECT_BYTES {
                cache.max_order(MAX_SLAB_ORDER)
            } else {
                cache
            };
            cache.page_class(class).build_on(core)
        };
        let caches = (0..CLASSES).map(cache).collect::<Result<Vec<_>, _>>()?;
        let Ok(caches) = <[KmemCache; CLASSES]>::try_from(caches) else {
            unreachable!("each class has one cache")
        };
        let only_addresses = Harden {
            canaries: false,
            zero_on_free: false,
            zero_on_alloc: false,
            slab_guards: false,
            ..harden
        };
        let zero_size_cache =
            KmemCache::builder("malloc-0", MAX_ALIGN).align(MAX_ALIGN).harden(only_addresses).no_access();
        let zero_size_cache = harden.zero_size.then(|| zero_size_cache.build_on(core)).transpose()?;
        let place = place.as_mut_ptr();
        // SAFETY: `place` is borrowed exclusively; each field is written once, and no field is read or dropped. A field
        // of `MaybeUninit` needs no value.
        unsafe {
            FastPaths::init(&mut *(&raw mut (*place).fast).cast::<MaybeUninit<_>>(), core, &caches);
            (&raw mut (*place).caches).write(caches);
            (&raw mut (*place).tail).write(tail);
            (&raw mut (*place).empty_layout_cache).write(zero_size_cache);
            (&raw mut (*place).core).write(core.clone());
        }
        Ok(())
    }
    /// Opens the static paths to this malloc. Returns `false` if the static paths cannot serve this malloc (see
    /// [`static_paths`]).
    ///
    /// # Safety
    /// The malloc must never be dropped.
    pub(crate) unsafe fn open(&self, paths: &'static StaticPaths) -> bool {
        let fast = &self.fast;
        // Unless all caches use the same table, their fast paths are disabled.
        let is_claimed =
            StaticPaths::can_serve_malloc(fast) && self.caches[0].cache().take_static_words(paths.words());
        if is_claimed {
            // SAFETY: `is_claimed` shows that the paths can serve this malloc, and that its table has taken their
            // words. By contract, the malloc lives for ever.
            unsafe { paths.open(fast) };
        }
        is_claimed
    }
    pub(crate) fn fast(&self) -> &FastPaths {
        &self.fast
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
    /// Releases addresses to other parts of the process, as [`Core::fit_addresses`] does.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Core::fit_addresses`]. This malloc must be the only malloc of
    /// its subsystem, and have no inlined paths except its own paths and `process_paths`.
    pub(crate) unsafe fn fit_addresses(&self, process_paths: &StaticPaths) {
        // SAFETY: by contract, the malloc has no other paths. No path reads the class of a page outside the counted
        // pages.
        unsafe {
            self.core.fit_addresses(|bytes| {
                self.fast.set_object_bytes(bytes);
                process_paths.trim(bytes);
            });
        };
    }
    /// Returns `true` if `memory` is in a page of the subsystem, as objects and blocks are.
    #[inline(always)]
    pub(crate) fn holds(&self, memory: NonNull<u8>) -> bool {
        self.fast.holds(memory)
    }

    /// Returns the cache that serves `layout`: the smallest class that holds the size at the alignment.
    ///
    /// The class is the smallest class for the size rounded up to the alignment. Between two powers of two, consecutive
    /// classes differ by a quarter of the lower power. If the alignment is at most this quarter, each class is a
    /// multiple of the alignment. If the alignment is larger than this quarter, the rounded size is itself a class.
    #[inline(always)]
    fn cache(&self, layout: Layout) -> Option<&KmemCache> {
        self.caches.get(self.class(layout)?)
    }
    #[inline(always)]
    fn class(&self, layout: Layout) -> Option<usize> {
        // Add the canary, except to an empty layout. A layout's size is far from `usize::MAX`, so the sum cannot
        // overflow.
        let size = layout.size() + if layout.size() > 0 { self.tail } else { 0 };
        let size = (size + layout.align() - 1) & !(layout.align() - 1);
        // Size 0 wraps around to `usize::MAX`.
        (size.wrapping_sub(1) < MAX_CLASS).then(|| smallest_class_for(size))
    }

    /// Allocates memory for `layout`. The memory is zeroed with [`Gfp::ZERO`], and unspecified otherwise. An empty
    /// layout with an alignment of at most 16 gets [`ZERO_SIZE`].
    ///
    /// Cost: arithmetic plus [`KmemCache::alloc`]. A size or alignment above 32 KiB costs an allocation of pages, and
    /// above 4 MiB a system call.
    ///
    /// # Errors
    /// Fails with [`AllocError::TooLarge`] if no process has enough addresses, and with [`AllocError::Refused`] if the
    /// system refuses a mapping above 4 MiB. In all other cases, fails as [`KmemCache::alloc`] does.
    #[inline]
    pub fn alloc(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: the caller borrows the malloc, so it is alive.
        match unsafe { self.fast.alloc(layout.size(), layout.align()) } {
            Some(memory) => {
                if gfp.contains(Gfp::ZERO) {
                    // SAFETY: `memory` was just allocated, with `layout.size()` bytes.
                    unsafe { memory.write_bytes(0, layout.size()) };
                }
                Ok(memory)
            }
            None => self.alloc_any_layout(layout, gfp),
        }
    }
    /// Serves layouts that are missing from the table of sizes, and allocations whose restartable sequence missed.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_any_layout(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let profiler = &self.core.profiler;
        if profiler.profiles_malloc_only()
            && let Some(class) = self.class(layout).filter(|_| !self.fast.counted.is_disabled())
        {
            return self.alloc_counted(class, layout, gfp);
        }
        if !profiler.runs()
            // SAFETY: the caller borrows the malloc, so it is alive.
            && let Some(memory) = unsafe { self.fast.alloc_claimed(layout.size(), layout.align()) }
        {
            if gfp.contains(Gfp::ZERO) {
                // SAFETY: `memory` was just allocated, with `layout.size()` bytes.
                unsafe { memory.write_bytes(0, layout.size()) };
            }
            return Ok(memory);
        }
        match self.class(layout) {
            Some(class) => {
                if let Some(memory) = self.guard_sample(class, layout) {
                    return Ok(memory);
                }
                let memory = self.caches[class].cache().alloc_missed(gfp, layout.size())?;
                if self.tail > 0 {
                    // SAFETY: this malloc allocated the object for at least `layout.size()` bytes, and no other thread
                    // has the object.
                    unsafe { self.caches[class].cache().resize(memory, layout.size()) };
                }
                Ok(memory)
            }
            _ if layout.size() == 0 && layout.align() <= ZERO_SIZE.addr().get() => {
                match &self.empty_layout_cache {
                    Some(zero_size_cache) => zero_size_cache.alloc(Gfp::KERNEL),
                    None => Ok(ZERO_SIZE),
                }
            }
            _ if exceeds_largest_block(layout) => self.core.alloc_huge(layout, gfp),
            _ if self.core.harden.guard_pages && layout.size() > 0 => self.core.alloc_guarded(layout, gfp),
            _ => self.core.alloc_large(layout.size().max(layout.align()), gfp),
        }
    }

    /// Allocates during a profile whose samples have separate memory. The profile then need not observe frees of other
    /// objects.
    #[inline]
    fn alloc_counted(&self, class: usize, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let cache = self.caches[class].cache();
        let cpu = || self.core.cpus.current();
        let memory = match self.core.profiler.count(cpu, size_of_class(class), || cache.name()) {
            Some(sample) => sample,
            // SAFETY: the caller borrows the malloc, so it is alive.
            None => match unsafe { self.fast.counted.fast_path(class).alloc() } {
                Some(object) => object.memory(),
                None => match self.guard_sample(class, layout) {
                    Some(memory) => memory,
                    None => return cache.alloc_profiled(gfp),
                },
            },
        };
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: `memory` was just allocated, with `layout.size()` bytes.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        Ok(memory)
    }

    /// Occasionally allocates memory in a separate page instead of a slab (see [`guard`](crate::guard)).
    #[inline]
    fn guard_sample(&self, class: usize, layout: Layout) -> Option<NonNull<u8>> {
        let (guard, profiler) = (&self.core.guard, &self.core.profiler);
        // While a profile observes each operation, each allocation takes this path.
        let observes_all = profiler.runs() && !profiler.profiles_malloc_only();
        let allocs = || if observes_all { 1 } else { self.caches[class].cache().max_allocs_per_miss() };
        let is_guarded = guard.is_on() && guard.is_due(allocs());
        if is_guarded { guard.alloc(layout.size(), layout.align()) } else { None }
    }

    /// Resizes memory of layout `layout` to `size` bytes. Keeps the alignment and the bytes that fit. Added bytes are
    /// zeroed with [`Gfp::ZERO`], and unspecified otherwise. If `layout` is empty, the call allocates. If `size` is 0,
    /// the call frees.
    ///
    /// Cost: arithmetic if the class stays the same. If the class changes, the cost is an allocation, a copy and a
    /// free. A block of pages stays in place if its usable size is at least `size` bytes and less than twice `size`.
    /// The system resizes memory above 4 MiB by remapping pages instead of copying bytes.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, and leaves the old memory unchanged.
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the caller must satisfy the conditions of
    /// [`free_sized`](Self::free_sized).
    #[inline]
    pub unsafe fn realloc_sized(
        &self,
        memory: NonNull<u8>,
        layout: Layout,
        size: usize,
        gfp: Gfp,
    ) -> Result<NonNull<u8>, AllocError> {
        let new = Layout::from_size_align(size, layout.align()).map_err(|_| AllocError::TooLarge)?;
        let zero = |memory: NonNull<u8>, first_byte: usize| {
            if gfp.contains(Gfp::ZERO) && size > first_byte {
                // SAFETY: the new memory has `size` bytes, and only this caller has it.
                unsafe { memory.add(first_byte).write_bytes(0, size - first_byte) };
            }
            memory
        };
        match (self.cache(layout), self.cache(new)) {
            // A sized free finds the class by the layout, so old and new layout must have the same class.
            (Some(old), Some(new))
                if core::ptr::eq(old, new)
                    && old.cache().has_red_zones()
                    && old.cache().resize_watched(memory, size, gfp.contains(Gfp::ZERO)) =>
            {
                return Ok(memory);
            }
            (Some(old), Some(new))
                if core::ptr::eq(old, new)
                    && !old.cache().has_red_zones()
                    && (self.tail == 0 && self.holds(memory)
                        // SAFETY: the caller owns the memory, whose class serves both sizes. A sample is only as large
                        // as its allocation.
                        || unsafe { self.core.record_object_size(memory, size) }) =>
            {
                return Ok(zero(memory, layout.size()));
            }
            (None, None) => {
                if let Some(resized) = self.core.resized(memory, layout, new, gfp) {
                    return Ok(zero(resized, layout.size()));
                }
            }
            _ => {}
        }
        let new_memory = self.alloc(new, gfp - Gfp::ZERO)?;
        // SAFETY: both blocks have at least this many bytes, and do not overlap. By contract, the old memory has this
        // layout and is no longer used.
        unsafe {
            new_memory.copy_from_nonoverlapping(memory, layout.size().min(size));
            self.free_sized(memory, layout);
        }
        Ok(zero(new_memory, layout.size()))
    }

    /// Resizes memory of an unknown layout. The result is aligned to at most 16 bytes, and keeps as many
    /// [usable](Self::usable_size) bytes as fit. The memory stays in place if its usable size is at least `size` bytes
    /// and less than twice `size`. Free the result with [`free`](Self::free).
    ///
    /// Cost: arithmetic and a load of the page's class if the memory stays in place. If the memory moves, the cost is
    /// one [`realloc_sized`](Self::realloc_sized).
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, and leaves the old memory unchanged. If no object is at the address,
    /// reports [corruption](crate::corruption) and fails with [`AllocError::NotAnObject`].
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the caller must satisfy the conditions of
    /// [`free`](Self::free).
    pub unsafe fn realloc(&self, memory: NonNull<u8>, size: usize) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: by contract, the caller may free `memory`.
        let usable = match unsafe { self.fast.size_of(memory) } {
            Some(size) => size,
            None => {
                let usable = self.core.usable_size_before_move(memory)?;
                // SAFETY: by contract, the caller owns `memory`, which has room for `size` bytes.
                if may_stay_in_place(usable, size) && unsafe { self.core.record_object_size(memory, size) } {
                    return Ok(memory);
                }
                usable
            }
        };
        if self.core.resize_watched(memory, size, false) || may_stay_in_place(usable, size) {
            return Ok(memory);
        }
        let layout = Layout::from_size_align(usable, MAX_ALIGN).map_err(|_| AllocError::TooLarge)?;
        let new = Layout::from_size_align(size, MAX_ALIGN).map_err(|_| AllocError::TooLarge)?;
        if let Some(resized) = self.core.resized(memory, layout, new, Gfp::KERNEL) {
            return Ok(resized);
        }
        let new_memory = self.alloc(new, Gfp::KERNEL)?;
        // SAFETY: both blocks have at least this many bytes, and do not overlap. By contract, the old memory is no
        // longer used.
        unsafe {
            new_memory.copy_from_nonoverlapping(memory, usable.min(size));
            self.free(memory);
        }
        Ok(new_memory)
    }

    /// Frees memory of a known layout, without reading a frame.
    ///
    /// Cost: arithmetic plus [`KmemCache::free`].
    ///
    /// # Safety
    /// `memory` must have been allocated by [`alloc`](Self::alloc) of this malloc with this layout, and must no longer
    /// be used.
    #[inline]
    pub unsafe fn free_sized(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the malloc is borrowed, so it is alive. By contract, `memory` has this layout, and the caller may
        // free it.
        if !unsafe { self.fast.free_sized(memory.as_ptr(), layout.size(), layout.align()) } {
            // SAFETY: by contract, `memory` has this layout, and the caller may free it.
            unsafe { self.free_sized_slow(memory, layout) };
        }
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_sized`](Self::free_sized).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn free_sized_slow(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the malloc is borrowed, so it is alive. By contract, the caller may free `memory`.
        if !self.core.profiler.runs() && unsafe { self.fast.free_claimed(memory.as_ptr()) } {
            return;
        }
        if self.core.check_frees && !self.has_size(memory, layout) {
            return;
        }
        match self.class(layout) {
            // A layout always leads to the same cache, except for guard samples.
            Some(class) if self.holds(memory) => self.caches[class].cache().free_missed(memory),
            // SAFETY: by contract, the caller may free `memory`.
            _ => unsafe { self.core.free(memory) },
        }
    }

    /// Frees memory by its address: the address determines the page, and the page's record names the class.
    ///
    /// Cost: one load to find the class, plus [`KmemCache::free`]. The loaded cache line covers 32 pages, and no
    /// allocation or free writes to it.
    ///
    /// # Safety
    /// `memory` must come from this malloc's subsystem, but not from another malloc of the subsystem. The caller must
    /// no longer use `memory`.
    #[inline]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: the malloc is borrowed, so it is alive. By contract, the caller may free `memory`.
        if !unsafe { self.fast.free(memory.as_ptr()) } {
            // SAFETY: by contract, the caller may free `memory`.
            unsafe { self.free_slow(memory) };
        }
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn free_slow(&self, memory: NonNull<u8>) {
        // SAFETY: the malloc is borrowed, so it is alive. By contract, the caller may free `memory`.
        if !self.core.profiler.runs() && unsafe { self.fast.free_claimed(memory.as_ptr()) } {
            return;
        }
        // SAFETY: by contract, the caller owns the memory.
        match unsafe { self.fast.class_at(memory.as_ptr()) } {
            // The class's fast path has missed. The cache lives as long as this malloc.
            Some(class) => self.caches[class].cache().free_missed(memory),
            None => {
                // If addresses are limited, pages get their addresses only when they are committed.
                if !self.holds(memory) && self.core.memory.pages.pfn_of(memory.as_ptr()).is_some() {
                    self.core.report_page_bytes(|bytes| self.fast.set_object_bytes(bytes));
                }
                // SAFETY: by contract, the caller may free `memory`.
                unsafe { self.core.free(memory) }
            }
        }
    }

    /// Returns `true` if memory was allocated or resized for this layout, as far as the malloc knows. If the size does
    /// not match, reports the corruption. Returns `true` if no object is at the address, because the free then reports
    /// this error.
    #[cold]
    pub(crate) fn has_size(&self, memory: NonNull<u8>, layout: Layout) -> bool {
        let Ok(usable) = self.core.size_of(memory) else { return true };
        let size = layout.size();
        let same_class = self.class(layout).is_some_and(|class| size_of_class(class) == usable + self.tail);
        // After a realloc in place, memory may have up to twice the bytes. A block has at least as many bytes as
        // its alignment. A mapping has whole pages, or the pages of a freed mapping that it reuses.
        let fits_size = |size| may_stay_in_place(usable, size);
        let close = || {
            fits_size(size)
                || fits_size(size.max(layout.align()))
                || size.next_multiple_of(PAGE_SIZE) == usable
        };
        // A block of pages has no canary.
        let is_right_cache = match self.core.cache_at(memory).filter(|_| self.tail > 0) {
            // C++ libraries round up the size that an aligned `new` requests, but not the size that its `delete`
            // passes. The free reports an overwritten canary.
            Some(cache) => {
                let rounded = if layout.align() > MAX_ALIGN {
                    size.max(1).next_multiple_of(layout.align())
                } else {
                    size
                };
                [size, size.max(1), rounded].contains(&usable) || cache.is_canary_overwritten(memory)
            }
            None => same_class || size == usable || size == 0 || close(),
        };
        if !is_right_cache {
            self.core.refuse(CorruptionKind::WrongSize, memory);
        }
        is_right_cache
    }

    /// Number of usable bytes at `memory`, which is at least the requested size. If no object is at the address,
    /// reports [corruption](crate::corruption) and returns 0.
    ///
    /// # Safety
    /// `memory` must come from this malloc's subsystem, but not from another malloc of the subsystem. `memory` must not
    /// be freed during the call.
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        // SAFETY: by contract, `memory` is not freed during the call.
        unsafe { self.fast.size_of(memory) }.unwrap_or_else(|| self.core.usable_size(memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::Subsystem;

    /// A C++ `delete` passes the size that the program requested, even if the aligned `new` has rounded
    /// this size up.
    #[test]
    fn malloc_accepts_the_unrounded_size_of_aligned_memory() {
        let harden = crate::Harden { canaries: true, ..crate::Harden::OFF };
        let subsystem = Subsystem::new(Config { harden, ..Config::default() }).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let layout_of = |size, align| Layout::from_size_align(size, align).unwrap();
        let memory = malloc.alloc(layout_of(64, 64), Gfp::KERNEL).unwrap();
        assert!(malloc.has_size(memory, layout_of(40, 64)) && malloc.has_size(memory, layout_of(0, 64)));
        // SAFETY: the test allocated `memory`, and frees it once.
        unsafe { malloc.free(memory) };
    }

    #[test]
    fn malloc_honours_the_alignment_of_any_layout() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let mut blocks: Vec<(NonNull<u8>, Layout)> = vec![];
        for size in [0, 1, 8, 9, 63, 64, 65, 100, 1000, 4097, 8192, 8193, 32_768, 32_769, 100_000] {
            for align in [1, 8, 16, 64, 4096, 65_536] {
                let layout = Layout::from_size_align(size, align).unwrap();
                let memory = malloc.alloc(layout, Gfp::KERNEL).unwrap();
                assert!(memory.addr().get().is_multiple_of(align), "{layout:?}");
                // SAFETY: `memory` was just allocated with `size` bytes.
                unsafe { memory.write_bytes(blocks.len() as u8, size) };
                blocks.push((memory, layout));
            }
        }
        for (i, (memory, layout)) in blocks.iter().enumerate() {
            // SAFETY: the test wrote these bytes, and has not freed them.
            let bytes = unsafe { core::slice::from_raw_parts(memory.as_ptr(), layout.size()) };
            assert!(bytes.iter().all(|b| *b == i as u8), "{layout:?}");
            // SAFETY: the test allocated the memory, and has not freed it.
            assert!(layout.size() == 0 || unsafe { malloc.usable_size(*memory) } >= layout.size());
        }
        for (i, (memory, layout)) in blocks.into_iter().enumerate() {
            // SAFETY: the test allocated the memory with this layout, and frees it once.
            unsafe { if i % 2 == 0 { malloc.free_sized(memory, layout) } else { malloc.free(memory) } }
        }
        subsystem.shrink();
        let census = subsystem.check().unwrap();
        assert_eq!((census.objects, census.large_pages), (0, 0));
    }

    #[test]
    fn request_above_the_maximum_size_is_an_error() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        for layout in [(1 << 47, 8), (1, 1 << 47), (isize::MAX as usize - 7, 8)] {
            let layout = Layout::from_size_align(layout.0, layout.1).unwrap();
            assert_eq!(malloc.alloc(layout, Gfp::KERNEL), Err(AllocError::TooLarge));
        }
        // This size exceeds the address space of any process.
        let bytes = (1 << 47) - 1;
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        assert_eq!(malloc.alloc(layout, Gfp::KERNEL), Err(AllocError::Refused { bytes }));
        subsystem.check().unwrap();
    }
}

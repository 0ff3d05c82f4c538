//! Memory of any size: size classes up to 8 KiB, and blocks of pages above.
//!
//! As in the kernel, there are four kinds of caches with 13 caches each: `kmalloc-N`, `kmalloc-rcl-N` (reclaimable),
//! `kmalloc-cg-N` (accounted) and `dma-kmalloc-N`. A free finds the object's cache by arithmetic and one load: the
//! address gives the frame, and the frame names the owning cache. Larger requests get blocks of pages, which are marked
//! in their frame and counted.
//!
//! The guarantees are the same as the kernel's. A class's objects are aligned to the largest power of two that
//! divides the class's size, and a large block is aligned likewise. The result for size 0 is a dangling pointer,
//! which may be freed.

use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::size::large::{ZERO_SIZE, fits_in_place};
use crate::size::size_class::{CLASSES, SizeClass};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::Gfp;

/// A family of kmalloc's caches.
///
/// ```
/// use uslab::{Gfp, KmallocKind, SizeClass, Subsystem};
///
/// let kind = KmallocKind::of(Gfp::KERNEL | Gfp::RECLAIMABLE);
/// let class = SizeClass::for_size(100).ok_or("no class")?;
/// let cache = Subsystem::global()?.kmalloc().cache(kind, class);
/// assert_eq!(cache.name(), "kmalloc-rcl-128");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KmallocKind {
    /// Caches `kmalloc-N`, for memory without special requirements.
    Normal = 0,
    /// Caches `dma-kmalloc-N`, for memory in zone DMA.
    Dma = 1,
    /// Caches `kmalloc-cg-N`, for accounted memory.
    Accounted = 2,
    /// Caches `kmalloc-rcl-N`, for memory that a shrinker can free.
    Reclaimable = 3,
}

impl KmallocKind {
    /// All kinds, in the order of their caches.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Dma, Self::Accounted, Self::Reclaimable];

    /// The kind that the flags select: `DMA` takes precedence over `RECLAIMABLE`.
    #[inline]
    pub const fn of(gfp: Gfp) -> Self {
        if !gfp.intersects(Gfp::DMA.union(Gfp::RECLAIMABLE)) {
            Self::Normal
        } else if gfp.contains(Gfp::DMA) {
            Self::Dma
        } else {
            Self::Reclaimable
        }
    }
    const fn prefix(self) -> &'static str {
        match self {
            Self::Normal => "kmalloc",
            Self::Reclaimable => "kmalloc-rcl",
            Self::Accounted => "kmalloc-cg",
            Self::Dma => "dma-kmalloc",
        }
    }
}

/// The size classes of a [`Subsystem`](crate::Subsystem).
///
/// ```
/// use uslab::{Gfp, Subsystem};
///
/// let kmalloc = Subsystem::global()?.kmalloc();
/// let name = kmalloc.alloc_zeroed(100, Gfp::KERNEL)?;
/// // SAFETY: allocated above, zero, freed once.
/// unsafe {
///     assert_eq!((kmalloc.usable_size(name), name.read()), (128, 0));
///     kmalloc.free(name);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Kmalloc {
    /// The caches of all kinds, in the order of the kinds, with `CLASSES` caches for each.
    caches: Box<[KmemCache]>,
    core: Arc<Core>,
}

impl Kmalloc {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self, CacheError> {
        let pairs =
            KmallocKind::ALL.into_iter().flat_map(|kind| SizeClass::all().map(move |class| (kind, class)));
        let caches = pairs.map(|(kind, class)| {
            let name = format!("{}-{}", kind.prefix(), class.label());
            let builder = KmemCache::builder(name, class.size()).align(class.align());
            match kind {
                KmallocKind::Normal | KmallocKind::Accounted => builder,
                KmallocKind::Reclaimable => builder.reclaimable(),
                KmallocKind::Dma => builder.dma(),
            }
        });
        let caches = caches.map(|cache| cache.build_on(core)).collect::<Result<_, _>>()?;
        Ok(Self { caches, core: core.clone() })
    }

    /// Returns the cache that serves the given kind and size class.
    #[inline]
    pub fn cache(&self, kind: KmallocKind, class: SizeClass) -> &KmemCache {
        &self.caches[kind as usize * CLASSES + class.index()]
    }

    /// Allocates `size` bytes, zeroed with [`Gfp::ZERO`], otherwise unspecified. `gfp` selects the kind of cache.
    /// Dropping the [`Subsystem`](crate::Subsystem) frees memory above the size classes.
    ///
    /// Cost: a table lookup and [`KmemCache::alloc`]; above 8 KiB an allocation of pages.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above 4 MiB; otherwise fails as [`KmemCache::alloc`] does.
    #[inline]
    #[doc(alias = "kmalloc")]
    pub fn alloc(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc_of(KmallocKind::of(gfp), size, gfp)
    }

    /// Allocates as [`alloc`](Self::alloc) does, from the caches of the given kind.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    #[inline]
    pub fn alloc_of(&self, kind: KmallocKind, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        match SizeClass::for_size(size) {
            Some(class) => self.cache(kind, class).cache().alloc_of(gfp, size),
            None if size == 0 => Ok(ZERO_SIZE),
            None => self.core.alloc_large(size, gfp),
        }
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    #[doc(alias = "kzalloc")]
    pub fn alloc_zeroed(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc(size, gfp | Gfp::ZERO)
    }

    /// Allocates memory for an array of `count` elements of `size` bytes.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] if the product overflows; otherwise fails as [`alloc`](Self::alloc) does.
    #[doc(alias = "kmalloc_array")]
    #[doc(alias = "kcalloc")]
    pub fn alloc_array(&self, count: usize, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc(count.checked_mul(size).ok_or(AllocError::TooLarge)?, gfp)
    }

    /// Allocates memory for `layout`, from the smallest class that guarantees the alignment. An empty layout gets
    /// [`ZERO_SIZE`] if its alignment is at most 16, and otherwise an object.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does; also [`AllocError::TooLarge`] above an alignment of 4 MiB.
    pub fn alloc_layout(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let (size, align) = (layout.size(), layout.align());
        if size == 0 && align <= ZERO_SIZE.addr().get() {
            return Ok(ZERO_SIZE);
        }
        match SizeClass::for_layout(size, align) {
            Some(class) => self.cache(KmallocKind::of(gfp), class).cache().alloc_of(gfp, size),
            None => self.core.alloc_large(size.max(align), gfp),
        }
    }

    /// Frees memory that came from the subsystem's size classes, pages or caches.
    ///
    /// Cost: one load to find the cache, then [`KmemCache::free`].
    ///
    /// # Safety
    /// `memory` came from this subsystem and is no longer used.
    #[inline]
    #[doc(alias = "kfree")]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by contract, the memory came from this subsystem and is no longer used.
        unsafe { self.core.free(memory) };
    }

    /// Resizes the memory to `size` bytes, and keeps as many bytes as fit; if `size` is 0, frees the memory.
    /// With [`Gfp::ZERO`], bytes beyond the old [`usable_size`](Self::usable_size) are zeroed.
    ///
    /// The memory stays in place if it has room for `size` bytes and is less than twice as large.
    ///
    /// Cost: one load of the page's frame if the memory stays in place, and otherwise an
    /// allocation, a copy and a free.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, and leaves the old memory unchanged. If the address is not an object's,
    /// reports [corruption](crate::corruption) and fails with [`AllocError::NotAnObject`].
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the conditions of [`free`](Self::free)
    /// hold.
    #[doc(alias = "krealloc")]
    pub unsafe fn realloc(
        &self,
        memory: NonNull<u8>,
        size: usize,
        gfp: Gfp,
    ) -> Result<NonNull<u8>, AllocError> {
        let usable = self.core.size_to_move(memory)?;
        if self.core.resize_watched(memory, size, gfp.contains(Gfp::ZERO)) || fits_in_place(usable, size) {
            return Ok(memory);
        }
        let new_memory = self.alloc(size, gfp)?;
        // SAFETY: both blocks have at least `usable.min(size)` bytes and do not overlap. By contract, the old memory is
        // no longer used.
        unsafe {
            new_memory.copy_from_nonoverlapping(memory, usable.min(size));
            self.free(memory);
        }
        Ok(new_memory)
    }

    /// Number of usable bytes at `memory`: at least the requested size. If the address is not an object's, reports
    /// [corruption](crate::corruption) and returns 0.
    ///
    /// # Safety
    /// `memory` came from this subsystem and is not freed during the call.
    #[doc(alias = "ksize")]
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        self.core.usable_size(memory)
    }
}

//! Allocates memory of any size: objects of size classes up to 8 KiB, and blocks of pages for larger sizes.
//!
//! As in the kernel, there are four kinds of caches, with 13 caches each: `kmalloc-N`, `kmalloc-rcl-N` (reclaimable),
//! `kmalloc-cg-N` (accounted) and `dma-kmalloc-N`. A free finds the object's cache by arithmetic and one load: the
//! address determines the frame, and the frame names the cache. Larger requests get blocks of pages. A block is marked
//! in its frame, and counted.
//!
//! Kmalloc gives the same guarantees as the kernel's `kmalloc`. A class's objects are aligned to the largest power of
//! two that divides the class's size. A large block is aligned by the same rule. An allocation of size 0 returns a
//! dangling pointer, which may be freed.

use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::size::large::{ZERO_SIZE, may_stay_in_place};
use crate::size::size_class::{CLASSES, SizeClass};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::Gfp;

/// A kind of kmalloc's caches, which the allocation flags select.
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
    /// All kinds of caches, in the order in which they are stored.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Dma, Self::Accounted, Self::Reclaimable];

    /// Returns the kind of cache that the flags select. `DMA` takes precedence over `RECLAIMABLE`.
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

/// The size classes of kmalloc in a [`Subsystem`](crate::Subsystem).
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
    /// The caches of all kinds, kind after kind, with `CLASSES` caches for each kind.
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

    /// Returns the cache that serves kind `kind` and size class `class`.
    #[inline]
    pub fn cache(&self, kind: KmallocKind, class: SizeClass) -> &KmemCache {
        &self.caches[kind as usize * CLASSES + class.index()]
    }

    /// Allocates `size` bytes. The memory is zeroed with [`Gfp::ZERO`], and unspecified otherwise. `gfp` selects the
    /// kind of cache. Dropping the [`Subsystem`](crate::Subsystem) also frees memory above the size classes.
    ///
    /// Cost: a table lookup and [`KmemCache::alloc`]. Above 8 KiB, the cost is an allocation of pages.
    ///
    /// # Errors
    /// Fails with [`AllocError::TooLarge`] above 4 MiB. In all other cases, fails as [`KmemCache::alloc`] does.
    #[inline]
    #[doc(alias = "kmalloc")]
    pub fn alloc(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc_of(KmallocKind::of(gfp), size, gfp)
    }

    /// Allocates as [`alloc`](Self::alloc) does, but from the caches of kind `kind`.
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
    /// Fails with [`AllocError::TooLarge`] if the product overflows. In all other cases, fails as
    /// [`alloc`](Self::alloc) does.
    #[doc(alias = "kmalloc_array")]
    #[doc(alias = "kcalloc")]
    pub fn alloc_array(&self, count: usize, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc(count.checked_mul(size).ok_or(AllocError::TooLarge)?, gfp)
    }

    /// Allocates memory for `layout` from the smallest class that guarantees the alignment. An empty layout gets
    /// [`ZERO_SIZE`] if its alignment is at most 16, and an object otherwise.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does. Fails with [`AllocError::TooLarge`] above an alignment of 4 MiB.
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

    /// Frees memory that was allocated from the subsystem's size classes, pages or caches.
    ///
    /// Cost: one load to find the cache, plus [`KmemCache::free`].
    ///
    /// # Safety
    /// `memory` must have been allocated from this subsystem, and must no longer be used.
    #[inline]
    #[doc(alias = "kfree")]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by contract, the memory came from this subsystem and is no longer used.
        unsafe { self.core.free(memory) };
    }

    /// Resizes the memory to `size` bytes and keeps the bytes that fit. If `size` is 0, frees the memory. With
    /// [`Gfp::ZERO`], bytes beyond the old [`usable_size`](Self::usable_size) are zeroed.
    ///
    /// The memory stays in place if its usable size is at least `size` bytes and less than twice `size`.
    ///
    /// Cost: one load of the page's frame if the memory stays in place. If the memory moves, the cost is an allocation,
    /// a copy and a free.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, and leaves the old memory unchanged. If no object is at the address,
    /// reports [corruption](crate::corruption) and fails with [`AllocError::NotAnObject`].
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the caller must satisfy the conditions of
    /// [`free`](Self::free).
    #[doc(alias = "krealloc")]
    pub unsafe fn realloc(
        &self,
        memory: NonNull<u8>,
        size: usize,
        gfp: Gfp,
    ) -> Result<NonNull<u8>, AllocError> {
        let usable = self.core.usable_size_before_move(memory)?;
        if self.core.resize_watched(memory, size, gfp.contains(Gfp::ZERO)) || may_stay_in_place(usable, size)
        {
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

    /// Number of usable bytes at `memory`, which is at least the requested size. If no object is at the address,
    /// reports [corruption](crate::corruption) and returns 0.
    ///
    /// # Safety
    /// `memory` must have been allocated from this subsystem, and must not be freed during the call.
    #[doc(alias = "ksize")]
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        self.core.usable_size(memory)
    }
}

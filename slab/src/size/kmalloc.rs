//! Memory of any size: size classes up to 8 KiB, pages above.
//!
//! There are four kinds of 13 caches each, as in the kernel: `kmalloc-N`, `kmalloc-rcl-N` (reclaimable), `kmalloc-cg-N`
//! (accounted) and `dma-kmalloc-N`. A free finds its cache by arithmetic and one load: address, frame, owner. Larger requests
//! are blocks of pages, by order, marked as such in their frame and counted.
//!
//! The kernel's guarantees hold: a class's objects are aligned to the largest power of two that divides its size (so a power of
//! two is aligned to itself), and so is a large block. The result for size 0 is a dangling pointer, which may be freed.

use crate::cache::core::Core;
use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::size::large::{ZERO_SIZE, fits_in_place};
use crate::size::size_class::{CLASSES, SizeClass};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::Gfp;

/// Family of kmalloc's caches.
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
    /// `kmalloc-N`.
    Normal = 0,
    /// `dma-kmalloc-N`: in zone DMA.
    Dma = 1,
    /// `kmalloc-cg-N`: accounted memory.
    Accounted = 2,
    /// `kmalloc-rcl-N`: memory that a shrinker can free.
    Reclaimable = 3,
}

impl KmallocKind {
    /// All kinds, in the order of their caches.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Dma, Self::Accounted, Self::Reclaimable];

    /// The kind for flags: DMA wins over reclaimable.
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
    /// `CLASSES` caches for each kind.
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

    /// The cache that serves a kind and a class.
    #[inline]
    pub fn cache(&self, kind: KmallocKind, class: SizeClass) -> &KmemCache {
        &self.caches[kind as usize * CLASSES + class.index()]
    }

    /// Allocates `size` bytes, unspecified, or zero with [`Gfp::ZERO`]. `gfp` selects the kind of cache. The memory is freed
    /// with the [`Subsystem`](crate::Subsystem), unless it came from a size class.
    ///
    /// Cost: a table lookup and [`KmemCache::alloc`]; above 8 KiB an allocation of pages.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above 4 MiB; else as [`KmemCache::alloc`].
    #[inline]
    #[doc(alias = "kmalloc")]
    pub fn alloc(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc_of(KmallocKind::of(gfp), size, gfp)
    }

    /// Allocates as [`alloc`](Self::alloc) does, from the caches of one kind.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
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
    /// As [`alloc`](Self::alloc).
    #[doc(alias = "kzalloc")]
    pub fn alloc_zeroed(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc(size, gfp | Gfp::ZERO)
    }

    /// Allocates `count` times `size` bytes.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] if the product overflows; else as [`alloc`](Self::alloc).
    #[doc(alias = "kmalloc_array")]
    #[doc(alias = "kcalloc")]
    pub fn alloc_array(&self, count: usize, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc(count.checked_mul(size).ok_or(AllocError::TooLarge)?, gfp)
    }

    /// Allocates memory for `layout`, from the smallest class that guarantees its alignment. (An empty layout gets
    /// [`ZERO_SIZE`] up to its alignment of 16, an object above.)
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`AllocError::TooLarge`] also above an alignment of 4 MiB.
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

    /// Frees memory: anything that this subsystem's size classes, pages or caches handed out.
    ///
    /// Cost: one load finds the cache; then [`KmemCache::free`].
    ///
    /// # Safety
    /// `memory` came from this subsystem and is no longer used.
    #[inline]
    #[doc(alias = "kfree")]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: the memory is this subsystem's and no longer used, by this function's contract.
        unsafe { self.core.free(memory) };
    }

    /// Resizes the memory to `size` bytes and keeps as many bytes as fit; with [`Gfp::ZERO`] the bytes behind its
    /// [`usable_size`](Self::usable_size) are zero. It stays in place if it holds `size` bytes and is less than twice as large.
    /// A size of 0 frees it.
    ///
    /// Cost: a load of the page's frame in place; else an allocation, a copy and a free.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); the old memory is unchanged. [`AllocError::NotAnObject`] for an address that is not an
    /// object's, after its [corruption](crate::corruption) was reported.
    ///
    /// # Safety
    /// As [`free`](Self::free), after a success.
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
        let moved = self.alloc(size, gfp)?;
        // SAFETY: both have at least that size and do not overlap; the old memory is no longer used, by this function's
        // contract.
        unsafe {
            moved.copy_from_nonoverlapping(memory, usable.min(size));
            self.free(memory);
        }
        Ok(moved)
    }

    /// Usable bytes at `memory`, at least the requested size. For an address that is not an object's it reports
    /// [corruption](crate::corruption), and returns 0.
    ///
    /// # Safety
    /// `memory` came from this subsystem and is not freed during the call.
    #[doc(alias = "ksize")]
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        self.core.usable_size(memory)
    }
}

//! [`Allocator`] of `allocator-api2`, for containers that take one: a feature for each of its major versions, because
//! containers are on several (`allocator-api2-02`: hashbrown, bumpalo; `allocator-api2-04`).
//!
//! For `&KmemCache` (layouts up to its object's), `&Kmalloc`, `&Malloc`, `Uslab`, and for one thread `&Hybrid`: pools by class
//! with the heap behind them.
//!
//! [`Allocator`]: https://docs.rs/allocator-api2/latest/allocator_api2/alloc/trait.Allocator.html

use crate::pool::Hybrid;
use crate::{Gfp, Kmalloc, KmemCache, Malloc, Uslab};
use core::alloc::Layout;
use core::ptr::NonNull;

/// What each version of the trait asks for, in our own words.
///
/// # Safety
/// Memory is of its layout and the caller's alone until it is put back.
unsafe trait Source: Copy {
    /// Memory for a layout that is not empty.
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>>;
    /// # Safety
    /// `memory` came from `get` with this layout, and is nobody's any more.
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout);
    /// Memory for `size` bytes at the same alignment instead; with [`Gfp::ZERO`] zero behind the old ones.
    ///
    /// # Safety
    /// As `put`, after a success. Neither is empty.
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        let moved = self.get(new, gfp)?;
        // SAFETY: both are so large, and apart; the old one is nobody's any more.
        unsafe {
            moved.copy_from_nonoverlapping(memory, old.size().min(new.size()));
            self.put(memory, old);
        }
        Some(moved)
    }
}

// SAFETY: an object is as large and aligned as its geometry says.
unsafe impl Source for &KmemCache {
    /// Nothing for a cache with a constructor: what a container leaves behind is not constructed.
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        let fits = |geometry: &crate::Geometry| {
            layout.size() <= geometry.object_size() && layout.align() <= geometry.align()
        };
        let good = fits(self.geometry()) && !self.cache().has_hooks();
        good.then(|| self.alloc(gfp).ok()).flatten()
    }
    unsafe fn put(self, memory: NonNull<u8>, _: Layout) {
        // SAFETY: passed on.
        unsafe { self.free(memory) };
    }
}
// SAFETY: as `alloc_layout` says.
unsafe impl Source for &Kmalloc {
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        self.alloc_layout(layout, gfp).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, _: Layout) {
        // SAFETY: passed on.
        unsafe { self.free(memory) };
    }
}
// SAFETY: as `alloc` says.
unsafe impl Source for &Malloc {
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        self.alloc(layout, gfp).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { self.free_sized(memory, layout) };
    }
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        unsafe { self.realloc_sized(memory, old, new.size(), gfp) }.ok()
    }
}
// SAFETY: as `alloc` says; what the pools hand out stays where it is when they are moved.
unsafe impl Source for &Hybrid {
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        let memory = self.alloc(layout).ok()?;
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: so many bytes are ours since just now.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        Some(memory)
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        let freed = unsafe { self.free(memory, layout) };
        debug_assert_eq!(freed, Ok(()), "it came from here");
    }
}
// SAFETY: as `GlobalAlloc` says.
unsafe impl Source for Uslab {
    fn get(self, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        self.allocate(layout, gfp).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { self.free_sized(memory, layout) };
    }
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        let moved = unsafe { self.reallocate_sized(memory, old, new.size()) }.ok()?;
        if gfp.contains(Gfp::ZERO) && new.size() > old.size() {
            // SAFETY: `new.size()` bytes are the caller's.
            unsafe { moved.add(old.size()).write_bytes(0, new.size() - old.size()) };
        }
        Some(moved)
    }
}

/// A dangling pointer for what is empty.
fn nothing(layout: Layout) -> NonNull<u8> {
    NonNull::without_provenance(core::num::NonZeroUsize::MIN.saturating_add(layout.align() - 1))
}

fn get(source: impl Source, layout: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
    if layout.size() == 0 { Some(nothing(layout)) } else { source.get(layout, gfp) }
}
/// # Safety
/// As [`Source::put`], or it is empty.
unsafe fn put(source: impl Source, memory: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: passed on.
        unsafe { source.put(memory, layout) };
    }
}
/// # Safety
/// As [`Source::resize`], but either may be empty, and alignments differ.
unsafe fn resize(
    source: impl Source,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
    gfp: Gfp,
) -> Option<NonNull<u8>> {
    if old.align() == new.align() && old.size() > 0 && new.size() > 0 {
        // SAFETY: passed on.
        return unsafe { source.resize(memory, old, new, gfp) };
    }
    let moved = get(source, new, gfp)?;
    // SAFETY: both are so large, and apart; the old one is nobody's any more.
    unsafe {
        moved.copy_from_nonoverlapping(memory, old.size().min(new.size()));
        put(source, memory, old);
    }
    Some(moved)
}

#[cfg(any(feature = "allocator-api2-02", feature = "allocator-api2-04"))]
macro_rules! allocators {
    ($version:ident: $($source:ty),*) => { $(
        // SAFETY: as `Source`; what is shared is the cache, which outlives the reference, or the process's.
        unsafe impl $version::alloc::Allocator for $source {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                whole(get(*self, layout, Gfp::KERNEL), layout).ok_or($version::alloc::AllocError)
            }
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                whole(get(*self, layout, Gfp::ZERO), layout).ok_or($version::alloc::AllocError)
            }
            unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
                // SAFETY: passed on.
                unsafe { put(*self, memory, layout) };
            }
            unsafe fn grow(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
                whole(unsafe { resize(*self, memory, old, new, Gfp::KERNEL) }, new).ok_or($version::alloc::AllocError)
            }
            unsafe fn grow_zeroed(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
                whole(unsafe { resize(*self, memory, old, new, Gfp::ZERO) }, new).ok_or($version::alloc::AllocError)
            }
            unsafe fn shrink(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
                whole(unsafe { resize(*self, memory, old, new, Gfp::KERNEL) }, new).ok_or($version::alloc::AllocError)
            }
        }
    )* };
}

/// The bytes that were asked for.
fn whole(memory: Option<NonNull<u8>>, layout: Layout) -> Option<NonNull<[u8]>> {
    memory.map(|memory| NonNull::slice_from_raw_parts(memory, layout.size()))
}

#[cfg(feature = "allocator-api2-02")]
allocators!(allocator_api2_02: &KmemCache, &Kmalloc, &Malloc, &Hybrid, Uslab);
#[cfg(feature = "allocator-api2-04")]
allocators!(allocator_api2_04: &KmemCache, &Kmalloc, &Malloc, &Hybrid, Uslab);

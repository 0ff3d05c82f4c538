//! Implements [`Allocator`] of `allocator-api2`, for containers with an allocator parameter. Each major version of
//! `allocator-api2` has its own feature, because containers use different versions (`allocator-api2-02`: hashbrown,
//! bumpalo; `allocator-api2-04`).
//!
//! `&KmemCache` (for layouts that fit its objects), `&Kmalloc`, `&Malloc` and `Uslab` implement the trait.
//! [`pool`](crate::pool) has thread-local allocators.
//!
//! [`Allocator`]: https://docs.rs/allocator-api2/latest/allocator_api2/alloc/trait.Allocator.html

use crate::{Gfp, Kmalloc, KmemCache, Malloc, Uslab};
use core::alloc::Layout;
use core::ptr::NonNull;
use uslab_pool::source::Source;

fn flags(zero: bool) -> Gfp {
    if zero { Gfp::ZERO } else { Gfp::KERNEL }
}

// SAFETY: objects have the size and alignment of their geometry.
unsafe impl Source for &KmemCache {
    /// Allocates an object. Returns `None` for a cache with a constructor, because a container would leave
    /// unconstructed memory in the object.
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        let serves = |geometry: &crate::Geometry| {
            layout.size() <= geometry.object_size() && layout.align() <= geometry.align()
        };
        let is_supported = serves(self.geometry()) && !self.cache().has_hooks();
        is_supported.then(|| self.alloc(flags(zero)).ok()).flatten()
    }
    unsafe fn put(self, memory: NonNull<u8>, _: Layout) {
        // SAFETY: by the trait's contract, the memory came from this allocator and is no longer used.
        unsafe { self.free(memory) };
    }
}
// SAFETY: `alloc_layout` returns memory of the layout.
unsafe impl Source for &Kmalloc {
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        self.alloc_layout(layout, flags(zero)).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, _: Layout) {
        // SAFETY: by the trait's contract, the memory came from this allocator and is no longer used.
        unsafe { self.free(memory) };
    }
}
// SAFETY: `alloc` returns memory of the layout.
unsafe impl Source for &Malloc {
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        self.alloc(layout, flags(zero)).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: by the trait's contract, the memory has this layout and is no longer used.
        unsafe { self.free_sized(memory, layout) };
    }
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: by the trait's contract, the memory has the old layout, and the new size is not 0.
        unsafe { self.realloc_sized(memory, old, new.size(), flags(zero)) }.ok()
    }
}
// SAFETY: `Uslab` implements `GlobalAlloc`, which has the same contract.
unsafe impl Source for Uslab {
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        self.allocate(layout, flags(zero)).ok()
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: by the trait's contract, the memory has this layout and is no longer used.
        unsafe { self.free_sized(memory, layout) };
    }
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: by the trait's contract, the memory has the old layout, and the new size is not 0.
        let new_memory = unsafe { self.reallocate_sized(memory, old, new.size()) }.ok()?;
        if zero && new.size() > old.size() {
            // SAFETY: the caller owns `new.size()` bytes at `new_memory`.
            unsafe { new_memory.add(old.size()).write_bytes(0, new.size() - old.size()) };
        }
        Some(new_memory)
    }
}

#[cfg(feature = "allocator-api2-02")]
uslab_pool::allocators!(allocator_api2_02: &KmemCache, &Kmalloc, &Malloc, Uslab);
#[cfg(feature = "allocator-api2-04")]
uslab_pool::allocators!(allocator_api2_04: &KmemCache, &Kmalloc, &Malloc, Uslab);

//! Implements the `Allocator` trait of all versions of `allocator-api2`, for pools and for the caches of `uslab`.
//!
//! [`Allocator`]: https://docs.rs/allocator-api2/latest/allocator_api2/alloc/trait.Allocator.html

#[cfg(feature = "std")]
use crate::Hybrid;
use crate::allocator::Allocator;
use crate::area::Area;
use crate::error::PoolError;
use crate::linear::{Arena, Scope};
use crate::local::Local;
use core::alloc::Layout;
use core::ptr::NonNull;

/// A memory source with the operations that all versions of the trait need.
///
/// # Safety
/// Memory from the source must have the requested layout, and must belong only to the caller until the caller returns
/// it by `put`.
pub unsafe trait Source: Copy {
    /// Allocates memory for a layout whose size is not 0. If `zero` is true, the memory is zeroed.
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>>;
    /// # Safety
    /// `memory` must come from `get` with this layout, and the caller must no longer use it.
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout);
    /// Resizes memory to another size with the same alignment. If `zero` is true, the bytes beyond the old size are
    /// zero.
    ///
    /// # Safety
    /// If the call succeeds, the old memory counts as returned, so the conditions of `put` must hold. The sizes of the
    /// old and the new layout must not be 0.
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: the memory has the old layout, by this function's contract.
        unsafe { move_to_new_memory(self, memory, old, new, zero) }
    }
}

/// Allocates new memory, copies the contents, and frees the old memory.
///
/// # Safety
/// The caller must fulfil the safety conditions of [`Source::resize`].
unsafe fn move_to_new_memory(
    source: impl Source,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
    zero: bool,
) -> Option<NonNull<u8>> {
    let new_memory = source.get(new, zero)?;
    // SAFETY: both memories have at least this size and do not overlap, and the old memory is no longer used.
    unsafe {
        new_memory.copy_from_nonoverlapping(memory, old.size().min(new.size()));
        source.put(memory, old);
    }
    Some(new_memory)
}

/// If `zero` is true, zeroes the memory of a layout from the byte `first_byte` to its end.
///
/// # Safety
/// The memory must have this layout and belong to the caller.
unsafe fn zero_layout_tail(
    memory: NonNull<u8>,
    layout: Layout,
    first_byte: usize,
    zero: bool,
) -> NonNull<u8> {
    if zero {
        // SAFETY: the bytes belong to the caller, by this function's contract.
        unsafe { memory.add(first_byte).write_bytes(0, layout.size() - first_byte) };
    }
    memory
}

#[cfg(feature = "std")]
// SAFETY: `alloc` returns memory of the layout, which does not move with the pools.
unsafe impl Source for &Hybrid {
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: the memory was just allocated with this layout.
        self.alloc(layout).ok().map(|memory| unsafe { zero_layout_tail(memory, layout, 0, zero) })
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the memory has this layout and is no longer used, by this function's contract.
        let freed = unsafe { self.free(memory, layout) };
        debug_assert_eq!(freed, Ok(()), "the block must belong to this allocator");
    }
}

/// Implements [`Source`] for allocators that first try to resize a block in place.
macro_rules! in_place {
    ($([$($of:tt)*] $source:ty: |$it:ident| $allocator:expr;)+) => { $(
        // SAFETY: allocated memory belongs to the caller until it is put back, or until the reference ends, with which
        // its memory may end.
        unsafe impl<$($of)*> Source for $source {
            fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
                let $it = self;
                // SAFETY: the memory was just allocated with this layout.
                $allocator.obtain(layout).map(|memory| unsafe { zero_layout_tail(memory, layout, 0, zero) })
            }
            unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
                let $it = self;
                // SAFETY: the memory has this layout and is no longer used, by this function's contract.
                unsafe { $allocator.give(memory, layout) };
            }
            unsafe fn resize(
                self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool,
            ) -> Option<NonNull<u8>> {
                let $it = self;
                // SAFETY: the memory has the old layout, by this function's contract. After a success, the new layout's
                // bytes belong to the caller.
                unsafe {
                    if $allocator.fit(memory, old, new) {
                        return Some(zero_layout_tail(memory, new, old.size().min(new.size()), zero));
                    }
                    move_to_new_memory(self, memory, old, new, zero)
                }
            }
        }
    )+ };
}
in_place! {
    [A: Allocator] &Local<A>: |it| it;
    [A: Area, G: FnMut(usize) -> Result<A, PoolError>] &Arena<A, G>: |it| it;
    [A: Area, G: FnMut(usize) -> Result<A, PoolError>] &Scope<'_, A, G>: |it| it.arena();
}

/// Returns a dangling pointer, which represents memory of size 0.
fn dangling_block(layout: Layout) -> NonNull<u8> {
    NonNull::without_provenance(core::num::NonZeroUsize::MIN.saturating_add(layout.align() - 1))
}

/// Allocates memory for any layout, including size 0.
pub fn allocate(source: impl Source, layout: Layout, zero: bool) -> Option<NonNull<[u8]>> {
    let memory = if layout.size() == 0 { Some(dangling_block(layout)) } else { source.get(layout, zero) };
    memory.map(|memory| NonNull::slice_from_raw_parts(memory, layout.size()))
}
/// Frees memory.
///
/// # Safety
/// The conditions of [`Source::put`] must hold, except that the size of the layout may be 0.
pub unsafe fn deallocate(source: impl Source, memory: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: the memory has this layout and is no longer used, by this function's contract.
        unsafe { source.put(memory, layout) };
    }
}
/// Resizes memory to another layout; the alignment may change.
///
/// # Safety
/// The conditions of [`Source::resize`] must hold, except that either size may be 0, and the alignments may differ.
pub unsafe fn reallocate(
    source: impl Source,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
    zero: bool,
) -> Option<NonNull<[u8]>> {
    if old.align() == new.align() && old.size() > 0 && new.size() > 0 {
        // SAFETY: the memory has the old layout, by this function's contract, and neither layout is empty here.
        let new_memory = unsafe { source.resize(memory, old, new, zero) }?;
        return Some(NonNull::slice_from_raw_parts(new_memory, new.size()));
    }
    let new_memory = allocate(source, new, zero)?;
    // SAFETY: both memories have at least this size and do not overlap, and the old memory is no longer used.
    unsafe {
        new_memory.cast::<u8>().copy_from_nonoverlapping(memory, old.size().min(new.size()));
        deallocate(source, memory, old);
    }
    Some(new_memory)
}

/// Implements one version of the `Allocator` trait for each given [`Source`]. The caller of the macro must import
/// `Layout` and `NonNull` of the same version.
#[doc(hidden)]
#[macro_export]
macro_rules! allocators {
    ($version:ident: $($source:ty),*) => { $crate::allocators!($version: $({} $source;)*); };
    ($version:ident: $({$($of:tt)*} $source:ty;)*) => { $(
        // SAFETY: `Source` has an equal contract. Copies share the allocator, which outlives the reference or belongs
        // to the process.
        unsafe impl<$($of)*> $version::alloc::Allocator for $source {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                $crate::source::allocate(*self, layout, false).ok_or($version::alloc::AllocError)
            }
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                $crate::source::allocate(*self, layout, true).ok_or($version::alloc::AllocError)
            }
            unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
                // SAFETY: the memory has this layout and is no longer used, by the trait's contract.
                unsafe { $crate::source::deallocate(*self, memory, layout) };
            }
            unsafe fn grow(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: the memory has the old layout, by the trait's contract.
                unsafe { $crate::source::reallocate(*self, memory, old, new, false) }.ok_or($version::alloc::AllocError)
            }
            unsafe fn grow_zeroed(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: the memory has the old layout, by the trait's contract.
                unsafe { $crate::source::reallocate(*self, memory, old, new, true) }.ok_or($version::alloc::AllocError)
            }
            unsafe fn shrink(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: the memory has the old layout, by the trait's contract.
                unsafe { self.grow(memory, old, new) }
            }
        }
    )* };
}

#[cfg(any(feature = "allocator-api2-02", feature = "allocator-api2-04"))]
macro_rules! of_pools {
    ($version:ident) => {
        allocators! {
            $version:
            {A: Allocator} &Local<A>;
            {A: Area, G: FnMut(usize) -> Result<A, PoolError>} &Arena<A, G>;
            {A: Area, G: FnMut(usize) -> Result<A, PoolError>} &Scope<'_, A, G>;
        }
    };
}
#[cfg(feature = "allocator-api2-02")]
of_pools!(allocator_api2_02);
#[cfg(all(feature = "allocator-api2-02", feature = "std"))]
allocators!(allocator_api2_02: &Hybrid);
#[cfg(feature = "allocator-api2-04")]
of_pools!(allocator_api2_04);
#[cfg(all(feature = "allocator-api2-04", feature = "std"))]
allocators!(allocator_api2_04: &Hybrid);

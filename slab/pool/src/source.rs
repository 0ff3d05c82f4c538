//! What implements [`Allocator`] of `allocator-api2`, once for all its versions: for the pools here, and for the caches of
//! `uslab`.
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

/// What each version of the trait asks for, in our own words.
///
/// # Safety
/// Memory is of its layout and the caller's alone until it is put back.
pub unsafe trait Source: Copy {
    /// Memory for a layout that is not empty; zeroed, if that is asked for.
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>>;
    /// # Safety
    /// `memory` came from `get` with this layout, and is nobody's any more.
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout);
    /// Memory for `size` bytes at the same alignment instead; with `zero`, zero behind the old ones.
    ///
    /// # Safety
    /// As `put`, after a success. Neither is empty.
    unsafe fn resize(self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        unsafe { moved(self, memory, old, new, zero) }
    }
}

/// Other memory, with the old contents.
///
/// # Safety
/// As [`Source::resize`].
unsafe fn moved(
    source: impl Source,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
    zero: bool,
) -> Option<NonNull<u8>> {
    let moved = source.get(new, zero)?;
    // SAFETY: both are so large, and apart; the old one is nobody's any more.
    unsafe {
        moved.copy_from_nonoverlapping(memory, old.size().min(new.size()));
        source.put(memory, old);
    }
    Some(moved)
}

/// Zeroes the bytes of a layout from `from` on, if that is asked for.
///
/// # Safety
/// The memory is of that layout, and the caller's.
unsafe fn zeroed(memory: NonNull<u8>, layout: Layout, from: usize, zero: bool) -> NonNull<u8> {
    if zero {
        // SAFETY: by contract.
        unsafe { memory.add(from).write_bytes(0, layout.size() - from) };
    }
    memory
}

#[cfg(feature = "std")]
// SAFETY: as `alloc` says; what the pools hand out stays where it is when they are moved.
unsafe impl Source for &Hybrid {
    fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: ours since just now.
        self.alloc(layout).ok().map(|memory| unsafe { zeroed(memory, layout, 0, zero) })
    }
    unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        let freed = unsafe { self.free(memory, layout) };
        debug_assert_eq!(freed, Ok(()), "it came from here");
    }
}

/// Implements [`Source`] for who looks first whether a block can stay where it is.
macro_rules! in_place {
    ($([$($of:tt)*] $source:ty: |$it:ident| $allocator:expr;)+) => { $(
        // SAFETY: what is out is the caller's until it is put back, or the reference ends, with which its memory may end.
        unsafe impl<$($of)*> Source for $source {
            fn get(self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
                let $it = self;
                // SAFETY: ours since just now.
                $allocator.obtain(layout).map(|memory| unsafe { zeroed(memory, layout, 0, zero) })
            }
            unsafe fn put(self, memory: NonNull<u8>, layout: Layout) {
                let $it = self;
                // SAFETY: passed on.
                unsafe { $allocator.give(memory, layout) };
            }
            unsafe fn resize(
                self, memory: NonNull<u8>, old: Layout, new: Layout, zero: bool,
            ) -> Option<NonNull<u8>> {
                let $it = self;
                // SAFETY: passed on; after a success the new layout's bytes are the caller's.
                unsafe {
                    if $allocator.fit(memory, old, new) {
                        return Some(zeroed(memory, new, old.size().min(new.size()), zero));
                    }
                    moved(self, memory, old, new, zero)
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

/// A dangling pointer for what is empty.
fn nothing(layout: Layout) -> NonNull<u8> {
    NonNull::without_provenance(core::num::NonZeroUsize::MIN.saturating_add(layout.align() - 1))
}

/// Memory for any layout.
pub fn allocate(source: impl Source, layout: Layout, zero: bool) -> Option<NonNull<[u8]>> {
    let memory = if layout.size() == 0 { Some(nothing(layout)) } else { source.get(layout, zero) };
    memory.map(|memory| NonNull::slice_from_raw_parts(memory, layout.size()))
}
/// Puts it back.
///
/// # Safety
/// As [`Source::put`]; it may be empty.
pub unsafe fn deallocate(source: impl Source, memory: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: passed on.
        unsafe { source.put(memory, layout) };
    }
}
/// Memory for another layout instead.
///
/// # Safety
/// As [`Source::resize`]; either may be empty, and alignments differ.
pub unsafe fn reallocate(
    source: impl Source,
    memory: NonNull<u8>,
    old: Layout,
    new: Layout,
    zero: bool,
) -> Option<NonNull<[u8]>> {
    if old.align() == new.align() && old.size() > 0 && new.size() > 0 {
        // SAFETY: passed on.
        let moved = unsafe { source.resize(memory, old, new, zero) }?;
        return Some(NonNull::slice_from_raw_parts(moved, new.size()));
    }
    let moved = allocate(source, new, zero)?;
    // SAFETY: both are so large, and apart; the old one is nobody's any more.
    unsafe {
        moved.cast::<u8>().copy_from_nonoverlapping(memory, old.size().min(new.size()));
        deallocate(source, memory, old);
    }
    Some(moved)
}

/// Implements the trait of a version for each of these [`Source`]s, where `Layout` and `NonNull` are imported.
#[doc(hidden)]
#[macro_export]
macro_rules! allocators {
    ($version:ident: $($source:ty),*) => { $crate::allocators!($version: $({} $source;)*); };
    ($version:ident: $({$($of:tt)*} $source:ty;)*) => { $(
        // SAFETY: as `Source`; what is shared is the allocator, which outlives the reference, or the process's.
        unsafe impl<$($of)*> $version::alloc::Allocator for $source {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                $crate::source::allocate(*self, layout, false).ok_or($version::alloc::AllocError)
            }
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                $crate::source::allocate(*self, layout, true).ok_or($version::alloc::AllocError)
            }
            unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
                // SAFETY: passed on.
                unsafe { $crate::source::deallocate(*self, memory, layout) };
            }
            unsafe fn grow(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
                unsafe { $crate::source::reallocate(*self, memory, old, new, false) }.ok_or($version::alloc::AllocError)
            }
            unsafe fn grow_zeroed(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
                unsafe { $crate::source::reallocate(*self, memory, old, new, true) }.ok_or($version::alloc::AllocError)
            }
            unsafe fn shrink(
                &self, memory: NonNull<u8>, old: Layout, new: Layout,
            ) -> Result<NonNull<[u8]>, $version::alloc::AllocError> {
                // SAFETY: passed on.
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

//! The interface between guards or collections and the allocator below them, with implementations for pools.

use super::area::Area;
use super::best_fit::BestFit;
#[cfg(feature = "std")]
use super::chunked::ChunkedPool;
use super::error::{BadFree, Refused};
use super::fixed::FixedPool;
#[cfg(feature = "std")]
use super::reserved::ReservedPool;
use super::slot::SlotLayout;
use super::stack::StackAlloc;
use super::tlsf::Tlsf;
use core::alloc::Layout;
use core::ptr::NonNull;
#[cfg(feature = "std")]
use std::alloc::{GlobalAlloc, System};

/// An allocator whose requests have a layout and the offset of the byte to align.
///
/// # Safety
/// Memory that [`allocate`](Self::allocate) returns must be valid for reads and writes of the layout's size, and the
/// byte at `offset` must be aligned as the layout requires. The allocator must not use the memory until the caller
/// releases it, the allocator is dropped, or another method ends the allocation.
pub unsafe trait Allocator {
    /// Allocates memory for `layout`; the byte at `offset` is aligned.
    ///
    /// # Errors
    /// Returns an error if memory is short, or if the request can never be served.
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused>;
    /// Frees memory.
    ///
    /// # Errors
    /// Returns an error if the allocator detects that the address is invalid.
    ///
    /// # Safety
    /// This allocator must have allocated the memory with this layout and offset. The memory must not have been
    /// released since, and the caller must no longer use it.
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree>;
    /// Resizes memory in place to another size, with the same alignment. If the memory cannot be resized in place,
    /// changes nothing and returns `false`.
    ///
    /// # Safety
    /// This allocator must have allocated the memory with the old layout and this offset, and must not have released it
    /// since. If the call succeeds, the memory has the new layout.
    unsafe fn resize(&mut self, _memory: NonNull<u8>, _old: Layout, _new: Layout, _offset: usize) -> bool {
        false
    }
}

/// An allocator with slots of one size; the largest object's size is fixed when the allocator is made.
pub trait Pooled: Allocator {
    /// Size and alignment of the largest object that fits a slot.
    fn slots(&self) -> SlotLayout;
}

macro_rules! pooled {
    ($([$($of:tt)*] $pool:ty),+) => {$(
        // SAFETY: a slot that is not on the free list belongs to the caller. The pool admits only objects that fit its
        // slots, with the offset that it aligns.
        unsafe impl<$($of)*> Allocator for $pool {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                self.alloc_at(layout, offset)
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, _: Layout, _: usize) -> Result<(), BadFree> {
                // SAFETY: the slot was allocated from this pool and is no longer used, by this function's contract.
                unsafe { self.free(memory) }
            }
            // Every slot has the same size.
            unsafe fn resize(&mut self, _: NonNull<u8>, _: Layout, new: Layout, offset: usize) -> bool {
                self.slots().admits(new, offset).is_ok()
            }
        }
        impl<$($of)*> Pooled for $pool {
            fn slots(&self) -> SlotLayout {
                self.slots()
            }
        }
    )+};
}
pooled!([A: Area] FixedPool<A>);
#[cfg(feature = "std")]
pooled!([] ChunkedPool, [] ReservedPool);

/// Returns `layout` with padding before it, so that the byte at `offset` is aligned, and the number of padding bytes.
/// Allocators that align the start of a block call this function.
fn padded_layout(layout: Layout, offset: usize) -> Option<(Layout, usize)> {
    let pad = offset.wrapping_neg() & (layout.align() - 1);
    let size = layout.size().max(1).checked_add(pad)?;
    Some((Layout::from_size_align(size, layout.align()).ok()?, pad))
}

#[cfg(feature = "std")]
// SAFETY: the system's heap guarantees valid memory. Because of the padding, byte `offset` is at a multiple of the
// alignment.
unsafe impl Allocator for System {
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        let memory = Refused::Memory { bytes: layout.size() };
        let (layout, pad) = padded_layout(layout, offset).ok_or(memory)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { self.alloc(layout) }).ok_or(memory)?;
        // SAFETY: the block begins with the padding.
        Ok(unsafe { start.add(pad) })
    }
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
        let foreign = BadFree::Foreign { address: memory.addr().get() };
        let (layout, pad) = padded_layout(layout, offset).ok_or(foreign)?;
        // SAFETY: the block was allocated with this layout, and begins with the padding.
        unsafe { self.dealloc(memory.sub(pad).as_ptr(), layout) };
        Ok(())
    }
}

macro_rules! padded {
    ($($type:ty: $free:expr, $resize:expr;)+) => {$(
        // SAFETY: an allocated block belongs to the caller. Because of the padding, byte `offset` is at a multiple of
        // the alignment.
        unsafe impl<A: Area> Allocator for $type {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                let (bytes, align) = (layout.size(), layout.align());
                let (layout, pad) = padded_layout(layout, offset).ok_or(Refused::NoRoom { bytes, align })?;
                // SAFETY: the block begins with the padding.
                Ok(unsafe { self.alloc(layout)?.add(pad) })
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
                let foreign = BadFree::Foreign { address: memory.addr().get() };
                let (layout, pad) = padded_layout(layout, offset).ok_or(foreign)?;
                // SAFETY: the block was allocated with this layout, and begins with the padding.
                unsafe { $free(self, memory.sub(pad), layout) }
            }
            unsafe fn resize(&mut self, memory: NonNull<u8>, old: Layout, new: Layout, offset: usize) -> bool {
                let (Some((old, pad)), Some((new, _))) = (padded_layout(old, offset), padded_layout(new, offset)) else { return false };
                // SAFETY: the block was allocated with this layout, and begins with the padding.
                unsafe { $resize(self, memory.sub(pad), old, new.size()) == Ok(true) }
            }
        }
    )+};
}
padded! {
    Tlsf<A>: |allocator: &mut Self, memory, _| allocator.free(memory), |allocator: &mut Self, memory, _, bytes| allocator.resize(memory, bytes);
    BestFit<A>: |allocator: &mut Self, memory, _| allocator.free(memory), |allocator: &mut Self, memory, _, bytes| allocator.resize(memory, bytes);
    StackAlloc<A>: StackAlloc::free, StackAlloc::resize;
}

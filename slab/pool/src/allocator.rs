//! Interface of guards and collections to the allocator below, and the allocators that are pools.

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

/// Allocation by layout and offset.
///
/// # Safety
/// Memory that [`allocate`](Self::allocate) returns is valid for reads and writes of the layout's size, and not used by the
/// allocator until it is released, the allocator is dropped, or another method of it ends the allocation; byte `offset` of it
/// is aligned as the layout requires.
pub unsafe trait Allocator {
    /// Allocates memory for `layout` whose byte `offset` is aligned.
    ///
    /// # Errors
    /// Memory is short, or the request can never be served.
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused>;
    /// Frees memory.
    ///
    /// # Errors
    /// The address is invalid, as far as the allocator checks.
    ///
    /// # Safety
    /// The memory was allocated from this allocator with that layout and offset, was not released since, and is not used any
    /// more.
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree>;
    /// Resizes memory in place to a layout of the same alignment. `false` if that fails, with nothing changed.
    ///
    /// # Safety
    /// The memory was allocated from this allocator with the old layout and that offset, and was not released since. After a
    /// success it has the new layout.
    unsafe fn resize(&mut self, _memory: NonNull<u8>, _old: Layout, _new: Layout, _offset: usize) -> bool {
        false
    }
}

/// An allocator whose memory is slots: the largest object is fixed when it is made.
pub trait Pooled: Allocator {
    /// Size and alignment of the largest object.
    fn slots(&self) -> SlotLayout;
}

macro_rules! pooled {
    ($([$($of:tt)*] $pool:ty),+) => {$(
        // SAFETY: a slot that is on no list is the caller's; the pool admits only objects that fit its slots, and the offset
        // that it aligns.
        unsafe impl<$($of)*> Allocator for $pool {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                self.alloc_at(layout, offset)
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, _: Layout, _: usize) -> Result<(), BadFree> {
                // SAFETY: allocated from here, and not used any more, by this function's contract.
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

/// Layout with padding in front, for allocators that align the start of blocks: byte `offset` is aligned then.
fn padded(layout: Layout, offset: usize) -> Option<(Layout, usize)> {
    let pad = offset.wrapping_neg() & (layout.align() - 1);
    let size = layout.size().max(1).checked_add(pad)?;
    Some((Layout::from_size_align(size, layout.align()).ok()?, pad))
}

#[cfg(feature = "std")]
// SAFETY: the heap's guarantees; with the padding in front, byte `offset` is at a multiple of the alignment.
unsafe impl Allocator for System {
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        let memory = Refused::Memory { bytes: layout.size() };
        let (layout, pad) = padded(layout, offset).ok_or(memory)?;
        // SAFETY: not of size zero.
        let start = NonNull::new(unsafe { self.alloc(layout) }).ok_or(memory)?;
        // SAFETY: the block has the padding in front.
        Ok(unsafe { start.add(pad) })
    }
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
        let foreign = BadFree::Foreign { address: memory.addr().get() };
        let (layout, pad) = padded(layout, offset).ok_or(foreign)?;
        // SAFETY: allocated above with the same layout, and the padding before it.
        unsafe { self.dealloc(memory.sub(pad).as_ptr(), layout) };
        Ok(())
    }
}

macro_rules! padded {
    ($($type:ty: $free:expr, $resize:expr;)+) => {$(
        // SAFETY: an allocated block is the caller's; with the padding in front, byte `offset` is at a multiple of the
        // alignment.
        unsafe impl<A: Area> Allocator for $type {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                let (bytes, align) = (layout.size(), layout.align());
                let (layout, pad) = padded(layout, offset).ok_or(Refused::NoRoom { bytes, align })?;
                // SAFETY: the block has the padding in front.
                Ok(unsafe { self.alloc(layout)?.add(pad) })
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
                let foreign = BadFree::Foreign { address: memory.addr().get() };
                let (layout, pad) = padded(layout, offset).ok_or(foreign)?;
                // SAFETY: allocated above with the same layout, and the padding before it.
                unsafe { $free(self, memory.sub(pad), layout) }
            }
            unsafe fn resize(&mut self, memory: NonNull<u8>, old: Layout, new: Layout, offset: usize) -> bool {
                let (Some((old, pad)), Some((new, _))) = (padded(old, offset), padded(new, offset)) else { return false };
                // SAFETY: allocated above with the same layout, and the padding before it.
                unsafe { $resize(self, memory.sub(pad), old, new.size()) == Ok(true) }
            }
        }
    )+};
}
padded! {
    Tlsf<A>: |it: &mut Self, memory, _| it.free(memory), |it: &mut Self, memory, _, bytes| it.resize(memory, bytes);
    BestFit<A>: |it: &mut Self, memory, _| it.free(memory), |it: &mut Self, memory, _, bytes| it.resize(memory, bytes);
    StackAlloc<A>: StackAlloc::free, StackAlloc::resize;
}

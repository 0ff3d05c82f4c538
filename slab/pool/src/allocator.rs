//! What guards and collections ask of the allocator below them, and which allocators are pools.

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

/// Memory by layout and offset.
///
/// # Safety
/// What [`allocate`](Self::allocate) returns is valid for reads and writes of the layout's size and nobody else's until it
/// is released, or the allocator dropped or told by a method of its own to have it again; and byte `offset` of it is aligned as
/// the layout says.
pub unsafe trait Allocator {
    /// Memory for `layout` whose byte `offset` is aligned.
    ///
    /// # Errors
    /// There is none, or never will be.
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused>;
    /// Takes it back.
    ///
    /// # Errors
    /// What is wrong with the address, as far as the allocator looks.
    ///
    /// # Safety
    /// It was allocated from here with that layout and offset, was not released since, and nobody uses it any more.
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree>;
    /// Makes it memory for another layout of the same alignment, where it lies. `false`: it cannot, and is as it was.
    ///
    /// # Safety
    /// It was allocated from here with the old layout and that offset, and was not released since. After a success it has the new
    /// one.
    unsafe fn resize(&mut self, _memory: NonNull<u8>, _old: Layout, _new: Layout, _offset: usize) -> bool {
        false
    }
}

/// An allocator whose memory is slots: it must be told the largest object when it is made.
pub trait Pooled: Allocator {
    /// The largest object that is served.
    fn slots(&self) -> SlotLayout;
}

macro_rules! pooled {
    ($([$($of:tt)*] $pool:ty),+) => {$(
        // SAFETY: a slot of the pool that is in no list is the caller's; the pool admits what its slots hold, and no other
        // offset than the one it aligns.
        unsafe impl<$($of)*> Allocator for $pool {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                self.alloc_at(layout, offset)
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, _: Layout, _: usize) -> Result<(), BadFree> {
                // SAFETY: allocated from here, and not used any more, by contract.
                unsafe { self.free(memory) }
            }
            // A slot is a slot.
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

/// Who aligns starts of blocks only puts bytes in front of the offset until that is aligned.
fn padded(layout: Layout, offset: usize) -> Option<(Layout, usize)> {
    let pad = offset.wrapping_neg() & (layout.align() - 1);
    let size = layout.size().max(1).checked_add(pad)?;
    Some((Layout::from_size_align(size, layout.align()).ok()?, pad))
}

#[cfg(feature = "std")]
// SAFETY: the heap's promises; with so many bytes in front, byte `offset` lies at a multiple of the alignment.
unsafe impl Allocator for System {
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        let memory = Refused::Memory { bytes: layout.size() };
        let (layout, pad) = padded(layout, offset).ok_or(memory)?;
        // SAFETY: not of size zero.
        let start = NonNull::new(unsafe { self.alloc(layout) }).ok_or(memory)?;
        // SAFETY: the block has so many bytes more.
        Ok(unsafe { start.add(pad) })
    }
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
        let foreign = BadFree::Foreign { address: memory.addr().get() };
        let (layout, pad) = padded(layout, offset).ok_or(foreign)?;
        // SAFETY: allocated above with the same layout, so many bytes before.
        unsafe { self.dealloc(memory.sub(pad).as_ptr(), layout) };
        Ok(())
    }
}

macro_rules! padded {
    ($($type:ty: $free:expr, $resize:expr;)+) => {$(
        // SAFETY: a block that is out is the caller's; with so many bytes in front, byte `offset` lies at a multiple of the
        // alignment.
        unsafe impl<A: Area> Allocator for $type {
            #[inline]
            fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
                let (bytes, align) = (layout.size(), layout.align());
                let (layout, pad) = padded(layout, offset).ok_or(Refused::NoRoom { bytes, align })?;
                // SAFETY: the block has so many bytes more.
                Ok(unsafe { self.alloc(layout)?.add(pad) })
            }
            #[inline]
            unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, offset: usize) -> Result<(), BadFree> {
                let foreign = BadFree::Foreign { address: memory.addr().get() };
                let (layout, pad) = padded(layout, offset).ok_or(foreign)?;
                // SAFETY: allocated above with the same layout, so many bytes before.
                unsafe { $free(self, memory.sub(pad), layout) }
            }
            unsafe fn resize(&mut self, memory: NonNull<u8>, old: Layout, new: Layout, offset: usize) -> bool {
                let (Some((old, pad)), Some((new, _))) = (padded(old, offset), padded(new, offset)) else { return false };
                // SAFETY: as above.
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

//! A heap of a fixed number of objects, made of an area, a pool and an arena in one type.
//!
//! Source: the `FixedSizeHeap` in Reinalter's comments on "Memory allocation strategies: a pool allocator" (2012).

use super::area::{Area, HeapArea};
use super::arena::{Bounds, MemoryArena};
use super::error::PoolError;
use super::fixed::FixedPool;
use core::ops::{Deref, DerefMut};

/// A heap that consists of an area, a pool in the area, and an arena that guards the pool's objects. The heap
/// dereferences to its arena.
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{FixedSizeHeap, Refused, SimpleBounds, StackArea};
///
/// // On existing memory, and on as much as 100 objects take.
/// let mut area = StackArea::<512>::new();
/// let mut on_stack = FixedSizeHeap::<_, SimpleBounds>::new(area.lend(), 32, 8)?;
/// let mut on_heap = FixedSizeHeap::<_, SimpleBounds>::with_capacity(100, 32, 8)?;
///
/// let layout = Layout::new::<[u64; 4]>();
/// assert_eq!((0..).map_while(|_| on_stack.alloc(layout).ok()).count(), 12);
/// assert_eq!((0..).map_while(|_| on_heap.alloc(layout).ok()).count(), 100);
/// assert_eq!(on_heap.alloc(layout), Err(Refused::Full));
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
#[derive(Debug)]
pub struct FixedSizeHeap<A: Area, B: Bounds>(MemoryArena<FixedPool<A>, B>);

impl<A: Area, B: Bounds> FixedSizeHeap<A, B> {
    /// Makes a heap with as many objects, including their guards, as fit into `area`. Objects have at most `size`
    /// bytes, and are aligned to `align`.
    ///
    /// # Errors
    /// Returns the errors of [`SlotLayout::new`](super::SlotLayout::new) for an object with its guards, and the errors
    /// of [`FixedPool::new`].
    pub fn new(area: A, size: usize, align: usize) -> Result<Self, PoolError> {
        MemoryArena::of_pool(size, align, |slots| FixedPool::new(area, slots)).map(Self)
    }
}

impl<B: Bounds> FixedSizeHeap<HeapArea, B> {
    /// Makes a heap of `count` objects in memory of the global allocator, with extra bytes for the alignment.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and [`PoolError::Memory`] if memory is short.
    pub fn with_capacity(count: usize, size: usize, align: usize) -> Result<Self, PoolError> {
        let slots = MemoryArena::<FixedPool<HeapArea>, B>::slots(size, align)?;
        let error = PoolError::Large { size };
        let bytes = slots.stride().checked_mul(count).ok_or(error)?;
        Self::new(HeapArea::new(bytes.checked_add(slots.pad(0)).ok_or(error)?, align)?, size, align)
    }
}

impl<A: Area, B: Bounds> Deref for FixedSizeHeap<A, B> {
    type Target = MemoryArena<FixedPool<A>, B>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
impl<A: Area, B: Bounds> DerefMut for FixedSizeHeap<A, B> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::arena::{NoBounds, SimpleBounds};
    use super::*;

    #[test]
    fn fixed_size_heap_holds_exactly_the_requested_objects() {
        for (count, size, align) in [(1, 8, 8), (7, 24, 32), (100, 32, 8), (3, 1, 4096)] {
            let heap = FixedSizeHeap::<_, SimpleBounds>::with_capacity(count, size, align).unwrap();
            assert_eq!(heap.allocator().capacity(), count);
        }
        let heap = FixedSizeHeap::<_, NoBounds>::with_capacity(256, 32, 8).unwrap();
        assert_eq!((heap.allocator().capacity(), heap.allocator().slots().stride()), (256, 32));
        let error = FixedSizeHeap::<_, NoBounds>::with_capacity(0, 32, 8).err();
        assert_eq!(error, Some(PoolError::NoRoom { bytes: 0, needed: 1 }));
        let error = FixedSizeHeap::<_, NoBounds>::with_capacity(usize::MAX, 32, 8).err();
        assert_eq!(error, Some(PoolError::Large { size: 32 }));
    }
}

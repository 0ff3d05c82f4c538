//! An arena: an allocator plus a policy that puts guards around each object.
//!
//! ```text
//! allocator's slot, 40 bytes   [ guard 4 ][   object, 32 bytes   ][ guard 4 ]
//!                                         ^ aligned: the slot's offset is 4
//! ```
//!
//! A pool must know the size of its largest object when the pool is made. Guards enlarge the objects, but the arena
//! that adds the guards is made after the pool. The pool can still be made first, in two ways:
//!
//! * [`memory_requirement`](MemoryArena::memory_requirement),
//!   [`alignment_requirement`](MemoryArena::alignment_requirement) and
//!   [`offset_requirement`](MemoryArena::offset_requirement) need no arena, because the policy is part of the arena's
//!   type. The caller makes the pool with the size, alignment and offset that the arena requires.
//! * [`MemoryArena::of_pool`] makes a pool that fulfils the arena's requirements. The function `of_pool` accepts only
//!   pools.
//!
//! [`FixedSizeHeap`](super::FixedSizeHeap) combines an area, a pool and an arena.
//!
//! Source: Reinalter, "Memory allocation strategies: a pool allocator" (2012), including his answers to the post's
//! comments.

use super::allocator::{Allocator, Pooled};
use super::error::{BadFree, Overrun, PoolError, Refused, Side};
use super::slot::SlotLayout;
use core::alloc::Layout;
use core::fmt::Debug;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A policy for guards around each object.
pub trait Bounds: Debug {
    /// Number of guard bytes before an object.
    const FRONT: usize;
    /// Number of guard bytes after an object.
    const BACK: usize;
    /// Writes the guards of an object.
    ///
    /// # Safety
    /// The object at `object` must have `size` bytes. The [`FRONT`](Self::FRONT) bytes before the object
    /// and the [`BACK`](Self::BACK) bytes after it must belong to the caller.
    unsafe fn guard(object: NonNull<u8>, size: usize);
    /// Checks the guards of an object.
    ///
    /// # Errors
    /// Returns an error that names the damaged guard.
    ///
    /// # Safety
    /// The caller must have called [`guard`](Self::guard) for this object with this size.
    unsafe fn check(object: NonNull<u8>, size: usize) -> Result<(), Overrun>;
}

/// The policy without guards: objects are adjacent, and overruns are not detected.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBounds;

impl Bounds for NoBounds {
    const FRONT: usize = 0;
    const BACK: usize = 0;
    unsafe fn guard(_: NonNull<u8>, _: usize) {}
    unsafe fn check(_: NonNull<u8>, _: usize) -> Result<(), Overrun> {
        Ok(())
    }
}

/// The policy with a guard of four bytes before and after each object. Cost: two stores and two loads per object.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimpleBounds;

impl SimpleBounds {
    const GUARD_WORD: u32 = 0xFACE_B0B5;
    const BYTES: usize = size_of::<u32>();

    /// Returns the addresses of an object's two guards.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Bounds::guard`].
    unsafe fn guard_addresses(object: NonNull<u8>, size: usize) -> [(NonNull<u32>, Side); 2] {
        // SAFETY: the bytes around the object belong to the caller.
        unsafe { [(object.sub(Self::BYTES).cast(), Side::Before), (object.add(size).cast(), Side::After)] }
    }
}

impl Bounds for SimpleBounds {
    const FRONT: usize = Self::BYTES;
    const BACK: usize = Self::BYTES;

    unsafe fn guard(object: NonNull<u8>, size: usize) {
        // SAFETY: the bytes around the object belong to the caller, by this function's contract.
        for (guard, _) in unsafe { Self::guard_addresses(object, size) } {
            // SAFETY: the bytes belong to the caller, and need not be aligned.
            unsafe { guard.write_unaligned(Self::GUARD_WORD) };
        }
    }
    unsafe fn check(object: NonNull<u8>, size: usize) -> Result<(), Overrun> {
        // SAFETY: the bytes around the object belong to the caller, and `guard` wrote them.
        for (guard, side) in unsafe { Self::guard_addresses(object, size) } {
            // SAFETY: the bytes belong to the caller, and need not be aligned.
            let value = unsafe { guard.read_unaligned() };
            if value != Self::GUARD_WORD {
                let address = object.addr().get();
                return Err(Overrun { address, side, found: value, written: Self::GUARD_WORD });
            }
        }
        Ok(())
    }
}

/// An allocator with guards around its objects. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{BadFree, ChunkedPool, MemoryArena, SimpleBounds};
///
/// let mut arena = MemoryArena::<_, SimpleBounds>::of_pool(32, 8, |slots| ChunkedPool::new(slots, 4096))?;
/// let layout = Layout::new::<[u64; 4]>();
/// let object = arena.alloc(layout)?;
/// assert!(object.cast::<u64>().is_aligned());
/// // SAFETY: one byte too many, into the guard.
/// unsafe { object.write_bytes(0, 33) };
/// // SAFETY: allocated above, and not used any more.
/// assert!(matches!(unsafe { arena.free(object, layout) }, Err(BadFree::Overrun(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `of_pool` rejects allocators that are not pools:
///
/// ```compile_fail
/// use std::alloc::System;
/// use uslab_pool::{MemoryArena, PoolError, SimpleBounds};
///
/// MemoryArena::<_, SimpleBounds>::of_pool(32, 8, |_| Ok::<_, PoolError>(System));
/// ```
///
/// All constructors except `of_pool` accept any allocator:
///
/// ```
/// # use std::alloc::System;
/// # use uslab_pool::{MemoryArena, SimpleBounds};
/// MemoryArena::<_, SimpleBounds>::new(System);
/// ```
#[derive(Debug)]
pub struct MemoryArena<A, B> {
    allocator: A,
    bounds: PhantomData<B>,
}

impl<A, B: Bounds> MemoryArena<A, B> {
    /// Number of bytes that an allocator must provide for an object of `size` bytes. With [`SimpleBounds`], an
    /// object of 32 bytes needs 40.
    ///
    /// ```
    /// use uslab_pool::{MemoryArena, NoBounds, SimpleBounds};
    ///
    /// const SLOT: usize = MemoryArena::<(), SimpleBounds>::memory_requirement(32);
    /// assert_eq!(SLOT, 40);
    /// assert_eq!(MemoryArena::<(), NoBounds>::memory_requirement(32), 32);
    /// ```
    #[doc(alias = "GetMemoryRequirement")]
    pub const fn memory_requirement(size: usize) -> usize {
        size.saturating_add(B::FRONT).saturating_add(B::BACK)
    }
    /// Alignment that an allocator needs for objects of alignment `align`: the same value, but another byte of the
    /// block is aligned.
    #[doc(alias = "GetMemoryAlignmentRequirement")]
    pub const fn alignment_requirement(align: usize) -> usize {
        align
    }
    /// Offset of the byte that the allocator must align.
    #[doc(alias = "GetMemoryOffsetRequirement")]
    pub const fn offset_requirement() -> usize {
        B::FRONT
    }
}

impl<A: Allocator, B: Bounds> MemoryArena<A, B> {
    /// Makes an arena on top of an existing allocator. If the allocator is a pool, its slots must be large enough, and
    /// it must align the byte that the [module](self) describes.
    pub const fn new(allocator: A) -> Self {
        Self { allocator, bounds: PhantomData }
    }

    /// Allocates an object.
    ///
    /// # Errors
    /// Returns the allocator's error for the object size plus the guards.
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let memory = self.allocator.allocate(Self::layout_with_guards(layout)?, B::FRONT)?;
        // SAFETY: the allocation includes the guards' bytes.
        unsafe {
            let object = memory.add(B::FRONT);
            B::guard(object, layout.size());
            Ok(object)
        }
    }
    /// Frees an object.
    ///
    /// # Errors
    /// Returns [`BadFree::Overrun`] if a guard is damaged; in this case the object stays allocated. Errors of the
    /// allocator are returned, too.
    ///
    /// # Safety
    /// This arena must have allocated the object with `layout`, and must not have freed it since. The caller must no
    /// longer use the object.
    pub unsafe fn free(&mut self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        // SAFETY: this arena allocated the object, by this function's contract.
        unsafe { self.check(object, layout) }?;
        let foreign = BadFree::Foreign { address: object.addr().get() };
        let inflated = Self::layout_with_guards(layout).map_err(|_| foreign)?;
        // SAFETY: the memory was allocated with this layout and offset.
        unsafe { self.allocator.release(object.sub(B::FRONT), inflated, B::FRONT) }
    }
    /// Checks the guards of an object.
    ///
    /// # Errors
    /// Returns [`BadFree::Overrun`] if a guard is damaged.
    ///
    /// # Safety
    /// The conditions of [`free`](Self::free) must hold, except that the object may still be used.
    pub unsafe fn check(&self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        // SAFETY: `alloc` wrote the guards, by this function's contract.
        unsafe { B::check(object, layout.size()) }.map_err(BadFree::Overrun)
    }
    fn layout_with_guards(layout: Layout) -> Result<Layout, Refused> {
        let bytes = Self::memory_requirement(layout.size());
        Layout::from_size_align(bytes, Self::alignment_requirement(layout.align()))
            .map_err(|_| Refused::Size { requested: bytes, max: isize::MAX as usize })
    }
    /// The underlying allocator.
    pub fn allocator(&self) -> &A {
        &self.allocator
    }
}

impl<P: Pooled, B: Bounds> MemoryArena<P, B> {
    /// Makes a pool and an arena on it, for objects of at most `size` bytes (without guards) that are aligned to
    /// `align`.
    ///
    /// # Errors
    /// Returns the error of `make`, or an error if slots of this kind are impossible.
    #[doc(alias = "MemoryPoolArena")]
    pub fn of_pool(
        size: usize,
        align: usize,
        make: impl FnOnce(SlotLayout) -> Result<P, PoolError>,
    ) -> Result<Self, PoolError> {
        Ok(Self::new(make(Self::slots(size, align)?)?))
    }
    pub(super) fn slots(size: usize, align: usize) -> Result<SlotLayout, PoolError> {
        let slots = SlotLayout::new(Self::memory_requirement(size), Self::alignment_requirement(align))?;
        Ok(slots.with_offset(Self::offset_requirement()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::HeapArea;
    use super::super::fixed::FixedPool;
    use super::*;
    use std::alloc::System;

    type GuardedArena = MemoryArena<FixedPool<HeapArea>, SimpleBounds>;
    const OBJECT: Layout = Layout::new::<[u64; 4]>();

    fn fixed(slots: SlotLayout) -> Result<FixedPool<HeapArea>, PoolError> {
        FixedPool::checked(HeapArea::new(4096, 64)?, slots)
    }

    #[test]
    fn guarded_memory_requirement_equals_the_slot_layout() {
        assert_eq!((GuardedArena::memory_requirement(32), GuardedArena::offset_requirement()), (40, 4));
        assert_eq!(GuardedArena::alignment_requirement(16), 16);
        assert_eq!(GuardedArena::memory_requirement(usize::MAX - 3), usize::MAX);
        let slots =
            SlotLayout::new(GuardedArena::memory_requirement(32), GuardedArena::alignment_requirement(8))
                .unwrap();
        let slots = slots.with_offset(GuardedArena::offset_requirement());
        assert_eq!(slots.stride(), 40);
        let mut arena = GuardedArena::new(fixed(slots).unwrap());
        let (a, b) = (arena.alloc(OBJECT).unwrap(), arena.alloc(OBJECT).unwrap());
        assert_eq!((a.addr().get() % 8, b.addr().get() - a.addr().get()), (0, 40));
        assert!(MemoryArena::<FixedPool<HeapArea>, SimpleBounds>::slots(usize::MAX, 8).is_err());
    }

    #[test]
    fn pool_without_room_for_guards_refuses_guarded_objects() {
        let pool = fixed(SlotLayout::new(32, 8).unwrap()).unwrap();
        assert_eq!(GuardedArena::new(pool).alloc(OBJECT), Err(Refused::Size { requested: 40, max: 32 }));
        let pool = fixed(SlotLayout::new(40, 8).unwrap()).unwrap();
        assert_eq!(GuardedArena::new(pool).alloc(OBJECT), Err(Refused::Offset { requested: 4, aligned: 0 }));
        assert!(GuardedArena::of_pool(32, 8, fixed).unwrap().alloc(OBJECT).is_ok());
    }

    #[test]
    fn write_past_either_end_of_a_guarded_object_is_detected() {
        for (offset, side) in [(-1, Side::Before), (-4, Side::Before), (32, Side::After), (35, Side::After)] {
            let mut arena = GuardedArena::of_pool(32, 8, fixed).unwrap();
            let (object, other) = (arena.alloc(OBJECT).unwrap(), arena.alloc(OBJECT).unwrap());
            // SAFETY: the addresses are within the pool's memory, and the objects belong to the test.
            unsafe {
                object.write_bytes(0, 32);
                assert_eq!(arena.check(object, OBJECT), Ok(()));
                object.offset(offset).write(1);
                let Err(BadFree::Overrun(overrun)) = arena.free(object, OBJECT) else { panic!("{offset}") };
                assert_eq!((overrun.side, overrun.address), (side, object.addr().get()));
                assert_eq!(arena.allocator().usage().live(), 2);
                assert_eq!(arena.free(other, OBJECT), Ok(()));
            }
        }
    }

    #[test]
    fn arena_without_guards_adds_no_bytes_to_objects() {
        let mut arena = MemoryArena::<_, NoBounds>::of_pool(32, 8, fixed).unwrap();
        let (a, b) = (arena.alloc(OBJECT).unwrap(), arena.alloc(OBJECT).unwrap());
        assert_eq!(b.addr().get() - a.addr().get(), 32);
        // SAFETY: the object was allocated above.
        unsafe { arena.free(a, OBJECT).unwrap() };
    }

    #[test]
    fn heap_arena_aligns_objects_behind_their_guards() {
        let mut arena = MemoryArena::<_, SimpleBounds>::new(System);
        for (size, align) in [(0, 1), (5, 2), (32, 16), (7, 4096)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let object = arena.alloc(layout).unwrap();
            assert!(object.addr().get().is_multiple_of(align));
            // SAFETY: the objects belong to the test, and have this size.
            unsafe {
                object.write_bytes(9, size);
                arena.free(object, layout).unwrap();
            }
        }
        let max_bytes = isize::MAX as usize;
        let layout = Layout::from_size_align(max_bytes, 1).unwrap();
        assert_eq!(arena.alloc(layout), Err(Refused::Size { requested: max_bytes + 8, max: max_bytes }));
    }
}

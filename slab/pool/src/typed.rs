//! A pool of one type that takes only the bytes of its objects and one index, for use in a struct, on the stack, or in
//! a `Box`.
//!
//! A slot is a union of an object and the index of the next free slot. `N` objects of 96 bytes take `N * 96` bytes,
//! plus the head of the list. A [`PoolBox`] owns its object, drops the object exactly once, and frees its slot. A box
//! borrows its pool, so the pool cannot move while a box refers to it. For objects that the *pool* owns and iterates
//! over, use [`LivePool`](super::LivePool).
//!
//! Source: the `PoolAllocator<T, N>` of the tutorial "Memory Allocators from Scratch". The union comes from act 2 of
//! the pool article ("Arena pools: from naive pool to slot map").

use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

/// The content of a slot: an object, or a link stored as bytes, so that the union has the size and alignment of the
/// object.
union Slot<T> {
    object: ManuallyDrop<T>,
    next: [u8; size_of::<u32>()],
}

impl<T> Slot<T> {
    const fn free(next: u32) -> Self {
        Self { next: next.to_ne_bytes() }
    }
}

/// A pool of up to `N` objects of one type, which are stored in the pool itself. See the [module](self).
///
/// ```
/// use uslab_pool::Pool;
///
/// type Particle = [u8; 96];
/// assert_eq!(size_of::<Pool<Particle, 24>>(), 2304 + 4);
///
/// let pool = Pool::<Particle, 24>::new();
/// let [a, b, c] = [1, 2, 3].map(|id| pool.alloc([id; 96]).unwrap());
/// let hole = b.address();
/// drop(b);
/// let d = pool.alloc([4; 96]).unwrap();
/// assert_eq!(d.address(), hole, "the next object must reuse the freed slot");
/// assert_eq!((a[0], c[0], d[0]), (1, 3, 4));
/// ```
///
/// If a slot is too small for an index, the program does not compile:
///
/// ```compile_fail
/// uslab_pool::Pool::<u16, 8>::new();
/// ```
///
/// If a box could outlive its pool, the program does not compile:
/// ```compile_fail
/// let pool = uslab_pool::Pool::<u64, 8>::new();
/// let object = pool.alloc(1).unwrap();
/// drop(pool);
/// println!("{}", *object);
/// ```
///
/// # Invariants
/// The chain of free slots begins at `head`; each free slot is named once, and names the next free slot. The last free
/// slot names the index `N`. Every other slot contains an object that a box owns. If a box is leaked, its slot stays in
/// use until the pool is dropped.
#[doc(alias = "PoolAllocator")]
pub struct Pool<T, const N: usize> {
    slots: [Cell<Slot<T>>; N],
    head: Cell<u32>,
}

impl<T, const N: usize> Pool<T, N> {
    const SLOT_CHECK: () = assert!(
        size_of::<T>() >= size_of::<u32>() && N < u32::MAX as usize,
        "a slot must be large enough for an index"
    );

    /// Makes a pool in which all slots are free. Cost: the call writes to each slot.
    pub const fn new() -> Self {
        const { Self::SLOT_CHECK };
        let mut slots = [const { Cell::new(Slot::free(0)) }; N];
        let mut slot = 0;
        while slot < N {
            slots[slot] = Cell::new(Slot::free(slot as u32 + 1));
            slot += 1;
        }
        Self { slots, head: Cell::new(0) }
    }

    /// Moves `object` into a free slot, and returns a box that owns it. The slot that was freed most recently is used
    /// first. Cost: one load from the slot, and the copy of the object.
    ///
    /// # Errors
    /// If no slot is free, returns the object as the error value.
    pub fn alloc(&self, object: T) -> Result<PoolBox<'_, T>, T> {
        let index = self.head.get();
        let Some(slot) = self.slots.get(index as usize) else { return Err(object) };
        // SAFETY: a free slot contains a link.
        self.head.set(u32::from_ne_bytes(unsafe { (*slot.as_ptr()).next }));
        slot.set(Slot { object: ManuallyDrop::new(object) });
        Ok(PoolBox { slot, index, head: &self.head })
    }
    /// Returns `true` if every slot is in use.
    pub fn is_full(&self) -> bool {
        self.head.get() as usize == N
    }
}

impl<T, const N: usize> Default for Pool<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> fmt::Debug for Pool<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("slots", &N).field("head", &self.head.get()).finish_non_exhaustive()
    }
}

/// A box that owns an object in a [`Pool`]. Dropping the box drops the object and frees its slot.
pub struct PoolBox<'p, T> {
    slot: &'p Cell<Slot<T>>,
    index: u32,
    head: &'p Cell<u32>,
}

impl<T> PoolBox<'_, T> {
    /// Moves the object out of the box, and frees its slot.
    pub fn into_inner(self) -> T {
        let wrapper = ManuallyDrop::new(self);
        // SAFETY: the box owns the object, which is read for the last time before the slot is freed.
        unsafe {
            let object = ManuallyDrop::take(&mut (*wrapper.slot.as_ptr()).object);
            wrapper.give();
            object
        }
    }
    /// Returns the address of the object, which is valid until the object is dropped.
    pub fn address(&self) -> *const T {
        self.slot.as_ptr().cast()
    }
    /// # Safety
    /// The object must have been dropped or moved out, and the caller must no longer use the box.
    unsafe fn give(&self) {
        self.slot.set(Slot::free(self.head.replace(self.index)));
    }
}

impl<T> Drop for PoolBox<'_, T> {
    fn drop(&mut self) {
        /// Frees the slot on drop, even if the object's destructor panics.
        struct FreeOnDrop<'b, 'p, T>(&'b PoolBox<'p, T>);
        impl<T> Drop for FreeOnDrop<'_, '_, T> {
            fn drop(&mut self) {
                // SAFETY: the object was dropped, or its drop panicked.
                unsafe { self.0.give() };
            }
        }
        let give = FreeOnDrop(self);
        // SAFETY: the box owns the object, and does not exist after this call.
        unsafe { ManuallyDrop::drop(&mut (*give.0.slot.as_ptr()).object) };
    }
}

impl<T> Deref for PoolBox<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the slot contains an object, which only this box owns.
        unsafe { &(*self.slot.as_ptr()).object }
    }
}
impl<T> DerefMut for PoolBox<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the slot contains an object, which only this box owns, and the borrow is
        // exclusive.
        unsafe { &mut (*self.slot.as_ptr()).object }
    }
}

impl<T: fmt::Debug> fmt::Debug for PoolBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn typed_pool_slots_have_the_size_of_the_object() {
        assert_eq!(size_of::<Slot<[u8; 96]>>(), 96);
        assert_eq!(size_of::<Slot<u64>>(), size_of::<u64>());
        assert_eq!(size_of::<Pool<[u8; 96], 24>>(), 24 * 96 + 4);
        assert_eq!(size_of::<Pool<u32, 3>>(), 3 * 4 + 4);
        assert_eq!((size_of::<Slot<[u8; 5]>>(), size_of::<Pool<[u8; 5], 4>>()), (5, 24));
        let pool = Pool::<[u8; 5], 4>::new();
        let boxes = [1, 2, 3].map(|n| pool.alloc([n; 5]).unwrap());
        assert_eq!(boxes.map(PoolBox::into_inner), [[1; 5], [2; 5], [3; 5]]);
        let reused = [4, 5, 6].map(|n| pool.alloc([n; 5]).unwrap());
        assert_eq!(reused.map(PoolBox::into_inner), [[4; 5], [5; 5], [6; 5]]);
    }

    /// Measures the header of 8 to 16 bytes that the tutorial mentions, from the addresses that the C library's malloc
    /// returns.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    #[test]
    fn c_library_malloc_adds_overhead_per_object() {
        use std::alloc::{GlobalAlloc, Layout, System};
        let layout = Layout::new::<[u8; 96]>();
        // SAFETY: the layout's size is not zero, and each object is freed below.
        let objects: Vec<_> = (0..1000).map(|_| unsafe { System.alloc(layout) }).collect();
        let mut addresses: Vec<_> = objects.iter().map(|object| object.addr()).collect();
        addresses.sort_unstable();
        let distance = addresses.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
        // SAFETY: the object was allocated above.
        objects.into_iter().for_each(|object| unsafe { System.dealloc(object, layout) });
        assert!((8..=16).contains(&(distance - 96)), "objects of 96 bytes are {distance} bytes apart");
    }

    #[test]
    fn full_typed_pool_returns_the_object() {
        let pool = Pool::<u64, 3>::new();
        let mut boxes: Vec<_> = (0..3).map(|value| pool.alloc(value).unwrap()).collect();
        assert!(pool.is_full());
        assert_eq!(pool.alloc(9).unwrap_err(), 9);
        let (first, last) = (boxes[0].address(), boxes[2].address());
        drop(boxes.remove(2));
        drop(boxes.remove(0));
        let reused = [pool.alloc(10).unwrap(), pool.alloc(11).unwrap()];
        assert_eq!([reused[0].address(), reused[1].address()], [first, last]);
        assert_eq!((*boxes[0], *reused[0], *reused[1]), (1, 10, 11));
        assert!(Pool::<u64, 0>::new().alloc(1).is_err(), "a pool without slots must be full");
    }

    #[test]
    fn typed_pool_drops_each_object_once() {
        let count = Rc::new(());
        let pool = Pool::<Rc<()>, 8>::new();
        let mut boxes: Vec<_> = (0..8).map(|_| pool.alloc(count.clone()).unwrap()).collect();
        assert_eq!(Rc::strong_count(&count), 9);
        drop(boxes.pop());
        assert_eq!(Rc::strong_count(&count), 8);
        let inner = boxes.pop().unwrap().into_inner();
        assert_eq!((Rc::strong_count(&count), pool.is_full()), (8, false));
        drop(inner);
        *boxes[0] = Rc::new(());
        assert_eq!(Rc::strong_count(&count), 6, "an assignment must drop the old value");
        drop(boxes);
        assert_eq!(Rc::strong_count(&count), 1);
        let reused: Vec<_> = (0..9).map_while(|_| pool.alloc(count.clone()).ok()).collect();
        assert_eq!((reused.len(), Rc::strong_count(&count)), (8, 9));
    }

    #[test]
    fn object_whose_drop_panics_frees_its_slot() {
        struct PanickingDrop(#[allow(dead_code)] u32);
        impl Drop for PanickingDrop {
            fn drop(&mut self) {
                panic!("no");
            }
        }
        let pool = Pool::<PanickingDrop, 1>::new();
        let object = pool.alloc(PanickingDrop(1)).ok().unwrap();
        let dropped = crate::catch_panic(|| drop(object));
        assert!(dropped.is_err() && !pool.is_full());
    }

    #[test]
    fn typed_pool_aligns_objects_for_their_type() {
        #[repr(align(128))]
        struct Line(u8);
        let pool = Pool::<Line, 3>::new();
        let boxes: Vec<_> = (0..3).map(|n| pool.alloc(Line(n)).ok().unwrap()).collect();
        assert!(boxes.iter().all(|line| line.address().addr().is_multiple_of(128)));
        assert_eq!(boxes.iter().map(|line| line.0).sum::<u8>(), 3);
    }

    proptest::proptest! {
        #[test]
        fn typed_pool_operations_do_not_change_other_objects(steps in proptest::collection::vec(proptest::prelude::any::<u16>(), 1..200)) {
            let pool = Pool::<u64, 20>::new();
            let mut boxes: Vec<(PoolBox<'_, u64>, u64)> = Vec::new();
            for step in steps {
                let value = u64::from(step);
                if step % 2 == 0 {
                    match pool.alloc(value) {
                        Ok(object) => boxes.push((object, value)),
                        Err(_) => assert_eq!(boxes.len(), 20),
                    }
                } else if !boxes.is_empty() {
                    let (object, value) = boxes.swap_remove(step as usize / 2 % boxes.len());
                    assert_eq!(object.into_inner(), value);
                }
                assert!(boxes.iter().all(|(object, value)| **object == *value));
            }
            boxes.clear();
            assert_eq!((0..).map_while(|_| pool.alloc(0).ok().map(core::mem::forget)).count(), 20);
        }
    }
}

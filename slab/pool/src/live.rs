//! A pool that owns its objects and iterates over them; the objects are stored as an array with holes.
//!
//! Objects never move, so their addresses are stable. A bitmap marks the slots that contain an object. An iteration
//! reads the bitmap with one load per 64 slots, and visits the objects in ascending order. Apart from the bitmap and
//! the objects, an iteration reads no memory. The bitmap is at the end of the pool's memory (see
//! [`FixedPool::checked`]).
//!
//! An index is a plain number, so it does not show if the slot still contains the same object. The handles in
//! `uslab::handle` detect that an object was replaced.
//!
//! Source: the comments on Reinalter, "Memory allocation strategies: a pool allocator" (2012). The comments discuss
//! contacts of rigid bodies, where iterating over a linked list was too slow.

use super::area::Area;
use super::error::PoolError;
use super::fixed::FixedPool;
use super::slot::{LINK_BYTES, SlotLayout};
use super::usage::Usage;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// A pool of objects of one type, in memory that the caller chooses. See the [module](self).
///
/// ```
/// use uslab_pool::{LivePool, StackArea};
///
/// let mut area = StackArea::<1024>::new();
/// let mut contacts = LivePool::<[f32; 4], _>::new(area.lend())?;
/// let [a, b, c] = [1.0, 2.0, 3.0].map(|depth| contacts.insert([depth; 4]).unwrap());
/// contacts.remove(b);
/// for (_, contact) in contacts.iter_mut() {
///     contact[0] *= 2.0;
/// }
/// let left: Vec<_> = contacts.iter().map(|(index, contact)| (index, contact[0])).collect();
/// assert_eq!(left, [(a, 2.0), (c, 6.0)]);
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
///
/// # Invariants
/// The pool is a checked pool with slots of the layout of `Slot<T>`. Each slot whose bit is set contains an object.
#[derive(Debug)]
pub struct LivePool<T, A: Area> {
    pool: FixedPool<A>,
    objects: PhantomData<T>,
}

/// The content of a slot: an object, or the link of a free slot.
#[repr(C)]
union Slot<T> {
    _object: ManuallyDrop<T>,
    _link: [u8; LINK_BYTES],
}

impl<T, A: Area> LivePool<T, A> {
    /// Makes a pool with as many objects as fit into `area`. A slot has the size of the object, or of a link (one word)
    /// if a link is larger.
    ///
    /// # Errors
    /// Returns the errors of [`FixedPool::checked`].
    pub fn new(area: A) -> Result<Self, PoolError> {
        let slots = SlotLayout::new(size_of::<Slot<T>>(), align_of::<Slot<T>>())?;
        Ok(Self { pool: FixedPool::checked(area, slots)?, objects: PhantomData })
    }

    /// Moves an object into a free slot and returns the slot's index. The object stays in the slot until the caller
    /// removes it.
    ///
    /// # Errors
    /// If no slot is free, returns the object as the error value.
    pub fn insert(&mut self, object: T) -> Result<usize, T> {
        let Ok(slot) = self.pool.alloc(Layout::new::<T>()) else { return Err(object) };
        // SAFETY: the slot was just allocated, with enough size and alignment.
        unsafe { slot.cast().write(object) };
        Ok(self.pool.index_of_own_slot(slot))
    }
    /// Removes the object in a slot, and returns it. Returns `None` if the slot is free.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let object = self.slot_pointer(index)?;
        // SAFETY: the slot contains an object, which is read for the last time, because the slot is then
        // freed.
        let object = unsafe { (object.read(), self.pool.free(object.cast())) };
        debug_assert_eq!(object.1, Ok(()));
        Some(object.0)
    }
    /// Returns a reference to the object in a slot.
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: the object belongs to the pool, and is borrowed together with the pool.
        self.slot_pointer(index).map(|object| unsafe { object.as_ref() })
    }
    /// Returns a mutable reference to the object in a slot.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: the object belongs to the pool, and is borrowed exclusively together with the
        // pool.
        self.slot_pointer(index).map(|mut object| unsafe { object.as_mut() })
    }
    fn slot_pointer(&self, index: usize) -> Option<NonNull<T>> {
        (self.pool.is_live(index) == Some(true)).then(|| self.pool.slot(index).cast())
    }

    /// Iterates over the objects and their indexes, in ascending order. Cost: one load of the bitmap per 64 slots.
    /// [`for_each`](Iterator::for_each) is faster than a `for` loop, because it visits runs of neighbouring objects.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        // SAFETY: the objects belong to the pool, and are borrowed together with the pool.
        self.objects().map(|(index, object)| (index, unsafe { object.as_ref() }))
    }
    /// Iterates over mutable references to the objects, and their indexes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        // SAFETY: the objects belong to the pool, and are borrowed exclusively together with the pool. The
        // iteration returns each object once.
        self.objects().map(|(index, mut object)| (index, unsafe { object.as_mut() }))
    }
    fn objects(&self) -> impl Iterator<Item = (usize, NonNull<T>)> {
        let first = self.pool.first().cast::<Slot<T>>();
        // SAFETY: the slot is in use, and the pool's slots have this stride.
        let object = move |index| (index, unsafe { first.add(index) }.cast());
        // A checked pool knows the slots in use.
        self.pool.allocated_indexes().into_iter().flatten().map(object)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.usage().live() as usize
    }
    /// Returns `true` if the pool contains no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the maximum number of objects.
    pub fn capacity(&self) -> usize {
        self.pool.capacity()
    }
    /// Returns the usage statistics of the pool.
    pub fn usage(&self) -> &Usage {
        self.pool.usage()
    }
}

impl<T, A: Area> Drop for LivePool<T, A> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            RemainingObjects(self.objects().map(|(_, object)| object)).drop_all();
        }
    }
}

/// The objects that are still to be dropped. If the drop of an object panics, the remaining objects are still dropped.
struct RemainingObjects<T, I: Iterator<Item = NonNull<T>>>(I);

impl<T, I: Iterator<Item = NonNull<T>>> RemainingObjects<T, I> {
    fn drop_all(&mut self) {
        // SAFETY: each object is dropped once, because the pool is being dropped.
        self.0.by_ref().for_each(|object| unsafe { object.drop_in_place() });
    }
}
impl<T, I: Iterator<Item = NonNull<T>>> Drop for RemainingObjects<T, I> {
    fn drop(&mut self) {
        self.drop_all();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::HeapArea;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    fn pool<T>(bytes: usize) -> LivePool<T, HeapArea> {
        LivePool::new(HeapArea::new(bytes, 64).unwrap()).unwrap()
    }

    /// Regression test: after a panic in an object's drop, the following objects were not dropped.
    #[test]
    fn panic_dropping_one_object_leaks_no_other_object() {
        struct Panics(#[allow(dead_code, reason = "counted")] Rc<()>, bool);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(!self.1, "intended panic");
            }
        }
        let value = Rc::new(());
        let mut pool = LivePool::new(HeapArea::new(4096, 64).unwrap()).unwrap();
        for i in 0..10 {
            pool.insert(Panics(value.clone(), i == 3)).ok().unwrap();
        }
        crate::catch_panic(|| drop(pool)).unwrap_err();
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn pool_drops_each_object_exactly_once() {
        let count = Rc::new(());
        let mut pool = pool(1024);
        let n = pool.capacity();
        let indices: Vec<_> = (0..n).map(|_| pool.insert(count.clone()).unwrap()).collect();
        assert!(pool.insert(count.clone()).is_err());
        assert_eq!(Rc::strong_count(&count), n + 1);
        assert!(pool.remove(indices[5]).is_some() && pool.remove(indices[5]).is_none());
        assert_eq!((Rc::strong_count(&count), pool.len()), (n, n - 1));
        assert!(pool.get(indices[5]).is_none() && pool.get(n).is_none() && pool.remove(usize::MAX).is_none());
        drop(pool);
        assert_eq!(Rc::strong_count(&count), 1);
    }

    #[test]
    fn small_and_empty_types_have_slots_of_one_word() {
        let mut bytes = pool::<u8>(80);
        assert_eq!((bytes.capacity(), bytes.insert(7), bytes.get(0)), (9, Ok(0), Some(&7)));
        let mut units = pool::<()>(80);
        assert_eq!((units.insert(()), units.iter().count()), (Ok(0), 1));
    }

    proptest! {
        /// Compares the pool with a map: equal objects have equal indexes, are found by index and by iteration, and
        /// keep their addresses.
        #[test]
        fn live_pool_agrees_with_a_map_model(steps in prop::collection::vec(any::<u16>(), 1..300)) {
            let mut pool = pool::<Rc<u16>>(600);
            let mut shadow = BTreeMap::new();
            for step in steps {
                let pick = step as usize / 4;
                if step % 4 < 2 {
                    match pool.insert(Rc::new(step)) {
                        Ok(index) => {
                            let address = core::ptr::from_ref(pool.get(index).unwrap()).addr();
                            prop_assert!(shadow.insert(index, (step, address)).is_none());
                        }
                        Err(_) => prop_assert_eq!(shadow.len(), pool.capacity()),
                    }
                } else {
                    let index = pick % pool.capacity();
                    prop_assert_eq!(pool.remove(index).map(|value| *value), shadow.remove(&index).map(|(value, _)| value));
                }
                let values: Vec<_> = pool.iter().map(|(index, value)| (index, (**value, core::ptr::from_ref(value).addr()))).collect();
                prop_assert!(values.iter().copied().eq(shadow.iter().map(|(&index, &entry)| (index, entry))));
                prop_assert_eq!(pool.len(), shadow.len());
            }
            for (_, value) in pool.iter_mut() {
                *value = Rc::new(0);
            }
            prop_assert!(pool.iter().all(|(_, value)| **value == 0));
        }
    }
}

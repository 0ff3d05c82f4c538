//! The handle table: handles name values, and each value keeps its index.
//!
//! ```text
//!   generations   [ g 1 ][ g 4 ][ g 2 ] ...      one word per slot, separate from the values
//!   values        [  A  ][ ---- ][  C  ] ...     of any size
//! ```
//!
//! The generations are in a separate array. Rejecting a stale handle takes one load, whatever the size of the values; a
//! cache line holds sixteen 4-byte words. In the tutorial "Memory Allocators from Scratch", the generation is stored
//! after the value, so checking a large value loads a cache line with no other useful data. A test of this module
//! prints the addresses of both layouts. For small live values, a generation after the value is better, because a check
//! loads one cache line instead of two. With 100,000 values of 64 bytes, `benches/handles.rs` measures 5 ns instead of
//! 10 ns. If the table grows, values may move, but handles stay valid.

use super::bits::{Handle, Word};
use super::error::HandleError;
use super::slots::{Generations, Slots};
use alloc::vec::Vec;

/// A table of values that are named by handles; it has one owner. Each value keeps its index until it is freed.
///
/// ```
/// use uslab_handle::{HandleTable, WrapPolicy};
///
/// let mut entities = HandleTable::<&str, u32, 8>::new(); // 24 bits of index, 8 of generation
/// let imp = entities.alloc("imp")?;
/// assert_eq!(entities.get(imp), Some(&"imp"));
/// assert_eq!(entities.free(imp), Some("imp"));
/// let baron = entities.alloc("baron")?; // in the same slot
/// assert_eq!((baron.index(), baron.generation()), (imp.index(), imp.generation() + 1));
/// assert_eq!(entities.get(imp), None); // stale
/// # Ok::<(), uslab_handle::HandleError>(())
/// ```
///
/// Memory: a word and an `Option<T>` for each slot that was ever in use; the table keeps them until it is dropped.
#[derive(Clone, Debug)]
pub struct HandleTable<T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    slots: Slots<W, GENERATION_BITS>,
    values: Vec<Option<T>>,
}

impl<T, W: Word, const GENERATION_BITS: u32> HandleTable<T, W, GENERATION_BITS> {
    /// Makes an empty table that retires slots whose generations are used up. A new table takes no memory.
    pub fn new() -> Self {
        Self::with(Generations::default())
    }
    /// Makes an empty table with the given sequence of generations, or with a [`WrapPolicy`](super::WrapPolicy).
    pub fn with(generations: impl Into<Generations>) -> Self {
        Self { slots: Slots::new(generations.into()), values: Vec::new() }
    }

    /// Stores `value` and returns its handle. Cost: O(1). If the table must grow, all values move.
    ///
    /// # Errors
    /// Returns an error and drops `value` if no index is left, or if memory is short. Unlike `alloc`,
    /// [`alloc_with`](Self::alloc_with) makes the value only after these conditions were checked.
    #[doc(alias("insert", "spawn"))]
    pub fn alloc(&mut self, value: T) -> Result<Handle<W, GENERATION_BITS>, HandleError> {
        self.alloc_with(|_| value)
    }
    /// Calls `make` with the new handle, and stores the result. If `make` panics, the table is unchanged.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc); `make` does not run in this case.
    #[doc(alias("insert_with_key", "emplace"))]
    pub fn alloc_with(
        &mut self,
        make: impl FnOnce(Handle<W, GENERATION_BITS>) -> T,
    ) -> Result<Handle<W, GENERATION_BITS>, HandleError> {
        let handle = self.slots.next()?;
        let index = handle.index() as usize;
        if index == self.values.len() {
            self.values.try_reserve(1).map_err(|_| HandleError::Memory)?;
        }
        let value = Some(make(handle));
        self.slots.take(handle);
        match self.values.get_mut(index) {
            Some(slot) => *slot = value,
            None => self.values.push(value),
        }
        Ok(handle)
    }

    /// Removes and returns the value, and makes all copies of its handle stale. Returns `None` for a stale handle.
    #[doc(alias("remove", "erase", "despawn"))]
    pub fn free(&mut self, handle: Handle<W, GENERATION_BITS>) -> Option<T> {
        if !self.slots.free(handle) {
            return None;
        }
        self.values[handle.index() as usize].take()
    }

    /// Returns `true` if the handle names a value of this table. Cost: one load.
    #[doc(alias("contains_key", "is_alive"))]
    #[inline]
    pub fn is_valid(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        self.slots.is_valid(handle)
    }
    /// Returns the value, or `None` for a stale handle. Cost: one load in addition to the load of the value.
    #[doc(alias("find", "at"))]
    #[inline]
    pub fn get(&self, handle: Handle<W, GENERATION_BITS>) -> Option<&T> {
        if !self.is_valid(handle) {
            return None;
        }
        self.values.get(handle.index() as usize)?.as_ref()
    }
    /// Returns a mutable reference to the value, or `None` for a stale handle.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle<W, GENERATION_BITS>) -> Option<&mut T> {
        if !self.is_valid(handle) {
            return None;
        }
        self.values.get_mut(handle.index() as usize)?.as_mut()
    }

    /// Iterates over the values with their handles, in the order of the indexes. Cost: the iteration visits every slot
    /// that was ever in use. A [`SlotMap`](super::SlotMap) has no gaps to visit.
    pub fn iter(&self) -> impl Iterator<Item = (Handle<W, GENERATION_BITS>, &T)> {
        let values = self.values.iter().enumerate();
        values.filter_map(|(index, value)| Some((self.slots.handle_at(index)?, value.as_ref()?)))
    }
    /// Iterates over mutable references to the values, with their handles. Cost: the iteration visits every slot, like
    /// [`iter`](Self::iter).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle<W, GENERATION_BITS>, &mut T)> {
        let slots = &self.slots;
        let values = self.values.iter_mut().enumerate();
        values.filter_map(|(index, value)| Some((slots.handle_at(index)?, value.as_mut()?)))
    }
    /// Frees all values for which `keep` returns `false`. The function calls `keep` once for each value, in the order
    /// of the indexes. Cost: the call visits every slot, like [`iter`](Self::iter).
    pub fn retain(&mut self, mut keep: impl FnMut(Handle<W, GENERATION_BITS>, &mut T) -> bool) {
        for index in 0..self.values.len() {
            if let Some(handle) = self.slots.handle_at(index)
                && let Some(value) = &mut self.values[index]
                && !keep(handle, value)
            {
                self.free(handle);
            }
        }
    }
    /// Number of values.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    /// Returns `true` if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of retired slots, whose memory is still allocated.
    pub fn retired(&self) -> u64 {
        self.slots.retired()
    }
    /// Returns a slot's generation: the current life if in use, the next life if free, or the last life if retired.
    pub fn generation_at(&self, index: usize) -> Option<u32> {
        self.slots.generation_at(index)
    }
    /// Returns the first generation for the table that [succeeds this table](super::remap). The returned generation is
    /// higher than all handles so far, and higher than the next generations of free slots. Returns `None` if the result
    /// would exceed the last generation. After slots have wrapped, the returned generation is meaningless. Cost: reads
    /// every slot.
    pub fn fresh_generation(&self) -> Option<u32> {
        self.slots.fresh_generation()
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Default for HandleTable<T, W, GENERATION_BITS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handle24x8, WrapPolicy};

    type Table<T> = HandleTable<T, u32, 8>;

    /// Example from a physics engine: contacts refer to manifolds by handle. The engine frees the manifolds of sleeping
    /// bodies, while the contacts stay.
    #[test]
    fn stale_contact_handles_detect_freed_manifolds() {
        struct Contact {
            sleeps: bool,
            manifold: Handle24x8,
        }
        let (mut contacts, mut manifolds) = (Table::new(), Table::new());
        let handles: Vec<_> = (0..100_u8)
            .map(|i| {
                let manifold = manifolds.alloc([f32::from(i); 12]).unwrap();
                contacts.alloc(Contact { sleeps: i.is_multiple_of(4), manifold }).unwrap()
            })
            .collect();
        for handle in &handles {
            let contact = contacts.get(*handle).unwrap();
            if contact.sleeps {
                manifolds.free(contact.manifold);
            }
        }
        assert_eq!((contacts.len(), manifolds.len()), (100, 75));
        // The freed slot now has another contact's manifold, which the sleeping contact does not mistake for its own.
        let fresh = manifolds.alloc([0.5; 12]).unwrap();
        for (i, handle) in (0_u8..).zip(&handles) {
            let contact = contacts.get(*handle).unwrap();
            let seen = manifolds.get(contact.manifold).map(|manifold| manifold[0]);
            assert_eq!(seen, (!contact.sleeps).then_some(f32::from(i)));
        }
        assert_eq!(manifolds.get(fresh), Some(&[0.5; 12]));
    }

    #[test]
    fn stale_and_foreign_handles_are_rejected_everywhere() {
        let mut table = Table::new();
        let a = table.alloc(1).unwrap();
        assert_eq!((table.free(a), table.free(a)), (Some(1), None));
        let b = table.alloc(2).unwrap();
        assert_eq!(a.index(), b.index());
        assert_eq!((table.free(a), table.is_valid(a), table.get(a)), (None, false, None));
        assert_eq!(table.get_mut(a), None);
        *table.get_mut(b).unwrap() += 1;
        assert_eq!((table.get(b), table.len()), (Some(&3), 1));
        // One handle has an index that belongs to no slot; the other handle has a generation that no slot has
        // reached.
        for foreign in [Handle24x8::new(1, 1), Handle24x8::new(0xff_ffff, 255), Handle24x8::new(0, 3)] {
            assert_eq!(table.get(foreign.unwrap()), None);
        }
    }

    #[test]
    fn handle_table_is_full_at_two_to_the_24_slots() {
        let mut table = Table::new();
        for _ in 0..16_777_216 {
            table.alloc(()).unwrap();
        }
        let full = HandleError::Full { slots: 16_777_216, retired: 0 };
        assert_eq!(table.alloc(()), Err(full));
        let last = Handle24x8::new(16_777_215, 1).unwrap();
        assert_eq!((table.len(), table.free(last)), (16_777_216, Some(())));
        assert_eq!(table.alloc(()).map(Handle::index), Ok(16_777_215));
        assert_eq!(table.alloc(()), Err(full));
    }

    #[test]
    fn slot_retires_after_its_last_generation() {
        let mut table = Table::new();
        let mut stale_handles = vec![];
        for life in 1..=255 {
            let handle = table.alloc(life).unwrap();
            assert_eq!((handle.index(), handle.generation()), (0, life));
            assert!(stale_handles.iter().all(|old| table.get(*old).is_none()));
            table.free(handle);
            stale_handles.push(handle);
        }
        assert_eq!((table.retired(), table.len()), (1, 0));
        let next = table.alloc(0).unwrap();
        assert_eq!((next.index(), next.generation()), (1, 1));
        assert!(stale_handles.iter().all(|old| !table.is_valid(*old)));
    }

    #[test]
    fn wrapping_slot_accepts_a_stale_handle_after_255_reuses() {
        let mut table = Table::with(WrapPolicy::Wrap);
        let old = table.alloc("old").unwrap();
        table.free(old);
        for _ in 0..254 {
            let handle = table.alloc("between").unwrap();
            assert_ne!(handle, old);
            assert_eq!(table.get(old), None);
            table.free(handle);
        }
        let new = table.alloc("new").unwrap();
        assert_eq!((new, table.get(old), table.retired()), (old, Some(&"new"), 0));
    }

    #[test]
    fn panicking_insertion_changes_no_slot() {
        let mut table = Table::new();
        let a = table.alloc(1).unwrap();
        table.free(a);
        let make = |_| -> i32 { panic!("intended panic") };
        let caught = crate::catch_panic(|| table.alloc_with(make));
        assert!(caught.is_err() && table.is_empty());
        assert_eq!(table.alloc_with(|handle| handle.generation() as i32).map(Handle::generation), Ok(2));
        assert_eq!(
            table.iter().map(|(handle, value)| (handle.index(), *value)).collect::<Vec<_>>(),
            [(0, 2)]
        );
    }

    #[test]
    fn values_can_be_changed_and_freed_through_handles() {
        let mut table = Table::new();
        let handles: Vec<_> = (0..10).map(|value| table.alloc(value).unwrap()).collect();
        table.free(handles[4]);
        for (handle, value) in table.iter_mut() {
            *value += handle.index() * 10;
        }
        assert!(table.iter().map(|(_, value)| *value).eq([0, 11, 22, 33, 55, 66, 77, 88, 99]));
        table.retain(|handle, value| {
            *value += 1;
            handle.index() % 2 == 0
        });
        let left: Vec<_> = table.iter().map(|(handle, value)| (handle, *value)).collect();
        assert_eq!(left, [0, 2, 6, 8].map(|index| (handles[index], index as u32 * 11 + 1)));
        assert_eq!((table.len(), table.is_empty(), table.get(handles[1])), (4, false, None));
        table.retain(|_, _| false);
        assert!(table.is_empty());
    }

    #[test]
    fn table_of_handles_drops_each_value_once() {
        let count = std::rc::Rc::new(());
        let mut table = HandleTable::<_>::new();
        let [a, _] = [(); 2].map(|()| table.alloc(count.clone()).unwrap());
        drop(table.free(a));
        assert_eq!(std::rc::Rc::strong_count(&count), 2);
        drop(table);
        assert_eq!(std::rc::Rc::strong_count(&count), 1);
    }

    /// In a separate array, generations are adjacent whatever the size of the values. If each generation is stored
    /// after its value, the generations are on separate cache lines.
    #[test]
    fn handle_check_reads_only_generations() {
        const LINE: usize = 64;
        fn neighbours<T: Default>() -> (usize, bool) {
            let mut table = Table::new();
            for _ in 0..LINE {
                table.alloc(T::default()).unwrap();
            }
            let words = table.slots.words().as_ptr_range();
            let values = table.values.as_ptr_range();
            let apart = words.end.addr() <= values.start.addr() || values.end.addr() <= words.start.addr();
            let words = table.slots.words();
            ((&raw const words[1]).addr() - (&raw const words[0]).addr(), apart)
        }
        struct Large(#[allow(dead_code)] [u8; 4096]);
        impl Default for Large {
            fn default() -> Self {
                Self([0; 4096])
            }
        }
        assert_eq!(neighbours::<u8>(), (4, true));
        assert_eq!(neighbours::<Large>(), (4, true));

        // The other layout: a value, followed by its generation.
        #[repr(C)]
        struct Slot<T> {
            value: T,
            generation: u32,
            alive: bool,
        }
        assert_eq!(core::mem::offset_of!(Slot<Large>, generation) / LINE, 64);
        assert!(size_of::<Slot<Large>>() >= LINE, "no two generations share a line");
        assert_eq!(core::mem::offset_of!(Slot<u32>, generation) / LINE, 0);
    }
}

//! The slot map: values are stored without gaps, and handles find them after moves.
//!
//! ```text
//!   handle (sparse index 2, generation 1)
//!                     │ generations[2] says 1: valid
//!                     v
//!   sparse_to_dense [ 0 ][ - ][ 1 ]        A, B and C were added, B removed: C moved to B's place
//!                     ┌─────────┘
//!                     v
//!   values          [ A ][ C ]             iterated without gaps
//!   dense_to_sparse [ 0 ][ 2 ]             the handle of a value that moves
//! ```
//!
//! Invariant: for each valid handle `h`, `sparse_to_dense[h.index()]` is the position of `h`'s value, and
//! `dense_to_sparse` at that position is `h`. The number of values equals the number of valid handles.
//!
//! The slot map is act 6 of "Arena pools: from naive pool to slot map". Allan Deutsch proposed the slot map for C++ as
//! `std::slot_map` (P0661, 2017). The names in these sources and in the `slotmap` crate are doc aliases.

use super::bits::{Handle, Word};
use super::error::HandleError;
use super::packed::PackedArray;
use super::slots::{Generations, Slots};
use alloc::vec::Vec;

/// A map of values without gaps, which are named by handles; it has one owner.
///
/// ```
/// use uslab_handle::SlotMap;
///
/// let mut particles = SlotMap::<f32>::new();
/// let (spark, smoke) = (particles.alloc(1.0)?, particles.alloc(2.0)?);
/// particles.free(spark);
/// for height in particles.as_mut_slice() {
///     *height += 0.5; // contiguous memory
/// }
/// assert_eq!((particles.get(spark), particles.get(smoke)), (None, Some(&2.5)));
/// # Ok::<(), uslab_handle::HandleError>(())
/// ```
///
/// Overhead: one handle for each value, plus one word and 4 bytes for each slot that was ever in use. Handles of 64
/// bits cost 20 bytes per value, and handles of 32 bits cost 12 bytes.
#[doc(alias = "DenseSlotMap")]
#[derive(Clone, Debug)]
pub struct SlotMap<T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    slots: Slots<W, GENERATION_BITS>,
    /// Position of each slot's value in the dense array, by slot index. For a free slot, the position is meaningless.
    sparse_to_dense: Vec<u32>,
    /// The handle of each value, in the order of `values`.
    dense_to_sparse: Vec<Handle<W, GENERATION_BITS>>,
    values: PackedArray<T>,
}

impl<T, W: Word, const GENERATION_BITS: u32> SlotMap<T, W, GENERATION_BITS> {
    /// Makes an empty map that retires slots whose generations are used up. A new map takes no memory.
    pub fn new() -> Self {
        Self::with(Generations::default())
    }
    /// Makes an empty map with the given sequence of generations, or with a [`WrapPolicy`](super::WrapPolicy).
    pub fn with(generations: impl Into<Generations>) -> Self {
        Self {
            slots: Slots::new(generations.into()),
            sparse_to_dense: Vec::new(),
            dense_to_sparse: Vec::new(),
            values: PackedArray::new(),
        }
    }

    /// Appends `value` and returns its handle. Cost: O(1). If the map must grow, all values move.
    ///
    /// # Errors
    /// Returns an error and drops `value` if no index is left, or if memory is short. Unlike `alloc`,
    /// [`alloc_with`](Self::alloc_with) makes the value only after these conditions were checked.
    #[doc(alias("insert", "spawn"))]
    pub fn alloc(&mut self, value: T) -> Result<Handle<W, GENERATION_BITS>, HandleError> {
        self.alloc_with(|_| value)
    }
    /// Calls `make` with the new handle, and appends the result. If `make` panics, the map is unchanged.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc); `make` does not run in this case.
    #[doc(alias("insert_with_key", "emplace"))]
    pub fn alloc_with(
        &mut self,
        make: impl FnOnce(Handle<W, GENERATION_BITS>) -> T,
    ) -> Result<Handle<W, GENERATION_BITS>, HandleError> {
        let handle = self.slots.next()?;
        self.sparse_to_dense.try_reserve(1).map_err(|_| HandleError::Memory)?;
        self.dense_to_sparse.try_reserve(1).map_err(|_| HandleError::Memory)?;
        self.values.reserve()?;
        let place = self.values.alloc(make(handle))? as u32;
        self.slots.take(handle);
        self.dense_to_sparse.push(handle);
        match self.sparse_to_dense.get_mut(handle.index() as usize) {
            Some(dense) => *dense = place,
            None => self.sparse_to_dense.push(place),
        }
        Ok(handle)
    }

    /// Removes and returns the value, moves the last value into the gap, and makes all copies of the handle stale.
    /// Returns `None` for a stale handle. Cost: O(1), with one copy of a value.
    #[doc(alias("remove", "erase", "despawn"))]
    pub fn free(&mut self, handle: Handle<W, GENERATION_BITS>) -> Option<T> {
        if !self.slots.free(handle) {
            return None;
        }
        let place = self.sparse_to_dense[handle.index() as usize];
        self.dense_to_sparse.swap_remove(place as usize);
        if let Some(moved) = self.dense_to_sparse.get(place as usize) {
            self.sparse_to_dense[moved.index() as usize] = place;
        }
        self.values.free(place as usize)
    }

    /// Frees all values for which `keep` returns `false`. `keep` is called once for each value, in unspecified order.
    pub fn retain(&mut self, mut keep: impl FnMut(Handle<W, GENERATION_BITS>, &mut T) -> bool) {
        // `retain` begins at the end, so that `keep` has already seen a value that moves into a gap.
        for place in (0..self.len()).rev() {
            let handle = self.dense_to_sparse[place];
            if !keep(handle, &mut self.values.as_mut_slice()[place]) {
                self.free(handle);
            }
        }
    }

    /// Returns `true` if the handle names a value of this map. Cost: one load.
    #[doc(alias("contains_key", "is_alive"))]
    #[inline]
    pub fn is_valid(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        self.slots.is_valid(handle)
    }
    /// Returns the index of the handle's value in [`as_slice`](Self::as_slice), valid until the next free.
    #[inline]
    pub fn place(&self, handle: Handle<W, GENERATION_BITS>) -> Option<usize> {
        if !self.is_valid(handle) {
            return None;
        }
        self.sparse_to_dense.get(handle.index() as usize).map(|place| *place as usize)
    }
    /// Returns the value, or `None` for a stale handle. Cost: two loads in addition to the load of the value.
    #[doc(alias("find", "at"))]
    #[inline]
    pub fn get(&self, handle: Handle<W, GENERATION_BITS>) -> Option<&T> {
        self.values.get(self.place(handle)?)
    }
    /// Returns a mutable reference to the value, or `None` for a stale handle.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle<W, GENERATION_BITS>) -> Option<&mut T> {
        let place = self.place(handle)?;
        self.values.get_mut(place)
    }

    /// Returns all values as a slice.
    #[doc(alias = "data")]
    pub fn as_slice(&self) -> &[T] {
        self.values.as_slice()
    }
    /// Returns all values as a mutable slice.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.values.as_mut_slice()
    }
    /// Returns the handles of all values, in the order of the values.
    #[doc(alias = "keys")]
    pub fn handles(&self) -> &[Handle<W, GENERATION_BITS>] {
        &self.dense_to_sparse
    }
    /// Iterates over the values with their handles.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Handle<W, GENERATION_BITS>, &T)> {
        self.dense_to_sparse.iter().copied().zip(self.as_slice())
    }
    /// Iterates over mutable references to the values, with their handles.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (Handle<W, GENERATION_BITS>, &mut T)> {
        self.dense_to_sparse.iter().copied().zip(self.values.as_mut_slice())
    }
    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }
    /// Returns `true` if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
    /// Number of retired slots, whose words still take memory.
    pub fn retired(&self) -> u64 {
        self.slots.retired()
    }
    /// See [`HandleTable::generation_at`](super::HandleTable::generation_at).
    pub fn generation_at(&self, index: usize) -> Option<u32> {
        self.slots.generation_at(index)
    }
    /// See [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation).
    pub fn fresh_generation(&self) -> Option<u32> {
        self.slots.fresh_generation()
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Default for SlotMap<T, W, GENERATION_BITS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle24x8;

    type Map<T> = SlotMap<T, u32, 8>;

    fn sparse_words<T>(map: &Map<T>) -> Vec<u32> {
        map.handles().iter().map(|handle| handle.index()).collect()
    }

    #[test]
    fn removing_a_middle_value_moves_the_last_value() {
        let mut map = Map::new();
        let [a, b, c] = ['A', 'B', 'C'].map(|name| map.alloc(name).unwrap());
        assert_eq!((&*map.sparse_to_dense, sparse_words(&map)), (&[0, 1, 2][..], vec![0, 1, 2]));
        assert_eq!(map.free(b), Some('B'));
        assert_eq!(map.as_slice(), ['A', 'C']);
        // The sparse entry of C is now 1, and its reverse entry agrees. The sparse entry of B is meaningless.
        assert_eq!((map.sparse_to_dense[0], map.sparse_to_dense[2], sparse_words(&map)), (0, 1, vec![0, 2]));
        assert_eq!([a, b, c].map(|handle| map.get(handle).copied()), [Some('A'), None, Some('C')]);
        // Value D gets B's index, in its next generation, and the place behind C.
        let d = map.alloc('D').unwrap();
        assert_eq!((d.index(), d.generation(), b.generation()), (1, 2, 1));
        assert_eq!((&*map.sparse_to_dense, sparse_words(&map)), (&[0, 2, 1][..], vec![0, 2, 1]));
        assert_eq!((map.free(b), map.get(b), map.get(d)), (None, None, Some(&'D')));
    }

    #[test]
    fn removing_the_last_value_moves_no_value() {
        let mut map = Map::new();
        let [a, b] = [1, 2].map(|value| map.alloc(value).unwrap());
        assert_eq!((map.free(b), map.as_slice(), map.place(a)), (Some(2), &[1][..], Some(0)));
        assert_eq!((map.free(a), map.is_empty(), map.free(a)), (Some(1), true, None));
        // Allocates the same number of values again, in slots that were used before.
        let again = [3, 4].map(|value| map.alloc(value).unwrap());
        assert_eq!(again.map(|handle| (handle.index(), handle.generation())), [(0, 2), (1, 2)]);
        assert_eq!(map.free(Handle24x8::new(9, 1).unwrap()), None);
    }

    #[test]
    fn values_can_be_changed_through_handles() {
        let mut map = Map::new();
        let handles: Vec<_> = (0..10).map(|value| map.alloc(value).unwrap()).collect();
        for (handle, value) in map.iter_mut() {
            *value += handle.index() * 10;
        }
        let mut visited = vec![];
        map.retain(|handle, value| {
            visited.push(handle);
            *value % 2 == 0
        });
        visited.sort();
        assert_eq!(visited, handles);
        assert_eq!(map.len(), 5);
        for (n, handle) in (0..).zip(handles) {
            assert_eq!(map.get(handle).copied(), (n % 2 == 0).then_some(11 * n));
        }
        assert!(map.iter().all(|(handle, value)| map.get(handle) == Some(value)));
    }

    #[test]
    fn slot_map_works_after_slots_retire() {
        let mut map = Map::new();
        let kept = map.alloc(0).unwrap();
        for life in 0..1000 {
            let handle = map.alloc(life).unwrap();
            assert_eq!(map.free(handle), Some(life));
        }
        assert_eq!((map.retired(), map.len(), map.get(kept)), (3, 1, Some(&0)));
    }

    #[test]
    fn panicking_insertion_changes_no_slot() {
        let mut map = Map::new();
        let make = |_| -> u8 { panic!("intended panic") };
        let caught = crate::catch_panic(|| map.alloc_with(make));
        assert!(caught.is_err() && map.is_empty() && map.handles().is_empty());
        let first = map.alloc(1).unwrap();
        assert_eq!((first.index(), map.get(first)), (0, Some(&1)));
    }
}

//! The packed array: values at indexes 0 to `len`, without gaps, for iterating over all of them.
//!
//! A free moves the last value into the gap (swap and pop). An index names a value only until the next free, and each
//! free copies one value:
//!
//! ```text
//!   free(1):   [ A ][ B ][ C ][ D ]   ->   [ A ][ D ][ C ]
//!                     ^-----------+
//! ```
//!
//! The packed array works like `Vec::swap_remove`, but returns errors. The source of the packed array is act 4 of
//! "Arena pools: from naive pool to slot map" (the pool article). Act 6 of the article adds permanent names for the
//! values: [`SlotMap`](super::SlotMap).

use super::error::HandleError;
use alloc::vec::Vec;

/// An array of values without gaps, whose indexes change.
///
/// ```
/// use uslab_handle::PackedArray;
///
/// let mut sparks = PackedArray::new();
/// for spark in ["a", "b", "c", "d"] {
///     sparks.alloc(spark)?;
/// }
/// assert_eq!(sparks.free(1), Some("b"));
/// assert_eq!(sparks.as_slice(), ["a", "d", "c"]); // the last one moved
/// # Ok::<(), uslab_handle::HandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedArray<T>(Vec<T>);

impl<T> PackedArray<T> {
    /// Makes an empty array, which takes no memory.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
    /// Appends `value` and returns its index; the index is valid until the next free. Cost: O(1). If the array must
    /// grow, all values move.
    ///
    /// # Errors
    /// Returns an error and drops `value` if memory is short.
    #[doc(alias("push", "insert"))]
    pub fn alloc(&mut self, value: T) -> Result<usize, HandleError> {
        self.reserve()?;
        self.0.push(value);
        Ok(self.0.len() - 1)
    }
    pub(super) fn reserve(&mut self) -> Result<(), HandleError> {
        self.0.try_reserve(1).map_err(|_| HandleError::Memory)
    }
    /// Removes and returns the value at `index`, and moves the last value to `index`. Returns `None` if no value is at
    /// `index`. Cost: one copy of a value.
    #[doc(alias("swap_remove", "remove", "erase"))]
    pub fn free(&mut self, index: usize) -> Option<T> {
        (index < self.0.len()).then(|| self.0.swap_remove(index))
    }
    /// Returns the value at `index`.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index)
    }
    /// Returns the value at `index`, mutably.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)
    }
    /// Returns all values as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
    /// Returns all values as a mutable slice.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Returns `true` if the array is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for PackedArray<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_stay_contiguous_after_each_free() {
        let mut array = PackedArray::new();
        (0..4).for_each(|i| assert_eq!(array.alloc(i), Ok(i)));
        assert_eq!((array.free(0), array.as_slice()), (Some(0), &[3, 1, 2][..]));
        // Freeing the last value of the array moves nothing.
        assert_eq!((array.free(2), array.as_slice()), (Some(2), &[3, 1][..]));
        assert_eq!((array.free(2), array.len()), (None, 2));
        assert_eq!((array.free(0), array.free(0), array.free(0)), (Some(3), Some(1), None));
        assert!(array.is_empty() && array.free(usize::MAX).is_none());
        assert_eq!(array.alloc(7), Ok(0));
    }

    /// A user interface marks particle 5 of a hundred particles, and then the physics code frees that particle. After
    /// the free, index 5 names particle 99. A handle to the freed particle would be stale.
    #[test]
    fn plain_index_refers_to_the_wrong_particle_after_a_free() {
        let mut particles = PackedArray::new();
        let mut map = crate::SlotMap::<u32>::new();
        let handles: Vec<_> = (0..100)
            .map(|particle| {
                particles.alloc(particle).unwrap();
                map.alloc(particle).unwrap()
            })
            .collect();
        let (special, place) = (5, &raw const particles.as_slice()[5]);
        assert_eq!(particles.get(special), Some(&5));
        assert_eq!((particles.free(5), map.free(handles[5])), (Some(5), Some(5)));
        assert_eq!(particles.get(special), Some(&99), "the mark belongs to another particle");
        assert_eq!(&raw const particles.as_slice()[5], place, "the value is at the same address");
        assert_eq!((map.get(handles[5]), map.get(handles[99])), (None, Some(&99)));
        assert_eq!(map.as_slice()[5], 99, "the value moved, and its handle finds it");
    }
}

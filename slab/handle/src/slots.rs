//! Allocator of slot indexes, with one array of words for the generations of all slots and the list of free slots.
//!
//! ```text
//!   slot      0          1          2          3
//!   word   [ 0 | g 1 ][ 3 | g 4 ][ 2 | g 2 ][ 2 | g 7 ]      index field | generation
//!            in use     free  ──────────────>  free, the last: its link is meaningless
//! ```
//!
//! * The word of a slot in use equals its handle, so a handle is checked by one load and one comparison.
//! * The word of a free slot holds the index of the next free slot. In the last free slot and in retired slots, the
//!   index is arbitrary. The word of a free slot differs from all handles of the slot. The generation in a free slot's
//!   word is the slot's next generation.
//!
//! EnTT also keeps the list of free slots inside the array (Caini, "ECS back and forth", part 3: why you don't need to
//! store deleted entities, 2019). The list of free slots is last in, first out, so that a reused slot is probably still
//! in the CPU's cache. A first-in, first-out queue of free slots would use generations evenly in all slots, as in
//! Frykholm, "Managing Decoupling Part 4: The ID Lookup Table", 2011.

use super::bits::{Handle, Word, generation_of, index_of, pack};
use super::error::HandleError;
use alloc::vec::Vec;

/// What happens to a slot whose last generation was freed.
///
/// ```
/// use uslab_handle::{HandleError, HandleTable, WrapPolicy};
///
/// for (policy, is_taken_for_another) in [(WrapPolicy::Retire, false), (WrapPolicy::Wrap, true)] {
///     let mut entities = HandleTable::<&str, u32, 1>::with(policy); // one generation a slot
///     let imp = entities.alloc("imp")?;
///     entities.free(imp);
///     entities.alloc("baron")?;
///     assert_eq!(entities.is_valid(imp), is_taken_for_another);
/// }
/// # Ok::<(), HandleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WrapPolicy {
    /// The slot is never used again, so a stale handle is never mistaken for a new handle. The memory of the retired
    /// slot is lost.
    #[default]
    Retire,
    /// The slot begins at generation 1 again. After a slot has wrapped, a handle from [`Handle::LAST_GENERATION`] lives
    /// ago is valid again, and names another object (the ABA problem).
    Wrap,
}

/// The sequence of generations that each slot runs through.
///
/// ```
/// use uslab_handle::{Generations, HandleError, HandleTable};
///
/// let mut entities = HandleTable::<&str>::new();
/// let imp = entities.alloc("imp")?;
/// // The program saves and loads its values: the new table must reject handles of the old one.
/// let first = entities.fresh_generation().expect("a slot is in its last generation: the handles need more bits");
/// let mut loaded = HandleTable::<&str>::with(Generations { first, ..Generations::default() });
/// let baron = loaded.alloc("baron")?;
/// assert_eq!((imp.index(), loaded.get(imp)), (baron.index(), None));
/// # Ok::<(), HandleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generations {
    /// The generation of each slot's first handle. A first generation above 1 distinguishes this table's handles from
    /// handles of an earlier table: see [`remap`](super::remap). If `first` exceeds the last generation, slots have no
    /// generation, or generation 1 with [`Wrap`](WrapPolicy::Wrap).
    pub first: u32,
    /// The policy for a slot whose last generation was freed.
    pub policy: WrapPolicy,
}

impl Default for Generations {
    fn default() -> Self {
        Self { first: 1, policy: WrapPolicy::Retire }
    }
}

impl From<WrapPolicy> for Generations {
    fn from(policy: WrapPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

impl Generations {
    /// Returns the generation that follows `generation`, or `None` if the slot retires; `last` is the highest
    /// generation.
    #[inline(always)]
    pub fn next_generation(self, generation: u32, last: u32) -> Option<u32> {
        match self.policy {
            _ if generation < last => Some(generation + 1),
            WrapPolicy::Retire => None,
            WrapPolicy::Wrap => Some(1),
        }
    }

    /// Returns a generation that is higher than all generations in `used`, and at least the first generation.
    pub fn fresh(self, used: impl Iterator<Item = u32>, last: u32) -> Option<u32> {
        let newest = used.max().unwrap_or(0).max(self.first.max(1) - 1);
        (newest < last).then(|| newest + 1)
    }

    /// Returns the generation with which a new slot begins.
    #[inline(always)]
    pub fn first(self, last: u32) -> Option<u32> {
        self.next_generation(self.first.max(1) - 1, last)
    }
}

/// All slots of a handle table: their generations, and the list of free slots. See the module.
#[derive(Clone, Debug)]
pub(super) struct Slots<W: Word, const G: u32> {
    words: Vec<W>,
    head: u32,
    free: u64,
    retired: u64,
    generations: Generations,
}

impl<W: Word, const G: u32> Slots<W, G> {
    pub(super) const fn new(generations: Generations) -> Self {
        Self { words: Vec::new(), head: 0, free: 0, retired: 0, generations }
    }

    /// Makes room for one more handle, and returns the handle that [`take`](Self::take) will mark as in use.
    pub(super) fn next(&mut self) -> Result<Handle<W, G>, HandleError> {
        let (index, generation) = if self.free > 0 {
            (self.head, generation_of::<W, G>(self.words[self.head as usize]))
        } else {
            let full = HandleError::Full { slots: Handle::<W, G>::SLOTS, retired: self.retired };
            let generation = self.generations.first(Handle::<W, G>::LAST_GENERATION).ok_or(full)?;
            let index = self.words.len() as u64;
            if index >= Handle::<W, G>::SLOTS {
                return Err(full);
            }
            self.words.try_reserve(1).map_err(|_| HandleError::Memory)?;
            (index as u32, generation)
        };
        // Index and generation were packed before or are in their ranges, and a generation is never 0.
        Handle::from_bits(pack::<W, G>(index, generation)).ok_or(HandleError::Memory)
    }

    /// Marks the slot of the handle that [`next`](Self::next) has just returned as in use.
    pub(super) fn take(&mut self, handle: Handle<W, G>) {
        match self.words.get_mut(handle.index() as usize) {
            Some(word) => {
                self.head = index_of::<W, G>(*word);
                self.free -= 1;
                *word = handle.to_bits();
            }
            None => self.words.push(handle.to_bits()),
        }
    }

    /// Returns `true` if the handle is in use. Cost: one load and one comparison.
    #[inline(always)]
    pub(super) fn is_valid(&self, handle: Handle<W, G>) -> bool {
        self.words.get(handle.index() as usize) == Some(&handle.to_bits())
    }

    /// Frees the slot of a valid handle. Returns `false` if the handle is not valid.
    pub(super) fn free(&mut self, handle: Handle<W, G>) -> bool {
        if !self.is_valid(handle) {
            return false;
        }
        let index = handle.index();
        let word = &mut self.words[index as usize];
        // The free slot's word never has the slot's own index: see the module.
        let other_index = index ^ 1;
        match self.generations.next_generation(handle.generation(), Handle::<W, G>::LAST_GENERATION) {
            Some(next) => {
                let link = if self.free > 0 { self.head } else { other_index };
                *word = pack::<W, G>(link, next);
                self.head = index;
                self.free += 1;
            }
            None => {
                *word = pack::<W, G>(other_index, handle.generation());
                self.retired += 1;
            }
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        self.words.len() - (self.free + self.retired) as usize
    }
    pub(super) fn retired(&self) -> u64 {
        self.retired
    }
    pub(super) fn handle_at(&self, index: usize) -> Option<Handle<W, G>> {
        let handle = Handle::from_bits(*self.words.get(index)?)?;
        (handle.index() as usize == index).then_some(handle)
    }
    /// Returns a slot's generation: the current life if in use, the next life if free, or the last life if retired.
    pub(super) fn generation_at(&self, index: usize) -> Option<u32> {
        self.words.get(index).map(|word| generation_of::<W, G>(*word))
    }
    /// Returns a generation that is higher than the generations of all handles so far, even of earlier tables, and of
    /// all free slots' next handles. Returns `None` if the result would exceed the last generation.
    pub(super) fn fresh_generation(&self) -> Option<u32> {
        let used = self.words.iter().map(|word| generation_of::<W, G>(*word));
        self.generations.fresh(used, Handle::<W, G>::LAST_GENERATION)
    }
    #[cfg(test)]
    pub(super) fn words(&self) -> &[W] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type SmallSlots = Slots<u32, 30>;

    fn alloc<W: Word, const G: u32>(slots: &mut Slots<W, G>) -> Result<Handle<W, G>, HandleError> {
        let handle = slots.next()?;
        slots.take(handle);
        Ok(handle)
    }

    #[test]
    fn bits_of_a_free_slot_never_equal_a_valid_handle() {
        let mut slots = SmallSlots::new(Generations::default());
        let handles = [(); 4].map(|()| alloc(&mut slots).unwrap());
        assert_eq!(alloc(&mut slots), Err(HandleError::Full { slots: 4, retired: 0 }));
        for handle in handles {
            assert!(slots.free(handle) && !slots.free(handle));
        }
        // No slot is in use, so any handle is stale.
        for index in 0..4 {
            assert_eq!(slots.handle_at(index), None);
            for generation in 1..9 {
                assert!(!slots.is_valid(Handle::new(index as u32, generation).unwrap()));
            }
        }
        assert_eq!(slots.len(), 0);
        // Slots are reused last in, first out, each in its second life. After four allocations, no slot is left.
        let again = [(); 4].map(|()| alloc(&mut slots).unwrap());
        assert_eq!(again.map(Handle::index), [3, 2, 1, 0]);
        assert_eq!(again.map(Handle::generation), [2; 4]);
        assert!(alloc(&mut slots).is_err());
    }

    #[test]
    fn peeking_at_the_next_handle_allocates_no_slot() {
        let mut slots = SmallSlots::new(Generations::default());
        let first = slots.next().unwrap();
        assert!(!slots.is_valid(first));
        assert_eq!((slots.next().unwrap(), slots.len()), (first, 0));
    }

    #[test]
    fn retired_slots_are_counted_and_never_reused() {
        // Each slot has three lives.
        let mut slots = Slots::<u32, 2>::new(Generations::default());
        let kept = alloc(&mut slots).unwrap();
        for life in 1..=3 {
            let handle = alloc(&mut slots).unwrap();
            assert_eq!((handle.index(), handle.generation()), (1, life));
            assert!(slots.free(handle));
        }
        assert_eq!((slots.retired(), slots.len()), (1, 1));
        assert_eq!(alloc(&mut slots).unwrap().index(), 2);
        assert!(slots.is_valid(kept));
        assert_eq!(slots.handle_at(1), None);
        assert!((1..=3).all(|life| !slots.is_valid(Handle::new(1, life).unwrap())));
    }

    #[test]
    fn full_table_error_counts_the_retired_slots() {
        let mut slots = Slots::<u32, 31>::new(Generations { first: u32::MAX >> 1, ..Generations::default() });
        for _ in 0..2 {
            let handle = alloc(&mut slots).unwrap();
            assert!(slots.free(handle));
        }
        assert_eq!(alloc(&mut slots), Err(HandleError::Full { slots: 2, retired: 2 }));
    }

    #[test]
    fn first_generation_above_the_maximum_follows_the_wrap_policy() {
        let generations = Generations { first: 256, policy: WrapPolicy::Retire };
        assert_eq!(
            Slots::<u32, 8>::new(generations).next(),
            Err(HandleError::Full { slots: 1 << 24, retired: 0 })
        );
        let wraps = Generations { first: 256, policy: WrapPolicy::Wrap };
        assert_eq!(Slots::<u32, 8>::new(wraps).next().unwrap().generation(), 1);
        let zero = Generations { first: 0, policy: WrapPolicy::Retire };
        assert_eq!(Slots::<u32, 8>::new(zero).next().unwrap().generation(), 1);
    }

    #[test]
    fn fresh_generation_exceeds_all_used_generations() {
        let mut slots = Slots::<u32, 8>::new(Generations::default());
        assert_eq!(slots.fresh_generation(), Some(1));
        for _ in 0..4 {
            let handle = alloc(&mut slots).unwrap();
            slots.free(handle);
        }
        assert_eq!(slots.fresh_generation(), Some(6));
        // A table that was loaded but not used has generations at least as high as its predecessor's.
        let unused_slots = Slots::<u32, 8>::new(Generations { first: 9, ..Generations::default() });
        assert_eq!(unused_slots.fresh_generation(), Some(9));
        let mut last = Slots::<u32, 8>::new(Generations { first: 255, policy: WrapPolicy::Wrap });
        alloc(&mut last).unwrap();
        assert_eq!(last.fresh_generation(), None);
    }
}

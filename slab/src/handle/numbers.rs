//! Numbers of a handle cache's objects, each with the shared state of its object: life, use and holders.
//!
//! ```text
//!   number ──> segment (64, 128, 256 ... entries, never moved or freed) ──> entry
//!
//!   entry.word    [ generation: 32 | in use: 1 | holders: 31 ]          entry.object ──> the object
//! ```
//!
//! An object keeps its number from its first allocation until it is destructed or its generations are used up. Objects
//! keep their numbers in the cache's magazines, so only the assignment of a new number takes the lock. Entries are
//! never freed, so even the oldest stale handle leads to a readable word.
//!
//! Invariants:
//! * An object is reallocated only if its entry's word is "not in use, no holders".
//! * `entry.object` and the generation change only while the word is "not in use, no holders".
//! * The thread that changes a word to "not in use, no holders" frees the object.

use crate::error::AllocError;
use core::ptr::{null_mut, slice_from_raw_parts_mut, without_provenance_mut};
use uslab_handle::{Generations, HandleError};
use uslab_magazine::sync::{AtomicPtr, AtomicU64, Mutex, Ordering::*, Rank, abandoned, tell};

/// Number of entries in the first segment. Each later segment has twice as many entries as its predecessor.
const FIRST_SEGMENT_LEN: u64 = if cfg!(loom) { 1 } else { 64 };
/// Number of segments, which suffices for 32-bit numbers. A model needs at least two segments, but each further segment
/// enlarges the search.
const SEGMENTS: usize = if cfg!(loom) { 3 } else { 27 };

/// Flag of an entry's word: the object is in use.
const IN_USE_FLAG: u64 = 1 << 31;
/// Mask of the holder count in an entry's word.
const HOLDER_COUNT_MASK: u64 = IN_USE_FLAG - 1;

/// State of the object with a given number.
#[derive(Debug)]
pub(super) struct Entry {
    word: AtomicU64,
    /// Address of the object, which stays here until the object's next allocation. If the number is free, this field
    /// holds the next free number instead.
    object: AtomicPtr<u8>,
}

/// Proof that an object has neither a user nor a holder. The owner of the proof must free the object to its cache.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastReference;

impl Entry {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) }
    }
    /// Address of the entry's object. The object belongs to the entry's number until the object is freed.
    #[inline(always)]
    pub(super) fn object(&self) -> *mut u8 {
        // Relaxed: the address was written before the word became "in use", and the caller has read
        // that word.
        self.object.load(Relaxed)
    }
    /// Returns the number of the object's current or last life; 0 before its first life.
    fn generation(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// Begins life `generation` of the object. Only the thread that owns the object may call this
    /// function.
    pub(super) fn begin(&self, object: *mut u8, generation: u32) {
        self.object.store(object, Relaxed);
        // Release: pairs with the Acquire in `hold` and `end`, so that a holder or freer finds the object prepared.
        self.word.store(u64::from(generation) << 32 | IN_USE_FLAG, Release);
        tell!("begins generation {generation} of the object at {object:?}");
    }

    /// Returns the entry's current word, which may be outdated when the call returns.
    #[inline(always)]
    fn now(&self) -> u64 {
        self.word.load(Relaxed)
    }
    /// Returns `true` if life `generation` has not ended. Cost: one load.
    #[inline(always)]
    pub(super) fn is_in_use(&self, generation: u32) -> bool {
        let word = self.now();
        Self::generation(word) == generation && word & IN_USE_FLAG != 0
    }

    /// Holds the object if its life `generation` has not ended, and returns `true` on success. The object cannot be
    /// reallocated until the caller calls [`release_hold`](Self::release_hold).
    ///
    /// # Panics
    /// Panics if the object is already held 2,147,483,647 times.
    #[inline]
    pub(super) fn hold(&self, generation: u32) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            if Self::generation(word) != generation || word & IN_USE_FLAG == 0 {
                return false;
            }
            assert!(
                word & HOLDER_COUNT_MASK != HOLDER_COUNT_MASK,
                "an object has {HOLDER_COUNT_MASK} holders, the maximum"
            );
            // Acquire: pairs with the Release in `begin`; other holders continue the release sequence of `begin`.
            match self.word.compare_exchange(word, word + 1, Acquire, Relaxed) {
                Ok(_) => {
                    tell!("holds the object in generation {generation}");
                    return true;
                }
                Err(now) => {
                    word = now;
                }
            }
        }
    }

    /// Releases an object that the caller holds. If the object's life has ended, the last thread to release the object
    /// gets it, and must free it.
    #[inline]
    pub(super) fn release_hold(&self) -> Option<LastReference> {
        // Release: the holder's accesses come before the object's next life. Acquire: all accesses of other holders,
        // and of the thread that ended the life, come before the last holder frees the object. The Acquire pairs with
        // the Release in `release_hold` and in `end`.
        let before = self.word.fetch_sub(1, AcqRel);
        tell!("releases the object: there were {} holders", before & HOLDER_COUNT_MASK);
        (before & (IN_USE_FLAG | HOLDER_COUNT_MASK) == 1).then_some(LastReference)
    }

    /// Ends life `generation`; returns `None` if that life has already ended. After the end of a life, no thread can
    /// newly hold the object. If no thread holds the object, the caller gets it.
    pub(super) fn end(&self, generation: u32) -> Option<Option<LastReference>> {
        let mut word = self.word.load(Relaxed);
        loop {
            if Self::generation(word) != generation || word & IN_USE_FLAG == 0 {
                return None;
            }
            let ended = word & !IN_USE_FLAG;
            // Acquire: pairs with the Release in `begin` and `release_hold`, which come before the object's next life.
            // Release: pairs with the Acquire in the `release_hold` of the last holder, which may free the object.
            match self.word.compare_exchange(word, ended, AcqRel, Relaxed) {
                Ok(_) => {
                    tell!("ends generation {generation}: {} holders", ended & HOLDER_COUNT_MASK);
                    return Some((ended & HOLDER_COUNT_MASK == 0).then_some(LastReference));
                }
                Err(now) => {
                    word = now;
                }
            }
        }
    }

    /// Returns `true` if the object is in use or held. The caller must be the only user of the entry.
    fn is_used_or_held(&self) -> bool {
        self.word.load(Relaxed) & (IN_USE_FLAG | HOLDER_COUNT_MASK) != 0
    }
}

/// The list of free numbers, with counts of used and retired numbers.
#[derive(Debug, Default)]
struct Free {
    /// Number at the head of the free list plus one; 0 if no number is free.
    head: u64,
    /// Count of numbers that have ever been used.
    used: u64,
    retired: u64,
}

#[derive(Debug)]
pub(super) struct NumberTable {
    /// Entries of each segment, which are never freed; null if the segment does not exist yet.
    segments: [AtomicPtr<Entry>; SEGMENTS],
    free: Mutex<Free>,
    /// Number of objects that a handle can distinguish. `last` is the last generation of an object.
    limit: u64,
    last: u32,
    generations: Generations,
}

impl NumberTable {
    pub(super) fn new(limit: u64, last: u32, generations: Generations) -> Self {
        let segments = core::array::from_fn(|_| AtomicPtr::new(null_mut()));
        let limit = limit.min((FIRST_SEGMENT_LEN << SEGMENTS) - FIRST_SEGMENT_LEN);
        Self { segments, free: Mutex::ranked(Rank::Numbers, Free::default()), limit, last, generations }
    }

    #[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
    pub(super) fn lock(&self) -> impl Sized + '_ {
        self.free.lock()
    }

    /// Returns the segment of a number, and the number's index in the segment.
    #[inline(always)]
    fn at(number: u32) -> (usize, usize) {
        let shifted = u64::from(number) + FIRST_SEGMENT_LEN;
        let segment = shifted.ilog2() - FIRST_SEGMENT_LEN.ilog2();
        (segment as usize, (shifted - (FIRST_SEGMENT_LEN << segment)) as usize)
    }
    /// Returns the entry of a number, or `None` if the number's segment does not exist.
    #[inline(always)]
    pub(super) fn entry(&self, number: u32) -> Option<&Entry> {
        let (segment, place) = Self::at(number);
        // Acquire: pairs with the Release in `extend`, so that entries are initialised.
        let entries = self.segments.get(segment)?.load(Acquire);
        // SAFETY: a segment that is not null has `FIRST_SEGMENT_LEN << segment` entries, and is never freed; `place` is
        // below that count.
        (!entries.is_null()).then(|| unsafe { &*entries.add(place) })
    }

    /// Makes the segment of `number`, unless it exists.
    fn extend(&self, number: u32) -> Result<(), HandleError<AllocError>> {
        let (segment, _) = Self::at(number);
        let mut entries = Vec::new();
        // The segment is allocated outside the lock, because the cache may be part of the program's heap.
        entries
            .try_reserve_exact((FIRST_SEGMENT_LEN << segment) as usize)
            .map_err(|_| HandleError::Memory)?;
        entries.extend((0..FIRST_SEGMENT_LEN << segment).map(|_| Entry::new()));
        let entries = Box::into_raw(entries.into_boxed_slice()).cast();
        // Release: pairs with the Acquire in `entry`, by which a thread whose exchange fails finds
        // the segment.
        if self.segments[segment].compare_exchange(null_mut(), entries, Release, Relaxed).is_err() {
            // SAFETY: this call made the segment, and did not publish it.
            drop(unsafe {
                Box::from_raw(slice_from_raw_parts_mut(entries, (FIRST_SEGMENT_LEN << segment) as usize))
            });
        }
        Ok(())
    }

    /// Takes an unused number, and returns it with the generation of its first life.
    pub(super) fn take(&self) -> Result<(u32, u32), HandleError<AllocError>> {
        let full_error = |free: &Free| HandleError::Full { slots: self.limit, retired: free.retired };
        loop {
            let mut free = self.free.lock();
            let number = free.head.checked_sub(1).unwrap_or(free.used);
            let generation = self.generations.first(self.last);
            if number >= self.limit || generation.is_none() {
                return Err(full_error(&free));
            }
            let number = number as u32;
            let Some(entry) = self.entry(number) else {
                drop(free);
                self.extend(number)?;
                continue;
            };
            if free.head == 0 {
                free.used += 1;
            } else {
                free.head = entry.object().addr() as u64;
            }
            // Free numbers have a generation left, because `give` retires a number after its last generation.
            return self.next(number).map(|generation| (number, generation)).ok_or(HandleError::Memory);
        }
    }

    /// Returns the next generation of an object's number; the caller owns the number. Returns `None` if the
    /// generations of the number are used up.
    pub(super) fn next(&self, number: u32) -> Option<u32> {
        // Relaxed: the caller got the object from the thread that last changed the word.
        match Entry::generation(self.entry(number)?.word.load(Relaxed)) {
            0 => self.generations.first(self.last),
            generation => self.generations.next_generation(generation, self.last),
        }
    }

    /// Frees the number of a destructed object, or retires the number if its generations are used
    /// up.
    pub(super) fn give(&self, number: u32) {
        let next = self.next(number);
        let mut free = self.free.lock();
        match (next, self.entry(number)) {
            (Some(_), Some(entry)) => {
                entry.object.store(without_provenance_mut(free.head as usize), Relaxed);
                free.head = u64::from(number) + 1;
            }
            _ => free.retired += 1,
        }
    }

    /// Iterates over the objects that are in use or held. No other thread may use the numbers while the iteration runs.
    pub(super) fn objects_in_use(&self) -> impl Iterator<Item = *mut u8> {
        let used = self.free.lock().used;
        (0..used)
            .filter_map(|number| self.entry(number as u32))
            .filter(|entry| entry.is_used_or_held())
            .map(Entry::object)
    }
    /// Returns a generation that no number has used, as
    /// [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation) does.
    pub(super) fn fresh_generation(&self) -> Option<u32> {
        let used = self.free.lock().used;
        let entries = (0..used).filter_map(|number| self.entry(number as u32));
        // When a free number is used again, it gets the next generation.
        let used = entries.map(|entry| match Entry::generation(entry.now()) {
            next if next > 0 && !entry.is_in_use(next) => {
                self.generations.next_generation(next, self.last).unwrap_or(next)
            }
            now => now,
        });
        self.generations.fresh(used, self.last)
    }
    pub(super) fn retired(&self) -> u64 {
        self.free.lock().retired
    }
}

impl Drop for NumberTable {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        for (segment, entries) in self.segments.iter().enumerate() {
            let entries = entries.load(Relaxed);
            if !entries.is_null() {
                // SAFETY: `extend` made the segment with this number of entries, and no other user is
                // left.
                drop(unsafe {
                    Box::from_raw(slice_from_raw_parts_mut(entries, (FIRST_SEGMENT_LEN << segment) as usize))
                });
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn numbers(limit: u64) -> NumberTable {
        NumberTable::new(limit, 255, Generations::default())
    }

    #[test]
    fn number_table_segments_cover_all_32_bit_numbers() {
        for (number, at) in [(0, (0, 0)), (63, (0, 63)), (64, (1, 0)), (191, (1, 127)), (192, (2, 0))] {
            assert_eq!(NumberTable::at(number), at);
        }
        let (segment, place) = NumberTable::at(u32::MAX);
        assert!(segment < SEGMENTS && (place as u64) < FIRST_SEGMENT_LEN << segment);
        assert!((FIRST_SEGMENT_LEN << SEGMENTS) - FIRST_SEGMENT_LEN > u64::from(u32::MAX));
    }

    #[test]
    fn freed_object_numbers_are_reused_at_the_limit() {
        let numbers = numbers(200);
        for expected in 0..200 {
            assert_eq!(numbers.take(), Ok((expected, 1)));
        }
        let full_error = Err(HandleError::Full { slots: 200, retired: 0 });
        assert_eq!(numbers.take(), full_error);
        for number in [5, 199, 64] {
            numbers.give(number);
        }
        assert_eq!([(); 3].map(|()| numbers.take().unwrap().0), [64, 199, 5]);
        assert_eq!(numbers.take(), full_error);
        assert!(numbers.entry(u32::MAX).is_none());
    }

    #[test]
    fn object_number_retires_after_its_last_generation() {
        let numbers = numbers(64);
        assert_eq!(numbers.take(), Ok((0, 1)));
        numbers.entry(0).unwrap().begin(null_mut(), 254);
        numbers.give(0);
        assert_eq!(numbers.take(), Ok((0, 255)));
        numbers.entry(0).unwrap().begin(null_mut(), 255);
        numbers.give(0);
        assert_eq!((numbers.take(), numbers.retired()), (Ok((1, 1)), 1));
        // The first generation already exceeds the last one.
        let exhausted_table = NumberTable::new(64, 255, Generations { first: 256, ..Generations::default() });
        assert_eq!(exhausted_table.take(), Err(HandleError::Full { slots: 64, retired: 0 }));
    }

    #[test]
    fn release_by_the_last_holder_returns_the_object() {
        let entry = Entry::new();
        entry.begin(null_mut(), 3);
        assert!(entry.is_in_use(3) && !entry.is_in_use(2) && !entry.hold(2) && entry.end(4).is_none());
        assert!(entry.hold(3) && entry.hold(3));
        assert_eq!((entry.release_hold(), entry.end(3), entry.end(3)), (None, Some(None), None));
        // After the life has ended, no thread can hold the object anew, and the remaining holder is
        // the last.
        assert!(!entry.is_in_use(3) && !entry.hold(3) && entry.is_used_or_held());
        assert_eq!((entry.release_hold(), entry.is_used_or_held()), (Some(LastReference), false));
        entry.begin(null_mut(), 4);
        assert_eq!(entry.end(4), Some(Some(LastReference)));
    }

    #[test]
    #[should_panic(expected = "an object has 2147483647 holders")]
    fn overflow_of_the_holder_count_panics() {
        let entry = Entry::new();
        entry.word.store(1 << 32 | IN_USE_FLAG | HOLDER_COUNT_MASK, Relaxed);
        entry.hold(1);
    }
}

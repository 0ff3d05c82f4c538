//! Numbers of objects, and what threads agree on about each: which life it is in, whether it is in use, who holds it.
//!
//! ```text
//!   number ──> segment (64, 128, 256 ... entries, never moved or freed) ──> entry
//!
//!   entry.word    [ generation: 32 | in use: 1 | holders: 31 ]          entry.object ──> the object
//! ```
//!
//! An object has its number from its first allocation until it is destructed or its generations are used up; so objects
//! come and go through the magazines of the cache with their number on them, and the lock here is for new numbers only.
//! Entries stay: a stale handle, however old, finds a word that may be read.
//!
//! Invariants:
//! * An object is handed out anew only when its word says "not in use, no holders".
//! * While it says otherwise `entry.object` and the generation do not change.
//! * Whoever takes a word to "not in use, no holders" gives the object back, and nobody else does.

use crate::error::AllocError;
use core::ptr::{null_mut, slice_from_raw_parts_mut, without_provenance_mut};
use uslab_handle::{Generations, HandleError};
use uslab_magazine::sync::{AtomicPtr, AtomicU64, Mutex, Ordering::*, Rank, abandoned, planted, tell};

/// Entries of the first segment; each further one has twice as many.
const FIRST: u64 = if cfg!(loom) { 1 } else { 64 };
/// Enough for 32 bits of number. In models two are in use soon, and each more is more to explore.
const SEGMENTS: usize = if cfg!(loom) { 3 } else { 27 };

/// The object is in use.
const IN_USE: u64 = 1 << 31;
/// What counts the holders.
const HOLDERS: u64 = IN_USE - 1;

/// What is known about the object of a number.
#[derive(Debug)]
pub(super) struct Entry {
    word: AtomicU64,
    /// The object, from its allocation to the next one; in a free number's entry the next free number, as an address.
    object: AtomicPtr<u8>,
}

/// An object that is nobody's any more: it goes back to its cache.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last;

impl Entry {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), object: AtomicPtr::new(null_mut()) }
    }
    /// Where the object lies. Its number's until it is given back.
    #[inline(always)]
    pub(super) fn object(&self) -> *mut u8 {
        // Relaxed: written before the word said "in use", and whoever reads this read that.
        self.object.load(Relaxed)
    }
    /// The life that it is or was in; 0 before the first one.
    fn generation(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// The object is in use from now on, in life `generation`. Only by whoever has it in hand.
    pub(super) fn begin(&self, object: *mut u8, generation: u32) {
        self.object.store(object, Relaxed);
        // Release: pairs with the Acquire in `hold` and `end`, so that who holds or frees the object finds it prepared.
        self.word.store(u64::from(generation) << 32 | IN_USE, Release);
        tell!("begins life {generation} of the object at {object:?}");
    }

    /// Which life, whether it goes on, and how many hold the object: a hint.
    #[inline(always)]
    fn now(&self) -> u64 {
        self.word.load(Relaxed)
    }
    /// Whether life `generation` goes on. Cost: one load.
    #[inline(always)]
    pub(super) fn is_in(&self, generation: u32) -> bool {
        let word = self.now();
        Self::generation(word) == generation && word & IN_USE != 0
    }

    /// Holds the object if life `generation` goes on: until [`let_go`](Self::let_go) it does not go to anybody else.
    ///
    /// # Panics
    /// The object has 2,147,483,647 holders.
    #[inline]
    pub(super) fn hold(&self, generation: u32) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            if Self::generation(word) != generation || word & IN_USE == 0 {
                return false;
            }
            assert!(word & HOLDERS != HOLDERS, "an object has {HOLDERS} holders: no more can be counted");
            // Acquire: pairs with the Release in `begin`; other holders keep that release going.
            match self.word.compare_exchange(word, word + 1, Acquire, Relaxed) {
                Ok(_) => {
                    tell!("holds the object in life {generation}");
                    return true;
                }
                Err(now) => {
                    planted!("a handle is looked at and then counted" => {
                        return self.hold(Self::generation(now));
                    });
                    word = now;
                }
            }
        }
    }

    /// A holder goes; the last one, after the end of the object's life, has it in hand.
    #[inline]
    pub(super) fn let_go(&self) -> Option<Last> {
        // Release: what the holder did comes before the object's next life. Acquire: and what all others did, who let go or
        // ended its life, comes before what the last one does with it. Both pair with each other, here and in `end`.
        let before = self.word.fetch_sub(1, AcqRel);
        tell!("lets go: there were {} holders", before & HOLDERS);
        (before & (IN_USE | HOLDERS) == 1).then_some(Last)
    }

    /// Ends life `generation`: `None` if it has ended before. Else nobody can hold the object any more, and if nobody does,
    /// the caller has it in hand.
    pub(super) fn end(&self, generation: u32) -> Option<Option<Last>> {
        let mut word = self.word.load(Relaxed);
        loop {
            if Self::generation(word) != generation || word & IN_USE == 0 {
                return None;
            }
            let ended = word & !IN_USE;
            // Acquire: pairs with the Release in `begin` and `let_go`: the object's next life comes after all that. Release:
            // pairs with the Acquire in the `let_go` of the last holder, through whose hands the object may go.
            match self.word.compare_exchange(word, ended, AcqRel, Relaxed) {
                Ok(_) => {
                    planted!("a free does not wait for holders" => return Some(Some(Last)));
                    tell!("ends life {generation}: {} holders", ended & HOLDERS);
                    return Some((ended & HOLDERS == 0).then_some(Last));
                }
                Err(now) => {
                    planted!("a handle is looked at and then freed" => {
                        return Some((ended & HOLDERS == 0).then_some(Last));
                    });
                    word = now;
                }
            }
        }
    }

    /// Whether the object is in use or held, when no thread is here any more.
    fn is_out(&self) -> bool {
        self.word.load(Relaxed) & (IN_USE | HOLDERS) != 0
    }
}

/// What is free, and what was ever used.
#[derive(Debug, Default)]
struct Free {
    /// The first free number plus one; 0 for none.
    head: u64,
    /// Numbers that were ever used.
    used: u64,
    retired: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Null, or the entries for good.
    segments: [AtomicPtr<Entry>; SEGMENTS],
    free: Mutex<Free>,
    /// Numbers that handles can tell apart, and their last generation.
    limit: u64,
    last: u32,
    generations: Generations,
}

impl Numbers {
    pub(super) fn new(limit: u64, last: u32, generations: Generations) -> Self {
        let segments = core::array::from_fn(|_| AtomicPtr::new(null_mut()));
        let limit = limit.min((FIRST << SEGMENTS) - FIRST);
        Self { segments, free: Mutex::ranked(Rank::Numbers, Free::default()), limit, last, generations }
    }

    /// What is free, locked.
    #[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
    pub(super) fn lock(&self) -> impl Sized + '_ {
        self.free.lock()
    }

    /// The segment of a number, and the number's place in it.
    #[inline(always)]
    fn at(number: u32) -> (usize, usize) {
        let shifted = u64::from(number) + FIRST;
        let segment = shifted.ilog2() - FIRST.ilog2();
        (segment as usize, (shifted - (FIRST << segment)) as usize)
    }
    /// What is known about a number; `None` if it was never used, nor any near it.
    #[inline(always)]
    pub(super) fn entry(&self, number: u32) -> Option<&Entry> {
        let (segment, place) = Self::at(number);
        // Acquire: pairs with the Release in `extend`, so that entries are found made.
        let entries = self.segments.get(segment)?.load(Acquire);
        // SAFETY: a segment that is not null has `FIRST << segment` entries, and stays; `place` is less.
        (!entries.is_null()).then(|| unsafe { &*entries.add(place) })
    }

    /// Makes the segment of `number`, if there is none.
    fn extend(&self, number: u32) -> Result<(), HandleError<AllocError>> {
        let (segment, _) = Self::at(number);
        let mut entries = Vec::new();
        // Without the lock: this may be the program's heap.
        entries.try_reserve_exact((FIRST << segment) as usize).map_err(|_| HandleError::Memory)?;
        entries.extend((0..FIRST << segment).map(|_| Entry::new()));
        let entries = Box::into_raw(entries.into_boxed_slice()).cast();
        // Release: pairs with the Acquire in `entry`. Who loses finds it by that.
        if self.segments[segment].compare_exchange(null_mut(), entries, Release, Relaxed).is_err() {
            // SAFETY: made above, and known to nobody.
            drop(unsafe { Box::from_raw(slice_from_raw_parts_mut(entries, (FIRST << segment) as usize)) });
        }
        Ok(())
    }

    /// A number that no object has, and the life that it is to begin.
    pub(super) fn take(&self) -> Result<(u32, u32), HandleError<AllocError>> {
        let full = |free: &Free| HandleError::Full { slots: self.limit, retired: free.retired };
        loop {
            let mut free = self.free.lock();
            let number = free.head.checked_sub(1).unwrap_or(free.used);
            let generation = self.generations.first(self.last);
            if number >= self.limit || generation.is_none() {
                return Err(full(&free));
            }
            let number = number as u32;
            let Some(entry) = self.entry(number) else {
                drop(free);
                self.extend(number)?;
                continue;
            };
            planted!("a number is chosen in one lock hold and taken in the next" => {
                drop(free);
                free = self.free.lock();
            });
            if free.head == 0 {
                free.used += 1;
            } else {
                free.head = entry.object().addr() as u64;
            }
            planted!("a number begins anew with a new object" => return Ok((number, 1)));
            // Free numbers have a generation left: see `give`.
            return self.next(number).map(|generation| (number, generation)).ok_or(HandleError::Memory);
        }
    }

    /// The life that comes next for the object of a number, which is in the caller's hand; `None` if there is none.
    pub(super) fn next(&self, number: u32) -> Option<u32> {
        planted!("an object keeps its generation" => return Some(1));
        // Relaxed: the object came to the caller from whoever changed it last.
        match Entry::generation(self.entry(number)?.word.load(Relaxed)) {
            0 => self.generations.first(self.last),
            generation => self.generations.after(generation, self.last),
        }
    }

    /// Takes back the number of an object that goes, or whose lives are used up: then nobody gets it any more.
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

    /// The objects that are in use or held, when no thread is here any more.
    pub(super) fn out(&self) -> impl Iterator<Item = *mut u8> {
        let used = self.free.lock().used;
        (0..used)
            .filter_map(|number| self.entry(number as u32))
            .filter(|entry| entry.is_out())
            .map(Entry::object)
    }
    /// As [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation).
    pub(super) fn fresh_generation(&self) -> Option<u32> {
        let used = self.free.lock().used;
        let entries = (0..used).filter_map(|number| self.entry(number as u32));
        // A free number comes to its next one.
        let used = entries.map(|entry| match Entry::generation(entry.now()) {
            next if next > 0 && !entry.is_in(next) => self.generations.after(next, self.last).unwrap_or(next),
            now => now,
        });
        self.generations.fresh(used, self.last)
    }
    /// Numbers that nobody will get any more.
    pub(super) fn retired(&self) -> u64 {
        self.free.lock().retired
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        for (segment, entries) in self.segments.iter().enumerate() {
            let entries = entries.load(Relaxed);
            if !entries.is_null() {
                // SAFETY: made by `extend` with so many entries; nobody has this any more.
                drop(unsafe {
                    Box::from_raw(slice_from_raw_parts_mut(entries, (FIRST << segment) as usize))
                });
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn numbers(limit: u64) -> Numbers {
        Numbers::new(limit, 255, Generations::default())
    }

    #[test]
    fn segments_hold_every_number_once() {
        for (number, at) in [(0, (0, 0)), (63, (0, 63)), (64, (1, 0)), (191, (1, 127)), (192, (2, 0))] {
            assert_eq!(Numbers::at(number), at);
        }
        let (segment, place) = Numbers::at(u32::MAX);
        assert!(segment < SEGMENTS && (place as u64) < FIRST << segment);
        assert!((FIRST << SEGMENTS) - FIRST > u64::from(u32::MAX));
    }

    #[test]
    fn numbers_go_up_to_the_limit_and_come_back() {
        let numbers = numbers(200);
        for expected in 0..200 {
            assert_eq!(numbers.take(), Ok((expected, 1)));
        }
        let full = Err(HandleError::Full { slots: 200, retired: 0 });
        assert_eq!(numbers.take(), full);
        for number in [5, 199, 64] {
            numbers.give(number);
        }
        assert_eq!([(); 3].map(|()| numbers.take().unwrap().0), [64, 199, 5]);
        assert_eq!(numbers.take(), full);
        assert!(numbers.entry(u32::MAX).is_none());
    }

    #[test]
    fn a_number_whose_lives_are_used_up_retires() {
        let numbers = numbers(64);
        assert_eq!(numbers.take(), Ok((0, 1)));
        numbers.entry(0).unwrap().begin(null_mut(), 254);
        numbers.give(0);
        assert_eq!(numbers.take(), Ok((0, 255)));
        numbers.entry(0).unwrap().begin(null_mut(), 255);
        numbers.give(0);
        assert_eq!((numbers.take(), numbers.retired()), (Ok((1, 1)), 1));
        // None is left from the start.
        let none = Numbers::new(64, 255, Generations { first: 256, ..Generations::default() });
        assert_eq!(none.take(), Err(HandleError::Full { slots: 64, retired: 0 }));
    }

    #[test]
    fn the_last_to_leave_has_the_object() {
        let entry = Entry::new();
        entry.begin(null_mut(), 3);
        assert!(entry.is_in(3) && !entry.is_in(2) && !entry.hold(2) && entry.end(4).is_none());
        assert!(entry.hold(3) && entry.hold(3));
        assert_eq!((entry.let_go(), entry.end(3), entry.end(3)), (None, Some(None), None));
        // Its life has ended: nobody new comes, and the one who is left is the last.
        assert!(!entry.is_in(3) && !entry.hold(3) && entry.is_out());
        assert_eq!((entry.let_go(), entry.is_out()), (Some(Last), false));
        entry.begin(null_mut(), 4);
        assert_eq!(entry.end(4), Some(Some(Last)));
    }

    #[test]
    #[should_panic(expected = "an object has 2147483647 holders")]
    fn holders_that_cannot_be_counted_are_refused() {
        let entry = Entry::new();
        entry.word.store(1 << 32 | IN_USE | HOLDERS, Relaxed);
        entry.hold(1);
    }
}

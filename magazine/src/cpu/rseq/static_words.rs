//! Words of a table in a static of the program, for inlined paths that load no address to find them.
//!
//! They are copies of the two sets that inlined paths read. The table that [takes](StaticWords::take) them
//! writes each copy together with the word: a drain points all words of a CPU to the empty region before its
//! fence. Only a [`StaticPath`](crate::StaticPath) of a layer of that table reads them.

use super::super::MAX_CPUS;
use super::super::regions::{SPARE, Words};
use super::{PcpuPtr, area};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicIsize, AtomicPtr};
use core::ptr::{NonNull, null_mut};

/// Words of each set.
const SLOTS: usize = SPARE + MAX_CPUS as usize;

/// Room for a table's words in a static: see [`Layer::take_static_words`](crate::Layer::take_static_words).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StaticWords {
    /// The area where sections are announced.
    area: AtomicIsize,
    taken: AtomicBool,
    /// Indexed by [`Words::INLINED`].
    sets: [[AtomicPtr<u8>; SLOTS]; 2],
}

impl StaticWords {
    /// Creates words that no table has taken.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            area: AtomicIsize::new(0),
            taken: AtomicBool::new(false),
            sets: [const { [const { AtomicPtr::new(null_mut()) }; SLOTS] }; 2],
        }
    }
    /// Takes them for a table of `slots` words a set; `false` if they are fewer, or another table has them.
    pub(crate) fn take(&self, slots: usize) -> bool {
        // Acquire: pairs with the Release in `give_back`. The table that had them does not write to them any
        // more.
        if slots > SLOTS || self.taken.swap(true, Acquire) {
            return false;
        }
        // Relaxed: the table makes static paths after this; a thread that gets one synchronises with that.
        self.area.store(area(), Relaxed);
        true
    }
    /// Releases them. Only for the table that took them, when it is dropped.
    pub(crate) fn give_back(&self) {
        // Release: pairs with the Acquire in `take`.
        self.taken.store(false, Release);
    }
    /// The word of a slot. CPU 0 follows the spare words.
    pub(crate) fn word(&self, set: Words, slot: usize) -> &AtomicPtr<u8> {
        &self.sets[set as usize - 1][slot]
    }
}

impl PcpuPtr {
    /// Creates the pointer of a static path. The caller's table has taken `words`.
    #[inline(always)]
    pub(crate) fn of_static(words: &'static StaticWords, set: Words) -> Self {
        // Relaxed: stored before the first such path was made.
        Self {
            words: NonNull::from(&words.sets[set as usize - 1][SPARE]).cast(),
            area: words.area.load(Relaxed),
        }
    }
}

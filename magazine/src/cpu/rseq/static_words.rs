//! Per-CPU pointers (words) that a table keeps in a `static`, so that inlined paths know their address
//! without a load.
//!
//! The static words are copies of the two sets that inlined paths read. The table that owns the static words
//! updates each copy together with the original word. A drain points all of a CPU's words to the empty
//! region, and issues its membarrier afterwards. Only a [`StaticPath`](crate::StaticPath) of the owning
//! table's layers reads the static words.

use super::super::MAX_CPUS;
use super::super::regions::{SPARE_POINTERS, Words};
use super::{PcpuPtr, area_offset};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicIsize, AtomicPtr};
use core::ptr::{NonNull, null_mut};

/// Number of words in each copied set of per-CPU pointers.
const SLOTS: usize = SPARE_POINTERS + MAX_CPUS as usize;

/// Room for a table's per-CPU pointers in a static: see [`Layer::take_static_words`](crate::Layer::take_static_words).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StaticWords {
    /// Offset of the `struct rseq` in which sections are announced.
    area: AtomicIsize,
    taken: AtomicBool,
    /// The sets of copied words, indexed by [`Words::INLINED`].
    sets: [[AtomicPtr<u8>; SLOTS]; 2],
}

impl StaticWords {
    /// Creates static words that no table has taken.
    #[expect(clippy::new_without_default, reason = "the alignment must suit a static")]
    pub const fn new() -> Self {
        Self {
            area: AtomicIsize::new(0),
            taken: AtomicBool::new(false),
            sets: [const { [const { AtomicPtr::new(null_mut()) }; SLOTS] }; 2],
        }
    }
    /// Takes the static words for a table with `slots` words per set. Returns `false` if `slots` is too
    /// large, or if another table has taken the words.
    pub(crate) fn take(&self, slots: usize) -> bool {
        // Acquire: pairs with the Release in `give_back`. The previous owner no longer writes to the static words.
        if slots > SLOTS || self.taken.swap(true, Acquire) {
            return false;
        }
        // Relaxed: the table creates its static paths later, and a thread that receives a path synchronises
        // with the path's creation.
        self.area.store(area_offset(), Relaxed);
        true
    }
    /// Releases the static words. Only the table that took the words may release them, in its drop.
    pub(crate) fn give_back(&self) {
        // Release: pairs with the Acquire in `take`.
        self.taken.store(false, Release);
    }
    /// Returns the word with index `slot`. The spare words precede CPU 0's word.
    pub(crate) fn word(&self, set: Words, slot: usize) -> &AtomicPtr<u8> {
        &self.sets[set as usize - 1][slot]
    }
}

impl PcpuPtr {
    /// Creates the per-CPU pointer of a static path. The caller's table must have taken `words`.
    #[inline(always)]
    pub(crate) fn of_static(words: &'static StaticWords, set: Words) -> Self {
        // Relaxed: the area was stored before the first static path existed.
        Self {
            words: NonNull::from(&words.sets[set as usize - 1][SPARE_POINTERS]).cast(),
            area: words.area.load(Relaxed),
        }
    }
}

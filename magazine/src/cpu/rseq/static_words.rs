//! Words of one table in statics of the program, for inlined paths that load no address to find them.
//!
//! They are copies of the two sets that inlined paths read. The table that [takes](StaticWords::take) them writes them with its own:
//! a drain leads all of a CPU's words to the empty region before its fence. Nobody else has a way to them, because a
//! [`StaticPath`](crate::StaticPath) is of a layer of that table.

use super::super::MAX_CPUS;
use super::super::regions::{Inlined, SPARE};
use super::{PcpuPtr, area};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicIsize, AtomicPtr};
use core::ptr::{NonNull, null_mut};

/// Of each set.
const SLOTS: usize = SPARE + MAX_CPUS as usize;

#[repr(align(64))]
struct Words {
    sets: [[AtomicPtr<u8>; SLOTS]; 2],
    /// Where sections are announced.
    area: AtomicIsize,
    taken: AtomicBool,
}

static WORDS: Words = Words {
    sets: [const { [const { AtomicPtr::new(null_mut()) }; SLOTS] }; 2],
    area: AtomicIsize::new(0),
    taken: AtomicBool::new(false),
};

/// That they are a table's. It gives them back when it is dropped.
#[derive(Debug)]
pub(crate) struct StaticWords(());

impl StaticWords {
    /// For a table of so many words a set; `None` if that is too many, or they are another table's.
    pub(crate) fn take(slots: usize) -> Option<Self> {
        // Acquire: pairs with the Release in `drop`. The table that had them does not write to them any more.
        if slots > SLOTS || WORDS.taken.swap(true, Acquire) {
            return None;
        }
        // Relaxed: whoever gets a path has it behind this, as it has the words.
        WORDS.area.store(area(), Relaxed);
        Some(Self(()))
    }
    /// The word of a slot: of CPU 0 behind the spare ones.
    pub(crate) fn word(&self, set: Inlined, slot: usize) -> &'static AtomicPtr<u8> {
        &WORDS.sets[set as usize][slot]
    }
}

impl Drop for StaticWords {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take`.
        WORDS.taken.store(false, Release);
    }
}

impl PcpuPtr {
    /// By the words in statics, for who has a path of the table that they are of.
    #[inline(always)]
    pub(crate) fn of_statics(set: Inlined) -> Self {
        // Relaxed: stored before the first such path was made.
        Self { words: NonNull::from(&WORDS.sets[set as usize][SPARE]).cast(), area: WORDS.area.load(Relaxed) }
    }
}

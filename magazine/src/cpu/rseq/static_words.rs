//! Per-CPU pointers (*words*) in a `static`. Inlined paths know the address of static pointers without a load.
//!
//! The static pointers are copies of the two sets of per-CPU pointers that inlined paths read. The table that owns the
//! static pointers updates each copy together with the original pointer. A drain points the originals and the copies to
//! the empty region before it issues its membarrier. The static pointers are read only by a
//! [`StaticPath`](crate::StaticPath) of a layer of the owning table.

use super::super::MAX_CPUS;
use super::super::regions::{SPARE_POINTERS, Words};
use super::{PcpuPtr, rseq_area_offset};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicIsize, AtomicPtr};
use core::ptr::{NonNull, null_mut};

/// Number of pointers in each copied set.
const SLOTS: usize = SPARE_POINTERS + MAX_CPUS as usize;

/// Space in a `static` for copies of a table's per-CPU pointers: see
/// [`Layer::take_static_words`](crate::Layer::take_static_words).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StaticWords {
    /// Byte offset of the `struct rseq` in which a thread announces its sections.
    area: AtomicIsize,
    taken: AtomicBool,
    /// The copied sets of per-CPU pointers, in the order of [`Words::INLINED_WORDS`].
    sets: [[AtomicPtr<u8>; SLOTS]; 2],
}

impl StaticWords {
    /// Creates static pointers that belong to no table yet.
    #[expect(clippy::new_without_default, reason = "the alignment must suit a static")]
    pub const fn new() -> Self {
        Self {
            area: AtomicIsize::new(0),
            taken: AtomicBool::new(false),
            sets: [const { [const { AtomicPtr::new(null_mut()) }; SLOTS] }; 2],
        }
    }
    /// Reserves the static pointers for a table with `slots` pointers per set. Returns `false` if `slots` is too large,
    /// or if another table has reserved the static pointers.
    pub(crate) fn take(&self, slots: usize) -> bool {
        // Acquire: pairs with the Release in `give_back`. The previous owner no longer writes to the static words.
        if slots > SLOTS || self.taken.swap(true, Acquire) {
            return false;
        }
        // Relaxed: the table creates its static paths later, and a thread that receives a path synchronises
        // with the path's creation.
        self.area.store(rseq_area_offset(), Relaxed);
        true
    }
    /// Releases the static pointers for another table. Only the table that reserved the static pointers may release
    /// them, when it is dropped.
    pub(crate) fn give_back(&self) {
        // Release: pairs with the Acquire in `take`.
        self.taken.store(false, Release);
    }
    /// Returns the copied pointer with index `slot`. The spare pointers come before CPU 0's pointer.
    pub(crate) fn word(&self, set: Words, slot: usize) -> &AtomicPtr<u8> {
        &self.sets[set as usize - 1][slot]
    }
}

impl PcpuPtr {
    /// Creates the `PcpuPtr` of a static path. The caller's table must have reserved `words`.
    #[inline(always)]
    pub(crate) fn of_static(words: &'static StaticWords, set: Words) -> Self {
        // Relaxed: the area was stored before the first static path existed.
        Self {
            words: NonNull::from(&words.sets[set as usize - 1][SPARE_POINTERS]).cast(),
            area: words.area.load(Relaxed),
        }
    }
}

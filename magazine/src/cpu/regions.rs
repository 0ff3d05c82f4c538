//! The interface through which a mechanism accesses a table. The interface keeps the mechanisms independent of the
//! table's memory layout.

use crate::region::Region;
use core::ptr::NonNull;

/// Number of spare per-CPU pointers in front of CPU 0's pointer. A thread without rseq registration reads -2 or -1 as
/// its CPU number, and therefore uses a spare pointer.
pub(crate) const SPARE_POINTERS: usize = 2;

/// The three pointers (*words*) to a CPU's region. Each kind of code path reads a different one of the three pointers.
/// A drain points all three of a CPU's pointers to the empty region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// The pointer to a CPU's region that slow paths read after a miss. The pointers that slow paths read cannot be
    /// closed.
    Always,
    /// The pointer to a CPU's region that inlined paths read. The pointers that inlined paths read can be
    /// [closed](crate::Table::close_inlined).
    Inlined,
    /// The pointer to a CPU's region that inlined frees read if they find the class by the object's address. The
    /// pointers that inlined frees by address read can be closed separately.
    InlinedFrees,
}

impl Words {
    pub(crate) const ALL: [Self; 3] = [Self::Always, Self::Inlined, Self::InlinedFrees];
    pub(crate) const INLINED_WORDS: [Self; 2] = [Self::Inlined, Self::InlinedFrees];
}

#[allow(dead_code, reason = "each mechanism uses only some of the items")]
pub(crate) trait Regions {
    /// Returns the number of the CPU on which this thread runs, as a hint.
    fn this_cpu(&self) -> u32;
    /// Returns the region of `cpu`, even while a drain has redirected the CPU's pointers to the empty region. Returns
    /// `None` if the CPU has no region.
    fn region(&self, cpu: u32) -> Option<Region<'_>>;
    /// Returns the address of CPU 0's pointer in a set, or `None` if the table does not use restartable sequences.
    fn words(&self, _: Words) -> Option<NonNull<u8>> {
        None
    }
    /// Returns the address of the spare pointers, which belong to no CPU.
    fn spare_words(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    /// Under loom and shuttle, returns the region to which a pointer of `cpu` currently points.
    fn current(&self, _: Words, _cpu: u32) -> Option<Region<'_>> {
        None
    }
}

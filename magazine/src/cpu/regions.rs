//! The interface between a mechanism and a table, which keeps mechanisms independent of the table.

use crate::region::Region;
use core::ptr::NonNull;

/// Number of spare pointers in front of CPU 0's pointer. An unregistered thread reads the CPU number -2 or
/// -1, and so uses a spare pointer.
pub(crate) const SPARE_POINTERS: usize = 2;

/// A CPU's three region pointers (*words*): each kind of code path reads a different word. A drain points all
/// three words of a CPU to the empty region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// The word that slow paths read after a miss. No caller can close the word of the slow paths.
    Always,
    /// The word that inlined paths read, which can be [closed](crate::Table::close_inlined).
    Inlined,
    /// The word that an inlined free reads if it finds the class by the object's address. A caller can close
    /// this word alone.
    InlinedFrees,
}

impl Words {
    pub(crate) const ALL: [Self; 3] = [Self::Always, Self::Inlined, Self::InlinedFrees];
    pub(crate) const INLINED: [Self; 2] = [Self::Inlined, Self::InlinedFrees];
}

#[allow(dead_code, reason = "each mechanism uses only some of the items")]
pub(crate) trait Regions {
    /// Returns the number of the CPU on which this thread runs, as a hint.
    fn this_cpu(&self) -> u32;
    /// Returns the region of `cpu`, even while a drain has pointed the CPU's word to the empty region.
    /// Returns `None` if the CPU has no region.
    fn region(&self, cpu: u32) -> Option<Region<'_>>;
    /// Returns the address of CPU 0's word if restartable sequences serve the regions.
    fn words(&self, _: Words) -> Option<NonNull<u8>> {
        None
    }
    /// Returns the address of the spare words, which belong to no CPU.
    fn spare_words(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    /// Returns the region to which a word of `cpu` points, for checkers.
    fn current(&self, _: Words, _cpu: u32) -> Option<Region<'_>> {
        None
    }
}

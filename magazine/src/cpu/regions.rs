//! The mechanisms' view of a table: the interface that keeps them independent of it.

use crate::region::Region;
use core::ptr::NonNull;

/// Number of words in front of CPU 0's: for the "CPUs" -2 and -1 that threads without a registration read.
pub(crate) const SPARE: usize = 2;

/// A CPU's words, by the paths that read them. A drain points all of them to the empty region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Words {
    /// The word of paths behind a miss. It is never closed.
    Always,
    /// The word of paths that are inlined into a caller, which can be [closed](crate::Table::close_inlined).
    Inlined,
    /// The word of inlined frees that find their class by the address. They can be closed separately.
    InlinedFrees,
}

impl Words {
    pub(crate) const ALL: [Self; 3] = [Self::Always, Self::Inlined, Self::InlinedFrees];
    pub(crate) const INLINED: [Self; 2] = [Self::Inlined, Self::InlinedFrees];
}

/// The regions of all CPUs.
#[allow(dead_code, reason = "each mechanism asks for some of it")]
pub(crate) trait Regions {
    /// The number of the CPU that this thread runs on: a hint.
    fn this_cpu(&self) -> u32;
    /// The region of `cpu`, regardless of its word; `None` if that CPU has none.
    fn region(&self, cpu: u32) -> Option<Region<'_>>;
    /// Address of CPU 0's word, if restartable sequences serve these regions.
    fn words(&self, _: Words) -> Option<NonNull<u8>> {
        None
    }
    /// Address of the words of threads that no sequence serves.
    fn spare_words(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    /// The region that a word of `cpu` points to, for checkers.
    fn current(&self, _: Words, _cpu: u32) -> Option<Region<'_>> {
        None
    }
}

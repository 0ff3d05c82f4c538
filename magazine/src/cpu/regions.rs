//! Regions as the mechanisms see them. A table has them, and uses the mechanisms: so they do not know tables.

use crate::region::Region;
use core::ptr::NonNull;

/// Words in front of CPU 0's, of "CPU" -2 and -1, as threads without a registration read.
pub(crate) const SPARE: usize = 2;

/// Words that inlined paths read, apart from those that others do. Each set can be closed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inlined {
    /// Of whoever says nothing else.
    Common,
    /// Of frees that find their class by the address.
    Frees,
}

/// The regions of all CPUs.
#[allow(dead_code, reason = "each mechanism asks for some of it")]
pub(crate) trait Regions {
    /// The number of the CPU that this thread runs on: a hint.
    fn this_cpu(&self) -> u32;
    /// The region of `cpu`, wherever its word leads; `None` if that CPU has none.
    fn region(&self, cpu: u32) -> Option<Region<'_>>;
    /// Where the word of CPU 0 lies, if restartable sequences serve these regions.
    fn words(&self) -> Option<NonNull<u8>> {
        None
    }
    /// The same of words that inlined paths read.
    fn inlined_words(&self, _: Inlined) -> NonNull<u8> {
        NonNull::dangling()
    }
    /// Where the words lie of threads that no sequence serves.
    fn spare_words(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    /// The region that the word of `cpu` leads to, for checkers.
    fn current(&self, _cpu: u32) -> Option<Region<'_>> {
        None
    }
}

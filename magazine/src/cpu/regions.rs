//! Regions as the mechanisms see them. A table has them, and uses the mechanisms: so they do not know tables.

use crate::region::Region;
#[cfg(not(any(loom, shuttle)))]
use core::ptr::NonNull;

/// Words in front of CPU 0's, of "CPU" -2 and -1, as threads without a registration read.
#[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "a checker's threads have CPUs"))]
pub(crate) const SPARE: usize = 2;

/// Words that inlined paths read, apart from those that others do. Each set can be closed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "under a checker every operation is behind a miss"))]
pub(crate) enum Inlined {
    /// Of whoever says nothing else.
    Common,
    /// Of frees that find their class by the address.
    Frees,
}

/// The regions of all CPUs.
pub(crate) trait Regions {
    /// The number of the CPU that this thread runs on: a hint.
    fn this_cpu(&self) -> u32;
    /// The region of `cpu`, wherever its word leads; `None` if that CPU has none.
    fn region(&self, cpu: u32) -> Option<Region<'_>>;
    /// Where the word of CPU 0 lies, if restartable sequences serve these regions.
    #[cfg(not(any(loom, shuttle)))]
    #[allow(dead_code, reason = "for restartable sequences, which are not in every build")]
    fn words(&self) -> Option<NonNull<u8>>;
    /// The same of words that inlined paths read.
    #[cfg(not(any(loom, shuttle)))]
    #[allow(dead_code, reason = "as above")]
    fn inlined_words(&self, set: Inlined) -> NonNull<u8>;
    /// Where the words lie of threads that no sequence serves.
    #[cfg(not(any(loom, shuttle)))]
    #[allow(dead_code, reason = "as above")]
    fn spare_words(&self) -> NonNull<u8>;
    /// The region that the word of `cpu` leads to.
    #[cfg(any(loom, shuttle))]
    fn current(&self, cpu: u32) -> Option<Region<'_>>;
}

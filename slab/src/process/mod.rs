//! What belongs to the process: its heap, and forks of it.
//!
//! | file | |
//! |---|---|
//! | [`global_alloc`] | the process-wide malloc |
//! | `bootstrap` | memory before there is a malloc |
//! | [`options`] | its settings |
//! | `allocator` | the same and caches, for containers that take an allocator |
//! | [`fork`] | all locks, for a process that forks |

#[cfg(not(any(loom, shuttle)))]
use crate::{process::global_alloc::Uslab, report::info::Info, subsystem::Subsystem};

#[cfg(not(any(loom, shuttle)))]
pub(crate) mod allocator;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod bootstrap;
pub mod fork;
#[cfg(not(any(loom, shuttle)))]
pub mod global_alloc;
#[cfg(not(any(loom, shuttle)))]
pub mod options;

#[cfg(not(any(loom, shuttle)))]
#[doc(hidden)]
pub use crate::reclaim::reaper::{OwnThread, are_alone};

/// The numbers of the heaps that the process has, as far as they have started: `objects`, those of caches in the global subsystem, and
/// `malloc`, those of [`Uslab`]. Starts neither. Allocates.
#[cfg(not(any(loom, shuttle)))]
pub fn heaps() -> Vec<(&'static str, Info)> {
    let objects = Subsystem::started().map(|subsystem| ("objects", subsystem.info()));
    objects.into_iter().chain(Uslab.info().map(|info| ("malloc", info))).collect()
}

//! The process's heaps, and forks of the process.
//!
//! | file | |
//! |---|---|
//! | [`global_alloc`] | the process-wide malloc |
//! | `bootstrap` | memory before there is a malloc |
//! | [`options`] | its options |
//! | `allocator` | adapters for containers with an allocator parameter |
//! | [`fork`] | holding all locks across a fork |

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
pub use crate::reclaim::reaper::{OwnThread, are_alone};

/// Statistics of the heaps that have started: `objects` (the global subsystem) and `malloc` (the subsystem of
/// [`Uslab`](global_alloc::Uslab)). The call allocates memory, but it does not start any heap.
#[cfg(not(any(loom, shuttle)))]
pub fn heaps() -> Vec<(&'static str, crate::report::info::Info)> {
    use crate::{process::global_alloc::Uslab, subsystem::Subsystem};
    let objects = Subsystem::started().map(|subsystem| ("objects", subsystem.info()));
    objects.into_iter().chain(Uslab.info().map(|info| ("malloc", info))).collect()
}

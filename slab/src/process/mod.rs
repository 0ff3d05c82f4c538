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
pub(crate) mod allocator;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod bootstrap;
pub mod fork;
#[cfg(not(any(loom, shuttle)))]
pub mod global_alloc;
#[cfg(not(any(loom, shuttle)))]
pub mod options;

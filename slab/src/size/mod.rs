//! Memory of any size, in size classes, blocks and mappings.
//!
//! | file | |
//! |---|---|
//! | [`size_class`], [`kmalloc`] | the kernel's 13 classes |
//! | [`malloc`] | four classes per doubling |
//! | `large` | memory above the classes, and the free of any memory |
//! | [`huge`] | memory above the largest block: separate mappings |

// Models have no kmalloc: a model's subsystem has no size classes.
pub mod kmalloc;
pub(crate) mod large;
#[cfg(not(any(loom, shuttle)))]
pub mod malloc;
pub mod size_class;

pub use crate::memory::huge;
pub use large::{LargeInfo, ZERO_SIZE};

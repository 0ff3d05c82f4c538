//! Memory of any size.
//!
//! | file | |
//! |---|---|
//! | [`size_class`], [`kmalloc`] | the kernel's 13 classes |
//! | [`malloc`] | four classes a doubling |
//! | `large` | what no class holds, and the way back of any memory |
//! | [`huge`] | what no block of pages holds: mappings of their own |

// No subsystem has one under a checker.
pub mod kmalloc;
pub(crate) mod large;
#[cfg(not(any(loom, shuttle)))]
pub mod malloc;
pub mod size_class;

pub use crate::memory::huge;
pub use large::{LargeInfo, ZERO_SIZE};

//! Re-exports [`uslab_sync`], which wraps atomics, locks, cells and thread-locals, and adds uslab's lock order.
//!
//! A lint (`disallowed-types` in `clippy.toml`) forbids the corresponding types of `std` outside `uslab_sync`.

pub use crate::lock_order::Rank;
pub use crate::tell;
pub use uslab_sync::*;

/// Asserts, in debug builds, that the calling thread holds no lock of the uslab crates. The assertion ignores the locks
/// of other crates.
///
/// # Panics
/// Panics in debug builds if the thread holds a lock of the uslab crates. User code must not run while a ranked lock is
/// held.
#[inline(always)]
#[track_caller]
pub fn assert_unlocked() {
    Rank::assert_unlocked();
}

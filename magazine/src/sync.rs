//! The facade over atomics, locks, cells and thread-locals: [`uslab_sync`], with the lock order of these
//! crates.
//!
//! A lint (`clippy.toml`, `disallowed-types`) forbids `std`'s types outside that crate.

pub use crate::lock_order::Rank;
pub use crate::tell;
pub use uslab_sync::*;

/// Asserts, in debug builds, that the calling thread holds no lock of these crates. The caller's own locks do
/// not count.
///
/// # Panics
/// In debug builds, if such a lock is held: user code must never run under one.
#[inline(always)]
#[track_caller]
pub fn assert_unlocked() {
    Rank::assert_unlocked();
}

//! Re-exports [`uslab_sync`], the facade over atomics, locks, cells and thread-locals, with uslab's lock order.
//!
//! A lint (`clippy.toml`, `disallowed-types`) forbids `std`'s types outside `uslab_sync`.

pub use crate::lock_order::Rank;
pub use crate::tell;
pub use uslab_sync::*;

/// Asserts, in debug builds, that the calling thread holds no lock of the uslab crates. Locks outside the
/// uslab crates do not count.
///
/// # Panics
/// Panics in debug builds if the thread holds a lock of the uslab crates, because user code must not run
/// under one.
#[inline(always)]
#[track_caller]
pub fn assert_unlocked() {
    Rank::assert_unlocked();
}

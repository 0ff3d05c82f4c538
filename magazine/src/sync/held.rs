//! How many locks of this door the running thread holds.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

#[cfg(any(loom, shuttle, debug_assertions))]
use super::thread_local;

#[cfg(any(loom, shuttle, debug_assertions))]
thread_local! {
    static HELD: core::cell::Cell<u32> = core::cell::Cell::new(0);
}

/// Asserts, in debug builds, that the calling thread holds no lock of this door.
///
/// # Panics
/// In debug builds, when a lock is held: user code must never run under one.
#[inline(always)]
pub fn assert_unlocked() {
    #[cfg(any(loom, shuttle, debug_assertions))]
    HELD.with(|held| assert_eq!(held.get(), 0, "user code would run while a lock is held"));
}

/// One more lock is held as long as this lives.
#[derive(Debug)]
pub(super) struct Held(());

impl Held {
    #[inline(always)]
    pub(super) fn new() -> Self {
        #[cfg(any(loom, shuttle, debug_assertions))]
        HELD.with(|held| held.set(held.get() + 1));
        Self(())
    }
}
#[cfg(any(loom, shuttle, debug_assertions))]
impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        // A checker's thread that did not get to its end has no thread-locals any more.
        if !super::abandoned() {
            HELD.with(|held| held.set(held.get() - 1));
        }
    }
}

/// A checker's guard, which is counted.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub struct Locked<G>(G, Held);

#[cfg(any(loom, shuttle))]
impl<G> Locked<G> {
    pub(super) fn by(guard: G) -> Self {
        Self(guard, Held::new())
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::Deref> core::ops::Deref for Locked<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.0
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::DerefMut> core::ops::DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0
    }
}

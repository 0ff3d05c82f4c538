//! The shipping arm: `std`.

pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use std::thread;
pub use std::thread_local;

/// Gives way to other threads inside a waiting loop.
pub fn relax() {
    std::thread::yield_now();
}

#[cfg(debug_assertions)]
std::thread_local! {
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Asserts, in debug builds, that the calling thread holds no lock of this door.
///
/// # Panics
/// In debug builds, when a lock is held: user code must never run under one.
#[inline(always)]
pub fn assert_unlocked() {
    #[cfg(debug_assertions)]
    HELD.with(|h| assert_eq!(h.get(), 0, "user code would run while a lock is held"));
}

/// `std`'s futex mutex; a panic of a holder does not poison it.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// Access to what a [`Mutex`] protects; the lock is given back on drop.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(std::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard::held(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
    /// The lock, or `None` if somebody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard::held(guard)),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(MutexGuard::held(p.into_inner())),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
    /// What the lock protects, without locking: the borrow proves that nobody else is there.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<'a, T> MutexGuard<'a, T> {
    #[inline(always)]
    fn held(guard: std::sync::MutexGuard<'a, T>) -> Self {
        #[cfg(debug_assertions)]
        HELD.with(|h| h.set(h.get() + 1));
        Self(guard)
    }
}
impl<T> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HELD.with(|h| h.set(h.get() - 1));
    }
}
impl<T> core::ops::Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> core::ops::DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

include!("plain_cell.rs");

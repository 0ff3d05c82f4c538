//! The arm for shuttle: random and PCT schedules, sequentially consistent.

pub use shuttle::sync::Arc;
pub use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use shuttle::thread;
pub use shuttle::thread_local;

/// Gives way to other threads inside a waiting loop.
pub fn relax() {
    shuttle::thread::yield_now();
}

/// Held locks are counted in the `std` arm only.
#[inline(always)]
pub fn assert_unlocked() {}

/// shuttle's mutex; a panic of a holder ends the schedule.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Access to what a [`Mutex`] protects.
pub type MutexGuard<'a, T> = shuttle::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    /// The lock, or `None` if somebody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
    /// What the lock protects, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

include!("plain_cell.rs");

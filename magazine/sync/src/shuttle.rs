//! The shuttle backend, which runs code under random and PCT schedules, with sequential consistency.

pub use shuttle::lazy_static;
pub use shuttle::sync::Arc;
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, fence,
};
pub use shuttle::thread_local;

use crate::Ordering;
use crate::rank::{LockRank, Nesting, Rank, RankedGuard};

/// Thread functions of shuttle, which count the threads for the `SCHEDULES` row.
pub mod thread {
    pub use shuttle::thread::*;

    /// Starts a thread.
    #[track_caller]
    pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(f: F) -> JoinHandle<T> {
        crate::execution::count_thread();
        shuttle::thread::spawn(f)
    }
}

/// Yields the processor to other threads. Every waiting loop must call `relax`.
pub fn relax() {
    shuttle::thread::yield_now();
}

/// A mutex of shuttle with a lock rank. If a thread panics while it holds the mutex, the schedule ends.
#[derive(Debug)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>, LockRank);

/// A guard that releases a [`Mutex`] when it is dropped.
pub type MutexGuard<'a, T> = RankedGuard<shuttle::sync::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value` without a rank.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value), LockRank::NONE)
    }
    /// Creates an unlocked mutex around `value` with a rank.
    pub fn ranked(rank: impl Into<Rank>, value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value), LockRank::of(rank.into()))
    }
    /// Waits for the lock and acquires it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Acquires the lock like [`lock`](Self::lock), but permits locks of the same rank. The thread may already hold
    /// other locks of this rank.
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let held = self.1.request(nesting);
        RankedGuard::with_guard(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), held)
    }
    /// Returns the guard, or `None` if another thread holds the lock.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = self.1.request(Nesting::None);
        Some(RankedGuard::with_guard(self.0.try_lock().ok()?, held))
    }
    /// Returns the protected value without locking, because the exclusive borrow excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

include!("plain_cell.rs");
include!("hint.rs");

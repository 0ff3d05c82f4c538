//! The backend for shuttle: random and PCT schedules, sequentially consistent.

pub use shuttle::lazy_static;
pub use shuttle::sync::Arc;
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, fence,
};
pub use shuttle::thread_local;

use crate::Ordering;
use crate::rank::{LockRank, Nesting, Rank, RankedGuard};

/// shuttle's threads, counted for the row that a scenario prints.
pub mod thread {
    pub use shuttle::thread::*;

    /// Starts a thread.
    #[track_caller]
    pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(f: F) -> JoinHandle<T> {
        crate::execution::count_thread();
        shuttle::thread::spawn(f)
    }
}

/// Yields to other threads inside a waiting loop.
pub fn relax() {
    shuttle::thread::yield_now();
}

/// shuttle's mutex with a lock rank. A panic of the mutex's holder ends the schedule.
#[derive(Debug)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>, LockRank);

/// Releases the lock of a [`Mutex`] when dropped.
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
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Waits for the lock, like [`lock`](Self::lock). The thread may hold other locks of the same rank.
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let held = self.1.request(nesting);
        RankedGuard::with_guard(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), held)
    }
    /// Returns the guard, or `None` if the lock is held.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = self.1.request(Nesting::None);
        Some(RankedGuard::with_guard(self.0.try_lock().ok()?, held))
    }
    /// Returns the protected value without locking.
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

//! The arm for shuttle: random and PCT schedules, sequentially consistent.

pub use shuttle::lazy_static;
pub use shuttle::sync::Arc;
pub use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use shuttle::thread_local;

use super::held::Locked;

/// shuttle's threads, counted for the row of a scenario.
pub mod thread {
    pub use shuttle::thread::*;

    /// Starts a thread.
    #[track_caller]
    pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(f: F) -> JoinHandle<T> {
        super::super::execution::spawned();
        shuttle::thread::spawn(f)
    }
}

/// Gives way to other threads inside a waiting loop.
pub fn relax() {
    shuttle::thread::yield_now();
}

/// shuttle's mutex; a panic of a holder ends the schedule.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Access to what a [`Mutex`] protects.
pub type MutexGuard<'a, T> = Locked<shuttle::sync::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        Locked::by(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
    /// The lock, or `None` if somebody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(Locked::by)
    }
    /// What the lock protects, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

include!("plain_cell.rs");

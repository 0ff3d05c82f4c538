//! The backend of normal builds, which uses `std`.

pub use std::sync::Arc;
pub use std::sync::atomic::fence;
pub use std::thread;
pub use std::thread_local;

use crate::Ordering;
pub use crate::unseen::{
    AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize,
};

use crate::rank::{LockRank, Nesting, Rank, RankEntry};
#[cfg(uslab_tsan)]
use std::sync::atomic as a;

/// Yields the processor to other threads. Waiting loops call `relax`.
#[inline]
pub fn relax() {
    std::thread::yield_now();
}

/// `std`'s futex mutex. If a thread panics while it holds the mutex, the mutex is not poisoned.
#[derive(Debug)]
pub struct Mutex<T>(std::sync::Mutex<T>, LockRank, #[cfg(uslab_tsan)] SanitizerOrdering);

/// A guard that releases a [`Mutex`] when it is dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    _held: RankEntry,
    #[cfg(uslab_tsan)]
    handover: &'a SanitizerOrdering,
}

/// An atomic that repeats the lock's acquire and release orderings for the thread sanitizer, because `std` is not
/// instrumented.
#[cfg(uslab_tsan)]
#[derive(Debug)]
struct SanitizerOrdering(a::AtomicU8);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value` without a rank.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self::at(LockRank::NONE, value)
    }
    /// Creates an unlocked mutex around `value` with a rank.
    #[inline]
    pub fn ranked(rank: impl Into<Rank>, value: T) -> Self {
        Self::at(LockRank::of(rank.into()), value)
    }
    const fn at(place: LockRank, value: T) -> Self {
        Self(
            std::sync::Mutex::new(value),
            place,
            #[cfg(uslab_tsan)]
            SanitizerOrdering(a::AtomicU8::new(0)),
        )
    }
    /// Waits for the lock and acquires it.
    ///
    /// # Panics
    /// Panics in debug builds if the thread holds a lock of the same or a later rank in the [lock order](crate::ranks).
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Acquires the lock like [`lock`](Self::lock), but permits locks of the same rank. The thread may already hold
    /// other locks of this rank. A comment at each call must explain why no two threads acquire locks of this rank in
    /// different orders.
    ///
    /// # Panics
    /// Panics like [`lock`](Self::lock).
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    /// Returns the guard, or `None` if another thread holds the lock.
    ///
    /// # Panics
    /// Panics like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = self.1.request(Nesting::None);
        match self.0.try_lock() {
            Ok(guard) => Some(self.new_guard(guard, held)),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(self.new_guard(p.into_inner(), held)),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
    /// Returns the protected value without locking, because the exclusive borrow excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[inline(always)]
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let held = self.1.request(nesting);
        self.new_guard(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), held)
    }
    #[inline(always)]
    fn new_guard<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>, held: RankEntry) -> MutexGuard<'a, T> {
        // Acquire: pairs with the Release of the previous guard.
        #[cfg(uslab_tsan)]
        self.2.0.load(Ordering::Acquire);
        MutexGuard {
            guard,
            _held: held,
            #[cfg(uslab_tsan)]
            handover: &self.2,
        }
    }
}
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(uslab_tsan)]
impl<T> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next guard. This thread still holds the lock during the
        // store.
        self.handover.0.store(0, Ordering::Release);
    }
}
impl<T> core::ops::Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}
impl<T> core::ops::DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

include!("plain_cell.rs");
include!("hint.rs");

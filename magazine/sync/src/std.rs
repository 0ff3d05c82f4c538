//! The shipping backend: `std`.

pub use std::sync::Arc;
pub use std::sync::atomic::fence;
pub use std::thread;
pub use std::thread_local;

use crate::Ordering;
use crate::rank::{Held, LockRank, Nesting, Rank};
use std::sync::atomic as a;

// Wraps `std`'s atomics, so that a lint can reject atomics that bypass the facade.
macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident $(<$t:ident>)?, $value:ty;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$t>)? (a::$name $(<$t>)?);
        impl $(<$t>)? $name $(<$t>)? {
            /// Creates an atomic with this value.
            #[inline(always)]
            pub const fn new(value: $value) -> Self {
                Self(a::$name::new(value))
            }
            /// Loads the value, like `std`'s atomic.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            /// Stores `value`, like `std`'s atomic.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order)
            }
            /// Swaps the value, like `std`'s atomic.
            #[inline(always)]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            /// Compares and exchanges, like `std`'s atomic.
            #[inline(always)]
            pub fn compare_exchange(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, success, failure)
            }
            /// Compares and exchanges, like `std`'s atomic; may fail spuriously.
            #[inline(always)]
            pub fn compare_exchange_weak(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }
    )* };
}
atomics! {
    /// `std`'s `AtomicBool`.
    AtomicBool, bool;
    /// `std`'s `AtomicU8`.
    AtomicU8, u8;
    /// `std`'s `AtomicU16`.
    AtomicU16, u16;
    /// `std`'s `AtomicU32`.
    AtomicU32, u32;
    /// `std`'s `AtomicU64`.
    AtomicU64, u64;
    /// `std`'s `AtomicUsize`.
    AtomicUsize, usize;
    /// `std`'s `AtomicI32`.
    AtomicI32, i32;
    /// `std`'s `AtomicI64`.
    AtomicI64, i64;
    /// `std`'s `AtomicIsize`.
    AtomicIsize, isize;
    /// `std`'s `AtomicPtr`.
    AtomicPtr<T>, *mut T;
}

macro_rules! fetches {
    ($($operation:ident)*) => { fetches! { [$($operation)*] AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64,
        AtomicUsize usize, AtomicI32 i32, AtomicI64 i64, AtomicIsize isize } };
    ($operations:tt $($name:ident $value:ty),*) => { $( fetches! { @ $name $value, $operations } )* };
    (@ $name:ident $value:ty, [$($operation:ident)*]) => {
        impl $name { $(
            /// Changes the value, like `std`'s atomic.
            #[inline(always)]
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                self.0.$operation(value, order)
            }
        )* }
    };
}
fetches! { fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min }

/// Yields to other threads inside a waiting loop.
#[inline]
pub fn relax() {
    std::thread::yield_now();
}

/// `std`'s futex mutex; a panic of a holder does not poison it.
#[derive(Debug)]
pub struct Mutex<T>(std::sync::Mutex<T>, LockRank, #[cfg(uslab_tsan)] Handover);

/// Releases the lock of a [`Mutex`] when dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    _held: Held,
    #[cfg(uslab_tsan)]
    handover: &'a Handover,
}

/// Repeats the lock's ordering where the thread sanitizer sees it: `std` is not instrumented, and a lock that
/// had to wait acquires inside it.
#[cfg(uslab_tsan)]
#[derive(Debug)]
struct Handover(a::AtomicU8);

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
            Handover(a::AtomicU8::new(0)),
        )
    }
    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that does not come before this one in the [lock
    /// order](crate::ranks).
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Waits for the lock, like [`lock`](Self::lock); the thread may hold others of its rank. The caller must
    /// explain why no two threads take them in different orders.
    ///
    /// # Panics
    /// Like [`lock`](Self::lock).
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    /// Returns the guard, or `None` if the lock is held.
    ///
    /// # Panics
    /// Like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = self.1.ask(Nesting::None);
        match self.0.try_lock() {
            Ok(guard) => Some(self.held(guard, held)),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(self.held(p.into_inner(), held)),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
    /// The protected value, without locking: the exclusive borrow excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[inline(always)]
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let held = self.1.ask(nesting);
        self.held(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), held)
    }
    #[inline(always)]
    fn held<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>, held: Held) -> MutexGuard<'a, T> {
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
        // Release: pairs with the Acquire of the next guard. This thread still holds the lock.
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

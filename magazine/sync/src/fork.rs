//! Locks that a thread holds across a `fork`. One function call acquires the locks, and a later call releases them.

use crate::{Kept, Mutex, MutexGuard, Rank};
use core::ops::Deref;

/// A [`Mutex`] that a thread can hold across a `fork`.
#[derive(Debug)]
#[repr(C)]
pub struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// The guard, while the mutex is held across a `fork`. Only the thread that holds the mutex may access this field.
    held: Kept<MutexGuard<'static, T>>,
}

impl<T> ForkMutex<T> {
    /// Creates an unlocked mutex around `value` with the given rank.
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self { mutex: Mutex::ranked(rank, value), held: Kept::new() }
    }
    /// Returns the address of the protected value, which is valid until the mutex moves.
    pub fn place(&self) -> *const T {
        &raw const *self.mutex.lock()
    }
    /// Returns the protected value if the mutex is held, between [`hold`](ForkLock::hold) and
    /// [`release`](ForkLock::release). Returns `None` otherwise.
    ///
    /// # Safety
    /// The caller must ensure that no other thread calls `hold` or `release` concurrently, and that the mutex stays
    /// locked while the reference is used.
    pub unsafe fn held(&self) -> Option<&T> {
        // SAFETY: no other thread accesses `held`, by this function's contract.
        unsafe { self.held.get() }.map(Deref::deref)
    }
}

impl<T> Deref for ForkMutex<T> {
    type Target = Mutex<T>;
    fn deref(&self) -> &Mutex<T> {
        &self.mutex
    }
}

/// A lock that a thread can hold across a `fork`.
pub trait ForkLock {
    /// Acquires the lock, and keeps it locked after the call returns. The calling thread may hold other locks of the
    /// same rank.
    ///
    /// # Safety
    /// The calling thread, or its copy in the child of a `fork`, must call [`release`](Self::release) before the lock
    /// is moved or dropped. All threads that hold several locks of the same rank must acquire them in the same order.
    unsafe fn hold(&self);
    /// Releases the lock. If the lock is not held, `release` does nothing.
    ///
    /// # Safety
    /// The caller must be the thread that called [`hold`](Self::hold), or the copy of this thread in the child of a
    /// `fork`.
    unsafe fn release(&self);
}

impl<T> ForkLock for ForkMutex<T> {
    unsafe fn hold(&self) {
        // SAFETY: the guard is dropped before the mutex, by this function's contract.
        let this: &'static Self = unsafe { &*core::ptr::from_ref(self) };
        let guard = this.mutex.lock_nested();
        // SAFETY: this thread holds the lock, so no other thread accesses `held`.
        unsafe { self.held.put(guard) };
    }
    unsafe fn release(&self) {
        // SAFETY: this thread holds the lock, by this function's contract, or `held` is empty.
        drop(unsafe { self.held.take() });
    }
}

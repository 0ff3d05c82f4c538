//! Locks that a thread holds across a `fork`. One call acquires the locks and another call releases them.

use crate::{Kept, Mutex, MutexGuard, Rank};
use core::ops::Deref;

/// A [`Mutex`] that can be held across a `fork`.
#[derive(Debug)]
#[repr(C)]
pub struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// The guard of the held mutex. Only the thread that holds the mutex accesses the guard.
    held: Kept<MutexGuard<'static, T>>,
}

impl<T> ForkMutex<T> {
    /// Creates an unlocked mutex around `value` with the given rank.
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self { mutex: Mutex::ranked(rank, value), held: Kept::new() }
    }
    /// Address of the protected value, valid until the mutex moves.
    pub fn place(&self) -> *const T {
        &raw const *self.mutex.lock()
    }
    /// Returns the protected value between [`hold`](ForkLock::hold) and [`release`](ForkLock::release), and `None`
    /// otherwise.
    ///
    /// # Safety
    /// The caller ensures that no other thread calls `hold` or `release`, and that the mutex stays locked while the
    /// reference is used.
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
    /// Waits for the lock and keeps the lock after the call. The calling thread may hold other locks of the same rank.
    ///
    /// # Safety
    /// The calling thread, or its copy in the child of a `fork`, calls [`release`](Self::release) before the lock moves
    /// or is dropped. All threads that hold several locks of one rank acquire these locks in one order.
    unsafe fn hold(&self);
    /// Releases the lock. `release` does nothing if the lock is not held.
    ///
    /// # Safety
    /// The caller must be the thread that called [`hold`](Self::hold), or that thread's copy in the child of a `fork`.
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

//! Locks that are held across a `fork`: one call acquires them and another call releases them, with no stack
//! frame around both.

use crate::{Kept, Mutex, MutexGuard, Rank};
use core::ops::Deref;

/// A [`Mutex`] that can be held across a `fork`.
#[derive(Debug)]
#[repr(C)]
pub struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// The guard; only the holder of the mutex accesses it.
    held: Kept<MutexGuard<'static, T>>,
}

impl<T> ForkMutex<T> {
    /// Creates an unlocked mutex around `value` with the given rank.
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self { mutex: Mutex::ranked(rank, value), held: Kept::new() }
    }
    /// Address of the protected value, valid while this mutex does not move. Waits for the lock.
    pub fn place(&self) -> *const T {
        &raw const *self.mutex.lock()
    }
    /// The protected value between [`hold`](ForkLock::hold) and [`release`](ForkLock::release); `None`
    /// otherwise.
    ///
    /// # Safety
    /// No other thread is between `hold` and `release`, and the lock is not released while the reference is
    /// used.
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

/// A lock as a `fork` sees it.
pub trait ForkLock {
    /// Waits for the lock and keeps it. The thread may hold other locks of this rank.
    ///
    /// # Safety
    /// The calling thread, or its copy in the child of a `fork`, calls [`release`](Self::release) before the
    /// lock moves or is dropped. All threads that hold several locks of one rank acquire them in one order.
    unsafe fn hold(&self);
    /// Releases the lock; does nothing if it is not held.
    ///
    /// # Safety
    /// The caller is the thread that called [`hold`](Self::hold), or its copy in the child of a `fork`.
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

//! Locks that are held across a `fork`: taken by one call and given back by another one, with no stack frame around both.

use crate::{Kept, Mutex, MutexGuard, Rank};
use core::ops::Deref;

/// A [`Mutex`] that can be held across a `fork`.
#[derive(Debug)]
#[repr(C)]
pub struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// Used by whoever holds the mutex.
    held: Kept<MutexGuard<'static, T>>,
}

impl<T> ForkMutex<T> {
    /// An open lock around `value`, with its place in the lock order.
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self { mutex: Mutex::ranked(rank, value), held: Kept::new() }
    }
    /// Where what it protects lies, for as long as this does not move. Waits for the lock.
    pub fn place(&self) -> *const T {
        &raw const *self.mutex.lock()
    }
    /// What the lock protects, from [`hold`](ForkLock::hold) to [`release`](ForkLock::release); `None` at other times.
    ///
    /// # Safety
    /// No other thread is between `hold` and `release`, and nothing is released while the answer is used.
    pub unsafe fn held(&self) -> Option<&T> {
        // SAFETY: by contract nobody else uses the room.
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
    /// Waits for the lock and keeps it. Others of its rank may be held.
    ///
    /// # Safety
    /// The same thread, or what it becomes in the child of a `fork`, calls [`release`](Self::release) before the lock
    /// moves or goes. Threads that hold several of one rank take them in one order.
    unsafe fn hold(&self);
    /// Gives the lock back; does nothing if it is not held.
    ///
    /// # Safety
    /// On the thread that called [`hold`](Self::hold), or what it became in the child of a `fork`.
    unsafe fn release(&self);
}

impl<T> ForkLock for ForkMutex<T> {
    unsafe fn hold(&self) {
        // SAFETY: by contract the guard goes before this does.
        let this: &'static Self = unsafe { &*core::ptr::from_ref(self) };
        let guard = this.mutex.lock_nested();
        // SAFETY: the lock is held, so nobody else uses the room.
        unsafe { self.held.put(guard) };
    }
    unsafe fn release(&self) {
        // SAFETY: by contract this thread holds the lock.
        drop(unsafe { self.held.take() });
    }
}

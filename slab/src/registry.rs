//! A list of who is there, kept by a subsystem: it keeps nobody alive.
//!
//! Allocations under pressure look at such lists, and the global allocator may be one of the caches: so a list grows outside
//! its lock, frees nothing under it, and does not hold it while anybody looks at what was found.

use core::fmt;
use std::sync::{Arc, Weak};
use uslab_magazine::sync::{Mutex, MutexGuard};

/// A list, oldest first.
pub(crate) struct Registry<T>(Mutex<Vec<Weak<T>>>);

impl<T> Registry<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn push(&self, entry: &Arc<T>) {
        let mut larger = Vec::new();
        loop {
            let mut list = self.0.lock();
            let len = list.len();
            if len == list.capacity() {
                if larger.capacity() <= len {
                    drop(list);
                    larger = Vec::with_capacity(2 * len + 64);
                    continue;
                }
                larger.append(&mut list);
                core::mem::swap(&mut *list, &mut larger);
            }
            return list.push(Arc::downgrade(entry));
        }
    }

    /// Takes `entry` off. Whoever holds it, or is just dropping it, calls this: so its memory stays for now.
    pub(crate) fn remove(&self, entry: *const T) {
        self.0.lock().retain(|other| !core::ptr::eq(other.as_ptr(), entry));
    }

    /// All that are alive, one by one. One that goes meanwhile may hide another one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            loop {
                let entry = self.0.lock().get(next)?.upgrade();
                next += 1;
                if entry.is_some() {
                    return entry;
                }
            }
        })
    }

    /// The list, locked: nobody is taken off.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Weak<T>>> {
        self.0.lock()
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

//! A pointer cell that is set once, by the first of several threads.
//!
//! Invariant: the pointer changes only once, from null to a value that is never freed. References to the value are
//! therefore `'static`.

use core::ptr::{NonNull, null_mut};
use uslab_magazine::sync::{AtomicPtr, Ordering::*};

/// A published value, or null.
#[derive(Debug)]
pub(crate) struct Published<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Published<T> {
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the published value, or `None` if no value has been published yet. Cost: one load.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the Release in `offer`, so that the reader finds the value initialised. SAFETY: the
        // pointer is null or a published value, which is never freed.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Publishes `value`, unless another thread published a value first. Returns the published value.
    pub(crate) fn publish(&self, value: Box<T>) -> &'static T {
        let value = NonNull::from(Box::leak(value));
        // SAFETY: `value` was just leaked, so `publish` may leave it allocated for ever.
        unsafe { self.offer(value) }.unwrap_or_else(|first| {
            // SAFETY: `value` came from a `Box` in this call, and was not published.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
            first
        })
    }
    /// Publishes `made`.
    ///
    /// # Errors
    /// If another thread published first, the error is the published value, and the caller keeps `made`.
    ///
    /// # Safety
    /// If the call publishes `made`, the caller must never free it.
    pub(crate) unsafe fn offer(&self, made: NonNull<T>) -> Result<&'static T, &'static T> {
        // Release: pairs with the Acquire of a failed exchange here, and with the Acquire in `get`. If the exchange
        // succeeds, the old value was null, so there is nothing to acquire.
        let outcome = self.0.compare_exchange(null_mut(), made.as_ptr(), Release, Acquire);
        // SAFETY: some thread published the value, which is never freed.
        unsafe {
            match outcome {
                Ok(_) => Ok(made.as_ref()),
                Err(first) => Err(&*first),
            }
        }
    }
}

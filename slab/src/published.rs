//! A value that the first of several threads publishes, for good.
//!
//! Invariant: the pointer changes from null to one value once; that value is never freed. So a reference to it is valid for
//! ever.

use core::ptr::{NonNull, null_mut};
use uslab_magazine::sync::{AtomicPtr, Ordering::*, planted};

/// Null, or the published value.
#[derive(Debug)]
pub(crate) struct Published<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Published<T> {
    /// Makes an empty cell.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The value, if it is published. Cost: one load.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the Release in `offer`, so that the value is initialised.
        // SAFETY: null, or published and never freed.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Publishes `made`, or drops it if another thread was first; returns the published value.
    pub(crate) fn publish(&self, made: Box<T>) -> &'static T {
        let made = NonNull::from(Box::leak(made));
        // SAFETY: leaked above.
        unsafe { self.offer(made) }.unwrap_or_else(|first| {
            // SAFETY: made above, and not shared.
            drop(unsafe { Box::from_raw(made.as_ptr()) });
            first
        })
    }
    /// Publishes `made`.
    ///
    /// # Errors
    /// Another thread was first: the published value; `made` stays the caller's.
    ///
    /// # Safety
    /// If `made` is published, it is never freed.
    pub(crate) unsafe fn offer(&self, made: NonNull<T>) -> Result<&'static T, &'static T> {
        // Release: pairs with the Acquire of the failure here and in `get`. A success finds null, and has nothing to acquire.
        let outcome = self.0.compare_exchange(null_mut(), made.as_ptr(), Release, Acquire);
        // SAFETY: published, by this thread or another one, and never freed.
        unsafe {
            planted!("the second publisher keeps its value" => return Ok(made.as_ref()));
            match outcome {
                Ok(_) => Ok(made.as_ref()),
                Err(first) => Err(&*first),
            }
        }
    }
}

//! Objects that never move.
//!
//! An object of any cache stays where it is while it is in use; what could move its *value* is `&mut T`. A `CacheBox`
//! lends one, and whoever allocates the object next gets it again, so it cannot be pinned by one user alone: all of them
//! must keep their hands off, from the constructor to the destructor. Such a cache hands out pinned boxes only.

use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, Construct, NoReset, ObjectCache, ObjectCacheBuilder, Reset, managed};
use crate::subsystem::Subsystem;
use core::pin::Pin;

/// A cache whose objects are pinned for as long as they are constructed: through frees and allocations, until their slab
/// is released, where they are dropped in place.
///
/// ```
/// use std::marker::PhantomPinned;
/// use uslab::ObjectCache;
///
/// struct Waiter { ticket: u32, _pinned: PhantomPinned }
///
/// let waiters = ObjectCache::builder("waiter").ctor(|| Waiter { ticket: 0, _pinned: PhantomPinned }).build_pinned()?;
/// let waiter = waiters.alloc()?;
/// assert_eq!(waiter.as_ref().ticket, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A reset would see `&mut T`, so that there is none:
///
/// ```compile_fail,E0277
/// uslab::ObjectCache::builder("reset").ctor(|| 1).reset(|n| *n = 0).build_pinned().unwrap();
/// ```
#[derive(Debug)]
pub struct PinnedCache<T>(ObjectCache<T>);

impl<T> PinnedCache<T> {
    /// A pinned object, as its last user left it. Cost, errors and panics as [`ObjectCache::alloc`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn alloc(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: no `&mut` to the object was ever lent, as all of them go out this way; it lies still until it is dropped
        // in place, and neither `Deref` nor `Drop` of the box moves it.
        self.0.alloc().map(|object| unsafe { Pin::new_unchecked(object) })
    }

    /// The same; at the cache's limit it waits until an object is free. See [`ObjectCache::acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: as in `alloc`.
        self.0.acquire().await.map(|object| unsafe { Pin::new_unchecked(object) })
    }

    fn untyped(&self) -> &KmemCache {
        self.0.untyped()
    }
}
managed!(PinnedCache);

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// A cache whose objects never move, in the global subsystem: see [`PinnedCache`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_pinned(self) -> Result<PinnedCache<T>, CacheError>
    where
        R: NoReset,
    {
        self.build().map(PinnedCache)
    }
    /// The same in `subsystem`.
    ///
    /// # Errors
    /// As [`build_in`](Self::build_in).
    pub fn build_pinned_in(self, subsystem: &Subsystem) -> Result<PinnedCache<T>, CacheError>
    where
        R: NoReset,
    {
        self.build_in(subsystem).map(PinnedCache)
    }
}

//! Objects that never move.
//!
//! An object of any cache keeps its address while it is in use; only `&mut T` could move its *value*. A `CacheBox` lends one,
//! and the next user of the object gets another one. So one user alone cannot pin an object: no user may have a `&mut T`, from
//! its construction to its destruction. Such a cache hands out pinned boxes only.

use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, Construct, NoReset, ObjectCache, ObjectCacheBuilder, Reset, managed};
use crate::subsystem::Subsystem;
use core::pin::Pin;

/// A cache whose objects are pinned as long as they are constructed: through frees and allocations, until they are dropped in
/// place when their slab is freed.
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
/// There is no reset, which would get `&mut T`:
///
/// ```compile_fail,E0277
/// uslab::ObjectCache::builder("reset").ctor(|| 1).reset(|n| *n = 0).build_pinned().unwrap();
/// ```
#[derive(Debug)]
pub struct PinnedCache<T>(ObjectCache<T>);

impl<T> PinnedCache<T> {
    /// Allocates a pinned object, as its last user left it. Cost, errors and panics as [`ObjectCache::alloc`].
    ///
    /// # Errors
    /// As [`ObjectCache::alloc`].
    #[inline(always)]
    pub fn alloc(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: no `&mut` to the object was ever lent, because all are handed out here; it keeps its address until it is
        // dropped in place, and neither `Deref` nor `Drop` of the box moves it.
        self.0.alloc().map(|object| unsafe { Pin::new_unchecked(object) })
    }

    /// Allocates as [`alloc`](Self::alloc) does; at the cache's limit it waits until an object is free. See
    /// [`ObjectCache::acquire`].
    ///
    /// # Errors
    /// As [`ObjectCache::acquire`].
    pub async fn acquire(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: no `&mut` to the object was ever lent, and nothing moves it until it is dropped in place.
        self.0.acquire().await.map(|object| unsafe { Pin::new_unchecked(object) })
    }

    fn untyped(&self) -> &KmemCache {
        self.0.untyped()
    }
}
managed!(PinnedCache);

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// Builds a cache whose objects never move in the global subsystem: see [`PinnedCache`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_pinned(self) -> Result<PinnedCache<T>, CacheError>
    where
        R: NoReset,
    {
        self.build().map(PinnedCache)
    }
    /// Builds such a cache in `subsystem`.
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

//! Pinned caches: caches whose objects never move.
//!
//! An object of any cache keeps its address while it is in use. Only a `&mut T` can move the object's *value*. A
//! `CacheBox` lends a `&mut T` to each user of the object. Pinning therefore requires that no user gets a `&mut T`
//! between the object's construction and its destruction. A pinned cache hands out only pinned boxes.

use crate::cache::kmem_cache::KmemCache;
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, Construct, NoReset, ObjectCache, ObjectCacheBuilder, Reset, managed};
use crate::subsystem::Subsystem;
use core::pin::Pin;

/// A cache whose objects stay pinned across frees and allocations. An object is pinned from its construction until it
/// is dropped in place with its slab.
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
/// A pinned cache accepts no reset function, because a reset would get `&mut T`:
///
/// ```compile_fail,E0277
/// uslab::ObjectCache::builder("reset").ctor(|| 1).reset(|n| *n = 0).build_pinned().unwrap();
/// ```
#[derive(Debug)]
pub struct PinnedCache<T>(ObjectCache<T>);

impl<T> PinnedCache<T> {
    /// Allocates a pinned object as its last user left it. Cost and panics are the same as for [`ObjectCache::alloc`].
    ///
    /// # Errors
    /// Fails as [`ObjectCache::alloc`] does.
    #[inline(always)]
    pub fn alloc(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: only this cache hands out the object, and never lends `&mut` to it. The object keeps its address
        // until it is dropped in place, and neither `Deref` nor `Drop` of the box moves it.
        self.0.alloc().map(|object| unsafe { Pin::new_unchecked(object) })
    }

    /// Allocates a pinned object; if the cache is at its limit, waits until an object is free.
    /// [`ObjectCache::acquire`] describes the wait.
    ///
    /// # Errors
    /// Fails as [`ObjectCache::acquire`] does.
    pub async fn acquire(&self) -> Result<Pin<CacheBox<'_, T>>, AllocError> {
        // SAFETY: no `&mut` to the object was ever lent, and nothing moves the object until it is dropped in place.
        self.0.acquire().await.map(|object| unsafe { Pin::new_unchecked(object) })
    }

    fn untyped(&self) -> &KmemCache {
        self.0.untyped()
    }
}
managed!(PinnedCache);

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// Builds a [`PinnedCache`] in the global subsystem.
    ///
    /// # Errors
    /// Fails as [`build`](Self::build) does.
    pub fn build_pinned(self) -> Result<PinnedCache<T>, CacheError>
    where
        R: NoReset,
    {
        self.build().map(PinnedCache)
    }
    /// Builds a [`PinnedCache`] in `subsystem`.
    ///
    /// # Errors
    /// Fails as [`build_in`](Self::build_in) does.
    pub fn build_pinned_in(self, subsystem: &Subsystem) -> Result<PinnedCache<T>, CacheError>
    where
        R: NoReset,
    {
        self.build_in(subsystem).map(PinnedCache)
    }
}

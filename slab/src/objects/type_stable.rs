//! Typed caches for lock-free readers: `SLAB_TYPESAFE_BY_RCU`. The module [`rcu`](crate::rcu)
//! describes the grace periods.

use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, Construct, NoReset, ObjectCache, ObjectCacheBuilder, Reset, managed};
use crate::subsystem::Subsystem;
use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

/// A cache whose objects readers may read without a lock, even after the objects were freed.
///
/// The memory of an object remains a constructed `T` of the cache until the object's slab was freed and a grace
/// period has passed. A reader that is [pinned](crate::rcu::pin) and found an object's [address](StableBox::as_ptr)
/// may therefore read the object. The object may be freed and reused after the lookup, so after reading, the reader
/// must check *in* the object that it is the expected one. Owners and readers get only `&T`, so mutable parts are
/// atomics, locks or cells. `slab/examples/rcu_lookup.rs` is a hash table that readers search without locks.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::*};
/// use uslab::{ObjectCache, rcu};
///
/// let numbers = ObjectCache::builder("number").ctor(|| AtomicU64::new(0)).build_type_stable()?;
/// let number = numbers.alloc()?;
/// number.store(7, Relaxed);
/// let found = number.as_ptr();
/// let reader = rcu::pin();
/// drop(number);
/// // SAFETY: found before the object was freed, and pinned since.
/// assert_eq!(unsafe { found.as_ref() }.load(Relaxed), 7);
/// # drop(reader);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypeStableCache<T>(ObjectCache<T>);

impl<T> TypeStableCache<T> {
    /// Allocates an object in the state in which its last user left it; readers that found the object earlier
    /// may still read it.
    ///
    /// See [`ObjectCache::alloc`] for cost and panics.
    ///
    /// # Errors
    /// Fails as [`ObjectCache::alloc`] does.
    #[inline(always)]
    pub fn alloc(&self) -> Result<StableBox<'_, T>, AllocError> {
        self.0.alloc().map(StableBox)
    }

    fn untyped(&self) -> &KmemCache {
        self.0.untyped()
    }
}
managed!(TypeStableCache);

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// Builds a [`TypeStableCache`] in the global subsystem, for lock-free readers.
    ///
    /// # Errors
    /// Fails as [`build`](Self::build) does.
    pub fn build_type_stable(self) -> Result<TypeStableCache<T>, CacheError>
    where
        T: Sync,
        R: NoReset,
    {
        self.map(KmemCacheBuilder::type_stable).build().map(TypeStableCache)
    }
    /// Builds a [`TypeStableCache`] in `subsystem`.
    ///
    /// # Errors
    /// Fails as [`build_in`](Self::build_in) does.
    pub fn build_type_stable_in(self, subsystem: &Subsystem) -> Result<TypeStableCache<T>, CacheError>
    where
        T: Sync,
        R: NoReset,
    {
        self.map(KmemCacheBuilder::type_stable).build_in(subsystem).map(TypeStableCache)
    }
}

/// An object in use of a [`TypeStableCache`]. The box lends only shared references, and frees its object on drop.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use uslab::{ObjectCache, StableBox};
///
/// let sessions = ObjectCache::builder("session").ctor(|| AtomicU64::new(0)).build_type_stable()?;
/// let requests: StableBox<'_, AtomicU64> = sessions.alloc()?;
/// requests.fetch_add(1, Relaxed); // its owner has `&T` only, too
/// assert_eq!(requests.load(Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StableBox<'c, T>(CacheBox<'c, T>);

impl<T> StableBox<'_, T> {
    /// Address of the object, which its owner may publish to readers.
    pub fn as_ptr(&self) -> NonNull<T> {
        NonNull::from(&*self.0)
    }
}
impl<T> Deref for StableBox<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T: fmt::Debug> fmt::Debug for StableBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

//! Typed caches for lock-free readers, like Linux's `SLAB_TYPESAFE_BY_RCU`. The module [`rcu`](crate::rcu) describes
//! the grace periods.

use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, Construct, NoReset, ObjectCache, ObjectCacheBuilder, Reset, managed};
use crate::subsystem::Subsystem;
use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

/// A cache whose objects may be read without a lock, even after they were freed.
///
/// The memory of an object remains a constructed `T` of the cache until the object's slab has been freed and a grace
/// period has passed. A reader that is [pinned](crate::rcu::pin) and has found an object's [address](StableBox::as_ptr)
/// may therefore read the object. The object may be freed and reused after the lookup. After reading, the reader must
/// therefore check data *in* the object to confirm that it is the expected object. Owners and readers get only `&T`, so
/// mutable fields must be atomics, locks or cells. The example `slab/examples/rcu_lookup.rs` is a hash table that
/// readers search without locks.
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
    /// Allocates an object as its last user left it. Readers that found the object earlier may still read it.
    ///
    /// Cost and panics are the same as for [`ObjectCache::alloc`].
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

/// An object in use of a [`TypeStableCache`]. The box lends only shared references, and dropping the box frees the
/// object.
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
    /// Address of the object, which the owner may publish to readers.
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

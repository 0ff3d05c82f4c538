//! Caches of objects of one type, constructed once and used many times.
//!
//! The constructor runs when a slab is made, not at an allocation: an object is handed out as its last user left it, so
//! what is expensive to build (locks, buffers, registrations) stays built. `T`'s destructor runs when its slab is
//! released (Bonwick 1994, "The Slab Allocator: An Object-Caching Kernel Memory Allocator").

use crate::cache::Hooks;
use crate::error::{AllocError, Busy, CacheError};
use crate::info::CacheInfo;
use crate::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::magazines::Magazines;
use crate::subsystem::{Core, Subsystem};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::Gfp;
use uslab_magazine::sync::abandoned;

/// A cache of constructed objects of type `T`.
///
/// ```
/// use uslab::ObjectCache;
///
/// let cache = ObjectCache::builder("buffer").ctor(|| Vec::<u8>::with_capacity(4096)).build()?;
/// let mut buffer = cache.alloc()?;
/// buffer.extend_from_slice(b"kept");
/// drop(buffer);
/// // The same object again, as it was left: neither constructed nor destructed meanwhile.
/// assert_eq!(*cache.alloc()?, b"kept");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Objects wander between threads, hence `T: Send`; they outlive their users, hence `T: 'static`.
#[doc(alias = "kmem_cache")]
pub struct ObjectCache<T> {
    cache: KmemCache,
    // Neither owns a `T` that this thread made nor lends one: free objects are `Send`, and only a `CacheBox` derefs.
    objects: PhantomData<fn() -> T>,
}

/// Makes an [`ObjectCache`]. `C` is the constructor once there is one.
#[must_use = "a builder makes nothing until it builds"]
pub struct ObjectCacheBuilder<T, C = ()> {
    cache: KmemCacheBuilder,
    construct: C,
    objects: PhantomData<fn() -> T>,
}

impl<T> ObjectCache<T> {
    /// Begins a cache; it needs a constructor yet.
    pub fn builder(name: impl Into<String>) -> ObjectCacheBuilder<T> {
        // No slab has objects of no bytes: those of zero-sized types get one.
        let cache = KmemCache::builder(name, size_of::<T>().max(1)).align(align_of::<T>());
        ObjectCacheBuilder { cache, construct: (), objects: PhantomData }
    }

    /// A constructed object, as its last user left it.
    ///
    /// Cost: as [`KmemCache::alloc`].
    ///
    /// # Errors
    /// As [`KmemCache::alloc`].
    ///
    /// # Panics
    /// When the constructor panics for an object of a new slab; nothing is lost then.
    #[inline(always)]
    #[doc(alias = "kmem_cache_alloc")]
    pub fn alloc(&self) -> Result<CacheBox<'_, T>, AllocError> {
        let object = self.cache.alloc(Gfp::KERNEL)?.cast();
        Ok(CacheBox { object, cache: &self.cache, owned: PhantomData })
    }

    /// A constructed object that `prepare` has seen first. If `prepare` panics, the object is free again.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_with(&self, prepare: impl FnOnce(&mut T)) -> Result<CacheBox<'_, T>, AllocError> {
        let mut object = self.alloc()?;
        prepare(&mut object);
        Ok(object)
    }

    /// The cache's name.
    pub fn name(&self) -> &str {
        self.cache.name()
    }
    /// As [`KmemCache::shrink`]: destructs the objects of all slabs that nobody uses.
    pub fn shrink(&self) -> usize {
        self.cache.shrink()
    }
    /// As [`KmemCache::reap`].
    pub fn reap(&self) -> u64 {
        self.cache.reap()
    }
    /// As [`KmemCache::destroy`].
    ///
    /// # Errors
    /// Objects are in use.
    pub fn destroy(&self) -> Result<(), Busy> {
        self.cache.destroy()
    }
    /// The numbers now.
    pub fn info(&self) -> CacheInfo {
        self.cache.info()
    }
}

impl<T, C> ObjectCacheBuilder<T, C> {
    fn map(self, change: impl FnOnce(KmemCacheBuilder) -> KmemCacheBuilder) -> Self {
        Self { cache: change(self.cache), ..self }
    }
    /// Makes the objects of a new slab. It runs without any lock held and may panic.
    pub fn ctor<F: Fn() -> T + Send + Sync + 'static>(self, construct: F) -> ObjectCacheBuilder<T, F> {
        ObjectCacheBuilder { cache: self.cache, construct, objects: PhantomData }
    }
    /// As [`KmemCacheBuilder::align`]; `T`'s own alignment at least.
    pub fn align(self, align: usize) -> Self {
        self.map(|cache| cache.align(align))
    }
    /// As [`KmemCacheBuilder::hardware_align`].
    pub fn hardware_align(self) -> Self {
        self.map(KmemCacheBuilder::hardware_align)
    }
    /// As [`KmemCacheBuilder::limit`]: in slabs.
    pub fn limit(self, slabs: u32) -> Self {
        self.map(|cache| cache.limit(slabs))
    }
    /// As [`KmemCacheBuilder::reclaimable`].
    pub fn reclaimable(self) -> Self {
        self.map(KmemCacheBuilder::reclaimable)
    }
    /// As [`KmemCacheBuilder::magazines`].
    pub fn magazines(self, magazines: Magazines) -> Self {
        self.map(|cache| cache.magazines(magazines))
    }
}

impl<T: Send + 'static, F: Fn() -> T + Send + Sync + 'static> ObjectCacheBuilder<T, F> {
    /// The cache, in the global subsystem.
    ///
    /// # Errors
    /// As [`KmemCacheBuilder::build`].
    #[cfg(not(shuttle))]
    pub fn build(self) -> Result<ObjectCache<T>, CacheError> {
        let subsystem = Subsystem::global()?;
        self.build_in(subsystem)
    }
    /// The cache, in `subsystem`, which it keeps alive.
    ///
    /// # Errors
    /// As [`KmemCacheBuilder::build_in`].
    pub fn build_in(self, subsystem: &Subsystem) -> Result<ObjectCache<T>, CacheError> {
        self.build_on(subsystem.core())
    }
    pub(crate) fn build_on(self, core: &Arc<Core>) -> Result<ObjectCache<T>, CacheError> {
        let construct = self.construct;
        let hooks = Hooks {
            // SAFETY: a new object has room for a `T`, aligned, and nobody else knows it.
            construct: Box::new(move |object| unsafe { object.cast().write(construct()) }),
            destruct: core::mem::needs_drop::<T>().then(|| {
                // SAFETY: the object was constructed, is free, and its slab goes: nobody uses it after this.
                let drop: Box<dyn Fn(NonNull<u8>) + Send + Sync> =
                    Box::new(|object| unsafe { object.cast::<T>().drop_in_place() });
                drop
            }),
        };
        Ok(ObjectCache { cache: self.cache.hooks(hooks).build_on(core)?, objects: PhantomData })
    }
}

impl<T> fmt::Debug for ObjectCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectCache").field(&self.name()).finish()
    }
}
impl<T, C> fmt::Debug for ObjectCacheBuilder<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectCacheBuilder").field(&self.cache).finish()
    }
}

/// A constructed object in use, freed on the CPU that drops it. Borrows its cache; there is no reference count.
pub struct CacheBox<'c, T> {
    object: NonNull<T>,
    cache: &'c KmemCache,
    owned: PhantomData<T>,
}

// SAFETY: a box owns its object as `Box` does; its cache may be freed to from any thread.
unsafe impl<T: Send> Send for CacheBox<'_, T> {}
// SAFETY: a shared box lends shared objects, no more.
unsafe impl<T: Sync> Sync for CacheBox<'_, T> {}

impl<T> Deref for CacheBox<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: constructed, and this box's alone.
        unsafe { self.object.as_ref() }
    }
}
impl<T> DerefMut for CacheBox<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: constructed, and this box's alone.
        unsafe { self.object.as_mut() }
    }
}
impl<T> Drop for CacheBox<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // SAFETY: allocated from this cache; still constructed, because only `&mut T` was lent.
        unsafe { self.cache.free(self.object.cast()) };
    }
}
impl<T: fmt::Debug> fmt::Debug for CacheBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
impl<T: fmt::Display> fmt::Display for CacheBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Who may be sent and shared; a change here is a change of the public promise.
const _: () = {
    const fn sendable<T: Send>() {}
    const fn shareable<T: Sync>() {}
    sendable::<KmemCache>();
    shareable::<KmemCache>();
    sendable::<ObjectCache<core::cell::Cell<u8>>>();
    shareable::<ObjectCache<core::cell::Cell<u8>>>();
    sendable::<CacheBox<'_, core::cell::Cell<u8>>>();
    shareable::<CacheBox<'_, u8>>();
};

/// A cache of objects that must not leave their thread cannot be built:
///
/// ```compile_fail,E0277
/// uslab::ObjectCache::builder("rc").ctor(|| std::rc::Rc::new(1)).build();
/// ```
///
/// nor can objects be shared that are not `Sync`:
///
/// ```compile_fail,E0277
/// fn shareable<T: Sync>() {}
/// shareable::<uslab::CacheBox<'static, std::cell::Cell<u8>>>();
/// ```
///
/// nor can an object outlive its cache:
///
/// ```compile_fail,E0597
/// let object = {
///     let cache = uslab::ObjectCache::builder("short").ctor(|| 1).build().unwrap();
///     cache.alloc().unwrap()
/// };
/// drop(object);
/// ```
#[cfg(doctest)]
struct DoesNotCompile;

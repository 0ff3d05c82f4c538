//! Caches of objects of one type, which are constructed once and used many times.
//!
//! The constructor runs when an object leaves its slab for the first time, but not at later allocations. A later user
//! gets the object as its last user left it, so expensive parts (locks, buffers, registrations) are not rebuilt. `T`'s
//! destructor runs when a shrink or a reap finds the object free, or when its slab is freed (Bonwick 1994, "The Slab
//! Allocator: An Object-Caching Kernel Memory Allocator").
//!
//! | an object of | is | use |
//! |---|---|---|
//! | [`ObjectCache`] | a [`CacheBox`], which borrows the cache | most uses |
//! | [`ObjectCache`], [owned](ObjectCache::alloc_owned) | an [`OwnedBox`], which is `'static` | tasks and threads that outlive the cache's owner |
//! | [`PinnedCache`](crate::PinnedCache) | a `Pin<CacheBox>` | objects that must not move: intrusive links |
//! | `TypeStableCache` | a `StableBox`, shared only | lock-free readers, see `rcu` |

use crate::cache::core::Core;
use crate::cache::hooks::{Hook, Hooks};
use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder, Limit};
use crate::cache::page_owners;
use crate::cache::per_cpu::Magazines;
use crate::cache::prefill::Prefilled;
use crate::cache::{Account, Cache};
use crate::debug::flags::SlabDebug;
use crate::error::{AllocError, CacheError};
use crate::harden::Harden;
use crate::subsystem::Subsystem;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
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
/// // The same object again, as it was left: neither destructed nor constructed in between.
/// assert_eq!(*cache.alloc()?, b"kept");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `T` must be `Send`, because objects move between threads, and `'static`, because objects outlive their users.
#[doc(alias = "kmem_cache")]
pub struct ObjectCache<T> {
    cache: KmemCache,
    // `fn(T) -> T` makes the cache `Send` and `Sync`: free objects are `Send`, and only a `CacheBox` lends a `T`. The
    // marker also makes the cache invariant in `T`, because a user reads what the previous user of the object wrote.
    objects: PhantomData<fn(T) -> T>,
}

macro_rules! managed {
    ($cache:ident) => {
        impl<T> $cache<T> {
            /// Name of the cache.
            pub fn name(&self) -> &str {
                self.untyped().name()
            }
            /// Destructs free objects and frees empty slabs, as [`KmemCache::shrink`](crate::KmemCache::shrink) does.
            pub fn shrink(&self) -> usize {
                self.untyped().shrink()
            }
            /// Ends a reaping interval, as [`KmemCache::reap`](crate::KmemCache::reap) does.
            pub fn reap(&self) -> u64 {
                self.untyped().reap()
            }
            /// Destroys the cache, as [`KmemCache::destroy`](crate::KmemCache::destroy) does.
            ///
            /// # Errors
            /// Fails if objects are in use.
            pub fn destroy(&self) -> Result<(), crate::Busy> {
                self.untyped().destroy()
            }
            /// Snapshot of the cache's statistics.
            pub fn info(&self) -> crate::CacheInfo {
                self.untyped().info()
            }
        }
    };
}
pub(crate) use managed;

/// Builder of an [`ObjectCache`]. `C` is the type of the constructor, and `R` the type of the reset function.
///
/// ```
/// use uslab::{Limit, ObjectCache};
///
/// let buffers = ObjectCache::builder("buffer")
///     .ctor(|| Vec::<u8>::with_capacity(4096)) // for each new object
///     .reset(Vec::clear) // for each freed object
///     .limit(Limit::Objects(1000))
///     .build()?;
/// buffers.alloc()?.extend_from_slice(b"hello");
/// let buffer = buffers.alloc()?;
/// assert!(buffer.is_empty() && buffer.capacity() >= 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder creates no cache until it is built"]
pub struct ObjectCacheBuilder<T, C = (), R = ()> {
    cache: KmemCacheBuilder,
    construct: C,
    reset: R,
    objects: PhantomData<fn() -> T>,
}

/// Type of a builder's reset: `()`, or a function that runs on each freed object.
///
/// ```
/// use uslab::typed::Reset;
/// use uslab::{CacheError, Limit, ObjectCache, ObjectCacheBuilder};
///
/// /// Builds a cache of a thousand objects at most, whether or not they are reset.
/// fn limited<T: Send + 'static, R: Reset<T>>(
///     builder: ObjectCacheBuilder<T, fn() -> T, R>,
/// ) -> Result<ObjectCache<T>, CacheError> {
///     builder.limit(Limit::Objects(1000)).build()
/// }
///
/// let builder = ObjectCache::builder("session").ctor(String::new as fn() -> String);
/// let sessions = limited(builder.reset(String::clear))?;
/// sessions.alloc()?.push_str("alice");
/// assert_eq!(*sessions.alloc()?, "");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Reset<T>: sealed::Reset<T> {}
impl<T, R: sealed::Reset<T>> Reset<T> for R {}

/// Type of a builder that accepts no reset function, because a reset would get `&mut T`.
///
/// ```
/// use uslab::typed::{NoReset, Reset};
/// use uslab::{CacheError, ObjectCache, ObjectCacheBuilder, PinnedCache};
///
/// /// Builds a cache of objects that never move.
/// fn pinned<T: Send + 'static, R: Reset<T> + NoReset>(
///     builder: ObjectCacheBuilder<T, fn() -> T, R>,
/// ) -> Result<PinnedCache<T>, CacheError> {
///     builder.build_pinned()
/// }
///
/// let waiters = pinned(ObjectCache::builder("waiter").ctor((|| 7) as fn() -> u32))?;
/// assert_eq!(*waiters.alloc()?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait NoReset: sealed::NoReset {}
impl NoReset for () {}

/// Type of a builder's constructor: a function that makes an object, or a function that may
/// [fail](ObjectCacheBuilder::try_ctor).
///
/// ```
/// use uslab::typed::Construct;
/// use uslab::{CacheError, ObjectCache, ObjectCacheBuilder};
///
/// fn built<T: Send + 'static>(builder: ObjectCacheBuilder<T, impl Construct<T>>) -> Result<ObjectCache<T>, CacheError> {
///     builder.build()
/// }
///
/// let cache = built(ObjectCache::builder("answer").try_ctor(|| "42".parse::<u32>()))?;
/// assert_eq!(*cache.alloc()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Construct<T>: sealed::Construct<T> {}
impl<T, C: sealed::Construct<T>> Construct<T> for C {}

/// A constructor that [may fail](ObjectCacheBuilder::try_ctor).
///
/// ```
/// use uslab::typed::Fallible;
/// use uslab::{ObjectCache, ObjectCacheBuilder};
///
/// type Parse = fn() -> Result<u32, std::num::ParseIntError>;
/// let builder: ObjectCacheBuilder<u32, Fallible<Parse, _>> = ObjectCache::builder("answer").try_ctor((|| "42".parse()) as Parse);
/// assert_eq!(*builder.build()?.alloc()?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fallible<F, E> {
    construct: F,
    errors: PhantomData<fn() -> E>,
}
impl<F, E> fmt::Debug for Fallible<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallible").finish_non_exhaustive()
    }
}

std::thread_local! {
    /// Error of this thread's last failed constructor.
    static REFUSED: Cell<Option<Cause>> = const { Cell::new(None) };
}
type Cause = Box<dyn std::error::Error + Send + Sync>;

impl AllocError {
    /// Takes the error of the [constructor](ObjectCacheBuilder::try_ctor) that failed this thread's last allocation.
    /// Returns `None` if the error was already taken, or if the allocation failed for another reason.
    pub fn take_cause(self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        if self == Self::Constructor { REFUSED.try_with(Cell::take).ok().flatten() } else { None }
    }
}

mod sealed {
    use super::{Cause, Fallible, Hook, NonNull, REFUSED};

    pub trait Construct<T>: Send + Sync + 'static {
        fn construct(&self) -> Option<T>;
    }
    impl<T, F: Fn() -> T + Send + Sync + 'static> Construct<T> for F {
        #[inline]
        fn construct(&self) -> Option<T> {
            Some(self())
        }
    }
    impl<T, E, F> Construct<T> for Fallible<F, E>
    where
        F: Fn() -> Result<T, E> + Send + Sync + 'static,
        E: Into<Cause> + 'static,
    {
        fn construct(&self) -> Option<T> {
            // An exiting thread has no thread-local storage for the error.
            let store_error = |error: E| _ = REFUSED.try_with(|slot| slot.set(Some(error.into())));
            (self.construct)().map_err(store_error).ok()
        }
    }

    pub trait Reset<T> {
        fn hook(self) -> Option<Hook<()>>;
    }
    pub trait NoReset {}
    impl NoReset for () {}
    impl<T> Reset<T> for () {
        fn hook(self) -> Option<Hook<()>> {
            None
        }
    }
    impl<T: 'static, F: Fn(&mut T) + Send + Sync + 'static> Reset<T> for (F,) {
        fn hook(self) -> Option<Hook<()>> {
            let (reset,) = self;
            // SAFETY: a freed object is constructed, and has no other user.
            Some(Hook::new(Box::new(move |object: NonNull<u8>| reset(unsafe { object.cast().as_mut() }))))
        }
    }
}

impl<T> ObjectCache<T> {
    /// Starts a builder, which still needs a constructor.
    pub fn builder(name: impl Into<String>) -> ObjectCacheBuilder<T> {
        // Slabs cannot hold zero-sized objects, so zero-sized types get one byte.
        let cache = KmemCache::builder(name, size_of::<T>().max(1)).align(align_of::<T>());
        ObjectCacheBuilder { cache, construct: (), reset: (), objects: PhantomData }
    }

    /// Allocates a constructed object as its last user left it.
    ///
    /// An allocation costs as much as [`KmemCache::alloc`].
    ///
    /// # Errors
    /// Fails as [`KmemCache::alloc`] does.
    ///
    /// # Panics
    /// Panics if the constructor panics; the cache loses no object.
    #[inline(always)]
    #[doc(alias = "kmem_cache_alloc")]
    pub fn alloc(&self) -> Result<CacheBox<'_, T>, AllocError> {
        let object = self.cache.alloc(Gfp::KERNEL)?.cast();
        Ok(CacheBox::new(object))
    }

    /// Allocates a constructed object and runs `prepare` on it. If `prepare` panics, the object is freed.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_with(&self, prepare: impl FnOnce(&mut T)) -> Result<CacheBox<'_, T>, AllocError> {
        let mut object = self.alloc()?;
        prepare(&mut object);
        Ok(object)
    }

    /// Allocates a constructed object, which keeps the cache alive. The box is `'static`, so it may outlive the cache's
    /// handle.
    ///
    /// An allocation costs as much as [`alloc`](Self::alloc). The allocation needs no reference count, because an
    /// object keeps its slab alive, and a slab keeps its cache alive. After the cache's last handle has been dropped,
    /// frees bypass the magazines.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_owned(&self) -> Result<OwnedBox<T>, AllocError> {
        Ok(self.alloc()?.into_owned())
    }

    /// Allocates an object; if the cache is at its limit, waits until an object is free.
    /// [`KmemCache::acquire`] describes the wait.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// use std::sync::Arc;
    /// use uslab::{Limit, ObjectCache};
    ///
    /// let connections = ObjectCache::builder("connection").ctor(String::new).limit(Limit::Slabs(1)).build()?;
    /// let connections = Arc::new(connections);
    /// let most = connections.info().objs_per_slab as usize;
    /// let mut all = connections.alloc_bulk(most)?;
    /// let pool = connections.clone();
    /// let client = tokio::spawn(async move { pool.acquire().await.map(|connection| connection.len()) });
    /// tokio::task::yield_now().await; // it waits
    /// drop(all.pop()); // its turn
    /// assert_eq!(client.await??, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, except that it waits at [`AllocError::CacheLimit`] and
    /// [`AllocError::AccountLimit`]. If the limit is below one slab, the call fails without
    /// waiting.
    ///
    /// # Panics
    /// Panics as [`alloc`](Self::alloc) does.
    pub async fn acquire(&self) -> Result<CacheBox<'_, T>, AllocError> {
        self.cache.acquire(Gfp::KERNEL).await.map(|object| CacheBox::new(object.cast()))
    }
    /// Allocates an [owned](Self::alloc_owned) object for a spawned task; if the cache is at its limit, waits until an
    /// object is free.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// use uslab::{Limit, ObjectCache};
    ///
    /// let connections = ObjectCache::builder("connection").ctor(String::new).limit(Limit::Objects(8)).build()?;
    /// let connection = connections.acquire_owned().await?; // before a client is accepted
    /// let client = tokio::spawn(async move { connection.len() });
    /// assert_eq!(client.await?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`acquire`](Self::acquire) does.
    ///
    /// # Panics
    /// Panics as [`acquire`](Self::acquire) does.
    pub async fn acquire_owned(&self) -> Result<OwnedBox<T>, AllocError> {
        self.acquire().await.map(CacheBox::into_owned)
    }
    /// Allocates an object; if the cache is at its limit, blocks the thread for at most `timeout`.
    /// [`KmemCache::acquire_timeout`] describes the wait.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does; if `timeout` passes, fails with [`AllocError::CacheLimit`] or
    /// [`AllocError::AccountLimit`].
    ///
    /// # Panics
    /// Panics as [`alloc`](Self::alloc) does.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<CacheBox<'_, T>, AllocError> {
        self.cache.acquire_timeout(Gfp::KERNEL, timeout).map(|object| CacheBox::new(object.cast()))
    }

    /// Allocates `n` objects, or none (see [`KmemCache::alloc_bulk`]).
    ///
    /// # Errors
    /// Fails as [`KmemCache::alloc_blocks`] does, and then allocates no objects.
    pub fn alloc_bulk(&self, n: usize) -> Result<Vec<CacheBox<'_, T>>, AllocError> {
        self.cache.alloc_owned_objects(Gfp::KERNEL, n, |object| CacheBox::new(object.cast()))
    }

    /// Reserves at least `n` objects for one owner (see [`KmemCache::prefill`]).
    ///
    /// # Errors
    /// Fails as [`KmemCache::prefill`] does.
    pub fn prefill(&self, n: usize) -> Result<PrefilledObjects<'_, T>, AllocError> {
        let objects = self.cache.prefill(Gfp::KERNEL, n)?;
        Ok(PrefilledObjects { objects, cache: &self.cache, owned: PhantomData })
    }

    /// Registers a shrinker for the cache, as [`KmemCache::register_shrinker`] does.
    pub fn register_shrinker(&self, shrinker: impl crate::Shrinker + 'static) -> crate::Registration {
        self.cache.register_shrinker(shrinker)
    }

    pub(crate) fn untyped(&self) -> &KmemCache {
        &self.cache
    }
}
managed!(ObjectCache);

impl<T, C, R> ObjectCacheBuilder<T, C, R> {
    pub(super) fn map(self, change: impl FnOnce(KmemCacheBuilder) -> KmemCacheBuilder) -> Self {
        Self { cache: change(self.cache), ..self }
    }
    /// Changes the object type to `U`, and applies `change` to the constructor.
    pub(crate) fn map_constructor<U, D>(self, change: impl FnOnce(C) -> D) -> ObjectCacheBuilder<U, D, R> {
        let cache = self.cache.size(size_of::<U>().max(1)).align(align_of::<U>());
        ObjectCacheBuilder {
            cache,
            construct: change(self.construct),
            reset: self.reset,
            objects: PhantomData,
        }
    }
    /// Sets the constructor, which may panic. The constructor runs when an object first leaves its slab, in the
    /// allocating thread, with no lock held.
    pub fn ctor<F: Fn() -> T + Send + Sync + 'static>(self, construct: F) -> ObjectCacheBuilder<T, F, R> {
        ObjectCacheBuilder { cache: self.cache, construct, reset: self.reset, objects: PhantomData }
    }
    /// Sets a constructor that may fail. If the constructor fails, the allocation fails with
    /// [`AllocError::Constructor`], and [`take_cause`](AllocError::take_cause) returns the constructor's error. The
    /// next allocation calls the constructor again.
    ///
    /// ```
    /// use uslab::{AllocError, ObjectCache};
    ///
    /// let files = ObjectCache::builder("scratch").try_ctor(|| std::fs::File::open("/none")).build()?;
    /// let error = files.alloc().unwrap_err();
    /// assert_eq!(error, AllocError::Constructor);
    /// assert!(error.take_cause().unwrap().is::<std::io::Error>());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_ctor<F, E>(self, construct: F) -> ObjectCacheBuilder<T, Fallible<F, E>, R>
    where
        F: Fn() -> Result<T, E> + Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let construct = Fallible { construct, errors: PhantomData };
        ObjectCacheBuilder { cache: self.cache, construct, reset: self.reset, objects: PhantomData }
    }
    /// Sets a function that resets each freed object for its next user. The reset runs with no lock held.
    ///
    /// If the reset panics, the object is freed as the reset left it, and the panic continues in the freeing thread.
    /// If the free was deferred by a grace period, the panic is contained instead.
    ///
    /// Cost: frees of a cache with a reset cannot use the inlined path, which costs some nanoseconds per free.
    pub fn reset<F: Fn(&mut T) + Send + Sync + 'static>(self, reset: F) -> ObjectCacheBuilder<T, C, (F,)> {
        ObjectCacheBuilder {
            cache: self.cache,
            construct: self.construct,
            reset: (reset,),
            objects: PhantomData,
        }
    }
    /// Constructs all objects of a slab together, as [`KmemCacheBuilder::construct_slabs`] does.
    pub fn construct_slabs(self) -> Self {
        self.map(KmemCacheBuilder::construct_slabs)
    }
    /// Sets the number of bytes that each object owns in addition to its slot, as
    /// [`KmemCacheBuilder::holds`] does.
    pub fn holds(self, bytes: usize) -> Self {
        self.map(|cache| cache.holds(bytes))
    }
    /// Sets a function that measures the bytes that an object owns in addition to its slot. Use `weigh` for objects of
    /// different weights.
    ///
    /// The function runs on each new object, and on each object that is freed to its slab. The cache charges the mean
    /// of the measured bytes. No lock is held while the function runs. A panic ends only the current measurement.
    ///
    /// ```
    /// use uslab::ObjectCache;
    ///
    /// let lines = ObjectCache::builder("line").ctor(|| String::with_capacity(80)).weigh(String::capacity).build()?;
    /// let line = lines.alloc()?;
    /// assert_eq!(lines.info().held_bytes, 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weigh<W: Fn(&T) -> usize + Send + Sync + 'static>(self, weigh: W) -> Self
    where
        T: 'static,
    {
        // SAFETY: the object is constructed, and has no other user.
        let weigh = move |object: NonNull<u8>| weigh(unsafe { object.cast().as_ref() });
        self.map(|cache| cache.weigh(Hook::new(Box::new(weigh))))
    }
    /// Sets the alignment, as [`KmemCacheBuilder::align`] does. The alignment of `T` is the minimum.
    pub fn align(self, align: usize) -> Self {
        self.map(|cache| cache.align(align))
    }
    /// Aligns objects to cache lines, as [`KmemCacheBuilder::hardware_align`] does.
    pub fn hardware_align(self) -> Self {
        self.map(KmemCacheBuilder::hardware_align)
    }
    /// Sets the cache's limit, as [`KmemCacheBuilder::limit`] does.
    pub fn limit(self, limit: Limit) -> Self {
        self.map(|cache| cache.limit(limit))
    }
    /// Charges the cache to `account`, as [`KmemCacheBuilder::account`] does.
    pub fn account(self, account: &Account) -> Self {
        self.map(|cache| cache.account(account))
    }
    /// Marks the cache's memory as reclaimable, as [`KmemCacheBuilder::reclaimable`] does.
    pub fn reclaimable(self) -> Self {
        self.map(KmemCacheBuilder::reclaimable)
    }
    /// Enables or disables checked frees, as [`KmemCacheBuilder::check_frees`] does.
    pub fn check_frees(self, check: bool) -> Self {
        self.map(|cache| cache.check_frees(check))
    }
    /// Sets the debug flags, as [`KmemCacheBuilder::slab_debug`] does.
    pub fn slab_debug(self, flags: SlabDebug) -> Self {
        self.map(|cache| cache.slab_debug(flags))
    }
    /// Sets the hardening, as [`KmemCacheBuilder::harden`] does. A cache with a constructor does not
    /// zero its objects.
    pub fn harden(self, harden: Harden) -> Self {
        self.map(|cache| cache.harden(harden))
    }
    /// Configures the magazines, as [`KmemCacheBuilder::magazines`] does.
    pub fn magazines(self, magazines: Magazines) -> Self {
        self.map(|cache| cache.magazines(magazines))
    }
}

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// Builds the cache in the global subsystem.
    ///
    /// # Errors
    /// Fails as [`KmemCacheBuilder::build`] does.
    pub fn build(self) -> Result<ObjectCache<T>, CacheError> {
        let subsystem = Subsystem::global()?;
        self.build_in(subsystem)
    }
    /// Builds the cache in `subsystem`. The cache keeps `subsystem` alive.
    ///
    /// # Errors
    /// Fails as [`KmemCacheBuilder::build_in`] does.
    pub fn build_in(self, subsystem: &Subsystem) -> Result<ObjectCache<T>, CacheError> {
        self.build_on(subsystem.core())
    }
    pub(crate) fn build_on(self, core: &Arc<Core>) -> Result<ObjectCache<T>, CacheError> {
        let (construct, reset) = (self.construct, self.reset.hook());
        let hooks = Hooks {
            construct: Hook::new(Box::new(move |object| {
                let Some(value) = construct.construct() else { return false };
                // SAFETY: a new object has room for a `T`, is aligned, and has no other user.
                unsafe { object.cast().write(value) };
                true
            })),
            destruct: core::mem::needs_drop::<T>().then(|| {
                // SAFETY: the object is constructed and free. Its slab is being freed, so the object is not used again.
                Hook::new(Box::new(|object| unsafe { object.cast::<T>().drop_in_place() }))
            }),
            reset,
        };
        Ok(ObjectCache { cache: self.cache.hooks(hooks).build_on(core)?, objects: PhantomData })
    }
}

impl<T> fmt::Debug for ObjectCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectCache").field(&self.name()).finish()
    }
}
impl<T, C, R> fmt::Debug for ObjectCacheBuilder<T, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectCacheBuilder").field(&self.cache).finish()
    }
}

/// A constructed object in use. Dropping the box frees the object on the current CPU. A box borrows its cache. A box is
/// one word long, without a reference count, because the object's address leads to the cache.
///
/// ```
/// use uslab::{CacheBox, ObjectCache};
///
/// let sessions = ObjectCache::builder("session").ctor(String::new).reset(String::clear).build()?;
/// let mut session: CacheBox<'_, String> = sessions.alloc()?;
/// session.push_str("alice");
/// assert_eq!((session.len(), sessions.info().used), (5, 1));
/// drop(session);
/// assert_eq!(sessions.info().used, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CacheBox<'c, T> {
    object: NonNull<T>,
    cache: PhantomData<&'c KmemCache>,
    // Invariant in `T`, as the cache is: a value that is written through the box stays in the object.
    owned: PhantomData<fn(T) -> T>,
}

const _: () = assert!(size_of::<Option<CacheBox<'_, u8>>>() == size_of::<usize>());
const _: () = assert!(size_of::<Option<OwnedBox<u8>>>() == size_of::<usize>());

impl<'c, T> CacheBox<'c, T> {
    /// Makes the box of an object that the caller owns. The object belongs to a typed cache that is borrowed for `'c`.
    #[inline(always)]
    fn new(object: NonNull<T>) -> Self {
        Self { object, cache: PhantomData, owned: PhantomData }
    }
    #[inline(always)]
    fn cache(&self) -> &'c Cache {
        // SAFETY: the object is in use, and its typed cache is borrowed.
        unsafe { page_owners::cache_of(self.object.cast()).as_ref() }
    }

    /// Converts the box into a raw pointer that the caller owns, for example to link objects.
    #[must_use = "the object is leaked unless `from_raw` takes it back"]
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).object
    }

    /// Makes a box for an object that [`into_raw`](Self::into_raw) released.
    ///
    /// # Safety
    /// `object` must come from [`into_raw`](Self::into_raw) of a box of `cache`. `object` must be constructed, and must
    /// have no other user.
    pub unsafe fn from_raw(cache: &'c ObjectCache<T>, object: NonNull<T>) -> Self {
        let boxed = Self::new(object);
        debug_assert!(
            core::ptr::eq(boxed.cache(), cache.cache.cache()),
            "the object must belong to the cache"
        );
        boxed
    }

    /// Converts the box into an owned box (see [`ObjectCache::alloc_owned`]).
    pub fn into_owned(self) -> OwnedBox<T> {
        OwnedBox { object: self.into_raw(), owned: PhantomData }
    }

    /// Frees the object after a grace period (see [`KmemCache::free_deferred`]). The cache's
    /// [reset](ObjectCacheBuilder::reset) runs after the grace period, too.
    pub fn free_deferred(self) {
        let cache = self.cache();
        cache.core().defer(self.into_raw().cast());
    }
}

// SAFETY: a box owns its object as `Box` does, and any thread may free an object.
unsafe impl<T: Send> Send for CacheBox<'_, T> {}
// SAFETY: a shared box lends only shared references.
unsafe impl<T: Sync> Sync for CacheBox<'_, T> {}

impl<T> Deref for CacheBox<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the object is constructed, and only this box refers to it.
        unsafe { self.object.as_ref() }
    }
}
impl<T> DerefMut for CacheBox<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the object is constructed, and only this box refers to it.
        unsafe { self.object.as_mut() }
    }
}
impl<T> Drop for CacheBox<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // SAFETY: `object` was allocated from this cache, and is still constructed, because only `&mut T` was lent.
        unsafe { self.cache().free(self.object.cast()) };
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

/// A constructed object in use that keeps its cache alive. The box is therefore `'static`. Dropping the box frees the
/// object on the current CPU. A box is one word long, without a reference count.
///
/// ```
/// use uslab::{ObjectCache, OwnedBox};
///
/// let object: OwnedBox<String> = {
///     let cache = ObjectCache::builder("name").ctor(String::new).build()?;
///     cache.alloc_owned()?
/// };
/// std::thread::spawn(move || drop(object)).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedBox<T> {
    object: NonNull<T>,
    owned: PhantomData<fn(T) -> T>,
}

// SAFETY: a box owns its object as `Box` does, and any thread may free an object.
unsafe impl<T: Send> Send for OwnedBox<T> {}
// SAFETY: a shared box lends only shared references.
unsafe impl<T: Sync> Sync for OwnedBox<T> {}

impl<T> Deref for OwnedBox<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the object is constructed, and only this box refers to it.
        unsafe { self.object.as_ref() }
    }
}
impl<T> DerefMut for OwnedBox<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the object is constructed, and only this box refers to it.
        unsafe { self.object.as_mut() }
    }
}
impl<T> Drop for OwnedBox<T> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // SAFETY: `object` was allocated from this cache, which it keeps alive. The object is still constructed,
        // because only `&mut T` was lent.
        unsafe {
            let object = self.object.cast();
            Cache::free_without_handle(page_owners::cache_of(object), object);
        }
    }
}
impl<T: fmt::Debug> fmt::Debug for OwnedBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
impl<T: fmt::Display> fmt::Display for OwnedBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Constructed objects that are reserved for one owner (see [`Prefilled`]).
///
/// ```
/// use uslab::ObjectCache;
///
/// let sessions = ObjectCache::builder("session").ctor(String::new).build()?;
/// let mut mine = sessions.prefill(3)?;
/// // Three allocations that cannot fail.
/// let taken: Vec<_> = (0..3).filter_map(|_| mine.alloc()).collect();
/// assert_eq!(taken.len(), 3);
/// taken.into_iter().for_each(|session| mine.free(session));
/// assert!(mine.len() >= 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it frees the objects"]
pub struct PrefilledObjects<'c, T> {
    objects: Prefilled<'c>,
    cache: &'c KmemCache,
    owned: PhantomData<fn(T) -> T>,
}

impl<'c, T> PrefilledObjects<'c, T> {
    /// Takes an object from the stock, or returns `None` if the stock is empty. The first allocations from the stock,
    /// up to the reserved number, cannot fail. Dropping the box frees the object to the cache; [`free`](Self::free)
    /// returns the object to the stock.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<CacheBox<'c, T>> {
        let object = self.objects.alloc()?.cast();
        Some(CacheBox::new(object))
    }
    /// Returns an object to the stock. An object of another cache is freed to that cache.
    #[inline(always)]
    pub fn free(&mut self, object: CacheBox<'c, T>) {
        if core::ptr::eq(object.cache(), self.cache.cache()) {
            // SAFETY: `object` was allocated from this cache, is still constructed, and was owned only by the box.
            unsafe { self.objects.free(object.into_raw().cast()) };
        }
    }
    /// Number of objects in the stock: this number of further allocations cannot fail.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
    /// Returns `true` if the stock is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
    /// Refills the stock to `n` objects, as [`Prefilled::refill`] does.
    ///
    /// # Errors
    /// Fails as [`Prefilled::refill`] does.
    pub fn refill(&mut self, n: usize) -> Result<(), AllocError> {
        self.objects.refill(n)
    }
}

/// Checks which public types are `Send` and `Sync`.
const _: () = {
    const fn assert_type_is_send<T: Send>() {}
    const fn assert_is_sync<T: Sync>() {}
    assert_type_is_send::<KmemCache>();
    assert_is_sync::<KmemCache>();
    assert_type_is_send::<ObjectCache<core::cell::Cell<u8>>>();
    assert_is_sync::<ObjectCache<core::cell::Cell<u8>>>();
    assert_type_is_send::<CacheBox<'_, core::cell::Cell<u8>>>();
    assert_is_sync::<CacheBox<'_, u8>>();
    const fn owned<T: Send + 'static>() {}
    owned::<OwnedBox<core::cell::Cell<u8>>>();
    assert_is_sync::<OwnedBox<u8>>();
};

/// A cache cannot be built if its objects must not leave their thread:
///
/// ```compile_fail,E0277
/// uslab::ObjectCache::builder("rc").ctor(|| std::rc::Rc::new(1)).build();
/// ```
///
/// Objects cannot be shared between threads unless they are `Sync`:
///
/// ```compile_fail,E0277
/// fn assert_is_sync<T: Sync>() {}
/// assert_is_sync::<uslab::CacheBox<'static, std::cell::Cell<u8>>>();
/// ```
///
/// Owned objects cannot be shared between threads unless they are `Sync`:
///
/// ```compile_fail,E0277
/// fn assert_is_sync<T: Sync>() {}
/// assert_is_sync::<uslab::OwnedBox<std::cell::Cell<u8>>>();
/// ```
///
/// A borrowed object cannot outlive its cache:
///
/// ```compile_fail,E0597
/// let object = {
///     let cache = uslab::ObjectCache::builder("short").ctor(|| 1).build().unwrap();
///     cache.alloc().unwrap()
/// };
/// drop(object);
/// ```
///
/// A cache of `&'static` values, or an object of it, cannot be used with a shorter lifetime. If a shorter lifetime were
/// accepted, short-lived values would stay in the cache:
///
/// ```compile_fail
/// fn shorter<'a>(cache: &'a uslab::ObjectCache<&'static str>) -> &'a uslab::ObjectCache<&'a str> {
///     cache
/// }
/// ```
/// ```compile_fail
/// fn shorter<'a>(object: uslab::CacheBox<'a, &'static str>) -> uslab::CacheBox<'a, &'a str> {
///     object
/// }
/// ```
/// ```compile_fail
/// fn shorter<'a>(object: uslab::OwnedBox<&'static str>) -> uslab::OwnedBox<&'a str> {
///     object
/// }
/// ```
/// ```compile_fail
/// fn shorter<'a>(objects: uslab::PrefilledObjects<'a, &'static str>) -> uslab::PrefilledObjects<'a, &'a str> {
///     objects
/// }
/// ```
/// ```compile_fail
/// fn shorter<'a>(cache: &'a uslab::PinnedCache<&'static str>) -> &'a uslab::PinnedCache<&'a str> {
///     cache
/// }
/// ```
/// ```compile_fail
/// fn shorter<'a>(cache: &'a uslab::TypeStableCache<&'static str>) -> &'a uslab::TypeStableCache<&'a str> {
///     cache
/// }
/// ```
/// ```compile_fail
/// use uslab::handle::HandleCache;
/// fn shorter<'a>(cache: &'a HandleCache<&'static str>) -> &'a HandleCache<&'a str> {
///     cache
/// }
/// ```
///
/// Code that uses a single lifetime compiles:
///
/// ```
/// fn same<'a>(cache: &'a uslab::ObjectCache<&'static str>) -> &'a uslab::ObjectCache<&'static str> {
///     cache
/// }
/// ```
#[cfg(doctest)]
struct DoesNotCompile;

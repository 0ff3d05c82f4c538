//! Caches of objects of one type, constructed once and used many times.
//!
//! The constructor runs when an object leaves its slab for the first time, not at later allocations: an object is handed out as its
//! last user left it, so what is expensive to build (locks, buffers, registrations) stays built. `T`'s destructor runs when a
//! shrink or a reap finds the object free, or its slab is released (Bonwick 1994, "The Slab Allocator: An Object-Caching Kernel
//! Memory Allocator").
//!
//! | an object of | is | for |
//! |---|---|---|
//! | [`ObjectCache`] | a [`CacheBox`], which borrows the cache | most uses |
//! | the same, [owned](ObjectCache::alloc_owned) | an [`OwnedBox`], which is `'static` | tasks and threads that outlive the cache's owner |
//! | [`PinnedCache`](crate::PinnedCache) | a `Pin<CacheBox>` | what must not move: intrusive links |
//! | `TypeStableCache` | a `StableBox`, shared only | lock-free readers, see `rcu` |

use crate::cache::core::Core;
use crate::cache::hooks::{Hook, Hooks};
use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder, Limit};
use crate::cache::page_owners;
use crate::cache::per_cpu::Magazines;
use crate::cache::prefill::Prefilled;
use crate::cache::{Account, Cache};
use crate::debug::flags::SlabDebug;
use crate::debug::harden::Harden;
use crate::error::{AllocError, CacheError};
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
/// // The same object again, as it was left: neither constructed nor destructed meanwhile.
/// assert_eq!(*cache.alloc()?, b"kept");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Objects wander between threads, hence `T: Send`; they outlive their users, hence `T: 'static`.
#[doc(alias = "kmem_cache")]
pub struct ObjectCache<T> {
    cache: KmemCache,
    // Neither owns a `T` that this thread made nor lends one: free objects are `Send`, and only a `CacheBox` derefs. What
    // one user wrote the next one reads, so it is of this very `T`, no lifetime shorter or longer.
    objects: PhantomData<fn(T) -> T>,
}

/// What is done with a typed cache as a whole, whatever it hands out.
macro_rules! managed {
    ($cache:ident) => {
        impl<T> $cache<T> {
            /// The cache's name.
            pub fn name(&self) -> &str {
                self.untyped().name()
            }
            /// As [`KmemCache::shrink`](crate::KmemCache::shrink): destructs the objects that nobody uses.
            pub fn shrink(&self) -> usize {
                self.untyped().shrink()
            }
            /// As [`KmemCache::reap`](crate::KmemCache::reap).
            pub fn reap(&self) -> u64 {
                self.untyped().reap()
            }
            /// As [`KmemCache::destroy`](crate::KmemCache::destroy).
            ///
            /// # Errors
            /// Objects are in use.
            pub fn destroy(&self) -> Result<(), crate::Busy> {
                self.untyped().destroy()
            }
            /// The numbers now.
            pub fn info(&self) -> crate::CacheInfo {
                self.untyped().info()
            }
        }
    };
}
pub(crate) use managed;

/// Makes an [`ObjectCache`]. `C` is the constructor and `R` the reset once there is one.
///
/// ```
/// use uslab::{Limit, ObjectCache};
///
/// let buffers = ObjectCache::builder("buffer")
///     .ctor(|| Vec::<u8>::with_capacity(4096)) // for each new object
///     .reset(Vec::clear) // for each object that comes back
///     .limit(Limit::Objects(1000))
///     .build()?;
/// buffers.alloc()?.extend_from_slice(b"hello");
/// let buffer = buffers.alloc()?;
/// assert!(buffer.is_empty() && buffer.capacity() >= 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder makes nothing until it builds"]
pub struct ObjectCacheBuilder<T, C = (), R = ()> {
    cache: KmemCacheBuilder,
    construct: C,
    reset: R,
    objects: PhantomData<fn() -> T>,
}

/// What runs on an object that comes back: a function, or nothing.
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

/// No reset: it would see `&mut T`.
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

/// What constructs objects: a function that makes one, or may [refuse](ObjectCacheBuilder::try_ctor).
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

/// A constructor that [may refuse](ObjectCacheBuilder::try_ctor).
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
    /// Why a constructor refused last on this thread.
    static REFUSED: Cell<Option<Cause>> = const { Cell::new(None) };
}
/// An error of a constructor.
type Cause = Box<dyn std::error::Error + Send + Sync>;

impl AllocError {
    /// The error of a typed cache's [constructor](ObjectCacheBuilder::try_ctor) that refused this thread's last allocation; once. `None`
    /// for other errors.
    pub fn take_cause(self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        if self == Self::Constructor { REFUSED.try_with(Cell::take).ok().flatten() } else { None }
    }
}

mod sealed {
    use super::{Cause, Fallible, Hook, NonNull, REFUSED};

    pub trait Construct<T>: Send + Sync + 'static {
        /// `None` if it refuses.
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
            // The thread that ends has no place for it.
            let keep = |error: E| _ = REFUSED.try_with(|refused| refused.set(Some(error.into())));
            (self.construct)().map_err(keep).ok()
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
            // SAFETY: an object that its user gives back is constructed and nobody else's.
            Some(Hook::new(Box::new(move |object: NonNull<u8>| reset(unsafe { object.cast().as_mut() }))))
        }
    }
}

impl<T> ObjectCache<T> {
    /// Begins a cache; it needs a constructor yet.
    pub fn builder(name: impl Into<String>) -> ObjectCacheBuilder<T> {
        // No slab has objects of no bytes: those of zero-sized types get one.
        let cache = KmemCache::builder(name, size_of::<T>().max(1)).align(align_of::<T>());
        ObjectCacheBuilder { cache, construct: (), reset: (), objects: PhantomData }
    }

    /// A constructed object, as its last user left it.
    ///
    /// Cost: as [`KmemCache::alloc`].
    ///
    /// # Errors
    /// As [`KmemCache::alloc`].
    ///
    /// # Panics
    /// When the constructor panics; nothing is lost then.
    #[inline(always)]
    #[doc(alias = "kmem_cache_alloc")]
    pub fn alloc(&self) -> Result<CacheBox<'_, T>, AllocError> {
        let object = self.cache.alloc(Gfp::KERNEL)?.cast();
        Ok(CacheBox::new(object))
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

    /// A constructed object that keeps the cache: it may go anywhere and stay for as long as it likes.
    ///
    /// Cost: as [`alloc`](Self::alloc). Nothing is counted: an object keeps its slab, and the slab its cache. Frees of objects that
    /// the cache's last handle left behind go past the magazines, to the slabs.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_owned(&self) -> Result<OwnedBox<T>, AllocError> {
        Ok(self.alloc()?.into_owned())
    }

    /// As [`alloc`](Self::alloc); at the cache's limit it waits until an object is free. See [`KmemCache::acquire`].
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
    /// As [`alloc`](Self::alloc), but for [`AllocError::CacheLimit`] and [`AllocError::AccountLimit`], which it waits at. It does not
    /// wait where not even one slab is allowed.
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc).
    pub async fn acquire(&self) -> Result<CacheBox<'_, T>, AllocError> {
        self.cache.acquire(Gfp::KERNEL).await.map(|object| CacheBox::new(object.cast()))
    }
    /// The same, owned: for a task that is spawned, see [`alloc_owned`](Self::alloc_owned).
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
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    /// As there.
    pub async fn acquire_owned(&self) -> Result<OwnedBox<T>, AllocError> {
        self.acquire().await.map(CacheBox::into_owned)
    }
    /// The same for a thread, which sleeps for `timeout` at most. See [`KmemCache::acquire_timeout`].
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc): [`AllocError::CacheLimit`] or [`AllocError::AccountLimit`] when the time is over.
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc).
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<CacheBox<'_, T>, AllocError> {
        self.cache.acquire_timeout(Gfp::KERNEL, timeout).map(|object| CacheBox::new(object.cast()))
    }

    /// `n` objects, or none: see [`KmemCache::alloc_bulk`].
    ///
    /// # Errors
    /// As [`KmemCache::alloc_blocks`], with nothing taken.
    pub fn alloc_bulk(&self, n: usize) -> Result<Vec<CacheBox<'_, T>>, AllocError> {
        self.cache.alloc_owners(Gfp::KERNEL, n, |object| CacheBox::new(object.cast()))
    }

    /// At least `n` objects for one owner: see [`KmemCache::prefill`].
    ///
    /// # Errors
    /// As [`KmemCache::prefill`].
    pub fn prefill(&self, n: usize) -> Result<PrefilledObjects<'_, T>, AllocError> {
        let objects = self.cache.prefill(Gfp::KERNEL, n)?;
        Ok(PrefilledObjects { objects, cache: &self.cache, owned: PhantomData })
    }

    /// As [`KmemCache::register_shrinker`].
    pub fn register_shrinker(&self, shrinker: impl crate::Shrinker + 'static) -> crate::Registration {
        self.cache.register_shrinker(shrinker)
    }

    /// The untyped cache below.
    pub(crate) fn untyped(&self) -> &KmemCache {
        &self.cache
    }
}
managed!(ObjectCache);

impl<T, C, R> ObjectCacheBuilder<T, C, R> {
    pub(super) fn map(self, change: impl FnOnce(KmemCacheBuilder) -> KmemCacheBuilder) -> Self {
        Self { cache: change(self.cache), ..self }
    }
    /// The same for objects of type `U`, made by what `change` makes of the constructor.
    pub(crate) fn map_constructor<U, D>(self, change: impl FnOnce(C) -> D) -> ObjectCacheBuilder<U, D, R> {
        let cache = self.cache.size(size_of::<U>().max(1)).align(align_of::<U>());
        ObjectCacheBuilder {
            cache,
            construct: change(self.construct),
            reset: self.reset,
            objects: PhantomData,
        }
    }
    /// Makes an object when it leaves its slab for the first time, in the thread that allocates it, without any lock held. It may panic.
    pub fn ctor<F: Fn() -> T + Send + Sync + 'static>(self, construct: F) -> ObjectCacheBuilder<T, F, R> {
        ObjectCacheBuilder { cache: self.cache, construct, reset: self.reset, objects: PhantomData }
    }
    /// The same of a constructor that may refuse. Then the allocation fails with [`AllocError::Constructor`], and
    /// [`take_cause`](AllocError::take_cause) has the error; the next allocation tries again.
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
    /// Runs on each object that its user gives back, so that the next one finds it as it should be. It runs without any
    /// lock held. If it panics, the object goes back as it was left, and the panic goes on in who gave it
    /// back, unless a grace period lies between.
    ///
    /// Cost: frees leave the inlined path, some nanoseconds each.
    pub fn reset<F: Fn(&mut T) + Send + Sync + 'static>(self, reset: F) -> ObjectCacheBuilder<T, C, (F,)> {
        ObjectCacheBuilder {
            cache: self.cache,
            construct: self.construct,
            reset: (reset,),
            objects: PhantomData,
        }
    }
    /// As [`KmemCacheBuilder::construct_slabs`].
    pub fn construct_slabs(self) -> Self {
        self.map(KmemCacheBuilder::construct_slabs)
    }
    /// As [`KmemCacheBuilder::holds`].
    pub fn holds(self, bytes: usize) -> Self {
        self.map(|cache| cache.holds(bytes))
    }
    /// The same where objects differ: `weigh` says how many bytes an object holds now. It runs on a new object, and on one that comes
    /// back to its slab; the mean counts. It runs without any lock held, and a panic ends that run and nothing else.
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
        // SAFETY: a constructed object that is nobody else's.
        let weigh = move |object: NonNull<u8>| weigh(unsafe { object.cast().as_ref() });
        self.map(|cache| cache.weigh(Hook::new(Box::new(weigh))))
    }
    /// As [`KmemCacheBuilder::align`]; `T`'s own alignment at least.
    pub fn align(self, align: usize) -> Self {
        self.map(|cache| cache.align(align))
    }
    /// As [`KmemCacheBuilder::hardware_align`].
    pub fn hardware_align(self) -> Self {
        self.map(KmemCacheBuilder::hardware_align)
    }
    /// As [`KmemCacheBuilder::limit`].
    pub fn limit(self, limit: Limit) -> Self {
        self.map(|cache| cache.limit(limit))
    }
    /// As [`KmemCacheBuilder::account`].
    pub fn account(self, account: &Account) -> Self {
        self.map(|cache| cache.account(account))
    }
    /// As [`KmemCacheBuilder::reclaimable`].
    pub fn reclaimable(self) -> Self {
        self.map(KmemCacheBuilder::reclaimable)
    }
    /// As [`KmemCacheBuilder::check_frees`].
    pub fn check_frees(self, check: bool) -> Self {
        self.map(|cache| cache.check_frees(check))
    }
    /// As [`KmemCacheBuilder::slab_debug`].
    pub fn slab_debug(self, flags: SlabDebug) -> Self {
        self.map(|cache| cache.slab_debug(flags))
    }
    /// As [`KmemCacheBuilder::harden`]. What is constructed is not zeroed.
    pub fn harden(self, harden: Harden) -> Self {
        self.map(|cache| cache.harden(harden))
    }
    /// As [`KmemCacheBuilder::magazines`].
    pub fn magazines(self, magazines: Magazines) -> Self {
        self.map(|cache| cache.magazines(magazines))
    }
}

impl<T: Send + 'static, C: Construct<T>, R: Reset<T>> ObjectCacheBuilder<T, C, R> {
    /// The cache, in the global subsystem.
    ///
    /// # Errors
    /// As [`KmemCacheBuilder::build`].
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
        let (construct, reset) = (self.construct, self.reset.hook());
        let hooks = Hooks {
            construct: Hook::new(Box::new(move |object| {
                let Some(value) = construct.construct() else { return false };
                // SAFETY: a new object has room for a `T`, aligned, and nobody else knows it.
                unsafe { object.cast().write(value) };
                true
            })),
            destruct: core::mem::needs_drop::<T>().then(|| {
                // SAFETY: the object was constructed, is free, and its slab goes: nobody uses it after this.
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

/// A constructed object in use, freed on the CPU that drops it. Borrows its cache; there is no reference count. It is one word:
/// the cache is found by the object's address.
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
    // As the cache: what is written through the box stays in the object.
    owned: PhantomData<fn(T) -> T>,
}

const _: () = assert!(size_of::<Option<CacheBox<'_, u8>>>() == size_of::<usize>());
const _: () = assert!(size_of::<Option<OwnedBox<u8>>>() == size_of::<usize>());

impl<'c, T> CacheBox<'c, T> {
    /// Of an object of a typed cache that is borrowed for `'c`, and whose owner the caller is.
    #[inline(always)]
    fn new(object: NonNull<T>) -> Self {
        Self { object, cache: PhantomData, owned: PhantomData }
    }
    #[inline(always)]
    fn cache(&self) -> &'c Cache {
        // SAFETY: the object is in use, and of a typed cache, which is borrowed.
        unsafe { page_owners::cache_of(self.object.cast()).as_ref() }
    }

    /// The object as a pointer, the caller's from now on: for what links objects itself.
    #[must_use = "without `from_raw` the object stays out for ever"]
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).object
    }

    /// The box again.
    ///
    /// # Safety
    /// `object` came from [`into_raw`](Self::into_raw) of a box of `cache`, is constructed, and nobody else uses it.
    pub unsafe fn from_raw(cache: &'c ObjectCache<T>, object: NonNull<T>) -> Self {
        let made = Self::new(object);
        debug_assert!(core::ptr::eq(made.cache(), cache.cache.cache()), "an object of another cache");
        made
    }

    /// The same object, owned: see [`ObjectCache::alloc_owned`].
    pub fn into_owned(self) -> OwnedBox<T> {
        OwnedBox { object: self.into_raw(), owned: PhantomData }
    }

    /// Gives the object back when all readers of now have gone: see [`KmemCache::free_deferred`]. Its
    /// [reset](ObjectCacheBuilder::reset) runs then, too.
    pub fn free_deferred(self) {
        let cache = self.cache();
        cache.core().defer(self.into_raw().cast());
    }
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

/// A constructed object in use that keeps its cache alive: it is `'static`. Freed on the CPU that drops it. It is one word, and
/// counted nowhere.
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

// SAFETY: as for `CacheBox`.
unsafe impl<T: Send> Send for OwnedBox<T> {}
// SAFETY: a shared box lends shared objects, no more.
unsafe impl<T: Sync> Sync for OwnedBox<T> {}

impl<T> Deref for OwnedBox<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: constructed, and this box's alone.
        unsafe { self.object.as_ref() }
    }
}
impl<T> DerefMut for OwnedBox<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: constructed, and this box's alone.
        unsafe { self.object.as_mut() }
    }
}
impl<T> Drop for OwnedBox<T> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // SAFETY: allocated from this cache; still constructed, because only `&mut T` was lent.
        // That keeps the cache.
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

/// Constructed objects of one owner: see [`Prefilled`].
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
#[must_use = "dropping it gives the objects back"]
pub struct PrefilledObjects<'c, T> {
    objects: Prefilled<'c>,
    cache: &'c KmemCache,
    owned: PhantomData<fn(T) -> T>,
}

impl<'c, T> PrefilledObjects<'c, T> {
    /// An object; `None` if it holds none, which is not before the promised number of allocations. Dropped, it goes to the
    /// cache; [`free`](Self::free) takes it back here.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<CacheBox<'c, T>> {
        let object = self.objects.alloc()?.cast();
        Some(CacheBox::new(object))
    }
    /// Takes an object back; one of another cache goes to its own.
    #[inline(always)]
    pub fn free(&mut self, object: CacheBox<'c, T>) {
        if core::ptr::eq(object.cache(), self.cache.cache()) {
            // SAFETY: allocated from this cache, the box's until now; still constructed.
            unsafe { self.objects.free(object.into_raw().cast()) };
        }
    }
    /// Objects that it holds: so many allocations cannot fail.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
    /// As [`Prefilled::refill`].
    ///
    /// # Errors
    /// As there.
    pub fn refill(&mut self, n: usize) -> Result<(), AllocError> {
        self.objects.refill(n)
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
    const fn owned<T: Send + 'static>() {}
    owned::<OwnedBox<core::cell::Cell<u8>>>();
    shareable::<OwnedBox<u8>>();
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
/// nor owned ones:
///
/// ```compile_fail,E0277
/// fn shareable<T: Sync>() {}
/// shareable::<uslab::OwnedBox<std::cell::Cell<u8>>>();
/// ```
///
/// nor can a borrowed object outlive its cache:
///
/// ```compile_fail,E0597
/// let object = {
///     let cache = uslab::ObjectCache::builder("short").ctor(|| 1).build().unwrap();
///     cache.alloc().unwrap()
/// };
/// drop(object);
/// ```
///
/// nor can a cache, or an object of it, be taken for one of a shorter lifetime, whose values would stay in it:
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
/// (The same with one lifetime does compile:)
///
/// ```
/// fn same<'a>(cache: &'a uslab::ObjectCache<&'static str>) -> &'a uslab::ObjectCache<&'static str> {
///     cache
/// }
/// ```
#[cfg(doctest)]
struct DoesNotCompile;

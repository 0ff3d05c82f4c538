//! Caches in statics: a cache is made on first use and never dropped, so boxes of its objects are `'static`.

#[cfg(not(any(loom, shuttle)))]
use crate::StartError;
use crate::error::CacheError;
use crate::objects::typed::ObjectCache;
use crate::published::Published;
#[cfg(not(any(loom, shuttle)))]
use core::cell::Cell;
use core::fmt;
#[cfg(not(any(loom, shuttle)))]
use std::panic::resume_unwind;
#[cfg(not(any(loom, shuttle)))]
use uslab_magazine::sync::{catch_panic, thread_local};

/// An [`ObjectCache`] in a `static`; the first call of [`get`](Self::get) makes the cache. The macro
/// [`object_cache!`](crate::object_cache) declares a static cache. Under loom, each execution has a separate cache.
///
/// Threads never wait for each other. If several threads call `get` first, each makes a cache, and only one of these
/// caches is kept.
///
/// ```
/// use uslab::{CacheBox, ObjectCache, StaticCache, object_cache};
///
/// object_cache! {
///     static SESSIONS: ObjectCache<String> = ObjectCache::builder("session").ctor(String::new).build();
/// }
///
/// let cache: &StaticCache<String> = &SESSIONS;
/// let session: CacheBox<'static, String> = cache.get()?.alloc()?;
/// assert_eq!(SESSIONS.get()?.info().used, 1); // one cache, made by the first `get`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StaticCache<T: Send + 'static> {
    cache: Published<ObjectCache<T>>,
    make: fn() -> Result<ObjectCache<T>, CacheError>,
}

impl<T: Send + 'static> StaticCache<T> {
    /// Declares a static cache; `make` creates the cache on first use.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(make: fn() -> Result<ObjectCache<T>, CacheError>) -> Self {
        Self { cache: Published::new(), make }
    }
    /// Declares a static cache; `make` creates the cache on first use.
    #[cfg(any(loom, shuttle))]
    pub fn new(make: fn() -> Result<ObjectCache<T>, CacheError>) -> Self {
        Self { cache: Published::new(), make }
    }

    /// Returns the cache, and creates it in the first call. Cost of later calls: one load.
    ///
    /// # Errors
    /// Fails as [`build`](crate::ObjectCacheBuilder::build) does; the next call then tries again. Fails with
    /// [`StartError::Starting`] if `make` calls `get` on the same thread.
    #[inline]
    pub fn get(&self) -> Result<&'static ObjectCache<T>, CacheError> {
        self.cache.get().map_or_else(|| self.initialise(), Ok)
    }

    #[cold]
    fn initialise(&self) -> Result<&'static ObjectCache<T>, CacheError> {
        #[cfg(not(any(loom, shuttle)))]
        return Starting::run_with_init_mark(core::ptr::from_ref(self).addr(), || self.make())?;
        #[cfg(any(loom, shuttle))]
        self.make()
    }
    fn make(&self) -> Result<&'static ObjectCache<T>, CacheError> {
        Ok(self.cache.publish(Box::new((self.make)()?)))
    }
}

impl<T: Send + 'static> fmt::Debug for StaticCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StaticCache").field(&self.cache.get()).finish()
    }
}

/// Marks a static cache as being made by this thread; the cache is identified by its address. The marks form a list on
/// the stack without heap memory, because the cache may serve the thread's allocator.
#[cfg(not(any(loom, shuttle)))]
struct Starting {
    address: usize,
    /// Mark of the cache whose `make` function needs this cache; null for the outermost cache.
    outer: *const Self,
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// Mark of the innermost cache that this thread is currently making.
    static CURRENT_START: Cell<*const Starting> = const { Cell::new(core::ptr::null()) };
}

#[cfg(not(any(loom, shuttle)))]
impl Starting {
    /// Runs `make` while the cache at `address` is marked; fails if that cache is already marked.
    fn run_with_init_mark<R>(address: usize, make: impl FnOnce() -> R) -> Result<R, StartError> {
        let current = Self { address, outer: CURRENT_START.get() };
        // SAFETY: each pointer is null or a mark whose `run_with_init_mark` has not returned.
        let mut outer = core::iter::successors(unsafe { current.outer.as_ref() }, |outer_start| unsafe {
            outer_start.outer.as_ref()
        });
        if outer.any(|outer_start| outer_start.address == address) {
            return Err(StartError::Starting);
        }
        CURRENT_START.set(&raw const current);
        let cache = catch_panic(make);
        CURRENT_START.set(current.outer);
        cache.map_or_else(|panic| resume_unwind(panic), Ok)
    }
}

/// Declares a [`StaticCache`](crate::StaticCache): an [`ObjectCache`](crate::ObjectCache) in a `static`, created on
/// first use.
///
/// ```
/// use uslab::{CacheBox, ObjectCache, object_cache};
///
/// object_cache! {
///     /// Buffers of a page.
///     static BUFFERS: ObjectCache<Vec<u8>> = ObjectCache::builder("buffer").ctor(|| Vec::with_capacity(4096)).build();
/// }
///
/// let buffer: CacheBox<'static, Vec<u8>> = BUFFERS.get()?.alloc()?;
/// std::thread::spawn(move || drop(buffer)).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
#[cfg(not(loom))]
macro_rules! object_cache {
    ($(#[$attribute:meta])* $visible:vis static $name:ident: ObjectCache<$type:ty> = $build:expr;) => {
        $(#[$attribute])*
        $visible static $name: $crate::StaticCache<$type> = $crate::StaticCache::new(|| $build);
    };
}

/// Declares an [`ObjectCache`](crate::ObjectCache) in a `static`, which each execution creates anew.
#[macro_export]
#[cfg(loom)]
macro_rules! object_cache {
    ($(#[$attribute:meta])* $visible:vis static $name:ident: ObjectCache<$type:ty> = $build:expr;) => {
        $crate::debug::check::loom::lazy_static! {
            $(#[$attribute])*
            $visible static ref $name: $crate::StaticCache<$type> = $crate::StaticCache::new(|| $build);
        }
    };
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::CacheBox;

    object_cache! {
        static NUMBERS: ObjectCache<u64> = ObjectCache::builder("number").ctor(|| 7).build();
    }

    #[test]
    fn static_cache_is_shared_by_all_threads() {
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| NUMBERS.get().unwrap().alloc().unwrap())).collect();
        let numbers: Vec<CacheBox<'static, u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(numbers.iter().all(|number| **number == 7));
        assert_eq!(NUMBERS.get().unwrap().info().used, 4);
    }

    #[test]
    fn recursive_initialization_of_a_static_cache_is_an_error() {
        static CALLS: uslab_magazine::sync::Counter = uslab_magazine::sync::Counter::new(0);
        static OTHER: StaticCache<u8> = StaticCache::new(|| {
            // This cache needs itself indirectly, through another cache.
            RECURSIVE_STATIC_CACHE.get()?;
            ObjectCache::builder("other").ctor(|| 1).build()
        });
        static RECURSIVE_STATIC_CACHE: StaticCache<u8> = StaticCache::new(|| {
            CALLS.add(1);
            if CALLS.get() < 3 {
                OTHER.get()?;
            }
            ObjectCache::builder("again").ctor(|| 2).build()
        });
        assert_eq!(RECURSIVE_STATIC_CACHE.get().unwrap_err(), CacheError::Start(StartError::Starting));
        assert_eq!(OTHER.get().unwrap_err(), CacheError::Start(StartError::Starting));
        assert_eq!((*RECURSIVE_STATIC_CACHE.get().unwrap().alloc().unwrap(), CALLS.get()), (2, 3));
        assert_eq!(*OTHER.get().unwrap().alloc().unwrap(), 1);
    }
}

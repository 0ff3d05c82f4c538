//! Handles for objects of a cache, for many threads.
//!
//! One thread may find a handle valid, while another thread frees the object before the first thread uses it. A third
//! thread may then allocate the same object. A lookup can prevent the use of a reallocated object in one of three ways:
//!
//! | method | cost of a reader | result | |
//! |---|---|---|---|
//! | copy, and compare the generation before and after (a seqlock) | two loads | a copy of words that are all atomics | no reference, no writes |
//! | a grace period (RCU) | a pin per thread | `&T` until it unpins | memory waits for the slowest reader; not in models |
//! | **a count of holders next to the generation** | two locked instructions | `&T` without a time limit | **used here** |
//!
//! Counting holders is sound for every `T`, and frees an object as soon as its last user drops it. Counting has no
//! rules that users could break, and works in models. A lookup with a stale handle only reads the handle's entry.
//! `free` makes all copies of a handle stale immediately; the last holder frees the object to its cache. (The crate
//! sharded-slab counts references in the same way. Weissflog, "Handles are the better pointers", 2018, gives reasons to
//! use handles.)
//!
//! Several threads that hold the *same* object alternately write to one cache line. Four neighbouring entries share a
//! cache line.
//!
//! The objects of an [`ObjectCache`] never move, stay constructed, and keep their index while they are in magazines. An
//! allocation or free therefore takes no lock. The module [`numbers`](super::numbers) describes the entry's word, which
//! threads share.

use super::numbers::{Entry, LastReference, NumberTable};
use crate::cache::core::Core;
use crate::error::{AllocError, CacheError};
use crate::objects::typed::{CacheBox, ObjectCache, ObjectCacheBuilder};
use crate::subsystem::Subsystem;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_handle::{Generations, Handle, HandleError, Word};
use uslab_magazine::sync::{MODEL, abandoned};

/// An object with its number, which stays the same as long as the object is constructed.
struct NumberedObject<T> {
    value: T,
    /// Number of the object, which its first allocation sets.
    number: Option<u32>,
    numbers: Arc<NumberTable>,
}

impl<T> Drop for NumberedObject<T> {
    fn drop(&mut self) {
        if let (Some(number), false) = (self.number, abandoned()) {
            self.numbers.give(number);
        }
    }
}

/// A cache whose objects are identified by handles, for many threads.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
/// use uslab::ObjectCache;
/// use uslab::handle::{Generations, HandleCache};
///
/// let builder = ObjectCache::builder("session").ctor(|| AtomicU32::new(0));
/// let sessions: HandleCache<AtomicU32> = builder.build_handles(Generations::default())?;
/// let session = sessions.alloc_with(|requests| *requests.get_mut() = 0)?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| sessions.get(session).map(|requests| requests.fetch_add(1, Relaxed)));
///     scope.spawn(|| sessions.free(session)); // current holders keep it until they drop it
/// });
/// assert!(sessions.get(session).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Users get only `&T`, except in [`alloc_with`](Self::alloc_with), so mutable fields must be atomics, locks or cells.
/// An object takes 16 bytes in addition to its value. An object's index takes an entry of 16 bytes. Dropping the cache
/// frees the objects in use.
///
/// A [fork](crate::Fork) of the subsystem does not take the lock of the object numbers. If another thread held that
/// lock at the fork, the lock stays locked in the child for ever. In the child, use only handle caches that no other
/// thread was using at the fork.
pub struct HandleCache<T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    objects: ObjectCache<NumberedObject<T>>,
    numbers: Arc<NumberTable>,
    handles: PhantomData<fn() -> W>,
}

impl<T, W: Word, const GENERATION_BITS: u32> HandleCache<T, W, GENERATION_BITS> {
    /// Allocates an object as its last user left it, and returns a handle of the object.
    ///
    /// Cost: one [`ObjectCache::alloc`], plus one store. An object's first allocation also takes a lock, to number the
    /// object.
    ///
    /// # Errors
    /// Fails if no object is available, or if the available object has no index yet and all indexes are in use. Free
    /// objects with an index may be on another CPU, so a cache that must use its very last index needs more index bits.
    ///
    /// # Panics
    /// Panics if the constructor panics; the cache loses no object.
    #[doc(alias("insert", "spawn"))]
    pub fn alloc(&self) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        self.alloc_with(|_| ())
    }
    /// Allocates an object and runs `prepare` on it. If `prepare` panics, the object is freed.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does, without running `prepare`.
    pub fn alloc_with(
        &self,
        prepare: impl FnOnce(&mut T),
    ) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        let mut object = self.objects.alloc()?;
        let (number, generation) = self.assign_number(&mut object)?;
        prepare(&mut object.value);
        let (Some(entry), Some(handle)) = (self.numbers.entry(number), Handle::new(number, generation))
        else {
            // This line is unreachable, because numbers and generations fit into a handle.
            return Err(HandleError::Memory);
        };
        entry.begin(object.into_raw().as_ptr().cast(), generation);
        Ok(handle)
    }

    /// Returns the object's number and its next generation, and numbers the object if necessary.
    fn assign_number(&self, object: &mut NumberedObject<T>) -> Result<(u32, u32), HandleError<AllocError>> {
        if let Some(number) = object.number {
            if let Some(generation) = self.numbers.next(number) {
                return Ok((number, generation));
            }
            object.number = None;
            self.numbers.give(number);
        }
        let (number, generation) = self.numbers.take()?;
        object.number = Some(number);
        Ok((number, generation))
    }

    fn entry(&self, handle: Handle<W, GENERATION_BITS>) -> Option<&Entry> {
        self.numbers.entry(handle.index())
    }

    /// Returns `true` if the handle's object is in use. Another thread may free the object immediately afterwards, so
    /// callers use [`get`](Self::get) before accessing the object.
    ///
    /// Cost: two loads, one of which reads a word that rarely changes, and no writes.
    #[doc(alias("contains_key", "is_alive"))]
    #[inline]
    pub fn is_valid(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        self.entry(handle).is_some_and(|entry| entry.is_in_use(handle.generation()))
    }

    /// Holds the handle's object, which cannot be reallocated until the [`Held`] is dropped. Returns `None` for a stale
    /// handle.
    ///
    /// Cost: one [`is_valid`](Self::is_valid), plus a locked instruction to hold the object and another one to release
    /// it.
    ///
    /// # Panics
    /// Panics if the object is held 2,147,483,647 times, which can happen only if `Held`s are
    /// leaked.
    #[doc(alias("find", "at", "upgrade"))]
    #[inline]
    pub fn get(&self, handle: Handle<W, GENERATION_BITS>) -> Option<Held<'_, T, W, GENERATION_BITS>> {
        let entry = self.entry(handle)?;
        // A `Held` is made only after the object was held successfully, because dropping a `Held`
        // releases the object.
        entry.hold(handle.generation()).then(|| Held { cache: self, entry })
    }

    /// Frees the handle's object, which makes all copies of the handle stale. If the object is held, it returns to the
    /// cache when the last holder drops it. If several threads free one object, only one call returns `true`. A call
    /// with a stale handle returns `false`.
    ///
    /// Cost: a locked instruction and, if the object has no holder, a free to the cache.
    #[doc(alias("remove", "erase", "despawn"))]
    pub fn free(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        let Some(entry) = self.entry(handle) else { return false };
        let ended = entry.end(handle.generation());
        if let Some(Some(last)) = ended {
            self.give_back(entry, last);
        }
        ended.is_some()
    }

    #[inline]
    fn give_back(&self, entry: &Entry, _: LastReference) {
        if let Some(object) = NonNull::new(entry.object().cast()) {
            // SAFETY: the object came from `into_raw` of a box of this cache. Each life of an object has one
            // `LastReference`, and no thread holds the object any more.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }

    /// Number of retired indexes, whose generations are used up.
    pub fn retired(&self) -> u64 {
        self.numbers.retired()
    }
    /// Returns a generation that no handle has used, as
    /// [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation) does. An allocation during the call
    /// counts as either earlier or later than the call.
    pub fn fresh_generation(&self) -> Option<u32> {
        self.numbers.fresh_generation()
    }
    /// Name of the cache.
    pub fn name(&self) -> &str {
        self.objects.name()
    }
    /// Frees empty slabs, as [`KmemCache::shrink`](crate::KmemCache::shrink) does. Indexes of destructed objects become
    /// available again.
    pub fn shrink(&self) -> usize {
        self.objects.shrink()
    }
    /// Ends a reaping interval, as [`KmemCache::reap`](crate::KmemCache::reap) does.
    pub fn reap(&self) -> u64 {
        self.objects.reap()
    }
    /// Snapshot of the cache's statistics.
    pub fn info(&self) -> crate::CacheInfo {
        self.objects.info()
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Drop for HandleCache<T, W, GENERATION_BITS> {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        for object in self.numbers.objects_in_use().filter_map(|object| NonNull::new(object.cast())) {
            // SAFETY: the object came from `into_raw` of a box of this cache. The object is in use, or a leaked `Held`
            // holds it, because every other `Held` borrows this cache.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> fmt::Debug for HandleCache<T, W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandleCache").field(&self.name()).finish()
    }
}

/// A held object of a [`HandleCache`]. A held object cannot be reallocated, even if another thread frees it.
///
/// ```
/// use uslab::ObjectCache;
/// use uslab::handle::{Generations, HandleCache, Held};
///
/// let builder = ObjectCache::builder("session").ctor(String::new);
/// let sessions: HandleCache<String> = builder.build_handles(Generations::default())?;
/// let session = sessions.alloc_with(|user| user.push_str("alice"))?;
/// let held: Held<'_, String> = sessions.get(session).ok_or("a stale handle")?;
/// assert!(sessions.free(session)); // as another thread might
/// assert_eq!(*held, "alice");
/// drop(held);
/// assert_eq!(sessions.info().used, 0); // freed now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the reference releases the object"]
pub struct Held<'c, T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    cache: &'c HandleCache<T, W, GENERATION_BITS>,
    entry: &'c Entry,
}

impl<T, W: Word, const GENERATION_BITS: u32> Deref for Held<'_, T, W, GENERATION_BITS> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a held object is a constructed object of the cache, to which users have only `&`.
        let object: &NumberedObject<T> = unsafe { &*self.entry.object().cast() };
        &object.value
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Drop for Held<'_, T, W, GENERATION_BITS> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        if let Some(last) = self.entry.release_hold() {
            self.cache.give_back(self.entry, last);
        }
    }
}

impl<T: fmt::Debug, W: Word, const GENERATION_BITS: u32> fmt::Debug for Held<'_, T, W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Methods that build a handle cache. Threads share the objects, so `T` must be `Sync`;
/// [`alloc_with`](HandleCache::alloc_with) replaces a reset.
impl<T: Send + Sync + 'static, C: Fn() -> T + Send + Sync + 'static> ObjectCacheBuilder<T, C> {
    /// Builds a [`HandleCache`] in the global subsystem.
    ///
    /// # Errors
    /// Fails as [`build`](Self::build) does.
    pub fn build_handles<W: Word, const GENERATION_BITS: u32>(
        self,
        generations: impl Into<Generations>,
    ) -> Result<HandleCache<T, W, GENERATION_BITS>, CacheError> {
        self.build_handles_in(Subsystem::global()?, generations)
    }
    /// Builds a [`HandleCache`] in `subsystem`.
    ///
    /// # Errors
    /// Fails as [`build_in`](Self::build_in) does.
    pub fn build_handles_in<W: Word, const GENERATION_BITS: u32>(
        self,
        subsystem: &Subsystem,
        generations: impl Into<Generations>,
    ) -> Result<HandleCache<T, W, GENERATION_BITS>, CacheError> {
        self.build_handles_on(subsystem.core(), generations.into())
    }
    pub(crate) fn build_handles_on<W: Word, const GENERATION_BITS: u32>(
        self,
        core: &Arc<Core>,
        generations: Generations,
    ) -> Result<HandleCache<T, W, GENERATION_BITS>, CacheError> {
        type H<W, const G: u32> = Handle<W, G>;
        let (slots, last) = (H::<W, GENERATION_BITS>::SLOTS, H::<W, GENERATION_BITS>::LAST_GENERATION);
        let numbers = Arc::new(NumberTable::new(slots, last, generations));
        let shared_numbers = numbers.clone();
        let numbered = move |construct: C| {
            move || NumberedObject { value: construct(), number: None, numbers: shared_numbers.clone() }
        };
        Ok(HandleCache {
            objects: self.map_constructor(numbered).build_on(core)?,
            numbers,
            handles: PhantomData,
        })
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<HandleCache<u8>>();
    shared::<Held<'_, u8>>();
};

/// The assertions check the sizes that the cost table of [`handle`](super) states.
const _: () = {
    assert!(MODEL || size_of::<NumberedObject<u64>>() == 8 + 16 && size_of::<Entry>() == 16);
};

/// Types that threads must not share are rejected by the compiler:
///
/// ```compile_fail,E0277
/// let builder = uslab::ObjectCache::builder("cell").ctor(|| std::cell::Cell::new(1));
/// let cells: uslab::handle::HandleCache<_> = builder.build_handles(uslab::handle::Generations::default()).unwrap();
/// ```
///
/// An object cannot outlive its cache:
///
/// ```compile_fail,E0597
/// use uslab::handle::{Generations, HandleCache};
/// let held = {
///     let cache: HandleCache<u8> = uslab::ObjectCache::builder("u8").ctor(|| 1).build_handles(Generations::default()).unwrap();
///     cache.get(cache.alloc().unwrap())
/// };
/// drop(held);
/// ```
#[cfg(doctest)]
struct DoesNotCompile;

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Config;
    use uslab_buddy::PageConfig;
    use uslab_magazine::{Cpus, on_cpu};

    /// Another thread must not take the last number while the allocation runs.
    #[test]
    fn numbered_object_gets_a_handle_without_locking() {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap()).limit(4 << 20);
        let subsystem = Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap();
        let builder = ObjectCache::builder("named").ctor(|| 1_u64);
        let cache: HandleCache<u64> = builder.build_handles_in(&subsystem, Generations::default()).unwrap();
        let first = cache.alloc().unwrap();
        assert!(cache.free(first));
        let second = {
            let _held = cache.numbers.lock();
            cache.alloc().unwrap()
        };
        assert_eq!((second.index(), second.generation()), (first.index(), first.generation() + 1));
        assert!(cache.free(second));
    }
}

//! Handles for objects of a cache, for many threads.
//!
//! The difficulty: after a thread has found a handle valid, and before its last use of the object, another thread may free the
//! object, and a third one allocate it. So `get` can return one of these:
//!
//! | method | cost of a reader | result | |
//! |---|---|---|---|
//! | copy, and compare the generation before and after (a seqlock) | two loads | a copy of words that are all atomics | no reference, no writes |
//! | a grace period (RCU) | a pin per thread | `&T` until it unpins | memory waits for the slowest reader; not in models |
//! | **a count of holders next to the generation** | two locked instructions | `&T` without a time limit | **this one** |
//!
//! The third is sound for every `T`, frees immediately when the last user drops it, has no rules that users could break, and
//! runs in models. A stale handle is still rejected by a load of its entry, without a write. `free` makes all copies of a
//! handle stale immediately, and the object is freed to its cache when the last holder drops it. (sharded-slab keeps its
//! references in the same way; Weissflog, "Handles are the better pointers", 2018, explains why to use handles at all.)
//!
//! Threads that hold the *same* object alternately write to one cache line, and entries of neighbours share lines, four to a
//! line.
//!
//! Underneath is an [`ObjectCache`]: objects never move, stay constructed, and pass through the magazines of CPUs with their
//! index, so an allocation or free takes no lock. See [`numbers`](super::numbers) for the word that threads share.

use super::numbers::{Entry, Last, Numbers};
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
use uslab_magazine::sync::{MODEL, abandoned, planted};

/// An object with the number that it keeps while it is constructed.
struct Numbered<T> {
    value: T,
    /// Set at the first allocation.
    number: Option<u32>,
    numbers: Arc<Numbers>,
}

impl<T> Drop for Numbered<T> {
    fn drop(&mut self) {
        if let (Some(number), false) = (self.number, abandoned()) {
            self.numbers.give(number);
        }
    }
}

/// A cache whose objects are named by handles, for all threads.
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
/// All users get `&T` only, except in [`alloc_with`](Self::alloc_with): mutable parts are atomics, locks or cells. An object
/// takes 16 bytes more than its value, and its index an entry of 16 bytes. Dropping the cache frees the objects in use.
///
/// A [fork](crate::Fork) of the subsystem does not take the lock of the numbers. If another thread held it at the fork, it
/// stays locked in the child for ever: a cache that other threads use belongs to the parent.
pub struct HandleCache<T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    objects: ObjectCache<Numbered<T>>,
    numbers: Arc<Numbers>,
    handles: PhantomData<fn() -> W>,
}

impl<T, W: Word, const GENERATION_BITS: u32> HandleCache<T, W, GENERATION_BITS> {
    /// Allocates an object, as its last user left it, and returns a handle.
    ///
    /// Cost: as [`ObjectCache::alloc`], plus a store. An object's first allocation takes a lock to number it.
    ///
    /// # Errors
    /// No object is available; or the available one has no index yet and all are in use. (Free objects with an index may be on
    /// another CPU: a cache that must hand out its very last index needs more bits.)
    ///
    /// # Panics
    /// If the constructor panics; no object is lost.
    #[doc(alias("insert", "spawn"))]
    pub fn alloc(&self) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        self.alloc_with(|_| ())
    }
    /// Allocates an object and runs `prepare` on it. If `prepare` panics, the object is freed.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); `prepare` is not run then.
    pub fn alloc_with(
        &self,
        prepare: impl FnOnce(&mut T),
    ) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        let mut object = self.objects.alloc()?;
        let (number, generation) = self.number(&mut object)?;
        planted!("an object is prepared while in use" => {
            let handle = Handle::new(number, generation).ok_or(HandleError::Memory)?;
            let entry = self.entry(handle).ok_or(HandleError::Memory)?;
            entry.begin(object.into_raw().as_ptr().cast(), generation);
            // SAFETY: allocated above. In the planted bug another thread may already hold it.
            prepare(unsafe { &mut (*entry.object().cast::<Numbered<T>>()).value });
            return Ok(handle);
        });
        prepare(&mut object.value);
        let (Some(entry), Some(handle)) = (self.numbers.entry(number), Handle::new(number, generation))
        else {
            // Unreachable: numbers and generations fit into a handle.
            return Err(HandleError::Memory);
        };
        entry.begin(object.into_raw().as_ptr().cast(), generation);
        Ok(handle)
    }

    /// The number of an object, and its next generation.
    fn number(&self, object: &mut Numbered<T>) -> Result<(u32, u32), HandleError<AllocError>> {
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

    /// Returns `true` if the handle's object is in use. Another thread may free it immediately after: to use it,
    /// [`get`](Self::get) it. Cost: two loads, one of them of a word that rarely changes; nothing is written.
    #[doc(alias("contains_key", "is_alive"))]
    #[inline]
    pub fn is_valid(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        self.entry(handle).is_some_and(|entry| entry.is_in(handle.generation()))
    }

    /// Holds the handle's object, so that it is not reallocated until the [`Held`] is dropped; `None` for a stale handle.
    ///
    /// Cost: as [`is_valid`](Self::is_valid), plus a locked instruction to hold it and another one to drop it.
    ///
    /// # Panics
    /// If the object has 2,147,483,647 holders, which were leaked.
    #[doc(alias("find", "at", "upgrade"))]
    #[inline]
    pub fn get(&self, handle: Handle<W, GENERATION_BITS>) -> Option<Held<'_, T, W, GENERATION_BITS>> {
        let entry = self.entry(handle)?;
        // Not before: dropping it would release a hold.
        entry.hold(handle.generation()).then(|| Held { cache: self, entry })
    }

    /// Frees the handle's object: all copies of the handle become stale, and the object is freed to the cache when the last
    /// holder drops it. Of several threads that free it, one gets `true`; `false` for a stale handle.
    ///
    /// Cost: a locked instruction and, without a holder, a free.
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
    fn give_back(&self, entry: &Entry, _: Last) {
        if let Some(object) = NonNull::new(entry.object().cast()) {
            // SAFETY: from `into_raw` of a box of this cache; there is one `Last` for each life, and no holder.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }

    /// Number of retired indexes.
    pub fn retired(&self) -> u64 {
        self.numbers.retired()
    }
    /// As [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation); concurrent allocations count as before or
    /// after the call.
    pub fn fresh_generation(&self) -> Option<u32> {
        self.numbers.fresh_generation()
    }
    /// Name of the cache.
    pub fn name(&self) -> &str {
        self.objects.name()
    }
    /// As [`KmemCache::shrink`](crate::KmemCache::shrink). Indexes of destructed objects are reused.
    pub fn shrink(&self) -> usize {
        self.objects.shrink()
    }
    /// As [`KmemCache::reap`](crate::KmemCache::reap).
    pub fn reap(&self) -> u64 {
        self.objects.reap()
    }
    /// Snapshot of the cache's numbers.
    pub fn info(&self) -> crate::CacheInfo {
        self.objects.info()
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Drop for HandleCache<T, W, GENERATION_BITS> {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        for object in self.numbers.out().filter_map(|object| NonNull::new(object.cast())) {
            // SAFETY: in use, or held by a leaked `Held`, because all others borrow this cache. From `into_raw` of a box of
            // this cache.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> fmt::Debug for HandleCache<T, W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandleCache").field(&self.name()).finish()
    }
}

/// An object of a [`HandleCache`] that is held: it is not reallocated, even if another thread frees it.
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
#[must_use = "dropping it lets go of the object"]
pub struct Held<'c, T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    cache: &'c HandleCache<T, W, GENERATION_BITS>,
    entry: &'c Entry,
}

impl<T, W: Word, const GENERATION_BITS: u32> Deref for Held<'_, T, W, GENERATION_BITS> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a held object is a constructed object of the cache, to which all users have `&` only.
        let object: &Numbered<T> = unsafe { &*self.entry.object().cast() };
        &object.value
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> Drop for Held<'_, T, W, GENERATION_BITS> {
    #[inline]
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        if let Some(last) = self.entry.let_go() {
            self.cache.give_back(self.entry, last);
        }
    }
}

impl<T: fmt::Debug, W: Word, const GENERATION_BITS: u32> fmt::Debug for Held<'_, T, W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// All threads share the objects, hence `T: Sync`; [`alloc_with`](HandleCache::alloc_with) replaces a reset.
impl<T: Send + Sync + 'static, C: Fn() -> T + Send + Sync + 'static> ObjectCacheBuilder<T, C> {
    /// Builds a cache of objects named by handles in the global subsystem: see [`HandleCache`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_handles<W: Word, const GENERATION_BITS: u32>(
        self,
        generations: impl Into<Generations>,
    ) -> Result<HandleCache<T, W, GENERATION_BITS>, CacheError> {
        self.build_handles_in(Subsystem::global()?, generations)
    }
    /// Builds such a cache in `subsystem`.
    ///
    /// # Errors
    /// As [`build_in`](Self::build_in).
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
        let numbers = Arc::new(Numbers::new(slots, last, generations));
        let made = numbers.clone();
        let numbered =
            move |construct: C| move || Numbered { value: construct(), number: None, numbers: made.clone() };
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

/// Sizes in the table of costs of [`handle`](super).
const _: () = {
    assert!(MODEL || size_of::<Numbered<u64>>() == 8 + 16 && size_of::<Entry>() == 16);
};

/// Types that threads must not share are rejected:
///
/// ```compile_fail,E0277
/// let builder = uslab::ObjectCache::builder("cell").ctor(|| std::cell::Cell::new(1));
/// let cells: uslab::handle::HandleCache<_> = builder.build_handles(uslab::handle::Generations::default()).unwrap();
/// ```
///
/// nor can an object outlive its cache:
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

    /// Nor may another thread take the last number meanwhile.
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

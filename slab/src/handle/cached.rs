//! Handles for objects of a cache, for many threads.
//!
//! The difficulty: between the moment a thread finds a handle valid and its last use of the object, another thread may free
//! the object, and a third one get it. What `get` can return, then:
//!
//! | way | a reader pays | what it may have | |
//! |---|---|---|---|
//! | copy, and compare the generation before and after (a seqlock) | two loads | a copy of words that are all atomics | no reference, no writes |
//! | a grace period (RCU) | a pin per thread | `&T` until it unpins | memory waits for the slowest reader; not in models |
//! | **a count of holders beside the generation** | two locked instructions | `&T` for as long as it likes | **this one** |
//!
//! The third is sound for every `T`, frees at the very moment the last user goes, has no rules for users to break, and runs in
//! models. A stale handle is still rejected by a load of its entry and writes nothing; `free` makes all copies of a handle stale at
//! once, and the object goes back to its cache when the last holder lets go. (sharded-slab keeps its references in the same
//! way; Weissflog, "Handles are the better pointers", 2018, says why to hand out handles at all.)
//!
//! Threads that hold the *same* object write to one cache line in turn, and entries of neighbours share one, four to a line.
//!
//! Underneath is an [`ObjectCache`]: objects never move, stay constructed, and wander through the magazines of CPUs with their
//! index on them, so allocation and free take no lock. See [`numbers`](super::numbers) for the word that threads agree on.

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

/// An object and the number that it keeps while it is constructed.
struct Numbered<T> {
    value: T,
    /// From the first allocation on.
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

/// A cache whose objects are named by handles, from any thread.
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
///     scope.spawn(|| sessions.free(session)); // who holds it keeps it until they let go
/// });
/// assert!(sessions.get(session).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Everybody sees `&T` only, but for [`alloc_with`](Self::alloc_with): what changes are atomics, locks, cells. Beside its
/// value an object has 16 bytes, and its index an entry of 16 bytes. Dropping the cache frees what is in use.
///
/// A [fork](crate::Fork) of the subsystem does not take the lock of the numbers. In the child, a thread that was numbering
/// then is numbering for ever: a cache that other threads used belongs to the parent.
pub struct HandleCache<T, W: Word = u64, const GENERATION_BITS: u32 = 32> {
    objects: ObjectCache<Numbered<T>>,
    numbers: Arc<Numbers>,
    handles: PhantomData<fn() -> W>,
}

impl<T, W: Word, const GENERATION_BITS: u32> HandleCache<T, W, GENERATION_BITS> {
    /// An object as its last user left it, and a handle of it.
    ///
    /// Cost: as [`ObjectCache::alloc`] and a store. An object's first allocation takes a lock to number it.
    ///
    /// # Errors
    /// No object is left; or the one at hand has no index yet and there is none left. (Free objects that have one may then
    /// lie with another CPU: a cache that is to hand out its very last index needs more bits.)
    ///
    /// # Panics
    /// When the constructor panics; nothing is lost then.
    #[doc(alias("insert", "spawn"))]
    pub fn alloc(&self) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        self.alloc_with(|_| ())
    }
    /// The same, when `prepare` has seen the object. If `prepare` panics, the object is free again.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); `prepare` does not run then.
    pub fn alloc_with(
        &self,
        prepare: impl FnOnce(&mut T),
    ) -> Result<Handle<W, GENERATION_BITS>, HandleError<AllocError>> {
        let mut object = self.objects.alloc()?;
        let (number, generation) = self.number(&mut object)?;
        planted!("an object is prepared in its life" => {
            let handle = Handle::new(number, generation).ok_or(HandleError::Memory)?;
            let entry = self.entry(handle).ok_or(HandleError::Memory)?;
            entry.begin(object.into_raw().as_ptr().cast(), generation);
            // SAFETY: allocated above. That others may have it by now is the bug.
            prepare(unsafe { &mut (*entry.object().cast::<Numbered<T>>()).value });
            return Ok(handle);
        });
        prepare(&mut object.value);
        let (Some(entry), Some(handle)) = (self.numbers.entry(number), Handle::new(number, generation))
        else {
            // Neither happens: numbers and generations are those of a handle.
            return Err(HandleError::Memory);
        };
        entry.begin(object.into_raw().as_ptr().cast(), generation);
        Ok(handle)
    }

    /// The number of an object, and its next life.
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

    /// Whether the handle's object is in use. Another thread may free it in the next moment: for use, [`get`](Self::get) it.
    /// Cost: two loads, one of them of a word that hardly ever changes; nothing is written.
    #[doc(alias("contains_key", "is_alive"))]
    #[inline]
    pub fn is_valid(&self, handle: Handle<W, GENERATION_BITS>) -> bool {
        self.entry(handle).is_some_and(|entry| entry.is_in(handle.generation()))
    }

    /// Holds the handle's object, so that it stays this one until the [`Held`] is dropped; `None` for a stale handle.
    ///
    /// Cost: as [`is_valid`](Self::is_valid), and a locked instruction each for holding it and letting it go.
    ///
    /// # Panics
    /// The object has 2,147,483,647 holders, which were forgotten.
    #[doc(alias("find", "at", "upgrade"))]
    #[inline]
    pub fn get(&self, handle: Handle<W, GENERATION_BITS>) -> Option<Held<'_, T, W, GENERATION_BITS>> {
        let entry = self.entry(handle)?;
        // Made only then: dropping one lets go.
        entry.hold(handle.generation()).then(|| Held { cache: self, entry })
    }

    /// Frees the handle's object: all copies of the handle are stale from now on, and the object goes back to the cache when
    /// the last one who holds it lets go. Of several threads that free it one gets `true`; `false` for a stale handle.
    ///
    /// Cost: a locked instruction and, with nobody holding the object, a free.
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
            // SAFETY: from `into_raw` of a box of this cache; there is one `Last` for each life, and nobody holds it.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }

    /// Indexes that are retired.
    pub fn retired(&self) -> u64 {
        self.numbers.retired()
    }
    /// As [`HandleTable::fresh_generation`](super::HandleTable::fresh_generation), beside allocations of other threads: of
    /// before or after them.
    pub fn fresh_generation(&self) -> Option<u32> {
        self.numbers.fresh_generation()
    }
    /// The cache's name.
    pub fn name(&self) -> &str {
        self.objects.name()
    }
    /// As [`KmemCache::shrink`](crate::KmemCache::shrink). Indexes of destructed objects are used again.
    pub fn shrink(&self) -> usize {
        self.objects.shrink()
    }
    /// As [`KmemCache::reap`](crate::KmemCache::reap).
    pub fn reap(&self) -> u64 {
        self.objects.reap()
    }
    /// The numbers now.
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
            // SAFETY: in use, or held by somebody who forgot it: all others borrow this cache. From `into_raw` of a box of it.
            drop(unsafe { CacheBox::from_raw(&self.objects, object) });
        }
    }
}

impl<T, W: Word, const GENERATION_BITS: u32> fmt::Debug for HandleCache<T, W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandleCache").field(&self.name()).finish()
    }
}

/// An object of a [`HandleCache`] that is held: it stays this object, whoever frees it meanwhile.
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
/// assert_eq!(sessions.info().used, 0); // now it has gone
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
        // SAFETY: held, so it is a constructed object of the cache, of which all who have it have `&` only.
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

/// Objects are shared by all threads, hence `T: Sync`; [`alloc_with`](HandleCache::alloc_with) takes the place of a reset.
impl<T: Send + Sync + 'static, C: Fn() -> T + Send + Sync + 'static> ObjectCacheBuilder<T, C> {
    /// A cache of objects named by handles, in the global subsystem: see [`HandleCache`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_handles<W: Word, const GENERATION_BITS: u32>(
        self,
        generations: impl Into<Generations>,
    ) -> Result<HandleCache<T, W, GENERATION_BITS>, CacheError> {
        self.build_handles_in(Subsystem::global()?, generations)
    }
    /// The same in `subsystem`.
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

/// As the table of costs in [`handle`](super) says.
const _: () = {
    assert!(MODEL || size_of::<Numbered<u64>>() == 8 + 16 && size_of::<Entry>() == 16);
};

/// Objects that threads must not share cannot be named so:
///
/// ```compile_fail,E0277
/// let builder = uslab::ObjectCache::builder("cell").ctor(|| std::cell::Cell::new(1));
/// let cells: uslab::handle::HandleCache<_> = builder.build_handles(uslab::handle::Generations::default()).unwrap();
/// ```
///
/// nor does an object outlive its cache in somebody's hands:
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
    fn an_object_that_has_a_number_is_named_without_the_lock_of_numbers() {
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

//! Hives: containers of values that never move (see [`Hive`]).

use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::cache::live::{Live, Run};
use crate::cache::per_cpu::Magazines;
use crate::error::{AllocError, CacheError};
use crate::subsystem::Subsystem;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use uslab_buddy::Gfp;
use uslab_magazine::sync::{FirstPanic, abandoned, relax, unique};

/// Maximum number of retries before an iteration panics; they take some seconds.
const MAX_ITERATION_RETRIES: u32 = 1 << 20;

/// A container of values that never move, stored in slabs. Iterations skip free slots.
///
/// C++26 calls this kind of container `std::hive` (Bentley, P0447): values keep their addresses, freed slots are
/// reused, and iteration skips holes. In a [`Hive`], the blocks are slabs of an object cache, and the skip fields are
/// the slabs' bitmaps. An iteration reads one word for 64 slots. A key identifies a value. Removing the value consumes
/// the key, so keys are never stale.
///
/// | operation | cost |
/// |---|---|
/// | [`insert`](Hive::insert), [`remove`](Hive::remove) | an allocation or a free of the cache, mostly in a magazine |
/// | [`get`](Hive::get) | one comparison |
/// | an iteration | a word for 64 places, and the values |
/// | the first iteration after a change | in addition, a drain of the magazines and a copy of the bitmaps, repeated while other threads flush objects from magazines |
///
/// Like a `Vec`, a hive has one owner at a time. To share objects between threads, use the cache directly.
///
/// In the child of a [fork](crate::Fork), a hive is usable unless another thread was reaping the hive's cache at the
/// fork. In the child, free slots that a reaping thread had taken look like values for ever. An iteration of a hive
/// panics after some seconds if free slots of the child look like values.
///
/// ```
/// use uslab::Hive;
///
/// let mut particles = Hive::new("particle")?;
/// let first = particles.insert([0.0_f32, 1.0])?;
/// let second = particles.insert([2.0, 3.0])?;
/// particles.remove(first);
/// particles.iter_mut().for_each(|particle| particle[0] += 1.0);
/// assert_eq!(particles.get(&second), &[3.0, 3.0]);
/// assert_eq!(particles.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hive<T> {
    cache: KmemCache,
    number: u64,
    len: usize,
    /// Snapshot of the values' addresses; outdated while `is_outdated` is set.
    live_entries: Live,
    is_outdated: bool,
    values: PhantomData<Slot<T>>,
}

/// A value stored in a slab. Without padding between objects, the slot's size is the slab's stride, so neighbouring
/// values form a slice.
#[repr(C, align(8))]
struct Slot<T>(T);

/// Key of a value of a [`Hive`]. If the key is dropped, the value stays until the hive is dropped.
///
/// ```
/// use uslab::Hive;
/// use uslab::objects::Key;
///
/// let mut sessions = Hive::new("session")?;
/// let session: Key<String> = sessions.insert(String::from("alice"))?;
/// sessions.get_mut(&session).push_str(" is idle");
/// assert_eq!(sessions.remove(session), "alice is idle"); // this consumes the key
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Key<T> {
    value: NonNull<T>,
    hive: u64,
}

// SAFETY: a hive owns its values, and a cache may be used from any thread.
unsafe impl<T: Send> Send for Hive<T> {}
// SAFETY: a shared hive only reads values; `Live` and the cache may be shared.
unsafe impl<T: Sync> Sync for Hive<T> {}
// SAFETY: a key accesses no value without the hive, and `remove` returns the `T` to the hive's owner.
unsafe impl<T> Send for Key<T> {}
// SAFETY: a shared key accesses no value without the hive.
unsafe impl<T> Sync for Key<T> {}

impl<T> Hive<T> {
    /// Makes a hive on the global subsystem. `name` is the cache's name in slabinfo.
    ///
    /// # Errors
    /// Fails if the subsystem does not start, or if `T` is too large for a [`KmemCache`].
    pub fn new(name: impl Into<String>) -> Result<Self, CacheError> {
        Ok(Self::on(Self::builder(name).build()?))
    }
    /// Makes a hive on subsystem `subsystem`.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does.
    pub fn new_in(
        name: impl Into<String>,
        subsystem: &Subsystem,
        magazines: Magazines,
    ) -> Result<Self, CacheError> {
        Ok(Self::on(Self::builder(name).magazines(magazines).build_in(subsystem)?))
    }
    pub(crate) fn builder(name: impl Into<String>) -> KmemCacheBuilder {
        // Values of size zero also get an object each, because the hive counts and iterates
        // objects.
        KmemCache::builder(name, size_of::<Slot<T>>().max(1)).align(align_of::<Slot<T>>()).unsampled()
    }
    pub(crate) fn on(cache: KmemCache) -> Self {
        Self {
            live_entries: cache.live(),
            cache,
            number: unique(),
            len: 0,
            is_outdated: false,
            values: PhantomData,
        }
    }

    /// Inserts a value into the hive.
    ///
    /// # Errors
    /// Fails if memory is short; the error returns the value.
    pub fn insert(&mut self, value: T) -> Result<Key<T>, Refused<T>> {
        match self.cache.alloc(Gfp::KERNEL) {
            Ok(object) => {
                let place = object.cast::<T>();
                // SAFETY: `place` was just allocated, with the size and alignment of a `T`, and is not shared.
                unsafe { place.write(value) };
                self.len += 1;
                self.is_outdated = true;
                Ok(Key { value: place, hive: self.number })
            }
            Err(error) => Err(Refused { value, error }),
        }
    }
    /// Removes the value that `key` identifies, and returns it.
    ///
    /// # Panics
    /// Panics if the key belongs to another hive.
    pub fn remove(&mut self, key: Key<T>) -> T {
        self.check_owner(&key);
        // SAFETY: the place was allocated from this cache, its value was moved out, and the key is consumed.
        let free = || unsafe { self.cache.free(key.value.cast()) };
        self.cache.touch(key.value.cast());
        // SAFETY: the key belongs to this hive, so its place contains a value. The value is moved out and the key
        // consumed.
        let value = unsafe { key.value.read() };
        free();
        self.len -= 1;
        self.is_outdated = true;
        value
    }
    /// Returns the value that the key identifies.
    ///
    /// # Panics
    /// Panics if the key belongs to another hive.
    pub fn get(&self, key: &Key<T>) -> &T {
        self.check_owner(key);
        // SAFETY: the key belongs to this hive, so its place contains a value, which stays while the hive is
        // borrowed.
        unsafe { key.value.as_ref() }
    }
    /// Returns the value that the key identifies, as a mutable reference.
    ///
    /// # Panics
    /// Panics if the key belongs to another hive.
    pub fn get_mut(&mut self, key: &Key<T>) -> &mut T {
        self.check_owner(key);
        let mut value = key.value;
        // SAFETY: the key belongs to this hive, so its place contains a value, and the hive is borrowed
        // exclusively.
        unsafe { value.as_mut() }
    }

    /// Number of values in the hive.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Returns `true` if the hive has no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Iterates over the values, slab by slab and in address order within each slab. The method takes `&mut self`
    /// because an iteration may refresh the snapshot.
    ///
    /// # Panics
    /// Panics as [`iter_mut`](Self::iter_mut) does.
    pub fn iter(&mut self) -> impl Iterator<Item = &T> {
        self.iter_mut().map(|value| &*value)
    }
    /// Iterates over the values as mutable references. [`for_each`](Iterator::for_each) is faster than a `for` loop.
    ///
    /// # Panics
    /// Panics if the magazines could not be drained for some seconds, because the system no longer permits
    /// `membarrier`.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let stride = self.cache.geometry().stride();
        // If objects have padding between them, such as red zones or canaries, each object is a
        // separate run.
        let side_by_side = stride == size_of::<Slot<T>>();
        let values = move |(first, count): Run| {
            let (slices, len) = if side_by_side { (1, count) } else { (count, 1) };
            (0..slices).flat_map(move |i| {
                // SAFETY: the objects of a run contain values, which stay while the hive is exclusively borrowed,
                // and belong to no other run. If a run has several objects, their stride is the size of `Slot<T>`.
                let places = unsafe {
                    NonNull::slice_from_raw_parts(first.add(i * stride).cast::<Slot<T>>(), len).as_mut()
                };
                places.iter_mut().map(|place| &mut place.0)
            })
        };
        assert!(
            self.refresh_live_entries(),
            "hive {}: no memory for the list of its places",
            self.cache.name()
        );
        self.live_entries.runs().flat_map(values)
    }
    /// Snapshot of the cache's statistics.
    pub fn info(&self) -> crate::CacheInfo {
        self.cache.info()
    }

    /// Refreshes `live_entries` until it contains exactly the addresses of values; returns `false` if that fails.
    ///
    /// The bit of a slot with a value is always set. The bits of free slots may also be set. A reap, or a thread short
    /// of memory, takes free objects out of magazines before it flushes them to slabs. No other thread allocates from
    /// the cache, so the number of free slots with set bits only decreases. Therefore, when the number of set bits
    /// equals the number of values, each set bit belongs to a value.
    fn refresh_live_entries(&mut self) -> bool {
        for _ in 0..MAX_ITERATION_RETRIES {
            if !self.is_outdated {
                return true;
            }
            self.cache.snapshot_live_objects(&mut self.live_entries);
            self.is_outdated = self.live_entries.len() != self.len;
            if self.is_outdated {
                relax();
            }
        }
        !self.is_outdated
    }
    #[track_caller]
    fn check_owner(&self, key: &Key<T>) {
        assert!(key.hive == self.number, "the key belongs to another hive than {}", self.cache.name());
    }
}

impl<T> Drop for Hive<T> {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // If the snapshot fails, leak the values and the cache.
        if !self.refresh_live_entries() {
            return;
        }
        let mut panics = FirstPanic::default();
        for object in self.live_entries.iter() {
            // SAFETY: the place contains a value of this cache, and nothing refers to the value any
            // more.
            unsafe {
                panics.catch(|| object.cast::<T>().drop_in_place());
                self.cache.free(object);
            }
        }
        panics.resume();
    }
}

impl<T> fmt::Debug for Hive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hive").field("cache", &self.cache).field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.value).finish()
    }
}

/// A value that could not be inserted into a hive.
///
/// ```
/// use uslab::faults::{self, Faults};
/// use uslab::{AllocError, Config, Hive, Magazines, Subsystem};
///
/// let mut config = Config::default();
/// config.pages.faults = Faults::new(1);
/// let faults = config.pages.faults.clone();
/// let mut sessions = Hive::new_in("session", &Subsystem::new(config)?, Magazines::BySize)?;
///
/// faults.arm(faults::parse("slab:cache=session,times=-1")?);
/// let refused = sessions.insert(String::from("alice")).err().ok_or("there was memory")?;
/// assert_eq!((&*refused.value, refused.error), ("alice", AllocError::Injected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Refused<T> {
    /// The value that was not inserted.
    pub value: T,
    /// Reason why the insertion failed.
    pub error: AllocError,
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl<T: fmt::Debug> core::error::Error for Refused<T> {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Config;
    use crate::cache::kmem_cache::Limit;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use uslab_magazine::sync::Ordering::Relaxed;

    fn subsystem() -> Subsystem {
        Subsystem::new(Config::default()).unwrap()
    }
    fn hive<T>() -> Hive<T> {
        Hive::new_in("hive", &subsystem(), Magazines::default()).unwrap()
    }

    proptest! {
        #[test]
        fn random_hive_operations_agree_with_a_vector(steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>()), 1..400)) {
            let mut hive = Hive::new("hive").unwrap();
            let mut entries: Vec<(Key<Rc<usize>>, Rc<usize>)> = Vec::new();
            for (i, (kind, index)) in steps.into_iter().enumerate() {
                match kind {
                    0..5 => {
                        let value = Rc::new(i);
                        entries.push((hive.insert(value.clone()).unwrap(), value));
                    }
                    5..7 if !entries.is_empty() => {
                        let (key, value) = entries.swap_remove(index.index(entries.len()));
                        prop_assert!(Rc::ptr_eq(hive.get(&key), &value));
                        prop_assert!(Rc::ptr_eq(&hive.remove(key), &value));
                    }
                    _ => {
                        let visited: BTreeSet<usize> = hive.iter().map(|value| **value).collect();
                        prop_assert_eq!(visited.len(), hive.iter_mut().count());
                        prop_assert_eq!(visited, entries.iter().map(|(_, value)| **value).collect::<BTreeSet<_>>());
                    }
                }
                prop_assert_eq!(hive.len(), entries.len());
            }
            drop(hive);
            for (_, value) in entries {
                prop_assert_eq!(Rc::strong_count(&value), 1, "the value must be dropped once, with the hive");
            }
        }
    }

    /// Regression test: an iteration visited free objects that a reaper had taken, and dropping the hive dropped these
    /// objects.
    #[test]
    fn hive_iteration_during_reaps_visits_only_values() {
        let subsystem = subsystem();
        let is_done = uslab_magazine::sync::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while is_done.load(Relaxed) == 0 {
                    subsystem.shrink();
                    subsystem.reap();
                }
            });
            for round in 0..200 {
                let mut hive = Hive::new_in("reaped", &subsystem, Magazines::default()).unwrap();
                let mut keys: Vec<_> = (0..500).map(|i| hive.insert(Box::new(i)).unwrap()).collect();
                let kept_keys = keys.split_off(round + 1);
                let sum: usize = kept_keys.iter().map(|key| **hive.get(key)).sum();
                keys.into_iter().for_each(|key| drop(hive.remove(key)));
                assert_eq!(
                    (hive.iter().count(), hive.iter().map(|value| **value).sum()),
                    (kept_keys.len(), sum)
                );
            }
            is_done.store(1, Relaxed);
        });
    }

    /// Regression test: creating a hive of zero-sized values failed, although a cache of zero-sized objects was
    /// possible.
    #[test]
    fn zero_sized_hive_values_are_counted_and_dropped() {
        thread_local!(static DROP_COUNT: core::cell::Cell<usize> = const { core::cell::Cell::new(0) });
        struct Token;
        impl Drop for Token {
            fn drop(&mut self) {
                DROP_COUNT.set(DROP_COUNT.get() + 1);
            }
        }
        let mut hive = hive::<Token>();
        let mut keys: Vec<_> = (0..1000).map(|_| hive.insert(Token).ok().unwrap()).collect();
        keys.drain(..400).for_each(|key| drop(hive.remove(key)));
        assert_eq!(
            (DROP_COUNT.get(), hive.len(), hive.iter().count(), hive.iter_mut().count()),
            (400, 600, 600, 600)
        );
        drop(hive);
        assert_eq!(DROP_COUNT.get(), 1000);
        assert_eq!(Hive::<()>::new("unit").unwrap().iter().count(), 0);
    }

    /// Regression test: an iteration mistook padding between objects for values. Regression test: if some allocations
    /// were guard samples, an iteration never ended, because samples are in no slab.
    #[test]
    fn hive_iteration_skips_red_zones_and_canaries() {
        let changes: [fn(&mut Config); 3] = [
            |config| config.harden = crate::Harden::ALL,
            |config| config.slab_debug = "FZPU".parse().unwrap(),
            |config| config.guard_every = 1,
        ];
        for change in changes {
            let mut config = Config::default();
            change(&mut config);
            let subsystem = Subsystem::new(config).unwrap();
            let mut hive = Hive::new_in("hive", &subsystem, Magazines::default()).unwrap();
            let value = Rc::new(());
            let mut keys: Vec<_> =
                (0..300).map(|i| hive.insert((i, [(); 5].map(|()| value.clone()))).unwrap()).collect();
            keys.drain(..100).for_each(|key| drop(hive.remove(key)));
            let mut visited: Vec<_> = hive.iter().map(|(i, _)| *i).collect();
            visited.sort_unstable();
            assert!(visited.into_iter().eq(100..300));
            hive.iter_mut().for_each(|(i, _)| *i += 1000);
            assert!(keys.iter().zip(100..).all(|(key, i)| hive.get(key).0 == i + 1000));
            drop(hive);
            assert_eq!(Rc::strong_count(&value), 1);
        }
    }

    /// Regression test: a panicking `Drop` of one value leaked all later values and the cache.
    #[test]
    fn panic_dropping_a_hive_value_drops_the_remaining_values() {
        struct Panics(#[allow(dead_code, reason = "counted")] Rc<()>, bool);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(!self.1, "intended panic");
            }
        }
        let (subsystem, value) = (subsystem(), Rc::new(()));
        let mut hive = Hive::new_in("panics", &subsystem, Magazines::default()).unwrap();
        (0..100).for_each(|i| _ = hive.insert(Panics(value.clone(), i == 3)).ok().unwrap());
        uslab_magazine::sync::catch_panic(|| drop(hive)).unwrap_err();
        assert_eq!(Rc::strong_count(&value), 1);
        assert!(subsystem.info().caches.iter().all(|cache| cache.name != "panics"));
    }

    #[test]
    #[should_panic(expected = "the key belongs to another hive than hive")]
    fn hive_panics_on_a_key_from_another_hive() {
        let (mut hive_a, hive_b) = (hive(), hive::<u64>());
        let key = hive_a.insert(1).unwrap();
        hive_b.get(&key);
    }

    #[test]
    fn failed_hive_insert_returns_the_value() {
        let subsystem = subsystem();
        let mut hive = Hive::new_in("one", &subsystem, Magazines::default()).unwrap();
        hive.cache = KmemCache::builder("limited", 8).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let insert_error = loop {
            if let Err(insert_error) = hive.insert(7_u64) {
                break insert_error;
            }
        };
        assert_eq!((insert_error.value, insert_error.to_string().is_empty()), (7, false));
        assert_eq!(hive.iter().count(), hive.len());
    }
}

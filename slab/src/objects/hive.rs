//! Values that never move: see [`Hive`].

use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::cache::live::{Live, Run};
use crate::cache::per_cpu::Magazines;
use crate::error::{AllocError, CacheError};
use crate::subsystem::Subsystem;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use uslab_buddy::Gfp;
use uslab_magazine::sync::{FirstPanic, abandoned, planted, relax, unique};

/// How often a hive looks again: seconds.
const PATIENCE: u32 = 1 << 20;

/// Values of one type that never move, kept in slabs, and walked without looking at what is free.
///
/// What C++26 calls `std::hive` (Bentley, P0447): growing, values stay where they are, freed places are taken again, and a
/// walk over all values skips holes. Here slabs of an object cache are its blocks and their bitmaps its skip field: a walk
/// reads a word for 64 places. A value is named by a key that is moved, not copied, so that none can be stale.
///
/// | | costs |
/// |---|---|
/// | [`insert`](Hive::insert), [`remove`](Hive::remove) | an allocation, a free of the cache: a magazine's, mostly |
/// | [`get`](Hive::get) | one comparison |
/// | a walk | a word for 64 places, and the values |
/// | the first walk after a change | besides, the magazines are emptied, and the bitmaps copied, and again while others give back what they took from magazines |
///
/// For one owner at a time, as a `Vec`. To share objects between threads, use the cache itself.
///
/// In the child of a [fork](crate::Fork) it can be walked and dropped only if no other thread was reaping its cache at the fork: free places
/// that such a thread had in hand look like values for ever, and a walk panics after some seconds.
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
    /// Of all hives that ever were, only this one has it.
    number: u64,
    len: usize,
    /// Where the values are, unless something changed since.
    live: Live,
    stale: bool,
    values: PhantomData<Slot<T>>,
}

/// A value as it lies in its slab: as far from the next one as the slab's objects are, unless something lies between them, so that
/// neighbours are a slice.
#[repr(C, align(8))]
struct Slot<T>(T);

/// Names a value of a [`Hive`]. Whoever drops it leaves the value where it is, until the hive goes.
///
/// ```
/// use uslab::Hive;
/// use uslab::objects::Key;
///
/// let mut sessions = Hive::new("session")?;
/// let session: Key<String> = sessions.insert(String::from("alice"))?;
/// sessions.get_mut(&session).push_str(" is idle");
/// assert_eq!(sessions.remove(session), "alice is idle"); // the key has gone with the value
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Key<T> {
    value: NonNull<T>,
    /// The number of the hive.
    hive: u64,
}

// SAFETY: a hive owns its values, and a cache may be used from any thread.
unsafe impl<T: Send> Send for Hive<T> {}
// SAFETY: through a shared hive values are only read; `Live` and the cache may be shared.
unsafe impl<T: Sync> Sync for Hive<T> {}
// SAFETY: a key alone reaches nothing: each use goes through the hive, and `remove` gives a `T` to whoever has the hive.
unsafe impl<T> Send for Key<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Key<T> {}

impl<T> Hive<T> {
    /// A hive on the global subsystem. The name is the cache's, in slabinfo.
    ///
    /// # Errors
    /// As for a [`KmemCache`]: the subsystem does not start, or a `T` has too many bytes.
    pub fn new(name: impl Into<String>) -> Result<Self, CacheError> {
        Ok(Self::on(Self::builder(name).build()?))
    }
    /// A hive on a subsystem of the caller's.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_in(
        name: impl Into<String>,
        subsystem: &Subsystem,
        magazines: Magazines,
    ) -> Result<Self, CacheError> {
        Ok(Self::on(Self::builder(name).magazines(magazines).build_in(subsystem)?))
    }
    pub(crate) fn builder(name: impl Into<String>) -> KmemCacheBuilder {
        // Values without bytes have places all the same: a place is what is counted and walked.
        KmemCache::builder(name, size_of::<Slot<T>>().max(1)).align(align_of::<Slot<T>>()).unsampled()
    }
    pub(crate) fn on(cache: KmemCache) -> Self {
        Self { live: cache.live(), cache, number: unique(), len: 0, stale: false, values: PhantomData }
    }

    /// Keeps a value.
    ///
    /// # Errors
    /// There is no memory; the value comes back.
    pub fn insert(&mut self, value: T) -> Result<Key<T>, Refused<T>> {
        match self.cache.alloc(Gfp::KERNEL) {
            Ok(object) => {
                let place = object.cast::<T>();
                // SAFETY: allocated just now, with the size and alignment of a `T`, and nobody else has it.
                unsafe { place.write(value) };
                self.len += 1;
                self.stale = true;
                Ok(Key { value: place, hive: self.number })
            }
            Err(error) => Err(Refused { value, error }),
        }
    }
    /// Takes a value out.
    ///
    /// # Panics
    /// The key is another hive's.
    pub fn remove(&mut self, key: Key<T>) -> T {
        self.own(&key);
        // SAFETY: allocated from there, nothing is in it any more, and the key is gone.
        let free = || unsafe { self.cache.free(key.value.cast()) };
        planted!("a hive reads a value whose place is free" => free());
        self.cache.touch(key.value.cast());
        // SAFETY: the key is of this hive, so its place holds a value, and it goes with the key.
        let value = unsafe { key.value.read() };
        planted!("a hive reads a value whose place is free" => { self.len -= 1; self.stale = true; return value; });
        free();
        self.len -= 1;
        self.stale = true;
        value
    }
    /// The value of a key.
    ///
    /// # Panics
    /// The key is another hive's.
    pub fn get(&self, key: &Key<T>) -> &T {
        self.own(key);
        // SAFETY: the key is of this hive, so its place holds a value, which stays while the hive is borrowed.
        unsafe { key.value.as_ref() }
    }
    /// The value of a key, to change.
    ///
    /// # Panics
    /// The key is another hive's.
    pub fn get_mut(&mut self, key: &Key<T>) -> &mut T {
        self.own(key);
        let mut value = key.value;
        // SAFETY: as in `get`; and the hive is borrowed exclusively, so this is the only way to a value.
        unsafe { value.as_mut() }
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Its values, in the order of their places in each slab. Exclusive because it may have to look which places are in use.
    ///
    /// # Panics
    /// As [`iter_mut`](Self::iter_mut).
    pub fn iter(&mut self) -> impl Iterator<Item = &T> {
        self.iter_mut().map(|value| &*value)
    }
    /// Its values, to change. [`for_each`](Iterator::for_each) goes faster than a loop.
    ///
    /// # Panics
    /// For some seconds magazines could not be emptied: the system refuses the `membarrier` that it allowed at the start.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let stride = self.cache.geometry().stride();
        // Where something lies between them, as red zones or canaries, each is alone.
        let side_by_side = stride == size_of::<Slot<T>>();
        let values = move |(first, count): Run| {
            let (slices, len) = if side_by_side { (1, count) } else { (count, 1) };
            (0..slices).flat_map(move |i| {
                // SAFETY: an object of the run; each holds a value, which stays while the hive is borrowed, and is in one run only, and
                // nobody else has the hive. More than one lie as far apart as `Slot<T>`s.
                let places = unsafe {
                    NonNull::slice_from_raw_parts(first.add(i * stride).cast::<Slot<T>>(), len).as_mut()
                };
                places.iter_mut().map(|place| &mut place.0)
            })
        };
        assert!(self.look(), "nobody can tell which places of {} are in use", self.cache.name());
        self.live.runs().flat_map(values)
    }
    /// The numbers of its cache.
    pub fn info(&self) -> crate::CacheInfo {
        self.cache.info()
    }

    /// Sees to it that `live` names the places of the values and no others; `false` if that cannot be had.
    ///
    /// The place of a value is always among those whose bits are set. So may be others: who reaps the cache, or is short of
    /// memory, takes what is free out of the magazines before he gives it back to the slabs. As nobody else uses the
    /// cache, these become fewer, and when there are as many as values, they are the values'.
    fn look(&mut self) -> bool {
        for _ in 0..PATIENCE {
            if !self.stale {
                return true;
            }
            self.cache.live_into(&mut self.live);
            self.stale = self.live.len() != self.len;
            planted!("a hive takes a set bit for a value" => self.stale = false);
            if self.stale {
                relax();
            }
        }
        !self.stale
    }
    #[track_caller]
    fn own(&self, key: &Key<T>) {
        assert!(key.hive == self.number, "the key of another hive was used on {}", self.cache.name());
    }
}

impl<T> Drop for Hive<T> {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // Else they stay, and so does the cache.
        if !self.look() {
            return;
        }
        let mut panics = FirstPanic::default();
        for object in self.live.iter() {
            // SAFETY: in use, so it holds a value, which nobody can reach any more; its place was allocated from there.
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

/// A value that found no memory.
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
    /// The value.
    pub value: T,
    /// Why.
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
        /// Against a vector of the same values, with a walk now and then.
        #[test]
        fn hive_against_a_vector(steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>()), 1..400)) {
            let mut hive = Hive::new("hive").unwrap();
            let mut held: Vec<(Key<Rc<usize>>, Rc<usize>)> = Vec::new();
            for (i, (what, index)) in steps.into_iter().enumerate() {
                match what {
                    0..5 => {
                        let value = Rc::new(i);
                        held.push((hive.insert(value.clone()).unwrap(), value));
                    }
                    5..7 if !held.is_empty() => {
                        let (key, value) = held.swap_remove(index.index(held.len()));
                        prop_assert!(Rc::ptr_eq(hive.get(&key), &value));
                        prop_assert!(Rc::ptr_eq(&hive.remove(key), &value));
                    }
                    _ => {
                        let walked: BTreeSet<usize> = hive.iter().map(|value| **value).collect();
                        prop_assert_eq!(walked.len(), hive.iter_mut().count());
                        prop_assert_eq!(walked, held.iter().map(|(_, value)| **value).collect::<BTreeSet<_>>());
                    }
                }
                prop_assert_eq!(hive.len(), held.len());
            }
            drop(hive);
            for (_, value) in held {
                prop_assert_eq!(Rc::strong_count(&value), 1, "dropped with the hive, once");
            }
        }
    }

    /// Found: what a reaper had in hand was walked over, and dropped with the hive.
    #[test]
    fn a_walk_beside_reaps_finds_the_values_only() {
        let subsystem = subsystem();
        let done = uslab_magazine::sync::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Relaxed) == 0 {
                    subsystem.shrink();
                    subsystem.reap();
                }
            });
            for round in 0..200 {
                let mut hive = Hive::new_in("reaped", &subsystem, Magazines::default()).unwrap();
                let mut keys: Vec<_> = (0..500).map(|i| hive.insert(Box::new(i)).unwrap()).collect();
                let kept = keys.split_off(round + 1);
                let sum: usize = kept.iter().map(|key| **hive.get(key)).sum();
                keys.into_iter().for_each(|key| drop(hive.remove(key)));
                assert_eq!((hive.iter().count(), hive.iter().map(|value| **value).sum()), (kept.len(), sum));
            }
            done.store(1, Relaxed);
        });
    }

    /// Found: a hive of values without bytes was refused, where a cache of such objects was not.
    #[test]
    fn values_without_bytes_are_counted_walked_and_dropped() {
        thread_local!(static DROPS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) });
        struct Token;
        impl Drop for Token {
            fn drop(&mut self) {
                DROPS.set(DROPS.get() + 1);
            }
        }
        let mut hive = hive::<Token>();
        let mut keys: Vec<_> = (0..1000).map(|_| hive.insert(Token).ok().unwrap()).collect();
        keys.drain(..400).for_each(|key| drop(hive.remove(key)));
        assert_eq!(
            (DROPS.get(), hive.len(), hive.iter().count(), hive.iter_mut().count()),
            (400, 600, 600, 600)
        );
        drop(hive);
        assert_eq!(DROPS.get(), 1000);
        assert_eq!(Hive::<()>::new("unit").unwrap().iter().count(), 0);
    }

    /// Found: a walk took what lies between objects for values, and never ended where some allocations were samples, in no slab.
    #[test]
    fn values_are_found_among_red_zones_and_canaries_and_are_no_samples() {
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
            let mut walked: Vec<_> = hive.iter().map(|(i, _)| *i).collect();
            walked.sort_unstable();
            assert!(walked.into_iter().eq(100..300));
            hive.iter_mut().for_each(|(i, _)| *i += 1000);
            assert!(keys.iter().zip(100..).all(|(key, i)| hive.get(key).0 == i + 1000));
            drop(hive);
            assert_eq!(Rc::strong_count(&value), 1);
        }
    }

    /// Found: what came behind it stayed, and so did the cache.
    #[test]
    fn a_value_that_panics_as_it_is_dropped_keeps_no_other_one() {
        struct Panics(#[allow(dead_code, reason = "counted")] Rc<()>, bool);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(!self.1, "on purpose");
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
    #[should_panic(expected = "the key of another hive was used on hive")]
    fn the_key_of_another_hive_is_noticed() {
        let (mut one, other) = (hive(), hive::<u64>());
        let key = one.insert(1).unwrap();
        other.get(&key);
    }

    #[test]
    fn a_value_without_memory_comes_back() {
        let subsystem = subsystem();
        let mut hive = Hive::new_in("one", &subsystem, Magazines::default()).unwrap();
        hive.cache = KmemCache::builder("limited", 8).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let refused = loop {
            if let Err(refused) = hive.insert(7_u64) {
                break refused;
            }
        };
        assert_eq!((refused.value, refused.to_string().is_empty()), (7, false));
        assert_eq!(hive.iter().count(), hive.len());
    }
}

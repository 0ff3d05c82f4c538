//! Shadow model of a simulation. The shadow model records the owner of all memory independently of the subsystem.

use super::*;

/// Origin of memory, which determines the function that frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The cache in the given slot; the second field is the number of the cache.
    Cache(usize, u64),
    /// Any cache, including the caches of kmalloc.
    Any,
    Pool,
    Large(Order),
    Huge,
    Pages(Pfn, Order),
}

/// Memory that has an owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    /// Number of leading bytes that the constructor has written.
    pub(super) made: usize,
    pub(super) stamp: u64,
    pub(super) of: Origin,
}

impl Object {
    /// Iterates over the words of the memory that its owner writes.
    pub(super) fn words(self) -> impl Iterator<Item = *mut u64> {
        let last = self.len / 8 * 8 - 8;
        let offsets = (self.made..last).step_by(504).chain((last >= self.made).then_some(last));
        offsets.map(move |offset| self.at.as_ptr().wrapping_add(offset).cast())
    }
    pub(super) fn write(self) {
        // SAFETY: the memory's owner writes within the object.
        self.words().for_each(|word| unsafe { word.write(self.stamp ^ word.addr() as u64) });
    }
    #[track_caller]
    pub(super) fn verify(self, what: &str) {
        // SAFETY: the memory stays as long as it has an owner or a reader.
        let is_unchanged = self.words().all(|word| unsafe { word.read() } == self.stamp ^ word.addr() as u64);
        assert!(is_unchanged, "{what} changed");
        // SAFETY: the memory stays as long as it has an owner or a reader.
        let constructed_value = || unsafe { self.at.cast::<u64>().read() };
        assert!(self.made == 0 || constructed_value() == CONSTRUCTED_VALUE, "{what} is not constructed");
    }
}

/// Expected owners of all memory, derived from the operations so far.
#[derive(Default)]
pub(super) struct OwnershipLedger {
    pub(super) stamps: u64,
    pub(super) owned: BTreeMap<usize, Object>,
    /// Objects that wait for readers, each with its stamp and the readers for which it waits.
    pub(super) waiting: BTreeMap<usize, (u64, Vec<u64>)>,
    pub(super) readers: BTreeSet<u64>,
    /// Objects passed to other threads. `hoard` has the objects kept for the shrinker.
    pub(super) posted: Vec<Object>,
    pub(super) hoard: Vec<Object>,
    pub(super) handles: Vec<NamedObject>,
    /// Number of the pool's objects that users have, including objects in transit. `pool_most` is the maximum since
    /// each thread's operation began.
    pub(super) pool_out: usize,
    pub(super) pool_most: [usize; 8],
    /// Waiters at a limit, keyed by the time at which their wait began.
    pub(super) queued: BTreeMap<u64, QueuedFree>,
}
pub(super) struct QueuedFree {
    pub(super) cache: usize,
    pub(super) joined: u64,
    /// True if a later waiter has already been served.
    pub(super) is_due: bool,
}
impl OwnershipLedger {
    pub(super) fn now(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
    /// Records that the waiter whose wait began at time `begun` got an object of this cache. All earlier waiters of the
    /// cache must already have an object.
    pub(super) fn record_served(&mut self, cache: usize, begun: u64) {
        self.queued.remove(&begun);
        let before = self.queued.values_mut().filter(|other| other.cache == cache && other.joined < begun);
        before.for_each(|other| other.is_due = true);
    }
}
#[derive(Clone, Copy)]
pub(super) struct NamedObject {
    pub(super) handle: Handle,
    pub(super) value: u64,
    pub(super) freeing: u32,
    pub(super) freed: bool,
}

/// The recorded owners of memory, and the set of constructed objects. All threads of an execution run on one system
/// thread. No thread keeps a borrow while the execution switches threads.
#[derive(Default)]
pub(super) struct Shadow {
    pub(super) books: RefCell<OwnershipLedger>,
    pub(super) made: RefCell<BTreeSet<usize>>,
    /// Error that a destructor has found, if any. The destructor stores the error here, because a panic of a destructor
    /// would be contained.
    pub(super) destructed: Cell<Option<&'static str>>,
}
// SAFETY: all threads run on one system thread, and no borrow is kept across a switch of threads.
unsafe impl Sync for Shadow {}
// SAFETY: all threads run on one system thread, and no borrow is kept across a switch of threads.
unsafe impl Send for Shadow {}

impl Shadow {
    #[track_caller]
    pub(super) fn adopt(&self, mut object: Object) -> Object {
        let books = &mut *self.books.borrow_mut();
        let (start, end) = (object.at.addr().get(), object.at.addr().get() + object.len);
        let lower_owner = books.owned.range(..end).next_back();
        let is_disjoint = lower_owner.is_none_or(|(other, owned)| other + owned.len <= start);
        assert!(is_disjoint, "memory has one owner");
        let waits: Vec<_> = books.waiting.range(start..end).map(|(at, _)| *at).collect();
        for at in waits {
            let (_, readers) = books.waiting.remove(&at).unwrap_or_default();
            let seen = readers.iter().any(|reader| books.readers.contains(reader));
            assert!(!seen, "an allocation returns memory that a reader may read");
        }
        books.stamps += 1;
        object.stamp = books.stamps << 32;
        object.write();
        books.owned.insert(start, object);
        object
    }
    /// Removes the owner of memory that will be freed next.
    #[track_caller]
    pub(super) fn remove_owner(&self, object: Object) {
        object.verify("an object in use");
        let removed = self.books.borrow_mut().owned.remove(&object.at.addr().get());
        assert!(removed.is_some(), "each object has an owner");
    }
    pub(super) fn verify(&self) {
        assert_eq!(self.destructed.get(), None);
        self.books.borrow().owned.values().for_each(|object| object.verify("an object in use"));
    }
    pub(super) fn count(&self, of: impl Fn(Origin) -> u64) -> u64 {
        self.books.borrow().owned.values().map(|object| of(object.of)).sum()
    }
}

/// Objects kept to save work, which the shrinker frees when memory is short.
pub(super) struct Hoard(pub(super) Arc<Shadow>, pub(super) std::sync::Weak<Core>);

impl Shrinker for Hoard {
    fn count(&self) -> usize {
        self.0.books.borrow().hoard.len()
    }
    fn scan(&self, objects: usize, _: Gfp) -> usize {
        let Some(core) = self.1.upgrade() else { return 0 };
        let pop = |_: &usize| self.0.books.borrow_mut().hoard.pop();
        let dropped = (0..objects).map_while(|i| pop(&i));
        dropped
            .map(|object| {
                self.0.remove_owner(object);
                // SAFETY: the object no longer has a user.
                unsafe { core.free(object.at) };
            })
            .count()
    }
}

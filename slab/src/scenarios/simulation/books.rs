//! What a simulation knows of who has what, beside the subsystem.

use super::*;

/// How memory was had, and so how it goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Of the cache in that slot, the so-manieth there.
    Cache(usize, u64),
    /// Of any cache: kmalloc's, too.
    Any,
    Pool,
    Large(Order),
    Huge,
    Pages(Pfn, Order),
}

/// Memory in somebody's hands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    /// Bytes at its beginning that are the constructor's.
    pub(super) made: usize,
    pub(super) stamp: u64,
    pub(super) of: Of,
}

impl Object {
    /// The words that its owner writes.
    pub(super) fn words(self) -> impl Iterator<Item = *mut u64> {
        let last = self.len / 8 * 8 - 8;
        let offsets = (self.made..last).step_by(504).chain((last >= self.made).then_some(last));
        offsets.map(move |offset| self.at.as_ptr().wrapping_add(offset).cast())
    }
    pub(super) fn write(self) {
        // SAFETY: its owner writes within it.
        self.words().for_each(|word| unsafe { word.write(self.stamp ^ word.addr() as u64) });
    }
    #[track_caller]
    pub(super) fn verify(self, what: &str) {
        // SAFETY: as above; the memory is there as long as it has an owner, or a reader.
        let whole = self.words().all(|word| unsafe { word.read() } == self.stamp ^ word.addr() as u64);
        assert!(whole, "{what} changed");
        // SAFETY: as above.
        let made = || unsafe { self.at.cast::<u64>().read() };
        assert!(self.made == 0 || made() == MADE, "{what} is not constructed");
    }
}

/// Who has what, by the operations.
#[derive(Default)]
pub(super) struct Books {
    pub(super) stamps: u64,
    pub(super) owned: BTreeMap<usize, Object>,
    /// Those that wait for readers: their stamp, and for which.
    pub(super) waiting: BTreeMap<usize, (u64, Vec<u64>)>,
    pub(super) readers: BTreeSet<u64>,
    /// What others are given, and what a shrinker drops.
    pub(super) posted: Vec<Object>,
    pub(super) hoard: Vec<Object>,
    pub(super) handles: Vec<Named>,
    /// Of the pool, those on their way included; and the most since each thread's operation began.
    pub(super) pool_out: usize,
    pub(super) pool_most: [usize; 8],
    /// Who waits at a limit, by when he began.
    pub(super) queued: BTreeMap<u64, Queued>,
}
/// What is known of one who waits.
pub(super) struct Queued {
    /// Which cache's, by its address.
    pub(super) cache: usize,
    /// When he had his place.
    pub(super) joined: u64,
    /// Somebody was served who began behind that.
    pub(super) is_due: bool,
}
impl Books {
    pub(super) fn now(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
    /// Who began at `begun` got an object of this cache: so have all who waited before.
    pub(super) fn served(&mut self, cache: usize, begun: u64) {
        self.queued.remove(&begun);
        let before = self.queued.values_mut().filter(|other| other.cache == cache && other.joined < begun);
        before.for_each(|other| other.is_due = true);
    }
}
/// What is known of a handle.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) handle: Handle,
    pub(super) value: u64,
    pub(super) freeing: u32,
    pub(super) freed: bool,
}

/// The books, and the set of objects that are constructed. All threads of an execution are on one of the system's, and nobody keeps
/// them borrowed where another may run.
#[derive(Default)]
pub(super) struct Shadow {
    pub(super) books: RefCell<Books>,
    pub(super) made: RefCell<BTreeSet<usize>>,
    /// A destructor's complaint, whose panic would stay with it.
    pub(super) destructed: Cell<Option<&'static str>>,
}
// SAFETY: as said there.
unsafe impl Sync for Shadow {}
// SAFETY: as above.
unsafe impl Send for Shadow {}

impl Shadow {
    /// Memory has an owner from now on.
    #[track_caller]
    pub(super) fn adopt(&self, mut object: Object) -> Object {
        let books = &mut *self.books.borrow_mut();
        let (start, end) = (object.at.addr().get(), object.at.addr().get() + object.len);
        let below = books.owned.range(..end).next_back();
        let apart = below.is_none_or(|(other, owned)| other + owned.len <= start);
        assert!(apart, "memory with two owners");
        let waits: Vec<_> = books.waiting.range(start..end).map(|(at, _)| *at).collect();
        for at in waits {
            let (_, readers) = books.waiting.remove(&at).unwrap_or_default();
            let seen = readers.iter().any(|reader| books.readers.contains(reader));
            assert!(!seen, "memory is handed out that a reader may look at");
        }
        books.stamps += 1;
        object.stamp = books.stamps << 32;
        object.write();
        books.owned.insert(start, object);
        object
    }
    /// It is about to be given back: it has none any more.
    #[track_caller]
    pub(super) fn disown(&self, object: Object) {
        object.verify("an object in use");
        let known = self.books.borrow_mut().owned.remove(&object.at.addr().get());
        assert!(known.is_some(), "an object of nobody");
    }
    pub(super) fn verify(&self) {
        assert_eq!(self.destructed.get(), None);
        self.books.borrow().owned.values().for_each(|object| object.verify("an object in use"));
    }
    pub(super) fn count(&self, of: impl Fn(Of) -> u64) -> u64 {
        self.books.borrow().owned.values().map(|object| of(object.of)).sum()
    }
}

/// Objects that are kept to save work, and go when memory is short.
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
                self.0.disown(object);
                // SAFETY: nobody has it any more.
                unsafe { core.free(object.at) };
            })
            .count()
    }
}

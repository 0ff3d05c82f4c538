//! The whole subsystem in one world: pages, magazines, caches, kmalloc, handles, hives, a mempool, a shrinker, limits, reaping,
//! who waits at them, frees that wait for readers, checked frees, forks and their children, and faults, under shuttle, with a shadow of who has what.
//!
//! As FoundationDB and TigerBeetle test themselves: a seed draws a [script] and the schedule that it runs under, so a failure is a number.
//! `WORLD_SEED=n` repeats it. One that fails is shrunk to a script of a few lines, which is written to a file; `WORLD_SCRIPT=file`
//! runs that. Those in `kept/` are of bugs that were found, and run with the tests. `WORLD_SECONDS=s` goes on for so long,
//! `WORLD_FROM=n` from that seed, `SHARD=i/n` with a share of them.
//!
//! What is asserted:
//!
//! - always: no memory has two owners; what an owner wrote stays; an object is constructed once and stays so; memory that a reader
//!   may look at is not handed out; nobody has more slabs than its limit; a free that cannot be right is refused, and nothing else;
//! - of who waits at a limit: nobody who came later is served before; who gives up leaves what he was given to the next;
//! - of a refusal: it is one of those that there may be, and nothing was taken;
//! - when all rest: who waits and was told nothing has nothing to take; the census, whose numbers are those of the shadow; magazines and depots hold no more than they may; views of caches
//!   and of CPUs' pages show each object that is out in one place, and nothing else;
//! - in the end: one cache alone gets all the memory there is, twice, and all goes back.

mod ops;
mod script;

use crate::cache::Acquiring;
use crate::cache::core::Core;
use crate::debug::check::SPACING;
use crate::debug::corruption::{Corruption, CorruptionKind};
use crate::debug::faults::{POINTS, Rule};
use crate::error::AllocError;
use crate::geometry::OrderRule;
use crate::handle::{Generations, Handle, HandleCache};
use crate::objects::hive::Key;
use crate::size::kmalloc::Kmalloc;
use crate::{
    Config, Faults, Gfp, Hive, KmemCache, Limit, Magazines, Mempool, ObjectCache, Registration, Shrinker,
    SlabList, Subsystem, rcu,
};
use core::cell::{Cell, RefCell};
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use script::{CacheSetup, Op, Script};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};
use uslab_buddy::{Order, PageConfig, Pfn, ZoneKind};
use uslab_magazine::sync::schedule::{catch, forget_threads, has_bug, once, plant, shard, threads};
use uslab_magazine::sync::shard::Shard;
use uslab_magazine::sync::{Counter, thread, thread_local};
use uslab_magazine::{Cpus, Mechanism, Script as Cpu, on_cpu};

/// Of an execution: one of some hundred operations has ten thousand.
const STEPS: usize = 300_000;
/// What a constructor writes to an object.
const MADE: u64 = 0x6d61_6465_6d61_6465;

thread_local! {
    /// The number of the thread, and the refusals that what it does should bring.
    static ME: Cell<usize> = Cell::new(0);
    static EXPECTED: Cell<&'static [CorruptionKind]> = Cell::new(&[]);
    static REFUSED: Cell<u32> = Cell::new(0);
}

/// How memory was had, and so how it goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
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
struct Object {
    at: NonNull<u8>,
    len: usize,
    /// Bytes at its beginning that are the constructor's.
    made: usize,
    stamp: u64,
    of: Of,
}

impl Object {
    /// The words that its owner writes.
    fn words(self) -> impl Iterator<Item = *mut u64> {
        let last = self.len / 8 * 8 - 8;
        let offsets = (self.made..last).step_by(504).chain((last >= self.made).then_some(last));
        offsets.map(move |offset| self.at.as_ptr().wrapping_add(offset).cast())
    }
    fn write(self) {
        // SAFETY: its owner writes within it.
        self.words().for_each(|word| unsafe { word.write(self.stamp ^ word.addr() as u64) });
    }
    #[track_caller]
    fn verify(self, what: &str) {
        // SAFETY: as above; the memory is there as long as it has an owner, or a reader.
        let whole = self.words().all(|word| unsafe { word.read() } == self.stamp ^ word.addr() as u64);
        assert!(whole, "{what} changed");
        // SAFETY: as above.
        assert!(
            self.made == 0 || unsafe { self.at.cast::<u64>().read() } == MADE,
            "{what} is not constructed"
        );
    }
}

/// Who has what, by the operations.
#[derive(Default)]
struct Books {
    stamps: u64,
    owned: BTreeMap<usize, Object>,
    /// Those that wait for readers: their stamp, and for which.
    waiting: BTreeMap<usize, (u64, Vec<u64>)>,
    readers: BTreeSet<u64>,
    /// What others are given, and what a shrinker drops.
    posted: Vec<Object>,
    hoard: Vec<Object>,
    handles: Vec<Named>,
    /// Of the pool, those on their way included; and the most since each thread's operation began.
    pool_out: usize,
    pool_most: [usize; 8],
    /// Who waits at a limit, by when he began.
    queued: BTreeMap<u64, Queued>,
}
/// What is known of one who waits.
struct Queued {
    /// Which cache's, by its address.
    cache: usize,
    /// When he had his place.
    joined: u64,
    /// Somebody was served who began behind that.
    is_due: bool,
}
impl Books {
    fn now(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
    /// Who began at `begun` got an object of this cache: so have all who waited before.
    fn served(&mut self, cache: usize, begun: u64) {
        self.queued.remove(&begun);
        let before = self.queued.values_mut().filter(|other| other.cache == cache && other.joined < begun);
        before.for_each(|other| other.is_due = true);
    }
}
/// What is known of a handle.
#[derive(Clone, Copy)]
struct Named {
    handle: Handle,
    value: u64,
    freeing: u32,
    freed: bool,
}

/// The books, and the set of objects that are constructed. All threads of an execution are on one of the system's, and nobody keeps
/// them borrowed where another may run.
#[derive(Default)]
struct Shadow {
    books: RefCell<Books>,
    made: RefCell<BTreeSet<usize>>,
    /// A destructor's complaint, whose panic would stay with it.
    destructed: Cell<Option<&'static str>>,
}
// SAFETY: as said there.
unsafe impl Sync for Shadow {}
// SAFETY: as above.
unsafe impl Send for Shadow {}

impl Shadow {
    /// Memory has an owner from now on.
    #[track_caller]
    fn adopt(&self, mut object: Object) -> Object {
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
    fn disown(&self, object: Object) {
        object.verify("an object in use");
        let known = self.books.borrow_mut().owned.remove(&object.at.addr().get());
        assert!(known.is_some(), "an object of nobody");
    }
    fn verify(&self) {
        assert_eq!(self.destructed.get(), None);
        self.books.borrow().owned.values().for_each(|object| object.verify("an object in use"));
    }
    fn count(&self, of: impl Fn(Of) -> u64) -> u64 {
        self.books.borrow().owned.values().map(|object| of(object.of)).sum()
    }
}

/// Objects that are kept to save work, and go when memory is short.
struct Hoard(Arc<Shadow>, std::sync::Weak<Core>);

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

/// A cache that there is now.
struct Slot {
    cache: Arc<KmemCache>,
    number: u64,
    setup: CacheSetup,
    /// Destroys that are going on, and whether one has succeeded.
    destroying: Cell<u32>,
    destroyed: Cell<bool>,
}
// SAFETY: as of the shadow.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// Merged caches are one.
    fn key(&self) -> usize {
        core::ptr::from_ref(self.cache.cache()).addr()
    }
}

/// What tells somebody who waits that he should look: whether it did since he looked last.
#[derive(Default)]
struct Bell(Counter);
impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.set(1);
    }
}

/// Somebody who waits for an object of a slot's cache. It goes before the cache.
struct Wait {
    future: Acquiring<'static>,
    slot: Arc<Slot>,
    number: usize,
    begun: u64,
    bell: Arc<Bell>,
}

/// What a thread has.
#[derive(Default)]
struct Mine {
    held: Vec<Object>,
    reader: Option<(rcu::Guard, u64, Vec<Object>)>,
    hive: Option<(Hive<Value>, Vec<(Key<Value>, u64)>)>,
    waits: Vec<Wait>,
}

/// As large as the least distance of objects in models: a hive takes neighbours for a slice.
type Value = [u64; SPACING / 8];

/// What goes when a world ends well.
struct Parts {
    slots: Vec<Option<Arc<Slot>>>,
    kmalloc: Option<Kmalloc>,
    pool: Option<Arc<Mempool>>,
    handles: Option<Arc<HandleCache<Counter>>>,
    shrinker: Option<Registration>,
}

struct World {
    script: Script,
    subsystem: ManuallyDrop<Subsystem>,
    shadow: Arc<Shadow>,
    parts: ManuallyDrop<RefCell<Parts>>,
    sides: ManuallyDrop<Vec<RefCell<Mine>>>,
    faults: Faults,
    numbers: Cell<u64>,
}
// SAFETY: as of the shadow.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// A thread of it, which is the so-manieth.
struct Side<'w> {
    world: &'w World,
    me: usize,
}

impl World {
    fn new(script: &Script) -> Arc<Self> {
        on_cpu(0);
        let setup = &script.setup;
        let cpus = 1 + setup.cpus.min(7) as u32;
        let nodes = 1 + (setup.nodes as u32).min(1).min(cpus - 1);
        let mechanism = if setup.rseq > 0 { Mechanism::Rseq } else { Mechanism::Claimed };
        let cpus = Cpus::simulated(cpus, nodes).unwrap().by(mechanism);
        let order = Order::new(setup.order.min(4) as u8).unwrap();
        let zones = vec![vec![(ZoneKind::Normal, 1 + setup.pages as u32)]; nodes as usize];
        let shadow = Arc::<Shadow>::default();
        let pages = PageConfig {
            backend: if setup.mapped > 0 { uslab_buddy::Backend::Os } else { uslab_buddy::Backend::Heap },
            per_cpu_pages: setup.per_cpu > 0,
            max_order: order,
            pageblock_order: order,
            min_free_kib: Some(0),
            keep_free: setup.keep.checked_sub(1).map(|pages| pages as usize * uslab_buddy::PAGE_SIZE),
            corruption: |corruption| panic!("{corruption}"),
            faults: Faults::new(script.schedule),
            ..PageConfig::with_nodes(cpus, zones)
        };
        let faults = pages.faults.clone();
        let subsystem = Subsystem::new(Config {
            rule: OrderRule { max_order: setup.slab_order.min(setup.order) as u8, ..OrderRule::for_cpus(2) },
            corruption: Arc::new(refused),
            ..Config::for_models(1).with_pages(pages)
        })
        .unwrap();
        let small = Magazines::Sized { capacity: 1, stock: 0, depot_limit: 1 };
        let pool = (setup.pool > 0).then(|| {
            let cache = KmemCache::builder("pool", 64).limit(Limit::Objects(setup.pool)).magazines(small);
            Mempool::new(cache.build_in(&subsystem).unwrap(), setup.pool as usize).ok().map(Arc::new)
        });
        let handles = ObjectCache::builder("handles").ctor(|| Counter::new(0)).magazines(small);
        let parts = Parts {
            slots: script.caches.iter().map(|_| None).collect(),
            kmalloc: (setup.kmalloc > 0).then(|| Kmalloc::new(subsystem.core()).unwrap()),
            pool: pool.flatten(),
            handles: Some(Arc::new(handles.build_handles_in(&subsystem, Generations::default()).unwrap())),
            shrinker: Some(
                subsystem.register_shrinker(Hoard(shadow.clone(), Arc::downgrade(subsystem.core()))),
            ),
        };
        let threads = script.rounds.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let world = Arc::new(Self {
            script: script.clone(),
            subsystem: ManuallyDrop::new(subsystem),
            shadow,
            parts: ManuallyDrop::new(RefCell::new(parts)),
            sides: ManuallyDrop::new((0..threads).map(|_| RefCell::default()).collect()),
            faults,
            numbers: Cell::new(0),
        });
        (0..script.caches.len()).for_each(|slot| world.make(slot));
        let rule = |fault: &script::Fault| Rule {
            probability: fault.percent.min(100) as u8,
            ..Rule::every(POINTS.get(fault.point as usize).copied())
        };
        if !script.faults.is_empty() {
            world.faults.arm(script.faults.iter().map(rule).collect());
        }
        world
    }
    fn core(&self) -> &Arc<Core> {
        self.subsystem.core()
    }
    /// A cache in that slot, if there is none.
    fn make(&self, slot: usize) {
        let setup = self.script.caches[slot].clone();
        let mut cache = KmemCache::builder(format!("cache{slot}"), 64 + setup.size as usize)
            .magazines(match setup.capacity {
                0 => Magazines::Off,
                capacity => Magazines::Sized {
                    capacity: capacity as u16,
                    stock: setup.stock as u16,
                    depot_limit: setup.depot as u32,
                },
            })
            .check_frees(setup.checked > 0);
        if setup.limit > 0 {
            cache = cache.limit(Limit::Slabs(setup.limit as u32));
        }
        if setup.ctor > 0 {
            let [made, gone] = [(); 2].map(|()| self.shadow.clone());
            let word = |object: NonNull<u8>, n| object.as_ptr().cast::<u64>().wrapping_add(n);
            cache = cache.hooks(crate::cache::Hooks {
                construct: Box::new(move |object| {
                    assert!(
                        made.made.borrow_mut().insert(object.addr().get()),
                        "an object is constructed twice"
                    );
                    // SAFETY: new objects are nobody's.
                    unsafe { word(object, 0).write(MADE) };
                    // SAFETY: as above.
                    unsafe { word(object, 1).write(0) };
                    true
                }),
                destruct: Some(Box::new(move |object| {
                    if !gone.made.borrow_mut().remove(&object.addr().get()) {
                        gone.destructed.set(Some("what was not constructed is destructed"));
                    }
                    // SAFETY: nobody has it any more.
                    if unsafe { word(object, 0).replace(0) } != MADE {
                        gone.destructed.set(Some("what is destructed was not constructed any more"));
                    }
                })),
                // SAFETY: its last owner gave it up.
                reset: (setup.reset > 0)
                    .then(|| Box::new(move |object| unsafe { word(object, 1).write(0) }) as _),
            });
        }
        if setup.stable > 0 {
            cache = cache.type_stable();
        }
        if setup.merge > 0 {
            cache = cache.merge();
        }
        // Faults may refuse it.
        let Ok(cache) = cache.build_in(&self.subsystem) else { return };
        let number = self.numbers.replace(self.numbers.get() + 1);
        let (destroying, destroyed) = (Cell::new(0), Cell::new(false));
        let made = Arc::new(Slot { cache: Arc::new(cache), number, setup, destroying, destroyed });
        let place = self.parts.borrow_mut().slots[slot].replace(made);
        drop(place);
    }
    fn slot(&self, slot: usize) -> Option<Arc<Slot>> {
        self.parts.borrow().slots.get(slot)?.clone()
    }
    fn slots(&self) -> impl Iterator<Item = Arc<Slot>> {
        (0..self.script.caches.len()).filter_map(|slot| self.slot(slot))
    }

    /// Takes memory back, however it was had. Its owner has given it up.
    fn free(&self, Object { at, of, .. }: Object) {
        // SAFETY: each has come from there, and goes back once.
        unsafe {
            match of {
                Of::Cache(slot, number) => match self.slot(slot).filter(|slot| slot.number == number) {
                    Some(slot) => slot.cache.free(at),
                    None => self.core().free(at),
                },
                Of::Any | Of::Large(_) | Of::Huge => self.core().free(at),
                Of::Pool => {
                    let pool = self.parts.borrow().pool.clone();
                    pool.iter().for_each(|pool| pool.free(at));
                    self.shadow.books.borrow_mut().pool_out -= 1;
                }
                Of::Pages(pfn, order) => self.subsystem.pages().free(pfn, order),
            }
        }
    }

    /// No slab is more than its cache may have.
    fn within_limits(&self) {
        for slot in self.slots().filter(|slot| slot.setup.limit > 0) {
            let charged = slot.cache.cache().charged();
            assert!(charged <= slot.setup.limit, "{charged} slabs, where {} is the limit", slot.setup.limit);
        }
    }

    /// Begins to wait, without looking.
    fn wait(&self, number: usize, slot: &Arc<Slot>, gfp: Gfp) -> Wait {
        // SAFETY: the cache is there as long as the slot, which the wait keeps.
        let cache: &'static KmemCache = unsafe { &*Arc::as_ptr(&slot.cache) };
        let begun = self.shadow.books.borrow_mut().now();
        Wait { future: cache.acquire(gfp), slot: slot.clone(), number, begun, bell: Arc::default() }
    }
    /// Looks.
    fn poll(&self, wait: &mut Wait) -> Poll<Result<NonNull<u8>, AllocError>> {
        let books = || self.shadow.books.borrow_mut();
        let is_due = books().queued.get(&wait.begun).is_some_and(|queued| queued.is_due);
        wait.bell.0.set(0);
        let waker = Waker::from(wait.bell.clone());
        let polled = Pin::new(&mut wait.future).poll(&mut Context::from_waker(&waker));
        let (cache, mut books) = (wait.slot.key(), books());
        match polled {
            Poll::Ready(Ok(_)) => books.served(cache, wait.begun),
            Poll::Ready(Err(_)) => _ = books.queued.remove(&wait.begun),
            Poll::Pending => {
                assert!(!is_due, "who waits was passed");
                let joined = books.now();
                books.queued.entry(wait.begun).or_insert(Queued { cache, joined, is_due: false });
            }
        }
        polled
    }
    fn gives_up(&self, wait: Wait) {
        self.shadow.books.borrow_mut().queued.remove(&wait.begun);
        drop(wait);
    }
    /// All threads rest: who waits and was told takes what there is for him; who was not has nothing to take.
    fn settle(&self) {
        let mut goes_on = true;
        while core::mem::take(&mut goes_on) {
            for me in 0..self.sides.len() {
                let side = Side { world: self, me };
                let waits = std::mem::take(&mut self.sides[me].borrow_mut().waits);
                for mut wait in waits {
                    let was_told = wait.bell.0.get() > 0;
                    match self.poll(&mut wait) {
                        Poll::Pending => self.sides[me].borrow_mut().waits.push(wait),
                        Poll::Ready(result) => {
                            assert!(was_told, "who waits was not told of what he has");
                            goes_on = true;
                            side.ends_wait(wait, result);
                        }
                    }
                }
            }
        }
    }

    /// All threads rest: all that there is adds up, to what the shadow says. It is `quiet` if nothing waits for readers.
    fn census(&self, quiet: bool) {
        self.settle();
        let census = self.core().check().unwrap_or_else(|violation| panic!("census: {violation}"));
        self.subsystem.pages().tables().assert_at_rest();
        self.shadow.verify();
        self.within_limits();
        let deferred: u64 = self.core().caches.iter().map(|cache| cache.deferred().get()).sum();
        let reserve = self.parts.borrow().pool.clone().map_or(0, |pool| pool.reserve().0 as u64);
        let hives: usize =
            self.sides.iter().map(|side| side.borrow().hive.as_ref().map_or(0, |hive| hive.0.len())).sum();
        let handles = self.shadow.books.borrow().handles.iter().filter(|named| !named.freed).count();
        let objects = self.shadow.count(|of| matches!(of, Of::Cache(..) | Of::Any | Of::Pool).into());
        let used = objects + deferred + reserve + (hives + handles) as u64;
        assert_eq!(census.used, used, "objects in use: {census:?}");
        let large = self.shadow.count(|of| if let Of::Large(order) = of { order.pages().into() } else { 0 });
        assert_eq!(census.large_pages, large, "pages of large blocks: {census:?}");
        let blocks =
            self.shadow.count(|of| if let Of::Pages(_, order) = of { order.pages().into() } else { 0 });
        // Slabs that wait for readers, of a cache that has gone, are in no other account.
        let exact = census.block_pages == blocks || census.block_pages > blocks && !quiet;
        assert!(exact, "{} pages of blocks, {blocks} are there: {census:?}", census.block_pages);
        assert_eq!(
            census.huge_pages > 0,
            self.shadow.count(|of| (of == Of::Huge).into()) > 0,
            "huge: {census:?}"
        );
        let cpus = self.subsystem.cpus();
        for slot in self.slots() {
            let (info, setup) = (slot.cache.info(), &slot.setup);
            let (cpus, nodes) = (u64::from(cpus.count()), u64::from(cpus.nodes()));
            let most = cpus * nodes * setup.capacity * (2 + setup.stock);
            assert!(info.in_magazines <= most, "{} objects in magazines, at most {most}", info.in_magazines);
            let most = nodes * setup.capacity * setup.depot;
            assert!(info.in_depot <= most, "{} objects in depots, at most {most}", info.in_depot);
            assert_eq!(info.paths.operations(), info.allocs + info.frees, "each operation is of one class");
            self.seen(&slot);
        }
        // SAFETY: all threads rest.
        let view = unsafe { self.subsystem.pages().per_cpu_view() };
        let pages =
            |orders: &[u32]| (0..).zip(orders).map(|(order, blocks)| u64::from(*blocks) << order).sum();
        let seen: u64 = view.cpus.iter().chain([&view.depot]).map(|orders| -> u64 { pages(orders) }).sum();
        assert_eq!(seen, self.subsystem.pages().info().per_cpu(), "pages that CPUs hold, as they are seen");
    }

    /// A view of a cache shows each object that is out once: with its owner or in a magazine.
    fn seen(&self, slot: &Slot) {
        // SAFETY: all threads rest.
        let view = unsafe { slot.cache.view() };
        let info = slot.cache.info();
        let layer = view.magazines.iter();
        let cpus = layer.clone().flat_map(|layer| layer.cpus.iter().flat_map(|cpu| &cpu.magazines));
        let depots = layer.flat_map(|layer| layer.depots.iter().flat_map(|depot| &depot.full));
        let held: Vec<_> = cpus.chain(depots).flat_map(|magazine| &magazine.rounds).copied().collect();
        assert_eq!(
            held.len() as u64,
            info.in_magazines + info.in_depot,
            "objects in magazines, as they are seen"
        );
        let on = |list| view.slabs.iter().filter(|slab| slab.list == list).count() as u64;
        let lists = [SlabList::Full, SlabList::Partial, SlabList::Empty].map(on);
        assert_eq!(lists, [info.full, info.partial, info.empty], "slabs on their lists, as they are seen");
        let out: u64 =
            view.slabs.iter().flat_map(|slab| &slab.out).map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(out, info.used + held.len() as u64, "objects that are out, as they are seen");
        let books = self.shadow.books.borrow();
        let own = books
            .owned
            .values()
            .filter(|object| matches!(object.of, Of::Cache(_, number) if number == slot.number));
        let mut places = BTreeSet::new();
        for place in own.map(|object| slot.cache.place_of(object.at)).chain(held.into_iter().map(Some)) {
            let place = place.unwrap_or_else(|| panic!("an owner has what is no object"));
            let slab = view.slabs.iter().find(|slab| slab.page == place.slab);
            let slab = slab.unwrap_or_else(|| panic!("{place:?}: no such slab is seen"));
            let (word, bit) = (usize::from(place.index / 64), place.index % 64);
            assert!(slab.out[word] >> bit & 1 == 1, "{place:?} is free, and somebody has it");
            assert!(places.insert((place.slab, place.index)), "{place:?} is in two places");
        }
    }

    /// Nobody waits for a reader any more, and there is none.
    fn grace(&self) {
        for _ in 0..100 {
            self.core().flush_deferred();
            rcu::advance();
            if rcu::is_idle() {
                return;
            }
        }
        panic!("what waits for readers goes on waiting when there are none");
    }

    /// Everything goes back; between, one cache after the other has all memory for itself.
    fn end(self: Arc<Self>) {
        self.faults.disarm();
        on_cpu(0);
        for side in self.sides.iter() {
            let Mine { held, reader, hive, waits } = std::mem::take(&mut *side.borrow_mut());
            drop(reader);
            waits.into_iter().for_each(|wait| self.gives_up(wait));
            if let Some((mut hive, keys)) = hive {
                keys.into_iter().for_each(|(key, value)| assert_eq!(hive.remove(key)[0], value));
            }
            held.into_iter().for_each(|object| self.give_back(object));
        }
        let books = || self.shadow.books.borrow_mut();
        let posted = std::mem::take(&mut books().posted);
        let hoard = std::mem::take(&mut books().hoard);
        posted.into_iter().chain(hoard).for_each(|object| self.give_back(object));
        let named = std::mem::take(&mut books().handles);
        let handles = self.parts.borrow_mut().handles.take();
        for named in named.iter().filter(|named| !named.freed) {
            assert!(handles.iter().all(|handles| handles.free(named.handle)), "a handle in use is stale");
        }
        drop(handles);
        let pool = self.parts.borrow_mut().pool.take();
        if let Some(pool) = &pool {
            let (has, least) = pool.reserve();
            assert!(has == least, "the reserve of a pool that nobody uses is {has} of {least}");
        }
        drop(pool);
        self.grace();
        self.census(true);
        for (number, slot) in (0..self.script.caches.len()).filter_map(|slot| Some((slot, self.slot(slot)?)))
        {
            if !slot.destroyed.get() && slot.setup.stable == 0 {
                self.core().shrink(&uslab_magazine::Operation::new());
                self.grace();
                (0..2).for_each(|cpu| self.all_of(number, &slot, cpu));
            }
            if slot.setup.checked > 0 && !slot.destroyed.get() {
                self.double_free(&slot.cache);
            }
        }
        let parts = || self.parts.borrow_mut();
        let slots = std::mem::take(&mut parts().slots);
        let (kmalloc, shrinker) = {
            let mut parts = parts();
            (parts.kmalloc.take(), parts.shrinker.take())
        };
        drop((slots, kmalloc, shrinker));
        self.grace();
        self.subsystem.shrink();
        self.grace();
        self.subsystem.pages().release();
        let census = self.core().check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(
            (census.slabs, census.free_pages),
            (0, census.pages),
            "in the end all is free: {census:?}"
        );
        assert_eq!(self.core().caches.iter().count(), 0, "a cache that nobody owns is left");
        assert!(self.shadow.made.borrow().is_empty(), "objects are constructed that are no more");
        let Some(mut world) = Arc::into_inner(self) else { panic!("the threads have ended") };
        // SAFETY: the world goes out of use here.
        unsafe {
            ManuallyDrop::drop(&mut world.parts);
            ManuallyDrop::drop(&mut world.sides);
            ManuallyDrop::drop(&mut world.subsystem);
        }
    }
    fn give_back(&self, object: Object) {
        self.shadow.disown(object);
        self.free(object);
    }

    /// A cache that is alone has all that its limit and the pages allow, wherever it lies what it freed before.
    fn all_of(&self, number: usize, slot: &Slot, from: u32) {
        let cpus = self.subsystem.cpus().count();
        let (geometry, setup) = (slot.cache.geometry(), &self.script.setup);
        on_cpu(from % cpus);
        let mut all = vec![];
        while let Ok(at) = slot.cache.alloc(Gfp::KERNEL) {
            all.push(self.adopted(number, slot, at));
        }
        // Slabs may be as small as one object, where there are no larger blocks.
        let order = geometry.min_order();
        let blocks = (1 + setup.pages) >> order.get();
        let pages = u64::from(self.subsystem.cpus().nodes()) * blocks;
        let slabs = if slot.setup.limit > 0 { pages.min(slot.setup.limit) } else { pages };
        let least = slabs as usize * geometry.objects_at(order);
        let fits = u64::from(order.get()) <= setup.order;
        assert!(
            !fits || all.len() >= least,
            "a cache alone gets {} objects, at least {least} are there",
            all.len()
        );
        for (cpu, object) in (0..).zip(all) {
            on_cpu(cpu % cpus);
            self.give_back(object);
        }
    }
    /// An object of the cache in that slot has an owner from now on.
    #[track_caller]
    fn adopted(&self, number: usize, slot: &Slot, at: NonNull<u8>) -> Object {
        let (of, made) = (Of::Cache(number, slot.number), 16 * slot.setup.ctor as usize);
        let object = Object { at, len: slot.cache.geometry().object_size(), made, stamp: 0, of };
        // SAFETY: the object is ours; what a reset cleared, or a constructor.
        let clean = slot.setup.reset == 0 || unsafe { at.as_ptr().cast::<u64>().wrapping_add(1).read() } == 0;
        assert!(clean, "an object is not reset");
        let object = self.shadow.adopt(object);
        object.verify("a new object");
        if made > 0 {
            // SAFETY: as above.
            unsafe { at.as_ptr().cast::<u64>().wrapping_add(1).write(1) };
        }
        object
    }
    /// At rest nobody has had the object again meanwhile.
    fn double_free(&self, cache: &KmemCache) {
        on_cpu(0);
        let Ok(object) = cache.alloc(Gfp::KERNEL) else { return };
        // SAFETY: the second one is refused.
        unsafe {
            cache.free(object);
            // Its slab may be gone, too.
            expect(&[CorruptionKind::DoubleFree, CorruptionKind::Foreign], || cache.free(object));
        }
    }
}

impl Config {
    fn with_pages(self, pages: PageConfig) -> Self {
        Self { pages, ..self }
    }
}

/// Hears of what the subsystem refuses.
fn refused(corruption: &Corruption<'_>) {
    let expected = EXPECTED.with(Cell::get);
    assert!(expected.contains(&corruption.kind), "refused: {corruption}");
    REFUSED.with(|refused| refused.set(refused.get() + 1));
}
/// Does what must be refused in one of these ways, once.
fn expect(kinds: &'static [CorruptionKind], what: impl FnOnce()) {
    EXPECTED.with(|expected| expected.set(kinds));
    REFUSED.with(|refused| refused.set(0));
    what();
    EXPECTED.with(|expected| expected.set(&[]));
    assert_eq!(REFUSED.with(Cell::get), 1, "what cannot be right is refused once");
}

/// Runs a script, in an execution of the checker.
fn run(script: &Script) {
    let world = World::new(script);
    let operate = |world: &World, me: usize, ops: &[Op]| {
        ME.with(|number| number.set(me));
        let side = Side { world, me };
        for op in ops {
            let told = &op.told;
            let (cpu, then) = (told.cpu as u32, told.then as u32);
            Cpu { cpu, at: told.at as u32, then, aborted: told.abort > 0 }.install();
            side.does(op);
        }
        on_cpu(0);
        side.ends_reading();
    };
    for (round, threads) in (0..).zip(&script.rounds) {
        let spawn = |me| {
            let world = world.clone();
            thread::spawn(move || operate(&world, me, &world.script.rounds[round][me]))
        };
        let others: Vec<_> = (1..threads.len()).map(spawn).collect();
        threads.first().into_iter().for_each(|ops| operate(&world, 0, ops));
        others.into_iter().for_each(|other| other.join().unwrap());
        world.census(false);
    }
    world.end();
}

/// Runs it under its schedule. What it failed with.
fn outcome(script: &Script) -> Result<(), String> {
    let (schedule, script) = (script.schedule, script.clone());
    once(schedule, STEPS, move || run(&script))
}
/// The way that something failed, without what differs from one time to the next.
fn way(failure: &str) -> String {
    failure.split(|c: char| c.is_ascii_digit() || c == '{').next().unwrap_or("").to_owned()
}

/// Runs many simulations.
pub(super) struct Seeds(pub(super) u64);

impl Seeds {
    /// Schedules under which a smaller script is tried.
    const TRIES: u64 = 30;
    /// The time that one failure is shrunk for.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn number(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
    }
    /// The seeds that are asked for, as long as there is time.
    fn each(&self) -> impl Iterator<Item = u64> {
        let (begun, seconds) = (Instant::now(), Self::number("WORLD_SECONDS"));
        let shard = shard().unwrap_or(Shard::WHOLE);
        let seeds = match Self::number("WORLD_SEED") {
            Some(seed) => seed..seed + 1,
            None => {
                let from = Self::number("WORLD_FROM").unwrap_or(1);
                let Range { start, end } = shard.items(seconds.map_or(self.0, |_| u64::MAX >> 1));
                from + start..from + end
            }
        };
        seeds.take_while(move |_| seconds.is_none_or(|seconds| begun.elapsed().as_secs() < seconds))
    }

    /// Runs them, and tells the first that fails as a script.
    pub(super) fn run(self, name: &str, _: fn()) {
        if let Ok(path) = std::env::var("WORLD_SCRIPT") {
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("WORLD_SCRIPT={path}: {error}"));
            let script = Script::read(&text).unwrap_or_else(|error| panic!("WORLD_SCRIPT={path}: {error}"));
            return outcome(&script).unwrap_or_else(|failure| panic!("{path}: {failure}"));
        }
        let (begun, mut count, mut ran) = (Instant::now(), 0, 0..0);
        forget_threads();
        for seed in self.each() {
            let script = Script::draw(seed);
            if let Err(failure) = outcome(&script) {
                println!("seed {seed} fails: {failure}\nrepeat it: WORLD_SEED={seed}. It is shrunk now.");
                let (script, failure) = shrunk(script, &failure);
                let path = std::env::temp_dir().join(format!("uslab-world-{seed}.txt"));
                let text = format!("# {}\n{script}", failure.replace('\n', " "));
                let written = std::fs::write(&path, &text);
                println!("{text}");
                panic!(
                    "seed {seed}: {failure}; WORLD_SCRIPT={} ({written:?}) repeats the script above",
                    path.display()
                );
            }
            (count, ran) = (count + 1, if count == 0 { seed } else { ran.start }..seed);
        }
        let share = shard().map_or(String::new(), |shard| format!(" | share {shard}"));
        println!(
            "SCHEDULES {name} | threads {} | random {count} | pct 0 | depth 0{share} | seeds {} to {} | {:.2?}",
            threads(),
            ran.start,
            ran.end,
            begun.elapsed()
        );
    }

    /// Expects that they notice a planted bug, among so many seeds.
    pub(super) fn bug(self, bug: &'static str, property: &str, expected: &'static str, _: fn()) {
        if !has_bug(bug, property) {
            return;
        }
        catch(bug, property, "schedule", expected, move || {
            let (mut count, mut other) = (0, None);
            for seed in 1..=self.0 {
                count += 1;
                match outcome(&Script::draw(seed)) {
                    Err(failure) if failure.contains(expected) => return Err((count, failure)),
                    Err(failure) => other = other.or(Some(failure)),
                    Ok(()) => {}
                }
            }
            other.map_or(Ok(count), |failure| Err((count, failure)))
        });
    }
}

fn shrunk(script: Script, failure: &str) -> (Script, String) {
    let (begun, way_of_it) = (Instant::now(), way(failure));
    let fails = |script: &Script| {
        let schedules = (0..Seeds::TRIES).map(|n| script.schedule.wrapping_add(n));
        let mut tried = schedules.take_while(|_| begun.elapsed() < Seeds::PATIENCE);
        tried.find(|schedule| {
            let again = Script { schedule: *schedule, ..script.clone() };
            outcome(&again).is_err_and(|failure| way(&failure) == way_of_it)
        })
    };
    let script = script.shrink(fails);
    let failure = outcome(&script).err().unwrap_or_else(|| failure.to_owned());
    (script, failure)
}

/// How soon a world with each of these bugs fails, and how; `WORLD_BUGS=file` has their names, one a line.
#[test]
fn detection() {
    let Ok(path) = std::env::var("WORLD_BUGS") else { return };
    let bugs = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("WORLD_BUGS={path}: {error}"));
    for bug in bugs.leak().lines() {
        let begun = Instant::now();
        plant(bug);
        let failure =
            Seeds(u64::MAX).each().find_map(|seed| Some((seed, outcome(&Script::draw(seed)).err()?)));
        plant("");
        let said = failure.map_or("unnoticed".to_owned(), |(seed, failure)| {
            format!("seed {seed} | {}", failure.replace('\n', " "))
        });
        println!("NOTICED {bug} | {:.1?} | {said}", begun.elapsed());
    }
}

/// Those of bugs that were found: see the first line of each.
#[test]
fn kept_scripts_run() {
    let scripts = [
        include_str!("simulation/kept/a_block_that_is_split_at_a_fork.txt"),
        include_str!("simulation/kept/a_grace_period_that_ends_at_a_fork.txt"),
        include_str!("simulation/kept/a_wait_that_ends_without_memory.txt"),
    ];
    for script in scripts {
        outcome(&Script::read(script).unwrap()).unwrap();
    }
}

#[test]
fn a_script_is_read_as_it_is_written_and_what_is_none_is_refused_by_its_line() {
    for seed in 1..50 {
        let script = Script::draw(seed);
        assert_eq!(Script::read(&script.to_string()).as_ref(), Ok(&script));
    }
    let said = |text: &str| Script::read(text).unwrap_err();
    assert_eq!(said("thread\nalloc a"), "line 2: `a`: expected name=number");
    assert_eq!(said("setup cpu=1").split(',').next(), Some("line 1: `cpu=1`: expected one of cpus"));
    assert_eq!(said("thread\n\nfrees"), "line 3: `frees`: no operation");
    assert_eq!(said("alloc"), "line 1: expected `thread` before");
}

/// One is enough of each: the operations that it takes to give a slab back, and nothing beside.
#[test]
fn a_failing_seed_is_shrunk_to_a_script_that_fails_the_same_way() {
    plant("a released slab stays charged");
    let found = (1..).find_map(|seed| {
        let script = Script::draw(seed);
        let failure = outcome(&script).err()?;
        Some((script, failure))
    });
    let (script, failure) = found.unwrap();
    let (small, again) = shrunk(script, &failure);
    assert_eq!(way(&again), way(&failure));
    assert!(small.ops().count() <= 6, "it needs no more:\n{small}");
    assert_eq!(outcome(&Script::read(&small.to_string()).unwrap()), Err(again));
    plant("");
    assert_eq!(outcome(&small), Ok(()), "without the bug it passes:\n{small}");
}

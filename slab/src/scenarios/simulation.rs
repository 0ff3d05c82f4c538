//! Simulates the whole subsystem under shuttle. A shadow model records the owner of all memory. The simulation uses
//! pages, magazines, caches, kmalloc, handles, hives, a mempool, a shrinker, limits and waiters, reaping, deferred and
//! checked frees, forks and their children, and faults.
//!
//! FoundationDB and TigerBeetle are tested in this way: a seed determines a [script] and its schedule, so a single
//! number reproduces a failure. `WORLD_SEED=n` repeats the simulation with seed `n`. A failing script is shrunk to a
//! few lines and written to a file; `WORLD_SCRIPT=file` runs this file. The scripts in `kept/` reproduce fixed bugs.
//! The tests run all scripts in `kept/`. `WORLD_SECONDS=s` sets the duration, `WORLD_FROM=n` the first seed, and
//! `SHARD=i/n` selects a shard of the seeds.
//!
//! The simulation asserts:
//!
//! - At all times: no memory has two owners; what an owner wrote stays unchanged; an object is constructed once and
//!   stays constructed; memory that a reader may read is not reallocated; no cache has more slabs than its limit;
//!   exactly the invalid frees are refused;
//! - for waiters at a limit: no later waiter is served before an earlier one; a cancelled waiter passes its object to
//!   the next waiter;
//! - for a refused request: the error is one of the possible errors, and nothing was allocated;
//! - while all threads are idle: no object is available to a waiter that was not woken; the census agrees with the
//!   shadow; magazines and depots are within their limits; views of caches and of CPUs' pages show each allocated
//!   object in exactly one place, and no other object;
//! - at the end: each cache can get all memory for itself, twice, and all memory is freed.

mod books;
mod ops;
mod rest;
mod script;
mod seeds;

use crate::cache::Acquiring;
use crate::cache::core::Core;
use crate::cache::hooks::{Hook, Hooks};
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
use books::{Hoard, NamedObject, Object, Origin, OwnershipLedger, QueuedFree, Shadow};
use core::cell::{Cell, RefCell};
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use script::{CacheSetup, Op, Script};
pub(super) use seeds::Seeds;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};
use uslab_buddy::{Order, PageConfig, Pfn, ZoneKind};
use uslab_magazine::sync::schedule::{catch, has_bug, once, plant, reset_thread_counts, shard, threads};
use uslab_magazine::sync::shard::Shard;
use uslab_magazine::sync::{Counter, thread, thread_local};
use uslab_magazine::{Cpus, Mechanism, Script as Cpu, on_cpu};

/// Maximum number of steps in one execution. An execution of some hundred operations takes ten thousand steps. The
/// longest of some hundred thousand executions took more than 300,000 steps.
const STEPS: usize = 3_000_000;
/// Value that a constructor writes to an object.
const CONSTRUCTED_VALUE: u64 = 0x6d61_6465_6d61_6465;

thread_local! {
    static THREAD_NUMBER: Cell<usize> = Cell::new(0);
    static EXPECTED: Cell<&'static [CorruptionKind]> = Cell::new(&[]);
    static REFUSED: Cell<u32> = Cell::new(0);
}

struct Slot {
    cache: Arc<KmemCache>,
    number: u64,
    setup: CacheSetup,
    /// Number of destructions in progress. `destroyed` is true after a destruction has succeeded.
    destroying: Cell<u32>,
    destroyed: Cell<bool>,
}
// SAFETY: all threads run on one system thread, and no access is interrupted.
unsafe impl Send for Slot {}
// SAFETY: all threads run on one system thread, and no access is interrupted.
unsafe impl Sync for Slot {}

impl Slot {
    /// Identity of the cache; users that share a cache get equal identities.
    fn key(&self) -> usize {
        core::ptr::from_ref(self.cache.cache()).addr()
    }
}

/// A waiter's waker, which counts the wake-ups since the waiter's last poll.
#[derive(Default)]
struct WaiterWaker(Counter);
impl Wake for WaiterWaker {
    fn wake(self: Arc<Self>) {
        self.0.set(1);
    }
}

/// A wait for an object of the cache in a slot. A wait must be dropped before its cache.
struct Wait {
    future: Acquiring<'static>,
    slot: Arc<Slot>,
    number: usize,
    begun: u64,
    bell: Arc<WaiterWaker>,
}

#[derive(Default)]
struct ThreadState {
    held: Vec<Object>,
    reader: Option<(rcu::Guard, u64, Vec<Object>)>,
    hive: Option<(Hive<Value>, Vec<(Key<Value>, u64)>)>,
    waits: Vec<Wait>,
}

/// Value in a hive, as large as the smallest stride in models, so that neighbouring values form a slice.
type Value = [u64; SPACING / 8];

/// Parts of a world that are dropped only if the execution succeeds.
struct DroppedWorldParts {
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
    world_parts: ManuallyDrop<RefCell<DroppedWorldParts>>,
    thread_states: ManuallyDrop<Vec<RefCell<ThreadState>>>,
    faults: Faults,
    numbers: Cell<u64>,
}
// SAFETY: all threads run on one system thread, and no access is interrupted.
unsafe impl Sync for World {}
// SAFETY: all threads run on one system thread, and no access is interrupted.
unsafe impl Send for World {}

struct SimThread<'w> {
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
        let cpus = Cpus::simulated(cpus, nodes).unwrap().with_mechanism(mechanism);
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
        let world_parts = DroppedWorldParts {
            slots: script.caches.iter().map(|_| None).collect(),
            kmalloc: (setup.kmalloc > 0).then(|| Kmalloc::new(subsystem.core()).unwrap()),
            pool: pool.flatten(),
            handles: Some(Arc::new(handles.build_handles_in(&subsystem, Generations::default()).unwrap())),
            shrinker: None,
        };
        let threads = script.rounds.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let world = Arc::new(Self {
            script: script.clone(),
            subsystem: ManuallyDrop::new(subsystem),
            shadow,
            world_parts: ManuallyDrop::new(RefCell::new(world_parts)),
            thread_states: ManuallyDrop::new((0..threads).map(|_| RefCell::default()).collect()),
            faults,
            numbers: Cell::new(0),
        });
        (0..script.caches.len()).for_each(|slot| world.make(slot));
        let hoard = Hoard(world.shadow.clone(), Arc::downgrade(world.core()));
        let shrinker = match world.slot(0).filter(|_| setup.hoard_limit > 0) {
            Some(slot) => slot.cache.register_shrinker(hoard),
            None => world.subsystem.register_shrinker(hoard),
        };
        world.world_parts.borrow_mut().shrinker = Some(shrinker);
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
    /// Makes the cache of slot `slot`, unless it exists already.
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
            cache = cache.hooks(Hooks {
                construct: Hook::new(Box::new(move |object| {
                    assert!(
                        made.made.borrow_mut().insert(object.addr().get()),
                        "an object is constructed twice"
                    );
                    // SAFETY: a new object has no user.
                    unsafe { word(object, 0).write(CONSTRUCTED_VALUE) };
                    // SAFETY: a new object has no user.
                    unsafe { word(object, 1).write(0) };
                    true
                })),
                destruct: Some(Hook::new(Box::new(move |object| {
                    if !gone.made.borrow_mut().remove(&object.addr().get()) {
                        gone.destructed.set(Some("an object that was not constructed is destructed"));
                    }
                    // SAFETY: the object no longer has a user.
                    if unsafe { word(object, 0).replace(0) } != CONSTRUCTED_VALUE {
                        gone.destructed.set(Some("a destructed object is destructed again"));
                    }
                }))),
                // SAFETY: the object's last user freed it.
                reset: (setup.reset > 0)
                    .then(|| Hook::new(Box::new(move |object| unsafe { word(object, 1).write(0) }))),
            });
        }
        if setup.stable > 0 {
            cache = cache.type_stable();
        }
        if setup.merge > 0 {
            cache = cache.merge();
        }
        // Injected faults may refuse the cache.
        let Ok(cache) = cache.build_in(&self.subsystem) else { return };
        let number = self.numbers.replace(self.numbers.get() + 1);
        let (destroying, destroyed) = (Cell::new(0), Cell::new(false));
        let made = Arc::new(Slot { cache: Arc::new(cache), number, setup, destroying, destroyed });
        let place = self.world_parts.borrow_mut().slots[slot].replace(made);
        drop(place);
    }
    fn slot(&self, slot: usize) -> Option<Arc<Slot>> {
        self.world_parts.borrow().slots.get(slot)?.clone()
    }
    fn slots(&self) -> impl Iterator<Item = Arc<Slot>> {
        (0..self.script.caches.len()).filter_map(|slot| self.slot(slot))
    }

    /// Frees memory with the function that matches its allocation. The memory's owner has given the memory up.
    fn free(&self, Object { at, of, .. }: Object) {
        // SAFETY: the matching function allocated the memory, which is freed once.
        unsafe {
            match of {
                Origin::Cache(slot, number) => match self.slot(slot).filter(|slot| slot.number == number) {
                    Some(slot) => slot.cache.free(at),
                    None => self.core().free(at),
                },
                Origin::Any | Origin::Large(_) | Origin::Huge => self.core().free(at),
                Origin::Pool => {
                    let pool = self.world_parts.borrow().pool.clone();
                    pool.iter().for_each(|pool| pool.free(at));
                    self.shadow.books.borrow_mut().pool_out -= 1;
                }
                Origin::Pages(pfn, order) => self.subsystem.pages().free(pfn, order),
            }
        }
    }
    fn give_back(&self, object: Object) {
        self.shadow.remove_owner(object);
        self.free(object);
    }

    /// Checks that no cache exceeds its limit of slabs.
    fn check_limits(&self) {
        for slot in self.slots().filter(|slot| slot.setup.limit > 0) {
            let charged = slot.cache.cache().charged();
            assert!(charged <= slot.setup.limit, "{charged} slabs, but the limit is {}", slot.setup.limit);
        }
    }

    /// Starts a wait for an object, without polling it.
    fn wait(&self, number: usize, slot: &Arc<Slot>, gfp: Gfp) -> Wait {
        // SAFETY: the cache lives as long as the slot, which the wait keeps alive.
        let cache: &'static KmemCache = unsafe { &*Arc::as_ptr(&slot.cache) };
        let begun = self.shadow.books.borrow_mut().now();
        Wait { future: cache.acquire(gfp), slot: slot.clone(), number, begun, bell: Arc::default() }
    }
    fn poll(&self, wait: &mut Wait) -> Poll<Result<NonNull<u8>, AllocError>> {
        let books = || self.shadow.books.borrow_mut();
        let is_due = books().queued.get(&wait.begun).is_some_and(|queued| queued.is_due);
        wait.bell.0.set(0);
        let waker = Waker::from(wait.bell.clone());
        let polled = Pin::new(&mut wait.future).poll(&mut Context::from_waker(&waker));
        let (cache, mut books) = (wait.slot.key(), books());
        match polled {
            Poll::Ready(Ok(_)) => books.record_served(cache, wait.begun),
            Poll::Ready(Err(_)) => _ = books.queued.remove(&wait.begun),
            Poll::Pending => {
                assert!(!is_due, "a waiter was overtaken");
                let joined = books.now();
                books.queued.entry(wait.begun).or_insert(QueuedFree { cache, joined, is_due: false });
            }
        }
        polled
    }
    fn cancel_wait(&self, wait: Wait) {
        self.shadow.books.borrow_mut().queued.remove(&wait.begun);
        drop(wait);
    }
    /// Records the new owner of an allocated object of the cache in `slot`.
    #[track_caller]
    fn adopt_object(&self, number: usize, slot: &Slot, at: NonNull<u8>) -> Object {
        let (of, made) = (Origin::Cache(number, slot.number), 16 * slot.setup.ctor as usize);
        let object = Object { at, len: slot.cache.geometry().object_size(), made, stamp: 0, of };
        // SAFETY: this thread owns the object; a reset or the constructor cleared the word.
        let clean = slot.setup.reset == 0 || unsafe { at.as_ptr().cast::<u64>().wrapping_add(1).read() } == 0;
        assert!(clean, "an object is not reset");
        let object = self.shadow.adopt(object);
        object.verify("a new object");
        if made > 0 {
            // SAFETY: this thread owns the object.
            unsafe { at.as_ptr().cast::<u64>().wrapping_add(1).write(1) };
        }
        object
    }
}

impl Config {
    fn with_pages(self, pages: PageConfig) -> Self {
        Self { pages, ..self }
    }
}

/// Corruption handler that receives the subsystem's reports of invalid frees.
fn refused(corruption: &Corruption<'_>) {
    let expected = EXPECTED.with(Cell::get);
    assert!(expected.contains(&corruption.kind), "refused: {corruption}");
    REFUSED.with(|refused| refused.set(refused.get() + 1));
}
/// Runs `what`. During the call, exactly one free must be refused, with an error of one of the kinds in `kinds`.
fn expect(kinds: &'static [CorruptionKind], what: impl FnOnce()) {
    EXPECTED.with(|expected| expected.set(kinds));
    REFUSED.with(|refused| refused.set(0));
    what();
    EXPECTED.with(|expected| expected.set(&[]));
    assert_eq!(REFUSED.with(Cell::get), 1, "each invalid free is refused once");
}

fn run(script: &Script) {
    let world = World::new(script);
    let operate = |world: &World, me: usize, ops: &[Op]| {
        THREAD_NUMBER.with(|number| number.set(me));
        let side = SimThread { world, me };
        for op in ops {
            let arguments = &op.arguments;
            let (cpu, then) = (arguments.cpu as u32, arguments.then as u32);
            Cpu { cpu, at: arguments.at as u32, then, aborted: arguments.abort > 0 }.install();
            side.perform(op);
        }
        on_cpu(0);
        side.end_all_reads();
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

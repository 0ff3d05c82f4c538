//! The code that all models of other allocators share: slabs, pages, conservation checks and options.
//!
//! A model has no memory behind its addresses, and takes no locks. A model tracks the location of each object, and
//! [reports](Op::did) each step that would take a lock or move a cache line.

use crate::design::{At, CacheCounts, CallMode, Design, Locks, NoMemory, Unsupported};
use crate::held::{CpuOwnedSlabs, Held, Holder};
use crate::levels::CacheLevels;
use crate::pages::{PageSource, Pages, SlabPages};
use crate::shown::{MAX_SHOWN_SLABS, ShownCache, ShownSlab, letter};
use crate::slabs::{End, Object, Slabs};
use crate::stream::{CacheInfo, Kind};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::ops::RangeInclusive;
use uslab::{Geometry, GeometryError, OrderRule};
use uslab_buddy::{Order, PageAllocator, PageBlock};
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Cpus, Path, Paths, on_cpu};
use uslab_magazine_spec::Budget;

/// An option of an allocator design, with its meaning, range and default.
#[derive(Debug)]
pub struct Knob {
    /// The name of the option in the real system.
    pub name: &'static str,
    /// A short description of the option.
    pub means: &'static str,
    /// The range of accepted values.
    pub range: RangeInclusive<u64>,
    /// `true` if the option also accepts `P%`, a percentage of the value that each cache has by default.
    pub percent: bool,
    /// Returns the option's default value for objects of `size` bytes on a machine with `cpus` CPUs.
    pub default: fn(size: usize, cpus: u32) -> u64,
}

impl Knob {
    /// Returns a description of the accepted values.
    pub fn accepts(&self) -> String {
        let (least, most) = (self.range.start(), self.range.end());
        let of_each = if self.percent { ", or P% of each cache's value" } else { "" };
        if *most >= u32::MAX.into() {
            format!("at least {least}{of_each}")
        } else {
            format!("{least} to {most}{of_each}")
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [small, large, on_many] =
            [(64, 4), (4096, 4), (64, 64)].map(|(size, cpus)| (self.default)(size, cpus));
        write!(f, "{}: {}, by default {small}", self.means, self.accepts())?;
        match (small == large, small == on_many) {
            (true, true) => Ok(()),
            (true, false) => write!(f, " on 4 CPUs and {on_many} on 64"),
            (false, _) => write!(f, " for 64 bytes and {large} for 4096"),
        }
    }
}

/// Returns a default that is derived from the geometry of a policy's slabs. Returns 0 if objects are too large for a
/// slab.
pub(crate) fn default_from_geometry<P: Policy>(
    size: usize,
    cpus: u32,
    of: impl Fn(&Geometry) -> usize,
) -> u64 {
    P::geometry(size, cpus, &P::Knobs::default()).map_or(0, |geometry| of(&geometry) as u64)
}

/// A policy: the behaviour of one cache in a model. A [`Model`] has one policy for each cache, and one state that all
/// of its policies share.
///
/// The model checks that no object is lost or has two owners. If a policy loses an object or allocates it twice, the
/// model's [`check`](Design::check) reports the error.
pub trait Policy: Debug + Sized {
    /// The policy's name on command lines.
    const NAME: &'static str;
    /// A one-line description of the policy.
    const DESCRIPTION: &'static str;
    /// The policy's options, with the names that they have in the real system.
    type Knobs: Clone + Debug + Default + DeserializeOwned;

    /// The type of the policy's options, whose fields have the options' names. The parser of option texts enforces the
    /// range of each option.
    const KNOBS: &'static [Knob] = &[];

    /// The names of the lists that a slab can be on.
    const LISTS: &'static [&'static str];
    /// The two lists of slabs that no CPU owns: slabs with free objects are on the first, full slabs on the second. The
    /// value is `None` if a stream cannot begin with existing slabs.
    const SHARED_LISTS: Option<(u8, u8)> = None;
    /// `true` if the policy accepts smaller slabs, down to one object, when the page allocator has no block of the
    /// usual order.
    const HAS_ORDER_FALLBACK: bool = false;
    /// Nanoseconds between two [ticks](Self::tick); `None` if the policy has no periodic work.
    const TICK: Option<u64> = None;
    /// `true` if each operation takes its CPU's lock.
    const LOCKED: bool = false;
    /// The number of cache lines that CPUs share for each cache.
    const LINES: Lines = Lines { depot: 1, lists: 1, counts: 0, slabs: 0 };

    /// Checks combinations of options; the range of each single option was checked before.
    ///
    /// # Errors
    /// Fails if two options cannot be combined. The error names the options and the accepted values.
    fn accept(_: &Self::Knobs) -> Result<(), Unsupported> {
        Ok(())
    }
    /// Returns the geometry of slabs for objects of `size` bytes. The default implementation follows Linux's rule for
    /// the order of a slab.
    ///
    /// # Errors
    /// Fails if objects of this size do not fit into any slab.
    fn geometry(size: usize, cpus: u32, _: &Self::Knobs) -> Result<Geometry, GeometryError> {
        Geometry::new(size, 0, &OrderRule::for_cpus(cpus))
    }
    /// Creates a cache without slabs.
    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Self::Knobs) -> Self;

    /// Allocates an object and removes it from its slab.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory>;
    /// Frees an object: keeps it in a layer above the slabs, or returns it to its slab.
    fn free(&mut self, op: &mut Op<'_>, object: Object);
    /// Gives the CPU a slab that existed before the stream and that is on a [shared list](Self::SHARED_LISTS).
    fn adopt(&mut self, _: &mut Op<'_>, _slab: u32) {}
    /// Does the periodic work: see [`TICK`](Self::TICK).
    fn tick(&mut self, _: &mut Op<'_>) {}
    /// Called if an operation had to wait for a shared lock.
    fn contended(&mut self) {}
    /// Frees as much memory as possible without freeing allocated objects. Returns the number of objects that were
    /// flushed from the layers above the slabs.
    fn shrink(&mut self, op: &mut Op<'_>) -> u64;

    /// Returns the current capacity of a magazine, sheaf or array; returns 0 if the policy has no containers.
    fn container(&self) -> u32 {
        0
    }
    /// Returns the number of slots for containers in the shared level; 1 if containers have no separate slots.
    fn shared(&self) -> u32 {
        0
    }
    /// Returns all containers that hold objects outside of slabs, and also the empty containers.
    fn held(&self) -> Vec<Held> {
        vec![]
    }
    /// Returns the slabs that CPUs own, beginning with the slabs that serve first.
    fn own_slabs(&self) -> Vec<CpuOwnedSlabs> {
        vec![]
    }
}

/// The number of cache lines that CPUs share for each cache, excluding the lines of slabs and containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The number of lines with the shared level's lock and the heads of its lists.
    pub depot: u32,
    /// The number of lines with the slab lists' lock and the list heads.
    pub lists: u32,
    /// The number of lines with operation counters that CPUs share; 0 if each CPU has separate counters. A design with
    /// shared counters has one more line, which is adjacent to the line of the shared level's lock.
    pub counts: u32,
    /// The number of lines with counters that change when a slab is created or freed.
    pub slabs: u32,
}

/// A cost event: a step of an operation that the CPU's own memory cannot serve. An operation without a cost event is a
/// hit in the CPU's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostEvent {
    /// The CPU swapped its two containers, or chose a slab from its own list as its current slab.
    Swap,
    /// The capacity of the CPU's stack was increased.
    Widened,
    /// The CPU exchanged a container with the level that all CPUs share.
    Exchange,
    /// The level that all CPUs share had no container to hand out, or no room for another container.
    Miss,
    /// The CPU took this number of objects from slabs while it held the list lock.
    Refill(u32),
    /// The CPU returned this number of objects to slabs while it held the list lock.
    Flush(u32),
    /// A slab was moved to another list while the CPU held the list lock.
    Relist,
    /// The CPU changed the freelist word of a slab without a lock. The CPU freed an object to another CPU's slab, or
    /// collected objects that other CPUs had freed to its slab.
    Remote,
    /// A slab was created.
    Made,
    /// A slab was freed.
    Released,
}

impl CostEvent {
    /// Returns a description of the cost event in words.
    pub fn description(self) -> String {
        match self {
            Self::Swap => "the CPU switches to its other magazine or slab".to_owned(),
            Self::Widened => "the CPU's stack grows".to_owned(),
            Self::Exchange => "a magazine is exchanged with the shared depot, under its lock".to_owned(),
            Self::Miss => "the shared depot has no magazine to exchange".to_owned(),
            Self::Refill(1) => "1 object is taken from a slab, under the lock of the slab lists".to_owned(),
            Self::Refill(n) => format!("{n} objects are taken from slabs, under the lock of the slab lists"),
            Self::Flush(1) => "1 object is flushed to its slab, under the lock of the slab lists".to_owned(),
            Self::Flush(n) => {
                format!("{n} objects are flushed to their slabs, under the lock of the slab lists")
            }
            Self::Relist => "a slab moves from one list to another, under the lock of the lists".to_owned(),
            Self::Remote => "a slab's free list changes, without a lock".to_owned(),
            Self::Made => "the page allocator provides a new slab".to_owned(),
            Self::Released => "an empty slab is returned to the page allocator".to_owned(),
        }
    }
    /// Returns the level that served the cost event.
    pub fn path(self) -> Path {
        match self {
            Self::Swap | Self::Widened => Path::Cpu,
            Self::Exchange | Self::Miss => Path::Depot,
            Self::Refill(_) | Self::Flush(_) | Self::Relist | Self::Remote => Path::Slab,
            Self::Made | Self::Released => Path::Pages,
        }
    }
}

/// An operation on a cache, as the policy of the cache receives it.
#[expect(missing_debug_implementations, reason = "the operation must exist during the call")]
pub struct Op<'a> {
    /// The CPU that runs the operation.
    pub cpu: u32,
    /// Nanoseconds since the beginning of the stream.
    pub ns: u64,
    /// The caller's constraints.
    pub manner: CallMode,
    /// The cache's slabs.
    pub slabs: &'a mut Slabs,
    /// The common budget of all depots of the machine.
    pub budget: &'a mut Budget,
    pages: &'a mut dyn PageSource,
    cost_events: &'a mut Vec<CostEvent>,
}

impl Op<'_> {
    /// Reports a cost event of the operation.
    pub fn did(&mut self, event: CostEvent) {
        self.cost_events.push(event);
    }
    /// Creates a slab and puts the slab at the front of a list.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn make(&mut self, list: u8) -> Result<u32, NoMemory> {
        let slab = self.slabs.make(self.pages, self.cpu, list)?;
        self.cost_events.push(CostEvent::Made);
        Ok(slab)
    }
    /// Frees an empty slab.
    ///
    /// # Panics
    /// Panics if the slab is not empty.
    pub fn release(&mut self, slab: u32) {
        self.slabs.release(self.pages, self.cpu, slab);
        self.cost_events.push(CostEvent::Released);
    }
}

/// A machine whose caches follow a [`Policy`].
#[derive(Debug)]
pub struct Model<'p, P: Policy> {
    cpus: Cpus,
    knobs: P::Knobs,
    /// `true` if the policy belongs to the traced kernel, so that the recorded attributes of caches apply.
    as_traced: bool,
    /// The caches, indexed by their number in the stream. The entry is `None` for large kmalloc.
    caches: Vec<Option<Cache<P>>>,
    /// The number of large kmalloc objects, and the number of pages that they occupy.
    large: u64,
    large_pages: u64,
    slab_pages: SlabPages<'p>,
    /// The common budget of all depots of the machine.
    budget: Budget,
    cost_events: Vec<CostEvent>,
    paths: Paths,
    locks: Locks,
    ticks: u64,
    /// The first violated invariant, and the object that was allocated a second time while in use.
    violation: Option<(String, Object)>,
}

#[derive(Debug)]
struct Cache<P> {
    name: String,
    slabs: Slabs,
    policy: P,
    exchanges: u64,
}

/// An allocated object of a model.
#[derive(Debug)]
pub enum ModelObject<'p> {
    /// The object is in a slab.
    Object(Object),
    /// An object of large kmalloc, which occupies a block of pages.
    Large {
        /// The block of pages that the object occupies.
        block: PageBlock<'p>,
    },
}

/// The largest number of intervals that the model runs between two operations; 10,000 intervals of at least 2 s are
/// more than five hours.
const MAX_IDLE_INTERVALS: u64 = 10_000;

impl<'p, P: Policy> Model<'p, P> {
    /// Creates a machine that has no caches.
    ///
    /// # Errors
    /// Fails if the policy does not support these options.
    pub fn new(pages: &'p Pages, knobs: P::Knobs) -> Result<Self, Unsupported> {
        P::accept(&knobs)?;
        Ok(Self {
            cpus: pages.allocator().cpus(),
            knobs,
            as_traced: false,
            caches: vec![],
            large: 0,
            large_pages: 0,
            slab_pages: SlabPages::new(pages),
            budget: Budget::from_cpu_count(pages.allocator().cpus().count()),
            cost_events: vec![],
            paths: Paths::default(),
            locks: Locks::default(),
            ticks: 0,
            violation: None,
        })
    }
    /// Sets whether the policy belongs to the traced kernel, so that the recorded attributes of caches apply.
    #[must_use]
    pub fn as_traced(self, as_traced: bool) -> Self {
        Self { as_traced, ..self }
    }
    /// Returns the cost events that the policy reported for the last operation.
    pub fn cost_events(&self) -> &[CostEvent] {
        &self.cost_events
    }
    /// Returns the object that was allocated a second time while in use, if any.
    #[cfg(feature = "course")]
    pub(crate) fn doubly_allocated_object(&self) -> Option<Object> {
        self.violation.as_ref().map(|(_, object)| *object)
    }
    /// Returns the pages whose frame metadata the last operation on a cache accessed.
    pub(crate) fn touched_pages(&self, cache: u32) -> &[u32] {
        self.cache(cache).map_or(&[], |(slabs, _)| slabs.touched_pages())
    }
    /// Notifies the policy of a cache that its last operation waited for a shared lock.
    pub(crate) fn contended(&mut self, cache: u32) {
        if let Some(cache) = &mut self.caches[cache as usize] {
            cache.policy.contended();
        }
    }
    /// Returns the slabs and the policy of a cache; `None` for large kmalloc.
    pub fn cache(&self, cache: u32) -> Option<(&Slabs, &P)> {
        let cache = self.caches.get(cache as usize)?.as_ref()?;
        Some((&cache.slabs, &cache.policy))
    }

    /// Checks the invariants of the caches, but not of the page allocator. Returns the number of allocated objects, and
    /// the number of slab pages.
    pub(crate) fn check_caches(&self) -> Result<(u64, u64), String> {
        self.violation.clone().map_or(Ok(()), |(message, _)| Err(message))?;
        let (mut used, mut pages) = (0, 0);
        for cache in self.caches.iter().flatten() {
            let held = cache.policy.held().into_iter().flat_map(|held| held.objects);
            cache.slabs.check(held).map_err(|message| format!("cache {}: {message}", cache.name))?;
            used += cache.slabs.used();
            pages += cache.slabs.pages();
        }
        Ok((used, pages))
    }

    /// Ends the current interval immediately, before its time has passed.
    pub(crate) fn tick(&mut self, at: At) {
        self.of_all(at, |policy, op| policy.tick(op));
    }
    /// Advances the model's time without running an operation.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn pass(&mut self, at: At) {
        self.begin(at);
    }
    /// Runs all due ticks, and then begins an operation.
    fn begin(&mut self, at: At) {
        self.cost_events.clear();
        let Some(period) = P::TICK else { return };
        let due = at.ns / period;
        // If the trace's clock jumps, the model runs only the last ticks, because the caches no longer change
        // after this many idle ticks.
        self.ticks = self.ticks.max(due.saturating_sub(MAX_IDLE_INTERVALS));
        while self.ticks < due {
            self.ticks += 1;
            let tick_time = At { ns: self.ticks * period, ..at };
            self.of_all(tick_time, |policy, op| policy.tick(op));
        }
        self.cost_events.clear();
    }
    /// Ends an operation on an object of a cache.
    fn end(&mut self) {
        let count = match self.cost_events.iter().map(|event| event.path()).max().unwrap_or_default() {
            Path::Cpu => &mut self.paths.cpu,
            Path::Depot => &mut self.paths.depot,
            Path::Slab => &mut self.paths.slab,
            Path::Pages => &mut self.paths.pages,
            Path::Commit => &mut self.paths.commit,
        };
        *count += 1;
        for event in &self.cost_events {
            match event {
                CostEvent::Refill(_) | CostEvent::Flush(_) | CostEvent::Relist => self.locks.lists += 1,
                CostEvent::Exchange | CostEvent::Miss => self.locks.depot += 1,
                CostEvent::Swap
                | CostEvent::Widened
                | CostEvent::Remote
                | CostEvent::Made
                | CostEvent::Released => {}
            }
        }
    }
    fn of_all<T>(&mut self, at: At, mut act: impl FnMut(&mut P, &mut Op<'_>) -> T) -> Vec<T> {
        let Self { caches, slab_pages, budget, cost_events, .. } = self;
        let results =
            caches.iter_mut().flatten().map(|cache| cache.op(at, slab_pages, budget, cost_events, &mut act));
        results.collect()
    }
}

impl<P: Policy> Cache<P> {
    fn op<T>(
        &mut self,
        at: At,
        pages: &mut dyn PageSource,
        budget: &mut Budget,
        cost_events: &mut Vec<CostEvent>,
        act: impl FnOnce(&mut P, &mut Op<'_>) -> T,
    ) -> T {
        self.slabs.begin();
        let before = cost_events.len();
        let result = act(
            &mut self.policy,
            &mut Op {
                cpu: at.cpu,
                ns: at.ns,
                manner: at.manner,
                slabs: &mut self.slabs,
                budget,
                pages,
                cost_events: &mut *cost_events,
            },
        );
        self.exchanges +=
            cost_events[before..].iter().filter(|event| **event == CostEvent::Exchange).count() as u64;
        result
    }
    fn counts(&self) -> CacheCounts {
        let [full, partial, empty] = self.slabs.slabs_by_fullness();
        let (mut in_magazines, mut in_depot) = (0, 0);
        for held in self.policy.held() {
            let count = if held.holder == Holder::Shared { &mut in_depot } else { &mut in_magazines };
            *count += held.objects.len() as u64;
        }
        let own = self.policy.own_slabs().into_iter().flat_map(|own| own.slabs);
        let in_own_slabs: u64 = own.map(|slab| u64::from(self.slabs.free_without_inspection(slab))).sum();
        CacheCounts {
            size: self.slabs.geometry().object_size() as u64,
            order: self.slabs.geometry().order().get(),
            per_slab: self.slabs.objects().into(),
            capacity: self.policy.container().into(),
            used: self.slabs.used(),
            in_magazines: in_magazines + in_own_slabs,
            in_depot,
            free_in_slabs: self.slabs.free_objects_in_all_slabs() - in_own_slabs,
            full,
            partial,
            empty,
            depot_exchanges: self.exchanges,
            slabs_made: self.slabs.created(),
        }
    }
}

impl<'p, P: Policy> Design for Model<'p, P> {
    type Object = ModelObject<'p>;
    type Block = PageBlock<'p>;

    fn learn(&mut self, info: &CacheInfo) -> Result<(), Unsupported> {
        self.caches.push(match info.kind {
            Kind::Large => None,
            _ => {
                // A cache that appears only in hidden events may have no recorded size, so the smallest size
                // is used.
                let geometry = P::geometry(info.size.max(8) as usize, self.cpus.count(), &self.knobs)
                    .map_err(|error| Unsupported(format!("cache {}: {error}", info.name)))?;
                let recorded = info.sheaf_capacity.filter(|_| self.as_traced);
                let info = &CacheInfo { sheaf_capacity: recorded, ..info.clone() };
                let policy = P::new(info, self.cpus, &geometry, &self.knobs);
                let slabs = Slabs::new(geometry, P::LISTS.len(), P::HAS_ORDER_FALLBACK);
                Some(Cache { name: info.name.clone(), slabs, policy, exchanges: 0 })
            }
        });
        Ok(())
    }

    fn alloc(&mut self, at: At, cache: u32, bytes: u64) -> Result<ModelObject<'p>, NoMemory> {
        self.begin(at);
        let Some(cache) = &mut self.caches[cache as usize] else {
            let order = Order::for_bytes(usize::try_from(bytes).unwrap_or(usize::MAX)).ok_or(NoMemory)?;
            let block = self.slab_pages.pages().alloc(at.cpu, order.get(), 0)?;
            self.large += 1;
            self.large_pages += u64::from(order.pages());
            return Ok(ModelObject::Large { block });
        };
        let object = cache.op(at, &mut self.slab_pages, &mut self.budget, &mut self.cost_events, P::alloc)?;
        if let Err(message) = cache.slabs.hand_out(object) {
            self.violation.get_or_insert((format!("cache {}: {message}", cache.name), object));
            return Err(NoMemory);
        }
        self.end();
        Ok(ModelObject::Object(object))
    }
    fn start(&mut self, at: At, cache: u32, used: u32, free: u32, owned: bool) -> Vec<ModelObject<'p>> {
        let (Some((partial, full)), Some(model_cache)) = (P::SHARED_LISTS, &mut self.caches[cache as usize])
        else {
            return vec![];
        };
        // Slabs of the model may have fewer objects than the recorded slabs.
        let slabs = (used + free).div_ceil(u32::from(model_cache.slabs.objects()));
        let mut objects = Vec::with_capacity(used as usize);
        model_cache.op(at, &mut self.slab_pages, &mut self.budget, &mut self.cost_events, |policy, op| {
            for n in 1..=slabs {
                let Ok(slab) = op.make(partial) else { break };
                let target_len = (u64::from(used) * u64::from(n) / u64::from(slabs)) as usize;
                while objects.len() < target_len
                    && let Some(object) = op.slabs.take(slab)
                {
                    objects.push(object);
                }
                op.slabs.relist(slab, if op.slabs.free(slab) == 0 { full } else { partial }, End::Back);
                if owned {
                    policy.adopt(op, slab);
                }
            }
        });
        let allocated = objects.into_iter().take_while(|object| model_cache.slabs.hand_out(*object).is_ok());
        allocated.map(ModelObject::Object).collect()
    }
    fn free(&mut self, at: At, cache: u32, object: ModelObject<'p>) {
        self.begin(at);
        match (&mut self.caches[cache as usize], object) {
            (Some(cache), ModelObject::Object(object)) => {
                cache.slabs.free_remote(object);
                cache.op(at, &mut self.slab_pages, &mut self.budget, &mut self.cost_events, |policy, op| {
                    policy.free(op, object);
                });
                self.end();
            }
            (_, ModelObject::Large { block }) => {
                on_cpu(at.cpu);
                self.large -= 1;
                self.large_pages -= u64::from(block.order().pages());
            }
            (None, ModelObject::Object(_)) => unreachable!("large kmalloc has no slabs"),
        }
    }
    fn place(&self, _: u32, object: &ModelObject<'p>) -> Option<(u32, u16)> {
        match object {
            ModelObject::Object(object) => Some((object.page, object.index)),
            ModelObject::Large { .. } => None,
        }
    }

    fn alloc_pages(&mut self, at: At, order: u8, migratetype: u8) -> Result<PageBlock<'p>, NoMemory> {
        self.begin(at);
        self.slab_pages.pages().alloc(at.cpu, order, migratetype)
    }
    fn free_pages(&mut self, at: At, block: PageBlock<'p>) {
        self.begin(at);
        on_cpu(at.cpu);
        drop(block);
    }
    fn split_pages(&mut self, block: PageBlock<'p>, order: u8) -> Vec<PageBlock<'p>> {
        block.split(Order::new(order).unwrap_or(Order::ZERO))
    }
    fn block(&self, block: &PageBlock<'p>) -> (u32, u8) {
        (block.pfn().get(), block.order().get())
    }

    fn shrink(&mut self, at: At, cache: Option<u32>) -> (u64, u64) {
        self.begin(at);
        let slabs =
            |model: &Self| model.caches.iter().flatten().map(|cache| cache.slabs.count()).sum::<u64>();
        let before = slabs(self);
        let objects = match cache {
            None => self.of_all(at, P::shrink).into_iter().sum(),
            Some(cache) => {
                let Self { caches, slab_pages, budget, cost_events, .. } = self;
                let shrink = |cache: &mut Cache<P>| cache.op(at, slab_pages, budget, cost_events, P::shrink);
                caches[cache as usize].as_mut().map_or(0, shrink)
            }
        };
        (objects, before - slabs(self))
    }

    fn counts(&self, cache: u32) -> CacheCounts {
        let cache = self.caches.get(cache as usize).and_then(Option::as_ref);
        cache.map_or_else(CacheCounts::default, Cache::counts)
    }
    fn paths(&self) -> Paths {
        self.paths
    }
    fn locks(&self) -> Locks {
        self.locks
    }
    fn show(&self, number: u32) -> Option<ShownCache> {
        let (slabs, policy) = self.cache(number)?;
        let (held, own_slabs) = (policy.held(), policy.own_slabs());
        let levels = CacheLevels::of(&held, &own_slabs, slabs, self.cpus.count());
        Some(shown(number, slabs, P::LISTS, &held, &own_slabs, levels))
    }
    fn pages(&self) -> &PageAllocator {
        self.slab_pages.pages().allocator()
    }
    fn large_pages(&self) -> u64 {
        self.large_pages
    }
    fn is_slab(&self, page: u32) -> bool {
        self.slab_pages.is_slab_start(page)
    }
    fn describe(&self, _: u32, cache: u32, _: bool, _: &[Step]) -> Option<(Path, String)> {
        self.cache(cache)?;
        let path = self.cost_events.iter().map(|event| event.path()).max().unwrap_or_default();
        let descriptions =
            self.cost_events.iter().map(|event| event.description()).collect::<Vec<_>>().join("; ");
        Some((
            path,
            if descriptions.is_empty() {
                "this CPU's objects serve it, and no lock is taken.".to_owned()
            } else {
                descriptions + "."
            },
        ))
    }
    fn check(&self, objects: u64, pages: u64) -> Result<(), String> {
        let (used, slab_pages) = self.check_caches()?;
        let census =
            self.slab_pages.pages().allocator().check().map_err(|violation| violation.to_string())?;
        for (quantity, found, expected) in [
            ("objects in use", used + self.large, objects),
            ("pages of slabs", self.slab_pages.held(), slab_pages),
            ("allocated pages", census.allocated, slab_pages + self.large_pages + pages),
        ] {
            if found != expected {
                return Err(format!("{quantity}: {found}; expected {expected}"));
            }
        }
        Ok(())
    }
}

/// Returns a model's cache for display, with the objects in its layers and the free objects in owned slabs.
fn shown(
    cache: u32,
    all_slabs: &Slabs,
    lists: &[&'static str],
    held: &[Held],
    slabs_of_cpus: &[CpuOwnedSlabs],
    CacheLevels { cpus, shared }: CacheLevels,
) -> ShownCache {
    let (mut slabs, mut slab_positions) = (Vec::new(), BTreeMap::new());
    let owners = slabs_of_cpus
        .iter()
        .flat_map(|own_slabs| own_slabs.slabs.iter().map(|slab| (*slab, letter(own_slabs.cpu as usize))));
    let owners: BTreeMap<u32, u8> = owners.collect();
    for (list, name) in lists.iter().copied().enumerate() {
        for slab in all_slabs.walk(list as u8).take(MAX_SHOWN_SLABS - slabs.len()) {
            slab_positions.insert(slab, slabs.len());
            let free = owners.get(&slab).copied().unwrap_or(b'.');
            let objects = (0..all_slabs.objects_of(slab))
                .map(|index| if all_slabs.is_allocated(slab, index) { b'u' } else { free });
            slabs.push((all_slabs.page(slab), name, objects.collect::<Vec<u8>>()));
        }
    }
    for held in held {
        let letter = match held.holder {
            Holder::Cpu(cpu) => letter(cpu as usize),
            Holder::Shared => b'd',
        };
        for object in &held.objects {
            if let Some(slab) = slab_positions.get(&object.slab) {
                slabs[*slab].2[usize::from(object.index)] = letter;
            }
        }
    }
    let slabs = slabs.into_iter().map(|(page, list, objects)| ShownSlab {
        page,
        list,
        objects: objects.into_iter().map(char::from).collect(),
    });
    ShownCache { cache, cpus, shared, slabs: slabs.collect() }
}

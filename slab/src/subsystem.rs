//! A subsystem: the pages, the caches that stand on them, and kmalloc.
//!
//! Several may exist side by side (tests, the simulator); the plain API uses one global one, made when it is first
//! needed. A cache keeps its subsystem alive, not the other way round: the registry only knows which caches there are,
//! for reports and for pressure.

use crate::cache::Cache;
use crate::report::census::{Census, Violation};
use crate::debug::corruption::{self, Corruption};
use crate::error::CacheError;
use crate::debug::faults::Faults;
use crate::geometry::OrderRule;
use crate::memory::ground::Ground;
use crate::size::huge::{HUGE_CACHE, Huge, HugeInfo};
use crate::report::info::{CacheInfo, DrainInfo, SlabInfo, Statistics};
#[cfg(not(any(loom, shuttle)))]
use crate::size::kmalloc::Kmalloc;
use crate::size::large::{Large, LargeInfo, large};
use crate::cache::magazines::Magazines;
use crate::cache::owner::Owner;
#[cfg(not(any(loom, shuttle)))]
use crate::reclaim::reaper::{Background, ReaperInfo};
use crate::registry::Registry;
use crate::reclaim::shrinker::{self, Registration, Shrinker};
#[cfg(not(loom))]
use crate::debug::tags::Tags;
use core::fmt;
use core::ops::Range;
#[cfg(not(loom))]
use core::ptr::NonNull;
use serde::Serialize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;
use uslab_buddy::region::Door;
#[cfg(not(any(loom, shuttle)))]
use uslab_buddy::region::address_limit;
use uslab_buddy::{BuddyInfo, PAGE_SIZE, PageAllocator, PageConfig, PageError};
#[cfg(any(loom, shuttle))]
use uslab_buddy::{Order, ZoneKind};
#[cfg(not(loom))]
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Rank, assert_unlocked, catch_panic};
use uslab_magazine::{Cpus, Layer, Operation, Paths, Which};

/// With so few pages, 4 MiB, a subsystem is not tried with fewer.
const LEAST_PAGES: usize = 1024;

/// Bytes of free memory that stay with a subsystem of the default [`Config`] without anybody calling
/// [`reap`](Subsystem::reap): frees give back what is more (see [`PageConfig::keep_free`]). A burst of so much costs no
/// system call and no page fault the next time.
pub const KEEP_FREE: usize = 16 << 20;

/// What a subsystem is made of.
#[derive(Clone)]
pub struct Config {
    /// CPUs, nodes, zones and with them the limit of memory and what is kept in reserve; and the
    /// [`faults`](crate::faults) of the whole subsystem.
    pub pages: PageConfig,
    /// What decides the order of slabs.
    pub rule: OrderRule,
    /// The magazines of caches that do not say otherwise.
    pub magazines: Magazines,
    /// Whether caches that do not say otherwise check at once that what is freed to them is an object of theirs and in use.
    /// Otherwise what is wrong is noticed when the object reaches its slab. On by default in builds with debug assertions.
    pub check_frees: bool,
    /// Hears of frees that cannot be right; the default says so and aborts.
    pub corruption: Arc<corruption::Handler>,
    /// A thread of the subsystem ends a reaping interval this often, from the time that there may be something to reap: see
    /// [`reaper`](crate::reaper). `None`, the default: no thread.
    pub reap_every: Option<Duration>,
    /// Bytes of freed mappings above 4 MiB that are kept for the next ones: see [`huge`](crate::huge). 0 is none.
    pub huge_cache: usize,
}

impl Config {
    /// The usual slabs and magazines on these pages, the order rule with all of its CPUs present.
    pub fn new(pages: PageConfig) -> Self {
        Self {
            rule: OrderRule::for_cpus(pages.cpus.count()),
            pages,
            magazines: Magazines::default(),
            check_frees: cfg!(debug_assertions),
            corruption: Arc::new(corruption::abort),
            reap_every: None,
            huge_cache: HUGE_CACHE,
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Default for Config {
    /// The machine's CPUs on one node and the page allocator's default range, of which up to [`KEEP_FREE`] bytes of free
    /// memory stay when objects and slabs come back.
    fn default() -> Self {
        let pages = PageConfig::default_for(Cpus::os());
        Self::new(PageConfig { keep_free: Some(KEEP_FREE), ..pages })
    }
}

#[cfg(any(loom, shuttle))]
impl Config {
    /// So many pages for two simulated CPUs of one node, and magazines of one object, so that every second operation is
    /// an exchange. A slab is a page of two objects: each lies [2048 bytes](crate::check::SPACING) from the next. A free
    /// that cannot be right panics.
    ///
    /// What is no power of two wastes pages: blocks do not cross its largest one.
    pub fn for_models(pages: u32) -> Self {
        let order = Order::new(pages.max(1).ilog2() as u8).unwrap_or(Order::MAX);
        let cpus = Cpus::simulated(2, 1).unwrap_or_else(|bad| unreachable!("{bad}"));
        let pages = PageConfig {
            per_cpu_pages: false,
            max_order: order,
            pageblock_order: order,
            min_free_kib: Some(0),
            corruption: |corruption| panic!("{corruption}"),
            ..PageConfig::with_nodes(cpus, vec![vec![(ZoneKind::Normal, pages)]])
        };
        Self {
            rule: OrderRule { max_order: 0, ..OrderRule::for_cpus(2) },
            magazines: Magazines::Sized { capacity: 1, stock: 0, depot_limit: 1 },
            check_frees: false,
            corruption: Arc::new(|corruption| panic!("{corruption}")),
            ..Self::new(pages)
        }
    }
}

#[cfg(any(loom, shuttle))]
impl Default for Config {
    /// [For models](Self::for_models), of four pages.
    fn default() -> Self {
        Self::for_models(4)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("pages", &self.pages)
            .field("rule", &self.rule)
            .field("magazines", &self.magazines)
            .field("check_frees", &self.check_frees)
            .field("reap_every", &self.reap_every)
            .field("huge_cache", &self.huge_cache)
            .finish_non_exhaustive()
    }
}

/// Why a subsystem could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// The page allocator cannot work so, or got no address space.
    Pages(PageError),
    /// No address space for the bitmaps of slabs of many objects, or for the table of huge memory.
    SideTable,
    /// No memory for the magazines of kmalloc's caches.
    Kmalloc,
    /// The global subsystem is being started by this very thread.
    Starting,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(error) => error.fmt(f),
            Self::SideTable => f.write_str("no address space for the side tables"),
            Self::Kmalloc => f.write_str("no memory for the magazines of kmalloc"),
            Self::Starting => f.write_str("the global subsystem is just being started by this thread"),
        }
    }
}
impl std::error::Error for StartError {}

impl From<PageError> for StartError {
    fn from(error: PageError) -> Self {
        Self::Pages(error)
    }
}

/// What the caches of a subsystem share.
pub(crate) struct Core {
    pub(crate) ground: Ground,
    pub(crate) cpus: Cpus,
    #[cfg_attr(loom, allow(dead_code, reason = "for tags"))]
    pub(crate) door: Door,
    pub(crate) faults: Faults,
    pub(crate) rule: OrderRule,
    pub(crate) magazines: Magazines,
    pub(crate) check_frees: bool,
    pub(crate) large: Large,
    #[cfg(not(loom))]
    pub(crate) deferred: crate::reclaim::rcu::Deferred,
    /// Made by the first cache whose frees are checked; how many there were.
    #[cfg(not(loom))]
    pub(crate) tags: ForkMutex<(Option<Arc<Tags>>, u64)>,
    pub(crate) huge: Huge,
    /// Forks, with other threads at work, between the process that made the subsystem and this one.
    pub(crate) forks: Counter,
    corruption: Arc<corruption::Handler>,
    /// All caches.
    pub(crate) caches: Registry<Cache>,
    /// Those that others may share.
    pub(crate) mergeable: Registry<Owner>,
    /// What users can drop.
    pub(crate) shrinkers: Registry<shrinker::Entry>,
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) background: Background,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("cpus", &self.cpus).field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, StartError> {
        let (cpus, door, faults) = (config.pages.cpus, config.pages.door, config.pages.faults.clone());
        let huge_pages = config.pages.huge_pages;
        let pages = PageAllocator::new(config.pages)?;
        let ground = Ground::new(pages, door, &faults).ok_or(StartError::SideTable)?;
        let huge = Huge::new(door, huge_pages, config.huge_cache, &faults).ok_or(StartError::SideTable)?;
        Ok(Arc::new_cyclic(|_this| Self {
            ground,
            huge,
            cpus,
            door,
            faults,
            rule: config.rule,
            magazines: config.magazines,
            check_frees: config.check_frees,
            large: Large::default(),
            #[cfg(not(loom))]
            deferred: crate::reclaim::rcu::Deferred::new(&cpus),
            #[cfg(not(loom))]
            tags: ForkMutex::new(Rank::Tags, (None, 0)),
            forks: Counter::new(0),
            corruption: config.corruption,
            caches: Registry::new(Rank::Caches),
            mergeable: Registry::new(Rank::Mergeable),
            shrinkers: Registry::new(Rank::Shrinkers),
            #[cfg(not(any(loom, shuttle)))]
            background: Background::new(_this.clone(), config.reap_every),
        }))
    }

    /// What `make` makes of a core with as many pages as the system grants: where address space is refused, to the pages or
    /// to what describes them, fewer than asked for.
    pub(crate) fn largest<T>(
        mut config: Config,
        make: impl Fn(&Arc<Self>) -> Result<T, CacheError>,
    ) -> Result<T, StartError> {
        loop {
            let started =
                Self::new(config.clone()).and_then(|core| make(&core).map_err(|_| StartError::Kmalloc));
            let pages = config.pages.nodes.iter().flatten().map(|(_, pages)| *pages as usize).sum::<usize>();
            match started {
                // The page allocator took all there was, and left nothing for the rest.
                Err(StartError::SideTable | StartError::Kmalloc) if pages > LEAST_PAGES => {
                    config.pages = config.pages.limit(pages / 2 * PAGE_SIZE);
                }
                started => return started,
            }
        }
    }

    /// A cache that others share, if it `fits`.
    pub(crate) fn mergeable(&self, fits: impl Fn(&Cache) -> bool) -> Option<Arc<Owner>> {
        self.mergeable.iter().find(|owner| fits(owner.cache()))
    }

    /// The cache that a frame names as its owner.
    #[inline(always)]
    pub(crate) fn cache_of(&self, owner: *mut u8) -> Option<&Cache> {
        if owner.is_null() || owner == large() {
            return None;
        }
        // SAFETY: frames of this subsystem are owned by nobody, by `large`, or by a cache of it, which lives as long as
        // a frame names it.
        Some(unsafe { &*owner.cast::<Cache>() })
    }

    /// What one more checked cache needs; `None` if there is no memory.
    #[cfg(not(loom))]
    pub(crate) fn new_tag(&self) -> Option<(Arc<Tags>, u8)> {
        let mut made = None;
        let none = self.tags.lock().0.is_none();
        if none {
            // Made with no lock held.
            let pages = &self.ground.pages;
            let (range, pages) = (pages.address(uslab_buddy::Pfn::new(0)), pages.frames().len() as usize);
            made = Some(Arc::new(Tags::new(range, pages, self.door, &self.faults)?));
        }
        let mut kept = self.tags.lock();
        let tags = match (&kept.0, made) {
            (Some(tags), _) => tags.clone(),
            (None, made) => kept.0.insert(made?).clone(),
        };
        kept.1 += 1;
        // Caches of one tag are told apart by their slabs, later.
        Some((tags, (kept.1 % u64::from(u8::MAX)) as u8 + 1))
    }

    /// Where `RLIMIT_AS` leaves less than `wanted` bytes of addresses, gives up addresses that are only reserved: beside
    /// `wanted`, the rest of the process is to have a quarter of what is not in use. Nothing happens without a limit.
    ///
    /// Cost: a system call; with a limit five more.
    #[cfg(not(any(loom, shuttle)))]
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: Option<usize>) {
        let Some((limit, has)) = address_limit() else { return };
        if wanted.is_some_and(|wanted| wanted <= limit.saturating_sub(has)) {
            return;
        }
        let pages = &self.ground.pages;
        let tags = self.tags.lock().0.as_ref().map_or(0, |tags| tags.reserved());
        let (own, beside) = (pages.reserved_bytes(), self.ground.reserved_beside() + tags);
        // What the pages, and what describes them in proportion, may have together.
        let others = has.saturating_sub(own + beside).saturating_add(wanted.unwrap_or(0));
        let (most, used) = (limit.saturating_sub(others), pages.committed_bytes());
        let keep = used + most.saturating_sub(used) / 4 * 3;
        let keep = (keep as u128 * own as u128 / (own + beside) as u128) as usize;
        if keep < own {
            pages.give_up_addresses(keep);
        }
    }

    /// The same without a wish, and gives up what describes those pages, too, once `told` knows how many are left.
    ///
    /// # Safety
    /// Nobody looks meanwhile at a page that was never handed out, nor later at the class of a page beyond those.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) unsafe fn fit_addresses(&self, told: impl FnOnce(usize)) {
        self.give_up_addresses(None);
        told(self.ground.pages.reserved_bytes() / PAGE_SIZE);
        // SAFETY: passed on; no slab can begin behind these pages.
        unsafe {
            let pages = self.ground.give_up_beside();
            if let Some(tags) = &self.tags.lock().0 {
                tags.cut(pages);
            }
        }
    }

    /// The cache that `memory` is an object of.
    #[cfg(not(loom))]
    pub(crate) fn cache_at(&self, memory: NonNull<u8>) -> Option<&Cache> {
        let pfn = self.ground.pages.pfn_of(memory.as_ptr())?;
        self.cache_of(self.ground.frames().frame(pfn).owner())
    }

    /// Takes what lies on the stacks of `cpus`, of all caches, with one fence a table: it waits until each cache gives its own
    /// away.
    fn sweep(&self, cpus: Range<u32>, which: Which) {
        for (i, cache) in self.caches.iter().enumerate() {
            if i == 0 {
                // Of all caches.
                cache.flush_deferred();
            }
            cache.layer().into_iter().for_each(Layer::ask);
        }
        self.ground.pages.tables().sweep(cpus, which);
    }

    /// See [`Subsystem::shrink`].
    pub(crate) fn shrink(&self, op: &Operation) -> usize {
        self.huge.release();
        self.sweep(0..self.cpus.count(), Which::All);
        let slabs = self.after_sweep(|cache| cache.shrink_swept(op));
        self.ground.pages.tables().release_idle();
        slabs
    }
    /// Takes away what the magazines of `cpus` hold: objects.
    fn drain(&self, cpus: Range<u32>) {
        self.sweep(cpus, Which::All);
        self.after_sweep(|cache| {
            cache.drain_swept();
            0
        });
    }
    /// What `each` cache gives away of what a sweep took: the sum. A panic (of a handler of corruption) goes on when all have done so, the
    /// first one; else the others would be closed up to the next sweep.
    fn after_sweep(&self, each: impl Fn(&Cache) -> usize) -> usize {
        let (mut sum, mut outcome) = (0, Ok(()));
        for cache in self.visit() {
            outcome = outcome.and(catch_panic(|| sum += each(&cache)));
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        sum
    }

    /// Gives all empty slabs back. How many.
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "no reapers in models"))]
    pub(crate) fn discard_empty(&self) -> usize {
        self.visit().map(|cache| cache.discard_empty(&Operation::cold())).sum()
    }

    /// Memory is short: all caches but one give empty slabs back, and keep less from now on; freed mappings go. How many slabs
    /// and mappings.
    pub(crate) fn press(&self, op: &Operation, except: Option<&Cache>) -> usize {
        let others =
            self.visit().filter(|cache| except.is_none_or(|except| !core::ptr::eq(&**cache, except)));
        let slabs = others.inspect(|cache| cache.shrink_magazines()).map(|cache| cache.discard_empty(op));
        slabs.sum::<usize>() + usize::from(self.huge.release() > 0)
    }

    /// See [`Subsystem::reap`].
    pub(crate) fn reap(&self) -> u64 {
        let objects = self.reap_caches();
        self.ground.pages.reap();
        self.huge.end_interval();
        objects
    }
    fn reap_caches(&self) -> u64 {
        self.sweep(0..self.cpus.count(), Which::Idle);
        self.after_sweep(|cache| cache.reap_swept() as usize) as u64
    }

    /// See [`Subsystem::end_interval`].
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn end_interval(&self) -> usize {
        let pages = self.ground.pages.release_idle(|| {
            self.reap_caches();
            self.discard_empty();
        });
        pages + self.huge.end_interval()
    }

    /// Memory may be free again some day: from a certain size on somebody should look after it.
    #[inline]
    pub(crate) fn grown(&self) {
        #[cfg(not(any(loom, shuttle)))]
        if self.background.is_wanted() {
            self.background.start(self.ground.pages.committed_bytes() + self.huge.mapped_bytes());
        }
    }
    /// Pages came back.
    #[inline]
    pub(crate) fn shed(&self) {
        #[cfg(not(any(loom, shuttle)))]
        self.background.wake();
    }

    pub(crate) fn corrupt(&self, corruption: &Corruption<'_>) {
        assert_unlocked();
        (self.corruption)(corruption);
    }

    /// See [`Subsystem::info`].
    pub(crate) fn info(&self) -> Info {
        Info {
            caches: self.caches.iter().map(|cache| cache.info()).collect(),
            kmalloc_large: self.large.info(),
            huge: self.huge.info(),
            drains: self.ground.pages.tables().drains().collect(),
            pages: self.ground.pages.info(),
            #[cfg(not(any(loom, shuttle)))]
            reaper: self.background.info(),
        }
    }
    /// The sums of [`info`](Self::info) that C programs ask for.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn usage(&self) -> HeapUsage {
        let (large, huge) = (self.large.info(), self.huge.info());
        let mut usage = HeapUsage {
            committed: self.ground.pages.committed_bytes(),
            used: large.pages as usize * PAGE_SIZE,
            free_objects: 0,
            huge_pieces: (huge.allocs - huge.frees) as usize,
            huge: huge.pages as usize * PAGE_SIZE,
            huge_cached: huge.cached_pages as usize * PAGE_SIZE,
        };
        for cache in self.caches.iter() {
            let (objects, used) = cache.objects();
            usage.used += used as usize * cache.geometry().stride();
            usage.free_objects += (objects - used) as usize;
        }
        usage
    }
    /// See [`Subsystem::slabinfo`].
    pub(crate) fn slabinfo(&self) -> SlabInfo {
        let caches: Vec<_> = self.caches.iter().map(|cache| cache.info()).collect();
        caches.iter().rev().filter(|cache| cache.had_slabs()).collect()
    }

    /// See [`Subsystem::check`].
    pub(crate) fn check(&self) -> Result<Census, Violation> {
        Census::take(self)
    }
}

/// What a malloc has from the system, and what of it is in use: a snapshot.
#[cfg(not(any(loom, shuttle)))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapUsage {
    /// Bytes of pages that are committed: for objects and blocks up to 4 MiB.
    pub committed: usize,
    /// Of these, bytes of objects and blocks in use.
    pub used: usize,
    /// Objects that are free, in slabs and in magazines.
    pub free_objects: usize,
    /// Pieces above 4 MiB, each a mapping of its own.
    pub huge_pieces: usize,
    /// Their bytes.
    pub huge: usize,
    /// Bytes of freed mappings that are kept for the next such pieces.
    pub huge_cached: usize,
}

/// Everything there is to know about a subsystem: a snapshot. Serialises.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Info {
    /// The caches, oldest first.
    pub caches: Vec<CacheInfo>,
    /// Kmalloc's blocks above the size classes.
    pub kmalloc_large: LargeInfo,
    /// Memory above the largest block.
    pub huge: HugeInfo,
    /// What was taken from CPUs' stacks, of objects and of pages.
    pub drains: DrainInfo,
    /// The pages.
    pub pages: BuddyInfo,
    /// The thread that gives idle memory back by itself.
    #[cfg(not(any(loom, shuttle)))]
    pub reaper: ReaperInfo,
}

impl Info {
    /// `/proc/slabinfo`: the newest cache first, as in the kernel. Of the caches that ever had a slab; most of kmalloc's
    /// sizes never have in most programs.
    pub fn slabinfo(&self) -> SlabInfo {
        self.had_slabs().collect()
    }
    /// The same of all caches.
    pub fn slabinfo_all(&self) -> SlabInfo {
        self.caches.iter().rev().collect()
    }
    /// The kernel's table with statistics.
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics(self)
    }
    pub(crate) fn had_slabs(&self) -> impl Iterator<Item = &CacheInfo> {
        self.caches.iter().rev().filter(|cache| cache.had_slabs())
    }
    /// Operations on all memory by the dearest thing that each did: the caches' and those beyond. Of pages that users ask for
    /// by themselves, and of those under slabs, [`per_cpu_events`](uslab_buddy::ZoneInfo::per_cpu_events) tells.
    pub fn paths(&self) -> Paths {
        let caches = self.caches.iter().map(|cache| cache.paths).sum::<Paths>();
        caches + self.kmalloc_large.paths + self.huge.paths
    }
}

/// Pages, caches and kmalloc. See the [module](self).
///
/// ```
/// use uslab::{Config, Gfp, Subsystem};
/// use uslab_buddy::PageConfig;
/// use uslab_magazine::{Cpus, on_cpu};
///
/// // Four simulated CPUs with 64 MiB.
/// let cpus = Cpus::simulated(4, 1)?;
/// let subsystem = Subsystem::new(Config::new(PageConfig::default_for(cpus).limit(64 << 20)))?;
/// on_cpu(3);
/// let block = subsystem.kmalloc().alloc_block(1000, Gfp::KERNEL)?;
/// drop(block);
/// subsystem.shrink();
/// let census = subsystem.check()?;
/// assert_eq!((census.objects, census.slabs), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subsystem {
    /// Models have none: its 52 caches would be most of each execution.
    #[cfg(not(any(loom, shuttle)))]
    kmalloc: Kmalloc,
    core: Arc<Core>,
}

impl Subsystem {
    /// A subsystem without slabs. Where address space is refused, to the pages or to what describes them, it has fewer
    /// pages than asked for.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(config: Config) -> Result<Self, StartError> {
        // Names and sizes of kmalloc's caches are right by construction: what is left is memory.
        #[cfg(not(any(loom, shuttle)))]
        let made =
            Core::largest(config, |core| Ok(Self { kmalloc: Kmalloc::new(core)?, core: core.clone() }));
        #[cfg(any(loom, shuttle))]
        let made = Core::largest(config, |core| Ok(Self { core: core.clone() }));
        made
    }

    /// The global subsystem, made by the first call: with the default [`Config`], and never dropped.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`StartError::Starting`] when starting it comes back here on the same thread, as it does
    /// below an allocator that is built on it. Calls of other threads never wait: each starts one, and all but the
    /// first are thrown away. Under a checker each execution has one of its own.
    pub fn global() -> Result<&'static Self, StartError> {
        global::get()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Memory of any size.
    #[cfg(not(any(loom, shuttle)))]
    pub fn kmalloc(&self) -> &Kmalloc {
        &self.kmalloc
    }
    /// The page allocator below.
    pub fn pages(&self) -> &PageAllocator {
        &self.core.ground.pages
    }
    /// The CPUs.
    pub fn cpus(&self) -> Cpus {
        self.core.cpus
    }
    /// What decides the order of slabs.
    pub fn rule(&self) -> &OrderRule {
        &self.core.rule
    }

    /// Shrinks every cache, and unmaps the freed mappings that are [kept](crate::huge). Returns the slabs given back.
    pub fn shrink(&self) -> usize {
        self.core.shrink(&Operation::new())
    }
    /// Ends an interval of every cache's magazines, of the per-CPU pages and of [freed mappings](crate::huge). Returns the
    /// objects given back.
    pub fn reap(&self) -> u64 {
        self.core.reap()
    }
    /// Ends a reaping interval, as a [reaper](crate::reaper) does at regular times: [`reap`](Self::reap); all empty slabs go
    /// back to the pages, and as much memory as was free since the last call goes back to the system. Returns the bytes that
    /// went there.
    ///
    /// What was in use at one call is given back by the second one after it, if it was freed meanwhile.
    #[cfg(not(any(loom, shuttle)))]
    pub fn end_interval(&self) -> usize {
        self.core.end_interval()
    }
    /// Takes away what the magazines of `cpus` hold, objects and pages: those CPUs have gone.
    pub fn drain_cpus(&self, cpus: Range<u32>) {
        self.core.drain(cpus.clone());
        self.pages().drain_cpus(cpus);
    }

    /// Asks `shrinker` when memory is short, for as long as the registration lives: see [`shrinker`].
    pub fn register_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        self.core.add_shrinker(Box::new(shrinker), None)
    }

    /// The numbers of every cache, of large blocks, and of the pages.
    pub fn info(&self) -> Info {
        self.core.info()
    }
    /// [`Info::slabinfo`] of now, without looking at the pages.
    pub fn slabinfo(&self) -> SlabInfo {
        self.core.slabinfo()
    }

    /// Walks every slab of every cache and the pages, and checks that everything is where its state says and that
    /// nothing is lost: see [`Census`]. Only while nobody uses the subsystem (a grace period that ends meanwhile on
    /// another thread is a use, too).
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<Census, Violation> {
        self.core.check()
    }
}

/// `/proc/slabinfo` of the global subsystem.
///
/// # Errors
/// The global subsystem could not be started.
pub fn slabinfo() -> Result<SlabInfo, StartError> {
    Ok(Subsystem::global()?.slabinfo())
}

#[cfg(any(loom, shuttle))]
mod global {
    use super::{Config, StartError, Subsystem};
    use uslab_magazine::sync::lazy_static;

    lazy_static! {
        static ref GLOBAL: Result<Subsystem, StartError> = Subsystem::new(Config::default());
    }

    pub(super) fn get() -> Result<&'static Subsystem, StartError> {
        GLOBAL.as_ref().map_err(|error| *error)
    }
}

#[cfg(not(any(loom, shuttle)))]
mod global {
    use super::{Config, StartError, Subsystem};
    use crate::published::Published;
    use core::cell::Cell;
    use uslab_magazine::sync::thread_local;

    static GLOBAL: Published<Subsystem> = Published::new();
    thread_local! {
        static STARTING: Cell<bool> = const { Cell::new(false) };
    }

    /// The thread is starting a subsystem as long as this lives.
    struct Starting;
    impl Drop for Starting {
        fn drop(&mut self) {
            STARTING.set(false);
        }
    }

    pub(super) fn get() -> Result<&'static Subsystem, StartError> {
        match GLOBAL.get() {
            Some(subsystem) => Ok(subsystem),
            None => start(|| Subsystem::new(Config::default())),
        }
    }

    #[cold]
    fn start(make: impl FnOnce() -> Result<Subsystem, StartError>) -> Result<&'static Subsystem, StartError> {
        if STARTING.replace(true) {
            return Err(StartError::Starting);
        }
        let _starting = Starting;
        Ok(GLOBAL.publish(Box::new(make()?)))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_start_that_comes_back_to_itself_is_told_so_and_goes_on() {
            let mut inner = None;
            let started = start(|| {
                inner = Some(get().map(drop));
                Subsystem::new(Config::default())
            });
            assert!(started.is_ok());
            // Unless another test had started it before.
            assert!(matches!(inner, Some(Err(StartError::Starting) | Ok(()))));
            assert!(core::ptr::eq(started.unwrap(), get().unwrap()), "one winner for all");
        }

        #[test]
        fn a_failed_start_can_be_tried_again() {
            assert!(start(|| Err(StartError::SideTable)).is_err());
            assert!(get().is_ok());
        }

        #[test]
        fn threads_that_start_it_at_once_agree() {
            let threads: Vec<_> =
                (0..4).map(|_| std::thread::spawn(|| core::ptr::from_ref(get().unwrap()).addr())).collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen.iter().all(|at| *at == seen[0]));
        }
    }
}

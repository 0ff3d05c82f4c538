//! The shared state of a subsystem's caches. Other modules act on the shared state: [`reclaim`](super::reclaim)
//! frees memory, [`large`](crate::size::large) allocates large memory, and [`info`](crate::report::info) makes
//! reports.

use super::config::Config;
use super::per_cpu::Magazines;
use super::{Cache, Owner};
use crate::debug::corruption::{self, Corruption, CorruptionKind};
use crate::debug::faults::Faults;
use crate::debug::flags::DebugRules;
use crate::debug::gdb;
use crate::debug::tags::Tags;
use crate::error::{CacheError, StartError};
use crate::geometry::OrderRule;
use crate::guard::Guard;
use crate::harden::{Harden, Mappings, RandomKeys};
use crate::memory::huge::Huge;
use crate::memory::large_blocks::{LargeBlocks, large};
use crate::memory::slab_memory::SlabMemory;
use crate::profile::{NotStarted, Profiler, SEPARATE_MEMORY_MIN_RATE, SampleMemory};
use crate::reclaim::pressure::number;
#[cfg(any(not(loom), crossbeam_loom))]
use crate::reclaim::rcu::DeferredFrees;
use crate::reclaim::reaper::BackgroundReaper;
use crate::reclaim::shrinker::Shrinkers;
use crate::registry::List;
use crate::registry::Registry;
use core::fmt;
use core::ptr::NonNull;
use std::sync::{Arc, Weak};
use uslab_buddy::region::Backend;
use uslab_buddy::{PAGE_SIZE, PageAllocator, PageConfig};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{
    AtomicBool, AtomicU32, ContainedValue, Counter, MODEL, Rank, assert_unlocked, contain_panic,
};
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{Cpus, Operation};

/// Cache name in reports if no cache is known.
pub(crate) const UNKNOWN_CACHE: &str = "kmalloc";
/// Minimum size of a subsystem in pages (4 MiB). The start reduces the subsystem's size down to this minimum if the
/// system refuses more pages.
const MIN_PAGES: usize = 1024;

/// The shared state of a subsystem's caches.
pub(crate) struct Core {
    pub(crate) memory: SlabMemory,
    pub(crate) cpus: Cpus,
    pub(crate) backend: Backend,
    pub(crate) faults: Faults,
    pub(crate) rule: OrderRule,
    pub(crate) magazines: Magazines,
    pub(crate) check_frees: bool,
    pub(crate) heed_limits: bool,
    pub(crate) slab_debug: DebugRules,
    /// True if any cache has red zones.
    zones: AtomicBool,
    pub(crate) harden: Harden,
    pub(crate) mappings: Mappings,
    pub(crate) secret: RandomKeys,
    pub(crate) guard: Guard,
    pub(crate) large: LargeBlocks,
    #[cfg(any(not(loom), crossbeam_loom))]
    pub(crate) deferred: DeferredFrees,
    /// Tag table of checked frees, which the first checked cache creates, and the number of checked caches so far.
    pub(crate) tags: ForkMutex<(Option<Arc<Tags>>, u64)>,
    pub(crate) huge: Huge,
    /// Number of caches that have waiters.
    pub(crate) waited_for: AtomicU32,
    /// Number of times that objects with a destructor were freed to their slabs.
    pub(crate) idle_objects: Counter,
    /// Number of forks between the process that created the subsystem and this process. A fork is counted only if other
    /// threads were running.
    pub(crate) forks: Counter,
    corruption: ContainedValue<Arc<corruption::Handler>>,
    pub(crate) caches: Registry<Cache>,
    /// Caches that several users may share.
    pub(crate) mergeable: Registry<Owner>,
    pub(crate) shrinkers: Arc<Shrinkers>,
    pub(crate) background: BackgroundReaper,
    pub(crate) profiler: Profiler,
    seen: gdb::DebuggerEntry,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("cpus", &self.cpus).field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// Returns the tag of the next checked cache. Two caches may have the same tag, and are then distinguished by their
/// slabs.
fn next_tag(caches: &mut u64) -> u8 {
    *caches += 1;
    (*caches % u64::from(u8::MAX)) as u8 + 1
}

impl Core {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, StartError> {
        let (cpus, backend, faults) = (config.pages.cpus, config.pages.backend, config.pages.faults.clone());
        let huge_pages = config.pages.huge_pages;
        let beside = (SlabMemory::METADATA_BYTES_PER_PAGE, Huge::MAPPING_TABLE_BYTES);
        let mut pages = PageAllocator::new(PageConfig { beside, ..config.pages })?;
        let mut addresses = pages.take_table_reservation();
        let mappings =
            (config.harden.is_on() && !MODEL).then(|| number(&["/proc/sys/vm/max_map_count"])).flatten();
        let mappings = Mappings::of(mappings);
        let guards = if config.harden.guard_pages { mappings.max_guarded_mappings() } else { 0 };
        let huge =
            Huge::new(&mut addresses, huge_pages, config.huge_cache, guards).ok_or(StartError::SideTable)?;
        let memory = SlabMemory::new(pages, &mut addresses).ok_or(StartError::SideTable)?;
        let hides = cfg!(all(target_os = "linux", not(uslab_heap))) && backend == Backend::Os;
        let secret = RandomKeys::new(&config.harden);
        let core = Arc::new_cyclic(|_this: &Weak<Self>| Self {
            memory,
            huge,
            mappings,
            waited_for: AtomicU32::new(0),
            idle_objects: Counter::new(0),
            cpus,
            backend,
            faults,
            rule: config.rule,
            magazines: config.magazines,
            check_frees: config.check_frees,
            heed_limits: config.heed_limits,
            slab_debug: config.slab_debug,
            zones: AtomicBool::new(false),
            // Zero-size objects can be made inaccessible only if the pages come from a mapping.
            harden: Harden { zero_size: config.harden.zero_size && hides, ..config.harden },
            guard: Guard::new(config.guard_every, config.guard_slots, backend, secret.next()),
            secret,
            large: LargeBlocks::default(),
            #[cfg(any(not(loom), crossbeam_loom))]
            deferred: DeferredFrees::new(&cpus),
            tags: ForkMutex::new(Rank::Tags, (None, 0)),
            forks: Counter::new(0),
            corruption: ContainedValue::new(config.corruption),
            caches: Registry::new(Rank::Caches),
            mergeable: Registry::new(Rank::Mergeable),
            shrinkers: Arc::new(Shrinkers::new()),
            background: BackgroundReaper::new(_this.clone() as Weak<_>, config.reap_every),
            profiler: Profiler::new(cpus.count() as usize),
            seen: gdb::DebuggerEntry::new(),
        });
        core.seen.list(core.describe_for_debuggers());
        core.adapt_to_memory_limits();
        Ok(core)
    }
    fn describe_for_debuggers(&self) -> gdb::SubsystemDescription {
        let (pages, frames) = (&self.memory.pages, self.memory.frames());
        let first = uslab_buddy::Pfn::new(0);
        gdb::SubsystemDescription {
            pages: pages.address(first).addr().get(),
            len: pages.max_pages(),
            frames: core::ptr::from_ref(frames.frame(first)).addr(),
            side: self.memory.side().addr(),
            large: large().addr(),
            caches: self.caches.list().place().addr(),
            list: List::<Cache>::LAYOUT,
            cache: Cache::DESCRIPTION_OFFSET,
            bands: super::node::BANDS,
        }
    }

    /// Calls `make` with a new core. If the system refuses addresses for pages or tables, retries with half as many
    /// pages.
    pub(crate) fn start_retrying_fewer_pages<T>(
        mut config: Config,
        mut make: impl FnMut(&Arc<Self>) -> Result<T, CacheError>,
    ) -> Result<T, StartError> {
        loop {
            let started =
                Self::new(config.clone()).and_then(|core| make(&core).map_err(|_| StartError::Kmalloc));
            let pages = config.pages.nodes.iter().flatten().map(|(_, pages)| *pages as usize).sum::<usize>();
            match started {
                // The pages have taken nearly all available addresses, and too few are left for the
                // tables.
                Err(StartError::SideTable | StartError::Kmalloc) if pages > MIN_PAGES => {
                    let limited = config.pages.limited;
                    config.pages = PageConfig { limited, ..config.pages.limit(pages / 2 * PAGE_SIZE) };
                }
                started => return started,
            }
        }
    }

    /// Starts an operation that is not on behalf of a cache.
    pub(crate) fn operation(&self, what: OperationKind) -> Operation<'_> {
        Operation::of(self.memory.pages.tracepoints(), what, "")
    }

    /// Records that a cache was created; `there` is true if the cache has red zones.
    pub(crate) fn note_red_zones(&self, there: bool) {
        if there {
            // Relaxed: a thread that has an object of the cache got the object after `zones` was set.
            self.zones.store(true, Relaxed);
        }
    }
    pub(crate) fn has_red_zone_caches(&self) -> bool {
        // Relaxed: a thread that has an object with red zones got the object after `note_red_zones`.
        self.zones.load(Relaxed)
    }

    /// Finds a shareable cache for which `fits` returns `true`.
    pub(crate) fn mergeable(&self, fits: impl Fn(&Cache) -> bool) -> Option<Arc<Owner>> {
        self.mergeable.iter().find(|owner| fits(owner.cache()))
    }

    /// Returns the cache that a frame's owner word names, or `None` if the frame belongs to a large block.
    #[inline(always)]
    pub(crate) fn cache_of(&self, owner: *mut u8) -> Option<&Cache> {
        if owner.is_null() || owner == large() {
            return None;
        }
        // SAFETY: the owner word of a frame is null, `large`, or a cache of this subsystem. A cache lives as long as
        // any frame names it.
        Some(unsafe { &*owner.cast::<Cache>() })
    }

    /// Returns the tag table and the tag for a new checked cache, or `None` if memory is short.
    pub(crate) fn allocate_cache_tag(&self) -> Option<(Arc<Tags>, u8)> {
        let mut new_tags = None;
        let has_none = self.tags.lock().0.is_none();
        if has_none {
            // Tags are made with no lock held.
            let pages = &self.memory.pages;
            let range = pages.address(uslab_buddy::Pfn::new(0));
            let (most, apart) = (pages.max_pages(), pages.min_table_spacing());
            new_tags = Some(Arc::new(Tags::new(range, most, apart, self.backend, &self.faults)?));
        }
        let mut shared_tags = self.tags.lock();
        let tags = match (&shared_tags.0, new_tags) {
            (Some(tags), _) => tags.clone(),
            (None, new_tags) => shared_tags.0.insert(new_tags?).clone(),
        };
        let tag = next_tag(&mut shared_tags.1);
        Some((tags, tag))
    }

    pub(crate) fn start_profile(&self, rate: usize, seed: Option<u64>) -> Result<(), NotStarted> {
        self.start_profile_with(rate, seed, rate >= SEPARATE_MEMORY_MIN_RATE)
    }
    /// Starts a profile. If `own_memory` is true, sampled malloc allocations get separate memory.
    pub(crate) fn start_profile_with(
        &self,
        rate: usize,
        seed: Option<u64>,
        own_memory: bool,
    ) -> Result<(), NotStarted> {
        // If some pages have no addresses, sized frees may mistake foreign addresses for pages.
        let own_memory = own_memory && !self.memory.pages.has_unmapped_pages();
        let own_memory = own_memory.then_some(|| SampleMemory::new(self.backend, &self.faults));
        self.profiler
            .start(rate, seed, own_memory, |with_frees| self.memory.pages.tables().close_inlined(with_frees))
    }
    pub(crate) fn stop_profile(&self) -> bool {
        self.profiler.stop(|| self.memory.pages.tables().open_inlined())
    }
    /// Reports a large block or a mapping to the profile, before a user gets the memory.
    pub(crate) fn profile_large_alloc(&self, _memory: NonNull<u8>, _bytes: usize, _name: &str) {
        self.profiler.allocated(|| self.cpus.current(), _memory, _bytes, _name);
    }
    /// Reports a free to the profile before another thread can get the memory.
    #[inline(always)]
    pub(crate) fn profile_free(&self, _memory: NonNull<u8>) {
        self.profiler.freed(_memory);
    }

    pub(crate) fn cache_at(&self, memory: NonNull<u8>) -> Option<&Cache> {
        let pfn = self.memory.pages.pfn_of(memory.as_ptr())?;
        self.cache_of(self.memory.frames().frame(pfn).owner())
    }

    /// Starts the reaper if the subsystem has grown large enough to have memory to return.
    #[inline]
    pub(crate) fn note_subsystem_growth(&self) {
        if self.background.is_wanted() {
            self.background.start(self.memory.pages.committed_bytes() + self.huge.mapped_bytes());
        }
    }
    /// Wakes the reaper after pages were freed.
    #[inline]
    pub(crate) fn note_freed_pages(&self) {
        self.background.wake();
    }
    /// Starts or wakes the reaper, because a new object with a destructor may own memory outside its slab.
    #[inline]
    pub(crate) fn note_new_object(&self) {
        if self.background.is_wanted() {
            self.background.start_or_wake_reaper();
        }
    }
    /// Wakes the reaper after objects with a destructor were freed to their slabs.
    #[inline]
    pub(crate) fn note_freed_objects(&self) {
        {
            self.idle_objects.add(1);
            self.background.wake();
        }
    }

    pub(crate) fn report(&self, corruption: &Corruption<'_>) {
        assert_unlocked();
        contain_panic(|| (self.corruption)(corruption));
    }
    #[cold]
    pub(crate) fn refuse(&self, kind: CorruptionKind, memory: NonNull<u8>) {
        self.report_refused_free(UNKNOWN_CACHE, kind, memory);
    }
    #[cold]
    pub(crate) fn report_refused_free(&self, cache: &str, kind: CorruptionKind, memory: NonNull<u8>) {
        self.tell(kind, memory, cache, self.cache_at(memory).map(Cache::name), None);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::cell::RefCell;

    #[test]
    fn zero_size_address_is_inaccessible_in_a_hardened_subsystem() {
        for (asked, backend) in
            [(true, Backend::Os), (true, Backend::Heap), (false, Backend::Os), (false, Backend::Heap)]
        {
            let mut config = Config::new(crate::shadow::pages(1, 1, 16 << 20));
            config.pages.backend = backend;
            config.harden = Harden { zero_size: asked, ..Harden::OFF };
            let core = Core::new(config).unwrap();
            let maps = cfg!(all(target_os = "linux", not(uslab_heap))) && backend == Backend::Os;
            assert_eq!(core.harden.zero_size, asked && maps, "{backend:?}");
        }
    }

    /// The corruption handler may allocate and free memory.
    #[cfg(debug_assertions)]
    #[test]
    fn corruption_handler_is_called_without_a_lock_held() {
        let mut config = Config::new(crate::shadow::pages(1, 1, 16 << 20));
        let called = Arc::new(uslab_magazine::sync::Counter::new(0));
        let count = called.clone();
        config.corruption = Arc::new(move |_: &Corruption<'_>| count.add(1));
        let core = Core::new(config).unwrap();
        let refuse = || core.refuse(CorruptionKind::Foreign, NonNull::dangling());
        {
            let _held = core.caches.list().lock();
            assert!(uslab_magazine::sync::catch_panic(refuse).is_err());
        }
        assert_eq!(called.get(), 0);
        refuse();
        assert_eq!(called.get(), 1);
    }

    #[test]
    fn subsystem_start_retries_with_half_the_pages() {
        let (config, tried) = (Config::new(crate::shadow::pages(1, 1, 64 << 20)), RefCell::new(vec![]));
        let started = Core::start_retrying_fewer_pages(config, |core| {
            tried.borrow_mut().push(core.memory.frames().len() as usize);
            Err::<(), _>(CacheError::Memory)
        });
        assert_eq!(started.err(), Some(StartError::Kmalloc));
        let tried = tried.into_inner();
        assert!(tried.len() > 2 && tried.is_sorted_by(|more, fewer| *more > *fewer), "{tried:?}");
        assert!(tried[tried.len() - 2] > MIN_PAGES && tried[tried.len() - 1] <= MIN_PAGES, "{tried:?}");
    }
}

//! The data that all threads of a stress run share: a subsystem with caches of many kinds, and functions that allocate
//! from them.

use super::stamp::Pattern;
use super::{FaultSpec, FreedObjectHook};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab::{
    Block, Census, Config, Corruption, Faults, Gfp, KmallocKind, KmemCache, Limit, Magazines, Malloc,
    SizeClass, Subsystem,
};
use uslab_buddy::{Order, PageBlock};
use uslab_magazine::sync::{AtomicBool, Counter, Ordering::Relaxed};

/// The kind of a cache in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The cache has no constructor, so the contents of a free object are arbitrary.
    Raw,
    /// The cache has a constructor, and free objects always contain the free pattern.
    Constructed,
    /// The cache has a constructor, and its freed pages are reused only after a grace period.
    TypeStable,
    /// The cache has a constructor, and a memory limit that the workloads reach.
    Limited,
    /// The cache has a constructor, and magazines of this capacity and stock; 0 disables magazines.
    Sized(u16, u16),
}

/// The memory limit of the one cache that has a limit, in slabs.
const LIMIT: u32 = 8;

/// The world's caches: name, object size in bytes, kind, and the number of such objects in a process. Every
/// workload uses the caches before [`FIRST_PROCESS_CACHE_INDEX`]. The caches from this index on hold the objects of a
/// process; their object sizes are from a 6.1 kernel.
const CACHES: [(&str, usize, Kind, usize); 20] = [
    ("word", 8, Kind::Raw, 0),
    ("raw-64", 64, Kind::Raw, 0),
    ("built-64", 64, Kind::Constructed, 0),
    ("built-200", 200, Kind::Constructed, 0),
    ("raw-1000", 1000, Kind::Raw, 0),
    ("built-4000", 4000, Kind::Constructed, 0),
    ("magazine-1", 64, Kind::Sized(1, 0), 0),
    ("magazine-3", 96, Kind::Sized(3, 1), 0),
    ("no-magazines", 128, Kind::Sized(0, 0), 0),
    ("limited", 256, Kind::Limited, 0),
    ("type-stable", 128, Kind::TypeStable, 0),
    ("task_struct", 3520, Kind::Raw, 1),
    ("mm_struct", 1088, Kind::Constructed, 1),
    ("signal_cache", 1152, Kind::Constructed, 1),
    ("sighand_cache", 2112, Kind::TypeStable, 1),
    ("files_cache", 704, Kind::Raw, 1),
    ("cred_jar", 184, Kind::Raw, 2),
    ("pid", 136, Kind::Raw, 1),
    ("vm_area_struct", 200, Kind::Raw, 24),
    ("anon_vma", 104, Kind::Constructed, 12),
];
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CACHES.iter().map(|cache| cache.0)
}

/// The index of the first cache for the objects of a process.
const FIRST_PROCESS_CACHE_INDEX: usize = 11;

/// The source from which an object is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// One of the world's caches, by its number.
    Cache(u8),
    /// Kmalloc, with this number of bytes.
    Kmalloc(u32),
    /// Malloc, with this number of bytes and this alignment.
    Malloc(u32, u16),
    Pages(Order),
    /// A temporary cache.
    Temporary,
}

impl Source {
    /// Returns the sources that any workload may use.
    pub(super) fn common() -> impl Iterator<Item = Self> {
        (0..FIRST_PROCESS_CACHE_INDEX as u8).map(Self::Cache)
    }
    /// Returns the sources of the objects of a process.
    pub(super) fn family() -> impl Iterator<Item = Self> {
        let kinds = (FIRST_PROCESS_CACHE_INDEX..).zip(&CACHES[FIRST_PROCESS_CACHE_INDEX..]);
        let objects = kinds.flat_map(|(at, kind)| (0..kind.3).map(move |_| Self::Cache(at as u8)));
        // The last two are the page table's root and the stack of the process.
        objects.chain([0, 2].into_iter().filter_map(Order::new).map(Self::Pages))
    }
    /// Returns `true` if an object of this source consists of pages, and `false` if a cache serves it.
    fn is_served_by_pages(self) -> bool {
        match self {
            Self::Kmalloc(size) | Self::Malloc(size, _) => size as usize > uslab::malloc::MAX_CLASS,
            _ => false,
        }
    }
    /// Returns `true` if the free objects of this source contain the free pattern.
    pub(super) fn is_constructed(self) -> bool {
        matches!(self, Self::Cache(at) if CACHES[usize::from(at)].2 != Kind::Raw)
    }
    /// Returns `true` if an allocation from this source may be refused even without an injected fault.
    pub(super) fn may_refuse_allocation(self) -> bool {
        matches!(self, Self::Cache(at) if CACHES[usize::from(at)].2 == Kind::Limited)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(at) => f.write_str(CACHES[usize::from(*at)].0),
            Self::Kmalloc(size) => write!(f, "kmalloc of {size} bytes"),
            Self::Malloc(size, align) => write!(f, "malloc of {size} bytes, aligned to {align}"),
            Self::Pages(order) => write!(f, "pages of order {order}"),
            Self::Temporary => f.write_str("a temporary cache"),
        }
    }
}

/// Memory that a stress thread owns.
#[derive(Debug)]
pub(super) enum Memory<'w> {
    /// An object, or a large block from the page allocator.
    Block(Block<'w>),
    Pages(PageBlock<'w>),
}

impl Memory<'_> {
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Block(block) => block.address().addr().get(),
            Self::Pages(block) => block.bytes().as_ptr().addr(),
        }
    }
    /// Returns the size of the memory in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Block(block) => block.layout().size(),
            Self::Pages(block) => block.order().bytes(),
        }
    }
    /// Returns the first `n` bytes of the memory, or all bytes if the memory is smaller.
    pub(super) fn front(&self, n: usize) -> &[u8] {
        match self {
            Self::Block(block) => block.front(n),
            Self::Pages(block) => &block.bytes()[..n.min(block.order().bytes())],
        }
    }
    /// Returns the bytes of [`front`](Self::front) for writing.
    pub(super) fn front_mut(&mut self, n: usize) -> &mut [u8] {
        match self {
            Self::Block(block) => block.front_mut(n),
            Self::Pages(block) => {
                let n = n.min(block.order().bytes());
                &mut block.bytes_mut()[..n]
            }
        }
    }
}

/// A violation of the allocator's guarantees.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    /// The time of the violation since the start of the run.
    pub(super) at: Duration,
    /// A description of the violation.
    pub(super) what: String,
    /// The address of the object, if the violation concerns an object.
    pub(super) address: Option<usize>,
    /// The numbers of the seats involved.
    pub(super) seats: Vec<u16>,
}

const TEMPORARY: usize = 4;

/// The data that all stress threads share.
pub(super) struct World {
    pub(super) subsystem: Subsystem,
    pub(super) malloc: Malloc,
    caches: Vec<KmemCache>,
    /// The temporary caches, which the threads replace.
    pub(super) temporary: [Mutex<Arc<KmemCache>>; TEMPORARY],
    pub(super) faults: Faults,
    /// `true` if the run injects faults, so that any allocation may be refused.
    pub(super) faulty: bool,
    pub(super) seed: u64,
    pub(super) saboteur: Option<FreedObjectHook>,
    /// `true` when threads should end their turns.
    pub(super) pause: Arc<AtomicBool>,
    /// The number of operations so far, updated after each turn.
    pub(super) operations: Counter,
    start: Instant,
    violations: Arc<Mutex<Vec<Violation>>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}

impl World {
    /// Creates the world with empty caches; its faults are not armed yet.
    pub(super) fn new(
        seed: u64,
        faults: Option<&FaultSpec>,
        saboteur: Option<FreedObjectHook>,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let violations = Arc::new(Mutex::new(Vec::new()));
        let mut config = Config { check_frees: true, ..Config::default() };
        config.pages.faults = Faults::new(seed);
        let pause = Arc::new(AtomicBool::new(false));
        let (heard, stop, faulty) = (violations.clone(), pause.clone(), faults.is_some());
        config.corruption = Arc::new(move |corruption: &Corruption<'_>| {
            heard.lock().push(Violation {
                at: start.elapsed(),
                what: corruption.to_string(),
                address: Some(corruption.address),
                seats: Vec::new(),
            });
            // The threads stop immediately, while their logs still have the operations before the violation.
            stop.store(true, Relaxed);
        });
        let faults = config.pages.faults.clone();
        let subsystem = Subsystem::new(config)?;
        let cache = |(name, size, kind, _): &(&str, usize, Kind, usize)| {
            let builder = KmemCache::builder(*name, *size);
            let built = builder.ctor(move |bytes| Pattern::free(seed).write(bytes));
            match *kind {
                Kind::Raw => KmemCache::builder(*name, *size),
                Kind::Constructed => built,
                Kind::TypeStable => built.type_stable(),
                Kind::Limited => built.limit(Limit::Slabs(LIMIT)),
                Kind::Sized(0, _) => built.magazines(Magazines::Off),
                Kind::Sized(capacity, stock) => {
                    built.magazines(Magazines::Sized { capacity, stock, depot_limit: 2 })
                }
            }
            .build_in(&subsystem)
        };
        let caches = CACHES.iter().map(cache).collect::<Result<_, _>>()?;
        let temporary =
            || KmemCache::builder("temporary", 100).build_in(&subsystem).map(Arc::new).map(Mutex::new);
        Ok(Self {
            malloc: Malloc::new(&subsystem)?,
            caches,
            temporary: [temporary()?, temporary()?, temporary()?, temporary()?],
            subsystem,
            faults,
            faulty,
            seed,
            saboteur,
            pause,
            operations: Counter::new(0),
            start,
            violations,
        })
    }

    /// Returns the time since the start of the run.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }
    /// Returns the cache of a source, if the source is one of the world's caches.
    pub(super) fn cache(&self, source: Source) -> Option<&KmemCache> {
        match source {
            Source::Cache(at) => self.caches.get(usize::from(at)),
            _ => None,
        }
    }

    pub(super) fn alloc(&self, source: Source) -> Result<Memory<'_>, uslab::AllocError> {
        let gfp = Gfp::KERNEL;
        match source {
            Source::Cache(at) => self.caches[usize::from(at)].alloc_block(gfp).map(Memory::Block),
            Source::Kmalloc(size) => {
                self.subsystem.kmalloc().alloc_block(size as usize, gfp).map(Memory::Block)
            }
            Source::Malloc(size, align) => {
                let layout = Layout::from_size_align(size as usize, usize::from(align));
                let layout = layout.map_err(|_| uslab::AllocError::TooLarge)?;
                self.malloc.alloc_block(layout, gfp).map(Memory::Block)
            }
            Source::Pages(order) => {
                self.subsystem.pages().alloc_block(order, gfp, None).map(Memory::Pages).map_err(Into::into)
            }
            // Threads take a temporary cache out of its slot and allocate from that cache themselves.
            Source::Temporary => Err(uslab::AllocError::Destroyed),
        }
    }

    /// Calls the function that can corrupt an object, for an object that was just freed.
    pub(super) fn freed(&self, source: Source, address: NonNull<u8>) {
        if let (Some(saboteur), Some(cache)) = (&self.saboteur, self.cache(source))
            && saboteur(cache, address)
        {
            self.pause.store(true, Relaxed);
        }
    }

    /// Records a violation, and stops all threads.
    pub(super) fn violated(&self, violation: Violation) {
        self.violations.lock().push(violation);
        self.pause.store(true, Relaxed);
    }
    /// Returns the violations found so far, in order of time.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut all = self.violations.lock().clone();
        all.sort_by_key(|violation| violation.at);
        all
    }
    /// Returns `true` if threads should end their turns.
    pub(super) fn is_paused(&self) -> bool {
        self.pause.load(Relaxed)
    }

    /// Waits until all deferred pages have passed their grace period. The caller must ensure that no thread holds an
    /// RCU guard (`uslab::rcu::pin`).
    pub(super) fn grace(&self) {
        for _ in 0..1000 {
            if self.subsystem.info().caches.iter().all(|cache| cache.grace == 0) {
                return;
            }
            uslab::rcu::advance();
        }
    }

    /// Compares the objects that threads hold with the caches' counts of objects in use, and with a walk of
    /// all slabs and pages. The parameter `held` has the source and address of each object. The caller must
    /// ensure that no other thread runs.
    pub(super) fn census(&self, held: &[(Source, usize)]) -> Result<Census, CensusError> {
        self.grace();
        let census = self
            .subsystem
            .check()
            .map_err(|violation| CensusError { what: violation.to_string(), address: None })?;
        let (mut caches, mut classes, mut large, mut blocks) = (BTreeMap::<u8, u64>::new(), 0, 0, 0);
        for &(source, _) in held {
            match source {
                Source::Cache(at) => *caches.entry(at).or_default() += 1,
                Source::Pages(order) => blocks += u64::from(order.pages()),
                Source::Kmalloc(size) | Source::Malloc(size, _) if source.is_served_by_pages() => {
                    large += Order::for_bytes(size as usize).map_or(0, |order| u64::from(order.pages()));
                }
                Source::Kmalloc(_) | Source::Malloc(..) | Source::Temporary => classes += 1,
            }
        }
        for (at, cache) in (0..).zip(&self.caches) {
            if caches.get(&at).copied().unwrap_or(0) != cache.info().used {
                let of_cache = held.iter().filter(|(source, _)| *source == Source::Cache(at));
                return Err(missing_objects_error(cache, &of_cache.map(|(_, address)| *address).collect()));
            }
        }
        let info = self.subsystem.info();
        let books = [
            ("pages of large blocks", large, info.kmalloc_large.pages),
            ("pages of large blocks, as the census found them", large, census.large_pages),
            ("pages of other blocks", blocks, census.block_pages),
            ("objects", classes + caches.values().sum::<u64>(), census.used),
            ("objects, by the caches", census.used, info.caches.iter().map(|c| c.used).sum()),
        ];
        match books.into_iter().find(|(_, held, used)| held != used) {
            Some((what, count, used)) => {
                let held = held.iter().map(|(_, address)| *address).collect();
                let lost = self
                    .classes()
                    .find_map(|cache| Some((cache, objects_without_holder(cache, &held).pop_first()?)));
                let mut what = format!("{what}: threads hold {count}, but {used} are in use");
                if let Some((cache, address)) = lost {
                    what = format!("cache {}: {what}; no thread holds {address:#x}", cache.name());
                }
                Err(CensusError { what, address: lost.map(|(_, address)| address) })
            }
            None => Ok(census),
        }
    }

    /// Returns the caches of kmalloc's and malloc's size classes.
    fn classes(&self) -> impl Iterator<Item = &KmemCache> {
        let kmalloc = self.subsystem.kmalloc();
        let kinds = KmallocKind::ALL.into_iter();
        let classes =
            kinds.flat_map(move |kind| SizeClass::all().map(move |class| kmalloc.cache(kind, class)));
        classes.chain(self.malloc.caches())
    }
}

/// Returns the objects that a cache counts as in use although no thread holds them. The search for unowned objects
/// empties the cache's magazines, so it runs only after an error.
fn objects_without_holder(cache: &KmemCache, held: &BTreeSet<usize>) -> BTreeSet<usize> {
    let used = cache.live();
    used.iter().map(|object| object.addr().get()).filter(|address| !held.contains(address)).collect()
}

/// An error that a census found, with the address of one object that it concerns.
#[derive(Debug)]
pub(super) struct CensusError {
    pub(super) what: String,
    pub(super) address: Option<usize>,
}

/// The largest number of addresses in an error message.
const MAX_LISTED_ADDRESSES: usize = 8;

/// Returns the error for a cache whose objects in use are not the objects that the threads hold.
fn missing_objects_error(cache: &KmemCache, held: &BTreeSet<usize>) -> CensusError {
    let counted = cache.info().used;
    let mut what =
        format!("cache {}: objects: threads hold {}, but {counted} are in use", cache.name(), held.len());
    let lost = objects_without_holder(cache, held);
    if !lost.is_empty() {
        let named: Vec<String> =
            lost.iter().take(MAX_LISTED_ADDRESSES).map(|address| format!("{address:#x}")).collect();
        let more = if lost.len() > MAX_LISTED_ADDRESSES { ", ..." } else { "" };
        what += &format!("; no thread holds {}{more}", named.join(", "));
    }
    CensusError { what, address: lost.first().copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a census that found a missing object named neither the cache nor the object.
    #[test]
    fn leaked_object_is_reported_with_its_cache() {
        let world = World::new(7, None, None).unwrap();
        let sources = [(Source::Cache(1), "raw-64"), (Source::Kmalloc(100), "kmalloc-128")];
        for (source, cache) in sources.into_iter().chain([(Source::Malloc(100, 8), "malloc-")]) {
            let (kept, lost) = (world.alloc(source).unwrap(), world.alloc(source).unwrap());
            let held = [(source, kept.address())];
            let missing = world.census(&held).unwrap_err();
            assert_eq!(missing.address, Some(lost.address()), "{}", missing.what);
            let named = format!("no thread holds {:#x}", lost.address());
            assert!(missing.what.starts_with(&format!("cache {cache}")), "{}", missing.what);
            assert!(missing.what.contains(&named), "{}", missing.what);
            drop((kept, lost));
            world.census(&[]).unwrap();
        }
    }
}

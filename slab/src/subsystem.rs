//! A subsystem: the pages, the caches on them, and kmalloc.
//!
//! Several may coexist (tests, the simulator); the plain API uses one global subsystem, made on first use. A cache keeps its
//! subsystem alive, not the other way round: the registry only lists the caches, for reports and for memory pressure.

use crate::cache::Account;
pub use crate::cache::config::{Config, KEEP_FREE};
use crate::cache::core::Core;
use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
#[cfg(all(doc, not(loom)))]
use crate::debug::profile::DEFAULT_RATE;
use crate::debug::profile::{NotStarted, Profile};
use crate::error::CacheError;
pub use crate::error::StartError;
use crate::geometry::OrderRule;
#[cfg(doc)]
use crate::observe::Counts;
use crate::observe::{Observed, Observer, TooManyObservers};
use crate::reclaim::reaper::Reap;
use crate::reclaim::reaper::{Reaper, ReaperBuilder};
use crate::reclaim::shrinker::{Registration, Shrinker};
use crate::report::census::{Census, Violation};
pub use crate::report::info::HeapUsage;
pub use crate::report::info::Info;
use crate::report::info::SlabInfo;
use crate::report::leaks::Holders;
#[cfg(not(any(loom, shuttle)))]
use crate::size::kmalloc::Kmalloc;
#[cfg(not(any(loom, shuttle)))]
use crate::size::malloc::Malloc;
use core::ops::Range;
use std::io;
use std::sync::Arc;
use uslab_buddy::PageAllocator;
use uslab_magazine::Cpus;
use uslab_magazine::tracepoints::What;

/// Pages, caches and kmalloc. See the [module](self).
///
/// ```
/// use uslab::{Config, Gfp, Subsystem};
/// use uslab::buddy::PageConfig;
/// use uslab::magazine::{Cpus, on_cpu};
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
    /// Makes a subsystem without slabs. If the system refuses address space for the pages or their metadata, it has fewer pages
    /// than configured.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(config: Config) -> Result<Self, StartError> {
        // Names and sizes of kmalloc's caches are valid, so memory is the only possible error.
        #[cfg(not(any(loom, shuttle)))]
        let made = Core::start_with_fewer_pages(config, |core| {
            Ok(Self { kmalloc: Kmalloc::new(core)?, core: core.clone() })
        });
        #[cfg(any(loom, shuttle))]
        let made = Core::start_with_fewer_pages(config, |core| Ok(Self { core: core.clone() }));
        made
    }

    /// The global subsystem, made by the first call with the default [`Config`], and never dropped.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`StartError::Starting`] if starting it calls this on the same thread, as happens below an
    /// allocator that is built on it. Calls of other threads never wait: each starts a subsystem, and all but the first are
    /// dropped. Under a checker each execution has a separate one.
    pub fn global() -> Result<&'static Self, StartError> {
        global::get()
    }

    /// Makes the global subsystem with the program's [`Config`]; call it at the start, before the first use of the global one.
    ///
    /// ```standalone_crate
    /// use uslab::{Config, KmemCache, StartError, Subsystem};
    /// use std::time::Duration;
    ///
    /// let config = Config { reap_every: Some(Duration::from_secs(1)), ..Config::default() };
    /// let global = Subsystem::start_global(config)?;
    /// let inodes = KmemCache::builder("inode", 600).build()?; // in that one
    /// assert!(global.info().caches.iter().any(|cache| cache.name == "inode"));
    /// assert_eq!(Subsystem::start_global(Config::default()).err(), Some(StartError::Started));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new); [`StartError::Started`] if it exists already, [`StartError::Starting`] as
    /// [`global`](Self::global).
    #[cfg(not(any(loom, shuttle)))]
    pub fn start_global(config: Config) -> Result<&'static Self, StartError> {
        global::start_own(|| Self::new(config))
    }

    /// The global subsystem, if it has been used.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn started() -> Option<&'static Self> {
        global::GLOBAL.get()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Allocator of memory of any size.
    #[cfg(not(any(loom, shuttle)))]
    pub fn kmalloc(&self) -> &Kmalloc {
        &self.kmalloc
    }
    /// The underlying page allocator.
    pub fn pages(&self) -> &PageAllocator {
        &self.core.memory.pages
    }
    /// The machine's CPUs, or the simulated ones.
    pub fn cpus(&self) -> Cpus {
        self.core.cpus
    }
    /// Rule for the order of slabs.
    pub fn rule(&self) -> &OrderRule {
        &self.core.rule
    }

    /// Shrinks every cache, and unmaps the freed mappings that are [kept](crate::huge). Returns the number of slabs freed.
    pub fn shrink(&self) -> usize {
        self.core.shrink(&self.core.operation(What::Reclaim))
    }
    /// Ends an interval of every cache's magazines, of the per-CPU pages and of [freed mappings](crate::huge). Returns the
    /// number of objects flushed.
    pub fn reap(&self) -> u64 {
        self.core.reap()
    }
    /// Ends a reaping interval, as a [reaper](crate::reaper) does periodically: [`reap`](Self::reap), free all empty slabs, and
    /// decommit as much memory as was free since the last call. Returns the bytes decommitted.
    ///
    /// Memory that was in use at one call, and was freed since, is decommitted by the second call after it.
    pub fn end_interval(&self) -> usize {
        self.core.read_limits();
        self.core.end_interval()
    }
    /// Drains the magazines of `cpus`, objects and pages, for CPUs that went offline.
    pub fn drain_cpus(&self, cpus: Range<u32>) {
        self.core.drain(cpus.clone());
        self.pages().drain_cpus(cpus);
    }

    /// Registers a shrinker, which is called when memory is short, for as long as the registration lives: see
    /// [`shrinker`](crate::shrinker).
    pub fn register_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        self.core.add_shrinker(Box::new(shrinker), None)
    }

    /// Calls `observer` at the end of each slow operation on objects and pages, with its steps: operations that magazines could
    /// not serve, and reaps, drains and shrinks. Fast paths are not reported.
    ///
    /// The observer runs on the thread of the operation, with no lock held. It may allocate from caches of this subsystem, and
    /// drop them; its own operations are not reported, but [counted](Counts::suppressed). An observer that panics is not called
    /// again. See [`Observer`] for its end.
    ///
    /// Cost: without observers, one relaxed load for each slow operation. With observers, two atomic operations on a shared
    /// word for each slow operation and each observer.
    ///
    /// # Errors
    /// [`TooManyObservers`]: there are four already.
    ///
    /// ```
    /// use std::sync::mpsc::channel;
    /// use uslab::{Config, Gfp, KmemCache, Subsystem};
    /// use uslab::observe::Step;
    ///
    /// let subsystem = Subsystem::new(Config::default())?;
    /// let cache = KmemCache::builder("inode", 600).build_in(&subsystem)?;
    /// let (seen, slabs) = channel();
    /// let observer = subsystem.observe(move |operation| {
    ///     for step in operation.steps.iter().filter(|step| matches!(step, Step::SlabAdded { .. })) {
    ///         let _ = seen.send(format!("{}: {step}", operation.name));
    ///     }
    /// })?;
    /// drop(cache.alloc_block(Gfp::KERNEL)?);
    /// drop(observer);
    /// assert!(slabs.recv()?.starts_with("inode: adds slab "));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(
        &self,
        observer: impl Fn(&Observed<'_>) + Send + Sync + 'static,
    ) -> Result<Observer, TooManyObservers> {
        self.pages().tracepoints().observe(observer)
    }

    /// Starts a [heap profile](crate::profile) with a sample every `rate` bytes on average, for instance [`DEFAULT_RATE`].
    ///
    /// Cost: one fence. While it runs, allocations take the path behind a miss, and frees as described [there](crate::profile).
    ///
    /// # Errors
    /// A profile is running, memory is short, or the kernel refuses the fence.
    pub fn start_profile(&self, rate: usize) -> Result<(), NotStarted> {
        self.core.start_profile(rate, None)
    }
    /// Starts a profile whose draws begin at `seed`: the same program on the same CPUs has the same samples.
    ///
    /// # Errors
    /// As [`start_profile`](Self::start_profile).
    pub fn start_profile_from(&self, rate: usize, seed: u64) -> Result<(), NotStarted> {
        self.core.start_profile(rate, Some(seed))
    }
    /// Stops the profile; `false` if none is running. Its records stay available to [`profile`](Self::profile) until the next
    /// one starts.
    pub fn stop_profile(&self) -> bool {
        self.core.stop_profile()
    }
    /// The heap profile: allocations and live objects by call stack, from its start until now or until it was stopped.
    ///
    /// Cost: a copy of the records, under a lock that threads with a sample wait for.
    pub fn profile(&self) -> Profile {
        self.core.profiler.profile()
    }

    /// Numbers of every cache, of large blocks, and of the pages.
    pub fn info(&self) -> Info {
        self.core.info()
    }
    /// [`Info::slabinfo`] of now, without reading the pages' numbers.
    pub fn slabinfo(&self) -> SlabInfo {
        self.core.slabinfo()
    }

    /// Objects in use by call stack, and the number of those that no word of the process's memory leads to: see
    /// [`leaks`](crate::report::leaks). It covers caches with checked frees; with [`USERS`](crate::SlabDebug::USERS) it has the
    /// stacks of the allocations. All objects count as reachable if the system does not list the process's memory (not Linux),
    /// or refuses `process_vm_readv` (a sandbox). Approximate while other threads run.
    ///
    /// Cost: the process's memory is read. It allocates.
    pub fn leaks(&self) -> Holders {
        self.core.leaks()
    }

    /// Walks every slab of every cache and the pages, and checks that everything is where its state says and that nothing is
    /// lost: see [`Census`]. No other thread may use the subsystem (a grace period that ends on another thread is a use, too).
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<Census, Violation> {
        self.core.check()
    }
}

impl Account {
    /// Makes an account of `limit` bytes for caches of the global subsystem.
    ///
    /// # Errors
    /// The global subsystem does not start.
    pub fn new(limit: usize) -> Result<Self, StartError> {
        Ok(Self::new_in(Subsystem::global()?, limit))
    }
    /// Makes an account for caches of `subsystem`, which it keeps alive.
    pub fn new_in(subsystem: &Subsystem, limit: usize) -> Self {
        Self::on(subsystem.core(), limit)
    }
}

impl KmemCacheBuilder {
    /// Builds the cache in the global subsystem.
    ///
    /// # Errors
    /// As [`build_in`](Self::build_in), or the global subsystem does not start.
    pub fn build(self) -> Result<KmemCache, CacheError> {
        let subsystem = Subsystem::global()?;
        self.build_in(subsystem)
    }

    /// Builds the cache in `subsystem`, which it keeps alive.
    ///
    /// # Errors
    /// An invalid name or geometry; [zero on free](KmemCacheBuilder::zero_on_free) with a constructor or a destructor; an account
    /// of another subsystem; or no memory for checked frees. No slab is made yet. If there is no memory for magazines, the cache
    /// works without: see [`CacheInfo::magazines_refused`](crate::CacheInfo::magazines_refused).
    pub fn build_in(self, subsystem: &Subsystem) -> Result<KmemCache, CacheError> {
        self.build_on(subsystem.core())
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Malloc {
    /// Makes the size classes in `subsystem`, without slabs. They keep it alive.
    ///
    /// # Errors
    /// No address space for [checked frees](crate::Config::check_frees).
    pub fn new(subsystem: &Subsystem) -> Result<Self, CacheError> {
        Self::on(subsystem.core())
    }
}

impl ReaperBuilder {
    /// Starts the threads. They keep the subsystem alive.
    ///
    /// # Errors
    /// The system refuses a thread, or the trigger of [`psi`](Self::psi).
    pub fn start(self, subsystem: &Subsystem) -> io::Result<Reaper> {
        self.start_on(subsystem.core().clone())
    }
}

/// `/proc/slabinfo` of the global subsystem.
///
/// # Errors
/// The global subsystem does not start.
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

    pub(super) static GLOBAL: Published<Subsystem> = Published::new();
    thread_local! {
        static STARTING: Cell<bool> = const { Cell::new(false) };
    }

    /// Marks the thread as starting a subsystem, as long as it lives.
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

    /// As `start`; an error if another subsystem became the global one.
    pub(super) fn start_own(
        make: impl FnOnce() -> Result<Subsystem, StartError>,
    ) -> Result<&'static Subsystem, StartError> {
        if GLOBAL.get().is_some() {
            return Err(StartError::Started);
        }
        let made = Cell::new(core::ptr::null());
        let global = start(|| make().inspect(|own| made.set(core::ptr::from_ref(&*own.core))))?;
        if core::ptr::eq(&raw const *global.core, made.get()) { Ok(global) } else { Err(StartError::Started) }
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
        fn recursive_subsystem_start_is_an_error() {
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
        fn failed_subsystem_start_can_be_retried() {
            assert!(start(|| Err(StartError::SideTable)).is_err());
            assert!(get().is_ok());
        }

        #[test]
        fn concurrent_subsystem_starts_agree() {
            let threads: Vec<_> =
                (0..4).map(|_| std::thread::spawn(|| core::ptr::from_ref(get().unwrap()).addr())).collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen.iter().all(|at| *at == seen[0]));
        }
    }
}

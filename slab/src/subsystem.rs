//! A subsystem: a page allocator, the caches on its pages, and kmalloc.
//!
//! A process may have several subsystems, as tests and the simulator do. The plain API uses one global subsystem,
//! which is made when the API is first used. A cache keeps its subsystem alive. A subsystem keeps no cache alive; it
//! lists caches only for reports and memory pressure.

use crate::cache::Account;
pub use crate::cache::config::{Config, KEEP_FREE};
use crate::cache::core::Core;
use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::error::CacheError;
pub use crate::error::StartError;
use crate::geometry::OrderRule;
#[cfg(doc)]
use crate::observe::Counts;
use crate::observe::{Observed, Observer, TooManyObservers};
#[cfg(all(doc, not(loom)))]
use crate::profile::DEFAULT_RATE;
use crate::profile::{NotStarted, Profile};
use crate::reclaim::reaper::Reap;
use crate::reclaim::reaper::{Reaper, ReaperBuilder};
use crate::reclaim::shrinker::{Registration, Shrinker};
use crate::report::census::{Census, Violation};
pub use crate::report::info::HeapUsage;
pub use crate::report::info::Info;
use crate::report::info::SlabInfo;
use crate::report::leaks::Holders;
#[cfg(not(any(loom, shuttle)))]
use crate::size::{kmalloc::Kmalloc, malloc::Malloc};
use core::ops::Range;
use std::io;
use std::sync::Arc;
use uslab_buddy::PageAllocator;
use uslab_magazine::Cpus;
use uslab_magazine::tracepoints::OperationKind;

/// A page allocator, the caches on its pages, and kmalloc. See the [module](self).
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
    /// Absent in models: kmalloc's 52 caches would dominate each execution.
    #[cfg(not(any(loom, shuttle)))]
    kmalloc: Kmalloc,
    core: Arc<Core>,
}

impl Subsystem {
    /// Makes a subsystem without slabs. If the system refuses address space, the subsystem has fewer pages than configured.
    ///
    /// # Errors
    /// Fails with the reason as a [`StartError`].
    pub fn new(config: Config) -> Result<Self, StartError> {
        // The names and sizes of kmalloc's caches are valid, so only memory can run out.
        #[cfg(not(any(loom, shuttle)))]
        let subsystem = Core::start_with_fewer_pages(config, |core| {
            Ok(Self { kmalloc: Kmalloc::new(core)?, core: core.clone() })
        });
        #[cfg(any(loom, shuttle))]
        let subsystem = Core::start_with_fewer_pages(config, |core| Ok(Self { core: core.clone() }));
        subsystem
    }

    /// The global subsystem, which the first call makes with the default [`Config`], and which is never dropped.
    ///
    /// Threads never wait for each other: if several threads call first, each makes a subsystem, and all subsystems but
    /// one are dropped. Under a checker, each execution has a separate global subsystem.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does. Fails with [`StartError::Starting`] if the start of the subsystem calls
    /// `global` on the same thread, as an allocator built on the subsystem would.
    pub fn global() -> Result<&'static Self, StartError> {
        global::get()
    }

    /// Makes the global subsystem with the program's [`Config`]; the program must call this before it first uses
    /// the global subsystem.
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
    /// Fails as [`new`](Self::new) does, with [`StartError::Started`] if a global subsystem exists, and with
    /// [`StartError::Starting`] as [`global`](Self::global) does.
    #[cfg(not(any(loom, shuttle)))]
    pub fn start_global(config: Config) -> Result<&'static Self, StartError> {
        global::start_own(|| Self::new(config))
    }

    /// Returns the global subsystem, or `None` before its first use.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn started() -> Option<&'static Self> {
        global::GLOBAL.get()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The subsystem's allocator for memory of any size.
    #[cfg(not(any(loom, shuttle)))]
    pub fn kmalloc(&self) -> &Kmalloc {
        &self.kmalloc
    }
    /// The subsystem's page allocator.
    pub fn pages(&self) -> &PageAllocator {
        &self.core.memory.pages
    }
    /// The machine's CPUs, or the simulated CPUs.
    pub fn cpus(&self) -> Cpus {
        self.core.cpus
    }
    /// Rule for the order of the subsystem's slabs.
    pub fn rule(&self) -> &OrderRule {
        &self.core.rule
    }

    /// Shrinks every cache, and unmaps the freed mappings that are [kept](crate::huge). Returns the number of freed
    /// slabs.
    pub fn shrink(&self) -> usize {
        self.core.shrink(&self.core.operation(OperationKind::Reclaim))
    }
    /// Ends a reaping interval of every cache's magazines, of the per-CPU pages and of [freed mappings](crate::huge).
    /// Returns the number of flushed objects.
    pub fn reap(&self) -> u64 {
        self.core.reap()
    }
    /// Ends a reaping interval, as a [reaper](crate::reaper) does periodically. Returns the number of decommitted
    /// bytes.
    ///
    /// The call does a [`reap`](Self::reap), frees all empty slabs, and decommits the memory that stayed free since the
    /// last call.
    ///
    /// If memory is freed between two calls, the second call after the free decommits it.
    pub fn end_interval(&self) -> usize {
        self.core.read_limits();
        self.core.end_interval()
    }
    /// Drains the object magazines and the page lists of `cpus`, because these CPUs went offline.
    pub fn drain_cpus(&self, cpus: Range<u32>) {
        self.core.drain(cpus.clone());
        self.pages().drain_cpus(cpus);
    }

    /// Registers a [shrinker](crate::shrinker), which is called when memory is short. Dropping the registration removes
    /// the shrinker.
    pub fn register_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        self.core.add_shrinker(Box::new(shrinker), None)
    }

    /// Calls `observer` at the end of each slow operation, with the operation's steps. Slow operations are allocations
    /// and frees that magazines could not serve, reaps, drains and shrinks; fast paths are not reported.
    ///
    /// The observer runs on the operation's thread, with no lock held. An observer may use and drop caches of this
    /// subsystem; the observer's own operations are [counted](Counts::suppressed), but not reported. If an
    /// observer panics, it is not called again. Dropping the [`Observer`] ends the calls.
    ///
    /// Cost: without observers, one relaxed load for each slow operation. With observers, each slow operation costs
    /// two atomic operations on a shared word for each observer.
    ///
    /// # Errors
    /// [`TooManyObservers`] if the subsystem has four observers already.
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
    /// Cost: one fence at the start. While a profile runs, allocations bypass the fast path;
    /// [`profile`](crate::profile) describes the cost of frees.
    ///
    /// # Errors
    /// Fails if a profile is running, memory is short, or the kernel refuses the fence.
    pub fn start_profile(&self, rate: usize) -> Result<(), NotStarted> {
        self.core.start_profile(rate, None)
    }
    /// Starts a heap profile whose random draws depend only on `seed`. With equal seeds, two runs of one program on
    /// equal CPUs get equal samples.
    ///
    /// # Errors
    /// Fails as [`start_profile`](Self::start_profile) does.
    pub fn start_profile_from(&self, rate: usize, seed: u64) -> Result<(), NotStarted> {
        self.core.start_profile(rate, Some(seed))
    }
    /// Stops the profile; returns `false` if no profile is running. The recorded samples stay
    /// available to [`profile`](Self::profile) until another profile starts.
    pub fn stop_profile(&self) -> bool {
        self.core.stop_profile()
    }
    /// The heap profile: allocations and live objects by call stack since the profile's start, up to its end if it
    /// was stopped.
    ///
    /// Cost: the call copies the records under a lock. A thread that takes a sample during the copy waits for
    /// this lock.
    pub fn profile(&self) -> Profile {
        self.core.profiler.profile()
    }

    /// Snapshot of the numbers of every cache, of large blocks, and of the pages.
    pub fn info(&self) -> Info {
        self.core.info()
    }
    /// The current [`Info::slabinfo`], made without reading the numbers of the pages.
    pub fn slabinfo(&self) -> SlabInfo {
        self.core.slabinfo()
    }

    /// Objects in use by call stack, with the number of leaked objects, to which the search found no
    /// pointer (see [`leaks`](crate::report::leaks)).
    ///
    /// The report covers caches with checked frees. With [`USERS`](crate::SlabDebug::USERS) the report includes the
    /// stacks of the allocations. If the system does not list the process's memory (not Linux), or refuses
    /// `process_vm_readv` (a sandbox), all objects count as reachable. The report is approximate while other threads
    /// run.
    ///
    /// Cost: the call reads all of the process's memory, and allocates.
    pub fn leaks(&self) -> Holders {
        self.core.leaks()
    }

    /// Checks the state of every slab and page, and checks that no object or page is lost (see [`Census`]). During the
    /// check, no other thread may use the subsystem, not even to end a grace period.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    pub fn check(&self) -> Result<Census, Violation> {
        self.core.check()
    }
}

impl Account {
    /// Makes an account of `limit` bytes for caches of the global subsystem.
    ///
    /// # Errors
    /// Fails if the global subsystem does not start.
    pub fn new(limit: usize) -> Result<Self, StartError> {
        Ok(Self::new_in(Subsystem::global()?, limit))
    }
    /// Makes an account for caches of `subsystem`. The account keeps the subsystem alive.
    pub fn new_in(subsystem: &Subsystem, limit: usize) -> Self {
        Self::on(subsystem.core(), limit)
    }
}

impl KmemCacheBuilder {
    /// Builds the cache in the global subsystem.
    ///
    /// # Errors
    /// Fails as [`build_in`](Self::build_in) does, or if the global subsystem does not start.
    pub fn build(self) -> Result<KmemCache, CacheError> {
        let subsystem = Subsystem::global()?;
        self.build_in(subsystem)
    }

    /// Builds the cache in `subsystem`. The cache keeps the subsystem alive, and has no slab yet.
    ///
    /// If the system refuses memory for magazines, the cache works without them (see
    /// [`CacheInfo::magazines_refused`](crate::CacheInfo::magazines_refused)).
    ///
    /// # Errors
    /// Fails on an invalid name or geometry, on [zero on free](KmemCacheBuilder::zero_on_free) with a constructor or a
    /// destructor, on an account of another subsystem, or if memory for checked frees is short.
    pub fn build_in(self, subsystem: &Subsystem) -> Result<KmemCache, CacheError> {
        self.build_on(subsystem.core())
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Malloc {
    /// Makes the size classes in `subsystem`, without slabs. The size classes keep the subsystem alive.
    ///
    /// # Errors
    /// Fails if the system refuses address space for [checked frees](crate::Config::check_frees).
    pub fn new(subsystem: &Subsystem) -> Result<Self, CacheError> {
        Self::on(subsystem.core())
    }
}

impl ReaperBuilder {
    /// Starts the reaper's threads, which keep the subsystem alive.
    ///
    /// # Errors
    /// Fails if the system refuses a thread, or the trigger of [`psi`](Self::psi).
    pub fn start(self, subsystem: &Subsystem) -> io::Result<Reaper> {
        self.start_on(subsystem.core().clone())
    }
}

/// The global subsystem's table in the format of `/proc/slabinfo`.
///
/// # Errors
/// Fails if the global subsystem does not start.
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

    /// Guard that marks the current thread as starting a subsystem.
    struct StartGuard;
    impl Drop for StartGuard {
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

    /// Starts the global subsystem as `start` does, but fails if another subsystem became the global one.
    pub(super) fn start_own(
        make: impl FnOnce() -> Result<Subsystem, StartError>,
    ) -> Result<&'static Subsystem, StartError> {
        if GLOBAL.get().is_some() {
            return Err(StartError::Started);
        }
        let new = Cell::new(core::ptr::null());
        let global = start(|| make().inspect(|own| new.set(core::ptr::from_ref(&*own.core))))?;
        if core::ptr::eq(&raw const *global.core, new.get()) { Ok(global) } else { Err(StartError::Started) }
    }

    #[cold]
    fn start(make: impl FnOnce() -> Result<Subsystem, StartError>) -> Result<&'static Subsystem, StartError> {
        if STARTING.replace(true) {
            return Err(StartError::Starting);
        }
        let _starting = StartGuard;
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
            // Another test may already have started the global subsystem.
            assert!(matches!(inner, Some(Err(StartError::Starting) | Ok(()))));
            assert!(core::ptr::eq(started.unwrap(), get().unwrap()), "all threads get the same subsystem");
        }

        #[test]
        fn failed_subsystem_start_can_be_retried() {
            assert!(start(|| Err(StartError::SideTable)).is_err());
            assert!(get().is_ok());
        }

        #[test]
        fn concurrent_starts_create_a_single_subsystem() {
            let threads: Vec<_> =
                (0..4).map(|_| std::thread::spawn(|| core::ptr::from_ref(get().unwrap()).addr())).collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen.iter().all(|at| *at == seen[0]));
        }
    }
}

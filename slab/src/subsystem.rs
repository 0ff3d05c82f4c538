//! A subsystem consists of a page allocator, the caches on its pages, and kmalloc.
//!
//! A process may have several subsystems, as in tests and in the simulator. The plain API uses one global subsystem,
//! which is created when the API is first used. A cache keeps its subsystem alive. A subsystem keeps no cache alive. A
//! subsystem lists caches only for reports and for reclaim under memory pressure.

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

/// An independent allocator: a page allocator, the caches on its pages, and kmalloc. The [module](self) describes the
/// lifetime of subsystems.
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
    /// The field is absent in models, because kmalloc's 52 caches would dominate each execution.
    #[cfg(not(any(loom, shuttle)))]
    kmalloc: Kmalloc,
    core: Arc<Core>,
}

impl Subsystem {
    /// Creates a subsystem without slabs. If the system refuses address space, the subsystem has fewer pages than
    /// configured.
    ///
    /// # Errors
    /// Fails with a [`StartError`] that contains the reason.
    pub fn new(config: Config) -> Result<Self, StartError> {
        // The names and sizes of kmalloc's caches are valid, so only memory can run out.
        #[cfg(not(any(loom, shuttle)))]
        let subsystem = Core::start_retrying_fewer_pages(config, |core| {
            Ok(Self { kmalloc: Kmalloc::new(core)?, core: core.clone() })
        });
        #[cfg(any(loom, shuttle))]
        let subsystem = Core::start_retrying_fewer_pages(config, |core| Ok(Self { core: core.clone() }));
        subsystem
    }

    /// Returns the global subsystem. The first call creates the global subsystem with the default [`Config`], and the
    /// subsystem is never dropped.
    ///
    /// Threads never wait for each other. If several threads call `global` first, each creates a subsystem, and only
    /// one of these subsystems is kept. Under a model checker, each execution has a separate global subsystem.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does. Fails with [`StartError::Starting`] if the subsystem's start calls `global` on
    /// the same thread, as an allocator built on the subsystem would.
    pub fn global() -> Result<&'static Self, StartError> {
        global::get()
    }

    /// Creates the global subsystem with the program's [`Config`]. The program must call `start_global` before it first
    /// uses the global subsystem.
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
    /// Fails as [`new`](Self::new) does. Fails with [`StartError::Started`] if a global subsystem exists, and with
    /// [`StartError::Starting`] as [`global`](Self::global) does.
    #[cfg(not(any(loom, shuttle)))]
    pub fn start_global(config: Config) -> Result<&'static Self, StartError> {
        global::start_global_exclusively(|| Self::new(config))
    }

    /// Returns the global subsystem, or `None` before it was first used.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn started() -> Option<&'static Self> {
        global::GLOBAL_SUBSYSTEM.get()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the subsystem's allocator for memory of any size.
    #[cfg(not(any(loom, shuttle)))]
    pub fn kmalloc(&self) -> &Kmalloc {
        &self.kmalloc
    }
    /// Returns the subsystem's page allocator.
    pub fn pages(&self) -> &PageAllocator {
        &self.core.memory.pages
    }
    /// Returns the machine's CPUs, or the simulated CPUs.
    pub fn cpus(&self) -> Cpus {
        self.core.cpus
    }
    /// Returns the rule that chooses the order of the subsystem's slabs.
    pub fn rule(&self) -> &OrderRule {
        &self.core.rule
    }

    /// Shrinks every cache, and unmaps the freed mappings that are [kept](crate::huge) for reuse. Returns the number of
    /// freed slabs.
    pub fn shrink(&self) -> usize {
        self.core.shrink(&self.core.operation(OperationKind::Reclaim))
    }
    /// Ends a reaping interval of the magazines of all caches, of the per-CPU pages, and of [freed
    /// mappings](crate::huge). Returns the number of flushed objects.
    pub fn reap(&self) -> u64 {
        self.core.reap()
    }
    /// Ends a reaping interval, as a [reaper](crate::reaper) does at regular intervals. Returns the number of
    /// decommitted bytes.
    ///
    /// The call [reaps](Self::reap), frees all empty slabs, and decommits the memory that stayed free since the
    /// previous call.
    ///
    /// Memory that becomes free between two calls is decommitted by the second of the calls that follow.
    pub fn end_interval(&self) -> usize {
        self.core.adapt_to_memory_limits();
        self.core.end_interval()
    }
    /// Drains the object magazines and page lists of the CPUs in `cpus`, for instance after these CPUs were taken
    /// offline.
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
    /// and frees that magazines could not serve, reaps, drains and shrinks. Fast paths are not reported.
    ///
    /// The observer runs on the operation's thread, with no lock held. An observer may use and drop caches of this
    /// subsystem. The observer's own operations are [counted](Counts::suppressed), but not reported. If an observer
    /// panics, it is not called again. Dropping the [`Observer`] ends the observation.
    ///
    /// Cost: without observers, one relaxed load for each slow operation. With observers, each slow operation costs two
    /// atomic operations on a shared word per observer.
    ///
    /// # Errors
    /// Fails with [`TooManyObservers`] if the subsystem already has four observers.
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

    /// Starts a [heap profile](crate::profile) that samples every `rate` bytes on average, for instance
    /// [`DEFAULT_RATE`].
    ///
    /// Cost: one fence when the profile starts. While a profile runs, allocations bypass the fast path. The module
    /// [`profile`](crate::profile) describes the cost of frees.
    ///
    /// # Errors
    /// Fails if a profile is running, memory is short, or the kernel refuses the fence.
    pub fn start_profile(&self, rate: usize) -> Result<(), NotStarted> {
        self.core.start_profile(rate, None)
    }
    /// Starts a heap profile whose random draws depend only on `seed`. With equal seeds, two runs of the same program
    /// on equal CPUs get equal samples.
    ///
    /// # Errors
    /// Fails as [`start_profile`](Self::start_profile) does.
    pub fn start_profile_from(&self, rate: usize, seed: u64) -> Result<(), NotStarted> {
        self.core.start_profile(rate, Some(seed))
    }
    /// Stops the running profile; returns `false` if no profile is running. The recorded samples stay available to
    /// [`profile`](Self::profile) until another profile starts.
    pub fn stop_profile(&self) -> bool {
        self.core.stop_profile()
    }
    /// Returns the heap profile: allocations and live objects by call stack, from the profile's start until its end or,
    /// while it runs, until now.
    ///
    /// Cost: the call copies the profile's records under a lock. A thread that takes a sample during the copy waits for
    /// this lock.
    pub fn profile(&self) -> Profile {
        self.core.profiler.profile()
    }

    /// Returns a snapshot of the statistics of all caches, of large blocks, and of the pages.
    pub fn info(&self) -> Info {
        self.core.info()
    }
    /// Returns the current [`Info::slabinfo`] without reading the statistics of the pages.
    pub fn slabinfo(&self) -> SlabInfo {
        self.core.slabinfo()
    }

    /// Returns the objects in use by call stack. For each stack, the report counts the leaked objects, to which the
    /// search found no pointer (see [`leaks`](crate::report::leaks)).
    ///
    /// The report covers only caches with checked frees. With the flag [`USERS`](crate::SlabDebug::USERS), the report
    /// includes the call stacks of the allocations. All objects count as reachable if the system does not list the
    /// process's memory (as on systems other than Linux), or refuses `process_vm_readv` (as in a sandbox). The report
    /// is approximate while other threads run.
    ///
    /// Cost: the call reads all of the process's memory, and allocates memory.
    pub fn leaks(&self) -> Holders {
        self.core.leaks()
    }

    /// Checks the state of every slab and page, and checks that no object or page was lost (see [`Census`]). During the
    /// check, no other thread may use the subsystem, not even to end a grace period.
    ///
    /// # Errors
    /// Fails with the first invariant that does not hold.
    pub fn check(&self) -> Result<Census, Violation> {
        self.core.check()
    }
}

impl Account {
    /// Creates an account of `limit` bytes for caches of the global subsystem.
    ///
    /// # Errors
    /// Fails if the global subsystem does not start.
    pub fn new(limit: usize) -> Result<Self, StartError> {
        Ok(Self::new_in(Subsystem::global()?, limit))
    }
    /// Creates an account of `limit` bytes for caches of `subsystem`. The account keeps the subsystem alive.
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

    /// Builds the cache in `subsystem`. The cache keeps the subsystem alive. A new cache has no slab.
    ///
    /// If the system refuses memory for magazines, the cache works without them (see
    /// [`CacheInfo::magazines_refused`](crate::CacheInfo::magazines_refused)).
    ///
    /// # Errors
    /// Fails if the name or geometry is invalid, if the account belongs to another subsystem, or if memory for checked
    /// frees is short. The build also fails if [zero on free](KmemCacheBuilder::zero_on_free) is set together with a
    /// constructor or destructor.
    pub fn build_in(self, subsystem: &Subsystem) -> Result<KmemCache, CacheError> {
        self.build_on(subsystem.core())
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Malloc {
    /// Creates the size classes in `subsystem`, without slabs. The size classes keep the subsystem alive.
    ///
    /// # Errors
    /// Fails if the system refuses address space for [checked frees](crate::Config::check_frees).
    pub fn new(subsystem: &Subsystem) -> Result<Self, CacheError> {
        Self::on(subsystem.core())
    }
}

impl ReaperBuilder {
    /// Starts the reaper's threads, which keep `subsystem` alive.
    ///
    /// # Errors
    /// Fails if the system refuses a thread, or refuses the trigger of [`psi`](Self::psi).
    pub fn start(self, subsystem: &Subsystem) -> io::Result<Reaper> {
        self.start_on(subsystem.core().clone())
    }
}

/// Returns the global subsystem's table in the format of `/proc/slabinfo`.
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
        static ref GLOBAL_SUBSYSTEM: Result<Subsystem, StartError> = Subsystem::new(Config::default());
    }

    pub(super) fn get() -> Result<&'static Subsystem, StartError> {
        GLOBAL_SUBSYSTEM.as_ref().map_err(|error| *error)
    }
}

#[cfg(not(any(loom, shuttle)))]
mod global {
    use super::{Config, StartError, Subsystem};
    use crate::published::Published;
    use core::cell::Cell;
    use uslab_magazine::sync::thread_local;

    pub(super) static GLOBAL_SUBSYSTEM: Published<Subsystem> = Published::new();
    thread_local! {
        static IS_STARTING: Cell<bool> = const { Cell::new(false) };
    }

    /// Guard that marks the current thread as starting a subsystem.
    struct StartGuard;
    impl Drop for StartGuard {
        fn drop(&mut self) {
            IS_STARTING.set(false);
        }
    }

    pub(super) fn get() -> Result<&'static Subsystem, StartError> {
        match GLOBAL_SUBSYSTEM.get() {
            Some(subsystem) => Ok(subsystem),
            None => start(|| Subsystem::new(Config::default())),
        }
    }

    /// Starts the global subsystem as `start` does, but fails if another subsystem became the global one first.
    pub(super) fn start_global_exclusively(
        make: impl FnOnce() -> Result<Subsystem, StartError>,
    ) -> Result<&'static Subsystem, StartError> {
        if GLOBAL_SUBSYSTEM.get().is_some() {
            return Err(StartError::Started);
        }
        let new = Cell::new(core::ptr::null());
        let global = start(|| make().inspect(|own| new.set(core::ptr::from_ref(&*own.core))))?;
        if core::ptr::eq(&raw const *global.core, new.get()) { Ok(global) } else { Err(StartError::Started) }
    }

    #[cold]
    fn start(make: impl FnOnce() -> Result<Subsystem, StartError>) -> Result<&'static Subsystem, StartError> {
        if IS_STARTING.replace(true) {
            return Err(StartError::Starting);
        }
        let _starting = StartGuard;
        Ok(GLOBAL_SUBSYSTEM.publish(Box::new(make()?)))
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

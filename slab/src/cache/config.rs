//! Configuration of a subsystem.

use super::per_cpu::Magazines;
use crate::debug::corruption;
use crate::debug::flags::DebugRules;
use crate::geometry::OrderRule;
use crate::harden::Harden;
use crate::memory::huge::HUGE_CACHE;
use core::fmt;
use std::sync::Arc;
use std::time::Duration;
use uslab_buddy::PageConfig;
#[cfg(any(loom, shuttle))]
use uslab_buddy::{Order, ZoneKind};
use uslab_magazine::Cpus;

/// Maximum bytes of free pages that a subsystem of the default [`Config`] keeps (see
/// [`PageConfig::keep_free`]). [`Config::heed_limits`] may reduce this number.
pub const KEEP_FREE: usize = 16 << 20;

/// Configuration of a subsystem. Callers write a configuration with `..Config::default()` or `..Config::new(pages)`,
/// because later versions may add fields.
///
/// ```
/// use uslab::buddy::PageConfig;
/// use uslab::magazine::Cpus;
/// use uslab::{Config, Magazines, Subsystem};
///
/// // 16 MiB for two simulated CPUs, and caches without magazines: what slabs do by themselves.
/// let pages = PageConfig::default_for(Cpus::simulated(2, 1)?).limit(16 << 20);
/// let subsystem = Subsystem::new(Config { magazines: Magazines::Off, ..Config::new(pages) })?;
/// assert_eq!((subsystem.cpus().count(), subsystem.check()?.pages), (2, 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// Configuration of the pages: CPUs, nodes and zones, the memory limit and the reserve, and the
    /// [`faults`](crate::faults) injected into the subsystem.
    pub pages: PageConfig,
    /// If true, the subsystem keeps at most an eighth of the process's remaining memory as free memory
    /// ([`PageConfig::keep_free`]). True by default, and false in [`Config::new`].
    ///
    /// The remaining memory is the lowest limit of the process minus its committed memory. The limits are `RLIMIT_AS`,
    /// `RLIMIT_DATA`, and the limits of the process's control groups and their ancestors. A control group has
    /// `memory.max` and `memory.high`, or in version 1 a limit and a soft limit. The subsystem reads the limits at its
    /// start, and in [`Subsystem::end_interval`](crate::Subsystem::end_interval) and
    /// [`Uslab::reap`](crate::Uslab::reap). A reaper does not read limits, because a sandbox may forbid opening files.
    /// A limit is ignored if its file cannot be read.
    pub heed_limits: bool,
    /// Rule that chooses the page order of the subsystem's slabs.
    pub rule: OrderRule,
    /// Default magazine sizes of the subsystem's caches.
    pub magazines: Magazines,
    /// If true, each free immediately checks that the object belongs to the cache and is in use. Without checked frees,
    /// an invalid free is detected when the object reaches its slab. Caches inherit this setting, whose default is true
    /// in builds with debug assertions.
    pub check_frees: bool,
    /// Debug options by cache name, empty by default (see [`flags`](crate::debug::flags)).
    pub slab_debug: DebugRules,
    /// Hardening of malloc, and the default hardening of caches; off by default. Hardening implies checked frees.
    pub harden: Harden,
    /// Mean number of allocations per guard sample. [`Malloc`](crate::Malloc), kmalloc and caches sample allocations of
    /// up to a page. 0, the default, disables sampling.
    ///
    /// Each sampled allocation gets a page between two inaccessible pages. Error reports show the call stacks of a
    /// sample's allocation and its free. The first sample installs a `SIGSEGV` handler, which reports faults on guard
    /// pages. [`CacheInfo::used`](crate::CacheInfo::used) and [`destroy`](crate::KmemCache::destroy) do not count a
    /// sample as an object of its cache. Caches with hooks, limits or accounts are not sampled, and neither are
    /// type-stable caches.
    ///
    /// Cost: nothing on inlined paths, and some 20 us per sample. Frees to kmalloc and to sampled caches cannot use the
    /// inlined path, which costs some nanoseconds per free.
    pub guard_every: u32,
    /// Maximum number of guard samples in use at a time; each sample occupies a page.
    pub guard_slots: u32,
    /// Handler that is called for invalid frees and for damage; the default handler reports the error and aborts.
    pub corruption: Arc<corruption::Handler>,
    /// Interval of the subsystem's reaper thread, which starts once there may be memory to reap (see
    /// [`reaper`](crate::reaper)). With `None`, the default, the subsystem has no reaper thread.
    pub reap_every: Option<Duration>,
    /// Maximum bytes of freed mappings above 4 MiB that are kept for reuse (see [`huge`](crate::huge)); 0 keeps
    /// none.
    pub huge_cache: usize,
}

impl Config {
    /// Creates a configuration with default slabs and magazines on the given pages. The order rule counts all CPUs as
    /// present. The subsystem keeps free memory up to [`PageConfig::keep_free`], which is unbounded by default.
    pub fn new(pages: PageConfig) -> Self {
        Self {
            rule: OrderRule::for_cpus(pages.cpus.count()),
            pages,
            heed_limits: false,
            magazines: Magazines::default(),
            check_frees: cfg!(debug_assertions),
            slab_debug: DebugRules::default(),
            harden: Harden::OFF,
            guard_every: 0,
            guard_slots: 128,
            corruption: Arc::new(corruption::abort),
            reap_every: None,
            huge_cache: HUGE_CACHE,
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Default for Config {
    /// Configuration for the machine's CPUs on one node, with the page allocator's default range. Up to [`KEEP_FREE`]
    /// bytes of free memory stay committed, within the process's limits.
    fn default() -> Self {
        Self::with_max_kept_bytes(KEEP_FREE)
    }
}

impl Config {
    /// The default configuration, except that the subsystem keeps `most` bytes of free memory.
    pub(crate) fn with_max_kept_bytes(most: usize) -> Self {
        let pages = PageConfig::default_for(Cpus::os());
        Self { heed_limits: true, ..Self::new(PageConfig { keep_free: Some(most), ..pages }) }
    }
}

#[cfg(any(loom, shuttle))]
impl Config {
    /// Creates a model's configuration: `pages` pages for two simulated CPUs on one node. An invalid free panics in a
    /// model.
    ///
    /// A magazine has one object, so every second operation exchanges a magazine. A slab is one page with two objects,
    /// which are [2048 bytes](crate::check::SPACING) apart.
    ///
    /// If `pages` is not a power of two, some pages are wasted, because no block crosses the largest power of two in
    /// `pages`.
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
    /// Configuration of a model with four pages (see [`for_models`](Self::for_models)).
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
            .field("slab_debug", &self.slab_debug)
            .field("harden", &self.harden)
            .field("guard_every", &self.guard_every)
            .field("reap_every", &self.reap_every)
            .field("huge_cache", &self.huge_cache)
            .finish_non_exhaustive()
    }
}

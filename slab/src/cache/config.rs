//! What a subsystem is made of.

use super::per_cpu::Magazines;
use crate::debug::corruption;
use crate::debug::flags::DebugRules;
use crate::debug::harden::Harden;
use crate::geometry::OrderRule;
use crate::memory::huge::HUGE_CACHE;
use core::fmt;
use std::sync::Arc;
use std::time::Duration;
use uslab_buddy::PageConfig;
#[cfg(any(loom, shuttle))]
use uslab_buddy::{Order, ZoneKind};
use uslab_magazine::Cpus;

/// Bytes of free pages that a subsystem of the default [`Config`] keeps at most: see [`PageConfig::keep_free`]. It is less where
/// [`Config::heed_limits`] says so.
pub const KEEP_FREE: usize = 16 << 20;

/// What a subsystem is made of. Write it with `..Config::default()` or `..Config::new(pages)`: it will have more fields.
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
    /// CPUs, nodes, zones and with them the limit of memory and what is kept in reserve; and the
    /// [`faults`](crate::faults) of the whole subsystem.
    pub pages: PageConfig,
    /// True if the free memory that stays ([`PageConfig::keep_free`]) is at most an eighth of the room: the least of the process's limits
    /// (`RLIMIT_AS`, `RLIMIT_DATA`) and of those of its control groups and their ancestors (`memory.max`, `memory.high`; in version 1
    /// the limit and the soft limit), less what is committed. They are read at the start, and by
    /// [`Subsystem::end_interval`](crate::Subsystem::end_interval) and [`Uslab::reap`](crate::Uslab::reap). (A reaper opens no file: a program may
    /// have forbidden itself to.) A file that cannot be read limits
    /// nothing. True by default, and false in [`Config::new`].
    pub heed_limits: bool,
    /// What decides the order of slabs.
    pub rule: OrderRule,
    /// The magazines of caches that do not say otherwise.
    pub magazines: Magazines,
    /// Whether caches that do not say otherwise check at once that what is freed to them is an object of theirs and in use.
    /// Otherwise what is wrong is noticed when the object reaches its slab. On by default in builds with debug assertions.
    pub check_frees: bool,
    /// What is done about the objects of caches of which names, to find mistakes: see [`flags`](crate::debug::flags). Nothing by
    /// default.
    pub slab_debug: DebugRules,
    /// What is hardened, of caches that do not say otherwise, and of malloc. Nothing by default. What is has checked frees.
    pub harden: Harden,
    /// One in so many allocations up to a page is sampled, of [`Malloc`](crate::Malloc), kmalloc and caches: it has a page of its own
    /// between pages that cannot be touched, and its mistakes are named with the call stacks of its allocation and its free; those that are
    /// faults by a handler of `SIGSEGV` that is installed at the first sample. 0, the default: none. A sample is no object of its cache:
    /// [`CacheInfo::used`](crate::CacheInfo::used) has it not, nor does [`destroy`](crate::KmemCache::destroy) find it. Caches with hooks,
    /// limits or accounts, and type-stable ones, do not sample.
    ///
    /// Cost: none where inlined paths serve; some 20 us a sample. Frees of caches that sample, and of kmalloc, leave the inlined path: some
    /// nanoseconds each.
    pub guard_every: u32,
    /// The most samples that are in use at a time: a page each.
    pub guard_slots: u32,
    /// Hears of frees that cannot be right, and of damage; the default says so and aborts.
    pub corruption: Arc<corruption::Handler>,
    /// A thread of the subsystem ends a reaping interval this often, from the time that there may be something to reap: see
    /// [`reaper`](crate::reaper). `None`, the default: no thread.
    pub reap_every: Option<Duration>,
    /// Bytes of freed mappings above 4 MiB that are kept for the next ones: see [`huge`](crate::huge). 0 is none.
    pub huge_cache: usize,
}

impl Config {
    /// The usual slabs and magazines on these pages, the order rule with all of its CPUs present. What stays of free memory is what
    /// [`PageConfig::keep_free`] says: by default all.
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
    /// The machine's CPUs on one node and the page allocator's default range, of which up to [`KEEP_FREE`] bytes of free
    /// memory stay backed. It heeds limits.
    fn default() -> Self {
        Self::keeping(KEEP_FREE)
    }
}

impl Config {
    /// As the default, but for the free memory that stays.
    pub(crate) fn keeping(most: usize) -> Self {
        let pages = PageConfig::default_for(Cpus::os());
        Self { heed_limits: true, ..Self::new(PageConfig { keep_free: Some(most), ..pages }) }
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
            .field("slab_debug", &self.slab_debug)
            .field("harden", &self.harden)
            .field("guard_every", &self.guard_every)
            .field("reap_every", &self.reap_every)
            .field("huge_cache", &self.huge_cache)
            .finish_non_exhaustive()
    }
}

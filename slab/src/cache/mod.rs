//! Caches of equal objects, with magazines in front of slabs.
//!
//! ```text
//! alloc ── magazines ── fill: one lock hold of the node, partial slabs first, then empty ones
//!             │               └ no free object: one new slab (pages, constructor), its objects to the magazine
//!             └ nothing: other nodes; objects of other CPUs and the depot; empty slabs of other caches; AllocError
//! free ─── magazines ── flush: batches of 32, one lock hold each; slabs that become empty beyond min_partial are released
//! ```
//!
//! # Locks
//!
//! No lock is taken under a node's lock, except by `Node::close` and a fork (see ARCHITECTURE.md). No lock is held
//! while pages are allocated or freed, objects are constructed or destructed, or corruption is reported. The magazines
//! hold no lock when they call the slabs. The registry's lock is released before a listed cache is used.
//!
//! # Invariants
//!
//! * A frame whose owner is a cache belongs to a slab of that cache. The slab is on a list of its node, or known to one
//!   thread only. A cache lives as long as it has slabs (see `lifetime/owner.rs`).
//! * An object whose bit is set is in exactly one location: with a caller, in a magazine, or in a local variable of one
//!   thread.
//! * `charge` is the number of slabs, including slabs under construction and slabs that wait for a grace period.
//!
//! # Constructors
//!
//! The allocating thread constructs an object when the object leaves its slab for the first time. The object stays
//! constructed in magazines, and after it is freed to its slab. A shrink or a reap destructs the free objects in slabs;
//! releasing a slab destructs its objects. A slab therefore has a second bitmap, which marks constructed objects.
//! (illumos also constructs objects that leave a slab, and destructs objects that return.)
//! [`KmemCacheBuilder::construct_slabs`](kmem_cache::KmemCacheBuilder::construct_slabs) constructs all objects with
//! their slab, as Linux does. If a constructor panics, its object becomes free and zero. If a new slab was made for the
//! object, the slab is released. The panic propagates to the caller of the allocation, with no lock held and no
//! magazine in use.

mod addresses;
mod alloc;
mod checked;
pub(crate) mod config;
pub(crate) mod core;
pub(crate) mod debugged;
mod free;
mod give_back;
pub(crate) mod held;
pub(crate) mod hooks;
pub(crate) mod info;
pub mod kmem_cache;
pub(crate) mod lifetime;
pub(crate) mod live;
pub(crate) mod mempool;
mod new_slab;
pub(crate) mod node;
pub(crate) mod object;
pub(crate) mod page_owners;
pub mod per_cpu;
pub(crate) mod prefill;
mod reclaim;
mod slabs;
mod wait;

pub use debugged::Validation;
pub use held::MAX_SURPLUS_BYTES;
pub use live::{Live, Run, Runs};
pub use mempool::Mempool;
pub use prefill::Prefilled;
pub use wait::{Account, AccountInfo, Acquiring};

use self::core::Core;
use crate::debug::flags::SlabDebug;
use crate::debug::gdb;
use crate::debug::watch::Watch;
use crate::error::AllocError;
use crate::geometry::Geometry;
use crate::harden::Hardened;
use crate::harden::{Harden, Key};
use crate::memory::slab::Constructed;
use checked::Checked;
use checked::ObjectDebugChecks;
use hooks::{HeldBytes, Hooks};
use lifetime::refs::CacheRefs;
use node::{Node, NodeCount};
pub(crate) use object::Object;
use per_cpu::{Magazines, PerCpu};
use std::sync::{Arc, Weak};
use uslab_buddy::{Gfp, PAGE_SIZE, StackMemory};
use uslab_magazine::sync::{AtomicU32, AtomicU64, Counter, Ordering::Relaxed, unique};
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{FastPath, Operation, PathCounts};
use uslab_magazine::{StaticWords, Words};
use wait::{Charges, Waiters};

// All fields of a cache that a free reads are on one cache line.
const _: () = assert!(std::mem::offset_of!(Cache, multiples) / 64 == std::mem::offset_of!(Cache, frees) / 64);
const _: () = assert!(std::mem::offset_of!(Cache, allocs) % 64 != 0);

#[derive(Debug)]
pub(crate) struct CacheConfig {
    pub(crate) name: Box<str>,
    pub(crate) geometry: Geometry,
    pub(crate) per_cpu: PerCpu,
    pub(crate) hooks: Option<Hooks>,
    /// When `hooks` construct an object: alone, or together with its slab.
    pub(crate) constructed: Constructed,
    /// How the cache knows the number of bytes that each constructed object owns in addition to its slot.
    pub(crate) holds: HeldBytes,
    /// Limit in bytes of slabs plus the memory that objects own in addition to their slots.
    pub(crate) held_limit: Option<usize>,
    /// Flags of every page allocation of the cache.
    pub(crate) page_flags: Gfp,
    pub(crate) page_class: Option<u16>,
    /// Maximum number of slabs.
    pub(crate) limit: Option<u32>,
    pub(crate) account: Option<Arc<Charges>>,
    pub(crate) type_stable: bool,
    /// True if each free immediately checks that its object is in use. The other debug checks require this check.
    pub(crate) check_frees: bool,
    pub(crate) debug: SlabDebug,
    pub(crate) zero_on_free: bool,
    pub(crate) harden: Harden,
    /// True if the cache's objects are inaccessible, and only their addresses are used.
    pub(crate) no_access: bool,
    /// True if the guard samples some of the cache's objects.
    pub(crate) guarded: bool,
    /// Seed of the cache's random order and canaries.
    pub(crate) key: Key,
    /// Magazine sizes that a user must request to share this cache; `None` if the cache cannot be shared.
    pub(crate) merges: Option<Magazines>,
}

impl CacheConfig {
    /// Returns which bytes of an object the red zones and the poison watch. Objects are not poisoned if they stay
    /// constructed, or if readers may see them when free.
    fn watch(&self) -> Watch {
        let (left, right) = self.geometry.zones();
        let poison = self.debug.contains(SlabDebug::POISON) && self.hooks.is_none() && !self.type_stable;
        Watch { size: self.geometry.object_size(), left, right, poison }
    }
}

/// A cache of objects, which users hold as a [`KmemCache`](crate::KmemCache).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cache {
    // `min_partial` is the first field, so that `frees` is not at the beginning of a cache line: a load that follows a
    // store to the same offset in another page waits for the store.
    min_partial: usize,
    /// Inlined free path of the magazine layer in `parts`. The path is disabled if the cache has no layer, or has a
    /// free hook.
    frees: FastPath<Object, StackMemory>,
    /// Factor that recognises multiples of the stride, or 0 if objects do not start at multiples (see
    /// [`begins_object`](Self::begins_object)). The factor is on the same cache line as `frees`.
    multiples: u64,
    has_free_hook: bool,
    core: Arc<Core>,
    /// Weak reference to the cache. An object that waits for a grace period upgrades it, to keep the cache alive.
    this: Weak<Self>,
    /// Inlined allocation path of the magazine layer in `parts`. The path is disabled if the cache has no layer, or
    /// checks its objects. Like `frees`, `allocs` is not at the beginning of its cache line.
    allocs: FastPath<Object, StackMemory>,
    checked: Option<Checked>,
    hardened: Option<Hardened>,
    config: CacheConfig,
    nodes: Box<[Node]>,
    refs: CacheRefs<Self>,
    waiters: Waiters,
    counts: Counts,
    /// Number of the cache, unique among all caches that ever existed, and never 0.
    number: u64,
    seen: gdb::CacheDescription,
}

/// Counters of a cache. Creating or releasing a slab writes the counters' first cache line, which allocations do not
/// read.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Counts {
    charge: AtomicU32,
    peak: Counter,
    made: Counter,
    released: Counter,
    /// Number of pages of all slabs, including slabs that wait for a grace period.
    pages: Counter,
    /// Number of slabs that wait for readers, which `begin_grace` increments.
    grace: AtomicU64,
    grace_pages: Counter,
    order_fallbacks: Counter,
    direct_allocs: Counter,
    direct_frees: Counter,
    direct_paths: PathCounts,
    /// Number of allocations whose object came from a different node than requested.
    other_node_allocs: Counter,
    /// Number of frees of another node's objects that bypassed the magazines.
    other_node_frees: Counter,
    /// Number of objects that wait for readers, which `begin_grace` increments.
    deferred: AtomicU64,
    constructed: Counter,
    destructed: Counter,
    /// Number of objects that are constructed, or about to be constructed.
    live: AtomicU64,
    /// Number of charged bytes that constructed objects own in addition to their slots. `weight` is the mean per
    /// object.
    held: AtomicU64,
    weight: AtomicU64,
    /// Number of finished waits. `waited` is their total duration in nanoseconds.
    waits: Counter,
    waited: Counter,
    failures: Counter,
    corruptions: Counter,
    /// Number of invalid frees that were counted as frees before they were refused.
    late_corruptions: Counter,
}

impl CacheConfig {
    fn hardened(&self) -> Option<Hardened> {
        let (size, zeroed) = (self.geometry.object_size(), self.check_frees && self.zero_on_free);
        // Poisoned objects are checked for poison, not for zeros.
        #[cfg(not(shuttle))]
        let zeroed = zeroed && !self.watch().poison;
        Hardened::new(self.key, &self.harden, size, self.geometry.stride() - size, zeroed)
    }
    /// Seed of the random order of objects; `None` if the order is not random.
    fn object_order_seed(&self) -> Option<Key> {
        self.harden.random_order.then_some(self.key)
    }
}

impl Cache {
    /// Creates a cache without slabs. Returns `None` if address space for the tags of checked frees is refused.
    pub(crate) fn new(core: Arc<Core>, config: CacheConfig) -> Option<Arc<Self>> {
        let fast_path = config.per_cpu.fast_path(Words::Inlined);
        let resets = config.hooks.as_ref().is_some_and(|hooks| hooks.reset.is_some());
        // A hardened cache checks frees, and therefore has a free hook. Each cache with a quarantine is hardened.
        let has_free_hook = config.check_frees || config.zero_on_free || config.guarded || resets;
        let checked = if config.check_frees {
            let (tags, tag) = core.allocate_cache_tag()?;
            Some(Checked {
                tags,
                tag,
                fast_path,
                debugged: ObjectDebugChecks::new(config.debug, config.watch()),
            })
        } else {
            None
        };
        let nodes: Box<[Node]> = (0..core.memory.pages.nodes())
            .map(|_| Node::new(config.object_order_seed(), config.geometry))
            .collect();
        let seen = {
            let (nodes, stacks) = (Node::places(&nodes), config.per_cpu.places());
            let quarantine = config.per_cpu.quarantine_addresses();
            let tracks = checked.as_ref().map_or(0, Checked::record_table_address);
            let constructed = config.hooks.is_some();
            gdb::CacheDescription::new(
                &config.name,
                &config.geometry,
                constructed,
                nodes,
                stacks,
                quarantine,
                tracks,
            )
        };
        Some(Arc::new_cyclic(|this| Self {
            seen,
            allocs: if config.check_frees { FastPath::disabled() } else { fast_path },
            frees: if has_free_hook { FastPath::disabled() } else { fast_path },
            // With red zones, an offset alone does not show that an object begins there, so frees
            // use the page's frame instead.
            multiples: if config.geometry.lead() > 0 {
                0
            } else {
                u64::MAX / config.geometry.stride() as u64 + 1
            },
            has_free_hook,
            checked,
            hardened: config.hardened(),
            this: this.clone(),
            min_partial: config.geometry.min_partial(),
            nodes,
            refs: CacheRefs::new(),
            waiters: Waiters::new(),
            counts: Counts::default(),
            number: 1 + unique(),
            core,
            config,
        }))
    }
    /// Starts an operation on this cache's slabs.
    pub(crate) fn operation(&self, what: OperationKind) -> Operation<'_> {
        Operation::of(self.core.memory.pages.tracepoints(), what, self.name())
    }
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
    pub(crate) fn refs(&self) -> &CacheRefs<Self> {
        &self.refs
    }
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }
    /// Maximum number of allocations that the inlined path serves per miss.
    pub(crate) fn max_allocs_per_miss(&self) -> u64 {
        if self.config.check_frees { 1 } else { self.config.per_cpu.capacity() }
    }
    /// Returns the cache's inlined paths for allocations and for frees by address, and a path that serves while both
    /// are closed. The paths are disabled if a hook must run on each object.
    pub(crate) fn fast_paths(&self) -> [FastPath<Object, StackMemory>; 3] {
        if self.config.check_frees || self.frees.is_disabled() {
            return [FastPath::disabled(); 3];
        }
        let per_cpu = &self.config.per_cpu;
        [self.allocs, per_cpu.fast_path(Words::InlinedFrees), per_cpu.fast_path(Words::Always)]
    }
    /// Copies the layer's words to statics, as [`Layer::take_static_words`](uslab_magazine::Layer::take_static_words)
    /// does.
    pub(crate) fn take_static_words(&self, words: &'static StaticWords) -> bool {
        self.config.per_cpu.take_static_words(words)
    }
    pub(crate) fn config(&self) -> &CacheConfig {
        &self.config
    }
    pub(crate) fn has_hooks(&self) -> bool {
        self.config.hooks.is_some()
    }
    /// Returns `true` if an object could begin `offset` bytes after the start of a slab of this cache. Offsets past the
    /// slab's last object count too. With red zones, the result is always `false`.
    ///
    /// `offset * ceil(2^64 / stride)` modulo `2^64` is below the factor for multiples of the stride, and for no other
    /// offset below `2^32` (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019). The test costs a
    /// multiplication, a comparison, and one loaded word.
    #[inline(always)]
    pub(crate) fn begins_object(&self, offset: u32) -> bool {
        u64::from(offset).wrapping_mul(self.multiples) < self.multiples
    }
    pub(crate) fn owner(&self) -> *mut u8 {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Checks that the cache can have `n` objects in use at a time, so that an impossible request fails without any
    /// attempt.
    ///
    /// # Errors
    /// Fails if the cache's limit, or all pages together, allow fewer than `n` objects.
    pub(crate) fn check_object_limit(&self, n: usize) -> Result<(), AllocError> {
        let (geometry, account) = (self.geometry(), self.config.account.as_ref());
        let bytes = geometry.order().bytes();
        let pages = self.core.memory.pages.max_pages();
        let refused = match self.config.limit {
            Some(slabs) if n > geometry.objects().saturating_mul(slabs as usize) => {
                AllocError::CacheLimit { slabs }
            }
            _ if account.is_some_and(|account| !account.has_room(n.div_ceil(geometry.objects()), bytes)) => {
                self.limit_error()
            }
            _ if n > pages.saturating_mul(PAGE_SIZE) / geometry.stride() => AllocError::TooLarge,
            _ => return Ok(()),
        };
        self.counts.failures.add(1);
        Err(refused)
    }

    pub(crate) fn count(&self) -> NodeCount {
        self.nodes.iter().map(Node::count).fold(NodeCount::default(), |sum, node| sum + node)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of slabs that exist in any form: listed, under construction, or waiting for a grace period.
    pub(crate) fn charged(&self) -> u64 {
        u64::from(self.counts.charge.load(Relaxed))
    }

    /// Returns a reference to this cache, for a thread that owns an object. The cache lives as long as it has objects
    /// in use.
    pub(crate) fn keep_alive(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }
    /// Number of objects that wait for a grace period before they are free.
    #[cfg(any(not(loom), crossbeam_loom))]
    pub(crate) fn deferred(&self) -> &AtomicU64 {
        &self.counts.deferred
    }
    pub(crate) fn grace_pages(&self) -> u64 {
        self.counts.grace_pages.get()
    }
    /// Number of invalid frees that were counted as frees before they were refused.
    pub(crate) fn late_corruptions(&self) -> u64 {
        self.counts.late_corruptions.get()
    }
    /// For debuggers: offset of the cache's description in the cache.
    pub(crate) const DESCRIPTION_OFFSET: usize = std::mem::offset_of!(Self, seen);
    pub(crate) fn is_owner(&self, owner: *mut u8) -> bool {
        owner == self.owner()
    }
}

#[derive(Debug)]
pub(crate) struct Owner(Arc<Cache>);

impl Owner {
    pub(crate) fn new(cache: Arc<Cache>) -> Arc<Self> {
        Arc::new(Self(cache))
    }
    pub(crate) fn cache(&self) -> &Cache {
        &self.0
    }
    pub(crate) fn shared(&self) -> &Arc<Cache> {
        &self.0
    }
}

//! A cache of equal objects: magazines in front, slabs behind.
//!
//! ```text
//! alloc ── magazines ── fill: one lock hold of the node, partial slabs first, then empty ones
//!             │               └ none: one new slab (pages, constructor), its objects to the magazine
//!             └ nothing: other nodes; what other CPUs and the depot hold; empty slabs of other caches; AllocError
//! free ─── magazines ── flush: batches of 32, one lock hold each; slabs that fall empty beyond min_partial go back
//! ```
//!
//! # Locks
//!
//! A node's lock, and nothing under it (but for [`Node::close`] and a fork, see ARCHITECTURE.md): pages are taken and given
//! back, objects constructed and destructed, corruption reported with no lock held. The magazines' locks are not held either
//! when the slabs are asked; the registry's lock is let go before a cache that it names is used.
//!
//! # Invariants
//!
//! * A frame whose owner is a cache belongs to a slab of that cache, on a list of the slab's node or in the hands of one
//!   thread, and the cache outlives it: a cache keeps itself as long as it has slabs (see [`owner`](crate::cache::owner)).
//! * An object whose bit is set is in exactly one place: a caller, a magazine, or the hands of one thread.
//! * `charge` is the number of slabs, those under construction and those that wait for a grace period included.
//!
//! # Constructors
//!
//! A constructor runs once for each object of a new slab, before anybody else knows the slab, and objects stay
//! constructed from then on: through frees, magazines and allocations, until the slab is released. If it panics, the
//! objects that it has made are destructed, the pages go back, and the panic goes on in the caller of the allocation,
//! past no lock and no magazine.

mod alloc;
mod free;
pub mod kmem_cache;
pub mod live;
pub mod magazines;
pub mod mempool;
pub(crate) mod node;
pub(crate) mod owner;
pub(crate) mod page_owners;
pub mod prefill;
mod slabs;

use crate::error::{AllocError, Busy};
use crate::geometry::Geometry;
use crate::report::info::CacheInfo;
use crate::cache::live::Live;
use crate::cache::magazines::Magazines;
use crate::cache::node::{Node, NodeCount, Unlisted};
use crate::cache::owner::Visits;
use crate::subsystem::Core;
#[cfg(not(loom))]
use crate::debug::tags::Tags;
pub(crate) use alloc::BULK;
use alloc::Nothing;
use core::ptr::NonNull;
use std::sync::{Arc, Weak};
use uslab_buddy::{Gfp, PAGE_SIZE, StackMemory};
use uslab_magazine::sync::{AtomicU32, Counter, Ordering::Relaxed, planted};
use uslab_magazine::{Front, Layer, Operation, PathCounts, Round};

// What a free reads of its cache is one line.
const _: () =
    assert!(core::mem::offset_of!(Cache, multiples) / 64 == core::mem::offset_of!(Cache, frees) / 64);
const _: () = assert!(core::mem::offset_of!(Cache, allocs) % 64 != 0);

/// An object on its way: what magazines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(NonNull<u8>);

// SAFETY: it is nobody's on its way, and may be handed to any thread. Typed caches ask `Send` of what lies in it.
unsafe impl Send for Object {}

// Models have no malloc.
#[cfg(not(any(loom, shuttle)))]
impl Object {
    /// # Safety
    /// What lies at `memory` is an object that is nobody's.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: NonNull<u8>) -> Self {
        Self(memory)
    }
    #[inline(always)]
    pub(crate) fn memory(self) -> NonNull<u8> {
        self.0
    }
}

impl Round for Object {
    #[inline(always)]
    fn into_raw(self) -> NonNull<u8> {
        self.0
    }
    #[inline(always)]
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw)
    }
}

/// What runs on each object of a new slab, and of a released one.
pub(crate) struct Hooks {
    pub(crate) construct: Box<dyn Fn(NonNull<u8>) + Send + Sync>,
    pub(crate) destruct: Option<Box<dyn Fn(NonNull<u8>) + Send + Sync>>,
    /// Runs on an object that its user gives back.
    pub(crate) reset: Option<Box<dyn Fn(NonNull<u8>) + Send + Sync>>,
}

impl core::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hooks").field("destruct", &self.destruct.is_some()).finish_non_exhaustive()
    }
}

/// What a cache is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) name: Box<str>,
    pub(crate) geometry: Geometry,
    pub(crate) layer: Option<Layer<Object, StackMemory>>,
    /// Whether it was to have one, and could not.
    pub(crate) magazines_refused: bool,
    pub(crate) hooks: Option<Hooks>,
    /// Flags that every page of the cache is asked with.
    pub(crate) page_flags: Gfp,
    /// What its pages are told by.
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models have no malloc"))]
    pub(crate) page_class: Option<u16>,
    /// The most slabs.
    pub(crate) limit: Option<u32>,
    pub(crate) type_stable: bool,
    /// Whether frees are checked at once.
    pub(crate) check_frees: bool,
    /// Whether others may share it that want such magazines.
    pub(crate) merges: Option<Magazines>,
}

/// What checked frees need: see [`tags`](crate::debug::tags).
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) tags: Arc<Tags>,
    /// The cache's.
    pub(crate) tag: u8,
    /// The layer's, behind the checks.
    front: Front<Object, StackMemory>,
}

/// A cache. Users hold it as [`KmemCache`](crate::KmemCache).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cache {
    // First, and not at the beginning of a line: a load that follows a store to the same place of another page waits for it.
    min_partial: usize,
    /// The inlined path of the layer in `parts`; closed without one, and where something is done with each object before it is
    /// taken back.
    frees: Front<Object, StackMemory>,
    /// Tells multiples of the stride from other offsets: see [`begins_object`](Self::begins_object). On the line of `frees`.
    multiples: u64,
    /// Whether something is done with each object before it is taken back.
    heeds_frees: bool,
    core: Arc<Core>,
    charge: AtomicU32,
    /// The same path; closed, too, where objects are checked. Off the beginning of its line, as `frees`.
    allocs: Front<Object, StackMemory>,
    #[cfg(not(loom))]
    checked: Option<Checked>,
    parts: Parts,
    nodes: Box<[Node]>,
    visits: Visits,
    counts: Counts,
    /// Itself: what waits for a grace period, and a visitor, keeps the cache alive.
    this: Weak<Self>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Objects that went past the magazines.
    direct_allocs: Counter,
    direct_frees: Counter,
    direct_paths: PathCounts,
    /// Objects that are not of the node that was wanted.
    other_node_allocs: Counter,
    /// Of those that went past the magazines.
    other_node_frees: Counter,
    /// Pages of all slabs, those that wait for a grace period included.
    pages: Counter,
    made: Counter,
    released: Counter,
    peak: Counter,
    grace: Counter,
    grace_pages: Counter,
    #[cfg_attr(loom, allow(dead_code, reason = "no grace periods in models"))]
    deferred: Counter,
    /// Holders: the first, and those that share it.
    handles: Counter,
    order_fallbacks: Counter,
    constructed: Counter,
    destructed: Counter,
    failures: Counter,
    corruptions: Counter,
    /// Of these, the ones whose free was counted before it was refused.
    late_corruptions: Counter,
}

impl Cache {
    /// A cache without slabs.
    ///
    /// `None` if there is no address space for what checked frees need.
    pub(crate) fn new(core: Arc<Core>, parts: Parts) -> Option<Arc<Self>> {
        let front = parts.layer.as_ref().map_or_else(Front::closed, Layer::front);
        let resets = parts.hooks.as_ref().is_some_and(|hooks| hooks.reset.is_some());
        let heeds_frees = parts.check_frees || resets;
        #[cfg(not(loom))]
        let checked = if parts.check_frees {
            let (tags, tag) = core.new_tag()?;
            Some(Checked { tags, tag, front })
        } else {
            None
        };
        Some(Arc::new_cyclic(|this| Self {
            allocs: if parts.check_frees { Front::closed() } else { front },
            frees: if heeds_frees { Front::closed() } else { front },
            multiples: u64::MAX / parts.geometry.stride() as u64 + 1,
            heeds_frees,
            #[cfg(not(loom))]
            checked,
            this: this.clone(),
            min_partial: parts.geometry.min_partial(),
            nodes: (0..core.ground.pages.nodes()).map(|_| Node::new()).collect(),
            charge: AtomicU32::new(0),
            visits: Visits::new(),
            counts: Counts::default(),
            core,
            parts,
        }))
    }
    pub(crate) fn name(&self) -> &str {
        &self.parts.name
    }
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.parts.geometry
    }
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
    pub(crate) fn visits(&self) -> &Visits {
        &self.visits
    }
    /// Its inlined path; closed where anything is done with objects on their way.
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models have no malloc"))]
    pub(crate) fn front(&self) -> Front<Object, StackMemory> {
        if self.parts.check_frees { Front::closed() } else { self.frees }
    }
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }
    pub(crate) fn handles(&self) -> &Counter {
        &self.counts.handles
    }
    pub(crate) fn has_hooks(&self) -> bool {
        self.parts.hooks.is_some()
    }
    /// Whether an object could begin so many bytes into a slab of this cache; behind its last one, too.
    ///
    /// `offset * ceil(2^64 / stride)` modulo `2^64` is below the factor for multiples of the stride, and for no other offset
    /// below `2^32` (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019): a multiplication and a
    /// comparison, and no word but the one.
    #[inline(always)]
    pub(crate) fn begins_object(&self, offset: u32) -> bool {
        u64::from(offset).wrapping_mul(self.multiples) < self.multiples
    }
    fn owner(&self) -> *mut u8 {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Whether so many objects can be out at once, so that nothing is tried for a number that is out of reach.
    ///
    /// # Errors
    /// The cache at its limit, or all pages that there are, hold fewer.
    pub(crate) fn admits(&self, n: usize) -> Result<(), AllocError> {
        let geometry = self.geometry();
        let pages = self.core.ground.pages.frames().len() as usize;
        let refused = match self.parts.limit {
            Some(slabs) if n > geometry.objects().saturating_mul(slabs as usize) => {
                AllocError::CacheLimit { slabs }
            }
            _ if n > pages.saturating_mul(PAGE_SIZE) / geometry.stride() => AllocError::TooLarge,
            _ => return Ok(()),
        };
        self.counts.failures.add(1);
        Err(refused)
    }

    // ---- giving back ----

    /// Gives all cached objects to their slabs and all empty slabs back, and sorts the partial ones. Slabs given back.
    pub(crate) fn shrink(&self, op: &Operation) -> usize {
        self.flush_deferred();
        self.purge(op);
        self.shrink_slabs(op)
    }
    /// The same, after a sweep of all stacks.
    pub(crate) fn shrink_swept(&self, op: &Operation) -> usize {
        if let Some(layer) = &self.parts.layer {
            layer.purge_swept(op, &Nothing(self));
        }
        self.shrink_slabs(op)
    }
    fn shrink_slabs(&self, op: &Operation) -> usize {
        let mut unlisted = Unlisted::default();
        self.nodes.iter().for_each(|node| node.shrink(&self.core.ground, &mut unlisted));
        self.release(op, unlisted)
    }

    /// Gives back empty slabs only. Slabs given back.
    pub(crate) fn discard_empty(&self, op: &Operation) -> usize {
        let mut unlisted = Unlisted::default();
        self.nodes.iter().for_each(|node| node.discard_empty(&self.core.ground, &mut unlisted));
        self.release(op, unlisted)
    }

    pub(crate) fn flush_deferred(&self) {
        #[cfg(not(loom))]
        self.core.flush_deferred();
    }

    /// Gives the magazines' objects to their slabs.
    fn purge(&self, op: &Operation) {
        if let Some(layer) = &self.parts.layer {
            layer.purge_in(op, &Nothing(self));
        }
    }

    /// Ends an interval of the magazines' working set. Objects given back to slabs.
    pub(crate) fn reap(&self) -> u64 {
        self.flush_deferred();
        self.parts.layer.as_ref().map_or(0, |layer| layer.reap(&Nothing(self)))
    }

    /// The same, after a sweep of idle stacks.
    pub(crate) fn reap_swept(&self) -> u64 {
        self.parts.layer.as_ref().map_or(0, |layer| layer.reap_swept(&Nothing(self)))
    }

    /// Memory is short: magazines hold less from now on.
    pub(crate) fn shrink_magazines(&self) {
        if let Some(layer) = &self.parts.layer {
            layer.shrink();
        }
    }

    /// Gives the objects that `cpus` hold to their slabs.
    pub(crate) fn drain(&self, cpus: core::ops::Range<u32>) {
        if let Some(layer) = &self.parts.layer {
            layer.drain(&Nothing(self), cpus);
        }
    }
    /// Gives the objects that a sweep has taken to their slabs.
    pub(crate) fn drain_swept(&self) {
        if let Some(layer) = &self.parts.layer {
            layer.drain_swept(&Operation::new(), &Nothing(self));
        }
    }

    /// Gives all slabs back, for good, if no object is in use.
    pub(crate) fn destroy(&self) -> Result<(), Busy> {
        self.flush_deferred();
        // No free leaves its object in a magazine from here on: what is freed beside the purge goes to its slab.
        self.parts.layer.iter().for_each(Layer::close);
        self.purge(&Operation::new());
        self.end().map_err(|live| {
            self.parts.layer.iter().for_each(Layer::reopen);
            Busy { live, aliases: 0 }
        })
    }

    /// Nobody allocates any more: what is freed goes to its slab from now on.
    pub(crate) fn close_magazines(&self) {
        self.flush_deferred();
        if !planted("the magazines of a cache that is left stay open") {
            self.parts.layer.iter().for_each(Layer::close);
        }
        self.purge(&Operation::new());
    }
    /// Gives all slabs back, for good, if no object is out of them, be it in a magazine.
    ///
    /// # Errors
    /// How many objects are out.
    pub(crate) fn end(&self) -> Result<(), u64> {
        let mut unlisted = Unlisted::default();
        let ended = Node::close(&self.nodes, &self.core.ground, &mut unlisted);
        self.release(&Operation::new(), unlisted);
        ended
    }

    // ---- numbers ----

    /// Writes down which objects are in use, once the magazines have given theirs back.
    pub(crate) fn live(&self, live: &mut Live) {
        self.purge(&Operation::new());
        live.clear();
        for node in &self.nodes {
            // Outside the lock, and again if slabs were added meanwhile: whose memory that is may need this node itself.
            while !node.live(&self.core.ground, live) {
                let NodeCount { objects, .. } = node.count();
                live.make_room(node.count().slabs(), objects);
            }
        }
    }

    pub(crate) fn count(&self) -> NodeCount {
        self.nodes.iter().map(Node::count).fold(NodeCount::default(), |sum, node| sum + node)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    pub(crate) fn layer(&self) -> Option<&Layer<Object, StackMemory>> {
        self.parts.layer.as_ref()
    }

    /// Slabs that exist in any form: listed, under construction, or waiting for a grace period.
    pub(crate) fn charged(&self) -> u64 {
        u64::from(self.charge.load(Relaxed))
    }

    /// Itself, kept alive, for somebody who has an object: as long as there are any, it lives.
    pub(crate) fn kept(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }
    /// Objects that wait for a grace period to be free.
    #[cfg(not(loom))]
    pub(crate) fn deferred(&self) -> &Counter {
        &self.counts.deferred
    }
    /// Pages of slabs that wait for a grace period.
    pub(crate) fn grace_pages(&self) -> u64 {
        self.counts.grace_pages.get()
    }
    /// Frees that were counted and then refused.
    pub(crate) fn late_corruptions(&self) -> u64 {
        self.counts.late_corruptions.get()
    }
    pub(crate) fn is_owner(&self, owner: *mut u8) -> bool {
        owner == self.owner()
    }

    /// Objects of all slabs, and those in use. Allocates nothing.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn objects(&self) -> (u64, u64) {
        let (count, layer) = (self.count(), self.parts.layer.as_ref().map(Layer::stats).unwrap_or_default());
        let kept = layer.in_magazines + layer.in_depot;
        (count.objects, count.inuse.saturating_sub(kept))
    }

    pub(crate) fn info(&self) -> CacheInfo {
        let (count, counts, geometry) = (self.count(), &self.counts, self.geometry());
        let dear = counts.direct_paths.now();
        let direct = dear.of_operations(counts.direct_allocs.get() + counts.direct_frees.get());
        let layer = self.parts.layer.as_ref().map(Layer::stats).unwrap_or_default();
        let in_magazines = layer.in_magazines;
        CacheInfo {
            name: self.name().to_owned(),
            object_size: geometry.object_size() as u64,
            slab_size: geometry.stride() as u64,
            align: geometry.align() as u64,
            order: geometry.order().get(),
            objs_per_slab: geometry.objects() as u64,
            min_partial: self.min_partial as u64,
            limit: self.parts.limit.map(u64::from),
            aliases: counts.handles.get().saturating_sub(1),
            type_stable: self.parts.type_stable,
            slabs: count.slabs(),
            full: count.full,
            partial: count.partial,
            empty: count.empty,
            grace: counts.grace.get(),
            deferred: counts.deferred.get(),
            slabs_peak: counts.peak.get(),
            slabs_made: counts.made.get(),
            slabs_released: counts.released.get(),
            order_fallbacks: counts.order_fallbacks.get(),
            pages: counts.pages.get(),
            objects: count.objects,
            used: count.inuse.saturating_sub(in_magazines + layer.in_depot),
            in_magazines,
            in_depot: layer.in_depot,
            free_in_slabs: count.objects - count.inuse,
            allocs: layer.allocs + counts.direct_allocs.get(),
            frees: layer.frees + counts.direct_frees.get(),
            paths: layer.paths + direct,
            depot_exchanges: layer.depot_exchanges,
            depot_contention: layer.depot_contention,
            fills: layer.fills,
            flushes: layer.flushes,
            other_node_allocs: counts.other_node_allocs.get(),
            other_node_frees: layer.other_node_frees + counts.other_node_frees.get(),
            magazine_capacity: layer.capacity,
            magazines_refused: self.parts.magazines_refused,
            constructed: counts.constructed.get(),
            destructed: counts.destructed.get(),
            failures: counts.failures.get(),
            corruptions: counts.corruptions.get(),
        }
    }
}

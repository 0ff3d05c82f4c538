//! A cache of equal objects: magazines in front, slabs behind.
//!
//! ```text
//! alloc ── magazines ── fill: one lock hold of the node, partial slabs first, then empty ones
//!             │               └ none: one new slab (pages, constructor), its objects to the magazine
//!             └ nothing: other nodes; what other CPUs and the depot hold; empty slabs of other caches; AllocError
//! free ─── magazines ── flush: batches of 32, one lock hold each; slabs that fall empty beyond min_partial go back
//! ```
//!
//! # Lock order
//!
//! A node's lock (several only in [`Node::close`], ascending), then nothing: pages are taken and given back, objects
//! constructed and destructed, corruption reported with no lock held. The magazines' locks are not held either when
//! the slabs are asked; the registry's lock is let go before a cache that it names is used.
//!
//! # Invariants
//!
//! * A frame whose owner is a cache belongs to a slab of that cache, on a list of the slab's node or in the hands of one
//!   thread, and the cache outlives it: a cache is only dropped without slabs, else it is leaked.
//! * An object whose bit is set is in exactly one place: a caller, a magazine, or the hands of one thread.
//! * `charge` is the number of slabs, those under construction and those that wait for a grace period included.
//!
//! # Constructors
//!
//! A constructor runs once for each object of a new slab, before anybody else knows the slab, and objects stay
//! constructed from then on: through frees, magazines and allocations, until the slab is released. If it panics, the
//! objects that it has made are destructed, the pages go back, and the panic goes on in the caller of the allocation,
//! past no lock and no magazine.

use crate::corruption::{Corruption, CorruptionKind};
use crate::error::{AllocError, Busy};
use crate::faults::{CONSTRUCTOR, CONSTRUCTOR_PANIC, Call, LIMIT, SLAB};
use crate::fork;
use crate::geometry::Geometry;
use crate::info::CacheInfo;
use crate::magazines::Magazines;
use crate::node::{Node, NodeCount, Place, Unlisted};
use crate::owner::Visits;
use crate::subsystem::Core;
#[cfg(not(loom))]
use crate::tags::Tags;
use core::any::Any;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use uslab_buddy::region::Reserved;
use uslab_buddy::{Gfp, Order, Pfn};
use uslab_magazine::sync::{AtomicU32, Counter, Ordering::Relaxed, assert_unlocked, planted};
use uslab_magazine::{Front, Layer, Private, Round, Supplier};

/// An object on its way: what magazines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(NonNull<u8>);

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
    pub(crate) layer: Option<Layer<Object, Reserved>>,
    pub(crate) hooks: Option<Hooks>,
    /// Flags that every page of the cache is asked with.
    pub(crate) page_flags: Gfp,
    /// The most slabs.
    pub(crate) limit: Option<u32>,
    pub(crate) type_stable: bool,
    /// Whether frees are checked at once.
    pub(crate) check_frees: bool,
    /// Whether others may share it that want such magazines.
    pub(crate) merges: Option<Magazines>,
}

/// What checked frees need: see [`tags`](crate::tags).
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) tags: Arc<Tags>,
    /// The cache's.
    pub(crate) tag: u8,
    /// The layer's, behind the checks.
    front: Front<Object>,
}

/// A cache. Users hold it as [`KmemCache`](crate::KmemCache).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cache {
    // First, and not at the beginning of a line: see `uslab_magazine::store` on stores to other pages.
    min_partial: usize,
    /// The inlined paths of the layer in `parts`; closed without one.
    allocs: Front<Object>,
    /// Closed, too, where something is done with each object before it is taken back.
    frees: Front<Object>,
    /// Whether that is so.
    heeds_frees: bool,
    #[cfg(not(loom))]
    checked: Option<Checked>,
    parts: Parts,
    nodes: Box<[Node]>,
    charge: AtomicU32,
    visits: Visits,
    counts: Counts,
    core: Arc<Core>,
    /// Itself: what waits for a grace period keeps the cache alive.
    #[cfg_attr(loom, allow(dead_code, reason = "no grace periods in models"))]
    this: Weak<Self>,
    held: fork::Room,
}

#[derive(Debug, Default)]
struct Counts {
    /// Objects that went past the magazines.
    direct_allocs: Counter,
    direct_frees: Counter,
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

/// Objects taken back in one lock hold: few enough that others wait little, many enough that the lock is cheap.
const BATCH: usize = 32;

/// Objects taken for a bulk caller in one lock hold.
const BULK: usize = 256;

/// Flags of an object's allocation that its pages are asked with.
const PASSED_ON: Gfp = Gfp::HIGH
    .union(Gfp::NOWAIT)
    .union(Gfp::NORETRY)
    .union(Gfp::NOIO)
    .union(Gfp::NOFS)
    .union(Gfp::THIS_NODE)
    .union(Gfp::MEMALLOC);

type Panic = Box<dyn Any + Send>;

/// Why a cache did not grow.
enum Refusal {
    Error(AllocError),
    Panic(Panic),
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        Self::Error(error)
    }
}

/// Places that a bulk caller wants filled. All or nothing: an error, or the panic of a constructor, leaves them empty.
struct Filling<'a> {
    cache: &'a Cache,
    out: &'a mut [Option<NonNull<u8>>],
    got: usize,
}

impl Filling<'_> {
    fn put(&mut self, object: NonNull<u8>) {
        self.out[self.got] = Some(object);
        self.got += 1;
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        for object in self.out.iter_mut().filter_map(Option::take) {
            #[cfg(not(loom))]
            if let Some(Checked { tags, tag, .. }) = &self.cache.checked {
                _ = tags.back(object, *tag);
            }
            self.cache.take_back(object);
        }
    }
}

/// The slabs, as the magazines see them, on behalf of one call.
struct Source<'a> {
    cache: &'a Cache,
    gfp: Gfp,
    /// Why the last growth failed.
    refusal: Cell<Option<Refusal>>,
}

impl Source<'_> {
    /// Why there is nothing; goes on with the panic of a constructor.
    fn error(&self) -> AllocError {
        self.error_or(AllocError::Destroyed)
    }
    /// The same; `silent` where the slabs were not asked at all.
    fn error_or(&self, silent: AllocError) -> AllocError {
        match self.refusal.take() {
            Some(Refusal::Panic(panic)) => resume_unwind(panic),
            Some(Refusal::Error(error)) => error,
            None => silent,
        }
    }
}

impl Supplier<Object> for Source<'_> {
    fn fill(&self, node: u32, max: usize, mut put: impl FnMut(Object)) -> usize {
        let call = Call::of(SLAB, self.cache.geometry().object_size());
        if self.cache.core.faults.fires(call.cache(self.cache.name())) {
            self.refusal.set(Some(AllocError::Injected.into()));
            return 0;
        }
        match self.cache.take(node, max, &mut put) {
            0 => match self.cache.grow(node, self.gfp | self.cache.strict(), max, &mut put) {
                Ok(taken) => taken,
                Err(refusal) => {
                    self.refusal.set(Some(refusal));
                    0
                }
            },
            taken => taken,
        }
    }
    fn flush(&self, rounds: impl Iterator<Item = Object>) {
        self.cache.give(rounds);
    }
    fn node_of(&self, round: Object) -> u32 {
        self.cache.node_of(round)
    }
}

/// A supplier that has nothing: what the magazines answer is what they hold.
struct Nothing<'a>(&'a Cache);

impl Supplier<Object> for Nothing<'_> {
    fn fill(&self, _node: u32, _max: usize, _put: impl FnMut(Object)) -> usize {
        0
    }
    fn flush(&self, rounds: impl Iterator<Item = Object>) {
        self.0.give(rounds);
    }
    fn node_of(&self, round: Object) -> u32 {
        self.0.node_of(round)
    }
}

impl Cache {
    /// A cache without slabs.
    ///
    /// `None` if there is no memory for what checked frees need.
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
            heeds_frees,
            #[cfg(not(loom))]
            checked,
            this: this.clone(),
            min_partial: parts.geometry.min_partial(),
            nodes: (0..core.ground.pages.nodes()).map(|_| Node::default()).collect(),
            charge: AtomicU32::new(0),
            visits: Visits::default(),
            counts: Counts::default(),
            held: fork::Room::new(),
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
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }
    pub(crate) fn handles(&self) -> &Counter {
        &self.counts.handles
    }
    pub(crate) fn has_hooks(&self) -> bool {
        self.parts.hooks.is_some()
    }
    fn owner(&self) -> *mut u8 {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    // ---- allocation ----

    /// One object, from the nearest place that has one.
    #[inline(always)]
    pub(crate) fn alloc(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: the layer lives in `parts`.
        match unsafe { self.allocs.alloc() } {
            // Of an open front: nothing is checked.
            Some(object) => Ok(self.hand_over(object, gfp)),
            None => self.alloc_missed(gfp),
        }
    }

    /// The front missed, or it is closed because objects are checked.
    #[cold]
    #[inline(never)]
    fn alloc_missed(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        #[cfg(not(loom))]
        if let Some(Checked { front, .. }) = &self.checked
            // SAFETY: as in `alloc`.
            && let Some(object) = unsafe { front.alloc() }
        {
            return Ok(self.hand_out(object, gfp));
        }
        self.alloc_slow(gfp)
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let source = Source { cache: self, gfp, refusal: Cell::new(None) };
        let object = match &self.parts.layer {
            Some(layer) => layer.alloc(&source),
            None => self.direct(&source, self.this_node()),
        };
        match object {
            Some(object) => Ok(self.hand_out(object, gfp)),
            None => self.alloc_pressed(&source).map(|object| self.hand_out(object, gfp)),
        }
    }

    /// One object of `node`; without [`Gfp::THIS_NODE`], of another one if there is none.
    pub(crate) fn alloc_node(&self, gfp: Gfp, node: u32) -> Result<NonNull<u8>, AllocError> {
        if node >= self.core.ground.pages.nodes() {
            let error = uslab_buddy::AllocError {
                order: self.geometry().order(),
                node: Some(node),
                limit: uslab_buddy::Limit::Node,
            };
            return Err(AllocError::Memory(error));
        }
        if node == self.this_node() && !gfp.contains(Gfp::THIS_NODE) {
            return self.alloc(gfp);
        }
        let source = Source { cache: self, gfp, refusal: Cell::new(None) };
        match self.direct(&source, node) {
            Some(object) => Ok(self.hand_out(object, gfp)),
            None if gfp.contains(Gfp::THIS_NODE) => {
                self.alloc_pressed_on(&source, node).map(|object| self.hand_out(object, gfp))
            }
            None => self.alloc(gfp),
        }
    }

    /// Objects into every place of `out`, or an error and none: what this CPU's magazines and the depot hold, then
    /// straight from the slabs.
    pub(crate) fn alloc_bulk(&self, gfp: Gfp, out: &mut [Option<NonNull<u8>>]) -> Result<(), AllocError> {
        let mut filling = Filling { cache: self, out, got: 0 };
        filling.out.fill(None);
        if let Some(layer) = &self.parts.layer {
            while filling.got < filling.out.len()
                && let Some(object) = layer.alloc(&Nothing(self))
            {
                filling.put(self.hand_out(object, gfp));
            }
        }
        let node = self.this_node();
        let source = Source { cache: self, gfp, refusal: Cell::new(None) };
        while filling.got < filling.out.len() {
            let room = &mut filling.out[filling.got..];
            let mut places = room.iter_mut();
            let max = places.len().min(BULK);
            let taken = source.fill(node, max, |object| {
                if let Some(place) = places.next() {
                    *place = Some(object.0);
                }
            });
            self.counts.direct_allocs.add(taken as u64);
            for place in room.iter_mut().take(taken) {
                *place = place.map(|object| self.hand_out(Object(object), gfp));
            }
            filling.got += taken;
            if taken == 0 {
                let object = self.alloc_pressed(&source)?;
                filling.put(self.hand_out(object, gfp));
            }
        }
        filling.out = &mut [];
        Ok(())
    }

    /// Nothing was to be had in the ordinary way: whatever helps, once each.
    #[cold]
    fn alloc_pressed(&self, source: &Source<'_>) -> Result<Object, AllocError> {
        let result = self.press(source, |source| {
            let (nodes, first) = (self.core.ground.pages.nodes(), self.this_node());
            (0..nodes).find_map(|i| self.direct(source, (first + i) % nodes))
        });
        result.inspect_err(|_| self.counts.failures.add(1))
    }

    #[cold]
    fn alloc_pressed_on(&self, source: &Source<'_>, node: u32) -> Result<Object, AllocError> {
        self.press(source, |source| self.direct(source, node)).inspect_err(|_| self.counts.failures.add(1))
    }

    fn press(
        &self,
        source: &Source<'_>,
        again: impl Fn(&Source<'_>) -> Option<Object>,
    ) -> Result<Object, AllocError> {
        let again = || again(source).ok_or_else(|| source.error());
        let mut result = Err(source.error());
        if self.core.ground.pages.nodes() > 1 {
            result = again();
        }
        // What other CPUs and the depots keep of this cache.
        if let (Err(_), Some(layer)) = (&result, &self.parts.layer)
            && !planted("other CPUs are not drained before an error")
        {
            layer.shrink();
            layer.purge(source);
            result = again();
        }
        // What other caches keep without using it.
        if matches!(result, Err(AllocError::Memory(_))) && self.press_others() > 0 {
            result = again();
        }
        self.ask_users(source.gfp, result, again)
    }

    /// What users have and can do without.
    fn ask_users<T>(
        &self,
        gfp: Gfp,
        result: Result<T, AllocError>,
        again: impl Fn() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let limited = match result {
            Err(AllocError::CacheLimit { .. }) => Some(self),
            Err(AllocError::Memory(_)) => None,
            done => return done,
        };
        let again = || {
            // What they freed lies in magazines.
            match limited {
                Some(cache) => cache.purge(),
                None => _ = self.core.shrink(),
            }
            again()
        };
        self.core.shrink_until(gfp, limited, again, result)
    }

    /// Empty slabs that other caches gave back.
    fn press_others(&self) -> usize {
        // Of a deadlock no guard may be dropped, hence `ManuallyDrop`.
        let held = planted("a node's lock is held under pressure").then(|| Node::lock_all(&self.nodes));
        let held = ManuallyDrop::new(held);
        let given = self.core.press(Some(self));
        drop(ManuallyDrop::into_inner(held));
        given
    }

    /// One object of `node` past the magazines.
    fn direct(&self, source: &Source<'_>, node: u32) -> Option<Object> {
        let mut object = None;
        source.fill(node, 1, |o| object = Some(o));
        if object.is_some() {
            self.counts.direct_allocs.add(1);
        }
        object
    }

    #[inline(always)]
    fn hand_out(&self, object: Object, gfp: Gfp) -> NonNull<u8> {
        #[cfg(not(loom))]
        if let Some(Checked { tags, tag, .. }) = &self.checked {
            // SAFETY: `grow` covers each slab before anybody knows it.
            unsafe { tags.out(object.0, *tag) };
        }
        self.hand_over(object, gfp)
    }
    #[inline(always)]
    fn hand_over(&self, Object(object): Object, gfp: Gfp) -> NonNull<u8> {
        self.core.ground.obj_out(object);
        if gfp.contains(Gfp::ZERO) && !self.has_hooks() {
            // SAFETY: the object is ours until it is returned, and so many bytes long.
            unsafe { object.write_bytes(0, self.geometry().object_size()) };
        }
        object
    }

    fn this_node(&self) -> u32 {
        self.core.cpus.node_of(self.core.cpus.current())
    }
    /// Magazines hold objects of their own node only.
    fn strict(&self) -> Gfp {
        if self.core.ground.pages.nodes() > 1 { Gfp::THIS_NODE } else { Gfp::empty() }
    }
    fn node_of(&self, Object(object): Object) -> u32 {
        let pages = &self.core.ground.pages;
        pages.pfn_of(object.as_ptr()).map_or(0, |pfn| pages.node_of(pfn))
    }

    /// A private magazine with at least `n` objects.
    pub(crate) fn prefill(&self, gfp: Gfp, n: usize) -> Result<Private<'_, Object, Reserved>, AllocError> {
        let layer = self.parts.layer.as_ref().ok_or(AllocError::NoMagazines)?;
        let source = Source { cache: self, gfp, refusal: Cell::new(None) };
        if let Some(private) = layer.private(&source, n) {
            return Ok(private);
        }
        let error = source.error_or(AllocError::NoMagazines);
        // What other CPUs and the depots keep, and what other caches keep without using it.
        layer.shrink();
        layer.purge(&source);
        if matches!(error, AllocError::Memory(_)) {
            self.press_others();
        }
        let again = || layer.private(&source, n).ok_or_else(|| source.error_or(AllocError::NoMagazines));
        self.ask_users(gfp, again(), again).inspect_err(|_| self.counts.failures.add(1))
    }
    /// As `prefill` on one that exists already.
    pub(crate) fn refill(
        &self,
        private: &mut Private<'_, Object, Reserved>,
        gfp: Gfp,
        n: usize,
    ) -> Result<(), AllocError> {
        let source = Source { cache: self, gfp, refusal: Cell::new(None) };
        if private.refill(&source, n) { Ok(()) } else { Err(source.error_or(AllocError::NoMagazines)) }
    }
    #[inline(always)]
    pub(crate) fn private_alloc(
        &self,
        private: &mut Private<'_, Object, Reserved>,
        gfp: Gfp,
    ) -> Option<NonNull<u8>> {
        private.pop().map(|object| self.hand_out(object, gfp))
    }
    #[inline(always)]
    pub(crate) fn private_free(&self, private: &mut Private<'_, Object, Reserved>, object: NonNull<u8>) {
        if self.heeds_frees {
            return self.heed(object, |cache| cache.private_push(private, object));
        }
        self.private_push(private, object);
    }
    #[inline(always)]
    fn private_push(&self, private: &mut Private<'_, Object, Reserved>, object: NonNull<u8>) {
        self.core.ground.obj_in(object);
        private.push(&Nothing(self), Object(object));
    }
    pub(crate) fn close(&self, private: &mut Private<'_, Object, Reserved>) {
        private.close(&Nothing(self));
    }

    // ---- free ----

    /// Takes an object back.
    ///
    /// # Safety
    /// As [`KmemCache::free`](crate::KmemCache::free).
    #[inline(always)]
    pub(crate) unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the layer lives in `parts`. (Where the ground watches objects, in models, fronts always miss.)
        if !unsafe { self.frees.free(Object(object)) } {
            self.free_missed(object);
        }
    }

    /// The front missed, or it is closed because objects are heeded.
    #[cold]
    #[inline(never)]
    fn free_missed(&self, object: NonNull<u8>) {
        if self.heeds_frees { self.free_heeded(object) } else { self.take_back(object) }
    }

    fn free_heeded(&self, object: NonNull<u8>) {
        self.heed(object, |cache| {
            #[cfg(not(loom))]
            if let Some(Checked { front, .. }) = &cache.checked
                // SAFETY: as in `free`.
                && unsafe { front.free(Object(object)) }
            {
                return;
            }
            cache.take_back(object);
        });
    }

    /// What is done with an object before it is taken back, and then that. A reset that panics does so when the object
    /// is back.
    #[inline(always)]
    fn heed(&self, object: NonNull<u8>, take_back: impl FnOnce(&Self)) {
        if self.parts.check_frees && !self.accepts(object) {
            return;
        }
        match self.parts.hooks.as_ref().and_then(|hooks| hooks.reset.as_ref()) {
            None => take_back(self),
            Some(reset) => self.reset(reset, object, take_back),
        }
    }
    #[inline(never)]
    fn reset(&self, reset: &dyn Fn(NonNull<u8>), object: NonNull<u8>, take_back: impl FnOnce(&Self)) {
        assert_unlocked();
        let outcome = catch_unwind(AssertUnwindSafe(|| reset(object)));
        take_back(self);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    #[inline(never)]
    fn take_back(&self, object: NonNull<u8>) {
        self.core.ground.obj_in(object);
        match &self.parts.layer {
            Some(layer) => {
                let source = Source { cache: self, gfp: Gfp::KERNEL, refusal: Cell::new(None) };
                layer.free(&source, Object(object));
            }
            None => {
                self.counts.direct_frees.add(1);
                self.give(core::iter::once(Object(object)));
            }
        }
    }

    /// Whether it is an object of this cache that is out, and so no longer; if not, the corruption is reported. Asked where
    /// the cache is checked; else the slabs find out.
    #[inline(always)]
    fn accepts(&self, object: NonNull<u8>) -> bool {
        #[cfg(not(loom))]
        if let Some(Checked { tags, tag, .. }) = &self.checked
            && tags.back(object, *tag)
        {
            return true;
        }
        self.explain(object)
    }
    /// Names what is wrong with a free, if anything is.
    #[cold]
    #[inline(never)]
    fn explain(&self, object: NonNull<u8>) -> bool {
        match self.place(Object(object)) {
            // Loom watches who has the object instead.
            Ok(_) if cfg!(loom) => return true,
            Ok(Place { index, .. }) => self.refuse(CorruptionKind::DoubleFree, object, Some(index)),
            Err(kind) => self.refuse(kind, object, None),
        }
        false
    }

    /// Where an object lies, from its page's frame; or why it is none of ours.
    #[inline]
    fn place(&self, Object(object): Object) -> Result<Place, CorruptionKind> {
        let ground = &self.core.ground;
        let pfn = ground.pages.pfn_of(object.as_ptr()).ok_or(CorruptionKind::Foreign)?;
        let frame = ground.frames().frame(pfn);
        let owner = frame.owner();
        if owner != self.owner() {
            return Err(match self.core.cache_of(owner) {
                Some(_) => CorruptionKind::WrongCache,
                None => CorruptionKind::Foreign,
            });
        }
        frame.touch();
        let slab = frame.head();
        let offset = object.addr().get() - ground.pages.address(slab).addr().get();
        let index = self.geometry().index(offset).ok_or(CorruptionKind::Interior)?;
        let order = ground.frames().frame(slab).state().order();
        if index >= self.geometry().objects_at(order) {
            return Err(CorruptionKind::Interior);
        }
        Ok(Place { slab, index })
    }

    fn refuse(&self, kind: CorruptionKind, object: NonNull<u8>, index: Option<usize>) {
        self.counts.corruptions.add(1);
        let ground = &self.core.ground;
        let owner = ground.pages.pfn_of(object.as_ptr()).map(|pfn| ground.frames().frame(pfn).owner());
        let owner = owner.filter(|owner| *owner != self.owner()).and_then(|owner| self.core.cache_of(owner));
        self.core.corrupt(&Corruption {
            kind,
            address: object.addr().get(),
            cache: self.name(),
            owner: owner.map(Self::name),
            index,
        });
    }

    // ---- the slabs ----

    fn object(&self, Place { slab, index }: Place) -> Object {
        let base = self.core.ground.pages.address(slab);
        // SAFETY: the object lies inside the slab's block.
        Object(unsafe { base.add(self.geometry().offset(index)) })
    }

    /// Takes up to `max` objects of listed slabs of `node`.
    fn take(&self, node: u32, max: usize, put: &mut impl FnMut(Object)) -> usize {
        self.nodes[node as usize].take(&self.core.ground, max, |place| put(self.object(place)))
    }

    /// Gives objects back to their slabs.
    fn give(&self, mut objects: impl Iterator<Item = Object>) {
        let ground = &self.core.ground;
        loop {
            // No lock is held while the magazine is emptied and the frames are read.
            let mut batch = [None; BATCH];
            let mut len = 0;
            for object in objects.by_ref() {
                match self.place(object) {
                    Ok(place) => {
                        batch[len] = Some((ground.pages.node_of(place.slab), place));
                        len += 1;
                    }
                    Err(kind) => {
                        self.counts.late_corruptions.add(1);
                        self.refuse(kind, object.0, None);
                    }
                }
                if len == BATCH {
                    break;
                }
            }
            let mut start = 0;
            while let Some(&Some((node, _))) = batch[..len].get(start) {
                let run = batch[start..len].iter().map_while(|entry| entry.filter(|(n, _)| *n == node));
                let (mut unlisted, mut refused, mut count) = (Unlisted::default(), [None; BATCH], 0);
                let mut places = 0;
                // SAFETY: `place` found each object in a slab of this cache. Its bit is set, so the slab is listed and
                // stays so; or the object is free already, which the caller's contract excludes.
                unsafe {
                    self.nodes[node as usize].give(
                        ground,
                        self.min_partial,
                        run.map(|(_, place)| place).inspect(|_| places += 1),
                        &mut unlisted,
                        |place| {
                            refused[count] = Some(place);
                            count += 1;
                        },
                    );
                }
                start += places;
                self.release(unlisted);
                for place in refused.into_iter().flatten() {
                    self.counts.late_corruptions.add(1);
                    self.refuse(CorruptionKind::DoubleFree, self.object(place).0, Some(place.index));
                }
            }
            if len < BATCH {
                return;
            }
        }
    }

    /// One more slab on the list that it belongs on; up to `max` of its objects are the caller's.
    fn grow(&self, node: u32, gfp: Gfp, max: usize, put: &mut impl FnMut(Object)) -> Result<usize, Refusal> {
        self.charge()?;
        let (slab, order) = self.pages(node, gfp).inspect_err(|_| self.uncharge())?;
        let ground = &self.core.ground;
        let objects = self.geometry().objects_at(order);
        #[cfg(not(loom))]
        let covered = self.checked.as_ref().is_none_or(|checked| checked.tags.cover(slab, order));
        #[cfg(loom)]
        let covered = true;
        // SAFETY: the block is ours and nobody else knows it; a slab has at most an object a word.
        if !covered || !unsafe { ground.slab(slab).set_up(objects) } {
            // SAFETY: allocated just now with this order.
            unsafe { ground.pages.free(slab, order) };
            self.uncharge();
            return Err(AllocError::SideTable.into());
        }
        if let Err(panic) = self.construct(slab, objects) {
            // SAFETY: as above; no object is constructed any more.
            unsafe { ground.pages.free(slab, order) };
            self.uncharge();
            return Err(Refusal::Panic(panic));
        }
        // SAFETY: the block is ours; a cache is dropped without slabs or leaked, and `finish` takes its name off.
        unsafe { ground.set_owner(slab, order, self.owner()) };
        let mut taken = 0;
        // SAFETY: nobody else knows the slab.
        unsafe { ground.slab(slab).take(max, |_| taken += 1) };
        let node = &self.nodes[ground.pages.node_of(slab) as usize];
        self.counts.made.add(1);
        // SAFETY: set up above, and nobody else knows it.
        if unsafe { node.add(ground, slab) }.is_err() {
            self.release_one(slab);
            return Err(AllocError::Destroyed.into());
        }
        // The lowest ones of a new slab are 0, 1, 2 ...
        (0..taken).for_each(|index| put(self.object(Place { slab, index })));
        Ok(taken)
    }

    /// Pages of the usual order; if they are not to be had at once, of the smallest that holds an object.
    fn pages(&self, node: u32, gfp: Gfp) -> Result<(Pfn, Order), AllocError> {
        let (order, least) = (self.geometry().order(), self.geometry().min_order());
        let mut flags = gfp & PASSED_ON | self.parts.page_flags;
        if self.has_hooks() {
            // A constructor gets bytes that are initialised.
            flags |= Gfp::ZERO;
        }
        let alloc = |order: Order, flags: Gfp| {
            let flags = if order > Order::ZERO { flags | Gfp::COMP } else { flags };
            self.core.ground.pages.alloc(order, flags, Some(node)).map(|pfn| (pfn, order))
        };
        if order > least {
            if let Ok(block) = alloc(order, flags | Gfp::NORETRY) {
                return Ok(block);
            }
            let block = alloc(least, flags)?;
            self.counts.order_fallbacks.add(1);
            return Ok(block);
        }
        Ok(alloc(order, flags)?)
    }

    fn construct(&self, slab: Pfn, objects: usize) -> Result<(), Panic> {
        let Some(hooks) = &self.parts.hooks else { return Ok(()) };
        assert_unlocked();
        for index in 0..objects {
            let Object(object) = self.object(Place { slab, index });
            let call = Call::of(CONSTRUCTOR, self.geometry().object_size());
            let constructed = if self.core.faults.fires(call.cache(self.name())) {
                Err(Box::new(CONSTRUCTOR_PANIC) as Panic)
            } else {
                catch_unwind(AssertUnwindSafe(|| (hooks.construct)(object)))
            };
            if let Err(panic) = constructed {
                self.destruct(slab, index);
                return Err(panic);
            }
            self.counts.constructed.add(1);
        }
        Ok(())
    }

    /// Destructs the first `objects` objects. A panic of a destructor ends that destructor and nothing else: the panic
    /// hook has reported it, and the caller, who frees something else, cannot do anything about it.
    fn destruct(&self, slab: Pfn, objects: usize) {
        let Some(destruct) = self.parts.hooks.as_ref().and_then(|hooks| hooks.destruct.as_ref()) else {
            return;
        };
        assert_unlocked();
        for index in 0..objects {
            let Object(object) = self.object(Place { slab, index });
            drop(catch_unwind(AssertUnwindSafe(|| destruct(object))));
            self.counts.destructed.add(1);
        }
    }

    /// Counts one more slab, if the limit allows it.
    fn charge(&self) -> Result<(), AllocError> {
        // Relaxed: a number, which says nothing about the slabs.
        let mut charged = self.charge.load(Relaxed);
        let call = Call::of(LIMIT, self.geometry().order().bytes());
        if self.core.faults.fires(call.cache(self.name())) {
            return Err(AllocError::CacheLimit { slabs: charged });
        }
        loop {
            if let Some(limit) = self.parts.limit
                && charged >= limit
            {
                return Err(AllocError::CacheLimit { slabs: limit });
            }
            match self.charge.compare_exchange_weak(charged, charged + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    self.counts.peak.max(u64::from(charged) + 1);
                    return Ok(());
                }
                Err(now) => charged = now,
            }
        }
    }
    fn uncharge(&self) {
        self.charge.fetch_sub(1, Relaxed);
    }

    /// Gives slabs back to the page allocator.
    fn release(&self, mut slabs: Unlisted) -> usize {
        core::iter::from_fn(|| slabs.pop(&self.core.ground)).map(|slab| self.release_one(slab)).count()
    }

    fn release_one(&self, slab: Pfn) {
        #[cfg(not(loom))]
        if self.parts.type_stable
            && let Some(cache) = self.kept()
        {
            assert_unlocked();
            let pages = u64::from(self.core.ground.frames().frame(slab).state().order().pages());
            self.counts.grace.add(1);
            self.counts.grace_pages.add(pages);
            crate::rcu::after_grace(move || {
                cache.finish(slab);
                cache.counts.grace_pages.sub(pages);
                // Last: who waits for it to become 0 finds all the rest done.
                cache.counts.grace.sub(1);
            });
            return;
        }
        self.finish(slab);
    }

    /// The end of a slab: nobody knows it any more.
    fn finish(&self, slab: Pfn) {
        let ground = &self.core.ground;
        let order = ground.frames().frame(slab).state().order();
        self.destruct(slab, self.geometry().objects_at(order));
        // SAFETY: the block is ours.
        unsafe { ground.set_owner(slab, order, core::ptr::null_mut()) };
        // SAFETY: allocated with this order in `pages`; all its objects are free and it is on no list.
        unsafe { ground.pages.free(slab, order) };
        self.counts.released.add(1);
        if !planted("a released slab stays charged") {
            self.uncharge();
        }
    }

    // ---- giving back ----

    /// Gives all cached objects to their slabs and all empty slabs back, and sorts the partial ones. Slabs given back.
    pub(crate) fn shrink(&self) -> usize {
        self.flush_deferred();
        self.purge();
        let mut unlisted = Unlisted::default();
        self.nodes.iter().for_each(|node| node.shrink(&self.core.ground, &mut unlisted));
        self.release(unlisted)
    }

    /// Gives back empty slabs only. Slabs given back.
    pub(crate) fn discard_empty(&self) -> usize {
        let mut unlisted = Unlisted::default();
        self.nodes.iter().for_each(|node| node.discard_empty(&self.core.ground, &mut unlisted));
        self.release(unlisted)
    }

    fn flush_deferred(&self) {
        #[cfg(not(loom))]
        self.core.flush_deferred();
    }

    /// Gives the magazines' objects to their slabs.
    fn purge(&self) {
        if let Some(layer) = &self.parts.layer {
            layer.purge(&Nothing(self));
        }
    }

    /// Ends an interval of the magazines' working set. Objects given back to slabs.
    pub(crate) fn reap(&self) -> u64 {
        self.flush_deferred();
        self.parts.layer.as_ref().map_or(0, |layer| layer.reap(&Nothing(self)))
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

    /// Gives all slabs back, for good, if no object is in use.
    pub(crate) fn destroy(&self) -> Result<(), Busy> {
        self.flush_deferred();
        let mut live = 1;
        // A free that ran beside the first purge may have left its object in a magazine.
        for _ in 0..2 {
            self.purge();
            let mut unlisted = Unlisted::default();
            match Node::close(&self.nodes, &self.core.ground, &mut unlisted) {
                Ok(()) => {
                    self.release(unlisted);
                    return Ok(());
                }
                Err(out) => live = out,
            }
        }
        Err(Busy { live, aliases: 0 })
    }

    // ---- numbers ----

    /// Hands each object that is in use to `see`, once the magazines have given theirs back.
    pub(crate) fn live(&self, mut see: impl FnMut(NonNull<u8>)) {
        self.purge();
        self.nodes.iter().for_each(|node| node.out(&self.core.ground, |place| see(self.object(place).0)));
    }

    pub(crate) fn count(&self) -> NodeCount {
        self.nodes.iter().map(Node::count).fold(NodeCount::default(), |sum, node| sum + node)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    pub(crate) fn layer(&self) -> Option<&Layer<Object, Reserved>> {
        self.parts.layer.as_ref()
    }
    pub(crate) fn held(&self) -> &fork::Room {
        &self.held
    }

    /// Slabs that exist in any form: listed, under construction, or waiting for a grace period.
    pub(crate) fn charged(&self) -> u64 {
        u64::from(self.charge.load(Relaxed))
    }

    /// Itself, kept alive: it lives, or is leaked, as long as anybody has an object.
    #[cfg(not(loom))]
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

    pub(crate) fn info(&self) -> CacheInfo {
        let (count, counts, geometry) = (self.count(), &self.counts, self.geometry());
        let layer = self.parts.layer.as_ref().map(Layer::stats).unwrap_or_default();
        let in_magazines = layer.in_magazines + layer.in_stock;
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
            objects: count.objects,
            used: count.inuse.saturating_sub(in_magazines + layer.in_depot),
            in_magazines,
            in_depot: layer.in_depot,
            free_in_slabs: count.objects - count.inuse,
            allocs: layer.allocs + counts.direct_allocs.get(),
            frees: layer.frees + counts.direct_frees.get(),
            magazine_hits: layer.fast_allocs + layer.fast_frees,
            depot_exchanges: layer.depot_exchanges,
            depot_contention: layer.depot_contention,
            other_node_frees: layer.other_node_frees,
            magazine_capacity: layer.capacity,
            constructed: counts.constructed.get(),
            destructed: counts.destructed.get(),
            failures: counts.failures.get(),
            corruptions: counts.corruptions.get(),
        }
    }
}

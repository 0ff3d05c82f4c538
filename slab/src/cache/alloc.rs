//! Allocates objects, trying each level from the CPU's stack down to the pages. An allocation tries each level at most
//! once, after the level above it had no object.
//!
//! ```text
//!  alloc                    the CPU's stack, by the inlined path                  no lock
//!  alloc_missed             if the inlined path is closed: claimed slot, a        no lock
//!                           profile, checked objects; one allocation in many
//!                           is a guarded sample
//!  take_from_depot_or_slab  the depot, then a magazine of objects from partial    a lock each: depot, node, zone
//!                           slabs, then from a new slab
//!  alloc_from_fallbacks     other nodes; other CPUs' stacks and depots            fences, all of these locks, one
//!  reclaim                  other caches; shrinkers                               after the other
//!  finish                   the last steps of every object: tags, red zones,
//!                           canaries, zeroing
//! ```
//!
//! Every object passes [`profile`](Cache::profile) and [`finish`](Cache::finish) exactly once before a user gets
//! it.

use super::checked::Checked;
use super::slabs::ConstructionFailure;
use super::{Cache, Object};
use crate::debug::faults::{Call, SLAB};
use crate::error::AllocError;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::panic::resume_unwind;
use uslab_buddy::Gfp;
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{Operation, Supplier};

/// Maximum number of objects that a bulk allocation takes per lock acquisition.
pub(crate) const BULK_BATCH: usize = 256;

/// Output slots that a bulk allocation fills with objects. All slots are empty after an error or a panic of a
/// constructor.
struct BulkOutputSlots<'a> {
    cache: &'a Cache,
    out: &'a mut [Option<NonNull<u8>>],
    got: usize,
}

impl BulkOutputSlots<'_> {
    fn put(&mut self, object: NonNull<u8>) {
        self.out[self.got] = Some(object);
        self.got += 1;
    }
}

impl Drop for BulkOutputSlots<'_> {
    fn drop(&mut self) {
        for object in self.out.iter_mut().filter_map(Option::take) {
            if let Some(checked) = &self.cache.checked {
                _ = self.cache.mark_checked_free(checked, object);
            }
            self.cache.take_back(object);
        }
    }
}

/// Supplies objects from the cache's slabs to the magazines during one call.
pub(super) struct SlabSupplier<'a> {
    cache: &'a Cache,
    gfp: Gfp,
    /// `true` when allocating for the head of the wait queue, which may use free objects that other callers must leave.
    is_waiter: bool,
    /// Reason why the cache's last attempt to grow failed.
    refusal: Cell<Option<ConstructionFailure>>,
}

impl<'a> SlabSupplier<'a> {
    /// Makes a supplier that serves the first waiter of the wait queue.
    pub(super) fn for_first_waiter(cache: &'a Cache, gfp: Gfp) -> Self {
        Self { is_waiter: true, ..cache.source(gfp) }
    }
    /// Returns the reason why the supplier found no object. If a constructor panicked, `error` resumes that panic.
    pub(super) fn error(&self) -> AllocError {
        self.supply_error_or(AllocError::Destroyed)
    }
    /// Returns the reason why the supplier found no object, or `silent` if it did not try the slabs.
    fn supply_error_or(&self, silent: AllocError) -> AllocError {
        match self.refusal.take() {
            Some(ConstructionFailure::Panic(panic)) => resume_unwind(ManuallyDrop::into_inner(panic)),
            Some(ConstructionFailure::Error(error)) => error,
            None => silent,
        }
    }
}

impl Supplier<Object> for SlabSupplier<'_> {
    fn fill(&self, op: &Operation, node: u32, max: usize, mut put: impl FnMut(Object)) -> usize {
        let before = self.refusal.take();
        if matches!(before, Some(ConstructionFailure::Panic(_))) {
            // A constructor's panic is propagating to the caller, so no other node is tried.
            self.refusal.set(before);
            return 0;
        }
        let call = Call::of(SLAB, self.cache.geometry().object_size());
        if self.cache.core.faults.fires(call.cache(self.cache.name())) {
            self.refusal.set(Some(AllocError::Injected.into()));
            return 0;
        }
        let refused = !self.is_waiter && self.cache.has_waiters();
        if refused {
            self.refusal.set(Some(self.cache.limit_error().into()));
            return 0;
        }
        let taken = match self.cache.alloc_from_slabs(op, node, max, &mut put) {
            Ok(0) => self.cache.grow(op, node, self.gfp | self.cache.node_bound_gfp(), max, &mut put),
            taken => taken,
        };
        taken.unwrap_or_else(|refusal| {
            self.refusal.set(Some(refusal));
            0
        })
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Object>) {
        self.cache.free_to_slabs(op, rounds);
    }
    fn node_of(&self, round: Object) -> u32 {
        self.cache.node_of(round)
    }
}

/// A supplier that never supplies an object, so the magazines allocate only objects that they already hold.
pub(super) struct EmptySupplier<'a>(pub(super) &'a Cache);

impl Supplier<Object> for EmptySupplier<'_> {
    fn fill(&self, _: &Operation, _node: u32, _max: usize, _put: impl FnMut(Object)) -> usize {
        0
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Object>) {
        self.0.free_to_slabs(op, rounds);
    }
    fn node_of(&self, round: Object) -> u32 {
        self.0.node_of(round)
    }
}

impl Cache {
    pub(super) fn source(&self, gfp: Gfp) -> SlabSupplier<'_> {
        SlabSupplier { cache: self, gfp, is_waiter: false, refusal: Cell::new(None) }
    }

    /// Allocates one object from the highest level that has a free object.
    #[inline(always)]
    pub(crate) fn alloc(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let all = || self.geometry().object_size();
        self.alloc_inlined(gfp).map_or_else(|| self.alloc_missed(gfp, all()), Ok)
    }
    /// Allocates an object of which the caller will use the first `size` bytes. If the cache checks its objects, the
    /// remaining bytes of the object are a red zone.
    #[inline(always)]
    pub(crate) fn alloc_of(&self, gfp: Gfp, size: usize) -> Result<NonNull<u8>, AllocError> {
        self.alloc_inlined(gfp).map_or_else(|| self.alloc_missed(gfp, size), Ok)
    }
    /// Tries only the inlined allocation path. If that path misses, other levels may still have an object.
    #[inline(always)]
    pub(crate) fn alloc_inlined(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        // SAFETY: the cache keeps its layer in `parts`.
        let object = unsafe { self.allocs.alloc_fast() }?;
        // The inlined path is open, so objects are not checked.
        Some(self.hand_over(object, gfp))
    }

    /// Allocates from the levels below the inlined path, after that path has missed or was closed.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_missed(&self, gfp: Gfp, size: usize) -> Result<NonNull<u8>, AllocError> {
        // A running profile has closed the inlined path.
        let profiled = self.core.profiler.runs();
        if !profiled
            // SAFETY: the cache keeps its layer in `parts`.
            && let Some(object) = unsafe { self.allocs.alloc_claimed() }
        {
            return Ok(self.hand_over(object, gfp));
        }
        // One miss of the inlined path counts for all allocations that the refilled magazine will
        // serve.
        if let Some(sample) = self.guard_sample(size) {
            return Ok(sample);
        }
        if self.checked.is_some() && self.is_refused() {
            self.counts.failures.add(1);
            return Err(AllocError::Injected);
        }
        let object = match &self.checked {
            // SAFETY: the cache keeps its layer in `parts`.
            Some(checked) if !profiled => unsafe { checked.fast_path.alloc() },
            _ if profiled => self.config.per_cpu.pop(),
            _ => None,
        };
        let object = object.map_or_else(|| self.take_from_depot_or_slab(gfp), Ok)?;
        let memory = self.hand_out(object, gfp);
        if size < self.geometry().object_size() {
            self.restrict_access_to_size(memory, size);
        }
        Ok(memory)
    }
    /// Occasionally allocates an object in a separate, zeroed page instead of a slab (see
    /// [`guard`](crate::guard)).
    #[inline]
    fn guard_sample(&self, size: usize) -> Option<NonNull<u8>> {
        let guard = &self.core.guard;
        // While a profile runs, each allocation takes this path.
        let allocations = || if self.core.profiler.runs() { 1 } else { self.max_allocs_per_miss() };
        let due = self.config.guarded && guard.is_due(allocations());
        if due { guard.alloc(size, self.geometry().align()) } else { None }
    }
    /// Allocates from the depot or a slab; the caller has already reported the object to the profile.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_profiled(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.take_from_depot_or_slab(gfp).map(|object| self.finish(object, gfp))
    }
    /// Takes an object from the depot or a slab, and puts the rest of that magazine on the CPU's stack.
    #[cold]
    #[inline(never)]
    fn take_from_depot_or_slab(&self, gfp: Gfp) -> Result<Object, AllocError> {
        let (source, op) = (self.source(gfp), &self.operation(OperationKind::Alloc));
        let object = self
            .config
            .per_cpu
            .take_or_refill(op, &source, || self.take_from_slab(op, &source, self.this_node()));
        object.map_or_else(|| self.alloc_from_fallbacks(op, &source, self.this_node()), Ok)
    }

    /// Allocates an object from memory node `node`. Without [`Gfp::THIS_NODE`], another node supplies the object if
    /// `node` has no object.
    pub(crate) fn alloc_node(&self, gfp: Gfp, node: u32) -> Result<NonNull<u8>, AllocError> {
        if node >= self.core.memory.pages.nodes() {
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
        let (source, op) = (self.source(gfp), &self.operation(OperationKind::Alloc));
        match self.take_from_slab(op, &source, node) {
            Some(object) => Ok(self.hand_out(object, gfp)),
            None => self.alloc_from_fallbacks(op, &source, node).map(|object| self.hand_out(object, gfp)),
        }
    }

    /// Fills every slot of `out` with an object; on an error, fills no slot. The objects come from this CPU's magazines
    /// and the depot first, and then directly from the slabs.
    pub(crate) fn alloc_bulk(&self, gfp: Gfp, out: &mut [Option<NonNull<u8>>]) -> Result<(), AllocError> {
        let mut filling = BulkOutputSlots { cache: self, out, got: 0 };
        filling.out.fill(None);
        self.check_object_limit(filling.out.len())?;
        while filling.got < filling.out.len()
            && let Some(object) = self.config.per_cpu.alloc_from_magazines(&EmptySupplier(self))
        {
            filling.put(self.hand_out(object, gfp));
        }
        let node = self.this_node();
        let source = self.source(gfp);
        while filling.got < filling.out.len() {
            let room = &mut filling.out[filling.got..];
            let mut places = room.iter_mut();
            let max = places.len().min(BULK_BATCH);
            let op = &self.operation(OperationKind::Alloc);
            let taken_objects = source.fill(op, node, max, |object| {
                if let Some(place) = places.next() {
                    *place = Some(object.0);
                }
            });
            self.counts.direct_allocs.add(taken_objects as u64);
            self.counts.direct_paths.add(op.path(), taken_objects as u64);
            for place in room.iter_mut().take(taken_objects) {
                *place = place.map(|object| self.hand_out(Object(object), gfp));
            }
            filling.got += taken_objects;
            if taken_objects == 0 {
                let object = self.alloc_from_fallbacks(op, &source, node)?;
                filling.put(self.hand_out(object, gfp));
            }
        }
        filling.out = &mut [];
        Ok(())
    }

    /// Tries every other source of objects once, after the ordinary levels of `node` have failed.
    #[cold]
    fn alloc_from_fallbacks(
        &self,
        op: &Operation,
        source: &SlabSupplier<'_>,
        node: u32,
    ) -> Result<Object, AllocError> {
        let nodes = self.core.memory.pages.nodes();
        let tries = if source.gfp.contains(Gfp::THIS_NODE) { 1 } else { nodes };
        let retry = |slabs: &SlabSupplier<'_>| {
            (0..tries).find_map(|i| self.take_from_slab(op, slabs, (node + i) % nodes))
        };
        let result = self.reclaim(op, source, source.error(), retry);
        if let Ok(object) = result
            && self.node_of(object) != node
        {
            self.counts.other_node_allocs.add(1);
        }
        result.inspect_err(|_| self.counts.failures.add(1))
    }

    /// After an allocation failed with `error`, reclaims memory from one source after another until a retry succeeds.
    pub(super) fn reclaim(
        &self,
        op: &Operation,
        source: &SlabSupplier<'_>,
        error: AllocError,
        retry: impl Fn(&SlabSupplier<'_>) -> Option<Object>,
    ) -> Result<Object, AllocError> {
        let retry = || retry(source).ok_or_else(|| source.error());
        let mut result = Err(error);
        if self.core.memory.pages.nodes() > 1 {
            result = retry();
        }
        // Flush this cache's objects from other CPUs and from depots.
        if result.is_err() && self.config.per_cpu.holds() {
            self.shrink_magazines();
            self.flush_all(op);
            result = retry();
        }
        // Free unused memory of the account's other caches, and objects that their shrinkers can free.
        if let Some(account) = &self.config.account
            && matches!(result, Err(AllocError::AccountLimit { .. }))
        {
            let retry = || {
                self.core.shrink_account(op, account);
                retry()
            };
            result = self.core.caches_of_account(account).fold(retry(), |result, cache| {
                self.core.shrink_until_success(source.gfp, Some(&cache), retry, result)
            });
        }
        // Free unused memory of other caches.
        if matches!(result, Err(AllocError::Memory(_))) && self.reclaim_other_caches(op) > 0 {
            result = retry();
        }
        self.run_shrinkers(op, source.gfp, result, retry)
    }

    fn run_shrinkers<T>(
        &self,
        op: &Operation,
        gfp: Gfp,
        result: Result<T, AllocError>,
        retry: impl Fn() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let limited = match result {
            Err(AllocError::CacheLimit { .. } | AllocError::HeldLimit { .. }) => Some(self),
            Err(AllocError::Memory(_)) => None,
            done => return done,
        };
        let retry = || {
            // The objects that the shrinkers freed are in magazines, from which they must be
            // flushed.
            match limited {
                Some(cache) => cache.flush_all(op),
                None => self.core.shrink(op),
            };
            retry()
        };
        self.core.shrink_until_success(gfp, limited, retry, result)
    }

    fn reclaim_other_caches(&self, op: &Operation) -> usize {
        self.core.reclaim(op, Some(self))
    }

    /// Takes an object from a slab of `node`, bypassing the magazines.
    pub(super) fn take_from_slab(
        &self,
        op: &Operation,
        source: &SlabSupplier<'_>,
        node: u32,
    ) -> Option<Object> {
        let mut object = None;
        source.fill(op, node, 1, |o| object = Some(o));
        if object.is_some() {
            self.counts.direct_allocs.add(1);
            self.counts.direct_paths.count(op);
        }
        object
    }

    /// Marks an object of a checked cache as allocated.
    #[inline(always)]
    fn mark_checked_alloc(&self, checked: &Checked, object: Object) {
        if let Some(debugged) = &checked.debugged {
            self.debug_alloc(checked, debugged, object);
        }
        // SAFETY: `grow` makes the tags of each slab before any other thread knows the slab.
        unsafe { checked.tags.set(object.0, checked.tag) };
    }
    /// Hands an object out: reports it to the profile, and runs the checks.
    #[inline(always)]
    pub(super) fn hand_out(&self, object: Object, gfp: Gfp) -> NonNull<u8> {
        self.profile(object);
        self.finish(object, gfp)
    }
    #[inline(always)]
    fn profile(&self, object: Object) {
        let cpu = || self.core.cpus.current();
        self.core.profiler.allocated(cpu, object.0, self.geometry().object_size(), self.name());
    }
    /// Runs the last steps of an allocation before a user gets the object.
    #[inline(always)]
    fn finish(&self, object: Object, gfp: Gfp) -> NonNull<u8> {
        if let Some(checked) = &self.checked {
            self.mark_checked_alloc(checked, object);
        }
        if let Some(hardened) = &self.hardened
            // SAFETY: no other thread has the object until it is returned.
            && let Err(kind) = unsafe { hardened.check_and_prepare_alloc(object.0) }
        {
            self.refuse(kind, object.0, self.place(object).ok().map(|place| place.index));
        }
        self.hand_over(object, if self.config.harden.zero_on_alloc { gfp | Gfp::ZERO } else { gfp })
    }
    /// Zeroes the object if `gfp` requests it. Zeroing is the last step of an allocation, and the only step if objects
    /// are neither checked nor hardened.
    #[inline(always)]
    pub(crate) fn hand_over(&self, Object(object): Object, gfp: Gfp) -> NonNull<u8> {
        self.core.memory.report_alloc_to_checker(object);
        if gfp.contains(Gfp::ZERO) && !self.has_hooks() {
            // SAFETY: no other thread has the object until it is returned, and it has `object_size` bytes.
            unsafe { object.write_bytes(0, self.geometry().object_size()) };
        }
        object
    }

    pub(super) fn this_node(&self) -> u32 {
        self.core.cpus.node_of(self.core.cpus.current())
    }
    /// Flags for slab allocations that must use the CPU's node, because magazines hold only objects of that node.
    fn node_bound_gfp(&self) -> Gfp {
        if self.core.memory.pages.nodes() > 1 { Gfp::THIS_NODE } else { Gfp::empty() }
    }
    pub(super) fn node_of(&self, Object(object): Object) -> u32 {
        let pages = &self.core.memory.pages;
        pages.pfn_of(object.as_ptr()).map_or(0, |pfn| pages.node_of(pfn))
    }

    /// Allocates `n` objects for a caller's reserve, or none if fewer than `n` are available. A reserved object has no
    /// user yet.
    pub(crate) fn reserve(&self, gfp: Gfp, n: usize, into: &mut Vec<NonNull<u8>>) -> Result<(), AllocError> {
        self.check_object_limit(n)?;
        into.try_reserve_exact(n)
            .map_err(|_| AllocError::Refused { bytes: n.saturating_mul(size_of::<NonNull<u8>>()) })?;
        let mut reserving = ReservedObjects { cache: self, had: into.len(), objects: into };
        let end = reserving.had + n;
        while reserving.objects.len() < end
            && let Some(object) = self.config.per_cpu.alloc_from_magazines(&EmptySupplier(self))
        {
            self.profile(object);
            reserving.objects.push(object.0);
        }
        let (node, source) = (self.this_node(), self.source(gfp));
        while reserving.objects.len() < end {
            let (op, max) =
                (&self.operation(OperationKind::Alloc), (end - reserving.objects.len()).min(BULK_BATCH));
            let before = reserving.objects.len();
            let taken_objects = source.fill(op, node, max, |object| reserving.objects.push(object.0));
            reserving.objects[before..].iter().for_each(|object| self.profile(Object(*object)));
            self.counts.direct_allocs.add(taken_objects as u64);
            self.counts.direct_paths.add(op.path(), taken_objects as u64);
            if taken_objects == 0 {
                let object = self.alloc_from_fallbacks(op, &source, node)?;
                self.profile(object);
                reserving.objects.push(object.0);
            }
        }
        reserving.had = end;
        Ok(())
    }
    #[inline(always)]
    pub(crate) fn hand_out_reserved_object(&self, object: NonNull<u8>, gfp: Gfp) -> NonNull<u8> {
        self.finish(Object(object), gfp)
    }
    /// Frees an object into the caller's reserve: `keep` puts the object there.
    #[inline(always)]
    pub(crate) fn free_to_reserve(&self, object: NonNull<u8>, keep: impl FnOnce()) {
        if self.free_sample(object) {
            return;
        }
        if self.has_free_hook {
            return self.on_free(object, |cache| {
                cache.core.memory.report_free_to_checker(object);
                keep();
            });
        }
        self.core.memory.report_free_to_checker(object);
        keep();
    }
    /// Frees a reserved object that was never handed to a user.
    pub(crate) fn release_reserved_object(&self, object: NonNull<u8>) {
        self.core.profile_free(object);
        self.push(object);
    }
}

/// Objects that a call of `reserve` is collecting. If an allocation fails, dropping this value frees the objects
/// collected so far.
struct ReservedObjects<'a> {
    cache: &'a Cache,
    objects: &'a mut Vec<NonNull<u8>>,
    /// Number of objects that the reserve contained before the call.
    had: usize,
}

impl Drop for ReservedObjects<'_> {
    fn drop(&mut self) {
        self.objects.drain(self.had..).for_each(|object| self.cache.release_reserved_object(object));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Config, Gfp, KmemCache, Subsystem};
    use std::sync::Arc;
    use uslab_buddy::PageConfig;
    use uslab_magazine::sync::{Counter, catch_panic};
    use uslab_magazine::{Cpus, on_cpu};

    /// Regression test: after a constructor had panicked, the allocation tried the next node; if the next node
    /// succeeded, the panic was lost.
    #[test]
    fn constructor_panic_ends_the_allocation() {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(2, 2).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let calls = Arc::new(Counter::new(0));
        let count = calls.clone();
        let builder = KmemCache::builder("panics", 64).try_ctor(move |_| {
            count.add(1);
            match count.get() {
                1 => false,
                2 => std::panic::panic_any("intended panic"),
                _ => true,
            }
        });
        let cache = builder.build_in(&subsystem).unwrap();
        let panic = catch_panic(|| cache.alloc(Gfp::KERNEL)).unwrap_err();
        assert_eq!((panic.downcast_ref(), calls.get()), (Some(&"intended panic"), 2));
        assert_eq!(cache.info().used, 0);
    }
}

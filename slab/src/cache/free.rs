//! Frees objects: a free passes the levels of an [allocation](super::alloc) in the opposite order.
//!
//! ```text
//!  free                   the CPU's stack, by the inlined path                    no lock
//!  free_missed            if the inlined path is closed: claimed slot, a          no lock
//!                         profile; an object that is on the stack already: a
//!                         double free
//!  run_hooks_and_free     guarded samples; tags, red zones, canaries, zeroing,    no lock
//!                         reset; the quarantine; then the stack
//!  free_to_depot_or_slab  the stack grows, or gives a magazine to the depot,      a lock: depot
//!                         which gives it to the slabs if it is full               a lock: node
//!  free_directly_to_slab  a cache without magazines: to its slab                  a lock: node
//! ```

use super::alloc::EmptySupplier;
use super::checked::Checked;
use super::core::Core;
use super::debugged::with_bytes;
use super::lifetime::owner::CacheRef;
use super::node::ObjectIndex;
use super::{Cache, Object};
use crate::debug::corruption::{Corruption, CorruptionKind};
use crate::harden::Hardened;
use core::ptr::NonNull;
use std::panic::resume_unwind;
use uslab_magazine::sync::{MODEL, assert_unlocked, catch_panic};
use uslab_magazine::tracepoints::OperationKind;

impl Cache {
    /// Frees an object of this cache.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`KmemCache::free`](crate::KmemCache::free).
    #[inline(always)]
    pub(crate) unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: by contract, the caller may free the object.
        if !unsafe { self.free_inlined(object) } {
            self.free_missed(object);
        }
    }
    /// The inlined fast path of `free`. If the call returns `false`, it did nothing, and the caller must call
    /// [`free_missed`](Self::free_missed).
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_inlined(&self, object: NonNull<u8>) -> bool {
        self.report_free_to_model(object);
        // SAFETY: the cache keeps its layer in `parts`.
        unsafe { self.frees.free_fast(Object(object)) }
    }

    /// Frees an object for a caller without a handle. If all handles have been dropped, this free may destroy the
    /// cache.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free). The object must belong to `cache`, which
    /// may no longer exist after the call.
    #[inline(always)]
    pub(crate) unsafe fn free_without_handle(cache: NonNull<Self>, object: NonNull<u8>) {
        // SAFETY: the object is in use up to the store that puts it on a stack, so the cache and its layer live until
        // that store. The path is copied first, because nothing of the cache may be accessed after the store.
        unsafe {
            cache.as_ref().report_free_to_model(object);
            let frees = cache.as_ref().frees;
            if !frees.free_fast(Object(object)) {
                Self::free_via_claimed_region(cache, object);
            }
        }
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_without_handle`](Self::free_without_handle).
    #[cold]
    #[inline(never)]
    unsafe fn free_via_claimed_region(cache: NonNull<Self>, object: NonNull<u8>) {
        // SAFETY: the object is in use, so its cache lives.
        let frees = unsafe {
            cache.as_ref().core.profile_free(object);
            cache.as_ref().frees
        };
        // SAFETY: the object is in use until it is on a stack, so the cache and its layer live; a drain waits until
        // this CPU's region is no longer claimed.
        if unsafe { frees.free_claimed(Object(object)) } {
            return;
        }
        // SAFETY: the object is in use, so its cache lives.
        if unsafe { cache.as_ref() }.report_if_double_free(object) {
            return;
        }
        // SAFETY: the object is in use, so its cache lives.
        let Some(cache) = unsafe { cache.as_ref() }.keep_alive() else {
            unreachable!("an object in use keeps its cache alive")
        };
        let push = |object| CacheRef::new(cache.clone()).free_to_depot_or_slab(object);
        if cache.has_free_hook { cache.run_hooks_and_free(object, push) } else { push(object) }
    }

    /// Frees an object that the inlined path did not free, because it missed or a free hook disables it.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_missed(&self, object: NonNull<u8>) {
        // A running profile has closed the inlined path.
        let profiled = self.core.profiler.runs();
        if profiled {
            // The profile must see the free before any other thread can get the object.
            self.core.profile_free(object);
        // SAFETY: the cache keeps its layer in `parts`.
        } else if unsafe { self.frees.free_claimed(Object(object)) } || self.report_if_double_free(object) {
            return;
        }
        let push = |object| if profiled { self.push(object) } else { self.free_to_depot_or_slab(object) };
        if self.has_free_hook { self.run_hooks_and_free(object, push) } else { push(object) }
    }

    /// Reports a double free and returns `true` if the object is on top of this CPU's stack. A second push of the
    /// object that this CPU freed last misses the inlined path. Caches with a free hook detect more double frees;
    /// models watch every object.
    fn report_if_double_free(&self, object: NonNull<u8>) -> bool {
        let is_poisoned_free = !MODEL
            && !self.has_free_hook
            && self.config.per_cpu.has_on_top(&EmptySupplier(self), Object(object));
        if is_poisoned_free {
            let index = self.place(Object(object)).ok().map(|place| place.index);
            self.refuse(CorruptionKind::DoubleFree, object, index);
        }
        is_poisoned_free
    }

    /// Reports a free to models, which watch the owner of each object. If a free hook must run
    /// first, [`run_hooks_and_free`](Self::run_hooks_and_free) calls `report_free_to_model` after the hook.
    #[inline(always)]
    fn report_free_to_model(&self, object: NonNull<u8>) {
        if MODEL && !self.has_free_hook {
            self.core.memory.report_free_to_checker(object);
        }
    }

    /// Runs the free hooks, passes the object through the quarantine, and pushes the objects that the quarantine
    /// releases. `missed` handles objects that do not fit on the CPU's stack.
    fn run_hooks_and_free(&self, object: NonNull<u8>, missed: impl Fn(NonNull<u8>)) {
        if self.free_sample(object) {
            return;
        }
        self.on_free(object, |cache| {
            cache.core.memory.report_free_to_checker(object);
            let fast_path = cache.checked.as_ref().map_or(&cache.allocs, |checked| &checked.fast_path);
            cache.config.per_cpu.pass_through_quarantine(object, |object| {
                // SAFETY: the cache keeps its layer in `parts`.
                if !unsafe { fast_path.free(Object(object)) } {
                    missed(object);
                }
            });
        });
    }

    /// Frees the object and returns `true` if it is a guard sample, which is in no slab.
    #[inline(always)]
    pub(super) fn free_sample(&self, object: NonNull<u8>) -> bool {
        self.config.guarded && self.core.free_sample(object, self.name())
    }

    /// Runs the free hooks of an object, and then calls `take_back`. If a reset hook panics, the panic resumes after
    /// `take_back`.
    #[inline(always)]
    pub(super) fn on_free(&self, object: NonNull<u8>, take_back: impl FnOnce(&Self)) {
        if self.config.check_frees && !self.check_and_mark_object_free(object) {
            return;
        }
        if self.config.zero_on_free && !self.is_poisoned() {
            // SAFETY: the object was freed by its user, has no other user yet, and has `object_size` bytes.
            unsafe { object.write_bytes(0, self.geometry().object_size()) };
        }
        match self.config.hooks.as_ref().and_then(|hooks| hooks.reset.as_ref()) {
            None => take_back(self),
            Some(reset) => self.reset(&***reset, object, take_back),
        }
    }
    /// Returns `true` if the cache fills freed objects with poison.
    fn is_poisoned(&self) -> bool {
        if let Some(debugged) = self.checked.as_ref().and_then(|checked| checked.debugged.as_ref()) {
            return debugged.watch.poison;
        }
        false
    }
    #[inline(never)]
    fn reset(&self, reset: &dyn Fn(NonNull<u8>), object: NonNull<u8>, take_back: impl FnOnce(&Self)) {
        assert_unlocked();
        let outcome = catch_panic(|| reset(object));
        take_back(self);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Frees an object to the depot or its slab, because the CPU's stack is full.
    #[inline(never)]
    fn free_to_depot_or_slab(&self, object: NonNull<u8>) {
        self.config.per_cpu.put_or_flush(&EmptySupplier(self), Object(object), || {
            self.free_directly_to_slab(Object(object))
        });
    }

    /// Frees an object that was never handed to a user, without running hooks.
    pub(super) fn take_back(&self, object: NonNull<u8>) {
        self.core.profile_free(object);
        self.core.memory.report_free_to_checker(object);
        self.push(object);
    }
    /// Puts an object on the CPU's stack; if the stack is full, frees the object to the depot or
    /// its slab.
    #[inline(never)]
    pub(super) fn push(&self, object: NonNull<u8>) {
        self.config
            .per_cpu
            .free(&EmptySupplier(self), Object(object), || self.free_directly_to_slab(Object(object)));
    }

    fn free_directly_to_slab(&self, object: Object) {
        let op = self.operation(OperationKind::Free);
        if self.core.memory.pages.nodes() > 1 && self.node_of(object) != self.this_node() {
            self.counts.other_node_frees.add(1);
        }
        self.free_to_slabs(&op, core::iter::once(object));
        self.counts.direct_frees.add(1);
        self.counts.direct_paths.count(&op);
    }

    /// Marks an object of a checked cache as free. If the address is not an object in use, reports an invalid free and
    /// returns `false`. In unchecked caches, an invalid free is detected when the object reaches its slab.
    #[inline(always)]
    fn check_and_mark_object_free(&self, object: NonNull<u8>) -> bool {
        if let Some(checked) = &self.checked
            && self.mark_checked_free(checked, object)
        {
            return true;
        }
        self.report_bad_free(object)
    }
    /// Marks an object of a checked cache as free. Returns `false` if the object is not in use, or belongs to another
    /// cache.
    #[inline(always)]
    #[must_use]
    pub(super) fn mark_checked_free(&self, checked: &Checked, object: NonNull<u8>) -> bool {
        let was_out = checked.tags.clear(object, checked.tag);
        // Canaries are checked before poison overwrites them.
        if was_out && let Some(hardened) = &self.hardened {
            self.check_canaries(hardened, object);
        }
        if was_out && let Some(debugged) = &checked.debugged {
            self.debug_free(checked, debugged, Object(object));
        }
        was_out
    }
    /// Reports writes past the end of a freed object, and past the end of the preceding object.
    fn check_canaries(&self, hardened: &Hardened, object: NonNull<u8>) {
        // SAFETY: the object was freed by its user, and no other thread has it yet.
        if let Err(kind) = unsafe { hardened.on_free(object) } {
            self.refuse(kind, object, self.place(Object(object)).ok().map(|place| place.index));
            // SAFETY: no other thread has the freed object, whose canary was overwritten.
            unsafe { hardened.prepare(object) };
        }
        if hardened.can_check_used_objects()
            && let Ok(ObjectIndex { slab, index: index @ 1.. }) = self.place(Object(object))
            && let Object(front) = self.object(ObjectIndex { slab, index: index - 1 })
            // SAFETY: the object before is in the same slab, whose objects were prepared when the slab
            // was made.
            && !unsafe { hardened.is_intact(front) }
        {
            self.refuse(CorruptionKind::Overflow, front, Some(index - 1));
            // SAFETY: the object before is in the same slab, and its canary was overwritten.
            unsafe { hardened.prepare(front) };
        }
    }
    #[cold]
    #[inline(never)]
    fn report_bad_free(&self, object: NonNull<u8>) -> bool {
        match self.place(Object(object)) {
            // Loom watches the owner of each object instead.
            Ok(_) if cfg!(loom) => return true,
            Ok(ObjectIndex { index, .. }) => self.refuse(CorruptionKind::DoubleFree, object, Some(index)),
            Err(kind) => self.refuse(kind, object, None),
        }
        false
    }

    /// Finds the slab and the index of an object through the frame of its page. Fails with the reason if the address is
    /// not an object of this cache.
    #[inline]
    pub(crate) fn place(&self, Object(object): Object) -> Result<ObjectIndex, CorruptionKind> {
        let memory = &self.core.memory;
        let pfn = memory.pages.pfn_of(object.as_ptr()).ok_or(CorruptionKind::Foreign)?;
        let frame = memory.frames().frame(pfn);
        let owner = frame.owner();
        if owner != self.owner() {
            return Err(match self.core.cache_of(owner) {
                Some(_) => CorruptionKind::WrongCache,
                None => CorruptionKind::Foreign,
            });
        }
        frame.touch();
        let slab = frame.head();
        let offset = object.addr().get() - memory.pages.address(slab).addr().get();
        let index = self.geometry().index(offset).ok_or(CorruptionKind::Interior)?;
        let order = memory.frames().frame(slab).state().order();
        if !self.geometry().has_object(index, order) {
            return Err(CorruptionKind::Interior);
        }
        Ok(ObjectIndex { slab, index })
    }

    /// Returns the number of usable bytes of the object at `memory`, which must be in use. The call detects a free
    /// object only if the cache checks frees.
    pub(crate) fn size_of(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let place = self.place(Object(memory))?;
        if self.checked.as_ref().is_some_and(|checked| !checked.is_allocated(memory)) {
            return Err(CorruptionKind::DoubleFree);
        }
        if self.config.no_access {
            return Ok(0);
        }
        if let Some(hardened) = &self.hardened
            // SAFETY: the object belongs to the cache. By contract, the object is in use, or has no content.
            && let Some(size) = unsafe { hardened.size(memory) }
        {
            return Ok(size);
        }
        if self.config.harden.canaries && self.geometry().stride() > self.geometry().object_size() {
            return Ok(self.geometry().object_size());
        }
        Ok(self.usable_bytes(place))
    }
    /// Returns `true` if the canary of the object at `memory` was overwritten. The object's size was recorded
    /// when it was allocated.
    pub(crate) fn is_canary_overwritten(&self, memory: NonNull<u8>) -> bool {
        // SAFETY: the object belongs to the cache, and is in use.
        let canary = self.hardened.as_ref().map(|hardened| unsafe { hardened.on_free(memory) });
        canary.is_some_and(|canary| canary.is_err())
    }
    /// Records how many bytes of the object at `memory` the caller uses. Returns `false` if the cache does not use the
    /// size.
    ///
    /// # Safety
    /// The caller must own the object, which must belong to this cache and have at least `size` bytes.
    pub(crate) unsafe fn resize(&self, memory: NonNull<u8>, size: usize) -> bool {
        let Some(hardened) = &self.hardened else { return false };
        // SAFETY: by contract, the caller owns the object, which has at least `size` bytes. The old canary is checked
        // first, because the new canary may overwrite it.
        unsafe {
            if let Err(kind) = hardened.on_free(memory) {
                self.refuse(kind, memory, self.place(Object(memory)).ok().map(|place| place.index));
            }
            hardened.resize(memory, size)
        }
    }

    /// Frees an object of a cache with red zones, whose objects [`begins_object`](Self::begins_object) does not
    /// recognise. Refuses every other address.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_without_handle`](Self::free_without_handle).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn free_red_zoned_object(&self, object: NonNull<u8>) {
        match self.place(Object(object)) {
            // SAFETY: by contract, the caller may free the object.
            Ok(_) if self.multiples == 0 => unsafe { Self::free_without_handle(NonNull::from(self), object) },
            _ => self.refuse(CorruptionKind::Interior, object, None),
        }
    }
    pub(super) fn refuse(&self, kind: CorruptionKind, object: NonNull<u8>, index: Option<usize>) {
        self.counts.corruptions.add(1);
        let owner = self.core.cache_at(object).filter(|owner| owner.owner() != self.owner());
        self.core.tell(kind, object, self.name(), owner.map(Self::name), index);
    }
    pub(super) fn object_index_at(&self, address: NonNull<u8>) -> Option<ObjectIndex> {
        let memory = &self.core.memory;
        let slab = memory.frames().frame(memory.pages.pfn_of(address.as_ptr())?).head();
        let geometry = self.geometry();
        let offset =
            (memory.pages.offset_from(slab, address.as_ptr()) as usize).checked_sub(geometry.lead())?;
        let index = offset / geometry.stride();
        let order = memory.frames().frame(slab).state().order();
        geometry.has_object(index, order).then_some(ObjectIndex { slab, index })
    }
}

impl Core {
    /// Reports an invalid free, with everything known about the object at the address.
    #[cold]
    pub(crate) fn tell(
        &self,
        kind: CorruptionKind,
        address: NonNull<u8>,
        cache: &str,
        owner: Option<&str>,
        index: Option<usize>,
    ) {
        let seen = self.cache_at(address).and_then(|of| of.describe_object_at(address));
        let report = seen.as_ref().map(with_bytes);
        self.report(&Corruption {
            kind,
            address: address.addr().get(),
            cache,
            owner,
            index,
            report: report.as_ref(),
        });
    }
    /// Frees an object of any cache; returns `false` if no object begins at `memory`.
    ///
    /// # Safety
    /// `memory` must have been allocated from this subsystem, and must no longer be used.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_object(&self, memory: NonNull<u8>) -> bool {
        let Some(pfn) = self.memory.pages.pfn_of(memory.as_ptr()) else { return false };
        let frame = self.memory.frames().frame(pfn);
        let Some(cache) = self.cache_of(frame.owner()) else { return false };
        let is_start = cache.begins_object(self.memory.pages.offset_from(frame.head(), memory.as_ptr()));
        if is_start {
            // SAFETY: by contract, the caller may free `memory`, which is an object of this cache.
            unsafe { Cache::free_without_handle(NonNull::from(cache), memory) };
        }
        is_start
    }
}

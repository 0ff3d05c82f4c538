//! Blocks of pages for requests above the size classes, and frees of any memory by its address.
//!
//! [`kmalloc`](crate::kmalloc) and [`malloc`](crate::malloc) share this code; they differ only in their size tables. A
//! large block is marked in its frame, and the subsystem counts it. Memory above 4 MiB exceeds the largest block, so it
//! gets a separate mapping (see [`huge`](crate::huge)).

use crate::cache::Object;
use crate::cache::core::Core;
use crate::cache::core::UNKNOWN_CACHE;
use crate::debug::corruption::CorruptionKind;
use crate::error::AllocError;
use crate::guard::faults::LockFreeStderr;
use crate::memory::huge::{ADDRESSES, exceeds_largest_block};
pub use crate::memory::large_blocks::LargeInfo;
use crate::memory::large_blocks::large;
use core::alloc::Layout;
use core::fmt::Write;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use uslab_buddy::{Gfp, Order, PAGE_SIZE, Pfn};
use uslab_magazine::tracepoints::OperationKind;

/// Result of an allocation of 0 bytes: a pointer aligned to 16 bytes that must not be dereferenced.
#[doc(alias = "ZERO_SIZE_PTR")]
pub const ZERO_SIZE: NonNull<u8> = NonNull::without_provenance(NonZeroUsize::new(16).unwrap());

/// Returns `true` if a block of `usable` bytes may stay in place when its size becomes `size`. The block must hold
/// `size` bytes, and be less than twice as large (mimalloc's rule).
pub(crate) const fn may_stay_in_place(usable: usize, size: usize) -> bool {
    size <= usable && size >= usable / 2 && size > 0
}

impl Core {
    /// Allocates a block of pages with at least `size` bytes. The memory is zeroed with [`Gfp::ZERO`], and unspecified
    /// otherwise.
    #[cold]
    pub(crate) fn alloc_large(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let order = Order::for_bytes(size).ok_or(AllocError::TooLarge)?;
        let gfp = self.add_zeroing_flag(gfp);
        let (memory, op) = (&self.memory, &self.operation(OperationKind::Alloc));
        // `ZERO` is not passed on, because only the requested bytes are zeroed. The block may be almost twice as large.
        let flags = (gfp - Gfp::MOVABLE - Gfp::ZERO) | Gfp::COMP;
        let alloc = || memory.pages.alloc_in(op, order, flags, None);
        let first = match alloc() {
            // The free objects that caches keep may be enough.
            Err(error) => {
                let result = if self.reclaim(op, None) > 0 { alloc() } else { Err(error) };
                let try_alloc = || {
                    self.shrink(op);
                    alloc()
                };
                // Shrinkers may free further objects.
                self.shrink_until_success(gfp, None, try_alloc, result)?
            }
            Ok(first) => first,
        };
        let frame = memory.frames().frame(first);
        let is_zero = frame.state().is_zero();
        // SAFETY: this thread has just allocated the block, and `large` is not a cache.
        unsafe { frame.set_owner(large()) };
        self.large.allocated(op, order);
        self.note_subsystem_growth();
        let memory = memory.pages.address(first);
        if gfp.contains(Gfp::ZERO) && !is_zero {
            // If old data must not be visible, zero the whole block, because the user may grow the allocation in
            // place.
            let bytes = if self.add_zeroing_flag(Gfp::empty()).is_empty() { size } else { order.bytes() };
            // SAFETY: only this thread has the block, which has at least `bytes` bytes.
            unsafe { memory.write_bytes(0, bytes) };
        }
        self.profile_large_alloc(memory, order.bytes(), "large");
        Ok(memory)
    }

    /// Allocates memory for a [huge](exceeds_largest_block) layout. The memory is zeroed with [`Gfp::ZERO`], and
    /// unspecified otherwise.
    #[cold]
    pub(crate) fn alloc_huge(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        if layout.size() >= ADDRESSES || layout.align() >= ADDRESSES {
            return Err(AllocError::TooLarge);
        }
        let pages = layout.size().next_multiple_of(PAGE_SIZE);
        match self.huge.reuse(layout, self.add_zeroing_flag(gfp).contains(Gfp::ZERO)) {
            Some(Ok(memory)) => {
                self.profile_large_alloc(memory, pages, "huge");
                return Ok(memory);
            }
            Some(Err(bytes)) => _ = self.uncharge_mappings(bytes),
            None => {}
        }
        let memory = self
            .retry(gfp, self.huge.mapping_bytes_for(layout), || self.map_and_charge_memory(layout, || ()));
        let memory = memory.or_else(|| {
            // If addresses are short, the page allocator can give up unused ones.
            let requested = layout.size().saturating_add(layout.align());
            self.map_and_charge_memory(layout, || self.give_up_addresses(|_| requested))
        });
        let memory = memory.ok_or(AllocError::Refused { bytes: layout.size() })?;
        self.note_subsystem_growth();
        self.profile_large_alloc(memory, pages, "huge");
        Ok(memory)
    }

    /// Allocates memory up to the largest block's size: a mapping with a guard page if possible, otherwise a block.
    #[cold]
    pub(crate) fn alloc_guarded(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let guards = self.mappings.can_map_guard_pages() && self.huge.may_add_guard();
        if guards && let Ok(memory) = self.alloc_huge(layout, gfp) {
            return Ok(memory);
        }
        let block = self.alloc_large(layout.size().max(layout.align()), gfp)?;
        if guards {
            self.mappings.refuse();
        }
        Ok(block)
    }

    /// Maps and charges new memory; on failure, does neither. `make_room` cannot be undone, so it runs only after the
    /// limit has admitted the charge.
    fn map_and_charge_memory(&self, layout: Layout, make_room: impl FnOnce()) -> Option<NonNull<u8>> {
        let bytes = self.huge.mapping_bytes_for(layout);
        self.memory.pages.charge(bytes / PAGE_SIZE).then(make_room)?;
        let memory = self.huge.map(layout, &self.mappings);
        self.uncharge_mappings(if memory.is_some() { 0 } else { bytes });
        memory
    }

    /// Retries `attempt` after freeing unused memory, and again after running the shrinkers. Only a request that may
    /// reclaim drains other CPUs' objects and runs shrinkers. If the limit can never admit `bytes`, the request fails
    /// immediately.
    fn retry<T>(&self, gfp: Gfp, bytes: usize, attempt: impl Fn() -> Option<T>) -> Option<T> {
        self.memory.pages.limit().is_none_or(|limit| bytes <= limit).then_some(())?;
        let first = attempt().or_else(|| {
            self.huge.enable_address_limit_checks();
            if self.unmap_kept_mappings() > 0 { attempt() } else { None }
        });
        let try_alloc = || {
            self.shrink(&self.operation(OperationKind::Reclaim));
            self.memory.pages.decommit();
            attempt().ok_or(())
        };
        let first = first.ok_or(()).or_else(|()| if gfp.may_reclaim() { try_alloc() } else { Err(()) });
        self.shrink_until_success(gfp, None, try_alloc, first).ok()
    }

    /// Adds `ZERO` to the flags if new memory must not show old data.
    fn add_zeroing_flag(&self, gfp: Gfp) -> Gfp {
        if self.harden.zero_on_free || self.harden.zero_on_alloc { gfp | Gfp::ZERO } else { gfp }
    }

    /// Records that the user of the object at `memory` uses `size` bytes, which is at most the object's size. Returns
    /// `false` if the object's cache does not record sizes.
    ///
    /// # Safety
    /// The caller must own the memory.
    pub(crate) unsafe fn record_object_size(&self, memory: NonNull<u8>, size: usize) -> bool {
        let cache = self.cache_at(memory);
        // SAFETY: `place` has confirmed that the memory is an object of this cache, and the caller
        // owns it.
        cache.is_some_and(|cache| unsafe {
            cache.place(Object::new(memory)).is_ok() && cache.resize(memory, size)
        })
    }

    /// Resizes the huge allocation at `memory` to layout `to`. The system may move the allocation if page alignment is
    /// enough. On failure, changes nothing and returns `None`.
    #[cold]
    pub(crate) fn resize_huge(
        &self,
        memory: NonNull<u8>,
        new_layout: Layout,
        gfp: Gfp,
    ) -> Option<NonNull<u8>> {
        // A mapping with a guard page cannot be resized; the caller copies it.
        if self.harden.guard_pages {
            return None;
        }
        let (old, new) =
            (self.huge.bytes(memory).ok()?, new_layout.size().max(1).checked_next_multiple_of(PAGE_SIZE)?);
        let added_bytes = new.saturating_sub(old);
        let charge = || self.memory.pages.charge(added_bytes / PAGE_SIZE).then_some(());
        self.retry(gfp, new, charge)?;
        // The free is noted before the resize, because another allocation may use the address
        // afterwards.
        self.profile_free(memory);
        let resized = self.huge.resize(memory, new_layout.size(), new_layout.align() <= PAGE_SIZE);
        self.uncharge_mappings(if resized.is_some() { old.saturating_sub(new) } else { added_bytes });
        let (memory_at, bytes) = resized.map_or((memory, old), |resized| (resized, new));
        self.profile_large_alloc(memory_at, bytes, "huge");
        resized
    }

    #[cold]
    pub(crate) fn free_huge(&self, memory: NonNull<u8>) {
        if self.free_sample(memory, UNKNOWN_CACHE) {
            return;
        }
        if self.profiler.holds(memory) {
            return self.profiler.free(memory).unwrap_or_else(|kind| self.refuse(kind, memory));
        }
        self.profile_free(memory);
        match self.huge.free(memory) {
            Ok(bytes) => {
                self.uncharge_mappings(bytes);
                self.note_freed_pages();
            }
            Err(kind) => self.refuse(kind, memory),
        }
    }

    /// Frees a guard sample that the cache named `cache` allocated. Returns `false` if the memory is not a guard
    /// sample.
    pub(crate) fn free_sample(&self, memory: NonNull<u8>, cache: &str) -> bool {
        let Some(pool) = self.guard.pool_of(memory) else { return false };
        if let Err((kind, mistake)) = pool.free(memory.addr().get()) {
            let _ = write!(LockFreeStderr, "uslab: guard: {mistake}");
            self.report_refused_free(cache, kind, memory);
        }
        true
    }

    #[cold]
    pub(crate) fn size_of_huge(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        if let Some(pool) = self.guard.pool_of(memory) {
            return pool.size_of(memory.addr().get());
        }
        if self.profiler.holds(memory) {
            return self.profiler.size_of(memory);
        }
        self.huge.bytes(memory)
    }

    /// Resizes memory that is not an object, if its block has room or the system can resize its mapping.
    #[cold]
    pub(crate) fn resized(
        &self,
        memory_at: NonNull<u8>,
        old: Layout,
        to: Layout,
        gfp: Gfp,
    ) -> Option<NonNull<u8>> {
        match (exceeds_largest_block(old), exceeds_largest_block(to)) {
            (true, true) => self.resize_huge(memory_at, to, gfp),
            _ => self
                .size_of(memory_at)
                .is_ok_and(|usable| may_stay_in_place(usable, to.size()))
                .then_some(memory_at),
        }
    }

    /// Frees memory that was allocated from the caches or pages of this subsystem. Refusing foreign and interior
    /// addresses has no extra cost, because a free reads the frame and the cache anyway.
    ///
    /// # Safety
    /// `memory` must have been allocated from this subsystem, and must no longer be used.
    #[inline]
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by contract, the memory came from this subsystem and is no longer used.
        if !unsafe { self.free_object(memory) } {
            // SAFETY: by contract, the memory came from this subsystem and is no longer used.
            unsafe { self.free_other(memory) };
        }
    }
    /// Frees memory at an address where no object begins.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[cold]
    #[inline(never)]
    unsafe fn free_other(&self, memory: NonNull<u8>) {
        match self.memory.pages.pfn_of(memory.as_ptr()) {
            Some(pfn) => match self.cache_of(self.memory.frames().frame(pfn).owner()) {
                // SAFETY: by contract, the memory came from this subsystem and is no longer used.
                Some(cache) => unsafe { cache.free_red_zoned_object(memory) },
                // SAFETY: by contract, the memory came from this subsystem and is no longer used.
                None => unsafe { self.free_large(memory, pfn) },
            },
            None if memory != ZERO_SIZE => self.free_huge(memory),
            None => {}
        }
    }

    /// Returns the number of usable bytes at `address`, which is 0 for [`ZERO_SIZE`]. Fails if the subsystem did not
    /// hand out the address.
    pub(crate) fn size_of(&self, address: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let memory = &self.memory;
        let Some(pfn) = memory.pages.pfn_of(address.as_ptr()) else {
            return if address == ZERO_SIZE { Ok(0) } else { self.size_of_huge(address) };
        };
        let frame = memory.frames().frame(pfn);
        match self.cache_of(frame.owner()) {
            Some(cache) => cache.size_of(address),
            None => self.large_block_order_at(address, pfn).map(Order::bytes),
        }
    }

    /// Returns the number of usable bytes at `memory`. If the address is foreign, reports it and returns 0.
    pub(crate) fn usable_size(&self, memory: NonNull<u8>) -> usize {
        self.size_of(memory).unwrap_or_else(|_| {
            self.refuse(CorruptionKind::NotAnObject, memory);
            0
        })
    }

    /// Returns the number of usable bytes at `memory`, for a caller that will move the memory and free it.
    pub(crate) fn usable_size_before_move(&self, memory: NonNull<u8>) -> Result<usize, AllocError> {
        self.size_of(memory).map_err(|kind| {
            self.refuse(kind, memory);
            AllocError::NotAnObject
        })
    }

    /// Resizes a watched object to `size` bytes. Returns `false` if the object is not watched. `Cache::resize_watched`
    /// does the work.
    pub(crate) fn resize_watched(&self, _memory: NonNull<u8>, _size: usize, _zero: bool) -> bool {
        if self.has_red_zone_caches() {
            return self.cache_at(_memory).is_some_and(|cache| cache.resize_watched(_memory, _size, _zero));
        }
        false
    }

    /// Returns the order of the large block at `address`, which begins at page `pfn`. No cache owns the page.
    fn large_block_order_at(&self, address: NonNull<u8>, pfn: Pfn) -> Result<Order, CorruptionKind> {
        let memory = &self.memory;
        let frame = memory.frames().frame(pfn);
        if frame.owner() != large() {
            // The frames of a large block's later pages refer to its first page.
            let head = memory.frames().get(frame.head());
            let interior = head.is_some_and(|head| head.owner() == large());
            return Err(if interior { CorruptionKind::Interior } else { CorruptionKind::Foreign });
        }
        if address != memory.pages.address(pfn) {
            return Err(CorruptionKind::Interior);
        }
        Ok(frame.state().order())
    }

    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free). `pfn` must be the page of `memory`, and no
    /// cache may own that page.
    #[cold]
    unsafe fn free_large(&self, memory: NonNull<u8>, pfn: Pfn) {
        let order = match self.large_block_order_at(memory, pfn) {
            Ok(order) => order,
            Err(kind) => return self.refuse(kind, memory),
        };
        self.profile_free(memory);
        self.large.freed(order);
        let op = self.operation(OperationKind::Free);
        // SAFETY: the frame's owner marks a large block, whose order is in the frame. The free clears the
        // owner.
        unsafe { self.memory.pages.free_in(&op, pfn, order) };
        self.large.count_free(&op);
        self.note_freed_pages();
    }
}

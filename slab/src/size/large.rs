//! Blocks of pages for what no size class holds, and the way back of any memory: address, frame, owner.
//!
//! What no block holds, above 4 MiB, is a mapping of its own: see [`huge`](crate::huge). Shared by [`kmalloc`](crate::kmalloc) and [`malloc`](crate::malloc), whose size tables differ and nothing else. A large
//! block is marked as such in its frame and counted.

use crate::cache::Object;
use crate::cache::core::Core;
use crate::cache::core::NO_CACHE;
use crate::debug::corruption::CorruptionKind;
use crate::debug::guard::faults::Stderr;
use crate::error::AllocError;
use crate::memory::huge::{ADDRESSES, is_huge};
pub use crate::memory::large_blocks::LargeInfo;
use crate::memory::large_blocks::large;
use core::alloc::Layout;
use core::fmt::Write;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use uslab_buddy::{Gfp, Order, PAGE_SIZE, Pfn};
use uslab_magazine::tracepoints::What;

/// What an allocation of 0 bytes gets: aligned to 16, no byte of it may be touched.
#[doc(alias = "ZERO_SIZE_PTR")]
pub const ZERO_SIZE: NonNull<u8> = NonNull::without_provenance(NonZeroUsize::new(16).unwrap());

/// Whether memory of `usable` bytes is kept when it is to have `size`: it holds them, and is not twice as large (mimalloc's
/// rule).
pub(crate) const fn fits_in_place(usable: usize, size: usize) -> bool {
    size <= usable && size >= usable / 2 && size > 0
}

impl Core {
    /// A block of pages of at least `size` bytes, its bytes unspecified, or zero with [`Gfp::ZERO`].
    #[cold]
    pub(crate) fn alloc_large(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let order = Order::for_bytes(size).ok_or(AllocError::TooLarge)?;
        let gfp = self.zeroed(gfp);
        let (memory, op) = (&self.memory, &self.operation(What::Alloc));
        // Zeroed below: what was asked for and not all of the block, which may be almost twice as large.
        let flags = (gfp - Gfp::MOVABLE - Gfp::ZERO) | Gfp::COMP;
        let alloc = || memory.pages.alloc_in(op, order, flags, None);
        let first = match alloc() {
            // What caches keep without using it may be what is missing.
            Err(error) => {
                let result = if self.reclaim(op, None) > 0 { alloc() } else { Err(error) };
                let again = || {
                    self.shrink(op);
                    alloc()
                };
                // What users have and can do without.
                self.shrink_until(gfp, None, again, result)?
            }
            Ok(first) => first,
        };
        let frame = memory.frames().frame(first);
        let is_zero = frame.state().is_zero();
        // SAFETY: the block is ours, and `large` is no cache.
        unsafe { frame.set_owner(large()) };
        self.large.allocated(op, order);
        self.grown();
        let memory = memory.pages.address(first);
        if gfp.contains(Gfp::ZERO) && !is_zero {
            // All of it where what others left is not to be seen: its user may grow in place.
            let bytes = if self.zeroed(Gfp::empty()).is_empty() { size } else { order.bytes() };
            // SAFETY: the block is ours until it is returned, and at least so large.
            unsafe { memory.write_bytes(0, bytes) };
        }
        self.note_large(memory, order.bytes(), "large");
        Ok(memory)
    }

    /// Memory for a layout that [is huge](is_huge), its bytes unspecified, or zero with [`Gfp::ZERO`].
    #[cold]
    pub(crate) fn alloc_huge(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        if layout.size() >= ADDRESSES || layout.align() >= ADDRESSES {
            return Err(AllocError::TooLarge);
        }
        let pages = layout.size().next_multiple_of(PAGE_SIZE);
        match self.huge.reuse(layout, self.zeroed(gfp).contains(Gfp::ZERO)) {
            Some(Ok(memory)) => {
                self.note_large(memory, pages, "huge");
                return Ok(memory);
            }
            Some(Err(bytes)) => _ = self.uncharge_huge(bytes),
            None => {}
        }
        let memory = self.press(gfp, self.huge.bytes_for(layout), || self.map_charged(layout, || ()));
        let memory = memory.or_else(|| {
            // Or it is addresses that are missing, of which pages have more than they use.
            let wanted = layout.size().saturating_add(layout.align());
            self.map_charged(layout, || self.give_up_addresses(|_| wanted))
        });
        let memory = memory.ok_or(AllocError::Refused { bytes: layout.size() })?;
        self.grown();
        self.note_large(memory, pages, "huge");
        Ok(memory)
    }

    /// Memory for a layout of at most the largest block: a mapping with a guard while there are some for guards, or a block.
    #[cold]
    pub(crate) fn alloc_guarded(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let guards = self.mappings.are_there() && self.huge.may_guard();
        if guards && let Ok(memory) = self.alloc_huge(layout, gfp) {
            return Ok(memory);
        }
        let block = self.alloc_large(layout.size().max(layout.align()), gfp)?;
        if guards {
            self.mappings.refuse();
        }
        Ok(block)
    }

    /// A new mapping that is charged, or nothing is. Once the limit has room for it, room is made: what that costs does not come back.
    fn map_charged(&self, layout: Layout, make_room: impl FnOnce()) -> Option<NonNull<u8>> {
        let bytes = self.huge.bytes_for(layout);
        self.memory.pages.charge(bytes / PAGE_SIZE).then(make_room)?;
        let memory = self.huge.map(layout, &self.mappings);
        self.uncharge_huge(if memory.is_some() { 0 } else { bytes });
        memory
    }

    /// Does `attempt`, again and again: what is kept without being used may be what is missing, or what users can do without. Not where
    /// the limit leaves no hope for so many bytes. What other CPUs keep, and what users have, is for who may reclaim.
    fn press<T>(&self, gfp: Gfp, bytes: usize, attempt: impl Fn() -> Option<T>) -> Option<T> {
        self.memory.pages.limit().is_none_or(|most| bytes <= most).then_some(())?;
        let first = attempt().or_else(|| {
            self.huge.heed_limit();
            if self.release_huge() > 0 { attempt() } else { None }
        });
        let again = || {
            self.shrink(&self.operation(What::Reclaim));
            self.memory.pages.decommit();
            attempt().ok_or(())
        };
        let first = first.ok_or(()).or_else(|()| if gfp.may_reclaim() { again() } else { Err(()) });
        self.shrink_until(gfp, None, again, first).ok()
    }

    /// Flags of memory that nobody may find used.
    fn zeroed(&self, gfp: Gfp) -> Gfp {
        if self.harden.zero_on_free || self.harden.zero_on_alloc { gfp | Gfp::ZERO } else { gfp }
    }

    /// The object at `memory` is to have `size` bytes, no more than it has. `false` if nobody takes notice of sizes.
    ///
    /// # Safety
    /// What lies at `memory` is the caller's.
    pub(crate) unsafe fn resize_object(&self, memory: NonNull<u8>, size: usize) -> bool {
        let cache = self.cache_at(memory);
        // SAFETY: it is an object of this cache, whose size is known.
        cache.is_some_and(|cache| unsafe {
            cache.place(Object::new(memory)).is_ok() && cache.resize(memory, size)
        })
    }

    /// Makes the piece at `memory` as long as `to`; it may move if an alignment to pages is enough. `None`, with nothing
    /// changed, if that cannot be done.
    #[cold]
    pub(crate) fn resize_huge(&self, memory: NonNull<u8>, to: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        // Where it cannot be resized, its user moves it.
        if self.harden.guard_pages {
            return None;
        }
        let (old, new) =
            (self.huge.bytes(memory).ok()?, to.size().max(1).checked_next_multiple_of(PAGE_SIZE)?);
        let more = new.saturating_sub(old);
        let charge = || self.memory.pages.charge(more / PAGE_SIZE).then_some(());
        self.press(gfp, new, charge)?;
        // Before: behind it the address may be another one's.
        self.note_free(memory);
        let resized = self.huge.resize(memory, to.size(), to.align() <= PAGE_SIZE);
        self.uncharge_huge(if resized.is_some() { old.saturating_sub(new) } else { more });
        let (at, bytes) = resized.map_or((memory, old), |resized| (resized, new));
        self.note_large(at, bytes, "huge");
        resized
    }

    /// Takes back what lies in no page of this subsystem.
    #[cold]
    pub(crate) fn free_huge(&self, memory: NonNull<u8>) {
        if self.free_sample(memory, NO_CACHE) {
            return;
        }
        if self.profiler.holds(memory) {
            return self.profiler.free(memory).unwrap_or_else(|kind| self.refuse(kind, memory));
        }
        self.note_free(memory);
        match self.huge.free(memory) {
            Ok(bytes) => {
                self.uncharge_huge(bytes);
                self.shed();
            }
            Err(kind) => self.refuse(kind, memory),
        }
    }

    /// Takes memory back if it is a sample of the guard, of the cache of that name.
    pub(crate) fn free_sample(&self, memory: NonNull<u8>, cache: &str) -> bool {
        let Some(pool) = self.guard.pool_of(memory) else { return false };
        if let Err((kind, mistake)) = pool.free(memory.addr().get()) {
            let _ = write!(Stderr, "uslab: guard: {mistake}");
            self.refuse_of(cache, kind, memory);
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

    /// Makes memory that is no object's one for `to`, if it is a block that fits_in_place or a piece that the system resizes.
    #[cold]
    pub(crate) fn resized(&self, at: NonNull<u8>, old: Layout, to: Layout, gfp: Gfp) -> Option<NonNull<u8>> {
        match (is_huge(old), is_huge(to)) {
            (true, true) => self.resize_huge(at, to, gfp),
            _ => self.size_of(at).is_ok_and(|usable| fits_in_place(usable, to.size())).then_some(at),
        }
    }

    /// Takes back anything that the caches and pages of this subsystem handed out. What is foreign, and what lies inside of an
    /// object, is refused: its frame and its cache are looked at anyway, and tell.
    ///
    /// # Safety
    /// `memory` came from this subsystem and nobody uses it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: passed on.
        if !unsafe { self.free_object(memory) } {
            // SAFETY: passed on.
            unsafe { self.free_other(memory) };
        }
    }
    /// Where no object begins.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[cold]
    #[inline(never)]
    unsafe fn free_other(&self, memory: NonNull<u8>) {
        match self.memory.pages.pfn_of(memory.as_ptr()) {
            Some(pfn) => match self.cache_of(self.memory.frames().frame(pfn).owner()) {
                // SAFETY: passed on.
                Some(cache) => unsafe { cache.free_at_frame(memory) },
                // SAFETY: passed on.
                None => unsafe { self.free_large(memory, pfn) },
            },
            None if memory != ZERO_SIZE => self.free_huge(memory),
            None => {}
        }
    }

    /// Bytes that may be used at `address`; or why it is none of ours. 0 for [`ZERO_SIZE`].
    pub(crate) fn size_of(&self, address: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let memory = &self.memory;
        let Some(pfn) = memory.pages.pfn_of(address.as_ptr()) else {
            return if address == ZERO_SIZE { Ok(0) } else { self.size_of_huge(address) };
        };
        let frame = memory.frames().frame(pfn);
        match self.cache_of(frame.owner()) {
            Some(cache) => cache.size_of(address),
            None => self.large_at(address, pfn).map(Order::bytes),
        }
    }

    /// The same, where what is none of ours is reported: 0 then.
    pub(crate) fn usable_size(&self, memory: NonNull<u8>) -> usize {
        self.size_of(memory).unwrap_or_else(|_| {
            self.refuse(CorruptionKind::NotAnObject, memory);
            0
        })
    }

    /// The same for a caller who is to give the memory up.
    pub(crate) fn size_to_move(&self, memory: NonNull<u8>) -> Result<usize, AllocError> {
        self.size_of(memory).map_err(|kind| {
            self.refuse(kind, memory);
            AllocError::NotAnObject
        })
    }

    /// Whether the memory is an object that is watched, and has `size` bytes now; see
    /// `Cache::resize_watched`.
    pub(crate) fn resize_watched(&self, _memory: NonNull<u8>, _size: usize, _zero: bool) -> bool {
        if self.has_zones() {
            return self.cache_at(_memory).is_some_and(|cache| cache.resize_watched(_memory, _size, _zero));
        }
        false
    }

    /// The order of the large block at `address`, in page `pfn` that no cache owns.
    fn large_at(&self, address: NonNull<u8>, pfn: Pfn) -> Result<Order, CorruptionKind> {
        let memory = &self.memory;
        let frame = memory.frames().frame(pfn);
        if frame.owner() != large() {
            // A later page of a large block knows its first one.
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
    /// As [`free`](Self::free); `pfn` is the page of `memory`, and no cache owns it.
    #[cold]
    unsafe fn free_large(&self, memory: NonNull<u8>, pfn: Pfn) {
        let order = match self.large_at(memory, pfn) {
            Ok(order) => order,
            Err(kind) => return self.refuse(kind, memory),
        };
        self.note_free(memory);
        self.large.freed(order);
        let op = self.operation(What::Free);
        // SAFETY: the owner says that it is a large block, so it was allocated with the order that its frame has; with
        // that the owner is cleared.
        unsafe { self.memory.pages.free_in(&op, pfn, order) };
        self.large.returned(&op);
        self.shed();
    }
}

//! Blocks of pages for what no size class holds, and the way back of any memory: address, frame, owner.
//!
//! Shared by [`kmalloc`](crate::kmalloc) and [`malloc`](crate::malloc), whose size tables differ and nothing else. A large
//! block is marked as such in its frame and counted.

use crate::cache::Cache;
use crate::debug::corruption::{Corruption, CorruptionKind};
use crate::error::AllocError;
use crate::size::huge::is_huge;
use crate::subsystem::Core;
use core::alloc::Layout;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use serde::Serialize;
use uslab_buddy::{Gfp, Order, Pfn};
use uslab_magazine::sync::Counter;
use uslab_magazine::{Operation, PathCounts, Paths};

/// What an allocation of 0 bytes gets: aligned to 16, no byte of it may be touched.
#[doc(alias = "ZERO_SIZE_PTR")]
pub const ZERO_SIZE: NonNull<u8> = NonNull::without_provenance(NonZeroUsize::new(16).unwrap());

/// Whether memory of `usable` bytes is kept when it is to have `size`: it holds them, and is not twice as large (mimalloc's
/// rule).
pub(crate) const fn stays(usable: usize, size: usize) -> bool {
    size <= usable && size >= usable / 2 && size > 0
}

/// The owner of large blocks: an address that is no cache.
static LARGE: u8 = 0;

pub(crate) fn large() -> *mut u8 {
    (&raw const LARGE).cast_mut()
}

/// Numbers of the blocks above the size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LargeInfo {
    /// Blocks handed out.
    pub allocs: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Pages of the blocks in use.
    pub pages: u64,
    /// Handed out and taken back, by the dearest thing that each did. What the CPU's own pages served is of class `cpu`.
    pub paths: Paths,
}

/// Counts of large blocks.
#[derive(Debug, Default)]
pub(crate) struct Large {
    allocs: Counter,
    frees: Counter,
    pages: Counter,
    paths: PathCounts,
}

impl Large {
    pub(crate) fn info(&self) -> LargeInfo {
        let dear = self.paths.now();
        let (allocs, frees) = (self.allocs.get(), self.frees.get());
        LargeInfo { allocs, frees, pages: self.pages.get(), paths: dear.of_operations(allocs + frees) }
    }
}

impl Core {
    #[cold]
    pub(crate) fn alloc_large(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let order = Order::for_bytes(size).ok_or(AllocError::TooLarge)?;
        let (ground, op) = (&self.ground, &Operation::new());
        // Zeroed below: what was asked for and not all of the block, which may be almost twice as large.
        let flags = (gfp - Gfp::MOVABLE - Gfp::ZERO) | Gfp::COMP;
        let alloc = || ground.pages.alloc_in(op, order, flags, None);
        let first = match alloc() {
            // What caches keep without using it may be what is missing.
            Err(error) => {
                let result = if self.press(op, None) > 0 { alloc() } else { Err(error) };
                let again = || {
                    self.shrink(op);
                    alloc()
                };
                // What users have and can do without.
                self.shrink_until(gfp, None, again, result)?
            }
            Ok(first) => first,
        };
        // SAFETY: the block is ours, and `large` is no cache.
        unsafe { ground.frames().frame(first).set_owner(large()) };
        let large = &self.large;
        large.allocs.add(1);
        large.paths.count(op);
        large.pages.add(u64::from(order.pages()));
        self.grown();
        let memory = ground.pages.address(first);
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the block is ours until it is returned, and at least so large.
            unsafe { memory.write_bytes(0, size) };
        }
        Ok(memory)
    }

    /// Makes memory that is no object's one for `new`, if it is a block that stays or a piece that the system resizes.
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "for malloc"))]
    #[cold]
    pub(crate) fn resize_large(&self, memory: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        match (is_huge(old), is_huge(new)) {
            (true, true) => self.resize_huge(memory, new.size(), new.align()),
            _ => self.size_of(memory).is_ok_and(|usable| stays(usable, new.size())).then_some(memory),
        }
    }

    /// Takes back anything that the caches and pages of this subsystem handed out. What is foreign, and what lies inside of an
    /// object, is refused: its frame and its cache are looked at anyway, and tell.
    ///
    /// # Safety
    /// `memory` came from this subsystem and nobody uses it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        let ground = &self.ground;
        if let Some(pfn) = ground.pages.pfn_of(memory.as_ptr()) {
            let frame = ground.frames().frame(pfn);
            if let Some(cache) = self.cache_of(frame.owner()) {
                if !cache.begins_object(ground.pages.offset_from(frame.head(), memory.as_ptr())) {
                    return cache.refuse_interior(memory);
                }
                // SAFETY: passed on; the cache is the one that the object came from.
                return unsafe { Cache::free_without_handle(NonNull::from(cache), memory) };
            }
            // SAFETY: passed on.
            return unsafe { self.free_large(memory, pfn) };
        }
        if memory != ZERO_SIZE {
            self.free_huge(memory);
        }
    }

    /// Bytes that may be used at `memory`; or why it is none of ours. 0 for [`ZERO_SIZE`].
    pub(crate) fn size_of(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let ground = &self.ground;
        let Some(pfn) = ground.pages.pfn_of(memory.as_ptr()) else {
            return if memory == ZERO_SIZE { Ok(0) } else { self.size_of_huge(memory) };
        };
        let frame = ground.frames().frame(pfn);
        match self.cache_of(frame.owner()) {
            Some(cache) => cache.size_of(memory),
            None => self.large_at(memory, pfn).map(Order::bytes),
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

    /// The order of the large block at `memory`, in page `pfn` that no cache owns.
    fn large_at(&self, memory: NonNull<u8>, pfn: Pfn) -> Result<Order, CorruptionKind> {
        let ground = &self.ground;
        let frame = ground.frames().frame(pfn);
        if frame.owner() != large() {
            // A later page of a large block knows its first one.
            let head = ground.frames().get(frame.head());
            let interior = head.is_some_and(|head| head.owner() == large());
            return Err(if interior { CorruptionKind::Interior } else { CorruptionKind::Foreign });
        }
        if memory != ground.pages.address(pfn) {
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
        let large = &self.large;
        large.frees.add(1);
        large.pages.sub(u64::from(order.pages()));
        let op = Operation::new();
        // SAFETY: the owner says that it is a large block, so it was allocated with the order that its frame has; with
        // that the owner is cleared.
        unsafe { self.ground.pages.free_in(&op, pfn, order) };
        large.paths.count(&op);
        self.shed();
    }

    #[cold]
    pub(crate) fn refuse(&self, kind: CorruptionKind, memory: NonNull<u8>) {
        self.corrupt(&Corruption {
            kind,
            address: memory.addr().get(),
            cache: "kmalloc",
            owner: None,
            index: None,
        });
    }
}

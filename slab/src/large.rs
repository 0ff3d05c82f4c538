//! Blocks of pages for what no size class holds, and the way back of any memory: address, frame, owner.
//!
//! Shared by [`kmalloc`](crate::kmalloc) and [`malloc`](crate::malloc), whose size tables differ and nothing else. A large
//! block is marked as such in its frame and counted.

use crate::corruption::{Corruption, CorruptionKind};
use crate::error::AllocError;
use crate::huge::is_huge;
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
        let memory = ground.pages.address(first);
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the block is ours until it is returned, and at least so large.
            unsafe { memory.write_bytes(0, size) };
        }
        Ok(memory)
    }

    /// Makes memory that is no object's one for `new`, if it is a block that stays or a piece that the system resizes.
    #[cold]
    pub(crate) fn resize_large(&self, memory: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        match (is_huge(old), is_huge(new)) {
            (true, true) => self.resize_huge(memory, new.size(), new.align()),
            _ => stays(self.usable_size(memory), new.size()).then_some(memory),
        }
    }

    /// Takes back anything that the caches and pages of this subsystem handed out.
    ///
    /// # Safety
    /// `memory` came from this subsystem and nobody uses it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>) {
        let ground = &self.ground;
        if let Some(pfn) = ground.pages.pfn_of(memory.as_ptr()) {
            let owner = ground.frames().frame(pfn).owner();
            if let Some(cache) = self.cache_of(owner) {
                // SAFETY: passed on; the cache is the one that the object came from.
                return unsafe { cache.free(memory) };
            }
            // SAFETY: passed on.
            return unsafe { self.free_large(memory, pfn) };
        }
        if memory != ZERO_SIZE {
            self.free_huge(memory);
        }
    }

    /// Bytes that may be used at `memory`; 0 for what is not ours.
    pub(crate) fn usable_size(&self, memory: NonNull<u8>) -> usize {
        let ground = &self.ground;
        let Some(pfn) = ground.pages.pfn_of(memory.as_ptr()) else { return self.usable_huge(memory) };
        let frame = ground.frames().frame(pfn);
        match self.cache_of(frame.owner()) {
            Some(cache) => cache.geometry().stride(),
            None if frame.owner() == large() => frame.state().order().bytes(),
            None => 0,
        }
    }

    /// # Safety
    /// As [`free`](Self::free); `pfn` is the page of `memory`, and no cache owns it.
    #[cold]
    unsafe fn free_large(&self, memory: NonNull<u8>, pfn: Pfn) {
        let ground = &self.ground;
        let frame = ground.frames().frame(pfn);
        if frame.owner() != large() {
            // A later page of a large block knows its first one.
            let head = ground.frames().get(frame.head());
            let interior = head.is_some_and(|head| head.owner() == large());
            let kind = if interior { CorruptionKind::Interior } else { CorruptionKind::Foreign };
            return self.refuse(kind, memory);
        }
        if memory != ground.pages.address(pfn) {
            return self.refuse(CorruptionKind::Interior, memory);
        }
        let order = frame.state().order();
        let large = &self.large;
        large.frees.add(1);
        large.pages.sub(u64::from(order.pages()));
        let op = Operation::new();
        // SAFETY: the owner says that it is a large block, so it was allocated with the order that its frame has; with
        // that the owner is cleared.
        unsafe { ground.pages.free_in(&op, pfn, order) };
        large.paths.count(&op);
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

//! Tags of objects in use, which *checked* frees read and clear.
//!
//! The table has one byte for every eight bytes of the pages. The byte at the start of an object is the cache's tag, if
//! the object is in use and its cache is checked. All other bytes are 0. An object has at least eight bytes, so no two
//! objects share a tag. A valid free finds the tag and clears it. After an invalid free, the frame of the object's page
//! shows the kind of error. Tags are uncommitted until a checked cache makes a slab. The tags of a slab take an eighth
//! of its size.
//!
//! The slabs' bitmaps cannot replace tags, because an object in a magazine also has its bit set.
//!
//! A free takes the tag by an atomic exchange. If two threads free one object at the same time, only one of them finds
//! the tag.

#[cfg_attr(any(loom, shuttle), path = "tags/cells.rs")]
mod bytes;

use crate::debug::faults::{BITMAP, Faults};
use crate::debug::tracks::TrackTable;
use bytes::Bytes;
use core::ptr::NonNull;
use uslab_buddy::PageAllocator;
use uslab_buddy::region::{Backend, Reservation, Reserved};
use uslab_buddy::{Order, PAGE_SIZE, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::Counter;
use uslab_magazine::sync::{AtomicU8, Ordering::Relaxed};

/// Number of page bytes per tag, equal to the size of the smallest object.
const BYTES_PER_TAG: usize = crate::geometry::WORD;

#[derive(Debug)]
pub(crate) struct Tags {
    memory: Reserved,
    bytes: Bytes,
    /// Address of the first page.
    range: usize,
    /// Number of decommitted blocks when unused tags were last discarded.
    seen: Counter,
    /// Records of caches that track the last allocation and free of each object.
    pub(crate) tracks: TrackTable,
}

impl Tags {
    /// Makes a tag table for `pages` pages at address `range`; returns `None` if the system refuses address space. With
    /// `apart`, most of the table gets no address space until the tags [grow](Self::grow).
    pub(crate) fn new(
        range: NonNull<u8>,
        pages: usize,
        apart: Option<usize>,
        backend: Backend,
        faults: &Faults,
    ) -> Option<Self> {
        let bytes = pages.checked_mul(PAGE_SIZE / BYTES_PER_TAG)?;
        Some(Self {
            memory: Reserved::growing(bytes, apart, &mut Reservation::none(backend, faults), BITMAP)?,
            bytes: Bytes::new(bytes),
            range: range.addr().get(),
            seen: Counter::new(0),
            tracks: TrackTable::new(pages, backend, faults)?,
        })
    }
    /// Reserves address space for the tags of the first `pages` pages.
    pub(crate) fn grow(&self, of: &PageAllocator, pages: usize) -> bool {
        of.grow_table(&self.memory, pages * (PAGE_SIZE / BYTES_PER_TAG))
    }

    /// Commits the tags of a new slab; returns `false` if memory is short.
    pub(crate) fn cover(&self, op: &Operation, slab: Pfn, order: Order) -> bool {
        let end = slab.get() as usize + order.pages() as usize;
        self.memory.commit(op, end * (PAGE_SIZE / BYTES_PER_TAG))
    }

    /// Decommits the tags of decommitted pages. Returns the number of decommitted bytes.
    ///
    /// Cost: a zone's lock. If blocks were decommitted since the last call, the call also makes a system call for each
    /// block that is still decommitted.
    pub(crate) fn discard_unused(&self, of: &PageAllocator) -> usize {
        let decommits = of.decommits();
        if decommits == self.seen.get() {
            return 0;
        }
        self.seen.set(decommits);
        let mut bytes = 0;
        of.for_each_decommitted_block(|pages| {
            let tags = pages.start * (PAGE_SIZE / BYTES_PER_TAG)..pages.end * (PAGE_SIZE / BYTES_PER_TAG);
            // SAFETY: these tags are all 0, and no slab is made at their pages while the zone is locked.
            if tags.end <= self.memory.committed() && unsafe { self.memory.discard(tags.clone()) } {
                bytes += tags.len();
            }
        });
        bytes
    }
    /// Unmaps the tags of all pages with the number `pages` or above.
    ///
    /// # Safety
    /// No slab may be on these pages, and no slab may be made there before the tags [grow](Self::grow).
    pub(crate) unsafe fn cut(&self, of: &PageAllocator, pages: usize) {
        // SAFETY: the region has no other user. By contract, no slab needs the unmapped tags.
        unsafe {
            of.truncate_table(&self.memory, pages * (PAGE_SIZE / BYTES_PER_TAG));
            self.tracks.cut(of);
        }
    }

    /// Returns the tag of `object`, or `None` if no object can begin at its address.
    #[inline(always)]
    fn tag_of_object(&self, object: NonNull<u8>) -> Option<&AtomicU8> {
        let offset = object.addr().get().wrapping_sub(self.range);
        if !offset.is_multiple_of(BYTES_PER_TAG) || offset / BYTES_PER_TAG >= self.memory.committed() {
            return None;
        }
        // SAFETY: the offset is within the committed bytes.
        unsafe { self.bytes.at(&self.memory, offset) }
    }

    /// Sets the tag of `object`, which was just allocated from the cache with that tag.
    ///
    /// # Safety
    /// The object's slab must be [covered](Self::cover).
    #[inline(always)]
    pub(crate) unsafe fn set(&self, object: NonNull<u8>, tag: u8) {
        let offset = object.addr().get() - self.range;
        // SAFETY: by contract, the object's slab is covered.
        let Some(byte) = (unsafe { self.bytes.at(&self.memory, offset) }) else { return };
        // Relaxed: the freeing thread got the object from this thread, and the object's next user gets it after that
        // free.
        byte.store(tag, Relaxed);
    }

    /// Clears the tag of a freed object; returns `false` if the object is not in use, or belongs to another
    /// cache.
    #[inline(always)]
    #[must_use]
    pub(crate) fn clear(&self, object: NonNull<u8>, tag: u8) -> bool {
        let Some(byte) = self.tag_of_object(object) else { return false };
        // Relaxed: the exchange only decides which free is valid. The next user gets the object from this thread.
        byte.compare_exchange(tag, 0, Relaxed, Relaxed).is_ok()
    }
    /// Returns `true` if the object is in use and belongs to the cache with tag `tag`.
    pub(crate) fn is_allocated(&self, object: NonNull<u8>, tag: u8) -> bool {
        // Relaxed: no other thread uses the cache, or the result is a guess.
        self.tag_of_object(object).is_some_and(|byte| byte.load(Relaxed) == tag)
    }
}

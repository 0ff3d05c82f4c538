//! Which objects are out, to be asked at a free: what makes frees *checked*.
//!
//! One byte for every eight of the range. Where an object of a checked cache begins that is in a caller's hands, it is the
//! cache's tag; everywhere else it is 0. Eight bytes are the least object, so no two begin at the same byte. A free looks
//! there first: a right one finds the tag and clears it, and what else it finds is named by the object's frame. Address
//! space until a checked cache makes a slab, an eighth of its slabs then.
//!
//! The bitmaps of the slabs cannot say it: they know an object that a CPU keeps as out, too.
//!
//! A free takes the tag by one exchange: of two threads that free one object at the same moment, one finds it.

#[cfg_attr(any(loom, shuttle), path = "tags/cells.rs")]
mod bytes;

use crate::debug::faults::{BITMAP, Faults};
use crate::debug::tracks::Tracks;
use bytes::Bytes;
use core::ptr::NonNull;
use uslab_buddy::PageAllocator;
use uslab_buddy::region::{Backend, Reservation, Reserved};
use uslab_buddy::{Order, PAGE_SIZE, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::Counter;
use uslab_magazine::sync::{AtomicU8, Ordering::Relaxed, planted};

/// Bytes of the range for each byte here: the least object.
const GRAIN: usize = crate::geometry::WORD;

/// The bytes.
#[derive(Debug)]
pub(crate) struct Tags {
    memory: Reserved,
    bytes: Bytes,
    /// Where the range begins.
    range: usize,
    /// Decommitted blocks when unused tags were given back last.
    seen: Counter,
    /// For caches that remember more of an object.
    pub(crate) tracks: Tracks,
}

impl Tags {
    /// For a range of `pages` that begins at `range`; `None` when its address space is refused. With `apart` there is little of that before
    /// they [grow](Self::grow).
    pub(crate) fn new(
        range: NonNull<u8>,
        pages: usize,
        apart: Option<usize>,
        backend: Backend,
        faults: &Faults,
    ) -> Option<Self> {
        let bytes = pages.checked_mul(PAGE_SIZE / GRAIN)?;
        Some(Self {
            memory: Reserved::growing(bytes, apart, &mut Reservation::none(backend, faults), BITMAP)?,
            bytes: Bytes::new(bytes),
            range: range.addr().get(),
            seen: Counter::new(0),
            tracks: Tracks::new(pages, backend, faults)?,
        })
    }
    /// Has addresses for the tags of the first `pages` pages.
    pub(crate) fn grow(&self, of: &PageAllocator, pages: usize) -> bool {
        of.grow_table(&self.memory, pages * (PAGE_SIZE / GRAIN))
    }

    /// Makes the tags of a slab usable; `false` if there is no memory.
    pub(crate) fn cover(&self, op: &Operation, slab: Pfn, order: Order) -> bool {
        let end = slab.get() as usize + order.pages() as usize;
        self.memory.commit(op, end * (PAGE_SIZE / GRAIN))
    }

    /// Gives the memory of tags back whose pages have none either. Returns the bytes.
    ///
    /// Cost: a zone's lock; if blocks were decommitted since the last call, a system call for each that is so now.
    pub(crate) fn discard_unused(&self, of: &PageAllocator) -> usize {
        let decommits = of.decommits();
        if decommits == self.seen.get() {
            return 0;
        }
        self.seen.set(decommits);
        let mut bytes = 0;
        of.each_decommitted(|pages| {
            let tags = pages.start * (PAGE_SIZE / GRAIN)..pages.end * (PAGE_SIZE / GRAIN);
            // SAFETY: all of these are 0, and no slab is made there while the zone is locked.
            if tags.end <= self.memory.committed() && unsafe { self.memory.discard(tags.clone()) } {
                bytes += tags.len();
            }
        });
        bytes
    }
    /// Gives the tags of all pages from `pages` on back.
    ///
    /// # Safety
    /// No slab is there, nor will be before the tags [grow](Self::grow).
    pub(crate) unsafe fn cut(&self, of: &PageAllocator, pages: usize) {
        // SAFETY: the tags have their region for themselves; else by contract.
        unsafe {
            of.cut_table(&self.memory, pages * (PAGE_SIZE / GRAIN));
            self.tracks.cut(of);
        }
    }

    /// The byte of `object`; `None` if it is not where any object could begin.
    #[inline(always)]
    fn at(&self, object: NonNull<u8>) -> Option<&AtomicU8> {
        let offset = object.addr().get().wrapping_sub(self.range);
        if !offset.is_multiple_of(GRAIN) || offset / GRAIN >= self.memory.committed() {
            return None;
        }
        // SAFETY: so many bytes are committed.
        unsafe { self.bytes.at(&self.memory, offset) }
    }

    /// `object` of a cache with this tag leaves for a caller.
    ///
    /// # Safety
    /// It lies in a slab that is [covered](Self::cover).
    #[inline(always)]
    pub(crate) unsafe fn set(&self, object: NonNull<u8>, tag: u8) {
        let offset = object.addr().get() - self.range;
        // SAFETY: an object of a slab that is covered.
        let Some(byte) = (unsafe { self.bytes.at(&self.memory, offset) }) else { return };
        // Relaxed: who frees the object has got it from here, and who gets it next after its free.
        byte.store(tag, Relaxed);
    }

    /// Takes the tag of an object that comes back; `false` if it is not out, or not of that cache.
    #[inline(always)]
    #[must_use]
    pub(crate) fn clear(&self, object: NonNull<u8>, tag: u8) -> bool {
        let Some(byte) = self.at(object) else { return false };
        planted!("a tag is looked at and then cleared" => {
            let out = byte.load(Relaxed) == tag;
            byte.store(0, Relaxed);
            return out;
        });
        // Relaxed: only says whose it is. Who gets the object next gets it from this thread.
        byte.compare_exchange(tag, 0, Relaxed, Relaxed).is_ok()
    }
    /// Whether the object is out.
    pub(crate) fn is_out(&self, object: NonNull<u8>, tag: u8) -> bool {
        // Relaxed: nobody uses the cache meanwhile, or it is a guess.
        self.at(object).is_some_and(|byte| byte.load(Relaxed) == tag)
    }
}

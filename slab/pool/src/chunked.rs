//! A pool that grows by chunks: each has a free list, and empty ones are returned to the system.
//!
//! ```text
//! front                                          back
//! [chunk: 3 free] <-> [chunk: 9 free] <-> [chunk: full] <-> [chunk: full]
//!    | head | slot | slot | ... | slot |
//! ```
//!
//! Full chunks are at the back, so only the first chunk is ever tried. A full chunk moves to the front when one of its slots is
//! freed: the next allocation takes that slot. A chunk is mapped at a multiple of its size, so an object's chunk is found by
//! arithmetic, and both operations take the same few steps however many chunks there are.
//!
//! **A list for each chunk, not one for all.** One list would work (slots of old chunks join it when they are freed:
//! [`ReservedPool`](super::ReservedPool) does that), and costs a word less. But then [purging](ChunkedPool::purge) would search
//! the list for the slots of each empty chunk, and after some churn the list would be spread over all of the memory. With a
//! list per chunk, allocations stay on few pages (`chunks_keep_allocations_on_few_pages` counts them).
//!
//! Source: the first of the two growing pools in the comments on Reinalter's "Memory allocation strategies: a pool allocator"
//! (2012).

use super::error::{BadFree, PoolError, Refused};
use super::free_list::FreeList;
use super::slot::SlotLayout;
use super::usage::Usage;
use core::alloc::Layout;
use core::ptr::NonNull;
use uslab_buddy::Faults;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::{Backend, Region};

/// Header of a chunk, before its slots.
#[derive(Debug)]
struct Chunk {
    free: FreeList,
    live: usize,
    next: Option<NonNull<Chunk>>,
    prev: Option<NonNull<Chunk>>,
    /// The memory of the chunk, this header included.
    region: Region,
}

/// A pool of chunks. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{ChunkedPool, SlotLayout};
///
/// let mut contacts = ChunkedPool::new(SlotLayout::new(64, 16)?, 16 << 10)?;
/// let objects: Vec<_> = (0..1000).map(|_| contacts.alloc(Layout::new::<[u8; 64]>())).collect::<Result<_, _>>()?;
/// assert_eq!(contacts.chunks(), 4);
/// for object in objects {
///     // SAFETY: allocated above, freed once.
///     unsafe { contacts.free(object) }?;
/// }
/// assert_eq!((contacts.purge(), contacts.chunks()), (4, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// * Each chunk of the list is at the start of `chunk_bytes` bytes, at a multiple of that, mapped by its region. They are
///   linked both ways from `front` to `back`, `chunks` of them.
/// * A chunk has `capacity` slots from byte `first` on: `live` of them are in use, the others in its free list.
/// * No chunk with a free slot is behind a full one.
#[derive(Debug)]
pub struct ChunkedPool {
    slots: SlotLayout,
    chunk_bytes: usize,
    first: usize,
    capacity: usize,
    front: Option<NonNull<Chunk>>,
    back: Option<NonNull<Chunk>>,
    chunks: usize,
    usage: Usage,
    backend: Backend,
    faults: Faults,
}

// SAFETY: only the pool has the chunks.
unsafe impl Send for ChunkedPool {}

impl ChunkedPool {
    /// Makes a pool that maps `chunk_bytes` bytes at a time: a power of two, at least a page. It has no chunk yet.
    ///
    /// # Errors
    /// [`PoolError::NoRoom`] if a chunk holds no slot, [`PoolError::Align`] if `chunk_bytes` is not a power of two.
    pub fn new(slots: SlotLayout, chunk_bytes: usize) -> Result<Self, PoolError> {
        Self::with_faults(slots, chunk_bytes, Backend::default(), Faults::default())
    }
    /// Makes a pool whose memory comes from `backend`, with injected `faults`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_faults(
        slots: SlotLayout,
        chunk_bytes: usize,
        backend: Backend,
        faults: Faults,
    ) -> Result<Self, PoolError> {
        if !chunk_bytes.is_power_of_two() {
            return Err(PoolError::Align { align: chunk_bytes });
        }
        let bytes = chunk_bytes.max(PAGE_SIZE);
        // A chunk is aligned to its size; larger alignments do not fit into it anyway.
        let first = size_of::<Chunk>() + slots.pad(size_of::<Chunk>());
        let needed = first.saturating_add(slots.stride());
        if needed > bytes || slots.align() > bytes {
            return Err(PoolError::NoRoom { bytes, needed: needed.max(slots.align()) });
        }
        Ok(Self {
            slots,
            chunk_bytes: bytes,
            first,
            capacity: (bytes - first) / slots.stride(),
            front: None,
            back: None,
            chunks: 0,
            usage: Usage::default(),
            backend,
            faults,
        })
    }

    /// Allocates a slot for `layout`. Cost: the head of the first chunk, and the slot; a system call if all chunks are full.
    ///
    /// # Errors
    /// The layout does not fit, or [`Refused::Memory`] if the system refuses another chunk.
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.alloc_at(layout, 0)
    }
    /// Allocates a slot whose byte `offset` is aligned, instead of its first.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`Refused::Offset`].
    pub fn alloc_at(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        self.slots.admits(layout, offset)?;
        let slot = match self.take() {
            Some(slot) => slot,
            None => {
                self.grow()?;
                self.take().ok_or(Refused::Full)?
            }
        };
        self.usage.alloc(layout.size(), self.slots.stride());
        Ok(slot)
    }
    /// Takes a slot of the first chunk.
    fn take(&mut self) -> Option<NonNull<u8>> {
        let at = self.front?;
        // SAFETY: a chunk of the list, which is not borrowed otherwise.
        let chunk = unsafe { &mut *at.as_ptr() };
        let slot = chunk.free.obtain()?;
        chunk.live += 1;
        if chunk.live == self.capacity && self.back != Some(at) {
            self.unlink(at);
            self.link_back(at);
        }
        Some(slot)
    }

    /// Frees a slot. Cost: the slot, and the head of its chunk, which moves to the front if it was full.
    ///
    /// # Errors
    /// [`BadFree::Interior`] for an address inside a slot, [`BadFree::Foreign`] for one inside the head of a chunk,
    /// [`BadFree::Double`] if no slot of its chunk is in use.
    ///
    /// # Safety
    /// `slot` is the pointer that [`alloc`](Self::alloc) returned (with provenance of all of its chunk), was not freed since,
    /// and is not used any more.
    pub unsafe fn free(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
        let address = slot.addr().get();
        let inside = address & (self.chunk_bytes - 1);
        // SAFETY: a chunk is at a multiple of its size, and the pointer has provenance of all of it, by this function's
        // contract.
        let at = unsafe { slot.sub(inside) }.cast::<Chunk>();
        // SAFETY: a chunk of the list, which is not borrowed otherwise.
        let chunk = unsafe { &mut *at.as_ptr() };
        let bytes = inside.checked_sub(self.first).ok_or(BadFree::Foreign { address })?;
        let index = bytes / self.slots.stride();
        if !bytes.is_multiple_of(self.slots.stride()) {
            return Err(BadFree::Interior { address, slot: index });
        }
        if chunk.live == 0 {
            return Err(BadFree::Double { slot: index });
        }
        let full = chunk.live == self.capacity;
        // SAFETY: a slot of this chunk in use, by this function's contract.
        unsafe { chunk.free.give(slot) };
        chunk.live -= 1;
        self.usage.free();
        if full && self.front != Some(at) {
            self.unlink(at);
            self.link_front(at);
        }
        Ok(())
    }

    /// Maps one more chunk, at the front.
    fn grow(&mut self) -> Result<(), Refused> {
        let bytes = self.chunk_bytes;
        let region = Region::committed(bytes, bytes, self.backend, &self.faults);
        let region = region.ok_or(Refused::Memory { bytes })?;
        let start = region.base();
        let at = start.cast::<Chunk>();
        let mut free = FreeList::empty();
        // SAFETY: the region is `chunk_bytes` long, owned, and committed; head and slots are disjoint in it.
        unsafe {
            free.thread(start.add(self.first), self.slots.stride(), self.capacity);
            at.write(Chunk { free, live: 0, next: None, prev: None, region });
        }
        self.link_front(at);
        self.chunks += 1;
        Ok(())
    }

    /// Unmaps the chunks with no slot in use, and returns their number. Cost: visits each chunk.
    pub fn purge(&mut self) -> usize {
        let (mut at, before) = (self.front, self.chunks);
        while let Some(chunk) = at {
            // SAFETY: a chunk of the list.
            let (live, next) = unsafe { (chunk.as_ref().live, chunk.as_ref().next) };
            if live == 0 {
                self.unlink(chunk);
                // SAFETY: just unlinked, with no slot in use.
                unsafe { self.release(chunk) };
            }
            at = next;
        }
        before - self.chunks
    }
    /// Unmaps a chunk.
    ///
    /// # Safety
    /// The chunk is unlinked, and its slots are not used.
    unsafe fn release(&mut self, at: NonNull<Chunk>) {
        self.chunks -= 1;
        // SAFETY: the head is initialised and read for the last time; dropping the region unmaps it.
        drop(unsafe { at.read() }.region);
    }

    fn link_front(&mut self, at: NonNull<Chunk>) {
        // SAFETY: `at` is a chunk outside the list, which is not borrowed otherwise.
        unsafe { ((*at.as_ptr()).prev, (*at.as_ptr()).next) = (None, self.front) };
        match self.front.replace(at) {
            // SAFETY: a chunk of the list.
            Some(second) => unsafe { (*second.as_ptr()).prev = Some(at) },
            None => self.back = Some(at),
        }
    }
    fn link_back(&mut self, at: NonNull<Chunk>) {
        // SAFETY: `at` is a chunk outside the list, which is not borrowed otherwise.
        unsafe { ((*at.as_ptr()).prev, (*at.as_ptr()).next) = (self.back, None) };
        match self.back.replace(at) {
            // SAFETY: a chunk of the list.
            Some(last) => unsafe { (*last.as_ptr()).next = Some(at) },
            None => self.front = Some(at),
        }
    }
    fn unlink(&mut self, at: NonNull<Chunk>) {
        // SAFETY: a chunk of the list.
        let (prev, next) = unsafe { (at.as_ref().prev, at.as_ref().next) };
        match prev {
            // SAFETY: a chunk of the list.
            Some(prev) => unsafe { (*prev.as_ptr()).next = next },
            None => self.front = next,
        }
        match next {
            // SAFETY: a chunk of the list.
            Some(next) => unsafe { (*next.as_ptr()).prev = prev },
            None => self.back = prev,
        }
    }

    /// Number of slots in use in each chunk, from front to back.
    pub fn fill(&self) -> impl Iterator<Item = usize> {
        let mut at = self.front;
        core::iter::from_fn(move || {
            // SAFETY: a chunk of the list, which does not change while the pool is borrowed.
            let chunk = unsafe { at?.as_ref() };
            at = chunk.next;
            Some(chunk.live)
        })
    }
    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }
    /// Slots per chunk.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// Bytes per chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }
    /// Size and alignment of the largest object.
    pub fn slots(&self) -> SlotLayout {
        self.slots
    }
    /// Usage statistics.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl Drop for ChunkedPool {
    /// Unmaps all memory, whatever is in use.
    fn drop(&mut self) {
        while let Some(at) = self.front {
            self.unlink(at);
            // SAFETY: just unlinked; objects of a dropped pool must not be used.
            unsafe { self.release(at) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

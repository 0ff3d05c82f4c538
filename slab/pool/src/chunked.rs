//! A pool that grows by adding chunks. Each chunk has a free list, and empty chunks are returned to the system.
//!
//! ```text
//! front                                          back
//! [chunk: 3 free] <-> [chunk: 9 free] <-> [chunk: full] <-> [chunk: full]
//!    | head | slot | slot | ... | slot |
//! ```
//!
//! Full chunks are at the back of the list of chunks, so an allocation tries only the first chunk. When a slot of a
//! full chunk is freed, the chunk moves to the front of the list, and the next allocation takes that slot. A chunk is
//! aligned to its size, so the address of an object gives its chunk by arithmetic. Allocations and frees take a
//! constant number of steps.
//!
//! **Each chunk has its own free list.** One list for all chunks would also work, and would save a word per chunk, as
//! [`ReservedPool`](super::ReservedPool) shows. However, with a single list, [purging](ChunkedPool::purge) would have
//! to search the list for the slots of each empty chunk. After many allocations and frees, the slots of a single list
//! would be spread over all memory of the pool. With a list per chunk, consecutive allocations touch few pages; the
//! test `chunked_pool_touches_fewer_pages_than_one_free_list` counts them.
//!
//! Source: one of two growing pools in the comments on Reinalter's "Memory allocation strategies: a pool allocator"
//! (2012).

use super::error::{BadFree, PoolError, Refused};
use super::free_list::{self, FreeList};
use super::slot::SlotLayout;
use super::usage::Usage;
use core::alloc::Layout;
use core::ptr::NonNull;
use uslab_buddy::Faults;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::{Backend, Region};

/// Header at the start of a chunk, before its slots.
#[derive(Debug)]
struct Chunk {
    free: FreeList,
    live: usize,
    next: Option<NonNull<Chunk>>,
    prev: Option<NonNull<Chunk>>,
    /// The memory mapping of the chunk, including this header.
    region: Region,
}

/// A pool that grows and shrinks by chunks. See the [module](self).
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
/// * Each listed chunk is mapped with `chunk_bytes` bytes, and aligned to `chunk_bytes`. The `chunks` chunks form a
///   doubly linked list from `front` to `back`.
/// * Each chunk has `capacity` slots, starting at its byte `first`. In each chunk, `live` slots are in use, and the
///   other slots are on the chunk's free list.
/// * Every chunk with a free slot precedes all full chunks.
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

// SAFETY: only the pool has access to the chunks.
unsafe impl Send for ChunkedPool {}

impl ChunkedPool {
    /// Makes a pool that maps `chunk_bytes` bytes at a time. `chunk_bytes` must be a power of two and at least a page.
    /// A new pool has no chunks.
    ///
    /// # Errors
    /// Returns [`PoolError::NoRoom`] if a chunk cannot hold a slot, and [`PoolError::Align`] if `chunk_bytes` is not a
    /// power of two.
    pub fn new(slots: SlotLayout, chunk_bytes: usize) -> Result<Self, PoolError> {
        Self::with_faults(slots, chunk_bytes, Backend::default(), Faults::default())
    }
    /// Makes a pool that maps memory through `backend`, with injected `faults`.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
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
        // A chunk is aligned only to its size. If slots had a larger alignment, they would not fit into
        // a chunk anyway.
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

    /// Allocates a slot for `layout`. Cost: the call accesses the header of the first chunk, and the slot. If all
    /// chunks are full, the call also makes a system call.
    ///
    /// # Errors
    /// Returns an error if the layout does not fit, or [`Refused::Memory`] if the system refuses another chunk.
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.alloc_at(layout, 0)
    }
    /// Allocates a slot in which the byte at `offset` is aligned, instead of the first byte.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc), and [`Refused::Offset`] if the pool aligns a different byte.
    pub fn alloc_at(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        self.slots.admits(layout, offset)?;
        let slot = match self.take_slot() {
            Some(slot) => slot,
            None => {
                self.grow()?;
                self.take_slot().ok_or(Refused::Full)?
            }
        };
        self.usage.alloc(layout.size(), self.slots.stride());
        Ok(slot)
    }
    fn take_slot(&mut self) -> Option<NonNull<u8>> {
        let chunk_start = self.front?;
        // SAFETY: the pointer refers to a listed chunk that is not otherwise borrowed.
        let chunk = unsafe { &mut *chunk_start.as_ptr() };
        let slot = chunk.free.obtain()?;
        chunk.live += 1;
        if chunk.live == self.capacity && self.back != Some(chunk_start) {
            self.unlink(chunk_start);
            self.link_chunk_at_back(chunk_start);
        }
        Some(slot)
    }

    /// Frees a slot. Cost: the call accesses the slot and the header of its chunk. If the slot's chunk was full, the
    /// chunk moves to the front of the list.
    ///
    /// # Errors
    /// Returns [`BadFree::Interior`] for an address inside a slot, [`BadFree::Foreign`] for an address inside a chunk's
    /// header, and [`BadFree::Double`] if no slot of the chunk is in use.
    ///
    /// # Safety
    /// `slot` must be the pointer that [`alloc`](Self::alloc) returned, with provenance for its whole chunk. The slot
    /// must not have been freed since, and the caller must no longer use it.
    pub unsafe fn free(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
        let address = slot.addr().get();
        let chunk_offset = address & (self.chunk_bytes - 1);
        // SAFETY: a chunk is at a multiple of its size, and by contract the pointer has provenance for the whole chunk.
        let chunk_start = unsafe { slot.sub(chunk_offset) }.cast::<Chunk>();
        // SAFETY: the pointer refers to a listed chunk that is not otherwise borrowed.
        let chunk = unsafe { &mut *chunk_start.as_ptr() };
        let bytes = chunk_offset.checked_sub(self.first).ok_or(BadFree::Foreign { address })?;
        let index = bytes / self.slots.stride();
        if !bytes.is_multiple_of(self.slots.stride()) {
            return Err(BadFree::Interior { address, slot: index });
        }
        if chunk.live == 0 {
            return Err(BadFree::Double { slot: index });
        }
        let was_full = chunk.live == self.capacity;
        // SAFETY: the slot belongs to this chunk and is in use, by this function's contract.
        unsafe { chunk.free.give(slot) };
        chunk.live -= 1;
        self.usage.free();
        if was_full && self.front != Some(chunk_start) {
            self.unlink(chunk_start);
            self.link_chunk_at_front(chunk_start);
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<(), Refused> {
        let bytes = self.chunk_bytes;
        let region = Region::committed(bytes, bytes, self.backend, &self.faults);
        let region = region.ok_or(Refused::Memory { bytes })?;
        let start = region.base();
        let at = start.cast::<Chunk>();
        let mut free = FreeList::empty();
        // SAFETY: the region is `chunk_bytes` long, owned, and committed, and the header and the slots do not overlap.
        unsafe {
            free.thread(start.add(self.first), self.slots.stride(), self.capacity);
            at.write(Chunk { free, live: 0, next: None, prev: None, region });
        }
        self.link_chunk_at_front(at);
        self.chunks += 1;
        Ok(())
    }

    /// Unmaps all chunks that have no slot in use, and returns the number of unmapped chunks. Cost: the call inspects
    /// each chunk.
    pub fn purge(&mut self) -> usize {
        let (mut at, before) = (self.front, self.chunks);
        while let Some(chunk) = at {
            // SAFETY: the pointer is a listed chunk.
            let (live, next) = unsafe { (chunk.as_ref().live, chunk.as_ref().next) };
            if live == 0 {
                self.unlink(chunk);
                // SAFETY: the chunk was just unlinked, and has no slot in use.
                unsafe { self.release(chunk) };
            }
            at = next;
        }
        before - self.chunks
    }
    /// Unmaps a chunk.
    ///
    /// # Safety
    /// The chunk must not be in the list, and no thread may use its slots.
    unsafe fn release(&mut self, at: NonNull<Chunk>) {
        self.chunks -= 1;
        // SAFETY: the header is initialised and read for the last time. Dropping the region unmaps the
        // chunk.
        drop(unsafe { at.read() }.region);
    }

    fn link_chunk_at_front(&mut self, at: NonNull<Chunk>) {
        // SAFETY: `at` is an unlisted chunk that is not otherwise borrowed.
        unsafe { ((*at.as_ptr()).prev, (*at.as_ptr()).next) = (None, self.front) };
        match self.front.replace(at) {
            // SAFETY: the pointer is a listed chunk.
            Some(second) => unsafe { (*second.as_ptr()).prev = Some(at) },
            None => self.back = Some(at),
        }
    }
    fn link_chunk_at_back(&mut self, at: NonNull<Chunk>) {
        // SAFETY: `at` is an unlisted chunk that is not otherwise borrowed.
        unsafe { ((*at.as_ptr()).prev, (*at.as_ptr()).next) = (self.back, None) };
        match self.back.replace(at) {
            // SAFETY: the pointer is a listed chunk.
            Some(last) => unsafe { (*last.as_ptr()).next = Some(at) },
            None => self.front = Some(at),
        }
    }
    fn unlink(&mut self, at: NonNull<Chunk>) {
        // SAFETY: the pointer is a listed chunk.
        let (prev, next) = unsafe { (at.as_ref().prev, at.as_ref().next) };
        match prev {
            // SAFETY: the pointer is a listed chunk.
            Some(prev) => unsafe { (*prev.as_ptr()).next = next },
            None => self.front = next,
        }
        match next {
            // SAFETY: the pointer is a listed chunk.
            Some(next) => unsafe { (*next.as_ptr()).prev = prev },
            None => self.back = prev,
        }
    }

    /// Returns the number of slots in use in each chunk, from front to back.
    pub fn fill(&self) -> impl Iterator<Item = usize> {
        let mut at = self.front;
        core::iter::from_fn(move || {
            // SAFETY: the pointer is a listed chunk, which does not change while the pool is borrowed.
            let chunk = unsafe { at?.as_ref() };
            at = chunk.next;
            Some(chunk.live)
        })
    }
    /// Returns the address of each chunk and its free slots, from front to back.
    pub fn free_lists(&self) -> impl Iterator<Item = (NonNull<u8>, free_list::Chain<'_>)> {
        let mut at = self.front;
        core::iter::from_fn(move || {
            let start = at?;
            // SAFETY: the pointer is a listed chunk, which does not change while the pool is borrowed.
            let chunk = unsafe { start.as_ref() };
            at = chunk.next;
            Some((start.cast(), chunk.free.chain()))
        })
    }
    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }
    /// Number of slots per chunk.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// Size of a chunk in bytes.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }
    /// Returns the size and alignment of the largest object.
    pub fn slots(&self) -> SlotLayout {
        self.slots
    }
    /// Returns the usage statistics of the pool.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl Drop for ChunkedPool {
    fn drop(&mut self) {
        while let Some(at) = self.front {
            self.unlink(at);
            // SAFETY: the chunk was just unlinked, and objects of a dropped pool must not be used.
            unsafe { self.release(at) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

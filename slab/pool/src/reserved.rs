//! A pool that grows in place: it reserves a range of addresses once, and commits memory step by step.
//!
//! ```text
//! |<------------------------- reserved: addresses, no memory -------------------------------->|
//! |<- committed: 32 KiB ->|<- 32 KiB ->|
//! | slot | slot | slot |  slot  | slot |   nothing yet
//! ```
//!
//! If the free list is empty, the pool commits the next step of memory and adds its slots to the list. One list
//! contains the slots of all steps, so the pool has no chunks to link or to find. All slots are adjacent, and one
//! comparison shows if an address belongs to the pool. The reservation limits the size of the pool; reserving a
//! terabyte costs no memory, only addresses. The pool returns memory to the system only when it is dropped.
//!
//! Source: one of two growing pools in the comments on Reinalter's "Memory allocation strategies: a pool allocator"
//! (2012); the author's engine uses it.

use super::error::{BadFree, PoolError, Refused};
use super::free_list::{Chain, FreeList};
use super::slot::SlotLayout;
use super::usage::Usage;
use core::alloc::Layout;
use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::{Backend, Region, Uncommitted};

/// Default number of bytes that the pool commits at a time, as in Reinalter's pool.
pub const STEP: usize = 32 << 10;

/// A pool in one reserved range of addresses. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{ReservedPool, SlotLayout};
///
/// let mut bodies = ReservedPool::new(SlotLayout::new(256, 64)?, 64 << 20)?;
/// assert_eq!((bodies.reserved(), bodies.committed()), (64 << 20, 0));
/// let body = bodies.alloc(Layout::new::<[u8; 200]>())?;
/// assert_eq!((bodies.committed(), bodies.owns(body)), (32 << 10, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// The first `threaded` slots are inside the first `committed` bytes of the region. Each of the first `threaded` slots
/// is in the free list or in use.
#[derive(Debug)]
pub struct ReservedPool {
    free: FreeList,
    slots: SlotLayout,
    pad: usize,
    threaded: usize,
    committed: usize,
    step: usize,
    usage: Usage,
    region: Region,
}

impl ReservedPool {
    /// Makes a pool that can grow up to `bytes` bytes, in steps of [`STEP`] bytes. Cost: one system call.
    ///
    /// # Errors
    /// Returns [`PoolError::Memory`] if the system refuses the range, and [`PoolError::NoRoom`] if the range is too
    /// small for a slot.
    pub fn new(slots: SlotLayout, bytes: usize) -> Result<Self, PoolError> {
        Self::with_step(slots, bytes, STEP)
    }
    /// Makes a pool that grows by `step` bytes at a time, rounded up to pages.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn with_step(slots: SlotLayout, bytes: usize, step: usize) -> Result<Self, PoolError> {
        let no_faults = uslab_buddy::Faults::default();
        let region = Region::reserve(
            bytes,
            slots.align().max(PAGE_SIZE),
            Uncommitted::NoAccess,
            Backend::default(),
            &no_faults,
        );
        Self::on(region.ok_or(PoolError::Memory { bytes })?, slots, step)
    }
    /// Makes a pool in a region of which no byte is committed yet. The pool grows by `step` bytes at a time, rounded up
    /// to pages.
    ///
    /// # Errors
    /// Returns [`PoolError::NoRoom`] if the region is too small for a slot.
    pub fn on(region: Region, slots: SlotLayout, step: usize) -> Result<Self, PoolError> {
        let (bytes, pad) = (region.bytes(), slots.pad(region.base().addr().get()));
        let required = pad.saturating_add(slots.stride());
        if required > bytes {
            return Err(PoolError::NoRoom { bytes, needed: required });
        }
        let step = step.clamp(1, bytes).next_multiple_of(PAGE_SIZE);
        let (free, usage) = (FreeList::empty(), Usage::default());
        Ok(Self { free, slots, pad, threaded: 0, committed: 0, step, usage, region })
    }

    /// Allocates a slot for `layout`. Cost: one access to the slot. If no slot is free, the call also makes a system
    /// call, and writes to each slot of the new step.
    ///
    /// # Errors
    /// Returns an error if the layout does not fit a slot, [`Refused::Full`] at the upper limit, and
    /// [`Refused::Memory`] if the system refuses more memory.
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.alloc_at(layout, 0)
    }
    /// Allocates a slot in which the byte at `offset` is aligned, instead of the first byte.
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc), and [`Refused::Offset`] if the pool aligns a different byte.
    pub fn alloc_at(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        self.slots.admits(layout, offset)?;
        let slot = match self.free.obtain() {
            Some(slot) => slot,
            None => {
                self.grow()?;
                self.free.obtain().ok_or(Refused::Full)?
            }
        };
        self.usage.alloc(layout.size(), self.slots.stride());
        Ok(slot)
    }
    /// Commits a step of memory, or more if a slot needs more, and adds the slots that are now complete to the free
    /// list.
    fn grow(&mut self) -> Result<(), Refused> {
        let min_bytes = self.pad + (self.threaded + 1) * self.slots.stride();
        if min_bytes > self.region.bytes() {
            return Err(Refused::Full);
        }
        let goal =
            (self.committed + self.step).max(min_bytes.next_multiple_of(PAGE_SIZE)).min(self.region.bytes());
        if !self.region.commit(self.committed..goal) {
            return Err(Refused::Memory { bytes: goal - self.committed });
        }
        self.committed = goal;
        let slots = (goal - self.pad) / self.slots.stride();
        // SAFETY: the slots from `threaded` on are in the committed part of an owned region, and none was handed out.
        unsafe {
            let first = self.region.base().add(self.pad + self.threaded * self.slots.stride());
            self.free.thread(first, self.slots.stride(), slots - self.threaded);
        }
        self.threaded = slots;
        Ok(())
    }

    /// Frees a slot of any step. Cost: one division, and one store to the slot.
    ///
    /// # Errors
    /// Returns an error if the address is not the start of a slot in committed memory, or if no slot is in use.
    ///
    /// # Safety
    /// If the address is the start of a slot, this pool must have allocated the slot. The slot must not have been freed
    /// since, and the caller must no longer use it.
    pub unsafe fn free(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
        let index = self.index(slot)?;
        if self.usage.live() == 0 {
            return Err(BadFree::Double { slot: index });
        }
        // SAFETY: the slot is in use, by this function's contract.
        unsafe { self.free.give(slot) };
        self.usage.free();
        Ok(())
    }
    fn index(&self, slot: NonNull<u8>) -> Result<usize, BadFree> {
        // SAFETY: the padding is less than a slot's alignment, and a slot follows it.
        let first = unsafe { self.region.base().add(self.pad) };
        self.slots.index(first, self.threaded, slot.addr().get())
    }
    /// Returns `true` if the address is inside the pool's slots. Cost: two comparisons.
    pub fn owns(&self, slot: NonNull<u8>) -> bool {
        slot.addr().get().wrapping_sub(self.region.base().addr().get()) < self.committed
    }
    /// Returns the number of reserved bytes of addresses.
    pub fn reserved(&self) -> usize {
        self.region.bytes()
    }
    /// Returns the number of committed bytes.
    pub fn committed(&self) -> usize {
        self.committed
    }
    /// Returns the start of the reserved range.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }
    /// Iterates over the free slots in committed memory, in the order in which they will be allocated.
    pub fn free_chain(&self) -> Chain<'_> {
        self.free.chain()
    }
    /// Returns the number of slots in the whole reserved range.
    pub fn capacity(&self) -> usize {
        (self.region.bytes() - self.pad) / self.slots.stride()
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use uslab_buddy::Faults;
    use uslab_buddy::faults::{COMMIT, Rule};

    const OBJECT: Layout = Layout::new::<[u64; 8]>();

    fn pool(bytes: usize) -> ReservedPool {
        ReservedPool::new(SlotLayout::new(64, 64).unwrap(), bytes).unwrap()
    }

    #[test]
    fn reserved_pool_commits_memory_in_steps() {
        let mut pool = pool(1 << 20);
        let first: Vec<_> = (0..512).map(|_| pool.alloc(OBJECT).unwrap()).collect();
        assert_eq!(pool.committed(), STEP);
        let new = pool.alloc(OBJECT).unwrap();
        assert_eq!(pool.committed(), 2 * STEP);
        assert_eq!((pool.base(), pool.free_chain().count()), (first[0], STEP / 64 - 1));
        assert_eq!(new.addr().get() - first[0].addr().get(), STEP, "the commit steps must be adjacent");
        // SAFETY: the slot was allocated above and is freed once.
        unsafe { pool.free(first[3]) }.unwrap();
        assert_eq!(pool.alloc(OBJECT), Ok(first[3]), "an old slot must be allocated first");
    }

    #[test]
    fn reserved_pool_is_full_at_its_limit() {
        let mut pool = pool(3 * STEP / 2);
        let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc(OBJECT).ok()).collect();
        assert_eq!((blocks.len(), pool.capacity(), pool.committed()), (768, 768, 3 * STEP / 2));
        assert_eq!(pool.alloc(OBJECT), Err(Refused::Full));
        // SAFETY: the slot was allocated above and is freed once.
        unsafe { pool.free(blocks[700]) }.unwrap();
        assert_eq!(pool.alloc(OBJECT), Ok(blocks[700]));
    }

    #[test]
    fn slots_may_cross_commit_steps() {
        for (size, align) in [(100 << 10, 8), (10_000, 8), (5000, 4096)] {
            let mut pool = ReservedPool::new(SlotLayout::new(size, align).unwrap(), 1 << 20).unwrap();
            let layout = Layout::from_size_align(size, align).unwrap();
            let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc(layout).ok()).collect();
            assert_eq!(blocks.len(), pool.capacity());
            for slot in blocks {
                // SAFETY: the slot has this number of bytes.
                unsafe { slot.write_bytes(0x5A, size) };
            }
        }
    }

    #[test]
    fn refused_commit_is_an_error_and_can_be_retried() {
        let faults = Faults::new(1);
        let region =
            Region::reserve(1 << 20, PAGE_SIZE, Uncommitted::NoAccess, Backend::Heap, &faults).unwrap();
        let mut pool = ReservedPool::on(region, SlotLayout::new(64, 64).unwrap(), 4096).unwrap();
        faults.arm(vec![Rule::every(Some(COMMIT))]);
        assert_eq!(pool.alloc(OBJECT), Err(Refused::Memory { bytes: 4096 }));
        faults.disarm();
        assert!(pool.alloc(OBJECT).is_ok());
        assert_eq!(pool.committed(), 4096);
    }

    #[test]
    fn each_kind_of_invalid_free_returns_its_error() {
        let mut pool = pool(1 << 20);
        let slot = pool.alloc(OBJECT).unwrap();
        let with_address = |address: usize| slot.with_addr(address.try_into().unwrap());
        let address = slot.addr().get();
        // SAFETY: invalid frees are refused.
        unsafe {
            assert_eq!(
                pool.free(with_address(address + 3)),
                Err(BadFree::Interior { address: address + 3, slot: 0 })
            );
            assert_eq!(
                pool.free(with_address(address + STEP)),
                Err(BadFree::Foreign { address: address + STEP })
            );
            assert!(
                !pool.owns(with_address(address + STEP))
                    && !pool.owns(with_address(address - 1))
                    && pool.owns(slot)
            );
            assert_eq!(pool.free(slot), Ok(()));
            assert_eq!(pool.free(slot), Err(BadFree::Double { slot: 0 }));
        }
        let small = ReservedPool::new(SlotLayout::new(8192, 8).unwrap(), 4096).err();
        assert_eq!(small, Some(PoolError::NoRoom { bytes: 4096, needed: 8192 }));
    }

    /// Compares the pool's counts of addresses and memory with the system's counts.
    #[cfg(all(target_os = "linux", not(uslab_heap), not(miri)))]
    #[test]
    fn pool_reserves_a_terabyte_and_commits_in_steps() {
        use super::super::resident::resident;
        let mut pool = pool(1 << 40);
        let pages =
            |pool: &ReservedPool| resident(NonNull::slice_from_raw_parts(pool.region.base(), 64 << 20));
        assert_eq!((pool.reserved(), pool.committed(), pages(&pool)), (1 << 40, 0, 0));
        for step in 1..=5 {
            // All slots of a step are threaded, so all pages of the step are touched.
            assert_eq!((0..STEP / 64).map_while(|_| pool.alloc(OBJECT).ok()).count(), STEP / 64);
            assert_eq!((pool.committed(), pages(&pool)), (step * STEP, step * STEP / PAGE_SIZE));
        }
    }
}

//! Blocks that need no `unsafe` code: a guard frees its block exactly once, when the guard is dropped.
//!
//! A raw block can be freed twice, to the wrong pool, or after its pool is dropped. With a [`PoolGuard`] these errors
//! are impossible, because dropping the guard frees the block to the pool that the guard borrows. The underlying pool
//! need not check the address, because the type guarantees that it is valid. [`PoolGuard::free`] still checks the
//! address, for programs with untrusted parts, and to measure the cost of the check.
//!
//! ```text
//!   SafePool ──alloc──> PoolGuard<'p>     the borrow keeps the pool in place
//!     ^                   │
//!     └────drop, once─────┘               or leaked: the block stays allocated
//! ```
//!
//! A block contains only untyped bytes. Use [`Pool`](super::Pool) or [`LivePool`](super::LivePool) for typed objects.

use super::area::Area;
#[cfg(feature = "std")]
use super::chunked::ChunkedPool;
use super::error::{BadFree, Overrun, Refused};
use super::guarded::{GuardedPool, Leak};
use super::index_pool::{IndexPool, State};
#[cfg(feature = "std")]
use super::reserved::ReservedPool;
use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::alloc::Layout;
use core::cell::RefCell;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
#[cfg(feature = "std")]
use core::ops::Range;
use core::ptr::NonNull;

/// A pool whose blocks [`SafePool`] can wrap in guards.
///
/// # Safety
/// A block that [`alloc_raw`](Self::alloc_raw) returns must be valid for reads and writes, and must belong only to the
/// caller, even if the pool is moved. The block must stay valid until it is freed, the pool is dropped, or all blocks
/// are reset ([`IndexPool::reset`]).
pub unsafe trait RawPool {
    /// Allocates a block.
    ///
    /// # Errors
    /// Returns an error if no block is free, or if the next block changed since it was freed.
    #[track_caller]
    fn alloc_raw(&mut self) -> Result<NonNull<[u8]>, Refused>;
    /// Checks a block, and frees it if it is valid.
    ///
    /// # Errors
    /// Returns an error if the block is not in use, or is damaged. A damaged block stays allocated.
    ///
    /// # Safety
    /// This pool must have allocated the block. The block must not have been freed since, and the caller must no longer
    /// use it.
    unsafe fn free_raw(&mut self, block: NonNull<u8>) -> Result<(), BadFree>;
    /// Frees a block whose address is known to be valid. If an error is found nevertheless, the block stays allocated.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_raw`](Self::free_raw).
    unsafe fn free_own(&mut self, block: NonNull<u8>) {
        // SAFETY: the block belongs to this pool and is no longer used, by this function's contract.
        let _ = unsafe { self.free_raw(block) };
    }
}

// SAFETY: blocks are within the area, disjoint, and `size` bytes long. A block in use is not handed out
// again.
unsafe impl<A: Area> RawPool for IndexPool<A> {
    #[inline]
    fn alloc_raw(&mut self) -> Result<NonNull<[u8]>, Refused> {
        let block = self.alloc().ok_or(Refused::Full)?;
        Ok(NonNull::slice_from_raw_parts(block, self.size()))
    }
    #[inline]
    unsafe fn free_raw(&mut self, block: NonNull<u8>) -> Result<(), BadFree> {
        // SAFETY: the block belongs to this pool and is no longer used, by this function's contract.
        unsafe { self.free(block) }
    }
    #[inline]
    unsafe fn free_own(&mut self, block: NonNull<u8>) {
        // SAFETY: the block belongs to this pool and is no longer used, by this function's contract.
        unsafe { self.free_unchecked(block) };
    }
}

// SAFETY: the underlying pool fulfils the contract, and objects do not include the guards.
unsafe impl<A: Area> RawPool for GuardedPool<A> {
    #[inline]
    fn alloc_raw(&mut self) -> Result<NonNull<[u8]>, Refused> {
        let object = self.alloc()?;
        Ok(NonNull::slice_from_raw_parts(object, self.object().size()))
    }
    #[inline]
    unsafe fn free_raw(&mut self, object: NonNull<u8>) -> Result<(), BadFree> {
        // SAFETY: the object belongs to this pool and is no longer used, by this function's contract.
        unsafe { self.free(object) }
    }
}

#[cfg(feature = "std")]
macro_rules! growing {
    ($($pool:ty),+) => {$(
        // SAFETY: slots are disjoint, and at least `size` bytes long. A slot in use is not on a free list, and its
        // memory stays mapped until the slot is freed or the pool is dropped.
        unsafe impl RawPool for $pool {
            fn alloc_raw(&mut self) -> Result<NonNull<[u8]>, Refused> {
                let (size, align) = (self.slots().size(), self.slots().align());
                let layout = Layout::from_size_align(size, align);
                let layout = layout.map_err(|_| Refused::NoRoom { bytes: size, align })?;
                Ok(NonNull::slice_from_raw_parts(self.alloc_at(layout, self.slots().offset())?, size))
            }
            unsafe fn free_raw(&mut self, slot: NonNull<u8>) -> Result<(), BadFree> {
                // SAFETY: the slot belongs to this pool and is no longer used, by this function's contract.
                unsafe { self.free(slot) }
            }
        }
    )+};
}
#[cfg(feature = "std")]
growing!(ChunkedPool, ReservedPool);

/// A pool whose blocks are freed automatically. See the [module](self).
///
/// ```
/// use uslab_pool::{HeapArea, IndexPool, SafePool, Refused};
///
/// let packets = SafePool::new(IndexPool::new(HeapArea::new(4096, 64)?, 1024)?);
/// let mut four: Vec<_> = (0..4).map(|_| packets.alloc()).collect::<Result<_, _>>()?;
/// four[0].bytes()[0].write(7);
/// assert_eq!(packets.alloc().err(), Some(Refused::Full));
/// drop(four);
/// assert_eq!(packets.state().free, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A block cannot outlive its pool:
///
/// ```compile_fail,E0505
/// use uslab_pool::{HeapArea, IndexPool, SafePool};
///
/// let pool = SafePool::new(IndexPool::new(HeapArea::new(4096, 64).unwrap(), 1024).unwrap());
/// let block = pool.alloc().unwrap();
/// drop(pool);
/// drop(block);
/// ```
#[derive(Debug)]
pub struct SafePool<P>(RefCell<P>);

impl<P: RawPool> SafePool<P> {
    /// Wraps `pool`, so that the blocks that are allocated from now on have guards. Blocks that were allocated earlier
    /// stay allocated.
    pub const fn new(pool: P) -> Self {
        Self(RefCell::new(pool))
    }
    /// Allocates a block; dropping the returned guard frees it. Cost: the same as the underlying pool.
    ///
    /// # Errors
    /// Returns the errors of [`RawPool::alloc_raw`].
    #[inline]
    #[track_caller]
    pub fn alloc(&self) -> Result<PoolGuard<'_, P>, Refused> {
        let block = self.0.borrow_mut().alloc_raw()?;
        Ok(PoolGuard { block, pool: &self.0 })
    }
    /// Returns the underlying pool, for instance to reset all its blocks; this requires that no guard exists. If a
    /// guard is leaked, its block stays allocated until the pool is reset.
    pub fn pool(&mut self) -> &mut P {
        self.0.get_mut()
    }
    /// Consumes the wrapper, and returns the pool.
    pub fn into_pool(self) -> P {
        self.0.into_inner()
    }
}

impl<A: Area> SafePool<IndexPool<A>> {
    /// Returns [`IndexPool::state`]; the call is allowed while blocks are in use.
    pub fn state(&self) -> State {
        self.0.borrow().state()
    }
    /// Returns [`IndexPool::free_chain`]; the call is allowed while blocks are in use.
    pub fn free_chain(&self) -> Vec<u32> {
        self.0.borrow().free_chain().collect()
    }
}

impl<A: Area> SafePool<GuardedPool<A>> {
    /// Returns [`GuardedPool::check_all`]; the call is allowed while blocks are in use.
    pub fn check_all(&self) -> Vec<Overrun> {
        self.0.borrow().check_all().collect()
    }
    /// Returns [`GuardedPool::leaks`]; the call is allowed while blocks are in use.
    pub fn leaks(&self) -> Vec<Leak> {
        self.0.borrow().leaks().collect()
    }
}

#[cfg(feature = "std")]
impl SafePool<ChunkedPool> {
    /// Returns the address of each chunk and the addresses of its free slots, from front to back.
    pub fn free_lists(&self) -> Vec<(usize, Vec<usize>)> {
        let pool = self.0.borrow();
        let lists = pool.free_lists();
        lists
            .map(|(chunk, free)| (chunk.addr().get(), free.map(|slot| slot.addr().get()).collect()))
            .collect()
    }
    /// Unmaps the chunks that have no block in use, like [`ChunkedPool::purge`]; other blocks may be in use.
    pub fn purge(&self) -> usize {
        self.0.borrow_mut().purge()
    }
}

#[cfg(feature = "std")]
impl SafePool<ReservedPool> {
    /// Returns the range of committed addresses; the call is allowed while blocks are in use.
    pub fn committed(&self) -> Range<usize> {
        let pool = self.0.borrow();
        let base = pool.base().addr().get();
        base..base + pool.committed()
    }
    /// Returns the addresses of the free slots, in the order in which they will be allocated.
    pub fn free_chain(&self) -> Vec<usize> {
        self.0.borrow().free_chain().map(|slot| slot.addr().get()).collect()
    }
}

/// A guard for a block of a [`SafePool`]; dropping the guard frees the block.
pub struct PoolGuard<'p, P: RawPool> {
    block: NonNull<[u8]>,
    pool: &'p RefCell<P>,
}

impl<P: RawPool> PoolGuard<'_, P> {
    /// Returns the bytes of the block. A new block has unspecified bytes.
    #[inline]
    pub fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the block is allocated and not freed, so it is valid and belongs only to this guard, which is
        // borrowed exclusively. The bytes may be uninitialised.
        unsafe { core::slice::from_raw_parts_mut(self.block.cast().as_ptr(), self.block.len()) }
    }
    /// Returns the address of the block, which is valid until the block is freed.
    pub fn address(&self) -> *const u8 {
        self.block.cast().as_ptr()
    }
    /// Frees the block with the checks of the underlying pool.
    ///
    /// # Errors
    /// Returns the errors of [`RawPool::free_raw`] if the pool's memory was overwritten. If `free` fails, the block
    /// stays allocated.
    #[inline]
    pub fn free(self) -> Result<(), BadFree> {
        let wrapper = ManuallyDrop::new(self);
        // SAFETY: this pool allocated the block, which only this call frees, because the guard is not
        // dropped.
        unsafe { wrapper.pool.borrow_mut().free_raw(wrapper.block.cast()) }
    }
}

impl<P: RawPool> Drop for PoolGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this pool allocated the block, which only this drop frees.
        unsafe { self.pool.borrow_mut().free_own(self.block.cast()) };
    }
}

impl<P: RawPool> fmt::Debug for PoolGuard<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolGuard")
            .field("address", &self.address())
            .field("bytes", &self.block.len())
            .finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::area::HeapArea;
    use super::super::error::Side;
    use super::super::index_pool::Initialise;
    use super::*;
    use core::alloc::Layout;

    fn lazy(blocks: usize) -> SafePool<IndexPool<HeapArea>> {
        let area = HeapArea::new(blocks * 16, 16).unwrap();
        SafePool::new(IndexPool::with_blocks(area, 16, blocks, Initialise::WhenEmpty).unwrap())
    }

    #[test]
    fn block_guard_frees_its_block_exactly_once() {
        let pool = lazy(3);
        let [a, b, c] = [0; 3].map(|_| pool.alloc().unwrap());
        let (first, second) = (a.address(), b.address());
        assert_eq!((pool.alloc().err(), pool.state().free), (Some(Refused::Full), 0));
        drop(b);
        assert_eq!(a.free(), Ok(()));
        assert_eq!(pool.state().free, 2);
        let reused = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        assert_eq!(
            reused.each_ref().map(PoolGuard::address),
            [first, second],
            "the slot that was freed last must be first"
        );
        drop((reused, c));
        assert_eq!(pool.state().free, 3);
        assert!(pool.into_pool().destroy().is_ok());
    }

    #[test]
    fn safe_pool_blocks_do_not_overlap() {
        let pool = lazy(8);
        let mut objects: Vec<_> = (0..4_u8)
            .map(|stamp| {
                let mut block = pool.alloc().unwrap();
                block.bytes().iter_mut().for_each(|byte| _ = byte.write(stamp));
                (stamp, block)
            })
            .collect();
        for _ in 0..10 {
            let mut other_objects: Vec<_> = (0..4).map(|_| pool.alloc().unwrap()).collect();
            for block in &mut other_objects {
                block.bytes().iter_mut().for_each(|byte| _ = byte.write(0xff));
            }
        }
        for (stamp, block) in &mut objects {
            // SAFETY: the bytes were written above.
            assert!(block.bytes().iter().all(|byte| unsafe { byte.assume_init() } == *stamp));
        }
    }

    #[test]
    fn leaked_block_stays_allocated() {
        let mut pool = lazy(2);
        core::mem::forget(pool.alloc().unwrap());
        assert_eq!(pool.pool().live(), 1);
        let other_object = pool.alloc().unwrap();
        assert!(pool.alloc().is_err());
        drop(other_object);
        assert!(pool.alloc().is_ok());
    }

    #[cfg(feature = "std")]
    #[test]
    fn growing_pools_guard_their_blocks() {
        let slots = super::super::SlotLayout::new(1024, 1024).unwrap();
        let chunked = SafePool::new(ChunkedPool::new(slots, 4096).unwrap());
        let blocks: Vec<_> = (0..4).map(|_| chunked.alloc().unwrap()).collect();
        let [(second, free), (first, full)] = &chunked.free_lists()[..] else { panic!("3 slots a chunk") };
        assert_eq!((free[..].to_vec(), full.len()), (vec![second + 2048, second + 3072], 0));
        assert_eq!(blocks[0].address().addr(), first + 1024, "the header precedes the slots");
        assert_eq!(chunked.purge(), 0);
        drop(blocks);
        assert_eq!((chunked.purge(), chunked.free_lists()), (2, vec![]));

        let reserved = SafePool::new(ReservedPool::with_step(slots, 16 << 10, 4096).unwrap());
        assert!(reserved.committed().is_empty());
        let block = reserved.alloc().unwrap();
        let base = block.address().addr();
        assert_eq!(reserved.committed(), base..base + 4096);
        drop(block);
        assert_eq!(reserved.free_chain(), [0, 1024, 2048, 3072].map(|at| base + at));
    }

    #[test]
    fn safe_pool_free_detects_an_overrun() {
        let area = HeapArea::new(4096, 16).unwrap();
        let pool = SafePool::new(GuardedPool::new(area, Layout::new::<[u8; 30]>()).unwrap());
        let mut good_block = pool.alloc().unwrap();
        assert_eq!(good_block.bytes().len(), 30);
        good_block.bytes().iter_mut().for_each(|byte| _ = byte.write(1));
        let line = line!() + 1;
        let overrun_object = pool.alloc().unwrap();
        let lines: Vec<_> = pool.leaks().iter().map(|leak| leak.site.unwrap().line()).collect();
        assert_eq!((lines.len(), lines[1]), (2, line));
        // SAFETY: the byte after the object is in the pool's memory, which no other code accesses during the write.
        unsafe { overrun_object.block.cast::<u8>().add(30).write(b'!') };
        assert!(matches!(pool.check_all()[..], [Overrun { side: Side::After, .. }]));
        assert!(matches!(overrun_object.free(), Err(BadFree::Overrun(Overrun { side: Side::After, .. }))));
        assert_eq!(good_block.free(), Ok(()));
        assert_eq!(pool.leaks().len(), 1, "the damaged slot must stay allocated");
    }
}

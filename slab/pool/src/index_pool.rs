//! A pool that is made in constant time: free blocks are linked by number, and unused blocks are not accessed.
//!
//! The chain of free blocks ends at the first block that was never used. The number of that block is `initialised`; all
//! blocks from there on are free. Making a pool of any size writes to no block. Each allocation and free takes a few
//! instructions without a loop.
//!
//! ```text
//!  next              initialised = 4       blocks = 8
//!    |                     |                   |
//!    v                     v                   v
//!    1     0     2     3     4     5     6     7         1 -> 3 -> 4: two free blocks, and all from 4 on
//!  [ 3 ] [out] [out] [ 4 ] [ ? ] [ ? ] [ ? ] [ ? ]       free = 6
//! ```
//!
//! The chain ends with a *number* instead of a null, so a full pool is not a special case: its chain starts at the
//! number after the last block. A free therefore does not test if the pool was full. A full pool can be
//! [extended](IndexPool::extend), because its chain already leads to the next block that would be added.
//!
//! # Differences from the paper's listing
//!
//! | the listing | here |
//! |---|---|
//! | a second `CreatePool` drops the old memory, and keeps its count of initialised blocks | [`reconfigure`](IndexPool::reconfigure) starts anew, or returns [`PoolError::Busy`] |
//! | `DestroyPool` leaves the counts | the pool is consumed; [`reset`](IndexPool::reset) counts from the start |
//! | the index is written at the start of a block, aligned or not | any block of at least 4 bytes is accepted |
//! | `(uint)(p - start)`: wrong beyond 4 GiB | distances have the address's width |
//! | a full pool that grows returns null once | the new blocks are found immediately |
//! | each allocation initialises one more block, even if old ones are free | [`Initialise`] selects the policy |
//!
//! Source: Kenwright, "Fast Efficient Fixed-Size Memory Pool: No Loops and No Overhead" (2012), including its section
//! on resizing. [`free`](IndexPool::free) checks the range and the block boundary as in the paper;
//! [`guarded`](super::guarded) pools do the paper's other checks.

use super::area::Area;
use super::bits;
use super::error::{BadFree, PoolError};
use core::ptr::NonNull;

/// Size in bytes of the link in a free block; the link is the number of the next free block.
pub const INDEX: usize = size_of::<u32>();

/// The policy for adding unused blocks to the chain of free blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initialise {
    /// A block joins when the chain is empty, so that memory is accessed as late as possible. This policy needs one
    /// more branch than `EachAllocation`.
    #[default]
    WhenEmpty,
    /// One block joins at each allocation, as in the paper. An allocation may then access unused memory although used
    /// blocks are free.
    EachAllocation,
}

/// A pool of blocks of one size, which does not access a block before it is needed. See the [module](self). On borrowed
/// memory, the pool itself takes 48 bytes.
///
/// ```
/// use core::mem::MaybeUninit;
/// use uslab_pool::{Borrowed, IndexPool};
///
/// let mut memory = [const { MaybeUninit::uninit() }; 256];
/// let mut pool = IndexPool::new(Borrowed::from(&mut memory[..]), 64)?;
/// let (a, b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
/// // SAFETY: allocated above, freed once.
/// unsafe { pool.free(a) }?;
/// assert_eq!((pool.alloc(), pool.live()), (Some(a), 2));
/// # let _ = b;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// * The pool uses the first `size * blocks` bytes of the area. `initialised <= blocks` always holds.
/// * The chain begins at `next`; each free block below `initialised` is named once, and names the next free block. The
///   last free block of the chain names `initialised`.
/// * `free` is the number of free blocks below `initialised` plus `blocks - initialised`.
#[derive(Debug)]
#[doc(alias = "Pool_c")]
pub struct IndexPool<A> {
    area: A,
    size: usize,
    blocks: u32,
    free: u32,
    initialised: u32,
    next: u32,
    policy: Initialise,
}

/// The three variables that the paper's pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Number of free blocks.
    pub free: u32,
    /// Number of blocks that have joined the chain so far.
    pub initialised: u32,
    /// Number of the block that the next allocation takes. If the pool is full, this number equals the number of
    /// blocks.
    pub next: u32,
}

impl<A: Area> IndexPool<A> {
    /// Makes a pool with as many blocks of `size` bytes as fit into `area`. The blocks' alignment follows from `size`
    /// and the start of the area.
    ///
    /// Cost: the call accesses no block, so its cost does not depend on the number of blocks.
    ///
    /// # Errors
    /// Returns [`PoolError::Small`] if a block has fewer than 4 bytes, [`PoolError::NoRoom`] if no block fits, and
    /// [`PoolError::Many`] if there are 2^32 or more blocks.
    pub fn new(area: A, size: usize) -> Result<Self, PoolError> {
        let blocks = area.memory().len() / size.max(1);
        Self::with_blocks(area, size, blocks, Initialise::default())
    }
    /// Makes a pool with `blocks` blocks, which can be [extended](Self::extend) until it fills the area.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn with_blocks(area: A, size: usize, blocks: usize, policy: Initialise) -> Result<Self, PoolError> {
        let blocks = count_blocks(&area, size, blocks)?;
        Ok(Self { area, size, blocks, free: blocks, initialised: 0, next: 0, policy })
    }
    /// Makes all blocks free and uninitialised. Cost: the call accesses no block, like
    /// [`new`](Self::new).
    ///
    /// The caller must no longer use any block after `reset`, because the pool will allocate all blocks again.
    pub fn reset(&mut self) {
        (self.free, self.initialised, self.next) = (self.blocks, 0, 0);
    }
    /// Divides the memory of the pool into blocks of another size.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and [`PoolError::Busy`] if blocks are in use.
    pub fn reconfigure(&mut self, size: usize, blocks: usize) -> Result<(), PoolError> {
        self.check_no_blocks_in_use()?;
        self.blocks = count_blocks(&self.area, size, blocks)?;
        self.size = size;
        self.reset();
        Ok(())
    }
    /// Destroys the pool, and returns its memory to the caller.
    ///
    /// # Errors
    /// If blocks are in use, returns the pool as the error value.
    pub fn destroy(self) -> Result<A, Self> {
        if self.live() > 0 { Err(self) } else { Ok(self.area) }
    }
    fn check_no_blocks_in_use(&self) -> Result<(), PoolError> {
        match self.live() {
            0 => Ok(()),
            live => Err(PoolError::Busy { live: live as usize }),
        }
    }

    /// Allocates a block and returns its address. The pool takes the block that was freed most recently. Returns `None`
    /// if no block is free.
    ///
    /// Cost: one load from the block, without a loop. The first allocation of each block does not access the block.
    /// With [`Initialise::EachAllocation`], the first allocation of a block accesses this block and the next one.
    #[inline]
    pub fn alloc(&mut self) -> Option<NonNull<u8>> {
        if self.free == 0 {
            return None;
        }
        if self.policy == Initialise::EachAllocation && self.initialised < self.blocks {
            self.set_link(self.initialised, self.initialised + 1);
            self.initialised += 1;
        }
        let block = self.next;
        if block == self.initialised {
            // A block is free although the chain is empty, so this block was never used.
            self.initialised += 1;
            self.next = self.initialised;
        } else {
            self.next = self.link(block);
        }
        self.free -= 1;
        Some(self.address(block))
    }

    /// Frees a block.
    ///
    /// Cost: one division, and one store to the block.
    ///
    /// # Errors
    /// Returns an error if the address is outside the pool or inside a block, or if the block was never in use. With
    /// [`Initialise::EachAllocation`], a block that has not joined the chain yet is also refused. A *second* free is
    /// detected only if all blocks are free. [`guarded`](super::guarded) pools always detect a second free.
    ///
    /// # Safety
    /// If the call does not return an error, this pool must have allocated the block. The block must not have been
    /// freed since, and the caller must no longer use it.
    #[inline]
    pub unsafe fn free(&mut self, block: NonNull<u8>) -> Result<(), BadFree> {
        let index = self.index(block)?;
        if index >= self.initialised || self.free == self.blocks {
            return Err(BadFree::Double { slot: index as usize });
        }
        self.push(index);
        Ok(())
    }
    /// Frees a block as [`free`](Self::free) does, but without checking the address.
    ///
    /// # Safety
    /// This pool must have allocated the block. The block must not have been freed since, and the caller must no longer
    /// use it.
    #[inline]
    pub unsafe fn free_unchecked(&mut self, block: NonNull<u8>) {
        self.push(((block.addr().get() - self.start().addr().get()) / self.size) as u32);
    }
    #[inline]
    fn push(&mut self, index: u32) {
        self.set_link(index, self.next);
        self.next = index;
        self.free += 1;
    }

    /// Adds `blocks` blocks at the end of the pool; the area must contain their memory. Cost: the call accesses no
    /// block.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new) if the area cannot hold the blocks, or if there are 2^32 or more
    /// blocks. After an error, the pool is unchanged.
    pub fn extend(&mut self, blocks: usize) -> Result<(), PoolError> {
        let total_blocks = (self.blocks as usize).saturating_add(blocks);
        let total_blocks = count_blocks(&self.area, self.size, total_blocks)?;
        self.free += total_blocks - self.blocks;
        self.blocks = total_blocks;
        Ok(())
    }
    /// Removes all blocks after the last block in use, and returns the number of removed blocks. The pool does not
    /// access the memory of removed blocks until it is [extended](Self::extend) again. The pool keeps at least one
    /// block.
    ///
    /// Cost: one load for each free block that was ever used, and one bit of heap memory for each block that was ever
    /// used.
    ///
    /// # Errors
    /// If the heap has no memory, changes nothing and returns [`PoolError::Memory`].
    pub fn shrink_to_used(&mut self) -> Result<usize, PoolError> {
        let mut free = bits::new_bitmap(self.initialised as usize)?;
        let mut block = self.next;
        while block != self.initialised {
            bits::set_bit(&mut free, block as usize, true);
            block = self.link(block);
        }
        let mut remaining = self.initialised;
        while remaining > 0 && bits::get(&free, remaining as usize - 1) {
            remaining -= 1;
        }
        // Removes blocks from the chain without changing the order of the others. The removed blocks are all
        // blocks after the last block in use.
        let (mut block, mut last) = (self.next, None);
        let end = self.initialised;
        while block != end {
            let next = self.link(block);
            if block < remaining {
                self.chain(last, block);
                last = Some(block);
            }
            block = next;
        }
        self.chain(last, remaining);
        self.initialised = remaining;
        let removed_blocks = self.blocks - remaining.max(1);
        self.blocks -= removed_blocks;
        self.free -= removed_blocks;
        Ok(removed_blocks as usize)
    }
    fn chain(&mut self, last: Option<u32>, next: u32) {
        match last {
            Some(last) => self.set_link(last, next),
            None => self.next = next,
        }
    }

    #[inline]
    fn link(&self, block: u32) -> u32 {
        // SAFETY: the block is free and below `initialised`, so a link was written to it. Links may be unaligned.
        unsafe { self.address(block).cast::<u32>().read_unaligned() }
    }
    #[inline]
    fn set_link(&mut self, block: u32, next: u32) {
        // SAFETY: the block is a free block of the pool's memory and has at least 4 bytes.
        unsafe { self.address(block).cast::<u32>().write_unaligned(next) };
    }
    fn start(&self) -> NonNull<u8> {
        self.area.memory().cast()
    }
    #[inline]
    #[doc(alias = "AddrFromIndex")]
    pub(super) fn address(&self, block: u32) -> NonNull<u8> {
        debug_assert!(block < self.blocks, "block {block} of {}", self.blocks);
        // SAFETY: the index is below `blocks`, and `blocks` blocks fit into the area.
        unsafe { self.start().add(block as usize * self.size) }
    }
    /// Returns the index of the block at an address; the first index is 0.
    ///
    /// # Errors
    /// Returns an error if the address is outside the pool, or inside a block.
    #[doc(alias = "IndexFromAddr")]
    pub fn index(&self, block: NonNull<u8>) -> Result<u32, BadFree> {
        self.index_of(block.addr().get())
    }
    #[inline]
    pub(super) fn index_of(&self, address: usize) -> Result<u32, BadFree> {
        let bytes = address.wrapping_sub(self.start().addr().get());
        let slot = bytes / self.size;
        if slot >= self.blocks as usize {
            return Err(BadFree::Foreign { address });
        }
        if !bytes.is_multiple_of(self.size) {
            return Err(BadFree::Interior { address, slot });
        }
        Ok(slot as u32)
    }
    /// Number of blocks in use.
    pub fn live(&self) -> u32 {
        self.blocks - self.free
    }
    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }
    /// Size of a block in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Iterates over the free blocks that have joined the chain, in the order of the chain.
    pub fn free_chain(&self) -> impl Iterator<Item = u32> {
        let block = |block: u32| (block != self.initialised).then_some(block);
        core::iter::successors(block(self.next), move |last| block(self.link(*last)))
    }
    /// Returns the three variables of the paper's pool.
    pub fn state(&self) -> State {
        State { free: self.free, initialised: self.initialised, next: self.next }
    }
}

/// Checks that `blocks` blocks of `size` bytes fit into the area, and returns their number.
fn count_blocks(area: &impl Area, size: usize, blocks: usize) -> Result<u32, PoolError> {
    if size < INDEX {
        return Err(PoolError::Small { slot: size, least: INDEX });
    }
    let bytes = area.memory().len();
    match blocks.checked_mul(size) {
        Some(needed) if needed == 0 || needed > bytes => {
            Err(PoolError::NoRoom { bytes, needed: needed.max(size) })
        }
        None => Err(PoolError::NoRoom { bytes, needed: usize::MAX }),
        Some(_) => u32::try_from(blocks).map_err(|_| PoolError::Many { blocks, max: u32::MAX as usize }),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

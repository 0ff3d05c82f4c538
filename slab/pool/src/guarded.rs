//! A pool for debugging: it puts guards around each object, fills free objects with a pattern, and records the source
//! locations of leaks.
//!
//! ```text
//! block, out    [ site | mark ][      object       ][ mark ]
//! block, free   [ link | mark ][ CD CD CD CD CD CD ][ mark ]
//! ```
//!
//! A mark depends on the block's number, its state, and its link, so no two blocks have equal marks. The marks of *one*
//! block are checked when the block is freed, or by [`check`](GuardedPool::check).
//! [`check_all`](GuardedPool::check_all) checks the marks of *all* blocks. A write to a free object or its link is
//! detected when the object is next allocated. The pool follows only links that the pool itself wrote. The word `site`
//! refers to the source location (file and line) of the allocation. The source locations, and one bit per block that is
//! in use, are stored outside the pool's memory, where no overrun can reach them.
//!
//! Cost: 12 bytes per block, and time proportional to the object's size at each allocation and free. The pool uses heap
//! memory for one bit per block, and for one entry per source location that allocates. Use an [`IndexPool`] for trusted
//! code, and this pool for other code.
//!
//! Source: Kenwright, "Fast Efficient Fixed-Size Memory Pool" (2012), the section on verification. The pattern 0xCD
//! comes from the tutorial "Memory Allocators from Scratch".

use super::area::Area;
use super::bits;
use super::error::{BadFree, Overrun, PoolError, Refused, Side};
use super::index_pool::IndexPool;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::fmt;
use core::panic::Location;
use core::ptr::NonNull;

/// The byte value with which free objects are filled.
pub const POISON: u8 = 0xCD;
/// The values of the marks before they are combined with the block's number.
const ALLOCATED_MARK: u32 = 0xA110_CA7E;
const FREE_MARK: u32 = 0xF4EE_B10C;
/// Size in bytes of a mark, and of the word that precedes the front mark.
const MARK: usize = size_of::<u32>();
/// Number of bytes before an object, unless the object's alignment requires more.
const HEAD: usize = 2 * MARK;

/// An [`IndexPool`] that detects errors. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{GuardedPool, HeapArea};
///
/// let mut pool = GuardedPool::new(HeapArea::new(4096, 64)?, Layout::new::<[u8; 30]>())?;
/// let object = pool.alloc()?;
/// // SAFETY: an overrun by one byte, into the pool's own memory.
/// unsafe { object.write_bytes(b'x', 31) };
/// println!("{}", pool.check(object).unwrap_err());
/// for leak in pool.leaks() {
///     println!("{leak}"); // slot 0, 30 bytes at 0x7f...: allocated at src/main.rs:5
/// }
/// # assert_eq!(pool.leaks().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Invariants
/// Each block below the pool's count of initialised blocks was in use at least once, and has the layout in the module
/// documentation. The bit of a block in `allocated` is set while the block is in use. `sorted_sites` contains the
/// indexes of `sites`, sorted by source location. An object begins `object_offset` bytes after the start of its block.
#[derive(Debug)]
pub struct GuardedPool<A> {
    pool: IndexPool<A>,
    object: Layout,
    object_offset: usize,
    allocated: Vec<u8>,
    sites: Vec<&'static Location<'static>>,
    sorted_sites: Vec<u32>,
}

/// Describes an object that is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Index of the object's slot, from 0.
    pub slot: usize,
    /// Address of the object.
    pub address: usize,
    /// Size of the object in bytes.
    pub size: usize,
    /// Source location of the allocation, or `None` if an overrun destroyed it.
    pub site: Option<&'static Location<'static>>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}, {} bytes at {:#x}: allocated ", self.slot, self.size, self.address)?;
        match self.site {
            Some(site) => write!(f, "at {}:{}", site.file(), site.line()),
            None => f.write_str("by a caller whose name was overwritten"),
        }
    }
}

impl<A: Area> GuardedPool<A> {
    /// Makes a pool of as many objects of the given layout, with their guards, as fit into `area`.
    ///
    /// # Errors
    /// Returns the errors of [`IndexPool::new`]. Also returns [`PoolError::Start`] if the area's start is not aligned
    /// for the objects, and [`PoolError::Memory`] if the heap has no memory for one bit per block.
    pub fn new(area: A, object: Layout) -> Result<Self, PoolError> {
        let large = PoolError::Large { size: object.size() };
        if area.memory().cast::<u8>().addr().get() & (object.align() - 1) != 0 {
            return Err(PoolError::Start { align: object.align() });
        }
        let object_offset = HEAD.next_multiple_of(object.align());
        let size = object.size().checked_add(object_offset + MARK).ok_or(large)?;
        let pool =
            IndexPool::new(area, size.checked_next_multiple_of(object.align().max(MARK)).ok_or(large)?)?;
        let allocated = bits::new_bitmap(pool.blocks() as usize)?;
        Ok(Self { pool, object, object_offset, allocated, sites: Vec::new(), sorted_sites: Vec::new() })
    }

    /// Allocates an object, and records the source location of the caller. If the block was in use before, all bytes of
    /// the object are [`POISON`].
    ///
    /// Cost: the call reads each byte of the object, and searches the sorted source locations. If the source location
    /// is new, the insertion moves the sorted locations that follow it.
    ///
    /// # Errors
    /// Returns [`Refused::Full`] if no block is free, [`Refused::Corrupt`] if the next object changed since it was
    /// freed, and [`Refused::Memory`] if the heap has no memory for another source location.
    #[track_caller]
    pub fn alloc(&mut self) -> Result<NonNull<u8>, Refused> {
        let state = self.pool.state();
        if state.free > 0 && state.next < state.initialised {
            self.check_guard_marks(state.next).map_err(Refused::Corrupt)?;
        }
        let site = self.call_site_number(Location::caller())?;
        let block = self.pool.alloc().ok_or(Refused::Full)?;
        bits::set_bit(&mut self.allocated, state.next as usize, true);
        // SAFETY: the block was just allocated.
        unsafe { self.write_guard_marks(block, state.next, site) };
        // SAFETY: the address is inside the block.
        Ok(unsafe { block.add(self.object_offset) })
    }

    /// Frees an object.
    ///
    /// # Errors
    /// Returns an error if the address does not belong to an object, if the object is already free, or if one of its
    /// guards is damaged. A failed free changes nothing. An object with damaged guards stays in use, and is reported as
    /// a [leak](Self::leaks).
    ///
    /// # Safety
    /// If the object is in use, the caller must no longer use it.
    pub unsafe fn free(&mut self, object: NonNull<u8>) -> Result<(), BadFree> {
        let index = self.index(object)?;
        if !bits::get(&self.allocated, index as usize) {
            return Err(BadFree::Double { slot: index as usize });
        }
        self.check_guard_marks(index).map_err(BadFree::Overrun)?;
        let block = self.block(index);
        // SAFETY: the object belongs to a block in use.
        unsafe { block.add(self.object_offset).write_bytes(POISON, self.object.size()) };
        // SAFETY: the block's bit shows that the block is in use, and it is no longer used, by this function's
        // contract.
        unsafe { self.pool.free(block) }?;
        bits::set_bit(&mut self.allocated, index as usize, false);
        // SAFETY: the block is free and initialised, and the pool has just written its link.
        unsafe {
            let link = block.cast::<u32>().read_unaligned();
            self.write_guard_marks(block, index, link);
        }
        Ok(())
    }

    /// Checks that the object belongs to the pool and is in use, and that its guards are intact.
    ///
    /// # Errors
    /// Returns the errors of [`free`](Self::free).
    pub fn check(&self, object: NonNull<u8>) -> Result<(), BadFree> {
        let index = self.index(object)?;
        if !bits::get(&self.allocated, index as usize) {
            return Err(BadFree::Double { slot: index as usize });
        }
        self.check_guard_marks(index).map_err(BadFree::Overrun)
    }
    /// Checks all blocks, and returns the first error of each block. Cost: the call inspects each block that was ever
    /// used, and each byte of the free blocks among them.
    pub fn check_all(&self) -> impl Iterator<Item = Overrun> {
        (0..self.pool.state().initialised).filter_map(|index| self.check_guard_marks(index).err())
    }
    /// Returns the objects in use, with the source locations of their allocations.
    pub fn leaks(&self) -> impl Iterator<Item = Leak> {
        bits::iter_set_bits(&self.allocated).map(|slot| {
            let block = self.block(slot as u32);
            // SAFETY: the block is in use, so `alloc` wrote a site to it; the site may have been overwritten
            // since.
            let site = unsafe { block.cast::<u32>().read_unaligned() };
            Leak {
                slot,
                address: block.addr().get() + self.object_offset,
                size: self.object.size(),
                site: self.sites.get(site as usize).copied(),
            }
        })
    }
    /// Destroys the pool, and returns its memory to the caller.
    ///
    /// # Errors
    /// If objects are in use (see [`leaks`](Self::leaks)), returns the pool as the error value.
    #[allow(clippy::result_large_err, reason = "both variants move the pool")]
    pub fn destroy(self) -> Result<A, Self> {
        let Self { pool, object, object_offset, allocated, sites, sorted_sites } = self;
        pool.destroy().map_err(|pool| Self { pool, object, object_offset, allocated, sites, sorted_sites })
    }
    /// Returns the size and alignment of an object, without its guards.
    pub fn object(&self) -> Layout {
        self.object
    }
    /// Returns the underlying pool, which has counters.
    pub fn pool(&self) -> &IndexPool<A> {
        &self.pool
    }

    fn call_site_number(&mut self, site: &'static Location<'static>) -> Result<u32, Refused> {
        let place = match self.sorted_sites.binary_search_by_key(&site, |number| self.sites[*number as usize])
        {
            Ok(place) => return Ok(self.sorted_sites[place]),
            Err(place) => place,
        };
        let error = |_| Refused::Memory { bytes: size_of::<usize>() };
        self.sites.try_reserve(1).map_err(error)?;
        self.sorted_sites.try_reserve(1).map_err(error)?;
        let number = self.sites.len() as u32;
        self.sites.push(site);
        self.sorted_sites.insert(place, number);
        Ok(number)
    }
    fn index(&self, object: NonNull<u8>) -> Result<u32, BadFree> {
        let address = object.addr().get();
        let block = address.wrapping_sub(self.object_offset);
        self.pool.index_of(block).map_err(|error| match error {
            BadFree::Interior { slot, .. } => BadFree::Interior { address, slot },
            _ => BadFree::Foreign { address },
        })
    }
    fn block(&self, index: u32) -> NonNull<u8> {
        self.pool.address(index)
    }
    fn mark(&self, index: u32, head: u32) -> u32 {
        let state = if bits::get(&self.allocated, index as usize) { ALLOCATED_MARK } else { FREE_MARK };
        state ^ index ^ head.rotate_left(16)
    }
    /// # Safety
    /// The block must belong to the caller.
    unsafe fn write_guard_marks(&self, block: NonNull<u8>, index: u32, head: u32) {
        let mark = self.mark(index, head);
        // SAFETY: all addresses are within a block of `front + size + MARK` bytes, which belongs to the caller.
        unsafe {
            block.cast::<u32>().write_unaligned(head);
            block.add(self.object_offset - MARK).cast::<u32>().write_unaligned(mark);
            block.add(self.object_offset + self.object.size()).cast::<u32>().write_unaligned(mark);
        }
    }
    /// Checks that block `index`, which must be initialised, was not changed by other code.
    fn check_guard_marks(&self, index: u32) -> Result<(), Overrun> {
        let (block, size) = (self.block(index), self.object.size());
        let address = block.addr().get() + self.object_offset;
        // SAFETY: the address is within the block, and `write_guard_marks` wrote it when the block was first used.
        let word_at = |offset: usize| unsafe { block.add(offset).cast::<u32>().read_unaligned() };
        let expected = self.mark(index, word_at(0));
        for (offset, side) in
            [(self.object_offset - MARK, Side::Before), (self.object_offset + size, Side::After)]
        {
            let value = word_at(offset);
            if value != expected {
                return Err(Overrun { address, side, found: value, written: expected });
            }
        }
        if bits::get(&self.allocated, index as usize) {
            return Ok(());
        }
        // SAFETY: the object is free, and `free` filled it.
        let bytes = unsafe { core::slice::from_raw_parts(block.add(self.object_offset).as_ptr(), size) };
        let Some(damaged) = bytes.iter().position(|&byte| byte != POISON) else { return Ok(()) };
        let mut value = [POISON; MARK];
        let start = damaged.min(size.saturating_sub(MARK));
        value[..size.min(MARK)].copy_from_slice(&bytes[start..(start + MARK).min(size)]);
        let (value, expected) = (u32::from_ne_bytes(value), u32::from_ne_bytes([POISON; MARK]));
        Err(Overrun { address, side: Side::Inside, found: value, written: expected })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

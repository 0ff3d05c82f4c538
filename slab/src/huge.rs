//! Memory above the largest block of pages: each piece a mapping of its own, straight from the system.
//!
//! A block of pages has 4 MiB at most, and is aligned to no more. What a program asks for beyond that is rare, lives long
//! and is touched for much longer than two system calls take; so it is mapped when it is asked for and unmapped when it
//! is freed, and where it grows the system moves its pages and not its bytes (`mremap`). The kernel's `kmalloc` ends at
//! 4 MiB and leaves the rest to `vmalloc`; jemalloc and dlmalloc map such requests one by one, too.
//!
//! Pieces are found by address in a sorted table, so that a free of a foreign address, or of one inside a piece, is told
//! from a free of a piece.
//!
//! # Invariants
//!
//! * A piece is in the table from before its address is handed out until after it is taken back, and is mapped as long.
//! * The table lies in memory of its own: nothing here calls the global heap.
//! * A piece is mapped and unmapped without it; only one that is resized is so under it, because
//!   meanwhile nobody may find it.

use crate::corruption::CorruptionKind;
use crate::error::AllocError;
use crate::faults::{Faults, RESERVE};
use crate::subsystem::Core;
use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use serde::Serialize;
use uslab_buddy::region::{Door, HugePages, Region, Reserved};
use uslab_buddy::{Order, PAGE_SIZE};
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Rank};
use uslab_magazine::{Operation, Paths};

/// The most pieces: about as many mappings as Linux lets a process have (`vm.max_map_count`).
const MOST: usize = if cfg!(loom) { 1 } else { 1 << 16 };

/// No process has so many bytes of addresses: it need not be asked for.
const ADDRESSES: usize = (1_u64 << if usize::BITS == 64 { 47 } else { 30 }) as usize;

/// Whether memory for `layout` is above the largest block.
pub(crate) const fn is_huge(layout: Layout) -> bool {
    layout.size() > Order::MAX.bytes() || layout.align() > Order::MAX.bytes()
}

/// Numbers of the memory above the largest block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HugeInfo {
    /// Pieces handed out.
    pub allocs: u64,
    /// Pieces taken back.
    pub frees: u64,
    /// Pages of the pieces in use.
    pub pages: u64,
    /// Both: the system was asked each time.
    pub paths: Paths,
}

/// All pieces. See the [module](self).
#[derive(Debug)]
pub(crate) struct Huge {
    door: Door,
    huge_pages: HugePages,
    faults: Faults,
    table: ForkMutex<Table>,
    allocs: Counter,
    frees: Counter,
}

/// The pieces in use, by address.
///
/// # Invariants
/// The first `len` places of the memory hold a region each, ascending and apart.
#[derive(Debug)]
pub(crate) struct Table {
    memory: Reserved,
    len: usize,
}

impl Deref for Table {
    type Target = [Region];
    fn deref(&self) -> &[Region] {
        // SAFETY: by the invariant; the memory is aligned to 128 bytes, and stays.
        unsafe { core::slice::from_raw_parts(self.memory.base().cast().as_ptr(), self.len) }
    }
}
impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut [Region] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.base().cast().as_ptr(), self.len) }
    }
}

impl Table {
    /// Where the piece at `address` is; else whether the address lies in one.
    fn find(&self, address: usize) -> Result<usize, CorruptionKind> {
        let above = self.partition_point(|piece| piece.base().addr().get() <= address);
        let Some(piece) = above.checked_sub(1).map(|at| &self[at]) else {
            return Err(CorruptionKind::Foreign);
        };
        match address - piece.base().addr().get() {
            0 => Ok(above - 1),
            inside if inside < piece.bytes() => Err(CorruptionKind::Interior),
            _ => Err(CorruptionKind::Foreign),
        }
    }

    /// Makes room for one piece more; `false` if there is none.
    fn reserve(&self) -> bool {
        self.memory.commit(&Operation::new(), (self.len + 1) * size_of::<Region>())
    }

    /// # Safety
    /// There is room for one piece more.
    unsafe fn insert(&mut self, piece: Region) {
        let at = self.partition_point(|other| other.base() < piece.base());
        // SAFETY: by contract there is room; the regions from `at` on move up by one, and a new one takes the place.
        unsafe {
            let place = self.memory.base().cast::<Region>().add(at);
            place.add(1).copy_from(place, self.len - at);
            place.write(piece);
        }
        self.len += 1;
    }

    fn remove(&mut self, at: usize) -> Region {
        assert!(at < self.len);
        self.len -= 1;
        // SAFETY: a region is at `at`; those behind it move down by one, into its place.
        unsafe {
            let place = self.memory.base().cast::<Region>().add(at);
            let piece = place.read();
            place.copy_from(place.add(1), self.len - at);
            piece
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        while self.len > 0 {
            drop(self.remove(self.len - 1));
        }
    }
}

impl Huge {
    /// `None` if the address space of the table is refused.
    pub(crate) fn new(door: Door, huge_pages: HugePages, faults: &Faults) -> Option<Self> {
        let memory = Reserved::new(MOST * size_of::<Region>(), door, faults, RESERVE)?;
        Some(Self {
            door,
            huge_pages,
            faults: faults.clone(),
            table: ForkMutex::new(Rank::Huge, Table { memory, len: 0 }),
            allocs: Counter::new(0),
            frees: Counter::new(0),
        })
    }

    pub(crate) fn info(&self) -> HugeInfo {
        let pages = self.table.lock().iter().map(|piece| (piece.bytes() / PAGE_SIZE) as u64).sum();
        let (allocs, frees) = (self.allocs.get(), self.frees.get());
        HugeInfo { allocs, frees, pages, paths: Paths { commit: allocs + frees, ..Paths::default() } }
    }

    /// Whether the table is as it should be.
    pub(crate) fn agrees(&self) -> bool {
        let table = self.table.lock();
        let end = |piece: &Region| piece.base().addr().get() + piece.bytes();
        table.is_sorted_by(|low, high| end(low) <= high.base().addr().get())
            && table.len() as u64 == self.allocs.get() - self.frees.get()
    }

    /// What a fork waits for.
    pub(crate) fn table(&self) -> &ForkMutex<Table> {
        &self.table
    }

    fn map(&self, layout: Layout) -> Option<NonNull<u8>> {
        let piece = Region::committed(layout.size(), layout.align(), self.door, &self.faults)?;
        piece.advise(self.huge_pages);
        let base = piece.base();
        let mut table = self.table.lock();
        if !table.reserve() {
            drop(table);
            return None;
        }
        // SAFETY: room was made.
        unsafe { table.insert(piece) };
        self.allocs.add(1);
        Some(base)
    }

    /// Bytes of the piece at `memory`.
    fn bytes(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let table = self.table.lock();
        table.find(memory.addr().get()).map(|at| table[at].bytes())
    }

    fn unmap(&self, memory: NonNull<u8>) -> Result<(), CorruptionKind> {
        let mut table = self.table.lock();
        let piece = table.find(memory.addr().get()).map(|at| table.remove(at))?;
        self.frees.add(1);
        drop(table);
        drop(piece);
        Ok(())
    }

    fn resize(&self, memory: NonNull<u8>, size: usize, may_move: bool) -> Option<NonNull<u8>> {
        let mut table = self.table.lock();
        let at = table.find(memory.addr().get()).ok()?;
        if !table[at].resize(size, may_move) {
            return None;
        }
        let base = table[at].base();
        if base != memory {
            let piece = table.remove(at);
            // SAFETY: one was just removed.
            unsafe { table.insert(piece) };
        }
        Some(base)
    }
}

impl Core {
    /// Memory for a layout that [is huge](is_huge), zero.
    #[cold]
    pub(crate) fn alloc_huge(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        if layout.size() >= ADDRESSES || layout.align() >= ADDRESSES {
            return Err(AllocError::TooLarge);
        }
        let map = || self.huge.map(layout);
        let memory = map().or_else(|| {
            // What is kept without being used may be what is missing.
            self.press(&Operation::new(), None);
            self.ground.pages.release();
            map()
        });
        #[cfg(not(any(loom, shuttle)))]
        let memory = memory.or_else(|| {
            // Or it is addresses that are missing, of which pages have more than they use.
            self.give_up_addresses(Some(layout.size().saturating_add(layout.align())));
            map()
        });
        memory.ok_or(AllocError::Refused { bytes: layout.size() })
    }

    /// Makes the piece at `memory` `size` bytes long; it may move if an alignment to pages is enough. `None`, with nothing
    /// changed, if that cannot be done.
    #[cold]
    pub(crate) fn resize_huge(&self, memory: NonNull<u8>, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.huge.resize(memory, size, align <= PAGE_SIZE)
    }

    /// Takes back what lies in no page of this subsystem.
    #[cold]
    pub(crate) fn free_huge(&self, memory: NonNull<u8>) {
        if let Err(kind) = self.huge.unmap(memory) {
            self.refuse(kind, memory);
        }
    }

    #[cold]
    pub(crate) fn size_of_huge(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        self.huge.bytes(memory)
    }
}

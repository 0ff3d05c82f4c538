//! Memory above the largest block of pages: each piece a mapping of its own.
//!
//! A block of pages has 4 MiB at most, and is aligned to no more. What a program asks for beyond that is mapped when it is asked
//! for, and where it grows the system moves its pages and not its bytes (`mremap`). The kernel's `kmalloc` ends at 4 MiB and
//! leaves the rest to `vmalloc`; jemalloc and dlmalloc map such requests one by one, too.
//!
//! Pieces are found by address in a sorted table, so that a free of a foreign address, or of one inside a piece, is told
//! from a free of a piece.
//!
//! # Freed mappings
//!
//! To unmap a piece is cheap; to touch the next one is not, because the system clears each page anew: a program that replaces
//! buffers of 5 to 25 MiB spends nine tenths of its time there. So freed pieces are kept for a while, with their contents. The
//! smallest that holds a request serves it. What is left of it by more than an eighth of the request is cut off, and stays;
//! less than that goes along, so that no crumbs remain. Adjacent ones are joined.
//!
//! As many bytes are kept as are in use, at least a quarter of [`Config::huge_cache`](crate::Config::huge_cache) and at most all
//! of it ([`HUGE_CACHE`]); those that have not been of use for longest go first. Where addresses are limited (`RLIMIT_AS`), no
//! more than a quarter of those that are left. All go
//!
//! * after two reaping intervals without use, also when the subsystem is [reaped](crate::Subsystem::reap) by hand;
//! * when memory is short, or the system refuses a mapping or a page;
//! * by [`shrink`](crate::Subsystem::shrink) and [`Uslab::release`](crate::Uslab::release).
//!
//! glibc keeps freed pieces of up to 32 MiB in its heap from the second one on (its `mmap` threshold follows what is freed), and
//! gives back what lies at its top above twice that size; gperftools keeps all; mimalloc keeps them for 10 ms and more; jemalloc
//! keeps none above 8 MiB (`oversize_threshold`).
//!
//! Memory that is to be zero is cleared where most of it was touched, and given back to the system where most of it was not
//! ([`Region::clear`]): a page fault costs several times as much as clearing a page that is there, and a table that is hardly used
//! should not be backed as a whole by being cleared.
//!
//! Memory that is had as a whole ([`Backend::Heap`]) is never kept.
//!
//! # Limits
//!
//! Where the pages [are limited](uslab_buddy::PageConfig::limit) each mapping is [charged](uslab_buddy::PageAllocator::charge) to
//! them before it is made and until it has gone, kept ones too: both together have no more than the limit. One that has no room is
//! refused: for who [may reclaim](uslab_buddy::Gfp::may_reclaim) once all that is not in use went back and shrinkers have dropped what
//! they can, for others once freed mappings did.
//!
//! # Invariants
//!
//! * A piece is in the table from before its address is handed out until after it is taken back, and is mapped as long. A freed
//!   one is among those kept, or nobody's any more. Both change under one lock.
//! * The table lies in memory of its own, and the list of freed pieces is made with the subsystem: no operation here calls the
//!   global heap.
//! * A piece is mapped and unmapped without the lock; only one that is resized is so under it, because meanwhile nobody may
//!   find it.

mod freed;

use crate::debug::corruption::CorruptionKind;
use crate::debug::faults::{Faults, RESERVE};
use crate::debug::harden::Mappings;
use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use freed::Freed;
use uslab_buddy::region::{Backend, HugePages, Region, Reservation, Reserved, Uncommitted, address_limit};
use uslab_buddy::{Order, PAGE_SIZE};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{AtomicBool, Counter, Rank, planted};
use uslab_magazine::{Operation, Paths};

/// The most pieces: about as many mappings as Linux lets a process have (`vm.max_map_count`).
const MOST: usize = if cfg!(loom) { 1 } else { 1 << 16 };

/// Bytes of freed mappings that are kept by default.
///
/// Measured with twenty live buffers of 5 to 25 MiB, 300 MiB in all, 2,000 times one of them replaced and each page touched:
/// 16.2 s without it (385 MiB at the peak), 6.0 s with 64 MiB (458), 2.3 s with 128 (502), 0.9 s with 192 (531), 0.5 s with 256
/// (518), and no less with more; glibc 1.4 s (485), gperftools 0.8 s (502).
pub const HUGE_CACHE: usize = 256 << 20;

/// The part of what may be kept that is, however little is in use.
const LEAST: usize = 4;

/// No process has so many bytes of addresses: it need not be asked for.
pub(crate) const ADDRESSES: usize = (1_u64 << if usize::BITS == 64 { 47 } else { 30 }) as usize;

/// Whether memory for `layout` is above the largest block.
pub(crate) const fn is_huge(layout: Layout) -> bool {
    layout.size() > Order::MAX.bytes() || layout.align() > Order::MAX.bytes()
}

/// Numbers of the memory above the largest block.
///
/// ```
/// use std::alloc::Layout;
/// use uslab::{Config, Gfp, Malloc, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let malloc = Malloc::new(&subsystem)?;
/// let table = malloc.alloc_block(Layout::from_size_align(8 << 20, 4096)?, Gfp::KERNEL)?;
/// assert_eq!(subsystem.info().huge.pages, 2048);
/// drop(table);
/// let huge = subsystem.info().huge;
/// assert_eq!((huge.allocs, huge.frees, huge.pages), (1, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct HugeInfo {
    /// Pieces handed out.
    pub allocs: u64,
    /// Pieces taken back.
    pub frees: u64,
    /// Pages of the pieces in use.
    pub pages: u64,
    /// Pages of freed mappings that are kept.
    pub cached_pages: u64,
    /// Of `allocs`, those that a freed mapping served.
    pub reused: u64,
    /// Mappings, or parts of some, that went back to the system.
    pub unmapped: u64,
    /// Both: `pages` where a freed mapping was taken or kept, `commit` where the system was asked.
    pub paths: Paths,
}

/// All pieces. See the [module](self).
#[derive(Debug)]
pub(crate) struct Huge {
    backend: Backend,
    huge_pages: HugePages,
    /// Bytes of the guard at the end of a piece, and the most pieces that have one.
    guard: usize,
    guards: usize,
    faults: Faults,
    /// The most bytes of freed mappings.
    keep: usize,
    /// True if addresses were limited (`RLIMIT_AS`) when that was last known. Frees do not ask: a sandbox may end the program for that.
    limited: AtomicBool,
    pieces: ForkMutex<Pieces>,
    /// Operations for which the system was asked.
    asked: Counter,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Pieces {
    used: Table,
    freed: Freed,
    /// Pages of those in use.
    pages: u64,
    allocs: u64,
    frees: u64,
    reused: u64,
    unmapped: u64,
    resting: Resting,
}

fn pages_of(piece: &Region) -> u64 {
    (piece.bytes() / PAGE_SIZE) as u64
}

impl Pieces {
    /// Makes room for one piece more in use; `false` if there is none.
    fn reserve(&self) -> bool {
        self.used.reserve()
    }
    /// # Safety
    /// There is room for one piece more.
    unsafe fn insert(&mut self, piece: Region) {
        self.pages += pages_of(&piece);
        // SAFETY: passed on.
        unsafe { self.used.insert(piece) };
    }
    fn remove(&mut self, at: usize) -> Region {
        let piece = self.used.remove(at);
        self.pages -= pages_of(&piece);
        piece
    }
}

/// Freed pieces whose addresses nobody gets for a while: an access is a fault.
#[derive(Debug)]
struct Resting {
    /// None where nothing rests: they do not belong on the stack of whoever makes them.
    regions: Box<[Option<Region>]>,
    next: usize,
}

/// The most of them.
const RESTING: usize = 64;

impl Resting {
    /// One more; the oldest, if there is no place for so many.
    fn put(&mut self, region: Region) -> Option<Region> {
        self.next = (self.next + 1) % RESTING;
        self.regions[self.next].replace(region)
    }
    fn pop(&mut self) -> Option<Region> {
        self.regions.iter_mut().find_map(Option::take)
    }
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
    /// Bytes of addresses of its table.
    pub(crate) const TABLE_BYTES: usize = (MOST * size_of::<Region>()).next_multiple_of(PAGE_SIZE);

    /// Keeps up to `keep` bytes of freed mappings. `None` if the address space of the table is refused. With `guards` a page behind each piece, of so many, cannot be touched, nor, for a while, what is freed.
    pub(crate) fn new(
        addresses: &mut Reservation,
        huge_pages: HugePages,
        keep: usize,
        guards: usize,
    ) -> Option<Self> {
        // Of a large reservation no limit takes a part that matters.
        let limited = addresses.is_empty() && address_limit().is_some();
        let none = Uncommitted::NoAccess;
        let memory = Reserved::cut_from(addresses, Self::TABLE_BYTES, none, RESERVE)?;
        let pieces = Pieces {
            used: Table { memory, len: 0 },
            freed: Freed::new(),
            pages: 0,
            allocs: 0,
            frees: 0,
            reused: 0,
            unmapped: 0,
            resting: Resting {
                regions: (0..if guards > 0 { RESTING } else { 0 }).map(|_| None).collect(),
                next: 0,
            },
        };
        Some(Self {
            backend: addresses.backend,
            huge_pages,
            guard: if guards > 0 { PAGE_SIZE } else { 0 },
            guards,
            faults: addresses.faults.clone(),
            keep,
            limited: AtomicBool::new(limited),
            pieces: ForkMutex::new(Rank::Huge, pieces),
            asked: Counter::new(0),
        })
    }

    pub(crate) fn info(&self) -> HugeInfo {
        let pieces = self.pieces.lock();
        let Pieces { allocs, frees, pages, reused, unmapped, .. } = *pieces;
        let cached_pages = (pieces.freed.bytes() / PAGE_SIZE) as u64;
        drop(pieces);
        // Behind the lock the system may have been asked once more.
        let commit = self.asked.get().min(allocs + frees);
        let paths = Paths { pages: allocs + frees - commit, commit, ..Paths::default() };
        HugeInfo { allocs, frees, pages, cached_pages, reused, unmapped, paths }
    }

    /// Bytes of all mappings, those kept included.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let pieces = self.pieces.lock();
        pieces.pages as usize * PAGE_SIZE + pieces.freed.bytes()
    }
    /// Pieces that came back so far, and mappings that went back to the system: as long as this stays, a reap finds nothing new.
    pub(crate) fn changes(&self) -> u64 {
        let pieces = self.pieces.lock();
        pieces.frees + pieces.unmapped
    }

    /// Whether all pieces are as they should be: in order, apart from each other, and as many as were counted.
    pub(crate) fn agrees(&self) -> bool {
        let pieces = self.pieces.lock();
        let table = &pieces.used;
        let end = |piece: &Region| piece.base().addr().get() + piece.bytes();
        let apart = |low: &Region, high: &Region| end(low) <= high.base().addr().get();
        let freed_apart = |freed: &Region| {
            let others = pieces.freed.iter().filter(|other| other.base() != freed.base());
            table.iter().chain(others).all(|other| apart(other, freed) || apart(freed, other))
        };
        table.is_sorted_by(apart)
            && pieces.freed.iter().all(freed_apart)
            && pieces.freed.iter().map(Region::bytes).sum::<usize>() == pieces.freed.bytes()
            && table.len() as u64 == pieces.allocs - pieces.frees
            && table.iter().map(pages_of).sum::<u64>() == pieces.pages
    }

    /// What a fork waits for.
    pub(crate) fn pieces(&self) -> &ForkMutex<Pieces> {
        &self.pieces
    }

    /// A freed mapping that holds `layout`, its bytes unspecified or zero; or the bytes of one that could not be listed again, and went
    /// to the system.
    pub(crate) fn reuse(&self, layout: Layout, zero: bool) -> Option<Result<NonNull<u8>, usize>> {
        // With guards none is kept but what could not be unmapped.
        let mut piece = if self.guard == 0 { self.pieces.lock().freed.take(layout)? } else { return None };
        if zero {
            // All of it: its user may grow in place.
            let bytes = piece.bytes();
            piece.clear(bytes);
        }
        let bytes = piece.bytes();
        Some(self.hand_out(piece, true).ok_or(bytes))
    }

    /// From now on, frees see how many addresses are left.
    pub(crate) fn heed_limit(&self) {
        // Relaxed: a hint.
        self.limited.store(true, Relaxed);
    }

    /// Bytes that a new mapping for `layout` takes.
    pub(crate) fn bytes_for(&self, layout: Layout) -> usize {
        (layout.size() + self.guard).max(1).next_multiple_of(PAGE_SIZE)
    }
    /// True if one more piece may have a guard.
    pub(crate) fn may_guard(&self) -> bool {
        self.pieces.lock().used.len() < self.guards
    }
    /// A new mapping, zero. It has a guard as long as there are `mappings` for them.
    pub(crate) fn map(&self, layout: Layout, mappings: &Mappings) -> Option<NonNull<u8>> {
        let bytes = layout.size().checked_add(self.guard)?;
        let piece = Region::committed(bytes, layout.align(), self.backend, &self.faults)?;
        piece.advise(self.huge_pages);
        let end = piece.bytes();
        // SAFETY: no other thread knows it yet.
        if mappings.are_there() && self.may_guard() && !unsafe { piece.protect(end - self.guard..end, false) }
        {
            mappings.refuse();
        }
        let memory = self.hand_out(piece, false)?;
        self.asked.add(1);
        Some(memory)
    }

    /// Lists a piece that nobody knows yet.
    fn hand_out(&self, piece: Region, reused: bool) -> Option<NonNull<u8>> {
        let base = piece.base();
        let mut pieces = self.pieces.lock();
        if !pieces.reserve() {
            pieces.unmapped += u64::from(reused);
            drop(pieces);
            return None;
        }
        // SAFETY: room was made.
        unsafe { pieces.insert(piece) };
        pieces.allocs += 1;
        pieces.reused += u64::from(reused);
        Some(base)
    }

    /// Bytes of the piece at `memory`.
    pub(crate) fn bytes(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let pieces = self.pieces.lock();
        pieces.used.find(memory.addr().get()).map(|at| pieces.used[at].bytes() - self.guard)
    }

    /// Takes a piece back. Returns the bytes that went to the system.
    pub(crate) fn free(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        // Relaxed: a hint.
        let limit = self.limited.load(Relaxed).then(address_limit).flatten();
        let mut pieces = self.pieces.lock();
        let at = pieces.used.find(memory.addr().get())?;
        planted!("a mapping is found in one lock hold and removed in the next" => {
            drop(pieces);
            pieces = self.pieces.lock();
        });
        let piece = pieces.remove(at);
        pieces.frees += 1;
        if self.guard > 0 && limit.is_none() {
            drop(pieces);
            // SAFETY: nobody uses it any more. What stays accessible is given back all the same.
            unsafe { piece.decommit(0..piece.bytes()) };
            let bytes = piece.bytes();
            pieces = self.pieces.lock();
            // Unmapped without the lock.
            let gone = pieces.resting.put(piece);
            pieces.unmapped += u64::from(gone.is_some());
            drop(pieces);
            gone.into_iter().for_each(|gone| _ = self.unmap(gone));
            self.asked.add(1);
            return Ok(bytes);
        }
        let keep = self.keep.min((pieces.pages as usize * PAGE_SIZE).max(self.keep / LEAST));
        // What would be left of the addresses if nothing were kept.
        let left = |(limit, has): (usize, usize)| {
            limit.saturating_sub(has).saturating_add(pieces.freed.bytes() + piece.bytes())
        };
        let keep = limit.map_or(keep, |limit| keep.min(left(limit) / 4)) / PAGE_SIZE * PAGE_SIZE;
        let fits = piece.is_divisible() && piece.bytes() <= keep;
        let back = if fits && self.guard == 0 { pieces.freed.put(piece) } else { Some(piece) };
        pieces.unmapped += u64::from(back.is_some());
        drop(pieces);
        let back = back.map_or(0, |back| {
            let all = back.bytes();
            let unmapped = self.unmap(back).unwrap_or_else(|instead| instead);
            if self.guard > 0 { all } else { unmapped }
        });
        let bytes = self.unmap_each(|freed| freed.pop_above(keep)) + back;
        if bytes > 0 {
            self.asked.add(1);
        }
        Ok(bytes)
    }

    /// Unmaps a freed piece. Returns its bytes.
    ///
    /// # Errors
    /// The system refuses: it is listed among the kept ones, to be tried again with these. Instead of it one of them may have gone, of so many
    /// bytes.
    fn unmap(&self, piece: Region) -> Result<usize, usize> {
        let bytes = piece.bytes();
        match piece.unmap() {
            Err(piece) if piece.is_divisible() => {
                let mut pieces = self.pieces.lock();
                let gone = pieces.freed.put(piece);
                pieces.unmapped -= u64::from(gone.is_none());
                drop(pieces);
                Err(gone.as_ref().map_or(0, Region::bytes))
            }
            _ => Ok(bytes),
        }
    }
    /// Unmaps what `pop` takes from the freed mappings, each without the lock, until the system refuses one. Returns bytes that are charged
    /// no more.
    fn unmap_each(&self, mut pop: impl FnMut(&mut Freed) -> Option<Region>) -> usize {
        let mut next = || {
            let mut pieces = self.pieces.lock();
            let region = pop(&mut pieces.freed)?;
            pieces.unmapped += 1;
            Some(region)
        };
        let mut bytes = 0;
        while let Some(region) = next() {
            match self.unmap(region) {
                Ok(unmapped) => bytes += unmapped,
                Err(instead) => {
                    bytes += instead;
                    break;
                }
            }
        }
        // Next to guards no freed piece is charged.
        if self.guard > 0 { 0 } else { bytes }
    }

    /// Unmaps all freed mappings, those whose addresses rest included. Returns bytes that are charged no more.
    pub(crate) fn release(&self) -> usize {
        let resting = || {
            let mut pieces = self.pieces.lock();
            let region = pieces.resting.pop();
            pieces.unmapped += u64::from(region.is_some());
            region
        };
        while let Some(Ok(_)) = resting().map(|region| self.unmap(region)) {}
        self.unmap_each(|freed| freed.pop_above(0))
    }

    /// Ends a reaping interval: unmaps what was freed before the last one, and not of use since. Returns bytes.
    pub(crate) fn end_interval(&self) -> usize {
        self.pieces.lock().freed.end_interval();
        self.unmap_each(Freed::pop_idle)
    }

    pub(crate) fn resize(&self, memory: NonNull<u8>, size: usize, may_move: bool) -> Option<NonNull<u8>> {
        let mut pieces = self.pieces.lock();
        let at = pieces.used.find(memory.addr().get()).ok().filter(|_| self.guard == 0)?;
        let before = pages_of(&pieces.used[at]);
        if !pieces.used[at].resize(size, may_move) {
            return None;
        }
        let (base, after) = (pieces.used[at].base(), pages_of(&pieces.used[at]));
        pieces.pages = pieces.pages - before + after;
        if base != memory {
            let piece = pieces.remove(at);
            // SAFETY: one was just removed.
            unsafe { pieces.insert(piece) };
        }
        Some(base)
    }
}

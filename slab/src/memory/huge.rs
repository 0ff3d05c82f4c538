//! Memory above the largest block of pages: each allocation is a separate mapping.
//!
//! A block of pages has at most 4 MiB, and is aligned to at most 4 MiB. A larger request gets a separate mapping, which
//! the code calls a *piece*. A mapping grows by `mremap`, which moves pages instead of copying bytes. The kernel's
//! `kmalloc` ends at 4 MiB and leaves larger requests to `vmalloc`. Jemalloc and dlmalloc also map each large request
//! separately.
//!
//! A sorted table finds mappings by address. A free of a foreign address, or of an address inside a mapping, is
//! therefore detected.
//!
//! # Freed mappings
//!
//! Unmapping is cheap, but the first access to a new mapping is expensive, because the system clears each of its pages.
//! A program that replaces buffers of 5 to 25 MiB spends nine tenths of its time on clearing pages. Freed mappings are
//! therefore kept for a while, together with their contents. A request gets the smallest kept mapping that is large
//! enough. If that mapping exceeds the request by more than an eighth, the surplus is cut off and kept for later
//! requests. A smaller surplus is handed out with the mapping, to avoid fragments. Adjacent freed mappings are merged.
//!
//! The kept mappings may not take more bytes than the mappings in use. Regardless of the mappings in use, a quarter of
//! [`Config::huge_cache`](crate::Config::huge_cache) may be kept. The kept mappings never exceed `huge_cache` (default
//! [`HUGE_CACHE`]). The least recently used mappings are unmapped first. If addresses are limited (`RLIMIT_AS`), the
//! kept mappings take at most a quarter of the remaining addresses. All kept mappings are unmapped in these cases:
//!
//! * after two reaping intervals in which no request used the kept mappings, also if the user calls
//!   [`reap`](crate::Subsystem::reap);
//! * if memory is short, or if the system refuses a mapping or a page;
//! * in a call of [`shrink`](crate::Subsystem::shrink) or [`Uslab::release`](crate::Uslab::release).
//!
//! Other allocators keep freed blocks differently. From the second block on, glibc keeps freed blocks of up to 32 MiB
//! in its heap, because its `mmap` threshold follows the freed sizes. glibc trims the top of the heap above twice its
//! `mmap` threshold. gperftools keeps all freed blocks, mimalloc keeps them for 10 ms or longer, and jemalloc keeps no
//! block above 8 MiB (`oversize_threshold`).
//!
//! A mapping is zeroed by clearing its pages if most of them were accessed, and by decommitting them otherwise
//! ([`Region::clear`]). A page fault costs several times as much as clearing a resident page. Clearing a sparsely used
//! mapping would make the whole mapping resident.
//!
//! Mappings of [`Backend::Heap`] are unmapped when they are freed.
//!
//! # Limits
//!
//! If the pages [are limited](uslab_buddy::PageConfig::limit), each mapping is
//! [charged](uslab_buddy::PageAllocator::charge) to the limit, even while it is only kept. The charge begins before the
//! mapping is made, and ends when it is unmapped. Pages and mappings together therefore stay within this limit. If a
//! new mapping exceeds the limit, freed mappings are unmapped before the request is refused. If the request [may
//! reclaim](uslab_buddy::Gfp::may_reclaim), all unused memory is freed and shrinkers run before the request is refused.
//!
//! # Invariants
//!
//! * A mapping exists and is in the table from before its address is handed out until after its free. A freed mapping
//!   is in the list of kept mappings, or is about to be unmapped. One lock protects both the table of mappings and the
//!   list of kept mappings.
//! * The table has separate memory, and the list of freed mappings is allocated when the subsystem is made. Operations
//!   on mappings therefore never call the global heap.
//! * The lock is not held while mappings are made and unmapped. A resize does hold the lock, because no other thread
//!   may find the mapping during the resize.

mod freed;

use crate::debug::corruption::CorruptionKind;
use crate::debug::faults::{Faults, RESERVE};
use crate::harden::Mappings;
use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use freed::Freed;
use uslab_buddy::region::{Backend, HugePages, Region, Reservation, Reserved, Uncommitted, address_limit};
use uslab_buddy::{Order, PAGE_SIZE};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{AtomicBool, Counter, Rank};
use uslab_magazine::{Operation, Paths};

/// Maximum number of mappings, about the number of mappings that Linux allows a process (`vm.max_map_count`).
const MAX_HUGE_MAPPINGS: usize = if cfg!(loom) { 1 } else { 1 << 16 };

/// Default maximum bytes of freed mappings that are kept.
///
/// The value was measured with twenty live buffers of 5 to 25 MiB (300 MiB in all). 2,000 times, the program replaced
/// one buffer and touched each of its pages. Run time and peak in MiB by kept bytes: 16.2 s without kept mappings
/// (385), 6.0 s with 64 MiB (458), 2.3 s with 128 (502), 0.9 s with 192 (531), 0.5 s with 256 (518). More kept bytes do
/// not help. glibc takes 1.4 s (485), gperftools 0.8 s (502).
pub const HUGE_CACHE: usize = 256 << 20;

/// At least the fraction `1 / MIN_KEPT_LIMIT_DIVISOR` of the limit may be kept, however few bytes are in use.
const MIN_KEPT_LIMIT_DIVISOR: usize = 4;

/// Assumed size of a process's address space in bytes; a constant avoids a system call.
pub(crate) const ADDRESSES: usize = (1_u64 << if usize::BITS == 64 { 47 } else { 30 }) as usize;

/// Returns `true` if `layout` needs more memory or alignment than the largest block has.
pub(crate) const fn exceeds_largest_block(layout: Layout) -> bool {
    layout.size() > Order::MAX.bytes() || layout.align() > Order::MAX.bytes()
}

/// Statistics of the allocations above the largest block.
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
    /// Number of allocations that exceeded the largest block.
    pub allocs: u64,
    /// Number of frees of memory above the largest block.
    pub frees: u64,
    /// Number of pages of the huge allocations in use.
    pub pages: u64,
    /// Number of pages of freed mappings that are kept for reuse.
    pub cached_pages: u64,
    /// Number of allocations that reused a freed mapping.
    pub reused: u64,
    /// Number of mappings, or parts of mappings, that were unmapped.
    pub unmapped: u64,
    /// Number of allocations and of frees that each level served. A freed mapping that is taken or kept counts as
    /// `pages`, and a system call as `commit`.
    pub paths: Paths,
}

#[derive(Debug)]
pub(crate) struct Huge {
    backend: Backend,
    huge_pages: HugePages,
    /// Size in bytes of the guard at the end of a mapping. `guards` is the maximum number of mappings with a guard.
    guard: usize,
    guards: usize,
    faults: Faults,
    /// Maximum number of bytes of freed mappings that are kept.
    max_kept_bytes: usize,
    /// True if the process's addresses were limited (`RLIMIT_AS`) at the last check. Frees do not read the limit
    /// themselves, because a sandbox may kill the program for this system call.
    limited: AtomicBool,
    pieces: ForkMutex<HugeState>,
    system_calls: Counter,
}

/// The mappings and their counts, protected by the lock.
#[derive(Debug)]
pub(crate) struct HugeState {
    used: Table,
    freed: Freed,
    pages: u64,
    allocs: u64,
    frees: u64,
    reused: u64,
    unmapped: u64,
    resting: QuarantinedRanges,
}

fn pages_of(piece: &Region) -> u64 {
    (piece.bytes() / PAGE_SIZE) as u64
}

impl HugeState {
    /// Makes room in the table for one more mapping; returns `false` if memory is short.
    fn reserve(&self) -> bool {
        self.used.reserve()
    }
    /// # Safety
    /// The table must have room for one more mapping.
    unsafe fn insert(&mut self, piece: Region) {
        self.pages += pages_of(&piece);
        // SAFETY: by contract, the table has room.
        unsafe { self.used.insert(piece) };
    }
    fn remove(&mut self, at: usize) -> Region {
        let piece = self.used.remove(at);
        self.pages -= pages_of(&piece);
        piece
    }
}

/// Freed mappings in quarantine. For a while, the addresses of these mappings are not reused, and an access to them
/// faults.
#[derive(Debug)]
struct QuarantinedRanges {
    /// The mappings in quarantine; an empty box if quarantine is disabled. The mappings are boxed to keep them off the
    /// stack.
    regions: Box<[Option<Region>]>,
    next: usize,
}

/// Maximum number of mappings in quarantine.
const MAX_QUARANTINED_PIECES: usize = 64;

impl QuarantinedRanges {
    /// Adds a freed mapping; if the ring is full, returns the oldest mapping.
    fn put(&mut self, region: Region) -> Option<Region> {
        self.next = (self.next + 1) % MAX_QUARANTINED_PIECES;
        self.regions[self.next].replace(region)
    }
    fn pop(&mut self) -> Option<Region> {
        self.regions.iter_mut().find_map(Option::take)
    }
}

/// The mappings in use, sorted by address.
///
/// # Invariants
/// The first `len` elements of the memory hold one region each, in ascending order and disjoint.
#[derive(Debug)]
pub(crate) struct Table {
    memory: Reserved,
    len: usize,
}

impl Deref for Table {
    type Target = [Region];
    fn deref(&self) -> &[Region] {
        // SAFETY: by the invariant, the first `len` places hold regions. The memory is aligned to 128 bytes, and stays
        // mapped.
        unsafe { core::slice::from_raw_parts(self.memory.base().cast().as_ptr(), self.len) }
    }
}
impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut [Region] {
        // SAFETY: by the invariant, the first `len` places hold regions. The borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.base().cast().as_ptr(), self.len) }
    }
}

impl Table {
    /// Returns the index of the mapping at `address`. The error distinguishes a foreign address from an address inside
    /// a mapping.
    fn find(&self, address: usize) -> Result<usize, CorruptionKind> {
        let next_index = self.partition_point(|piece| piece.base().addr().get() <= address);
        let Some(piece) = next_index.checked_sub(1).map(|at| &self[at]) else {
            return Err(CorruptionKind::Foreign);
        };
        match address - piece.base().addr().get() {
            0 => Ok(next_index - 1),
            inside if inside < piece.bytes() => Err(CorruptionKind::Interior),
            _ => Err(CorruptionKind::Foreign),
        }
    }

    /// Makes room for one more mapping; returns `false` if memory is short.
    fn reserve(&self) -> bool {
        self.memory.commit(&Operation::new(), (self.len + 1) * size_of::<Region>())
    }

    /// # Safety
    /// The caller must have reserved room for one more mapping.
    unsafe fn insert(&mut self, piece: Region) {
        let at = self.partition_point(|other| other.base() < piece.base());
        // SAFETY: by contract, the table has room. The regions from `at` on move up by one, and the new region takes
        // the gap.
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
        // SAFETY: place `at` has a region, and the regions after it move down by one place.
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
    /// Bytes of address space that the table of mappings reserves.
    pub(crate) const MAPPING_TABLE_BYTES: usize =
        (MAX_HUGE_MAPPINGS * size_of::<Region>()).next_multiple_of(PAGE_SIZE);

    /// Makes the allocator, which keeps up to `max_kept_bytes` bytes of freed mappings. Returns `None` if the system
    /// refuses address space for the table. If `guards` is given, at most that number of mappings are followed by an
    /// inaccessible page. The addresses of freed mappings are then not reused for a while.
    pub(crate) fn new(
        addresses: &mut Reservation,
        huge_pages: HugePages,
        max_kept_bytes: usize,
        guards: usize,
    ) -> Option<Self> {
        // An address limit does not matter within a large reservation.
        let limited = addresses.is_empty() && address_limit().is_some();
        let no_access = Uncommitted::NoAccess;
        let memory = Reserved::new_in_reservation(addresses, Self::MAPPING_TABLE_BYTES, no_access, RESERVE)?;
        let pieces = HugeState {
            used: Table { memory, len: 0 },
            freed: Freed::new(),
            pages: 0,
            allocs: 0,
            frees: 0,
            reused: 0,
            unmapped: 0,
            resting: QuarantinedRanges {
                regions: (0..if guards > 0 { MAX_QUARANTINED_PIECES } else { 0 }).map(|_| None).collect(),
                next: 0,
            },
        };
        Some(Self {
            backend: addresses.backend,
            huge_pages,
            guard: if guards > 0 { PAGE_SIZE } else { 0 },
            guards,
            faults: addresses.faults.clone(),
            max_kept_bytes,
            limited: AtomicBool::new(limited),
            pieces: ForkMutex::new(Rank::Huge, pieces),
            system_calls: Counter::new(0),
        })
    }

    pub(crate) fn info(&self) -> HugeInfo {
        let pieces = self.pieces.lock();
        let HugeState { allocs, frees, pages, reused, unmapped, .. } = *pieces;
        let cached_pages = (pieces.freed.bytes() / PAGE_SIZE) as u64;
        drop(pieces);
        // A system call that happened after the lock was released may be counted before its
        // operation.
        let commit = self.system_calls.get().min(allocs + frees);
        let paths = Paths { pages: allocs + frees - commit, commit, ..Paths::default() };
        HugeInfo { allocs, frees, pages, cached_pages, reused, unmapped, paths }
    }

    /// Number of bytes of all mappings, including kept mappings.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let pieces = self.pieces.lock();
        pieces.pages as usize * PAGE_SIZE + pieces.freed.bytes()
    }
    /// Number of frees and unmaps so far. If this number has not changed since a reap, another reap finds no more
    /// memory.
    pub(crate) fn changes(&self) -> u64 {
        let pieces = self.pieces.lock();
        pieces.frees + pieces.unmapped
    }

    /// Returns `true` if the mappings are sorted and disjoint, and their number agrees with the counters.
    pub(crate) fn agrees(&self) -> bool {
        let pieces = self.pieces.lock();
        let table = &pieces.used;
        let end = |piece: &Region| piece.base().addr().get() + piece.bytes();
        let is_below = |lower: &Region, upper: &Region| end(lower) <= upper.base().addr().get();
        let freed_apart = |freed: &Region| {
            let other_pieces = pieces.freed.iter().filter(|other| other.base() != freed.base());
            table.iter().chain(other_pieces).all(|other| is_below(other, freed) || is_below(freed, other))
        };
        table.is_sorted_by(is_below)
            && pieces.freed.iter().all(freed_apart)
            && pieces.freed.iter().map(Region::bytes).sum::<usize>() == pieces.freed.bytes()
            && table.len() as u64 == pieces.allocs - pieces.frees
            && table.iter().map(pages_of).sum::<u64>() == pieces.pages
    }

    pub(crate) fn state_lock(&self) -> &ForkMutex<HugeState> {
        &self.pieces
    }

    /// Allocates from a freed mapping. The bytes are zero if `zero` is true, and unspecified otherwise. If the mapping
    /// could not be added to the table, it was unmapped, and the error is the number of unmapped bytes.
    pub(crate) fn reuse(&self, layout: Layout, zero: bool) -> Option<Result<NonNull<u8>, usize>> {
        // If guards are on, only pieces that could not be unmapped are kept.
        let mut piece = if self.guard == 0 { self.pieces.lock().freed.take(layout)? } else { return None };
        if zero {
            // The call clears the whole piece, because its user may grow the allocation in place.
            let bytes = piece.bytes();
            piece.clear(bytes);
        }
        let bytes = piece.bytes();
        Some(self.hand_out(piece, true).ok_or(bytes))
    }

    /// Makes later frees check how many addresses `RLIMIT_AS` leaves.
    pub(crate) fn enable_address_limit_checks(&self) {
        // Relaxed: the flag is a hint.
        self.limited.store(true, Relaxed);
    }

    /// Number of bytes that a new mapping for `layout` takes.
    pub(crate) fn mapping_bytes_for(&self, layout: Layout) -> usize {
        (layout.size() + self.guard).max(1).next_multiple_of(PAGE_SIZE)
    }
    /// Returns `true` if one more mapping may get a guard.
    pub(crate) fn may_add_guard(&self) -> bool {
        self.pieces.lock().used.len() < self.guards
    }
    /// Creates a new zeroed mapping. The mapping has a guard if `mappings` permits one more.
    pub(crate) fn map(&self, layout: Layout, mappings: &Mappings) -> Option<NonNull<u8>> {
        let bytes = layout.size().checked_add(self.guard)?;
        let piece = Region::committed(bytes, layout.align(), self.backend, &self.faults)?;
        piece.advise(self.huge_pages);
        let end = piece.bytes();
        let may_guard = mappings.can_map_guard_pages() && self.may_add_guard();
        // SAFETY: no other thread knows the piece yet.
        if may_guard && !unsafe { piece.protect(end - self.guard..end, false) } {
            mappings.refuse();
        }
        let memory = self.hand_out(piece, false)?;
        self.system_calls.add(1);
        Some(memory)
    }

    /// Adds a mapping to the table, and returns its address.
    fn hand_out(&self, piece: Region, reused: bool) -> Option<NonNull<u8>> {
        let base = piece.base();
        let mut pieces = self.pieces.lock();
        if !pieces.reserve() {
            pieces.unmapped += u64::from(reused);
            drop(pieces);
            return None;
        }
        // SAFETY: `reserve` made room for one more piece.
        unsafe { pieces.insert(piece) };
        pieces.allocs += 1;
        pieces.reused += u64::from(reused);
        Some(base)
    }

    pub(crate) fn bytes(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        let pieces = self.pieces.lock();
        pieces.used.find(memory.addr().get()).map(|at| pieces.used[at].bytes() - self.guard)
    }

    /// Frees a piece. Returns the number of unmapped bytes.
    pub(crate) fn free(&self, memory: NonNull<u8>) -> Result<usize, CorruptionKind> {
        // Relaxed: the flag is a hint.
        let limit = self.limited.load(Relaxed).then(address_limit).flatten();
        let mut pieces = self.pieces.lock();
        let at = pieces.used.find(memory.addr().get())?;
        let piece = pieces.remove(at);
        pieces.frees += 1;
        if self.guard > 0 && limit.is_none() {
            drop(pieces);
            // SAFETY: the piece is no longer used. If the system refuses to make the range inaccessible, the range is
            // still decommitted.
            unsafe { piece.decommit(0..piece.bytes()) };
            let bytes = piece.bytes();
            pieces = self.pieces.lock();
            // The piece is unmapped after the lock is released.
            let expired = pieces.resting.put(piece);
            pieces.unmapped += u64::from(expired.is_some());
            drop(pieces);
            expired.into_iter().for_each(|expired| _ = self.unmap(expired));
            self.system_calls.add(1);
            return Ok(bytes);
        }
        let max_kept_bytes = self
            .max_kept_bytes
            .min((pieces.pages as usize * PAGE_SIZE).max(self.max_kept_bytes / MIN_KEPT_LIMIT_DIVISOR));
        // Number of address bytes that would be left if no freed mapping were kept.
        let remaining_bytes = |(limit, available): (usize, usize)| {
            limit.saturating_sub(available).saturating_add(pieces.freed.bytes() + piece.bytes())
        };
        let max_kept_bytes =
            limit.map_or(max_kept_bytes, |limit| max_kept_bytes.min(remaining_bytes(limit) / 4)) / PAGE_SIZE
                * PAGE_SIZE;
        let may_keep = piece.is_divisible() && piece.bytes() <= max_kept_bytes;
        let piece_to_unmap = if may_keep && self.guard == 0 { pieces.freed.put(piece) } else { Some(piece) };
        pieces.unmapped += u64::from(piece_to_unmap.is_some());
        drop(pieces);
        let piece_to_unmap = piece_to_unmap.map_or(0, |piece_to_unmap| {
            let all = piece_to_unmap.bytes();
            let unmapped = self.unmap(piece_to_unmap).unwrap_or_else(|unmapped_bytes| unmapped_bytes);
            if self.guard > 0 { all } else { unmapped }
        });
        let bytes =
            self.unmap_freed_mappings(|freed| freed.pop_if_kept_exceeds(max_kept_bytes)) + piece_to_unmap;
        if bytes > 0 {
            self.system_calls.add(1);
        }
        Ok(bytes)
    }

    /// Unmaps a freed mapping. Returns the number of bytes of the mapping.
    ///
    /// # Errors
    /// Fails if the system refuses to unmap. A mapping that could not be unmapped is kept, and a later call tries
    /// again. Instead of a mapping that cannot be unmapped, another kept mapping may have been unmapped. The error is
    /// the number of bytes that were unmapped.
    fn unmap(&self, piece: Region) -> Result<usize, usize> {
        let bytes = piece.bytes();
        match piece.unmap() {
            Err(piece) if piece.is_divisible() => {
                let mut pieces = self.pieces.lock();
                let expired = pieces.freed.put(piece);
                pieces.unmapped -= u64::from(expired.is_none());
                drop(pieces);
                Err(expired.as_ref().map_or(0, Region::bytes))
            }
            _ => Ok(bytes),
        }
    }
    /// Unmaps the freed mappings that `pop` returns, without holding the lock, until `pop` returns `None` or the system
    /// refuses. Returns the number of bytes that are no longer charged.
    fn unmap_freed_mappings(&self, mut pop: impl FnMut(&mut Freed) -> Option<Region>) -> usize {
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
                Err(unmapped_bytes) => {
                    bytes += unmapped_bytes;
                    break;
                }
            }
        }
        // With guards, freed pieces are not charged.
        if self.guard > 0 { 0 } else { bytes }
    }

    /// Unmaps all freed mappings, including mappings in quarantine. Returns the number of bytes that are no longer
    /// charged.
    pub(crate) fn release(&self) -> usize {
        let resting = || {
            let mut pieces = self.pieces.lock();
            let region = pieces.resting.pop();
            pieces.unmapped += u64::from(region.is_some());
            region
        };
        while let Some(Ok(_)) = resting().map(|region| self.unmap(region)) {}
        self.unmap_freed_mappings(|freed| freed.pop_if_kept_exceeds(0))
    }

    /// Ends a reaping interval, and unmaps mappings that were freed before the previous interval ended and not used
    /// since. Returns the number of unmapped bytes.
    pub(crate) fn end_interval(&self) -> usize {
        self.pieces.lock().freed.end_interval();
        self.unmap_freed_mappings(Freed::pop_idle_mapping)
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
            // SAFETY: a piece was just removed, so the table has room.
            unsafe { pieces.insert(piece) };
        }
        Some(base)
    }
}

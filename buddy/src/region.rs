//! Reserved address ranges: the only code of the project that talks to the OS about memory.
//!
//! Reserving takes address space and nothing else (`PROT_NONE`, no swap accounted); committing makes a part of it
//! readable and writable (pages are then backed when first touched, and zero); decommitting gives the backing back
//! and makes the part inaccessible again, so that a use after it is a fault and not a silent read of zero.
//!
//! There are three backends. [`Backend::Os`] is what ships: `mapped`, on Linux. [`Backend::Heap`] is plain heap memory behind the
//! same interface, for models (loom runs everything in one address space thousands of times) and for programs that must not
//! map. In a build with `--cfg uslab_heap`, and on other systems than Linux, `Os` is the heap, too. [`Backend::Phantom`] has no
//! memory at all: a simulator's pages are addresses.
//!
//! A refused reservation (`ulimit -v`, strict overcommit, a container) is an ordinary outcome: [`reserve_most`]
//! halves its wish until it is granted.

mod heap;
#[cfg(all(target_os = "linux", not(uslab_heap)))]
mod mapped;
mod phantom;
mod source;

use crate::PAGE_SIZE;
use crate::faults::{COMMIT, Call, DECOMMIT, Faults, Point, RESERVE};
use core::ops::Range;
use core::ptr::NonNull;
use heap::Heap;
#[cfg(not(all(target_os = "linux", not(uslab_heap))))]
use heap::Heap as Os;
#[cfg(all(target_os = "linux", not(uslab_heap)))]
use mapped::Mapped as Os;
use phantom::Addresses;
pub use source::HugePages;
use source::{Access, Source};
use uslab_magazine::Operation;
use uslab_magazine::sync::{Counter, tell};
use uslab_magazine::tracepoints::Step;

/// Whether [`Backend::Os`] reserves addresses, and not memory.
pub(crate) const MAPPED: bool = cfg!(all(target_os = "linux", not(uslab_heap)));

/// Where a region's memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The system's: `mmap` on Linux.
    #[cfg_attr(not(loom), default)]
    Os,
    /// The system's heap (`std::alloc::System`). All that is reserved is had at once, zeroed: nothing fails late, and
    /// nothing goes back before the region is dropped. Fresh pages cost nothing before they are touched where the heap
    /// maps large pieces and does not clear them itself, as on Linux.
    #[cfg_attr(loom, default)]
    Heap,
    /// Nowhere: addresses with nothing behind them, for pages that nobody looks into. What describes the pages (frames,
    /// bitmaps, magazines) is memory all the same. A region that must be written to as a whole is refused.
    Phantom(Phantom),
}

/// The right to have pages that are only addresses ([`Backend::Phantom`]). They cost nothing but their frames: a simulator of
/// gigabytes runs in megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phantom(());

impl Phantom {
    /// # Safety
    /// Nobody ever reads or writes memory of an allocator that is made through the result or a copy of it. That rules out,
    /// on such an allocator: bytes of blocks ([`PageBlock::bytes`](crate::PageBlock::bytes) and the like),
    /// [`Gfp::ZERO`](crate::Gfp::ZERO), objects with constructors, typed objects, and growing an allocation. Safe code that
    /// could do any of these must not get hold of it.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl Backend {
    /// Where what describes the pages comes from: always memory.
    pub(crate) fn of_tables(self) -> Self {
        match self {
            Self::Phantom(_) => Self::default(),
            backend => backend,
        }
    }
}

/// What may be done with memory that is reserved but not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncommitted {
    /// Nothing: any access is a fault.
    NoAccess,
    /// Reading, which finds zeros and backs nothing.
    ReadsZero,
}

/// A reserved range of addresses.
///
/// # Invariants
/// `base` is aligned as asked; `base..base + bytes` belongs to this value from `reserve` to drop; `bytes` is a
/// multiple of the page size, and changes by one thread at a time ([`cut`](Region::cut), [`grow`](Region::grow)).
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: Counter,
    uncommitted: Uncommitted,
    backing: Backing,
    faults: Faults,
}

#[derive(Debug)]
enum Backing {
    Os(Os),
    Heap(Heap),
    Phantom(Addresses, Phantom),
}

/// `$call` of the source behind `$backing`.
macro_rules! source {
    ($backing:expr, $source:ident => $call:expr) => {
        match $backing {
            Backing::Os($source) => $call,
            Backing::Heap($source) => $call,
            Backing::Phantom($source, _) => $call,
        }
    };
}

// SAFETY: the range is owned by the value; the methods only change its protection or hand out addresses.
unsafe impl Send for Region {}
// SAFETY: as above; `commit` is idempotent and `decommit` puts the exclusion on its caller.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` bytes (rounded up to pages) at a multiple of `align` (a power of two), or `None` when
    /// refused.
    ///
    /// Costs one or two system calls on [`Backend::Os`].
    pub fn reserve(
        bytes: usize,
        align: usize,
        uncommitted: Uncommitted,
        backend: Backend,
        faults: &Faults,
    ) -> Option<Self> {
        if faults.fires(Call::of(RESERVE, bytes)) {
            return None;
        }
        Self::new(bytes, align, uncommitted, uncommitted.access(), backend, faults)
    }

    /// A region that is committed as a whole, and zero: what [`reserve`](Self::reserve) and [`commit`](Self::commit) would
    /// make, in one step. The system may refuse it as more memory than there is.
    pub fn committed(bytes: usize, align: usize, backend: Backend, faults: &Faults) -> Option<Self> {
        if faults.fires(Call::of(RESERVE, bytes)) || faults.fires(Call::of(COMMIT, bytes)) {
            return None;
        }
        Self::new(bytes, align, Uncommitted::NoAccess, Access::ReadWrite, backend, faults)
    }

    /// As [`reserve`](Self::reserve), at a multiple of `apart`, a power of two, of which none is near others' mappings: so addresses behind
    /// the region are likely free, and it can [grow](Self::grow) up to `apart`. `None`, too, on other backends than [`Backend::Os`].
    ///
    /// Costs three system calls, and one for each place that is taken.
    pub fn apart(bytes: usize, apart: usize, uncommitted: Uncommitted, faults: &Faults) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        if faults.fires(Call::of(RESERVE, bytes)) {
            return None;
        }
        let (base, os) = Os::apart(bytes, apart.max(PAGE_SIZE), uncommitted.access())?;
        let (bytes, backing) = (Counter::new(bytes as u64), Backing::Os(os));
        Some(Self { base, bytes, uncommitted, backing, faults: faults.clone() })
    }

    fn new(
        bytes: usize,
        align: usize,
        uncommitted: Uncommitted,
        access: Access,
        backend: Backend,
        faults: &Faults,
    ) -> Option<Self> {
        let align = align.max(PAGE_SIZE);
        debug_assert!(align.is_power_of_two());
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let (base, backing) = match backend {
            Backend::Os => Os::new(bytes, align, access).map(|(base, os)| (base, Backing::Os(os)))?,
            Backend::Heap => {
                Heap::new(bytes, align, access).map(|(base, heap)| (base, Backing::Heap(heap)))?
            }
            Backend::Phantom(own) => Addresses::new(bytes, align, access)
                .map(|(base, addresses)| (base, Backing::Phantom(addresses, own)))?,
        };
        let bytes = Counter::new(bytes as u64);
        Some(Self { base, bytes, uncommitted, backing, faults: faults.clone() })
    }

    /// The first byte.
    #[inline(always)]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Bytes reserved.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.bytes.get() as usize
    }
    /// Which backend it is from.
    pub fn backend(&self) -> Backend {
        match self.backing {
            Backing::Os(_) => Backend::Os,
            Backing::Heap(_) => Backend::Heap,
            Backing::Phantom(_, own) => Backend::Phantom(own),
        }
    }

    /// Whether `range` (bytes from the base) is made of whole pages of this region.
    fn holds(&self, range: &Range<usize>) -> bool {
        range.start <= range.end
            && range.end <= self.bytes()
            && range.start.is_multiple_of(PAGE_SIZE)
            && range.end.is_multiple_of(PAGE_SIZE)
    }

    /// Makes `range` (bytes from the base, whole pages) readable and writable. What was not committed before is
    /// zero. `false` when the OS refuses (a limit on memory or on mappings) or when `range` is not in the region;
    /// nothing is lost then. Committing twice is harmless.
    ///
    /// Costs one system call on [`Backend::Os`].
    pub fn commit(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || self.faults.fires(Call::of(COMMIT, range.len())) {
            return false;
        }
        // SAFETY: `holds` checked that the range is this region's.
        source!(&self.backing, source => unsafe { source.commit(self.at(&range), range.len()) })
    }

    /// Gives the memory behind `range` (bytes from the base, whole pages) back to the OS and makes it inaccessible
    /// (or readable as zero, see [`Uncommitted`]). On [`Backend::Heap`] it becomes zero, and stays accessible.
    ///
    /// `false` when the range stays accessible: the memory is given back all the same, unless it is locked.
    ///
    /// # Safety
    /// Nobody uses the bytes in `range`, nor will until they are committed again.
    pub unsafe fn decommit(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || self.faults.fires(Call::of(DECOMMIT, range.len())) {
            return false;
        }
        let access = self.uncommitted.access();
        // SAFETY: `holds` checked that the range is this region's; the caller says that nobody uses it.
        source!(&self.backing, source => unsafe { source.decommit(self.at(&range), range.len(), access) })
    }

    /// Whether `range` (bytes from the base, whole pages that are committed) may be read and written from now on; else any access
    /// is a fault. What it holds stays. `false`, with nothing changed, when it cannot be done: on [`Backend::Heap`], which
    /// is always accessible, it cannot be taken away.
    ///
    /// Costs one system call, and up to two mappings of those that a process may have.
    ///
    /// # Safety
    /// Nobody uses the bytes in `range` while they are inaccessible.
    pub unsafe fn protect(&self, range: Range<usize>, accessible: bool) -> bool {
        let access = if accessible { Access::ReadWrite } else { Access::Nothing };
        if !self.holds(&range) {
            return false;
        }
        let (at, bytes) = (self.at(&range), range.len());
        // SAFETY: the range is this region's; by contract nobody uses it.
        source!(&self.backing, source => unsafe { source.protect(at, bytes, access) })
    }

    /// Gives the memory behind `range` back and leaves it accessible: it reads as zero. `false`, with nothing
    /// changed, when it cannot be done: always on [`Backend::Heap`].
    ///
    /// # Safety
    /// Nobody minds that the bytes become zero.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || range.is_empty() {
            return false;
        }
        // SAFETY: `holds` checked that the range is this region's; the caller gives up its contents.
        source!(&self.backing, source => unsafe { source.discard(self.at(&range), range.len()) })
    }

    /// Makes a region that is committed as a whole `bytes` bytes long (rounded up to pages). What it had stays, as far
    /// as it fits; what is new is zero. It moves only where `may_move` allows it, and is aligned to a page then. `false`,
    /// with nothing changed, when it cannot be done.
    ///
    /// Costs one system call, which copies no byte; on [`Backend::Heap`] a copy.
    pub fn resize(&mut self, bytes: usize, may_move: bool) -> bool {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(PAGE_SIZE) else { return false };
        let old = self.bytes();
        if bytes > old && self.faults.fires(Call::of(COMMIT, bytes - old)) {
            return false;
        }
        // SAFETY: the region is the memory as a whole, and borrowed exclusively.
        let moved = source!(&mut self.backing, source => unsafe {
            source.resize(self.base, old, bytes, may_move)
        });
        let Some(base) = moved else { return false };
        (self.base, self.bytes) = (base, Counter::new(bytes as u64));
        true
    }

    /// Gives the addresses from `bytes` bytes (rounded up to pages) on back to the system, if it has so many. `false`, with
    /// nothing changed, on [`Backend::Heap`].
    ///
    /// Costs one system call.
    ///
    /// # Safety
    /// Nobody uses what lies there, nor commits any of it meanwhile.
    pub unsafe fn cut(&self, bytes: usize) -> bool {
        let (Some(bytes), old) = (bytes.max(1).checked_next_multiple_of(PAGE_SIZE), self.bytes()) else {
            return false;
        };
        if bytes >= old {
            return true;
        }
        let at = self.at(&(bytes..old));
        // SAFETY: the part is this region's; by contract nobody else uses it.
        let cut = source!(&self.backing, source => unsafe { source.cut(at, old - bytes) });
        if cut {
            self.bytes.set(bytes as u64);
        }
        cut
    }

    /// Takes the addresses up to `bytes` bytes from the base (rounded up to pages), reserved as the others are, if it has fewer. `false`,
    /// with nothing changed, if the system refuses, another mapping has any of them, or on [`Backend::Heap`]. By one thread at a time,
    /// which does not [cut](Self::cut) either.
    ///
    /// Costs one system call.
    pub fn grow(&self, bytes: usize) -> bool {
        let (Some(bytes), old) = (bytes.checked_next_multiple_of(PAGE_SIZE), self.bytes()) else {
            return false;
        };
        if bytes <= old {
            return true;
        }
        let (end, access) = (self.at(&(old..old)), self.uncommitted.access());
        let grown = !self.faults.fires(Call::of(RESERVE, bytes - old))
            && source!(&self.backing, source => source.grow(end, bytes - old, access));
        if grown {
            self.bytes.set(bytes as u64);
        }
        grown
    }

    /// Makes the first `bytes` bytes of a region that is committed as a whole zero.
    ///
    /// Costs what it costs to write to them; from 4 MiB on, a system call that gives the memory back.
    ///
    /// # Panics
    /// If it has fewer bytes.
    pub fn clear(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes());
        // SAFETY: the part is this region's, which is borrowed exclusively.
        source!(&self.backing, source => unsafe { source.clear(self.base, bytes) });
    }

    /// Whether it can be [cut in two](Self::split_off), and [joined](Self::join) to another one: not on [`Backend::Heap`].
    pub fn is_divisible(&self) -> bool {
        matches!(&self.backing, Backing::Os(os) if os.part().is_some())
    }

    /// Keeps the first `bytes` bytes (rounded up to pages); the others are the result's. `None`, with nothing changed, if there
    /// are no others, and where memory is had as a whole.
    ///
    /// Costs nothing: the system does not know of regions.
    pub fn split_off(&mut self, bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let rest = self.bytes().checked_sub(bytes).filter(|rest| *rest > 0)?;
        let Backing::Os(os) = &self.backing else { return None };
        let backing = Backing::Os(os.part()?);
        let base = self.at(&(bytes..self.bytes()));
        self.bytes = Counter::new(bytes as u64);
        let bytes = Counter::new(rest as u64);
        Some(Self { base, bytes, uncommitted: self.uncommitted, backing, faults: self.faults.clone() })
    }

    /// Gives it back to the system, as dropping it does.
    ///
    /// # Errors
    /// The region, whose contents went back and whose addresses the system did not take: it would have to cut a mapping in two, and the
    /// process has as many as it may. It may be tried again. A region that is dropped loses these addresses.
    pub fn unmap(mut self) -> Result<(), Self> {
        let bytes = self.bytes();
        let refused = bytes > 0
            && (self.faults.fires(Call::of(DECOMMIT, bytes))
                // SAFETY: the region is the memory as a whole, and this its last user.
                || !source!(&mut self.backing, source => unsafe { source.free(self.base, bytes) }));
        if refused {
            return Err(self);
        }
        // A dropped region has no memory any more.
        self.bytes.set(0);
        Ok(())
    }

    /// Takes `next` over, if that begins where this one ends. [Resizing](Self::resize) it may be refused from now on: the
    /// system may take it for two.
    ///
    /// # Errors
    /// `next`, if it does not begin there, or where memory is had as a whole.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let ends_there = self.base.addr().get().checked_add(self.bytes()) == Some(next.base.addr().get());
        if !ends_there || !self.is_divisible() || !next.is_divisible() || self.uncommitted != next.uncommitted
        {
            return Err(next);
        }
        self.bytes = Counter::new((self.bytes() + next.bytes()) as u64);
        // A dropped region has no memory any more.
        next.bytes.set(0);
        Ok(())
    }

    /// Says whether the memory should be in huge pages; `false` if the system does not take the advice. Through
    /// [`Backend::Heap`] nothing changes.
    pub fn advise(&self, huge_pages: HugePages) -> bool {
        // SAFETY: the region as a whole.
        source!(&self.backing, source => unsafe { source.advise(self.base, self.bytes(), huge_pages) })
    }

    /// Where a range that the region [holds](Self::holds) begins.
    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        // SAFETY: at most one past the end of the region.
        unsafe { behind(self.base, range.start) }
    }
}

/// The address `bytes` behind `base`, which may be a [phantom's](Backend::Phantom): plain numbers where nothing is mapped, which
/// `add` is not for.
///
/// # Safety
/// Both lie in one region, or the result one past its end.
#[inline(always)]
pub unsafe fn behind(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: by contract; a region does not wrap round, so the sum is not null.
    unsafe {
        if MAPPED { base.add(bytes) } else { NonNull::new_unchecked(base.as_ptr().wrapping_add(bytes)) }
    }
}

impl Uncommitted {
    fn access(self) -> Access {
        match self {
            Self::NoAccess => Access::Nothing,
            Self::ReadsZero => Access::Read,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        // SAFETY: the region is the memory as a whole; whoever drops it is its last user.
        let _ = source!(&mut self.backing, source => unsafe { source.free(self.base, bytes) });
    }
}

/// How many bytes of addresses this process may have (`RLIMIT_AS`), and how many it has; `None` without a limit, and where
/// nobody says.
///
/// Cost: a system call; with a limit three more.
pub fn address_limit() -> Option<(usize, usize)> {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::address_limit();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return None;
}

/// Whether the system would map so many bytes of addresses now.
///
/// Cost: two system calls.
pub(crate) fn may_map(_bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::place_for(_bytes).is_some();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return true;
}

/// Bytes: the lesser of the process's limits on addresses and on memory that it may write to (`RLIMIT_AS`, `RLIMIT_DATA`); `None` without
/// either.
///
/// Cost: two system calls.
pub fn own_limit() -> Option<u64> {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::own_limit();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return None;
}

/// Whether memory that may be written to is counted against a limit although nobody has touched it, and although it was mapped
/// without a reserve (`vm.overcommit_memory` is 2). Unknown, it is not.
pub(crate) fn commits_are_counted() -> bool {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::commits_are_counted();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return false;
}

/// Halves the wish until `reserve` grants it, down to `least`.
///
/// # Errors
/// The last size that was refused.
pub fn reserve_most<T>(
    wish: usize,
    least: usize,
    mut reserve: impl FnMut(usize) -> Option<T>,
) -> Result<(usize, T), usize> {
    let mut size = wish;
    loop {
        if let Some(granted) = reserve(size) {
            return Ok((size, granted));
        }
        if size <= least {
            return Err(size);
        }
        size = (size / 2).max(least);
    }
}

/// Addresses that regions of tables are cut from: so the tables of an allocator and its pages are one reservation, and a few system
/// calls instead of as many for each.
#[derive(Debug)]
pub struct Reservation {
    left: Option<Region>,
    /// Where its memory comes from.
    pub backend: Backend,
    /// Faults to inject.
    pub faults: Faults,
}

impl Reservation {
    /// Fewer are not kept for another region.
    const LEFT: usize = 4 << 20;

    /// Without addresses: each region is a reservation.
    pub fn none(backend: Backend, faults: &Faults) -> Self {
        Self { left: None, backend: backend.of_tables(), faults: faults.clone() }
    }

    /// Reserves `tables` bytes, of which what is not committed reads as zero, and which are never in huge pages; and `pages` bytes at a
    /// multiple of `align` behind them. `None` when refused, and where memory is no mapping.
    ///
    /// Costs up to six system calls.
    pub(crate) fn with_pages(
        tables: usize,
        pages: usize,
        align: usize,
        backend: Backend,
        faults: &Faults,
    ) -> Option<(Self, Region)> {
        if backend != Backend::Os || !MAPPED || faults.fires(Call::of(RESERVE, tables + pages)) {
            return None;
        }
        let tables = tables.checked_next_multiple_of(PAGE_SIZE)?;
        let room = tables.checked_add(pages)?.checked_add(align - PAGE_SIZE)?;
        let mut left = Region::new(room, PAGE_SIZE, Uncommitted::ReadsZero, Access::Read, backend, faults)?;
        let first = (left.base.addr().get() + tables).next_multiple_of(align);
        let mut held = left.split_off(first - left.base.addr().get())?;
        drop(held.split_off(pages));
        held.uncommitted = Uncommitted::NoAccess;
        // SAFETY: reserved just now, so no other code has its address.
        let hidden = unsafe { held.protect(0..pages, false) };
        // Used sparsely: a few bytes for each page in use, and the first page of most stacks.
        left.advise(HugePages::Never);
        hidden.then_some((Self { left: Some(left), ..Self::none(backend, faults) }, held))
    }

    /// True if no addresses are left.
    pub fn is_empty(&self) -> bool {
        self.left.is_none()
    }

    /// `bytes` bytes, rounded up to pages: of these addresses while there are as many, else a reservation. See [`Region::reserve`]. What
    /// reads as zero is never in huge pages.
    pub(crate) fn reserve(&mut self, bytes: usize, uncommitted: Uncommitted) -> Option<Region> {
        let whole = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let fits = self.left.as_ref().is_some_and(|left| left.bytes() >= whole);
        if !fits {
            let region = Region::reserve(bytes, PAGE_SIZE, uncommitted, self.backend, &self.faults)?;
            if uncommitted == Uncommitted::ReadsZero {
                region.advise(HugePages::Never);
            }
            return Some(region);
        }
        if self.faults.fires(Call::of(RESERVE, bytes)) {
            return None;
        }
        let mut region = self.left.take()?;
        // The last region also gets what the pages' alignment left over.
        if region.bytes() - whole >= Self::LEFT {
            self.left = region.split_off(whole);
        }
        region.uncommitted = uncommitted;
        Some(region)
    }
}

/// A region that is committed from its start upwards, on demand: the memory of side tables.
#[derive(Debug)]
pub struct Reserved {
    region: Region,
    /// Bytes from its beginning that are known to be committed. Stale only downwards, and then a commit is repeated.
    committed: Counter,
    /// What a refusal is counted as.
    point: Point,
    /// Bytes that it may grow to.
    most: usize,
}

impl Reserved {
    /// Committed in steps of this many bytes, so that growing page by page is not a system call each.
    const STEP: usize = 64 << 10;
    /// And by as much again as is committed, up to so many bytes.
    const MOST: usize = 1 << 20;

    /// Reserves `bytes` bytes, or `None` when refused. Each commit is a call of the fault point `point`. Through
    /// [`Backend::Phantom`] it is memory from the default backend.
    pub fn new(bytes: usize, backend: Backend, faults: &Faults, point: Point) -> Option<Self> {
        Self::cut_from(&mut Reservation::none(backend, faults), bytes, Uncommitted::NoAccess, point)
    }
    /// The same of these addresses.
    pub fn cut_from(
        addresses: &mut Reservation,
        bytes: usize,
        uncommitted: Uncommitted,
        point: Point,
    ) -> Option<Self> {
        let region = addresses.reserve(bytes, uncommitted)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// The same of addresses that are not committed; with `apart` only the beginning, [apart](Region::apart) from others, so that it can [grow](Self::grow).
    pub fn growing(
        bytes: usize,
        apart: Option<usize>,
        addresses: &mut Reservation,
        point: Point,
    ) -> Option<Self> {
        let none = Uncommitted::NoAccess;
        let Some(apart) = apart else { return Self::cut_from(addresses, bytes, none, point) };
        let region = Region::apart(bytes.min(Self::STEP), apart, none, &addresses.faults)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Has addresses for at least the first `bytes` bytes, if there are to be so many: see [`Region::grow`]. By one thread at a time, which
    /// does not [cut](Self::cut) either.
    pub fn grow(&self, bytes: usize) -> bool {
        let ahead = bytes.next_multiple_of(Self::MOST).min(self.most);
        bytes <= self.most && [ahead, bytes].into_iter().any(|goal| self.region.grow(goal))
    }
    /// The same as [`new`](Self::new) at a multiple of `align`, of which what is not committed reads as zero; never in huge pages.
    pub fn readable(
        bytes: usize,
        align: usize,
        backend: Backend,
        faults: &Faults,
        point: Point,
    ) -> Option<Self> {
        let region = Region::reserve(bytes, align, Uncommitted::ReadsZero, backend.of_tables(), faults)?;
        // A few bytes for each page that somebody uses.
        region.advise(HugePages::Never);
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Returns the addresses behind the first `bytes` bytes to the system, except those that a commit may go ahead by (1 MiB and 64 KiB at
    /// most). Returned addresses cannot be committed before it [grows](Self::grow).
    ///
    /// # Safety
    /// During the call no thread uses memory behind `bytes` bytes, asks for a commit of it, or cuts.
    pub unsafe fn cut(&self, bytes: usize) -> bool {
        // A commit that runs beside this was asked for up to `bytes`, of which less was committed, or for what is committed by now: it goes
        // ahead of either by no more than this.
        let ahead = Self::MOST + Self::STEP;
        // SAFETY: passed on.
        unsafe { self.region.cut(bytes.max(self.committed()).next_multiple_of(Self::STEP) + ahead) }
    }
    /// Bytes of addresses reserved.
    pub fn reserved(&self) -> usize {
        self.region.bytes()
    }
    /// Bytes committed so far.
    pub fn committed(&self) -> usize {
        self.committed.get() as usize
    }
    /// The first byte, aligned to a page. It stays where it is, and what was committed is zero at first.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }
    /// Gives the memory behind `range` back, in whole pages: it reads as zero. `false`, with nothing changed, when it cannot be done.
    ///
    /// # Safety
    /// It is committed, and nobody minds that the bytes become zero.
    pub unsafe fn discard(&self, range: Range<usize>) -> bool {
        // SAFETY: passed on.
        unsafe { self.region.discard(range) }
    }
    /// Makes the first `bytes` bytes usable on behalf of `op`; `false` if there are fewer, or they cannot be had.
    pub fn commit(&self, op: &Operation, bytes: usize) -> bool {
        if self.region.faults.fires(Call::of(self.point, bytes)) {
            return false;
        }
        let has = self.committed();
        if bytes <= has {
            return true;
        }
        if bytes > self.region.bytes() {
            return false;
        }
        // Where that much is refused, what is needed.
        [bytes.max(has + has.min(Self::MOST)), bytes].into_iter().any(|goal| {
            let goal = goal.next_multiple_of(Self::STEP).min(self.region.bytes());
            tell!(op: Step::TablesCommitted { bytes: goal as u32 });
            let granted = self.region.commit(0..goal);
            if granted {
                self.committed.max(goal as u64);
            }
            granted
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use uslab_magazine::Path;

    fn none() -> Faults {
        Faults::default()
    }

    #[test]
    fn a_region_is_aligned_and_zero_and_writable_once_committed() {
        for backend in [Backend::Os, Backend::Heap] {
            let region = Region::reserve(8 << 20, 4 << 20, Uncommitted::NoAccess, backend, &none()).unwrap();
            assert_eq!(region.base().as_ptr() as usize % (4 << 20), 0);
            assert_eq!((region.bytes(), region.backend()), (8 << 20, backend));
            assert!(region.commit(4096..3 * 4096));
            // SAFETY: committed just above; this test is the only user.
            unsafe {
                let byte = region.base().add(4096);
                assert_eq!(*byte.as_ptr(), 0);
                byte.write(7);
                assert_eq!(*byte.as_ptr(), 7);
                assert!(region.decommit(4096..3 * 4096));
            }
        }
    }

    #[test]
    fn nothing_is_done_with_what_is_no_range_of_a_region() {
        let region =
            Region::reserve(1 << 20, 4096, Uncommitted::NoAccess, Backend::default(), &none()).unwrap();
        assert!(region.commit(0..4096));
        #[expect(clippy::reversed_empty_ranges)]
        let backwards = 8192..4096;
        // SAFETY: nobody uses the region.
        unsafe {
            assert!(!region.protect(backwards.clone(), true) && !region.protect(0..100, true));
            assert!(!region.discard(backwards) && !region.discard(0..0) && !region.discard(0..2 << 20));
            assert!(
                region.commit(4096..4096) && region.decommit(4096..4096) && region.protect(4096..4096, true)
            );
        }
    }

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn commits_are_counted_where_the_system_says_so() {
        let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        assert_eq!(commits_are_counted(), mode.trim() == "2");
    }

    #[test]
    fn what_was_decommitted_comes_back_as_zero() {
        for backend in [Backend::Os, Backend::Heap] {
            let region = Region::reserve(1 << 20, 4096, Uncommitted::ReadsZero, backend, &none()).unwrap();
            assert!(region.commit(0..4096));
            // SAFETY: committed before each write, readable always; this test is the only user.
            unsafe {
                region.base().write(7);
                assert!(region.decommit(0..4096));
                assert_eq!(*region.base().as_ptr(), 0);
                assert!(region.commit(0..4096));
                assert_eq!(*region.base().as_ptr(), 0);
            }
        }
    }

    #[test]
    fn a_committed_region_is_zero_and_keeps_what_it_has_when_it_is_resized() {
        for backend in [Backend::Os, Backend::Heap] {
            let mut region = Region::committed(10_000, 1 << 21, backend, &none()).unwrap();
            assert_eq!((region.base().addr().get() % (1 << 21), region.bytes()), (0, 12_288));
            // SAFETY: committed as a whole; this test is the only user.
            unsafe {
                assert_eq!(*region.base().add(12_287).as_ref(), 0);
                region.base().add(9_999).write(7);
                assert!(region.resize(64 << 20, true));
                assert_eq!(
                    (*region.base().add(9_999).as_ref(), *region.base().add((64 << 20) - 1).as_ref()),
                    (7, 0)
                );
                assert!(region.resize(10_000, false) && region.bytes() == 12_288);
                assert_eq!(*region.base().add(9_999).as_ref(), 7);
            }
            let base = region.base();
            assert!(!region.resize(usize::MAX, true) && !region.resize(1 << 60, true));
            assert_eq!((region.base(), region.bytes()), (base, 12_288));
        }
    }

    #[test]
    fn a_region_is_resized_by_as_much_memory_as_it_grows_by() {
        let faults = Faults::new(1);
        let mut region = Region::committed(64 << 10, 4096, Backend::Os, &faults).unwrap();
        faults.arm(crate::faults::Rule::parse_all("commit:space=65536", &crate::faults::POINTS).unwrap());
        assert!(region.resize(128 << 10, true) && !region.resize(132 << 10, true));
        assert!(region.resize(128 << 10, true) && region.resize(4096, true));
        assert_eq!(region.bytes(), 4096);
    }

    #[test]
    fn a_cleared_region_is_zero_whatever_was_touched_of_it() {
        for backend in [Backend::Os, Backend::Heap] {
            for step in [1, 2, 40, 3000] {
                let mut region = Region::committed(9 << 20, 4096, backend, &none()).unwrap();
                let bytes = (9 << 20) - 5000;
                // SAFETY: committed as a whole; this test is the only user.
                let all = unsafe { core::slice::from_raw_parts_mut(region.base().as_ptr(), 9 << 20) };
                for page in (0..2304).step_by(step) {
                    all[page * 4096..][..4096].fill(7);
                }
                let last = all[bytes];
                region.clear(bytes);
                assert!(all[..bytes].iter().all(|byte| *byte == 0));
                assert_eq!(all[bytes], last, "what lies behind it stays");
            }
        }
    }

    #[test]
    fn a_region_is_cut_in_two_and_joined_again_where_parts_can_go_back() {
        let mut low = Region::committed(8 << 20, 4096, Backend::Os, &none()).unwrap();
        if !low.is_divisible() {
            assert!(low.split_off(4096).is_none());
            return;
        }
        // SAFETY: committed as a whole; this test is the only user.
        unsafe { low.base().write_bytes(7, 8 << 20) };
        assert!(low.split_off(8 << 20).is_none() && low.split_off(usize::MAX).is_none());
        let high = low.split_off((2 << 20) - 1).unwrap();
        assert_eq!((low.bytes(), high.bytes()), (2 << 20, 6 << 20));
        assert_eq!(high.base().addr().get() - low.base().addr().get(), 2 << 20);
        let mut high = high;
        let last = high.split_off(4 << 20).unwrap();
        let Err(last) = low.join(last) else { panic!("they are apart") };
        low.join(high).unwrap();
        drop(last);
        assert_eq!(low.bytes(), 6 << 20);
        // SAFETY: as above; the last 2 MiB are gone.
        assert!(unsafe { core::slice::from_raw_parts(low.base().as_ptr(), 6 << 20) }.iter().all(|b| *b == 7));
        let mut heap = Region::committed(8192, 4096, Backend::Heap, &none()).unwrap();
        assert!(heap.split_off(4096).is_none() && !heap.is_divisible());
        // What lies beside it is none of its kind.
        let mut last = low.split_off(4 << 20).unwrap();
        core::mem::swap(&mut last.backing, &mut heap.backing);
        let Err(mut last) = low.join(last) else { panic!("it cannot go back with the others") };
        core::mem::swap(&mut last.backing, &mut heap.backing);
        last.uncommitted = Uncommitted::ReadsZero;
        let Err(mut last) = low.join(last) else { panic!("it is not like the others") };
        last.uncommitted = Uncommitted::NoAccess;
        low.join(last).unwrap();
    }

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn tables_and_pages_are_cut_from_one_reservation_and_overlap_nowhere() {
        let (align, pages) = (4 << 20, 64 << 20);
        let (backend, faults) = (Backend::Os, none());
        let (mut tables, held) = Reservation::with_pages(40 << 20, pages, align, backend, &faults).unwrap();
        assert_eq!((held.base().addr().get() % align, held.bytes(), tables.is_empty()), (0, pages, false));
        assert!(held.commit(0..4096));
        let wished = [
            (100, Uncommitted::NoAccess),
            (8 << 20, Uncommitted::ReadsZero),
            ((32 << 20) - 4096, Uncommitted::ReadsZero),
        ];
        let mut cut: Vec<Region> =
            wished.map(|(bytes, uncommitted)| tables.reserve(bytes, uncommitted).unwrap()).into();
        assert!(tables.is_empty(), "what is left is too little for another one");
        for region in &cut {
            // SAFETY: the second and the third are readable before they are committed; all are this test's.
            unsafe {
                assert!(region.commit(0..4096));
                assert_eq!(*region.base().as_ptr(), 0);
                region.base().write_bytes(7, 4096);
                assert!(region.decommit(0..4096));
            }
        }
        cut.push(held);
        cut.push(tables.reserve(4096, Uncommitted::NoAccess).unwrap());
        cut.sort_by_key(|region| region.base());
        let end = |region: &Region| region.base().addr().get() + region.bytes();
        assert!(cut.is_sorted_by(|low, high| end(low) <= high.base().addr().get()));
        drop(cut.swap_remove(1));
        assert!(cut.iter().all(|region| region.commit(0..4096)), "the others stay");
        // Refused as a reservation is, and where memory is the heap's.
        let faults = Faults::new(1);
        faults.arm(crate::faults::Rule::parse_all("reserve:times=1", &crate::faults::POINTS).unwrap());
        assert!(Reservation::with_pages(4096, pages, align, backend, &faults).is_none());
        assert!(Reservation::with_pages(4096, pages, align, Backend::Heap, &none()).is_none());
    }

    /// Whatever is written to gets memory: only pages that nobody looks into may be addresses alone.
    #[test]
    fn a_phantom_is_addresses_for_pages_and_memory_for_what_describes_them() {
        // SAFETY: nothing of the region is touched; tables are memory, which the test looks into.
        let backend = Backend::Phantom(unsafe { Phantom::new() });
        let region = Region::reserve(1 << 30, 4 << 20, Uncommitted::NoAccess, backend, &none()).unwrap();
        assert_eq!((region.base().addr().get() % (4 << 20), region.backend()), (0, backend));
        assert!(region.commit(0..1 << 30) && region.advise(HugePages::Advise));
        // SAFETY: nobody uses it.
        assert!(unsafe { region.decommit(0..4096) });
        drop(region);
        assert!(Region::committed(4096, 4096, backend, &none()).is_none(), "it would be written to");
        assert!(
            Region::reserve(4096, 4096, Uncommitted::ReadsZero, backend, &none()).is_none(),
            "it would be read"
        );
        let table = Reserved::new(1 << 20, backend, &none(), crate::faults::MAGAZINE).unwrap();
        assert!(table.commit(&Operation::new(), 8));
        // SAFETY: committed just above, and this test is the only user.
        assert_eq!(unsafe { *table.base().cast::<u64>().as_ptr() }, 0);
    }

    #[test]
    fn ranges_outside_or_between_pages_are_refused() {
        let region = Region::reserve(1 << 20, 4096, Uncommitted::NoAccess, Backend::Os, &none()).unwrap();
        assert!(!region.commit(0..(1 << 20) + 4096));
        assert!(!region.commit(1..4096));
        assert!(!region.commit(0..100));
    }

    #[test]
    fn a_refused_wish_is_halved_down_to_the_least() {
        assert_eq!(reserve_most(1000, 10, |n| (n <= 130).then_some(n)), Ok((125, 125)));
        assert_eq!(reserve_most(1000, 10, |n| (n <= 10).then_some(n)), Ok((10, 10)));
        assert_eq!(reserve_most::<()>(1000, 10, |_| None), Err(10));
        // More address space than there is.
        let wish = 1 << 60;
        let reserve = |bytes| Region::reserve(bytes, 4096, Uncommitted::NoAccess, Backend::Os, &none());
        let (bytes, region) = reserve_most(wish, 1 << 20, reserve).unwrap();
        assert!(bytes < wish && region.bytes() == bytes);
    }

    #[test]
    #[cfg_attr(uslab_heap, ignore = "the heap's addresses stay")]
    fn a_region_that_is_cut_gives_its_addresses_back_and_commits_none_of_them() {
        let region = Region::reserve(8 << 20, 4 << 20, Uncommitted::NoAccess, Backend::Os, &none()).unwrap();
        assert!(region.commit(0..4096));
        // SAFETY: nothing there is committed, and this test is the only user.
        unsafe { assert!([9, 4, 4, 5].iter().all(|mib| region.cut(mib << 20))) };
        assert_eq!(region.bytes(), 4 << 20);
        assert!(region.commit(4096..4 << 20) && !region.commit(4 << 20..5 << 20));
        let heap = Region::reserve(8 << 20, 4096, Uncommitted::NoAccess, Backend::Heap, &none()).unwrap();
        // SAFETY: as above.
        assert!(!unsafe { heap.cut(4096) } && heap.bytes() == 8 << 20);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    fn what_lies_apart_grows_and_is_zero() {
        const APART: usize = 1 << 30;
        let apart = |bytes| Region::apart(bytes, APART, Uncommitted::ReadsZero, &none()).unwrap();
        let regions = [1, 2, 3].map(|mib| apart(mib << 20));
        let places = regions.each_ref().map(|region| region.base().addr().get() / APART);
        assert!(places[0] > places[1] && places[1] > places[2], "{places:?}");
        for region in &regions {
            assert_eq!(region.base().addr().get() % APART, 0);
            let before = region.bytes();
            assert!(region.grow(before) && region.grow(before - 1) && region.bytes() == before);
            assert!(region.grow((8 << 20) - 1) && region.bytes() == 8 << 20);
            assert!(region.commit(before..8 << 20) && !region.commit(before..9 << 20));
            // SAFETY: committed just now; this test is the only user.
            unsafe {
                let last = region.base().add((8 << 20) - 1);
                assert_eq!(last.read(), 0);
                last.write(7);
                // And shrinks, and grows again.
                assert!(region.cut(1 << 20) && region.grow(8 << 20) && last.read() == 0);
            }
        }
        drop(regions);
        assert!(
            !Region::reserve(1 << 20, 4096, Uncommitted::NoAccess, Backend::Heap, &none())
                .unwrap()
                .grow(2 << 20)
        );
    }

    #[test]
    fn reserved_memory_is_committed_on_demand() {
        let reserved = Reserved::new(1 << 20, Backend::Os, &none(), crate::faults::MAGAZINE).unwrap();
        assert_eq!(reserved.committed(), 0);
        let commit = |bytes| {
            let op = Operation::new();
            (reserved.commit(&op, bytes), op.path())
        };
        assert_eq!(commit(100), (true, Path::Commit));
        assert_eq!(reserved.committed(), Reserved::STEP);
        assert_eq!(commit(Reserved::STEP), (true, Path::Cpu), "the system was not asked");
        for steps in [2, 4, 8] {
            assert_eq!(commit(reserved.committed() + 1), (true, Path::Commit));
            assert_eq!(reserved.committed(), steps * Reserved::STEP, "twice as much");
        }
        assert_eq!((commit(1 << 20), commit((1 << 20) + 1)), ((true, Path::Commit), (false, Path::Cpu)));
    }

    /// Once the last step was refused, because its end was gone. (The heap has no addresses to give up.)
    #[test]
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    fn all_that_is_left_behind_a_cut_can_be_committed() {
        let reserved = Reserved::new(4 << 20, Backend::Os, &none(), crate::faults::MAGAZINE).unwrap();
        let left = 5 * Reserved::STEP / 2;
        // SAFETY: it is alone in its region, and nobody uses it.
        assert!(unsafe { reserved.cut(left) });
        let op = Operation::new();
        assert!(reserved.commit(&op, left) && !reserved.commit(&op, reserved.reserved() + 1));
        // And what a commit may go ahead by.
        assert_eq!(reserved.reserved(), 4 * Reserved::STEP + Reserved::MOST);
        let growing = Reserved::growing(
            5 << 19,
            Some(1 << 30),
            &mut Reservation::none(Backend::Os, &none()),
            crate::faults::MAGAZINE,
        );
        let growing = growing.unwrap();
        assert!(!growing.commit(&op, Reserved::STEP + 1));
        let sizes = [1, 1 << 20, (1 << 20) + 1, (2 << 20) + 1, 5 << 19].map(|bytes| {
            assert!(growing.grow(bytes) && growing.commit(&op, bytes));
            growing.reserved()
        });
        assert_eq!(sizes, [1 << 20, 1 << 20, 2 << 20, 5 << 19, 5 << 19]);
        assert!(!growing.grow((5 << 19) + 1));
    }
}

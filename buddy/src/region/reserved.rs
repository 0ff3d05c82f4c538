//! Address reservations that several regions share, and regions that are committed on demand.

use super::{Access, Backend, HAS_OS_MAPPINGS, HugePages, Region, Uncommitted};
use crate::PAGE_SIZE;
use crate::faults::{Call, Faults, Point, RESERVE};
use core::ops::Range;
use core::ptr::NonNull;
use uslab_magazine::Operation;
use uslab_magazine::sync::{Counter, tell};
use uslab_magazine::tracepoints::Step;

/// A reservation of addresses that is divided among several regions. An allocator's pages and page metadata tables
/// share one reservation, which saves system calls.
#[derive(Debug)]
pub struct Reservation {
    left: Option<Region>,
    /// The backend that supplies the memory.
    pub backend: Backend,
    /// The fault injection rules that apply to the regions.
    pub faults: Faults,
}

impl Reservation {
    /// Minimum size in bytes of a remainder that is kept for later regions. If the remainder is smaller, the last
    /// region gets it.
    const MIN_REMAINDER: usize = 4 << 20;

    /// Creates an empty reservation. Each region that is taken from an empty reservation reserves its own addresses.
    pub fn none(backend: Backend, faults: &Faults) -> Self {
        Self { left: None, backend: backend.table_backend(), faults: faults.clone() }
    }

    /// Reserves `tables` bytes for tables, followed by `pages` bytes at a multiple of `align`. Table memory reads as
    /// zero before it is committed, and never uses huge pages. Returns `None` if the OS refuses the addresses, or if
    /// the backend does not use `mmap`.
    ///
    /// `with_pages` costs up to six system calls.
    pub(crate) fn with_pages(
        tables: usize,
        pages: usize,
        align: usize,
        backend: Backend,
        faults: &Faults,
    ) -> Option<(Self, Region)> {
        if backend != Backend::Os || !HAS_OS_MAPPINGS || faults.fires(Call::of(RESERVE, tables + pages)) {
            return None;
        }
        let tables = tables.checked_next_multiple_of(PAGE_SIZE)?;
        let room = tables.checked_add(pages)?.checked_add(align - PAGE_SIZE)?;
        let mut left = Region::new(room, PAGE_SIZE, Uncommitted::ReadsZero, Access::Read, backend, faults)?;
        let first = (left.base.addr().get() + tables).next_multiple_of(align);
        let mut held = left.split_off(first - left.base.addr().get())?;
        drop(held.split_off(pages));
        held.uncommitted = Uncommitted::NoAccess;
        // SAFETY: the range was just reserved, so no other code has its address.
        let hidden = unsafe { held.protect(0..pages, false) };
        // Tables are used sparsely: a few bytes for each page in use, and the first page of most stacks.
        left.advise(HugePages::Never);
        hidden.then_some((Self { left: Some(left), ..Self::none(backend, faults) }, held))
    }

    /// Returns `true` if the reservation has no addresses left for another region.
    pub fn is_empty(&self) -> bool {
        self.left.is_none()
    }

    /// Takes a region of `bytes` bytes, rounded up to pages, from the reservation. If too few addresses are left, the
    /// region reserves its own addresses. See [`Region::reserve`]. A region whose uncommitted memory reads as zero
    /// never uses huge pages.
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
        // The last region also gets the remainder from the alignment of the pages.
        if region.bytes() - whole >= Self::MIN_REMAINDER {
            self.left = region.split_off(whole);
        }
        region.uncommitted = uncommitted;
        Some(region)
    }
}

/// A region whose memory is committed on demand, from the start upwards. Page metadata tables are stored in `Reserved`
/// regions.
#[derive(Debug)]
pub struct Reserved {
    region: Region,
    /// Number of bytes, from the start of the region, that are known to be committed. A stale number is too low, which
    /// only causes memory to be committed twice.
    committed: Counter,
    /// The fault point that each commit of the region calls.
    point: Point,
    /// Maximum size of the region in bytes.
    most: usize,
}

impl Reserved {
    /// Commits are rounded up to this number of bytes, so that not every new page costs a system call.
    pub(super) const COMMIT_STEP: usize = 64 << 10;
    /// Maximum number of bytes that are committed in advance, beyond the request. Each commit doubles the committed
    /// size, up to this limit.
    pub(super) const MAX_COMMIT_AHEAD: usize = 1 << 20;

    /// Reserves `bytes` bytes. Returns `None` if the OS refuses the addresses. Each commit of the region calls the
    /// fault point `point`. With [`Backend::Phantom`], the region's memory comes from the default backend.
    pub fn new(bytes: usize, backend: Backend, faults: &Faults, point: Point) -> Option<Self> {
        Self::new_in_reservation(&mut Reservation::none(backend, faults), bytes, Uncommitted::NoAccess, point)
    }
    /// Creates a region like [`new`](Self::new), but takes its addresses from `addresses`.
    pub fn new_in_reservation(
        addresses: &mut Reservation,
        bytes: usize,
        uncommitted: Uncommitted,
        point: Point,
    ) -> Option<Self> {
        let region = addresses.reserve(bytes, uncommitted)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Creates a region of at most `bytes` bytes that is inaccessible until committed, with addresses from `addresses`.
    /// If `apart` is set, reserves only the region's beginning, [apart](Region::reserve_apart) from other mappings. The
    /// region can then [grow](Self::grow) later.
    pub fn growing(
        bytes: usize,
        apart: Option<usize>,
        addresses: &mut Reservation,
        point: Point,
    ) -> Option<Self> {
        let none = Uncommitted::NoAccess;
        let Some(apart) = apart else { return Self::new_in_reservation(addresses, bytes, none, point) };
        let region = Region::reserve_apart(bytes.min(Self::COMMIT_STEP), apart, none, &addresses.faults)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Reserves addresses for at least the first `bytes` bytes, up to the region's maximum size: see [`Region::grow`].
    /// Calls of `grow` and [`cut`](Self::cut) must not run concurrently.
    pub fn grow(&self, bytes: usize) -> bool {
        let ahead = bytes.next_multiple_of(Self::MAX_COMMIT_AHEAD).min(self.most);
        bytes <= self.most && [ahead, bytes].into_iter().any(|goal| self.region.grow(goal))
    }
    /// Creates a region like [`new`](Self::new), at an address that is a multiple of `align`. The region's uncommitted
    /// bytes read as zero. The region never uses huge pages.
    pub fn readable(
        bytes: usize,
        align: usize,
        backend: Backend,
        faults: &Faults,
        point: Point,
    ) -> Option<Self> {
        let region = Region::reserve(bytes, align, Uncommitted::ReadsZero, backend.table_backend(), faults)?;
        // Only a few bytes are used for each page in use.
        region.advise(HugePages::Never);
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Unmaps the addresses after the first `bytes` bytes. `cut` keeps up to 1 MiB and 64 KiB more, because a
    /// concurrent commit may run ahead. Unmapped addresses cannot be committed until the region [grows](Self::grow)
    /// again.
    ///
    /// # Safety
    /// During the call, no other thread may use or commit memory after the first `bytes` bytes, or cut the region.
    pub unsafe fn cut(&self, bytes: usize) -> bool {
        // A concurrent commit was requested for at most `bytes` bytes, or for bytes that are already committed. A
        // concurrent commit runs ahead by at most `ahead` bytes.
        let ahead = Self::MAX_COMMIT_AHEAD + Self::COMMIT_STEP;
        // SAFETY: no thread uses the cut part, by contract. The `ahead` bytes are kept for concurrent commits.
        unsafe { self.region.cut(bytes.max(self.committed()).next_multiple_of(Self::COMMIT_STEP) + ahead) }
    }
    /// Number of bytes of address space that the region currently reserves.
    pub fn reserved(&self) -> usize {
        self.region.bytes()
    }
    /// Number of committed bytes.
    pub fn committed(&self) -> usize {
        self.committed.get() as usize
    }
    /// Returns the address of the region's first byte, which is page-aligned. The region never moves.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }
    /// Returns the memory of `range`, which must be whole pages, to the OS. Discarded bytes read as zero. Returns
    /// `false` and changes nothing if the OS does not take the memory back.
    ///
    /// # Safety
    /// The bytes in `range` must be committed, and no thread may rely on their contents.
    pub unsafe fn discard(&self, range: Range<usize>) -> bool {
        // SAFETY: no thread relies on the contents, by this function's contract.
        unsafe { self.region.discard(range) }
    }
    /// Commits at least the first `bytes` bytes of the region, as part of the operation `op`. Returns `false` if the
    /// region is smaller than `bytes`, or if the OS refuses.
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
        // If the larger step is refused, the commit is retried with exactly `bytes` bytes.
        [bytes.max(has + has.min(Self::MAX_COMMIT_AHEAD)), bytes].into_iter().any(|goal| {
            let goal = goal.next_multiple_of(Self::COMMIT_STEP).min(self.region.bytes());
            tell!(op: Step::TablesCommitted { bytes: goal as u32 });
            let granted = self.region.commit(0..goal);
            if granted {
                self.committed.max(goal as u64);
            }
            granted
        })
    }
}

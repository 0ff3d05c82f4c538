//! Address ranges for several regions, and regions that are committed on demand.

use super::{Access, Backend, HugePages, MAPPED, Region, Uncommitted};
use crate::PAGE_SIZE;
use crate::faults::{Call, Faults, Point, RESERVE};
use core::ops::Range;
use core::ptr::NonNull;
use uslab_magazine::Operation;
use uslab_magazine::sync::{Counter, tell};
use uslab_magazine::tracepoints::Step;

/// Addresses for several regions. The tables of an allocator and its pages share one reservation, to save system calls.
#[derive(Debug)]
pub struct Reservation {
    left: Option<Region>,
    /// The source of the memory.
    pub backend: Backend,
    /// The faults to inject.
    pub faults: Faults,
}

impl Reservation {
    /// Minimum size of a remainder that is kept for another region, in bytes.
    const MIN_REMAINDER: usize = 4 << 20;

    /// Creates an empty reservation, with which each region reserves separately.
    pub fn none(backend: Backend, faults: &Faults) -> Self {
        Self { left: None, backend: backend.of_tables(), faults: faults.clone() }
    }

    /// Reserves `tables` bytes for tables, followed by `pages` bytes at a multiple of `align`. The table bytes read as
    /// zero until committed and are never in huge pages. Returns `None` if the system refuses, or on a backend without
    /// mappings.
    ///
    /// `with_pages` costs up to six system calls.
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
        // SAFETY: the range was just reserved, so no other code has its address.
        let hidden = unsafe { held.protect(0..pages, false) };
        // Tables are used sparsely: a few bytes for each page in use, and the first page of most stacks.
        left.advise(HugePages::Never);
        hidden.then_some((Self { left: Some(left), ..Self::none(backend, faults) }, held))
    }

    /// Returns `true` if no addresses are left.
    pub fn is_empty(&self) -> bool {
        self.left.is_none()
    }

    /// Takes `bytes` bytes, rounded up to pages, from the reservation's addresses. If too few addresses are left, the
    /// region gets a new reservation. See [`Region::reserve`]. Memory that reads as zero is never in huge pages.
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

/// A region that is committed on demand, from its start upwards. Side tables keep their memory in `Reserved` regions.
#[derive(Debug)]
pub struct Reserved {
    region: Region,
    /// Number of bytes from the start that are known to be committed. A stale count of committed bytes is too low, and
    /// only causes a repeated commit.
    committed: Counter,
    /// The fault point of the region's commits.
    point: Point,
    /// Maximum size in bytes.
    most: usize,
}

impl Reserved {
    /// Granularity of commits in bytes, so that not every new page costs a system call.
    pub(super) const COMMIT_STEP: usize = 64 << 10;
    /// Maximum number of bytes that a commit adds beyond the request. A commit doubles the committed bytes,
    /// and adds at most `MAX_COMMIT_AHEAD`.
    pub(super) const MAX_COMMIT_AHEAD: usize = 1 << 20;

    /// Reserves `bytes` bytes. Returns `None` if the system refuses. Each commit of the region is a call of the fault
    /// point `point`. On [`Backend::Phantom`], the memory comes from the default backend.
    pub fn new(bytes: usize, backend: Backend, faults: &Faults, point: Point) -> Option<Self> {
        Self::cut_from(&mut Reservation::none(backend, faults), bytes, Uncommitted::NoAccess, point)
    }
    /// Takes `bytes` bytes from `addresses`, like [`new`](Self::new).
    pub fn cut_from(
        addresses: &mut Reservation,
        bytes: usize,
        uncommitted: Uncommitted,
        point: Point,
    ) -> Option<Self> {
        let region = addresses.reserve(bytes, uncommitted)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Takes `bytes` inaccessible bytes from `addresses`. With `apart`, reserves only the beginning,
    /// [apart](Region::reserve_apart) from other mappings, so that the region can [grow](Self::grow).
    pub fn growing(
        bytes: usize,
        apart: Option<usize>,
        addresses: &mut Reservation,
        point: Point,
    ) -> Option<Self> {
        let none = Uncommitted::NoAccess;
        let Some(apart) = apart else { return Self::cut_from(addresses, bytes, none, point) };
        let region = Region::reserve_apart(bytes.min(Self::COMMIT_STEP), apart, none, &addresses.faults)?;
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Ensures that at least the first `bytes` bytes have addresses, up to the region's maximum: see [`Region::grow`].
    /// Calls of `grow` and [`cut`](Self::cut) must not run concurrently.
    pub fn grow(&self, bytes: usize) -> bool {
        let ahead = bytes.next_multiple_of(Self::MAX_COMMIT_AHEAD).min(self.most);
        bytes <= self.most && [ahead, bytes].into_iter().any(|goal| self.region.grow(goal))
    }
    /// Reserves like [`new`](Self::new), at a multiple of `align`. Uncommitted bytes read as zero. A readable region is
    /// never in huge pages.
    pub fn readable(
        bytes: usize,
        align: usize,
        backend: Backend,
        faults: &Faults,
        point: Point,
    ) -> Option<Self> {
        let region = Region::reserve(bytes, align, Uncommitted::ReadsZero, backend.of_tables(), faults)?;
        // Only a few bytes are used for each page in use.
        region.advise(HugePages::Never);
        Some(Self { region, committed: Counter::new(0), point, most: bytes })
    }
    /// Returns the addresses after the first `bytes` bytes to the system, except addresses that a commit may
    /// have taken in advance (at most 1 MiB and 64 KiB). Returned addresses cannot be committed before the
    /// region [grows](Self::grow).
    ///
    /// # Safety
    /// During the call, no thread may use or commit memory after `bytes` bytes, or cut the region.
    pub unsafe fn cut(&self, bytes: usize) -> bool {
        // A concurrent commit was requested for at most `bytes` bytes, or for bytes that are already committed. A
        // concurrent commit runs ahead by at most `ahead` bytes.
        let ahead = Self::MAX_COMMIT_AHEAD + Self::COMMIT_STEP;
        // SAFETY: no thread uses the cut part, by contract. The `ahead` bytes are kept for concurrent commits.
        unsafe { self.region.cut(bytes.max(self.committed()).next_multiple_of(Self::COMMIT_STEP) + ahead) }
    }
    /// Number of reserved bytes of addresses.
    pub fn reserved(&self) -> usize {
        self.region.bytes()
    }
    /// Number of committed bytes.
    pub fn committed(&self) -> usize {
        self.committed.get() as usize
    }
    /// The first byte of the region, page-aligned. The region never moves, and newly committed bytes are zero.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }
    /// Returns the memory behind `range`, in whole pages, to the system. The discarded range then reads as zero.
    /// Returns `false` and changes nothing if the system refuses.
    ///
    /// # Safety
    /// The range must be committed, and no thread may rely on its contents.
    pub unsafe fn discard(&self, range: Range<usize>) -> bool {
        // SAFETY: no thread relies on the contents, by this function's contract.
        unsafe { self.region.discard(range) }
    }
    /// Commits at least the first `bytes` bytes, as part of `op`. Returns `false` if the region is smaller, or if the
    /// system refuses.
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

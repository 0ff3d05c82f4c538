//! Reserved address ranges. Only the module `region` requests memory from the OS.
//!
//! A reservation takes only address space (`PROT_NONE`, no swap accounted). A commit makes a part of the reserved
//! region readable and writable. The first access to a committed page backs it with zeroed memory. A decommit returns a
//! part's memory to the OS and makes the part inaccessible. An access after the decommit faults instead of silently
//! reading zeros.
//!
//! The crate can get memory from three backends. [`Backend::Os`] is the default backend and uses `mmap` on Linux.
//! [`Backend::Heap`] is plain heap memory with the same interface. The heap backend serves loom models, which run
//! thousands of executions in one address space, and programs that must not call `mmap`. With `--cfg uslab_heap`, and
//! on systems other than Linux, [`Backend::Os`] also uses the heap. [`Backend::Phantom`] provides addresses without
//! memory, for a simulator that never accesses its pages.
//!
//! The OS may refuse a reservation, for example under `ulimit -v`, with strict overcommit, or in a container.
//! [`reserve_with_halving`] then halves the size until a reservation succeeds.

mod heap;
#[cfg(all(target_os = "linux", not(uslab_heap)))]
mod mapped;
mod phantom;
mod reserved;
mod source;

use crate::PAGE_SIZE;
use crate::faults::{COMMIT, Call, DECOMMIT, Faults, RESERVE};
use core::ops::Range;
use core::ptr::NonNull;
use heap::Heap;
#[cfg(not(all(target_os = "linux", not(uslab_heap))))]
use heap::Heap as Os;
#[cfg(all(target_os = "linux", not(uslab_heap)))]
use mapped::MappedSource as Os;
use phantom::Addresses;
pub use reserved::{Reservation, Reserved};
pub use source::HugePages;
use source::{Access, Source};
use uslab_magazine::sync::Counter;

/// True if a reservation on [`Backend::Os`] takes only addresses and no memory.
pub(crate) const HAS_OS_MAPPINGS: bool = cfg!(all(target_os = "linux", not(uslab_heap)));

/// The backend that supplies a region's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Memory from the OS, through `mmap` on Linux; on other systems, the heap.
    #[cfg_attr(not(loom), default)]
    Os,
    /// Memory from the standard library's system allocator (`std::alloc::System`). A reservation allocates all its
    /// memory immediately, zeroed. Later commits never fail, and memory is returned only when the region is dropped. On
    /// Linux, heap pages that are never accessed take no physical memory, because the heap maps large allocations
    /// without clearing them.
    #[cfg_attr(loom, default)]
    Heap,
    /// Addresses without memory, for pages that are never accessed. Page metadata tables (frames, bitmaps, magazines)
    /// still have memory. The phantom backend refuses to create a region that must be committed as a whole.
    Phantom(Phantom),
}

/// Permission to create an allocator whose pages have addresses but no memory ([`Backend::Phantom`]). A phantom page
/// takes only its frame, so a simulator of gigabytes runs in megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phantom(());

impl Phantom {
    /// # Safety
    /// No code may read or write pages of an allocator that was created with this `Phantom` or a copy of it. Do not use
    /// the bytes of phantom blocks ([`PageBlock::bytes`](crate::PageBlock::bytes) and similar),
    /// [`Gfp::ZERO`](crate::Gfp::ZERO), objects with constructors, typed objects, or functions that grow an allocation.
    /// Do not pass a phantom allocator to safe code that could access its pages.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl Backend {
    /// Returns the backend for page metadata tables, which need memory even if the pages are phantom.
    pub(crate) fn table_backend(self) -> Self {
        match self {
            Self::Phantom(_) => Self::default(),
            backend => backend,
        }
    }
}

/// What happens on an access to reserved memory that is not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncommitted {
    /// Any access to uncommitted memory faults.
    NoAccess,
    /// Reads of uncommitted memory return zeros and do not back it. Writes fault.
    ReadsZero,
}

/// A reserved range of addresses, of which parts can be committed.
///
/// # Invariants
/// The address `base` has the requested alignment. The region owns `base..base + bytes` until it is dropped. The size
/// `bytes` is a multiple of the page size. Only one thread at a time changes `bytes` ([`cut`](Region::cut),
/// [`grow`](Region::grow)).
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

/// Binds `$source` to the memory source inside `$backing`, and evaluates `$call`.
macro_rules! source {
    ($backing:expr, $source:ident => $call:expr) => {
        match $backing {
            Backing::Os($source) => $call,
            Backing::Heap($source) => $call,
            Backing::Phantom($source, _) => $call,
        }
    };
}

// SAFETY: the region owns the range, and its methods only change the range's protection or return addresses.
unsafe impl Send for Region {}
// SAFETY: `commit` is idempotent, and the contracts of `decommit` and the other `unsafe` methods exclude races.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` bytes, rounded up to pages, at an address that is a multiple of `align` (a power of two).
    /// Returns `None` if the OS refuses the reservation.
    ///
    /// `reserve` costs one or two system calls on [`Backend::Os`].
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

    /// Creates a region whose memory is completely committed and zeroed. The OS may refuse to commit more memory than
    /// the machine has.
    pub fn committed(bytes: usize, align: usize, backend: Backend, faults: &Faults) -> Option<Self> {
        if faults.fires(Call::of(RESERVE, bytes)) || faults.fires(Call::of(COMMIT, bytes)) {
            return None;
        }
        Self::new(bytes, align, Uncommitted::NoAccess, Access::ReadWrite, backend, faults)
    }

    /// Reserves like [`reserve`](Self::reserve), but at a multiple of `apart` (a power of two) that is far from other
    /// mappings. The region can later [grow](Self::grow) up to `apart` bytes, because the addresses after it are
    /// probably free. `reserve_apart` always returns `None` on backends without `mmap`.
    ///
    /// `reserve_apart` costs three system calls, and one more for each address that turns out to be occupied.
    pub fn reserve_apart(
        bytes: usize,
        apart: usize,
        uncommitted: Uncommitted,
        faults: &Faults,
    ) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        if faults.fires(Call::of(RESERVE, bytes)) {
            return None;
        }
        let (base, os) = Os::reserve_apart(bytes, apart.max(PAGE_SIZE), uncommitted.access())?;
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

    /// Returns the address of the first byte of the region.
    #[inline(always)]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Number of bytes that the region reserves.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.bytes.get() as usize
    }
    /// The backend that supplied the region.
    pub fn backend(&self) -> Backend {
        match self.backing {
            Backing::Os(_) => Backend::Os,
            Backing::Heap(_) => Backend::Heap,
            Backing::Phantom(_, own) => Backend::Phantom(own),
        }
    }

    /// Returns `true` if `range`, in bytes from the base, is inside this region and consists of whole pages.
    fn holds(&self, range: &Range<usize>) -> bool {
        range.start <= range.end
            && range.end <= self.bytes()
            && range.start.is_multiple_of(PAGE_SIZE)
            && range.end.is_multiple_of(PAGE_SIZE)
    }

    /// Makes `range` (bytes from the base, whole pages) readable and writable. Newly committed bytes are zero. Returns
    /// `false`, with all contents intact, if the OS refuses because of a limit on memory or mappings, or if `range` is
    /// not in the region. Committing the same range twice is harmless.
    ///
    /// `commit` costs one system call on [`Backend::Os`].
    pub fn commit(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || self.faults.fires(Call::of(COMMIT, range.len())) {
            return false;
        }
        // SAFETY: `holds` checked that the range is in this region.
        source!(&self.backing, source => unsafe { source.commit(self.at(&range), range.len()) })
    }

    /// Returns the memory of `range` (bytes from the base, whole pages) to the OS. A decommitted range is inaccessible
    /// or reads as zero, as the region's [`Uncommitted`] requires. On [`Backend::Heap`], the range is overwritten with
    /// zeros and stays accessible.
    ///
    /// Returns `false` if the range could not be made inaccessible. Even if the result is `false`, unlocked memory is
    /// returned to the OS.
    ///
    /// # Safety
    /// No thread may use the bytes in `range` until they are committed again.
    pub unsafe fn decommit(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || self.faults.fires(Call::of(DECOMMIT, range.len())) {
            return false;
        }
        let access = self.uncommitted.access();
        // SAFETY: `holds` checked that the range is in this region, and no thread uses it, by this function's contract.
        source!(&self.backing, source => unsafe { source.decommit(self.at(&range), range.len(), access) })
    }

    /// Makes `range` (bytes from the base, whole committed pages) accessible or inaccessible. An access to inaccessible
    /// memory faults. The contents of `range` do not change. Returns `false` and changes nothing if the protection
    /// cannot change. [`Backend::Heap`] memory is always accessible.
    ///
    /// `protect` costs one system call. Changing the protection may also split a mapping, which adds up to two mappings
    /// to the process.
    ///
    /// # Safety
    /// No thread may use the bytes in `range` while they are inaccessible.
    pub unsafe fn protect(&self, range: Range<usize>, accessible: bool) -> bool {
        let access = if accessible { Access::ReadWrite } else { Access::Nothing };
        if !self.holds(&range) {
            return false;
        }
        let (at, bytes) = (self.at(&range), range.len());
        // SAFETY: `holds` checked that the range is in this region, and no thread uses it, by this function's contract.
        source!(&self.backing, source => unsafe { source.protect(at, bytes, access) })
    }

    /// Returns the memory of `range` to the OS. The discarded range stays accessible and reads as zero. Returns `false`
    /// and changes nothing if the OS does not take the memory back. On [`Backend::Heap`], `discard` always returns
    /// `false`.
    ///
    /// # Safety
    /// No thread may rely on the contents of `range`.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> bool {
        if !self.holds(&range) || range.is_empty() {
            return false;
        }
        // SAFETY: `holds` checked that the range is in this region, and its contents may be lost, by contract.
        source!(&self.backing, source => unsafe { source.discard(self.at(&range), range.len()) })
    }

    /// Resizes a completely committed region to `bytes` bytes, rounded up to pages. The contents are kept, up to the
    /// smaller of the old and new sizes. Bytes that the resize adds are zero. The region moves only if `may_move` is
    /// set. A moved region is page-aligned. Returns `false` and changes nothing if the resize fails.
    ///
    /// `resize` costs one system call and copies no data. On [`Backend::Heap`], a `resize` that may move copies the
    /// contents.
    pub fn resize(&mut self, bytes: usize, may_move: bool) -> bool {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(PAGE_SIZE) else { return false };
        let old = self.bytes();
        if bytes > old && self.faults.fires(Call::of(COMMIT, bytes - old)) {
            return false;
        }
        // SAFETY: the memory is the whole region, borrowed exclusively.
        let moved = source!(&mut self.backing, source => unsafe {
            source.resize(self.base, old, bytes, may_move)
        });
        let Some(base) = moved else { return false };
        (self.base, self.bytes) = (base, Counter::new(bytes as u64));
        true
    }

    /// Shrinks the region to its first `bytes` bytes, rounded up to pages, and unmaps all addresses after them. Returns
    /// `false` and changes nothing on [`Backend::Heap`].
    ///
    /// `cut` costs one system call.
    ///
    /// # Safety
    /// During the call, no thread may access or commit memory after the first `bytes` bytes.
    pub unsafe fn cut(&self, bytes: usize) -> bool {
        let (Some(bytes), old) = (bytes.max(1).checked_next_multiple_of(PAGE_SIZE), self.bytes()) else {
            return false;
        };
        if bytes >= old {
            return true;
        }
        let at = self.at(&(bytes..old));
        // SAFETY: the part is in this region, and no thread uses it, by this function's contract.
        let is_cut = source!(&self.backing, source => unsafe { source.cut(at, old - bytes) });
        if is_cut {
            self.bytes.set(bytes as u64);
        }
        is_cut
    }

    /// Extends the region to `bytes` bytes, rounded up to pages, by reserving the addresses after its end. Does nothing
    /// if the region already has at least `bytes` bytes. Returns `false` and changes nothing if the OS refuses, if
    /// another mapping occupies any of these addresses, or on [`Backend::Heap`]. Calls of `grow` and [`cut`](Self::cut)
    /// must not run concurrently.
    ///
    /// `grow` costs one system call.
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

    /// Zeroes the first `bytes` bytes of a wholly committed region.
    ///
    /// Below 4 MiB, `clear` writes zeros. From 4 MiB on, `clear` makes one system call, which returns the memory to the
    /// OS.
    ///
    /// # Panics
    /// Panics if the region has fewer than `bytes` bytes.
    pub fn clear(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes());
        // SAFETY: the part is in this region, which is borrowed exclusively.
        source!(&self.backing, source => unsafe { source.clear(self.base, bytes) });
    }

    /// Returns `true` if the region can be [split](Self::split_off) and [joined](Self::join). The result is always
    /// `false` on [`Backend::Heap`].
    pub fn is_divisible(&self) -> bool {
        matches!(&self.backing, Backing::Os(os) if os.part().is_some())
    }

    /// Splits the region. This region keeps its first `bytes` bytes, rounded up to pages, and `split_off` returns the
    /// rest as a new region. Returns `None` and changes nothing if no bytes would be left for the new region, or if the
    /// backend cannot divide memory.
    ///
    /// `split_off` makes no system call, because the OS does not track regions.
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

    /// Unmaps the region. Unlike a drop, `unmap` reports a failure.
    ///
    /// # Errors
    /// Returns the region as an error if the OS discarded its contents but could not unmap its addresses. Unmapping
    /// fails if it would split a mapping while the process is at its limit of mappings. The caller may retry `unmap`
    /// later. Dropping a region that could not be unmapped leaks its addresses.
    pub fn unmap(mut self) -> Result<(), Self> {
        let bytes = self.bytes();
        let refused = bytes > 0
            && (self.faults.fires(Call::of(DECOMMIT, bytes))
                // SAFETY: the memory is the whole region, and this call is its last use.
                || !source!(&mut self.backing, source => unsafe { source.free(self.base, bytes) }));
        if refused {
            return Err(self);
        }
        // The drop must not free the memory again.
        self.bytes.set(0);
        Ok(())
    }

    /// Appends `next`, if `next` begins at the end of this region. [Resizing](Self::resize) the joined region may fail,
    /// because the OS may treat it as two mappings.
    ///
    /// # Errors
    /// Returns `next` as an error if `next` begins elsewhere, differs in kind, or has a backend that cannot divide
    /// memory.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let ends_there = self.base.addr().get().checked_add(self.bytes()) == Some(next.base.addr().get());
        if !ends_there || !self.is_divisible() || !next.is_divisible() || self.uncommitted != next.uncommitted
        {
            return Err(next);
        }
        self.bytes = Counter::new((self.bytes() + next.bytes()) as u64);
        // The drop of `next` must not free the memory.
        next.bytes.set(0);
        Ok(())
    }

    /// Advises the OS on the use of huge pages for this region. Returns `false` if the OS rejects the advice. The call
    /// does nothing on [`Backend::Heap`].
    pub fn advise(&self, huge_pages: HugePages) -> bool {
        // SAFETY: the range is the whole region.
        source!(&self.backing, source => unsafe { source.advise(self.base, self.bytes(), huge_pages) })
    }

    /// Returns the start address of a range that is [inside the region](Self::holds).
    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        // SAFETY: the result is at most one past the end of the region.
        unsafe { address_above(self.base, range.start) }
    }
}

/// Returns the address `bytes` bytes above `base`. The addresses may also be [phantom](Backend::Phantom) addresses. On
/// systems without `mmap`, phantom addresses are plain numbers, for which pointer `add` is not allowed.
///
/// # Safety
/// Both `base` and the result must be in the same region, or the result must be one past the region's end.
#[inline(always)]
pub unsafe fn address_above(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: both addresses are in one region, by contract. A region does not wrap around, so the sum is not null.
    unsafe {
        if HAS_OS_MAPPINGS {
            base.add(bytes)
        } else {
            NonNull::new_unchecked(base.as_ptr().wrapping_add(bytes))
        }
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
        // SAFETY: the memory is the whole region, and the drop is its last use.
        let _ = source!(&mut self.backing, source => unsafe { source.free(self.base, bytes) });
    }
}

/// Returns the limit on the process's address space (`RLIMIT_AS`) and the size of the address space in use, in bytes.
/// Returns `None` if the address space is unlimited or the limit is unknown.
///
/// Cost: one system call without a limit, and four with a limit.
pub fn address_limit() -> Option<(usize, usize)> {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::address_limit();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return None;
}

/// Returns `true` if the OS would currently map the given number of bytes.
///
/// Cost: two system calls.
pub(crate) fn can_map_bytes(_bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::find_mappable_address(_bytes).is_some();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return true;
}

/// Returns the process's limit on its address space or on its writable memory (`RLIMIT_AS`, `RLIMIT_DATA`), whichever
/// is lower, in bytes. Returns `None` if the process has neither limit.
///
/// Cost: two system calls.
pub fn process_limit() -> Option<u64> {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::process_limit();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return None;
}

/// Returns `true` if `vm.overcommit_memory` is 2: writable memory then counts against the commit limit before its first
/// access, even with `MAP_NORESERVE`. Returns `false` if `vm.overcommit_memory` cannot be read.
pub(crate) fn commits_are_counted() -> bool {
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    return mapped::commits_are_counted();
    #[cfg(not(all(target_os = "linux", not(uslab_heap))))]
    return false;
}

/// Calls `reserve` with `wish`, and then with half of the last size, until `reserve` succeeds or refuses `least`.
///
/// # Errors
/// As an error, returns the last size that was refused.
pub fn reserve_with_halving<T>(
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use uslab_magazine::{Operation, Path};

    fn none() -> Faults {
        Faults::default()
    }

    #[test]
    fn committed_region_is_aligned_zero_and_writable() {
        for backend in [Backend::Os, Backend::Heap] {
            let region = Region::reserve(8 << 20, 4 << 20, Uncommitted::NoAccess, backend, &none()).unwrap();
            assert_eq!(region.base().as_ptr() as usize % (4 << 20), 0);
            assert_eq!((region.bytes(), region.backend()), (8 << 20, backend));
            assert!(region.commit(4096..3 * 4096));
            // SAFETY: the range was just committed, and this test is its only user.
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
    fn region_operations_on_an_invalid_range_are_refused() {
        let region =
            Region::reserve(1 << 20, 4096, Uncommitted::NoAccess, Backend::default(), &none()).unwrap();
        assert!(region.commit(0..4096));
        #[expect(clippy::reversed_empty_ranges)]
        let reversed_range = 8192..4096;
        // SAFETY: no code uses the region.
        unsafe {
            assert!(!region.protect(reversed_range.clone(), true) && !region.protect(0..100, true));
            assert!(!region.discard(reversed_range) && !region.discard(0..0) && !region.discard(0..2 << 20));
            assert!(
                region.commit(4096..4096) && region.decommit(4096..4096) && region.protect(4096..4096, true)
            );
        }
    }

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn committed_byte_count_matches_the_operating_system() {
        let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        assert_eq!(commits_are_counted(), mode.trim() == "2");
    }

    #[test]
    fn decommitted_memory_reads_as_zero_after_commit() {
        for backend in [Backend::Os, Backend::Heap] {
            let region = Region::reserve(1 << 20, 4096, Uncommitted::ReadsZero, backend, &none()).unwrap();
            assert!(region.commit(0..4096));
            // SAFETY: the region is committed before each write and readable always, and this test is its only user.
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
    fn resized_region_keeps_its_contents() {
        for backend in [Backend::Os, Backend::Heap] {
            let mut region = Region::committed(10_000, 1 << 21, backend, &none()).unwrap();
            assert_eq!((region.base().addr().get() % (1 << 21), region.bytes()), (0, 12_288));
            // SAFETY: the whole region is committed, and this test is its only user.
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
    fn growing_a_region_commits_only_the_added_bytes() {
        let faults = Faults::new(1);
        let mut region = Region::committed(64 << 10, 4096, Backend::Os, &faults).unwrap();
        faults.arm(crate::faults::Rule::parse_all("commit:space=65536", &crate::faults::POINTS).unwrap());
        assert!(region.resize(128 << 10, true) && !region.resize(132 << 10, true));
        assert!(region.resize(128 << 10, true) && region.resize(4096, true));
        assert_eq!(region.bytes(), 4096);
    }

    #[test]
    fn clearing_a_region_zeroes_touched_and_untouched_pages() {
        for backend in [Backend::Os, Backend::Heap] {
            for step in [1, 2, 40, 3000] {
                let mut region = Region::committed(9 << 20, 4096, backend, &none()).unwrap();
                let bytes = (9 << 20) - 5000;
                // SAFETY: the whole region is committed, and this test is its only user.
                let all = unsafe { core::slice::from_raw_parts_mut(region.base().as_ptr(), 9 << 20) };
                for page in (0..2304).step_by(step) {
                    all[page * 4096..][..4096].fill(7);
                }
                let last = all[bytes];
                region.clear(bytes);
                assert!(all[..bytes].iter().all(|byte| *byte == 0));
                assert_eq!(all[bytes], last, "the memory above the range is unchanged");
            }
        }
    }

    #[test]
    fn splitting_and_joining_a_region_keeps_its_contents() {
        let mut low = Region::committed(8 << 20, 4096, Backend::Os, &none()).unwrap();
        if !low.is_divisible() {
            assert!(low.split_off(4096).is_none());
            return;
        }
        // SAFETY: the whole region is committed, and this test is its only user.
        unsafe { low.base().write_bytes(7, 8 << 20) };
        assert!(low.split_off(8 << 20).is_none() && low.split_off(usize::MAX).is_none());
        let high = low.split_off((2 << 20) - 1).unwrap();
        assert_eq!((low.bytes(), high.bytes()), (2 << 20, 6 << 20));
        assert_eq!(high.base().addr().get() - low.base().addr().get(), 2 << 20);
        let mut high = high;
        let last = high.split_off(4 << 20).unwrap();
        let Err(last) = low.join(last) else { panic!("regions that are not adjacent were joined") };
        low.join(high).unwrap();
        drop(last);
        assert_eq!(low.bytes(), 6 << 20);
        // SAFETY: the whole region is committed, and this test is its only user. The region has lost its last 2 MiB.
        assert!(unsafe { core::slice::from_raw_parts(low.base().as_ptr(), 6 << 20) }.iter().all(|b| *b == 7));
        let mut heap = Region::committed(8192, 4096, Backend::Heap, &none()).unwrap();
        assert!(heap.split_off(4096).is_none() && !heap.is_divisible());
        // An adjacent region of another backend cannot be joined.
        let mut last = low.split_off(4 << 20).unwrap();
        core::mem::swap(&mut last.backing, &mut heap.backing);
        let Err(mut last) = low.join(last) else { panic!("regions of two backends were joined") };
        core::mem::swap(&mut last.backing, &mut heap.backing);
        last.uncommitted = Uncommitted::ReadsZero;
        let Err(mut last) = low.join(last) else { panic!("regions of two kinds were joined") };
        last.uncommitted = Uncommitted::NoAccess;
        low.join(last).unwrap();
    }

    /// Page metadata tables get memory even on the phantom backend. Phantom pages have addresses but no memory.
    #[test]
    fn phantom_pages_reserve_addresses_without_memory() {
        // SAFETY: the test does not access the region's pages, and tables have memory.
        let backend = Backend::Phantom(unsafe { Phantom::new() });
        let region = Region::reserve(1 << 30, 4 << 20, Uncommitted::NoAccess, backend, &none()).unwrap();
        assert_eq!((region.base().addr().get() % (4 << 20), region.backend()), (0, backend));
        assert!(region.commit(0..1 << 30) && region.advise(HugePages::Advise));
        // SAFETY: no code uses the region.
        assert!(unsafe { region.decommit(0..4096) });
        drop(region);
        assert!(Region::committed(4096, 4096, backend, &none()).is_none(), "the range is writable");
        assert!(
            Region::reserve(4096, 4096, Uncommitted::ReadsZero, backend, &none()).is_none(),
            "the range is readable"
        );
        let table = Reserved::new(1 << 20, backend, &none(), crate::faults::MAGAZINE).unwrap();
        assert!(table.commit(&Operation::new(), 8));
        // SAFETY: the table was just committed, and this test is its only user.
        assert_eq!(unsafe { *table.base().cast::<u64>().as_ptr() }, 0);
    }

    #[test]
    fn commit_refuses_ranges_that_are_unaligned_or_outside() {
        let region = Region::reserve(1 << 20, 4096, Uncommitted::NoAccess, Backend::Os, &none()).unwrap();
        assert!(!region.commit(0..(1 << 20) + 4096));
        assert!(!region.commit(1..4096));
        assert!(!region.commit(0..100));
    }

    #[test]
    fn refused_reservation_is_retried_with_half_the_size() {
        assert_eq!(reserve_with_halving(1000, 10, |n| (n <= 130).then_some(n)), Ok((125, 125)));
        assert_eq!(reserve_with_halving(1000, 10, |n| (n <= 10).then_some(n)), Ok((10, 10)));
        assert_eq!(reserve_with_halving::<()>(1000, 10, |_| None), Err(10));
        // `wish` exceeds any address space.
        let wish = 1 << 60;
        let reserve = |bytes| Region::reserve(bytes, 4096, Uncommitted::NoAccess, Backend::Os, &none());
        let (bytes, region) = reserve_with_halving(wish, 1 << 20, reserve).unwrap();
        assert!(bytes < wish && region.bytes() == bytes);
    }

    #[test]
    #[cfg_attr(uslab_heap, ignore = "the heap never releases addresses")]
    fn truncated_region_cannot_commit_its_released_addresses() {
        let region = Region::reserve(8 << 20, 4 << 20, Uncommitted::NoAccess, Backend::Os, &none()).unwrap();
        assert!(region.commit(0..4096));
        // SAFETY: the cut parts are not committed, and this test is the only user.
        unsafe { assert!([9, 4, 4, 5].iter().all(|mib| region.cut(mib << 20))) };
        assert_eq!(region.bytes(), 4 << 20);
        assert!(region.commit(4096..4 << 20) && !region.commit(4 << 20..5 << 20));
        let heap = Region::reserve(8 << 20, 4096, Uncommitted::NoAccess, Backend::Heap, &none()).unwrap();
        // SAFETY: this test is the only user of the region.
        assert!(!unsafe { heap.cut(4096) } && heap.bytes() == 8 << 20);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    fn grown_region_reads_as_zero() {
        const SPACING: usize = 1 << 30;
        let apart = |bytes| Region::reserve_apart(bytes, SPACING, Uncommitted::ReadsZero, &none()).unwrap();
        let regions = [1, 2, 3].map(|mib| apart(mib << 20));
        let places = regions.each_ref().map(|region| region.base().addr().get() / SPACING);
        assert!(places[0] > places[1] && places[1] > places[2], "{places:?}");
        for region in &regions {
            assert_eq!(region.base().addr().get() % SPACING, 0);
            let before = region.bytes();
            assert!(region.grow(before) && region.grow(before - 1) && region.bytes() == before);
            assert!(region.grow((8 << 20) - 1) && region.bytes() == 8 << 20);
            assert!(region.commit(before..8 << 20) && !region.commit(before..9 << 20));
            // SAFETY: the region was just committed, and this test is its only user.
            unsafe {
                let last = region.base().add((8 << 20) - 1);
                assert_eq!(last.read(), 0);
                last.write(7);
                // Cuts the region, and then grows it again.
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

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn tables_and_pages_of_a_reservation_do_not_overlap() {
        let (align, pages) = (4 << 20, 64 << 20);
        let (backend, faults) = (Backend::Os, none());
        let (mut tables, held) = Reservation::with_pages(40 << 20, pages, align, backend, &faults).unwrap();
        assert_eq!((held.base().addr().get() % align, held.bytes(), tables.is_empty()), (0, pages, false));
        assert!(held.commit(0..4096));
        let sizes = [
            (100, Uncommitted::NoAccess),
            (8 << 20, Uncommitted::ReadsZero),
            ((32 << 20) - 4096, Uncommitted::ReadsZero),
        ];
        let mut regions: Vec<Region> =
            sizes.map(|(bytes, uncommitted)| tables.reserve(bytes, uncommitted).unwrap()).into();
        assert!(tables.is_empty(), "the remainder is too small for another region");
        for region in &regions {
            // SAFETY: the second and the third region are readable before they are committed, and this test owns all
            // regions.
            unsafe {
                assert!(region.commit(0..4096));
                assert_eq!(*region.base().as_ptr(), 0);
                region.base().write_bytes(7, 4096);
                assert!(region.decommit(0..4096));
            }
        }
        regions.push(held);
        regions.push(tables.reserve(4096, Uncommitted::NoAccess).unwrap());
        regions.sort_by_key(|region| region.base());
        let end = |region: &Region| region.base().addr().get() + region.bytes();
        assert!(regions.is_sorted_by(|low, high| end(low) <= high.base().addr().get()));
        drop(regions.swap_remove(1));
        assert!(regions.iter().all(|region| region.commit(0..4096)), "the other regions stay reserved");
        // `with_pages` returns `None` if a fault refuses the reservation, and always on the heap.
        let faults = Faults::new(1);
        faults.arm(crate::faults::Rule::parse_all("reserve:times=1", &crate::faults::POINTS).unwrap());
        assert!(Reservation::with_pages(4096, pages, align, backend, &faults).is_none());
        assert!(Reservation::with_pages(4096, pages, align, Backend::Heap, &none()).is_none());
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
        assert_eq!(reserved.committed(), Reserved::COMMIT_STEP);
        assert_eq!(commit(Reserved::COMMIT_STEP), (true, Path::Cpu), "no system call was made");
        for steps in [2, 4, 8] {
            assert_eq!(commit(reserved.committed() + 1), (true, Path::Commit));
            assert_eq!(
                reserved.committed(),
                steps * Reserved::COMMIT_STEP,
                "twice the number of bytes are committed"
            );
        }
        assert_eq!((commit(1 << 20), commit((1 << 20) + 1)), ((true, Path::Commit), (false, Path::Cpu)));
    }

    /// Regression: a commit rounded up to a whole step failed, because the end of the region had been cut off. A heap
    /// region cannot give up addresses.
    #[test]
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    fn truncated_region_can_be_committed_completely() {
        let reserved = Reserved::new(4 << 20, Backend::Os, &none(), crate::faults::MAGAZINE).unwrap();
        let left = 5 * Reserved::COMMIT_STEP / 2;
        // SAFETY: the memory after `left` is unused, and no other thread exists.
        assert!(unsafe { reserved.cut(left) });
        let op = Operation::new();
        assert!(reserved.commit(&op, left) && !reserved.commit(&op, reserved.reserved() + 1));
        // The margin by which a commit may run ahead stays reserved.
        assert_eq!(reserved.reserved(), 4 * Reserved::COMMIT_STEP + Reserved::MAX_COMMIT_AHEAD);
        let growing = Reserved::growing(
            5 << 19,
            Some(1 << 30),
            &mut Reservation::none(Backend::Os, &none()),
            crate::faults::MAGAZINE,
        );
        let growing = growing.unwrap();
        assert!(!growing.commit(&op, Reserved::COMMIT_STEP + 1));
        let sizes = [1, 1 << 20, (1 << 20) + 1, (2 << 20) + 1, 5 << 19].map(|bytes| {
            assert!(growing.grow(bytes) && growing.commit(&op, bytes));
            growing.reserved()
        });
        assert_eq!(sizes, [1 << 20, 1 << 20, 2 << 20, 5 << 19, 5 << 19]);
        assert!(!growing.grow((5 << 19) + 1));
    }
}

//! Regions in memory from `mmap`, on Linux.

use super::{Access, HugePages, Source};
use crate::PAGE_SIZE;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use nix::libc;
use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, mremap, munmap,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use std::io::Read;

/// A private anonymous mapping. The region knows its address and size.
#[derive(Debug)]
pub(super) struct MappedSource {
    /// True if core dumps must contain only the committed parts of the region. Each commit in such a region marks the
    /// committed part for core dumps.
    is_told: bool,
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Self::Nothing => ProtFlags::PROT_NONE,
            Self::Read => ProtFlags::PROT_READ,
            Self::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        }
    }
}

/// Returns an address at which the OS would currently map `bytes` bytes. Returns `None` if the OS would refuse the
/// mapping.
pub(super) fn find_mappable_address(bytes: usize) -> Option<usize> {
    let (flags, none) = (MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE, Access::Nothing.protection());
    let size = NonZeroUsize::new(bytes)?;
    // SAFETY: no fixed address is requested, and the mapping is unmapped before any other code knows it.
    unsafe {
        let place = mmap_anonymous(None, size, none, flags).ok()?;
        munmap(place, bytes).ok()?;
        Some(place.addr().get())
    }
}

/// Maps `bytes` bytes at exactly `address`. Returns `None` if another mapping occupies any of these addresses.
fn map_at(address: usize, bytes: usize, access: Access) -> Option<NonNull<u8>> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
    let (wanted, bytes) = (NonZeroUsize::new(address)?, NonZeroUsize::new(bytes)?);
    // SAFETY: the flags prevent the call from replacing a mapping.
    let at = unsafe { mmap_anonymous(Some(wanted), bytes, access.protection(), flags) }.ok()?;
    if at.addr() == wanted {
        return Some(at.cast());
    }
    // Kernels before 4.17 treat the address as a hint. SAFETY: the range was just mapped.
    let _ = unsafe { munmap(at, bytes.get()) };
    None
}

// SAFETY: a private anonymous mapping is zero. The kept part is aligned, and no other mapping overlaps it.
unsafe impl Source for MappedSource {
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)> {
        // With larger OS pages, a discard would also lose bytes next to the returned part.
        if sysconf(SysconfVar::PAGE_SIZE).ok()?? != PAGE_SIZE as libc::c_long {
            return None;
        }
        let flags = match access {
            Access::ReadWrite => MapFlags::MAP_PRIVATE,
            Access::Nothing | Access::Read => MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
        };
        // Extra bytes, by which the start can move up to the alignment.
        let room = bytes.checked_add(align - PAGE_SIZE)?;
        // SAFETY: no fixed address is requested, so no mapping is replaced.
        let start = unsafe { mmap_anonymous(None, NonZeroUsize::new(room)?, access.protection(), flags) };
        let start = start.ok()?.cast::<u8>();
        let before = start.as_ptr().align_offset(align);
        let after = room - before - bytes;
        // SAFETY: `before + bytes + after` is exactly the mapped size.
        let (base, end) = unsafe { (start.add(before), start.add(before + bytes)) };
        for (at, len) in [(start, before), (end, after)] {
            if len > 0 {
                // SAFETY: the ends outside `base..base + bytes` were just mapped, and no other code knows them. A
                // failed unmap only leaves address space reserved.
                let _ = unsafe { munmap(at.cast(), len) };
            }
        }
        let is_told =
            access == Access::Read || access == Access::Nothing && bytes >= CORE_DUMP_EXCLUSION_BYTES;
        if is_told {
            // SAFETY: the range was just mapped.
            unsafe { set_core_dump_inclusion(base, bytes, false) };
        }
        Some((base, Self { is_told }))
    }

    fn reserve_apart(bytes: usize, apart: usize, access: Access) -> Option<(NonNull<u8>, Self)> {
        // The system maps downwards from this address, or upwards if stacks are unlimited.
        let address = find_mappable_address(PAGE_SIZE)?;
        let places = (1..=MAX_ADDRESS_ATTEMPTS)
            .map_while(|place| (address / apart * apart).checked_sub(place * apart));
        let base = places.filter_map(|place| map_at(place, bytes, access)).next()?;
        let is_told = access == Access::Read;
        if is_told {
            // SAFETY: the range was just mapped.
            unsafe { set_core_dump_inclusion(base, bytes, false) };
        }
        Some((base, Self { is_told }))
    }

    fn grow(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        let grown = map_at(at.addr().get(), bytes, access).is_some();
        if grown && self.is_told {
            // SAFETY: the range was just mapped.
            unsafe { set_core_dump_inclusion(at, bytes, false) };
        }
        grown
    }

    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is part of this mapping, by this function's contract.
        unsafe {
            let committed = mprotect(at.cast(), bytes, Access::ReadWrite.protection()).is_ok();
            if committed && self.is_told {
                set_core_dump_inclusion(at, bytes, true);
            }
            committed
        }
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        // SAFETY: the range is part of this mapping, and no thread uses it, by this function's contract.
        let given = unsafe { self.discard(at, bytes) };
        // SAFETY: the range is part of this mapping, and no thread uses it, by this function's contract.
        unsafe {
            if self.is_told {
                set_core_dump_inclusion(at, bytes, false);
            }
            mprotect(at.cast(), bytes, access.protection()).is_ok() && given
        }
    }

    unsafe fn protect(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        // SAFETY: the range is part of this mapping, and no thread uses it, by this function's contract.
        unsafe { mprotect(at.cast(), bytes, access.protection()) }.is_ok()
    }

    unsafe fn discard(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is part of this mapping, and its contents may be lost, by this function's contract.
        unsafe { madvise(at.cast(), bytes, MmapAdvise::MADV_DONTNEED) }.is_ok()
    }

    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>> {
        let flags = if may_move { MRemapFlags::MREMAP_MAYMOVE } else { MRemapFlags::empty() };
        // SAFETY: the range is this mapping, by this function's contract, and no fixed address is requested.
        unsafe { mremap(at.cast(), old, new, flags, None) }.ok().map(NonNull::cast)
    }

    unsafe fn advise(&self, at: NonNull<u8>, bytes: usize, huge_pages: HugePages) -> bool {
        let advice = match huge_pages {
            HugePages::System => return true,
            HugePages::Advise => MmapAdvise::MADV_HUGEPAGE,
            HugePages::Never => MmapAdvise::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is part of this mapping, and the advice keeps its contents.
        unsafe { madvise(at.cast(), bytes, advice) }.is_ok()
    }

    unsafe fn clear(&self, at: NonNull<u8>, bytes: usize) {
        let whole = if bytes >= MIN_DISCARDED_BYTES { bytes / PAGE_SIZE * PAGE_SIZE } else { 0 };
        // SAFETY: the part begins at a page, and the discarded range ends at a page.
        unsafe {
            let left = if whole > 0 && self.discard(at, whole) { whole } else { 0 };
            at.add(left).write_bytes(0, bytes - left);
        }
    }

    fn part(&self) -> Option<Self> {
        Some(Self { is_told: self.is_told })
    }

    unsafe fn cut(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is part of this mapping, and no thread uses it, by this function's contract.
        unsafe { munmap(at.cast(), bytes) }.is_ok()
    }

    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool {
        // The system refuses to unmap if that would split a mapping and the process has reached its limit
        // (`vm.max_map_count`). SAFETY: the range is this mapping, and no thread uses it, by this function's contract.
        unsafe {
            let is_unmapped = munmap(at.cast(), bytes).is_ok();
            if !is_unmapped {
                self.discard(at, bytes);
            }
            is_unmapped
        }
    }
}

/// Maximum number of addresses to try when reserving a region far from other mappings. Some of the tried addresses may
/// be occupied by other mappings.
const MAX_ADDRESS_ATTEMPTS: usize = 64;

/// Minimum size in bytes of a region whose inaccessible parts are excluded from core dumps. A commit in a region that
/// is excluded from core dumps costs one more system call.
const CORE_DUMP_EXCLUSION_BYTES: usize = 1 << 30;

/// Includes memory in core dumps, or excludes it. The kernel's core dumps omit pages that were never written. The
/// `gcore` command of gdb writes all pages that are not excluded, even inaccessible pages: 64 GiB of zeros for the
/// default range. If the `madvise` call fails, only the contents of a core dump are affected.
///
/// # Safety
/// The memory must be inside one mapping that this module created.
unsafe fn set_core_dump_inclusion(at: NonNull<u8>, bytes: usize, included: bool) {
    let advice = if included { MmapAdvise::MADV_DODUMP } else { MmapAdvise::MADV_DONTDUMP };
    // SAFETY: the part is in a mapping of this module, by this function's contract, and the advice keeps its contents.
    let _ = unsafe { madvise(at.cast(), bytes, advice) };
}

/// Minimum size in bytes from which `clear` returns memory to the OS instead of writing zeros. `clear` does not call
/// `mincore` to find the backed pages, because some sandboxes kill a process that calls it. The next write to a
/// returned page costs a page fault, as in a new mapping.
const MIN_DISCARDED_BYTES: usize = 4 << 20;

/// Returns a resource limit of this process. Returns `None` if the process may use this resource without a limit.
fn resource_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(limit, _)| limit).filter(|limit| *limit != RLIM_INFINITY)
}

/// Implements [`region::process_limit`](super::process_limit). The function allocates no memory.
pub(super) fn process_limit() -> Option<u64> {
    [Resource::RLIMIT_AS, Resource::RLIMIT_DATA].into_iter().filter_map(resource_limit).min()
}

/// Implements [`region::address_limit`](super::address_limit). The function allocates no memory.
pub(super) fn address_limit() -> Option<(usize, usize)> {
    let limit = resource_limit(Resource::RLIMIT_AS)?;
    // The first number counts the pages of all mappings, and the kernel compares this count with the limit.
    // The size is 0 if the number is unknown.
    let mut text = [0; 128];
    let read = std::fs::File::open("/proc/self/statm").and_then(|mut file| file.read(&mut text));
    let text = core::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
    let pages: usize = text.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Some((usize::try_from(limit).ok()?, pages.saturating_mul(PAGE_SIZE)))
}

/// Implements [`region::commits_are_counted`](super::commits_are_counted). The function allocates no memory.
pub(super) fn commits_are_counted() -> bool {
    let mut text = [0];
    let file = std::fs::File::open("/proc/sys/vm/overcommit_memory");
    file.and_then(|mut file| file.read_exact(&mut text)).is_ok() && text == *b"2"
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::Tables;
    use crate::faults::{Faults, MAGAZINE};
    use crate::per_cpu::PageRound;
    use crate::region::{Backend, HugePages, Region, Reservation, Reserved, Uncommitted};
    use uslab_magazine::{Config, Cpus};

    /// Returns the kernel's flags for the mapping that contains `address`.
    fn flags(address: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_owned();
            }
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((Ok(start), Ok(end))) =
                range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)))
            {
                inside = (start..end).contains(&address);
            }
        }
        String::new()
    }

    #[test]
    fn region_advises_the_kernel_on_huge_pages() {
        let told = |huge_pages| {
            let region =
                Region::reserve(8 << 20, 4 << 20, Uncommitted::NoAccess, Backend::Os, &Faults::default())
                    .unwrap();
            let taken = region.advise(huge_pages);
            let flags = flags(region.base().addr().get());
            (taken, flags.contains(" hg"), flags.contains(" nh"))
        };
        assert_eq!(told(HugePages::System), (true, false, false));
        // A kernel without huge pages refuses the advice.
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert_eq!(told(HugePages::Advise), (true, true, false));
            assert_eq!(told(HugePages::Never), (true, false, true));
            let (backend, faults) = (Backend::Os, Faults::default());
            let side = Reserved::readable(8 << 20, 4096, backend, &faults, MAGAZINE).unwrap();
            assert!(flags(side.base().addr().get()).contains(" nh"));
            let tables = Tables::new(Cpus::os(), &mut Reservation::none(backend, &faults)).unwrap();
            let layer = tables.layer::<PageRound>(Config::new(4, 2, 2), true).unwrap();
            assert!(flags(layer.homes()[0]).contains(" nh"));
        }
    }

    /// Regression: `gcore` dumped 88 GB of mostly inaccessible pages for a small process, and filled a disk.
    #[test]
    fn core_dumps_contain_committed_memory() {
        for (bytes, uncommitted) in
            [(1 << 20, Uncommitted::ReadsZero), (super::CORE_DUMP_EXCLUSION_BYTES, Uncommitted::NoAccess)]
        {
            let region = Region::reserve(bytes, 4096, uncommitted, Backend::Os, &Faults::default()).unwrap();
            let is_left_out = || flags(region.base().addr().get()).contains(" dd");
            assert!(is_left_out());
            assert!(region.commit(0..4096) && !is_left_out());
            // SAFETY: this test is the only user of the region.
            assert!(unsafe { region.decommit(0..4096) } && is_left_out());
        }
    }

    #[test]
    fn discarded_memory_is_zero_and_stays_accessible() {
        let region = Region::committed(1 << 20, 4096, Backend::Os, &Faults::default()).unwrap();
        // SAFETY: the range is committed, and this test is its only user.
        unsafe {
            region.base().write(9);
            assert!(region.discard(0..4096));
            assert_eq!(*region.base().as_ptr(), 0);
            region.base().write(9);
        }
    }
}

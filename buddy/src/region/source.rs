//! The interface between a region and the backend that supplies its memory.

use core::ptr::NonNull;

/// The use of huge pages (2 MiB on x86-64) in a region. Huge pages reduce TLB misses. However, the first access to a
/// huge page takes and zeroes 2 MiB, and the memory can be returned only as a whole.
///
/// The default follows from two measurements on a system with the `madvise` setting: bursts of 100,000 live objects of
/// 64 bytes, and 10,000 objects of 8 to 1024 bytes. With huge pages, allocations and frees were not measurably faster,
/// and a million objects took 1 % more memory. The OS therefore gets no advice on huge pages by default. Use `Advise`
/// for a cache of several gigabytes with random accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// No advice: the OS applies its own default.
    #[default]
    System,
    /// Requests huge pages (`MADV_HUGEPAGE`) on a system that leaves the choice to programs.
    Advise,
    /// Forbids huge pages (`MADV_NOHUGEPAGE`), even if the OS uses them by default.
    Never,
}

/// The kinds of access that a memory mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

/// The memory of a region, from one backend. All addresses and sizes in this trait are multiples of the page size.
///
/// # Safety
/// An implementation must return zeroed memory of the requested size and alignment, unused by other code until `free`.
pub(super) unsafe trait Source: core::fmt::Debug + Sized {
    /// Reserves `bytes` bytes at a multiple of `align`, which is at least the page size. Returns `None` if the OS
    /// refuses the memory. The OS counts writable memory as committed, and inaccessible memory only as address space.
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)>;

    /// Reserves memory at a multiple of `apart` that is far from other mappings. A backend without `mmap` always
    /// returns `None`.
    fn reserve_apart(_bytes: usize, _apart: usize, _access: Access) -> Option<(NonNull<u8>, Self)> {
        None
    }

    /// Extends the memory, whose end is `at`, by `bytes` bytes. Returns `false` if another mapping occupies any of
    /// these addresses.
    fn grow(&self, _at: NonNull<u8>, _bytes: usize, _access: Access) -> bool {
        false
    }

    /// Makes the `bytes` bytes at `at` readable and writable. Returns `false` if the OS refuses to commit the bytes.
    ///
    /// # Safety
    /// The `bytes` bytes at `at` must be inside this memory.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Decommits the `bytes` bytes at `at`. After the next commit, decommitted bytes are zero. Before their next
    /// commit, decommitted bytes permit only accesses of the kind `access`. See [`Region::decommit`].
    ///
    /// # Safety
    /// The `bytes` bytes at `at` must be inside this memory, and no thread may use them.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool;

    /// Changes the protection of the `bytes` bytes at `at`: see [`Region::protect`].
    ///
    /// # Safety
    /// The `bytes` bytes at `at` must be inside this memory, and no thread may use them.
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, access: Access) -> bool {
        // A source without protection has only accessible memory.
        access == Access::ReadWrite
    }

    /// Returns the `bytes` bytes at `at` to the OS, but keeps them accessible: see [`Region::discard`].
    ///
    /// # Safety
    /// The `bytes` bytes at `at` must be inside this memory. A thread that reads these bytes during the call must
    /// accept zeros.
    unsafe fn discard(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Resizes the memory and returns its new address: see [`Region::resize`].
    ///
    /// # Safety
    /// The memory must start at `at`, have `old` bytes, and be completely writable.
    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>>;

    /// Advises the OS on huge pages for the `bytes` bytes at `at`: see [`Region::advise`].
    ///
    /// # Safety
    /// The `bytes` bytes at `at` must be inside this memory.
    unsafe fn advise(&self, at: NonNull<u8>, bytes: usize, huge_pages: HugePages) -> bool;

    /// Zeroes the `bytes` bytes at `at`: see [`Region::clear`].
    ///
    /// # Safety
    /// The bytes must be inside this memory and writable, and no thread may use them.
    unsafe fn clear(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the part is writable and unused, by this function's contract.
        unsafe { at.write_bytes(0, bytes) };
    }

    /// Returns a new owner, which can take over a part of this memory. Returns `None` if the backend can free the
    /// memory only as a whole.
    fn part(&self) -> Option<Self> {
        None
    }

    /// Frees the last `bytes` bytes of the memory, which start at `at`. Returns `false` if the backend can free the
    /// memory only as a whole.
    ///
    /// # Safety
    /// The freed bytes must be the end of this memory, and no thread may use them any more.
    unsafe fn cut(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Frees all of the memory. Returns `false` if the OS discarded the contents but could not unmap the addresses. If
    /// `free` returns `false`, the caller may call it again.
    ///
    /// # Safety
    /// The memory must start at `at` and have `bytes` bytes, and no thread may use it. After `free` returned `true`,
    /// `self` must not be used any more.
    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool;
}

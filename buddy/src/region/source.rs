//! The interface between a region and its memory.

use core::ptr::NonNull;

/// Use of huge pages (2 MiB on x86-64) for a region. Huge pages reduce TLB misses, but the first touch of a huge page
/// takes and zeroes 2 MiB, and no smaller part can be returned.
///
/// The default was measured on a system that leaves the choice to programs, with 100,000 live objects of 64
/// bytes in bursts, and with 10,000 objects of 8 to 1024 bytes. With huge pages, no allocation and free were
/// faster by more than the noise, and a million objects took 1 % more memory. By default, the system gets no
/// advice on huge pages. `Advise` is for a cache of gigabytes with random accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// The system's default for memory without advice.
    #[default]
    System,
    /// Requests huge pages (`MADV_HUGEPAGE`), if the system leaves the choice to programs.
    Advise,
    /// Forbids huge pages (`MADV_NOHUGEPAGE`), even if they are the system's default.
    Never,
}

/// Allowed accesses to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

/// The memory of a region. All addresses and sizes of the memory are multiples of a page.
///
/// # Safety
/// An implementation must return zeroed memory of the requested size and alignment, unused by other code until `free`.
pub(super) unsafe trait Source: core::fmt::Debug + Sized {
    /// Reserves `bytes` bytes at a multiple of `align`, which is at least a page. Returns `None` if the system refuses.
    /// The system counts writable memory as committed, and inaccessible memory only as address space.
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)>;

    /// Reserves at a multiple of `apart`, far from other mappings. Also returns `None` if the source has no mappings.
    fn reserve_apart(_bytes: usize, _apart: usize, _access: Access) -> Option<(NonNull<u8>, Self)> {
        None
    }

    /// Reserves the addresses after the memory's end, at `at`, if no other mapping has any of them.
    fn grow(&self, _at: NonNull<u8>, _bytes: usize, _access: Access) -> bool {
        false
    }

    /// Makes a part of the memory readable and writable. Returns `false` if the system refuses.
    ///
    /// # Safety
    /// The part must be in this memory.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Decommits a part of the memory. The next commit finds the part zeroed. Until its next commit, a
    /// decommitted part permits only accesses of the kind `access`. See [`Region::decommit`].
    ///
    /// # Safety
    /// The part must be in this memory, and no thread may use it.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool;

    /// Changes the protection of a part of the memory: see [`Region::protect`].
    ///
    /// # Safety
    /// The part must be in this memory, and no thread may use it.
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, access: Access) -> bool {
        // A source without protection has only accessible memory.
        access == Access::ReadWrite
    }

    /// Returns the memory of a part, which stays accessible: see [`Region::discard`].
    ///
    /// # Safety
    /// The part must be in this memory. Threads that read the part during the call must accept zeros.
    unsafe fn discard(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Resizes the memory and returns its address: see [`Region::resize`].
    ///
    /// # Safety
    /// The memory must be at `at`, have `old` bytes, and be writable as a whole.
    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>>;

    /// Advises the system on huge pages: see [`Region::advise`].
    ///
    /// # Safety
    /// The part must be in this memory.
    unsafe fn advise(&self, at: NonNull<u8>, bytes: usize, huge_pages: HugePages) -> bool;

    /// Zeroes a part of the memory: see [`Region::clear`].
    ///
    /// # Safety
    /// The part must be in this memory and writable, and no thread may use it.
    unsafe fn clear(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the part is writable and unused, by this function's contract.
        unsafe { at.write_bytes(0, bytes) };
    }

    /// Returns an owner for a part of this memory. Returns `None` if parts cannot be freed separately.
    fn part(&self) -> Option<Self> {
        None
    }

    /// Frees a part at the memory's end. Returns `false` if parts cannot be freed separately.
    ///
    /// # Safety
    /// The part must be in this memory, and no thread may use it any more.
    unsafe fn cut(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Frees the memory as a whole. Returns `false` if only the contents were returned. If `free` returns `false`, the
    /// addresses stay, and the call may be repeated.
    ///
    /// # Safety
    /// The memory must be at `at` and have `bytes` bytes, and no thread may use it. After `free` returned `true`,
    /// `self` must not be used either.
    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool;
}

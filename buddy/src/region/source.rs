//! The interface between a region and its memory.

use core::ptr::NonNull;

/// Use of huge pages (2 MiB on x86-64) for a region. They reduce TLB misses, but the first touch takes and
/// zeroes 2 MiB, and no smaller part can be returned.
///
/// Measured on a system that leaves the choice to programs (100,000 live objects of 64 bytes in bursts;
/// 10,000 of 8 to 1024 bytes): with the advice no pair became faster by more than the noise, and a million
/// objects took 1 % more memory. Hence the default. `Advise` is for a cache of gigabytes with random
/// accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// The system's default for memory without advice.
    #[default]
    System,
    /// Huge pages (`MADV_HUGEPAGE`), if the system leaves the choice to programs.
    Advise,
    /// No huge pages (`MADV_NOHUGEPAGE`), even if they are the system's default.
    Never,
}

/// Allowed accesses to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

/// The memory of a region. Addresses and sizes are whole pages.
///
/// # Safety
/// An implementation returns zeroed memory of the requested size and alignment, which no other code uses
/// until `free`.
pub(super) unsafe trait Source: core::fmt::Debug + Sized {
    /// Reserves `bytes` bytes at a multiple of `align`, which is at least a page; `None` if refused. Writable
    /// memory counts as committed for the system; inaccessible memory is only address space.
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)>;

    /// Reserves at a multiple of `apart`, far from other mappings; `None` also if the source has no mappings.
    fn apart(_bytes: usize, _apart: usize, _access: Access) -> Option<(NonNull<u8>, Self)> {
        None
    }

    /// Reserves the addresses from its end, at `at`, if no other mapping has any of them.
    fn grow(&self, _at: NonNull<u8>, _bytes: usize, _access: Access) -> bool {
        false
    }

    /// Makes a part readable and writable. `false` if refused.
    ///
    /// # Safety
    /// The part is in this memory.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Decommits a part: the next commit finds it zeroed. Until then it allows `access` only. See
    /// [`Region::decommit`].
    ///
    /// # Safety
    /// The part is in this memory, and no thread uses it.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool;

    /// Changes the protection of a part: see [`Region::protect`].
    ///
    /// # Safety
    /// The part is in this memory, and no thread uses it.
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, access: Access) -> bool {
        // Without protection all memory is accessible.
        access == Access::ReadWrite
    }

    /// Returns the memory of a part, which stays accessible: see [`Region::discard`].
    ///
    /// # Safety
    /// The part is in this memory. Threads that read it during the call accept zeros.
    unsafe fn discard(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Resizes the memory and returns its address: see [`Region::resize`].
    ///
    /// # Safety
    /// The memory is at `at`, has `old` bytes, and is writable as a whole.
    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>>;

    /// Advises on huge pages: see [`Region::advise`].
    ///
    /// # Safety
    /// The part is in this memory.
    unsafe fn advise(&self, at: NonNull<u8>, bytes: usize, huge_pages: HugePages) -> bool;

    /// Zeroes a part: see [`Region::clear`].
    ///
    /// # Safety
    /// The part is in this memory, writable, and no thread uses it.
    unsafe fn clear(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the part is writable and unused, by this function's contract.
        unsafe { at.write_bytes(0, bytes) };
    }

    /// An owner for a part of this memory, if parts can be freed separately; otherwise `None`.
    fn part(&self) -> Option<Self> {
        None
    }

    /// Frees a part at its end; `false` if parts cannot be freed separately.
    ///
    /// # Safety
    /// The part is in this memory, and no thread will use it.
    unsafe fn cut(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Frees the memory as a whole. `false` if only its contents were returned: the addresses stay, and the
    /// call may be repeated.
    ///
    /// # Safety
    /// The memory is at `at`, has `bytes` bytes, and no thread uses it; after `true` `self` is not used
    /// either.
    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool;
}

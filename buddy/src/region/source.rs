//! What a region asks of whoever has memory.

use core::ptr::NonNull;

/// Whether a region's memory should be in huge pages (2 MiB on x86-64): fewer misses of the address cache, but the first
/// touch of a page takes 2 MiB and zeroes them, and memory goes back in no smaller part.
///
/// Measured where the system leaves it to the program (100,000 live objects of 64 bytes in bursts; 10,000 of 8 to 1024
/// bytes): advised, no pair became faster by more than the noise, and a million objects took 1 % more memory. Hence the
/// default. A cache of gigabytes, used at random, is what `Advise` is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// As the system does with memory that nobody says anything about.
    #[default]
    System,
    /// Yes (`MADV_HUGEPAGE`), where the system leaves it to the program.
    Advise,
    /// No (`MADV_NOHUGEPAGE`), even where the system would by itself.
    Never,
}

/// What may be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nothing,
    Read,
    ReadWrite,
}

/// What stands behind a region. Addresses and bytes are whole pages.
///
/// # Safety
/// Whoever implements it hands out memory that is zero, as long and aligned as asked for, and nobody else's until `free`.
pub(super) unsafe trait Source: core::fmt::Debug + Sized {
    /// `bytes` bytes at a multiple of `align`, which is a page at least; `None` when refused. Memory that may be written to
    /// is memory that the system answers for; any other is address space.
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)>;

    /// As [`new`](Self::new), at a multiple of `apart` and far from what others map; `None`, too, where memory is had as a whole.
    fn apart(_bytes: usize, _apart: usize, _access: Access) -> Option<(NonNull<u8>, Self)> {
        None
    }

    /// Takes the addresses behind its end, which is at `at`, if no other mapping has any of them.
    fn grow(&self, _at: NonNull<u8>, _bytes: usize, _access: Access) -> bool {
        false
    }

    /// Makes a part of it readable and writable. `false` when refused.
    ///
    /// # Safety
    /// The part is this memory's.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// As [`Region::decommit`]: the next commit finds the part zero. Up to then `access` is all that is used.
    ///
    /// # Safety
    /// The part is this memory's, and nobody uses it.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool;

    /// As [`Region::protect`].
    ///
    /// # Safety
    /// The part is this memory's, and nobody uses it.
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, access: Access) -> bool {
        // What cannot be protected is accessible.
        access == Access::ReadWrite
    }

    /// As [`Region::discard`].
    ///
    /// # Safety
    /// The part is this memory's. Others may read it meanwhile, and do not mind that it becomes zero.
    unsafe fn discard(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// As [`Region::resize`]: where it is now.
    ///
    /// # Safety
    /// It is at `at`, `old` bytes long, and may be written to as a whole.
    unsafe fn resize(
        &mut self,
        at: NonNull<u8>,
        old: usize,
        new: usize,
        may_move: bool,
    ) -> Option<NonNull<u8>>;

    /// As [`Region::advise`].
    ///
    /// # Safety
    /// The part is this memory's.
    unsafe fn advise(&self, at: NonNull<u8>, bytes: usize, huge_pages: HugePages) -> bool;

    /// As [`Region::clear`].
    ///
    /// # Safety
    /// The part is this memory's, may be written to, and nobody uses it.
    unsafe fn clear(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: by contract.
        unsafe { at.write_bytes(0, bytes) };
    }

    /// An owner for a part of this memory, where parts can be given back one by one; `None` where memory is had as a whole.
    fn part(&self) -> Option<Self> {
        None
    }

    /// Gives a part at its end back; `false` where memory is had as a whole.
    ///
    /// # Safety
    /// The part is this memory's, and nobody uses it, nor will.
    unsafe fn cut(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Gives it back as a whole. `false` if only its contents went: its addresses stay, and this may be tried again.
    ///
    /// # Safety
    /// It is at `at`, `bytes` bytes long, and no longer used; after `true`, `self` is not used either.
    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool;
}

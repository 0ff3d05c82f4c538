//! Phantom memory: addresses without memory, as pages for a simulator. The simulator computes with the addresses of
//! objects, but never accesses the objects.
//!
//! On Linux, the phantom range is reserved and inaccessible, so any access faults. On other systems, phantom addresses
//! are only numbers. In WebAssembly, phantom addresses are above the largest linear memory (see [`BASE`]), so any
//! access traps. On other 64-bit systems, phantom addresses are beyond any address that a process can map.

use super::{Access, HugePages, Source};
use core::ptr::NonNull;

#[cfg(all(target_os = "linux", not(uslab_heap)))]
use super::mapped::MappedSource as Range;

#[derive(Debug)]
pub(super) struct Addresses(Range);

// SAFETY: the creator of the `Phantom` guarantees that no code accesses the addresses. `Addresses` fulfils the other
// requirements of `Source`.
unsafe impl Source for Addresses {
    fn new(bytes: usize, align: usize, access: Access) -> Option<(NonNull<u8>, Self)> {
        // A writable region needs memory.
        if access != Access::Nothing {
            return None;
        }
        Range::new(bytes, align, access).map(|(base, range)| (base, Self(range)))
    }
    unsafe fn commit(&self, _: NonNull<u8>, _: usize) -> bool {
        true
    }
    unsafe fn decommit(&self, _: NonNull<u8>, _: usize, _: Access) -> bool {
        true
    }
    unsafe fn discard(&self, _: NonNull<u8>, _: usize) -> bool {
        true
    }
    unsafe fn resize(&mut self, _: NonNull<u8>, _: usize, _: usize, _: bool) -> Option<NonNull<u8>> {
        None
    }
    unsafe fn advise(&self, _: NonNull<u8>, _: usize, _: HugePages) -> bool {
        true
    }
    unsafe fn free(&mut self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range belongs to this value, and no code uses it, by this function's contract.
        unsafe { self.0.free(at, bytes) }
    }
}

#[cfg(not(all(target_os = "linux", not(uslab_heap))))]
use numbers::Range;

// Models run on Linux, and their pages are memory.
#[cfg(not(any(loom, shuttle, all(target_os = "linux", not(uslab_heap)))))]
mod numbers {
    use super::{Access, NonNull};
    use uslab_magazine::sync::{
        AtomicBool,
        Ordering::{Acquire, Release},
    };

    /// The lowest phantom address, at a quarter of the address space. In WebAssembly it is 1 GiB, and the linear memory
    /// must stay below it (`--max-memory`).
    const BASE: usize = usize::MAX / 4 + 1;

    /// True while a phantom range is in use; a process has at most one.
    static PHANTOM_IN_USE: AtomicBool = AtomicBool::new(false);

    #[derive(Debug)]
    pub(super) struct Range(());

    impl Range {
        pub(super) fn new(bytes: usize, align: usize, _: Access) -> Option<(NonNull<u8>, Self)> {
            let base = BASE.checked_next_multiple_of(align)?;
            // An offset into a region must fit an `isize`.
            let fits = bytes <= isize::MAX as usize && base.checked_add(bytes).is_some();
            let base = NonNull::new(core::ptr::without_provenance_mut(base)).filter(|_| fits)?;
            // Acquire: pairs with the Release in `free`, after which all earlier uses of the range are over.
            (!PHANTOM_IN_USE.swap(true, Acquire)).then_some((base, Self(())))
        }
        /// # Safety
        /// No code may use the range after the call.
        pub(super) unsafe fn free(&mut self, _: NonNull<u8>, _: usize) -> bool {
            // Release: pairs with the Acquire in `new`.
            PHANTOM_IN_USE.store(false, Release);
            true
        }
    }
}

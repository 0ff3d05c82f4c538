//! Converts the calls of malloc and free in a program to operations of kmalloc.
//!
//! An allocation of 0 bytes gets an object of the smallest size class, because malloc must return a unique address. A
//! block larger than kmalloc's largest object is omitted and counted, because malloc would map it separately.

use uslab::SizeClass;

use super::page_size::PageSize;

/// The page size to which blocks too large for a slab are rounded up.
const PAGE: PageSize = PageSize::Kib4;

/// A program's call of malloc or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The call allocated the block `block`. Blocks are numbered from 1, because 0 is not an address.
    Alloc { block: u64, bytes: u32, takes: u32 },
    /// The call freed the block `block`, which was live.
    Free { block: u64 },
    /// The call freed no block.
    FreeOfNothing,
    /// The call allocated a block that is too large for kmalloc.
    TooLarge,
    /// The call freed a block that is too large for kmalloc.
    FreeOfTooLarge,
    /// The call was an allocation that failed.
    Failed,
    /// The call resized a block in place.
    Resized,
}

impl Call {
    pub(super) fn alloc(block: u64, bytes: u64, align: u64) -> Self {
        match kmalloc_bytes(bytes, align) {
            // `takes` is at least `bytes`, and fits.
            Some(takes) => Self::Alloc { block, bytes: bytes as u32, takes },
            None => Self::TooLarge,
        }
    }
}

/// Returns the number of bytes that kmalloc uses for an aligned request of `bytes` bytes: a size class, or a
/// power of two of pages.
fn kmalloc_bytes(bytes: u64, align: u64) -> Option<u32> {
    let least = bytes.max(align);
    if least > PAGE.max_kmalloc_object_bytes() {
        return None;
    }
    let class = SizeClass::for_layout(bytes as usize, align as usize);
    u32::try_from(class.map_or(least.next_power_of_two(), |class| class.size() as u64)).ok()
}

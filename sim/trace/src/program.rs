//! A program's calls of malloc and free, as operations of kmalloc.
//!
//! An allocation of 0 bytes gets an object of the smallest size class, because malloc must return a separate address. A block
//! that is larger than kmalloc's largest object is one that malloc maps separately: it is omitted, and counted.

use uslab::SizeClass;

use super::page_size::PageSize;

/// The size of the pages that kmalloc uses for blocks that are too large for a slab.
const PAGE: PageSize = PageSize::Kib4;

/// A call of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// `block` is allocated. Blocks are numbered from 1, because 0 is not an address.
    Alloc { block: u64, bytes: u32, takes: u32 },
    /// `block`, which is live, is freed.
    Free { block: u64 },
    /// A free without a block.
    FreeOfNothing,
    /// The allocation of a block that is too large.
    TooLarge,
    /// The free of a block that is too large.
    FreeOfTooLarge,
    /// An allocation that failed.
    Failed,
    /// A block was resized in place.
    Resized,
}

impl Call {
    pub(super) fn alloc(block: u64, bytes: u64, align: u64) -> Self {
        match taken(bytes, align) {
            // `takes` is at least `bytes`, and fits.
            Some(takes) => Self::Alloc { block, bytes: bytes as u32, takes },
            None => Self::TooLarge,
        }
    }
}

/// The bytes that kmalloc uses for a request of `bytes` bytes at an alignment: a size class, or a power of two of pages.
fn taken(bytes: u64, align: u64) -> Option<u32> {
    let least = bytes.max(align);
    if least > PAGE.max_object() {
        return None;
    }
    let class = SizeClass::for_layout(bytes as usize, align as usize);
    u32::try_from(class.map_or(least.next_power_of_two(), |class| class.size() as u64)).ok()
}

//! A program's calls of malloc and free, as operations of kmalloc.
//!
//! An allocation of no bytes gets an object of the smallest size class, as malloc must give it an address of its own. What is
//! larger than kmalloc's largest object a malloc maps by itself: it is left out, and counted.

use uslab::SizeClass;

use super::page_size::PageSize;

/// The pages that kmalloc takes for what is too large for a slab.
const PAGE: PageSize = PageSize::Kib4;

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// `block` is allocated. Blocks are numbered from 1: 0 is no address.
    Alloc { block: u64, bytes: u32, takes: u32 },
    /// `block`, which is there, is freed.
    Free { block: u64 },
    /// Nothing was there to be freed.
    FreeOfNothing,
    /// The allocation of a block that is too large.
    TooLarge,
    /// And its free.
    FreeOfTooLarge,
    /// There was no memory.
    Failed,
    /// A block has another size, where it is.
    Resized,
}

impl Call {
    pub(super) fn alloc(block: u64, bytes: u64, align: u64) -> Self {
        match taken(bytes, align) {
            // What it takes is no less, and fits.
            Some(takes) => Self::Alloc { block, bytes: bytes as u32, takes },
            None => Self::TooLarge,
        }
    }
}

/// What kmalloc takes for so many bytes at an alignment: a size class, or whole pages, twice as many each time.
fn taken(bytes: u64, align: u64) -> Option<u32> {
    let least = bytes.max(align);
    if least > PAGE.max_object() {
        return None;
    }
    let class = SizeClass::for_layout(bytes as usize, align as usize);
    u32::try_from(class.map_or(least.next_power_of_two(), |class| class.size() as u64)).ok()
}

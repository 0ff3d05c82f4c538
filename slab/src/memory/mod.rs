//! Memory below the caches: pages, their metadata, and mappings above the largest block.
//!
//! | file | |
//! |---|---|
//! | `slab_memory` | pages with their frames, side tables and classes, for the slabs of all caches |
//! | `slab` | one slab, and its bitmaps |
//! | `page_classes` | the size class of each page |
//! | `large_blocks` | blocks of pages that are not slabs |
//! | `huge` | mappings above the largest block, and kept freed mappings |

pub(crate) mod slab_memory;
// A model's subsystem has no malloc.
pub mod huge;
pub(crate) mod large_blocks;
pub(crate) mod page_classes;
pub(crate) mod slab;

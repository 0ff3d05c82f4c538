//! What lies below caches: pages, what is known about each, and mappings above the largest block.
//!
//! | file | |
//! |---|---|
//! | `slab_memory` | pages with their frames, side tables and classes, for the slabs of all caches |
//! | `slab` | one slab: which objects are out |
//! | `page_classes` | the size class of each page |
//! | `large_blocks` | blocks of pages that are no slabs |
//! | `huge` | what no block of pages holds: mappings, and freed ones that are kept |

pub(crate) mod slab_memory;
// No subsystem has a malloc under a checker.
pub mod huge;
pub(crate) mod large_blocks;
pub(crate) mod page_classes;
pub(crate) mod slab;

//! What lies below caches: pages, what is known about each, and mappings above the largest block.
//!
//! | file | |
//! |---|---|
//! | `ground` | pages with their frames, side tables and classes, for the slabs of all caches |
//! | `slab` | one slab: which objects are out |
//! | `page_classes` | the size class of each page |

pub(crate) mod ground;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod page_classes;
pub(crate) mod slab;

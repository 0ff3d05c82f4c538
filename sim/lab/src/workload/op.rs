//! An operation on any allocator.

use core::alloc::Layout;

/// An operation on a block, which is identified by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates a block. No block with this number exists.
    Alloc {
        /// The block's number.
        id: u64,
        /// Its size, at least one byte, and its alignment.
        layout: Layout,
    },
    /// Frees a block, which exists.
    Free {
        /// The block's number.
        id: u64,
    },
    /// Resizes a block, which exists, and keeps the contents that fit.
    Resize {
        /// The block's number.
        id: u64,
        /// The new size and alignment.
        layout: Layout,
    },
}

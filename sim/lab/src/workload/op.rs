//! An operation on a block of any allocator.

use core::alloc::Layout;

/// An operation on a block, which is identified by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates a block. No live block has the number.
    Alloc {
        /// The block's number.
        id: u64,
        /// The block's size, at least one byte, and its alignment.
        layout: Layout,
    },
    /// Frees a live block.
    Free {
        /// The block's number.
        id: u64,
    },
    /// Resizes a live block, and keeps the contents that fit.
    Resize {
        /// The block's number.
        id: u64,
        /// The new size and alignment.
        layout: Layout,
    },
}

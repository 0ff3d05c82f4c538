//! An operation on a block of any allocator.

use core::alloc::Layout;

/// An operation on a block; the block is identified by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates a block. The number must not belong to a live block.
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
    /// Resizes a live block, and keeps as much of the block's contents as the new size permits.
    Resize {
        /// The block's number.
        id: u64,
        /// The new size and alignment.
        layout: Layout,
    },
}

//! Operations on blocks, for any allocator.

use core::alloc::Layout;

/// An operation on a block, which is identified by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates a block. The number of the new block, which must not be the number of a live block.
    Alloc {
        /// The block's number.
        id: u64,
        /// The size of the block, at least one byte, and the alignment of the block.
        layout: Layout,
    },
    /// Frees the live block with this number.
    Free {
        /// The block's number.
        id: u64,
    },
    /// Resizes a live block, and keeps as much of its contents as fits.
    Resize {
        /// The block's number.
        id: u64,
        /// The new size and alignment of the block.
        layout: Layout,
    },
}

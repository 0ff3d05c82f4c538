//! What is done to an allocator, whichever it is.

use core::alloc::Layout;

/// One operation on a block, which is known by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate it. No block of the number is there.
    Alloc {
        /// Its number.
        id: u64,
        /// Its size, at least a byte, and alignment.
        layout: Layout,
    },
    /// Free it. It is there.
    Free {
        /// Its number.
        id: u64,
    },
    /// Make it larger or smaller, with what fits of its bytes. It is there.
    Resize {
        /// Its number.
        id: u64,
        /// Its size and alignment from now on.
        layout: Layout,
    },
}

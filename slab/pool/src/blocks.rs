//! Code that the allocators of arbitrary sizes share: the ends of their memory, and conversions from positions to
//! pointers.

use crate::error::PoolError;
use crate::words::Span;

/// Unit of block sizes and alignment of payloads, in bytes.
pub(crate) const UNIT: usize = 16;
/// The position that marks the end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// Maximum size in bytes of the memory of a heap. A position has 32 bits; sizes and flags leave 31 of them.
pub(crate) const MAX_BYTES: usize = 1 << 31;

/// Returns the positions of the first and the last multiple of [`UNIT`] in the memory.
pub(crate) fn ends(memory: &impl Span) -> Result<(usize, usize), PoolError> {
    let bytes = memory.size();
    let pad = memory.address().wrapping_neg() % UNIT;
    // The heap needs one unit for its ends, and another unit for the smallest block.
    if bytes < pad + 2 * UNIT {
        return Err(PoolError::NoRoom { bytes, needed: pad + 2 * UNIT });
    }
    if bytes > MAX_BYTES {
        return Err(PoolError::Positions { bytes, max: MAX_BYTES });
    }
    Ok((pad, pad + (bytes - pad) / UNIT * UNIT))
}

/// Returns the size in bytes of a block with `size` bytes of payload and `books` bytes of metadata. Returns `None` if
/// the size exceeds the maximum.
pub(crate) fn need(size: usize, books: usize) -> Option<usize> {
    size.checked_add(books)?.checked_next_multiple_of(UNIT).filter(|need| *need <= MAX_BYTES)
}

/// Returns the number of bytes from `position` to the next address that is a multiple of `align`.
pub(crate) fn gap(memory: &impl Span, position: usize, align: usize) -> usize {
    (memory.address() + position).wrapping_neg() & (align - 1)
}

/// Implements the pointer interface of a heap type `$name<A>` that has the fields `blocks` and `usage`.
macro_rules! blocks_by_pointer {
    ($name:ident) => {
        impl<A: Area> $name<A> {
            /// Allocates memory for `layout`. The bytes of the memory are unspecified.
            ///
            /// # Errors
            /// Returns [`Refused::NoRoom`] if no free block is large enough.
            #[inline]
            pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
                let error = Refused::NoRoom { bytes: layout.size(), align: layout.align() };
                let position = self.blocks.alloc_block(layout).ok_or(error)?;
                self.usage.alloc(layout.size(), self.blocks.size(position));
                Ok(self.blocks.memory().at(position))
            }
            /// Frees a block. The freed block immediately merges with free neighbours.
            ///
            /// # Errors
            /// Returns [`BadFree::Foreign`] for an address outside the memory, and [`BadFree::NotAllocated`] for an
            /// address at which no used block begins. A second free is detected only if the memory was not allocated
            /// again.
            ///
            /// # Safety
            /// This heap must have allocated the block. The block must not have been freed since, and the caller must
            /// no longer use it.
            #[inline]
            pub unsafe fn free(&mut self, memory: NonNull<u8>) -> Result<(), BadFree> {
                let position = self.position(memory)?;
                self.blocks.free_checked(position);
                self.usage.free();
                Ok(())
            }
            /// Resizes a block in place. If the block cannot grow, changes nothing and returns `false`. Shrinking
            /// a block always succeeds.
            ///
            /// # Errors
            /// Returns the errors of [`free`](Self::free).
            ///
            /// # Safety
            /// This heap must have allocated the block and not freed it since. If the call succeeds, the block has
            /// `bytes` bytes.
            pub unsafe fn resize(&mut self, memory: NonNull<u8>, bytes: usize) -> Result<bool, BadFree> {
                let position = self.position(memory)?;
                Ok(self.blocks.resize(position, bytes))
            }
            /// Returns the number of usable bytes of a block: at least the requested size.
            ///
            /// # Errors
            /// Returns the errors of [`free`](Self::free).
            ///
            /// # Safety
            /// This heap must have allocated the block and not freed it since.
            pub unsafe fn allocation_size(&self, memory: NonNull<u8>) -> Result<usize, BadFree> {
                Ok(self.blocks.size(self.position(memory)?))
            }
            /// Returns the size in bytes of each free block, in address order. Cost: the call inspects
            /// all blocks.
            pub fn free_blocks(&self) -> impl Iterator<Item = usize> {
                self.blocks.holes()
            }
            /// Returns the usage statistics of the heap.
            pub fn usage(&self) -> &Usage {
                &self.usage
            }
            fn position(&self, memory: NonNull<u8>) -> Result<usize, BadFree> {
                let address = memory.addr().get();
                let position = address.wrapping_sub(self.blocks.memory().address());
                if position >= self.blocks.memory().size() {
                    return Err(BadFree::Foreign { address });
                }
                if self.blocks.is_allocated(position) {
                    Ok(position)
                } else {
                    Err(BadFree::NotAllocated { address })
                }
            }
        }
    };
}
pub(crate) use blocks_by_pointer;

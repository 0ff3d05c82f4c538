//! Common parts of the allocators of blocks of any size: the ends of their memory, and the conversion of positions to pointers.

use crate::error::PoolError;
use crate::words::Span;

/// Blocks are multiples of it, and payloads are at multiples of it.
pub(crate) const UNIT: usize = 16;
/// No position: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// Bytes of the largest memory: positions have 32 bits, of which sizes and flags leave 31.
pub(crate) const MOST: usize = 1 << 31;

/// Positions of the first and the last multiple of [`UNIT`] in a memory.
pub(crate) fn ends(memory: &impl Span) -> Result<(usize, usize), PoolError> {
    let bytes = memory.size();
    let pad = memory.address().wrapping_neg() % UNIT;
    // One for the ends, and one for the smallest block.
    if bytes < pad + 2 * UNIT {
        return Err(PoolError::NoRoom { bytes, needed: pad + 2 * UNIT });
    }
    if bytes > MOST {
        return Err(PoolError::Positions { bytes, most: MOST });
    }
    Ok((pad, pad + (bytes - pad) / UNIT * UNIT))
}

/// Bytes of a block for `size` bytes and `books` bytes of metadata; `None` if no memory is that large.
pub(crate) fn need(size: usize, books: usize) -> Option<usize> {
    size.checked_add(books)?.checked_next_multiple_of(UNIT).filter(|need| *need <= MOST)
}

/// Bytes from position `at` to the next one at a multiple of `align`.
pub(crate) fn gap(memory: &impl Span, at: usize, align: usize) -> usize {
    (memory.address() + at).wrapping_neg() & (align - 1)
}

/// Implements the pointer interface of a type `$name<A>` with `blocks` and `usage`.
macro_rules! blocks_by_pointer {
    ($name:ident) => {
        impl<A: Area> $name<A> {
            /// Allocates memory for `layout`. Its bytes are unspecified.
            ///
            /// # Errors
            /// [`Refused::NoRoom`].
            #[inline]
            pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
                let no_room = Refused::NoRoom { bytes: layout.size(), align: layout.align() };
                let at = self.blocks.take(layout).ok_or(no_room)?;
                self.usage.alloc(layout.size(), self.blocks.size(at));
                Ok(self.blocks.memory().at(at))
            }
            /// Frees a block. It is merged with free neighbours immediately.
            ///
            /// # Errors
            /// [`BadFree::Foreign`] for an address outside of the memory; [`BadFree::NotOut`] for an address that is no
            /// block's, and for a free block, as long as its header still shows that: memory that was reallocated does not.
            ///
            /// # Safety
            /// The block was allocated from here, was not freed since, and is not used any more.
            #[inline]
            pub unsafe fn free(&mut self, memory: NonNull<u8>) -> Result<(), BadFree> {
                let at = self.position(memory)?;
                self.blocks.give_checked(at);
                self.usage.free();
                Ok(())
            }
            /// Resizes a block in place. `false` if that fails, with nothing changed. Shrinking always succeeds.
            ///
            /// # Errors
            /// As [`free`](Self::free).
            ///
            /// # Safety
            /// The block was allocated from here and was not freed since; after a success it has `bytes` bytes.
            pub unsafe fn resize(&mut self, memory: NonNull<u8>, bytes: usize) -> Result<bool, BadFree> {
                let at = self.position(memory)?;
                Ok(self.blocks.resize(at, bytes))
            }
            /// Usable bytes of a block, at least the requested size.
            ///
            /// # Errors
            /// As [`free`](Self::free).
            ///
            /// # Safety
            /// The block was allocated from here and was not freed since.
            pub unsafe fn allocation_size(&self, memory: NonNull<u8>) -> Result<usize, BadFree> {
                Ok(self.blocks.size(self.position(memory)?))
            }
            /// Bytes of each free block, in address order: what one request could get. Cost: a walk over all blocks.
            pub fn free_blocks(&self) -> impl Iterator<Item = usize> {
                self.blocks.holes()
            }
            /// Usage statistics.
            pub fn usage(&self) -> &Usage {
                &self.usage
            }
            /// Position of an allocated block.
            fn position(&self, memory: NonNull<u8>) -> Result<usize, BadFree> {
                let address = memory.addr().get();
                let at = address.wrapping_sub(self.blocks.memory().address());
                if at >= self.blocks.memory().size() {
                    return Err(BadFree::Foreign { address });
                }
                if self.blocks.is_out(at) { Ok(at) } else { Err(BadFree::NotOut { address }) }
            }
        }
    };
}
pub(crate) use blocks_by_pointer;

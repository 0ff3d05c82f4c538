//! What the allocators of blocks of any size have in common: how their memory begins and ends, and how positions become pointers.

use crate::error::PoolError;
use crate::words::Span;

/// Blocks are multiples of it, and what they hold lies at multiples of it.
pub(crate) const UNIT: usize = 16;
/// A position that is none: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// Bytes of the largest memory: positions are numbers of 32 bits, of which sizes and flags leave 31.
pub(crate) const MOST: usize = 1 << 31;

/// Where the first and the last multiple of [`UNIT`] lie in a memory.
pub(crate) fn ends(memory: &impl Span) -> Result<(usize, usize), PoolError> {
    let bytes = memory.size();
    let pad = memory.address().wrapping_neg() % UNIT;
    // The ends take one, and the smallest block.
    if bytes < pad + 2 * UNIT {
        return Err(PoolError::NoRoom { bytes, needed: pad + 2 * UNIT });
    }
    if bytes > MOST {
        return Err(PoolError::Positions { bytes, most: MOST });
    }
    Ok((pad, pad + (bytes - pad) / UNIT * UNIT))
}

/// Bytes of a block for `size` bytes and so many of books; `None` if no memory is so large.
pub(crate) fn need(size: usize, books: usize) -> Option<usize> {
    size.checked_add(books)?.checked_next_multiple_of(UNIT).filter(|need| *need <= MOST)
}

/// Bytes from position `at` to the next one at a multiple of `align`.
pub(crate) fn gap(memory: &impl Span, at: usize, align: usize) -> usize {
    (memory.address() + at).wrapping_neg() & (align - 1)
}

/// What a type `$name<A>` of `blocks` and `usage` does with pointers.
macro_rules! blocks_by_pointer {
    ($name:ident) => {
        impl<A: Area> $name<A> {
            /// Memory for `layout`. Its bytes are as they were left.
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
            /// Takes a block back. Free neighbours become one with it at once.
            ///
            /// # Errors
            /// [`BadFree::Foreign`] for an address outside of the memory; [`BadFree::NotOut`] for one where no block begins, and
            /// for a block that is free, as far as its header still says so: memory that was handed out again tells nothing.
            ///
            /// # Safety
            /// It was allocated from here, was not freed since, and nobody uses it any more.
            #[inline]
            pub unsafe fn free(&mut self, memory: NonNull<u8>) -> Result<(), BadFree> {
                let at = self.position(memory)?;
                self.blocks.give_checked(at);
                self.usage.free();
                Ok(())
            }
            /// Makes a block larger or smaller where it lies. `false`: it cannot, and is as it was. One that shrinks always can.
            ///
            /// # Errors
            /// As [`free`](Self::free).
            ///
            /// # Safety
            /// It was allocated from here and was not freed since; after a success it has so many bytes.
            pub unsafe fn resize(&mut self, memory: NonNull<u8>, bytes: usize) -> Result<bool, BadFree> {
                let at = self.position(memory)?;
                Ok(self.blocks.resize(at, bytes))
            }
            /// Bytes that a block has, whatever it was asked for.
            ///
            /// # Errors
            /// As [`free`](Self::free).
            ///
            /// # Safety
            /// It was allocated from here and was not freed since.
            pub unsafe fn allocation_size(&self, memory: NonNull<u8>) -> Result<usize, BadFree> {
                Ok(self.blocks.size(self.position(memory)?))
            }
            /// Bytes of each free block, by address: what one request could have. Cost: a walk over all blocks.
            pub fn free_blocks(&self) -> impl Iterator<Item = usize> {
                self.blocks.holes()
            }
            /// What it was used for so far.
            pub fn usage(&self) -> &Usage {
                &self.usage
            }
            /// Where a block that is out begins.
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

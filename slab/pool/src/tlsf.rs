//! TLSF, two-level segregated fit: a heap for blocks of any size, which allocates and frees in bounded time.
//!
//! ```text
//!            fl bitmap   one bit per doubling, set iff its sl bitmap is not 0
//!  1024..      1  ──> sl bitmap   0 1 0 0 ...   one bit per step, set iff its list is not empty
//!   512..      0                    │
//!   256..      1                    └─> free block <-> free block
//! ```
//!
//! Each size [class](classes) has a list of free blocks. The search for a request begins at the first class in which
//! all blocks are large enough. From this class on, two bit scans find the first class that has a free block. The heap
//! cuts off what the request does not need, and puts the rest on the list of its class. A freed block immediately
//! merges with free neighbours.
//!
//! - Allocations and frees take O(1), whatever the state of the memory. An allocation or a free never searches a list.
//!   Each operation reads at most three words of bitmaps, and splits one block or merges two blocks.
//! - Waste: a header of 4 bytes per block, and rounding sizes up to multiples of 16. Rounding a request up to a class
//!   takes no memory, but the search skips some blocks that would fit. A request can be refused although a free block
//!   in its class has room for it (*good* fit, not best fit). With `2^n` classes per doubling of the size, a request is
//!   always served if a free block is `1 + 1/2^n` times as large.
//!
//! The header is one number with three parts: the size, a flag that the block is free, and a flag that the previous
//! block is free. The last 4 bytes of a free block store the position of its start. A used block does not store its
//! start, so it costs only a header of 4 bytes. The reference implementation (Conte, `tlsf`) also takes 4 bytes on
//! 32-bit machines, and 8 bytes on 64-bit machines. Links in this heap are 32-bit positions. The list heads and bitmaps
//! are not in the heap's memory, but in memory of the global allocator ([`Tlsf::control_bytes`]). A list head takes 4
//! bytes per class, whereas Conte's pointers take 8 bytes. A heap covers at most 28 doublings of the size, from 16
//! bytes to 2 GiB, and thus has at most 896 classes.
//!
//! Invariants: no two neighbouring blocks are free; a free block is in the list of its class; a bit is set if and only
//! if its list or bitmap is not empty.
//!
//! Source: Masmano, Ripoll, Crespo and Real, "TLSF: A New Dynamic Memory Allocator for Real-Time Systems" (2004).
//! Users: Unity's dynamic heap, the Vulkan Memory Allocator, and MorphOS's system allocator.

pub mod classes;

use crate::area::Area;
use crate::blocks::{NONE, UNIT, blocks_by_pointer, ends, gap, need};
use crate::error::{BadFree, PoolError, Refused};
use crate::usage::Usage;
use crate::words::{Event, RawWords, Span, Words};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use classes::{Class, Classes};
use core::alloc::Layout;
use core::ptr::NonNull;

const HEADER: usize = 4;
/// Flag in a header that marks the block as free.
const FREE: u32 = 1;
/// Flag in a header that marks the previous block as free, so that its last 4 bytes store its start.
const PREVIOUS_BLOCK_FREE: u32 = 2;
const FLAGS: u32 = FREE | PREVIOUS_BLOCK_FREE;

/// A TLSF heap in memory that the caller chooses. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{StackArea, Tlsf};
///
/// let mut memory = StackArea::<4096>::new();
/// let mut heap = Tlsf::new(memory.lend())?;
/// let small = heap.alloc(Layout::new::<[u8; 100]>())?;
/// let aligned = heap.alloc(Layout::from_size_align(1000, 256)?)?;
/// assert!(aligned.addr().get().is_multiple_of(256));
/// // SAFETY: allocated above, and each is freed once.
/// unsafe {
///     assert!(heap.resize(small, 108)?, "its neighbour is free");
///     heap.free(small)?;
///     heap.free(aligned)?;
/// }
/// assert_eq!(heap.free_blocks().collect::<Vec<_>>(), [4096 - 16 - 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tlsf<A> {
    pub(crate) blocks: Blocks<RawWords<A>>,
    usage: Usage,
}

impl<A: Area> Tlsf<A> {
    /// Makes a heap in `area`, with 16 size classes per doubling of the size. The heap does not use the memory before
    /// the first or after the last multiple of 16 in the area. The heap uses 16 bytes to mark its ends. Cost: the call
    /// writes each list head, and a few words of the memory.
    ///
    /// # Errors
    /// Returns [`PoolError::NoRoom`] if the area has fewer than 32 bytes, [`PoolError::Positions`] if it has more than
    /// 2 GiB, and [`PoolError::Memory`] if memory for the list heads is short.
    pub fn new(area: A) -> Result<Self, PoolError> {
        Self::with_steps(area, 4)
    }
    /// Makes a heap with `2^bits` size classes per doubling of the size. With more classes, a search skips fewer
    /// fitting blocks, but the list heads take more memory.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and [`PoolError::Steps`] if `bits` is not from 2 to 5.
    pub fn with_steps(area: A, bits: u32) -> Result<Self, PoolError> {
        Ok(Self { blocks: Blocks::new(RawWords(area), bits)?, usage: Usage::default() })
    }
    /// Returns the size classes of the heap.
    pub fn classes(&self) -> Classes {
        self.blocks.classes()
    }
    /// Returns the number of bytes of list heads and bitmaps, which are not in the heap's memory.
    pub fn control_bytes(&self) -> usize {
        self.blocks.control_bytes()
    }
}

blocks_by_pointer!(Tlsf);

/// The blocks of the heap, addressed by position; the code is safe, and generic over the access to the memory's words.
#[derive(Debug)]
pub struct Blocks<M> {
    memory: M,
    classes: Classes,
    /// The field `first` is the position of the first block, whose payload is at a multiple of [`UNIT`]. The field
    /// `end` is the position of the header after the last block.
    first: usize,
    end: usize,
    fl_bitmap: u32,
    sl_bitmaps: Vec<u32>,
    /// Position of the first free block of each class. The classes within one power of two are adjacent.
    heads: Vec<u32>,
}

impl<M: Words> Blocks<M> {
    /// Makes a heap in which all of `memory` is free.
    ///
    /// # Errors
    /// Returns the errors of [`Tlsf::with_steps`].
    pub fn new(memory: M, bits: u32) -> Result<Self, PoolError> {
        if !(2..=5).contains(&bits) {
            return Err(PoolError::Steps { bits });
        }
        let (start, end) = ends(&memory)?;
        let classes = Classes::new(bits, UNIT.ilog2());
        let doublings = classes.of(end - start).fl + 1;
        let filled_array = |len: usize, value| {
            let mut words = Vec::new();
            let error = PoolError::Memory { bytes: len * size_of::<u32>() };
            words.try_reserve_exact(len).map_err(|_| error)?;
            words.resize(len, value);
            Ok(words)
        };
        let mut blocks = Self {
            memory,
            classes,
            first: start + UNIT - HEADER,
            end: end - HEADER,
            fl_bitmap: 0,
            sl_bitmaps: filled_array(doublings, 0)?,
            heads: filled_array(doublings * classes.steps(), NONE)?,
        };
        // The header after the last block has size 0, and is marked as used.
        blocks.memory.store(blocks.end, 0);
        blocks.insert_free_block(blocks.first, blocks.end - blocks.first);
        Ok(blocks)
    }

    /// Returns the heap's memory, for reading its words.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }
    /// Returns the heap's memory, for writing to blocks.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }
    /// Returns the size classes of the heap.
    pub fn classes(&self) -> Classes {
        self.classes
    }
    /// Returns the bitmaps of the first and the second level.
    pub fn bitmaps(&self) -> (u32, &[u32]) {
        (self.fl_bitmap, &self.sl_bitmaps)
    }
    /// Returns the position of each class's first free block, or `u32::MAX` if the class has no free block.
    pub fn heads(&self) -> &[u32] {
        &self.heads
    }
    /// Returns the position and the size of each free block of `class`, in the order of the list.
    pub fn list(&self, class: Class) -> impl Iterator<Item = (usize, usize)> {
        let block =
            |position: u32| (position != NONE).then(|| (position as usize, self.header(position as usize).0));
        let head = self.heads[class.fl * self.classes.steps() + class.sl];
        core::iter::successors(block(head), move |(position, _)| block(self.memory.peek(position + HEADER)))
    }
    /// Returns the number of bytes of list heads and bitmaps.
    pub fn control_bytes(&self) -> usize {
        size_of_val(&self.fl_bitmap)
            + size_of_val(self.sl_bitmaps.as_slice())
            + size_of_val(self.heads.as_slice())
    }
    fn head(&mut self, class: Class) -> &mut u32 {
        &mut self.heads[class.fl * self.classes.steps() + class.sl]
    }

    /// Returns the first class that has a free block, starting at `class`, and the number of bitmap words read.
    #[inline]
    pub fn find(&self, class: Class) -> (Option<Class>, u64) {
        let Some(bitmap) = self.sl_bitmaps.get(class.fl) else { return (None, 0) };
        let steps = bitmap & (!0 << class.sl);
        if steps != 0 {
            return (Some(Class { fl: class.fl, sl: steps.trailing_zeros() as usize }), 1);
        }
        let doublings = self.fl_bitmap & (!0_u32).checked_shl(class.fl as u32 + 1).unwrap_or(0);
        if doublings == 0 {
            return (None, 2);
        }
        let fl = doublings.trailing_zeros() as usize;
        (Some(Class { fl, sl: self.sl_bitmaps[fl].trailing_zeros() as usize }), 3)
    }

    fn header(&self, position: usize) -> (usize, u32) {
        let header = self.memory.peek(position);
        ((header & !FLAGS) as usize, header & FLAGS)
    }

    /// Inserts a block without free neighbours into the list of its class, and marks it as free.
    fn insert_free_block(&mut self, position: usize, size: usize) {
        self.memory.store(position, size as u32 | FREE);
        self.memory.store(position + size - HEADER, position as u32);
        let next_header = self.memory.load(position + size);
        self.memory.store(position + size, next_header | PREVIOUS_BLOCK_FREE);
        let class = self.classes.of(size);
        let next = core::mem::replace(self.head(class), position as u32);
        self.memory.store(position + HEADER, next);
        self.memory.store(position + HEADER + 4, NONE);
        if next != NONE {
            self.memory.store(next as usize + HEADER + 4, position as u32);
        }
        self.fl_bitmap |= 1 << class.fl;
        self.sl_bitmaps[class.fl] |= 1 << class.sl;
    }

    /// Removes a free block from the list of its class. The caller must then write the block's header, and the flag in
    /// the next block's header.
    fn remove_from_free_list(&mut self, position: usize, size: usize) {
        let (next, prev) = (self.memory.load(position + HEADER), self.memory.load(position + HEADER + 4));
        if next != NONE {
            self.memory.store(next as usize + HEADER + 4, prev);
        }
        if prev != NONE {
            self.memory.store(prev as usize + HEADER, next);
            return;
        }
        let class = self.classes.of(size);
        *self.head(class) = next;
        if next == NONE {
            self.sl_bitmaps[class.fl] &= !(1 << class.sl);
            if self.sl_bitmaps[class.fl] == 0 {
                self.fl_bitmap &= !(1 << class.fl);
            }
        }
    }
    /// In the header of the block at `position`, clears the flag that marks the previous block as free.
    fn clear_previous_free(&mut self, position: usize) {
        let header = self.memory.load(position);
        self.memory.store(position, header & !PREVIOUS_BLOCK_FREE);
    }

    /// Returns the first class whose blocks all have room for `need` bytes at alignment `align`, wherever they start.
    pub fn first_class(&self, need: usize, align: usize) -> Option<Class> {
        let max_need = need.checked_add(align.saturating_sub(UNIT))?;
        Some(self.classes.of(self.classes.round_up(max_need)?))
    }

    /// Allocates a block of memory. Returns the position of the new block's payload.
    #[inline]
    pub fn alloc_block(&mut self, layout: Layout) -> Option<usize> {
        self.take_by(layout, Self::find)
    }
    /// Allocates a block, but calls the given version of [`find`](Self::find).
    #[inline]
    pub fn take_by(
        &mut self,
        layout: Layout,
        find: impl FnOnce(&Self, Class) -> (Option<Class>, u64),
    ) -> Option<usize> {
        let need = need(layout.size(), HEADER)?;
        let first = self.first_class(need, layout.align())?;
        let (class, inspected) = find(self, first);
        self.memory.record(Event::Searched(inspected));
        let position = *self.head(class?) as usize;
        let gap = gap(&self.memory, position + HEADER, layout.align());
        Some(self.split(position, gap, need) + HEADER)
    }

    fn split(&mut self, position: usize, gap: usize, need: usize) -> usize {
        let size = (self.memory.load(position) & !FLAGS) as usize;
        self.memory.record(Event::Inspected { at: position, bytes: size });
        self.remove_from_free_list(position, size);
        let (allocated, rest_position, rest) = (position + gap, position + gap + need, size - gap - need);
        // `insert_free_block` writes into the following header, so the used block's header must exist before the gap is
        // made.
        self.memory.store(allocated, need as u32);
        if gap > 0 {
            self.memory.record(Event::Split { at: position, bytes: gap });
            self.insert_free_block(position, gap);
        }
        if rest > 0 {
            self.memory.record(Event::Split { at: rest_position, bytes: rest });
            self.insert_free_block(rest_position, rest);
        } else {
            self.clear_previous_free(rest_position);
        }
        allocated
    }

    /// Frees the block whose payload is at `payload`.
    pub fn free_block(&mut self, payload: usize) {
        let position = payload - HEADER;
        let header = self.memory.load(position);
        let (mut start, mut size) = (position, (header & !FLAGS) as usize);
        let next_header = self.memory.load(position + size);
        if next_header & FREE != 0 {
            let extra = (next_header & !FLAGS) as usize;
            self.remove_from_free_list(position + size, extra);
            self.memory.record(Event::Merged { at: position + size, bytes: extra });
            size += extra;
        }
        if header & PREVIOUS_BLOCK_FREE != 0 {
            start = self.memory.load(position - HEADER) as usize;
            self.remove_from_free_list(start, position - start);
            size += position - start;
            self.memory.record(Event::Merged { at: start, bytes: position - start });
        }
        self.insert_free_block(start, size);
    }
    /// Frees the block. A header that is merged into the preceding free block is also marked free, so that a second
    /// free is detected.
    #[inline]
    fn free_checked(&mut self, payload: usize) {
        let header = self.memory.load(payload - HEADER);
        self.memory.store(payload - HEADER, header | FREE);
        self.free_block(payload);
    }
    /// Returns `true` if the headers show that a used block has its payload at `payload`.
    #[inline]
    fn is_allocated(&self, payload: usize) -> bool {
        let unit = payload.wrapping_sub(self.first + HEADER);
        if !unit.is_multiple_of(UNIT) || unit >= self.end - self.first {
            return false;
        }
        let position = payload - HEADER;
        let (size, flags) = self.header(position);
        flags & FREE == 0
            && size > 0
            && size.is_multiple_of(UNIT)
            && size <= self.end - position
            && self.header(position + size).1 & PREVIOUS_BLOCK_FREE == 0
    }
    /// Returns the size of a block in bytes, without its header.
    #[inline]
    pub fn size(&self, payload: usize) -> usize {
        self.header(payload - HEADER).0 - HEADER
    }
    /// Resizes a used block in place. Returns `false` if the block must grow and the next block is in use or too small.
    pub fn resize(&mut self, payload: usize, bytes: usize) -> bool {
        let position = payload - HEADER;
        let header = self.memory.load(position);
        let size = (header & !FLAGS) as usize;
        let next_header = self.memory.load(position + size);
        let extra = if next_header & FREE != 0 { (next_header & !FLAGS) as usize } else { 0 };
        let Some(need) = need(bytes, HEADER).filter(|need| *need <= size + extra) else { return false };
        if need == size {
            return true;
        }
        if extra > 0 {
            self.remove_from_free_list(position + size, extra);
            self.memory.record(Event::Merged { at: position + size, bytes: extra });
        }
        self.memory.store(position, need as u32 | header & FLAGS);
        let rest_size = size + extra - need;
        if rest_size > 0 {
            self.memory.record(Event::Split { at: position + need, bytes: rest_size });
            self.insert_free_block(position + need, rest_size);
        } else {
            self.clear_previous_free(position + need);
        }
        true
    }

    fn blocks(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        let mut position = self.first;
        core::iter::from_fn(move || {
            let (size, flags) = self.header(position);
            if size == 0 {
                return None;
            }
            let block = (position, size, flags);
            position += size;
            Some(block)
        })
    }
    fn free(&self) -> impl Iterator<Item = usize> {
        self.blocks().filter(|(.., flags)| flags & FREE != 0).map(|(_, size, _)| size)
    }
    /// Returns the size of each free block in bytes, in address order, not counting the headers.
    pub fn holes(&self) -> impl Iterator<Item = usize> {
        self.free().map(|size| size - HEADER)
    }
    /// Returns `true` if the heap has room for a request of `layout`. The search visits all memory instead of the
    /// lists.
    pub fn room(&self, layout: Layout) -> bool {
        let first = need(layout.size(), HEADER).and_then(|need| self.first_class(need, layout.align()));
        first.is_some_and(|first| self.free().any(|size| self.classes.of(size) >= first))
    }

    /// Checks all headers, lists and bitmaps.
    ///
    /// # Errors
    /// Returns the first inconsistency and its position as the error.
    pub fn check(&self) -> Result<(), String> {
        let (mut end, mut previous_is_free, mut free) = (self.first, false, 0);
        for (position, size, flags) in self.blocks() {
            if (flags & PREVIOUS_BLOCK_FREE != 0) != previous_is_free {
                return Err(format!("the header of the block at {position} contradicts the previous block"));
            }
            let is_free = flags & FREE != 0;
            if is_free && previous_is_free {
                return Err(format!("the free block at {position} was not merged with the previous block"));
            }
            if is_free && self.memory.peek(position + size - HEADER) as usize != position {
                return Err(format!("the last bytes of the free block at {position} do not store its start"));
            }
            free += usize::from(is_free);
            (end, previous_is_free) = (position + size, is_free);
        }
        if end != self.end {
            return Err(format!("the last block ends at {end} instead of the end of the memory"));
        }
        let steps = self.classes.steps();
        let mut listed_blocks = 0;
        for (i, head) in self.heads.iter().enumerate() {
            let class = Class { fl: i / steps, sl: i % steps };
            if (self.sl_bitmaps[class.fl] >> class.sl & 1 != 0) != (*head != NONE) {
                return Err(format!("the bitmap bit of the size class {class:?} is wrong"));
            }
            let (mut position, mut prev) = (*head, NONE);
            while position != NONE && listed_blocks <= free {
                let (size, flags) = self.header(position as usize);
                if flags & FREE == 0 || self.classes.of(size) != class {
                    return Err(format!("the block at {position} is wrongly in the list of {class:?}"));
                }
                if self.memory.peek(position as usize + HEADER + 4) != prev {
                    return Err(format!("the links of the free block at {position} disagree"));
                }
                listed_blocks += 1;
                (prev, position) = (position, self.memory.peek(position as usize + HEADER));
            }
        }
        if listed_blocks != free {
            return Err(format!("{free} blocks are free, but the lists contain {listed_blocks} blocks"));
        }
        let wrong_word = (0..self.sl_bitmaps.len())
            .find(|fl| (self.fl_bitmap >> fl & 1 != 0) != (self.sl_bitmaps[*fl] != 0));
        wrong_word.map_or(Ok(()), |fl| Err(format!("the first-level bitmap bit {fl} is wrong")))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::area::{HeapArea, MappedArea, StackArea};
    use crate::blocks::MAX_BYTES;

    #[test]
    fn invalid_tlsf_heap_is_refused_with_the_reason() {
        let mut memory = StackArea::<64>::new();
        let error = Tlsf::with_steps(memory.lend(), 6).err();
        assert_eq!(error, Some(PoolError::Steps { bits: 6 }));
        let mut small = StackArea::<31>::new();
        assert_eq!(Tlsf::new(small.lend()).err(), Some(PoolError::NoRoom { bytes: 31, needed: 32 }));
        if !cfg!(miri) {
            let error = Tlsf::new(MappedArea::new(MAX_BYTES + 4096, 4096).unwrap());
            assert_eq!(error.err(), Some(PoolError::Positions { bytes: MAX_BYTES + 4096, max: MAX_BYTES }));
        }
    }

    /// Tests the paper's bound: a request is served if a free block is `1 + 1/2^bits` times as large, with both sizes
    /// rounded to 16.
    #[test]
    fn tlsf_serves_a_request_with_a_block_one_step_larger() {
        for bits in 2..=5 {
            for bytes in (100..60_000).step_by(997) {
                let need = (bytes + HEADER).next_multiple_of(UNIT);
                let block = (need + (need >> bits)).next_multiple_of(UNIT);
                let mut heap = Tlsf::with_steps(HeapArea::new(block + UNIT, UNIT).unwrap(), bits).unwrap();
                assert_eq!(heap.free_blocks().collect::<Vec<_>>(), [block - HEADER]);
                assert!(heap.alloc(Layout::from_size_align(bytes, 1).unwrap()).is_ok(), "{bytes} of {block}");
            }
        }
    }
}

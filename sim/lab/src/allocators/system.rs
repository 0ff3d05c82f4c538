//! The program's own allocator under the lab's trait; it is the C library's malloc, unless the program replaced it.
//!
//! For this allocator, the free memory and the sizes of blocks are unknown. The lab counts only the calls of this
//! allocator.

use super::allocator::{Allocator, Holes, Work};
use core::alloc::Layout;
use core::ops::Range;

/// The program's own allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct System {
    work: Work,
}

/// A block of the program's own allocator. The first access fills the block's bytes with zeros; before, the bytes are
/// untouched.
#[derive(Debug)]
pub struct SystemBlock {
    bytes: Vec<u8>,
    /// The number of bytes skipped for the alignment.
    skip: usize,
    size: usize,
}

/// The alignment that malloc guarantees.
const MALLOC_ALIGN: usize = 16;

impl SystemBlock {
    fn new(layout: Layout) -> Option<Self> {
        // An empty block also requests memory, so that its address is unique.
        let size = layout.size().max(1);
        let mut slack = if layout.align() > MALLOC_ALIGN { layout.align() - 1 } else { 0 };
        loop {
            let mut bytes = Vec::<u8>::new();
            bytes.try_reserve_exact(size.checked_add(slack)?).ok()?;
            let address = bytes.as_ptr().addr();
            let skip = address.checked_next_multiple_of(layout.align())? - address;
            if skip <= slack {
                return Some(Self { bytes, skip, size: layout.size() });
            }
            // This platform's malloc aligns blocks to less than `MALLOC_ALIGN` bytes.
            slack = layout.align() - 1;
        }
    }
}

impl Allocator for System {
    type Block = SystemBlock;
    const NAME: &'static str = "system";

    fn alloc(&mut self, layout: Layout) -> Option<SystemBlock> {
        self.work.count_allocation(SystemBlock::new(layout))
    }
    fn free(&mut self, block: SystemBlock) {
        drop(block);
        self.work.frees += 1;
    }
    fn range(&self, block: &SystemBlock) -> Range<usize> {
        let start = block.bytes.as_ptr().addr() + block.skip;
        start..start + block.size
    }
    fn bytes<'b>(&'b mut self, block: &'b mut SystemBlock) -> &'b mut [u8] {
        // The resize stays within the capacity, so the bytes do not move.
        block.bytes.resize(block.skip + block.size, 0);
        &mut block.bytes[block.skip..]
    }
    // This method avoids `bytes`, whose first call writes all bytes of the block.
    fn touch(&mut self, block: &mut SystemBlock) {
        if block.size > 0 && block.bytes.len() <= block.skip {
            block.bytes.resize(block.skip + 1, 1);
        }
        std::hint::black_box(&mut block.bytes);
    }
    fn capacity(&self) -> usize {
        0
    }
    fn holes(&self) -> Holes {
        Holes::default()
    }
    fn work(&self) -> Work {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_block_keeps_its_address_when_read() {
        let mut system = System::default();
        let mut block = system.alloc(Layout::from_size_align(100, 64).unwrap()).unwrap();
        let start = system.range(&block).start;
        assert_eq!(system.bytes(&mut block), [0; 100]);
        assert_eq!((system.bytes(&mut block).as_ptr().addr(), start % 64), (start, 0));
        system.free(block);
        assert!(system.alloc(Layout::from_size_align(isize::MAX as usize, 1).unwrap()).is_none());
        assert_eq!((system.work().allocs, system.work().refused, system.work().frees), (1, 1, 1));
    }
}

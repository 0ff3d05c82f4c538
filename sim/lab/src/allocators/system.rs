//! The program's own allocator under the lab's trait: the C library's malloc, unless another one was put in its place.
//!
//! It is not looked into: what is free in it, and what it takes for a block, nobody says. Its calls are counted.

use super::allocator::{Allocator, Holes, Work};
use core::alloc::Layout;
use core::ops::Range;

/// The program's allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct System {
    work: Work,
}

/// Memory of the program's allocator. Its bytes are zero when they are first looked at, and not touched before.
#[derive(Debug)]
pub struct SystemBlock {
    bytes: Vec<u8>,
    /// Bytes that are skipped for the alignment.
    skip: usize,
    size: usize,
}

/// What malloc promises without being asked.
const MALLOC_ALIGN: usize = 16;

impl SystemBlock {
    fn new(layout: Layout) -> Option<Self> {
        // Of nothing, too, something is asked for: it has an address of its own.
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
            // It promises less than most.
            slack = layout.align() - 1;
        }
    }
}

impl Allocator for System {
    type Block = SystemBlock;
    const NAME: &'static str = "system";

    fn alloc(&mut self, layout: Layout) -> Option<SystemBlock> {
        self.work.served(SystemBlock::new(layout))
    }
    fn free(&mut self, block: SystemBlock) {
        drop(block);
        self.work.frees += 1;
    }
    fn range(&self, block: &SystemBlock) -> Range<usize> {
        let at = block.bytes.as_ptr().addr() + block.skip;
        at..at + block.size
    }
    fn bytes<'b>(&'b mut self, block: &'b mut SystemBlock) -> &'b mut [u8] {
        // Within what was reserved: the bytes stay where they are.
        block.bytes.resize(block.skip + block.size, 0);
        &mut block.bytes[block.skip..]
    }
    // `bytes` has to write all of them the first time.
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
    fn looking_at_a_block_does_not_move_it_and_too_much_is_refused() {
        let mut system = System::default();
        let mut block = system.alloc(Layout::from_size_align(100, 64).unwrap()).unwrap();
        let at = system.range(&block).start;
        assert_eq!(system.bytes(&mut block), [0; 100]);
        assert_eq!((system.bytes(&mut block).as_ptr().addr(), at % 64), (at, 0));
        system.free(block);
        assert!(system.alloc(Layout::from_size_align(isize::MAX as usize, 1).unwrap()).is_none());
        assert_eq!((system.work().allocs, system.work().refused, system.work().frees), (1, 1, 1));
    }
}

//! The interface of an allocator with its blocks in use and its markers; all block demos share code through it, which
//! keeps web pages small.

use super::kinds::DemoAllocator;
use super::scene::Part;
use super::steps::Operation;
use super::structure::{Mark, Shape, Step};
use crate::allocators::linear::StaleMark;
use crate::allocators::{Holes, Work};
use core::alloc::Layout;
use core::fmt::Debug;
use core::ops::Range;

/// The kind of location that a search inspects, as a singular and a plural; `None` if the allocator does not search.
pub(super) type Places = Option<(&'static str, &'static str)>;

/// An allocator, whose blocks in use and markers have numbers in the order of their creation. A method without
/// documentation has the same contract as the method of [`DemoAllocator`] with its name.
pub(super) trait DrivenAllocator: Debug {
    /// Allocates a block, which becomes the last block, and returns the block's range.
    fn alloc(&mut self, layout: Layout) -> Option<Range<usize>>;
    /// Frees a block; the numbers of later blocks decrease by 1.
    fn free(&mut self, block: usize);
    /// Forgets all blocks from number `blocks` on, because they were freed together.
    fn forget(&mut self, blocks: usize);
    fn range(&self, block: usize) -> Range<usize>;
    /// Saves the head's position as the last marker; returns `false` if the allocator has no head.
    fn mark(&mut self) -> bool;
    fn marked(&self, marker: usize) -> (usize, bool);
    fn pop(&mut self, marker: usize) -> Result<(), StaleMark>;

    fn tags(&self) -> (usize, usize);
    fn examined_by_alloc(&self) -> Places;
    fn examined_by_free(&self) -> Places;
    fn one_size(&self) -> Option<usize>;
    fn steps(&mut self, operation: &Operation<'_>) -> Vec<Step>;
    fn work(&self) -> Work;
    fn holes(&self) -> Holes;
    fn end(&self) -> usize;
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>);
    fn shape(&self) -> Option<Shape>;
    fn reset(&mut self) -> bool;
    fn purge(&mut self) -> Option<Vec<Step>>;
    fn head(&self) -> Option<usize>;
    fn chunks(&self) -> Vec<Mark>;
    fn skipped(&self, head: usize, block: usize) -> String;
}

/// An allocator with its blocks and markers. The blocks are dropped before the allocator is dropped.
#[derive(Debug)]
pub(super) struct AllocatorWithBlocks<A: DemoAllocator> {
    blocks: Vec<A::Block>,
    markers: Vec<A::Marker>,
    allocator: A,
}

impl<A: DemoAllocator> AllocatorWithBlocks<A> {
    pub(super) fn new(mut allocator: A) -> Self {
        allocator.log();
        Self { blocks: vec![], markers: vec![], allocator }
    }
}

impl<A: DemoAllocator> DrivenAllocator for AllocatorWithBlocks<A> {
    fn alloc(&mut self, layout: Layout) -> Option<Range<usize>> {
        let block = self.allocator.alloc(layout)?;
        let range = self.allocator.range(&block);
        self.blocks.push(block);
        Some(range)
    }
    fn free(&mut self, block: usize) {
        self.allocator.free(self.blocks.remove(block));
    }
    fn forget(&mut self, blocks: usize) {
        self.blocks.truncate(blocks);
    }
    fn range(&self, block: usize) -> Range<usize> {
        self.allocator.range(&self.blocks[block])
    }
    fn mark(&mut self) -> bool {
        self.markers.extend(self.allocator.mark());
        self.allocator.head().is_some()
    }
    fn marked(&self, marker: usize) -> (usize, bool) {
        self.allocator.marked(&self.markers[marker])
    }
    fn pop(&mut self, marker: usize) -> Result<(), StaleMark> {
        self.allocator.pop(&self.markers[marker])
    }

    fn tags(&self) -> (usize, usize) {
        A::TAGS
    }
    fn examined_by_alloc(&self) -> Places {
        A::EXAMINED_BY_ALLOC
    }
    fn examined_by_free(&self) -> Places {
        A::EXAMINED_BY_FREE
    }
    fn one_size(&self) -> Option<usize> {
        self.allocator.one_size()
    }
    fn steps(&mut self, operation: &Operation<'_>) -> Vec<Step> {
        let log = self.allocator.log();
        self.allocator.steps(operation, &log)
    }
    fn work(&self) -> Work {
        self.allocator.work()
    }
    fn holes(&self) -> Holes {
        self.allocator.holes()
    }
    fn end(&self) -> usize {
        self.allocator.end()
    }
    fn free_parts(&self, range: Range<usize>, parts: &mut Vec<Part>) {
        self.allocator.free_parts(range, parts);
    }
    fn shape(&self) -> Option<Shape> {
        self.allocator.shape()
    }
    fn reset(&mut self) -> bool {
        self.allocator.reset()
    }
    fn purge(&mut self) -> Option<Vec<Step>> {
        self.allocator.purge()
    }
    fn head(&self) -> Option<usize> {
        self.allocator.head()
    }
    fn chunks(&self) -> Vec<Mark> {
        self.allocator.chunks()
    }
    fn skipped(&self, head: usize, block: usize) -> String {
        self.allocator.skipped(head, block)
    }
}

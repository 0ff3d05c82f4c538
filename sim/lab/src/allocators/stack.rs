//! The stack allocator: a bump allocator that can be rewound to markers, for example at the end of a scope.
//!
//! ```text
//!   | outer |pad| outer |      inner, inner, inner      |      free     |
//!                       ^ marker                        ^ head
//!                       └── pop: frees all later blocks, and runs their destructors, newest first
//! ```
//!
//! - **Allocate**: takes O(1), as in a [linear](super::linear) allocator. **Pop**: takes O(1), plus one step for each
//!   destructor.
//! - **Scopes**: the end of a [`StackScope`] pops all blocks that were allocated in the scope. Blocks that were
//!   allocated before the scope stay allocated.
//! - **Waste**: the padding that alignments require.
//!
//! As an [`Allocator`], a stack can also free a single block. The topmost block is freed immediately; any other block
//! is freed when all blocks above it are freed. The stack therefore records the start of each block outside the memory;
//! the records also reveal stale markers. The library's [`StackAlloc`](uslab::pool::StackAlloc) records only markers
//! and paddings, inside the memory; its paddings have 8 bytes or more.
//!
//! Sources: Fredriksson, "Scope Stack Allocation" (DICE), for running destructors in a pop; Frykholm, "Custom Memory
//! Allocation in C++" (2010). Shipping stack allocators are Unreal's `FMemMark` on `FMemStack`, Frostbite's scope
//! stack, and every call stack.

use super::allocator::{Allocator, Holes, ReuseCondition, Work};
use super::linear::{FREED_BYTE, StaleMark};
use super::memory::{ConfigError, Memory, MemoryPiece};
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut, Range};
use uslab::pool::linear::place;
use uslab::pool::words::Span;

/// A stack allocator, which frees blocks in the reverse order of their allocation. See the [module](self).
#[derive(Debug)]
pub struct Stack {
    memory: Memory,
    head: usize,
    frames: Vec<Frame>,
    /// The number of blocks allocated so far, which becomes the number of the next block.
    births: u64,
    work: Work,
}

/// A destructor, which receives an object's bytes when the object is popped.
type Destructor = Box<dyn FnOnce(&mut [u8]) + Send>;

/// A block that has not been popped yet.
struct Frame {
    birth: u64,
    /// The position of the head before the block was allocated.
    before: usize,
    range: Range<usize>,
    freed: bool,
    destructor: Option<Destructor>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("range", &self.range)
            .field("freed", &self.freed)
            .finish_non_exhaustive()
    }
}

/// A saved position of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    head: usize,
    frames: usize,
    /// The number of the block directly below the marker. The marker is valid while the block below it exists, because
    /// the head then cannot have been below the marker.
    block_below: Option<u64>,
}

impl Marker {
    /// Returns the head's position, in bytes.
    pub fn head(self) -> usize {
        self.head
    }
}

/// A block of a [`Stack`], with the data that `free` needs to find the previous block.
#[derive(Debug, PartialEq, Eq)]
pub struct StackBlock {
    piece: MemoryPiece,
    /// The block's index in the stack, and the block's number. If another block has taken this index in the stack, the
    /// numbers differ.
    frame: usize,
    birth: u64,
}

impl Stack {
    /// Creates a stack of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if `bytes` is 0, or more than [`Memory::MAX_BYTES`].
    pub fn new(bytes: usize) -> Result<Self, ConfigError> {
        let memory = Memory::new(bytes, 1, 1)?;
        Ok(Self { memory, head: 0, frames: vec![], births: 0, work: Work::default() })
    }

    /// Returns the bytes below the head.
    pub fn used(&self) -> usize {
        self.head
    }
    /// Returns the head's position, which can be passed to [`pop`](Self::pop).
    pub fn mark(&self) -> Marker {
        let birth_below = self.frames.last().map(|frame| frame.birth);
        Marker { head: self.head, frames: self.frames.len(), block_below: birth_below }
    }

    /// Frees everything that was allocated after `marker`, newest block first. A pop runs destructors, and overwrites
    /// the freed bytes with [`FREED_BYTE`]. If a destructor panics, the remaining blocks are freed nevertheless.
    ///
    /// # Errors
    /// Fails if the marker is stale, which means that the block below it was popped.
    pub fn pop(&mut self, marker: Marker) -> Result<(), StaleMark> {
        if self.is_stale(marker) {
            return Err(StaleMark { mark: marker.head, head: self.head });
        }
        self.pop_while(|stack| stack.frames.len() > marker.frames);
        Ok(())
    }

    /// Returns `true` if the block below the marker was popped.
    pub fn is_stale(&self, marker: Marker) -> bool {
        let frame_below = marker.frames.checked_sub(1).and_then(|frame_below| self.frames.get(frame_below));
        frame_below.map(|frame| frame.birth) != marker.block_below
    }

    /// Pops blocks while `has_more` returns `true`, and continues if a destructor panics.
    fn pop_while(&mut self, has_more: impl Fn(&Self) -> bool) {
        struct RemainingStack<'s, F: Fn(&Stack) -> bool>(&'s mut Stack, F);
        impl<F: Fn(&Stack) -> bool> RemainingStack<'_, F> {
            fn pop(&mut self) {
                while (self.1)(self.0) {
                    self.0.pop_newest_block();
                }
            }
        }
        impl<F: Fn(&Stack) -> bool> Drop for RemainingStack<'_, F> {
            fn drop(&mut self) {
                self.pop();
            }
        }
        RemainingStack(self, has_more).pop();
    }
    fn pop_newest_block(&mut self) {
        /// Moves the head back when it is dropped, even if a destructor panics.
        struct HeadRestorer<'s>(&'s mut Stack, usize);
        impl Drop for HeadRestorer<'_> {
            fn drop(&mut self) {
                self.0.retreat(self.1);
            }
        }
        if let Some(frame) = self.frames.pop() {
            let popped = HeadRestorer(self, frame.before);
            if let Some(destructor) = frame.destructor {
                popped.0.work.count_search(1);
                destructor(popped.0.memory.slice_mut(frame.range));
            }
        }
    }

    fn retreat(&mut self, head: usize) {
        self.memory.slice_mut(head..self.head).fill(FREED_BYTE);
        self.head = head;
    }

    /// Registers `destructor`, which runs with the bytes of `block` when the block is popped. A block has at most one
    /// destructor; a second call replaces the destructor.
    ///
    /// # Errors
    /// Returns `destructor` as the error if the block was popped already.
    pub fn register_destructor<D: FnOnce(&mut [u8]) + Send + 'static>(
        &mut self,
        block: &StackBlock,
        destructor: D,
    ) -> Result<(), D> {
        match self.frame(block) {
            Some(frame) => {
                frame.destructor = Some(Box::new(destructor));
                Ok(())
            }
            None => Err(destructor),
        }
    }

    fn frame(&mut self, block: &StackBlock) -> Option<&mut Frame> {
        self.frames.get_mut(block.frame).filter(|frame| frame.birth == block.birth)
    }

    /// Begins a scope; the end of the scope frees all blocks that were allocated in the scope.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use uslab_lab::allocators::stack::Stack;
    /// use uslab_lab::allocators::Allocator;
    ///
    /// fn load_level(frame: &mut Stack) -> usize {
    ///     let mut scope = frame.scope();
    ///     let manifest = scope.alloc(Layout::new::<[u8; 100]>());
    ///     let assets = scope.scope().alloc(Layout::new::<[u8; 400]>()); // freed at the end of this line
    ///     assert!(manifest.is_some() && assets.is_some());
    ///     scope.used()
    /// } // all of it is freed here
    ///
    /// let mut frame = Stack::new(1024)?;
    /// let mut callers = frame.alloc(Layout::new::<[u8; 8]>()).ok_or("no room")?;
    /// frame.bytes(&mut callers).fill(7);
    /// assert_eq!(load_level(&mut frame), 108);
    /// assert_eq!((frame.used(), frame.bytes(&mut callers)[0]), (8, 7)); // the caller's is untouched
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope(&mut self) -> StackScope<'_> {
        let marker = self.mark();
        StackScope { stack: self, marker }
    }

    fn place(&self, layout: Layout) -> Option<(usize, usize)> {
        let place = || place(self.memory.address(), self.memory.len(), self.head, layout);
        if Memory::aligns(layout) { place() } else { None }
    }
}

/// A scope of a [`Stack`]; until the scope ends, callers use the stack through this value.
#[derive(Debug)]
pub struct StackScope<'s> {
    stack: &'s mut Stack,
    marker: Marker,
}

impl Deref for StackScope<'_> {
    type Target = Stack;
    fn deref(&self) -> &Stack {
        self.stack
    }
}
impl DerefMut for StackScope<'_> {
    fn deref_mut(&mut self) -> &mut Stack {
        self.stack
    }
}
impl Drop for StackScope<'_> {
    fn drop(&mut self) {
        // The pop fails only if this scope popped or freed blocks below its own marker. Blocks that were allocated
        // after that pop or free belong to the outer scope.
        let _ = self.stack.pop(self.marker);
    }
}

impl Allocator for Stack {
    type Block = StackBlock;
    const NAME: &'static str = "stack";
    const REUSE: ReuseCondition = ReuseCondition::FromTop;

    fn alloc(&mut self, layout: Layout) -> Option<StackBlock> {
        self.work.count_search(1);
        let place = self.place(layout);
        let block = place.map(|(at, end)| {
            let birth = self.births;
            self.births += 1;
            let piece = self.memory.piece(at, layout.size());
            let before = core::mem::replace(&mut self.head, end);
            self.frames.push(Frame { birth, before, range: at..end, freed: false, destructor: None });
            StackBlock { piece, frame: self.frames.len() - 1, birth }
        });
        self.work.count_allocation(block)
    }
    fn free(&mut self, block: StackBlock) {
        self.memory.checked_offset(&block.piece);
        self.work.frees += 1;
        // A popped block is already free.
        if let Some(frame) = self.frame(&block) {
            frame.freed = true;
        }
        self.pop_while(|stack| stack.frames.last().is_some_and(|frame| frame.freed));
    }
    fn range(&self, block: &StackBlock) -> Range<usize> {
        block.piece.at()..block.piece.at() + block.piece.bytes()
    }
    fn bytes<'b>(&'b mut self, block: &'b mut StackBlock) -> &'b mut [u8] {
        self.memory.bytes(&block.piece)
    }
    fn capacity(&self) -> usize {
        self.memory.len()
    }
    fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        holes.add(self.memory.len() - self.head);
        holes
    }
    fn work(&self) -> Work {
        self.work
    }
    fn metadata_bytes(&self) -> usize {
        self.frames.len() * size_of::<Frame>()
    }
    fn room(&self, layout: Layout) -> Option<bool> {
        Some(self.place(layout).is_some())
    }
    fn check(&self) -> Result<(), String> {
        let mut end = 0;
        for frame in &self.frames {
            if frame.before < end || frame.range.start < frame.before {
                return Err(format!("the block at {:?} starts below the previous block", frame.range));
            }
            end = frame.range.end;
        }
        if end > self.head {
            Err(format!("the head is at {}, but the last block ends at {end}", self.head))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 1).unwrap()
    }

    #[test]
    fn pop_frees_only_blocks_after_the_marker() {
        let mut stack = Stack::new(256).unwrap();
        let mut before = stack.alloc(layout(32)).unwrap();
        stack.bytes(&mut before).fill(1);
        stack.alloc(layout(32)).unwrap();
        let marker = stack.mark();
        let mut new_blocks = [32, 32].map(|size| stack.alloc(layout(size)).unwrap());
        assert_eq!(stack.used(), 128);
        let upper_marker = stack.mark();
        stack.pop(marker).unwrap();
        assert_eq!((stack.used(), stack.holes().largest), (64, 192));
        assert_eq!((stack.bytes(&mut before)[31], stack.bytes(&mut new_blocks[0])[0]), (1, FREED_BYTE));
        assert_eq!(stack.pop(upper_marker), Err(StaleMark { mark: 128, head: 64 }));
        stack.pop(marker).unwrap();
        assert_eq!(stack.used(), 64, "a second reset frees no block");
    }

    /// Regression test: a pop compared only positions, so it accepted a marker in the middle of a block and moved the
    /// head up.
    #[test]
    fn stale_marker_is_refused_after_the_stack_grows() {
        let mut stack = Stack::new(256).unwrap();
        let outer = stack.mark();
        stack.alloc(layout(100)).unwrap();
        let inner = stack.mark();
        stack.pop(outer).unwrap();
        for size in [10, 90, 50] {
            stack.alloc(layout(size)).unwrap();
        }
        assert_eq!(stack.pop(inner), Err(StaleMark { mark: 100, head: 150 }));
        stack.pop(outer).unwrap();
        assert_eq!(stack.used(), 0);
    }

    #[test]
    fn nested_scopes_end_innermost_first() {
        let mut stack = Stack::new(256).unwrap();
        stack.alloc(layout(10)).unwrap();
        {
            let mut outer = stack.scope();
            outer.alloc(layout(20)).unwrap();
            {
                let mut inner = outer.scope();
                inner.alloc(layout(30)).unwrap();
                assert_eq!(inner.used(), 60);
            }
            assert_eq!(outer.used(), 30);
            outer.scope().alloc(layout(1)).unwrap();
            assert_eq!(outer.used(), 30);
        }
        assert_eq!(stack.used(), 10);
        // A scope that popped below its own marker has nothing to pop at its end.
        let bottom = stack.mark();
        stack.alloc(layout(10)).unwrap();
        stack.scope().pop(bottom).unwrap();
        assert_eq!(stack.used(), 10);
    }

    #[test]
    fn pop_runs_destructors_newest_first() {
        let (sender, receiver) = mpsc::channel();
        let mut stack = Stack::new(256).unwrap();
        let mut scope = stack.scope();
        for name in [1, 2, 3] {
            let mut block = scope.alloc(layout(8)).unwrap();
            scope.bytes(&mut block).fill(name);
            let sender = sender.clone();
            assert!(
                scope
                    .register_destructor(&block, move |bytes| sender.send((name, bytes[0])).unwrap())
                    .is_ok()
            );
        }
        drop(scope);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(3, 3), (2, 2), (1, 1)]);
        let popped = stack.scope().alloc(layout(8)).unwrap();
        assert!(
            stack.register_destructor(&popped, |_| {}).is_err(),
            "the value was forgotten, so its destructor does not run"
        );
    }

    #[test]
    fn marker_stays_stale_at_a_reused_position() {
        let mut stack = Stack::new(64).unwrap();
        let bottom = stack.mark();
        stack.alloc(layout(8)).unwrap();
        let stale_marker = stack.mark();
        stack.pop(bottom).unwrap();
        for size in [8, 16] {
            stack.alloc(layout(size)).unwrap();
        }
        assert_eq!(stack.pop(stale_marker), Err(StaleMark { mark: 8, head: 24 }));
        assert_eq!((stack.used(), stack.pop(bottom), stack.used()), (24, Ok(()), 0));
    }

    /// Regression test: after a destructor panicked, the head stayed above blocks that were already popped.
    #[test]
    fn panicking_destructor_does_not_stop_the_pop() {
        use uslab_magazine::sync::catch_panic;
        let (sender, receiver) = mpsc::channel();
        let mut stack = Stack::new(64).unwrap();
        let kept_block = stack.alloc(layout(8)).unwrap();
        let result = catch_panic(|| {
            let mut scope = stack.scope();
            let lower_block = scope.alloc(layout(8)).unwrap();
            assert!(scope.register_destructor(&lower_block, move |_| sender.send(()).unwrap()).is_ok());
            let panics = scope.alloc(layout(8)).unwrap();
            assert!(scope.register_destructor(&panics, |_| panic!("intended panic of a destructor")).is_ok());
        });
        assert!(result.is_err());
        assert_eq!((receiver.try_iter().count(), stack.used(), stack.check()), (1, 8, Ok(())));
        assert!(stack.register_destructor(&kept_block, |_| panic!("intended panic of a destructor")).is_ok());
        assert!(catch_panic(|| stack.free(kept_block)).is_err());
        assert_eq!((stack.used(), stack.check()), (0, Ok(())));
        // Freeing the upper block must also release the lower block, although the destructor panics.
        let [waits, panics] = [8, 8].map(|size| stack.alloc(layout(size)).unwrap());
        assert!(stack.register_destructor(&panics, |_| panic!("intended panic of a destructor")).is_ok());
        stack.free(waits);
        assert!(catch_panic(|| stack.free(panics)).is_err());
        assert_eq!((stack.used(), stack.check()), (0, Ok(())));
    }

    #[test]
    fn stack_block_is_freed_after_all_blocks_above_it() {
        let mut stack = Stack::new(64).unwrap();
        let [a, b, c] = [8, 8, 8].map(|size| stack.alloc(layout(size)).unwrap());
        stack.free(b);
        assert_eq!(stack.used(), 24, "the block waits for the block above");
        stack.free(c);
        assert_eq!(stack.used(), 8);
        let empty_block = stack.alloc(layout(0)).unwrap();
        stack.free(a);
        assert_eq!(stack.used(), 8);
        stack.free(empty_block);
        assert_eq!((stack.used(), stack.check()), (0, Ok(())));
        assert!(stack.alloc(layout(65)).is_none());
        assert!(Stack::new(0).is_err());
    }

    #[test]
    fn freeing_a_popped_block_keeps_its_successor_allocated() {
        let mut stack = Stack::new(64).unwrap();
        let bottom = stack.mark();
        let stale_marker = stack.alloc(layout(8)).unwrap();
        stack.pop(bottom).unwrap();
        stack.alloc(layout(8)).unwrap();
        stack.free(stale_marker);
        assert_eq!(stack.used(), 8);
    }
}

//! Tests the allocators of arbitrary block sizes against a shadow model. The test checks that blocks are aligned, do
//! not overlap, and keep their bytes when they are resized. The test also checks that an allocator with enough room
//! never refuses a request. At the end of a test, all memory is one free block again.

use crate::area::{Area, HeapArea, StackArea};
use crate::best_fit::{Fit, Order};
use crate::{Allocator, Arena, BadFree, BadMarker, BestFit, Refused, Scope, StackAlloc, Tlsf};
use core::alloc::Layout;
use core::ptr::NonNull;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A test area with an odd start address and an arbitrary end.
#[derive(Debug)]
struct UnalignedArea(HeapArea);

// SAFETY: the memory is a part of an area.
unsafe impl Area for UnalignedArea {
    fn memory(&self) -> NonNull<[u8]> {
        let memory = self.0.memory();
        // SAFETY: the area has 8,192 bytes.
        NonNull::slice_from_raw_parts(unsafe { memory.cast::<u8>().add(1) }, memory.len() - 4)
    }
}
fn unaligned_area() -> UnalignedArea {
    UnalignedArea(HeapArea::new(8192, 4096).unwrap())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(Layout),
    Free(usize),
    Resize(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![6 => 0..40_usize, 3 => 0..600_usize, 1 => 0..6000_usize];
    let align = prop_oneof![8 => 0..5_u32, 1 => 5..13_u32];
    let layout = |(size, log): (usize, u32)| Step::Alloc(Layout::from_size_align(size, 1 << log).unwrap());
    let step = prop_oneof![
        5 => (size(), align).prop_map(layout),
        4 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), size()).prop_map(|(pick, size)| Step::Resize(pick, size)),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 40 } else { 300 })
}

/// An allocator whose free space the test can inspect.
trait Subject: Allocator {
    /// Returns `true` if the allocator has room for `layout`. Returns `None` if the free lists do not show whether
    /// the allocator has room.
    fn room(&self, layout: Layout) -> Option<bool>;
    fn free_block_sizes(&self) -> Vec<usize>;
}

macro_rules! subjects {
    ($($type:ty),+) => {$(
        impl<A: Area> Subject for $type {
            fn room(&self, layout: Layout) -> Option<bool> {
                Some(self.blocks.room(layout))
            }
            fn free_block_sizes(&self) -> Vec<usize> {
                assert_eq!(self.blocks.check(), Ok(()));
                self.free_blocks().collect()
            }
        }
    )+};
}
subjects!(Tlsf<A>, BestFit<A>);

/// The model: allocated blocks by address, each with its layout and fill byte.
struct Shadow<S> {
    subject: S,
    blocks: BTreeMap<usize, (NonNull<u8>, Layout, u8)>,
}

impl<S: Subject> Shadow<S> {
    fn insert(&mut self, block: NonNull<u8>, layout: Layout, stamp: u8) {
        let address = block.addr().get();
        assert!(address.is_multiple_of(layout.align()), "{layout:?} at {address:#x}");
        if let Some((before, (_, previous, _))) = self.blocks.range(..=address).next_back() {
            assert!(before + previous.size().max(1) <= address, "the block overlaps the previous block");
        }
        if let Some((next_block, _)) = self.blocks.range(address..).next() {
            assert!(address + layout.size() <= *next_block, "the block overlaps the next block");
        }
        // SAFETY: the block has `layout.size()` bytes.
        unsafe { block.write_bytes(stamp, layout.size()) };
        self.blocks.insert(address, (block, layout, stamp));
    }
    fn pick(&mut self, pick: usize) -> Option<(NonNull<u8>, Layout, u8)> {
        let address = *self.blocks.keys().nth(pick % self.blocks.len().max(1))?;
        self.blocks.remove(&address)
    }
    fn alloc(&mut self, layout: Layout, stamp: u8) {
        // Blocks of the trait `Allocator` have at least one byte.
        let nonzero = Layout::from_size_align(layout.size().max(1), layout.align()).unwrap();
        let room = self.subject.room(nonzero);
        let block = self.subject.allocate(layout, 0);
        assert!(room.is_none_or(|room| room == block.is_ok()), "{layout:?}: {block:?}, room {room:?}");
        match block {
            Ok(block) => self.insert(block, layout, stamp),
            Err(error) => {
                assert_eq!(error, Refused::NoRoom { bytes: nonzero.size(), align: layout.align() })
            }
        }
    }
    fn free(&mut self, pick: usize) {
        let Some((block, layout, stamp)) = self.pick(pick) else { return };
        assert_filled_with(block, layout.size(), stamp);
        // SAFETY: the block was allocated with this layout and is in use. A second free is refused, or does nothing.
        assert_eq!(unsafe { self.subject.release(block, layout, 0) }, Ok(()));
    }
    fn resize(&mut self, pick: usize, size: usize, stamp: u8) {
        let Some((block, old, old_stamp)) = self.pick(pick) else { return };
        let new = Layout::from_size_align(size, old.align()).unwrap();
        // SAFETY: the block was allocated with this layout and is in use.
        let resized = unsafe { self.subject.resize(block, old, new, 0) };
        assert!(resized || size > old.size(), "a block must always be able to shrink");
        assert_filled_with(block, old.size().min(if resized { size } else { old.size() }), old_stamp);
        self.insert(block, if resized { new } else { old }, stamp);
    }
}

fn assert_filled_with(block: NonNull<u8>, bytes: usize, stamp: u8) {
    // SAFETY: the block has `bytes` bytes, which were written.
    let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), bytes) };
    assert!(bytes.iter().all(|byte| *byte == stamp), "the memory was overwritten: {bytes:?}");
}

fn run(subject: impl Subject, steps: Vec<Step>) {
    let mut shadow = Shadow { subject, blocks: BTreeMap::new() };
    let empty = shadow.subject.free_block_sizes();
    assert_eq!(empty.len(), 1);
    for (stamp, step) in steps.into_iter().enumerate() {
        match step {
            Step::Alloc(layout) => shadow.alloc(layout, stamp as u8),
            Step::Free(pick) => shadow.free(pick),
            Step::Resize(pick, size) => shadow.resize(pick, size, stamp as u8),
        }
        shadow.subject.free_block_sizes();
    }
    while !shadow.blocks.is_empty() {
        shadow.free(0);
    }
    assert_eq!(shadow.subject.free_block_sizes(), empty, "all memory must be one block again");
}

proptest! {
    #[test]
    fn tlsf_heap_agrees_with_a_shadow_model(steps in steps(), bits in 2..=5_u32) {
        run(Tlsf::with_steps(unaligned_area(), bits).unwrap(), steps);
    }
    #[test]
    fn each_fit_policy_agrees_with_a_shadow_model(steps in steps(), fit in 0..4_usize, by_address in any::<bool>()) {
        let order = if by_address { Order::Address } else { Order::Lifo };
        run(BestFit::with_policy(unaligned_area(), [Fit::First, Fit::Best, Fit::Next, Fit::Worst][fit], order).unwrap(), steps);
    }
    /// Freeing to a marker frees all later allocations; the marker is refused if an earlier marker was freed. Freeing
    /// the topmost block frees its bytes and its padding, so that no byte is in use at the end.
    #[test]
    fn stack_with_markers_agrees_with_a_list_model(steps in prop::collection::vec((0..7_u8, any::<u16>()), 1..300)) {
        let mut stack = StackAlloc::new(unaligned_area()).unwrap();
        // Each block has a layout, a stamp, and the head of the stack before its allocation. Markers are
        // identified by their index in `marks`.
        let (mut items, mut marks): (Vec<Result<_, usize>>, Vec<_>) = (vec![], vec![]);
        for (stamp, (kind, pick)) in steps.into_iter().enumerate() {
            let (stamp, pick) = (stamp as u8, usize::from(pick));
            match kind {
                0 | 1 => {
                    let layout = Layout::from_size_align(pick % 300, 1 << (pick / 300 % 8)).unwrap();
                    let used = stack.used();
                    if let Ok(block) = stack.alloc(layout) {
                        assert!(block.addr().get().is_multiple_of(layout.align()));
                        // SAFETY: the block belongs to the test.
                        unsafe { block.write_bytes(stamp, layout.size()) };
                        items.push(Ok((block, layout, stamp, used)));
                    }
                }
                2 | 3 => {
                    let used = stack.used();
                    if let Ok(marker) = stack.mark() {
                        items.push(Err(marks.len()));
                        marks.push(Some((marker, used)));
                    }
                }
                4 => {
                    if let Some(Ok((block, layout, stamp, used))) = items.pop_if(|top| top.is_ok()) {
                        assert_filled_with(block, layout.size(), stamp);
                        // SAFETY: the block is the topmost block in use.
                        assert_eq!((unsafe { stack.free(block, layout) }, stack.used()), (Ok(()), used));
                    }
                }
                5 => {
                    if let Some(Ok((block, layout, stamp, _))) = items.last_mut() {
                        let bytes = pick % 300;
                        // SAFETY: the block is the topmost block in use.
                        if unsafe { stack.resize(*block, *layout, bytes) }.unwrap() {
                            let new = Layout::from_size_align(bytes, layout.align()).unwrap();
                            // SAFETY: the block belongs to the test.
                            unsafe { block.write_bytes(*stamp, bytes) };
                            *layout = new;
                        }
                    }
                }
                _ => {
                    let mark = pick % marks.len().max(1);
                    let Some((marker, used)) = marks.get_mut(mark).and_then(Option::take) else { continue };
                    let before = stack.used();
                    match items.iter().position(|place| *place == Err(mark)) {
                        Some(place) => {
                            items.truncate(place);
                            assert_eq!((stack.free_to(marker), stack.used()), (Ok(()), used));
                        }
                        None => {
                            let freed = stack.free_to(marker);
                            assert!(matches!(freed, Err(BadMarker::Freed { .. })), "{freed:?}");
                            assert_eq!(stack.used(), before, "no block may be freed");
                        }
                    }
                }
            }
            items.iter().flatten().for_each(|(block, layout, stamp, _)| assert_filled_with(*block, layout.size(), *stamp));
        }
        for place in items.into_iter().rev() {
            let freed = match place {
                // SAFETY: the block is the topmost block in use.
                Ok((block, layout, ..)) => unsafe { stack.free(block, layout) }.is_ok(),
                Err(mark) => stack.free_to(marks[mark].take().unwrap().0).is_ok(),
            };
            assert!(freed);
        }
        assert_eq!(stack.used(), 0);
    }
    /// Tests nested scopes: values of the outer scope stay, and each scope frees its own allocations.
    #[test]
    fn nested_arena_scopes_agree_with_a_list_model(steps in prop::collection::vec((0..5_u8, any::<u16>()), 1..200)) {
        fn nest<'s, G: FnMut(usize) -> Result<UnalignedArea, crate::PoolError>>(
            scope: &mut Scope<'s, UnalignedArea, G>, steps: &mut impl Iterator<Item = (u8, u16)>,
        ) {
            let mut objects: Vec<(&'s mut [u16], u16)> = vec![];
            while let Some((kind, value)) = steps.next() {
                match kind {
                    0..3 => match scope.alloc_slice_fill_with(usize::from(value) % 500, |_| value) {
                        Ok(slice) => objects.push((slice, value)),
                        Err(result) => assert_eq!(result, Refused::Memory { bytes: 8192 }),
                    },
                    3 => {
                        let used = scope.used();
                        scope.scope(|inner| nest(inner, steps));
                        assert_eq!(scope.used(), used);
                    }
                    _ => break,
                }
                assert!(objects.iter().all(|(slice, value)| slice.iter().all(|item| item == value)));
            }
        }
        let mut chunks = 0;
        let grow = |_| {
            chunks += 1;
            if chunks < 8 { Ok(unaligned_area()) } else { Err(crate::PoolError::Memory { bytes: 0 }) }
        };
        let mut arena = Arena::growing(8192, grow).unwrap();
        let mut steps = steps.into_iter();
        arena.scope(|scope| nest(scope, &mut steps));
        assert_eq!((arena.used(), arena.chunks()), (0, 1));
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn check_wrong_frees(heap: &mut impl Subject) {
    let free_bytes = heap.free_block_sizes();
    let mut other = StackArea::<64>::new();
    let foreign = other.lend().memory().cast::<u8>();
    let [a, b, c] = [24, 24, 24].map(|size| heap.allocate(layout(size, 8), 0).unwrap());
    let not_allocated = |block: NonNull<u8>| Err(BadFree::NotAllocated { address: block.addr().get() });
    // SAFETY: invalid frees are refused, and the other blocks are freed once.
    unsafe {
        let address = foreign.addr().get();
        assert_eq!(heap.release(foreign, layout(24, 8), 0), Err(BadFree::Foreign { address }));
        b.write_bytes(0, 24);
        for interior in [b.add(8), b.add(16)] {
            assert_eq!(heap.release(interior, layout(24, 8), 0), not_allocated(interior));
        }
        assert_eq!(heap.release(a, layout(24, 8), 0), Ok(()));
        assert_eq!(heap.release(a, layout(24, 8), 0), not_allocated(a));
        assert_eq!(heap.release(b, layout(24, 8), 0), Ok(()));
        assert_eq!(
            heap.release(b, layout(24, 8), 0),
            not_allocated(b),
            "the block must be merged into the previous block"
        );
        assert_eq!(heap.release(c, layout(24, 8), 0), Ok(()));
        assert_eq!(heap.release(c, layout(24, 8), 0), not_allocated(c));
    }
    assert_eq!(heap.free_block_sizes(), free_bytes, "the pool must be unchanged");
}

#[test]
fn heap_reports_foreign_addresses_and_double_frees() {
    check_wrong_frees(&mut Tlsf::new(unaligned_area()).unwrap());
    check_wrong_frees(&mut BestFit::new(unaligned_area()).unwrap());
}

/// Checks that a block can grow into the block after it if that block is free.
fn check_growth_in_place(heap: &mut impl Subject) {
    let [a, b] = [100, 100].map(|size| heap.allocate(layout(size, 16), 0).unwrap());
    // SAFETY: the blocks belong to the test and have these layouts.
    unsafe {
        assert!(
            !heap.resize(a, layout(100, 16), layout(500, 16), 0),
            "a block must not grow into a block in use"
        );
        assert!(heap.resize(b, layout(100, 16), layout(1000, 16), 0));
        assert!(heap.resize(b, layout(1000, 16), layout(10, 16), 0));
        assert!(!heap.resize(b, layout(10, 16), layout(100_000, 16), 0));
        heap.release(b, layout(10, 16), 0).unwrap();
        let free_blocks = heap.free_block_sizes()[0];
        assert!(
            heap.resize(a, layout(100, 16), layout(100 + free_blocks, 16), 0),
            "all memory must be allocated"
        );
        heap.release(a, layout(100 + free_blocks, 16), 0).unwrap();
    }
    assert_eq!(heap.free_block_sizes().len(), 1);
}

#[test]
fn heap_block_grows_in_place_into_a_free_neighbour() {
    check_growth_in_place(&mut Tlsf::new(unaligned_area()).unwrap());
    check_growth_in_place(&mut BestFit::new(unaligned_area()).unwrap());
    for fit in [Fit::First, Fit::Next] {
        check_growth_in_place(&mut BestFit::with_policy(unaligned_area(), fit, Order::Lifo).unwrap());
    }
}

/// Tests nested allocators: an arena in an array, a heap in the arena's memory, another heap in a block of that heap,
/// and a stack in a block of the inner heap.
#[test]
fn allocators_work_inside_blocks_of_other_allocators() {
    use crate::Borrowed;
    use core::mem::MaybeUninit;
    fn area<'b>(block: NonNull<u8>, bytes: usize) -> Borrowed<'b> {
        // SAFETY: the block has this many bytes, and stays allocated until the area is dropped.
        unsafe { NonNull::slice_from_raw_parts(block.cast::<MaybeUninit<u8>>(), bytes).as_mut() }.into()
    }
    let mut array = StackArea::<8192>::new();
    let arena = Arena::new(array.lend());
    let memory = arena.alloc_slice_fill_with(6000, |_| MaybeUninit::<u8>::uninit()).unwrap();
    let mut tlsf = Tlsf::new(Borrowed::from(memory)).unwrap();
    let block = tlsf.alloc(layout(4000, 8)).unwrap();
    let mut best = BestFit::new(area(block, 4000)).unwrap();
    let inner = best.alloc(layout(2000, 8)).unwrap();
    let mut stack = StackAlloc::new(area(inner, 2000)).unwrap();
    let innermost = stack.alloc(layout(2000, 1)).unwrap();
    assert_eq!((innermost, stack.mark().err()), (inner, Some(Refused::NoRoom { bytes: 20, align: 4 })));
    // SAFETY: the blocks belong to the test. Each block is freed once, and the stack is no longer used.
    unsafe {
        innermost.write_bytes(1, 2000);
        best.free(inner).unwrap();
        tlsf.free(block).unwrap();
    }
    assert_eq!((best.free_block_sizes().len(), tlsf.free_block_sizes().len()), (1, 1));
}

/// A block without padding needs no padding record. If padded blocks are freed in reverse order, their padding is
/// freed, too.
#[test]
fn blocks_freed_from_the_top_leave_no_padding() {
    let mut array = StackArea::<1024>::new();
    let mut stack = StackAlloc::new(array.lend()).unwrap();
    let layouts =
        [layout(8, 8), layout(3, 1), layout(16, 16), layout(0, 1), layout(0, 64), layout(1, 1), layout(8, 8)];
    let blocks = layouts.map(|layout| {
        let used = stack.used();
        (used, stack.alloc(layout).unwrap(), layout)
    });
    assert_eq!(blocks.map(|(used, ..)| used), [0, 8, 11, 48, 49, 65, 66]);
    for (used, block, layout) in blocks.into_iter().rev() {
        // SAFETY: the block is the topmost block in use.
        assert_eq!((unsafe { stack.free(block, layout) }, stack.used()), (Ok(()), used));
    }
}

/// If a block below other blocks is freed or shrunk, its bytes stay in use. The blocks above a freed block can still be
/// freed, starting from the top.
#[test]
fn freeing_to_a_marker_frees_padding_of_out_of_order_frees() {
    let mut array = StackArea::<1024>::new();
    let mut stack = StackAlloc::new(array.lend()).unwrap();
    let marker = stack.mark().unwrap();
    let [small, large] = [layout(5, 32), layout(40, 16)];
    let (lower, used, upper) = (stack.alloc(small).unwrap(), stack.used(), stack.alloc(large).unwrap());
    assert_eq!((used, stack.used()), (37, 88));
    // SAFETY: each block is in use, has this layout, and is freed once.
    unsafe {
        assert_eq!(stack.resize(upper, large, 41), Ok(true));
        assert_eq!((stack.free(lower, small), stack.used()), (Ok(()), 89));
        assert_eq!((stack.free(upper, layout(41, 16)), stack.used()), (Ok(()), used));
        let reused = stack.alloc(large).unwrap();
        assert_eq!((stack.free(reused, large), stack.used()), (Ok(()), used));
    }
    assert_eq!((stack.free_to(marker), stack.used()), (Ok(()), 0));
}

/// Regression test: freeing to a marker also restored the block with the newest padding, so bytes of the second stack
/// were mistaken for padding.
#[test]
fn marker_of_a_dropped_stack_is_refused() {
    let mut array = StackArea::<1024>::new();
    let mut dropped_stack = StackAlloc::new(array.lend()).unwrap();
    let blocks = [layout(1, 1), layout(8, 8)].map(|layout| dropped_stack.alloc(layout).unwrap().addr());
    let marker = dropped_stack.mark().unwrap();
    let mut stack = StackAlloc::new(array.lend()).unwrap();
    let (bytes, block) = (stack.alloc(layout(16, 1)).unwrap(), stack.alloc(layout(8, 8)).unwrap());
    assert_eq!([bytes.addr(), block.addr()], blocks);
    // SAFETY: the 16 bytes belong to the test.
    unsafe { bytes.write_bytes(0xff, 16) };
    let _marker = stack.mark().unwrap();
    assert_eq!((stack.free_to(marker), stack.used()), (Ok(()), 24));
    // SAFETY: the block is in use, and below the marker's position.
    assert_eq!((unsafe { stack.free(block, layout(8, 8)) }, stack.used()), (Ok(()), 16));
}

#[test]
fn marker_of_another_stack_is_refused() {
    let (mut stack, mut other_stack) =
        (StackAlloc::new(unaligned_area()).unwrap(), StackAlloc::new(unaligned_area()).unwrap());
    let (_marker, other_marker) = (stack.mark().unwrap(), other_stack.mark().unwrap());
    let address = other_stack.alloc(layout(0, 1)).unwrap().addr().get() + 1 - other_stack.used();
    assert_eq!((stack.free_to(other_marker), stack.used()), (Err(BadMarker::Foreign { address }), 23));
    assert_eq!(
        (BadMarker::Foreign { address: 64 }).to_string(),
        "the marker belongs to the stack at 0x40, not to this one"
    );
    assert_eq!(
        (BadMarker::Freed { at: 8 }).to_string(),
        "the marker at byte 8 was freed with an earlier one"
    );
}

/// Later allocations may overwrite the record of a marker that was freed. The number in the record shows that the
/// marker is no longer valid.
#[test]
fn freed_marker_at_a_reused_position_is_refused() {
    let mut stack = StackAlloc::new(unaligned_area()).unwrap();
    let marker = stack.mark().unwrap();
    let freed_marker = stack.mark().unwrap();
    stack.free_to(marker).unwrap();
    let (_previous, _reused_marker) = (stack.mark().unwrap(), stack.mark().unwrap());
    assert!(matches!(stack.free_to(freed_marker), Err(BadMarker::Freed { .. })));
    let end = stack.alloc(layout(0, 1)).unwrap();
    // SAFETY: the address was never allocated.
    let freed = unsafe { stack.free(end, layout(8, 1)) };
    assert!(matches!(freed, Err(BadFree::NotAllocated { .. })));
}

#[test]
fn panic_ends_the_arena_scope() {
    let mut array = StackArea::<256>::new();
    let mut arena = Arena::new(array.lend());
    let panicked = crate::catch_panic(|| {
        arena.scope(|scope| {
            scope.alloc([0_u8; 100]).unwrap();
            panic!("no");
        })
    });
    assert!(panicked.is_err());
    assert_eq!(arena.used(), 0);
}

/// Regression test: each refused request allocated a chunk that was too small, and wasted the rest of the previous
/// chunk.
#[test]
fn arena_discards_a_chunk_smaller_than_requested() {
    let mut arena = Arena::growing(64, |bytes| HeapArea::new(bytes.min(100), 16)).unwrap();
    arena.alloc([0_u8; 10]).unwrap();
    let result = arena.alloc_layout(layout(101, 1));
    assert_eq!(result, Err(Refused::NoRoom { bytes: 101, align: 1 }));
    assert_eq!((arena.used(), arena.chunks()), (10, 1));
    arena.alloc([0_u8; 54]).unwrap();
    assert_eq!((arena.used(), arena.chunks()), (64, 1));
    arena.reset();
}

#[test]
fn arena_never_drops_its_objects() {
    use std::rc::Rc;
    let count = Rc::new(());
    let mut array = StackArea::<64>::new();
    let mut arena = Arena::new(array.lend());
    arena.alloc(count.clone()).unwrap();
    assert!(arena.alloc([const { None::<Rc<()>> }; 100]).is_err());
    let error = arena.alloc_slice_fill_with(usize::MAX, |_| 0_u64).err();
    let requested = usize::MAX;
    assert_eq!(error, Some(Refused::Size { requested, max: isize::MAX as usize }));
    arena.reset();
    assert_eq!(Rc::strong_count(&count), 2);
    // SAFETY: the arena had this reference, and has leaked it.
    unsafe { Rc::decrement_strong_count(Rc::as_ptr(&count)) };
    let (a, b) = (&mut *arena.alloc(()).unwrap(), arena.alloc_slice_fill_with(3, |_| ()).unwrap());
    assert_eq!((*a, b.len(), arena.used()), ((), 3, 0), "an empty list must use no memory");
}

#[test]
fn each_allocator_aligns_objects_behind_their_guards() {
    use crate::{MemoryArena, SimpleBounds};
    fn check_alignment(heap: impl Subject) {
        let mut arena = MemoryArena::<_, SimpleBounds>::new(heap);
        for align in [1, 8, 16, 64, 512] {
            let object = arena.alloc(layout(40, align)).unwrap();
            assert!(object.addr().get().is_multiple_of(align));
            // SAFETY: the block belongs to the test, and has this size.
            unsafe {
                object.write_bytes(7, 40);
                assert_eq!(arena.free(object, layout(40, align)), Ok(()));
            }
        }
    }
    check_alignment(Tlsf::new(unaligned_area()).unwrap());
    check_alignment(BestFit::new(unaligned_area()).unwrap());
}

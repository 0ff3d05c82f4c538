use super::*;
use uslab::pool::words::Words;

/// The unit of block sizes, in bytes.
const UNIT: usize = 16;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 1).unwrap()
}
fn heap(fit: Fit, order: Order) -> Heap {
    Heap::new(1024, fit, order).unwrap()
}
/// Returns a heap, together with its used blocks. The used blocks separate free blocks of 64, 32 and 48 bytes, which
/// were freed in the order of their addresses.
fn heap_with_holes(fit: Fit, order: Order) -> (Heap, Vec<MemoryPiece>) {
    let mut heap = heap(fit, order);
    let mut blocks: Vec<_> =
        [56, 8, 24, 8, 40, 8].map(|size| heap.alloc(layout(size)).unwrap()).into_iter().collect();
    let (c, b, a) = (blocks.remove(4), blocks.remove(2), blocks.remove(0));
    [a, b, c].into_iter().for_each(|block| heap.free(block));
    assert_eq!(heap.check(), Ok(()));
    (heap, blocks)
}

#[test]
fn each_fit_policy_selects_its_block() {
    let position_of = |fit, order, size| {
        let (mut heap, _used_blocks) = heap_with_holes(fit, order);
        heap.alloc(layout(size)).unwrap().at()
    };
    // The free blocks by address: 16 (56 bytes), 96 (24 bytes), 144 (40 bytes), and the rest from 208 on.
    assert_eq!(position_of(Fit::First, Order::Address, 20), 16);
    assert_eq!(position_of(Fit::Best, Order::Address, 20), 96);
    assert_eq!(position_of(Fit::Best, Order::Address, 30), 144);
    assert_eq!(
        position_of(Fit::First, Order::Lifo, 20),
        144,
        "the block that was freed last must be allocated first"
    );
    assert_eq!(position_of(Fit::First, Order::Address, 57), 208);
    assert_eq!(position_of(Fit::Worst, Order::Address, 20), 208);
    let (mut heap, _used_blocks) = heap_with_holes(Fit::Next, Order::Address);
    let next: Vec<_> = (0..3).map(|_| heap.alloc(layout(20)).unwrap().at()).collect();
    assert_eq!(next, [208, 240, 272], "the search must begin where the last search ended");
}

/// Regression test: after an exact fit, the next search began at the start of the previous search.
#[test]
fn next_fit_continues_after_an_exact_fit() {
    let mut heap = heap(Fit::Next, Order::Address);
    let [small, _a, first_fit, _b, next, _c] =
        [8, 8, 24, 8, 24, 8].map(|size| heap.alloc(layout(size)).unwrap());
    let _filler = (0..1024).rev().find_map(|size| heap.alloc(layout(size))).unwrap();
    assert_eq!(heap.holes().count, 0);
    let (hit_at, next_at) = (first_fit.at(), next.at());
    [small, first_fit, next].into_iter().for_each(|block| heap.free(block));
    assert_eq!([24, 8].map(|size| heap.alloc(layout(size)).unwrap().at()), [hit_at, next_at]);
    assert_eq!(heap.check(), Ok(()));
}

#[test]
fn search_lengths_are_counted() {
    let steps = |fit, size| {
        let (mut heap, _used_blocks) = heap_with_holes(fit, Order::Address);
        let before = heap.work().steps;
        heap.alloc(layout(size)).unwrap();
        heap.work().steps - before
    };
    assert_eq!((steps(Fit::First, 20), steps(Fit::First, 50), steps(Fit::First, 60)), (1, 1, 4));
    assert_eq!(steps(Fit::Best, 20), 4, "best fit must inspect all free blocks");
    let (mut heap, _used_blocks) = heap_with_holes(Fit::First, Order::Address);
    heap.alloc(layout(2000)).ok_or(()).unwrap_err();
    assert_eq!((heap.work().refused, heap.work().longest), (1, Some(4)));
}

#[test]
fn freed_block_merges_with_both_neighbours() {
    for order in [Order::Lifo, Order::Address] {
        let mut heap = heap(Fit::First, order);
        let initial_holes = heap.holes();
        let [a, b, c] = [100; 3].map(|size| heap.alloc(layout(size)).unwrap());
        heap.free(a);
        heap.free(c);
        assert_eq!((heap.holes().count, heap.work().merges), (2, 1));
        heap.free(b);
        assert_eq!((heap.holes(), heap.work().merges, heap.check()), (initial_holes, 3, Ok(())));
    }
}

#[test]
fn holes_of_16_bytes_cannot_serve_4_kilobytes() {
    let mut heap = Heap::new(16 << 10, Fit::First, Order::Address).unwrap();
    let mut blocks = vec![];
    while let Some(block) = heap.alloc(layout(8)) {
        blocks.push(Some(block));
    }
    for block in blocks.iter_mut().step_by(2) {
        heap.free(block.take().unwrap());
    }
    let holes = heap.holes();
    assert_eq!((holes.count, holes.largest), (512, 8), "holes of 16 bytes, their tags included");
    assert_eq!(holes.count * UNIT, 8 << 10, "half of the heap is free");
    assert!(heap.alloc(layout(4096)).is_none());
    assert!(heap.alloc(layout(9)).is_none());
    // Freeing the block between two holes merges the block with both holes.
    blocks.into_iter().flatten().for_each(|block| heap.free(block));
    assert!(heap.alloc(layout(4096)).is_some());
}

#[test]
fn gap_before_an_aligned_block_stays_free() {
    let mut heap = heap(Fit::First, Order::Address);
    let block = heap.alloc(Layout::from_size_align(100, 256).unwrap()).unwrap();
    assert_eq!((block.at(), heap.holes().count, heap.check()), (256, 2, Ok(())));
    assert!(heap.alloc(Layout::from_size_align(1, 8192).unwrap()).is_none());
    heap.free(block);
    assert_eq!(heap.holes(), Holes { count: 1, largest: 1000, total: 1000 });
}

#[test]
fn overwritten_boundary_tag_is_reported() {
    let mut heap = heap(Fit::First, Order::Lifo);
    let block = heap.alloc(layout(24)).unwrap();
    let end = block.at() + 24;
    heap.blocks.memory_mut().store(end, 0);
    assert_eq!(heap.check(), Err("the tags of the block at 12 differ".to_owned()));
}

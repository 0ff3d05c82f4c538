//! Tests of the page allocator's behaviour.

use crate::corruption::Handler;
use crate::{
    Backend, Corruption, Gfp, HugePages, Kind, Limit, MigrateType, Order, PAGE_SIZE, PageAllocator,
    PageBlock, PageConfig, Pfn, ZoneKind,
};
use std::cell::RefCell;
use uslab_magazine::sync::{Arc, Counter, Mutex};
use uslab_magazine::tracepoints::{Counts, Observed, Step};
use uslab_magazine::{Cpus, DrainScope, Operation, Path, on_cpu};

thread_local! {
    static CORRUPTIONS: RefCell<Vec<Corruption>> = const { RefCell::new(Vec::new()) };
}
fn note_corruption(corruption: &Corruption) {
    CORRUPTIONS.with(|found| found.borrow_mut().push(*corruption));
}
const NOTE_HANDLER: Handler = note_corruption;

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

/// Creates a configuration with zones on one node, without a reserve and per-CPU pages.
fn plain(zones: &[(ZoneKind, u32)]) -> PageConfig {
    PageConfig {
        per_cpu_pages: false,
        min_free_kib: Some(0),
        watermark_scale: 0,
        corruption: NOTE_HANDLER,
        ..PageConfig::with_nodes(Cpus::simulated(1, 1).unwrap(), vec![zones.to_vec()])
    }
}
fn normal(pages: u32) -> PageConfig {
    plain(&[(ZoneKind::Normal, pages)])
}
fn new_allocator(config: PageConfig) -> PageAllocator {
    PageAllocator::new(config).unwrap()
}
/// Allocates until an allocation fails.
fn alloc_all(pages: &PageAllocator, order: Order, gfp: Gfp) -> (Vec<PageBlock<'_>>, Limit) {
    let mut blocks = Vec::new();
    loop {
        match pages.alloc_block(order, gfp, None) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error.limit),
        }
    }
}
fn audited(pages: &PageAllocator) -> crate::Census {
    pages.check().unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn extreme_page_configurations_cause_no_panic() {
    for (pages, end) in
        [(1, 0), (1 << 12, 0), (1 << 12, u32::MAX), (u32::MAX - 2048, 0), (u32::MAX - 2048, u32::MAX)]
    {
        for kind in [ZoneKind::Dma, ZoneKind::Normal, ZoneKind::Movable] {
            let config = PageConfig {
                watermark_scale: end,
                min_free_kib: Some(end),
                keep_free: Some(end as usize * end as usize),
                ..plain(&[(kind, pages)])
            };
            // The system may refuse a range of this size, which is then halved.
            let pages = new_allocator(config);
            drop(pages.alloc_block(Order::ZERO, Gfp::KERNEL, None));
            assert_eq!(
                pages.alloc_bulk(Gfp::KERNEL, Some(u32::MAX), usize::MAX, |_| ()),
                0,
                "the node does not exist"
            );
            pages.drain_cpus(0..u32::MAX);
            pages.decommit();
            assert!(pages.info().zones.iter().all(|zone| zone.free == zone.managed), "{kind:?}, {end}");
        }
    }
    assert!(PageAllocator::new(normal(u32::MAX)).is_err());
}

#[test]
fn range_of_one_page_serves_its_page_repeatedly() {
    for per_cpu_pages in [false, true] {
        let pages = new_allocator(PageConfig { per_cpu_pages, ..normal(1) });
        for _ in 0..3 {
            let block = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
            let error = pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap_err();
            assert_eq!(error.limit, Limit::Exhausted);
            assert_eq!(error.to_string(), "no block of order 0: out of pages");
            block.free();
        }
        assert_eq!(pages.decommit(), 4096);
    }
}

#[test]
fn memory_is_committed_in_maximal_blocks() {
    let pages = new_allocator(normal(3 * 1024));
    assert_eq!(pages.info().committed_bytes(), 0);
    let blocks = [(); 3].map(|()| pages.alloc_block(order(9), Gfp::ZERO, None).unwrap());
    assert_eq!(pages.info().committed_bytes(), 2 << 22);
    assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 0)));
    let [first, _second, third] = blocks;
    drop(third);
    assert_eq!(pages.decommit(), 1 << 22, "the completely free block is decommitted");
    drop(first);
    assert_eq!(pages.decommit(), 2 << 20, "the other block is half in use and stays committed");
    assert_eq!(pages.info().committed_bytes(), 1 << 22);
    assert_eq!(audited(&pages).allocated, 512);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap keeps it")]
fn decommitted_memory_is_no_longer_resident() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let pages = new_allocator(normal(32 * 1024));
    let (mut blocks, _) = alloc_all(&pages, order(10), Gfp::KERNEL);
    blocks.iter_mut().for_each(|block| block.bytes_mut().fill(1));
    let full = resident();
    drop(blocks);
    assert_eq!(pages.decommit(), 128 << 20);
    let left = resident();
    assert!(full - left > 100 << 20, "{full} bytes before, {left} bytes after");
}

#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn frames_of_discarded_pages_are_no_longer_resident() {
    const N: usize = 8 * 1024;
    let pages = new_allocator(PageConfig { keep_free: None, ..normal(N as u32) });
    let frames = pages.frames();
    // One OS page has 64 frames.
    let resident = || {
        let mut each = [0_u8; N / 64];
        let first = std::ptr::from_ref(frames.frame(Pfn::new(0))).cast_mut();
        // SAFETY: the frames of the range begin at a page, and fill one page for each byte of `each`.
        let known =
            unsafe { nix::libc::mincore(first.cast(), N * size_of::<crate::Frame>(), each.as_mut_ptr()) };
        assert_eq!(known, 0);
        each.iter().filter(|page| **page & 1 == 1).count()
    };
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!(resident(), N / 64, "each page of frames was written");
    // A block of the highest order is decommitted. If the last page of a block stays allocated, smaller blocks are
    // discarded.
    let kept: Vec<_> = blocks.into_iter().filter(|block| block.pfn().get() % 1024 == 1023).collect();
    assert_eq!(pages.decommit_free(), (N - kept.len()) * PAGE_SIZE);
    // Of 1,024 pages' frames, five OS pages stay: the first frames of the free blocks of 512, 256, 128 and 64 pages,
    // and the last frame.
    assert_eq!(resident(), kept.len() * 5);
    drop(kept);
    pages.decommit();
    assert_eq!(resident(), 0, "no frame is written for uncommitted pages");
}

#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn resident_pages(pages: &PageAllocator, block: &PageBlock<'_>) -> usize {
    let mut each = vec![0_u8; block.order().pages() as usize];
    let memory = pages.address(block.pfn());
    // SAFETY: the block is mapped, and has as many pages as there are bytes.
    let known =
        unsafe { nix::libc::mincore(memory.as_ptr().cast(), block.order().bytes(), each.as_mut_ptr()) };
    assert_eq!(known, 0);
    each.iter().filter(|page| **page & 1 == 1).count()
}
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn bytes<'b>(pages: &PageAllocator, block: &'b mut PageBlock<'_>) -> &'b mut [u8] {
    // SAFETY: the block is committed, and the caller owns it while it is borrowed.
    unsafe { core::slice::from_raw_parts_mut(pages.address(block.pfn()).as_ptr(), block.order().bytes()) }
}

#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn zeroing_skips_pages_known_to_be_zero() {
    let config = PageConfig { huge_pages: HugePages::Never, keep_free: None, ..normal(1024) };
    let pages = new_allocator(config);
    let order = order(6);
    let zeroed = || pages.alloc_block(order, Gfp::ZERO, None).unwrap();
    // Both halves of each split block were never used, so their pages are zero.
    let (mut a, b) = (zeroed(), zeroed());
    assert_eq!([&a, &b].map(|block| resident_pages(&pages, block)), [0, 0]);
    // The block was used, freed and merged with an unused block.
    bytes(&pages, &mut a).fill(7);
    drop((a, b));
    let (whole, _) = alloc_all(&pages, Order::MAX, Gfp::ZERO);
    for mut block in whole {
        assert!(bytes(&pages, &mut block).iter().all(|byte| *byte == 0));
    }
    // The block was discarded while a neighbour stayed allocated, and was split again.
    let kept = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert!(pages.decommit() > 0);
    let mut c = zeroed();
    assert_eq!(resident_pages(&pages, &c), 0);
    assert!(bytes(&pages, &mut c).iter().all(|byte| *byte == 0));
    drop((c, kept));
    // The block was decommitted as a whole.
    pages.decommit();
    assert_eq!(resident_pages(&pages, &zeroed()), 0);
    audited(&pages);
}

/// The system does not discard the contents of locked memory.
#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn locked_pages_are_zeroed_by_writing() {
    let pages = new_allocator(PageConfig { huge_pages: HugePages::Never, keep_free: None, ..normal(1024) });
    let order = order(6);
    for keep in [true, false] {
        let kept = keep.then(|| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap());
        let mut used = pages.alloc_block(order, Gfp::KERNEL, None).unwrap();
        let memory = bytes(&pages, &mut used);
        memory.fill(7);
        // SAFETY: the memory is mapped.
        if unsafe { nix::libc::mlock(memory.as_ptr().cast(), memory.len()) } != 0 {
            // Some systems forbid `mlock`.
            return;
        }
        drop(used);
        pages.decommit();
        let (blocks, _) = alloc_all(&pages, order, Gfp::ZERO);
        for mut block in blocks {
            assert!(bytes(&pages, &mut block).iter().all(|byte| *byte == 0));
        }
        drop(kept);
    }
}

#[test]
fn zone_tail_smaller_than_a_maximal_block_is_allocated() {
    let pages = new_allocator(normal(1024 + 700));
    let (blocks, limit) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!((blocks.len(), limit), (1724, Limit::Exhausted));
    assert_eq!((pages.info().failures, pages.info().below_low), (1, 1));
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 1724);
    drop(blocks);
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
    audited(&pages);
    // The committed tail has blocks of any order that fits: 512 + 128 + 32 + 16 + 8 + 4.
    let info = pages.info();
    let free: Vec<u64> = Order::ZERO.through(Order::MAX).map(|o| info.zones[0].free_blocks(o)).collect();
    assert_eq!(free, [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1]);
    assert_eq!(pages.decommit(), 1724 * 4096);
}

#[test]
fn uncommitted_memory_counts_as_free_blocks() {
    let pages = new_allocator(normal(2 * 1024 + 700));
    let free = || {
        let zone = &pages.info().zones[0];
        Order::ZERO.through(Order::MAX).map(|order| zone.free_blocks(order)).collect::<Vec<_>>()
    };
    let in_use = || pages.info().pages_not_in_maximal_blocks();
    // The tail has 512 + 128 + 32 + 16 + 8 + 4 pages.
    let fresh = [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 2];
    assert_eq!((free(), in_use()), (fresh.to_vec(), 0));
    assert_eq!(pages.info().zones[0].blocks[Order::MAX.index()], [0, 2, 0]);
    let take = |n| pages.alloc_block(order(n), Gfp::KERNEL, None).unwrap();
    let first = take(10);
    assert_eq!((free(), in_use()), (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1], 1024));
    let others = [take(10), take(9)];
    assert_eq!((free(), in_use()), (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0], 2560));
    drop(first);
    pages.decommit();
    assert_eq!(
        (free(), in_use()),
        (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1], 1536),
        "returned pages must be counted, too"
    );
    drop(others);
    pages.decommit();
    assert_eq!((free(), in_use()), (fresh.to_vec(), 0));
}

#[test]
fn smallest_fitting_block_is_split() {
    let pages = new_allocator(normal(1024));
    let reported = Arc::new(Mutex::new(vec![]));
    let noted = reported.clone();
    let moves = move |step: &Step| match *step {
        Step::BlocksTaken { splits: moves, .. } | Step::BlocksGiven { merges: moves, .. } => {
            noted.lock().push(moves);
        }
        _ => {}
    };
    let observer = pages.tracepoints().observe(move |op| op.steps.iter().for_each(&moves)).unwrap();
    let low = pages.alloc_block(order(3), Gfp::MOVABLE, None).unwrap();
    assert_eq!(low.pfn(), Pfn::new(0));
    let next = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
    assert_eq!(next.pfn(), Pfn::new(8), "the block is split from the remaining block of order 3");
    assert_eq!(pages.info().zones[0].events.splits, 7 + 3);
    drop(next);
    drop(low);
    drop(observer);
    assert_eq!(*reported.lock(), [7, 3, 3, 7], "an operation reports its own splits and merges");
}

/// An operation reports the moved blocks, their splits or merges, and the memory that the system supplied or took back.
#[test]
fn page_operation_reports_its_block_moves_and_commits() {
    let pages = new_allocator(PageConfig { keep_free: Some(0), ..normal(2 * 1024) });
    let reported = Arc::new(Mutex::new(vec![]));
    let noted = reported.clone();
    let of_zones = |step: &&Step| {
        use Step::{BlocksGiven, BlocksTaken, Committed, Decommitted};
        matches!(step, BlocksTaken { .. } | BlocksGiven { .. } | Committed { .. } | Decommitted { .. })
    };
    let note = move |op: &Observed<'_>| noted.lock().extend(op.steps.iter().filter(of_zones).copied());
    let _observer = pages.tracepoints().observe(note).unwrap();
    let steps = || core::mem::take(&mut *reported.lock());
    let taken = |page, splits| Step::BlocksTaken { blocks: 1, order: 3, page, splits };
    let given = |page, merges| Step::BlocksGiven { blocks: 1, order: 3, page, merges };
    let first = pages.alloc_block(order(3), Gfp::MOVABLE, None).unwrap();
    assert_eq!(steps(), [taken(0, 7), Step::Committed { pages: 1024 }]);
    let second = pages.alloc_block(order(3), Gfp::MOVABLE, None).unwrap();
    assert_eq!(steps(), [taken(8, 0)], "no system call was made");
    // All free pages next to the first block are discarded, then the maximal block is decommitted.
    drop(second);
    assert_eq!(steps(), [given(8, 0), Step::Decommitted { pages: 1016 }]);
    drop(first);
    assert_eq!(steps(), [given(0, 7), Step::Decommitted { pages: 1024 }]);
}

#[test]
fn concurrent_operations_report_only_their_splits_and_merges() {
    let (threads, each) = if cfg!(miri) { (2, 10) } else { (4, 10_000) };
    let (pages, at_once) = (new_allocator(normal(1024)), std::sync::Barrier::new(threads));
    let reported = Arc::new([const { Counter::new(0) }; 2]);
    let noted = reported.clone();
    let moves = move |step: &Step| match *step {
        Step::BlocksTaken { splits, .. } => noted[0].add(splits.into()),
        Step::BlocksGiven { merges, .. } => noted[1].add(merges.into()),
        _ => {}
    };
    let observer = pages.tracepoints().observe(move |op| op.steps.iter().for_each(&moves)).unwrap();
    let uses = || {
        at_once.wait();
        (0..each).for_each(|_| drop(pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()));
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(uses))));
    assert_eq!(observer.counts(), Counts::default());
    let counted = pages.info().zones[0].events;
    assert_eq!([&reported[0], &reported[1]].map(Counter::get), [counted.splits, counted.merges]);
}

#[test]
fn block_about_to_merge_is_allocated_last() {
    let config = PageConfig { max_order: order(4), pageblock_order: order(4), ..normal(16) };
    let pages = new_allocator(config);
    let blocks: Vec<_> = (0..16).map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    // SAFETY: each block was allocated above and is freed once.
    let free = |page: usize| unsafe { pages.free(blocks[page], Order::ZERO) };
    free(2);
    free(3);
    free(8);
    // Pages 2 and 3 are the free buddy of page 0's parent block, so page 0 will soon merge into a block of order 2.
    free(0);
    let next = pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert_eq!(next, Pfn::new(8), "the CPU must allocate page 8, which was freed before page 0, first");
}

#[test]
fn fallback_claims_the_pageblock_of_a_large_block() {
    let pages = new_allocator(PageConfig { pageblock_order: order(8), ..normal(1024) });
    let pages_in_use = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
    assert_eq!(pages.info().zones[0].pageblocks, [0, 4, 0]);
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert_eq!(pinned.pfn(), Pfn::new(512), "the largest free block spans two pageblocks");
    let zone = &pages.info().zones[0];
    assert_eq!((zone.pageblocks, zone.events.claims, zone.events.steals), ([2, 2, 0], 1, 0));
    audited(&pages);
    drop((pages_in_use, pinned));
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0, "pageblocks of different types merge");
    audited(&pages);
}

#[test]
fn fallback_claims_a_free_maximal_block_as_a_whole() {
    let config = PageConfig { pageblock_order: order(6), max_order: order(7), ..normal(256) };
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..config });
    let (mut movable, _) = alloc_all(&pages, order(7), Gfp::MOVABLE);
    assert_eq!(movable.len(), 2);
    drop(movable.remove(0));
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.pageblocks, zone.events.claims, zone.events.steals), ([2, 2, 0], 1, 0));
    audited(&pages);
    drop(pinned);
}

/// Merged pageblocks get the type of the pages that were freed last.
#[test]
fn merged_pageblocks_take_the_migratetype_of_the_last_free() {
    let config = PageConfig { pageblock_order: order(5), max_order: order(7), ..normal(128) };
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..config });
    let block = |n, gfp| pages.alloc_block(order(n), gfp, None).unwrap();
    let types = || pages.info().zones[0].pageblocks;
    let movable = block(5, Gfp::MOVABLE);
    let (large, small) = (block(6, Gfp::KERNEL), block(5, Gfp::KERNEL));
    assert_eq!([&movable, &small, &large].map(|block| block.pfn().get()), [0, 32, 64]);
    assert_eq!(types(), [3, 1, 0]);
    drop(small);
    assert_eq!(types(), [3, 1, 0], "the block must merge with no other block");
    drop(movable);
    assert_eq!(types(), [2, 2, 0]);
    drop(large);
    assert_eq!(types(), [4, 0, 0]);
    audited(&pages);
}

#[test]
fn claiming_a_half_free_pageblock_moves_its_free_blocks() {
    let pages = new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(192) });
    let (mut movable, _) = alloc_all(&pages, order(2), Gfp::MOVABLE);
    movable.drain(0..9);
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.claims, zone.events.steals), (1, 0), "36 of 64 pages are free");
    assert_eq!(zone.pageblocks, [1, 2, 0]);
    assert_eq!(zone.blocks.iter().map(|row| row[MigrateType::Movable as usize]).sum::<u32>(), 0);
    audited(&pages);
    drop(pinned);
}

#[test]
fn stolen_block_returns_to_its_migratetype() {
    let pages = new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(192) });
    let (mut movable, _) = alloc_all(&pages, Order::ZERO, Gfp::MOVABLE);
    movable.truncate(movable.len() - 7);
    let stolen_page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.claims, zone.events.steals, zone.pageblocks), (0, 1, [0, 3, 0]));
    drop(stolen_page);
    assert_eq!(pages.info().zones[0].blocks[0], [0, 1, 0]);
    audited(&pages);
}

/// Allocates three pageblocks of 64 pages and a tail in blocks of `size` with `gfp`. `fallback` then frees the blocks
/// of the first pageblock that `freed` selects (by number), and allocates `more`. Returns the numbers of claims and
/// steals of the last step.
fn fallback(
    tail: u32,
    (size, gfp): (Order, Gfp),
    freed: impl Fn(usize) -> bool,
    more: &[(Gfp, Option<usize>)],
) -> (u64, u64) {
    let pages =
        new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(192 + tail) });
    let (blocks, _) = alloc_all(&pages, size, gfp);
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    (0..blocks.len()).filter(|n| freed(*n)).for_each(|n| blocks[n] = None);
    let before = pages.info().zones[0].events;
    let mut kept = Vec::new();
    for (gfp, then_free) in more {
        kept.push(pages.alloc_block(size, *gfp, None).unwrap());
        if let Some(n) = then_free {
            blocks[*n] = None;
        }
    }
    audited(&pages);
    let after = pages.info().zones[0].events;
    (after.claims - before.claims, after.steals - before.steals)
}

#[test]
fn compatible_pages_count_towards_a_pageblock_claim() {
    // Three stolen blocks of 8 pages and 8 free blocks together are half of the pageblock.
    let is_even = |n| [0, 2, 4].contains(&n);
    for (from, to) in [(Gfp::KERNEL, Gfp::MOVABLE), (Gfp::MOVABLE, Gfp::KERNEL)] {
        let more = [(to, None), (to, None), (to, Some(6)), (to, None)];
        assert_eq!(fallback(0, (order(3), from), is_even, &more), (1, 3), "{from} to {to}");
    }
    // Reclaimable pages and unmovable pages do not count as compatible with each other.
    let (from, to) = (Gfp::RECLAIMABLE, Gfp::KERNEL);
    let more = [(to, None), (to, None), (to, Some(6)), (to, None)];
    assert_eq!(fallback(0, (order(3), from), is_even, &more), (0, 4));
}

#[test]
fn pageblock_is_not_claimed_for_a_small_movable_block() {
    let is_free = |n| n < 64 && n % 2 == 0;
    let one = |from, to| fallback(0, (Order::ZERO, from), is_free, &[(to, None)]);
    assert_eq!(one(Gfp::KERNEL, Gfp::MOVABLE), (0, 1));
    assert_eq!(one(Gfp::MOVABLE, Gfp::KERNEL), (1, 0));
}

#[test]
fn pageblock_crossing_the_zone_end_is_not_claimed() {
    // The test uses 24 blocks of 8 pages in whole pageblocks, and 4 blocks in the tail, all of which are freed.
    assert_eq!(fallback(32, (order(3), Gfp::MOVABLE), |n| n >= 24, &[(Gfp::KERNEL, None)]), (0, 1));
    // The last whole pageblock is claimed.
    assert_eq!(fallback(0, (order(3), Gfp::MOVABLE), |n| n >= 20, &[(Gfp::KERNEL, None)]), (1, 0));
}

#[test]
fn freed_page_returns_to_the_magazines_of_its_migratetype() {
    let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(4096) });
    let page = |gfp| pages.alloc_block(Order::ZERO, gfp, None).unwrap().pfn();
    let (movable, pinned) = (page(Gfp::MOVABLE), page(Gfp::KERNEL));
    assert_ne!(movable.get() / 1024, pinned.get() / 1024);
    assert_eq!((page(Gfp::MOVABLE), page(Gfp::KERNEL)), (movable, pinned));
}

#[test]
fn zone_tail_is_not_committed_for_a_larger_block() {
    let pages = new_allocator(normal(1024 + 700));
    let _half = pages.alloc_block(order(9), Gfp::KERNEL, None).unwrap();
    assert_eq!(pages.alloc(order(10), Gfp::KERNEL, None).unwrap_err().limit, Limit::Fragmented);
    assert_eq!(pages.info().committed_bytes(), 4 << 20);
}

#[test]
fn block_whose_parent_cannot_merge_is_allocated_first() {
    let pages = new_allocator(PageConfig { max_order: order(4), pageblock_order: order(4), ..normal(48) });
    let (blocks, _) = alloc_all(&pages, order(3), Gfp::KERNEL);
    let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
    // Blocks 2 and 3 are the free buddy of block 0's parent, but the merged block has the largest order.
    for n in [4, 2, 3, 0] {
        blocks[n] = None;
    }
    assert_eq!(pages.alloc_block(order(3), Gfp::KERNEL, None).unwrap().pfn(), Pfn::new(0));
}

#[test]
fn fallback_migratetypes_are_tried_in_linux_order() {
    use MigrateType::*;
    assert_eq!(Unmovable.fallbacks(), [Reclaimable, Movable]);
    assert_eq!(Movable.fallbacks(), [Reclaimable, Unmovable]);
    assert_eq!(Reclaimable.fallbacks(), [Unmovable, Movable]);
}

#[test]
fn range_with_few_pageblocks_does_not_group_by_migratetype() {
    let pages = new_allocator(normal(1535));
    assert!(!pages.info().mobility && new_allocator(normal(1536)).info().mobility);
    let block = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
    assert_eq!(pages.frame(block.pfn()).state().migrate_type(), MigrateType::Unmovable);
}

#[test]
fn each_allocation_priority_stops_at_its_watermark() {
    let taken = |gfp| {
        let pages = new_allocator(PageConfig { min_free_kib: Some(400), ..normal(4096) });
        let min = pages.info().zones[0].watermarks.min;
        assert_eq!(min, 100);
        let (blocks, limit) = alloc_all(&pages, Order::ZERO, gfp);
        (4096 - blocks.len(), limit)
    };
    assert_eq!(taken(Gfp::KERNEL), (100, Limit::Watermark));
    assert_eq!(taken(Gfp::HIGH), (50, Limit::Watermark));
    assert_eq!(taken(Gfp::ATOMIC), (38, Limit::Watermark));
    assert_eq!(taken(Gfp::MEMALLOC), (0, Limit::Exhausted));
    // A block of exactly the remaining pages is free, but its allocation would cross the watermark.
    let pages = new_allocator(PageConfig { min_free_kib: Some(400), ..normal(4096) });
    let (blocks, limit) = alloc_all(&pages, order(7), Gfp::KERNEL);
    assert_eq!((4096 - 128 * blocks.len(), limit), (128, Limit::Watermark));
}

#[test]
fn lower_zone_is_reserved_from_requests_for_higher_zones() {
    let zones = [(ZoneKind::Dma, 1024), (ZoneKind::Normal, 51_200)];
    let pages = new_allocator(PageConfig { backend: Backend::Heap, ..plain(&zones) });
    let (blocks, limit) = alloc_all(&pages, order(4), Gfp::KERNEL);
    let low = blocks.iter().filter(|block| pages.zone_of(block.pfn()) == ZoneKind::Dma).count();
    // 51,200 / 256 = 200 pages stay free in zone DMA.
    assert_eq!((low * 16, limit), (1024 - 208, Limit::Watermark));
    assert!(
        blocks[..3200].iter().all(|block| pages.zone_of(block.pfn()) == ZoneKind::Normal),
        "the highest zone must be first"
    );
    let (more, limit) = alloc_all(&pages, order(4), Gfp::DMA);
    assert_eq!((more.len() * 16, limit), (208, Limit::Exhausted));
}

#[test]
fn requests_go_to_the_nearest_node_that_has_pages() {
    let cpus = Cpus::simulated(4, 2).unwrap();
    let zone = |pages| vec![(ZoneKind::Normal, pages)];
    let mut config = PageConfig::with_nodes(cpus, vec![zone(1024), zone(1024), vec![], zone(1024)]);
    config.distances =
        vec![vec![10, 40, 40, 20], vec![40, 10, 40, 20], vec![20, 30, 10, 40], vec![20, 20, 40, 10]];
    config = PageConfig { min_free_kib: Some(0), watermark_scale: 0, backend: Backend::Heap, ..config };
    let pages = new_allocator(config);
    let nodes = |node| {
        let blocks: Vec<_> =
            (0..3).map(|_| pages.alloc_block(order(10), Gfp::KERNEL, node).unwrap()).collect();
        blocks.iter().map(PageBlock::node).collect::<Vec<_>>()
    };
    assert_eq!(nodes(Some(0)), [0, 3, 1]);
    assert_eq!(nodes(Some(2)), [0, 1, 3], "a node without memory");
    on_cpu(3);
    assert_eq!(nodes(None), [1, 3, 0], "CPU 3 is on node 1");

    let only = Gfp::THIS_NODE;
    let first = pages.alloc_block(order(10), only, Some(3)).unwrap();
    assert_eq!(first.node(), 3);
    let text = |order, gfp, node| pages.alloc(order, gfp, node).unwrap_err().to_string();
    assert_eq!(text(order(10), only, Some(3)), "no block of order 10 on node 3: out of pages");
    assert_eq!(text(order(0), only, Some(2)), "no block of order 0 on node 2: no zone serves these flags");
    assert_eq!(
        text(order(0), Gfp::KERNEL, Some(4)),
        "no block of order 0 on node 4: the node does not exist"
    );
    assert_eq!(text(order(0), Gfp::DMA, None), "no block of order 0: no zone serves these flags");
}

#[test]
fn error_of_a_page_allocation_names_the_limit() {
    let pages = new_allocator(PageConfig { max_order: order(3), pageblock_order: order(3), ..normal(8) });
    let limit = |order| pages.alloc(order, Gfp::KERNEL, None).unwrap_err().limit;
    assert_eq!(limit(order(4)), Limit::Order);
    let blocks = pages.alloc_block(order(3), Gfp::KERNEL, None).unwrap().split(Order::ZERO);
    assert_eq!(limit(order(0)), Limit::Exhausted);
    let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
    assert_eq!((kept.len(), limit(order(1))), (4, Limit::Fragmented));
}

#[test]
fn invalid_page_free_is_reported_without_side_effects() {
    for per_cpu_pages in [false, true] {
        let pages = new_allocator(PageConfig { per_cpu_pages, ..normal(2048) });
        let pfn = pages.alloc(order(2), Gfp::KERNEL, None).unwrap();
        let before = audited(&pages);
        let bad = |pfn, order| {
            // SAFETY: the block was not allocated with these values, which the free must detect before any access.
            unsafe { pages.free(pfn, order) };
            CORRUPTIONS.with(|found| found.borrow_mut().pop()).map(|c| c.to_string()).unwrap_or_default()
        };
        let wrong = "free of page 0 with order 1: it was allocated with order 2";
        assert_eq!((pfn, bad(pfn, order(1)).as_str()), (Pfn::new(0), wrong));
        assert_eq!(bad(Pfn::new(1), order(0)), "free of page 1: no allocated block starts there");
        assert_eq!(bad(Pfn::new(1024), order(0)), "free of page 1024: no allocated block starts there");
        assert_eq!(bad(Pfn::new(2048), order(0)), "free of page 2048: the allocator has 2048 pages");
        assert_eq!(audited(&pages), before);
        assert_eq!(bad(pfn, order(2)), "", "a correct free reports no corruption");
        let (before, twice) = (audited(&pages), bad(pfn, order(2)));
        let cached = if per_cpu_pages {
            "double free of page 0: it is already a free page of a CPU"
        } else {
            // The page was merged, and is the first page of a larger free block.
            "double free of page 0: it is on a free list"
        };
        assert_eq!((twice.as_str(), audited(&pages)), (cached, before));
        assert_eq!(pages.info().corruptions, 5);
    }
}

#[test]
fn each_page_of_a_compound_block_names_its_head() {
    let pages = new_allocator(normal(2048));
    let block = pages.alloc_block(order(3), Gfp::COMP, None).unwrap();
    let head = block.pfn();
    for page in 0..8 {
        assert_eq!(pages.block_of(head.up(page)), Some((head, order(3))));
    }
    assert_eq!(pages.block_of(head.up(8)), None);
    block.free();
    assert_eq!(pages.block_of(head.up(3)), None);
    let plain = pages.alloc_block(order(3), Gfp::KERNEL, None).unwrap();
    assert_eq!(plain.pfn(), head);
    assert_eq!((pages.block_of(head), pages.block_of(head.up(3))), (Some((head, order(3))), None));
    let single = pages.alloc_block(Order::ZERO, Gfp::COMP, None).unwrap();
    assert!(!pages.frame(single.pfn()).state().is_compound(), "a block of one page is its own head");
}

#[test]
fn addresses_convert_to_page_numbers_and_back() {
    let pages = new_allocator(normal(2048));
    let block = pages.alloc_block(order(10), Gfp::KERNEL, None).unwrap();
    let base = pages.address(block.pfn());
    assert_eq!(base.as_ptr() as usize % (4 << 20), 0, "a block is aligned to its size");
    assert_eq!(block.bytes().as_ptr(), base.as_ptr());
    assert_eq!(pages.pfn_of(&raw const block.bytes()[8191]), Some(block.pfn().up(1)));
    assert_eq!(pages.pfn_of(&raw const pages as *const u8), None);
    assert_eq!(pages.pfn_of(core::ptr::null()), None);
}

#[test]
fn freeing_a_page_clears_its_owner() {
    let pages = new_allocator(normal(64));
    let block = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let frame = pages.frame(block.pfn());
    assert!(frame.owner().is_null());
    // SAFETY: this test owns the block and is the only reader of its owner.
    unsafe { frame.set_owner(core::ptr::without_provenance_mut(64)) };
    block.free();
    assert!(frame.owner().is_null());
}

#[test]
fn parts_of_a_split_block_are_freed_separately() {
    let pages = new_allocator(normal(1024));
    let mut block = pages.alloc_block(order(4), Gfp::COMP, None).unwrap();
    block.bytes_mut()[5 * 4096] = 77;
    for page in 0..16 {
        // SAFETY: this test owns the block and is the only reader of its owner.
        unsafe { pages.frame(block.pfn().up(page)).set_owner(core::ptr::without_provenance_mut(64)) };
    }
    let mut parts = block.split(order(1));
    assert_eq!(parts.len(), 8);
    assert!(
        parts.iter().all(|part| pages.frame(part.pfn()).owner().is_null()),
        "the pages have no owner yet"
    );
    assert_eq!(parts[2].bytes()[4096], 77);
    assert!(parts.iter().all(|part| pages.block_of(part.pfn()) == Some((part.pfn(), order(1)))));
    parts.remove(3).free();
    assert_eq!(audited(&pages).allocated, 14);
    let whole = parts.remove(0);
    assert_eq!(whole.split(order(2)).len(), 1, "the range has no pages to cut off");
    drop(parts);
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
}

#[test]
fn empty_cpu_takes_page_magazines_from_another_cpu() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let pages = new_allocator(PageConfig { cpus, per_cpu_pages: true, ..normal(64) });
    on_cpu(0);
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!(blocks.len(), 64);
    drop(blocks);
    assert!(pages.info().per_cpu() > 0);
    on_cpu(1);
    let (blocks, limit) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!((blocks.len(), limit, pages.info().per_cpu()), (64, Limit::Exhausted, 0));
    assert!(pages.info().drains > 0);
    drop(blocks);
    // The whole zone is one block.
    assert!(
        pages.alloc_block(order(6), Gfp::NOWAIT, None).is_err(),
        "the allocation does not wait for a drain"
    );
    assert!(pages.alloc_block(order(6), Gfp::KERNEL, None).is_ok());
}

#[test]
fn drain_flushes_all_orders_and_types_to_the_zone() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let pages = new_allocator(PageConfig { cpus, per_cpu_pages: true, ..normal(1 << 14) });
    let kept = || pages.cached_zones[0].layers().map(|layer| layer.stats().in_magazines).collect::<Vec<_>>();
    for cpu in 0..2 {
        on_cpu(cpu);
        for gfp in [Gfp::KERNEL, Gfp::MOVABLE, Gfp::RECLAIMABLE] {
            (0..4).for_each(|n| drop(pages.alloc_block(order(n), gfp, None).unwrap()));
        }
    }
    let both = kept();
    assert!(both.iter().all(|kept| *kept >= 2), "{both:?}");
    pages.drain_cpus(0..1);
    assert!(kept().iter().zip(&both).all(|(one, both)| *one > 0 && one < both), "{:?} of {both:?}", kept());
    pages.drain_cpus(1..2);
    assert!(kept().iter().all(|kept| *kept == 0), "{:?}", kept());
    audited(&pages);
}

#[test]
fn each_order_and_migratetype_has_separate_magazines() {
    let layers = |pages| {
        let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(pages) });
        pages.cached_zones[0].layers().count()
    };
    assert_eq!([layers(1 << 14), layers(512)], [4 * MigrateType::COUNT, 4]);
}

#[test]
fn allocation_from_a_magazine_takes_no_zone_lock() {
    let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(1 << 18) });
    let page = || drop(pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap());
    page();
    let before = pages.info().zones[0].events;
    (0..1000).for_each(|_| page());
    let zone = &pages.info().zones[0];
    assert_eq!(zone.events, before);
    let events = zone.per_cpu_events;
    assert_eq!((events.paths.operations(), events.paths.slab), (events.allocs + events.frees, 0));
    assert!(events.paths.cpu >= 2000, "{events:?}");
}

#[test]
fn idle_per_cpu_pages_are_reaped() {
    let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(1 << 18) });
    (0..4).for_each(|n| drop(pages.alloc_block(order(n), Gfp::KERNEL, None).unwrap()));
    let held = pages.info().per_cpu();
    assert!(held > 1 + 2 + 4 + 8);
    assert_eq!(pages.reap() + pages.reap() + pages.reap(), held);
    assert_eq!(pages.info().per_cpu(), 0);
}

/// Pages that users free in a reap count as unused for an interval. Pages freed in a reap are decommitted with the
/// other free pages, and no CPU keeps them.
#[test]
fn pages_freed_by_a_reap_are_decommitted_immediately() {
    let pages = PageAllocator::new(PageConfig::default_for(Cpus::os())).unwrap();
    let held: Vec<_> = (0..1000).map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    assert!(pages.decommit() < 1000 * PAGE_SIZE, "the tables of CPUs and zones are counted, too");
    let bytes = pages.decommit_idle(|| {
        // SAFETY: each page was allocated above and is freed once.
        held.iter().for_each(|pfn| unsafe { pages.free_in(&Operation::new().cold(), *pfn, Order::ZERO) });
    });
    assert!(bytes >= 1000 * PAGE_SIZE, "{bytes}");
    assert_eq!((pages.info().per_cpu(), pages.info().backed_bytes()), (0, 0));
    pages.check().unwrap();
}

#[test]
fn bulk_allocates_at_most_the_available_pages() {
    for per_cpu_pages in [false, true] {
        let pages = new_allocator(PageConfig { per_cpu_pages, ..normal(300) });
        let mut got = Vec::new();
        assert_eq!(pages.alloc_bulk(Gfp::ZERO, None, 130, |pfn| got.push(pfn)), 130);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, None, 1000, |pfn| got.push(pfn)), 170);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, Some(9), 10, |pfn| got.push(pfn)), 0);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, None, 0, |pfn| got.push(pfn)), 0);
        got.sort();
        got.dedup();
        assert_eq!((got.len(), audited(&pages).allocated), (300, 300));
        // SAFETY: each page was allocated above and is freed once.
        got.into_iter().for_each(|pfn| unsafe { pages.free(pfn, Order::ZERO) });
        assert_eq!(audited(&pages).allocated, 0);
    }
}

#[test]
fn bulk_allocation_stops_at_the_single_page_watermark() {
    let config = || PageConfig { min_free_kib: Some(256), watermark_scale: 100, ..normal(4096) };
    let (one, other) = (new_allocator(config()), new_allocator(config()));
    let single_pages = alloc_all(&one, Order::ZERO, Gfp::KERNEL).0.len();
    assert!(single_pages < 4096, "the watermark reserves some pages");
    assert_eq!(other.alloc_bulk(Gfp::KERNEL, None, 4096, |_| ()), single_pages);
}

#[test]
fn bulk_allocation_is_reported_as_a_single_operation() {
    let pages = new_allocator(normal(1 << 14));
    let seen = Arc::new(Counter::new(0));
    let noted = seen.clone();
    let taken = |step: &Step| match *step {
        Step::BlocksTaken { blocks, order, .. } => u64::from(blocks) << order,
        _ => 0,
    };
    let (operations, lock_holds) = (Arc::new(Counter::new(0)), 1 << 14 >> 6);
    let one = operations.clone();
    let note = move |op: &Observed<'_>| {
        noted.add(op.steps.iter().map(taken).sum());
        one.add(1);
    };
    let observer = pages.tracepoints().observe(note).unwrap();
    assert_eq!(pages.alloc_bulk(Gfp::KERNEL, None, 1 << 14, |_| ()), 1 << 14);
    assert_eq!((observer.counts(), seen.get()), (Counts::default(), 1 << 14));
    assert!(operations.get() <= 2 * lock_holds, "{} pages in {lock_holds} lock holds", operations.get());
}

#[test]
fn panic_during_bulk_allocation_leaks_no_page() {
    let pages = new_allocator(normal(300));
    let mut given = 0;
    let outcome = uslab_magazine::sync::catch_panic(|| {
        pages.alloc_bulk(Gfp::KERNEL, None, 100, |_| {
            given += 1;
            assert!(given < 10, "enough");
        })
    });
    assert!(outcome.is_err());
    assert_eq!(audited(&pages).allocated, 10);
}

/// Regression: the panic reached the caller of the free.
#[test]
fn free_is_refused_if_the_corruption_handler_panics() {
    let config = PageConfig { corruption: |_| panic!("intended panic"), ..normal(300) };
    let pages = new_allocator(config);
    let page = pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap();
    // SAFETY: the allocator refuses the second free.
    unsafe {
        pages.free(page, Order::ZERO);
        pages.free(page, Order::ZERO);
    }
    assert_eq!((pages.info().corruptions, audited(&pages).allocated), (1, 0));
}

#[test]
fn audit_detects_broken_invariants() {
    use crate::census::BrokenInvariant;
    let broken = |damage: fn(&PageAllocator)| {
        let pages = new_allocator(normal(1024));
        drop(pages.alloc_block(order(2), Gfp::MOVABLE, None).unwrap());
        let block = pages.alloc_block(order(2), Gfp::MOVABLE, None).unwrap();
        damage(&pages);
        let violation = pages.check().unwrap_err();
        let _ = block.into_pfn();
        violation.what
    };
    fn set(pages: &PageAllocator, page: u32, kind: Kind, n: u8) {
        let state = crate::State::new(kind, order(n), MigrateType::Unmovable);
        pages.frame(Pfn::new(page)).set_state(state);
    }
    assert_eq!(broken(|pages| set(pages, 0, Kind::Inside, 0)), BrokenInvariant::InNoBlock);
    assert_eq!(broken(|pages| set(pages, 2, Kind::Allocated, 0)), BrokenInvariant::Overlap);
    assert_eq!(broken(|pages| set(pages, 4, Kind::Allocated, 2)), BrokenInvariant::ListDisagrees);
    assert_eq!(broken(|pages| set(pages, 0, Kind::Free, 2)), BrokenInvariant::MissedMerge);
    let held = BrokenInvariant::PerCpu { counted: 0, found: 4 };
    assert_eq!(broken(|pages| set(pages, 0, Kind::PerCpu, 2)), held);
}

#[test]
fn damaged_frame_prevents_the_decommit_of_its_free_block() {
    let pages = new_allocator(normal(2048));
    let first = pages.alloc_block(order(9), Gfp::MOVABLE, None).unwrap();
    let second = pages.alloc_block(order(9), Gfp::MOVABLE, None).unwrap().into_pfn();
    // SAFETY: the block was allocated above and is freed once.
    unsafe { pages.free(second, order(9)) };
    let frame = pages.frame(second);
    let state = frame.state();
    frame.set_state(crate::State::new(Kind::Allocated, order(9), MigrateType::Movable));
    assert_eq!(pages.decommit_free(), 0);
    frame.set_state(state);
    assert_eq!(pages.decommit_free(), 2 << 20);
    drop(first);
    audited(&pages);
}

#[test]
fn frames_of_decommitted_memory_are_not_block_heads() {
    let pages = new_allocator(normal(2048));
    let block = pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap();
    let first = block.pfn();
    drop(block);
    assert_eq!(pages.decommit_free(), Order::MAX.bytes());
    assert_eq!(pages.frame(first).state(), crate::State::INSIDE);
    // The frames of a tail of four pages share one OS page with other frames, which therefore stays.
    let pages = new_allocator(normal(4));
    drop(pages.alloc_block(order(2), Gfp::KERNEL, None).unwrap());
    assert_eq!(pages.decommit(), 4 * PAGE_SIZE);
    assert_eq!(pages.frame(Pfn::new(0)).state(), crate::State::INSIDE);
}

/// Regression: pages of the tail that had been decommitted before were counted twice.
#[test]
fn zone_tail_decommit_does_not_recount_discarded_pages() {
    let pages = new_allocator(normal(6));
    let [large, small] = [2, 1].map(|n| pages.alloc_block(order(n), Gfp::KERNEL, None).unwrap());
    drop(large);
    assert_eq!(pages.decommit(), 4 * PAGE_SIZE);
    drop(small);
    assert_eq!(pages.decommit(), 2 * PAGE_SIZE);
    assert_eq!(audited(&pages).uncommitted, 6);
}

/// Regression: pages decommitted elsewhere in the zone were counted.
#[test]
fn zone_tail_decommit_counts_only_tail_pages() {
    let pages =
        new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(64 + 6) });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!(blocks.len(), 70);
    let goes_first = |block: &PageBlock<'_>| block.pfn().get() < 5 || (64..68).contains(&block.pfn().get());
    let (first, rest): (Vec<_>, Vec<_>) = blocks.into_iter().partition(goes_first);
    drop(first);
    assert_eq!(pages.decommit(), 9 * PAGE_SIZE);
    let (body, tail): (Vec<_>, Vec<_>) = rest.into_iter().partition(|block| block.pfn().get() < 64);
    drop(tail);
    assert_eq!(pages.decommit(), 2 * PAGE_SIZE);
    assert_eq!((audited(&pages).uncommitted, pages.info().zones[0].discarded), (6, 5));
    drop(body);
}

#[test]
fn accepted_charge_decommits_free_pages() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(2048) }.limit(8 << 20));
    let managed = pages.limit().unwrap() / PAGE_SIZE;
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    drop(blocks);
    let backed = || pages.info().committed_bytes();
    let full = backed();
    assert!(!pages.charge(managed + 1) && !pages.charge(usize::MAX));
    assert_eq!(backed(), full);
    assert!(new_allocator(normal(64)).charge(usize::MAX), "any charge must fit without a limit");
    assert!(pages.charge(managed / 2));
    assert!(backed() <= ((managed - managed / 2) * PAGE_SIZE) as u64, "{} of {full}", backed());
    pages.uncharge(managed / 2);
    audited(&pages);
}

#[test]
fn allocation_respects_memory_charged_to_the_limit() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(2048) }.limit(8 << 20));
    let managed = pages.limit().unwrap() / PAGE_SIZE;
    let charged = managed - 200;
    assert!(pages.charge(charged));
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let backed = pages.info().backed_bytes() as usize / PAGE_SIZE;
    assert!(backed + charged <= managed, "{backed} backed pages and {charged} charged pages of {managed}");
    drop(page);
    pages.uncharge(charged);
    audited(&pages);
}

/// Regression: the lowest zone was charged first, and a part of the charge was returned to another zone.
#[test]
fn highest_zone_is_charged_first() {
    let zones = [(ZoneKind::Dma32, 1024), (ZoneKind::Normal, 2048)];
    let pages = new_allocator(PageConfig { limited: true, ..plain(&zones) });
    let charged = || pages.info().zones.iter().map(|zone| zone.charged).collect::<Vec<_>>();
    assert!(pages.charge(100) && charged() == [0, 100]);
    assert!(!pages.charge(3000) && charged() == [0, 100]);
    assert!(pages.charge(2500), "{:?}", charged());
    let [low, high] = charged()[..] else { panic!("the node must have two zones") };
    assert!(low > 0 && low + high == 2600);
    pages.uncharge(low as usize);
    assert_eq!(charged(), [0, high]);
    pages.uncharge(high as usize);
    audited(&pages);
}

/// Regression: the highest zone was charged and its free memory decommitted, before the next zone refused.
#[test]
fn charge_refused_by_all_zones_takes_no_page() {
    let zones = [(ZoneKind::Dma32, 1024), (ZoneKind::Normal, 2048)];
    let pages = new_allocator(PageConfig { limited: true, keep_free: Some(usize::MAX), ..plain(&zones) });
    drop(alloc_all(&pages, Order::ZERO, Gfp::KERNEL));
    let full = pages.info().backed_bytes();
    assert!(!pages.charge(3073) && pages.info().backed_bytes() == full);
    assert!(
        pages.charge(3072) && pages.info().backed_bytes() == 0,
        "no page may be backed if all are charged"
    );
    pages.uncharge(3072);
    audited(&pages);
}

#[test]
fn charges_are_limited_to_the_free_pages() {
    let pages = new_allocator(PageConfig { limited: true, ..normal(2048) });
    assert!(!pages.charge(2049));
    assert!(pages.charge(2048) && !pages.charge(1));
    assert_eq!(pages.info().zones[0].charged, 2048);
    pages.uncharge(2048);
    assert_eq!(pages.info().zones[0].charged, 0);
}

/// A thread may cancel a charge that another thread made in a different zone.
#[test]
fn concurrent_charges_of_two_zones_are_all_returned() {
    let zones = [(ZoneKind::Dma32, 1024), (ZoneKind::Normal, 4)];
    let pages = new_allocator(PageConfig { limited: true, ..plain(&zones) });
    let (each, at_once) = (if cfg!(miri) { 10 } else { 5_000 }, std::sync::Barrier::new(4));
    let charges = |n: usize| {
        at_once.wait();
        for _ in 0..each {
            assert!(pages.charge(n));
            pages.uncharge(n);
        }
    };
    std::thread::scope(|scope| {
        let charges = &charges;
        (3..7).for_each(|n| drop(scope.spawn(move || charges(n))));
    });
    assert!(pages.info().zones.iter().all(|zone| zone.charged == 0));
}

#[test]
fn concurrent_mixed_operations_lose_no_page() {
    let cpus = Cpus::simulated(3, 1).unwrap();
    let zones = [(ZoneKind::Dma32, 700), (ZoneKind::Normal, 2048)];
    let pages = new_allocator(PageConfig {
        cpus,
        per_cpu_pages: true,
        pageblock_order: order(5),
        max_order: order(7),
        corruption: crate::corruption::abort,
        ..plain(&zones)
    });
    let kinds = [Gfp::KERNEL, Gfp::MOVABLE, Gfp::RECLAIMABLE, Gfp::DMA32];
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let pages = &pages;
            scope.spawn(move || {
                let mut blocks: Vec<PageBlock<'_>> = Vec::new();
                let mut seed = thread + 1;
                let mut random = |n: u32| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 16) % n
                };
                for _ in 0..40_000 {
                    on_cpu(random(3));
                    match random(20) {
                        0..=9 => {
                            let size = order(random(6) as u8);
                            if let Ok(mut block) = pages.alloc_block(size, kinds[random(4) as usize], None) {
                                block.bytes_mut()[0] = thread as u8;
                                blocks.push(block);
                            }
                        }
                        10..=17 if !blocks.is_empty() => {
                            let block = blocks.swap_remove(random(blocks.len() as u32) as usize);
                            assert_eq!(
                                block.bytes()[0],
                                thread as u8,
                                "a page keeps the bytes that its owner wrote"
                            );
                        }
                        18 if !blocks.is_empty() => {
                            let mut parts = blocks.swap_remove(0).split(Order::ZERO);
                            parts.iter_mut().for_each(|part| part.bytes_mut()[0] = thread as u8);
                            blocks.extend(parts);
                        }
                        _ => match random(40) {
                            0 => drop(pages.decommit()),
                            1 => pages.drain_cpus(0..2),
                            2 => drop(pages.info()),
                            _ => {}
                        },
                    }
                }
            });
        }
    });
    assert_eq!(audited(&pages).allocated, 0);
    pages.decommit();
    let (census, info) = (audited(&pages), pages.info());
    assert_eq!((census.uncommitted, info.pages_not_in_maximal_blocks()), (2748, 0));
    let events = info.zones[1].events;
    assert!(events.claims > 0 && events.steals > 0 && events.commits > 0, "{events:?}");
}

/// A request may arrive while the block is being decommitted.
#[test]
fn maximal_block_is_either_decommitted_or_allocated() {
    let (pages, at_once) = (new_allocator(normal(1024)), std::sync::Barrier::new(3));
    let each = if cfg!(miri) { 5 } else { 3_000 };
    let uses = || {
        at_once.wait();
        (0..each).for_each(|_| _ = pages.alloc_block(Order::MAX, Gfp::KERNEL, None));
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(uses)));
        at_once.wait();
        (0..each).for_each(|_| _ = pages.decommit_free());
    });
    assert_eq!(audited(&pages).allocated, 0);
}

/// Runs one ignored test of this program under a shell limit, and returns its output.
pub(crate) fn run_with_limit(limit: &str, test: &str) -> String {
    let exe = std::env::current_exe().unwrap();
    let script =
        format!("ulimit {limit} && exec \"$0\" --exact {test} --ignored --nocapture --test-threads=1");
    let output = std::process::Command::new("sh").arg("-c").arg(script).arg(exe).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok. 1 passed"), "no test {test}: {text}");
    text
}

/// Regression: a quarter of the limit was withheld from pages, and three quarters from all other mappings.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn pages_are_mapped_at_commit_under_an_address_limit() {
    run_with_limit("-v 1048576", "tests::child_runs_with_a_limited_address_space");
}
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
#[ignore = "run under `ulimit -v` by pages_are_mapped_at_commit_under_an_address_limit"]
fn child_runs_with_a_limited_address_space() {
    use crate::region::address_limit;
    let (limit, before) = address_limit().unwrap();
    let pages = new_allocator(PageConfig::default_for(Cpus::os()));
    let has = || address_limit().unwrap().1;
    let taken = has() - before;
    assert!(
        taken < 40 << 20 && pages.has_unmapped_pages(),
        "{taken} bytes of address space are reserved at the start"
    );
    assert_eq!((pages.reserved_bytes(), pages.frames().len()), (4 << 20, 1024));
    let block = pages.alloc_block(order(10), Gfp::ZERO, None).unwrap();
    assert_eq!((pages.reserved_bytes(), block.bytes()[4 << 20 >> 1]), (4 << 20, 0));
    let (blocks, refused) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!(refused, Limit::CommitRefused);
    // All addresses of the process are in use, except the addresses reserved for other mappings.
    let (all_of_it, left) = (1 + blocks.len(), limit - has());
    assert!((32 << 20..40 << 20).contains(&left), "{left} bytes of {limit} remain, {before} before");
    assert!(all_of_it << 22 > (limit - before) / 10 * 9, "{all_of_it} blocks");
    let last = blocks.last().unwrap();
    assert_eq!(pages.pfn_of(last.bytes().as_ptr()), Some(last.pfn()));
    audited(&pages);
    // After other mappings have got their addresses, no reserved addresses need be left.
    let (access, faults) = (crate::region::Uncommitted::NoAccess, crate::Faults::default());
    let other = crate::Region::reserve(left - (10 << 20), 4096, access, Backend::Os, &faults);
    let more = alloc_all(&pages, order(10), Gfp::KERNEL).0.len();
    assert_eq!(more, usize::from(left >= 36 << 20), "{left} bytes remain");
    drop(other);
    drop((block, blocks));
    pages.decommit();
    assert_eq!(audited(&pages).allocated, 0);
    assert_eq!(alloc_all(&pages, order(10), Gfp::KERNEL).0.len(), all_of_it);
}

/// The limit is set later, as a program may do.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn commit_over_a_foreign_mapping_is_refused() {
    run_with_limit("-v 1048576", "tests::child_commits_pages_over_a_foreign_mapping");
}
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
#[ignore = "run under `ulimit -v` by commit_over_a_foreign_mapping_is_refused"]
fn child_commits_pages_over_a_foreign_mapping() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let pages = new_allocator(normal(1 << 24));
    let end = pages.address(Pfn::new(0)).addr().get() + (10 << 20);
    let (at, flags) =
        (core::num::NonZeroUsize::new(end), MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE);
    // SAFETY: the flags prevent the call from replacing a mapping.
    let other = unsafe { mmap_anonymous(at, 4096.try_into().unwrap(), ProtFlags::PROT_READ, flags) }.unwrap();
    let (blocks, refused) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!((blocks.len(), refused, pages.frames().len()), (2, Limit::CommitRefused, 2048));
    assert_eq!(pages.pfn_of(other.as_ptr().cast()), None);
    // SAFETY: the range was mapped above.
    unsafe { munmap(other, 4096) }.unwrap();
    assert!(pages.alloc_block(order(10), Gfp::KERNEL, None).is_ok());
    audited(&pages);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap refuses a reservation, not a commit")]
fn refused_commit_is_an_error_and_changes_nothing() {
    run_with_limit("-d 65536", "tests::child_commits_pages_with_a_limited_data_segment");
}
#[test]
#[ignore = "run under `ulimit -d` by refused_commit_is_an_error_and_changes_nothing"]
fn child_commits_pages_with_a_limited_data_segment() {
    let pages = new_allocator(normal(1 << 16));
    let (blocks, limit) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!(limit, Limit::CommitRefused);
    assert!((1..16).contains(&blocks.len()), "{} blocks", blocks.len());
    let events = pages.info().zones[0].events;
    assert!(events.commits_refused >= 1 && events.commits == blocks.len() as u64, "{events:?}");
    drop(blocks);
    assert!(pages.alloc_block(order(10), Gfp::KERNEL, None).is_ok());
    audited(&pages);
}

#[test]
fn freed_blocks_beyond_keep_free_are_decommitted() {
    let config =
        PageConfig { keep_free: Some(8 << 20), ..PageConfig::default_for(Cpus::simulated(2, 1).unwrap()) };
    let pages = PageAllocator::new(config).unwrap();
    let blocks: Vec<_> = (0..40).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
    assert_eq!(pages.info().committed_bytes(), 160 << 20);
    drop(blocks);
    assert!(pages.info().committed_bytes() <= 8 << 20);
    let small: Vec<_> =
        (0..20_000).map(|_| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    drop(small);
    // At most the configured 8 MiB and the CPUs' pages stay backed.
    let info = pages.info();
    assert!(info.backed_bytes() <= (8 << 20) + info.per_cpu() * PAGE_SIZE as u64, "{}", info.backed_bytes());
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    pages.check().unwrap();
}

/// Frees return memory above the surplus, until three quarters of the surplus are left. If the zone keeps no
/// more than the surplus, a free returns nothing.
#[test]
fn frees_decommit_only_memory_above_the_surplus() {
    let pages = new_allocator(PageConfig { keep_free: Some(128 << 20), ..normal(4 * 1024) });
    let blocks = [(); 4].map(|()| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap().into_pfn());
    let steps = blocks.map(|pfn| {
        let op = Operation::new();
        // SAFETY: each block was allocated above and is freed once.
        unsafe { pages.free_in(&op, pfn, Order::MAX) };
        (pages.info().committed_bytes() >> 20, op.path())
    });
    // Frees of 4 and 8 MiB keep all memory backed. Of 12 MiB free memory, everything above 6 MiB is returned, and the
    // next block makes 8 MiB again.
    assert_eq!(steps, [(16, Path::Pages), (16, Path::Pages), (8, Path::Commit), (8, Path::Pages)]);
}

#[test]
fn surplus_of_an_eighth_of_the_used_pages_stays_resident() {
    let pages = new_allocator(PageConfig { keep_free: Some(64 << 20), ..normal(32 * 1024) });
    let mut blocks: Vec<_> =
        (0..32).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
    blocks.truncate(28);
    assert_eq!(pages.info().committed_bytes() >> 20, 112 + 8, "less than 3/4 above 14 MiB must stay");
}

/// Memory that is often returned and used again stays backed. Memory that is no longer used is returned to the system.
#[test]
fn repeatedly_reused_memory_stays_resident() {
    let pages = new_allocator(PageConfig { keep_free: Some(64 << 20), ..normal(128 * 1024) });
    let burst = |n| {
        let blocks: Vec<_> =
            (0..n).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
        drop(blocks);
        pages.info().committed_bytes() >> 20
    };
    let decommits = || pages.info().zones[0].events.decommits;
    assert_eq!(burst(8), 0, "freeing each second block must also free the first");
    (0..8).for_each(|_| _ = burst(8));
    let old_decommits = decommits();
    assert_eq!((burst(8), decommits()), (32, old_decommits));
    assert!(burst(100) <= 16, "{} MiB", pages.info().committed_bytes() >> 20);
}

/// The bound covers only free blocks that could be returned. A free of smaller blocks returns nothing, and must not
/// report a return.
#[test]
fn blocks_too_small_to_discard_do_not_count_towards_keep_free() {
    let pages =
        new_allocator(PageConfig { keep_free: Some(0), huge_pages: HugePages::Advise, ..normal(1024) });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    let (freed, kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().map(PageBlock::into_pfn).partition(|pfn| pfn.get() % 2 == 1);
    for pfn in freed {
        let op = Operation::new();
        // SAFETY: each page was allocated above and is freed once.
        unsafe { pages.free_in(&op, pfn, Order::ZERO) };
        assert_eq!(op.path(), Path::Pages);
    }
    // SAFETY: each page was allocated above and is freed once.
    kept.iter().for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    assert_eq!(pages.info().committed_bytes(), 0);
}

/// Only addresses that were never committed are given up. Committed addresses stay usable.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn only_never_committed_addresses_are_released() {
    let pages = new_allocator(normal(8 * 1024));
    let blocks = [(); 3].map(|()| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap());
    drop(blocks);
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    let behind = pages.address(Pfn::new(5 << 10));
    assert_eq!(pages.pfn_of(behind.as_ptr()), Some(Pfn::new(5 << 10)));
    pages.give_up_addresses(5 << 22);
    // Regression: a foreign mapping at returned addresses was mistaken for the allocator's pages.
    assert_eq!(pages.pfn_of(behind.as_ptr()), None);
    assert_eq!(pages.reserved_bytes(), 3 << 22, "addresses of pages that were ever committed must be kept");
    let frames = pages.frames();
    let of_all = frames.reserved();
    assert_eq!(of_all, 64 * 8 * 1024);
    // SAFETY: no other thread reads a frame during the call.
    assert_eq!(unsafe { pages.give_up_frames() }, 3 << 10);
    assert_eq!((frames.len(), frames.is_empty()), (3 << 10, false));
    assert_eq!(frames.reserved() * 8, of_all * 3, "the pages' frames must be decommitted");
    // Pages get addresses again if the limit allows it and no other mapping, such as another test's, has the addresses.
    let (blocks, limit) = alloc_all(&pages, Order::MAX, Gfp::KERNEL);
    assert!((3..=5).contains(&blocks.len()) && limit == Limit::CommitRefused, "{} blocks", blocks.len());
    assert_eq!((pages.max_pages(), frames.len() as usize), (5 << 10, blocks.len() << 10));
}

/// The heap cannot return a part of its memory.
#[test]
fn heap_backed_allocator_keeps_all_its_addresses() {
    let pages = new_allocator(PageConfig { backend: Backend::Heap, ..normal(4 * 1024) });
    let what_there_is = || (pages.reserved_bytes(), pages.frames().len(), pages.has_unmapped_pages());
    let before = what_there_is();
    pages.give_up_addresses(0);
    assert_eq!(what_there_is(), before);
    assert_eq!(alloc_all(&pages, Order::MAX, Gfp::KERNEL).0.len(), 4);
}

/// Every eighth page stays in use, so no maximal block is wholly free.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn free_pages_of_partly_used_blocks_are_discarded() {
    const N: usize = 4096;
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let mut all: Vec<_> = (0..N).map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    all.sort();
    // SAFETY: the page is committed, and returned memory reads as zero.
    let is_backed = |pfn: &Pfn| unsafe { pages.address(*pfn).cast::<u32>().read() } == pfn.get() + 1;
    // SAFETY: each page was allocated above and is freed once below.
    let touch = |pfn: Pfn| unsafe { pages.address(pfn).cast::<u32>().write(pfn.get() + 1) };
    all.iter().copied().for_each(touch);
    let (kept, freed): (Vec<_>, Vec<_>) = all.iter().copied().partition(|pfn| pfn.get() % 8 == 3);
    // SAFETY: each page was allocated above and is freed once.
    freed.iter().for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    assert_eq!(pages.info().backed_bytes(), (N * PAGE_SIZE) as u64);
    assert_eq!(pages.decommit_free(), freed.len() * PAGE_SIZE);
    assert_eq!(pages.info().backed_bytes(), (kept.len() * PAGE_SIZE) as u64);
    assert!(kept.iter().all(is_backed) && !freed.iter().any(is_backed));
    let census = pages.check().unwrap();
    assert_eq!((census.allocated, census.discarded), (kept.len() as u64, freed.len() as u64));
    // The zone makes one call for each run between two pages in use, and discards no page twice.
    let discards = pages.info().zones[0].events.discards;
    assert!((1..=2 * kept.len() as u64).contains(&discards), "{discards}");
    assert_eq!((pages.decommit_free(), pages.info().zones[0].events.discards), (0, discards));
    // The discarded pages are allocated again, and backed from then on.
    let again: Vec<_> = freed.iter().map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    again.iter().copied().for_each(touch);
    assert_eq!(pages.info().backed_bytes(), (N * PAGE_SIZE) as u64);
    // SAFETY: each page was allocated above and is freed once.
    again.iter().chain(&kept).for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    pages.check().unwrap();
}

/// A program that reuses its free memory keeps this memory.
#[test]
fn idle_decommit_returns_memory_free_for_an_interval() {
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let backed = || pages.info().backed_bytes() >> 20;
    let order = Order::new(8).unwrap();
    let take = |mib: usize| (0..mib).map(|_| pages.alloc_block(order, Gfp::KERNEL, None).unwrap()).collect();
    let all: Vec<_> = take(64);
    drop(all);
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 64, "all pages were in use since the last interval");
    let burst: Vec<_> = take(24);
    drop(burst);
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 24, "pages stay committed for another burst");
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 0);
    pages.check().unwrap();
}

/// If two free blocks have one order, the backed block is allocated first.
#[test]
fn resident_blocks_are_allocated_before_discarded_blocks() {
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let mut four = [(); 4].map(|()| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap());
    four.sort();
    // SAFETY: the page was allocated above and is freed once.
    unsafe { pages.free(four[0], Order::ZERO) };
    pages.decommit_free();
    // SAFETY: the page was allocated above and is freed once.
    unsafe { pages.free(four[2], Order::ZERO) };
    assert_eq!(pages.alloc(Order::ZERO, Gfp::KERNEL, None), Ok(four[2]));
    assert_eq!(pages.alloc(Order::ZERO, Gfp::KERNEL, None), Ok(four[0]));
}

/// If memory should be in huge pages, no part of a huge page is returned. While the count of changes is unchanged, a
/// reap finds nothing new.
#[test]
fn change_count_includes_frees_and_decommits() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(2048) });
    let blocks = [(); 2].map(|()| pages.alloc_block(order(10), Gfp::KERNEL, None).unwrap());
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None);
    assert!(page.is_err());
    let [first, second] = blocks;
    let part = first.split(Order::ZERO).pop();
    let before = pages.changes();
    assert_eq!(before, 1023);
    drop(second);
    assert_eq!(pages.changes() - before, 1024);
    pages.decommit();
    let events = pages.info().zones[0].events;
    assert!(events.decommits > 0 && events.discards > 0, "{events:?}");
    assert_eq!(pages.changes() - before, 1024 + events.decommits + events.discards);
    drop(part);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap is always accessible")]
fn guard_page_is_the_last_page_of_a_block() {
    let pages = new_allocator(normal(64));
    let mut block = pages.alloc_block(order(2), Gfp::KERNEL, None).unwrap();
    block.bytes_mut().fill(7);
    // SAFETY: this test owns the block, and no other thread uses its last page.
    unsafe { assert!(pages.guard(block.pfn(), order(2), true) && pages.guard(block.pfn(), order(2), false)) };
    let (rest, last) = block.bytes().split_at(3 * PAGE_SIZE);
    assert!(rest.iter().all(|byte| *byte == 7) && last.iter().all(|byte| *byte == 0));
}

#[test]
fn decommit_splits_no_huge_page() {
    let huge_pages = HugePages::Advise;
    let config = PageConfig { per_cpu_pages: false, huge_pages, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert_eq!(pages.decommit_free(), 2 << 20);
    assert_eq!(pages.info().zones[0].discarded, 512);
    drop(page);
    pages.check().unwrap();
}

/// Pages that were discarded before are not counted, although they are next to pages discarded now.
#[test]
fn discarded_pages_are_counted_once() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(1024) });
    let mut four = [(); 4].map(|()| Some(pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()));
    assert_eq!(pages.decommit_free(), 1020 * PAGE_SIZE);
    let before = pages.info().zones[0].events.discards;
    four[3] = None;
    assert_eq!(pages.decommit_free(), PAGE_SIZE);
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.discards - before, zone.discarded), (1, 1021));
    audited(&pages);
}

/// The small block does not count as memory that could be returned.
#[test]
fn block_too_small_to_discard_stays_resident() {
    let config = PageConfig { pageblock_order: order(2), max_order: order(6), ..normal(64) };
    let pages =
        new_allocator(PageConfig { huge_pages: HugePages::Advise, keep_free: Some(usize::MAX), ..config });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    let (mut freed, kept): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.pfn().get() < 5);
    // Frees four pages that form one block of exactly the smallest discarded order, and one page next to the
    // block.
    freed.clear();
    assert_eq!(pages.decommit_free(), 4 * PAGE_SIZE);
    assert_eq!((pages.info().zones[0].discarded, pages.decommit_free()), (4, 0));
    audited(&pages);
    drop(kept);
    assert_eq!(pages.decommit_free(), 64 * PAGE_SIZE);
}

#[test]
fn pages_are_grouped_by_migratetype_with_enough_pageblocks() {
    let each = PageConfig::default_for(Cpus::os()).pageblock_order.pages() * MigrateType::COUNT as u32;
    for (count, expected) in [(each, MigrateType::Movable), (each - 1, MigrateType::Unmovable)] {
        let pages = new_allocator(normal(count));
        let page = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
        assert_eq!(pages.frame(page.pfn()).state().migrate_type(), expected, "{count}");
    }
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn decommit_also_returns_unused_stack_memory() {
    let ends: [fn(&PageAllocator); 4] = [
        |_| (),
        |pages| _ = pages.decommit(),
        |pages| _ = pages.reap(),
        |pages| _ = pages.decommit_idle(|| ()),
    ];
    let left = ends.map(|end| {
        let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(1 << 14) });
        drop([(); 200].map(|()| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()));
        let cpus = 0..pages.cpus().count();
        pages.drain_cpus(cpus.clone());
        pages.tables().sweep(cpus, DrainScope::Idle, |_| true);
        end(&pages);
        pages.tables().decommit_idle() > 0
    });
    assert_eq!(left, [true, false, false, false]);
}

//! Tests of the page allocator.

use crate::corruption::Handler;
use crate::{
    Backend, Corruption, Gfp, HugePages, Kind, Limit, MigrateType, Order, PAGE_SIZE, PageAllocator,
    PageBlock, PageConfig, Pfn, ZoneKind,
};
use std::cell::RefCell;
use uslab_magazine::sync::{Arc, Counter, Mutex};
use uslab_magazine::tracepoints::{Counts, Observed, Step};
use uslab_magazine::{Cpus, DrainScope, Operation, Path, on_cpu};

mod charges;
mod commitment;
mod migrate_types;
mod per_cpu;

thread_local! {
    static REPORTED_CORRUPTIONS: RefCell<Vec<Corruption>> = const { RefCell::new(Vec::new()) };
}
fn record_corruption(corruption: &Corruption) {
    REPORTED_CORRUPTIONS.with(|found| found.borrow_mut().push(*corruption));
}

const RECORDING_HANDLER: Handler = record_corruption;

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

/// Creates a configuration of one node with the given zones, without watermarks and per-CPU pages.
fn plain(zones: &[(ZoneKind, u32)]) -> PageConfig {
    PageConfig {
        per_cpu_pages: false,
        min_free_kib: Some(0),
        watermark_scale: 0,
        corruption: RECORDING_HANDLER,
        ..PageConfig::with_nodes(Cpus::simulated(1, 1).unwrap(), vec![zones.to_vec()])
    }
}

fn normal(pages: u32) -> PageConfig {
    plain(&[(ZoneKind::Normal, pages)])
}

fn new_allocator(config: PageConfig) -> PageAllocator {
    PageAllocator::new(config).unwrap()
}

/// Allocates blocks until an allocation fails. Returns the blocks and the reason for the failure.
fn alloc_all(pages: &PageAllocator, order: Order, gfp: Gfp) -> (Vec<PageBlock<'_>>, Limit) {
    let mut blocks = Vec::new();
    loop {
        match pages.alloc_block(order, gfp, None) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error.limit),
        }
    }
}

fn audited_census(pages: &PageAllocator) -> crate::Census {
    pages.check().unwrap_or_else(|violation| panic!("{violation}"))
}

/// Runs one ignored test in a child process under the given `ulimit`, and returns its output.
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
fn range_of_one_page_can_be_allocated_repeatedly() {
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
fn zone_tail_smaller_than_a_maximal_block_is_allocated() {
    let pages = new_allocator(normal(1024 + 700));
    let (blocks, limit) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!((blocks.len(), limit), (1724, Limit::Exhausted));
    assert_eq!((pages.info().failures, pages.info().below_low), (1, 1));
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 1724);
    drop(blocks);
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
    audited_census(&pages);
    // The committed tail has blocks of any order that fits: 512 + 128 + 32 + 16 + 8 + 4.
    let info = pages.info();
    let free: Vec<u64> = Order::ZERO.through(Order::MAX).map(|o| info.zones[0].free_blocks(o)).collect();
    assert_eq!(free, [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1]);
    assert_eq!(pages.decommit(), 1724 * 4096);
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

/// A page operation reports the blocks that it moved, their splits or merges, and the memory that was committed or
/// decommitted.
#[test]
fn page_operations_report_block_moves_and_commits() {
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
fn each_thread_reports_only_its_own_splits_and_merges() {
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
fn lower_zone_keeps_a_reserve_from_higher_zone_requests() {
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
fn failed_page_allocation_names_the_limit() {
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
        let before = audited_census(&pages);
        let bad = |pfn, order| {
            // SAFETY: the block was not allocated with these values, which the free must detect before any access.
            unsafe { pages.free(pfn, order) };
            REPORTED_CORRUPTIONS
                .with(|found| found.borrow_mut().pop())
                .map(|c| c.to_string())
                .unwrap_or_default()
        };
        let wrong = "free of page 0 with order 1: it was allocated with order 2";
        assert_eq!((pfn, bad(pfn, order(1)).as_str()), (Pfn::new(0), wrong));
        assert_eq!(bad(Pfn::new(1), order(0)), "free of page 1: no allocated block starts there");
        assert_eq!(bad(Pfn::new(1024), order(0)), "free of page 1024: no allocated block starts there");
        assert_eq!(bad(Pfn::new(2048), order(0)), "free of page 2048: the allocator has 2048 pages");
        assert_eq!(audited_census(&pages), before);
        assert_eq!(bad(pfn, order(2)), "", "a correct free reports no corruption");
        let (before, twice) = (audited_census(&pages), bad(pfn, order(2)));
        let cached = if per_cpu_pages {
            "double free of page 0: it is already a free page of a CPU"
        } else {
            // The page was merged, and is the first page of a larger free block.
            "double free of page 0: it is on a free list"
        };
        assert_eq!((twice.as_str(), audited_census(&pages)), (cached, before));
        assert_eq!(pages.info().corruptions, 5);
    }
}

#[test]
fn compound_block_pages_record_the_first_page_of_the_block() {
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
fn parts_of_a_split_block_can_be_freed_separately() {
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
    assert_eq!(audited_census(&pages).allocated, 14);
    let whole = parts.remove(0);
    assert_eq!(whole.split(order(2)).len(), 1, "the range has no pages to cut off");
    drop(parts);
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
}

#[test]
fn bulk_allocation_returns_at_most_the_available_pages() {
    for per_cpu_pages in [false, true] {
        let pages = new_allocator(PageConfig { per_cpu_pages, ..normal(300) });
        let mut got = Vec::new();
        assert_eq!(pages.alloc_bulk(Gfp::ZERO, None, 130, |pfn| got.push(pfn)), 130);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, None, 1000, |pfn| got.push(pfn)), 170);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, Some(9), 10, |pfn| got.push(pfn)), 0);
        assert_eq!(pages.alloc_bulk(Gfp::KERNEL, None, 0, |pfn| got.push(pfn)), 0);
        got.sort();
        got.dedup();
        assert_eq!((got.len(), audited_census(&pages).allocated), (300, 300));
        // SAFETY: each page was allocated above and is freed once.
        got.into_iter().for_each(|pfn| unsafe { pages.free(pfn, Order::ZERO) });
        assert_eq!(audited_census(&pages).allocated, 0);
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
    assert_eq!(audited_census(&pages).allocated, 10);
}

/// Regression: a panic in the corruption handler propagated to the caller of the free.
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
    assert_eq!((pages.info().corruptions, audited_census(&pages).allocated), (1, 0));
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
    assert_eq!(audited_census(&pages).allocated, 0);
    pages.decommit();
    let (census, info) = (audited_census(&pages), pages.info());
    assert_eq!((census.uncommitted, info.pages_not_in_maximal_blocks()), (2748, 0));
    let events = info.zones[1].events;
    assert!(events.claims > 0 && events.steals > 0 && events.commits > 0, "{events:?}");
}

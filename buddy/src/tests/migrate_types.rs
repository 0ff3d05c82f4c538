//! Tests of migrate types and the grouping of pages into pageblocks.

use super::*;

#[test]
fn fallback_to_a_large_block_claims_its_whole_pageblock() {
    let pages = new_allocator(PageConfig { pageblock_order: order(8), ..normal(1024) });
    let pages_in_use = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
    assert_eq!(pages.info().zones[0].pageblocks, [0, 4, 0]);
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert_eq!(pinned.pfn(), Pfn::new(512), "the largest free block spans two pageblocks");
    let zone = &pages.info().zones[0];
    assert_eq!((zone.pageblocks, zone.events.claims, zone.events.steals), ([2, 2, 0], 1, 0));
    audited_census(&pages);
    drop((pages_in_use, pinned));
    assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0, "pageblocks of different types merge");
    audited_census(&pages);
}

#[test]
fn fallback_to_a_maximal_block_claims_all_its_pages() {
    let config = PageConfig { pageblock_order: order(6), max_order: order(7), ..normal(256) };
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..config });
    let (mut movable, _) = alloc_all(&pages, order(7), Gfp::MOVABLE);
    assert_eq!(movable.len(), 2);
    drop(movable.remove(0));
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.pageblocks, zone.events.claims, zone.events.steals), ([2, 2, 0], 1, 0));
    audited_census(&pages);
    drop(pinned);
}

/// When two pageblocks merge, both get the migrate type of the block that was freed last.
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
    audited_census(&pages);
}

#[test]
fn claiming_a_half_free_pageblock_moves_all_its_free_blocks() {
    let pages = new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(192) });
    let (mut movable, _) = alloc_all(&pages, order(2), Gfp::MOVABLE);
    movable.drain(0..9);
    let pinned = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.claims, zone.events.steals), (1, 0), "36 of 64 pages are free");
    assert_eq!(zone.pageblocks, [1, 2, 0]);
    assert_eq!(zone.blocks.iter().map(|row| row[MigrateType::Movable as usize]).sum::<u32>(), 0);
    audited_census(&pages);
    drop(pinned);
}

#[test]
fn stolen_block_returns_to_its_former_migratetype_when_freed() {
    let pages = new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(192) });
    let (mut movable, _) = alloc_all(&pages, Order::ZERO, Gfp::MOVABLE);
    movable.truncate(movable.len() - 7);
    let stolen_page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.claims, zone.events.steals, zone.pageblocks), (0, 1, [0, 3, 0]));
    drop(stolen_page);
    assert_eq!(pages.info().zones[0].blocks[0], [0, 1, 0]);
    audited_census(&pages);
}

/// Fills a zone of three 64-page pageblocks and a tail with blocks of order `size`, allocated with `gfp`. The function
/// then frees the blocks of the first pageblock whose index `freed` selects, and makes the allocations in `more`.
/// Returns how many claims and steals the allocations in `more` caused.
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
    audited_census(&pages);
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
fn fallback_migratetypes_are_tried_in_linux_order() {
    use MigrateType::*;
    assert_eq!(Unmovable.fallback_types(), [Reclaimable, Movable]);
    assert_eq!(Movable.fallback_types(), [Reclaimable, Unmovable]);
    assert_eq!(Reclaimable.fallback_types(), [Unmovable, Movable]);
}

#[test]
fn few_pageblocks_disable_grouping_by_migratetype() {
    let pages = new_allocator(normal(1535));
    assert!(!pages.info().mobility && new_allocator(normal(1536)).info().mobility);
    let block = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
    assert_eq!(pages.frame(block.pfn()).state().migrate_type(), MigrateType::Unmovable);
}

#[test]
fn enough_pageblocks_enable_grouping_by_migratetype() {
    let each = PageConfig::default_for(Cpus::os()).pageblock_order.pages() * MigrateType::COUNT as u32;
    for (count, expected) in [(each, MigrateType::Movable), (each - 1, MigrateType::Unmovable)] {
        let pages = new_allocator(normal(count));
        let page = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
        assert_eq!(pages.frame(page.pfn()).state().migrate_type(), expected, "{count}");
    }
}

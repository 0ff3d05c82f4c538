//! Tests of the CPUs' page magazines.

use super::*;

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
fn drain_returns_magazine_pages_of_all_orders_to_the_zone() {
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
    audited_census(&pages);
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

//! Tests of charges: memory that other code uses and that zones withhold.

use super::*;

#[test]
fn accepted_memory_charge_decommits_free_pages() {
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
    audited_census(&pages);
}

#[test]
fn page_allocation_counts_charged_memory_against_the_limit() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(2048) }.limit(8 << 20));
    let managed = pages.limit().unwrap() / PAGE_SIZE;
    let charged = managed - 200;
    assert!(pages.charge(charged));
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let backed = pages.info().backed_bytes() as usize / PAGE_SIZE;
    assert!(backed + charged <= managed, "{backed} backed pages and {charged} charged pages of {managed}");
    drop(page);
    pages.uncharge(charged);
    audited_census(&pages);
}

/// Regression: a charge took pages from the lowest zone first, and cancelling a part of it freed pages of another zone.
#[test]
fn memory_charge_starts_with_the_highest_zone() {
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
    audited_census(&pages);
}

/// Regression: a refused charge had already charged the highest zone and decommitted its free memory before the next
/// zone refused.
#[test]
fn memory_charge_refused_by_all_zones_takes_no_page() {
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
    audited_census(&pages);
}

#[test]
fn memory_charges_never_exceed_the_free_pages() {
    let pages = new_allocator(PageConfig { limited: true, ..normal(2048) });
    assert!(!pages.charge(2049));
    assert!(pages.charge(2048) && !pages.charge(1));
    assert_eq!(pages.info().zones[0].charged, 2048);
    pages.uncharge(2048);
    assert_eq!(pages.info().zones[0].charged, 0);
}

/// One thread may cancel a charge that another thread made in a different zone.
#[test]
fn cancelling_concurrent_charges_leaves_both_zones_uncharged() {
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

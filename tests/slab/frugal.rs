//! Tests that unused memory costs nothing: objects that were never written, and address space that the system refuses.

use crate::process::{is_alone, resident, run_test_alone};
use uslab::{Config, Gfp, KmemCache, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;

#[test]
fn untouched_pages_of_a_slab_are_not_resident() {
    if !is_alone("frugal::untouched_pages_of_a_slab_are_not_resident") {
        return;
    }
    let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap());
    // Checked frees are disabled, because they would take an eighth of the memory.
    let subsystem = Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap();
    let cache = KmemCache::builder("o", 4096).build_in(&subsystem).unwrap();
    const N: usize = 16 << 10;
    let before = resident();
    let blocks: Vec<_> = (0..N).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    let added_bytes = resident().saturating_sub(before);
    // The subsystem has 64 MiB of objects; frames, magazines and the vector need some memory.
    assert!(
        added_bytes < 8 << 20,
        "{N} untouched objects must not become resident: {} KiB",
        added_bytes >> 10
    );
    drop(blocks);
    cache.shrink();
    subsystem.pages().decommit();
    assert_eq!(subsystem.pages().info().committed_bytes(), 0);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap writes to a separate page for each large piece")]
fn empty_cache_uses_little_memory() {
    if !is_alone("frugal::empty_cache_uses_little_memory") {
        return;
    }
    let pages = PageConfig::default_for(Cpus::simulated(4, 1).unwrap());
    let subsystem = Subsystem::new(Config::new(pages)).unwrap();
    let before = resident();
    let caches: Vec<_> =
        (0..1000).map(|i| KmemCache::builder(format!("c{i}"), 64).build_in(&subsystem).unwrap()).collect();
    let bytes_per_cache = resident().saturating_sub(before) / caches.len();
    assert!(bytes_per_cache < 16 << 10, "{bytes_per_cache} bytes an empty cache");
}

/// The next test runs this function in a process with a limit on its address space.
#[test]
#[ignore = "a helper of the next test"]
fn child_starts_under_an_address_space_limit() {
    let subsystem = Subsystem::global().unwrap();
    let block = subsystem.kmalloc().alloc_block(1000, Gfp::ZERO).unwrap();
    assert_eq!(block.bytes().len(), 1000);
    println!("pages {}", subsystem.check().unwrap().pages);
}

#[test]
fn subsystem_reserves_less_in_little_address_space() {
    let run = |kib: usize| {
        let text = run_test_alone(
            "frugal::child_starts_under_an_address_space_limit",
            &format!("ulimit -v {kib} &&"),
        );
        let pages = text.lines().find_map(|line| line.split_once("pages ")?.1.trim().parse::<usize>().ok());
        pages.unwrap_or_else(|| panic!("{kib} KiB: {text}"))
    };
    // The sizes are odd; for some of them the range alone would leave nothing for the tables.
    for mib in [192, 300, 523, 1030, 1100, 2100, 4200, 70_000] {
        let pages = run(mib << 10);
        assert!(pages * 4096 <= mib << 20 && pages >= 1024, "{mib} MiB: {pages} pages");
    }
}

/// The test needs a separate process, because it sets limits for the whole process.
#[test]
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn bound_on_kept_free_memory_shrinks_with_the_data_limit() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    if !is_alone("frugal::bound_on_kept_free_memory_shrinks_with_the_data_limit") {
        return;
    }
    // The process's control groups may also have limits.
    let limit = |bytes: u64| setrlimit(Resource::RLIMIT_DATA, bytes, RLIM_INFINITY).unwrap();
    let subsystem = Subsystem::new(Config { check_frees: false, ..Config::default() }).unwrap();
    let resident_bytes = || {
        let block = || subsystem.pages().alloc_block(uslab_buddy::Order::MAX, Gfp::KERNEL, None).unwrap();
        let blocks: Vec<_> = (0..12).map(|_| block()).collect();
        drop(blocks);
        subsystem.pages().info().backed_bytes()
    };
    // More memory is kept after bursts have returned a few times.
    let max_resident = || (0..8).map(|_| resident_bytes()).max();
    assert!(max_resident() >= Some(8 << 20));
    for mib in [256, 96, 64] {
        limit(mib << 20);
        subsystem.end_interval();
        assert!(max_resident() <= Some((mib << 20) / 8), "of {mib} MiB");
        // The limit is removed.
        limit(RLIM_INFINITY);
        subsystem.end_interval();
        assert!(max_resident() >= Some(8 << 20));
    }
    // A limit only matters if the configuration allows it.
    limit(64 << 20);
    let pages = PageConfig { keep_free: Some(512 << 20), ..PageConfig::default_for(Cpus::os()) };
    let subsystem_without_reaper = Subsystem::new(Config::new(pages)).unwrap();
    let before = subsystem_without_reaper.pages().info().backed_bytes();
    let blocks: Vec<_> = (0..7)
        .map(|_| {
            subsystem_without_reaper.pages().alloc_block(uslab_buddy::Order::MAX, Gfp::KERNEL, None).unwrap()
        })
        .collect();
    drop(blocks);
    subsystem_without_reaper.end_interval();
    assert_eq!(subsystem_without_reaper.pages().info().backed_bytes() - before, 28 << 20);
}

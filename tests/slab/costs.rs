//! Tests what caches cost: memory of stacks, addresses, mappings, and the time to create many caches.
//!
//! If a cost concerns a whole process, the test measures it in a separate process. The tests identify mappings of
//! tables, and of the map from pages to classes, by their `madvise` flags.
#![cfg(all(target_os = "linux", not(uslab_heap)))]

use crate::process::{resident, run_test_alone};
use uslab::{Config, Gfp, KmemCache, Subsystem};
use uslab_buddy::{PageConfig, ZoneKind};
use uslab_magazine::{Cpus, on_cpu};

/// Totals over all mappings in `/proc/self/smaps` that never get huge pages.
#[derive(Clone, Copy, Debug, Default)]
struct Mappings {
    count: usize,
    bytes: usize,
    /// The number of bytes in writable mappings.
    writable: usize,
    resident: usize,
    /// The number of readable mappings with wrong core dump flags: dumped although not writable, or not dumped although
    /// writable.
    misdumped: usize,
}

fn tables() -> Mappings {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut all_mappings, mut mapping) = (Mappings::default(), Mappings::default());
    let kib = |number_text: &str| number_text.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
    for line in smaps.lines() {
        if let Some(size) = line.strip_prefix("Size:") {
            mapping = Mappings { bytes: kib(size), ..Mappings::default() };
        } else if let Some(resident) = line.strip_prefix("Rss:") {
            mapping.resident = kib(resident);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|flags| flags.contains(" nh")) {
            all_mappings.count += 1;
            all_mappings.bytes += mapping.bytes;
            all_mappings.writable += if flags.contains(" wr") { mapping.bytes } else { 0 };
            all_mappings.resident += mapping.resident;
            all_mappings.misdumped +=
                usize::from(flags.contains(" rd") && flags.contains(" wr") == flags.contains(" dd"));
        }
    }
    all_mappings
}

fn subsystem(cpus: u32, nodes: u32) -> Subsystem {
    subsystem_with_machine(cpus, nodes, 1 << 30)
}
fn subsystem_with_machine(cpus: u32, nodes: u32, bytes: usize) -> Subsystem {
    let pages = PageConfig::default_for(Cpus::simulated(cpus, nodes).unwrap()).limit(bytes);
    // Checked frees are disabled, because they would take memory for each object.
    Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap()
}
fn caches(subsystem: &Subsystem, count: usize) -> Vec<KmemCache> {
    let cache = |i| KmemCache::builder(format!("c{i}"), 64).build_in(subsystem).unwrap();
    (0..count).map(cache).collect()
}
/// Allocates and frees one object of each cache, on each CPU.
fn alloc_and_free_on_each_cpu(subsystem: &Subsystem, caches: &[KmemCache]) {
    for cpu in 0..subsystem.cpus().count() {
        on_cpu(cpu);
        for cache in caches {
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            // SAFETY: the object was allocated just now, and is freed once.
            unsafe { cache.free(object) };
        }
    }
    on_cpu(0);
}

const MIB: usize = 1 << 20;

/// A table that contains only zeros need not be written, so its pages take no memory.
#[test]
fn unused_pages_of_four_terabytes_use_little_memory() {
    run_test_alone("costs::child_starts_a_subsystem_of_four_terabytes", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_starts_a_subsystem_of_four_terabytes() {
    // The table has 2 Mi pageblocks, with one word each.
    let zones = vec![vec![(ZoneKind::Normal, 1 << 30)]];
    let pages = PageConfig::with_nodes(Cpus::simulated(2, 1).unwrap(), zones);
    let before = resident();
    let subsystem = Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap();
    let added_bytes = resident().saturating_sub(before);
    assert_eq!(subsystem.pages().frames().len(), 1 << 30, "the whole reservation must be granted");
    assert!(added_bytes <= 6 * MIB, "{} KiB", added_bytes >> 10);
}

#[test]
fn thousand_caches_on_64_cpus_use_little_memory() {
    run_test_alone("costs::child_uses_a_thousand_caches_once", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_uses_a_thousand_caches_once() {
    let (cpus, count) = (64, 1000);
    let subsystem = subsystem(cpus, 1);
    let start_bytes = tables();
    assert!(start_bytes.bytes <= 1 << 30, "addresses before the first allocation: {start_bytes:?}");
    assert!(start_bytes.writable <= 4 * MIB, "bytes that strict accounting counts: {start_bytes:?}");
    let before = resident();
    let caches = caches(&subsystem, count);
    let creation_bytes = resident().saturating_sub(before);
    assert!(creation_bytes <= 8 * MIB, "a cache must take fewer bytes: {} each", creation_bytes / count);
    alloc_and_free_on_each_cpu(&subsystem, &caches);
    let use_bytes = tables();
    let drain_passes = || subsystem.info().drains.passes;
    let (before_reap, drain_count) = (drain_passes(), subsystem.pages().tables().drains().count() as u64);
    // The most is one page of stack for each cache and CPU, two pages of notes for each CPU and table, and the frames
    // of the slabs, which are in the same mapping.
    let max_bytes =
        (count + 2 * count.div_ceil(200)) * cpus as usize * 4096 + count * cpus as usize * 64 + MIB;
    assert!(use_bytes.resident - start_bytes.resident <= max_bytes, "{use_bytes:?}");
    assert!(
        use_bytes.resident - start_bytes.resident >= count * cpus as usize * 4096,
        "bytes of used stacks: {use_bytes:?}"
    );
    assert_eq!(use_bytes.misdumped, 0);
    (0..2).for_each(|_| _ = subsystem.reap());
    assert!(tables().resident <= 8 * MIB, "{:?}", tables());
    // A reap takes one pass for caches, one for pages, and one for the memory of both, regardless of the number of
    // caches.
    assert!(
        drain_passes() - before_reap <= 2 * 3 * drain_count,
        "{} passes for {count} caches",
        drain_passes() - before_reap
    );
    subsystem.end_interval();
    let reaped = tables();
    println!(
        "start {start_bytes:?}\nused {use_bytes:?}\nreaped {reaped:?}, {} KiB in all",
        (resident() - before) >> 10
    );
    assert!(resident() - before <= 16 * MIB, "{} KiB stay: {reaped:?}", (resident() - before) >> 10);
    // The caches still serve, and their counts are exact.
    alloc_and_free_on_each_cpu(&subsystem, &caches);
    for cache in &caches {
        let info = cache.info();
        assert_eq!((info.allocs, info.frees), (2 * u64::from(cpus), 2 * u64::from(cpus)));
    }
    drop(caches);
    subsystem.end_interval();
    let dropped = tables().resident;
    assert!(dropped <= reaped.resident + MIB, "the stacks of dropped classes must be decommitted: {dropped}");
    subsystem.check().unwrap();
}

/// The test prints the time of a drain, and the time for which each CPU is without its region. In `.ci/full`, this test
/// runs in an optimised build.
#[test]
#[ignore = "a minute, and 5 GiB of memory"]
fn reap_drains_many_caches_in_one_pass_per_cpu_table() {
    for cpus in [0, 1, 64, 1024] {
        let count = 1000;
        let subsystem = if cpus == 0 {
            Subsystem::new(Config { check_frees: false, ..Config::default() }).unwrap()
        } else {
            // The magazines of a cache grow to 64 objects of 64 bytes on each CPU. With less memory than all magazines
            // need, allocations find no page and drain other CPUs, with a pass each.
            subsystem_with_machine(cpus, 1, 8 << 30)
        };
        let caches = caches(&subsystem, count);
        alloc_and_free_on_each_cpu(&subsystem, &caches);
        assert_eq!(subsystem.info().drains.passes, 0, "no memory is short");
        let start_time = std::time::Instant::now();
        (0..2).for_each(|_| _ = subsystem.reap());
        let reaps = start_time.elapsed();
        let drains = subsystem.info().drains;
        let tables = subsystem.pages().tables().drains().count() as u64;
        let machine = if cpus == 0 { "real".to_owned() } else { format!("{cpus} simulated") };
        println!("{machine} CPUs, {count} caches in {tables} tables: two reaps {reaps:?}, {drains:?}");
        // Each reap takes one pass for each table, and one for the pages.
        assert!(drains.passes <= 2 * (tables + 1) && drains.refused == 0, "{drains:?} in {tables} tables");
    }
}

/// Returns the bytes that strict accounting (`vm.overcommit_memory=2`) charges to this process: private mappings that
/// are writable, or were writable when they were charged. Thread stacks are charged as they grow.
fn charged_bytes() -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut all, mut size, mut stack) = (0, 0, false);
    for line in smaps.lines() {
        if line.split_once(' ').is_some_and(|(range, _)| range.contains('-')) {
            stack = line.ends_with("[stack]");
        } else if let Some(kib) = line.strip_prefix("Size:") {
            size = kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| !stack) {
            let has_flag = |flag| flags.split(' ').any(|word| word == flag);
            all += if !has_flag("sh") && (has_flag("wr") || has_flag("ac")) { size } else { 0 };
        }
    }
    all
}

#[test]
fn subsystem_with_a_hundred_caches_commits_little_memory() {
    run_test_alone("costs::child_allocates_from_a_hundred_caches", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_allocates_from_a_hundred_caches() {
    for cpus in [2, 64] {
        let before = charged_bytes();
        let subsystem = subsystem(cpus, 1);
        let start_bytes = charged_bytes() - before;
        let caches = caches(&subsystem, 100);
        alloc_and_free_on_each_cpu(&subsystem, &caches);
        let use_bytes = charged_bytes() - before;
        let pages = subsystem.info().pages.committed_bytes() as usize;
        println!(
            "{cpus} CPUs: start {} KiB, used {} KiB, {} of them pages",
            start_bytes >> 10,
            use_bytes >> 10,
            pages >> 10
        );
        // The rest is the per-CPU words, and the growth of the C library's heap. All other addresses are only reserved.
        assert!(start_bytes <= MIB / 2, "{start_bytes} bytes");
        // A region is charged from its start to the last stack that its CPU has used, and at most twice that. In this
        // test that is 16 KiB for each of 100 caches, and what kmalloc's stacks take. The heap takes a MiB for the
        // caches.
        assert!(
            use_bytes - pages <= cpus as usize * 3 * MIB + MIB,
            "{use_bytes} bytes, {pages} of them pages"
        );
        assert!(
            use_bytes - pages >= cpus as usize * 100 * 4096,
            "used stacks must be charged: {use_bytes} bytes"
        );
    }
}

#[test]
fn mapping_count_does_not_grow_with_caches_times_cpus() {
    run_test_alone("costs::child_allocates_from_two_thousand_caches", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_allocates_from_two_thousand_caches() {
    let (cpus, count) = (64, 2000);
    let subsystem = subsystem(cpus, 1);
    let caches = caches(&subsystem, count);
    let creation_bytes = tables();
    alloc_and_free_on_each_cpu(&subsystem, &caches);
    let use_bytes = tables();
    println!("born {creation_bytes:?}\nused {use_bytes:?}");
    // The first table has two mappings for each CPU, any other table a few.
    assert!(use_bytes.count <= 2 * cpus as usize + 8 * (count / 200), "{use_bytes:?}");
    assert_eq!(use_bytes.misdumped, 0);
}

#[test]
fn subsystem_of_64_cpus_fits_in_little_address_space() {
    run_test_alone("costs::child_runs_64_cpus_in_little_address_space", "ulimit -v 1048576 &&");
}
#[test]
#[ignore = "run by the test above"]
fn child_runs_64_cpus_in_little_address_space() {
    let subsystem = subsystem(64, 1);
    let start_bytes = tables();
    assert!(start_bytes.bytes <= 256 * MIB, "{start_bytes:?}");
    let caches = caches(&subsystem, 300);
    for turn in 0..3 {
        alloc_and_free_on_each_cpu(&subsystem, &caches);
        subsystem.reap();
        let block = subsystem.kmalloc().alloc_block(1000 << turn, Gfp::ZERO).unwrap();
        assert!(block.bytes().iter().all(|byte| *byte == 0));
    }
    subsystem.check().unwrap();
}

#[test]
fn subsystem_of_1000_cpus_on_16_nodes_works() {
    run_test_alone("costs::child_starts_a_subsystem_of_a_thousand_cpus", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_starts_a_subsystem_of_a_thousand_cpus() {
    let subsystem = subsystem(1024, 16);
    let start_bytes = tables();
    let caches = caches(&subsystem, 10);
    alloc_and_free_on_each_cpu(&subsystem, &caches);
    println!("start {start_bytes:?}\nused {:?}", tables());
    (0..3).for_each(|_| _ = subsystem.reap());
    for cache in &caches {
        let info = cache.info();
        assert_eq!((info.allocs, info.in_magazines), (1024, 0));
    }
    subsystem.check().unwrap();
}

#[test]
fn caches_beyond_the_class_numbers_work_without_magazines() {
    run_test_alone("costs::child_creates_more_caches_than_class_numbers", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_creates_more_caches_than_class_numbers() {
    let subsystem = subsystem(2, 1);
    let before = resident();
    let start_time = std::time::Instant::now();
    let caches = caches(&subsystem, 1 << 16);
    let creation_bytes = start_time.elapsed();
    let bytes_per_cache = (resident() - before) / caches.len();
    assert!(bytes_per_cache <= 4096, "{bytes_per_cache} bytes for each cache");
    // The caches are the first, the last, and some between.
    let sampled_caches: Vec<_> = caches.iter().step_by(1021).chain(caches.last()).collect();
    for cache in &sampled_caches {
        let objects: Vec<_> = (0..100).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        // SAFETY: the objects were allocated above, and each is freed once.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
        let info = cache.info();
        assert_eq!((info.allocs, info.frees, info.used), (100, 100, 0), "a new cache must start at 0");
    }
    let has_magazines = |cache: &&KmemCache| cache.info().magazine_capacity > 0;
    let magazines = sampled_caches.iter().copied().filter(has_magazines).count();
    subsystem.reap();
    println!(
        "{bytes_per_cache} bytes each, born in {creation_bytes:?}; {magazines} of {} have magazines",
        sampled_caches.len()
    );
    drop(caches);
    println!("over after {:?}", start_time.elapsed());
    let next_cache = KmemCache::builder("next", 64).build_in(&subsystem).unwrap();
    let info = next_cache.info();
    assert_eq!((info.allocs, info.frees, info.in_magazines), (0, 0, 0));
    assert!(info.magazine_capacity > 0, "class numbers must be freed");
    subsystem.check().unwrap();
}

/// Regression test: the first sweep of a process used the number that means "no sweep", so its rounds were never
/// flushed.
#[test]
fn first_magazine_sweep_of_a_process_flushes_all_objects() {
    run_test_alone("costs::child_shrinks_in_its_first_sweep", "");
}
#[test]
#[ignore = "run by the test above"]
fn child_shrinks_in_its_first_sweep() {
    let subsystem = subsystem(1, 1);
    let caches = caches(&subsystem, 2);
    alloc_and_free_on_each_cpu(&subsystem, &caches);
    subsystem.shrink();
    assert!(caches.iter().all(|cache| cache.info().in_magazines == 0));
    subsystem.check().unwrap();
}

/// One sweep covers all caches; if a panic ended the sweep, the remaining caches would stay closed until the next one.
/// Regression test: the panic reached the caller of the shrink, and the other objects of the magazine were lost.
#[test]
fn shrink_continues_after_the_corruption_handler_panics() {
    let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap());
    let corruption = std::sync::Arc::new(|corruption: &uslab::Corruption<'_>| panic!("{corruption}"));
    let config = Config { check_frees: false, corruption, ..Config::new(pages) };
    let subsystem = Subsystem::new(config).unwrap();
    on_cpu(0);
    let wrong_cache = KmemCache::builder("wrong", 64).build_in(&subsystem).unwrap();
    let other_cache = KmemCache::builder("other", 64).build_in(&subsystem).unwrap();
    let push = || drop(other_cache.alloc_block(Gfp::KERNEL).unwrap());
    let object = wrong_cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: unsound on purpose: no object begins there, which is noticed when it reaches its slab.
    unsafe { wrong_cache.free(object.add(8)) };
    push();
    assert_eq!(other_cache.info().in_magazines, 1);
    subsystem.shrink();
    assert_eq!((other_cache.info().in_magazines, other_cache.info().slabs), (0, 0));
    push();
    assert!(other_cache.info().in_magazines > 0, "the cache's stacks must hold objects");
    std::mem::forget(wrong_cache);
}

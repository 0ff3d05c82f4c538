//! Tests that the statistics add up, count all operations, and are the same in all views.

use crate::common::{assert_all_memory_returned, config, subsystem};
use std::sync::mpsc;
use uslab::{AllocError, Block, Gfp, KmemCache, Magazines, Path, Paths, SlabInfo, Subsystem};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::Counter;

fn node_of(subsystem: &Subsystem, object: core::ptr::NonNull<u8>) -> u32 {
    let pages = subsystem.pages();
    pages.node_of(pages.pfn_of(object.as_ptr()).unwrap())
}

/// Four CPUs on two nodes allocate, free, and pass a third of their objects to the next CPU, while another thread reads
/// the statistics.
#[test]
fn object_counts_by_location_add_up_to_all_objects() {
    for magazines in [Magazines::BySize, Magazines::Off] {
        let subsystem = Subsystem::new(config(4, 2, 64 << 20)).unwrap();
        let cache = KmemCache::builder("o", 200).magazines(magazines).build_in(&subsystem).unwrap();
        let [allocs, frees, remote, is_done] = [const { Counter::new(0) }; 4];
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..4).map(|_| mpsc::channel::<Vec<Block<'_>>>()).unzip();
        let kept_blocks: Vec<Block<'_>> = std::thread::scope(|scope| {
            let workers: Vec<_> = receivers
                .into_iter()
                .enumerate()
                .map(|(cpu, receiver)| {
                    let next_sender = senders[(cpu + 1) % 4].clone();
                    let (subsystem, cache) = (&subsystem, &cache);
                    let [allocs, frees, remote, is_done] = [&allocs, &frees, &remote, &is_done];
                    scope.spawn(move || {
                        on_cpu(cpu as u32);
                        let free = |blocks: Vec<Block<'_>>| {
                            for block in blocks {
                                frees.add(1);
                                remote.add(u64::from(
                                    node_of(subsystem, block.address())
                                        != subsystem.cpus().node_of(cpu as u32),
                                ));
                                drop(block);
                            }
                        };
                        let mut kept_blocks = vec![];
                        for round in 0..60 {
                            let blocks: Vec<_> =
                                (0..150).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
                            allocs.add(150);
                            match round % 3 {
                                0 => next_sender.send(blocks).unwrap(),
                                1 => free(blocks),
                                _ => kept_blocks = blocks,
                            }
                            receiver.try_iter().for_each(&free);
                            if round % 3 == 2 && round < 59 {
                                free(core::mem::take(&mut kept_blocks));
                            }
                        }
                        drop(next_sender);
                        receiver.into_iter().for_each(free);
                        is_done.add(1);
                        kept_blocks
                    })
                })
                .collect();
            drop(senders);
            while is_done.get() < 4 {
                // In a snapshot during the load, each number is exact only by itself.
                let info = subsystem.info();
                assert!(info.slabinfo_all().get("o").is_some() && serde_json::to_string(&info).is_ok());
            }
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        let info = cache.info();
        assert_eq!((info.allocs, info.frees), (allocs.get(), frees.get()), "{magazines:?}");
        assert_eq!(info.used, kept_blocks.len() as u64);
        assert_eq!(info.used + info.in_magazines + info.in_depot + info.free_in_slabs, info.objects);
        assert_eq!((info.other_node_frees, info.other_node_allocs), (remote.get(), 0), "{magazines:?}");
        assert!(remote.get() > 0);
        assert_eq!(info.paths.operations(), info.allocs + info.frees, "{info:?}");
        assert_eq!(info.pages, info.slabs << info.order);
        match magazines {
            Magazines::Off => assert_eq!((info.paths.cpu, info.paths.depot, info.depot_exchanges), (0, 0, 0)),
            _ => assert!(info.paths.share(Path::Cpu).is_some_and(|cpu| cpu > 0.5 && cpu < 1.0), "{info:?}"),
        }
        assert_eq!(subsystem.check().unwrap().used, kept_blocks.len() as u64);
        drop(kept_blocks);
        assert_all_memory_returned(&subsystem);
    }
}

#[test]
fn magazines_serve_alternating_allocations_and_frees() {
    let subsystem = subsystem(1);
    let fixed = Magazines::Sized { capacity: 4, stock: 0, depot_limit: 2 };
    let cache = KmemCache::builder("o", 64).magazines(fixed).check_frees(false).build_in(&subsystem).unwrap();
    assert_eq!(cache.info().paths.share(Path::Cpu), None);
    drop(cache.alloc_blocks(Gfp::KERNEL, 8).unwrap());
    let before = cache.info();
    for _ in 0..100 {
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    }
    let warm = cache.info();
    assert_eq!(warm.paths.cpu - before.paths.cpu, 200);
    assert_eq!((warm.fills, warm.depot_exchanges), (before.fills, before.depot_exchanges));
    let mut used_blocks: Vec<_> = (0..40).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    let info_when_full = cache.info();
    assert!(info_when_full.fills - warm.fills >= (40 - warm.in_magazines) / 4, "{info_when_full:?}");
    used_blocks.clear();
    let full_info = cache.info();
    // Four magazines are kept: two on the CPU's stack, two in the depot. All other magazines were flushed to the slabs.
    assert_eq!((full_info.in_magazines, full_info.in_depot), (8, 8));
    assert_eq!(
        full_info.flushes - info_when_full.flushes,
        (40 + info_when_full.in_magazines + info_when_full.in_depot - 16) / 4
    );
    assert_eq!(full_info.paths.operations(), full_info.allocs + full_info.frees);
}

/// A running profile closes the inlined paths; the slower paths still use the CPUs' stacks.
#[test]
fn magazines_serve_allocations_while_a_profile_runs() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let fixed = Magazines::Sized { capacity: 4, stock: 0, depot_limit: 2 };
    for check in [false, true] {
        let cache = KmemCache::builder("o", 64).magazines(fixed).check_frees(check).build_in(&subsystem);
        let cache = cache.unwrap();
        drop(cache.alloc_blocks(Gfp::KERNEL, 8).unwrap());
        subsystem.start_profile(1 << 20).unwrap();
        let of_slabs = || [cache.info().fills, cache.info().flushes, cache.info().depot_exchanges];
        let before = of_slabs();
        (0..100).for_each(|_| drop(cache.alloc_block(Gfp::KERNEL).unwrap()));
        assert_eq!(of_slabs(), before, "{check}");
        subsystem.stop_profile();
    }
}

#[test]
fn reports_count_the_pages_of_each_slab_order() {
    let subsystem = Subsystem::new(config(1, 1, 4 << 20)).unwrap();
    let cache = KmemCache::builder("page", 4096).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let hole = subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, Gfp::KERNEL, None).unwrap();
    let used_blocks: Vec<_> = core::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    let info = cache.info();
    assert_eq!((used_blocks.len(), info.pages), (1023, 1023));
    assert!(info.order_fallbacks > 0 && info.pages < info.slabs << info.order);
    assert_eq!(subsystem.check().unwrap().slab_pages, 1023);
    drop((used_blocks, hole));
    cache.shrink();
    assert_eq!(cache.info().pages, 0);
}

/// The test compares a snapshot with its views: the kernel's table as text and as JSON, and the complete statistics as
/// JSON.
#[test]
fn all_report_formats_show_equal_numbers() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("inode", 640).build_in(&subsystem).unwrap();
    let used_blocks = cache.alloc_blocks(Gfp::KERNEL, 70).unwrap();
    let info = subsystem.info();
    let table = info.slabinfo();
    assert_eq!(
        (&table, table.rows[0].name.as_str()),
        (&subsystem.slabinfo(), "inode"),
        "the newest objects must be first"
    );
    assert_eq!(table.to_string().parse().as_ref(), Ok(&table));
    let json = serde_json::to_value(&table).unwrap();
    assert_eq!(json["rows"][0]["active_objects"], table.rows[0].active_objects);
    let json = serde_json::to_value(&info).unwrap();
    let inode = json["caches"].as_array().unwrap().last().unwrap();
    for key in ["used", "in_magazines", "in_depot", "free_in_slabs", "depot_exchanges"] {
        assert!(inode[key].is_u64(), "{key}");
    }
    for key in ["other_node_frees", "other_node_allocs", "fills", "flushes", "pages", "failures"] {
        assert!(inode[key].is_u64(), "{key}");
    }
    assert_eq!((&inode["used"], &inode["allocs"]), (&70.into(), &70.into()));
    let paths =
        ["cpu", "depot", "slab", "pages", "commit"].map(|path| inode["paths"][path].as_u64().unwrap());
    assert_eq!(paths.iter().sum::<u64>(), 70);
    assert_eq!(json["pages"]["zones"][0]["managed"], 16384);
    drop(used_blocks);
}

#[test]
fn allocation_uses_the_requested_numa_node_unless_full() {
    let subsystem = Subsystem::new(config(2, 2, 16 << 20)).unwrap();
    let cache = KmemCache::builder("page", 4096).build_in(&subsystem).unwrap();
    let mut used_blocks = vec![];
    for cpu in 0..2 {
        on_cpu(cpu);
        for node in [0, 1, 1, 0] {
            let object = cache.alloc_node(Gfp::KERNEL, node).unwrap();
            assert_eq!(node_of(&subsystem, object), node, "on CPU {cpu}");
            used_blocks.push(object);
        }
    }
    assert_eq!(cache.info().other_node_allocs, 0);
    on_cpu(1);
    while let Ok(object) = cache.alloc_node(Gfp::THIS_NODE, 0) {
        assert_eq!(node_of(&subsystem, object), 0);
        used_blocks.push(object);
    }
    let full_info = cache.info();
    assert_eq!((used_blocks.len(), full_info.failures, full_info.other_node_allocs), (2048 + 4, 1, 0));
    let error = cache.alloc_node(Gfp::THIS_NODE, 0).unwrap_err();
    assert_eq!(error.to_string(), "no pages for another slab: no block of order 0 on node 0: out of pages");
    // A node is a preference, whether it is requested or is the CPU's own.
    for cpu in 0..2 {
        on_cpu(cpu);
        let object = cache.alloc_node(Gfp::KERNEL, 0).unwrap();
        assert_eq!(node_of(&subsystem, object), 1);
        used_blocks.push(object);
    }
    on_cpu(0);
    used_blocks.push(cache.alloc(Gfp::KERNEL).unwrap());
    assert_eq!(cache.info().other_node_allocs, 3);
    // Regression test: `alloc` respected this flag only if a node was named.
    assert!(matches!(cache.alloc(Gfp::THIS_NODE), Err(AllocError::Memory(_))));
    let mut two_objects = [None; 2];
    assert!(cache.alloc_bulk(Gfp::THIS_NODE, &mut two_objects).is_err() && two_objects == [None; 2]);
    cache.alloc_bulk(Gfp::KERNEL, &mut two_objects).unwrap();
    used_blocks.extend(two_objects.into_iter().flatten());
    assert_eq!(cache.info().other_node_allocs, 5);
    // A freed object returns to its own node, on whatever CPU it is freed.
    on_cpu(1);
    // SAFETY: the objects were allocated above from this cache, and each is freed once.
    unsafe { cache.free_bulk(used_blocks) };
    let info = cache.info();
    assert_eq!((info.used, info.other_node_frees), (0, 2048));
    assert_all_memory_returned(&subsystem);
}

/// Three slabs of eight objects become full, partial and empty, step by step, while the CPU's magazine contains some of
/// the objects.
#[test]
fn slab_counts_follow_each_allocation_and_free() {
    let subsystem = subsystem(1);
    let walk = |magazines| {
        let cache = KmemCache::builder("o", 1024).magazines(magazines).build_in(&subsystem);
        let cache = cache.unwrap();
        assert_eq!(cache.geometry().objects(), 8);
        let row = || {
            let info = cache.info();
            [info.full, info.partial, info.empty, info.in_magazines]
        };
        let mut slabs = [(); 3].map(|()| cache.alloc_blocks(Gfp::KERNEL, 8).unwrap());
        let mut rows = vec![row()];
        slabs[1].pop();
        rows.push(row());
        slabs[1].clear();
        rows.push(row());
        slabs[1].push(cache.alloc_block(Gfp::KERNEL).unwrap());
        rows.push(row());
        rows
    };
    assert_eq!(walk(Magazines::Off), [[3, 0, 0, 0], [2, 1, 0, 0], [2, 0, 1, 0], [2, 1, 0, 0]]);
    // Objects in a magazine count as in use for their slab, so slabs see none of these steps.
    let two_rounds = Magazines::Sized { capacity: 8, stock: 0, depot_limit: 2 };
    assert_eq!(walk(two_rounds), [[3, 0, 0, 0], [3, 0, 0, 1], [3, 0, 0, 8], [3, 0, 0, 7]]);
}

/// Each wave of the simulated game allocates thirty enemies and then two hundred bullets; from the second wave on, no
/// operation reaches a slab.
#[test]
fn magazines_serve_the_game_workload_without_slab_access() {
    let subsystem = subsystem(1);
    let new_cache = |name, size| KmemCache::builder(name, size).build_in(&subsystem).unwrap();
    let (enemy_cache, bullet_cache) = (new_cache("enemy", 256), new_cache("bullet", 32));
    let wave = || {
        let wave: Vec<_> = (0..30).map(|_| enemy_cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
        drop((wave, (0..200).map(|_| bullet_cache.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>()));
    };
    let of_slabs = || [&enemy_cache, &bullet_cache].map(|cache| [cache.info().fills, cache.info().flushes]);
    wave();
    let first = of_slabs();
    assert!(first.iter().all(|[fills, _]| *fills > 0));
    (0..60).for_each(|_| wave());
    assert_eq!(of_slabs(), first);
    let info = bullet_cache.info();
    assert_eq!((info.allocs, info.frees), (61 * 200, 61 * 200));
    assert!(info.paths.share(Path::Cpu) > Some(0.95), "{info:?}");
}

/// Returns the level that served each operation, in order, according to the counts of `paths`.
fn classes<T>(paths: impl Fn() -> Paths, operations: impl IntoIterator<Item = T>) -> Vec<Path> {
    let mut before = paths();
    let path_counts = operations.into_iter().map(|is_done| {
        drop(is_done);
        let current_paths = paths();
        assert_eq!(current_paths.operations(), before.operations() + 1);
        let path = Path::ALL.into_iter().find(|path| current_paths.of(*path) > before.of(*path)).unwrap();
        before = current_paths;
        path
    });
    path_counts.collect()
}

/// The test has one CPU, magazines of four, and slabs of eight objects; the expected level of each operation was
/// derived by hand.
#[test]
fn operations_are_counted_by_the_level_serving_them() {
    use Path::{Commit, Cpu, Pages, Slab};
    let subsystem = subsystem(1);
    let four_rounds = Magazines::Sized { capacity: 4, stock: 0, depot_limit: 1 };
    let cache =
        KmemCache::builder("o", 1024).magazines(four_rounds).check_frees(false).build_in(&subsystem).unwrap();
    let paths = || cache.info().paths;
    let mut used_blocks = vec![];
    let mut alloc =
        |n: usize| classes(paths, (0..n).map(|_| used_blocks.push(cache.alloc_block(Gfp::KERNEL).unwrap())));
    // The operations take the first memory, the rest of the first slab, and a second slab, from the pages that the
    // first one left.
    let expected_allocs =
        [Commit, Cpu, Cpu, Cpu, Slab, Cpu, Cpu, Cpu, Pages, Cpu, Cpu, Cpu, Slab, Cpu, Cpu, Cpu];
    assert_eq!(alloc(16), expected_allocs);
    // The CPU's stack has room for two magazines. For the ninth object a magazine moves to the depot, which keeps one
    // and commits its first memory; for the thirteenth, another magazine is flushed to its slab.
    let freed = classes(paths, used_blocks.drain(..));
    let expected_frees = [Cpu, Cpu, Cpu, Cpu, Cpu, Cpu, Cpu, Cpu, Commit, Cpu, Cpu, Cpu, Slab, Cpu, Cpu, Cpu];
    assert_eq!(freed, expected_frees);
    let info = cache.info();
    assert_eq!((info.allocs, info.frees, info.paths.operations()), (16, 16, 32));
    assert_eq!(info.paths, Paths { cpu: 26, depot: 0, slab: 3, pages: 1, commit: 2 });
    // Prefilled objects count as operations when they leave the cache and when they return.
    let mut prefilled = cache.prefill(Gfp::KERNEL, 8).unwrap();
    let paths_before = paths();
    assert_eq!(
        paths_before,
        Paths { cpu: info.paths.cpu + 8, ..info.paths },
        "the objects from the CPU's stack"
    );
    used_blocks.extend((0..8).map(|_| prefilled.alloc_block().unwrap()));
    used_blocks.drain(..).for_each(|block| prefilled.free_block(block));
    assert_eq!(paths(), paths_before);
    drop(prefilled);
    assert_eq!(paths(), Paths { cpu: paths_before.cpu + 8, ..paths_before });
    cache.reap();
    cache.shrink();
    assert_eq!(paths().operations(), info.paths.operations() + 16);
    // Each of ten objects of one bulk call counts as taken from the slabs.
    let before = paths();
    drop(cache.alloc_blocks(Gfp::KERNEL, 10).unwrap());
    let new_paths = paths();
    assert_eq!(new_paths.operations() - before.operations(), 20);
    assert_eq!((new_paths.pages - before.pages, new_paths.commit), (10, before.commit));
    assert_all_memory_returned(&subsystem);
}

/// Without magazines, no operation counts as served above the slabs; a free that empties a surplus slab also counts as
/// a free of its pages. The first freed pages are pushed onto the CPU's stack of pages, whose memory must then be
/// committed.
#[test]
fn operations_without_magazines_lock_the_numa_node() {
    use Path::{Commit, Pages, Slab};
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("o", 2048).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    assert_eq!((cache.geometry().objects(), cache.info().min_partial), (8, 5));
    let mut used_blocks = vec![];
    let allocs = classes(
        || cache.info().paths,
        (0..56).map(|_| used_blocks.push(cache.alloc_block(Gfp::KERNEL).unwrap())),
    );
    for (slab, paths) in allocs.chunks(8).enumerate() {
        assert_eq!(paths[0], if slab == 0 { Commit } else { Pages });
        assert!(paths[1..].iter().all(|path| *path == Slab));
    }
    let frees = classes(|| cache.info().paths, used_blocks.drain(..));
    for (slab, paths) in frees.chunks(8).enumerate() {
        assert!(paths[..7].iter().all(|path| *path == Slab));
        assert_eq!(paths[7], [Slab, Slab, Slab, Slab, Commit, Pages, Pages][slab], "slab {slab}");
    }
}

/// Allocations of page blocks count by level: a block from the CPU's stack counts as `cpu`, a larger block as the
/// zone's, and a mapping as the system's.
#[test]
fn large_allocations_are_counted_by_the_serving_path() {
    use Path::{Commit, Cpu, Pages};
    let subsystem = subsystem(1);
    let large_paths = || subsystem.info().kmalloc_large.paths;
    let alloc = |bytes| subsystem.kmalloc().alloc_block(bytes, Gfp::KERNEL).unwrap();
    let mut used_blocks = vec![];
    let mut rows = vec![];
    for bytes in [16 << 10, 16 << 10, 1 << 20] {
        rows.extend(classes(
            large_paths,
            [()].map(|()| bytes).into_iter().map(|bytes| used_blocks.push(alloc(bytes))),
        ));
        rows.extend(classes(large_paths, used_blocks.drain(..)));
    }
    // The first block bypasses the CPU's stack, which is committed when the block is freed.
    assert_eq!(rows, [Commit, Commit, Cpu, Cpu, Pages, Pages]);
    let before = subsystem.info();
    let cache = KmemCache::builder("o", 64).build_in(&subsystem).unwrap();
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    let info = subsystem.info();
    assert_eq!(info.paths().operations(), before.paths().operations() + 2);
    assert_eq!(info.paths().operations(), info.caches.iter().map(|c| c.allocs + c.frees).sum::<u64>() + 6);
}

/// Regression test: kmalloc's 52 caches filled the tables and the Prometheus text with 1,234 series of zeros.
#[test]
fn caches_without_slabs_are_shown_only_on_request() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("inode", 640).build_in(&subsystem).unwrap();
    KmemCache::builder("none", 64).build_in(&subsystem).map(core::mem::forget).unwrap();
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    drop(subsystem.kmalloc().alloc_block(100, Gfp::KERNEL).unwrap());
    cache.shrink();
    let info = subsystem.info();
    let names = |table: &SlabInfo| table.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&info.slabinfo()), ["inode", "kmalloc-128"], "a cache that had a slab must be shown");
    assert_eq!((info.slabinfo(), info.slabinfo_all().rows.len()), (subsystem.slabinfo(), 54));
    let series = |text: String| text.lines().filter(|line| line.starts_with("uslab_cache_objects{")).count();
    assert_eq!(series(info.prometheus().to_string()), 2 * 5);
    assert_eq!(series(info.prometheus().all().to_string()), 54 * 5);
    // With statistics, the text has the same table, and the operations by path.
    let text = info.statistics().to_string();
    assert_eq!(text.parse().as_ref(), Ok(&info.slabinfo()));
    let row = text.lines().find(|line| line.starts_with("inode")).unwrap();
    // The first free commits the CPU's part of the region that has the stacks of both caches.
    assert!(row.ends_with(" : paths      0      0      0      0      2"), "{row}");
    let end =
        "# 4 allocations and frees: cpu 25.00 %, depot 0.00 %, slab 0.00 %, pages 25.00 %, commit 50.00 %\n";
    assert!(text.ends_with(end), "{text}");
}

/// Regression test: if the name of a cache began with `#`, its row was treated as a comment.
#[test]
fn slabinfo_keeps_cache_names_with_a_leading_hash() {
    let subsystem = subsystem(1);
    let caches = ["#queue", "#"].map(|name| KmemCache::builder(name, 64).build_in(&subsystem).unwrap());
    on_cpu(0);
    let _blocks = caches.each_ref().map(|cache| cache.alloc_block(Gfp::KERNEL).unwrap());
    let table = subsystem.info().slabinfo();
    assert_eq!(table.rows.len(), 2);
    assert_eq!(table.to_string().parse::<SlabInfo>(), Ok(table));
}

/// Regression test: the statistics counted a slab for which no memory was available.
#[test]
fn slab_peak_equals_the_maximum_number_of_slabs() {
    let subsystem = Subsystem::new(config(1, 1, 4 << 20)).unwrap();
    let cache = KmemCache::builder("peak", 1000).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    on_cpu(0);
    let used_blocks: Vec<_> = std::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    let max_slabs = cache.info().slabs;
    assert_eq!((max_slabs > 0, cache.info().slabs_peak), (true, max_slabs));
    drop(used_blocks);
    cache.shrink();
    let _block = cache.alloc_block(Gfp::KERNEL).unwrap();
    assert_eq!((cache.info().slabs, cache.info().slabs_peak), (1, max_slabs));
}

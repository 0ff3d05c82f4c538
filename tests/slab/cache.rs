//! Tests object caches through the public interface.

use crate::common::{self, READERS, assert_all_memory_returned, config, subsystem};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Arc;
use uslab::{
    AllocError, Block, Config, Gfp, KmallocKind, KmemCache, KmemCacheBuilder, Limit, Magazines, Mempool,
    ObjectCache, SizeClass, Subsystem,
};
use uslab_buddy::{Order, PAGE_SIZE};
use uslab_magazine::sync::Counter;
use uslab_magazine::sync::{AtomicUsize, Mutex, Ordering::Relaxed};
use uslab_magazine::{Mechanism, on_cpu};

fn fill(cache: &KmemCache) -> (Vec<Block<'_>>, AllocError) {
    let mut blocks = Vec::new();
    loop {
        match cache.alloc_block(Gfp::KERNEL) {
            Ok(block) => blocks.push(block),
            Err(error) => return (blocks, error),
        }
    }
}

#[test]
fn cache_at_its_limit_drains_magazines_of_another_cpu() {
    for magazines in
        [Magazines::BySize, Magazines::Off, Magazines::Sized { capacity: 3, stock: 2, depot_limit: 1 }]
    {
        let subsystem = subsystem(2);
        let cache = KmemCache::builder("inode", 200)
            .limit(Limit::Slabs(5))
            .magazines(magazines)
            .build_in(&subsystem)
            .unwrap();
        on_cpu(0);
        let (blocks, error) = fill(&cache);
        assert_eq!(error, AllocError::CacheLimit { slabs: 5 });
        let n = blocks.len();
        assert_eq!(n, 5 * cache.geometry().objects());
        drop(blocks);
        assert_eq!(cache.info().used, 0);
        on_cpu(1);
        let (blocks, _) = fill(&cache);
        assert_eq!(blocks.len(), n, "{magazines:?}: CPU 1 must get all objects that CPU 0 freed");
        subsystem.check().unwrap();
        drop(blocks);
    }
}

/// The destructors free other objects of the same cache, one per slab: while stacks are drained, while depots are
/// drained, and afterwards.
#[test]
fn free_during_cache_destruction_bypasses_magazines() {
    struct RemainingObjects(Vec<NonNull<u8>>, *const KmemCache);
    // SAFETY: any thread may use a cache, and its objects may be freed on any thread.
    unsafe impl Send for RemainingObjects {}
    on_cpu(0);
    let subsystem = subsystem(1);
    let remaining_objects = Arc::new(Mutex::new(RemainingObjects(vec![], std::ptr::null())));
    let (objects_to_free, calls) = (remaining_objects.clone(), Counter::new(0));
    let dtor = move |_: &mut [u8]| {
        calls.add(1);
        let next_object = if calls.get() % 16 == 0 { objects_to_free.lock().0.pop() } else { None };
        if let Some(object) = next_object {
            let cache = objects_to_free.lock().1;
            // SAFETY: the object was allocated below from the cache, which is alive, and is freed only here.
            unsafe { (*cache).free(object) };
        }
    };
    let small = Magazines::Sized { capacity: 16, stock: 2, depot_limit: 4 };
    let cache = KmemCache::builder("last", 2048).magazines(small).dtor(dtor).build_in(&subsystem).unwrap();
    let objects: Vec<_> = (0..12).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    drop(cache.alloc_blocks(Gfp::KERNEL, 1000).unwrap());
    *remaining_objects.lock() = RemainingObjects(objects, &raw const cache);
    let destroy_error = cache.destroy().unwrap_err();
    let remaining = std::mem::take(&mut remaining_objects.lock().0);
    assert!((1..12).contains(&remaining.len()), "some objects were freed concurrently: {remaining:?}");
    let info = cache.info();
    assert_eq!(
        (destroy_error.live, info.used, info.in_magazines, info.in_depot),
        (remaining.len() as u64, remaining.len() as u64, 0, 0)
    );
    // SAFETY: the objects were allocated above, and each is freed once.
    remaining.into_iter().for_each(|object| unsafe { cache.free(object) });
    assert_eq!(cache.destroy(), Ok(()));
}

/// The count includes slabs above `min_partial` that are freed when the magazines are emptied.
#[test]
fn shrink_returns_the_number_of_freed_slabs() {
    on_cpu(0);
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("large", 4096)
        .magazines(Magazines::Sized { capacity: 255, stock: 16, depot_limit: 16 })
        .build_in(&subsystem)
        .unwrap();
    let shrinks: [&dyn Fn() -> usize; 2] = [&|| cache.shrink(), &|| subsystem.shrink()];
    for shrink in shrinks {
        drop(cache.alloc_blocks(Gfp::KERNEL, 400).unwrap());
        let slabs = cache.info().slabs;
        assert!(slabs > 2 * cache.geometry().min_partial() as u64, "a flush must free most of {slabs} slabs");
        assert_eq!(shrink() as u64, slabs);
        assert_eq!(cache.info().slabs, 0);
    }
}

#[test]
fn allocation_without_memory_fails_without_a_leak() {
    let subsystem = Subsystem::new(config(2, 1, 4 << 20)).unwrap();
    let cache = KmemCache::builder("page", 4096).build_in(&subsystem).unwrap();
    let page_block = subsystem.pages().alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    let (blocks, error) = fill(&cache);
    assert!(matches!(error, AllocError::Memory(_)), "{error}");
    assert_eq!(blocks.len(), 1023, "every page must be in use");
    let info = cache.info();
    assert_eq!((info.failures, info.order_fallbacks), (1, 7), "the last slabs must have one page, not eight");
    assert_eq!(subsystem.check().unwrap().block_pages, 1);
    drop((blocks, page_block));
    assert_all_memory_returned(&subsystem);
}

/// The first attempt to allocate a slab makes less effort if the cache can fall back to a smaller order.
#[test]
fn slab_of_wanted_order_0_is_not_counted_as_a_fallback() {
    let subsystem = Subsystem::new(config(2, 1, 4 << 20)).unwrap();
    let cache = KmemCache::builder("small", 64).build_in(&subsystem).unwrap();
    assert_eq!(cache.geometry().order(), Order::ZERO);
    let page = |gfp| subsystem.pages().alloc_block(Order::ZERO, gfp, None).ok();
    let alloc_all = || std::iter::from_fn(|| page(Gfp::NORETRY)).collect::<Vec<_>>();
    on_cpu(1);
    let mut pages = alloc_all();
    pages.truncate(pages.len() - 1);
    on_cpu(0);
    pages.extend(alloc_all());
    assert!(page(Gfp::NORETRY).is_none());
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    assert_eq!(cache.info().order_fallbacks, 0);
}

#[test]
fn only_zero_on_free_caches_clear_their_slab_pages() {
    let subsystem = subsystem(1);
    on_cpu(0);
    for zeros in [false, true] {
        let cache = KmemCache::builder("small", 64).magazines(Magazines::Off);
        let cache = if zeros { cache.zero_on_free() } else { cache }.build_in(&subsystem).unwrap();
        let mut page = subsystem.pages().alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
        page.bytes_mut().fill(7);
        let first = page.bytes().as_ptr().addr();
        drop(page);
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        assert_eq!(object.addr().get() & !4095, first);
        // SAFETY: the object is the test's, and is freed once.
        unsafe {
            assert_eq!(object.read(), if zeros { 0 } else { 7 });
            cache.free(object);
        }
    }
}

#[test]
fn restartable_sequences_enable_the_inlined_allocation_path() {
    let subsystem = Subsystem::new(Config::default()).unwrap();
    let cache = KmemCache::builder("halves", 64).check_frees(false).build_in(&subsystem).unwrap();
    let inlined = (0..1000).filter(|_| {
        let first = cache.alloc_inlined(Gfp::KERNEL);
        let object = first.map_or_else(|| cache.alloc_missed(Gfp::KERNEL), Ok).unwrap();
        // SAFETY: the object was allocated just now.
        unsafe { cache.free(object) };
        first.is_some()
    });
    let sections = subsystem.cpus().mechanism() == Mechanism::Rseq;
    assert_eq!(inlined.count() > 0, sections);
}

#[test]
fn allocation_under_memory_pressure_frees_empty_slabs() {
    let subsystem = Subsystem::new(config(1, 1, 4 << 20)).unwrap();
    // Without magazines, freed objects stay in empty slabs, up to `min_partial` slabs.
    let idle = KmemCache::builder("idle", 2048).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    drop((0..64).map(|_| idle.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>());
    assert!(idle.info().empty > 0);
    let busy_cache = KmemCache::builder("busy", 4096).build_in(&subsystem).unwrap();
    let (blocks, _) = fill(&busy_cache);
    assert_eq!((blocks.len(), idle.info().slabs), (1024, 0));
    drop(blocks);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn allocated_objects_do_not_overlap() {
    let subsystem = subsystem(3);
    for (size, align) in [(8, 8), (24, 8), (100, 64), (700, 128), (3000, 8), (5000, 4096), (40_000, 32)] {
        let cache = KmemCache::builder("o", size).align(align).build_in(&subsystem).unwrap();
        // The number exceeds one slab; for the small objects, the bitmap is also outside the frame.
        let n = cache.geometry().objects() * 2 + 1;
        let mut blocks: Vec<_> = (0..n).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
        for (i, block) in blocks.iter_mut().enumerate() {
            assert!(block.address().addr().get().is_multiple_of(align), "size {size}");
            block.bytes_mut().fill(i as u8);
        }
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.bytes().iter().all(|byte| *byte == i as u8), "size {size}");
        }
        let addresses: HashSet<_> = blocks.iter().map(Block::address).collect();
        assert_eq!(addresses.len(), n);
        subsystem.check().unwrap();
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn empty_slab_beyond_min_partial_is_freed() {
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("o", 1024).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let per_slab = cache.geometry().objects();
    drop((0..per_slab * 30).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>());
    let info = cache.info();
    // The kernel's rule counts the slab itself, which was on the partial list.
    let kept_slabs = info.min_partial - 1;
    assert_eq!((info.slabs_made, info.slabs, info.empty), (30, kept_slabs, kept_slabs));
    assert_eq!(cache.shrink() as u64, kept_slabs);

    // A slab of one object becomes empty from full, without having been on a list that counts.
    let cache = KmemCache::builder("one", 40_000).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    drop((0..20).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>());
    let info = cache.info();
    assert_eq!((info.objs_per_slab, info.min_partial, info.empty), (1, 7, 7));
}

#[test]
fn allocations_fill_the_fullest_slabs_first() {
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("o", 512).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let per_slab = cache.geometry().objects();
    let mut slabs: Vec<Vec<_>> =
        (0..8).map(|_| (0..per_slab).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect()).collect();
    // One slab keeps one object, and each of the others loses one.
    slabs[0].truncate(1);
    slabs[1..].iter_mut().for_each(|slab| drop(slab.pop()));
    let reused: Vec<_> = (0..7).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert_eq!((cache.info().full, cache.info().partial), (7, 1), "the sparse slab must be unchanged");
    drop((reused, slabs));
}

#[test]
fn reap_empties_magazines_of_idle_cpus() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("o", 64).build_in(&subsystem).unwrap();
    let churn = |cpu| {
        on_cpu(cpu);
        drop((0..1000).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>());
    };
    churn(0);
    let info = cache.info();
    let cached_objects = info.in_magazines + info.in_depot;
    assert!(cached_objects > 100);
    let reaped: u64 = (0..4).map(|_| subsystem.reap()).sum();
    let info = cache.info();
    assert_eq!(
        (reaped, info.in_magazines + info.in_depot),
        (cached_objects, 0),
        "two idle intervals must free all objects"
    );

    churn(1);
    subsystem.drain_cpus(0..1);
    assert!(cache.info().in_magazines > 0);
    subsystem.drain_cpus(1..2);
    assert_eq!(cache.info().in_magazines, 0);
    subsystem.check().unwrap();
}

#[test]
fn bulk_allocation_is_all_or_nothing() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("o", 256).limit(Limit::Slabs(2)).build_in(&subsystem).unwrap();
    let max_objects = 2 * cache.geometry().objects();
    on_cpu(1);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    on_cpu(0);
    let mut outputs = vec![None; max_objects + 1];
    assert_eq!(cache.alloc_bulk(Gfp::KERNEL, &mut outputs), Err(AllocError::CacheLimit { slabs: 2 }));
    assert!(outputs.iter().all(Option::is_none));
    assert_eq!(cache.info().used, 0);
    subsystem.check().unwrap();

    outputs.pop();
    cache.alloc_bulk(Gfp::KERNEL | Gfp::ZERO, &mut outputs).unwrap();
    let objects: HashSet<_> = outputs.iter().flatten().copied().collect();
    assert_eq!((objects.len(), cache.info().used as usize), (max_objects, max_objects));
    subsystem.check().unwrap();
    // SAFETY: the objects were allocated above from this cache, and each is freed once.
    unsafe { cache.free_bulk(outputs.into_iter().flatten()) };
    assert_eq!(cache.info().used, 0);
    subsystem.check().unwrap();
    // Objects that this CPU holds come first.
    let (cached_objects, mut outputs) = (cache.info().in_magazines, [None; 2]);
    assert!(cached_objects >= 2);
    cache.alloc_bulk(Gfp::KERNEL, &mut outputs).unwrap();
    assert_eq!(cache.info().in_magazines, cached_objects - 2);
    // SAFETY: the objects were allocated above from this cache, and each is freed once.
    unsafe { cache.free_bulk(outputs.into_iter().flatten()) };
    // Old contents of the slice belong to the caller and are not freed.
    let block = cache.alloc_block(Gfp::KERNEL).unwrap();
    let mut outputs = vec![Some(block.address()); max_objects + 1];
    assert_eq!(cache.alloc_bulk(Gfp::KERNEL, &mut outputs), Err(AllocError::CacheLimit { slabs: 2 }));
    assert!(outputs.iter().all(Option::is_none));
    assert_eq!(cache.info().used, 1);
}

#[test]
fn cache_at_its_limit_takes_no_memory_from_other_caches() {
    for magazines in [Magazines::Off, Magazines::BySize] {
        let subsystem = subsystem(1);
        on_cpu(0);
        let idle = KmemCache::builder("idle", 1024).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        drop(idle.alloc_block(Gfp::KERNEL).unwrap());
        let cache = KmemCache::builder("full", 1024).magazines(magazines).limit(Limit::Slabs(1));
        let cache = cache.build_in(&subsystem).unwrap();
        let (blocks, error) = fill(&cache);
        assert_eq!(error, AllocError::CacheLimit { slabs: 1 });
        let info = cache.info();
        assert_eq!((info.allocs, info.frees, info.failures), (blocks.len() as u64, 0, 1), "{magazines:?}");
        assert_eq!(info.paths.operations(), info.allocs);
        assert_eq!(idle.info().slabs, 1, "the cache's empty slab");
        drop(blocks);
    }
}

#[test]
fn alloc_node_for_the_local_node_uses_magazines() {
    let subsystem = Subsystem::new(config(2, 2, 64 << 20)).unwrap();
    on_cpu(1);
    let cache = KmemCache::builder("o", 256).build_in(&subsystem).unwrap();
    drop(cache.alloc_blocks(Gfp::KERNEL, 20).unwrap());
    let cached_objects = cache.info().in_magazines;
    let object = cache.alloc_node(Gfp::KERNEL, 1).unwrap();
    assert_eq!(cache.info().in_magazines + 1, cached_objects);
    // SAFETY: the object was allocated just now, and is freed once.
    unsafe { cache.free(object) };
}

/// The oldest caches are kmalloc's caches, so the test also covers their objects.
#[test]
fn drain_of_offline_cpus_empties_every_cache() {
    let subsystem = subsystem(2);
    on_cpu(1);
    let last = KmemCache::builder("last", 64).build_in(&subsystem).unwrap();
    drop(last.alloc_block(Gfp::KERNEL).unwrap());
    for class in SizeClass::all() {
        for kind in KmallocKind::ALL {
            drop(subsystem.kmalloc().cache(kind, class).alloc_block(Gfp::KERNEL));
        }
    }
    let caches_with_magazines =
        || subsystem.info().caches.iter().filter(|cache| cache.in_magazines > 0).count();
    assert!(caches_with_magazines() > 2);
    subsystem.drain_cpus(1..2);
    assert_eq!(caches_with_magazines(), 0);
}

#[test]
fn constructor_panic_during_bulk_allocation_leaks_no_object() {
    let subsystem = subsystem(1);
    let calls = AtomicUsize::new(0);
    let cache = KmemCache::builder("o", 1000)
        .ctor(move |_| assert!(calls.fetch_add(1, Relaxed) < 40, "intended panic"))
        .build_in(&subsystem)
        .unwrap();
    let mut outputs = vec![None; 100];
    let result = uslab_magazine::sync::catch_panic(|| cache.alloc_bulk(Gfp::KERNEL, &mut outputs));
    assert!(result.is_err());
    assert!(cache.info().slabs > 0, "some objects had been constructed");
    assert!(outputs.iter().all(Option::is_none));
    assert_eq!(cache.info().used, 0);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn cache_info_distinguishes_used_from_cached_objects() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("o", 64).build_in(&subsystem).unwrap();
    on_cpu(0);
    let mut blocks: Vec<_> = (0..1000).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    blocks.truncate(300);
    let info = cache.info();
    assert_eq!((info.used, info.allocs, info.frees), (300, 1000, 700));
    assert!(info.in_magazines > 0);
    assert_eq!(info.objects, info.used + info.in_magazines + info.in_depot + info.free_in_slabs);
    let row = subsystem.slabinfo().rows.into_iter().find(|row| row.name == "o").unwrap();
    assert_eq!(
        row.active_objects,
        info.objects - info.free_in_slabs,
        "the kernel's table does not distinguish the caches"
    );
    let json = serde_json::to_value(subsystem.info()).unwrap();
    assert_eq!(json["caches"].as_array().unwrap().last().unwrap()["used"], 300);
    drop(blocks);
}

/// Returns a builder of caches that construct their objects either a slab at a time or one by one.
fn constructing_cache_builder(name: &str, size: usize, whole_slabs: bool) -> KmemCacheBuilder {
    let builder = KmemCache::builder(name, size);
    if whole_slabs { builder.construct_slabs() } else { builder }
}

#[test]
fn constructor_runs_once_for_each_object() {
    [false, true].into_iter().for_each(check_objects_are_constructed_once);
}
fn check_objects_are_constructed_once(whole_slabs: bool) {
    let subsystem = subsystem(1);
    // Reused pages are zeroed for the constructor.
    let dirty_cache = KmemCache::builder("dirty", 128).build_in(&subsystem).unwrap();
    let mut used_blocks: Vec<_> = (0..1000).map(|_| dirty_cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    used_blocks.iter_mut().for_each(|block| block.bytes_mut().fill(0xff));
    drop(used_blocks);
    drop(dirty_cache);
    let constructions = Arc::new(AtomicUsize::new(0));
    let constructions_seen = constructions.clone();
    let cache = constructing_cache_builder("o", 128, whole_slabs)
        .ctor(move |bytes| {
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(42);
            constructions_seen.fetch_add(1, Relaxed);
        })
        .dtor(|bytes| assert_eq!(*bytes, [42; 128]))
        .build_in(&subsystem)
        .unwrap();
    for _ in 0..100 {
        let block = cache.alloc_block(Gfp::ZERO).unwrap();
        assert_eq!(block.bytes()[0], 42, "constructed objects must not be zeroed again");
    }
    let info = cache.info();
    let expected = if whole_slabs { info.objects } else { 1 };
    assert_eq!((constructions.load(Relaxed) as u64, info.constructed), (expected, expected));
    // Objects that a shrink has destructed are constructed again, from zeroed memory.
    let objects = cache.alloc_blocks(Gfp::KERNEL, info.objects as usize).unwrap();
    assert_eq!(cache.info().constructed, info.objects);
    let mut kept_objects = objects;
    kept_objects.truncate(2);
    cache.shrink();
    assert_eq!(cache.info().destructed, if whole_slabs { 0 } else { info.objects - 2 });
    let reused = cache.alloc_blocks(Gfp::KERNEL, info.objects as usize - 2).unwrap();
    assert!(reused.iter().all(|block| block.bytes()[127] == 42));
    assert_eq!(cache.info().constructed - cache.info().destructed, info.objects);
    subsystem.check().unwrap();
}

#[test]
fn constructor_panic_leaks_nothing() {
    for (magazines, whole_slabs) in [
        (Magazines::BySize, false),
        (Magazines::Off, false),
        (Magazines::BySize, true),
        (Magazines::Off, true),
    ] {
        let subsystem = subsystem(1);
        let calls = AtomicUsize::new(0);
        let cache = constructing_cache_builder("o", 1000, whole_slabs)
            .magazines(magazines)
            .ctor(move |_| assert_ne!(calls.fetch_add(1, Relaxed) % 20, 10, "intended panic"))
            .build_in(&subsystem)
            .unwrap();
        let mut blocks = Vec::new();
        let mut panics = 0;
        while blocks.len() < 100 {
            match uslab_magazine::sync::catch_panic(|| cache.alloc_block(Gfp::KERNEL).unwrap()) {
                Ok(block) => blocks.push(block),
                Err(panic) => {
                    assert!(panic.downcast_ref::<String>().unwrap().contains("intended panic"));
                    panics += 1;
                }
            }
            subsystem.check().unwrap();
        }
        assert!(panics > 1);
        drop(blocks);
        assert_all_memory_returned(&subsystem);
    }
}

#[test]
fn destroy_is_refused_while_objects_are_in_use() {
    let subsystem = subsystem(2);
    let cache = KmemCache::builder("o", 64).build_in(&subsystem).unwrap();
    on_cpu(1);
    let block = cache.alloc_block(Gfp::KERNEL).unwrap();
    on_cpu(0);
    assert_eq!(cache.destroy().unwrap_err().to_string(), "1 objects are in use");
    let mut live_blocks = vec![];
    live_blocks.extend(cache.live().iter());
    assert_eq!(live_blocks, [block.address()]);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    drop(block);
    cache.destroy().unwrap();
    assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::Destroyed));
    assert_eq!(cache.alloc_bulk(Gfp::KERNEL, &mut [None; 3]), Err(AllocError::Destroyed));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn dropped_cache_is_reported_until_its_last_free() {
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("left", 64).build_in(&subsystem).unwrap();
    let objects = [(); 2].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
    drop(cache);
    let remaining = || subsystem.info().caches.into_iter().find(|cache| cache.name == "left");
    for (i, object) in objects.into_iter().enumerate() {
        assert_eq!(remaining().unwrap().used, 2 - i as u64);
        // SAFETY: the object was allocated above, and is freed once; objects in use keep their cache.
        unsafe { subsystem.kmalloc().free(object) };
    }
    assert!(remaining().is_none());
    assert_eq!(subsystem.check().unwrap().slabs, 0);

    drop(KmemCache::builder("dropped", 64).build_in(&subsystem).unwrap());
    assert!(!subsystem.info().caches.iter().any(|cache| cache.name == "dropped"));
}

#[test]
fn refused_destroy_reopens_the_magazines() {
    let subsystem = subsystem(1);
    on_cpu(0);
    let cache = KmemCache::builder("busy", 64).build_in(&subsystem).unwrap();
    let block = cache.alloc_block(Gfp::KERNEL).unwrap();
    assert!(cache.destroy().is_err());
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    assert!(cache.info().in_magazines > 0);
    drop(block);
    cache.destroy().unwrap();
}

/// The cache is dropped while one of its objects is in use; the object stays in use long after that.
#[test]
fn dropping_a_cache_does_not_expedite_its_deferred_frees() {
    let _readers = READERS.lock();
    let subsystem = subsystem(1);
    on_cpu(0);
    let cache = KmemCache::builder("left", 1000).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let count = 3 * cache.geometry().objects();
    let mut objects: Vec<_> = (0..count).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.drain(2..).for_each(|object| unsafe { cache.free(object) });
    assert_eq!(cache.info().slabs, 3, "empty slabs must stay on the node");
    drop(cache);
    let remaining = || subsystem.info().caches.into_iter().find(|cache| cache.name == "left");
    assert_eq!(remaining().unwrap().slabs, 1);
    let node = KmemCache::builder("node", 64).build_in(&subsystem).unwrap();
    let object = node.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { node.free_deferred(object) };
    for object in objects {
        assert!(remaining().is_some());
        // SAFETY: the object was allocated above, and is freed once; objects in use keep their cache.
        unsafe { subsystem.kmalloc().free(object) };
        (0..1000).for_each(|_| uslab::rcu::advance());
        assert_eq!(node.info().deferred, 1, "the object is in an incomplete batch");
    }
    assert!(remaining().is_none());
}

#[test]
fn freed_objects_return_to_their_numa_node() {
    let subsystem = Subsystem::new(config(4, 2, 64 << 20)).unwrap();
    let cache = KmemCache::builder("o", 256).build_in(&subsystem).unwrap();
    let node = |block: &Block<'_>| {
        let pages = subsystem.pages();
        pages.node_of(pages.pfn_of(block.address().as_ptr()).unwrap())
    };
    on_cpu(0);
    let near_blocks: Vec<_> = (0..100).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert!(near_blocks.iter().all(|block| node(block) == 0));
    on_cpu(3);
    let far_blocks: Vec<_> = (0..100).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert!(far_blocks.iter().all(|block| node(block) == 1));
    // Objects freed on the wrong node do not stay there.
    drop(near_blocks);
    assert_eq!(cache.info().other_node_frees, 100);
    let reused: Vec<_> = (0..200).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    assert!(reused.iter().all(|block| node(block) == 1));
    drop((far_blocks, reused));

    let object = cache.alloc_node(Gfp::THIS_NODE, 0).unwrap();
    let pages = subsystem.pages();
    assert_eq!(pages.node_of(pages.pfn_of(object.as_ptr()).unwrap()), 0);
    // SAFETY: the object was allocated just now, and is freed once.
    unsafe { cache.free(object) };
    assert!(matches!(cache.alloc_node(Gfp::KERNEL, 2), Err(AllocError::Memory(_))), "node 2 does not exist");
    subsystem.check().unwrap();
    assert_all_memory_returned(&subsystem);
}

#[test]
fn full_numa_node_falls_back_to_another_node() {
    let subsystem = Subsystem::new(config(2, 2, 16 << 20)).unwrap();
    let cache = KmemCache::builder("page", 4096).build_in(&subsystem).unwrap();
    on_cpu(0);
    let (blocks, _) = fill(&cache);
    assert_eq!(blocks.len(), 4096, "the pages of both nodes");
    let strict = cache.alloc_node(Gfp::THIS_NODE, 0);
    assert!(matches!(strict, Err(AllocError::Memory(_))));
    drop(blocks);
    cache.shrink();

    // Objects that another node lent do not stay in the magazines of the node that used them.
    let near_blocks: Vec<_> = core::iter::from_fn(|| cache.alloc_node(Gfp::THIS_NODE, 0).ok()).collect();
    on_cpu(1);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    let kept_objects = cache.info().in_magazines;
    on_cpu(0);
    let far_block = cache.alloc_block(Gfp::KERNEL).unwrap();
    assert!(near_blocks.len() == 2048 && kept_objects > 0);
    assert_eq!(cache.info().in_magazines, kept_objects, "the helper must keep its objects");
    drop(far_block);
    // SAFETY: the objects were allocated above, and each is freed once.
    unsafe { cache.free_bulk(near_blocks) };
    assert_all_memory_returned(&subsystem);
}

#[test]
fn concurrent_threads_on_real_cpus_lose_no_object() {
    let subsystem = Subsystem::new(uslab::Config { check_frees: true, ..uslab::Config::default() }).unwrap();
    let cache = KmemCache::builder("shared", 96).build_in(&subsystem).unwrap();
    let (send, receive) = std::sync::mpsc::channel::<Vec<Block<'_>>>();
    std::thread::scope(|scope| {
        for seed in 0..3_u8 {
            let (send, cache) = (send.clone(), &cache);
            scope.spawn(move || {
                for round in 0..200_u32 {
                    let blocks = (0..50).map(|_| {
                        let mut block = cache.alloc_block(Gfp::KERNEL).unwrap();
                        block.bytes_mut().fill(seed ^ round as u8);
                        block
                    });
                    let blocks: Vec<_> = blocks.collect();
                    assert!(
                        blocks.iter().all(|block| block.bytes().iter().all(|b| *b == seed ^ round as u8))
                    );
                    if round % 3 == 0 {
                        send.send(blocks).unwrap();
                    }
                    if round % 50 == 0 {
                        cache.shrink();
                    }
                }
            });
        }
        drop(send);
        // The objects are freed here, on another thread than the allocating one.
        scope.spawn(move || receive.into_iter().for_each(drop));
    });
    let info = cache.info();
    assert_eq!((info.used, info.allocs), (0, 3 * 200 * 50));
    subsystem.check().unwrap();
    assert_all_memory_returned(&subsystem);
}

/// The destructor must free the constructor's memory, once per object, on every path on which slabs are freed.
#[test]
fn freeing_a_slab_destructs_each_object_once() {
    on_cpu(0);
    for destroy_method in ["shrink", "destroy", "drop", "last free"] {
        check_objects_are_destructed_once(destroy_method, false);
        check_objects_are_destructed_once(destroy_method, true);
    }
}
fn check_objects_are_destructed_once(destroy_method: &str, whole_slabs: bool) {
    let subsystem = subsystem(2);
    let other_cache = KmemCache::builder("other", 32).build_in(&subsystem).unwrap();
    let (constructions, destructions) = (Arc::new(Counter::new(0)), Arc::new(Counter::new(0)));
    let (constructed, destructed) = (constructions.clone(), destructions.clone());
    let cache = constructing_cache_builder("inode", 200, whole_slabs)
        .ctor(move |inode| {
            inode[199] = 7;
            constructed.add(1);
        })
        .dtor(move |inode| {
            assert_eq!(
                (inode.len(), inode[0], inode[199]),
                (200, 1, 7),
                "the object must be unchanged since its last use"
            );
            // The destructor may allocate, because no lock and no CPU's region is held here.
            drop(other_cache.alloc_block(Gfp::KERNEL).unwrap());
            destructed.add(1);
        })
        .build_in(&subsystem)
        .unwrap();
    let objects: Vec<_> =
        (0..cache.geometry().objects()).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    for object in &objects {
        // SAFETY: this test owns the objects.
        unsafe { object.write(1) };
    }
    assert_eq!((constructions.get(), destructions.get()), (objects.len() as u64, 0));
    let (last, other_objects) = objects.split_first().unwrap();
    // SAFETY: the objects were allocated above, and each is freed once.
    other_objects.iter().for_each(|object| unsafe { cache.free(*object) });
    let freed_objects = if whole_slabs { 0 } else { other_objects.len() as u64 };
    assert_eq!(
        (cache.shrink(), destructions.get()),
        (0, freed_objects),
        "{destroy_method}: an object in use must keep its slab"
    );
    if destroy_method != "last free" {
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(*last) };
        assert_eq!(destructions.get(), freed_objects, "{destroy_method}: a free object stays constructed");
    }
    match destroy_method {
        "shrink" => assert_eq!(cache.shrink(), 1),
        "destroy" => cache.destroy().unwrap(),
        "drop" => drop(cache),
        _ => {
            let mut kept_block = cache.alloc_block(Gfp::KERNEL).unwrap();
            kept_block.bytes_mut()[0] = 1;
            assert!(cache.destroy().is_err() && destructions.get() == freed_objects);
            drop(kept_block);
            // SAFETY: the object was allocated above, and is freed once.
            unsafe { cache.free(*last) };
            drop(cache);
        }
    }
    assert_eq!(destructions.get(), constructions.get(), "{destroy_method}");
    subsystem.check().unwrap();
}

#[test]
fn constructor_error_leaks_nothing() {
    [false, true].into_iter().for_each(check_refused_allocations_leak_nothing);
}
fn check_refused_allocations_leak_nothing(whole_slabs: bool) {
    on_cpu(0);
    let subsystem = subsystem(2);
    let (remaining, constructions, destructions) =
        (Arc::new(Counter::new(5)), Arc::new(Counter::new(0)), Arc::new(Counter::new(0)));
    let (memory, constructed, destructed) = (remaining.clone(), constructions.clone(), destructions.clone());
    let cache = constructing_cache_builder("inode", 200, whole_slabs)
        // The destructor is set before the constructor: setting one keeps the other.
        .dtor(move |_| destructed.add(1))
        .try_ctor(move |_| {
            let is_expected = memory.get() > 0;
            if is_expected {
                memory.sub(1);
                constructed.add(1);
            }
            is_expected
        })
        .build_in(&subsystem)
        .unwrap();
    // Five objects can be constructed one by one.
    let old_rows: Vec<_> =
        (0..if whole_slabs { 0 } else { 5 }).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    let alloc_error = cache.alloc(Gfp::KERNEL).unwrap_err();
    assert_eq!(
        (alloc_error, alloc_error.to_string().as_str()),
        (AllocError::Constructor, "the constructor of an object failed")
    );
    assert_eq!(cache.alloc_bulk(Gfp::KERNEL, &mut [None; 3]), Err(AllocError::Constructor));
    drop(old_rows);
    cache.shrink();
    assert_eq!((constructions.get(), destructions.get()), (5, 5));
    assert_eq!((cache.info().slabs, cache.info().constructed, cache.info().destructed), (0, 5, 5));
    subsystem.check().unwrap();
    // The constructor succeeds from here on.
    remaining.set(1000);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    cache.destroy().unwrap();
    assert_eq!(constructions.get(), destructions.get());
    subsystem.check().unwrap();
}

#[test]
fn invalid_cache_configurations_are_errors() {
    let subsystem = subsystem(1);
    let error = |name: &str, size, align| {
        KmemCache::builder(name, size).align(align).build_in(&subsystem).unwrap_err().to_string()
    };
    assert_eq!(error("", 8, 8), "a cache name must not be empty or contain blanks");
    assert_eq!(error("a b", 8, 8), "a cache name must not be empty or contain blanks");
    assert_eq!(error("o", 0, 8), "an object of 0 bytes");
    assert_eq!(error("o", 8, 24), "alignment 24 is not a power of two");
    assert_eq!(error("o", 5 << 20, 8), "an object of 5242880 bytes; the largest block has 4194304");
    let builder_error =
        KmemCache::builder("o", 8).ctor(|_| ()).zero_on_free().build_in(&subsystem).unwrap_err();
    assert_eq!(builder_error.to_string(), "objects of a cache with a constructor cannot be zeroed on free");
    let builder_error =
        KmemCache::builder("o", 8).dtor(|_| ()).zero_on_free().build_in(&subsystem).unwrap_err();
    assert_eq!(builder_error, uslab::CacheError::ZeroOnFree);
    let account = uslab::cache::Account::new_in(&common::subsystem(1), 1 << 20);
    let account_error = KmemCache::builder("o", 8).account(&account).build_in(&subsystem).unwrap_err();
    assert_eq!(account_error.to_string(), "the account and the cache belong to different subsystems");
}

#[test]
fn impossible_bulk_size_is_an_error() {
    let subsystem = subsystem(1);
    let new_cache = |name: &str| KmemCache::builder(name, 64).build_in(&subsystem).unwrap();
    let typed = ObjectCache::builder("typed").ctor(|| [0_u8; 64]).build_in(&subsystem).unwrap();
    let zero_sized = ObjectCache::builder("zero-sized").ctor(|| ()).build_in(&subsystem).unwrap();
    let (cache, pages) = (new_cache("cache"), subsystem.pages().frames().len() as usize);
    let mut prefilled = cache.prefill(Gfp::KERNEL, 0).unwrap();
    for n in [pages * PAGE_SIZE / 64 + 1, 1 << 40, usize::MAX >> 8, isize::MAX as usize, usize::MAX] {
        assert_eq!(typed.alloc_bulk(n).err(), Some(AllocError::TooLarge), "{n}");
        assert_eq!(typed.prefill(n).err(), Some(AllocError::TooLarge), "{n}");
        assert_eq!(cache.alloc_blocks(Gfp::KERNEL, n).err(), Some(AllocError::TooLarge), "{n}");
        assert_eq!(cache.prefill(Gfp::KERNEL, n).err(), Some(AllocError::TooLarge), "{n}");
        assert_eq!(prefilled.refill(n), Err(AllocError::TooLarge), "{n}");
        assert_eq!(Mempool::new(new_cache("mempool"), n).err(), Some(AllocError::TooLarge), "{n}");
    }
    assert_eq!(zero_sized.alloc_bulk(usize::MAX).err(), Some(AllocError::TooLarge));
    drop(prefilled);
    // The request is refused without an attempt, and counted.
    assert_eq!((typed.info().slabs_made, cache.info().slabs_made), (0, 0));
    assert_eq!((typed.info().failures, cache.info().failures), (10, 15));

    let limited = KmemCache::builder("limited", 64).limit(Limit::Slabs(2)).build_in(&subsystem).unwrap();
    let max_objects = 2 * limited.geometry().objects();
    let error = Some(AllocError::CacheLimit { slabs: 2 });
    assert_eq!(limited.alloc_blocks(Gfp::KERNEL, max_objects + 1).err(), error);
    assert_eq!(limited.alloc_bulk(Gfp::KERNEL, &mut vec![None; max_objects + 1]).err(), error);
    assert_eq!(limited.info().slabs_made, 0);
    assert_eq!(limited.alloc_blocks(Gfp::KERNEL, max_objects).unwrap().len(), max_objects);
    let pool = Mempool::new(limited, max_objects).unwrap();
    assert_eq!(pool.reserve(), (max_objects, max_objects));
    assert_eq!(typed.alloc_bulk(1000).unwrap().len(), 1000);
}

#[test]
fn extreme_cache_builder_values_cause_no_panic() {
    let subsystem = subsystem(1);
    let shorts = [0, 1, u16::MAX];
    for (capacity, stock) in shorts.iter().flat_map(|a| shorts.map(|b| (*a, b))) {
        for depot_limit in [0, 1, u32::MAX] {
            let magazines = Magazines::Sized { capacity, stock, depot_limit };
            // This many magazines need a range of addresses, which may be refused.
            let cache_result = KmemCache::builder("sized", 64).magazines(magazines).build_in(&subsystem);
            assert!(
                cache_result.is_ok() || capacity.max(stock) > 1 || depot_limit > 1,
                "{magazines:?}: {cache_result:?}"
            );
            if let Ok(cache) = cache_result {
                drop(cache.alloc_blocks(Gfp::KERNEL, 300).unwrap());
            }
        }
    }
    for limit in [Limit::Slabs(u32::MAX), Limit::Objects(u64::MAX), Limit::Bytes(u64::MAX)] {
        let cache = KmemCache::builder("limited", 64).limit(limit).build_in(&subsystem).unwrap();
        drop(cache.alloc_blocks(Gfp::KERNEL, 300).unwrap());
    }
    for limit in [Limit::Slabs(0), Limit::Objects(0), Limit::Bytes(0)] {
        let cache = KmemCache::builder("limited", 64).limit(limit).build_in(&subsystem).unwrap();
        assert!(cache.alloc(Gfp::KERNEL).is_err() && cache.alloc_blocks(Gfp::KERNEL, 1).is_err());
    }
    subsystem.shrink();
    subsystem.check().unwrap();
}

#[test]
fn equal_mergeable_builders_share_a_cache() {
    let subsystem = subsystem(1);
    let builder_of = |name: &str, size| KmemCache::builder(name, size).merge();
    let first = builder_of("first", 192).build_in(&subsystem).unwrap();
    let second = builder_of("second", 190).build_in(&subsystem).unwrap();
    let separate_caches = [
        KmemCache::builder("not-asked", 192).build_in(&subsystem).unwrap(),
        builder_of("larger", 200).build_in(&subsystem).unwrap(),
        builder_of("smaller", 184).build_in(&subsystem).unwrap(),
        builder_of("aligned", 192).align(128).build_in(&subsystem).unwrap(),
        builder_of("limited", 192).limit(Limit::Slabs(3)).build_in(&subsystem).unwrap(),
        builder_of("constructed", 192).ctor(|_| ()).build_in(&subsystem).unwrap(),
        builder_of("reclaimable", 192).reclaimable().build_in(&subsystem).unwrap(),
        builder_of("other-magazines", 192).magazines(Magazines::Off).build_in(&subsystem).unwrap(),
    ];
    assert!(
        separate_caches.iter().all(|cache| cache.info().aliases == 0 && cache.info().name == cache.name())
    );
    assert_eq!((first.name(), second.name()), ("first", "second"));
    assert_eq!((second.info().name.as_str(), second.info().aliases), ("first", 1));
    let block = second.alloc_block(Gfp::KERNEL).unwrap();
    assert_eq!(first.info().used, 1);
    let error = first.destroy().unwrap_err();
    assert_eq!((error.live, error.aliases), (1, 1));
    assert_eq!(error.to_string(), "1 objects are in use, and 1 other owners share the cache");
    // The first handle may be dropped before the handle that shares the cache.
    drop(first);
    assert_eq!(second.destroy().unwrap_err().aliases, 0);
    drop(block);
    second.destroy().unwrap();
    drop(second);
    // A destroyed cache is no longer shared.
    let third_cache = builder_of("third", 192).build_in(&subsystem).unwrap();
    drop(third_cache.alloc_block(Gfp::KERNEL).unwrap());
    assert_eq!((third_cache.info().name.as_str(), third_cache.info().aliases), ("third", 0));
    drop((third_cache, separate_caches));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn concurrent_sharing_and_dropping_loses_no_cache() {
    let subsystem = subsystem(2);
    let (shared, start_barrier) = (Counter::new(0), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (subsystem, shared, start_barrier) = (&subsystem, &shared, &start_barrier);
            scope.spawn(move || {
                on_cpu(cpu);
                for round in 0..300 {
                    start_barrier.wait();
                    let cache =
                        KmemCache::builder(format!("c{round}"), 64).merge().build_in(subsystem).unwrap();
                    start_barrier.wait();
                    let blocks = cache.alloc_blocks(Gfp::KERNEL, 5).unwrap();
                    let aliases = cache.info().aliases;
                    assert!(aliases <= 1);
                    shared.add(aliases);
                    drop(blocks);
                }
            });
        }
    });
    assert!(shared.get() > 0, "two constructors ran simultaneously");
    assert!(
        subsystem
            .info()
            .caches
            .iter()
            .all(|cache| cache.name.starts_with("kmalloc") || cache.name.starts_with("dma"))
    );
    assert_all_memory_returned(&subsystem);
}

/// Regression test: a cache that was dropped while another thread reaped it counted as a cache with objects in use, so
/// it leaked.
#[test]
fn cache_dropped_during_a_reap_is_freed() {
    let _readers = READERS.lock();
    let subsystem = subsystem(2);
    let is_done = Counter::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_cpu(1);
            while is_done.get() == 0 {
                subsystem.reap();
                subsystem.drain_cpus(0..2);
            }
        });
        on_cpu(0);
        for _ in 0..60000 {
            let cache = KmemCache::builder("temporary", 64).build_in(&subsystem).unwrap();
            drop(cache.alloc_blocks(Gfp::KERNEL, 40).unwrap());
        }
        is_done.add(1);
    });
    let remaining = || subsystem.info().caches.iter().filter(|cache| cache.name == "temporary").count();
    for _ in 0..10_000 {
        if remaining() == 0 {
            break;
        }
        uslab::rcu::advance();
    }
    assert_eq!(remaining(), 0);
    assert_all_memory_returned(&subsystem);
}

/// Regression test: if one cache was dropped, a concurrent report, reap or drain skipped another cache that was live.
#[test]
fn concurrent_cache_drops_hide_no_cache_from_reports_or_drains() {
    let subsystem = subsystem(2);
    for _ in 0..20 {
        let destructions: Vec<_> = (0..150)
            .map(|i| KmemCache::builder(format!("gone-{i}"), 64).build_in(&subsystem).unwrap())
            .collect();
        let kept_cache = KmemCache::builder("stays", 64).build_in(&subsystem).unwrap();
        let is_done = Counter::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(1);
                drop(destructions);
                is_done.add(1);
            });
            on_cpu(0);
            while is_done.get() == 0 {
                // While drains of the other cache have taken this CPU's stacks, a free bypasses them.
                while kept_cache.info().in_magazines == 0 {
                    drop(kept_cache.alloc_block(Gfp::KERNEL).unwrap());
                }
                assert!(subsystem.slabinfo().get("stays").is_some());
                assert!(subsystem.info().caches.iter().any(|cache| cache.name == "stays"));
                subsystem.drain_cpus(0..2);
                assert_eq!(kept_cache.info().in_magazines, 0, "drained");
            }
        });
    }
}

/// Regression test: a builder with an equal description shared the destroyed cache, so its allocations never succeeded.
#[test]
fn builder_does_not_share_a_destroyed_cache() {
    let subsystem = subsystem(1);
    let build = || KmemCache::builder("merged", 64).merge().build_in(&subsystem).unwrap();
    let destroyed = build();
    destroyed.destroy().unwrap();
    let cache = build();
    let block = cache.alloc_block(Gfp::KERNEL).unwrap();
    assert!(cache.destroy().is_err(), "an object is in use");
    let shared = build();
    assert_eq!((shared.info().aliases, cache.destroy().unwrap_err().aliases), (1, 1));
    drop((shared, block));
    cache.destroy().unwrap();
    assert_eq!(destroyed.info().aliases, 0);
    drop((destroyed, cache));
    assert_all_memory_returned(&subsystem);
}

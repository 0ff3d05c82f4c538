//! Tests kmalloc, which serves memory of any size.

use crate::common::{assert_all_memory_returned, config, subsystem};
use core::alloc::Layout;
use proptest::prelude::*;
use std::collections::BTreeMap;
use uslab::{AllocError, Block, Gfp, KmallocKind, KmemCache, Magazines, SizeClass, Subsystem, ZERO_SIZE};
use uslab_buddy::{Order, PageConfig, ZoneKind};
use uslab_magazine::{Cpus, on_cpu};

/// Regression test: freeing memory on a node without CPUs panicked.
#[test]
fn numa_node_without_cpus_can_serve_allocations() {
    let mut config = config(2, 2, 0);
    let nodes = vec![vec![(ZoneKind::Normal, 4096)]; 3];
    config.pages = PageConfig::with_nodes(Cpus::simulated(2, 2).unwrap(), nodes);
    let subsystem = Subsystem::new(config).unwrap();
    let cache = KmemCache::builder("far", 200).build_in(&subsystem).unwrap();
    on_cpu(0);
    for _ in 0..100 {
        let remote_object = cache.alloc_node(Gfp::THIS_NODE, 2).unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(remote_object) };
    }
    cache.shrink();
    cache.destroy().unwrap();
    assert_eq!(subsystem.check().unwrap().objects, 0);
}

#[test]
fn kmalloc_caches_are_named_as_in_linux() {
    let mut config = config(1, 1, 0);
    config.pages = PageConfig::with_nodes(
        Cpus::simulated(1, 1).unwrap(),
        vec![vec![(ZoneKind::Dma, 4096), (ZoneKind::Normal, 16384)]],
    );
    let subsystem = Subsystem::new(config).unwrap();
    let kmalloc = subsystem.kmalloc();
    let rows = subsystem.info().slabinfo_all().rows;
    assert_eq!(rows.len(), 52);
    for name in ["kmalloc-8", "kmalloc-1k", "kmalloc-rcl-96", "kmalloc-cg-8k", "dma-kmalloc-192"] {
        assert!(rows.iter().any(|row| row.name == name), "{name}");
    }
    let name =
        |gfp: Gfp, size| kmalloc.cache(KmallocKind::of(gfp), SizeClass::for_size(size).unwrap()).name();
    assert_eq!(name(Gfp::KERNEL, 90), "kmalloc-96");
    assert_eq!(name(Gfp::RECLAIMABLE, 2048), "kmalloc-rcl-2k");
    assert_eq!(name(Gfp::RECLAIMABLE | Gfp::DMA, 8), "dma-kmalloc-8");
    let object = kmalloc.alloc(8, Gfp::DMA).unwrap();
    let pages = subsystem.pages();
    assert_eq!(pages.zone_of(pages.pfn_of(object.as_ptr()).unwrap()), ZoneKind::Dma);
    let accounted = kmalloc.alloc_of(KmallocKind::Accounted, 8, Gfp::KERNEL).unwrap();
    assert_eq!(subsystem.check().unwrap().used, 2);
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe {
        kmalloc.free(object);
        kmalloc.free(accounted);
    }
}

#[test]
fn kmalloc_of_size_zero_succeeds() {
    let subsystem = subsystem(1);
    let kmalloc = subsystem.kmalloc();
    let empty_memory = kmalloc.alloc(0, Gfp::KERNEL).unwrap();
    assert_eq!(empty_memory, ZERO_SIZE);
    // SAFETY: a block of size 0 may be freed.
    unsafe {
        assert_eq!(kmalloc.usable_size(empty_memory), 0);
        kmalloc.free(empty_memory);
    }
    let block = kmalloc.alloc_block(0, Gfp::KERNEL).unwrap();
    assert!(block.bytes().is_empty());
    drop(block);
    let aligned = kmalloc.alloc_layout(Layout::from_size_align(0, 64).unwrap(), Gfp::KERNEL).unwrap();
    assert!(aligned.addr().get().is_multiple_of(64));
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { kmalloc.free(aligned) };
    assert_eq!(subsystem.check().unwrap().used, 0);
}

#[test]
fn bytes_added_by_kmalloc_rounding_are_usable() {
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("odd", 100).build_in(&subsystem).unwrap();
    let (size, stride) = (cache.geometry().object_size(), cache.geometry().stride());
    assert!(size == 100 && stride > size);
    let block = cache.alloc_block(Gfp::KERNEL).unwrap();
    // SAFETY: the block was allocated above, and is in use.
    assert_eq!(unsafe { subsystem.kmalloc().usable_size(block.address()) }, stride);
}

#[test]
fn kmalloc_sizes_that_overflow_are_errors() {
    let subsystem = subsystem(1);
    let kmalloc = subsystem.kmalloc();
    assert_eq!(kmalloc.alloc_array(usize::MAX / 2, 3, Gfp::KERNEL), Err(AllocError::TooLarge));
    assert_eq!(kmalloc.alloc((4 << 20) + 1, Gfp::KERNEL), Err(AllocError::TooLarge));
    assert_eq!(kmalloc.alloc(usize::MAX, Gfp::KERNEL), Err(AllocError::TooLarge));
    let array = kmalloc.alloc_array(100, 7, Gfp::ZERO).unwrap();
    // SAFETY: 700 bytes are allocated and zeroed; freed once.
    unsafe {
        assert_eq!(kmalloc.usable_size(array), 1024);
        assert!(core::slice::from_raw_parts(array.as_ptr(), 700).iter().all(|byte| *byte == 0));
        kmalloc.free(array);
    }
}

#[test]
fn kmalloc_zeroes_reused_memory_on_request() {
    let subsystem = subsystem(1);
    for size in [8, 96, 1000, 8192, 8193, 100_000] {
        for _ in 0..3 {
            let mut block = subsystem.kmalloc().alloc_block(size, Gfp::ZERO).unwrap();
            assert!(block.bytes().iter().all(|byte| *byte == 0), "size {size}");
            block.bytes_mut().fill(0xff);
        }
    }
}

#[test]
fn large_kmalloc_takes_pages_of_the_matching_order() {
    let subsystem = subsystem(1);
    let kmalloc = subsystem.kmalloc();
    let block = kmalloc.alloc_block(20_000, Gfp::KERNEL).unwrap();
    assert!(block.address().addr().get().is_multiple_of(32 << 10));
    let info = subsystem.info();
    assert_eq!((info.kmalloc_large.allocs, info.kmalloc_large.pages), (1, 8));
    assert_eq!(subsystem.check().unwrap().large_pages, 8);
    drop(block);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn large_kmalloc_reclaims_idle_memory_of_caches() {
    let subsystem = Subsystem::new(config(1, 1, 4 << 20)).unwrap();
    let idle = KmemCache::builder("idle", 2048).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    drop((0..64).map(|_| idle.alloc_block(Gfp::KERNEL).unwrap()).collect::<Vec<_>>());
    assert!(idle.info().empty > 0);
    let pages: Vec<_> =
        core::iter::from_fn(|| subsystem.pages().alloc_block(Order::ZERO, Gfp::KERNEL, None).ok()).collect();
    let per_slab = u64::from(idle.geometry().order().pages());
    assert_eq!(pages.len() as u64 + idle.info().slabs * per_slab, 1024);
    let block = subsystem.kmalloc().alloc_block(16 << 10, Gfp::KERNEL).unwrap();
    assert_eq!(idle.info().slabs, 0);
    drop((block, pages));
    assert_all_memory_returned(&subsystem);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { cpu: u32, size: usize, kind: u8 },
    Free { cpu: u32, pick: usize },
    Shrink,
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![6 => 0_usize..=300, 3 => 0_usize..=8192, 1 => 8193_usize..=70_000];
    let step = prop_oneof![
        10 => (0..3_u32, size, 0..3_u8).prop_map(|(cpu, size, kind)| Step::Alloc { cpu, size, kind }),
        8 => (0..3_u32, any::<usize>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        1 => Just(Step::Shrink),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..40)
}

/// Checks that live blocks, which are sorted by address, do not overlap.
fn assert_blocks_do_not_overlap(live: &[(Block<'_>, u8)]) {
    let ranges: BTreeMap<_, _> =
        live.iter().map(|(block, _)| (block.address().addr().get(), block.layout().size())).collect();
    for ((start, size), next_start) in ranges.iter().zip(ranges.keys().skip(1)) {
        assert!(
            start + size <= *next_start || *size == 0,
            "{size} bytes at {start:#x} reach over {next_start:#x}"
        );
    }
}

std::thread_local! {
    // All cases share one subsystem, because creating 52 caches for each would be most of the work.
    static SUBSYSTEM: &'static Subsystem =
        Box::leak(Box::new(Subsystem::new(config(3, 1, 64 << 20)).unwrap()));
}

proptest! {
    /// Compares kmalloc with a shadow model: it keeps contents, its blocks do not overlap, and its alignments are as
    /// requested.
    #[test]
    fn kmalloc_agrees_with_a_shadow_model(steps in steps()) {
        let subsystem = SUBSYSTEM.with(|subsystem| *subsystem);
        let kmalloc = subsystem.kmalloc();
        let mut live: Vec<(Block<'_>, u8)> = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc { cpu, size, kind } => {
                    on_cpu(cpu);
                    let gfp = [Gfp::KERNEL, Gfp::RECLAIMABLE, Gfp::ZERO][usize::from(kind)];
                    let mut block = kmalloc.alloc_block(size, gfp).unwrap();
                    let align = SizeClass::for_size(size).map_or(1, SizeClass::align);
                    prop_assert!(block.address().addr().get().is_multiple_of(align));
                    prop_assert!(block.bytes().iter().all(|byte| *byte == 0));
                    block.bytes_mut().fill(i as u8);
                    live.push((block, i as u8));
                    assert_blocks_do_not_overlap(&live);
                }
                Step::Free { cpu, pick } if !live.is_empty() => {
                    on_cpu(cpu);
                    let (block, pattern) = live.swap_remove(pick % live.len());
                    prop_assert!(block.bytes().iter().all(|byte| *byte == pattern));
                }
                Step::Free { .. } => {}
                Step::Shrink => drop(subsystem.shrink()),
                Step::Reap => drop(subsystem.reap()),
            }
        }
        prop_assert!(live.iter().all(|(block, pattern)| block.bytes().iter().all(|byte| byte == pattern)));
        drop(live);
        let census = subsystem.check().unwrap();
        prop_assert_eq!((census.used, census.large_pages), (0, 0));
    }
}

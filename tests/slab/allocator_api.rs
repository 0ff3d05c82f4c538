//! Tests containers of other crates on caches, kmalloc, malloc and the process's malloc, with both versions of
//! `allocator-api2`.

use crate::common::{assert_all_memory_returned, subsystem};
use std::alloc::Layout;
use uslab::{KmemCache, Malloc, Uslab};

/// Tests that a vector from one version of `allocator-api2` can grow, shrink and be freed.
macro_rules! vectors {
    ($version:ident: $($source:expr),*) => { $({
        let mut vec = $version::vec::Vec::new_in($source);
        for n in 0_u64..40_000 {
            vec.push(n);
        }
        vec.truncate(100);
        vec.shrink_to_fit();
        assert!(vec.iter().copied().eq(0..100));
        let boxed = $version::boxed::Box::new_in([7_u8; 100], $source);
        assert_eq!(boxed[99], 7);
        let empty = $version::vec::Vec::<u64, _>::new_in($source);
        assert!(empty.is_empty());
    })* };
}

#[test]
fn vectors_allocate_with_both_allocator_api2_versions() {
    let subsystem = subsystem(2);
    let malloc = Malloc::new(&subsystem).unwrap();
    let kmalloc = subsystem.kmalloc();
    vectors!(allocator_api2_02: &malloc, kmalloc, Uslab);
    vectors!(allocator_api2_04: &malloc, kmalloc, Uslab);
    assert_all_memory_returned(&subsystem);
}

/// Pools serve the standard containers: small vectors use the pool of their size class, and large vectors use the heap.
#[test]
fn containers_too_large_for_size_classes_use_the_heap() {
    use uslab::pool::{ClassPools, Hybrid, SizeClasses};
    let hybrid = Hybrid::new(ClassPools::new(&SizeClasses::micro(), 64 << 20).unwrap(), 256);
    vectors!(allocator_api2_02: &hybrid);
    vectors!(allocator_api2_04: &hybrid);
    {
        let mut map = hashbrown::HashMap::with_hasher_in(std::hash::RandomState::new(), &hybrid);
        for n in 0_u64..1000 {
            map.insert(n, allocator_api2_02::boxed::Box::new_in(n * n, &hybrid));
        }
        map.retain(|n, _| n.is_multiple_of(3));
        assert!((0..1000).step_by(3).all(|n| *map[&n] == n * n));
    }
    let routes = hybrid.routes();
    assert!(routes.pool > 1000 && routes.unfit > 0, "{routes:?}");
    assert_eq!((routes.pool, routes.unfit + routes.full), (routes.pool_frees, routes.heap_frees));
}

/// Tests vectors from both versions of `allocator-api2`, and a map of boxes.
macro_rules! collections {
    ($source:expr) => {{
        vectors!(allocator_api2_02: $source);
        vectors!(allocator_api2_04: $source);
        let mut map = hashbrown::HashMap::with_hasher_in(std::hash::RandomState::new(), $source);
        for n in 0_u64..1000 {
            map.insert(n, allocator_api2_02::boxed::Box::new_in(n * n, $source));
        }
        map.retain(|n, _| n.is_multiple_of(3));
        assert!(map.len() == 334 && (0..1000).step_by(3).all(|n| *map[&n] == n * n));
    }};
}

/// The number of bytes that each pool gets; it is generous, because some allocators cannot reuse each freed byte
/// immediately.
const BYTES: usize = 4 << 20;

#[test]
fn containers_allocate_from_size_classes() {
    use uslab::pool::{ClassPools, Local, SizeClasses};
    let classes = SizeClasses::new((3..=20).map(|log| 1 << log)).unwrap();
    let mut pools = Local::new(ClassPools::new(&classes, BYTES).unwrap());
    collections!(&pools);
    assert_eq!(pools.get_mut().waste(), uslab::pool::Waste::default());
}

#[test]
fn containers_allocate_from_a_pool_of_fixed_slots() {
    use allocator_api2_04::vec::Vec;
    use uslab::pool::{FixedPool, HeapArea, Local, SlotLayout};
    let slots = SlotLayout::new(256, 16).unwrap();
    let mut pool = Local::new(FixedPool::new(HeapArea::new(4096, 16).unwrap(), slots).unwrap());
    let mut vec = Vec::with_capacity_in(1, &pool);
    vec.push(0_u64);
    let start = vec.as_ptr();
    vec.extend(1..32);
    assert!(vec.iter().copied().eq(0..32) && vec.as_ptr() == start, "the block must grow in its slot");
    assert!(vec.try_reserve(1).is_err(), "the block must not grow further");
    drop(vec);
    assert_eq!(pool.get_mut().usage().live(), 0);
}

#[test]
fn containers_allocate_from_tlsf_and_best_fit() {
    use uslab::pool::{BestFit, Local, MappedArea, Tlsf};
    let area = || MappedArea::new(BYTES, 4096).unwrap();
    let mut tlsf = Local::new(Tlsf::new(area()).unwrap());
    collections!(&tlsf);
    assert_eq!(tlsf.get_mut().free_blocks().collect::<Vec<_>>(), [BYTES - 16 - 4]);
    let mut best = Local::new(BestFit::new(area()).unwrap());
    collections!(&best);
    assert_eq!(best.get_mut().free_blocks().collect::<Vec<_>>(), [BYTES - 16 - 8]);
}

#[test]
fn containers_allocate_from_a_stack() {
    use uslab::pool::{Local, MappedArea, StackAlloc};
    let mut stack = StackAlloc::new(MappedArea::new(BYTES, 4096).unwrap()).unwrap();
    let level = stack.mark().unwrap();
    let mut stack = Local::new(stack);
    collections!(&stack);
    assert_eq!(stack.get_mut().free_to(level), Ok(()));
    assert_eq!(stack.into_inner().used(), 0);
}

#[test]
fn topmost_arena_container_grows_in_place() {
    use allocator_api2_02::vec::Vec;
    use uslab::pool::{Arena, HeapArea, MappedArea};
    let mut fixed = Arena::new(MappedArea::new(BYTES, 4096).unwrap());
    let mut growing = Arena::growing(4096, |bytes| HeapArea::new(bytes, 16)).unwrap();
    fixed.scope(|scope| collections!(&*scope));
    growing.scope(|scope| collections!(&*scope));
    assert_eq!((fixed.used(), growing.used(), growing.chunks()), (0, 0, 1));
    collections!(&fixed);
    collections!(&growing);
    fixed.reset();
    let mut vec = Vec::new_in(&fixed);
    vec.push(0_u64);
    let start = vec.as_ptr();
    vec.extend(1..10_000);
    assert_eq!((vec.as_ptr(), fixed.used()), (start, 8 * vec.capacity()));
    drop(vec);
    assert_eq!(fixed.used(), 0, "the topmost block must be freed immediately");
}

/// Requested zeroed memory must be zero even if a block grows in place over bytes that were written before.
#[test]
fn zeroed_growth_in_place_zeroes_the_new_bytes() {
    use allocator_api2_04::alloc::Allocator;
    use uslab::pool::{BestFit, HeapArea, Local};
    let heap = Local::new(BestFit::new(HeapArea::new(4096, 16).unwrap()).unwrap());
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    // SAFETY: each block is used within its layout, and freed with its last layout.
    unsafe {
        let filled_block = (&heap).allocate(layout(2000)).unwrap().cast::<u8>();
        filled_block.write_bytes(9, 2000);
        (&heap).deallocate(filled_block, layout(2000));
        let memory = (&heap).allocate(layout(10)).unwrap().cast::<u8>();
        memory.write_bytes(3, 10);
        let grown_block = (&heap).grow_zeroed(memory, layout(10), layout(1000)).unwrap().cast::<u8>();
        assert_eq!(grown_block, memory);
        let bytes = core::slice::from_raw_parts(grown_block.as_ptr(), 1000);
        assert!(bytes[..10].iter().all(|byte| *byte == 3) && bytes[10..].iter().all(|byte| *byte == 0));
        (&heap).deallocate(grown_block, layout(1000));
    }
}

#[test]
fn cache_serves_layouts_that_fit_its_objects() {
    use allocator_api2_04::alloc::Allocator;
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("box", 64).align(32).build_in(&subsystem).unwrap();
    let boxed = allocator_api2_04::boxed::Box::new_in([1_u64; 8], &cache);
    assert_eq!(cache.info().used, 1);
    drop(boxed);
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    for (requested, expected) in [((64, 32), true), ((65, 8), false), ((8, 64), false), ((0, 4096), true)] {
        let memory = (&cache).allocate_zeroed(layout(requested.0, requested.1));
        assert_eq!(memory.is_ok(), expected, "{requested:?}");
        if let Ok(memory) = memory {
            // SAFETY: the memory was allocated just now.
            unsafe { (&cache).deallocate(memory.cast(), layout(requested.0, requested.1)) };
        }
    }
    let constructed =
        KmemCache::builder("built", 64).ctor(|bytes| bytes.fill(1)).build_in(&subsystem).unwrap();
    assert!(
        (&constructed).allocate(layout(8, 8)).is_err(),
        "a cache with a constructor must refuse containers"
    );
    drop((cache, constructed));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn zeroed_growth_zeroes_new_bytes_at_any_alignment() {
    use allocator_api2_02::alloc::Allocator;
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    let source = &malloc;
    for (old, new) in
        [((10, 8), (16, 8)), ((10, 8), (5000, 64)), ((0, 8), (10, 8)), ((100, 64), (9000, 4096))]
    {
        let (old, new) = (layout(old.0, old.1), layout(new.0, new.1));
        let memory = source.allocate(old).unwrap().cast::<u8>();
        // SAFETY: each block is used within its layout, and freed with its last layout.
        unsafe {
            memory.write_bytes(3, old.size());
            let grown_block = source.grow_zeroed(memory, old, new).unwrap().cast::<u8>();
            assert!(grown_block.addr().get().is_multiple_of(new.align()));
            let bytes = core::slice::from_raw_parts(grown_block.as_ptr(), new.size());
            assert!(bytes[..old.size()].iter().all(|byte| *byte == 3));
            assert!(bytes[old.size()..].iter().all(|byte| *byte == 0), "{old:?} to {new:?}");
            let shrunk_block = source.shrink(grown_block, new, layout(5, 1)).unwrap();
            source.deallocate(shrunk_block.cast(), layout(5, 1));
        }
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn hash_map_allocates_from_slab_caches() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let mut map = hashbrown::HashMap::new_in(&malloc);
    for n in 0_u64..20_000 {
        map.insert(n, n * n);
    }
    map.retain(|n, _| n % 100 == 0);
    map.shrink_to_fit();
    assert_eq!((map.len(), map.get(&19_900)), (200, Some(&(19_900 * 19_900))));
    assert!(subsystem.check().unwrap().used + subsystem.check().unwrap().large_pages > 0);
    drop(map);
    assert_all_memory_returned(&subsystem);
}

//! Tests failed requests and misuse: error messages must be exact, nothing may be lost, and the subsystem must work
//! afterwards.

use crate::common::{RecordedReports, assert_all_memory_returned, config, subsystem};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::path::Path;
use std::ptr::NonNull;
use uslab::faults::{Faults, parse};
use uslab::{
    AllocError, CorruptionKind, Gfp, KmemCache, Limit, Magazines, Malloc, StartError, Subsystem, ZERO_SIZE,
};
use uslab_magazine::on_cpu;
use uslab_tests::workspace;

const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn alignments_up_to_one_mebibyte_are_honoured() {
    let subsystem = subsystem(2);
    let malloc = Malloc::new(&subsystem).unwrap();
    let kmalloc = subsystem.kmalloc();
    for align in (0..=20).map(|shift| 1_usize << shift) {
        let cache = KmemCache::builder("aligned", 100).align(align).build_in(&subsystem).unwrap();
        let mut blocks = cache.alloc_blocks(Gfp::KERNEL, 5).unwrap();
        for block in &mut blocks {
            assert!(block.address().addr().get().is_multiple_of(align), "cache, {align}");
            block.bytes_mut().fill(7);
        }
        let addresses: BTreeSet<_> = blocks.iter().map(|block| block.address()).collect();
        assert_eq!(addresses.len(), 5);
        for size in [1, 100, 5000, 300_000] {
            let layout = layout(size, align);
            let memory = [
                kmalloc.alloc_layout(layout, Gfp::KERNEL).unwrap(),
                malloc.alloc(layout, Gfp::KERNEL).unwrap(),
            ];
            for memory in memory {
                assert!(memory.addr().get().is_multiple_of(align), "{size} bytes at {align}");
                // SAFETY: this test owns `size` bytes there.
                unsafe { memory.write_bytes(7, size) };
            }
            // SAFETY: the blocks were allocated above, and each is freed once.
            unsafe {
                kmalloc.free(memory[0]);
                malloc.free_sized(memory[1], layout);
            }
        }
        assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 7)));
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn allocations_of_impossible_sizes_are_errors() {
    let subsystem = subsystem(1);
    let (malloc, kmalloc) = (Malloc::new(&subsystem).unwrap(), subsystem.kmalloc());
    let cache = |size, align| {
        KmemCache::builder("o", size).align(align).build_in(&subsystem).unwrap_err().to_string()
    };
    assert_eq!(cache(0, 8), "an object of 0 bytes");
    let largest = "the largest block has 4194304";
    assert_eq!(cache(usize::MAX, 8), format!("an object of {} bytes; {largest}", usize::MAX));
    assert_eq!(cache(8, 1 << 63), format!("an object of {} bytes; {largest}", 1_u64 << 63));
    assert_eq!(cache(4 * MIB + 1, 8), format!("an object of {} bytes; {largest}", 4 * MIB + 8));
    for size in [4 * MIB + 1, 1 << 40, isize::MAX as usize, usize::MAX] {
        assert_eq!(kmalloc.alloc(size, Gfp::KERNEL), Err(AllocError::TooLarge));
    }
    assert_eq!(AllocError::TooLarge.to_string(), "the size is larger than the largest possible allocation");
    for (count, size) in [(usize::MAX, 2), (1 << 32, 1 << 32), (usize::MAX, usize::MAX)] {
        assert_eq!(kmalloc.alloc_array(count, size, Gfp::KERNEL), Err(AllocError::TooLarge));
    }
    assert_eq!(kmalloc.alloc_layout(layout(1, 8 * MIB), Gfp::KERNEL), Err(AllocError::TooLarge));
    assert_eq!(malloc.alloc(layout(isize::MAX as usize - 15, 16), Gfp::KERNEL), Err(AllocError::TooLarge));
    // The request exceeds the addresses that a process has left.
    let bytes = (1 << 47) - 4096;
    assert_eq!(malloc.alloc(layout(bytes, 16), Gfp::KERNEL), Err(AllocError::Refused { bytes }));
    let memory = malloc.alloc(layout(100, 8), Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated just now; a failed `realloc` leaves it allocated, and it is freed once.
    unsafe {
        assert_eq!(malloc.realloc(memory, usize::MAX), Err(AllocError::TooLarge));
        assert_eq!(kmalloc.realloc(memory, usize::MAX, Gfp::KERNEL), Err(AllocError::TooLarge));
        malloc.free(memory);
    }
    assert_eq!(kmalloc.alloc(0, Gfp::KERNEL), Ok(ZERO_SIZE));
    assert_eq!(kmalloc.alloc_array(usize::MAX, 0, Gfp::KERNEL), Ok(ZERO_SIZE));
    assert_eq!(malloc.alloc(layout(0, 16), Gfp::KERNEL), Ok(ZERO_SIZE));
    assert_all_memory_returned(&subsystem);
}

#[test]
fn exhausted_page_range_is_an_error_until_a_free() {
    let subsystem = Subsystem::new(config(2, 1, 4 * MIB)).unwrap();
    let (malloc, kmalloc) = (Malloc::new(&subsystem).unwrap(), subsystem.kmalloc());
    let cache = KmemCache::builder("page", 4096).build_in(&subsystem).unwrap();
    let mut pages: Vec<_> = core::iter::from_fn(|| cache.alloc_block(Gfp::KERNEL).ok()).collect();
    assert_eq!(pages.len(), 1024);
    let expected_text = |order| format!("no pages for another slab: no block of order {order}: out of pages");
    assert_eq!(cache.alloc(Gfp::KERNEL).unwrap_err().to_string(), expected_text(0));
    assert_eq!(kmalloc.alloc(100, Gfp::KERNEL).unwrap_err().to_string(), expected_text(0));
    assert_eq!(kmalloc.alloc(20_000, Gfp::KERNEL).unwrap_err().to_string(), expected_text(3));
    assert_eq!(malloc.alloc(layout(64, 8), Gfp::KERNEL).unwrap_err().to_string(), expected_text(0));
    assert_eq!(cache.alloc_blocks(Gfp::KERNEL, 3).unwrap_err().to_string(), expected_text(0));
    assert_eq!(cache.prefill(Gfp::KERNEL, 3).unwrap_err().to_string(), expected_text(0));
    assert_eq!((cache.info().used, subsystem.check().unwrap().used), (1024, 1024));
    pages.truncate(1000);
    // Such requests do not drain another cache's magazines.
    cache.shrink();
    drop(kmalloc.alloc_block(100, Gfp::KERNEL).unwrap());
    drop(cache.alloc_blocks(Gfp::KERNEL, 3).unwrap());
    drop(pages);
    assert_all_memory_returned(&subsystem);
}

/// Returns a subsystem that can inject faults into its system calls.
fn faulty() -> (Subsystem, Faults) {
    let mut config = config(1, 1, 16 * MIB);
    let faults = Faults::new(1);
    config.pages.faults = faults.clone();
    config.check_frees = false;
    (Subsystem::new(config).unwrap(), faults)
}

#[test]
fn refused_mmap_error_names_its_purpose() {
    // At the start, even the smallest memory is refused.
    let mut refusing_config = config(1, 1, 16 * MIB);
    refusing_config.pages.faults = Faults::new(1);
    refusing_config.pages.faults.arm(parse("reserve:times=-1").unwrap());
    let error = Subsystem::new(refusing_config).unwrap_err();
    assert!(matches!(error, StartError::Pages(_)));
    assert_eq!(
        error.to_string(),
        "the system refused to reserve even 1048576 bytes of address space, or its pages are not of 4096 bytes"
    );
    let (subsystem, faults) = faulty();
    let malloc = Malloc::new(&subsystem).unwrap();
    // The refusals are memory for a slab, for its bitmap, for checked frees, and for a block beyond the largest.
    let cache = KmemCache::builder("inode", 640).build_in(&subsystem).unwrap();
    let tiny = KmemCache::builder("tiny", 8).build_in(&subsystem).unwrap();
    let error_text = |rule: &str, alloc: &dyn Fn() -> String| {
        faults.arm(parse(rule).unwrap());
        let message = alloc();
        faults.disarm();
        assert_eq!(subsystem.check().unwrap().used, 0, "{rule}");
        message
    };
    let object = |cache: &KmemCache| cache.alloc_block(Gfp::KERNEL).unwrap_err().to_string();
    assert_eq!(
        error_text("commit:times=-1", &|| object(&cache)),
        "no pages for another slab: no block of order 0: the system refused to commit more memory"
    );
    assert_eq!(error_text("bitmap:times=-1", &|| object(&tiny)), "no memory for the bitmap of another slab");
    let build =
        || KmemCache::builder("o", 64).check_frees(true).build_in(&subsystem).unwrap_err().to_string();
    assert_eq!(error_text("reserve:times=-1", &build), "no address space for the cache's checked frees");
    // Objects bypass the CPU's stack, for which memory is missing.
    let past_limit = || {
        let cache = KmemCache::builder("o", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_blocks(Gfp::KERNEL, 100).unwrap());
        let info = cache.info();
        assert_eq!((info.allocs, info.frees, info.in_magazines), (100, 100, 0));
        String::new()
    };
    error_text("magazine:times=-1", &past_limit);
    let huge = || malloc.alloc(layout(5 * MIB, 8), Gfp::KERNEL).unwrap_err().to_string();
    assert_eq!(
        error_text("any:times=-1", &huge),
        "no memory for 5242880 more bytes: the system refused, or the limit is reached"
    );
    // Everything works afterwards.
    drop((cache.alloc_block(Gfp::KERNEL).unwrap(), tiny.alloc_block(Gfp::KERNEL).unwrap()));
    // SAFETY: the memory was allocated here, and is freed once.
    unsafe { malloc.free(malloc.alloc(layout(5 * MIB, 8), Gfp::KERNEL).unwrap()) };
    assert_all_memory_returned(&subsystem);
}

/// If caches did not share one bitmap, each cache would reserve an eighth of the range of addresses.
#[test]
fn checked_caches_share_a_single_bitmap_reservation() {
    let (subsystem, faults) = faulty();
    let build = || KmemCache::builder("checked", 64).check_frees(true).build_in(&subsystem);
    let first = build().unwrap();
    faults.arm(parse("reserve:times=-1").unwrap());
    let second = build();
    faults.disarm();
    let second = second.unwrap();
    drop((first.alloc_block(Gfp::KERNEL).unwrap(), second.alloc_block(Gfp::KERNEL).unwrap()));
}

#[test]
fn failed_refill_keeps_only_the_previous_objects() {
    let (subsystem, faults) = faulty();
    for magazines in [Magazines::BySize, Magazines::Off] {
        let cache = KmemCache::builder("inode", 640).magazines(magazines).build_in(&subsystem).unwrap();
        let mut prefilled = cache.prefill(Gfp::KERNEL, 3).unwrap();
        faults.arm(parse("slab:nth=2,times=-1").unwrap());
        assert_eq!(prefilled.refill(1001), Err(AllocError::Injected));
        faults.disarm();
        assert_eq!(prefilled.len(), 3, "objects allocated before the refusal must be freed");
        prefilled.refill(1001).unwrap();
        assert_eq!(prefilled.len(), 1001, "the cache must request no more objects than it keeps");
    }
    assert_all_memory_returned(&subsystem);
}

/// The CPU takes one object from a magazine of four; because it has no memory for the other three, it returns them to
/// their slab.
#[test]
fn cpu_without_magazine_memory_allocates_from_the_depot() {
    let mut config = config(2, 1, 16 * MIB);
    let faults = Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    let four_rounds = Magazines::Sized { capacity: 4, stock: 0, depot_limit: 2 };
    let cache = KmemCache::builder("o", 1024).magazines(four_rounds).limit(Limit::Objects(16));
    let cache = cache.build_in(&subsystem).unwrap();
    let places = || {
        let info = cache.info();
        [info.used, info.in_magazines, info.in_depot, info.free_in_slabs]
    };
    on_cpu(0);
    drop(cache.alloc_blocks(Gfp::KERNEL, 16).unwrap());
    assert_eq!(places(), [0, 8, 8, 0]);
    on_cpu(1);
    faults.arm(parse("magazine:times=-1").unwrap());
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    faults.disarm();
    assert_eq!(places(), [1, 8, 4, 3]);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    drop(cache);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn refused_madvise_call_causes_no_error() {
    let (subsystem, faults) = faulty();
    let cache = KmemCache::builder("inode", 640).build_in(&subsystem).unwrap();
    for _ in 0..3 {
        let mut used_blocks = cache.alloc_blocks(Gfp::ZERO, 1000).unwrap();
        for block in &mut used_blocks {
            assert!(
                block.bytes().iter().all(|byte| *byte == 0),
                "memory that was not decommitted must be zeroed"
            );
            block.bytes_mut().fill(9);
        }
        drop(used_blocks);
        faults.arm(parse("decommit:times=-1").unwrap());
        cache.shrink();
        assert!(subsystem.pages().decommit() > 0);
        assert!(faults.tally().iter().any(|tally| tally.fired > 0));
        faults.disarm();
        let census = subsystem.check().unwrap();
        assert_eq!((census.objects, census.slab_pages), (0, 0));
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn destroyed_cache_allocates_and_frees_nothing() {
    for magazines in [Magazines::BySize, Magazines::Off] {
        let (mut config, recorded) = (config(2, 2, 16 * MIB), RecordedReports::default());
        recorded.listen(&mut config);
        let subsystem = Subsystem::new(config).unwrap();
        let cache = KmemCache::builder("inode", 640).magazines(magazines).build_in(&subsystem).unwrap();
        let stale_object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated just now, and is freed once.
        unsafe { cache.free(stale_object) };
        cache.destroy().unwrap();
        cache.destroy().unwrap();
        let message = AllocError::Destroyed;
        assert_eq!(message.to_string(), "the cache was destroyed");
        assert_eq!(cache.alloc(Gfp::KERNEL), Err(message));
        assert_eq!(cache.alloc(Gfp::ZERO | Gfp::NOWAIT), Err(message));
        assert_eq!(cache.alloc_node(Gfp::KERNEL, 1), Err(message));
        assert_eq!(cache.alloc_node(Gfp::THIS_NODE, 0), Err(message));
        assert_eq!(cache.alloc_bulk(Gfp::KERNEL, &mut [None; 9]), Err(message));
        assert_eq!(cache.alloc_block(Gfp::KERNEL).unwrap_err(), message);
        let expected = message;
        assert_eq!(cache.prefill(Gfp::KERNEL, 2).unwrap_err(), expected);
        assert_eq!((cache.shrink(), cache.reap(), cache.info().objects), (0, 0, 0));
        assert!(recorded.take_reports().is_empty());
        // SAFETY: the free is the error under test.
        unsafe { cache.free(stale_object) };
        let reports = recorded.take_reports();
        let [(CorruptionKind::Foreign, text)] = &reports[..] else { panic!("{reports:?}") };
        let address = stale_object.addr();
        assert_eq!(*text, format!("cache inode: free of an address that no cache owns {address:#x}"));
        assert_eq!(cache.info().corruptions, 1);
        assert_all_memory_returned(&subsystem);
    }
}

#[test]
fn free_of_an_address_outside_the_range_is_counted() {
    let (mut config, recorded) = (config(1, 1, 16 * MIB), RecordedReports::default());
    recorded.listen(&mut config);
    let subsystem = Subsystem::new(config).unwrap();
    let cache = KmemCache::builder("inode", 640).build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the errors under test come first; then the object is freed once.
    unsafe {
        // The addresses are the one next to null, the highest, and the first after the range.
        cache.free(NonNull::dangling());
        cache.free(NonNull::new_unchecked(core::ptr::without_provenance_mut(usize::MAX)));
        let pages = subsystem.pages();
        let last = uslab_buddy::Pfn::new(pages.frames().len() - 1);
        cache.free(NonNull::new_unchecked(pages.address(last).as_ptr().wrapping_add(4096)));
        cache.free(object);
    }
    let kinds: Vec<_> = recorded.take_reports().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [CorruptionKind::Foreign; 3]);
    assert_eq!((cache.info().corruptions, cache.info().used), (3, 0));
    assert_all_memory_returned(&subsystem);
}

/// Returns the names of the tests in the last column of the tables in the module documentation.
fn tests_named_in_tables(text: &str) -> Vec<&str> {
    let rows =
        text.lines().filter(|line| line.starts_with("//! | ")).filter_map(|line| line.rsplit('|').nth(1));
    rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn documented_error_tables_name_only_existing_tests() {
    let slab = workspace().join("slab");
    let read_text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let mut tests = read_text(&slab.join("src/cache/prefill.rs"));
    for folder in ["../tests", "../tests/slab", "../tests/programs/preload"] {
        let files = std::fs::read_dir(slab.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|end| end == "rs"))
            .for_each(|path| tests += &read_text(&path));
    }
    // The contract of panics follows; `panics` checks it.
    let (errors, _) = include_str!("../../slab/src/error.rs").split_once("//! # Panics").unwrap();
    let named_errors =
        [errors, include_str!("../../slab/src/debug/corruption.rs")].map(tests_named_in_tables);
    assert!(named_errors[0].len() > 10 && named_errors[1].len() > 5, "{named_errors:?}");
    for name in named_errors.iter().flatten() {
        assert!(
            tests.contains(&format!("#[test]\nfn {name}()"))
                || tests.contains(&format!("#[test]\n    fn {name}()")),
            "the test {name} does not exist"
        );
    }
}

//! Tests malloc beyond its size classes: reallocation in place and by copying, and blocks that are too large for the
//! page allocator.

use crate::common::{assert_all_memory_returned, config, subsystem};
#[cfg(all(target_os = "linux", not(uslab_heap)))]
use crate::process::{is_alone, resident};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use uslab::{AllocError, Gfp, KmemCache, Malloc, Shrinker, Subsystem, ZERO_SIZE};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::{Counter, Mutex};

const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Returns the first `n` bytes of memory, which must belong to the caller.
fn bytes(memory: NonNull<u8>, n: usize) -> &'static mut [u8] {
    // SAFETY: each test passes memory that it has allocated and does not use in another way at the same time.
    unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), n) }
}

/// Reallocates a block to each of the given sizes. Returns one flag per step, which is `true` if the memory stayed in
/// place.
fn walk(sizes: &[usize], sized: bool) -> Vec<bool> {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let mut size = 100;
    let mut memory = malloc.alloc(layout(size, 16), Gfp::KERNEL).unwrap();
    let mut in_place = vec![];
    for (i, &new_size) in sizes.iter().enumerate() {
        let kept_bytes = size.min(new_size);
        bytes(memory, kept_bytes).fill(i as u8);
        // SAFETY: the memory was allocated with this layout; if it was resized without a layout, it is freed without
        // one.
        let new_memory = unsafe {
            match sized {
                true => malloc.realloc_sized(memory, layout(size, 16), new_size, Gfp::KERNEL),
                false => malloc.realloc(memory, new_size),
            }
        }
        .unwrap();
        in_place.push(new_memory == memory);
        assert!(bytes(new_memory, kept_bytes).iter().all(|byte| *byte == i as u8), "{size} to {new_size}");
        // SAFETY: `new_memory` is allocated and in use.
        assert!(unsafe { malloc.usable_size(new_memory) } >= new_size);
        (memory, size) = (new_memory, new_size);
    }
    // SAFETY: the memory was allocated above with the layout of the last size, and is freed once. The option
    // `check_frees` would report a layout of another class.
    unsafe { if sized { malloc.free_sized(memory, layout(size, 16)) } else { malloc.free(memory) } }
    assert_all_memory_returned(&subsystem);
    in_place
}

#[test]
fn realloc_in_place_wastes_at_most_half_the_block() {
    let sizes = [112, 56, 55, 64, 65, 32_768, 32_769, 64 << 10, 32 << 10, 4 * MIB, 4 * MIB + 1, 5 * MIB];
    let expected_in_place = [true, true, false, true, false, false, false, true, true, false, false];
    assert_eq!(walk(&sizes, false)[..11], expected_in_place);
}

/// Regression test: a block that had shrunk in place was freed with its new layout, so it entered the cache of a
/// smaller size class.
#[test]
fn realloc_keeps_sized_allocations_in_their_class() {
    let sizes = [112, 97, 96, 96, 32_768, 32_769, 64 << 10, 40 << 10, 32 << 10, 4 * MIB + 1];
    let expected_in_place = [true, true, false, true, false, false, true, true, false, false];
    assert_eq!(walk(&sizes, true), expected_in_place);
}

#[test]
fn realloc_works_from_and_to_size_zero() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    // SAFETY: each block is the one that the last call returned, and is freed with its last layout.
    unsafe {
        let memory = malloc.realloc_sized(ZERO_SIZE, layout(0, 16), 10, Gfp::KERNEL).unwrap();
        assert_eq!(malloc.realloc_sized(memory, layout(10, 16), 0, Gfp::KERNEL), Ok(ZERO_SIZE));
        let memory = malloc.realloc(ZERO_SIZE, 10).unwrap();
        assert_eq!(malloc.realloc(memory, 0), Ok(ZERO_SIZE));
        malloc.free_sized(ZERO_SIZE, layout(0, 16));
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn huge_memory_is_zeroed_and_aligned() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let layouts = [(5 * MIB, 8), (4 * MIB + 1, 4096), (100, 8 * MIB), (20 * MIB, 64 * MIB), (0, 16 * MIB)];
    let used_blocks = layouts.map(|(size, align)| {
        let memory = malloc.alloc(layout(size, align), Gfp::ZERO).unwrap();
        assert!(memory.addr().get().is_multiple_of(align));
        assert!(bytes(memory, size).iter().all(|byte| *byte == 0));
        bytes(memory, size).fill(size as u8);
        // SAFETY: the memory was allocated just now.
        assert!(unsafe { malloc.usable_size(memory) } >= size.max(1));
        memory
    });
    let pages = layouts.map(|(size, _)| size.max(1).div_ceil(4096) as u64).iter().sum();
    let info = subsystem.info().huge;
    assert_eq!((info.allocs, info.frees, info.pages), (5, 0, pages));
    assert_eq!(subsystem.check().unwrap().huge_pages, pages);
    for (memory, (size, align)) in used_blocks.into_iter().zip(layouts) {
        assert!(bytes(memory, size).iter().all(|byte| *byte == size as u8));
        // SAFETY: the memory was allocated above with this layout, and is freed once.
        unsafe {
            if align > 4096 { malloc.free(memory) } else { malloc.free_sized(memory, layout(size, align)) }
        }
    }
    assert_eq!(subsystem.info().huge.frees, 5);
    assert_all_memory_returned(&subsystem);
}

#[test]
fn huge_memory_keeps_its_alignment_when_grown() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    for align in [16, 4096, 2 * MIB] {
        let mut size = 5 * MIB;
        let mut memory = malloc.alloc(layout(size, align), Gfp::KERNEL).unwrap();
        bytes(memory, size).fill(9);
        for new_size in [50 * MIB, 6 * MIB + 1, 70 * MIB] {
            let kept_bytes = size.min(new_size);
            // SAFETY: the memory was allocated with this layout.
            memory =
                unsafe { malloc.realloc_sized(memory, layout(size, align), new_size, Gfp::ZERO) }.unwrap();
            assert!(memory.addr().get().is_multiple_of(align));
            let (old, new) = bytes(memory, new_size).split_at_mut(kept_bytes);
            assert!(old.iter().all(|byte| *byte == 9) && new.iter().all(|byte| *byte == 0), "{new_size}");
            new.fill(9);
            size = new_size;
            subsystem.check().unwrap();
        }
        // SAFETY: the memory was allocated with this layout, and is freed once.
        unsafe { malloc.free_sized(memory, layout(size, align)) };
    }
    let info = subsystem.info().huge;
    assert_eq!(info.frees, info.allocs);
    assert_all_memory_returned(&subsystem);
}

/// Returns a subsystem with a memory limit of `mib` MiB, which mappings count towards.
fn limited(mib: usize) -> Subsystem {
    let mut config = config(4, 1, mib * MIB);
    config.pages.limited = true;
    Subsystem::new(config).unwrap()
}
/// Checks that all counts agree, and returns the MiB that are charged for mappings.
fn charged_bytes(subsystem: &Subsystem) -> u64 {
    subsystem.check().unwrap();
    subsystem.info().pages.zones.iter().map(|zone| u64::from(zone.charged)).sum::<u64>() >> 8
}

/// Regression test: mappings above 4 MiB did not count towards the limit.
#[test]
fn blocks_and_mappings_share_a_single_memory_limit() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    on_cpu(0);
    let alloc = |mib| malloc.alloc(layout(mib * MIB, 16), Gfp::KERNEL);
    let free = |memory| {
        // SAFETY: the memory was allocated from this malloc, and is freed once.
        unsafe { malloc.free(memory) }
    };
    assert_eq!(alloc(100), Err(AllocError::Refused { bytes: 100 * MIB }));
    let used_blocks = [alloc(24).unwrap(), alloc(24).unwrap()];
    assert_eq!(alloc(24), Err(AllocError::Refused { bytes: 24 * MIB }));
    assert_eq!(charged_bytes(&subsystem), 48);
    // The rest serves blocks, and no more than that.
    let blocks: Vec<_> = std::iter::from_fn(|| alloc(1).ok()).collect();
    assert!((12..=16).contains(&blocks.len()), "{} MiB are allocated next to 48 of 64", blocks.len());
    blocks.into_iter().for_each(free);
    free(used_blocks[0]);
    let reused = alloc(24).unwrap();
    free(reused);
    free(used_blocks[1]);
    // Kept mappings that were freed are released for blocks.
    let blocks: Vec<_> = std::iter::from_fn(|| alloc(1).ok()).collect();
    assert!(blocks.len() > 56, "{} MiB of 64", blocks.len());
    assert_eq!(charged_bytes(&subsystem), 0);
    blocks.into_iter().for_each(free);
    // Free pages in magazines and in zones are released for a mapping.
    let largest_block = alloc(62).unwrap();
    assert_eq!(charged_bytes(&subsystem), 62);
    free(largest_block);
    subsystem.shrink();
    assert_eq!(charged_bytes(&subsystem), 0);
    assert_all_memory_returned(&subsystem);
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is not resized")]
fn mapping_resized_in_place_is_charged_the_difference() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let mut memory = malloc.alloc(layout(24 * MIB, 16), Gfp::KERNEL).unwrap();
    bytes(memory, 24 * MIB).fill(9);
    let mut size = 24;
    // The block is more than half of the limit, so a copy does not fit.
    for (new_size, expected) in [(40, true), (60, true), (70, false), (61, true), (8, true), (30, true)] {
        // SAFETY: the memory was allocated with this layout.
        let grown_memory =
            unsafe { malloc.realloc_sized(memory, layout(size * MIB, 16), new_size * MIB, Gfp::KERNEL) };
        assert_eq!(grown_memory.is_ok(), expected, "{size} to {new_size} MiB: {grown_memory:?}");
        (memory, size) = grown_memory.map_or((memory, size), |grown_memory| (grown_memory, new_size));
        assert_eq!(charged_bytes(&subsystem), size as u64);
        assert!(bytes(memory, 8 * MIB).iter().all(|byte| *byte == 9), "{new_size}");
    }
    let other_block = malloc.alloc(layout(30 * MIB, 16), Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated with this layout; a failed `realloc` leaves it allocated.
    let grown_memory = unsafe { malloc.realloc_sized(memory, layout(30 * MIB, 16), 40 * MIB, Gfp::KERNEL) };
    assert_eq!((grown_memory.is_err(), charged_bytes(&subsystem)), (true, 60));
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [memory, other_block].into_iter().for_each(|memory| malloc.free(memory)) };
    subsystem.shrink();
    assert_eq!(charged_bytes(&subsystem), 0);
    assert_all_memory_returned(&subsystem);
}

/// Regression test: a mapping of size 0 was charged for no page, but its free reduced the charge by one page.
#[test]
fn mapping_resized_to_zero_bytes_is_charged_one_page() {
    let subsystem = limited(16);
    let malloc = Malloc::new(&subsystem).unwrap();
    let aligned = |size| layout(size, 8 * MIB);
    let memory = malloc.alloc(aligned(100), Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated with this layout, and is freed with the last one.
    unsafe {
        let memory = malloc.realloc_sized(memory, aligned(100), 0, Gfp::KERNEL).unwrap();
        subsystem.check().unwrap();
        malloc.free_sized(memory, aligned(0));
    }
    assert_all_memory_returned(&subsystem);
}

/// Regression test: if a guarded mapping had to move in order to grow, the charge for growth in place remained.
#[test]
fn growing_a_mapping_with_a_guard_page_is_charged_once() {
    let mut config = config(4, 1, 64 * MIB);
    (config.pages.limited, config.harden.guard_pages) = (true, true);
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let (small, large_layout) = (layout(5 * MIB, 16), layout(9 * MIB, 16));
    let memory = malloc.alloc(small, Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated with this layout, and is freed with the last one.
    unsafe {
        let memory = malloc.realloc_sized(memory, small, large_layout.size(), Gfp::KERNEL).unwrap();
        assert_eq!(charged_bytes(&subsystem), 9, "one more page must be charged");
        malloc.free_sized(memory, large_layout);
    }
    assert_eq!(charged_bytes(&subsystem), 0);
    assert_all_memory_returned(&subsystem);
}

/// Regression test: the consistency check reported charges made by callers as a violation.
#[test]
fn census_accepts_charges_made_by_callers() {
    let subsystem = limited(16);
    let malloc = Malloc::new(&subsystem).unwrap();
    let memory = malloc.alloc_block(layout(5 * MIB, 16), Gfp::KERNEL).unwrap();
    assert!(subsystem.pages().charge(3 * MIB / 4096));
    assert_eq!(charged_bytes(&subsystem), 8);
    drop(memory);
    subsystem.pages().uncharge(3 * MIB / 4096);
    assert_all_memory_returned(&subsystem);
}

/// A shrinker that frees nothing, and records the flags of its calls.
#[derive(Clone, Default)]
struct FlagRecorder(Arc<Mutex<Vec<Gfp>>>);

impl Shrinker for FlagRecorder {
    fn count(&self) -> usize {
        1
    }
    fn scan(&self, _: usize, gfp: Gfp) -> usize {
        self.0.lock().push(gfp);
        0
    }
}

/// Regression test: shrinkers always received the flags `KERNEL`, and were called even if the caller did not permit
/// reclaim.
#[test]
fn shrinkers_receive_the_allocation_flags_of_the_caller() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let recorder = FlagRecorder::default();
    let _registered = subsystem.register_shrinker(recorder.clone());
    let [memory, other_block] = [24, 30].map(|mib| malloc.alloc(layout(mib * MIB, 16), Gfp::KERNEL).unwrap());
    for gfp in [Gfp::NOWAIT, Gfp::NORETRY, Gfp::MEMALLOC, Gfp::NOFS, Gfp::NOIO, Gfp::KERNEL] {
        // SAFETY: the memory was allocated with this layout, and not resized.
        let grown_memory = unsafe { malloc.realloc_sized(memory, layout(24 * MIB, 16), 40 * MIB, gfp) };
        assert_eq!(grown_memory, Err(AllocError::Refused { bytes: 40 * MIB }), "{gfp}");
        let recorded_flags = std::mem::take(&mut *recorder.0.lock());
        let may_reclaim = !gfp.intersects(Gfp::NOWAIT | Gfp::NORETRY | Gfp::MEMALLOC);
        assert_eq!(!recorded_flags.is_empty(), may_reclaim, "{gfp}: {recorded_flags:?}");
        assert!(
            recorded_flags.iter().all(|recorded_flags| *recorded_flags == gfp),
            "{gfp}: {recorded_flags:?}"
        );
    }
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [memory, other_block].into_iter().for_each(|memory| malloc.free(memory)) };
    assert_all_memory_returned(&subsystem);
}

/// Regression test: the pages of all CPUs were drained even if the caller did not permit reclaim.
#[test]
fn huge_allocation_drains_cpus_only_if_reclaim_is_allowed() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let cache = KmemCache::builder("kept", 64).build_in(&subsystem).unwrap();
    on_cpu(1);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    on_cpu(0);
    let cached_objects = || cache.info().in_magazines;
    let used_blocks = malloc.alloc_block(layout(48 * MIB, 16), Gfp::KERNEL).unwrap();
    let before = cached_objects();
    assert!(before > 0);
    let is_refused = |gfp| {
        let error = malloc.alloc(layout(24 * MIB, 16), gfp).unwrap_err();
        assert_eq!(error, AllocError::Refused { bytes: 24 * MIB });
    };
    [Gfp::NOWAIT, Gfp::NORETRY, Gfp::MEMALLOC].into_iter().for_each(is_refused);
    assert_eq!(cached_objects(), before);
    is_refused(Gfp::KERNEL);
    assert_eq!(cached_objects(), 0);
    drop(used_blocks);
    assert_all_memory_returned(&subsystem);
}

/// Regression test: if the limit refused a request, malloc permanently lost the addresses for it.
#[test]
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn reserved_addresses_are_released_only_within_the_limit() {
    use nix::sys::resource::{Resource, setrlimit};
    if !is_alone("malloc::reserved_addresses_are_released_only_within_the_limit") {
        return;
    }
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let alloc = |mib| malloc.alloc_block(layout(mib * MIB, 16), Gfp::KERNEL);
    let used_blocks = alloc(40).unwrap();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used_bytes = statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    setrlimit(Resource::RLIMIT_AS, used_bytes + 10 * MIB as u64, 1 << 62).unwrap();
    assert!(
        alloc(30).is_err() && !subsystem.pages().has_unmapped_pages(),
        "30 MiB must not fit next to 40 of 64"
    );
    let extra_block = alloc(15).unwrap();
    assert!(subsystem.pages().has_unmapped_pages(), "15 MiB must not fit into addresses for 10");
    drop((used_blocks, extra_block));
    subsystem.shrink();
    assert_eq!(charged_bytes(&subsystem), 0);
}

/// Regression test: a block that could not be unmapped kept its memory, but this memory was not counted.
#[test]
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn mapping_that_cannot_be_unmapped_is_decommitted() {
    use nix::libc::{PROT_READ, mprotect};
    use uslab_buddy::{Backend, Faults, region::Region};
    if !is_alone("malloc::mapping_that_cannot_be_unmapped_is_decommitted") {
        return;
    }
    let max_map_count = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let max_map_count = max_map_count.trim().parse::<usize>().unwrap();
    if max_map_count > 1 << 20 {
        println!("skipped: the test cannot create {max_map_count} mappings");
        return;
    }
    let committed = |bytes| Region::committed(bytes, 4096, Backend::Os, &Faults::default()).unwrap();
    let mut first = committed(24 * MIB);
    let mut middle_part = first.split_off(8 * MIB).unwrap();
    let _last_part = middle_part.split_off(8 * MIB).unwrap();
    bytes(middle_part.base(), 8 * MIB).fill(9);
    // The protection of every second page is changed, so that each is a mapping, until no further mapping is possible.
    let crowd = committed(2 * max_map_count * 4096);
    // SAFETY: this test owns the pages, which are not accessed.
    let protect = |page| unsafe { mprotect(crowd.base().add(page * 4096).as_ptr().cast(), 4096, PROT_READ) };
    let protected_pages = (0..max_map_count).take_while(|n| protect(2 * n + 1) == 0).count();
    assert!(protected_pages < max_map_count, "the system has no such limit");
    let before = resident();
    drop(middle_part);
    let freed_bytes = before.saturating_sub(resident());
    drop(crowd);
    assert!(freed_bytes > 7 * MIB, "{freed_bytes} bytes of 8 MiB were returned");
}

/// Regression test: if a block could not be unmapped, its addresses were lost.
#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is reserved as a whole")]
fn failed_unmap_of_a_mapping_is_retried() {
    for guard_pages in [false, true] {
        let faults = uslab::Faults::new(1);
        let harden = uslab::Harden { guard_pages, ..uslab::Harden::OFF };
        let mut config = uslab::Config { huge_cache: 0, harden, ..config(1, 1, 64 * MIB) };
        config.pages = config.pages.limit(64 * MIB);
        config.pages.faults = faults.clone();
        let subsystem = Subsystem::new(config).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let piece = || malloc.alloc_block(layout(8 * MIB, 16), Gfp::KERNEL).unwrap();
        // With guard pages, the last 64 freed mappings are kept before they are unmapped.
        (0..if guard_pages { 64 } else { 0 }).for_each(|_| drop(piece()));
        let used_blocks = piece();
        let before = subsystem.info().huge.unmapped;
        faults.arm(uslab::faults::parse("decommit").unwrap());
        drop(used_blocks);
        assert_eq!(subsystem.info().huge.unmapped, before);
        assert!(subsystem.info().huge.cached_pages >= 2048);
        subsystem.shrink();
        assert!(subsystem.info().huge.cached_pages >= 2048, "the allocation must still be refused");
        faults.disarm();
        subsystem.shrink();
        assert_eq!((subsystem.info().huge.cached_pages, charged_bytes(&subsystem)), (0, 0));
        assert!(subsystem.info().huge.unmapped > before);
        subsystem.check().unwrap();
        // No charge is left.
        drop([(); 7].map(|()| malloc.alloc_block(layout(7 * MIB, 16), Gfp::KERNEL).unwrap()));
    }
}

#[test]
fn concurrent_threads_never_exceed_the_limit() {
    const LIMIT: usize = 40;
    let subsystem = limited(LIMIT);
    let malloc = Malloc::new(&subsystem).unwrap();
    // The MiB held by the threads: added after an allocation, subtracted before the free.
    let (successes, refusals, mapped) = (Counter::new(0), Counter::new(0), Counter::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (malloc, successes, refusals, mapped) = (&malloc, &successes, &refusals, &mapped);
            scope.spawn(move || {
                on_cpu(thread as u32);
                let mut used_blocks = Vec::new();
                for step in 0..300_usize {
                    let mib = [1, 5, 9, 3, 12, 2][(step * 7 + thread * 5) % 6];
                    let mut is_full = false;
                    match malloc.alloc(layout(mib * MIB, 16), Gfp::KERNEL) {
                        Ok(memory) => {
                            successes.add(mib as u64);
                            assert!(successes.get() <= LIMIT as u64, "{} MiB of {LIMIT}", successes.get());
                            mapped.add((mib > 4).into());
                            bytes(memory, mib * MIB)[0] = 1;
                            used_blocks.push((memory, mib));
                        }
                        Err(_) => {
                            refusals.add(1);
                            is_full = true;
                        }
                    }
                    // A single thread holds enough to reach the limit.
                    if used_blocks.len() > 4 + step % 8 || is_full && !used_blocks.is_empty() {
                        let (memory, mib) = used_blocks.swap_remove(step % used_blocks.len());
                        successes.sub(mib as u64);
                        // SAFETY: the memory was allocated above, and is freed once.
                        unsafe { malloc.free(memory) };
                    }
                }
                for (memory, mib) in used_blocks {
                    successes.sub(mib as u64);
                    // SAFETY: the memory was allocated above, and is freed once.
                    unsafe { malloc.free(memory) };
                }
            });
        }
    });
    assert!(refusals.get() > 0 && mapped.get() > 0, "{} refused, {} mapped", refusals.get(), mapped.get());
    subsystem.shrink();
    assert_eq!(charged_bytes(&subsystem), 0);
    assert_all_memory_returned(&subsystem);
}

/// Returns a subsystem that keeps at most `bytes` of freed mappings.
fn subsystem_with_kept_bytes(bytes: usize) -> Subsystem {
    Subsystem::new(uslab::Config { huge_cache: bytes, ..config(1, 1, 16 * MIB) }).unwrap()
}
/// Returns the MiB of mappings for blocks above the largest page block, both in use and kept.
fn huge(subsystem: &Subsystem) -> (u64, u64) {
    subsystem.check().unwrap();
    let info = subsystem.info().huge;
    (info.pages >> 8, info.cached_pages >> 8)
}

/// Regression test: each freed block above 4 MiB was unmapped, so the next block caused a page fault for each page.
#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is reserved as a whole")]
fn freed_mapping_serves_the_next_fitting_request() {
    let subsystem = subsystem_with_kept_bytes(128 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let alloc = |size, gfp| malloc.alloc(layout(size, 8), gfp).unwrap();
    let first = alloc(16 * MIB, Gfp::KERNEL);
    bytes(first, 16 * MIB).fill(9);
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(first) };
    assert_eq!(huge(&subsystem), (0, 16));
    let reused = alloc(6 * MIB, Gfp::KERNEL);
    assert_eq!((reused, huge(&subsystem)), (first, (6, 10)));
    assert!(bytes(reused, 6 * MIB).iter().all(|byte| *byte == 9), "the memory must be zero");
    // The memory is zeroed if requested, and at most an eighth larger than needed.
    let zero = alloc(9 * MIB, Gfp::ZERO);
    assert!(bytes(zero, 9 * MIB).iter().all(|byte| *byte == 0));
    assert_eq!(huge(&subsystem), (16, 0));
    let zeroed = alloc(5 * MIB, Gfp::ZERO);
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [reused, zero, zeroed].into_iter().for_each(|memory| malloc.free(memory)) };
    assert_eq!(huge(&subsystem), (0, 21));
    let info = subsystem.info().huge;
    assert_eq!((info.allocs, info.frees, info.reused, info.unmapped), (4, 4, 2, 0));
    assert_eq!((info.paths.pages, info.paths.commit), (6, 2));
    let statistics = subsystem.info().statistics().to_string();
    let line = "# huge: 0 mappings of 0 bytes in use, 22020096 bytes kept; 2 of 4 allocations reused a kept mapping\n";
    assert!(statistics.contains(line), "{statistics}");
    assert_eq!(statistics.parse::<uslab::SlabInfo>().unwrap(), subsystem.slabinfo());
    subsystem.shrink();
    assert_eq!(huge(&subsystem), (0, 0));
    // The count is two mappings, or one if they were neighbours and were joined.
    assert!((1..=2).contains(&subsystem.info().huge.unmapped));
    assert_all_memory_returned(&subsystem);
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is reserved as a whole")]
fn mappings_in_use_bound_the_freed_mappings_that_are_kept() {
    let subsystem = subsystem_with_kept_bytes(64 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let alloc_blocks = |n: usize, mib| -> Vec<_> {
        (0..n).map(|_| malloc.alloc_block(layout(mib * MIB, 8), Gfp::KERNEL).unwrap()).collect()
    };
    let mut used_blocks = alloc_blocks(12, 10);
    // The subsystem keeps as many MiB as are in use, up to the option, and at least a quarter of the option.
    for (used_mib, kept_mib) in [(11, 10), (10, 20), (8, 40), (6, 60), (5, 50), (3, 30), (1, 16), (0, 16)] {
        used_blocks.truncate(used_mib);
        assert_eq!(huge(&subsystem), (10 * used_mib as u64, kept_mib), "{used_mib} left");
    }
    subsystem.shrink();
    // A block above the bound is not kept at all.
    drop(alloc_blocks(1, 17));
    assert_eq!(huge(&subsystem), (0, 0));
    let without_cache = subsystem_with_kept_bytes(0);
    let malloc = Malloc::new(&without_cache).unwrap();
    drop(malloc.alloc_block(layout(5 * MIB, 8), Gfp::KERNEL).unwrap());
    assert_eq!((huge(&without_cache), without_cache.info().huge.unmapped), ((0, 0), 1));
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is reserved as a whole")]
fn freed_mapping_is_unmapped_after_two_idle_intervals() {
    let subsystem = subsystem_with_kept_bytes(256 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let piece = |mib| drop(malloc.alloc_block(layout(mib * MIB, 8), Gfp::KERNEL).unwrap());
    let separate_block = malloc.alloc_block(layout(5 * MIB, 8), Gfp::KERNEL).unwrap();
    piece(20);
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (0, (5, 20)));
    // The use is measured again from here.
    piece(20);
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (0, (5, 20)));
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (20 * MIB, (5, 0)));
    piece(30);
    subsystem.reap();
    subsystem.reap();
    assert_eq!(huge(&subsystem), (5, 0), "a manual reap must also free the mapping");
    drop(separate_block);
    assert_eq!(huge(&subsystem), (0, 5));
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is reserved as a whole")]
fn freed_mappings_are_unmapped_if_the_system_lacks_memory() {
    let mut config = config(1, 1, 16 * MIB);
    let faults = uslab::Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let piece = |mib| malloc.alloc_block(layout(mib * MIB, 8), Gfp::KERNEL);
    let first = |rule| faults.arm(uslab::faults::parse(rule).unwrap());
    for rule in ["reserve:times=1", "commit:times=1"] {
        drop(piece(10).unwrap());
        assert_eq!(huge(&subsystem), (0, 10));
        first(rule);
        let extra_block = piece(12).unwrap();
        faults.disarm();
        assert_eq!(huge(&subsystem), (12, 0), "{rule}");
        drop(extra_block);
        subsystem.shrink();
    }
    drop(piece(10).unwrap());
    // The subsystem has only 16 MiB of pages.
    let mut blocks = vec![];
    while let Ok(block) = malloc.alloc_block(layout(MIB, 8), Gfp::KERNEL) {
        blocks.push(block);
    }
    assert_eq!((blocks.len(), huge(&subsystem)), (16, (0, 0)));
}

#[test]
fn moving_a_block_that_spans_two_mappings_keeps_its_bytes() {
    let subsystem = subsystem_with_kept_bytes(256 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let piece = |mib| malloc.alloc(layout(mib * MIB, 8), Gfp::KERNEL).unwrap();
    // A resized block may be joined only with mappings that are its neighbours now.
    let pieces = [5, 6, 7, 8].map(|mib| (piece(mib), mib));
    for (memory, mib) in pieces {
        bytes(memory, mib * MIB).fill(1);
        // SAFETY: the memory was allocated above.
        unsafe { malloc.free(memory) };
    }
    let mut memory = piece(26);
    bytes(memory, 26 * MIB).fill(6);
    let mut size = 26 * MIB;
    for new_size in [25 * MIB, 40 * MIB, 5 * MIB, 90 * MIB] {
        // SAFETY: the memory was allocated with this layout.
        memory = unsafe { malloc.realloc_sized(memory, layout(size, 8), new_size, Gfp::ZERO) }.unwrap();
        let (old, new) = bytes(memory, new_size).split_at(size.min(new_size));
        assert!(
            old.iter().all(|byte| *byte == 6) && new.iter().all(|byte| *byte == 0),
            "{size} to {new_size}"
        );
        bytes(memory, new_size).fill(6);
        size = new_size;
        subsystem.check().unwrap();
    }
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(memory) };
    assert_all_memory_returned(&subsystem);
}

#[test]
fn failed_realloc_leaves_the_old_memory_unchanged() {
    let mut config = config(1, 1, 16 * MIB);
    let faults = uslab::Faults::new(1);
    config.pages.faults = faults.clone();
    let subsystem = Subsystem::new(config).unwrap();
    let (malloc, kmalloc) = (Malloc::new(&subsystem).unwrap(), subsystem.kmalloc());
    for size in [100, 5 * MIB] {
        let memory = malloc.alloc(layout(size, 8), Gfp::KERNEL).unwrap();
        bytes(memory, size).fill(3);
        faults.arm(uslab::faults::parse("any").unwrap());
        // SAFETY: the memory was allocated above with this layout.
        let result = unsafe { malloc.realloc_sized(memory, layout(size, 8), 40 * MIB, Gfp::KERNEL) };
        faults.disarm();
        assert_eq!(result, Err(AllocError::Refused { bytes: 40 * MIB }));
        // SAFETY: the memory was allocated above with this layout; a failed `realloc` leaves it allocated.
        let result = unsafe { malloc.realloc_sized(memory, layout(size, 8), usize::MAX, Gfp::KERNEL) };
        assert_eq!(result, Err(AllocError::TooLarge));
        assert!(bytes(memory, size).iter().all(|byte| *byte == 3));
        // SAFETY: the memory was allocated above with this layout, and is freed once.
        unsafe { malloc.free_sized(memory, layout(size, 8)) };
    }
    let memory = kmalloc.alloc(100, Gfp::KERNEL).unwrap();
    bytes(memory, 100).fill(4);
    // SAFETY: the memory was allocated above.
    unsafe {
        assert_eq!(kmalloc.realloc(memory, 5 * MIB, Gfp::KERNEL), Err(AllocError::TooLarge));
        assert_eq!(kmalloc.realloc(memory, 128, Gfp::KERNEL), Ok(memory));
        let new_memory = kmalloc.realloc(memory, 129, Gfp::ZERO).unwrap();
        assert!(new_memory != memory && bytes(new_memory, 100).iter().all(|byte| *byte == 4));
        assert_eq!(kmalloc.realloc(new_memory, 0, Gfp::KERNEL), Ok(ZERO_SIZE));
        let memory = kmalloc.realloc(ZERO_SIZE, 10, Gfp::KERNEL).unwrap();
        kmalloc.free(memory);
    }
    assert_all_memory_returned(&subsystem);
}

#[test]
fn huge_memory_of_concurrent_threads_does_not_overlap() {
    let subsystem = Subsystem::new(uslab::Config::default()).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4_u8 {
            let malloc = &malloc;
            scope.spawn(move || {
                let mut used_blocks: Vec<(NonNull<u8>, usize)> = vec![];
                for i in 0..60 {
                    let size = (5 + i % 7) * MIB;
                    let memory = malloc.alloc(layout(size, 8), Gfp::KERNEL).unwrap();
                    bytes(memory, 100).fill(t);
                    used_blocks.push((memory, size));
                    if i % 3 > 0 {
                        let (memory, size) = used_blocks.swap_remove(i * 31 % used_blocks.len());
                        assert!(bytes(memory, 100).iter().all(|byte| *byte == t));
                        // SAFETY: the memory was allocated above with this layout.
                        unsafe { malloc.free_sized(memory, layout(size, 8)) };
                    }
                }
                // SAFETY: the memory was allocated above, and is freed once.
                used_blocks.iter().for_each(|(memory, _)| unsafe { malloc.free(*memory) });
            });
        }
    });
    assert_eq!(subsystem.check().unwrap().huge_pages, 0);
}

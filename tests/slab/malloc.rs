//! Tests malloc beyond its size classes: reallocation in place and by copying, and memory larger than the largest
//! block.

use crate::common::{assert_all_given_back, config, subsystem};
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

/// Returns the first bytes of memory that the caller owns.
fn bytes(memory: NonNull<u8>, n: usize) -> &'static mut [u8] {
    // SAFETY: each test passes memory that it has allocated and does not use in another way at the same time.
    unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), n) }
}

/// Reallocates through these sizes. Returns for each step `true` if the memory stayed in place.
fn walk(sizes: &[usize], sized: bool) -> Vec<bool> {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let mut size = 100;
    let mut memory = malloc.alloc(layout(size, 16), Gfp::KERNEL).unwrap();
    let mut stayed = vec![];
    for (i, &next) in sizes.iter().enumerate() {
        let kept = size.min(next);
        bytes(memory, kept).fill(i as u8);
        // SAFETY: the memory was allocated with this layout; if it was resized without a layout, it is freed without
        // one.
        let moved = unsafe {
            match sized {
                true => malloc.realloc_sized(memory, layout(size, 16), next, Gfp::KERNEL),
                false => malloc.realloc(memory, next),
            }
        }
        .unwrap();
        stayed.push(moved == memory);
        assert!(bytes(moved, kept).iter().all(|byte| *byte == i as u8), "{size} to {next}");
        // SAFETY: `moved` is allocated and in use.
        assert!(unsafe { malloc.usable_size(moved) } >= next);
        (memory, size) = (moved, next);
    }
    // SAFETY: the memory was allocated above with the layout of the last size, and is freed once. The option
    // `check_frees` would report a layout of another class.
    unsafe { if sized { malloc.free_sized(memory, layout(size, 16)) } else { malloc.free(memory) } }
    assert_all_given_back(&subsystem);
    stayed
}

#[test]
fn realloc_in_place_wastes_at_most_half_the_block() {
    let sizes = [112, 56, 55, 64, 65, 32_768, 32_769, 64 << 10, 32 << 10, 4 * MIB, 4 * MIB + 1, 5 * MIB];
    let stays = [true, true, false, true, false, false, false, true, true, false, false];
    assert_eq!(walk(&sizes, false)[..11], stays);
}

/// Regression test: memory that had shrunk in place was freed by its new layout, and therefore to the cache of a
/// smaller class.
#[test]
fn realloc_keeps_sized_allocations_in_their_class() {
    let sizes = [112, 97, 96, 96, 32_768, 32_769, 64 << 10, 40 << 10, 32 << 10, 4 * MIB + 1];
    let stays = [true, true, false, true, false, false, true, true, false, false];
    assert_eq!(walk(&sizes, true), stays);
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
    assert_all_given_back(&subsystem);
}

#[test]
fn huge_memory_is_zeroed_and_aligned() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    let wanted = [(5 * MIB, 8), (4 * MIB + 1, 4096), (100, 8 * MIB), (20 * MIB, 64 * MIB), (0, 16 * MIB)];
    let held = wanted.map(|(size, align)| {
        let memory = malloc.alloc(layout(size, align), Gfp::ZERO).unwrap();
        assert!(memory.addr().get().is_multiple_of(align));
        assert!(bytes(memory, size).iter().all(|byte| *byte == 0));
        bytes(memory, size).fill(size as u8);
        // SAFETY: the memory was allocated just now.
        assert!(unsafe { malloc.usable_size(memory) } >= size.max(1));
        memory
    });
    let pages = wanted.map(|(size, _)| size.max(1).div_ceil(4096) as u64).iter().sum();
    let info = subsystem.info().huge;
    assert_eq!((info.allocs, info.frees, info.pages), (5, 0, pages));
    assert_eq!(subsystem.check().unwrap().huge_pages, pages);
    for (memory, (size, align)) in held.into_iter().zip(wanted) {
        assert!(bytes(memory, size).iter().all(|byte| *byte == size as u8));
        // SAFETY: the memory was allocated above with this layout, and is freed once.
        unsafe {
            if align > 4096 { malloc.free(memory) } else { malloc.free_sized(memory, layout(size, align)) }
        }
    }
    assert_eq!(subsystem.info().huge.frees, 5);
    assert_all_given_back(&subsystem);
}

#[test]
fn huge_memory_keeps_its_alignment_when_grown() {
    let subsystem = subsystem(1);
    let malloc = Malloc::new(&subsystem).unwrap();
    for align in [16, 4096, 2 * MIB] {
        let mut size = 5 * MIB;
        let mut memory = malloc.alloc(layout(size, align), Gfp::KERNEL).unwrap();
        bytes(memory, size).fill(9);
        for next in [50 * MIB, 6 * MIB + 1, 70 * MIB] {
            let kept = size.min(next);
            // SAFETY: the memory was allocated with this layout.
            memory = unsafe { malloc.realloc_sized(memory, layout(size, align), next, Gfp::ZERO) }.unwrap();
            assert!(memory.addr().get().is_multiple_of(align));
            let (old, new) = bytes(memory, next).split_at_mut(kept);
            assert!(old.iter().all(|byte| *byte == 9) && new.iter().all(|byte| *byte == 0), "{next}");
            new.fill(9);
            size = next;
            subsystem.check().unwrap();
        }
        // SAFETY: the memory was allocated with this layout, and is freed once.
        unsafe { malloc.free_sized(memory, layout(size, align)) };
    }
    let info = subsystem.info().huge;
    assert_eq!(info.frees, info.allocs);
    assert_all_given_back(&subsystem);
}

/// Returns a subsystem with a limit of `mib` MiB, which includes mappings.
fn limited(mib: usize) -> Subsystem {
    let mut config = config(4, 1, mib * MIB);
    config.pages.limited = true;
    Subsystem::new(config).unwrap()
}
/// Returns the MiB charged for mappings. Checks that all counts agree.
fn charged(subsystem: &Subsystem) -> u64 {
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
    let held = [alloc(24).unwrap(), alloc(24).unwrap()];
    assert_eq!(alloc(24), Err(AllocError::Refused { bytes: 24 * MIB }));
    assert_eq!(charged(&subsystem), 48);
    // The rest serves blocks, and no more than that.
    let blocks: Vec<_> = std::iter::from_fn(|| alloc(1).ok()).collect();
    assert!((12..=16).contains(&blocks.len()), "{} MiB are allocated next to 48 of 64", blocks.len());
    blocks.into_iter().for_each(free);
    free(held[0]);
    let again = alloc(24).unwrap();
    free(again);
    free(held[1]);
    // Kept mappings that were freed are released for blocks.
    let blocks: Vec<_> = std::iter::from_fn(|| alloc(1).ok()).collect();
    assert!(blocks.len() > 56, "{} MiB of 64", blocks.len());
    assert_eq!(charged(&subsystem), 0);
    blocks.into_iter().for_each(free);
    // Free pages in magazines and in zones are released for a mapping.
    let all = alloc(62).unwrap();
    assert_eq!(charged(&subsystem), 62);
    free(all);
    subsystem.shrink();
    assert_eq!(charged(&subsystem), 0);
    assert_all_given_back(&subsystem);
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
    for (next, fits) in [(40, true), (60, true), (70, false), (61, true), (8, true), (30, true)] {
        // SAFETY: the memory was allocated with this layout.
        let grown = unsafe { malloc.realloc_sized(memory, layout(size * MIB, 16), next * MIB, Gfp::KERNEL) };
        assert_eq!(grown.is_ok(), fits, "{size} to {next} MiB: {grown:?}");
        (memory, size) = grown.map_or((memory, size), |grown| (grown, next));
        assert_eq!(charged(&subsystem), size as u64);
        assert!(bytes(memory, 8 * MIB).iter().all(|byte| *byte == 9), "{next}");
    }
    let other = malloc.alloc(layout(30 * MIB, 16), Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated with this layout; a failed `realloc` leaves it allocated.
    let grown = unsafe { malloc.realloc_sized(memory, layout(30 * MIB, 16), 40 * MIB, Gfp::KERNEL) };
    assert_eq!((grown.is_err(), charged(&subsystem)), (true, 60));
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [memory, other].into_iter().for_each(|memory| malloc.free(memory)) };
    subsystem.shrink();
    assert_eq!(charged(&subsystem), 0);
    assert_all_given_back(&subsystem);
}

/// Regression test: a mapping of size 0 was charged as no page, so one page too many was uncharged.
#[test]
fn mapping_resized_to_zero_is_charged_a_page() {
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
    assert_all_given_back(&subsystem);
}

/// Regression test: when a guarded mapping moved to grow, the charge of its growth in place remained.
#[test]
fn growing_a_guarded_mapping_is_charged_once() {
    let mut config = config(4, 1, 64 * MIB);
    (config.pages.limited, config.harden.guard_pages) = (true, true);
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let (small, large) = (layout(5 * MIB, 16), layout(9 * MIB, 16));
    let memory = malloc.alloc(small, Gfp::KERNEL).unwrap();
    // SAFETY: the memory was allocated with this layout, and is freed with the last one.
    unsafe {
        let memory = malloc.realloc_sized(memory, small, large.size(), Gfp::KERNEL).unwrap();
        assert_eq!(charged(&subsystem), 9, "one more page is charged");
        malloc.free_sized(memory, large);
    }
    assert_eq!(charged(&subsystem), 0);
    assert_all_given_back(&subsystem);
}

/// Regression test: the check reported the callers' charges as a violation.
#[test]
fn census_accepts_charges_made_by_callers() {
    let subsystem = limited(16);
    let malloc = Malloc::new(&subsystem).unwrap();
    let memory = malloc.alloc_block(layout(5 * MIB, 16), Gfp::KERNEL).unwrap();
    assert!(subsystem.pages().charge(3 * MIB / 4096));
    assert_eq!(charged(&subsystem), 8);
    drop(memory);
    subsystem.pages().uncharge(3 * MIB / 4096);
    assert_all_given_back(&subsystem);
}

/// A shrinker that has nothing to drop, and records the flags of its calls.
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

/// Regression test: shrinkers always got the flags `KERNEL`, and were called even for callers that may not reclaim.
#[test]
fn shrinkers_receive_the_allocation_flags_of_the_caller() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let asked = FlagRecorder::default();
    let _registered = subsystem.register_shrinker(asked.clone());
    let [memory, other] = [24, 30].map(|mib| malloc.alloc(layout(mib * MIB, 16), Gfp::KERNEL).unwrap());
    for gfp in [Gfp::NOWAIT, Gfp::NORETRY, Gfp::MEMALLOC, Gfp::NOFS, Gfp::NOIO, Gfp::KERNEL] {
        // SAFETY: the memory was allocated with this layout, and not resized.
        let grown = unsafe { malloc.realloc_sized(memory, layout(24 * MIB, 16), 40 * MIB, gfp) };
        assert_eq!(grown, Err(AllocError::Refused { bytes: 40 * MIB }), "{gfp}");
        let heard = std::mem::take(&mut *asked.0.lock());
        let may = !gfp.intersects(Gfp::NOWAIT | Gfp::NORETRY | Gfp::MEMALLOC);
        assert_eq!(!heard.is_empty(), may, "{gfp}: {heard:?}");
        assert!(heard.iter().all(|heard| *heard == gfp), "{gfp}: {heard:?}");
    }
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [memory, other].into_iter().for_each(|memory| malloc.free(memory)) };
    assert_all_given_back(&subsystem);
}

/// Regression test: for any caller, pages were drained from all CPUs.
#[test]
fn huge_allocation_drains_cpus_only_if_reclaim_is_allowed() {
    let subsystem = limited(64);
    let malloc = Malloc::new(&subsystem).unwrap();
    let cache = KmemCache::builder("kept", 64).build_in(&subsystem).unwrap();
    on_cpu(1);
    drop(cache.alloc_block(Gfp::KERNEL).unwrap());
    on_cpu(0);
    let kept = || cache.info().in_magazines;
    let held = malloc.alloc_block(layout(48 * MIB, 16), Gfp::KERNEL).unwrap();
    let before = kept();
    assert!(before > 0);
    let refused = |gfp| {
        let error = malloc.alloc(layout(24 * MIB, 16), gfp).unwrap_err();
        assert_eq!(error, AllocError::Refused { bytes: 24 * MIB });
    };
    [Gfp::NOWAIT, Gfp::NORETRY, Gfp::MEMALLOC].into_iter().for_each(refused);
    assert_eq!(kept(), before);
    refused(Gfp::KERNEL);
    assert_eq!(kept(), 0);
    drop(held);
    assert_all_given_back(&subsystem);
}

/// Regression test: the malloc gave up addresses permanently, although the limit then refused the request.
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
    let held = alloc(40).unwrap();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let taken = statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    setrlimit(Resource::RLIMIT_AS, taken + 10 * MIB as u64, 1 << 62).unwrap();
    assert!(
        alloc(30).is_err() && !subsystem.pages().has_unmapped_pages(),
        "30 MiB must not fit next to 40 of 64"
    );
    let more = alloc(15).unwrap();
    assert!(subsystem.pages().has_unmapped_pages(), "15 MiB must not fit into addresses for 10");
    drop((held, more));
    subsystem.shrink();
    assert_eq!(charged(&subsystem), 0);
}

/// Regression test: the memory of a block that could not be unmapped was kept without being counted.
#[test]
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn mapping_that_cannot_be_unmapped_is_decommitted() {
    use nix::libc::{PROT_READ, mprotect};
    use uslab_buddy::{Backend, Faults, region::Region};
    if !is_alone("malloc::mapping_that_cannot_be_unmapped_is_decommitted") {
        return;
    }
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let most = most.trim().parse::<usize>().unwrap();
    if most > 1 << 20 {
        println!("skipped: the test cannot create {most} mappings");
        return;
    }
    let committed = |bytes| Region::committed(bytes, 4096, Backend::Os, &Faults::default()).unwrap();
    let mut first = committed(24 * MIB);
    let mut middle = first.split_off(8 * MIB).unwrap();
    let _last = middle.split_off(8 * MIB).unwrap();
    bytes(middle.base(), 8 * MIB).fill(9);
    // The protection of every second page is changed, so that each is a mapping, until no further mapping is possible.
    let crowd = committed(2 * most * 4096);
    // SAFETY: this test owns the pages, which are not accessed.
    let protect = |page| unsafe { mprotect(crowd.base().add(page * 4096).as_ptr().cast(), 4096, PROT_READ) };
    let made = (0..most).take_while(|n| protect(2 * n + 1) == 0).count();
    assert!(made < most, "the system has no such limit");
    let before = resident();
    drop(middle);
    let gone = before.saturating_sub(resident());
    drop(crowd);
    assert!(gone > 7 * MIB, "{gone} bytes of 8 MiB were returned");
}

/// Regression test: if an unmap failed, the addresses of the block were lost.
#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is had as a whole")]
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
        let held = piece();
        let before = subsystem.info().huge.unmapped;
        faults.arm(uslab::faults::parse("decommit").unwrap());
        drop(held);
        assert_eq!(subsystem.info().huge.unmapped, before);
        assert!(subsystem.info().huge.cached_pages >= 2048);
        subsystem.shrink();
        assert!(subsystem.info().huge.cached_pages >= 2048, "the allocation must still be refused");
        faults.disarm();
        subsystem.shrink();
        assert_eq!((subsystem.info().huge.cached_pages, charged(&subsystem)), (0, 0));
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
    let (had, refused, mapped) = (Counter::new(0), Counter::new(0), Counter::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (malloc, had, refused, mapped) = (&malloc, &had, &refused, &mapped);
            scope.spawn(move || {
                on_cpu(thread as u32);
                let mut held = Vec::new();
                for step in 0..300_usize {
                    let mib = [1, 5, 9, 3, 12, 2][(step * 7 + thread * 5) % 6];
                    let mut is_full = false;
                    match malloc.alloc(layout(mib * MIB, 16), Gfp::KERNEL) {
                        Ok(memory) => {
                            had.add(mib as u64);
                            assert!(had.get() <= LIMIT as u64, "{} MiB of {LIMIT}", had.get());
                            mapped.add((mib > 4).into());
                            bytes(memory, mib * MIB)[0] = 1;
                            held.push((memory, mib));
                        }
                        Err(_) => {
                            refused.add(1);
                            is_full = true;
                        }
                    }
                    // A single thread holds enough to reach the limit.
                    if held.len() > 4 + step % 8 || is_full && !held.is_empty() {
                        let (memory, mib) = held.swap_remove(step % held.len());
                        had.sub(mib as u64);
                        // SAFETY: the memory was allocated above, and is freed once.
                        unsafe { malloc.free(memory) };
                    }
                }
                for (memory, mib) in held {
                    had.sub(mib as u64);
                    // SAFETY: the memory was allocated above, and is freed once.
                    unsafe { malloc.free(memory) };
                }
            });
        }
    });
    assert!(refused.get() > 0 && mapped.get() > 0, "{} refused, {} mapped", refused.get(), mapped.get());
    subsystem.shrink();
    assert_eq!(charged(&subsystem), 0);
    assert_all_given_back(&subsystem);
}

/// Returns a subsystem that keeps up to `bytes` of freed mappings.
fn keeping(bytes: usize) -> Subsystem {
    Subsystem::new(uslab::Config { huge_cache: bytes, ..config(1, 1, 16 * MIB) }).unwrap()
}
/// Returns the MiB of mappings above the largest block: in use, and kept.
fn huge(subsystem: &Subsystem) -> (u64, u64) {
    subsystem.check().unwrap();
    let info = subsystem.info().huge;
    (info.pages >> 8, info.cached_pages >> 8)
}

/// Regression test: each block above 4 MiB was unmapped when it was freed, so the next block had a fault for each page.
#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is had as a whole")]
fn freed_mapping_serves_the_next_fitting_request() {
    let subsystem = keeping(128 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let alloc = |size, gfp| malloc.alloc(layout(size, 8), gfp).unwrap();
    let first = alloc(16 * MIB, Gfp::KERNEL);
    bytes(first, 16 * MIB).fill(9);
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(first) };
    assert_eq!(huge(&subsystem), (0, 16));
    let again = alloc(6 * MIB, Gfp::KERNEL);
    assert_eq!((again, huge(&subsystem)), (first, (6, 10)));
    assert!(bytes(again, 6 * MIB).iter().all(|byte| *byte == 9), "the memory must be zero");
    // The memory is zeroed if requested, and at most an eighth larger than needed.
    let zero = alloc(9 * MIB, Gfp::ZERO);
    assert!(bytes(zero, 9 * MIB).iter().all(|byte| *byte == 0));
    assert_eq!(huge(&subsystem), (16, 0));
    let fresh = alloc(5 * MIB, Gfp::ZERO);
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe { [again, zero, fresh].into_iter().for_each(|memory| malloc.free(memory)) };
    assert_eq!(huge(&subsystem), (0, 21));
    let info = subsystem.info().huge;
    assert_eq!((info.allocs, info.frees, info.reused, info.unmapped), (4, 4, 2, 0));
    assert_eq!((info.paths.pages, info.paths.commit), (6, 2));
    let statistics = subsystem.info().statistics().to_string();
    let line = "# huge: 0 mappings of 0 bytes in use, 22020096 bytes kept; 2 of 4 were reused\n";
    assert!(statistics.contains(line), "{statistics}");
    assert_eq!(statistics.parse::<uslab::SlabInfo>().unwrap(), subsystem.slabinfo());
    subsystem.shrink();
    assert_eq!(huge(&subsystem), (0, 0));
    // The count is two mappings, or one if they were neighbours and were joined.
    assert!((1..=2).contains(&subsystem.info().huge.unmapped));
    assert_all_given_back(&subsystem);
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is had as a whole")]
fn kept_freed_mappings_are_bounded_by_mappings_in_use() {
    let subsystem = keeping(64 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let some = |n: usize, mib| -> Vec<_> {
        (0..n).map(|_| malloc.alloc_block(layout(mib * MIB, 8), Gfp::KERNEL).unwrap()).collect()
    };
    let mut held = some(12, 10);
    // The subsystem keeps as many MiB as are in use, up to the option, and at least a quarter of the option.
    for (left, kept) in [(11, 10), (10, 20), (8, 40), (6, 60), (5, 50), (3, 30), (1, 16), (0, 16)] {
        held.truncate(left);
        assert_eq!(huge(&subsystem), (10 * left as u64, kept), "{left} left");
    }
    subsystem.shrink();
    // A block above the bound is not kept at all.
    drop(some(1, 17));
    assert_eq!(huge(&subsystem), (0, 0));
    let none = keeping(0);
    let malloc = Malloc::new(&none).unwrap();
    drop(malloc.alloc_block(layout(5 * MIB, 8), Gfp::KERNEL).unwrap());
    assert_eq!((huge(&none), none.info().huge.unmapped), ((0, 0), 1));
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is had as a whole")]
fn freed_mapping_is_unmapped_after_two_idle_intervals() {
    let subsystem = keeping(256 * MIB);
    let malloc = Malloc::new(&subsystem).unwrap();
    let piece = |mib| drop(malloc.alloc_block(layout(mib * MIB, 8), Gfp::KERNEL).unwrap());
    let apart = malloc.alloc_block(layout(5 * MIB, 8), Gfp::KERNEL).unwrap();
    piece(20);
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (0, (5, 20)));
    // The use is measured again from here.
    piece(20);
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (0, (5, 20)));
    assert_eq!((subsystem.end_interval(), huge(&subsystem)), (20 * MIB, (5, 0)));
    piece(30);
    subsystem.reap();
    subsystem.reap();
    assert_eq!(huge(&subsystem), (5, 0), "a manual reap also frees the mapping");
    drop(apart);
    assert_eq!(huge(&subsystem), (0, 5));
}

#[test]
#[cfg_attr(any(uslab_heap, not(target_os = "linux")), ignore = "the heap's memory is had as a whole")]
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
        let more = piece(12).unwrap();
        faults.disarm();
        assert_eq!(huge(&subsystem), (12, 0), "{rule}");
        drop(more);
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
fn block_across_two_mappings_keeps_its_bytes_when_moved() {
    let subsystem = keeping(256 * MIB);
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
    for next in [25 * MIB, 40 * MIB, 5 * MIB, 90 * MIB] {
        // SAFETY: the memory was allocated with this layout.
        memory = unsafe { malloc.realloc_sized(memory, layout(size, 8), next, Gfp::ZERO) }.unwrap();
        let (old, new) = bytes(memory, next).split_at(size.min(next));
        assert!(old.iter().all(|byte| *byte == 6) && new.iter().all(|byte| *byte == 0), "{size} to {next}");
        bytes(memory, next).fill(6);
        size = next;
        subsystem.check().unwrap();
    }
    // SAFETY: the memory was allocated above, and is freed once.
    unsafe { malloc.free(memory) };
    assert_all_given_back(&subsystem);
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
        let refused = unsafe { malloc.realloc_sized(memory, layout(size, 8), 40 * MIB, Gfp::KERNEL) };
        faults.disarm();
        assert_eq!(refused, Err(AllocError::Refused { bytes: 40 * MIB }));
        // SAFETY: the memory was allocated above with this layout; a failed `realloc` leaves it allocated.
        let refused = unsafe { malloc.realloc_sized(memory, layout(size, 8), usize::MAX, Gfp::KERNEL) };
        assert_eq!(refused, Err(AllocError::TooLarge));
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
        let moved = kmalloc.realloc(memory, 129, Gfp::ZERO).unwrap();
        assert!(moved != memory && bytes(moved, 100).iter().all(|byte| *byte == 4));
        assert_eq!(kmalloc.realloc(moved, 0, Gfp::KERNEL), Ok(ZERO_SIZE));
        let memory = kmalloc.realloc(ZERO_SIZE, 10, Gfp::KERNEL).unwrap();
        kmalloc.free(memory);
    }
    assert_all_given_back(&subsystem);
}

#[test]
fn huge_memory_of_concurrent_threads_does_not_overlap() {
    let subsystem = Subsystem::new(uslab::Config::default()).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4_u8 {
            let malloc = &malloc;
            scope.spawn(move || {
                let mut held: Vec<(NonNull<u8>, usize)> = vec![];
                for i in 0..60 {
                    let size = (5 + i % 7) * MIB;
                    let memory = malloc.alloc(layout(size, 8), Gfp::KERNEL).unwrap();
                    bytes(memory, 100).fill(t);
                    held.push((memory, size));
                    if i % 3 > 0 {
                        let (memory, size) = held.swap_remove(i * 31 % held.len());
                        assert!(bytes(memory, 100).iter().all(|byte| *byte == t));
                        // SAFETY: the memory was allocated above with this layout.
                        unsafe { malloc.free_sized(memory, layout(size, 8)) };
                    }
                }
                // SAFETY: the memory was allocated above, and is freed once.
                held.iter().for_each(|(memory, _)| unsafe { malloc.free(*memory) });
            });
        }
    });
    assert_eq!(subsystem.check().unwrap().huge_pages, 0);
}

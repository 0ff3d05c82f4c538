//! Tests hardened caches and mallocs: the effect of each option, the reports about sampled allocations, and the absence
//! of leaks.

use crate::common::{RecordedReports, config};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeSet;
use uslab::cache::Account;
use uslab::{
    Config, CorruptionKind, Fork, Gfp, Harden, KmemCache, Limit, Magazines, Malloc, ObjectCache, Subsystem,
};
use uslab_magazine::on_cpu;

fn hardened(harden: Harden) -> (Subsystem, RecordedReports) {
    debugged(harden, "-")
}
/// Returns a subsystem with the options in `hardened` and the given rules of `slab_debug`.
fn debugged(harden: Harden, rules: &str) -> (Subsystem, RecordedReports) {
    let (mut config, recorded) = (Config { harden, ..config(2, 1, 64 << 20) }, RecordedReports::default());
    config.slab_debug = rules.parse().unwrap();
    recorded.listen(&mut config);
    on_cpu(0);
    (Subsystem::new(config).unwrap(), recorded)
}
fn kinds(recorded: &RecordedReports) -> Vec<CorruptionKind> {
    recorded.take_reports().into_iter().map(|(kind, _)| kind).collect()
}
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}
/// Returns the first `size` bytes of an object, which must belong to this test.
fn bytes(memory: NonNull<u8>, size: usize) -> &'static mut [u8] {
    // SAFETY: this test owns `size` bytes there.
    unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), size) }
}

/// Changes the byte at an address to a different value.
///
/// # Safety
/// The byte must be readable and writable.
unsafe fn flip_byte(byte: NonNull<u8>) {
    // SAFETY: the caller guarantees that the byte may be read and written.
    unsafe { byte.write(!byte.read()) }
}

/// The address of a freed object, in a type that can be sent to another thread.
struct FreedAddress(NonNull<u8>);
// SAFETY: no thread dereferences the address.
unsafe impl Send for FreedAddress {}

/// Canaries and `slab_debug` both need the bytes after an object. Regression test: if free objects were poisoned
/// without red zones, the poison was reported as a write beyond the requested size.
#[test]
fn slab_debug_and_canaries_can_be_combined() {
    let canaries = Harden { canaries: true, ..Harden::OFF };
    for rules in ["-", "F", "U", "P", "PU", "Z", "ZP", "FZPU"] {
        for harden in [canaries, Harden { zero_on_free: true, zero_on_alloc: true, ..canaries }, Harden::ALL]
        {
            let (subsystem, recorded) = debugged(harden, rules);
            let kind_behind =
                if rules.contains('Z') { CorruptionKind::RedZone } else { CorruptionKind::Overflow };
            let cache = KmemCache::builder("inode", 64).build_in(&subsystem).unwrap();
            for round in 0..3 {
                let objects: Vec<_> = (0..100).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
                objects.iter().for_each(|object| bytes(*object, 64).fill(7));
                assert_eq!((cache.validate().errors(), kinds(&recorded)), (0, vec![]), "{rules} {harden:?}");
                // SAFETY: the objects were allocated above, and each is freed once; the write after one of them is the
                // error under test.
                unsafe {
                    flip_byte(objects[round].add(64));
                    objects.into_iter().for_each(|object| cache.free(object));
                }
                assert_eq!(kinds(&recorded), [kind_behind], "{rules} {harden:?}");
                assert_eq!(cache.validate().errors(), 0, "{rules} {harden:?}");
            }
            let malloc = Malloc::new(&subsystem).unwrap();
            for size in [1, 20, 50, 100, 1000, 5000, 30_000, 40_000] {
                let [first, second, third_block] =
                    [(); 3].map(|()| malloc.alloc(layout(size), Gfp::KERNEL).unwrap());
                // SAFETY: the blocks were allocated above with these layouts, and each is freed once.
                unsafe {
                    assert!(
                        (size..=2 * size + 8).contains(&malloc.usable_size(first)),
                        "{size} {rules} {harden:?}"
                    );
                    for memory in [first, second, third_block] {
                        bytes(memory, malloc.usable_size(memory)).fill(7);
                    }
                    let smaller = malloc.realloc(first, size / 2 + 1).unwrap();
                    bytes(smaller, malloc.usable_size(smaller)).fill(8);
                    let larger_block = malloc.realloc(smaller, size + 7).unwrap();
                    bytes(larger_block, malloc.usable_size(larger_block)).fill(9);
                    malloc.free(larger_block);
                    let other_block =
                        malloc.realloc_sized(second, layout(size), size + 3, Gfp::ZERO).unwrap();
                    assert!(bytes(other_block, size).iter().all(|byte| *byte == 7));
                    malloc.free_sized(other_block, layout(size + 3));
                    assert_eq!(kinds(&recorded), [], "{size} {rules} {harden:?}");
                    if (20..=5000).contains(&size) {
                        flip_byte(third_block.add(malloc.usable_size(third_block)));
                        malloc.free(third_block);
                        assert_eq!(kinds(&recorded), [kind_behind], "{size} {rules} {harden:?}");
                    } else {
                        malloc.free(third_block);
                    }
                }
            }
            assert_eq!(kinds(&recorded), [], "{rules} {harden:?}");
            subsystem.shrink();
            subsystem.check().unwrap();
        }
    }
}

/// Regression test: with canaries and without guard pages, a sized free of a page block was always refused.
#[test]
fn page_block_with_canaries_accepts_a_sized_free() {
    let (subsystem, recorded) = hardened(Harden { canaries: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    for size in [33_000, 40_000, 1 << 20] {
        let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
        // SAFETY: the block was allocated above; the first free is the error under test.
        unsafe {
            malloc.free_sized(memory, layout(size / 3));
            assert_eq!(kinds(&recorded), [CorruptionKind::WrongSize]);
            malloc.free_sized(memory, layout(size));
        }
        assert_eq!(kinds(&recorded), [], "{size}");
    }
    assert_eq!(subsystem.check().unwrap().large_pages, 0);
}

/// Regression test: frees bypassed the quarantine, and put the objects into the magazines.
#[test]
fn frees_enter_the_quarantine_while_a_profile_runs() {
    let (subsystem, _) = hardened(Harden { quarantine: 64 << 10, ..Harden::OFF });
    let cache = KmemCache::builder("kept", 64).build_in(&subsystem).unwrap();
    subsystem.start_profile(4096).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    assert_eq!((cache.info().quarantined, cache.info().used), (1, 0));
    assert_ne!(cache.alloc_block(Gfp::KERNEL).unwrap().address(), object);
    subsystem.stop_profile();
    subsystem.check().unwrap();
}

#[test]
fn concurrent_double_frees_succeed_only_once() {
    let (subsystem, recorded) = hardened(Harden::OFF);
    let cache = KmemCache::builder("twice", 64).check_frees(true).build_in(&subsystem).unwrap();
    let (threads, rounds) = (4, 2000);
    let barrier = std::sync::Barrier::new(threads);
    let objects: Vec<_> = (0..rounds).map(|_| FreedAddress(cache.alloc(Gfp::KERNEL).unwrap())).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let objects: Vec<_> = objects.iter().map(|object| FreedAddress(object.0)).collect();
            let (cache, barrier) = (&cache, &barrier);
            scope.spawn(move || {
                on_cpu(thread as u32 % 2);
                for FreedAddress(object) in objects {
                    barrier.wait();
                    // SAFETY: all frees but one are the error under test; the object is not used.
                    unsafe { cache.free(object) };
                }
            });
        }
    });
    assert_eq!(kinds(&recorded), vec![CorruptionKind::DoubleFree; (threads - 1) * rounds]);
    assert_eq!((cache.info().used, cache.info().frees), (0, rounds as u64));
    subsystem.check().unwrap();
}

#[test]
fn free_with_a_wrong_size_is_reported() {
    for harden in [Harden::OFF, Harden::ALL] {
        let (subsystem, recorded) = hardened(harden);
        let malloc = Malloc::new(&subsystem).unwrap();
        for size in [1, 20, 40, 1000, 5000, 40_000, 100_000, 5 << 20] {
            let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
            for wrong_size in [size * 3, size / 3].into_iter().filter(|wrong_size| *wrong_size > 0) {
                // SAFETY: the memory was allocated above.
                let usable = unsafe { malloc.usable_size(memory) };
                // Without canaries the size is only known by the class and by the least that a realloc leaves in the
                // class.
                let is_seen = harden.canaries && size <= 30_000
                    || wrong_size > usable
                    || wrong_size < usable / 2 && usable > 16;
                if !is_seen {
                    continue;
                }
                // SAFETY: the free is the error under test.
                unsafe { malloc.free_sized(memory, layout(wrong_size)) };
                // A wrong class may also be reported as the wrong cache.
                let reports = kinds(&recorded);
                let expected_kinds = [[CorruptionKind::WrongSize], [CorruptionKind::WrongCache]]
                    .iter()
                    .any(|kind| reports == kind);
                assert!(
                    expected_kinds && (!harden.canaries || reports == [CorruptionKind::WrongSize]),
                    "{size} as {wrong_size}: {reports:?}, {usable} usable, {harden:?}"
                );
            }
            // SAFETY: the memory was allocated above with this layout.
            unsafe { malloc.free_sized(memory, layout(size)) };
            assert_eq!(kinds(&recorded), [], "{size}");
        }
        // A reallocated block has the new size.
        for (size, new) in [(100, 60), (60, 100), (1000, 1020), (40_000, 33_000), (100, 40_000), (40_000, 10)]
        {
            let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
            // SAFETY: the memory was allocated above.
            let memory = unsafe { malloc.realloc(memory, new).unwrap() };
            let sized = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
            // SAFETY: the blocks were allocated above, and each is freed once with its layout.
            unsafe {
                malloc.free(memory);
                let sized = malloc.realloc_sized(sized, layout(size), new, Gfp::KERNEL).unwrap();
                malloc.free_sized(sized, layout(new));
            }
            assert_eq!(kinds(&recorded), [], "{size} to {new}");
        }
        subsystem.shrink();
        assert_eq!(subsystem.check().unwrap().used, 0);
    }
}

/// Regression test: after an allocation with a large alignment, a sized free was reported as wrong, because a reused
/// mapping may be an eighth larger than requested.
#[test]
fn free_by_size_is_accepted_in_a_reused_mapping() {
    let (mut config, recorded) =
        (Config { check_frees: true, ..config(2, 1, 64 << 20) }, RecordedReports::default());
    recorded.listen(&mut config);
    on_cpu(0);
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    for pages in [16, 15] {
        let layout = Layout::from_size_align(pages * 4096, 8 << 20).unwrap();
        let memory = malloc.alloc(layout, Gfp::KERNEL).unwrap();
        // SAFETY: the memory was allocated above with this layout, and is freed once.
        unsafe { malloc.free_sized(memory, layout) };
    }
    assert_eq!(recorded.take_reports(), []);
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    assert_eq!(subsystem.info().huge.reused, 1);
}

/// Regression test: idle mappings were unmapped but not counted, so the reaper noticed no work.
#[test]
fn idle_mappings_are_unmapped_and_counted() {
    let (subsystem, _) = hardened(Harden { guard_pages: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    let unmapped = || subsystem.info().huge.unmapped;
    let piece = || drop(malloc.alloc_block(layout(5 << 20), Gfp::KERNEL).unwrap());
    (0..64).for_each(|_| piece());
    assert_eq!(unmapped(), 0, "the quarantine must hold this many objects");
    piece();
    assert_eq!((unmapped(), subsystem.info().huge.frees), (1, 65));
    subsystem.check().unwrap();
}

/// Regression test: a write before an object was reported only if the preceding object was in use, and only when the
/// preceding object was freed.
#[test]
fn write_between_two_objects_is_reported_by_freeing_either() {
    let (subsystem, recorded) = hardened(Harden { canaries: true, ..Harden::OFF });
    let cache = KmemCache::builder("inode", 64).build_in(&subsystem).unwrap();
    let stride = cache.geometry().stride();
    let mut objects: Vec<_> = (0..500).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    objects.sort();
    let pairs: Vec<_> =
        objects.windows(2).filter(|pair| pair[1].addr().get() - pair[0].addr().get() == stride).collect();
    assert!(pairs.len() > 100, "{} pairs", pairs.len());
    // For each pair: the object that is freed before the write, if any, and the object whose free reports it.
    let cases = [(None, 0), (None, 1), (Some(0), 1)];
    let mut freed = BTreeSet::new();
    for (at, (before, names)) in cases.into_iter().enumerate() {
        let pair = pairs[20 * (at + 1)];
        let mut free = |other_index: usize| {
            // SAFETY: the object was allocated above, and is freed once; pairs are not adjacent.
            unsafe { cache.free(pair[other_index]) };
            assert!(freed.insert(pair[other_index]));
        };
        before.into_iter().for_each(&mut free);
        // SAFETY: the write is the error under test.
        unsafe { flip_byte(pair[1].sub(1)) };
        assert_eq!(kinds(&recorded), []);
        free(names);
        let reports = recorded.take_reports();
        let object_text = format!("object {:#x}", pair[0].addr());
        assert!(
            reports.len() == 1 && reports[0].1.contains(&object_text),
            "{before:?} {names}: {reports:?}, not {object_text}"
        );
        assert_eq!(reports[0].0, CorruptionKind::Overflow);
        // The report repaired the bytes, so the other free is not reported.
        [0, 1]
            .into_iter()
            .filter(|other_index| Some(*other_index) != before && *other_index != names)
            .for_each(&mut free);
        assert_eq!(kinds(&recorded), []);
    }
    // The preceding object was never allocated.
    let single_cache =
        KmemCache::builder("alone", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
    let [_first_object, second] = [(); 2].map(|()| single_cache.alloc(Gfp::KERNEL).unwrap());
    let third_block = second.map_addr(|address| address.saturating_add(stride));
    let fourth_object =
        core::iter::repeat_with(|| single_cache.alloc(Gfp::KERNEL).unwrap()).take(2).last().unwrap();
    assert_eq!(fourth_object.addr().get() - third_block.addr().get(), stride);
    // SAFETY: the writes are the error under test, within the slab; each object is freed once.
    unsafe {
        flip_byte(fourth_object.sub(3));
        single_cache.free(fourth_object);
    }
    assert_eq!(kinds(&recorded), [CorruptionKind::Overflow]);
}

/// Regression test: decommitting pages destroyed the canaries, so each free of a neighbouring object reported damage.
#[test]
fn pages_of_free_objects_with_canaries_stay_committed() {
    let (subsystem, recorded) = hardened(Harden { canaries: true, ..Harden::OFF });
    let cache = KmemCache::builder("entry", 1000).build_in(&subsystem).unwrap();
    let blocks: Vec<_> = (0..2000).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
    let (kept_blocks, freed): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(n, _)| n % 10 == 0);
    drop(freed);
    cache.shrink();
    assert_eq!(cache.info().discarded, 0);
    drop(kept_blocks);
    assert_eq!(kinds(&recorded), []);
}

#[test]
fn write_past_an_object_is_reported_at_its_free() {
    let (subsystem, recorded) = hardened(Harden { canaries: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    for size in [1, 16, 24, 100, 1000, 4096, 32_000] {
        let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
        // SAFETY: the memory was allocated above.
        assert_eq!(unsafe { malloc.usable_size(memory) }, size);
        bytes(memory, size).fill(1);
        // SAFETY: the write is the error under test; it is still inside the object's stride.
        unsafe { memory.add(size).write(!memory.add(size).read()) };
        // SAFETY: the memory was allocated above, and is freed once.
        unsafe { malloc.free(memory) };
        assert_eq!(kinds(&recorded), [CorruptionKind::Overflow], "{size}");
        // Regression test: the write was reported as a wrong size, and the memory was never freed.
        let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
        // SAFETY: the write is the error under test, still inside the stride; the memory is freed once.
        unsafe {
            memory.add(size).write(!memory.add(size).read());
            malloc.free_sized(memory, layout(size));
        }
        assert_eq!(kinds(&recorded), [CorruptionKind::Overflow], "{size}");
    }
    assert_eq!(subsystem.check().unwrap().used, 0);
    // All bytes of an object with a damaged canary are usable, except the canary.
    let usable = |size| {
        let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
        // SAFETY: the memory was allocated above, and is freed once; the write is the error under test, still inside
        // the stride.
        unsafe {
            memory.add(size).write(!memory.add(size).read());
            let usable = malloc.usable_size(memory);
            malloc.free(memory);
            usable
        }
    };
    assert!((100..200).any(|size| usable(size) == size) && (100..200).all(|size| usable(size) >= size));
    kinds(&recorded);
    // Objects of a cache also have a canary, if it is a small part of the object.
    let cache = KmemCache::builder("inode", 600).build_in(&subsystem).unwrap();
    assert_eq!((cache.geometry().object_size(), cache.geometry().stride()), (600, 608));
    let inode = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the object was allocated above, and is freed once; the write is the error under test.
    unsafe {
        inode.add(600).write(!inode.add(600).read());
        cache.free(inode);
    }
    let reports = recorded.take_reports();
    assert!(
        reports.len() == 1 && reports[0].1.starts_with("cache inode: write past the end of an object 0x"),
        "{reports:?}"
    );
    // A canary adds at most a quarter.
    for (size, stride) in [(16, 16), (24, 24), (32, 40)] {
        let small = KmemCache::builder("small", size).build_in(&subsystem).unwrap();
        assert_eq!(small.geometry().stride(), stride);
    }
    subsystem.check().unwrap();
}

#[test]
fn write_to_a_free_object_is_reported_on_reuse() {
    let (subsystem, recorded) = hardened(Harden { zero_on_free: true, ..Harden::OFF });
    let cache = KmemCache::builder("zeroed", 256).build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    assert!(bytes(object, 256).iter().all(|byte| *byte == 0));
    bytes(object, 256).fill(7);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(object) };
    assert!(bytes(object, 256).iter().all(|byte| *byte == 0));
    bytes(object, 256)[200] = 1;
    assert_eq!(kinds(&recorded), []);
    let reused = cache.alloc(Gfp::KERNEL).unwrap();
    assert_eq!((reused, kinds(&recorded)), (object, vec![CorruptionKind::WriteAfterFree]));
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(reused) };
    // Constructed objects stay constructed.
    let constructed_cache = ObjectCache::builder("built").ctor(|| 7_u64).build_in(&subsystem).unwrap();
    (0..3).for_each(|_| assert_eq!(*constructed_cache.alloc().unwrap(), 7));
    assert_eq!(kinds(&recorded), []);
    subsystem.check().unwrap();
}

#[test]
fn zero_on_alloc_zeroes_every_allocation() {
    let (subsystem, recorded) = hardened(Harden { zero_on_alloc: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    for size in [24, 1000, 40_000, 5 << 20] {
        for _ in 0..3 {
            let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
            assert!(bytes(memory, size).iter().all(|byte| *byte == 0), "{size}");
            bytes(memory, size).fill(9);
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { malloc.free(memory) };
        }
    }
    assert_eq!(kinds(&recorded), []);
}

/// Returns the order in which the objects of slabs are allocated.
fn order(harden: Harden) -> Vec<usize> {
    let (subsystem, _) = hardened(harden);
    let cache =
        KmemCache::builder("drawn", 64).magazines(uslab::Magazines::Off).build_in(&subsystem).unwrap();
    let objects: Vec<_> = (0..256).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
    let base = objects.iter().min().unwrap().addr().get();
    // SAFETY: the objects were allocated above, and each is freed once.
    objects.iter().for_each(|object| unsafe { cache.free(*object) });
    subsystem.check().unwrap();
    objects.iter().map(|object| object.addr().get() - base).collect()
}

#[test]
fn random_object_order_depends_on_the_seed() {
    let seeded = |seed| order(Harden { random_order: true, seed: Some(seed), ..Harden::OFF });
    assert!(order(Harden::OFF)[..64].is_sorted(), "the object is of the slab");
    for seed in 1..=20 {
        let drawn_order = seeded(seed);
        assert_eq!(drawn_order, seeded(seed), "seed {seed}");
        assert_ne!(drawn_order, seeded(seed + 1), "seed {seed}");
        let indexes: BTreeSet<_> = drawn_order.iter().collect();
        assert_eq!(indexes.len(), 256);
        let neighbours = drawn_order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 64).count();
        assert!(neighbours < 40, "seed {seed}: {neighbours} of 255 objects are adjacent to the previous one");
    }
    let unknown = || order(Harden { random_order: true, ..Harden::OFF });
    assert_ne!(unknown(), unknown());
}

/// Regression test: the allocation order of a slab's objects depended only on the slab's page.
#[test]
fn recreated_slab_uses_a_new_random_object_order() {
    let (subsystem, _) = hardened(Harden { random_order: true, seed: Some(7), ..Harden::OFF });
    let cache =
        KmemCache::builder("again", 64).magazines(uslab::Magazines::Off).build_in(&subsystem).unwrap();
    let first_of = || {
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
        assert_eq!(cache.shrink(), 1);
        object.addr().get() % 4096
    };
    let places: BTreeSet<_> = (0..16).map(|_| first_of()).collect();
    assert!(places.len() > 8, "{places:?}");
}

#[test]
fn quarantine_delays_the_reuse_of_freed_objects() {
    let (subsystem, recorded) = hardened(Harden { quarantine: 64 << 10, ..Harden::OFF });
    let cache = KmemCache::builder("kept", 256).build_in(&subsystem).unwrap();
    let mut last = BTreeSet::new();
    for round in 0..4000 {
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        assert!(!last.contains(&object), "round {round}: the object is one of the last 100");
        last.insert(object);
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
        if last.len() == 100 {
            last.clear();
        }
    }
    let info = cache.info();
    assert_eq!((info.quarantined, info.used, info.allocs, info.frees), (256, 0, 4000, 4000));
    assert_eq!(info.objects, info.in_magazines + info.in_depot + info.quarantined + info.free_in_slabs);
    let census = subsystem.check().unwrap();
    assert_eq!((census.quarantined, census.used), (256, 0));
    // A reap flushes quarantined objects of the previous interval; a shrink flushes all.
    subsystem.reap();
    assert_eq!(cache.info().quarantined, 256, "the sample must be from this interval");
    subsystem.reap();
    assert_eq!(cache.info().quarantined, 0);
    // SAFETY: the object was allocated just now, and is freed once.
    unsafe { cache.free(cache.alloc(Gfp::KERNEL).unwrap()) };
    assert_eq!(cache.info().quarantined, 1);
    subsystem.shrink();
    assert_eq!((cache.info().quarantined, cache.info().slabs), (0, 0));
    // Quarantined objects are also used if no other object is left.
    for magazines in [Magazines::BySize, Magazines::Off] {
        let full_cache = KmemCache::builder("full", 256).magazines(magazines).limit(Limit::Slabs(1));
        let full_cache = full_cache.build_in(&subsystem).unwrap();
        drop(full_cache.alloc_blocks(Gfp::KERNEL, full_cache.geometry().objects()).unwrap());
        assert!(full_cache.info().quarantined > 0 && full_cache.alloc_block(Gfp::KERNEL).is_ok());
    }
    // A second free of a quarantined object is a double free.
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the second free is the error under test.
    unsafe {
        cache.free(object);
        cache.free(object);
    }
    assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree]);
    // SAFETY: this thread continues as the child's would, and no other thread uses the subsystem.
    unsafe {
        subsystem.before_fork();
        subsystem.after_fork_in_child();
    }
    assert_eq!(subsystem.check().unwrap().quarantined, 1);
    // A dropped cache frees its quarantine, and objects that are freed later.
    let late_object = cache.alloc(Gfp::KERNEL).unwrap();
    drop(cache);
    assert_eq!(subsystem.info().caches.iter().filter(|cache| cache.name == "kept").count(), 1);
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { subsystem.kmalloc().free(late_object) };
    assert_eq!(subsystem.info().caches.iter().filter(|cache| cache.name == "kept").count(), 0);
    assert_eq!(subsystem.check().unwrap().quarantined, 0);
}

#[test]
fn cache_at_its_limit_takes_quarantined_objects() {
    let (subsystem, _) = hardened(Harden { quarantine: 1 << 20, ..Harden::OFF });
    let cache = KmemCache::builder("limited", 1024).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let slab_objects = cache.geometry().objects();
    for _ in 0..10 {
        let objects: Vec<_> = (0..slab_objects).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        assert!(cache.alloc(Gfp::KERNEL).is_err());
        // SAFETY: the objects were allocated above, and each is freed once.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
    }
    subsystem.check().unwrap();
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap protects nothing")]
fn zero_size_allocations_have_distinct_inaccessible_addresses() {
    let (subsystem, recorded) = hardened(Harden { zero_size: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    let empty_blocks: Vec<_> = (0..1000).map(|_| malloc.alloc(layout(0), Gfp::ZERO).unwrap()).collect();
    assert_eq!(empty_blocks.iter().collect::<BTreeSet<_>>().len(), 1000);
    for memory in &empty_blocks {
        // SAFETY: the memory was allocated above.
        assert_eq!((unsafe { malloc.usable_size(*memory) }, memory.addr().get() % 16), (0, 0));
    }
    #[cfg(target_os = "linux")]
    {
        // A write from the memory by the kernel also fails.
        let (_read, mut write) = std::io::pipe().unwrap();
        let text = bytes(empty_blocks[500], 1);
        let error = std::io::Write::write(&mut write, text).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(14), "{error}");
    }
    // SAFETY: the memory was allocated above; the last free is the error under test.
    unsafe {
        let grown_block = malloc.realloc(empty_blocks[0], 100).unwrap();
        bytes(grown_block, 100).fill(1);
        malloc.free(grown_block);
        empty_blocks[1..].iter().for_each(|memory| malloc.free(*memory));
        malloc.free(empty_blocks[1]);
    }
    assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree]);
    subsystem.shrink();
    assert_eq!(subsystem.check().unwrap().slabs, 0);
    // The memory's pages are used like any others.
    let blocks = std::iter::from_fn(|| malloc.alloc(layout(32 << 10), Gfp::KERNEL).ok());
    blocks.for_each(|memory| bytes(memory, 32 << 10).fill(1));
}

/// Regression test: the check for unexpected writes read inaccessible memory.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap protects nothing")]
fn zero_size_memory_has_no_canary() {
    for rules in ["FZPU", "Z", "P", "U"] {
        let (subsystem, recorded) = debugged(Harden { zero_size: true, ..Harden::OFF }, rules);
        let malloc = Malloc::new(&subsystem).unwrap();
        let empty_block = malloc.alloc(layout(0), Gfp::ZERO).unwrap();
        // SAFETY: the memory was allocated above; the second free is the error under test.
        unsafe {
            malloc.free(empty_block);
            malloc.free(empty_block);
        }
        assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree], "{rules}");
    }
}

/// Returns `true` if the kernel can read the byte at this address.
#[cfg(target_os = "linux")]
fn is_readable(memory: NonNull<u8>) -> bool {
    let (_read, mut write) = std::io::pipe().unwrap();
    let write_result = std::io::Write::write(&mut write, bytes(memory, 1));
    write_result.map_err(|error| assert_eq!(error.raw_os_error(), Some(14), "{error}")).is_ok()
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_page_after_a_slab_is_inaccessible() {
    let (subsystem, recorded) = hardened(Harden { slab_guards: true, ..Harden::OFF });
    for (size, limit) in
        [(24, None), (600, None), (600, Some(Limit::Objects(3))), (4096, None), (32 << 10, None)]
    {
        let cache = KmemCache::builder("between", size);
        let cache = if let Some(limit) = limit { cache.limit(limit) } else { cache };
        let cache = cache.build_in(&subsystem).unwrap();
        let (geometry, order) = (*cache.geometry(), cache.geometry().order());
        assert!(order.bytes() >= geometry.objects() * geometry.stride() + 4096, "{geometry:?}");
        let objects = cache.alloc_blocks(Gfp::KERNEL, geometry.objects()).unwrap();
        for object in &objects {
            bytes(object.address(), size).fill(1);
            let slab = object.address().addr().get() & !(order.bytes() - 1);
            let last = object.address().with_addr((slab + order.bytes() - 4096).try_into().unwrap());
            assert!(!is_readable(last), "{geometry:?}");
            assert!(is_readable(object.address()));
            // An address after the block belongs to no object, whatever the stride is.
            let kind_behind =
                object.address().with_addr((slab + geometry.offset(geometry.objects())).try_into().unwrap());
            // SAFETY: the free is the error under test.
            unsafe { cache.free(kind_behind) };
            assert_eq!(kinds(&recorded), [CorruptionKind::Interior]);
        }
        drop(objects);
        cache.shrink();
        assert_eq!(cache.info().slabs, 0);
    }
    // The block's pages are used like any others.
    subsystem.check().unwrap();
    let mut blocks: Vec<_> = core::iter::from_fn(|| {
        subsystem.pages().alloc_block(uslab_buddy::Order::MAX, Gfp::KERNEL, None).ok()
    })
    .collect();
    assert!(blocks.len() >= 8, "{}", blocks.len());
    blocks.iter_mut().for_each(|block| block.bytes_mut().fill(1));
}

/// Each guard page adds two mappings to the process, and the number of mappings of a process is limited. With slabs of
/// four pages, guard pages use at most a quarter of the allowed mappings.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn slabs_beyond_the_mapping_quota_have_no_guard_page() {
    let max_map_count =
        std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse::<u32>().unwrap();
    if max_map_count > 1 << 17 {
        println!("skipped: the machine has too few pages for {max_map_count} mappings");
        return;
    }
    let guarded = max_map_count / 2;
    let harden = Harden { slab_guards: true, ..Harden::OFF };
    let mut config = Config { harden, ..config(1, 1, 512 << 20) };
    config.pages.per_cpu_pages = false;
    let subsystem = Subsystem::new(config).unwrap();
    on_cpu(0);
    let block = || subsystem.pages().alloc_block(uslab_buddy::Order::MAX, Gfp::KERNEL, None).unwrap();
    let before: Vec<_> = (0..guarded.div_ceil(1024)).map(|_| block()).collect();
    let cache = KmemCache::builder("behind", 2048).build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    let bytes = cache.geometry().order().bytes();
    let slab = object.addr().get() & !(bytes - 1);
    let at = |address: usize| object.with_addr(address.try_into().unwrap());
    assert_eq!(subsystem.pages().pfn_of(at(slab).as_ptr()).unwrap().get(), before.len() as u32 * 1024);
    assert!(is_readable(at(slab + bytes - 4096)));
}

/// Four threads make random calls with all options enabled; no memory may be lost or have two owners, and no error may
/// be reported.
#[test]
fn hardened_malloc_reports_nothing_under_random_operations() {
    for seed in 1..=3 {
        let (subsystem, recorded) = hardened(Harden { seed: Some(seed), ..Harden::ALL });
        let malloc = Malloc::new(&subsystem).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let malloc = &malloc;
                scope.spawn(move || {
                    on_cpu(thread as u32 % 2);
                    let mut state = seed * 1000 + thread;
                    let mut draw = |n: usize| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) as usize % n
                    };
                    // The `bool` is `true` for resized memory, which may only be freed without a size.
                    let mut used_blocks: Vec<(NonNull<u8>, usize, u8, bool)> = vec![];
                    let is_intact = |(memory, size, fill, _): (NonNull<u8>, usize, u8, bool)| {
                        assert!(bytes(memory, size).iter().all(|byte| *byte == fill));
                    };
                    for step in 0..4000 {
                        let fill = step as u8 | 1;
                        let max_size = if draw(50) == 0 { 100_000 } else { 1200 };
                        let size = draw(max_size);
                        match draw(5) {
                            0 | 1 if !used_blocks.is_empty() => {
                                let at = draw(used_blocks.len());
                                let object = used_blocks.swap_remove(at);
                                is_intact(object);
                                // SAFETY: the memory was allocated below, and is freed once, with its size.
                                unsafe {
                                    if object.3 || draw(2) == 0 {
                                        malloc.free(object.0);
                                    } else {
                                        malloc.free_sized(object.0, layout(object.1));
                                    }
                                }
                            }
                            2 if !used_blocks.is_empty() => {
                                let at = draw(used_blocks.len());
                                let (memory, old_size, fill, _) = used_blocks[at];
                                // SAFETY: the memory was allocated below.
                                let memory = unsafe { malloc.realloc(memory, size.max(1)).unwrap() };
                                let kept_bytes = old_size.min(size.max(1));
                                assert!(bytes(memory, kept_bytes).iter().all(|byte| *byte == fill));
                                bytes(memory, size.max(1)).fill(fill);
                                used_blocks[at] = (memory, size.max(1), fill, true);
                            }
                            _ => {
                                let memory = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
                                bytes(memory, size).fill(fill);
                                used_blocks.push((memory, size, fill, false));
                            }
                        }
                    }
                    for object in used_blocks {
                        is_intact(object);
                        // SAFETY: the memory was allocated above, and is freed once.
                        unsafe { malloc.free(object.0) };
                    }
                });
            }
        });
        assert_eq!(recorded.take_reports(), [], "seed {seed}");
        subsystem.check().unwrap();
        subsystem.shrink();
        let census = subsystem.check().unwrap();
        assert_eq!((census.used, census.slabs, census.huge_pages), (0, 0, 0), "seed {seed}");
    }
}

/// Returns a malloc whose guard samples one of every `guard_every` allocations, on average.
fn guarded(guard_every: u32, check_frees: bool) -> (Subsystem, Malloc, RecordedReports) {
    let (mut config, recorded) =
        (Config { guard_every, check_frees, ..config(2, 1, 64 << 20) }, RecordedReports::default());
    recorded.listen(&mut config);
    on_cpu(0);
    let subsystem = Subsystem::new(config).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    (subsystem, malloc, recorded)
}

fn is_sampled(subsystem: &Subsystem, memory: NonNull<u8>) -> bool {
    subsystem.pages().pfn_of(memory.as_ptr()).is_none()
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_sample_can_be_written_and_resized() {
    for sampling_period in [50, 500] {
        let (subsystem, malloc, recorded) = guarded(sampling_period, true);
        let mut sampled = 0;
        let rounds = sampling_period * 200;
        for round in 0..rounds {
            let size = 1 + round as usize % 3000;
            let memory = malloc.alloc(layout(size), Gfp::ZERO).unwrap();
            assert!(bytes(memory, size).iter().all(|byte| *byte == 0));
            bytes(memory, size).fill(3);
            sampled += u32::from(is_sampled(&subsystem, memory));
            // SAFETY: the memory was allocated above.
            unsafe {
                assert!(malloc.usable_size(memory) >= size);
                let memory = malloc.realloc_sized(memory, layout(size), size + 5, Gfp::KERNEL).unwrap();
                assert!(bytes(memory, size).iter().all(|byte| *byte == 3));
                bytes(memory, size + 5).fill(4);
                if round % 2 == 0 {
                    malloc.free(memory)
                } else {
                    malloc.free_sized(memory, layout(size + 5))
                };
            }
        }
        // If frees are checked, each allocation is counted separately.
        assert!((100..400).contains(&sampled), "{sampled} of {rounds}, one in {sampling_period}");
        assert_eq!(recorded.take_reports(), []);
        assert_eq!(subsystem.check().unwrap().used, 0);
    }
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn invalid_free_of_a_sample_is_reported() {
    let (subsystem, malloc, recorded) = guarded(1, false);
    let sample = |size| {
        let memory = (0..1000).map(|_| malloc.alloc(layout(size), Gfp::KERNEL).unwrap());
        memory
            .into_iter()
            .find(|memory| is_sampled(&subsystem, *memory))
            .expect("the guard must sample one of many objects")
    };
    let memory = sample(40);
    // SAFETY: the errors are what is tested.
    unsafe {
        malloc.free(memory.add(8));
        malloc.free(memory);
        malloc.free(memory);
        malloc.free_sized(memory, layout(40));
    }
    use CorruptionKind::{DoubleFree, Interior, Overflow};
    assert_eq!(kinds(&recorded), [Interior, DoubleFree, DoubleFree]);
    let memory = sample(40);
    // SAFETY: the errors are what is tested; the accesses are in the sample's page.
    unsafe {
        if memory.addr().get().is_multiple_of(4096) {
            memory.add(40).write(1)
        } else {
            memory.sub(1).write(1)
        };
        malloc.free(memory);
    }
    assert_eq!(kinds(&recorded), [Overflow]);
}

/// Magazines can serve a program forever; without a periodic miss, the guard would then never sample an allocation.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_samples_every_interval_even_without_stack_misses() {
    let (subsystem, malloc, _) = guarded(10_000, false);
    let pairs = |n| {
        let mut sampled = 0;
        for _ in 0..n {
            let memory = malloc.alloc(layout(100), Gfp::KERNEL).unwrap();
            sampled += u32::from(is_sampled(&subsystem, memory));
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { malloc.free(memory) };
        }
        sampled
    };
    pairs(100);
    assert_eq!(pairs(1_000_000), 0, "each operation must be served by the CPU");
    for interval in 0..10 {
        subsystem.end_interval();
        // The allocation after a sample also misses, and may be the next sample; so may the one after that. Ten pairs
        // request a sample, and three do so rarely.
        assert!((1..=3).contains(&pairs(100_000)), "interval {interval}");
    }
    // The number of pairs is too small for a sample.
    subsystem.end_interval();
    assert!((1..=3).contains(&pairs(100)), "the sample must be from the previous interval");
    subsystem.end_interval();
    assert_eq!(pairs(100), 0);
}

/// Regression test: without restartable sequences, as on simulated CPUs, each allocation counted as a miss, although a
/// miss represents 64 allocations.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_samples_caches_at_the_configured_rate() {
    let (subsystem, _, _) = guarded(10_000, false);
    let cache = KmemCache::builder("sampled", 64).build_in(&subsystem).unwrap();
    let pairs = |n| {
        let draw_one = |_: &u32| {
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            let sampled = is_sampled(&subsystem, object);
            // SAFETY: the object was allocated just now, and is freed once.
            unsafe { cache.free(object) };
            sampled
        };
        (0..n).filter(draw_one).count()
    };
    pairs(100);
    assert_eq!(pairs(1_000_000), 0, "each operation must be served by the CPU");
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn forked_child_inherits_guard_samples() {
    let (subsystem, malloc, recorded) = guarded(1, false);
    let memory: Vec<_> = (0..100).map(|_| malloc.alloc(layout(64), Gfp::KERNEL).unwrap()).collect();
    // SAFETY: this thread continues as the child's would, and no other thread uses the subsystem.
    unsafe {
        subsystem.before_fork();
        subsystem.after_fork_in_child();
    }
    assert!(memory.iter().any(|memory| is_sampled(&subsystem, *memory)));
    // SAFETY: the memory was allocated above, and each block is freed once.
    memory.into_iter().for_each(|memory| unsafe { malloc.free(memory) });
    assert_eq!(recorded.take_reports(), []);
}

/// Returns a subsystem whose caches the guard samples, one of its caches, and a cache that the guard does not sample.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
fn build_guarded_caches(guard_every: u32) -> (Subsystem, KmemCache, KmemCache, RecordedReports) {
    let (subsystem, _, recorded) = guarded(guard_every, true);
    let cache = KmemCache::builder("sampled", 64).build_in(&subsystem).unwrap();
    let limited = KmemCache::builder("limited", 64).limit(Limit::Objects(100)).build_in(&subsystem).unwrap();
    (subsystem, cache, limited, recorded)
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_samples_objects_on_every_allocation_path() {
    let (subsystem, cache, limited, recorded) = build_guarded_caches(20);
    let kmalloc = subsystem.kmalloc();
    let sampled = std::cell::Cell::new(0);
    let saw_guard = |memory: NonNull<u8>, size| {
        sampled.set(sampled.get() + u32::from(is_sampled(&subsystem, memory)));
        bytes(memory, size).fill(3);
        memory
    };
    for round in 0..4000 {
        if round == 2000 {
            subsystem.start_profile(4096).unwrap();
        }
        let object = saw_guard(cache.alloc(Gfp::ZERO).unwrap(), 64);
        // SAFETY: the object was allocated here, and is freed once.
        unsafe {
            match round % 5 {
                0 => cache.free(object),
                1 => cache.free_bulk([object, cache.alloc(Gfp::KERNEL).unwrap()]),
                2 => cache.free_deferred(object),
                3 => cache.prefill(Gfp::KERNEL, 2).unwrap().free(object),
                _ => {
                    let mut stock = cache.prefill(Gfp::KERNEL, 1).unwrap();
                    let other_block = stock.alloc().unwrap();
                    stock.free(object);
                    stock.free(other_block);
                }
            }
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
            let size = 1 + round % 3000;
            let memory = saw_guard(kmalloc.alloc(size, Gfp::KERNEL).unwrap(), size);
            assert!(kmalloc.usable_size(memory) >= size);
            kmalloc.free(memory);
            let object = limited.alloc(Gfp::KERNEL).unwrap();
            assert!(!is_sampled(&subsystem, object));
            limited.free(object);
        }
    }
    assert!((100..1000).contains(&sampled.get()), "{}", sampled.get());
    subsystem.stop_profile();
    assert_eq!(recorded.take_reports(), []);
    for _ in 0..100 {
        subsystem.reap();
        uslab::rcu::advance();
    }
    subsystem.shrink();
    assert_eq!((cache.info().used, limited.info().used), (0, 0));
}

/// The guard does not sample objects that stay constructed, that must be readable when free, or that count towards a
/// limit.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn guard_samples_only_small_objects_without_constructor() {
    let (subsystem, _, recorded) = guarded(1, true);
    let account = Account::new_in(&subsystem, usize::MAX);
    let builder = |size| KmemCache::builder("one", size);
    let rows = [
        (true, builder(64)),
        (true, builder(4096)),
        (false, builder(4104)),
        (false, builder(64).ctor(|object| object.fill(1))),
        (false, builder(64).dtor(|_| ())),
        (false, builder(64).type_stable()),
        (false, builder(64).limit(Limit::Slabs(100))),
        (false, builder(64).account(&account)),
    ];
    for (at, (expected, builder)) in rows.into_iter().enumerate() {
        let cache = builder.build_in(&subsystem).unwrap();
        let sampled = (0..20).filter(|_| {
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            let sampled = is_sampled(&subsystem, object);
            // SAFETY: the object was allocated just now.
            unsafe { cache.free(object) };
            sampled
        });
        assert_eq!(sampled.count() > 0, expected, "{at}");
    }
    assert_eq!(recorded.take_reports(), []);
}

/// Makes a memory mistake, which must end the process.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[inline(never)]
fn make_memory_mistake(mistake: &str, of_kmalloc: bool) {
    let (mut config, is_overflow) =
        (Config { guard_every: 1, ..config(2, 1, 64 << 20) }, mistake != "underflow");
    config.check_frees = false;
    on_cpu(0);
    let subsystem = Subsystem::new(config).unwrap();
    let cache = KmemCache::builder("sampled", 64).build_in(&subsystem).unwrap();
    let alloc = || match of_kmalloc {
        true => subsystem.kmalloc().alloc(64, Gfp::KERNEL).unwrap(),
        false => cache.alloc(Gfp::KERNEL).unwrap(),
    };
    let is_there = |memory: &NonNull<u8>| {
        is_sampled(&subsystem, *memory) && memory.addr().get().is_multiple_of(4096) != is_overflow
    };
    let object =
        (0..10_000).map(|_| alloc()).find(is_there).expect("the guard must sample one of many objects");
    // SAFETY: the error is under test.
    unsafe {
        let free = || if of_kmalloc { subsystem.kmalloc().free(object) } else { cache.free(object) };
        match mistake {
            "overflow" => object.add(64).write_volatile(1),
            "underflow" => object.sub(1).write_volatile(1),
            "use after free" => {
                free();
                object.write_volatile(1);
            }
            _ => {
                free();
                free();
            }
        }
    }
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn sample_error_report_shows_alloc_and_free_call_stacks() {
    let variable = "USLAB_TEST_MISTAKE";
    if let Ok(mistake) = std::env::var(variable) {
        let (other_index, what) = mistake.split_once(' ').unwrap();
        return make_memory_mistake(what, other_index == "kmalloc");
    }
    let test = std::thread::current().name().unwrap().to_owned();
    for other_index in ["cache", "kmalloc"] {
        for what in ["overflow", "underflow", "use after free", "double free"] {
            let mut program = std::process::Command::new(std::env::current_exe().unwrap());
            let program = program
                .args(["--exact", &test, "--nocapture"])
                .env(variable, format!("{other_index} {what}"));
            let output = program.output().unwrap();
            let reports = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{what} of {other_index}: {reports}");
            assert!(
                reports.contains(&format!("uslab: guard: {what}: ")),
                "{what} of {other_index}: {reports}"
            );
            let is_freed = what.ends_with("free");
            let stacks = [true, is_freed].map(usize::from);
            let report_count = ["\nallocated by thread ", "\nfreed by thread "]
                .map(|heading| reports.matches(heading).count());
            assert_eq!(report_count, stacks, "{what} of {other_index}: {reports}");
            // The function is on the stack of the mistake, and of each earlier operation.
            let functions = reports.matches("make_memory_mistake").count();
            assert!(functions > usize::from(is_freed), "{what} of {other_index}: {reports}");
        }
    }
}

/// Regression test: objects in the reserve of a pool were neither checked nor wiped, and a double free put an object
/// into the reserve twice.
#[test]
fn mempool_reserve_is_hardened_like_its_cache() {
    for harden in [
        Harden { zero_on_alloc: true, ..Harden::OFF },
        Harden { zero_on_free: true, ..Harden::OFF },
        Harden { canaries: true, ..Harden::OFF },
    ] {
        let (subsystem, recorded) = hardened(harden);
        let cache = KmemCache::builder("r", 64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let pool = uslab::Mempool::new(cache, 2).unwrap();
        let other_blocks: Vec<_> =
            core::iter::from_fn(|| pool.cache().alloc_block(Gfp::KERNEL).ok()).collect();
        let objects = [(); 2].map(|()| pool.alloc(Gfp::KERNEL).unwrap());
        objects.iter().for_each(|object| bytes(*object, 64).fill(7));
        // SAFETY: the objects were allocated above. The second free of one of them is the error under test.
        unsafe { [0, 1, 0].into_iter().for_each(|i| pool.free(objects[i])) };
        assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree], "{harden:?}");
        assert_eq!(pool.reserve(), (2, 2));
        let reused = pool.alloc(Gfp::KERNEL).unwrap();
        let zero = harden.zero_on_alloc || harden.zero_on_free;
        assert!(!zero || bytes(reused, 64).iter().all(|byte| *byte == 0), "{harden:?}");
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { pool.free(reused) };
        drop(other_blocks);
        drop(pool);
        subsystem.check().unwrap();
    }
}

/// Regression test: marking a resized object's new end overwrote the evidence of an earlier write past its old end.
#[test]
fn growth_in_place_reports_a_write_past_objects() {
    let (subsystem, recorded) = hardened(Harden { canaries: true, ..Harden::OFF });
    let malloc = Malloc::new(&subsystem).unwrap();
    for sized in [false, true] {
        let memory = malloc.alloc(layout(100), Gfp::KERNEL).unwrap();
        // SAFETY: the memory was allocated above, and is freed once; the write is the error under test, still inside
        // the stride.
        unsafe {
            flip_byte(memory.add(100));
            let new_block = match sized {
                true => malloc.realloc_sized(memory, layout(100), 104, Gfp::KERNEL),
                false => malloc.realloc(memory, 104),
            };
            assert_eq!(
                (new_block, kinds(&recorded)),
                (Ok(memory), vec![CorruptionKind::Overflow]),
                "sized: {sized}"
            );
            malloc.free(memory);
        }
        assert!(kinds(&recorded).is_empty());
    }
}

/// Regression test: the bytes beyond the requested size contained a previous owner's data, which a `realloc` in place
/// exposed.
#[test]
fn hardened_large_memory_is_zeroed_to_its_end() {
    for harden in
        [Harden { zero_on_alloc: true, ..Harden::OFF }, Harden { zero_on_free: true, ..Harden::OFF }]
    {
        let (subsystem, _) = hardened(harden);
        let malloc = Malloc::new(&subsystem).unwrap();
        for (size, smaller_size) in [(64 << 10, 40_000), (9 << 20, (9 << 20) - (512 << 10))] {
            let first = malloc.alloc(layout(size), Gfp::KERNEL).unwrap();
            bytes(first, size).fill(7);
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { malloc.free(first) };
            let next_block = malloc.alloc(layout(smaller_size), Gfp::KERNEL).unwrap();
            // SAFETY: the memory was allocated above.
            let usable = unsafe { malloc.usable_size(next_block) };
            assert!(
                bytes(next_block, usable).iter().all(|byte| *byte == 0),
                "{smaller_size} of {size}, {usable} usable"
            );
            // SAFETY: the memory was allocated above, and is freed once.
            unsafe { malloc.free(next_block) };
        }
    }
}

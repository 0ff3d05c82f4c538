//! Tests that each invalid free is reported and refused, and that it changes nothing.

use crate::common::{RecordedReports, config};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeSet;
use uslab::{AllocError, Config, CorruptionKind, Gfp, KmemCache, Limit, Magazines, Malloc, Subsystem};

/// Returns a subsystem whose corruption reports go to `RecordedReports`. The subsystem checks a free immediately, or
/// when the object reaches its slab.
fn listening(check_frees: bool) -> (Subsystem, RecordedReports) {
    let (mut config, recorded) =
        (Config { check_frees, ..config(1, 1, 16 << 20) }, RecordedReports::default());
    recorded.listen(&mut config);
    (Subsystem::new(config).unwrap(), recorded)
}

fn kinds(recorded: &RecordedReports) -> Vec<CorruptionKind> {
    recorded.take_reports().into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn double_free_is_detected_at_the_slab_free() {
    for magazines in [Magazines::Off, Magazines::BySize] {
        let (subsystem, recorded) = listening(false);
        let cache = KmemCache::builder("inode", 64).magazines(magazines).build_in(&subsystem).unwrap();
        let kept_block = cache.alloc_block(Gfp::KERNEL).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the second free is the error under test; the object is not used.
        unsafe {
            cache.free(object);
            cache.free(object);
        }
        cache.shrink();
        let reports = recorded.take_reports();
        let [(CorruptionKind::DoubleFree, text)] = &reports[..] else { panic!("{magazines:?}: {reports:?}") };
        let index = object.addr().get() % 4096 / 64;
        let expected = format!("cache inode: double free {:#x} (object {index} of its slab)", object.addr());
        assert_eq!(*text, expected);
        assert_eq!((cache.info().corruptions, cache.info().used), (1, 1));
        subsystem.check().unwrap();
        drop(kept_block);
        cache.shrink();
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }
}

#[test]
fn each_double_free_in_a_flush_is_reported() {
    let (subsystem, recorded) = listening(false);
    let cache = KmemCache::builder("inode", 64).build_in(&subsystem).unwrap();
    let kept_block = cache.alloc_block(Gfp::KERNEL).unwrap();
    let objects = [(); 3].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
    // SAFETY: the second frees are the error under test; the objects are not used.
    objects.iter().chain(&objects).for_each(|object| unsafe { cache.free(*object) });
    cache.shrink();
    let messages: BTreeSet<_> = recorded.take_reports().into_iter().map(|(_, text)| text).collect();
    let is_named =
        |object: NonNull<u8>| messages.iter().any(|text| text.contains(&format!("{:#x}", object.addr())));
    assert!(messages.len() == 3 && objects.into_iter().all(is_named), "{messages:?}");
    drop(kept_block);
}

#[test]
fn checked_free_detects_a_double_free() {
    for magazines in [Magazines::Off, Magazines::BySize] {
        let (subsystem, recorded) = listening(false);
        let builder = KmemCache::builder("inode", 64).magazines(magazines).check_frees(true);
        let cache = builder.build_in(&subsystem).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the second free is the error under test; the object is not used.
        unsafe {
            cache.free(object);
            cache.free(object);
        }
        let reports = recorded.take_reports();
        let [(CorruptionKind::DoubleFree, text)] = &reports[..] else { panic!("{magazines:?}: {reports:?}") };
        assert!(text.contains(&format!("cache inode: double free {:#x}", object.addr())), "{text}");
        let info = cache.info();
        assert_eq!(
            (info.corruptions, info.used, info.allocs, info.frees),
            (1, 0, 1, 1),
            "no object may be lost"
        );
        subsystem.check().unwrap();
        // An object in a magazine or a slab is not in use, whichever path frees it.
        let mut bulk = [None; 300];
        cache.alloc_bulk(Gfp::KERNEL, &mut bulk).unwrap();
        // SAFETY: the objects were allocated above; the second free is the error under test.
        unsafe {
            cache.free_bulk(bulk.into_iter().flatten());
            cache.free(bulk[299].unwrap());
            subsystem.kmalloc().free(bulk[0].unwrap());
        }
        assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree; 2]);
        if let Ok(mut prefilled) = cache.prefill(Gfp::KERNEL, 3) {
            let object = prefilled.alloc().unwrap();
            // SAFETY: the object was allocated above; the second free is the error under test.
            unsafe {
                prefilled.free(object);
                prefilled.free(object);
            }
            assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree]);
        }
        subsystem.check().unwrap();
    }
}

#[test]
fn failed_bulk_allocation_leaves_no_object_in_use() {
    let (subsystem, recorded) = listening(true);
    let cache = KmemCache::builder("o", 64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
    let mut objects = [None; 65];
    cache.alloc_bulk(Gfp::KERNEL, &mut objects).unwrap_err();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    let page = subsystem.pages().pfn_of(object.as_ptr()).unwrap();
    for index in 0..64 {
        // SAFETY: the address is inside the slab; all frees but one are the error under test.
        unsafe { cache.free(subsystem.pages().address(page).add(index * 64)) };
    }
    assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree; 63]);
    assert_eq!(cache.info().used, 0);
    subsystem.check().unwrap();
}

#[test]
fn checked_free_refuses_addresses_outside_objects() {
    let (subsystem, recorded) = listening(true);
    let inode = KmemCache::builder("inode", 100).build_in(&subsystem).unwrap();
    let dentry = KmemCache::builder("dentry", 100).build_in(&subsystem).unwrap();
    let object = inode.alloc(Gfp::KERNEL).unwrap();
    let page = subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, Gfp::KERNEL, None).unwrap();
    let plain_page = subsystem.pages().address(page.pfn());
    let mut on_stack = 0_u64;
    let slab = subsystem.pages().pfn_of(object.as_ptr()).unwrap();
    let end_offset = inode.geometry().offset(inode.geometry().objects());
    assert!(inode.geometry().waste() > 0);
    // SAFETY: these frees are the errors under test; they must free nothing.
    unsafe {
        inode.free(object.add(8));
        inode.free(subsystem.pages().address(slab).add(end_offset));
        dentry.free(object);
        inode.free(plain_page);
        inode.free(NonNull::from(&mut on_stack).cast());
    }
    use CorruptionKind::*;
    let reports = recorded.take_reports();
    let kinds: Vec<_> = reports.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [Interior, Interior, WrongCache, Foreign, Foreign]);
    let message = &reports[2].1;
    assert!(message.starts_with("cache dentry: free to the wrong cache 0x"), "{message}");
    assert!(message.ends_with("which belongs to cache inode"), "{message}");
    assert_eq!((inode.info().used, inode.info().frees, dentry.info().frees), (1, 0, 0));
    subsystem.check().unwrap();
    // SAFETY: the object is still in use; freed once.
    unsafe { inode.free(object) };
    assert!(recorded.take_reports().is_empty());
}

/// Regression test: in a slab with a limited number of objects, bytes after the last object were treated as objects.
#[test]
fn free_beyond_the_last_object_is_refused() {
    for check in [true, false] {
        let (subsystem, recorded) = listening(check);
        let pool = KmemCache::builder("pool", 64).limit(Limit::Objects(3)).build_in(&subsystem).unwrap();
        let objects = pool.alloc_blocks(Gfp::KERNEL, 3).unwrap();
        let slab = subsystem.pages().pfn_of(objects[0].address().as_ptr()).unwrap();
        let geometry = pool.geometry();
        assert!(geometry.objects() == 3 && geometry.waste() >= 64);
        // SAFETY: the error under test; the address is in the slab and belongs to no object.
        unsafe { pool.free(subsystem.pages().address(slab).add(geometry.offset(3))) };
        pool.shrink();
        assert_eq!(kinds(&recorded), [CorruptionKind::Interior], "frees are checked: {check}");
        assert_eq!(pool.info().used, 3);
        drop(objects);
        pool.shrink();
        subsystem.check().unwrap();
    }
}

#[test]
fn slab_refuses_foreign_objects_without_checked_frees() {
    let (subsystem, recorded) = listening(false);
    let inode = KmemCache::builder("inode", 100).build_in(&subsystem).unwrap();
    let dentry = KmemCache::builder("dentry", 100).build_in(&subsystem).unwrap();
    let object = inode.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the errors under test; the objects are not allocated again before the shrink.
    unsafe {
        dentry.free(object);
        inode.free(object.add(8));
    }
    assert!(recorded.take_reports().is_empty());
    dentry.shrink();
    inode.shrink();
    assert_eq!(kinds(&recorded), [CorruptionKind::WrongCache, CorruptionKind::Interior]);
    subsystem.check().unwrap();
    assert_eq!(inode.info().used, 1, "the object must still be allocated");
    // SAFETY: the object was allocated above; earlier frees of it were refused.
    unsafe { inode.free(object) };
}

/// Regression test: frees accepted addresses inside objects and put them into the magazine, so the next two allocations
/// overlapped.
#[test]
fn malloc_refuses_interior_frees_without_checks() {
    let (subsystem, recorded) = listening(false);
    let kmalloc = subsystem.kmalloc();
    let malloc = Malloc::new(&subsystem).unwrap();
    for size in [8, 24, 100, 1000, 5000, 8192] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        for n in 0..40 {
            let object = malloc.alloc(layout, Gfp::KERNEL).unwrap();
            // SAFETY: the object is not freed yet.
            let usable = unsafe { malloc.usable_size(object) };
            for offset in [1, 7, usable / 2, usable - 1] {
                // SAFETY: the addresses are inside the object; the frees are the errors under test.
                unsafe {
                    malloc.free(object.add(offset));
                    kmalloc.free(object.add(offset));
                }
                assert_eq!(
                    kinds(&recorded),
                    [CorruptionKind::Interior; 2],
                    "object {n} of {size}, +{offset}"
                );
            }
            // Every second object stays allocated, so that all slots of a slab are tested.
            if n % 2 == 0 {
                // SAFETY: the object was allocated above, and is freed once.
                unsafe { malloc.free(object) };
            }
        }
    }
    assert!(recorded.take_reports().is_empty());
    drop(malloc);
    subsystem.check().unwrap();
}

/// Regression test: `realloc` of an address inside an object returned the same address, as if it had the object's size.
#[test]
fn interior_address_cannot_be_reallocated() {
    let (subsystem, recorded) = listening(false);
    let (kmalloc, malloc) = (subsystem.kmalloc(), Malloc::new(&subsystem).unwrap());
    let layout_of = |size| Layout::from_size_align(size, 8).unwrap();
    let [small, large_block, huge] =
        [100, 40_000, 5 << 20].map(|size| malloc.alloc(layout_of(size), Gfp::KERNEL).unwrap());
    let mut on_stack = 0_u64;
    use CorruptionKind::*;
    // SAFETY: the addresses are inside allocations, or not the allocator's.
    let wrong_frees = unsafe {
        [
            (small.add(8), Interior),
            (large_block.add(64), Interior),
            (large_block.add(8192), Interior),
            (huge.add(4096), Interior),
            (NonNull::from(&mut on_stack).cast(), Foreign),
        ]
    };
    for (address, kind) in wrong_frees {
        for size in [50, 5000, 6 << 20] {
            // SAFETY: the reallocations are the errors under test.
            let new_block =
                unsafe { [malloc.realloc(address, size), kmalloc.realloc(address, size, Gfp::KERNEL)] };
            assert_eq!(new_block, [Err(AllocError::NotAnObject); 2], "{kind}");
            assert_eq!(kinds(&recorded), [kind; 2]);
        }
        // SAFETY: the sizes are the errors under test.
        let sizes = unsafe { [malloc.usable_size(address), kmalloc.usable_size(address)] };
        assert_eq!((sizes, kinds(&recorded)), ([0; 2], vec![NotAnObject; 2]));
    }
    // SAFETY: each block was allocated above and is freed once; the second free of a large one is the error under test.
    unsafe {
        malloc.free(small);
        malloc.free(huge);
        malloc.free(large_block);
        assert_eq!(malloc.usable_size(large_block), 0);
    }
    assert_eq!(kinds(&recorded), [NotAnObject]);
    subsystem.check().unwrap();
}

#[test]
fn freed_object_has_no_size_if_frees_are_checked() {
    let (subsystem, recorded) = listening(true);
    let kmalloc = subsystem.kmalloc();
    let object = kmalloc.alloc(100, Gfp::KERNEL).unwrap();
    use CorruptionKind::*;
    // SAFETY: the object was allocated above, and is freed once; the calls after it are the errors under test.
    unsafe {
        assert_eq!((kmalloc.usable_size(object), kinds(&recorded)), (128, vec![]));
        kmalloc.free(object);
        assert_eq!((kmalloc.usable_size(object), kinds(&recorded)), (0, vec![NotAnObject]));
        assert_eq!(kmalloc.realloc(object, 50, Gfp::KERNEL), Err(AllocError::NotAnObject));
    }
    assert_eq!(kinds(&recorded), [DoubleFree]);
    subsystem.check().unwrap();
}

#[test]
fn pages_of_a_freed_slab_have_no_owner() {
    let (subsystem, recorded) = listening(true);
    let cache = KmemCache::builder("inode", 1000).build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    let first = subsystem.pages().frame(subsystem.pages().pfn_of(object.as_ptr()).unwrap()).head();
    let pages = cache.geometry().order().pages();
    assert!(pages > 1);
    // SAFETY: the object was allocated above, and is freed once; the other frees are the errors under test.
    unsafe {
        cache.free(object);
        assert_eq!(cache.shrink(), 1);
        for page in 0..pages {
            let address = subsystem.pages().address(uslab_buddy::Pfn::new(first.get() + page));
            cache.free(address);
            subsystem.kmalloc().free(address);
        }
    }
    assert_eq!(kinds(&recorded), vec![CorruptionKind::Foreign; 2 * pages as usize]);
}

#[test]
fn kmalloc_refuses_foreign_addresses() {
    let (subsystem, recorded) = listening(true);
    let kmalloc = subsystem.kmalloc();
    let large_block = kmalloc.alloc(20_000, Gfp::KERNEL).unwrap();
    let small = kmalloc.alloc(100, Gfp::KERNEL).unwrap();
    let mut on_stack = 0_u64;
    // SAFETY: the errors under test come first; then each block is freed once.
    unsafe {
        kmalloc.free(large_block.add(64));
        kmalloc.free(large_block.add(8192));
        kmalloc.free(small.add(1));
        kmalloc.free(NonNull::from(&mut on_stack).cast());
        kmalloc.free(large_block);
        kmalloc.free(large_block);
        kmalloc.free(small);
    }
    use CorruptionKind::*;
    let reports = recorded.take_reports();
    let kinds_seen: Vec<_> = reports.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds_seen, [Interior, Interior, Interior, Foreign, Foreign]);
    assert!(reports[2].1.starts_with("cache kmalloc-128: "), "{}", reports[2].1);
    let census = subsystem.check().unwrap();
    assert_eq!((census.used, census.large_pages), (0, 0));
}

#[test]
fn huge_memory_is_freed_only_by_its_start_address() {
    let (subsystem, recorded) = listening(true);
    let malloc = Malloc::new(&subsystem).unwrap();
    let layout = Layout::from_size_align(5 << 20, 8).unwrap();
    let huge = malloc.alloc(layout, Gfp::KERNEL).unwrap();
    let mut on_stack = 0_u64;
    // SAFETY: the errors under test come first; then each block is freed once.
    unsafe {
        malloc.free(huge.add(1));
        malloc.free(huge.add((5 << 20) - 1));
        malloc.free(NonNull::from(&mut on_stack).cast());
        malloc.free(huge);
        malloc.free(huge);
    }
    use CorruptionKind::*;
    assert_eq!(kinds(&recorded), [Interior, Interior, Foreign, Foreign]);
    assert_eq!(subsystem.check().unwrap().huge_pages, 0);
}

/// Even without checks of frees, a free compares the object with the top of the CPU's stack.
#[test]
fn immediate_double_free_is_detected_without_checks() {
    let (subsystem, recorded) = listening(false);
    let cache = KmemCache::builder("inode", 64).build_in(&subsystem).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    let mut messages = vec![];
    let frees_until_report = (1..=100).find(|_| {
        // SAFETY: the second free is the error under test; the object is not used.
        unsafe { cache.free(object) };
        messages = kinds(&recorded);
        !messages.is_empty()
    });
    // The thread may have moved to another CPU between the two frees.
    assert!(frees_until_report.is_some_and(|times| times >= 2), "{frees_until_report:?}");
    assert_eq!(messages, [CorruptionKind::DoubleFree]);
    let reused = cache.alloc(Gfp::KERNEL).unwrap();
    assert_eq!(reused, object, "the first free must be valid");
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { cache.free(reused) };
    if frees_until_report == Some(2) {
        let info = cache.info();
        assert_eq!((info.allocs, info.frees), (2, 2), "the second free must be refused");
        subsystem.check().unwrap();
    }
}

#[test]
fn census_reports_an_undetected_double_free_as_violation() {
    let (subsystem, recorded) = listening(false);
    let cache = KmemCache::builder("inode", 64).build_in(&subsystem).unwrap();
    let [object, other_object] = [(); 2].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
    // SAFETY: the third free is the error under test; the objects are not used.
    unsafe {
        cache.free(object);
        cache.free(other_object);
        cache.free(object);
    }
    // Both copies are in the magazine, so more objects were freed than allocated.
    let violation = subsystem.check().expect_err("the books cannot be right").to_string();
    assert_eq!(violation, "cache inode: 3 objects taken back, expected 2");
    cache.shrink();
    assert_eq!(kinds(&recorded), [CorruptionKind::DoubleFree]);
    subsystem.check().unwrap();
}

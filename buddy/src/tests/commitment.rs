//! Tests of committed, decommitted and discarded memory.

use super::*;

#[test]
fn memory_is_committed_in_maximal_blocks() {
    let pages = new_allocator(normal(3 * 1024));
    assert_eq!(pages.info().committed_bytes(), 0);
    let blocks = [(); 3].map(|()| pages.alloc_block(order(9), Gfp::ZERO, None).unwrap());
    assert_eq!(pages.info().committed_bytes(), 2 << 22);
    assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 0)));
    let [first, _second, third] = blocks;
    drop(third);
    assert_eq!(pages.decommit(), 1 << 22, "the completely free block is decommitted");
    drop(first);
    assert_eq!(pages.decommit(), 2 << 20, "the other block is half in use and stays committed");
    assert_eq!(pages.info().committed_bytes(), 1 << 22);
    assert_eq!(audited_census(&pages).allocated, 512);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap keeps it")]
fn decommitted_memory_is_no_longer_resident() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let pages = new_allocator(normal(32 * 1024));
    let (mut blocks, _) = alloc_all(&pages, order(10), Gfp::KERNEL);
    blocks.iter_mut().for_each(|block| block.bytes_mut().fill(1));
    let full = resident();
    drop(blocks);
    assert_eq!(pages.decommit(), 128 << 20);
    let left = resident();
    assert!(full - left > 100 << 20, "{full} bytes before, {left} bytes after");
}

#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn frames_of_discarded_pages_are_no_longer_resident() {
    const N: usize = 8 * 1024;
    let pages = new_allocator(PageConfig { keep_free: None, ..normal(N as u32) });
    let frames = pages.frames();
    // One OS page has 64 frames.
    let resident = || {
        let mut each = [0_u8; N / 64];
        let first = std::ptr::from_ref(frames.frame(Pfn::new(0))).cast_mut();
        // SAFETY: the frames of the range begin at a page, and fill one page for each byte of `each`.
        let known =
            unsafe { nix::libc::mincore(first.cast(), N * size_of::<crate::Frame>(), each.as_mut_ptr()) };
        assert_eq!(known, 0);
        each.iter().filter(|page| **page & 1 == 1).count()
    };
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!(resident(), N / 64, "each page of frames was written");
    // A block of the highest order is decommitted. If the last page of a block stays allocated, smaller blocks are
    // discarded.
    let kept: Vec<_> = blocks.into_iter().filter(|block| block.pfn().get() % 1024 == 1023).collect();
    assert_eq!(pages.decommit_free(), (N - kept.len()) * PAGE_SIZE);
    // Of 1,024 pages' frames, five OS pages stay: the first frames of the free blocks of 512, 256, 128 and 64 pages,
    // and the last frame.
    assert_eq!(resident(), kept.len() * 5);
    drop(kept);
    pages.decommit();
    assert_eq!(resident(), 0, "no frame is written for uncommitted pages");
}

#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn resident_pages(pages: &PageAllocator, block: &PageBlock<'_>) -> usize {
    let mut each = vec![0_u8; block.order().pages() as usize];
    let memory = pages.address(block.pfn());
    // SAFETY: the block is mapped, and has as many pages as there are bytes.
    let known =
        unsafe { nix::libc::mincore(memory.as_ptr().cast(), block.order().bytes(), each.as_mut_ptr()) };
    assert_eq!(known, 0);
    each.iter().filter(|page| **page & 1 == 1).count()
}

#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn bytes<'b>(pages: &PageAllocator, block: &'b mut PageBlock<'_>) -> &'b mut [u8] {
    // SAFETY: the block is committed, and the caller owns it while it is borrowed.
    unsafe { core::slice::from_raw_parts_mut(pages.address(block.pfn()).as_ptr(), block.order().bytes()) }
}

#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn zeroing_skips_pages_known_to_be_zero() {
    let config = PageConfig { huge_pages: HugePages::Never, keep_free: None, ..normal(1024) };
    let pages = new_allocator(config);
    let order = order(6);
    let zeroed = || pages.alloc_block(order, Gfp::ZERO, None).unwrap();
    // Both halves of each split block were never used, so their pages are zero.
    let (mut a, b) = (zeroed(), zeroed());
    assert_eq!([&a, &b].map(|block| resident_pages(&pages, block)), [0, 0]);
    // The block was used, freed and merged with an unused block.
    bytes(&pages, &mut a).fill(7);
    drop((a, b));
    let (whole, _) = alloc_all(&pages, Order::MAX, Gfp::ZERO);
    for mut block in whole {
        assert!(bytes(&pages, &mut block).iter().all(|byte| *byte == 0));
    }
    // The block was discarded while a neighbour stayed allocated, and was split again.
    let kept = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert!(pages.decommit() > 0);
    let mut c = zeroed();
    assert_eq!(resident_pages(&pages, &c), 0);
    assert!(bytes(&pages, &mut c).iter().all(|byte| *byte == 0));
    drop((c, kept));
    // The block was decommitted as a whole.
    pages.decommit();
    assert_eq!(resident_pages(&pages, &zeroed()), 0);
    audited_census(&pages);
}

/// The OS does not discard the contents of locked memory (`mlock`).
#[test]
#[cfg(all(target_os = "linux", not(any(miri, uslab_heap))))]
fn mlocked_pages_are_zeroed_by_writing_to_them() {
    let pages = new_allocator(PageConfig { huge_pages: HugePages::Never, keep_free: None, ..normal(1024) });
    let order = order(6);
    for keep in [true, false] {
        let kept = keep.then(|| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap());
        let mut used = pages.alloc_block(order, Gfp::KERNEL, None).unwrap();
        let memory = bytes(&pages, &mut used);
        memory.fill(7);
        // SAFETY: the memory is mapped.
        if unsafe { nix::libc::mlock(memory.as_ptr().cast(), memory.len()) } != 0 {
            // Some systems forbid `mlock`.
            return;
        }
        drop(used);
        pages.decommit();
        let (blocks, _) = alloc_all(&pages, order, Gfp::ZERO);
        for mut block in blocks {
            assert!(bytes(&pages, &mut block).iter().all(|byte| *byte == 0));
        }
        drop(kept);
    }
}

#[test]
fn uncommitted_memory_counts_as_free_blocks() {
    let pages = new_allocator(normal(2 * 1024 + 700));
    let free = || {
        let zone = &pages.info().zones[0];
        Order::ZERO.through(Order::MAX).map(|order| zone.free_blocks(order)).collect::<Vec<_>>()
    };
    let in_use = || pages.info().pages_not_in_maximal_blocks();
    // The tail has 512 + 128 + 32 + 16 + 8 + 4 pages.
    let fresh = [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 2];
    assert_eq!((free(), in_use()), (fresh.to_vec(), 0));
    assert_eq!(pages.info().zones[0].blocks[Order::MAX.index()], [0, 2, 0]);
    let take = |n| pages.alloc_block(order(n), Gfp::KERNEL, None).unwrap();
    let first = take(10);
    assert_eq!((free(), in_use()), (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 1], 1024));
    let others = [take(10), take(9)];
    assert_eq!((free(), in_use()), (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0], 2560));
    drop(first);
    pages.decommit();
    assert_eq!(
        (free(), in_use()),
        (vec![0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1], 1536),
        "returned pages must be counted, too"
    );
    drop(others);
    pages.decommit();
    assert_eq!((free(), in_use()), (fresh.to_vec(), 0));
}

#[test]
fn committing_a_larger_block_skips_the_zone_tail() {
    let pages = new_allocator(normal(1024 + 700));
    let _half = pages.alloc_block(order(9), Gfp::KERNEL, None).unwrap();
    assert_eq!(pages.alloc(order(10), Gfp::KERNEL, None).unwrap_err().limit, Limit::Fragmented);
    assert_eq!(pages.info().committed_bytes(), 4 << 20);
}

/// Pages that the callback of `decommit_idle` frees count as unused for the whole interval. Pages that a reap frees are
/// decommitted together with the other free pages, and do not stay in per-CPU magazines.
#[test]
fn pages_freed_by_a_reap_are_decommitted_immediately() {
    let pages = PageAllocator::new(PageConfig::default_for(Cpus::os())).unwrap();
    let held: Vec<_> = (0..1000).map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    assert!(pages.decommit() < 1000 * PAGE_SIZE, "the tables of CPUs and zones are counted, too");
    let bytes = pages.decommit_idle(|| {
        // SAFETY: each page was allocated above and is freed once.
        held.iter().for_each(|pfn| unsafe { pages.free_in(&Operation::new().cold(), *pfn, Order::ZERO) });
    });
    assert!(bytes >= 1000 * PAGE_SIZE, "{bytes}");
    assert_eq!((pages.info().per_cpu(), pages.info().backed_bytes()), (0, 0));
    pages.check().unwrap();
}

#[test]
fn damaged_frame_prevents_the_decommit_of_its_free_block() {
    let pages = new_allocator(normal(2048));
    let first = pages.alloc_block(order(9), Gfp::MOVABLE, None).unwrap();
    let second = pages.alloc_block(order(9), Gfp::MOVABLE, None).unwrap().into_pfn();
    // SAFETY: the block was allocated above and is freed once.
    unsafe { pages.free(second, order(9)) };
    let frame = pages.frame(second);
    let state = frame.state();
    frame.set_state(crate::State::new(Kind::Allocated, order(9), MigrateType::Movable));
    assert_eq!(pages.decommit_free(), 0);
    frame.set_state(state);
    assert_eq!(pages.decommit_free(), 2 << 20);
    drop(first);
    audited_census(&pages);
}

#[test]
fn frames_of_decommitted_memory_are_not_block_heads() {
    let pages = new_allocator(normal(2048));
    let block = pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap();
    let first = block.pfn();
    drop(block);
    assert_eq!(pages.decommit_free(), Order::MAX.bytes());
    assert_eq!(pages.frame(first).state(), crate::State::INSIDE_BLOCK);
    // The frames of a tail of four pages share one OS page with other frames, which therefore stays.
    let pages = new_allocator(normal(4));
    drop(pages.alloc_block(order(2), Gfp::KERNEL, None).unwrap());
    assert_eq!(pages.decommit(), 4 * PAGE_SIZE);
    assert_eq!(pages.frame(Pfn::new(0)).state(), crate::State::INSIDE_BLOCK);
}

/// Regression: decommitting the zone's tail counted its already discarded pages a second time.
#[test]
fn zone_tail_decommit_counts_no_discarded_page_twice() {
    let pages = new_allocator(normal(6));
    let [large, small] = [2, 1].map(|n| pages.alloc_block(order(n), Gfp::KERNEL, None).unwrap());
    drop(large);
    assert_eq!(pages.decommit(), 4 * PAGE_SIZE);
    drop(small);
    assert_eq!(pages.decommit(), 2 * PAGE_SIZE);
    assert_eq!(audited_census(&pages).uncommitted, 6);
}

/// Regression: decommitting the zone's tail also counted pages that were discarded elsewhere in the zone.
#[test]
fn zone_tail_decommit_counts_only_tail_pages() {
    let pages =
        new_allocator(PageConfig { pageblock_order: order(6), max_order: order(6), ..normal(64 + 6) });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    assert_eq!(blocks.len(), 70);
    let goes_first = |block: &PageBlock<'_>| block.pfn().get() < 5 || (64..68).contains(&block.pfn().get());
    let (first, rest): (Vec<_>, Vec<_>) = blocks.into_iter().partition(goes_first);
    drop(first);
    assert_eq!(pages.decommit(), 9 * PAGE_SIZE);
    let (body, tail): (Vec<_>, Vec<_>) = rest.into_iter().partition(|block| block.pfn().get() < 64);
    drop(tail);
    assert_eq!(pages.decommit(), 2 * PAGE_SIZE);
    assert_eq!((audited_census(&pages).uncommitted, pages.info().zones[0].discarded), (6, 5));
    drop(body);
}

/// Threads allocate a maximal block while another thread decommits it.
#[test]
fn concurrent_decommit_never_takes_an_allocated_block() {
    let (pages, at_once) = (new_allocator(normal(1024)), std::sync::Barrier::new(3));
    let each = if cfg!(miri) { 5 } else { 3_000 };
    let uses = || {
        at_once.wait();
        (0..each).for_each(|_| _ = pages.alloc_block(Order::MAX, Gfp::KERNEL, None));
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(uses)));
        at_once.wait();
        (0..each).for_each(|_| _ = pages.decommit_free());
    });
    assert_eq!(audited_census(&pages).allocated, 0);
}

/// Regression: pages could use only three quarters of the address limit, and other mappings only a quarter.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn pages_are_mapped_at_commit_under_an_address_space_limit() {
    run_with_limit("-v 1048576", "tests::commitment::child_runs_with_a_limited_address_space");
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
#[ignore = "run under `ulimit -v` by pages_are_mapped_at_commit_under_an_address_space_limit"]
fn child_runs_with_a_limited_address_space() {
    use crate::region::address_limit;
    let (limit, before) = address_limit().unwrap();
    let pages = new_allocator(PageConfig::default_for(Cpus::os()));
    let has = || address_limit().unwrap().1;
    let taken = has() - before;
    assert!(
        taken < 40 << 20 && pages.has_unmapped_pages(),
        "{taken} bytes of address space are reserved at the start"
    );
    assert_eq!((pages.reserved_bytes(), pages.frames().len()), (4 << 20, 1024));
    let block = pages.alloc_block(order(10), Gfp::ZERO, None).unwrap();
    assert_eq!((pages.reserved_bytes(), block.bytes()[4 << 20 >> 1]), (4 << 20, 0));
    let (blocks, refused) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!(refused, Limit::CommitRefused);
    // All addresses of the process are in use, except the addresses reserved for other mappings.
    let (all_of_it, left) = (1 + blocks.len(), limit - has());
    assert!((32 << 20..40 << 20).contains(&left), "{left} bytes of {limit} remain, {before} before");
    assert!(all_of_it << 22 > (limit - before) / 10 * 9, "{all_of_it} blocks");
    let last = blocks.last().unwrap();
    assert_eq!(pages.pfn_of(last.bytes().as_ptr()), Some(last.pfn()));
    audited_census(&pages);
    // After other mappings have got their addresses, no reserved addresses need be left.
    let (access, faults) = (crate::region::Uncommitted::NoAccess, crate::Faults::default());
    let other = crate::Region::reserve(left - (10 << 20), 4096, access, Backend::Os, &faults);
    let more = alloc_all(&pages, order(10), Gfp::KERNEL).0.len();
    assert_eq!(more, usize::from(left >= 36 << 20), "{left} bytes remain");
    drop(other);
    drop((block, blocks));
    pages.decommit();
    assert_eq!(audited_census(&pages).allocated, 0);
    assert_eq!(alloc_all(&pages, order(10), Gfp::KERNEL).0.len(), all_of_it);
}

/// The process sets its address limit after it created the allocator.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn commit_over_a_foreign_mapping_is_refused() {
    run_with_limit("-v 1048576", "tests::commitment::child_commits_pages_over_a_foreign_mapping");
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
#[ignore = "run under `ulimit -v` by commit_over_a_foreign_mapping_is_refused"]
fn child_commits_pages_over_a_foreign_mapping() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let pages = new_allocator(normal(1 << 24));
    let end = pages.address(Pfn::new(0)).addr().get() + (10 << 20);
    let (at, flags) =
        (core::num::NonZeroUsize::new(end), MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE);
    // SAFETY: the flags prevent the call from replacing a mapping.
    let other = unsafe { mmap_anonymous(at, 4096.try_into().unwrap(), ProtFlags::PROT_READ, flags) }.unwrap();
    let (blocks, refused) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!((blocks.len(), refused, pages.frames().len()), (2, Limit::CommitRefused, 2048));
    assert_eq!(pages.pfn_of(other.as_ptr().cast()), None);
    // SAFETY: the range was mapped above.
    unsafe { munmap(other, 4096) }.unwrap();
    assert!(pages.alloc_block(order(10), Gfp::KERNEL, None).is_ok());
    audited_census(&pages);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap refuses a reservation, not a commit")]
fn refused_commit_is_an_error_and_changes_nothing() {
    run_with_limit("-d 65536", "tests::commitment::child_commits_pages_with_a_limited_data_segment");
}

#[test]
#[ignore = "run under `ulimit -d` by refused_commit_is_an_error_and_changes_nothing"]
fn child_commits_pages_with_a_limited_data_segment() {
    let pages = new_allocator(normal(1 << 16));
    let (blocks, limit) = alloc_all(&pages, order(10), Gfp::KERNEL);
    assert_eq!(limit, Limit::CommitRefused);
    assert!((1..16).contains(&blocks.len()), "{} blocks", blocks.len());
    let events = pages.info().zones[0].events;
    assert!(events.commits_refused >= 1 && events.commits == blocks.len() as u64, "{events:?}");
    drop(blocks);
    assert!(pages.alloc_block(order(10), Gfp::KERNEL, None).is_ok());
    audited_census(&pages);
}

#[test]
fn free_memory_above_the_keep_free_option_is_decommitted() {
    let config =
        PageConfig { keep_free: Some(8 << 20), ..PageConfig::default_for(Cpus::simulated(2, 1).unwrap()) };
    let pages = PageAllocator::new(config).unwrap();
    let blocks: Vec<_> = (0..40).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
    assert_eq!(pages.info().committed_bytes(), 160 << 20);
    drop(blocks);
    assert!(pages.info().committed_bytes() <= 8 << 20);
    let small: Vec<_> =
        (0..20_000).map(|_| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    drop(small);
    // At most the configured 8 MiB and the CPUs' pages stay backed.
    let info = pages.info();
    assert!(info.backed_bytes() <= (8 << 20) + info.per_cpu() * PAGE_SIZE as u64, "{}", info.backed_bytes());
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    pages.check().unwrap();
}

/// If a free leaves more free memory than the surplus, it decommits memory until three quarters of the surplus are
/// left. If a free leaves less free memory than the surplus, it decommits nothing.
#[test]
fn free_decommits_only_memory_above_the_surplus_limit() {
    let pages = new_allocator(PageConfig { keep_free: Some(128 << 20), ..normal(4 * 1024) });
    let blocks = [(); 4].map(|()| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap().into_pfn());
    let steps = blocks.map(|pfn| {
        let op = Operation::new();
        // SAFETY: each block was allocated above and is freed once.
        unsafe { pages.free_in(&op, pfn, Order::MAX) };
        (pages.info().committed_bytes() >> 20, op.path())
    });
    // Frees of 4 and 8 MiB keep all memory backed. Of 12 MiB free memory, everything above 6 MiB is returned, and the
    // next block makes 8 MiB again.
    assert_eq!(steps, [(16, Path::Pages), (16, Path::Pages), (8, Path::Commit), (8, Path::Pages)]);
}

#[test]
fn free_pages_up_to_an_eighth_of_used_pages_stay_resident() {
    let pages = new_allocator(PageConfig { keep_free: Some(64 << 20), ..normal(32 * 1024) });
    let mut blocks: Vec<_> =
        (0..32).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
    blocks.truncate(28);
    assert_eq!(pages.info().committed_bytes() >> 20, 112 + 8, "less than 3/4 above 14 MiB must stay");
}

/// Memory that was repeatedly returned to the OS and reused stays backed. Memory that is no longer used is returned to
/// the OS.
#[test]
fn repeatedly_reused_memory_stays_resident() {
    let pages = new_allocator(PageConfig { keep_free: Some(64 << 20), ..normal(128 * 1024) });
    let burst = |n| {
        let blocks: Vec<_> =
            (0..n).map(|_| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap()).collect();
        drop(blocks);
        pages.info().committed_bytes() >> 20
    };
    let decommits = || pages.info().zones[0].events.decommits;
    assert_eq!(burst(8), 0, "freeing each second block must also free the first");
    (0..8).for_each(|_| _ = burst(8));
    let old_decommits = decommits();
    assert_eq!((burst(8), decommits()), (32, old_decommits));
    assert!(burst(100) <= 16, "{} MiB", pages.info().committed_bytes() >> 20);
}

/// The limit `keep_free` counts only free blocks that are large enough to be returned to the OS. Freeing a smaller
/// block returns no memory, and the free must not report any.
#[test]
fn keep_free_limit_counts_only_blocks_large_enough_to_discard() {
    let pages =
        new_allocator(PageConfig { keep_free: Some(0), huge_pages: HugePages::Advise, ..normal(1024) });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    let (freed, kept): (Vec<_>, Vec<_>) =
        blocks.into_iter().map(PageBlock::into_pfn).partition(|pfn| pfn.get() % 2 == 1);
    for pfn in freed {
        let op = Operation::new();
        // SAFETY: each page was allocated above and is freed once.
        unsafe { pages.free_in(&op, pfn, Order::ZERO) };
        assert_eq!(op.path(), Path::Pages);
    }
    // SAFETY: each page was allocated above and is freed once.
    kept.iter().for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    assert_eq!(pages.info().committed_bytes(), 0);
}

/// `give_up_addresses` unmaps only addresses that were never committed. Addresses that were committed once stay usable.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn address_release_keeps_addresses_that_were_ever_committed() {
    let pages = new_allocator(normal(8 * 1024));
    let blocks = [(); 3].map(|()| pages.alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap());
    drop(blocks);
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    let behind = pages.address(Pfn::new(5 << 10));
    assert_eq!(pages.pfn_of(behind.as_ptr()), Some(Pfn::new(5 << 10)));
    pages.give_up_addresses(5 << 22);
    // Regression: a foreign mapping at returned addresses was mistaken for the allocator's pages.
    assert_eq!(pages.pfn_of(behind.as_ptr()), None);
    assert_eq!(pages.reserved_bytes(), 3 << 22, "addresses of pages that were ever committed must be kept");
    let frames = pages.frames();
    let of_all = frames.reserved();
    assert_eq!(of_all, 64 * 8 * 1024);
    // SAFETY: no other thread reads a frame during the call.
    assert_eq!(unsafe { pages.release_unmapped_frames() }, 3 << 10);
    assert_eq!((frames.len(), frames.is_empty()), (3 << 10, false));
    assert_eq!(frames.reserved() * 8, of_all * 3, "the pages' frames must be decommitted");
    // Pages get addresses again if the limit allows it and no other mapping, such as another test's, has the addresses.
    let (blocks, limit) = alloc_all(&pages, Order::MAX, Gfp::KERNEL);
    assert!((3..=5).contains(&blocks.len()) && limit == Limit::CommitRefused, "{} blocks", blocks.len());
    assert_eq!((pages.max_pages(), frames.len() as usize), (5 << 10, blocks.len() << 10));
}

/// A heap region cannot return a part of its memory.
#[test]
fn heap_backed_allocator_releases_no_addresses() {
    let pages = new_allocator(PageConfig { backend: Backend::Heap, ..normal(4 * 1024) });
    let what_there_is = || (pages.reserved_bytes(), pages.frames().len(), pages.has_unmapped_pages());
    let before = what_there_is();
    pages.give_up_addresses(0);
    assert_eq!(what_there_is(), before);
    assert_eq!(alloc_all(&pages, Order::MAX, Gfp::KERNEL).0.len(), 4);
}

/// The test keeps every eighth page in use, so no maximal block is wholly free.
#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn free_pages_of_partly_used_blocks_are_discarded() {
    const N: usize = 4096;
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let mut all: Vec<_> = (0..N).map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    all.sort();
    // SAFETY: the page is committed, and returned memory reads as zero.
    let is_backed = |pfn: &Pfn| unsafe { pages.address(*pfn).cast::<u32>().read() } == pfn.get() + 1;
    // SAFETY: each page was allocated above and is freed once below.
    let touch = |pfn: Pfn| unsafe { pages.address(pfn).cast::<u32>().write(pfn.get() + 1) };
    all.iter().copied().for_each(touch);
    let (kept, freed): (Vec<_>, Vec<_>) = all.iter().copied().partition(|pfn| pfn.get() % 8 == 3);
    // SAFETY: each page was allocated above and is freed once.
    freed.iter().for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    assert_eq!(pages.info().backed_bytes(), (N * PAGE_SIZE) as u64);
    assert_eq!(pages.decommit_free(), freed.len() * PAGE_SIZE);
    assert_eq!(pages.info().backed_bytes(), (kept.len() * PAGE_SIZE) as u64);
    assert!(kept.iter().all(is_backed) && !freed.iter().any(is_backed));
    let census = pages.check().unwrap();
    assert_eq!((census.allocated, census.discarded), (kept.len() as u64, freed.len() as u64));
    // The zone makes one call for each run between two pages in use, and discards no page twice.
    let discards = pages.info().zones[0].events.discards;
    assert!((1..=2 * kept.len() as u64).contains(&discards), "{discards}");
    assert_eq!((pages.decommit_free(), pages.info().zones[0].events.discards), (0, discards));
    // The discarded pages are allocated again, and backed from then on.
    let again: Vec<_> = freed.iter().map(|_| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap()).collect();
    again.iter().copied().for_each(touch);
    assert_eq!(pages.info().backed_bytes(), (N * PAGE_SIZE) as u64);
    // SAFETY: each page was allocated above and is freed once.
    again.iter().chain(&kept).for_each(|pfn| unsafe { pages.free(*pfn, Order::ZERO) });
    pages.decommit();
    assert_eq!(pages.info().committed_bytes(), 0);
    pages.check().unwrap();
}

/// Free memory that the program reuses in each interval stays backed.
#[test]
fn idle_decommit_returns_memory_unused_for_an_interval() {
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let backed = || pages.info().backed_bytes() >> 20;
    let order = Order::new(8).unwrap();
    let take = |mib: usize| (0..mib).map(|_| pages.alloc_block(order, Gfp::KERNEL, None).unwrap()).collect();
    let all: Vec<_> = take(64);
    drop(all);
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 64, "all pages were in use since the last interval");
    let burst: Vec<_> = take(24);
    drop(burst);
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 24, "pages stay committed for another burst");
    pages.decommit_idle(|| ());
    assert_eq!(backed(), 0);
    pages.check().unwrap();
}

/// Of two free blocks of the same order, the backed block is allocated before the discarded block.
#[test]
fn resident_blocks_are_allocated_before_discarded_blocks() {
    let config = PageConfig { per_cpu_pages: false, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let mut four = [(); 4].map(|()| pages.alloc(Order::ZERO, Gfp::KERNEL, None).unwrap());
    four.sort();
    // SAFETY: the page was allocated above and is freed once.
    unsafe { pages.free(four[0], Order::ZERO) };
    pages.decommit_free();
    // SAFETY: the page was allocated above and is freed once.
    unsafe { pages.free(four[2], Order::ZERO) };
    assert_eq!(pages.alloc(Order::ZERO, Gfp::KERNEL, None), Ok(four[2]));
    assert_eq!(pages.alloc(Order::ZERO, Gfp::KERNEL, None), Ok(four[0]));
}

/// With huge pages enabled, no part of a huge page is returned to the OS. If the allocator's change counter did not
/// increase, a reap finds nothing to free.
#[test]
fn page_change_counter_includes_frees_and_decommits() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(2048) });
    let blocks = [(); 2].map(|()| pages.alloc_block(order(10), Gfp::KERNEL, None).unwrap());
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None);
    assert!(page.is_err());
    let [first, second] = blocks;
    let part = first.split(Order::ZERO).pop();
    let before = pages.changes();
    assert_eq!(before, 1023);
    drop(second);
    assert_eq!(pages.changes() - before, 1024);
    pages.decommit();
    let events = pages.info().zones[0].events;
    assert!(events.decommits > 0 && events.discards > 0, "{events:?}");
    assert_eq!(pages.changes() - before, 1024 + events.decommits + events.discards);
    drop(part);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap is always accessible")]
fn guard_page_replaces_the_last_page_of_a_block() {
    let pages = new_allocator(normal(64));
    let mut block = pages.alloc_block(order(2), Gfp::KERNEL, None).unwrap();
    block.bytes_mut().fill(7);
    // SAFETY: this test owns the block, and no other thread uses its last page.
    unsafe { assert!(pages.guard(block.pfn(), order(2), true) && pages.guard(block.pfn(), order(2), false)) };
    let (rest, last) = block.bytes().split_at(3 * PAGE_SIZE);
    assert!(rest.iter().all(|byte| *byte == 7) && last.iter().all(|byte| *byte == 0));
}

#[test]
fn decommit_never_splits_a_huge_page() {
    let huge_pages = HugePages::Advise;
    let config = PageConfig { per_cpu_pages: false, huge_pages, ..PageConfig::default_for(Cpus::os()) };
    let pages = PageAllocator::new(config).unwrap();
    let page = pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap();
    assert_eq!(pages.decommit_free(), 2 << 20);
    assert_eq!(pages.info().zones[0].discarded, 512);
    drop(page);
    pages.check().unwrap();
}

/// A discard counts only newly discarded pages, and not adjacent pages that were discarded before.
#[test]
fn discarded_pages_are_counted_once() {
    let pages = new_allocator(PageConfig { keep_free: Some(usize::MAX), ..normal(1024) });
    let mut four = [(); 4].map(|()| Some(pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()));
    assert_eq!(pages.decommit_free(), 1020 * PAGE_SIZE);
    let before = pages.info().zones[0].events.discards;
    four[3] = None;
    assert_eq!(pages.decommit_free(), PAGE_SIZE);
    let zone = &pages.info().zones[0];
    assert_eq!((zone.events.discards - before, zone.discarded), (1, 1021));
    audited_census(&pages);
}

/// A block too small to be discarded does not count as returnable memory.
#[test]
fn block_too_small_to_discard_stays_resident() {
    let config = PageConfig { pageblock_order: order(2), max_order: order(6), ..normal(64) };
    let pages =
        new_allocator(PageConfig { huge_pages: HugePages::Advise, keep_free: Some(usize::MAX), ..config });
    let (blocks, _) = alloc_all(&pages, Order::ZERO, Gfp::KERNEL);
    let (mut freed, kept): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.pfn().get() < 5);
    // Frees four pages that form one block of exactly the smallest discarded order, and one page next to the
    // block.
    freed.clear();
    assert_eq!(pages.decommit_free(), 4 * PAGE_SIZE);
    assert_eq!((pages.info().zones[0].discarded, pages.decommit_free()), (4, 0));
    audited_census(&pages);
    drop(kept);
    assert_eq!(pages.decommit_free(), 64 * PAGE_SIZE);
}

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[test]
fn decommit_also_returns_unused_stack_memory() {
    let ends: [fn(&PageAllocator); 4] = [
        |_| (),
        |pages| _ = pages.decommit(),
        |pages| _ = pages.reap(),
        |pages| _ = pages.decommit_idle(|| ()),
    ];
    let left = ends.map(|end| {
        let pages = new_allocator(PageConfig { per_cpu_pages: true, ..normal(1 << 14) });
        drop([(); 200].map(|()| pages.alloc_block(Order::ZERO, Gfp::KERNEL, None).unwrap()));
        let cpus = 0..pages.cpus().count();
        pages.drain_cpus(cpus.clone());
        pages.tables().sweep(cpus, DrainScope::Idle, |_| true);
        end(&pages);
        pages.tables().decommit_idle() > 0
    });
    assert_eq!(left, [true, false, false, false]);
}

//! Tests which memory the leak search scans for pointers: the program's memory, large blocks, pages, and objects of
//! unchecked caches.

use crate::common::{config, subsystem};
use crate::process::is_alone;
use core::alloc::Layout;
use std::ptr::NonNull;
use uslab::{Config, Gfp, KmemCache, Malloc, Subsystem};
use uslab_buddy::Order;
use uslab_magazine::sync::{AtomicUsize, Ordering::Relaxed};

const OBJECTS: usize = 64;

/// Static words with a non-zero initial value, which puts them into the program's writable data.
static WORDS: [AtomicUsize; OBJECTS] = [const { AtomicUsize::new(1) }; OBJECTS];

/// Returns the bitwise inverted addresses of objects; the search does not recognise them as pointers to the objects.
#[inline(never)]
fn allocate_and_hide_objects(cache: &KmemCache) -> Vec<usize> {
    (0..OBJECTS).map(|_| !cache.alloc(Gfp::KERNEL).unwrap().addr().get()).collect()
}
/// Overwrites the unused part of this thread's stack, because it may contain old addresses.
#[inline(never)]
fn clear_stack() {
    std::hint::black_box(&mut [0_u8; 1 << 16]).fill(0);
}
fn count_unreachable_objects(subsystem: &Subsystem) -> u64 {
    clear_stack();
    subsystem.leaks().0.iter().map(|holder| holder.unreachable).sum()
}

/// A few objects without a pointer in the program stay reachable, because unused words of magazines still contain their
/// addresses.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_search_covers_program_memory_and_large_blocks() {
    if !is_alone("leaks::leak_search_covers_program_memory_and_large_blocks") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    // Each first object of a pair points to the second, which is reachable only if the first is.
    for pair in objects.chunks(2) {
        // SAFETY: this test owns the object, which is large enough.
        unsafe { (!pair[0] as *mut usize).write(!pair[1]) };
    }
    let min_unreachable = OBJECTS as u64 * 5 / 8;
    assert!(count_unreachable_objects(&subsystem) >= min_unreachable);
    std::hint::black_box(&WORDS);
    WORDS.iter().zip(&objects).for_each(|(word, hidden_address)| word.store(!hidden_address, Relaxed));
    assert_eq!(count_unreachable_objects(&subsystem), 0);
    WORDS.iter().for_each(|word| word.store(1, Relaxed));
    assert!(count_unreachable_objects(&subsystem) >= min_unreachable);
    // The block is larger than all classes: a block of pages, which is not an object.
    let block = malloc.alloc(Layout::array::<u8>(256 << 10).unwrap(), Gfp::ZERO).unwrap();
    let words = block.cast::<usize>();
    // SAFETY: this test owns the block, which is large enough.
    let store_words = |word_of: fn(usize) -> usize| unsafe {
        objects
            .iter()
            .enumerate()
            .for_each(|(index, hidden_address)| words.add(index).write(word_of(*hidden_address)));
    };
    store_words(|hidden_address| !hidden_address);
    assert_eq!(count_unreachable_objects(&subsystem), 0);
    store_words(|_| 0);
    assert!(count_unreachable_objects(&subsystem) >= min_unreachable);
    // The words are in pages, and in objects of a cache whose objects in use are not known.
    let pages = subsystem.pages().alloc_block(Order::ZERO, Gfp::ZERO, None).unwrap();
    let other_cache = KmemCache::builder("other", OBJECTS * size_of::<usize>()).build_in(&subsystem).unwrap();
    let table = other_cache.alloc_block(Gfp::ZERO).unwrap();
    for words in [subsystem.pages().address(pages.pfn()), table.address()] {
        // SAFETY: this test owns the block, which is large enough.
        let store_words = |word_of: fn(usize) -> usize| unsafe {
            let words = words.cast::<usize>();
            objects
                .iter()
                .enumerate()
                .for_each(|(index, hidden_address)| words.add(index).write(word_of(*hidden_address)));
        };
        store_words(|hidden_address| !hidden_address);
        assert_eq!(count_unreachable_objects(&subsystem), 0);
        store_words(|_| 0);
        assert!(count_unreachable_objects(&subsystem) >= min_unreachable);
    }
    // SAFETY: the blocks were allocated above, and each is freed once.
    unsafe {
        malloc.free(block);
        objects
            .iter()
            .for_each(|hidden_address| cache.free(NonNull::new(!hidden_address as *mut u8).unwrap()));
    }
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_search_reads_page_blocks_completely() {
    if !is_alone("leaks::leak_search_reads_page_blocks_completely") {
        return;
    }
    let subsystem = Subsystem::new(config(1, 1, 8 << 20)).unwrap();
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    // The loop takes all blocks.
    let mut blocks = vec![];
    for order in (0..=Order::MAX.get()).rev().filter_map(Order::new) {
        let block = || subsystem.pages().alloc_block(order, Gfp::ZERO, None).ok();
        blocks.extend(core::iter::from_fn(block));
    }
    blocks.sort_unstable_by_key(|block| block.pfn());
    let largest = (0..blocks.len()).max_by_key(|index| blocks[*index].order()).unwrap();
    assert!(blocks[largest].order() > Order::ZERO);
    for index in [largest, blocks.len() - 1] {
        let bytes = blocks[index].bytes_mut();
        let (_, words) = bytes.split_at_mut(bytes.len() - OBJECTS * size_of::<usize>());
        for (word, hidden_address) in words.chunks_exact_mut(size_of::<usize>()).zip(&objects) {
            word.copy_from_slice(&(!hidden_address).to_ne_bytes());
        }
        assert_eq!(count_unreachable_objects(&subsystem), 0);
        words.fill(0);
        assert!(count_unreachable_objects(&subsystem) >= OBJECTS as u64 * 5 / 8);
    }
    std::hint::black_box(objects);
}

#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_search_skips_shared_and_read_only_memory() {
    use nix::libc::{self, MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE};
    if !is_alone("leaks::leak_search_skips_shared_and_read_only_memory") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    let (no_address, read_and_write, bytes) =
        (std::ptr::null_mut(), PROT_READ | PROT_WRITE, OBJECTS * size_of::<usize>());
    for (kind, protection, is_searched) in [
        (MAP_PRIVATE, read_and_write, true),
        (MAP_PRIVATE, PROT_READ, false),
        (MAP_SHARED, read_and_write, false),
    ] {
        // SAFETY: the call maps new memory.
        let memory = unsafe { libc::mmap(no_address, bytes, read_and_write, kind | MAP_ANONYMOUS, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let words = memory.cast::<usize>();
        // SAFETY: this test owns the memory, which is large enough.
        unsafe {
            objects
                .iter()
                .enumerate()
                .for_each(|(index, hidden_address)| words.add(index).write(!hidden_address));
            assert_eq!(libc::mprotect(memory, bytes, protection), 0);
        }
        let unreachable_objects = count_unreachable_objects(&subsystem);
        let is_expected = if is_searched {
            unreachable_objects == 0
        } else {
            unreachable_objects >= OBJECTS as u64 * 5 / 8
        };
        assert!(is_expected, "{kind:#x}, {protection:#x}: {unreachable_objects}");
        // SAFETY: the memory was mapped above.
        unsafe { libc::munmap(memory, bytes) };
    }
    std::hint::black_box(objects);
}

#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_report_lists_unreachable_objects_first() {
    if !is_alone("leaks::leak_report_lists_unreachable_objects_first") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = |(name, size)| KmemCache::builder(name, size).check_frees(true).build_in(&subsystem).unwrap();
    let [many_cache, lost_cache, few_cache] = [("many", 80), ("lost", 72), ("few", 64)].map(cache);
    let used_blocks =
        [(&many_cache, 100), (&few_cache, 1)].map(|(cache, n)| cache.alloc_blocks(Gfp::KERNEL, n).unwrap());
    let objects = allocate_and_hide_objects(&lost_cache);
    clear_stack();
    let holders = subsystem.leaks();
    let names: Vec<_> = holders.0.iter().map(|holder| holder.cache.as_str()).collect();
    assert_eq!(names, ["lost", "many", "few"], "{holders}");
    std::hint::black_box((used_blocks, objects));
}

/// Regression test: the leak search did not scan the bytes after the requested size.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_search_includes_bytes_beyond_the_requested_size() {
    if !is_alone("leaks::leak_search_includes_bytes_beyond_the_requested_size") {
        return;
    }
    let subsystem =
        Subsystem::new(Config { slab_debug: "FU".parse().unwrap(), ..config(1, 1, 64 << 20) }).unwrap();
    let cache = KmemCache::builder("node", 200).build_in(&subsystem).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    std::hint::black_box(&WORDS);
    for (word, hidden_address) in WORDS.iter().zip(&objects) {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let array = malloc.alloc(layout(72), Gfp::ZERO).unwrap();
        // SAFETY: the array was allocated above with this layout; afterwards it has ten words.
        let array = unsafe {
            let array = malloc.realloc_sized(array, layout(72), 80, Gfp::KERNEL).unwrap();
            array.cast::<usize>().add(9).write(!hidden_address);
            array
        };
        word.store(array.addr().get(), Relaxed);
    }
    assert_eq!(count_unreachable_objects(&subsystem), 0);
    WORDS.iter().for_each(|word| word.store(1, Relaxed));
}

/// Regression test: the profile's list of samples made each sampled object reachable for the leak search.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn leak_search_ignores_profile_records() {
    if !is_alone("leaks::leak_search_ignores_profile_records") {
        return;
    }
    let subsystem = subsystem(1);
    subsystem.start_profile(1).unwrap();
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    assert_eq!(subsystem.profile().total().live.objects, OBJECTS as u64);
    let unreachable_objects = count_unreachable_objects(&subsystem);
    assert!(unreachable_objects >= OBJECTS as u64 * 5 / 8, "{unreachable_objects}");
    std::hint::black_box(objects);
}

/// Regression test: if a sandbox did not let the process read its own memory through the kernel, all objects were
/// reported as leaks.
#[cfg(target_os = "linux")]
#[test]
fn leak_search_without_readable_memory_reports_no_leak() {
    use nix::libc;
    if !is_alone("leaks::leak_search_without_readable_memory_reports_no_leak") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = allocate_and_hide_objects(&cache);
    #[cfg(not(uslab_heap))]
    assert!(count_unreachable_objects(&subsystem) >= OBJECTS as u64 * 5 / 8);
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_process_vm_readv as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter is alive; this test is alone in its process.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(count_unreachable_objects(&subsystem), 0);
    assert_eq!(subsystem.leaks().0[0].objects, OBJECTS as u64);
    std::hint::black_box(objects);
}

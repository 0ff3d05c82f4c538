//! What reaches an object: memory of the program, large blocks, pages, and objects of caches that are not checked.

use crate::common::{config, subsystem};
use crate::process::is_alone;
use core::alloc::Layout;
use std::ptr::NonNull;
use uslab::{Config, Gfp, KmemCache, Malloc, Subsystem};
use uslab_buddy::Order;
use uslab_magazine::sync::{AtomicUsize, Ordering::Relaxed};

const OBJECTS: usize = 64;

/// Words that are not zero from the start: they lie in the program's first writable memory.
static WORDS: [AtomicUsize; OBJECTS] = [const { AtomicUsize::new(1) }; OBJECTS];

/// Addresses with their bits turned over, which lead to nothing.
#[inline(never)]
fn hidden(cache: &KmemCache) -> Vec<usize> {
    (0..OBJECTS).map(|_| !cache.alloc(Gfp::KERNEL).unwrap().addr().get()).collect()
}
/// What lay on the stack does so no more.
#[inline(never)]
fn clear_stack() {
    std::hint::black_box(&mut [0_u8; 1 << 16]).fill(0);
}
fn unreachable(subsystem: &Subsystem) -> u64 {
    clear_stack();
    subsystem.leaks().0.iter().map(|holder| holder.unreachable).sum()
}

/// Some stay reachable when nothing leads to them: words of magazines that are not in use any more look like it.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn objects_are_reached_from_the_program_s_own_memory_and_from_large_blocks() {
    if !is_alone("leaks::objects_are_reached_from_the_program_s_own_memory_and_from_large_blocks") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let objects = hidden(&cache);
    // Each second one leads to the next, which reaches that only if something leads to it.
    for pair in objects.chunks(2) {
        // SAFETY: the test's object, and large enough.
        unsafe { (!pair[0] as *mut usize).write(!pair[1]) };
    }
    let many = OBJECTS as u64 * 5 / 8;
    assert!(unreachable(&subsystem) >= many);
    std::hint::black_box(&WORDS);
    WORDS.iter().zip(&objects).for_each(|(word, hidden)| word.store(!hidden, Relaxed));
    assert_eq!(unreachable(&subsystem), 0);
    WORDS.iter().for_each(|word| word.store(1, Relaxed));
    assert!(unreachable(&subsystem) >= many);
    // Behind the classes: a block of pages, which is no object.
    let block = malloc.alloc(Layout::array::<u8>(256 << 10).unwrap(), Gfp::ZERO).unwrap();
    let words = block.cast::<usize>();
    // SAFETY: the block is large enough, and the test's.
    let put = |of: fn(usize) -> usize| unsafe {
        objects.iter().enumerate().for_each(|(at, hidden)| words.add(at).write(of(*hidden)));
    };
    put(|hidden| !hidden);
    assert_eq!(unreachable(&subsystem), 0);
    put(|_| 0);
    assert!(unreachable(&subsystem) >= many);
    // Pages, and objects of a cache of which nobody knows which are in use.
    let pages = subsystem.pages().alloc_block(Order::ZERO, Gfp::ZERO, None).unwrap();
    let other = KmemCache::builder("other", OBJECTS * size_of::<usize>()).build_in(&subsystem).unwrap();
    let table = other.alloc_block(Gfp::ZERO).unwrap();
    for words in [subsystem.pages().address(pages.pfn()), table.address()] {
        // SAFETY: the block is large enough, and the test's.
        let put = |of: fn(usize) -> usize| unsafe {
            let words = words.cast::<usize>();
            objects.iter().enumerate().for_each(|(at, hidden)| words.add(at).write(of(*hidden)));
        };
        put(|hidden| !hidden);
        assert_eq!(unreachable(&subsystem), 0);
        put(|_| 0);
        assert!(unreachable(&subsystem) >= many);
    }
    // SAFETY: allocated above, freed once.
    unsafe {
        malloc.free(block);
        objects.iter().for_each(|hidden| cache.free(NonNull::new(!hidden as *mut u8).unwrap()));
    }
}

/// Once those bytes were not looked into.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn what_lies_behind_the_bytes_that_were_asked_for_reaches_an_object() {
    if !is_alone("leaks::what_lies_behind_the_bytes_that_were_asked_for_reaches_an_object") {
        return;
    }
    let subsystem =
        Subsystem::new(Config { slab_debug: "FU".parse().unwrap(), ..config(1, 1, 64 << 20) }).unwrap();
    let cache = KmemCache::builder("node", 200).build_in(&subsystem).unwrap();
    let malloc = Malloc::new(&subsystem).unwrap();
    let objects = hidden(&cache);
    std::hint::black_box(&WORDS);
    for (word, hidden) in WORDS.iter().zip(&objects) {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let array = malloc.alloc(layout(72), Gfp::ZERO).unwrap();
        // SAFETY: allocated above with this layout; it has ten words then.
        let array = unsafe {
            let array = malloc.realloc_sized(array, layout(72), 80, Gfp::KERNEL).unwrap();
            array.cast::<usize>().add(9).write(!hidden);
            array
        };
        word.store(array.addr().get(), Relaxed);
    }
    assert_eq!(unreachable(&subsystem), 0);
    WORDS.iter().for_each(|word| word.store(1, Relaxed));
}

/// Once its list of samples led to each of them.
#[test]
#[cfg_attr(uslab_heap, ignore = "the heap has no such words")]
fn what_a_profile_knows_of_an_object_does_not_reach_it() {
    if !is_alone("leaks::what_a_profile_knows_of_an_object_does_not_reach_it") {
        return;
    }
    let subsystem = subsystem(1);
    subsystem.start_profile(1).unwrap();
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = hidden(&cache);
    assert_eq!(subsystem.profile().total().live.objects, OBJECTS as u64);
    let found = unreachable(&subsystem);
    assert!(found >= OBJECTS as u64 * 5 / 8, "{found}");
    std::hint::black_box(objects);
}

/// Once all objects counted as lost where a sandbox keeps a process from reading memory through the kernel.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_read_is_no_leak() {
    use nix::libc;
    if !is_alone("leaks::what_cannot_be_read_is_no_leak") {
        return;
    }
    let subsystem = subsystem(1);
    let cache = KmemCache::builder("node", 200).check_frees(true).build_in(&subsystem).unwrap();
    let objects = hidden(&cache);
    #[cfg(not(uslab_heap))]
    assert!(unreachable(&subsystem) >= OBJECTS as u64 * 5 / 8);
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_process_vm_readv as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter is alive; the test is alone in its process.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(refused, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(unreachable(&subsystem), 0);
    assert_eq!(subsystem.leaks().0[0].objects, OBJECTS as u64);
    std::hint::black_box(objects);
}

//! Tests that chunks are added, moved, filled and freed, and measures how many pages the operations touch after random
//! churn.

use super::super::ReservedPool;
use super::*;
use std::collections::BTreeSet;
use uslab_buddy::faults::{RESERVE, Rule};

const OBJECT: Layout = Layout::new::<[u64; 8]>();

fn pool() -> ChunkedPool {
    ChunkedPool::new(SlotLayout::new(64, 8).unwrap(), 4096).unwrap()
}
fn alloc_slots(pool: &mut ChunkedPool, n: usize) -> Vec<NonNull<u8>> {
    (0..n).map(|_| pool.alloc(OBJECT).unwrap()).collect()
}
fn free_slot(pool: &mut ChunkedPool, slot: NonNull<u8>) {
    // SAFETY: the tests free each allocation once.
    unsafe { pool.free(slot) }.unwrap();
}
fn fill(pool: &ChunkedPool) -> Vec<usize> {
    let fill: Vec<_> = pool.fill().collect();
    // The list from back to front has equal chunks.
    let mut at = pool.back;
    for live in fill.iter().rev() {
        // SAFETY: the pointer is a listed chunk.
        let chunk = unsafe { at.unwrap().as_ref() };
        assert_eq!(chunk.live, *live);
        at = chunk.prev;
    }
    assert_eq!((at, fill.len()), (None, pool.chunks()));
    let live = pool.free_lists().map(|(_, free)| pool.capacity() - free.count());
    assert!(live.eq(fill.iter().copied()), "slots that are not in use must be on the chunk's list");
    fill
}

#[test]
fn full_chunks_move_to_the_end_of_the_chunk_list() {
    let mut pool = pool();
    let n = pool.capacity();
    assert!((50..64).contains(&n));
    let slots = alloc_slots(&mut pool, 2 * n);
    assert_eq!(fill(&pool), [n, n]);
    let third = alloc_slots(&mut pool, 1);
    assert_eq!(fill(&pool), [1, n, n]);
    free_slot(&mut pool, slots[0]);
    assert_eq!(fill(&pool), [n - 1, 1, n], "the oldest chunk must be first again");
    assert_eq!(alloc_slots(&mut pool, 1), [slots[0]], "an old slot must be allocated first");
    assert_eq!(fill(&pool), [1, n, n]);
    free_slot(&mut pool, third[0]);
    assert_eq!(fill(&pool), [0, n, n]);
}

#[test]
fn purge_releases_only_empty_chunks() {
    let mut pool = pool();
    let n = pool.capacity();
    let slots = alloc_slots(&mut pool, 5 * n);
    // Free all slots of chunks 0, 2 and 4, one slot of chunk 1, and no slot of chunk 3.
    for slot in slots[..n].iter().chain(&slots[2 * n..3 * n]).chain(&slots[4 * n..]).chain([&slots[n]]) {
        free_slot(&mut pool, *slot);
    }
    let mut before = fill(&pool);
    before.sort_unstable();
    assert_eq!(before, [0, 0, 0, n - 1, n]);
    assert_eq!((pool.purge(), pool.purge()), (3, 0));
    assert_eq!(fill(&pool), [n - 1, n]);
    slots[n + 1..2 * n].iter().chain(&slots[3 * n..4 * n]).for_each(|slot| free_slot(&mut pool, *slot));
    assert_eq!((pool.purge(), fill(&pool)), (2, vec![]));
    assert_eq!(alloc_slots(&mut pool, 1).len(), 1, "the pool must grow again");
}

#[test]
fn allocation_fails_if_the_system_refuses_a_chunk() {
    let faults = Faults::new(1);
    let slots = SlotLayout::new(64, 8).unwrap();
    let mut pool = ChunkedPool::with_faults(slots, 4096, Backend::Heap, faults.clone()).unwrap();
    faults.arm(vec![Rule::every(Some(RESERVE))]);
    assert_eq!(pool.alloc(OBJECT), Err(Refused::Memory { bytes: 4096 }));
    assert_eq!(pool.chunks(), 0);
    faults.disarm();
    assert!(pool.alloc(OBJECT).is_ok());
}

#[test]
fn chunk_smaller_than_a_slot_is_refused() {
    let new_pool = |size, align, bytes| {
        ChunkedPool::new(SlotLayout::new(size, align).unwrap(), bytes)
            .map(|pool| pool.capacity())
            .map_err(|_| ())
    };
    assert_eq!(new_pool(4096, 8, 4096), Err(()));
    assert_eq!(new_pool(4096, 4096, 8192), Ok(1));
    assert_eq!(new_pool(8192, 8192, 8192), Err(()));
    assert_eq!(new_pool(64, 8, 5000), Err(()));
    let slots = SlotLayout::new(64, 8).unwrap();
    assert_eq!(ChunkedPool::new(slots, 1).unwrap().chunk_bytes(), 4096);
}

#[test]
fn each_kind_of_invalid_free_returns_its_error() {
    let mut pool = pool();
    let slot = alloc_slots(&mut pool, 1)[0];
    let address = slot.addr().get();
    // SAFETY: the addresses are within the slot's chunk, and invalid frees are refused.
    unsafe {
        assert_eq!(pool.free(slot.add(8)), Err(BadFree::Interior { address: address + 8, slot: 0 }));
        let head = slot.sub(64);
        assert_eq!(pool.free(head), Err(BadFree::Foreign { address: address - 64 }));
        assert_eq!(pool.free(slot), Ok(()));
        assert_eq!(pool.free(slot), Err(BadFree::Double { slot: 0 }));
    }
}

/// The test tries several times, because another thread may map memory at the same address as a freed chunk.
#[cfg(all(target_os = "linux", not(uslab_heap), not(miri)))]
#[test]
fn dropped_pool_releases_all_chunks() {
    let mapped = |slot: &NonNull<u8>| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            (address(start)..address(end)).contains(&slot.addr().get())
        })
    };
    assert!((0..10).any(|_| {
        let mut pool = ChunkedPool::new(SlotLayout::new(64, 8).unwrap(), 64 << 10).unwrap();
        let n = pool.capacity();
        let slots = alloc_slots(&mut pool, 10 * n);
        assert!(slots.iter().step_by(n).all(mapped));
        drop(pool);
        !slots.iter().step_by(n).any(mapped)
    }));
}

/// Numbers of distinct pages that 1,000 consecutive operations touch, after random churn.
#[derive(Clone, Copy, Debug)]
struct Pages {
    allocs: usize,
    frees: usize,
}

/// Allocates `live` objects and frees half of them in random order. The function `pages` then allocates and frees four
/// times as many objects at random.
fn pages<P>(
    pool: &mut P,
    live: usize,
    alloc: impl Fn(&mut P) -> NonNull<u8>,
    free: impl Fn(&mut P, NonNull<u8>),
) -> Pages {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |bound: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % bound as u64) as usize
    };
    let mut allocated_blocks: Vec<_> = (0..live).map(|_| alloc(pool)).collect();
    for step in 0..4 * live {
        // The number of objects varies randomly around half of `live`, so that allocations use more than the
        // last free slot.
        if step < live / 2 || random(live) < allocated_blocks.len() {
            let pick = random(allocated_blocks.len());
            free(pool, allocated_blocks.swap_remove(pick));
        } else {
            allocated_blocks.push(alloc(pool));
        }
    }
    let different_pages = |row: Vec<NonNull<u8>>| {
        row.iter().map(|slot| slot.addr().get() / PAGE_SIZE).collect::<BTreeSet<_>>().len()
    };
    let allocs = different_pages((0..1000).map(|_| alloc(pool)).collect());
    let freed: Vec<_> =
        (0..1000).map(|_| allocated_blocks.swap_remove(random(allocated_blocks.len()))).collect();
    freed.iter().for_each(|&slot| free(pool, slot));
    Pages { allocs, frees: different_pages(freed) }
}

/// The comments on Reinalter's post ask if a single list over a large range touches more pages than a list per chunk.
/// Consecutive allocations touch many more pages with a single list; random frees touch equally many with either kind
/// of list.
#[cfg_attr(miri, ignore = "a million steps")]
#[test]
fn chunked_pool_touches_fewer_pages_than_one_free_list() {
    let live = 256 << 10;
    let slots = SlotLayout::new(64, 8).unwrap();
    let pages_of_one_chunk = pages(
        &mut ReservedPool::new(slots, 64 << 20).unwrap(),
        live,
        |pool| pool.alloc(OBJECT).unwrap(),
        // SAFETY: the slot was allocated from this pool and is freed once.
        |pool, slot| unsafe { pool.free(slot) }.unwrap(),
    );
    let by_chunk = |bytes| {
        pages(
            &mut ChunkedPool::new(slots, bytes).unwrap(),
            live,
            |pool| pool.alloc(OBJECT).unwrap(),
            // SAFETY: the slot was allocated from this pool and is freed once.
            |pool, slot| unsafe { pool.free(slot) }.unwrap(),
        )
    };
    let chunks = [4 << 10, 32 << 10, 256 << 10].map(by_chunk);
    println!(
        "distinct pages among 1,000 slots: one list {pages_of_one_chunk:?}; lists per chunk of 4, 32, 256 KiB {chunks:?}"
    );
    for chunks in chunks {
        assert!(chunks.allocs < pages_of_one_chunk.allocs / 4, "{pages_of_one_chunk:?} {chunks:?}");
        assert!(chunks.frees > pages_of_one_chunk.frees * 3 / 4, "{pages_of_one_chunk:?} {chunks:?}");
    }
}

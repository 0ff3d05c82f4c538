//! Compares the pool with a small model of the paper's listing, and tests the intended differences.

use super::super::area::{Borrowed, HeapArea, StackArea};
use super::*;
use proptest::prelude::*;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::{Backend, Region, Uncommitted};

/// A model of the paper's listing, which stores links in a table instead of in the memory. A link of `None` is the
/// listing's `NULL`.
#[derive(Clone, Debug)]
struct PaperListing {
    blocks: u32,
    free: u32,
    initialised: u32,
    links: Vec<u32>,
    next: Option<u32>,
}

impl PaperListing {
    fn new(blocks: u32) -> Self {
        Self { blocks, free: blocks, initialised: 0, links: vec![u32::MAX; blocks as usize], next: Some(0) }
    }
    /// `CreatePool` of the listing, for an existing pool: sets all variables except the count of initialised blocks.
    fn recreate_pool(&mut self, blocks: u32) {
        *self = Self { initialised: self.initialised, ..Self::new(blocks) };
    }
    fn allocate(&mut self) -> Option<u32> {
        if self.initialised < self.blocks {
            self.links[self.initialised as usize] = self.initialised + 1;
            self.initialised += 1;
        }
        if self.free == 0 {
            return None;
        }
        let block = self.next;
        self.free -= 1;
        self.next = if self.free == 0 { None } else { self.links.get(block? as usize).copied() };
        block
    }
    fn free(&mut self, block: u32) {
        self.links[block as usize] = self.next.unwrap_or(self.blocks);
        self.next = Some(block);
        self.free += 1;
    }
    fn state(&self) -> State {
        State { free: self.free, initialised: self.initialised, next: self.next.unwrap_or(self.blocks) }
    }
}

fn pool(size: usize, blocks: usize, policy: Initialise) -> IndexPool<HeapArea> {
    IndexPool::with_blocks(HeapArea::new(size * blocks, 16).unwrap(), size, blocks, policy).unwrap()
}

impl<A: Area> IndexPool<A> {
    fn alloc_index(&mut self) -> Option<u32> {
        self.alloc().map(|block| self.index(block).unwrap())
    }
    fn free_index(&mut self, index: u32) {
        // SAFETY: the tests free each allocation once, and do not use it.
        unsafe { self.free(self.address(index)) }.unwrap();
    }
}

#[test]
fn index_pool_struct_takes_48_bytes() {
    assert_eq!(size_of::<IndexPool<Borrowed<'_>>>(), 48);
}

/// The paper's second figure shows four blocks in eight states. In the available text of the paper, the drawing is
/// missing.
#[test]
fn index_pool_follows_the_four_block_example_of_the_paper() {
    let mut pool = pool(16, 4, Initialise::EachAllocation);
    let mut states = vec![(pool.state().free, pool.state().initialised, pool.state().next)];
    for step in ["alloc 0", "alloc 1", "alloc 2", "alloc 3", "free 1", "free 3", "alloc 3"] {
        let (operation, index) = step.split_once(' ').unwrap();
        let index = index.parse().unwrap();
        if operation == "alloc" {
            assert_eq!(pool.alloc_index(), Some(index))
        } else {
            pool.free_index(index)
        }
        let State { free, initialised, next } = pool.state();
        states.push((free, initialised, next));
    }
    let expected = [(4, 0, 0), (3, 1, 1), (2, 2, 2), (1, 3, 3), (0, 4, 4), (1, 4, 1), (2, 4, 3), (1, 4, 1)];
    assert_eq!(states, expected);
}

#[test]
fn creating_a_lazy_pool_touches_no_memory() {
    const BYTES: usize = if cfg!(miri) { 1 << 20 } else { 1 << 30 };
    let region = Region::reserve(
        BYTES,
        PAGE_SIZE,
        Uncommitted::ReadsZero,
        Backend::Os,
        &uslab_buddy::Faults::default(),
    );
    struct ReadOnlyArea(Region);
    // SAFETY: the memory may only be read, and the test ensures that no code writes to it.
    unsafe impl Area for ReadOnlyArea {
        fn memory(&self) -> NonNull<[u8]> {
            NonNull::slice_from_raw_parts(self.0.base(), self.0.bytes())
        }
    }
    let mut pool = IndexPool::new(ReadOnlyArea(region.unwrap()), 4096).unwrap();
    let blocks = pool.blocks();
    assert_eq!(blocks as usize, BYTES / 4096);
    // The area is mapped read-only, so a write to it would fault here.
    assert!((0..blocks).all(|block| pool.alloc_index() == Some(block)));
    assert_eq!(pool.alloc(), None);
}

/// If only one object is in use, the paper's policy still adds a block to the chain at each allocation, and so touches
/// a new block each time.
#[test]
fn first_allocation_of_a_lazy_pool_touches_one_block() {
    let initialised = |policy| {
        let mut pool = pool(64, 1000, policy);
        for _ in 0..1000 {
            assert_eq!(pool.alloc_index(), Some(0), "the block that was freed last must be allocated first");
            pool.free_index(0);
        }
        pool.state().initialised
    };
    assert_eq!([Initialise::WhenEmpty, Initialise::EachAllocation].map(initialised), [1, 1000]);
}

/// Compares the initialisation policies by the number of resident pages in a pool of 1 GiB.
#[cfg(all(target_os = "linux", not(uslab_heap), not(miri)))]
#[test]
fn lazy_pool_leaves_untouched_memory_uncommitted() {
    use super::super::area::MappedArea;
    use super::super::resident::resident;
    let pages = |policy| {
        let mut pool =
            IndexPool::with_blocks(MappedArea::new(1 << 30, 4096).unwrap(), 1 << 18, 4096, policy).unwrap();
        let before = resident(pool.area.memory());
        for _ in 0..1000 {
            let block = pool.alloc_index().unwrap();
            pool.free_index(block);
        }
        [before, resident(pool.area.memory())]
    };
    let [when_empty, each_allocation] = [Initialise::WhenEmpty, Initialise::EachAllocation].map(pages);
    // If the system makes huge pages automatically, one huge page may be resident.
    assert!(when_empty[0] == 0 && when_empty[1] <= 512, "{when_empty:?}");
    assert!(each_allocation[0] == 0 && each_allocation[1] >= 1000, "{each_allocation:?}");
}

#[test]
fn blocks_of_at_least_four_bytes_hold_their_links() {
    for size in [4, 5, 6, 7, 9, 13] {
        let mut pool = pool(size, 100, Initialise::WhenEmpty);
        let taken: Vec<_> = (0..100).map(|_| pool.alloc().unwrap()).collect();
        for (index, block) in taken.iter().enumerate() {
            assert_eq!(pool.index(*block), Ok(index as u32));
            // SAFETY: the block was allocated above.
            unsafe { pool.free(*block) }.unwrap();
        }
        assert!((0..100).rev().all(|index| pool.alloc_index() == Some(index)), "size {size}");
    }
    let small = IndexPool::new(HeapArea::new(64, 8).unwrap(), 3).err();
    assert_eq!(small, Some(PoolError::Small { slot: 3, least: 4 }));
    assert!(matches!(IndexPool::new(HeapArea::new(64, 8).unwrap(), 0), Err(PoolError::Small { .. })));
}

#[test]
fn more_blocks_than_the_memory_holds_are_refused() {
    let area = || HeapArea::new(64, 8).unwrap();
    let build = |size, blocks| IndexPool::with_blocks(area(), size, blocks, Initialise::WhenEmpty).err();
    assert_eq!(build(65, 1), Some(PoolError::NoRoom { bytes: 64, needed: 65 }));
    assert_eq!(build(8, 9), Some(PoolError::NoRoom { bytes: 64, needed: 72 }));
    assert_eq!(build(8, 0), Some(PoolError::NoRoom { bytes: 64, needed: 8 }));
    assert_eq!(build(8, usize::MAX), Some(PoolError::NoRoom { bytes: 64, needed: usize::MAX }));
    assert_eq!(build(8, 8), None);
}

#[test]
fn index_pool_error_names_the_invalid_address() {
    let mut pool = pool(32, 4, Initialise::WhenEmpty);
    let block = pool.alloc().unwrap();
    let address = block.addr().get();
    let with_address = |address: usize| block.with_addr(address.try_into().unwrap());
    // SAFETY: invalid frees are refused, and the block belongs to the test.
    unsafe {
        assert_eq!(
            pool.free(with_address(address + 1)),
            Err(BadFree::Interior { address: address + 1, slot: 0 })
        );
        assert_eq!(pool.free(with_address(address + 128)), Err(BadFree::Foreign { address: address + 128 }));
        assert_eq!(pool.free(with_address(address - 32)), Err(BadFree::Foreign { address: address - 32 }));
        assert_eq!(
            pool.free(with_address(address + 32)),
            Err(BadFree::Double { slot: 1 }),
            "a slot that was never allocated must be refused"
        );
        assert_eq!(pool.free(block), Ok(()));
        assert_eq!(
            pool.free(block),
            Err(BadFree::Double { slot: 0 }),
            "a free must be refused if no block is allocated"
        );
        let block = pool.alloc().unwrap();
        pool.free_unchecked(block);
    }
    assert_eq!(pool.live(), 0);
}

/// If the listing's pool is created a second time, it keeps its count of initialised blocks, and hands out a link that
/// was never written.
#[test]
fn recreated_index_pool_starts_empty() {
    let mut listing = PaperListing::new(4);
    assert_eq!((0..4).filter_map(|_| listing.allocate()).count(), 4);
    listing.recreate_pool(8);
    assert_eq!(listing.allocate(), Some(0));
    assert_eq!(listing.next, Some(u32::MAX), "the listing reads a link that was never written");

    let mut pool = IndexPool::new(HeapArea::new(256, 8).unwrap(), 64).unwrap();
    (0..4).for_each(|index| assert_eq!(pool.alloc_index(), Some(index)));
    assert_eq!(pool.reconfigure(32, 8), Err(PoolError::Busy { live: 4 }));
    (0..4).for_each(|index| pool.free_index(index));
    assert_eq!(pool.reconfigure(32, 9), Err(PoolError::NoRoom { bytes: 256, needed: 288 }));
    assert_eq!((pool.size(), pool.blocks()), (64, 4), "the pool must be unchanged");
    assert_eq!(pool.reconfigure(32, 8), Ok(()));
    assert_eq!(pool.state(), State { free: 8, initialised: 0, next: 0 });
    assert!((0..8).all(|index| pool.alloc_index() == Some(index)) && pool.alloc_index().is_none());
    pool.reset();
    assert_eq!((pool.live(), pool.alloc_index()), (0, Some(0)));
    let mut pool = pool.destroy().unwrap_err();
    pool.free_index(0);
    assert!(pool.destroy().is_ok());
}

/// The listing sets `m_next` to null when the pool is full, and still returns this null after the pool has grown.
#[test]
fn grown_pool_allocates_its_new_blocks() {
    let mut listing = PaperListing::new(2);
    assert_eq!((listing.allocate(), listing.allocate()), (Some(0), Some(1)));
    (listing.blocks, listing.free) = (4, 2);
    listing.links.resize(4, u32::MAX);
    assert_eq!(listing.allocate(), None, "the listing returns null although two blocks are free");

    for policy in [Initialise::WhenEmpty, Initialise::EachAllocation] {
        let mut pool = IndexPool::with_blocks(HeapArea::new(64, 8).unwrap(), 16, 2, policy).unwrap();
        assert_eq!([pool.alloc_index(), pool.alloc_index(), pool.alloc_index()], [Some(0), Some(1), None]);
        assert_eq!(pool.extend(3), Err(PoolError::NoRoom { bytes: 64, needed: 80 }));
        assert_eq!(pool.extend(usize::MAX), Err(PoolError::NoRoom { bytes: 64, needed: usize::MAX }));
        pool.extend(2).unwrap();
        assert_eq!([pool.alloc_index(), pool.alloc_index(), pool.alloc_index()], [Some(2), Some(3), None]);
    }
}

#[test]
fn pool_shrinks_to_its_last_used_block() {
    for policy in [Initialise::WhenEmpty, Initialise::EachAllocation] {
        let mut pool = pool(16, 10, policy);
        assert_eq!((0..7).filter_map(|_| pool.alloc_index()).count(), 7);
        [5, 1, 6, 2, 0].into_iter().for_each(|index| pool.free_index(index));
        assert_eq!(pool.shrink_to_used(), Ok(5), "3 and 4 are allocated, and 5 to 9 are removed");
        assert_eq!((pool.blocks(), pool.live()), (5, 2));
        assert_eq!(
            [0, 2, 1].map(Some),
            [pool.alloc_index(), pool.alloc_index(), pool.alloc_index()],
            "the order must be unchanged"
        );
        assert_eq!((pool.alloc_index(), pool.shrink_to_used()), (None, Ok(0)));
        pool.extend(5).unwrap();
        assert_eq!([5, 6].map(Some), [pool.alloc_index(), pool.alloc_index()]);
        (0..7).for_each(|index| pool.free_index(index));
        assert_eq!((pool.shrink_to_used(), pool.blocks()), (Ok(9), 1), "one block must stay");
        assert_eq!([pool.alloc_index(), pool.alloc_index()], [Some(0), None]);
    }
}

#[test]
fn pool_works_inside_a_block_of_another_pool() {
    let mut area = StackArea::<1024>::new();
    let mut outer_pool = IndexPool::new(area.lend(), 256).unwrap();
    for _ in 0..10 {
        let block = outer_pool.alloc().unwrap();
        // SAFETY: the 256 bytes belong to the test until the block is freed, and the borrow ends before.
        let memory = unsafe { core::slice::from_raw_parts_mut(block.cast().as_ptr(), 256) };
        let mut inner = IndexPool::new(Borrowed::from(memory), 24).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| inner.alloc()).collect();
        assert_eq!(taken.len(), 10);
        assert!(taken.iter().all(|at| (0..256).contains(&(at.addr().get() - block.addr().get()))));
        // SAFETY: the block was allocated above, and is not used.
        unsafe { outer_pool.free(block) }.unwrap();
    }
    assert_eq!(outer_pool.live(), 0);
}

/// The listing's `(uint)(p - start)` truncates the distance to 32 bits.
#[cfg(all(target_os = "linux", not(uslab_heap), not(miri)))]
#[test]
fn index_pool_addresses_blocks_beyond_four_gibibytes() {
    struct PartlyCommittedArea(Region);
    // SAFETY: the region owns the memory, and the test accesses only the pages at both ends, which are
    // committed.
    unsafe impl Area for PartlyCommittedArea {
        fn memory(&self) -> NonNull<[u8]> {
            NonNull::slice_from_raw_parts(self.0.base(), self.0.bytes())
        }
    }
    const BLOCK: usize = 1 << 20;
    const BLOCKS: usize = 6 << 10;
    let region = Region::reserve(
        BLOCK * BLOCKS,
        PAGE_SIZE,
        Uncommitted::NoAccess,
        Backend::Os,
        &uslab_buddy::Faults::default(),
    );
    let region = region.unwrap();
    assert!(
        region.commit(0..PAGE_SIZE) && region.commit(BLOCK * (BLOCKS - 1)..BLOCK * (BLOCKS - 1) + PAGE_SIZE)
    );
    let mut pool = IndexPool::new(PartlyCommittedArea(region), BLOCK).unwrap();
    let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let (first, last) = (blocks[0], blocks[BLOCKS - 1]);
    let distance = last.addr().get() - first.addr().get();
    assert_eq!(
        (distance, distance as u32 as usize / BLOCK),
        (BLOCK * (BLOCKS - 1), 2047),
        "the code must agree with the paper's listing"
    );
    // SAFETY: the block was allocated above and is freed once.
    unsafe {
        pool.free(last).unwrap();
        pool.free(first).unwrap();
    }
    assert_eq!(
        [pool.alloc_index(), pool.alloc_index(), pool.alloc_index()],
        [Some(0), Some(BLOCKS as u32 - 1), None]
    );
}

proptest! {
    /// With the paper's policy, the pool returns the same blocks in the same order as the listing, with equal counts.
    #[test]
    fn index_pool_agrees_with_the_listing_of_the_paper(blocks in 1..40_u32, size in 4..40_usize, steps in prop::collection::vec(any::<u16>(), 1..300)) {
        let mut pool = pool(size, blocks as usize, Initialise::EachAllocation);
        let mut listing = PaperListing::new(blocks);
        let mut allocated = Vec::new();
        for step in steps {
            if step % 2 == 0 {
                let block = pool.alloc_index();
                prop_assert_eq!(block, listing.allocate());
                allocated.extend(block);
            } else if !allocated.is_empty() {
                let block = allocated.swap_remove(step as usize / 2 % allocated.len());
                pool.free_index(block);
                listing.free(block);
            }
            prop_assert_eq!(pool.state(), listing.state());
            prop_assert_eq!(pool.live() as usize, allocated.len());
        }
    }

    /// With either policy, the pool must hand out each block only once, and growing and shrinking must lose no block.
    #[test]
    fn blocks_are_conserved_while_pools_grow_and_shrink(
        each_allocation in any::<bool>(), steps in prop::collection::vec(any::<u16>(), 1..300),
    ) {
        let policy = if each_allocation { Initialise::EachAllocation } else { Initialise::WhenEmpty };
        let mut pool = IndexPool::with_blocks(HeapArea::new(64 * 12, 8).unwrap(), 12, 5, policy).unwrap();
        let mut allocated = std::collections::BTreeSet::new();
        for step in steps {
            let pick = step as usize / 8;
            match step % 8 {
                0..4 => match pool.alloc_index() {
                    Some(block) => prop_assert!(block < pool.blocks() && allocated.insert(block), "block {} twice", block),
                    None => prop_assert_eq!(allocated.len(), pool.blocks() as usize),
                },
                4..6 => if let Some(&block) = allocated.iter().nth(pick % allocated.len().max(1)) {
                    allocated.remove(&block);
                    pool.free_index(block);
                },
                6 => {
                    let (before, extra) = (pool.blocks() as usize, pick % 9);
                    prop_assert_eq!(pool.extend(extra).is_ok(), before + extra <= 64);
                }
                _ => {
                    let last = allocated.last().map_or(1, |last| *last as usize + 1);
                    let before = pool.blocks() as usize;
                    prop_assert_eq!(pool.shrink_to_used(), Ok(before - last));
                }
            }
            prop_assert_eq!(pool.live() as usize, allocated.len());
        }
        while let Some(block) = pool.alloc_index() {
            prop_assert!(allocated.insert(block));
        }
        prop_assert_eq!(allocated.len(), pool.blocks() as usize);
    }
}

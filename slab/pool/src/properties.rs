//! Tests that compare all pools with one shadow model. The tests check that objects do not overlap, are aligned, and
//! keep their bytes. The pool must refuse a request that does not fit, and serve any other request while it has room.
//! At the end of a test, all memory of the pool must be free.

use super::area::{Area, HeapArea};
use super::index_pool::Initialise;
use super::*;
use core::alloc::Layout;
use core::ptr::NonNull;
use proptest::prelude::*;
use std::alloc::System;
use std::collections::BTreeMap;

trait Subject {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused>;
    /// # Safety
    /// The conditions of the pool's `free` must hold.
    unsafe fn free(&mut self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree>;
    /// Returns `true` if the pool could serve `layout` when it is empty.
    fn fits(&self, layout: Layout) -> bool;
    /// Returns the number of objects that the pool can hold; `None` if the pool grows beyond the number that a test
    /// allocates.
    fn capacity(&self) -> Option<usize>;
    fn check(&self, _live: usize) {}
}

#[derive(Debug)]
struct UnalignedArea(HeapArea);

// SAFETY: the memory is a part of an area.
unsafe impl Area for UnalignedArea {
    fn memory(&self) -> NonNull<[u8]> {
        let memory = self.0.memory();
        // SAFETY: the area has at least 4,096 bytes.
        NonNull::slice_from_raw_parts(unsafe { memory.cast::<u8>().add(1) }, memory.len() - 1)
    }
}

fn unaligned_area() -> UnalignedArea {
    UnalignedArea(HeapArea::new(4096, 4096).unwrap())
}

const MAX_TEST_LAYOUT: Layout = match Layout::from_size_align(48, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};

fn slots() -> SlotLayout {
    SlotLayout::new(MAX_TEST_LAYOUT.size(), MAX_TEST_LAYOUT.align()).unwrap()
}

fn layout_fits_in(layout: Layout, max_layout: Layout) -> bool {
    layout.size() <= max_layout.size() && layout.align() <= max_layout.align()
}

macro_rules! subjects {
    ($($pool:ty: $capacity:expr, $check:expr;)+) => {$(
        impl Subject for $pool {
            fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
                self.alloc(layout)
            }
            unsafe fn free(&mut self, object: NonNull<u8>, _: Layout) -> Result<(), BadFree> {
                // SAFETY: the object belongs to the pool and is no longer used, by this function's contract.
                unsafe { self.free(object) }
            }
            fn fits(&self, layout: Layout) -> bool {
                layout_fits_in(layout, MAX_TEST_LAYOUT)
            }
            fn capacity(&self) -> Option<usize> {
                $capacity(self)
            }
            fn check(&self, live: usize) {
                $check(self, live)
            }
        }
    )+};
}

fn check_fixed_pool<A: Area>(pool: &FixedPool<A>, live: usize) {
    assert_eq!(pool.usage().live(), live as u64);
    assert_eq!(pool.chain().count(), pool.capacity() - live, "each slot must be free or allocated");
    if let Some(in_use) = pool.live() {
        assert_eq!(in_use.count(), live);
    }
}

subjects! {
    FixedPool<UnalignedArea>: |pool: &Self| Some(pool.capacity()), check_fixed_pool;
    ReservedPool: |pool: &Self| Some(pool.capacity()),
        |pool: &Self, live| assert_eq!(pool.usage().live(), live as u64);
    ChunkedPool: |_: &Self| None, |pool: &Self, live| {
        let fill: Vec<_> = pool.fill().collect();
        assert_eq!((fill.iter().sum::<usize>(), fill.len()), (live, pool.chunks()));
        let full = fill.iter().position(|&live| live == pool.capacity()).unwrap_or(fill.len());
        assert!(fill[full..].iter().all(|&live| live == pool.capacity()), "a full chunk must not be first: {fill:?}");
    };
    MarkedPool<UnalignedArea>: |pool: &Self| Some(pool.pool().capacity()),
        |pool: &Self, live| assert_eq!(pool.live().count(), live);
}

/// A free list, with its initial number of slots.
struct SlotList {
    list: FreeList,
    slots: usize,
    _area: HeapArea,
}

impl SlotList {
    fn new() -> Self {
        let area = HeapArea::new(2000, 64).unwrap();
        // SAFETY: the area lives as long as the list, and no other code uses it.
        let list =
            unsafe { FreeList::new(area.memory(), MAX_TEST_LAYOUT.size(), MAX_TEST_LAYOUT.align(), 0) }
                .unwrap();
        Self { slots: list.chain().count(), list, _area: area }
    }
}

impl Subject for SlotList {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        slots().admits(layout, 0)?;
        self.list.obtain().ok_or(Refused::Full)
    }
    unsafe fn free(&mut self, object: NonNull<u8>, _: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the list and is no longer used, by this function's contract.
        unsafe { self.list.give(object) };
        Ok(())
    }
    fn fits(&self, layout: Layout) -> bool {
        layout_fits_in(layout, MAX_TEST_LAYOUT)
    }
    fn capacity(&self) -> Option<usize> {
        Some(self.slots)
    }
    fn check(&self, live: usize) {
        assert_eq!(self.list.chain().count(), self.slots - live);
    }
}

impl Subject for IndexPool<HeapArea> {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        slots().admits(layout, 0)?;
        self.alloc().ok_or(Refused::Full)
    }
    unsafe fn free(&mut self, object: NonNull<u8>, _: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the pool and is no longer used, by this function's contract.
        unsafe { self.free(object) }
    }
    fn fits(&self, layout: Layout) -> bool {
        layout_fits_in(layout, MAX_TEST_LAYOUT)
    }
    fn capacity(&self) -> Option<usize> {
        Some(self.blocks() as usize)
    }
    fn check(&self, live: usize) {
        assert_eq!(self.live() as usize, live);
    }
}

impl Subject for GuardedPool<HeapArea> {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        slots().admits(layout, 0)?;
        self.alloc()
    }
    unsafe fn free(&mut self, object: NonNull<u8>, _: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the pool and is no longer used, by this function's contract.
        unsafe { self.free(object) }
    }
    fn fits(&self, layout: Layout) -> bool {
        layout_fits_in(layout, MAX_TEST_LAYOUT)
    }
    fn capacity(&self) -> Option<usize> {
        Some(self.pool().blocks() as usize)
    }
    fn check(&self, live: usize) {
        assert_eq!((self.leaks().count(), self.check_all().next()), (live, None));
    }
}

/// An arena, with its largest object and its number of objects.
struct Arena<A, B>(MemoryArena<A, B>, Layout, Option<usize>);

impl<A: Allocator, B: Bounds> Subject for Arena<A, B> {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.0.alloc(layout)
    }
    unsafe fn free(&mut self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the arena and is no longer used, by this function's contract.
        unsafe { self.0.free(object, layout) }
    }
    fn fits(&self, layout: Layout) -> bool {
        layout_fits_in(layout, self.1)
    }
    fn capacity(&self) -> Option<usize> {
        self.2
    }
}

impl Subject for ClassPools {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        self.alloc(layout)
    }
    unsafe fn free(&mut self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the pools and is no longer used, by this function's contract.
        unsafe { self.free(object, layout) }
    }
    fn fits(&self, layout: Layout) -> bool {
        self.slot_size(layout).is_ok()
    }
    fn capacity(&self) -> Option<usize> {
        None
    }
    fn check(&self, live: usize) {
        assert_eq!(self.pools().iter().map(|pool| pool.usage().live()).sum::<u64>(), live as u64);
        let Waste { requested, allocated } = self.waste();
        assert!(requested <= allocated && (live > 0 || allocated == 0));
    }
}

impl Subject for Hybrid {
    fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        Hybrid::alloc(self, layout)
    }
    unsafe fn free(&mut self, object: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        // SAFETY: the object belongs to the hybrid and is no longer used, by this function's contract.
        unsafe { Hybrid::free(self, object, layout) }
    }
    fn fits(&self, _: Layout) -> bool {
        true
    }
    fn capacity(&self) -> Option<usize> {
        None
    }
    fn check(&self, live: usize) {
        let routes = self.routes();
        let allocated_slots =
            routes.pool + routes.unfit + routes.full - routes.pool_frees - routes.heap_frees;
        assert_eq!(allocated_slots, live as u64);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(Layout),
    Free(usize),
}

/// Returns random steps with more allocations than frees, so that pools become full. The sizes and alignments can
/// slightly exceed [`MAX_TEST_LAYOUT`], and some sizes are up to 4,096 bytes.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let layout = |(size, log): (usize, u32)| Step::Alloc(Layout::from_size_align(size, 1 << log).unwrap());
    let step = prop_oneof![
        8 => (0..50_usize, 0..6_u32).prop_map(layout),
        1 => (0..600_usize, 0..13_u32).prop_map(layout),
        6 => any::<usize>().prop_map(Step::Free),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 40 } else { 400 })
}

/// The model: objects in use by address, each with its layout and fill byte.
#[derive(Default)]
struct Shadow(BTreeMap<usize, (NonNull<u8>, Layout, u8)>);

impl Shadow {
    fn alloc(&mut self, subject: &mut impl Subject, layout: Layout, stamp: u8) {
        let object = match subject.alloc(layout) {
            Ok(object) => object,
            Err(refused) => {
                let full = subject.capacity().is_some_and(|capacity| self.0.len() == capacity);
                assert!(
                    full || !subject.fits(layout),
                    "{layout:?}: {refused}, with {} allocated",
                    self.0.len()
                );
                assert_eq!(refused == Refused::Full, subject.fits(layout), "{layout:?}: {refused}");
                return;
            }
        };
        let address = object.addr().get();
        assert!(subject.fits(layout), "{layout:?} is too large for the pool");
        assert!(address.is_multiple_of(layout.align()), "{layout:?} at {address:#x}");
        if let Some((before, (_, previous, _))) = self.0.range(..=address).next_back() {
            assert!(before + previous.size().max(1) <= address, "the object overlaps the previous object");
        }
        if let Some((after, _)) = self.0.range(address..).next() {
            assert!(address + layout.size() <= *after, "the object overlaps the next object");
        }
        // SAFETY: the object has this number of bytes.
        unsafe { object.write_bytes(stamp, layout.size()) };
        self.0.insert(address, (object, layout, stamp));
    }
    fn free(&mut self, subject: &mut impl Subject, pick: usize) {
        let Some(&address) = self.0.keys().nth(pick % self.0.len().max(1)) else { return };
        let Some((object, layout, stamp)) = self.0.remove(&address) else { return };
        // SAFETY: the object belongs to the test, and is filled with the stamp.
        let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), layout.size()) };
        assert!(bytes.iter().all(|&byte| byte == stamp), "the memory was overwritten: {bytes:?}");
        // SAFETY: the tested pool allocated the object with this layout, and the object is freed
        // once.
        assert_eq!(unsafe { subject.free(object, layout) }, Ok(()));
    }
}

fn run(mut subject: impl Subject, steps: Vec<Step>) {
    let mut shadow = Shadow::default();
    for (stamp, step) in steps.into_iter().enumerate() {
        match step {
            Step::Alloc(layout) => shadow.alloc(&mut subject, layout, stamp as u8),
            Step::Free(pick) => shadow.free(&mut subject, pick),
        }
        subject.check(shadow.0.len());
    }
    while !shadow.0.is_empty() {
        shadow.free(&mut subject, 0);
    }
    subject.check(0);
    // The pool's whole capacity is available again.
    if let Some(capacity) = subject.capacity() {
        let layout = Layout::from_size_align(1, 1).unwrap();
        assert_eq!((0..).map_while(|_| subject.alloc(layout).ok()).count(), capacity);
    }
}

/// Makes an arena on a pool whose slots have room for `MAX_TEST_LAYOUT` with guards.
fn arena<P: Pooled, B: Bounds>(
    new_pool: impl FnOnce(SlotLayout) -> Result<P, PoolError>,
) -> MemoryArena<P, B> {
    MemoryArena::of_pool(MAX_TEST_LAYOUT.size(), MAX_TEST_LAYOUT.align(), new_pool).unwrap()
}

proptest! {
    #[test]
    fn free_list_agrees_with_a_shadow_model(steps in steps()) {
        run(SlotList::new(), steps);
    }
    #[test]
    fn fixed_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(FixedPool::new(unaligned_area(), slots()).unwrap(), steps);
    }
    #[test]
    fn checked_fixed_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(FixedPool::checked(unaligned_area(), slots()).unwrap(), steps);
    }
    #[test]
    fn lazy_pool_agrees_with_a_shadow_model(steps in steps(), each in any::<bool>()) {
        let policy = if each { Initialise::EachAllocation } else { Initialise::WhenEmpty };
        run(IndexPool::with_blocks(HeapArea::new(2400, 16).unwrap(), 48, 50, policy).unwrap(), steps);
    }
    #[test]
    fn guarded_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(GuardedPool::new(HeapArea::new(4096, 16).unwrap(), MAX_TEST_LAYOUT).unwrap(), steps);
    }
    #[test]
    fn marked_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(MarkedPool::new(unaligned_area(), MAX_TEST_LAYOUT.size(), MAX_TEST_LAYOUT.align()).unwrap(), steps);
    }
    #[test]
    fn chunked_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(ChunkedPool::new(slots(), 4096).unwrap(), steps);
    }
    #[test]
    fn reserved_pool_agrees_with_a_shadow_model(steps in steps()) {
        run(ReservedPool::new(slots(), 3 * 4096).unwrap(), steps);
    }
    #[test]
    fn guarded_arena_on_a_pool_agrees_with_a_shadow_model(steps in steps()) {
        let pool = arena::<_, SimpleBounds>(|slots| FixedPool::checked(unaligned_area(), slots));
        let capacity = pool.allocator().capacity();
        run(Arena(pool, MAX_TEST_LAYOUT, Some(capacity)), steps);
    }
    #[test]
    fn arena_on_chunks_agrees_with_a_shadow_model(steps in steps()) {
        run(Arena(arena::<_, NoBounds>(|slots| ChunkedPool::new(slots, 4096)), MAX_TEST_LAYOUT, None), steps);
    }
    #[test]
    fn guarded_arena_on_the_heap_agrees_with_a_shadow_model(steps in steps()) {
        let large_layout = Layout::from_size_align(1 << 20, 1 << 20).unwrap();
        run(Arena(MemoryArena::<_, SimpleBounds>::new(System), large_layout, None), steps);
    }
    #[test]
    fn class_pools_agree_with_a_shadow_model(steps in steps()) {
        run(ClassPools::new(&SizeClasses::words(), 128 << 10).unwrap(), steps);
    }
    #[test]
    fn hybrid_pools_agree_with_a_shadow_model(steps in steps(), tolerance in 0..40_usize) {
        run(Hybrid::new(ClassPools::new(&SizeClasses::micro(), 4096).unwrap(), tolerance), steps);
    }
}

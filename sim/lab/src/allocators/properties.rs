//! Tests properties of every allocator in the lab: random operations run on the allocator and on a shadow model.
//!
//! - Blocks do not overlap, are within the memory, are aligned (also as addresses), and keep their contents until they
//!   are freed.
//! - The sum of free and occupied bytes never exceeds the capacity, and the reported holes are the real holes.
//! - If an allocator predicts that it has room for a request, or that it has no room, the prediction is correct.
//! - When every block is freed, the memory is in its initial state, with all neighbours merged. Memory that an
//!   allocator never reuses stays occupied after the blocks are freed.
//! - After each step (for slabs, after some of the steps), the allocator's own headers, lists and tables are
//!   consistent.

use super::allocator::{Allocator, ReuseCondition};
use core::alloc::Layout;
use core::ops::Range;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc { size: usize, align: usize },
    Free { pick: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        1 => Just(0_usize),
        4 => 1..=16_usize,
        4 => 1..=512_usize,
        2 => 1..=5000_usize,
        1 => 5000..=40_000_usize,
    ];
    let align = prop_oneof![8 => 0..=4_u32, 1 => 5..=12_u32].prop_map(|power| 1 << power);
    let step = prop_oneof![
        3 => (size, align).prop_map(|(size, align)| Step::Alloc { size, align }),
        2 => any::<usize>().prop_map(|pick| Step::Free { pick }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A live block in the shadow model, with its expected contents.
struct HeldBlock<B> {
    block: B,
    range: Range<usize>,
    layout: Layout,
    /// The seed of the block's pattern.
    seed: u8,
}

/// Returns the byte at index `i` of a block's pattern.
fn pattern(seed: u8, i: usize) -> u8 {
    (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed
}

struct Shadow<A: Allocator> {
    allocator: A,
    blocks: Vec<HeldBlock<A::Block>>,
    seed: u8,
}

impl<A: Allocator> Shadow<A> {
    fn alloc(&mut self, layout: Layout) -> Result<(), TestCaseError> {
        let room = self.allocator.room(layout);
        let Some(mut block) = self.allocator.alloc(layout) else {
            prop_assert_ne!(room, Some(true), "refused, and there is room for {:?}", layout);
            return Ok(());
        };
        prop_assert_ne!(
            room,
            Some(false),
            "the request is served although there is no room for {:?}",
            layout
        );
        let range = self.allocator.range(&block);
        prop_assert!(range.len() >= layout.size(), "{range:?} for {layout:?}");
        prop_assert!(range.start.is_multiple_of(layout.align()), "{range:?} for {layout:?}");
        let overlaps = |held: &&HeldBlock<_>| held.range.start < range.end && range.start < held.range.end;
        if let Some(overlapping) = self.blocks.iter().filter(|held| !held.range.is_empty()).find(overlaps) {
            prop_assert!(range.is_empty(), "{range:?} overlaps {:?}", overlapping.range);
        }
        self.seed = self.seed.wrapping_add(0x53);
        let bytes = self.allocator.bytes(&mut block);
        prop_assert_eq!(bytes.len(), layout.size());
        if !bytes.is_empty() {
            prop_assert!(bytes.as_ptr().addr().is_multiple_of(layout.align()), "the address for {layout:?}");
        }
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(self.seed, i));
        self.blocks.push(HeldBlock { block, range, layout, seed: self.seed });
        Ok(())
    }

    fn free(&mut self, pick: usize) -> Result<(), TestCaseError> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let HeldBlock { mut block, range, layout, seed } = self.blocks.swap_remove(pick % self.blocks.len());
        let bytes = self.allocator.bytes(&mut block);
        let damaged = bytes.iter().enumerate().position(|(i, byte)| *byte != pattern(seed, i));
        prop_assert_eq!(damaged, None, "the first wrong byte of {:?} at {:?}", layout, range);
        self.allocator.free(block);
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.allocator.check(), Ok(()));
        let (holes, capacity) = (self.allocator.holes(), self.allocator.capacity());
        prop_assert!(holes.largest <= holes.total && (holes.count == 0) == (holes.total == 0), "{holes:?}");
        if capacity > 0 {
            let used_bytes: usize = self.blocks.iter().map(|held| held.range.len()).sum();
            prop_assert!(used_bytes + holes.total <= capacity, "{used_bytes} and {holes:?} of {capacity}");
        }
        let work = self.allocator.work();
        prop_assert_eq!(work.allocs - work.frees, self.blocks.len() as u64);
        prop_assert!(work.longest <= Some(work.steps));
        Ok(())
    }
}

/// Runs random operations on allocators that `new_allocator` creates; `PROPTEST_CASES` sets the number of cases.
fn check_random_operations<A: Allocator>(new_allocator: impl Fn() -> A) {
    check_random_operations_at_intervals(1, new_allocator);
}

/// Runs random operations as `check_random_operations` does, but checks the properties only every `interval` steps.
fn check_random_operations_at_intervals<A: Allocator>(interval: usize, new_allocator: impl Fn() -> A) {
    let run = |steps: Vec<Step>| {
        let mut shadow = Shadow { allocator: new_allocator(), blocks: vec![], seed: 0 };
        let initial_holes = shadow.allocator.holes();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc { size, align } => {
                    // Sizes and alignments are small, so each layout is valid.
                    let layout = Layout::from_size_align(size, align)
                        .map_err(|e| TestCaseError::fail(e.to_string()))?;
                    shadow.alloc(layout)?;
                }
                Step::Free { pick } => shadow.free(pick)?,
            }
            if i.is_multiple_of(interval) {
                shadow.check_invariants()?;
            }
        }
        shadow.check_invariants()?;
        while !shadow.blocks.is_empty() {
            shadow.free(usize::MAX)?;
        }
        shadow.allocator.trim();
        shadow.check_invariants()?;
        if A::REUSE == ReuseCondition::Never {
            prop_assert!(shadow.allocator.holes().total <= initial_holes.total);
        } else {
            prop_assert_eq!(
                shadow.allocator.holes(),
                initial_holes,
                "all free memory must be one block again"
            );
        }
        Ok(())
    };
    // Failing cases are not kept in files, because the test prints their seeds.
    let config = Config { failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&steps(), run) {
        panic!("{}: {failure}", A::NAME);
    }
}

/// Runs the same random operations on two allocators, which must put each block at the same offset.
fn agree<A: Allocator, B: Allocator>(new_allocator: impl Fn() -> (A, B)) {
    let run = |steps: Vec<Step>| {
        let (mut a, mut b) = new_allocator();
        let mut held = vec![];
        for step in steps {
            match step {
                Step::Alloc { size, align } => {
                    let layout = Layout::from_size_align(size, align)
                        .map_err(|error| TestCaseError::fail(error.to_string()))?;
                    let (left, right) = (a.alloc(layout), b.alloc(layout));
                    let range = left.as_ref().map(|block| a.range(block));
                    prop_assert_eq!(range, right.as_ref().map(|block| b.range(block)), "for {:?}", layout);
                    held.extend(left.zip(right));
                }
                Step::Free { pick } if !held.is_empty() => {
                    let (left, right) = held.swap_remove(pick % held.len());
                    a.free(left);
                    b.free(right);
                }
                Step::Free { .. } => {}
            }
        }
        Ok(())
    };
    let config = Config { failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&steps(), run) {
        panic!("{} and {}: {failure}", A::NAME, B::NAME);
    }
}

#[test]
fn tlsf_bitmaps_do_not_change_block_offsets() {
    let new_allocator = |search| super::Tlsf::new(BYTES, 4, search).unwrap();
    agree(|| (new_allocator(super::tlsf::Search::Bitmaps), new_allocator(super::tlsf::Search::Scan)));
}

#[test]
fn stack_places_blocks_like_a_linear_allocator() {
    // Without frees, the heads of the two allocators are always at the same offset.
    let layouts = [(3, 1), (10, 8), (100, 64), (0, 1), (1, 4096)];
    let (mut stack, mut linear) = (super::Stack::new(BYTES).unwrap(), arena());
    for (size, align) in layouts {
        let layout = Layout::from_size_align(size, align).unwrap();
        let (left, right) = (stack.alloc(layout).unwrap(), linear.alloc(layout).unwrap());
        assert_eq!(stack.range(&left), linear.range(&right));
    }
    assert_eq!(stack.used(), linear.used());
}

#[test]
fn each_lab_allocator_can_move_to_another_thread() {
    fn send<T: Send>() {}
    send::<super::Linear>();
    send::<super::Stack>();
    send::<super::Heap>();
    send::<super::Tlsf>();
    send::<super::Buddy>();
    send::<super::Pool>();
    send::<super::Segregated>();
}

/// A memory size at which some requests are served and others are refused.
const BYTES: usize = 64 << 10;

fn arena() -> super::Linear {
    super::Linear::fixed(BYTES).unwrap()
}
fn slot() -> Layout {
    Layout::from_size_align(512, 64).unwrap()
}

macro_rules! allocators {
    ($($name:ident: $new_allocator:expr;)*) => {$(
        #[test]
        fn $name() {
            check_random_operations(|| $new_allocator.unwrap());
        }
    )*};
}

allocators! {
    linear: super::Linear::fixed(BYTES);
    linear_in_a_chain: super::Linear::growing(4096, BYTES);
    first_fit_by_address: super::Heap::new(BYTES, super::heap::Fit::First, super::heap::Order::Address);
    first_fit_lifo: super::Heap::new(BYTES, super::heap::Fit::First, super::heap::Order::Lifo);
    best_fit_by_address: super::Heap::new(BYTES, super::heap::Fit::Best, super::heap::Order::Address);
    best_fit_lifo: super::Heap::new(BYTES, super::heap::Fit::Best, super::heap::Order::Lifo);
    next_fit_by_address: super::Heap::new(BYTES, super::heap::Fit::Next, super::heap::Order::Address);
    next_fit_lifo: super::Heap::new(BYTES, super::heap::Fit::Next, super::heap::Order::Lifo);
    worst_fit_by_address: super::Heap::new(BYTES, super::heap::Fit::Worst, super::heap::Order::Address);
    tlsf_of_4_steps: super::Tlsf::new(BYTES, 2, super::tlsf::Search::Bitmaps);
    tlsf_of_8_steps: super::Tlsf::new(BYTES, 3, super::tlsf::Search::Bitmaps);
    tlsf_of_16_steps: super::Tlsf::new(BYTES, 4, super::tlsf::Search::Bitmaps);
    tlsf_of_32_steps: super::Tlsf::new(BYTES, 5, super::tlsf::Search::Bitmaps);
    tlsf_without_bitmaps: super::Tlsf::new(BYTES, 4, super::tlsf::Search::Scan);
    stack: super::Stack::new(BYTES);
    pool_that_never_reuses: super::NeverReusingPool::new(arena(), slot());
    pool_that_scans: super::ScanningPool::new(arena(), slot());
    pool: super::Pool::new(arena(), slot());
    pool_with_its_list_outside: super::ExternalListPool::new(arena(), slot());
    segregated_pools: super::Segregated::new(BYTES);
    buddy: super::Buddy::new(BYTES);
    buddy_of_no_power_of_two: super::Buddy::new(BYTES - 4096 - 16);
}

#[test]
fn system_allocator_keeps_the_allocator_properties() {
    check_random_operations(super::System::default);
}

/// The number of steps is small, because each check of a subsystem walks over a hundred caches with all their slabs.
const SLAB_STEPS: usize = 12;

#[test]
fn slab_malloc_keeps_the_allocator_properties() {
    let shipping = super::Shipping::new(BYTES * 64).unwrap();
    check_random_operations_at_intervals(SLAB_STEPS, || shipping.malloc());
}

#[test]
fn slab_cache_keeps_the_allocator_properties() {
    let shipping = super::Shipping::new(BYTES * 64).unwrap();
    let cache = shipping.make_cache(slot()).unwrap();
    check_random_operations_at_intervals(SLAB_STEPS, || shipping.cache(&cache));
}

//! Drives an allocator through a workload, and records the outcome.
//!
//! The driver fills every block with a pattern that depends on the block's number. When the driver frees or resizes a
//! block, it checks the pattern to find overwritten bytes. The driver counts refused requests, and operations on blocks
//! whose allocation was refused.

use super::allocator::{Allocator, Holes, Work};
use crate::workload::Op;
use core::alloc::Layout;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Options for driving a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of operations between two samples of the free memory; with 0, the only sample is taken at the end.
    /// Taking a sample requires an inspection of all memory.
    pub sample_every: u64,
    /// `true` to fill blocks with patterns and check them; `false` to leave the bytes of blocks untouched.
    pub verify: bool,
    /// `true` to free all blocks and release cached memory before the last sample.
    pub free_all: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { sample_every: 0, verify: true, free_all: false }
    }
}

/// The outcome of a run of an allocator through a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The allocator's name.
    pub allocator: String,
    /// The number of operations that the driver ran.
    pub operations: u64,
    /// The number of allocations that the driver requested.
    pub allocs: u64,
    /// The number of frees that the driver requested.
    pub frees: u64,
    /// The number of resizes that the driver requested.
    pub resizes: u64,
    /// The number of allocations and resizes for which no free memory was large enough. A refused resize leaves the
    /// block's size unchanged.
    pub refused: u64,
    /// The number of refused requests that were no larger than the total free memory.
    pub refused_for_pieces: u64,
    /// The number of operations on blocks whose allocation was refused.
    pub missed: u64,
    /// The peak of the requested bytes in live blocks.
    pub peak_asked: u64,
    /// The peak of the bytes that live blocks occupied.
    pub peak_taken: u64,
    /// The bytes of metadata outside the managed memory at the end of the run.
    pub beside: u64,
    /// The allocator's own counts. A resize counts as one allocation, one copy and one free.
    pub work: Work,
    /// Samples of the memory, taken at regular intervals and at the end.
    pub samples: Vec<Sample>,
    /// The first errors about overwritten bytes; at most ten are kept.
    pub violations: Vec<String>,
}

/// The state of the memory after a number of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The number of operations run so far.
    pub operations: u64,
    /// The number of live blocks.
    pub blocks: u64,
    /// The requested bytes of live blocks.
    pub asked: u64,
    /// The bytes that live blocks occupy.
    pub taken: u64,
    /// The allocator's steps so far.
    pub steps: u64,
    /// The free memory.
    pub holes: Holes,
}

/// The largest number of errors about overwritten bytes that are kept.
const MAX_OVERWRITE_ERRORS: usize = 10;

struct HeldBlock<B> {
    block: B,
    layout: Layout,
    taken: u64,
}

struct AllocatorDriver<'a, A: Allocator> {
    allocator: &'a mut A,
    blocks: FxHashMap<u64, HeldBlock<A::Block>>,
    options: Options,
    asked: u64,
    taken: u64,
    /// The number of free bytes; `None` if a block was allocated or freed since it was last computed.
    free: Option<usize>,
    outcome: Outcome,
}

/// Returns the byte at index `i` of the pattern for block `id`.
fn pattern(id: u64, i: usize) -> u8 {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (i as u8).wrapping_mul(31) ^ (i >> 8) as u8
}

impl<A: Allocator> AllocatorDriver<'_, A> {
    fn alloc(&mut self, id: u64, layout: Layout) -> Option<HeldBlock<A::Block>> {
        let Some(mut block) = self.allocator.alloc(layout) else {
            self.outcome.refused += 1;
            // Counting the free bytes takes a walk over all memory. The driver therefore counts free bytes only after a
            // refusal, and only once for consecutive refusals.
            let free = *self.free.get_or_insert_with(|| self.allocator.holes().total);
            self.outcome.refused_for_pieces += u64::from(free >= layout.size());
            return None;
        };
        self.free = None;
        let taken = self.allocator.range(&block).len() as u64;
        if self.options.verify {
            let bytes = self.allocator.bytes(&mut block);
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(id, i));
        }
        Some(HeldBlock { block, layout, taken })
    }

    fn insert_block(&mut self, id: u64, block: HeldBlock<A::Block>) {
        self.asked += block.layout.size() as u64;
        self.taken += block.taken;
        self.outcome.peak_asked = self.outcome.peak_asked.max(self.asked);
        self.outcome.peak_taken = self.outcome.peak_taken.max(self.taken);
        self.blocks.insert(id, block);
    }

    fn remove_block(&mut self, id: u64) -> Option<HeldBlock<A::Block>> {
        let mut held = self.blocks.remove(&id)?;
        self.asked -= held.layout.size() as u64;
        self.taken -= held.taken;
        if self.options.verify {
            let bytes = self.allocator.bytes(&mut held.block);
            let damaged = bytes.iter().enumerate().position(|(i, byte)| *byte != pattern(id, i));
            if let Some(i) = damaged.filter(|_| self.outcome.violations.len() < MAX_OVERWRITE_ERRORS) {
                let (operation, size) = (self.outcome.operations, held.layout.size());
                self.outcome.violations.push(format!(
                    "operation {operation}: byte {i} of the {size} of block {id} was overwritten"
                ));
            }
        }
        Some(held)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { id, layout } => {
                self.outcome.allocs += 1;
                if let Some(held) = self.alloc(id, layout) {
                    self.insert_block(id, held);
                }
            }
            Op::Free { id } => {
                self.outcome.frees += 1;
                match self.remove_block(id) {
                    Some(held) => {
                        self.free = None;
                        self.allocator.free(held.block);
                    }
                    None => self.outcome.missed += 1,
                }
            }
            Op::Resize { id, layout } => {
                self.outcome.resizes += 1;
                let Some(old_block) = self.remove_block(id) else {
                    self.outcome.missed += 1;
                    return;
                };
                // The bytes that the block keeps already have the pattern.
                match self.alloc(id, layout) {
                    Some(new) => {
                        self.allocator.free(old_block.block);
                        self.insert_block(id, new);
                    }
                    None => self.insert_block(id, old_block),
                }
            }
        }
    }

    fn sample(&mut self) {
        self.outcome.samples.push(Sample {
            operations: self.outcome.operations,
            blocks: self.blocks.len() as u64,
            asked: self.asked,
            taken: self.taken,
            steps: self.allocator.work().steps,
            holes: self.allocator.holes(),
        });
    }

    fn free_all(&mut self) {
        let mut ids: Vec<_> = self.blocks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(held) = self.remove_block(id) {
                self.allocator.free(held.block);
            }
        }
        self.allocator.trim();
    }
}

/// Runs the operations `ops` on `allocator`. Frees the remaining blocks after the last sample, unless
/// [`free_all`](Options::free_all) is set, which frees them before it.
///
/// ```
/// use uslab_lab::allocators::drive::{Options, drive};
/// use uslab_lab::allocators::Tlsf;
/// use uslab_lab::allocators::tlsf::Search;
/// use uslab_lab::workload::Workload;
///
/// let mut tlsf = Tlsf::new(1 << 20, 4, Search::Bitmaps)?;
/// let outcome = drive(&mut tlsf, Workload::default().ops()?, &Options::default())?;
/// assert_eq!((outcome.operations, outcome.refused, outcome.violations.len()), (10_000, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the first error that `ops` reports. After an error, all live blocks are freed nevertheless.
pub fn drive<A: Allocator, E>(
    allocator: &mut A,
    ops: impl IntoIterator<Item = Result<Op, E>>,
    options: &Options,
) -> Result<Outcome, E> {
    let outcome = Outcome { allocator: A::NAME.to_owned(), ..Outcome::default() };
    let mut driver = AllocatorDriver {
        allocator,
        blocks: FxHashMap::default(),
        options: *options,
        asked: 0,
        taken: 0,
        free: None,
        outcome,
    };
    let mut first_error = None;
    for op in ops {
        match op {
            Ok(op) => driver.apply(op),
            Err(error) => {
                first_error = Some(error);
                break;
            }
        }
        driver.outcome.operations += 1;
        if options.sample_every > 0 && driver.outcome.operations.is_multiple_of(options.sample_every) {
            driver.sample();
        }
    }
    if options.free_all {
        driver.free_all();
    }
    // The last operation may already have been sampled in the loop.
    let is_sampled =
        driver.outcome.samples.last().is_some_and(|last| last.operations == driver.outcome.operations);
    if options.free_all || !is_sampled {
        driver.sample();
    }
    driver.outcome.work = driver.allocator.work();
    driver.outcome.beside = driver.allocator.metadata_bytes() as u64;
    driver.free_all();
    match first_error {
        Some(error) => Err(error),
        None => Ok(driver.outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap::{Fit, Order};
    use super::super::{Buddy, Heap, Pool, Segregated, Shipping, System, Tlsf, linear::Linear, tlsf::Search};
    use super::*;
    use crate::workload::{OpsError, Workload, WorkloadOps};
    use std::convert::Infallible;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }
    fn all(ops: &[Op]) -> impl Iterator<Item = Result<Op, Infallible>> {
        ops.iter().copied().map(Ok)
    }

    #[test]
    fn each_allocator_serves_a_workload_without_overwrites() {
        let workload = Workload { operations: 3000, ..Workload::default() };
        let options = Options { sample_every: 500, free_all: true, ..Options::default() };
        fn run<A: Allocator>(allocator: &mut A, workload: &Workload, options: &Options) -> Outcome {
            let before = allocator.holes();
            let outcome = drive(allocator, workload.ops().unwrap(), options).unwrap();
            assert_eq!(outcome.violations, [""; 0], "{}", outcome.allocator);
            assert_eq!((outcome.operations, outcome.samples.len()), (3000, 7));
            assert_eq!(outcome.samples[6].holes, before, "{}", outcome.allocator);
            assert!(outcome.peak_taken >= outcome.peak_asked);
            outcome
        }
        let shipping = Shipping::new(8 << 20).unwrap();
        let slot = layout(1024).align_to(16).unwrap();
        let outcomes = [
            run(&mut Heap::new(1 << 20, Fit::First, Order::Address).unwrap(), &workload, &options),
            run(&mut Tlsf::new(1 << 20, 4, Search::Bitmaps).unwrap(), &workload, &options),
            run(&mut Buddy::new(1 << 20).unwrap(), &workload, &options),
            run(&mut Pool::new(Linear::fixed(1 << 20).unwrap(), slot).unwrap(), &workload, &options),
            run(&mut Segregated::new(1 << 20).unwrap(), &workload, &options),
            run(&mut shipping.malloc(), &workload, &options),
            run(&mut System::default(), &workload, &options),
        ];
        assert!(outcomes.iter().all(|outcome| outcome.refused == 0));
        assert!(outcomes.iter().all(|outcome| outcome.peak_asked == outcomes[0].peak_asked));
        let repeated = run(&mut shipping.malloc(), &workload, &options);
        // Step counts are not compared, because the caches count steps from their creation, over both runs.
        let holes =
            |outcome: &Outcome| outcome.samples.iter().map(|s| (s.taken, s.holes)).collect::<Vec<_>>();
        assert_eq!(holes(&repeated), holes(&outcomes[5]), "equal operations must leave equal holes");
        assert_eq!(
            drive(&mut Tlsf::new(1 << 20, 4, Search::Bitmaps).unwrap(), workload.ops().unwrap(), &options)
                .unwrap(),
            outcomes[1]
        );
    }

    #[test]
    fn refusals_and_skipped_operations_are_counted() {
        let mut heap = Heap::new(16 + 64, Fit::First, Order::Address).unwrap();
        let alloc = |id, size| Op::Alloc { id, layout: layout(size) };
        let ops = [
            alloc(0, 8),
            alloc(1, 8),
            alloc(2, 8),
            alloc(3, 8),
            // The memory is full.
            alloc(4, 8),
            Op::Free { id: 0 },
            Op::Free { id: 2 },
            // The memory has two free pieces of 8 bytes.
            alloc(5, 16),
            Op::Free { id: 5 },
            Op::Resize { id: 1, layout: layout(40) },
            Op::Resize { id: 4, layout: layout(8) },
        ];
        let outcome = drive(&mut heap, all(&ops), &Options::default()).unwrap();
        assert_eq!((outcome.refused, outcome.refused_for_pieces, outcome.missed), (3, 1, 2));
        assert_eq!((outcome.peak_asked, outcome.samples[0].blocks), (32, 2));
        assert_eq!(heap.holes().count, 1, "all blocks must be freed");
    }

    #[test]
    fn resize_keeps_the_bytes_that_fit() {
        let mut tlsf = Tlsf::new(4096, 4, Search::Bitmaps).unwrap();
        let ops = [
            Op::Alloc { id: 0, layout: layout(100) },
            Op::Resize { id: 0, layout: layout(1000) },
            Op::Resize { id: 0, layout: layout(10) },
        ];
        let outcome = drive(&mut tlsf, all(&ops), &Options::default()).unwrap();
        assert_eq!((outcome.resizes, outcome.peak_asked, outcome.samples[0].asked), (2, 1000, 10));
        assert_eq!((outcome.work.allocs, outcome.work.frees), (3, 2));
    }

    /// A broken allocator that returns the same slot for every request.
    struct BrokenAllocator(Vec<u8>);

    impl Allocator for BrokenAllocator {
        type Block = usize;
        const NAME: &'static str = "broken";
        fn alloc(&mut self, layout: Layout) -> Option<usize> {
            Some(layout.size())
        }
        fn free(&mut self, _block: usize) {}
        fn range(&self, block: &usize) -> core::ops::Range<usize> {
            0..*block
        }
        fn bytes<'b>(&'b mut self, block: &'b mut usize) -> &'b mut [u8] {
            &mut self.0[..*block]
        }
        fn capacity(&self) -> usize {
            self.0.len()
        }
        fn holes(&self) -> Holes {
            Holes::default()
        }
        fn work(&self) -> Work {
            Work::default()
        }
    }

    #[test]
    fn allocator_that_hands_out_memory_twice_is_detected() {
        let ops = [
            Op::Alloc { id: 0, layout: layout(8) },
            Op::Alloc { id: 1, layout: layout(8) },
            Op::Free { id: 0 },
            Op::Free { id: 1 },
        ];
        let outcome = drive(&mut BrokenAllocator(vec![0; 8]), all(&ops), &Options::default()).unwrap();
        assert_eq!(outcome.violations, ["operation 2: byte 0 of the 8 of block 0 was overwritten"]);
    }

    #[test]
    fn kernel_trace_drives_a_lab_allocator() {
        let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/files-6.1.trace.zst");
        let ops = WorkloadOps::open(trace.as_ref()).unwrap().take(100_000);
        let mut tlsf = Tlsf::new(64 << 20, 5, Search::Bitmaps).unwrap();
        let outcome = drive(&mut tlsf, ops, &Options::default()).unwrap();
        assert_eq!((outcome.operations, outcome.refused, outcome.missed), (100_000, 0, 0));
        assert!(outcome.violations.is_empty() && outcome.work.longest <= Some(3));
        assert_eq!(tlsf.holes().count, 1);
    }

    #[test]
    fn workload_error_frees_all_blocks() {
        let mut buddy = Buddy::new(1024).unwrap();
        let line = || OpsError::Late { path: "x".into(), line: 1, kind: "operations", declared: 1 };
        let ops = [Ok(Op::Alloc { id: 0, layout: layout(8) }), Err(line())];
        let error = drive(&mut buddy, ops, &Options::default()).unwrap_err();
        assert_eq!(error.to_string(), line().to_string());
        assert_eq!(buddy.holes().largest, 1024);
    }
}

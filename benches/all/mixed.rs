//! Cost of an allocation and free at the malloc level, with 10,000 live blocks of 8 to 1024 bytes, replaced
//! at random.

use rand::RngExt;
use std::ptr::NonNull;
use std::time::Duration;
use uslab_benches::mallocs::{self, Malloc, MallocWork};
use uslab_benches::{Bench, Column, clock, work};

/// Distribution of the requested sizes.
#[derive(Clone, Copy)]
enum Sizes {
    /// All sizes are equally likely.
    Uniform,
    /// The logarithm of the size is uniformly distributed, so small sizes are more frequent, as in most programs.
    LogUniform,
}

#[derive(Clone)]
struct MixedWorkload {
    sizes: Box<[u32]>,
    live: usize,
    budget: Duration,
}

impl MixedWorkload {
    /// Draws all sizes in advance, so that the timed loop computes no logarithm. The number of sizes is a power of two.
    fn new(bench: &Bench, sizes: Sizes) -> Self {
        let mut rng = work::random();
        let size = |_| match sizes {
            Sizes::Uniform => rng.random_range(8..=1024),
            Sizes::LogUniform => rng.random_range(3.0_f64..=10.0).exp2() as u32,
        };
        Self { sizes: (0..1 << 16).map(size).collect(), live: bench.scale(10_000), budget: bench.budget() }
    }
}

impl MallocWork for MixedWorkload {
    fn run<M: Malloc>(&self, malloc: &M) -> Vec<f64> {
        let (mut next_place, mut stamps) = (0, 0_u64);
        let mut alloc = || {
            let size = self.sizes[next_place & (self.sizes.len() - 1)] as usize;
            next_place += 1;
            let memory = malloc.alloc(size);
            stamps += 1;
            // SAFETY: the memory was just allocated, with at least 8 bytes.
            unsafe { memory.cast::<u64>().write_unaligned(stamps) };
            (uslab_benches::subject::opaque_pointer(memory), size as u32)
        };
        let free = |(memory, size): (NonNull<u8>, u32)| {
            // SAFETY: the memory came from `alloc`, and is freed once.
            unsafe { malloc.free(memory, size as usize) };
        };
        let mut live: Vec<_> = (0..self.live).map(|_| alloc()).collect();
        // Each live block at the end must still hold its own stamp. SAFETY: `alloc` stamped the block, which is not
        // freed yet.
        let mut stamps_seen: Vec<u64> =
            live.iter().map(|(memory, _)| unsafe { memory.cast::<u64>().read_unaligned() }).collect();
        stamps_seen.sort_unstable();
        assert!(
            stamps_seen.windows(2).all(|w| w[0] < w[1]),
            "{}: the objects must keep their stamps",
            M::NAME
        );
        let mut rng = work::random();
        let mut replace = |count: u64| {
            for _ in 0..count {
                let victim = work::below(&mut rng, live.len());
                free(std::mem::replace(&mut live[victim], (NonNull::dangling(), 0)));
                live[victim] = alloc();
            }
            count
        };
        replace(4 * self.live as u64);
        let ns = clock::measure_per_operation(self.budget, || false, || replace(10_000));
        live.into_iter().for_each(free);
        vec![ns]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row("mixed", "CPU ns to free a block of 8 to 1024 B and allocate another, among 10,000 live blocks that are replaced at random");
    for (case, sizes) in [("uniform", Sizes::Uniform), ("log-uniform", Sizes::LogUniform)] {
        let contenders = mallocs::contenders(&MixedWorkload::new(bench, sizes));
        bench.group(case, [Column::lower("", "ns")], contenders);
    }
}

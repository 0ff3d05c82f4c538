//! The two loops that the GNU C library uses to benchmark malloc.
//!
//! Source: the description of `malloc-simple` and `malloc-thread` in glibc's `benchtests`. `malloc-simple` allocates
//! blocks of one size on one thread, and frees them in the order of allocation. `malloc-thread` uses several threads
//! and replaces random blocks of random sizes; smaller sizes are more likely.

use crate::common::{Block, Parameter, Program, Random, THREADS};

pub(crate) const GLIBC_SIMPLE: Program = Program {
    name: "glibc-simple",
    about: "25 to 1,600 blocks of one size of 16 to 4,096 bytes, freed in order; an operation is a block",
    parameters: &[Parameter::new("operations", 300_000, 3_200, "blocks of each size and number")],
    run: |parameters| {
        let (mut random, mut operations) = (Random::new(0), 0);
        let mut blocks: Vec<Block> = Vec::with_capacity(1600);
        for size in (4..=12).map(|power| 1 << power) {
            for number in [25, 100, 400, 1600] {
                for _ in 0..parameters.get("operations").div_ceil(number) {
                    blocks.extend((0..number).map(|_| Block::new(size, random.stamp())));
                    // Frees the blocks from the first to the last.
                    blocks.clear();
                    operations += number;
                }
            }
        }
        operations
    },
};

pub(crate) const THREAD: Program = Program {
    name: "glibc-thread",
    about: "replaces random blocks of 16 bytes to 32 KiB, small ones more likely; an operation is a replacement",
    parameters: &[
        THREADS,
        Parameter::new("blocks", 1_024, 1_024, "blocks of a thread"),
        Parameter::new("operations", 15_000_000, 200_000, "operations of each thread"),
    ],
    run: |parameters| {
        let (threads, operations) = (parameters.get("threads"), parameters.get("operations"));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut blocks: Vec<Option<Block>> =
                        (0..parameters.get("blocks")).map(|_| None).collect();
                    for _ in 0..operations {
                        let place = random.below(blocks.len());
                        // Each doubled size is half as likely as the size before.
                        let doubling = random.next().trailing_ones().min(10);
                        let size = random.log_uniform(4 + doubling, 5 + doubling);
                        // The old block is freed first, as in glibc's benchmark.
                        blocks[place] = None;
                        blocks[place] = Some(Block::new(size, random.stamp()));
                    }
                });
            }
        });
        threads * operations
    },
};

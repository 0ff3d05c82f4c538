//! Replaces random blocks, some of them much more often than others, and writes and reads every byte of each block.
//!
//! Source: Ignatchenko, Ligoum and Iwatani, "Testing memory allocators: ptmalloc2 vs tcmalloc vs hoard vs jemalloc"
//! (ithare.com, 2018). Slots are chosen by a Pareto distribution; sizes are distributed over powers of two. If the
//! chosen slot is empty, the program allocates a block for it; otherwise it frees the slot's block.

use crate::common::{Block, Parameter, Program, Random, THREADS};

pub(crate) const PROGRAM: Program = Program {
    name: "alloc-test",
    about: "fills and empties random places, some more often; an operation is one of either",
    parameters: &[
        THREADS,
        Parameter::new("places", 1 << 15, 1 << 10, "maximum blocks per thread"),
        Parameter::new("operations", 5_000_000, 100_000, "operations of each thread"),
    ],
    run: |parameters| {
        let (threads, places) = (parameters.get("threads"), parameters.size("places"));
        let operations = parameters.get("operations");
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut blocks: Vec<Option<Block>> = (0..places).map(|_| None).collect();
                    for _ in 0..operations {
                        let place = &mut blocks[random_pareto_below(&mut random, places)];
                        match place.take() {
                            Some(block) => block.check_block_stamps(),
                            None => {
                                let mut block = Block::new(random.log_uniform(3, 10), random.stamp());
                                block.fill();
                                *place = Some(block);
                            }
                        }
                    }
                });
            }
        });
        threads * operations
    },
};

/// Returns a random number below `bound`; with a probability of four fifths, it is in the lowest fifth of the range.
/// Within the lowest fifth of the range, four fifths of the numbers are again in the lowest fifth, and so on, up to six
/// times.
fn random_pareto_below(random: &mut Random, mut bound: usize) -> usize {
    for _ in 0..6 {
        let first = bound.div_ceil(5);
        if first == bound || random.below(5) == 0 {
            break;
        }
        bound = first;
    }
    random.below(bound)
}

//! Replaces random blocks, some of them much more often than others, and writes and reads each block from end to end.
//!
//! Source: Ignatchenko, Ligoum and Iwatani, "Testing memory allocators: ptmalloc2 vs tcmalloc vs hoard vs
//! jemalloc" (ithare.com, 2018). Places are chosen by a Pareto distribution, and sizes by powers of two. A
//! chosen place is filled if it is empty, and emptied otherwise.

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
                        let place = &mut blocks[pareto(&mut random, places)];
                        match place.take() {
                            Some(block) => block.check_filled(),
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

/// Returns a random number below `bound`, which is in the first fifth with a probability of four fifths. The
/// rule applies again within the first fifth, up to six times.
fn pareto(random: &mut Random, mut bound: usize) -> usize {
    for _ in 0..6 {
        let first = bound.div_ceil(5);
        if first == bound || random.below(5) == 0 {
            break;
        }
        bound = first;
    }
    random.below(bound)
}

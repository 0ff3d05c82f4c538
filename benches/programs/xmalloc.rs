//! Runs producers and consumers: one thread allocates a block, and another thread frees it.
//!
//! Source: Lever and Boreham, "malloc() performance in a multithreaded Linux environment" (USENIX 2000), and the later
//! test `xmalloc-test`. Threads pass blocks in batches; the arrays that hold the batches are also allocated and freed.

use crate::common::{Block, Parameter, Parameters, Program, Random, THREADS};
use std::sync::mpsc::sync_channel;

pub(crate) const PROGRAM: Program = Program {
    name: "xmalloc",
    about: "producers allocate, consumers free; an operation is a block",
    parameters: &[
        Parameter { about: "number of producers and of consumers; the default is one per CPU", ..THREADS },
        Parameter::new("min", 8, 8, "bytes of the smallest block"),
        Parameter::new("max", 512, 512, "bytes of the largest block"),
        BLOCKS,
        BATCHES,
        MAX_WAITING_BATCHES,
    ],
    run: |parameters| run(parameters, parameters.size("min"), parameters.size("max")),
};

pub(crate) const XMALLOC_ONE_SIZE: Program = Program {
    name: "xmalloc-64",
    about: "the same with blocks of one size",
    parameters: &[
        Parameter { about: "number of producers and of consumers; the default is one per CPU", ..THREADS },
        Parameter::new("size", 64, 64, "bytes of a block"),
        BLOCKS,
        BATCHES,
        MAX_WAITING_BATCHES,
    ],
    run: |parameters| run(parameters, parameters.size("size"), parameters.size("size")),
};

const BLOCKS: Parameter = Parameter::new("blocks", 4_096, 1_024, "blocks in a batch");
const BATCHES: Parameter = Parameter::new("batches", 1_000, 40, "batches of a producer");
const MAX_WAITING_BATCHES: Parameter =
    Parameter::new("waiting", 8, 8, "batches that wait for a consumer at most");

fn run(parameters: &Parameters, min: usize, max: usize) -> u64 {
    let [threads, blocks, batches] = ["threads", "blocks", "batches"].map(|name| parameters.get(name));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (sender, receiver) = sync_channel::<Vec<Block>>(parameters.size("waiting"));
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..batches {
                    let batch = (0..blocks).map(|_| Block::new(random.in_range(min, max), random.stamp()));
                    if sender.send(batch.collect()).is_err() {
                        unreachable!("a consumer ends after its producer");
                    }
                }
            });
            // Frees each batch when it arrives.
            scope.spawn(move || receiver.into_iter().for_each(drop));
        }
    });
    threads * blocks * batches
}

//! Provokes false sharing: objects of different threads are on one cache line.
//!
//! Source: Berger and others, "Hoard: a scalable memory allocator for multithreaded applications" (ASPLOS 2000),
//! section 5.3. In cache-thrash, the allocator itself can cause active sharing, by serving several threads from one
//! cache line. In cache-scratch, one thread first allocates neighbouring objects and passes them to the other threads.
//! An allocator prolongs the sharing if it reuses an object that another thread freed.

use crate::common::{Block, Parameter, Parameters, Program, THREADS};
use std::sync::Barrier;

pub(crate) const SCRATCH: Program = Program {
    name: "cache-scratch",
    about: "threads free the given objects, then write to their own small objects; an operation is an object",
    parameters: PARAMETERS,
    run: |parameters| run(parameters, true),
};

pub(crate) const CACHE_THRASH: Program = Program {
    name: "cache-thrash",
    about: "threads write to their own small objects; an operation is an object",
    parameters: PARAMETERS,
    run: |parameters| run(parameters, false),
};

const PARAMETERS: &[Parameter] = &[
    THREADS,
    Parameter::new("size", 8, 8, "bytes of an object"),
    Parameter::new("objects", 1_000, 100, "objects of a thread, one after the other"),
    Parameter::new("writes", 4_000_000, 20_000, "writes to each object, divided by the number of threads"),
];

fn run(parameters: &Parameters, use_given_objects: bool) -> u64 {
    let (threads, objects) = (parameters.get("threads"), parameters.get("objects"));
    let (size, writes) = (parameters.size("size"), parameters.get("writes") / threads);
    let first: Vec<Option<Block>> =
        (0..threads).map(|thread| use_given_objects.then(|| Block::new(size, thread as u32))).collect();
    let start = Barrier::new(first.len());
    std::thread::scope(|scope| {
        for (thread, mut first) in (0..).zip(first) {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                if let Some(block) = &mut first {
                    block.count(writes);
                }
                drop(first);
                for object in 0..objects {
                    Block::<crate::common::Malloc>::new(size, thread << 16 ^ object as u32).count(writes);
                }
            });
        }
    });
    threads * objects
}

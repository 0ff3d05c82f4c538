//! Starts many threads that soon exit. Each thread keeps some of its blocks until it exits, and exchanges others
//! through shared slots.
//!
//! Source: Leijen's description of mimalloc's stress test. Most blocks are small, a few blocks are a hundred
//! times as large, and one block in eight is zeroed.

use crate::common::{Block, Parameter, Program, Random, THREADS};
use uslab_magazine::sync::Mutex;

pub(crate) const PROGRAM: Program = Program {
    name: "mstress",
    about: "threads start and end, keep and exchange blocks; an operation is an allocation, a free or an exchange",
    parameters: &[
        THREADS,
        Parameter::new("generations", 50, 4, "number of times that all threads start and end"),
        Parameter::new("operations", 100_000, 10_000, "operations of each thread"),
        Parameter::new("places", 1_000, 1_000, "shared places"),
    ],
    run: |parameters| {
        let (threads, operations) = (parameters.get("threads"), parameters.get("operations"));
        let generations = parameters.get("generations");
        let places: Vec<Mutex<Option<Block>>> =
            (0..parameters.get("places")).map(|_| Mutex::new(None)).collect();
        for generation in 0..generations {
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (places, random) = (&places, Random::new(generation * threads + thread));
                    scope.spawn(move || work(places, random, operations));
                }
            });
            // Half of the shared blocks are freed at the same time.
            places.iter().step_by(2).for_each(|place| drop(place.lock().take()));
        }
        threads * generations * operations
    },
};

fn work(places: &[Mutex<Option<Block>>], mut random: Random, operations: u64) {
    let (mut blocks, mut kept_blocks) = (Vec::new(), Vec::new());
    for _ in 0..operations {
        match random.below(100) {
            0..50 => {
                let block = block(&mut random);
                if random.below(4) == 0 { kept_blocks.push(block) } else { blocks.push(block) }
            }
            50..90 => {
                if !blocks.is_empty() {
                    drop(blocks.swap_remove(random.below(blocks.len())));
                }
            }
            _ => {
                let own_blocks = if blocks.is_empty() {
                    None
                } else {
                    Some(blocks.swap_remove(random.below(blocks.len())))
                };
                let place = &places[random.below(places.len())];
                let other_blocks = std::mem::replace(&mut *place.lock(), own_blocks);
                blocks.extend(other_blocks);
            }
        }
    }
}

fn block(random: &mut Random) -> Block {
    let size = random.log_uniform(3, 9);
    let size = if random.below(1000) == 0 { size * 100 } else { size };
    match random.below(8) {
        0 => Block::zeroed(size, random.stamp()),
        _ => Block::new(size, random.stamp()),
    }
}

//! Runs several threads; in each loop, a thread replaces some of its blocks and passes others to the next thread to
//! free.
//!
//! Source: Jansson's description of rpmalloc's benchmark. Sizes are at most 16,000 bytes; the probability of
//! a size decreases linearly. In every second loop, blocks are freed on other threads.

use crate::common::{Block, Parameter, Program, Random, THREADS};
use std::sync::mpsc::sync_channel;

pub(crate) const PROGRAM: Program = Program {
    name: "rptest",
    about: "replaces blocks of up to 16 kB, some of which another thread frees; an operation is a replacement",
    parameters: &[
        THREADS,
        Parameter::new("blocks", 1_000, 200, "blocks of a thread"),
        Parameter::new("min", 16, 16, "bytes of the smallest block"),
        Parameter::new("max", 16_000, 16_000, "bytes of the largest block"),
        Parameter::new("loops", 15_000, 1_000, "loops of each thread"),
        Parameter::new("replacements", 100, 20, "blocks that are replaced in a loop"),
    ],
    run: |parameters| {
        let (threads, loops) = (parameters.size("threads"), parameters.get("loops"));
        let (blocks, replacements) = (parameters.size("blocks"), parameters.get("replacements"));
        let (min, max) = (parameters.size("min"), parameters.size("max"));
        let (mut senders, receivers): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| sync_channel::<Vec<Block>>(MAX_WAITING_BATCHES)).unzip();
        // Each thread sends to the next thread.
        senders.rotate_left(1);
        std::thread::scope(|scope| {
            for (thread, (to_next, receiver)) in (0..).zip(senders.into_iter().zip(receivers)) {
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let block = |random: &mut Random| -> Block {
                        let size = random.in_range(min, max).min(random.in_range(min, max));
                        Block::new(size, random.stamp())
                    };
                    let mut own_blocks: Vec<_> = (0..blocks).map(|_| block(&mut random)).collect();
                    for turn in 0..loops {
                        let mut replaced = Vec::new();
                        for _ in 0..replacements {
                            let place = random.below(own_blocks.len());
                            let new = block(&mut random);
                            let old_block = std::mem::replace(&mut own_blocks[place], new);
                            if turn % 2 == 0 { drop(old_block) } else { replaced.push(old_block) }
                        }
                        // If the next thread is behind or has exited, this thread frees the blocks.
                        let _ = to_next.try_send(replaced);
                        receiver.try_iter().for_each(drop);
                    }
                });
            }
        });
        threads as u64 * loops * replacements
    },
};

/// Maximum number of batches that may wait for one thread. Without this limit, the peak memory would depend on thread
/// scheduling.
const MAX_WAITING_BATCHES: usize = 8;

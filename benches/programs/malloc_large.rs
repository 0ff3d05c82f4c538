//! Allocates and frees blocks of 5 to 25 MiB, and writes to every page of each block.
//!
//! Source: the published description of mimalloc-bench's test `malloc-large`. The program keeps a few dozen large
//! blocks live at the same time.

use crate::common::{Block, Parameter, Program, Random};

pub(crate) const PROGRAM: Program = Program {
    name: "malloc-large",
    about: "replaces random large blocks; an operation is a replacement",
    parameters: &[
        Parameter::new("blocks", 32, 4, "blocks that are live"),
        Parameter::new("min", 5, 5, "MiB of the smallest block"),
        Parameter::new("max", 25, 25, "MiB of the largest block"),
        Parameter::new("replacements", 200, 20, "blocks that are replaced"),
    ],
    run: |parameters| {
        let (min, max) = (parameters.size("min") << 20, parameters.size("max") << 20);
        let mut random = Random::new(0);
        let block = |random: &mut Random| {
            let mut block: Block = Block::new(random.in_range(min, max), random.stamp());
            block.touch();
            block
        };
        let mut blocks: Vec<_> = (0..parameters.get("blocks")).map(|_| block(&mut random)).collect();
        let replacements = parameters.get("replacements");
        for _ in 0..replacements {
            // The old block is freed first.
            let old_block = blocks.swap_remove(random.below(blocks.len()));
            old_block.check_page_stamps();
            drop(old_block);
            blocks.push(block(&mut random));
        }
        replacements
    },
};

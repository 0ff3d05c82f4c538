//! Kenwright's lazy pool, and the claims of its paper ("Fast Efficient Fixed-Size Memory Pool: No Loops and No
//! Overhead", 2012).

mod exact;
mod lazy;
mod speed;

use super::Context;
use crate::findings::Findings;
use anyhow::ensure;
use clap::Args;
use lazy::{LazyPool, lazy};

/// Is a pool without loops ten times as fast as malloc, and at which point does it do its work?
///
/// The paper's example first runs step by step. The output then shows when each block is first touched, under the
/// paper's rule and under a lazier rule. The output then repeats the paper's figure: a number of allocations of one
/// size, and then their frees, with the pool and with the system's malloc. Finally, the output shows the costs of
/// checks, creation and pages.
#[derive(Debug, Args)]
pub struct Kenwright {
    /// Sizes of blocks in bytes, separated by commas; together with the largest of --counts, at most a gibibyte.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "16,64,256,1024,4096",
          value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    sizes: Vec<u32>,
    /// Numbers of blocks that are allocated and then freed, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,1000,10000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    counts: Vec<u32>,
}

/// The largest total size of all blocks, in bytes. The limit exists because the experiment writes to each of malloc's
/// blocks.
const MAX_BYTES: u64 = 1 << 30;

impl Kenwright {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "is a pool without loops ten times as fast as malloc, and what is done when?";
        let mut findings = Findings::new("kenwright", question, context.seed);
        let largest = |list: &[u32]| u64::from(list.iter().copied().max().unwrap_or(0));
        let (size, count) = (largest(&self.sizes), largest(&self.counts));
        ensure!(
            size * count <= MAX_BYTES,
            "{count} blocks of {size} bytes: expected --sizes and --counts whose largest product is at most {MAX_BYTES} bytes"
        );
        exact::walk(&mut findings)?;
        exact::compare_touched_blocks(context, &mut findings)?;
        speed::creation(context, &mut findings)?;
        if !context.exact {
            self.figure(context, &mut findings)?;
            speed::checks(context, &mut findings)?;
            speed::pages(context, &mut findings)?;
            speed::instructions(context, &mut findings)?;
        }
        Ok(findings)
    }
}

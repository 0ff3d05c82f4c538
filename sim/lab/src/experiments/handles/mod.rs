//! The experiment on handles: what a handle does after its object is freed, how many uses a generation permits, and the
//! cost of a check.

mod listing;
mod tables;
mod times;

use super::Context;
use crate::findings::Findings;
use clap::Args;

/// Does a handle always detect that its object was freed, and what does the check cost?
///
/// Objects are created in a table and freed. A slot is reused until its generation wraps, in three tables: the
/// tutorial's listing, a table as the tutorial's text describes, and a table that retires slots. The output shows the
/// slot map's indirections, and the effect of saving handles. Lookups are then timed by handle, by index, by Box, by
/// Arc and by Weak.
#[derive(Debug, Args)]
pub struct Handles {
    /// Numbers of objects that are looked up, separated by commas: one table size each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000,100000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    objects: Vec<u32>,
}

impl Handles {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "does a handle always detect that its object was freed, and what does the check cost?";
        let mut findings = Findings::new("handles", question, context.seed);
        tables::walk(&mut findings)?;
        listing::reuse(&mut findings)?;
        listing::lives(&mut findings)?;
        tables::indirections(&mut findings)?;
        tables::find_wrong_particle(&mut findings)?;
        tables::reload(&mut findings)?;
        tables::sizes(&mut findings);
        if !context.exact {
            times::times(context, &self.objects, &mut findings)?;
        }
        Ok(findings)
    }
}

//! The experiment on handles: the effect of a free on handles, the number of uses that a generation permits, and the
//! cost of a check.

mod listing;
mod tables;
mod times;

use super::Context;
use crate::findings::Findings;
use clap::Args;

/// Does a handle always detect that its object was freed, and what does the check cost?
///
/// The experiment creates objects in a table and frees them. A slot is reused until its generation wraps, in three
/// tables: the tutorial's listing, a table that follows the tutorial's text, and a table that retires slots. The output
/// shows the indirections of a slot map, and what happens to handles that are saved and loaded. Lookups are then timed
/// for handles, indices, Box, Arc and Weak.
#[derive(Debug, Args)]
pub struct Handles {
    /// Numbers of objects, separated by commas; each is the size of a table in which objects are looked up.
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
        listing::report_slot_lifetimes(&mut findings)?;
        tables::indirections(&mut findings)?;
        tables::show_wrong_particle(&mut findings)?;
        tables::reload(&mut findings)?;
        tables::sizes(&mut findings);
        if !context.exact {
            times::times(context, &self.objects, &mut findings)?;
        }
        Ok(findings)
    }
}

//! The options of `uslab geometry`.

use crate::geometry;
use crate::output::command::Outcome;
use crate::output::{Place, tell};
use crate::slabs::{Machine, Snapshot};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use uslab::OrderRule;

/// Show how Linux's rule places objects in slabs: order, objects per slab, waste.
///
/// The rule depends on the number of CPUs: a machine with more CPUs uses larger slabs for the same object
/// size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uslab geometry 192 320 700
  uslab geometry --cpus 64
  uslab geometry --against live
  uslab geometry --against before.slabinfo --cpus 4
  uslab geometry --against sosreport-host/ --cpus 64 --max-order 1 --json")]
pub(super) struct Args {
    /// Object sizes in bytes. Default: kmalloc's 13 size classes.
    #[arg(value_name = "SIZE", conflicts_with = "against")]
    sizes: Vec<usize>,
    /// Alignment of the objects in bytes, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 8)]
    align: usize,
    /// Number of present CPUs. Default: the number of this machine's CPUs; with --against, the number in the
    /// kernel's tables, or else the largest number that explains the slab orders there.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// The kernel's option slab_max_order, from 0 to 10.
    #[arg(long, value_name = "ORDER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=10))]
    max_order: u8,
    /// The kernel's option slab_min_order, from 0 to 10.
    #[arg(long, value_name = "ORDER", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=10))]
    min_order: u8,
    /// The kernel's option slab_min_objects: the number of objects that a slab should have; 0 derives it from the
    /// number of CPUs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_objects: u32,
    /// Compare the rule with a kernel, one row for each cache. PLACE is a slabinfo file, a copy of
    /// /sys/kernel/slab, a tab-separated table of attributes (with columns slab_size, objs_per_slab and
    /// order), a folder with such files (a sosreport, a recording), or `live` for this machine. If some rows
    /// differ, the report names the kernel options that explain the differences.
    #[arg(long, value_name = "PLACE")]
    against: Option<PathBuf>,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    match args.cpus {
        Some(0) => bail!("--cpus 0: expected at least 1"),
        Some(n) if n > 8192 => bail!("--cpus {n}: expected at most 8192, the most that Linux supports"),
        _ => {}
    }
    if args.min_order > args.max_order {
        bail!("--min-order {}: expected at most --max-order {}", args.min_order, args.max_order);
    }
    let Args { max_order, min_order, min_objects, .. } = *args;
    let rule = |cpus: u32| OrderRule { max_order, min_order, min_objects, ..OrderRule::for_cpus(cpus) };
    let Some(place) = &args.against else {
        let cpus = args.cpus.unwrap_or_else(|| uslab_magazine::Cpus::os().count());
        let table = geometry::table(&args.sizes, args.align, &rule(cpus))?;
        tell(&table, &table.to_string(), json)?;
        return Ok(Outcome::Done);
    };
    let live = place == Path::new("live");
    let snapshot = if live { Snapshot::live().context("--against live")? } else { Snapshot::open(place)? };
    let machine = Machine::of(&snapshot, args.cpus);
    let comparison = geometry::compare(&snapshot, &rule(machine.cpus as u32), machine.cpus_guessed)?;
    tell(&comparison, &comparison.to_string(), json)?;
    Ok(if comparison.mismatches.is_empty() { Outcome::Done } else { Outcome::Violated })
}

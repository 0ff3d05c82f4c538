//! `uslab geometry`.

use crate::geometry;
use crate::output::command::Outcome;
use crate::output::{Place, tell};
use anyhow::bail;
use std::path::{Path, PathBuf};

/// Show how objects are laid out in slabs: order, objects per slab, waste, by Linux's own rule.
///
/// The CPU count is an input of the rule: on a machine with more CPUs the same size gets larger slabs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uslab geometry 192 320 700
  uslab geometry --cpus 64
  uslab geometry --against live
  uslab geometry --against before.slabinfo --cpus 4")]
pub(super) struct Args {
    /// Object sizes in bytes. Left out: kmalloc's 13 size classes.
    #[arg(value_name = "SIZE", conflicts_with = "against")]
    sizes: Vec<usize>,
    /// Alignment of the objects in bytes, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 8)]
    align: usize,
    /// Present CPUs. Default: this machine's.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Compare row by row with a kernel's: a /proc/slabinfo, a copy of /sys/kernel/slab, a table of its attributes
    /// (tab-separated, with columns slab_size, objs_per_slab and order), or `live` for this machine.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let cpus = match args.cpus {
        Some(0) => bail!("--cpus 0: expected at least 1"),
        Some(n) if n > 8192 => bail!("--cpus {n}: expected at most 8192, the most that Linux supports"),
        Some(n) => n,
        None => uslab_magazine::Cpus::os().count(),
    };
    match &args.against {
        None => {
            let table = geometry::table(&args.sizes, args.align, cpus)?;
            tell(&table, &table.to_string(), json)?;
            Ok(Outcome::Done)
        }
        Some(path) => {
            let live = path == Path::new("live");
            let comparison =
                if live { geometry::against_live(cpus)? } else { geometry::against(path, cpus)? };
            tell(&comparison, &comparison.to_string(), json)?;
            Ok(if comparison.mismatches.is_empty() { Outcome::Done } else { Outcome::Violated })
        }
    }
}

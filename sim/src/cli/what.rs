//! The options of `uslab what`.

use crate::output::command::Outcome;
use crate::output::{Place, tell};
use crate::what::FileDescription;
use std::path::PathBuf;

/// Name the format of a file, how such files are made, and the command that reads them.
///
/// The command `uslab what` knows every format that another command reads, compressed or not: traces of
/// kernels and programs, recordings, a kernel's tables, heap profiles, and results of commands. For other
/// known files (perf.data, trace.dat, bpftrace's output, kernel dumps, archives), the command says what to do
/// instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uslab what trace.txt.zst
  uslab what recording/
  uslab what sosreport-host/ --json
  xzcat unknown.xz | uslab what -")]
pub(super) struct Args {
    /// A file or a folder; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let what = FileDescription::of(&args.file)?;
    tell(&what, &what.to_string(), json)?;
    Ok(Outcome::Done)
}

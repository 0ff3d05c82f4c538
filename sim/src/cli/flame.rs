//! The options of `uslab flame`.

use crate::flame::Flame;
use crate::output::command::Outcome;
use crate::output::{Form, Place, json_text, say, write_all};
use std::io::Write;
use std::path::PathBuf;

/// Show which code holds how much memory: a heap profile as a flame graph.
///
/// A program under the preload library writes a heap profile on a signal; a program that links the library
/// can write a profile at any time. Function names are read from the executables and libraries that the
/// profile names, which must still be at the recorded paths. Without an option, the command prints the stacks
/// that hold the most memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  LD_PRELOAD=libuslab.so USLAB_OPTIONS=profile=512k,dump=/tmp/heap.pb.gz app &
  kill -USR2 $!
  uslab flame /tmp/heap.pb.gz
  uslab flame /tmp/heap.pb.gz --html heap.html")]
pub(super) struct Args {
    /// A heap profile in pprof's format (`.pb.gz`), or folded stacks with one line for each stack:
    /// `cache;outermost;...;innermost bytes`.
    #[arg(value_name = "FILE")]
    profile: PathBuf,
    /// Write a web page with the flame graph: FILE, or `-` for standard output. The page is one file for any browser
    /// and needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file is not a profile, or an output cannot be written.
pub(super) fn run(args: &Args, json: Option<Place>) -> anyhow::Result<Outcome> {
    let html = args.html.as_deref().map(|path| Place::open(Form::Html, path)).transpose()?;
    Place::check_distinct([&json, &html])?;
    let flame = Flame::read(&args.profile)?;
    for file in &flame.unused {
        let _ = writeln!(std::io::stderr(), "uslab: {file}");
    }
    let to_stdout = [&json, &html].into_iter().flatten().any(Place::is_stdout);
    let json = json.map(|place| json_text(&flame).map(|text| (place, text))).transpose()?;
    let html = html.map(|place| flame.page().map(|page| (place, page))).transpose()?;
    write_all(json.into_iter().chain(html))?;
    if !to_stdout {
        say(&flame.to_string())?;
    }
    Ok(Outcome::Done)
}

//! The command `uslab watch`: shows a replay on a terminal, with the same contents as a replay's web page.
//!
//! ```text
//! keys ──> app ──> what is wanted ──> session: an engine of the design ──> view ──> draw
//! ```
//!
//! An engine can only run forward. To show an earlier state, a new engine runs from the beginning, so only the stream
//! and the view stay in memory.

mod app;
mod draw;
pub(crate) mod keys;
mod machine;
mod session;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;

use crate::output::Progress;
use crate::output::command::Outcome;
use crate::replay;
use anyhow::{Context, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use uslab_engine::Policy;
use uslab_engine::designs::{Spec, all};

/// Watch a replay on a terminal, operation by operation, forward and back, as `replay --html` does in a browser.
///
/// Each picture shows a sentence about the last operation, the busiest caches (objects on each CPU, shared objects,
/// slabs), one cache in detail with its slabs object by object, and the pages. `?` lists the keys. The terminal needs
/// 80 columns and 24 rows.
///
/// The allocator itself runs while you watch; the states are not recorded. To move back, the viewer runs the
/// engine again from the beginning. A run of the engine takes less than 0.1 s for the bundled trace (672,020
/// operations), and about 0.1 s per million operations for other traces. If NO_COLOR is set in the
/// environment, the screen has no colours.
///
/// The command `uslab watch` needs a terminal. Without a terminal, `uslab replay --at N --json` writes the
/// same states.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab watch
  uslab watch trace.txt.zst --at 5000
  uslab watch trace.ops --design slub:cpu_partial=0 --cache dentry")]
pub(crate) struct WatchArgs {
    /// The trace, in a format that `uslab replay` or `uslab convert` reads, or the output of `convert`; `-`
    /// is standard input. Default: the bundled trace.
    #[arg(value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Designs to run, with options as `uslab replay --help` lists them.
    #[arg(long, value_name = "NAME", default_value = "uslab")]
    design: String,
    /// Begin after N operations. Default: three tenths of all operations, as on the web page.
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    /// The cache to show in detail. Default: the cache whose number of objects falls most.
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
}

pub(crate) fn run<P: Policy>(args: &WatchArgs, json: Option<&Path>) -> anyhow::Result<Outcome> {
    if json.is_some() {
        bail!("--json: `uslab watch` only draws on a terminal; expected `uslab replay --at N --json`");
    }
    start::<P>(args, args.design.parse().context("--design")?)
}

fn start<P: Policy>(args: &WatchArgs, wanted: Spec<P>) -> anyhow::Result<Outcome> {
    terminal::require_terminal("`uslab replay --at N --json` has the same moments")?;
    let mut specs = vec![wanted];
    let others = all::<P>().filter(|(name, _)| *name != args.design).map(|(name, _)| name.parse());
    specs.extend(others.collect::<Result<Vec<_>, _>>()?);
    let progress = Progress::new();
    let stream = replay::page_stream(args.trace.as_deref(), &replay::Options::default(), &progress)?;
    drop(progress);
    let operations = stream.operations;
    let at = args.at.unwrap_or(operations * 3 / 10);
    if at > operations {
        bail!("--at {at}: expected 0 to {operations}, the number of operations in {}", stream.title);
    }
    let mut app = app::App::new(&stream, specs.iter().map(ToString::to_string).collect(), at);
    app.colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if let Some(name) = &args.cache
        && !app.choose_cache_by_name(name)
    {
        let names: Vec<_> = stream.caches.iter().map(|cache| &*cache.name).collect();
        bail!("--cache {name}: no such cache; expected one of {}", names.join(", "));
    }
    let ended = session::watch(&stream, &specs, &mut app, &mut terminal::Terminal::start()?);
    ended.map(|()| Outcome::Done)
}

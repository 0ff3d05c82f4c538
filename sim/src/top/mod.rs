//! The command `uslab top`: shows the caches of a running program, as slabtop shows the caches of a kernel.
//!
//! ```text
//! program ── signal ──> its thread `uslab-dump` ──> file ──> reading ──> table, screen, JSON
//! ```

mod reading;
mod screen;
mod source;
#[cfg(test)]
mod tests;

use crate::output::command::Outcome;
use crate::output::{Place, say, tell};
use clap::Args;
use reading::Sort;
use source::Source;
use std::time::Duration;

/// Show the object caches of a running program: the objects, slabs and bytes of each cache, and how often the
/// cache is used.
///
/// The program must run under libuslab.so with a dump file: `LD_PRELOAD=libuslab.so
/// USLAB_OPTIONS=dump=/tmp/app.%p.json app`. For each reading, the command sends the program the signal that
/// USLAB_OPTIONS names (SIGUSR2 by default), and an extra thread of the library writes the dump file. The
/// program keeps running while the file is written. A blocking system call of the program may return early
/// (EINTR), as for any signal with a handler. The command sends no signal to a program without the library's
/// thread.
///
/// With FILE instead of PID, the command shows the contents of FILE whenever it is rewritten.
///
/// On a terminal, a key sorts the rows (a in use, b objects per slab, c bytes of the cache, l slabs, n name,
/// o objects, p pages per slab, r operations a second, s size, u share in use), and q ends the command. Rates
/// are computed from the last two readings.
///
/// When the program ends, its last table is printed to standard output.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uslab top 1234
  uslab top --once 1234
  uslab top 1234 --json > now.json
  uslab top /tmp/app.1234.json --interval 0.5")]
pub(crate) struct TopArgs {
    /// Process id of the program, or the path of a file that its library wrote.
    #[arg(value_name = "PID|FILE")]
    target: String,
    /// Seconds between two readings, from 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Initial order of the rows: one of the sort letters above.
    #[arg(long, value_name = "LETTER", default_value = "c", value_parser = Sort::parse)]
    sort: Sort,
    /// Print one table and exit.
    #[arg(long)]
    once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0.1 to 3600".to_owned())
}

pub(crate) fn run(args: &TopArgs, json: Option<Place>) -> anyhow::Result<Outcome> {
    let once = args.once || json.is_some();
    if !once {
        require_terminal()?;
    }
    let mut source = Source::open(&args.target)?;
    if !once {
        return follow(source, args);
    }
    let reading = source.wait_for_reading()?;
    tell(&reading, &reading.text(args.sort), json)?;
    Ok(Outcome::Done)
}

fn require_terminal() -> anyhow::Result<()> {
    crate::watch::terminal::require_terminal("`--once` prints a table, `--json` a reading")
}
fn follow(mut source: Source, args: &TopArgs) -> anyhow::Result<Outcome> {
    let first = source.wait_for_reading()?;
    let mut top = screen::Top::new(source.to_string(), first, args.interval);
    top.sort = args.sort;
    top.colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // The terminal is restored before anything is printed.
    let ended = screen::follow(&mut top, &mut source, &mut crate::watch::terminal::Terminal::start()?)?;
    if ended {
        say(&format!("{}{source} has ended.\n", top.reading.text(top.sort)))?;
    }
    Ok(Outcome::Done)
}

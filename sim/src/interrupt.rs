//! Handles the signals that end a command early.

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::thread;

/// Calls `handler` in a thread on each Ctrl-C, SIGTERM and SIGHUP. Under `nohup`, SIGHUP stays ignored.
///
/// # Errors
/// Fails if the signals cannot be caught, or the thread cannot start.
pub(crate) fn on_interrupt(mut handler: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    let signals =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !ignores_sighup());
    let mut signals = Signals::new(signals).context("cannot catch signals")?;
    let thread = thread::Builder::new().name("signals".to_owned());
    thread
        .spawn(move || signals.forever().for_each(|_| handler()))
        .context("cannot start the thread of signals")?;
    Ok(())
}

fn ignores_sighup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 != 0)
}

//! The signals that end a command early.

use anyhow::Context;

/// Calls `handler` on Ctrl-C, SIGTERM and SIGHUP. The handler is not set under `nohup`, because it would replace the
/// ignored SIGHUP.
///
/// # Errors
/// Fails if the handler cannot be set.
pub(crate) fn on_interrupt(handler: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is the signal 1, and the lowest bit.
    if ignored.is_some_and(|mask| mask & 1 != 0) {
        return Ok(());
    }
    ctrlc::set_handler(handler).context("cannot set the handler of signals")
}

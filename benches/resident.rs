//! Resident memory and CPU time of processes.

use anyhow::Context;
use nix::unistd::{SysconfVar, sysconf};
use std::fs::File;
use std::io::Read;

/// Returns the resident bytes of this process, from `smaps_rollup`. The number from `smaps_rollup` is exact, whereas
/// `statm` may lag behind by some pages per CPU. Reading `smaps_rollup` does not allocate.
///
/// # Panics
/// Panics if the kernel has no `smaps_rollup` (added in Linux 4.14).
pub fn resident() -> f64 {
    read_smaps_rollup("/proc/self/smaps_rollup")
}

/// Returns the resident bytes of another process, which must exist.
///
/// # Panics
/// Panics if the kernel has no `smaps_rollup`, or if the process does not exist.
pub fn resident_bytes_of_process(process: u32) -> f64 {
    read_smaps_rollup(&format!("/proc/{process}/smaps_rollup"))
}

fn read_smaps_rollup(rollup: &str) -> f64 {
    let mut bytes = [0; 4096];
    let bytes_read = File::open(rollup).and_then(|mut file| file.read(&mut bytes));
    let text = bytes_read
        .ok()
        .and_then(|bytes_read| std::str::from_utf8(&bytes[..bytes_read]).ok())
        .unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("{rollup} has no line Rss")) as f64 * 1024.0
}

/// Returns the CPU seconds that a process has used, in user mode and in the kernel.
///
/// # Errors
/// Fails if the process does not exist.
pub fn cpu_seconds_of_process(process: u32) -> anyhow::Result<[f64; 2]> {
    // Reads fields 14 and 15 of proc_pid_stat(5), which follow the program's name; the name may contain
    // blanks.
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).context(path)?;
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("cannot read the clock")? as f64;
    let seconds = |field: usize| anyhow::Ok(fields.get(field).context("stat")?.parse::<f64>()? / ticks);
    Ok([seconds(12)?, seconds(11)?])
}

//! Resident memory.

use std::fs::File;
use std::io::Read;

/// Bytes of this process that are resident, from `smaps_rollup`: exact, where `statm` may lag behind by some pages a
/// CPU. Reading it allocates nothing.
///
/// # Panics
/// The kernel has no `smaps_rollup` (Linux 4.14 has).
pub fn resident() -> f64 {
    read("/proc/self/smaps_rollup")
}

/// The same of another process, which must be there.
///
/// # Panics
/// As [`resident`], or there is no such process.
pub fn resident_of(process: u32) -> f64 {
    read(&format!("/proc/{process}/smaps_rollup"))
}

fn read(rollup: &str) -> f64 {
    let mut bytes = [0; 4096];
    let read = File::open(rollup).and_then(|mut file| file.read(&mut bytes));
    let text = read.ok().and_then(|read| std::str::from_utf8(&bytes[..read]).ok()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("{rollup} has no line Rss")) as f64 * 1024.0
}

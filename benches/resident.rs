//! Resident memory, and subjects in processes of their own, so that nobody stands on pages that another one left.

use std::fs::File;
use std::io::Read;
use std::process::Command;

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

/// A subject to be run in a process of its own.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) case: String,
    pub(crate) subject: &'static str,
    pub(crate) quick: bool,
}

impl Child {
    /// One round. Nothing, and a word on standard error, if the process fails.
    pub(crate) fn run(&self) -> Vec<f64> {
        let measured = (|| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--bench", "--child", &format!("{}/{}", self.case, self.subject)]);
            let output = command.args(self.quick.then_some("--quick")).output()?;
            anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
            Ok(serde_json::from_slice(&output.stdout)?)
        })();
        measured.unwrap_or_else(|error: anyhow::Error| {
            eprintln!("{}: {error}", self.subject);
            Vec::new()
        })
    }
}

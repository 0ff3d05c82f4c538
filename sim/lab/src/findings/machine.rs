//! Describes the machine and the compiler of a measurement; without them, times mean little.

use core::fmt::{Display, Formatter, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The machine on which a measurement was made, and the compiler that built the program.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as the system reports it.
    pub processor: String,
    /// The number of CPUs on which the program may run.
    pub cpus: u32,
    /// The operating system and the architecture.
    pub system: String,
    /// The C library, which provides the system's malloc; absent if its version is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libc: Option<String>,
    /// The compiler that built the program, with the optimisation level and the flags.
    pub compiler: &'static str,
    /// `true` if the program was compiled with optimisation; times without optimisation mean little.
    pub optimised: bool,
}

impl Machine {
    /// Describes the machine on which the program runs.
    pub fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            processor: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            libc: libc(),
            compiler: env!("USLAB_COMPILER"),
            optimised: !cfg!(debug_assertions),
        }
    }
}

/// A processor's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The number of sets in the cache.
    pub sets: u32,
    /// The number of lines in a set of the cache.
    pub ways: u32,
    /// The size of a line in bytes.
    pub line: u32,
}

impl Cache {
    /// Returns the first-level data cache of CPU 0 of this machine, or `None` if the system does not describe the
    /// cache.
    pub fn nearest() -> Option<Self> {
        Self::first_level_cache_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }
    /// Reads the first-level data cache from a folder in the format of Linux's sysfs.
    fn first_level_cache_in(folder: &Path) -> Option<Self> {
        let caches = (0..16).map(|i| folder.join(format!("index{i}"))).take_while(|cache| cache.exists());
        let read_trimmed = |cache: &Path, attribute| {
            Some(std::fs::read_to_string(cache.join(attribute)).ok()?.trim().to_owned())
        };
        let number =
            |cache: &Path, attribute| read_trimmed(cache, attribute)?.parse().ok().filter(|n: &u32| *n > 0);
        let first_level = |cache: &PathBuf| {
            read_trimmed(cache, "level").as_deref() == Some("1")
                && read_trimmed(cache, "type").as_deref() != Some("Instruction")
        };
        let cache = caches.into_iter().find(first_level)?;
        Some(Self {
            sets: number(&cache, "number_of_sets")?,
            ways: number(&cache, "ways_of_associativity")?,
            line: number(&cache, "coherency_line_size")?,
        })
    }
}

/// Returns the output of the command `getconf`, because calling glibc's function would be unsafe.
fn libc() -> Option<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !version.is_empty()).then_some(version)
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { processor, cpus, system, libc, compiler, optimised } = self;
        write!(f, "{processor}, {cpus} CPUs, {system}")?;
        if let Some(libc) = libc {
            write!(f, ", {libc}")?;
        }
        write!(f, "; {compiler}")?;
        if !optimised {
            f.write_str("; NOT OPTIMISED: build with --release before you believe a time")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_level_data_cache_is_read_from_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        let file = |i: u32, name: &str, text: &str| {
            let index = folder.path().join(format!("index{i}"));
            std::fs::create_dir_all(&index).unwrap();
            std::fs::write(index.join(name), format!("{text}\n")).unwrap();
        };
        for (i, level, kind, sets, ways) in [
            (0, "1", "Instruction", "64", "4"),
            (1, "1", "Data", "64", "12"),
            (2, "2", "Unified", "1024", "8"),
        ] {
            file(i, "level", level);
            file(i, "type", kind);
            file(i, "number_of_sets", sets);
            file(i, "ways_of_associativity", ways);
            file(i, "coherency_line_size", "64");
        }
        assert_eq!(Cache::first_level_cache_in(folder.path()), Some(Cache { sets: 64, ways: 12, line: 64 }));
        // Missing values are not guessed.
        file(1, "ways_of_associativity", "0");
        assert_eq!(Cache::first_level_cache_in(folder.path()), None);
        assert_eq!(Cache::first_level_cache_in(Path::new("/no/such/folder")), None);
    }

    #[test]
    fn machine_description_lists_factors_that_affect_times() {
        let machine = Machine::this();
        let text = machine.to_string();
        assert!(machine.compiler.starts_with("rustc 1.") && machine.compiler.contains("opt-level"), "{text}");
        assert!(text.contains(&machine.processor) && text.contains(machine.compiler), "{text}");
        assert_eq!(text.contains("NOT OPTIMISED"), cfg!(debug_assertions), "{text}");
    }
}

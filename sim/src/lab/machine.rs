//! Where something was measured, and with what: times without it say nothing.

use core::fmt::{Display, Formatter, Result};
use serde::Serialize;
use std::process::Command;

/// Where something was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor, as the system names it.
    pub processor: String,
    /// CPUs that may run us.
    pub cpus: u32,
    /// Operating system and architecture.
    pub system: String,
    /// The C library, whose malloc is the system's; absent where it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libc: Option<String>,
    /// The compiler, with its optimisation and flags.
    pub compiler: &'static str,
    /// Whether the program was optimised; times of one that was not say little.
    pub optimised: bool,
}

impl Machine {
    /// This one.
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

/// As `getconf` has it: glibc's own function for it can only be called unsafely.
fn libc() -> Option<String> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let version = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    (said.status.success() && !version.is_empty()).then_some(version)
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
    fn a_machine_says_what_times_depend_on() {
        let machine = Machine::this();
        let shown = machine.to_string();
        assert!(
            machine.compiler.starts_with("rustc 1.") && machine.compiler.contains("opt-level"),
            "{shown}"
        );
        assert!(shown.contains(&machine.processor) && shown.contains(machine.compiler), "{shown}");
        assert_eq!(shown.contains("NOT OPTIMISED"), cfg!(debug_assertions), "{shown}");
    }
}

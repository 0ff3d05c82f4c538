//! Signs that the machine, or the group of processes this one belongs to, is short of memory.
//!
//! Linux tells in two ways. *Pressure stall information* (Documentation/accounting/psi.rst) wakes a watcher when tasks have
//! stalled on memory for so long within a window. A *memory group* (Documentation/admin-guide/cgroup-v2.rst) has a mark,
//! `memory.high`, above which its processes are slowed down; it is looked at from time to time. The
//! [reaper](crate::Reaper) heeds both, if it is told to.

#[cfg(target_os = "linux")]
mod events;
#[cfg(not(target_os = "linux"))]
#[path = "pressure/absent.rs"]
mod events;

pub(crate) use events::{Watched, next};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When to be woken: tasks have stalled on memory for `stall` within `window`.
///
/// ```
/// use std::time::Duration;
/// use uslab::pressure::Psi;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let (stall, window) = (Duration::from_millis(100), Duration::from_secs(2));
/// let psi = Psi::system(stall, window);
/// assert_eq!(psi, Psi::at("/proc/pressure/memory", stall, window));
/// // Where there is no such file, the reaper ends its intervals and is never woken.
/// let subsystem = Subsystem::new(Config::default())?;
/// let builder = Reaper::builder(Duration::from_secs(15));
/// let reaper = builder.clone().psi(psi).start(&subsystem).or_else(|_| builder.start(&subsystem))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Psi {
    path: PathBuf,
    stall: Duration,
    window: Duration,
}

impl Psi {
    /// Of the whole machine. The kernel takes windows from 500 ms to 10 s; from processes without privileges only multiples
    /// of 2 s.
    pub fn system(stall: Duration, window: Duration) -> Self {
        Self::at("/proc/pressure/memory", stall, window)
    }
    /// Of the group of processes whose `memory.pressure` this is.
    pub fn at(path: impl Into<PathBuf>, stall: Duration, window: Duration) -> Self {
        Self { path: path.into(), stall, window }
    }
}

/// A memory group, by its directory.
///
/// ```
/// use std::time::Duration;
/// use uslab::pressure::MemoryGroup;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let mut builder = Reaper::builder(Duration::from_secs(15));
/// // Not every process is in a group that has a mark.
/// if let Ok(group) = MemoryGroup::own() {
///     builder = builder.group(group);
/// }
/// let reaper = builder.start(&subsystem)?;
///
/// let missing = MemoryGroup::at("/no/such/group").map_err(|error| error.to_string());
/// assert!(missing.is_err_and(|error| error.contains("memory.high: ")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    directory: PathBuf,
}

/// Part of `memory.high` that may be missing yet: from there on memory is given back, before the kernel slows anybody down.
const MARGIN: u64 = 16;

impl MemoryGroup {
    /// The one that this process belongs to, where the second version of groups is mounted and controls memory.
    ///
    /// # Errors
    /// It cannot be found out, or has no `memory.high`; the error says which file is missing.
    pub fn own() -> io::Result<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "/proc/self/cgroup: no group of version 2 (0::)")
        })?;
        Self::at(Path::new("/sys/fs/cgroup").join(own))
    }
    /// The one with this directory.
    ///
    /// # Errors
    /// It has no `memory.high` or `memory.current`, or they cannot be read.
    pub fn at(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let group = Self { directory: directory.into() };
        group.read("memory.high").and(group.read("memory.current"))?;
        Ok(group)
    }

    /// Bytes; `max` is no limit.
    fn read(&self, name: &str) -> io::Result<Option<u64>> {
        let path = self.directory.join(name);
        let named = |error: String, kind| io::Error::new(kind, format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| named(error.to_string(), error.kind()))?;
        match text.trim() {
            "max" => Ok(None),
            bytes => bytes.parse().map(Some).map_err(|_| {
                named(format!("expected bytes or `max`, not {bytes:?}"), io::ErrorKind::InvalidData)
            }),
        }
    }

    /// Whether it uses what it may, or nearly so. A group that has gone is not short of anything.
    pub(crate) fn is_short(&self) -> bool {
        let (Ok(Some(high)), Ok(Some(current))) = (self.read("memory.high"), self.read("memory.current"))
        else {
            return false;
        };
        current >= high - high / MARGIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_short_from_a_sixteenth_below_its_mark() {
        let directory = std::env::temp_dir().join(format!("uslab-group-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let put = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        let missing = MemoryGroup::at(&directory).unwrap_err().to_string();
        assert!(missing.contains("memory.high"), "{missing}");
        put("memory.high", "1600\n");
        put("memory.current", "1499\n");
        let group = MemoryGroup::at(&directory).unwrap();
        assert!(!group.is_short());
        put("memory.current", "1500\n");
        assert!(group.is_short());
        put("memory.high", "max\n");
        assert!(!group.is_short(), "there is no mark");
        put("memory.high", "lots\n");
        let wrong = MemoryGroup::at(&directory).unwrap_err().to_string();
        assert!(wrong.contains("memory.high: expected bytes or `max`, not \"lots\""), "{wrong}");
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(!group.is_short(), "it has gone");
    }

    #[test]
    fn a_trigger_that_cannot_be_names_its_file() {
        let error =
            Psi::at("/nowhere/memory.pressure", Duration::from_millis(1), Duration::from_secs(2)).watch();
        assert!(error.unwrap_err().to_string().starts_with("/nowhere/memory.pressure: "));
    }
}

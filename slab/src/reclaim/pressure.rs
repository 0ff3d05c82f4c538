//! Signs that the machine, or the group of processes this one belongs to, is short of memory.
//!
//! Linux tells in two ways. *Pressure stall information* (Documentation/accounting/psi.rst) wakes a watcher when tasks have
//! stalled on memory for so long within a window. A *memory group* (Documentation/admin-guide/cgroup-v2.rst) has a mark,
//! `memory.high`, above which its processes are slowed down; it is looked at from time to time. The
//! [reaper](crate::Reaper) heeds both, if it is told to.
//!
//! A group may have a limit, too: the kernel ends a process of a group that exceeds it. Free memory that an allocator keeps counts. So an
//! allocator keeps at most an eighth of the limit that it was started under.

#[cfg(target_os = "linux")]
mod events;
#[cfg(not(target_os = "linux"))]
#[path = "pressure/absent.rs"]
mod events;

pub(crate) use events::{Watched, next};
use std::fs::File;
use std::io::{self, Read as _};
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

/// Part of a group's limit that may be free memory of one allocator.
const SHARE: u64 = 8;

/// Bytes of free memory that stay with an allocator which wants to keep `most`: less in a process group with a limit.
///
/// Cost: three system calls for the names of the groups. With the first version of groups three more; with the second one six for the
/// process's group and each above it.
pub(crate) fn keep_free(most: usize) -> usize {
    let mut groups = [0; TEXT];
    let limit =
        read("/proc/self/cgroup", &mut groups).and_then(|groups| least_limit(groups, "/sys/fs/cgroup"));
    limit.map_or(most, |limit| most.min(usize::try_from(limit / SHARE).unwrap_or(most)))
}

/// Bytes of a file that are read.
const TEXT: usize = 4096;

/// The beginning of a file. One read, and no other look at it: the kernel makes the whole text of such a file at once.
fn read<'t>(path: &str, text: &'t mut [u8; TEXT]) -> Option<&'t str> {
    let bytes = File::open(path).ok()?.read(text).ok()?;
    core::str::from_utf8(&text[..bytes]).ok()
}

/// Bytes: the least limit of the groups in the text of `/proc/PID/cgroup` and of those above them, of the version that controls memory,
/// below `root`. What cannot be read limits nothing: a container sees its own group as the root, whatever the text says.
fn least_limit(groups: &str, root: &str) -> Option<u64> {
    let parts = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let mut text = [0; TEXT];
    // The first version: the least of a group and those above it is a number of the group.
    if let Some((_, own)) = parts().find(|(controllers, _)| controllers.split(',').any(|it| it == "memory")) {
        return and_above(own).find_map(|group| {
            let stat = read(&format!("{root}/memory{group}/memory.stat"), &mut text)?;
            stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?.parse().ok()
        });
    }
    let (_, own) = parts().find(|(controllers, _)| controllers.is_empty())?;
    let limits = and_above(own).filter_map(|group| {
        let mut file = |name| Some(read(&format!("{root}{group}/{name}"), &mut text)?.trim().parse().ok());
        // A group without the one has none of the other.
        let max: Option<u64> = file("memory.max")?;
        max.into_iter().chain(file("memory.high").flatten()).min()
    });
    limits.min()
}

/// The path of a group, `/a/b`, and those above it: `/a` and the empty one.
fn and_above(group: &str) -> impl Iterator<Item = &str> {
    let own = group.trim_end_matches('/');
    core::iter::successors(Some(own), |group| Some(&group[..group.rfind('/')?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let root = std::env::temp_dir().join(format!("uslab-limits-{}", std::process::id()));
        let put = |file: &str, text: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let limit = |groups: &str| least_limit(groups, root.to_str().unwrap());
        assert_eq!([limit(""), limit("0::/a/b\n"), limit("rubbish\n4:memory\n")], [None; 3]);
        put("a/b/memory.max", "max\n");
        put("a/b/memory.high", "3000\n");
        put("a/memory.max", "2000\n");
        assert_eq!([limit("0::/a/b\n"), limit("0::/a\n"), limit("0::/\n")], [Some(2000), Some(2000), None]);
        put("a/b/memory.max", "1000\n");
        assert_eq!(limit("0::/a/b\n"), Some(1000));
        put("a/memory.high", "900\n");
        assert_eq!([limit("0::/a/b\n"), limit("0::/a\n")], [Some(900); 2]);
        // The first version, and a container whose group is its root.
        put("memory/memory.stat", "cache 7\nhierarchical_memory_limit 500\nhierarchical_memsw_limit 8\n");
        put("memory/deep/memory.stat", "rss 0\nhierarchical_memory_limit 400\n");
        let first = "9:name=systemd:/\n5:cpu,memory:/deep\n0::/a/b\n";
        assert_eq!([limit(first), limit("4:memory:/docker/0123\n")], [Some(400), Some(500)]);
        std::fs::remove_dir_all(&root).unwrap();
    }

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

//! Memory pressure of the whole machine, or of the process's control group.
//!
//! Linux reports memory pressure in two ways. *Pressure stall information* (Documentation/accounting/psi.rst) wakes a
//! watcher when tasks have stalled on memory for a given time within a window. A *memory group*
//! (Documentation/admin-guide/cgroup-v2.rst) has a mark, `memory.high`. The kernel slows down the group's processes
//! above the mark. A watcher must poll the mark. A [reaper](crate::Reaper) can use both sources of memory pressure.
//!
//! The memory of a process may also have limits. The kernel kills a process of a control group that exceeds the group's
//! limit. The kernel refuses memory to a process that exceeds the process's own limit (`getrlimit`). Free memory that
//! an allocator keeps counts towards the limits of its process. An allocator therefore keeps at most an eighth of the
//! *room*, which is the lowest limit minus the memory that the allocator has committed.

#[cfg(target_os = "linux")]
mod events;
#[cfg(not(target_os = "linux"))]
#[path = "pressure/absent.rs"]
mod events;

use core::str::from_utf8;
pub(crate) use events::{Watched, next};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uslab_buddy::region::process_limit;

/// A trigger of pressure stall information, which fires when tasks have stalled on memory for `stall` within `window`.
///
/// ```
/// use std::time::Duration;
/// use uslab::pressure::Psi;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let (stall, window) = (Duration::from_millis(100), Duration::from_secs(2));
/// let psi = Psi::system(stall, window);
/// assert_eq!(psi, Psi::at("/proc/pressure/memory", stall, window));
/// // Without such a file, the reaper ends its intervals and is never woken.
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
    /// Makes a trigger for the memory pressure of the whole machine. The kernel accepts windows from 500 ms to 10 s.
    /// The kernel accepts only multiples of 2 s from unprivileged processes.
    pub fn system(stall: Duration, window: Duration) -> Self {
        Self::at("/proc/pressure/memory", stall, window)
    }
    /// Makes a trigger for the control group whose `memory.pressure` file is at `path`.
    pub fn at(path: impl Into<PathBuf>, stall: Duration, window: Duration) -> Self {
        Self { path: path.into(), stall, window }
    }
}

/// A memory group of control groups, identified by its directory.
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

/// Divisor of the margin below `memory.high`: a group is short of memory if its use is within `1 /
/// MEMORY_HIGH_MARGIN_DIVISOR` of the mark. Memory is therefore freed before the kernel slows a process down.
const MEMORY_HIGH_MARGIN_DIVISOR: u64 = 16;

impl MemoryGroup {
    /// Returns the memory group of this process, if version 2 of control groups is mounted and controls memory.
    ///
    /// # Errors
    /// Fails if the group cannot be determined, or if it has no `memory.high`; the error names the missing file.
    pub fn own() -> io::Result<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let own_group = groups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "/proc/self/cgroup names no cgroup v2 (no line `0::`)")
        })?;
        Self::at(Path::new("/sys/fs/cgroup").join(own_group))
    }
    /// Returns the memory group whose directory is `directory`.
    ///
    /// # Errors
    /// Fails if the group's `memory.high` or `memory.current` cannot be read.
    pub fn at(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let group = Self { directory: directory.into() };
        group.read("memory.high").and(group.read("memory.current"))?;
        Ok(group)
    }

    /// Reads a number of bytes from a file of the group. Returns `None` if the text is `max`, which means no limit.
    fn read(&self, name: &str) -> io::Result<Option<u64>> {
        let path = self.directory.join(name);
        let wrap = |error: String, kind| io::Error::new(kind, format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| wrap(error.to_string(), error.kind()))?;
        match text.trim() {
            "max" => Ok(None),
            bytes => bytes.parse().map(Some).map_err(|_| {
                wrap(format!("expected bytes or `max`, not {bytes:?}"), io::ErrorKind::InvalidData)
            }),
        }
    }

    /// Returns `true` if the group's memory use is near `memory.high`. A group that was removed is not short of memory.
    pub(crate) fn is_near_memory_high(&self) -> bool {
        let (Ok(Some(high)), Ok(Some(current))) = (self.read("memory.high"), self.read("memory.current"))
        else {
            return false;
        };
        current >= high - high / MEMORY_HIGH_MARGIN_DIVISOR
    }
}

/// Divisor of the room: an allocator may keep at most the fraction `1 / SHARE` of the room as free memory.
pub(crate) const SHARE: u64 = 8;

/// Returns the lowest limit of the process and of its control groups in bytes, or `None` without any limit. The call
/// does not allocate.
///
/// Cost: two system calls, three for the list of groups, and three for each file that contains a limit.
pub(crate) fn lowest_memory_limit() -> Option<u64> {
    let mut text = [0; 8192];
    let groups = read(&["/proc/self/cgroup"], &mut text)
        .and_then(|groups| lowest_group_limit(groups, "/sys/fs/cgroup"));
    [groups, process_limit()].into_iter().flatten().min()
}

/// Returns the lowest limit in bytes of a control group and its ancestors below `root`. `groups` is the text of
/// `/proc/PID/cgroup`, in either version of control groups. A file that cannot be read, or that contains no number,
/// sets no limit. A container sees its own group as the root, regardless of the text.
fn lowest_group_limit(groups: &str, root: &str) -> Option<u64> {
    let group = |of: fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            parts.next().filter(|controllers| of(controllers))?;
            parts.next().map(|group| group.trim_end_matches('/'))
        })
    };
    // Only one version of control groups controls memory. In version 1, the soft limit is a hint, and only the
    // group's own soft limit is used.
    let first = group(|controllers| controllers.split(',').any(|controller| controller == "memory"));
    let (mount, own, hard, soft) = match first {
        Some(own) => ("/memory", own, "memory.limit_in_bytes", "memory.soft_limit_in_bytes"),
        None => ("", group(str::is_empty)?, "memory.max", "memory.high"),
    };
    let parent_group = |group: &&'_ str| group.rfind('/').map(|end| &own[..end]);
    let limits = core::iter::successors(Some(own), parent_group).flat_map(|group| {
        let files = [Some(hard), (first.is_none() || group == own).then_some(soft)];
        files.map(|file| number(&[root, mount, group, "/", file?]))
    });
    limits.flatten().min()
}

/// Reads the number in the file whose name is the concatenation of `name`. Returns `None` if the file contains `max`.
pub(crate) fn number(name: &[&str]) -> Option<u64> {
    read(name, &mut [0; 32])?.trim().parse().ok()
}

/// Reads the start of the file whose name is the concatenation of `name`, with one read call.
fn read<'a>(name: &[&str], text: &'a mut [u8]) -> Option<&'a str> {
    let (mut bytes, mut len) = ([0; 1024], 0);
    for part in name {
        bytes.get_mut(len..len + part.len())?.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let read = File::open(from_utf8(&bytes[..len]).ok()?).ok()?.read(text).ok()?;
    from_utf8(&text[..read]).ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A directory with files in the format of the kernel's files.
    struct FakeCgroupRoot(PathBuf);
    impl FakeCgroupRoot {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = Self(std::env::temp_dir().join(format!("uslab-{name}-{}", std::process::id())));
            files.iter().for_each(|(file, text)| root.put(file, text));
            root
        }
        fn put(&self, file: &str, text: &str) {
            let file = self.0.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        fn smallest_limit(&self, groups: &str) -> Option<u64> {
            lowest_group_limit(groups, self.0.to_str().unwrap())
        }
    }
    impl Drop for FakeCgroupRoot {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn cgroup_v2_limit_is_the_minimum_over_its_ancestors() {
        let root = FakeCgroupRoot::new(
            "two",
            &[
                ("a/b/memory.max", "max\n"),
                ("a/b/memory.high", "3000\n"),
                ("a/memory.max", "2000\n"),
                ("a/memory.high", "max\n"),
            ],
        );
        let smallest_limit = |group: &str| root.smallest_limit(&format!("0::{group}\n"));
        assert_eq!(["/a/b", "/a", "/", "/c"].map(smallest_limit), [Some(2000), Some(2000), None, None]);
        root.put("a/b/memory.max", "1000\n");
        assert_eq!(["/a/b", "/a/b/c/d", "/a"].map(smallest_limit), [Some(1000), Some(1000), Some(2000)]);
        // In a container, the group of the container is the root, whatever name the group has
        // inside.
        root.put("memory.max", "500\n");
        assert_eq!(["/", "/../../elsewhere", "/a/b"].map(smallest_limit), [Some(500); 3]);
    }

    #[test]
    fn cgroup_v1_limit_is_the_minimum_over_its_ancestors() {
        let root = FakeCgroupRoot::new(
            "one",
            &[
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/memory.limit_in_bytes", "5000\n"),
                ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/b/memory.soft_limit_in_bytes", "4000\n"),
                // A file of another controller, which must be ignored.
                ("cpu/a/b/memory.limit_in_bytes", "1\n"),
            ],
        );
        let smallest_limit =
            |group: &str| root.smallest_limit(&format!("9:name=systemd:/\n5:cpu,memory:{group}\n0::/\n"));
        assert_eq!(["/a/b", "/a"].map(smallest_limit), [Some(4000), Some(5000)]);
        assert_eq!(smallest_limit("/docker/0123"), Some(9_223_372_036_854_771_712));
        assert_eq!(root.smallest_limit("4:cpu:/a/b\n"), None);
        // If a version-1 controller controls memory, version 2 does not.
        root.put("memory.max", "3000\n");
        assert_eq!([smallest_limit("/a/b"), root.smallest_limit("0::/a/b\n")], [Some(4000), Some(3000)]);
    }

    #[test]
    fn malformed_cgroup_files_set_no_limit() {
        let numbers = ["", "\n", "lots\n", "-1\n", "1e3\n", "99999999999999999999999999\n", "\u{fffd}\n"];
        for text in numbers {
            let root = FakeCgroupRoot::new("numbers", &[("a/memory.max", text), ("memory.max", "700\n")]);
            assert_eq!(root.smallest_limit("0::/a\n"), Some(700), "{text:?}");
        }
        let root = FakeCgroupRoot::new("lists", &[("memory.max", "700\n"), ("a/memory.max/folder", "1\n")]);
        assert_eq!(root.smallest_limit("0::/a\n"), Some(700), "a folder of this name");
        for groups in ["", "\n\n", "rubbish\n", "4:memory\n", ":\n", "4:memoryless:/a\n"] {
            assert_eq!(root.smallest_limit(groups), None, "{groups:?}");
        }
        let long = format!("0::/{}\n", "x/".repeat(5000));
        assert_eq!(root.smallest_limit(&long), Some(700), "a name that is too long for a path");
        assert_eq!(number(&["/nowhere/", "memory.max"]), None);
        assert_eq!(read(&["/proc/self/cgroup"], &mut []), Some(""));
    }

    #[test]
    fn cgroup_is_under_memory_pressure_near_its_memory_high() {
        let directory = std::env::temp_dir().join(format!("uslab-group-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write_file = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        let missing = MemoryGroup::at(&directory).unwrap_err().to_string();
        assert!(missing.contains("memory.high"), "{missing}");
        write_file("memory.high", "1600\n");
        write_file("memory.current", "1499\n");
        let group = MemoryGroup::at(&directory).unwrap();
        assert!(!group.is_near_memory_high());
        write_file("memory.current", "1500\n");
        assert!(group.is_near_memory_high());
        write_file("memory.high", "max\n");
        assert!(!group.is_near_memory_high(), "the file must not exist");
        write_file("memory.high", "lots\n");
        let wrong = MemoryGroup::at(&directory).unwrap_err().to_string();
        assert!(wrong.contains("memory.high: expected bytes or `max`, not \"lots\""), "{wrong}");
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(!group.is_near_memory_high(), "the group was removed");
    }

    #[test]
    fn invalid_pressure_trigger_error_names_the_file() {
        let error =
            Psi::at("/nowhere/memory.pressure", Duration::from_millis(1), Duration::from_secs(2)).watch();
        assert!(error.unwrap_err().to_string().starts_with("/nowhere/memory.pressure: "));
    }
}

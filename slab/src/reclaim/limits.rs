//! How much memory the process may have.
//!
//! The kernel ends a process of a control group that exceeds its limit, and refuses memory to a process that exceeds its own
//! (`getrlimit`). Free memory that an allocator keeps counts. So an allocator keeps at most an eighth of the *room*: the least of all
//! limits, less what the allocator has committed.

use core::str::from_utf8;
use std::fs::File;
use std::io::Read as _;
use uslab_buddy::region::own_limit;

/// Part of the room that may be free memory of one allocator.
pub(crate) const SHARE: u64 = 8;

/// Bytes: the least limit of the process and of its control groups; `None` without any. Allocates nothing.
///
/// Cost: two system calls, three for the list of groups, and three for each file that names a limit.
pub(crate) fn least() -> Option<u64> {
    let mut text = [0; 8192];
    let groups =
        read(&["/proc/self/cgroup"], &mut text).and_then(|groups| of_groups(groups, "/sys/fs/cgroup"));
    [groups, own_limit()].into_iter().flatten().min()
}

/// Bytes: the least limit of the groups in the text of `/proc/PID/cgroup` and of their ancestors, of either version, below `root`. A file
/// that cannot be read, or has no number, limits nothing: a container sees its own group as the root, whatever the text says.
fn of_groups(groups: &str, root: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (mount, files) = match controllers {
            "" => ("", ["memory.max", "memory.high"]),
            // Without a soft limit the file has a number that is larger than any memory.
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/memory", ["memory.limit_in_bytes", "memory.soft_limit_in_bytes"])
            }
            _ => return None,
        };
        let groups = core::iter::successors(Some(group.trim_end_matches('/')), |group| {
            group.rfind('/').map(|end| &group[..end])
        });
        groups.flat_map(|group| files.map(|file| number(&[root, mount, group, "/", file]))).flatten().min()
    });
    limits.min()
}

/// The number in the file of this name; `max` is none.
pub(crate) fn number(name: &[&str]) -> Option<u64> {
    read(name, &mut [0; 32])?.trim().parse().ok()
}

/// The beginning of the file whose name these are the parts of, by one read.
fn read<'a>(name: &[&str], text: &'a mut [u8]) -> Option<&'a str> {
    let (mut bytes, mut len) = ([0; 1024], 0);
    for part in name {
        bytes.get_mut(len..len + part.len())?.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let read = File::open(from_utf8(&bytes[..len]).ok()?).ok()?.read(text).ok()?;
    from_utf8(&text[..read]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder of files as the kernel has them.
    struct Root(PathBuf);
    impl Root {
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
        fn least(&self, groups: &str) -> Option<u64> {
            of_groups(groups, self.0.to_str().unwrap())
        }
    }
    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_least_limit_of_a_group_and_its_ancestors_counts_in_version_two() {
        let root = Root::new(
            "two",
            &[
                ("a/b/memory.max", "max\n"),
                ("a/b/memory.high", "3000\n"),
                ("a/memory.max", "2000\n"),
                ("a/memory.high", "max\n"),
            ],
        );
        let least = |group: &str| root.least(&format!("0::{group}\n"));
        assert_eq!(["/a/b", "/a", "/", "/c"].map(least), [Some(2000), Some(2000), None, None]);
        root.put("a/b/memory.max", "1000\n");
        assert_eq!(["/a/b", "/a/b/c/d", "/a"].map(least), [Some(1000), Some(1000), Some(2000)]);
        // A container whose group is its root, which it may know by another name.
        root.put("memory.max", "500\n");
        assert_eq!(["/", "/../../elsewhere", "/a/b"].map(least), [Some(500); 3]);
    }

    #[test]
    fn the_least_limit_of_a_group_and_its_ancestors_counts_in_version_one() {
        let root = Root::new(
            "one",
            &[
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/memory.limit_in_bytes", "5000\n"),
                ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/b/memory.soft_limit_in_bytes", "4000\n"),
                // Of another controller.
                ("cpu/a/b/memory.limit_in_bytes", "1\n"),
            ],
        );
        let least = |group: &str| root.least(&format!("9:name=systemd:/\n5:cpu,memory:{group}\n0::/\n"));
        assert_eq!(["/a/b", "/a"].map(least), [Some(4000), Some(5000)]);
        assert_eq!(least("/docker/0123"), Some(9_223_372_036_854_771_712));
        assert_eq!(root.least("4:cpu:/a/b\n"), None);
        // Both versions at once.
        root.put("memory.max", "3000\n");
        assert_eq!(least("/a/b"), Some(3000));
    }

    #[test]
    fn what_is_malformed_or_cannot_be_read_limits_nothing() {
        let numbers = ["", "\n", "lots\n", "-1\n", "1e3\n", "99999999999999999999999999\n", "\u{fffd}\n"];
        for text in numbers {
            let root = Root::new("numbers", &[("a/memory.max", text), ("memory.max", "700\n")]);
            assert_eq!(root.least("0::/a\n"), Some(700), "{text:?}");
        }
        let root = Root::new("lists", &[("memory.max", "700\n"), ("a/memory.max/folder", "1\n")]);
        assert_eq!(root.least("0::/a\n"), Some(700), "a folder of this name");
        for groups in ["", "\n\n", "rubbish\n", "4:memory\n", ":\n", "4:memoryless:/a\n"] {
            assert_eq!(root.least(groups), None, "{groups:?}");
        }
        let long = format!("0::/{}\n", "x/".repeat(5000));
        assert_eq!(root.least(&long), Some(700), "a name that is too long for a path");
        assert_eq!(number(&["/nowhere/", "memory.max"]), None);
        assert_eq!(read(&["/proc/self/cgroup"], &mut []), Some(""));
    }
}

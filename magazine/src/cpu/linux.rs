//! CPU numbers and counts from Linux.

/// The CPU on which this thread runs, as a hint. Cost: 2 to 4 ns if the libc reads memory shared with the kernel,
/// otherwise a system call (0.1 us).
#[inline]
pub(super) fn current(_: u32) -> u32 {
    nix::sched::sched_getcpu().map_or(u32::MAX, |cpu| cpu as u32)
}

/// Number of CPUs that the kernel may ever bring up. Reading the number of CPUs allocates nothing.
pub(super) fn count() -> u32 {
    possible_cpus().unwrap_or_else(configured_cpus)
}

/// The highest possible CPU number of the kernel plus one, if the kernel reports it.
fn possible_cpus() -> Option<u32> {
    use std::io::Read;
    // Opening a file with a short path does not allocate.
    let mut file = std::fs::File::open("/sys/devices/system/cpu/possible").ok()?;
    let mut text = [0; 256];
    let len = file.read(&mut text).ok()?;
    highest_cpu(&text[..len])?.checked_add(1)
}

/// Returns the highest number of a list like `0-3,8,10-11`. Returns `None` if the list is malformed or lacks the final
/// line feed.
fn highest_cpu(list: &[u8]) -> Option<u32> {
    let list = core::str::from_utf8(list).ok()?.strip_suffix('\n')?;
    let mut highest = None;
    for number in list.split([',', '-']) {
        highest = highest.max(Some(number.parse::<u32>().ok()?));
    }
    highest
}

/// Number of configured CPUs, or the highest CPU in this thread's affinity mask plus one if that is larger.
/// The libc musl counts only the CPUs of the mask.
fn configured_cpus() -> u32 {
    let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_CONF).ok().flatten();
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))
        .ok()
        .and_then(|set| (0..nix::sched::CpuSet::count()).rfind(|cpu| set.is_set(*cpu).unwrap_or(false)));
    let allowed = allowed.map_or(1, |highest| highest as u32 + 1);
    count.and_then(|n| u32::try_from(n).ok()).map_or(allowed, |count| count.max(allowed))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn cpu_count_without_sysfs_follows_the_affinity_mask() {
        let highest = count() - 1;
        let mut only = nix::sched::CpuSet::new();
        only.set(highest as usize).unwrap();
        let this = nix::unistd::Pid::from_raw(0);
        // The test pins a separate, short-lived thread. A container may forbid a thread to run on some CPUs.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if nix::sched::sched_setaffinity(this, &only).is_ok() {
                    assert!(configured_cpus() > highest);
                }
            });
        });
    }
    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(highest_cpu(b"0\n"), Some(0));
        assert_eq!(highest_cpu(b"0-1\n"), Some(1));
        assert_eq!(highest_cpu(b"0-3,8,10-11\n"), Some(11));
        assert_eq!(highest_cpu(b"0-3,8,10-1"), None, "the text is truncated");
        assert_eq!(highest_cpu(b"\n"), None);
        assert_eq!(highest_cpu(b""), None);
    }
}

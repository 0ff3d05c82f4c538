//! CPU numbers and the number of CPUs, as Linux reports them.

/// Returns the number of the CPU on which this thread runs, as a hint. Cost: 2 to 4 ns if the libc reads the number
/// from memory that it shares with the kernel; otherwise a system call (0.1 us).
#[inline]
pub(super) fn current(_: u32) -> u32 {
    nix::sched::sched_getcpu().map_or(u32::MAX, |cpu| cpu as u32)
}

/// Number of CPUs that the kernel may ever bring online. The function allocates no memory.
pub(super) fn count() -> u32 {
    possible_cpus().unwrap_or_else(configured_cpus)
}

/// The kernel's highest possible CPU number plus one; `None` if the kernel does not report it.
fn possible_cpus() -> Option<u32> {
    use std::io::Read;
    // Opening a file with a short path does not allocate.
    let mut file = std::fs::File::open("/sys/devices/system/cpu/possible").ok()?;
    let mut text = [0; 256];
    let len = file.read(&mut text).ok()?;
    highest_cpu(&text[..len])?.checked_add(1)
}

/// Returns the highest number in a list such as `0-3,8,10-11`. Returns `None` if the list is malformed or does not end
/// with a line feed.
fn highest_cpu(list: &[u8]) -> Option<u32> {
    let list = core::str::from_utf8(list).ok()?.strip_suffix('\n')?;
    let mut highest = None;
    for number in list.split([',', '-']) {
        highest = highest.max(Some(number.parse::<u32>().ok()?));
    }
    highest
}

/// Number of configured CPUs, or the highest CPU number in this thread's affinity mask plus one, whichever is larger.
/// The mask is needed because musl reports only the number of CPUs in the mask as configured.
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
    fn highest_cpu_is_parsed_from_a_sysfs_list() {
        assert_eq!(highest_cpu(b"0\n"), Some(0));
        assert_eq!(highest_cpu(b"0-1\n"), Some(1));
        assert_eq!(highest_cpu(b"0-3,8,10-11\n"), Some(11));
        assert_eq!(highest_cpu(b"0-3,8,10-1"), None, "the text is truncated");
        assert_eq!(highest_cpu(b"\n"), None);
        assert_eq!(highest_cpu(b""), None);
    }
}

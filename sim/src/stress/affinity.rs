//! Which CPUs the calling thread may run on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The CPUs that the process was started on, by number; CPU 0 where the system does not say.
pub(crate) fn usable() -> Vec<usize> {
    // The main thread's affinity is asked for, because it is never changed.
    let set = sched_getaffinity(Pid::this()).unwrap_or_default();
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps the calling thread on `cpus`. If the system refuses, the thread stays where it is: no test depends
/// on it.
pub(crate) fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus {
        let _ = set.set(*cpu);
    }
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

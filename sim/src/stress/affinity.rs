//! Sets and reads the CPUs on which the calling thread may run.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Returns the numbers of the CPUs on which the process may run; CPU 0 if the system does not report them.
pub(crate) fn usable() -> Vec<usize> {
    // The main thread's affinity is read, because it never changes.
    let set = sched_getaffinity(Pid::this()).unwrap_or_default();
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps the calling thread on `cpus`. If the system refuses, the thread may run on any CPU; no test depends on keeping
/// a thread on a CPU.
pub(crate) fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus {
        let _ = set.set(*cpu);
    }
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

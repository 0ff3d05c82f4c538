//! CPUs: their number, the node of each, and the one that this thread runs on.
//!
//! The number of the current CPU is only a **hint**: the thread may migrate between reading and using it. The
//! [`Mechanism`] that performs an operation makes it sound: `rseq`, a restartable sequence, if libc and
//! kernel support it, else `claimed`. The choice is made once per process, and a layer never mixes both: a
//! claim does not exclude a restartable sequence, nor the reverse. Simulated CPUs always use the claimed
//! mechanism, with another source of the number: one OS thread can deterministically drive a thousand CPUs by
//! calling [`on_cpu`].
//!
//! **`USLAB_RSEQ=off`** in the environment forces the claimed slot (needed by a debugger that single-steps);
//! `--cfg uslab_no_rseq` leaves the sequences out of the build.
//!
//! Linux reports the CPU of a thread. On other systems, and in a build with `--cfg uslab_heap`, each thread
//! is assigned a fixed CPU number (`threads`). The claim makes that sound, although threads may share one
//! region while another region is idle.

pub(crate) mod claimed;
mod mechanism;
#[allow(dead_code, unreachable_pub, reason = "other builds have restartable sequences")]
mod no_static_words;
pub(crate) mod regions;

#[cfg(any(loom, shuttle))]
#[path = "token.rs"]
pub(crate) mod rseq;
#[cfg(all(
    not(any(loom, shuttle)),
    target_os = "linux",
    any(target_env = "gnu", target_env = "musl"),
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")),
    not(any(uslab_no_rseq, uslab_heap, miri))
))]
pub(crate) mod rseq;
#[cfg(all(
    not(any(loom, shuttle)),
    not(all(
        target_os = "linux",
        any(target_env = "gnu", target_env = "musl"),
        any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")),
        not(any(uslab_no_rseq, uslab_heap, miri))
    ))
))]
#[path = "absent.rs"]
pub(crate) mod rseq;

#[cfg(all(target_os = "linux", not(uslab_heap)))]
#[path = "linux.rs"]
mod os;
#[cfg(not(all(target_os = "linux", not(uslab_heap))))]
#[path = "threads.rs"]
mod os;

use crate::sync::{planted, thread_local};
use core::cell::Cell;
pub use mechanism::{MAX_CPUS, Mechanism};

/// Maximum number of memory nodes.
pub const MAX_NODES: u32 = 16;

/// The numbers of CPUs and memory nodes, and the source of the current CPU's number.
///
/// CPUs belong to nodes in contiguous ranges of (nearly) equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    count: u32,
    nodes: u32,
    source: Source,
    mechanism: Mechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The system, or the thread's assigned number.
    Os,
    /// The thread's last call of [`on_cpu`].
    Simulated,
}

/// The error for unsupported numbers of CPUs or nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCpus {
    cpus: u32,
    nodes: u32,
}

impl core::fmt::Display for BadCpus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.cpus == 0 || self.cpus > MAX_CPUS {
            write!(f, "{} CPUs: 1 to {MAX_CPUS} are supported", self.cpus)
        } else {
            let most = MAX_NODES.min(self.cpus);
            write!(f, "{} nodes: 1 to {most} are supported with {} CPUs", self.nodes, self.cpus)
        }
    }
}
impl core::error::Error for BadCpus {}

thread_local! {
    static CURRENT: Cell<Script> = const { Cell::new(Script::on(0)) };
}

/// A thread's CPU, and its migration.
///
/// Shipping code only uses [`Script::on`] (through [`on_cpu`]). A model sets a whole script: just before the
/// thread reads its CPU's number for the `at`-th time, it migrates from `cpu` to `then`. Each step reads the
/// number anew, so this is a migration between any two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Script {
    /// The CPU at the start.
    pub cpu: u32,
    /// The read before which the thread migrates, counted from 1; 0 is never.
    pub at: u32,
    /// The CPU after the migration.
    pub then: u32,
    /// True if a restartable sequence that reads the number there first runs up to its commit on the old CPU.
    /// The claimed slot ignores it, because it cannot be aborted.
    pub aborted: bool,
}

impl Script {
    /// Creates a script that stays on `cpu`.
    pub const fn on(cpu: u32) -> Self {
        Self { cpu, at: 0, then: 0, aborted: false }
    }
    /// All scripts with at most one migration: staying on `cpu`, and every move to another of `cpus` CPUs
    /// before one of the first `reads` reads.
    pub fn all(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let moves = (1..=reads).flat_map(move |at| {
            let elsewhere = (0..cpus).filter(move |then| *then != cpu);
            elsewhere.map(move |then| Self { cpu, at, then, aborted: false })
        });
        core::iter::once(Self::on(cpu)).chain(moves)
    }
    /// All scripts with at most one migration or abort: a restart on the same CPU or on another one.
    pub fn all_aborting(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let aborts =
            (1..=reads).flat_map(move |at| (0..cpus).map(move |then| Self { cpu, at, then, aborted: true }));
        Self::all(cpu, cpus, reads).chain(aborts)
    }
    /// Makes the calling thread follow this script.
    pub fn install(self) {
        CURRENT.with(|c| c.set(self));
    }
}

/// Sets the simulated CPU of the calling thread. Threads start on CPU 0.
pub fn on_cpu(cpu: u32) {
    Script::on(cpu).install();
}

impl Cpus {
    /// The machine's CPUs (at most [`MAX_CPUS`]), on one node. On Linux these are all CPUs that the kernel
    /// may ever bring up, elsewhere as many as the process may use at one time. If `/sys` does not list them,
    /// they are the CPUs known to the C library and in this thread's affinity; another CPU would be served
    /// without a stack.
    ///
    /// The first call chooses the process's [`Mechanism`]. It allocates nothing on Linux.
    pub fn os() -> Self {
        let count = os::count().clamp(1, MAX_CPUS);
        Self { count, nodes: 1, source: Source::Os, mechanism: rseq::mechanism() }
    }

    /// The same CPUs with the claimed slot, even if the machine supports restartable sequences.
    #[doc(hidden)]
    pub fn claimed(self) -> Self {
        Self { mechanism: Mechanism::Claimed, ..self }
    }

    /// Simulated CPUs with the token model of restartable sequences.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn by(self, mechanism: Mechanism) -> Self {
        Self { mechanism, ..self }
    }

    /// Creates `cpus` simulated CPUs on `nodes` nodes; each thread selects its CPU with [`on_cpu`].
    ///
    /// # Errors
    /// Counts of zero, more than [`MAX_CPUS`] or [`MAX_NODES`], or more nodes than CPUs.
    pub fn simulated(cpus: u32, nodes: u32) -> Result<Self, BadCpus> {
        let good = (1..=MAX_CPUS).contains(&cpus) && (1..=MAX_NODES.min(cpus)).contains(&nodes);
        // A thread's role in the counterexample trace of a model.
        #[cfg(loom)]
        crate::sync::story::roles(|| format!("CPU {}", here()));
        if good {
            Ok(Self { count: cpus, nodes, source: Source::Simulated, mechanism: Mechanism::Claimed })
        } else {
            Err(BadCpus { cpus, nodes })
        }
    }

    /// The mechanism of the CPUs' regions.
    #[inline]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }
    /// Number of this *process's* restartable sequences that were interrupted and ran again; 0 if sequences
    /// are not used.
    #[doc(hidden)]
    pub fn aborts(&self) -> u64 {
        rseq::aborts()
    }
    /// Number of CPUs with a region.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// Number of words of a table: more than CPUs if a section may read any number that the kernel uses.
    pub(crate) fn slots(&self) -> u32 {
        rseq::slots(self.count, self.mechanism)
    }
    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }
    /// The node of `cpu`; CPUs without a region count towards the last one.
    #[inline]
    pub fn node_of(&self, cpu: u32) -> u32 {
        if self.nodes == 1 {
            return 0;
        }
        planted!("a CPU beyond the table has a node" => return cpu * self.nodes / self.count);
        cpu.min(self.count - 1) * self.nodes / self.count
    }
    /// The CPU that this thread runs on, as a hint: it may be stale immediately, or not below
    /// [`count`](Self::count).
    #[inline]
    pub fn current(&self) -> u32 {
        match (self.source, self.mechanism) {
            // The word that sections read. `sched_getcpu` would return a real CPU to a thread without a
            // registration, which could never use its region.
            (Source::Os, Mechanism::Rseq) => rseq::cpu_id(),
            // If the libc has registered the thread, no call is needed.
            (Source::Os, Mechanism::Claimed) => match rseq::cpu_id() {
                cpu if cpu < self.count => cpu,
                _ => os::current(self.count),
            },
            (Source::Simulated, _) => step().0,
        }
    }
}

/// Reads the calling thread's simulated CPU: its current number, and the CPU on which the reader was aborted
/// first.
#[inline]
fn step() -> (u32, Option<u32>) {
    CURRENT.with(|c| {
        let mut script = c.get();
        let mut aborted_on = None;
        if script.at > 0 {
            script.at -= 1;
            if script.at == 0 {
                aborted_on = script.aborted.then_some(script.cpu);
                script.cpu = script.then;
            }
            c.set(script);
        }
        (script.cpu, aborted_on)
    })
}

/// The calling thread's simulated CPU, without counting as a read.
#[cfg(any(loom, shuttle))]
pub(crate) fn here() -> u32 {
    CURRENT.with(|c| c.get().cpu)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_contiguous_ranges_of_cpus() {
        let cpus = Cpus::simulated(10, 3).unwrap();
        let nodes: Vec<u32> = (0..10).map(|c| cpus.node_of(c)).collect();
        assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(cpus.node_of(5000), 2);
    }

    #[test]
    fn cpu_count_out_of_range_is_named_in_the_error() {
        let text = |c, n| Cpus::simulated(c, n).unwrap_err().to_string();
        assert_eq!(text(0, 1), "0 CPUs: 1 to 1024 are supported");
        assert_eq!(text(2000, 1), "2000 CPUs: 1 to 1024 are supported");
        assert_eq!(text(4, 0), "0 nodes: 1 to 4 are supported with 4 CPUs");
        assert_eq!(text(4, 5), "5 nodes: 1 to 4 are supported with 4 CPUs");
    }

    #[test]
    fn script_migrates_the_thread_before_it_reads_its_cpu() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        Script { cpu: 0, at: 3, then: 1, aborted: false }.install();
        assert_eq!([(); 4].map(|()| cpus.current()), [0, 0, 1, 1]);
        on_cpu(0);
        assert_eq!(cpus.current(), 0);
        assert_eq!(Script::all(1, 2, 2).count(), 3);
    }

    #[test]
    fn script_that_aborts_reports_the_aborted_step() {
        Script { cpu: 0, at: 2, then: 1, aborted: true }.install();
        assert_eq!([(); 3].map(|()| step()), [(0, None), (1, Some(0)), (1, None)]);
        on_cpu(0);
        assert_eq!(Script::all_aborting(1, 2, 2).count(), 7);
    }

    #[test]
    fn simulated_cpu_uses_the_claimed_slot() {
        assert_eq!(Cpus::simulated(2, 1).unwrap().mechanism(), Mechanism::Claimed);
        assert_eq!(Cpus::os().claimed().mechanism(), Mechanism::Claimed);
        assert_eq!(Cpus::os().mechanism(), Cpus::os().mechanism());
    }

    #[test]
    fn current_cpu_is_one_of_the_machines_cpus() {
        let cpus = Cpus::os();
        assert!(cpus.count() >= 1 && cpus.current() < cpus.count());
    }
}

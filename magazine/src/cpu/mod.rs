//! CPUs: their number, their memory nodes, and the CPU of the current thread.
//!
//! The number of the current CPU is only a **hint**, because a thread may migrate between reading the number and using
//! it. The [`Mechanism`] that an operation uses makes a stale CPU number harmless. The mechanism is `rseq` (restartable
//! sequences) if the kernel supports rseq and the process's threads can be registered. The mechanism is `claimed` on
//! all other systems. A process chooses one mechanism for all machine CPUs. A layer never mixes mechanisms, because a
//! claim does not stop another thread's restartable sequence. Simulated CPUs always use the claimed mechanism. One OS
//! thread can drive a thousand simulated CPUs deterministically by calling [`on_cpu`].
//!
//! **`USLAB_RSEQ=off`** in the environment forces the claimed mechanism, for example to single-step with a debugger.
//! `--cfg uslab_no_rseq` removes restartable sequences from the build.
//!
//! Linux reports the CPU on which a thread runs. On other systems, and with `--cfg uslab_heap`, each thread is assigned
//! a fixed CPU number (module `threads`). If CPU numbers are assigned to threads, two threads may share one region
//! while another region is idle. Sharing is safe, because each operation claims its region.

pub(crate) mod claimed;
mod mechanism;
#[allow(dead_code, unreachable_pub, reason = "only builds without restartable sequences use it")]
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

use crate::sync::thread_local;
use core::cell::Cell;
pub use mechanism::{MAX_CPUS, Mechanism};

/// Maximum number of NUMA memory nodes.
pub const MAX_NODES: u32 = 16;

/// A set of CPUs: the number of CPUs, the number of memory nodes, and where a thread's CPU number comes from.
///
/// Each node has a contiguous range of CPU numbers, and all ranges have nearly equal sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    count: u32,
    nodes: u32,
    source: Source,
    mechanism: Mechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The CPU number comes from the operating system, or was assigned to the thread.
    Os,
    /// The CPU number is the argument of the thread's last call of [`on_cpu`].
    Simulated,
}

/// The error of [`Cpus::simulated`]: the number of CPUs or nodes is not supported.
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
            write!(f, "{} nodes: expected 1 to {most} nodes with {} CPUs", self.nodes, self.cpus)
        }
    }
}
impl core::error::Error for BadCpus {}

thread_local! {
    static CURRENT_SCRIPT: Cell<Script> = const { Cell::new(Script::on(0)) };
}

/// The simulated CPU of a thread, and at most one planned migration to another CPU.
///
/// Outside models, only [`Script::on`] is used (through [`on_cpu`]). In a model, the thread migrates from CPU `cpu` to
/// CPU `then` just before its `at`-th read of the CPU number. Each step of an operation reads the CPU number again, so
/// a script can place a migration between any two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Script {
    /// The CPU on which the thread starts.
    pub cpu: u32,
    /// The thread migrates just before this read of the CPU number, counted from 1. With 0, the thread never migrates.
    pub at: u32,
    /// The CPU to which the thread migrates.
    pub then: u32,
    /// True if the migration aborts a restartable sequence, which has run on the old CPU up to its commit. The claimed
    /// mechanism ignores `aborted`, because it has no restartable sequences.
    pub aborted: bool,
}

impl Script {
    /// Creates a script for a thread that stays on `cpu`.
    pub const fn on(cpu: u32) -> Self {
        Self { cpu, at: 0, then: 0, aborted: false }
    }
    /// Returns all scripts with at most one migration among `cpus` CPUs. In the first of the returned scripts, the
    /// thread stays on `cpu`. In each other script, the thread migrates before one of its first `reads` reads of the
    /// CPU number.
    pub fn all(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let moves = (1..=reads).flat_map(move |at| {
            let other_cpus = (0..cpus).filter(move |then| *then != cpu);
            other_cpus.map(move |then| Self { cpu, at, then, aborted: false })
        });
        core::iter::once(Self::on(cpu)).chain(moves)
    }
    /// Returns all scripts with at most one migration or one abort. An aborted sequence may restart on the old CPU or
    /// on another CPU.
    pub fn scripts_with_one_abort(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let aborts =
            (1..=reads).flat_map(move |at| (0..cpus).map(move |then| Self { cpu, at, then, aborted: true }));
        Self::all(cpu, cpus, reads).chain(aborts)
    }
    /// Makes the calling thread follow this script.
    pub fn install(self) {
        CURRENT_SCRIPT.with(|c| c.set(self));
    }
}

/// Moves the calling thread to the simulated CPU `cpu`. Threads start on simulated CPU 0.
pub fn on_cpu(cpu: u32) {
    Script::on(cpu).install();
}

impl Cpus {
    /// Returns the machine's CPUs (at most [`MAX_CPUS`]), on a single node. On Linux, the count is the number of CPUs
    /// that the kernel may ever bring online. On other systems, the count is the number of CPUs that the process may
    /// use concurrently. If `/sys` does not list the CPUs, the count covers the CPUs that the C library reports and the
    /// CPUs in this thread's affinity mask. A thread on a CPU whose number is not below the count bypasses the stacks.
    ///
    /// The first call chooses the [`Mechanism`] of the process. On Linux, `Cpus::os` allocates no memory.
    pub fn os() -> Self {
        let count = os::count().clamp(1, MAX_CPUS);
        Self { count, nodes: 1, source: Source::Os, mechanism: rseq::mechanism() }
    }

    /// Creates `cpus` simulated CPUs on `nodes` nodes. Each thread selects its CPU with [`on_cpu`].
    ///
    /// # Errors
    /// Returns an error if either number is 0, if `cpus` exceeds [`MAX_CPUS`], or if `nodes` exceeds [`MAX_NODES`] or
    /// `cpus`.
    pub fn simulated(cpus: u32, nodes: u32) -> Result<Self, BadCpus> {
        let is_valid = (1..=MAX_CPUS).contains(&cpus) && (1..=MAX_NODES.min(cpus)).contains(&nodes);
        // The counterexample trace names each thread by its simulated CPU.
        #[cfg(loom)]
        crate::sync::story::roles(|| format!("CPU {}", current_cpu()));
        if is_valid {
            Ok(Self { count: cpus, nodes, source: Source::Simulated, mechanism: Mechanism::Claimed })
        } else {
            Err(BadCpus { cpus, nodes })
        }
    }

    /// Returns the mechanism that protects the regions of these CPUs.
    #[inline]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }
    /// Number of CPUs; each of them has a region.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// Number of per-CPU pointers in each set of a table. A set has a pointer for every CPU number that a restartable
    /// sequence may read.
    pub(crate) fn word_count(&self) -> u32 {
        rseq::word_count(self.count, self.mechanism)
    }
    /// Number of memory nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }
    /// Returns the memory node of `cpu`. A CPU without a region belongs to the last node.
    #[inline]
    pub fn node_of(&self, cpu: u32) -> u32 {
        if self.nodes == 1 {
            return 0;
        }
        cpu.min(self.count - 1) * self.nodes / self.count
    }
    /// Returns the number of the CPU on which this thread runs, as a hint. The result may be stale, and it may be
    /// [`count`](Self::count) or higher.
    #[inline]
    pub fn current(&self) -> u32 {
        match (self.source, self.mechanism) {
            // Restartable sequences read this CPU number. For an unregistered thread, `sched_getcpu` returns the number
            // of a region that the thread cannot use.
            (Source::Os, Mechanism::Rseq) => rseq::cpu_id(),
            // For a thread that the libc has registered, the CPU number is in memory, so no system call is
            // needed.
            (Source::Os, Mechanism::Claimed) => match rseq::cpu_id() {
                cpu if cpu < self.count => cpu,
                _ => os::current(self.count),
            },
            (Source::Simulated, _) => read_scripted_cpu().0,
        }
    }
}

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl Cpus {
    /// Returns the same CPUs, but with the claimed mechanism even if the machine supports restartable sequences.
    pub fn claimed(self) -> Self {
        Self { mechanism: Mechanism::Claimed, ..self }
    }

    /// Returns the same simulated CPUs with another mechanism. Models select the token model of restartable sequences
    /// this way.
    #[cfg(any(loom, shuttle))]
    pub fn with_mechanism(self, mechanism: Mechanism) -> Self {
        Self { mechanism, ..self }
    }

    /// Number of times that a restartable sequence restarted in this *process*; 0 with the claimed mechanism.
    pub fn aborts(&self) -> u64 {
        rseq::aborts()
    }
}

/// Reads the CPU number of the calling thread, as its script determines it. If the script aborts a restartable sequence
/// at this read, also returns the CPU on which the sequence ran.
#[inline]
fn read_scripted_cpu() -> (u32, Option<u32>) {
    CURRENT_SCRIPT.with(|c| {
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

/// Returns the simulated CPU of the calling thread, without counting as a read of the CPU number.
#[cfg(any(loom, shuttle))]
pub(crate) fn current_cpu() -> u32 {
    CURRENT_SCRIPT.with(|c| c.get().cpu)
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
    fn invalid_cpu_count_is_named_in_the_error() {
        let text = |c, n| Cpus::simulated(c, n).unwrap_err().to_string();
        assert_eq!(text(0, 1), "0 CPUs: 1 to 1024 are supported");
        assert_eq!(text(2000, 1), "2000 CPUs: 1 to 1024 are supported");
        assert_eq!(text(4, 0), "0 nodes: expected 1 to 4 nodes with 4 CPUs");
        assert_eq!(text(4, 5), "5 nodes: expected 1 to 4 nodes with 4 CPUs");
    }

    #[test]
    fn scripted_migration_happens_before_the_given_cpu_read() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        Script { cpu: 0, at: 3, then: 1, aborted: false }.install();
        assert_eq!([(); 4].map(|()| cpus.current()), [0, 0, 1, 1]);
        on_cpu(0);
        assert_eq!(cpus.current(), 0);
        assert_eq!(Script::all(1, 2, 2).count(), 3);
    }

    #[test]
    fn script_that_aborts_a_sequence_reports_its_cpu() {
        Script { cpu: 0, at: 2, then: 1, aborted: true }.install();
        assert_eq!([(); 3].map(|()| read_scripted_cpu()), [(0, None), (1, Some(0)), (1, None)]);
        on_cpu(0);
        assert_eq!(Script::scripts_with_one_abort(1, 2, 2).count(), 7);
    }

    #[test]
    fn simulated_cpus_use_claimed_slots() {
        assert_eq!(Cpus::simulated(2, 1).unwrap().mechanism(), Mechanism::Claimed);
        assert_eq!(Cpus::os().claimed().mechanism(), Mechanism::Claimed);
        assert_eq!(Cpus::os().mechanism(), Cpus::os().mechanism());
    }

    #[test]
    fn current_cpu_is_below_the_cpu_count() {
        let cpus = Cpus::os();
        assert!(cpus.count() >= 1 && cpus.current() < cpus.count());
    }
}

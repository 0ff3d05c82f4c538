//! CPUs: their number, their memory nodes, and the CPU of the current thread.
//!
//! The number of the current CPU is only a **hint**: a thread may migrate between reading and using the
//! number. The [`Mechanism`] of an operation makes a stale CPU number harmless. The mechanism is `rseq`
//! (restartable sequences) if the libc and the kernel support it, and `claimed` otherwise. A process chooses
//! one mechanism. A layer never mixes mechanisms, because claiming a region does not stop a restartable
//! sequence. Simulated CPUs always use the claimed mechanism. One OS thread can drive a thousand simulated
//! CPUs deterministically by calling [`on_cpu`].
//!
//! **`USLAB_RSEQ=off`** in the environment forces the claimed slot, for example for a debugger that single-steps.
//! `--cfg uslab_no_rseq` removes restartable sequences from the build.
//!
//! Linux reports the CPU of a thread. Other systems, and builds with `--cfg uslab_heap`, assign each thread a
//! fixed CPU number (`threads`). With assigned CPU numbers, two threads may share one region while another
//! region is idle. Two threads can share a region safely, because each operation claims the region.

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

/// Maximum number of memory nodes.
pub const MAX_NODES: u32 = 16;

/// The numbers of CPUs and memory nodes, and the source of the current CPU number.
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
    /// The number from the operating system, or the number assigned to the thread.
    Os,
    /// The number from the thread's last call of [`on_cpu`].
    Simulated,
}

/// Error for an unsupported number of CPUs or nodes.
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
    static CURRENT: Cell<Script> = const { Cell::new(Script::on(0)) };
}

/// A thread's simulated CPU and planned migration.
///
/// Shipping code only uses [`Script::on`] (through [`on_cpu`]). In a model, the thread migrates from `cpu` to `then`
/// just before its `at`-th read of the CPU number. Each step of an operation reads the CPU number again, so a script
/// can place a migration between any two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Script {
    /// The thread's CPU at the start.
    pub cpu: u32,
    /// The migration precedes this read of the CPU number, counted from 1; 0 disables the migration.
    pub at: u32,
    /// The thread's CPU after the migration.
    pub then: u32,
    /// True if the migration aborts a restartable sequence that has run on the old CPU up to its commit. The
    /// claimed slot ignores `aborted`, because a thread with a claim cannot be aborted.
    pub aborted: bool,
}

impl Script {
    /// Creates a script that stays on `cpu`.
    pub const fn on(cpu: u32) -> Self {
        Self { cpu, at: 0, then: 0, aborted: false }
    }
    /// Returns all scripts with at most one migration. One script stays on `cpu`; each other script moves to
    /// another of `cpus` CPUs before one of the first `reads` reads.
    pub fn all(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let moves = (1..=reads).flat_map(move |at| {
            let other_cpus = (0..cpus).filter(move |then| *then != cpu);
            other_cpus.map(move |then| Self { cpu, at, then, aborted: false })
        });
        core::iter::once(Self::on(cpu)).chain(moves)
    }
    /// Returns all scripts with at most one migration or abort. An aborted sequence restarts on the old CPU
    /// or on another CPU.
    pub fn all_aborting(cpu: u32, cpus: u32, reads: u32) -> impl Iterator<Item = Self> + Clone {
        let aborts =
            (1..=reads).flat_map(move |at| (0..cpus).map(move |then| Self { cpu, at, then, aborted: true }));
        Self::all(cpu, cpus, reads).chain(aborts)
    }
    /// Makes the calling thread follow the script.
    pub fn install(self) {
        CURRENT.with(|c| c.set(self));
    }
}

/// Sets the simulated CPU of the calling thread. Threads start on simulated CPU 0.
pub fn on_cpu(cpu: u32) {
    Script::on(cpu).install();
}

impl Cpus {
    /// The machine's CPUs (at most [`MAX_CPUS`]), on one node. On Linux, the count is the number of CPUs that
    /// the kernel may ever bring up. On other systems, the count is the number of CPUs that the process may
    /// use concurrently. If `/sys` has no list of CPUs, the count includes the CPUs that the C library knows
    /// and the CPUs in this thread's affinity mask. A thread on a CPU beyond the count bypasses the stacks.
    ///
    /// The first call chooses the process's [`Mechanism`]. On Linux, `Cpus::os` allocates nothing.
    pub fn os() -> Self {
        let count = os::count().clamp(1, MAX_CPUS);
        Self { count, nodes: 1, source: Source::Os, mechanism: rseq::mechanism() }
    }

    /// Creates `cpus` simulated CPUs on `nodes` nodes. Each thread selects its CPU with [`on_cpu`].
    ///
    /// # Errors
    /// Returns an error if a count is zero or exceeds [`MAX_CPUS`] or [`MAX_NODES`], or if there are more
    /// nodes than CPUs.
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

    /// The mechanism of the CPUs' regions.
    #[inline]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }
    /// Number of CPUs with a region.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// Number of per-CPU pointers in each set of a table: one for each CPU number that a restartable sequence
    /// may read.
    pub(crate) fn word_count(&self) -> u32 {
        rseq::word_count(self.count, self.mechanism)
    }
    /// Number of memory nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }
    /// Returns the node of `cpu`. A CPU without a region belongs to the last node.
    #[inline]
    pub fn node_of(&self, cpu: u32) -> u32 {
        if self.nodes == 1 {
            return 0;
        }
        cpu.min(self.count - 1) * self.nodes / self.count
    }
    /// The CPU on which this thread runs, as a hint. The number may be stale, and it may be
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
            (Source::Simulated, _) => next_cpu_read().0,
        }
    }
}

/// Functions for the other crates of this allocator, which may change in any version.
#[doc(hidden)]
impl Cpus {
    /// Returns the CPUs with the claimed slot as mechanism, even if the machine supports restartable sequences.
    pub fn claimed(self) -> Self {
        Self { mechanism: Mechanism::Claimed, ..self }
    }

    /// Returns simulated CPUs that use the token model of restartable sequences.
    #[cfg(any(loom, shuttle))]
    pub fn with_mechanism(self, mechanism: Mechanism) -> Self {
        Self { mechanism, ..self }
    }

    /// Number of restarts of restartable sequences in this *process*; 0 with the claimed mechanism.
    pub fn aborts(&self) -> u64 {
        rseq::aborts()
    }
}

/// Reads the calling thread's simulated CPU. Also returns the CPU of an aborted sequence, if the script
/// aborts a sequence at this read.
#[inline]
fn next_cpu_read() -> (u32, Option<u32>) {
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

/// Returns the simulated CPU of the calling thread, without counting a read of the script.
#[cfg(any(loom, shuttle))]
pub(crate) fn current_cpu() -> u32 {
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
    fn invalid_cpu_count_is_named_in_the_error() {
        let text = |c, n| Cpus::simulated(c, n).unwrap_err().to_string();
        assert_eq!(text(0, 1), "0 CPUs: 1 to 1024 are supported");
        assert_eq!(text(2000, 1), "2000 CPUs: 1 to 1024 are supported");
        assert_eq!(text(4, 0), "0 nodes: expected 1 to 4 nodes with 4 CPUs");
        assert_eq!(text(4, 5), "5 nodes: expected 1 to 4 nodes with 4 CPUs");
    }

    #[test]
    fn script_migrates_the_thread_before_the_given_cpu_read() {
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
        assert_eq!([(); 3].map(|()| next_cpu_read()), [(0, None), (1, Some(0)), (1, None)]);
        on_cpu(0);
        assert_eq!(Script::all_aborting(1, 2, 2).count(), 7);
    }

    #[test]
    fn simulated_cpus_use_the_claimed_mechanism() {
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

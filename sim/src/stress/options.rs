//! The options of a stress run.

use super::harm::{FaultSpec, FreedObjectHook};
use super::workload::Workload;
use anyhow::bail;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use uslab_magazine::sync::AtomicBool;

/// The options of a stress run.
#[derive(Clone)]
pub struct Options {
    /// The duration, if the run is limited by time.
    pub seconds: Option<f64>,
    /// The number of operations, if the run is limited by operations. A run without both limits takes [`SECONDS`]; a
    /// run with both ends at the first limit.
    pub operations: Option<u64>,
    /// The number of threads that run at the same time; by default four for each CPU.
    pub threads: Option<u32>,
    /// The seed of the threads' decisions.
    pub seed: u64,
    /// The rules for refusing allocations.
    pub faults: Option<FaultSpec>,
    /// The workloads of the threads; an empty list means all workloads.
    pub workloads: Vec<Workload>,
    /// A flag with which another thread ends the run early.
    pub interrupted: Arc<AtomicBool>,
    /// A function that corrupts objects, for tests of the checks.
    #[doc(hidden)]
    pub saboteur: Option<FreedObjectHook>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("seconds", &self.seconds)
            .field("operations", &self.operations)
            .field("threads", &self.threads)
            .field("seed", &self.seed)
            .field("faults", &self.faults)
            .field("workloads", &self.workloads)
            .finish_non_exhaustive()
    }
}

/// The duration of a run without a limit, in seconds.
pub const SECONDS: f64 = 10.0;
const MAX_THREADS: u32 = 4096;
/// The longest duration of a run in seconds: 30 days.
const MAX_SECONDS: f64 = 30.0 * 86_400.0;
/// The number of rounds in a run; each round ends with a census.
pub(super) const ROUNDS: u32 = 8;
impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: None,
            operations: None,
            threads: None,
            seed: 0,
            faults: None,
            workloads: Vec::new(),
            interrupted: Arc::new(AtomicBool::new(false)),
            saboteur: None,
        }
    }
}

impl Options {
    /// Returns the number of threads that run at the same time.
    pub(super) fn threads(&self) -> anyhow::Result<u16> {
        let threads = match self.threads {
            Some(threads) => threads,
            None => {
                let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
                u32::try_from(cpus).unwrap_or(MAX_THREADS).saturating_mul(4).clamp(4, MAX_THREADS)
            }
        };
        match u16::try_from(threads) {
            Ok(seats) if (1..=MAX_THREADS).contains(&threads) => Ok(seats),
            _ => bail!("--threads {threads}: expected 1 to {MAX_THREADS}"),
        }
    }
    pub(super) fn duration(&self) -> anyhow::Result<Option<Duration>> {
        match self.seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= MAX_SECONDS) => {
                bail!("--seconds {seconds}: expected more than 0, at most {MAX_SECONDS}")
            }
            Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
            None if self.operations.is_some() => Ok(None),
            None => Ok(Some(Duration::from_secs_f64(SECONDS))),
        }
    }
}

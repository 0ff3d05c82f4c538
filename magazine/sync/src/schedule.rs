//! Runs scenarios under shuttle, with many random schedules and many PCT schedules.
//!
//! A scenario has three or four threads and tens of operations, so it is too large for an exhaustive model. PCT
//! (Burckhardt et al., ASPLOS 2010) has a known probability of detecting a bug that depends on the order of
//! [`PCT_DEPTH`] steps. Random schedules detect some bugs that PCT misses, but with an unknown probability. Random and
//! PCT schedules use fixed seeds, so that a failure can be repeated.
//!
//! The function [`once`] runs a single schedule, which is determined by a seed. A simulation can derive its input from
//! the same seed.

pub use crate::execution::plant;
#[doc(hidden)]
pub use crate::execution::{catch, has_bug, reset_thread_counts, shard, threads};

use crate::execution::{panic_text, reset_counts};
use crate::shard::Shard;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Number of ordering constraints that a PCT schedule enforces (the bug depth).
const PCT_DEPTH: usize = 3;
/// The first seed, for random and PCT schedules.
const SEED: u64 = 1;
/// Number of schedules of each kind that one seed determines. A shard runs all schedules of the seeds that belong to
/// it.
const SCHEDULES_PER_SEED: usize = 50;
/// Number of seeds that are tried to detect a planted bug. Several seeds are needed, because a planted bug can cause
/// different failures, and the first failure may have an unexpected message.
const SEEDS: u64 = 20;
/// Size in bytes of the call stack of a scenario's thread.
const STACK_BYTES: usize = 256 << 10;

/// A failed schedule: its number, counted from 1, and its panic.
type Failure = (u64, Box<dyn Any + Send>);

/// Runs `f` under all schedules that `scheduler` generates. Returns the number of schedules, or the failure.
fn explore<S: Scheduler + 'static>(
    scheduler: S,
    f: Arc<impl Fn() + Send + Sync + 'static>,
) -> Result<u64, Failure> {
    let config = config();
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        shuttle::Runner::new(scheduler, config).run(move || {
            counted.fetch_add(1, Relaxed);
            reset_counts();
            f();
        })
    }));
    let count = count.load(Relaxed);
    outcome.map(|_| count).map_err(|panic| (count, panic))
}

/// Runs `f` once, under the schedule that `seed` determines, for at most `steps` steps.
///
/// # Errors
/// If `f` panics, returns the message and the location of the panic as an error. Calling [`end`] is not an error.
pub fn once(seed: u64, steps: usize, f: impl Fn() + Send + Sync + 'static) -> Result<(), String> {
    static PANIC_HOOK_SETUP: std::sync::Once = std::sync::Once::new();
    PANIC_HOOK_SETUP.call_once(|| {
        // shuttle's panic hook would report every failure, so it is installed first and then replaced.
        shuttle::Runner::new(SeededSchedule::new(0), config()).run(|| ());
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match PANIC_HOOK_IS_SILENT.get() {
            true => FAILED_LOCATION.set(panic.location().map(ToString::to_string)),
            false => others(panic),
        }));
    });
    (
        EXCLUSIVE_TASK.set(None),
        EXECUTION_ENDED.set(false),
        FAILED_LOCATION.set(None),
        PANIC_HOOK_IS_SILENT.set(true),
    );
    let mut config = config();
    config.max_steps = shuttle::MaxSteps::FailAfter(steps);
    let run = || shuttle::Runner::new(SeededSchedule::new(seed), config).run(move || (reset_counts(), f()).1);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    PANIC_HOOK_IS_SILENT.set(false);
    let place = || FAILED_LOCATION.take().map(|place| format!(", at {place}")).unwrap_or_default();
    outcome.map(drop).map_err(|panic| panic_text(&*panic).to_owned() + &place())
}

/// Stops all other threads of the execution, as a `fork` does in the child. After `alone`, the execution fails if the
/// calling thread waits for another thread. The calling thread must finally call [`end`].
pub fn alone() {
    EXCLUSIVE_TASK.set(Some(shuttle::current::me()));
}

/// Returns `true` if [`alone`] was called in this execution.
pub fn is_alone() -> bool {
    EXCLUSIVE_TASK.get().is_some()
}

/// Ends the execution immediately, regardless of what other threads are doing.
pub fn end() -> ! {
    EXECUTION_ENDED.set(true);
    loop {
        shuttle::thread::yield_now();
    }
}

std::thread_local! {
    static EXCLUSIVE_TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
    static EXECUTION_ENDED: Cell<bool> = const { Cell::new(false) };
    /// True while [`once`] runs. While [`once`] runs, the panic hook is silent, because [`once`] returns panics as
    /// errors.
    static PANIC_HOOK_IS_SILENT: Cell<bool> = const { Cell::new(false) };
    static FAILED_LOCATION: Cell<Option<String>> = const { Cell::new(None) };
}

struct SeededSchedule {
    rng: Rng,
    kind: Kind,
    begun: bool,
}
enum Kind {
    /// At each step, the current thread usually continues. Another thread runs with a probability of 1 in `n`.
    Sticky(u64),
    /// PCT for an execution of unknown length: the thread with the highest priority always runs. At each step, the
    /// running thread gets the lowest priority with a probability of 1 in `n`.
    Priorities(u64, Vec<u64>),
}

impl SeededSchedule {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let kind = match rng.below(8) {
            0..=1 => Kind::Sticky(1),
            kind @ 2..=5 => Kind::Sticky(1 << kind),
            _ => Kind::Priorities([30, 100, 300, 1000][rng.below(4) as usize], Vec::new()),
        };
        Self { rng, kind, begun: false }
    }
}

impl Scheduler for SeededSchedule {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!core::mem::replace(&mut self.begun, true)).then(|| Schedule::new(0))
    }
    fn next_task(&mut self, runnable: &[&Task], now: Option<TaskId>, yields: bool) -> Option<TaskId> {
        if EXECUTION_ENDED.get() {
            return None;
        }
        let ids = || runnable.iter().map(|task| task.id());
        if let Some(alone) = EXCLUSIVE_TASK.get() {
            assert!(ids().any(|id| id == alone), "the only running thread waits for another thread");
            return Some(alone);
        }
        let others = ids().filter(|id| Some(*id) != now).count() as u64;
        let now = now.filter(|now| ids().any(|id| id == *now));
        match &mut self.kind {
            Kind::Sticky(stay) => match now {
                Some(now) if others == 0 || !yields && self.rng.below(*stay) > 0 => Some(now),
                now => {
                    let others: Vec<_> = ids().filter(|id| !yields || Some(*id) != now).collect();
                    Some(others[self.rng.below(others.len() as u64) as usize])
                }
            },
            Kind::Priorities(stay, priorities) => {
                for id in ids().map(usize::from) {
                    while priorities.len() <= id {
                        // New threads get priorities above all lowered priorities.
                        priorities.push(self.rng.next() | 1 << 63);
                    }
                }
                if let Some(now) = now.map(usize::from)
                    && (yields || self.rng.below(*stay) == 0)
                {
                    priorities[now] = priorities.iter().min().copied().unwrap_or(0) - 1;
                }
                ids().max_by_key(|id| priorities[usize::from(*id)])
            }
        }
    }
    fn next_u64(&mut self) -> u64 {
        self.rng.next()
    }
}

/// The SplitMix64 random number generator (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator with the given seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// Returns the next random number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Returns the next random number in the range `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    // A seed describes a failed schedule more briefly than shuttle's encoded schedule.
    config.failure_persistence = shuttle::FailurePersistence::None;
    config
}

fn random_scheduler(seed: u64, runs: usize) -> RandomScheduler {
    RandomScheduler::new_from_seed(seed, runs)
}
fn pct_scheduler(seed: u64, runs: usize) -> PctScheduler {
    PctScheduler::new_from_seed(seed, PCT_DEPTH, runs)
}

/// Returns a number in the range `0..n`, which the schedule chooses.
pub fn choose(n: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// Runs the scenario `f` under `runs` random schedules and `runs` PCT schedules. The scenario's name begins with the
/// properties that the scenario checks.
///
/// The function prints one line: `SCHEDULES name | threads | random | pct | depth | time`.
///
/// # Panics
/// Panics if `f` fails under any schedule.
pub fn schedules(name: &str, runs: usize, f: impl Fn() + Send + Sync + 'static) {
    explore_share(name, runs, f, Shard::WHOLE_SHARD);
}

/// Runs a scenario as [`schedules`] does, or only with the seeds that belong to one shard.
fn explore_share(name: &str, runs: usize, f: impl Fn() + Send + Sync + 'static, shard: Shard) {
    let (start, f) = (Instant::now(), Arc::new(f));
    reset_thread_counts();
    let seeds = shard.items(runs.div_ceil(SCHEDULES_PER_SEED) as u64);
    if seeds.is_empty() {
        return;
    }
    let shown = |kind: &str, seed: u64, outcome: Result<u64, Failure>| {
        outcome.unwrap_or_else(|(n, panic)| {
            println!("{name}: {kind} schedule {n} of seed {seed} fails");
            resume_unwind(panic)
        })
    };
    let (mut randoms, mut pcts) = (0, 0);
    for block in seeds {
        let (seed, runs) =
            (SEED + block, (runs - block as usize * SCHEDULES_PER_SEED).min(SCHEDULES_PER_SEED));
        randoms += shown("random", seed, explore(random_scheduler(seed, runs), f.clone()));
        pcts += shown("PCT", seed, explore(pct_scheduler(seed, runs), f.clone()));
    }
    let share = if shard == Shard::WHOLE_SHARD { String::new() } else { format!(" | share {shard}") };
    println!(
        "SCHEDULES {name} | threads {} | random {randoms} | pct {pcts} | depth {PCT_DEPTH}{share} | {:.2?}",
        threads(),
        start.elapsed()
    );
}

/// Plants the bug `bug`, and asserts that the scenario then fails with a message that contains `expected`. The search
/// runs at most `runs` schedules of each kind for each seed. The argument `property` names the property that the bug
/// breaks, and is printed in the result row.
///
/// # Panics
/// Panics if the scenario passes although the bug is planted, or fails only with unexpected messages.
pub fn assert_caught(
    bug: &'static str,
    property: &str,
    runs: usize,
    expected: &'static str,
    f: impl Fn() + Send + Sync + 'static,
) {
    let f = Arc::new(f);
    catch(bug, property, "schedule", expected, move || {
        let (mut schedules, mut other) = (0, None);
        for seed in SEED..SEED + SEEDS {
            let outcome = explore(random_scheduler(seed, runs), f.clone()).and_then(|randoms| {
                let pcts = explore(pct_scheduler(seed, runs), f.clone());
                pcts.map(|n| randoms + n).map_err(|(n, panic)| (randoms + n, panic))
            });
            match outcome {
                Ok(more) => schedules += more,
                Err((n, panic)) => {
                    schedules += n;
                    let text = panic_text(&*panic).to_owned();
                    if text.contains(expected) {
                        return Err((schedules, text));
                    }
                    other = Some(text);
                }
            }
        }
        other.map_or(Ok(schedules), |text| Err((schedules, text)))
    });
}

/// How shuttle runs a scenario in [`scenarios!`](crate::scenarios): the number of schedules of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Schedules(pub usize);

impl Schedules {
    /// Maximum number of schedules of each kind, per seed, that are tried to detect a planted bug.
    const MAX_SCHEDULES_PER_BUG: usize = 5000;

    /// Runs the scenario as [`schedules`] does, or only the shard that the environment variable `SHARD` selects. If the
    /// environment contains `SCHEDULES=10`, ten times as many schedules run.
    ///
    /// # Panics
    /// Panics like [`schedules`], or if `SCHEDULES` is not a number.
    pub fn run(self, name: &str, f: impl Fn() + Send + Sync + 'static) {
        let times = std::env::var("SCHEDULES").map_or(1, |asked| match asked.parse() {
            Ok(times @ 1..) => times,
            _ => panic!("SCHEDULES={asked}: expected a factor, 1 or more"),
        });
        explore_share(name, self.0 * times, f, shard().unwrap_or(Shard::WHOLE_SHARD));
    }
    /// Asserts that the scenario detects a planted bug: see [`assert_caught`]. If the work is divided into shards, only
    /// one shard tests each planted bug.
    pub fn bug(
        self,
        bug: &'static str,
        property: &str,
        expected: &'static str,
        f: impl Fn() + Send + Sync + 'static,
    ) {
        if has_bug(bug, property) {
            assert_caught(bug, property, self.0.min(Self::MAX_SCHEDULES_PER_BUG), expected, f);
        }
    }
}

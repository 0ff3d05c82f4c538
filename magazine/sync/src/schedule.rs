//! How a scenario is run: under many random and many PCT schedules.
//!
//! A scenario is larger than what a model can exhaust: three or four threads, tens of operations. PCT (Burckhardt et al.,
//! ASPLOS 2010) finds a bug that needs [`DEPTH`] steps in a certain order with a known probability; random schedules have
//! no such bound, and find other ones. Both begin with fixed seeds, so a run that fails fails again.

pub use crate::execution::plant;

use crate::execution::{begins, catch, forget_threads, has_bug, shard, text, threads};
use crate::shard::Shard;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The steps whose order a PCT schedule fixes.
const DEPTH: usize = 3;
/// Of both kinds of schedules.
const SEED: u64 = 1;
/// Schedules of a kind that follow from one seed; those behind them are of the next one. Shares are of whole seeds.
const OF_SEED: usize = 50;
/// A bug shows in many ways, and which one a schedule meets first changes with the code: so many seeds are tried for the
/// expected one.
const SEEDS: u64 = 20;
/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;

/// Which schedule failed, counted from 1, and how.
type Failure = (u64, Box<dyn Any + Send>);

/// Runs `f` under all schedules of one kind. How many there were, or the failure.
fn explore<S: Scheduler + 'static>(
    scheduler: S,
    f: Arc<impl Fn() + Send + Sync + 'static>,
) -> Result<u64, Failure> {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.silence_warnings = true;
    // Seeds say it in fewer words.
    config.failure_persistence = shuttle::FailurePersistence::None;
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        shuttle::Runner::new(scheduler, config).run(move || {
            counted.fetch_add(1, Relaxed);
            begins();
            f();
        })
    }));
    let count = count.load(Relaxed);
    outcome.map(|_| count).map_err(|panic| (count, panic))
}

fn random(seed: u64, runs: usize) -> RandomScheduler {
    RandomScheduler::new_from_seed(seed, runs)
}
fn pct(seed: u64, runs: usize) -> PctScheduler {
    PctScheduler::new_from_seed(seed, DEPTH, runs)
}

/// One of the numbers below `n`, as the schedule has it: the choice is a part of it.
pub fn choose(n: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// Runs the scenario `f` under `runs` random schedules and as many of PCT. `name` begins with the properties that it is of.
///
/// Prints one line `SCHEDULES name | threads | random | pct | depth | time`.
///
/// # Panics
/// When `f` fails under some schedule.
pub fn schedules(name: &str, runs: usize, f: impl Fn() + Send + Sync + 'static) {
    explore_share(name, runs, f, Shard::WHOLE);
}

/// [`schedules`], or the seeds of them that a share has.
fn explore_share(name: &str, runs: usize, f: impl Fn() + Send + Sync + 'static, shard: Shard) {
    let (start, f) = (Instant::now(), Arc::new(f));
    forget_threads();
    let seeds = shard.items(runs.div_ceil(OF_SEED) as u64);
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
        let (seed, runs) = (SEED + block, (runs - block as usize * OF_SEED).min(OF_SEED));
        randoms += shown("random", seed, explore(random(seed, runs), f.clone()));
        pcts += shown("PCT", seed, explore(pct(seed, runs), f.clone()));
    }
    let share = if shard == Shard::WHOLE { String::new() } else { format!(" | share {shard}") };
    println!(
        "SCHEDULES {name} | threads {} | random {randoms} | pct {pcts} | depth {DEPTH}{share} | {:.2?}",
        threads(),
        start.elapsed()
    );
}

/// Runs a scenario with the bug `bug` planted in the code that it checks and asserts that it fails with a message that
/// contains `expected`, within `runs` schedules of either kind and of some seed. `property` names what the bug breaks, for the
/// row that this prints.
///
/// # Panics
/// When the bug survives, or when the scenario fails for other reasons only.
pub fn caught(
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
            let outcome = explore(random(seed, runs), f.clone()).and_then(|randoms| {
                let pcts = explore(pct(seed, runs), f.clone());
                pcts.map(|n| randoms + n).map_err(|(n, panic)| (randoms + n, panic))
            });
            match outcome {
                Ok(more) => schedules += more,
                Err((n, panic)) => {
                    schedules += n;
                    let text = text(&*panic).to_owned();
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

/// How shuttle runs a scenario of [`scenarios!`](crate::scenarios): under so many schedules of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Schedules(pub usize);

impl Schedules {
    /// The most of each kind and seed in which a planted bug is looked for.
    const OF_BUGS: usize = 5000;

    /// Runs it, or the share of it that `SHARD` asks for: see [`schedules`].
    pub fn run(self, name: &str, f: impl Fn() + Send + Sync + 'static) {
        explore_share(name, self.0, f, shard().unwrap_or(Shard::WHOLE));
    }
    /// Expects that it notices a planted bug, if the bug is one of the share that `SHARD` asks for: see [`caught`].
    pub fn bug(
        self,
        bug: &'static str,
        property: &str,
        expected: &'static str,
        f: impl Fn() + Send + Sync + 'static,
    ) {
        if has_bug(bug, property) {
            caught(bug, property, self.0.min(Self::OF_BUGS), expected, f);
        }
    }
}

//! Runs models under loom. Tests check that loom still explores all outcomes.
//!
//! A model that explores too few executions proves nothing.

/// The crate loom. A model must use the same version of loom as the code under test.
pub use loom;

pub use crate::execution::{current_planted_bug, plant};

use crate::execution::{catch, panic_text, reset_thread_counts, threads};
use crate::replay::{self, Run, TraceMode};
use crate::shard::Shard;
use crate::split::Part;
use core::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bound on the number of pre-emptions in an explored execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Loom explores only executions with at most this number of pre-emptions.
    Preemptions(usize),
    /// No limit: loom explores every interleaving.
    None,
}

impl Bound {
    /// Returns the bound from the environment variable `BOUND` (`1`, `2`, `3` or `none`), or `self` if the variable is
    /// unset.
    fn override_from_environment(self) -> Self {
        match std::env::var("BOUND") {
            Err(_) => self,
            Ok(s) if s == "none" => Bound::None,
            Ok(s) => match s.parse() {
                Ok(n) => Bound::Preemptions(n),
                Err(_) => panic!("BOUND={s}: expected a number of pre-emptions or `none`"),
            },
        }
    }
    fn max_preemptions(self) -> Option<usize> {
        match self {
            Bound::Preemptions(n) => Some(n),
            Bound::None => None,
        }
    }
}

pub(crate) fn builder(bound: Bound) -> loom::model::Builder {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = bound.max_preemptions();
    b.max_branches = 50_000;
    b.checkpoint_interval = 500;
    b
}

/// The time limit for exploring one model. A model fails if it reaches the time limit.
pub(crate) const MODEL_TIME_LIMIT: Duration = Duration::from_secs(600);

/// Runs `f` under every schedule that `bound` permits, and returns the number of executions.
///
/// The function prints one line: `MODEL name | threads | bound | scripts | executions | floor | time`. If the
/// environment variable `MODEL_ROWS` names a file, the line is also appended to that file.
///
/// # Panics
/// Panics if `f` fails under any schedule. If `f` fails, the function prints the counterexample trace and a command
/// that repeats the failed execution. With `STORY_JSON=file` in the environment, the trace is also written to a file.
/// With `STORY=0` in the environment, no trace is printed. Panics if fewer than `floor` executions were explored.
/// Panics if the model reached the time limit.
pub fn model(name: &str, bound: Bound, floor: u64, f: impl Fn() + Send + Sync + 'static) -> u64 {
    models(name, bound, floor, [()], move |()| f())
}

/// Runs a [`model`] once for each element of `scripts`, and returns the total number of executions. A script determines
/// what loom cannot choose, for example the step at which a thread migrates.
pub fn models<S: Clone + Send + Sync + fmt::Debug + 'static>(
    name: &str,
    bound: Bound,
    floor: u64,
    scripts: impl IntoIterator<Item = S>,
    f: impl Fn(S) + Send + Sync + 'static,
) -> u64 {
    explore(name, bound, floor, scripts, f, None)
}

/// Minimum average number of executions in a part of a split model. The maximum number of parts of a model is its
/// minimum number of executions, divided by this constant.
const MIN_PART_EXECUTIONS: u64 = 50;
/// Number of parts of a split model that each shard runs. With several small parts per shard, the running times of the
/// shards are more even.
const PARTS: u64 = 8;

/// Runs all executions of [`models`], or only the executions that belong to `shard`. If `shard` is set, the minimum
/// number of executions is not checked. Returns the number of executions that the call ran.
fn explore<S: Clone + Send + Sync + fmt::Debug + 'static>(
    name: &str,
    bound: Bound,
    floor: u64,
    scripts: impl IntoIterator<Item = S>,
    f: impl Fn(S) + Send + Sync + 'static,
    shard: Option<Shard>,
) -> u64 {
    let asked = bound;
    let bound = bound.override_from_environment();
    let scripts: Vec<S> = scripts.into_iter().collect();
    let (start, f, mut executions, runs) = (Instant::now(), Arc::new(f), 0, scripts.len());
    reset_thread_counts();
    let replayed = replay::requested_replay_file();
    let mut parts = vec![];
    for (index, script) in scripts.into_iter().enumerate() {
        let run = Run { model: name.to_owned(), bound, index, script, f: f.clone() };
        if let Some(path) = &replayed {
            if run.path_file().file_name() == path.file_name() {
                run.repeat(path.clone());
            }
            continue;
        }
        let explored = match shard {
            None => run.explore().map(|more| executions += more),
            Some(shard) => {
                let wanted = (floor / runs as u64 / MIN_PART_EXECUTIONS).clamp(1, PARTS * shard.count());
                run.explore_share(shard, wanted as usize)
                    .map(|more| parts.extend(more.into_iter().map(|part| (index, part))))
            }
        };
        if let Err(failure) = explored {
            if TraceMode::from_environment() != TraceMode::None {
                run.tell(&failure);
            }
            resume_unwind(failure.panic);
        }
    }
    if replayed.is_some() {
        return 0;
    }
    // A lower bound from the environment explores fewer executions, so the floor does not apply.
    let lowered = matches!((bound, asked), (Bound::Preemptions(b), Bound::Preemptions(a)) if b < a)
        || matches!((bound, asked), (Bound::Preemptions(_), Bound::None));
    let shown = bound.max_preemptions().map_or("none".to_owned(), |b| b.to_string());
    let head = format!("{name} | threads {} | bound {shown} | scripts {runs}", threads());
    if shard.is_some() {
        let floor = if lowered { 0 } else { floor };
        for (script, Part { number, name, executions }) in &parts {
            let number = number.map_or("late".to_owned(), |[number, all]| format!("{number}/{all}"));
            print_model_row(&format!(
                "PART {head} | executions {executions} | floor {floor} | script {script} | part {number} {name}"
            ));
        }
        return parts.iter().map(|(_, part)| part.executions).sum();
    }
    assert!(
        lowered || executions >= floor,
        "{name}: {executions} executions, but the floor is {floor}: the model collapsed to too few executions"
    );
    print_model_row(&format!(
        "MODEL {head} | executions {executions} | floor {floor} | {:.2?}",
        start.elapsed()
    ));
    executions
}

/// Prints the `MODEL` row of a model that a function other than [`models`] ran.
#[doc(hidden)]
pub fn record(name: &str, threads: u32, bound: &str, scripts: usize, executions: u64, time: Duration) {
    print_model_row(&format!(
        "MODEL {name} | threads {threads} | bound {bound} | scripts {scripts} | executions {executions} | floor {executions} | {time:.2?}"
    ));
}

/// Prints a `MODEL` row. If the environment variable `MODEL_ROWS` names a file, the row is also appended to this file.
fn print_model_row(row: &str) {
    println!("{row}");
    if let Some(path) = std::env::var_os("MODEL_ROWS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        // One `write` call keeps the row whole while another model appends to the file.
        let written = file.and_then(|mut file| file.write_all(format!("{row}\n").as_bytes()));
        assert!(written.is_ok(), "MODEL_ROWS={}: cannot append: {written:?}", path.display());
    }
}

/// Plants the bug `bug`, and asserts that the model then fails with a message that contains `expected`. The argument
/// `property` names the property that the bug breaks, and is printed in the result row. With `STORY=1` in the
/// environment, the counterexample trace is printed. With `STORY=told`, the trace omits atomic accesses.
///
/// # Panics
/// Panics if the model passes although the bug is planted, or if it fails with an unexpected message.
pub fn assert_caught<S: Clone + Send + Sync + fmt::Debug + 'static>(
    bug: &'static str,
    property: &str,
    bound: Bound,
    expected: &str,
    scripts: impl IntoIterator<Item = S> + Send + 'static,
    f: impl Fn(S) + Send + Sync + 'static,
) {
    assert_caught_within(&[bound], bug, property, expected, scripts.into_iter().collect(), f);
}

/// Does the same as [`assert_caught`], but tries several bounds, in the given order, until the model fails.
fn assert_caught_within<S: Clone + Send + Sync + fmt::Debug + 'static>(
    bounds: &[Bound],
    bug: &'static str,
    property: &str,
    expected: &str,
    scripts: Vec<S>,
    f: impl Fn(S) + Send + Sync + 'static,
) {
    let (f, bounds) = (Arc::new(f), bounds.to_vec());
    catch(bug, property, "execution", expected, move || {
        let mut executions = 0;
        let scripts = || scripts.iter().cloned().enumerate();
        for (bound, (index, script)) in
            bounds.iter().flat_map(|bound| scripts().map(|script| (*bound, script)))
        {
            let run = Run { model: bug.to_owned(), bound, index, script, f: f.clone() };
            match run.explore() {
                Ok(more) => executions += more,
                Err(failure) => {
                    if TraceMode::from_environment().traces_planted_bugs() {
                        run.show_trace(&failure);
                    }
                    return Err((executions + failure.n, panic_text(&*failure.panic).to_owned()));
                }
            }
        }
        Ok(executions)
    });
}

/// How loom runs a scenario in [`scenarios!`](crate::scenarios): the bound, and the minimum number of executions.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    bound: Bound,
    floor: u64,
}

impl Model {
    /// Creates a model that runs once, without scripts.
    pub const fn new(bound: Bound, floor: u64) -> Self {
        Self { bound, floor }
    }
    /// Adds `scripts`. A model with scripts runs once for each script. The minimum number of executions applies to all
    /// scripts together.
    pub fn each<S>(self, scripts: impl IntoIterator<Item = S>) -> Models<S> {
        Models { model: self, scripts: scripts.into_iter().collect() }
    }
    /// Runs the model as [`model`] does, or only the shard that the environment variable `SHARD` selects.
    pub fn run(self, name: &str, f: impl Fn() + Send + Sync + 'static) {
        self.each([()]).run(name, move |()| f());
    }
    /// Asserts that the model detects a planted bug: see [`assert_caught`]. If the work is divided into shards, only
    /// one shard tests each planted bug. For models with a bound of three or more pre-emptions, the search first tries
    /// a bound of two, which detects most bugs in far less time.
    pub fn bug(
        self,
        bug: &'static str,
        property: &str,
        expected: &str,
        f: impl Fn() + Send + Sync + 'static,
    ) {
        self.each([()]).bug(bug, property, expected, move |()| f());
    }
}

/// A [`Model`] that runs once for each of its scripts.
#[derive(Clone, Debug)]
pub struct Models<S> {
    model: Model,
    scripts: Vec<S>,
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static> Models<S> {
    /// Runs the model as [`models`] does, or only the shard that the environment variable `SHARD` selects.
    pub fn run(self, name: &str, f: impl Fn(S) + Send + Sync + 'static) {
        explore(name, self.model.bound, self.model.floor, self.scripts, f, crate::execution::shard());
    }
    /// Asserts that the model detects a planted bug: see [`Model::bug`].
    pub fn bug(
        self,
        bug: &'static str,
        property: &str,
        expected: &str,
        f: impl Fn(S) + Send + Sync + 'static,
    ) {
        if !crate::execution::has_bug(bug, property) {
            return;
        }
        let bound = self.model.bound;
        let bounds: &[Bound] = match bound {
            Bound::Preemptions(3..) => &[Bound::Preemptions(2), bound],
            _ => &[bound],
        };
        assert_caught_within(bounds, bug, property, expected, self.scripts, f);
    }
}

#[cfg(test)]
mod canary {
    //! Tests of the outcomes that loom must find for two threads that access one atomic. An unpatched loom 0.7.2 misses
    //! some outcomes that these tests require. The outcome tests fail if atomics no longer have the *twin* that repairs
    //! loom.
    use crate::{Arc, AtomicUsize, Ordering::*, thread};
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    type ThreadFn = fn(&AtomicUsize) -> usize;

    fn outcomes(left: ThreadFn, right: ThreadFn) -> Vec<(usize, usize)> {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let sink = seen.clone();
        loom::model::Builder::new().check(move || {
            let x = Arc::new(AtomicUsize::new(0));
            let y = x.clone();
            let t = thread::spawn(move || right(&y));
            let a = left(&x);
            let b = t.join().unwrap();
            sink.lock().unwrap().insert((a, b));
        });
        let seen = seen.lock().unwrap();
        seen.iter().copied().collect()
    }
    fn increment(x: &AtomicUsize) -> usize {
        let v = x.load(Relaxed);
        x.store(v + 1, Relaxed);
        v
    }
    fn load(x: &AtomicUsize) -> usize {
        x.load(Acquire)
    }
    fn increment_with_one_cas(x: &AtomicUsize) -> usize {
        x.load(Acquire);
        usize::from(x.compare_exchange(0, 1, AcqRel, Acquire).is_ok())
    }
    fn load_then_store(x: &AtomicUsize) -> usize {
        x.load(Acquire);
        x.store(1, Release);
        9
    }

    #[test]
    fn loom_explores_a_load_racing_with_compare_exchange() {
        assert_eq!(outcomes(load, increment_with_one_cas), [(0, 1), (1, 1)]);
    }
    #[test]
    fn loom_explores_a_load_racing_with_a_store() {
        assert_eq!(outcomes(load, load_then_store), [(0, 9), (1, 9)]);
    }
    #[test]
    fn loom_explores_two_loads_racing_with_a_store() {
        assert_eq!(outcomes(|x| load(x) * 10 + load(x), load_then_store), [(0, 9), (1, 9), (11, 9)]);
    }
    #[test]
    fn checker_finds_the_lost_unsynchronized_increment() {
        assert_eq!(outcomes(increment, increment), [(0, 0), (0, 1), (1, 0)]);
    }
    /// A lock-free stack is wrong if its only synchronisation is a counter that compare-and-swap updates. A pop may
    /// read a slot that a push has claimed but not yet written.
    #[test]
    fn linearizability_checker_rejects_a_counter_used_as_a_stack() {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let sink = seen.clone();
        loom::model::Builder::new().check(move || {
            let stack = Arc::new((AtomicUsize::new(1), [7, 0].map(AtomicUsize::new)));
            let other = stack.clone();
            let exchange =
                |count: &AtomicUsize, n, next| count.compare_exchange(n, next, AcqRel, Acquire).is_ok();
            let push = thread::spawn(move || {
                let (count, rounds) = &*other;
                let n = count.load(Acquire);
                if exchange(count, n, n + 1) {
                    rounds[n].store(8, Release);
                }
            });
            let (count, rounds) = &*stack;
            let n = count.load(Acquire);
            if exchange(count, n, n - 1) {
                sink.lock().unwrap().insert(rounds[n - 1].load(Acquire));
            }
            push.join().unwrap();
        });
        let seen: Vec<_> = seen.lock().unwrap().iter().copied().collect();
        assert_eq!(seen, [0, 7, 8], "0 is not a round");
    }
    #[test]
    fn weak_compare_exchange_fails_only_at_the_selected_call() {
        loom::model(|| {
            let x = AtomicUsize::new(0);
            crate::arm_spurious_failure(2);
            assert_eq!(x.compare_exchange_weak(0, 1, AcqRel, Acquire), Ok(0));
            assert_eq!(x.compare_exchange_weak(1, 2, AcqRel, Acquire), Err(1));
            assert_eq!(x.compare_exchange_weak(1, 2, AcqRel, Acquire), Ok(1));
        });
    }
    #[test]
    #[should_panic(expected = "collapsed")]
    fn model_with_too_few_executions_fails() {
        // The environment variable `BOUND` cannot lower a bound of 0.
        super::model("below its floor", super::Bound::Preemptions(0), 2, || ());
    }
}

//! Runs models under loom, and tests that loom still explores all outcomes.
//!
//! A model that explores too few executions proves nothing.

/// The checker loom, in the version that a model and the code under test must share.
pub use loom;

pub use crate::execution::{current_planted_bug, plant};

use crate::execution::{catch, forget_threads, panic_text, threads};
use crate::replay::{self, Run, TraceMode};
use crate::shard::Shard;
use crate::split::Part;
use core::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bound on the pre-emptions of an explored execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Loom explores at most this number of pre-emptions.
    Preemptions(usize),
    /// No bound: loom explores every interleaving.
    None,
}

impl Bound {
    /// `BOUND=1|2|3|none` in the environment overrides the model's own bound.
    fn or_environment(self) -> Self {
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

/// Time limit of one model. A model that reaches the time limit has failed.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Runs `f` under every schedule within `bound` pre-emptions and returns the number of executions.
///
/// `model` prints one line `MODEL name | threads | bound | scripts | executions | floor | time`. With `MODEL_ROWS=file`
/// in the environment, `model` also appends the line to that file.
///
/// # Panics
/// Panics if `f` fails under some schedule. The panic prints the counterexample trace and a command that repeats the
/// failed execution. `STORY_JSON=file` also writes the trace to a file, and `STORY=0` disables traces. Panics if fewer
/// than `floor` executions were explored. Panics if the time limit cut the run short.
pub fn model(name: &str, bound: Bound, floor: u64, f: impl Fn() + Send + Sync + 'static) -> u64 {
    models(name, bound, floor, [()], move |()| f())
}

/// Runs [`model`] once per element of `scripts` and adds up the executions. A script decides what loom cannot choose,
/// for example the step at which a thread migrates.
pub fn models<S: Clone + Send + Sync + fmt::Debug + 'static>(
    name: &str,
    bound: Bound,
    floor: u64,
    scripts: impl IntoIterator<Item = S>,
    f: impl Fn(S) + Send + Sync + 'static,
) -> u64 {
    explore(name, bound, floor, scripts, f, None)
}

/// Minimum number of executions in one part of a split model. The number of a model's parts is at most the
/// model's minimum number of executions divided by this constant.
const MIN_PART_EXECUTIONS: u64 = 50;
/// Number of parts for each shard. Several small parts balance the running times of the shards.
const PARTS: u64 = 8;

/// Runs all of [`models`], or one `shard` of the executions. The minimum number of executions does not apply to a
/// shard. Returns the number of executions that ran.
fn explore<S: Clone + Send + Sync + fmt::Debug + 'static>(
    name: &str,
    bound: Bound,
    floor: u64,
    scripts: impl IntoIterator<Item = S>,
    f: impl Fn(S) + Send + Sync + 'static,
    shard: Option<Shard>,
) -> u64 {
    let asked = bound;
    let bound = bound.or_environment();
    let scripts: Vec<S> = scripts.into_iter().collect();
    let (start, f, mut executions, runs) = (Instant::now(), Arc::new(f), 0, scripts.len());
    forget_threads();
    let replayed = replay::requested_file();
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
            print_row(&format!(
                "PART {head} | executions {executions} | floor {floor} | script {script} | part {number} {name}"
            ));
        }
        return parts.iter().map(|(_, part)| part.executions).sum();
    }
    assert!(
        lowered || executions >= floor,
        "{name}: {executions} executions, but the floor is {floor}: the model collapsed to too few executions"
    );
    print_row(&format!("MODEL {head} | executions {executions} | floor {floor} | {:.2?}", start.elapsed()));
    executions
}

/// Prints the `MODEL` row of a model that did not run through [`models`].
#[doc(hidden)]
pub fn record(name: &str, threads: u32, bound: &str, scripts: usize, executions: u64, time: Duration) {
    print_row(&format!(
        "MODEL {name} | threads {threads} | bound {bound} | scripts {scripts} | executions {executions} | floor {executions} | {time:.2?}"
    ));
}

/// Prints a `MODEL` row, and appends the row to the file that `MODEL_ROWS` names.
fn print_row(row: &str) {
    println!("{row}");
    if let Some(path) = std::env::var_os("MODEL_ROWS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        // One `write` call keeps the row whole while another model appends to the file.
        let written = file.and_then(|mut file| file.write_all(format!("{row}\n").as_bytes()));
        assert!(written.is_ok(), "MODEL_ROWS={}: cannot append: {written:?}", path.display());
    }
}

/// Plants the bug `bug` in the code that a model checks and asserts that the model fails with a message that contains
/// `expected`. `property` names the property that the bug breaks, for the printed row. `STORY=1` prints the
/// counterexample trace. `STORY=told` prints the trace without atomic accesses.
///
/// # Panics
/// Panics if the model passes with the bug, or fails for another reason.
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

/// Like [`assert_caught`], but tries each bound of a list until the model fails.
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

/// A loom run of a scenario in [`scenarios!`](crate::scenarios): the bound, and the minimum number of executions.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    bound: Bound,
    floor: u64,
}

impl Model {
    /// Creates a model without scripts.
    pub const fn new(bound: Bound, floor: u64) -> Self {
        Self { bound, floor }
    }
    /// Adds `scripts`. The model runs once for each script. The floor applies to the executions of all scripts
    /// together.
    pub fn each<S>(self, scripts: impl IntoIterator<Item = S>) -> Models<S> {
        Models { model: self, scripts: scripts.into_iter().collect() }
    }
    /// Runs the model, or the shard of the model that `SHARD` selects: see [`model`].
    pub fn run(self, name: &str, f: impl Fn() + Send + Sync + 'static) {
        self.each([()]).run(name, move |()| f());
    }
    /// Asserts that the model detects a planted bug: see [`assert_caught`]. Each planted bug is tested by only one
    /// shard. The search tries two pre-emptions before a higher bound, because two pre-emptions find most
    /// bugs in far less time than three.
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

/// A [`Model`] with scripts.
#[derive(Clone, Debug)]
pub struct Models<S> {
    model: Model,
    scripts: Vec<S>,
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static> Models<S> {
    /// Runs the model, or the shard of the model that `SHARD` selects: see [`models`].
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
    //! The outcomes that loom must find for two threads on one atomic. Stock loom 0.7.2 misses some outcomes. The tests
    //! in this file fail if the facade's second atomic, the twin, is lost.
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
    fn load_then_cas(x: &AtomicUsize) -> usize {
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
        assert_eq!(outcomes(load, load_then_cas), [(0, 1), (1, 1)]);
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
    /// A magazine that is only a CAS-updated counter is wrong. A pop may read a slot that a push has claimed but not
    /// filled.
    #[test]
    fn checker_rejects_a_counter_used_as_a_stack() {
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
    fn weak_compare_exchange_fails_at_the_armed_call() {
        loom::model(|| {
            let x = AtomicUsize::new(0);
            crate::weak_arm(2);
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

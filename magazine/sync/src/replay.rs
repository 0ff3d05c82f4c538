//! Replays a failed execution of a loom model, to record its counterexample trace or to run only this execution.
//!
//! Loom is deterministic: the n-th execution of a script is the same in every run. If the n-th execution of a model
//! failed, the model runs again up to that execution. Before the n-th execution, loom writes its path to a file, the
//! *checkpoint*. A path is the sequence of choices that determine an execution. Only the failed execution is recorded
//! in the trace. With `REPLAY=file`, loom starts with the path in this file, so that the failed execution runs first.
//!
//! A path also makes it possible to stop a loom exploration and to continue it later. The module `split` uses paths to
//! explore a model in parts.

use crate::check::{Bound, MODEL_TIME_LIMIT, builder};
use crate::execution::{current_planted_bug, panic_text, plant, reset_counts};
use crate::story;
use core::fmt;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A failed execution: its number, counted from 1, and its panic.
pub(crate) struct Failure {
    /// The path with which the run started; `None` if it started with the model's first execution.
    pub(crate) from: Option<String>,
    pub(crate) n: u64,
    pub(crate) panic: Box<dyn Any + Send>,
}

/// A model with one of its scripts, ready to run.
pub(crate) struct Run<S, F> {
    pub(crate) model: String,
    pub(crate) bound: Bound,
    pub(crate) index: usize,
    pub(crate) script: S,
    pub(crate) f: Arc<F>,
}

/// Which counterexample traces are printed, as selected by the environment variable `STORY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceMode {
    /// `STORY=0`: no traces are printed.
    None,
    /// `STORY` is unset: traces of failed models are printed, but no traces of planted bugs.
    Failures,
    /// `STORY=1`: traces of all failures are printed, including planted bugs.
    All,
    /// `STORY=told`: traces of all failures are printed, without atomic accesses.
    Told,
}

impl TraceMode {
    /// # Panics
    /// Panics if `STORY` is set to any other value.
    pub(crate) fn from_environment() -> Self {
        let Some(asked) = std::env::var_os("STORY") else { return Self::Failures };
        match asked.to_str() {
            Some("0") => Self::None,
            Some("1") => Self::All,
            Some("told") => Self::Told,
            _ => panic!("STORY={}: expected 0, 1 or told", asked.display()),
        }
    }
    /// Returns `true` if the traces of planted bugs are printed, too.
    pub(crate) fn traces_planted_bugs(self) -> bool {
        matches!(self, Self::All | Self::Told)
    }
}

/// Returns the path file that the environment variable `REPLAY` names.
///
/// # Panics
/// Panics if the file does not exist, because loom would then silently start with the first execution.
pub(crate) fn requested_replay_file() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("REPLAY")?);
    assert!(path.exists(), "REPLAY={}: no such file; expected a failing model's file", path.display());
    Some(path)
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static, F: Fn(S) + Send + Sync + 'static> Run<S, F> {
    /// Returns the name of the file that stores the path of a failed execution. The path file is in the directory of
    /// the test program.
    pub(crate) fn path_file(&self) -> PathBuf {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("model"));
        let name: String =
            self.model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        program.with_extension(format!("{name}.{}.replay", self.index))
    }

    /// Returns the name of a temporary path file that no other process and no other thread uses.
    fn unique_path_file(&self) -> PathBuf {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let (process, call) = (std::process::id(), CALLS.fetch_add(1, Relaxed));
        self.path_file().with_extension(format!("{process}-{call}.path"))
    }

    /// Runs all executions of the script. Returns the number of executions, or the failed execution.
    ///
    /// # Panics
    /// Panics if the run reaches the time limit.
    pub(crate) fn explore(&self) -> Result<u64, Failure> {
        self.explore_within(MODEL_TIME_LIMIT)
    }
    fn explore_within(&self, limit: Duration) -> Result<u64, Failure> {
        let (f, script) = (self.f.clone(), self.script.clone());
        let count = Arc::new(AtomicU64::new(0));
        let (counted, begun) = (count.clone(), Instant::now());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut builder = builder(self.bound);
            builder.max_duration = Some(limit);
            builder.check(move || {
                counted.fetch_add(1, Relaxed);
                reset_counts();
                f(script.clone());
            });
        }));
        let count = count.load(Relaxed);
        let cut = outcome.is_ok() && begun.elapsed() >= limit;
        assert!(
            !cut,
            "{}: stopped after {limit:?} and {count} executions, before all executions were explored",
            self.model
        );
        outcome.map(|()| count).map_err(|panic| Failure { from: None, n: count, panic })
    }

    /// Runs at most `most` executions, starting with the path `from`. Returns the number of executions that ran, and
    /// the path of the next execution, if any.
    pub(crate) fn explore_from_path(
        &self,
        from: Option<String>,
        most: u64,
    ) -> Result<(u64, Option<String>), Failure> {
        let (f, script) = (self.f.clone(), self.script.clone());
        // Another shard of the model may run concurrently.
        let path = self.unique_path_file();
        let readable = |what: &str, result: std::io::Result<()>| {
            assert!(result.is_ok(), "{}: cannot {what}: {result:?}", path.display());
        };
        _ = std::fs::remove_file(&path);
        if let Some(from) = &from {
            readable("write", std::fs::write(&path, from));
        }
        let count = Arc::new(AtomicU64::new(0));
        let (counted, read) = (count.clone(), path.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut builder = builder(self.bound);
            // loom writes the path before the execution whose number equals the checkpoint interval, and then
            // stops.
            builder.checkpoint_interval = most as usize + 1;
            builder.max_permutations = Some(most as usize + 1);
            builder.checkpoint_file = Some(path.clone());
            builder.check(move || {
                if counted.fetch_add(1, Relaxed) == 0 {
                    // loom has already read the starting path. A checkpoint file that exists after the run was written
                    // by loom.
                    _ = std::fs::remove_file(&read);
                }
                reset_counts();
                f(script.clone());
            });
        }));
        let n = count.load(Relaxed);
        if let Err(panic) = outcome {
            return Err(Failure { from, n, panic });
        }
        let next = path.exists().then(|| {
            let next = std::fs::read_to_string(&path);
            readable("read", next.as_ref().map(|_| ()).map_err(|error| error.kind().into()));
            next.unwrap_or_default()
        });
        _ = std::fs::remove_file(&path);
        Ok((n, next))
    }

    /// Prints the trace of a failed execution, and the command that repeats this execution.
    pub(crate) fn tell(&self, failure: &Failure) {
        if self.show_trace(failure) {
            println!(
                "To repeat this execution alone (STORY=told omits the steps of atomics):\nREPLAY='{}' '{}' --exact '{}' --include-ignored --nocapture",
                self.path_file().display(),
                std::env::current_exe().unwrap_or_default().display(),
                std::thread::current().name().unwrap_or("")
            );
        } else {
            println!(
                "{}: execution {} failed, but passes when it runs again, so the model is not deterministic",
                self.model, failure.n
            );
        }
    }

    /// Runs the model again up to the failed execution, saves the path of this execution, and prints its trace. The
    /// result is `true` if the execution failed again.
    pub(crate) fn show_trace(&self, failure: &Failure) -> bool {
        // Another process may print a trace of the same model concurrently.
        let own = self.unique_path_file();
        // If the path file exists, loom begins with the path in the file.
        _ = match &failure.from {
            None => std::fs::remove_file(&own),
            Some(from) => std::fs::write(&own, from),
        };
        let failed = self.print_execution(failure.n, own.clone());
        // Without the path file, the trace can still be printed, but the execution cannot be repeated alone.
        _ = std::fs::rename(own, self.path_file());
        failed
    }

    /// Runs only the execution whose path is stored in `file`.
    ///
    /// # Panics
    /// Panics if the execution fails again.
    pub(crate) fn repeat(&self, file: PathBuf) {
        let failed = self.print_execution(1, file);
        assert!(!failed, "{}: the repeated execution must fail as before", self.model);
        println!("{}: the repeated execution failed before, but passes now", self.model);
    }

    /// Runs `n` executions, starting with the path in `file` if the file exists, and prints the trace of the last one.
    /// Returns `true` if this execution failed.
    fn print_execution(&self, n: u64, file: PathBuf) -> bool {
        let (f, script, bug, asked) =
            (self.f.clone(), self.script.clone(), current_planted_bug(), TraceMode::from_environment());
        let mut builder = builder(self.bound);
        builder.checkpoint_interval = n as usize;
        builder.checkpoint_file = Some(file);
        let count = AtomicU64::new(0);
        // A panic destroys loom's thread-local state, so the replay runs on a separate thread.
        let run = move || {
            plant(bug);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                builder.check(move || {
                    match count.fetch_add(1, Relaxed) + 1 {
                        past if past > n => std::panic::panic_any(ReplayEnd),
                        this if this == n => story::begin(asked != TraceMode::Told),
                        _ => {}
                    }
                    reset_counts();
                    f(script.clone());
                });
            }));
            (story::end(), outcome.err().filter(|panic| !panic.is::<ReplayEnd>()))
        };
        let name = format!("{}, again", self.model);
        let run = std::thread::Builder::new().name(name).spawn(run).map(std::thread::JoinHandle::join);
        let Ok(Ok((story, Some(panic)))) = run else { return false };
        // A model without scripts prints no script name.
        let script = format!("{:?}", self.script);
        let title = match script.as_str() {
            "()" => self.model.to_string(),
            script => format!("{} | script {}: {script}", self.model, self.index),
        };
        let end = panic_text(&*panic);
        let told = format!("STORY {title} | execution {n}\n{story}       fails: {end}\n");
        if asked.traces_planted_bugs() {
            use std::io::Write;
            // Writes to stdout directly: the test of a planted bug passes, and libtest hides the output of passing
            // tests.
            let written = std::io::stdout().lock().write_all(told.as_bytes());
            assert!(written.is_ok(), "STORY: cannot write: {written:?}");
        } else {
            print!("{told}");
        }
        if let Some(path) = std::env::var_os("STORY_JSON") {
            let written = std::fs::write(&path, format!("{:#}\n", story.json(&title, end)));
            assert!(
                written.is_ok(),
                "STORY_JSON={}: cannot write: {written:?}",
                PathBuf::from(path).display()
            );
        }
        true
    }
}

/// The payload of the panic that ends a replay after the requested execution.
struct ReplayEnd;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(f: fn(())) -> Run<(), fn(())> {
        Run { model: "it passes".into(), bound: Bound::None, index: 0, script: (), f: Arc::new(f) }
    }

    /// Regression: if the time limit stopped a search for a planted bug, the search reported that the model does not
    /// detect the bug.
    #[test]
    #[should_panic(
        expected = "it passes: stopped after 0ns and 1 executions, before all executions were explored"
    )]
    fn exploration_stopped_by_the_time_limit_does_not_pass() {
        let two = run(|()| {
            let other = loom::thread::spawn(loom::thread::yield_now);
            loom::thread::yield_now();
            other.join().unwrap();
        });
        let _ = two.explore_within(Duration::ZERO);
    }

    #[test]
    fn passing_model_execution_prints_no_trace() {
        let run = run(|()| loom::thread::yield_now());
        assert_eq!(run.explore().map_err(|failure| failure.n), Ok(1));
        assert!(!run.show_trace(&Failure { from: None, n: 1, panic: Box::new(ReplayEnd) }));
        run.repeat(run.path_file());
    }

    /// Regression: all processes used the same path file, so a replay could start with the path of another process.
    #[test]
    fn trace_contains_no_step_of_another_process() {
        static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
        let fails = run(|()| {
            EXECUTIONS.fetch_add(1, Relaxed);
            panic!("the execution fails");
        });
        let run = Run { model: "the execution fails".into(), ..fails };
        let written = run.path_file();
        let stop = Arc::new(AtomicU64::new(0));
        let other = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while stop.load(Relaxed) == 0 {
                    std::fs::write(&written, "the path of another process").unwrap();
                }
            })
        };
        let failed =
            (0..20).all(|_| run.show_trace(&Failure { from: None, n: 1, panic: Box::new(ReplayEnd) }));
        stop.store(1, Relaxed);
        other.join().unwrap();
        assert!(failed);
        assert_eq!(EXECUTIONS.load(Relaxed), 20, "each trace belongs to one execution");
    }
}

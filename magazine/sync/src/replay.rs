//! The execution that failed, once more: with its story, and for the command that repeats it alone.
//!
//! loom is deterministic: the n-th execution of a script is always the same one. So a model that failed in its n-th runs
//! again up to there; loom then writes down the path of that execution before it runs it (its *checkpoint*, of every n-th
//! execution), and it alone is listened to. `REPLAY=file` begins with that path: its first execution is the one that failed.

use crate::check::{Bound, LIMIT, builder};
use crate::execution::{begins, plant, planted_now, text};
use crate::story;
use core::fmt;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One script of a model.
pub(crate) struct Run<S, F> {
    pub(crate) model: String,
    pub(crate) bound: Bound,
    /// Which of the model's scripts, from 0.
    pub(crate) index: usize,
    pub(crate) script: S,
    pub(crate) f: Arc<F>,
}

/// What `STORY` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// `STORY=0`: no stories.
    None,
    /// It is not set: models that fail tell theirs, and those with planted bugs do not.
    Failures,
    /// `STORY=1`: all that fail.
    All,
    /// `STORY=told`: the same, without the accesses of atomics.
    Told,
}

impl Asked {
    /// # Panics
    /// `STORY` has another value.
    pub(crate) fn now() -> Self {
        let Some(asked) = std::env::var_os("STORY") else { return Self::Failures };
        match asked.to_str() {
            Some("0") => Self::None,
            Some("1") => Self::All,
            Some("told") => Self::Told,
            _ => panic!("STORY={}: expected 0, 1 or told", asked.display()),
        }
    }
    /// Whether the story of what fails on purpose is to be told.
    pub(crate) fn all(self) -> bool {
        matches!(self, Self::All | Self::Told)
    }
}

/// What `REPLAY` asks for.
///
/// # Panics
/// There is no such file: loom would begin with the first execution instead.
pub(crate) fn asked() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("REPLAY")?);
    assert!(path.exists(), "REPLAY={}: no such file; expected what a failing model printed", path.display());
    Some(path)
}

impl<S: Clone + Send + Sync + fmt::Debug + 'static, F: Fn(S) + Send + Sync + 'static> Run<S, F> {
    /// Where the path of a failed execution is kept: beside the program.
    pub(crate) fn file(&self) -> PathBuf {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("model"));
        let name: String =
            self.model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        program.with_extension(format!("{name}.{}.replay", self.index))
    }

    /// Runs every execution. How many there were; or which one failed, counted from 1, and how.
    ///
    /// # Panics
    /// There was no time for all.
    pub(crate) fn explore(&self) -> Result<u64, (u64, Box<dyn Any + Send>)> {
        self.explore_within(LIMIT)
    }
    fn explore_within(&self, limit: Duration) -> Result<u64, (u64, Box<dyn Any + Send>)> {
        let (f, script) = (self.f.clone(), self.script.clone());
        let count = Arc::new(AtomicU64::new(0));
        let (counted, begun) = (count.clone(), Instant::now());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut builder = builder(self.bound);
            builder.max_duration = Some(limit);
            builder.check(move || {
                counted.fetch_add(1, Relaxed);
                begins();
                f(script.clone());
            });
        }));
        let count = count.load(Relaxed);
        let cut = outcome.is_ok() && begun.elapsed() >= limit;
        assert!(!cut, "{}: cut after {limit:?} and {count} executions, not ended by exhaustion", self.model);
        outcome.map(|()| count).map_err(|panic| (count, panic))
    }

    /// Tells the story of the `n`-th execution, which failed, and says how to repeat it.
    pub(crate) fn tell(&self, n: u64) {
        if self.story(n) {
            println!(
                "To repeat this execution alone (STORY=told leaves out what atomics did):\nREPLAY='{}' '{}' --exact '{}' --include-ignored --nocapture",
                self.file().display(),
                std::env::current_exe().unwrap_or_default().display(),
                std::thread::current().name().unwrap_or("")
            );
        } else {
            println!(
                "{}: execution {n} passes when it is run again: the model is not deterministic",
                self.model
            );
        }
    }

    /// Runs up to the `n`-th execution, keeps its path and tells its story. Whether it failed.
    pub(crate) fn story(&self, n: u64) -> bool {
        // loom would begin with a path that it finds.
        let _ = std::fs::remove_file(self.file());
        self.listen(n, self.file())
    }

    /// Runs the execution alone whose path lies in `file`.
    ///
    /// # Panics
    /// As the execution did; or because it passes.
    pub(crate) fn repeat(&self, file: PathBuf) {
        let failed = self.listen(1, file);
        assert!(!failed, "{}: the execution that failed fails again", self.model);
        println!("{}: the execution that failed passes now", self.model);
    }

    /// Runs up to the `n`-th execution from the path in `file`, if there is one, and tells the story of that one. Whether
    /// it failed.
    fn listen(&self, n: u64, file: PathBuf) -> bool {
        let (f, script, bug, asked) = (self.f.clone(), self.script.clone(), planted_now(), Asked::now());
        let mut builder = builder(self.bound);
        builder.checkpoint_interval = n as usize;
        builder.checkpoint_file = Some(file);
        let count = AtomicU64::new(0);
        // A thread of its own: loom's thread-local state dies with the panic.
        let run = move || {
            plant(bug);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                builder.check(move || {
                    match count.fetch_add(1, Relaxed) + 1 {
                        past if past > n => std::panic::panic_any(Passed),
                        this if this == n => story::begin(asked != Asked::Told),
                        _ => {}
                    }
                    begins();
                    f(script.clone());
                });
            }));
            (story::end(), outcome.err().filter(|panic| !panic.is::<Passed>()))
        };
        let name = format!("{}, again", self.model);
        let run = std::thread::Builder::new().name(name).spawn(run).map(std::thread::JoinHandle::join);
        let Ok(Ok((story, Some(panic)))) = run else { return false };
        let title = format!("{} | script {}: {:?}", self.model, self.index, self.script);
        let end = text(&*panic);
        let told = format!("STORY {title} | execution {n}\n{story}       fails: {end}\n");
        if asked.all() {
            use std::io::Write;
            // Past libtest's capture: the test of a planted bug passes, and what passes is not shown.
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

/// The panic that ends a run behind the execution that was asked for.
struct Passed;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(f: fn(())) -> Run<(), fn(())> {
        Run { model: "it passes".into(), bound: Bound::None, index: 0, script: (), f: Arc::new(f) }
    }

    /// A planted bug that there was no time to find was said to survive.
    #[test]
    #[should_panic(expected = "it passes: cut after 0ns and 1 executions, not ended by exhaustion")]
    fn what_was_cut_has_not_passed() {
        let two = run(|()| {
            let other = loom::thread::spawn(loom::thread::yield_now);
            loom::thread::yield_now();
            other.join().unwrap();
        });
        let _ = two.explore_within(Duration::ZERO);
    }

    #[test]
    fn what_passes_tells_no_story() {
        let run = run(|()| loom::thread::yield_now());
        assert_eq!(run.explore().map_err(|(n, _)| n), Ok(1));
        assert!(!run.story(1));
        run.repeat(run.file());
    }
}

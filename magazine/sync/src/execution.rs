//! State of the execution that loom or shuttle currently runs: the planted bug, and the number of threads.

use crate::shard::Shard;
use std::cell::Cell;
use std::panic::resume_unwind;

/// Numbers of threads that the executions of a model started.
#[derive(Clone, Copy)]
struct Threads {
    /// Number of threads that the current execution has started.
    now: u32,
    /// Largest number of threads that one execution started.
    max_threads: u32,
}

std::thread_local! {
    // Thread-local: a checker runs all threads of an execution on one OS thread.
    static THREADS: Cell<Threads> = const { Cell::new(Threads { now: 0, max_threads: 0 }) };
    static PLANTED_BUG: Cell<&'static str> = const { Cell::new("") };
    static LAST_ID: Cell<u64> = const { Cell::new(0) };
}

/// Resets the thread counts before the next model.
pub fn reset_thread_counts() {
    THREADS.set(Threads { now: 0, max_threads: 0 });
}
/// Resets the counts of one execution before the next execution.
pub(crate) fn reset_counts() {
    THREADS.set(Threads { now: 0, ..THREADS.get() });
    LAST_ID.set(0);
}
/// Returns a number that is unique in the current execution. A repeated execution gets the same numbers as before.
pub fn unique() -> u64 {
    LAST_ID.replace(LAST_ID.get() + 1)
}
pub(crate) fn count_thread() {
    let Threads { now, max_threads } = THREADS.get();
    THREADS.set(Threads { now: now + 1, max_threads: max_threads.max(now + 1) });
}
/// Returns the largest number of threads in any execution of the model, including the main thread.
pub fn threads() -> u32 {
    1 + THREADS.get().max_threads
}

/// Returns `true` if `bug` is planted in the current execution. The macro [`planted!`](crate::planted) calls this
/// function.
#[doc(hidden)]
pub fn is_planted(bug: &str) -> bool {
    PLANTED_BUG.with(|p| p.get() == bug)
}
/// Returns the name of the planted bug, or an empty string if no bug is planted.
#[cfg(loom)]
pub fn current_planted_bug() -> &'static str {
    PLANTED_BUG.get()
}
/// Plants the bug `bug` in all code that this thread runs from now on. Only tests that expect a failure call `plant`.
pub fn plant(bug: &'static str) {
    PLANTED_BUG.set(bug);
}

/// Plants the bug `bug`, and asserts that `explore` then fails with a message that contains `expected`. The function
/// `explore` returns the number of passed executions, or the number of the failed execution and its panic message. The
/// argument `unit` is the printed word for an execution. The argument `property` names the property that the bug
/// breaks.
///
/// # Panics
/// Panics if no execution fails, or if the message of the failure does not contain `expected`.
pub fn catch(
    bug: &'static str,
    property: &str,
    unit: &str,
    expected: &str,
    explore: impl FnOnce() -> Result<u64, (u64, String)> + Send + 'static,
) {
    // A panic destroys a checker's thread-local state, so the test runs on a separate thread.
    let thread = std::thread::Builder::new().name(format!("planted bug {bug}"));
    let outcome = thread.spawn(move || {
        plant(bug);
        explore()
    });
    match outcome.map(std::thread::JoinHandle::join) {
        Ok(Ok(Err((n, text)))) => {
            assert!(text.contains(expected), "planted bug {bug} failed with {text:?}, expected {expected:?}");
            println!("CAUGHT {bug} | property {property} | {unit} {n} | {expected}");
        }
        Ok(Ok(Ok(n))) => panic!("planted bug {bug} survives {n} {unit}s"),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!("{bug}: cannot start a thread: {error}"),
    }
}

/// Returns the shard that the environment variable `SHARD=I/N` selects, or `None` if it is unset.
///
/// # Panics
/// Panics if the value of `SHARD` does not have the form `I/N`.
pub fn shard() -> Option<Shard> {
    let asked = std::env::var("SHARD").ok()?;
    Some(asked.parse().unwrap_or_else(|error| panic!("SHARD={asked}: {error}")))
}

/// Returns `true` if the current shard must test the planted bug `bug`. Each pair of a bug and a property belongs to
/// exactly one shard.
pub fn has_bug(bug: &str, property: &str) -> bool {
    shard().is_none_or(|shard| shard.contains_item(&format!("{property} {bug}")))
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

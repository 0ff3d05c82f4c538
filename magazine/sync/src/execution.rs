//! The execution that a checker currently runs: the planted bug, and the number of threads.

use crate::shard::Shard;
use std::cell::Cell;
use std::panic::resume_unwind;

/// Counts of the threads that a model's executions started.
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

/// Resets the thread counts before another model.
pub fn forget_threads() {
    THREADS.set(Threads { now: 0, max_threads: 0 });
}
/// Resets the thread count before another execution.
pub(crate) fn reset_counts() {
    THREADS.set(Threads { now: 0, ..THREADS.get() });
    LAST_ID.set(0);
}
/// Returns a number that is unique in the current execution. A repeated execution gets the same numbers.
pub fn unique() -> u64 {
    LAST_ID.replace(LAST_ID.get() + 1)
}
pub(crate) fn count_thread() {
    let Threads { now, max_threads } = THREADS.get();
    THREADS.set(Threads { now: now + 1, max_threads: max_threads.max(now + 1) });
}
/// Largest number of threads in an execution of the model, including the main thread.
pub fn threads() -> u32 {
    1 + THREADS.get().max_threads
}

/// Returns `true` if `bug` is planted in the current execution; [`planted!`](crate::planted) calls it.
#[doc(hidden)]
pub fn is_planted(bug: &str) -> bool {
    PLANTED_BUG.with(|p| p.get() == bug)
}
/// Name of the planted bug; empty if no bug is planted.
#[cfg(loom)]
pub fn current_planted_bug() -> &'static str {
    PLANTED_BUG.get()
}
/// Plants a bug in all code that this thread runs from now on. Only tests that must fail call `plant`.
pub fn plant(bug: &'static str) {
    PLANTED_BUG.set(bug);
}

/// Plants `bug` and asserts that `explore` fails with a message that contains `expected`. `explore` returns
/// the number of passed executions, or the number and the panic of a failed execution. `unit` is the printed
/// word for an execution. `property` names the property that the bug breaks.
///
/// # Panics
/// Panics if no execution fails, or if the failure has another message.
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

/// The shard that the environment variable `SHARD=I/N` selects.
///
/// # Panics
/// Panics if `SHARD` is not of the form `I/N`.
pub fn shard() -> Option<Shard> {
    let asked = std::env::var("SHARD").ok()?;
    Some(asked.parse().unwrap_or_else(|error| panic!("SHARD={asked}: {error}")))
}

/// Returns `true` if the current shard tests the planted bug `bug`. Each pair of bug and property belongs to one shard.
pub fn has_bug(bug: &str, property: &str) -> bool {
    shard().is_none_or(|shard| shard.has_named(&format!("{property} {bug}")))
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

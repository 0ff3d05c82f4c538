//! The execution that a checker runs now: its planted bug, and the threads that it started.

use crate::shard::Shard;
use std::cell::Cell;
use std::panic::resume_unwind;

/// Threads that a model's executions started.
#[derive(Clone, Copy)]
struct Threads {
    /// Started by this execution so far.
    now: u32,
    /// Most that one execution started.
    most: u32,
}

std::thread_local! {
    // A checker runs all threads of an execution on one OS thread.
    static THREADS: Cell<Threads> = const { Cell::new(Threads { now: 0, most: 0 }) };
    static PLANTED: Cell<&'static str> = const { Cell::new("") };
    static UNIQUE: Cell<u64> = const { Cell::new(0) };
}

/// Resets the counts for another model.
pub fn forget_threads() {
    THREADS.set(Threads { now: 0, most: 0 });
}
/// Resets the count for another execution.
pub(crate) fn begins() {
    THREADS.set(Threads { now: 0, ..THREADS.get() });
    UNIQUE.set(0);
}
/// Returns a number that no other call in this execution gets. A repeated execution gets the same numbers.
pub fn unique() -> u64 {
    UNIQUE.replace(UNIQUE.get() + 1)
}
/// Counts one more thread of this execution.
pub(crate) fn spawned() {
    let Threads { now, most } = THREADS.get();
    THREADS.set(Threads { now: now + 1, most: most.max(now + 1) });
}
/// The most threads that an execution of the model had, including the first one.
pub fn threads() -> u32 {
    1 + THREADS.get().most
}

/// Returns `true` if the current execution has this bug: for [`planted!`](crate::planted).
#[doc(hidden)]
pub fn is_planted(bug: &str) -> bool {
    PLANTED.with(|p| p.get() == bug)
}
/// The bug that is planted now; empty without one.
#[cfg(loom)]
pub fn planted_now() -> &'static str {
    PLANTED.get()
}
/// Plants a bug in everything that this thread runs from now on: for a test that must fail. `caught` calls
/// it.
pub fn plant(bug: &'static str) {
    PLANTED.set(bug);
}

/// Plants `bug` and asserts that `explore` fails with a message that contains `expected`. `explore` returns
/// the number of executions that passed, or which one failed and how. `unit` is the word for an execution;
/// `property` names what the bug breaks.
///
/// # Panics
/// If the bug survives, or is caught for another reason.
pub fn catch(
    bug: &'static str,
    property: &str,
    unit: &str,
    expected: &str,
    explore: impl FnOnce() -> Result<u64, (u64, String)> + Send + 'static,
) {
    // A separate thread: a checker's thread-local state is lost in the panic.
    let thread = std::thread::Builder::new().name(format!("planted bug {bug}"));
    let outcome = thread.spawn(move || {
        plant(bug);
        explore()
    });
    match outcome.map(std::thread::JoinHandle::join) {
        Ok(Ok(Err((n, text)))) => {
            assert!(text.contains(expected), "{bug}: failed with {text:?}, expected {expected:?}");
            println!("CAUGHT {bug} | property {property} | {unit} {n} | {expected}");
        }
        Ok(Ok(Ok(n))) => panic!("planted bug {bug} survives {n} {unit}s"),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!("{bug}: cannot start a thread: {error}"),
    }
}

/// The shard that `SHARD=I/N` selects.
///
/// # Panics
/// If `SHARD` has any other form.
pub fn shard() -> Option<Shard> {
    let asked = std::env::var("SHARD").ok()?;
    Some(asked.parse().unwrap_or_else(|error| panic!("SHARD={asked}: {error}")))
}

/// Returns `true` if this shard tests the planted bug. Each pair of bug and property belongs to one shard.
pub fn has_bug(bug: &str, property: &str) -> bool {
    shard().is_none_or(|shard| shard.has_named(&format!("{property} {bug}")))
}

pub(crate) fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

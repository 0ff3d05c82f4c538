//! The execution that a checker runs now: the bug that is planted in it, and the threads that it started.

use crate::shard::Shard;
use std::cell::Cell;
use std::panic::resume_unwind;

/// Threads that the executions of a model started.
#[derive(Clone, Copy)]
struct Threads {
    /// By this execution so far.
    now: u32,
    /// By that with the most.
    most: u32,
}

std::thread_local! {
    // A checker runs all threads of an execution on one OS thread.
    static THREADS: Cell<Threads> = const { Cell::new(Threads { now: 0, most: 0 }) };
    static PLANTED: Cell<&'static str> = const { Cell::new("") };
    static UNIQUE: Cell<u64> = const { Cell::new(0) };
}

/// Another model begins.
pub fn forget_threads() {
    THREADS.set(Threads { now: 0, most: 0 });
}
/// An execution begins.
pub(crate) fn begins() {
    THREADS.set(Threads { now: 0, ..THREADS.get() });
    UNIQUE.set(0);
}
/// A number that no other call in this execution gets: each time that it runs the same ones.
pub fn unique() -> u64 {
    UNIQUE.replace(UNIQUE.get() + 1)
}
/// The execution starts one more thread.
pub(crate) fn spawned() {
    let Threads { now, most } = THREADS.get();
    THREADS.set(Threads { now: now + 1, most: most.max(now + 1) });
}
/// The most threads that an execution of the model had, the first one included.
pub fn threads() -> u32 {
    1 + THREADS.get().most
}

/// Whether the execution that runs now has this bug: for [`planted!`](crate::planted).
#[doc(hidden)]
pub fn is_planted(bug: &str) -> bool {
    PLANTED.with(|p| p.get() == bug)
}
/// The bug that is planted now; empty if there is none.
#[cfg(loom)]
pub fn planted_now() -> &'static str {
    PLANTED.get()
}
/// Plants a bug in what this thread runs from now on: for a test that is to fail. `caught` does so by itself.
pub fn plant(bug: &'static str) {
    PLANTED.set(bug);
}

/// Plants `bug` and asserts that `explore` fails with a message that contains `expected`; it answers how many executions
/// passed, or which one failed and how. An execution is called `unit`; `property` says what the bug breaks.
///
/// # Panics
/// When the bug survives, or is caught for another reason.
pub fn catch(
    bug: &'static str,
    property: &str,
    unit: &str,
    expected: &str,
    explore: impl FnOnce() -> Result<u64, (u64, String)> + Send + 'static,
) {
    // A thread of its own: a checker's thread-local state dies with the panic.
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
        Err(error) => panic!("{bug}: no thread: {error}"),
    }
}

/// The share that `SHARD=I/N` asks for.
///
/// # Panics
/// It has another value.
pub fn shard() -> Option<Shard> {
    let asked = std::env::var("SHARD").ok()?;
    Some(asked.parse().unwrap_or_else(|error| panic!("SHARD={asked}: {error}")))
}

/// Whether the share has a planted bug: each bug of a property is one share's.
pub fn has_bug(bug: &str, property: &str) -> bool {
    shard().is_none_or(|shard| shard.has_named(&format!("{property} {bug}")))
}

/// The text of a panic.
pub(crate) fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text")
}

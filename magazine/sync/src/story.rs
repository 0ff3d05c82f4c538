//! The counterexample trace of a failed execution: a list of its steps, as text or as JSON.
//!
//! In the code, a call of [`tell!`](crate::tell) follows each step that should be in the trace. The call records the
//! thread, the thread's [role](roles), the action, and the changed state. Recording *peeks* at the state, which is not
//! a step in the model and does not change the schedule. Steps are recorded only during a replay (see the module
//! `replay`).
//!
//! Acquiring or releasing a lock is also a step. Locks are numbered in the order of their first use, and are shown with
//! their ranks. At its end, the trace lists the threads that still wait for a lock. Each access to an atomic is a step,
//! which shows the value that was read or written. With `STORY=told`, the trace omits accesses to atomics.

use crate::rank::Rank;
use core::panic::Location;
use core::ptr::NonNull;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// The state of an object that a trace shows, as named values.
#[derive(Clone, Debug)]
pub struct Watched {
    /// A number that identifies the object, usually its address.
    pub id: usize,
    /// The name and the value of each part of the object's state.
    pub parts: Vec<(String, String)>,
}

/// A change of an object's state that a step caused.
#[derive(Clone, Debug)]
struct Change {
    /// The number of the changed object, in the order of first use. The number is 0 for an atomic, which the text of
    /// the step names.
    thing: usize,
    part: String,
    before: Option<String>,
    after: String,
}

#[derive(Clone, Debug)]
struct Step {
    thread: String,
    role: Option<String>,
    did: String,
    changes: Vec<Change>,
}

/// The recorded trace of one execution.
#[derive(Debug, Default)]
pub(crate) struct ExecutionTrace {
    steps: Vec<Step>,
    /// The number and the last known state of each object that the trace shows, by the object's identity.
    known: BTreeMap<usize, (usize, BTreeMap<String, String>)>,
    names: BTreeMap<usize, usize>,
    /// The number of each accessed atomic, and the last value that was written to it.
    atomics: BTreeMap<u64, (usize, Option<String>)>,
    locks: BTreeMap<usize, usize>,
    /// For each thread that waits for a lock: the lock, and the source location of the call.
    waiting: BTreeMap<String, (String, &'static Location<'static>)>,
}

std::thread_local! {
    // Thread-local: loom runs all threads of a model on one OS thread.
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    /// True if accesses to atomics are recorded.
    static RECORDS_ACCESSES: Cell<bool> = const { Cell::new(false) };
    static STORY: RefCell<ExecutionTrace> = RefCell::default();
    static ROLE_FUNCTION: Cell<Option<fn() -> String>> = const { Cell::new(None) };
}

/// Sets the function that returns the role of the running thread, for example its CPU. The role function applies to
/// models on this OS thread. The function is called at each recorded step. The role function must not execute a step of
/// the model.
pub fn roles(of: fn() -> String) {
    ROLE_FUNCTION.set(Some(of));
}

/// Returns `true` if the current execution is being recorded.
pub fn is_recording() -> bool {
    IS_RECORDING.get() && !std::thread::panicking()
}

/// Starts recording. If `accesses` is true, accesses to atomics are recorded as well.
pub(crate) fn begin(accesses: bool) {
    STORY.take();
    IS_RECORDING.set(true);
    RECORDS_ACCESSES.set(accesses);
}

pub(crate) fn end() -> ExecutionTrace {
    IS_RECORDING.set(false);
    STORY.take()
}

fn format_thread_name() -> String {
    let id = format!("{:?}", loom::thread::current().id());
    id.trim_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

/// Records a step of the running thread in the trace. The macro [`tell!`](crate::tell) calls this function.
pub fn step(did: String, watched: Option<Watched>) {
    let changes = STORY.with_borrow_mut(|story| {
        watched.map_or(vec![], |watched| {
            let next = story.known.len() + 1;
            let (thing, known) = story.known.entry(watched.id).or_insert((next, BTreeMap::new()));
            let changed = watched.parts.into_iter().filter_map(|(part, after)| {
                let before = known.insert(part.clone(), after.clone());
                (before.as_ref() != Some(&after)).then_some(Change { thing: *thing, part, before, after })
            });
            changed.collect()
        })
    });
    record(did, changes);
}

fn record(did: String, changes: Vec<Change>) {
    let (thread, role) = (format_thread_name(), ROLE_FUNCTION.get().map(|of| of()));
    STORY.with_borrow_mut(|story| story.steps.push(Step { thread, role, did, changes }));
}

/// Returns a short name for an address, which does not depend on the memory layout. A small number is printed as it is.
/// Larger addresses are numbered in the order of first use.
pub fn name(of: NonNull<u8>) -> String {
    const PAGE: usize = 4096;
    let at = of.addr().get();
    if at < PAGE { at.to_string() } else { address(at) }
}

fn address(at: usize) -> String {
    STORY.with_borrow_mut(|story| {
        let next = story.names.len() + 1;
        format!("#{}", story.names.entry(at).or_insert(next))
    })
}

/// A value that a trace can print in the same form in every run, even if it is an address.
pub(crate) trait TraceValue: Copy {
    fn trace_text(self) -> String;
}
impl TraceValue for bool {
    fn trace_text(self) -> String {
        self.to_string()
    }
}
impl<T> TraceValue for *mut T {
    fn trace_text(self) -> String {
        NonNull::new(self.cast()).map_or("null".to_owned(), name)
    }
}
macro_rules! shown {
    ($($number:ty)*) => { $(
        impl TraceValue for $number {
            fn trace_text(self) -> String {
                // Larger values may be addresses, with or without tag bits.
                const ADDRESSES: i128 = 1 << 40;
                match self as i128 {
                    _ if self == <$number>::MAX => "MAX".to_owned(),
                    number if number >= ADDRESSES => address(self as usize),
                    number if number >= 1 << 16 => format!("{number:#x}"),
                    number => number.to_string(),
                }
            }
        }
    )* };
}
shown! { u8 u16 u32 u64 usize i32 i64 isize }

#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    id: u64,
    made: &'static Location<'static>,
}

impl Atomic {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self { id: crate::unique(), made: Location::caller() }
    }
    /// Records that the running thread accessed this atomic. The function `text` describes the access, and `wrote` is
    /// the written value, if any. The call must directly follow the access.
    #[track_caller]
    pub(crate) fn tell(self, wrote: Option<impl TraceValue>, text: impl FnOnce(&str) -> String) {
        if !(is_recording() && RECORDS_ACCESSES.get()) {
            return;
        }
        let wrote = wrote.map(TraceValue::trace_text);
        let (number, first, before) = STORY.with_borrow_mut(|story| {
            let next = story.atomics.len() + 1;
            let (number, last) = story.atomics.entry(self.id).or_insert((next, None));
            let before = last.clone();
            *last = wrote.clone().or_else(|| last.take());
            (*number, *number == next, before)
        });
        let part = format!("atomic {number}");
        let mut text = format!("{} at {}", text(&part), format_location(Location::caller()));
        if first {
            text += &format!("; it was created at {}", format_location(self.made));
        }
        record(text, wrote.map(|after| Change { thing: 0, part, before, after }).into_iter().collect());
    }
}

/// Records that the running thread executed a memory fence.
#[track_caller]
pub(crate) fn record_fence(order: crate::Ordering) {
    if is_recording() && RECORDS_ACCESSES.get() {
        step(format!("fence ({order:?}) at {}", format_location(Location::caller())), None);
    }
}

fn format_location(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    at: usize,
    rank: Option<Rank>,
}

impl Lock {
    pub(crate) fn new<T>(at: &T, rank: Option<Rank>) -> Self {
        Self { at: core::ptr::from_ref(at).addr(), rank }
    }
    fn name(self) -> String {
        let number = STORY.with_borrow_mut(|story| {
            let next = story.locks.len() + 1;
            *story.locks.entry(self.at).or_insert(next)
        });
        self.rank.map_or_else(|| format!("lock {number}"), |rank| format!("lock {number} ({rank})"))
    }
    /// Records that the running thread is about to wait for the lock.
    pub(crate) fn record_wait(self, at: &'static Location<'static>) {
        if is_recording() {
            let waits = (self.name(), at);
            STORY.with_borrow_mut(|story| _ = story.waiting.insert(format_thread_name(), waits));
        }
    }
    pub(crate) fn record_acquired(self, at: &Location<'_>) -> RecordedLock {
        if is_recording() {
            STORY.with_borrow_mut(|story| _ = story.waiting.remove(&format_thread_name()));
            step(format!("takes {} at {}", self.name(), format_location(at)), None);
        }
        RecordedLock(self)
    }
    /// Records that the running thread could not take the lock, because another thread held it.
    pub(crate) fn record_busy(self, at: &Location<'_>) {
        if is_recording() {
            step(format!("finds {} locked at {}", self.name(), format_location(at)), None);
        }
    }
}

/// Records the release of a lock when it is dropped.
#[derive(Debug)]
pub(crate) struct RecordedLock(Lock);

impl Drop for RecordedLock {
    fn drop(&mut self) {
        if is_recording() {
            step(format!("releases {}", self.0.name()), None);
        }
    }
}

impl ExecutionTrace {
    /// Returns the trace as JSON, which the simulator's command `uslab story` reads. The caller provides the title, and
    /// the text of the failure.
    pub(crate) fn json(&self, title: &str, end: &str) -> Value {
        let change =
            |c: &Change| json!({ "thing": c.thing, "part": c.part, "before": c.before, "after": c.after });
        let steps = self.steps.iter().map(|step| {
            let changes: Vec<_> = step.changes.iter().map(change).collect();
            json!({ "thread": step.thread, "role": step.role, "did": step.did, "changes": changes })
        });
        let waiting = self
            .waiting
            .iter()
            .map(|(thread, (lock, at))| json!({ "thread": thread, "lock": lock, "at": format_location(at) }));
        json!({
            "version": 1,
            "title": title,
            "steps": steps.collect::<Vec<_>>(),
            "waiting": waiting.collect::<Vec<_>>(),
            "end": end,
        })
    }
}

impl fmt::Display for ExecutionTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // If several objects have parts of one name, each part names its object.
        let several =
            |part: &str| self.known.values().filter(|(_, parts)| parts.contains_key(part)).count() > 1;
        for (i, step) in (1..).zip(&self.steps) {
            write!(f, "{i:>5}  thread {}  ", step.thread)?;
            if let Some(role) = &step.role {
                write!(f, "{role}  ")?;
            }
            f.write_str(&step.did)?;
            let watched = step.changes.iter().filter(|change| change.thing > 0);
            for (i, Change { thing, part, before, after }) in watched.enumerate() {
                f.write_str(if i == 0 { "   | " } else { "; " })?;
                if several(part) {
                    write!(f, "@{thing} ")?;
                }
                match before {
                    Some(before) => write!(f, "{part}: {before} -> {after}")?,
                    None => write!(f, "{part}: {after}")?,
                }
            }
            writeln!(f)?;
        }
        for (thread, (lock, at)) in &self.waiting {
            writeln!(f, "       thread {thread}  waits for {lock} at {}", format_location(at))?;
        }
        Ok(())
    }
}

//! The counterexample trace of a failed execution: its steps, as text and as JSON.
//!
//! [`tell!`](crate::tell) follows each step that matters. It records the thread, the thread's [role](roles),
//! the action, and what the action changed. The state is *peeked*, without a step of the model, so recording
//! does not change the schedule. Steps are recorded only during a replay (see `replay`).
//!
//! Acquiring and releasing a lock are steps, too. Locks are numbered in the order of their first use, and
//! shown with their ranks. The end lists threads that still wait for a lock. Each access of an atomic is a
//! step with the value that it read or wrote; `STORY=told` leaves these out.

use crate::rank::Rank;
use core::panic::Location;
use core::ptr::NonNull;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// The state of an object, in named parts.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Identity of the object; its address serves.
    pub id: usize,
    /// Name and value of each part.
    pub parts: Vec<(String, String)>,
}

/// A part that a step changed.
#[derive(Clone, Debug)]
struct Change {
    /// Which of the objects with such a part, numbered by first use; 0 for an atomic, which the step's text
    /// names.
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

/// The trace of one execution.
#[derive(Debug, Default)]
pub(crate) struct Story {
    steps: Vec<Step>,
    /// The number and last known state of each watched object, by its id.
    known: BTreeMap<usize, (usize, BTreeMap<String, String>)>,
    /// Numbers of the named addresses.
    names: BTreeMap<usize, usize>,
    /// Numbers of the accessed atomics, and the last value written to each.
    atomics: BTreeMap<u64, (usize, Option<String>)>,
    /// Numbers of the locks, by address.
    locks: BTreeMap<usize, usize>,
    /// The threads that wait for a lock, with the lock and the place.
    waiting: BTreeMap<String, (String, &'static Location<'static>)>,
}

std::thread_local! {
    // loom runs all threads of a model on one OS thread.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    /// True if accesses of atomics are recorded, too.
    static ACCESSES: Cell<bool> = const { Cell::new(false) };
    static STORY: RefCell<Story> = RefCell::default();
    static ROLES: Cell<Option<fn() -> String>> = const { Cell::new(None) };
}

/// Sets the function that names a thread's role (a CPU, for example) in traces of models that this OS thread
/// runs from now on. It is called for the running thread at each step, and takes no step of the model.
pub fn roles(of: fn() -> String) {
    ROLES.set(Some(of));
}

/// Returns `true` while the current execution is recorded.
pub fn listens() -> bool {
    LISTENS.get() && !std::thread::panicking()
}

/// Starts recording, with accesses of atomics if `accesses`.
pub(crate) fn begin(accesses: bool) {
    STORY.take();
    LISTENS.set(true);
    ACCESSES.set(accesses);
}

/// Ends recording and returns the trace.
pub(crate) fn end() -> Story {
    LISTENS.set(false);
    STORY.take()
}

fn thread() -> String {
    let id = format!("{:?}", loom::thread::current().id());
    id.trim_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

/// Records a step of the running thread; [`tell!`](crate::tell) calls it.
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
    let (thread, role) = (thread(), ROLES.get().map(|of| of()));
    STORY.with_borrow_mut(|story| story.steps.push(Step { thread, role, did, changes }));
}

/// A short name for an address: small numbers stay, addresses are numbered by first use.
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

/// A value as the trace shows it: the same in each run, although addresses differ.
pub(crate) trait Shown: Copy {
    fn shown(self) -> String;
}
impl Shown for bool {
    fn shown(self) -> String {
        self.to_string()
    }
}
impl<T> Shown for *mut T {
    fn shown(self) -> String {
        NonNull::new(self.cast()).map_or("null".to_owned(), name)
    }
}
macro_rules! shown {
    ($($number:ty)*) => { $(
        impl Shown for $number {
            fn shown(self) -> String {
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

/// An atomic's identity in the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    /// Unique number.
    id: u64,
    made: &'static Location<'static>,
}

impl Atomic {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self { id: crate::unique(), made: Location::caller() }
    }
    /// Records that the running thread accessed this atomic; `did` describes the access, `wrote` is the value
    /// written. Must directly follow the access.
    #[track_caller]
    pub(crate) fn tell(self, wrote: Option<impl Shown>, did: impl FnOnce(&str) -> String) {
        if !(listens() && ACCESSES.get()) {
            return;
        }
        let wrote = wrote.map(Shown::shown);
        let (number, first, before) = STORY.with_borrow_mut(|story| {
            let next = story.atomics.len() + 1;
            let (number, last) = story.atomics.entry(self.id).or_insert((next, None));
            let before = last.clone();
            *last = wrote.clone().or_else(|| last.take());
            (*number, *number == next, before)
        });
        let part = format!("atomic {number}");
        let mut did = format!("{} at {}", did(&part), place(Location::caller()));
        if first {
            did += &format!("; it was created at {}", place(self.made));
        }
        record(did, wrote.map(|after| Change { thing: 0, part, before, after }).into_iter().collect());
    }
}

/// Records that the running thread passed a fence.
#[track_caller]
pub(crate) fn fences(order: crate::Ordering) {
    if listens() && ACCESSES.get() {
        step(format!("fence ({order:?}) at {}", place(Location::caller())), None);
    }
}

fn place(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// A lock's identity in the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    at: usize,
    rank: Option<Rank>,
}

impl Lock {
    /// The lock at this address.
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
    pub(crate) fn waits(self, at: &'static Location<'static>) {
        if listens() {
            let waits = (self.name(), at);
            STORY.with_borrow_mut(|story| _ = story.waiting.insert(thread(), waits));
        }
    }
    /// Records that the running thread has acquired the lock.
    pub(crate) fn taken(self, at: &Location<'_>) -> Taken {
        if listens() {
            STORY.with_borrow_mut(|story| _ = story.waiting.remove(&thread()));
            step(format!("takes {} at {}", self.name(), place(at)), None);
        }
        Taken(self)
    }
    /// Records that the running thread tried to take the lock while another thread held it.
    pub(crate) fn busy(self, at: &Location<'_>) {
        if listens() {
            step(format!("finds {} taken at {}", self.name(), place(at)), None);
        }
    }
}

/// Records the release of the lock when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken(Lock);

impl Drop for Taken {
    fn drop(&mut self) {
        if listens() {
            step(format!("releases {}", self.0.name()), None);
        }
    }
}

impl Story {
    /// The trace as JSON, in the form that `uslab story` of the simulator reads; the caller gives title and
    /// end.
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
            .map(|(thread, (lock, at))| json!({ "thread": thread, "lock": lock, "at": place(at) }));
        json!({
            "version": 1,
            "title": title,
            "steps": steps.collect::<Vec<_>>(),
            "waiting": waiting.collect::<Vec<_>>(),
            "end": end,
        })
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Several objects may have equal parts; then each part names its object.
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
            writeln!(f, "       thread {thread}  waits for {lock} at {}", place(at))?;
        }
        Ok(())
    }
}

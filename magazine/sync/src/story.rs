//! What happened in the execution that failed, step by step, for people and as JSON.
//!
//! [`tell!`](crate::tell) stands behind the steps that matter: one line tells the thread, what it [plays](roles), what it did
//! and what that changed. What may have changed is *peeked* at: a story takes no part in the model, so telling it changes no
//! schedule. Steps are recorded only while an execution is listened to (see `replay`).
//!
//! A lock that is taken or released is a step, too. Locks are numbered as they come up, with their rank where they have one; who
//! still waits for one at the end is told there.
//! So is each access of an atomic, with what it read or wrote; `STORY=told` leaves these out.

use crate::rank::Rank;
use core::panic::Location;
use core::ptr::NonNull;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// The state of one thing, in parts that have names.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Which thing: the address will do.
    pub id: usize,
    /// Name and value of each part.
    pub parts: Vec<(String, String)>,
}

/// A part that a step changed.
#[derive(Clone, Debug)]
struct Change {
    /// Which of the things that have such a part, counted as they come up; 0: an atomic, whose step tells it in words.
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

/// One execution.
#[derive(Debug, Default)]
pub(crate) struct Story {
    steps: Vec<Step>,
    /// The last known state of whatever was watched, by its id, and its number.
    known: BTreeMap<usize, (usize, BTreeMap<String, String>)>,
    /// What addresses are called.
    names: BTreeMap<usize, usize>,
    /// The numbers of the atomics that were accessed, and what was last written to them.
    atomics: BTreeMap<u64, (usize, Option<String>)>,
    /// The numbers of locks, by their addresses.
    locks: BTreeMap<usize, usize>,
    /// Who waits for a lock, and where.
    waiting: BTreeMap<String, (String, &'static Location<'static>)>,
}

std::thread_local! {
    // loom runs all threads of a model on one OS thread.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    /// To accesses of atomics, too.
    static ACCESSES: Cell<bool> = const { Cell::new(false) };
    static STORY: RefCell<Story> = RefCell::default();
    static ROLES: Cell<Option<fn() -> String>> = const { Cell::new(None) };
}

/// What threads play in the models that this thread runs from now on, for the story: a CPU, say. `of` answers for the running
/// thread of the model, at each of its steps, and takes no part in the model.
pub fn roles(of: fn() -> String) {
    ROLES.set(Some(of));
}

/// Whether the execution that runs now is recorded.
pub fn listens() -> bool {
    LISTENS.get() && !std::thread::panicking()
}

/// From now on steps are recorded, those of atomics if `accesses` says so.
pub(crate) fn begin(accesses: bool) {
    STORY.take();
    LISTENS.set(true);
    ACCESSES.set(accesses);
}

/// What was recorded since.
pub(crate) fn end() -> Story {
    LISTENS.set(false);
    STORY.take()
}

fn thread() -> String {
    let id = format!("{:?}", loom::thread::current().id());
    id.trim_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

/// What [`tell!`](crate::tell) calls: the running thread did this.
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

/// A short name for what lies at an address: numbers stay, addresses are counted as they come up in the story.
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

/// A value as the story shows it: the same in each run, though addresses are not.
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
                // From here on it may be an address, with or without marks in its low bits.
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

/// What the story knows of an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    /// No other one has this number.
    id: u64,
    made: &'static Location<'static>,
}

impl Atomic {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self { id: crate::unique(), made: Location::caller() }
    }
    /// The running thread did this to the atomic of that name, and wrote that to it. Directly behind the access.
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
            did += &format!("; it was made at {}", place(self.made));
        }
        record(did, wrote.map(|after| Change { thing: 0, part, before, after }).into_iter().collect());
    }
}

/// The running thread is behind a fence.
#[track_caller]
pub(crate) fn fences(order: crate::Ordering) {
    if listens() && ACCESSES.get() {
        step(format!("fence ({order:?}) at {}", place(Location::caller())), None);
    }
}

fn place(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// A lock, as the story knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    at: usize,
    rank: Option<Rank>,
}

impl Lock {
    /// The one at this address.
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
    /// The running thread is about to wait for it.
    pub(crate) fn waits(self, at: &'static Location<'static>) {
        if listens() {
            let waits = (self.name(), at);
            STORY.with_borrow_mut(|story| _ = story.waiting.insert(thread(), waits));
        }
    }
    /// The running thread has it now.
    pub(crate) fn taken(self, at: &Location<'_>) -> Taken {
        if listens() {
            STORY.with_borrow_mut(|story| _ = story.waiting.remove(&thread()));
            step(format!("takes {} at {}", self.name(), place(at)), None);
        }
        Taken(self)
    }
    /// The running thread tried to take it, and somebody else has it.
    pub(crate) fn busy(self, at: &Location<'_>) {
        if listens() {
            step(format!("finds {} taken at {}", self.name(), place(at)), None);
        }
    }
}

/// A lock that is released when this goes.
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
    /// Title and end are the teller's. `uslab story` of the simulator reads this form.
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
        // Caches have equal parts: with several, each part says whose it is.
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

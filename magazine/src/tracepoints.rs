//! Tracepoints: what slow operations do, step by step, for whoever observes them.
//!
//! Fast paths have none: an operation that nobody is shown was served by its CPU's own stack. A slow one reads once whether
//! anybody [observes](Tracepoints::observe). If so, it notes each [`Step`] in its own stack frame, whatever locks it holds, and
//! shows them at its end, when it holds none. So an observer may allocate, free, wait, drop caches and panic. There is no
//! buffer that CPUs share and none that has to be drained, and an operation of a signal handler has its own notes.
//!
//! Cost while nobody observes: one relaxed load for each slow operation, and one branch for each step. While somebody does: a
//! write to the stack for each step, and two atomic operations on a shared word for each observer of each operation.
//!
//! Kernel: `include/linux/tracepoint.h`, which records under locks into rings; Linux reads those later, and loses what is
//! overwritten meanwhile.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

use crate::cpu::Cpus;
use crate::paths::Path;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, Counter, UnsafeCell, assert_unlocked, catch_panic, planted, thread_local};
use core::cell::Cell;
use core::fmt;
use core::mem::MaybeUninit;
use std::sync::Arc;

/// Steps of an operation that are kept; what it does beyond is [counted](Observed::lost).
const STEPS: usize = 64;
/// Observers at a time; in models one, whose place all want.
pub const MAX_OBSERVERS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// What somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// Objects or pages.
    Alloc,
    /// To take them back.
    Free,
    /// That what is kept without need goes back: a drain, a reap, a shrink.
    Reclaim,
}

/// One thing that a slow operation did. Pages are numbered within their allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Its CPU's stack had nothing to give.
    Missed,
    /// Its CPU's stack had no place.
    Full,
    /// Locked a depot.
    DepotVisited {
        /// Another CPU had the lock, and it waited.
        contended: bool,
    },
    /// A full magazine came from the depot.
    DepotTaken,
    /// A full magazine went to the depot.
    DepotGiven,
    /// More of the CPU's region may be written.
    RegionCommitted {
        /// The CPU.
        cpu: u32,
    },
    /// A magazine was filled.
    Filled {
        /// Objects or pages in it.
        rounds: u16,
    },
    /// The rounds of a magazine go back to where they came from.
    Flushed {
        /// Objects or pages in it.
        rounds: u16,
    },
    /// A drain took what lay on a CPU's stack.
    Drained {
        /// Objects or pages.
        rounds: u32,
    },
    /// One round went past the stacks.
    Bypassed,
    /// Stacks may hold so many rounds from now on.
    Resized {
        /// Rounds.
        places: u16,
    },
    /// Locked a node's lists of slabs.
    NodeVisited,
    /// Took free objects of a slab.
    ObjectsTaken {
        /// The slab's first page.
        slab: u32,
        /// How many.
        objects: u16,
    },
    /// Objects came back to their slab.
    ObjectsGiven {
        /// The slab's first page.
        slab: u32,
        /// How many.
        objects: u16,
    },
    /// A new slab is on its node's lists.
    SlabAdded {
        /// Its first page.
        slab: u32,
    },
    /// The end of a slab: its pages go back.
    SlabReleased {
        /// Its first page.
        slab: u32,
    },
    /// Asked the page allocator for a slab or a large block.
    PagesAsked,
    /// Gave it back to the page allocator.
    PagesReturned,
    /// Locked a zone, to take blocks.
    ZoneAsked {
        /// How many it wants.
        blocks: u32,
    },
    /// Locked a zone, to give blocks back.
    ZoneGiven {
        /// Their order.
        order: u8,
    },
    /// Took blocks out of the zone.
    BlocksTaken {
        /// How many.
        blocks: u16,
        /// Their order.
        order: u8,
        /// The last one's first page.
        page: u32,
        /// Times that a larger block was halved for them.
        splits: u16,
    },
    /// Blocks came back to the zone.
    BlocksGiven {
        /// How many.
        blocks: u16,
        /// Their order.
        order: u8,
        /// The last one's first page.
        page: u32,
        /// Times that two buddies became one block.
        merges: u16,
    },
    /// The system was asked for memory.
    Committed {
        /// Pages that it gave.
        pages: u32,
    },
    /// Memory went back to the system.
    Decommitted {
        /// Pages.
        pages: u32,
    },
    /// Memory beside pages was committed, for what describes them.
    TablesCommitted {
        /// Bytes.
        bytes: u32,
    },
}

impl Step {
    /// The class of an operation that did it.
    pub const fn path(&self) -> Path {
        match self {
            Self::Missed
            | Self::Full
            | Self::Filled { .. }
            | Self::Flushed { .. }
            | Self::Drained { .. }
            | Self::Bypassed
            | Self::Resized { .. } => Path::Cpu,
            Self::DepotVisited { .. }
            | Self::DepotTaken
            | Self::DepotGiven
            | Self::RegionCommitted { .. } => Path::Depot,
            Self::NodeVisited
            | Self::ObjectsTaken { .. }
            | Self::ObjectsGiven { .. }
            | Self::SlabAdded { .. }
            | Self::SlabReleased { .. } => Path::Slab,
            Self::PagesAsked
            | Self::PagesReturned
            | Self::ZoneAsked { .. }
            | Self::ZoneGiven { .. }
            | Self::BlocksTaken { .. }
            | Self::BlocksGiven { .. } => Path::Pages,
            Self::Committed { .. } | Self::Decommitted { .. } | Self::TablesCommitted { .. } => Path::Commit,
        }
    }
}

/// As one says it of a CPU: `takes a magazine from the depot`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed => write!(f, "misses"),
            Self::Full => write!(f, "has no place"),
            Self::DepotVisited { contended: false } => write!(f, "visits the depot"),
            Self::DepotVisited { contended: true } => write!(f, "waits for the depot"),
            Self::DepotTaken => write!(f, "takes a magazine from the depot"),
            Self::DepotGiven => write!(f, "puts a magazine into the depot"),
            Self::RegionCommitted { cpu } => write!(f, "commits a part of the region of CPU {cpu}"),
            Self::Filled { rounds } => write!(f, "filled a magazine with {rounds} rounds"),
            Self::Flushed { rounds } => write!(f, "flushes a magazine of {rounds} rounds"),
            Self::Drained { rounds } => write!(f, "gives away {rounds} rounds that a drain took"),
            Self::Bypassed => write!(f, "goes past the stacks"),
            Self::Resized { places } => write!(f, "lets stacks hold {places} rounds"),
            Self::NodeVisited => write!(f, "visits the slabs of its node"),
            Self::ObjectsTaken { slab, objects } => write!(f, "takes {objects} objects of slab {slab}"),
            Self::ObjectsGiven { slab, objects } => write!(f, "gives {objects} objects of slab {slab} back"),
            Self::SlabAdded { slab } => write!(f, "adds slab {slab}"),
            Self::SlabReleased { slab } => write!(f, "releases slab {slab}"),
            Self::PagesAsked => write!(f, "asks for pages"),
            Self::PagesReturned => write!(f, "gives pages back"),
            Self::ZoneAsked { blocks } => write!(f, "asks the zone for {blocks} blocks"),
            Self::ZoneGiven { order } => write!(f, "gives blocks of order {order} to the zone"),
            Self::BlocksTaken { blocks, order, splits, .. } => {
                write!(f, "takes {blocks} blocks of order {order}, with {splits} splits")
            }
            Self::BlocksGiven { blocks, order, merges, .. } => {
                write!(f, "gives {blocks} blocks of order {order} back, with {merges} merges")
            }
            Self::Committed { pages } => {
                write!(f, "asked the system for memory, and has {pages} pages of it")
            }
            Self::Decommitted { pages } => write!(f, "gave {pages} pages back to the system"),
            Self::TablesCommitted { bytes } => write!(f, "commits {bytes} bytes beside pages"),
        }
    }
}

/// An operation as an observer sees it, at its end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Observed<'a> {
    /// What was asked for.
    pub what: What,
    /// The CPU that it began on.
    pub cpu: u32,
    /// The cache, or the size of page blocks; empty where it is of several.
    pub name: &'a str,
    /// The dearest thing that it did so far.
    pub path: Path,
    /// What it did, in order, since it was last shown.
    pub steps: &'a [Step],
    /// Steps beyond those.
    pub lost: u32,
    /// It goes on, and is shown again: as what gives back many magazines.
    pub more: bool,
}

/// One allocation or free on its way, or what gives back: the dearest thing that it did so far, and for
/// [observers](Tracepoints::observe) its steps.
#[derive(Debug)]
pub struct Operation<'t> {
    dearest: Cell<Path>,
    cold: bool,
    notes: Option<Notes<'t>>,
    steps: Steps,
}

/// Whose operation it is, and who wants to know.
#[derive(Debug)]
struct Notes<'t> {
    tracepoints: &'t Tracepoints,
    what: What,
    cpu: u32,
    name: &'t str,
}

/// The steps so far. Not written to where nobody observes.
#[derive(Debug)]
struct Steps {
    len: Cell<u32>,
    steps: [Cell<MaybeUninit<Step>>; STEPS],
}

impl Operation<'static> {
    /// One that nobody observes. One that nobody counts in the end serves what is no operation.
    pub const fn new() -> Self {
        Self::with(None)
    }
}
impl Default for Operation<'static> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'t> Operation<'t> {
    const fn with(notes: Option<Notes<'t>>) -> Self {
        let steps = [const { Cell::new(MaybeUninit::uninit()) }; STEPS];
        Self { dearest: Cell::new(Path::Cpu), cold: false, notes, steps: Steps { len: Cell::new(0), steps } }
    }
    /// One that did nothing dear yet, for those who observe `tracepoints`. `name` says of what.
    #[inline]
    #[doc(hidden)]
    pub fn of(tracepoints: &'t Tracepoints, what: What, name: &'t str) -> Self {
        Self::with(tracepoints.notes(what, name))
    }
    /// It gives back what had no use for an interval.
    #[must_use]
    #[doc(hidden)]
    pub fn cold(mut self) -> Self {
        self.cold = true;
        self
    }
    /// Whether what it frees is [cold](Self::cold): no CPU should keep it for its next allocation.
    #[doc(hidden)]
    pub const fn is_cold(&self) -> bool {
        self.cold
    }
    /// Runs what another layer does in the course of it, which counts for itself.
    #[doc(hidden)]
    pub fn below<R>(&self, part: impl FnOnce(&Self) -> R) -> R {
        let before = self.dearest.replace(Path::Cpu);
        let result = part(self);
        self.did(before);
        result
    }
    /// It did this; [`tell!`](crate::tell) says so at the step itself.
    #[doc(hidden)]
    pub fn did(&self, path: Path) {
        self.dearest.set(self.dearest.get().max(path));
    }
    /// It did this. May be said with any lock held.
    #[inline]
    #[doc(hidden)]
    pub fn note(&self, step: Step) {
        self.did(step.path());
        if self.notes.is_some() {
            let len = self.steps.len.get();
            if let Some(place) = self.steps.steps.get(len as usize) {
                place.set(MaybeUninit::new(step));
            }
            self.steps.len.set(len.saturating_add(1));
        }
    }
    /// The dearest so far.
    #[doc(hidden)]
    pub fn path(&self) -> Path {
        self.dearest.get()
    }
    /// No lock is held, and more may come: shows what it did so far, if that is much.
    #[inline]
    #[doc(hidden)]
    pub fn pause(&self) {
        self.show(STEPS as u32 / 2, true);
    }
    #[inline]
    fn show(&self, above: u32, more: bool) {
        if let Some(notes) = &self.notes
            && self.steps.len.get() > above
        {
            self.show_to(notes, more);
        }
    }
    #[cold]
    fn show_to(&self, notes: &Notes<'t>, more: bool) {
        let len = self.steps.len.replace(0);
        let mut steps = [Step::Missed; STEPS];
        let kept = (len as usize).min(STEPS);
        for (step, noted) in steps.iter_mut().zip(&self.steps.steps[..kept]) {
            // SAFETY: `note` wrote as many as it counted.
            *step = unsafe { noted.get().assume_init() };
        }
        let Notes { what, cpu, name, tracepoints } = *notes;
        let (steps, lost) = (&steps[..kept], len - kept as u32);
        tracepoints.lost.add(lost.into());
        tracepoints.show(&Observed { what, cpu, name, path: self.path(), steps, lost, more });
    }
}

/// Shows it to those who observe.
impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if !crate::sync::abandoned() {
            self.show(0, false);
        }
    }
}

/// A step of an operation, or of the story that a failing model prints: [`uslab_sync::tell!`].
///
/// `tell!(op: Step::DepotGiven)` is a [`Step`] of the [`Operation`] `op`, in every build, and `tell!(op: depot => Step::DepotGiven)`
/// one that changed what `depot.watched()` shows. All else is told by stories only.
#[macro_export]
#[doc(hidden)]
macro_rules! tell {
    ($op:ident: $watched:ident => $step:expr) => {{
        $op.note($step);
        $crate::uslab_sync::tell!($watched => "{}", $step);
    }};
    ($op:ident: $step:expr) => {{
        $op.note($step);
        $crate::uslab_sync::tell!("{}", $step);
    }};
    ($($text:tt)*) => { $crate::uslab_sync::tell!($($text)*) };
}

type Watch = dyn Fn(&Observed<'_>) + Send + Sync;

/// Who observes the operations of a subsystem. See the [module](self).
#[derive(Debug)]
pub struct Tracepoints {
    cpus: Cpus,
    /// Observers that are there: what a slow operation reads. A hint: one that reads it early or late came earlier or later.
    there: Counter,
    slots: [Slot; MAX_OBSERVERS],
    suppressed: Counter,
    lost: Counter,
    panics: Counter,
}

/// The place of an observer. Calls of it are counted in its `state`, from before they look whether it is open. What is
/// taken out of it is dropped by the last of these, which alone changes `CLOSING` back.
struct Slot {
    state: AtomicU32,
    observer: UnsafeCell<Option<Box<Watch>>>,
}
/// Somebody has it.
const TAKEN: u32 = 1 << 31;
/// There is an observer in it.
const OPEN: u32 = 1 << 30;
/// It is to go when nobody calls it any more,
const CLOSING: u32 = 1 << 29;
/// and nobody waits for that: the place is free then.
const LEFT: u32 = 1 << 28;

// SAFETY: what a slot holds is `Send` and `Sync`. It is written by whoever made it `TAKEN` before it is open, and by the one
// call that takes it out when no other one is counted.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

thread_local! {
    /// The slot whose observer this thread runs, by its address; 0 is none.
    static INSIDE: Cell<usize> = Cell::new(0);
}

fn inside() -> usize {
    INSIDE.with(Cell::get)
}

/// There are [`MAX_OBSERVERS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyObservers;

impl fmt::Display for TooManyObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there are {MAX_OBSERVERS} observers already")
    }
}
impl core::error::Error for TooManyObservers {}

/// Somebody who observes, until this is dropped.
///
/// When the drop returns, no call of the observer runs or comes any more, and it is dropped itself. Dropped by an observer, it does
/// not wait: a call that runs on another thread may still go on.
#[derive(Debug)]
#[must_use = "nobody observes any more when it is dropped"]
pub struct Observer {
    tracepoints: Arc<Tracepoints>,
    slot: usize,
}

impl Tracepoints {
    /// Without observers. `cpus` says which CPU an operation began on.
    pub fn new(cpus: Cpus) -> Self {
        let slot = || Slot { state: AtomicU32::new(0), observer: UnsafeCell::new(None) };
        Self {
            cpus,
            there: Counter::new(0),
            slots: core::array::from_fn(|_| slot()),
            suppressed: Counter::new(0),
            lost: Counter::new(0),
            panics: Counter::new(0),
        }
    }

    /// Shows each slow operation to `observer` from now on, at its end, on the thread that did it and with no lock held.
    ///
    /// What the observer itself asks of allocators is shown to nobody, but [counted](Self::suppressed). One that panics is not
    /// called again; the operation goes on as if nothing had happened.
    ///
    /// # Errors
    /// [`TooManyObservers`].
    pub fn observe(
        self: &Arc<Self>,
        observer: impl Fn(&Observed<'_>) + Send + Sync + 'static,
    ) -> Result<Observer, TooManyObservers> {
        // Acquire: pairs with the Release of whoever took the last observer out.
        let free = |slot: &Slot| slot.state.fetch_or(TAKEN, Acquire) & TAKEN == 0;
        let at = self.slots.iter().position(free).ok_or(TooManyObservers)?;
        let slot = &self.slots[at];
        // SAFETY: made ours just now, and not open yet.
        slot.observer.with_mut(|p| unsafe { *p = Some(Box::new(observer)) });
        // Release: pairs with the Acquire in `show`.
        slot.state.fetch_or(OPEN, Release);
        self.there.add(1);
        Ok(Observer { tracepoints: self.clone(), slot: at })
    }

    /// Every operation takes notes from now on: models want those that began before they are observed.
    #[cfg(any(loom, shuttle))]
    #[allow(dead_code, reason = "for this crate's models")]
    pub(crate) fn expect_observers(&self) {
        self.there.add(1);
    }

    /// Operations of observers, which were not shown.
    pub fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }
    /// Observers that panicked.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }
    /// Steps that were not shown, because an operation had too many.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    #[inline]
    fn notes<'t>(&'t self, what: What, name: &'t str) -> Option<Notes<'t>> {
        if self.there.get() == 0 { None } else { self.begin(what, name) }
    }
    #[cold]
    fn begin<'t>(&'t self, what: What, name: &'t str) -> Option<Notes<'t>> {
        if inside() != 0 {
            self.suppressed.add(1);
            return None;
        }
        Some(Notes { tracepoints: self, what, cpu: self.cpus.current(), name })
    }
    fn show(&self, observed: &Observed<'_>) {
        assert_unlocked();
        let panicked = self.slots.iter().filter(|slot| slot.show(observed)).count();
        self.panics.add(panicked as u64);
    }

    /// # Safety
    /// The process is a child that `fork` made, and has no other thread yet.
    pub unsafe fn forget_other_threads(&self) {
        for slot in &self.slots {
            let calls = u32::from(inside() == slot.address());
            // Relaxed: there is one thread. What others were about to take out stays, and its slot with it.
            let state = slot.state.load(Relaxed);
            slot.state.store(state & (TAKEN | OPEN | CLOSING | LEFT) | calls, Relaxed);
        }
    }
}

impl Slot {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Runs what is the observer's.
    fn enter<R>(&self, run: impl FnOnce() -> R) -> std::thread::Result<R> {
        let outer = INSIDE.with(|inside| inside.replace(self.address()));
        let result = catch_panic(run);
        INSIDE.with(|inside| inside.set(outer));
        result
    }

    /// Whether the observer, if there is one, panicked.
    fn show(&self, observed: &Observed<'_>) -> bool {
        // Relaxed: a hint, asked again below.
        if self.state.load(Relaxed) & OPEN == 0 {
            return false;
        }
        let mut panicked = false;
        // Acquire: pairs with the Release in `observe`, behind which the observer is there.
        let before = self.state.fetch_add(1, Acquire);
        planted!("an observer is called that was closed meanwhile" => let before = OPEN);
        if before & OPEN != 0 {
            // SAFETY: it was open when this call was counted, so nobody takes it out before the call has left.
            let call = || self.observer.with(|p| unsafe { (*p).as_ref() }.map(|observer| observer(observed)));
            let shown = self.enter(call);
            panicked = shown.is_err();
            if panicked {
                self.close(0);
            }
        }
        self.leave();
        panicked
    }
    /// No call begins any more, and the last one takes the observer out. For a call that is counted.
    fn close(&self, left: u32) {
        // Relaxed: whoever takes the observer out leaves after us, or is us.
        self.state.fetch_or(CLOSING | left, Relaxed);
        self.state.fetch_and(!OPEN, Relaxed);
    }
    /// A call is over. The last one takes the observer out, if it is to go.
    fn leave(&self) {
        // Release: pairs with the Acquire below: all calls come before the observer is dropped.
        let before = self.state.fetch_sub(1, Release);
        let last = before - 1;
        if last & !LEFT != TAKEN | CLOSING {
            return;
        }
        // One of those who find it so, counted again. Acquire: pairs with the Release above.
        if self.state.compare_exchange(last, last + 1, Acquire, Relaxed).is_ok() {
            // SAFETY: it is not open, and no other call is counted that saw it open.
            let observer = self.observer.with_mut(|p| unsafe { (*p).take() });
            drop(self.enter(|| drop(observer)));
            let done = if last & LEFT == 0 { CLOSING } else { CLOSING | LEFT | TAKEN };
            // Release: pairs with the Acquire in `Observer::drop`, or in `observe`.
            self.state.fetch_and(!done, Release);
            self.state.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if crate::sync::abandoned() {
            return;
        }
        self.tracepoints.there.sub(1);
        let slot = &self.tracepoints.slots[self.slot];
        let inside = inside() != 0;
        // Relaxed: counted, so that nobody takes it out before all is said.
        slot.state.fetch_add(1, Relaxed);
        slot.close(if inside { LEFT } else { 0 });
        slot.leave();
        planted!("who drops an observer does not wait" => return);
        if inside {
            return;
        }
        // Acquire: pairs with the Release of whoever took it out.
        while slot.state.load(Acquire) & CLOSING != 0 {
            crate::sync::relax();
        }
        // Relaxed: who gets the place in `observe` reads on from the Release of whoever took the observer out.
        slot.state.fetch_and(!TAKEN, Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::shadow::{TestSupplier, table};
    use crate::sync::{AtomicBool, thread};
    use crate::test_round::TestRound;
    use crate::{Config, Layer, on_cpu};
    use std::sync::mpsc::{Receiver, channel};

    fn tracepoints() -> Arc<Tracepoints> {
        Arc::new(Tracepoints::new(Cpus::simulated(4, 1).unwrap()))
    }
    fn operate(tracepoints: &Tracepoints, steps: &[Step]) {
        let op = Operation::of(tracepoints, What::Free, "inode");
        steps.iter().for_each(|step| op.note(*step));
    }
    /// An observer that writes down what it sees.
    fn written(tracepoints: &Arc<Tracepoints>) -> (Observer, Receiver<(String, Vec<Step>, u32, bool)>) {
        let (seen, read) = channel();
        let observer = tracepoints.observe(move |o| {
            let of = format!("{:?} of {} on CPU {}: {}", o.what, o.name, o.cpu, o.path.name());
            seen.send((of, o.steps.to_vec(), o.lost, o.more)).unwrap();
        });
        (observer.unwrap(), read)
    }

    #[test]
    fn an_operation_is_shown_once_at_its_end_with_all_that_it_did() {
        let t = tracepoints();
        on_cpu(3);
        operate(&t, &[Step::Missed]);
        let (observer, read) = written(&t);
        let steps = [Step::Full, Step::DepotVisited { contended: true }, Step::DepotGiven];
        {
            let op = Operation::of(&t, What::Free, "inode");
            steps.iter().for_each(|step| op.note(*step));
            assert!(read.try_recv().is_err(), "not before its end");
            on_cpu(0);
        }
        let of = "Free of inode on CPU 3: depot".to_owned();
        assert_eq!(read.try_recv(), Ok((of, steps.to_vec(), 0, false)));
        operate(&t, &[]);
        drop(Operation::new());
        drop(observer);
        operate(&t, &steps);
        assert!(read.recv().is_err(), "nothing else, and the observer is gone");
    }

    #[test]
    fn what_is_long_is_shown_in_parts_and_what_is_too_long_is_counted() {
        let t = tracepoints();
        let (_observer, read) = written(&t);
        {
            let op = Operation::of(&t, What::Reclaim, "");
            for _ in 0..STEPS / 2 {
                op.note(Step::Missed);
                op.pause();
            }
            assert!(read.try_recv().is_err(), "not much so far");
            op.note(Step::Bypassed);
            op.pause();
            let (_, steps, lost, more) = read.try_recv().unwrap();
            assert_eq!(
                (steps.len(), steps.last(), lost, more),
                (STEPS / 2 + 1, Some(&Step::Bypassed), 0, true)
            );
            (0..STEPS + 3).for_each(|_| op.note(Step::Full));
        }
        let (_, steps, lost, more) = read.try_recv().unwrap();
        assert_eq!((steps, lost, more, t.lost()), (vec![Step::Full; STEPS], 3, false, 3));
    }

    #[test]
    fn there_are_so_many_observers_and_places_are_used_again() {
        let t = tracepoints();
        for _ in 0..3 {
            let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| written(&t)).collect();
            let error = t.observe(|_| ()).unwrap_err();
            assert_eq!(
                (error, error.to_string()),
                (TooManyObservers, "there are 4 observers already".into())
            );
            operate(&t, &[Step::Missed]);
            assert!(all.iter().all(|(_, read)| read.try_recv().is_ok()));
        }
        assert_eq!(t.there.get(), 0);
    }

    #[test]
    fn what_an_observer_does_is_not_shown_but_counted() {
        let t = tracepoints();
        let (_first, read) = written(&t);
        let own = t.clone();
        let _second = t.observe(move |_| operate(&own, &[Step::NodeVisited])).unwrap();
        (0..2).for_each(|_| operate(&t, &[Step::Missed]));
        assert_eq!((read.try_iter().count(), t.suppressed()), (2, 2));
    }

    #[test]
    fn an_observer_that_panics_is_not_called_again_and_the_others_are() {
        let t = tracepoints();
        let calls = Arc::new(Counter::new(0));
        let count = calls.clone();
        let panics = t
            .observe(move |_| {
                count.add(1);
                panic!("an observer");
            })
            .unwrap();
        let (_other, read) = written(&t);
        (0..3).for_each(|_| operate(&t, &[Step::Missed]));
        assert_eq!((calls.get(), read.try_iter().count(), t.panics()), (1, 3, 1));
        assert_eq!(Arc::strong_count(&calls), 1, "it was dropped");
        drop(panics);
        let all: Vec<_> = (1..MAX_OBSERVERS).map(|_| t.observe(|_| ()).unwrap()).collect();
        assert!(t.observe(|_| ()).is_err() && all.len() == 3, "its place is free");
    }

    /// On one thread; where its call is over it is dropped, and its place is free.
    #[test]
    fn an_observer_may_drop_itself_and_others_and_register_one() {
        let t = tracepoints();
        let (own, other) =
            (Arc::new(crate::sync::Mutex::ranked(crate::sync::Rank::Faults, None)), written(&t).0);
        let (own_too, t_too) = (own.clone(), t.clone());
        let observer = t.observe(move |_| {
            let taken: Option<(Observer, Observer)> = own_too.lock().take();
            let (me, other) = taken.expect("called once");
            drop((me, other));
            drop(t_too.observe(|_| unreachable!("what an observer does is not shown")));
        });
        *own.lock() = Some((observer.unwrap(), other));
        (0..2).for_each(|_| operate(&t, &[Step::Missed]));
        assert_eq!(Arc::strong_count(&own), 1);
        let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| t.observe(|_| ()).unwrap()).collect();
        assert_eq!((all.len(), t.there.get()), (4, 4));
    }

    /// What a call uses may go when the drop has returned.
    #[test]
    fn who_drops_an_observer_waits_for_calls_on_other_threads() {
        let t = tracepoints();
        let (inside, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inside_too, over_too) = (inside.clone(), over.clone());
        let observer = t
            .observe(move |_| {
                inside_too.store(true, Release);
                thread::sleep(core::time::Duration::from_millis(30));
                over_too.store(true, Release);
            })
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| operate(&t, &[Step::Missed]));
            while !inside.load(Acquire) {
                thread::yield_now();
            }
            drop(observer);
            assert!(over.load(Acquire));
        });
    }

    /// The threads that were in calls are no more.
    #[test]
    fn a_child_waits_for_no_call_of_other_threads() {
        let t = tracepoints();
        let observer = t.observe(|_| ()).unwrap();
        t.slots[0].state.fetch_add(2, Relaxed);
        // SAFETY: this thread is the only one, as in a child.
        unsafe { t.forget_other_threads() };
        drop(observer);
        let own = t.clone();
        // SAFETY: as above; from within a call.
        let observer = t.observe(move |_| unsafe { own.forget_other_threads() }).unwrap();
        operate(&t, &[Step::Missed]);
        drop(observer);
        assert!(t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// Wherever it comes: each operation is shown or suppressed, and none waits.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn operations_of_a_signal_handler_are_shown_or_suppressed() {
        use crate::sync::AtomicPtr;
        use nix::libc;
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

        static HERE: AtomicPtr<Tracepoints> = AtomicPtr::new(core::ptr::null_mut());
        static CAME: Counter = Counter::new(0);
        extern "C" fn handler(_: libc::c_int) {
            // SAFETY: set before the signals, and reset after them.
            operate(unsafe { &*HERE.load(Acquire) }, &[Step::Full]);
            CAME.add(1);
        }
        let t = tracepoints();
        let shown = Arc::new(Counter::new(0));
        let count = shown.clone();
        let _observer = t.observe(move |o| count.add(o.steps.len() as u64)).unwrap();
        HERE.store(Arc::as_ptr(&t).cast_mut(), Release);
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does what is allowed in one: it takes no lock and allocates nothing.
        let before = unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        // SAFETY: always.
        let me = unsafe { libc::pthread_self() };
        let (done, mut own) = (AtomicBool::new(false), 0_u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                for sent in 1..=300 {
                    // SAFETY: that thread waits for this one.
                    assert_eq!(unsafe { libc::pthread_kill(me, libc::SIGUSR1) }, 0);
                    while CAME.get() < sent {
                        thread::yield_now();
                    }
                }
                done.store(true, Release);
            });
            while !done.load(Acquire) {
                operate(&t, &[Step::Missed]);
                own += 1;
            }
        });
        // SAFETY: as it was.
        unsafe { sigaction(Signal::SIGUSR1, &before) }.unwrap();
        assert_eq!((CAME.get(), shown.get() + t.suppressed()), (300, own + 300));
        assert!(t.suppressed() > 0, "none came while an observer ran");
    }

    /// The layer's own steps, and no more than there are.
    #[test]
    fn a_layer_shows_misses_and_no_hit() {
        on_cpu(0);
        let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(20, 1));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 1)).unwrap().named("tickets");
        let (observer, read) = written(table.tracepoints());
        let held: Vec<_> = (0..8).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let shown: Vec<_> = read.try_iter().collect();
        assert_eq!(shown.len(), 4, "every second one");
        assert!(shown.iter().all(|(of, ..)| of.starts_with("Alloc of tickets on CPU 0: ")));
        assert!(shown.iter().all(|(_, steps, ..)| steps[..2] == [Step::Missed, Step::Filled { rounds: 2 }]));
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        layer.purge(&supplier);
        drop(observer);
        let steps: Vec<_> = read.iter().flat_map(|(_, steps, ..)| steps).collect();
        for step in [Step::Full, Step::DepotVisited { contended: false }, Step::Drained { rounds: 4 }] {
            assert!(steps.contains(&step), "{step:?} of {steps:?}");
        }
        let paths = layer.stats().paths;
        assert_eq!((paths.operations(), paths.cpu), (16, 16 - paths.depot - paths.slab));
    }

    #[test]
    fn steps_say_what_they_are() {
        let text = |step: Step| step.to_string();
        assert_eq!(text(Step::DepotVisited { contended: true }), "waits for the depot");
        assert_eq!(
            text(Step::BlocksTaken { blocks: 3, order: 1, page: 60, splits: 5 }),
            "takes 3 blocks of order 1, with 5 splits"
        );
        assert!(size_of::<Step>() <= 12);
    }
}

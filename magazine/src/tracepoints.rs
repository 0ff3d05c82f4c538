//! Tracepoints: the steps of slow operations, for observers.
//!
//! Fast paths have none: an operation that no observer sees was served by its CPU's own stack. A slow
//! operation tests once for [observers](Tracepoints::observe). If there are any, it notes each [`Step`] in
//! its stack frame, whatever locks it holds, and passes the steps to the observers at its end, when it holds no
//! lock. So an observer may allocate, free, wait, drop caches and panic. CPUs share no buffer, nothing must
//! be drained, and an operation in a signal handler has separate notes.
//!
//! Cost without observers: one relaxed load for each slow operation, and one branch for each step. With
//! observers: a write to the stack for each step, and two atomic operations on a shared word for each
//! observer of each operation.
//!
//! With the feature `usdt` each step is also a probe for `perf`, `bpftrace` and gdb, which may attach to the
//! running program. Its provider is `uslab`, its name is the step's, and its arguments are the step's fields.
//! Each operation begins with the probe `uslab:Operation`: [`What`] as a number, then the address and the
//! length of the name, which is not null-terminated. A probe costs a `nop`, and its arguments in registers.
//!
//! Kernel: `include/linux/tracepoint.h` records under locks into rings; Linux reads those later, and loses
//! overwritten entries.

use crate::cpu::Cpus;
use crate::paths::Path;
pub use crate::sync::observers::{MAX_OBSERVERS, TooManyObservers};
use crate::sync::observers::{Observers, Place};
use crate::sync::{Counter, assert_unlocked};
use core::cell::Cell;
use core::fmt;
use core::mem::MaybeUninit;
use std::sync::Arc;

/// Number of steps of an operation that are kept; later ones are [counted](Observed::lost).
const STEPS: usize = 64;

/// The kind of an operation: [`Observed::what`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// Allocates objects or pages.
    Alloc,
    /// Frees objects or pages.
    Free,
    /// Returns unneeded memory: a drain, a reap, or a shrink.
    Reclaim,
}

/// Defines the steps: for each its name, the level of an operation with it, and its description.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident $({ $($field:ident: $type:ty),* })? => $path:ident, $text:literal;)*) => {
        /// An event of a slow operation. Pages and slabs are identified by their first page number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Step { $(
            $(#[$doc])*
            $name $({ $(
                #[allow(missing_docs, reason = "the step says what it is")]
                $field: $type
            ),* })?,
        )* }

        impl Step {
            /// The level that the step raises its operation to.
            pub const fn path(&self) -> Path {
                match self { $(Self::$name { .. } => Path::$path,)* }
            }
            /// Fires a probe with the step's name and fields.
            #[cfg(feature = "usdt")]
            #[inline(always)]
            fn probe(self) {
                match self { $(Self::$name $({ $($field),* })? => probe::probe!(uslab, $name $($(, $field)*)?),)* }
            }
        }

        /// Describes the step as an action of a CPU: `takes a magazine from the depot`.
        impl fmt::Display for Step {
            #[allow(unused_variables, reason = "not all is said")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name $({ $($field),* })? => write!(f, $text),)* }
            }
        }
    };
}

steps! {
    /// Found its CPU's stack empty.
    Missed => Cpu, "misses";
    /// Found its CPU's stack full.
    Full => Cpu, "has no place";
    /// Locked a depot.
    DepotVisited => Depot, "visits the depot";
    /// Waits for a depot that another CPU has locked.
    DepotContended => Depot, "waits for the depot";
    /// Took a full magazine from the depot.
    DepotTaken => Depot, "takes a magazine from the depot";
    /// Put a full magazine into the depot.
    DepotGiven => Depot, "puts a magazine into the depot";
    /// Made more of the CPU's region writable.
    RegionCommitted { cpu: u32 } => Depot, "commits a part of the region of CPU {cpu}";
    /// Filled a magazine with this number of objects, or blocks of pages.
    Filled { rounds: u16 } => Cpu, "filled a magazine with {rounds} rounds";
    /// Flushed a magazine with this number of rounds.
    Flushed { rounds: u16 } => Cpu, "flushes a magazine of {rounds} rounds";
    /// Flushed this number of rounds, which a drain took from a CPU's stack.
    Drained { rounds: u32 } => Cpu, "flushes {rounds} drained rounds";
    /// Bypassed the stacks with one round.
    Bypassed => Cpu, "bypasses the stacks";
    /// Set the limit of stacks to this number of rounds.
    Resized { places: u16 } => Cpu, "sets the stack limit to {places} rounds";
    /// Locked a node's lists of slabs.
    NodeVisited => Slab, "locks the slab lists of its node";
    /// Took this number of free objects of a slab.
    ObjectsTaken { slab: u32, objects: u16 } => Slab, "allocates {objects} objects from slab {slab}";
    /// Returned this number of objects to their slab.
    ObjectsGiven { slab: u32, objects: u16 } => Slab, "frees {objects} objects to slab {slab}";
    /// Added a new slab to its node's lists.
    SlabAdded { slab: u32 } => Slab, "adds slab {slab}";
    /// Released a slab and its pages.
    SlabReleased { slab: u32 } => Slab, "releases slab {slab}";
    /// Requested a slab or a large block from the page allocator.
    PagesAsked => Pages, "asks for pages";
    /// Returned a slab or a large block to the page allocator.
    PagesReturned => Pages, "gives pages back";
    /// Locked a zone, to take this number of blocks.
    ZoneAsked { blocks: u32 } => Pages, "requests {blocks} blocks from the zone";
    /// Locked a zone, to return blocks of this order.
    ZoneGiven { order: u8 } => Pages, "frees blocks of order {order} to the zone";
    /// Took blocks out of the zone, the last one at `page`, with `splits` splits of larger blocks.
    BlocksTaken { blocks: u16, order: u8, page: u32, splits: u16 } => Pages,
        "takes {blocks} blocks of order {order}, with {splits} splits";
    /// Returned blocks to the zone, the last one at `page`, with `merges` merges of two buddies.
    BlocksGiven { blocks: u16, order: u8, page: u32, merges: u16 } => Pages,
        "gives {blocks} blocks of order {order} back, with {merges} merges";
    /// Requested memory from the system, which supplied this number of pages.
    Committed { pages: u32 } => Commit, "committed {pages} pages of memory";
    /// Returned this number of pages to the system.
    Decommitted { pages: u32 } => Commit, "decommitted {pages} pages";
    /// Committed this number of bytes for tables that describe pages.
    TablesCommitted { bytes: u32 } => Commit, "commits {bytes} bytes of metadata";
}

/// An operation, as an observer sees it at the operation's end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Observed<'a> {
    /// The kind of operation.
    pub what: What,
    /// The CPU at the operation's start.
    pub cpu: u32,
    /// The cache, or the size of page blocks; empty if there are several.
    pub name: &'a str,
    /// The highest level so far.
    pub path: Path,
    /// Its steps, in order, since the observer last saw the operation.
    pub steps: &'a [Step],
    /// Number of steps that were not kept.
    pub lost: u32,
    /// True if the operation continues, and the observer will see it again: for example a flush of many
    /// magazines.
    pub more: bool,
}

/// An allocation, a free or a reclaim in progress: the highest level so far, and its steps for
/// [observers](Tracepoints::observe).
#[derive(Debug)]
pub struct Operation<'t> {
    dearest: Cell<Path>,
    cold: bool,
    notes: Option<Notes<'t>>,
    steps: Steps,
}

/// The identity of the operation, and its observers.
#[derive(Debug)]
struct Notes<'t> {
    tracepoints: &'t Tracepoints,
    what: What,
    cpu: u32,
    name: &'t str,
}

/// The steps so far. Not written without observers.
#[derive(Debug)]
struct Steps {
    len: Cell<u32>,
    steps: [Cell<MaybeUninit<Step>>; STEPS],
}

impl Operation<'static> {
    /// Creates an operation without observers. It is only counted if a caller counts it.
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
    /// Creates an operation at the lowest level, for the observers of `tracepoints`, with the `name` that
    /// they see.
    #[inline]
    #[doc(hidden)]
    pub fn of(tracepoints: &'t Tracepoints, what: What, name: &'t str) -> Self {
        #[cfg(feature = "usdt")]
        probe::probe!(uslab, Operation, what, name.as_ptr(), name.len());
        Self::with(tracepoints.notes(what, name))
    }
    /// Marks the operation as returning memory that was unused for an interval.
    #[must_use]
    #[doc(hidden)]
    pub fn cold(mut self) -> Self {
        self.cold = true;
        self
    }
    /// Returns `true` if the freed memory is [cold](Self::cold): no CPU should keep it for its next
    /// allocation.
    #[doc(hidden)]
    pub const fn is_cold(&self) -> bool {
        self.cold
    }
    /// Runs a part of the operation in another layer, which counts that part separately.
    #[doc(hidden)]
    pub fn below<R>(&self, part: impl FnOnce(&Self) -> R) -> R {
        let before = self.dearest.replace(Path::Cpu);
        let result = part(self);
        self.did(before);
        result
    }
    /// Raises the operation to at least this level; [`tell!`](crate::tell) does so at a step.
    #[doc(hidden)]
    pub fn did(&self, path: Path) {
        self.dearest.set(self.dearest.get().max(path));
    }
    /// Notes a step. May be called under any lock.
    #[inline]
    #[doc(hidden)]
    pub fn note(&self, step: Step) {
        #[cfg(feature = "usdt")]
        step.probe();
        self.did(step.path());
        if self.notes.is_some() {
            let len = self.steps.len.get();
            if let Some(place) = self.steps.steps.get(len as usize) {
                place.set(MaybeUninit::new(step));
            }
            self.steps.len.set(len.saturating_add(1));
        }
    }
    /// The highest level so far.
    #[doc(hidden)]
    pub fn path(&self) -> Path {
        self.dearest.get()
    }
    /// Passes the steps so far to the observers, if there are many. No lock may be held.
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
            // SAFETY: `note` wrote as many steps as it counted.
            *step = unsafe { noted.get().assume_init() };
        }
        let Notes { what, cpu, name, tracepoints } = *notes;
        let (steps, lost) = (&steps[..kept], len - kept as u32);
        tracepoints.lost.add(lost.into());
        tracepoints.show(&Observed { what, cpu, name, path: self.path(), steps, lost, more });
    }
}

/// Passes the remaining steps to the observers.
impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if !crate::sync::abandoned() {
            self.show(0, false);
        }
    }
}

/// Records a step of an operation, or of a model's counterexample trace: [`uslab_sync::tell!`].
///
/// `tell!(op: Step::DepotGiven)` records a [`Step`] of the [`Operation`] `op`, in every build; `tell!(op:
/// depot => Step::DepotGiven)` also records what `depot.watched()` shows. Other forms are only for traces.
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

/// Counts of operations and steps that a subsystem's observers did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Operations executed by observers themselves.
    pub suppressed: u64,
    /// Steps of operations with too many steps.
    pub lost: u64,
    /// Observers that panicked, and were not called again.
    pub panics: u64,
}

/// A registered observer, until this is dropped.
///
/// When the drop returns, no call of the observer runs or begins any more, and the observer is dropped. A
/// drop inside an observer does not wait: a call on another thread may still run.
#[derive(Debug)]
#[must_use = "nobody observes any more when it is dropped"]
pub struct Observer {
    tracepoints: Arc<Tracepoints>,
    place: Option<Place>,
}

impl Observer {
    /// Counts of operations and steps not shown, for all observers together.
    pub fn counts(&self) -> Counts {
        let Tracepoints { observers, lost, .. } = &*self.tracepoints;
        Counts { suppressed: observers.suppressed(), lost: lost.get(), panics: observers.panics() }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.place.take().into_iter().for_each(|place| self.tracepoints.observers.remove(place));
    }
}

/// The observers of a subsystem's operations. See the [module](self).
#[derive(Debug)]
pub struct Tracepoints {
    cpus: Cpus,
    observers: Observers<Watch>,
    lost: Counter,
}

impl Tracepoints {
    /// Creates tracepoints without observers. `cpus` supplies the CPU of an operation's start.
    pub fn new(cpus: Cpus) -> Self {
        Self { cpus, observers: Observers::default(), lost: Counter::new(0) }
    }

    /// Calls `observer` for each slow operation from now on, at its end, on its thread and with no lock held.
    ///
    /// The observer's own operations are not shown to any observer, but [counted](Counts::suppressed). An
    /// observer that panics is not called again; the operation continues normally.
    ///
    /// # Errors
    /// [`TooManyObservers`] if the maximum is reached.
    pub fn observe(
        self: &Arc<Self>,
        observer: impl Fn(&Observed<'_>) + Send + Sync + 'static,
    ) -> Result<Observer, TooManyObservers> {
        let place = self.observers.add(Box::new(observer))?;
        Ok(Observer { tracepoints: self.clone(), place: Some(place) })
    }

    #[inline]
    fn notes<'t>(&'t self, what: What, name: &'t str) -> Option<Notes<'t>> {
        self.observers.listen().then(|| Notes { tracepoints: self, what, cpu: self.cpus.current(), name })
    }
    fn show(&self, observed: &Observed<'_>) {
        assert_unlocked();
        self.observers.each(|observer| observer(observed));
    }

    /// Forgets the calls of other threads.
    ///
    /// # Safety
    /// The process is the child of a `fork` and has no other thread yet.
    pub unsafe fn forget_other_threads(&self) {
        // SAFETY: the process is a child with a single thread, by this function's contract.
        unsafe { self.observers.forget_other_threads() };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::shadow::{TestSupplier, table};
    use crate::sync::Ordering::{Acquire, Release};
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
    /// Name, steps, number of lost steps, and whether more follows.
    type Seen = (String, Vec<Step>, u32, bool);

    /// An observer that sends each operation to a channel.
    fn written(tracepoints: &Arc<Tracepoints>) -> (Observer, Receiver<Seen>) {
        let (seen, read) = channel();
        let observer = tracepoints.observe(move |o| {
            let of = format!("{:?} of {} on CPU {}: {}", o.what, o.name, o.cpu, o.path.name());
            seen.send((of, o.steps.to_vec(), o.lost, o.more)).unwrap();
        });
        (observer.unwrap(), read)
    }

    #[test]
    fn operation_is_reported_once_with_all_its_steps() {
        let t = tracepoints();
        on_cpu(3);
        operate(&t, &[Step::Missed]);
        let (observer, read) = written(&t);
        let steps = [Step::Full, Step::DepotContended, Step::DepotGiven];
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
    fn long_operation_is_reported_in_parts() {
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
        assert_eq!((steps, lost, more, _observer.counts().lost), (vec![Step::Full; STEPS], 3, false, 3));
    }

    /// Each operation of the handler is shown or suppressed, and none waits, wherever the signal arrives.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn operations_of_a_signal_handler_are_reported_or_suppressed() {
        use crate::sync::AtomicPtr;
        use nix::libc;
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

        static HERE: AtomicPtr<Tracepoints> = AtomicPtr::new(core::ptr::null_mut());
        static CAME: Counter = Counter::new(0);
        extern "C" fn handler(_: libc::c_int) {
            // SAFETY: the pointer was set before the signals, and is reset after them.
            operate(unsafe { &*HERE.load(Acquire) }, &[Step::Full]);
            CAME.add(1);
        }
        let t = tracepoints();
        let shown = Arc::new(Counter::new(0));
        let count = shown.clone();
        let _observer = t.observe(move |o| count.add(o.steps.len() as u64)).unwrap();
        HERE.store(Arc::as_ptr(&t).cast_mut(), Release);
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler takes no lock and allocates nothing.
        let before = unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        // SAFETY: `pthread_self` has no preconditions.
        let me = unsafe { libc::pthread_self() } as usize; // musl's is a pointer
        let (done, mut own) = (AtomicBool::new(false), 0_u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                for sent in 1..=300 {
                    // SAFETY: that thread waits for this one, so it exists.
                    assert_eq!(unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) }, 0);
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
        // SAFETY: this restores the previous handler.
        unsafe { sigaction(Signal::SIGUSR1, &before) }.unwrap();
        assert_eq!((CAME.get(), shown.get() + _observer.counts().suppressed), (300, own + 300));
        assert!(_observer.counts().suppressed > 0, "none came while an observer ran");
    }

    /// The layer's own steps, and only as many as occurred.
    #[test]
    fn tracepoints_report_misses_and_no_hit() {
        on_cpu(0);
        let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(20, 1));
        let mut layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 1)).unwrap();
        layer.set_name("tickets");
        let (observer, read) = written(table.tracepoints());
        let held: Vec<_> = (0..8).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let shown: Vec<_> = read.try_iter().collect();
        assert_eq!(shown.len(), 4, "every second one");
        assert!(shown.iter().all(|(of, ..)| of.starts_with("Alloc of tickets on CPU 0: ")));
        assert!(shown.iter().all(|(_, steps, ..)| steps[..2] == [Step::Missed, Step::Filled { rounds: 2 }]));
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        layer.flush_all(&supplier);
        drop(observer);
        let steps: Vec<_> = read.iter().flat_map(|(_, steps, ..)| steps).collect();
        for step in [Step::Full, Step::DepotVisited, Step::Drained { rounds: 4 }] {
            assert!(steps.contains(&step), "{step:?} of {steps:?}");
        }
        let paths = layer.stats().paths;
        assert_eq!((paths.operations(), paths.cpu), (16, 16 - paths.depot - paths.slab));
    }

    /// A flush of a full depot is one operation of hundreds of steps.
    #[test]
    fn flush_of_a_full_depot_loses_no_step() {
        on_cpu(0);
        let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(300, 1));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(1, 0, 300)).unwrap();
        let held: Vec<_> = (0..300).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        let (observer, read) = written(table.tracepoints());
        layer.flush_all(&supplier);
        assert_eq!(observer.counts(), Counts::default());
        assert!(read.try_iter().map(|(_, steps, ..)| steps.len()).sum::<usize>() > 4 * STEPS);
    }

    /// A drain of all CPUs loses none, either; it flushes each CPU separately.
    #[test]
    fn drain_of_many_cpus_loses_no_step() {
        const CPUS: usize = 2 * STEPS;
        let (table, supplier) = (table(Cpus::simulated(CPUS as u32, 1).unwrap()), TestSupplier::new(CPUS, 1));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(1, 0, 0)).unwrap();
        for cpu in 0..CPUS as u32 {
            on_cpu(cpu);
            layer.free(&supplier, layer.alloc(&supplier).unwrap());
        }
        let (observer, read) = written(table.tracepoints());
        layer.drain(&supplier, 0..CPUS as u32);
        assert_eq!(observer.counts(), Counts::default());
        let steps = read.try_iter().flat_map(|(_, steps, ..)| steps);
        assert_eq!(steps.filter(|step| *step == Step::Drained { rounds: 1 }).count(), CPUS);
    }

    #[test]
    fn each_step_has_a_text() {
        let text = |step: Step| step.to_string();
        assert_eq!(text(Step::DepotContended), "waits for the depot");
        assert_eq!(
            text(Step::BlocksTaken { blocks: 3, order: 1, page: 60, splits: 5 }),
            "takes 3 blocks of order 1, with 5 splits"
        );
        assert!(size_of::<Step>() <= 12);
    }
}

//! Tracepoints, with which observers receive the steps of slow operations.
//!
//! Fast paths have no tracepoints. An operation that observers do not see was served by its CPU's stack. A slow
//! operation checks once if any [observer](Tracepoints::observe) is registered. If any observer is registered, a slow
//! operation records each [`Step`] in its stack frame, even while it holds locks. At its end, when it holds no lock,
//! the operation passes the steps to the observers. An observer may allocate, free, wait, drop caches and panic. CPUs
//! share no trace buffer that must be drained, and an operation in a signal handler records its steps separately.
//!
//! Without observers, the cost is one relaxed load per slow operation, and one branch per step. With observers, the
//! cost is one write to the call stack per step, and two atomic operations on a shared word per observer and operation.
//!
//! With the feature `usdt`, each step is also a USDT probe, to which `perf`, `bpftrace` and gdb can attach in the
//! running program. The probe has the provider `uslab`, the name of the step, and the step's fields as arguments. Each
//! operation first fires the probe `uslab:Operation`. The arguments of `uslab:Operation` are the [`OperationKind`] as a
//! number, and the address and length of the operation's name, which is not null-terminated. A probe that is not
//! attached costs one `nop` instruction, and the registers for its arguments.
//!
//! The kernel's tracepoints (`include/linux/tracepoint.h`) work differently: they write into ring buffers, which a
//! reader reads later, and overwritten entries are lost.

use crate::cpu::Cpus;
use crate::paths::Path;
pub use crate::sync::observers::{MAX_OBSERVERS, TooManyObservers};
use crate::sync::observers::{Observers, Place};
use crate::sync::{Counter, assert_unlocked};
use core::cell::Cell;
use core::fmt;
use core::mem::MaybeUninit;
use std::sync::Arc;

/// Maximum number of steps that an operation records. Further steps are only [counted](Observed::lost).
const STEPS: usize = 64;

/// The kind of an operation that observers see, in [`Observed::what`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// An allocation of objects or pages.
    Alloc,
    /// A free of objects or pages.
    Free,
    /// Returns memory that is not needed: a drain, a reap, or a shrink.
    Reclaim,
}

/// Defines the steps. Each step has a name, fields, a level, and a description.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident $({ $($field:ident: $type:ty),* })? => $path:ident, $text:literal;)*) => {
        /// An event in the course of a slow operation. Fields identify a page block or a slab by its first page number.
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
            /// Returns the level that an operation reaches with this step.
            pub const fn path(&self) -> Path {
                match self { $(Self::$name { .. } => Path::$path,)* }
            }
            /// Fires the USDT probe of this step, with the step's fields.
            #[cfg(feature = "usdt")]
            #[inline(always)]
            fn probe(self) {
                match self { $(Self::$name $({ $($field),* })? => probe::probe!(uslab, $name $($(, $field)*)?),)* }
            }
        }

        /// Prints the step as an action of a CPU, for example `takes a magazine from the depot`.
        impl fmt::Display for Step {
            #[allow(unused_variables, reason = "not all is said")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name $({ $($field),* })? => write!(f, $text),)* }
            }
        }
    };
}

steps! {
    /// The operation found its CPU's stack empty.
    Missed => Cpu, "misses";
    /// The operation found its CPU's stack full.
    Full => Cpu, "has no place";
    /// The operation locked a depot.
    DepotVisited => Depot, "visits the depot";
    /// The operation waited for a depot that another thread had locked.
    DepotContended => Depot, "waits for the depot";
    /// The operation took a full magazine from the depot.
    DepotTaken => Depot, "takes a magazine from the depot";
    /// The operation put a full magazine into the depot.
    DepotGiven => Depot, "puts a magazine into the depot";
    /// The operation committed more of the region of CPU `cpu`.
    RegionCommitted { cpu: u32 } => Depot, "commits a part of the region of CPU {cpu}";
    /// The operation filled a magazine with `rounds` objects or page blocks.
    Filled { rounds: u16 } => Cpu, "filled a magazine with {rounds} rounds";
    /// The operation flushed a magazine of `rounds` objects.
    Flushed { rounds: u16 } => Cpu, "flushes a magazine of {rounds} rounds";
    /// The operation flushed `rounds` objects that a drain took from a CPU's stack.
    Drained { rounds: u32 } => Cpu, "flushes {rounds} drained rounds";
    /// The operation allocated or freed one object without using a stack.
    Bypassed => Cpu, "bypasses the stacks";
    /// The operation set the capacity limit of the stacks to `places` objects.
    Resized { places: u16 } => Cpu, "sets the stack limit to {places} rounds";
    /// The operation locked the slab lists of a node.
    NodeVisited => Slab, "locks the slab lists of its node";
    /// The operation took `objects` free objects from a slab.
    ObjectsTaken { slab: u32, objects: u16 } => Slab, "allocates {objects} objects from slab {slab}";
    /// The operation returned `objects` objects to their slab.
    ObjectsGiven { slab: u32, objects: u16 } => Slab, "frees {objects} objects to slab {slab}";
    /// The operation added a new slab to its node's lists.
    SlabAdded { slab: u32 } => Slab, "adds slab {slab}";
    /// The operation released a slab and its pages.
    SlabReleased { slab: u32 } => Slab, "releases slab {slab}";
    /// The operation requested a slab or a large block from the page allocator.
    PagesAsked => Pages, "requests pages";
    /// The operation returned a slab or a large block to the page allocator.
    PagesReturned => Pages, "returns pages";
    /// The operation locked a zone to allocate up to `blocks` blocks.
    ZoneAsked { blocks: u32 } => Pages, "requests {blocks} blocks from the zone";
    /// The operation locked a zone to free blocks of order `order`.
    ZoneGiven { order: u8 } => Pages, "frees blocks of order {order} to the zone";
    /// The operation allocated `blocks` blocks of order `order` from a zone, with `splits` splits of larger blocks. The
    /// last block starts at page `page`.
    BlocksTaken { blocks: u16, order: u8, page: u32, splits: u16 } => Pages,
        "takes {blocks} blocks of order {order}, with {splits} splits";
    /// The operation freed `blocks` blocks of order `order` to a zone, with `merges` merges of buddies. The last block
    /// starts at page `page`.
    BlocksGiven { blocks: u16, order: u8, page: u32, merges: u16 } => Pages,
        "returns {blocks} blocks of order {order}, with {merges} merges";
    /// The operation requested memory from the OS, and got `pages` pages.
    Committed { pages: u32 } => Commit, "committed {pages} pages of memory";
    /// The operation returned `pages` pages to the OS.
    Decommitted { pages: u32 } => Commit, "decommitted {pages} pages";
    /// The operation committed `bytes` bytes of page metadata tables or stack tables.
    TablesCommitted { bytes: u32 } => Commit, "commits {bytes} bytes of metadata";
}

/// An operation, as an observer sees it when the operation ends.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Observed<'a> {
    /// The kind of the operation: allocation, free, or reclaim.
    pub what: OperationKind,
    /// The CPU on which the operation started.
    pub cpu: u32,
    /// The name of the cache, or the size of the page blocks; empty if the operation covers several caches or sizes.
    pub name: &'a str,
    /// The highest level that the operation has reached so far.
    pub path: Path,
    /// The steps that the operation executed since the observer last saw it, in order.
    pub steps: &'a [Step],
    /// Number of steps that the operation executed but could not record.
    pub lost: u32,
    /// True if the operation has not ended, so that the observer will see it again. For example, a flush of many
    /// magazines is reported in several parts.
    pub more: bool,
}

/// An allocation, free or reclaim in progress. An `Operation` records the highest level that was reached, and the steps
/// for [observers](Tracepoints::observe).
#[derive(Debug)]
pub struct Operation<'t> {
    slowest_level: Cell<Path>,
    cold: bool,
    notes: Option<Notes<'t>>,
    steps: Steps,
}

/// What observers need to know about an operation.
#[derive(Debug)]
struct Notes<'t> {
    tracepoints: &'t Tracepoints,
    what: OperationKind,
    cpu: u32,
    name: &'t str,
}

/// The operation's steps. The array of steps stays uninitialised if no observer is registered.
#[derive(Debug)]
struct Steps {
    len: Cell<u32>,
    steps: [Cell<MaybeUninit<Step>>; STEPS],
}

impl Operation<'static> {
    /// Creates an operation without observers. The operation appears in statistics only if the caller counts it.
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
        Self {
            slowest_level: Cell::new(Path::Cpu),
            cold: false,
            notes,
            steps: Steps { len: Cell::new(0), steps },
        }
    }
    #[inline]
    fn show(&self, above: u32, more: bool) {
        if let Some(notes) = &self.notes
            && self.steps.len.get() > above
        {
            self.report_to_observers(notes, more);
        }
    }
    #[cold]
    fn report_to_observers(&self, notes: &Notes<'t>, more: bool) {
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

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl<'t> Operation<'t> {
    /// Creates an operation at the lowest level, for the observers of `tracepoints`. Observers see `name`.
    #[inline]
    pub fn of(tracepoints: &'t Tracepoints, what: OperationKind, name: &'t str) -> Self {
        #[cfg(feature = "usdt")]
        probe::probe!(uslab, Operation, what, name.as_ptr(), name.len());
        Self::with(tracepoints.notes(what, name))
    }

    /// Marks the memory that the operation frees as cold, so that no CPU keeps it for the next allocation.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.cold = true;
        self
    }

    /// Returns `true` if the memory that the operation frees is marked as [cold](Self::cold).
    pub const fn is_cold(&self) -> bool {
        self.cold
    }

    /// Runs a part of the operation in the layer below. The layer below counts this part as a separate operation.
    pub fn below<R>(&self, part: impl FnOnce(&Self) -> R) -> R {
        let before = self.slowest_level.replace(Path::Cpu);
        let result = part(self);
        self.did(before);
        result
    }

    /// Records that the operation has reached the level `path`. [`note`](Self::note) calls `did` with the level of each
    /// recorded step.
    pub fn did(&self, path: Path) {
        self.slowest_level.set(self.slowest_level.get().max(path));
    }

    /// Records that the operation executed `step`. The caller of `note` may hold any locks.
    #[inline]
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

    /// Returns the highest level that the operation has reached.
    pub fn path(&self) -> Path {
        self.slowest_level.get()
    }

    /// Passes the recorded steps to the observers if many steps are recorded. The caller of `pause` must not hold any
    /// lock.
    #[inline]
    pub fn pause(&self) {
        self.show(STEPS as u32 / 2, true);
    }
}

/// When an operation is dropped, it passes its remaining steps to the observers.
impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if !crate::sync::abandoned() {
            self.show(0, false);
        }
    }
}

/// Records a step of an operation, or a step of a model's counterexample trace (see [`uslab_sync::tell!`]).
///
/// `tell!(op: Step::DepotGiven)` records a [`Step`] of the [`Operation`] `op`, in every build. In a model,
/// `tell!(op: depot => Step::DepotGiven)` also records the state that `depot.watched()` returns. All other forms of
/// `tell!` record only a step of a counterexample trace.
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

type ObserverFn = dyn Fn(&Observed<'_>) + Send + Sync;

/// Counts of operations and steps that were not reported to a subsystem's observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of slow operations that observers themselves executed.
    pub suppressed: u64,
    /// Number of steps that operations could not record, because they had too many steps.
    pub lost: u64,
    /// Number of observers that panicked. An observer that has panicked is not called again.
    pub panics: u64,
}

/// A registered observer. Dropping an `Observer` unregisters the observer.
///
/// When the drop returns, the observer's function is dropped, and no call of the function is running or will begin. A
/// drop inside an observer call does not wait, so a call on another thread may still be running.
#[derive(Debug)]
#[must_use = "dropping the observer stops the observation"]
pub struct Observer {
    tracepoints: Arc<Tracepoints>,
    place: Option<Place>,
}

impl Observer {
    /// Returns the counts of operations and steps that were not reported, for all observers together.
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

/// The tracepoints of a subsystem, with the registered observers. See the [module](self).
#[derive(Debug)]
pub struct Tracepoints {
    cpus: Cpus,
    observers: Observers<ObserverFn>,
    lost: Counter,
}

impl Tracepoints {
    /// Creates tracepoints without observers. The argument `cpus` determines the CPU number that an operation reports.
    pub fn new(cpus: Cpus) -> Self {
        Self { cpus, observers: Observers::default(), lost: Counter::new(0) }
    }

    /// Registers `observer`, which is then called at the end of each slow operation, on the thread of the operation,
    /// while no lock is held.
    ///
    /// Operations that an observer executes are not reported to observers, but are [counted](Counts::suppressed). If an
    /// observer panics, it is not called again, and the operation continues normally.
    ///
    /// # Errors
    /// Returns [`TooManyObservers`] if the maximum number of observers is already registered.
    pub fn observe(
        self: &Arc<Self>,
        observer: impl Fn(&Observed<'_>) + Send + Sync + 'static,
    ) -> Result<Observer, TooManyObservers> {
        let place = self.observers.add(Box::new(observer))?;
        Ok(Observer { tracepoints: self.clone(), place: Some(place) })
    }

    #[inline]
    fn notes<'t>(&'t self, what: OperationKind, name: &'t str) -> Option<Notes<'t>> {
        self.observers.is_active().then(|| Notes { tracepoints: self, what, cpu: self.cpus.current(), name })
    }
    fn show(&self, observed: &Observed<'_>) {
        assert_unlocked();
        self.observers.each(|observer| observer(observed));
    }

    /// In the child of a `fork`, forgets observer calls that were running on other threads.
    ///
    /// # Safety
    /// The calling thread must be the only thread of the process, which must be the child of a `fork`.
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
        let op = Operation::of(tracepoints, OperationKind::Free, "inode");
        steps.iter().for_each(|step| op.note(*step));
    }
    /// What the tests compare: an operation's name, its steps, the number of lost steps, and `true` if more steps
    /// follow.
    type SeenOperation = (String, Vec<Step>, u32, bool);

    /// Registers an observer that sends each observed operation to a channel.
    fn observe_into_channel(tracepoints: &Arc<Tracepoints>) -> (Observer, Receiver<SeenOperation>) {
        let (seen, read) = channel();
        let observer = tracepoints.observe(move |o| {
            let of = format!("{:?} of {} on CPU {}: {}", o.what, o.name, o.cpu, o.path.name());
            seen.send((of, o.steps.to_vec(), o.lost, o.more)).unwrap();
        });
        (observer.unwrap(), read)
    }

    #[test]
    fn tracepoint_reports_each_operation_once_with_all_steps() {
        let t = tracepoints();
        on_cpu(3);
        operate(&t, &[Step::Missed]);
        let (observer, read) = observe_into_channel(&t);
        let steps = [Step::Full, Step::DepotContended, Step::DepotGiven];
        {
            let op = Operation::of(&t, OperationKind::Free, "inode");
            steps.iter().for_each(|step| op.note(*step));
            assert!(read.try_recv().is_err(), "an operation is reported at its end");
            on_cpu(0);
        }
        let of = "Free of inode on CPU 3: depot".to_owned();
        assert_eq!(read.try_recv(), Ok((of, steps.to_vec(), 0, false)));
        operate(&t, &[]);
        drop(Operation::new());
        drop(observer);
        operate(&t, &steps);
        assert!(read.recv().is_err(), "no other operation is reported after the observer was dropped");
    }

    #[test]
    fn tracepoint_reports_a_long_operation_in_parts() {
        let t = tracepoints();
        let (_observer, read) = observe_into_channel(&t);
        {
            let op = Operation::of(&t, OperationKind::Reclaim, "");
            for _ in 0..STEPS / 2 {
                op.note(Step::Missed);
                op.pause();
            }
            assert!(read.try_recv().is_err(), "no operation may be observed before the first interval ends");
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

    /// A signal may arrive at any point. Each operation of the signal handler is either reported or suppressed, and
    /// never waits.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn tracepoint_in_a_signal_handler_never_waits() {
        use crate::sync::AtomicPtr;
        use nix::libc;
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

        static SIGNAL_TRACEPOINTS: AtomicPtr<Tracepoints> = AtomicPtr::new(core::ptr::null_mut());
        static TEST_CALLS: Counter = Counter::new(0);
        extern "C" fn handler(_: libc::c_int) {
            // SAFETY: the pointer was set before the signals, and is reset after them.
            operate(unsafe { &*SIGNAL_TRACEPOINTS.load(Acquire) }, &[Step::Full]);
            TEST_CALLS.add(1);
        }
        let t = tracepoints();
        let shown = Arc::new(Counter::new(0));
        let count = shown.clone();
        let _observer = t.observe(move |o| count.add(o.steps.len() as u64)).unwrap();
        SIGNAL_TRACEPOINTS.store(Arc::as_ptr(&t).cast_mut(), Release);
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler takes no lock and allocates nothing.
        let before = unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        // SAFETY: `pthread_self` has no preconditions.
        let me = unsafe { libc::pthread_self() } as usize; // musl's is a pointer
        let (done, mut own) = (AtomicBool::new(false), 0_u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                for sent in 1..=300 {
                    // SAFETY: that thread waits for this thread, so it exists.
                    assert_eq!(unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) }, 0);
                    while TEST_CALLS.get() < sent {
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
        assert_eq!((TEST_CALLS.get(), shown.get() + _observer.counts().suppressed), (300, own + 300));
        assert!(_observer.counts().suppressed > 0, "no call was observed while an observer ran");
    }

    /// Observers see the steps of operations that missed, and no operation that a stack served.
    #[test]
    fn tracepoints_report_only_misses() {
        on_cpu(0);
        let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(20, 1));
        let mut layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 1)).unwrap();
        layer.set_name("tickets");
        let (observer, read) = observe_into_channel(table.tracepoints());
        let held: Vec<_> = (0..8).map(|_| layer.alloc(&supplier).unwrap()).collect();
        let shown: Vec<_> = read.try_iter().collect();
        assert_eq!(shown.len(), 4, "every second call is observed");
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

    /// A flush of a full depot is a single operation with hundreds of steps, which are reported in several parts.
    #[test]
    fn flush_of_a_full_depot_reports_all_its_steps() {
        on_cpu(0);
        let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(300, 1));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(1, 0, 300)).unwrap();
        let held: Vec<_> = (0..300).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        let (observer, read) = observe_into_channel(table.tracepoints());
        layer.flush_all(&supplier);
        assert_eq!(observer.counts(), Counts::default());
        assert!(read.try_iter().map(|(_, steps, ..)| steps.len()).sum::<usize>() > 4 * STEPS);
    }

    /// A drain of all CPUs loses no step, because it reports its steps after each CPU.
    #[test]
    fn drain_of_many_cpus_reports_all_its_steps() {
        const CPUS: usize = 2 * STEPS;
        let (table, supplier) = (table(Cpus::simulated(CPUS as u32, 1).unwrap()), TestSupplier::new(CPUS, 1));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(1, 0, 0)).unwrap();
        for cpu in 0..CPUS as u32 {
            on_cpu(cpu);
            layer.free(&supplier, layer.alloc(&supplier).unwrap());
        }
        let (observer, read) = observe_into_channel(table.tracepoints());
        layer.drain(&supplier, 0..CPUS as u32);
        assert_eq!(observer.counts(), Counts::default());
        let steps = read.try_iter().flat_map(|(_, steps, ..)| steps);
        assert_eq!(steps.filter(|step| *step == Step::Drained { rounds: 1 }).count(), CPUS);
    }

    #[test]
    fn each_tracepoint_step_has_a_description() {
        let text = |step: Step| step.to_string();
        assert_eq!(text(Step::DepotContended), "waits for the depot");
        assert_eq!(
            text(Step::BlocksTaken { blocks: 3, order: 1, page: 60, splits: 5 }),
            "takes 3 blocks of order 1, with 5 splits"
        );
        assert!(size_of::<Step>() <= 12);
    }
}

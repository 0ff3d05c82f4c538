//! Virtual time: the cost of operations on many CPUs.
//!
//! Each CPU has its own clock. The CPU with the lowest clock runs next; among CPUs with equal clocks, the
//! lowest-numbered CPU runs. The CPU that runs next does one whole operation.
//!
//! - **A lock** becomes free at a certain time; a CPU that requests the lock earlier waits until then.
//! - **A cache line** is held by the CPU that last wrote it, and by the CPUs that have read it since. A CPU that reads
//!   a line must fetch it if it does not hold the line and other CPUs do. A CPU that writes a line must fetch it if
//!   another CPU holds the line. The [profile](Profile) sets the price of moving a line between two CPUs, which depends
//!   on their distance.
//!
//! A [`Model`] reports a [cost event](CostEvent) for each step of an operation that the CPU cannot serve from its own
//! memory. Each cost event determines the lock that the CPU takes, the cache lines that move, and the work under the
//! lock. A [`Profile`] contains the prices, and the source of each measurement.
//!
//! # Which lines
//!
//! | what | when it is accessed | lines |
//! |---|---|---|
//! | a lock, with what it protects | by each operation that takes it | [`Lines::depot`], [`Lines::lists`]; three for the zone |
//! | a magazine's place in the depot | written by a free that leaves its magazine there, read by an allocation that takes it | its objects by 8 bytes, and 16 bytes before them |
//! | the frame of a page: a slab's bitmap, its links; the slab of a page | an object is allocated or freed; its slab or a neighbour on the list moves; the slab is created | one |
//! | counters of operations | every operation that uses more than its CPU's memory | [`Lines::counts`], together with the lines of the depot's lock |
//! | counters of slabs | a slab is created or freed | [`Lines::slabs`] |
//!
//! A test (`tests/sim/lines.rs`) runs the same operations on the shipping allocator and on
//! [`uslab-model`](crate::models::uslab), with 2, 4 and 8 simulated CPUs. The test passes each load and store of the
//! allocator through a MESI protocol, and compares the number of cache lines moved with the model's number. Models of
//! other designs simulate no memory contents, so the test cannot check the cache lines that these models move.
//!
//! The virtual clock counts neither reaps nor allocations of the allocator's metadata. The virtual clock assumes that
//! creating or freeing a slab always takes the zone lock. Per-CPU pages let the shipping code access the zone less
//! often, but each of its zone accesses moves about twelve cache lines.

mod film;
mod profile;
mod source;
mod team;
mod trace;
mod work;

pub use film::{Film, LockHold, LockKind, TimedOperation, film};
pub use profile::{BadProfile, Level, Price, Profile};
pub use work::{BadWorkload, Exchange, Script, ScriptAction, Workload};

use crate::design::{At, Design, Unsupported};
use crate::model::{CostEvent, Lines, Model, ModelObject, Policy};
use crate::pages::Pages;
use crate::stream::{CacheInfo, Kind, Stream};
use rustc_hash::FxHashMap;
use serde::Serialize;
use source::{Next, Source};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use team::Team;
use trace::Trace;
use uslab_magazine::Paths;

/// A lock that simulated CPUs take. Each cache has its own locks, identified by the cache's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Lock {
    /// The lock of the level that all CPUs share: a depot, a barn or a shared array.
    Depot(u32),
    /// The lock of a cache's slab lists.
    Lists(u32),
    /// The lock of the page allocator.
    Zone,
}

impl Lock {
    fn kind(self) -> LockKind {
        match self {
            Self::Depot(_) => LockKind::Depot,
            Self::Lists(_) => LockKind::Lists,
            Self::Zone => LockKind::Zone,
        }
    }
}

/// A cache line, or several lines that always move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    /// The line that contains a lock and the data that the lock protects.
    Lock(Lock),
    /// The line of one slot in a cache's depot, which can hold a container; slots are counted from the bottom.
    Place(u32, u32),
    /// The line with a page's frame metadata.
    Frame(u32),
    /// The line with a cache's operation counters, which change if the CPU's own memory cannot serve an operation.
    Counts(u32),
    /// The line with the counters of a cache's slabs.
    Slabs(u32),
}

/// Statistics of one lock, or sums over all locks of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LockCounts {
    /// The number of lock acquisitions.
    pub taken: u64,
    /// The number of lock acquisitions that had to wait.
    pub contended: u64,
    /// Nanoseconds spent waiting for locks, summed over all CPUs.
    pub waited_ns: f64,
}

/// The result of a run in virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Outcome {
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of allocations and frees of all CPUs.
    pub operations: u64,
    /// The time in nanoseconds at which the last CPU finished.
    pub ns: f64,
    /// The number of operations per microsecond, on all CPUs together.
    pub operations_per_us: f64,
    /// The fraction of the total CPU time that was spent waiting for locks.
    pub waiting: f64,
    /// The number of cache lines that moved between CPUs, per operation.
    pub lines_per_operation: f64,
    /// The statistics of the locks of depots and other levels that CPUs share.
    pub depot: LockCounts,
    /// The statistics of the locks of the slab lists.
    pub lists: LockCounts,
    /// The lock of the page allocator.
    pub zone: LockCounts,
    /// The number of operations that each level served.
    #[cfg_attr(test, ts(type = "Record<Path, number>"))]
    pub paths: Paths,
    /// The number of slabs of all caches at the end.
    pub slabs: u64,
    /// The capacity of a magazine, sheaf or array of the first cache at the end; 0 if the design has no such
    /// containers.
    pub container: u32,
}

/// The effects of one operation, from which its cost is computed.
struct OperationEffects<'a> {
    /// The cache's number in the stream.
    cache: u32,
    cost_events: &'a [CostEvent],
    /// The pages whose frame metadata the operation accessed.
    frames: &'a [u32],
    /// `true` if the operation took its CPU's lock.
    takes_cpu_lock: bool,
    /// The number of objects in the container that the operation moves to or from the depot.
    container_objects: u32,
    /// The depot slot of the container that the operation moves.
    depot_slot: u32,
    /// `true` if the operation is an allocation that takes the container out of the depot.
    taken: bool,
    lines: Lines,
}

impl OperationEffects<'_> {
    /// Returns how many real cache lines one line of the model represents.
    fn size(&self, line: Line) -> u32 {
        match line {
            Line::Lock(Lock::Depot(_)) => self.lines.depot,
            Line::Lock(Lock::Lists(_)) => self.lines.lists,
            Line::Counts(_) => self.lines.counts,
            Line::Slabs(_) => self.lines.slabs,
            // A container has a header of 16 bytes and pointers of 8 bytes.
            Line::Place(..) => (16 + 8 * self.container_objects).div_ceil(64),
            // An access of the zone moves some twelve lines, but per-CPU pages serve most slabs without the
            // zone.
            Line::Lock(Lock::Zone) => 3,
            Line::Frame(_) => 1,
        }
    }
}

/// The kind of access to a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// The state of all CPUs, locks and lines.
#[derive(Debug)]
struct Clock<'p> {
    profile: &'p Profile,
    /// The time at which each lock becomes free.
    free: FxHashMap<Lock, f64>,
    /// For each line, the CPUs that hold the line: the last writer, and the CPUs that have read the line since.
    lines: FxHashMap<Line, Vec<u32>>,
    counts: FxHashMap<Lock, LockCounts>,
    moved_lines: u64,
    waited_ns: f64,
    /// The locks that the last operation took.
    holds: Vec<LockHold>,
}

impl<'p> Clock<'p> {
    fn new(profile: &'p Profile) -> Self {
        Self {
            profile,
            free: <_>::default(),
            lines: <_>::default(),
            counts: <_>::default(),
            moved_lines: 0,
            waited_ns: 0.0,
            holds: vec![],
        }
    }

    /// Sums the statistics of all locks of one kind. Waiting times are added in the order of the locks' numbers, so
    /// that repeated runs give bit-identical sums.
    fn locks(&self, kind: fn(&Lock) -> bool) -> LockCounts {
        let mut locks: Vec<_> = self.counts.iter().filter(|(lock, _)| kind(lock)).collect();
        locks.sort_by_key(|(lock, _)| **lock);
        locks.into_iter().fold(LockCounts::default(), |sum, (_, lock)| LockCounts {
            taken: sum.taken + lock.taken,
            contended: sum.contended + lock.contended,
            waited_ns: sum.waited_ns + lock.waited_ns,
        })
    }

    /// Returns the nanoseconds for moving a line to a CPU that accesses it; 0 if the CPU need not fetch the line.
    fn fetch(&mut self, cpu: u32, line: Line, access: Access, effects: &OperationEffects<'_>) -> f64 {
        let copies = self.lines.entry(line).or_default();
        let has_copy = copies.contains(&cpu);
        let holder = copies.iter().copied().find(|holder| *holder != cpu);
        if access == Access::Write {
            copies.clear();
        }
        if access == Access::Write || !has_copy {
            copies.push(cpu);
        }
        match holder {
            Some(holder) if access == Access::Write || !has_copy => {
                let lines = effects.size(line);
                self.moved_lines += u64::from(lines);
                f64::from(lines) * self.profile.cache_line_move_ns(holder, cpu)
            }
            _ => 0.0,
        }
    }

    /// Returns the end time of an operation that began at `now`; also returns `true` if the operation waited for a
    /// shared lock.
    fn charge(&mut self, cpu: u32, now: f64, effects: &OperationEffects<'_>) -> (f64, bool) {
        let profile = self.profile;
        let mut time = now + profile.own.ns + if effects.takes_cpu_lock { profile.lock.ns } else { 0.0 };
        let mut contended = false;
        self.holds.clear();
        for event in effects.cost_events {
            let (lock, work) = match *event {
                CostEvent::Swap | CostEvent::Widened => (None, profile.own.ns),
                CostEvent::Exchange | CostEvent::Miss => {
                    (Some(Lock::Depot(effects.cache)), profile.exchange.ns)
                }
                CostEvent::Refill(n) | CostEvent::Flush(n) => {
                    (Some(Lock::Lists(effects.cache)), profile.move_objects_ns(n))
                }
                CostEvent::Relist => (Some(Lock::Lists(effects.cache)), profile.relist.ns),
                CostEvent::Remote => (None, profile.lock.ns + profile.object.ns),
                CostEvent::Made | CostEvent::Released => (Some(Lock::Zone), profile.slab.ns),
            };
            if let Some(lock) = lock {
                let counts = self.counts.entry(lock).or_default();
                counts.taken += 1;
                let free_at = self.free.get(&lock).copied().unwrap_or(0.0);
                self.holds.push(LockHold {
                    lock: lock.kind(),
                    asked_ns: time,
                    taken_ns: free_at.max(time),
                    freed_ns: 0.0,
                });
                if free_at > time {
                    counts.contended += 1;
                    counts.waited_ns += free_at - time;
                    self.waited_ns += free_at - time;
                    contended |= matches!(lock, Lock::Depot(_));
                    time = free_at;
                }
                time += profile.lock.ns + self.fetch(cpu, Line::Lock(lock), Access::Write, effects);
            }
            if matches!(
                event,
                CostEvent::Refill(_) | CostEvent::Flush(_) | CostEvent::Relist | CostEvent::Remote
            ) {
                for frame in effects.frames {
                    time += self.fetch(cpu, Line::Frame(*frame), Access::Write, effects);
                }
            }
            time += work;
            if let Some(lock) = lock {
                self.free.insert(lock, time);
                if let Some(hold) = self.holds.last_mut() {
                    hold.freed_ns = time;
                }
            }
            // The time at which the lock becomes free again.
            if *event == CostEvent::Exchange {
                let access = if effects.taken { Access::Read } else { Access::Write };
                time += self.fetch(cpu, Line::Place(effects.cache, effects.depot_slot), access, effects);
            }
        }
        if effects.lines.counts > 0 && !effects.cost_events.is_empty() {
            time += self.fetch(cpu, Line::Counts(effects.cache), Access::Write, effects);
            time += self.fetch(cpu, Line::Lock(Lock::Depot(effects.cache)), Access::Write, effects);
        }
        if effects.cost_events.iter().any(|event| matches!(event, CostEvent::Made | CostEvent::Released)) {
            time += self.fetch(cpu, Line::Slabs(effects.cache), Access::Write, effects);
        }
        (time, contended)
    }
}

/// The number of intervals in a run; depots adapt their sizes at the end of each interval. A run takes only
/// milliseconds, so it would end before the first interval of real length (some seconds).
pub const INTERVALS: u64 = 20;

/// The reason why a run in virtual time failed.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The design does not support the workload.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// An invariant of the design did not hold.
    #[error("an invariant does not hold: {0}")]
    Violated(String),
    /// The simulated machine is out of memory.
    #[error("{0} CPUs: the simulated machine has no memory left")]
    NoMemory(u32),
    /// The stream's bytes are invalid.
    #[error("the stream is damaged")]
    Damaged,
}

/// Runs a generated workload: each CPU does `operations` operations on objects of `size` bytes.
///
/// Runs with equal seeds give bit-identical outcomes.
///
/// # Errors
/// Returns a [`ClockError`].
pub fn run<P: Policy>(
    pages: &Pages,
    knobs: P::Knobs,
    workload: &Workload,
    profile: &Profile,
    size: u32,
    operations: u64,
    seed: u64,
) -> Result<Outcome, ClockError> {
    let cpus = pages.allocator().cpus().count();
    let object = CacheInfo::new("object", Kind::Named, size);
    let mut team = Team::new(workload, cpus, operations, seed);
    let total = operations * u64::from(cpus);
    drive::<P>(pages, knobs, &[object], &mut team, profile, total, workload.think_ns(), &mut |_, _| ())
}

/// Runs a recorded stream without the recorded idle times. Each CPU runs its own object operations as fast as possible.
/// A free of an object that another CPU allocates waits until the allocation is done. The run ignores recorded times,
/// shrink operations, and pages that belong to no cache.
///
/// Repeated runs of one stream give bit-identical outcomes.
///
/// # Errors
/// Returns a [`ClockError`].
pub fn run_stream<P: Policy>(
    pages: &Pages,
    knobs: P::Knobs,
    stream: &Stream,
    profile: &Profile,
) -> Result<Outcome, ClockError> {
    let mut trace = Trace::new(stream).ok_or(ClockError::Damaged)?;
    let operations = trace.operations();
    drive::<P>(pages, knobs, &stream.caches, &mut trace, profile, operations, 0.0, &mut |_, _| ())
}

/// An operation that a simulated CPU has completed.
struct FinishedOperation<'a> {
    cpu: u32,
    cache: u32,
    /// `true` if the operation is an allocation, `false` if it is a free.
    allocated: bool,
    /// The location of the object, given as the first page of its slab and its index in the slab.
    object: Option<(u32, u16)>,
    from_ns: f64,
    to_ns: f64,
    holds: &'a [LockHold],
    /// The number of cache lines that the operation moved.
    lines: u64,
}

/// Runs about `operations_goal` operations of a source; between operations, each CPU does other work for `think_ns`
/// nanoseconds. Calls `watch` with the model before the first operation, after each operation, and at the end.
#[expect(clippy::too_many_arguments, reason = "all callers are in this module")]
fn drive<'p, P: Policy>(
    pages: &'p Pages,
    knobs: P::Knobs,
    caches: &[CacheInfo],
    source: &mut dyn Source<ModelObject<'p>>,
    profile: &Profile,
    operations_goal: u64,
    think_ns: f64,
    watch: &mut dyn FnMut(&Model<'p, P>, Option<FinishedOperation<'_>>),
) -> Result<Outcome, ClockError> {
    let cpus = pages.allocator().cpus().count();
    let mut model = Model::<P>::new(pages, knobs)?;
    caches.iter().try_for_each(|info| model.learn(info))?;
    let mut clock = Clock::new(profile);
    let mut queue: BinaryHeap<_> = (0..cpus).map(|cpu| Reverse((VirtualTime(0.0), cpu))).collect();
    let (mut operations_done, mut last_end, mut busy_ns) = (0, 0.0_f64, 0.0);
    let mut interval = 1;
    watch(&model, None);
    while let Some(Reverse((VirtualTime(now), cpu))) = queue.pop() {
        let time = At::new(cpu, now as u64);
        let lines_before = clock.moved_lines;
        let (cache, allocated_object, freed_place) = match source.next(cpu, now) {
            Next::Alloc { cache, bytes } => {
                let object = model.alloc(time, cache, bytes).map_err(|_| ClockError::NoMemory(cpus))?;
                (cache, Some(object), None)
            }
            Next::Free { cache, object } => {
                let place = model.place(cache, &object);
                model.free(time, cache, object);
                (cache, None, place)
            }
            Next::IdleUntil(end_ns) => {
                queue.push(Reverse((VirtualTime(end_ns), cpu)));
                continue;
            }
            Next::SleepUntilWoken => continue,
            Next::Done => {
                last_end = last_end.max(now);
                continue;
            }
        };
        operations_done += 1;
        // Large kmalloc has no slabs: the page allocator serves it.
        let page_event = if allocated_object.is_some() { &[CostEvent::Made] } else { &[CostEvent::Released] };
        let slab_cache = model.cache(cache);
        let (container, shared) =
            slab_cache.map_or((0, 0), |(_, policy)| (policy.container(), policy.shared()));
        let effects = OperationEffects {
            cache,
            cost_events: if slab_cache.is_some() { model.cost_events() } else { page_event },
            frames: model.touched_pages(cache),
            takes_cpu_lock: P::LOCKED,
            container_objects: container,
            depot_slot: shared.saturating_sub(u32::from(allocated_object.is_none())),
            taken: allocated_object.is_some(),
            lines: if slab_cache.is_some() { P::LINES } else { Lines::default() },
        };
        let (end_ns, contended) = clock.charge(cpu, now, &effects);
        if contended {
            model.contended(cache);
        }
        let object = allocated_object.as_ref().map_or(freed_place, |object| model.place(cache, object));
        watch(
            &model,
            Some(FinishedOperation {
                cpu,
                cache,
                allocated: allocated_object.is_some(),
                object,
                from_ns: now,
                to_ns: end_ns,
                holds: &clock.holds,
                lines: clock.moved_lines - lines_before,
            }),
        );
        let woken_cpu = allocated_object.and_then(|object| source.allocated(cpu, end_ns, object));
        queue.extend(woken_cpu.map(|sleeper| Reverse((VirtualTime(end_ns), sleeper))));
        busy_ns += end_ns - now;
        if operations_done >= interval * operations_goal / INTERVALS {
            interval += 1;
            model.tick(time);
        }
        queue.push(Reverse((VirtualTime(end_ns + think_ns), cpu)));
    }
    watch(&model, None);
    model.check(source.objects_in_use(), 0).map_err(ClockError::Violated)?;
    Ok(Outcome {
        cpus,
        operations: operations_done,
        ns: last_end,
        operations_per_us: operations_done as f64 * 1000.0 / last_end.max(1.0),
        waiting: if busy_ns > 0.0 { clock.waited_ns / busy_ns } else { 0.0 },
        lines_per_operation: clock.moved_lines as f64 / operations_done.max(1) as f64,
        depot: clock.locks(|lock| matches!(lock, Lock::Depot(_))),
        lists: clock.locks(|lock| matches!(lock, Lock::Lists(_))),
        zone: clock.locks(|lock| *lock == Lock::Zone),
        paths: model.paths(),
        slabs: (0..caches.len() as u32).map(|cache| model.counts(cache).slabs()).sum(),
        container: model.cache(0).map_or(0, |(_, policy)| policy.container()),
    })
}

/// A virtual time in nanoseconds, with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct VirtualTime(f64);

impl Eq for VirtualTime {}
impl Ord for VirtualTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl PartialOrd for VirtualTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;

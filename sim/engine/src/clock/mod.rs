//! Virtual time: the cost of operations on many CPUs.
//!
//! Each CPU has its own clock. The CPU that is furthest behind runs next (of several, the first one). It does one whole
//! operation, and its clock advances by the cost: its own work, the wait for locks, and the cache lines that had to travel to it.
//!
//! - **A lock** is free from some point in time on. A CPU that comes earlier waits until then.
//! - **A line** is at the CPU that last wrote it, and at those that have read it since. A CPU that reads it elsewhere, or writes
//!   a line that others have, fetches it, over a distance to which the [profile](Profile) gives a price.
//!
//! A [`Model`] reports what its operations do beyond what their CPU holds: its [deeds](Deed). Each deed has a lock or none,
//! lines, and work under the lock. Prices are from a [`Profile`], and each one names the source of its measurement.
//!
//! # Which lines
//!
//! | what | when it is accessed | lines |
//! |---|---|---|
//! | a lock, with what it protects | by each deed that takes it | [`Lines::depot`], [`Lines::lists`]; three for the zone |
//! | a magazine's place in the depot | written by a free that leaves its magazine there, read by an allocation that takes it | its objects by 8 bytes, and 16 bytes before them |
//! | the frame of a page: a slab's bitmap, its links; the slab of a page | an object is allocated or freed; its slab or a neighbour on the list moves; the slab is created | one |
//! | counters of operations | every operation that uses more than its own CPU's memory | [`Lines::counts`], and with them those of the depot's lock |
//! | counters of slabs | a slab is created or freed | [`Lines::slabs`] |
//!
//! A test (`tests/sim/lines.rs`) runs the shipping allocator on 2, 4 and 8 simulated CPUs with the operations of
//! [`uslab-model`](crate::models::uslab), traces each of its loads and stores through a MESI protocol, and compares. Other
//! designs have no memory, so their lines follow from the same rules and cannot be checked.
//!
//! Not counted: memory that the allocator allocates for itself, and reaps. Each slab that is created or freed is assumed to visit
//! the zone. Per-CPU pages spare the shipping code most of these visits, and one that it does make moves some twelve lines.

mod profile;
mod source;
mod team;
mod trace;
mod work;

pub use profile::{BadProfile, Level, Price, Profile};
pub use work::{Ask, BadWorkload, Others, Script, Workload};

use crate::design::{At, Design, Unable};
use crate::model::{Deed, Given, Lines, Model, Policy};
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

/// A lock of the simulated machine. Locks of a cache have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Lock {
    /// The lock of what CPUs share above the slabs: a depot, a barn, a shared array.
    Depot(u32),
    /// The lock of the lists of slabs.
    Lists(u32),
    /// The lock of the page allocator.
    Zone,
}

/// A cache line, or several that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    /// A lock, with what it protects.
    Lock(Lock),
    /// A container's place in the depot of a cache, counted from the bottom.
    Place(u32, u32),
    /// The frame of a page.
    Frame(u32),
    /// A cache's counters of operations that use more than their own CPU's memory.
    Counts(u32),
    /// A cache's counters of slabs.
    Slabs(u32),
}

/// Counts of a lock, or of all locks of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LockCounts {
    /// The number of acquisitions.
    pub taken: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Nanoseconds of waiting, summed over all CPUs.
    pub waited_ns: f64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Outcome {
    /// The number of CPUs.
    pub cpus: u32,
    /// Allocations and frees of all CPUs.
    pub operations: u64,
    /// Nanoseconds until the last CPU finished.
    pub ns: f64,
    /// Operations per microsecond, of all CPUs together.
    pub operations_per_us: f64,
    /// The fraction of all CPUs' time that was spent waiting for locks.
    pub waiting: f64,
    /// Lines that travelled, per operation.
    pub lines_per_operation: f64,
    /// The locks of what CPUs share above the slabs.
    pub depot: LockCounts,
    /// The locks of the lists of slabs.
    pub lists: LockCounts,
    /// The lock of the page allocator.
    pub zone: LockCounts,
    /// Operations by where they were served.
    #[cfg_attr(test, ts(type = "Record<Path, number>"))]
    pub paths: Paths,
    /// Slabs of all caches at the end.
    pub slabs: u64,
    /// Objects of a magazine, a sheaf or an array of the first cache at the end; 0 if the design has none.
    pub container: u32,
}

/// The effects of an operation.
struct Did<'a> {
    /// The cache.
    cache: u32,
    deeds: &'a [Deed],
    /// Pages whose frames it accessed.
    frames: &'a [u32],
    /// `true` if it took a lock of its own CPU.
    locked: bool,
    /// Objects of a container that is exchanged.
    container: u32,
    /// The container's place among those in the depot.
    place: u32,
    /// `true` if the container is taken from the depot: the operation is an allocation.
    taken: bool,
    lines: Lines,
}

impl Did<'_> {
    /// The number of cache lines.
    fn size(&self, line: Line) -> u32 {
        match line {
            Line::Lock(Lock::Depot(_)) => self.lines.depot,
            Line::Lock(Lock::Lists(_)) => self.lines.lists,
            Line::Counts(_) => self.lines.counts,
            Line::Slabs(_) => self.lines.slabs,
            // Pointers of 8 bytes after a header of 16.
            Line::Place(..) => (16 + 8 * self.container).div_ceil(64),
            // A visit moves some twelve lines, and per-CPU pages spare most slabs the visit.
            Line::Lock(Lock::Zone) => 3,
            Line::Frame(_) => 1,
        }
    }
}

/// An access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// The state of all CPUs, locks and lines.
#[derive(Debug)]
struct Clock<'p> {
    profile: &'p Profile,
    /// When each lock becomes free.
    free: FxHashMap<Lock, f64>,
    /// The CPUs that have each line: the last writer, and those that have read it since.
    lines: FxHashMap<Line, Vec<u32>>,
    counts: FxHashMap<Lock, LockCounts>,
    travelled: u64,
    waited: f64,
}

impl<'p> Clock<'p> {
    fn new(profile: &'p Profile) -> Self {
        Self {
            profile,
            free: <_>::default(),
            lines: <_>::default(),
            counts: <_>::default(),
            travelled: 0,
            waited: 0.0,
        }
    }

    /// The counts of all locks of a kind. Waiting times are added in the order of the locks' numbers, so that the same run gives
    /// the same bits.
    fn locks(&self, kind: fn(&Lock) -> bool) -> LockCounts {
        let mut all: Vec<_> = self.counts.iter().filter(|(lock, _)| kind(lock)).collect();
        all.sort_by_key(|(lock, _)| **lock);
        all.into_iter().fold(LockCounts::default(), |sum, (_, lock)| LockCounts {
            taken: sum.taken + lock.taken,
            contended: sum.contended + lock.contended,
            waited_ns: sum.waited_ns + lock.waited_ns,
        })
    }

    /// Nanoseconds until the CPU has the line; for a write, until no other CPU has it.
    fn fetch(&mut self, cpu: u32, line: Line, access: Access, did: &Did<'_>) -> f64 {
        let copies = self.lines.entry(line).or_default();
        let here = copies.contains(&cpu);
        let other = copies.iter().copied().find(|other| *other != cpu);
        if access == Access::Write {
            copies.clear();
        }
        if access == Access::Write || !here {
            copies.push(cpu);
        }
        match other {
            Some(other) if access == Access::Write || !here => {
                let lines = did.size(line);
                self.travelled += u64::from(lines);
                f64::from(lines) * self.profile.distance_ns(other, cpu)
            }
            _ => 0.0,
        }
    }

    /// Returns when an operation that began at `now` is done, and whether it had to wait for a lock of what CPUs share.
    fn charge(&mut self, cpu: u32, now: f64, did: &Did<'_>) -> (f64, bool) {
        let profile = self.profile;
        let mut t = now + profile.own.ns + if did.locked { profile.lock.ns } else { 0.0 };
        let mut contended = false;
        for deed in did.deeds {
            let (lock, work) = match *deed {
                Deed::Swap | Deed::Widened => (None, profile.own.ns),
                Deed::Exchange | Deed::Miss => (Some(Lock::Depot(did.cache)), profile.exchange.ns),
                Deed::Refill(n) | Deed::Flush(n) => (Some(Lock::Lists(did.cache)), profile.objects_ns(n)),
                Deed::Relist => (Some(Lock::Lists(did.cache)), profile.relist.ns),
                Deed::Remote => (None, profile.lock.ns + profile.object.ns),
                Deed::Made | Deed::Released => (Some(Lock::Zone), profile.slab.ns),
            };
            if let Some(lock) = lock {
                let counts = self.counts.entry(lock).or_default();
                counts.taken += 1;
                let free = self.free.get(&lock).copied().unwrap_or(0.0);
                if free > t {
                    counts.contended += 1;
                    counts.waited_ns += free - t;
                    self.waited += free - t;
                    contended |= matches!(lock, Lock::Depot(_));
                    t = free;
                }
                t += profile.lock.ns + self.fetch(cpu, Line::Lock(lock), Access::Write, did);
            }
            if matches!(deed, Deed::Refill(_) | Deed::Flush(_) | Deed::Relist | Deed::Remote) {
                for frame in did.frames {
                    t += self.fetch(cpu, Line::Frame(*frame), Access::Write, did);
                }
            }
            t += work;
            if let Some(lock) = lock {
                self.free.insert(lock, t);
            }
            // The time at which the lock is free again.
            if *deed == Deed::Exchange {
                let access = if did.taken { Access::Read } else { Access::Write };
                t += self.fetch(cpu, Line::Place(did.cache, did.place), access, did);
            }
        }
        if did.lines.counts > 0 && !did.deeds.is_empty() {
            t += self.fetch(cpu, Line::Counts(did.cache), Access::Write, did);
            t += self.fetch(cpu, Line::Lock(Lock::Depot(did.cache)), Access::Write, did);
        }
        if did.deeds.iter().any(|deed| matches!(deed, Deed::Made | Deed::Released)) {
            t += self.fetch(cpu, Line::Slabs(did.cache), Access::Write, did);
        }
        (t, contended)
    }
}

/// A run has this many of the intervals by which designs adapt, however long these are: a run takes milliseconds, and real
/// intervals take seconds.
pub const INTERVALS: u64 = 20;

/// A run that is not possible.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The design does not support it.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// An invariant did not hold.
    #[error("a conservation law does not hold: {0}")]
    Violated(String),
    /// The simulated machine is out of memory.
    #[error("{0} CPUs: the simulated machine has no memory left")]
    NoMemory(u32),
    /// The stream's bytes are invalid.
    #[error("the stream is damaged")]
    Damaged,
}

/// Runs a workload of `operations` for each CPU on objects of `size` bytes.
///
/// The same seed gives the same outcome, to the bit.
///
/// # Errors
/// See [`ClockError`].
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
    let team = Team::new(workload, cpus, operations, seed);
    drive::<P, _>(pages, knobs, &[object], team, profile, operations * u64::from(cpus), workload.think_ns())
}

/// Runs a recorded stream back to back, on as many CPUs as it has: each does its own operations on objects as fast as it can. A
/// free on another CPU waits for the allocation. Times of the recording, pages that belong to no cache, and shrinks are ignored.
///
/// The same stream gives the same outcome, to the bit.
///
/// # Errors
/// See [`ClockError`].
pub fn run_stream<P: Policy>(
    pages: &Pages,
    knobs: P::Knobs,
    stream: &Stream,
    profile: &Profile,
) -> Result<Outcome, ClockError> {
    let trace = Trace::new(stream).ok_or(ClockError::Damaged)?;
    let operations = trace.operations();
    drive::<P, _>(pages, knobs, &stream.caches, trace, profile, operations, 0.0)
}

/// Runs the operations of a source, roughly `total` of them, with `think` nanoseconds of other work after each.
fn drive<'p, P: Policy, S: Source<Given<'p>>>(
    pages: &'p Pages,
    knobs: P::Knobs,
    caches: &[CacheInfo],
    mut source: S,
    profile: &Profile,
    total: u64,
    think: f64,
) -> Result<Outcome, ClockError> {
    let cpus = pages.allocator().cpus().count();
    let mut model = Model::<P>::new(pages, knobs)?;
    caches.iter().try_for_each(|info| model.learn(info))?;
    let mut clock = Clock::new(profile);
    let mut next: BinaryHeap<_> = (0..cpus).map(|cpu| Reverse((Moment(0.0), cpu))).collect();
    let (mut done, mut end, mut busy) = (0, 0.0_f64, 0.0);
    let mut ticked = 1;
    while let Some(Reverse((Moment(now), cpu))) = next.pop() {
        let at = At::new(cpu, now as u64);
        let (cache, came) = match source.next(cpu, now) {
            Next::Alloc { cache, bytes } => {
                (cache, Some(model.alloc(at, cache, bytes).map_err(|_| ClockError::NoMemory(cpus))?))
            }
            Next::Free { cache, object } => {
                model.free(at, cache, object);
                (cache, None)
            }
            Next::Until(then) => {
                next.push(Reverse((Moment(then), cpu)));
                continue;
            }
            Next::Sleep => continue,
            Next::Done => {
                end = end.max(now);
                continue;
            }
        };
        done += 1;
        // Large kmalloc has no slabs: the page allocator does all of it.
        let of_pages = if came.is_some() { &[Deed::Made] } else { &[Deed::Released] };
        let own = model.cache(cache);
        let (container, shared) = own.map_or((0, 0), |(_, policy)| (policy.container(), policy.shared()));
        let did = Did {
            cache,
            deeds: if own.is_some() { model.deeds() } else { of_pages },
            frames: model.touched(cache),
            locked: P::LOCKED,
            container,
            place: shared.saturating_sub(u32::from(came.is_none())),
            taken: came.is_some(),
            lines: if own.is_some() { P::LINES } else { Lines::default() },
        };
        let (then, contended) = clock.charge(cpu, now, &did);
        if contended {
            model.contended(cache);
        }
        let woken = came.and_then(|object| source.got(cpu, then, object));
        next.extend(woken.map(|sleeper| Reverse((Moment(then), sleeper))));
        busy += then - now;
        if done >= ticked * total / INTERVALS {
            ticked += 1;
            model.tick(at);
        }
        next.push(Reverse((Moment(then + think), cpu)));
    }
    model.check(source.held(), 0).map_err(ClockError::Violated)?;
    Ok(Outcome {
        cpus,
        operations: done,
        ns: end,
        operations_per_us: done as f64 * 1000.0 / end.max(1.0),
        waiting: if busy > 0.0 { clock.waited / busy } else { 0.0 },
        lines_per_operation: clock.travelled as f64 / done.max(1) as f64,
        depot: clock.locks(|lock| matches!(lock, Lock::Depot(_))),
        lists: clock.locks(|lock| matches!(lock, Lock::Lists(_))),
        zone: clock.locks(|lock| *lock == Lock::Zone),
        paths: model.paths(),
        slabs: (0..caches.len() as u32).map(|cache| model.counts(cache).slabs()).sum(),
        container: model.cache(0).map_or(0, |(_, policy)| policy.container()),
    })
}

/// A point in time that can be sorted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}
impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;

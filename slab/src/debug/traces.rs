//! Traces group objects in use by the call stack of their allocation, or of the free before it. Traces correspond to
//! `alloc_traces` and `free_traces` in Linux's debugfs.

use super::stacks::CallStack;
use super::tracks::Track;
use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// A group of objects whose events have the same call stack.
///
/// ```
/// use uslab::debug::traces::Trace;
///
/// let is_old = |trace: &Trace| trace.age_min > 60_000 && trace.count > 100;
/// # let _ = is_old;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Trace {
    /// Number of objects.
    pub count: u64,
    /// Number of the objects' bytes beyond the requested sizes.
    pub waste: u64,
    /// Milliseconds since the group's most recent event, which is an allocation or a free.
    pub age_min: u64,
    /// Mean number of milliseconds since the group's events.
    pub age_mean: u64,
    /// Milliseconds since the group's first event.
    pub age_max: u64,
    /// Lowest id among the threads of the group's events.
    pub thread_min: u32,
    /// Highest id among the threads of the group's events.
    pub thread_max: u32,
    /// CPUs on which the group's events happened.
    pub cpus: BTreeSet<u32>,
    /// Call stack of the group's events, without the allocator's frames.
    pub stack: CallStack,
}

/// Traces of a cache, sorted by number of objects in descending order.
///
/// ```
/// use uslab::{Gfp, KmemCache, SlabDebug};
///
/// let inodes = KmemCache::builder("inode", 600).slab_debug(SlabDebug::USERS).build()?;
/// let held = inodes.alloc_blocks(Gfp::KERNEL, 10)?;
/// let traces = inodes.alloc_traces();
/// print!("{traces}");
/// assert_eq!(traces.0.iter().map(|trace| trace.count).sum::<u64>(), held.len() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `Display` writes Linux's format: a line for each trace, then its stack with one function per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Traces(pub Vec<Trace>);

impl Traces {
    /// Groups the given tracks, with their wasted bytes, by call stack.
    pub(crate) fn of(tracks: impl Iterator<Item = (Track, u64)>) -> Self {
        let mut traces = BTreeMap::<CallStack, (Trace, Duration)>::new();
        let mut outer = BTreeMap::new();
        for (track, waste) in tracks {
            let age = track.age.as_millis() as u64;
            let stack = *outer.entry(track.stack).or_insert_with(|| track.stack.outer());
            let (trace, ages) = traces.entry(stack).or_insert_with(|| {
                let trace = Trace {
                    count: 0,
                    waste: 0,
                    age_min: age,
                    age_mean: 0,
                    age_max: age,
                    thread_min: track.thread,
                    thread_max: track.thread,
                    cpus: BTreeSet::new(),
                    stack,
                };
                (trace, Duration::ZERO)
            });
            *ages += track.age;
            trace.count += 1;
            trace.waste += waste;
            trace.age_min = trace.age_min.min(age);
            trace.age_max = trace.age_max.max(age);
            trace.thread_min = trace.thread_min.min(track.thread);
            trace.thread_max = trace.thread_max.max(track.thread);
            trace.cpus.insert(track.cpu);
        }
        let mean = |(trace, ages): (Trace, Duration)| {
            let age_mean = (ages.as_millis() / u128::from(trace.count)) as u64;
            Trace { age_mean, ..trace }
        };
        let mut traces: Vec<_> = traces.into_values().map(mean).collect();
        traces.sort_by_key(|trace| core::cmp::Reverse(trace.count));
        Self(traces)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} waste={}", self.count, self.waste)?;
        write!(f, " age={}/{}/{}", self.age_min, self.age_mean, self.age_max)?;
        write!(f, " thread={}-{} cpus=", self.thread_min, self.thread_max)?;
        for (i, cpu) in self.cpus.iter().enumerate() {
            write!(f, "{}{cpu}", if i > 0 { "," } else { "" })?;
        }
        write!(f, "\n{}", self.stack)
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|trace| trace.fmt(f))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CallStack {
    /// Serialises the functions on the stack, innermost first.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut functions = Vec::new();
        self.each_function(|function| functions.push(function.to_string()));
        serializer.collect_seq(functions)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn largest_group_of_equal_call_stacks_is_listed_first() {
        let track = |stack, thread, cpu, age| {
            let age = Duration::from_millis(age);
            Track { stack: CallStack::from_frames(&[stack]), thread, cpu, age }
        };
        let tracks = [track(2, 10, 1, 40), track(1, 9, 0, 5), track(2, 30, 1, 20), track(2, 20, 3, 0)];
        let Traces(rows) = Traces::of(tracks.into_iter().zip([1, 2, 3, 4]));
        assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [3, 1]);
        let row = &rows[0];
        assert_eq!((row.waste, row.age_min, row.age_mean, row.age_max), (8, 0, 20, 40));
        assert_eq!((row.thread_min, row.thread_max), (10, 30));
        let unknown = Trace { stack: CallStack::NONE, ..row.clone() };
        let line = "      3 waste=8 age=0/20/40 thread=10-30 cpus=1,3\n  (no stack)\n";
        assert_eq!(unknown.to_string(), line);
        assert_eq!(Traces(vec![unknown.clone(), unknown]).to_string(), line.repeat(2));
    }
}

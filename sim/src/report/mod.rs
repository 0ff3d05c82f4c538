//! The result of a replay: as data ([`Report`], the interface of `--json`) and as text.

mod callers;
mod cause;
mod health;
pub(crate) mod live;
mod page;

use crate::trace::Facts;
use serde::Serialize;
use std::collections::BTreeMap;
use uslab::Paths;
use uslab_buddy::BuddyInfo;

pub(crate) use callers::CallerStatistics;
pub use callers::{CallSite, Callers, Lifetimes, Quantiles};
pub use cause::Cause;
pub use health::TraceHealth;
pub use live::{LeakGuess, Live, LiveCommand, LiveObjects, LiveSite, Older, Pinned};

/// The order of the caches in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CacheSort {
    /// Sorted by the number of allocations and frees.
    #[default]
    Busy,
    /// Sorted by the number of frees on another CPU than the one that allocated the object.
    Remote,
    /// Sorted by the number of slabs.
    Slabs,
    /// Sorted by name.
    Name,
}

impl CacheSort {
    /// Describes the order of the caches, for a heading.
    fn words(self) -> &'static str {
        match self {
            Self::Busy => "the busiest first",
            Self::Remote => "the most remote frees first",
            Self::Slabs => "the most slabs first",
            Self::Name => "by name",
        }
    }
}

/// The counts and times of a replay. The serialised form is the interface of `uslab replay --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the program.
    pub version: &'static str,
    /// The trace's file.
    pub trace: String,
    /// The faults of the trace, such as lost events.
    pub trace_health: TraceHealth,
    /// The CPUs of the machine that was recorded.
    pub traced: TracedMachine,
    /// The simulated machine.
    pub machine: MachineReport,
    /// The number of events of each name.
    pub events: BTreeMap<String, u64>,
    /// The number of all events.
    pub events_total: u64,
    /// The number of lines that are neither events nor headers; `facts` has the first of these lines.
    pub not_understood: u64,
    /// The number of events that the kernel reports as lost; for a program's recording, the number of calls after the
    /// recording ended. If events were lost, all counts from then on are unreliable.
    pub lost: u64,
    /// The number of marks in the trace at which the replay shrank all caches, because the traced system had
    /// shrunk its caches.
    pub shrinks: u64,
    /// The caches; the busiest cache comes first.
    pub caches: Vec<CacheReport>,
    /// The order of `caches`.
    #[serde(skip)]
    pub sort: CacheSort,
    /// The totals of all caches.
    pub objects: ObjectTotals,
    /// The number of page events of each order.
    pub pages: BTreeMap<u8, PageCounts>,
    /// The results of the conservation checks.
    pub conservation: Conservation,
    /// The memory that remained after everything was freed, reaped, shrunk and returned.
    pub teardown: Teardown,
    /// The comparison with the kernel's tables, if the trace's folder has them.
    pub against_kernel: Option<KernelComparison>,
    /// The state of the buddy allocator at the end of the trace.
    pub buddy: BuddyInfo,
    /// The fragmentation at the end of the trace, by zone and order.
    pub fragmentation: Vec<Fragmentation>,
    /// The state of the simulated machine at each snapshot.
    pub snapshots: Vec<SnapshotReport>,
    /// The number of allocations and frees of objects and pages that the replay requested. Events that request nothing
    /// do not count: pages of slabs, `kfree(NULL)`, and events of the kernel's page lists.
    pub operations: u64,
    /// The number of events per second; one thread reads and replays the trace.
    pub events_per_second: f64,
    /// The seconds that reading the text took.
    pub read_seconds: f64,
    /// The nanoseconds for reading an event, averaged over all events.
    pub read_ns_per_event: f64,
    /// The seconds that replaying took, without the checks.
    pub replay_seconds: f64,
    /// The nanoseconds for replaying one operation, averaged over all operations.
    pub replay_ns_per_operation: f64,
    /// The call sites and lifetimes, if the user requested them.
    pub callers: Option<Callers>,
    /// All facts about the trace that need no replay.
    pub facts: Facts,
}

/// The CPUs of the machine that was recorded.
#[derive(Debug, Serialize)]
pub struct TracedMachine {
    /// The number of CPUs in the header or in the events, whichever is larger.
    pub cpus: u64,
    /// The number of traced CPUs that have an event.
    pub cpus_used: u64,
}

/// The simulated machine.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of simulated CPUs on which at least one event is replayed. A traced CPU is replayed on the simulated
    /// CPU with the same number, modulo the number of simulated CPUs.
    pub cpus_used: u32,
    /// The number of memory nodes; each node has a contiguous range of CPUs.
    pub nodes: u32,
    /// The number of memory nodes to which the used CPUs belong.
    pub nodes_used: u32,
    /// The memory of the simulated machine in bytes.
    pub memory_bytes: u64,
    /// The requested magazine size.
    pub magazine: String,
}

impl Report {
    /// Sorts the caches. Caches that compare as equal keep the order that they had.
    pub fn sort_caches(&mut self, sort: CacheSort) {
        match sort {
            // The replay's own order.
            CacheSort::Busy => {}
            CacheSort::Remote => self.caches.sort_by_key(|cache| std::cmp::Reverse(cache.remote_frees)),
            CacheSort::Slabs => self.caches.sort_by_key(|cache| std::cmp::Reverse(cache.slabs)),
            CacheSort::Name => self.caches.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        self.sort = sort;
    }
}

/// The counters of one cache.
#[derive(Debug, Serialize)]
pub struct CacheReport {
    /// The kernel's name of the cache; placeholders for unknown names begin with `?`.
    pub name: String,
    /// The names of the caches that the kernel merged with this cache; their objects share slabs. The list is empty if
    /// the recording has no slab-attributes.tsv.
    pub aliases: Vec<String>,
    /// The size of an object in bytes.
    pub object_size: u64,
    /// The distance from one object to the next, in bytes.
    pub slab_size: u64,
    /// The number of objects in a slab.
    pub objs_per_slab: u64,
    /// The order of a slab of `2^order` pages.
    pub order: u8,
    /// The number of allocations in the trace.
    pub allocs: u64,
    /// The number of frees in the trace.
    pub frees: u64,
    /// The number of live objects at the end of the trace.
    pub live: u64,
    /// The largest number of live objects at any time.
    pub peak_live: u64,
    /// The number of frees on another simulated CPU than the one that allocated the object. The number of remote frees
    /// on the traced machine is a separate field in `facts`.
    pub remote_frees: u64,
    /// The number of frees on another node than the allocating one; such a free bypasses the magazines and returns the
    /// object to its slab.
    pub remote_node_frees: u64,
    /// The remote frees as a percentage of the frees whose allocation is in the trace.
    pub remote_percent: f64,
    /// The number of allocations that the kernel did not trace.
    pub hidden_allocs: u64,
    /// The number of frees that the kernel did not trace.
    pub hidden_frees: u64,
    /// The number of frees of objects from before the trace.
    pub pre_trace_frees: u64,
    /// The number of simulated slabs at the end of the trace.
    pub slabs: u64,
    /// The largest number of simulated slabs at any time.
    pub slabs_peak: u64,
    /// The number of objects in use.
    pub used: u64,
    /// The number of free objects on the stacks of CPUs.
    pub in_magazines: u64,
    /// The number of free objects in depots.
    pub in_depot: u64,
    /// The number of free objects in slabs.
    pub free_in_slabs: u64,
    /// The number of operations that each level (CPU, depot, slab, pages) served, including hidden
    /// operations.
    pub paths: Paths,
    /// The number of depot exchanges that moved magazines.
    pub depot_exchanges: u64,
    /// The kernel's counts for the cache.
    pub kernel: Option<KernelCache>,
}

/// The kernel's latest counts for a cache, and how they changed.
#[derive(Debug, Serialize)]
pub struct KernelCache {
    /// The number of active objects in the latest slabinfo of the kernel.
    pub active_objs: u64,
    /// The number of objects in the latest slabinfo of the kernel.
    pub num_objs: u64,
    /// The number of slabs in the latest slabinfo of the kernel.
    pub num_slabs: u64,
    /// The change of the kernel's number of objects between the two exact snapshots.
    pub objects_change: i64,
    /// The change of the replay's number of objects, for the events between the two exact snapshots.
    pub our_objects_change: i64,
    /// The change of the kernel's number of slabs between the two exact snapshots.
    pub slabs_change: i64,
    /// The change of the replay's number of slabs, for the events between the two exact snapshots.
    pub our_slabs_change: i64,
}

/// Sums of the object counts over all caches.
#[derive(Debug, Default, Serialize)]
pub struct ObjectTotals {
    /// The sum of [`CacheReport::allocs`] over all caches.
    pub allocs: u64,
    /// The sum of [`CacheReport::frees`] over all caches.
    pub frees: u64,
    /// The sum of [`CacheReport::live`] over all caches.
    pub live: u64,
    /// The number of frees whose allocation is in the trace.
    pub matched_frees: u64,
    /// The sum of [`CacheReport::remote_frees`] over all caches.
    pub remote_frees: u64,
    /// The sum of [`CacheReport::remote_node_frees`] over all caches.
    pub remote_node_frees: u64,
    /// The sum of [`CacheReport::hidden_allocs`] over all caches.
    pub hidden_allocs: u64,
    /// The sum of [`CacheReport::hidden_frees`] over all caches.
    pub hidden_frees: u64,
    /// The sum of [`CacheReport::pre_trace_frees`] over all caches.
    pub pre_trace_frees: u64,
    /// The number of calls `kfree(NULL)`, which do nothing.
    pub kfree_of_null: u64,
    /// The sums of [`CacheReport::paths`] over all caches.
    pub paths: Paths,
    /// The sum of [`CacheReport::depot_exchanges`] over all caches.
    pub depot_exchanges: u64,
}

/// The number of page events of one order.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PageCounts {
    /// The number of page allocations.
    pub allocs: u64,
    /// The number of page frees.
    pub frees: u64,
}

/// The results of the conservation checks.
#[derive(Debug, Serialize)]
pub struct Conservation {
    /// The number of checks.
    pub checked: u64,
    /// The number of violated conservation checks.
    pub violated: u64,
    /// The messages of the first violations.
    pub violations: Vec<String>,
}

/// The memory that remains after everything was freed.
#[derive(Debug, Serialize)]
pub struct Teardown {
    /// The number of objects that remain in slabs, expected to be 0.
    pub objects: u64,
    /// The number of slabs that still exist, expected to be 0.
    pub slabs: u64,
    /// The number of free pages that are not merged to blocks of the largest order, expected to be 0.
    pub pages_not_in_maximal_blocks: u64,
    /// The committed bytes before the replay and after everything was freed.
    pub committed_bytes: [u64; 2],
    /// The resident bytes of this process: before the replay, at the end of the replay, and after everything was freed.
    pub resident_bytes: [u64; 3],
}

/// For each cache, the kernel's change between two snapshots, and the replay's change between these snapshots.
#[derive(Debug, Serialize)]
pub struct KernelComparison {
    /// The name of the earlier snapshot.
    pub from: &'static str,
    /// The name of the later snapshot.
    pub to: &'static str,
    /// The number of caches that changed between the snapshots.
    pub caches: u64,
    /// The kernel's change of the number of active objects, summed over all caches.
    pub objects_kernel: i64,
    /// The replay's change of the number of active objects, summed over all caches.
    pub objects_ours: i64,
    /// The number of caches whose number of objects changed by the same amount in the replay and in the kernel.
    pub objects_exact: u64,
    /// The sum over all caches of the absolute difference in the number of objects between the replay and the
    /// kernel.
    pub objects_abs_error: u64,
    /// The sum over all caches of the kernel's absolute change of the number of objects; equals the error of predicting
    /// no change.
    pub objects_abs_change: u64,
    /// The kernel's change of the number of slabs, summed over all caches.
    pub slabs_kernel: i64,
    /// The replay's change of the number of slabs, summed over all caches.
    pub slabs_ours: i64,
    /// The sum over all caches of the absolute difference in the number of slabs between the replay and the
    /// kernel.
    pub slabs_abs_error: u64,
    /// The sum over all caches of the kernel's absolute change of the number of slabs; equals the error of predicting
    /// no change.
    pub slabs_abs_change: u64,
    /// The change of each cache.
    pub rows: Vec<KernelRow>,
}

/// The change of one cache between two snapshots of the kernel's tables.
#[derive(Debug, Serialize)]
pub struct KernelRow {
    /// The name of the cache.
    pub cache: String,
    /// The change of the number of active objects: in the kernel, and in the replay.
    pub objects: [i64; 2],
    /// The change of the number of slabs: in the kernel, and in the replay.
    pub slabs: [i64; 2],
    /// The number of allocations without an event that the replay has inferred, up to the later snapshot.
    pub hidden_allocs: u64,
    /// The number of frees without an event that the replay has inferred, up to the later snapshot.
    pub hidden_frees: u64,
    /// The function that allocated most of the objects whose frees have no event.
    pub hidden_free_site: Option<String>,
    /// The reason why the kernel's change of objects differs from the replay's change, if they differ.
    pub cause: Option<Cause>,
}

/// The fragmentation of one zone's free memory, for one order.
#[derive(Debug, Serialize)]
pub struct Fragmentation {
    /// The name of the zone.
    pub zone: String,
    /// The order of the blocks that the fragmentation is computed for.
    pub order: u8,
    /// The kernel's `extfrag_index` in thousandths; -1000 if an allocation would succeed.
    pub extfrag_index: i64,
    /// The part of the zone's free memory that cannot serve this order, in thousandths.
    pub unusable_free_index: u64,
}

/// The state of the simulated machine at a snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// The name of the snapshot.
    pub moment: String,
    /// The number of operations that were replayed before the snapshot.
    pub operations: u64,
    /// The counts of objects and pages in the snapshot; `None` if an invariant was violated.
    pub census: Option<uslab::Census>,
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

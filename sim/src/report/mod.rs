//! The result of a replay: as data ([`Report`], the interface of `--json`) and as text for a reader.

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
pub use live::{LeakGuess, Live, LiveCommand, LiveSite, Pinned};

/// A replay in numbers. The serialised form is the interface of `uslab replay --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the program.
    pub version: &'static str,
    /// The trace's file.
    pub trace: String,
    /// The faults of the trace.
    pub trace_health: TraceHealth,
    /// The traced machine.
    pub traced: TracedMachine,
    /// The simulated machine.
    pub machine: MachineReport,
    /// The number of events by name.
    pub events: BTreeMap<String, u64>,
    /// The number of all events.
    pub events_total: u64,
    /// The number of lines that were neither events nor headers; the first ones are in `facts`.
    pub not_understood: u64,
    /// The number of events that the kernel reports as lost, or of calls after the end of a program's recording. If the
    /// number is not 0, numbers after the loss are unreliable.
    pub lost: u64,
    /// The number of the trace's marks at which all caches were shrunk, as the traced system had shrunk its own.
    pub shrinks: u64,
    /// The caches, busiest first.
    pub caches: Vec<CacheReport>,
    /// The totals of all caches.
    pub objects: ObjectTotals,
    /// The page events by order.
    pub pages: BTreeMap<u8, PageCounts>,
    /// The checks of the conservation invariants.
    pub conservation: Conservation,
    /// The remainder after everything was freed, reaped, shrunk and returned.
    pub teardown: Teardown,
    /// The comparison with the kernel's tables, if the trace's folder has them.
    pub against_kernel: Option<AgainstKernel>,
    /// The buddy allocator at the end of the trace.
    pub buddy: BuddyInfo,
    /// The fragmentation at the end of the trace, by zone and order.
    pub fragmentation: Vec<Fragmentation>,
    /// The numbers of the conservation invariants at each snapshot.
    pub snapshots: Vec<SnapshotReport>,
    /// The number of allocations and frees of objects and pages that the replay requested. Events that request nothing
    /// (slabs' own pages, `kfree(NULL)`, events of the kernel's page lists) do not count.
    pub operations: u64,
    /// The number of events processed per second: reading and replaying together, on one thread.
    pub events_per_second: f64,
    /// The seconds for reading the text.
    pub read_seconds: f64,
    /// The nanoseconds for reading an event, averaged over all events.
    pub read_ns_per_event: f64,
    /// The seconds for replaying, without the checks.
    pub replay_seconds: f64,
    /// The nanoseconds for replaying an operation.
    pub replay_ns_per_operation: f64,
    /// The call sites and lifetimes, if requested.
    pub callers: Option<Callers>,
    /// All facts of the trace that need no replay.
    pub facts: Facts,
}

/// The traced machine.
#[derive(Debug, Serialize)]
pub struct TracedMachine {
    /// The number of CPUs: by the header or by the events, whichever is larger.
    pub cpus: u64,
    /// The number of CPUs that have an event.
    pub cpus_used: u64,
}

/// The simulated machine.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// The number of CPUs.
    pub cpus: u32,
    /// The number of CPUs that have an event. A CPU of the trace is the simulated CPU of the same number, modulo the
    /// number of simulated CPUs.
    pub cpus_used: u32,
    /// The number of memory nodes; CPUs are spread over them in contiguous ranges.
    pub nodes: u32,
    /// The number of nodes of the used CPUs.
    pub nodes_used: u32,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The requested magazine size.
    pub magazine: String,
}

/// The counters of one cache.
#[derive(Debug, Serialize)]
pub struct CacheReport {
    /// The kernel's name of the cache; placeholders for unknown names begin with `?`.
    pub name: String,
    /// The size of an object in bytes.
    pub object_size: u64,
    /// The distance from one object to the next, in bytes.
    pub slab_size: u64,
    /// The number of objects in a slab.
    pub objs_per_slab: u64,
    /// The order of a slab, which has `2^order` pages.
    pub order: u8,
    /// The number of allocations in the trace.
    pub allocs: u64,
    /// The number of frees in the trace.
    pub frees: u64,
    /// The number of live objects at the end of the trace.
    pub live: u64,
    /// The largest number of live objects at a time.
    pub peak_live: u64,
    /// The number of frees on another simulated CPU than the allocation. The traced machine's number is in `facts`.
    pub remote_frees: u64,
    /// The number of frees on another node than the allocation: directly to the object's slab, past the magazines.
    pub remote_node_frees: u64,
    /// The remote frees in percent of the frees whose allocation is in the trace.
    pub remote_percent: f64,
    /// The number of allocations that the kernel did not trace.
    pub hidden_allocs: u64,
    /// The number of frees that the kernel did not trace.
    pub hidden_frees: u64,
    /// The number of frees of objects from before the trace.
    pub pre_trace_frees: u64,
    /// The number of simulated slabs at the end of the trace.
    pub slabs: u64,
    /// The largest number of simulated slabs at a time.
    pub slabs_peak: u64,
    /// The number of objects in use.
    pub used: u64,
    /// The number of free objects on CPUs' stacks.
    pub in_magazines: u64,
    /// The number of free objects in depots.
    pub in_depot: u64,
    /// The number of free objects in slabs.
    pub free_in_slabs: u64,
    /// The number of all operations, including hidden ones, by where they were served.
    pub paths: Paths,
    /// The number of visits to a depot that moved magazines.
    pub depot_exchanges: u64,
    /// The kernel's numbers.
    pub kernel: Option<KernelCache>,
}

/// The kernel's last numbers of a cache, and their change.
#[derive(Debug, Serialize)]
pub struct KernelCache {
    /// The number of active objects at the last snapshot.
    pub active_objs: u64,
    /// The number of objects at the last snapshot.
    pub num_objs: u64,
    /// The number of slabs at the last snapshot.
    pub num_slabs: u64,
    /// The kernel's change of objects between the two exact snapshots.
    pub objects_change: i64,
    /// The replay's change of objects for the same events.
    pub our_objects_change: i64,
    /// The kernel's change of slabs between the two exact snapshots.
    pub slabs_change: i64,
    /// The replay's change of slabs for the same events.
    pub our_slabs_change: i64,
}

/// Sums over all caches.
#[derive(Debug, Default, Serialize)]
pub struct ObjectTotals {
    /// The sum of [`CacheReport::allocs`].
    pub allocs: u64,
    /// The sum of [`CacheReport::frees`].
    pub frees: u64,
    /// The sum of [`CacheReport::live`].
    pub live: u64,
    /// The number of frees whose allocation is in the trace.
    pub matched_frees: u64,
    /// The sum of [`CacheReport::remote_frees`].
    pub remote_frees: u64,
    /// The sum of [`CacheReport::remote_node_frees`].
    pub remote_node_frees: u64,
    /// The sum of [`CacheReport::hidden_allocs`].
    pub hidden_allocs: u64,
    /// The sum of [`CacheReport::hidden_frees`].
    pub hidden_frees: u64,
    /// The sum of [`CacheReport::pre_trace_frees`].
    pub pre_trace_frees: u64,
    /// The number of calls `kfree(NULL)`, which do nothing.
    pub kfree_of_null: u64,
    /// The sum of [`CacheReport::paths`].
    pub paths: Paths,
    /// The sum of [`CacheReport::depot_exchanges`].
    pub depot_exchanges: u64,
}

/// Page events of one order.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PageCounts {
    /// The number of page allocations.
    pub allocs: u64,
    /// The number of page frees.
    pub frees: u64,
}

/// The checks of the conservation invariants.
#[derive(Debug, Serialize)]
pub struct Conservation {
    /// The number of checks.
    pub checked: u64,
    /// The number of violations found.
    pub violated: u64,
    /// The first violations.
    pub violations: Vec<String>,
}

/// The remainder after everything was freed.
#[derive(Debug, Serialize)]
pub struct Teardown {
    /// The number of objects left in slabs, expected 0.
    pub objects: u64,
    /// The number of slabs left, expected 0.
    pub slabs: u64,
    /// The number of free pages outside the largest possible blocks, expected 0.
    pub pages_not_in_maximal_blocks: u64,
    /// The committed bytes before and after.
    pub committed_bytes: [u64; 2],
    /// The resident bytes of the process: before the replay, at its end, and after everything was freed.
    pub resident_bytes: [u64; 3],
}

/// The kernel's own change between two snapshots, and the replay's for the same events.
#[derive(Debug, Serialize)]
pub struct AgainstKernel {
    /// The earlier snapshot.
    pub from: &'static str,
    /// The later snapshot.
    pub to: &'static str,
    /// The number of caches that changed.
    pub caches: u64,
    /// The sum of the kernel's changes of active objects.
    pub objects_kernel: i64,
    /// The sum of the replay's changes of active objects.
    pub objects_ours: i64,
    /// The number of caches whose change of objects is exactly the kernel's.
    pub objects_exact: u64,
    /// The sum of the absolute differences in objects.
    pub objects_abs_error: u64,
    /// The sum of the absolute differences in objects if the replay's had not changed.
    pub objects_abs_change: u64,
    /// The sum of the kernel's changes of slabs.
    pub slabs_kernel: i64,
    /// The sum of the replay's changes of slabs.
    pub slabs_ours: i64,
    /// The sum of the absolute differences in slabs.
    pub slabs_abs_error: u64,
    /// The sum of the absolute differences in slabs if the replay's had not changed.
    pub slabs_abs_change: u64,
    /// The changes by cache.
    pub rows: Vec<KernelRow>,
}

/// The change of one cache between the snapshots.
#[derive(Debug, Serialize)]
pub struct KernelRow {
    /// The name of the cache.
    pub cache: String,
    /// The kernel's change of active objects, and the replay's.
    pub objects: [i64; 2],
    /// The kernel's change of slabs, and the replay's.
    pub slabs: [i64; 2],
    /// The number of allocations without an event up to the later snapshot, as far as the trace shows them.
    pub hidden_allocs: u64,
    /// The number of frees without an event up to the later snapshot, as far as the trace shows them.
    pub hidden_frees: u64,
    /// The function that allocated most of the objects whose frees have no event.
    pub hidden_free_site: Option<String>,
    /// The cause for which the changes of objects differ, if they do.
    pub cause: Option<Cause>,
}

/// The fragmentation of one zone for one order, in thousandths.
#[derive(Debug, Serialize)]
pub struct Fragmentation {
    /// The name of the zone.
    pub zone: String,
    /// The order of the block.
    pub order: u8,
    /// The kernel's `extfrag_index`; -1000 if an allocation would succeed.
    pub extfrag_index: i64,
    /// The part of free memory that cannot serve the order.
    pub unusable_free_index: u64,
}

/// The simulated machine at a snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// The name of the moment.
    pub moment: String,
    /// The number of preceding operations.
    pub operations: u64,
    /// The counts; `None` if an invariant was violated.
    pub census: Option<uslab::Census>,
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

//! The result of a replay: as data ([`Report`], the interface of `--json`) and as text for a person.

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

pub(crate) use callers::Watch;
pub use callers::{CallSite, Callers, Lifetimes, Quantiles};
pub use cause::Cause;
pub use health::TraceHealth;
pub use live::{Live, LiveCommand, LiveSite, Looks, Pinned};

/// A replay in numbers. Its serialised form is the interface of `uslab replay --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// The trace's file.
    pub trace: String,
    /// The faults of the trace.
    pub trace_health: TraceHealth,
    /// The machine that was traced.
    pub traced: TracedMachine,
    /// The machine that was simulated.
    pub machine: MachineReport,
    /// Events by name.
    pub events: BTreeMap<String, u64>,
    /// Events in all.
    pub events_total: u64,
    /// Lines that were neither events nor headers; the first ones are in `facts`.
    pub not_understood: u64,
    /// Events that the kernel says were lost, or calls after the end of a program's recording. With any, numbers after the loss are not to be trusted.
    pub lost: u64,
    /// Marks of the trace at which all caches were shrunk, as the traced system had shrunk its own.
    pub shrinks: u64,
    /// The caches, the busiest first.
    pub caches: Vec<CacheReport>,
    /// All caches together.
    pub objects: ObjectTotals,
    /// Page events by order.
    pub pages: BTreeMap<u8, PageCounts>,
    /// Conservation laws.
    pub conservation: Conservation,
    /// The remainder after everything was freed, reaped, shrunk and returned.
    pub teardown: Teardown,
    /// The comparison with the kernel's tables, if the trace's folder has them.
    pub against_kernel: Option<AgainstKernel>,
    /// The buddy allocator at the end of the trace.
    pub buddy: BuddyInfo,
    /// Fragmentation at the end of the trace, by zone and order.
    pub fragmentation: Vec<Fragmentation>,
    /// The conservation laws' numbers at each snapshot.
    pub snapshots: Vec<SnapshotReport>,
    /// Allocations and frees of objects and pages that the replay requested. Events that request nothing
    /// (slabs' own pages, `kfree(NULL)`, events of the kernel's page lists) do not count.
    pub operations: u64,
    /// Events of the text a second, all of them: reading and replaying together, on one thread.
    pub events_per_second: f64,
    /// Seconds for reading the text.
    pub read_seconds: f64,
    /// Nanoseconds for reading an event, of all events.
    pub read_ns_per_event: f64,
    /// Seconds for replaying, without the checks.
    pub replay_seconds: f64,
    /// Nanoseconds for replaying an operation.
    pub replay_ns_per_operation: f64,
    /// Call sites and lifetimes, if they were requested.
    pub callers: Option<Callers>,
    /// All facts of the trace that need no replay.
    pub facts: Facts,
}

/// The traced machine.
#[derive(Debug, Serialize)]
pub struct TracedMachine {
    /// Number of CPUs: by the header or by the events, whichever is more.
    pub cpus: u64,
    /// CPUs that have an event.
    pub cpus_used: u64,
}

/// The simulated machine.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// CPUs.
    pub cpus: u32,
    /// CPUs that an event happened on. A CPU of the trace is the CPU of the same number, modulo the CPUs.
    pub cpus_used: u32,
    /// Memory nodes; CPUs are spread over them in contiguous ranges.
    pub nodes: u32,
    /// Nodes of the CPUs that were used.
    pub nodes_used: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The requested magazines.
    pub magazine: String,
}

/// One cache.
#[derive(Debug, Serialize)]
pub struct CacheReport {
    /// The name, as the kernel has it; placeholders for unknown ones begin with `?`.
    pub name: String,
    /// Bytes of an object.
    pub object_size: u64,
    /// Bytes from one object to the next.
    pub slab_size: u64,
    /// Objects in a slab.
    pub objs_per_slab: u64,
    /// A slab has `2^order` pages.
    pub order: u8,
    /// Allocations of the trace.
    pub allocs: u64,
    /// Frees of the trace.
    pub frees: u64,
    /// Objects live at the end of the trace.
    pub live: u64,
    /// The most that were live at a time.
    pub peak_live: u64,
    /// Frees on another CPU of the simulated machine than the allocation. (`facts` counts the traced machine's.)
    pub remote_frees: u64,
    /// Of these, on another node: past the magazines, to the slab that the object is from.
    pub remote_node_frees: u64,
    /// Remote frees in percent of the frees whose allocation was seen.
    pub remote_percent: f64,
    /// Allocations that the kernel did not trace.
    pub hidden_allocs: u64,
    /// Frees that the kernel did not trace.
    pub hidden_frees: u64,
    /// Frees of objects from before the trace.
    pub pre_trace_frees: u64,
    /// Our slabs at the end of the trace.
    pub slabs: u64,
    /// The most slabs that we had at a time.
    pub slabs_peak: u64,
    /// Objects of our slabs that are in use.
    pub used: u64,
    /// Objects of our slabs on CPUs' stacks.
    pub in_magazines: u64,
    /// Objects of our slabs in depots.
    pub in_depot: u64,
    /// Objects that are free in our slabs.
    pub free_in_slabs: u64,
    /// All operations, including hidden ones, by where they were served.
    pub paths: Paths,
    /// Visits to a depot that moved magazines.
    pub depot_exchanges: u64,
    /// The kernel's figures.
    pub kernel: Option<KernelCache>,
}

/// The kernel's last numbers of a cache, and their change.
#[derive(Debug, Serialize)]
pub struct KernelCache {
    /// Active objects at the last snapshot.
    pub active_objs: u64,
    /// Objects at the last snapshot.
    pub num_objs: u64,
    /// Slabs at the last snapshot.
    pub num_slabs: u64,
    /// The kernel's change of objects between the two exact snapshots.
    pub objects_change: i64,
    /// Our change of objects for the same events.
    pub our_objects_change: i64,
    /// The kernel's change of slabs between the two exact snapshots.
    pub slabs_change: i64,
    /// Our change of slabs for the same events.
    pub our_slabs_change: i64,
}

/// Sums over all caches.
#[derive(Debug, Default, Serialize)]
pub struct ObjectTotals {
    /// See [`CacheReport`].
    pub allocs: u64,
    /// See [`CacheReport`].
    pub frees: u64,
    /// See [`CacheReport`].
    pub live: u64,
    /// Frees whose allocation was seen.
    pub matched_frees: u64,
    /// See [`CacheReport`].
    pub remote_frees: u64,
    /// See [`CacheReport`].
    pub remote_node_frees: u64,
    /// See [`CacheReport`].
    pub hidden_allocs: u64,
    /// See [`CacheReport`].
    pub hidden_frees: u64,
    /// See [`CacheReport`].
    pub pre_trace_frees: u64,
    /// `kfree(NULL)`, which does nothing.
    pub kfree_of_null: u64,
    /// See [`CacheReport`].
    pub paths: Paths,
    /// See [`CacheReport`].
    pub depot_exchanges: u64,
}

/// Page events of one order.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PageCounts {
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
}

/// The conservation laws.
#[derive(Debug, Serialize)]
pub struct Conservation {
    /// Times that they were checked.
    pub checked: u64,
    /// Violations found.
    pub violated: u64,
    /// The first of them.
    pub violations: Vec<String>,
}

/// The remainder after everything was freed.
#[derive(Debug, Serialize)]
pub struct Teardown {
    /// Objects left in slabs: 0.
    pub objects: u64,
    /// Slabs left: 0.
    pub slabs: u64,
    /// Free pages outside the largest possible blocks: 0.
    pub pages_not_in_maximal_blocks: u64,
    /// Committed bytes before and after.
    pub committed_bytes: [u64; 2],
    /// Resident bytes of the process: before the replay, at its end, after everything was given back.
    pub resident_bytes: [u64; 3],
}

/// The kernel's own change between two snapshots and ours for the same events.
#[derive(Debug, Serialize)]
pub struct AgainstKernel {
    /// The first snapshot.
    pub from: &'static str,
    /// The second.
    pub to: &'static str,
    /// Caches that changed.
    pub caches: u64,
    /// Sum of the kernel's changes of active objects.
    pub objects_kernel: i64,
    /// Sum of ours.
    pub objects_ours: i64,
    /// Caches whose change of objects is exactly the kernel's.
    pub objects_exact: u64,
    /// Sum of the absolute differences in objects.
    pub objects_abs_error: u64,
    /// The same if nothing had changed here.
    pub objects_abs_change: u64,
    /// Sum of the kernel's changes of slabs.
    pub slabs_kernel: i64,
    /// Sum of ours.
    pub slabs_ours: i64,
    /// Sum of the absolute differences in slabs.
    pub slabs_abs_error: u64,
    /// The same if nothing had changed here.
    pub slabs_abs_change: u64,
    /// By cache.
    pub rows: Vec<KernelRow>,
}

/// One cache between the snapshots.
#[derive(Debug, Serialize)]
pub struct KernelRow {
    /// The cache.
    pub cache: String,
    /// The kernel's change of active objects, and ours.
    pub objects: [i64; 2],
    /// The kernel's change of slabs, and ours.
    pub slabs: [i64; 2],
    /// Allocations without an event up to the second snapshot, as far as the trace shows them.
    pub hidden_allocs: u64,
    /// Frees without an event up to the second snapshot, as far as the trace shows them.
    pub hidden_frees: u64,
    /// The function that allocated most of the objects of the trace whose frees have no event.
    pub hidden_free_site: Option<String>,
    /// Why the changes of objects differ, if they do.
    pub cause: Option<Cause>,
}

/// Fragmentation of one zone for one order, in 1/1,000.
#[derive(Debug, Serialize)]
pub struct Fragmentation {
    /// The zone.
    pub zone: String,
    /// The order.
    pub order: u8,
    /// The kernel's `extfrag_index`: -1000 where an allocation would succeed.
    pub extfrag_index: i64,
    /// The part of free memory that is of no use for the order.
    pub unusable_free_index: u64,
}

/// The machine at a snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// What moment it is.
    pub moment: String,
    /// Operations before it.
    pub operations: u64,
    /// The counts; `None` if a law was violated.
    pub census: Option<uslab::Census>,
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

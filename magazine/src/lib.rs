//! Per-CPU magazines in front of a depot: the fast path of an allocator. Most allocations and frees access no memory
//! that another CPU accesses.
//!
//! The crate combines three designs:
//!
//! * **Bonwick & Adams's magazines** ("Magazines and Vmem", USENIX 2001). Linux calls a magazine a *sheaf*, and a depot
//!   a *barn*. Objects move in **magazines**. An object (a *round* in the paper) is any value that fits into a pointer,
//!   for example the address of a page. A CPU has room for at least two magazines. A CPU therefore executes at least a
//!   magazine's worth of operations between two accesses to shared state. The shared state is the **depot** of each
//!   node. A depot stores full magazines, and flushes the magazines that are not in its **working set**.
//! * **tcmalloc's per-CPU mode**. Each CPU has one **region**, with a stack of pointers for each class. A restartable
//!   sequence pops or pushes with plain loads and stores, and commits with one store.
//! * **This crate's table**. One [`Table`] of regions serves all [layers](Layer). A region takes no memory before the
//!   first miss on its CPU. A drain redirects a CPU's pointer to a region of zeros, in which every operation misses.
//!   Fast paths therefore do not test for a drain, and a drain of all CPUs and classes needs only one fence. Without
//!   restartable sequences, a drain claims the region instead of redirecting the pointer. The rseq mechanism and the
//!   claimed mechanism are both model-checked.
//!
//! The user of the crate implements a [`Supplier`], which fills and takes back magazines. The crate works with any kind
//! of object. `uslab-buddy` uses the crate to cache pages, and `uslab` to cache allocated objects.
//!
//! | module | |
//! |---|---|
//! | [`layer`] | the algorithm: alloc, free, drain, reap |
//! | [`table`] | the regions of all CPUs: numbers and rooms of classes, drains, and the rules of both |
//! | `region` | the per-CPU data, and the operations on it |
//! | `depot` | the full magazines of a node, its working set |
//! | `magazine` | rounds in transit |
//! | `tuning` | limits of stacks, and sizes of fills |
//! | [`fast_path`] | the inlined path |
//! | [`cpu`] | the current CPU's number; the two mechanisms: `rseq`, the restartable sequences, and `claimed` |
//! | [`memory`] | the source of the table's memory |
//! | [`mod@fork`] | forking while other threads allocate |
//! | [`paths`] | the level that served each operation, and counts by level |
//! | `tracepoints` | the steps of slow operations, for observers |
//! | [`view`] | a view of all stacks and depots, for pictures |
//! | [`sync`] | the facade over atomics and locks; loom: `uslab-sync` |
//!
//! # Example
//!
//! ```
//! use std::cell::Cell;
//! use std::ptr::NonNull;
//! use uslab_magazine::sync::Arc;
//! use uslab_magazine::{Config, Cpus, Heap, Layer, Operation, Path, Round, Supplier, Table};
//!
//! #[derive(Clone, Copy, PartialEq, Debug)]
//! struct Ticket(usize);
//! impl Round for Ticket {
//!     fn into_raw(self) -> NonNull<u8> {
//!         NonNull::new(std::ptr::without_provenance_mut(self.0)).expect("tickets start at 1")
//!     }
//!     unsafe fn from_raw(raw: NonNull<u8>) -> Self {
//!         Ticket(raw.addr().get())
//!     }
//! }
//!
//! /// Prints new tickets, and drops the flushed ones.
//! struct Printer(Cell<usize>);
//! impl Supplier<Ticket> for Printer {
//!     fn fill(&self, op: &Operation, _node: u32, max: usize, mut put: impl FnMut(Ticket)) -> usize {
//!         op.did(Path::Slab);
//!         for _ in 0..max {
//!             self.0.set(self.0.get() + 1);
//!             put(Ticket(self.0.get()));
//!         }
//!         max
//!     }
//!     fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Ticket>) {
//!         op.did(Path::Slab);
//!         rounds.for_each(drop);
//!     }
//! }
//!
//! let cpus = Cpus::simulated(1, 1)?; // in a program: `Cpus::os()`
//! let region = Table::<Heap>::region_bytes(&cpus, true);
//! let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).expect("addresses");
//! // One for all layers of the program.
//! let table = Arc::new(Table::new(cpus, region, memory)?);
//! // Magazines of 8; a CPU has room for 4 in addition to the two that it needs, the depot for 16.
//! let layer = Layer::new(&table, Config::new(8, 4, 16)).expect("a number and a few KiB");
//! let printer = Printer(Cell::new(0));
//! let ticket = layer.alloc(&printer).expect("the printer never runs dry");
//! layer.free(&printer, ticket);
//! assert_eq!(layer.alloc(&printer), Some(ticket));
//! let stats = layer.stats();
//! assert_eq!((stats.allocs, stats.frees), (2, 1));
//! assert_eq!((stats.paths.slab, stats.paths.cpu), (1, 2)); // the first one had its magazine filled
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models have no sections"))]

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

// On WebAssembly, claims and objects of 4 bytes suffice: there is one thread, simulated CPUs and addresses
// below 4 GiB.
#[cfg(not(any(target_pointer_width = "64", target_arch = "wasm32")))]
compile_error!(
    "64-bit targets (or wasm32, for simulators) are required: sections store rounds of 8 bytes, and pages come from an \
     address range that is too large for 32 bits"
);

pub mod cpu;
mod depot;
#[doc(hidden)]
pub mod fast_path;
#[doc(hidden)]
pub mod fork;
pub mod layer;
mod lock_order;
mod magazine;
pub mod memory;
pub mod paths;
mod region;
mod round;
#[doc(hidden)]
pub mod sync;
pub mod table;
#[cfg(any(loom, shuttle))]
pub mod threads;
#[doc(hidden)]
pub mod tracepoints;
mod tuning;
#[doc(hidden)]
pub mod view;

#[cfg(all(test, not(any(loom, shuttle))))]
mod in_step;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, any(loom, shuttle)))]
mod scenarios;
#[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
pub mod shadow;
#[cfg(any(test, uslab_fuzz))]
mod test_round;

pub use cpu::{BadCpus, Cpus, MAX_CPUS, MAX_NODES, Mechanism, on_cpu};
pub use layer::{Config, Layer, MAX_DEPOT, Round, Stats, Supplier};
pub use magazine::MAX_CAPACITY;
pub use memory::{Heap, Memory};
pub use paths::{Path, Paths};
#[doc(hidden)]
pub use {
    cpu::{Script, regions::Words, rseq::StaticWords},
    depot::DepotBudget,
    fast_path::{FastPath, FastPathTable, StaticPath},
    fork::Fork,
    paths::PathCounts,
    table::{DrainScope, Drains, SweepGroup},
    uslab_sync,
    view::{CpuView, DepotView, LayerView, MagazineView},
};

pub use table::{BadTableMemory, Table};
pub use tracepoints::Operation;

/// Compiles and runs the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Per-CPU magazines over a depot: the front of an allocator that makes the common allocation and free touch nothing
//! that other CPUs touch.
//!
//! A **magazine** is an array of rounds (anything that fits a pointer: objects, pages). Each CPU has two, *loaded* and
//! *previous*; behind them a small *stock* of full and empty magazines; behind all CPUs of a node one **depot**; and
//! behind that the caller's [`Supplier`]. The design is Bonwick & Adams's ("Magazines and Vmem", USENIX 2001); Linux
//! calls the same things *sheaf* and *barn*.
//!
//! The crate knows neither pages nor objects; `uslab-buddy` caches pages in it and `uslab` objects.
//!
//! | module | |
//! |---|---|
//! | [`layer`] | the algorithm: alloc, free, exchange, drain, reap |
//! | `slot` | the contract of an operation on a CPU's slot, and why it is sound |
//! | [`private`] | rounds of one owner |
//! | [`cpu`] | where the CPU's number comes from; the two mechanisms: `rseq`, the restartable sequences, and the claimed slot |
//! | `depot` | full and empty magazines of a node, working set |
//! | `store` | where slots and magazines lie in memory |
//! | [`memory`] | who gives that memory |
//! | [`paths`] | what operations did at the dearest, and how many of each class there were |
//! | [`sync`] | the one door to atomics and locks; loom |
//!
//! # Example
//!
//! ```
//! use std::cell::Cell;
//! use std::ptr::NonNull;
//! use uslab_magazine::{Config, Cpus, Heap, Layer, Operation, Path, Round, Supplier};
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
//! /// Prints new tickets, and takes back what nobody wants.
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
//! let cpus = Cpus::os();
//! let config = Config::new(&cpus, 8, 4, 16);
//! let memory = Heap::new(Layer::<Ticket>::footprint(&cpus, &config)).expect("a few KiB");
//! let layer = Layer::new(cpus, config, memory)?;
//! let printer = Printer(Cell::new(0));
//! let ticket = layer.alloc(&printer).expect("the printer never runs dry");
//! layer.free(&printer, ticket);
//! assert_eq!(layer.alloc(&printer), Some(ticket));
//! let stats = layer.stats();
//! assert_eq!((stats.allocs, stats.frees), (2, 1));
//! assert_eq!((stats.paths.slab, stats.paths.cpu), (1, 2)); // the first one had its magazine filled
//! # Ok::<(), uslab_magazine::TooSmall>(())
//! ```

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

// One thread, simulated CPUs and addresses below 4 GiB: there the claimed slot, whose rounds and words are narrower, will do.
#[cfg(not(any(target_pointer_width = "64", target_arch = "wasm32")))]
compile_error!(
    "64-bit targets (and wasm32, for simulators) only: two magazine numbers are swapped as one word of 64 bits, rounds lie 8 bytes apart, and pages come \
     from a range of addresses larger than 32 bits have"
);

pub mod cpu;
mod depot;
pub mod fork;
pub mod front;
pub mod layer;
mod magazine;
pub mod memory;
pub mod paths;
mod region;
pub mod sync;
pub mod table;
mod tuning;
pub mod view;

#[cfg(any(test, uslab_fuzz))]
mod ball;
#[cfg(all(test, any(loom, uslab_models)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
#[doc(hidden)]
pub mod shadow;
#[cfg(all(test, any(loom, shuttle, uslab_models)))]
mod world;

pub use cpu::{BadCpus, Cpus, MAX_CPUS, MAX_NODES, Mechanism, Script, on_cpu};
pub use fork::Fork;
pub use front::{Front, Fronts};
pub use layer::{Config, Layer, MAX_DEPOT, Round, Stats, Supplier};
pub use magazine::MAX_CAPACITY;
pub use memory::{Heap, Memory};
pub use paths::{Operation, Path, PathCounts, Paths};
pub use table::{Table, TooSmall};
pub use view::{CpuView, DepotView, LayerView, MagazineView};

//! Runs a recorded stream through the shipping allocator, one operation at a time, and shows the state after each
//! operation.
//!
//! ```text
//! trace ──> stream::Writer ──> Stream ──> Engine on a Machine ──> View
//!  (uslab-sim)                 columns    the crates uslab and     as JSON: native, and the page
//!                                         uslab-buddy as they ship
//! ```
//!
//! The crate needs no operating system: it uses no files, threads or clocks. The crate compiles for
//! `wasm32-unknown-unknown`, so a web page that `uslab replay --html` writes can run it. The machine's pages are only
//! addresses ([`uslab_buddy::Phantom`]): the engine computes the addresses of objects and never accesses an object.

// Exercises refer to this crate by its name, also in the crate's own tests.
#[cfg(test)]
extern crate self as uslab_engine;

pub mod clock;
pub mod course;
pub mod design;
pub mod designs;
mod engine;
#[cfg(target_family = "wasm")]
mod exports;
mod held;
mod levels;
mod machine;
pub mod model;
pub mod models;
mod observer;
mod pages;
#[cfg(target_family = "wasm")]
mod play;
mod script;
mod shipping;
mod shown;
mod slabs;
mod step;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod told;
#[cfg(all(test, not(target_family = "wasm")))]
mod typescript;
pub mod until;
pub mod view;

pub use design::Design;
pub use engine::{Engine, EngineError};
pub use machine::{MAX_MACHINE_MEMORY, Machine, MachineError};
pub use model::{CostEvent, Model, Policy};
pub use pages::Pages;
pub use script::{ScriptError, script};
pub use shipping::Shipping;
pub use slabs::Slabs;
pub use step::{Step, What};
pub use stream::{Stream, StreamError, Writer};
pub use uslab_magazine::{Path, Paths};
pub use view::View;

/// The items that an implementation of [`Policy`] needs.
pub mod policy {
    pub use crate::design::{NoMemory, Unsupported};
    pub use crate::held::{CpuOwnedSlabs, Held, Holder};
    pub use crate::levels::{CacheLevels, Level};
    pub use crate::model::{CostEvent, Knob, Lines, Op, Policy};
    pub use crate::slabs::{End, Object, Slabs};
    pub use crate::stream::CacheInfo;
    pub use uslab::{Geometry, GeometryError, OrderRule};
    pub use uslab_magazine::Cpus;
}

/// Returns the 64-bit FNV-1a hash of some bytes; equal hashes show that two runs are equal.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

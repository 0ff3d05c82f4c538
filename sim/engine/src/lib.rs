//! A recorded stream of operations through the shipping allocator, one operation at a time, and what is then where.
//!
//! ```text
//! trace ──> stream::Writer ──> Stream ──> Engine on a Machine ──> View
//!  (uslab-sim)                 columns    the crates uslab and     as JSON: native, and the page
//!                                         uslab-buddy as they ship
//! ```
//!
//! There is no OS here: no file, no thread, no clock. The crate compiles for `wasm32-unknown-unknown`, and the page that
//! `uslab replay --html` writes runs it there. The machine's pages are addresses only ([`uslab_buddy::Phantom`]): the engine
//! asks where objects lie and never looks into one.

pub mod design;
mod engine;
#[cfg(target_family = "wasm")]
mod exports;
mod levels;
mod machine;
mod observer;
mod shipping;
pub mod slub;
mod step;
pub mod stream;
pub mod view;

pub use design::Design;
pub use engine::{Engine, EngineError};
pub use machine::{MOST_MEMORY, Machine};
pub use shipping::Shipping;
pub use slub::Slub;
pub use step::{Path, Step, What};
pub use stream::{Stream, StreamError, Writer};
pub use view::View;

/// FNV-1a of 64 bits: what runs are compared by.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

//! Handles: small values that name an object, and know when it is gone.

mod bits;
mod cached;
#[cfg(all(test, not(any(loom, shuttle))))]
mod cached_tests;
mod error;
#[cfg(test)]
mod listing;
#[cfg(all(test, any(loom, uslab_models)))]
mod models;
mod numbers;
mod packed;
mod slot_map;
mod slots;
mod table;

pub use bits::{Handle, Handle16x16, Handle20x12, Handle24x8, Handle32x32, Word};
pub use cached::{HandleCache, Held};
pub use error::HandleError;
pub use packed::PackedArray;
pub use slot_map::SlotMap;
pub use slots::{Generations, WrapPolicy};
pub use table::HandleTable;

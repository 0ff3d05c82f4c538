//! Handles: small values that name an object and can be checked for staleness.
//!
//! A pointer names an address. If the object is freed and its address reused, an old pointer silently refers to another
//! object. A handle is an index and a *generation*, which counts the lives of the slot. A handle is valid if and only
//! if its slot is in use with the same generation. A handle is a plain value (`Copy`, `Send`, `Sync`, 4 or 8 bytes)
//! without a reference count. A lookup by a stale handle returns `None` instead of another object.
//!
//! | type | place of the values | moved by a free | iterates over | use |
//! |---|---|---|---|---|
//! | [`HandleTable`] | their index | nothing | slots, with gaps | one owner; more lookups than iterations; large values |
//! | [`SlotMap`] | without gaps | the last value | a slice | one owner; iterated each frame |
//! | [`PackedArray`] | without gaps | the last value | a slice | iterations only: an index is valid until the next free |
//!
//! Each table or map belongs to one owner. `uslab::handle::HandleCache` provides handles of cached objects for many
//! threads. To save and load data with handles, see [`remap`].
//!
//! # When the generation wraps
//!
//! With `g` generation bits, a slot has 2^g - 1 lives. After its last life, the slot retires or wraps, depending on the
//! [`WrapPolicy`]. By default a slot retires: a stale handle is never valid again, and the slot's memory is lost. If a
//! slot wraps, a handle from 2^g - 1 lives ago is valid again and names another object. Tables reuse the most recently
//! freed slot, so a frequently used slot wears out first. With a million frees per second in one slot, 8 bits last 0.3
//! milliseconds, 12 bits 4 milliseconds, 16 bits 66 milliseconds, and 32 bits 72 minutes. With 8 bits and retirement,
//! every 255 frees cost one slot. Use [`Handle32x32`] if a program frees objects without end.
//!
//! The handles of a `HandleTable<T, u32, 8>` are [`Handle24x8`]s, because a table has the type parameters of its
//! handles.
//!
//! | layout | index + generation | slots | lives of a slot | used in |
//! |---|---|---|---|---|
//! | [`Handle24x8`] | 24 + 8 | 16,777,216 | 255 | the tutorial "Memory Allocators from Scratch" |
//! | [`Handle20x12`] | 20 + 12 | 1,048,576 | 4,095 | EnTT's `entt::entity` (`entt/entity/entity.hpp`) |
//! | [`Handle16x16`] | 16 + 16 | 65,536 | 65,535 | sokol's resources (`sokol_gfx.h`) |
//! | [`Handle32x32`] | 32 + 32 | 4,294,967,296 | 4,294,967,295 | Bevy's `Entity` (`bevy_ecs::entity`); the `slotmap` crate (31 bits of lives) |
//!
//! The feature `serde` implements serialisation for handles. Without the default feature `std`, the crate needs only
//! `alloc`, and does not have [`remap`].
//!
//! Further reading: Frykholm, "Managing Decoupling Part 4: The ID Lookup Table" (BitSquid blog, 2011); Weissflog,
//! "Handles are the better pointers" (2018).

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

mod bits;
mod error;
#[cfg(test)]
mod listing;
mod packed;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(feature = "std")]
pub mod remap;
mod slot_map;
mod slots;
mod table;

pub use bits::{Handle, Handle16x16, Handle20x12, Handle24x8, Handle32x32, Word};
pub use error::HandleError;
pub use packed::PackedArray;
#[cfg(feature = "std")]
pub use remap::{IdConflict, StableIds};
pub use slot_map::SlotMap;
pub use slots::{Generations, WrapPolicy};
pub use table::HandleTable;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// A copy of `uslab_sync::catch_panic`, which avoids a dependency.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "uslab-sync must not be a dependency")]
pub(crate) fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
}

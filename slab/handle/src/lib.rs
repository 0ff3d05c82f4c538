//! Handles: small values that name an object, and know when it is gone.
//!
//! A pointer names a place. When what was there is freed and the place used again, whoever kept the pointer has another
//! object and no way to tell. A handle is an index and a *generation*, which counts the lives of the slot: it is valid if and
//! only if the slot is in that life. It is a plain value (`Copy`, `Send`, `Sync`, 4 or 8 bytes), costs its object no count of
//! references, and tells: `None` in place of a stranger.
//!
//! | | values lie | a free moves | loops over | for |
//! |---|---|---|---|---|
//! | [`HandleTable`] | at their index | nothing | slots, with gaps | one owner; looked up more than looped over; large values |
//! | [`SlotMap`] | without gaps | the last value | a slice | one owner; looped over each frame |
//! | [`PackedArray`] | without gaps | the last value | a slice | loops only: an index is good until the next free |
//!
//! Each has one owner. For many threads there are handles of cached objects, `uslab::handle::HandleCache`. To save and load what
//! refers by handles, see [`remap`].
//!
//! # When the generation wraps
//!
//! With `g` bits a slot has 2^g - 1 lives. Then, as the [`WrapPolicy`] says, it retires (the default: a stale handle is never
//! valid again, and a slot's memory is lost for each 2^g - 1 frees in it), or it wraps (a handle of that many lives ago names
//! a stranger). Tables reuse the slot that was freed last, so a hot slot wears out first. How long that takes, at a million
//! frees a second in one slot: 8 bits 0.3 milliseconds, 12 bits 4 milliseconds, 16 bits 66 milliseconds, 32 bits 72 minutes.
//! With 8 bits, retiring costs a slot for each 255 frees: take [`Handle32x32`] where frees never end.
//!
//! A table takes the same parameters as its handles: those of a `HandleTable<T, u32, 8>` are [`Handle24x8`]s.
//!
//! | layout | index + generation | slots | lives of a slot | where |
//! |---|---|---|---|---|
//! | [`Handle24x8`] | 24 + 8 | 16,777,216 | 255 | the tutorial "Memory Allocators from Scratch" |
//! | [`Handle20x12`] | 20 + 12 | 1,048,576 | 4,095 | EnTT's `entt::entity` (`entt/entity/entity.hpp`) |
//! | [`Handle16x16`] | 16 + 16 | 65,536 | 65,535 | sokol's resources (`sokol_gfx.h`) |
//! | [`Handle32x32`] | 32 + 32 | 4,294,967,296 | 4,294,967,295 | Bevy's `Entity` (`bevy_ecs::entity`); the `slotmap` crate (31 bits of lives) |
//!
//! The feature `serde` serialises handles. Without `std`, which is on by default, the crate needs `alloc` only, and has no [`remap`].
//!
//! Read on: Frykholm, "Managing Decoupling Part 4: The ID Lookup Table" (BitSquid blog, 2011); Weissflog, "Handles are the
//! better pointers" (2018).

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
pub use remap::{StableIds, Taken};
pub use slot_map::SlotMap;
pub use slots::{Generations, WrapPolicy};
pub use table::HandleTable;

/// The README's example is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// `uslab_sync::catch_panic`, without a dependency.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "uslab-sync is no dependency")]
pub(crate) fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
}

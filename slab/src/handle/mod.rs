//! Handles: small values that name an object, and know when it is gone.
//!
//! Tables and maps, each for one owner, are those of the crate [`uslab_handle`], which says what a handle is and what happens
//! when its generations are used up. Here are handles of cached objects, for many threads: [`HandleCache`].
//!
//! | | values lie | a free moves | loops over | for |
//! |---|---|---|---|---|
//! | [`HandleTable`] | at their index | nothing | slots, with gaps | one owner; looked up more than looped over; large values |
//! | [`SlotMap`] | without gaps | the last value | a slice | one owner; looped over each frame |
//! | [`PackedArray`] | without gaps | the last value | a slice | loops only: an index is good until the next free |
//! | [`HandleCache`] | as objects of a cache, for ever at their address | nothing | | many threads, `&self` |
//!
//! | to | |
//! |---|---|
//! | save and load what refers by handles | [`remap`] |
//! | check your own code with handles under loom | `slab/examples/sessions.rs`, `check` |
//!
//! (The related tools of pool articles, external references and pools for one thread of a job system, are here: handles,
//! and the per-CPU magazines under every cache.)
//!
//! # What it costs, in bytes
//!
//! | | the name | beside each object |
//! |---|---|---|
//! | [`HandleTable`] of 24 + 8 bits | 4 | 4, and the tag of `Option<T>` |
//! | [`HandleTable`] of 32 + 32 bits | 8 | 8, and the tag of `Option<T>` |
//! | [`SlotMap`] of 24 + 8, of 32 + 32 bits | 4, 8 | 12, 20 |
//! | [`HandleCache`] | 4 or 8 | 32: 16 in the object, 16 in its entry |
//! | `Arc<T>`, `Weak<T>` | 8 | 16, and what an allocation of its own costs; a change of a shared count for each copy of the name |
//! | `shared_ptr`, `weak_ptr` of C++ | 16 | 24 or so, for each object a second allocation unless it was made by `make_shared` |
//!
//! `benches/handles.rs` has the times.

mod cached;
#[cfg(all(test, not(any(loom, shuttle))))]
mod cached_tests;
mod numbers;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;

pub use cached::{HandleCache, Held};
#[doc(inline)]
pub use uslab_handle::*;

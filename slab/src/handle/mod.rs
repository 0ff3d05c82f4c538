//! Handles: small values that identify objects and can be checked for staleness.
//!
//! The crate [`uslab_handle`] has tables and maps for one owner; its documentation describes handles, and what happens
//! when their generations are used up. This module adds [`HandleCache`], whose objects have handles that many threads
//! can use.
//!
//! | type | place of the values | moved by a free | iterates over | use |
//! |---|---|---|---|---|
//! | [`HandleTable`] | their index | nothing | slots, with gaps | one owner; more lookups than iterations; large values |
//! | [`SlotMap`] | without gaps | the last value | a slice | one owner; iterated each frame |
//! | [`PackedArray`] | without gaps | the last value | a slice | iterations only: an index is valid until the next free |
//! | [`HandleCache`] | objects of a cache, at a fixed address | nothing | | many threads, `&self` |
//!
//! | task | see |
//! |---|---|
//! | save and load data that refers to objects by handles | [`remap`] |
//! | check your own code with handles under loom | `slab/examples/sessions.rs`, `check` |
//!
//! Articles on pools recommend tools for external references, and thread-local pools for job systems. Uslab offers
//! handles for external references, and per-CPU magazines in place of thread-local pools.
//!
//! # Cost in bytes
//!
//! | type | the name | overhead per object |
//! |---|---|---|
//! | [`HandleTable`] of 24 + 8 bits | 4 | 4, and the tag of `Option<T>` |
//! | [`HandleTable`] of 32 + 32 bits | 8 | 8, and the tag of `Option<T>` |
//! | [`SlotMap`] of 24 + 8, of 32 + 32 bits | 4, 8 | 12, 20 |
//! | [`HandleCache`] | 4 or 8 | 32: 16 in the object, 16 in its entry |
//! | `Arc<T>`, `Weak<T>` | 8 | 16, and the cost of a separate allocation; a change of a shared count for each copy of the name |
//! | `shared_ptr`, `weak_ptr` of C++ | 16 | about 24; a second allocation per object unless it was made by `make_shared` |
//!
//! `benches/handles.rs` measures the times.

mod cached;
#[cfg(all(test, not(any(loom, shuttle))))]
mod cached_tests;
mod numbers;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;

pub use cached::{HandleCache, Held};
#[doc(inline)]
pub use uslab_handle::*;

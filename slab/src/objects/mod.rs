//! Caches whose objects have one type.
//!
//! | file | |
//! |---|---|
//! | [`typed`] | a cache of constructed objects, and its boxes |
//! | `pinned` | objects that never move |
//! | `type_stable` | objects that outlive readers |
//! | `static_cache` | caches in statics |
//! | `hive` | an iterable container of values that never move, for one owner |

pub(crate) mod hive;
pub(crate) mod pinned;
#[cfg(not(shuttle))]
pub(crate) mod static_cache;
#[cfg(any(not(loom), crossbeam_loom))]
pub(crate) mod type_stable;
pub mod typed;

pub use hive::{Hive, Key, Refused};
pub use pinned::PinnedCache;
#[cfg(not(shuttle))]
pub use static_cache::StaticCache;
#[cfg(any(not(loom), crossbeam_loom))]
pub use type_stable::{StableBox, TypeStableCache};

//! Objects of one type.
//!
//! | file | |
//! |---|---|
//! | `typed` | a cache of constructed objects, and its boxes |
//! | `pinned` | objects that never move |
//! | `type_stable` | objects that outlive readers |
//! | `static_cache` | caches in statics |
//! | `hive` | values of one owner that never move, to walk over |

pub mod hive;
pub(crate) mod pinned;
#[cfg(not(shuttle))]
pub(crate) mod static_cache;
#[cfg(not(loom))]
pub(crate) mod type_stable;
pub mod typed;

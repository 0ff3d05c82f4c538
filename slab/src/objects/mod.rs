//! Objects of one type.
//!
//! | file | |
//! |---|---|
//! | [`typed`] | a cache of constructed objects, and its boxes |
//! | [`pinned`] | objects that never move |
//! | [`type_stable`] | objects that outlive readers |
//! | [`static_cache`] | caches in statics |
//! | [`hive`] | values of one owner that never move, to walk over |

pub mod hive;
pub mod pinned;
#[cfg(not(shuttle))]
pub mod static_cache;
#[cfg(not(loom))]
pub mod type_stable;
pub mod typed;

//! The lifetime of a cache: its owner, references without a handle, and deferred frees.

#[cfg(any(not(loom), crossbeam_loom))]
mod deferred;
pub(crate) mod owner;
pub(crate) mod refs;

//! The lifetime of a cache: its owner, references without a handle, and objects that wait for readers.

#[cfg(any(not(loom), crossbeam_loom))]
mod deferred;
pub(crate) mod owner;
pub(crate) mod refs;

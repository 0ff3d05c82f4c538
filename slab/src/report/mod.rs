//! Reports on a subsystem: statistics, snapshots, leaks, and a census.
//!
//! | file | |
//! |---|---|
//! | [`info`] | statistics, and `/proc/slabinfo` |
//! | `prometheus` | statistics in Prometheus' format (a feature) |
//! | `census` | check that each object and page is where its state requires |
//! | [`leaks`] | memory by call stack, and unreachable memory |
//! | `view` | snapshots of slabs and magazines, for pictures |

pub(crate) mod census;
pub mod info;
pub mod leaks;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub(crate) mod view;

pub use census::{Census, Violation};
pub use view::{CacheView, ObjectPlace, SlabList, SlabView};

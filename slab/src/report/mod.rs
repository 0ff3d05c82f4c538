//! What a subsystem says of itself: numbers, pictures, and a census of everything.
//!
//! | file | |
//! |---|---|
//! | [`info`] | the numbers, and `/proc/slabinfo` |
//! | `prometheus` | the numbers as Prometheus reads them (a feature) |
//! | `census` | whether everything is where its state says, and nothing is lost |
//! | [`leaks`] | who holds memory, and what nobody can reach any more |
//! | `view` | what lies in which slab and magazine, for pictures |

pub(crate) mod census;
pub mod info;
pub mod leaks;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub(crate) mod view;

pub use census::{Census, Violation};
pub use view::{CacheView, ObjectPlace, SlabList, SlabView};

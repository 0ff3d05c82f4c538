//! Reclaims memory: reapers, shrinkers, memory pressure, and grace periods.
//!
//! | file | |
//! |---|---|
//! | [`shrinker`] | users free objects when memory is short |
//! | [`pressure`] | Linux's signs of memory pressure, and the limits of the process |
//! | [`reaper`] | threads that free idle memory |
//! | [`rcu`] | grace periods, which memory waits for while readers may read it |

pub mod pressure;
#[cfg(any(not(loom), crossbeam_loom))]
pub mod rcu;
pub mod reaper;
pub mod shrinker;

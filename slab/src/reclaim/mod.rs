//! Giving memory back: who asks for it, when, and what it waits for.
//!
//! | file | |
//! |---|---|
//! | [`shrinker`] | what users can drop when memory is short |
//! | [`pressure`] | how Linux says that memory is short, and how much the process may have |
//! | [`reaper`] | threads that give idle memory back |
//! | [`rcu`] | grace periods, which memory that readers may look at waits for |

pub mod pressure;
#[cfg(any(not(loom), crossbeam_loom))]
pub mod rcu;
pub mod reaper;
pub mod shrinker;

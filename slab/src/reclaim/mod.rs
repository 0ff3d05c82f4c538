//! Giving memory back: who asks for it, when, and what it waits for.
//!
//! | file | |
//! |---|---|
//! | [`shrinker`] | what users can drop when memory is short |
//! | [`pressure`] | how Linux says that memory is short, and how much the process may have |
//! | [`reaper`] | threads that give idle memory back |
//! | [`rcu`] | grace periods, which memory that readers may look at waits for |

#[cfg(not(any(loom, shuttle)))]
pub mod pressure;
#[cfg(any(not(loom), crossbeam_loom))]
pub mod rcu;
#[cfg(not(any(loom, shuttle)))]
pub mod reaper;
#[cfg(shuttle)]
#[allow(dead_code, unreachable_pub, reason = "for reports, which models have not")]
pub(crate) mod reaper {
    //! The reaper that a subsystem starts by itself. (The other one sleeps on a lock that no checker knows.)
    mod background;
    #[cfg(test)]
    pub(crate) use background::ReaperThread;
    pub(crate) use background::{Background, Reap};
}
pub mod shrinker;

//! Waiting for memory: waiters at a limit, and accounts that limit several caches together.

mod account;
mod charges;
mod queue;
mod waiters;

pub use account::{Account, AccountInfo};
pub(crate) use charges::Charges;
pub(crate) use queue::Waiters;
pub use waiters::Acquiring;

//! The course's labs in which students write policies: the interface of a policy, the streams on which policies run,
//! and the judges.
//!
//! A policy runs operation by operation, and its invariants are checked after each operation. If a policy panics or
//! breaks an invariant, its verdict contains the preceding states. The judge compares the policy's cost with the cost
//! of a reference.

#[cfg(feature = "course")]
mod buddy;
#[cfg(feature = "course")]
mod exchange;
mod labs;
#[cfg(feature = "course")]
mod partial;
#[cfg(feature = "course")]
mod reaping;
#[cfg(feature = "course")]
mod reference;
#[cfg(feature = "course")]
mod run;
#[cfg(feature = "course")]
mod streams;
mod verdict;

#[cfg(feature = "course")]
pub use buddy::{Buddy, FreeLists, merge};
#[cfg(feature = "course")]
pub use exchange::exchange;
pub(super) use labs::LABS;
#[cfg(feature = "course")]
pub use partial::partial;
#[cfg(feature = "course")]
pub use reaping::{Reaper, reaping};
pub use verdict::{Check, Verdict};

#[cfg(test)]
pub(crate) use run::Failure;

#[cfg(test)]
mod tests;

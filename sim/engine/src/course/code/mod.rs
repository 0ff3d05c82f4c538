//! The labs in which a policy is written: what it is called by, the streams that it runs on, and what it is judged by.
//!
//! A policy runs operation by operation, and its laws are checked after each: an object in one place, a block free or not. Where it
//! breaks one, or panics, its verdict carries the moments before. What it cost is compared with how the exercise may be done.

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

//! The simulator: runs kernel memory traces through the shipping allocator, on simulated CPUs.
//!
//! ```text
//! trace ──> recording ──> resolver ──> operations ──> machine ──> report
//!  text      compact       who, what     in order       caches,      page, JSON
//!            events        was hidden                   pages
//! ```
//!
//! `uslab watch` shows a replay on a terminal; `uslab top` shows a running program's caches.
//!
//! The module [`stress`] loads the same allocator from threads on the machine's real CPUs.
//!
//! `uslab lab` compares the shipping allocator with textbook allocators; its experiments are in the crate `uslab-lab`.
//!
//! The simulator contains neither a second implementation of the shipping allocator nor `unsafe` code: [`machine`]
//! drives the crates `uslab` and `uslab-buddy` through their safe, owned block types.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cli;
mod course;
pub mod diff;
pub mod flame;
#[cfg(any(test, uslab_fuzz))]
pub mod fuzz;
pub mod geometry;
mod interrupt;
pub mod machine;
mod pages;
mod race;
pub mod record;
pub mod replay;
pub mod report;
pub mod resident;
pub mod scale;
pub mod slabs;
pub mod story;
pub mod stress;
mod sweep;
mod top;
#[cfg(test)]
mod typescript;
pub mod validate;
mod watch;
mod web;
pub mod what;

pub use uslab_output as output;
pub use uslab_trace as trace;

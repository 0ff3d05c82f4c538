//! The commands `uslab sweep` and `uslab tune`: many runs of `uslab scale`, numbered, on one machine or on many.
//!
//! ```text
//! file ──> plan: number <-> item ──> run: trace or workload, setting, CPUs, seed ──> a file an item ──> merge: tables, CSV, page
//!          hash                       a share of the numbers                            named by the hash of all that it depends on
//! ```
//!
//! The program has no scheduler. An item's result is a function of its parameters, so a shard that runs again, or twice
//! at the same time, gives the same bytes. Existing batch systems start the shards (Slurm's arrays, Kubernetes' Indexed
//! Jobs). The hash of a sweep covers its file and everything that the file names. On two machines with the same hash,
//! items have the same numbers.

mod analysis;
mod args;
mod axis;
mod engines;
mod halving;
mod identity;
mod merge;
mod page;
mod plan;
mod record;
mod run;
mod sample;
mod sensitivity;
mod spec;
mod store;
mod tune;
mod verb;

pub(crate) use args::{SweepArgs, TuneArgs};
pub(crate) use verb::{sweep, tune};

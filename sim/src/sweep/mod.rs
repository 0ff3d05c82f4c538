//! The commands `uslab sweep` and `uslab tune`: many numbered runs of `uslab scale`, on one machine or on
//! many.
//!
//! ```text
//! file ──> plan: number <-> item ──> run: trace or workload, setting, CPUs, seed ──> a file an item ──> merge: tables, CSV, page
//!          hash                       a share of the numbers                            named by the hash of all that it depends on
//! ```
//!
//! The result of an item is a function of the item's parameters. A shard that runs again, or runs twice at the same
//! time, therefore gives the same bytes. The program has no scheduler: batch systems such as Slurm's arrays or
//! Kubernetes' Indexed Jobs start the shards. The hash of a sweep covers its file and every file that it names. On two
//! machines with the same hash, a number identifies the same item.

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

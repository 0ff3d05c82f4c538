//! `uslab sweep` and `uslab tune`: many runs of `uslab scale`, numbered, on one machine or on many.
//!
//! ```text
//! file ──> plan: number <-> item ──> run: trace or workload, setting, CPUs, seed ──> a file an item ──> merge: tables, CSV, Parquet, page
//!          hash                       a share of the numbers                            named by the hash of all that it depends on
//! ```
//!
//! There is no scheduler here. An item's result is a function of its parameters, so a share that is run again, or twice at the
//! same time, gives the same bytes. Existing engines start the shares (Slurm's arrays, Kubernetes' Indexed Jobs). The hash of a
//! sweep covers its file and everything that the file names: on two machines with the same hash the items have the same numbers.

#[cfg(feature = "sweep")]
mod analysis;
#[cfg(feature = "sweep")]
mod args;
#[cfg(feature = "sweep")]
mod axis;
#[cfg(feature = "sweep")]
mod engines;
#[cfg(feature = "sweep")]
mod halving;
#[cfg(feature = "sweep")]
mod identity;
#[cfg(feature = "sweep")]
mod merge;
#[cfg(feature = "sweep")]
mod page;
#[cfg(feature = "sweep")]
mod plan;
#[cfg(feature = "sweep")]
mod record;
#[cfg(feature = "sweep")]
mod run;
#[cfg(feature = "sweep")]
mod sample;
#[cfg(feature = "sweep")]
mod sensitivity;
#[cfg(feature = "sweep")]
mod spec;
#[cfg(feature = "sweep")]
mod store;
#[cfg(feature = "sweep")]
mod tune;
#[cfg(feature = "sweep")]
mod verb;

#[cfg(not(feature = "sweep"))]
mod not_built;

#[cfg(feature = "sweep")]
pub(crate) use args::{SweepArgs, TuneArgs};
#[cfg(not(feature = "sweep"))]
pub(crate) use not_built::{SweepArgs, TuneArgs, sweep, tune};
#[cfg(feature = "sweep")]
pub(crate) use verb::{sweep, tune};

//! Allocators from textbooks and papers as real code, which can be read, checked with loom, and measured.
//!
//! | module | |
//! |---|---|
//! | [`classic`] | the magazine layer of 2001: loaded, previous and depot |
//! | [`course`] | a magazine layer as an exercise: its trait, its locks, its models |
//! | `allocators` | the textbook allocators and the shipping allocators, under one trait |
//! | `workload` | requests to allocators, generated from distributions or recorded |
//! | `demos` | allocators that a user drives, command by command |
//! | `experiments` | the experiments, which are the subcommands of `uslab lab` |
//! | `findings` | the results of an experiment, as data, text, CSV and pages |
//!
//! [`classic`] and [`course`] are always compiled; all other modules need the feature `experiments`. `allocators` and
//! `demos`, which need no operating system, are also in the feature `demos`.
//!
//! The file `README.md`, next to the manifest of this crate, is a tutorial. The tutorial checks [`classic`] with loom,
//! from the first model to bugs that only a model checker finds.

// Only tests may have unsafe code: the models record owners in cells.
#![cfg_attr(not(test), forbid(unsafe_code))]

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

#[cfg(feature = "demos")]
pub mod allocators;
pub mod classic;
#[cfg(feature = "experiments")]
pub mod cli;
pub mod course;
#[cfg(feature = "demos")]
pub mod demos;
#[cfg(feature = "experiments")]
pub mod experiments;
#[cfg(feature = "experiments")]
pub mod findings;
#[cfg(feature = "experiments")]
pub mod workload;

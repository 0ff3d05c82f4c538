//! Allocators of the textbooks and papers, as real code: to read, to check with loom, to measure.
//!
//! | module | |
//! |---|---|
//! | [`classic`] | the magazine layer of 2001: loaded, previous and depot |
//! | [`course`] | a layer as an exercise: its traits, its locks, its models |
//! | `allocators` | every allocator of the textbooks beside the shipping ones, under one trait |
//! | `workload` | what is asked of them, made from distributions or recorded |
//! | `demos` | the same, driven by hand, command by command |
//! | `experiments` | the questions, one a file: the verbs of the command `uslab-lab` |
//! | `findings` | what an experiment found, as data, text, CSV and pages |
//!
//! All but [`classic`] and [`course`] come with the feature `experiments`; `allocators` and `demos`, which need no OS, with `demos`, too.
//!
//! `README.md` beside this crate is a tutorial: it checks [`classic`] with loom, from the first model to bugs that only a
//! checker finds.

// The models watch who holds what in cells; what is checked has none.
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

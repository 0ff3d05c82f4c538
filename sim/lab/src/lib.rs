//! Allocators of the textbooks and papers, as real code: to read, to check with loom, to measure.
//!
//! | module | |
//! |---|---|
//! | [`classic`] | the magazine layer of 2001: loaded, previous and depot |
//!
//! `README.md` beside this crate is a tutorial: it checks [`classic`] with loom, from the first model to bugs that only a
//! checker finds.

// The models watch who holds what in cells; what is checked has none.
#![cfg_attr(not(test), forbid(unsafe_code))]

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

pub mod classic;

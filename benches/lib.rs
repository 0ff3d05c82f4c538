//! Compares uslab with other allocators: every subject is measured in the same run, in interleaved rounds, with
//! criterion's statistics. The README of the benches defines the rows, explains how to run them, and lists the limits
//! of the numbers.
//!
//! | module | |
//! |---|---|
//! | [`subject`] | subjects of comparisons, which allocate and free objects of one size |
//! | [`ours`], [`mallocs`], [`pools`] | the subjects: this project, general allocators, object pools |
//! | [`work`] | the timed loops, the same for all subjects |
//! | [`clock`] | CPU time of a thread, stamps of single operations |
//! | [`team`] | the same work on many threads at the same time |
//! | [`resident`] | resident memory, CPU time of processes |
//! | [`rounds`] | the run: options, interleaved rounds |
//! | [`child`] | subjects in other processes: under a preloaded malloc, of an older commit, or alone |
//! | [`preload`] | the mallocs that can be preloaded |
//! | [`kept`] | the samples of the rounds as criterion's benchmarks |
//! | [`report`] | medians, ratios; the tables |
//! | [`means`] | whole programs: saved results, means |
//! | `page` | a page of saved runs |

pub mod child;
pub mod clock;
pub mod kept;
pub mod mallocs;
pub mod means;
pub mod ours;
mod page;
pub mod pools;
pub mod preload;
pub mod report;
pub mod resident;
pub mod rounds;
pub mod subject;
pub mod team;
pub mod work;

pub use report::{BetterDirection, Column};
pub use rounds::{Bench, Contender, contenders};
pub use subject::{Kind, LazySubject, Subject, ThreadAccess, Work};

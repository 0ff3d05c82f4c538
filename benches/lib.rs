//! How uslab compares: one bench a question, every subject in the same run. The README beside this file says how to run
//! them and what the numbers do not show.
//!
//! | module | |
//! |---|---|
//! | [`subject`] | what is compared: something that hands out objects of one size, and takes them back |
//! | [`ours`], [`mallocs`], [`pools`] | the subjects: this project, general allocators, object pools |
//! | [`classic`] | a subject: the magazine layer of 2001 |
//! | [`work`] | the loops that are timed, the same for all |
//! | [`clock`] | CPU time of a thread, stamps of single operations |
//! | [`team`] | the same work on many threads at once |
//! | [`resident`] | resident memory; subjects in processes of their own |
//! | [`rounds`] | the run: options, interleaved rounds |
//! | [`report`] | medians, spreads, ratios; the table and the JSON |

pub mod classic;
pub mod clock;
pub mod mallocs;
pub mod ours;
pub mod pools;
pub mod report;
pub mod resident;
pub mod rounds;
pub mod subject;
pub mod team;
pub mod work;

pub use report::{Better, Column};
pub use rounds::{Bench, Contender, contenders};
pub use subject::{Kind, Local, Made, Subject, Work};

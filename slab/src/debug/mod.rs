//! What finds mistakes: wrong frees, refusals on purpose, and the kit for models.
//!
//! | file | |
//! |---|---|
//! | [`corruption`] | frees that cannot be right, and who hears of them |
//! | [`stacks`] | call stacks, kept once each |
//! | [`flags`] | what is done about the objects of which cache: `slab_debug` |
//! | `watch` | red zones and poison |
//! | [`tracks`] | who allocated an object, and who freed it |
//! | [`traces`] | the same for all objects of a cache, by call stack |
//! | [`report`] | a damaged object, in SLUB's shape |
//! | `lines` | what is said without the heap |
//! | [`profile`] | who allocates and who holds how much, by a sample |
//! | `tags` | which objects are out, asked at a free |
//! | [`faults`] | refusals on purpose |
//! | `guard` | sampled allocations that have a page of their own |
//! | [`harden`] | what makes mistakes hard to build on: secrets, random order, canaries |
//! | `quarantine` | freed objects that are used again late |
//! | `gdb` | what a debugger finds of all that, in a process or in a core |
//! | `check` | under loom: check your own code on top of this one |

#[cfg(any(loom, shuttle))]
pub mod check;
pub mod corruption;
pub mod faults;
pub mod flags;
pub(crate) mod gdb;
pub(crate) mod guard;
pub mod harden;
pub(crate) mod lines;
pub mod profile;
pub(crate) mod quarantine;
pub mod report;
pub mod stacks;
pub(crate) mod tags;
pub mod traces;
pub mod tracks;
pub mod watch;

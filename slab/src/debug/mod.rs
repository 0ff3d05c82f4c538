//! Error detection: invalid frees, fault injection, hardening, and the kit for models.
//!
//! | file | |
//! |---|---|
//! | [`corruption`] | invalid frees and damage, and their handler |
//! | [`stacks`] | interned call stacks |
//! | [`flags`] | debug flags by cache: `slab_debug` |
//! | `watch` | red zones and poison |
//! | [`tracks`] | the last allocation and free of each object |
//! | [`traces`] | the last allocations and frees of all objects of a cache, by call stack |
//! | [`report`] | description of a damaged object, in SLUB's format |
//! | `lines` | output without the heap |
//! | [`profile`] | sampled allocations and live memory, by call stack |
//! | `tags` | bytes that record which objects are out, for checked frees |
//! | [`faults`] | fault injection |
//! | `guard` | sampled allocations between guard pages |
//! | [`harden`] | hardening: secrets, random order, canaries |
//! | `quarantine` | freed objects that are reused late |
//! | `gdb` | layout for a debugger, for a process or a core |
//! | `check` | under loom: check your own code that uses uslab |

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

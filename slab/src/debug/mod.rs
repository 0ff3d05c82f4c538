//! What finds mistakes: wrong frees, refusals on purpose, and the kit for models.
//!
//! | file | |
//! |---|---|
//! | [`corruption`] | frees that cannot be right, and who hears of them |
//! | `tags` | which objects are out, asked at a free |
//! | [`faults`] | refusals on purpose |
//! | `gdb` | what a debugger finds of all that, in a process or in a core |
//! | `check` | under loom: check your own code on top of this one |

#[cfg(any(loom, shuttle))]
pub mod check;
pub mod corruption;
pub mod faults;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod gdb;
#[cfg(not(loom))]
pub(crate) mod tags;

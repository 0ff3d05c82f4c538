//! What finds mistakes: wrong frees, refusals on purpose, and the kit for models.
//!
//! | file | |
//! |---|---|
//! | [`corruption`] | frees that cannot be right, and who hears of them |
//! | [`profile`] | who allocates and who holds how much, by a sample |
//! | [`stacks`] | call stacks, kept once each |
//! | `tags` | which objects are out, asked at a free |
//! | [`faults`] | refusals on purpose |
//! | `check` | under loom: check your own code on top of this one |

#[cfg(any(loom, shuttle))]
pub mod check;
pub mod corruption;
pub mod faults;
#[cfg(not(loom))]
pub mod profile;
#[cfg(not(any(loom, shuttle)))]
pub mod stacks;
#[cfg(not(loom))]
pub(crate) mod tags;

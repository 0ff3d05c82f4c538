//! Forks while other threads are busy.
#![cfg(not(any(loom, shuttle)))]

#[path = "../kit/rounds.rs"]
mod rounds;

mod magazines;
mod subsystem;

/// The lock that the running test holds. Forking while another test runs would leave the child with locks whose holders
/// do not exist there.
#[allow(clippy::disallowed_types)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

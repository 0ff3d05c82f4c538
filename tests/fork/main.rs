//! Forks while other threads are busy.
#![cfg(not(any(loom, shuttle)))]

#[path = "../kit/rounds.rs"]
mod rounds;

mod magazines;
mod subsystem;

/// The lock that each test holds while it runs. If a test forked while another test runs, the child would
/// copy locks whose holders do not exist in the child.
#[allow(clippy::disallowed_types)]
static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

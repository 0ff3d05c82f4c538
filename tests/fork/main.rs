//! Tests that fork while other threads are busy.
#![cfg(not(any(loom, shuttle)))]

#[path = "../kit/rounds.rs"]
mod rounds;

mod magazines;
mod subsystem;

/// A lock that each test holds while it runs, so that no test forks during another test. If a test forked during
/// another test, the child would copy locks whose holders do not exist in it.
#[allow(clippy::disallowed_types)]
static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

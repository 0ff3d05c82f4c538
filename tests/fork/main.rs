//! Forks while other threads are busy.
#![cfg(not(any(loom, shuttle)))]

#[path = "../kit/rounds.rs"]
mod rounds;

mod magazines;
mod subsystem;

/// One test at a time: a child has none of the other's threads, and would wait for ever for a lock that they hold.
#[allow(clippy::disallowed_types)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

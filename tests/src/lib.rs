//! End-to-end tests, stress and real programs for uslab; and the runners: `cargo check-all` for all quick tests,
//! `cargo check-orderings` for the memory orderings, `cargo check-claims` for the table of what they show.

pub mod claims;
pub mod models;
pub mod source;
pub mod waiver;

use std::path::Path;
use std::process::Command;

/// The workspace's root.
pub fn workspace() -> &'static Path {
    // `tests/` lies in it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The cargo that runs this, in the workspace's root.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

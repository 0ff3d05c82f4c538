//! End-to-end tests, stress and real programs for uslab; and the runners: `cargo check-all` for all quick tests,
//! `cargo check-orderings` for the memory orderings, `cargo check-claims` for the table of what they show.

pub mod claims;
pub mod models;
pub mod source;
pub mod waiver;

use std::path::{Path, PathBuf};
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

/// `libuslab.so`, built now, as this program is and beside it. For programs that cargo runs from `deps`.
///
/// # Panics
/// It does not build.
pub fn libuslab() -> PathBuf {
    // This is `target/debug/deps/preload-...`.
    let own = std::env::current_exe().expect("this program");
    let profile = own.ancestors().nth(2).expect("the directory of a profile");
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", "libuslab", "--target-dir"]).arg(profile.join(".."));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success(), "libuslab does not build");
    profile.join("libuslab.so")
}

//! End-to-end tests, stress and real programs for uslab; and the runners: `cargo check-all` for all quick tests,
//! `cargo check-orderings` for the memory orderings, `cargo check-claims` for the table of what they show.

pub mod claims;
pub mod imports;
pub mod models;
pub mod source;
pub mod surface;
pub mod waiver;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// The workspace's root.
pub fn workspace() -> &'static Path {
    // `tests/` lies in it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The cargo that runs this, in the workspace's root.
pub fn cargo() -> Command {
    cargo_in(workspace())
}

/// The cargo that runs this, in the root of another workspace.
pub fn cargo_in(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// `libuslab.so`, as this program is built and beside it. For programs that cargo runs from `deps`.
///
/// # Panics
/// It does not build.
pub fn libuslab() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--package", "libuslab"], "libuslab.so")
}

/// The same of the example server.
///
/// # Panics
/// As [`libuslab`].
pub fn server() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--workspace", "--example", "server"], "examples/server")
}

/// The same of any example, with the features that it has when all of the workspace is tested.
///
/// # Panics
/// As [`libuslab`].
pub fn example(name: &str) -> PathBuf {
    built(&Once::new(), &["--workspace", "--example", name], &format!("examples/{name}"))
}

/// What cargo makes of `target`, at `file` of the profile's directory.
fn built(once: &Once, target: &[&str], file: &str) -> PathBuf {
    // This is `target/debug/deps/preload-...`.
    let own = std::env::current_exe().expect("this program");
    let profile = own.ancestors().nth(2).expect("the directory of a profile");
    once.call_once(|| {
        let mut build = cargo();
        build.args(["build", "--quiet"]).args(target).arg("--target-dir").arg(profile.join(".."));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success(), "{target:?} does not build");
    });
    profile.join(file)
}

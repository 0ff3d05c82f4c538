//! End-to-end tests, stress tests and tests with real programs for uslab. This crate also has the runners:
//! `cargo check-all` runs all quick tests, `cargo check-orderings` weakens memory orderings, `cargo
//! check-claims` writes the table of claims. The runner `cargo planted` runs one command in a copy of the
//! workspace with wrong code.

pub mod claims;
pub mod imports;
pub mod jobs;
pub mod models;
pub mod mutate;
pub mod planted;
pub mod reach;
pub mod share;
pub mod source;
pub mod surface;
pub mod tree;
pub mod waiver;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Returns the workspace's root.
pub fn workspace() -> &'static Path {
    // The folder `tests/` is in the workspace's root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns a command for the cargo that runs this program, in the workspace's root.
pub fn cargo() -> Command {
    cargo_in(workspace())
}

/// Returns a command for the cargo that runs this program, in the root of another workspace.
pub fn cargo_in(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Returns the path of the command `uslab`, built with this program's profile and in its directory. The
/// caller must be a program that cargo runs from `deps`.
///
/// # Panics
/// Panics if the build fails.
pub fn uslab() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--bin", "uslab"], "uslab")
}

/// Returns the command `uslab lab`.
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn lab() -> std::process::Command {
    let mut lab = std::process::Command::new(uslab());
    lab.arg("lab");
    lab
}

/// Returns the path of `libuslab.so`, built like [`uslab`].
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn libuslab() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    // Cargo cannot build this library alone by name.
    built(&BUILD_ONCE, &["--lib"], "libuslab.so")
}

/// Returns the path of `libuslab-cache.so`, which cargo names `libuslab_cache.so`, built like [`uslab`].
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn libuslab_cache() -> PathBuf {
    // One build makes all libraries.
    libuslab().with_file_name("libuslab_cache.so")
}

/// Returns the path of the example server, built like [`uslab`].
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn server() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--example", "server"], "examples/server")
}

/// Returns the path of the example server with memory mistakes, built like [`uslab`].
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn faulty_server() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--example", "faulty_server"], "examples/faulty_server")
}

/// Returns the path of the example with this name, built like [`uslab`].
///
/// # Panics
/// Panics under the conditions of [`uslab`].
pub fn example(name: &str) -> PathBuf {
    built(&Once::new(), &["--example", name], &format!("examples/{name}"))
}

/// Compiles a C file of the workspace into a program in `dir`.
///
/// # Panics
/// Panics if there is no C compiler, or if it reports an error.
pub fn compiled_from(source: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let (source, out) = (workspace().join(source), dir.join("program"));
    let mut cc = Command::new("cc");
    cc.args(flags).args(["-pthread", "-w", "-o"]).arg(&out).arg(source).args(["-ldl"]);
    assert!(cc.status().expect("a C compiler").success());
    out
}

/// A control group with a memory limit, of cgroup version 1 or 2, which is removed on drop.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a control group with a limit of `bytes`, or returns `None` if this process may not create one.
    pub fn new(bytes: u64) -> Option<Self> {
        let name = format!("uslab-test-{}", std::process::id());
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        kinds.into_iter().find_map(|(root, limit)| {
            let group = Path::new(root).join(&name);
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            // An ordinary folder, and a group that does not control memory, lack this file.
            let file = group.0.join(limit);
            (file.is_file() && std::fs::write(file, bytes.to_string()).is_ok()).then_some(group)
        })
    }
    /// Returns a command that runs `program` in the group, with `library` preloaded; callers may add
    /// arguments.
    pub fn command(&self, program: &Path, library: Option<&Path>) -> Command {
        const SCRIPT: &str =
            "echo $$ >\"$1\"/cgroup.procs && export LD_PRELOAD=\"$2\" && shift 2 && exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).arg(program).arg(&self.0).arg(library.unwrap_or(Path::new("")));
        command
    }
}
impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The removal fails if a process is left in the group.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Cargo's arguments for building programs that tests start: the whole workspace and an example. The build
/// has the same features as `cargo test --workspace`, so it does not recompile anything.
pub const PROGRAMS: [&str; 5] = ["build", "--quiet", "--workspace", "--example", "pair"];

/// Builds `target`, and returns the path of `file` in the profile's directory.
fn built(once: &Once, target: &[&str], file: &str) -> PathBuf {
    // This is `target/debug/deps/programs-...`.
    let own = std::env::current_exe().expect("cannot find this program's path");
    let profile = own.ancestors().nth(2).expect("the program must be in a profile's directory");
    once.call_once(|| {
        let mut build = cargo();
        build.args(PROGRAMS).args(target).arg("--target-dir").arg(profile.join(".."));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success(), "{target:?} does not build");
    });
    profile.join(file)
}

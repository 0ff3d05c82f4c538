//! End-to-end tests, stress tests and tests with real programs for uslab. The crate also contains the commands of the
//! checks, such as `cargo check-all` (all quick tests), `cargo check-orderings` (weaker memory orderings) and `cargo
//! check-claims` (the table of claims). The command `cargo planted` runs another command in a copy of the workspace
//! with wrong code.

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

/// Returns the root directory of the workspace.
pub fn workspace() -> &'static Path {
    // The folder `tests/` is in the workspace's root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns a command for the same cargo that runs this program, in the root of the workspace.
pub fn cargo() -> Command {
    cargo_command_in(workspace())
}

/// Returns a command for the same cargo that runs this program, in the root of another workspace.
pub fn cargo_command_in(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Builds the command `uslab` with the profile of this program, and returns its path in the directory of this program.
/// The caller must be a program that cargo runs from the directory `deps`.
///
/// # Panics
/// Panics if the build fails.
pub fn uslab() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--bin", "uslab"], "uslab")
}

/// Returns a command that runs `uslab lab`.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn lab() -> std::process::Command {
    let mut lab = std::process::Command::new(uslab());
    lab.arg("lab");
    lab
}

/// Builds `libuslab.so` as [`uslab`] does, and returns its path.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn libuslab() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    // Cargo cannot build this library alone by name.
    built(&BUILD_ONCE, &["--lib"], "libuslab.so")
}

/// Builds `libuslab-cache.so`, which cargo names `libuslab_cache.so`, as [`uslab`] does, and returns its path.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn libuslab_cache() -> PathBuf {
    // One build makes all libraries.
    libuslab().with_file_name("libuslab_cache.so")
}

/// Builds the example server as [`uslab`] does, and returns its path.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn server() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--example", "server"], "examples/server")
}

/// Builds the example server with memory mistakes as [`uslab`] does, and returns its path.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn faulty_server() -> PathBuf {
    static BUILD_ONCE: Once = Once::new();
    built(&BUILD_ONCE, &["--example", "faulty_server"], "examples/faulty_server")
}

/// Builds the example with this name as [`uslab`] does, and returns its path.
///
/// # Panics
/// Panics if the build fails, as [`uslab`] does.
pub fn example(name: &str) -> PathBuf {
    built(&Once::new(), &["--example", name], &format!("examples/{name}"))
}

/// Compiles a C file of the workspace into a program in the folder `dir`.
///
/// # Panics
/// Panics if there is no C compiler, or if the compiler reports an error.
pub fn compile_c_program(source: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let (source, out) = (workspace().join(source), dir.join("program"));
    let mut cc = Command::new("cc");
    cc.args(flags).args(["-pthread", "-w", "-o"]).arg(&out).arg(source).args(["-ldl"]);
    assert!(cc.status().expect("a C compiler").success());
    out
}

/// A control group with a memory limit, of cgroup version 1 or 2; it is removed on drop.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a control group with a limit of `bytes`; returns `None` if this process may not create one.
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
    /// Returns a command that runs `program` in the control group, with `library` preloaded; callers can add arguments.
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

/// The cargo arguments for building the programs that tests start: the whole workspace and an example. With these
/// arguments, the build has the same features as `cargo test --workspace`, so it does not recompile anything.
pub const PROGRAMS: [&str; 5] = ["build", "--quiet", "--workspace", "--example", "pair"];

/// Builds `target`, and returns the path of `file` in the directory of the profile.
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

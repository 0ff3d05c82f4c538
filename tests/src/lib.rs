//! End-to-end tests, stress and real programs for uslab; and the runners: `cargo check-all` for all quick tests,
//! `cargo check-orderings` for the memory orderings, `cargo check-claims` for the table of what they show.

pub mod claims;
pub mod imports;
pub mod jobs;
pub mod models;
pub mod mutate;
pub mod reach;
pub mod share;
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

/// The command `uslab`, as this program is built and beside it. For programs that cargo runs from `deps`.
///
/// # Panics
/// It does not build.
pub fn uslab() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--bin", "uslab"], "uslab")
}

/// The same of the command `uslab-lab`.
///
/// # Panics
/// As [`uslab`].
pub fn lab() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--bin", "uslab-lab"], "uslab-lab")
}

/// The same of `libuslab.so`.
///
/// # Panics
/// As [`uslab`].
pub fn libuslab() -> PathBuf {
    static ONCE: Once = Once::new();
    // There is no name for it: it is one of the libraries.
    built(&ONCE, &["--lib"], "libuslab.so")
}

/// The same of `libuslab-cache.so`, which cargo calls `libuslab_cache.so`.
///
/// # Panics
/// As [`uslab`].
pub fn libuslab_cache() -> PathBuf {
    // All libraries are built at once.
    libuslab().with_file_name("libuslab_cache.so")
}

/// The same of the example server.
///
/// # Panics
/// As [`uslab`].
pub fn server() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--example", "server"], "examples/server")
}

/// The same of the example server that makes mistakes.
///
/// # Panics
/// As [`uslab`].
pub fn faulty_server() -> PathBuf {
    static ONCE: Once = Once::new();
    built(&ONCE, &["--example", "faulty_server"], "examples/faulty_server")
}

/// The same of any example.
///
/// # Panics
/// As [`uslab`].
pub fn example(name: &str) -> PathBuf {
    built(&Once::new(), &["--example", name], &format!("examples/{name}"))
}

/// A C program of a file of the workspace, compiled into `dir`.
///
/// # Panics
/// There is no C compiler, or it reports an error.
pub fn compiled_from(source: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let (source, out) = (workspace().join(source), dir.join("program"));
    let mut cc = Command::new("cc");
    cc.args(flags).args(["-pthread", "-w", "-o"]).arg(&out).arg(source).args(["-ldl"]);
    assert!(cc.status().expect("a C compiler").success());
    out
}

/// A control group with a limit of memory, of the first version or of the second. It is removed when this is dropped.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` if this process may make no group.
    pub fn new(bytes: u64) -> Option<Self> {
        let name = format!("uslab-test-{}", std::process::id());
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        kinds.into_iter().find_map(|(root, limit)| {
            let group = Path::new(root).join(&name);
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            // An ordinary folder, and a group that does not control memory, have no such file.
            let file = group.0.join(limit);
            (file.is_file() && std::fs::write(file, bytes.to_string()).is_ok()).then_some(group)
        })
    }
    /// Runs `program` in the group, with `library` preloaded; arguments may be added.
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
        // It is empty, or stays.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// How cargo builds what tests start. All of the workspace is named, and an example, so that features are those of
/// `cargo test --workspace`: what tests have built already is not built once more.
pub const PROGRAMS: [&str; 5] = ["build", "--quiet", "--workspace", "--example", "pair"];

/// What cargo makes of `target`, at `file` of the profile's directory.
fn built(once: &Once, target: &[&str], file: &str) -> PathBuf {
    // This is `target/debug/deps/programs-...`.
    let own = std::env::current_exe().expect("this program");
    let profile = own.ancestors().nth(2).expect("the directory of a profile");
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

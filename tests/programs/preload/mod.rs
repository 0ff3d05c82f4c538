//! Tests programs under `libuslab.so`: the C interface, and real programs, whose output must not change.
//!
//! `USLAB_PRELOAD=run_long_tests` adds Python's memory-intensive tests, and more load on servers. If a program is not
//! installed, the test prints its name and the reason.

mod contract;
mod dump;
mod give_back;
mod nginx;
mod programs;
mod python;
mod record;
mod redis;
mod server;
mod slab_debug;
mod top;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use uslab_tests::{compile_c_program, libuslab, workspace};

pub(crate) fn preloaded(command: &mut Command, options: &str) -> Output {
    command
        .env("LD_PRELOAD", libuslab())
        .env("USLAB_OPTIONS", options)
        .output()
        .expect("the program must start")
}

/// Runs a command; `preloads` decides if the library is preloaded.
fn run(command: &mut Command, preloads: bool) -> Output {
    match preloads {
        true => preloaded(command, "check=1"),
        false => command.output().expect("the program must start"),
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prints a line to the terminal, even if libtest captures the output.
pub(crate) fn print_line(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

pub(crate) fn run_long_tests() -> bool {
    std::env::var("USLAB_PRELOAD").as_deref() == Ok("full")
}

/// Returns the path of the program called `name`, or `None` if it is not installed.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Servers are in directories that only root has in its `PATH`.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let program_file = dirs.map(|dir| dir.join(name)).find(|file| file.is_file());
    if program_file.is_none() {
        print_line(&format!("preload: skipped {name}: not installed"));
    }
    program_file
}

/// Checks that a program prints the same output with and without the library, and that the output is not empty.
#[track_caller]
fn check_same_output(name: &str, command: impl Fn() -> Command) {
    let without_library = run(&mut command(), false);
    assert!(without_library.status.success(), "{name} alone: {}", text(&without_library.stderr));
    let preloaded_output = run(&mut command(), true);
    assert!(
        preloaded_output.status.success(),
        "{name}: {:?} {}",
        preloaded_output.status,
        text(&preloaded_output.stderr)
    );
    assert_eq!(text(&preloaded_output.stdout), text(&without_library.stdout), "{name}");
    assert_eq!(text(&preloaded_output.stderr), text(&without_library.stderr), "{name}");
    assert!(!preloaded_output.stdout.is_empty(), "{name} must print something");
    print_line(&format!(
        "preload: {name}: the same {} bytes with and without the library",
        preloaded_output.stdout.len()
    ));
}

fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace());
    command
}

/// Compiles a C program of `tests/programs/preload`, and returns its path.
fn compiled(name: &str, dir: &Path) -> PathBuf {
    compile_c_program(&format!("tests/programs/preload/{name}"), &["-O1"], dir)
}

//! Tests that the benchmark programs succeed with and without `libuslab.so`, and that they detect a broken malloc.
//!
//! `USLAB_PRELOAD=full` runs the programs at full size.

use std::path::Path;
use std::process::{Command, Output};
use uslab_tests::{libuslab, workspace};

fn run(arguments: &[&str], library: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command.args(arguments).output().expect("the program must start")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the names of the programs that `--help` lists.
fn names() -> Vec<String> {
    let help = text(&run(&["--help"], None).stdout);
    let program_names = help.lines().filter(|line| !line.starts_with([' ', '-'])).skip(1);
    program_names.filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
}

#[test]
fn all_programs_succeed_with_and_without_the_library() {
    let quick = match std::env::var("USLAB_PRELOAD").as_deref() {
        Ok("full") => &[][..],
        _ => &["--quick"],
    };
    let library = libuslab();
    for name in names() {
        let arguments: Vec<_> = std::iter::once(name.as_str()).chain(quick.iter().copied()).collect();
        let [without_library, with_library] = [None, Some(library.as_path())].map(|library| {
            let output = run(&arguments, library);
            let error_text = text(&output.stderr);
            assert!(output.status.success(), "{name} with {library:?}: {:?}\n{error_text}", output.status);
            let answer = text(&output.stdout);
            let peak = error_text.lines().find(|line| line.starts_with("peak "));
            println!(
                "{name} with {library:?}: {}, {}",
                answer.trim(),
                peak.expect("the program must print its peak")
            );
            answer
        });
        assert!(without_library.ends_with(" operations\n"), "{name}: {without_library:?}");
        assert_eq!(with_library, without_library, "{name}");
    }
}

#[test]
fn malloc_returning_a_block_twice_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("twice.so");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library);
    cc.arg(workspace().join("benches/programs/twice.c"));
    assert!(cc.status().expect("a C compiler").success());
    for name in names() {
        // Some programs hold only one object at a time, which may reuse the last object's memory. Other
        // programs use `calloc`, which the broken library leaves to the C library.
        if name.starts_with("cache-") || name == "zeros" {
            continue;
        }
        // The runtime's own memory is also allocated twice, so the program may hang; `timeout` then stops it.
        let preload = format!("LD_PRELOAD={}", library.display());
        let mut command = Command::new("timeout");
        command.args(["5", "env", &preload, env!("CARGO_BIN_EXE_programs"), &name, "--quick"]);
        let output = command.output().expect("the program must start");
        assert!(!output.status.success(), "{name} did not detect the corruption");
        println!("{name}: {:?}, {}", output.status, text(&output.stderr).lines().next().unwrap_or_default());
    }
}

#[test]
fn wrong_program_arguments_exit_with_status_2() {
    for (arguments, expected_text) in [
        (&[][..], "unknown program \"\"; expected one of alloc-test, "),
        (&["larsson"], "unknown program \"larsson\"; expected one of alloc-test, "),
        (&["larson", "--sizes", "1"], "larson: unknown option --sizes; expected --quick, --threads, "),
        (&["larson", "--max", "0"], "--max \"0\": expected a number from 1"),
        (&["larson", "--max"], "--max \"\": expected a number from 1"),
        (&["larson", "--min", "9", "--max", "8"], "--min 9 is above --max 8"),
    ] {
        let output = run(arguments, None);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected_text), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn readme_lists_all_programs() {
    let readme = std::fs::read_to_string(workspace().join("benches/README.md")).unwrap();
    for name in names() {
        assert!(readme.contains(&format!("| `{name}`")), "the table has no line for {name}");
    }
}

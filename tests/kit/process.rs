//! Runs tests in separate processes, so that a measurement or a limit affects only one test.

// Not every target uses every function.
#![allow(dead_code)]

use std::process::Command;

/// Runs one test of this program, whose full name is `test`, in a separate process. The parameter `before` is shell
/// code that precedes the command: limits or variables. Returns the text that the process printed.
#[track_caller]
pub(crate) fn run_test_alone(test: &str, before: &str) -> String {
    let script = format!("{before} exec \"$0\" --exact {test} --include-ignored --nocapture");
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh").arg("-c").arg(script).arg(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{test}: {}\n{said}", output.status);
    println!("{said}");
    said.into_owned()
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Returns `true` if this process was started to run only the test `test`. In any other process, runs the test in a
/// separate process; returns `false` after the test has passed there.
#[track_caller]
pub(crate) fn is_alone(test: &str) -> bool {
    let variable = "USLAB_TEST_ALONE";
    let is = std::env::var_os(variable).is_some();
    if !is {
        run_test_alone(test, &format!("{variable}=1"));
    }
    is
}

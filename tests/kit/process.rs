//! Tests in processes of their own: what is measured or limited there is of one test alone.

// Not every target uses all of it.
#![allow(dead_code)]

use std::process::Command;

/// Runs `test` of this program, by its whole name, in a process of its own. `before` is what a shell has in front of it: limits,
/// or variables. What the process said.
#[track_caller]
pub(crate) fn alone(test: &str, before: &str) -> String {
    let script = format!("{before} exec \"$0\" --exact {test} --include-ignored --nocapture");
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh").arg("-c").arg(script).arg(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{test}: {}\n{said}", output.status);
    println!("{said}");
    said.into_owned()
}

/// Resident bytes of this process.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Whether this process is there for `test` alone. If not, the test has passed in one that is when this returns.
#[track_caller]
pub(crate) fn is_alone(test: &str) -> bool {
    let variable = "USLAB_TEST_ALONE";
    let is = std::env::var_os(variable).is_some();
    if !is {
        alone(test, &format!("{variable}=1"));
    }
    is
}

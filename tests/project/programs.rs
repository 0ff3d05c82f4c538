//! Checks that two builds share compiled libraries if they should. If two builds enabled different features of a
//! library, the library would be compiled twice.

use serde_json::Value;
use std::collections::BTreeSet;
use uslab_tests::{PROGRAMS, cargo};

/// Returns the libraries that cargo would compile for a build, each with its features.
fn libraries(arguments: &[&str]) -> BTreeSet<String> {
    // Only the unit graph is printed, whose format is unstable; nothing is built.
    let mut cargo = cargo();
    cargo.args(arguments).args(["--unit-graph", "-Zunstable-options"]).env("RUSTC_BOOTSTRAP", "1");
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let graph: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The library of `uslab-protocol` contains only tests, so no other package depends on it.
    let library = |unit: &&Value| {
        unit["mode"] == "build"
            && unit["target"]["name"] != "uslab_protocol"
            && ["lib", "proc-macro"].iter().any(|kind| unit["target"]["kind"][0] == *kind)
    };
    let units = graph["units"].as_array().unwrap().iter().filter(library);
    units.map(|unit| format!("{} {}", unit["pkg_id"], unit["features"])).collect()
}

#[test]
fn example_programs_reuse_libraries_built_for_tests() {
    let programs = libraries(&[&PROGRAMS[..], &["--bins", "--lib", "--examples"]].concat());
    for tests in [&["test", "--workspace"][..], &["test", "--package", "uslab-tests"]] {
        let built = libraries(tests);
        let twice: Vec<_> = programs.difference(&built).collect();
        assert!(twice.is_empty(), "`cargo {}` has not built {twice:#?}", tests.join(" "));
        assert!(programs.len() > 50, "found only {} libraries", programs.len());
    }
}

#[test]
fn check_all_reuses_libraries_built_for_tests() {
    let programs = libraries(&["build", "--package", "uslab-tests", "--bin", "check-all"]);
    let built = libraries(&["test", "--workspace"]);
    let twice: Vec<_> = programs.difference(&built).collect();
    assert!(twice.is_empty(), "features in tests/Cargo.toml differ from the workspace's: {twice:#?}");
}

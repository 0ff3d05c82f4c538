//! Tests that the examples run, and print what their documentation promises.

use std::process::Command;
use uslab_tests::workspace;

/// Returns the output of one of `uslab`'s examples.
fn run(example: &str) -> String {
    let mut program = Command::new(uslab_tests::example(example));
    let output = program.current_dir(workspace()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{example}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn number(text: &str, prefix: &str) -> u64 {
    let digits: String =
        text.split_once(prefix).unwrap().1.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn first_cache_example_succeeds() {
    let program_output = run("first_cache");
    assert!(program_output.starts_with("1000 allocations, "), "{program_output}");
    assert!(
        number(&program_output, "served by ") < 200 && program_output.contains("\nbuffer "),
        "{program_output}"
    );
}

#[test]
fn constructed_example_succeeds() {
    let program_output = run("constructed");
    assert!(
        number(&program_output, " 20000 requests constructed ") < 200,
        "the program must build few objects: {program_output}"
    );
    assert!(program_output.contains("with Box, 10000 requests constructed 10000\n"), "{program_output}");
}

#[test]
fn rcu_lookup_example_succeeds() {
    let program_output = run("rcu_lookup");
    assert!(
        program_output.starts_with("600000 lookups: ") && program_output.contains("no value was wrong"),
        "{program_output}"
    );
    // Keys that are never deleted must be found; lookups of all other keys may miss.
    let keys = (0..3).flat_map(|reader| (0..200_000).map(move |n| (n * 7 + reader) % 128));
    assert!(
        number(&program_output, "lookups: ") >= keys.filter(|key| *key >= 64).count() as u64,
        "{program_output}"
    );
}

#[test]
fn sessions_example_succeeds() {
    let program_output = run("sessions");
    assert!(program_output.starts_with("50000 sessions were opened and closed; "), "{program_output}");
    let (served_requests, late_requests) =
        (number(&program_output, "closed; "), number(&program_output, "served, "));
    assert!(served_requests > 0 && served_requests + late_requests == 100_000, "{program_output}");
    assert!(
        number(&program_output, "for all sessions: ") < 10_000,
        "the program must reuse objects: {program_output}"
    );
}

#[test]
fn limits_example_succeeds() {
    let program_output = run("limits");
    assert!(
        program_output.contains("the next allocation failed: the cache is at its limit of"),
        "{program_output}"
    );
    assert!(
        number(&program_output, "kept: pages ") > 9000 && program_output.contains(" to 9999\n"),
        "the program must keep the newest objects: {program_output}"
    );
    assert!(program_output.contains("slabs were freed"), "{program_output}");
}

#[test]
fn global_allocator_example_succeeds() {
    let program_output = run("global_allocator");
    assert!(program_output.starts_with("{\"a\": 120, \"and\": 20, "), "{program_output}");
    let allocs = number(&program_output, "}\n");
    // The output has a line for each thread, and a word for each piece.
    assert!(allocs > 300 && program_output.contains("allocations and "), "{program_output}");
}

//! Tests that the examples run, and print what their documentation promises.

use std::process::Command;
use uslab_tests::workspace;

/// Returns the output of an example of `uslab`.
fn run(example: &str) -> String {
    let mut program = Command::new(uslab_tests::example(example));
    let output = program.current_dir(workspace()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{example}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn number(text: &str, behind: &str) -> u64 {
    let digits: String =
        text.split_once(behind).unwrap().1.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn first_cache() {
    let said = run("first_cache");
    assert!(said.starts_with("1000 allocations, "), "{said}");
    assert!(number(&said, "allocations, ") < 200 && said.contains("\nbuffer "), "{said}");
}

#[test]
fn constructed() {
    let said = run("constructed");
    assert!(number(&said, "with the cache built ") < 200, "the program builds few objects: {said}");
    assert!(said.contains("10000 with Box built 10000\n"), "{said}");
}

#[test]
fn rcu_lookup() {
    let said = run("rcu_lookup");
    assert!(said.starts_with("600000 lookups, ") && said.contains("no wrong value"), "{said}");
    // Keys that are never deleted must be found; lookups of all other keys may miss.
    let keys = (0..3).flat_map(|reader| (0..200_000).map(move |n| (n * 7 + reader) % 128));
    assert!(number(&said, "lookups, ") >= keys.filter(|key| *key >= 64).count() as u64, "{said}");
}

#[test]
fn sessions() {
    let said = run("sessions");
    assert!(said.starts_with("50000 sessions opened and closed; "), "{said}");
    let (served, late) = (number(&said, "closed; "), number(&said, "served, "));
    assert!(served > 0 && served + late == 100_000, "{said}");
    assert!(number(&said, "for all sessions: ") < 10_000, "the program reuses objects: {said}");
}

#[test]
fn limits() {
    let said = run("limits");
    assert!(said.contains("pages, then: the cache is at its limit of"), "{said}");
    assert!(
        number(&said, "kept: ") > 9000 && said.contains(" to 9999\n"),
        "the program keeps the newest objects: {said}"
    );
    assert!(said.contains("slabs were freed"), "{said}");
}

#[test]
fn global_allocator() {
    let said = run("global_allocator");
    assert!(said.starts_with("{\"a\": 120, \"and\": 20, "), "{said}");
    let allocs = number(&said, "}\n");
    // The output has a line for each thread, and a word for each piece.
    assert!(allocs > 300 && said.contains("allocations and "), "{said}");
}

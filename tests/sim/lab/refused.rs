//! Tests how `uslab lab` refuses invalid input: exit code 2, a message with the accepted input, and no partial output.

use super::*;
use std::path::Path;

#[test]
fn impossible_workload_error_lists_accepted_values() {
    refused(
        &["race", "--sizes", "often:1"],
        &["--sizes", "unknown distribution \"often\"", "uniform:MIN..MAX"],
    );
    refused(&["race", "--sizes", "fixed:0"], &["--sizes", "the size \"0\"", "from 1 to"]);
    refused(
        &["race", "--lifetimes", "soon"],
        &["--lifetimes", "unknown distribution \"soon\"", "exponential:MEAN"],
    );
    refused(&["race", "--arrivals", "burst:1"], &["--arrivals", "burst:COUNT,EVERY"]);
    refused(&["race", "--operations", "0"], &["--operations", "1..="]);
    refused(&["race", "--memory", "100"], &["--memory", "power of two"]);
    refused(&["race", "--memory", "99999999999999G"], &["--memory", "power of two from 64K to 2G"]);
    refused(&["race", "--sizes", "histogram:"], &["--sizes", "no file is named"]);
    // The limit applies to all blocks in use at a time, and to each single block.
    refused(
        &["race", "--sizes", "fixed:1073741824", "--lifetimes", "forever"],
        &["fixed:1073741824", "at a time", "expected at most 1073741824"],
    );
    refused(
        &["race", "--memory", "64K", "--sizes", "fixed:1048576", "--exact"],
        &["--memory 65536", "fixed:1048576", "expected a memory of at least 1048576"],
    );
}

#[test]
fn demo_with_an_unknown_command_does_not_start() {
    refused(
        &["demo", "buddy", "alloc 65", "frob"],
        &["demo buddy", "unknown command `frob`", "alloc BYTES [ALIGN]"],
    );
    refused(&["demo", "heap"], &["heap", "first-fit"]);
    refused(&["demo", "buddy", "--csv", "-"], &["--csv and --html: expected an experiment"]);
}

#[test]
fn lab_error_names_the_line_of_a_wrong_trace() {
    let folder = Folder::new();
    let race = |file: &str, parts: &[&str]| refused(&["race", "--trace", file], parts);
    // The file has heap, blocks, operations and weight; then the operations.
    let twice = folder.file("twice.rep", "4096\n1\n3\n1\na 0 16\nf 0\nf 0\n");
    race(&twice, &[&format!("{twice}:7"), "freed before"]);
    let wrong = folder.file("wrong.rep", "4096\n1\n2\n1\na 0 16\nx 0\n");
    race(&wrong, &[&format!("{wrong}:6"), "\"x 0\"", "expected"]);
    let zero = folder.file("zero.rep", "4096\n1\n2\n1\na 0 0\nf 0\n");
    race(&zero, &[&format!("{zero}:5"), "\"a 0 0\""]);
    let early = folder.file("early.rep", "4096\n1\n2\n1\na 0 16\n");
    race(&early, &[&early, "1 of 2 operations"]);
    let twice = folder.file("twice.csv", "op,id,size\nalloc,1,16\nfree,1\nfree,1\n");
    race(&twice, &[&format!("{twice}:4"), "freed before"]);
    let unknown = folder.file("unknown.csv", "op,id,size\nfree,1\n");
    race(&unknown, &[&format!("{unknown}:2"), "expected"]);
    let wrong = folder.file("wrong.csv", "op,id,size\nalloc,1,many\n");
    race(&wrong, &[&format!("{wrong}:2"), "many"]);
    race("/no/such/trace.rep", &["/no/such/trace.rep"]);
    let strict = folder.file("strict.csv", "alloc,1,8,4294967296\n");
    race(&strict, &[&format!("{strict}:1"), "4294967296 is not an alignment", "a power of two up to 2^30"]);
    let binary = folder.file("binary.csv", "alloc,1,8\0");
    race(&binary, &[&binary, "not text; expected `alloc,ID,SIZE"]);
    let vast = folder.file("vast.csv", "a,1,1099511627776\n");
    race(&vast, &[&vast, "requests 1099511627776 bytes at a time", "expected at most 1073741824"]);
    // A valid file is not refused.
    let right = folder.file("right.rep", "4096\n1\n2\n1\na 0 16\nf 0\n");
    assert!(output_of_lab_command(&["race", "--exact", "--trace", &right]).contains("right.rep"));
}

#[test]
fn unknown_name_error_lists_the_known_names() {
    refused(&["race", "--allocators", "bump"], &["bump", "first-fit", "tlsf"]);
    refused(&["explain", "bump"], &["bump", "handle-table", "linear"]);
    refused(&["alchemy"], &["alchemy", "expected one of constructors, ", ", robson, "]);
    refused(&["handles", "--objects", "0"], &["--objects", "1..="]);
    refused(&["kenwright", "--sizes", "4"], &["--sizes", "8..="]);
}

#[test]
fn contradictory_lab_options_are_refused() {
    // The largest block exceeds the memory that may be in use.
    refused(
        &["robson", "--live", "4096", "--doublings", "12"],
        &["--doublings 12", "4096", "expected 1 to 7"],
    );
    let out = output_of_lab_command(&["robson", "--live", "4096", "--doublings", "7"]);
    assert!(!out.lines().any(|line| line.contains(" -")), "a bound must not be negative: {out}");
    // The objects that stay take a sixteenth of the memory.
    refused(&["pinning", "--one-in", "2"], &["--one-in", "32..="]);
    let sizes = ["kenwright", "--sizes", "16,1048576", "--counts", "100,1000000"];
    refused(&sizes, &["1000000 blocks of 1048576 bytes", "--sizes and --counts"]);
    refused(&["fifty-percent", "--blocks", "1000000"], &["--blocks", "500000"]);
    // Bursts of two were not tried, so the cell is empty.
    let out = output_of_lab_command(&["why-magazines", "--burst", "1", "--csv", "-"]);
    assert!(out.lines().any(|line| line.ends_with(",\"at the edge, bursts of 2\",")), "{out}");
}

#[test]
fn impossible_output_is_refused_before_any_write() {
    refused(&["race", "--csv", "-", "--json", "-"], &["only one of --json, --csv and --html"]);
    refused(&["race", "--csv", "--html", "-"], &["only one of --json, --csv and --html"]);
    refused(&["race", "--html", "/no/such/folder/page.html"], &["--html", "/no/such/folder"]);
    refused(&["--csv", "-"], &["--csv and --html: expected an experiment"]);
    let folder = Folder::new();
    let mine = folder.file("mine.html", "a letter");
    refused(&["race", "--html", &mine], &[&mine, "not overwritten"]);
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "a letter");
    refused(&["race", "--html", folder.0.path().to_str().unwrap()], &["--html"]);
    // Two reports to one file are refused.
    let (a, b) = (folder.path("a.out"), folder.path("./a.out"));
    refused(
        &["race", "--exact", "--csv", &a, "--html", &b],
        &["--csv", "--html", "a.out", "are the same file"],
    );
    refused(&["race", "--exact", "--json", &b, "--csv", &a], &["--json", "--csv", "are the same file"]);
    assert!(!Path::new(&a).exists());
    // If one report cannot be written, none is.
    refused(&["race", "--exact", "--quick", "--csv", &a, "--html", "/dev/full"], &["--html /dev/full"]);
    assert!(!Path::new(&a).exists());
}

/// Regression test: each option was within its range, but combined options made runs that never ended or used all
/// memory.
#[test]
fn lab_refuses_options_that_need_too_much_memory() {
    refused(
        &["colouring", "--sets", "65536", "--ways", "64", "--sizes", "64,8192", "--quick"],
        &["--sets 65536 --ways 64 --sizes 8192: 25769803776 bytes", "1073741824 at most"],
    );
    refused(&["why-magazines", "--capacity", "512", "--quick"], &["--capacity 512", "at most"]);
    refused(&["why-magazines", "--burst", "4096"], &["--burst 4096", "at most"]);
    refused(&["fifty-percent", "--blocks", "100000"], &["--blocks 100000 --turnovers 50", "at most"]);
    refused(&["robson", "--live", "16777216"], &["--live", "2097152"]);
    refused(
        &["latency", "--frames", "1000000", "--allocations", "100000"],
        &["--frames 1000000 --allocations"],
    );
    refused(&["constructors", "--bursts", "4294967295"], &["--burst 100 --bursts 4294967295"]);
    refused(&["race", "--operations", "100000000"], &["--operations", "1..=1000000"]);
    // Regression test: these commands did not end.
    output_of_lab_command(&["race", "--exact", "--quick", "--arrivals", "burst:1,4294967296"]);
    assert!(
        output_of_lab_command(&["layout", "--exact", "--structs", "1000000"]).contains("1000000 structs")
    );
}

/// Regression test: the word after an unknown experiment's name was mistaken for the experiment, and the message did
/// not list the experiments.
#[test]
fn unknown_experiment_error_lists_the_known_experiments() {
    for args in [&["alchemy"][..], &["alchemy", "race"]] {
        refused(args, &["alchemy", "expected one of constructors, ", ", race"]);
    }
}

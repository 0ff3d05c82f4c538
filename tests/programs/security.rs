//! Tests programs that make memory mistakes, and checks the outcome of each mistake. The file `security/expected.txt`
//! lists the expected outcomes for four configurations of the library.
//!
//! Each run has a random seed, which determines the order in which objects are allocated. With `USLAB_PRELOAD=full`,
//! each program runs 20 times, and the test counts the runs that the library ended. By default, each program runs 3
//! times, and each run must have an outcome that the table allows.

use crate::preload::{preloaded, print_line, run_long_tests, text};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use uslab_magazine::sync::{AtomicUsize, Mutex, Ordering::Relaxed};
use uslab_tests::{compile_c_program, workspace};

/// The columns of the outcome table: the configurations of the library.
const PROTECTION_MODES: [(&str, &str); 4] = [
    ("default", "check=0,guard=0"),
    ("check", "check=1,guard=0"),
    ("guard", "check=0,guard=1,guard_slots=512"),
    ("harden", "harden=1,guard=0"),
];
const SIZES: [usize; 3] = [24, 1000, 100_000];

/// Returns the outcome of one run: the library ended the program, the mistake had an effect, or it had no effect.
fn outcome(program: &Path, kind: &str, size: usize, options: &str) -> char {
    let mut command = Command::new(program);
    let output = preloaded(command.args([kind, &size.to_string()]), options);
    match (output.status.signal(), text(&output.stdout).trim()) {
        (Some(6 | 11), _) => 'x',
        (None, "effect") => '!',
        (None, "no effect") => '.',
        (_, outcome_text) => {
            panic!("{kind} {size} {options}: {:?} {outcome_text} {}", output.status, text(&output.stderr))
        }
    }
}

/// In a cell of the table, `x` means that the library ended the program in every run. In a cell of the table, `x5!.`
/// means: the library ended at least 5 of 20 runs, and in the other runs the mistake had an effect (`!`) or none (`.`).
fn agrees(cell: &str, seen_outcomes: &BTreeMap<char, usize>) -> bool {
    let min_count: usize = cell.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let runs: usize = seen_outcomes.values().sum();
    let program_ends = seen_outcomes.get(&'x').copied().unwrap_or(0);
    seen_outcomes.keys().all(|outcome| cell.contains(*outcome)) && (runs < 20 || program_ends >= min_count)
}

/// Returns the rows of the outcome table: a kind of mistake, and a cell for each configuration and size.
fn table() -> Vec<(String, Vec<String>)> {
    let file = workspace().join("tests/programs/security/expected.txt");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let mut words = row.split_whitespace().filter(|word| *word != "|").map(str::to_owned);
        (words.next().unwrap(), words.collect())
    })
    .collect()
}

#[test]
fn each_memory_bug_has_the_documented_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let program =
        compile_c_program("tests/programs/security/defects.c", &["-O1", "-fno-builtin"], dir.path());
    let kinds = text(&Command::new(&program).output().unwrap().stdout);
    let table = table();
    let kind_names: Vec<&str> = table.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.lines().collect::<Vec<_>>(), kind_names, "each kind must have a row");
    let runs = if run_long_tests() { 20 } else { 3 };
    let cells = table.len() * PROTECTION_MODES.len() * SIZES.len();
    let (next_case, seen_outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let index = next_case.fetch_add(1, Relaxed)
            && index < cells
        {
            let (row, mode, size) = (index / 12, index / 3 % 4, index % 3);
            let mut outcomes = BTreeMap::new();
            for seed in 1..=runs {
                let options = format!("{},harden_seed={seed}", PROTECTION_MODES[mode].1);
                *outcomes.entry(outcome(&program, kind_names[row], SIZES[size], &options)).or_insert(0) += 1;
            }
            seen_outcomes.lock().insert(index, outcomes);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(work)));
    let mut failures = String::new();
    let seen_outcomes = seen_outcomes.lock();
    for (index, outcomes) in seen_outcomes.iter() {
        let (row, mode, size) = (index / 12, index / 3 % 4, index % 3);
        let cell = &table[row].1[index % 12];
        if !agrees(cell, outcomes) {
            let options = format!("{},harden_seed=1..{runs}", PROTECTION_MODES[mode].1);
            writeln!(
                failures,
                "{} of {} bytes, {options}: {outcomes:?}, not {cell}",
                kind_names[row], SIZES[size]
            )
            .unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}");
    let program_ends = |mode: usize| {
        let case_outcomes = seen_outcomes.iter().filter(|(index, _)| *index / 3 % 4 == mode);
        case_outcomes.filter(|(_, outcomes)| outcomes.keys().eq(&['x'])).count()
    };
    for (mode, (name, _)) in PROTECTION_MODES.iter().enumerate() {
        let case_outcomes = table.len() * SIZES.len();
        print_line(&format!(
            "security: {name}: {} of {case_outcomes} mistakes ended the program in each of {runs} runs, seeds 1 to {runs}",
            program_ends(mode)
        ));
    }
}

/// A report must name the mistake, and show the call stacks of the allocation and of the free.
#[test]
fn guard_report_of_each_bug_has_call_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let program =
        compile_c_program("tests/programs/security/defects.c", &["-O0", "-fno-builtin"], dir.path());
    let outcome_text = |kind: &str, size: &str| {
        let mut command = Command::new(&program);
        let output = preloaded(command.args([kind, size]), "check=0,guard=1,guard_slots=512");
        assert!(output.status.signal().is_some(), "{kind}: {:?}", output.status);
        text(&output.stderr)
    };
    let contains = |kind: &str, size: &str, expected_parts: &[&str]| {
        // The end of the page at which an object is placed is random.
        let all_outcomes: Vec<String> = (0..20).map(|_| outcome_text(kind, size)).collect();
        let good_outcomes = all_outcomes
            .iter()
            .any(|outcome_text| expected_parts.iter().all(|part| outcome_text.contains(part)));
        assert!(good_outcomes, "{kind}: {expected_parts:?} in none of\n{}", all_outcomes.join("\n"));
    };
    let (allocation_text, free_text) = ("allocated by thread", "freed by thread");
    contains(
        "double_free",
        "24",
        &[
            "uslab: guard: double free: 0x",
            allocation_text,
            free_text,
            "\n  double_free\n",
            "object of 24 bytes",
        ],
    );
    contains(
        "write_after_free",
        "1000",
        &["uslab: guard: use after free: 0x", allocation_text, free_text, "\n  write_after_free\n"],
    );
    contains(
        "overflow_by_one",
        "1008",
        &[
            "uslab: guard: overflow: 0x",
            " 0 bytes past the end of an object of 1008 bytes",
            "\n  overflow_by_one\n",
        ],
    );
    contains(
        "overflow_by_one",
        "1000",
        &["uslab: guard: write past the end: 0x", allocation_text, free_text],
    );
    contains(
        "underflow",
        "1000",
        &[
            "uslab: guard: underflow: 0x",
            " 8 bytes before the start of an object of 1000 bytes",
            "\n  underflow\n",
        ],
    );
}

/// A fault outside the guard's memory still reaches the program's own signal handler.
#[test]
fn unrelated_page_faults_reach_the_handler_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("handler.c");
    let code = r#"
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        static void on_fault(int s, siginfo_t *i, void *c) {
            if (i->si_addr == (void *)8) { write(1, "mine\n", 5); _exit(0); }
            _exit(3);
        }
        int main(int argc, char **argv) {
            struct sigaction a;
            memset(&a, 0, sizeof a);
            a.sa_sigaction = on_fault;
            a.sa_flags = SA_SIGINFO;
            if (argc > 1) sigaction(SIGSEGV, &a, NULL);
            for (int i = 0; i < 100; i++) free(malloc(100 + i));
            *(volatile char *)8 = 1;
            return 2;
        }
    "#;
    std::fs::write(&source, code).unwrap();
    let program = compile_c_program(source.to_str().unwrap(), &["-O0"], dir.path());
    let run = |args: &[&str]| preloaded(Command::new(&program).args(args), "guard=1");
    let handled = run(&["handle"]);
    assert_eq!((handled.status.code(), text(&handled.stdout).as_str()), (Some(0), "mine\n"));
    let unhandled = run(&[]);
    assert_eq!((unhandled.status.signal(), text(&unhandled.stderr).as_str()), (Some(11), ""));
}

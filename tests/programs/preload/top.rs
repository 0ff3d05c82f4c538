//! Tests `uslab top` on a program under the library.

#[path = "../../kit/terminal.rs"]
mod terminal;

use super::{compiled, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use terminal::run_on_terminal;
use uslab_tests::libuslab;

/// Starts the program `dump.c`, which runs until its standard input ends. Returns the id of the process, and the
/// process.
fn program(dir: &Path, options: &str) -> (String, Child) {
    let mut command = Command::new(compiled("dump.c", dir));
    command.args(["stay", ".", "."]).env("LD_PRELOAD", libuslab()).env("USLAB_OPTIONS", options);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The first line shows that the program runs.
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child.id().to_string(), child)
}
fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
fn top(args: &[&str]) -> Output {
    Command::new(uslab_tests::uslab()).arg("top").args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn top_shows_the_numbers_of_the_dump_file() {
    let dir = tempfile::tempdir().unwrap();
    // The guard is disabled, because objects that it samples are in no cache.
    let options = format!("guard=0,dump={}/out.%p.json,dump_signal=USR2", dir.path().display());
    let (pid, child) = program(dir.path(), &options);
    // The command requests a first dump itself.
    let dump_file = dir.path().join(format!("out.{pid}.json"));
    let start = std::time::Instant::now();
    while !dump_file.exists() {
        assert!(start.elapsed().as_secs() < 60, "no {}", dump_file.display());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let output = top(&["--once", &pid, "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let printed_table: Value = serde_json::from_slice(&output.stdout).unwrap();
    // No dump was requested after the first one.
    let file = std::fs::read(dir.path().join(format!("out.{pid}.json"))).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let dump_caches: Vec<_> =
        file["caches"].as_array().unwrap().iter().filter(|cache| cache["slabs_made"] != 0).collect();
    let rows = printed_table["caches"].as_array().unwrap();
    assert_eq!(rows.len(), dump_caches.len());
    for row in rows {
        let cache = dump_caches.iter().find(|cache| cache["name"] == row["name"]).unwrap();
        let row = row.as_object().unwrap();
        assert_eq!(row.len(), 22);
        row.iter().for_each(|(field, value)| assert_eq!(cache[field], *value, "{} {field}", cache["name"]));
    }
    let bytes: Vec<_> = rows.iter().map(|row| row["pages"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    let sum = |field: &str| dump_caches.iter().map(|cache| cache[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(printed_table["totals"]["used"], sum("used"));
    assert_eq!(printed_table["totals"]["slab_bytes"], sum("pages") * 4096);
    let used_objects = rows.iter().find(|row| row["name"] == "malloc-112").unwrap()["used"].as_u64().unwrap();
    assert!(used_objects >= 1000, "{used_objects}");

    // The table is printed from the process and from the file.
    let table = text(&top(&["--once", &pid]).stdout);
    assert!(table.starts_with(&format!("program ({pid})\n")) && table.contains("\nmalloc-112 "), "{table}");
    let from_file = top(&["--once", dir.path().join(format!("out.{pid}.json")).to_str().unwrap()]);
    assert_eq!(text(&from_file.stdout).split_once('\n').unwrap().1, table.split_once('\n').unwrap().1);
    end(child);
}

#[test]
fn top_refuses_a_program_without_a_signal_dump() {
    let assert_refused = |args: &[&str], part: &str| {
        let output = top(args);
        let err = text(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.len(), err.lines().count()),
            (Some(2), 0, 1),
            "{err}"
        );
        assert!(err.contains(part), "{err}");
    };
    for (options, part) in [
        (
            "check=1",
            "the program has no `dump` in USLAB_OPTIONS; expected a program that was started with LD_PRELOAD=",
        ),
        (
            "dump=/tmp/out.prom",
            "the program's dump file is `/tmp/out.prom`; expected a name that ends in .json",
        ),
        // The signal would end the process.
        (
            "dump=/tmp/out.json",
            "the program has no thread `uslab-dump` that waits for SIGUSR2; expected a program",
        ),
        ("dump=/tmp/out.json,dump_signal=USR1", "that waits for SIGUSR1; expected a program"),
    ] {
        let mut cat = Command::new("cat");
        let child = cat.env("USLAB_OPTIONS", options).stdin(Stdio::piped()).spawn().unwrap();
        // Between fork and exec the process still has the test program's environment.
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read(&comm).unwrap() != b"cat\n" {
            std::thread::yield_now();
        }
        assert_refused(&["--once", &child.id().to_string()], part);
        end(child);
    }
    assert_refused(
        &["--once", "4194999"],
        "4194999: no such program; expected the pid of a running program, or a file",
    );
    assert_refused(&["--once", "/nowhere"], "/nowhere: No such file or directory");
    assert_refused(
        &["/nowhere"],
        "standard output is not a terminal; `--once` prints a table, `--json` a reading",
    );
    for seconds in ["0.01", "3601", "x"] {
        let output = top(&["1", "--interval", seconds]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("expected seconds, 0.1 to 3600"), "{output:?}");
    }
}

#[test]
fn top_keeps_the_last_table_after_the_program_exits() {
    let dir = tempfile::tempdir().unwrap();
    let (pid, child) = program(dir.path(), &format!("dump={}/out.%p.json", dir.path().display()));
    let (code, terminal_output, restored) =
        run_on_terminal(&["top", &pid, "--interval", "0.1"], |_| end(child));
    assert_eq!((code, restored), (Some(0), true), "{terminal_output}");
    let after_exit = &terminal_output[terminal_output.rfind("\x1b[?1049l").unwrap()..];
    assert!(after_exit.contains("\nmalloc-112 "), "{terminal_output:?}");
    assert!(after_exit.ends_with(&format!("program ({pid}) has ended.\r\n")), "{terminal_output:?}");
}

//! Tests that a signal makes a running program dump its statistics.

#[path = "../../kit/exposition.rs"]
mod exposition;

use super::{compiled, preloaded, text};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use uslab_sim::flame::{Flame, Stack};
use uslab_tests::libuslab;

/// Runs `dump.c`; returns the file that it wrote, and its output.
fn dump(dump_method: &str, format: &str) -> (Option<String>, Output) {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Command::new(compiled("dump.c", dir.path()));
    program.arg(dump_method).arg(dir.path()).arg(format);
    // The guard is disabled, because objects that it samples are in no cache.
    let options = format!("guard=0,dump={}/out.%p.{format}", dir.path().display());
    let output = preloaded(&mut program, &options);
    let mut leftover_files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = leftover_files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("out."));
    assert!(output.status.success() && output.stderr.is_empty(), "{dump_method} {format}: {output:?}");
    (file.map(|file| std::fs::read_to_string(file).unwrap()), output)
}

#[test]
fn file_extension_determines_the_signal_dump_format() {
    for format in ["json", "prom", "txt"] {
        let (file, output) = dump("asked", format);
        assert_eq!(text(&output.stdout), "2\n", "the dump must have a separate thread");
        let dump = file.unwrap();
        let used_bytes = match format {
            "json" => {
                let json: serde_json::Value = serde_json::from_str(&dump).unwrap();
                let caches = json["caches"].as_array().unwrap();
                let cache = caches.iter().find(|cache| cache["name"] == "malloc-112").unwrap();
                cache["used"].as_f64().unwrap()
            }
            "prom" => {
                exposition::read(&dump).unwrap()["uslab_cache_objects{cache=\"malloc-112\",place=\"used\"}"]
            }
            _ => dump.parse::<uslab::SlabInfo>().unwrap().get("malloc-112").unwrap().active_objects as f64,
        };
        assert!(used_bytes >= 1000.0, "{format}: {used_bytes}");
    }
}

/// Runs `dump.c` with a heap profile that samples every byte; returns the profile, and the program's output.
fn profile(dir: &Path, dump_method: &str, format: &str) -> (PathBuf, String) {
    let mut program = Command::new(compiled("dump.c", dir));
    program.arg(dump_method).arg(dir).arg(format);
    let options = format!("guard=0,profile=1,dump={}/out.%p.{format}", dir.display());
    let output = preloaded(&mut program, &options);
    assert!(output.status.success() && output.stderr.is_empty(), "{format}: {output:?}");
    let mut leftover_files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    (leftover_files.find(|path| path.to_string_lossy().ends_with(format)).unwrap(), text(&output.stdout))
}

/// The heap profile contains code addresses; a reader looks up function names later. The profile contains exactly the
/// thousand objects of `main`, and the innermost function of a stack never belongs to the library.
#[test]
fn signal_dump_writes_the_heap_profile() {
    for format in ["folded", "pb.gz"] {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = profile(dir.path(), "asked", format);
        let content = std::fs::read(&file).unwrap();
        assert!(!text(&content).contains(";main"), "{format}");
        let flame = Flame::read(&file).unwrap();
        let is_expected_stack =
            |stack: &&Stack| stack.frames[0] == "malloc-112" && stack.frames.last().unwrap() == "main";
        let stack_bytes: Vec<_> =
            flame.stacks.iter().filter(is_expected_stack).map(|stack| stack.bytes).collect();
        assert_eq!(stack_bytes, [112_000], "{format}: {flame:?}");
        assert!(flame.unused.is_empty(), "{flame:?}");
    }
}

/// Regression test: dumping 300 stacks took 40 MiB of memory, because the dump read the debug information of
/// all files.
#[test]
fn profile_dump_of_many_call_stacks_uses_little_memory() {
    for format in ["folded", "pb.gz"] {
        let dir = tempfile::tempdir().unwrap();
        let (file, printed) = profile(dir.path(), "stacks", format);
        let kib: u64 = printed.lines().last().unwrap().parse().unwrap();
        println!("{format}: {kib} KiB");
        assert!(kib < 8 << 10, "{format}: {kib} KiB");
        let flame = Flame::read(&file).unwrap();
        let of_branch = flame.stacks.iter().filter(|stack| stack.frames.last().unwrap() == "branch");
        assert_eq!(of_branch.map(|stack| stack.bytes).sum::<u64>(), 512 * 112, "{flame:?}");
        let leftover_files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(leftover_files, 2, "the folder must have the program and one dump, and no temporary file");
    }
}

/// After a failed dump, neither the temporary file nor a partial dump remains.
#[test]
fn failed_profile_write_prints_a_single_line() {
    for (options, error) in [
        (
            "dump=DIR/out.%p.pb.gz",
            "no profile is running; expected `profile=512k` or another number of bytes",
        ),
        ("profile=1,dump=DIR/none/out.pb.gz", "No such file or directory (os error 2)"),
        ("profile=1,dump=/dev/full", "No space left on device (os error 28)"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let program = compiled("dump.c", dir.path());
        let mut child = Command::new(&program)
            .args(["stay", ".", "."])
            .env("LD_PRELOAD", libuslab())
            .env("USLAB_OPTIONS", options.replace("DIR", &dir.path().to_string_lossy()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        drop(child.stdin.take());
        let mut remaining = String::new();
        stderr.read_to_string(&mut remaining).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(line.starts_with("uslab: dump `") && line.ends_with(&format!("`: {error}\n")), "{line}");
        assert_eq!(
            (remaining.as_str(), std::fs::read_dir(dir.path()).unwrap().count()),
            ("", 1),
            "{options}"
        );
    }
}

#[test]
fn signal_dump_preserves_signals_and_threads_of_the_program() {
    assert_eq!(dump("own", "txt").0, None);
    let (file, output) = dump("fork", "txt");
    assert!(file.is_some_and(|file| file.starts_with("slabinfo - version: 2.1\n")), "{output:?}");
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut unchanged_program = Command::new(&program);
    let output = preloaded(unchanged_program.args(["none", ".", "."]), "check=1");
    assert_eq!((text(&output.stdout).as_str(), output.stderr.is_empty()), ("1\n", true));
    // The parent process has set the signal to be ignored.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' USR2; exec \"$0\" none . ."]).arg(&program);
    let output = preloaded(&mut ignoring, "dump=/tmp/none");
    let err = text(&output.stderr);
    assert_eq!(
        err,
        "uslab: dump `/tmp/none`: SIGUSR2 is ignored or handled by the program, so it triggers no dump\n"
    );
    assert_eq!((output.status.success(), text(&output.stdout).as_str()), (true, "1\n"));
}

#[test]
fn program_continues_after_a_failed_dump() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut invalid = Command::new(&program);
    let output = preloaded(invalid.args(["none", ".", "."]), "dump=,dump_signal=KILL");
    let err = text(&output.stderr);
    assert!(output.status.success() && err.lines().count() == 2, "{err}");
    assert!(
        err.starts_with("uslab: USLAB_OPTIONS: `dump=`: expected ")
            && err.contains("\nuslab: USLAB_OPTIONS: `dump_signal=KILL`"),
        "{err}"
    );

    let mut command = Command::new(&program);
    command
        .args(["stay", ".", "."])
        .env("LD_PRELOAD", libuslab())
        .env("USLAB_OPTIONS", "dump=/nowhere/%p%%p%");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "uslab: dump `/nowhere/%p%%p%`: No such file or directory (os error 2)\n");
}

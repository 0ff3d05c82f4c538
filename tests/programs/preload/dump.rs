//! The numbers of a running program, on a signal.

#[path = "../../kit/exposition.rs"]
mod exposition;

use super::{compiled, preloaded, text};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use uslab_tests::libuslab;

/// What `dump.c` was told to write, and what it said.
fn dump(how: &str, ending: &str) -> (Option<String>, Output) {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Command::new(compiled("dump.c", dir.path()));
    program.arg(how).arg(dir.path()).arg(ending);
    // A sample of the guard is in no cache.
    let options = format!("guard=0,dump={}/out.%p.{ending}", dir.path().display());
    let output = preloaded(&mut program, &options);
    let mut left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = left.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("out."));
    assert!(output.status.success() && output.stderr.is_empty(), "{how} {ending}: {output:?}");
    (file.map(|file| std::fs::read_to_string(file).unwrap()), output)
}

#[test]
fn on_a_signal_the_numbers_are_written_whole_in_the_format_that_the_name_asks_for() {
    for ending in ["json", "prom", "txt"] {
        let (file, output) = dump("asked", ending);
        assert_eq!(text(&output.stdout), "2\n", "a thread of its own");
        let dump = file.unwrap();
        let used = match ending {
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
        assert!(used >= 1000.0, "{ending}: {used}");
    }
}

/// Every byte is a sample: so the thousand objects that `main` holds are there, and not one more or less.
#[test]
fn on_a_signal_the_heap_profile_names_who_holds_what() {
    let dump = |ending: &str| {
        let dir = tempfile::tempdir().unwrap();
        let mut program = Command::new(compiled("dump.c", dir.path()));
        program.arg("asked").arg(dir.path()).arg(ending);
        let output = preloaded(
            &mut program,
            &format!("guard=0,profile=1,dump={}/out.%p.{ending}", dir.path().display()),
        );
        assert!(output.status.success() && output.stderr.is_empty(), "{ending}: {output:?}");
        let mut left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = left.find(|path| path.to_string_lossy().ends_with(ending)).unwrap();
        std::fs::read(file).unwrap()
    };
    let folded = text(&dump("folded"));
    let held = |line: &&str| line.starts_with("malloc-112;") && line.contains(";main ");
    let held: Vec<_> = folded.lines().filter(held).collect();
    assert_eq!(held.len(), 1, "{folded}");
    assert!(held[0].ends_with(" 112000"), "{held:?}");
    let mut message = vec![];
    flate2::read::GzDecoder::new(&dump("pb.gz")[..]).read_to_end(&mut message).unwrap();
    for name in ["inuse_space", "malloc-112", "main"] {
        assert!(message.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}

#[test]
fn a_program_keeps_its_signal_its_forks_and_its_count_of_threads() {
    assert_eq!(dump("own", "txt").0, None);
    let (file, output) = dump("fork", "txt");
    assert!(file.is_some_and(|file| file.starts_with("slabinfo - version: 2.1\n")), "{output:?}");
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut plain = Command::new(&program);
    let output = preloaded(plain.args(["none", ".", "."]), "check=1");
    assert_eq!((text(&output.stdout).as_str(), output.stderr.is_empty()), ("1\n", true));
    // Whoever starts it has the signal ignored.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' USR2; exec \"$0\" none . ."]).arg(&program);
    let output = preloaded(&mut ignoring, "dump=/tmp/none");
    let err = text(&output.stderr);
    assert_eq!(err, "uslab: dump `/tmp/none`: SIGUSR2 is ignored or taken: no dumps on it\n");
    assert_eq!((output.status.success(), text(&output.stdout).as_str()), (true, "1\n"));
}

#[test]
fn a_dump_that_cannot_be_is_named_and_the_program_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut wrong = Command::new(&program);
    let output = preloaded(wrong.args(["none", ".", "."]), "dump=,dump_signal=KILL");
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

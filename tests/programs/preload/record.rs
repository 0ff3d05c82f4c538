//! Tests that the library can record programs, and that `uslab replay` can replay the recordings.

use super::{compiled, preloaded, print_line, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use uslab_sim::trace::{Facts, Recorded, Recording, Tables};
use uslab_tests::{compile_c_program, libuslab};

/// The size in bytes of a recording's header, and the size of one record.
const HEADER: usize = 64;
const RECORD: usize = 24;

struct Recorder {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Recorder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { program: compiled("record.c", dir.path()), dir }
    }
    fn file(&self) -> PathBuf {
        self.dir.path().join("rec")
    }
    /// Runs the recorded program, which must succeed and print nothing.
    fn run(&self, args: &[&str], extra_options: &str) -> PathBuf {
        let file = self.file();
        let options = format!("record={}{extra_options}", file.display());
        let output = preloaded(Command::new(&self.program).args(args), &options);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
        file
    }
    /// Returns all recordings in the folder except the one with the requested name.
    fn later_recordings(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut later_files: Vec<_> =
            entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("rec.")).collect();
        later_files.sort();
        later_files
    }
}

/// Returns the facts that the trace reader finds in a recording, and the counts in the recording's header.
fn facts(file: &Path) -> (Facts, Recorded) {
    let mut ops = Recording::open(file).unwrap().resolve(None).unwrap();
    while ops.next_op().unwrap().is_some() {}
    let facts = ops.facts(&Tables::default());
    let recording = facts.recorded.clone().unwrap();
    (facts, recording)
}

/// Checks the order of records: no address is allocated again before it is freed, and each freed address was allocated.
#[track_caller]
fn assert_events_in_order(facts: &Facts) {
    let objects = &facts.objects;
    assert_eq!((objects.hidden_allocs, objects.hidden_frees, objects.pre_trace_frees), (0, 0, 0));
    assert_eq!(objects.matched, objects.frees);
}

fn replay(file: &Path, extra_options: &[&str]) -> Output {
    Command::new(uslab_tests::uslab()).arg("replay").arg(file).args(extra_options).output().unwrap()
}

fn replayed(file: &Path) -> Value {
    let output = replay(file, &["--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The expected counts for the mode `counts` of `record.c`: for each size class, allocations, frees, and remaining
/// objects.
const EXPECTED_COUNTS: [(&str, [u64; 3]); 8] = [
    // Sizes of 0.
    ("kmalloc-16", [5, 0, 5]),
    // Size 20 is reallocated to 0.
    ("kmalloc-32", [1, 1, 0]),
    // The class has size 100, and size 65 aligned to 64, which does not fit the class of 96.
    ("kmalloc-128", [103, 40, 63]),
    // `new` and `delete` of 200.
    ("kmalloc-256", [6, 3, 3]),
    // Size 50, ten times.
    ("kmalloc-512", [7, 0, 7]),
    // Size 1000 is reallocated in place to 1010, then moved.
    ("kmalloc-1k", [1, 1, 0]),
    // The class has the moved object, and size 8 aligned to a page.
    ("kmalloc-4k", [3, 2, 1]),
    ("kmalloc-large", [2, 1, 1]),
];

#[test]
fn replayed_recording_equals_the_counts_of_the_program() {
    for rseq in ["", "off"] {
        let recorder = Recorder::new();
        let file = recorder.file();
        // The library's thread is disabled, because the C library allocates for it, and so are samples, which do not
        // grow in place.
        let options = format!("record={},reap=0,guard=0", file.display());
        let output =
            preloaded(Command::new(&recorder.program).arg("counts").env("USLAB_RSEQ", rseq), &options);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report = replayed(&file);
        let number = |value: &Value| value.as_u64().unwrap();
        let caches = report["caches"].as_array().unwrap();
        let counts = |cache: &Value| ["allocs", "frees", "used"].map(|field| number(&cache[field]));
        let counts_by_name: BTreeMap<_, _> =
            caches.iter().map(|cache| (cache["name"].as_str().unwrap(), counts(cache))).collect();
        assert_eq!(counts_by_name, BTreeMap::from(EXPECTED_COUNTS), "USLAB_RSEQ={rseq}");
        let sizes = [16, 32, 128, 256, 512, 1024, 4096];
        for ((name, [.., used_objects]), size) in EXPECTED_COUNTS.iter().zip(sizes) {
            let cache = caches.iter().find(|cache| cache["name"] == *name).unwrap();
            assert_eq!(
                number(&cache["object_size"]) * number(&cache["used"]),
                size * used_objects,
                "live bytes of {name}"
            );
        }
        let facts = &report["facts"];
        assert_eq!((number(&facts["too_large"]), number(&facts["alloc_failed"])), (2, 1));
        assert_eq!((&report["events"]["Resize"], &facts["format"]), (&1.into(), &"libuslab".into()));
        assert_eq!(
            (&report["trace_health"]["lost"], &report["trace_health"]["unwritten"]),
            (&0.into(), &0.into())
        );
        assert_eq!(
            (&facts["recorded"]["program"], &facts["recorded"]["parent"]),
            (&"program".into(), &Value::Null)
        );
        let (all, _) = self::facts(&file);
        assert_events_in_order(&all);
        assert!(all.time.is_some_and(|(first, last)| 0.0 < first && first < last));
        let page = text(&replay(&file, &[]).stdout);
        assert!(page.lines().nth(1).unwrap().starts_with("Recorded: program, process "), "{page}");
    }
    // Without the option no file is created.
    let recorder = Recorder::new();
    preloaded(Command::new(&recorder.program).arg("counts"), "check=1");
    assert_eq!(
        std::fs::read_dir(recorder.dir.path()).unwrap().count(),
        1,
        "only the program may be recorded"
    );
}

#[test]
fn recording_shows_a_free_before_the_address_is_reused() {
    let recorder = Recorder::new();
    let (facts, recording) = facts(&recorder.run(&["threads", "100000"], ""));
    assert_events_in_order(&facts);
    let objects = &facts.objects;
    // The remaining objects are the ones that the C library keeps for its threads, in addition to what the threads
    // request.
    let used_objects = objects.allocs - objects.frees;
    assert!(used_objects < 20, "{used_objects}");
    let first: u64 = facts
        .caches
        .iter()
        .filter(|cache| cache.name == "kmalloc-64" || cache.name == "kmalloc-32")
        .map(|cache| cache.tally.allocs)
        .sum();
    assert_eq!(first, 400_000, "the sizes must be 17 to 56 bytes");
    assert_eq!((recording.lost, recording.unwritten), (0, 0));
    assert!(facts.by_cpu.len() <= 2048 && facts.by_cpu.values().sum::<u64>() == facts.total);
}

/// The test forks in every possible way; a bare system call, for example, runs no fork handlers.
#[test]
fn forked_child_writes_a_separate_recording() {
    for start_method in ["fork", "clone"] {
        let recorder = Recorder::new();
        // The child first changes its directory.
        let mut program = Command::new(&recorder.program);
        let output = preloaded(program.arg(start_method).current_dir(recorder.dir.path()), "record=rec");
        assert!(output.status.success() && output.stderr.is_empty(), "{start_method}: {output:?}");
        let (parent, own_recording) = facts(&recorder.file());
        assert_events_in_order(&parent);
        assert_eq!(
            (parent.objects.allocs, parent.objects.frees, own_recording.parent),
            (10, 10, None),
            "{start_method}"
        );
        let later_files = recorder.later_recordings();
        assert_eq!(later_files.len(), 1, "{start_method}: {later_files:?}");
        let (child, recording) = facts(&later_files[0]);
        assert!(later_files[0].ends_with(format!("rec.{}", recording.process)), "{later_files:?}");
        assert_eq!(recording.parent, Some(own_recording.process), "{start_method}");
        let objects = &child.objects;
        assert_eq!((objects.allocs, objects.frees, objects.pre_trace_frees), (3, 4, 4), "{start_method}");
        let page = text(&replay(&later_files[0], &[]).stdout);
        assert!(
            page.contains(&format!("WARNING: the process was forked from process {}", own_recording.process)),
            "{page}"
        );
    }
}

#[test]
fn existing_recording_is_not_overwritten() {
    let recorder = Recorder::new();
    let first = facts(&recorder.run(&["exec"], ""));
    let later_files = recorder.later_recordings();
    assert_eq!((first.0.total, later_files.len()), (6, 1), "{later_files:?}");
    let second = facts(&later_files[0]);
    assert_eq!((second.0.total, second.1.process, second.1.parent), (10, first.1.process, None));
    // All names except the third are taken now, and the program leaves its directory: the file stays in the first one.
    std::fs::write(recorder.file(), "mine").unwrap();
    let mut moved_program = Command::new(&recorder.program);
    let output =
        preloaded(moved_program.args(["chdir", "100000"]).current_dir(recorder.dir.path()), "record=rec");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(std::fs::read(recorder.file()).unwrap(), b"mine");
    let last = recorder.later_recordings().into_iter().find(|path| *path != later_files[0]).unwrap();
    assert_eq!((facts(&last).0.total, facts(&last).1.lost), (200_006, 0));
}

#[test]
fn recording_of_a_killed_program_lacks_only_recent_events() {
    let recorder = Recorder::new();
    let mut command = Command::new(&recorder.program);
    command.arg("killed").env("LD_PRELOAD", libuslab()).stdout(Stdio::piped());
    let mut child =
        command.env("USLAB_OPTIONS", format!("record={}", recorder.file().display())).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "go\n");
    let (facts, recording) = facts(&recorder.file());
    assert!(facts.total > 40_000, "{} {recording:?}", facts.total);
    // Each thread has at most one call in progress, because a thread that waits for the file to grow has its place
    // reserved.
    let unrecorded = recording.unwritten + recording.lost;
    assert!(unrecorded <= 5, "{recording:?}");
    // A later operation of another thread on the same address may already be in the file. In that case a call before it
    // is missing, or two if the call was a reallocation.
    let objects = &facts.objects;
    let missed = objects.hidden_allocs + objects.hidden_frees + objects.pre_trace_frees;
    assert!(missed <= 2 * unrecorded, "{objects:?} {recording:?}");
    print_line(&format!("preload: killed: {} calls, {unrecorded} under way", facts.total));
}

#[test]
fn events_beyond_the_recording_limit_are_counted() {
    let recorder = Recorder::new();
    let (facts, recording) = facts(&recorder.run(&["pairs", "5000"], ",record_limit=64k"));
    let room = ((64 << 10) - HEADER) / RECORD;
    assert_eq!((facts.total, recording.lost), (room as u64, 10_000 - room as u64));
    assert!(std::fs::metadata(recorder.file()).unwrap().len() <= 64 << 10);
    assert_events_in_order(&facts);
    let page = text(&replay(&recorder.file(), &[]).stdout);
    assert!(
        page.contains(
            "WARNING: the recording reached its limit, or the device was full: the last 7,272 calls"
        ),
        "{page}"
    );
}

/// Regression test: a signal ended the recording, or stopped the growth of its file.
#[test]
fn signal_during_recording_growth_loses_no_event() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-rdynamic", "-DINTERRUPTED"];
    let program = compile_c_program("tests/programs/preload/record.c", &flags, dir.path());
    let recorder = Recorder { dir, program };
    let (facts, recording) = facts(&recorder.run(&["pairs", "100000"], ""));
    assert_eq!((facts.total, recording.lost), (200_000, 0));
}

#[test]
fn full_disk_stops_the_recording_but_not_the_program() {
    let recorder = Recorder::new();
    let (limited, recording) = facts(&recorder.run(&["limited", "100000"], ""));
    assert_eq!(limited.total + recording.lost, 200_000);
    assert!(limited.total > 5000 && recording.lost > 100_000 && recording.unwritten == 0, "{recording:?}");
    assert!(std::fs::metadata(recorder.file()).unwrap().len() <= 300_000);
    assert_events_in_order(&limited);

    let device = recorder.dir.path().join("device");
    std::fs::create_dir(&device).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300k", "none"]).arg(&device).output();
    if !mount.as_ref().is_ok_and(|output| output.status.success()) {
        print_line(&format!("preload: skipped the full device: {mount:?}"));
        return;
    }
    let file = device.join("rec");
    let mut program = Command::new(&recorder.program);
    let output = preloaded(program.args(["pairs", "100000"]), &format!("record={}", file.display()));
    let copy = recorder.dir.path().join("copy");
    std::fs::copy(&file, &copy).unwrap();
    let umount_status = Command::new("umount").arg(&device).status().unwrap();
    assert!(output.status.success() && output.stderr.is_empty() && umount_status.success(), "{output:?}");
    let (full_facts, recording) = facts(&copy);
    assert_eq!(full_facts.total + recording.lost, 200_000);
    assert!(full_facts.total > 5000 && recording.lost > 100_000 && recording.unwritten == 0, "{recording:?}");
    assert_events_in_order(&full_facts);
}

#[test]
fn program_continues_if_the_recording_cannot_be_created() {
    let recorder = Recorder::new();
    let run = |options: &str| {
        let output = preloaded(Command::new(&recorder.program).arg("fork"), options);
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    // The message appears once, and not from the child.
    let missing_directory =
        "uslab: record `/nowhere/rec`: No such file or directory (os error 2); nothing is recorded\n";
    assert_eq!(run("record=/nowhere/rec"), missing_directory);
    let long_path = format!("/tmp/{}", "long/".repeat(300));
    assert!(
        run(&format!("record={long_path}"))
            .contains("File name too long (os error 36); nothing is recorded\n")
    );
    let invalid_option = run("record=,record_limit=0");
    assert!(
        invalid_option.lines().count() == 2
            && invalid_option.starts_with("uslab: USLAB_OPTIONS: `record=`: expected "),
        "{invalid_option}"
    );
}

#[test]
fn truncated_compressed_recording_is_refused() {
    let recorder = Recorder::new();
    let whole_file = std::fs::read(recorder.run(&["pairs", "1000"], "")).unwrap();
    let part = |bytes: &[u8]| {
        let file = recorder.dir.path().join("part");
        std::fs::write(&file, bytes).unwrap();
        file
    };
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gzip.write_all(&whole_file).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(vec![], 0);
    xz.write_all(&whole_file).unwrap();
    for packed in
        [gzip.finish().unwrap(), xz.finish().unwrap(), zstd::encode_all(&whole_file[..], 1).unwrap()]
    {
        assert!(packed.len() < whole_file.len() / 2);
        assert_eq!(facts(&part(&packed)).0.total, 2000);
    }
    // The reader uses the file up to the last record, and nothing after it.
    let used_bytes = HEADER + 2000 * RECORD;
    assert_eq!(facts(&part(&whole_file[..used_bytes])).0.total, 2000);
    let changed_record = |position: usize, byte: u8| {
        let mut bytes = whole_file.clone();
        bytes[position] = byte;
        bytes
    };
    let record = HEADER + 7 * RECORD;
    for (bytes, damage) in [
        (
            whole_file[..used_bytes - 1].to_vec(),
            "recorded by libuslab.so: truncated: 1999 of 2000 records are present",
        ),
        (whole_file[..HEADER].to_vec(), "recorded by libuslab.so: truncated: 0 of 2000 records are present"),
        (whole_file[..HEADER - 1].to_vec(), "recorded by libuslab.so: truncated within its header"),
        (changed_record(8, 2), "recorded by libuslab.so: has format version 2; expected 1; record it again"),
        (
            changed_record(record + RECORD - 1, 77),
            "recorded by libuslab.so: damaged: record 8 has an unknown kind",
        ),
        (changed_record(record + 7, 0xff), "impossible cpu="),
    ] {
        let file = part(&bytes);
        let output = replay(&file, &["--json", "-"]);
        let err = text(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.len(), err.trim().lines().count()),
            (Some(2), 0, 1),
            "{err}"
        );
        assert!(err.contains(damage) && err.contains(file.to_str().unwrap()), "{err}");
    }
}

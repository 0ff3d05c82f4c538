//! The command `uslab` from outside: its verbs, its JSON, its errors and exit codes.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn uslab(args: &[&str]) -> Output {
    uslab_with(args, b"")
}

fn uslab_with(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_uslab"))
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A program that ends before it has read everything breaks the pipe: that is its right.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    child.wait_with_output().expect("the binary ends")
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Exit code 2, nothing on standard output, and a message with all of `parts`.
#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let (code, out, err) = said(&uslab(args));
    assert_eq!(code, Some(2), "{args:?}: {err}");
    assert!(out.is_empty(), "{args:?} wrote {out}");
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?}: expected {part:?} in {err}");
    }
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/samples").join(name)
}

/// A small trace: three pages, an object allocated and freed.
const SMALL: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 3/3   #P:2
#
            sh-70      [000] .....     1.000001: kmalloc: call_site=load+0x10/0x20 ptr=ffff888001000040 bytes_req=60 bytes_alloc=64 gfp_flags=GFP_KERNEL node=-1 accounted=false
            sh-70      [001] .....     1.000002: kfree: call_site=load+0x18/0x20 ptr=ffff888001000040
            sh-70      [001] .....     1.000003: mm_page_alloc: page=0xffffea0000040000 pfn=0x1000 order=3 migratetype=0 gfp_flags=GFP_KERNEL|__GFP_COMP
";

struct Folder(tempfile::TempDir);
impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a temporary file");
        path.to_str().expect("a plain name").to_owned()
    }
}

fn replay_json(args: &[&str]) -> Value {
    let args: Vec<&str> = ["replay"].into_iter().chain(args.iter().copied()).chain(["--json", "-"]).collect();
    let (code, out, err) = said(&uslab(&args));
    assert_eq!(code, Some(0), "{args:?}: {err}");
    serde_json::from_str(&out).expect("JSON and nothing else on standard output")
}

#[test]
fn without_arguments_a_newcomer_sees_the_bundled_trace_explained() {
    let (code, out, err) = said(&uslab(&[]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for part in [
        "721,538 memory events",
        "dentry",
        "nothing was lost",
        "0 objects and 0 slabs were left",
        "Where to go next",
    ] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
}

#[test]
fn the_bundled_trace_gives_the_numbers_of_its_kernel() {
    let report = replay_json(&[]);
    assert_eq!(report["events"]["kmem_cache_alloc"], 279_213);
    assert_eq!(report["events_total"], 721_538);
    let dentry = report["caches"].as_array().unwrap().iter().find(|c| c["name"] == "dentry").unwrap();
    assert_eq!((&dentry["allocs"], &dentry["frees"]), (&Value::from(47_602), &Value::from(30_224)));
    assert_eq!((&dentry["peak_live"], &dentry["remote_frees"]), (&Value::from(33_861), &Value::from(1_912)));
    let kernel = &report["against_kernel"];
    assert_eq!(
        (&kernel["objects_kernel"], &kernel["objects_ours"]),
        (&Value::from(15_030), &Value::from(15_072))
    );
    assert_eq!(
        (&kernel["objects_abs_error"], &kernel["objects_exact"]),
        (&Value::from(42), &Value::from(43))
    );
    assert_eq!(report["pages"]["2"]["allocs"], 1667);
}

#[test]
fn the_json_of_a_replay_has_all_its_fields_and_the_laws_hold() {
    let report = replay_json(&[sample("ftrace-6.1.txt.zst").to_str().unwrap()]);
    for field in [
        "events",
        "not_understood",
        "caches",
        "pages",
        "conservation",
        "teardown",
        "events_per_second",
        "seed",
        "version",
    ] {
        assert!(!report[field].is_null(), "{field}");
    }
    let cache = &report["caches"][0];
    for field in [
        "name",
        "object_size",
        "slab_size",
        "objs_per_slab",
        "order",
        "allocs",
        "frees",
        "live",
        "peak_live",
        "remote_frees",
        "hidden_allocs",
        "hidden_frees",
        "pre_trace_frees",
        "slabs",
        "slabs_peak",
        "in_magazines",
        "in_depot",
        "depot_exchanges",
    ] {
        assert!(!cache[field].is_null(), "{field}");
    }
    for path in ["cpu", "depot", "slab", "pages", "commit"] {
        let caches = report["caches"].as_array().unwrap().iter();
        let sum = caches.map(|cache| cache["paths"][path].as_u64().unwrap()).sum::<u64>();
        assert_eq!(report["objects"]["paths"][path], sum, "{path}");
    }
    assert!(cache.get("kernel").is_some());
    assert_eq!(report["not_understood"], 0);
    assert!(report["conservation"]["checked"].as_u64().unwrap() >= 2);
    assert_eq!(report["conservation"]["violated"], 0);
    for left in ["objects", "slabs", "pages_not_in_maximal_blocks"] {
        assert_eq!(report["teardown"][left], 0, "{left}");
    }
    assert_eq!(report["teardown"]["committed_bytes"][1], 0);
}

#[test]
fn the_same_trace_gives_the_same_report_but_for_times() {
    let path = sample("ftrace-6.12-tgid-hashed.txt.zst");
    let report = || {
        let mut report = replay_json(&[path.to_str().unwrap(), "--seed", "7"]);
        let fields = report.as_object_mut().unwrap();
        for time in ["events_per_second", "read_seconds", "replay_seconds", "ns_per_event"] {
            fields.remove(time);
        }
        fields["teardown"].as_object_mut().unwrap().remove("resident_bytes");
        report
    };
    let first = report();
    assert_eq!(first["seed"], 7);
    assert_eq!(first, report());
}

#[test]
fn other_machines_replay_the_same_events() {
    let path = sample("ftrace-6.1.txt.zst");
    let path = path.to_str().unwrap();
    for options in [
        &["--cpus", "1"][..],
        &["--cpus", "64", "--nodes", "4"],
        &["--cpus", "1024", "--nodes", "16"],
        &["--magazine", "off"],
        &["--magazine", "1"],
        &["--magazine", "500", "--snapshot-every", "100"],
        &["--limit-memory", "256M"],
    ] {
        let args: Vec<&str> = [path].into_iter().chain(options.iter().copied()).collect();
        let report = replay_json(&args);
        assert_eq!(report["conservation"]["violated"], 0, "{options:?}: {}", report["conservation"]);
        assert_eq!(report["objects"]["allocs"], 656, "{options:?}");
    }
}

#[test]
fn standard_input_is_read_plain_and_compressed() {
    for (name, events) in [("ftrace-6.1.txt.zst", 2987), ("perf-script-6.12.txt.zst", 3295)] {
        let bytes = std::fs::read(sample(name)).unwrap();
        let output = uslab_with(&["replay", "-", "--json", "-"], &bytes);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["events_total"], events, "{name}");
    }
    let (code, out, _) = said(&uslab_with(&["replay", "-"], SMALL.as_bytes()));
    assert_eq!(code, Some(0));
    assert!(out.contains("3 events on 2 CPUs"), "{out}");
}

#[test]
fn lost_events_are_reported() {
    let report = replay_json(&[sample("ftrace-6.1-lost-trace_pipe.txt.zst").to_str().unwrap()]);
    assert_eq!(report["lost"], 2533);
    let (_, out, _) =
        said(&uslab(&["replay", sample("ftrace-6.1-lost-trace_pipe.txt.zst").to_str().unwrap()]));
    assert!(out.contains("WARNING: the kernel lost 2,533 events"), "{out}");
}

#[test]
fn what_is_no_trace_is_refused_by_name() {
    let folder = Folder::new();
    let here = folder.0.path().to_str().unwrap();
    refused(&["replay", "/no/such/trace"], &["/no/such/trace"]);
    refused(&["replay", here], &[here, "directory"]);
    let binary = folder.file("binary", [0u8, 1, 2, 3, 255, 0, 0, 9].repeat(100));
    refused(&["replay", &binary], &[&binary]);
    let text = folder.file("text", "It was a dark and stormy night.\n");
    refused(&["replay", &text], &[&text]);
    let empty = folder.file("empty", "");
    refused(&["replay", &empty], &[&empty]);
    let mut whole = std::fs::read(sample("ftrace-6.1.txt.zst")).unwrap();
    whole.truncate(whole.len() / 2);
    let truncated = folder.file("truncated.zst", whole);
    refused(&["replay", &truncated], &[&truncated]);
    let cut = folder.file("cut", &SMALL[..SMALL.len() - 60]);
    refused(&["replay", &cut], &[&cut, "7"]);
}

#[test]
fn impossible_values_are_refused_with_their_line() {
    let folder = Folder::new();
    let order = folder.file("order", SMALL.replace("order=3", "order=11"));
    refused(&["replay", &order], &[&format!("{order}:7"), "10"]);
    let size = folder.file("size", SMALL.replace("bytes_alloc=64", "bytes_alloc=99999999999"));
    refused(&["replay", &size], &[&format!("{size}:5")]);
}

/// Once folded onto the last CPU without a word.
#[test]
fn a_trace_of_more_cpus_than_there_can_be_says_so() {
    let trace = SMALL.replace("[001]", "[1500]");
    let (code, out, err) = said(&uslab_with(&["replay", "-"], trace.as_bytes()));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("1501 CPUs, and 1024 are the most") && err.contains("--cpus"), "{err}");
    let (code, _, err) = said(&uslab_with(&["replay", "-", "--cpus", "1024"], trace.as_bytes()));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn strict_refuses_the_first_unknown_free_with_its_line() {
    let folder = Folder::new();
    let freed = SMALL.replace(
        "kfree: call_site=load+0x18/0x20 ptr=ffff888001000040",
        "kfree: call_site=load+0x18/0x20 ptr=ffff888001000080",
    );
    let path = folder.file("unknown-free", freed);
    assert_eq!(uslab(&["replay", &path]).status.code(), Some(0));
    refused(&["replay", "--strict", &path], &[&format!("{path}:6"), "0xffff888001000080"]);
}

#[test]
fn options_out_of_range_are_refused_with_what_is_accepted() {
    refused(&["replay", "--cpus", "0"], &["--cpus 0", "1 to 1024"]);
    refused(&["replay", "--cpus", "1025"], &["--cpus 1025", "1 to 1024"]);
    refused(&["replay", "--nodes", "17"], &["--nodes 17", "1 to 16"]);
    refused(&["replay", "--cpus", "2", "--nodes", "4"], &["--nodes 4", "2 CPUs"]);
    refused(&["replay", "--snapshot-every", "0"], &["--snapshot-every 0"]);
    refused(&["replay", "--magazine", "big"], &["--magazine", "auto", "off"]);
    refused(&["replay", "--limit-memory", "lots"], &["--limit-memory", "K, M or G"]);
    refused(&["replay", "--limit-memory", "4096"], &["--limit-memory 4096", "more", ":"]);
    refused(&["replay", "--limit-memory", "1"], &["pages"]);
    refused(&["repaly"], &["repaly"]);
    refused(&["geometry", "0"], &["size 0"]);
    refused(&["geometry", "--cpus", "0"], &["--cpus 0"]);
    refused(&["geometry", "64", "--align", "3"], &["--align 3", "power of two"]);
    refused(&["geometry", "99999999"], &["99999999"]);
}

#[test]
fn a_report_is_written_wholly_or_not_at_all() {
    let folder = Folder::new();
    let trace = folder.file("trace", SMALL);
    // The trace named as the report by mistake.
    refused(&["replay", "--json", &trace], &[&trace, "not overwritten"]);
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), SMALL);
    refused(&["replay", &trace, "--json", "/no/such/folder/report.json"], &["/no/such/folder"]);
    let report = folder.0.path().join("report.json");
    let (code, out, _) = said(&uslab(&["replay", &trace, "--json", report.to_str().unwrap()]));
    assert_eq!(code, Some(0));
    assert!(out.contains("Conservation"), "the page is still printed");
    let read: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(read["events_total"], 3);
}

/// A device named as the report once was replaced by a file: `/dev/null` of the whole machine, for root.
#[test]
fn a_report_to_a_pipe_or_device_goes_into_it_and_does_not_replace_it() {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::new();
    let pipe = folder.0.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    let (code, _, err) = said(&uslab(&["geometry", "192", "--json", pipe.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{err}");
    assert!(pipe.metadata().unwrap().file_type().is_fifo(), "it is still a pipe");
    let read: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(read["rows"][0]["size"], 192);
}

#[test]
fn geometry_shows_layouts_and_compares_with_kernels() {
    let (code, out, _) = said(&uslab(&["geometry", "192", "--cpus", "4"]));
    assert_eq!(code, Some(0));
    assert!(
        out.lines().any(|l| l.split_whitespace().eq(["192", "192", "0", "1", "21", "64", "1.56"])),
        "{out}"
    );
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/files-6.1.end.slabinfo");
    let data = data.to_str().unwrap();
    let compare = |cpus: &str| {
        let output = uslab(&["geometry", "--against", data, "--cpus", cpus, "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, right) = compare("4");
    assert_eq!(
        (code, &right["rows"], right["mismatches"].as_array().unwrap().len()),
        (Some(0), &right["matched"], 0)
    );
    assert!(right["rows"].as_u64().unwrap() > 100);
    let (code, wrong) = compare("16");
    assert_eq!(code, Some(1), "a wrong CPU count does not match");
    assert!(!wrong["mismatches"].as_array().unwrap().is_empty());
    let folder = Folder::new();
    let damaged = folder.file("damaged", "slabinfo - version: 2.1\ndentry 1 2\n");
    refused(&["geometry", "--against", &damaged], &[&damaged, "line 2"]);
    let other = folder.file("other", "name\tsize\n");
    refused(&["geometry", "--against", &other], &[&other, "line 1"]);
}

#[test]
fn an_order_that_cannot_be_is_refused_and_not_cut_to_a_byte() {
    let folder = Folder::new();
    // 256 is 0 in a byte, and 0 would match.
    let table = folder.file("table", "name\tslab_size\torder\tobjs_per_slab\no\t192\t256\t21\n");
    refused(&["geometry", "--against", &table, "--cpus", "4"], &[&table, "line 2", "impossible order 256"]);
}

#[test]
fn a_table_that_never_ends_is_refused() {
    refused(&["geometry", "--against", "/dev/zero"], &["/dev/zero", "more than 16 MiB"]);
}

#[test]
fn a_cause_is_told_once() {
    let (_, _, err) = said(&uslab(&["replay", "/no/such/trace"]));
    assert_eq!(err.matches("No such file").count(), 1, "{err}");
}

#[test]
fn the_memory_in_the_report_is_what_the_machine_had() {
    let folder = Folder::new();
    let trace = folder.file("trace", SMALL);
    // More than page numbers reach: the machine is as large as it can be, and the report does not claim more.
    let report = replay_json(&[&trace, "--limit-memory", "1000000G"]);
    assert!(report["machine"]["memory_bytes"].as_u64().unwrap() < 1 << 44, "{}", report["machine"]);
    let report = replay_json(&[&trace, "--limit-memory", "64M"]);
    assert_eq!(report["machine"]["memory_bytes"], 64 << 20);
}

#[test]
fn help_teaches_each_verb() {
    for args in [&["--help"][..], &["replay", "--help"], &["geometry", "--help"]] {
        let (code, out, _) = said(&uslab(args));
        assert_eq!(code, Some(0));
        assert!(out.contains("--json") && out.contains("Usage"), "{out}");
    }
}

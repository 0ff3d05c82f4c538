//! Tests the command `uslab` as a separate process: its subcommands, JSON, errors and exit codes.

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use uslab_sim::trace::PageSize;
use uslab_tests::workspace;

use crate::common::{TraceCompression, synthetic_arm64};

pub(crate) fn uslab(args: &[&str]) -> Output {
    run_uslab_with_input(args, b"")
}

pub(crate) fn run_uslab_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(uslab_tests::uslab())
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program must start");
    // A program that exits before it has read everything breaks the pipe, which is allowed.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    child.wait_with_output().expect("the program must end")
}

pub(crate) fn exit_and_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Checks that `uslab` refuses the command: exit code 2, no standard output, and a message that contains all of
/// `parts`.
#[track_caller]
pub(crate) fn refused(args: &[&str], parts: &[&str]) {
    let (code, out, err) = exit_and_output(&uslab(args));
    assert_eq!(code, Some(2), "{args:?}: {err}");
    assert!(out.is_empty(), "{args:?} wrote {out}");
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?}: expected {part:?} in {err}");
    }
}

pub(crate) fn sample(name: &str) -> PathBuf {
    workspace().join("sim/data/samples").join(name)
}

/// A small trace: three pages, and an object that is allocated and freed.
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
        Self(tempfile::tempdir().expect("a temporary folder must be created"))
    }
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a temporary file must be created");
        path.to_str().expect("the path must be UTF-8").to_owned()
    }
}

pub(crate) fn replay_json(args: &[&str]) -> Value {
    let args: Vec<&str> = ["replay"].into_iter().chain(args.iter().copied()).chain(["--json", "-"]).collect();
    let (code, out, err) = exit_and_output(&uslab(&args));
    assert_eq!(code, Some(0), "{args:?}: {err}");
    serde_json::from_str(&out).expect("standard output must be only JSON")
}

#[test]
fn command_without_arguments_explains_the_bundled_trace() {
    let (code, out, err) = exit_and_output(&uslab(&[]));
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
    assert!(
        !out.contains("Simulated") && !out.contains("seed"),
        "the report must name the traced machine: {out}"
    );
    // The README shows the beginning of this output. A debug build checks frees, and commits memory for the checks.
    let shown =
        include_str!("../../README.md").split("```text\n").nth(1).and_then(|block| block.split("```").next());
    let shown: Vec<&str> = shown.expect("README.md must have a block of text").lines().collect();
    let differs = |(shown, printed): &(&&str, &str)| *shown != printed && !shown.starts_with("  commit ");
    assert!(shown.len() > 10);
    assert_eq!(shown.iter().zip(out.lines()).find(differs), None, "README.md must show the program's output");
}

#[test]
fn replay_of_the_bundled_trace_matches_its_kernel() {
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
fn replay_json_contains_all_documented_fields() {
    let report = replay_json(&[sample("ftrace-6.1.txt.zst").to_str().unwrap()]);
    for field in [
        "events",
        "not_understood",
        "caches",
        "pages",
        "conservation",
        "teardown",
        "events_per_second",
        "traced",
        "machine",
        "trace_health",
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
fn repeated_replays_of_a_trace_differ_only_in_times() {
    let path = sample("ftrace-6.12-tgid-hashed.txt.zst");
    let report = || {
        let mut report = replay_json(&[path.to_str().unwrap()]);
        let fields = report.as_object_mut().unwrap();
        fields.retain(|name, _| !name.ends_with("_seconds") && !name.contains("ns_per_"));
        fields.remove("events_per_second");
        fields["teardown"].as_object_mut().unwrap().remove("resident_bytes");
        report
    };
    assert_eq!(report(), report());
}

/// Regression test: a replay accepted and printed a seed, although a replay is not random.
#[test]
fn replay_refuses_the_seed_option() {
    refused(&["replay", "--seed", "7"], &["--seed"]);
    let path = sample("ftrace-6.1.txt.zst");
    let (_, out, _) = exit_and_output(&uslab(&["replay", path.to_str().unwrap()]));
    assert!(!out.contains("seed"), "{out}");
}

/// Regression test: the introduction of a table was printed without the table.
#[test]
fn all_option_shows_every_cache_of_the_bundled_trace() {
    let (code, out, err) = exit_and_output(&uslab(&["replay", "--all"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("the bundled trace: 721,538 events on 4 CPUs\n"), "{out}");
    assert!(
        out.contains("(86 of 86, the busiest first)") && out.contains("Compared with the kernel"),
        "{out}"
    );
    assert!(!out.contains("Where to go next"), "{out}");
}

/// Regression test: a simulated machine with 64 CPUs was reported as the real kernel's machine, and CPUs without events
/// were omitted without a note. The report also attributed frees on the allocating CPU to "another CPU".
#[test]
fn report_distinguishes_traced_simulated_and_used_cpus() {
    let introduction = |args: &[&str]| exit_and_output(&uslab(&[&["replay"][..], args].concat())).1;
    let out = introduction(&["--cpus", "64"]);
    assert!(out.contains("a real Linux kernel (6.1, 4 CPUs)"), "{out}");
    assert!(out.contains("Simulated: 64 CPUs, 1 node") && out.contains("4 CPUs used"), "{out}");
    let out = introduction(&["--cpus", "1"]);
    assert!(out.contains("a real Linux kernel (6.1, 4 CPUs)"), "{out}");
    assert!(out.contains("all CPUs of the trace run on this CPU"), "{out}");
    assert!(
        out.contains(" 0  frees came from another CPU than the allocation (6,592 on the traced"),
        "{out}"
    );
    let out = introduction(&["--nodes", "2"]);
    assert!(out.contains("of these frees came from another node: directly"), "{out}");
    assert!(!out.contains("took the same path"), "{out}");

    let path = sample("ftrace-6.1.txt.zst");
    let path = path.to_str().unwrap();
    let page = |args: &[&str]| exit_and_output(&uslab(&[&["replay", path][..], args].concat())).1;
    let second = |out: &str| out.lines().nth(1).unwrap_or_default().to_owned();
    let line = second(&page(&["--cpus", "1024", "--nodes", "16"]));
    assert!(line.starts_with("Simulated: 1,024 CPUs, 16 nodes, "), "{line}");
    assert!(line.ends_with("; 4 CPUs used; the others have no event; 1 node used"), "{line}");
    let line = second(&page(&["--cpus", "2"]));
    assert!(line.ends_with("; CPU n of the trace runs as CPU n modulo 2"), "{line}");
    let machines = |args: &[&str]| {
        let report = replay_json(&[&[path][..], args].concat());
        let number = |of: &str, field: &str| report[of][field].as_u64().unwrap();
        let objects = &report["objects"];
        assert_eq!(report["facts"]["objects"]["remote"], 208, "the number of the traced machine is constant");
        (
            [number("traced", "cpus"), number("traced", "cpus_used")],
            [number("machine", "cpus_used"), number("machine", "nodes_used")],
            [objects["remote_frees"].as_u64().unwrap(), objects["remote_node_frees"].as_u64().unwrap()],
        )
    };
    assert_eq!(machines(&["--cpus", "1"]), ([4, 4], [1, 1], [0, 0]));
    assert_eq!(machines(&["--cpus", "4"]), ([4, 4], [4, 1], [208, 0]));
    let (_, used, [remote, far]) = machines(&["--cpus", "4", "--nodes", "4"]);
    assert_eq!((used, remote), ([4, 4], far), "each CPU is a node");
}

/// Regression test: the time was divided by the number of all events, including events that do not call the allocator.
#[test]
fn time_per_operation_counts_only_replayed_operations() {
    let ignored = "\
            sh-70      [001] .....     1.000004: mm_page_pcpu_drain: page=0xffffea0000040000 pfn=0x1000 order=0 migratetype=0
            sh-70      [001] .....     1.000005: kfree: call_site=load+0x18/0x20 ptr=0000000000000000
";
    let folder = Folder::new();
    let trace = folder.file("trace", SMALL.replace("3/3", "5/5") + ignored);
    let report = replay_json(&[&trace]);
    assert_eq!((&report["events_total"], &report["operations"]), (&Value::from(5), &Value::from(3)));
    let number = |field: &str| report[field].as_f64().unwrap();
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.max(b);
    assert!(same(number("replay_ns_per_operation") * 3.0, number("replay_seconds") * 1e9), "{report}");
    assert!(same(number("read_ns_per_event") * 5.0, number("read_seconds") * 1e9), "{report}");
}

/// Regression test: the watermarks of the simulated zones did not include the pages that a kernel with huge pages keeps
/// free.
#[test]
fn minimum_watermark_includes_pages_reserved_for_huge_pages() {
    let trace = Folder::new();
    let trace = trace.file("trace", SMALL);
    let report = replay_json(&[&trace, "--limit-memory", "1G"]);
    // The zone has two pageblocks, and nine for the pairs of migrate types. The other formula gives 1024.
    assert_eq!(report["buddy"]["zones"][0]["watermarks"]["min"], 11 * 512);
}

/// Returns the lines of a report that precede its first table.
fn first_lines(args: &[&str], input: &str) -> Vec<String> {
    let (code, out, err) =
        exit_and_output(&run_uslab_with_input(&[&["replay"][..], args].concat(), input.as_bytes()));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
    out.lines().take_while(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Regression test: the defects of these traces were not reported, except a truncated line, which caused the whole
/// trace to be refused.
#[test]
fn report_begins_with_warnings_about_trace_defects() {
    let of = |name: &str| first_lines(&[sample(name).to_str().unwrap()], "")[2..].join("\n");
    assert_eq!(of("ftrace-6.1.txt.zst"), "");
    let overrun = of("ftrace-6.1-overrun.txt.zst");
    assert_eq!(
        overrun,
        "WARNING: the kernel's ring buffer was full: it overwrote the oldest 2,533 of 2,992 events"
    );
    for hashed in ["ftrace-6.12-tgid-hashed.txt.zst", "ftrace-6.18-hashed.txt.zst"] {
        let said = of(hashed);
        assert!(
            said.starts_with("WARNING: pointers are hashed: the replay cannot distinguish slab pages"),
            "{said}"
        );
    }
    // Its addresses were moved and no longer correspond to its page frame numbers.
    let moved = of("perf-script-6.18.txt.zst");
    assert!(moved.contains("the replay cannot distinguish slab pages"), "{moved}");

    let lines: Vec<&str> = SMALL.lines().collect();
    let short = lines[..lines.len() - 1].join("\n") + "\n";
    assert_eq!(
        first_lines(&["-"], &short)[2..],
        ["WARNING: the trace was truncated or filtered: it has 1 events fewer than its header states"]
    );
    let cut = &SMALL[..SMALL.len() - 60];
    let said = first_lines(&["-"], cut)[2..].join("\n");
    assert!(said.contains("WARNING: the last line (7) is truncated and was ignored: "), "{said}");
    assert!(said.contains("it has 1 events fewer than its header states"), "{said}");
    let open = first_lines(&["-"], SMALL.trim_end())[2..].join("\n");
    assert!(open.contains("WARNING: the last line has no line feed, so it may be truncated"), "{open}");

    let report = replay_json(&[sample("ftrace-6.1-overrun.txt.zst").to_str().unwrap()]);
    assert_eq!(report["trace_health"]["overwritten"], 2533);
    let report = replay_json(&[sample("ftrace-6.12-tgid-hashed.txt.zst").to_str().unwrap()]);
    assert_eq!(report["trace_health"]["direct_map"]["state"], "hashed");
    let report = replay_json(&[sample("ftrace-6.1.txt.zst").to_str().unwrap()]);
    assert_eq!(report["trace_health"]["direct_map"]["base"], 0xffff_8880_0000_0000_u64);
}

#[test]
fn simulated_machines_of_any_size_replay_all_events() {
    let path = sample("ftrace-6.1.txt.zst");
    let path = path.to_str().unwrap();
    for options in [
        &["--cpus", "1"][..],
        &["--cpus", "64", "--nodes", "4"],
        &["--cpus", "1024", "--nodes", "16"],
        &["--magazine", "off"],
        &["--magazine", "1"],
        &["--magazine", "64", "--snapshot-every", "100"],
        &["--limit-memory", "256M"],
    ] {
        let args: Vec<&str> = [path].into_iter().chain(options.iter().copied()).collect();
        let report = replay_json(&args);
        assert_eq!(report["conservation"]["violated"], 0, "{options:?}: {}", report["conservation"]);
        assert_eq!(report["objects"]["allocs"], 656, "{options:?}");
    }
}

#[test]
fn compressed_trace_is_read_from_standard_input() {
    for (name, events) in [("ftrace-6.1.txt.zst", 2987), ("perf-script-6.12.txt.zst", 3295)] {
        let bytes = std::fs::read(sample(name)).unwrap();
        let output = run_uslab_with_input(&["replay", "-", "--json", "-"], &bytes);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["events_total"], events, "{name}");
    }
    let (code, out, _) = exit_and_output(&run_uslab_with_input(&["replay", "-"], SMALL.as_bytes()));
    assert_eq!(code, Some(0));
    assert!(out.contains("3 events on 2 CPUs"), "{out}");
}

#[test]
fn replay_reports_events_lost_in_the_trace() {
    let report = replay_json(&[sample("ftrace-6.1-lost-trace_pipe.txt.zst").to_str().unwrap()]);
    assert_eq!(report["lost"], 2533);
    let (_, out, _) =
        exit_and_output(&uslab(&["replay", sample("ftrace-6.1-lost-trace_pipe.txt.zst").to_str().unwrap()]));
    assert!(out.contains("WARNING: the kernel lost 2,533 events"), "{out}");
}

/// Regression test: the subcommand after `--json` was mistaken for a file name, so another subcommand ran.
#[test]
fn json_option_may_precede_the_subcommand() {
    let is_a_verb = |arguments: &[&str], verb: &str| {
        refused(
            arguments,
            &[
                &format!("--json {verb}: expected a file name, but `{verb}` is a command"),
                &format!("./{verb} for a file"),
            ],
        );
    };
    is_a_verb(&["--json", "geometry"], "geometry");
    is_a_verb(&["sweep", "--json", "status", "depot.toml"], "status");
    is_a_verb(&["course", "--json", "answers"], "answers");
}

#[test]
fn subcommand_with_invalid_utf_8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    for arguments in [&[&b"trace-\xe9.txt"[..]][..], &[b"--json", b"\xff.json", b"nosuch"]] {
        let arguments = arguments.iter().map(|argument| std::ffi::OsStr::from_bytes(argument));
        let output = Command::new(uslab_tests::uslab()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{said}");
        assert!(said.contains("expected one of replay, watch"), "{said}");
    }
}

#[test]
fn error_message_names_the_file_that_is_not_a_trace() {
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
}

#[test]
fn truncated_compressed_trace_gives_a_single_line_error() {
    let folder = Folder::new();
    for packing in TraceCompression::ALL {
        let packed = packing.pack(SMALL.as_bytes());
        let whole = folder.file("whole", &packed);
        assert_eq!(replay_json(&[&whole])["events_total"], 3, "{packing:?}");
        let cut = folder.file("cut", &packed[..packed.len() - 5]);
        let mut bytes = packed.clone();
        bytes[packed.len() - 4..].iter_mut().for_each(|byte| *byte ^= 0x55);
        let damaged = folder.file("damaged", bytes);
        let wrong = format!("its {} data is damaged: ", packing.name());
        for (path, what) in [(&cut, "the compressed file is truncated"), (&damaged, &*wrong)] {
            refused(&["replay", path], &[path, what]);
            let (_, _, err) = exit_and_output(&uslab(&["replay", path]));
            assert_eq!(err.lines().count(), 1, "{err}");
        }
    }
}

#[test]
fn trace_error_names_the_line_of_an_impossible_value() {
    let folder = Folder::new();
    let order = folder.file("order", SMALL.replace("order=3", "order=11"));
    refused(&["replay", &order], &[&format!("{order}:7"), "10"]);
    let size = folder.file("size", SMALL.replace("bytes_alloc=64", "bytes_alloc=99999999999"));
    refused(&["replay", &size], &[&format!("{size}:5")]);
}

#[test]
fn page_size_of_a_trace_is_derived_from_addresses() {
    let folder = Folder::new();
    let packed = std::fs::read(sample("ftrace-6.1.txt.zst")).unwrap();
    let text = zstd::decode_all(&packed[..]).unwrap();
    let made = synthetic_arm64(&text, PageSize::Kib64, 0xffff_0000_0000_0000 - 0x4000_0000);
    let made = folder.file("synthetic-arm64-64k-of-ftrace-6.1.txt", made);
    let known = |args: &[&str]| {
        let report = replay_json(args);
        assert_eq!(report["conservation"]["violated"], 0, "{args:?}: {}", report["conservation"]);
        let health = &report["trace_health"];
        (health["page_size"].as_u64().unwrap(), health["page_size_source"].as_str().unwrap().to_owned())
    };
    assert_eq!(known(&[&made]), (65_536, "addresses".to_owned()));
    let second = first_lines(&[&made], "").remove(1);
    assert!(second.ends_with("; pages of 4 KiB instead of the trace's 64 KiB"), "{second}");
    let hashed = sample("ftrace-6.12-tgid-hashed.txt.zst");
    let hashed = hashed.to_str().unwrap();
    let unknown = "  The page size is also unknown: 4 KiB are assumed; --page-size sets it";
    assert_eq!(known(&[hashed]), (4096, "assumed".to_owned()));
    assert!(first_lines(&[hashed], "").iter().any(|line| line == unknown));
    assert_eq!(known(&[hashed, "--page-size", "64K"]), (65_536, "given".to_owned()));
    assert!(!first_lines(&[hashed, "--page-size", "64k"], "").iter().any(|line| line == unknown));
    // The kernel's table next to a trace also determines the page size.
    let trace = folder.file("trace", SMALL);
    assert_eq!(known(&[&trace]).1, "assumed");
    folder.file(
        "end.slabinfo",
        "slabinfo - version: 2.1\n\
         dentry 1 1 192 341 1 : tunables 0 0 0 : slabdata 1 1 0\n\
         inode_cache 1 1 608 215 2 : tunables 0 0 0 : slabdata 1 1 0\n",
    );
    assert_eq!(known(&[&trace]), (65_536, "slabinfo".to_owned()));

    refused(&["replay", "--page-size", "8k"], &["--page-size", "8k", "expected 4k, 16k or 64k"]);
    refused(&["replay", &made, "--design", "slub"], &[&made, "64 KiB", "4 KiB"]);
    // Larger pages have higher orders.
    let order = |order: u8| folder.file("order", SMALL.replace("order=3", &format!("order={order}")));
    for (most, size) in [(10, "4k"), (11, "16k"), (13, "64k")] {
        let path = order(most);
        assert_eq!(known(&[&path, "--page-size", size]).1, "given");
        let path = order(most + 1);
        refused(
            &["replay", &path, "--page-size", size],
            &[&format!("{path}:7"), &format!("impossible order={} (0 to {most} are accepted", most + 1)],
        );
    }
}

#[test]
fn call_site_counts_add_up_to_the_trace_totals() {
    let path = sample("ftrace-6.1.txt.zst");
    let path = path.to_str().unwrap();
    let report = replay_json(&[path, "--callers"]);
    let rows = |table: &str| report["callers"][table].as_array().unwrap();
    let sum = |table: &str, field: &str| -> u64 {
        rows(table).iter().map(|row| row[field].as_u64().unwrap()).sum()
    };
    let facts = &report["facts"];
    assert_eq!(sum("sites", "hits"), report["objects"]["allocs"]);
    assert_eq!(sum("sites", "ping_pong"), facts["objects"]["remote"]);
    assert_eq!(sum("sites", "bytes_req"), facts["bytes"][0]);
    assert_eq!(sum("sites", "bytes_alloc"), facts["bytes"][1]);
    assert_eq!(sum("lifetimes", "freed"), facts["objects"]["matched"]);
    assert_eq!(sum("lifetimes", "hidden_frees"), facts["objects"]["hidden_frees"]);
    assert_eq!(sum("lifetimes", "live"), report["objects"]["live"]);
    let first = &rows("sites")[0];
    for row in rows("lifetimes").iter().filter(|row| row["freed"] != 0) {
        for spread in [&row["microseconds"], &row["operations"]] {
            let [p50, p90, p99, max] =
                ["p50", "p90", "p99", "max"].map(|part| spread[part].as_f64().unwrap());
            assert!(p50 <= p90 && p90 <= p99 && p99 <= max, "{row}");
        }
        assert!(row["operations"]["p50"].as_f64() >= Some(1.0), "{row}");
    }
    // The numbers are the traced machine's, not the simulated one's.
    assert_eq!(replay_json(&[path, "--callers", "--cpus", "1"])["callers"], report["callers"]);
    assert!(replay_json(&[path])["callers"].is_null());

    let page = |args: &[&str]| exit_and_output(&uslab(&[&["replay"][..], args].concat())).1;
    let out = page(&[path, "--callers=3"]);
    let sites = format!("Call sites (3 of {}, the most bytes first)", rows("sites").len());
    assert!(out.contains(&sites) && out.contains("\nLifetimes (3 of "), "{out}");
    assert!(out.contains(first["call_site"].as_str().unwrap()), "{out}");
    assert!(!page(&[path]).contains("Call sites"));
    assert!(page(&["--callers"]).contains("\nCall sites (20 of "), "the bundled trace has facts, too");
    for wrong in ["0", "many", "-1"] {
        let option = format!("--callers={wrong}");
        refused(&["replay", &option], &["--callers", wrong, "expected a number of rows, at least 1"]);
    }
    refused(&["replay", "--callers", "--design", "slub"], &["--callers", "--design"]);
}

#[test]
fn malloc_trace_of_a_program_is_replayed_with_kmalloc() {
    let folder = Folder::new();
    // The text has two blocks of one class, one of 0 bytes, one of pages, one that malloc maps separately, and a free
    // of nothing.
    let text = "Alloc(552),\nAlloc(1000),\nAlloc(0),\nAlloc(20000),\nAlloc(5000000),\nFree(0),\nFree(0),\nFree(4),\nFree(3),\n";
    let trace = folder.file("program.trace", TraceCompression::Xz.pack(text.as_bytes()));
    let report = replay_json(&[&trace, "--callers", "--strict"]);
    assert_eq!((&report["events"]["Alloc"], &report["events"]["Free"]), (&5.into(), &4.into()));
    assert_eq!((&report["not_understood"], &report["conservation"]["violated"]), (&0.into(), &0.into()));
    let objects = &report["objects"];
    assert_eq!((&objects["allocs"], &objects["frees"], &objects["live"]), (&4.into(), &2.into(), &2.into()));
    let facts = &report["facts"];
    assert_eq!(
        (&facts["format"], &facts["zero_sizes"], &facts["too_large"]),
        (&"wee-alloc".into(), &1.into(), &1.into())
    );
    let caches = report["caches"].as_array().unwrap();
    let counts = |name: &str| {
        let cache = caches.iter().find(|cache| cache["name"] == name).unwrap();
        ["allocs", "frees", "used"].map(|field| cache[field].as_u64().unwrap())
    };
    assert_eq!((counts("kmalloc-1k"), counts("kmalloc-8")), ([2, 1, 1], [1, 0, 1]));
    assert_eq!(counts("kmalloc-large"), [1, 1, 0]);
    // The trace has no clock, so lifetimes are in operations.
    let lives = report["callers"]["lifetimes"].as_array().unwrap();
    let large = lives.iter().find(|row| row["cache"] == "kmalloc-large").unwrap();
    assert!(large["microseconds"].is_null());
    assert_eq!(large["operations"]["max"], 2.0);
    let (code, out, _) = exit_and_output(&uslab(&["replay", &trace]));
    assert_eq!(code, Some(0));
    assert!(out.contains("1 allocations requested 0 bytes, and got an object"), "{out}");
    assert!(out.contains("WARNING: 1 allocations above 4 MiB were omitted"), "{out}");
    // The block is larger than a design's machine has memory. Regression test: the design did not report the failure.
    let large = folder.file("large.trace", "Alloc(1048576),\n".repeat(1100));
    refused(&["replay", &large, "--design", "slub"], &["--design slub", "operations fail", "1024 MiB"]);
    // A line that is not an operation is reported, and a cut last line is omitted.
    let wrong = folder.file("wrong.trace", "Alloc(8),\nRealloc(0, 16),\nFree(0),\nAlloc(1");
    let lines = first_lines(&[&wrong], "").join("\n");
    assert!(
        lines.contains("1 lines were not understood") && lines.contains("line 2: Realloc(0, 16),"),
        "{lines}"
    );
    assert!(lines.contains("the last line (4) is truncated and was ignored: Alloc(1"), "{lines}");
}

#[test]
fn trace_generated_from_a_size_distribution_is_reproducible() {
    let folder = Folder::new();
    let trace = folder.file("Tcmalloc_0.csv", "16, 30, 1000\n200, 10, 3000\n0, 0.1, 1\n20000, 0.5, 40\n");
    let report = replay_json(&[&trace]);
    assert_eq!((&report["facts"]["format"], &report["not_understood"]), (&"fleetbench".into(), &0.into()));
    assert_eq!(report["conservation"]["violated"], 0);
    let objects = &report["objects"];
    // The rows' live blocks have 1,416,000 bytes in all.
    let blocks = 4041.0 * ((64 << 20) as f64 / 1_416_000.0);
    let (live, events) = (objects["live"].as_f64().unwrap(), report["events_total"].as_u64().unwrap());
    assert!((live / blocks - 1.0).abs() < 0.05, "{live}");
    assert_eq!(events, 1_000_000 + blocks as u64);
    let caches = |report: &Value| {
        let caches = report["caches"].as_array().unwrap();
        caches.iter().map(|cache| (cache["name"].to_string(), cache["allocs"].as_u64())).collect::<Vec<_>>()
    };
    assert_eq!(caches(&report), caches(&replay_json(&[&trace])));
    let first = first_lines(&[&trace], "").join("\n");
    assert!(first.contains("WARNING: the trace was generated from a distribution"), "{first}");
    let none = folder.file("none.csv", "8, 0, 1\n");
    refused(&["replay", &none], &[&none, "no event in 1 lines"]);
}

/// Regression test: operations of CPUs above the maximum were attributed to the last CPU without a note.
#[test]
fn trace_with_too_many_cpus_is_refused() {
    let trace = SMALL.replace("[001]", "[1500]");
    let (code, out, err) = exit_and_output(&run_uslab_with_input(&["replay", "-"], trace.as_bytes()));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("1501 CPUs; expected at most 1024") && err.contains("--cpus"), "{err}");
    let (code, _, err) =
        exit_and_output(&run_uslab_with_input(&["replay", "-", "--cpus", "1024"], trace.as_bytes()));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn strict_replay_stops_at_the_first_unknown_free() {
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
fn out_of_range_option_error_lists_accepted_values() {
    refused(&["replay", "--cpus", "0"], &["--cpus 0", "1 to 1024"]);
    refused(&["replay", "--cpus", "1025"], &["--cpus 1025", "1 to 1024"]);
    refused(&["replay", "--nodes", "17"], &["--nodes 17", "1 to 16"]);
    refused(&["replay", "--cpus", "2", "--nodes", "4"], &["--nodes 4", "at most 2, one node for each CPU"]);
    refused(&["replay", "--snapshot-every", "0"], &["--snapshot-every 0"]);
    refused(&["replay", "--magazine", "big"], &["--magazine", "auto", "off"]);
    // Regression test: a value larger than a magazine can hold was silently reduced.
    refused(&["replay", "--magazine", "65"], &["--magazine", "a number from 1 to 64"]);
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
fn failed_report_write_leaves_no_partial_file() {
    let folder = Folder::new();
    let trace = folder.file("trace", SMALL);
    // The trace, named as the report by mistake, is not overwritten.
    refused(&["replay", "--json", &trace], &[&trace, "not overwritten"]);
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), SMALL);
    refused(&["replay", &trace, "--json", "/no/such/folder/report.json"], &["/no/such/folder"]);
    let report = folder.0.path().join("report.json");
    let (code, out, _) = exit_and_output(&uslab(&["replay", &trace, "--json", report.to_str().unwrap()]));
    assert_eq!(code, Some(0));
    assert!(out.contains("Conservation"), "the page is still printed");
    let read: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(read["events_total"], 3);
}

/// Regression test: if the report was written to a device, a file replaced the device. When the command ran as root,
/// this replaced the machine's `/dev/null`.
#[test]
fn report_output_does_not_replace_a_device_file() {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::new();
    let pipe = folder.0.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    let (code, _, err) = exit_and_output(&uslab(&["geometry", "192", "--json", pipe.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{err}");
    assert!(pipe.metadata().unwrap().file_type().is_fifo(), "the file must still be a pipe");
    let read: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(read["rows"][0]["size"], 192);
}

/// Regression test: if the first event of a cache was a free, the replay used objects of 8 bytes for this cache.
#[test]
fn cache_seen_first_in_a_free_gets_its_size() {
    let folder = Folder::new();
    let line = |at: u32, event: &str| format!("    init-1 [000] ..... {at}.000000: {event}\n");
    let alloc = "kmem_cache_alloc: call_site=f+0x9/0x9 ptr=ffff888001001000 bytes_req=192 bytes_alloc=192 gfp_flags=GFP_KERNEL node=-1 accounted=false";
    let free = |at: &str| format!("kmem_cache_free: call_site=g+0x9/0x9 ptr=ffff888001{at} name=dentry");
    let trace = [line(1, &free("000000")), line(2, alloc), line(3, &free("001000"))].concat();
    let (_, out, err) = exit_and_output(&uslab(&["replay", &folder.file("t.txt", &trace), "--json"]));
    let report: Value = serde_json::from_str(&out).expect(&err);
    let caches = report["caches"].as_array().unwrap();
    let dentry = caches.iter().find(|cache| cache["name"] == "dentry").expect("the cache must have a row");
    assert_eq!(dentry["object_size"], 192, "{dentry}");
}

#[test]
fn geometry_command_compares_slab_layouts_with_kernels() {
    let (code, out, _) = exit_and_output(&uslab(&["geometry", "192", "--cpus", "4"]));
    assert_eq!(code, Some(0));
    assert!(
        out.lines().any(|l| l.split_whitespace().eq(["192", "192", "0", "1", "21", "64", "1.56"])),
        "{out}"
    );
    let data = workspace().join("sim/data/files-6.1.end.slabinfo");
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
    // An alias has the same numbers as the cache that it names, and is not counted.
    let row = |name: &str, link: &str| format!("{name}\t{link}\t192\t0\t21\n");
    let header = "name\tlink\tslab_size\torder\tobjs_per_slab\n";
    let aliases =
        [header.to_owned(), row(":0000192", "-"), row("dentry", ":0000192"), row("filp", ":0000192")];
    let attributes = folder.file("slab-attributes.tsv", aliases.concat());
    let output = uslab(&["geometry", "--against", &attributes, "--cpus", "4", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["rows"], &report["matched"]), (&1.into(), &1.into()), "{report}");
    let damaged = folder.file("damaged", "slabinfo - version: 2.1\ndentry 1 2\n");
    refused(&["geometry", "--against", &damaged], &[&damaged, "line 2"]);
    let other = folder.file("other", "name\tsize\n");
    refused(&["geometry", "--against", &other], &[&other, "line 1"]);
}

/// Regression test: padding for alignment was not included in the reported waste.
#[test]
fn reported_waste_includes_alignment_padding() {
    let rows = |args: &[&str]| -> Value {
        let (_, out, _) = exit_and_output(&uslab(&[&["geometry"][..], args, &["--json"]].concat()));
        serde_json::from_str::<Value>(&out).unwrap()["rows"][0].clone()
    };
    let row = rows(&["192", "--align", "8192"]);
    let number = |field: &str| row[field].as_u64().unwrap();
    let (objects, slab) = (number("objs_per_slab"), 4096 << number("order"));
    assert_eq!(number("slab_size"), 8192);
    assert_eq!((number("waste"), number("padding")), (slab - objects * 192, objects * 8000));
    assert!((row["waste_percent"].as_f64().unwrap() - 97.65625).abs() < 1e-9, "{row}");
    assert_eq!(rows(&["192", "--cpus", "4"])["padding"], 0);
}

#[test]
fn slab_order_above_255_is_refused() {
    let folder = Folder::new();
    // As a byte, 256 is 0, which would match.
    let table = folder.file("table", "name\tslab_size\torder\tobjs_per_slab\no\t192\t256\t21\n");
    refused(&["geometry", "--against", &table, "--cpus", "4"], &[&table, "line 2", "impossible order 256"]);
}

#[test]
fn endless_kernel_table_is_refused() {
    refused(&["geometry", "--against", "/dev/zero"], &["/dev/zero", "longer than 16 MiB"]);
}

#[test]
fn error_message_names_the_cause_only_once() {
    let (_, _, err) = exit_and_output(&uslab(&["replay", "/no/such/trace"]));
    assert_eq!(err.matches("No such file").count(), 1, "{err}");
}

#[test]
fn replay_report_shows_memory_of_the_simulated_machine() {
    let folder = Folder::new();
    let trace = folder.file("trace", SMALL);
    // The size exceeds what page frame numbers can address: the machine is as large as possible, and the report shows
    // that size.
    let report = replay_json(&[&trace, "--limit-memory", "1000000G"]);
    assert!(report["machine"]["memory_bytes"].as_u64().unwrap() < 1 << 44, "{}", report["machine"]);
    let report = replay_json(&[&trace, "--limit-memory", "64M"]);
    assert_eq!(report["machine"]["memory_bytes"], 64 << 20);
}

#[test]
fn error_for_an_unknown_profile_lists_accepted_formats() {
    let files = tempfile::tempdir().unwrap();
    for (name, content) in
        [("heap.txt", &b"Dear reader"[..]), ("heap.pb.gz", b"\x1f\x8b\x08\0"), ("app", b"\x7fELF\xff\xfe")]
    {
        let file = files.path().join(name);
        std::fs::write(&file, content).unwrap();
        refused(
            &["flame", &file.to_string_lossy()],
            &[&format!(
                "`{name}` is not a heap profile: expected one of pprof (`.pb.gz`) or folded stacks (`.folded`)"
            )],
        );
    }
    refused(&["flame", "/nowhere/heap.pb.gz"], &["cannot read `/nowhere/heap.pb.gz`: No such file"]);
    // Frames without names show the file and the offset.
    let file = files.path().join("heap.folded");
    std::fs::write(&file, "malloc-64;/nowhere/app+0x10 64\n").unwrap();
    let (code, out, err) = exit_and_output(&uslab(&["flame", &file.to_string_lossy()]));
    assert!(code == Some(0) && out.contains("malloc-64       /nowhere/app+0x10"), "{out}");
    assert!(
        err.starts_with("uslab: no function names from `/nowhere/app`: No such file")
            && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn help_text_explains_each_subcommand() {
    for args in [&["--help"][..], &["replay", "--help"], &["geometry", "--help"]] {
        let (code, out, _) = exit_and_output(&uslab(args));
        assert_eq!(code, Some(0));
        assert!(out.contains("--json") && out.contains("Usage"), "{out}");
    }
}

#[test]
fn uslab_binary_has_all_subcommands() {
    let (code, help, err) = exit_and_output(&uslab(&["help"]));
    assert_eq!(code, Some(0), "{err}");
    let verbs: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Other lines continue the description of a verb.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 18 && verbs.contains(&"lab") && verbs.contains(&"sweep"), "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let (code, help, err) = exit_and_output(&uslab(&[verb, "--help"]));
        assert_eq!(code, Some(0), "{verb}: {err}");
        assert_eq!(help, exit_and_output(&uslab(&["help", verb])).1, "{verb}");
        // Verbs that take no argument but need one name it.
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{verb}: wider than 100 columns: {wide:?}");
    }
}

#[test]
fn mistyped_subcommand_error_suggests_the_correct_one() {
    for (wrong, right) in [("repaly", "replay"), ("slab", "slabs"), ("geomtry", "geometry"), ("labs", "lab")]
    {
        let (code, out, err) = exit_and_output(&uslab(&[wrong]));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{wrong}: {err}");
        assert!(err.contains(wrong) && err.contains(&format!("'{right}'")), "{wrong}: {err}");
    }
}

#[test]
fn lab_options_may_precede_the_experiment() {
    let race = |args: &[&str]| exit_and_output(&uslab(args));
    let (code, out, err) = race(&["lab", "--exact", "--quick", "robson", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, race(&["--json", "-", "lab", "robson", "--quick", "--exact"]).1);
    assert_eq!(race(&["lab", "--help"]).0, Some(0));
    assert!(race(&["lab"]).1.lines().any(|line| line.starts_with("robson ")));
}

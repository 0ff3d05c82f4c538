//! Tests `uslab stress`: quick runs with both mechanisms, with and without faults. Also checks that `uslab stress`
//! finds planted errors.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab::Gfp;
use uslab::faults::POINTS;
use uslab_magazine::sync::Counter;
use uslab_sim::output::Progress;
use uslab_sim::stress::{FreedObjectHook, Options, Report, Workload, run};

fn uslab(args: &[&str]) -> Command {
    let mut command = Command::new(uslab_tests::uslab());
    command.arg("stress").args(args).env("NO_COLOR", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn exit_and_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(args: &[&str], rseq: Option<&str>) -> Value {
    let mut command = uslab(args);
    command.arg("--json");
    if let Some(rseq) = rseq {
        command.env("USLAB_RSEQ", rseq);
    }
    let (code, out, err) = exit_and_output(&command.output().expect("the program must run"));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}: {out}");
    serde_json::from_str(&out).expect("standard output must be only JSON")
}

const FAULTS: &str = "slab:probability=20;page:probability=10;magazine:interval=2;commit:interval=3;\
                      decommit:probability=50;constructor:probability=1;limit:interval=100;bitmap:interval=2";

#[test]
fn quick_stress_runs_find_no_violation() {
    let (mut operations, mut violations) = (0, 0);
    for rseq in [None, Some("off")] {
        for faults in [None, Some(FAULTS)] {
            let mut args = vec!["--ops", "1500000", "--seconds", "60", "--seed", "7", "--threads", "12"];
            args.extend(faults.iter().flat_map(|rules| ["--faults", rules]));
            let report = json(&args, rseq);
            operations += report["operations"].as_u64().unwrap();
            violations += report["violations"].as_array().unwrap().len();
            assert_eq!(report["rounds"].as_array().unwrap().len(), 8);
            assert_eq!(report["workloads"].as_array().unwrap().len(), Workload::ALL.len());
            assert!(report["threads_started"].as_u64().unwrap() > 12, "new threads must replace ended ones");
            assert!(
                ["cpu", "depot", "slab", "pages", "commit"]
                    .iter()
                    .all(|p| report["paths"][p].as_u64() > Some(0))
            );
            assert_eq!((&report["end"]["objects"], &report["end"]["slabs"]), (&0.into(), &0.into()));
            if rseq.is_some() {
                assert_eq!((&report["mechanism"], &report["aborts"]), (&"claimed slot".into(), &0.into()));
            }
            let points = report["fault_points"].as_array().unwrap();
            // Addresses are reserved before faults are armed, and only chance decides if a whole block can be
            // decommitted.
            let sure = POINTS.iter().filter(|point| !["reserve", "decommit"].contains(&point.name));
            for point in sure.filter(|_| faults.is_some()) {
                let fired = points.iter().any(|p| p["point"] == point.name && p["fired"].as_u64() > Some(0));
                assert!(fired, "{}: {points:?}", point.name);
            }
            assert!(faults.is_some() || points.iter().all(|point| point["fired"] == 0), "{points:?}");
        }
    }
    // The line bypasses libtest's capture, because the runner of all tests reads it.
    let line = format!("stress: {operations} operations, {violations} violations\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Returns the report of a stress run in which the function `harm` misuses an object of the cache `cache` after some
/// frees.
fn run_with_misuse(cache: &'static str, harm: fn(&uslab::KmemCache, std::ptr::NonNull<u8>)) -> Report {
    let frees = Counter::new(0);
    let saboteur: FreedObjectHook = Arc::new(move |freed_to, object| {
        if freed_to.name() == cache {
            frees.add(1);
            if frees.get().is_multiple_of(500) {
                harm(freed_to, object);
            }
        }
        false
    });
    let options = Options {
        seconds: Some(16.0),
        threads: Some(4),
        seed: 11,
        workloads: vec![Workload::Churn, Workload::Exchange, Workload::Burst],
        saboteur: Some(saboteur),
        ..Options::default()
    };
    run(&options, &Progress::new()).expect("the program must run")
}

/// Checks that the report contains an expected violation, the object's history, the last operations of a thread, and
/// the seed.
#[track_caller]
fn check_report(report: &Report, whats: &[&str]) {
    let page = report.page();
    assert!(report.violated() && report.end.is_none(), "{page}");
    assert!(whats.iter().any(|what| report.violations[0].what.contains(what)), "{page}");
    for part in ["VIOLATION at", "seed 11", "violation"] {
        assert!(page.contains(part), "expected {part:?} in {page}");
    }
}

#[test]
fn stress_reports_double_free_with_the_object_history() {
    // SAFETY: unsound on purpose: the object was freed before, and the run must find the second free. The object's
    // memory stays mapped.
    let report = run_with_misuse("built-64", |cache, object| unsafe { cache.free(object) });
    check_report(
        &report,
        &["a free object was written to", "an object in use was overwritten", "double free"],
    );
    let page = report.page();
    assert!(page.contains("history of the object:") && page.contains("last operations of thread"), "{page}");
    let story = &report.violations[0];
    assert!(story.history.iter().any(|line| line.contains("free  ")), "{page}");
    assert!(story.last.iter().all(|(_, lines)| lines.len() > 10), "{page}");
}

#[test]
fn stress_detects_a_write_after_free() {
    // SAFETY: unsound on purpose: the object is free or has another owner, and the run must find the write. The
    // object's memory stays mapped, because no page is returned to the system under these workloads.
    let report = run_with_misuse("magazine-3", |_, object| unsafe { object.add(90).write_volatile(1) });
    check_report(
        &report,
        &["magazine-3: byte 90 of a free object was written to", "of an object in use was overwritten"],
    );
    assert!(report.violations[0].history.iter().any(|line| line.contains("alloc  ")), "{}", report.page());
}

#[test]
fn stress_census_reports_a_leaked_object() {
    let report = run_with_misuse("raw-64", |cache, _| _ = cache.alloc(Gfp::KERNEL));
    check_report(&report, &["objects: threads hold"]);
    let story = &report.violations[0];
    assert!(story.what.starts_with("census of round 1: cache raw-64: "), "{}", report.page());
    assert!(story.what.contains("no thread holds 0x") && story.object, "{}", report.page());
    // The object's last operations may be too old to be recorded; in that case the report says so.
    assert!(report.page().contains("history of the object:"), "{}", report.page());
}

#[test]
fn stress_violation_exits_with_status_1() {
    let args = ["--ops", "200000", "--seconds", "60", "--seed", "5", "--threads", "4", "--leak", "raw-64"];
    let (code, out, err) = exit_and_output(&uslab(&args).output().expect("the program must run"));
    assert_eq!((code, err.as_str()), (Some(1), ""), "{out}");
    for part in ["VIOLATION at", "census of round 1", "seed 5"] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
    // Regression test: the report named neither the cache nor the object, and had no history.
    let what = out.split_once("census of round 1: ").unwrap().1.lines().next().unwrap();
    let (cache, object) = what.split_once("; no thread holds ").unwrap_or_else(|| panic!("{out}"));
    assert!(cache.starts_with("cache raw-64: objects: threads hold "), "{out}");
    let history = out.split_once("history of the object:").unwrap_or_else(|| panic!("{out}")).1;
    let freed = |line: &str| line.contains("free   ") && line.contains(object);
    assert!(object.starts_with("0x") && history.lines().any(freed), "{object}: {out}");
    assert!(out.contains("last operations of thread"), "{out}");
    let (code, out, _) =
        exit_and_output(&uslab(&[&args[..], &["--json"]].concat()).output().expect("the program must run"));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, report["violations"].as_array().map(Vec::is_empty)), (Some(1), Some(false)));
}

#[test]
fn interrupted_stress_ends_with_a_census() {
    let child =
        uslab(&["--seconds", "600", "--threads", "4", "--json"]).spawn().expect("the program must start");
    let id = nix::unistd::Pid::from_raw(child.id().try_into().expect("the pid must fit"));
    let (begun, tasks) = (Instant::now(), format!("/proc/{id}/task"));
    // The command starts its threads after it has installed its signal handler.
    while std::fs::read_dir(&tasks).map_or(0, Iterator::count) < 4
        && begun.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).expect("the child must run");
    let (code, out, err) = exit_and_output(&child.wait_with_output().expect("the program must end"));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["interrupted"], true);
    assert!(report["seconds"].as_f64() < Some(500.0), "{out}");
    assert_eq!((&report["end"]["objects"], report["rounds"].as_array().unwrap().len()), (&0.into(), 1));
}

#[test]
fn stress_text_report_shows_the_result() {
    let args = [
        "--ops",
        "100000",
        "--seed",
        "3",
        "--threads",
        "3",
        "--workload",
        "sizes,fork",
        "--faults",
        "any:nth=5",
    ];
    let (code, out, err) = exit_and_output(&uslab(&args).output().expect("the program must run"));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for part in [
        "seed 3",
        "3 concurrent threads",
        "Faults: any:nth=5",
        "in each of 8 comparisons",
        "0 objects, 0 slabs",
    ] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
    assert!(out.contains("\nfork ") && out.contains("\nsizes ") && !out.contains("\nchurn "), "{out}");
    assert!(out.ends_with("\n0 violations\n"), "{out}");
}

#[test]
fn invalid_stress_option_error_lists_accepted_values() {
    let cases: [(&[&str], &str); 9] = [
        // Regression test: such arguments were accepted; nothing leaked, so no leak was missed.
        (&["--leak", "nosuch"], "--leak nosuch: no such cache; expected one of word, raw-64, "),
        (
            &["--leak", "raw-64", "--workload", "fork", "--ops", "2000", "--seconds", "30"],
            "--leak raw-64: no object was freed to this cache, so no object was leaked",
        ),
        (&["--threads", "0"], "--threads 0: expected 1 to 4096"),
        (&["--threads", "5000"], "--threads 5000: expected 1 to 4096"),
        (&["--seconds", "0"], "--seconds 0: expected more than 0, at most 2592000"),
        (&["--seconds", "nan"], "--seconds NaN: expected more than 0"),
        (&["--workload", "chrun"], "churn"),
        (&["--faults", "slob:nth=1"], "`slob`: expected a fault point: any, reserve, commit,"),
        (&["--faults", "slab:nth=x"], "`nth=x`: expected a whole number, at least 1"),
    ];
    for (args, part) in cases {
        let (code, out, err) = exit_and_output(&uslab(args).output().expect("the program must run"));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}");
        assert!(err.contains(part) && !err.contains("panicked"), "{args:?}: expected {part:?} in {err}");
    }
}

#[test]
fn stress_help_lists_each_fault_point() {
    let (code, out, _) = exit_and_output(&uslab(&["--help"]).output().expect("the program must run"));
    assert_eq!(code, Some(0));
    for point in POINTS {
        assert!(out.contains(point.name) && out.contains(point.what), "{} in {out}", point.name);
    }
}

#[test]
fn three_stress_shards_cover_the_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let runs = |ops: &str, more: &[&str]| {
        let args = [&["--seed", "7", "--runs", "5", "--threads", "4", "--ops", ops][..], more].concat();
        let (code, out, err) = exit_and_output(&uslab(&args).output().unwrap());
        assert_eq!(code, Some(0), "{args:?}: {out}{err}");
        out
    };
    let seeds = |text: &str| text.lines().filter(|line| line.starts_with("seed ")).count();
    let shares = ["0/3", "1/3", "2/3"].map(|share| {
        let rows = file(&share.replace('/', "-"));
        let said = runs("20000", &["--shard", share, "--rows", &rows]);
        assert!(seeds(&said) < 5, "{said}");
        rows
    });
    let whole: Value = serde_json::from_str(&runs("20000", &["--json"])).unwrap();
    let merge = |files: &[&str]| {
        let args = [&["--merge"], files, &["--json"]].concat();
        let (code, out, err) = exit_and_output(&uslab(&args).output().unwrap());
        (code, serde_json::from_str::<Value>(&out).ok(), err)
    };
    let [a, b, c] = shares.each_ref().map(String::as_str);
    let (code, merged, err) = merge(&[c, a, b]);
    assert_eq!(code, Some(0), "{err}");
    let seeds_of = |runs: &Value| {
        runs["runs"].as_array().unwrap().iter().map(|ran| ran["seed"].clone()).collect::<Vec<_>>()
    };
    let merged = merged.unwrap();
    assert_eq!((seeds_of(&merged), &merged["of"]), (seeds_of(&whole), &whole["of"]));
    assert!(merged["runs"].as_array().unwrap().iter().all(|ran| ran["operations"].as_u64() >= Some(20000)));

    let refused = |files: &[&str], part: &str| {
        let (code, _, err) = merge(files);
        assert!(code == Some(2) && err.contains(part), "{code:?} {err}");
    };
    refused(&[a, c], "share 1/3 of stress is missing");
    refused(&[a, b, c, b], "share 1/3 is given twice");
    // Without `--shard` the file has all rows.
    let all = file("all");
    runs("10000", &["--rows", &all]);
    assert!(merge(&[&all]).1.unwrap()["runs"].as_array().unwrap().len() == 5);
    let other = file("other");
    runs("10000", &["--shard", "1/3", "--rows", &other]);
    refused(&[a, &other, c], "expected files of one run and one build");
}

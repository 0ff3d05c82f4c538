//! Compares shrinks of single caches in real, booted kernels with predictions by `uslab slabs` from the tables before
//! the shrink; also tests a leak.
//!
//! The program `holes.c` makes holes in the slabs of several caches and shrinks ten of them; the kernel's tables are
//! read immediately before each shrink. The folder `shrinks` contains the tables of three kernels;
//! [`booted_kernel_shrinks_within_bounds`] can record them again.

use crate::cli::{exit_and_output, uslab};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use uslab_tests::workspace;

const SHRINK_COUNT: usize = 10;

fn shown(path: &Path) -> &str {
    path.to_str().expect("the path must be UTF-8")
}

/// One shrink of a cache: the number of slabs that the kernel returned, and the predicted numbers.
#[derive(Debug)]
struct Shrink {
    cache: String,
    slabs: u64,
    least: u64,
    most: u64,
    /// The number that the model of the traced kernel predicts, if there is a trace.
    by_trace: Option<u64>,
    returned: i64,
    /// The size of one slab in bytes.
    bytes: u64,
}

impl Shrink {
    /// Reads the tables before and after a shrink from the folder of a recording.
    fn read(folder: &Path, number: &str, cache: &str, trace: Option<&Path>) -> Self {
        let report = |moment: &str, trace: Option<&Path>| -> Value {
            let place = folder.join(format!("shrink-{number}-{moment}"));
            let mut args = vec!["slabs", shown(&place), "--json", "-"];
            args.extend(trace.iter().flat_map(|trace| ["--trace", shown(trace)]));
            let (code, out, err) = exit_and_output(&uslab(&args));
            assert_eq!(code, Some(0), "{args:?}: {err}");
            serde_json::from_str(&out).expect("JSON")
        };
        let row = |report: &Value| -> Value {
            let is_named = |name: &Value| name == cache;
            let rows = report["caches"].as_array().expect("caches");
            let row = rows.iter().find(|row| {
                is_named(&row["name"])
                    || row["aliases"].as_array().is_some_and(|all| all.iter().any(is_named))
            });
            row.unwrap_or_else(|| panic!("no row of {cache}")).clone()
        };
        let (before, after) = (row(&report("before", trace)), row(&report("after", None)));
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {before}"));
        let slabs = number(&before["slabs"]);
        Self {
            cache: cache.to_owned(),
            slabs,
            least: number(&before["shrink_slabs"]["least"]),
            most: number(&before["shrink_slabs"]["most"]),
            by_trace: before["shrink_slabs_by_trace"].as_u64(),
            returned: slabs as i64 - number(&after["slabs"]) as i64,
            bytes: number(&before["bytes"]) / slabs.max(1),
        }
    }

    /// Reads all shrinks of a recording.
    fn all(folder: &Path, trace: Option<&Path>) -> Vec<Self> {
        let list = fs::read_to_string(folder.join("shrinks.txt")).expect("shrinks.txt");
        let shrinks = list.lines().filter_map(|line| line.split_once(' '));
        shrinks.map(|(number, cache)| Self::read(folder, number, cache, trace)).collect()
    }
}

fn table(title: &str, shrinks: &[Shrink]) -> String {
    let mut text = format!("{title}: cache, slabs: predicted, by the trace, returned\n");
    for shrink in shrinks {
        let Shrink { cache, slabs, least, most, by_trace, returned, bytes } = shrink;
        let by_trace = by_trace.map_or("-".to_owned(), |slabs| slabs.to_string());
        let _ = writeln!(
            text,
            "{cache} {slabs} slabs of {bytes} bytes: {least} to {most}, {by_trace}, {returned}"
        );
    }
    text
}

fn check_bounds(title: &str, shrinks: &[Shrink]) {
    assert_eq!(shrinks.len(), SHRINK_COUNT, "{title}");
    println!("{}", table(title, shrinks));
    for shrink in shrinks {
        let bounds = shrink.least as i64..=shrink.most as i64;
        assert!(bounds.contains(&shrink.returned), "{title}: {shrink:?}");
    }
}

/// Splits a text into files; each file begins with a line `== NAME`.
fn unpack(packed: &[u8], folder: &Path) {
    let text = zstd::decode_all(packed).expect("zstd");
    let text = String::from_utf8(text).expect("UTF-8");
    for file in text.split("== ").skip(1) {
        let (name, text) = file.split_once('\n').expect("a name");
        fs::write(folder.join(name), text).expect("a file");
    }
}

/// Packs the tables of a recording's shrinks in the form that [`unpack`] reads.
fn pack(folder: &Path) -> Vec<u8> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    let others = ["shrinks.txt", "before.zoneinfo", "kernel.txt", "slab-attributes.tsv"];
    let mut text = String::new();
    for name in names.iter().filter(|name| name.starts_with("shrink-") || others.contains(&name.as_str())) {
        let file = fs::read_to_string(folder.join(name)).expect("a table");
        let _ = write!(text, "== {name}\n{file}");
    }
    zstd::encode_all(text.as_bytes(), 19).expect("zstd")
}

/// In three kernels, each of ten shrinks must have returned a number of slabs within the bounds computed from the
/// tables before it.
#[test]
fn slabs_returned_by_shrinks_of_booted_kernels_are_within_bounds() {
    let mut kernels = 0;
    for entry in fs::read_dir(workspace().join("tests/sim/shrinks")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let folder = tempfile::tempdir().expect("a folder");
        unpack(&fs::read(&path).expect("a file"), folder.path());
        check_bounds(&path.display().to_string(), &Shrink::all(folder.path(), None));
        kernels += 1;
    }
    assert_eq!(kernels, 3);
}

/// Compiles the workload program, which uses no libraries.
fn compile_workload(folder: &Path) -> std::path::PathBuf {
    let program = folder.join("holes");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-static", "-o"]).arg(&program).arg(workspace().join("tests/sim/holes.c"));
    assert!(cc.status().expect("cc must start").success());
    program
}

/// Records the workload in the kernel that `USLAB_KERNEL` names; this needs qemu and a static busybox.
fn record(folder: &Path, arguments: &[&str]) -> std::path::PathBuf {
    let kernel =
        std::env::var("USLAB_KERNEL").expect("USLAB_KERNEL: a vmlinuz, or the folder of an unpacked package");
    let (program, out) = (compile_workload(folder), folder.join("recording"));
    let args = ["record", "--out", shown(&out), "--qemu", &kernel, "--workload", shown(&program), "--"];
    let (code, said, err) = exit_and_output(&uslab(&[&args[..], arguments].concat()));
    assert_eq!(code, Some(0), "{err}");
    assert!(said.contains(" 0 lost"), "{said}");
    out
}

/// The trace shows each slab, so the model's total over ten shrinks must be within 5 % of the kernel's total. With
/// `USLAB_SHRINKS=FILE`, the test writes the tables for the folder `shrinks`.
#[test]
#[ignore = "boots a kernel"]
fn booted_kernel_shrinks_within_bounds() {
    let place = tempfile::tempdir().expect("a folder");
    let out = record(place.path(), &["holes"]);
    if let Some(file) = std::env::var_os("USLAB_SHRINKS") {
        fs::write(file, pack(&out)).expect("a file");
    }
    let shrinks = Shrink::all(&out, Some(&out.join("trace.txt.zst")));
    check_bounds("shrinks", &shrinks);
    let sum = |of: &dyn Fn(&Shrink) -> f64| {
        shrinks.iter().map(|shrink| of(shrink) * shrink.bytes as f64).sum::<f64>()
    };
    let (by_trace, returned) =
        (sum(&|shrink| shrink.by_trace.unwrap_or(0) as f64), sum(&|shrink| shrink.returned as f64));
    assert!(
        (by_trace - returned).abs() <= returned * 0.05,
        "{by_trace} bytes by the trace, {returned} returned"
    );
}

/// Checks that the report on a trace begins with the queues that the workload left allocated, and names no other call
/// site as a leak.
fn check_leak(trace: &Path) {
    let (code, report, err) = exit_and_output(&uslab(&["replay", shown(trace), "--callers=5"]));
    assert_eq!(code, Some(0), "{err}");
    let lines = report.lines().skip_while(|line| *line != "Possible leaks, by call site").skip(1);
    let verdicts: Vec<_> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    assert!(verdicts[0].starts_with("newque+0x"), "{report}");
    assert!(verdicts[0].contains("250 of its 250 allocations were not freed"), "{report}");
    assert!(verdicts[1].starts_with("Objects that live longer than this workload"), "{report}");
}

/// The test uses only the part of a recording that shows the workload, and omits page events.
#[test]
fn leaking_call_site_of_a_recorded_workload_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    unpack(include_bytes!("leak-6.1.txt.zst"), folder.path());
    check_leak(&folder.path().join("trace.txt"));
}

/// If a workload leaves message queues allocated, the report names the call site that created them.
#[test]
#[ignore = "boots a kernel"]
fn leak_of_a_booted_kernel_is_named_by_its_call_site() {
    let place = tempfile::tempdir().expect("a folder");
    check_leak(&record(place.path(), &["holes", "leak"]).join("trace.txt.zst"));
}

//! Tests `uslab replay --callers`, which shows leaks by call site, process and control group, and objects that keep
//! slabs partial.

use crate::cli::{exit_and_output, refused, replay_json, uslab};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Returns the address of object number `object`; the objects are 64 bytes apart.
fn address(object: u64) -> u64 {
    0xffff_8880_0100_0000 + object * 64
}

fn alloc(us: u64, name: &str, site: &str, object: u64) -> String {
    format!(
        "  sh-1 [000] ..... 1.{us:06}: kmem_cache_alloc: call_site={site} ptr={:016x} name={name} bytes_req=64 bytes_alloc=64 \
         gfp_flags=GFP_KERNEL node=-1 accounted=false\n",
        address(object)
    )
}

fn free(us: u64, name: &str, object: u64) -> String {
    let ptr = address(object);
    format!("  sh-1 [000] ..... 1.{us:06}: kmem_cache_free: call_site=f+0x1/0x2 ptr={ptr:016x} name={name}\n")
}

fn mark(us: u64, text: &str) -> String {
    format!("  sh-1 [000] ..... 1.{us:06}: tracing_mark_write: {text}\n")
}

/// Makes a recording in which the caches `node` and `entry` allocate 400 objects each during the workload, and no event
/// frees them. At the end of the recording, the kernel's tables count `in_use` more objects of `node`, and all 400
/// objects of `entry`.
fn recording(folder: &Path, in_use: Option<u64>) -> String {
    let table = |node: u64, entry: u64| {
        let row = |name: &str, active: u64| {
            format!("{name} {active} 640 64 64 1 : tunables 0 0 0 : slabdata 10 10 0\n")
        };
        format!("slabinfo - version: 2.1\n# name\n{}{}", row("node", 10 + node), row("entry", 20 + entry))
    };
    let mut text = mark(10, "SNAP before begin") + &mark(20, "WORKLOAD begin");
    for object in 0..400 {
        text += &alloc(1000 + object * 10, "node", "mas_alloc_nodes+0x1/0x9", object);
        text += &alloc(1005 + object * 10, "entry", "newque+0x2e/0x190", 1000 + object);
    }
    text += &mark(6000, "WORKLOAD end");
    text += &mark(6010, "SNAP end begin");
    let trace = folder.join("trace.txt");
    std::fs::write(&trace, text).unwrap();
    if let Some(in_use) = in_use {
        std::fs::write(folder.join("before.slabinfo"), table(0, 0)).unwrap();
        std::fs::write(folder.join("end.slabinfo"), table(in_use, 400)).unwrap();
    }
    trace.to_str().unwrap().to_owned()
}

fn leak_guesses(trace: &str) -> Vec<(String, String)> {
    let report = replay_json(&[trace, "--callers"]);
    let sites = report["callers"]["live"]["sites"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut sites: Vec<_> =
        sites.iter().map(|site| (text(&site["cache"]), text(&site["looks_like"]))).collect();
    sites.sort();
    sites
}

/// Regression test: objects of `maple_node`, which `kfree_rcu` frees without an event, were reported as leaks.
#[test]
fn kernel_tables_can_refute_a_suspected_leak() {
    let folder = tempfile::tempdir().unwrap();
    let expect =
        |node: &str| [("entry", "growing"), ("node", node)].map(|(a, b)| (a.to_owned(), b.to_owned()));
    let trace = recording(folder.path(), Some(12));
    assert_eq!(leak_guesses(&trace), expect("freed-unseen"));
    let report = replay_json(&[&trace, "--callers"]);
    let sites = report["callers"]["live"]["sites"].as_array().unwrap();
    let node = sites.iter().find(|site| site["cache"] == "node").unwrap();
    assert_eq!((&node["unseen_frees"], &node["kernel_change"]), (&json!(388), &json!(12)));
    let (code, out, err) = exit_and_output(&uslab(&["replay", &trace, "--callers"]));
    assert_eq!(code, Some(0), "{err}");
    // Regression test: some 70 lines about caches and pages came before the leaks.
    assert_eq!(out.lines().position(|line| line == "Possible leaks, by call site"), Some(3), "{out}");
    for other in ["--all", "--sort=name"] {
        refused(&["replay", &trace, "--callers", other], &["--callers", other.split('=').next().unwrap()]);
    }
    let at = |part: &str| out.find(part).unwrap_or_else(|| panic!("expected {part:?} in {out}"));
    assert!(
        at("Possible leaks, by call site") < at("Still live at the end")
            && at("Still live at the end") < at("Call sites ("),
        "{out}"
    );
    at(
        "newque+0x2e/0x190 keeps 25 KiB of entry: 400 of its 400 allocations were not freed. These include allocations from each quarter of the workload.",
    );
    at("According to the kernel's tables, entry has 400 more objects in use.");
    // Regression test: the row did not show how many of its objects were no longer there.
    at("  up to 388 of them freed without an event\n");
    at(
        "mas_alloc_nodes+0x1/0x9 is no leak in this trace: 400 of its objects of node have no free in the trace, but according to the kernel's tables, the cache \
        has 12 more in use, so 388 were freed without an event",
    );
    // With tables that agree, and without tables.
    let folder = tempfile::tempdir().unwrap();
    let trace = recording(folder.path(), Some(395));
    assert_eq!(leak_guesses(&trace), expect("growing"));
    let (_, out, _) = exit_and_output(&uslab(&["replay", &trace, "--callers"]));
    assert!(out.contains("grows: a leak, or a cache; up to 5 of them freed without an event\n"), "{out}");
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(leak_guesses(&recording(folder.path(), None)), expect("growing"));
}

/// Regression test: if a leak began after the first quarter of the trace, the report stated that no site leaks.
#[test]
fn leak_beginning_after_the_first_quarter_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.txt");
    let mut text = mark(20, "WORKLOAD begin");
    for object in 0..400 {
        text += &alloc(1000 + object * 10, "entry", "tidy+0x2e/0x190", 3000);
        text += &free(1006 + object * 10, "entry", 3000);
        if object > 60 {
            text += &alloc(1008 + object * 10, "entry", "newque+0x2e/0x190", 1000 + object);
        }
        // Half of these are freed, and the workload may free the others.
        if object > 200 {
            text += &alloc(1009 + object * 10, "node", "busy+0x2e/0x190", 4000 + object);
            if object % 2 == 0 {
                text += &free(1009 + object * 10, "node", 4000 + object);
            }
        }
    }
    std::fs::write(&trace, text + &mark(5000, "WORKLOAD end")).unwrap();
    let trace = trace.to_str().unwrap();
    let expect = [("entry", "growing"), ("node", "mixed")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(leak_guesses(trace), expect);
    let (_, out, _) = exit_and_output(&uslab(&["replay", trace, "--callers"]));
    for part in [
        "newque+0x2e/0x190 keeps 21 KiB of entry: 339 of its 339 allocations were not freed. These include allocations from each quarter of the workload from the \
         second one on.",
        "Objects that live longer than this workload (0.0 s) look like a leak",
    ] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
}

/// Without the kernel's tables, the trace still shows which of the call site's objects were freed, because their
/// addresses were allocated again.
#[test]
fn call_site_with_untraced_frees_is_not_a_leak() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.txt");
    let mut text = String::new();
    for object in 0..400 {
        // Each address is used twice.
        text += &alloc(1000 + object * 10, "node", "mas_alloc_nodes+0x1/0x9", object / 2);
        text += &alloc(1002 + object * 10, "entry", "newque+0x2e/0x190", 1000 + object);
        text += &alloc(1004 + object * 10, "entry", "tidy+0x2e/0x190", 3000);
        text += &free(1006 + object * 10, "entry", 3000);
    }
    std::fs::write(&trace, text).unwrap();
    let trace = trace.to_str().unwrap();
    let expect = [("entry", "growing"), ("node", "freed-unseen")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(leak_guesses(trace), expect);
}

/// The option `perf script -F +cgroup` prints the control group after the fields.
#[test]
fn live_bytes_are_shown_by_process_and_control_group() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("perf.txt");
    let mut text = String::new();
    let mut object = 0;
    for (command, group, count) in [
        ("server", "/system.slice/a.service", 6),
        ("sh", "/user.slice", 3),
        ("server", "/system.slice/b.service", 2),
    ] {
        for _ in 0..count {
            object += 1;
            writeln!(
                text,
                "{command}  1234 [000] 1.{:06}: kmem:kmalloc: call_site=accept+0x{object:x} ptr=0x{:x} bytes_req=64 bytes_alloc=64 \
                 gfp_flags=GFP_KERNEL node=-1 accounted=false {group}",
                object * 10,
                address(object)
            )
            .unwrap();
        }
    }
    // One object of the first group is freed by another process.
    writeln!(
        text,
        "sh  1235 [001] 1.900000: kmem:kfree: call_site=close+0x1 ptr=0x{:x} /user.slice",
        address(1)
    )
    .unwrap();
    std::fs::write(&trace, text).unwrap();
    let trace = trace.to_str().unwrap();
    let report = replay_json(&[trace, "--callers"]);
    let live = &report["callers"]["live"];
    let rows = |list: &str, key: &str| -> Vec<(String, u64, u64)> {
        let rows = live[list].as_array().unwrap_or_else(|| panic!("{list} in {live}"));
        let row = |row: &Value| {
            let number = |key: &str| row[key].as_u64().unwrap();
            (row[key].as_str().unwrap().to_owned(), number("objects"), number("bytes"))
        };
        rows.iter().map(row).collect()
    };
    let named = |name: &str, objects: u64| (name.to_owned(), objects, objects * 64);
    assert_eq!(
        rows("groups", "group"),
        [named("/system.slice/a.service", 5), named("/user.slice", 3), named("/system.slice/b.service", 2)]
    );
    assert_eq!(rows("commands", "command"), [named("server", 7), named("sh", 3)]);
    assert_eq!(live["groups"][0]["command"], "server");
    let (code, out, err) = exit_and_output(&uslab(&["replay", trace, "--callers"]));
    assert_eq!(code, Some(0), "{err}");
    for part in ["by process (2 of 2 commands)", "by control group (3 of 3)", "/system.slice/b.service"] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
    // Other traces have no groups.
    let report = replay_json(&["--callers"]);
    let live = &report["callers"]["live"];
    assert_eq!((live["groups"].as_array().unwrap().len(), live["of_workload"].as_bool()), (0, Some(true)));
    assert!(!live["commands"].as_array().unwrap().is_empty());
}

/// The report lists each slab of the bundled trace that has holes, with the ages of its objects.
#[test]
fn each_partial_slab_is_listed_with_object_ages() {
    let report = replay_json(&["--callers"]);
    let pinned = report["callers"]["live"]["pinned"].as_array().unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"));
    for cache in pinned {
        let slabs = cache["partial"].as_array().unwrap();
        assert_eq!(slabs.len() as u64, cache["slabs"].as_u64().unwrap());
        for slab in slabs {
            assert!(
                number(&slab["objects"]) >= 1.0 && number(&slab["objects"]) < number(&slab["room"]),
                "{slab}"
            );
            assert!(number(&slab["youngest_seconds"]) <= number(&slab["oldest_seconds"]), "{slab}");
            assert!(!slab["call_site"].as_str().unwrap().is_empty());
        }
        assert!(number(&cache["youngest_seconds"]) <= number(&cache["oldest_seconds"]));
    }
    let by_one = pinned.iter().flat_map(|cache| cache["partial"].as_array().unwrap());
    let by_one = by_one.filter(|slab| slab["objects"] == 1).count() as u64;
    assert_eq!(by_one, pinned.iter().map(|cache| cache["by_one"].as_u64().unwrap()).sum::<u64>());
    let (_, out, _) = exit_and_output(&uslab(&["replay", "--callers=3"]));
    assert!(out.contains("The objects that keep each slab (3 of "), "{out}");
}

/// Regression test: the report did not show memory that was allocated before the workload.
#[test]
fn live_all_option_shows_memory_older_than_the_workload() {
    let of = |which: &[&str]| replay_json(&[&["--callers"], which].concat())["callers"]["live"].clone();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"));
    let (workload, all) = (of(&[]), of(&["--live", "all"]));
    let older = &workload["older"];
    for sum in ["objects", "bytes", "kmalloc_bytes"] {
        assert_eq!(number(&workload[sum]) + number(&older[sum]), number(&all[sum]), "{sum}");
    }
    assert!(number(&older["objects"]) > 0 && all.get("older").is_none(), "{older}");
    let (_, out, _) = exit_and_output(&uslab(&["replay", "--callers=3"]));
    assert!(out.contains("in kmalloc caches. The call site with the most bytes has "), "{out}");
    refused(&["replay", "--live", "all"], &["--callers"]);
    refused(&["replay", "--callers", "--live", "old"], &["--live", "old", "workload, all"]);
}

/// The report also shows the number of objects that were freed on another CPU.
#[test]
fn caller_report_counts_objects_freed_on_another_cpu() {
    let (_, out, _) = exit_and_output(&uslab(&["replay", "--all"]));
    assert!(out.contains("6,592 freed on another CPU (2.58 %)"), "{out}");
    assert!(out.contains("remote % = share of the frees whose allocation is in the trace"), "{out}");
    // Regression test: the caches could not be sorted by this column.
    let report = replay_json(&["--sort", "remote"]);
    let remote = report["caches"].as_array().unwrap().iter().map(|row| row["remote_frees"].as_u64().unwrap());
    assert!(remote.is_sorted_by(|a, b| a >= b), "{report}");
    let (_, sorted, _) = exit_and_output(&uslab(&["replay", "--all", "--sort", "remote"]));
    assert!(sorted.contains("the most remote frees first)"), "{sorted}");
    let dentry = out.lines().find(|line| line.starts_with("dentry ")).unwrap();
    let report = replay_json(&[]);
    let cache = report["caches"].as_array().unwrap().iter().find(|cache| cache["name"] == "dentry").unwrap();
    let remote = cache["remote_frees"].as_u64().unwrap();
    assert!(remote > 0 && dentry.contains(&format!(" {remote} ")), "{remote} in {dentry}");
}

//! Tests `uslab slabs` and `uslab geometry --against`: a kernel's tables, without a trace.

use serde_json::Value;
use std::fs;
use std::path::Path;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uslab_sim::slabs::{Change, Report, Snapshot, Sort};
use uslab_tests::workspace;

use crate::cli::{refused, said, uslab, uslab_with};
use crate::common::Packing;

fn json(args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json", "-"]).collect();
    let (code, out, err) = said(&uslab(&args));
    assert!(matches!(code, Some(0 | 1)), "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error} in {out}"))
}

fn cache<'r>(report: &'r Value, name: &str) -> &'r Value {
    let caches = report["caches"].as_array().expect("caches");
    caches.iter().find(|cache| cache["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

const HEAD: &str = "slabinfo - version: 2.1\n# name <active_objs> ...\n";
const SPACES: &str = "dm raid1 read record 0 0 1064 30 8 : tunables 0 0 0 : slabdata 0 0 0\n\
                      kmalloc-64 640 640 64 64 1 : tunables 0 0 0 : slabdata 10 10 0\n";

#[test]
fn the_bundled_kernels_shrink_is_bounded_and_two_moments_are_compared() {
    // The moment `end` is after a shrink, `before` is before the workload.
    let folder = tempfile::tempdir().unwrap();
    for moment in ["before", "end"] {
        for table in ["slabinfo", "buddyinfo", "zoneinfo"] {
            let name = format!("{moment}.{table}");
            let from = workspace().join("sim/data").join(format!("files-6.1.{name}"));
            if from.exists() {
                fs::copy(from, folder.path().join(name)).unwrap();
            }
        }
    }
    let end = folder.path().join("end");
    let report = json(&["slabs", shown(&end), "--all"]);
    // No zoneinfo of this moment lists the CPUs, and the slab orders fit 4 to 7 CPUs.
    assert_eq!((number(&report["cpus"]), &report["cpus_guessed"]), (7, &Value::Bool(true)));
    assert_eq!(number(&json(&["slabs", shown(&folder.path().join("before"))])["cpus"]), 4);
    let dentry = cache(&report, "dentry");
    let (objects, in_use) = (number(&dentry["objects"]), number(&dentry["in_use"]));
    assert_eq!(number(&dentry["holes"]), objects - in_use);
    assert_eq!(number(&dentry["bytes"]), number(&dentry["slabs"]) * 4096);
    let bounds = |row: &Value| (number(&row["shrink_slabs"]["least"]), number(&row["shrink_slabs"]["most"]));
    for row in report["caches"].as_array().unwrap() {
        let (least, most) = bounds(row);
        assert!(least <= most && most <= number(&row["slabs"]), "{row}");
    }
    let before = folder.path().join("before");
    let compared = json(&["slabs", shown(&before), "--against", shown(&end)]);
    let change = &compared["change"];
    let earlier = json(&["slabs", shown(&before), "--all"]);
    assert_eq!(
        change["bytes"].as_i64().unwrap(),
        number(&report["bytes"]) as i64 - number(&earlier["bytes"]) as i64
    );
    // If a folder has two moments, the command reads the last one, and the report names the earlier one.
    let (_, text, _) = said(&uslab(&["slabs", shown(folder.path())]));
    assert!(text.contains("--against"), "{text}");
    assert!(text.contains("dentry holds ") && text.contains("slab_debug=FZPU"), "{text}");
}

/// Tests real shrinks: recordings that shrank all caches between their moments `after` and `end`.
#[test]
fn memory_returned_by_real_shrinks_is_within_the_bounds() {
    let Some(folder) = std::env::var_os("USLAB_TRACES").filter(|folder| !folder.is_empty()) else {
        println!("USLAB_TRACES is not set: no shrink is compared");
        return;
    };
    let read = |folder: &Path, moment: &str| {
        let snapshot = Snapshot::open(&folder.join(moment)).expect("tables");
        Report::new(&snapshot, None, Sort::Name).expect("counts")
    };
    let (mut compared, mut grew) = (0, 0);
    for entry in fs::read_dir(folder).expect("USLAB_TRACES names a folder") {
        let folder = entry.expect("an entry").path();
        if !folder.join("after.slabinfo").exists() || !folder.join("end.slabinfo").exists() {
            continue;
        }
        let (after, end) = (read(&folder, "after"), read(&folder, "end"));
        let mut returned = 0;
        for row in &after.caches {
            let Some(later) = end.caches.iter().find(|later| later.name == row.name) else { continue };
            let slabs = row.slabs as i64 - later.slabs as i64;
            assert!(
                slabs <= row.shrink_slabs.most as i64,
                "{}: {row:?} has {} slabs then",
                folder.display(),
                later.slabs
            );
            compared += 1;
            // Processes that run during the shrink allocate.
            grew += u64::from(slabs < row.shrink_slabs.least as i64);
            returned += row.bytes as i64 - later.bytes as i64;
        }
        let bounds = after.shrink;
        println!("{}: {returned} bytes, within {bounds:?}", folder.display());
        assert!(bounds.least as i64 <= returned && returned <= bounds.most as i64, "{}", folder.display());
    }
    println!("{compared} caches, of which {grew} grew");
    assert!(compared > 0 && grew * 50 < compared, "{grew} of {compared} caches grew");
}

#[test]
fn a_sosreport_with_sysfs_narrows_the_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let row = "dentry 1000 21000 192 21 1 : tunables 0 0 0 : slabdata 1000 1000 0\n";
    write("proc/slabinfo", &format!("{HEAD}{row}"));
    write("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 4 kB\nSReclaimable: 4000 kB\nSUnreclaim: 0 kB\n");
    write("sys/devices/system/cpu/present", "0-1\n");
    write("proc/version", "Linux version 6.12.5 (gcc)\n");
    let wide = json(&["slabs", shown(folder.path())]);
    assert_eq!((wide["kernel"].as_str(), number(&wide["cpus"])), (Some("6.12.5"), 2));
    for (name, value) in [
        ("slab_size", "192"),
        ("object_size", "192"),
        ("objs_per_slab", "21"),
        ("order", "0"),
        ("min_partial", "5"),
        ("slabs", "1000 N0=1000"),
        ("partial", "1000 N0=1000"),
        ("objects_partial", "998 N0=998"),
        ("cpu_slabs", "2 N0=2"),
        ("slabs_cpu_partial", "10(1) C0=10(1)"),
        ("reclaim_account", "1"),
    ] {
        write(&format!("sys/kernel/slab/:a-0000192/{name}"), value);
    }
    std::os::unix::fs::symlink(":a-0000192", folder.path().join("sys/kernel/slab/dentry")).unwrap();
    std::os::unix::fs::symlink(":a-0000192", folder.path().join("sys/kernel/slab/other")).unwrap();
    let narrow = json(&["slabs", shown(folder.path())]);
    let dentry = cache(&narrow, "dentry");
    // Two partial slabs have no object in use; up to 5 more may be empty, and CPUs hold up to 3.
    assert_eq!((number(&dentry["shrink_slabs"]["least"]), number(&dentry["shrink_slabs"]["most"])), (2, 8));
    assert_eq!(dentry["aliases"], serde_json::json!(["other"]));
    assert_eq!(number(&narrow["reclaimable"]), 1000 * 4096);
    let wide = cache(&wide, "dentry");
    assert!(number(&wide["shrink_slabs"]["most"]) > 8, "{wide}");
    let sentence = dentry["sentence"].as_str().unwrap();
    assert!(
        sentence.contains(
            "a shrink returns 8192 B to 32 KiB, because the holes are spread over 1,000 partial slabs"
        ),
        "{sentence}"
    );
}

#[test]
fn empty_or_foreign_folder_is_refused_with_the_expected_files() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        &["slabs", shown(folder.path())],
        &["no table of a kernel's caches", "proc/slabinfo", "sys/kernel/slab", "slab-attributes.tsv"],
    );
    fs::write(folder.path().join("letter"), "Dear reader\n").unwrap();
    refused(&["slabs", shown(folder.path())], &["looked for"]);
    refused(&["slabs", shown(&folder.path().join("letter"))], &["letter: line 1", "slabinfo - version: 2.1"]);
    refused(&["slabs", shown(&folder.path().join("before"))], &["before.slabinfo"]);
    refused(&["slabs", "/dev/zero"], &["more than 16 MiB"]);
    let packed = folder.path().join("packed");
    fs::write(&packed, Packing::Zstd.pack(b"slabinfo - version: 2.1\n")).unwrap();
    refused(&["slabs", shown(&packed)], &["packed: not text: expected a slabinfo", "uslab what "]);
    refused(&["slabs", "--watch", "--json"], &["--watch", "--json"]);
    refused(&["slabs", "--cpus", "0"], &["--cpus 0"]);
    let table = folder.path().join("table");
    fs::write(&table, "name\tslab_size\torder\tobjs_per_slab\no\t192\t0\t21\n").unwrap();
    refused(&["slabs", shown(&table)], &["no table counts slabs"]);
}

#[test]
fn watch_ends_after_the_given_number_of_readings() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("slabinfo"), format!("{HEAD}{SPACES}")).unwrap();
    let (code, out, err) = said(&uslab(&["slabs", shown(folder.path()), "--watch=0.1", "--count", "2"]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.matches("kmalloc-64").count(), 2, "{out}");
    assert!(out.contains("nothing changed") && !out.contains('\x1b'), "{out}");
}

/// Regression test: the whole table was refused with "line 3: expected five numbers after the name".
#[test]
fn names_with_spaces_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("slabinfo");
    fs::write(&table, format!("{HEAD}{SPACES}")).unwrap();
    let report = json(&["geometry", "--against", shown(&table)]);
    assert_eq!((&report["rows"], &report["matched"]), (&2.into(), &2.into()), "{report}");
    let (code, out, err) = said(&uslab_with(&["slabs", "-"], format!("{HEAD}{SPACES}").as_bytes()));
    assert!(code == Some(0) && out.contains("dm raid1 read record"), "{err}");
    // Rows without objects, and invalid rows, are named, and the others are compared.
    let odd = "nothing 0 0 0 0 1 : tunables 0 0 0 : slabdata 0 0 0\nbroken 1 2\n";
    fs::write(&table, format!("{HEAD}{SPACES}{odd}")).unwrap();
    let (code, out, err) = said(&uslab(&["geometry", "--against", shown(&table)]));
    assert_eq!(code, Some(0), "{err}");
    for part in ["2 of 2", "nothing: 0 objects a slab", "line 6", "broken 1 2"] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
}

#[test]
fn the_cause_of_a_mismatch_is_named() {
    let data = workspace().join("sim/data/files-6.1.end.slabinfo");
    let explained = |args: &[&str]| {
        let args = [&["geometry", "--against", shown(&data)], args].concat();
        let report = json(&args);
        report["explanation"]["settings"].as_str().map(str::to_owned)
    };
    assert_eq!(explained(&["--cpus", "4"]), None);
    assert_eq!(explained(&["--cpus", "16"]).as_deref(), Some("--cpus 4 to 7"));
    assert_eq!(
        explained(&["--cpus", "4", "--max-order", "1"]).as_deref(),
        Some("slab_max_order=3 (--max-order 3)")
    );
    assert_eq!(
        explained(&["--cpus", "4", "--min-order", "2"]).as_deref(),
        Some("slab_min_order=0 (--min-order 0)")
    );
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("slabinfo");
    fs::write(
        &table,
        "slabinfo - version: 2.1 (statistics)\ninode 10 21 600 3 1 : tunables 54 27 8 : slabdata 3 7 2 : globalstat 1 2 : cpustat 5 6\n",
    )
    .unwrap();
    let report = json(&["geometry", "--against", shown(&table), "--cpus", "2"]);
    assert!(report["other_rule"].as_str().unwrap().contains("SLAB"), "{report}");
    // SLAB's table has the number of empty slabs.
    let report = json(&["slabs", shown(&table), "--cpus", "2"]);
    assert_eq!(number(&cache(&report, "inode")["shrink_slabs"]["least"]), 4);
}

/// Regression test: sums of numbers that no machine can have overflowed.
#[test]
fn arbitrary_numbers_in_a_table_cause_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(60);
    let mut read = 0;
    for _ in 0..200 {
        let mut number = || {
            let bits = random.random_range(0..42);
            random.random::<u64>() >> (63 - bits)
        };
        let mut slabinfo = HEAD.to_owned();
        let mut table = "name\tlink\tslab_size\torder\tobjs_per_slab\tslabs\ttotal_objects\tobjects\tpartial\tobjects_partial\tcpu_slabs\tslabs_cpu_partial\tsheaf_capacity\tmin_partial\talign\n".to_owned();
        for name in 0..20 {
            let numbers: Vec<String> = (0..10).map(|_| number().to_string()).collect();
            let [a, b, c, d, e, limit, batch, shared, slabs, more] = &numbers[..] else { unreachable!() };
            slabinfo += &format!(
                "c{name} {a} {b} {} {} {} : tunables {limit} {batch} {shared} : slabdata {slabs} {more} 0\n",
                c.len(),
                d.len(),
                e.len()
            );
            table += &format!(
                "c{name}\t-\t{a}\t{}\t{}\t{b}\t{c}\t{d}\t{e}\t{slabs}\t{more}\t9({limit})\t{batch}\t{shared}\t8\n",
                a.len() % 11,
                b.len()
            );
        }
        for (name, text) in [("slabinfo", slabinfo), ("slab-attributes.tsv", table)] {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            for place in [path.as_path(), folder.path()] {
                let Ok(snapshot) = Snapshot::open(place) else { continue };
                let report = Report::new(&snapshot, Some(8192), Sort::Shrink).expect("counts");
                assert!(!report.text(usize::MAX).is_empty());
                assert!(!Change::new(&report, &report).text(3).is_empty());
                read += 1;
            }
        }
    }
    assert!(read > 200, "{read}");
}

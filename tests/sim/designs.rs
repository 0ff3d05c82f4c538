//! Tests `--design`: runs models of other allocators on the bundled trace and on samples, and compares them with the
//! kernels' tables.

use crate::cli::{exit_and_output, refused, replay_json, sample, uslab};
use serde_json::Value;
use std::process::Command;
use uslab_tests::workspace;

#[test]
fn slub_model_predicts_the_slabs_of_the_bundled_trace() {
    let report = replay_json(&["--design", "slub,uslab"]);
    assert_eq!((&report["cpus"], &report["operations"]), (&4.into(), &672_020.into()));
    let [slub, uslab] = ["slub", "uslab"].map(|design| {
        let runs = report["designs"].as_array().expect("each design must have a run");
        let run = runs.iter().find(|run| run["design"] == design).expect("a cache must have this name");
        let moments = run["moments"].as_array().expect("moments");
        assert_eq!(moments.iter().map(|moment| &moment["name"]).collect::<Vec<_>>(), ["end"], "{design}");
        &moments[0]
    });
    // The model is exact for most caches, and closer than another policy.
    let error = |moment: &Value| moment["slabs"]["absolute_error"].as_u64().expect("a number");
    let kernel = slub["slabs"]["kernel"].as_u64().expect("a number");
    assert!(error(slub) * 100 <= kernel, "{} of {kernel} slabs", error(slub));
    assert!(error(slub) * 2 < error(uslab), "{} and {}", error(slub), error(uslab));
    let near = &slub["slabs"]["caches_over_100"];
    let [n, within] = ["n", "within_2_percent_or_a_slab"].map(|key| near[key].as_u64().expect("a number"));
    assert!(within * 10 >= n * 9 && n > 30, "{within} of {n}");
    // Each design has separate free pages, on the kernel's zones: within a fiftieth of the kernel's number.
    let pages_of = |blocks: &Value| {
        let blocks = blocks.as_array().expect("the report must have blocks by order");
        blocks.iter().zip(0..).map(|(n, order)| n.as_u64().expect("a number") << order).sum::<u64>()
    };
    let pages = [slub, uslab].map(|moment| {
        let [kernel, design] = ["kernel", "design"].map(|whose| pages_of(&moment["pages"][whose]));
        assert!(
            kernel.abs_diff(design) * 50 < kernel,
            "{design} pages are free in the design, and {kernel} in the kernel"
        );
        design
    });
    assert_ne!(pages[0], pages[1]);
    // The sums are the sums of the rows.
    let rows = slub["caches"].as_array().expect("rows");
    let sum = |key: &str| rows.iter().map(|row| row[key]["slabs"].as_i64().expect("a number")).sum::<i64>();
    assert_eq!(
        (Some(sum("kernel")), Some(sum("design"))),
        (slub["slabs"]["kernel"].as_i64(), slub["slabs"]["design"].as_i64())
    );
}

#[test]
fn replay_without_kernel_tables_compares_nothing() {
    let path = sample("ftrace-6.12-tgid-hashed.txt.zst");
    let (_, out, _) = exit_and_output(&uslab(&["replay", path.to_str().expect("UTF-8"), "--design", "slub"]));
    assert!(out.contains("No comparison with the kernel"), "{out}");
    refused(&["replay", "--design", "slub", "--nodes", "2"], &["--design", "--nodes"]);
}

/// Returns a folder that contains the bundled trace, its tables, and the additional files `files`.
fn recording(files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let (data, folder) = (workspace().join("sim/data"), tempfile::tempdir().expect("a folder"));
    for table in ["before.slabinfo", "before.buddyinfo", "before.zoneinfo", "end.slabinfo"] {
        std::fs::copy(data.join(format!("files-6.1.{table}")), folder.path().join(table)).expect("a table");
    }
    let trace = folder.path().join("trace.zst");
    std::fs::copy(data.join("files-6.1.trace.zst"), &trace).expect("the trace must be readable");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let trace = trace.to_str().expect("UTF-8").to_owned();
    (folder, trace)
}

#[test]
fn linux_design_selects_the_model_of_the_traced_kernel() {
    let slabs = |trace: &str, design: &str| {
        let report = replay_json(&["--design", design, trace]);
        let run = &report["designs"][0];
        (run["moments"][0]["slabs"]["design"].as_i64().expect("a number"), run["paths"].clone())
    };
    for (files, design) in [
        (&[("kernel.txt", "6.1.192\n")][..], "slub"),
        (&[("kernel.txt", "6.1.192"), ("cmdline.txt", "quiet slub_max_order=0")], "slub:slab_max_order=0"),
        (&[("kernel.txt", "6.18.1")], "sheaves-6.18"),
        (&[("kernel.txt", "7.2.13"), ("cmdline.txt", "slab_min_order=1")], "sheaves:slab_min_order=1"),
        (&[("slab-attributes.tsv", "name\tcpu_partial\ndentry\t0\n")], "slub:cpu_partial=0"),
    ] {
        let (_folder, trace) = recording(files);
        assert_eq!(slabs(&trace, "linux"), slabs(&trace, design), "{design}");
    }
    // An attribute of the traced kernel applies to its own design: no sheaves for file names.
    let attributes = "name\tsheaf_capacity\ndentry\t0\n";
    let (_folder, trace) = recording(&[("kernel.txt", "7.2.13"), ("slab-attributes.tsv", attributes)]);
    let (_other, plain) = recording(&[("kernel.txt", "7.2.13")]);
    assert_ne!(slabs(&trace, "linux").1, slabs(&plain, "linux").1);
    assert_eq!(slabs(&trace, "sheaves-6.18"), slabs(&plain, "sheaves-6.18"));
    // An option in `--design` overrides the kernel's command line.
    let (_folder, trace) = recording(&[("kernel.txt", "6.1.1"), ("cmdline.txt", "slab_max_order=0")]);
    assert_eq!(slabs(&trace, "linux:slab_max_order=3"), slabs(&trace, "slub"));
}

/// Regression test: a percentage was refused, and a single number for all caches enlarged the sheaves of large objects
/// without a warning.
#[test]
fn sheaf_capacity_is_a_number_or_a_percentage_of_each_cache() {
    let (_folder, trace) = recording(&[
        ("kernel.txt", "7.2.13"),
        ("slab-attributes.tsv", "name\tsheaf_capacity\nnames_cache\t4\ntask_struct\t4\n"),
    ]);
    let capacities = |design: &str| {
        let report = replay_json(&["--design", design, &trace]);
        report["designs"][0]["capacities"].clone()
    };
    let number = |value: &Value| value.as_u64().expect("a number");
    let half = capacities("linux:sheaf_capacity=50%");
    assert_eq!((number(&half["raised"]), half.get("most_raised")), (0, None), "{half}");
    assert!(number(&half["lowered"]) == number(&half["caches"]) && number(&half["caches"]) > 30, "{half}");
    let thirty = capacities("linux:sheaf_capacity=30");
    assert!(number(&thirty["raised"]) > 0 && number(&thirty["lowered"]) > 0, "{thirty}");
    let most = &thirty["most_raised"];
    assert_eq!([&most[1], &most[2]].map(number), [4, 30], "{thirty}");
    assert_eq!(number(&capacities("linux")["caches"]), 0);
    let (_, out, _) = exit_and_output(&uslab(&["replay", "--design", "linux:sheaf_capacity=30", &trace]));
    assert!(out.contains("linux:sheaf_capacity=30: the options raise the capacity of sheaves"), "{out}");
}

/// Regression test: if the recorded machine had little free memory, or only small free blocks, `slab_max_order=0` was
/// refused with "find no memory, or no block so large".
#[test]
fn design_without_free_memory_reports_its_added_memory() {
    let design = "linux:slab_max_order=0";
    let run = |free: bool| {
        let (folder, trace) = recording(&[("kernel.txt", "6.1.192\n")]);
        if !free {
            // The kernel reclaimed all that the workload needed.
            let table = folder.path().join("before.buddyinfo");
            let text = std::fs::read_to_string(&table).expect("a table");
            let none = |line: &str| {
                let words: Vec<_> = line.split_whitespace().collect();
                format!("{} {}\n", words[..4].join(" "), vec!["0"; words.len() - 4].join(" "))
            };
            std::fs::write(&table, text.lines().map(none).collect::<String>()).expect("a file");
        }
        let report = replay_json(&["--design", design, &trace]);
        let (_, out, _) = exit_and_output(&uslab(&["replay", "--design", design, &trace]));
        let run = &report["designs"][0];
        let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{value} in {run}"));
        (number(&run["added_memory"]), number(&run["moments"][0]["slabs"]["design"]), out)
    };
    let [(none, slabs, plain), (added, same, out)] = [true, false].map(run);
    assert!(none == 0 && added > 0, "{none}, {added}");
    assert!(slabs.abs_diff(same) * 100 < slabs.unsigned_abs(), "{slabs}, {same}");
    let says = "linux:slab_max_order=0: the design's machine has ";
    assert!(out.contains(says) && !plain.contains(says), "{out}");
}

#[test]
fn linux_design_refuses_a_recording_of_an_unknown_kernel() {
    let (_folder, trace) = recording(&[]);
    let choices = ["kernel.txt", "slab-attributes.tsv", "slub (6.1 to 6.17)", "sheaves (7.x)"];
    refused(&["replay", "--design", "linux", &trace], &[&["--design linux"], &choices[..]].concat());
    for (name, text) in [("kernel.txt", "linux\n"), ("slab-attributes.tsv", "dentry 192\n")] {
        let (_folder, trace) = recording(&[(name, text)]);
        refused(&["replay", "--design", "linux", &trace], &[name, ":1: expected "]);
    }
}

/// Returns the reported causes of a mismatch of the cache `node` for a Linux `release`; each slab is a page with 8
/// objects of 512 bytes.
///
/// The parameter `lines` contains the events between the two tables. An event is `page N` (allocate page N), `alloc
/// N.I` (allocate object I on this page), or `free N.I`. Each of the two tables is given as three numbers: active
/// objects, objects and slabs.
fn causes(release: &str, design: &str, lines: &[&str], [before, after]: [(u64, u64); 2]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let ptr = |object: &str| {
        let (page, index) = object.split_once('.').expect("PAGE.OBJECT");
        let [page, index] = [page, index].map(|n| n.parse::<u64>().expect("a number"));
        format!("{:x}", 0xffff_8880_0100_0000 + page * 4096 + index * 512)
    };
    let event = |line: &&str| match line.split_once(' ').expect("expected EVENT WHAT") {
        ("page", n) => format!(
            "mm_page_alloc: page=0 pfn={} order=0 migratetype=0 gfp_flags=GFP_KERNEL",
            4096 + n.parse::<u64>().expect("a number")
        ),
        ("alloc", object) => format!(
            "kmem_cache_alloc: call_site=f+0x1/0x9 ptr={} name=node bytes_req=512 bytes_alloc=512 gfp_flags=GFP_KERNEL node=-1 \
             accounted=false",
            ptr(object)
        ),
        ("free", object) => format!("kmem_cache_free: call_site=g+0x1/0x9 ptr={} name=node", ptr(object)),
        (mark, text) => format!("tracing_mark_write: {mark} {text}"),
    };
    let all = [&["SNAP before begin"], lines, &["SNAP after begin"]].concat();
    let text = all.iter().zip(1..).map(|(line, n)| format!("sh-1 [000] ..... {n}.000000: {}\n", event(line)));
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    file("trace.txt", &text.collect::<String>());
    file("kernel.txt", release);
    for (moment, (active, slabs)) in [("before", before), ("after", after)] {
        let objects = 8 * slabs;
        let table = format!(
            "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>\n\
             node {active} {objects} 512 8 1 : tunables 0 0 0 : slabdata {slabs} {slabs} 0\n"
        );
        file(&format!("{moment}.slabinfo"), &table);
    }
    let trace = folder.path().join("trace.txt");
    let report = replay_json(&["--design", design, trace.to_str().expect("UTF-8")]);
    let cache = &report["designs"][0]["moments"][0]["caches"][0];
    assert_eq!(cache["name"], "node", "{report}");
    cache["causes"].as_array().cloned().unwrap_or_default()
}

/// Regression test: for a counterfactual design, the report criticised that the design chose other slabs, although that
/// is its purpose.
#[test]
fn slab_mismatch_report_names_its_true_cause() {
    let named = |name: &str, n: u64| serde_json::json!({ name: n });
    // The kernel created a slab for each of two objects.
    let apart = ["page 0", "alloc 0.0", "page 1", "alloc 1.0"];
    let (none, two) = ((0, 0), (16, 2));
    assert_eq!(causes("6.1.0", "linux", &apart, [none, two]), ["model"]);
    assert_eq!(causes("6.1.0", "linux:cpu_partial=0", &apart, [none, two]), [Value::Null; 0]);
    assert_eq!(causes("6.1.0", "bonwick94", &apart, [none, two]), [Value::Null; 0]);
    assert_eq!(causes("6.1.0", "linux:slab_min_order=1", &apart, [none, two]), [named("other-size", 16)]);
    let reused = ["page 0", "alloc 0.0", "alloc 0.0", "page 1", "alloc 1.0"];
    assert_eq!(causes("6.1.0", "linux", &reused, [none, two]), [named("freed-without-event", 1)]);
    assert_eq!(causes("6.1.0", "linux:cpu_partial=0", &reused, [none, two]), [Value::Null; 0]);
    // If CPUs have sheaves, nothing more is known about the slab.
    let unseen = ["page 0", "alloc 0.0", "free 0.1", "page 1", "alloc 1.0"];
    assert_eq!(causes("7.2.0", "linux", &unseen, [none, two]), [named("allocated-without-event", 1)]);
    let older = ["page 0", "alloc 0.0", "page 1", "alloc 1.0", "free 900.0"];
    assert_eq!(causes("6.1.0", "linux", &older, [(8, 1), (24, 3)]), [named("freed-from-before", 1)]);
    assert_eq!(causes("6.1.0", "linux", &apart, [(4, 1), (24, 3)]), [named("free-before", 4)]);
    assert_eq!(causes("6.1.0", "linux", &apart[..2], [none, (24, 3)]), [named("pages-differ", 2)]);
    assert_eq!(causes("6.1.0", "linux", &apart[..2], [none, (8, 1)]), [Value::Null; 0]);
}

#[test]
fn each_design_replays_the_trace_without_violation() {
    let report =
        replay_json(&["--design", "uslab,uslab-model,slub,sheaves-6.18,sheaves,slab,bonwick94,magazines01"]);
    let runs = report["designs"].as_array().expect("each design must have a run");
    assert_eq!(runs.len(), 8);
    for run in runs {
        assert_eq!(run["violated"], Value::Null, "{}", run["design"]);
        let paths = run["paths"].as_object().expect("shares");
        let operations: u64 = paths.values().map(|n| n.as_u64().expect("a number")).sum();
        assert!(operations > 570_000, "{}: {operations}", run["design"]);
    }
    assert_equal_slabs_and_paths(&runs[0], &runs[1]);
}

/// Checks that the shipping allocator and its model have the same number of slabs and the same count for each path.
fn assert_equal_slabs_and_paths(shipping: &Value, model: &Value) {
    let moments = |run: &Value| {
        let moments = run["moments"].as_array().expect("moments").clone();
        // The two use different pages, because the allocator has some for itself.
        let of = |moment: Value| ["name", "caches", "slabs", "active_objs"].map(|key| moment[key].clone());
        moments.into_iter().map(of).collect::<Vec<_>>()
    };
    assert!(moments(shipping) == moments(model), "both designs must give equal --json");
    let n = |run: &Value, path: &str| run["paths"][path].as_u64().expect("a number");
    let all = |run| ["cpu", "depot", "slab", "pages", "commit"].map(|path| n(run, path)).iter().sum::<u64>();
    assert_eq!(all(shipping), all(model));
    // The shipping allocator counts an operation that commits memory as a commit; the model has no commits.
    assert_eq!(n(model, "commit"), 0);
    for path in ["cpu", "depot", "slab", "pages"] {
        let (less, more) = (n(shipping, path), n(model, path));
        assert!(less <= more && more - less <= n(shipping, "commit"), "{path}: {less} and {more}");
    }
}

#[test]
fn design_option_changes_the_number_of_slabs() {
    let report = replay_json(&["--design", "slub,slub:slab_max_order=0"]);
    let slabs =
        |run: usize| report["designs"][run]["moments"][0]["slabs"]["design"].as_i64().expect("a number");
    assert_eq!(report["designs"][1]["design"], "slub:slab_max_order=0");
    assert!(
        slabs(1) * 2 > slabs(0) * 3,
        "smaller slabs must be more numerous: {} and {}",
        slabs(1),
        slabs(0)
    );
}

#[test]
fn error_names_the_unknown_design_or_option() {
    for (design, parts) in [
        (
            "slob",
            [
                "unknown design `slob`",
                "uslab, uslab-model, slub, sheaves-6.18, sheaves, slab, bonwick94, magazines01, linux",
            ],
        ),
        // The bundled trace is of 6.1.
        ("linux:sheaf_capacity=28", ["the traced kernel's design is slub", "unknown field `sheaf_capacity`"]),
        ("sheaves:sheaf_capacity=half", ["sheaf_capacity=half: expected N", "such as 50%"]),
        ("slub:limit=1", ["unknown field `limit`", "`cpu_partial`"]),
        ("slab:limit=4:batchcount=5", ["batchcount=5", "at most `limit`, which is 4"]),
        ("slub:cpu_partial=many", ["`cpu_partial=many` of slub", "KEY=NUMBER"]),
    ] {
        refused(&["replay", "--design", design], &["--design", parts[0], parts[1]]);
    }
}

#[test]
fn design_from_an_external_crate_can_be_replayed() {
    let uma = uslab_tests::example("uma");
    let mut uma = Command::new(uma);
    let output = uma
        .args(["replay", "--design", "uma,uma:bucket_size=4", "--json", "-"])
        .output()
        .expect("the program must start");
    let (code, out, err) = exit_and_output(&output);
    assert_eq!(code, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let depot = |run: usize| {
        assert_eq!(report["designs"][run]["violated"], Value::Null);
        report["designs"][run]["paths"]["depot"].as_u64().expect("a number")
    };
    assert!(
        depot(1) > 2 * depot(0),
        "small buckets must visit the zone more often: {} and {}",
        depot(1),
        depot(0)
    );
    let source = std::fs::read_to_string(workspace().join("sim/examples/uma/main.rs"))
        .expect("the example's source must be readable");
    let source = source.replace("#[cfg(test)]\nmod tests;\n", "");
    let code = source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert!(code.count() <= 80, "the example design must have at most 80 lines");
}

#[test]
fn time_series_has_a_hundred_samples_per_cache() {
    let (code, csv, err) =
        exit_and_output(&uslab(&["replay", "--design", "slub,uslab,bonwick94", "--series", "-"]));
    assert_eq!(code, Some(0), "{err}");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("operation,time_ns,design,kind,name,metric,value"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 7));
    for design in ["slub", "uslab", "bonwick94"] {
        let of = |kind: &str, name: &str, metric: &str| {
            let wanted = [design, kind, name, metric];
            let rows = rows.iter().filter(|row| row[2..6] == wanted);
            rows.map(|row| row[6].parse::<u64>().expect("a number")).collect::<Vec<_>>()
        };
        let slabs = of("cache", "dentry", "slabs");
        assert!(slabs.len() > 90 && slabs.iter().max() > Some(&1000), "{design}: {slabs:?}");
        assert_eq!(of("cpu", "3", "pages").len(), 100, "{design}");
        assert_eq!(of("order", "10", "free_blocks").len(), 100, "{design}");
    }
    // A design keeps per-CPU slabs, a per-CPU stack, or nothing.
    let held = |design| {
        rows.iter().any(|row| row[2] == design && row[3] == "cpu" && row[5] == "objects" && row[6] != "0")
    };
    assert_eq!(["slub", "uslab", "bonwick94"].map(held), [true, true, false]);
}

/// Regression test: the report of designs had no lock counts, so readers took the percentage of `slab` for them. The
/// report also described the differences between the designs as errors.
#[test]
fn comparison_of_designs_shows_lock_counts_and_explains_its_columns() {
    let (_folder, trace) = recording(&[("kernel.txt", "6.1.192")]);
    let report = replay_json(&["--design", "linux,sheaves,uslab", &trace]);
    let runs = report["designs"].as_array().expect("runs");
    let is_other: Vec<_> = runs.iter().map(|run| run["is_other"].as_bool().expect("a flag")).collect();
    assert_eq!(is_other, [false, true, true]);
    let (_, out, _) = exit_and_output(&uslab(&["replay", "--design", "linux,sheaves,uslab", &trace]));
    let line = |design: &str| out.lines().find(|line| line.starts_with(design)).expect("a line").to_owned();
    for run in &runs[..2] {
        let lists = run["locks"]["lists"].as_u64().expect("a number");
        let design = run["design"].as_str().expect("a name");
        let shown = line(&format!("{design}: cpu")).replace(',', "");
        assert!(lists > 0 && shown.contains(&format!("locks taken: {lists} of slab lists")), "{shown}");
    }
    assert!(line("uslab: cpu").ends_with("; locks are not counted"), "{out}");
    for part in [
        "a compare-and-swap on a slab",
        "difference: of the slabs",
        "skill: ",
        "in band: ",
        "whose slabs differ most",
    ] {
        assert!(out.contains(part), "expected {part:?} in {out}");
    }
    let row = |design: &str| {
        let mut rows = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row.starts_with(&[design, "end"])).expect("a row")
    };
    assert!(!row("linux").contains(&"-") && row("sheaves").contains(&"-"), "{out}");
}

/// Regression test: caches that the kernel had merged were listed under the name of one of them, without a note.
#[test]
fn merged_caches_are_named_from_the_recording() {
    let attributes = "name\tlink\nfilp\t:A-1\nother\t:A-1\ndentry\t-\n";
    let (_folder, trace) = recording(&[("slab-attributes.tsv", attributes)]);
    let (_, out, _) = exit_and_output(&uslab(&["replay", &trace]));
    assert!(out.contains("Caches that the kernel merged share one row: filp = other\n"), "{out}");
}

#[test]
fn prediction_shows_slab_counts_with_changed_options() {
    let args = ["--design", "slub,slub:slab_max_order=0", "--predict"];
    let report = replay_json(&args);
    let moment = &report["prediction"]["moments"][0];
    assert_eq!((&moment["name"], &moment["real"]), (&"end".into(), &Value::Null));
    let caches = moment["caches"].as_array().expect("caches");
    let slabs = |name: &str| {
        let cache =
            caches.iter().find(|cache| cache["name"] == name).expect("the design must be in the table");
        (cache["traced"].as_u64().expect("a number"), cache["predicted"].as_u64().expect("a number"))
    };
    // A page holds 21 dentries of 192 bytes, as before; but 5 shmem inodes, and not 23 in four pages.
    let ((traced, same), (large, small)) = (slabs("dentry"), slabs("shmem_inode_cache"));
    assert!(traced.abs_diff(same) * 50 < traced, "{traced} and {same}");
    assert!(small > 3 * large, "{large} and {small}");
    // Regression test: a second table had another number and another band for the same cache, and the columns of a real
    // boot showed zeros that no boot had.
    let (_, out, _) = exit_and_output(&uslab(&[&["replay"], &args[..]].concat()));
    assert!(
        out.contains("slub at `end`") && !out.contains("slub:slab_max_order=0 at `end`: the caches"),
        "{out}"
    );
    let head = out.lines().find(|line| line.starts_with("cache ") && line.contains("band")).expect("a table");
    assert!(!head.contains("real") && !head.contains("chance"), "{head}");
    assert!(out.contains("band: holds the real number for nine of ten caches."), "{out}");
    // With the tables of the traced boot itself, no event is counted, because no option changed.
    let folder = tempfile::tempdir().expect("a folder");
    for moment in ["before", "end"] {
        let table = workspace().join(format!("sim/data/files-6.1.{moment}.slabinfo"));
        std::fs::copy(table, folder.path().join(format!("{moment}.slabinfo"))).expect("a copy");
    }
    let beside = replay_json(&[&args[..], &["--beside", folder.path().to_str().expect("UTF-8")]].concat());
    assert_eq!(beside["prediction"]["moments"][0]["real"]["changed"], 0);
    refused(&["replay", "--design", "slub", "--predict"], &["--predict", "two designs, got 1"]);
    refused(&["replay", "--predict"], &["--design"]);
    let empty = tempfile::tempdir().expect("a folder");
    let empty = empty.path().to_str().expect("UTF-8");
    for option in ["--start", "--beside"] {
        refused(
            &[&["replay"], &args[..], &[option, empty]].concat(),
            &[option, empty, "slabinfo", "expected the folder of a recording"],
        );
    }
    refused(&["replay", "--design", "slub", "--start", empty], &["--predict"]);
}

/// The given kernel equals the kernel of the bundled trace, except that one cache is not merged, and another cache has
/// larger objects.
#[test]
fn prediction_starts_from_tables_of_the_given_kernel() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let table =
        std::fs::read_to_string(workspace().join("sim/data/files-6.1.before.slabinfo")).expect("a table");
    let dentry = table.lines().find(|line| line.starts_with("dentry ")).expect("the cache must have a row");
    let before: u64 =
        dentry.split_whitespace().nth(14).expect("the cache must have slabs").parse().expect("a number");
    let changed = |line: &str| match line.split_whitespace().next() {
        // Ten slabs exist before the trace begins, and a slab has 16 objects instead of 21.
        Some("dentry") => "dentry 160 160 256 16 1 : tunables 0 0 0 : slabdata 10 10 0\n".to_owned(),
        // The attributes name another cache for this row.
        Some("shmem_inode_cache") => {
            "tmpfs_inode 0 0 1000 4 1 : tunables 0 0 0 : slabdata 0 0 0\n".to_owned()
        }
        _ => format!("{line}\n"),
    };
    let table: String = table.lines().map(changed).collect();
    std::fs::write(folder.path().join("before.slabinfo"), &table).expect("a file");
    let attributes = "name\tlink\nshmem_inode_cache\t:0001000\ntmpfs_inode\t:0001000\n";
    std::fs::write(folder.path().join("slab-attributes.tsv"), attributes).expect("a file");
    // This kernel has a separate cache for file names, as the one call site of its trace shows.
    let line = |event: &str| format!("    init-1 [000] ..... 1.000000: {event}\n");
    let trace = [
        line(
            "kmem_cache_alloc: call_site=__d_alloc+0x9/0x9 ptr=ffff888001000000 bytes_req=256 bytes_alloc=256 gfp_flags=GFP_KERNEL node=-1 accounted=false",
        ),
        line("kmem_cache_free: call_site=__d_free+0x9/0x9 ptr=ffff888001000000 name=names_of_files"),
    ];
    let predicted = || {
        let args = ["--design", "slub,slub", "--predict", "--start", path];
        let report = replay_json(&args);
        let caches = report["prediction"]["moments"][0]["caches"].as_array().expect("caches").clone();
        move |name: &str| {
            let cache = caches.iter().find(|cache| cache["name"] == name)?;
            Some((cache["traced"].as_u64()?, cache["predicted"].as_u64()?))
        }
    };
    let slabs = predicted();
    let (traced, dentries) = slabs("dentry").expect("dentries");
    let expected = 10 + (traced - before) * 21 / 16;
    assert!(
        dentries.abs_diff(expected) * 20 < expected,
        "{traced} after {before}: {expected} and {dentries}"
    );
    let (none, inodes) = slabs("tmpfs_inode").expect("the cache must be in the other kernel's table");
    assert!(none == 0 && inodes > 100 && slabs("shmem_inode_cache").is_none(), "{none} and {inodes}");
    // The same kernel has a separate cache for the objects of that call site.
    let row = "names_of_files 0 0 256 16 1 : tunables 0 0 0 : slabdata 0 0 0\n";
    std::fs::write(folder.path().join("before.slabinfo"), table + row).expect("a file");
    std::fs::write(folder.path().join("trace.txt"), trace.concat()).expect("a file");
    let slabs = predicted();
    let ((_, dentry), (_, names)) =
        (slabs("dentry").expect("dentries"), slabs("names_of_files").expect("names"));
    assert!(dentry < 20 && names + 20 > dentries, "{dentry} and {names} of {dentries}");
}

#[test]
fn prediction_ignores_changes_within_the_boot_variation() {
    let folder = || {
        let folder = tempfile::tempdir().expect("a folder");
        let table =
            std::fs::read_to_string(workspace().join("sim/data/files-6.1.end.slabinfo")).expect("a table");
        (folder, table)
    };
    let (real, table) = folder();
    let with_dentries = |slabs: u64| {
        let row = |line: &str| match line.starts_with("dentry ") {
            true => format!("dentry 900 900 192 21 1 : tunables 0 0 0 : slabdata {slabs} {slabs} 0\n"),
            false => format!("{line}\n"),
        };
        table.lines().map(row).collect::<String>()
    };
    let (again, _) = folder();
    std::fs::write(real.path().join("end.slabinfo"), with_dentries(40)).expect("a file");
    std::fs::write(again.path().join("end.slabinfo"), with_dentries(30)).expect("a file");
    let (real, again) = (real.path().to_str().expect("UTF-8"), again.path().to_str().expect("UTF-8"));
    let args = ["--design", "slub,slub", "--predict", "--beside", real];
    let changed = |args: &[&str]| replay_json(args)["prediction"]["moments"][0]["real"]["changed"].as_u64();
    assert_eq!((changed(&args), changed(&[&args[..], &["--again", again]].concat())), (Some(1), Some(0)));
}

#[test]
fn diff_command_names_fields_that_differ_between_reports() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (a, b) = (file("a.json"), file("b.json"));
    for (file, design) in [(&a, "slub"), (&b, "slub:slab_max_order=0")] {
        let (code, _, err) = exit_and_output(&uslab(&["replay", "--design", design, "--json", file]));
        assert_eq!(code, Some(0), "{err}");
    }
    let (code, same, _) = exit_and_output(&uslab(&["diff", &a, &a]));
    assert_eq!((code, same.starts_with("0 of ")), (Some(0), true), "{same}");
    let (_, other, _) = exit_and_output(&uslab(&["diff", &a, &b]));
    assert!(other.contains("slub:slab_max_order=0") && other.contains(".slabs"), "{other}");
    refused(&["diff", &a, &file("nosuch.json")], &["nosuch.json"]);
    for above in ["nan", "inf", "-1", "x"] {
        refused(&["diff", &a, &b, &format!("--above={above}")], &["--above", above, "a number from 0"]);
    }
    std::fs::write(file("text"), "not a report").expect("a file");
    refused(&["diff", &a, &file("text")], &["text", "expected a report"]);
}

#[test]
fn replay_of_a_converted_trace_gives_an_equal_report() {
    let (data, folder) = (workspace().join("sim/data"), tempfile::tempdir().expect("a folder"));
    for table in ["before.slabinfo", "before.buddyinfo", "before.zoneinfo", "end.slabinfo"] {
        std::fs::copy(data.join(format!("files-6.1.{table}")), folder.path().join(table)).expect("a table");
    }
    let (trace, out) = (folder.path().join("trace.zst"), folder.path().join("trace.ops"));
    std::fs::copy(data.join("files-6.1.trace.zst"), &trace).expect("the trace must be readable");
    let [trace, out] = [&trace, &out].map(|path| path.to_str().expect("UTF-8"));
    let (code, text, err) = exit_and_output(&uslab(&["convert", trace, out]));
    assert_eq!((code, text.contains("672,020 operations on 4 CPUs")), (Some(0), true), "{text}{err}");
    let run = |path: &str| {
        let (_, text, _) =
            exit_and_output(&uslab(&["replay", "--design", "slub,uslab", "--json", "-", path]));
        let report: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(report["operations"], 672_020);
        let of = |run: &Value| {
            let rows = run["moments"][0]["caches"].as_array().expect("rows").iter();
            // A band is wider if the trace hides objects, which a converted trace does not record.
            let of_design = |row: &Value| {
                let mut design = row["design"].clone();
                design.as_object_mut().expect("the report must have the design's numbers").remove("band");
                design
            };
            (run["paths"].clone(), rows.map(of_design).collect::<Vec<_>>())
        };
        report["designs"].as_array().expect("runs").iter().map(of).collect::<Vec<_>>()
    };
    let [converted, read] = [out, trace].map(run);
    assert!(converted == read && converted.len() == 2, "both runs must give equal --json");
    // The trace also runs with another number of CPUs, and as a page; but without the kernel's events it has no report.
    let moment = |path| {
        exit_and_output(&uslab(&[
            "replay", path, "--cpus", "3", "--at", "400000", "--design", "slub", "--json", "-",
        ]))
        .1
    };
    let [converted, read] =
        [out, trace].map(moment).map(|text| serde_json::from_str::<Value>(&text).expect("JSON"));
    assert!(
        converted["moments"] == read["moments"] && read["moments"][0]["operation"] == 400_000,
        "both runs must give equal --json"
    );
    let page = exit_and_output(&uslab(&["replay", out, "--html", "-"])).1;
    assert!(page.contains("--at") && page.ends_with("</html>\n"), "{} bytes", page.len());
    refused(&["replay", out], &["trace.ops", "--design"]);
    refused(&["replay", "--design", "slub", "--cpus", "0", out], &["--cpus 0", "1 to 1024"]);
    refused(&["convert", trace, trace], &["OUT", "not overwritten"]);
    std::fs::write(out, &std::fs::read(out).expect("the file must exist")[..5000])
        .expect("the file must be truncated");
    refused(&["scale", "--trace", out], &["trace.ops", "damaged"]);
}

//! Tests `uslab scale`, `uslab calibrate` and `uslab validate` as separate processes.

use crate::cli::{exit_and_output, refused, uslab};
use serde_json::Value;
use uslab_tests::workspace;

fn scale_json(args: &[&str]) -> Value {
    let args: Vec<&str> = ["scale", "--ops", "2000"].into_iter().chain(args.iter().copied()).collect();
    let (code, out, err) = exit_and_output(&uslab(&[&args[..], &["--json", "-"]].concat()));
    assert_eq!(code, Some(0), "{args:?}: {err}");
    serde_json::from_str(&out).expect("standard output must be only JSON")
}

#[test]
fn scale_report_has_a_curve_per_workload_and_design() {
    let args =
        ["--cpus", "1..8", "--workload", "pairs,remote=20", "--design", "bonwick94,slub:cpu_partial=0"];
    let report = scale_json(&args);
    let curves = report["curves"].as_array().expect("curves");
    let names: Vec<_> = curves.iter().map(|curve| (&curve["workload"], &curve["design"])).collect();
    let expected = [
        ("pairs", "bonwick94"),
        ("pairs", "slub:cpu_partial=0"),
        ("remote=20", "bonwick94"),
        ("remote=20", "slub:cpu_partial=0"),
    ];
    assert_eq!(names.len(), expected.len());
    for ((workload, design), expected) in names.into_iter().zip(expected) {
        assert_eq!((workload.as_str(), design.as_str()), (Some(expected.0), Some(expected.1)));
    }
    for curve in curves {
        let points = curve["points"].as_array().expect("points");
        let cpus: Vec<_> = points.iter().map(|point| point["cpus"].as_u64()).collect();
        assert_eq!(cpus, [1, 2, 4, 8].map(Some));
    }
    assert!(report["profile"]["lock"]["source"].as_str().is_some_and(|source| source.contains("calibrate")));
    assert_eq!(report, scale_json(&args), "equal seeds must give equal results");
}

#[test]
fn scale_csv_marks_simulated_points() {
    let (code, out, _) = exit_and_output(&uslab(&["scale", "--ops", "500", "--cpus", "1,3"]));
    assert_eq!(code, Some(0));
    assert!(out.contains("all numbers are simulated") && out.contains("profile vm2"), "{out}");
    assert_eq!(
        out.lines().filter(|line| line.contains('█') || line.contains("magazines01")).count(),
        4,
        "{out}"
    );
    let (code, csv, _) = exit_and_output(&uslab(&["scale", "--ops", "500", "--cpus", "1,3", "--csv", "-"]));
    assert_eq!(code, Some(0));
    let mut lines = csv.lines();
    let columns = lines.next().expect("a header").split(',').count();
    let rows: Vec<_> = lines.collect();
    assert_eq!((rows.len(), rows.iter().all(|row| row.split(',').count() == columns)), (4, true), "{csv}");
}

/// Regression test: `--csv` refused to replace a table that an earlier `--csv` had written, and a comma in a trace's
/// name added a column.
#[test]
fn csv_option_overwrites_the_table_of_an_earlier_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (trace, table) = (at("a,b.trace.zst"), at("curves.csv"));
    std::fs::copy(workspace().join("sim/data/files-6.1.trace.zst"), &trace).expect("a trace");
    for _ in 0..2 {
        let args = ["scale", "--trace", &trace, "--cpus", "1", "--csv", &table];
        let (code, _, error) = exit_and_output(&uslab(&args));
        assert_eq!(code, Some(0), "{error}");
    }
    let table = std::fs::read_to_string(table).expect("a table");
    let columns: Vec<_> = table.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.len() > 1 && columns.iter().all(|count| *count == columns[0]), "{table}");
}

#[test]
fn scale_accepts_a_calibrated_cost_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("here.json");
    let file = file.to_str().expect("UTF-8");
    let (code, out, err) = exit_and_output(&uslab(&["calibrate", "--rounds", "3", "--json", file]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for price in ["own", "lock", "exchange", "object", "batched", "relist", "slab", "line among all CPUs"] {
        assert!(out.lines().any(|line| line.starts_with(price)), "{price}: {out}");
    }
    assert_eq!(scale_json(&["--cpus", "2", "--profile", file])["profile"]["name"], "here");
}

#[test]
fn validate_command_compares_predictions_with_measurements() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let file = file.to_str().expect("UTF-8");
    let (code, out, err) =
        exit_and_output(&uslab(&["validate", "--rounds", "2", "--seed", "7", "--json", file]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_slice(&std::fs::read(file).expect("a report")).expect("JSON");
    let points = report["points"].as_array().expect("points");
    let cpus: Vec<_> = points.iter().map(|point| point["cpus"].as_u64().expect("CPUs")).collect();
    let counts = if cpus.iter().any(|cpus| *cpus > 1) { 2 } else { 1 };
    assert_eq!(
        (points.len(), cpus[0], &report["seed"], &report["rounds"]),
        (7 * counts, 1, &7.into(), &2.into())
    );
    for point in points {
        let of = |key: &str| point[key].as_f64().expect("a number");
        assert!(of("measured") > 0.0 && of("script") > 0.0 && of("predicted") > 0.0, "{point}");
        assert!((of("ratio") - of("predicted") / of("measured")).abs() < 1e-9, "{point}");
        assert_eq!(point["within"], (0.7..=1.3).contains(&of("ratio")), "{point}");
        let name = point["workload"].as_str().expect("a name");
        assert!(out.lines().any(|line| line.starts_with(name)), "{name}: {out}");
    }
    // The machine may be busy with other work, so the report is compared with its own points only.
    let off = |cpus: u64| points.iter().filter(|at| at["cpus"] == cpus && at["within"] == false).count();
    let most = cpus.iter().copied().max().expect("the list must not be empty");
    let validated = if off(1) > 1 {
        0
    } else if off(most) > 1 {
        1
    } else {
        most
    };
    assert_eq!(report["profile"]["validated_cpus"], validated, "{out}");
    // The report can be used as a profile, and `--profile` names the profile to validate.
    assert_eq!(scale_json(&["--cpus", "1", "--profile", file])["profile"], report["profile"]);
    let (code, out, _) =
        exit_and_output(&uslab(&["validate", "--rounds", "1", "--profile", "milan2s", "--json", "-"]));
    let report: Value = serde_json::from_str(&out).expect("standard output must be only JSON");
    assert_eq!((code, &report["profile"]["name"]), (Some(0), &"milan2s".into()));
}

/// Writes a calibration profile that is validated for up to two CPUs.
fn validated_profile(folder: &tempfile::TempDir) -> String {
    let mut report = scale_json(&["--cpus", "1"]);
    report["profile"]["validated_cpus"] = 2.into();
    let file = folder.path().join("validated.json");
    std::fs::write(&file, report["profile"].to_string()).expect("a file");
    file.to_str().expect("UTF-8").to_owned()
}

#[test]
fn scale_marks_cpu_counts_validated_by_the_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = validated_profile(&folder);
    let args = ["scale", "--ops", "500", "--cpus", "1,2,4", "--design", "slub", "--profile", &file];
    let (_, out, _) = exit_and_output(&uslab(&args));
    assert!(out.contains("Up to 2 CPUs, marked with *,"), "{out}");
    let marked: Vec<_> =
        out.lines().filter(|line| line.starts_with("slub")).map(|line| line.contains('*')).collect();
    assert_eq!(marked, [true, true, false], "{out}");
    let (_, csv, _) = exit_and_output(&uslab(&[&args[..], &["--csv", "-"]].concat()));
    let validated: Vec<_> = csv.lines().map(|line| line.split(',').nth(3).expect("a column")).collect();
    assert_eq!(validated, ["validated", "true", "true", "false"]);
}

#[test]
fn scale_picture_has_a_curve_and_text_per_design() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = validated_profile(&folder);
    let svg = |args: &[&str]| {
        let args = [&["scale", "--ops", "2000", "--cpus", "1..8", "--svg", "-"], args].concat();
        let (code, out, err) = exit_and_output(&uslab(&args));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
        assert!(out.starts_with("<svg ") && out.ends_with("</svg>\n"), "{out}");
        out
    };
    let curves = |svg: &str| svg.matches("<polyline").count();
    let pairs = svg(&["--workload", "pairs", "--design", "bonwick94,magazines01", "--profile", "milan2s"]);
    let report = scale_json(&[
        "--cpus",
        "1..8",
        "--workload",
        "pairs",
        "--design",
        "bonwick94",
        "--profile",
        "milan2s",
    ]);
    let first = report["curves"][0]["points"][0]["operations_per_us"].as_f64().expect("a number");
    assert!(pairs.contains(&format!(" bonwick94: {first:.1} on 1, ")), "{pairs}");
    assert_eq!((curves(&pairs), pairs.matches("<circle").count()), (2, 8), "{pairs}");
    assert!(
        pairs.contains("<title id=") && pairs.contains("<desc id=") && pairs.contains("Magazines and Vmem")
    );
    assert!(!pairs.contains("class=\"validated\""), "{pairs}");
    // Equal distances are equal ratios, so eight CPUs are three times as far from the origin as two.
    let points = pairs.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a curve");
    let x: Vec<f64> = points.split(' ').map(|at| at.split(',').next().unwrap().parse().unwrap()).collect();
    assert!((x[3] - x[0] - 3.0 * (x[1] - x[0])).abs() < 0.5, "{x:?}");
    // The paper's statement is about its own layer only. With several workloads, lines have their names.
    let many = svg(&["--workload", "pairs,server=10", "--design", "slub,slab:limit=8", "--profile", &file]);
    assert!(!many.contains("Magazines and Vmem") && many.contains("class=\"validated\""), "{many}");
    assert!(curves(&many) == 4 && many.contains(">slab:limit=8, server=10</text>"), "{many}");
}

#[test]
fn scale_replays_a_trace_on_its_recorded_cpus() {
    let trace = workspace().join("sim/data/files-6.1.trace.zst");
    let trace = trace.to_str().expect("UTF-8");
    let args = ["scale", "--trace", trace, "--design", "bonwick94,uslab-model", "--json", "-"];
    let (code, out, err) = exit_and_output(&uslab(&args));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(out, exit_and_output(&uslab(&args)).1, "equal traces must give equal bytes");
    let report: Value = serde_json::from_str(&out).expect("standard output must be only JSON");
    for curve in report["curves"].as_array().expect("curves") {
        let points = curve["points"].as_array().expect("points");
        assert_eq!((points.len(), &points[0]["cpus"]), (1, &4.into()), "{curve}");
        assert_eq!(curve["workload"].as_str(), Some(trace));
        assert!(
            points[0]["operations"].as_u64() > Some(1000) && points[0]["slabs"].as_u64() > Some(10),
            "{curve}"
        );
        assert!(report.get("seed").is_none() && points[0]["ns"].as_f64() > Some(0.0));
    }
    // On fewer CPUs than traced, one CPU does the work of two.
    let both = ["scale", "--trace", trace, "--cpus", "4,3", "--design", "uslab-model", "--json", "-"];
    let folded: Value = serde_json::from_str(&exit_and_output(&uslab(&both)).1).expect("JSON");
    let [three, four] = [0, 1].map(|i| &folded["curves"][0]["points"][i]);
    assert_eq!((&three["cpus"], four), (&3.into(), &report["curves"][1]["points"][0]));
    assert_eq!(three["operations"], four["operations"]);
    assert!(three["ns"].as_f64() > four["ns"].as_f64(), "{three} {four}");
    let (_, text, _) = exit_and_output(&uslab(&["scale", "--trace", trace]));
    assert!(text.contains("runs its operations of the trace"), "{text}");
}

#[test]
fn error_names_the_invalid_scale_option() {
    for (args, parts) in [
        (&["--cpus", "0"][..], ["--cpus", "from 1 to 1024"]),
        (&["--cpus", "8..2"], ["8..2", "FIRST..LAST"]),
        (&["--workload", "churn"], ["unknown workload `churn`", "handoff=N"]),
        (&["--workload", "remote=101"], ["remote=101", "from 1 to 100"]),
        (&["--design", "uslab"], ["uslab-model", "no clock"]),
        (&["--design", "slob"], ["unknown design `slob`", "magazines01"]),
        (&["--profile", "nosuch"], ["--profile nosuch", "expected vm2, milan2s or a file"]),
        (&["--size", "9000"], ["--size", "1..=8192"]),
        (&["--ops", "0"], ["--ops", "0"]),
        (&["--trace", "nosuch.txt"], ["nosuch.txt", "No such file"]),
        (&["--trace", "x", "--workload", "pairs"], ["--trace", "--workload"]),
        (&["--trace", "x", "--svg", "y"], ["--trace", "--svg"]),
    ] {
        refused(&[&["scale"], args].concat(), &parts);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cut.json");
    std::fs::write(&file, "{\"name\": \"cut\"}").expect("a file");
    let file = file.to_str().expect("UTF-8");
    refused(&["scale", "--profile", file], &[file, "missing field"]);
    refused(&["scale", "--csv", "-", "--json", "-"], &["the same file"]);
    refused(&["scale", "--csv", "-", "--svg", "-"], &["the same file"]);
    refused(&["scale", "--svg", file], &[file, "not a picture"]);
    refused(&["validate", "--rounds", "0"], &["--rounds", "1..=10000"]);
    refused(&["validate", "--profile", "nosuch"], &["--profile nosuch", "expected vm2, milan2s or a file"]);
}

//! `uslab scale` and `uslab calibrate` from outside.

use crate::cli::{refused, said, uslab};
use serde_json::Value;

fn scale_json(args: &[&str]) -> Value {
    let args: Vec<&str> = ["scale", "--ops", "2000"].into_iter().chain(args.iter().copied()).collect();
    let (code, out, err) = said(&uslab(&[&args[..], &["--json", "-"]].concat()));
    assert_eq!(code, Some(0), "{args:?}: {err}");
    serde_json::from_str(&out).expect("JSON and nothing else on standard output")
}

#[test]
fn a_curve_for_each_workload_and_design_and_a_point_for_each_count() {
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
    assert_eq!(report, scale_json(&args), "the same seed");
}

#[test]
fn text_and_csv_show_the_points_and_say_what_is_simulated_only() {
    let (code, out, _) = said(&uslab(&["scale", "--ops", "500", "--cpus", "1,3"]));
    assert_eq!(code, Some(0));
    assert!(out.contains("simulated only") && out.contains("profile vm2"), "{out}");
    assert_eq!(
        out.lines().filter(|line| line.contains('█') || line.contains("magazines01")).count(),
        4,
        "{out}"
    );
    let (code, csv, _) = said(&uslab(&["scale", "--ops", "500", "--cpus", "1,3", "--csv", "-"]));
    assert_eq!(code, Some(0));
    let mut lines = csv.lines();
    let columns = lines.next().expect("a header").split(',').count();
    let rows: Vec<_> = lines.collect();
    assert_eq!((rows.len(), rows.iter().all(|row| row.split(',').count() == columns)), (4, true), "{csv}");
}

#[test]
fn a_profile_that_was_measured_here_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("here.json");
    let file = file.to_str().expect("UTF-8");
    let (code, out, err) = said(&uslab(&["calibrate", "--rounds", "3", "--json", file]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for price in ["own", "lock", "exchange", "object", "batched", "relist", "slab", "line among all CPUs"] {
        assert!(out.lines().any(|line| line.starts_with(price)), "{price}: {out}");
    }
    assert_eq!(scale_json(&["--cpus", "2", "--profile", file])["profile"]["name"], "here");
}

#[test]
fn what_cannot_be_scaled_is_refused_by_name() {
    for (args, parts) in [
        (&["--cpus", "0"][..], ["--cpus", "from 1 to 1024"]),
        (&["--cpus", "8..2"], ["8..2", "FIRST..LAST"]),
        (&["--workload", "churn"], ["no workload `churn`", "handoff=N"]),
        (&["--workload", "remote=101"], ["remote=101", "from 1 to 100"]),
        (&["--design", "uslab"], ["uslab-model", "no clock"]),
        (&["--design", "slob"], ["no design `slob`", "magazines01"]),
        (&["--profile", "nosuch"], ["--profile nosuch", "expected vm2, milan2s or a file"]),
        (&["--size", "9000"], ["--size", "1..=8192"]),
        (&["--ops", "0"], ["--ops", "0"]),
    ] {
        refused(&[&["scale"], args].concat(), &parts);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cut.json");
    std::fs::write(&file, "{\"name\": \"cut\"}").expect("a file");
    let file = file.to_str().expect("UTF-8");
    refused(&["scale", "--profile", file], &[file, "missing field"]);
    refused(&["scale", "--csv", "-", "--json", "-"], &["one file"]);
}

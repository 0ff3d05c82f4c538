//! Tests `uslab sweep` and `uslab tune`: merged shards must equal a whole run, byte for byte, even if shards were
//! interrupted or run twice.

use crate::cli::{exit_and_output, refused, sample};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use uslab_tests::workspace;

/// A sweep of 24 items; each item takes a few milliseconds.
const SMALL: &str = "\
workload = [\"bursts=64\", \"remote=20\"]
design = [\"bonwick94\", \"uslab-model\"]
cpus = [1, 2]
seed = { from = 1, to = 2 }
ops = 300
[knobs.uslab-model]
capacity = [8, 64]
";

/// Returns the name of the program in the form that its messages show.
fn program() -> String {
    uslab_tests::uslab().to_str().expect("UTF-8").to_owned()
}

/// Returns the `uslab` command, without the environment variables of batch systems.
fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(uslab_tests::uslab());
    let engines = ["TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX", "TASK_STEP"];
    engines.iter().for_each(|name| _ = command.env_remove(format!("SLURM_ARRAY_{name}")));
    command.env_remove("JOB_COMPLETION_INDEX").env_remove("JOB_COMPLETIONS").env("NO_COLOR", "1");
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn run_with(args: &[&str], variables: &[(&str, &str)]) -> Output {
    command(args, variables).output().expect("the program must start")
}

/// Returns the standard output of a command, which must succeed.
#[track_caller]
fn successful_output(args: &[&str], variables: &[(&str, &str)]) -> String {
    let (code, stdout, err) = exit_and_output(&run_with(args, variables));
    // On a slow machine a run reports its progress.
    let is_told = |line: &&str| line.contains(" items run in ") || line.starts_with("uslab: wrote --");
    let err: String = err.lines().filter(|line| !is_told(line)).collect();
    assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}: {stdout}");
    stdout
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&successful_output(&[args, &["--json"]].concat(), &[])).expect("JSON")
}

/// A test folder that contains the definition of a sweep.
struct Sweep {
    folder: tempfile::TempDir,
    file: String,
}

impl Sweep {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a sweep.toml");
        std::fs::write(&file, text).expect("a file");
        Self { file: file.to_str().expect("UTF-8").to_owned(), folder }
    }
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }
    /// Returns the path of an item's result in the folder `results`; to find its name, the function runs only this item
    /// with another results folder.
    fn item(&self, results: &str, number: u64) -> PathBuf {
        let single_folder = format!("only-{number}");
        self.run(&single_folder, &["--item", &number.to_string()], &[]);
        let [(name, _)] = &self.files(&single_folder)[..] else { panic!("the sweep must have one result") };
        Path::new(&self.path(results)).join("items").join(name)
    }
    /// Returns the names and contents of all files in a folder of results.
    fn files(&self, results: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let items = Path::new(&self.path(results)).join("items");
        let folders = std::fs::read_dir(&items).into_iter().flatten().map(|entry| entry.unwrap().path());
        let files = folders.flat_map(|folder| folder.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        let mut files: Vec<_> = files
            // A file that is being written may be renamed between the listing and the read.
            .filter_map(|file| match std::fs::read(&file) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                read => Some((file.strip_prefix(&items).unwrap().to_owned(), read.unwrap())),
            })
            .collect();
        files.sort();
        files
    }
    fn run(&self, results: &str, options: &[&str], variables: &[(&str, &str)]) -> String {
        let results = self.path(results);
        successful_output(
            &[&["sweep", "run", &self.file, "--results", &results], options].concat(),
            variables,
        )
    }
    /// Returns the merged results as CSV and as a page.
    fn merged(&self, results: &str) -> [Vec<u8>; 2] {
        let paths = ["csv", "html"].map(|end| self.path(&format!("{results}.{end}")));
        let [csv, html] = &paths;
        let results = self.path(results);
        let args = ["sweep", "merge", &self.file, "--results", &results];
        successful_output(&[&args[..], &["--csv", csv, "--html", html]].concat(), &[]);
        paths.map(|path| std::fs::read(path).expect("written"))
    }
}

fn example() -> String {
    workspace().join("sim/data/sweep.toml").to_str().expect("UTF-8").to_owned()
}

#[test]
fn example_sweep_reports_200_items() {
    let report = json(&["sweep", &example()]);
    assert_eq!((&report["items"], &report["settings"]), (&200.into(), &10.into()), "{report}");
    let text = successful_output(&["sweep", &example()], &[]);
    assert!(
        text.contains("200 items")
            && text.contains("uslab-model: 6, capacity = 8, 64, depot_limit = 10, 40, 160"),
        "{text}"
    );
    assert!(text.contains("size          1  64 bytes of an object"), "{text}");
    assert!(
        text.contains("    depot_limit: full magazines that the depot keeps: 0 to 4096, by default 1024"),
        "{text}"
    );
    assert!(text.contains(&format!("`{} sweep run ", program())), "{text}");
}

/// The book contains this sweep as an example, with the output of its `merge`.
#[test]
fn book_contains_the_current_output_of_sweep_merge() {
    let page = std::fs::read_to_string(workspace().join("slab/book/src/sweep.md")).unwrap();
    let block = |kind: &str| page.split_once(&format!("```{kind}\n")).unwrap().1.split_once("```").unwrap().0;
    let text = std::fs::read_to_string(example()).unwrap();
    assert_eq!(
        text.split_once('\n').unwrap().1,
        block("toml"),
        "the files must be equal except for the first line, a comment"
    );
    let sweep = Sweep::new(block("toml"));
    sweep.run("r", &[], &[]);
    let run_output = successful_output(&["sweep", "merge", &sweep.file, "--results", &sweep.path("r")], &[]);
    assert!(run_output == block("text"), "expected on the page:\n{run_output}");
}

#[test]
fn merged_sweep_shards_equal_the_unsharded_sweep() {
    let sweep = Sweep::new(SMALL);
    let whole_run = sweep.run("whole", &[], &[]);
    assert!(whole_run.starts_with("24 items: 24 run in "), "{whole_run}");
    let expected = sweep.merged("whole");
    // The Slurm array begins at 3 and has steps of 2.
    for task in ["3", "5", "7", "9", "11"] {
        let array = [
            ("SLURM_ARRAY_TASK_ID", task),
            ("SLURM_ARRAY_TASK_COUNT", "5"),
            ("SLURM_ARRAY_TASK_MIN", "3"),
            ("SLURM_ARRAY_TASK_MAX", "11"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
        ];
        let run_output = sweep.run("slurm", &["--threads", "1"], &array);
        assert!(run_output.starts_with("share ") && run_output.contains("/5: "), "{run_output}");
    }
    assert!(sweep.merged("slurm") == expected);
    for index in ["0", "1", "2"] {
        sweep.run("jobs", &[], &[("JOB_COMPLETION_INDEX", index), ("JOB_COMPLETIONS", "3")]);
        sweep.run("more-jobs", &["--shards", "3"], &[("JOB_COMPLETION_INDEX", index)]);
    }
    assert!(sweep.merged("jobs") == expected && sweep.merged("more-jobs") == expected);
    // The test runs more shards than items, last one first.
    for index in (0..30).rev() {
        sweep.run("shares", &["--shard", &format!("{index}/30")], &[]);
    }
    assert!(sweep.merged("shares") == expected);
    for number in 0..24 {
        sweep.run("items", &["--item", &number.to_string()], &[("SLURM_ARRAY_TASK_ID", "x")]);
    }
    assert!(sweep.merged("items") == expected);
}

#[test]
fn damaged_sweep_results_are_run_again() {
    let sweep = Sweep::new(SMALL);
    sweep.run("r", &[], &[]);
    let expected = sweep.merged("r");
    std::fs::remove_file(sweep.item("r", 3)).unwrap();
    let item_file = sweep.item("r", 17);
    let text = std::fs::read(&item_file).unwrap();
    std::fs::write(&item_file, &text[..text.len() / 2]).unwrap();
    let results = sweep.path("r");
    let csv = sweep.path("none.csv");
    for args in [&["sweep", "status"][..], &["sweep", "merge", "--csv", &csv]] {
        let (code, _, err) =
            exit_and_output(&run_with(&[args, &[&sweep.file, "--results", &results]].concat(), &[]));
        assert_eq!(code, Some(1), "{err}");
        let run = format!("`{} sweep run '{}' --results {results}`", program(), sweep.file);
        assert!(err.contains(&format!("item 17 damaged: {}: ", item_file.display())), "{err}");
        assert!(err.ends_with(&format!("2 items have no result; {run} runs the missing items\n")), "{err}");
        assert_eq!(err.lines().count(), 2, "{err}");
    }
    assert!(!Path::new(&csv).exists(), "a partial sweep must write no report");
    let (code, stdout, _) = exit_and_output(&run_with(
        &["sweep", "merge", &sweep.file, "--results", &results, "--partial", "--csv", "-"],
        &[],
    ));
    assert_eq!((code, stdout.lines().count()), (Some(0), 1 + 22));
    let (code, stdout, err) =
        exit_and_output(&run_with(&["sweep", "run", &sweep.file, "--results", &results], &[]));
    assert_eq!(code, Some(0), "{err}");
    assert!(stdout.contains(": 2 run in ") && stdout.contains("22 kept"), "{stdout}");
    assert!(err.contains(item_file.to_str().unwrap()) && err.contains("the item was run again"), "{err}");
    assert!(sweep.merged("r") == expected);
}

#[test]
fn sweep_result_equals_the_scale_result() {
    let sweep = Sweep::new(SMALL);
    sweep.run("r", &[], &[]);
    let [csv, ..] = sweep.merged("r");
    let mut rows = csv::Reader::from_reader(&csv[..]);
    let header = rows.headers().unwrap().clone();
    let rows: Vec<_> = rows.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 24);
    let column = |row: &csv::StringRecord, name: &str| {
        row[header.iter().position(|column| column == name).expect("a column")].to_owned()
    };
    for row in rows.iter().step_by(5) {
        let value = |name| column(row, name);
        let report = json(&[
            "scale",
            "--workload",
            &value("work"),
            "--design",
            &value("setting"),
            "--cpus",
            &value("cpus"),
            "--seed",
            &value("seed"),
            "--ops",
            "300",
        ]);
        let point = &report["curves"][0]["points"][0];
        for (name, field) in [
            ("ns", &point["ns"]),
            ("operations_per_us", &point["operations_per_us"]),
            ("operations", &point["operations"]),
            ("lists_contended", &point["lists"]["contended"]),
            ("of_cpu", &point["paths"]["cpu"]),
            ("slabs", &point["slabs"]),
        ] {
            assert_eq!(value(name).parse::<f64>().unwrap(), field.as_f64().unwrap(), "{name} of {row:?}");
        }
        let knob = value("knob_capacity");
        assert_eq!(knob.is_empty(), value("design") == "bonwick94", "{row:?}");
        assert!(knob.is_empty() || value("setting") == format!("uslab-model:capacity={knob}"), "{row:?}");
    }
}

#[test]
fn sweep_report_shows_the_best_setting() {
    let sweep = Sweep::new(SMALL);
    sweep.run("r", &[], &[]);
    let [.., html] = sweep.merged("r");
    let html = String::from_utf8(html).unwrap();
    assert!(
        html.starts_with("<!DOCTYPE html>") && html.contains("<svg") && !html.contains("http-equiv"),
        "{}",
        html.len()
    );
    assert!(!html.contains("<script") && !html.contains("<link") && !html.contains("src="));
    let results = sweep.path("r");
    for (metric, is_more_better) in [("operations_per_us", true), ("slabs", false)] {
        let report = json(&["sweep", "merge", &sweep.file, "--results", &results, "--by", metric]);
        let best = report["best"].as_array().unwrap();
        assert_eq!(best.len(), 4, "two workloads on two numbers of CPUs");
        let csv = sweep.merged("r")[0].clone();
        let mut rows = csv::Reader::from_reader(&csv[..]);
        let rows: Vec<std::collections::HashMap<String, String>> =
            rows.deserialize().collect::<Result<_, _>>().unwrap();
        for best in best {
            let mean_of = |setting: &str| {
                let matches_best = |row: &&std::collections::HashMap<String, String>| {
                    row["work"] == best["work"]
                        && row["cpus"].parse().ok() == best["cpus"].as_u64()
                        && row["setting"] == setting
                };
                let values: Vec<f64> =
                    rows.iter().filter(matches_best).map(|row| row[metric].parse().unwrap()).collect();
                values.iter().sum::<f64>() / values.len() as f64
            };
            let mean = best["mean"].as_f64().unwrap();
            assert!((mean - mean_of(best["setting"].as_str().unwrap())).abs() <= mean * 1e-9, "{best}");
            for other_setting in ["bonwick94", "uslab-model:capacity=8", "uslab-model:capacity=64"] {
                let other_setting = mean_of(other_setting);
                assert!(
                    if is_more_better {
                        mean >= other_setting * (1.0 - 1e-9)
                    } else {
                        mean <= other_setting * (1.0 + 1e-9)
                    },
                    "{best}"
                );
            }
        }
        let [design] = &report["sensitivity"].as_array().unwrap()[..] else {
            panic!("one design must have knobs: {report}")
        };
        assert_eq!((&design["design"], &design["method"]), (&"uslab-model".into(), &"grid".into()));
        let knob = &design["knobs"][0];
        assert_eq!((&knob["knob"], knob["places"].as_array().unwrap().len()), (&"capacity".into(), 4));
        // The sweep has only one option, so all differences between settings come from it.
        for index in ["first", "total"] {
            let index = knob["index"][index].as_f64().unwrap();
            assert!((index - 1.0).abs() < 1e-9 || index == 0.0, "{knob}");
        }
        assert!((0.0..=1.0).contains(&design["chance"].as_f64().unwrap()), "{design}");
    }
}

#[test]
fn sweep_identity_changes_when_a_trace_changes() {
    let sweep = Sweep::new("trace = [\"t.txt.zst\"]\ndesign = [\"slub\", \"bonwick94\"]\n");
    let trace = sweep.path("t.txt.zst");
    std::fs::copy(sample("ftrace-6.1.txt.zst"), &trace).unwrap();
    let before = json(&["sweep", &sweep.file]);
    assert_eq!(before["items"], 2);
    sweep.run("r", &[], &[]);
    let record: Value = serde_json::from_slice(&std::fs::read(sweep.item("r", 0)).unwrap()).unwrap();
    let point = &json(&["scale", "--trace", &trace, "--design", "slub"])["curves"][0]["points"][0];
    assert_eq!(record["result"]["done"]["ns"], point["ns"]);
    assert_eq!((&record["result"]["done"]["cpus"], &record["of"]["cpus"]), (&point["cpus"], &Value::Null));
    // The same files in another folder are the same sweep.
    let other_sweep = Sweep::new("trace = [\"t.txt.zst\"]\ndesign = [\"slub\", \"bonwick94\"]\n");
    let inputs = sweep.folder.path().to_str().unwrap();
    assert_eq!(json(&["sweep", &other_sweep.file, "--inputs", inputs])["sweep"], before["sweep"]);
    // A table that a replay reads is part of the trace; another file next to it is not.
    let table = |name: &str| {
        std::fs::copy(workspace().join("sim/data/files-6.1.end.slabinfo"), sweep.path(name)).unwrap()
    };
    table("other.slabinfo");
    assert_eq!(json(&["sweep", &sweep.file])["sweep"], before["sweep"]);
    table("end.slabinfo");
    assert_ne!(json(&["sweep", &sweep.file])["sweep"], before["sweep"]);
    std::fs::remove_file(sweep.path("end.slabinfo")).unwrap();
    // Another trace under the same name is another sweep.
    std::fs::copy(sample("ftrace-6.12-tgid-hashed.txt.zst"), &trace).unwrap();
    let after = json(&["sweep", &sweep.file]);
    assert_ne!(after["sweep"], before["sweep"]);
    let hash = before["sweep"].as_str().unwrap();
    refused(
        &["sweep", "run", &sweep.file, "--hash", hash],
        &["--hash", hash, after["sweep"].as_str().unwrap()],
    );
    let status = parse_json_output(&run_with(
        &["sweep", "status", &sweep.file, "--results", &sweep.path("r"), "--json"],
        &[],
    ));
    assert_eq!((&status["done"], &status["missing"]), (&0.into(), &2.into()));
}

fn parse_json_output(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn cpus_axis_of_a_sweep_sets_the_cpus_of_each_replay() {
    let sweep = Sweep::new("trace = [\"t.zst\"]\ndesign = [\"slub\"]\ncpus = [2, 8]\n");
    std::fs::copy(sample("ftrace-6.1.txt.zst"), sweep.path("t.zst")).unwrap();
    sweep.run("r", &[], &[]);
    let cpus = |number| {
        let record: Value = serde_json::from_slice(&std::fs::read(sweep.item("r", number)).unwrap()).unwrap();
        record["result"]["done"]["cpus"].clone()
    };
    assert_eq!([cpus(0), cpus(1)], [2, 8]);
}

#[test]
fn error_about_an_invalid_sweep_names_the_setting() {
    for (text, parts) in [
        ("design = [\"slub\"]\n", &["neither `trace` nor `workload`"][..]),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slob\"]\n",
            &[":3: design: unknown design `slob`", "magazines01"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"uslab\"]\n",
            &["design: uslab has no clock", "uslab-model"],
        ),
        (
            "workload = [\"churn\"]\ncpus = 1\ndesign = [\"slub\"]\n",
            &[":1: workload: unknown workload `churn`"],
        ),
        ("workload = [\"pairs\"]\ndesign = [\"slub\"]\n", &["cpus: expected numbers of CPUs"]),
        ("workload = [\"pairs\"]\ncpus = 0\ndesign = [\"slub\"]\n", &[":2: cpus: 0: expected 1 to 1024"]),
        (
            "workload = [\"pairs\"]\ncpus = 1\nsize = 9000\ndesign = [\"slub\"]\n",
            &[":3: size: 9000: expected 1 to 8192"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slub\"]\n[knobs.slub]\ncapacity = 8\n",
            &[":5: knobs.slub.capacity: slub: unknown field `capacity`"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slub\"]\n[knobs.slab]\nlimit = 8\n",
            &[":4: knobs.slab: the list `design` has no design"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slab\"]\n[knobs.slab]\nlimit = [2, 8]\nbatchcount = [1, 4]\n",
            &[
                ":6: knobs.slab.batchcount: slab: batchcount=4: expected at most `limit`, which is 2",
                "(in slab:batchcount=4:limit=2)",
            ],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\nthreads = 3\ndesign = [\"slub\"]\n",
            &[":3: unknown field `threads`"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = { from = 4, to = 2 }\ndesign = [\"slub\"]\n",
            &[":2: cpus: from 4 to 2"],
        ),
        (
            "workload = \"pairs\"\ncpus = 1\ndesign = \"slub\"\n[knobs.slub]\nmin_partial = 5\ncpu_partial = { from = 1, to = 9, factor = 1 }\n",
            &[":6: knobs.slub.cpu_partial: factor 1: expected more than 1"],
        ),
        (
            "workload = \"pairs\"\ncpus = 1\ndesign = \"uslab-model\"\n[knobs.uslab-model]\nstock = [\n1,\n100000]\n",
            &[":7: knobs.uslab-model.stock: uslab-model: stock=100000: expected 0 to 65535"],
        ),
        (
            "workload = \"pairs\"\ncpus = 1\ndesign = [3]\n",
            &[":3: design: 3: expected a name, or a list of names"],
        ),
        // Regression test: the options of an unknown design were reported instead of the design.
        (
            "workload = \"pairs\"\ndesign = \"slubb\"\ncpus = 1\n[knobs.slub]\ncpu_partial = 3\n",
            &[":2: design: unknown design `slubb`; expected one of uslab-model, slub"],
        ),
        ("workload = pairs\n", &[":1: "]),
        (
            "workload = [\"pairs\"]\ncpus = 1\nprofile = \"none\"\ndesign = [\"slub\"]\n",
            &[":3: profile: none", "vm2"],
        ),
        (
            "trace = [\"none.zst\"]\ndesign = [\"slub\"]\n",
            &[":1: trace: none.zst: No such file", ", in /", "--inputs"],
        ),
        ("trace = [\".\"]\ndesign = [\"slub\"]\n", &["trace: ", "directory"]),
        (
            "trace = [\"a sweep.toml\"]\nseed = 3\ndesign = [\"slub\"]\n",
            &[":2: seed: a trace fixes this value"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slub\", \"slub\"]\n",
            &[":3: design: slub is given twice"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\n\"slub:cpu_partial=3\",\n\"slub\",\n]\n[knobs.slub]\ncpu_partial = [3, 4]\n",
            &[":8: knobs.slub.cpu_partial: `cpu_partial` of slub is set twice"],
        ),
        (
            "workload = [\n  \"pairs\",\n  \"churn\",\n]\ncpus = 1\ndesign = [\"slub\"]\n",
            &[":3: workload: unknown workload `churn`"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = [\n  1,\n  2000,\n]\ndesign = [\"slub\"]\n",
            &[":4: cpus: 2000: expected 1 to 1024"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slub\"]\n[sample]\npoints = 0\n",
            &[":5: sample.points: 0: expected 1 to 1000000"],
        ),
        (
            "workload = [\"pairs\"]\ncpus = { from = 1, to = 1000 }\nops = { from = 1, to = 99999 }\nthink = { from = 1, to = 99999 }\n\
             design = [\"slub\"]\n",
            &["items; expected at most 1000000000"],
        ),
    ] {
        let sweep = Sweep::new(text);
        for verb in [
            &["sweep"][..],
            &["sweep", "run"],
            &["sweep", "merge"],
            &["sweep", "status"],
            &["sweep", "slurm"],
            &["tune"],
        ] {
            let args = [verb, &[&sweep.file]].concat();
            refused(&args, &[&["a sweep.toml"], parts].concat());
            assert_eq!(exit_and_output(&run_with(&args, &[])).2.lines().count(), 1, "{text}");
        }
        assert_eq!(sweep.folder.path().read_dir().unwrap().count(), 1, "no result must be written: {text}");
    }
    let sweep = Sweep::new(SMALL);
    for (options, parts) in [
        (&["--shard", "5/5"][..], &["--shard", "from 0 to 4"][..]),
        (&["--shard", "5"], &["--shard", "I/N"]),
        (&["--item", "24"], &["--item 24", "expected 0 to 23"]),
        (&["--shards", "5"], &["--shards 5", "expected --shard I/5"]),
        (&["--hash", "00"], &["--hash 00", "is now sweep "]),
    ] {
        refused(&[&["sweep", "run", &sweep.file], options].concat(), parts);
    }
    refused(&["sweep", "run", "/nowhere.toml"], &["/nowhere.toml", "No such file"]);
    refused(&["sweep", "merge", &sweep.file, "--by", "speed"], &["--by", "operations_per_us"]);
    refused(&["sweep", "merge", &sweep.file, "--csv", &sweep.file], &["not a table of a sweep"]);
    refused(&["sweep", "slurm", &sweep.file, "--partition", "a b"], &["--partition", "letters, digits"]);
    for time in ["banana", "01:00", "0"] {
        refused(&["sweep", "slurm", &sweep.file, "--time", time], &["--time", time, "as 01:00:00"]);
    }
    let single_sweep = Sweep::new("workload = [\"pairs\"]\ncpus = 1\ndesign = [\"slub\"]\n");
    refused(&["tune", &single_sweep.file], &["the sweep has only one setting"]);
    let (code, _, err) = exit_and_output(&run_with(
        &["sweep", "run", &sweep.file],
        &[("JOB_COMPLETION_INDEX", "7"), ("JOB_COMPLETIONS", "7")],
    ));
    assert_eq!(code, Some(2));
    assert!(err.contains("JOB_COMPLETION_INDEX=7: share 7/7: expected a shard number from 0 to 6"), "{err}");
}

#[test]
fn sweep_refuses_a_result_of_another_item() {
    let (sweep, other_sweep) = (Sweep::new(SMALL), Sweep::new(&SMALL.replace("ops = 300", "ops = 301")));
    sweep.run("r", &[], &[]);
    other_sweep.run("r", &["--item", "5"], &[]);
    let file = sweep.item("r", 5);
    std::fs::copy(other_sweep.item("r", 5), &file).unwrap();
    let results = sweep.path("r");
    for verb in ["run", "status", "merge"] {
        refused(
            &["sweep", verb, &sweep.file, "--results", &results],
            &[
                file.to_str().unwrap(),
                ": the file has the result of ",
                "ops 301",
                "expected the result of ",
                "ops 300",
            ],
        );
    }
    assert_eq!(std::fs::read(other_sweep.item("r", 5)).unwrap(), std::fs::read(file).unwrap());
}

/// Regression test: after seeds were added or designs reordered, all items ran again without a note.
#[test]
fn changed_sweep_keeps_the_results_of_unchanged_items() {
    let sweep = Sweep::new(SMALL);
    let run_text = sweep.run("r", &[], &[]);
    assert!(run_text.starts_with("24 items: 24 run in "), "{run_text}");
    let change = |text: &str| std::fs::write(&sweep.file, text).unwrap();
    let extended_sweep = SMALL
        .replace("to = 2", "to = 3")
        .replace("\"bonwick94\", \"uslab-model\"", "\"uslab-model\", \"bonwick94\"");
    change(&extended_sweep);
    let run_text = sweep.run("r", &[], &[]);
    assert!(run_text.starts_with("36 items: 12 run in ") && run_text.contains("24 kept"), "{run_text}");
    sweep.run("anew", &[], &[]);
    assert!(sweep.merged("r") == sweep.merged("anew"));
    // Results that no item needs any more are kept, and change nothing.
    change(&SMALL.replace("[8, 64]", "[64]"));
    let run_text = sweep.run("r", &[], &[]);
    assert!(run_text.starts_with("16 items: 0 run in ") && run_text.contains("16 kept"), "{run_text}");
    assert_eq!(sweep.merged("r")[0].split(|byte| *byte == b'\n').count(), 1 + 16 + 1);
    // Another profile changes the prices, so no item has a result.
    change(&(SMALL.to_owned()).replace("ops = 300", "ops = 300\nprofile = \"milan2s\""));
    assert!(sweep.run("r", &[], &[]).starts_with("24 items: 24 run in "));
}

#[test]
fn sweep_progress_without_a_terminal_is_line_based() {
    let sweep = Sweep::new(SMALL);
    let results = sweep.path("r");
    let run = ["sweep", "run", &sweep.file, "--results", &results, "--progress", "0", "--threads", "1"];
    let (code, _, err) = exit_and_output(&run_with(&run, &[]));
    let lines: Vec<_> = err.lines().collect();
    assert_eq!((code, lines.len()), (Some(0), 24), "{err}");
    assert!(lines[11].starts_with("uslab: 12 of 24 items run in ") && lines[11].ends_with(" left"), "{err}");
}

#[test]
fn sweep_sample_contains_each_setting_once() {
    let text = SMALL.replace(
        "capacity = [8, 64]",
        "capacity = [2, 8, 64]\ndepot_limit = [0, 1, 10, 100]\n[sample]\npoints = 8",
    );
    let sweep = Sweep::new(&text);
    assert_eq!(json(&["sweep", &sweep.file])["settings"], 1 + 8);
    sweep.run("r", &[], &[]);
    assert_eq!(sweep.files("r").len(), 9 * 2 * 2 * 2);
    // If at least as many points as combinations are requested, all combinations run.
    let all = Sweep::new(&text.replace("points = 8", "points = 100"));
    assert_eq!(json(&["sweep", &all.file])["settings"], 1 + 12);
    let text = successful_output(&["sweep", &all.file], &[]);
    assert!(text.contains("(all combinations, fewer than the requested 100 points)"), "{text}");
    let report = json(&["sweep", "merge", &sweep.file, "--results", &sweep.path("r")]);
    assert!(report["sensitivity"][0]["method"]["fit"]["predicts"].is_f64(), "{report}");
}

#[test]
fn failing_sweep_item_does_not_stop_the_sweep() {
    // The last pages of the machine hold 8 KiB objects: bursts of a million do not fit into memory.
    let sweep = Sweep::new(
        "workload = [\"pairs\", \"bursts=1048576\"]\ndesign = [\"bonwick94\"]\ncpus = 1\nops = 3000000\nsize = 8192\n",
    );
    let results = sweep.path("r");
    let (code, stdout, err) =
        exit_and_output(&run_with(&["sweep", "run", &sweep.file, "--results", &results], &[]));
    if code == Some(0) {
        panic!("the run must fail for lack of memory: {stdout}");
    }
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.starts_with("uslab: item 1 failed: bonwick94 on 1 CPUs: ") && err.contains("no memory left"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    let (code, stdout, _) =
        exit_and_output(&run_with(&["sweep", "status", &sweep.file, "--results", &results], &[]));
    assert!(code == Some(1) && stdout.contains("1 of 2 items done, 0 missing, 1 failed"), "{stdout}");
    let (code, _, err) =
        exit_and_output(&run_with(&["sweep", "merge", &sweep.file, "--results", &results], &[]));
    assert!(code == Some(1) && err.contains("item 1 failed: ") && err.lines().count() == 2, "{err}");
}

/// Regression test: one invalid trace ended the run of all items, as if the whole input were invalid.
#[test]
fn unreadable_trace_fails_only_its_sweep_items() {
    let sweep = Sweep::new(
        "design = [\"slub\", \"bonwick94\"]\ninputs = \"traces\"\ntrace = [\n\"garb.txt\",\n\"good.zst\",\n]\n",
    );
    std::fs::create_dir(sweep.path("traces")).unwrap();
    std::fs::write(sweep.path("traces/garb.txt"), "no event\n").unwrap();
    std::fs::copy(sample("ftrace-6.1.txt.zst"), sweep.path("traces/good.zst")).unwrap();
    let (code, stdout, err) = exit_and_output(&run_with(&["sweep", &sweep.file], &[]));
    assert!(code == Some(1) && stdout.contains("4 items"), "{stdout}{err}");
    let place = format!("uslab: {}:4: items 0 to 1 ", sweep.file);
    assert!(err.starts_with(&format!("{place}would fail: ")) && err.contains("garb.txt"), "{err}");
    let (code, stdout, err) = exit_and_output(&run_with(&["sweep", "run", &sweep.file], &[]));
    assert!(code == Some(1) && stdout.contains("2 run in ") && stdout.contains("2 failed"), "{stdout}{err}");
    assert!(err.starts_with(&format!("{place}failed: ")) && err.lines().count() == 1, "{err}");
    let (code, stdout, _) = exit_and_output(&run_with(&["sweep", "status", &sweep.file], &[]));
    assert!(code == Some(1) && stdout.contains("2 of 4 items done, 0 missing, 2 failed"), "{stdout}");
    // A tuning's round resolves traces relative to the sweep's file.
    std::fs::copy(sweep.path("traces/good.zst"), sweep.path("traces/garb.txt")).unwrap();
    assert!(json(&["tune", &sweep.file])["winner"].is_object());
}

#[test]
fn sweep_refuses_more_shards_than_items() {
    let sweep = Sweep::new(SMALL);
    let results = sweep.path("r");
    let args = ["sweep", "slurm", &sweep.file, "--shards", "100", "--results", &results];
    let (code, script, err) = exit_and_output(&run_with(&args, &[]));
    assert_eq!((code, err.as_str()), (Some(0), "uslab: --shards 100: expected at most 24 items\n"));
    assert!(
        script.contains("#SBATCH --array=0-23\n") && script.contains("--array=23 THIS` runs share 23 of 24"),
        "{script}"
    );
}

#[test]
fn interrupted_sweep_reports_the_kept_results() {
    let sweep = Sweep::new(&SMALL.replace("ops = 300", "ops = 200000"));
    let results = sweep.path("r");
    let child = command(&["sweep", "run", &sweep.file, "--results", &results, "--threads", "1"], &[])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !Path::new(&results).join("items").exists() {
        std::thread::yield_now();
    }
    let kill_status =
        Command::new("bash").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    let (code, _, err) = exit_and_output(&child.wait_with_output().unwrap());
    assert!(kill_status.success() && code == Some(130), "{err}");
    assert!(err.contains(" of 24 missing items have run; the same command continues\n"), "{err}");
}

/// The shell's limit on file sizes simulates a full disk, so a write fails in the middle of a file.
#[test]
fn full_disk_leaves_no_partial_sweep_result() {
    let sweep = Sweep::new(SMALL);
    sweep.run("whole", &[], &[]);
    let expected = sweep.merged("whole");
    sweep.run("r", &["--shard", "0/2"], &[]);
    let results = sweep.path("r");
    let program = uslab_tests::uslab();
    let full_disk = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "bash"])
        .arg(&program)
        .args(["sweep", "run", &sweep.file, "--results", &results])
        .output()
        .unwrap();
    let (code, stdout, err) = exit_and_output(&full_disk);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{err}");
    assert!(
        err.starts_with("uslab: item ") && err.contains("File too large") && err.lines().count() == 1,
        "{err}"
    );
    assert_eq!(sweep.files("r").len(), 12, "only the results of the finished share may exist");
    sweep.run("r", &[], &[]);
    assert!(sweep.merged("r") == expected);
}

#[test]
fn killed_sweep_resumes_from_its_results() {
    let sweep = Sweep::new(&SMALL.replace("ops = 300", "ops = 60000"));
    sweep.run("whole", &[], &[]);
    let expected = sweep.merged("whole");
    let results = sweep.path("r");
    let mut child = command(&["sweep", "run", &sweep.file, "--results", &results, "--threads", "1"], &[])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let results_of = |files: Vec<(PathBuf, Vec<u8>)>| {
        files
            .into_iter()
            .filter(|(name, _)| name.extension().is_some_and(|end| end == "json"))
            .collect::<Vec<_>>()
    };
    while results_of(sweep.files("r")).is_empty() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let whole_run = sweep.files("whole");
    let present = results_of(sweep.files("r"));
    assert!(present.iter().all(|file| whole_run.contains(file)), "each stored result must be complete");
    sweep.run("r", &[], &[]);
    assert!(sweep.merged("r") == expected);
}

#[test]
fn slurm_script_runs_each_sweep_shard() {
    let sweep = Sweep::new(SMALL);
    sweep.run("whole", &[], &[]);
    let expected = sweep.merged("whole");
    let results = sweep.path("it's results");
    let args = [
        "sweep",
        "slurm",
        &sweep.file,
        "--results",
        &results,
        "--shards",
        "5",
        "--time",
        "01:00:00",
        "--memory",
        "2G",
    ];
    let script = successful_output(&args, &[]);
    for line in ["#SBATCH --array=0-4", "#SBATCH --requeue", "#SBATCH --time=01:00:00", "#SBATCH --mem=2G"] {
        assert!(script.lines().any(|other_line| other_line == line), "{script}");
    }
    let file = sweep.path("job.sbatch");
    std::fs::write(&file, &script).unwrap();
    for task in 0..5 {
        let mut shell = Command::new("bash");
        // Slurm runs a copy of the script from another folder.
        shell.arg(&file).current_dir("/").env("SLURM_ARRAY_TASK_ID", task.to_string());
        let (code, stdout, err) = exit_and_output(&shell.output().unwrap());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{stdout}");
        assert!(stdout.starts_with(&format!("share {task}/5: ")), "{stdout}");
    }
    assert!(sweep.merged("it's results") == expected);
    // The message names the folder that a node lacks.
    let script_without = |program_path: &str| script.replacen(program_path, "/nowhere", 1);
    for program_path in [program(), sweep.file.clone()] {
        let other_script = sweep.path("elsewhere.sbatch");
        std::fs::write(&other_script, script_without(&program_path)).unwrap();
        let shell = Command::new("bash").arg(&other_script).env("SLURM_ARRAY_TASK_ID", "0").output().unwrap();
        let (code, stdout, err) = exit_and_output(&shell);
        assert_eq!((code, stdout.as_str(), err.lines().count()), (Some(2), "", 1), "{err}");
        assert!(err.contains("/nowhere: no such ") && err.contains("a folder that all nodes share"), "{err}");
    }
    let missing_folder = sweep.path("gone");
    std::fs::rename(&results, &missing_folder).unwrap();
    let (code, _, err) =
        exit_and_output(&Command::new("bash").arg(&file).env("SLURM_ARRAY_TASK_ID", "0").output().unwrap());
    assert!(
        code == Some(2)
            && err.contains("it's results: the folder does not exist or is not writable on this node"),
        "{err}"
    );
    std::fs::rename(&missing_folder, &results).unwrap();
    // If the sweep file changes after the script was written, the script refuses to run.
    std::fs::write(&sweep.file, SMALL.replace("ops = 300", "ops = 301")).unwrap();
    let (code, _, err) =
        exit_and_output(&Command::new("bash").arg(&file).env("SLURM_ARRAY_TASK_ID", "0").output().unwrap());
    assert!(code == Some(2) && err.contains("--hash "), "{err}");
}

#[test]
fn kubernetes_job_file_is_a_valid_job() {
    use k8s_openapi::api::batch::v1::Job;
    let sweep = Sweep::new(SMALL);
    let args = [
        "sweep",
        "k8s",
        &sweep.file,
        "--shards",
        "20",
        "--parallelism",
        "50",
        "--image",
        "registry/uslab-sweep:1",
        "--claim",
        "shared",
        "--inputs-claim",
        "traces",
        "--cpus",
        "4",
        "--memory",
        "2Gi",
        "--time",
        "00:10:00",
        "--deadline",
        "3600",
    ];
    let text = successful_output(&args, &[]);
    let value: Value = serde_json::from_str(&text).unwrap();
    let job: Job = serde_json::from_str(&text).expect("a Job");
    // Fields that these types do not know would be lost in the round trip.
    assert_eq!(serde_json::to_value(&job).unwrap(), value);
    let spec = job.spec.unwrap();
    assert_eq!((spec.completions, spec.parallelism), (Some(20), Some(20)));
    assert_eq!((spec.completion_mode.as_deref(), spec.backoff_limit_per_index), (Some("Indexed"), Some(3)));
    assert_eq!(spec.active_deadline_seconds, Some(3600));
    let name = job.metadata.name.unwrap();
    let hash = json(&["sweep", &sweep.file])["sweep"].as_str().unwrap()[..10].to_owned();
    assert!(
        name == format!("uslab-a-sweep-{hash}")
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
        "{name}"
    );
    let pod = spec.template.spec.unwrap();
    assert_eq!((pod.restart_policy.as_deref(), pod.active_deadline_seconds), (Some("Never"), Some(600)));
    let user = pod.security_context.unwrap();
    assert_eq!(
        (user.fs_group, user.run_as_user, user.run_as_non_root),
        (Some(65534), Some(65534), Some(true))
    );
    let container = &pod.containers[0];
    let mounted =
        |path: &str| container.volume_mounts.as_ref().unwrap().iter().find(|mount| mount.mount_path == path);
    assert_eq!(mounted("/inputs").unwrap().read_only, Some(true));
    assert_eq!(pod.volumes.unwrap().len(), 2);
    // The container's command runs here, with the paths of this machine and Kubernetes' variable.
    let local_argument = |arg: &String| match arg.strip_prefix("/sweep/").or(arg.strip_prefix("/inputs")) {
        Some("") => sweep.path(""),
        Some(name) => sweep.path(name),
        None => arg.clone(),
    };
    let args: Vec<_> = container.args.as_ref().unwrap().iter().map(local_argument).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let own_variable = &container.env.as_ref().unwrap()[0];
    let completions = (own_variable.name.as_str(), own_variable.value.as_deref().unwrap());
    for index in ["7", "18"] {
        successful_output(&args, &[completions, ("JOB_COMPLETION_INDEX", index)]);
    }
    assert!(!sweep.files("results").is_empty());
    // The merging Job merges if all results exist; otherwise it names the missing ones.
    let args = ["sweep", "k8s", &sweep.file, "--image", "i", "--claim", "shared", "--merge"];
    let job: Job = serde_json::from_str(&successful_output(&args, &[])).expect("a Job");
    assert_eq!(job.metadata.name, Some(format!("uslab-a-sweep-{hash}-merge")));
    let spec = job.spec.unwrap();
    assert_eq!((spec.completions, spec.parallelism), (Some(1), Some(1)));
    let args = spec.template.spec.unwrap().containers[0].args.clone().unwrap();
    let args: Vec<_> = args.iter().map(local_argument).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    assert!(
        matches!(exit_and_output(&run_with(&args, &[])), (Some(1), _, err) if err.contains(" have no result; "))
    );
    sweep.run("results", &[], &[]);
    assert!(successful_output(&args, &[]).contains("24 of 24 items"));
    for form in ["csv", "html"] {
        assert!(Path::new(&sweep.path(&format!("a sweep.{form}"))).exists(), "{form}");
    }
}

#[test]
fn container_file_names_an_existing_build_target() {
    let text = successful_output(&["sweep", "container"], &[]);
    let build = text.lines().find_map(|line| line.strip_prefix("RUN cargo ")).expect("a build");
    let known_features = build
        .strip_prefix("build --locked --release ")
        .and_then(|features| features.strip_suffix(" --bin uslab"));
    let tree = uslab_tests::cargo()
        .args(["tree", "--depth", "0"])
        .args(known_features.expect(build).split(' '))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{build}: {}", String::from_utf8_lossy(&tree.stderr));
    assert!(text.contains(&format!("rust:{}-alpine", workspace_rust())), "{text}");
}

fn workspace_rust() -> String {
    let text = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let value: toml::Value = toml::from_str(&text).unwrap();
    value["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned()
}

/// A sweep with nine settings; one of them is the best for all workloads.
const TUNING_SWEEP: &str = "\
workload = [\"bursts=2000\", \"bursts=3000\"]
design = [\"uslab-model\"]
cpus = [2, 4]
seed = { from = 1, to = 4 }
ops = 8000
[knobs.uslab-model]
capacity = [2, 16, 64]
depot_limit = [0, 10, 200]
";

#[test]
fn tuning_finds_the_best_setting_of_the_whole_sweep() {
    let (sweep, stepped, engine) =
        (Sweep::new(TUNING_SWEEP), Sweep::new(TUNING_SWEEP), Sweep::new(TUNING_SWEEP));
    let whole_run = json(&["tune", &sweep.file]);
    let rounds = whole_run["rounds"].as_array().unwrap();
    let sizes: Vec<_> = rounds.iter().map(|round| round["settings"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [9, 3]);
    assert_eq!([&rounds[0]["seeds"], &rounds[1]["seeds"]], [2, 4]);
    assert_eq!([&rounds[0]["items"], &rounds[1]["items"]], [9 * 2 * 2 * 2, 3 * 2 * 2 * 4]);
    let winner = whole_run["winner"]["score"]["setting"].as_str().unwrap().to_owned();
    assert_eq!(whole_run["winner"]["beside"], 9, "dropped settings must be shown, too");
    let nearest = whole_run["winner"]["nearest"].as_array().unwrap();
    let runs: Vec<_> = nearest.iter().map(|lead| lead["runs"].as_u64().unwrap()).collect();
    assert!(nearest.len() == 8 && runs.iter().all(|runs| [8, 16].contains(runs)), "{nearest:?}");
    sweep.run("all", &[], &[]);
    let all = json(&["sweep", "merge", &sweep.file, "--results", &sweep.path("all")]);
    assert_eq!(all["settings"][0]["setting"].as_str(), Some(&*winner), "{}", all["settings"]);
    // Each call of `tune --step` runs one round; the last call reports the end.
    let step = json(&["tune", &stepped.file, "--step"]);
    assert!(step["winner"].is_null() && step["rounds"].as_array().unwrap().len() == 1, "{step}");
    assert!(step["next"]["file"].as_str().unwrap().ends_with("a sweep.tune/round-2.toml"), "{step}");
    assert_eq!(json(&["tune", &stepped.file, "--step"])["winner"]["score"]["setting"], winner);
    // Other commands run the rounds, in shards.
    let mut calls = 0;
    let end = loop {
        let report = json(&["tune", &engine.file, "--no-run"]);
        calls += 1;
        let Some(file) = report["next"]["file"].as_str() else { break report };
        for shard in ["0/2", "1/2"] {
            successful_output(&["sweep", "run", file, "--shard", shard], &[]);
        }
    };
    assert_eq!((calls, &end["winner"]["score"]["setting"]), (3, &winner.clone().into()));
    let text = successful_output(&["tune", &engine.file], &[]);
    assert!(
        text.contains(&format!("Best setting: {winner}\n")) && text.contains("among 9 settings"),
        "{text}"
    );
    // The commands that the report names run the last round again with all its seeds, and merge it.
    let command = end["winner"]["commands"][0].as_str().unwrap();
    let rerun = Command::new("bash").args(["-c", command]).output().unwrap();
    let (code, stdout, err) = exit_and_output(&rerun);
    assert!(
        code == Some(0) && stdout.starts_with("48 items: 48 run in ") && stdout.contains(&*winner),
        "{stdout}{err}"
    );
}

/// Regression test: all rounds ran their items again although the folder already contained the results of the whole
/// sweep.
#[test]
fn tuning_reuses_existing_sweep_results() {
    let sweep = Sweep::new(TUNING_SWEEP);
    successful_output(&["sweep", "run", &sweep.file], &[]);
    let report = json(&["tune", &sweep.file, "--no-run"]);
    assert!(report["next"].is_null(), "{report}");
    for round in report["rounds"].as_array().unwrap() {
        assert_eq!(round["there"], round["items"]);
    }
    let text = successful_output(&["tune", &sweep.file], &[]);
    assert!(
        text.contains("All items had a result: nothing was run.") && !text.contains("traces  "),
        "{text}"
    );
    // All settings have run on everything, so the winner is compared with all of them there.
    for lead in report["winner"]["nearest"].as_array().unwrap() {
        assert_eq!(lead["runs"], 2 * 2 * 4, "{lead}");
    }
}

#[test]
fn tuning_report_marks_settings_equal_to_the_best() {
    // Bursts of 2 never fill a magazine, so the depot's limit changes nothing.
    let sweep = Sweep::new(
        "workload = [\"bursts=2\"]\ndesign = [\"uslab-model\"]\ncpus = 2\nseed = [1, 2]\nops = 300\n[knobs.uslab-model]\n\
         capacity = [8, 64]\ndepot_limit = [0, 10]\n",
    );
    let report = json(&["tune", &sweep.file, "--factor", "2"]);
    let ties = report["winner"]["ties"].as_u64().unwrap();
    assert!(ties >= 1, "{report}");
    let text = successful_output(&["tune", &sweep.file, "--factor", "2"], &[]);
    assert_eq!(text.lines().filter(|line| line.contains("  =  ")).count() as u64, ties, "{text}");
}

#[test]
fn tuning_refuses_rounds_of_a_different_tuning_run() {
    let sweep = Sweep::new(TUNING_SWEEP);
    json(&["tune", &sweep.file, "--no-run"]);
    refused(&["tune", &sweep.file, "--no-run", "--by", "slabs"], &["round-1.toml", "remove "]);
    std::fs::write(&sweep.file, TUNING_SWEEP.replace("8000", "8001")).unwrap();
    refused(&["tune", &sweep.file, "--no-run"], &["round-1.toml: the file belongs to another sweep"]);
}

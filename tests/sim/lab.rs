//! Tests the command `uslab lab` as a separate process: its list, its output (the same in each run), the worked
//! examples, and refused input.

mod refused;

use crate::study::findings;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Output;
use uslab_tests::workspace;

fn lab(args: &[&str]) -> Output {
    uslab_tests::lab().args(args).env("NO_COLOR", "1").output().expect("the program must start")
}

fn exit_and_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn output_of_lab_command(args: &[&str]) -> String {
    let (code, out, err) = exit_and_output(&lab(args));
    assert_eq!(code, Some(0), "{args:?}: {err}");
    out
}

/// Checks that `uslab` refuses the command: exit code 2, no standard output, and a message that contains all of
/// `parts`.
#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let (code, out, err) = exit_and_output(&lab(args));
    assert_eq!(code, Some(2), "{args:?}: {err}");
    assert!(out.is_empty(), "{args:?} wrote {out}");
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?}: expected {part:?} in {err}");
    }
}

struct Folder(tempfile::TempDir);
impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder must be created"))
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("the path must be UTF-8").to_owned()
    }
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a temporary file must be created");
        path
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("the output must be only JSON")
}

fn experiments() -> Vec<String> {
    let listed = json(&output_of_lab_command(&["--json", "-"]));
    listed["experiments"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn lab_command_without_arguments_lists_every_experiment() {
    let out = output_of_lab_command(&[]);
    let names = experiments();
    assert!(names.len() >= 16, "{names:?}");
    assert_eq!(out.lines().count(), names.len());
    for name in &names {
        let line = out.lines().find(|line| line.split_whitespace().next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {out}"));
        assert!(line.split_whitespace().count() > 3, "expected a question, not a word: {line}");
    }
    for name in ["handles", "explain", "kenwright", "race", "tlsf", "buddy"] {
        assert!(names.iter().any(|listed| listed == name), "{name}");
    }
    // An experiment that exists only for another run of the program is not listed.
    assert!(!out.contains("instructions"), "{out}");
}

#[test]
fn interactive_demo_shows_memory_after_each_command() {
    let out = output_of_lab_command(&["demo", "buddy", "alloc 65", "alloc 1000", "free a"]);
    let expected = "\
> alloc 65
a is at byte 0 and has 128, 63 more than requested. It examined 4 free lists and made 3 splits.
  1. The list of 128-byte blocks is empty.
  2. The list of 256-byte blocks is empty.
  3. The list of 512-byte blocks is empty.
  4. The list of 1024-byte blocks has a block.
  5. The block of 1024 at 0 is halved. Its upper half, 512 at 512, becomes free.
  6. The block of 512 at 0 is halved. Its upper half, 256 at 256, becomes free.
  7. The block of 256 at 0 is halved. Its upper half, 128 at 128, becomes free.
  8. a gets the block of 128 at 0, and uses 65 of its bytes.
aaaa++++........|...............|...............................
list of 16: empty
list of 32: empty
list of 64: empty
list of 128: 128
list of 256: 256
list of 512: 512
list of 1024: empty
free: 896 bytes in 3 pieces, the largest 512

> alloc 1000
No room for 1000 bytes. Free: 896 bytes in 3 pieces, the largest 512.
  1. The list of 1024-byte blocks is empty.
aaaa++++........|...............|...............................
list of 16: empty
list of 32: empty
list of 64: empty
list of 128: 128
list of 256: 256
list of 512: 512
list of 1024: empty
free: 896 bytes in 3 pieces, the largest 512

> free a
a is free. It examined 3 buddies and made 3 merges.
  1. The buddy of 0 is 0 XOR 128 = 128. It is free: both become 256 at 0.
  2. The buddy of 0 is 0 XOR 256 = 256. It is free: both become 512 at 0.
  3. The buddy of 0 is 0 XOR 512 = 512. It is free: both become 1024 at 0.
  4. 0 joins the list of 1024-byte blocks.
................................................................
list of 16: empty
list of 32: empty
list of 64: empty
list of 128: empty
list of 256: empty
list of 512: empty
list of 1024: 0
free: 1024 bytes in one piece

";
    assert_eq!(out, expected);
    let scenes = json(&output_of_lab_command(&["demo", "buddy", "alloc 65", "--json"]));
    assert_eq!(scenes[0]["command"], "alloc 65");
    assert_eq!(
        scenes[0]["parts"][1],
        serde_json::json!({"at": 65, "bytes": 63, "is": "rounding", "block": "a"})
    );
    for name in [
        "linear",
        "arena",
        "stack",
        "pool",
        "lazy-pool",
        "chunked-pool",
        "reserved-pool",
        "first-fit",
        "best-fit",
        "worst-fit",
        "buddy",
        "tlsf",
        "handles",
        "handles-wrap",
    ] {
        assert!(
            output_of_lab_command(&["demo", name]).starts_with("> alloc"),
            "{name}: the page must contain its script"
        );
    }
    assert!(
        output_of_lab_command(&["demo", "layout"]).starts_with("> walk "),
        "the page must contain its script"
    );
}

/// For the experiments, valgrind runs the lab with these arguments and counts its instructions
/// (`experiments::instructions`).
#[test]
fn lab_run_that_counts_instructions_prints_nothing() {
    assert_eq!(output_of_lab_command(&["instructions", "linear", "10"]), "");
}

/// Returns an experiment's output in each of the four formats.
fn forms(name: &str, options: &[&str]) -> [String; 4] {
    let folder = Folder::new();
    let files = ["json", "csv", "html"].map(|form| (format!("--{form}"), folder.path(form)));
    let mut args = vec![name];
    args.extend(options);
    for (option, file) in &files {
        args.extend([option.as_str(), file]);
    }
    let text = output_of_lab_command(&args);
    let [json, csv, html] =
        files.map(|(_, file)| std::fs::read_to_string(file).expect("the file must be written"));
    [text, json, csv, html]
}

#[test]
fn exact_experiments_give_identical_output_in_every_format() {
    for name in experiments() {
        let options = ["--exact", "--quick", "--seed", "7"];
        let first = forms(&name, &options);
        assert_eq!(first, forms(&name, &options), "{name}");
        let [text, findings, csv, html] = first;
        let findings = json(&findings);
        assert_eq!((&findings["experiment"], &findings["seed"]), (&name.as_str().into(), &7.into()));
        assert!(findings["machine"].is_null() && !findings["parts"].as_array().unwrap().is_empty(), "{name}");
        for part in findings["parts"].as_array().unwrap() {
            let columns = part["table"]["columns"].as_array().into_iter().flatten();
            let measured = columns
                .chain([&part["chart"], &part["bars"], &part["claim"]])
                .any(|thing| thing["measured"] == true);
            assert!(!measured, "{name}: the text must not contain a measured number: {part}");
            if let Some(table) = part["table"].as_object() {
                assert!(!table["rows"].as_array().unwrap().is_empty(), "{name}: {}", table["title"]);
            }
        }
        assert!(text.starts_with(&format!("{name}: ")) && text.contains("\nseed 7\n"), "{name}: {text}");
        assert!(csv.starts_with("part,row,column,value\n"), "{name}: {csv}");
        assert_each_value_has_a_unique_key(&name, &csv);
        assert!(html.starts_with("<!DOCTYPE html>") && html.contains("seed 7"), "{name}");
    }
}

/// The experiments also run with times and pictures, even if valgrind is not installed.
#[test]
fn every_quick_experiment_names_the_measured_machine() {
    for name in experiments() {
        let folder = Folder::new();
        let [data, csv, html] = ["json", "csv", "html"].map(|form| folder.path(form));
        let output = uslab_tests::lab()
            .args([&name, "--quick", "--json", &data, "--csv", &csv, "--html", &html])
            .env("PATH", "")
            .output()
            .expect("the program must start");
        let (code, text, err) = exit_and_output(&output);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{name}");
        let [data, csv, html] = [data, csv, html].map(|file| std::fs::read_to_string(file).unwrap());
        let findings = json(&data);
        let measured = findings["parts"].to_string().contains("\"measured\":true");
        assert_eq!(findings["machine"]["cpus"].is_u64(), measured, "{name}");
        assert_eq!(findings["machine"]["compiler"].is_string(), measured, "{name}");
        assert_each_value_has_a_unique_key(&name, &csv);
        let parts = findings["parts"].as_array().unwrap();
        let titles: Vec<&str> = parts
            .iter()
            .filter_map(|part| part["chart"]["title"].as_str().or(part["bars"]["title"].as_str()))
            .collect();
        assert!(!titles.is_empty(), "{name} has no picture");
        assert_eq!(html.matches("<svg").count(), titles.len(), "{name}");
        for title in titles {
            let picture = text.split("\n\n").find(|part| part.lines().next() == Some(title)).unwrap();
            assert!(picture.chars().any(|c| ('▁'..='█').contains(&c)), "{name}: {picture}");
            for line in picture.lines() {
                assert!(line.chars().count() <= 80, "{name}: wider than a terminal: {line}");
            }
        }
    }
}

/// Checks that the part, row and column of a value identify it uniquely.
#[track_caller]
fn assert_each_value_has_a_unique_key(name: &str, text: &str) {
    let mut keys = BTreeSet::new();
    for record in csv::Reader::from_reader(text.as_bytes()).records() {
        let record = record.expect("the output must have a line of CSV");
        let key: Vec<_> = record.iter().take(3).map(str::to_owned).collect();
        assert!(keys.insert(key.clone()), "{name}: {key:?} appears twice");
    }
}

#[test]
fn lab_result_depends_only_on_the_seed() {
    let race = |seed| output_of_lab_command(&["race", "--exact", "--seed", seed]);
    let rows = |text: String| text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_ne!(rows(race("1")), rows(race("2")));
}

#[test]
fn buddy_demo_equals_the_figure_of_the_article() {
    let out = output_of_lab_command(&["buddy", "--exact"]);
    let golden = "\
1024 bytes: free blocks of each size
step          block     16  32  64  128  256  512  1024
begin                    0   0   0    0    0    0     1
allocate 65   0..128     0   0   0    1    1    1     0
allocate 200  256..512   0   0   0    1    0    1     0
allocate 30   128..160   0   1   1    0    0    1     0
allocate 100  512..640   0   1   1    1    1    0     0
free 200      256..512   0   1   1    1    2    0     0
free 65       0..128     0   1   1    2    2    0     0
free 100      512..640   0   1   1    1    1    1     0
free 30       128..160   0   0   0    0    0    0     1
";
    assert!(out.contains(golden), "{out}");
}

#[test]
fn tlsf_classes_match_the_published_picture() {
    let out = output_of_lab_command(&["tlsf", "--exact"]);
    let golden = "\
bytes  first level  second level  search begins at  there: first level  there: second level
16               0             0                16                   0                    0
20               0             1                20                   0                    1
21               0             1                24                   0                    2
31               0             3                32                   1                    0
32               1             0                32                   1                    0
100              2             2               112                   2                    3
112              2             3               112                   2                    3
113              2             3               128                   3                    0
1,000            5             3             1,024                   6                    0
1,024            6             0             1,024                   6                    0
1,500            6             1             1,536                   6                    2
";
    assert!(out.contains(golden), "{out}");
}

#[test]
fn demo_of_the_kenwright_pool_shows_eight_states() {
    let out = output_of_lab_command(&["kenwright", "--exact", "--quick"]);
    let golden = "\
state  step      block  free  initialised  next
(a)    create              4            0     0
(b)    allocate      0     3            1     1
(c)    allocate      1     2            2     2
(d)    allocate      2     1            3     3
(e)    allocate      3     0            4  none
(f)    free          1     1            4     1
(g)    free          3     2            4     3
(h)    allocate      3     1            4     1
";
    assert!(out.contains(golden), "{out}");
    // By the paper's rule, the pool visits all its blocks even for one object at a time.
    let touched = out.lines().find(|line| line.starts_with("one at a time")).unwrap();
    assert!(touched.split_whitespace().skip(4).eq(["500", "1", "100", "1"]), "{touched}");
}

#[test]
fn output_of_the_handles_experiment_equals_its_golden_file() {
    let golden = workspace().join("sim/lab/data/handles.txt");
    assert_eq!(output_of_lab_command(&["handles", "--exact"]), std::fs::read_to_string(golden).unwrap());
}

#[test]
fn lab_explains_each_entry_of_its_cheat_sheet() {
    let sheet = json(&output_of_lab_command(&["explain", "--exact", "--json", "-"]));
    let table = |part: &Value| part["table"].clone();
    let words = table(&sheet["parts"][0]);
    let names: Vec<_> =
        words["rows"].as_array().unwrap().iter().map(|row| row[0].as_str().unwrap()).collect();
    assert_eq!(names.len(), 15);
    for name in names {
        let out = output_of_lab_command(&["explain", name, "--exact"]);
        assert!(
            out.contains(&format!("what is {name}")) && out.contains("What its operations cost"),
            "{out}"
        );
        // The last line of each page names an existing experiment.
        let more = out.lines().last().unwrap().split(['`', ' ']).nth(3).unwrap().to_owned();
        assert!(experiments().contains(&more), "{more} in {out}");
    }
    let measured = table(&sheet["parts"][3]);
    let of =
        |name: &str| measured["rows"].as_array().unwrap().iter().find(|row| row[0] == name).unwrap().clone();
    assert!(of("first-fit")[2].as_u64() > of("tlsf")[2].as_u64(), "{measured}");
    // A value that is not counted is null and not 0.
    assert!(of("slab")[2].is_null() && of("slab")[3].is_number() && of("system")[3].is_null(), "{measured}");
    assert!(of("buddy")[3].as_f64() > of("tlsf")[3].as_f64(), "{measured}");
}

/// The printed default of each option must be accepted as a value of the option.
#[test]
fn printed_option_defaults_are_accepted_as_options() {
    for (name, option) in [
        ("handles", "--objects"),
        ("kenwright", "--counts"),
        ("pools", "--sets"),
        ("colouring", "--sizes"),
        ("tlsf", "--sizes"),
    ] {
        let help = output_of_lab_command(&[name, "--help"]);
        let mut words = help.split_whitespace().skip_while(|word| *word != option);
        let default = words.by_ref().find(|word| *word == "[default:").and_then(|_| words.next());
        let default =
            default.unwrap_or_else(|| panic!("{option} in {help}")).trim_end_matches(']').to_owned();
        assert!(default.contains(','), "{name} {option}: {default}");
        assert!(output_of_lab_command(&[name, option, &default, "--exact", "--quick"]).starts_with(name));
    }
}

/// Returns the verdicts of an experiment on the claims that contain `words`.
fn verdicts(findings: &Value, words: &str) -> Vec<Value> {
    let claims = findings["parts"].as_array().unwrap().iter().map(|part| &part["claim"]);
    let said = |claim: &&Value| claim["says"].as_str().is_some_and(|says| says.contains(words));
    claims.filter(said).map(|claim| claim["holds"].clone()).collect()
}

#[test]
fn book_contains_the_current_output_of_the_lab() {
    let page = include_str!("../../slab/book/src/study.md");
    let mut shown = page.split("```text\n").skip(1).filter_map(|block| block.split("```").next());
    let printed = output_of_lab_command(&["why-magazines", "--exact"]);
    assert!(shown.any(|block| printed.contains(block)), "no block of the book is part of\n{printed}");
}

/// The verdicts in `sim/lab/TEXTS.md` must equal the verdicts of the experiments.
#[test]
fn lab_verdicts_equal_the_published_study() {
    let of = |name: &str, words| verdicts(findings(name), words);
    assert_eq!(of("buddy", "1.44"), ["partly"], "E056");
    assert_eq!(of("buddy", "a quarter"), ["partly"], "E056");
    assert_eq!(of("pinning", "long-lived"), ["yes"], "E096");
    assert_eq!(of("layout", "25 %"), ["no"], "E102");
    assert_eq!(of("kenwright", "as they are needed"), ["no"], "X08");
    assert_eq!(of("handles", "one cache line"), ["partly"], "X14");
    assert_eq!(of("handles", "256 frees"), ["no"], "X01");
    assert_eq!(of("tlsf", "6.25 %"), ["yes"], "E063");
    assert_eq!(of("robson", "in the worst case"), ["yes"], "E093");
    assert_eq!(of("robson", "escapes the bound"), ["yes"], "M09");
    assert_eq!(of("fifty-percent", "half as many"), ["yes"], "E098");
    assert_eq!(of("fifty-percent", "far fewer"), ["partly"], "E098");
}

#[test]
fn layout_experiment_text_reflects_its_options() {
    let found = |options: [&str; 2]| output_of_lab_command(&[&["layout", "--exact"], &options[..]].concat());
    assert!(found(["--structs", "1"]).contains("18.8 % of the loaded bytes"));
    assert!(found(["--line", "8"]).contains("75.0 % of the loaded bytes"));
}

/// Regression test for the tutorial's claim that two kinds of lifetimes keep fragmentation low. The experiment tested
/// the opposite of this claim, although its figures agreed with the tutorial. The experiment also compared the largest
/// free blocks of allocators with different fractions of used memory.
#[test]
fn fragmentation_experiment_compares_at_equal_memory_use() {
    let findings = findings("fragmentation");
    let of = |words| verdicts(findings, words);
    assert_eq!(of("largest free block stays"), ["yes"], "E092");
    // The policies are the naive allocator, and the one ordered by address.
    assert_eq!(of("decays fastest"), ["yes", "undecided"], "E092");
    assert_eq!(of("keep fragmentation low"), ["partly"], "E095");
    assert_eq!(of("with time"), ["partly", "no"], "M06");
    let table = |title: &str| {
        let mut tables = findings["parts"].as_array().unwrap().iter().map(|part| &part["table"]);
        tables.find(|table| table["title"].as_str().is_some_and(|text| text.starts_with(title))).unwrap()
    };
    // Two kinds of lifetimes lose less if the whole interval is below 0, and more if it is above.
    let lifetimes = table("Lifetimes of the same mean")["rows"].as_array().unwrap();
    let end = |name: &str, end: &str| {
        let row = lifetimes.iter().find(|row| row[0] == name).unwrap();
        [4, 5].map(|column| row[column][end].as_f64().unwrap())
    };
    for name in ["tlsf", "best-fit"] {
        assert!(end(name, "high").iter().all(|high| *high < 0.0), "{name}: {lifetimes:?}");
    }
    assert!(end("first-fit, last freed", "low").iter().all(|low| *low > 0.0), "{lifetimes:?}");
    let table = table("10000 operations");
    assert!(table["title"].as_str().unwrap().contains("medians of 10 seeds"), "{table}");
    let used: Vec<f64> =
        table["rows"].as_array().unwrap().iter().map(|row| row[2]["median"].as_f64().unwrap()).collect();
    assert!(used.iter().all(|share| (share - used[0]).abs() < 1.0), "{used:?}");
}

/// Regression test: verdicts of a run with `--quick` looked like the verdicts of a full run.
#[test]
fn lab_marks_the_verdicts_of_quick_runs() {
    let [text, data, _, html] = forms("robson", &["--exact", "--quick"]);
    assert!(
        text.contains("\nA quick run, a fraction of the work") && text.contains("\nquick: holds"),
        "{text}"
    );
    assert_eq!(json(&data)["quick"], true);
    assert!(html.contains("<b>holds, quick</b>"), "{html}");
    let full = output_of_lab_command(&["robson", "--exact"]);
    assert!(full.contains("\nholds ") && !full.contains("quick"), "{full}");
    // One round of timing decides nothing.
    let times = json(&output_of_lab_command(&["constructors", "--quick", "--json", "-"]));
    assert_eq!(verdicts(&times, "saves the constructor"), ["undecided"]);
}

/// The first level of a TLSF list is a power of two; the second level divides the range from it to the next power.
#[test]
fn tlsf_experiment_shows_the_lists_for_any_size() {
    let out = output_of_lab_command(&["tlsf", "--exact", "--sizes", "460,65"]);
    let row = |size: &str| {
        let mut lines = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words.first() == Some(&size)).unwrap_or_else(|| panic!("{size} in {out}"))
    };
    // 460 = 2^8 + 204: level 4, and 204 * 4 / 256 = 3; rounded up to 512. 65 = 2^6 + 1, rounded up to 80.
    assert_eq!(row("460"), ["460", "4", "3", "512", "5", "0"]);
    assert_eq!(row("65"), ["65", "2", "0", "80", "2", "1"]);
    refused(&["tlsf", "--sizes", "0"], &["--sizes", "1..="]);
}

/// A quick run has fewer frames and walks than the article, so the times in the article do not apply to it.
#[test]
fn pool_experiment_does_not_compare_different_workloads() {
    let out = output_of_lab_command(&["pools", "--quick", "--sets", "1"]);
    assert!(out.contains("walks: 50\n") && !out.contains("article: churn"), "{out}");
    assert!(out.contains("shown next to ours if our run is equally long"), "{out}");
}

/// Regression test: an output path that named the file of standard output replaced this file, so the output was lost.
#[test]
fn output_path_naming_standard_output_is_not_replaced() {
    let folder = Folder::new();
    let path = folder.file("out.csv", "");
    let out = std::fs::File::options().write(true).open(&path).unwrap();
    let args = ["race", "--exact", "--quick", "--csv", "/dev/stdout"];
    let status = uslab_tests::lab().args(args).stdout(out).status().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(status.success() && text.starts_with("part,row,column,value\n"), "{text}");
    assert!(!text.contains("race: "), "standard output must have no text");
}

#[test]
fn lab_skips_allocators_that_cannot_serve_a_workload() {
    let cells = |out: &str, name: &str| {
        let line = out.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} in {out}")).split_whitespace().count()
    };
    // A slot is at least as large as a link.
    let out = output_of_lab_command(&["race", "--exact", "--sizes", "fixed:1"]);
    assert!(cells(&out, "pool") > 2 && !out.contains("No pool"), "{out}");
    let folder = Folder::new();
    let strict = folder.file("strict.csv", "a,1,8,8192\nf,1\n");
    let out = output_of_lab_command(&["race", "--exact", "--trace", &strict]);
    assert_eq!(cells(&out, "pool"), 1, "{out}");
    assert!(cells(&out, "tlsf") > 2, "{out}");
    assert!(
        out.contains(
            "No pool can be created for this workload: slots aligned to 8192: expected 4096 or less."
        ),
        "{out}"
    );
    let large = folder.file("large.csv", "a,1,8\na,2,1048576\n");
    let out = output_of_lab_command(&["race", "--exact", "--memory", "64K", "--trace", &large]);
    assert!(cells(&out, "first-fit") > 2 && out.contains("No pool can be created"), "{out}");
    let alone = ["race", "--exact", "--allocators", "pool", "--trace", &strict];
    refused(&alone, &[&strict, "pool", "slots aligned to 8192"]);
}

//! Checks the study of claims in texts; the study consists of a document with findings and a table with one row per
//! claim. Every claim must have an answer and existing evidence, and exact figures must equal the figures of the
//! experiments.
//!
//! Each figure from an experiment is followed by its key, in a comment that the rendered page does not show.
//!
//! ```text
//! 89<!--race > 10000 operations > first-fit > holes-->      the experiment, how its table's title begins, row, column
//! 0.445<!--fifty-percent > claim > best fit-->              the experiment, words that one of its claims says
//! 37.5<!--layout --structs 64 > A walk > position; structs > lines-->   with options
//! ```
//!
//! If a figure is a bound of an interval, its key ends with `low` or `high`. The mark `≈` precedes a measured figure,
//! and the mark `<!--given-->` follows a parameter.
//!
//! The command `WRITE=1 cargo test -p uslab-tests --test sim study` updates the figures in tables. Figures inside
//! claims are part of the quoted text, and are not updated.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use uslab_lab::demos::Name;
use uslab_tests::workspace;

/// Path of the document with the findings, relative to the workspace.
const FINDINGS_PAGE: &str = "STUDY.md";
/// Path of the table of claims, relative to the workspace.
const CLAIMS_TABLE_FILE: &str = "sim/lab/TEXTS.md";

/// Returns the numbers of all claims of the study. A claim's number begins with the letter of its text; each chapter of
/// the tutorial has ten numbers.
fn numbers() -> Vec<String> {
    let plain = [('A', 40), ('K', 26), ('P', 27), ('X', 14), ('M', 16)];
    let chapters: [(u32, u32); 13] = [
        (1, 7),
        (10, 15),
        (20, 26),
        (30, 33),
        (40, 45),
        (50, 57),
        (60, 65),
        (70, 81),
        (90, 98),
        (100, 104),
        (110, 118),
        (120, 125),
        (130, 137),
    ];
    let plain =
        plain.into_iter().flat_map(|(letter, last)| (1..=last).map(move |n| format!("{letter}{n:02}")));
    let chapters = chapters.into_iter().flat_map(|(first, last)| first..=last);
    plain.chain(chapters.map(|n| format!("E{n:03}"))).collect()
}

/// The answers that a claim may have.
const CLAIM_ANSWERS: [&str; 5] = ["holds", "depends", "does not hold", "undecided", "out"];
/// The largest accepted number of claims with the answer `out`.
const MAX_OUT_ANSWERS: usize = 15;

struct Row {
    line: usize,
    claim: String,
    answer: String,
    found: String,
    evidence: String,
}

/// Returns the rows of all tables whose first cell is the number of a claim.
fn rows(text: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let number = cells[0];
        let letter = number.starts_with(['A', 'K', 'E', 'P', 'X', 'M']);
        if letter && number.len() > 1 && number[1..].chars().all(|c| c.is_ascii_digit()) {
            let [_, claim, answer, found, evidence] = cells[..] else {
                panic!("{CLAIMS_TABLE_FILE}:{}: {number}: {} cells, expected 5", i + 1, cells.len());
            };
            assert!(
                !claim.is_empty() && !found.is_empty(),
                "{CLAIMS_TABLE_FILE}:{}: {number}: an empty cell",
                i + 1
            );
            let [claim, answer, found, evidence] = [claim, answer, found, evidence].map(str::to_owned);
            let row = Row { line: i + 1, claim, answer, found, evidence };
            let twice = rows.insert(number.to_owned(), row);
            assert!(twice.is_none(), "{CLAIMS_TABLE_FILE}:{}: {number} appears twice", i + 1);
        }
    }
    rows
}

fn sources(folder: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, out);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push((path, text));
        }
    }
}

/// Returns `true` if the file or folder of the module `path` contains a test or scenario with the given name.
fn is_test(path: &str, sources: &[(PathBuf, String)]) -> bool {
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    let function = format!("fn {name}(");
    let of_module = |file: &Path| {
        let last = module.split("::").filter(|part| *part != "tests").last().unwrap_or("");
        last.is_empty()
            || file.components().any(|part| Path::new(part.as_os_str()).with_extension("") == Path::new(last))
    };
    let scenario = format!("\n    {name} {{\n");
    sources.iter().any(|(file, text)| {
        let is_test = |(at, _)| {
            let before: &str = &text[..at];
            let from = before.rfind("\n\n").map_or(0, |i| i + 1);
            before[from..].contains("#[test]")
        };
        of_module(file)
            && (text.match_indices(&function).any(is_test)
                || text.split_once("scenarios! {").is_some_and(|(_, table)| table.contains(&scenario)))
    })
}

#[test]
fn each_claim_of_the_study_has_evidence() {
    let root = workspace();
    let rows = rows(&std::fs::read_to_string(root.join(CLAIMS_TABLE_FILE)).unwrap());
    let mut all = Vec::new();
    sources(root, &mut all);
    let list = uslab_tests::lab().output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let experiments: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();

    let mut wrong = Vec::new();
    for number in numbers() {
        if !rows.contains_key(&number) {
            wrong.push(format!("{number} has no answer"));
        }
    }
    for (number, Row { line, answer, evidence, .. }) in &rows {
        let mut say = |what: String| wrong.push(format!("{CLAIMS_TABLE_FILE}:{line}: {number}: {what}"));
        if !numbers().contains(number) {
            say("unknown claim".to_owned());
        }
        if !CLAIM_ANSWERS.contains(&answer.as_str()) {
            say(format!("the answer is {answer:?}, expected one of {CLAIM_ANSWERS:?}"));
        }
        if answer != "out" && evidence.is_empty() {
            say("names no test, bench, command or file".to_owned());
        }
        for name in evidence.split(", ").filter(|name| !name.is_empty()) {
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
                say(format!("evidence {name:?}: expected names in backticks, separated by commas"));
                continue;
            };
            let exists = if let Some(verb) = name.strip_prefix("uslab lab ") {
                experiments.contains(&verb.split(' ').next().unwrap_or(""))
            } else if name.starts_with("uslab ") {
                ["replay", "stress", "geometry"].contains(&name.split(' ').nth(1).unwrap_or(""))
            } else if let Some(bench) = name.strip_prefix("bench ") {
                // The evidence is a benchmark program, or a row of the one that compares several.
                let benches = root.join("benches");
                let programs = [benches.join(bench), benches.join("all").join(bench)];
                programs.iter().any(|program| program.with_extension("rs").exists())
            } else if name.contains('/') || name.ends_with(".md") {
                root.join(name).exists()
            } else {
                is_test(name, &all)
            };
            if !exists {
                say(format!("{name:?} does not exist"));
            }
        }
    }
    let out = rows.values().filter(|row| row.answer == "out").count();
    if out > MAX_OUT_ANSWERS {
        wrong.push(format!("{out} claims are out of scope, at most {MAX_OUT_ANSWERS} may be"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows.len(), 216);
}

/// The heading of the table of systems in the page [`FINDINGS_PAGE`].
const SYSTEMS_HEADING: &str = "## The systems and their demos";

/// Returns the link targets on the page that lists the demos: demos of the lab, machines, and other web pages.
fn demo_page_link_targets() -> BTreeSet<String> {
    let source = |file: &str| std::fs::read_to_string(workspace().join("sim/web/src").join(file)).unwrap();
    let between = |text: &str, before: &str, behind: &str| -> Vec<String> {
        let parts = text.split(before).skip(1);
        let names = parts.filter_map(|part| part.split_once(behind)).map(|(name, _)| name.to_owned());
        names.filter(|name| !name.contains('\'')).collect()
    };
    let scenes = source("scenes.ts");
    let names = scenes.lines().find(|line| line.starts_with("export type Name = ")).unwrap().to_owned();
    let (machines, play) = (source("front/machines.ts"), source("front/play.ts"));
    let demos = names.split('"').skip(1).step_by(2).map(|name| format!("index.html#demo&name={name}"));
    let machines = between(&machines, "\n  name: '", "'").into_iter();
    let machines = machines.map(|name| format!("index.html#machine&name={name}"));
    let links = between(&play, "card(link('", "')").into_iter().map(|name| format!("index.html#{name}"));
    let files = between(&play, "card('", "'").into_iter();
    demos.chain(machines).chain(links).chain(files).chain(["replay.html".to_owned()]).collect()
}

#[test]
fn each_system_of_the_study_has_a_demo_and_a_claim() {
    let root = workspace();
    let claims = rows(&std::fs::read_to_string(root.join(CLAIMS_TABLE_FILE)).unwrap());
    let page = std::fs::read_to_string(root.join(FINDINGS_PAGE)).unwrap();
    let machines = std::fs::read_to_string(root.join("sim/web/src/front/machines.ts")).unwrap();
    let list = uslab_tests::lab().output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let experiments: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    let section = page.split_once(SYSTEMS_HEADING).expect("the table of systems must exist").1;
    let table = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let table: Vec<_> = table.take_while(|line| line.starts_with('|')).collect();
    let mut places = demo_page_link_targets();
    assert!(places.len() > 15, "{places:?}");
    for line in table {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, place, command, step, claim] = cells[..] else { panic!("{line}") };
        assert!(!step.is_empty(), "{line}");
        assert!(place.is_empty() || places.remove(place), "{line}: no such demo, or it appears twice");
        let (number, answer) = claim.split_once(' ').expect(line);
        assert_eq!(claims[number].answer, answer, "{line}");
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["cargo", "lab", "demo", name] => {
                assert_eq!(place, format!("index.html#demo&name={name}"));
                let output = uslab_tests::lab().args(["demo", name, "--json"]).output().unwrap();
                let scenes: Value = serde_json::from_slice(&output.stdout).unwrap();
                let (at, text) = step.split_once(": `").expect(line);
                let at: usize = at.parse().unwrap();
                assert_eq!(scenes[at - 1]["command"], text, "{line}");
                // The page of the demo names the claim.
                let demo = Name::ALL.into_iter().find(|demo| demo.name() == name).expect(line);
                let claim = demo.about().claim;
                assert_eq!((claim.number, claim.answer), (number, answer), "{line}");
                assert_eq!(claim.says, claims[number].claim, "{number}");
            }
            ["cargo", "lab", name] => assert!(experiments.contains(&name), "{line}"),
            ["cargo", "uslab", name] => assert!(["scale", "page", "replay"].contains(&name), "{line}"),
            _ => panic!("{line}: unknown command"),
        }
        if place.contains("#machine") {
            assert!(machines.contains(step), "{line}: no such chapter");
        }
    }
    assert!(places.is_empty(), "no row has {places:?}");
}

/// The demos of the lab's programs use fewer bytes than the experiments use by default.
#[test]
fn demos_show_the_figures_of_the_experiments() {
    let last = |name: &str, at: usize| -> Value {
        let output = uslab_tests::lab().args(["demo", name, "--json"]).output().unwrap();
        let scenes: Value = serde_json::from_slice(&output.stdout).unwrap();
        scenes[at].clone()
    };
    let figure = |key: &str, decimals: &str| find(key, decimals).unwrap();

    let lanes = last("robson", 6)["structure"]["shape"]["lanes"].clone();
    let lanes = lanes.as_array().unwrap();
    assert_eq!(lanes.len(), 6);
    for lane in lanes {
        let row =
            format!("robson --live 4096 --doublings 6 > Memory used > {}", lane["name"].as_str().unwrap());
        let times = figure(&format!("{row} > all doublings"), "0.00");
        let part = figure(&format!("{row} > of Robson's bound, %"), "0");
        assert_eq!(lane["says"], format!("{times} × the bytes in use, {part} % of the bound"));
    }

    let facts = last("fifty-percent", 12)["facts"].clone();
    let rows = [("first", 1), ("first", 16), ("best", 1), ("best", 16)]
        .map(|(fit, granule)| format!("{fit} fit, by address; 16 to 2048; {granule}"));
    assert_eq!(facts.as_array().unwrap().len(), rows.len());
    for (fact, row) in facts.as_array().unwrap().iter().zip(rows) {
        let row = format!("fifty-percent --blocks 100 --turnovers 12 > 100 blocks > {row}");
        let holes = figure(&format!("{row} > holes a block"), "0.000");
        let rest = figure(&format!("{row} > half of those that left a rest"), "0.000");
        let steps = figure(&format!("{row} > steps of a search"), "0.0");
        let expected = format!(
            "{holes} holes per block in turnovers 7 to 12; half the fraction of allocations that left a remainder: {rest}; steps per search: {steps}"
        );
        assert_eq!(fact[1], expected, "{row}");
    }

    let facts = last("pinning", 1)["facts"].clone();
    assert_eq!(facts.as_array().unwrap().len(), 4);
    for fact in facts.as_array().unwrap() {
        let row = format!("pinning --memory 65536 --one-in 32 > Memory of > {}", fact[0].as_str().unwrap());
        let together = figure(&format!("{row} > largest, bytes"), "0");
        let apart = figure(&format!("{row} > largest, bytes apart"), "0");
        let times = figure(&format!("{row} > times as large"), "0.0");
        assert_eq!(
            fact[1],
            format!("largest free piece {together} bytes together, {apart} apart: {times} times as large")
        );
    }
}

/// A number in a text of the study.
#[derive(Debug, PartialEq)]
struct Figure<'t> {
    text: &'t str,
    measured: bool,
    /// The HTML comment after the number.
    key: Option<&'t str>,
}

/// Returns the numbers in a text, except numbers in code, in comments, or in names such as E092 or 32-bit.
fn figures(text: &str) -> Vec<Figure<'_>> {
    let (mut found, mut at, mut code) = (Vec::new(), 0, false);
    let bytes = text.as_bytes();
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    while at < bytes.len() {
        if bytes[at..].starts_with(b"<!--") {
            at += text[at..].find("-->").map_or(bytes.len() - at, |end| end + 3);
            continue;
        }
        code ^= bytes[at] == b'`';
        let follows = at > 0 && (is_word(bytes[at - 1]) || bytes[at - 1] == b'^');
        let begins = bytes[at].is_ascii_digit() && !follows;
        if code || !begins {
            at += 1;
            continue;
        }
        let digits = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b',');
        let mut end = at + bytes[at..].iter().take_while(|b| digits(b)).count();
        while matches!(bytes[end - 1], b'.' | b',') {
            end -= 1;
        }
        // Such numbers are parts of names: 32-bit, 2^32, 256th, set 1.
        let part_of_name = bytes.get(end).is_some_and(|b| is_word(*b))
            || text[end..].starts_with("-b")
            || text[end..].starts_with('^')
            || text[..at].ends_with("set ");
        if !part_of_name {
            let key = text[end..].strip_prefix("<!--").and_then(|rest| rest.split("-->").next());
            let measured = text[..at].ends_with('≈') || text[..at].ends_with("≈ ");
            found.push(Figure { text: &text[at..end], measured, key: key.map(str::trim) });
        }
        at = end;
        while bytes.get(at).is_some_and(|b| is_word(*b)) {
            at += 1;
        }
    }
    found
}

/// Returns the findings that `uslab lab COMMAND --exact` prints. Each experiment runs only once; all tests share its
/// findings.
// The standard library's lock suffices, because no model checker runs these tests.
#[allow(clippy::disallowed_types)]
pub(crate) fn findings(command: &str) -> &'static Value {
    use std::sync::{Mutex, OnceLock, PoisonError};
    static FOUND_VALUES: Mutex<BTreeMap<String, &OnceLock<Value>>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND_VALUES.lock().unwrap_or_else(PoisonError::into_inner);
    let place = *found.entry(command.to_owned()).or_insert_with(|| Box::leak(Box::default()));
    drop(found);
    place.get_or_init(|| {
        let output = uslab_tests::lab()
            // Commands name traces relative to this folder.
            .current_dir(workspace().join("sim"))
            .args(command.split_whitespace())
            .args(["--exact", "--json", "-"])
            .output()
            .expect("the program must start");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "uslab lab {command}: {said}");
        serde_json::from_slice(&output.stdout).expect("the output must be only JSON")
    })
}

/// Compares a figure in a text with the figure that its key identifies; the error names that figure.
fn check(key: &str, figure: &str) -> Result<(), String> {
    let found = find(key, figure)?;
    if found == figure { Ok(()) } else { Err(format!("the figure is {found}")) }
}
/// Returns the figure that a key refers to, rounded to the number of decimals of `figure`. The error states why no
/// figure matches the key.
fn find(key: &str, figure: &str) -> Result<String, String> {
    let words: Vec<&str> = key.split(" > ").collect();
    let (command, path) = words.split_first().ok_or("an empty key")?;
    let findings = findings(command);
    let parts = findings["parts"].as_array().ok_or("the findings have no parts")?;
    if let ["claim", says] = path {
        let mut claims = parts.iter().map(|part| &part["claim"]);
        let claim = claims
            .find(|claim| claim["says"].as_str().is_some_and(|text| text.contains(says)))
            .ok_or_else(|| format!("no claim says {says:?}"))?;
        let found = claim["found"].as_str().unwrap_or_default();
        let there = figures(found).iter().any(|other| other.text == figure);
        return if there { Ok(figure.to_owned()) } else { Err(format!("the claim found {found:?}")) };
    }
    let [title, row, column, end @ ..] = path else {
        return Err("expected experiment > title > row > column".to_owned());
    };
    let table = one(parts.iter().map(|part| &part["table"]), "table", |table| {
        table["title"].as_str().is_some_and(|text| text.starts_with(title))
    })?;
    let columns = table["columns"].as_array().ok_or("the table has no columns")?;
    let column = columns
        .iter()
        .position(|there| there["name"] == *column)
        .ok_or_else(|| format!("no column {column:?}"))?;
    let named_by = table["named_by"].as_u64().unwrap_or(1) as usize;
    let rows = table["rows"].as_array().ok_or("the table has no rows")?;
    let row = one(rows.iter(), "row", |cells| {
        let cells = cells.as_array().into_iter().flatten().take(named_by);
        let name = cells.map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned));
        name.collect::<Vec<_>>().join("; ") == *row
    })?;
    let value = match (&row[column], end) {
        (Value::Object(interval), [end]) => &interval[*end],
        (Value::Object(interval), []) => &interval["median"],
        (value, _) => value,
    };
    let decimals = figure.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let value = value.as_f64().ok_or_else(|| format!("the value is {value}, not a number"))?;
    // The text says in words which way a difference goes, so the sign is dropped.
    Ok(grouped(&format!("{:.decimals$}", value.abs())))
}

/// Inserts commas between groups of three digits in the integer part.
fn grouped(plain: &str) -> String {
    let (whole, decimals) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut shown = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown + decimals
}

/// Returns a line in which figures are replaced. The callback `other` gets each key and its figure, and returns a new
/// figure if the figure must change.
fn rewrite_figures(line: &str, mut other: impl FnMut(&str, &str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), line);
    for Figure { text, key, .. } in figures(line) {
        let Some(found) = key.filter(|key| *key != "given").and_then(|key| other(key, text)) else {
            continue;
        };
        // The figure's position in the rest of the line.
        let at = text.as_ptr().addr() - rest.as_ptr().addr();
        out += &rest[..at];
        out += &found;
        rest = &rest[at + text.len()..];
    }
    out + rest
}

/// Returns the only matching value; fails if no value matches, or if several do.
fn one<'v>(
    all: impl Iterator<Item = &'v Value>,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Result<&'v Value, String> {
    let found: Vec<_> = all.filter(|value| is(value)).collect();
    match found[..] {
        [one] => Ok(one),
        _ => Err(format!("{} {what}s of that name", found.len())),
    }
}

/// Regression test: some figures in the study were from an earlier version of the experiments, and no test noticed.
#[test]
fn each_exact_study_figure_equals_its_experiment() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in [FINDINGS_PAGE, CLAIMS_TABLE_FILE] {
        let path = workspace().join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        if std::env::var_os("WRITE").is_some() {
            let lines =
                text.lines().map(|line| rewrite_figures(line, |key, figure| find(key, figure).ok()) + "\n");
            std::fs::write(&path, lines.collect::<String>()).unwrap();
            continue;
        }
        for (i, line) in text.lines().enumerate() {
            for figure in figures(line) {
                let Some(key) = figure.key.filter(|key| *key != "given") else { continue };
                checked += 1;
                if let Err(why) = check(key, figure.text) {
                    wrong.push(format!("{page}:{}: {} by `{key}`: {why}", i + 1, figure.text));
                }
            }
        }
    }
    let text = std::fs::read_to_string(workspace().join(CLAIMS_TABLE_FILE)).unwrap();
    for (number, Row { line, claim, found, evidence, .. }) in &rows(&text) {
        if !evidence.contains("`uslab lab ") {
            continue;
        }
        let said: Vec<&str> = figures(claim).iter().map(|figure| figure.text).collect();
        for Figure { text, measured, key } in figures(found) {
            if key.is_none() && !measured && !said.contains(&text) {
                wrong.push(format!(
                    "{CLAIMS_TABLE_FILE}:{line}: {number}: {text} has no key; expected <!--experiment > title > row > column--> behind it, ≈ in \
                     front of it if it was measured, or <!--given--> if it is a parameter"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 50 || std::env::var_os("WRITE").is_some(), "{checked} figures");
}

/// The document with the findings states the number of claims with each answer; these numbers must be updated when a
/// row changes.
#[test]
fn findings_page_states_the_count_of_each_answer() {
    let page = std::fs::read_to_string(workspace().join(FINDINGS_PAGE)).unwrap();
    let rows = rows(&std::fs::read_to_string(workspace().join(CLAIMS_TABLE_FILE)).unwrap());
    for letter in ["A", "K", "E", "P", "X", "M"] {
        let counts = CLAIM_ANSWERS.map(|answer| {
            let same = |(number, row): &(&String, &Row)| number.starts_with(letter) && row.answer == answer;
            rows.iter().filter(same).count().to_string()
        });
        let counts = counts.join(" | ");
        let line = page.lines().find(|line| line.starts_with(&format!("| {letter} | ")));
        let line = line.unwrap_or_else(|| panic!("{FINDINGS_PAGE} has no line of text {letter}"));
        assert!(
            line.ends_with(&format!(" | {counts} |")),
            "{FINDINGS_PAGE}: {line}\nexpected at its end: {counts}"
        );
    }
}

#[test]
fn study_figure_without_an_experiment_is_reported() {
    let text = "`12` 1,918<!--tlsf > a > b > c--> and ≈2.5 of E092, 32-bit, 2^32, set 3, 7th, 7. <!--9--> x64 5<!--given-->.";
    let figure = |text, measured, key| Figure { text, measured, key };
    assert_eq!(
        figures(text),
        [
            figure("1,918", false, Some("tlsf > a > b > c")),
            figure("2.5", true, None),
            figure("7", false, None),
            figure("5", false, Some("given")),
        ]
    );
    let key = "buddy > 1024 bytes > free 65 > 128";
    assert_eq!(check(key, "2"), Ok(()));
    assert_eq!(check(key, "3"), Err("the figure is 2".to_owned()));
    assert_eq!(check("buddy > 1024 bytes > free 65 > 129", "2"), Err("no column \"129\"".to_owned()));
    assert_eq!(check("buddy > 1024 bytes > free > 128", "2"), Err("0 rows of that name".to_owned()));
    assert_eq!(check("layout > claim > 25 %", "37.5"), Ok(()));
    assert!(check("layout > claim > 25 %", "37.6").unwrap_err().starts_with("the claim found "));
}

#[test]
fn rewritten_study_figure_keeps_its_format() {
    assert_eq!(["0", "228", "1918", "1000000.25"].map(grouped), ["0", "228", "1,918", "1,000,000.25"]);
    let line = "≈2.5 of 7<!--a > b > c--> and 1,918<!--d > e--> in 5<!--given-->.";
    let other = |key: &str, figure: &str| (key == "d > e").then(|| grouped("21918") + &figure[..0]);
    assert_eq!(
        rewrite_figures(line, other),
        "≈2.5 of 7<!--a > b > c--> and 21,918<!--d > e--> in 5<!--given-->."
    );
}

/// Checks that the other checks can fail: they must detect missing evidence.
#[test]
fn study_check_detects_a_missing_evidence_test() {
    let here = vec![(PathBuf::from("tests/sim/study.rs"), include_str!("study.rs").to_owned())];
    assert!(is_test("study_check_detects_a_missing_evidence_test", &here));
    assert!(is_test("study::tests::study_check_detects_a_missing_evidence_test", &here));
    assert!(!is_test("other::study_check_detects_a_missing_evidence_test", &here));
    assert!(!is_test("rows", &here), "a function that is not a test must not count");
    assert!(!is_test("no_such_test", &here));
    let table = "| A01 | a claim | holds | found | `x` |\n| B01 | other | holds | found | x |\ntext\n";
    assert_eq!(rows(table)["A01"].evidence, "`x`");
    assert_eq!(rows(table).len(), 1);
    assert!(
        uslab_magazine::sync::catch_panic(|| rows("| A01 | a claim | holds | `x` |")).is_err(),
        "a cell is missing"
    );
    assert_eq!(numbers().len(), 216);
}

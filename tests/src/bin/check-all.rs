//! The command `cargo check-all` runs every quick test of the workspace, including the loom models, and
//! prints the counts at the end.
//!
//! Models need a different build (`--cfg loom`) from tests, so a single `cargo test` cannot run both. A mistake could
//! prevent a model from running, and no test would fail. Each model therefore writes a row to a file, and this command
//! counts the rows.
//!
//! Models run in a copy of the sources that also contains the planted bugs. A mistake could leave a planted bug without
//! a model that covers it. Each planted bug must therefore have been caught: by a model, or by schedules if loom does
//! not compile its code.
//!
//! The rows of models, planted bugs and schedules are stored for `check-claims`.
//!
//! The command `cargo check-quick` runs a small part of the tests, for use between edits; a finished change must pass
//! all tests.

use anyhow::Context;
use clap::Parser;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use uslab_sync::shard::{Shard, Share, join_rows};
use uslab_tests::claims::Runner;
use uslab_tests::models::{
    BUGS_FOR_SCHEDULES_ONLY, EXAMPLES, Example, LITMUS, MODELLED, ModelledCrate, Programs,
    SYNC_EXAMPLE_CRATE, checked_test, field, rows,
};
use uslab_tests::planted::{self, WorkspaceCopy};
use uslab_tests::share::ShardArgs;
use uslab_tests::{cargo, workspace};

/// The number of cases of each property test, unless `PROPTEST_CASES` overrides it.
const CASES: &str = "1000";
/// The number of cases of each property test in `check-quick`.
const QUICK_CASES: &str = "100";

/// The name under which the shards of this command are stored.
const RUNNER_NAME: &str = "check-all";

/// Runs every quick test of the workspace: unit, property, end-to-end and documentation tests, then the loom models and
/// the random schedules.
///
/// A shard runs a part of each large model's executions, of the small models, of the planted bugs and of the schedules'
/// seeds. Shard 0 also runs everything else, including the tests. The option `--merge` adds up the results of all
/// shards.
///
/// Environment: PROPTEST_CASES (default 1000), BOUND (pre-emption bound of all models: 1, 2, 3 or none), SCHEDULES (10
/// runs ten times as many schedules). Exit codes: 0 if everything passed, 1 if something failed, 2 if the usage was
/// wrong, or a shard is missing or from another build.
#[derive(Debug, Parser)]
#[command(name = "check-all", max_term_width = 100)]
struct Args {
    /// Runs only the tests.
    #[arg(long, group = "part", conflicts_with = "shard")]
    tests: bool,
    /// Runs only the loom models and the schedules.
    #[arg(long, group = "part")]
    models: bool,
    /// Runs a part of the tests and models, for use between edits; `cargo check-quick` does the same. The part consists
    /// of the format check, the unit tests of uslab-magazine, uslab-buddy and uslab with 100 cases per property, and
    /// the models of uslab-magazine with 1 pre-emption.
    #[arg(long, group = "part", conflicts_with = "shard")]
    quick: bool,
    #[command(flatten)]
    share: ShardArgs,
}

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    models: u64,
    executions: u64,
    /// The planted bugs that models have caught; the next field counts how often bugs were caught.
    caught: BTreeSet<String>,
    catches: u64,
    /// The number of scenarios; the next fields are the number of their schedules, and the planted bugs that schedules
    /// have caught.
    scenarios: u64,
    schedules: u64,
    caught_by_schedules: BTreeSet<String>,
    catches_by_schedules: u64,
    /// The rows for `check-claims`; each begins with the name of the program that printed it.
    rows: Vec<String>,
    /// The shard to run; `None` for the whole run.
    shard: Option<Shard>,
    /// The models of which the shard runs only a part.
    parts: BTreeSet<String>,
    /// The number of models and scenarios that each program contains.
    models_of: BTreeMap<String, usize>,
    scenarios_of: BTreeMap<String, usize>,
    /// The number of fault trials that refused a call, and the number of all refused calls.
    faults: [u64; 2],
    /// The number of operations of the stress runs, and the number of violations.
    stress: [u64; 2],
    /// The output lines that describe failed tests.
    failures: Vec<String>,
    /// The parts of the run that did not complete.
    broken: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut totals = Totals::default();
    if args.quick {
        run_quick(&mut totals);
        return totals.end();
    }
    if !args.share.merge.is_empty() {
        let shares = match args.share.joined(RUNNER_NAME) {
            Ok(shares) => shares,
            Err(error) => {
                eprintln!("check-all: {error:#}");
                return ExitCode::from(2);
            }
        };
        if let Err(error) = merge(shares, &mut totals) {
            totals.broken.push(format!("{error:#}"));
        }
        return totals.end();
    }
    let shard = match args.share.requested() {
        Ok(shard) => shard.filter(|_| !args.tests),
        Err(error) => {
            eprintln!("check-all: {error:#}");
            return ExitCode::from(2);
        }
    };
    totals.shard = shard;
    let rest = shard.is_none_or(|shard| shard.index() == 0);
    let copy = if args.tests { None } else { totals.copy() };
    if !args.models && rest {
        run_tests(&mut totals, copy.as_ref());
        for (what, [ran, _]) in [("the sweep of faults", totals.faults), ("the stress", totals.stress)] {
            if ran == 0 {
                totals.broken.push(format!("{what} did not run"));
            }
        }
    }
    if let Some(copy) = copy {
        run_models(&copy, &mut totals);
        run_schedules(&copy, &mut totals);
        if rest {
            check_models_need_loom(&mut totals);
        }
        match shard {
            None => {
                record_missing_runs(&mut totals);
                totals.keep();
            }
            Some(shard) if totals.has_passed() => {
                let part = if args.models { "models" } else { "all" };
                let set =
                    |name: &str| std::env::var(name).map_or(String::new(), |set| format!(", {name}={set}"));
                let settings = ["BOUND", "SCHEDULES"].map(set).concat();
                let rows = std::mem::take(&mut totals.rows);
                match args.share.leave(RUNNER_NAME, shard, &format!("({part}{settings})"), rows) {
                    Ok(path) => println!("share {shard}: {}", path.display()),
                    Err(error) => totals.broken.push(format!("{error:#}")),
                }
            }
            Some(shard) => println!("share {shard}: not written, because something failed"),
        }
    }
    totals.end()
}

/// Adds up the results of all shards, as if they came from a single run.
fn merge(shares: Vec<Share>, totals: &mut Totals) -> anyhow::Result<()> {
    println!("{} shares of {}", shares.len(), shares[0].of);
    let rows: Vec<Vec<String>> = shares.into_iter().map(|share| share.rows).collect();
    for row in join_rows(&rows).map_err(anyhow::Error::msg)? {
        let (whose, row) =
            row.split_once(" | ").with_context(|| format!("the row {row:?} names no program"))?;
        totals.take(whose, row);
    }
    record_missing_runs(totals);
    totals.keep();
    Ok(())
}

impl Totals {
    fn has_passed(&self) -> bool {
        self.failed == 0 && self.broken.is_empty()
    }

    /// Makes the copy of the sources with the planted bugs; if this fails, records a failure and returns `None`.
    fn copy(&mut self) -> Option<WorkspaceCopy> {
        WorkspaceCopy::planted().map_err(|error| self.broken.push(format!("{error:#}"))).ok()
    }

    /// Counts and stores a row that the program named `whose` has printed.
    fn take(&mut self, whose: &str, row: &str) {
        let kept = format!("{whose} | {row}");
        let Some((kind, row)) = row.split_once(' ') else { return };
        match kind {
            "MODEL" | "PART" => {
                self.executions += field(row, "executions");
                let name = row.split(" | ").next().unwrap_or_default();
                if kind == "MODEL" || self.parts.insert(format!("{whose} {name}")) {
                    self.models += 1;
                    *self.models_of.entry(whose.to_owned()).or_default() += 1;
                }
            }
            "CAUGHT" if field(row, "schedule") > 0 => {
                self.caught_by_schedules.extend(row.split(" | ").next().map(str::to_owned));
                self.catches_by_schedules += 1;
            }
            "CAUGHT" => {
                self.caught.extend(row.split(" | ").next().map(str::to_owned));
                self.catches += 1;
            }
            "SCHEDULES" => {
                self.scenarios += 1;
                self.schedules += field(row, "random") + field(row, "pct");
                *self.scenarios_of.entry(whose.to_owned()).or_default() += 1;
            }
            _ => return,
        }
        self.rows.push(kept);
    }

    /// Writes all stored rows to the file that `check-claims` reads.
    fn keep(&mut self) {
        let kept = self.rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        let file = Runner::All.file();
        let written = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = written.and_then(|()| std::fs::write(&file, kept)) {
            self.broken.push(format!("{}: {error}", file.display()));
        }
    }

    /// Prints what was run, and what failed.
    fn end(&self) -> ExitCode {
        for broken in self.failures.iter().chain(&self.broken) {
            println!("FAILED: {broken}");
        }
        if self.faults[0] > 0 {
            println!("faults: {} points, {} injections", self.faults[0], self.faults[1]);
        }
        if self.stress[0] > 0 {
            println!("stress: {} operations, {} violations", self.stress[0], self.stress[1]);
        }
        if self.models > 0 {
            println!(
                "loom: {} models, {} executions, {} planted bugs caught, {} times in all",
                self.models,
                self.executions,
                self.caught.len(),
                self.catches
            );
        }
        if self.scenarios > 0 {
            println!(
                "shuttle: {} scenarios, {} schedules, planted bugs caught {} times",
                self.scenarios, self.schedules, self.catches_by_schedules
            );
        }
        println!("{} passed, {} failed", self.passed, self.failed + self.broken.len() as u64);
        if self.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Runs a quick part of all tests, which takes a few minutes from a clean build.
fn run_quick(totals: &mut Totals) {
    let mut format = cargo();
    format.args(["fmt", "--all", "--check"]);
    watch("format", "", format, totals);
    let mut tests = cargo();
    tests.args(["test", "--profile", "quick", "--lib"]);
    let packages = ["uslab-magazine-spec", "uslab-magazine", "uslab-buddy", "uslab"];
    tests.args(packages.iter().flat_map(|package| ["-p", package]));
    if std::env::var_os("PROPTEST_CASES").is_none() {
        tests.env("PROPTEST_CASES", QUICK_CASES);
    }
    watch("unit tests", "", tests, totals);
    let Some(copy) = totals.copy() else { return };
    for ModelledCrate { package, least, .. } in
        MODELLED.into_iter().filter(|of| of.package == "uslab-magazine")
    {
        let mut models = checked_test(Some(&copy), "loom", package);
        models.arg("--");
        if std::env::var_os("BOUND").is_none() {
            models.env("BOUND", "1");
        }
        count_models(package, models, totals);
        at_least(package, least, totals);
    }
}

/// Runs the tests, while the models in `copy` are built.
fn run_tests(totals: &mut Totals, copy: Option<&WorkspaceCopy>) {
    let tests = || {
        let mut command = cargo();
        command.args(["test", "--workspace", "--no-fail-fast"]);
        if std::env::var_os("PROPTEST_CASES").is_none() {
            command.env("PROPTEST_CASES", CASES);
        }
        command
    };
    match copy {
        None => watch("tests", "", tests(), totals),
        Some(copy) => {
            let mut build = tests();
            build.arg("--no-run");
            watch("the tests are built", "", build, totals);
            // Models are built while tests wait for programs and for each other.
            std::thread::scope(|scope| {
                scope.spawn(|| build_models(copy));
                watch("tests", "", tests(), totals);
            });
        }
    }
    watch(&format!("tests of {}", SYNC_EXAMPLE_CRATE.package), "", SYNC_EXAMPLE_CRATE.test(), totals);
}

/// Returns the builds for a checker: the programs of this workspace, and the example crate of another workspace.
fn builds(copy: &WorkspaceCopy, checker: &str) -> [Command; 2] {
    let mut outside = SYNC_EXAMPLE_CRATE.checked_test(checker);
    outside.arg("--no-run");
    [Programs::build_command(copy, checker), outside]
}

/// Builds the models at the lowest priority. If the build fails, the error is reported when the models are due to run.
fn build_models(copy: &WorkspaceCopy) {
    for build in ["loom", "shuttle"].iter().flat_map(|checker| builds(copy, checker)) {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]).arg(build.get_program()).args(build.get_args());
        nice.envs(build.get_envs().filter_map(|(name, value)| Some((name, value?))));
        nice.current_dir(build.get_current_dir().unwrap_or(workspace()));
        let _ = nice.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Builds the programs for a checker; if the build fails, records the failure and returns `None`.
fn programs(copy: &WorkspaceCopy, checker: &str, totals: &mut Totals) -> Option<Programs> {
    println!("== the build for {checker}");
    let begun = Instant::now();
    let built = Programs::build(copy, checker);
    println!("== the build for {checker}: {:.0?}", begun.elapsed());
    built.map_err(|error| totals.broken.push(format!("{error:#}"))).ok()
}

fn run_models(copy: &WorkspaceCopy, totals: &mut Totals) {
    let Some(programs) = programs(copy, "loom", totals) else { return };
    for ModelledCrate { package, .. } in MODELLED {
        count_models(package, programs.run(package), totals);
    }
    // The test explores all executions, and cannot be divided.
    if totals.shard.is_none_or(|shard| shard.index() == 0) {
        count_models(LITMUS, programs.run(LITMUS), totals);
    }
    for Example { name, .. } in EXAMPLES {
        count_models(name, programs.run(name), totals);
    }
    let mut outside = SYNC_EXAMPLE_CRATE.checked_test("loom");
    outside.arg("--");
    count_models(SYNC_EXAMPLE_CRATE.package, outside, totals);
}

/// Records a failure if a test or model that must run did not run.
fn record_missing_runs(totals: &mut Totals) {
    let modelled = MODELLED.map(|of| (of.package, of.least, of.least_schedules));
    let examples = EXAMPLES.map(|of| (of.name, of.least, 0));
    let outside = (SYNC_EXAMPLE_CRATE.package, SYNC_EXAMPLE_CRATE.least, SYNC_EXAMPLE_CRATE.least_schedules);
    let litmus = (LITMUS, 1, 0);
    for (what, least, least_schedules) in modelled.into_iter().chain(examples).chain([outside, litmus]) {
        at_least(what, least, totals);
        let ran = totals.scenarios_of.get(what).copied().unwrap_or(0);
        if ran < least_schedules {
            totals.broken.push(format!("{what}: {ran} scenarios ran; expected at least {least_schedules}"));
        }
    }
    let planted = EXAMPLES.iter().flat_map(|of| of.planted.iter().map(|bug| (of.name, *bug)));
    for (what, bug) in planted.chain([(SYNC_EXAMPLE_CRATE.package, SYNC_EXAMPLE_CRATE.planted)]) {
        if !totals.caught.contains(bug) {
            totals.broken.push(format!("{what}: no model caught {bug:?}"));
        }
    }
    record_uncaught_planted_bugs(totals);
}

fn at_least(what: &str, least: usize, totals: &mut Totals) {
    let ran = totals.models_of.get(what).copied().unwrap_or(0);
    if ran < least {
        totals.broken.push(format!("{what}: {ran} models ran; expected at least {least}"));
    }
}

/// Runs the models of one program, and counts the models that it reports.
fn count_models(what: &str, mut command: Command, totals: &mut Totals) {
    // Another shard may run at the same time.
    let rows: PathBuf = workspace().join(format!("target/loom/models.{}.txt", std::process::id()));
    // The rows of an earlier run are removed.
    let _ = std::fs::remove_file(&rows);
    command.args(["--nocapture", "--test-threads=2"]).env("MODEL_ROWS", &rows);
    command.envs(totals.shard.map(|shard| ("SHARD", shard.to_string())));
    watch(&format!("models of {what}"), what, command, totals);
    let text = std::fs::read_to_string(&rows).unwrap_or_default();
    let _ = std::fs::remove_file(&rows);
    text.lines().for_each(|row| totals.take(what, row));
}

/// Records a failure for each planted bug that no model caught.
fn record_uncaught_planted_bugs(totals: &mut Totals) {
    match planted::names() {
        Ok(names) => {
            let missed = names.difference(&totals.caught);
            let missed = missed.filter(|bug| {
                !BUGS_FOR_SCHEDULES_ONLY.contains(&&***bug) || !totals.caught_by_schedules.contains(*bug)
            });
            totals.broken.extend(missed.map(|bug| format!("no model caught the planted bug {bug:?}")));
        }
        Err(error) => totals.broken.push(format!("planted bugs: {error:#}")),
    }
}

/// Runs random and PCT schedules of larger scenarios, under shuttle.
fn run_schedules(copy: &WorkspaceCopy, totals: &mut Totals) {
    let Some(programs) = programs(copy, "shuttle", totals) else { return };
    let inside = MODELLED.map(|ModelledCrate { package, .. }| {
        let mut command = programs.run(package);
        command.arg("scenarios");
        (package, command)
    });
    let mut outside = SYNC_EXAMPLE_CRATE.checked_test("shuttle");
    outside.arg("--");
    for (package, mut command) in inside.into_iter().chain([(SYNC_EXAMPLE_CRATE.package, outside)]) {
        command.args(["--nocapture", "--test-threads=2"]);
        command.envs(totals.shard.map(|shard| ("SHARD", shard.to_string())));
        watch(&format!("schedules of {package}"), package, command, totals);
    }
}

/// Negative control: a build of the models without loom must fail, so that they cannot pass without loom. The build
/// sets the `cfg` for one crate only, because one of its dependencies would otherwise refuse to compile first.
fn check_models_need_loom(totals: &mut Totals) {
    for ModelledCrate { package, .. } in MODELLED {
        let mut command = cargo();
        command.args(["rustc", "--profile", "check", "-p", package, "--lib", "--", "--cfg", "uslab_models"]);
        check_build_needs_loom(&format!("`{package}` (lib)"), command, totals);
    }
    for Example { package, name, .. } in EXAMPLES {
        let mut command = cargo();
        command.args(["check", "--profile", "test", "--example", name, "-p", package]);
        check_build_needs_loom(&format!("`{package}` (example \"{name}\" test)"), command, totals);
    }
}

/// Checks that the build of the crate `what` fails.
fn check_build_needs_loom(what: &str, mut command: Command, totals: &mut Totals) {
    match command.env("CARGO_TERM_COLOR", "never").output() {
        Ok(ran) if refuses(what, &String::from_utf8_lossy(&ran.stderr)) => totals.passed += 1,
        Ok(ran) => totals.broken.push(format!(
            "{what}: without loom, building the models must fail with an explanation: {}\n{}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr).trim_end()
        )),
        Err(error) => totals.broken.push(format!("cargo: {error}")),
    }
}

/// Returns `true` if the only compiler error states that the models of `what` need loom.
fn refuses(what: &str, said: &str) -> bool {
    let mut errors = said.lines().filter_map(|line| line.strip_prefix("error"));
    errors.next().is_some_and(|error| error.starts_with(": the models need --cfg loom"))
        && errors.next().is_some_and(|error| error.starts_with(&format!(": could not compile {what}")))
}

/// Runs a command, shows its output, stores its rows, and adds up the counts that its test runners print.
fn watch(what: &str, whose: &str, mut command: Command, totals: &mut Totals) {
    println!("== {what}");
    let begun = Instant::now();
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return totals.broken.push(format!("{what}: cannot start: {error}")),
    };
    let failed_before = totals.failed;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = writeln!(std::io::stdout(), "{line}");
            for (kind, row) in ["CAUGHT ", "SCHEDULES "]
                .iter()
                .flat_map(|kind| rows(&line, kind).map(move |row| (kind, row)))
            {
                totals.take(whose, &format!("{kind}{row}"));
            }
            add(&mut totals.faults, &line, "faults: ", [" points", " injections"]);
            add(&mut totals.stress, &line, "stress: ", [" operations", " violations"]);
            if line.starts_with("test ") && line.ends_with(" ... FAILED") {
                totals.failures.push(format!("{what}: {line}"));
            }
            if let Some(result) = line.strip_prefix("test result: ") {
                totals.passed += number_before_word(result, " passed");
                totals.failed += number_before_word(result, " failed");
            }
        }
    }
    match child.wait() {
        Ok(status) if status.success() => println!("== {what}: {:.0?}", begun.elapsed()),
        Ok(status) if totals.failed == failed_before => totals.broken.push(format!("{what}: {status}")),
        Ok(_) => println!("== {what}: failed"),
        Err(error) => totals.broken.push(format!("{what}: {error}")),
    }
}

/// Adds the numbers in text like `faults: 3 points, 4 injections`, which may begin anywhere in `line`.
fn add(sums: &mut [u64; 2], line: &str, name: &str, words: [&str; 2]) {
    if let Some((_, text)) = line.split_once(name)
        && words.iter().all(|word| text.contains(word))
    {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum += number_before_word(text, word);
        }
    }
}

fn number_before_word(text: &str, word: &str) -> u64 {
    let digits = text.split(word).next().and_then(|s| s.rsplit([' ', ';']).next());
    digits.and_then(|d| d.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a dependency of each crate refused to compile, and the check counted this as a refusal by the
    /// crate.
    #[test]
    fn crate_that_must_not_compile_fails_for_the_expected_reason() {
        let said = |reason: &str, of: &str| {
            format!(
                "    Checking a\nerror: {reason}\n --> a.rs\n\nerror: could not compile {of} due to 1 previous error\n"
            )
        };
        let (ours, reason) = ("`uslab` (lib)", "the models need --cfg loom: without it");
        assert!(refuses(ours, &said(reason, ours)));
        assert!(!refuses(ours, &said(reason, "`uslab-sync` (lib)")) && !refuses(ours, ""));
        assert!(!refuses(ours, &said("no such thing", ours)));
    }

    #[test]
    fn check_all_reads_a_count_by_its_name() {
        let row = "M1: four | threads 4 | random 1000 | pct 20 | depth 3 | 1.2s";
        assert_eq!(["threads", "random", "pct", "executions"].map(|name| field(row, name)), [4, 1000, 20, 0]);
    }

    #[test]
    fn check_all_sums_only_lines_with_the_prefix() {
        let mut sums = [0, 0];
        for line in [
            "stress: 7 operations, 0 violations",
            "test a_quick_run ... stress: 30 operations, 2 violations",
            "stress: 1,000 operations in 1.0 s",
        ] {
            add(&mut sums, line, "stress: ", [" operations", " violations"]);
        }
        assert_eq!(sums, [37, 2]);
        assert_eq!(number_before_word("ok. 12 passed; 3 failed", " failed"), 3);
    }
}

//! The command `cargo check-reach` shows which lines of the allocator each tool reaches.
//!
//! [`reach`](uslab_tests::reach) inserts a probe before each statement, in a copy of the workspace. The copy is built
//! three times: for loom, for shuttle, and without a checker. The programs of each tool record the lines that they
//! reach in a separate file.

use anyhow::{Context, bail, ensure};
use clap::Parser;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use uslab_tests::claims::unreached;
use uslab_tests::jobs::{CommandResult, errors, run_with_time_limit, side_by_side};
use uslab_tests::models::rows;
use uslab_tests::reach::{
    CRATES, ProbedFile, REACH_TOOLS, REACHED_LINES_FILE_BYTES, SWITCH, Table, probed_files,
};
use uslab_tests::share::{build, counts, tracked_files};
use uslab_tests::{cargo_command_in, workspace};

/// Run all tools on a copy of the allocator with a probe before each statement, and print the percentage of
/// each file's lines that each tool reaches.
///
/// Builds and copies are stored in target/reach. The lines that a tool reached are also stored there until the sources,
/// the tests or the compiler change; parts of the work can therefore run one at a time. If a tool fails, no lines are
/// stored for it. From a clean build, all parts take about half an hour on two cores.
///
/// Exit codes: 0 if all tools ran; 1 if a test that passes without probes fails, a build fails, or tests/claims.toml
/// has no reason for a file that no concurrent checker reaches; 2 for wrong usage.
#[derive(Debug, Parser)]
#[command(name = "check-reach", max_term_width = 100)]
struct Args {
    /// Run only these parts of the work. Default: all parts that did not run yet on these sources.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PARTS.map(|part| part.name))]
    part: Vec<String>,
}

/// A build, and those tools of [`REACH_TOOLS`] that use the build.
struct BuildWithTools {
    name: &'static str,
    tools: &'static [&'static str],
    run: fn(&mut Tree) -> anyhow::Result<Vec<Job>>,
}

const PARTS: [BuildWithTools; 5] = [
    BuildWithTools { name: "units", tools: &["stepper", "protocol", "fuzz", "units"], run: units },
    BuildWithTools { name: "stress", tools: &["stress"], run: stress },
    BuildWithTools { name: "whole", tools: &["histories", "whole"], run: integration_jobs },
    BuildWithTools { name: "models", tools: &["models"], run: models },
    BuildWithTools { name: "schedules", tools: &["schedules", "simulation"], run: schedules },
];

const MODELLED: [&str; 7] = ["-p", "uslab-magazine", "-p", "uslab-buddy", "-p", "uslab", "--lib"];

fn models(tree: &mut Tree) -> anyhow::Result<Vec<Job>> {
    let mut jobs = vec![];
    for program in tree.build("models", "test", "--cfg loom --cfg crossbeam_loom", &MODELLED)? {
        jobs.extend(
            program.tests()?.into_iter().map(|test| Job::checked("models", &program, test, "MODEL ")),
        );
    }
    Ok(jobs)
}
fn schedules(tree: &mut Tree) -> anyhow::Result<Vec<Job>> {
    let mut jobs = vec![];
    for program in tree.build("schedules", "test", "--cfg shuttle", &MODELLED)? {
        for test in program.tests()? {
            let tool = if test.contains("::simulated::") { "simulation" } else { "schedules" };
            jobs.push(Job::checked(tool, &program, test, "SCHEDULES "));
        }
    }
    Ok(jobs)
}
fn units(tree: &mut Tree) -> anyhow::Result<Vec<Job>> {
    let libraries: Vec<&str> = LIBRARY_PACKAGES.iter().flat_map(|of| ["-p", of]).chain(["--lib"]).collect();
    let programs = tree.build("units", "test", "", &libraries)?;
    let filters = [("stepper", "stepper::"), ("protocol", "in_step::"), ("fuzz", "fuzzing_corpus")];
    let rest: Vec<&str> = filters.iter().flat_map(|(_, filter)| ["--skip", filter]).collect();
    let jobs = programs.iter().flat_map(|program| {
        let own = filters.iter().map(|(tool, filter)| Job::of(tool, program, &[filter]));
        own.chain([Job::of("units", program, &rest)])
    });
    Ok(jobs.collect())
}
fn stress(tree: &mut Tree) -> anyhow::Result<Vec<Job>> {
    let programs = tree.build("units", "test", "", &["-p", "uslab-magazine", "--test", "rseq"])?;
    let uslab = tree.build("units", "build", "", &["-p", "uslab-sim", "--bin", "uslab"])?;
    let mut jobs: Vec<Job> = programs.iter().map(|program| Job::of("stress", program, &[])).collect();
    for (program, rseq) in uslab.iter().flat_map(|program| ["on", "off"].map(|rseq| (program, rseq))) {
        let mut job = Job::of("stress", program, &["stress", "--seconds", "10"]);
        job.variables.push(("USLAB_RSEQ", rseq));
        jobs.push(job);
    }
    Ok(jobs)
}
fn integration_jobs(tree: &mut Tree) -> anyhow::Result<Vec<Job>> {
    let tests: Vec<&str> =
        INTEGRATION_TESTS.iter().flat_map(|test| ["--test", test]).chain(["-p", "uslab-tests"]).collect();
    let programs = tree.build("units", "test", "", &tests)?;
    let jobs = programs.iter().flat_map(|program| {
        let histories =
            (program.name == "slab").then(|| Job::of("histories", program, &["linearizability::"]));
        histories.into_iter().chain([Job::of("whole", program, &["--skip", "linearizability::"])])
    });
    Ok(jobs.collect())
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            failed.iter().for_each(|failed| println!("FAILED: {failed}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("check-reach: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    let mut tree = Tree::new()?;
    let kept = tree.kept.clone();
    fs::create_dir_all(&kept).with_context(|| kept.display().to_string())?;
    let mut failed = vec![];
    for part in &PARTS {
        let done = part.tools.iter().all(|tool| kept.join(tool).exists());
        if if args.part.is_empty() { done } else { !args.part.iter().any(|name| name == part.name) } {
            continue;
        }
        tree.write()?;
        let jobs = (part.run)(&mut tree)?;
        eprintln!("check-reach: {} are built, {:.0} s", part.name, begun.elapsed().as_secs_f64());
        let ran = side_by_side(part.name, &jobs, |job, bar| {
            bar.set_message(job.name());
            job.run()
        })?;
        failed.extend(keep(&kept, part, jobs.iter().zip(ran))?);
        eprintln!("check-reach: {} ran, {:.0} s", part.name, begun.elapsed().as_secs_f64());
    }
    let reached: [Option<HashSet<u32>>; REACH_TOOLS.len()] = REACH_TOOLS.map(|tool| {
        let text = fs::read(kept.join(tool.name)).ok()?;
        serde_json::from_slice(&text).ok()
    });
    let missing: Vec<&str> = REACH_TOOLS
        .iter()
        .zip(&reached)
        .filter(|(_, reached)| reached.is_none())
        .map(|(tool, _)| tool.name)
        .collect();
    if !missing.is_empty() {
        eprintln!("check-reach: {missing:?} have not passed on these sources; the table shows ?");
    }
    let table = Table::new(&tree.files, &reached);
    if missing.is_empty() {
        failed.extend(table.mismatched_reasons(&unreached()?));
    }
    print!("{}", table.text());
    Ok(failed)
}

/// Stores the lines that the tools of a part have reached. If a tool failed or reached no line, nothing is stored, so
/// the tool must run again. Returns the failures.
fn keep<'j>(
    kept: &Path,
    part: &BuildWithTools,
    ran: impl Iterator<Item = (&'j Job, ToolResult)>,
) -> anyhow::Result<Vec<String>> {
    let mut failed = vec![];
    let mut reached: BTreeMap<&str, Option<BTreeSet<u32>>> =
        part.tools.iter().map(|tool| (*tool, Some(BTreeSet::new()))).collect();
    for (job, ran) in ran {
        let reached = reached.entry(job.tool).or_default();
        match (ran, &mut *reached) {
            (ToolResult::Reached(lines), Some(reached)) => reached.extend(lines),
            (ToolResult::Failed(said), _) => {
                failed.push(format!("{}: {said}", job.name()));
                *reached = None;
            }
            _ => {}
        }
    }
    for (tool, lines) in reached {
        let path = kept.join(tool);
        if lines.as_ref().is_some_and(BTreeSet::is_empty) {
            failed.push(format!("{tool}: the tool reached no line; check that it ran"));
        }
        let lines = lines.filter(|lines| !lines.is_empty());
        match lines {
            Some(lines) => fs::write(path, serde_json::to_vec(&lines)?)?,
            // The result of an earlier run is removed.
            None => fs::remove_file(path).or_else(|error| match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?,
        }
    }
    Ok(failed)
}

// The preload library has no unit tests; programs run it.
const LIBRARY_PACKAGES: [&str; 5] = ["uslab-magazine", "uslab-buddy", "uslab", "uslab-pool", "uslab-handle"];
const INTEGRATION_TESTS: [&str; 6] = ["fork", "slab", "heap", "faults", "no_heap", "programs"];

/// The copy of the workspace that contains the probes.
struct Tree {
    root: PathBuf,
    /// The directory in which the results for these sources are stored.
    kept: PathBuf,
    files: BTreeMap<String, ProbedFile>,
}

#[derive(Clone)]
struct Program {
    path: PathBuf,
    /// The directory of the program's package.
    folder: PathBuf,
    name: String,
}

/// Writes a file, unless it already contains this text, so that cargo does not rebuild unchanged files.
fn put(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Removes all files below a folder except `kept`.
fn remove_other_files(folder: &Path, kept: &HashSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_other_files(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

impl Tree {
    fn new() -> anyhow::Result<Self> {
        let folder = workspace().join("target/reach");
        let kept = folder.join(format!("of-{}", build(counts)?));
        let mut tree = Self { root: folder.join("tree"), kept, files: probed_files()? };
        for line in fs::read_to_string(tree.kept.join("left out")).unwrap_or_default().lines() {
            if let Some((line, file)) = line.split_once(' ')
                && let (Ok(line), Some(probed)) = (line.parse::<usize>(), tree.files.get_mut(file))
            {
                probed.remove_probes(&(line..line + 1));
            }
        }
        Ok(tree)
    }
    /// Copies all files that git tracks, with probes inserted. Removes all other files from the copy, because cargo
    /// treats any file in `src/bin` as a program.
    fn write(&self) -> anyhow::Result<()> {
        let roots = CRATES.map(|of| format!("{of}/src/lib.rs"));
        let mut copied = HashSet::new();
        for name in tracked_files(workspace())? {
            // Deleted files are still listed.
            let Ok(mut text) = fs::read(workspace().join(&name)) else { continue };
            if let Some(probed) = self.files.get(&name) {
                text = probed.text().into_bytes();
            }
            if roots.contains(&name) {
                text.extend_from_slice(SWITCH.as_bytes());
            }
            let path = self.root.join(&name);
            put(&path, &text)?;
            copied.insert(path);
        }
        remove_other_files(&self.root, &copied)
    }
    /// Builds the programs, and removes probes that do not compile, until the build succeeds.
    fn build(
        &mut self,
        place: &str,
        command: &str,
        flags: &str,
        targets: &[&str],
    ) -> anyhow::Result<Vec<Program>> {
        loop {
            let mut cargo = cargo_command_in(&self.root);
            cargo.arg(command).args((command == "test").then_some("--no-run")).args(targets);
            cargo.args(["--profile", if flags.is_empty() { "dev" } else { "loom" }]);
            cargo
                .args(["--message-format=json", "--target-dir"])
                .arg(workspace().join("target/reach").join(place));
            cargo.env("RUSTFLAGS", flags);
            let output = cargo.output().context("cargo")?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                return Ok(said.lines().filter_map(|line| Program::of(line, command == "test")).collect());
            }
            let (mut left_out, mut rest) = (String::new(), vec![]);
            for message in errors(&said) {
                for (file, lines) in spans(&message) {
                    if let Some(probed) = self.files.get_mut(&file) {
                        let lines = probed.remove_probes(&lines);
                        left_out.extend(lines.iter().map(|line| format!("{line} {file}\n")));
                    }
                }
                rest.push(message["rendered"].as_str().unwrap_or_default().to_owned());
            }
            if rest.is_empty() {
                bail!("{targets:?} with probes do not build:\n{}", String::from_utf8_lossy(&output.stderr));
            }
            if left_out.is_empty() {
                bail!("{targets:?} with probes do not build:\n{}", rest.join("\n"));
            }
            let mut kept =
                fs::OpenOptions::new().create(true).append(true).open(self.kept.join("left out"))?;
            kept.write_all(left_out.as_bytes())?;
            self.write()?;
        }
    }
}

/// Returns the files and lines that an error message refers to.
fn spans(message: &Value) -> Vec<(String, Range<usize>)> {
    let spans = message["spans"].as_array().into_iter().flatten();
    let line = |span: &Value, name: &str| usize::try_from(span[name].as_u64()?).ok();
    spans
        .filter_map(|span| {
            let file = span["file_name"].as_str()?.to_owned();
            Some((file, line(span, "line_start")?..line(span, "line_end")? + 1))
        })
        .collect()
}

impl Program {
    /// Returns the program that a line of cargo's output names, if any.
    fn of(line: &str, test: bool) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let folder = Path::new(line["manifest_path"].as_str()?).parent()?.to_owned();
        let path = line["executable"].as_str()?.into();
        (line["profile"]["test"] == test).then_some(Self {
            path,
            folder,
            name: line["target"]["name"].as_str()?.to_owned(),
        })
    }
    /// Returns the tests of the program, without the tests of planted bugs.
    fn tests(&self) -> anyhow::Result<Vec<String>> {
        let listed = Command::new(&self.path)
            .args(["--list", "--format=terse"])
            .output()
            .context("cannot list the tests")?;
        ensure!(listed.status.success(), "{}: {} instead of a list of tests", self.name, listed.status);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned));
        Ok(tests.filter(|name| !name.contains("planted")).collect())
    }
}

/// One run of a program under a checking tool.
struct Job {
    tool: &'static str,
    program: Program,
    arguments: Vec<String>,
    variables: Vec<(&'static str, &'static str)>,
    /// The output text that shows that the tool ran; without the text, the test did something else.
    row: Option<&'static str>,
}

enum ToolResult {
    Reached(HashSet<u32>),
    Failed(String),
    /// The test passed without using the checking tool.
    Nothing,
}

impl Job {
    fn of(tool: &'static str, program: &Program, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|of| (*of).to_owned()).collect();
        Self { tool, program: program.clone(), arguments, variables: vec![], row: None }
    }
    /// Returns a job that runs a single test under a checker.
    fn checked(tool: &'static str, program: &Program, test: String, row: &'static str) -> Self {
        let arguments = vec![test, "--exact".to_owned(), "--nocapture".to_owned()];
        Self { tool, program: program.clone(), arguments, variables: vec![], row: Some(row) }
    }
    fn name(&self) -> String {
        format!("{} {} {}", self.tool, self.program.name, self.arguments.join(" "))
    }
    fn run(&self) -> anyhow::Result<ToolResult> {
        let file = tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
        file.as_file().set_len(REACHED_LINES_FILE_BYTES as u64)?;
        let mut command = Command::new(&self.program.path);
        command
            .args(&self.arguments)
            .current_dir(&self.program.folder)
            .env("USLAB_REACHED", file.path())
            .envs([("RUST_BACKTRACE", "0"), ("STORY", "0"), ("BOUND", "1"), ("USLAB_STRESS", "small")])
            .env("WORLD_SECONDS", "60")
            .envs([("PROPTEST_CASES", "64"), ("PROPTEST_FAILURE_PERSISTENCE", "off")])
            .env("CARGO_TARGET_DIR", workspace().join("target/reach/units"))
            .envs(self.variables.iter().copied());
        let CommandResult { status, said, .. } = run_with_time_limit(&mut command, Duration::from_secs(900))?;
        let reached = fs::read(file.path())?;
        let reached = (0..).zip(reached).filter(|(_, byte)| *byte > 0).map(|(line, _)| line).collect();
        let bad: BTreeSet<&str> = said.lines().filter(|line| line.ends_with(" ... FAILED")).collect();
        Ok(match status {
            Some(status) if status.success() => match self.row {
                Some(row) if rows(&said, row).next().is_none() => ToolResult::Nothing,
                _ => ToolResult::Reached(reached),
            },
            Some(status) => {
                let all: Vec<_> = bad.into_iter().collect();
                ToolResult::Failed(format!("{status}, {}", all.join(", ")))
            }
            None => ToolResult::Failed("it does not end".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a program that failed to list its tests was treated as a program without tests.
    #[test]
    fn test_program_without_listed_tests_is_an_error() {
        let program = Program { path: "false".into(), folder: "b".into(), name: "c".to_owned() };
        let error = program.tests().unwrap_err().to_string();
        assert_eq!(error, "c: exit status: 1 instead of a list of tests");
    }

    /// Regression test: the result of a failed tool was stored, so the next run wrongly passed.
    #[test]
    fn reach_results_of_a_failed_tool_are_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let part = BuildWithTools { name: "a", tools: &["stress", "units"], run: units };
        let program = Program { path: "a".into(), folder: "b".into(), name: "c".to_owned() };
        let jobs = ["units", "stress", "units"].map(|tool| Job::of(tool, &program, &[]));
        let reached = || ToolResult::Reached([3].into());
        let keep = |ran: [ToolResult; 3]| keep(folder.path(), &part, jobs.iter().zip(ran)).unwrap();
        let there = || part.tools.iter().filter(|tool| folder.path().join(tool).exists()).count();
        assert!(keep([reached(), reached(), ToolResult::Nothing]).is_empty());
        assert_eq!(there(), 2);
        let failed = keep([ToolResult::Failed("it does not end".to_owned()), reached(), reached()]);
        assert_eq!((failed.len(), there()), (1, 1));
        assert_eq!(fs::read_to_string(folder.path().join("stress")).unwrap(), "[3]");
        // No test matched, or no test used the tool.
        for nothing in [|| ToolResult::Reached(HashSet::new()), || ToolResult::Nothing] {
            let failed = keep([reached(), nothing(), reached()]);
            assert_eq!((failed.len(), there()), (1, 1), "{failed:?}");
            assert!(!folder.path().join("stress").exists());
        }
    }
}

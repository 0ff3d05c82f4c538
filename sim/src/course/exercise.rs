//! Exercises of the course: a student's file is compiled to a program, which runs in a separate process and reports its
//! verdict.

use crate::output::Progress;
use crate::story::Story;
use crate::web;
use anyhow::{Context, bail};
use serde::Serialize;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use uslab_engine::course::{Check, Verdict};

/// The template of the web page for failures, built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../../web/built/failure.html");

/// The main file of the program that runs an exercise and reports the marks. An exercise runs in the same process as
/// the code that judges it. A report of marks is accepted only if it contains a secret word, which the exercise cannot
/// read.
const EXERCISE_MAIN_SOURCE: &str = r#"
#![allow(dead_code)]
#![forbid(unsafe_code)]
#[path = "exercise.rs"]
mod exercise;

#[cfg(not(loom))]
fn judge(seed: &str) -> String {
    uslab_engine::course::{lab}::<exercise::Exercise{of}>(seed.parse().expect("a seed")).json()
}
#[cfg(loom)]
fn judge(_: &str) -> String {
    {models}
    String::new()
}

fn main() {
    let mut word = String::new();
    std::io::stdin().read_line(&mut word).expect("a word");
    let arguments: Vec<String> = std::env::args().collect();
    word += &judge(&arguments[1]);
    std::fs::write(&arguments[2], word).expect("a place for the verdict");
}
"#;

/// The verdict on an exercise.
#[derive(Serialize)]
pub(super) struct ExerciseVerdict {
    file: String,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    /// A web page that shows the step at which the exercise fails.
    #[serde(skip)]
    pub(super) page: Option<String>,
}

impl ExerciseVerdict {
    pub(super) fn text(&self) -> String {
        let Verdict { lab, seed, checks, .. } = &self.verdict;
        let rows = checks.iter().map(|check| {
            let is = if check.holds { "holds  " } else { "FAILS  " };
            format!("{is}{}\n       {}\n", check.wanted, check.found.replace('\n', "\n       "))
        });
        let holds = checks.iter().filter(|check| check.holds).count();
        let rows: String = rows.collect();
        format!("{}: lab {lab}, seed {seed}\n{rows}{holds} of {} hold\n", self.file, checks.len())
    }
}

/// The options for judging an exercise.
pub(super) struct JudgeOptions {
    /// The folder of uslab's sources.
    pub(super) source: PathBuf,
    /// Seed of the operation streams on which the exercise is judged.
    pub(super) seed: u32,
    /// The time limit of the exercise.
    pub(super) limit: Duration,
}

/// The crate of an exercise, in a temporary folder.
struct Crate<'h> {
    folder: TempDir,
    how: &'h JudgeOptions,
}

/// Compiles an exercise and runs it.
///
/// # Errors
/// Fails if the sources, cargo or disk space is missing. A fault of the exercise itself is a verdict, not an error.
pub(super) fn judge(
    lab: &str,
    code: &str,
    file: &Path,
    how: &JudgeOptions,
) -> anyhow::Result<ExerciseVerdict> {
    let folder = tempfile::tempdir().context("cannot create a folder for the exercise")?;
    let own = Crate { folder, how };
    own.write(lab, code)?;
    let progress = Progress::new();
    let mut page = None;
    let mut verdict = Verdict { lab: lab.to_owned(), seed: how.seed, checks: vec![], failure: None };
    let stage = progress.stage("compiling", 0);
    match own.build(false)? {
        Err(errors) => verdict.checks.push(Check::new("the exercise compiles", errors, false)),
        Ok(program) => {
            drop(stage);
            let stage = progress.stage("running", 0);
            own.judge(&program, &mut verdict)?;
            drop(stage);
            if let Some(failure) = &verdict.failure {
                page = Some(web::page(TEMPLATE, &[("{failure}", &web::json(failure)?)]));
            }
            if lab == "exchange" && verdict.holds() {
                let _stage = progress.stage("checking with loom", 0);
                let story = own.models(&mut verdict)?;
                page = story.map(|story| story.page(None)).transpose()?;
            }
        }
    }
    Ok(ExerciseVerdict { file: file.display().to_string(), verdict, page })
}

impl Crate<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn write(&self, lab: &str, code: &str) -> anyhow::Result<()> {
        // A layer holds any type; under a checker it holds numbers.
        let (of, models) = match lab {
            "exchange" => ("<_>", "uslab_lab::course::models::<exercise::Exercise<usize>>();"),
            _ => ("", ""),
        };
        let main = EXERCISE_MAIN_SOURCE.replace("{lab}", lab).replace("{of}", of).replace("{models}", models);
        let source = self.how.source.display();
        let manifest = format!(
            r#"[package]
name = "exercise"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
uslab-lab = {{ path = {lab:?} }}

[target.'cfg(not(loom))'.dependencies]
uslab-engine = {{ path = {engine:?}, features = ["course"] }}

[lints.rust]
unexpected_cfgs = {{ level = "warn", check-cfg = ["cfg(loom)"] }}

[profile.dev]
opt-level = 1
debug = false

[profile.loom]
inherits = "release"
opt-level = 1
debug-assertions = true
"#,
            lab = format!("{source}/sim/lab"),
            engine = format!("{source}/sim/engine"),
        );
        let write = |name: &str, text: &str| {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap_or(self.folder.path()))?;
            fs::write(path, text)
        };
        let written = write("Cargo.toml", &manifest)
            .and_then(|()| write("src/main.rs", &main))
            .and_then(|()| write("src/exercise.rs", code));
        written.with_context(|| self.folder.path().display().to_string())?;
        // Dependencies have the versions of uslab's lock file, so nothing has to be downloaded.
        let lock = self.how.source.join("Cargo.lock");
        fs::copy(&lock, self.path("Cargo.lock")).with_context(|| lock.display().to_string())?;
        Ok(())
    }

    /// Builds the exercise; returns the program, or the compiler's messages.
    fn build(&self, loom: bool) -> anyhow::Result<Result<PathBuf, String>> {
        let target = self.how.source.join(if loom { "target/course-loom" } else { "target/course" });
        let profile = if loom { "loom" } else { "dev" };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--quiet", "--color", "never", "--profile", profile])
            .current_dir(self.folder.path());
        command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", if loom { "--cfg loom" } else { "" });
        command.env("CARGO_TARGET_DIR", &target).stdin(Stdio::null());
        let output = command.output().context("cannot run cargo, which compiles an exercise")?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        // Another exercise may be built concurrently.
        let built = target.join(if loom { "loom" } else { "debug" }).join("exercise");
        let program = self.path(profile);
        fs::copy(&built, &program).with_context(|| built.display().to_string())?;
        Ok(Ok(program))
    }

    /// Runs a program, and returns the verdict that it printed, if any. Returns `None` if the program did not
    /// end in time.
    fn run(&self, command: &mut Command) -> anyhow::Result<Option<(ExitStatus, Option<String>)>> {
        let mut word = [0; 16];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut word))
            .context("/dev/urandom")?;
        let word = format!("{:032x}\n", u128::from_ne_bytes(word));
        let place = self.path("said.json");
        command.arg(self.how.seed.to_string()).arg(&place);
        command.current_dir(self.folder.path()).stdin(Stdio::piped());
        let mut child = command.spawn().context("cannot run the exercise")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that exits before it reads its input reports nothing.
            let _ = stdin.write_all(word.as_bytes());
        }
        let end = Instant::now() + self.how.limit;
        loop {
            if let Some(status) = child.try_wait()? {
                let printed = fs::read_to_string(&place).ok();
                return Ok(Some((
                    status,
                    printed.and_then(|printed| printed.strip_prefix(&word).map(str::to_owned)),
                )));
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    fn excess_cost_check(&self) -> Check {
        Check::new(
            format!("the program ends within {} s", self.how.limit.as_secs()),
            "the program was killed",
            false,
        )
    }

    /// Judges the exercise on streams of operations.
    fn judge(&self, program: &Path, verdict: &mut Verdict) -> anyhow::Result<()> {
        let mut command = Command::new(program);
        command.env("RUST_BACKTRACE", "0").stdout(std::io::stderr());
        let Some((status, printed)) = self.run(&mut command)? else {
            verdict.checks.push(self.excess_cost_check());
            return Ok(());
        };
        match printed.and_then(|text| serde_json::from_str(&text).ok()) {
            Some(found) if status.success() => *verdict = found,
            _ => verdict.checks.push(Check::new("the program reports its result", status.to_string(), false)),
        }
        Ok(())
    }

    /// Judges the exercise's locks in all possible interleavings; returns the counterexample trace if a model
    /// fails.
    fn models(&self, verdict: &mut Verdict) -> anyhow::Result<Option<Story>> {
        const EXPECTED_CONDITION: &str = "each round has one owner in every order of the threads' steps";
        let program = match self.build(true)? {
            Ok(program) => program,
            Err(errors) => bail!("the models do not compile: {errors}"),
        };
        let (story, rows, printed) = (self.path("story.json"), self.path("rows"), self.path("said"));
        let file = |path: &Path| fs::File::create(path).with_context(|| path.display().to_string());
        let mut command = Command::new(program);
        uslab_sync::unset(&mut command)
            .env("STORY_JSON", &story)
            .env("MODEL_ROWS", &rows)
            .env("RUST_BACKTRACE", "0");
        command.stdout(file(&printed)?).stderr(file(&self.path("panic"))?);
        let Some((status, printed)) = self.run(&mut command)? else {
            verdict.checks.push(self.excess_cost_check());
            return Ok(None);
        };
        if status.success() && printed.is_some() {
            let rows = fs::read_to_string(rows).unwrap_or_default();
            let orders: u64 = rows.lines().filter_map(executions).sum();
            verdict.checks.push(Check::new(
                EXPECTED_CONDITION,
                format!("in {orders} orders of {} models", rows.lines().count()),
                orders > 0,
            ));
            return Ok(None);
        }
        let story = Story::read(&story).ok();
        let panic = fs::read_to_string(self.path("panic")).unwrap_or_default();
        let found = match &story {
            Some(story) => story.end.clone(),
            None if status.success() => "the program ended before all orders were tried".to_owned(),
            None => panic.trim().to_owned(),
        };
        verdict.checks.push(Check::new(EXPECTED_CONDITION, found, false));
        Ok(story)
    }
}

/// Returns the number of executions from a model's row of output, such as `MODEL name | ... | executions 17 |
/// ...`.
fn executions(row: &str) -> Option<u64> {
    row.split(" | ").find_map(|part| part.strip_prefix("executions "))?.parse().ok()
}

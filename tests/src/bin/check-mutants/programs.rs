//! The built programs of tests and models, with each test's run time and the mutants that it reaches.

use anyhow::Context;
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uslab_tests::jobs::{self, run_with_time_limit, side_by_side};
use uslab_tests::models::{has_exceeded_time_limit, rows};

/// A built test program.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The directory of the program's package.
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) models: bool,
}

impl Program {
    /// Returns the names of all tests of the program.
    pub(crate) fn tests(&self) -> anyhow::Result<Vec<String>> {
        let listed = Command::new(&self.path).args(["--list", "--format=terse"]).output();
        let listed = listed.context("cannot list the tests")?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
    /// Runs some tests of the program, one after the other.
    pub(crate) fn run(
        &self,
        tests: &[&str],
        variables: &[(&str, &str)],
        limit: Duration,
    ) -> anyhow::Result<(TestRunEnd, jobs::CommandResult)> {
        // Processes that a test starts also end, and all of them end if this program is killed.
        let most_seconds = 2 * limit.as_secs() + 1;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                &format!("ulimit -d {MAX_MEMORY_KIB}; ulimit -St {most_seconds}; exec \"$0\" \"$@\""),
            ])
            .arg(&self.path)
            .args(tests)
            .args(["--exact", "--test-threads=1"])
            .args(if self.models { &["--nocapture"][..] } else { &[] })
            .current_dir(&self.folder)
            .env("BOUND", bound().as_deref().unwrap_or("1"))
            .envs([("RUST_BACKTRACE", "0"), ("STORY", "0"), ("PROPTEST_CASES", "64")])
            .envs([("PROPTEST_FAILURE_PERSISTENCE", "off"), ("PROPTEST_MAX_SHRINK_ITERS", "0")])
            .envs(variables.iter().copied());
        if variables.contains(&STATED_BOUNDS_VARIABLE) {
            command.env_remove("BOUND");
        }
        let ran = run_with_time_limit(&mut command, limit)?;
        let text = &ran.said;
        let failed = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let current = text
            .lines()
            .filter_map(|line| Some(line.strip_prefix("test ")?.split_once(" ... ")?.0))
            .next_back();
        let name = failed.or(current).unwrap_or(tests[0]).to_owned();
        let message = || {
            let mut lines =
                text.lines().skip_while(|line| !(line.contains("panicked at ") && line.ends_with(':')));
            lines.next();
            lines.map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
        };
        let said = message();
        let ended = match ran.status {
            Some(status) if status.success() => TestRunEnd::Passed,
            _ if said.as_deref().is_some_and(has_exceeded_time_limit) => TestRunEnd::OutOfTime { name },
            Some(status) => TestRunEnd::Failed { name, message: said.unwrap_or_else(|| status.to_string()) },
            None if failed.is_some() => TestRunEnd::Failed { name, message: said.unwrap_or_default() },
            None => TestRunEnd::OutOfTime { name },
        };
        Ok((ended, ran))
    }
}

/// The outcome of a run of tests.
pub(crate) enum TestRunEnd {
    Passed,
    Failed { name: String, message: String },
    OutOfTime { name: String },
}

/// Returns the pre-emption bound for all models, if the environment variable sets one.
pub(crate) fn bound() -> Option<String> {
    std::env::var("BOUND").ok()
}

/// The environment variable that makes each model run with its own bound.
pub(crate) const STATED_BOUNDS_VARIABLE: (&str, &str) = ("BOUND", "");

/// A memory limit in KiB, which prevents a mutant from taking all memory. The limit is high, because a test with 1,024
/// CPUs has 9 GiB of tables, most of which it never accesses.
pub(crate) const MAX_MEMORY_KIB: u32 = 12 << 20;

/// The integration tests; each target runs in a separate program. Integration tests cover more than a library's own
/// tests can.
pub(crate) const INTEGRATION_TESTS: [&str; 10] =
    ["-p", "uslab-tests", "--test", "faults", "--test", "fork", "--test", "no_heap", "--test", "slab"];

/// Returns the programs that cargo's build messages name.
pub(crate) fn programs(said: &str, models: bool) -> Vec<Program> {
    let program = |line: &str| {
        let line: Value =
            serde_json::from_str(line).ok().filter(|line: &Value| line["profile"]["test"] == true)?;
        let folder = Path::new(line["manifest_path"].as_str()?).parent()?.to_owned();
        let name = line["target"]["name"].as_str()?.to_owned();
        Some(Program { path: line["executable"].as_str()?.into(), folder, name, models })
    };
    said.lines().filter_map(program).collect()
}

/// A single test of a program.
pub(crate) struct Test {
    pub(crate) program: usize,
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) reached: HashSet<u32>,
}

/// The largest CPU time of a test in seconds; slower tests are omitted, because each test runs for many mutants.
pub(crate) const MAX_TEST_CPU_SECONDS: f64 = 10.0;

/// The result of a test's first run, which has no mutant.
pub(crate) enum FirstRunResult {
    Test(Test),
    /// The test takes too long to run for every mutant.
    Slow,
    Wrong(String),
    /// The test belongs to a program of models, but runs no model.
    Nothing,
}

/// Runs each test once without a mutant, and returns all tests that can judge mutants.
pub(crate) fn tests(programs: &[Program], wrong: &mut Vec<String>) -> anyhow::Result<Vec<Test>> {
    let mut names = vec![];
    for (i, program) in programs.iter().enumerate() {
        // Tests of planted bugs fail for their own reasons, and ignored tests are run by other tests.
        let judges = program.tests()?.into_iter().filter(|name| !name.contains("planted"));
        names.extend(judges.map(|name| (i, name)));
    }
    let ran = side_by_side("tests", &names, |(i, name), bar| {
        bar.set_message(name.clone());
        let file = tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
        let variables = [("MUTANT_REACHED", file.path().to_str().unwrap_or_default())];
        let (ended, jobs::CommandResult { said, used, .. }) =
            programs[*i].run(&[name], &variables, Duration::from_secs_f64(6.0 * MAX_TEST_CPU_SECONDS))?;
        // Starting a process also takes time.
        let seconds = used.as_secs_f64().max(0.01);
        let reached = fs::read_to_string(file.path())?.lines().filter_map(|line| line.parse().ok()).collect();
        let test = Test { program: *i, name: name.clone(), seconds, reached };
        match ended {
            TestRunEnd::Passed if programs[*i].models && rows(&said, "MODEL ").next().is_none() => {
                Ok(FirstRunResult::Nothing)
            }
            TestRunEnd::Passed if seconds <= MAX_TEST_CPU_SECONDS => Ok(FirstRunResult::Test(test)),
            TestRunEnd::Failed { message, .. } => {
                let end: Vec<_> = said.lines().rev().take(40).collect();
                let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
                let text = format!("{} {name} fails without a mutant: {message}\n{end}", programs[*i].name);
                Ok(FirstRunResult::Wrong(text))
            }
            _ => Ok(FirstRunResult::Slow),
        }
    })?;
    let (mut tests, mut slow) = (vec![], 0);
    for ran in ran {
        match ran {
            FirstRunResult::Test(test) => tests.push(test),
            FirstRunResult::Slow => slow += 1,
            FirstRunResult::Wrong(text) => wrong.push(text),
            FirstRunResult::Nothing => {}
        }
    }
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    eprintln!("check-mutants: {} tests and models, {slow} too slow", tests.len());
    Ok(tests)
}

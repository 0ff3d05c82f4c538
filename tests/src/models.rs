//! Builds the loom models as programs, and runs each model in a separate process. A model in a separate process can run
//! with a weaker ordering, and can be killed if it never ends.

use crate::jobs::{CommandResult, run_with_time_limit};
use crate::mutate::MUTANT_ABSENT;
use crate::planted::WorkspaceCopy;
use crate::{cargo, cargo_command_in, workspace};
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A crate that has models, so that loom compiles its sources.
#[derive(Clone, Copy, Debug)]
pub struct ModelledCrate {
    /// The package's name.
    pub package: &'static str,
    /// The root module of the package, as a path relative to the root of the workspace.
    pub lib: &'static str,
    /// The file that lists the planted bugs of the package.
    pub planted: &'static str,
    /// The path by which the code of the package names `uslab-sync`.
    pub facade: &'static str,
    /// The minimum number of models in the crate.
    pub least: usize,
    /// The minimum number of scenarios in the crate for random and PCT schedules.
    pub least_schedules: usize,
}

/// All crates with models.
pub const MODELLED: [ModelledCrate; 5] = [
    ModelledCrate {
        package: "uslab-sync",
        lib: "magazine/sync/src/lib.rs",
        planted: "magazine/sync/src/observers/planted.toml",
        facade: "crate",
        least: 1,
        least_schedules: 1,
    },
    ModelledCrate {
        package: "uslab-magazine",
        lib: "magazine/src/lib.rs",
        planted: "magazine/src/scenarios/planted.toml",
        facade: "crate::sync",
        least: 53,
        least_schedules: 19,
    },
    ModelledCrate {
        package: "uslab-buddy",
        lib: "buddy/src/lib.rs",
        planted: "buddy/src/scenarios/planted.toml",
        facade: "uslab_magazine::sync",
        least: 9,
        least_schedules: 3,
    },
    ModelledCrate {
        package: "uslab",
        lib: "slab/src/lib.rs",
        planted: "slab/src/scenarios/planted.toml",
        facade: "uslab_magazine::sync",
        least: 21,
        least_schedules: 42,
    },
    ModelledCrate {
        package: "uslab-lab",
        lib: "sim/lab/src/lib.rs",
        planted: "sim/lab/src/classic/checks/planted.toml",
        facade: "uslab_magazine::sync",
        least: 19,
        least_schedules: 2,
    },
];

/// Planted bugs that schedules must catch, because loom does not compile or cannot run the code.
pub const BUGS_FOR_SCHEDULES_ONLY: [&str; 9] = [
    "a mempool does not count the objects taken from its reserve",
    "a sample is removed after its object is freed",
    "a sample of one profile is recorded in the next",
    "a tag is cleared after its object is freed",
    "a tag is cleared without an atomic exchange",
    "shrinkers run with the list lock held",
    "the reaper sleeps without rechecking for work",
    "a new deferred free wakes no collector thread",
    "a waiter at a limit does not wake the reaper",
];

/// An example of a user's program on top of the allocator's crates, with its own models.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// The example's package.
    pub package: &'static str,
    /// The example's name.
    pub name: &'static str,
    /// The minimum number of models in the example.
    pub least: usize,
    /// The names of the bugs that are planted in the example.
    pub planted: &'static [&'static str],
}

/// The examples that show how to check a program.
pub const EXAMPLES: [Example; 2] = [
    Example {
        package: "uslab",
        name: "check_your_code",
        least: 2,
        planted: &["a message is posted without Release", "a message is taken without an atomic exchange"],
    },
    Example { package: "uslab", name: "sessions", least: 1, planted: &["a session is looked up twice"] },
];

/// A crate of another workspace that checks itself with `uslab-sync`, as any user's crate can.
#[derive(Clone, Copy, Debug)]
pub struct ForeignWorkspace {
    /// The workspace of the crate, relative to the root of this workspace.
    pub root: &'static str,
    /// The crate's package.
    pub package: &'static str,
    /// The minimum number of models in the crate.
    pub least: usize,
    /// The minimum number of scenarios in the crate for random and PCT schedules.
    pub least_schedules: usize,
    /// The name of the bug that is planted in the crate.
    pub planted: &'static str,
}

/// The example crate that belongs to `uslab-sync`.
pub const SYNC_EXAMPLE_CRATE: ForeignWorkspace = ForeignWorkspace {
    root: "tests/sync_example",
    package: "slots",
    least: 3,
    least_schedules: 2,
    planted: "a take leaves the tag as it is",
};

impl ForeignWorkspace {
    /// Returns a command that builds and runs the crate's tests without a checker.
    pub fn test(&self) -> Command {
        let mut command = cargo_command_in(&workspace().join(self.root));
        command.arg("test");
        command
    }
    /// Returns a command like [`test`](Self::test), but under a checker, with the profile and target directory of this
    /// workspace. The caller must add the arguments of the test program.
    pub fn checked_test(&self, checker: &str) -> Command {
        let mut command = self.test();
        command
            .args(["--profile", "loom", "--lib", "--target-dir"])
            .arg(workspace().join("target").join(checker))
            .env("RUSTFLAGS", flags(checker))
            .env("MUTANT", MUTANT_ABSENT);
        command
    }
}

/// Returns the `RUSTFLAGS` of a build for a checker. Under loom, the epoch collector also uses loom's atomics.
fn flags(checker: &str) -> String {
    let collector = if checker == "loom" { " --cfg crossbeam_loom" } else { "" };
    format!("{} --cfg {checker}{collector}", std::env::var("RUSTFLAGS").unwrap_or_default())
}

/// Returns the `RUSTFLAGS` of a build for loom.
pub fn loom_flags() -> String {
    flags("loom")
}

/// Returns a command that builds the library of a package for a checker and runs its tests, in a copy of the workspace
/// or in the workspace itself. The caller must add the arguments of the test program.
pub fn checked_test(copy: Option<&WorkspaceCopy>, checker: &str, package: &str) -> Command {
    let mut command = copy.map_or_else(cargo, WorkspaceCopy::cargo);
    let target = Path::new("target").join(checker);
    let target = if copy.is_some() { workspace().join(target) } else { target };
    command
        .args(["test", "--profile", "loom", "--target-dir"])
        .arg(target)
        .args(["-p", package, "--lib"])
        .env("RUSTFLAGS", flags(checker))
        .env("MUTANT", MUTANT_ABSENT);
    command
}

/// The test of `uslab-sync` that compares loom with the memory model RC11.
pub const LITMUS: &str = "litmus";

/// The test programs for one checker: the programs of all [`MODELLED`] crates, and for loom also [`LITMUS`] and the
/// [`EXAMPLES`]. All these test programs are built from the copy that contains the planted bugs.
///
/// One build makes all programs; separate builds of packages would compile the checker and shared dependencies with
/// other features.
#[derive(Debug)]
pub struct Programs {
    /// For each package, test or example: the path of its program, and the folder of its package.
    found: BTreeMap<String, (PathBuf, PathBuf)>,
}

impl Programs {
    /// Returns the command that builds the programs, and prints a JSON message for each.
    pub fn build_command(copy: &WorkspaceCopy, checker: &str) -> Command {
        let mut command = copy.cargo();
        command
            .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
            .args(["--profile", "loom", "--lib", "--target-dir"])
            .arg(workspace().join("target").join(checker))
            .args(MODELLED.iter().flat_map(|of| ["-p", of.package]))
            .env("RUSTFLAGS", flags(checker));
        if checker == "loom" {
            command.args(["--test", LITMUS]).args(EXAMPLES.iter().flat_map(|of| ["--example", of.name]));
        }
        command
    }

    /// Builds all programs for a checker.
    ///
    /// # Errors
    /// Fails if the build fails, or if cargo's messages do not name all programs.
    pub fn build(copy: &WorkspaceCopy, checker: &str) -> anyhow::Result<Self> {
        let mut command = Self::build_command(copy, checker);
        let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo test")?;
        if !output.status.success() {
            bail!("the build for {checker}: {}", output.status);
        }
        let mut found = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let (Some(program), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            else {
                continue;
            };
            let target = message["target"]["name"].as_str().unwrap_or_default();
            let library = MODELLED.iter().find(|of| of.package.replace('-', "_") == target);
            let folder = Path::new(manifest).parent().unwrap_or(Path::new("."));
            let name = library.map_or(target, |of| of.package);
            found.insert(name.to_owned(), (PathBuf::from(program), folder.to_owned()));
        }
        let mut expected: Vec<&str> = MODELLED.iter().map(|of| of.package).collect();
        if checker == "loom" {
            expected.extend(EXAMPLES.iter().map(|of| of.name).chain([LITMUS]));
        }
        for name in expected {
            if !found.contains_key(name) {
                bail!("the build for {checker} created no test program of {name}");
            }
        }
        Ok(Self { found })
    }

    /// Returns a command that runs a program in the folder of its package, as cargo does. The caller must add the
    /// arguments of the test program.
    ///
    /// # Panics
    /// Panics if no program is called `name`.
    pub fn run(&self, name: &str) -> Command {
        let (program, folder) = &self.found[name];
        let mut command = Command::new(program);
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).env("MUTANT", MUTANT_ABSENT);
        command
    }
}

/// A package whose models are run; it may belong to this workspace or to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The root of the workspace that contains the package.
    pub root: PathBuf,
    /// The package's name.
    pub package: String,
    /// The root module of the package, relative to the root of the workspace.
    pub lib: PathBuf,
    /// The cargo profile with which the models are built.
    pub profile: String,
    /// The target directory for the build of the models.
    pub target: PathBuf,
}

impl Subject {
    /// Returns all [`MODELLED`] crates.
    pub fn all_modelled_crates() -> Vec<Self> {
        let subject = |modelled: ModelledCrate| Self {
            root: workspace().to_owned(),
            package: modelled.package.to_owned(),
            lib: modelled.lib.into(),
            profile: "loom".to_owned(),
            target: workspace().join("target/loom"),
        };
        MODELLED.map(subject).into()
    }

    /// Finds the packages with the names `packages` in the workspace of `manifest` (by default, this workspace).
    /// Without names, finds all packages that the workspace builds by default.
    ///
    /// # Errors
    /// Fails if cargo cannot read the workspace, or if a package does not exist or has no library.
    pub fn find(manifest: Option<&Path>, packages: &[String], profile: &str) -> anyhow::Result<Vec<Self>> {
        let own = workspace().join("Cargo.toml");
        let manifest = manifest.unwrap_or(&own);
        let shown = || manifest.display().to_string();
        let manifest = manifest.canonicalize().with_context(shown)?;
        // Cargo reads the workspace's configuration from the current directory.
        let mut command = cargo_command_in(manifest.parent().unwrap_or(workspace()));
        command.args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"]).arg(&manifest);
        let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("{}: cargo finds no workspace", manifest.display());
        }
        Self::programs_named_in_metadata(
            &serde_json::from_slice(&output.stdout).context("cannot run cargo metadata")?,
            packages,
            profile,
        )
    }

    fn programs_named_in_metadata(
        metadata: &Value,
        packages: &[String],
        profile: &str,
    ) -> anyhow::Result<Vec<Self>> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let path = |field: &str| {
            let path = metadata[field].as_str().with_context(|| format!("cargo metadata: no {field}"));
            path.map(PathBuf::from)
        };
        let (root, target) = (path("workspace_root")?, path("target_directory")?.join("loom"));
        let all = list(&metadata["packages"]);
        let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
        let lib = |package: &Value| {
            let targets = list(&package["targets"]);
            let lib = targets.iter().find(|target| list(&target["kind"]).iter().any(|kind| kind == "lib"))?;
            Path::new(lib["src_path"].as_str()?).strip_prefix(&root).ok().map(Path::to_owned)
        };
        let members = list(&metadata["workspace_default_members"]);
        let chosen: Vec<&Value> = if packages.is_empty() {
            all.iter().filter(|p| members.contains(&p["id"]) && lib(p).is_some()).collect()
        } else {
            let named = |asked: &String| all.iter().find(|package| name(package) == *asked);
            let unknown = |asked: &String| {
                let known: Vec<String> = all.iter().map(name).collect();
                format!(
                    "unknown package `{asked}` in {}; expected one of: {}",
                    root.display(),
                    known.join(", ")
                )
            };
            packages.iter().map(|p| named(p).with_context(|| unknown(p))).collect::<anyhow::Result<_>>()?
        };
        let subject = |package: &Value| {
            let lib = lib(package).with_context(|| format!("package `{}` has no library", name(package)))?;
            let (root, target) = (root.clone(), target.clone());
            Ok(Self { root, package: name(package), lib, profile: profile.to_owned(), target })
        };
        chosen.into_iter().map(subject).collect()
    }

    /// Returns the source directory of the package, relative to the root of the workspace.
    pub fn sources(&self) -> &Path {
        self.lib.parent().unwrap_or(Path::new(""))
    }
}

/// A test function of a crate with models.
#[derive(Clone, Debug)]
pub struct Test {
    /// The test's package.
    pub package: String,
    /// The path of the test in its crate, as libtest prints it.
    pub name: String,
    program: PathBuf,
    root: PathBuf,
}

/// The result of running one [`Test`].
#[derive(Debug)]
pub struct Run {
    /// The test's outcome.
    pub outcome: Outcome,
    /// The names of the models that the test has completed.
    pub models: Vec<String>,
    /// The ordering sites that the test has reached, if the caller requested them.
    pub sites: BTreeSet<String>,
    /// The number of executions of the test's models; it measures the work, and is the same in each run.
    pub executions: u64,
}

/// The outcome of a [`Run`].
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every execution passed.
    Passed,
    /// An execution of a model failed with this message.
    Failed(String),
    /// The test was killed at its time limit.
    TimedOut,
}

impl Outcome {
    fn failed(message: String) -> Self {
        if has_exceeded_time_limit(&message) { Self::TimedOut } else { Self::Failed(message) }
    }
}

/// Returns `true` if `message` is the failure of a model that only took too long; `uslab-sync` ends an exploration
/// after ten minutes.
pub fn has_exceeded_time_limit(message: &str) -> bool {
    message.contains("before all executions were explored")
}

/// Builds the models of `subject`, and lists the tests that run them.
///
/// # Errors
/// Fails if the build fails, or the program cannot list its tests.
pub fn build(subject: &Subject) -> anyhow::Result<Vec<Test>> {
    let Subject { root, package, profile, target, .. } = subject;
    let mut command = cargo_command_in(root);
    command
        .args(["test", "--profile", profile, "-p", package, "--lib", "--target-dir"])
        .arg(target)
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .env("RUSTFLAGS", loom_flags())
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo test")?;
    if !output.status.success() {
        bail!("{package}: the models do not build: {}", output.status);
    }
    let artifacts = String::from_utf8_lossy(&output.stdout);
    let program = artifacts
        .lines()
        .filter_map(|line| {
            serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(PathBuf::from)
        })
        .next_back()
        .with_context(|| format!("{package}: cargo names no test program"))?;
    let listed = Command::new(&program)
        .args(["--list", "--format=terse"])
        .output()
        .with_context(|| program.display().to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let test = |name: &str| Test {
        package: package.clone(),
        name: name.to_owned(),
        program: program.clone(),
        root: root.clone(),
    };
    Ok(names.map(test).collect())
}

impl Test {
    /// Runs the test alone with these environment variables, for at most `limit` of CPU time (see
    /// [`run_with_time_limit`]).
    ///
    /// # Errors
    /// Fails if the test cannot be started, if its output cannot be read, or if another process killed it.
    pub fn run(&self, environment: &[(&str, &str)], limit: Duration) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        command
            .args([self.name.as_str(), "--exact", "--nocapture", "--test-threads=1"])
            .current_dir(&self.root)
            .env("RUST_BACKTRACE", "0")
            // Only the failure matters, so no time is spent on its trace.
            .env("STORY", "0")
            .env("MUTANT", MUTANT_ABSENT)
            .envs(environment.iter().copied());
        let CommandResult { status, said: text, .. } = run_with_time_limit(&mut command, limit)?;
        let outcome = match status {
            None => Outcome::TimedOut,
            Some(status) if status.success() => Outcome::Passed,
            Some(status) => Outcome::failed(panic_message(&text).unwrap_or_else(|| status.to_string())),
        };
        let models: Vec<&str> = rows(&text, "MODEL ").filter(|row| row.contains(" | executions ")).collect();
        let executions = models.iter().map(|row| field(row, "executions")).sum();
        let models = models.iter().filter_map(|row| row.split(" | ").next()).map(str::to_owned).collect();
        let sites = rows(&text, "SITE ").filter_map(|row| row.split(' ').next()).map(str::to_owned).collect();
        Ok(Run { outcome, models, sites, executions })
    }
}

/// Returns, for each line that begins with `word`, the text after it. libtest prints "test name ... " before the first
/// line of a test's output.
pub fn rows<'t>(said: &'t str, word: &'t str) -> impl Iterator<Item = &'t str> {
    said.lines().filter_map(move |line| {
        let (before, row) = line.split_once(word)?;
        // Another thread of libtest has printed the result of its test, but not the end of that line yet.
        let ends = ["... ", "... ok"];
        (before.is_empty() || ends.iter().any(|end| before.ends_with(end))).then_some(row)
    })
}

/// Returns the number after `name` in a row of fields, or 0 if `name` is missing.
pub fn field(row: &str, name: &str) -> u64 {
    let mut fields = row.split(" | ").filter_map(|part| part.strip_prefix(name)?.trim().parse().ok());
    fields.next().unwrap_or(0)
}

/// Returns the message of the first panic in the output of a program.
fn panic_message(said: &str) -> Option<String> {
    let mut lines = said.lines().skip_while(|line| !(line.contains("panicked at ") && line.ends_with(':')));
    lines.next()?;
    lines.map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{MODELLED, Outcome, Subject, checked_test, workspace};
    use std::path::Path;
    use std::process::Command;

    /// A command line as a user types it.
    fn typed(build: &str, command: &Command) -> String {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        format!("RUSTFLAGS=\"--cfg {build}\" cargo {}", arguments.join(" "))
    }

    /// The test compares the command lines; the program of the models compares the output of the commands under loom.
    #[test]
    fn tutorial_commands_equal_the_model_commands() {
        let page = std::fs::read_to_string(workspace().join("sim/lab/README.md")).unwrap();
        let loom = format!("{} -- ", typed("loom", &checked_test(None, "loom", "uslab-lab")));
        let mut shuttle = checked_test(None, "shuttle", "uslab-lab");
        shuttle.args(["--", "scenarios", "--nocapture", "--test-threads=2"]);
        // `tests/sim/story.rs` tests the last command.
        let story = "cargo uslab story story.json --html story.html".to_owned();
        let others = [typed("shuttle", &shuttle), "cargo test -p uslab-lab".to_owned(), story];
        let commands: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        let known = |command: &&str| {
            command.contains(&loom)
                || command.contains("cargo planted loom uslab-lab ")
                || others.iter().any(|other| other == command)
        };
        let unknown: Vec<_> = commands.iter().filter(|command| !known(command)).collect();
        assert!(commands.len() >= 8 && unknown.is_empty(), "{unknown:#?}");
    }

    #[test]
    fn cargo_metadata_lists_the_packages_with_models() {
        let names = MODELLED.map(|modelled| modelled.package.to_owned());
        assert_eq!(Subject::find(None, &names, "loom").unwrap(), Subject::all_modelled_crates());
        assert_eq!(Subject::all_modelled_crates()[0].sources(), Path::new("magazine/sync/src"));
        let error = |name: &str| Subject::find(None, &[name.to_owned()], "loom").unwrap_err().to_string();
        assert!(
            error("uslab-sink").starts_with("unknown package `uslab-sink` in "),
            "{}",
            error("uslab-sink")
        );
        assert!(error("uslab-sink").contains(" uslab-magazine, "), "{}", error("uslab-sink"));
        assert_eq!(error("libuslab"), "package `libuslab` has no library");
    }

    #[test]
    fn result_row_parser_finds_rows_printed_after_test_names() {
        let said = "\nrunning 1 test\ntest models::g1 ... SITE a:1:2:0 load Acquire\nSITE b:1:2:0 load Relaxed\nno SITE c";
        let sites: Vec<&str> = super::rows(said, "SITE ").collect();
        assert_eq!(sites, ["a:1:2:0 load Acquire", "b:1:2:0 load Relaxed"]);
    }

    /// Regression test: a model that exceeded its time limit counted as having detected the mutant.
    #[test]
    fn model_run_ended_by_its_time_limit_is_not_a_failure() {
        for file in ["replay", "split"] {
            let text = std::fs::read_to_string(workspace().join(format!("magazine/sync/src/{file}.rs")));
            let said =
                text.unwrap().lines().find(|line| line.contains(": stopped after ")).unwrap().to_owned();
            assert_eq!(Outcome::failed(said), Outcome::TimedOut);
        }
        let said = "M1: 3 executions, but the floor is 9: the model collapsed".to_owned();
        assert_eq!(Outcome::failed(said.clone()), Outcome::Failed(said));
    }

    #[test]
    fn first_panic_message_describes_the_failure() {
        let said = "test a ... \nthread 'a' (1) panicked at x.rs:1:2:\n\n  Causality violation: so\nthread 'a' panicked at y.rs:3:4:\nother";
        assert_eq!(super::panic_message(said).as_deref(), Some("Causality violation: so"));
        assert_eq!(super::panic_message("test a ... ok"), None);
    }
}
